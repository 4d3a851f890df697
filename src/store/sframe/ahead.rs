//! Reading ahead of those who read: threads that open the chunk files of a hint and have the kernel read them, several at the
//! same time, which is what a disk is fast at and one reader alone cannot ask for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use log::debug;
use parking_lot::{Condvar, Mutex};

use super::super::ChunkKey;
use super::Shared;
use crate::store::in_words;

/// How many threads there are at most, once there is something to do.
const THREADS: usize = 3;
/// How many files are hinted at, at most; older hints go.
const HINTS: usize = 1024;
/// How much of a file is read ahead, in bytes: for the rest the kernel's own read-ahead does.
const MOST: u64 = 8 << 20;
/// What the kernel reads at one request, at least, in bytes: its default read-ahead. It cuts off what is longer.
const STRIDE: u64 = 128 << 10;

/// The threads and what they have to do.
#[derive(Default)]
pub(super) struct Ahead {
    work: Arc<Work>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Work {
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    hints: VecDeque<(ChunkKey, u32)>,
    /// Threads that wait for something to do.
    idle: usize,
    stop: bool,
}

impl Ahead {
    /// Takes a hint.
    pub(super) fn expect(&self, shared: &Arc<Shared>, chunks: &[(ChunkKey, u32)]) {
        let mut queue = self.work.queue.lock();
        if queue.stop {
            return;
        }
        queue.hints.extend(&chunks[..chunks.len().min(HINTS)]);
        let over = queue.hints.len().saturating_sub(HINTS);
        queue.hints.drain(..over);
        let (wanted, idle) = (queue.hints.len(), queue.idle);
        drop(queue);
        (0..wanted.min(idle)).for_each(|_| {
            self.work.more.notify_one();
        });
        if wanted > idle {
            self.start(shared);
        }
    }

    fn start(&self, shared: &Arc<Shared>) {
        let mut threads = self.threads.lock();
        if threads.len() < THREADS {
            let (work, shared) = (Arc::clone(&self.work), Arc::clone(shared));
            match std::thread::Builder::new().name("read-ahead".to_owned()).spawn(move || work.run(&shared)) {
                Ok(thread) => threads.push(thread),
                Err(error) => debug!("no thread to read ahead: {}", in_words(&error)), // it is only slower
            }
        }
    }

    /// Ends the threads.
    pub(super) fn stop(&self) {
        let mut queue = self.work.queue.lock();
        queue.stop = true;
        queue.hints.clear();
        drop(queue);
        self.work.more.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let _ = thread.join();
        }
    }
}

impl Work {
    fn run(&self, shared: &Shared) {
        let mut queue = self.queue.lock();
        while !queue.stop {
            let Some((key, len)) = queue.hints.pop_front() else {
                queue.idle += 1;
                self.more.wait(&mut queue);
                queue.idle -= 1;
                continue;
            };
            drop(queue);
            shared.read_ahead(key, len);
            queue = self.queue.lock();
        }
    }
}

impl Shared {
    /// Opens a chunk's file and has the kernel read it. What fails here fails again, and is told, when it is really read.
    fn read_ahead(&self, key: ChunkKey, len: u32) {
        let guard = self.epochs.enter();
        if self.files.lock().len(key).is_none() {
            return; // removed since
        }
        let Ok(open) = self.open_chunk(&guard, key) else { return };
        drop(guard);
        let len = u64::from(len).min(MOST);
        (0..len).step_by(STRIDE as usize).for_each(|from| open.file.will_need(from, STRIDE.min(len - from)));
    }
}
