//! Which thread does what, and what has to wait for a turn.
//!
//! All requests are done by fuser's event loops, of which the kernel wakes one for each request. There are few at first, and as many as
//! [`Config::threads`](super::session::Config) says once requests wait for some time: see [`loops`]. No request is handed to
//! another thread at once: that takes longer than most of them. Instead only so many event loops do at one time what may wait, by what it
//! waits for ([`Wait`]):
//!
//! | | waits for | at one time |
//! | --- | --- | --- |
//! | `Never` | at most what it reads from the disk: look-ups, reads, listings of what is on this machine | as many as come |
//! | `Disk` | all that changes something, commits or syncs | half of the event loops |
//! | `Others` | other processes, until they give back a lock: 5 seconds at most | a quarter, and no less than one |
//! | `Far` | a network: look-ups, reads and listings of what is far away | three quarters, and others in threads of their own |
//!
//! So a quarter of the event loops, and no less than one, is there for those who read, however many others wait for the disk. Of the few at
//! first, all may wait for some milliseconds: until the others have started. What finds its number used up is queued, and done by the event
//! loop that is done with its own first. A queue is as long as there are threads of clients at most, as each waits for its answer, and the few requests that the kernel sends on its own.
//!
//! What is `Disk` goes on without any other request, and what is `Others` ends of its own accord. A lock is given back by
//! what is `Disk`, and who waits for one for as long as it takes has a thread besides ([`Shared::lock`]). So nobody waits in
//! a queue for a request that is behind it.
//!
//! What is `Far` may be here already, or not come for a long time, and nobody knows which before it is looked for. So it is not queued:
//! when its number is used up, it gets a thread, up to [`THREADS`] of them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

pub(super) use self::late_reads::{LateRead, LateReads, Reading};
pub(super) use self::loops::{Busy, FIRST, Loops, Others};
use super::shared::Shared;
use super::spawn;
use crate::store::interrupts;
use crate::view::Wait;

mod late_reads;
mod loops;

/// The fewest event loops: one for each of the above, and one that does what comes next.
pub const LEAST: usize = 4;

/// The most threads beside the event loops that wait for what is far away.
const THREADS: usize = 1024;

type Work = Box<dyn FnOnce(&Arc<Shared>) + Send>;

/// What event loops do that may wait.
pub(super) struct Executor {
    disk: Mutex<Lane>,
    others: Mutex<Lane>,
    far: Mutex<Lane>,
    /// Threads for what is far away.
    threads: AtomicUsize,
}

/// What waits for one thing. A leaf lock.
struct Lane {
    most: usize,
    running: usize,
    queue: VecDeque<Work>,
}

impl Lane {
    fn new(most: usize) -> Mutex<Self> {
        Mutex::new(Lane { most, running: 0, queue: VecDeque::new() })
    }
}

impl Executor {
    pub(super) fn new(loops: usize) -> Self {
        let [disk, others, far] = numbers(loops).map(Lane::new);
        Executor { disk, others, far, threads: AtomicUsize::new(0) }
    }

    fn lane(&self, wait: Wait) -> Option<&Mutex<Lane>> {
        match wait {
            Wait::Never => None,
            Wait::Disk => Some(&self.disk),
            Wait::Others => Some(&self.others),
            Wait::Far => Some(&self.far),
        }
    }
}

/// So many of these event loops may wait at one time: for the disk, for other processes, and for what is far away.
fn numbers(loops: usize) -> [usize; 3] {
    [loops.div_ceil(2), (loops / 4).max(1), loops - (loops / 4).max(1)]
}

/// So many of these event loops may wait for the disk at one time.
#[cfg(test)]
pub(super) fn disk(loops: usize) -> usize {
    numbers(loops)[0]
}

impl Shared {
    /// Runs `work`, which may have to wait: now, or behind what waits already.
    pub(super) fn run(self: &Arc<Self>, wait: Wait, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        if let Some(lane) = self.executor.lane(wait) {
            let mut lane = lane.lock();
            if lane.running >= lane.most {
                lane.queue.push_back(Box::new(work));
                drop(lane);
                return self.want_loops();
            }
            lane.running += 1;
        }
        self.run_with_queue(wait, work);
    }

