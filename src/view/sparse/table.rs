//! Which chunk file holds what: from ids to stored chunks, at 16 bytes an id.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::format::ChunkId;
use crate::store::ChunkKey;

/// No index names the chunk.
const UNNAMED: u32 = u32::MAX;
/// There is no chunk.
const ABSENT: u64 = u64::MAX;
/// Ids this far beyond the dense part still lengthen it, so that files made a little out of order do not end in the map.
const REACH: usize = 4096;

/// What is known of one id.
#[derive(Debug)]
pub struct Slot {
    /// The chunk's key, or [`ABSENT`].
    key: u64,
    /// The chunk's length; 0 while nobody has asked for it. Written under the shared lock, hence atomic.
    len: AtomicU32,
    /// The chunk's position in the index, or [`UNNAMED`].
    position: u32,
}

impl Slot {
    const fn none() -> Slot {
        Slot { key: ABSENT, len: AtomicU32::new(0), position: UNNAMED }
    }

    /// The accepted chunk.
    pub fn key(&self) -> Option<ChunkKey> {
        (self.key != ABSENT).then(|| ChunkKey::new(self.key))
    }

    /// The accepted chunk's length, once known.
    pub fn len(&self) -> Option<u32> {
        match self.len.load(Ordering::Relaxed) {
            0 => None,
            len => Some(len),
        }
    }

    /// Remembers the length of the chunk in this slot.
    pub fn learn_len(&self, len: u32) {
        self.len.store(len, Ordering::Relaxed);
    }

    /// Where the index names the chunk.
    pub fn position(&self) -> Option<u32> {
        (self.position != UNNAMED).then_some(self.position)
    }
}

/// Slots by id: an array for ids near those of the frame, a map for the few that are far off.
#[derive(Debug, Default)]
pub struct Table {
    dense: Vec<Slot>,
    /// Ids of `dense.len()` and more.
    sparse: BTreeMap<u32, Slot>,
}

impl Table {
    /// A table for `count` ids without files.
    pub fn with_len(count: usize) -> Self {
        let mut dense = Vec::new();
        dense.resize_with(count, Slot::none);
        Table { dense, sparse: BTreeMap::new() }
    }

    /// What is known of an id; absent ids read as a slot without a chunk.
    pub fn get(&self, id: ChunkId) -> &Slot {
        static NONE: Slot = Slot::none();
        self.dense.get(id.0 as usize).or_else(|| self.sparse.get(&id.0)).unwrap_or(&NONE)
    }

    #[expect(clippy::indexing_slicing, reason = "ids up to the one that the table was lengthened for")]
    fn get_mut(&mut self, id: ChunkId) -> &mut Slot {
        let index = id.0 as usize;
        if index >= self.dense.len() && index < self.dense.len() + REACH {
            let far = self.sparse.split_off(&id.0.saturating_add(1));
            let near = std::mem::replace(&mut self.sparse, far);
            self.dense.resize_with(index + 1, Slot::none);
            for (id, slot) in near {
                self.dense[id as usize] = slot;
            }
        }
        match self.dense.get_mut(index) {
            Some(slot) => slot,
            None => self.sparse.entry(id.0).or_insert_with(Slot::none),
        }
    }

    /// Holds an accepted chunk for the id; answers the one it held before.
    pub fn set_chunk(&mut self, id: ChunkId, key: ChunkKey, len: u32) -> Option<ChunkKey> {
        let slot = self.get_mut(id);
        let old = slot.key();
        slot.key = key.number();
        slot.len = AtomicU32::new(len);
        old
    }

    /// Takes the chunk away; answers it and its length. The position stays until the index changes.
    pub fn remove(&mut self, id: ChunkId) -> Option<(ChunkKey, Option<u32>)> {
        let slot = self.get_mut(id);
        let old = slot.key().map(|key| (key, slot.len()));
        slot.key = ABSENT;
        slot.len = AtomicU32::new(0);
        old
    }

    /// Notes where the index names the id.
    pub fn set_position(&mut self, id: ChunkId, position: Option<u32>) {
        self.get_mut(id).position = position.unwrap_or(UNNAMED);
    }

    /// The chunks from an id upwards.
    #[expect(clippy::indexing_slicing, reason = "the start is within the table")]
    pub fn files_from(&self, first: u64) -> impl Iterator<Item = (ChunkId, &Slot)> {
        let start = usize::try_from(first).unwrap_or(usize::MAX).min(self.dense.len());
        let dense = self.dense[start..].iter().enumerate().map(move |(n, slot)| ((start + n) as u32, slot));
        let sparse =
            u32::try_from(first).ok().into_iter().flat_map(|first| self.sparse.range(first..)).map(|(id, slot)| (*id, slot));
        dense.chain(sparse).filter(|(_, slot)| slot.key().is_some()).map(|(id, slot)| (ChunkId(id), slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_ids_join_the_dense_part_when_it_reaches_them() {
        let mut table = Table::with_len(2);
        table.set_chunk(ChunkId(u32::MAX), ChunkKey::new(7), 1);
        table.set_chunk(ChunkId(5000), ChunkKey::new(5), 1);
        table.set_chunk(ChunkId(1), ChunkKey::new(1), 1);
        for id in (0..6000).step_by(1000) {
            table.set_chunk(ChunkId(id), ChunkKey::new(id.into()), 1);
        }
        let ids: Vec<u32> = table.files_from(0).map(|(id, _)| id.0).collect();
        assert_eq!(ids, [0, 1, 1000, 2000, 3000, 4000, 5000, u32::MAX]);
        assert_eq!(table.get(ChunkId(5000)).key(), Some(ChunkKey::new(5000)));
        assert_eq!(table.files_from(4001).count(), 2);
        assert_eq!(table.files_from(u64::from(u32::MAX) + 1).count(), 0);
        assert_eq!(table.remove(ChunkId(5000)), Some((ChunkKey::new(5000), Some(1))));
        assert_eq!(table.get(ChunkId(5000)).key(), None);
        assert_eq!(table.get(ChunkId(2)).key(), None);
    }

    #[test]
    fn positions_outlive_the_file_until_the_index_changes() {
        let mut table = Table::with_len(3);
        table.set_chunk(ChunkId(2), ChunkKey::new(9), 4);
        table.set_position(ChunkId(2), Some(0));
        table.remove(ChunkId(2));
        assert_eq!(table.get(ChunkId(2)).position(), Some(0));
        table.set_position(ChunkId(2), None);
        assert_eq!(table.get(ChunkId(2)).position(), None);
    }
}
