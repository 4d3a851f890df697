//! Names beneath a directory that is held open, of whatever kind: what a mount of a whole directory needs of the file system below.
//!
//! Every function takes a directory's descriptor and one name in it, and follows no link. What is to be looked at twice has a
//! [`FileId`], which tells whether it is still the same.

#![expect(unsafe_code, reason = "umask(2) and the calls that say on whose behalf files are made")]

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Statx, StatxFlags, Timespec, Timestamps,
    Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::file::time;
use super::tree::timespec;
use super::{FileBackend, Links, SAFELY, component, openat};
use crate::store::backend::{FileStat, FsSpace};

/// The most that Linux lets a list of extended attributes, or the value of one, have.
const XATTR_MAX: usize = 64 << 10;
/// Bytes of a directory that are read at once.
const LISTED: usize = 32 << 10;
/// A place in a listing from which nothing follows: some file systems say so with the largest number that there is.
const END: u64 = i64::MAX as u64 - 8;

/// Which file it is: as long as it is there no other has these three, and another that gets its number is born later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Device of the file system.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// When it was made, where the file system knows.
    pub born: (i64, u32),
}

/// What a name stands for.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// Which it is.
    pub id: FileId,
    /// Its attributes.
    pub stat: FileStat,
    /// The device, of a device.
    pub rdev: u64,
}

impl Found {
    /// Whether it is the same file, of the same kind.
    pub fn is(&self, other: &Found) -> bool {
        self.id == other.id && (self.stat.mode ^ other.stat.mode) & libc::S_IFMT == 0
    }
}

/// Who makes something.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// Owner of what is made.
    pub uid: u32,
    /// Its group, unless the directory's is to be inherited.
    pub gid: u32,
    /// Bits that a new file does not get, where its directory has no list of access rights for new files.
    pub umask: u32,
    /// Whose groups are those of the process of this id, where they matter and can be read; else 0.
    pub pid: u32,
}

impl Caller {
    /// Whether a file with a set-group-ID bit that is made in a directory keeps it: the caller is in the directory's group.
    fn keeps_set_group(self, dir: BorrowedFd<'_>, mode: u32) -> bool {
        if mode & libc::S_ISGID == 0 || self.pid == 0 {
            return false;
        }
        let Ok(stat) = rustix::fs::fstat(dir) else { return false };
        let status = super::system::read(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
        groups.split_ascii_whitespace().any(|group| group.parse() == Ok(stat.st_gid))
    }
}

impl From<Statx> for Found {
    fn from(stat: Statx) -> Self {
        let dev = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        let is_known = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        let born = if is_known { (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec) } else { (0, 0) };
        Found {
            id: FileId { dev, ino: stat.stx_ino, born },
            rdev: rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
            stat: FileStat {
                dev,
                ino: stat.stx_ino,
                mode: stat.stx_mode.into(),
                links: stat.stx_nlink.into(),
                uid: stat.stx_uid,
                gid: stat.stx_gid,
                len: stat.stx_size,
                allocated: stat.stx_blocks.saturating_mul(512),
                atime: time(stat.stx_atime.tv_sec, stat.stx_atime.tv_nsec.into()),
                mtime: time(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec.into()),
                ctime: time(stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec.into()),
            },
        }
    }
}

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Looks at a name.
///
/// # Errors
/// What the system refuses.
pub fn look(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<Found> {
    Ok(rustix::fs::statx(dir, component(name)?, AtFlags::SYMLINK_NOFOLLOW, WANTED)?.into())
}

/// Looks at an open file.
///
/// # Errors
/// What the system refuses.
pub fn look_at(file: BorrowedFd<'_>) -> io::Result<Found> {
    Ok(rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, WANTED)?.into())
}

/// Opens a directory for listing, or where that is not allowed to pass through it.
///
/// # Errors
/// What the system refuses.
pub fn open_dir(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(dir, component(name)?, OFlags::RDONLY | flags, Mode::empty()) {
        Err(Errno::ACCESS) => Ok(openat(dir, name, OFlags::PATH | flags, Mode::empty())?),
        opened => Ok(opened?),
    }
}

/// Opens a directory by a path that the user gave, with what it is called without links. Links are followed on the way to it, as in any
/// path, but it is none itself: whoever owns the directory that it is in could lead to any other.
///
/// # Errors
/// What the system refuses; ELOOP or ENOTDIR for a link.
pub fn open_root(path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let Some(name) = path.file_name() else {
        // `/`, `.` or `..`, which no link can be.
        let real = super::resolve(path)?;
        return Ok((super::open_resolved(&real)?, real));
    };
    let above = match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    let above = super::resolve(above)?;
    let dir = super::open_resolved(&above)?;
    Ok((open_dir(dir.as_fd(), name)?, above.join(name)))
}

/// Opens a file whose bytes are wanted.
///
/// # Errors
/// What the system refuses.
pub fn open_file(dir: BorrowedFd<'_>, name: &OsStr, flags: i32) -> io::Result<File> {
    let flags = OFlags::from_bits_retain(flags.cast_unsigned()) | SAFELY;
    Ok(openat(dir, component(name)?, flags, Mode::empty())?.into())
}

/// The same file opened anew, for reading.
///
/// # Errors
/// What the system refuses.
pub fn reopen(file: &File) -> io::Result<OwnedFd> {
    Ok(openat(CWD, of_process(file.as_fd()).as_str(), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
}

/// An open file, opened once more, of which there may be no name any more.
///
/// # Errors
/// What the system refuses.
pub fn open_again(file: &File, flags: i32) -> io::Result<File> {
    let flags = OFlags::from_bits_retain(flags.cast_unsigned()) | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(openat(CWD, of_process(file.as_fd()).as_str(), flags, Mode::empty())?.into())
}

/// The beginning of a regular file, if it can be read: at most as much as there is room for.
pub fn beginning<'a>(dir: BorrowedFd<'_>, name: &OsStr, buf: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = open_file(dir, name, 0).ok()?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file).ok()?.st_mode) != FileType::RegularFile {
        return None;
    }
    let count = rustix::io::pread(&file, &mut *buf, 0).ok()?;
    buf.get(..count)
}

