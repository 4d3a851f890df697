//! Files that the kernel reads and writes directly (`FUSE_PASSTHROUGH`), so that their bytes do not pass through this process.
//!
//! The kernel wants all opens of an inode to be alike: all with the same backing file, or all through its page cache. So what the first
//! open of an inode gets, the others get, until the last is closed. Where the kernel refuses (no `CAP_SYS_ADMIN`, a file system on
//! which it cannot be), it is not asked again.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use fuser::BackingId;
use log::debug;
use parking_lot::Mutex;

use crate::store::in_words;
use crate::view::Ino;

/// The open files of a file system that passes on another.
#[derive(Default)]
pub(super) struct Backings {
    /// A leaf lock, but for the system call that makes a backing file.
    inodes: Mutex<HashMap<Ino, Inode>>,
    /// The kernel offers it, and has not refused it.
    offered: AtomicBool,
    /// [`FileSystem::hear_of`](crate::view::FileSystem::hear_of), where the kernel does not look by itself whether a file has changed of
    /// which it has pages.
    hear: OnceLock<Hear>,
}

/// Has others be heard of who write to a file; whether they will be.
type Hear = Box<dyn Fn(Ino) -> bool + Send + Sync>;

/// What stands behind an open file.
pub(super) enum Backed {
    /// A file that the kernel reads and writes by itself.
    File(Arc<BackingId>),
    /// Pages that the kernel may keep.
    Pages,
    /// This process alone: nobody would tell of others who write to it.
    Unheard,
}

struct Inode {
    backing: Option<Arc<BackingId>>,
    opens: u64,
}

impl Backings {
    /// The kernel offers it.
    pub(super) fn offer(&self) {
        self.offered.store(true, Relaxed);
    }

    /// Whether a file to back an inode would be of use, should this be its first open.
    pub(super) fn wanted(&self, ino: Ino) -> bool {
        self.offered.load(Relaxed) && !self.inodes.lock().contains_key(&ino)
    }

    /// From now on others are heard of who write to files of which the kernel has pages.
    pub(super) fn hear_by(&self, hear: Hear) {
        let _ = self.hear.set(hear);
    }

    /// Whether others are heard of.
    pub(super) fn hears(&self) -> bool {
        self.hear.get().is_some()
    }

    /// Counts an open, and answers what backs the inode; `make` has the kernel take the file for it.
    pub(super) fn opened(&self, ino: Ino, file: Option<OwnedFd>, make: impl FnOnce(&OwnedFd) -> io::Result<BackingId>) -> Backed {
        let mut inodes = self.inodes.lock();
        let inode = inodes.entry(ino).or_insert_with(|| {
            let backing = file.and_then(|file| match make(&file) {
                Ok(id) => Some(Arc::new(id)),
                Err(error) => {
                    debug!("files are not passed through: {}", in_words(&error));
                    self.offered.store(false, Relaxed);
                    None
                }
            });
            Inode { backing, opens: 0 }
        });
        inode.opens += 1;
        if let Some(backing) = &inode.backing {
            return Backed::File(Arc::clone(backing));
        }
        drop(inodes);
        if self.hear.get().is_none_or(|hear| hear(ino)) { Backed::Pages } else { Backed::Unheard }
    }

    /// Counts an open that nothing backs, beside which nothing may back another.
    pub(super) fn count(&self, ino: Ino) {
        if self.offered.load(Relaxed) {
            self.inodes.lock().entry(ino).or_insert(Inode { backing: None, opens: 0 }).opens += 1;
        }
    }

    /// Counts a last close. An inode that was not counted is none of ours.
    pub(super) fn closed(&self, ino: Ino) {
        let mut inodes = self.inodes.lock();
        if let Some(inode) = inodes.get_mut(&ino) {
            inode.opens -= 1;
            if inode.opens == 0 {
                inodes.remove(&ino);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel refuses to open a file in both ways at once.
    #[test]
    fn nothing_backs_an_inode_that_is_open_otherwise() {
        let (backings, ino) = (Backings::default(), Ino(7));
        backings.offer();
        backings.count(ino);
        backings.count(ino);
        backings.closed(ino);
        assert!(!backings.wanted(ino));
        backings.closed(ino);
        assert!(backings.wanted(ino));
    }
}
