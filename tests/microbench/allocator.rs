//! The map of a file of many chunks, all between 100 and 1100 bytes.

use divan::Bencher;

use crate::space::{Doomed, Space, State};
use crate::{COUNTS, Random};

/// A file in its steady state, and what is done to it.
struct File {
    space: Space,
    random: Random,
    positions: Vec<u64>,
    commits: u64,
}

impl File {
    fn of(count: u64) -> File {
        let mut file = File { space: Space::new(1000), random: Random(1), positions: Vec::new(), commits: 0 };
        for _ in 0..count {
            let pos = file.stage();
            file.space.admit(pos, 1);
            file.positions.push(pos);
        }
        file.commit(&Doomed::new());
        file
    }

    fn stage(&mut self) -> u64 {
        let len = 100 + self.random.below(1000) as u32;
        self.space.stage(len).0
    }

    fn commit(&mut self, doomed: &Doomed) {
        self.commits += 1;
        self.space.place_tail(10_000, doomed, |_| false);
        self.space.publish(self.commits, doomed);
        // No readers: every commit is an epoch's end.
        self.space.durable(self.commits, self.commits * 3);
        self.space.collect(self.commits * 3 + 2, |_| ());
    }

    fn replace(&mut self) {
        let place = self.random.below(self.positions.len() as u64) as usize;
        let new = self.stage();
        let was: State = self.space.admit(new, 1);
        assert_eq!(was, State::Staged);
        let old = std::mem::replace(&mut self.positions[place], new);
        let doomed = Doomed::from([(old, 1)]);
        self.commit(&doomed);
    }
}

#[divan::bench(args = COUNTS)]
fn stage_and_discard(bencher: Bencher, count: u64) {
    let mut file = File::of(count);
    let mut epoch = 10;
    bencher.bench_local(|| {
        let pos = file.stage();
        file.space.discard(pos, epoch);
        epoch += 3;
        file.space.collect(epoch, |_| ());
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
        .bench_local_values(|positions| Space::opened(100, 200, positions, end..end + 10_000));
}
