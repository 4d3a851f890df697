//! An sframe as the one file that C-Blosc2 would have written: the contiguous view.
//!
//! - [`layout`]: which chunk is where in the file; `ahead`: who reads on and on;
//! - [`overlay`]: what clients have written over it;
//! - `consider`: when that is a frame, and which of its chunks are new; `adopt`: how it becomes the layout, and when it goes to
//!   the store;
//! - [`state`]: files, names and handles; `rename`: names that move; `xattr`: extended attributes.
//!
//! Written bytes go to the overlay, which readers see. A close makes of it a new layout, with exactly the bytes that were
//! written, or refuses it. The library caches offsets between its calls, so what is shown never moves under a client. A layout
//! that is adopted is committed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use log::debug;
use parking_lot::{Mutex, RwLock};

use self::adopt::Look;
use self::ahead::Ahead;
use self::layout::Layout;
use self::overlay::Overlaid;
use self::state::{Content, State};
use super::follow::{Follow, Following};
use super::meta::Meta;
use super::pacer::{Pacing, Publish};
use super::xattr::{find, names};
use super::{
    Attr, Creation, DirEntry, Handle, Ino, Invals, Kind, Left, OpenMode, ROOT, RenameMode, Result, SetAttr, SetMode, View,
    ViewError,
};
use crate::store::{Draft, FrameStore, ReadAt, ReadGuard, StoreError, Watch};

mod adopt;
mod ahead;
mod consider;
mod intervals;
mod layout;
mod moved;
mod overlay;
mod rename;
mod state;
mod xattr;

/// How far the kernel reads ahead: with its own 128 KiB there are four times as many READs, with more than this it gets slower.
const READ_AHEAD: u32 = 4 << 20;

/// The contiguous view of a frame.
///
/// Lock order: `writing`, then `pacer`, then `state`, then the bytes of an overlay or a draft.
pub struct ContiguousView {
    store: Arc<dyn FrameStore>,
    read_only: bool,
    following: Following,
    /// Whoever changes the overlay or makes a layout of it has this. Held while chunks are compared and staged, so readers
    /// never take it.
    writing: Mutex<()>,
    /// One commit at a time.
    pacer: Pacing,
    /// Held for look-ups and changes in memory, and never across input or output.
    state: RwLock<State>,
    /// A leaf.
    ahead: Mutex<Ahead>,
    /// The frame as it was last saved beside SOURCE, and where. Another leaf.
    saved: Mutex<Option<(adopt::Held, PathBuf)>>,
}

/// Where the one file of a contiguous view is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// In the mount's directory, under this name.
    As(OsString),
    /// The mount point itself is the file.
    OnFile,
}

impl ContiguousView {
    /// Shows a store's frame.
    ///
    /// # Errors
    /// What the store cannot read.
    pub fn new(store: Arc<dyn FrameStore>, shown: Shown, read_only: bool) -> Result<Self> {
        let state = State::new(shown, Layout::canonical(&*store)?, store.source_stat()?);
        Ok(ContiguousView {
            store,
            read_only,
            following: Following::default(),
            writing: Mutex::new(()),
            pacer: Pacing::new(),
            state: RwLock::new(state),
            ahead: Mutex::new(Ahead::default()),
            saved: Mutex::default(),
        })
    }

    fn writable(&self) -> Result<()> {
        self.check_writable()
    }

    /// A failure to read or to write what clients have written.
    fn held_error(&self, action: &'static str, source: io::Error) -> ViewError {
        // What is below comes from the store.
        let stale = |error: &StoreError| match error {
            StoreError::Stale { path, reason } => Some(StoreError::Stale { path: path.clone(), reason: reason.clone() }),
            _ => None,
        };
        if let Some(error) = source.get_ref().and_then(|error| error.downcast_ref()).and_then(stale) {
            return ViewError::Store(error);
        }
        ViewError::Store(StoreError::Io { path: self.store.path().into(), action, source })
    }

