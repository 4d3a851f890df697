//! Drafts, and what a close makes of them: a staged chunk, an adopted index, or a refusal.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use log::{debug, warn};

use super::SparseView;

use super::state::{Held, Inner, Source, State, Unnamed, Writing};
use crate::format::chunk::ChunkHeader;
use crate::format::header::FrameHeader;
use crate::format::index_file::{self, IndexFile, KnownIndex};
use crate::format::{self, ChunkId, Fit};
use crate::store::frame::zeros;
use crate::store::{ChunkKey, Draft, FrameStore, ReadAt, StoreError};
use crate::view::examine::{Examined, MAX_CHUNK_LEN, MOST_HOLE, examine};
use crate::view::names::Name;
use crate::view::pacer::Publish;
use crate::view::{Handle, Ino, Inval, Invals, Result, ViewError};

/// How much of a chunk is copied into a draft at once.
const COPY_PIECE: usize = 1 << 20;

impl SparseView {
    /// How a file is called in messages.
    pub(super) fn show(&self, ino: Ino) -> String {
        let name = self.state.read().name_of(ino).ok().flatten();
        let name = name.map_or_else(|| "a removed file".into(), |name| name.to_os_string());
        format!("{}: {}", self.store.path().display(), name.to_string_lossy())
    }

    pub(super) fn draft_error(&self, action: &'static str, source: io::Error) -> ViewError {
        ViewError::Store(StoreError::Io { path: self.store.path().into(), action, source })
    }