/// Holds what a name stands for, to work on it whatever becomes of the name. It cannot be read.
///
/// # Errors
/// What the system refuses.
pub fn hold(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    Ok(openat(dir, component(name)?, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// The lock of a file or a directory, if nobody has it.
pub fn lock_alone(dir: BorrowedFd<'_>, name: &OsStr) -> Option<OwnedFd> {
    lock(dir, name, rustix::fs::FlockOperation::NonBlockingLockExclusive)
}

/// The same, as one of several who may have it; none if one has it alone.
pub fn lock_shared(dir: BorrowedFd<'_>, name: &OsStr) -> Option<OwnedFd> {
    lock(dir, name, rustix::fs::FlockOperation::NonBlockingLockShared)
}

fn lock(dir: BorrowedFd<'_>, name: &OsStr, how: rustix::fs::FlockOperation) -> Option<OwnedFd> {
    let file = openat(dir, component(name).ok()?, OFlags::RDONLY | SAFELY, Mode::empty()).ok()?;
    rustix::fs::flock(&file, how).ok()?;
    Some(file)
}

/// The path by which an open file is reached again, whatever has become of its name.
fn of_process(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Sets permission bits of what is held.
///
/// # Errors
/// What the system refuses.
pub fn set_mode(held: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::chmod(of_process(held), Mode::from_raw_mode(mode & 0o7777))?)
}

/// Gives what is held to an owner and a group.
///
/// # Errors
/// What the system refuses.
pub fn set_owner(held: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    Ok(rustix::fs::chownat(held, "", uid, gid, AtFlags::EMPTY_PATH)?)
}

/// Sets times of what is held.
///
/// # Errors
/// What the system refuses.
pub fn set_times(held: BorrowedFd<'_>, atime: Option<SystemTime>, mtime: Option<SystemTime>) -> io::Result<()> {
    let omitted = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let spec = |time: Option<SystemTime>| time.map_or(omitted, timespec);
    let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
    match rustix::fs::utimensat(held, "", &times, AtFlags::EMPTY_PATH) {
        // Before Linux 5.8.
        Err(Errno::INVAL) => Ok(rustix::fs::utimensat(CWD, of_process(held), &times, AtFlags::empty())?),
        set => Ok(set?),
    }
}

/// Sets the length of what is held.
///
/// # Errors
/// What the system refuses.
pub fn set_len(held: BorrowedFd<'_>, len: u64) -> io::Result<()> {
    let file = openat(CWD, of_process(held).as_str(), OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::fs::ftruncate(file, len)?)
}

/// The names of the extended attributes of what is held, each with a NUL behind it.
///
/// # Errors
/// What the system refuses.
pub fn xattrs(held: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut names = vec![0; XATTR_MAX];
    let len = rustix::fs::listxattr(of_process(held), &mut names)?;
    names.truncate(len);
    Ok(names)
}

/// The value of an extended attribute of what is held.
///
/// # Errors
/// What the system refuses.
pub fn xattr(held: BorrowedFd<'_>, name: &OsStr) -> io::Result<Vec<u8>> {
    let (path, mut small) = (of_process(held), vec![0; 256]);
    let (len, mut value) = match rustix::fs::getxattr(&path, name, &mut small) {
        Err(Errno::RANGE) => {
            let mut large = vec![0; XATTR_MAX];
            (rustix::fs::getxattr(&path, name, &mut large)?, large)
        }
        got => (got?, small),
    };
    value.truncate(len);
    Ok(value)
}

/// The value of the attribute that holds the access list of what is held, if there is one.
///
/// # Errors
/// What the system refuses.
pub fn access_list(held: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    super::file::access_list(held)
}

/// Sets an extended attribute of what is held, or removes it.
///
/// # Errors
/// What the system refuses.
pub fn set_xattr(held: BorrowedFd<'_>, name: &OsStr, value: Option<&[u8]>, flags: i32) -> io::Result<()> {
    let path = of_process(held);
    match value {
        Some(value) => Ok(rustix::fs::setxattr(path, name, value, XattrFlags::from_bits_retain(flags.cast_unsigned()))?),
        None => Ok(rustix::fs::removexattr(path, name)?),
    }
}

/// The text of a symbolic link.
///
/// # Errors
/// What the system refuses.
pub fn link_text(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<OsString> {
    Ok(OsString::from_vec(rustix::fs::readlinkat(dir, component(name)?, Vec::new())?.into_bytes()))
}

/// Makes and opens a file; EEXIST if the name is taken.
///
/// # Errors
/// What the system refuses.
pub fn create(dir: BorrowedFd<'_>, name: &OsStr, mode: u32, flags: i32, caller: Caller) -> io::Result<File> {
    let flags = OFlags::from_bits_retain(flags.cast_unsigned()) | OFlags::CREATE | OFlags::EXCL | SAFELY;
    let name = component(name)?;
    Ok(on_behalf_of(caller, caller.keeps_set_group(dir, mode), || openat(dir, name, flags, Mode::from_raw_mode(mode & 0o7777)))??
        .into())
}

/// Makes a directory.
///
/// # Errors
/// What the system refuses.
pub fn make_dir(dir: BorrowedFd<'_>, name: &OsStr, mode: u32, caller: Caller) -> io::Result<()> {
    let name = component(name)?;
    Ok(on_behalf_of(caller, false, || rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(mode & 0o7777)))??)
}

/// A moment, by the clock of the files.
pub type Moment = (i64, u32);

/// A moment that nothing made from now on was made before.
pub fn now() -> Moment {
    super::now()
}

/// Opens a directory that was made not before a moment, and that nothing has been put into.
///
/// # Errors
/// What the system refuses; another that was put in its place.
pub fn open_new_dir(dir: BorrowedFd<'_>, name: &OsStr, since: Moment) -> io::Result<OwnedFd> {
    let made = File::from(openat(dir, component(name)?, OFlags::RDONLY | super::DIRECTORY, Mode::empty())?);
    if super::is_new(&made, since)? { Ok(made.into()) } else { Err(io::Error::other("another directory has its name now")) }
}

/// Makes a file that is no directory and no link: of a kind, with permission bits, and of a device the number.
///
/// # Errors
/// What the system refuses.
pub fn make_special(dir: BorrowedFd<'_>, name: &OsStr, mode: u32, rdev: u64, caller: Caller) -> io::Result<()> {
    let name = component(name)?;
    let kind = FileType::from_raw_mode(mode);
    Ok(on_behalf_of(caller, caller.keeps_set_group(dir, mode), || {
        rustix::fs::mknodat(dir, name, kind, Mode::from_raw_mode(mode & 0o7777), rdev)
    })??)
}

/// Makes a symbolic link.
///
/// # Errors
/// What the system refuses.
pub fn make_link(dir: BorrowedFd<'_>, name: &OsStr, text: &OsStr, caller: Caller) -> io::Result<()> {
    let name = component(name)?;
    Ok(on_behalf_of(caller, false, || rustix::fs::symlinkat(text, dir, name))??)
}

/// Gives what is held another name.
///
/// # Errors
/// What the system refuses.
pub fn add_name(held: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let name = component(name)?;
    Ok(rustix::fs::linkat(CWD, of_process(held), dir, name, AtFlags::SYMLINK_FOLLOW)?)
}

/// Removes the name of something that is no directory, or of an empty directory.
///
/// # Errors
/// What the system refuses.
pub fn remove(dir: BorrowedFd<'_>, name: &OsStr, is_dir: bool) -> io::Result<()> {
    let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    Ok(rustix::fs::unlinkat(dir, component(name)?, flags)?)
}

/// How a rename treats a name that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Onto {
    /// It is replaced.
    Anything,
    /// EEXIST.
    Nothing,
    /// The two change places.
    Exchange,
}

/// Renames.
///
/// # Errors
/// What the system refuses.
pub fn rename(from: (BorrowedFd<'_>, &OsStr), to: (BorrowedFd<'_>, &OsStr), onto: Onto) -> io::Result<()> {
    let flags = match onto {
        Onto::Anything => RenameFlags::empty(),
        Onto::Nothing => RenameFlags::NOREPLACE,
        Onto::Exchange => RenameFlags::EXCHANGE,
    };
    Ok(rustix::fs::renameat_with(from.0, component(from.1)?, to.0, component(to.1)?, flags)?)
}

/// What the file system has and has left.
///
/// # Errors
/// What the system refuses.
pub fn space(dir: BorrowedFd<'_>) -> io::Result<FsSpace> {
    let stat = rustix::fs::fstatvfs(dir)?;
    Ok(FsSpace {
        io_size: stat.f_bsize,
        block_size: stat.f_frsize,
        blocks: stat.f_blocks,
        free: stat.f_bfree,
        available: stat.f_bavail,
        files: stat.f_files,
        free_files: stat.f_ffree,
        available_files: stat.f_favail,
        name_max: stat.f_namemax,
    })
}

/// Syncs a directory, where it can be.
///
/// # Errors
/// What the system refuses.
pub fn sync_dir(dir: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::fs::fsync(dir) {
        Err(Errno::INVAL | Errno::BADF) => Ok(()),
        synced => Ok(synced?),
    }
}

/// Syncs the file system that a directory is on.
///
/// # Errors
/// What the system refuses.
pub fn sync_fs(dir: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::syncfs(dir)?)
}

/// Syncs what a name stands for: a file, or a directory with all that is in it. Nothing else has anything to sync.
///
/// # Errors
/// What the system refuses.
pub fn sync_whole(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    // Not opened: a link leads elsewhere, and to open a device may do something.
    if !matches!(look(dir, name)?.stat.mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFDIR) {
        return Ok(());
    }
    let file = match openat(dir, component(name)?, OFlags::RDONLY | SAFELY, Mode::empty()) {
        // Who may not read it can sync it only with all others.
        Err(Errno::ACCESS) => return sync_fs(dir),
        opened => opened?,
    };
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::Directory => sync_fs(file.as_fd()).and_then(|()| sync_dir(file.as_fd())),
        FileType::RegularFile => Ok(rustix::fs::fdatasync(&file)?),
        _ => Ok(()),
    }
}

