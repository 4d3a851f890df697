//! Reading frames for people: as much of one as there is, where opening a frame for a mount stops at the first thing that is wrong.
//!
//! [`Inspection::open`] reads header, trailer and index; [`Inspection::chunks`] every chunk's header, in order and in several threads;
//! [`Inspection::read_chunk`] one chunk. A frame of either layout will do, and so will a mount, or a file or directory inside one.
//!
//! Nothing is written and no lock is taken: of a frame that another process is changing, what was read at one moment may not agree
//! with what was read at another. Memory is bounded by the metadata and the index. What is wrong is a [`Finding`], in words that
//! hold no text from the frame unescaped.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::chunks::{InDirectory, InFile};
use self::parts::FrameParts;
use super::backend::Backend;
use super::error::Complain;
use super::{Location, Result, StoreError};
use crate::format::chunk::{self, ChunkHeader};
use crate::format::header::FrameHeader;
use crate::format::trailer::Trailer;
use crate::format::{ChunkId, ChunkOffset, INDEX_NAME, IndexEntry, Layout, Position, Special};

pub(in crate::store) mod chunks;
mod finding;
pub(in crate::store) mod parts;
mod room;
#[cfg(test)]
mod tests;

pub use finding::{Finding, Kind, Severity};
pub use room::{Extents, Unused};

/// Where a stored chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChunkPlace {
    /// In a cframe, counted from the end of the header.
    Offset(ChunkOffset),
    /// In an sframe, the file of this number.
    Id(ChunkId),
}

impl From<ChunkOffset> for ChunkPlace {
    fn from(offset: ChunkOffset) -> Self {
        ChunkPlace::Offset(offset)
    }
}

impl From<ChunkId> for ChunkPlace {
    fn from(id: ChunkId) -> Self {
        ChunkPlace::Id(id)
    }
}

/// What is seen of a stored chunk without decoding it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Its header. cbytes is no more than the room.
    pub header: ChunkHeader,
    /// Bytes that it has room for: of an sframe the length of its file; of a cframe all up to the end of the chunks.
    pub room: u64,
}

/// What there is of a frame.
pub struct Inspection {
    path: PathBuf,
    len: u64,
    findings: Vec<Finding>,
    /// Where the frame is.
    around: Arc<dyn Backend>,
    pub(in crate::store) frame: Frame,
}

/// The frame by its layout.
pub(in crate::store) enum Frame {
    Contiguous(FrameParts<ChunkOffset>, InFile),
    Sparse(FrameParts<ChunkId>, InDirectory),
}

/// The same of either layout.
macro_rules! either {
    ($inspection:expr, $parts:ident, $chunks:ident => $do:expr) => {
        match &$inspection.frame {
            Frame::Contiguous($parts, $chunks) => $do,
            Frame::Sparse($parts, $chunks) => $do,
        }
    };
}

