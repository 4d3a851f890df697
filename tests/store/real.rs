//! Real frames on a real file system.

use std::path::PathBuf;
use std::sync::Arc;

use b2fuse::format::IndexEntry;
use b2fuse::store::{CframeStore, FrameImage, FrameStore, OpenOptions, StoreError};

use crate::frames::{chunk, content, data, image, read};

/// A copy of each real frame in a directory of its own.
fn copies() -> Vec<(tempfile::TempDir, PathBuf)> {
    let copy = |path: PathBuf| {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join(path.file_name().unwrap());
        std::fs::copy(path, &to).unwrap();
        (dir, to)
    };
    data("cframe").into_iter().map(copy).collect()
}

fn read_only() -> OpenOptions {
    OpenOptions { read_only: true, ..OpenOptions::default() }
}

#[test]
fn opening_and_closing_changes_no_byte() {
    for (_dir, path) in copies() {
        let before = std::fs::read(&path).unwrap();
        let store = CframeStore::open(&path, OpenOptions::default()).unwrap();
        content(&store);
        store.close().unwrap();
        assert!(std::fs::read(&path).unwrap() == before, "{}", path.display());
    }
}

#[test]
fn every_chunk_can_be_replaced_by_a_copy() {
    for (_dir, path) in copies() {
        let before = content(&CframeStore::open(&path, read_only()).unwrap());
        let store = CframeStore::open(&path, OpenOptions::default()).unwrap();
        for round in 0..3 {
            let old = store.committed().unwrap();
            for at in 0..old.entries.len() {
                let old = store.committed().unwrap();
                let IndexEntry::Stored(key) = old.entries[at] else { continue };
                let bytes = read(&store, key);
                let mut entries = (*old.entries).clone();
                entries[at] = IndexEntry::Stored(store.stage(&bytes).unwrap());
                store.commit(store.enter(), FrameImage { entries: Arc::new(entries), ..(*old).clone() }).unwrap();
                assert!(content(&CframeStore::open(&path, read_only()).unwrap()) == before, "{} round {round}", path.display());
            }
        }
        assert!(content(&store) == before);
        store.close().unwrap();
        let after = CframeStore::open(&path, read_only()).unwrap();
        assert!(content(&after) == before);
        let frame_len = after.committed().unwrap().header.frame_len();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), frame_len, "cut to the frame's length");
    }
}

#[test]
fn a_new_frame_has_no_name_before_its_first_commit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new.b2frame");
    let store = CframeStore::create(&path, OpenOptions::default()).unwrap();
    let keys: Vec<_> = (0..10).map(|i| store.stage(&chunk(1000 + i, i.into())).unwrap()).collect();
    assert!(!path.exists());
    store.commit(store.enter(), image(keys.iter().copied().map(IndexEntry::Stored).collect())).unwrap();
    let opened = CframeStore::open(&path, read_only()).unwrap();
    let expected: Vec<_> = (0..10).map(|i| IndexEntry::Stored(chunk(1000 + i, i.into()))).collect();
    assert!(content(&opened) == expected);
    assert!(matches!(CframeStore::open(&path, OpenOptions::default()), Err(StoreError::Busy { .. })));
    store.close().unwrap();
    assert!(content(&CframeStore::open(&path, OpenOptions::default()).unwrap()) == expected);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn a_frame_that_never_was_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for close in [true, false] {
        let store = CframeStore::create(&dir.path().join("new.b2frame"), OpenOptions::default()).unwrap();
        store.stage(&chunk(100, 1)).unwrap();
        if close {
            store.close().unwrap();
        }
        drop(store);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
