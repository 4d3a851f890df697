//! Copying a directory with all that is in it, so that each frame has one layout.
//!
//! What is no frame is copied as it is: files with their holes, directories, symbolic links as links, hard links among files as such,
//! FIFOs, sockets and devices; with owner, mode, extended attributes and times, as far as that is allowed. What gives rights to a program
//! is left out, as [`BackendFile::copy_attributes`] says. A frame that has its layout already is copied byte for byte as well.
//!
//! Other frames are for the caller to make, by [`FrameCopy`]: each step of a [`TreeCopy`] does one thing or names such a frame.
//! Nothing is sure to be on disk before [`TreeCopy::finish`] has returned.
//!
//! In a store of python-blosc2 frames are files, whatever layout the others get: it looks for nothing else.
//!
//! [`BackendFile::copy_attributes`]: crate::store::backend::BackendFile::copy_attributes

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::FrameCopy;
use super::unsynced::Unsynced;
use crate::format::{INDEX_NAME, Layout};
use crate::store::backend::{Backend, BackendFile, FileStat};
use crate::store::error::Complain;
use crate::store::local::{self, FileBackend};
use crate::store::walk::{Chain, Entry, Step, Walk, is_in_store};
use crate::store::{LocalStore, Location, Result, StoreError};

/// A frame that is to be copied into another layout than it has.
#[derive(Debug)]
pub struct FrameToCopy {
    /// Where it is.
    pub from: Entry,
    /// The layout that it has.
    pub has: Layout,
    /// The layout that its copy is to have.
    pub wants: Layout,
    /// Where the copy is to be.
    pub to: Location,
}

/// A copy that is being made.
pub struct TreeCopy<'a> {
    walk: Walk,
    layout: Layout,
    /// Frames in it are files, wherever they come from.
    to_store: bool,
    to: Chain,
    /// What the copy is in.
    to_stat: FileStat,
    /// Of the last directory: as messages call it, and as it is.
    path: PathBuf,
    real: PathBuf,
    entered: Vec<Entered>,
    /// Files with more names than one, by device and inode number, and what their copy is.
    linked: HashMap<(u64, u64), Made>,
    going: &'a dyn Fn() -> bool,
}

/// A directory that is being copied.
struct Entered {
    path: PathBuf,
    stat: FileStat,
    /// Of a frame, its index file.
    index: Option<FileStat>,
}

/// A file that was made, whose directory is found by its names from the first.
struct Made {
    dirs: Vec<OsString>,
    name: OsString,
    stat: FileStat,
}

impl<'a> TreeCopy<'a> {
    /// Of the directory that `walk` begins with, to the name `to`, which is free or has an empty directory. It goes on as long as `going`
    /// says so.
    ///
    /// # Errors
    /// Something else has the name, or it is inside of what is to be copied; what the system refuses.
    pub fn new(mut walk: Walk, to: &Path, layout: Layout, going: &'a dyn Fn() -> bool) -> Result<Self> {
        let at = Location::to_be(to)?;
        let real = at.real_path();
        if real.starts_with(walk.real_path()) {
            let reason = format!("lies inside {}; expected a place outside", walk.path().display());
            return Err(at.unsupported(reason));
        }
        let around = FileBackend::open_resolved(at.dir_path()).map_err(at.io("create"))?;
        let first = match at.stat()? {
            None => around.make_inside(at.name()).map_err(at.io("create"))?,
            Some(stat) if stat.is_dir() => {
                let dir = around.inside(at.name()).map_err(at.io("open"))?;
                if !dir.names().map_err(at.io("list"))?.is_empty() {
                    return Err(at.unsupported("is a directory that is not empty; expected a new name, or an empty directory"));
                }
                dir
            }
            Some(_) => return Err(at.unsupported("exists already; expected a new name, or an empty directory")),
        };
        let own = |dir: &FileBackend, path: &Path| dir.own_stat().map_err(path.to_owned().io("stat"));
        let entered = Entered { path: walk.path().to_owned(), stat: own(&*walk.here()?, walk.path())?, index: None };
        Ok(TreeCopy {
            layout,
            to_store: is_in_store(&real),
            to_stat: own(&first, to)?,
            to: Chain::of(Arc::new(first)),
            path: to.to_owned(),
            real,
            entered: vec![entered],
            linked: HashMap::new(),
            going,
            walk,
        })
    }

    /// Copies a frame as it is, whatever its layout.
    ///
    /// # Errors
    /// What cannot be read or written.
    pub fn copy_as_it_is(&mut self, from: &Entry, layout: Layout) -> Result<()> {
        match layout {
            Layout::Contiguous => self.file(from),
            Layout::Sparse => {
                self.walk.enter_frame()?;
                let index = self.walk.here().and_then(|dir| {
                    let index = from.location.path().join(INDEX_NAME);
                    dir.stat(OsStr::new(INDEX_NAME)).map_err(index.io("stat"))
                });
                index.and_then(|index| self.enter(from, Some(index))).inspect_err(|_| self.walk.leave_at_once())
            }
        }
    }

