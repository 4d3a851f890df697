//! What a mount shows: names, attributes and bytes, and what a write to them means. No FUSE here.
//!
//! `fs` calls a [`FileSystem`]. [`Single`] is one, with one frame at its root; what it shows of the frame is the affair of a
//! [`FrameView`].
//!
//! | module | what it is for |
//! | --- | --- |
//! | `file_system` | what `fs` calls |
//! | `single` | one frame at the root: all that is the same for every view |
//! | `nodes` | inodes, names, handles, and files that were made, moved or removed |
//! | `frame_view` | what a frame must do to be shown |
//! | `sparse`, `contiguous` | the two layouts |
//! | `array` | the data of a frame as one file |
//! | `access` | access lists, and what is shown of them |
//! | `decoded` | the data of frames, decompressed |
//! | `content`, `writing`, `frame_file` | what a file's bytes are read from: drafts, and whole frames |
//! | `follow`, `locks` | other programs: those that take turns, and those that do not |
//! | `commit_throttle` | when a change goes to the store |
//! | `tree` | a directory of frames, mounted whole |
//! | `remote_tree` | the same of a prefix in an object store |
//! | `regions` | inodes of the files of many frames |
//! | `open_frames` | frames of a directory that are opened, and closed when others need their place |
//! | `archive` | an archive of Python-Blosc2, shown as a directory in a tree |
//! | `prefetch` | who reads one thing after another, and what comes next |
//!
//! Nothing here calls the kernel. What it must forget is collected in [`Invalidations`]; `fs` sees to it that it is forgotten before the
//! operation that caused it is answered.
//!

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]
#![doc = include_str!("views.md")]

use std::ffi::{OsStr, OsString};
use std::time::{Duration, SystemTime};

mod access;
mod archive;
mod array;
mod commit_throttle;
mod content;
mod contiguous;
pub mod decoded;
mod error;
mod file_system;
mod follow;
mod frame_file;
mod frame_view;
#[cfg(test)]
mod frames;
mod intervals;
mod left;
mod locks;
mod meta;
mod names;
mod nodes;
mod open_frames;
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
mod writers;
mod writing;
mod xattr;

pub use crate::store::backend::Flock;
pub use archive::{ArchiveView, Choose, directory_meta};
pub use array::ArrayView;
pub use contiguous::{ContiguousView, Shown};
pub use decoded::{BandFiles, Blocks, Boxes, Decoded, Reader, Sliced, names_items};
pub use error::{Result, ViewError};
pub use file_system::FileSystem;
pub use frame_view::FrameView;
pub use left::{BY_OTHERS, Left, Lost};
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
    /// How long the kernel may believe it, and the name under which it was found.
    pub good: Good,
}

impl Attr {
    /// The same with other permission bits.
    pub fn with_mode(self, mode: u32) -> Self {
        Attr { meta: Meta { mode, ..self.meta }, ..self }
    }
}

/// How long the kernel may believe what it is told of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Good {
    /// Until it is told to forget it.
    UntilTold,
    /// As long as [`Timeouts`] say, or [`POLLED`] without them: others may change it unheard.
    Timeouts,
    /// The name as long as those say, and the attributes for the moment: a close(2) may change them.
    Once,
    /// What others do to it is heard: until it is told, which [`FileSystem::outdated`] is for, but for no more than [`WATCHED`].
    Watched,
}

/// A minute: if something is not heard after all, it is not believed for longer.
pub const WATCHED: Duration = Duration::from_secs(60);

/// How often SOURCE is checked where the system does not report changes, while a file is open; as long the kernel believes names and
/// attributes there.
pub const POLLED: Duration = Duration::from_millis(200);

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
    /// User and group of the caller.
    pub caller: (u32, u32),
}

impl SetAttr {
    /// Whether it changes anything but the length.
    fn is_of_metadata(&self) -> bool {
        let SetAttr { mode, uid, gid, atime, mtime, .. } = self;
        mode.or(*uid).or(*gid).is_some() || atime.or(*mtime).is_some()
    }
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
    /// The process that asks, if its groups can be read in /proc; else 0.
    pub pid: u32,
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
    /// What a name in a directory stands for is to be looked up again. If it is the same, whoever is in it notices nothing.
    Expired(Ino, OsString),
    /// Attributes and cached pages of the files from one inode to another.
    Within(Ino, Ino),
    /// Attributes only of the files from one inode to another.
    AttrWithin(Ino, Ino),
    /// Every name is to be looked up again. Pages stay, of files that have lost their names too: a map of one goes on.
    Names,
    /// Everything known of every file and every name.
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
    /// What others write to files that are passed on is heard: see [`FileSystem::hear_of`].
    pub hears: bool,
    /// The system reports no changes by others: the kernel believes names and attributes for [`POLLED`], and asks before it lists names.
    pub is_untold: bool,
    /// Files have access lists, which the kernel asks for and enforces. Without, permission bits grant no more than the lists.
    pub lists: bool,
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