/// Writes to the end of a file.
///
/// # Errors
/// What the system refuses.
pub fn append(file: &File, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match rustix::io::pwritev2(file, &[io::IoSlice::new(data)], 0, rustix::io::ReadWriteFlags::APPEND) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => data = data.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// fallocate(2), with its flags.
///
/// # Errors
/// What the system refuses.
pub fn allocate(file: &File, flags: i32, offset: u64, len: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, FallocateFlags::from_bits_retain(flags.cast_unsigned()), offset, len)?)
}

/// Where data, or a hole, begins in a file that is not before an offset.
///
/// # Errors
/// What the system refuses; ENXIO behind the end.
pub fn seek(file: &File, offset: u64, hole: bool) -> io::Result<u64> {
    let offset = offset.cast_signed().max(0).cast_unsigned();
    Ok(rustix::fs::seek(file, if hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) })?)
}

/// Copies from one file to another, as much as the system does at once.
///
/// # Errors
/// What the system refuses.
pub fn copy(from: (&File, u64), to: (&File, u64), len: u64) -> io::Result<u64> {
    let (mut from_at, mut to_at) = (from.1, to.1);
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    Ok(rustix::fs::copy_file_range(from.0, Some(&mut from_at), to.0, Some(&mut to_at), len)? as u64)
}

