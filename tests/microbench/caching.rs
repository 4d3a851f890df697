//! The chunk cache: chunks of 16 KiB, read 4 KiB at a time.

use divan::Bencher;

use crate::cache::{ChunkCache, FrameCache};
use crate::{ChunkKey, Random};

const LEN: u32 = 16 << 10;

fn read(cache: &FrameCache, key: u64, offset: u64, buf: &mut [u8]) {
    let read = cache.read(ChunkKey::new(key), LEN, offset, buf, |into, _| {
        into.fill(1);
        Ok(())
    });
    assert_eq!(read.expect("nothing fails here"), buf.len());
}

/// Two looks, at places that do not touch: the second brings the chunk in.
fn bring_in(cache: &FrameCache, key: u64, buf: &mut [u8]) {
    read(cache, key, 0, buf);
    read(cache, key, 8192, buf);
}

#[divan::bench(args = [100, 10_000])]
fn hit(bencher: Bencher, chunks: u64) {
    let cache = FrameCache::new(&ChunkCache::new(1 << 30));
    let (mut buf, mut random) = ([0; 4096], Random(1));
    for key in 0..chunks {
        bring_in(&cache, key, &mut buf);
    }
    bencher.bench_local(|| read(&cache, random.below(chunks), 4096, &mut buf));
    assert_eq!(cache.stats().misses, chunks);
}

/// Each chunk that comes in drops another.
#[divan::bench]
fn miss_and_evict(bencher: Bencher) {
    let cache = FrameCache::new(&ChunkCache::new(16 << 20));
    let (mut buf, mut key) = ([0; 4096], 0);
    bencher.bench_local(|| {
        key += 1;
        bring_in(&cache, key, &mut buf);
    });
    assert_eq!(cache.stats().hits, 0);
}

/// First looks, which go by the cache.
#[divan::bench]
fn bypass(bencher: Bencher) {
    let cache = FrameCache::new(&ChunkCache::new(16 << 20));
    let (mut buf, mut key) = ([0; 4096], 0);
    bencher.bench_local(|| {
        key += 1;
        read(&cache, key, 0, &mut buf);
    });
}
