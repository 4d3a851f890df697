//! The frames of a tree that are open: one budget for all, and one that nobody uses is closed when another needs its place.

use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use log::{info, warn};

use super::descriptors::OF_A_FRAME;
use super::frame::{Closed, OpenFrame, Opening, Sized, Stamp, TreeFrame, is_damage};
use super::table::ShownAs;
use super::{Tree, forget_name, passed};
use crate::format::{INDEX_NAME, Layout};
use crate::store::backend::Backend;
use crate::store::local::FileBackend;
use crate::store::local::beneath::{self, Found};
use crate::store::sidecar::SUFFIX;
use crate::store::times::Records;
use crate::store::{CframeStore, FrameStore, Location, OpenOptions, Resources, SframeStore, StoreError};
use crate::view::access;
use crate::view::frame_file::layout::Outline;
use crate::view::open_frames::{Most, OpenFrames};
use crate::view::{
    Attr, ContiguousView, FileSystem, FrameFileSystem, Good, Ino, Invalidation, Invalidations, Kind, Left, Meta, ROOT, Rest,
    Result, SparseView, ViewError, directory_meta,
};

/// How often a frame is looked at that changes meanwhile.
const TRIES: usize = 8;

/// So many files are remembered that begin as frames do and are none.
pub const BROKEN: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// How many there may be of what takes descriptors.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub descriptors: usize,
    pub frames: usize,
    pub dirs: NonZeroUsize,
}

impl Limits {
    /// A part each of what this process may open.
    pub fn of_this_process() -> Self {
        let limit = crate::store::descriptor_limit();
        let dirs = NonZeroUsize::new((limit / 8).clamp(8, 1024)).unwrap_or(NonZeroUsize::MIN);
        Limits { descriptors: limit, frames: (limit / 4 / OF_A_FRAME).clamp(4, 1024), dirs }
    }
}

/// The open frames of a tree.
pub struct Frames {
    resources: Arc<Resources>,
    /// The same, for frames that are looked at in passing: nobody listens to their watcher.
    measuring: Arc<Resources>,
    pub open: OpenFrames<TreeFrame>,
    records: Option<Records>,
}

impl Frames {
    pub fn new(resources: Arc<Resources>, most: usize) -> Self {
        let measuring = resources.in_passing();
        let open = OpenFrames::new(Most { count: most, weight: u64::MAX });
        Frames { resources, measuring, open, records: Records::of_user().ok() }
    }

    pub fn resources(&self) -> &Arc<Resources> {
        &self.resources
    }

    /// One line for the log.
    pub fn report(&self) -> String {
        let cached = self.resources.used().cache_bytes;
        format!("frames open: {} of {}; cached: {cached} bytes", self.open.count(), self.open.most())
    }
}

impl Tree {
    /// A frame is open from now on, and found by its name.
    pub(super) fn has_opened(
        &self,
        frame: &Arc<TreeFrame>,
        closed: &mut Closed,
        view: Box<dyn FrameFileSystem>,
        is_busy: bool,
    ) -> Arc<OpenFrame> {
        let open = self.frames.open.begin(frame, closed, view, 0, Opening { is_busy });
        self.table.lock().opened(frame.ino);
        open
    }

    /// A frame is not open any more, or is about to go.
    pub(super) fn unlist(&self, frame: &Arc<TreeFrame>) {
        if !self.frames.open.unlist(frame) {
            self.table.lock().closed(frame.ino);
        }
    }

    /// A frame is not followed any more: that its name is gone is our own doing.
    pub(super) fn leave_name(&self, frame: &Arc<TreeFrame>) {
        if let Some(open) = frame.opened() {
            open.view.leave_name(true);
        }
        self.unlist(frame);
    }

    /// A frame has kept its name after all.
    pub(super) fn keep_name(&self, frame: &Arc<TreeFrame>) {
        if let Some(open) = frame.opened() {
            open.view.leave_name(false);
            self.frames.open.list(frame);
            self.table.lock().opened(frame.ino);
        }
    }

