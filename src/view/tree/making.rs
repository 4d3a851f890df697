//! Frames that clients make: a directory whose chunk files become a frame with the first commit, and a file that is a whole frame when
//! it is closed.
//!
//! A directory with a frame's suffix is made below at once. Beside it, under a name of ours, lies the frame that is to take its place,
//! which it does whole with the first commit. Until then a crash leaves the empty directory.
//!
//! A file is an ordinary one while it is written. The close(2) after which no client can write to it makes a frame of it, if it is a
//! whole one and the kernel reads and writes no handle of it by itself: before that close returns, all open files of it go on as the
//! frame's. Where it is to be stored in another layout, it is copied to that, beside it and under a name of ours, which then takes its
//! place.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use log::{debug, warn};
use lru::LruCache;

use super::claims::{Key, With};
use super::descriptors::OF_A_FRAME;
use super::frame::{OpenFrame, Stored, TreeFrame, is_of_frame};
use super::handles::PassedFile;
use super::passed::caller;
use super::place::At;
use super::table::ShownAs;
use super::{Tree, hidden, rules};
use crate::format::{INDEX_NAME, Layout};
use crate::store::backend::{Backend, BackendFile};
use crate::store::copy::{FrameCopy, StagedCopy};
use crate::store::local::FileBackend;
use crate::store::local::beneath::{self, FileId, Found};
use crate::store::walk::STORE_MARK;
use crate::store::{CframeStore, FrameStore, Like, LocalStore, Location, NewFrame, OpenOptions, SframeStore};
use crate::view::{Attr, Creation, Ino, Invalidation, Invalidations, Kind, ROOT, RenameMode, Result, ViewError};

impl Tree {
    /// Makes a directory, in which a frame may be made if its name says so.
    pub(super) fn make_directory(&self, parent: Ino, name: &OsStr, creation: &Creation) -> Result<Attr> {
        let (dir, since) = (self.dir(parent)?, beneath::now());
        beneath::make_dir(dir.as_fd(), name, creation.mode, caller(creation))?;
        self.begin(parent, name, dir.as_fd(), &Empty::Since(since));
        self.enter(parent, name)
    }

    /// An empty directory has got a name, with which a frame may be made in it.
    pub(super) fn begin(&self, parent: Ino, name: &OsStr, dir: BorrowedFd<'_>, empty: &Empty) {
        let Some(layout) = self.wanted(parent, name, Kind::Directory, None) else { return };
        if layout == Layout::Sparse && self.rules.locking {
            // Its lock file is in the directory, which another takes the place of.
            return;
        }
        if let Err(error) = self.begin_frame(parent, name, dir, (empty, layout)) {
            debug!("{}: stays a directory: {error}", self.path.join(self.path_of(parent, name)).display());
        }
    }

    /// Has a new frame ready for what is written to an empty directory.
    pub(super) fn begin_frame(
        &self,
        parent: Ino,
        name: &OsStr,
        dir: BorrowedFd<'_>,
        (empty, layout): (&Empty, Layout),
    ) -> Result<()> {
        // Its owner is the frame's.
        let inside = match empty {
            Empty::Since(since) => beneath::open_new_dir(dir, name, *since)?,
            Empty::Seen(_) => beneath::open_dir(dir, name)?,
        };
        let found = beneath::look_at(inside.as_fd())?;
        if matches!(empty, Empty::Seen(seen) if !found.is(seen)) {
            return Err(ViewError::Gone);
        }
        let location = self.location(parent, dir, name)?;
        let like = Like { frame: FileBackend::of(inside).itself()?, index: None };
        let new = NewFrame { like: Some(like), replaced: Some(found.stat), ..NewFrame::default() };
        let options = OpenOptions { replace: true, ..self.options(false) };
        let store: Arc<dyn FrameStore> = {
            let _making = self.making.read();
            match layout {
                Layout::Contiguous => Arc::new(CframeStore::create_at(&location, options, new)?),
                Layout::Sparse => Arc::new(SframeStore::create_at(&location, options, new)?),
            }
        };
        let view = self.view_of(Kind::Directory, store, false, None)?;
        let frame = {
            let mut table = self.table.lock();
            let ino = table.enter(&found, parent, name, |_| ShownAs::Plain);
            let Some(node) = table.get_mut(ino).filter(|node| node.frame().is_none()) else {
                table.forget(ino, 1);
                return Err(ViewError::InUse);
            };
            let frame = TreeFrame::new(ino, Stored::Frame(layout), Kind::Directory);
            node.shown = ShownAs::Frame(Arc::clone(&frame));
            frame
        };
        let mut closed = frame.slot.changing.lock();
        self.has_opened(&frame, &mut closed, view, false);
        drop(closed);
        // It was told to nobody yet.
        self.forget_one(frame.ino);
        Ok(())
    }

