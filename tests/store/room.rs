//! How long a file becomes: less than one and a half times what lives in it, and three indexes, after every commit.

use std::sync::Arc;

use b2fuse::format::IndexEntry;
use b2fuse::store::{CframeStore, FrameImage, FrameStore};

use crate::disk::Dir;
use crate::driver::{NAME, create};
use crate::frames::{Random, chunk, image};

/// How large chunks are, as a part of the largest, at a moment between 0 and 1.
type Sizes = fn(&mut Random, f64) -> f64;

fn uniform(random: &mut Random, _at: f64) -> f64 {
    (1 + random.below(100)) as f64 / 100.0
}
fn shrinking(random: &mut Random, at: f64) -> f64 {
    uniform(random, at) * (1.0 - at).max(0.01)
}
fn growing(random: &mut Random, at: f64) -> f64 {
    uniform(random, at) * at.max(0.01)
}
/// All small, then all large, ten times.
fn waves(random: &mut Random, at: f64) -> f64 {
    if ((at * 20.0) as u64).is_multiple_of(2) { uniform(random, at) / 50.0 } else { 0.5 + uniform(random, at) / 2.0 }
}
fn either(random: &mut Random, _at: f64) -> f64 {
    if random.below(2) == 0 { 0.01 } else { 1.0 }
}

/// Replaces random chunks, `batch` in a commit, and gives the worst ratio of the file's length without three indexes to what
/// lives in it.
fn worst(count: usize, max: f64, batch: usize, replacements: usize, sizes: Sizes, seed: u64) -> f64 {
    let dir = Dir::forgetful();
    let store = create::<CframeStore>(&dir).unwrap();
    let mut random = Random(seed);
    let mut entries = vec![];
    let mut lens: Vec<u64> = vec![];
    let mut worst: f64 = 0.0;
    let mut done = 0;
    while done < replacements {
        for _ in 0..batch {
            let len = (sizes(&mut random, done as f64 / replacements as f64) * max).max(33.0) as u32;
            let key = store.stage(&chunk(len - 32, 7)).unwrap();
            if entries.len() < count {
                entries.push(IndexEntry::Stored(key));
                lens.push(len.into());
                continue;
            }
            let at = random.below(count as u64) as usize;
            if let IndexEntry::Stored(old) = std::mem::replace(&mut entries[at], IndexEntry::Stored(key)) {
                store.discard(old); // of those that were replaced twice in a batch
            }
            lens[at] = len.into();
            done += 1;
        }
        let FrameImage { header, trailer, .. } = image(entries.clone());
        store.commit(store.enter(), FrameImage { header, trailer, entries: Arc::new(entries.clone()) }).unwrap();
        let committed = store.committed().unwrap();
        let header = &committed.header;
        let tail = header.frame_len() - header.cbytes() - u64::from(header.header_len());
        let live: u64 = lens.iter().sum();
        let now = dir.len(NAME).saturating_sub(3 * tail + 1024) as f64 / live as f64;
        worst = worst.max(now);
    }
    worst
}

#[test]
fn the_file_stays_short_whatever_is_replaced() {
    let each = if cfg!(debug_assertions) { 300 } else { 100_000 };
    let mut failed = false;
    for (count, max, batch) in [
        (1000, 4000.0, 1),
        (1000, 4000.0, 20),
        (1000, 4000.0, 300),
        (100, 30_000.0, 1),
        (6, 30_000.0, 1),
        (6, 30_000.0, 6),
        (1, 30_000.0, 1),
    ] {
        let sizes: [(&str, Sizes); 5] =
            [("uniform", uniform), ("shrinking", shrinking), ("growing", growing), ("waves", waves), ("either", either)];
        for (name, sizes) in sizes {
            let ratio = worst(count, max, batch, each, sizes, 3);
            println!("{count:5} chunks, {batch:3} at once, {name:9}: {ratio:.3}");
            failed |= ratio >= 1.5;
        }
    }
    assert!(!failed, "longer than promised");
}
