//! What a commit of an sframe does in its directory, and what is left there when a step fails.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

use b2fuse::format::IndexEntry;
use b2fuse::store::backend::Backend;
use b2fuse::store::{ChunkKey, FrameStore, SframeStore, StoreError};

use crate::disk::{Dir, Node, Op, start};
use crate::driver::{Driver, NAME, create, frame_of, open};
use crate::frames::{chunk, read};
use crate::history::{History, Plan};

fn driver(count: u64) -> Driver<SframeStore> {
    let dir = Dir::default();
    let mut driver = Driver::new(&dir, create::<SframeStore>(&dir).unwrap(), 3, 1500);
    append(&mut driver, count);
    driver.commit().unwrap();
    driver.sync().unwrap();
    driver
}

fn append(driver: &mut Driver<SframeStore>, count: u64) {
    for _ in 0..count {
        let entry = driver.stage_bytes(chunk(500, 100 + driver.bytes.len() as u64)).unwrap();
        driver.entries.push(entry);
    }
}

fn file_name(driver: &Driver<SframeStore>, key: ChunkKey) -> OsString {
    use b2fuse::store::SourceStore;
    driver.store.file_id(key).expect("the file of a chunk").file_name().into()
}

fn chunk_files(dir: &Dir) -> BTreeSet<OsString> {
    dir.sub(NAME).names().into_iter().filter(|name| name.as_encoded_bytes().ends_with(b".chunk")).collect()
}

fn named(driver: &Driver<SframeStore>) -> BTreeSet<OsString> {
    driver.entries.iter().filter_map(|entry| entry.stored()).map(|key| file_name(driver, key)).collect()
}

/// Files of the log that get the name of a chunk, and the others that are synced.
fn syncs(log: &[Op]) -> (usize, usize) {
    let synced: BTreeSet<_> = log.iter().filter(|op| matches!(op, Op::Sync { .. })).filter_map(Op::file).collect();
    (synced.len(), log.iter().filter(|op| matches!(op, Op::SyncFs)).count())
}

#[test]
fn up_to_eight_new_files_are_synced_each_and_more_together() {
    for count in [1, 7, 8, 9, 10, 20] {
        let mut driver = driver(2);
        append(&mut driver, count);
        let from = driver.disk.log_len();
        driver.commit().unwrap();
        let log = driver.disk.log();
        let renamed = (from..log.len()).find(|at| matches!(&log[*at], Op::Rename { to, .. } if to == "chunks.b2frame")).unwrap();
        let (files, all) = syncs(&log[from..renamed]);
        // The index file is one more.
        assert_eq!((files, all), if count <= 8 { (count as usize + 1, 0) } else { (0, 1) }, "{count} new files");
        assert!(matches!(log[renamed - 1], Op::SyncDir { .. }), "{count} new files: their names are not synced");
        // Then they are counted from nothing.
        append(&mut driver, 1);
        let from = driver.disk.log_len();
        driver.commit().unwrap();
        assert_eq!(syncs(&driver.disk.log()[from..]), (2, 0), "after {count} new files");
    }
}

/// A chunk that waits for a later commit is synced with that one; one that was given back never.
#[test]
fn a_new_file_is_synced_with_the_commit_that_names_it() {
    let dir = Dir::default();
    let start = start(&dir);
    let mut driver = Driver::new(&dir, create::<SframeStore>(&dir).unwrap(), 3, 1500);
    append(&mut driver, 1);
    driver.commit().unwrap();
    append(&mut driver, 3);
    let later = driver.entries.pop().unwrap();
    let gone = driver.entries.pop().unwrap();
    let from = dir.log_len();
    driver.commit().unwrap();
    assert_eq!(syncs(&dir.log()[from..]), (2, 0));
    driver.let_go(gone);
    driver.entries.push(later);
    let from = dir.log_len();
    driver.commit().unwrap();
    assert_eq!(syncs(&dir.log()[from..]), (2, 0));
    driver.sync().unwrap();
    History::new(start, &driver).judge::<SframeStore>(Plan { any: 10, ..Plan::default() }).unwrap();
}