    /// A frame, opened if it is not.
    pub(super) fn enter_frame(&self, frame: &Arc<TreeFrame>) -> Result<Arc<OpenFrame>> {
        if frame.has_other_data() {
            self.give_up(frame);
        }
        if frame.given_up.get().is_some() {
            return Err(ViewError::Gone);
        }
        let (mut is_new, mut damaged) = (false, None);
        let entered = self.frames.open.enter(
            &**frame,
            |changing| Ok(changing.lock()),
            |open| frame.decoded.is_some() || !open.view.is_outdated(),
            |closed| {
                is_new = true;
                self.open_frame(frame, closed, &mut damaged)
            },
        );
        if let Some(found) = damaged {
            return Err(self.show_plain(frame, &found, entered.err()));
        }
        let open = entered?;
        if is_new {
            self.limit_archives(frame);
        }
        Ok(open)
    }

    /// Opens a frame, in place of what is open and good no more. `damaged` tells what is below if it is no frame.
    fn open_frame(&self, frame: &Arc<TreeFrame>, closed: &mut Closed, damaged: &mut Option<Found>) -> Result<Arc<OpenFrame>> {
        if frame.opened().is_some() {
            self.put_away(frame);
        }
        // A handle may be of what a name has stood for before.
        if !self.frame_of(Some(frame.ino)).is_some_and(|now| Arc::ptr_eq(&now, frame)) {
            return Err(ViewError::Gone);
        }
        self.make_room(1);
        // Who only reads is at work: it is closed as soon as others need its place.
        let _ = self.check_room(OF_A_FRAME);
        let (dir, name, found) = self.found(frame.ino)?;
        let opened = self.open_found(frame, dir.as_fd(), &name, &found);
        if is_damage(&opened) {
            // Others may have put something else under the name since.
            if !beneath::look(dir.as_fd(), &name).is_ok_and(|now| Sized::from(&now) == Sized::from(&found)) {
                return Err(ViewError::Gone);
            }
            *damaged = Some(found);
        }
        let (view, is_busy) = opened?;
        let now = self.stamp(frame.ino).ok();
        let left = closed.left.take();
        if left.is_none_or(|left| now != Some(left)) {
            self.regions.renumber(&**frame);
            frame.is_renewed.store(true, SeqCst);
            match left {
                Some(_) => self.outdate([Invalidation::Data(frame.ino)]),
                // Nothing was read of one that was never open.
                None if closed.openings == 0 => {}
                None => self.owed.lock().push(Invalidation::Data(frame.ino)),
            }
        }
        Ok(self.has_opened(frame, closed, view, is_busy))
    }

    /// Where a frame of that name is.
    pub(super) fn location(&self, parent: Ino, dir: std::os::fd::BorrowedFd<'_>, name: &OsStr) -> Result<Location> {
        let path = self.path.join(self.path_of(parent, name));
        let backend: Arc<dyn Backend> = Arc::new(FileBackend::shared(self.keep_dir(parent, dir)?));
        let around = path.parent().unwrap_or(&self.path);
        Ok(Location::in_backend(backend, &path, around, name))
    }

    pub(super) fn options(&self, read_only: bool) -> OpenOptions {
        OpenOptions {
            read_only,
            locking: self.rules.locking,
            spare_lock_file: true,
            resources: Arc::clone(&self.frames.resources),
            hold_staged: !read_only,
            skip_damaged: self.shows_data(),
            ..OpenOptions::default()
        }
    }

    /// Opens what was found to be a frame, and nothing else.
    pub(super) fn open_found(
        &self,
        frame: &TreeFrame,
        dir: std::os::fd::BorrowedFd<'_>,
        name: &OsStr,
        found: &Found,
    ) -> Result<(Box<dyn FrameFileSystem>, bool)> {
        let (view, is_busy) = self.open_below(frame, dir, name, found)?;
        let left = left_attr(frame, || self.stamp_of(dir, name, found));
        let (mtime, ctime) = left.map_or((found.stat.mtime, found.stat.ctime), |attr| (attr.meta.mtime, attr.meta.ctime));
        view.set_directory_times(mtime, ctime);
        // Whoever may rename in the directory could have put another frame there since, which the caller may not read. An archive has been
        // looked at.
        if !frame.is_archive() && !is_of(&*view, found) {
            view.drop_all();
            return Err(ViewError::Gone);
        }
        Ok((view, is_busy))
    }

