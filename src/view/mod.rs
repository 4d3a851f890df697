//! What a mount shows: names, attributes and bytes, and what a write to them means. No FUSE here.
//!
//! `fs` calls a [`FileSystem`]. [`Single`] is one, with one frame at its root; what it shows of the frame is the affair of a
//! [`FrameView`].
//!
//! | module | what it is for |
//! | --- | --- |
//! | `single` | one frame at the root: all that is the same for every view |
//! | `nodes` | inodes, names, handles, and files that were made, moved or removed |
//! | `frame_view` | what a frame must do to be shown |
//! | `sparse`, `contiguous` | the two layouts |
//! | `array` | the data of a frame as one file |
//! | `decoded` | the data of frames, decompressed |
//! | `content`, `writing`, `frame_file` | what a file's bytes are read from: drafts, and whole frames |
//! | `follow`, `locks` | other programs: those that take turns, and those that do not |
//! | `commit_throttle` | when a change goes to the store |
//! | `tree` | a directory of frames, mounted whole |
//! | `remote_tree` | the same of a prefix in an object store |
//! | `regions` | inodes of the files of many frames |
//! | `archive` | an archive of Python-Blosc2, shown as a directory in a tree |
//! | `prefetch` | who reads one thing after another, and what comes next |
//!
//! Nothing here calls the kernel. What it must forget is collected in [`Invalidations`]; `fs` sees to it that it is forgotten before the
//! operation that caused it is answered.
//!

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]
#![doc = include_str!("views.md")]

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

mod archive;
mod array;
mod commit_throttle;
mod content;
mod contiguous;
pub mod decoded;
mod error;
mod follow;
mod frame_file;
mod frame_view;
#[cfg(test)]
mod frames;
mod left;
mod locks;
mod meta;
mod names;
mod nodes;
pub mod prefetch;
mod regions;
#[cfg(feature = "remote")]
mod remote_tree;
mod single;
mod sparse;
mod state_lock;
#[cfg(test)]
mod tests;
mod tree;
mod writing;
mod xattr;

pub use crate::store::backend::Flock;
pub use archive::{ArchiveView, directory_meta};
pub use array::ArrayView;
pub use contiguous::{ContiguousView, Shown};
pub use decoded::{BandFiles, Blocks, Boxes, Decoded, Reader, Sliced};
pub use error::{Result, ViewError};
pub use frame_view::FrameView;
pub use left::{Left, Lost};
pub use meta::Meta;
pub use prefetch::Push;
#[cfg(feature = "remote")]
pub use remote_tree::RemoteTree;
pub use single::{FrameFileSystem, Parked, Rest, Single};
pub use sparse::SparseView;
pub use tree::{DEFAULT_TIMEOUTS, Rules, Show, Tree};
pub use xattr::VLMETA;

/// An inode number. 1 is the root. A number is never used for two different files in a mount's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

/// The root of every view (a directory, or the file itself where the mount point is a file).
pub const ROOT: Ino = Ino(1);

/// An open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharDevice,
}

/// Attributes, as stat(2) has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Directory or file.
    pub kind: Kind,
    /// Length in bytes.
    pub size: u64,
    /// Room on disk, in blocks of 512 bytes.
    pub blocks: u64,
    /// Number of names.
    pub nlink: u32,
    /// The device, of a device.
    pub rdev: u32,
    /// Owner, mode and times.
    pub meta: Meta,
    /// Others may change it unheard: it is good for as long as [`Timeouts`] say.
    pub volatile: bool,
}

/// A change of attributes; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct SetAttr {
    /// New length.
    pub size: Option<u64>,
    /// New permission bits.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New access time.
    pub atime: Option<SystemTime>,
    /// New time of change.
    pub mtime: Option<SystemTime>,
    /// With a new length: the caller may not keep bits by which a program runs as its owner or group.
    pub drop_privileges: bool,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenMode {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Cut to nothing at the same time.
    pub truncate: bool,
    /// What is written may not keep bits by which a program runs as its owner or group.
    pub drop_privileges: bool,
}

/// Who asks, and with what mode a new file is to be made.
#[derive(Debug, Clone, Copy)]
pub struct Creation {
    /// Owner of the new file.
    pub uid: u32,
    /// Group of the new file.
    pub gid: u32,
    /// Permission bits; the umask is already taken off, unless the file system passes on ([`Features::passes_on`]).
    pub mode: u32,
    /// The umask of who asks.
    pub umask: u32,
    /// Fail with EEXIST if there is such a name.
    pub exclusive: bool,
}

/// How `rename` treats a name that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// EEXIST.
    NoReplace,
    /// Swaps the two.
    Exchange,
}

/// How an extended attribute that exists, or does not, is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetMode {
    /// Whether it exists or not.
    Any,
    /// EEXIST if it exists.
    Create,
    /// ENODATA if it does not.
    Replace,
}

/// One name of a directory.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// Inode.
    pub ino: Ino,
    /// Directory or file.
    pub kind: Kind,
    /// The name.
    pub name: &'a OsStr,
    /// The kernel may be told of this inode. If not, the name has to be looked up first.
    pub is_known: bool,
    /// A stable cookie: reading on from it gives what comes after this entry, whatever was added or removed meanwhile.
    pub next: u64,
}

