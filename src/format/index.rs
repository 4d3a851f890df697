//! The index chunk: a Blosc2 chunk of little-endian 64-bit entries.

use super::{ChunkId, ChunkOffset, IndexEntry, Result};

/// What an entry of an index can hold beside special values.
pub trait Place: Copy {
    /// From a non-negative entry.
    fn from_raw(raw: u64, position: u64) -> Result<Self>;
    /// To a non-negative entry.
    fn to_raw(self) -> u64;
}

impl Place for ChunkOffset {
    fn from_raw(raw: u64, _position: u64) -> Result<Self> {
        Ok(ChunkOffset(raw))
    }
    fn to_raw(self) -> u64 {
        self.0
    }
}

impl Place for ChunkId {
    fn from_raw(_raw: u64, _position: u64) -> Result<Self> {
        unimplemented!()
    }
    fn to_raw(self) -> u64 {
        u64::from(self.0)
    }
}

/// Decodes an index chunk, which must be exactly `bytes`. `expected` is the number of entries that the header gives; without it
/// (chunks of varying size) the index's own size says.
pub fn decode<P: Place>(_bytes: &[u8], _expected: Option<u64>) -> Result<Vec<IndexEntry<P>>> {
    unimplemented!()
}

/// Encodes an index as C-Blosc2 reads it: BloscLZ, shuffle, typesize 8, never split, blocks of 16 KiB.
pub fn encode<P: Place>(_entries: impl ExactSizeIterator<Item = IndexEntry<P>>) -> Result<Vec<u8>> {
    unimplemented!()
}