    /// Whether nothing has been put yet into a directory in which a frame may be made.
    pub(super) fn is_not_begun(&self, frame: &Arc<TreeFrame>, open: &OpenFrame) -> bool {
        !open.view.is_made() && self.is_empty(frame, open)
    }

    /// No frame is made in a directory after all.
    pub(super) fn becomes_directory(&self, frame: &Arc<TreeFrame>) -> Result<()> {
        let (dir, name, found) = self.found(frame.ino)?;
        let ends = self.lock_of(frame, &found);
        self.drop_frame(frame);
        self.lock_goes(ends, dir.as_fd(), &name);
        let mut table = self.table.lock();
        table.get_mut(frame.ino).ok_or(ViewError::Gone)?.shown = ShownAs::Plain;
        Ok(())
    }

    /// The layout in which what a client makes under a name is to be stored, should it be a frame; none if it is left as it was made.
    pub(super) fn wanted(&self, parent: Ino, name: &OsStr, made: Kind, replaced: Option<Layout>) -> Option<Layout> {
        if !self.rules.is_name(name) || !self.is_chosen(parent, name) {
            return None;
        }
        // The mark makes a store of the directory that it comes into.
        let in_store = *name == *STORE_MARK || self.is_in_store(parent);
        let before = replaced.or_else(|| self.layout_before(parent, name));
        // It is kept for what is made again as what it was shown as.
        match before.filter(|_| self.rules.kind_shown() == Some(made) && !in_store) {
            Some(layout) => Some(layout),
            None => self.rules.stored(made, in_store),
        }
    }

    /// Remembers how a frame was stored that had a name, if it was shown as frames are in this mount.
    pub(super) fn remember(&self, parent: Ino, name: &OsStr, shown: Kind, layout: Layout) {
        let parent = self.table.lock().get(parent).map(|node| node.id);
        if let Some(parent) = parent.filter(|_| self.rules.kind_shown() == Some(shown)) {
            self.layouts.lock().put((parent, name.to_owned()), layout);
        }
    }

    /// How what had a name before was stored, if that is remembered.
    fn layout_before(&self, parent: Ino, name: &OsStr) -> Option<Layout> {
        let parent = self.table.lock().get(parent)?.id;
        self.layouts.lock().get(&(parent, name.to_owned())).copied()
    }

    /// A directory is removed. Where the file system does not know when files are made, another could be taken for it.
    pub(super) fn forget_layouts(&self, dir: FileId) {
        if dir.born == (0, 0) {
            let mut layouts = self.layouts.lock();
            let names: Vec<_> = layouts.iter().filter(|((parent, _), _)| *parent == dir).map(|(key, _)| key.clone()).collect();
            for key in &names {
                layouts.pop(key);
            }
        }
    }

    /// A client has closed an open file.
    pub(super) fn close_passed(&self, file: &PassedFile, invalidations: &mut Invalidations) {
        if file.write && !self.rules.read_only {
            file.close();
            self.written(file.ino, invalidations);
        }
    }