/// A name in a listing.
#[derive(Debug)]
pub struct Listed<'a> {
    /// The name.
    pub name: &'a OsStr,
    /// Inode number.
    pub ino: u64,
    /// The file type, as the mode has it; 0 where the file system does not say.
    pub kind: u32,
    /// From where the listing goes on behind it.
    pub next: u64,
}

/// Lists a directory from a place on (0: from the beginning) until `emit` answers false. Without `.` and `..`.
///
/// # Errors
/// What the system refuses.
pub fn list(dir: BorrowedFd<'_>, from: u64, emit: &mut dyn FnMut(Listed<'_>) -> bool) -> io::Result<()> {
    if from >= END {
        return Ok(());
    }
    // Opened anew: a place in a listing belongs to an open file.
    let opened = openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    if from > 0 {
        rustix::fs::seek(&opened, SeekFrom::Start(from))?;
    }
    let mut buffer: Vec<u8> = Vec::with_capacity(LISTED);
    let mut entries = rustix::fs::RawDir::new(&opened, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => 0,
            kind => kind.as_raw_mode() & libc::S_IFMT,
        };
        let listed = Listed { name: OsStr::from_bytes(name), ino: entry.ino(), kind, next: entry.next_entry_cookie().min(END) };
        if !emit(listed) {
            return Ok(());
        }
    }
    Ok(())
}

