//! The local file system: the only module that turns a path or a name into an open file. `.clippy.toml` holds the rest of the crate to
//! that.
//!
//! What it promises:
//!
//! - A path that the user gave is resolved once, with its symbolic links ([`resolve`]). The directory where it ends is opened
//!   without following any link, and is held open. From then on only names beneath that descriptor count.
//! - A name in a directory is opened without following a link, without waiting for the other end of a pipe or for a lease, and is
//!   checked after it was opened: a file must be a regular file, a directory a directory.
//! - What was made is what is used: a new directory is looked at after it was opened, before anything is put into it or given away.
//! - Owner, mode and extended attributes are set by descriptor. Bits that let a file run as its owner or group are never copied, nor
//!   are capabilities.
//!
//! Links are followed in one case: in a directory opened to follow them ([`FileBackend::following_links_inside`]), where link and
//! directory belong to the user of this process and nobody else may write the directory.

#![expect(clippy::disallowed_methods, reason = "this is the one module that may open paths")]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags};

use super::backend::{Backend, BackendFile, FileStat, FsSpace};
pub(super) use file::hidden;
use spare::{openat, opening};

pub use command_line::hide_arguments;
pub use holders::{UsingProcess, holders};
pub use log_file::{open_log_file, reopen_log_file};
pub use own_log::{OwnLog, own_log};
pub use small_file::{read_secret, read_small};
pub use tree::set_times;

pub mod beneath;
mod command_line;
pub mod descriptors;
mod file;
mod holders;
mod log_file;
pub mod mountinfo;
pub mod mounts;
mod own_log;
mod runtime_dir;
mod small_file;
pub(super) mod spare;
pub mod system;
#[cfg(test)]
mod tests;
mod tree;
pub mod watch;
mod watch_slots;

/// How many links a chain may have where links are followed.
const LINKS: usize = 16;

/// How a file is opened: never through a link, never as a controlling terminal, never waiting for a pipe or a lease.
const SAFELY: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A path without symbolic links, resolved now.
///
/// # Errors
/// What the system refuses; a path that leads nowhere.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    std::fs::canonicalize(path).map_err(in_a_circle)
}

/// Of a path whose links are followed: too many are no file that is a link.
fn in_a_circle(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("its symbolic links lead in a circle"),
        _ => error,
    }
}

/// What a path that the user gave stands for, links followed; `None` if it stands for nothing.
///
/// # Errors
/// What the system refuses.
pub fn stat(path: &Path) -> io::Result<Option<FileStat>> {
    match rustix::fs::stat(path) {
        Ok(stat) => Ok(Some(stat.into())),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(in_a_circle(error.into())),
    }
}

/// What another program did with a file or directory whose name is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gone {
    /// It has another name, or a directory above it has.
    Renamed(PathBuf),
    /// It has no name.
    Removed,
}

/// What became of a held file or directory to which a path leads no more; `None` if something has the path, or that cannot be told.
pub fn gone(held: BorrowedFd<'_>, path: &Path) -> Option<Gone> {
    if stat_itself(path).ok()?.is_some() {
        return None;
    }
    if rustix::fs::fstat(held).ok()?.st_nlink == 0 {
        return Some(Gone::Removed);
    }
    system::read_link(format!("/proc/self/fd/{}", held.as_raw_fd())).ok().map(Gone::Renamed)
}

