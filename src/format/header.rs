//! The header of a frame.

use super::{Layout, Result};

/// A frame header, metalayers included, as it stands in a file: every byte is kept, and setters change only their field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameHeader {
    raw: Vec<u8>,
}

impl FrameHeader {
    /// Bytes that are enough for [`FrameHeader::announced_len`].
    pub const PREFIX_LEN: usize = 16;
    /// The smallest header that C-Blosc2 accepts.
    pub const MIN_LEN: usize = 87;

    /// The header_len field, checked against what a header can be, from the first bytes of a file.
    pub fn announced_len(_prefix: &[u8]) -> Result<u32> {
        unimplemented!()
    }
    /// Parses a header from the beginning of `bytes`, which may be longer than it.
    pub fn parse(_bytes: &[u8]) -> Result<Self> {
        unimplemented!()
    }
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.raw
    }
    /// header_len.
    pub fn header_len(&self) -> u32 {
        unimplemented!()
    }
    /// frame_len.
    pub fn frame_len(&self) -> u64 {
        unimplemented!()
    }
    /// The frame type.
    pub fn layout(&self) -> Layout {
        unimplemented!()
    }
    /// nbytes: uncompressed size of all chunks.
    pub fn nbytes(&self) -> u64 {
        unimplemented!()
    }
    /// cbytes: for a cframe the length of the chunks section, holes included; for an sframe the sum of the stored chunks' sizes.
    pub fn cbytes(&self) -> u64 {
        unimplemented!()
    }
    /// chunksize; 0 says that chunks vary in size.
    pub fn chunksize(&self) -> u32 {
        unimplemented!()
    }
    /// typesize.
    pub fn typesize(&self) -> u32 {
        unimplemented!()
    }
    /// The number of chunks: ceil(nbytes / chunksize); `None` when chunks vary in size and only the index knows.
    pub fn nchunks(&self) -> Option<u64> {
        unimplemented!()
    }
    /// Sets frame_len.
    pub fn set_frame_len(&mut self, _value: u64) {
        unimplemented!()
    }
    /// Sets the frame type.
    pub fn set_layout(&mut self, _value: Layout) {
        unimplemented!()
    }
    /// Sets nbytes.
    pub fn set_nbytes(&mut self, _value: u64) {
        unimplemented!()
    }
    /// Sets cbytes.
    pub fn set_cbytes(&mut self, _value: u64) {
        unimplemented!()
    }
    /// Sets the flag that says whether the trailer holds vlmetalayers.
    pub fn set_has_vlmetalayers(&mut self, _value: bool) {
        unimplemented!()
    }
}