impl FileBackend {
    /// A directory that is open.
    pub fn of(dir: OwnedFd) -> Self {
        FileBackend::shared(Arc::new(dir.into()))
    }

    /// A directory that others have open with the same descriptor.
    pub fn shared(dir: Arc<File>) -> Self {
        FileBackend { handle: dir, links: Links::Nowhere }
    }
}

thread_local! {
    /// This thread has a umask of its own.
    static OWN_UMASK: Cell<bool> = const { Cell::new(false) };
}

/// Makes something that belongs to somebody from its first moment: with the caller's user and group, and with their umask. Rights stay
/// those of this process, as the kernel has checked the caller's; but for the one to make programs that run as any group, which the
/// kernel looks at only here before Linux 6.0. A caller who is in the group by another than the first of their groups keeps that one.
fn on_behalf_of<T>(caller: Caller, keeps_set_group: bool, make: impl FnOnce() -> T) -> io::Result<T> {
    if !OWN_UMASK.get() {
        // SAFETY: this thread alone leaves what it shares with others: directories and umask.
        if unsafe { libc::unshare(libc::CLONE_FS) } == 0 {
            OWN_UMASK.set(true);
        }
    }
    let mask = caller.umask & 0o777;
    // SAFETY: sets a number, of this thread alone where the above has succeeded.
    let before = unsafe { libc::umask(mask) };
    let made = as_user(caller, keeps_set_group, make);
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    made
}

fn as_user<T>(caller: Caller, keeps_set_group: bool, make: impl FnOnce() -> T) -> io::Result<T> {
    let (me, my_group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if (caller.uid, caller.gid) == (me, my_group) {
        return Ok(make());
    }
    // A guard, so that a panic leaves no thread that acts for somebody else.
    struct Back(u32, u32);
    impl Drop for Back {
        fn drop(&mut self) {
            // SAFETY: two numbers of this thread are set to those of the process.
            unsafe {
                libc::setfsuid(self.0);
                libc::setfsgid(self.1);
            }
        }
    }
    let capabilities = rustix::thread::capabilities(None)?;
    let back = Back(me, my_group);
    // SAFETY: two numbers of this thread are set; the second call says whether the first had an effect.
    let changed = unsafe {
        libc::setfsgid(caller.gid);
        libc::setfsuid(caller.uid);
        libc::setfsuid(u32::MAX).cast_unsigned() == caller.uid && libc::setfsgid(u32::MAX).cast_unsigned() == caller.gid
    };
    if !changed {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // Another user of files takes rights away.
    let mut theirs = capabilities;
    if caller.uid != 0 && !keeps_set_group {
        theirs.effective.remove(CapabilitySet::FSETID);
    }
    let made = rustix::thread::set_capabilities(None, theirs).map(|()| make());
    drop(back);
    rustix::thread::set_capabilities(None, capabilities)?;
    Ok(made?)
}