    fn open_below(
        &self,
        frame: &TreeFrame,
        dir: std::os::fd::BorrowedFd<'_>,
        name: &OsStr,
        found: &Found,
    ) -> Result<(Box<dyn FrameFileSystem>, bool)> {
        let parent = self.parent(frame.ino)?;
        if frame.is_archive() {
            return Ok((self.open_archive(parent, dir, name, found)?, false));
        }
        let location = self.location(parent, dir, name)?;
        let open = |read_only: bool| open_store(&location, found, self.options(read_only));
        let (store, is_busy) = match open(self.rules.read_only || frame.decoded.is_some()) {
            Err(error) if !self.rules.read_only && is_for_readers(&error) => {
                info!("{error}; it is shown read-only");
                (open(true)?, true)
            }
            opened => (opened?, false),
        };
        let outline = frame.outline.lock().clone();
        let outline =
            outline.filter(|(of, _)| self.stamp_of(dir, name, found).is_ok_and(|now| now == *of)).map(|(_, outline)| outline);
        let view = match &frame.decoded {
            Some(decoded) => self.data_view(decoded, store)?,
            None => self.view_of(frame.shown, store, self.rules.read_only || is_busy, outline)?,
        };
        Ok((view, is_busy))
    }

    pub(super) fn view_of(
        &self,
        shown: Kind,
        store: Arc<dyn FrameStore>,
        read_only: bool,
        outline: Option<Arc<Outline>>,
    ) -> Result<Box<dyn FrameFileSystem>> {
        let takes_turns = store.sidecar().is_some();
        let lock_file = || Some(SUFFIX.into());
        let view: Box<dyn FrameFileSystem> = if shown == Kind::Directory {
            let view = SparseView::new(store, read_only)?.with_lists(self.rules.lists);
            let view = match self.frames.records.clone() {
                Some(records) => view.keeping_times(records),
                None => view,
            };
            if takes_turns { Box::new(view.taking_turns(lock_file())?) } else { Box::new(view) }
        } else {
            let view = ContiguousView::again(store, crate::view::Shown::OnFile, read_only, outline)?.with_lists(self.rules.lists);
            if takes_turns { Box::new(view.taking_turns(lock_file())?) } else { Box::new(view) }
        };
        Ok(view)
    }

    /// The directory that a node is in.
    pub(super) fn parent(&self, ino: Ino) -> Result<Ino> {
        self.table.lock().get(ino).and_then(|node| Some(node.names().first()?.0)).ok_or(ViewError::Gone)
    }

    /// What stands below for a frame just now.
    pub(super) fn stamp(&self, ino: Ino) -> Result<Stamp> {
        self.reached(ino, |dir, name, found| self.stamp_of(dir.as_fd(), name, found))
    }

    pub(super) fn stamp_of(&self, dir: std::os::fd::BorrowedFd<'_>, name: &OsStr, found: &Found) -> Result<Stamp> {
        if !found.stat.is_dir() {
            return Ok(Stamp::of(found, None));
        }
        let inside = beneath::hold(dir, name)?;
        let index = beneath::look(inside.as_fd(), OsStr::new(INDEX_NAME)).ok();
        Ok(Stamp::of(found, index.as_ref()))
    }

    /// A frame that cannot be opened is what it is below from now on. Answers what a client is told, whose kernel looks again then.
    fn show_plain(&self, frame: &TreeFrame, found: &Found, error: Option<ViewError>) -> ViewError {
        if let Some(error) = error {
            warn!("{error}; it is shown as it is on disk");
        }
        self.becomes_plain(frame.ino, found);
        ViewError::Gone
    }

