//! Taking an index: whether all that it names is there and fits, and what becomes of what it does not name any more.
//!
//! The library writes the index in four rounds for each change, and the file is looked at whenever it is whole. Only what differs
//! from the applied index is: to replace a chunk costs the same in a frame of any size.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use log::{debug, warn};

use super::state::{HeldIndex, Sparse, number, stored};
use crate::format::index_file::IndexFile;
use crate::format::{self, ChunkId, IndexEntry, Rules};
use crate::store::ChunkKey;
use crate::view::frame_view::{FrameView, Take};
use crate::view::nodes::Name;
use crate::view::single::{Single, State};
use crate::view::{Invalidation, Invalidations, ROOT, Result};

impl State<Sparse> {
    /// Adopts an index that parses, whose bytes are in `index_bytes`, or keeps it until what it names is there.
    pub(super) fn apply_or_hold(&mut self, index: IndexFile, invalidations: &mut Invalidations) {
        let changed = self.frame.changed(&index);
        let missing = self.frame.missing(&index, &changed);
        self.frame.touch();
        if !missing.is_empty() {
            debug!("the index is held: {} chunks that it names are not there", missing.len());
            self.frame.held = HeldIndex::Waiting(Box::new(index), missing);
            return;
        }
        match self.frame.misfit(&index, &changed) {
            Err(unmeasured) => {
                debug!("the index is held: the sizes of {} chunks have to be read", unmeasured.len());
                self.frame.held = HeldIndex::Waiting(Box::new(index), HashSet::new());
                return;
            }
            Ok(Some(error)) => {
                warn!("the index is held: {error}");
                self.frame.held = HeldIndex::Unparsed;
                return;
            }
            Ok(None) => {}
        }
        let bytes = self.frame.index_bytes.clone().unwrap_or_default();
        let mut index = index;
        let special = self.frame.make_entries(&mut index);
        let changed = if special.is_empty() { changed } else { self.frame.changed(&index) };
        let count = self.frame.applied.as_ref().map(|old| old.entries.len());
        let is_known = |position: u32| count == Some(index.entries.len()) && !changed.contains(&(position as usize));
        for position in self.frame.special_files.values_mut().map(|file| &mut file.position) {
            *position = position.filter(|position| is_known(*position));
        }
        for entry in self.frame.unnamed.values_mut().map(|chunk| &mut chunk.entry) {
            *entry = entry.filter(|position| is_known(*position));
        }
        self.apply_changes(index, &changed, bytes, invalidations);
        if !special.is_empty() {
            for (id, position, chunk) in special {
                if self.frame.table.get(id).key().is_some() {
                    self.frame.note_special(id, position, chunk);
                }
            }
            self.frame.index_stale = true;
            self.rewrite_promptly(invalidations);
        }
    }

    /// Makes `index`, all of whose chunks are there, the one that files take their places from. Chunks that the one before
    /// named and this one does not are dropped.
    pub(super) fn apply_index(&mut self, index: IndexFile, bytes: Arc<Vec<u8>>, invalidations: &mut Invalidations) {
        let changed = self.frame.changed(&index);
        self.apply_changes(index, &changed, bytes, invalidations);
    }

    fn apply_changes(
        &mut self,
        index: IndexFile,
        changed: &Range<usize>,
        bytes: Arc<Vec<u8>>,
        invalidations: &mut Invalidations,
    ) {
        let old = self.frame.applied.take();
        let old = old.as_ref().map(|old| part(&old.entries, changed)).unwrap_or_default();
        let new = part(&index.entries, changed);
        if !(old.is_empty() && new.is_empty()) {
            for id in stored(old) {
                self.frame.table.set_position(id, None);
            }
            self.frame.named_twice = false;
            for (position, entry) in (changed.start as u32..).zip(new) {
                if let IndexEntry::Stored(id) = entry {
                    self.frame.named_twice |= self.frame.table.get(*id).position().is_some();
                    self.frame.table.set_position(*id, Some(position));
                }
            }
            let table = &self.frame.table;
            let fresh = &mut self.frame.fresh;
            self.frame.unnamed.retain(|id, chunk| {
                let named = table.get(*id).position().is_some();
                if named {
                    fresh.insert(*id, chunk.traits);
                }
                !named
            });
            for id in stored(old) {
                if self.frame.table.get(id).position().is_none()
                    && let Ok(Some(ino)) = self.unlink(&Name::Frame(number(id)), Take::Dropped)
                {
                    invalidations.push(Invalidation::Entry(ROOT, self.frame.name(number(id))));
                    invalidations.push(Invalidation::Attr(ino));
                }
            }
        }
        self.frame.removed.clear();
        self.frame.sizes.clear();
        self.frame.applied = Some(index);
        self.frame.index_bytes = Some(bytes);
        self.frame.held = HeldIndex::No;
        self.frame.index_stale = false;
        self.frame.changed_frame();
        self.frame.index_changed = self.frame.changes;
        self.frame.touch();
    }
}

