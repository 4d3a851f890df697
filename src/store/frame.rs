//! Reading a frame in either layout, all but its chunks, from bytes that can be read at any place: a file, a draft.

use std::io;
use std::path::Path;

use super::backend::{BackendFile, read_exact_at};
use super::{ReadAt, StoreError};
use crate::format::header::{FrameHeader, Sections};
use crate::format::index::{self, Place};
use crate::format::trailer::Trailer;
use crate::format::{self, IndexEntry, Layout};

/// A frame as it stands in a file, where `P` is what the index finds chunks by: [`ChunkOffset`](crate::format::ChunkOffset) in
/// a cframe, [`ChunkId`](crate::format::ChunkId) in the index file of an sframe.
#[derive(Debug, Clone)]
pub struct Frame<P> {
    /// The header with its metalayers.
    pub header: FrameHeader,
    /// The trailer with its vlmetalayers.
    pub trailer: Trailer,
    /// The index, in order. Offsets are known to lie in the chunks section.
    pub entries: Vec<IndexEntry<P>>,
    /// Where the parts are in the file.
    pub sections: Sections,
}

/// Why bytes are no frame.
#[derive(Debug)]
pub enum Unread {
    /// They cannot be read.
    Io {
        /// What was being done, as in `cannot ACTION`.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// They are wrong.
    Format(format::Error),
    /// They are a frame of the other layout.
    OtherLayout,
}

impl Unread {
    /// The error of a file that should have been one of `expected`.
    pub(super) fn at(self, path: &Path, expected: Layout) -> StoreError {
        let path = path.to_owned();
        match self {
            Unread::Io { action, source } => StoreError::Io { path, action, source },
            Unread::Format(source) => StoreError::Format { path, source },
            Unread::OtherLayout => {
                let reason = match expected {
                    Layout::Contiguous => "is the index file of a sparse frame; expected the directory that it is in",
                    Layout::Sparse => "is a frame in one file, not the index file of a sparse frame",
                };
                StoreError::Unsupported { path, reason: reason.to_owned() }
            }
        }
    }
}

impl From<format::Error> for Unread {
    fn from(error: format::Error) -> Self {
        Unread::Format(error)
    }
}

impl<P: Place> Frame<P> {
    /// Reads and checks everything but the chunks. What lies behind frame_len is not looked at.
    ///
    /// # Errors
    /// See [`Unread`]. Memory is bounded by the length of `bytes` and what its index unfolds to.
    pub fn read(bytes: &dyn ReadAt) -> Result<Self, Unread> {
        let len = bytes.len();
        let read = |offset: u64, len: u64, action: &'static str| {
            // `len` is within the file by now, so a buffer of that size is no hostile wish.
            let mut buf = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
            match bytes.read_exact_at(&mut buf, offset) {
                Ok(()) => Ok(buf),
                Err(source) => Err(Unread::Io { action, source }),
            }
        };
        let prefix = read(0, len.min(FrameHeader::PREFIX_LEN as u64), "read the header")?;
        let header_len = FrameHeader::announced_len(&prefix)?;
        let within = |field: &'static str, at: u64, value: u64| {
            if value <= len {
                return Ok(());
            }
            Err(format::Error::new(field, at, value, format!("at most the file's length of {len}")))
        };
        within("header: header_len", 11, u64::from(header_len))?;
        let header = FrameHeader::parse(&read(0, u64::from(header_len), "read the header")?)?;
        if header.layout() != P::LAYOUT {
            return Err(Unread::OtherLayout);
        }
        let frame_len = header.frame_len();
        within("header: frame_len", 16, frame_len)?;
        let tail_len = frame_len.min(Trailer::TAIL_LEN as u64);
        let tail = read(frame_len - tail_len, tail_len, "read the trailer")?;
        let trailer_len = Trailer::announced_len(&tail, header_len, frame_len)?;
        let sections = header.sections(trailer_len)?;
        let trailer = Trailer::parse(&read(sections.trailer.start, u64::from(trailer_len), "read the trailer")?)?;
        let raw = read(sections.index.start, sections.index.end - sections.index.start, "read the index")?;
        let entries = index::decode::<P>(&raw, header.nchunks())?;
        P::check(&entries, sections.chunks.end - sections.chunks.start)?;
        Ok(Frame { header, trailer, entries, sections })
    }
}

/// A file whose length is known, as bytes to read from.
pub struct FileBytes<'a> {
    /// The file.
    pub file: &'a dyn BackendFile,
    /// Its length, or as much of it as is to be seen.
    pub len: u64,
}

impl ReadAt for FileBytes<'_> {
    fn len(&self) -> u64 {
        self.len
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        read_exact_at(self.file, buf, offset)
    }
}
