//! Whether bytes that a client wrote are one whole chunk.

use std::io;

use crate::format::chunk::{self, ChunkHeader, Decoder};
use crate::format::{self, Fit};
use crate::store::ReadAt;
use crate::store::frame::zeros;

/// A chunk's sizes are 32-bit and signed.
pub const MAX_CHUNK_LEN: u64 = i32::MAX as u64;
/// C-Blosc2 reads no smaller chunk from a frame.
const MIN_CHUNK_LEN: u64 = ChunkHeader::LEN as u64;
/// Chunks up to this size have every block and stream length looked at, which takes them whole in memory; of larger ones only the
/// header is checked.
pub const CHECKED_LEN: u64 = 64 << 20;

pub use crate::store::frame::MOST_HOLE;

/// Why bytes are not taken for a chunk.
#[derive(Debug)]
pub enum InvalidChunk {
    /// They cannot be read back.
    Io(io::Error),
    /// They are none, or none that fits.
    Bad(format::Error),
}

/// Whether bytes that are not a chunk may become one by others behind them.
///
/// # Errors
/// They cannot be read back.
pub fn may_become_chunk(bytes: &dyn ReadAt) -> io::Result<bool> {
    let len = bytes.len();
    if len < MIN_CHUNK_LEN {
        return Ok(true);
    }
    let mut head = vec![0; ChunkHeader::LEN];
    bytes.read_exact_at(&mut head, 0)?;
    // Where nothing was written yet, it reads as zeros.
    let is_unwritten = head.iter().all(|byte| *byte == 0);
    Ok(is_unwritten || ChunkHeader::parse(&head).is_ok_and(|header| len < u64::from(header.cbytes)))
}

/// Checks that bytes are one whole chunk that fits, without decoding it. Special chunks may fit as entries of the index alone.
///
/// # Errors
/// See [`InvalidChunk`].
pub fn validate_chunk(bytes: &dyn ReadAt, fit: Fit) -> Result<ChunkHeader, InvalidChunk> {
    let len = bytes.len();
    if len < MIN_CHUNK_LEN {
        let expected = format!("at least {MIN_CHUNK_LEN} bytes for a chunk in a frame");
        return Err(InvalidChunk::Bad(format::Error::new("chunk", 0, format_args!("{len} bytes"), expected)));
    }
    let mut head = vec![0; ChunkHeader::LEN];
    bytes.read_exact_at(&mut head, 0).map_err(InvalidChunk::Io)?;
    let header = ChunkHeader::parse(&head).map_err(InvalidChunk::Bad)?;
    fit.keep(&header.traits()).map_err(InvalidChunk::Bad)?;
    if u64::from(header.cbytes) != len {
        let expected = format!("the file's length, {len}");
        return Err(InvalidChunk::Bad(format::Error::new("chunk: cbytes", 12, header.cbytes, expected)));
    }
    if len > CHECKED_LEN {
        return Ok(header);
    }
    whole(bytes, chunk::check)
}

/// Checks that bytes are a chunk that decodes, as far as that can be told without a plugin. Larger ones than [`CHECKED_LEN`] pass.
///
/// # Errors
/// See [`InvalidChunk`].
pub fn verify_chunk(bytes: &dyn ReadAt) -> Result<(), InvalidChunk> {
    if bytes.len() > CHECKED_LEN {
        return Ok(());
    }
    whole(bytes, |whole| Decoder::default().verify(whole)).map(drop)
}

fn whole<T>(bytes: &dyn ReadAt, check: impl FnOnce(&[u8]) -> format::Result<T>) -> Result<T, InvalidChunk> {
    if let Some(whole) = bytes.as_slice() {
        return check(whole).map_err(InvalidChunk::Bad);
    }
    let mut whole = zeros(bytes.len()).map_err(InvalidChunk::Io)?;
    bytes.read_exact_at(&mut whole, 0).map_err(InvalidChunk::Io)?;
    check(&whole).map_err(InvalidChunk::Bad)
}