/// Whoever wrote the frame synced nothing of it, and its old chunks are part of what this store promises.
#[test]
fn chunk_files_that_others_left_unsynced_are_on_disk_with_the_first_commit() {
    let made = driver(5);
    let dir = Dir::default();
    let start = start(&dir);
    let inside = dir.create_dir(OsStr::new(NAME), 0o755).unwrap();
    for name in made.disk.sub(NAME).names() {
        let bytes = made.disk.sub(NAME).bytes(name.to_str().unwrap()).unwrap();
        inside.create(&name, 0o644).unwrap().write_at(&bytes, 0).unwrap();
    }
    let mut driver = Driver::new(&dir, open::<SframeStore>(&dir, false).unwrap(), 3, 1500);
    append(&mut driver, 1);
    driver.commit().unwrap();
    driver.sync().unwrap();
    let from = dir.log_len();
    History::new(start, &driver).judge::<SframeStore>(Plan { from, any: 50, ..Plan::default() }).unwrap();
}

/// The steps of a commit that drops a chunk and has new ones, few or many.
fn change(new: u64) -> (Driver<SframeStore>, ChunkKey, Vec<ChunkKey>) {
    let mut driver = driver(4);
    let dropped = driver.entries.remove(1).stored().unwrap();
    let count = driver.entries.len();
    append(&mut driver, new);
    let admitted = driver.entries[count..].iter().filter_map(|entry| entry.stored()).collect();
    (driver, dropped, admitted)
}

#[test]
fn a_commit_that_fails_leaves_no_unfinished_index_and_all_chunks() {
    let (mut answers, mut ends) = (0, 0);
    for new in [2, 12] {
        let (count, from) = {
            let (mut driver, ..) = change(new);
            let from = driver.disk.log_len();
            driver.commit().unwrap();
            (driver.disk.log_len() - from, from)
        };
        for errno in [libc::ENOSPC, libc::EIO] {
            for at in 0..count {
                let (mut driver, dropped, admitted) = change(new);
                let dir = driver.disk.clone();
                let old = frame_of(&*driver.store);
                let staged = driver.stage_bytes(chunk(333, 77)).unwrap().stored().unwrap();
                let shift = dir.log_len() - from;
                dir.fail_at(from + shift + at, errno);
                let result = driver.store.commit(driver.store.enter(), driver.image());
                let failed = dir.failed().expect("nothing failed");
                let when = || format!("{new} new files, errno {errno}, operation {at}, {}", failed.brief());
                let Err(error) = result else {
                    driver.commit().unwrap();
                    driver.check();
                    continue;
                };
                let is_renamed = matches!(&failed, Op::Rename { to, .. } if to == "chunks.b2frame");
                for key in admitted.iter().chain([&dropped, &staged]) {
                    assert!(read(&*driver.store, *key) == driver.bytes[key], "{}: chunk {key:?}", when());
                }
                let unfinished = |dir: &Dir| dir.sub(NAME).names().contains(&OsString::from(".b2fuse-chunks.tmp"));
                let there = frame_of(&open::<SframeStore>(&dir, true).unwrap());
                assert!(there == old || there == driver.frame(), "{}: another frame", when());
                assert!(!unfinished(&dir), "{}: an unfinished index is left", when());
                let is_answer =
                    errno == libc::ENOSPC && matches!(failed, Op::Create { .. } | Op::Write { .. } | Op::Rename { .. });
                if is_answer {
                    answers += 1;
                    assert!(!matches!(error, StoreError::Poisoned { .. }), "{}: {error}", when());
                    driver.commit().unwrap();
                    driver.sync().unwrap();
                    driver.close().unwrap();
                    assert_eq!(chunk_files(&dir), named(&driver), "{}: what no state needs is gone", when());
                    continue;
                }
                ends += 1;
                let again = driver.store.commit(driver.store.enter(), driver.image());
                assert!(matches!(again, Err(StoreError::Poisoned { .. })), "{}: writing goes on", when());
                let names: Vec<_> = admitted.iter().map(|key| file_name(&driver, *key)).collect();
                let old_name = file_name(&driver, dropped);
                let _ = driver.store.close();
                let left = chunk_files(&dir);
                assert!(left.contains(&old_name), "{}: a chunk of the old state is gone", when());
                if is_renamed {
                    assert!(
                        names.iter().all(|name| left.contains(name)),
                        "{}: the new index may be there, and its chunks are not",
                        when()
                    );
                }
                assert!(!unfinished(&dir), "{}: an unfinished index is left", when());
                let there = frame_of(&open::<SframeStore>(&dir, true).unwrap());
                assert!(there == old || there == driver.frame(), "{}: another frame, closed", when());
            }
        }
    }
    println!("{answers} were answers, {ends} ended all writing");
    assert!(answers > 3 && ends > 10);
}

