//! Reading ahead of those who read: threads that open the chunk files of a hint and have the kernel read them, several at the
//! same time, which is what a disk is fast at and one reader alone cannot ask for. All frames of a mount share them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use log::debug;
use parking_lot::{Condvar, Mutex};

use super::ChunkKey;
use crate::store::in_words;
use crate::store::local::system::run_on_any_core;

/// How many files are hinted at, at most; older hints go.
const HINTS: usize = 1024;
/// The threads, which are started once there is something to do, and what they have to do.
pub(super) struct Pool {
    work: Arc<Work>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    most: usize,
}

#[derive(Default)]
struct Work {
    queue: Mutex<Queue>,
    more: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct Queue {
    hints: VecDeque<Hint>,
    /// The frames whose files are being read just now, by address.
    under_way: Vec<usize>,
    /// Threads that wait for something to do.
    idle: usize,
    stop: bool,
}

/// A frame of which chunks can be read ahead.
pub(super) trait Reader: Send + Sync {
    /// Has the kernel read a chunk of that length.
    fn read_ahead(&self, key: ChunkKey, len: u32);
}

struct Hint {
    frame: Arc<dyn Reader>,
    key: ChunkKey,
    len: u32,
}

/// What tells frames apart.
fn address(frame: &Arc<dyn Reader>) -> usize {
    Arc::as_ptr(frame).addr()
}

/// The pool as one frame has it.
pub(super) struct Readahead {
    pool: Arc<Pool>,
    frame: Arc<dyn Reader>,
    /// Written with the queue locked.
    stopped: AtomicBool,
}

impl Readahead {
    pub(super) fn new(pool: &Arc<Pool>, frame: Arc<dyn Reader>) -> Self {
        Readahead { pool: Arc::clone(pool), frame, stopped: AtomicBool::new(false) }
    }

    /// Takes a hint.
    pub(super) fn expect(&self, chunks: &[(ChunkKey, u32)]) {
        let work = &self.pool.work;
        let mut queue = work.queue.lock();
        if self.stopped.load(Relaxed) {
            return;
        }
        let hints = chunks.get(..HINTS).unwrap_or(chunks);
        queue.hints.extend(hints.iter().map(|(key, len)| Hint { frame: Arc::clone(&self.frame), key: *key, len: *len }));
        let over = queue.hints.len().saturating_sub(HINTS);
        queue.hints.drain(..over);
        let (wanted, idle) = (queue.hints.len(), queue.idle);
        drop(queue);
        (0..wanted.min(idle)).for_each(|_| {
            work.more.notify_one();
        });
        if wanted > idle {
            self.pool.start();
        }
    }

    /// Takes the frame's hints back, waits for what is under way, and takes no more.
    pub(super) fn stop(&self) {
        let frame = address(&self.frame);
        let mut queue = self.pool.work.queue.lock();
        self.stopped.store(true, Relaxed);
        queue.hints.retain(|hint| address(&hint.frame) != frame);
        while queue.under_way.contains(&frame) {
            self.pool.work.done.wait(&mut queue);
        }
    }
}

impl Pool {
    /// A pool of at most so many threads.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Pool { work: Arc::default(), threads: Mutex::default(), most })
    }

    /// How many threads there are.
    pub(super) fn threads(&self) -> usize {
        self.threads.lock().len()
    }

    fn start(&self) {
        let mut threads = self.threads.lock();
        if threads.len() < self.most {
            let work = Arc::clone(&self.work);
            let body = move || {
                run_on_any_core();
                work.run();
            };
            match std::thread::Builder::new().name("read-ahead".to_owned()).spawn(body) {
                Ok(thread) => threads.push(thread),
                Err(error) => debug!("no thread to read ahead: {}", in_words(&error)), // it is only slower
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.work.queue.lock().stop = true;
        self.work.more.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let _ = thread.join();
        }
    }
}

impl Work {
    fn run(&self) {
        let mut queue = self.queue.lock();
        while !queue.stop {
            let Some(hint) = queue.hints.pop_front() else {
                queue.idle += 1;
                self.more.wait(&mut queue);
                queue.idle -= 1;
                continue;
            };
            let under_way = UnderWay(self, address(&hint.frame));
            queue.under_way.push(under_way.1);
            drop(queue);
            let Hint { frame, key, len } = hint;
            frame.read_ahead(key, len);
            drop(frame); // before who waits for this goes on
            drop(under_way);
            queue = self.queue.lock();
        }
    }
}

/// Nobody waits in vain, even after a panic.
struct UnderWay<'a>(&'a Work, usize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let UnderWay(work, frame) = self;
        let mut queue = work.queue.lock();
        if let Some(at) = queue.under_way.iter().position(|other| other == frame) {
            queue.under_way.swap_remove(at);
        }
        drop(queue);
        work.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Says that a chunk is being read, and waits until it may end.
    struct Gate {
        begun: Sender<u64>,
        may_end: Mutex<Receiver<()>>,
        ended: AtomicUsize,
    }

    impl Reader for Gate {
        fn read_ahead(&self, key: ChunkKey, _len: u32) {
            self.begun.send(key.number()).unwrap();
            let _ = self.may_end.lock().recv();
            (0..1000).for_each(|_| std::thread::yield_now());
            self.ended.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_frame_that_is_closed_takes_its_hints_back_and_waits_for_what_is_under_way() {
        let pool = Pool::new(1);
        let (begun, begins) = channel();
        let frame = || {
            let (end, may_end) = channel();
            let gate = Arc::new(Gate { begun: begun.clone(), may_end: Mutex::new(may_end), ended: AtomicUsize::new(0) });
            (Readahead::new(&pool, gate.clone()), gate, end)
        };
        let ((one, one_reads, end_one), (other, other_reads, end_other)) = (frame(), frame());
        one.expect(&[1, 2, 3].map(|n| (ChunkKey::new(n), 1)));
        assert_eq!(begins.recv(), Ok(1));
        other.expect(&[(ChunkKey::new(10), 1)]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !one.stopped.load(Relaxed) {
                    std::thread::yield_now();
                }
                drop(end_one);
            });
            one.stop();
            assert_eq!(one_reads.ended.load(Relaxed), 1);
        });
        one.expect(&[(ChunkKey::new(4), 1)]);
        assert_eq!(begins.recv(), Ok(10), "the other one's are read");
        drop(end_other);
        other.stop();
        assert_eq!((other_reads.ended.load(Relaxed), pool.threads()), (1, 1));
        drop((one, other, pool));
        drop(begun);
        assert_eq!(Arc::strong_count(&one_reads), 1);
        assert!(begins.try_recv().is_err(), "nothing else was read");
    }
}