impl Sparse {
    /// Where an index may differ from the applied one: outside, both have the same entries at the same positions. If it is another
    /// number of entries, that is everything from the first that differs. `table` has the positions of all of them.
    fn changed(&self, index: &IndexFile) -> Range<usize> {
        let Some(old) = self.applied.as_ref().filter(|_| !self.named_twice) else { return 0..usize::MAX };
        let (old, new) = (old.entries.as_slice(), index.entries.as_slice());
        if std::ptr::eq(old, new) {
            return 0..0;
        }
        let same = |(old, new): &(&IndexEntry<ChunkId>, &IndexEntry<ChunkId>)| old == new;
        let before = old.iter().zip(new).take_while(same).count();
        if old.len() != new.len() {
            return before..usize::MAX;
        }
        let behind = old.iter().zip(new).skip(before).rev().take_while(same).count();
        before..old.len() - behind
    }

    /// Chunks that an index names and that are not there: of what the applied index names as well, those that were removed.
    fn missing(&self, index: &IndexFile, changed: &Range<usize>) -> HashSet<ChunkId> {
        let is_missing = |id: &ChunkId| self.table.get(*id).key().is_none();
        let stays = |id: &ChunkId| self.table.get(*id).position().is_some_and(|position| !changed.contains(&(position as usize)));
        let removed = self.removed.keys().copied().filter(|id| stays(id) && is_missing(id));
        removed.chain(stored(part(&index.entries, changed)).filter(is_missing)).collect()
    }

    /// Whether an index is held only until sizes of chunks are read.
    pub(super) fn needs_sizes(&self) -> bool {
        matches!(&self.held, HeldIndex::Waiting(_, missing) if missing.is_empty())
    }

    /// Chunks whose sizes are.
    pub(super) fn needed_sizes(&self) -> Vec<ChunkKey> {
        match &self.held {
            HeldIndex::Waiting(index, missing) if missing.is_empty() => {
                self.misfit(index, &self.changed(index)).err().unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    /// The first chunk that does not fit where a new index puts it. Chunks that fitted before are not looked at again.
    ///
    /// # Errors
    /// Chunks whose sizes have to be known for that.
    fn misfit(&self, index: &IndexFile, changed: &Range<usize>) -> std::result::Result<Option<format::Error>, Vec<ChunkKey>> {
        let (rules, count) = (Rules::of(&index.header), index.entries.len() as u64);
        let old = self.applied.as_ref().map(|old| (&old.header, old.entries.as_slice()));
        if let Err(error) = Rules::check_frame(&index.header, &index.entries, old) {
            return Ok(Some(error));
        }
        let rescan = self.applied.as_ref().is_none_or(|old| !rules.allow_all_of(&Rules::of(&old.header)));
        if self.fresh.is_empty() && self.unnamed.is_empty() && !rescan {
            return Ok(None);
        }
        let changed = if rescan { 0..usize::MAX } else { changed.clone() };
        for (id, chunk) in &self.fresh {
            if let Some(position) = self.table.get(*id).position().filter(|position| !changed.contains(&(*position as usize)))
                && let Err(error) = rules.at(position.into(), count).keep(chunk)
            {
                return Ok(Some(error));
            }
        }
        let mut unmeasured = Vec::new();
        for (position, entry) in (changed.start as u64..).zip(part(&index.entries, &changed)) {
            let IndexEntry::Stored(id) = entry else { continue };
            let chunk = match self.unnamed.get(id).map(|chunk| chunk.traits).or_else(|| self.fresh.get(id).copied()) {
                Some(chunk) => chunk,
                None if !rescan && !self.special_files.contains_key(id) => continue,
                None => match self.size_of(*id) {
                    Some(size) => size.traits,
                    None => {
                        unmeasured.extend(self.table.get(*id).key());
                        continue;
                    }
                },
            };
            if let Err(error) = rules.at(position, count).keep(&chunk) {
                return Ok(Some(error));
            }
        }
        if unmeasured.is_empty() { Ok(None) } else { Err(unmeasured) }
    }
}

impl Single<Sparse> {
    /// Reads the sizes of chunks that an index is held for, and looks at it again.
    pub(super) fn apply_held(&self, invalidations: &mut Invalidations) -> Result<()> {
        if !self.state.read().frame.needs_sizes() {
            return Ok(());
        }
        let mut state = self.change_knowing(Sparse::needed_sizes)?;
        if state.frame.needs_sizes()
            && let HeldIndex::Waiting(index, _) = std::mem::replace(&mut state.frame.held, HeldIndex::Unparsed)
        {
            state.apply_or_hold(*index, invalidations);
        }
        Ok(())
    }
}

/// As much of a range as there is.
fn part<'a>(entries: &'a [IndexEntry<ChunkId>], range: &Range<usize>) -> &'a [IndexEntry<ChunkId>] {
    let end = range.end.min(entries.len());
    entries.get(range.start.min(end)..end).unwrap_or_default()
}
