//! Extended attributes over FUSE.
//!
//! The kernel asks for those of others, too: `security.capability` when a file that was just looked up is written for the first
//! time (for each write it would be without HANDLE_KILLPRIV_V2), the lists of access rights for each file that `ls -l` shows. Not a
//! word of that reaches a view. The answer is that there is no support, not that there are none: then `ls` does not ask again.
//! ENOSYS would have the kernel never ask again, but not for ours either: that is what the option `nouser_xattr` is for.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;

use fuser::{Errno, ReplyXattr};

use super::shared::Shared;
use crate::view::{FIRST_LISTED, Ino, Invals, Result, SetMode, ViewError};

/// What the names of all of ours begin with.
const OURS: &[u8] = b"user.";

/// Whether an attribute may be one of ours.
pub(super) fn is_ours(name: &OsStr) -> bool {
    name.as_bytes().starts_with(OURS)
}

/// Answers a question for the value of an attribute, or for names: with no more than its length if `size` is 0.
pub(super) fn reply(reply: ReplyXattr, size: u32, bytes: &[u8]) {
    match bytes.len() {
        len if size == 0 => reply.size(len as u32),
        len if len > size as usize => reply.error(Errno::ERANGE),
        _ => reply.data(bytes),
    }
}

/// The flags of setxattr(2); both at once can never be.
pub(super) fn set_mode(flags: i32) -> Option<SetMode> {
    match flags {
        0 => Some(SetMode::Any),
        libc::XATTR_CREATE => Some(SetMode::Create),
        libc::XATTR_REPLACE => Some(SetMode::Replace),
        _ => None,
    }
}

impl Shared {
    /// `rsync -X` from files without attributes takes away all that ours have, in the order of the list, and would so take the
    /// vlmetalayers out of the very frame that it copies. Whoever has just been refused the removal of what always comes
    /// first in the list is refused that of the others.
    pub(super) fn is_stripped(&self, client: u32, ino: Ino, name: &OsStr) -> bool {
        client != 0 && self.stripper.load(Relaxed) == client && self.view.xattr(ino, name).is_ok()
    }

    /// Removes an attribute.
    pub(super) fn remove_xattr(&self, client: u32, ino: Ino, name: &OsStr, invals: &mut Invals) -> Result<()> {
        let removed = self.view.set_xattr(ino, name, None, SetMode::Any, invals);
        if name.as_bytes() == FIRST_LISTED.as_bytes() && matches!(removed, Err(ViewError::NotSettable)) {
            self.stripper.store(client, Relaxed);
        }
        removed
    }
}
