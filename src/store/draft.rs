//! Bytes that a client is still writing: in memory while few, in an unlinked file on SOURCE's file system when many.

use std::io;
use std::sync::Arc;

use super::ReadAt;

/// The budget that all drafts of a mount share.
#[derive(Debug)]
pub struct DraftPool {}

/// A file being written. Grows, shrinks and is read at any place; holes read as zeros.
#[derive(Debug)]
pub struct Draft {}

impl Draft {
    /// An empty draft.
    pub fn new(_pool: &Arc<DraftPool>) -> Self {
        unimplemented!()
    }
    /// Writes all of `data` at `offset`.
    pub fn write_at(&mut self, _data: &[u8], _offset: u64) -> io::Result<()> {
        unimplemented!()
    }
    /// Cuts or lengthens.
    pub fn set_len(&mut self, _len: u64) -> io::Result<()> {
        unimplemented!()
    }
    /// Reads; a short count means the end.
    pub fn read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        unimplemented!()
    }
}

impl ReadAt for Draft {
    fn len(&self) -> u64 {
        unimplemented!()
    }
    fn read_exact_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<()> {
        unimplemented!()
    }
}
