//! Owner, mode and times of a frame, which are those of what it is below: a file, or a directory and its index.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::frame::TreeFrame;
use super::{Tree, passed};
use crate::format::INDEX_NAME;
use crate::store::is_part_of_frame;
use crate::store::local::beneath::{self, Found};
use crate::view::{Ino, Kind, Result, SetAttr, ViewError};

impl Tree {
    /// Gives owner, mode and times of what stands for a frame to what it is below. A directory lets through who may read, and a file is
    /// no program.
    pub(super) fn set_below_frame(&self, frame: &TreeFrame, ino: Ino, set: &SetAttr) -> Result<()> {
        let (dir, name, found) = self.found(ino)?;
        let held = beneath::hold(dir.as_fd(), &name)?;
        if !beneath::look_at(held.as_fd())?.is(&found) {
            return Err(ViewError::Gone);
        }
        let as_file = SetAttr { mode: set.mode.map(|mode| mode & 0o666), ..*set };
        if !found.stat.is_dir() {
            return passed::set_held(held.as_fd(), &as_file);
        }
        let as_dir = match frame.shown {
            Kind::Directory => *set,
            _ => SetAttr { mode: set.mode.map(|mode| mode & 0o666 | (mode & 0o444) >> 2), atime: None, mtime: None, ..*set },
        };
        let index = match frame.shown {
            Kind::File => Some(index_of_owner(held.as_fd(), &found, set.uid)?),
            _ => None,
        };
        give_parts(held.as_fd(), &found, set)?;
        if let Some(index) = index {
            passed::set_held(index.as_fd(), &as_file)?;
        }
        passed::set_held(held.as_fd(), &as_dir)
    }
}

/// The index of a frame's directory, held, if it belongs to whom the directory belongs to (or is about to): the kernel has let its owner
/// change both, and either could be what somebody else has left in a directory of the other's.
pub fn index_of_owner(dir: BorrowedFd<'_>, found: &Found, new: Option<u32>) -> Result<OwnedFd> {
    let index = beneath::hold(dir, OsStr::new(INDEX_NAME))?;
    let stat = beneath::look_at(index.as_fd())?.stat;
    let is_theirs = stat.uid == found.stat.uid || Some(stat.uid) == new;
    if stat.is_file() && is_theirs { Ok(index) } else { Err(ViewError::System(libc::EPERM)) }
}

/// Gives the files of a frame's directory to whom it is given to: who gets the index could not read them otherwise. Those of somebody else,
/// and those that have another name elsewhere, stay what they are.
fn give_parts(dir: BorrowedFd<'_>, found: &Found, set: &SetAttr) -> Result<()> {
    if (set.uid, set.gid) == (None, None) {
        return Ok(());
    }
    let mut result = Ok(());
    beneath::list(dir, 0, &mut |entry| {
        if is_part_of_frame(entry.name)
            && let Ok(file) = beneath::hold(dir, entry.name)
            && let Ok(Found { stat, .. }) = beneath::look_at(file.as_fd())
            && stat.is_file()
            && stat.links == 1
            && stat.uid == found.stat.uid
        {
            result = beneath::set_owner(file.as_fd(), set.uid, set.gid);
        }
        result.is_ok()
    })?;
    Ok(result?)
}
