//! The seam to `fs`: what a mount must answer. One that is only read states what it shows; what would change something is refused.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::{
    Attr, Creation, DirEntry, Features, Flock, Handle, Ino, Invalidations, Left, New, OpenMode, Opened, Push, RenameMode, Reread,
    Result, Seek, SetAttr, SetMode, ViewError, Wait,
};

/// What `fs` calls: names, attributes and bytes. Every method may be called from any thread; none blocks readers while it commits.
///
/// A file system that is only read states what it shows: a method that would change something refuses, unless it is stated.
///
/// Methods take the [`Invalidations`] to fill where they can make something known to the kernel untrue, other than what the kernel
/// knows from the operation anyway (its own writes, the name it creates, removes or renames).
#[expect(clippy::missing_errors_doc, reason = "what the system refuses, where a method says nothing else")]
pub trait FileSystem: Send + Sync {
    /// What holds from the first request to the last.
    fn features(&self) -> Features;

    /// Finds a name.
    fn lookup(&self, parent: Ino, name: &OsStr) -> Result<Attr>;

    /// The kernel gives back so many of the times that it was told of an inode; with `altogether`, all.
    fn forget(&self, ino: Ino, count: u64, altogether: bool);

    /// Attributes.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Changes attributes; a new size counts as a write. Without a handle a size change ends with the call, as a write and a
    /// close would.
    fn setattr(&self, _ino: Ino, _handle: Option<Handle>, _set: SetAttr, _invalidations: &mut Invalidations) -> Result<Attr> {
        Err(ViewError::ReadOnly)
    }

    /// The text of a symbolic link.
    fn readlink(&self, _ino: Ino) -> Result<OsString> {
        Err(ViewError::Invalid)
    }

    /// Opens a file. Without [`Features::handles`], files may also be read without being opened.
    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Opened>;

    /// The file that the kernel may read and write by itself in place of an open one: see [`Pages::Passthrough`](super::Pages::Passthrough).
    fn backing(&self, _handle: Handle) -> Result<OwnedFd> {
        Err(ViewError::Invalid)
    }

    /// fallocate(2), with its flags.
    fn allocate(&self, _handle: Handle, _offset: u64, _len: u64, _flags: i32) -> Result<()> {
        Err(ViewError::Unsupported)
    }

    /// Where data, or a hole, begins that is not before an offset.
    fn seek(&self, _ino: Ino, _handle: Handle, _offset: u64, _seek: Seek) -> Result<u64> {
        Err(ViewError::Unsupported)
    }

    /// Copies from one open file to another; answers how much.
    fn copy_range(&self, _from: (Handle, u64), _to: (Handle, u64), _len: u64) -> Result<u64> {
        Err(ViewError::Unsupported)
    }

    /// Makes and opens a file.
    fn create(&self, _parent: Ino, _name: &OsStr, _creation: Creation, _mode: OpenMode) -> Result<(Attr, Opened)> {
        Err(ViewError::ReadOnly)
    }

    /// Makes something under a name that is free; EEXIST otherwise.
    fn make(
        &self,
        _parent: Ino,
        _name: &OsStr,
        _new: New<'_>,
        _creation: Creation,
        _invalidations: &mut Invalidations,
    ) -> Result<Attr> {
        Err(ViewError::ReadOnly)
    }

