//! Room that a frame's holes and orphans take, where others write SOURCE: what is given back, and what is left as it is.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use b2fuse::format::IndexEntry;
use b2fuse::store::backend::Backend;
use b2fuse::store::{FrameStore, LocalStore, Others, SourceStore};

use super::{CHUNKS, Scene, options};
use crate::driver::{Store, create};
use crate::frames::{chunk, content, image};

/// Bytes between the chunks are being looked for, and are to be given back, when others write: what they wrote stays to the last bit,
/// as soon as anything tells of it.
#[test]
fn room_is_not_made_where_others_have_written() {
    type S = b2fuse::store::CframeStore;
    for keeps_times in [false, true] {
        for early in [false, true] {
            let scene = Scene::new::<S>();
            let (path, other) = (with_room(&scene.path), fs::read(with_room(&scene.other)).unwrap());
            assert_eq!(fs::metadata(&path).unwrap().len(), other.len() as u64, "only times and bytes tell");
            let store = S::open(&path, options(false)).unwrap();
            let mut entries = store.committed().unwrap().entries.to_vec();
            entries[0] = IndexEntry::Stored(store.stage(&chunk(400, 5)).unwrap());
            store.commit(store.enter(), image(entries)).unwrap(); // from now on it is swept
            if !early {
                while store.tidy() {}
            }
            let seen = fs::metadata(&path).unwrap();
            let mut theirs = other;
            theirs.resize(seen.len() as usize, 0xee);
            fs::write(&path, &theirs).unwrap();
            if keeps_times {
                fs::File::options().write(true).open(&path).unwrap().set_modified(seen.modified().unwrap()).unwrap();
            }
            while store.tidy() {}
            store.close().unwrap();
            assert!(fs::read(&path).unwrap() == theirs, "keeps times {keeps_times}, early {early}");
        }
    }
}

/// A copy of a cframe with a hole of some blocks in the middle, as a killed daemon would leave it.
fn with_room(path: &Path) -> PathBuf {
    type S = b2fuse::store::CframeStore;
    let store = S::open(path, options(false)).unwrap();
    let mut entries: Vec<_> = (0..CHUNKS).map(|_| IndexEntry::Stored(store.stage(&chunk(20_000, 1)).unwrap())).collect();
    store.commit(store.enter(), image(entries.clone())).unwrap();
    entries[1] = IndexEntry::Stored(store.stage(&chunk(500, 2)).unwrap());
    store.commit(store.enter(), image(entries)).unwrap();
    let copy = path.with_extension("room.b2frame");
    fs::copy(path, &copy).unwrap();
    assert!(fs::metadata(&copy).unwrap().len() > 6 * 20_000, "no hole");
    fs::File::open(&copy).unwrap().sync_all().unwrap(); // before, a file need not have all its blocks
    copy
}

/// SOURCE is read again in the middle of a sweep: what was found in the old one makes no room in the new one.
#[test]
fn what_is_read_again_is_swept_anew() {
    type S = b2fuse::store::CframeStore;
    let scene = Scene::new::<S>();
    let (path, other) = (with_room(&scene.path), with_room(&scene.other));
    let store = S::open(&path, options(false)).unwrap();
    let commit = |fill: u64| {
        let mut entries = store.committed().unwrap().entries.to_vec();
        entries[0] = IndexEntry::Stored(store.stage(&chunk(400, fill)).unwrap());
        store.commit(store.enter(), image(entries)).unwrap();
    };
    commit(5);
    store.tidy();
    let mut expected = content(&S::open(&other, options(true)).unwrap());
    fs::rename(&other, &path).unwrap();
    assert!(store.changed_outside().unwrap());
    while store.tidy() {}
    store.reload().unwrap();
    let there = fs::read(&path).unwrap();
    while store.tidy() {}
    assert!(fs::read(&path).unwrap() == there);
    for fill in 0..20 {
        commit(fill);
        expected[0] = IndexEntry::Stored(chunk(400, fill));
        assert!(content(&S::open(&path, options(true)).unwrap()) == expected);
        store.tidy();
    }
    store.close().unwrap();
    assert!(content(&S::open(&path, options(true)).unwrap()) == expected);
}

/// What others wrote last is theirs at unmount, also where this store has written before, and has read it again.
#[test]
fn what_others_wrote_last_is_left_as_it_is() {
    type S = b2fuse::store::CframeStore;
    let scene = Scene::new::<S>();
    let (path, other) = (with_room(&scene.path), with_room(&scene.other));
    let store = S::open(&path, options(false)).unwrap();
    let key = store.stage(&chunk(400, 1)).unwrap();
    store.commit(store.enter(), image(vec![IndexEntry::Stored(key)])).unwrap();
    let theirs = fs::read(&other).unwrap();
    fs::write(&path, &theirs).unwrap();
    store.reload().unwrap();
    store.close().unwrap();
    assert!(fs::read(&path).unwrap() == theirs);
}

