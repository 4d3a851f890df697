//! A frame as one file: the contiguous view. An sframe is shown as the file that C-Blosc2 would have written; a cframe has SOURCE's
//! own bytes and offsets until the first change.
//!
//! - `recognize`: when that is a frame, and which of its chunks are new; `install`: how it becomes the layout, and when it goes to
//!   the store;
//! - [`state`]: what the view knows; `xattr`: vlmetalayers that are set.
//!
//! What the file is made of is in [`super::frame_file`]. Written bytes go to the overlay, which readers see. A close makes of it a new layout, with exactly the bytes that were
//! written, or refuses it. The library caches offsets between its calls, so what is shown never moves under a client. A layout
//! that is installed is committed.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;

use self::install::Look;
use self::state::{Contiguous, FRAME};
use super::content::Content;
use super::frame_file::layout::Outline;
use super::frame_view::{About, Committed, Files, FrameView, Standing, Take, Why};
use super::names::is_temporary;
use super::nodes::{Name, Number, Root};
use super::single::{Place, Single, State};
use super::state_lock::Changing;
use super::writing::Change;
use super::{Handle, Ino, Invalidations, Lost, ROOT, Result, ViewError};
use crate::format::trailer::Trailer;
use crate::store::{ChunkKey, FrameImage, FrameStore, sidecar};

mod install;
mod recognize;
mod state;
#[cfg(test)]
mod tests;
mod xattr;

/// The contiguous view of a frame.
pub type ContiguousView = Single<Contiguous>;

/// Bytes of index and trailer that are kept of a frame while it is closed.
const MOST_OF_OUTLINE: usize = 8 << 10;

/// Where the one file of a contiguous view is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// In the mount's directory, under this name.
    As(OsString),
    /// The mount point itself is the file.
    OnFile,
}

impl Single<Contiguous> {
    /// Shows a store's frame.
    ///
    /// # Errors
    /// What the store cannot read.
    pub fn new(store: Arc<dyn FrameStore>, shown: Shown, read_only: bool) -> Result<Self> {
        Self::again(store, shown, read_only, None)
    }

    /// The same, with everything in the file where it was by an outline of the same frame.
    ///
    /// # Errors
    /// What the store cannot read.
    pub fn again(store: Arc<dyn FrameStore>, shown: Shown, read_only: bool, outline: Option<Arc<Outline>>) -> Result<Self> {
        let (root, name) = match shown {
            Shown::As(name) => (Root::Directory, name),
            Shown::OnFile => (Root::File(FRAME), store.path().file_name().unwrap_or_default().to_owned()),
        };
        // Not after others have changed SOURCE.
        let outline = Mutex::new(outline);
        let load = move |store: &dyn FrameStore| Contiguous::load(store, name.clone(), outline.lock().take().as_deref());
        Self::over(store, root, read_only, Box::new(load))
    }
}

impl FrameView for Contiguous {
    /// With the kernel's own 128 KiB there are four times as many READs, with more than this it gets slower.
    const READ_AHEAD: u32 = 4 << 20;
    const HAS_HOLES: bool = false;
    const TAKES_MTIME: bool = true;

    fn parse(&self, name: &OsStr) -> Option<Name> {
        if *name == *self.name {
            return Some(Name::Frame(FRAME));
        }
        let lock_file: OsString = [&self.name, OsStr::new(sidecar::SUFFIX)].into_iter().collect();
        let is_temporary = is_temporary(name, |of| *of == *self.name) || *name == *lock_file;
        is_temporary.then(|| Name::Temporary(name.to_owned()))
    }

    fn name(&self, _file: Number) -> OsString {
        self.name.clone()
    }

    fn files(&self, which: Files, _most: usize) -> Vec<Number> {
        match which {
            Files::From(FRAME) if !self.is_gone => vec![FRAME],
            Files::From(_) | Files::Behind(_) => Vec::new(),
        }
    }

    fn content(&self, _file: Number) -> Option<Content> {
        (!self.is_gone).then(|| Content::Frame(self.file()))
    }