    /// Reads; a short count means the file ends there.
    fn read(&self, ino: Ino, handle: Option<Handle>, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `data`.
    fn write(&self, _handle: Handle, _offset: u64, _data: &[u8]) -> Result<()> {
        Err(ViewError::BadHandle)
    }

    /// Writes all of `data` to the end, which the kernel takes to be at an offset.
    fn append(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<()> {
        self.write(handle, offset, data)
    }

    /// A close(2) of a handle, of which there may be several: what was written takes effect, or is refused with an error.
    fn flush(&self, _handle: Handle, _invalidations: &mut Invalidations) -> Result<()> {
        Ok(())
    }

    /// The last close: the handle ends. It comes at any time after close(2) has returned, so what need not be forgotten must not be
    /// named: from who reads just then the kernel would take a length that is right, and leave the one before.
    fn release(&self, handle: Handle, invalidations: &mut Invalidations);

    /// fsync(2), of a file or of a directory: settles, commits, and returns when SOURCE is on disk.
    fn fsync(&self, _ino: Ino, _invalidations: &mut Invalidations) -> Result<()> {
        Ok(())
    }

    /// Removes a file's name.
    fn unlink(&self, _parent: Ino, _name: &OsStr, _invalidations: &mut Invalidations) -> Result<()> {
        Err(ViewError::ReadOnly)
    }

    /// Removes an empty directory.
    fn rmdir(&self, _parent: Ino, _name: &OsStr, _invalidations: &mut Invalidations) -> Result<()> {
        Err(ViewError::ReadOnly)
    }

    /// Renames.
    fn rename(
        &self,
        _from: (Ino, &OsStr),
        _to: (Ino, &OsStr),
        _mode: RenameMode,
        _invalidations: &mut Invalidations,
    ) -> Result<()> {
        Err(ViewError::ReadOnly)
    }

    /// The names of a file's extended attributes, each with a NUL behind it: no more than the kernel takes, 64 KiB.
    fn xattrs(&self, ino: Ino) -> Result<Vec<u8>>;

    /// The value of an extended attribute, at most 64 KiB.
    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>>;

    /// Sets an extended attribute, or without a value removes it. What a frame holds of it changes as by a write and a close.
    fn set_xattr(
        &self,
        _ino: Ino,
        _name: &OsStr,
        _value: Option<&[u8]>,
        _mode: SetMode,
        _invalidations: &mut Invalidations,
    ) -> Result<()> {
        Err(ViewError::ReadOnly)
    }

    /// Lists a directory from a cookie on (0: from the start) until `emit` answers false. Without `.` and `..`.
    fn readdir(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;

    /// As [`FileSystem::readdir`], for a caller that looks up each name which is not known: the kinds of those need not be right.
    fn entries(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.readdir(ino, cookie, emit)
    }

    /// Whether the kernel may keep a listing of a directory that is being opened: it is told when others change it, or looks by itself.
    fn caches_listing(&self, _ino: Ino) -> bool {
        true
    }

    /// Whether a listing of a directory that the kernel has kept is still good, as it is opened once more.
    fn keeps_listing(&self, _ino: Ino) -> bool {
        true
    }

    /// Whether a directory holds the files of a frame. Who lists such a directory mostly goes on to read the files, all of them.
    fn is_of_frame(&self, _ino: Ino) -> bool {
        true
    }

    /// A thread of a client has opened a file for reading, or has read so many bytes of it from an offset on. What it will read next is
    /// asked of the store, and what comes back is worth pushing into the kernel's page cache: hints only.
    fn touched(&self, _pid: u32, _ino: Ino, _read: Option<(u64, u32)>) -> Vec<Push> {
        Vec::new()
    }

    /// Attributes of these will be asked for soon, one after the other: a hint, upon which what they take is read, as far as it is
    /// read sooner for all of them together.
    fn expect(&self, _inos: &[Ino]) {}

    /// These will be read soon and whole, in this order: a hint.
    fn prefetch(&self, _inos: &[Ino]) {}

    /// flock(2) of an open file: takes a lock in place of any that it has, or gives it back; at the last close the latter is asked
    /// for at any rate. Only with `until` it may take long: until that is set, and the thread that waits gets a signal. Giving back takes
    /// a moment at most then. Answers how often what the lock is for was read again since the mount began: see [`Reread`].
    ///
    /// # Errors
    /// [`ViewError::Locked`], [`ViewError::Interrupted`]; and with no lock, if what others have done to SOURCE cannot be shown.
    fn lock(
        &self,
        _ino: Ino,
        _handle: Handle,
        lock: Option<Flock>,
        _until: Option<&AtomicBool>,
        _invalidations: &mut Invalidations,
    ) -> Result<Reread> {
        // Nobody else would know of it.
        if lock.is_some() { Err(ViewError::System(libc::ENOLCK)) } else { Ok(Reread::NEVER) }
    }

    /// After a read of a file that found others at work ([`ViewError::Locked`]): waits until they have done, and shows what they did.
    /// As [`FileSystem::lock`].
    fn catch_up(&self, _ino: Ino) -> Result<Reread> {
        Ok(Reread::NEVER)
    }

    /// What a change of this file, or of a name in this directory, may have to wait for.
    fn may_wait(&self, ino: Ino) -> Wait;

    /// The name that a file has in a directory, or had when it was a file of SOURCE that others have changed since.
    fn last_name(&self, _ino: Ino) -> Option<(Ino, OsString)> {
        None
    }

    /// Tells of changes of SOURCE by others; to be looked at then by [`FileSystem::follow`].
    fn watcher(&self) -> Option<Arc<crate::store::Watcher>> {
        None
    }

    /// Looks whether others have changed SOURCE, and shows what it holds now. Answers when to look again, if nobody tells.
    fn follow(&self, _invalidations: &mut Invalidations) -> Option<Instant> {
        None
    }

    /// The kernel is about to keep pages of an open file that is passed on: it is to be told when others write to it
    /// ([`FileSystem::outdated`]). Whether it will be.
    fn hear_of(&self, _ino: Ino) -> bool {
        true
    }

    /// Of what the kernel was told to believe for long ([`Good::Watched`](super::Good::Watched)), what others have changed since this was last asked. To be
    /// forgotten when all replies are sent that are being made now.
    fn outdated(&self) -> Invalidations {
        Invalidations::new()
    }

    /// For `df`.
    fn statfs(&self) -> Result<crate::store::FsSpace>;

    /// Does what is due: a gathered commit, settling after a second without a change.
    /// Returns when to call again at the latest.
    fn tick(&self, _now: Instant, _invalidations: &mut Invalidations) -> Option<Instant> {
        None
    }

    /// Before the mount is taken away: settles, commits, returns when SOURCE is on disk, and saves beside SOURCE what was accepted and
    /// finds no place in it. As long as a commit that failed may succeed later nothing is saved, unless `regardless`. The file system
    /// goes on as before, and what is saved is not saved again.
    fn leave(&self, _regardless: bool, _invalidations: &mut Invalidations) -> Left {
        Left::default()
    }

    /// SOURCE as it is open, and where it is.
    fn source(&self) -> Option<(OwnedFd, PathBuf)> {
        None
    }

    /// The mount is gone: does all that [`FileSystem::leave`] does, regardless, and closes the store. Errors say what SOURCE does not
    /// have.
    fn shutdown(&self) -> Result<()>;

    /// One line for the log: cache counts, commits, what is held.
    fn report(&self) -> String;
}