    pub(super) fn write_handle(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<()> {
        self.change(handle, offset.saturating_add(data.len() as u64), |inner| inner.bytes.write_at(data, offset))
    }

    /// Changes a file's length: like a write with a handle, like a write and a close without.
    pub(super) fn resize(&self, ino: Ino, handle: Option<Handle>, size: u64, invals: &mut Invals) -> Result<()> {
        if let Some(handle) = handle {
            return self.change(handle, size, |inner| inner.bytes.set_len(size));
        }
        let handle = {
            let mut state = self.state.write();
            state.node(ino)?;
            state.open(ino, true, 0)
        };
        let changed = self
            .change(handle, size, |inner| inner.bytes.set_len(size))
            .and_then(|()| self.close_file(ino, Unfinished::Refuse, invals));
        self.state.write().close(handle, &*self.store);
        changed.and_then(|()| self.publish_soon())
    }

    /// Changes the bytes of an open file, of which `end` are the furthest touched.
    fn change(&self, handle: Handle, end: u64, mut apply: impl FnMut(&mut Inner) -> io::Result<()>) -> Result<()> {
        loop {
            let (ino, name, writing) = {
                let state = self.state.read();
                let open = state.handles.get(&handle.0).filter(|open| open.write).ok_or(ViewError::BadHandle)?;
                let name = state.name_of(open.ino)?;
                let writing = state.nodes.get(&open.ino).and_then(|node| node.writing.clone());
                // Those who wrote what was refused may go on with it; to others it is as if it had never been.
                let writing = writing.filter(|writing| {
                    !writing.refused.load(Ordering::Relaxed) || open.serial.load(Ordering::Relaxed) == writing.serial
                });
                if let Some(writing) = &writing {
                    open.serial.store(writing.serial, Ordering::Relaxed);
                }
                (open.ino, name, writing)
            };
            match name {
                Some(Name::Chunk(_)) if end > MAX_CHUNK_LEN => return Err(ViewError::TooBig),
                Some(Name::Index) if end > index_file::MAX_LEN => return Err(ViewError::TooBig),
                _ if end > i64::MAX as u64 => return Err(ViewError::TooBig),
                _ => {}
            }
            let Some(writing) = writing else {
                self.begin_from_content(ino)?;
                continue;
            };
            let mut inner = writing.inner.write();
            if writing.detached.load(Ordering::Relaxed) {
                continue;
            }
            if end > inner.most {
                return Err(ViewError::TooBig);
            }
            apply(&mut inner).map_err(|error| self.draft_error("hold what was written", error))?;
            inner.changed();
            writing.refused.store(false, Ordering::Relaxed);
            drop(inner);
            self.state.write().touch();
            return Ok(());
        }
    }

    /// Begins a draft with what the file holds now.
    pub(super) fn begin_from_content(&self, ino: Ino) -> Result<()> {
        let guard = self.store.enter();
        let source = self.state.read().settled_source(ino)?;
        let mut draft = Draft::new(self.store.drafts());
        let error = |error| self.draft_error("hold what was written", error);
        match &source {
            Source::Empty | Source::Writing(_) => {}
            Source::Bytes(bytes) => draft.write_at(bytes, 0).map_err(error)?,
            Source::Chunk(key, len) => {
                let len = self.chunk_len(&guard, ino, *key, *len)?;
                let mut piece = vec![0; COPY_PIECE.min(len as usize)];
                let mut offset = 0;
                while offset < u64::from(len) {
                    let count = self.store.read_chunk(&guard, *key, len, offset, &mut piece)?;
                    if count == 0 {
                        break;
                    }
                    draft.write_at(&piece[..count], offset).map_err(error)?;
                    offset += count as u64;
                }
            }
        }
        let mut state = self.state.write();
        let same = match (&source, state.settled_source(ino)?) {
            (Source::Empty, Source::Empty) => true,
            (Source::Bytes(before), Source::Bytes(now)) => Arc::ptr_eq(before, &now),
            (Source::Chunk(before, _), Source::Chunk(now, _)) => *before == now,
            _ => false,
        };
        let taken = state.nodes.get(&ino).and_then(|node| node.writing.as_ref());
        let taken = taken.is_some_and(|writing| !writing.refused.load(Ordering::Relaxed));
        // Otherwise somebody was faster; the caller looks again.
        if same && !taken {
            state.begin(ino, draft)?;
        }
        Ok(())
    }

    /// What a close of a handle does: nothing, unless the handle has a part in the file's draft.
    pub(super) fn close_handle(&self, handle: Handle, invals: &mut Invals) -> Result<()> {
        let (ino, name, writing) = {
            let state = self.state.read();
            let open = state.handles.get(&handle.0).ok_or(ViewError::BadHandle)?;
            let node = state.nodes.get(&open.ino);
            let writing = node.and_then(|node| node.writing.clone());
            match writing.filter(|writing| open.write && open.serial.load(Ordering::Relaxed) == writing.serial) {
                Some(writing) => (open.ino, node.and_then(|node| node.name.clone()), writing),
                None => return Ok(()),
            }
        };
        // This draft and no other: another may have begun a new one by now.
        self.close_writing(ino, name, &writing, Unfinished::Refuse, invals)
    }

    /// Takes a file's draft for what it is now.
    pub(super) fn close_file(&self, ino: Ino, unfinished: Unfinished, invals: &mut Invals) -> Result<()> {
        let (name, writing) = {
            let state = self.state.read();
            let Some(node) = state.nodes.get(&ino) else { return Ok(()) };
            let Some(writing) = node.writing.clone() else { return Ok(()) };
            (node.name.clone(), writing)
        };
        self.close_writing(ino, name, &writing, unfinished, invals)
    }

    fn close_writing(
        &self,
        ino: Ino,
        name: Option<Name>,
        writing: &Arc<Writing>,
        unfinished: Unfinished,
        invals: &mut Invals,
    ) -> Result<()> {
        match name {
            Some(Name::Index) => self.close_index(ino, writing, invals),
            Some(Name::Chunk(id)) => {
                let closed = self.close_chunk(ino, id, writing, unfinished, invals);
                if let Err(ViewError::Store(_)) = closed {
                    self.state.write().unstored.insert(ino);
                }
                closed
            }
            Some(Name::Temp(_)) | None => Ok(()),
        }
    }

    /// Tries again what SOURCE did not take at a close, so that nobody is told that all is on disk while it is not: not every
    /// writer looks at what close says. C-Blosc2 does not.
    pub(super) fn store_again(&self, invals: &mut Invals) -> Result<()> {
        if self.state.read().unstored.is_empty() {
            return Ok(());
        }
        let left = std::mem::take(&mut self.state.write().unstored);
        let closed: Vec<_> = left.into_iter().map(|ino| self.close_file(ino, Unfinished::Leave, invals)).collect();
        closed.into_iter().collect()
    }

    fn close_chunk(
        &self,
        ino: Ino,
        id: ChunkId,
        writing: &Arc<Writing>,
        unfinished: Unfinished,
        invals: &mut Invals,
    ) -> Result<()> {
        // To be called with `inner` locked, so that whoever goes on writing takes it back. Whether it was refused before.
        let refuse = || writing.refused.swap(true, Ordering::Relaxed);
        let staged = {
            let inner = writing.inner.read();
            // An empty file is not yet a chunk, and no reason to refuse anything.
            if !inner.dirty || inner.bytes.is_empty() {
                return Ok(());
            }
            let staged = self.stage_draft(&inner.bytes, id)?;
            if staged.is_err() && unfinished == Unfinished::Leave {
                return Ok(());
            }
            staged.map(|(key, header)| (key, header, inner.version)).map_err(|error| (refuse(), error))
        };
        let (key, header, version) = staged.map_err(|(known, error)| self.refused(ino, known, error, invals))?;
        let mut state = self.state.write();
        let current = state.nodes.get(&ino).filter(|node| node.name == Some(Name::Chunk(id)));
        let current = current.and_then(|node| node.writing.as_ref()).is_some_and(|now| Arc::ptr_eq(now, writing));
        let Some(inner) = writing.still(version).filter(|_| current) else {
            // Written to again, renamed or removed meanwhile: another close will see to it.
            drop(state);
            self.store.discard(key);
            return Ok(());
        };
        if let Err(error) = state.fit(id).check(header.nbytes) {
            // The index changed meanwhile.
            let known = refuse();
            drop(state);
            self.store.discard(key);
            return Err(self.refused(ino, known, error, invals));
        }
        let old = state.stored_header(id, &*self.store)?;
        state.end_writing(ino, Some(inner.mtime));
        drop(inner);
        state.accept(id, key, &header, old, &*self.store, invals)
    }

    /// Stages a draft that is one whole chunk and fits; the inner error says why it is not.
    pub(super) fn stage_draft(&self, bytes: &Draft, id: ChunkId) -> Result<format::Result<(ChunkKey, ChunkHeader)>> {
        let fit = self.state.read().fit(id);
        match examine(bytes, fit) {
            Ok(header) => Ok(Ok((self.store.stage(bytes)?, header))),
            Err(Examined::Bad(error)) => Ok(Err(error)),
            Err(Examined::Io(error)) => Err(self.draft_error("read back what was written", error)),
        }
    }

    /// A draft was refused: what the kernel has of it, it must forget, unless that was so before.
    fn refused(&self, ino: Ino, known: bool, error: format::Error, invals: &mut Invals) -> ViewError {
        if !known {
            warn!("{}: refused: {error}", self.show(ino));
            invals.push(Inval::Data(ino));
        }
        ViewError::Rejected(error)
    }

    fn close_index(&self, ino: Ino, writing: &Arc<Writing>, invals: &mut Invals) -> Result<()> {
        let (mut file, version) = {
            let mut inner = writing.inner.write();
            let len = inner.bytes.len();
            if !inner.dirty || len > index_file::MAX_LEN {
                return Ok(());
            }
            if len > MOST_HOLE {
                // A look at what is known at once, before all of it is taken into memory.
                let hole = inner.bytes.hole();
                let mut prefix = [0; FrameHeader::PREFIX_LEN];
                let begins = inner.bytes.read_exact_at(&mut prefix, 0).is_ok() && FrameHeader::announced_len(&prefix).is_ok();
                if hole > MOST_HOLE || !begins || prefix.last_chunk().copied().map(u64::from_be_bytes) != Some(len) {
                    debug!("{}: held: {hole} of {len} bytes were never written, or it is no index", self.show(ino));
                    return Ok(());
                }
            }
            let read = zeros(len).and_then(|mut file| inner.bytes.read_exact_at(&mut file, 0).map(|()| file));
            let file = read.map_err(|error| self.draft_error("read back what was written", error))?;
            inner.dirty = false;
            (file, inner.version)
        };
        let mended = self.state.write().mend_len(&mut file);
        let known = self.state.read().known_index.clone();
        let index = match IndexFile::parse_known(&file, known.as_deref()) {
            Ok(index) => index,
            Err(error) => {
                debug!("{}: held: {error}", self.show(ino));
                return Ok(());
            }
        };
        let mut state = self.state.write();
        let current = state.nodes.get(&ino).filter(|node| node.name == Some(Name::Index));
        let current = current.and_then(|node| node.writing.as_ref()).is_some_and(|now| Arc::ptr_eq(now, writing));
        let Some(inner) = writing.still(version).filter(|_| current) else { return Ok(()) };
        state.end_writing(ino, Some(inner.mtime));
        drop(inner);
        match mended {
            true => invals.push(Inval::Data(ino)),
            false => state.former_lens.clear(),
        }
        if !known.is_some_and(|known| known.gave(&index)) {
            state.known_index = Some(Arc::new(KnownIndex::of(&file, &index)));
        }
        state.index_bytes = Some(Arc::new(file));
        state.consider(index, &*self.store, invals)
    }
}

impl State {
    /// What fits in a chunk file, as far as the index says.
    pub(super) fn fit(&self, id: ChunkId) -> Fit {
        match (&self.held, &self.adopted) {
            (Held::No, Some(index)) => match self.table.get(id).position() {
                Some(position) => index.fit(u64::from(position)),
                None => Fit::AtMost(index.header.chunksize()),
            },
            _ => Fit::Any,
        }
    }

