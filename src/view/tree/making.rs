//! Frames that clients make: a directory whose chunk files become a frame with the first commit, and a file that is a whole frame when
//! it is closed.
//!
//! A directory with a frame's suffix is made below at once. Beside it, under a name of ours, lies the frame that is to take its place,
//! which it does whole with the first commit. Until then a crash leaves the empty directory.
//!
//! A file is an ordinary one while it is written. When nobody writes it any more and it is a whole frame, it is copied to the layout in
//! which it is to be stored, beside it and under a name of ours, which then takes its place.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use log::{debug, warn};

use super::frame::{OpenFrame, TreeFrame};
use super::passed::caller;
use super::table::Shown;
use super::{Show, Tree, rules};
use crate::format::{INDEX_NAME, Layout};
use crate::store::backend::Backend;
use crate::store::copy::FrameCopy;
use crate::store::local::FileBackend;
use crate::store::local::beneath::{self, Found};
use crate::store::{CframeStore, Like, Location, NewFrame, OpenOptions};
use crate::view::{Attr, Creation, Ino, Inval, Invals, Kind, Result, ViewError};

impl Tree {
    /// Makes a directory, in which a frame may be made if its name says so.
    pub(super) fn make_directory(&self, parent: Ino, name: &OsStr, creation: &Creation) -> Result<Attr> {
        let dir = self.dir(parent)?;
        beneath::make_dir(dir.as_fd(), name, creation.mode, caller(creation))?;
        let was_sparse = || self.layouts.lock().get(&(parent, name.to_owned())) == Some(&Layout::Sparse);
        let begins = self.rules.is_name(name)
            && !(self.rules.show == Show::Sparse && was_sparse())
            && self.is_chosen(parent, name)
            && self.rules.stored(Kind::Directory, self.is_in_store(parent)) == Some(Layout::Contiguous);
        if begins && let Err(error) = self.begin_frame(parent, name, dir.as_fd()) {
            debug!("{}: stays a directory: {error}", self.path.join(self.path_of(parent, name)).display());
        }
        self.enter(parent, name)
    }

    /// Has a new frame ready for what is written to an empty directory.
    fn begin_frame(&self, parent: Ino, name: &OsStr, dir: BorrowedFd<'_>) -> Result<()> {
        let found = beneath::look(dir, name)?;
        let location = self.location(parent, dir, name)?;
        let like = Like { frame: Arc::from(FileBackend::of(beneath::open_dir(dir, name)?).itself()?), index: None };
        let new = NewFrame { like: Some(like), replaced: Some(found.stat), ..NewFrame::default() };
        let options = OpenOptions { replace: true, ..self.options(false) };
        let store = Arc::new(CframeStore::create_at(&location, options, new)?);
        let view = self.view_of(Kind::Directory, store, false)?;
        let used = AtomicU64::new(self.frames.use_number());
        let mut made = None;
        self.table.lock().enter(&found, parent, name, |ino| {
            let frame = TreeFrame::new(ino, Layout::Contiguous, Kind::Directory);
            made = Some(Arc::clone(&frame));
            Shown::Frame(frame)
        });
        let Some(frame) = made else { return Err(ViewError::InUse) };
        let mut closed = frame.changing.lock();
        closed.openings += 1;
        frame.open(Arc::new(OpenFrame { view, opening: closed.openings, is_busy: false, used }));
        drop(closed);
        self.frames.add(&frame);
        // It was told to nobody yet.
        self.forget_one(frame.ino);
        Ok(())
    }

    /// Whether nothing has been put yet into a directory in which a frame may be made.
    pub(super) fn is_not_begun(&self, open: &OpenFrame) -> bool {
        !open.view.is_made() && open.view.is_empty()
    }

    /// No frame is made in a directory after all.
    pub(super) fn becomes_directory(&self, frame: &Arc<TreeFrame>) -> Result<()> {
        self.drop_frame(frame);
        let mut table = self.table.lock();
        table.get_mut(frame.ino).ok_or(ViewError::Gone)?.shown = Shown::Plain;
        Ok(())
    }

    /// The layout in which a file that a client makes under a name is to be stored, should it be a frame.
    pub(super) fn wanted(&self, parent: Ino, name: &OsStr, replaced: Option<Layout>) -> Option<Layout> {
        if !self.rules.is_name(name) || !self.is_chosen(parent, name) {
            return None;
        }
        let in_store = self.is_in_store(parent);
        let before = replaced.or_else(|| self.layouts.lock().get(&(parent, name.to_owned())).copied());
        // It is kept for what is made again as what it was shown as.
        match before.filter(|_| self.rules.show == Show::Contiguous && !in_store) {
            Some(layout) => Some(layout),
            None => self.rules.stored(Kind::File, in_store),
        }
    }

