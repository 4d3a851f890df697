//! Real frames on a real file system.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use b2fuse::format::IndexEntry;
use b2fuse::store::{CframeStore, FrameImage, OpenOptions, SframeStore, StoreError};

use crate::driver::Store;
use crate::for_both;
use crate::frames::{chunk, content, data, image, read};

for_both!(
    opening_and_closing_changes_no_byte,
    every_chunk_can_be_replaced_by_a_copy,
    a_new_frame_has_no_name_before_its_first_commit,
    a_frame_that_never_was_leaves_nothing,
    replacing_is_asked_for_and_whole,
    what_is_replaced_is_looked_at_first,
);

/// All bytes of a file, or of the files of a directory.
fn bytes(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    if !path.is_dir() {
        return vec![(path.to_owned(), std::fs::read(path).unwrap())];
    }
    let mut files: Vec<PathBuf> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// A copy of each real frame in a directory of its own.
fn copies<S: Store>() -> Vec<(tempfile::TempDir, PathBuf)> {
    let copy = |path: PathBuf| {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join(path.file_name().unwrap());
        S::copy(&path, &to);
        (dir, to)
    };
    data(S::DATA).into_iter().map(copy).collect()
}

fn read_only() -> OpenOptions {
    OpenOptions { read_only: true, ..OpenOptions::default() }
}

fn opening_and_closing_changes_no_byte<S: Store>() {
    for (_dir, path) in copies::<S>() {
        let before = bytes(&path);
        let store = S::open_at(&path, OpenOptions::default()).unwrap();
        content(&store);
        store.close().unwrap();
        assert!(bytes(&path) == before, "{}", path.display());
    }
}

fn every_chunk_can_be_replaced_by_a_copy<S: Store>() {
    for (_dir, path) in copies::<S>() {
        let before = content(&S::open_at(&path, read_only()).unwrap());
        let store = S::open_at(&path, OpenOptions::default()).unwrap();
        for round in 0..3 {
            let old = store.committed().unwrap();
            for at in 0..old.entries.len() {
                let old = store.committed().unwrap();
                let IndexEntry::Stored(key) = old.entries[at] else { continue };
                let bytes = read(&store, key);
                let mut entries = (*old.entries).clone();
                entries[at] = IndexEntry::Stored(store.stage(&bytes).unwrap());
                store.commit(store.enter(), FrameImage { entries: Arc::new(entries), ..(*old).clone() }).unwrap();
                assert!(content(&S::open_at(&path, read_only()).unwrap()) == before, "{} round {round}", path.display());
            }
        }
        assert!(content(&store) == before);
        store.close().unwrap();
        let after = S::open_at(&path, read_only()).unwrap();
        assert!(content(&after) == before);
        let image = after.committed().unwrap();
        if path.is_dir() {
            let ids: BTreeSet<_> = image.entries.iter().filter_map(|entry| entry.stored()).collect();
            assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1 + ids.len(), "what no state needs is removed");
        } else {
            assert_eq!(std::fs::metadata(&path).unwrap().len(), image.header.frame_len(), "cut to the frame's length");
        }
    }
}

fn a_new_frame_has_no_name_before_its_first_commit<S: Store>() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new.b2frame");
    let store = S::create_at(&path, OpenOptions::default()).unwrap();
    let keys: Vec<_> = (0..10).map(|i| store.stage(&chunk(1000 + i, i.into())).unwrap()).collect();
    assert!(!path.exists());
    store.commit(store.enter(), image(keys.iter().copied().map(IndexEntry::Stored).collect())).unwrap();
    let opened = S::open_at(&path, read_only()).unwrap();
    let expected: Vec<_> = (0..10).map(|i| IndexEntry::Stored(chunk(1000 + i, i.into()))).collect();
    assert!(content(&opened) == expected);
    assert!(matches!(S::open_at(&path, OpenOptions::default()), Err(StoreError::Busy { .. })));
    store.close().unwrap();
    assert!(content(&S::open_at(&path, OpenOptions::default()).unwrap()) == expected);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
}

fn a_frame_that_never_was_leaves_nothing<S: Store>() {
    let dir = tempfile::tempdir().unwrap();
    for close in [true, false] {
        let store = S::create_at(&dir.path().join("new.b2frame"), OpenOptions::default()).unwrap();
        store.stage(&chunk(100, 1)).unwrap();
        if close {
            store.close().unwrap();
        }
        drop(store);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

fn to_replace() -> OpenOptions {
    OpenOptions { replace: true, ..OpenOptions::default() }
}

fn replacing_is_asked_for_and_whole<S: Store>() {
    type MakeOld = fn(&Path);
    let nothing: MakeOld = |_| {};
    let cframe: MakeOld = |path| CframeStore::copy(&data("cframe")[0], path);
    let sframe: MakeOld = |path| SframeStore::copy(&data("sframe")[0], path);
    let link: MakeOld = |path| std::os::unix::fs::symlink("nowhere", path).unwrap();
    for old in [nothing, cframe, sframe, link] {
        for commit in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("new.b2frame");
            old(&path);
            let there = path.symlink_metadata().is_ok();
            if there {
                assert!(S::create_at(&path, OpenOptions::default()).is_err(), "without being asked to");
            }
            let before = path.exists().then(|| bytes(&path));
            let store = S::create_at(&path, to_replace()).unwrap();
            if path.exists() {
                assert!(matches!(S::create_at(&path, to_replace()), Err(StoreError::Busy { .. })), "two at a time");
            }
            let key = store.stage(&chunk(1000, 1)).unwrap();
            assert_eq!(path.exists().then(|| bytes(&path)), before, "not before the commit");
            assert!(!store.changed_outside().unwrap());
            if commit {
                store.commit(store.enter(), image(vec![IndexEntry::Stored(key)])).unwrap();
                assert!(content(&S::open_at(&path, read_only()).unwrap()) == [IndexEntry::Stored(chunk(1000, 1))]);
                let again = store.stage(&chunk(500, 2)).unwrap();
                store.commit(store.enter(), image(vec![IndexEntry::Stored(again)])).unwrap();
            }
            store.close().unwrap();
            if commit {
                assert!(content(&S::open_at(&path, read_only()).unwrap()) == [IndexEntry::Stored(chunk(500, 2))]);
            } else {
                assert_eq!(path.exists().then(|| bytes(&path)), before, "not without a commit");
            }
            let left = usize::from(commit || there);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), left, "nothing else is left");
        }
    }
}

fn what_is_replaced_is_looked_at_first<S: Store>() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("thesis.tex"), b"mine").unwrap();
    let error = S::create_at(&path, to_replace()).err().unwrap();
    assert!(error.to_string().contains("thesis.tex, which is no part of a frame"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    // What is there when it is to be replaced must be what was there when that was asked for.
    let path = dir.path().join("new");
    std::fs::write(&path, b"old").unwrap();
    let store = S::create_at(&path, to_replace()).unwrap();
    let key = store.stage(&chunk(1000, 1)).unwrap();
    std::fs::write(dir.path().join("other"), b"mine").unwrap();
    std::fs::rename(dir.path().join("other"), &path).unwrap();
    assert!(store.changed_outside().unwrap());
    let error = store.commit(store.enter(), image(vec![IndexEntry::Stored(key)])).unwrap_err();
    assert!(matches!(error, StoreError::Stale { .. }), "{error}");
    store.close().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}
