//! One thread for all frames of a mount: it calls [`FileSystem::tick`] when the file system asked for it, and at once when something
//! new has happened to one that is idle. Which frame is due, the file system knows. The thread ends when none has been for [`IDLE`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::apart::IDLE;
use crate::view::{FileSystem, Invalidations};

/// A file system with a deadline this close needs no waking: it looks at what is new when the deadline comes.
const SOON: Duration = Duration::from_secs(1);
/// Never tick more often than this, whatever the file system asks for.
const SHORTEST: Duration = Duration::from_millis(10);

/// When the file system is called next.
#[derive(Default)]
pub(super) struct Ticker {
    /// Something happened since the last tick began.
    news: AtomicBool,
    /// The thread sleeps for longer than [`SOON`], or does not run, so news must wake or start it. Set before `news` is looked at.
    asleep: AtomicBool,
    state: Mutex<State>,
    wake: Condvar,
    start: OnceLock<Start>,
}

/// Starts the thread, which is to call [`Ticker::run`]. Returns whether it runs.
type Start = Box<dyn Fn() -> bool + Send + Sync>;

#[derive(Default)]
struct State {
    stopped: bool,
    runs: bool,
}

impl Ticker {
    /// Something happened that may give a frame a deadline. Costs two atomic operations while any of them is busy, or was just called.
    pub(super) fn poke(&self) {
        self.news.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            // Taking the lock orders this after the sleeper's last look at `news`.
            let mut state = self.state.lock();
            if state.runs {
                self.wake.notify_one();
            } else if !state.stopped {
                state.runs = self.start.get().is_some_and(|start| start());
            }
        }
    }

    /// Starts the thread, by `start` now and later.
    pub(super) fn start_by(&self, start: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.start.set(Box::new(start));
        self.asleep.store(true, Ordering::SeqCst);
        self.poke();
    }

    /// Ends the thread after the tick under way, and waits for that.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.wake.notify_all();
        while state.runs {
            self.wake.wait(&mut state);
        }
    }

    /// The thread's body. `forget` takes what a tick made untrue.
    pub(super) fn run(&self, view: &dyn FileSystem, forget: impl Fn(Invalidations)) {
        let ended = catch_unwind(AssertUnwindSafe(|| while self.tick(view, &forget) {}));
        if ended.is_err() {
            self.asleep.store(true, Ordering::SeqCst);
            self.state.lock().runs = false;
        }
        self.wake.notify_all();
    }

    /// Ticks, and waits until it is time for the next. Returns whether there is to be one.
    fn tick(&self, view: &dyn FileSystem, forget: impl Fn(Invalidations)) -> bool {
        self.asleep.store(false, Ordering::SeqCst);
        self.news.store(false, Ordering::SeqCst);
        let started = Instant::now();
        let mut invalidations = Invalidations::new();
        let next = view.tick(started, &mut invalidations);
        if !invalidations.is_empty() {
            forget(invalidations);
        }
        // What is new meanwhile wakes nobody, and is looked at then.
        let rested = Instant::now() + SHORTEST;
        let due = next.unwrap_or(started + IDLE).max(rested);
        let woken_by_news = next.is_none_or(|_| due > started + SOON);
        let mut state = self.state.lock();
        while !(state.stopped || self.wake.wait_until(&mut state, rested).timed_out()) {}
        self.asleep.store(woken_by_news, Ordering::SeqCst);
        while !(state.stopped || woken_by_news && self.news.load(Ordering::SeqCst)) {
            if self.wake.wait_until(&mut state, due).timed_out() {
                break;
            }
        }
        // Without a deadline and without news it ends, and stays asleep to those who have some.
        state.runs = !state.stopped && (next.is_some() || self.news.load(Ordering::SeqCst));
        state.runs
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;

    use super::super::tests::memory::MemoryView;
    use super::*;

    #[test]
    fn the_thread_ends_when_idle_and_starts_with_news() {
        let (ticker, view) = (Arc::new(Ticker::default()), Arc::new(MemoryView::new(false, [])));
        let until = |what: &dyn Fn() -> bool| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while !what() {
                assert!(Instant::now() < deadline);
                std::thread::sleep(SHORTEST);
            }
        };
        let (started, shown) = (Arc::downgrade(&ticker), Arc::clone(&view));
        ticker.start_by(move || {
            let (Some(ticker), view) = (started.upgrade(), Arc::clone(&shown)) else { return false };
            std::thread::spawn(move || ticker.run(&*view, drop));
            true
        });
        for _ in 0..3 {
            until(&|| !ticker.state.lock().runs);
            let before = view.ticks.load(SeqCst);
            ticker.poke();
            until(&|| view.ticks.load(SeqCst) > before);
        }
        ticker.stop();
        assert!(!ticker.state.lock().runs);
    }

    #[test]
    fn news_in_quick_succession_wake_nobody() {
        let (ticker, view) = (Ticker::default(), MemoryView::new(false, []));
        std::thread::scope(|scope| {
            ticker.state.lock().runs = true;
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
