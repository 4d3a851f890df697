//! An open file, and what is copied of its attributes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use rustix::fs::{Advice, CWD, FallocateFlags, FlockOperation, Gid, MemfdFlags, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;

use crate::store::backend::{BackendFile, FileStat, Flock};

/// The most that Linux lets a list of extended attributes, or the value of one, have.
const XATTR_MAX: usize = 64 << 10;

/// The attribute that holds a file's access list.
const LIST: &str = "system.posix_acl_access";

impl From<rustix::fs::Stat> for FileStat {
    fn from(stat: rustix::fs::Stat) -> Self {
        FileStat {
            dev: stat.st_dev,
            ino: stat.st_ino,
            mode: stat.st_mode,
            // A smaller number on some architectures.
            #[allow(clippy::useless_conversion)]
            links: u64::from(stat.st_nlink),
            uid: stat.st_uid,
            gid: stat.st_gid,
            len: stat.st_size.cast_unsigned(),
            allocated: stat.st_blocks.cast_unsigned().saturating_mul(512),
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// Seconds and nanoseconds of stat(2), which may lie before 1970.
pub(super) fn time(seconds: i64, nanoseconds: u64) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { SystemTime::UNIX_EPOCH.checked_sub(whole) } else { SystemTime::UNIX_EPOCH.checked_add(whole) };
    let part = Duration::from_nanos(nanoseconds);
    base.and_then(|base| base.checked_add(part)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A file that nobody else can find.
///
/// # Errors
/// What the system refuses.
pub fn hidden() -> io::Result<File> {
    Ok(rustix::fs::memfd_create("b2fuse", MemfdFlags::CLOEXEC)?.into())
}

impl BackendFile for File {
    fn will_need(&self, offset: u64, len: u64) {
        let _ = rustix::fs::fadvise(self, offset, std::num::NonZeroU64::new(len), Advice::WillNeed);
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(self, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)?)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match FileExt::read_at(self, buf, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(data, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn sync_all(&self) -> io::Result<()> {
        File::sync_all(self)
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(rustix::fs::fstat(self)?.into())
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.flock(Flock::Exclusive, None)
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(rustix::fs::flock(self, FlockOperation::Unlock)?)
    }

    fn flock(&self, lock: Flock, until: Option<&AtomicBool>) -> io::Result<bool> {
        let operation = match (lock, until) {
            (Flock::Shared, Some(_)) => FlockOperation::LockShared,
            (Flock::Shared, None) => FlockOperation::NonBlockingLockShared,
            (Flock::Exclusive, Some(_)) => FlockOperation::LockExclusive,
            (Flock::Exclusive, None) => FlockOperation::NonBlockingLockExclusive,
        };
        let is_over = || until.is_some_and(|until| until.load(SeqCst));
        while !is_over() {
            match rustix::fs::flock(self, operation) {
                Ok(()) if is_over() => BackendFile::unlock(self)?,
                Ok(()) => return Ok(true),
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn reopen(&self, write: bool) -> io::Result<Box<dyn BackendFile>> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        // This link leads to the open file, whatever has become of its name.
        let path = format!("/proc/self/fd/{}", self.as_raw_fd());
        let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = super::spare::openat(CWD, &path, flags, Mode::empty())?;
        Ok(Box::new(File::from(fd)))
    }

    fn access_list(&self) -> io::Result<Option<Vec<u8>>> {
        access_list(self.as_fd())
    }

    fn copy_attributes(&self, from: &dyn BackendFile) {
        let (Ok(theirs), Ok(ours), Some(from)) = (from.stat(), self.stat(), from.fd()) else { return };
        // Each step is refused to those who may not; then that attribute stays as it is.
        if (theirs.uid, theirs.gid) != (ours.uid, ours.gid) {
            let (uid, gid) = (Uid::from_raw(theirs.uid), Gid::from_raw(theirs.gid));
            let _ = rustix::fs::fchown(self, Some(uid), Some(gid)).or_else(|_| rustix::fs::fchown(self, None, Some(gid)));
        }
        copy_xattrs(from, self.as_fd());
        // The last, since an access list sets it too, and a change of owner may.
        self.set_mode(theirs.mode);
    }

    fn set_owner(&self, owner: &FileStat) -> io::Result<()> {
        Ok(rustix::fs::fchown(self, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?)
    }

    fn set_mode(&self, mode: u32) {
        let Ok(ours) = self.stat() else { return };
        // A directory has this bit from the one above it, and keeps it; that is all that is kept beside permissions.
        let kept = if ours.is_dir() { ours.mode & libc::S_ISGID } else { 0 };
        let mode = mode & 0o777 | kept;
        if ours.mode & 0o7777 != mode {
            let _ = rustix::fs::fchmod(self, Mode::from_raw_mode(mode));
        }
    }
}

/// Whether an extended attribute may be copied: not one that gives rights to programs, vouches for the content, or belongs to the
/// system.
fn is_copied(name: &[u8]) -> bool {
    const LEFT: [&[u8]; 3] = [b"security.capability", b"security.ima", b"security.evm"];
    !LEFT.contains(&name) && !name.starts_with(b"trusted.")
}

/// The value of the attribute that holds the access list of a file, which may be held without being open, if it has one.
///
/// # Errors
/// What the system refuses.
pub fn access_list(file: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut value = vec![0; 256];
    let mut got = rustix::fs::getxattr(&path, LIST, &mut value);
    if let Err(Errno::RANGE) = got {
        value.resize(XATTR_MAX, 0);
        got = rustix::fs::getxattr(&path, LIST, &mut value);
    }
    match got {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Copies extended attributes (access lists among them) one by one, leaving out those that are refused.
fn copy_xattrs(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    let mut names = vec![0u8; XATTR_MAX];
    let Ok(len) = rustix::fs::flistxattr(from, &mut names) else { return };
    let names = names.get(..len).unwrap_or_default();
    if names.is_empty() {
        return;
    }
    let mut value = vec![0u8; XATTR_MAX];
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && is_copied(name)) {
        let Ok(len) = rustix::fs::fgetxattr(from, name, &mut value) else { continue };
        let Some(value) = value.get(..len) else { continue };
        let _ = rustix::fs::fsetxattr(to, name, value, XattrFlags::empty());
    }
}
