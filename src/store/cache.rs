//! Chunks in memory, for readers that come back to the same chunk in small pieces.
//!
//! The kernel's page cache has the bytes of SOURCE already; a second copy pays only where many small reads of a chunk would
//! each cost a system call (or, one day, a request to a server). So a chunk comes in at its second look, and a look is a read of
//! a part: whole chunks, first looks, and reads that border on the ones before or overlap them (a sequential pass, whose reads may
//! overtake each other; what was pushed to the kernel and asked for all the same) go by the cache. What is cached is bounded in bytes,
//! over all frames that share a cache.
//!
//! Nothing is read ahead for such a pass here: `view::prefetch` finds those who read in order, from chunk to chunk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lru::LruCache;
use parking_lot::Mutex;

use super::shares::{LruPart, Member, SharedLru};
use super::{CacheStats, ChunkKey};

/// How many chunks are remembered as looked at once.
const LOOKS: usize = 4096;
/// What an entry costs beside its bytes.
const OVERHEAD: u64 = 128;

/// What to do about a read.
enum Plan {
    /// Here are the chunk's bytes.
    Hit(Arc<Vec<u8>>),
    /// Load the whole chunk and hand it to [`LruPart::insert`] with this.
    Load(Member),
    /// Read just what is asked for.
    Bypass,
}

/// The chunks of all frames. No lock is held across input or output.
pub(super) struct ChunkCache {
    chunks: Arc<SharedLru<Arc<Vec<u8>>>>,
    /// What the last reads of a chunk that is not cached covered: from, to.
    looks: Mutex<LruCache<(Member, ChunkKey), (u64, u64)>>,
    capacity: u64,
}

impl ChunkCache {
    /// A cache of at most `capacity` bytes; 0 turns it off.
    pub(super) fn new(capacity: u64) -> Arc<Self> {
        let chunks = SharedLru::new(capacity, |chunk: &Arc<Vec<u8>>| chunk.len() as u64 + OVERHEAD);
        Arc::new(ChunkCache { chunks: Arc::new(chunks), looks: Mutex::new(LruCache::unbounded()), capacity })
    }

    /// Bytes held now.
    pub(super) fn bytes(&self) -> u64 {
        self.chunks.sum()
    }
}

/// The cache as one frame has it.
pub(super) struct FrameCache {
    cache: Arc<ChunkCache>,
    chunks: LruPart<Arc<Vec<u8>>>,
    hits: AtomicU64,
    misses: AtomicU64,
    bypassed: AtomicU64,
}

impl FrameCache {
    pub(super) fn new(cache: &Arc<ChunkCache>) -> Self {
        let zero = || AtomicU64::new(0);
        FrameCache {
            chunks: LruPart::new(&cache.chunks),
            cache: Arc::clone(cache),
            hits: zero(),
            misses: zero(),
            bypassed: zero(),
        }
    }

    /// Decides about a read of `wanted` bytes at `offset` of a chunk of `len`. A chunk larger than a quarter of the capacity
    /// is never kept.
    fn plan(&self, key: ChunkKey, len: u32, offset: u64, wanted: usize) -> Plan {
        let len = u64::from(len);
        let whole = offset == 0 && wanted as u64 >= len;
        if whole || len.saturating_add(OVERHEAD) > self.cache.capacity / 4 {
            self.bypassed.fetch_add(1, Relaxed);
            return Plan::Bypass;
        }
        let member = match self.chunks.get(key) {
            Ok(chunk) => {
                self.hits.fetch_add(1, Relaxed);
                return Plan::Hit(chunk);
            }
            Err(member) => member,
        };
        let end = offset.saturating_add(wanted as u64);
        let mut looks = self.cache.looks.lock();
        let pass = match looks.get(&(member, key)) {
            None => Some((offset, end)),
            Some(&(from, to)) if offset <= to && end >= from => Some((from.min(offset), to.max(end))),
            Some(_) => None,
        };
        let Some(pass) = pass else {
            looks.pop(&(member, key));
            self.misses.fetch_add(1, Relaxed);
            return Plan::Load(member);
        };
        looks.put((member, key), pass);
        if looks.len() > LOOKS {
            looks.pop_lru();
        }
        drop(looks);
        self.bypassed.fetch_add(1, Relaxed);
        Plan::Bypass
    }