/// Something that the kernel of the mount's clients must forget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invalidation {
    /// Attributes and cached pages of a file.
    Data(Ino),
    /// Cached pages of a part of a file: from, and how many bytes. Its attributes stay good.
    Range(Ino, u64, u64),
    /// Attributes only.
    Attr(Ino),
    /// A name (there or not) in a directory.
    Entry(Ino, OsString),
    /// Attributes and cached pages of the files from one inode to another.
    Within(Ino, Ino),
    /// Everything known of every file and every name: SOURCE was changed by others.
    All,
}

/// Collects what must be forgotten because of one operation.
pub type Invalidations = Vec<Invalidation>;

/// What a mount has to know of a file system before the first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// No write is accepted (EROFS).
    pub read_only: bool,
    /// The file system must know which handles are open for reading: they tell versions of a file apart, or have locks.
    pub handles: bool,
    /// Locks of flock(2) are asked for here ([`FileSystem::lock`]) rather than kept by the kernel.
    pub locks: bool,
    /// Files have holes, which [`FileSystem::seek`] finds.
    pub holes: bool,
    /// A listing may take attributes of every file along: they are at hand.
    pub lists_attributes: bool,
    /// How far the kernel should read ahead in a file, in bytes; `None` for what it does without being told.
    pub read_ahead: Option<u32>,
    /// All is far away: whatever is asked for may have to be waited for; and for how long names and attributes are good, which others may
    /// change unheard.
    pub far: Option<Timeouts>,
    /// Files of another file system are passed on, with everything that a file system has; and for how long names and attributes are
    /// good that others may change.
    pub passes_on: Option<Timeouts>,
}

/// How often a part of what is shown was read again because others have changed it. The kernel must have forgotten it since the last time
/// before a client goes on who has got a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reread {
    /// What the count is of: [`ROOT`], or a frame in a tree. It only ever goes up.
    pub of: Ino,
    /// How often; 0 for never.
    pub count: u64,
    /// What the kernel must have forgotten.
    pub invalidations: Invalidations,
}

impl Reread {
    /// Nothing was ever read again.
    pub const NEVER: Reread = Reread { of: ROOT, count: 0, invalidations: Invalidations::new() };

    /// Everything was, so many times.
    pub fn all(count: u64) -> Self {
        Reread { of: ROOT, count, invalidations: vec![Invalidation::All] }
    }
}

/// For how long the kernel may believe what others may change unheard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// A name.
    pub entry: Duration,
    /// Attributes.
    pub attr: Duration,
}

/// What the kernel may keep of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Its pages.
    Kept,
    /// Its pages from now on, and none from before.
    Fresh,
    /// It may read and write the file of [`FileSystem::backing`] by itself, and else as [`Pages::Fresh`].
    Passthrough,
    /// Nothing: somebody has an older version of the file open, and both would share pages.
    Direct,
    /// Nothing: other processes write it. Closing it has nothing to say.
    Foreign,
}

/// A file that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Its handle.
    pub handle: Handle,
    /// What the kernel may keep of it.
    pub pages: Pages,
}

/// What a change may have to wait for before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Nothing.
    Never,
    /// The disk.
    Disk,
    /// Other processes, until they give back their locks.
    Others,
    /// A network, which may be silent.
    Far,
}

/// What is made under a new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum New<'a> {
    /// An empty file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link with this text.
    Symlink(&'a OsStr),
    /// Another name of a file.
    Link(Ino),
    /// A FIFO, a socket, or a device of this number.
    Special(Kind, u32),
}

/// What lseek(2) looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// Bytes that may be other than zero.
    Data,
    /// A hole.
    Hole,
}

