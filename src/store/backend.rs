//! What the store asks of a file system, as two traits small enough to be replaced whole: a directory and a file in it.
//!
//! The store does all its input and output through these, so that a test can log, cut, tear and fail every operation. A
//! backend promises what a POSIX file system does: a write is seen by every later read, and is on disk at the latest when a
//! [`BackendFile::sync_data`] that began after it has returned; names are on disk after [`Backend::sync_dir`]. Before that, any
//! subset of the 512-byte sectors written may be on disk.
//!
//! The only `unsafe` of this layer is here, in thin calls of libc.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What `stat` says of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// Device of the file system.
    pub dev: u64,
    /// Inode number: with `dev`, which file it is.
    pub ino: u64,
    /// File type and permission bits (`st_mode`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub len: u64,
    /// Bytes taken on disk.
    pub allocated: u64,
    /// Last access.
    pub atime: SystemTime,
    /// Last change of content.
    pub mtime: SystemTime,
    /// Last change of the inode.
    pub ctime: SystemTime,
}

impl FileStat {
    /// Whether both are the same file, whatever is in it.
    pub fn same_file(&self, other: &FileStat) -> bool {
        (self.dev, self.ino) == (other.dev, other.ino)
    }
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// A directory, and the names in it. Names are single components.
pub trait Backend: Send + Sync {
    /// Opens a file that exists.
    fn open(&self, name: &OsStr, write: bool) -> io::Result<Box<dyn BackendFile>>;
    /// Makes a file for reading and writing; it is an error if the name exists. `mode` is cut by the umask.
    fn create(&self, name: &OsStr, mode: u32) -> io::Result<Box<dyn BackendFile>>;
    /// Makes a file for reading and writing that has no name and goes with its last handle.
    fn create_unnamed(&self) -> io::Result<Box<dyn BackendFile>>;
    /// Renames, atomically; where `replace` is false a name that exists is an error.
    fn rename(&self, from: &OsStr, to: &OsStr, replace: bool) -> io::Result<()>;
    /// Removes a file's name.
    fn remove(&self, name: &OsStr) -> io::Result<()>;
    /// Makes a directory; it is an error if the name exists.
    fn create_dir(&self, name: &OsStr) -> io::Result<Box<dyn Backend>>;
    /// Opens a directory that exists.
    fn open_dir(&self, name: &OsStr) -> io::Result<Box<dyn Backend>>;
    /// Makes a directory unless there is one, and opens it.
    fn subdir(&self, name: &OsStr) -> io::Result<Box<dyn Backend>> {
        match self.create_dir(name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.open_dir(name),
            result => result,
        }
    }
    /// Removes an empty directory.
    fn remove_dir(&self, name: &OsStr) -> io::Result<()>;
    /// Lets two names that exist change places, atomically.
    fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()>;
    /// All names, in any order.
    fn names(&self) -> io::Result<Vec<OsString>>;
    /// The directory itself as a file: for its lock, its attributes and its identity.
    fn itself(&self) -> io::Result<Box<dyn BackendFile>>;
    /// Whether this process may make and remove names.
    fn check_writable(&self) -> io::Result<()>;
    /// Returns when all names are on disk.
    fn sync_dir(&self) -> io::Result<()>;
    /// Returns when all files and names of the file system are on disk.
    fn sync_fs(&self) -> io::Result<()>;
    /// Attributes of what a name stands for, without following a symbolic link.
    fn stat(&self, name: &OsStr) -> io::Result<FileStat>;
    /// The file system's size and room.
    fn statvfs(&self) -> io::Result<libc::statvfs>;
}

/// The locks of flock(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flock {
    /// Held by any number at a time.
    Shared,
    /// Held by one alone.
    Exclusive,
}

