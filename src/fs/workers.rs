//! Who does what may have to wait, for other processes on a thread of its own. What waits for the disk is never done by the last event
//! loop that is free, or nobody would answer those who read.
//!
//! An fsync waits for the disk; a close, a rename or a lock given back does so if it commits. As a rule the event loop that has read
//! such a request does it, since handing it over takes longer than many of them. The last loop that does none hands it to a thread of
//! its own kind, of which there are few: what they have not come to waits in a queue. The clients wait for their answers, so it
//! has at most one request for each of their threads.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::{Builder, panicking};
use std::time::Duration;

use log::{debug, error};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::shared::Shared;
use super::spawn;
use crate::store::in_words;
use crate::view::Wait;

/// The most threads that there are besides the event loops.
pub(super) const MOST: usize = 16;
/// How long one of them stays that has nothing to do.
const IDLE: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce(&Arc<Shared>) + Send>;

/// The event loops and the other threads.
#[derive(Default)]
pub(super) struct Workers {
    loops: usize,
    /// Event loops that do something that may wait.
    waiting: AtomicUsize,
    state: Mutex<State>,
    /// Told of new work, and of the end.
    work: Condvar,
    /// Told when a thread ends.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Work>,
    threads: usize,
    /// Of these, those that wait for work.
    idle: usize,
    /// Threads that do a single request.
    single: usize,
    ended: bool,
}

/// An event loop does something that may wait. One that dies of it never comes back.
struct Here<'a>(&'a Workers);

impl Drop for Here<'_> {
    fn drop(&mut self) {
        if !panicking() {
            self.0.waiting.fetch_sub(1, SeqCst);
        }
    }
}

impl Workers {
    pub(super) fn new(loops: usize) -> Self {
        Workers { loops, ..Workers::default() }
    }

    /// If another loop is left to answer what does not wait.
    fn here(&self) -> Option<Here<'_>> {
        let more = |waiting| Some(waiting + 1).filter(|waiting| *waiting < self.loops);
        self.waiting.fetch_update(SeqCst, SeqCst, more).ok().map(|_| Here(self))
    }

    /// Waits until all that was handed over is done. Nothing is from now on.
    pub(super) fn finish(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        self.work.notify_all();
        self.ended.wait_while(&mut state, |state| state.threads + state.single > 0);
    }
}

impl Shared {
    /// Runs `work`, which may have to wait: what waits for other processes on a thread of its own, as they may be waiting for a request
    /// behind it.
    pub(super) fn run(self: &Arc<Self>, wait: Wait, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        match wait {
            Wait::Never => work(self),
            Wait::Disk => match self.workers.here() {
                Some(_here) => work(self),
                None => self.hand_over(Box::new(work)),
            },
            Wait::Others => self.alone(work),
        }
    }

    fn hand_over(self: &Arc<Self>, work: Work) {
        let mut state = self.workers.state.lock();
        state.queue.push_back(work);
        if state.idle >= state.queue.len() {
            self.workers.work.notify_one();
        } else if state.threads < MOST {
            let shared = Arc::clone(self);
            match Builder::new().name("b2fuse-worker".into()).spawn(move || shared.serve()) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads > 0 => debug!("no further thread for requests that wait: {}", in_words(&error)),
                Err(error) => {
                    error!("no thread for requests that wait; others are not answered meanwhile: {}", in_words(&error));
                    let work = state.queue.pop_back();
                    drop(state);
                    work.into_iter().for_each(|work| work(self));
                }
            }
        }
    }

    /// A thread's body.
    fn serve(self: Arc<Self>) {
        let workers = &self.workers;
        let mut state = workers.state.lock();
        loop {
            while let Some(work) = state.queue.pop_front() {
                // Its client gets EIO then; those in the queue are not to wait for nobody.
                let work = || drop(catch_unwind(AssertUnwindSafe(|| work(&self))));
                MutexGuard::unlocked(&mut state, work);
            }
            if state.ended {
                break;
            }
            state.idle += 1;
            let rested = workers.work.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if rested && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        workers.ended.notify_all();
    }

    fn alone(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        self.workers.state.lock().single += 1;
        let single = Single(Arc::clone(self));
        spawn("b2fuse-wait", "a request that may have to wait, which fails", move || work(&single.0));
    }
}

/// A thread that does a single request.
struct Single(Arc<Shared>);

impl Drop for Single {
    fn drop(&mut self) {
        self.0.workers.state.lock().single -= 1;
        self.0.workers.ended.notify_all();
    }
}
