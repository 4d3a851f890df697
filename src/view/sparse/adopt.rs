//! Taking an index: whether all that it names is there and fits, and what becomes of what it does not name any more.
//!
//! The library writes the index in four rounds for each change, and the file is looked at whenever it is whole. Only what differs
//! from the adopted index is: to replace a chunk costs the same in a frame of any size.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use log::{debug, warn};

use super::state::{Held, Sparse, number, stored};
use crate::format::index_file::IndexFile;
use crate::format::{self, ChunkId, IndexEntry};
use crate::store::FrameStore;
use crate::view::frame_view::{FrameView, Take};
use crate::view::nodes::Name;
use crate::view::single::State;
use crate::view::{Inval, Invals, ROOT, Result};

impl State<Sparse> {
    /// Adopts an index that parses, whose bytes are in `index_bytes`, or keeps it until what it names is there.
    pub(super) fn consider(&mut self, index: IndexFile, store: &dyn FrameStore, invals: &mut Invals) -> Result<()> {
        let changed = self.frame.changed(&index);
        let missing = self.frame.missing(&index, &changed);
        self.frame.touch();
        if !missing.is_empty() {
            debug!("the index is held: {} chunks that it names are not there", missing.len());
            self.frame.held = Held::Waiting(Box::new(index), missing);
            return Ok(());
        }
        if let Some(error) = self.frame.misfit(&index, &changed, store)? {
            warn!("the index is held: {error}");
            self.frame.held = Held::Unparsed;
            return Ok(());
        }
        let bytes = self.frame.index_bytes.clone().unwrap_or_default();
        self.adopt_changes(index, &changed, bytes, store, invals);
        Ok(())
    }

    /// Makes `index`, all of whose chunks are there, the one that files take their places from. Chunks that the one before
    /// named and this one does not are dropped.
    pub(super) fn adopt(&mut self, index: IndexFile, bytes: Arc<Vec<u8>>, store: &dyn FrameStore, invals: &mut Invals) {
        let changed = self.frame.changed(&index);
        self.adopt_changes(index, &changed, bytes, store, invals);
    }

    fn adopt_changes(
        &mut self,
        index: IndexFile,
        changed: &Range<usize>,
        bytes: Arc<Vec<u8>>,
        store: &dyn FrameStore,
        invals: &mut Invals,
    ) {
        let old = self.frame.adopted.take();
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
                    fresh.insert(*id, chunk.nbytes);
                }
                !named
            });
            for id in stored(old) {
                if self.frame.table.get(id).position().is_none()
                    && let Ok(Some(ino)) = self.unlink(&Name::Frame(number(id)), Take::Dropped, store)
                {
                    invals.push(Inval::Entry(ROOT, self.frame.name(number(id))));
                    invals.push(Inval::Attr(ino));
                }
            }
        }
        self.frame.removed.clear();
        self.frame.adopted = Some(index);
        self.frame.index_bytes = Some(bytes);
        self.frame.held = Held::No;
        self.frame.index_stale = false;
        self.frame.changed_frame();
        self.frame.index_changed = self.frame.changes;
        self.frame.touch();
    }
}

impl Sparse {
    /// Where an index may differ from the adopted one: outside, both have the same entries at the same positions. If it is another
    /// number of entries, that is everything from the first that differs. `table` has the positions of all of them.
    fn changed(&self, index: &IndexFile) -> Range<usize> {
        let Some(old) = self.adopted.as_ref().filter(|_| !self.named_twice) else { return 0..usize::MAX };
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

    /// Chunks that an index names and that are not there: of what the adopted index names as well, those that were removed.
    fn missing(&self, index: &IndexFile, changed: &Range<usize>) -> HashSet<ChunkId> {
        let is_missing = |id: &ChunkId| self.table.get(*id).key().is_none();
        let stays = |id: &ChunkId| self.table.get(*id).position().is_some_and(|position| !changed.contains(&(position as usize)));
        let removed = self.removed.keys().copied().filter(|id| stays(id) && is_missing(id));
        removed.chain(stored(part(&index.entries, changed)).filter(is_missing)).collect()
    }

    /// The first chunk that does not fit where a new index puts it. Chunks that fitted before are not looked at again.
    fn misfit(&self, index: &IndexFile, changed: &Range<usize>, store: &dyn FrameStore) -> Result<Option<format::Error>> {
        let chunksize = index.header.chunksize();
        let rescan = self.adopted.as_ref().is_none_or(|old| old.header.chunksize() != chunksize) && chunksize != 0;
        if chunksize == 0 || (self.fresh.is_empty() && self.unnamed.is_empty() && !rescan) {
            return Ok(None);
        }
        let changed = if rescan { 0..usize::MAX } else { changed.clone() };
        for (id, nbytes) in &self.fresh {
            if let Some(position) = self.table.get(*id).position().filter(|position| !changed.contains(&(*position as usize)))
                && let Err(error) = index.fit(position.into()).check(*nbytes)
            {
                return Ok(Some(error));
            }
        }
        for (position, entry) in (changed.start as u64..).zip(part(&index.entries, &changed)) {
            let IndexEntry::Stored(id) = entry else { continue };
            let nbytes = match self.fresh.get(id).copied().or_else(|| self.unnamed.get(id).map(|chunk| chunk.nbytes)) {
                Some(nbytes) => nbytes,
                None if !rescan => continue,
                None => {
                    let guard = store.enter();
                    let Some(key) = self.table.get(*id).key() else { continue };
                    store.chunk_header(&guard, key)?.nbytes
                }
            };
            if let Err(error) = index.fit(position).check(nbytes) {
                return Ok(Some(error));
            }
        }
        Ok(None)
    }
}

/// As much of a range as there is.
fn part<'a>(entries: &'a [IndexEntry<ChunkId>], range: &Range<usize>) -> &'a [IndexEntry<ChunkId>] {
    let end = range.end.min(entries.len());
    entries.get(range.start.min(end)..end).unwrap_or_default()
}
