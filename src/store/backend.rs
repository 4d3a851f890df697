//! What the store asks of a file system, as two traits small enough to be replaced whole: a directory and a file in it.
//!
//! The store does all its input and output through these, so that a test can log, cut, tear and fail every operation. A
//! backend promises what a POSIX file system does: a write is seen by every later read, and is on disk once a
//! [`BackendFile::sync_data`] that began after it has returned; names are on disk after [`Backend::sync_dir`]. Before that, any
//! subset of the 512-byte sectors written may be on disk.
//!
//! The backend of real directories and files is `local::FileBackend`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use rustix::fs::copy_file_range;
use rustix::io::Errno;

/// What `stat` says of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// Device of the file system.
    pub dev: u64,
    /// Inode number: with `dev`, which file it is.
    pub ino: u64,
    /// File type and permission bits (`st_mode`).
    pub mode: u32,
    /// Names that it has.
    pub links: u64,
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
    /// Whether owner and group are those of the files that this process makes.
    pub fn belongs_to_this_process(&self) -> bool {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        (self.uid, self.gid) == (uid.as_raw(), gid.as_raw())
    }
    /// Gives these permission bits to a directory, or to a file: where one is like the other, who may read it may search it.
    pub fn give_mode(&self, to: &dyn BackendFile, dir: bool) {
        match (self.is_dir(), dir) {
            (true, false) => to.set_mode(self.mode & 0o666),
            (false, true) => to.set_mode(self.mode | (self.mode & 0o444) >> 2),
            _ => {}
        }
    }
    /// Of a directory: whether others than its owner may rename what is not theirs in it.
    pub fn lets_others_rename(&self) -> bool {
        self.mode & 0o022 != 0 && self.mode & libc::S_ISVTX == 0
    }
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
    /// Whether it is a symbolic link.
    pub fn is_link(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFLNK
    }
}

/// What there is in a file system, and what is left of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsSpace {
    /// Bytes that are best read and written at once.
    pub io_size: u64,
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks.
    pub blocks: u64,
    /// Of them, free.
    pub free: u64,
    /// Of them, free to an ordinary user.
    pub available: u64,
    /// Files; 0 where they are not counted.
    pub files: u64,
    /// Of them, free.
    pub free_files: u64,
    /// Of them, free to an ordinary user.
    pub available_files: u64,
    /// The longest name, in bytes.
    pub name_max: u64,
}

impl FsSpace {
    /// Bytes that an ordinary user may take.
    pub fn available_bytes(&self) -> u64 {
        self.available.saturating_mul(self.block_size)
    }
}

/// What every change of a directory that is only read answers.
///
/// # Errors
/// EROFS.
pub(super) fn read_only<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::EROFS))
}

/// The methods of [`Backend`] that change names, of a directory that is only read.
macro_rules! names_cannot_be_changed {
    () => {
        fn create(&self, _name: &std::ffi::OsStr, _mode: u32) -> std::io::Result<Box<dyn $crate::store::backend::BackendFile>> {
            $crate::store::backend::read_only()
        }
        fn create_unnamed(&self) -> std::io::Result<Box<dyn $crate::store::backend::BackendFile>> {
            $crate::store::backend::read_only()
        }
        fn rename(&self, _from: &std::ffi::OsStr, _to: &std::ffi::OsStr, _replace: bool) -> std::io::Result<()> {
            $crate::store::backend::read_only()
        }
        fn remove(&self, _name: &std::ffi::OsStr) -> std::io::Result<()> {
            $crate::store::backend::read_only()
        }
        fn create_dir(&self, _name: &std::ffi::OsStr, _mode: u32) -> std::io::Result<Box<dyn $crate::store::backend::Backend>> {
            $crate::store::backend::read_only()
        }
        fn remove_dir(&self, _name: &std::ffi::OsStr) -> std::io::Result<()> {
            $crate::store::backend::read_only()
        }
        fn exchange(&self, _one: &std::ffi::OsStr, _other: &std::ffi::OsStr) -> std::io::Result<()> {
            $crate::store::backend::read_only()
        }
        fn check_writable(&self) -> std::io::Result<()> {
            $crate::store::backend::read_only()
        }
    };
}
pub(super) use names_cannot_be_changed;

