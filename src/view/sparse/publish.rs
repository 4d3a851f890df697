//! When drafts are checked, which image is committed, and what is saved at the end.

use std::time::Instant;

use log::{debug, error};

use super::SETTLE_AFTER;
use super::state::{HeldIndex, INDEX, Sparse};
use super::write::Unfinished;
use crate::store::{ReadAt, StoredChunk};
use crate::view::content::Content;
use crate::view::names::INDEX_NAME;
use crate::view::nodes::Name;
use crate::view::single::{Place, Single, State};
use crate::view::{Ino, Invalidations, Lost, Result, ViewError};

impl State<Sparse> {
    /// Whether something is being written to the frame.
    pub(super) fn is_unfinished(&self) -> bool {
        let written = |ino: Ino| self.nodes.get(ino).is_some_and(|node| node.writing.is_some());
        let mut handles = self.nodes.handles().filter(|open| open.write && written(open.ino));
        handles.any(|open| matches!(self.place(open.ino), Ok(Place::Frame(_))))
    }
}

impl Single<Sparse> {
    pub(super) fn drop_unfinished(&self, invalidations: &mut Invalidations) {
        if self.state.read().index_is_left_behind()
            && let Err(error) = self.state.write().drop_index(invalidations)
        {
            error!("{}: {error}", self.store.path().display());
        }
    }

    /// What a read-write mount has to do now, and when again.
    pub(super) fn work(&self, now: Instant, invalidations: &mut Invalidations) -> Option<Instant> {
        let settle_at = {
            let frame = &self.state.read().frame;
            frame.unsettled.then_some(frame.last_change + SETTLE_AFTER)
        };
        let later = settle_at.filter(|at| *at > now);
        if settle_at.is_some()
            && later.is_none()
            && let Err(error) = self.settle(invalidations).and_then(|()| self.publish_in_turn())
        {
            error!("{error}");
        }
        [later, self.keep_times(now)].into_iter().flatten().min()
    }

    /// Checks files that are still open at a lazy unmount. Whole chunks are staged; no close has accepted the others.
    pub(super) fn close_all(&self, invalidations: &mut Invalidations) -> Result<()> {
        let open: Vec<_> = {
            let mut state = self.state.write();
            state.frame.unstored.clear();
            state.nodes.iter().filter(|(_, node)| node.writing.is_some()).map(|(ino, _)| ino).collect()
        };
        let mut closed = Ok(());
        for ino in open {
            match self.close_file(ino, Unfinished::Leave, invalidations) {
                Ok(()) | Err(ViewError::Rejected(_)) => {}
                Err(error) => {
                    debug!("{}: {error}", self.show(ino));
                    closed = closed.and(Err(error));
                }
            }
        }
        closed
    }

    /// Saves files that are not part of the frame, or with `all` everything that is not committed.
    pub(super) fn save_without_place(&self, all: bool) -> Vec<Lost> {
        let (mut ids, index, drafts, moved, version) = {
            let state = self.state.read();
            let frame = &state.frame;
            let unfinished = state.nodes.iter().filter(|_| all).filter_map(|(_, node)| match (&node.name, node.seen_writing()) {
                (Some(name @ Name::Frame(file)), Some(writing)) if *file != INDEX => Some((state.text(name), writing.clone())),
                _ => None,
            });
            let drafts: Vec<_> = unfinished.collect();
            let held = !matches!(frame.held, HeldIndex::No) || all && frame.has_another_index();
            let index = state.index_ino().filter(|_| held).and_then(|ino| state.content(ino).ok());
            let ids = if all { frame.uncommitted() } else { Vec::new() };
            let moved = state.nodes.iter().filter_map(|(_, node)| match (&node.name, &node.kept) {
                (Some(name @ Name::Temporary(_)), Content::Chunk(key, Some(len))) => Some((state.text(name), *key, *len)),
                _ => None,
            });
            let moved: Vec<_> = moved.collect();
            let index = index.map(|index| (index, frame.changes));
            ([ids, frame.without_place()].concat(), index, drafts, moved, state.nodes.version())
        };
        let mut lost = Vec::new();
        for (name, key, len) in moved {
            // This was a chunk of the frame; now only the file holds it that it was moved to.
            let chunk = StoredChunk { store: &*self.store, key, len, to_save: true };
            lost.push(self.save(name.to_string_lossy().into(), [version, key.number()], &chunk));
        }
        for (name, writing) in drafts {
            let inner = writing.inner.read();
            if inner.dirty && !inner.bytes.is_empty() {
                lost.push(self.save(name.to_string_lossy().into(), [writing.serial, inner.version], &inner.bytes));
            }
        }
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            let guard = self.store.enter();
            let slot = {
                let state = self.state.read();
                state.frame.table.get(id).key().zip(state.frame.table.get(id).len())
            };
            let Some((key, len)) = slot else { continue };
            let chunk = StoredChunk { store: &*self.store, key, len, to_save: true };
            drop(guard);
            lost.push(self.save(id.file_name(), [version, key.number()], &chunk));
        }
        match index {
            Some((Content::Bytes(bytes), changed)) if !bytes.is_empty() => {
                lost.push(self.save(INDEX_NAME.into(), [version, changed], &bytes.as_slice()));
            }
            Some((Content::Draft(writing), _)) => {
                let inner = writing.inner.read();
                if !inner.bytes.is_empty() {
                    lost.push(self.save(INDEX_NAME.into(), [writing.serial, inner.version], &inner.bytes));
                }
            }
            _ => {}
        }
        lost
    }
}