    fn is_directory(&self, state: &State, ino: Ino) -> bool {
        ino == ROOT && state.in_directory()
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        let (content, meta, nlink, seen) = {
            let state = self.state.read();
            if self.is_directory(&state, ino) {
                return Ok(state.root.attr(ROOT, Kind::Directory, 4096));
            }
            let node = state.node(ino)?;
            let nlink = u32::from(node.place.is_some() || ino == ROOT);
            let seen = state.seen_overlay().cloned().ok_or_else(|| Arc::clone(&state.layout));
            (node.content.clone(), node.meta, nlink, seen)
        };
        let mut meta: Meta = meta;
        let size = match (content, seen) {
            (Content::Frame, Err(layout)) => layout.len(),
            (Content::Frame, Ok(overlay)) => {
                let inner = overlay.inner.read();
                meta.written(inner.mtime);
                inner.len()
            }
            (Content::Draft(draft), _) => draft.lock().len(),
            (Content::Former(layout), _) => layout.len(),
        };
        Ok(Attr { nlink, ..meta.attr(ino, Kind::File, size) })
    }

    fn read_frame(&self, guard: &ReadGuard<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (layout, overlay) = {
            let state = self.state.read();
            (Arc::clone(&state.layout), state.seen_overlay().cloned())
        };
        let ahead = self.ahead.lock().read(&layout, offset, buf.len());
        if !ahead.is_empty() {
            self.store.expect_chunks(&ahead);
        }
        match overlay {
            None => Ok(layout.read_at(&*self.store, guard, offset, buf)?),
            Some(overlay) => {
                let overlaid = Overlaid { store: &*self.store, guard, layout: &layout, overlay: &overlay };
                overlaid.read_at(buf, offset).map_err(|error| self.held_error("read what was written", error))
            }
        }
    }

    /// What a handle that is open for writing writes to.
    fn written_file(&self, handle: Handle) -> Result<(Ino, Content)> {
        let state = self.state.read();
        let open = state.handles.get(&handle.0).filter(|open| open.write).ok_or(ViewError::BadHandle)?;
        state.check_version(open)?;
        Ok((open.ino, state.node(open.ino)?.content.clone()))
    }

    fn change_draft(&self, ino: Ino, draft: &Mutex<Draft>, apply: impl FnOnce(&mut Draft) -> io::Result<()>) -> Result<()> {
        apply(&mut draft.lock()).map_err(|error| self.held_error("hold what was written", error))?;
        if let Ok(node) = self.state.write().node_mut(ino) {
            node.meta.written(SystemTime::now());
        }
        Ok(())
    }

    fn truncate(&self, handle: Handle, size: u64) -> Result<()> {
        let _writing = self.writing.lock();
        match self.written_file(handle)? {
            (_, Content::Frame) => self.change_frame(Some(handle), |inner, _| inner.set_len(size)),
            (ino, Content::Draft(draft)) => self.change_draft(ino, &draft, |draft| draft.set_len(size)),
            (_, Content::Former(_)) => Err(ViewError::Gone),
        }
    }

    /// Changes a file's length: like a write with a handle, like a write and a close without.
    fn resize(&self, ino: Ino, handle: Option<Handle>, size: u64, invals: &mut Invals) -> Result<()> {
        if let Some(handle) = handle {
            return self.truncate(handle, size);
        }
        let (content, alone) = {
            let state = self.state.read();
            if self.is_directory(&state, ino) {
                return Err(ViewError::IsDirectory);
            }
            (state.node(ino)?.content.clone(), state.seen_overlay().is_none())
        };
        let _writing = self.writing.lock();
        match content {
            Content::Frame => {
                self.change_frame(None, |inner, _| inner.set_len(size))?;
                if let Err(error) = self.look(Look::Truncate, invals) {
                    if alone {
                        self.drop_truncated(invals);
                    }
                    return Err(error);
                }
            }
            Content::Draft(draft) => self.change_draft(ino, &draft, |draft| draft.set_len(size))?,
            Content::Former(_) => return Err(ViewError::Gone),
        }
        drop(_writing);
        self.publish_soon()
    }
}

impl View for ContiguousView {
    fn read_only(&self) -> bool {
        self.read_only
    }

    fn lookup(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        let ino = self.state.read().find(parent, name)?;
        self.attr(ino)
    }

