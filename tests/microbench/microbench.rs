//! Times of single parts, each without files or mounts: `cargo run --release --example microbench [FILTER]`.
//!
//! Allocator and cache are private to the store, so their files are compiled in here. The whole is measured by `scripts/bench`.

#[allow(dead_code)]
#[path = "../../src/store/cache.rs"]
mod cache;
#[allow(dead_code)]
#[path = "../../src/store/shares.rs"]
mod shares;
#[allow(dead_code)]
#[path = "."]
#[rustfmt::skip] // its tests are found from the store only
mod store {
    #[path = "../../src/store/chunks.rs"]
    mod chunks;
    #[path = "../../src/store/cframe/extents/mod.rs"]
    mod extents;

    #[path = "allocator.rs"]
    mod allocator;
}

mod caching;
mod codecs;
mod formats;
mod kept;

// For `cache` and `shares`.
use b2fuse::store::{CacheStats, ChunkKey};

const COUNTS: [u64; 2] = [100_000, 1_000_000];

fn main() {
    // Benches, however it is started.
    divan::Divan::from_args().run_benches();
}

/// A frame of the test data.
fn data(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/cframe/{name}.b2frame", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Numbers that look random and are the same in each run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
