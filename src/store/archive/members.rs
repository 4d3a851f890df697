//! The files in an archive as files that can be looked at one by one, for the commands that do so: nothing of it can be written.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use super::Archive;
use crate::format::Layout;
use crate::format::header::FrameHeader;
use crate::format::zip::{Entry, Number};
use crate::store::backend::{Backend, BackendFile, FileStat, FsSpace, names_cannot_be_changed, read_only};
use crate::store::walk::{self, Step, has_frame_suffix};
use crate::store::{Location, Result, StoreError};

/// The frames in the archive at a location, and its other files, in the order of their names.
///
/// # Errors
/// That it is no archive; what the system refuses.
pub fn frames(location: &Location) -> Result<Vec<Step>> {
    let archive = Arc::new(Archive::open(location)?);
    let mut names: Vec<_> =
        archive.contents().files().into_iter().map(|(number, _)| (archive.contents().path(number), number)).collect();
    names.sort_unstable();
    let mut steps = Vec::with_capacity(names.len());
    for (name, number) in names {
        let name = OsString::from_vec(name);
        let file = Member { archive: Arc::clone(&archive), number };
        let at = self::location(&archive, number);
        let stat = file.stat().map_err(|source| StoreError::Io { path: at.path().to_owned(), action: "stat", source })?;
        let entry = walk::Entry { location: at, stat, in_store: true };
        let mut beginning = [0; FrameHeader::KIND_LEN];
        let read = archive.read_at(number, &mut beginning, 0)?;
        let is_frame = has_frame_suffix(&name) && beginning.get(..read).is_some_and(FrameHeader::begins_cframe);
        steps.push(if is_frame { Step::Frame(entry, Layout::Contiguous) } else { Step::Other(entry) });
    }
    Ok(steps)
}

/// The place of a file in an archive, for reading.
pub fn location(archive: &Arc<Archive>, number: Number) -> Location {
    let name = OsString::from_vec(archive.contents().path(number));
    let backend: Arc<dyn Backend> = Arc::new(Members(Arc::clone(archive)));
    Location::in_backend(backend, &archive.path().join(&name), archive.path(), &name)
}

/// An archive as a directory of files, whose names are their paths in it.
struct Members(Arc<Archive>);

/// A file in an archive.
struct Member {
    archive: Arc<Archive>,
    number: Number,
}

impl Members {
    fn find(&self, path: &OsStr) -> io::Result<Member> {
        let mut number = Some(Number::ROOT);
        for name in path.as_bytes().split(|byte| *byte == b'/') {
            number = number.and_then(|dir| self.0.contents().child(dir, name));
        }
        let number = number.ok_or(io::ErrorKind::NotFound)?;
        Ok(Member { archive: Arc::clone(&self.0), number })
    }
}

fn failed(error: StoreError) -> io::Error {
    match error {
        StoreError::Io { source, .. } => source,
        error => io::Error::from_raw_os_error(error.errno()),
    }
}

impl Backend for Members {
    fn open(&self, name: &OsStr, write: bool) -> io::Result<Box<dyn BackendFile>> {
        if write { read_only() } else { Ok(Box::new(self.find(name)?)) }
    }

    names_cannot_be_changed!();

    fn open_dir(&self, _name: &OsStr) -> io::Result<Box<dyn Backend>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn names(&self) -> io::Result<Vec<OsString>> {
        Ok(Vec::new())
    }

    fn itself(&self) -> io::Result<Arc<dyn BackendFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_dir(&self) -> io::Result<()> {
        read_only()
    }

    fn sync_fs(&self) -> io::Result<()> {
        read_only()
    }

    fn stat(&self, name: &OsStr) -> io::Result<FileStat> {
        self.find(name)?.stat()
    }

    fn statvfs(&self) -> io::Result<FsSpace> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl BackendFile for Member {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.archive.read_at(self.number, buf, offset).map_err(failed)
    }

    fn write_at(&self, _data: &[u8], _offset: u64) -> io::Result<()> {
        read_only()
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        read_only()
    }

    fn sync_data(&self) -> io::Result<()> {
        read_only()
    }

    fn sync_all(&self) -> io::Result<()> {
        read_only()
    }

    fn stat(&self) -> io::Result<FileStat> {
        let Some(Entry::File(member)) = self.archive.contents().entry(self.number) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let stat = self.archive.stat().map_err(failed)?;
        Ok(FileStat { len: member.len, allocated: member.len, ..stat })
    }

    fn try_lock(&self) -> io::Result<bool> {
        read_only()
    }

    fn unlock(&self) -> io::Result<()> {
        read_only()
    }
}
