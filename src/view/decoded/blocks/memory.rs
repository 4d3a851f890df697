//! Blocks in memory: those that pass through, of which the least used is dropped first, and those that are kept because reads return to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use lru::LruCache;

use super::BlockKey;

/// What an entry costs beside its bytes.
pub const OVERHEAD: u64 = 160;

/// What a block of that length takes.
pub fn cost(len: u32) -> u64 {
    OVERHEAD + u64::from(len)
}

/// A decoded block, or a part of one.
#[derive(Debug)]
pub struct Block {
    bytes: Vec<u8>,
    /// Where in the block they begin.
    begin: u32,
    /// How many bytes there are to be read, padding not among them.
    visible: u32,
    /// How many of them were read.
    served: AtomicU32,
}

impl Block {
    /// A block of which so many bytes can be read.
    pub fn new(bytes: Vec<u8>, visible: u32) -> Self {
        Block { bytes, begin: 0, visible, served: AtomicU32::new(0) }
    }

    /// The bytes of a block from a place on.
    pub fn part(bytes: Vec<u8>, begin: u32) -> Self {
        let visible = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Block { bytes, begin, visible, served: AtomicU32::new(0) }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where in the block they begin.
    pub fn begin(&self) -> u32 {
        self.begin
    }

    /// Whether it has this part of the block.
    pub fn has(&self, part: &std::ops::Range<u32>) -> bool {
        part.start >= self.begin && u64::from(part.end) <= u64::from(self.begin).saturating_add(self.bytes.len() as u64)
    }

    /// So many bytes more were read. Whether all are.
    pub fn serve(&self, bytes: u64) -> bool {
        let before = self.served.fetch_add(u32::try_from(bytes).unwrap_or(u32::MAX), Relaxed);
        u64::from(before).saturating_add(bytes) >= self.visible.into()
    }
}

/// What is known of a block; where it is not ready, how long it will be.
pub enum Slot {
    Ready(Arc<Block>),
    /// It waits for its turn.
    Waiting(u32),
    /// Somebody decodes it.
    Busy(u32),
}

impl Slot {
    fn weight(&self) -> u64 {
        match self {
            Slot::Ready(block) => OVERHEAD + block.bytes.len() as u64,
            Slot::Waiting(len) | Slot::Busy(len) => cost(*len),
        }
    }
}

/// Asks that a block be kept until it is read to its end.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// How many bytes all kept blocks may have: what is over is for those that pass through.
    pub most: u64,
    /// A block that nobody has come back to while so many bytes were decoded is kept no longer.
    pub patience: u64,
}

struct Kept {
    slot: Slot,
    patience: u64,
    /// What [`Memory::clock`] said when it was used last.
    used: u64,
}

/// See the module.
pub struct Memory {
    limit: u64,
    passing: LruCache<BlockKey, Slot>,
    kept: LruCache<BlockKey, Kept>,
    kept_bytes: u64,
    /// Bytes of all slots.
    bytes: u64,
    /// What the blocks that wait for their turn take.
    waiting: u64,
    /// Bytes of all slots that there ever were.
    clock: u64,
    /// Buffers to be used again; with them, too, the limit is kept.
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
}

