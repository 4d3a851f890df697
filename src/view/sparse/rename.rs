//! Names that move: a tool's temporary file onto a chunk or onto the index, and any other way round.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SparseView;
use super::state::Writing;
use super::write::Unfinished;
use crate::format::{ChunkId, index_file};
use crate::store::ReadAt;
use crate::view::names::Name;
use crate::view::{Ino, Invals, RenameMode, Result, ViewError};

impl SparseView {
    pub(super) fn rename_file(&self, from: Name, to: Name, mode: RenameMode, invals: &mut Invals) -> Result<()> {
        let (ino, taken) = {
            let state = self.state.read();
            (state.find(&from).ok_or(ViewError::NotFound)?, state.find(&to).is_some())
        };
        if from == to {
            return Ok(());
        }
        if mode == RenameMode::NoReplace && taken {
            return Err(ViewError::Exists);
        }
        match to {
            Name::Temp(_) => self.move_name(&from, &to, ino),
            Name::Chunk(id) => {
                let begun = self.state.read().nodes.get(&ino).is_none_or(|node| node.writing.is_none());
                let renamed = self.rename_onto_chunk(&from, id, ino, invals);
                if renamed.is_err() && begun {
                    // What was begun only to look at it ends; an index goes on being the one that it was.
                    let _ = self.close_file(ino, Unfinished::Leave, invals);
                }
                renamed
            }
            Name::Index => {
                let writing = self.draft_of(ino)?;
                {
                    let mut inner = writing.inner.write();
                    if inner.bytes.len() > index_file::MAX_LEN {
                        return Err(ViewError::TooBig);
                    }
                    // Nor by whoever writes to it just now.
                    inner.most = index_file::MAX_LEN;
                }
                self.move_name(&from, &to, ino)?;
                self.close_file(ino, Unfinished::Leave, invals)
            }
        }
    }

    /// Gives a file, with what it holds, another name. A file that had that name is removed.
    fn move_name(&self, from: &Name, to: &Name, ino: Ino) -> Result<()> {
        let mut state = self.state.write();
        if state.find(from) != Some(ino) {
            return Err(ViewError::NotFound);
        }
        state.unlink(to, true, &*self.store);
        state.unlink(from, true, &*self.store);
        state.link(to.clone(), ino);
        Ok(())
    }

    /// The bytes must be a chunk that fits, as at a close; otherwise both names stay as they were.
    fn rename_onto_chunk(&self, from: &Name, id: ChunkId, ino: Ino, invals: &mut Invals) -> Result<()> {
        loop {
            let of_source = self.state.read().next_version();
            let writing = self.draft_of(ino)?;
            let (key, header, version) = {
                let inner = writing.inner.read();
                let (key, header) = self.stage_draft(&inner.bytes, id)?.map_err(ViewError::Rejected)?;
                (key, header, inner.version)
            };
            let mut state = self.state.write();
            let now = state.nodes.get(&ino).and_then(|node| node.writing.as_ref());
            let current = state.find(from) == Some(ino) && now.is_some_and(|now| Arc::ptr_eq(now, &writing));
            // Where others have changed SOURCE, what was staged was so in another.
            let current = current && of_source == state.next_version();
            let inner = writing.still(version).filter(|_| current);
            let fits = state.fit(id).check(header.nbytes);
            let Some(inner) = inner.filter(|_| fits.is_ok()) else {
                let gone = state.find(from) != Some(ino);
                drop(state);
                self.store.discard(key);
                fits.map_err(ViewError::Rejected)?;
                if gone {
                    return Err(ViewError::NotFound);
                }
                continue;
            };
            let old = state.stored_header(id, &*self.store)?;
            state.unlink(&Name::Chunk(id), true, &*self.store);
            state.unlink(from, true, &*self.store);
            state.link(Name::Chunk(id), ino);
            state.end_writing(ino, Some(inner.mtime));
            drop(inner);
            return state.accept(id, key, &header, old, &*self.store, invals);
        }
    }

    /// The file's draft, begun from what it holds if there is none.
    fn draft_of(&self, ino: Ino) -> Result<Arc<Writing>> {
        loop {
            let writing = self.state.read().nodes.get(&ino).and_then(|node| node.writing.clone());
            match writing {
                Some(writing) if !writing.refused.load(Ordering::Relaxed) => return Ok(writing),
                _ => self.begin_from_content(ino)?,
            }
        }
    }
}
