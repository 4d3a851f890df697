//! Other programs that write SOURCE while a store has it open: what is read, what is read again, and what is written.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use b2fuse::format::IndexEntry;
use b2fuse::format::header::FrameHeader;
use b2fuse::format::metalayer::Metalayer;
use b2fuse::store::{CframeStore, ChunkKey, FrameStore, LocalStore, OpenOptions, Others, Result, SourceStore, StoreError};

use crate::driver::Store;
use crate::frames::{chunk, content, image, try_content};

mod room;

crate::for_both! {
    a_key_never_reads_what_others_wrote,
    what_is_read_again_is_written_to_with_care,
    a_name_decides_what_is_read_and_locked,
    where_nothing_has_the_name_what_is_open_is_read_and_not_committed,
    who_has_the_lock_of_what_took_the_name_keeps_it,
    what_is_somebody_elses_is_not_followed,
    what_is_opened_again_is_looked_at_again,
    attributes_of_others_are_no_other_state,
    own_commits_are_nothing_others_did,
    what_others_write_over_is_saved_all_the_same,
}

const CHUNKS: usize = 6;

/// A frame of chunks that are all of one length.
fn frame<S: Store>(path: &Path, fill: u64) -> Vec<IndexEntry<Vec<u8>>> {
    let store = S::create_at(path, OpenOptions::default()).unwrap();
    let chunks: Vec<_> = (0..CHUNKS as u64).map(|n| chunk(3000, fill * 100 + n)).collect();
    let entries = chunks.iter().map(|chunk| IndexEntry::Stored(store.stage(chunk).unwrap())).collect();
    store.commit(store.enter(), image(entries)).unwrap();
    store.close().unwrap();
    chunks.into_iter().map(IndexEntry::Stored).collect()
}

fn options(read_only: bool) -> OpenOptions {
    OpenOptions { read_only, ..OpenOptions::default() }
}

/// Whether this process may give files away. Says aloud where it may not.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: only root can give files to others");
    }
    root
}

/// What another program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    /// Puts another frame in its place.
    Replace,
    /// Writes another frame over it, into the same files.
    Overwrite,
    /// Cuts it in the middle.
    Cut,
    Remove,
    /// Puts a link in its place.
    Link,
}

const DEEDS: [Deed; 5] = [Deed::Replace, Deed::Overwrite, Deed::Cut, Deed::Remove, Deed::Link];

impl Deed {
    /// Does it to `path`; `other` is another frame of that layout.
    fn is_done<S: Store>(self, path: &Path, other: &Path) {
        let gone = path.with_extension("gone");
        match self {
            Deed::Replace => {
                let new = path.with_extension("new");
                S::copy(other, &new);
                if path.is_dir() {
                    fs::rename(path, &gone).unwrap();
                }
                fs::rename(new, path).unwrap();
            }
            Deed::Overwrite if path.is_dir() => {
                let mut files: Vec<_> = fs::read_dir(other).unwrap().map(|file| file.unwrap().file_name()).collect();
                files.sort(); // the index comes last
                files.iter().for_each(|name| fs::write(path.join(name), fs::read(other.join(name)).unwrap()).unwrap());
            }
            Deed::Overwrite => fs::write(path, fs::read(other).unwrap()).unwrap(),
            Deed::Cut => {
                let file = if path.is_dir() { path.join("chunks.b2frame") } else { path.into() };
                let file = fs::File::options().write(true).open(file).unwrap();
                file.set_len(file.metadata().unwrap().len() / 2).unwrap();
            }
            Deed::Remove => fs::rename(path, gone).unwrap(),
            Deed::Link => {
                fs::rename(path, gone).unwrap();
                symlink(other, path).unwrap();
            }
        }
    }
}

struct Scene {
    _dir: tempfile::TempDir,
    path: PathBuf,
    other: PathBuf,
    old: Vec<IndexEntry<Vec<u8>>>,
    new: Vec<IndexEntry<Vec<u8>>>,
}

