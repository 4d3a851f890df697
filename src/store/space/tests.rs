use super::*;

/// A small generator, so that a failure comes back with its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

const SYNC: u64 = 16;
/// A store without a file.
struct Sim {
    space: Space,
    chunks: Vec<u64>,
    lens: Vec<u64>,
    seq: Seq,
    file_len: u64,
    index_len: u64,
    copied: u64,
    staged: u64,
    worst: f64,
    lives: VecDeque<u64>,
    syncs: u64,
    tail_syncs: u64,
}

impl Sim {
    fn new(index_len: u64) -> Self {
        let space = Space::new(4096);
        Sim {
            space,
            chunks: vec![],
            lens: vec![],
            seq: 0,
            file_len: 0,
            index_len,
            copied: 0,
            staged: 0,
            worst: 0.0,
            lives: VecDeque::new(),
            syncs: 0,
            tail_syncs: 0,
        }
    }
    fn stage(&mut self, len: u64) -> u64 {
        let epoch = u64::MAX - 1; // no reads
        self.space.collect(epoch, |_| ());
        self.staged += len;
        let (pos, _) = self.space.stage(len as u32);
        self.file_len = self.file_len.max(pos + len);
        pos
    }
    fn commit(&mut self, changes: &[(usize, u64, u64)]) {
        let mut doomed = Doomed::new();
        for &(at, pos, len) in changes {
            self.space.admit(pos, 1);
            if at == self.chunks.len() {
                self.chunks.push(pos);
                self.lens.push(len);
            } else {
                *doomed.entry(self.chunks[at]).or_default() += 1;
                self.chunks[at] = pos;
                self.lens[at] = len;
            }
        }
        self.seq += 1;
        let mut by_pos: Option<HashMap<u64, usize>> = None;
        while let Some(step) = self.space.next_move(&doomed) {
            let by_pos = by_pos.get_or_insert_with(|| self.chunks.iter().enumerate().map(|(at, pos)| (*pos, at)).collect());
            let at = by_pos.remove(&step.from).unwrap();
            self.chunks[at] = step.to;
            by_pos.insert(step.to, at);
            self.space.moved(step, self.seq);
            self.copied += step.len;
        }
        let tail = self.space.place_tail(self.index_len, &doomed);
        self.file_len = self.file_len.max(tail + self.index_len);
        self.tail_syncs += 1;
        self.space.durable(self.seq - 1, 0); // the sync
        self.space.collect(u64::MAX - 1, |_| ());
        self.space.publish(self.seq, &doomed);
        if self.space.waiting_bytes() > self.space.live() / SYNC {
            self.space.durable(self.seq, 0);
            self.space.collect(u64::MAX - 1, |_| ());
            self.syncs += 1;
        }
        if self.space.end() < self.file_len - self.file_len / 32 {
            self.file_len = self.space.end();
        }
        self.lives.push_back(self.lens.iter().sum());
        if self.lives.len() > 3 {
            self.lives.pop_front();
        }
        let live = *self.lives.iter().max().unwrap();
        let over = self.file_len.saturating_sub(3 * self.index_len + 4096) as f64 / live as f64;
        self.worst = self.worst.max(over);
    }
}

#[test]
#[ignore = "prints figures"]
fn print_ratios() {
    for (n, batch) in [(1000, 1), (1000, 10), (1000, 100), (10000, 1), (100, 1), (30, 1)] {
        println!();
        for phase in ["random", "shrink", "grow", "wave", "bimodal"] {
            let mut random = Random(7);
            let mut sim = Sim::new(n * 3);
            let max = 100_000;
            let size = |random: &mut Random, step: u64| match phase {
                "random" => 1000 + random.below(max - 1000),
                "shrink" => (max - step * max / 100_000).max(1000) * (50 + random.below(50)) / 100,
                "grow" => (step * max / 100_000).max(1000) * (50 + random.below(50)) / 100,
                "bimodal" => {
                    if random.below(2) == 0 {
                        1000
                    } else {
                        max
                    }
                }
                _ => {
                    let t = step * 20 / 100_000;
                    if t.is_multiple_of(2) { 1000 + random.below(max / 50) } else { max / 2 + random.below(max / 2) }
                }
            };
            for at in 0..n {
                let len = size(&mut random, 0);
                let pos = sim.stage(len);
                sim.commit(&[(at as usize, pos, len)]);
            }
            let filled = sim.file_len as f64 / sim.lens.iter().sum::<u64>() as f64;
            sim.worst = 0.0;
            sim.syncs = 0;
            sim.tail_syncs = 0;
            sim.copied = 0;
            sim.staged = 0;
            let mut step = 0;
            while step < 100_000 {
                let mut changes = vec![];
                for _ in 0..batch {
                    let len = size(&mut random, step);
                    let at = random.below(n) as usize;
                    if changes.iter().any(|(other, _, _)| *other == at) {
                        step += 1;
                        continue;
                    }
                    let pos = sim.stage(len);
                    changes.push((at, pos, len));
                    step += 1;
                }
                sim.commit(&changes);
            }
            println!(
                "{n:6} {batch:4} {phase:8} filled {filled:.3} worst {:.3} syncs {:.2} copied/staged {:.3} holes {}",
                sim.worst,
                sim.syncs as f64 / sim.tail_syncs as f64,
                sim.copied as f64 / sim.staged as f64,
                sim.space.free.len()
            );
        }
    }
}
