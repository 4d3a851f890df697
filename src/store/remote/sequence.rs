//! Detects reads of chunk after chunk, and decides how far ahead to fetch.
//!
//! Three chunks in order begin a window of a few. It doubles each time it is read through, and ends when a read goes elsewhere.
//!
//! Unlike `view::prefetch`, this does not know who reads: it counts chunks, for a wait that is the same for all of them.

/// Runs told apart.
const RUNS: usize = 8;
/// Readers' requests come from several threads: this many chunks before or behind where a run is are of it.
const SLACK: u32 = 8;
/// Parts of a window that are asked for one after the other.
const STEPS: u32 = 8;
/// Chunks in the first window.
const FIRST: u32 = 4;

#[derive(Debug)]
struct Run {
    /// Behind the last chunk that was read.
    next: u32,
    /// Behind the last one that was asked for.
    asked: u32,
    /// Chunks to be ahead.
    window: u32,
    /// It went on once: that happens by chance as well.
    is_likely: bool,
    used: u64,
}

/// The runs of a frame.
#[derive(Debug, Default)]
pub struct Sequences {
    runs: Vec<Run>,
    clock: u64,
}

impl Sequences {
    /// A chunk is read: which ones to ask for, where a window may have `most` chunks.
    pub fn read(&mut self, place: u32, most: u32) -> std::ops::Range<u32> {
        self.clock += 1;
        let clock = self.clock;
        let is_near =
            |run: &&mut Run| (run.next.saturating_sub(SLACK)..=run.asked.max(run.next.saturating_add(1))).contains(&place);
        let Some(run) = self.runs.iter_mut().find(is_near) else {
            let next = place.saturating_add(1);
            let run = Run { next, asked: next, window: 0, is_likely: false, used: clock };
            if self.runs.len() < RUNS {
                self.runs.push(run);
            } else if let Some(oldest) = self.runs.iter_mut().min_by_key(|run| run.used) {
                *oldest = run;
            }
            return 0..0;
        };
        run.used = clock;
        if place < run.next {
            return 0..0;
        }
        run.next = place.saturating_add(1);
        run.asked = run.asked.max(run.next);
        if !std::mem::replace(&mut run.is_likely, true) {
            return 0..0;
        }
        // A little at a time, so that the store always has something to send.
        if run.asked - run.next > run.window - run.window / STEPS {
            return 0..0;
        }
        run.window = run.window.saturating_mul(2).max(FIRST).min(most);
        let end = run.next.saturating_add(run.window).max(run.asked);
        std::mem::replace(&mut run.asked, end)..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_and_nothing_is_asked_for_twice() {
        let mut all = Sequences::default();
        let asked: Vec<_> = (0..1000).map(|place| all.read(place, 64)).filter(|range| !range.is_empty()).collect();
        assert_eq!((asked[0].start, asked[0].len()), (3, 4));
        assert!(asked.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(asked.last().unwrap().end > 1000 && asked.iter().all(|range| range.len() <= 64));
        assert!(asked.iter().any(|range| range.len() >= 32));
    }

    #[test]
    fn who_jumps_about_asks_for_nothing() {
        let mut all = Sequences::default();
        for n in 0..1000u32 {
            assert!(all.read(n.wrapping_mul(7919) % 100_003, 64).is_empty(), "{n}");
        }
    }

    #[test]
    fn who_reads_here_and_there_in_a_small_frame_asks_for_little() {
        let mut all = Sequences::default();
        // A full cycle: each of 211 chunks once.
        let ahead: usize = (0..40u32).map(|n| all.read(n * n * 7 % 211, 64).len()).sum();
        assert!(ahead <= 4, "{ahead}");
    }

    #[test]
    fn threads_that_read_a_little_out_of_order_are_one_run() {
        let mut all = Sequences::default();
        let ahead: usize = [0, 2, 1, 3, 5, 4, 6, 7, 9, 8, 10].map(|place| all.read(place, 64).len()).iter().sum();
        assert!(ahead >= 8, "{ahead}");
    }

    #[test]
    fn several_runs_go_on_beside_each_other() {
        let mut all = Sequences::default();
        let mut ahead = [0; 4];
        for n in 0..100 {
            for (run, ahead) in ahead.iter_mut().enumerate() {
                *ahead += all.read(run as u32 * 10_000 + n, 64).len();
            }
        }
        assert!(ahead.iter().all(|ahead| *ahead >= 100), "{ahead:?}");
    }
}