impl Scene {
    fn new<S: Store>() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("frame"), dir.path().join("other"));
        let (old, new) = (frame::<S>(&path, 1), frame::<S>(&other, 2));
        Scene { _dir: dir, path, other, old, new }
    }
}

fn keys(store: &dyn FrameStore) -> Vec<ChunkKey> {
    store.committed().unwrap().entries.iter().filter_map(|entry| entry.stored()).collect()
}

/// Reads a part of a chunk without a look at its header.
fn part(store: &dyn FrameStore, key: ChunkKey, from: u64, len: usize) -> Result<Vec<u8>> {
    let guard = store.enter();
    let mut bytes = vec![0; len];
    let count = store.read_chunk(&guard, key, 3032, from, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

fn bytes_of(entry: &IndexEntry<Vec<u8>>) -> &[u8] {
    let IndexEntry::Stored(bytes) = entry else { panic!("a stored chunk") };
    bytes
}

fn a_key_never_reads_what_others_wrote<S: Store>() {
    for deed in DEEDS {
        for (read_only, looked_at) in [(true, false), (true, true), (false, false), (false, true)] {
            let scene = Scene::new::<S>();
            let store = S::open_at(&scene.path, options(read_only)).unwrap();
            let old = keys(&store);
            if looked_at {
                assert!(content(&store) == scene.old);
                for key in &old {
                    (0..3).for_each(|n| drop(part(&store, *key, 1000 * (n % 2), 50).unwrap())); // into the cache
                }
            }
            let guard = store.enter();
            deed.is_done::<S>(&scene.path, &scene.other);
            let at = format!("{deed:?}, read-only {read_only}, looked at {looked_at}");
            let check = |key: &ChunkKey, expected: &IndexEntry<Vec<u8>>| {
                let mut got = vec![0; 3032];
                if let Ok(count) = store.read_chunk(&guard, *key, 3032, 0, &mut got) {
                    assert!(&got[..count] == bytes_of(expected), "{at}: another chunk's bytes, with an old guard");
                }
                for (from, len) in [(0, 3032), (100, 50), (3000, 32)] {
                    if let Ok(got) = part(&store, *key, from, len) {
                        assert!(got == bytes_of(expected)[from as usize..][..len], "{at}: another chunk's bytes");
                    }
                }
                if let Ok(header) = store.chunk_header(&store.enter(), *key) {
                    assert_eq!(header.cbytes, 3032, "{at}");
                }
            };
            old.iter().zip(&scene.old).for_each(|(key, expected)| check(key, expected));
            assert!(store.changed_outside().unwrap(), "{at}");
            let reloaded = store.reload();
            assert_eq!(reloaded.is_ok(), matches!(deed, Deed::Replace | Deed::Overwrite), "{at}: {:?}", reloaded.err());
            if reloaded.is_ok() {
                assert!(content(&store) == scene.new, "{at}");
                for key in &old {
                    assert!(matches!(part(&store, *key, 0, 3032), Err(StoreError::Stale { .. })), "{at}: an old key is good");
                    assert!(store.chunk_header(&store.enter(), *key).is_err(), "{at}: an old key is good");
                    let mut got = vec![0; 10];
                    assert!(store.read_chunk(&guard, keys(&store)[0], 3032, 0, &mut got).is_err(), "{at}: an old guard is good");
                }
                assert!(!store.changed_outside().unwrap(), "{at}");
            } else {
                old.iter().zip(&scene.old).for_each(|(key, expected)| check(key, expected));
            }
        }
    }
}

fn what_is_read_again_is_written_to_with_care<S: Store>() {
    for deed in [Deed::Replace, Deed::Overwrite] {
        for busy in [false, true] {
            let scene = Scene::new::<S>();
            let store = S::open_at(&scene.path, options(false)).unwrap();
            if busy {
                // Its map of what is free is that of the old file.
                let entries = (0..3).map(|n| IndexEntry::Stored(store.stage(&chunk(2000, n)).unwrap())).collect();
                store.commit(store.enter(), image(entries)).unwrap();
                store.sync().unwrap();
            }
            let old = keys(&store);
            deed.is_done::<S>(&scene.path, &scene.other);
            assert!(store.commit(store.enter(), image(vec![IndexEntry::Stored(old[0])])).is_err(), "over others");
            store.reload().unwrap();
            for key in &old {
                // As somebody might who does not know yet.
                store.discard(*key);
                store.unpin(*key);
                store.pin(*key);
            }
            let mut entries = store.committed().unwrap().entries.to_vec();
            let mut expected = scene.new.clone();
            for round in 0..20 {
                let (at, bytes) = (round % CHUNKS, chunk(500 + 300 * round as u32, 7000 + round as u64));
                let new = store.stage(&bytes).unwrap();
                let unused = store.stage(&chunk(100, 1)).unwrap();
                assert!(!old.contains(&new), "a key is given out again");
                if let IndexEntry::Stored(before) = std::mem::replace(&mut entries[at], IndexEntry::Stored(new)) {
                    store.discard(before);
                }
                expected[at] = IndexEntry::Stored(bytes);
                store.commit(store.enter(), image(entries.clone())).unwrap();
                store.discard(unused);
                assert!(content(&store) == expected, "{deed:?}, round {round}");
                assert!(content(&S::open_at(&scene.path, options(true)).unwrap()) == expected, "{deed:?}, round {round}");
            }
            store.close().unwrap();
            assert!(content(&S::open_at(&scene.path, options(true)).unwrap()) == expected);
        }
    }
}

fn a_name_decides_what_is_read_and_locked<S: Store>() {
    let scene = Scene::new::<S>();
    let store = S::open_at(&scene.path, options(false)).unwrap();
    Deed::Replace.is_done::<S>(&scene.path, &scene.other);
    let is_busy = |path: &Path| matches!(S::open_at(path, options(false)), Err(StoreError::Busy { .. }));
    assert!(!is_busy(&scene.path), "its lock is on what has gone");
    store.reload().unwrap();
    assert!(is_busy(&scene.path), "and now on what has the name");
    let gone = scene.path.with_extension("gone");
    assert!(!gone.exists() || !is_busy(&gone));
    let key = store.stage(&chunk(10, 1)).unwrap();
    store.commit(store.enter(), image(vec![IndexEntry::Stored(key)])).unwrap();
    store.close().unwrap();
    assert!(!is_busy(&scene.path));
    assert!(content(&S::open_at(&scene.path, options(true)).unwrap()) == [IndexEntry::Stored(chunk(10, 1))]);
}

fn where_nothing_has_the_name_what_is_open_is_read_and_not_committed<S: Store>() {
    for deed in [Deed::Remove, Deed::Link] {
        for read_only in [true, false] {
            let scene = Scene::new::<S>();
            let store = S::open_at(&scene.path, options(read_only)).unwrap();
            deed.is_done::<S>(&scene.path, &scene.other);
            assert!(matches!(store.look().unwrap(), Others::Gone(_)));
            assert!(store.reload().is_err());
            assert!(content(&store) == scene.old, "it is open");
            if !read_only {
                let new = IndexEntry::Stored(store.stage(&chunk(10, 1)).unwrap());
                let committed = store.commit(store.enter(), image(vec![new]));
                assert!(matches!(committed, Err(StoreError::Stale { .. })), "{committed:?}");
                // Where it comes back, all is as it was.
                let _ = fs::remove_file(&scene.path);
                fs::rename(scene.path.with_extension("gone"), &scene.path).unwrap();
                store.commit(store.enter(), image(vec![new])).unwrap();
                assert!(content(&store) == [IndexEntry::Stored(chunk(10, 1))]);
            }
        }
    }
}

fn who_has_the_lock_of_what_took_the_name_keeps_it<S: Store>() {
    let scene = Scene::new::<S>();
    let store = S::open_at(&scene.path, options(false)).unwrap();
    let new = scene.path.with_extension("new");
    S::copy(&scene.other, &new);
    let other = S::open_at(&new, options(false)).unwrap();
    if scene.path.is_dir() {
        fs::rename(&scene.path, scene.path.with_extension("gone")).unwrap();
    }
    fs::rename(&new, &scene.path).unwrap();
    store.reload().unwrap();
    assert!(content(&store) == scene.new);
    let busy = |result: Result<()>| assert!(matches!(result, Err(StoreError::Busy { .. })), "{result:?}");
    busy(store.check_writable());
    busy(store.stage(&chunk(10, 1)).map(drop));
    busy(store.commit(store.enter(), image(vec![IndexEntry::Stored(keys(&store)[0])])));
    assert!(content(&store) == scene.new, "reading goes on");
    drop(other);
    store.check_writable().unwrap();
    let key = store.stage(&chunk(10, 1)).unwrap();
    store.commit(store.enter(), image(vec![IndexEntry::Stored(key)])).unwrap();
    store.close().unwrap();
    assert!(content(&S::open_at(&scene.path, options(true)).unwrap()) == [IndexEntry::Stored(chunk(10, 1))]);
}

/// A frame can be as large as the disk.
#[test]
fn a_cframe_that_was_replaced_takes_no_room() {
    type S = b2fuse::store::CframeStore;
    let scene = Scene::new::<S>();
    let store = S::open(&scene.path, options(false)).unwrap();
    let removed = || {
        let files = fs::read_dir("/proc/self/fd").unwrap().filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        let ours = scene.path.parent().unwrap().to_owned();
        files.filter(|file| file.starts_with(&ours) && file.to_string_lossy().ends_with("(deleted)")).count()
    };
    for n in 0..3 {
        // By others, and by a header that cannot change in place.
        let new = scene.path.with_extension("new");
        S::copy(&scene.other, &new);
        fs::rename(&new, &scene.path).unwrap();
        store.reload().unwrap();
        let mut image = (*store.committed().unwrap()).clone();
        let fields = image.header.fields();
        image.header = FrameHeader::encode(&fields, &[Metalayer { name: b"long", content: &vec![n; 2000] }]).unwrap();
        store.commit(store.enter(), image).unwrap();
        assert_eq!(removed(), 0);
    }
}

/// Who may write the directory can give the name to a file that somebody else has left there.
fn what_is_somebody_elses_is_not_followed<S: Store>() {
    if !is_root() {
        return;
    }
    for (mode, followed) in [(0o600, false), (0o640, false), (0o644, true)] {
        let scene = Scene::new::<S>();
        let store = S::open_at(&scene.path, options(true)).unwrap();
        fs::set_permissions(scene.path.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
        let give = |path: &Path| {
            chown(path, Some(4711), Some(4711)).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode | if path.is_dir() { 0o111 } else { 0 })).unwrap();
        };
        give(&scene.other);
        if scene.path.is_dir() {
            fs::rename(&scene.path, scene.path.with_extension("gone")).unwrap();
        }
        fs::rename(&scene.other, &scene.path).unwrap();
        assert_eq!(store.reload().is_ok(), followed, "{mode:o}");
        assert!(content(&store) == if followed { scene.new } else { scene.old });
    }
}

/// The owner of a frame's directory gives the index's name to a file that is not his.
#[test]
fn an_index_of_somebody_elses_is_not_followed() {
    type S = b2fuse::store::SframeStore;
    if !is_root() {
        return;
    }
    for (mode, followed) in [(0o600, false), (0o644, true)] {
        let scene = Scene::new::<S>();
        let store = S::open(&scene.path, options(true)).unwrap();
        let inside = fs::read_dir(&scene.path).unwrap().map(|entry| entry.unwrap().path());
        for path in inside.chain([scene.path.clone()]) {
            chown(path, Some(4711), Some(4711)).unwrap();
        }
        store.reload().unwrap();
        let kept = scene.path.join("kept");
        fs::copy(scene.other.join("chunks.b2frame"), &kept).unwrap();
        fs::set_permissions(&kept, fs::Permissions::from_mode(mode)).unwrap();
        fs::rename(&kept, scene.path.join("chunks.b2frame")).unwrap();
        assert_eq!(store.reload().is_ok(), followed, "{mode:o}");
    }
}

/// Whoever owns the directory may have given the name to a file that has its place elsewhere.
#[test]
fn a_file_of_somebody_elses_with_two_names_is_not_followed() {
    type S = b2fuse::store::CframeStore;
    if !is_root() {
        return;
    }
    for (of_directory, followed) in [(4711, false), (0, true)] {
        let scene = Scene::new::<S>();
        let store = S::open(&scene.path, options(false)).unwrap();
        chown(scene.path.parent().unwrap(), Some(of_directory), None).unwrap();
        fs::hard_link(&scene.other, scene.path.with_extension("elsewhere")).unwrap();
        fs::rename(&scene.other, &scene.path).unwrap();
        assert_eq!(store.reload().is_ok(), followed, "{of_directory}");
        assert!(content(&store) == if followed { scene.new } else { scene.old });
    }
}

/// The name stands for one frame when it is looked at, and for somebody else's when it is opened.
fn what_is_opened_again_is_looked_at_again<S: Store>() {
    if !is_root() {
        return;
    }
    let scene = Scene::new::<S>();
    let store = S::open_at(&scene.path, options(false)).unwrap();
    fs::set_permissions(scene.path.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
    let (locked, theirs) = (scene.path.with_extension("locked"), scene.path.with_extension("theirs"));
    S::copy(&scene.path, &locked);
    S::copy(&scene.other, &theirs);
    chown(&theirs, Some(4711), Some(4711)).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700)).unwrap();
    // Who has lost the lock opens what has the name each time that it is read again.
    let other = S::open_at(&locked, options(false)).unwrap();
    let exchange = |one: &Path, other: &Path| {
        rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, rustix::fs::RenameFlags::EXCHANGE).unwrap();
    };
    exchange(&locked, &scene.path);
    store.reload().unwrap();
    assert!(store.check_writable().is_err());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                exchange(&theirs, &scene.path);
            }
        });
        let end = Instant::now() + Duration::from_millis(700);
        let (mut again, mut theirs) = (0, 0);
        while Instant::now() < end {
            again += usize::from(store.reload().is_ok());
            theirs += usize::from(try_content(&store).is_ok_and(|content| content == scene.new));
        }
        done.store(true, Relaxed);
        assert!(again > 0 && theirs == 0, "read again {again} times, and {theirs} times it was somebody else's");
    });
    drop(other);
}