    /// A client has closed a file that it could write to: if none can any more, it may be a frame now.
    pub(super) fn written(&self, ino: Ino, invalidations: &mut Invalidations) {
        let only_name = || match self.table.lock().get(ino)?.names() {
            [(parent, name)] if self.rules.is_name(name) => Some((*parent, name.clone())),
            _ => None,
        };
        while let Some((parent, name)) = only_name() {
            if self.is_kept_file(ino) {
                return;
            }
            let mut keys = self.becoming(parent);
            keys.extend([(Key::Node(ino), With::Nobody), (Key::Name(parent, name.to_os_string()), With::Nobody)]);
            let _claim = self.claims.claim(keys);
            // It may have been renamed before.
            if only_name().as_ref() == Some(&(parent, name)) {
                return self.written_alone(ino, parent, invalidations);
            }
        }
    }

    /// What is claimed by who has files become frames in a directory.
    pub(super) fn becoming(&self, parent: Ino) -> Vec<(Key, With)> {
        let way = self.table.lock().way(parent).unwrap_or_default();
        let around = way.into_iter().map(|(ino, _)| ino).chain([ROOT]);
        around.map(|ino| (Key::Within(ino), With::Others)).chain([(Key::Times(parent), With::Others)]).collect()
    }

    fn written_alone(&self, ino: Ino, parent: Ino, invalidations: &mut Invalidations) {
        let Ok((dir, name, found)) = self.found(ino) else { return };
        if self.frame_of(Some(ino)).is_none()
            && !self.is_kept_file(ino)
            && found.stat.links == 1
            && rules::is_cframe(dir.as_fd(), &name, found.stat.len)
            && !self.is_postponed(ino, dir.as_fd(), &name)
        {
            self.becomes_frame(ino, At { parent, dir: dir.as_fd(), name: &name }, &found, invalidations);
        }
    }

    /// Makes a frame of a file that is one, or leaves it as it is. The caller lets nothing else happen to it.
    pub(super) fn becomes_frame(&self, ino: Ino, at: At<'_>, found: &Found, invalidations: &mut Invalidations) {
        let _ = self.check_room(OF_A_FRAME);
        let path = || self.path.join(self.path_of(at.parent, at.name));
        if self.wanted(at.parent, at.name, Kind::File, None) == Some(Layout::Sparse) {
            match self.adopt(ino, (at, found), at, (Some(found), None)) {
                // Its bytes, and its length, may be others now.
                Ok(()) => return invalidations.push(Invalidation::Data(ino)),
                Err(error) if is_of_frame(&error) => return debug!("{}: no frame yet: {error}", path().display()),
                Err(error) => warn!("{}: stays a file: {error}", path().display()),
            }
        }
        match self.take_as_frame(ino, at, found) {
            Ok(()) => invalidations.push(Invalidation::Data(ino)),
            Err(error) => debug!("{}: no frame yet: {error}", path().display()),
        }
    }

    /// A file that is a frame stays a file, and is shown as one: from now on with atomic commits.
    fn take_as_frame(&self, ino: Ino, at: At<'_>, found: &Found) -> Result<()> {
        let frame = TreeFrame::new(ino, Stored::Frame(Layout::Contiguous), Kind::File);
        self.make_room(1);
        self.while_unwritten(ino, || {
            let (view, is_busy) = self.open_found(&frame, at.dir, at.name, found)?;
            frame.is_unsynced.store(true, SeqCst);
            // Holes are not shown as they are in the file, of which the kernel may have pages.
            frame.is_renewed.store(true, SeqCst);
            let mut closed = frame.slot.changing.lock();
            if let Some(node) = self.table.lock().get_mut(ino) {
                node.shown = ShownAs::Frame(Arc::clone(&frame));
            }
            self.has_opened(&frame, &mut closed, view, is_busy);
            Ok(())
        })
    }