    fn about(&self, file: Option<Number>) -> About<'_> {
        About { frame: file.map(|_| (self.layout.header(), self.layout.trailer())), ..About::default() }
    }

    fn learn(&self, _file: Number, _key: ChunkKey, _len: u32) {}

    fn forget(&self) {}

    fn report(&self) -> Option<String> {
        None
    }

    fn begun(&mut self, _file: Number) {}

    fn write(this: &Single<Self>, handle: Handle, _file: Option<Number>, change: Change<'_>) -> Result<()> {
        let _writing = this.writing.lock();
        let is_former = {
            let state = this.state.read();
            let open = state.nodes.handle(handle)?;
            let ino = open.ino;
            // While the lock was waited for, others may have changed SOURCE, or the file may have lost its place, or got it.
            state.nodes.check_version(open)?;
            match state.place(ino)? {
                Place::Frame(_) => None,
                _ if matches!(change, Change::Empty) => Some(false),
                _ => Some(state.nodes.get(ino).is_some_and(|node| node.kept.is_of_store() && node.seen_writing().is_none())),
            }
        };
        match is_former {
            None => this.change_frame(handle, change),
            // It would have to be copied whole.
            Some(true) => Err(ViewError::Gone),
            Some(false) => this.change_draft(handle, change),
        }
    }

    fn put(this: &Single<Self>, from: &Name, ino: Ino, _file: Number, invalidations: &mut Invalidations) -> Result<()> {
        this.replace_frame(from, ino, invalidations)
    }

    fn change_to_take<'a>(this: &'a Single<Self>, _names: &[&Name]) -> Changing<'a, State<Self>> {
        this.state.write()
    }

    fn take(state: &mut State<Self>, _file: Number, how: Take) -> Result<Content> {
        // What is half written belongs to the name, and would be no backup.
        if how == Take::Moved && state.frame.seen_overlay().is_some() {
            return Err(ViewError::Invalid);
        }
        state.frame.overlay = None;
        // What is kept is read while the frame that follows is written.
        state.frame.leave_source();
        if std::mem::replace(&mut state.frame.is_gone, true) || how == Take::Dropped {
            return Ok(Content::Empty);
        }
        let former = Content::Frame(state.frame.file());
        state.chunks.pin(former.keys());
        Ok(former)
    }

    fn annotate(state: &mut State<Self>, trailer: Trailer, invalidations: &mut Invalidations) -> Result<()> {
        state.set_trailer(trailer, invalidations)
    }

    fn settle(this: &Single<Self>, why: Why, invalidations: &mut Invalidations) -> Result<Option<Instant>> {
        match why {
            Why::Close(handle) => this.close_handle(handle, Look::Close, invalidations)?,
            Why::Truncate(handle) => {
                let truncated = this.close_handle(handle, Look::Truncate, invalidations);
                if truncated.is_err() {
                    this.drop_truncated(handle, invalidations);
                }
                truncated?;
            }
            Why::Unwritten(_) => {
                let _writing = this.writing.lock();
                let mut state = this.state.write();
                // Nobody has seen any of it since it was refused, so nothing is said: see `FileSystem::release`.
                if state.frame_writers() == 0 && state.frame.overlay.as_ref().is_some_and(|overlay| overlay.refused()) {
                    state.frame.overlay = None;
                }
            }
            Why::Sync(ino) => {
                let place = this.state.read().place(ino);
                match place {
                    Ok(Place::Own) => {}
                    Ok(Place::Frame(_)) => this.settle(Look::Sync, invalidations)?,
                    _ => this.settle(Look::Settle, invalidations)?,
                }
            }
            Why::Leave => this.settle(Look::Settle, invalidations)?,
            Why::Idle(now) => return Ok(this.settle_due(now, invalidations)),
            Why::HandOver => {
                this.settle(Look::Settle, invalidations)?;
                this.drop_unfinished(invalidations);
            }
            Why::LeftBehind => this.drop_unfinished(invalidations),
            Why::End => this.end(invalidations),
        }
        Ok(None)
    }

    fn is(state: &State<Self>, what: Standing) -> bool {
        let frame = &state.frame;
        match what {
            Standing::News | Standing::Changed => !frame.is_published(),
            Standing::Uncommitted => !frame.is_published() || frame.seen_overlay().is_some() || frame.is_gone,
            Standing::Unfinished => frame.overlay.is_some() && state.frame_writers() > 0,
            Standing::Renamed => frame.is_relaid,
        }
    }

    fn outline(&self) -> Option<Outline> {
        (self.is_relaid && self.layout.tail.len() <= MOST_OF_OUTLINE).then(|| self.layout.outline())
    }

    fn image(state: &State<Self>) -> Option<(FrameImage, Committed<Self>)> {
        let frame = &state.frame;
        if frame.is_published() {
            return None;
        }
        let (version, staged) = (frame.version, frame.staged.clone());
        let committed = move |state: &mut State<Self>| {
            state.frame.published = version;
            state.frame.staged.retain(|key| !staged.contains(key));
        };
        Some((frame.layout.image.clone(), Box::new(committed)))
    }

    fn written(state: &State<Self>) -> SystemTime {
        state.meta(state.ino(FRAME).unwrap_or(ROOT)).mtime
    }

    fn save_lost(this: &Single<Self>, all: bool) -> Vec<Lost> {
        if all { vec![this.save_frame()] } else { Vec::new() }
    }
}