fn attributes_of_others_are_no_other_state<S: Store>() {
    let scene = Scene::new::<S>();
    let index = if scene.path.is_dir() { scene.path.join("chunks.b2frame") } else { scene.path.clone() };
    for read_only in [true, false] {
        let store = S::open_at(&scene.path, options(read_only)).unwrap();
        let guard = store.enter();
        fs::set_permissions(&index, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(content(&store) == scene.old);
        assert_eq!(store.look().unwrap(), Others::Attributes);
        assert_eq!(store.look().unwrap(), Others::Nothing);
        fs::hard_link(&index, scene.path.with_extension(format!("link-{read_only}"))).unwrap();
        assert_eq!(store.look().unwrap(), Others::Attributes);
        assert_eq!(store.look().unwrap(), Others::Nothing);
        assert!(part(&store, keys(&store)[0], 0, 3032).is_ok());
        let mut got = vec![0; 3032];
        store.read_chunk(&guard, keys(&store)[0], 3032, 0, &mut got).unwrap();
        assert_eq!(store.source_stat().unwrap().mode, 0o600);
        // Who sets the time back has written all the same.
        let mtime = fs::metadata(&index).unwrap().modified().unwrap();
        let mut bytes = fs::read(&index).unwrap();
        let at = bytes.len() - 36; // the index ends there
        bytes[at] ^= 1;
        fs::write(&index, &bytes).unwrap();
        fs::File::options().write(true).open(&index).unwrap().set_modified(mtime).unwrap();
        let looked = store.look().unwrap();
        assert!(matches!(looked, Others::Changed(_)), "{looked:?}");
        assert!(!store.is_as_seen() && try_content(&store).is_err());
        bytes[at] ^= 1;
        fs::write(&index, &bytes).unwrap();
    }
}

fn own_commits_are_nothing_others_did<S: Store>() {
    let scene = Scene::new::<S>();
    let store = S::open_at(&scene.path, options(false)).unwrap();
    let old = store.committed().unwrap().entries.to_vec();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, done) = (&store, &done);
        for _ in 0..2 {
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    let guard = store.enter();
                    for key in keys(store) {
                        let mut got = vec![0; 50];
                        store.read_chunk(&guard, key, 3032, 7, &mut got).unwrap();
                    }
                    drop(guard);
                    store.check_writable().unwrap();
                    assert!(!store.changed_outside().unwrap());
                }
            });
        }
        let mut entries = old;
        for round in 0..150 {
            let new = store.stage(&chunk(3000, 500 + round)).unwrap();
            let before = std::mem::replace(&mut entries[round as usize % CHUNKS], IndexEntry::Stored(new));
            store.discard(before.stored().unwrap());
            // Another header now and then, for which a cframe becomes another file.
            let mut image = image(entries.clone());
            if round % 10 == 9 {
                let long =
                    b2fuse::format::metalayer::Metalayer { name: b"long", content: &vec![round as u8; 600 + round as usize] };
                image.header = b2fuse::format::header::FrameHeader::encode(&image.header.fields(), &[long]).unwrap();
            }
            store.commit(store.enter(), image).unwrap();
        }
        done.store(true, Relaxed);
    });
    store.close().unwrap();
}

