//! Checks a draft when its file is closed, and a file that is renamed onto another: it becomes a staged chunk or the new index, or it is
//! refused.

use std::sync::Arc;

use log::{debug, warn};

use super::state::{HeldIndex, INDEX, Size, Sparse, Unnamed, chunk_of, number};
use crate::format::chunk::ChunkHeader;
use crate::format::header::FrameHeader;
use crate::format::index_file::{self, IndexFile, KnownIndex};
use crate::format::{self, ChunkId, Fit, Rules};
use crate::store::frame::zeros;
use crate::store::validate::{InvalidChunk, MOST_HOLE, may_become_chunk, validate_chunk, verify_chunk};
use crate::store::{ChunkKey, ReadAt};
use crate::view::frame_view::Take;
use crate::view::nodes::{Name, Number};
use crate::view::single::{Place, Single, State};
use crate::view::writing::{Inner, Writing};
use crate::view::{Ino, Invalidation, Invalidations, Result, ViewError};

/// What errors say could not be done.
const READ_BACK: &str = "read back what was written";

/// What happens to a draft that is not a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfinished {
    /// It is refused: readers see the old chunk.
    Refuse,
    /// It stays, as more may follow; what can never be a chunk is refused once.
    Sync,
    /// It stays, as more may follow.
    Leave,
}

impl Single<Sparse> {
    /// Checks a file's draft, and stages it if it is a chunk.
    pub(super) fn close_file(&self, ino: Ino, unfinished: Unfinished, invalidations: &mut Invalidations) -> Result<()> {
        let (file, writing) = {
            let state = self.state.read();
            let writing = state.nodes.get(ino).and_then(|node| node.writing.clone());
            match (state.place(ino), writing) {
                (Ok(Place::Frame(file)), Some(writing)) => (file, writing),
                _ => return Ok(()),
            }
        };
        self.close_writing(ino, file, &writing, unfinished, invalidations)
    }

    pub(super) fn close_writing(
        &self,
        ino: Ino,
        file: Number,
        writing: &Arc<Writing>,
        unfinished: Unfinished,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        let Some(id) = chunk_of(file) else { return self.close_index(ino, writing, invalidations) };
        let closed = self.close_chunk(ino, id, writing, unfinished, invalidations);
        if let Err(ViewError::Store(_)) = closed {
            self.state.write().frame.unstored.insert(ino);
        }
        closed
    }

    /// Checks drafts again that could not be staged when they were closed. An fsync must not succeed while one of them is left: not every
    /// program looks at the result of close. C-Blosc2 does not.
    pub(super) fn store_again(&self, invalidations: &mut Invalidations) -> Result<()> {
        if self.state.read().frame.unstored.is_empty() {
            return Ok(());
        }
        let left = std::mem::take(&mut self.state.write().frame.unstored);
        let closed: Vec<_> = left.into_iter().map(|ino| self.close_file(ino, Unfinished::Leave, invalidations)).collect();
        closed.into_iter().collect()
    }

