//! One thread for all frames of a mount: it calls [`FileSystem::tick`] when the file system asked for it, and at once when something
//! new has happened to one that is idle. Which frame is due, the file system knows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::view::{FileSystem, Invalidations};

/// A file system with a deadline this close needs no waking: it looks at what is new when the deadline comes.
const SOON: Duration = Duration::from_secs(1);
/// Without a deadline, tick as seldom as this.
const LONGEST: Duration = Duration::from_secs(1 << 16);
/// Never tick more often than this, whatever the file system asks for.
const SHORTEST: Duration = Duration::from_millis(10);

/// When the file system is called next.
#[derive(Default)]
pub(super) struct Ticker {
    /// Something happened since the last tick began.
    news: AtomicBool,
    /// The thread sleeps for longer than [`SOON`], so news must wake it. Set before `news` is looked at.
    asleep: AtomicBool,
    stop: Mutex<bool>,
    wake: Condvar,
}

impl Ticker {
    /// Something happened that may give a frame a deadline. Costs two atomic operations while any of them is busy, or was just called.
    pub(super) fn poke(&self) {
        self.news.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            // Taking the lock orders this after the sleeper's last look at `news`.
            drop(self.stop.lock());
            self.wake.notify_one();
        }
    }

    /// Ends the thread after the tick under way.
    pub(super) fn stop(&self) {
        *self.stop.lock() = true;
        self.wake.notify_one();
    }

    /// The thread's body. `forget` takes what a tick made untrue.
    pub(super) fn run(&self, view: &dyn FileSystem, forget: impl Fn(Invalidations)) {
        loop {
            self.news.store(false, Ordering::SeqCst);
            let started = Instant::now();
            let mut invalidations = Invalidations::new();
            let due = view.tick(started, &mut invalidations);
            if !invalidations.is_empty() {
                forget(invalidations);
            }
            // What is new meanwhile wakes nobody, and is looked at then.
            let rested = Instant::now() + SHORTEST;
            let due = due.unwrap_or(started + LONGEST).max(rested);
            let woken_by_news = due > started + SOON;
            let mut stop = self.stop.lock();
            while !(*stop || self.wake.wait_until(&mut stop, rested).timed_out()) {}
            self.asleep.store(woken_by_news, Ordering::SeqCst);
            while !(*stop || woken_by_news && self.news.load(Ordering::SeqCst)) {
                if self.wake.wait_until(&mut stop, due).timed_out() {
                    break;
                }
            }
            self.asleep.store(false, Ordering::SeqCst);
            if *stop {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::super::tests::memory::MemoryView;
    use super::*;

    #[test]
    fn news_in_quick_succession_wake_nobody() {
        let (ticker, view) = (Ticker::default(), MemoryView::new(false, []));
        std::thread::scope(|scope| {
            scope.spawn(|| ticker.run(&view, drop));
            let began = Instant::now();
            while began.elapsed() < 20 * SHORTEST || view.ticks.load(SeqCst) < 3 {
                ticker.poke();
            }
            let most = began.elapsed().as_millis() / SHORTEST.as_millis() + 2;
            let ticks = view.ticks.load(SeqCst) as u128;
            ticker.stop();
            assert!(ticks <= most, "{ticks}; expected {most} at most");
        });
    }
}
