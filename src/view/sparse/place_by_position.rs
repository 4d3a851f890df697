//! Chunk files written by hand take their places by position, once nothing changes any more.

use std::sync::Arc;

use log::{info, warn};

use super::state::{HeldIndex, Numbering, Sparse, Unnamed, stored};
use crate::format::chunk::Traits;
use crate::format::header::FrameHeader;
use crate::format::index_file::{IndexFile, KnownIndex};
use crate::format::{ChunkId, IndexEntry, Kept, Rules, Special};
use crate::view::single::{Single, State};
use crate::view::{Invalidation, Invalidations, Result, ViewError};

impl Single<Sparse> {
    /// Settles, if there is something to settle.
    pub(super) fn settle(&self, invalidations: &mut Invalidations) -> Result<()> {
        let mut state = self.state.write();
        if std::mem::take(&mut state.frame.unsettled) {
            state.settle(invalidations)?;
            while state.frame.needs_sizes() {
                drop(state);
                state = self.change_knowing(Sparse::needed_sizes)?;
                state.settle(invalidations)?;
            }
        }
        Ok(())
    }
}

impl State<Sparse> {
    /// While the index file is held nothing takes a place: what comes next may be the index that says where.
    fn settle(&mut self, invalidations: &mut Invalidations) -> Result<()> {
        match std::mem::replace(&mut self.frame.held, HeldIndex::Unparsed) {
            HeldIndex::No => self.frame.held = HeldIndex::No,
            // Chunks that were removed before the index was written again, by a writer who did not care.
            HeldIndex::Waiting(mut index, missing) if missing.iter().all(|id| self.frame.removed.contains_key(id)) => {
                let entries = index.entries.iter().map(|entry| match entry {
                    IndexEntry::Stored(id) if missing.contains(id) => IndexEntry::Special(Special::Uninit),
                    entry => *entry,
                });
                index.entries = Arc::new(entries.collect());
                self.apply_or_hold(*index, invalidations);
                if !matches!(self.frame.held, HeldIndex::No) {
                    return Ok(());
                }
                self.frame.index_stale = true;
            }
            held => {
                self.frame.held = held;
                return Ok(());
            }
        }
        if self.index_ino().is_none() {
            return Ok(());
        }
        if let Some(placed) = self.frame.place_by_position() {
            let Placed { index, special } = placed;
            let bytes = self.frame.index_bytes.clone().unwrap_or_default();
            let written = self.frame.index_changed;
            self.apply_index(index, bytes, invalidations);
            special.into_iter().for_each(|(id, position, chunk)| self.frame.note_special(id, position, chunk));
            // It was not the client who wrote the index: chunk files that found no place yet may find one later.
            self.frame.index_changed = written;
            self.frame.index_stale = true;
        }
        if self.frame.index_stale {
            self.rewrite_index(invalidations)?;
        }
        // Settling itself is no change to settle.
        self.frame.unsettled = false;
        Ok(())
    }

    /// Whether the index file is no index, and nobody has it open for writing.
    pub(super) fn index_is_left_behind(&self) -> bool {
        let writers = self.index_ino().map(|ino| self.nodes.writers(ino));
        matches!(self.frame.held, HeldIndex::Unparsed)
            && self.frame.applied.is_some()
            && writers == Some(0)
            && !self.frame.has_misfit()
    }

    /// Drops an index file that is no index, if nobody has it open for writing: it is the applied one again.
    pub(super) fn drop_index(&mut self, invalidations: &mut Invalidations) -> Result<()> {
        let Some(ino) = self.index_ino().filter(|_| self.index_is_left_behind()) else { return Ok(()) };
        warn!("the bytes written to the index are dropped, because they are not an index");
        self.end_writing(ino, false);
        self.frame.held = HeldIndex::No;
        self.rewrite_index(invalidations)
    }

    /// Makes the index file say what `applied` says.
    pub(super) fn rewrite_index(&mut self, invalidations: &mut Invalidations) -> Result<()> {
        let ino = self.index_ino();
        let (Some(index), Some(ino)) = (&mut self.frame.applied, ino) else { return Ok(()) };
        let file = index.make_file_knowing(self.frame.known_index.as_deref()).map_err(ViewError::Rejected)?;
        self.frame.known_index = Some(Arc::new(KnownIndex::of(&file, index)));
        self.frame.index_bytes = Some(Arc::new(file));
        self.frame.index_stale = false;
        self.frame.changed_frame();
        if let Ok(node) = self.node(ino) {
            node.meta.mtime = std::time::SystemTime::now();
        }
        invalidations.push(Invalidation::Data(ino));
        Ok(())
    }
}

/// An index that chunk files ask for.
struct Placed {
    index: IndexFile,
    /// The files that it has as special entries, and where.
    special: Vec<(ChunkId, u32, Traits)>,
}

