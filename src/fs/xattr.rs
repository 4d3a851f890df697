//! Extended attributes over FUSE.
//!
//! The kernel asks for those of others, too: `security.capability` when a file that was just looked up is written for the first
//! time (for each write it would be without HANDLE_KILLPRIV_V2), the lists of access rights for each file that `ls -l` shows. Not a
//! word of that reaches a view. The answer is that there is no support, not that there are none: then `ls` does not ask again.
//! ENOSYS would have the kernel never ask again, but not for ours either: that is what the option `nouser_xattr` is for.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fuser::{Errno, ReplyEmpty, ReplyXattr};

use super::notify::Held;
use super::shared::{Shared, empty, errno};
use crate::view::{FIRST_LISTED, Ino, Invals, Result, SetMode, ViewError};

/// What the names of all of ours begin with.
const OURS: &[u8] = b"user.";

/// Whether an attribute may be one of ours.
pub(super) fn is_ours(name: &OsStr) -> bool {
    name.as_bytes().starts_with(OURS)
}

/// Answers a question for the value of an attribute, or for names: with no more than its length if `size` is 0.
pub(super) fn answer(what: &str, ino: Ino, size: u32, bytes: Result<Vec<u8>>, reply: ReplyXattr) {
    match bytes {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(refusal) => reply.error(errno(what, ino, &refusal)),
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
    /// Sets an attribute.
    pub(super) fn set_xattr(self: &Arc<Self>, ino: Ino, name: &OsStr, value: &[u8], mode: SetMode, reply: ReplyEmpty) {
        self.change_xattr(ino, name, Some(value), mode, |_, _| {}, reply);
    }

    /// Removes an attribute.
    ///
    /// `rsync -X` from files without attributes takes away all that ours have, in the order of the list, and would so take the
    /// vlmetalayers out of the very frame that it copies. Whoever has just been refused the removal of what always comes
    /// first in the list is refused that of the others.
    pub(super) fn remove_xattr(self: &Arc<Self>, pid: u32, ino: Ino, name: &OsStr, reply: ReplyEmpty) {
        if pid != 0 && self.stripper.load(Relaxed) == pid && self.view.xattr(ino, name).is_ok() {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let first = name.as_bytes() == FIRST_LISTED.as_bytes();
        let refused = move |shared: &Self, outcome: &Result<()>| {
            if first && matches!(outcome, Err(ViewError::NotSettable)) {
                shared.stripper.store(pid, Relaxed);
            }
        };
        self.change_xattr(ino, name, None, SetMode::Any, refused, reply);
    }

    fn change_xattr(
        self: &Arc<Self>,
        ino: Ino,
        name: &OsStr,
        value: Option<&[u8]>,
        mode: SetMode,
        look: impl FnOnce(&Self, &Result<()>) + Send + 'static,
        reply: ReplyEmpty,
    ) {
        if !is_ours(name) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let (name, value) = (name.to_owned(), value.map(<[u8]>::to_vec));
        self.change_patiently(move |shared| {
            let mut invals = Invals::new();
            let outcome = shared.view.set_xattr(ino, &name, value.as_deref(), mode, &mut invals);
            look(shared, &outcome);
            let outcome = outcome.map_err(|refusal| errno("setxattr", ino, &refusal));
            // The kernel holds the inode, which may be the directory.
            shared.notify.answer(invals, Held::Directory, move || empty(reply, outcome));
            shared.changed();
        });
    }
}
