//! Decoded blocks in memory, and the threads that decode them.
//!
//! All frames of a mount share one [`Blocks`]. A block is decoded by whoever needs it first, once: others who need it meanwhile wait for
//! that one block. What is read ahead is decoded by threads of its own, as many as there are cores, in the order in which it was asked for;
//! a reader that needs a block still waiting for its turn decodes it itself.
//!
//! Memory is bounded in bytes. The least used block is dropped first. A block that was read to its end is dropped at once: the
//! kernel keeps what was read, in its page cache, and the memory serves the next block.
//!
//! A block is found by the state of the frame that it is of, so that what was read of one state never is shown in another.

use std::collections::VecDeque;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use lru::LruCache;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::format::Position;
use crate::format::chunk::BlockMap;
use crate::store::in_words;
use crate::store::local::system::run_on_any_core;

use self::memory::{Memory, OVERHEAD, Slot, cost};
use self::room::Room;
use super::band_file::BandFiles;

mod memory;
mod room;
#[cfg(test)]
mod tests;

pub use memory::{Block, Keep};
pub use room::{Bench, InHand};

/// Bytes of maps that are kept, however small and however large the cache is; the last one is kept in any case.
const MAPS: RangeInclusive<u64> = 1 << 20..=4 << 20;
/// Pieces that are kept of the block starts of chunks whose maps have none, 16 KiB each.
const STARTS: usize = 32;
/// A state of a frame, of which no other has the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateId(u64);

/// Names a block: the state of the frame, the chunk, and where in the decoded chunk the block begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockKey {
    /// The state of the frame.
    pub of: StateId,
    /// The chunk.
    pub chunk: Position,
    /// Where in the decoded chunk it begins.
    pub start: u32,
}

/// What becomes of somebody who needs a block.
pub enum Turn {
    /// Here it is.
    Ready(Arc<Block>),
    /// He decodes it.
    Mine,
}

/// Something to be decoded.
pub trait Work: Send + Sync {
    /// Decodes a block, which is claimed, and calls [`Blocks::put`]; or returns, if it cannot be decoded or is of no use any more.
    /// Whoever needs it finds out again what is wrong with it.
    fn decode(&self, key: BlockKey, len: u32);
}

struct Job {
    work: Arc<dyn Work>,
    key: BlockKey,
    len: u32,
}

struct State {
    memory: Memory,
    maps: LruCache<(StateId, Position), Arc<BlockMap>>,
    map_bytes: u64,
    /// By the chunk, and by where in it they are.
    starts: LruCache<(StateId, Position, u32), Arc<Vec<u8>>>,
    jobs: VecDeque<Job>,
    /// Threads that wait for something to do.
    idle: usize,
    started: usize,
    stop: bool,
}

/// What was done since the beginning.
#[derive(Debug, Default)]
pub struct Counts {
    /// Blocks that were decoded.
    pub decoded: AtomicU64,
    /// Their bytes.
    pub decoded_bytes: AtomicU64,
    /// Blocks that a read found in memory.
    pub hits: AtomicU64,
    /// Bytes that went to a file.
    pub spilled_bytes: AtomicU64,
    /// Bytes that came back from it.
    pub restored_bytes: AtomicU64,
}

struct Shared {
    /// No input, output or decoding is done with it, and no job dropped. A leaf lock.
    state: Mutex<State>,
    /// A block is ready, or will not be.
    done: Condvar,
    /// There is something to do.
    more: Condvar,
    limit: u64,
    threads: usize,
    room: Room,
    last_state: AtomicU64,
    counts: Counts,
}

/// See the module.
pub struct Blocks {
    shared: Arc<Shared>,
    /// Where blocks are kept that find no room.
    files: Option<BandFiles>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    spawn: Spawn,
}