impl Memory {
    pub fn new(limit: u64) -> Self {
        Memory {
            limit,
            passing: LruCache::unbounded(),
            kept: LruCache::unbounded(),
            kept_bytes: 0,
            bytes: 0,
            waiting: 0,
            clock: 0,
            spare: Vec::new(),
            spare_bytes: 0,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Bytes for blocks that pass through.
    pub fn room(&self) -> u64 {
        self.limit.saturating_sub(self.kept_bytes)
    }

    /// What is known of a block, which is used now.
    pub fn get(&mut self, key: &BlockKey) -> Option<&Slot> {
        if let Some(slot) = self.passing.get(key) {
            return Some(slot);
        }
        if self.kept.is_empty() {
            return None;
        }
        let kept = self.kept.get_mut(key)?;
        kept.used = self.clock;
        Some(&kept.slot)
    }

    pub fn contains(&self, key: &BlockKey) -> bool {
        self.passing.contains(key) || self.kept.contains(key)
    }

    /// Changes what is known of a block.
    pub fn set(&mut self, key: &BlockKey, slot: Slot) {
        let new = slot.weight();
        let (mut old, mut waited) = (0, 0);
        let change = |place: &mut Slot| {
            old = place.weight();
            if let Slot::Waiting(len) = place {
                waited = cost(*len);
            }
            *place = slot;
        };
        if let Some(place) = self.passing.peek_mut(key) {
            change(place);
        } else if let Some(kept) = self.kept.peek_mut(key) {
            change(&mut kept.slot);
            self.kept_bytes = (self.kept_bytes + new).saturating_sub(old);
        } else {
            return;
        }
        self.bytes = (self.bytes + new).saturating_sub(old);
        self.waiting -= waited;
        self.trim();
    }

    /// Adds a block, and makes room for it.
    pub fn insert(&mut self, key: BlockKey, slot: Slot, keep: Option<Keep>) {
        self.remove(&key);
        let weight = slot.weight();
        self.bytes += weight;
        self.clock += weight;
        if let Slot::Waiting(len) = slot {
            self.waiting += cost(len);
        }
        self.release();
        match keep {
            Some(Keep { most, patience }) if self.kept_bytes + weight <= most => {
                self.kept_bytes += weight;
                self.kept.put(key, Kept { slot, patience, used: self.clock });
            }
            _ => drop(self.passing.put(key, slot)),
        }
        self.trim();
    }

    /// Keeps no longer what nobody has come back to.
    fn release(&mut self) {
        while let Some((_, oldest)) = self.kept.peek_lru()
            && oldest.used.saturating_add(oldest.patience) < self.clock
            && let Some((key, kept)) = self.kept.pop_lru()
        {
            self.kept_bytes -= kept.slot.weight();
            self.passing.put(key, kept.slot);
            self.passing.demote(&key);
        }
    }

    fn trim(&mut self) {
        while self.bytes + self.spare_bytes as u64 > self.limit
            && let Some(spare) = self.spare.pop()
        {
            self.spare_bytes -= spare.capacity();
        }
        let mut tries = self.passing.len();
        while self.bytes > self.limit && tries > 0 {
            tries -= 1;
            let Some((oldest, slot)) = self.passing.pop_lru() else { return };
            match slot {
                Slot::Ready(block) => {
                    self.bytes -= OVERHEAD + block.bytes.len() as u64;
                    self.reuse(block);
                }
                // Somebody counts on it.
                slot => drop(self.passing.put(oldest, slot)),
            }
        }
    }

    pub fn remove(&mut self, key: &BlockKey) {
        let slot = self.passing.pop(key).or_else(|| {
            let kept = self.kept.pop(key)?;
            self.kept_bytes -= kept.slot.weight();
            Some(kept.slot)
        });
        if let Some(slot) = slot {
            self.bytes -= slot.weight();
            if let Slot::Waiting(len) = slot {
                self.waiting -= cost(len);
            }
        }
    }

    /// Removes all blocks that `is_gone` says.
    pub fn remove_all(&mut self, is_gone: impl Fn(&BlockKey) -> bool) {
        let keys = self.passing.iter().map(|(key, _)| key).chain(self.kept.iter().map(|(key, _)| key));
        let gone: Vec<BlockKey> = keys.filter(|key| is_gone(key)).copied().collect();
        gone.iter().for_each(|key| self.remove(key));
    }

    /// A block was read to its end.
    pub fn finished(&mut self, key: &BlockKey, block: Arc<Block>) {
        if matches!(self.get(key), Some(Slot::Ready(now)) if Arc::ptr_eq(now, &block)) {
            self.remove(key);
        }
        self.reuse(block);
    }

    pub fn buffer(&mut self, len: usize) -> Option<Vec<u8>> {
        let fits = |spare: &Vec<u8>| spare.capacity() >= len && spare.capacity() / 2 <= len;
        let n = self.spare.iter().rposition(fits)?;
        let buffer = self.spare.swap_remove(n);
        self.spare_bytes -= buffer.capacity();
        Some(buffer)
    }

    /// Uses the buffer of a block again that nobody else has any more.
    fn reuse(&mut self, block: Arc<Block>) {
        let Some(Block { bytes, .. }) = Arc::into_inner(block) else { return };
        if self.bytes + (self.spare_bytes + bytes.capacity()) as u64 <= self.limit {
            self.spare_bytes += bytes.capacity();
            self.spare.push(bytes);
        }
    }
}