    /// Gives the copy that was `made` of a frame what the frame has: owner, mode, extended attributes, times.
    ///
    /// # Errors
    /// What cannot be read or written; something else has the copy's name.
    pub fn dress(&mut self, frame: &FrameToCopy, copy: &FrameCopy, made: &FileStat) -> Result<()> {
        let Some(source) = copy.source.local() else { return Ok(()) };
        let (like, stat, mode) = (LocalStore::like(source)?, copy.source.source_stat()?, copy.mode()?);
        let to = &frame.to;
        let dress = |file: &dyn BackendFile, mode| {
            file.copy_attributes(&*like.frame);
            file.set_mode(mode);
            file.fd().map_or(Ok(()), |file| local::set_times(file, stat.atime, stat.mtime)).map_err(to.io("set the times"))
        };
        let is_made = |file: &dyn BackendFile| match file.stat().map_err(to.io("stat"))?.same_file(made) {
            true => Ok(()),
            false => Err(to.unsupported("was replaced by another process as soon as it was made")),
        };
        match frame.wants {
            Layout::Contiguous => {
                let file = to.open()?;
                is_made(&*file)?;
                dress(&*file, mode)
            }
            Layout::Sparse => {
                let dir = to.open_dir()?;
                is_made(&*dir.itself().map_err(to.io("open"))?)?;
                for name in dir.names().map_err(to.io("list"))? {
                    dress(&*dir.open(&name, false).map_err(to.io("open"))?, mode)?;
                }
                // Whoever may read a file may find it.
                dress(&*dir.itself().map_err(to.io("open"))?, mode | (mode & 0o444) >> 2)
            }
        }
    }

    /// Returns when all is on disk.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn finish(mut self) -> Result<()> {
        let path = self.path.clone();
        self.to.last().and_then(|dir| dir.sync_fs()).map_err(path.io("sync"))
    }

    fn step(&mut self, step: Step) -> Result<Option<FrameToCopy>> {
        match step {
            Step::Frame(from, has) => {
                let wants = if from.in_store || self.to_store { Layout::Contiguous } else { self.layout };
                if has == wants {
                    return self.copy_as_it_is(&from, has).map(|()| None);
                }
                let dir = Arc::new(Unsynced(self.to.last().map_err(self.path.io("open"))?));
                let name = from.location.name();
                let to = Location::in_backend(dir, &self.path.join(name), &self.real, name);
                return Ok(Some(FrameToCopy { from, has, wants, to }));
            }
            Step::Enter(from) => self.enter(&from, None).inspect_err(|_| self.walk.leave_at_once())?,
            Step::Leave => self.leave()?,
            Step::MountPoint(from) => {
                // As empty as it is below what is mounted there.
                let (path, dir) = (self.path.join(from.location.name()), self.to.last());
                dir.and_then(|dir| dir.make_inside(from.location.name())).map_err(path.io("create"))?;
                return Err(from.location.unsupported("was skipped: another file system is mounted there"));
            }
            Step::Other(from) => self.file(&from)?,
        }
        Ok(None)
    }

    fn enter(&mut self, from: &Entry, index: Option<FileStat>) -> Result<()> {
        if from.stat.same_file(&self.to_stat) {
            return Err(from.location.unsupported("was skipped: it is the copy"));
        }
        let name = from.location.name();
        let path = self.path.join(name);
        let made =
            self.to.last().and_then(|dir| dir.make_inside(name)).and_then(|dir| self.to.push(name.to_owned(), Arc::new(dir)));
        made.map_err(path.io("create"))?;
        self.path.push(name);
        self.real.push(name);
        self.entered.push(Entered { path: from.location.path().to_owned(), stat: from.stat, index });
        Ok(())
    }

    fn leave(&mut self) -> Result<()> {
        let Some(Entered { path, stat, index }) = self.entered.pop() else { return Ok(()) };
        let done = self.walk.here().and_then(|from| {
            let to = self.to.last().map_err(self.path.io("open"))?;
            to.become_like(&from, &stat).map_err(self.path.io("set its attributes"))?;
            let now = index.map(|_| from.stat(OsStr::new(INDEX_NAME)).ok());
            let known = |stat: FileStat| (stat.ino, stat.len, stat.mtime);
            if now.is_some_and(|now| now.map(known) != index.map(known)) {
                return Err(path.unsupported("was changed while it was being copied"));
            }
            Ok(())
        });
        if !self.entered.is_empty() {
            self.to.pop();
            self.path.pop();
            self.real.pop();
        }
        done
    }

    /// Anything but a directory.
    fn file(&mut self, from: &Entry) -> Result<()> {
        let (name, seen) = (from.location.name(), &from.stat);
        let path = self.path.join(name);
        let key = (seen.dev, seen.ino);
        let to = self.to.last().map_err(path.io("create"))?;
        if let Some(made) = self.linked.get(&key) {
            let linked = made.dir(self.to.first()).and_then(|dir| dir.link_to(&made.name, &made.stat, &to, name));
            return linked.map_err(path.io("create"));
        }
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::Interrupted => path.unsupported("interrupted; nothing was made"),
            _ => StoreError::Io { path: from.location.path().to_owned(), action: "copy", source },
        };
        let stat = self.walk.here()?.copy_to(name, seen, &to, self.going).map_err(failed)?;
        if seen.links > 1 {
            let made = Made { dirs: self.to.names(), name: name.to_owned(), stat };
            self.linked.insert(key, made);
        }
        Ok(())
    }
}

impl Made {
    /// The directory that it is in.
    fn dir(&self, first: &Arc<FileBackend>) -> io::Result<Arc<FileBackend>> {
        self.dirs.iter().try_fold(first.clone(), |dir, name| Ok(Arc::new(dir.inside(name)?)))
    }
}

impl Iterator for TreeCopy<'_> {
    type Item = Result<Option<FrameToCopy>>;

    /// Goes on by one thing. An error is about that alone.
    fn next(&mut self) -> Option<Self::Item> {
        let step = self.walk.next()?;
        Some(step.and_then(|step| self.step(step)))
    }
}
