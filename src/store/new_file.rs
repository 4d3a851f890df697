//! A file beside frames that gets its name when it is whole and on disk.

use std::ffi::OsString;

use super::backend::{BackendFile, FileStat};
use super::create::{MADE_BY_OTHERS, with_temp_name};
use super::{Location, Result, StoreError, in_words};

/// A file with a temporary name, which it loses when this is dropped before [`NewFile::finish`].
pub struct NewFile {
    location: Location,
    file: Box<dyn BackendFile>,
    /// Until it has its name.
    temp: Option<OsString>,
    replaced: Option<FileStat>,
}

impl NewFile {
    /// Makes one, to be at a location, with permission bits that the umask cuts. What is `replaced` then may have the name, and nothing
    /// else.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn create(location: &Location, mode: u32, replaced: Option<FileStat>) -> Result<Self> {
        let backend = location.backend();
        let made = with_temp_name(|name| backend.create(name, mode));
        let (temp, file) = made.map_err(|source| failed(location, "create", source))?;
        Ok(NewFile { location: location.clone(), file, temp: Some(temp), replaced })
    }

    /// The open file.
    pub fn file(&self) -> &dyn BackendFile {
        &*self.file
    }

    /// Bytes that there is room for.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn available(&self) -> Result<u64> {
        let space = self.location.backend().statvfs();
        Ok(space.map_err(|source| failed(&self.location, "find the room left for", source))?.available_bytes())
    }

    /// Writes.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.file.write_at(data, offset).map_err(|source| failed(&self.location, "write", source))
    }

    /// Gives it its length and its name, and returns when both are on disk.
    ///
    /// # Errors
    /// What the system refuses; that something else has the name.
    pub fn finish(mut self, len: u64) -> Result<()> {
        let failed = |action, source| failed(&self.location, action, source);
        self.file.set_len(len).map_err(|source| failed("write", source))?;
        self.file.sync_all().map_err(|source| failed("sync", source))?;
        let backend = self.location.backend();
        let there = self.location.stat()?;
        let is_as_expected = match (&there, &self.replaced) {
            (None, _) => true,
            (Some(there), Some(replaced)) => there.same_file(replaced) && there.is_file(),
            (Some(_), None) => false,
        };
        if !is_as_expected {
            return Err(StoreError::Stale { path: self.location.path().to_owned(), reason: MADE_BY_OTHERS.into() });
        }
        if let Some(temp) = &self.temp {
            let renamed = backend.rename(temp, self.location.name(), there.is_some());
            renamed.map_err(|source| failed("give the new file its name", source))?;
        }
        self.temp = None;
        backend.sync_dir().map_err(|source| failed("sync the directory", source))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let (Some(temp), Ok(stat)) = (&self.temp, self.file.stat())
            && let Err(error) = self.location.backend().remove_file(temp, &stat)
        {
            log::warn!("{}: {} stays there: {}", self.location.path().display(), temp.display(), in_words(&error));
        }
    }
}

fn failed(location: &Location, action: &'static str, source: std::io::Error) -> StoreError {
    StoreError::Io { path: location.path().to_owned(), action, source }
}