/// An open file.
pub trait BackendFile: Send + Sync {
    /// Reads at `offset`; a short count means the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `data` at `offset`, lengthening the file where it ends before.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts or lengthens.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Returns when content and length are on disk.
    fn sync_data(&self) -> io::Result<()>;
    /// Returns when content and all attributes are on disk.
    fn sync_all(&self) -> io::Result<()>;
    /// Attributes.
    fn stat(&self) -> io::Result<FileStat>;
    /// Takes the exclusive lock of flock(2) that goes with the last handle; `false` if another process has it.
    fn try_lock(&self) -> io::Result<bool>;
    /// Gives the lock back.
    fn unlock(&self) -> io::Result<()>;
    /// Takes a lock of flock(2) in place of any that this handle has; `false` if others hold one that excludes it, unless with
    /// `wait`. What was held before may be lost even then.
    fn flock(&self, lock: Flock, wait: bool) -> io::Result<bool> {
        match lock {
            Flock::Exclusive if !wait => self.try_lock(),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
    /// The file descriptor, where there is one: with two of them, bytes can be copied inside the kernel.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// These bytes will be read soon: a hint.
    fn will_need(&self, _offset: u64, _len: u64) {}
    /// Gives the room of these bytes back to the file system, where it can: they read as zeros then, and the file stays as long as
    /// it is. Until the next sync, any part of them may be on disk as it was.
    fn punch_hole(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Takes over mode, owner and extended attributes as far as that is allowed, silently where it is not.
    fn copy_attributes(&self, _from: &dyn BackendFile) {}
}

/// Fills `buf` from `offset`; a file that ends before is an error.
pub fn read_exact_at(file: &dyn BackendFile, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match file.read_at(buf, offset)? {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("the file ends at byte {offset}"))),
            n => {
                buf = &mut buf[n..];
                offset += n as u64;
            }
        }
    }
    Ok(())
}

