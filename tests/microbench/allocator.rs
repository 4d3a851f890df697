//! The map of a file of many chunks, all between 100 and 1100 bytes.

use divan::Bencher;

use super::chunks::{DroppedRefs, Generations, State};
use super::extents::ExtentMap;
use crate::{COUNTS, Random};

/// A file in its steady state, and what is done to it.
struct File {
    map: ExtentMap,
    generations: Generations,
    random: Random,
    positions: Vec<u64>,
    commits: u64,
}

impl File {
    fn of(count: u64) -> File {
        let mut file = File { map: ExtentMap::new(1000), generations: Generations::new(u16::MAX.into()), random: Random(1), positions: Vec::new(), commits: 0 };
        for _ in 0..count {
            let pos = file.stage();
            file.map.chunks_mut().admit(pos, 1);
            file.positions.push(pos);
        }
        file.commit(&DroppedRefs::new());
        file
    }

    fn stage(&mut self) -> u64 {
        let len = 100 + self.random.below(1000) as u32;
        self.map.stage(len, &self.generations).0
    }

    fn commit(&mut self, dropped: &DroppedRefs) {
        self.commits += 1;
        self.map.place_tail(10_000, dropped, |_| false);
        self.map.publish(self.commits, dropped);
        // No readers: every commit is an epoch's end.
        self.map.durable(self.commits, self.commits * 3);
        self.map.collect(self.commits * 3 + 2, |_| ());
    }

    fn replace(&mut self) {
        let place = self.random.below(self.positions.len() as u64) as usize;
        let new = self.stage();
        let was: State = self.map.chunks_mut().admit(new, 1);
        assert_eq!(was, State::Staged);
        let old = std::mem::replace(&mut self.positions[place], new);
        let dropped = DroppedRefs::from([(old, 1)]);
        self.commit(&dropped);
    }
}

#[divan::bench(args = COUNTS)]
fn stage_and_discard(bencher: Bencher, count: u64) {
    let mut file = File::of(count);
    let mut epoch = 10;
    bencher.bench_local(|| {
        let pos = file.stage();
        file.map.chunks_mut().discard(pos, epoch);
        epoch += 3;
        file.map.collect(epoch, |_| ());
    });
}

#[divan::bench(args = COUNTS)]
fn replace_and_commit(bencher: Bencher, count: u64) {
    let mut file = File::of(count);
    bencher.bench_local(|| file.replace());
}

#[divan::bench(args = COUNTS, sample_count = 10)]
fn open(bencher: Bencher, count: u64) {
    let positions: Vec<u64> = (0..count).map(|n| 100 + n * 600).collect();
    let end = 100 + count * 600;
    bencher
        .with_inputs(|| positions.clone())
        .bench_local_values(|positions| ExtentMap::opened(100, 200, positions, 0, end..end + 10_000));
}
