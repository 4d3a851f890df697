//! Owner, mode and times of a frame, which are those of what it is below: a file, or a directory and its index.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::frame::TreeFrame;
use super::{Tree, passed};
use crate::format::INDEX_NAME;
use crate::store::is_part_of_frame;
use crate::store::local::beneath::{self, Found};
use crate::view::access::{self, AccessList, Rights, as_directory, as_file, as_read_directory, as_read_file};
use crate::view::{Attr, Ino, Kind, Result, SetAttr, SetMode, ViewError};

impl Tree {
    /// Changes metadata of a frame below. If the frame is closed, its open handles take it for the same one afterwards.
    pub(super) fn keeping_handles<T>(&self, frame: &TreeFrame, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut closed = frame.slot.changing.lock();
        let is_same = closed.left.is_some() && closed.left == self.stamp(frame.ino).ok();
        let changed = change();
        if is_same {
            closed.left = self.stamp(frame.ino).ok();
        }
        changed
    }

    /// Gives owner, mode and times of what stands for a frame to what it is below. A directory lets through who may read, and a file is
    /// no program.
    pub(super) fn set_below_frame(&self, frame: &TreeFrame, ino: Ino, set: &SetAttr) -> Result<()> {
        let (held, found) = self.found_held(ino)?;
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

/// Access lists, and permission bits without them.
impl Tree {
    /// Who may do what with a file or directory that is passed on.
    pub(super) fn rights_passed(&self, ino: Ino) -> Result<Rights> {
        self.held(ino, rights_of)
    }

    /// Who may do what with what a frame is below. A frame that is a directory there and shown as a file has the rights of its index,
    /// but not for those whom the directory keeps out.
    pub(super) fn rights_below(&self, frame: &TreeFrame) -> Result<Rights> {
        self.held(frame.ino, |held| {
            let rights = rights_of(held)?;
            if frame.shown != Kind::File || !beneath::look_at(held)?.stat.is_dir() {
                return Ok(rights);
            }
            let index = beneath::hold(held, OsStr::new(INDEX_NAME))?;
            Ok(rights_of(index.as_fd())?.through(&rights))
        })
    }

    /// Who may do what with what stands for a frame, and has these permission bits.
    pub(super) fn frame_rights(&self, frame: &TreeFrame, mode: u32) -> Result<Rights> {
        let rights = self.rights_below(frame)?;
        let is_dir = || self.stat(frame.ino).is_ok_and(|found| found.stat.is_dir());
        Ok(match frame.shown {
            _ if frame.is_archive() => rights.shown(as_read_directory, mode),
            Kind::Directory if is_dir() => rights,
            Kind::Directory => rights.shown(as_directory, mode),
            _ => rights.shown(as_file, mode),
        })
    }

    /// The access list of what stands for a frame.
    pub(super) fn frame_list(&self, frame: &Arc<TreeFrame>) -> Result<Vec<u8>> {
        let found = self.stat(frame.ino)?;
        let rights = self.frame_rights(frame, self.frame_attr_with_mask(frame, &found)?.meta.mode)?;
        rights.list().map(AccessList::encode).ok_or(ViewError::NoAttribute)
    }

    /// The access list of a file or directory in an archive, which is that of the archive.
    pub(super) fn archived_list(&self, frame: &TreeFrame, inside: &Attr) -> Result<Vec<u8>> {
        self.archived_rights(frame, inside)?.list().map(AccessList::encode).ok_or(ViewError::NoAttribute)
    }

    /// Who may do what with a file or directory in an archive.
    pub(super) fn archived_rights(&self, frame: &TreeFrame, inside: &Attr) -> Result<Rights> {
        let convert = if inside.kind == Kind::Directory { as_read_directory } else { as_read_file };
        Ok(self.rights_below(frame)?.shown(convert, inside.meta.mode))
    }

    /// Gives the access list of what stands for a frame to what it is below, as [`Tree::set_below_frame`] gives the permission bits.
    pub(super) fn set_list_below(&self, frame: &TreeFrame, ino: Ino, value: Option<&[u8]>, mode: SetMode) -> Result<()> {
        let list = value.and_then(AccessList::parse);
        let (Some(list), true) = (list, frame.shown == Kind::File || !self.stat(ino)?.stat.is_dir()) else {
            // A directory that is shown as one; a list that is removed, or refused by the system.
            return self.set_xattr_passed(ino, OsStr::new(access::NAME), value, mode);
        };
        self.held(ino, |held| {
            let found = beneath::look_at(held)?;
            let set = |held: BorrowedFd<'_>, convert| {
                beneath::set_xattr(held, OsStr::new(access::NAME), Some(&list.converted(convert).encode()), 0)
            };
            if !found.stat.is_dir() {
                return Ok(set(held, as_file)?);
            }
            let index = index_of_owner(held, &found, None)?;
            set(index.as_fd(), as_file)?;
            Ok(set(held, as_directory)?)
        })
    }
}

/// Who may do what with what is held.
pub fn rights_of(held: BorrowedFd<'_>) -> Result<Rights> {
    Ok(Rights::new(&beneath::look_at(held)?.stat, beneath::access_list(held)?))
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