    fn close_chunk(
        &self,
        ino: Ino,
        id: ChunkId,
        writing: &Arc<Writing>,
        unfinished: Unfinished,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        let is_written = self.state.read().nodes.is_written(writing.serial);
        let staged = {
            let inner = writing.inner.read();
            // An empty file is not yet a chunk, and no reason to refuse anything.
            if !inner.dirty || inner.bytes.is_empty() {
                return Ok(());
            }
            let staged = self.stage_draft(&inner, is_written, id)?;
            match (staged, unfinished) {
                (Err(_), Unfinished::Leave) => return Ok(()),
                (Err(error), Unfinished::Sync) => {
                    let waits = is_written && inner.writers.is_some();
                    let may_become =
                        waits || may_become_chunk(&inner.bytes).map_err(|error| self.held_error(READ_BACK, error))?;
                    return if may_become || writing.tell() { Ok(()) } else { Err(ViewError::Rejected(error)) };
                }
                (staged, _) => staged,
            }
            .map(|(key, header)| (key, header, inner.version))
            .map_err(|error| (writing.refuse(), error))
        };
        let (key, header, version) = staged.map_err(|(known, error)| self.refused(ino, known, error, invalidations))?;
        let mut state = match self.change_knowing(|frame| frame.unmeasured(id).into_iter().collect()) {
            Ok(state) => state,
            Err(error) => {
                self.store.discard(key);
                return Err(error);
            }
        };
        let is_current = state.is_current(ino, number(id), writing);
        let Some(inner) = writing.still(version).filter(|_| is_current) else {
            // The file was written, renamed or removed in the meantime: its next close checks it.
            drop(state);
            self.store.discard(key);
            return Ok(());
        };
        if let Err(error) = state.frame.fit(id).keep(&header.traits()) {
            // The index has changed in the meantime.
            let known = writing.refuse();
            drop(state);
            self.store.discard(key);
            return Err(self.refused(ino, known, error, invalidations));
        }
        let old = state.frame.size_of(id);
        state.end_writing(ino, true);
        drop(inner);
        state.accept(id, key, &header, old, invalidations);
        drop(state);
        self.apply_held(invalidations)
    }

    /// Stages a draft that is one whole chunk of a size that fits; `is_written` as of [`Inner::check_writers`]. The inner error is the
    /// reason why it is not.
    pub(super) fn stage_draft(
        &self,
        draft: &Inner,
        is_written: bool,
        id: ChunkId,
    ) -> Result<format::Result<(ChunkKey, ChunkHeader)>> {
        let fit = self.state.read().frame.fit(id);
        let checked = draft.check_writers(is_written).map_err(InvalidChunk::Bad).and_then(|mixes| {
            let header = validate_chunk(&draft.bytes, fit)?;
            if mixes { verify_chunk(&draft.bytes).map(|()| header) } else { Ok(header) }
        });
        match checked {
            Ok(header) => Ok(Ok((self.store.stage(&draft.bytes)?, header))),
            Err(InvalidChunk::Bad(error)) => Ok(Err(error)),
            Err(InvalidChunk::Io(error)) => Err(self.held_error(READ_BACK, error)),
        }
    }

    /// Refuses a draft. The kernel must forget its pages, unless it was told so before.
    fn refused(&self, ino: Ino, known: bool, error: format::Error, invalidations: &mut Invalidations) -> ViewError {
        if !known {
            warn!("{}: refused: {error}", self.show(ino));
            invalidations.push(Invalidation::Data(ino));
        }
        ViewError::Rejected(error)
    }

    fn close_index(&self, ino: Ino, writing: &Arc<Writing>, invalidations: &mut Invalidations) -> Result<()> {
        let is_written = self.state.read().nodes.is_written(writing.serial);
        let (mut file, version) = {
            let mut inner = writing.inner.write();
            let len = inner.bytes.len();
            if !inner.dirty || len > index_file::MAX_LEN {
                return Ok(());
            }
            if let Err(error) = inner.check_writers(is_written) {
                debug!("{}: held: {error}", self.show(ino));
                return Ok(());
            }
            if len > MOST_HOLE {
                // Check the header first, before all of the file is read into memory.
                let hole = inner.bytes.hole();
                let mut prefix = [0; FrameHeader::PREFIX_LEN];
                let begins = inner.bytes.read_exact_at(&mut prefix, 0).is_ok() && FrameHeader::announced_len(&prefix).is_ok();
                if hole > MOST_HOLE || !begins || prefix.last_chunk().copied().map(u64::from_be_bytes) != Some(len) {
                    debug!("{}: held: {hole} of {len} bytes were never written, or it is no index", self.show(ino));
                    return Ok(());
                }
            }
            let read = zeros(len).and_then(|mut file| inner.bytes.read_exact_at(&mut file, 0).map(|()| file));
            let file = read.map_err(|error| self.held_error(READ_BACK, error))?;
            inner.dirty = false;
            (file, inner.version)
        };
        let mended = self.state.write().frame.mend_len(&mut file);
        let known = self.state.read().frame.known_index.clone();
        let index = match IndexFile::parse_known(&file, known.as_deref()) {
            Ok(index) => index,
            Err(error) => {
                debug!("{}: held: {error}", self.show(ino));
                return Ok(());
            }
        };
        let mut state = self.state.write();
        let is_current = state.is_current(ino, INDEX, writing);
        let Some(inner) = writing.still(version).filter(|_| is_current) else { return Ok(()) };
        state.end_writing(ino, true);
        drop(inner);
        match mended {
            true => invalidations.push(Invalidation::Data(ino)),
            false => state.frame.former_lens.clear(),
        }
        if !known.is_some_and(|known| known.gave(&index)) {
            state.frame.known_index = Some(Arc::new(KnownIndex::of(&file, &index)));
        }
        state.frame.index_bytes = Some(Arc::new(file));
        state.frame.changes += 1;
        state.apply_or_hold(index, invalidations);
        drop(state);
        self.apply_held(invalidations)
    }

