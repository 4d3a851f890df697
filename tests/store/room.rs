//! How long a file becomes: less than one and a half times what lives in it, and three indexes, after every commit.

use std::time::{Duration, Instant};

use b2fuse::format::IndexEntry;
use b2fuse::store::{CframeStore, ChunkKey, FrameStore};

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

/// A frame whose chunks are replaced.
struct Replacing {
    dir: Dir,
    store: CframeStore,
    random: Random,
    entries: Vec<IndexEntry<ChunkKey>>,
    lens: Vec<u64>,
    /// Bytes of the largest chunk.
    max: f64,
    /// The worst ratio, after any commit, of the file's length without three indexes to what lives in it.
    worst: f64,
}

impl Replacing {
    fn new(count: usize, max: f64, sizes: Sizes, seed: u64) -> Replacing {
        let dir = Dir::forgetful();
        let store = create::<CframeStore>(&dir).unwrap();
        let (entries, lens) = (vec![], vec![]);
        let mut this = Replacing { dir, store, random: Random(seed), entries, lens, max, worst: 0.0 };
        for _ in 0..count {
            let (key, len) = this.stage(sizes, 0.0);
            this.entries.push(IndexEntry::Stored(key));
            this.lens.push(len);
        }
        this.commit();
        this
    }

    fn stage(&mut self, sizes: Sizes, at: f64) -> (ChunkKey, u64) {
        let len = (sizes(&mut self.random, at) * self.max).max(33.0) as u32;
        (self.store.stage(&chunk(len - 32, 7)).unwrap(), len.into())
    }

    fn replace(&mut self, sizes: Sizes, at: f64) {
        let (key, len) = self.stage(sizes, at);
        let position = self.random.below(self.entries.len() as u64) as usize;
        if let IndexEntry::Stored(old) = std::mem::replace(&mut self.entries[position], IndexEntry::Stored(key)) {
            self.store.discard(old); // of those that were replaced twice in a batch
        }
        self.lens[position] = len;
    }

    fn commit(&mut self) {
        self.store.commit(self.store.enter(), image(self.entries.clone())).unwrap();
        let committed = self.store.committed().unwrap();
        let header = &committed.header;
        let tail = header.frame_len() - header.cbytes() - u64::from(header.header_len());
        let live: u64 = self.lens.iter().sum();
        let now = self.dir.len(NAME).saturating_sub(3 * tail + 1024) as f64 / live as f64;
        self.worst = self.worst.max(now);
    }
}

/// Replaces random chunks, `batch` in a commit, and gives the worst ratio.
fn worst(count: usize, max: f64, batch: usize, replacements: usize, sizes: Sizes, seed: u64) -> f64 {
    let mut frame = Replacing::new(count, max, sizes, seed);
    for done in (0..replacements).step_by(batch) {
        for _ in 0..batch {
            frame.replace(sizes, done as f64 / replacements as f64);
        }
        frame.commit();
    }
    frame.worst
}

/// How many chunks are replaced in a commit, where their number is what counts.
const AT_ONCE: usize = if cfg!(debug_assertions) { 10 } else { 1 };

/// Replaces chunks and says how long staging and committing took.
fn time(frame: &mut Replacing) -> Duration {
    let began = Instant::now();
    for _ in 0..AT_ONCE {
        frame.replace(uniform, 0.0);
    }
    frame.commit();
    began.elapsed()
}