/// How many descriptors a store may hold open for reading: a part of what the process may have.
pub(crate) fn descriptor_budget() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` has room for the answer.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    let limit = if known { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 0 };
    (limit / 4).clamp(8, 1024)
}

/// Pieces in which bytes are copied where the kernel does not do it.
pub(crate) const PIECE: usize = 1 << 20;

/// Copies `len` bytes within a file, or from one to another; the ranges must not overlap. In the kernel where it can be, which
/// may share the blocks instead of copying.
pub fn copy_range(from: &dyn BackendFile, from_offset: u64, to: &dyn BackendFile, to_offset: u64, len: u64) -> io::Result<()> {
    let mut done = 0;
    if let (Some(from_fd), Some(to_fd)) = (from.fd(), to.fd()) {
        while done < len {
            match kernel_copy(from_fd, from_offset + done, to_fd, to_offset + done, len - done) {
                Ok(0) => break, // the file ends here; the loop below says so
                Ok(n) => done += n,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EIO)) => return Err(error),
                Err(_) => break, // not possible between these two
            }
        }
    }
    let mut buf = vec![0; usize::try_from(len - done).unwrap_or(PIECE).min(PIECE)];
    while done < len {
        let piece = buf.len().min(usize::try_from(len - done).unwrap_or(PIECE));
        read_exact_at(from, &mut buf[..piece], from_offset + done)?;
        to.write_at(&buf[..piece], to_offset + done)?;
        done += piece as u64;
    }
    Ok(())
}

fn kernel_copy(from: BorrowedFd<'_>, from_offset: u64, to: BorrowedFd<'_>, to_offset: u64, len: u64) -> io::Result<u64> {
    let (mut from_offset, mut to_offset) = (offset_of(from_offset)?, offset_of(to_offset)?);
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(1 << 30);
    // SAFETY: both descriptors are borrowed for the call, and both offsets point to locals.
    let n = unsafe { libc::copy_file_range(from.as_raw_fd(), &mut from_offset, to.as_raw_fd(), &mut to_offset, len, 0) };
    u64::try_from(n).map_err(|_| io::Error::last_os_error())
}

fn offset_of(value: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(value).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

/// A directory of the real file system.
#[derive(Debug)]
pub struct FileBackend {
    dir: PathBuf,
    handle: File,
}

impl FileBackend {
    /// Opens a directory.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let handle = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(dir)?;
        Ok(FileBackend { dir: dir.to_owned(), handle })
    }

    /// A file without a name in the directory for temporary files, for when SOURCE's own directory takes none.
    pub fn temporary() -> io::Result<Box<dyn BackendFile>> {
        FileBackend::open(&std::env::temp_dir())?.create_unnamed()
    }

    fn open_at(&self, name: &OsStr, flags: libc::c_int, mode: u32) -> io::Result<File> {
        let name = CString::new(name.as_bytes())?;
        loop {
            // SAFETY: `name` ends with a zero byte, and the directory's descriptor is open for as long as `self` lives.
            let fd = unsafe { libc::openat(self.handle.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, mode) };
            if fd >= 0 {
                // SAFETY: the descriptor is new, and nobody else knows it.
                return Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    fn rename_at(&self, from: &OsStr, to: &OsStr, flags: libc::c_uint) -> io::Result<()> {
        let (from, to) = (CString::new(from.as_bytes())?, CString::new(to.as_bytes())?);
        let dir = self.handle.as_raw_fd();
        // SAFETY: both names end with a zero byte, and the directory's descriptor is open.
        match unsafe { libc::renameat2(dir, from.as_ptr(), dir, to.as_ptr(), flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn unlink(&self, name: &OsStr, flags: libc::c_int) -> io::Result<()> {
        let name = CString::new(name.as_bytes())?;
        // SAFETY: `name` ends with a zero byte, and the directory's descriptor is open.
        match unsafe { libc::unlinkat(self.handle.as_raw_fd(), name.as_ptr(), flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Backend for FileBackend {
    fn open(&self, name: &OsStr, write: bool) -> io::Result<Box<dyn BackendFile>> {
        let access = if write { libc::O_RDWR } else { libc::O_RDONLY };
        // O_NONBLOCK: a named pipe must not hold the open until someone writes.
        Ok(Box::new(self.open_at(name, access | libc::O_NONBLOCK, 0)?))
    }

    fn create(&self, name: &OsStr, mode: u32) -> io::Result<Box<dyn BackendFile>> {
        Ok(Box::new(self.open_at(name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, mode)?))
    }

    fn create_unnamed(&self) -> io::Result<Box<dyn BackendFile>> {
        if let Ok(file) = self.open_at(OsStr::new("."), libc::O_RDWR | libc::O_TMPFILE, 0o600) {
            return Ok(Box::new(file));
        }
        // Not every file system has O_TMPFILE.
        for attempt in 0u32.. {
            let name = OsString::from(format!(".b2fuse-{}-{attempt}", std::process::id()));
            match self.create(&name, 0o600) {
                Ok(file) => {
                    self.remove(&name)?;
                    return Ok(file);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn rename(&self, from: &OsStr, to: &OsStr, replace: bool) -> io::Result<()> {
        if replace {
            return self.rename_at(from, to, 0);
        }
        match self.rename_at(from, to, libc::RENAME_NOREPLACE) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => {}
            result => return result,
        }
        // A file system without RENAME_NOREPLACE: a second name never replaces either, and a directory, which can have
        // none, replaces at most an empty directory.
        let (c_from, c_to) = (CString::new(from.as_bytes())?, CString::new(to.as_bytes())?);
        let dir = self.handle.as_raw_fd();
        // SAFETY: both names end with a zero byte, and the directory's descriptor is open.
        if unsafe { libc::linkat(dir, c_from.as_ptr(), dir, c_to.as_ptr(), 0) } == 0 {
            return self.remove(from);
        }
        let error = io::Error::last_os_error();
        if !self.stat(from)?.is_dir() {
            return Err(error);
        }
        match self.stat(to) {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.rename_at(from, to, 0),
            Err(error) => Err(error),
        }
    }

    fn remove(&self, name: &OsStr) -> io::Result<()> {
        self.unlink(name, 0)
    }

    fn create_dir(&self, name: &OsStr) -> io::Result<Box<dyn Backend>> {
        let c_name = CString::new(name.as_bytes())?;
        // SAFETY: `c_name` ends with a zero byte, and the directory's descriptor is open.
        match unsafe { libc::mkdirat(self.handle.as_raw_fd(), c_name.as_ptr(), 0o777) } {
            0 => self.open_dir(name),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn open_dir(&self, name: &OsStr) -> io::Result<Box<dyn Backend>> {
        let handle = self.open_at(name, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
        Ok(Box::new(FileBackend { dir: self.dir.join(name), handle }))
    }

    fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        self.unlink(name, libc::AT_REMOVEDIR)
    }

    fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        self.rename_at(one, other, libc::RENAME_EXCHANGE)
    }

    fn names(&self) -> io::Result<Vec<OsString>> {
        // By the handle, as the path may stand for something else by now.
        let path = Path::new("/proc/self/fd").join(self.handle.as_raw_fd().to_string());
        std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn itself(&self) -> io::Result<Box<dyn BackendFile>> {
        Ok(Box::new(self.open_at(OsStr::new("."), libc::O_RDONLY | libc::O_DIRECTORY, 0)?))
    }

    fn check_writable(&self) -> io::Result<()> {
        let (here, mode) = (c".", libc::W_OK | libc::X_OK);
        // SAFETY: the name ends with a zero byte, and the directory's descriptor is open.
        match unsafe { libc::faccessat(self.handle.as_raw_fd(), here.as_ptr(), mode, libc::AT_EACCESS) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn sync_dir(&self) -> io::Result<()> {
        match self.handle.sync_all() {
            // File systems that cannot sync a directory say so; they have nothing to wait for.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            result => result,
        }
    }

    fn sync_fs(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open.
        match unsafe { libc::syncfs(self.handle.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn stat(&self, name: &OsStr) -> io::Result<FileStat> {
        let name = CString::new(name.as_bytes())?;
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `name` ends with a zero byte, the directory's descriptor is open, and `stat` has room for the answer.
        let failed =
            unsafe { libc::fstatat(self.handle.as_raw_fd(), name.as_ptr(), stat.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW) != 0 };
        if failed {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so it filled the structure.
        let stat = unsafe { stat.assume_init() };
        Ok(FileStat {
            dev: stat.st_dev,
            ino: stat.st_ino,
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            len: stat.st_size.cast_unsigned(),
            allocated: stat.st_blocks.cast_unsigned().saturating_mul(512),
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        })
    }

    fn statvfs(&self) -> io::Result<libc::statvfs> {
        let mut stat = MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: the descriptor is open, and `stat` has room for the answer.
        if unsafe { libc::fstatvfs(self.handle.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so it filled the structure.
        Ok(unsafe { stat.assume_init() })
    }
}

/// Seconds and nanoseconds of stat(2), which may lie before 1970.
fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { SystemTime::UNIX_EPOCH.checked_sub(whole) } else { SystemTime::UNIX_EPOCH.checked_add(whole) };
    let part = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0));
    base.and_then(|base| base.checked_add(part)).unwrap_or(SystemTime::UNIX_EPOCH)
}

impl BackendFile for File {
    fn will_need(&self, offset: u64, len: u64) {
        if let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) {
            // SAFETY: takes numbers, and reads nothing into our memory.
            unsafe { libc::posix_fadvise(self.as_raw_fd(), offset, len, libc::POSIX_FADV_WILLNEED) };
        }
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        Ok(fallocate(self, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)?)
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
        let meta = self.metadata()?;
        Ok(FileStat {
            dev: meta.dev(),
            ino: meta.ino(),
            mode: meta.mode(),
            uid: meta.uid(),
            gid: meta.gid(),
            len: meta.len(),
            allocated: meta.blocks().saturating_mul(512),
            atime: time(meta.atime(), meta.atime_nsec()),
            mtime: time(meta.mtime(), meta.mtime_nsec()),
            ctime: time(meta.ctime(), meta.ctime_nsec()),
        })
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.flock(Flock::Exclusive, false)
    }

    fn unlock(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open.
        match unsafe { libc::flock(self.as_raw_fd(), libc::LOCK_UN) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn flock(&self, lock: Flock, wait: bool) -> io::Result<bool> {
        let kind = match lock {
            Flock::Shared => libc::LOCK_SH,
            Flock::Exclusive => libc::LOCK_EX,
        };
        let operation = if wait { kind } else { kind | libc::LOCK_NB };
        loop {
            // SAFETY: the descriptor is open.
            if unsafe { libc::flock(self.as_raw_fd(), operation) } == 0 {
                return Ok(true);
            }
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn copy_attributes(&self, from: &dyn BackendFile) {
        let (Ok(stat), Some(from)) = (from.stat(), from.fd()) else { return };
        // The owner first: changing it takes set-user-id bits away. Both are refused to whoever may not; then things stay as
        // they are.
        // SAFETY: the descriptor is open.
        unsafe {
            if libc::fchown(self.as_raw_fd(), stat.uid, stat.gid) != 0 {
                libc::fchown(self.as_raw_fd(), libc::uid_t::MAX, stat.gid);
            }
            libc::fchmod(self.as_raw_fd(), stat.mode & 0o7777);
        }
        copy_xattrs(from, self.as_fd());
    }
}

/// Copies extended attributes (access lists among them) one by one, leaving out those that are refused.
fn copy_xattrs(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    let mut names = vec![0u8; 64 << 10]; // the most that Linux lets a list have
    // SAFETY: the descriptor is borrowed for the call, and the buffer is as long as said.
    let len = unsafe { libc::flistxattr(from.as_raw_fd(), names.as_mut_ptr().cast(), names.len()) };
    let Ok(len) = usize::try_from(len) else { return };
    let mut value = vec![0u8; 64 << 10]; // likewise for a value
    for name in names[..len.min(names.len())].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = std::ffi::CStr::from_bytes_with_nul(name) else { continue };
        // SAFETY: as above, and `name` ends with a zero byte.
        let len = unsafe { libc::fgetxattr(from.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        let Ok(len) = usize::try_from(len) else { continue };
        // SAFETY: as above; `len` bytes of `value` were just filled.
        unsafe { libc::fsetxattr(to.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), len.min(value.len()), 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rename_without_replacing_keeps_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let backend = FileBackend::open(dir.path()).unwrap();
        backend.create("a".as_ref(), 0o644).unwrap().write_at(b"new", 0).unwrap();
        backend.create("b".as_ref(), 0o644).unwrap().write_at(b"old", 0).unwrap();
        let error = backend.rename("a".as_ref(), "b".as_ref(), false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(dir.path().join("b")).unwrap(), b"old");
        backend.rename("a".as_ref(), "b".as_ref(), true).unwrap();
        assert_eq!(std::fs::read(dir.path().join("b")).unwrap(), b"new");
    }

    #[test]
    fn a_lock_is_held_against_other_handles_until_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let backend = FileBackend::open(dir.path()).unwrap();
        let first = backend.create("f".as_ref(), 0o644).unwrap();
        let second = backend.open("f".as_ref(), true).unwrap();
        assert!(first.try_lock().unwrap());
        assert!(!second.try_lock().unwrap());
        first.unlock().unwrap();
        assert!(second.try_lock().unwrap());
    }

    #[test]
    fn copies_within_and_between_files() {
        let dir = tempfile::tempdir().unwrap();
        let backend = FileBackend::open(dir.path()).unwrap();
        let file = backend.create("f".as_ref(), 0o644).unwrap();
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        file.write_at(&bytes, 0).unwrap();
        copy_range(&*file, 100, &*file, 4_000_000, 2_500_000).unwrap();
        let other = backend.create_unnamed().unwrap();
        copy_range(&*file, 4_000_000, &*other, 5, 2_500_000).unwrap();
        let mut got = vec![0; 2_500_000];
        read_exact_at(&*other, &mut got, 5).unwrap();
        assert!(got == bytes[100..2_500_100]);
        assert_eq!(copy_range(&*file, 6_400_000, &*other, 0, 200_000).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
