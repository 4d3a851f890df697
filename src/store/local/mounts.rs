//! Mount points. What was looked at is what is mounted on: a directory or file that is held open while the mount is made.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use crate::store::backend::FileStat;

/// A place to mount on, held open.
#[derive(Debug)]
pub struct Place(OwnedFd);

impl Place {
    /// Opens a place by a path that [`super::resolve`] gave. What is mounted there already is not asked for anything.
    ///
    /// # Errors
    /// What the system refuses; ELOOP if a part of the path has become a link since.
    pub fn open(path: &Path) -> io::Result<Place> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(CWD, path, flags, Mode::empty(), how) {
            // Before Linux 5.6, or under a filter that does not know the call.
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => Ok(Place(rustix::fs::open(path, flags, Mode::empty())?)),
            opened => Ok(Place(opened?)),
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
        let point = c_string(format!("/proc/self/fd/{}", self.0.as_raw_fd()).as_bytes())?;
        let (source, fs_type, data) = (c_string(source.as_bytes())?, c_string(fs_type.as_bytes())?, c_string(data.as_bytes())?);
        // SAFETY: all are C strings that live through the call.
        let rc = unsafe { libc::mount(source.as_ptr(), point.as_ptr(), fs_type.as_ptr(), flags, data.as_ptr().cast()) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Unmounts what is on top at a path, whose last name is not followed if it is a link.
///
/// # Errors
/// What the system refuses: EBUSY if files are open in it, unless `lazy`; EPERM to an ordinary user.
pub fn unmount(point: &Path, lazy: bool) -> io::Result<()> {
    let path = c_string(point.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: `path` is a C string that lives through the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
    let path = c_string(point.as_os_str().as_bytes()).ok()?;
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_STATX_DONT_SYNC | libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    // SAFETY: `path` is a C string that lives through the call, and `stat` has room for the answer.
    let rc = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, libc::STATX_MNT_ID_UNIQUE, stat.as_mut_ptr()) };
    // SAFETY: all zeros are a valid statx, of which the call has filled a part.
    let stat = unsafe { stat.assume_init() };
    (rc == 0 && stat.stx_mask & libc::STATX_MNT_ID_UNIQUE != 0).then_some(stat.stx_mnt_id)
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::other("there is a NUL byte in it"))
}
