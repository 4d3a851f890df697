//! The first commit of a frame that did not exist: how what is finished gets SOURCE's name, and what had it before goes.
//!
//! Until then all is under a temporary name beside it, so there is never an unfinished frame under SOURCE's. What is to be
//! replaced is replaced whole: by rename where both are files, by an exchange of the two names where one is a directory; and
//! removed when that is on disk.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use log::{debug, warn};

use super::backend::{Backend, BackendFile, FileStat};
use super::error::Complain;
use super::error::Failed;
use super::source::Handle;
use super::source::Source;
use super::{Result, StoreError, sidecar};
use crate::format::{ChunkId, INDEX_NAME};
use crate::store::in_words;

/// Why a SOURCE that did not exist is not made.
pub(super) const MADE_BY_OTHERS: &str = "it was made by another process in the meantime";

/// A frame that has only a temporary name.
pub(super) struct PendingFrame {
    /// What the temporary name stands for.
    ours: FileStat,
    temp: OsString,
    replaced: Option<Replaced>,
}

/// What has the name of a frame to be created, and is to be replaced by it.
struct Replaced {
    stat: FileStat,
    /// Holds its lock, so that nobody is writing to it.
    _locked: Option<Arc<dyn BackendFile>>,
}

/// How names of what is unfinished begin.
pub(crate) const TEMP_PREFIX: &str = ".b2fuse-";

/// A name for something unfinished beside SOURCE that says whose it is, and what `make` makes of it.
pub(super) fn with_temp_name<T>(mut make: impl FnMut(&OsStr) -> io::Result<T>) -> io::Result<(OsString, T)> {
    let mut attempt = 0u32;
    loop {
        let name = OsString::from(format!("{TEMP_PREFIX}{}-{attempt}.tmp", std::process::id()));
        match make(&name) {
            Ok(made) => return Ok((name, made)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < u32::MAX => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Looks at what is to be replaced.
fn claim(source: &Source) -> Result<Option<Replaced>> {
    let place = source.place();
    let (backend, name) = (place.backend(), place.name());
    let Some(stat) = source.stat()? else { return Ok(None) };
    if !source.replace {
        return Err(source.io("create")(io::ErrorKind::AlreadyExists.into()));
    }
    if source.new.replaced.is_some_and(|expected| !expected.same_file(&stat)) {
        return Err(source.stale("it was replaced in the meantime"));
    }
    let locked = match stat.mode & libc::S_IFMT {
        libc::S_IFLNK => None, // the link goes, and what it leads to stays
        libc::S_IFREG => Some(backend.open(name, false).map(Arc::from)),
        libc::S_IFDIR => Some(backend.open_dir(name).and_then(|dir| {
            if let Some(other) = dir.names()?.into_iter().find(|name| !is_part_of_frame(name)) {
                let words = format!("it holds {}, which is no part of a frame", other.display());
                return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, words));
            }
            dir.itself()
        })),
        _ => return Err(source.unsupported("is neither a file nor a directory, so it is not replaced")),
    };
    let locked = locked.transpose().map_err(source.io("replace"))?;
    if let Some(file) = &locked {
        if !file.stat().map_err(source.io("stat"))?.same_file(&stat) {
            return Err(source.stale("it was replaced in the meantime"));
        }
        if !file.try_lock().map_err(source.io("lock"))? {
            return Err(StoreError::busy(&source.called(), &**file));
        }
    }
    Ok(Some(Replaced { stat, _locked: locked }))
}

/// Whether a name is one that a sparse frame's directory has.
pub(crate) fn is_part_of_frame(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    name == INDEX_NAME
        || name == sidecar::SUFFIX
        || bytes.starts_with(TEMP_PREFIX.as_bytes())
        || ChunkId::from_file_name(bytes).is_some()
}

impl PendingFrame {
    /// Makes room for a new frame: looks whether something has its name, and makes what is to have it under a temporary one.
    /// `found` is that, if it is there.
    pub(super) fn create(
        source: &Source,
        found: Option<(OsString, Handle)>,
        make: impl FnMut(&OsStr) -> io::Result<Handle>,
    ) -> Result<(Self, Handle)> {
        let replaced = claim(source)?;
        let (temp, made) = match found {
            Some(found) => found,
            None => with_temp_name(make).map_err(source.io("create"))?,
        };
        Ok((PendingFrame { ours: made.stat, temp, replaced }, made))
    }

    /// What others have done meanwhile to SOURCE's name.
    pub(super) fn seen_outside(&self, at_path: Option<&FileStat>) -> Option<String> {
        match (at_path, &self.replaced) {
            (Some(now), Some(replaced)) if now.same_file(&replaced.stat) => None,
            (Some(_), _) => Some(MADE_BY_OTHERS.to_owned()),
            (None, _) => None,
        }
    }

    /// Gives what is finished SOURCE's name, on disk: that of the temporary name, or something else of ours.
    pub(super) fn give_name(&self, source: &Source, other: Option<(&OsStr, FileStat)>) -> std::result::Result<(), Failed> {
        let place = source.place();
        let (backend, name) = (place.backend(), place.name());
        let (temp, ours) = other.unwrap_or((&self.temp, self.ours));
        let at_path = source.stat().map_err(Failed::harmless)?;
        if let Some(reason) = self.seen_outside(at_path.as_ref()) {
            return Err(Failed::harmless(source.stale(reason)));
        }
        let exchanged = at_path.is_some_and(|there| there.is_dir() || ours.is_dir());
        let renamed = match (&at_path, exchanged) {
            (None, _) => backend.rename(temp, name, false),
            (Some(_), false) => backend.rename(temp, name, true),
            (Some(_), true) => backend.exchange(temp, name),
        };
        renamed.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Failed::harmless(source.stale(MADE_BY_OTHERS)),
            _ => Failed::rename(source.io("give the new frame its name")(error)),
        })?;
        backend.sync_dir().map_err(|error| Failed::in_doubt(source.io("sync the directory")(error)))?;
        if exchanged
            && let Some(replaced) = &self.replaced
            && let Err(error) = remove(&**backend, temp, &replaced.stat)
        {
            let path = source.called().with_file_name(temp);
            warn!("{}: what was replaced is here, and cannot be removed: {}", path.display(), in_words(&error));
        }
        Ok(())
    }

    /// It is not needed any more, or never will be.
    pub(super) fn remove(&self, source: &Source) {
        if source.new.resumed.as_ref().is_some_and(|unfinished| unfinished.name == self.temp && unfinished.leave.load(Relaxed)) {
            return;
        }
        // A rename that failed may have been done all the same; what has the temporary name then is not ours.
        if let Err(error) = remove(&*source.backend(), &self.temp, &self.ours) {
            debug!("{}: cannot remove {}: {}", source.called().display(), self.temp.display(), in_words(&error));
        }
    }
}

/// Removes the file or the frame's directory that was looked at, if it has that name. In a directory, only what a frame has in one is
/// removed.
fn remove(backend: &dyn Backend, name: &OsStr, seen: &FileStat) -> io::Result<()> {
    if !seen.is_dir() {
        return backend.remove_file(name, seen);
    }
    let dir = backend.open_dir(name)?;
    if !dir.itself()?.stat()?.same_file(seen) {
        return Err(io::Error::other("another directory has its name now"));
    }
    dir.names()?.iter().filter(|file| is_part_of_frame(file)).try_for_each(|file| dir.remove(file))?;
    backend.remove_dir(name)
}
