//! What a frame must do to be shown as files.
//!
//! A [`FrameView`] is what one layout makes of a frame: which files there are, what they hold, and what it means to change them. It lies
//! beside the table of nodes under one lock ([`State`]), so both change together. Everything that is the same for all layouts is done
//! by [`Single`]: names, inodes, handles, temporary files, attributes, drafts, locks, other programs, and when to commit.
//!
//! Methods with `this` are called without the lock, and may wait for the disk; all others hold it, and may not.

use std::ffi::{OsStr, OsString};
use std::time::{Instant, SystemTime};

use super::content::Content;
use super::frame_file::layout::Outline;
use super::nodes::{Name, Number};
use super::single::{Single, State};
use super::state_lock::Changing;
use super::writing::Change;
use super::{Handle, Ino, Invalidations, Lost, Result};
use crate::format::header::FrameHeader;
use crate::format::trailer::Trailer;
use crate::store::{ChunkKey, FrameImage};

/// A frame as files.
#[expect(clippy::missing_errors_doc, reason = "what the system refuses, where a method says nothing else")]
pub trait FrameView: Sized + Send + Sync + 'static {
    /// How far the kernel should read ahead in a file, in bytes.
    const READ_AHEAD: u32;

    /// Whether files have holes that lseek(2) finds.
    const HAS_HOLES: bool;

    /// Whether SOURCE's mtime, once others have set its attributes, is that of files which nothing has changed since the mount began:
    /// not if the mount's own commits may have set it.
    const TAKES_MTIME: bool;

    /// Whether the name of a file with a suffix is a temporary name: see `names::is_suffixed`.
    const TAKES_SUFFIXES: bool = false;

    /// Whether the one file that is shown keeps its inode through some changes by others: see [`FrameView::keeps_inode`].
    const KEEPS_INODE: bool = false;

    /// Whether the file keeps its inode when this frame takes the place of the one `before`, in the same SOURCE: every item that both
    /// have is at the same place in the file.
    fn keeps_inode(&self, _before: &Self) -> bool {
        false
    }

    /// What a name in the directory stands for; `None` for one that cannot be there.
    fn parse(&self, name: &OsStr) -> Option<Name>;

    /// The name of a file.
    fn name(&self, file: Number) -> OsString;

    /// Files that are there, at most so many.
    fn files(&self, which: Files, most: usize) -> Vec<Number>;

    /// What a file holds, what is written to it included, unless that is a draft; `None` if it is not there.
    fn content(&self, file: Number) -> Option<Content>;

    /// What there is to say of a file, or of the directory.
    fn about(&self, file: Option<Number>) -> About<'_>;

    /// Notes the length of a stored chunk, if the file still holds it.
    fn learn(&self, file: Number, key: ChunkKey, len: u32);

    /// What was read of the frame may have been of another state: nothing that was kept of it is good any more.
    fn forget(&self);

    /// What there is to say for the log of what is kept in memory, beside what the store keeps.
    fn report(&self) -> Option<String>;

    /// Notes that a draft of a file has been begun.
    fn begun(&mut self, file: Number);

    /// Changes the bytes of a file of the frame, or of a file of no frame.
    fn write(this: &Single<Self>, handle: Handle, file: Option<Number>, change: Change<'_>) -> Result<()>;

    /// Gives a file, whose name is `from`, the name of a file of the frame, with what it holds. What does not fit there changes nothing.
    fn put(this: &Single<Self>, from: &Name, ino: Ino, file: Number, invalidations: &mut Invalidations) -> Result<()>;

    /// The state, to take away what files of these names hold: what has to be read of them for that is read before.
    fn change_to_take<'a>(this: &'a Single<Self>, names: &[&Name]) -> Changing<'a, State<Self>>;

    /// Takes what a file holds away from it, as its name goes. What is kept is pinned.
    fn take(state: &mut State<Self>, file: Number, how: Take) -> Result<Content>;

    /// Gives the frame another trailer.
    fn annotate(state: &mut State<Self>, trailer: Trailer, invalidations: &mut Invalidations) -> Result<()>;

    /// Looks at what was written: accepts it, refuses it, or leaves it for later. Answers when to look again.
    fn settle(this: &Single<Self>, why: Why, invalidations: &mut Invalidations) -> Result<Option<Instant>>;

    /// Whether something is so.
    fn is(state: &State<Self>, what: Standing) -> bool;

    /// Where the file has the parts of the frame, if a view that begins now would have them elsewhere and can be told.
    fn outline(&self) -> Option<Outline> {
        None
    }

    /// What the store does not have and can be committed, and what to do when it has it.
    fn image(state: &State<Self>) -> Option<(FrameImage, Committed<Self>)>;

    /// When the frame was last changed, as is shown: a commit gives SOURCE this mtime.
    fn written(state: &State<Self>) -> SystemTime {
        state.nodes.written
    }

    /// Saves what finds no place in SOURCE, or with `all` everything that is not committed.
    fn save_lost(this: &Single<Self>, all: bool) -> Vec<Lost>;
}

/// See [`FrameView::image`].
pub type Committed<V> = Box<dyn FnOnce(&mut State<V>)>;

/// Which files to name.
#[derive(Debug, Clone, Copy)]
pub enum Files {
    /// Those of this number and more, in order.
    From(Number),
    /// Those that a sequential reader of this one is likely to want next, in order.
    Behind(Number),
}

/// What there is to say of a file.
#[derive(Debug, Clone, Copy, Default)]
pub struct About<'a> {
    /// It stands for the frame.
    pub frame: Option<(&'a FrameHeader, &'a Trailer)>,
    /// It holds the chunk of this position.
    pub position: Option<u32>,
    /// Since when it has held what SOURCE had at mount, if that is not SOURCE's own time.
    pub since: Option<SystemTime>,
}

/// What becomes of what a file held that loses its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Nobody uses it.
    Dropped,
    /// Somebody may still read it.
    Kept,
    /// It gets another name.
    Moved,
}

/// On whose behalf what was written is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// A close of this handle: what was written with it is accepted or refused.
    Close(Handle),
    /// A change of length without a handle, for which this one was opened.
    Truncate(Handle),
    /// The last handle that could write to this file is gone.
    Unwritten(Number),
    /// An fsync of this file.
    Sync(Ino),
    /// Time has passed.
    Idle(Instant),
    /// Somebody else may write SOURCE after this.
    HandOver,
    /// Somebody else has left, and perhaps something unfinished behind.
    LeftBehind,
    /// The mount is about to end: what was never closed is looked at as well.
    Leave,
    /// The mount ends.
    End,
}

/// What [`FrameView::is`] is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There is something that can be committed.
    News,
    /// The frame is another than the store's, whether it can be committed or not.
    Changed,
    /// Something is written that SOURCE does not have.
    Uncommitted,
    /// Something is held that is no frame, and somebody still has it open for writing.
    Unfinished,
    /// A mount that begins now would show other names, the same for other files, or other bytes.
    Renamed,
}
