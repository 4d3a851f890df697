//! Blosc2 chunks: headers, and the decoder for all standard codecs and filters.

use super::{Result, Special};

/// What a chunk's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Uncompressed size.
    pub nbytes: u32,
    /// Size of the whole chunk, header included.
    pub cbytes: u32,
    /// Size of a block; for VL-block chunks the number of blocks.
    pub blocksize: u32,
    /// Size of an item.
    pub typesize: u8,
    /// The chunk is a run of a special value: nothing but the header is stored.
    pub special: Option<Special>,
}

impl ChunkHeader {
    /// Bytes that [`ChunkHeader::parse`] needs, or fewer where the chunk is shorter (a Blosc1 chunk of 16 bytes and data).
    pub const LEN: usize = 32;

    /// Parses and checks the header at the beginning of `bytes`.
    pub fn parse(_bytes: &[u8]) -> Result<Self> {
        unimplemented!()
    }
}

/// Checks that `bytes` is one whole chunk: the header, its length, and every block start, without decoding data.
pub fn check(_bytes: &[u8]) -> Result<ChunkHeader> {
    unimplemented!()
}

/// Decodes a whole chunk of any standard codec and filter. `limit` bounds the size of the answer.
pub fn decode(_bytes: &[u8], _limit: usize) -> Result<Vec<u8>> {
    unimplemented!()
}