/// Whether the next chunk of a frame is the first, and says how large chunks are.
fn is_first(header: &FrameHeader, count: usize) -> bool {
    count == 0 && !header.fields().varying_chunks
}

impl Sparse {
    /// The index that chunk files ask for: removed chunks uninitialised, special positions filled, new ones appended.
    fn place_by_position(&self) -> Option<Placed> {
        let applied = self.applied.as_ref()?;
        let candidates = self.unnamed.iter().filter(|(_, chunk)| chunk.accepted > self.index_changed);
        let candidates: Vec<(ChunkId, Unnamed)> = candidates.map(|(id, chunk)| (*id, *chunk)).collect();
        if self.removed.is_empty() && candidates.is_empty() {
            return None;
        }
        let mut index = applied.clone();
        let entries = Arc::make_mut(&mut index.entries);
        let mut cbytes = index.header.cbytes();
        let mut nbytes = index.header.nbytes();
        let mut chunksize = index.header.chunksize();
        if !self.removed.is_empty() {
            info!("{} chunks were removed", self.removed.len());
            let removed = |entry: &IndexEntry<ChunkId>| matches!(entry, IndexEntry::Stored(id) if self.removed.contains_key(id));
            if chunksize == 0 {
                // Nothing would say how large an uninitialised chunk among chunks of varying size is, and C-Blosc2 divides by
                // the chunksize when it meets one: the positions go.
                entries.retain(|entry| !removed(entry));
                nbytes = nbytes.saturating_sub(self.removed.values().map(|size| u64::from(*size)).sum());
            } else {
                entries.iter_mut().filter(|entry| removed(entry)).for_each(|entry| *entry = IndexEntry::Special(Special::Uninit));
            }
        }
        let mut placed = false;
        let rules = Rules::of(&applied.header);
        let mut special = Vec::new();
        let known = stored(entries).chain(self.special_files.keys().copied());
        let mut next_id = known.map(|id| u64::from(id.0) + 1).max().unwrap_or(0);
        for (id, Unnamed { traits, entry, .. }) in candidates {
            let (slot, count) = (self.table.get(id), entries.len());
            let (size, at) = (traits.nbytes, entry.map(|position| position as usize));
            let at = at.filter(|position| matches!(entries.get(*position), Some(IndexEntry::Special(_))));
            let position = match (at, self.numbering) {
                (Some(position), _) => position,
                (None, Numbering::ByPosition) => id.0 as usize,
                (None, Numbering::ById) if u64::from(id.0) == next_id => count,
                (None, Numbering::ById) => continue,
            };
            let last = position + 1 >= count;
            // The first chunk gives the chunk size.
            let sized = rules.with_chunksize(if chunksize == 0 && is_first(&index.header, count) { size } else { chunksize });
            let Ok(kept) = sized.at(position as u64, count as u64).keep(&traits) else { continue };
            let new = match kept {
                Kept::Stored => IndexEntry::Stored(id),
                Kept::Entry(value) => IndexEntry::Special(value),
            };
            match entries.get_mut(position) {
                // The size of a special chunk among chunks of varying size is nowhere but in nbytes.
                Some(entry @ IndexEntry::Special(_)) if chunksize != 0 => {
                    *entry = new;
                    if last {
                        nbytes = position as u64 * u64::from(chunksize) + u64::from(size);
                    }
                }
                None if position == count && size > 0 => {
                    if chunksize == 0 && is_first(&index.header, count) {
                        chunksize = size;
                        index.header.set_chunksize(size);
                    }
                    // Nothing follows a short last chunk.
                    if chunksize != 0 && nbytes != count as u64 * u64::from(chunksize) {
                        continue;
                    }
                    entries.push(new);
                    next_id += 1;
                    nbytes = nbytes.saturating_add(u64::from(size));
                }
                _ => continue,
            }
            placed = true;
            if let Kept::Entry(_) = kept {
                special.push((id, position as u32, traits));
                continue;
            }
            cbytes = cbytes.saturating_add(u64::from(slot.len().unwrap_or(0)));
        }
        if !placed && self.removed.is_empty() {
            return None;
        }
        index.header.set_nbytes(nbytes);
        index.header.set_cbytes(cbytes);
        Some(Placed { index, special })
    }

    /// Chunk files that no index names: the names and ids of what would be lost with the mount.
    pub(super) fn without_place(&self) -> Vec<ChunkId> {
        match (&self.applied, &self.held) {
            // Nothing was ever committed, or the index was taken away: no file has a place.
            (None, _) => self.table.files_from(0).filter(|(_, slot)| slot.key().is_some()).map(|(id, _)| id).collect(),
            _ => self.unnamed.keys().copied().collect(),
        }
    }

    /// Chunks accepted since the last commit, named or not.
    pub(super) fn uncommitted(&self) -> Vec<ChunkId> {
        let mut ids: Vec<ChunkId> = self.fresh.keys().copied().collect();
        ids.sort_unstable();
        ids
    }
}
