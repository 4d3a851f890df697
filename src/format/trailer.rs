//! The trailer of a frame.

use super::Result;

/// A trailer as it stands in a file: every byte is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trailer {
    raw: Vec<u8>,
}

impl Trailer {
    /// The last bytes of a frame, enough for [`Trailer::announced_len`].
    pub const TAIL_LEN: usize = 25;

    /// The trailer_len field from the last [`Trailer::TAIL_LEN`] bytes of a frame of `frame_len` bytes with a header of
    /// `header_len`, checked against both.
    pub fn announced_len(_tail: &[u8], _header_len: u32, _frame_len: u64) -> Result<u32> {
        unimplemented!()
    }
    /// Parses a trailer; `bytes` is exactly it.
    pub fn parse(_bytes: &[u8]) -> Result<Self> {
        unimplemented!()
    }
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.raw
    }
    /// The vlmetalayers in order: name and content, a Blosc2 chunk each.
    pub fn vlmetalayers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        std::iter::empty()
    }
}