/// Holes that a store punches are nothing that others did, and no read that is under way is refused for it.
#[test]
fn holes_of_our_own_are_no_change_to_a_reader() {
    type S = b2fuse::store::CframeStore;
    let scene = Scene::new::<S>();
    let path = with_room(&scene.path);
    let store = S::open(&path, options(false)).unwrap();
    let mut entries = store.committed().unwrap().entries.to_vec();
    entries[0] = IndexEntry::Stored(store.stage(&chunk(400, 1)).unwrap());
    store.commit(store.enter(), image(entries.clone())).unwrap();
    let expected = content(&store);
    let guard = store.enter();
    let kept = entries[5].stored().unwrap();
    let before = fs::metadata(&path).unwrap();
    store.close().unwrap();
    let after = fs::metadata(&path).unwrap();
    assert!(after.blocks() < before.blocks() || after.len() < before.len(), "something was given back");
    assert!(guard.is_current() && store.verify(&guard).is_ok());
    let mut bytes = vec![0; 20_032];
    assert_eq!(store.read_chunk(&guard, kept, 20_032, 0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes == chunk(20_000, 1));
    assert_eq!(store.look().unwrap(), Others::Nothing);
    assert!(store.is_as_seen());
    drop(guard);
    assert!(content(&store) == expected);
}

/// A daemon was killed, and the library goes on, with no word to anybody: it takes the ids of what the daemon left, and writes the
/// index last. Then the next mount comes, at any moment.
#[test]
fn a_library_beside_a_mount_keeps_what_it_has_not_indexed_yet() {
    type S = b2fuse::store::SframeStore;
    let dir = crate::disk::Dir::forgetful();
    let store = crate::driver::create::<S>(&dir).unwrap();
    let stage = |store: &S, fill: u64| IndexEntry::Stored(store.stage(&chunk(1000, fill)).unwrap());
    let entries: Vec<_> = (0..4).map(|fill| stage(&store, fill)).collect();
    store.commit(store.enter(), image(entries)).unwrap();
    store.close().unwrap();
    drop(store);
    let store = crate::driver::open::<S>(&dir, false).unwrap();
    let mut entries = store.committed().unwrap().entries.to_vec();
    (entries[0], entries[1]) = (stage(&store, 10), stage(&store, 11)); // 4 and 5, for 0 and 1
    let staged = stage(&store, 12); // 6
    let frame = dir.sub(crate::driver::NAME);
    let write = |id: u32, fill: u64| {
        let name = format!("{id:08X}.chunk");
        let file = frame.open(name.as_ref(), true).or_else(|_| frame.create(name.as_ref(), 0o644)).unwrap();
        file.set_len(0).unwrap();
        file.write_at(&chunk(1000, fill), 0).unwrap();
    };
    let holds = |id: u32, fill: u64| dir.sub(crate::driver::NAME).bytes(&format!("{id:08X}.chunk")) == Some(chunk(1000, fill));
    store.commit(store.enter(), image(entries.clone())).unwrap();
    write(7, 70); // beside the living daemon
    store.discard(staged.stored().unwrap());
    store.sync().unwrap();
    let staged = [stage(&store, 13), stage(&store, 14), stage(&store, 15)];
    let ids: Vec<u32> = staged.iter().map(|entry| entry.stored().unwrap().number() as u32).collect();
    dir.kill(store);
    write(ids[0], 71); // over what it left
    write(9, 72);
    let store = crate::driver::open::<S>(&dir, false).unwrap();
    let new = stage(&store, 16);
    assert!(holds(ids[0], 71) && holds(7, 70) && holds(9, 72), "what the library has written is gone");
    assert!(!holds(ids[1], 14) && !holds(ids[2], 15), "what the daemon has left is there");
    let mut entries = store.committed().unwrap().entries.to_vec();
    entries[2] = new;
    store.commit(store.enter(), image(entries)).unwrap();
    store.sync().unwrap();
    store.close().unwrap();
    assert!(holds(ids[0], 71) && holds(7, 70) && holds(9, 72), "what the library has written is gone");
    let names = dir.sub(crate::driver::NAME).names();
    assert_eq!(names.len(), 1 + 4 + 3, "the index, its chunks and the library's: {names:?}");
}

crate::for_both! {
    what_was_committed_before_others_wrote_is_on_disk_at_the_end,
}

fn what_was_committed_before_others_wrote_is_on_disk_at_the_end<S: Store>() {
    use crate::disk::{Dir, Op};
    let dir = Dir::default();
    let store = create::<S>(&dir).unwrap();
    let stage = |fill| IndexEntry::Stored(store.stage(&chunk(1000, fill)).unwrap());
    store.commit(store.enter(), image(vec![stage(1)])).unwrap();
    store.commit(store.enter(), image(vec![stage(2)])).unwrap();
    let (frame, index) = S::index(&dir);
    let begins = frame.bytes(index).unwrap()[..20].to_vec();
    frame.meddle(index, 0, &begins); // which changes its time
    assert!(store.changed_outside().unwrap());
    store.reload().unwrap();
    let before = dir.log_len();
    store.close().unwrap();
    let synced = |op: &Op| matches!(op, Op::Sync { .. } | Op::SyncDir { .. });
    assert!(dir.log()[before..].iter().any(synced), "{:?}", &dir.log()[before..]);
}

/// A sync that would cut the file leaves what others wrote, also where length and time of writing are those of before.
#[test]
fn a_sync_cuts_nothing_that_others_wrote() {
    type S = b2fuse::store::CframeStore;
    let scene = Scene::new::<S>();
    let path = &scene.path;
    let store = S::open(path, options(false)).unwrap();
    let mut entries: Vec<_> = (0..6).map(|fill| IndexEntry::Stored(store.stage(&chunk(20_000, fill)).unwrap())).collect();
    store.commit(store.enter(), image(entries.clone())).unwrap();
    for _ in 0..4 {
        entries.swap(0, 1);
        store.commit(store.enter(), image(entries.clone())).unwrap();
        let len = store.committed().unwrap().header.frame_len();
        let seen = fs::metadata(path).unwrap();
        if seen.len() == len {
            continue; // nothing to be cut
        }
        let mut theirs = fs::read(&scene.other).unwrap();
        theirs.resize(seen.len() as usize, 0xee);
        fs::write(path, &theirs).unwrap();
        fs::File::options().write(true).open(path).unwrap().set_modified(seen.modified().unwrap()).unwrap();
        let _ = store.sync();
        assert!(fs::read(path).unwrap() == theirs);
        return;
    }
    panic!("the file was never longer than the frame");
}

/// The library takes the id of a chunk that is being dropped, and writes to the file in the very moment in which that is removed.
#[test]
fn a_file_that_the_library_writes_while_it_is_removed_stays() {
    type S = b2fuse::store::SframeStore;
    let dir = crate::disk::Dir::default();
    let store = create::<S>(&dir).unwrap();
    let stage = |fill: u64| store.stage(&chunk(1000, fill)).unwrap();
    let entries: Vec<_> = (0..2).map(|fill| IndexEntry::Stored(stage(fill))).collect();
    store.commit(store.enter(), image(entries.clone())).unwrap();
    let dropped = stage(2);
    let frame = dir.sub(crate::driver::NAME);
    let name = format!("{:08X}.chunk", dropped.number() as u32);
    frame.meddle_at(dir.log_len(), &name, &chunk(900, 9));
    store.discard(dropped);
    store.sync().unwrap();
    let theirs = || frame.bytes(&name).is_some_and(|bytes| bytes.starts_with(&chunk(900, 9)));
    assert!(theirs(), "what the library has written is gone: {:?}", frame.names());
    store.commit(store.enter(), image(vec![entries[1]])).unwrap();
    store.close().unwrap();
    assert!(theirs() && frame.bytes("00000000.chunk").is_none());
}

/// A commit found no room after it had moved chunks: the index in SOURCE is still the one of before, and nobody else's.
#[test]
fn attributes_set_after_a_commit_that_found_no_room_are_no_other_state() {
    type S = b2fuse::store::CframeStore;
    let mut refused = 0;
    for at in 0.. {
        let dir = crate::disk::Dir::default();
        let store = create::<S>(&dir).unwrap();
        let stage = |len: u32, fill: u64| IndexEntry::Stored(store.stage(&chunk(len, fill)).unwrap());
        let mut entries: Vec<_> = (0..12).map(|fill| stage(20_000, fill)).collect();
        store.commit(store.enter(), image(entries.clone())).unwrap();
        store.sync().unwrap();
        (0..9).for_each(|at| entries[at] = stage(100, at as u64));
        dir.fail_at(dir.log_len() + at, libc::ENOSPC);
        let committed = store.commit(store.enter(), image(entries.clone()));
        let Some(_) = dir.failed() else { break };
        dir.touch(crate::driver::NAME);
        if store.check_writable().is_ok() {
            refused += usize::from(committed.is_err());
            let seen = store.look().unwrap();
            assert!(matches!(seen, Others::Nothing | Others::Attributes), "operation {at}: {seen:?}");
            store.commit(store.enter(), image(entries.clone())).unwrap();
            store.close().unwrap();
        }
    }
    assert!(refused > 0);
}