/// What a path stands for, the last link not followed; `None` if it stands for nothing.
///
/// # Errors
/// What the system refuses.
pub fn stat_itself(path: &Path) -> io::Result<Option<FileStat>> {
    match rustix::fs::lstat(path) {
        Ok(stat) => Ok(Some(stat.into())),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether the directory of that path, links followed, has the index file of a sparse frame, as far as can be seen: one that may not be
/// searched may have it.
pub fn has_index(path: &Path) -> bool {
    let found = rustix::fs::lstat(path.join(crate::format::INDEX_NAME));
    !matches!(found, Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR))
}

/// Opens a directory by a path that [`resolve`] gave: if a part of it has become a link since, that is an error (ELOOP).
fn open_resolved(path: &Path) -> io::Result<OwnedFd> {
    let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::RDONLY | DIRECTORY;
    match opening(|| rustix::fs::openat2(CWD, path, flags, Mode::empty(), how)) {
        // Before Linux 5.6, or under a filter that does not know the call.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => open_step_by_step(path),
        opened => Ok(opened?),
    }
}

fn open_step_by_step(path: &Path) -> io::Result<OwnedFd> {
    let mut dir = rustix::fs::open(if path.is_absolute() { "/" } else { "." }, OFlags::PATH | DIRECTORY, Mode::empty())?;
    for part in path.components() {
        let part = match part {
            Component::RootDir | Component::CurDir => continue,
            Component::Normal(part) => part,
            Component::ParentDir => OsStr::new(".."),
            Component::Prefix(_) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        dir = openat(&dir, part, OFlags::PATH | DIRECTORY, Mode::empty())?;
    }
    Ok(openat(&dir, ".", OFlags::RDONLY | DIRECTORY, Mode::empty())?)
}

/// A directory of the local file system, held open.
#[derive(Debug)]
pub struct FileBackend {
    /// Shared with who has opened it, and with [`Backend::itself`]: descriptors are scarce.
    handle: Arc<File>,
    /// Whether trusted links are followed to files, here and in directories inside.
    links: Links,
}

/// Where trusted links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    Nowhere,
    /// In the directories that are opened from this one.
    Inside,
    Here,
}

impl Links {
    fn inside(self) -> Self {
        match self {
            Links::Nowhere => Links::Nowhere,
            Links::Inside | Links::Here => Links::Here,
        }
    }
}

impl FileBackend {
    /// Opens a directory by a path that the user gave.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        Ok(FileBackend::of(open_resolved(&resolve(dir)?)?))
    }

    /// Opens a directory by a path that [`resolve`] gave.
    ///
    /// # Errors
    /// What the system refuses; ELOOP if a part of the path has become a link since.
    pub fn open_resolved(dir: &Path) -> io::Result<Self> {
        Ok(FileBackend::of(open_resolved(dir)?))
    }

    /// The same directory. In the directories that are opened from it, links to files are followed if they belong to the user of this
    /// process, and so does the directory, which nobody else may write.
    #[must_use]
    pub fn following_links_inside(self) -> Self {
        FileBackend { links: Links::Inside, ..self }
    }

    /// A file without a name in the directory for temporary files, for when SOURCE's own directory takes none.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn temporary() -> io::Result<Box<dyn BackendFile>> {
        FileBackend::open(&std::env::temp_dir())?.create_unnamed()
    }

    fn open_file(&self, name: &OsStr, write: bool) -> io::Result<File> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        loop {
            match openat(&*self.handle, component(name)?, access | SAFELY, Mode::empty()) {
                Ok(fd) => return regular(fd.into()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::LOOP) if self.links == Links::Here && !write => {
                    return follow(self.handle.as_fd(), name, LINKS);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn new_dir(&self, name: &OsStr, mode: Mode) -> io::Result<File> {
        let since = now();
        rustix::fs::mkdirat(&*self.handle, component(name)?, mode)?;
        let fd = openat(&*self.handle, name, OFlags::RDONLY | DIRECTORY, Mode::empty())?;
        let handle = File::from(fd);
        if !is_new(&handle, since)? {
            return Err(io::Error::other("another process has put something else in its place"));
        }
        Ok(handle)
    }

    fn rename_at(&self, from: &OsStr, to: &OsStr, flags: RenameFlags) -> io::Result<()> {
        Ok(rustix::fs::renameat_with(&*self.handle, component(from)?, &*self.handle, component(to)?, flags)?)
    }
}

/// The one name of a file in a directory.
fn component(name: &OsStr) -> io::Result<&OsStr> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(name)
}

/// A file that was opened, if it is a regular one.
fn regular(file: File) -> io::Result<File> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    let found = match kind {
        FileType::RegularFile => return Ok(file),
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::BlockDevice | FileType::CharacterDevice => "a device",
        _ => "something else",
    };
    Err(io::Error::other(format!("it is {found}; expected a regular file")))
}

/// Opens the file that a link leads to, if link and directory are ones to trust.
fn follow(dir: BorrowedFd<'_>, name: &OsStr, left: usize) -> io::Result<File> {
    let refused = || io::Error::from(rustix::io::Errno::LOOP);
    let me = rustix::process::geteuid().as_raw();
    let around = rustix::fs::fstat(dir)?;
    let link = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if left == 0 || around.st_uid != me || around.st_mode & 0o022 != 0 || link.st_uid != me {
        return Err(refused());
    }
    let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
    let name = target.file_name().ok_or_else(refused)?;
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Links of others on the way are not followed.
    let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let parent = opening(|| rustix::fs::openat2(dir, parent, OFlags::PATH | DIRECTORY, Mode::empty(), how))?;
    match openat(&parent, name, OFlags::RDONLY | SAFELY, Mode::empty()) {
        Ok(fd) => regular(fd.into()),
        Err(rustix::io::Errno::LOOP) => follow(parent.as_fd(), name, left - 1),
        Err(error) => Err(error.into()),
    }
}

/// File systems whose clock is that of another machine, by `f_type`: NFS, SMB, FUSE, 9P.
const REMOTE: [u32; 5] = [0x6969, 0xFF53_4D42, 0xFE53_4D42, 0x6573_5546, 0x0102_1997];