    /// Runs `work` for a client, which may have to wait for what is far away: now, or in a thread of its own.
    pub(super) fn run_far(self: &Arc<Self>, client: u32, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let mut work = Some(work);
        self.try_run(Wait::Far, |shared| {
            if let Some(work) = work.take() {
                work(shared);
            }
        });
        let Some(work) = work else { return };
        // An event loop that does it later has served another client before.
        let work = move |shared: &Arc<Self>| {
            interrupts::serve(client);
            work(shared);
        };
        if self.executor.threads.fetch_add(1, Relaxed) >= THREADS {
            self.executor.threads.fetch_sub(1, Relaxed);
            return self.run(Wait::Far, work);
        }
        // Where no thread can be started, it waits for an event loop.
        let work = Arc::new(Mutex::new(Some(work)));
        let (shared, theirs) = (Arc::clone(self), Arc::clone(&work));
        let is_begun = spawn("b2fuse-far", "a request for what is far away, which waits", move || {
            let work = theirs.lock().take();
            if let (Some(_entered), Some(work)) = (shared.enter(), work) {
                shared.attempt(work);
            }
            shared.executor.threads.fetch_sub(1, Relaxed);
        });
        if !is_begun {
            self.executor.threads.fetch_sub(1, Relaxed);
            let work = work.lock().take();
            if let Some(work) = work {
                self.run(Wait::Far, work);
            }
        }
    }

    /// Runs `work`, unless it would have to be queued.
    pub(super) fn try_run(self: &Arc<Self>, wait: Wait, work: impl FnOnce(&Arc<Self>)) {
        if let Some(lane) = self.executor.lane(wait) {
            let mut lane = lane.lock();
            if lane.running >= lane.most {
                drop(lane);
                return self.want_loops();
            }
            lane.running += 1;
        }
        self.run_with_queue(wait, work);
    }

    /// Whether anything is queued.
    pub(super) fn is_queued(&self) -> bool {
        [Wait::Disk, Wait::Others, Wait::Far]
            .into_iter()
            .any(|wait| self.executor.lane(wait).is_some_and(|lane| !lane.lock().queue.is_empty()))
    }

    /// There are so many event loops now. What is queued and may be done with these, threads of its own do.
    pub(super) fn allow(self: &Arc<Self>, loops: usize) {
        for (wait, most) in [Wait::Disk, Wait::Others, Wait::Far].into_iter().zip(numbers(loops)) {
            let Some(lane) = self.executor.lane(wait) else { continue };
            let mut lane = lane.lock();
            lane.most = most;
            let free = most.saturating_sub(lane.running).min(lane.queue.len());
            drop(lane);
            for _ in 0..free {
                let shared = Arc::clone(self);
                spawn("b2fuse-queue", "a request that was queued", move || shared.run_free(wait));
            }
        }
    }

    /// Runs what is queued, if one more may.
    fn run_free(self: &Arc<Self>, wait: Wait) {
        let (Some(_entered), Some(lane)) = (self.enter(), self.executor.lane(wait)) else { return };
        {
            let mut lane = lane.lock();
            if lane.running >= lane.most {
                return;
            }
            lane.running += 1;
        }
        self.run_queued(wait);
    }

    /// Runs what counts as running, and then what is queued.
    fn run_with_queue(self: &Arc<Self>, wait: Wait, work: impl FnOnce(&Arc<Self>)) {
        if self.executor.lane(wait).is_none() {
            return work(self);
        }
        self.attempt(work);
        self.run_queued(wait);
    }

    /// Runs what is queued, as what counts as running.
    fn run_queued(self: &Arc<Self>, wait: Wait) {
        let Some(lane) = self.executor.lane(wait) else { return };
        loop {
            let next = {
                let mut lane = lane.lock();
                let next = if lane.running > lane.most { None } else { lane.queue.pop_front() };
                lane.running -= usize::from(next.is_none());
                next
            };
            let Some(work) = next else { return };
            self.attempt(work);
        }
    }

