//! Chunk files whose chunks are special entries of the index: zeros, NaN, uninitialised.
//!
//! C-Blosc2 stores no such chunk, and opens no frame that does. A client that copies one over a chunk file still sees the bytes that it
//! wrote, with their time, until the mount ends: the file keeps its chunk, and the index has an entry in its place.

use std::sync::Arc;

use super::state::{HeldIndex, Sparse, SpecialFile};
use crate::format::chunk::Traits;
use crate::format::index_file::IndexFile;
use crate::format::{ChunkId, IndexEntry, Kept, Rules, Special};
use crate::view::Invalidations;
use crate::view::single::State;

/// Indexes of no more entries are written again at once when an entry becomes a special one. Larger ones are when the mount settles.
const PROMPT: usize = 4096;

impl Sparse {
    /// Where a chunk file's special entry is, or the one that its chunk is to replace.
    pub(super) fn entry_of(&self, id: ChunkId) -> Option<u32> {
        let waiting = self.unnamed.get(&id).and_then(|chunk| chunk.entry);
        let position = self.special_files.get(&id).and_then(|file| file.position).or(waiting)?;
        let entry = self.applied.as_ref()?.entries.get(position as usize)?;
        matches!(entry, IndexEntry::Special(_)).then_some(position)
    }

    /// Where a chunk becomes a special entry of the applied index, if it is such a chunk and has a place.
    pub(super) fn place_of_special(&self, id: ChunkId, chunk: &Traits) -> Option<(u32, Special)> {
        let special = chunk.special()?;
        let index = self.applied.as_ref()?;
        let position = self.table.get(id).position().or_else(|| self.entry_of(id))?;
        let fit = Rules::of(&index.header).at(position.into(), index.entries.len() as u64);
        matches!(fit.keep(chunk), Ok(Kept::Entry(_))).then_some((position, special))
    }

    /// Gives a chunk file's place in the applied index to a special entry.
    pub(super) fn set_special(&mut self, id: ChunkId, position: u32, special: Special, traits: Traits) {
        if let Some(index) = &mut self.applied {
            let entries = Arc::make_mut(&mut index.entries);
            if let Some(entry) = entries.get_mut(position as usize) {
                *entry = IndexEntry::Special(special);
            }
            if self.named_twice {
                let named = entries.iter_mut().filter(|entry| **entry == IndexEntry::Stored(id));
                named.for_each(|entry| *entry = IndexEntry::Special(special));
            }
        }
        self.table.set_position(id, None);
        self.removed.remove(&id);
        self.note_special(id, position, traits);
        self.index_stale = true;
        self.changed_frame();
    }

    /// Notes that an entry of the applied index is a chunk file's.
    pub(super) fn note_special(&mut self, id: ChunkId, position: u32, traits: Traits) {
        self.unnamed.remove(&id);
        self.special_files.insert(id, SpecialFile { traits, position: Some(position) });
        self.fresh.insert(id, traits);
    }

    /// Makes special entries of an index's chunks that are special. Returns which, and where.
    pub(super) fn make_entries(&self, index: &mut IndexFile) -> Vec<(ChunkId, u32, Traits)> {
        let is_special = |chunk: &Traits| chunk.special().is_some();
        if self.special_files.is_empty() && !self.fresh.values().chain(self.unnamed.values().map(|it| &it.traits)).any(is_special)
        {
            return Vec::new();
        }
        let chunk = |id: &ChunkId| {
            let unnamed = self.unnamed.get(id).map(|chunk| chunk.traits);
            unnamed.or_else(|| self.fresh.get(id).copied()).or_else(|| self.special_files.get(id).map(|file| file.traits))
        };
        let named = (0u32..).zip(index.entries.iter());
        let made = named.filter_map(|(position, entry)| {
            let id = entry.stored()?;
            chunk(&id).filter(is_special).map(|chunk| (id, position, chunk))
        });
        let made: Vec<_> = made.collect();
        if !made.is_empty() {
            let entries = Arc::make_mut(&mut index.entries);
            for (_, position, chunk) in &made {
                if let (Some(entry), Some(special)) = (entries.get_mut(*position as usize), chunk.special()) {
                    *entry = IndexEntry::Special(special);
                }
            }
        }
        made
    }

    /// Forgets the entry of a chunk file that is about to be replaced. Returns what is to be known of it again.
    pub(super) fn set_aside(&mut self, id: ChunkId) -> Option<SpecialFile> {
        let position = self.entry_of(id);
        let unnamed = self.unnamed.remove(&id).map(|chunk| chunk.traits);
        let traits = self.special_files.remove(&id).map(|file| file.traits).or(unnamed)?;
        position.map(|_| SpecialFile { traits, position })
    }

    /// Notes that a chunk file is removed: its entry, if it had one, becomes uninitialised.
    pub(super) fn remove_special(&mut self, id: ChunkId) {
        let position = self.entry_of(id);
        self.special_files.remove(&id);
        let entries = self.applied.as_mut().map(|index| Arc::make_mut(&mut index.entries));
        if let Some(entry) = entries.zip(position).and_then(|(entries, position)| entries.get_mut(position as usize)) {
            *entry = IndexEntry::Special(Special::Uninit);
            self.index_stale = true;
            self.changed_frame();
        }
    }

    /// Whether a chunk that no commit has taken does not fit the applied index.
    pub(super) fn has_misfit(&self) -> bool {
        let Some(index) = &self.applied else { return false };
        let (rules, count) = (Rules::of(&index.header), index.entries.len() as u64);
        self.fresh.iter().any(|(id, chunk)| {
            let position = self.table.get(*id).position();
            position.is_some_and(|position| rules.at(position.into(), count).check(chunk).is_err())
        })
    }
}

impl State<Sparse> {
    /// Writes the index file again after an entry became a special one, where that is cheap.
    pub(super) fn rewrite_promptly(&mut self, invalidations: &mut Invalidations) {
        let frame = &self.frame;
        let is_small = frame.applied.as_ref().is_some_and(|index| index.entries.len() <= PROMPT);
        if frame.index_stale && is_small && matches!(frame.held, HeldIndex::No) {
            // What cannot be made into a file is told when the mount settles.
            let _ = self.rewrite_index(invalidations);
        }
    }
}