    /// The bytes must be a chunk that fits, as at a close; otherwise both names stay as they were.
    pub(super) fn rename_onto_chunk(&self, from: &Name, id: ChunkId, ino: Ino, invalidations: &mut Invalidations) -> Result<()> {
        let is_begun = self.state.read().nodes.get(ino).is_some_and(|node| node.writing.is_some());
        let renamed = self.move_onto_chunk(from, id, ino, invalidations);
        if renamed.is_err() && !is_begun {
            // The draft that was begun for this check ends; a draft of the index stays.
            let _ = self.close_file(ino, Unfinished::Leave, invalidations);
        }
        renamed
    }

    /// The file may be an index, or become one. The caller checks that afterwards.
    pub(super) fn rename_onto_index(&self, from: &Name, ino: Ino, invalidations: &mut Invalidations) -> Result<()> {
        let writing = self.draft_of(ino)?;
        {
            let mut inner = writing.inner.write();
            if inner.bytes.len() > index_file::MAX_LEN {
                return Err(ViewError::TooBig);
            }
            // It is not kept for a program that is writing to it either.
            inner.most = index_file::MAX_LEN;
        }
        self.give_name(from, &Name::Frame(INDEX), ino)?;
        self.close_file(ino, Unfinished::Leave, invalidations)
    }

    fn move_onto_chunk(&self, from: &Name, id: ChunkId, ino: Ino, invalidations: &mut Invalidations) -> Result<()> {
        loop {
            let of_source = self.state.read().nodes.version();
            let writing = self.draft_of(ino)?;
            let (key, header, version) = {
                let is_written = self.state.read().nodes.is_written(writing.serial);
                let inner = writing.inner.read();
                let (key, header) = self.stage_draft(&inner, is_written, id)?.map_err(ViewError::Rejected)?;
                (key, header, inner.version)
            };
            let needed = |frame: &Sparse| {
                let from = if let Name::Frame(file) = from { frame.unmeasured_if_varying(*file) } else { None };
                from.into_iter().chain(frame.unmeasured(id)).collect()
            };
            let mut state = match self.change_knowing(needed) {
                Ok(state) => state,
                Err(error) => {
                    self.store.discard(key);
                    return Err(error);
                }
            };
            let now = state.nodes.get(ino).and_then(|node| node.writing.as_ref());
            let current = state.find(from) == Some(ino) && now.is_some_and(|now| Arc::ptr_eq(now, &writing));
            // If others have changed SOURCE, the chunk was staged in an older version.
            let current = current && of_source == state.nodes.version();
            let inner = writing.still(version).filter(|_| current);
            let fits = state.frame.fit(id).keep(&header.traits());
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
            let old = state.frame.size_of(id);
            // Its entry, if it has one, is for the new chunk.
            let special = state.frame.set_aside(id);
            state.unlink(&Name::Frame(number(id)), Take::Kept)?;
            state.frame.special_files.extend(special.map(|special| (id, special)));
            state.unlink(from, Take::Moved)?;
            state.link_frame(number(id), ino);
            state.end_writing(ino, true);
            drop(inner);
            state.accept(id, key, &header, old, invalidations);
            drop(state);
            return self.apply_held(invalidations);
        }
    }
}