    /// What a node stands for is no frame. Its name is looked up anew, and then stands for a node of another kind.
    fn becomes_plain(&self, ino: Ino, found: &Found) {
        let names = {
            let mut table = self.table.lock();
            let Some(node) = table.get_mut(ino) else { return };
            node.shown = ShownAs::Plain;
            let names = node.names().to_vec();
            table.abandon(ino);
            names
        };
        self.broken.lock().put(found.id, Sized::from(found));
        let mut owed = self.owed.lock();
        owed.push(Invalidation::Data(ino));
        owed.extend(names.into_iter().map(|(parent, name)| forget_name(parent, &name)));
    }

    /// Gives up the inode of a frame's data, and closes the frame: the name gets another inode. The kernel keeps the pages of this one, and
    /// GETATTR returns its last attributes until the kernel forgets it, so that maps outlive the data.
    pub(super) fn give_up(&self, frame: &Arc<TreeFrame>) {
        let Some(attr) = self.last_attr(frame) else { return };
        if self.abandon(frame, attr) {
            self.drop_frame(frame);
            self.table.lock().drop_unknown(frame.ino);
        }
    }

    /// Takes the names from a frame's inode. Returns whether it had them.
    fn abandon(&self, frame: &Arc<TreeFrame>, last: Attr) -> bool {
        if frame.given_up.set(last).is_err() {
            return false;
        }
        let names = {
            let mut table = self.table.lock();
            let names = table.get(frame.ino).map(|node| node.names().to_vec());
            table.abandon(frame.ino);
            names
        };
        let names = names.into_iter().flatten();
        self.owed.lock().extend(names.map(|(parent, name)| forget_name(parent, &name)));
        self.frames.resources().watcher().ring();
        true
    }

    /// Returns the last attributes of a frame's data, whose file has no name.
    pub(super) fn last_attr(&self, frame: &Arc<TreeFrame>) -> Option<Attr> {
        if let Some(attr) = frame.given_up.get() {
            return Some(*attr);
        }
        let shown = frame.opened().and_then(|open| open.fs().getattr(ROOT).ok());
        let told = frame.sized.lock().map(|(_, attr)| attr);
        let attr = told.or(shown.map(|attr| Attr { ino: frame.ino, good: Good::Timeouts, ..attr }))?;
        let Attr { size, blocks, .. } = shown.unwrap_or(attr);
        Some(Attr { nlink: 0, size, blocks, ..attr })
    }

    /// Closes frames that nobody uses until there is room for so many more.
    pub(super) fn make_room(&self, more: usize) {
        self.frames.open.make_room(more, |frame| self.close_frame(frame));
    }

    /// Closes a frame, if nobody would notice.
    pub(super) fn close_frame(&self, frame: &Arc<TreeFrame>) -> bool {
        // To end what was changed takes a turn, which nobody here is to wait for.
        let may = || {
            let is_changed = frame.opened().is_some_and(|open| !open.view.is_untouched());
            !(is_changed && self.is_locked(frame))
        };
        // What others have put under its name it may have shown, and the kernel may have pages of that.
        let is_it =
            frame.opened().zip(self.found(frame.ino).ok()).is_some_and(|(open, (_, _, found))| self.is_open_as(&open, &found));
        let ended = |_access| {
            self.unlist(frame);
            self.stamp(frame.ino).ok().filter(|_| is_it)
        };
        let last = self.found(frame.ino).and_then(|(_, _, found)| self.frame_attr_with_mask(frame, &found)).ok();
        let ended = |access, rest, outline: Option<Outline>| {
            let left = ended(access);
            *frame.outline.lock() = left.zip(outline.map(Arc::new));
            // A file whose bytes will be elsewhere may have another length.
            *frame.sized.lock() = left.filter(|_| rest == Rest::Stable || frame.shown == Kind::Directory).zip(last);
            left
        };
        let is_read = frame.shown == Kind::File && frame.handles.load(SeqCst) > 0;
        let outlived = if is_read && !is_it && frame.decoded.is_some() { self.last_attr(frame) } else { None };
        if !self.frames.open.close(&self.regions, frame, may, ended) {
            return false;
        }
        if let Some(attr) = outlived {
            self.abandon(frame, attr);
        } else if is_read {
            // Nobody hears of its changes now. Whoever reads on opens it again.
            self.outdate([Invalidation::Data(frame.ino)]);
        }
        let mut table = self.table.lock();
        let name = table.get(frame.ino).and_then(|node| node.names().first().cloned());
        table.drop_unknown(frame.ino);
        drop(table);
        if let Some((parent, name)) = name.filter(|_| frame.shown == Kind::Directory) {
            self.owed.lock().push(forget_name(parent, &name));
        }
        true
    }

