//! An sframe as the one file that C-Blosc2 would have written: the contiguous view.
//!
//! - [`layout`]: which chunk is where in the file; `ahead`: who reads on and on;
//! - [`overlay`]: what clients have written over it;
//! - `consider`: when that is a frame, and which of its chunks are new; `adopt`: how it becomes the layout, and when it goes to
//!   the store;
//! - [`state`]: files, names and handles; `rename`: names that move.
//!
//! Written bytes go to the overlay, which readers see. A close makes of it a new layout, with exactly the bytes that were
//! written, or refuses it. The library caches offsets between its calls, so what is shown never moves under a client. A layout
//! that is adopted is committed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::{debug, info};
use parking_lot::{Mutex, RwLock};

use self::ahead::Ahead;
use self::layout::Layout;
use self::overlay::Overlaid;
use self::state::{Content, State};
use super::meta::Meta;
use super::pacer::Pacer;
use super::{
    Attr, Creation, DirEntry, Handle, Ino, Inval, Invals, Kind, OpenMode, ROOT, RenameMode, Result, SetAttr, View, ViewError,
};
use crate::store::{FrameStore, ReadAt, StoreError};

mod ahead;
mod intervals;
mod layout;
mod overlay;
mod state;

/// How far the kernel reads ahead: with its own 128 KiB there are four times as many READs, with more than this it gets slower.
const READ_AHEAD: u32 = 4 << 20;
/// How often a read-only view looks whether others have changed SOURCE.
const WATCH_EVERY: Duration = Duration::from_millis(200);

/// The contiguous view of a frame.
///
/// Lock order: `writing`, then `pacer`, then `state`, then the bytes of an overlay or a draft. Nobody holds both of the first two.
pub struct ContiguousView {
    store: Arc<dyn FrameStore>,
    read_only: bool,
    /// Whoever changes the overlay or makes a layout of it has this. Held while chunks are compared and staged, so readers
    /// never take it.
    writing: Mutex<()>,
    /// One commit at a time.
    pacer: Mutex<Pacer>,
    /// Held for look-ups and changes in memory, and never across input or output.
    state: RwLock<State>,
    /// A leaf.
    ahead: Mutex<Ahead>,
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
            writing: Mutex::new(()),
            pacer: Mutex::new(Pacer::new()),
            state: RwLock::new(state),
            ahead: Mutex::new(Ahead::default()),
        })
    }

    fn writable(&self) -> Result<()> {
        if self.read_only { Err(ViewError::ReadOnly) } else { Ok(()) }
    }

    /// A failure to read or to write what clients have written.
    fn held_error(&self, action: &'static str, source: io::Error) -> ViewError {
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

    fn read_frame(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let guard = self.store.enter();
        let (layout, overlay) = {
            let state = self.state.read();
            (Arc::clone(&state.layout), state.seen_overlay().cloned())
        };
        let ahead = self.ahead.lock().read(&layout, offset, buf.len());
        if !ahead.is_empty() {
            self.store.expect_chunks(&ahead);
        }
        match overlay {
            None => Ok(layout.read_at(&*self.store, &guard, offset, buf)?),
            Some(overlay) => {
                let overlaid = Overlaid { store: &*self.store, guard: &guard, layout: &layout, overlay: &overlay };
                overlaid.read_at(buf, offset).map_err(|error| self.held_error("read what was written", error))
            }
        }
    }

    /// Whether others have changed SOURCE under a read-only mount, and then shows what it holds now.
    fn watch(&self, now: Instant, invals: &mut Invals) -> Option<Instant> {
        let load = || -> Result<Option<(Layout, Meta)>> {
            if !self.store.changed_outside()? {
                return Ok(None);
            }
            self.store.reload()?;
            Ok(Some((Layout::canonical(&*self.store)?, self.store.source_stat()?.into())))
        };
        match load() {
            Ok(None) => {}
            Ok(Some((layout, meta))) => {
                self.state.write().reloaded(layout, meta);
                invals.push(Inval::All);
            }
            // In the middle of a change by the library the frame does not parse: what was known goes on being shown.
            Err(error) => debug!("not shown yet: {error}"),
        }
        Some(now + WATCH_EVERY)
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

    fn setattr(&self, _ino: Ino, _handle: Option<Handle>, _set: SetAttr, _invals: &mut Invals) -> Result<Attr> {
        Err(ViewError::ReadOnly)
    }

    fn open(&self, ino: Ino, mode: OpenMode, _invals: &mut Invals) -> Result<Handle> {
        if mode.write || mode.truncate {
            return Err(ViewError::ReadOnly);
        }
        let mut state = self.state.write();
        if self.is_directory(&state, ino) {
            return Err(ViewError::IsDirectory);
        }
        state.open(ino, mode.write)
    }

    fn create(&self, _parent: Ino, _name: &OsStr, _creation: Creation, _mode: OpenMode) -> Result<(Attr, Handle)> {
        Err(ViewError::ReadOnly)
    }

    fn read(&self, ino: Ino, _handle: Option<Handle>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let guard = self.store.enter();
        let content = {
            let state = self.state.read();
            if self.is_directory(&state, ino) {
                return Err(ViewError::IsDirectory);
            }
            state.node(ino)?.content.clone()
        };
        match content {
            Content::Frame => self.read_frame(offset, buf),
            Content::Former(layout) => Ok(layout.read_at(&*self.store, &guard, offset, buf)?),
            Content::Draft(draft) => {
                draft.lock().read_at(buf, offset).map_err(|error| self.held_error("read what was written", error))
            }
        }
    }

    fn write(&self, _handle: Handle, _offset: u64, _data: &[u8]) -> Result<()> {
        Err(ViewError::ReadOnly)
    }

    fn flush(&self, _handle: Handle, _invals: &mut Invals) -> Result<()> {
        Ok(())
    }

    fn release(&self, handle: Handle, _invals: &mut Invals) {
        self.state.write().close(handle, &*self.store);
    }

    fn fsync(&self, _ino: Ino, _invals: &mut Invals) -> Result<()> {
        Ok(())
    }

    fn unlink(&self, _parent: Ino, _name: &OsStr, _invals: &mut Invals) -> Result<()> {
        Err(ViewError::ReadOnly)
    }

    fn rename(&self, _from: (Ino, &OsStr), _to: (Ino, &OsStr), _mode: RenameMode, _invals: &mut Invals) -> Result<()> {
        Err(ViewError::ReadOnly)
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

    fn read_ahead(&self) -> Option<u32> {
        Some(READ_AHEAD)
    }

    fn statfs(&self) -> Result<libc::statvfs> {
        Ok(self.store.statvfs()?)
    }

    fn tick(&self, now: Instant, invals: &mut Invals) -> Option<Instant> {
        if self.read_only { self.watch(now, invals) } else { None }
    }

    fn shutdown(&self) -> Result<()> {
        let closed = self.store.close().map_err(ViewError::from);
        info!("{}: {}", self.store.path().display(), self.report());
        closed
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
        format!(
            "chunk cache: {} hits, {} misses, {} reads that had no use for it, {} of {} bytes; commits: {}; open: {open}{held}",
            cache.hits,
            cache.misses,
            cache.bypassed,
            cache.bytes,
            cache.capacity,
            self.pacer.lock().commits(),
        )
    }
}

#[cfg(test)]
mod tests;
