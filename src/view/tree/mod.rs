//! A whole directory, mounted: frames are shown in the layout that the user chose, and everything else is passed through.
//!
//! - `file_system`: the requests of the kernel; `enter`: names that it looks up;
//! - [`table`]: the nodes that the kernel knows; [`place`]: where they are below, opened beneath a descriptor that is held;
//! - `passed`: files and directories that are not frames; `listing`: directories;
//! - [`frame`]: a frame, opened when somebody goes inside and closed when others need its place, as [`super::open_frames`] has it;
//!   `frames`: those that are open; `inside`: what is asked of a frame's files; `attributes`: its owner and mode;
//! - `decoded`: frames whose data is shown;
//! - `archives`: those of python-blosc2, each shown as a directory that is only read;
//! - `descriptors`: how many of them are taken;
//! - `locking`: flock(2); `lock_files`: where the lock files of frames are;
//! - `making`, `removing`, `renaming`: frames that come, go and move; `stores`: those of python-blosc2; `hidden`: names that are ours;
//! - `claims`: what nobody may come between meanwhile; `dir_times`: the times that directories keep;
//! - `watched`: names of which the kernel is told when others change them;
//! - [`rules`]: what is a frame, and how it is shown and stored.
//!
//! A frame's files have inode numbers of their own, which [`super::regions`] computes: the tree keeps nothing for each of them.
//!
//! Lock order: a claim, then open files of which a frame is made (`has_moved`), then a frame's state (`changing`), then the table, then any one of the others, which are leaves. Input and output
//! is made under few of them:
//!
//! - a claim is held while a file is stored as a frame, or a name changes: who comes to the same file or name waits;
//! - a frame's state is held while it is opened, closed, moved or replaced: who opens the same frame waits;
//! - `opening` is held while an archive is opened: who opens another waits;
//! - `making` is held while something under a name of ours is made, closed or looked at, and `dir_times` while times are read or set:
//!   nobody who only reads waits for these.
//!
//! No other lock is held during input and output.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lru::LruCache;
use parking_lot::{Mutex, RwLock};

use self::decoded::DecodedNames;
use self::frame::TreeFrame;
use self::frames::Frames;
use self::handles::Open;
use self::table::Table;
use super::regions::Regions;
use super::{Blocks, Ino, Invalidation, Invalidations, Kind, Result, Timeouts, ViewError};
use crate::store::Resources;
use crate::store::local::beneath::{self, FileId};
use crate::store::local::{system, watch};

mod archives;
mod attributes;
mod claims;
mod decoded;
mod descriptors;
mod dir_times;
mod enter;
mod file_system;
mod frame;
mod frames;
mod handles;
mod hidden;
mod inside;
mod listing;
mod lock_files;
mod locking;
mod look_ahead;
mod making;
mod moving;
mod passed;
mod place;
mod removing;
mod renaming;
mod rules;
mod stores;
mod table;
#[cfg(test)]
mod tests;
mod watched;

#[cfg(feature = "remote")]
pub(super) use decoded::{DataKind, FIRST_READ, LONGEST_HEADER};
#[cfg(feature = "remote")]
pub(super) use frame::{Stored, is_damage};
pub use rules::Rules;

/// What is shown of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Show {
    /// The layout that it does not have.
    #[default]
    Other,
    /// Directories of chunk files.
    Sparse,
    /// One file each.
    Contiguous,
    /// The data of each: arrays as files of NumPy's, others as they are.
    Npy,
    /// The data of each as it is.
    Raw,
}

impl Show {
    /// Whether the data is shown, and not the frame.
    pub fn is_decoded(self) -> bool {
        matches!(self, Show::Npy | Show::Raw)
    }
}

/// Bytes that the kernel reads ahead in a file that it does not read by itself.
const READ_AHEAD: u32 = 1 << 20;

/// So often a name is looked at while others are renamed.
const LOOKS: usize = 16;

