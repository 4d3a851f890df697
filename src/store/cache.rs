//! Chunks in memory, for readers that come back to the same chunk in small pieces.
//!
//! The kernel's page cache has the bytes of SOURCE already; a second copy pays only where many small reads of a chunk would
//! each cost a system call (or, one day, a request to a server). So a chunk comes in at its second look, and a look is a read of
//! a part: whole chunks, first looks, and reads that border on the ones before or overlap them (a sequential pass, whose reads may
//! overtake each other; what was pushed to the kernel and asked for all the same) go by the cache. What is cached is bounded in bytes, counted here, as the `lru` crate counts entries.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lru::LruCache;
use parking_lot::Mutex;

use super::{CacheStats, ChunkKey};

/// How many chunks are remembered as looked at once.
const LOOKS: usize = 4096;
/// What an entry costs beside its bytes.
const OVERHEAD: u64 = 128;

/// What to do about a read.
enum Plan {
    /// Here are the chunk's bytes.
    Hit(Arc<Vec<u8>>),
    /// Load the whole chunk and hand it to [`ChunkCache::insert`] with this ticket.
    Load(Ticket),
    /// Read just what is asked for.
    Bypass,
}

/// The cache's generation when a load began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticket(u64);

/// The cache. Its lock is never held across input or output.
pub(super) struct ChunkCache {
    inner: Mutex<Inner>,
    capacity: u64,
    hits: AtomicU64,
    misses: AtomicU64,
    bypassed: AtomicU64,
}

struct Inner {
    chunks: LruCache<ChunkKey, Arc<Vec<u8>>>,
    /// What the last reads of a chunk that is not cached covered: from, to.
    looks: LruCache<ChunkKey, (u64, u64)>,
    /// Sum of [`cost`] over `chunks`; never above the capacity while the lock is free.
    bytes: u64,
    /// Goes up when everything is dropped, so that what was being loaded then does not come in afterwards.
    generation: u64,
}

fn cost(chunk: &[u8]) -> u64 {
    chunk.len() as u64 + OVERHEAD
}

impl ChunkCache {
    /// A cache of at most `capacity` bytes; 0 turns it off.
    pub(super) fn new(capacity: u64) -> Self {
        let looks = LruCache::new(std::num::NonZeroUsize::new(LOOKS).unwrap_or(std::num::NonZeroUsize::MIN));
        let inner = Inner { chunks: LruCache::unbounded(), looks, bytes: 0, generation: 0 };
        let zero = || AtomicU64::new(0);
        ChunkCache { inner: Mutex::new(inner), capacity, hits: zero(), misses: zero(), bypassed: zero() }
    }

    /// Decides about a read of `wanted` bytes at `offset` of a chunk of `len`. A chunk larger than a quarter of the capacity
    /// is never kept.
    fn plan(&self, key: ChunkKey, len: u32, offset: u64, wanted: usize) -> Plan {
        let len = u64::from(len);
        let whole = offset == 0 && wanted as u64 >= len;
        if whole || len.saturating_add(OVERHEAD) > self.capacity / 4 {
            self.bypassed.fetch_add(1, Relaxed);
            return Plan::Bypass;
        }
        let mut inner = self.inner.lock();
        if let Some(chunk) = inner.chunks.get(&key) {
            let chunk = Arc::clone(chunk);
            drop(inner);
            self.hits.fetch_add(1, Relaxed);
            return Plan::Hit(chunk);
        }
        let end = offset.saturating_add(wanted as u64);
        let pass = match inner.looks.get(&key) {
            None => Some((offset, end)),
            Some(&(from, to)) if offset <= to && end >= from => Some((from.min(offset), to.max(end))),
            Some(_) => None,
        };
        if let Some(pass) = pass {
            inner.looks.put(key, pass);
            drop(inner);
            self.bypassed.fetch_add(1, Relaxed);
            return Plan::Bypass;
        }
        self.misses.fetch_add(1, Relaxed);
        Plan::Load(Ticket(inner.generation))
    }

    /// Reads of a chunk of `len` bytes what there is of it from `offset` on: from memory, or by `load`, which fills a buffer from
    /// an offset in the chunk. Answers how much.
    pub(super) fn read(
        &self,
        key: ChunkKey,
        len: u32,
        offset: u64,
        buf: &mut [u8],
        load: impl FnOnce(&mut [u8], u64) -> io::Result<()>,
    ) -> io::Result<usize> {
        let count = u64::from(len).saturating_sub(offset).min(buf.len() as u64) as usize;
        if count == 0 {
            return Ok(0);
        }
        let buf = &mut buf[..count];
        let part = offset as usize..offset as usize + count;
        match self.plan(key, len, offset, count) {
            // All chunks that come in are as long as their keys say, for as long as these are good.
            Plan::Hit(chunk) if part.end <= chunk.len() => buf.copy_from_slice(&chunk[part]),
            Plan::Load(ticket) => {
                let mut chunk = vec![0; len as usize];
                load(&mut chunk, 0)?;
                buf.copy_from_slice(&chunk[part]);
                self.insert(key, Arc::new(chunk), ticket);
            }
            Plan::Hit(_) | Plan::Bypass => load(buf, offset)?,
        }
        Ok(count)
    }

