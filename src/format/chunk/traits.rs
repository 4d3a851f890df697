//! What of a chunk matters to the frame that is to have it.

use super::super::Special;

/// What a chunk holds behind its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Streams or a copy, in blocks of one size.
    Blocks,
    /// Streams of blocks that differ in size.
    VlBlocks,
    /// One value of this many bytes, repeated.
    Value(u32),
    /// Nothing: the header says it all.
    Special(Special),
    /// Data behind a header of Blosc1.
    Blosc1,
    /// Streams of a codec that no number stands for.
    UnknownCodec,
}

/// What of a chunk's header matters to its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// Uncompressed size.
    pub nbytes: u32,
    /// Size of a block.
    pub blocksize: u32,
    /// Size of an item.
    pub typesize: u8,
    /// What it holds.
    pub form: Form,
}

impl Traits {
    /// The special value, if the chunk is a run of one.
    pub fn special(&self) -> Option<Special> {
        if let Form::Special(special) = self.form { Some(special) } else { None }
    }
}
