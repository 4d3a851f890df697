//! A file of NumPy's, for reading.

use super::backend::{BackendFile, FileStat, read_exact_at};
use super::error::Complain;
use super::{Location, Result, StoreError};
use crate::format::npy::{NpyHeader, Parsed};

/// How every such file begins.
const MAGIC: &[u8] = b"\x93NUMPY";
/// What is read to parse the header, at first.
const PREFIX: usize = 4096;

/// An open file of NumPy's. Its items are read as they stand there.
pub struct NpyFile {
    location: Location,
    file: Box<dyn BackendFile>,
    header: NpyHeader,
    /// As it was when it was opened.
    stat: FileStat,
}

impl NpyFile {
    /// Opens the file at a location; `None` if there is none, or one that begins as no file of NumPy's does.
    ///
    /// # Errors
    /// What the system refuses; a header that cannot be read; fewer items than it says.
    pub fn open(location: &Location) -> Result<Option<Self>> {
        if !location.stat()?.is_some_and(|stat| stat.is_file()) {
            return Ok(None);
        }
        let file = location.open()?;
        let stat = file.stat().map_err(location.io("stat"))?;
        let mut prefix = Vec::new();
        let mut want = PREFIX;
        let header = loop {
            let len = usize::try_from(stat.len).map_or(want, |len| want.min(len));
            prefix.resize(len, 0);
            read_exact_at(&*file, &mut prefix, 0).map_err(location.io("be read"))?;
            if !prefix.starts_with(MAGIC) {
                return Ok(None);
            }
            match NpyHeader::parse(&prefix).map_err(|source| location.format(source))? {
                Parsed::Header(header) => break header,
                Parsed::Needs(more) if more > want && len == want => want = more,
                Parsed::Needs(more) => {
                    let reason = format!("ends after {len} bytes, within the header; expected at least {more}");
                    return Err(location.unsupported(reason));
                }
            }
        };
        let end = header.data_len().and_then(|len| len.checked_add(header.data_offset)).unwrap_or(u64::MAX);
        if stat.len < end {
            return Err(location.unsupported(format!("is {} bytes long; expected {end}, as its header says", stat.len)));
        }
        Ok(Some(NpyFile { location: location.clone(), file, header, stat }))
    }

    /// What it holds.
    pub fn header(&self) -> &NpyHeader {
        &self.header
    }

    /// Its permission bits.
    pub fn mode(&self) -> u32 {
        self.stat.mode & 0o777
    }

    /// Fills a buffer from a place in the items.
    ///
    /// # Errors
    /// What the system refuses; the file was cut.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let at = self.header.data_offset.saturating_add(offset);
        read_exact_at(&*self.file, buf, at).map_err(self.location.io("be read"))
    }

    /// # Errors
    /// What the system refuses; another process has changed the file since it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        let now = self.file.stat().map_err(self.location.io("stat"))?;
        if (now.len, now.mtime) == (self.stat.len, self.stat.mtime) {
            return Ok(());
        }
        Err(self.failed("was changed by another process while it was being read"))
    }

    /// That it cannot be taken, and why.
    pub fn failed(&self, reason: impl Into<String>) -> StoreError {
        self.location.unsupported(reason)
    }
}
