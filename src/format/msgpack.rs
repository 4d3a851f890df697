//! MessagePack: reading from bytes that may say anything, with errors that know where they are, and writing.
//!
//! Markers are rmp's. Its readers and writers of whole values are not used: they choose or accept any width, while a frame
//! has each field in the one width that C-Blosc2 reads.

use rmp::Marker;

use super::{Error, Result};

/// A place in some bytes, going forward.
pub(super) struct Reader<'a> {
    whole: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Begins at `at`; past the end there is simply nothing to read.
    pub(super) fn new(whole: &'a [u8], at: usize) -> Self {
        Reader { whole, rest: whole.get(at..).unwrap_or_default() }
    }
    /// Bytes from the beginning of the whole.
    pub(super) fn position(&self) -> usize {
        self.whole.len().saturating_sub(self.rest.len())
    }
    /// Whether nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: usize, field: &'static str) -> Result<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(len).ok_or_else(|| self.short(field, len))?;
        self.rest = tail;
        Ok(head)
    }
    /// The next `N` bytes, for `from_be_bytes`.
    pub(super) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N]> {
        let (head, tail) = self.rest.split_first_chunk().ok_or_else(|| self.short(field, N))?;
        self.rest = tail;
        Ok(*head)
    }
    /// A marker from which `accept` makes a value; `what` says which one that would be.
    pub(super) fn marker<T>(&mut self, field: &'static str, what: &str, accept: impl Fn(Marker) -> Option<T>) -> Result<T> {
        let at = self.position() as u64;
        let [byte] = self.array(field)?;
        accept(Marker::from_u8(byte)).ok_or_else(|| Error::new(field, at, format_args!("{byte:#04x}"), what))
    }
    fn short(&self, field: &'static str, wanted: usize) -> Error {
        Error::new(field, self.position() as u64, format_args!("{} bytes", self.rest.len()), format_args!("at least {wanted}"))
    }
}

/// Appends a marker and what comes after it.
pub(super) fn put(out: &mut Vec<u8>, marker: Marker, data: &[u8]) {
    out.push(marker.to_u8());
    out.extend_from_slice(data);
}