#[test]
fn a_hundred_thousand_replacements_leave_the_file_short_and_commits_fast() {
    const COUNT: usize = 60;
    let (mut old, mut young) = (Replacing::new(COUNT, 1000.0, uniform, 1), Replacing::new(COUNT, 1000.0, uniform, 2));
    for (frame, commits) in [(&mut young, 1000 / AT_ONCE), (&mut old, 100_000 / AT_ONCE)] {
        for _ in 0..commits {
            time(frame);
        }
    }
    println!("at most {:.3} times what lives in it", old.worst);
    assert!(old.worst < 1.5, "longer than promised");
    // By turns, so that whatever else the machine does slows both down.
    let (mut olds, mut youngs): (Vec<_>, Vec<_>) = (0..300).map(|_| (time(&mut old), time(&mut young))).unzip();
    let [old, young] = [&mut olds, &mut youngs].map(|times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    println!("a commit takes {young:?} after 1000 replacements, and {old:?} after 100,000");
    assert!(old < 2 * young, "a commit takes {old:?} after 100,000 replacements, and {young:?} after 1000");
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

/// A chunk that the disk cannot read any more is not moved; it keeps nobody from committing other ones, nor from closing.
#[test]
fn a_chunk_that_cannot_be_read_keeps_nobody_from_committing() {
    for settle in [false, true] {
        let dir = Dir::default();
        let store = create::<CframeStore>(&dir).unwrap();
        let stage = |len, fill| IndexEntry::Stored(store.stage(&chunk(len, fill)).unwrap());
        let mut entries: Vec<_> = (0..12).map(|fill| stage(20_000, fill)).collect();
        store.commit(store.enter(), image(entries.clone())).unwrap();
        store.sync().unwrap();
        let last = entries[11].stored().unwrap().number() & ((1 << 48) - 1); // its place
        dir.set_unreadable(Some(last + 100..last + 200));
        for (at, entry) in entries.iter_mut().enumerate().take(9) {
            *entry = stage(100, at as u64);
        }
        for fill in 0..3 {
            entries[0] = stage(100, 100 + fill);
            store.commit(store.enter(), image(entries.clone())).unwrap();
            if settle {
                store.sync().unwrap();
            }
        }
        store.close().unwrap();
        dir.set_unreadable(None);
        drop(store);
        let again = crate::driver::open::<CframeStore>(&dir, true).unwrap();
        let expected = (0..12).map(|at| match at {
            0 => chunk(100, 102),
            1..9 => chunk(100, at),
            _ => chunk(20_000, at),
        });
        assert!(crate::frames::content(&again) == expected.map(IndexEntry::Stored).collect::<Vec<_>>());
    }
}

/// A header that needs another file, into which not all can be copied: that commit is refused, and not those after it.
#[test]
fn a_file_that_cannot_be_copied_takes_other_commits() {
    let dir = Dir::default();
    let store = create::<CframeStore>(&dir).unwrap();
    let entries: Vec<_> = (0..4).map(|fill| IndexEntry::Stored(store.stage(&chunk(20_000, fill)).unwrap())).collect();
    store.commit(store.enter(), image(entries.clone())).unwrap();
    let mut long = image(entries.clone());
    let layer = b2fuse::format::metalayer::Metalayer { name: b"long", content: &[7; 3000] };
    let fields = b2fuse::format::header::HeaderFields { frame_len: 1 << 20, ..long.header.fields() };
    long.header = b2fuse::format::header::FrameHeader::encode(&fields, &[layer]).unwrap();
    let at = entries[3].stored().unwrap().number() & ((1 << 48) - 1);
    dir.set_unreadable(Some(at + 100..at + 200));
    let error = store.commit(store.enter(), long.clone()).unwrap_err();
    assert!(error.to_string().contains("cannot read what is to be copied"), "{error}");
    let order = [0, 2, 1, 3].map(|at| entries[at]);
    store.commit(store.enter(), image(order.to_vec())).unwrap();
    dir.set_unreadable(None);
    store.commit(store.enter(), long).unwrap();
    store.close().unwrap();
    let expected: Vec<_> = (0..4).map(|fill| IndexEntry::Stored(chunk(20_000, fill))).collect();
    assert!(crate::frames::content(&crate::driver::open::<CframeStore>(&dir, true).unwrap()) == expected);
    assert_eq!(dir.names(), [NAME]);
}
