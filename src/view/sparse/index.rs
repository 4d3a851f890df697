//! The index file, `chunks.b2frame`: what a sparse frame's one has in it, and how one is made.

use std::sync::Arc;

use super::state::stored;
use crate::format::chunk::ChunkHeader;
use crate::format::header::FrameHeader;
use crate::format::trailer::Trailer;
use crate::format::{self, ChunkId, IndexEntry, Layout, index};

/// An index file that parses as a whole.
#[derive(Debug, Clone)]
pub struct Index {
    /// The header, of the sparse layout.
    pub header: FrameHeader,
    /// The trailer.
    pub trailer: Trailer,
    /// Which chunk stands where.
    pub entries: Arc<Vec<IndexEntry<ChunkId>>>,
}

/// The largest index file that is looked at: what 2^31 bytes of index, the library's limit, and generous metadata take.
pub const MAX_LEN: u64 = 4 << 30;

impl Index {
    /// Parses a whole file. A file in the middle of the library's rounds of writing is told apart by its lengths: frame_len is
    /// the file's, and the index fills what header and trailer leave.
    ///
    /// # Errors
    /// What does not fit, with its place.
    pub fn parse(file: &[u8]) -> format::Result<Index> {
        let len = file.len() as u64;
        let header = FrameHeader::parse(file)?;
        if header.layout() != Layout::Sparse {
            return Err(format::Error::new("header: frame type", 26, "a contiguous frame", "a sparse frame (1)"));
        }
        if header.frame_len() != len {
            return Err(format::Error::new(
                "header: frame_len",
                16,
                header.frame_len(),
                format_args!("the file's length, {len}"),
            ));
        }
        let tail = file.get(file.len().saturating_sub(Trailer::TAIL_LEN)..).unwrap_or_default();
        let trailer_len = Trailer::announced_len(tail, header.header_len(), len)?;
        let trailer_start = file.len().saturating_sub(trailer_len as usize);
        let trailer = Trailer::parse(file.get(trailer_start..).unwrap_or_default())?;
        let header_len = header.header_len() as usize;
        let chunk = file.get(header_len..trailer_start).unwrap_or_default();
        let entries = if header.nbytes() == 0 {
            if !chunk.is_empty() {
                return Err(format::Error::new(
                    "index",
                    header_len as u64,
                    format_args!("{} bytes", chunk.len()),
                    "none, as nbytes is 0",
                ));
            }
            Vec::new()
        } else {
            index::decode::<ChunkId>(chunk, header.nchunks())?
        };
        Ok(Index { header, trailer, entries: Arc::new(entries) })
    }

    /// The file's bytes, with the header's own lengths and layout set right.
    ///
    /// # Errors
    /// More chunks than an index can hold.
    pub fn make_file(&mut self) -> format::Result<Vec<u8>> {
        let chunk = match self.entries.len() {
            0 => Vec::new(),
            _ => index::encode(self.entries.iter().copied())?,
        };
        let trailer = self.trailer.as_bytes();
        let len = self.header.as_bytes().len() + chunk.len() + trailer.len();
        self.header.set_layout(Layout::Sparse);
        self.header.set_frame_len(len as u64);
        // C-Blosc2 opens no frame, sparse ones included, with an index value above cbytes - 32; where few and small chunks are
        // stored among many special ones, the sum of their sizes is less than that.
        let largest = stored(&self.entries).map(|id| u64::from(id.0)).max();
        let least = largest.map_or(0, |id| id + ChunkHeader::LEN as u64);
        if self.header.cbytes() < least {
            self.header.set_cbytes(least);
        }
        let mut file = Vec::with_capacity(len);
        file.extend_from_slice(self.header.as_bytes());
        file.extend_from_slice(&chunk);
        file.extend_from_slice(trailer);
        Ok(file)
    }

    /// The sizes that a chunk at `position` may have, in uncompressed bytes.
    pub fn fit(&self, position: u64) -> Fit {
        let chunksize = self.header.chunksize();
        match (chunksize, position + 1 >= self.entries.len() as u64) {
            (0, _) => Fit::Any,
            (size, true) => Fit::AtMost(size),
            (size, false) => Fit::Exactly(size),
        }
    }
}

/// What uncompressed size fits a place in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// Chunks vary in size, or nothing is known yet.
    Any,
    /// The last chunk, which may be shorter.
    AtMost(u32),
    /// Every other one.
    Exactly(u32),
}

impl Fit {
    /// Checks an uncompressed size.
    ///
    /// # Errors
    /// A chunk that does not fit.
    pub fn check(self, nbytes: u32) -> format::Result<()> {
        let err = |expected: String| Err(format::Error::new("chunk: nbytes", 4, nbytes, expected));
        match self {
            Fit::AtMost(0) | Fit::Any => Ok(()),
            Fit::AtMost(size) if nbytes == 0 || nbytes > size => err(format!("1 to {size}, the frame's chunksize")),
            Fit::Exactly(size) if nbytes != size => err(format!("{size}, the frame's chunksize")),
            _ => Ok(()),
        }
    }
}