    /// The header of the chunk that a chunk file holds.
    pub(super) fn stored_header(&self, id: ChunkId, store: &dyn FrameStore) -> Result<Option<ChunkHeader>> {
        let guard = store.enter();
        Ok(self.table.get(id).key().map(|key| store.chunk_header(&guard, key)).transpose()?)
    }

    /// Makes a staged chunk what a chunk file holds, in place of a chunk with the header `old`.
    pub(super) fn accept(
        &mut self,
        id: ChunkId,
        key: ChunkKey,
        header: &ChunkHeader,
        old: Option<ChunkHeader>,
        store: &dyn FrameStore,
        invals: &mut Invals,
    ) -> Result<()> {
        let position = self.table.get(id).position();
        if let (Some(position), Some(index)) = (position, &mut self.adopted) {
            let (old_nbytes, old_cbytes) = old.map_or((0, 0), |old| (u64::from(old.nbytes), u64::from(old.cbytes)));
            let chunksize = u64::from(index.header.chunksize());
            let nbytes = index.header.nbytes();
            let count = index.entries.len() as u64;
            let nbytes = match chunksize {
                0 if old.is_some() => nbytes.saturating_sub(old_nbytes).saturating_add(u64::from(header.nbytes)),
                0 => nbytes,
                _ if u64::from(position) + 1 == count => (count - 1) * chunksize + u64::from(header.nbytes),
                _ => nbytes,
            };
            let cbytes = index.header.cbytes().saturating_sub(old_cbytes).saturating_add(u64::from(header.cbytes));
            if (nbytes, cbytes) != (index.header.nbytes(), index.header.cbytes()) {
                index.header.set_nbytes(nbytes);
                index.header.set_cbytes(cbytes);
                self.index_stale = true;
            }
        }
        if let Some(old) = self.table.set_chunk(id, key, header.cbytes) {
            store.discard(old);
        }
        match position {
            Some(_) => {
                self.removed.remove(&id);
                self.fresh.insert(id, header.nbytes);
                self.changed_frame();
            }
            None => {
                self.changes += 1;
                self.unnamed.insert(id, Unnamed { accepted: self.changes, nbytes: header.nbytes });
            }
        }
        self.touch();
        if let Held::Waiting(_, missing) = &mut self.held {
            missing.remove(&id);
            if missing.is_empty() {
                let Held::Waiting(index, _) = std::mem::replace(&mut self.held, Held::Unparsed) else { return Ok(()) };
                return self.consider(*index, store, invals);
            }
        }
        Ok(())
    }
}

/// What becomes of a draft that is no chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfinished {
    /// It is refused: readers see the old chunk.
    Refuse,
    /// It stays, as more may follow.
    Leave,
}
