//! Reading a frame in either layout, all but its chunks, from bytes that can be read at any place: a file, a draft.

use std::io;
use std::ops::Range;
use std::path::Path;

use super::backend::{BackendFile, read_exact_at};
use super::spill::data_in;
use super::{ReadAt, StoreError};
use crate::format::header::{FrameHeader, Sections};
use crate::format::index::{self, Place};
use crate::format::trailer::Trailer;
use crate::format::{self, IndexEntry, Layout};

/// Header, index and trailer are taken into memory, so no more than this of each may be a hole, which costs nobody anything: there
/// are files of 4 KiB whose header has 2 GiB.
pub const MOST_HOLE: u64 = 64 << 20;

/// A part of a frame that is taken into memory as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FramePart {
    /// The header.
    Header,
    /// The index chunk.
    Index,
    /// The trailer.
    Trailer,
}

impl FramePart {
    /// Reads the part from where it stands.
    ///
    /// # Errors
    /// What cannot be read, ENOMEM among it, and what is a hole for more than [`MOST_HOLE`].
    pub fn read(self, bytes: &dyn ReadAt, place: Range<u64>) -> Result<Vec<u8>, Unread> {
        let (name, action) = match self {
            FramePart::Header => ("header", "read the header"),
            FramePart::Index => ("index", "read the index"),
            FramePart::Trailer => ("trailer", "read the trailer"),
        };
        let failed = |source| Unread::Io { action, source };
        let len = place.end.saturating_sub(place.start);
        if len > MOST_HOLE {
            let mut data = 0;
            let mut at = place.start;
            while let Some(part) = bytes.next_data(at).filter(|part| part.start < place.end) {
                data += part.end.min(place.end) - part.start;
                at = part.end;
            }
            if len - data > MOST_HOLE {
                let got = format_args!("{} of its {len} bytes in holes", len - data);
                return Err(format::Error::new(name, place.start, got, format_args!("at most {MOST_HOLE}")).into());
            }
        }
        let mut buf = zeros(len).map_err(failed)?;
        bytes.read_exact_at(&mut buf, place.start).map_err(failed)?;
        Ok(buf)
    }
}

/// So many zeros, for something to be read into.
///
/// # Errors
/// ENOMEM.
#[expect(clippy::slow_vector_initialization, reason = "the quick one cannot fail")]
pub fn zeros(len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match usize::try_from(len).map(|len| (len, bytes.try_reserve_exact(len))) {
        Ok((len, Ok(()))) => {
            bytes.resize(len, 0);
            Ok(bytes)
        }
        _ => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
    }
}

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
        let prefix = FramePart::Header.read(bytes, 0..len.min(FrameHeader::PREFIX_LEN as u64))?;
        let header_len = FrameHeader::announced_len(&prefix)?;
        let within = |field: &'static str, at: u64, value: u64| {
            if value <= len {
                return Ok(());
            }
            Err(format::Error::new(field, at, value, format!("at most the file's length of {len}")))
        };
        within("header: header_len", 11, u64::from(header_len))?;
        let header = FrameHeader::parse_vec(FramePart::Header.read(bytes, 0..u64::from(header_len))?)?;
        if header.layout() != P::LAYOUT {
            return Err(Unread::OtherLayout);
        }
        let frame_len = header.frame_len();
        within("header: frame_len", 16, frame_len)?;
        let tail_len = frame_len.min(Trailer::TAIL_LEN as u64);
        let tail = FramePart::Trailer.read(bytes, frame_len - tail_len..frame_len)?;
        let trailer_len = Trailer::announced_len(&tail, header_len, frame_len)?;
        let sections = header.sections(trailer_len)?;
        let trailer = Trailer::parse_vec(FramePart::Trailer.read(bytes, sections.trailer.clone())?)?;
        let raw = FramePart::Index.read(bytes, sections.index.clone())?;
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
    fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        let rest = (offset < self.len).then_some(offset..self.len)?;
        self.file.fd().map_or(Some(rest.clone()), |fd| data_in(fd, rest))
    }
}