    /// Does `work`, which may make a frame of a file, unless a client writes to that. Nothing is written meanwhile, and what is open of it
    /// goes on as the frame's.
    ///
    /// # Errors
    /// [`ViewError::InUse`] if a client writes, or the kernel has the file by itself; what `work` says.
    fn while_unwritten(&self, ino: Ino, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let open = self.table.lock().get(ino).map(|node| node.open.clone()).unwrap_or_default();
        let open: Vec<_> = open.into_iter().filter_map(|handle| Some((handle, self.passed(handle).ok()?))).collect();
        let mut stopped: Vec<_> = open.iter().map(|(_, file)| file.has_moved.write()).collect();
        if open.iter().any(|(_, file)| file.keeps_file()) {
            return Err(ViewError::InUse);
        }
        work()?;
        if let Some(frame) = self.frame_of(Some(ino)) {
            self.move_handles(&frame, &open);
            stopped.iter_mut().for_each(|has_moved| **has_moved = true);
        }
        Ok(())
    }

    /// Stores a file that is a frame as a directory, under the same name or in place of what has another, which is a frame that is `kept`
    /// for who has it open. Its node stands for that.
    pub(super) fn adopt(
        &self,
        ino: Ino,
        (from, found): (At<'_>, &Found),
        to: At<'_>,
        (replaced, kept): (Option<&Found>, Option<&Arc<TreeFrame>>),
    ) -> Result<()> {
        let _alone = self.lock_to_adopt(to.dir, to.name)?;
        let adopted = self.while_unwritten(ino, || self.adopt_unheld(ino, (from, found), to, (replaced, kept)));
        self.lock_in(to.dir, to.name);
        adopted
    }

    /// Copies a frame to where another is to be, under a name of ours at first.
    pub(super) fn stage<'a>(&self, copy: &'a FrameCopy, at: &Location, layout: Layout, new: NewFrame) -> Result<Staged<'a>> {
        let store = {
            let _making = self.making.read();
            copy.create(at, layout, new)?
        };
        let staged = Staged::of(copy, store);
        #[cfg(test)]
        if let Some(then) = self.when_staged.lock().take() {
            then(self);
        }
        staged
    }

    fn adopt_unheld(
        &self,
        ino: Ino,
        (from, found): (At<'_>, &Found),
        to: At<'_>,
        (replaced, kept): (Option<&Found>, Option<&Arc<TreeFrame>>),
    ) -> Result<()> {
        // What is kept is not replaced by the store, but by what has been stored beside it.
        let beside = kept.map(|_| self.name_of_ours());
        let made = At { name: beside.as_deref().unwrap_or(to.name), ..to };
        let (source, target) =
            (self.location(from.parent, from.dir, from.name)?, self.location(made.parent, made.dir, made.name)?);
        let _times = self.keep_times(to.parent, to.dir);
        let copy = FrameCopy::of(&source)?;
        let like = like_copied(&copy, found)?;
        let stat = replaced.filter(|_| kept.is_none()).map(|found| found.stat);
        let new = NewFrame { like: Some(like), replaced: stat, ..NewFrame::default() };
        let stored = self.stage(&copy, &target, Layout::Sparse, new)?.commit()?;
        // Nobody takes either of the two for one that a killed daemon has left.
        let making = self.making.read();
        let now = stored.close()?;
        let locked = |at: At<'_>| kept.map(|_| beneath::lock_shared(at.dir, at.name));
        let (new, old) = (locked(made), locked(to));
        drop(making);
        if matches!(new, Some(None)) {
            return Err(ViewError::InUse);
        }
        if let (Some(replaced), Some(_)) = (replaced, kept)
            && let Err(error) = self.rename_below(made, to, Some((replaced, true)), RenameMode::Replace, kept)
        {
            drop((new, old));
            if let Some(found) = hidden::dead(made.dir, made.name) {
                self.discard(made.dir, made.name, &found);
            }
            return Err(error);
        }
        if let Ok(inside) = beneath::open_dir(to.dir, to.name)
            && beneath::look_at(inside.as_fd()).is_ok_and(|found| found.is(&now))
            && let Ok(index) = beneath::hold(inside.as_fd(), OsStr::new(INDEX_NAME))
        {
            let _ = beneath::set_times(index.as_fd(), Some(found.stat.atime), Some(found.stat.mtime));
        }
        // Where another gave it its name, that is a change of it, and not one by others.
        let now = beneath::look(to.dir, to.name).ok().filter(|renamed| renamed.is(&now)).unwrap_or(now);
        self.becomes_file(ino, to, &now);
        Ok(())
    }

    /// A node stands for a frame from now on that is this below, and is shown as a file.
    pub(super) fn becomes_file(&self, ino: Ino, at: At<'_>, found: &Found) {
        let frame = TreeFrame::new(ino, Stored::Frame(Self::layout_of(found)), Kind::File);
        // The kernel may have pages of what it was.
        frame.is_renewed.store(true, SeqCst);
        {
            let mut table = self.table.lock();
            table.becomes_own(ino, found);
            if let Some(node) = table.get_mut(ino) {
                node.shown = ShownAs::Frame(Arc::clone(&frame));
            }
        }
        // What is open of the file goes on as this frame's, and as no other's.
        frame.slot.changing.lock().left = self.stamp_of(at.dir, at.name, found).ok();
    }
}