    /// Remembers how what had a name was stored.
    pub(super) fn remember(&self, parent: Ino, name: &OsStr, layout: Layout) {
        const MOST: usize = 1 << 14;
        let mut layouts = self.layouts.lock();
        if self.rules.show != Show::Other && layouts.len() < MOST {
            layouts.insert((parent, name.to_owned()), layout);
        }
    }

    /// Nobody has a file open for writing any more: it may be a frame now.
    pub(super) fn written(&self, ino: Ino, invals: &mut Invals) {
        let names = self.table.lock().get(ino).map(|node| node.names().to_vec()).unwrap_or_default();
        let [(parent, name)] = &*names else { return };
        if !self.rules.is_name(name) {
            return;
        }
        let _alone = self.adopting.write();
        let Ok((dir, name, found)) = self.found(ino) else { return };
        if self.is_written(ino) || found.stat.links != 1 || !rules::is_cframe(dir.as_fd(), &name, found.stat.len) {
            return;
        }
        match self.wanted(*parent, &name, None) {
            Some(Layout::Sparse) => self.store_as_directory(ino, *parent, &name),
            _ => self.take_as_frame(ino, *parent),
        }
        invals.push(Inval::Attr(ino));
    }

    /// Stores a file that is a frame as a directory, or leaves it as it is. The caller lets nothing else happen to it.
    pub(super) fn store_as_directory(&self, ino: Ino, parent: Ino, name: &OsStr) {
        let adopted = self.dir(parent).and_then(|dir| {
            let found = beneath::look(dir.as_fd(), name)?;
            self.adopt(ino, (parent, name, dir.as_fd(), &found), (parent, name, dir.as_fd()), Some(&found))
        });
        if let Err(error) = adopted {
            warn!("{}: stays a file: {error}", self.path.join(self.path_of(parent, name)).display());
        }
    }

    /// A file that is a frame stays a file, and is shown as one: from now on with atomic commits.
    pub(super) fn take_as_frame(&self, ino: Ino, parent: Ino) {
        if self.rules.shown(Layout::Contiguous, self.is_in_store(parent)) != Kind::File {
            return;
        }
        if let Some(node) = self.table.lock().get_mut(ino) {
            node.shown = Shown::Frame(TreeFrame::new(ino, Layout::Contiguous, Kind::File));
        }
    }

    /// Stores a file that is a frame as a directory, under the same name or in place of what has another. Its node stands for that.
    pub(super) fn adopt(
        &self,
        ino: Ino,
        from: (Ino, &OsStr, BorrowedFd<'_>, &Found),
        to: (Ino, &OsStr, BorrowedFd<'_>),
        replaced: Option<&Found>,
    ) -> Result<()> {
        let (source, target) = (self.location(from.0, from.2, from.1)?, self.location(to.0, to.2, to.1)?);
        // What the client has made there is as old as it was: only how it is stored changes.
        let around = beneath::look_at(to.2).ok();
        let copy = FrameCopy::of(&source)?;
        let like = Like { frame: Arc::from(FileBackend::of(from.2.try_clone_to_owned()?).open(from.1, false)?), index: None };
        let new = NewFrame { like: Some(like), replaced: replaced.map(|found| found.stat), ..NewFrame::default() };
        store_copy(&copy, &target, Layout::Sparse, new)?;
        let found = beneath::look(to.2, to.1)?;
        if let Some(around) = around {
            let _ = beneath::set_times(to.2, Some(around.stat.atime), Some(around.stat.mtime));
        }
        if let Ok(inside) = beneath::open_dir(to.2, to.1)
            && let Ok(index) = beneath::hold(inside.as_fd(), OsStr::new(INDEX_NAME))
        {
            let _ = beneath::set_times(index.as_fd(), Some(from.3.stat.atime), Some(from.3.stat.mtime));
        }
        self.becomes_file(ino, &found);
        Ok(())
    }

    /// A node stands for a frame from now on that is this below, and is shown as a file.
    pub(super) fn becomes_file(&self, ino: Ino, found: &Found) {
        let mut table = self.table.lock();
        table.becomes(ino, found);
        if let Some(node) = table.get_mut(ino) {
            node.shown = Shown::Frame(TreeFrame::new(ino, Self::layout_of(found), Kind::File));
        }
    }
}

/// Makes a frame of a copy in one step, in place of what is to be replaced.
pub fn store_copy(copy: &FrameCopy, at: &Location, layout: Layout, new: NewFrame) -> Result<()> {
    let store = copy.create(at, layout, new)?;
    let copied = copy.run(&*store, &mut |_| true);
    let closed = store.close();
    copied?;
    Ok(closed?)
}

/// Names, and how what had them was stored.
pub type Layouts = std::collections::HashMap<(Ino, OsString), Layout>;
