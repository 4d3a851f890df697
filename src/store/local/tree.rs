//! What going through a tree of directories needs of one of them, and copying what is in it.
//!
//! A copy has a new name, with nobody let in but its owner until it is whole. Then it gets what [`BackendFile::copy_attributes`] takes
//! over, and the times.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RawMode, SeekFrom, StatxAttributes, StatxFlags, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;

use super::spare::openat;
use super::{DIRECTORY, FileBackend, SAFELY, component};
use crate::store::backend::{BackendFile, FileStat, copy_range};

/// Bytes that are copied between two looks at whether to go on.
const PIECE: u64 = 64 << 20;

impl FileBackend {
    /// Opens a directory in this one, without following a link.
    ///
    /// # Errors
    /// What the system refuses; what is no directory, a link for one (ENOTDIR).
    pub fn inside(&self, name: &OsStr) -> io::Result<Self> {
        let fd = openat(&*self.handle, component(name)?, OFlags::RDONLY | DIRECTORY, Mode::empty())?;
        Ok(FileBackend { links: self.links.inside(), ..FileBackend::of(fd) })
    }

    /// Attributes of the directory itself.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn own_stat(&self) -> io::Result<FileStat> {
        Ok(rustix::fs::fstat(&*self.handle)?.into())
    }

    /// Whether the directory, which was opened from one on device `around`, is where another file system is mounted.
    pub fn is_mount_point(&self, around: u64) -> bool {
        if let Ok(stat) = rustix::fs::statx(&*self.handle, "", AtFlags::EMPTY_PATH, StatxFlags::empty())
            && stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
        {
            return stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        }
        // Before Linux 5.8.
        self.own_stat().is_ok_and(|stat| stat.dev != around)
    }

    /// Makes a directory in this one that nobody but its owner can use, and opens it.
    ///
    /// # Errors
    /// What the system refuses; a name that exists.
    pub fn make_inside(&self, name: &OsStr) -> io::Result<Self> {
        Ok(FileBackend { handle: Arc::new(self.new_dir(name, Mode::RWXU)?), links: self.links.inside() })
    }

    /// Copies a file of any kind but a directory into another directory, under the same name, and answers what was made. Of a regular
    /// file the content, holes included, as long as `going` says so.
    ///
    /// # Errors
    /// What the system refuses; a name that exists; a file that is not the one that was `seen`, or that was changed meanwhile. Of a
    /// regular file nothing is left then.
    pub fn copy_to(&self, name: &OsStr, seen: &FileStat, to: &Self, going: &dyn Fn() -> bool) -> io::Result<FileStat> {
        let name = component(name)?;
        match FileType::from_raw_mode(seen.mode as RawMode) {
            FileType::RegularFile => self.copy_file(name, seen, to, going),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&*self.handle, name, Vec::new())?;
                rustix::fs::symlinkat(target.as_c_str(), &*to.handle, name)?;
                to.dress_by_name(name, seen)
            }
            kind => {
                let now = rustix::fs::statat(&*self.handle, name, AtFlags::SYMLINK_NOFOLLOW)?;
                if !FileStat::from(now).same_file(seen) {
                    return Err(io::Error::other("another file has its name now"));
                }
                rustix::fs::mknodat(&*to.handle, name, kind, Mode::empty(), now.st_rdev)?;
                to.dress_by_name(name, seen)
            }
        }
    }

    fn copy_file(&self, name: &OsStr, seen: &FileStat, to: &Self, going: &dyn Fn() -> bool) -> io::Result<FileStat> {
        let from = self.open_file(name, false)?;
        let before = BackendFile::stat(&from)?;
        if !before.same_file(seen) {
            return Err(io::Error::other("another file has its name now"));
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | SAFELY;
        let copy = File::from(openat(&*to.handle, name, flags, Mode::RUSR | Mode::WUSR)?);
        let made = BackendFile::stat(&copy)?;
        let copied = copy_content(&from, &copy, before.len, going).and_then(|()| {
            let after = BackendFile::stat(&from)?;
            if (after.len, after.mtime) != (before.len, before.mtime) {
                return Err(io::Error::other("it was changed while it was being copied"));
            }
            copy.copy_attributes(&from);
            set_times(&copy, seen.atime, seen.mtime)
        });
        match copied {
            Ok(()) => Ok(made),
            Err(error) => {
                if to.stat_inside(name).is_ok_and(|there| there.same_file(&made)) {
                    let _ = rustix::fs::unlinkat(&*to.handle, name, AtFlags::empty());
                }
                Err(error)
            }
        }
    }

    fn stat_inside(&self, name: &OsStr) -> io::Result<FileStat> {
        Ok(rustix::fs::statat(&*self.handle, name, AtFlags::SYMLINK_NOFOLLOW)?.into())
    }

    /// Gives what was made in this directory, and is not opened, owner, mode and times.
    fn dress_by_name(&self, name: &OsStr, like: &FileStat) -> io::Result<FileStat> {
        let file = openat(&*self.handle, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let made: FileStat = rustix::fs::fstat(&file)?.into();
        // What others may have put there is not given to anybody.
        if made.mode & libc::S_IFMT != like.mode & libc::S_IFMT || made.links != 1 {
            return Err(io::Error::other("another process has put something else in its place"));
        }
        // As far as that is allowed, as of other files.
        let (uid, gid) = (Some(Uid::from_raw(like.uid)), Some(Gid::from_raw(like.gid)));
        let owned = |uid| rustix::fs::chownat(&file, "", uid, gid, AtFlags::EMPTY_PATH);
        let _ = owned(uid).or_else(|_| owned(None));
        if !like.is_link() {
            // This link leads to what was found, whatever has become of its name.
            rustix::fs::chmodat(CWD, format!("/proc/self/fd/{}", file.as_raw_fd()), mode(like, 0o777), AtFlags::empty())?;
        }
        rustix::fs::utimensat(&*self.handle, name, &timestamps(like.atime, like.mtime), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(made)
    }

    /// Gives a file in this directory, which is the one that was `made`, another name in another directory.
    ///
    /// # Errors
    /// What the system refuses; a name that exists; another file.
    pub fn link_to(&self, name: &OsStr, made: &FileStat, to: &Self, new: &OsStr) -> io::Result<()> {
        if !self.stat_inside(component(name)?)?.same_file(made) {
            return Err(io::Error::other("another file has its name now"));
        }
        rustix::fs::linkat(&*self.handle, name, &*to.handle, component(new)?, AtFlags::empty())?;
        if !to.stat_inside(new)?.same_file(made) {
            rustix::fs::unlinkat(&*to.handle, new, AtFlags::empty())?;
            return Err(io::Error::other("another process has put another file in its place"));
        }
        Ok(())
    }

    /// Takes over the attributes of another directory, and the times that it had when it was `seen`.
    ///
    /// # Errors
    /// What the system refuses; what may be refused to a user is left out.
    pub fn become_like(&self, other: &Self, seen: &FileStat) -> io::Result<()> {
        self.handle.copy_attributes(&*other.handle);
        // What new files in it get, and who may remove them.
        rustix::fs::fchmod(&*self.handle, mode(seen, 0o3777))?;
        set_times(&*self.handle, seen.atime, seen.mtime)
    }
}

fn mode(stat: &FileStat, bits: u32) -> Mode {
    Mode::from_raw_mode((stat.mode & bits) as RawMode)
}

/// Copies what a new file is to hold.
fn copy_content(from: &File, to: &File, len: u64, going: &dyn Fn() -> bool) -> io::Result<()> {
    let mut at = 0;
    while at < len {
        let data = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            // Where holes are not known.
            Err(_) => at,
        };
        let end = match rustix::fs::seek(from, SeekFrom::Hole(data)) {
            Ok(end) if end > data => end.min(len),
            _ => len,
        };
        at = data;
        while at < end {
            if !going() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let piece = PIECE.min(end - at);
            copy_range(from, at, to, at, piece)?;
            at += piece;
        }
    }
    to.set_len(len)
}

/// Sets the times of last access and change of an open file.
///
/// # Errors
/// What the system refuses.
pub fn set_times(file: impl AsFd, atime: SystemTime, mtime: SystemTime) -> io::Result<()> {
    Ok(rustix::fs::futimens(file, &timestamps(atime, mtime))?)
}

fn timestamps(atime: SystemTime, mtime: SystemTime) -> Timestamps {
    Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) }
}

/// As stat(2) has it: whole seconds, and nanoseconds after them, before 1970 too.
pub(super) fn timespec(time: SystemTime) -> Timespec {
    let seconds = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => Timespec { tv_sec: seconds(since.as_secs()), tv_nsec: since.subsec_nanos().into() },
        Err(before) => {
            let before = before.duration();
            match before.subsec_nanos() {
                0 => Timespec { tv_sec: -seconds(before.as_secs()), tv_nsec: 0 },
                nanoseconds => Timespec { tv_sec: -1 - seconds(before.as_secs()), tv_nsec: (1_000_000_000 - nanoseconds).into() },
            }
        }
    }
}