    /// Attributes of what stands for a frame, which is this below.
    pub(super) fn frame_attr(&self, frame: &Arc<TreeFrame>, found: &Found) -> Result<Attr> {
        let attr = self.frame_attr_with_mask(frame, found)?;
        Ok(access::shown(attr, self.rules.lists, || self.frame_rights(frame, attr.meta.mode).map(Some)))
    }

    /// The same with the permission bits that go with an access list.
    pub(super) fn frame_attr_with_mask(&self, frame: &Arc<TreeFrame>, found: &Found) -> Result<Attr> {
        let below = passed::attr(frame.ino, found);
        if frame.is_archive() {
            // With one link, nobody takes the number of links for that of the directories inside.
            let meta = directory_meta(below.meta);
            return Ok(Attr { kind: Kind::Directory, size: 4096, nlink: 1, rdev: 0, meta, ..below });
        }
        if frame.shown == Kind::Directory {
            let meta = if found.stat.is_dir() {
                below.meta
            } else {
                Meta { mode: below.meta.mode & 0o666, ..below.meta }.of_directory()
            };
            // A commit changes the times below, and must not change those that are shown.
            let shown = match frame.opened() {
                Some(open) => open.fs().getattr(ROOT).ok(),
                None => left_attr(frame, || self.stamp(frame.ino)),
            };
            let Meta { mtime, ctime, .. } = shown.map_or(meta, |attr| attr.meta);
            let meta = Meta { mode: meta.mode & 0o1777, mtime, ctime, ..meta };
            return Ok(Attr { kind: Kind::Directory, size: 4096, nlink: 2, rdev: 0, meta, ..below });
        }
        // Of a directory, the index tells.
        let stamp = if found.stat.is_dir() { self.stamp(frame.ino)? } else { Stamp::of(found, None) };
        if frame.opened().is_none()
            && let Some((_, attr)) = frame.sized.lock().filter(|(of, _)| *of == stamp)
        {
            return Ok(attr);
        }
        let inner = match frame.opened() {
            Some(open) => open.fs().getattr(ROOT),
            None => self.measure(frame),
        };
        let inner = match inner {
            // Its data has no name any more.
            Err(ViewError::Gone) if frame.decoded.is_some() => return Err(ViewError::NotFound),
            Err(ViewError::Gone) if self.frame_of(Some(frame.ino)).is_none() => return Ok(below),
            inner => inner?,
        };
        let meta = match found.stat.is_dir() {
            // Of the index file, as a mount of this one frame shows it; but not for those whom the directory keeps out.
            true => Meta { mode: self.rights_below(frame)?.mode(), ..inner.meta },
            false => Meta { mtime: inner.meta.mtime, ctime: inner.meta.ctime, ..below.meta },
        };
        let meta = Meta { mode: meta.mode & 0o666, ..meta };
        let attr = Attr { ino: frame.ino, kind: Kind::File, nlink: 1, meta, good: Good::Timeouts, ..inner };
        *frame.sized.lock() = Some((stamp, attr));
        Ok(attr)
    }