/// What somebody who was killed has left under its name.
#[test]
fn an_unfinished_index_of_another_is_no_obstacle() {
    use b2fuse::store::backend::Backend;
    let mut driver = driver(2);
    let dir = driver.disk.sub(NAME);
    dir.create(OsStr::new(".b2fuse-chunks.tmp"), 0).unwrap().write_at(&[7; 5000], 0).unwrap();
    append(&mut driver, 1);
    driver.commit().unwrap();
    driver.check_file(&driver.disk);
    assert!(!dir.names().contains(&OsString::from(".b2fuse-chunks.tmp")));
}

/// Others write the index while the new one is synced.
#[test]
fn an_index_of_others_is_not_replaced() {
    let (from, renamed) = {
        let mut driver = driver(2);
        append(&mut driver, 1);
        let from = driver.disk.log_len();
        driver.commit().unwrap();
        let log = driver.disk.log();
        (from, (from..log.len()).find(|at| matches!(&log[*at], Op::Rename { to, .. } if to == "chunks.b2frame")).unwrap())
    };
    let mut driver = driver(2);
    append(&mut driver, 1);
    let dir = driver.disk.sub(NAME);
    assert_eq!(driver.disk.log_len(), from);
    dir.meddle_at(renamed - 1, "chunks.b2frame", b"theirs");
    let error = driver.store.commit(driver.store.enter(), driver.image()).unwrap_err();
    assert!(matches!(error, StoreError::Stale { .. }), "{error}");
    assert!(dir.bytes("chunks.b2frame").unwrap().starts_with(b"theirs"));
    assert!(!dir.names().contains(&OsString::from(".b2fuse-chunks.tmp")));
    let created = |op: &Op| matches!(op, Op::Create { node: Node::File(_), name, .. } if name == ".b2fuse-chunks.tmp");
    assert!(driver.disk.log()[from..].iter().any(created), "it was seen before");
}

/// A chunk that is named twice is dropped when nothing names it any more.
#[test]
fn a_chunk_that_is_named_twice_stays_until_neither_is_left() {
    let mut driver = driver(3);
    let twice = driver.entries[1];
    let name = file_name(&driver, twice.stored().unwrap());
    driver.entries.push(twice);
    driver.commit().unwrap();
    let cbytes = |driver: &Driver<SframeStore>| driver.store.committed().unwrap().header.cbytes();
    assert_eq!(cbytes(&driver), 4 * 532);
    driver.entries.remove(1);
    driver.commit().unwrap();
    driver.sync().unwrap();
    assert_eq!(cbytes(&driver), 3 * 532);
    assert!(chunk_files(&driver.disk).contains(&name));
    driver.entries.retain(|entry: &IndexEntry<ChunkKey>| *entry != twice);
    driver.commit().unwrap();
    assert!(chunk_files(&driver.disk).contains(&name), "a crash may bring the state before back");
    driver.sync().unwrap();
    driver.commit().unwrap();
    assert!(!chunk_files(&driver.disk).contains(&name), "nobody needs it");
    assert_eq!(cbytes(&driver), 2 * 532);
}
