//! One frame at the root: the file system of a mount of one frame, whatever the layout shown.
//!
//! - `state`: the table of nodes and the frame beside it, under one lock;
//! - `drafts`: bytes that are written to files as a whole;
//! - `names`: what is made, renamed and removed; `delayed`: copies that wait for their places;
//! - `attributes`: extended attributes; `ahead`: what is asked of the store before it is read;
//! - `park`: a frame that is closed, and opened again under its nodes.
//!
//! What other programs do is in [`super::follow`] and [`super::locks`], when to commit in [`super::commit_throttle`].

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use log::debug;
use parking_lot::Mutex;

use super::commit_throttle::Pacing;
use super::content::Content;
use super::follow::Following;
use super::frame_view::{FrameView, Standing, Why};
use super::left::is_final;
use super::locks::Locks;
use super::nodes::{DELAYED_DIR, LOCK_FILE, Nodes, Root};
use super::prefetch::{Prefetcher, Push};
use super::state_lock::{StateLock, StoreChunks};
use super::writing::Change;
use super::xattr::{find, is_news, names};
use super::{
    Attr, Creation, DirEntry, Features, FileSystem, Flock, Good, Handle, Ino, Invalidations, Kind, Left, Lost, New, OpenMode,
    Opened, Pages, ROOT, RenameMode, Reread, Result, Seek, SetAttr, SetMode, Timeouts, ViewError, Wait, access,
};
use crate::store::local::{self, Gone};
use crate::store::{ChunkKey, DraftPool, FrameStore, FsSpace, ReadAt, Want, Watcher};

mod attributes;
mod delayed;
mod drafts;
mod names;
mod park;
mod readahead;
mod state;

pub use park::{FrameFileSystem, Parked, Rest};
pub use state::{Place, State};

/// Entries of a directory that are listed at once. The state is not locked between two pieces, so the caller may ask for attributes.
const PIECE: usize = 128;

/// Makes a view of what a store has.
pub type Load<V> = dyn Fn(&dyn FrameStore) -> Result<V> + Send + Sync;

/// A frame, shown as files.
///
/// Lock order: `writing`, then `commit_throttle`, then `state`, then the bytes of a draft or an overlay.
pub struct Single<V: FrameView> {
    pub(super) store: Arc<dyn FrameStore>,
    pub(super) load: Box<Load<V>>,
    /// Where a client's unfinished writes are held.
    pub(super) drafts: Arc<DraftPool>,
    pub(super) read_only: bool,
    /// Whether SOURCE's access list is shown. Without, permission bits are cut to what it grants.
    lists: bool,
    /// Whether it is all that the mount shows.
    is_alone: bool,
    /// Whether it ends, and another is opened, when its file cannot keep its inode.
    pub(super) is_opened_anew: bool,
    /// Clients have written, be it what was there before.
    is_written: AtomicBool,
    pub(super) following: Following,
    /// For how long after a change by others the kernel may not have forgotten what it has of the file at the root.
    settles: Duration,
    /// Clients' locks, if the mount was made with locking.
    pub(super) locks: Option<Locks>,
    /// Held while names are changed, and while a file is changed in place. Chunks are compared and staged under it, so readers never take
    /// it.
    pub(super) writing: Mutex<()>,
    /// One commit at a time.
    pub(super) commit_throttle: Pacing,
    pub(super) prefetcher: Prefetcher,
    /// The paths of what was saved beside SOURCE, by its name and by two numbers that identify the content. A leaf lock.
    saved: Mutex<HashMap<(String, [u64; 2]), PathBuf>>,
    /// How often SOURCE had been read again when names were last listed, of what is far away.
    told: AtomicU64,
    /// Held for look-ups and changes in memory, and never across I/O.
    pub(super) state: StateLock<State<V>>,
}