impl Inspection {
    /// Reads all of a frame but its chunks: of a file a cframe, of a directory an sframe.
    ///
    /// # Errors
    /// What cannot be read at all, because the system refuses or because there is no frame header.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_at(&Location::existing(path)?)
    }

    /// As [`Inspection::open`], of the frame at a location.
    ///
    /// # Errors
    /// As [`Inspection::open`].
    pub fn open_at(location: &Location) -> Result<Self> {
        let mut findings = Vec::new();
        let found = &mut |finding| findings.push(finding);
        let path = location.path();
        let (len, frame) = if location.stat()?.is_some_and(|stat| stat.is_dir()) {
            let dir: Arc<dyn Backend> = Arc::from(location.open_dir()?);
            let index = path.join(INDEX_NAME);
            let file = dir.open(OsStr::new(INDEX_NAME), false).map_err(index.io("open"))?;
            let len = file.stat().map_err(index.io("stat"))?.len;
            (len, Frame::Sparse(FrameParts::read(&index, &*file, len, found)?, InDirectory(dir)))
        } else {
            let file = location.open()?;
            let len = file.stat().map_err(location.io("stat"))?.len;
            let parts = FrameParts::<ChunkOffset>::read(path, &*file, len, found)?;
            let base = u64::from(parts.header.header_len());
            let chunks = InFile { file, base, end: parts.chunks_end };
            (len, Frame::Contiguous(parts, chunks))
        };
        Ok(Inspection { path: path.to_owned(), len, findings, around: Arc::clone(location.backend()), frame })
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the frame's file; of an sframe's index file.
    pub fn file_len(&self) -> u64 {
        self.len
    }

    /// What is wrong with header, trailer and index, or notable about them.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The layout.
    pub fn layout(&self) -> Layout {
        match self.frame {
            Frame::Contiguous(..) => Layout::Contiguous,
            Frame::Sparse(..) => Layout::Sparse,
        }
    }

    /// The header with the metalayers.
    pub fn header(&self) -> &FrameHeader {
        either!(self, parts, _chunks => &parts.header)
    }

    /// The trailer with the vlmetalayers, if it can be read.
    pub fn trailer(&self) -> Option<&Trailer> {
        either!(self, parts, _chunks => parts.trailer.as_ref())
    }

    /// Entries of the index, if that can be read.
    pub fn nchunks(&self) -> Option<u64> {
        either!(self, parts, _chunks => parts.entries.as_ref().map(|entries| entries.len() as u64))
    }

    /// An entry of the index; `None` behind its end, or where it cannot be read.
    pub fn entry(&self, position: Position) -> Option<IndexEntry<ChunkPlace>> {
        let at = usize::try_from(position.0).ok()?;
        either!(self, parts, _chunks => parts.entries.as_ref()?.get(at).map(|entry| entry.map(ChunkPlace::from)))
    }

    /// All entries of the index, in order; none where it cannot be read.
    pub fn entries(&self) -> impl Iterator<Item = IndexEntry<ChunkPlace>> {
        (0..self.nchunks().unwrap_or(0)).filter_map(|position| self.entry(Position(position)))
    }

    /// Uncompressed bytes of a special chunk: what the frame's header leaves for its position. `None` where chunks vary in size.
    pub fn special_nbytes(&self, position: Position) -> Option<u32> {
        let size = u64::from(self.header().chunksize());
        let before = position.0.checked_mul(size)?;
        let left = self.header().nbytes().checked_sub(before)?.min(size);
        u32::try_from(left).ok().filter(|left| *left > 0)
    }

    /// Reads every chunk's header and tells of each entry, in the order of the index: of a stored chunk with what was seen, or with
    /// what is wrong with it; of a special one with nothing. Ends early when `tell` answers `false`.
    ///
    /// # Errors
    /// A frame far away that is out of reach, or is another one.
    pub fn chunks(
        &self,
        threads: usize,
        tell: &mut dyn FnMut(Position, IndexEntry<ChunkPlace>, Option<std::result::Result<Seen, Finding>>) -> bool,
    ) -> Result<()> {
        either!(self, parts, chunks => {
            let look = |_: &mut (), _, place| chunks::see(chunks, place).map_err(|finding| *finding);
            let entries = parts.entries.as_deref().unwrap_or_default();
            chunks::in_order(chunks, entries, threads, (chunks::ROUND, chunks::SHARE), &look, &mut |position, entry, seen| {
                tell(position, entry.map(ChunkPlace::from), seen)
            }, &mut |_| true);
        });
        self.check_reach(false)
    }

    /// That all that was read is the frame's: a frame far away may be out of reach, or another one. `look` asks whether it is the same.
    ///
    /// # Errors
    /// What keeps from it.
    pub(in crate::store) fn check_reach(&self, look: bool) -> Result<()> {
        let Some(source) = self.around.out_of_reach(look) else { return Ok(()) };
        let path = self.path.clone();
        Err(match source.raw_os_error() {
            Some(libc::ESTALE) => {
                StoreError::Unsupported { path, reason: "was changed by others while it was read; try again".to_owned() }
            }
            Some(libc::ENOENT) => StoreError::Unsupported { path, reason: "was removed while it was read".to_owned() },
            _ => StoreError::Io { path, action: "read", source },
        })
    }

    /// Reads the bytes of a chunk. Of a special one it makes the chunk that would decode to the same: 32 bytes, which stand nowhere.
    ///
    /// # Errors
    /// A chunk that is not there or whose header cannot be believed; a special one of a frame whose chunks vary in size. What
    /// the chunk holds is not looked at.
    pub fn read_chunk(&self, position: Position) -> Result<Vec<u8>> {
        let bad = |what: &dyn std::fmt::Display| StoreError::Unsupported {
            path: self.path.clone(),
            reason: format!("chunk {}: {what}", position.0),
        };
        let Some(count) = self.nchunks() else { return Err(bad(&"cannot be found: the frame has no index that can be read")) };
        match self.entry(position) {
            None => Err(bad(&format_args!("is not there; the frame has {count}, counted from 0"))),
            Some(IndexEntry::Special(special)) => self.special_chunk(position, special).map_err(|reason| bad(&reason)),
            Some(IndexEntry::Stored(place)) => {
                let mut bytes = Vec::new();
                let read = match (&self.frame, place) {
                    (Frame::Contiguous(_, chunks), ChunkPlace::Offset(offset)) => chunks::read(chunks, offset, &mut bytes),
                    (Frame::Sparse(_, chunks), ChunkPlace::Id(id)) => chunks::read(chunks, id, &mut bytes),
                    _ => Ok(()),
                };
                if read.is_err() {
                    self.check_reach(true)?;
                }
                read.map_err(|finding| bad(&finding.what))?;
                Ok(bytes)
            }
        }
    }

    fn special_chunk(&self, position: Position, special: Special) -> std::result::Result<Vec<u8>, String> {
        let nbytes = self.special_nbytes(position).ok_or("is a special one, whose size nothing says, as chunks vary in size")?;
        let blocksize = u32::try_from(self.header().fields().blocksize).unwrap_or(0);
        chunk::special(special, nbytes, self.header().typesize(), blocksize).map_err(|error| error.to_string())
    }

    /// The room of a cframe's chunks, for [`Extents::add`] of what [`Inspection::chunks`] tells; `None` for an sframe.
    pub fn extents(&self) -> Option<Extents> {
        match &self.frame {
            Frame::Contiguous(_, chunks) => Some(Extents::new(chunks.base..chunks.end)),
            Frame::Sparse(..) => None,
        }
    }
}
