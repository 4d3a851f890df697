//! Work that is done before anybody waits for it changes nothing of what is written.

use std::sync::Arc;

use b2fuse::format::IndexEntry;
use b2fuse::format::header::FrameHeader;
use b2fuse::format::metalayer::Metalayer;
use b2fuse::store::{CframeStore, FrameStore, LocalStore};

use crate::disk::Dir;
use crate::driver::{NAME, open};
use crate::frames::{Random, chunk, content};
use crate::hostile::frame;

/// Chunks of the frame: their index has whole blocks, and a rest.
const COUNT: u64 = 5000;

/// What the file is after each of some commits, among them one that has the header grow, with or without ticks between them.
fn written(ticks: bool) -> Vec<Vec<u8>> {
    let mut random = Random(1);
    let mut chunks = vec![];
    let offsets = Vec::from_iter((0..COUNT).map(|n| {
        let at = chunks.len() as u64;
        chunks.extend(chunk(random.below(40) as u32, n));
        at
    }));
    let dir = Dir::with_file(NAME, frame(&offsets, &chunks));
    let store = open::<CframeStore>(&dir, false).unwrap();
    let commits = (0..8).map(|n| {
        if ticks {
            store.tidy();
        }
        let mut image = (*store.committed().unwrap()).clone();
        if n == 3 {
            let value = [7; 700];
            let metalayers = [Metalayer { name: b"long", content: &value }];
            image.header = FrameHeader::encode(&image.header.fields(), &metalayers).unwrap();
        }
        let entries = Arc::make_mut(&mut image.entries);
        let at = random.below(COUNT) as usize;
        entries[at] = IndexEntry::Stored(store.stage(&chunk(random.below(80) as u32, n)).unwrap());
        store.commit(store.enter(), image).unwrap();
        store.sync().unwrap();
        // What room there is between chunks is looked at with ticks, and where chunks go depends on it.
        while n == 0 && store.tidy() {}
        dir.bytes(NAME).unwrap()
    });
    let commits = commits.collect();
    content(&open::<CframeStore>(&Dir::with_file(NAME, dir.bytes(NAME).unwrap()), true).unwrap());
    commits
}

#[test]
fn an_index_that_was_encoded_ahead_is_the_one_that_is_written() {
    assert!(written(true) == written(false));
}