    /// Takes a loaded chunk in. The caller's read guard must still be held: it is what keeps the key's bytes the same.
    fn insert(&self, key: ChunkKey, chunk: Arc<Vec<u8>>, ticket: Ticket) {
        let mut dropped = Vec::new(); // freed after the lock
        let mut inner = self.inner.lock();
        if ticket.0 != inner.generation {
            return;
        }
        inner.looks.pop(&key);
        inner.bytes += cost(&chunk);
        if let Some(old) = inner.chunks.put(key, chunk) {
            inner.bytes -= cost(&old);
            dropped.push(old);
        }
        while inner.bytes > self.capacity {
            let Some((_, old)) = inner.chunks.pop_lru() else { break };
            inner.bytes -= cost(&old);
            dropped.push(old);
        }
        drop(inner);
    }

    /// Forgets a chunk: its key is about to stand for other bytes, or for none.
    pub(super) fn remove(&self, key: ChunkKey) {
        let mut inner = self.inner.lock();
        inner.looks.pop(&key);
        let old = inner.chunks.pop(&key);
        if let Some(old) = &old {
            inner.bytes -= cost(old);
        }
        drop(inner);
        drop(old);
    }

    /// Forgets everything, what is being loaded included.
    pub(super) fn clear(&self) {
        let mut inner = self.inner.lock();
        let old = std::mem::replace(&mut inner.chunks, LruCache::unbounded());
        inner.looks.clear();
        inner.bytes = 0;
        inner.generation += 1;
        drop(inner);
        drop(old);
    }

    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            bypassed: self.bypassed.load(Relaxed),
            bytes: self.inner.lock().bytes,
            capacity: self.capacity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ChunkKey = ChunkKey::new(7);

    fn load(cache: &ChunkCache, key: ChunkKey, len: u32) {
        let (mut looks, wanted) = (0, 10);
        loop {
            match cache.plan(key, len, if looks == 0 { 50 } else { 0 }, wanted) {
                Plan::Load(ticket) => break cache.insert(key, Arc::new(vec![key.number() as u8; len as usize]), ticket),
                Plan::Bypass => looks += 1,
                Plan::Hit(_) => panic!("cached already"),
            }
            assert!(looks < 2, "the second look loads");
        }
    }

    #[test]
    fn whole_chunks_first_looks_and_sequential_reads_go_by() {
        let cache = ChunkCache::new(10_000);
        for _ in 0..3 {
            assert!(matches!(cache.plan(KEY, 100, 0, 100), Plan::Bypass));
        }
        for offset in [20, 0, 40, 60, 80] {
            // The second overtook the first.
            assert!(matches!(cache.plan(KEY, 100, offset, 20), Plan::Bypass));
        }
        let other = ChunkKey::new(8);
        assert!(matches!(cache.plan(other, 100, 0, 20), Plan::Bypass));
        assert!(matches!(cache.plan(other, 100, 30, 20), Plan::Load(_)), "it comes back elsewhere");
        assert_eq!((cache.stats().bypassed, cache.stats().misses), (9, 1));
    }

    #[test]
    fn from_the_second_look_on_reads_come_from_memory() {
        let cache = ChunkCache::new(10_000);
        load(&cache, KEY, 100);
        let Plan::Hit(chunk) = cache.plan(KEY, 100, 3, 5) else { panic!("not cached") };
        assert_eq!(*chunk, vec![7; 100]);
        cache.remove(KEY);
        assert!(matches!(cache.plan(KEY, 100, 3, 5), Plan::Bypass));
        assert_eq!(cache.stats().bytes, 0);
    }

    #[test]
    fn bytes_stay_within_the_capacity_and_the_least_used_goes_first() {
        let cache = ChunkCache::new(10_000);
        for key in 0..50 {
            load(&cache, ChunkKey::new(key), 1000);
            assert!(cache.stats().bytes <= 10_000);
            if key > 0 {
                assert!(matches!(cache.plan(ChunkKey::new(0), 1000, 5, 5), Plan::Hit(_)), "used every time, so kept");
            }
        }
        assert!(matches!(cache.plan(ChunkKey::new(1), 1000, 5, 5), Plan::Bypass), "long gone");
    }

    #[test]
    fn large_chunks_are_never_kept() {
        let cache = ChunkCache::new(10_000);
        for _ in 0..3 {
            assert!(matches!(cache.plan(KEY, 2500, 7, 5), Plan::Bypass));
        }
    }

    #[test]
    fn what_was_loading_when_all_was_dropped_stays_out() {
        let cache = ChunkCache::new(10_000);
        assert!(matches!(cache.plan(KEY, 100, 50, 10), Plan::Bypass));
        let Plan::Load(ticket) = cache.plan(KEY, 100, 0, 10) else { panic!("second look") };
        cache.clear();
        cache.insert(KEY, Arc::new(vec![0; 100]), ticket);
        assert!(!matches!(cache.plan(KEY, 100, 50, 10), Plan::Hit(_)));
    }
}