/// Attributes of SOURCE are set while chunks are written to it: neither is taken for a change by others.
#[test]
fn own_chunks_beside_own_attributes_are_nothing_others_did() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("frame.b2frame");
    frame::<CframeStore>(&path, 1);
    let store = CframeStore::open(&path, options(false)).unwrap();
    let (done, staged) = (AtomicBool::new(false), chunk(200, 7));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                store.set_attributes(&mut || {});
            }
        });
        let until = Instant::now() + Duration::from_secs(20);
        let failed = (0..20_000).take_while(|_| Instant::now() < until).find_map(|_| store.stage(&staged).err());
        done.store(true, Relaxed);
        assert!(failed.is_none(), "{failed:?}");
    });
    assert_eq!(store.look().unwrap(), Others::Nothing);
}

fn what_others_write_over_is_saved_all_the_same<S: Store>() {
    let scene = Scene::new::<S>();
    let store = S::open_at(&scene.path, OpenOptions { hold_staged: true, ..options(false) }).unwrap();
    let staged = chunk(5000, 77);
    let key = store.stage(&staged).unwrap();
    if scene.path.is_dir() {
        // As the library appends: it takes the same id, as it does not know of ours, and truncates the file.
        let ours = fs::read_dir(&scene.path).unwrap().map(|file| file.unwrap().path());
        let ours = ours.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
        assert_eq!(fs::metadata(&ours).unwrap().len(), 5032);
        fs::write(ours, chunk(5000, 78)).unwrap();
    }
    Deed::Overwrite.is_done::<S>(&scene.path, &scene.other);
    let saved = b2fuse::store::StoredChunk { store: &store, key, len: 5032, to_save: true };
    let mut got = vec![0; 5032];
    b2fuse::store::ReadAt::read_exact_at(&saved, &mut got, 0).unwrap();
    assert!(got == staged);
    // What was committed was others' to change.
    let gone = b2fuse::store::StoredChunk { store: &store, key: keys(&store)[0], len: 3032, to_save: true };
    assert!(b2fuse::store::ReadAt::read_exact_at(&gone, &mut got[..3032], 0).is_err());
}