    /// Reads of a chunk of `len` bytes what there is of it from `offset` on: from memory, or by `load`, which fills a buffer from
    /// an offset in the chunk. Answers how much.
    #[expect(clippy::indexing_slicing, reason = "no more is counted than there is in the buffer")]
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
            Plan::Load(member) => {
                let mut chunk = vec![0; len as usize];
                load(&mut chunk, 0)?;
                buf.copy_from_slice(&chunk[part]);
                self.chunks.insert(key, Arc::new(chunk), member);
            }
            Plan::Hit(_) | Plan::Bypass => load(buf, offset)?,
        }
        Ok(count)
    }

    /// Forgets a chunk: its key is about to stand for other bytes, or for none.
    pub(super) fn remove(&self, key: ChunkKey) {
        self.chunks.remove(key);
    }

    /// Forgets everything, what is being loaded included.
    pub(super) fn clear(&self) {
        self.chunks.clear();
    }

    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            bypassed: self.bypassed.load(Relaxed),
            bytes: self.chunks.sum(),
            capacity: self.cache.capacity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ChunkKey = ChunkKey::new(7);

    fn cache() -> FrameCache {
        FrameCache::new(&ChunkCache::new(10_000))
    }

    fn load(cache: &FrameCache, key: ChunkKey, len: u32) {
        let (mut looks, wanted) = (0, 10);
        loop {
            match cache.plan(key, len, if looks == 0 { 50 } else { 0 }, wanted) {
                Plan::Load(member) => break cache.chunks.insert(key, Arc::new(vec![key.number() as u8; len as usize]), member),
                Plan::Bypass => looks += 1,
                Plan::Hit(_) => panic!("cached already"),
            }
            assert!(looks < 2, "the second look loads");
        }
    }

    #[test]
    fn whole_chunks_first_looks_and_sequential_reads_go_by() {
        let cache = cache();
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
        let cache = cache();
        load(&cache, KEY, 100);
        let Plan::Hit(chunk) = cache.plan(KEY, 100, 3, 5) else { panic!("not cached") };
        assert_eq!(*chunk, vec![7; 100]);
        cache.remove(KEY);
        assert!(matches!(cache.plan(KEY, 100, 3, 5), Plan::Bypass));
        assert_eq!(cache.stats().bytes, 0);
    }

    #[test]
    fn bytes_stay_within_the_capacity_and_the_least_used_goes_first() {
        let cache = cache();
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
        let cache = cache();
        for _ in 0..3 {
            assert!(matches!(cache.plan(KEY, 2500, 7, 5), Plan::Bypass));
        }
    }

    #[test]
    fn what_was_loading_when_all_was_dropped_stays_out() {
        let cache = cache();
        assert!(matches!(cache.plan(KEY, 100, 50, 10), Plan::Bypass));
        let Plan::Load(member) = cache.plan(KEY, 100, 0, 10) else { panic!("second look") };
        cache.clear();
        cache.chunks.insert(KEY, Arc::new(vec![0; 100]), member);
        assert!(!matches!(cache.plan(KEY, 100, 50, 10), Plan::Hit(_)));
    }

    #[test]
    fn frames_share_the_bytes_and_nothing_else() {
        let all = ChunkCache::new(10_000);
        let (one, other) = (FrameCache::new(&all), FrameCache::new(&all));
        load(&one, KEY, 1000);
        assert!(matches!(other.plan(KEY, 1000, 3, 5), Plan::Bypass), "a key is good in its own frame");
        (0..20).for_each(|key| load(&other, ChunkKey::new(key + 10), 1000));
        assert!(matches!(one.plan(KEY, 1000, 3, 5), Plan::Bypass), "others' chunks were used since");
        load(&one, ChunkKey::new(8), 500);
        let (of_one, of_other) = (one.stats(), other.stats());
        assert_eq!((of_one.misses, of_other.misses, of_one.bytes), (2, 20, 628));
        assert_eq!(of_one.bytes + of_other.bytes, all.bytes());
        assert!(all.bytes() <= 10_000);
        other.clear();
        assert_eq!((other.stats().bytes, all.bytes()), (0, 628));
        load(&other, ChunkKey::new(50), 1000);
        drop(other);
        assert_eq!(all.bytes(), 628);
        assert!(matches!(one.plan(ChunkKey::new(8), 500, 3, 5), Plan::Hit(_)));
    }
}