impl Sparse {
    /// The chunks that the index allows for a chunk file.
    pub(super) fn fit(&self, id: ChunkId) -> Fit {
        match (&self.held, &self.applied) {
            (HeldIndex::No, Some(index)) => {
                let (rules, count) = (Rules::of(&index.header), index.entries.len() as u64);
                match self.table.get(id).position().or_else(|| self.entry_of(id)) {
                    Some(position) => rules.at(position.into(), count),
                    // The library makes a frame step by step, and may turn to chunks of varying size: it writes the chunk first then.
                    None if self.is_made_here => Fit::ANY,
                    None => rules.somewhere(count),
                }
            }
            _ => Fit::ANY,
        }
    }
}

impl State<Sparse> {
    /// Makes a staged chunk the content of a chunk file, in place of a chunk of size `old`.
    pub(super) fn accept(
        &mut self,
        id: ChunkId,
        key: ChunkKey,
        header: &ChunkHeader,
        old: Option<Size>,
        invalidations: &mut Invalidations,
    ) {
        let frame = &mut self.frame;
        let traits = header.traits();
        let special = frame.place_of_special(id, &traits);
        let position = frame.table.get(id).position();
        // A special entry has no bytes.
        let old = old.filter(|_| position.is_some());
        let cbytes = if special.is_some() { 0 } else { u64::from(header.cbytes) };
        let place = special.map(|(position, _)| position).or(position);
        if let (Some(position), Some(index)) = (place, &mut frame.applied) {
            let (old_nbytes, old_cbytes) = old.map_or((0, 0), |old| (u64::from(old.traits.nbytes), u64::from(old.cbytes)));
            let chunksize = u64::from(index.header.chunksize());
            let nbytes = index.header.nbytes();
            let count = index.entries.len() as u64;
            let nbytes = match chunksize {
                0 if old.is_some() => nbytes.saturating_sub(old_nbytes).saturating_add(u64::from(header.nbytes)),
                0 => nbytes,
                _ if u64::from(position) + 1 == count => (count - 1) * chunksize + u64::from(header.nbytes),
                _ => nbytes,
            };
            let cbytes = index.header.cbytes().saturating_sub(old_cbytes).saturating_add(cbytes);
            if (nbytes, cbytes) != (index.header.nbytes(), index.header.cbytes()) {
                index.header.set_nbytes(nbytes);
                index.header.set_cbytes(cbytes);
                frame.index_stale = true;
            }
        }
        if let Some(old) = frame.table.set_chunk(id, key, header.cbytes) {
            frame.sizes.remove(&old);
            self.chunks.discard(old);
        }
        match (special, position) {
            (Some((position, special)), _) => frame.set_special(id, position, special, traits),
            (None, Some(_)) => {
                frame.removed.remove(&id);
                frame.fresh.insert(id, traits);
                frame.changed_frame();
            }
            (None, None) => {
                let entry = frame.entry_of(id);
                frame.special_files.remove(&id);
                frame.fresh.remove(&id);
                frame.changes += 1;
                frame.unnamed.insert(id, Unnamed { accepted: frame.changes, traits, entry });
            }
        }
        frame.touch();
        if let HeldIndex::Waiting(_, missing) = &mut frame.held {
            missing.remove(&id);
            if missing.is_empty() {
                let HeldIndex::Waiting(index, _) = std::mem::replace(&mut frame.held, HeldIndex::Unparsed) else { return };
                self.apply_or_hold(*index, invalidations);
            }
        }
        if special.is_some() {
            self.rewrite_promptly(invalidations);
        }
    }
}