/// The owner and attributes for a copy in the other layout: those of what is open of the frame that is copied, if that is what was found
/// under its name. Another could have been put there since, which belongs to somebody else.
///
/// # Errors
/// [`ViewError::Gone`] if it is another; [`ViewError::NotPermitted`] of a directory that no file can be like.
pub fn like_copied(copy: &FrameCopy, found: &Found) -> Result<Like> {
    let Like { frame, index } = copy.source.local().ok_or(ViewError::Gone)?.like()?;
    if !beneath::look_at(frame.fd().ok_or(ViewError::Gone)?)?.is(found) {
        return Err(ViewError::Gone);
    }
    if !found.stat.is_dir() {
        return Ok(Like { frame, index: None });
    }
    // Readable for those who could read it in the directory, and nobody else.
    let mode = copy.mode()?;
    let may_be_like = |file: &Arc<dyn BackendFile>| file.stat().is_ok_and(|stat| stat.mode & 0o666 & !mode == 0);
    let frame = index.into_iter().chain([frame]).find(may_be_like).ok_or(ViewError::NotPermitted)?;
    Ok(Like { frame, index: None })
}

/// A copy of a frame that has only a name of ours yet. It goes when it is dropped.
pub struct Staged<'a> {
    copy: &'a FrameCopy,
    store: Arc<dyn FrameStore>,
    chunks: StagedCopy,
}

impl<'a> Staged<'a> {
    /// Copies into a store that was made for it.
    pub fn of(copy: &'a FrameCopy, store: Arc<dyn FrameStore>) -> Result<Self> {
        let chunks = copy.stage(&*store, &mut |_| true)?.ok_or(ViewError::Gone)?;
        Ok(Staged { copy, store, chunks })
    }

    /// Makes a frame of it in one step, in place of what is to be replaced.
    ///
    /// # Errors
    /// What the store refuses; others have changed what was copied.
    pub fn commit(self) -> Result<Committed> {
        self.copy.commit(&*self.store, self.chunks)?;
        Ok(Committed(self.store))
    }
}

/// A copy that has its name, and its lock.
pub struct Committed(Arc<dyn FrameStore>);

impl Committed {
    /// Answers what was made, by what the store has open: something else may have its name by now.
    pub fn close(self) -> Result<Found> {
        let made = self.0.local().and_then(LocalStore::source);
        self.0.close()?;
        Ok(beneath::look_at(made.ok_or(ViewError::Gone)?.0.as_fd())?)
    }
}

/// An empty directory in which a frame may be made.
pub enum Empty {
    /// One that was made, not before this moment.
    Since(beneath::Moment),
    /// This one.
    Seen(Found),
}

/// Names, and how what had them was stored. Those that were used last are remembered.
pub type Layouts = LruCache<(FileId, OsString), Layout>;

/// So many names are remembered with how what had them was stored.
pub const LAYOUTS: NonZeroUsize = NonZeroUsize::new(1 << 14).expect("not zero");
