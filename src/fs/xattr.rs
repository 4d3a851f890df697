//! Extended attributes over FUSE.
//!
//! The kernel asks for those of others, too: `security.capability` when a file that was just looked up is written for the first
//! time (for each write it would be without HANDLE_KILLPRIV_V2). Not a word of that reaches a view of one frame. The answer is that
//! there is no support, not that there are none: then `ls` does not ask again. ENOSYS would have the kernel never ask again, but not for
//! ours either: that is what the option `nouser_xattr` is for.
//!
//! Access lists are those of the files where the mount shows lists, and not supported elsewhere: see [`Features::lists`].
//!
//! A vlmetalayer is removed by setting an empty value, never by removexattr(2): tools that give a copy the attributes of its original
//! (`rsync -X`) remove those that the original does not have, and would take vlmetalayers out of the very frame that they copy.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::ReplyXattr;

use super::shared::Shared;
use super::waiters;
#[cfg(doc)]
use crate::view::Features;
use crate::view::{Ino, Invalidations, Result, SetMode, VLMETA, ViewError};

/// What the names of all of ours begin with.
const OURS: &[u8] = b"user.";

/// Whether an attribute may be one of ours.
pub(super) fn is_ours(name: &OsStr) -> bool {
    name.as_bytes().starts_with(OURS)
}

/// What the names of access lists begin with.
const LISTS: &[u8] = b"system.posix_acl_";
/// What names begin with that natively only a process with CAP_SYS_ADMIN sees. The kernel refuses their values to others.
const TRUSTED: &[u8] = b"trusted.";

fn is_vlmetalayer(name: &OsStr) -> bool {
    name.as_bytes().starts_with(VLMETA.as_bytes())
}

/// Whether an attribute is an access list, or one that a directory gives to what is made in it.
pub(super) fn is_list(name: &OsStr) -> bool {
    name.as_bytes().starts_with(LISTS)
}

/// The names that a process may see: those of lists where these are shown, and `trusted.*` if it may read them.
pub(super) fn listed(names: Vec<u8>, lists: bool, pid: u32) -> Vec<u8> {
    let has_any = |prefix: &[u8]| names.split(|byte| *byte == 0).any(|name| name.starts_with(prefix));
    let (cuts, trusts) = (!lists && has_any(LISTS), !has_any(TRUSTED) || waiters::is_administrator(pid));
    if !cuts && trusts {
        return names;
    }
    let is_shown = |name: &&[u8]| !(cuts && name.starts_with(LISTS) || !trusts && name.starts_with(TRUSTED));
    names.split_inclusive(|byte| *byte == 0).filter(is_shown).flatten().copied().collect()
}

/// Answers a question for the value of an attribute, or for names: with no more than its length if `size` is 0.
pub(super) fn reply(reply: ReplyXattr, size: u32, bytes: &[u8]) {
    match bytes.len() {
        len if size == 0 => reply.size(len as u32),
        len if len > size as usize => reply.error(fuser::Errno::ERANGE),
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
    pub(super) fn set_xattr(
        &self,
        ino: Ino,
        name: &OsStr,
        value: &[u8],
        mode: SetMode,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        // One that is empty already may be copied over itself.
        let removes = value.is_empty() && is_vlmetalayer(name) && !self.view.xattr(ino, name).is_ok_and(|now| now.is_empty());
        self.view.set_xattr(ino, name, (!removes).then_some(value), mode, invalidations)
    }

    pub(super) fn remove_xattr(&self, ino: Ino, name: &OsStr, invalidations: &mut Invalidations) -> Result<()> {
        if is_vlmetalayer(name) && self.view.xattr(ino, name).is_ok() {
            return Err(ViewError::NotSettable);
        }
        self.view.set_xattr(ino, name, None, SetMode::Any, invalidations)
    }
}