    fn forget(&self, ino: Ino) {
        if !self.read_only {
            self.state.write().forget(ino, &*self.store);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.attr(ino)
    }

    fn setattr(&self, ino: Ino, handle: Option<Handle>, set: SetAttr, invals: &mut Invals) -> Result<Attr> {
        self.writable()?;
        if let Some(size) = set.size {
            self.resize(ino, handle, size, invals)?;
        }
        let overlay = {
            let mut state = self.state.write();
            if self.is_directory(&state, ino) {
                state.root.change(&set);
                None
            } else {
                state.node_mut(ino)?.meta.change(&set);
                state.overlay.clone().filter(|_| state.frame == Some(ino))
            }
        };
        if let (Some(overlay), Some(mtime)) = (overlay, set.mtime) {
            overlay.inner.write().mtime = mtime;
        }
        self.attr(ino)
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Handle> {
        if mode.write || mode.truncate {
            self.writable()?;
        }
        self.glance_before(true)?;
        let handle = {
            let mut state = self.state.write();
            if self.is_directory(&state, ino) {
                return Err(ViewError::IsDirectory);
            }
            state.open(ino, mode.write)?
        };
        if mode.truncate
            && let Err(error) = self.truncate(handle, 0)
        {
            self.end_handle(handle);
            return Err(error);
        }
        Ok(handle)
    }

    fn create(&self, parent: Ino, name: &OsStr, creation: Creation, mode: OpenMode) -> Result<(Attr, Handle)> {
        self.writable()?;
        let existing = {
            let state = self.state.read();
            state.check_name(parent, name)?;
            state.named(name)
        };
        if let Some(ino) = existing {
            if creation.exclusive {
                return Err(ViewError::Exists);
            }
            let handle = self.open(ino, mode)?;
            return Ok((self.attr(ino)?, handle));
        }
        let _writing = self.writing.lock();
        let (ino, handle, is_frame) = {
            let mut state = self.state.write();
            if state.named(name).is_some() {
                return Err(ViewError::Exists);
            }
            let draft = Content::Draft(Arc::new(Mutex::new(Draft::new(self.store.drafts()))));
            let is_frame = state.is_frame_name(name);
            let ino = state.new_file(name.to_owned(), creation.into(), if is_frame { Content::Frame } else { draft });
            if is_frame {
                state.frame = Some(ino);
            }
            (ino, state.open(ino, mode.write)?, is_frame)
        };
        if is_frame {
            let begun = self.change_frame(Some(handle), |inner, _| inner.set_len(0));
            begun.inspect_err(|_| self.state.write().close(handle, &*self.store))?;
        }
        Ok((self.attr(ino)?, handle))
    }

    fn read(&self, ino: Ino, handle: Option<Handle>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.glance_before(false)?;
        self.of_one_version(|guard| {
            let content = {
                let state = self.state.read();
                if self.is_directory(&state, ino) {
                    return Err(ViewError::IsDirectory);
                }
                if let Some(open) = handle.and_then(|handle| state.handles.get(&handle.0)) {
                    state.check_version(open)?;
                }
                state.node(ino)?.content.clone()
            };
            match content {
                Content::Frame => self.read_frame(guard, offset, buf),
                Content::Former(layout) => Ok(layout.read_at(&*self.store, guard, offset, buf)?),
                Content::Draft(draft) => {
                    draft.lock().read_at(buf, offset).map_err(|error| self.held_error("read what was written", error))
                }
            }
        })
    }

    fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<()> {
        self.following.check()?;
        let _writing = self.writing.lock();
        match self.written_file(handle)? {
            (_, Content::Frame) => self.change_frame(Some(handle), |inner, below| inner.write_at(data, offset, below)),
            (ino, Content::Draft(draft)) => self.change_draft(ino, &draft, |draft| draft.write_at(data, offset)),
            (_, Content::Former(_)) => Err(ViewError::Gone),
        }
    }

    fn flush(&self, handle: Handle, invals: &mut Invals) -> Result<()> {
        self.following.check()?;
        self.close_handle(handle, invals)?;
        self.publish_soon()
    }

    fn release(&self, handle: Handle, invals: &mut Invals) {
        // Nearly always a flush came before and there is nothing left: not after writes through a mapping.
        let left = self.close_handle(handle, invals).and_then(|()| self.publish_soon());
        if let Err(error) = left {
            debug!("{}: at the last close: {error}", self.store.path().display());
        }
        self.end_handle(handle);
    }

    fn fsync(&self, ino: Ino, invals: &mut Invals) -> Result<()> {
        let frame = {
            let state = self.state.read();
            self.is_directory(&state, ino) || state.frame == Some(ino)
        };
        self.following.check()?;
        if self.read_only || !frame { Ok(()) } else { self.settle(invals) }
    }

    fn unlink(&self, parent: Ino, name: &OsStr, invals: &mut Invals) -> Result<()> {
        self.writable()?;
        self.remove_name(parent, name, invals)
    }

    fn rename(&self, from: (Ino, &OsStr), to: (Ino, &OsStr), mode: RenameMode, invals: &mut Invals) -> Result<()> {
        self.writable()?;
        self.move_name(from, to, mode, invals)?;
        self.publish_soon()
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        self.attributes(ino, |attributes| names(attributes))
    }

    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>> {
        self.attributes(ino, |attributes| find(attributes, name.as_bytes()))?
    }

    fn set_xattr(&self, ino: Ino, name: &OsStr, value: Option<&[u8]>, mode: SetMode, invals: &mut Invals) -> Result<()> {
        self.set_attribute(ino, name.as_bytes(), value, mode, invals)
    }

    fn readdir(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let names: Vec<(u64, OsString, Ino)> = {
            let state = self.state.read();
            if !self.is_directory(&state, ino) {
                return Err(ViewError::NotDirectory);
            }
            state.list(cookie).map(|(next, name, ino)| (next, name.to_owned(), ino)).collect()
        };
        for (next, name, ino) in &names {
            if !emit(DirEntry { ino: *ino, kind: Kind::File, name, next: *next }) {
                break;
            }
        }
        Ok(())
    }

    fn next_files(&self, _ino: Ino, _count: usize) -> Vec<(Ino, u64)> {
        Vec::new()
    }

    fn expect(&self, _inos: &[Ino]) {}

    fn expect_reads(&self, _inos: &[Ino]) {}

    fn read_ahead(&self) -> Option<u32> {
        Some(READ_AHEAD)
    }

    fn statfs(&self) -> Result<libc::statvfs> {
        Ok(self.store.statvfs()?)
    }

    fn tick(&self, now: Instant, invals: &mut Invals) -> Option<Instant> {
        if self.read_only { None } else { self.work(now, invals) }
    }

    fn keeps_pages(&self, ino: Ino) -> bool {
        ino != ROOT || self.state.read().is_of_one_version()
    }

    fn last_name(&self, ino: Ino) -> Option<OsString> {
        let state = self.state.read();
        match state.nodes.contains_key(&ino) {
            true => state.name_of(ino),
            false => state.in_directory().then(|| state.frame_name(self.store.path())),
        }
        .map(OsStr::to_owned)
    }

    fn watch(&self) -> Option<&Watch> {
        Some(self.store.watch())
    }

    fn follow(&self, invals: &mut Invals) -> Option<Instant> {
        Follow::look(self, invals)
    }

    fn leave(&self, regardless: bool, invals: &mut Invals) -> Left {
        if self.read_only { Left::default() } else { self.leave_source(regardless, invals) }
    }

    fn source(&self) -> Option<(OwnedFd, PathBuf)> {
        self.store.source()
    }

    fn shutdown(&self) -> Result<()> {
        let result = if self.read_only { Ok(()) } else { self.finish() };
        let closed = self.store.close().map_err(ViewError::from);
        debug!("{}: {}", self.store.path().display(), self.report());
        result.and(closed)
    }

    fn report(&self) -> String {
        let cache = self.store.cache_stats();
        let (open, held) = {
            let state = self.state.read();
            (state.handles.len(), state.overlay.clone())
        };
        let held = held.map_or_else(String::new, |overlay| {
            let inner = overlay.inner.read();
            format!("; {} parts of {} bytes written", inner.written().count(), inner.len())
        });
        format!("{cache}; commits: {}; open: {open}{held}", self.pacer.lock().commits(),)
    }
}

#[cfg(test)]
mod tests;