/// What `fs` calls: names, attributes and bytes. Every method may be called from any thread; none blocks readers while it commits.
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
    fn setattr(&self, ino: Ino, handle: Option<Handle>, set: SetAttr, invalidations: &mut Invalidations) -> Result<Attr>;

    /// The text of a symbolic link.
    fn readlink(&self, ino: Ino) -> Result<OsString>;

    /// Opens a file. Without [`Features::handles`], files may also be read without being opened.
    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Opened>;

    /// The file that the kernel may read and write by itself in place of an open one: see [`Pages::Passthrough`].
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
    fn create(&self, parent: Ino, name: &OsStr, creation: Creation, mode: OpenMode) -> Result<(Attr, Opened)>;

    /// Makes something under a name that is free; EEXIST otherwise.
    fn make(
        &self,
        parent: Ino,
        name: &OsStr,
        new: New<'_>,
        creation: Creation,
        invalidations: &mut Invalidations,
    ) -> Result<Attr>;

    /// Reads; a short count means the file ends there.
    fn read(&self, ino: Ino, handle: Option<Handle>, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `data`.
    fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<()>;

    /// Writes all of `data` to the end, which the kernel takes to be at an offset.
    fn append(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<()> {
        self.write(handle, offset, data)
    }

    /// A close(2) of a handle, of which there may be several: what was written takes effect, or is refused with an error.
    fn flush(&self, handle: Handle, invalidations: &mut Invalidations) -> Result<()>;

    /// The last close: the handle ends. It comes at any time after close(2) has returned, so what need not be forgotten must not be
    /// named: from who reads just then the kernel would take a length that is right, and leave the one before.
    fn release(&self, handle: Handle, invalidations: &mut Invalidations);

    /// fsync(2), of a file or of a directory: settles, commits, and returns when SOURCE is on disk.
    fn fsync(&self, ino: Ino, invalidations: &mut Invalidations) -> Result<()>;

    /// Removes a file's name.
    fn unlink(&self, parent: Ino, name: &OsStr, invalidations: &mut Invalidations) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, parent: Ino, name: &OsStr, invalidations: &mut Invalidations) -> Result<()>;

    /// Renames.
    fn rename(&self, from: (Ino, &OsStr), to: (Ino, &OsStr), mode: RenameMode, invalidations: &mut Invalidations) -> Result<()>;

    /// The names of a file's extended attributes, each with a NUL behind it: no more than the kernel takes, 64 KiB.
    fn xattrs(&self, ino: Ino) -> Result<Vec<u8>>;

    /// The value of an extended attribute, at most 64 KiB.
    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>>;

    /// Sets an extended attribute, or without a value removes it. What a frame holds of it changes as by a write and a close.
    fn set_xattr(
        &self,
        ino: Ino,
        name: &OsStr,
        value: Option<&[u8]>,
        mode: SetMode,
        invalidations: &mut Invalidations,
    ) -> Result<()>;

    /// Lists a directory from a cookie on (0: from the start) until `emit` answers false. Without `.` and `..`.
    fn readdir(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;

    /// As [`FileSystem::readdir`], for a caller that looks up each name which is not known: the kinds of those need not be right.
    fn entries(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.readdir(ino, cookie, emit)
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
    fn touched(&self, pid: u32, ino: Ino, read: Option<(u64, u32)>) -> Vec<Push>;

    /// Attributes of these will be asked for soon, one after the other: a hint, upon which what they take is read, as far as it is
    /// read sooner for all of them together.
    fn expect(&self, inos: &[Ino]);

    /// These will be read soon and whole, in this order: a hint.
    fn prefetch(&self, inos: &[Ino]);

    /// flock(2) of an open file: takes a lock in place of any that it has, or gives it back; at the last close the latter is asked
    /// for at any rate. Only with `until` it may take long: until that is set, and the thread that waits gets a signal. Giving back takes
    /// a moment at most then. Answers how often what the lock is for was read again since the mount began: see [`Reread`].
    ///
    /// # Errors
    /// [`ViewError::Locked`], [`ViewError::Interrupted`]; and with no lock, if what others have done to SOURCE cannot be shown.
    fn lock(
        &self,
        ino: Ino,
        handle: Handle,
        lock: Option<Flock>,
        until: Option<&AtomicBool>,
        invalidations: &mut Invalidations,
    ) -> Result<Reread>;

    /// After a read of a file that found others at work ([`ViewError::Locked`]): waits until they have done, and shows what they did.
    /// As [`FileSystem::lock`].
    fn catch_up(&self, ino: Ino) -> Result<Reread>;

    /// What a change of this file, or of a name in this directory, may have to wait for.
    fn may_wait(&self, ino: Ino) -> Wait;

    /// The name that a file has in a directory, or had when it was a file of SOURCE that others have changed since.
    fn last_name(&self, ino: Ino) -> Option<(Ino, OsString)>;

    /// Tells of changes of SOURCE by others; to be looked at then by [`FileSystem::follow`].
    fn watcher(&self) -> Option<Arc<crate::store::Watcher>>;

    /// Looks whether others have changed SOURCE, and shows what it holds now. Answers when to look again, if nobody tells.
    fn follow(&self, invalidations: &mut Invalidations) -> Option<Instant>;

    /// For `df`.
    fn statfs(&self) -> Result<crate::store::FsSpace>;

    /// Does what is due: a gathered commit, settling after a second without a change.
    /// Returns when to call again at the latest.
    fn tick(&self, now: Instant, invalidations: &mut Invalidations) -> Option<Instant>;

    /// Before the mount is taken away: settles, commits, returns when SOURCE is on disk, and saves beside SOURCE what was accepted and
    /// finds no place in it. As long as a commit that failed may succeed later nothing is saved, unless `regardless`. The file system
    /// goes on as before, and what is saved is not saved again.
    fn leave(&self, regardless: bool, invalidations: &mut Invalidations) -> Left;

    /// SOURCE as it is open, and where it is.
    fn source(&self) -> Option<(OwnedFd, PathBuf)>;

    /// The mount is gone: does all that [`FileSystem::leave`] does, regardless, and closes the store. Errors say what SOURCE does not
    /// have.
    fn shutdown(&self) -> Result<()>;

    /// One line for the log: cache counts, commits, what is held.
    fn report(&self) -> String;
}