    /// If it panics, its client gets EIO; those in the queue are not to wait for nobody.
    fn attempt(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>)) {
        drop(catch_unwind(AssertUnwindSafe(|| work(self))));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::spawn;
    use std::time::Duration;

    use super::super::kernel::Access;
    use super::super::tests::memory::MemoryView;
    use super::*;

    const IN_TIME: Duration = Duration::from_secs(20);

    fn shared(loops: usize) -> Arc<Shared> {
        let view = Arc::new(MemoryView::new(false, []));
        let shared = Arc::new(Shared::new(view, super::super::session::Overrides::default(), Access::Owner));
        shared.allow(loops);
        shared
    }

    /// Work that goes on until what is answered is dropped, on a thread of its own.
    fn block(shared: &Arc<Shared>, wait: Wait) -> Sender<()> {
        let (until, blocked) = channel::<()>();
        let (began, has_begun) = channel();
        let shared = Arc::clone(shared);
        spawn(move || {
            shared.run(wait, move |_| {
                began.send(()).unwrap();
                let _ = blocked.recv();
            });
        });
        has_begun.recv_timeout(IN_TIME).unwrap();
        until
    }

    #[test]
    fn what_is_full_is_queued_and_nothing_else_waits_for_it() {
        for loops in [LEAST, 8] {
            for (full, other, most) in [(Wait::Disk, Wait::Others, loops / 2), (Wait::Others, Wait::Disk, loops / 4)] {
                let shared = shared(loops);
                let mut running: Vec<_> = (0..most).map(|_| block(&shared, full)).collect();
                let (done, is_done) = channel();
                for n in 0..100 {
                    let done = done.clone();
                    // Comes back at once.
                    shared.run(full, move |_| done.send(n).unwrap());
                }
                shared.try_run(full, |_| panic!("it is full"));
                for free in [other, Wait::Never] {
                    let mut ran = false;
                    shared.run(free, |_| {});
                    shared.try_run(free, |_| ran = true);
                    assert!(ran);
                }
                assert!(is_done.try_recv().is_err());
                // Whoever is done does what is queued, in its order.
                running.pop();
                let order: Vec<_> = (0..100).map(|_| is_done.recv_timeout(IN_TIME).unwrap()).collect();
                assert!(order.is_sorted());
                drop(block(&shared, full));
            }
        }
    }

    #[test]
    fn what_is_far_away_keeps_no_event_loop_from_what_is_here() {
        for loops in [LEAST, 8] {
            let shared = shared(loops);
            let (until, began) = (channel::<()>(), channel());
            let blocked = Arc::new(Mutex::new(until.1));
            // On event loops.
            for _ in 0..loops - loops / 4 {
                let (shared, blocked, began) = (Arc::clone(&shared), Arc::clone(&blocked), began.0.clone());
                spawn(move || {
                    shared.run_far(0, move |_| {
                        began.send(()).unwrap();
                        let _ = blocked.lock().recv();
                    });
                });
            }
            (0..loops - loops / 4).for_each(|_| began.1.recv_timeout(IN_TIME).unwrap());
            shared.try_run(Wait::Far, |_| panic!("it is full"));
            // This one comes back at once, and what it has to do is done all the same.
            let (done, is_done) = channel();
            let here = std::thread::current().id();
            shared.run_far(0, move |_| done.send(std::thread::current().id()).unwrap());
            assert_ne!(is_done.recv_timeout(IN_TIME).unwrap(), here);
            for free in [Wait::Never, Wait::Disk, Wait::Others] {
                let mut ran = false;
                shared.try_run(free, |_| ran = true);
                assert!(ran);
            }
            drop(until.0);
        }
    }

    #[test]
    fn what_is_queued_is_done_though_what_was_before_it_panics() {
        let shared = shared(LEAST);
        let running: Vec<_> = (0..disk(LEAST)).map(|_| block(&shared, Wait::Disk)).collect();
        let (done, is_done) = channel();
        shared.run(Wait::Disk, |_| panic!("on purpose"));
        shared.run(Wait::Disk, move |_| done.send(()).unwrap());
        drop(running);
        is_done.recv_timeout(IN_TIME).unwrap();
    }
}