/// Starts a thread.
type Spawn = fn(Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>;

impl Blocks {
    /// At most `limit` bytes, and `threads` threads. What finds no room there goes to `files`, if there are any.
    pub fn new(limit: u64, threads: usize, files: Option<BandFiles>) -> Arc<Self> {
        Self::spawning(limit, threads, files, |body| std::thread::Builder::new().name("b2fuse-decode".into()).spawn(body))
    }

    fn spawning(limit: u64, threads: usize, files: Option<BandFiles>, spawn: Spawn) -> Arc<Self> {
        let state = State {
            memory: Memory::new(limit),
            maps: LruCache::unbounded(),
            map_bytes: 0,
            starts: LruCache::unbounded(),
            jobs: VecDeque::new(),
            idle: 0,
            started: 0,
            stop: false,
        };
        let shared = Shared {
            state: Mutex::new(state),
            done: Condvar::new(),
            more: Condvar::new(),
            limit,
            threads: threads.max(1),
            room: Room::default(),
            last_state: AtomicU64::new(0),
            counts: Counts::default(),
        };
        Arc::new(Blocks { shared: Arc::new(shared), files, threads: Mutex::default(), spawn })
    }

    /// With a thread for each core that this process may use.
    pub fn on_all_cores(limit: u64, files: Option<BandFiles>) -> Arc<Self> {
        Self::new(limit, std::thread::available_parallelism().map_or(1, usize::from), files)
    }

    /// Where blocks are kept that find no room.
    pub fn files(&self) -> Option<&BandFiles> {
        self.files.as_ref()
    }

    /// A number for a state of a frame.
    pub fn new_state(&self) -> StateId {
        StateId(self.shared.last_state.fetch_add(1, Relaxed))
    }

    /// Bytes that it may hold.
    pub fn limit(&self) -> u64 {
        self.shared.limit
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> u64 {
        self.shared.state.lock().memory.bytes()
    }

    /// Whether one thread more would help somebody who has several blocks to decode.
    pub fn has_threads(&self) -> bool {
        self.shared.threads > 1
    }

    /// Bytes that blocks may have which only pass through.
    pub fn room(&self) -> u64 {
        self.shared.state.lock().memory.room()
    }

    /// What was done.
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// One line for the log.
    pub fn report(&self) -> String {
        let Counts { decoded, decoded_bytes, hits, spilled_bytes, restored_bytes } = &self.shared.counts;
        let [decoded, bytes, hits, spilled, restored] =
            [decoded, decoded_bytes, hits, spilled_bytes, restored_bytes].map(|count| count.load(Relaxed));
        let (held, limit) = (self.bytes(), self.limit());
        format!(
            "blocks decoded: {decoded} ({bytes} bytes), found: {hits}; held: {held} of {limit} bytes; \
             spilled: {spilled} bytes, read back: {restored}"
        )
    }

    /// A buffer of that length, with anything in it.
    pub fn buffer(&self, len: usize) -> Vec<u8> {
        let buffer = self.shared.state.lock().memory.buffer(len);
        match buffer {
            Some(mut buffer) => {
                buffer.resize(len, 0);
                buffer
            }
            None => vec![0; len],
        }
    }

    /// Where the blocks of a chunk are, if somebody has asked for that before.
    pub fn map(&self, of: StateId, chunk: Position) -> Option<Arc<BlockMap>> {
        self.shared.state.lock().maps.get(&(of, chunk)).cloned()
    }

    /// Keeps where the blocks of a chunk are.
    pub fn keep_map(&self, of: StateId, chunk: Position, map: &Arc<BlockMap>) {
        let mut state = self.shared.state.lock();
        let weight = |map: &BlockMap| map.weight() + OVERHEAD;
        state.map_bytes += weight(map);
        if let Some(before) = state.maps.put((of, chunk), Arc::clone(map)) {
            state.map_bytes -= weight(&before);
        }
        let most = (self.shared.limit / 16).clamp(*MAPS.start(), *MAPS.end());
        while state.map_bytes > most && state.maps.len() > 1 {
            let Some((_, map)) = state.maps.pop_lru() else { return };
            state.map_bytes -= weight(&map);
        }
    }

    /// What a part of a chunk says of where blocks begin, if somebody has asked for that before.
    pub fn starts(&self, of: StateId, chunk: Position, at: u32) -> Option<Arc<Vec<u8>>> {
        self.shared.state.lock().starts.get(&(of, chunk, at)).cloned()
    }

    /// Keeps that.
    pub fn keep_starts(&self, of: StateId, chunk: Position, at: u32, starts: &Arc<Vec<u8>>) {
        let mut state = self.shared.state.lock();
        state.starts.put((of, chunk, at), Arc::clone(starts));
        if state.starts.len() > STARTS {
            state.starts.pop_lru();
        }
    }

    /// A block that has this part, or the turn to decode it: whoever gets that calls [`Blocks::put`] or [`Blocks::give_up`].
    pub fn claim(&self, key: BlockKey, len: u32, part: &Range<u32>, keep: Option<Keep>) -> Turn {
        let mut state = self.shared.state.lock();
        loop {
            match state.memory.get(&key) {
                Some(Slot::Ready(block)) if block.has(part) => {
                    self.shared.counts.hits.fetch_add(1, Relaxed);
                    return Turn::Ready(Arc::clone(block));
                }
                Some(Slot::Ready(_) | Slot::Waiting(_)) => {
                    state.memory.set(&key, Slot::Busy(len));
                    return Turn::Mine;
                }
                Some(Slot::Busy(_)) => self.shared.done.wait(&mut state),
                None => {
                    state.memory.insert(key, Slot::Busy(len), keep);
                    return Turn::Mine;
                }
            }
        }
    }

    /// Those of some blocks that are decoded, as far as they are needed.
    pub fn ready<'a>(&self, needed: impl Iterator<Item = (BlockKey, &'a Range<u32>)>) -> Vec<Option<Arc<Block>>> {
        let mut state = self.shared.state.lock();
        let blocks: Vec<_> = needed
            .map(|(key, part)| match state.memory.get(&key) {
                Some(Slot::Ready(block)) if block.has(part) => Some(Arc::clone(block)),
                _ => None,
            })
            .collect();
        drop(state);
        self.shared.counts.hits.fetch_add(blocks.iter().flatten().count() as u64, Relaxed);
        blocks
    }

    /// A block that was claimed is decoded. So many bytes of it can be read.
    pub fn put(&self, key: BlockKey, bytes: Vec<u8>, visible: u32) -> Arc<Block> {
        self.shared.put(key, bytes, visible)
    }

    /// Holds a part of a block, unless more is known of the block.
    pub fn put_part(&self, key: BlockKey, part: &Arc<Block>) {
        let mut state = self.shared.state.lock();
        match state.memory.get(&key) {
            // One that was read in part, or that others have put there at the same time.
            Some(Slot::Ready(_)) | None => state.memory.insert(key, Slot::Ready(Arc::clone(part)), None),
            Some(Slot::Waiting(_) | Slot::Busy(_)) => {}
        }
    }

    /// A block that was claimed could not be decoded, or need not be.
    pub fn give_up(&self, key: BlockKey) {
        self.shared.give_up(key);
    }

    /// So many bytes of some blocks were read. Those that were read to their end make room.
    pub fn served(&self, mut read: Vec<(BlockKey, Arc<Block>, u64)>) {
        read.retain(|(_, block, bytes)| block.serve(*bytes));
        if read.is_empty() {
            return;
        }
        let mut state = self.shared.state.lock();
        for (key, block, _) in read {
            state.memory.finished(&key, block);
        }
    }

    /// These blocks will be needed, in this order: those of them that do not wait for more than `most` bytes. With `soon`, before all
    /// that was asked for earlier.
    pub fn expect(&self, work: &Arc<dyn Work>, blocks: &[(BlockKey, u32, Option<Keep>)], most: u64, soon: bool) {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        let mut jobs = Vec::new();
        for &(key, len, keep) in blocks {
            if state.memory.contains(&key) {
                continue;
            }
            // What is asked for last must not drive out what was decoded first.
            if state.memory.waiting().saturating_add(cost(len)) > most {
                break;
            }
            state.memory.insert(key, Slot::Waiting(len), keep);
            jobs.push(Job { work: Arc::clone(work), key, len });
        }
        let count = jobs.len();
        if soon {
            jobs.into_iter().rev().for_each(|job| state.jobs.push_front(job));
        } else {
            state.jobs.extend(jobs);
        }
        let idle = state.idle;
        let more = count > idle && state.started < shared.threads && !state.stop;
        if more {
            state.started += 1;
        }
        drop(state);
        (0..count.min(idle)).for_each(|_| {
            shared.more.notify_one();
        });
        if more {
            self.start();
        }
    }

    /// Forgets all blocks of a state, which nobody reads any more.
    pub fn forget(&self, of: StateId) {
        let mut state = self.shared.state.lock();
        // Dropped when the lock is not held: see `Shared::next`.
        let (gone, left) = std::mem::take(&mut state.jobs).into_iter().partition::<Vec<_>, _>(|job| job.key.of == of);
        state.jobs = left.into();
        // Who decodes one finds no place for it any more.
        state.memory.remove_all(|key| key.of == of);
        let maps: Vec<_> = state.maps.iter().filter(|(key, _)| key.0 == of).map(|(key, _)| *key).collect();
        for key in maps {
            if let Some(map) = state.maps.pop(&key) {
                state.map_bytes -= map.weight() + OVERHEAD;
            }
        }
        let starts: Vec<_> = state.starts.iter().filter(|(key, _)| key.0 == of).map(|(key, _)| *key).collect();
        for key in starts {
            state.starts.pop(&key);
        }
        drop(state);
        drop(gone);
        self.shared.done.notify_all();
    }

    fn start(&self) {
        let shared = Arc::clone(&self.shared);
        let body = move || {
            run_on_any_core();
            while let Some(job) = shared.next() {
                let claim = ThreadClaim { shared: &shared, key: job.key };
                // Whatever panics has told so; others wait to be decoded.
                let _ = catch_unwind(AssertUnwindSafe(|| job.work.decode(job.key, job.len)));
                // Which is nothing if the block is there.
                drop(claim);
            }
        };
        match (self.spawn)(Box::new(body)) {
            Ok(thread) => self.threads.lock().push(thread),
            Err(error) => self.not_started(&error),
        }
    }

    /// There may be a thread the next time. Until then readers decode by themselves what nobody decodes for them.
    fn not_started(&self, error: &io::Error) {
        log::debug!("cannot start a thread to decode blocks ahead: {}", in_words(error));
        let mut state = self.shared.state.lock();
        state.started -= 1;
        let jobs = if state.started == 0 { std::mem::take(&mut state.jobs) } else { VecDeque::new() };
        for job in &jobs {
            if let Some(Slot::Waiting(_)) = state.memory.get(&job.key) {
                state.memory.remove(&job.key);
            }
        }
        drop(state);
        // See `Shared::next`.
        drop(jobs);
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.stop = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        drop(jobs);
        self.shared.more.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            // The last one who holds this may be such a thread.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    fn put(&self, key: BlockKey, bytes: Vec<u8>, visible: u32) -> Arc<Block> {
        self.counts.decoded.fetch_add(1, Relaxed);
        self.counts.decoded_bytes.fetch_add(bytes.len() as u64, Relaxed);
        let block = Arc::new(Block::new(bytes, visible));
        let mut state = self.state.lock();
        if let Some(Slot::Busy(_)) = state.memory.get(&key) {
            state.memory.set(&key, Slot::Ready(Arc::clone(&block)));
        }
        drop(state);
        self.done.notify_all();
        block
    }

    fn give_up(&self, key: BlockKey) {
        let mut state = self.state.lock();
        if let Some(Slot::Busy(_)) = state.memory.get(&key) {
            state.memory.remove(&key);
        }
        drop(state);
        self.done.notify_all();
    }

    /// Waits for the next job, and claims its block.
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return None;
            }
            let Some(job) = state.jobs.pop_front() else {
                state.idle += 1;
                self.more.wait(&mut state);
                state.idle -= 1;
                continue;
            };
            if let Some(Slot::Waiting(_)) = state.memory.get(&job.key) {
                state.memory.set(&job.key, Slot::Busy(job.len));
                return Some(job);
            }
            // It may be the last one who has what it works on, which then forgets its blocks.
            MutexGuard::unlocked(&mut state, || drop(job));
        }
    }
}

/// A claim of a thread that decodes.
struct ThreadClaim<'a> {
    shared: &'a Shared,
    key: BlockKey,
}

impl Drop for ThreadClaim<'_> {
    fn drop(&mut self) {
        self.shared.give_up(self.key);
    }
}