    /// What a look at a frame that is shown as a file says, without opening it for more: it is not locked for that, and takes nobody's
    /// place.
    fn measure(&self, frame: &Arc<TreeFrame>) -> Result<Attr> {
        for _ in 0..TRIES {
            let (dir, name, found) = self.found(frame.ino)?;
            let location = self.location(self.parent(frame.ino)?, dir.as_fd(), &name)?;
            let resources = Arc::clone(&self.frames.measuring);
            let skip_damaged = frame.decoded.is_some();
            let options = OpenOptions { read_only: true, skip_damaged, resources, ..OpenOptions::default() };
            let view = match open_store(&location, &found, options) {
                // It is renamed or replaced just now.
                Err(StoreError::Stale { .. }) => continue,
                Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => continue,
                store => store.map_err(ViewError::from).and_then(|store| match &frame.decoded {
                    Some(decoded) => self.data_view(decoded, store),
                    None => self.view_of(Kind::File, store, true, None),
                }),
            };
            if is_damage(&view) && self.found(frame.ino).is_ok_and(|(_, _, now)| now.is(&found)) {
                return Err(self.show_plain(frame, &found, view.err()));
            }
            if let Ok(view) = &view
                && !is_of(&**view, &found)
            {
                continue;
            }
            return view?.getattr(ROOT);
        }
        Err(ViewError::Gone)
    }

    // --- all frames ---

    pub(super) fn follow_frames(&self, invalidations: &mut Invalidations) -> Option<Instant> {
        self.each_open(invalidations, |fs, inner| fs.follow(inner))
    }

    pub(super) fn tick_frames(&self, now: Instant, invalidations: &mut Invalidations) -> Option<Instant> {
        self.each_open(invalidations, |fs, inner| fs.tick(now, inner))
    }

    fn each_open(
        &self,
        invalidations: &mut Invalidations,
        work: impl Fn(&dyn FileSystem, &mut Invalidations) -> Option<Instant>,
    ) -> Option<Instant> {
        self.frames.open.each(|frame, fs| {
            let mut inner = Invalidations::new();
            let due = work(fs, &mut inner);
            self.tell(frame, inner, invalidations);
            if frame.has_other_data() {
                self.give_up(frame);
            }
            due
        })
    }

    pub(super) fn leave_frames(&self, regardless: bool, invalidations: &mut Invalidations) -> Left {
        let mut all = Left::default();
        for (frame, open) in self.frames.open.all().filter(|(_, open)| !open.view.is_untouched()) {
            let mut inner = Invalidations::new();
            let left = open.fs().leave(regardless, &mut inner);
            self.tell(&frame, inner, invalidations);
            all.failed = all.failed.or(left.failed);
            all.lost.extend(left.lost);
        }
        all
    }

    /// The layout that a node has below.
    pub(super) fn layout_of(found: &Found) -> Layout {
        if found.stat.is_dir() { Layout::Sparse } else { Layout::Contiguous }
    }
}

/// The attributes that a frame had when it was closed, if nothing has changed below since, by the stamp that it has now.
fn left_attr(frame: &TreeFrame, stamp: impl FnOnce() -> Result<Stamp>) -> Option<Attr> {
    // Not under the lock: the stamp is read from the disk.
    let (left, attr) = (*frame.sized.lock())?;
    (stamp().ok()? == left).then_some(attr)
}

/// Whether an open frame is what was found under its name.
fn is_of(view: &dyn FrameFileSystem, found: &Found) -> bool {
    view.source().is_some_and(|(file, _)| beneath::look_at(file.as_fd()).is_ok_and(|now| now.is(found)))
}

fn open_store(location: &Location, found: &Found, options: OpenOptions) -> std::result::Result<Arc<dyn FrameStore>, StoreError> {
    Ok(match found.stat.is_dir() {
        true => Arc::new(SframeStore::open_at(location, options)?),
        false => Arc::new(CframeStore::open_at(location, options)?),
    })
}

/// Whether a frame that cannot be written to can be read all the same.
fn is_for_readers(error: &StoreError) -> bool {
    match error {
        StoreError::Busy { .. } => true,
        StoreError::Io { source, .. } => {
            matches!(source.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ETXTBSY))
        }
        _ => false,
    }
}