/// A directory, and the names in it. Names are single components, and no symbolic link is followed.
#[expect(clippy::missing_errors_doc, reason = "what the system refuses, where a method says nothing else")]
pub trait Backend: Send + Sync {
    /// A time before which no file that is changed from now on was changed, by the clock that times of files are taken from; `None` if
    /// that is another machine's.
    fn clock(&self) -> Option<SystemTime> {
        None
    }
    /// Opens a regular file that exists; anything else is an error, ELOOP for a symbolic link. Waits for nobody.
    fn open(&self, name: &OsStr, write: bool) -> io::Result<Box<dyn BackendFile>>;
    /// The same of a file that will be read whole, for reading.
    fn open_whole(&self, name: &OsStr) -> io::Result<Box<dyn BackendFile>> {
        self.open(name, false)
    }
    /// Why what was read so far says nothing about a frame: a store far away did not answer, or others have changed the frame meanwhile.
    /// `look` asks whether it is still the same.
    fn out_of_reach(&self, _look: bool) -> Option<io::Error> {
        None
    }
    /// Makes a file for reading and writing; it is an error if the name exists, whatever it stands for. `mode` is cut by the umask.
    fn create(&self, name: &OsStr, mode: u32) -> io::Result<Box<dyn BackendFile>>;
    /// Makes a file for reading and writing that has no name and goes with its last handle.
    fn create_unnamed(&self) -> io::Result<Box<dyn BackendFile>>;
    /// Renames, atomically; where `replace` is false a name that exists is an error.
    fn rename(&self, from: &OsStr, to: &OsStr, replace: bool) -> io::Result<()>;
    /// Removes a file's name.
    fn remove(&self, name: &OsStr) -> io::Result<()>;
    /// Removes a file's name, if it still stands for the file that was looked at.
    fn remove_file(&self, name: &OsStr, seen: &FileStat) -> io::Result<()> {
        if self.stat(name)?.same_file(seen) { self.remove(name) } else { Err(io::Error::other("another file has its name now")) }
    }
    /// Makes a directory; it is an error if the name exists. `mode` is cut by the umask. What is returned is the new directory, or
    /// an error where another process has put something else in its place.
    fn create_dir(&self, name: &OsStr, mode: u32) -> io::Result<Box<dyn Backend>>;
    /// Opens a directory that exists; ELOOP for a symbolic link.
    fn open_dir(&self, name: &OsStr) -> io::Result<Box<dyn Backend>>;
    /// Removes an empty directory.
    fn remove_dir(&self, name: &OsStr) -> io::Result<()>;
    /// Lets two names that exist change places, atomically.
    fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()>;
    /// All names, in any order.
    fn names(&self) -> io::Result<Vec<OsString>>;
    /// The same, one after the other, until one is answered with false: for directories with more than memory is wanted for.
    fn each_name(&self, each: &mut dyn FnMut(&OsStr) -> bool) -> io::Result<()> {
        self.names()?.iter().all(|name| each(name));
        Ok(())
    }
    /// The directory itself as a file: for its lock, its attributes and its identity. It is the same open file each time.
    fn itself(&self) -> io::Result<Arc<dyn BackendFile>>;
    /// Whether this process may make and remove names.
    fn check_writable(&self) -> io::Result<()>;
    /// Returns when all names are on disk.
    fn sync_dir(&self) -> io::Result<()>;
    /// Returns when all files and names of the file system are on disk.
    fn sync_fs(&self) -> io::Result<()>;
    /// Attributes of what a name stands for, without following a symbolic link.
    fn stat(&self, name: &OsStr) -> io::Result<FileStat>;
    /// The file system's size and room.
    fn statvfs(&self) -> io::Result<FsSpace>;
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
#[expect(clippy::missing_errors_doc, reason = "what the system refuses, where a method says nothing else")]
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
    /// Takes a lock of flock(2) in place of any that this handle has; `false` if others hold one that excludes it. What was held before
    /// may be lost even then. With `until` it waits for them until that is set and a signal comes, as `Interrupted` says then: whoever
    /// has got it by then has it no longer.
    fn flock(&self, lock: Flock, until: Option<&AtomicBool>) -> io::Result<bool> {
        match lock {
            Flock::Exclusive if until.is_none() => self.try_lock(),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
    /// The file descriptor, where there is one: with two of them, bytes can be copied inside the kernel.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// As [`Backend::out_of_reach`].
    fn is_out_of_reach(&self) -> bool {
        false
    }
    /// These bytes will be read soon: a hint.
    fn will_need(&self, _offset: u64, _len: u64) {}
    /// Gives the room of these bytes back to the file system, where it can: they read as zeros then, and the file stays as long as
    /// it is. Until the next sync, any part of them may be on disk as it was.
    fn punch_hole(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// The same file opened again, with locks of its own.
    fn reopen(&self, _write: bool) -> io::Result<Box<dyn BackendFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Takes over owner, permission bits and extended attributes as far as that is allowed, silently where it is not. Set-user-ID and
    /// set-group-ID bits, and capabilities, are not taken over.
    fn copy_attributes(&self, _from: &dyn BackendFile) {}
    /// The value of the attribute that holds the access list, if there is one.
    fn access_list(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }
    /// Gives the file to the owner and group of another.
    fn set_owner(&self, _owner: &FileStat) -> io::Result<()> {
        Ok(())
    }
    /// Sets the permission bits of `mode`, as far as that is allowed.
    fn set_mode(&self, _mode: u32) {}
}

/// Fills `buf` from `offset`.
///
/// # Errors
/// What cannot be read; the file ends before.
#[expect(clippy::indexing_slicing, reason = "a backend reads no more than there is room for")]
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
    lock_budget().min(1024)
}

/// How many descriptors this process may have.
pub fn descriptor_limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// How many descriptors clients may take for their locks: a part as well, so that enough are left for everything else.
pub(crate) fn lock_budget() -> usize {
    (descriptor_limit() / 4).max(8)
}

/// Pieces in which bytes are copied where the kernel does not do it.
pub(crate) const PIECE: usize = 1 << 20;

/// Copies `len` bytes within a file, or from one to another; the ranges must not overlap. In the kernel where it can be, which
/// may share the blocks instead of copying.
///
/// # Errors
/// What cannot be read or written.
#[expect(clippy::indexing_slicing, reason = "no more is counted than there is in the buffer")]
pub fn copy_range(from: &dyn BackendFile, from_offset: u64, to: &dyn BackendFile, to_offset: u64, len: u64) -> io::Result<()> {
    let mut done = 0;
    if let (Some(from_fd), Some(to_fd)) = (from.fd(), to.fd()) {
        while done < len {
            let (mut from_at, mut to_at) = (from_offset + done, to_offset + done);
            let most = usize::try_from(len - done).unwrap_or(usize::MAX).min(1 << 30);
            match copy_file_range(from_fd, Some(&mut from_at), to_fd, Some(&mut to_at), most) {
                Ok(0) => break, // the file ends here; the loop below says so
                Ok(n) => done += n as u64,
                Err(Errno::INTR) => {}
                Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => return Err(error.into()),
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
