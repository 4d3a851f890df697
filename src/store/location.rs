//! Where a frame is, or will be: a name in a directory that is held open.
//!
//! A path that the user gave is resolved once, links included. From then on a frame is what its name means in that directory: looked
//! up beneath the descriptor, with no link followed.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::backend::{Backend, BackendFile, FileStat};
use super::error::Complain;
use super::local::FileBackend;
use super::{Result, StoreError, local};
use crate::format::{INDEX_NAME, Layout};

/// A name in a directory that is held open.
#[derive(Clone)]
pub struct Location {
    /// As the user named it, for messages.
    path: PathBuf,
    /// The directory's path, without symbolic links when it was opened.
    dir: PathBuf,
    name: OsString,
    backend: Arc<dyn Backend>,
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Location").field("path", &self.path).field("real", &self.real_path()).finish_non_exhaustive()
    }
}

impl Complain for Location {
    fn called(&self) -> PathBuf {
        self.path.clone()
    }
}

impl Location {
    /// What a path leads to, links followed to the last one.
    ///
    /// # Errors
    /// What the system refuses; a path that leads nowhere.
    pub fn existing(path: &Path) -> Result<Self> {
        Self::found(path, FileBackend::open_resolved)
    }

    /// As [`Location::existing`], for a sparse frame in whose directory links are followed as
    /// [`FileBackend::following_links_inside`] says.
    ///
    /// # Errors
    /// As [`Location::existing`].
    pub fn following_links(path: &Path) -> Result<Self> {
        Self::found(path, |dir| Ok(FileBackend::open_resolved(dir)?.following_links_inside()))
    }

    fn found(path: &Path, open: impl Fn(&Path) -> io::Result<FileBackend>) -> Result<Self> {
        let failed = |source| StoreError::Io { path: path.to_owned(), action: "open", source };
        let real = local::resolve(path).map_err(failed)?;
        let (Some(dir), Some(name)) = (real.parent(), real.file_name()) else {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        };
        let backend = open(dir).map_err(failed)?;
        Ok(Location { path: path.to_owned(), dir: dir.to_owned(), name: name.to_owned(), backend: Arc::new(backend) })
    }

    /// The last name of a path in its directory, whether there is something of that name or not. Links are followed to the directory.
    ///
    /// # Errors
    /// What the system refuses; a path without a last name; a directory that is not there.
    pub fn to_be(path: &Path) -> Result<Self> {
        let failed = |source| StoreError::Io { path: path.to_owned(), action: "create", source };
        let Some(name) = path.file_name() else { return Err(failed(io::ErrorKind::InvalidInput.into())) };
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let dir = local::resolve(dir).map_err(failed)?;
        let backend = FileBackend::open_resolved(&dir).map_err(failed)?;
        Ok(Location { path: path.to_owned(), dir, name: name.to_owned(), backend: Arc::new(backend) })
    }

    /// A name in any backend. `path` is how messages call it, `dir` the path of the backend's directory.
    pub fn in_backend(backend: Arc<dyn Backend>, path: &Path, dir: &Path, name: &OsStr) -> Self {
        Location { path: path.to_owned(), dir: dir.to_owned(), name: name.to_owned(), backend }
    }

    /// The same place, by another path in messages.
    #[must_use]
    pub fn called(self, path: &Path) -> Self {
        Location { path: path.to_owned(), ..self }
    }

    /// As the user named it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path without symbolic links, as it was when the directory was opened.
    pub fn real_path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// The path of the directory, likewise.
    pub fn dir_path(&self) -> &Path {
        &self.dir
    }

    /// The name in the directory.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// The directory.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// What has the name now, if anything has. A link is not followed.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn stat(&self) -> Result<Option<FileStat>> {
        match self.backend.stat(&self.name) {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.io("stat")(error)),
        }
    }

    /// Which layout the frame here has: a file is taken for a cframe, a directory with an index for an sframe. `None` if nothing has
    /// the name.
    ///
    /// # Errors
    /// What is there and no frame; what the system refuses.
    pub fn layout(&self) -> Result<Option<Layout>> {
        let Some(stat) = self.stat()? else { return Ok(None) };
        if stat.is_file() {
            return Ok(Some(Layout::Contiguous));
        }
        if !stat.is_dir() {
            return Err(self.unsupported("is no regular file; expected a Blosc2 frame"));
        }
        let inside = self.backend.open_dir(&self.name).and_then(|dir| dir.stat(OsStr::new(INDEX_NAME)));
        match inside {
            Ok(_) => Ok(Some(Layout::Sparse)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(self.unsupported("is a directory without chunks.b2frame; expected a Blosc2 frame"))
            }
            Err(error) => Err(self.io("be read")(error)),
        }
    }

    /// Opens the file here for reading.
    ///
    /// # Errors
    /// What the system refuses; a link; what is no regular file.
    pub fn open(&self) -> Result<Box<dyn BackendFile>> {
        match self.stat()? {
            Some(stat) if !stat.is_file() && !stat.is_link() => {
                Err(self.unsupported("is no regular file; expected a Blosc2 frame"))
            }
            _ => self.backend.open(&self.name, false).map_err(self.io("open")),
        }
    }

    /// Opens the directory here.
    ///
    /// # Errors
    /// What the system refuses; a link; what is no directory.
    pub fn open_dir(&self) -> Result<Box<dyn Backend>> {
        self.backend.open_dir(&self.name).map_err(self.io("open"))
    }
}
