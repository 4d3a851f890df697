//! Extended attributes in the sparse view: the frame's on the directory and on the index file, each chunk's on its file.

use std::sync::Arc;
use std::time::SystemTime;

use super::SparseView;
use super::state::{Held, Source, State};
use crate::format::chunk::ChunkHeader;
use crate::format::header::FrameHeader;
use crate::store::{Draft, ReadAt, ReadGuard};
use crate::view::follow::Follow;
use crate::view::names::Name;
use crate::view::pacer::Publish;
use crate::view::xattr::{self, Attribute};
use crate::view::{Ino, Inval, Invals, ROOT, Result, SetMode, ViewError};

/// What a file's attributes are about.
enum Subject {
    Frame,
    Chunk(Option<ChunkHeader>, Option<u32>),
    /// A temporary file, a removed one, a directory without a frame yet.
    Nothing,
}

impl SparseView {
    fn subject(&self, ino: Ino) -> Result<Subject> {
        self.of_one_version(|guard| self.subject_of(ino, guard))
    }

    fn subject_of(&self, ino: Ino, guard: &ReadGuard<'_>) -> Result<Subject> {
        let (source, position) = {
            let state = self.state.read();
            let name = if ino == ROOT { Some(Name::Index) } else { state.name_of(ino)? };
            match name {
                Some(Name::Index) if state.adopted.is_some() => return Ok(Subject::Frame),
                Some(Name::Chunk(id)) => (state.source(ino)?, state.table.get(id).position()),
                _ => return Ok(Subject::Nothing),
            }
        };
        let header = match source {
            Source::Chunk(key, _) => Some(self.store.chunk_header(guard, key)?),
            Source::Writing(writing) => header_of(&writing.inner.read_recursive().bytes),
            Source::Empty | Source::Bytes(_) => None,
        };
        Ok(Subject::Chunk(header, position))
    }

    /// Calls `ask` with the attributes of a file.
    pub(super) fn attributes<T>(&self, ino: Ino, ask: impl FnOnce(&mut dyn Iterator<Item = Attribute<'_>>) -> T) -> Result<T> {
        Ok(match self.subject(ino)? {
            Subject::Frame => self.state.read().attributes(ask),
            Subject::Chunk(Some(header), position) => ask(&mut xattr::of_chunk(&header, position)),
            Subject::Chunk(None, _) | Subject::Nothing => ask(&mut std::iter::empty()),
        })
    }

    pub(super) fn set_attribute(
        &self,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        mode: SetMode,
        invals: &mut Invals,
    ) -> Result<()> {
        self.writable()?;
        let subject = self.subject(ino)?;
        if matches!(subject, Subject::Nothing) || self.state.read().is_begun(ino) {
            return xattr::not_kept(value, mode);
        }
        if let Subject::Frame = subject {
            self.state.write().annotate(name, value, mode, invals)?;
            return self.publish_soon();
        }
        let now = self.attributes(ino, |attributes| xattr::find(attributes, name))?;
        if xattr::is_news(&now, value, mode)? { Err(ViewError::NotSettable) } else { Ok(()) }
    }
}

/// The header of a draft that has the length of a whole chunk.
fn header_of(bytes: &Draft) -> Option<ChunkHeader> {
    let mut head = vec![0; bytes.len().min(ChunkHeader::LEN as u64) as usize];
    bytes.read_exact_at(&mut head, 0).ok()?;
    ChunkHeader::parse(&head).ok().filter(|header| u64::from(header.cbytes) == bytes.len())
}

impl State {
    fn attributes<T>(&self, ask: impl FnOnce(&mut dyn Iterator<Item = Attribute<'_>>) -> T) -> T {
        match &self.adopted {
            Some(index) => ask(&mut xattr::of_frame(&index.header, &index.trailer)),
            None => ask(&mut std::iter::empty()),
        }
    }

    /// Whether somebody is writing a file from nothing, or has just made it.
    fn is_begun(&self, ino: Ino) -> bool {
        let Some((node, writing)) = self.nodes.get(&ino).and_then(|node| Some((node, node.writing.as_ref()?))) else {
            return false;
        };
        writing.from_nothing && (node.writers > 0 || writing.inner.try_read().is_some_and(|inner| inner.bytes.is_empty()))
    }

    /// Sets or removes a vlmetalayer of the adopted frame, and makes the index file say so.
    ///
    /// The index file must be the adopted one: in the middle of a client's rounds of writing nothing may change under it. Nor
    /// while chunk files have come or gone that the index knows nothing of: its next round is about to follow.
    fn annotate(&mut self, name: &[u8], value: Option<&[u8]>, mode: SetMode, invals: &mut Invals) -> Result<()> {
        let now = self.attributes(|attributes| xattr::find(attributes, name));
        if !xattr::is_news(&now, value, mode)? {
            return Ok(());
        }
        let (Some(index), Some(bytes), Some(ino)) = (&self.adopted, &self.index_bytes, self.index_ino) else {
            return Err(ViewError::InUse);
        };
        let trailer = xattr::changed(&index.trailer, name, value)?;
        let is_waiting = self.unsettled && !(self.removed.is_empty() && self.unnamed.is_empty());
        if !matches!(self.held, Held::No) || is_waiting {
            return Err(ViewError::InUse);
        }
        let mut index = index.clone();
        let former = index.header.frame_len();
        index.header.set_has_vlmetalayers(trailer.vlmetalayers().len() > 0);
        let file = if self.index_stale {
            index.trailer = trailer;
            index.make_file().map_err(ViewError::Rejected)?
        } else {
            // The index's own bytes stay: a client that has the file open knows where they end.
            let head = index.header.header_len() as usize;
            let chunk = bytes.get(head..bytes.len().saturating_sub(index.trailer.as_bytes().len())).unwrap_or_default();
            index.header.set_frame_len((head + chunk.len() + trailer.as_bytes().len()) as u64);
            let file = [index.header.as_bytes(), chunk, trailer.as_bytes()].concat();
            index.trailer = trailer;
            file
        };
        self.former_lens.push(former);
        self.adopted = Some(index);
        self.index_bytes = Some(Arc::new(file));
        self.index_stale = false;
        self.changed_frame();
        if let Ok(node) = self.node(ino) {
            node.meta.written(SystemTime::now());
        }
        invals.push(Inval::Data(ino));
        Ok(())
    }

    /// Sets right what a client has written that does not know yet that an attribute has changed the file's length: see
    /// [`xattr::FormerLens`]. Answers whether it did.
    pub(super) fn mend_len(&mut self, file: &mut [u8]) -> bool {
        let len = file.len() as u64;
        let same = match (&self.adopted, &self.index_bytes) {
            (Some(index), Some(bytes)) => {
                let head = index.header.header_len() as usize;
                file.get(head..).is_some_and(|rest| bytes.get(head..) == Some(rest))
            }
            _ => false,
        };
        if !same {
            return false;
        }
        let frame_len = file.get_mut(..FrameHeader::PREFIX_LEN).and_then(|prefix| prefix.last_chunk_mut());
        frame_len.is_some_and(|frame_len| self.former_lens.mend(frame_len, len))
    }
}