/// A directory, mounted whole.
pub struct Tree {
    root: OwnedFd,
    /// The root's path, for messages.
    path: PathBuf,
    device: u64,
    /// Others can change it without this kernel's knowing.
    is_elsewhere: bool,
    rules: Rules,
    /// The system has labels of SELinux.
    has_labels: bool,
    table: Mutex<Table>,
    /// Directories that are open, to look names up in.
    dirs: Mutex<LruCache<Ino, Arc<File>>>,
    handles: RwLock<HashMap<u64, Open>>,
    regions: Regions<TreeFrame>,
    frames: Frames,
    descriptors: descriptors::Descriptors,
    /// When directories were last listed from the beginning, and whether that was the first time. A leaf lock.
    listed: Mutex<LruCache<Ino, listing::Listing>>,
    look_ahead: look_ahead::LookAhead,
    locks: locking::TreeLocks,
    /// What begins as a frame does, and is none.
    broken: Mutex<LruCache<FileId, frame::Sized>>,
    /// Held while an archive is opened. Taken while nothing but that archive's state is held.
    opening: Mutex<()>,
    /// Directories that were made stores.
    stores: Mutex<HashSet<Ino>>,
    /// What frames are shown as whose data is shown.
    decoded: Option<DecodedNames>,
    /// How frames were stored that are gone.
    layouts: Mutex<making::Layouts>,
    /// What is stored as a frame, renamed or removed just now. Taken before all others.
    claims: claims::Claims,
    /// Held for reading while something under a name of ours has no lock yet, and for writing while those without one are taken for dead.
    making: RwLock<()>,
    dir_times: dir_times::DirTimes,
    watched: watched::WatchedNames,
    /// What a test does when a frame has been copied, and has no name yet.
    #[cfg(test)]
    when_staged: Mutex<Option<tests::Then>>,
    /// The same when a name is another below, and the nodes have not followed yet.
    #[cfg(test)]
    when_renamed: Mutex<Option<tests::Then>>,
    /// What the kernel must forget because of what a look-up has found. A leaf lock.
    owed: Mutex<Invalidations>,
}

impl Tree {
    /// Shows a directory. Messages call it `path`.
    ///
    /// # Errors
    /// What the system refuses; what is no directory.
    pub fn open(path: &Path, rules: Rules, resources: Arc<Resources>) -> Result<Self> {
        let (root, real) = beneath::open_root(path)?;
        Self::over(root, real, rules, resources)
    }

    /// Shows a directory that is open.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn over(root: OwnedFd, path: PathBuf, rules: Rules, resources: Arc<Resources>) -> Result<Self> {
        let found = beneath::look_at(root.as_fd())?;
        if !found.stat.is_dir() {
            return Err(ViewError::NotDirectory);
        }
        let limits = frames::Limits::of_this_process();
        Ok(Tree {
            device: found.id.dev,
            is_elsewhere: watch::is_elsewhere(root.as_fd()).unwrap_or(true),
            has_labels: system::has_labels(),
            table: Mutex::new(Table::new(&found)),
            dirs: Mutex::new(LruCache::new(limits.dirs)),
            handles: RwLock::default(),
            regions: Regions::default(),
            frames: Frames::new(resources, limits.frames),
            descriptors: descriptors::Descriptors::new(limits.descriptors),
            owed: Mutex::default(),
            listed: Mutex::new(LruCache::new(listing::REMEMBERED)),
            look_ahead: look_ahead::LookAhead::default(),
            locks: locking::TreeLocks::default(),
            broken: Mutex::new(LruCache::new(frames::BROKEN)),
            opening: Mutex::default(),
            stores: Mutex::default(),
            decoded: None,
            layouts: Mutex::new(LruCache::new(making::LAYOUTS)),
            claims: claims::Claims::default(),
            making: RwLock::default(),
            dir_times: dir_times::DirTimes::default(),
            watched: watched::WatchedNames::default(),
            #[cfg(test)]
            when_staged: Mutex::default(),
            #[cfg(test)]
            when_renamed: Mutex::default(),
            root,
            path,
            rules,
        })
    }

    /// The same, where the data of frames is shown, which is decoded here.
    #[must_use]
    pub fn decoding(mut self, blocks: Arc<Blocks>) -> Self {
        self.decoded = Some(DecodedNames::new(blocks));
        self
    }

    /// Has on disk whatever clients did, where they may do anything.
    fn sync_all(&self) -> Result<()> {
        if self.rules.read_only {
            return Ok(());
        }
        Ok(beneath::sync_fs(self.root.as_fd())?)
    }

    fn check_writable(&self) -> Result<()> {
        if self.rules.read_only { Err(ViewError::ReadOnly) } else { Ok(()) }
    }
}

/// What the kernel must forget of a name and of what it stood for.
fn forget_name(parent: Ino, name: &OsStr) -> Invalidation {
    Invalidation::Entry(parent, name.to_owned())
}

/// See [`Timeouts`].
pub const DEFAULT_TIMEOUTS: Timeouts =
    Timeouts { entry: std::time::Duration::from_secs(1), attr: std::time::Duration::from_secs(1) };

/// The kind of a file by its mode.
fn kind_of(mode: u32) -> Kind {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFLNK => Kind::Symlink,
        libc::S_IFIFO => Kind::Fifo,
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFBLK => Kind::BlockDevice,
        libc::S_IFCHR => Kind::CharDevice,
        _ => Kind::File,
    }
}
