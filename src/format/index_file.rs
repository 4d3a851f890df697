//! The index file, `chunks.b2frame`: what a sparse frame's one has in it, and how one is made.

use std::ops::Range;
use std::sync::Arc;

use super::chunk::ChunkHeader;
use super::header::FrameHeader;
use super::trailer::Trailer;
use super::{ChunkId, Error, IndexEntry, Layout, Result, index};

/// An index file that parses as a whole.
#[derive(Debug, Clone)]
pub struct IndexFile {
    /// The header, of the sparse layout.
    pub header: FrameHeader,
    /// The trailer.
    pub trailer: Trailer,
    /// Which chunk stands where.
    pub entries: Arc<Vec<IndexEntry<ChunkId>>>,
}

/// An index chunk and what it says, for the files to come that have the same one.
#[derive(Debug)]
pub struct KnownIndex {
    chunk: Vec<u8>,
    entries: Arc<Vec<IndexEntry<ChunkId>>>,
}

impl KnownIndex {
    /// Of a file that was parsed to `index`.
    pub fn of(file: &[u8], index: &IndexFile) -> Self {
        let chunk = file.get(index.index_in(file)).unwrap_or_default();
        KnownIndex { chunk: chunk.to_vec(), entries: Arc::clone(&index.entries) }
    }

    /// Whether a file's entries were taken from here.
    pub fn gave(&self, index: &IndexFile) -> bool {
        Arc::ptr_eq(&self.entries, &index.entries)
    }
}

/// The largest index file that is looked at: what 2^31 bytes of index, the library's limit, and generous metadata take.
pub const MAX_LEN: u64 = 4 << 30;

impl IndexFile {
    /// Parses a whole file. A file in the middle of the library's rounds of writing is told apart by its lengths: frame_len is
    /// the file's, and the index fills what header and trailer leave.
    ///
    /// # Errors
    /// What does not fit, with its place.
    pub fn parse(file: &[u8]) -> Result<IndexFile> {
        Self::parse_known(file, None)
    }

    /// The same. What is known of the index chunk is not decoded again; of one that is known as a whole the file shares the
    /// entries.
    ///
    /// # Errors
    /// As [`IndexFile::parse`].
    pub fn parse_known(file: &[u8], known: Option<&KnownIndex>) -> Result<IndexFile> {
        let len = file.len() as u64;
        let header = FrameHeader::parse(file)?;
        if header.layout() != Layout::Sparse {
            return Err(Error::new("header: frame type", 26, "a contiguous frame", "a sparse frame (1)"));
        }
        if header.frame_len() != len {
            return Err(Error::new("header: frame_len", 16, header.frame_len(), format_args!("the file's length, {len}")));
        }
        let tail = file.get(file.len().saturating_sub(Trailer::TAIL_LEN)..).unwrap_or_default();
        let trailer_len = Trailer::announced_len(tail, header.header_len(), len)?;
        let trailer_start = file.len().saturating_sub(trailer_len as usize);
        let trailer = Trailer::parse(file.get(trailer_start..).unwrap_or_default())?;
        let header_len = header.header_len() as usize;
        let chunk = file.get(header_len..trailer_start).unwrap_or_default();
        let count = header.nchunks();
        let known = known.filter(|known| count.is_none_or(|count| count == known.entries.len() as u64));
        let entries = if header.nbytes() == 0 {
            if !chunk.is_empty() {
                return Err(Error::new(
                    "index",
                    header_len as u64,
                    format_args!("{} bytes", chunk.len()),
                    "none, as nbytes is 0",
                ));
            }
            Arc::default()
        } else if let Some(known) = known.filter(|known| known.chunk == chunk) {
            Arc::clone(&known.entries)
        } else {
            Arc::new(match known {
                Some(known) => index::decode_like(chunk, count, &known.chunk, &known.entries)?,
                None => index::decode(chunk, count)?,
            })
        };
        Ok(IndexFile { header, trailer, entries })
    }

    /// The file's bytes, with the header's own lengths and layout set right.
    ///
    /// # Errors
    /// More chunks than an index can hold.
    pub fn make_file(&mut self) -> Result<Vec<u8>> {
        self.make_file_like(None)
    }

    /// As [`IndexFile::make_file`], where a known index may have much of this one.
    ///
    /// # Errors
    /// As [`IndexFile::make_file`].
    pub fn make_file_knowing(&mut self, known: Option<&KnownIndex>) -> Result<Vec<u8>> {
        let Some(known) = known else { return self.make_file() };
        let now = Arc::clone(&self.entries);
        let same = |stretch: Range<usize>| {
            Arc::ptr_eq(&known.entries, &now)
                || known.entries.get(stretch.clone()).is_some_and(|then| now.get(stretch) == Some(then))
        };
        self.make_file_like(Some(index::Before { chunk: &known.chunk, same: &same }))
    }

    /// As [`IndexFile::make_file`], where much of the index is as it was in another such file: `before` is about the bytes that
    /// [`IndexFile::index_in`] finds there.
    ///
    /// # Errors
    /// As [`IndexFile::make_file`].
    pub fn make_file_like(&mut self, before: Option<index::Before<'_>>) -> Result<Vec<u8>> {
        let entries = |stretch: Range<usize>| self.entries.get(stretch).unwrap_or_default().iter().copied();
        let chunk = index::encode_like(self.entries.len(), entries, before)?;
        let trailer = self.trailer.as_bytes();
        let len = self.header.as_bytes().len().saturating_add(chunk.len()).saturating_add(trailer.len());
        self.header.set_layout(Layout::Sparse);
        self.header.set_frame_len(len as u64);
        // C-Blosc2 opens no frame, sparse ones included, with an index value above cbytes - 32; where few and small chunks are
        // stored among many special ones, the sum of their sizes is less than that.
        let largest = self.entries.iter().filter_map(|entry| entry.stored()).map(|id| u64::from(id.0)).max();
        let least = largest.map_or(0, |id| id.saturating_add(ChunkHeader::LEN as u64));
        if self.header.cbytes() < least {
            self.header.set_cbytes(least);
        }
        let mut file = Vec::with_capacity(len);
        file.extend_from_slice(self.header.as_bytes());
        file.extend_from_slice(&chunk);
        file.extend_from_slice(trailer);
        Ok(file)
    }

    /// The index in the bytes of a file that is one.
    pub fn index_in(&self, file: &[u8]) -> Range<usize> {
        let start = self.header.header_len() as usize;
        let end = file.len().saturating_sub(self.trailer.as_bytes().len());
        start.min(end)..end
    }
}
