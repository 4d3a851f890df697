//! Figures, printed: `cargo test --release --test store -- --ignored --nocapture speed`.

use std::sync::Arc;
use std::time::Instant;

use b2fuse::format::IndexEntry;
use b2fuse::store::{CframeStore, FrameImage, OpenOptions, SframeStore};

use crate::driver::Store;
use crate::frames::{Random, chunk, dir_for_many, image};

fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
#[ignore = "prints figures"]
fn a_million_chunks_in_a_file() {
    a_million_chunks::<CframeStore>();
}

#[test]
#[ignore = "prints figures"]
fn a_million_chunks_in_files() {
    a_million_chunks::<SframeStore>();
}

fn a_million_chunks<S: Store>() {
    let dir = dir_for_many();
    let path = dir.path().join("million.b2frame");
    let count = 1_000_000;
    let mut random = Random(1);
    let began = Instant::now();
    let store = S::create_at(&path, OpenOptions::default()).unwrap();
    let entries: Vec<_> = (0..count)
        .map(|_| {
            let bytes = chunk(1 + random.below(190) as u32, 1);
            IndexEntry::Stored(store.stage(&bytes).unwrap())
        })
        .collect();
    println!("stage: {:?} each", began.elapsed() / count);
    let began = Instant::now();
    store.commit(store.enter(), image(entries)).unwrap();
    println!("first commit: {:?}", began.elapsed());
    store.close().unwrap();
    drop(store);
    let before = rss();
    for _ in 0..3 {
        let began = Instant::now();
        let store = S::open_at(&path, OpenOptions::default()).unwrap();
        println!("open: {:?}, {} MB", began.elapsed(), rss() - before);
        drop(store);
    }
    let store = S::open_at(&path, OpenOptions::default()).unwrap();
    for round in 0..10 {
        let old = store.committed().unwrap();
        let mut entries = (*old.entries).clone();
        let began = Instant::now();
        let at = random.below(count.into()) as usize;
        entries[at] = IndexEntry::Stored(store.stage(&chunk(100 + round, 3)).unwrap());
        let staged = began.elapsed();
        store.commit(store.enter(), FrameImage { entries: Arc::new(entries), ..(*old).clone() }).unwrap();
        println!(
            "stage {staged:?}, with commit {:?}; {} MB; frame_len {}",
            began.elapsed(),
            rss() - before,
            store.committed().unwrap().header.frame_len()
        );
    }
}