/// The library replaces a chunk in an sframe in place, and so may anybody without a word in the index.
#[test]
fn a_chunk_file_that_others_write_is_noticed() {
    type S = b2fuse::store::SframeStore;
    let name = |n: usize| format!("{n:08X}.chunk");
    for (read_only, open) in [(true, false), (true, true), (false, false), (false, true)] {
        for replaced in [false, true] {
            let scene = Scene::new::<S>();
            let store = S::open(&scene.path, options(read_only)).unwrap();
            let old = keys(&store);
            if open {
                assert!(content(&store) == scene.old);
            }
            let file = scene.path.join(name(2));
            if replaced {
                // With an older time, as rsync -a would.
                let new = scene.path.join(".new");
                fs::write(&new, chunk(3000, 9)).unwrap();
                let before = std::time::SystemTime::now() - Duration::from_secs(3600);
                fs::File::options().write(true).open(&new).unwrap().set_modified(before).unwrap();
                fs::rename(new, &file).unwrap();
            } else {
                let before = fs::metadata(&file).unwrap().ino();
                fs::write(&file, chunk(3000, 9)).unwrap();
                assert_eq!(fs::metadata(&file).unwrap().ino(), before);
            }
            match part(&store, old[2], 0, 3032) {
                Ok(got) => assert!(got == bytes_of(&scene.old[2]) && open && replaced, "the old file is open, or there is none"),
                Err(error) => assert!(matches!(error, StoreError::Stale { .. }), "{error}"),
            }
            assert!(part(&store, old[1], 0, 3032).unwrap() == bytes_of(&scene.old[1]));
            match store.look().unwrap() {
                Others::Nothing => assert!(open && replaced, "nobody has told, and nobody has seen it"),
                Others::Touched(reason) => assert!(reason.contains("00000002.chunk") && replaced, "{reason}"),
                // Of a file that was new when the frame was opened it is known what it was.
                Others::Changed(reason) => assert!(reason.contains("00000002.chunk"), "{reason}"),
                other => panic!("{other:?}"),
            }
            store.reload().unwrap();
            assert_eq!(store.look().unwrap(), Others::Nothing);
            let mut expected = scene.old.clone();
            expected[2] = IndexEntry::Stored(chunk(3000, 9));
            assert!(content(&store) == expected);
        }
    }
}

