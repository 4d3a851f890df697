//! Mount points. What was looked at is what is mounted on: a directory or file that is held open while the mount is made.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, statx};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::store::backend::FileStat;

/// A place to mount on, held open.
#[derive(Debug)]
pub struct MountPlace(OwnedFd);

impl MountPlace {
    /// Opens a place by a path that [`super::resolve`] gave. What is mounted there already is not asked for anything.
    ///
    /// # Errors
    /// What the system refuses; ELOOP if a part of the path has become a link since.
    pub fn open(path: &Path) -> io::Result<MountPlace> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(CWD, path, flags, Mode::empty(), how) {
            // Before Linux 5.6, or under a filter that does not know the call.
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
                Ok(MountPlace(rustix::fs::open(path, flags, Mode::empty())?))
            }
            opened => Ok(MountPlace(opened?)),
        }
    }

    /// Its attributes.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn stat(&self) -> io::Result<FileStat> {
        Ok(rustix::fs::fstat(&self.0)?.into())
    }

    /// Mounts a file system of that type on it.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn mount(&self, source: &std::ffi::OsStr, fs_type: &str, flags: libc::c_ulong, data: &str) -> io::Result<()> {
        // This link leads to what is open, whatever has become of its name.
        let point = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let data = CString::new(data)?;
        Ok(rustix::mount::mount(source, point, fs_type, MountFlags::from_bits_retain(flags as u32), data.as_c_str())?)
    }
}

/// Unmounts what is on top at a path, whose last name is not followed if it is a link.
///
/// # Errors
/// What the system refuses: EBUSY if files are open in it, unless `lazy`; EPERM to an ordinary user.
pub fn unmount(point: &Path, lazy: bool) -> io::Result<()> {
    let lazy = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    Ok(rustix::mount::unmount(point, UnmountFlags::NOFOLLOW | lazy)?)
}

/// Whether what is mounted at a path answers.
///
/// # Errors
/// What it answers, if not.
pub fn answers(point: &Path) -> io::Result<()> {
    Ok(rustix::fs::statvfs(point).map(drop)?)
}

/// The number of the mount on top at a path that the kernel gives to no other, from Linux 6.8 on. Asks nothing of whoever serves that
/// mount.
pub fn number(point: &Path) -> Option<u64> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = statx(CWD, point, flags, StatxFlags::from_bits_retain(libc::STATX_MNT_ID_UNIQUE)).ok()?;
    (stat.stx_mask & libc::STATX_MNT_ID_UNIQUE != 0).then_some(stat.stx_mnt_id)
}
