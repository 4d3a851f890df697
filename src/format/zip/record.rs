//! Numbers and marks in bytes of an archive.

use crate::format::{Error, Result};

/// Bytes that begin somewhere in a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    /// Where in the file.
    start: u64,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8], start: u64) -> Self {
        Fields { bytes, start }
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The place of a field in the file.
    pub(super) fn offset(&self, at: u64) -> u64 {
        self.start.saturating_add(at)
    }

    /// Bytes from one place of the file on.
    pub(super) fn part(&self, field: &'static str, from: u64, len: u64) -> Result<Self> {
        let start = from.checked_sub(self.start).and_then(|start| usize::try_from(start).ok());
        let bytes = start.and_then(|start| self.bytes.get(start..)).unwrap_or_default();
        match usize::try_from(len).ok().and_then(|len| bytes.get(..len)) {
            Some(bytes) => Ok(Fields { bytes, start: from }),
            None => Err(Error::new(field, from, format_args!("{} bytes", bytes.len()), format_args!("{len} bytes"))),
        }
    }

    fn array<const N: usize>(&self, at: u64) -> Result<[u8; N]> {
        let bytes = usize::try_from(at).ok().and_then(|at| self.bytes.get(at..)?.first_chunk());
        bytes.copied().ok_or_else(|| Error::new("zip: record", self.start, format_args!("{} bytes", self.bytes.len()), "more"))
    }

    pub(super) fn u16(&self, at: u64) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array(at)?))
    }

    pub(super) fn u32(&self, at: u64) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(at)?))
    }

    pub(super) fn u64(&self, at: u64) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(at)?))
    }

    /// That a field holds these bytes.
    pub(super) fn expect<const N: usize>(&self, at: u64, field: &'static str, expected: &[u8; N]) -> Result<()> {
        let got: [u8; N] = self.array(at)?;
        if got == *expected {
            return Ok(());
        }
        let (got, expected) = (got.escape_ascii(), expected.escape_ascii());
        Err(Error::new(field, self.offset(at), got, expected))
    }
}