impl<V: FrameView> Single<V> {
    /// Shows a store's frame.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn over(store: Arc<dyn FrameStore>, root: Root, read_only: bool, load: Box<Load<V>>) -> Result<Self> {
        let nodes = Nodes::new(root, store.source_stat()?.into());
        Self::under(nodes, store, read_only, load)
    }

    /// Shows a store's frame under an existing table of nodes.
    fn under(nodes: Nodes, store: Arc<dyn FrameStore>, read_only: bool, load: Box<Load<V>>) -> Result<Self> {
        #[cfg(test)]
        let store: Arc<dyn FrameStore> = super::tests::counting::Counting::new(store);
        let state = State { nodes, frame: load(&*store)?, chunks: StoreChunks::new(Arc::clone(&store)), is_reloading: false };
        Ok(Single {
            state: StateLock::new(state),
            drafts: store.local().map_or_else(DraftPool::elsewhere, |local| Ok(Arc::clone(local.drafts())))?,
            store,
            load,
            read_only,
            lists: false,
            is_alone: false,
            is_opened_anew: false,
            is_written: AtomicBool::new(false),
            following: Following::default(),
            settles: Duration::ZERO,
            locks: None,
            writing: Mutex::new(()),
            commit_throttle: Pacing::new(),
            prefetcher: Prefetcher::default(),
            saved: Mutex::default(),
            told: AtomicU64::new(0),
        })
    }

    /// The same, where the kernel is told of changes by others a little later than those who open the file.
    pub(super) fn settling(self, settles: Duration) -> Self {
        Single { settles, ..self }
    }

    /// The same, which ends when its file cannot keep its inode: the file keeps its attributes and reads of it fail, until the directory
    /// around gives the name another inode and opens another view.
    pub(super) fn opened_anew(self) -> Self {
        Single { is_opened_anew: true, ..self }
    }

    /// The same, with SOURCE's access list shown if `lists`.
    pub fn with_lists(self, lists: bool) -> Self {
        Single { lists, ..self }
    }

    /// Whether the kernel can be told of no change: the frame is far away, or the system does not report changes.
    fn is_untold(&self) -> bool {
        self.store.refreshes().is_some() || self.is_blind()
    }

    /// The same, as all that a mount shows.
    pub fn alone(self) -> Self {
        Single { is_alone: true, ..self }
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        let attr = self.attr_with_mask(ino)?;
        Ok(access::shown(attr, self.lists, || self.rights(&attr)))
    }

    /// Attributes with the permission bits that go with an access list.
    pub(super) fn attr_with_mask(&self, ino: Ino) -> Result<Attr> {
        if ino == LOCK_FILE {
            return self.lock_file_attr();
        }
        let good = if self.is_untold() { Good::Timeouts } else { Good::UntilTold };
        self.of_one_version(|guard| {
            let (content, mut meta, nlink) = {
                let state = self.state.read();
                if let Some(attr) = state.nodes.given_up(ino) {
                    return Ok(Attr { good, ..attr });
                }
                if state.place(ino)? == Place::Root {
                    return Ok(Attr { good, ..state.nodes.directory.attr(ROOT, Kind::Directory, 4096) });
                }
                if let (DELAYED_DIR, Some(meta)) = (ino, state.nodes.delayed) {
                    return Ok(Attr { good, ..meta.attr(ino, Kind::Directory, 4096) });
                }
                let is_removed = state.nodes.get(ino).is_some_and(|node| node.name.is_none());
                (state.content(ino)?, state.meta(ino), u32::from(!is_removed))
            };
            // A map of a file outlasts states that cannot be shown.
            if !V::KEEPS_INODE {
                self.following.check_in_step()?;
            }
            if let Some(when) = content.written() {
                meta.written(when);
            }
            let attr = meta.attr(ino, Kind::File, self.len(guard, ino, &content)?);
            let blocks = if let Content::Data(data) = &content { data.blocks() } else { attr.blocks };
            Ok(Attr { nlink, blocks, good, ..attr })
        })
    }

    /// Chunks that files hold, with their lengths where these are known.
    fn chunks(&self, inos: &[Ino]) -> Vec<(Ino, ChunkKey, Option<u32>)> {
        let state = self.state.read();
        let chunk = |ino: &Ino| state.content(*ino).ok()?.chunk().map(|(key, len)| (*ino, key, len));
        inos.iter().filter_map(chunk).collect()
    }

    /// What the kernel may keep of a file that was just opened.
    fn opened(&self, ino: Ino, handle: Handle) -> Opened {
        let pages = match ino {
            LOCK_FILE => Pages::Foreign,
            ROOT => {
                let nodes = &self.state.read().nodes;
                let is_settled = nodes.is_of_one_version(ROOT) && !nodes.is_reloaded_since(self.settles);
                match is_settled {
                    true => Pages::Kept,
                    // A file that is read without the page cache cannot be mapped.
                    false if V::KEEPS_INODE => Pages::Fresh,
                    false => Pages::Direct,
                }
            }
            _ => Pages::Kept,
        };
        Opened { handle, pages }
    }

    fn open_file(&self, ino: Ino, mode: OpenMode) -> Result<Handle> {
        if ino == LOCK_FILE {
            return Ok(self.state.write().nodes.open(ino, true));
        }
        // Nothing that is written to a frame without its name is committed.
        if (mode.write || mode.truncate) && (self.read_only || !self.following.is_left()) {
            self.check_writable()?;
        }
        self.glance_before(true)?;
        let handle = self.state.write().open(ino, mode.write || mode.truncate)?;
        if let Some(watch) = self.store.watch().filter(|watch| watch.is_blind()) {
            // From now on SOURCE is checked at times.
            watch.ring();
        }
        if mode.truncate
            && let Err(error) = self.change(handle, Change::Empty)
        {
            self.end_handle(handle);
            return Err(error);
        }
        Ok(handle)
    }

    /// Changes the bytes of an open file.
    pub(super) fn change(&self, handle: Handle, change: Change<'_>) -> Result<()> {
        let place = {
            let state = self.state.read();
            let open = state.nodes.handle(handle)?;
            if !open.write {
                return Err(ViewError::BadHandle);
            }
            state.nodes.check_version(open)?;
            state.place(open.ino)?
        };
        self.is_written.store(true, Relaxed);
        match (place, change) {
            (Place::Frame(file), _) => V::write(self, handle, Some(file), change),
            (Place::Own, _) => V::write(self, handle, None, change),
            (Place::LockFile, Change::Write(offset, data)) => self.write_lock_file(offset, data),
            // Nobody is to cut the lock file: the count would be gone.
            (Place::LockFile, _) => Ok(()),
            (Place::Root | Place::Delayed, _) => Err(ViewError::IsDirectory),
        }
    }

    /// Ends a handle. The last handle of a removed file frees its content.
    fn end_handle(&self, handle: Handle) {
        let unwritten = self.state.write().close(handle);
        if let Some(file) = unwritten
            && let Err(error) = V::settle(self, Why::Unwritten(file), &mut Invalidations::new())
        {
            debug!("{}: {error}", self.store.path().display());
        }
    }

    /// Changes a file's length, and checks the file as a close does.
    fn resize(&self, ino: Ino, size: u64, invalidations: &mut Invalidations) -> Result<()> {
        let handle = self.state.write().open(ino, true)?;
        let changed = self.change(handle, Change::Resize(size));
        let changed = changed.and_then(|()| V::settle(self, Why::Truncate(handle), invalidations));
        self.end_handle(handle);
        changed?;
        self.publish_soon()
    }

    /// Commits all that can be committed, and syncs it.
    fn commit_all(&self, invalidations: &mut Invalidations) -> Result<()> {
        if self.following.hindrance(&*self.store).is_some() && !self.is(Standing::Uncommitted) {
            return Ok(());
        }
        V::settle(self, Why::Leave, invalidations)?;
        self.publish()?;
        Ok(self.store.sync()?)
    }

    /// What became of SOURCE, if its name is gone. A frame that is not made yet has none. In a mounted directory, names are the
    /// directory's affair.
    fn gone(&self) -> Option<Gone> {
        self.store.committed().filter(|_| self.is_alone)?;
        let (held, path) = self.store.source()?;
        local::gone(held.as_fd(), &path)
    }

    /// Saves SOURCE, whose name is gone, if clients have written to it.
    fn save_itself(&self) -> Option<Lost> {
        let commits = self.commit_throttle.lock().commits();
        if commits == 0 && !self.is_written.load(Relaxed) {
            return None;
        }
        let name = self.store.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut before = self.saved.lock();
        let key = (name.clone(), [u64::MAX, commits]);
        let saved = match before.get(&key) {
            Some(path) => Ok(path.clone()),
            None => self.store.local()?.save_itself()?,
        };
        if let Ok(path) = &saved {
            before.insert(key, path.clone());
        }
        Some(Lost { name, saved })
    }

    /// See [`Standing`].
    pub(super) fn is(&self, what: Standing) -> bool {
        V::is(&self.state.read(), what)
    }

    /// Saves a file beside SOURCE, unless content of the same name and numbers was saved before.
    pub(super) fn save(&self, name: String, numbers: [u64; 2], content: &dyn ReadAt) -> Lost {
        let mut before = self.saved.lock();
        let key = (name.clone(), numbers);
        let saved = match before.get(&key) {
            Some(path) => Ok(path.clone()),
            None => self.store.save_lost(&name, content),
        };
        if let Ok(path) = &saved {
            before.insert(key, path.clone());
        }
        Lost { name, saved }
    }
}

