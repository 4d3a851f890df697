//! Chunk files that are open, the last used ones of all frames: opening a file by its name costs as much as reading some kilobytes of
//! it.

use std::sync::Arc;
use std::time::SystemTime;

use super::backend::{Backend, BackendFile, FileStat};
use super::local::spare::{self, Spare};
use super::shares::{LruPart, SharedLru};

/// What tells that nobody has written a file since. Not when its inode changed: it does when the file gets another name, or loses its last
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Stamp {
    mtime: SystemTime,
    pub(super) len: u64,
}

impl From<&FileStat> for Stamp {
    fn from(stat: &FileStat) -> Self {
        Stamp { mtime: stat.mtime, len: stat.len }
    }
}

impl Stamp {
    /// Whether whoever writes the file from now on gives it another time, as far as its file system has a clock of this machine.
    pub(super) fn is_past(&self, backend: &dyn Backend) -> bool {
        backend.clock().is_none_or(|now| self.mtime < now)
    }
}

/// An open chunk file.
pub(super) struct OpenChunk {
    pub(super) file: Box<dyn BackendFile>,
    /// As it was when it was opened.
    pub(super) stamp: Stamp,
}

/// The open files of all frames.
pub(super) type OpenFiles = SharedLru<Arc<OpenChunk>>;
/// Those of one frame.
pub(super) type Descriptors = LruPart<Arc<OpenChunk>>;

/// Room for so many open files. They are closed where the process may open no more.
pub(super) fn open_files(most: usize) -> Arc<OpenFiles> {
    let all = Arc::new(OpenFiles::new(most.max(1) as u64, |_| 1));
    spare::register(&all);
    all
}

impl Spare for OpenFiles {
    fn close_some(&self) -> bool {
        self.halve()
    }
}