/// A moment that no file made from now on was made before.
fn now() -> (i64, u32) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    (now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Whether an open directory is new: empty, and not older than `since`.
fn is_new(dir: &File, since: (i64, u32)) -> io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    let system = rustix::fs::fstatfs(dir)?;
    if REMOTE.contains(&(system.f_type as u32)) {
        return Ok(true);
    }
    let Ok(stat) = rustix::fs::statx(dir, "", AtFlags::EMPTY_PATH, rustix::fs::StatxFlags::BTIME) else { return Ok(true) };
    let known = stat.stx_mask & rustix::fs::StatxFlags::BTIME.bits() != 0;
    Ok(!known || (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec) >= since)
}

impl Backend for FileBackend {
    fn clock(&self) -> Option<SystemTime> {
        let system = rustix::fs::fstatfs(&*self.handle).ok()?;
        if REMOTE.contains(&(system.f_type as u32)) {
            return None;
        }
        let (seconds, nanoseconds) = now();
        SystemTime::UNIX_EPOCH.checked_add(Duration::new(u64::try_from(seconds).ok()?, nanoseconds))
    }

    fn open(&self, name: &OsStr, write: bool) -> io::Result<Box<dyn BackendFile>> {
        Ok(Box::new(self.open_file(name, write)?))
    }

    fn create(&self, name: &OsStr, mode: u32) -> io::Result<Box<dyn BackendFile>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | SAFELY;
        let fd = openat(&*self.handle, component(name)?, flags, Mode::from_raw_mode(mode & 0o777))?;
        Ok(Box::new(File::from(fd)))
    }

    fn create_unnamed(&self) -> io::Result<Box<dyn BackendFile>> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        if let Ok(fd) = openat(&*self.handle, ".", flags, Mode::RUSR | Mode::WUSR) {
            return Ok(Box::new(File::from(fd)));
        }
        // Not every file system has O_TMPFILE.
        for attempt in 0u32.. {
            let name = OsString::from(format!(".b2fuse-{}-{attempt}", std::process::id()));
            match self.create(&name, 0o600) {
                Ok(file) => {
                    self.remove_file(&name, &file.stat()?)?;
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
            return self.rename_at(from, to, RenameFlags::empty());
        }
        match self.rename_at(from, to, RenameFlags::NOREPLACE) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => {}
            result => return result,
        }
        // A file system without RENAME_NOREPLACE: a second name never replaces either, and a directory, which can have
        // none, replaces at most an empty directory.
        let linked = rustix::fs::linkat(&*self.handle, component(from)?, &*self.handle, component(to)?, AtFlags::empty());
        let error = match linked {
            Ok(()) => return self.remove(from),
            Err(error) => error.into(),
        };
        if !self.stat(from)?.is_dir() {
            return Err(error);
        }
        match self.stat(to) {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.rename_at(from, to, RenameFlags::empty()),
            Err(error) => Err(error),
        }
    }

    fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&*self.handle, component(name)?, AtFlags::empty())?)
    }

    fn create_dir(&self, name: &OsStr, mode: u32) -> io::Result<Box<dyn Backend>> {
        let handle = self.new_dir(name, Mode::from_raw_mode(mode & 0o777))?;
        Ok(Box::new(FileBackend { handle: Arc::new(handle), links: self.links.inside() }))
    }

    fn open_dir(&self, name: &OsStr) -> io::Result<Box<dyn Backend>> {
        let name = component(name)?;
        match openat(&*self.handle, name, OFlags::RDONLY | DIRECTORY, Mode::empty()) {
            Ok(fd) => Ok(Box::new(FileBackend { links: self.links.inside(), ..FileBackend::of(fd) })),
            // With O_DIRECTORY a link is no directory.
            Err(rustix::io::Errno::NOTDIR) if self.stat(name).is_ok_and(|stat| stat.is_link()) => {
                Err(rustix::io::Errno::LOOP.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&*self.handle, component(name)?, AtFlags::REMOVEDIR)?)
    }

    fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        self.rename_at(one, other, RenameFlags::EXCHANGE)
    }

    fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&*self.handle)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    fn each_name(&self, each: &mut dyn FnMut(&OsStr) -> bool) -> io::Result<()> {
        beneath::list(self.handle.as_fd(), 0, &mut |listed| each(listed.name))
    }

    fn itself(&self) -> io::Result<Arc<dyn BackendFile>> {
        Ok(Arc::<File>::clone(&self.handle))
    }

    fn check_writable(&self) -> io::Result<()> {
        let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        Ok(rustix::fs::accessat(&*self.handle, ".", access, AtFlags::EACCESS)?)
    }

    fn sync_dir(&self) -> io::Result<()> {
        match self.handle.sync_all() {
            // File systems that cannot sync a directory say so; they have nothing to wait for.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            result => result,
        }
    }

    fn sync_fs(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&*self.handle)?)
    }

    fn stat(&self, name: &OsStr) -> io::Result<FileStat> {
        Ok(rustix::fs::statat(&*self.handle, component(name)?, AtFlags::SYMLINK_NOFOLLOW)?.into())
    }

    fn statvfs(&self) -> io::Result<FsSpace> {
        beneath::space(self.handle.as_fd())
    }
}