impl<V: FrameView> FileSystem for Single<V> {
    fn features(&self) -> Features {
        let (in_directory, locks) = {
            let nodes = &self.state.read().nodes;
            (nodes.in_directory(), nodes.lock_file.is_some())
        };
        // Without OPEN there is no RELEASE, which gives locks back. Where the mount point is the file, only handles tell older versions of
        // it from newer ones. And where changes are not reported, SOURCE is checked while a file is open.
        let handles = !self.read_only || !in_directory || locks || self.store.local().is_none() || self.is_blind();
        Features {
            read_only: self.read_only,
            handles,
            locks,
            holes: V::HAS_HOLES,
            lists: self.lists,
            lists_attributes: self.store.local().is_some(),
            read_ahead: Some(V::READ_AHEAD),
            far: self.store.refreshes().map(|time| Timeouts { entry: time, attr: time }),
            passes_on: None,
            hears: false,
            is_untold: self.is_blind(),
        }
    }

    fn lookup(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        self.glance_untold(false)?;
        let ino = self.find(parent, name)?;
        if V::KEEPS_INODE {
            self.following.check_in_step()?;
        }
        self.prefetch_looked_up(ino);
        self.attr(ino)
    }

    fn forget(&self, ino: Ino, _count: u64, altogether: bool) {
        if altogether && self.state.read().nodes.given_up(ino).is_some() {
            self.state.write().nodes.forget_given_up(ino);
        }
        if altogether && self.state.read().nodes.get(ino).is_some_and(|node| node.name.is_none()) {
            self.state.write().forget(ino);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        if ino == ROOT {
            // A directory is there whatever SOURCE holds; of a file, `attr` says that it is gone.
            let _ = self.glance_untold(false);
        }
        self.attr(ino)
    }

    fn keeps_listing(&self, _ino: Ino) -> bool {
        if !self.is_untold() {
            return true;
        }
        // Who lists names after a change by others is to get what they are now.
        let _ = self.glance_untold(true);
        let reloads = self.following.reloads();
        self.told.swap(reloads, Relaxed) == reloads
    }

    fn setattr(&self, ino: Ino, handle: Option<Handle>, set: SetAttr, invalidations: &mut Invalidations) -> Result<Attr> {
        if ino == LOCK_FILE {
            return self.attr(ino);
        }
        self.check_writable()?;
        match (set.size, handle) {
            (Some(size), Some(handle)) => self.change(handle, Change::Resize(size))?,
            (Some(size), None) => self.resize(ino, size, invalidations)?,
            (None, _) => {}
        }
        let written = self.state.write().set_attributes(ino, &set)?;
        if let (Some(content), Some(mtime)) = (written, set.mtime) {
            content.set_written(mtime);
        }
        self.attr(ino)
    }

    fn readlink(&self, _ino: Ino) -> Result<OsString> {
        Err(ViewError::Invalid)
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Opened> {
        Ok(self.opened(ino, self.open_file(ino, mode)?))
    }

    fn create(&self, parent: Ino, name: &OsStr, creation: Creation, mode: OpenMode) -> Result<(Attr, Opened)> {
        let (ino, handle) = self.create_file(parent, name, creation, mode)?;
        Ok((self.attr(ino)?, self.opened(ino, handle)))
    }

    fn make(
        &self,
        parent: Ino,
        name: &OsStr,
        new: New<'_>,
        creation: Creation,
        invalidations: &mut Invalidations,
    ) -> Result<Attr> {
        match new {
            New::File => {}
            New::Directory => return self.attr(self.make_directory(parent, name, creation)?),
            New::Symlink(_) | New::Link(_) | New::Special(..) => return Err(ViewError::NotPermitted),
        }
        let creation = Creation { exclusive: true, ..creation };
        let (ino, handle) = self.create_file(parent, name, creation, OpenMode { write: true, ..OpenMode::default() })?;
        self.release(handle, invalidations);
        self.attr(ino)
    }

    fn seek(&self, ino: Ino, _handle: Handle, offset: u64, seek: Seek) -> Result<u64> {
        self.glance_before(false)?;
        self.of_one_version(|_| {
            let content = self.state.read().content(ino)?;
            if let Content::Data(data) = content { data.seek(offset, seek) } else { Err(ViewError::Unsupported) }
        })
    }

    fn read(&self, ino: Ino, handle: Option<Handle>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if ino == LOCK_FILE {
            return self.read_lock_file(offset, buf);
        }
        if self.waits_for_changes() {
            return self.read_settled(ino, handle, offset, buf);
        }
        self.glance_before(false)?;
        let read = self.of_one_version(|guard| {
            let content = {
                let state = self.state.read();
                if let Some(Ok(open)) = handle.map(|handle| state.nodes.handle(handle)) {
                    state.nodes.check_version(open)?;
                }
                state.content(ino)?
            };
            self.has_read(&content);
            self.read_content(guard, ino, &content, offset, buf)
        });
        match read {
            // Others may have taken away what it was, in their turn or in one that is over.
            Err(ViewError::Store(_)) if self.is_outdated() => Err(ViewError::Locked),
            read => read,
        }
    }

    fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<()> {
        self.following.check()?;
        self.change(handle, Change::Write(offset, data))
    }

    fn flush(&self, handle: Handle, invalidations: &mut Invalidations) -> Result<()> {
        self.following.check()?;
        V::settle(self, Why::Close(handle), invalidations)?;
        self.publish_soon()
    }

    fn release(&self, handle: Handle, invalidations: &mut Invalidations) {
        // Nearly always a flush came before and there is nothing left: not after writes through a mapping.
        let left = V::settle(self, Why::Close(handle), invalidations).and_then(|_| self.publish_soon());
        if let Err(error) = left {
            debug!("{}: at the last close: {error}", self.store.path().display());
        }
        self.end_handle(handle);
    }

    fn fsync(&self, ino: Ino, invalidations: &mut Invalidations) -> Result<()> {
        if self.read_only || ino == LOCK_FILE {
            return Ok(());
        }
        self.following.check()?;
        let ino = if ino == DELAYED_DIR { ROOT } else { ino };
        let settled = V::settle(self, Why::Sync(ino), invalidations);
        // What is refused is not waited for.
        if let Err(error) = &settled
            && !matches!(error, ViewError::Rejected(_))
        {
            return settled.map(drop);
        }
        self.publish()?;
        self.store.sync()?;
        settled.map(drop)
    }

    fn unlink(&self, parent: Ino, name: &OsStr, _invals: &mut Invalidations) -> Result<()> {
        self.remove_name(parent, name)
    }

    fn rmdir(&self, parent: Ino, name: &OsStr, _invals: &mut Invalidations) -> Result<()> {
        self.remove_directory(parent, name)
    }

    fn rename(&self, from: (Ino, &OsStr), to: (Ino, &OsStr), mode: RenameMode, invalidations: &mut Invalidations) -> Result<()> {
        self.move_name(from, to, mode, invalidations)?;
        self.publish_soon()
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut names = self.attributes(ino, |attributes| names(attributes))?;
        if self.lists && self.access_list(ino)?.is_some() {
            names.extend(access::NAME.bytes().chain([0]));
        }
        Ok(names)
    }

    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>> {
        if name == access::NAME {
            return self.access_list(ino)?.ok_or(ViewError::NoAttribute);
        }
        self.attributes(ino, |attributes| find(attributes, name.as_bytes()))?
    }

    fn set_xattr(
        &self,
        ino: Ino,
        name: &OsStr,
        value: Option<&[u8]>,
        mode: SetMode,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        if name.as_bytes().starts_with(access::NAMES.as_bytes()) {
            let now = self.xattr(ino, name);
            return if is_news(&now, value, mode)? { Err(ViewError::NotSettable) } else { Ok(()) };
        }
        let set = |invalidations: &mut Invalidations| self.set_attribute(ino, name.as_bytes(), value, mode, invalidations);
        if self.read_only { Err(ViewError::ReadOnly) } else { self.in_turn(set, invalidations) }
    }

    fn readdir(&self, ino: Ino, mut cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        if !matches!(self.state.read().place(ino)?, Place::Root | Place::Delayed) {
            return Err(ViewError::NotDirectory);
        }
        loop {
            let piece = self.state.read().list(ino, cookie, PIECE);
            for (next, ino, name) in &piece {
                let kind = if *ino == DELAYED_DIR { Kind::Directory } else { Kind::File };
                if !emit(DirEntry { ino: *ino, kind, name, is_known: true, next: *next }) {
                    return Ok(());
                }
                cookie = *next;
            }
            if piece.len() < PIECE {
                return Ok(());
            }
        }
    }

    fn touched(&self, pid: u32, ino: Ino, read: Option<(u64, u32)>) -> Vec<Push> {
        self.prefetch_behind(pid, ino, read)
    }

    fn expect(&self, inos: &[Ino]) {
        let guard = self.store.enter();
        let mut unknown = self.chunks(inos);
        unknown.retain(|(_, _, len)| len.is_none());
        if unknown.is_empty() {
            return;
        }
        let keys: Vec<ChunkKey> = unknown.iter().map(|(_, key, _)| *key).collect();
        let lens = self.store.lens_of(&guard, &keys);
        let state = self.state.read();
        for ((ino, key, _), len) in unknown.into_iter().zip(lens) {
            if let Some(len) = len {
                state.learn(ino, key, len);
            }
        }
    }

    fn prefetch(&self, inos: &[Ino]) {
        let wants = self.chunks(inos).into_iter().filter_map(|(_, key, len)| Some(Want::Known(key, len?)));
        self.store.prefetch(&wants.collect::<Vec<_>>());
    }

    fn lock(
        &self,
        ino: Ino,
        handle: Handle,
        lock: Option<Flock>,
        until: Option<&AtomicBool>,
        invalidations: &mut Invalidations,
    ) -> Result<Reread> {
        let count = match lock {
            Some(lock) => self.take_lock(ino, handle, lock, until, invalidations),
            None => self.give_lock_back(ino, handle, until.is_some(), invalidations),
        };
        count.map(|count| self.reread(count))
    }

    fn catch_up(&self, _ino: Ino) -> Result<Reread> {
        self.wait_for_others().map(|count| self.reread(count))
    }

    fn may_wait(&self, ino: Ino) -> Wait {
        match &self.locks {
            Some(_) if ino == LOCK_FILE => Wait::Never,
            Some(_) if !self.store.sidecar().is_some_and(crate::store::Sidecar::is_clients) => Wait::Others,
            _ => Wait::Disk,
        }
    }

    fn last_name(&self, ino: Ino) -> Option<(Ino, OsString)> {
        if ino == ROOT { None } else { self.state.read().last_name(ino) }
    }

    fn watcher(&self) -> Option<Arc<Watcher>> {
        self.store.watch().map(|watch| Arc::clone(watch.watcher()))
    }

    fn follow(&self, invalidations: &mut Invalidations) -> Option<Instant> {
        self.look_in_turn(|invalidations| self.look(invalidations), invalidations)
    }

    fn statfs(&self) -> Result<FsSpace> {
        Ok(self.store.statvfs()?)
    }

    fn tick(&self, now: Instant, invalidations: &mut Invalidations) -> Option<Instant> {
        if self.read_only {
            return None;
        }
        let again = self.store.tidy().then_some(now);
        let settle = V::settle(self, Why::Idle(now), invalidations).unwrap_or_else(|error| {
            log::error!("{error}");
            None
        });
        [again, settle, self.publish_due(now)].into_iter().flatten().min()
    }

    fn leave(&self, regardless: bool, invalidations: &mut Invalidations) -> Left {
        if self.read_only {
            return Left::default();
        }
        let committed = self.commit_all(invalidations);
        if let Err(error) = &committed
            && !regardless
            && !is_final(error)
        {
            return Left { failed: committed.err(), ..Left::default() };
        }
        let all = committed.is_err() || self.is(Standing::Changed);
        let mut lost = V::save_lost(self, all);
        lost.extend(self.save_copies());
        let gone = self.gone();
        if gone == Some(Gone::Removed) {
            lost.extend(self.save_itself());
        }
        Left { failed: committed.err(), gone, lost }
    }

    fn source(&self) -> Option<(OwnedFd, PathBuf)> {
        self.store.source()
    }

    fn shutdown(&self) -> Result<()> {
        self.unlock_all();
        let mut result = Ok(());
        if !self.read_only {
            let invalidations = &mut Invalidations::new();
            let left = self.leave(true, invalidations);
            left.log(&self.store.path());
            result = left.into_result();
            if let Err(error) = V::settle(self, Why::End, invalidations) {
                debug!("{}: {error}", self.store.path().display());
            }
        }
        self.state.write().unpin_all();
        let closed = self.store.close().map_err(ViewError::from);
        debug!("{}: {}", self.store.path().display(), self.report());
        result.and(closed)
    }

    fn report(&self) -> String {
        let (files, open, kept) = {
            let state = self.state.read();
            (state.nodes.iter().count(), state.nodes.handles().count(), state.frame.report())
        };
        let commits = self.commit_throttle.lock().commits();
        let cache = kept.unwrap_or_else(|| self.store.cache_stats().to_string());
        format!("{cache}; commits: {commits}; files touched: {files}, open: {open}")
    }
}
