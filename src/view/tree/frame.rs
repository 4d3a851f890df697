//! A frame in a tree: closed, until a client uses its files.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::format::Layout;
use crate::store::local::beneath::{FileId, Found};
use crate::view::frame_file::layout::Outline;
use crate::view::open_frames::{self, FrameSlot, Openable};
use crate::view::regions::Numbered;
use crate::view::{Attr, Decoded, Ino, Kind, Result, ViewError};

/// A frame.
pub struct TreeFrame {
    /// What stands for it in the tree.
    pub ino: Ino,
    /// A directory, or a file.
    pub shown: Kind,
    /// What its data is shown as, if that is what is shown.
    pub decoded: Option<Decoded>,
    /// How it was stored when it was found.
    pub stored: Stored,
    /// It is another than when it was open last, and nobody has opened its file since.
    pub is_renewed: AtomicBool,
    /// A client made it as a file, which nobody has had synced yet.
    pub is_unsynced: AtomicBool,
    pub slot: FrameSlot<Opening, Stamp>,
    /// The regions of inodes that its files have: see [`crate::view::regions`].
    pub regions: Mutex<HashMap<u64, u64>>,
    /// Handles of clients, and of them those that write.
    pub handles: AtomicUsize,
    pub writers: AtomicUsize,
    /// What a look at its name says of it, and of what file that was said.
    pub sized: Mutex<Option<(Stamp, Attr)>>,
    /// Where its file has everything, and of what that was said.
    pub outline: Mutex<Option<(Stamp, Arc<Outline>)>>,
    /// An archive as it was when its end was last read.
    pub looked: Mutex<Option<Sized>>,
    /// What clients who lock it were told.
    pub told: Mutex<Told>,
    /// Its name is being removed or replaced: whether it is kept for open files has been decided, or is about to be. Set only under an
    /// exclusive claim on its node.
    pub leaving: AtomicBool,
    /// The last attributes, once the inode is given up: the name gets another one for what others have made of the data.
    pub given_up: OnceLock<Attr>,
    /// Its name was removed while somebody has it open.
    pub removed: AtomicBool,
    /// What is left of it below then, to be removed with the last handle.
    pub rest: Mutex<Option<Removed>>,
}

/// See [`TreeFrame::leaves`].
pub struct Leaving<'a>(&'a TreeFrame);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leaving.store(false, SeqCst);
    }
}

/// A removed frame that somebody still reads: where it is, under a name of ours.
pub struct Removed {
    pub dir: OwnedFd,
    pub name: OsString,
    pub found: Found,
    /// Tells others that it is needed.
    pub _lock: Option<OwnedFd>,
}

/// What a frame is below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// A frame of this layout.
    Frame(Layout),
    /// An archive of python-blosc2, which is shown as a directory and is only read.
    Archive,
}

/// What a frame was when a client last got a lock.
#[derive(Debug, Default, Clone, Copy)]
pub struct Told {
    pub opening: u64,
    pub reloads: u64,
    /// [`Reread::count`](crate::view::Reread::count).
    pub count: u64,
}

/// Which file it was, how long, and when it was last changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sized {
    pub id: FileId,
    pub ctime: SystemTime,
    pub size: u64,
}

/// What a file, and in a directory the index, was at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub itself: Sized,
    pub index: Option<Sized>,
}

impl From<&Found> for Sized {
    fn from(found: &Found) -> Self {
        Sized { id: found.id, ctime: found.stat.ctime, size: found.stat.len }
    }
}

impl Stamp {
    pub fn of(found: &Found, index: Option<&Found>) -> Self {
        Stamp { itself: found.into(), index: index.map(Sized::from) }
    }
}

/// A frame that is open.
pub type OpenFrame = open_frames::OpenFrame<Opening>;

/// What is known of a frame that is closed.
pub type Closed = open_frames::Closed<Stamp>;

/// How a frame was opened.
pub struct Opening {
    /// Another mount writes it, so this one does not.
    pub is_busy: bool,
}

impl Numbered for TreeFrame {
    fn ino(&self) -> Ino {
        self.ino
    }

    fn regions(&self) -> &Mutex<HashMap<u64, u64>> {
        &self.regions
    }
}

impl Openable for TreeFrame {
    type Part = Opening;
    type State = Stamp;

    fn slot(&self) -> &FrameSlot<Opening, Stamp> {
        &self.slot
    }
}

impl TreeFrame {
    pub fn new(ino: Ino, stored: Stored, shown: Kind) -> Arc<Self> {
        Self::of_data(ino, stored, shown, None)
    }

    /// One whose data is shown.
    pub fn of_data(ino: Ino, stored: Stored, shown: Kind, decoded: Option<Decoded>) -> Arc<Self> {
        Arc::new(TreeFrame {
            ino,
            decoded,
            shown,
            stored,
            slot: FrameSlot::default(),
            is_renewed: AtomicBool::new(false),
            is_unsynced: AtomicBool::new(false),
            regions: Mutex::default(),
            handles: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            sized: Mutex::default(),
            outline: Mutex::default(),
            looked: Mutex::default(),
            told: Mutex::default(),
            leaving: AtomicBool::new(false),
            given_up: OnceLock::new(),
            removed: AtomicBool::new(false),
            rest: Mutex::default(),
        })
    }

    /// Its name is being removed or replaced, until this is dropped. Files of it that are opened meanwhile wait for the claim on its node.
    pub fn leaves(&self) -> Leaving<'_> {
        self.leaving.store(true, SeqCst);
        Leaving(self)
    }

    /// Whether it is an archive.
    pub fn is_archive(&self) -> bool {
        self.stored == Stored::Archive
    }

    /// Nobody changes an archive, or the data of a frame.
    ///
    /// # Errors
    /// [`ViewError::ReadOnly`] of one.
    pub fn check_writable(&self) -> Result<()> {
        if self.is_archive() || self.decoded.is_some() { Err(ViewError::ReadOnly) } else { Ok(()) }
    }

    /// Returns whether another process has made of its data what cannot be shown under its inode.
    pub fn has_other_data(&self) -> bool {
        self.decoded.is_some() && self.opened().is_some_and(|open| open.view.is_outdated())
    }

    /// The same, if it is open.
    pub fn opened(&self) -> Option<Arc<OpenFrame>> {
        self.slot.opened()
    }
}

/// An error that says what is wrong with a frame, rather than with the moment.
pub fn is_damage<T>(result: &Result<T>) -> bool {
    result.as_ref().is_err_and(is_of_frame)
}

/// The same, of an error.
pub fn is_of_frame(error: &ViewError) -> bool {
    use crate::store::StoreError;
    matches!(error, ViewError::Store(StoreError::Format { .. } | StoreError::Unsupported { .. }))
}
