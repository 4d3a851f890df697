//! The cache on disk: pieces of 128 KiB that are in the kernel's memory.

use std::sync::Arc;

use b2fuse::store::disk_cache::{DiskCache, State};
use divan::Bencher;
use divan::counter::BytesCount;

use crate::Random;

const LEN: u64 = 128 << 10;

/// A state with so many pieces.
fn state(dir: &tempfile::TempDir, pieces: u64) -> (Arc<DiskCache>, State) {
    let cache = DiskCache::open(&dir.path().join("cache"), None).expect("a directory of our own");
    let state = cache.state("s3://bucket/frame.b2frame", "\"tag\"").expect("a folder of our own");
    (0..pieces).for_each(|number| put(&state, number));
    (cache, state)
}

fn put(state: &State, number: u64) {
    state.put(&format!("{number:08X}.chunk"), 0, &[number as u8; LEN as usize], LEN, "\"a tag\"");
}

#[divan::bench(args = [100, 4096])]
fn get(bencher: Bencher, pieces: u64) {
    let dir = tempfile::tempdir().expect("room for files");
    let ((_cache, state), mut random) = (state(&dir, pieces), Random(1));
    bencher.counter(BytesCount::new(LEN)).bench_local(|| {
        let number = random.below(pieces);
        let piece = state.get(&format!("{number:08X}.chunk"), 0).expect("it was put");
        assert_eq!(piece.bytes[1000], number as u8);
    });
}

#[divan::bench]
fn get_nothing(bencher: Bencher) {
    let dir = tempfile::tempdir().expect("room for files");
    let (_cache, state) = state(&dir, 100);
    bencher.bench_local(|| assert!(state.get("00001000.chunk", 0).is_none()));
}

#[divan::bench(sample_count = 20, sample_size = 50)]
fn put_new(bencher: Bencher) {
    let dir = tempfile::tempdir().expect("room for files");
    let ((_cache, state), mut number) = (state(&dir, 1), 0);
    bencher.counter(BytesCount::new(LEN)).bench_local(|| {
        number += 1;
        put(&state, number);
    });
}

#[divan::bench(sample_count = 20, sample_size = 50)]
fn put_again(bencher: Bencher) {
    let dir = tempfile::tempdir().expect("room for files");
    let ((_cache, state), mut number) = (state(&dir, 100), 0);
    bencher.counter(BytesCount::new(LEN)).bench_local(|| {
        number += 1;
        put(&state, number % 100);
    });
}