/// A chunk file that others have written since is not removed when no state of ours needs it any more.
#[test]
fn a_chunk_file_that_others_write_is_not_removed() {
    type S = b2fuse::store::SframeStore;
    let scene = Scene::new::<S>();
    let store = S::open(&scene.path, options(false)).unwrap();
    let staged = store.stage(&chunk(5000, 77)).unwrap();
    let ours = scene.path.join(format!("{CHUNKS:08X}.chunk"));
    assert_eq!(fs::metadata(&ours).unwrap().len(), 5032);
    // As the library begins to append: the index comes next.
    fs::write(&ours, chunk(100, 3)).unwrap();
    store.discard(staged);
    store.sync().unwrap();
    store.close().unwrap();
    assert!(fs::read(&ours).unwrap() == chunk(100, 3));
}

/// What others have open as a frame is whole at every instant: the layouts' own ways of writing are tested elsewhere.
#[test]
fn a_frame_that_never_comes_to_rest_is_not_read_again() {
    type S = b2fuse::store::CframeStore;
    let scene = Scene::new::<S>();
    let store = S::open(&scene.path, options(true)).unwrap();
    let bytes = fs::read(&scene.other).unwrap();
    fs::write(&scene.path, &bytes).unwrap();
    let (begun, done) = (std::sync::Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::File::options().write(true).open(&scene.path).unwrap();
            begun.wait();
            while !done.load(Relaxed) {
                std::os::unix::fs::FileExt::write_all_at(&file, &bytes[2000..3000], 2000).unwrap();
            }
        });
        begun.wait();
        for _ in 0..50 {
            // Sometimes there is a pause; what is shown then is what was there.
            if store.reload().is_ok() {
                let _ = try_content(&store).inspect(|content| assert!(*content == scene.new));
            }
        }
        done.store(true, Relaxed);
    });
    store.reload().unwrap();
    assert!(content(&store) == scene.new);
}
