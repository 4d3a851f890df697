//! Frames that get another name, with whoever has them open: the store of an open frame goes along.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::MutexGuard;

use super::Tree;
use super::frame::{Closed, Stored, TreeFrame};
use super::making::like_copied;
use super::place::At;
use super::removing::check_parts;
use super::table::ShownAs;
use crate::format::Layout;
use crate::store::NewFrame;
use crate::store::copy::FrameCopy;
use crate::store::local::beneath::{self, Found};
use crate::view::{Invalidations, Kind, Meta, ROOT, Result, ViewError};

/// How often a frame is closed that others open again.
const TRIES: usize = 8;

impl Tree {
    /// Does `work`, which gives a frame the name `to`, and the table its new name. What was written to the frame is committed before, unless
    /// somebody is still writing. It is neither opened nor closed meanwhile.
    pub(super) fn carry(
        &self,
        frame: Option<&Arc<TreeFrame>>,
        to: At<'_>,
        invalidations: &mut Invalidations,
        work: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let Some(frame) = frame else { return work() };
        if self.rules.locking {
            // The lock file has another name too, by which the store is to find it.
            self.quiesce(frame, invalidations)?;
            return work();
        }
        if frame.writers.load(Relaxed) == 0 && frame.opened().is_some() {
            self.fsync_inside(frame, ROOT, invalidations)?;
        }
        let location = self.location(to.parent, to.dir, to.name)?;
        for _ in 0..TRIES {
            let mut closed = frame.slot.changing.lock();
            let mut done = None;
            let mut work = || done.insert(work()).is_ok();
            match frame.opened() {
                None => {
                    if work() && closed.left.is_some() {
                        closed.left = self.stamp(frame.ino).ok();
                    }
                }
                Some(open) if open.view.relocate(&location, &mut work).is_ok() => {}
                Some(_) if frame.writers.load(Relaxed) > 0 => return Err(ViewError::InUse),
                Some(_) => {}
            }
            if let Some(done) = done {
                return done;
            }
            drop(closed);
            // Its store cannot go along.
            self.quiesce(frame, invalidations)?;
        }
        Err(ViewError::InUse)
    }

    /// Closes a frame to which everything is committed, and keeps it closed while the guard is held: nobody commits to it meanwhile.
    ///
    /// # Errors
    /// [`ViewError::InUse`] if somebody writes to it, or opens it again and again; what cannot be committed.
    pub(super) fn keep_closed<'a>(
        &self,
        frame: &'a Arc<TreeFrame>,
        invalidations: &mut Invalidations,
    ) -> Result<MutexGuard<'a, Closed>> {
        for _ in 0..TRIES {
            self.quiesce(frame, invalidations)?;
            let closed = frame.slot.changing.lock();
            if frame.opened().is_none() {
                return Ok(closed);
            }
        }
        Err(ViewError::InUse)
    }

    /// Closes a frame whose name something else is about to get, and keeps it closed while the guard is held.
    pub(super) fn closed_for_good<'a>(
        &self,
        frame: &'a Arc<TreeFrame>,
        invalidations: &mut Invalidations,
    ) -> MutexGuard<'a, Closed> {
        loop {
            if self.quiesce(frame, invalidations).is_err() {
                self.drop_frame(frame);
            }
            let closed = frame.slot.changing.lock();
            if frame.opened().is_none() {
                return closed;
            }
        }
    }

    /// A directory in which no frame was made yet is an ordinary one from now on, so that it can be moved. Answers whether it is.
    pub(super) fn unbegin(&self, frame: &Arc<TreeFrame>) -> Result<bool> {
        let Some(open) = frame.opened().filter(|open| !open.view.is_made()) else { return Ok(false) };
        if !self.is_empty(frame, &open) {
            return Err(ViewError::InUse);
        }
        drop(open);
        self.becomes_directory(frame)?;
        Ok(true)
    }

    /// Whether a frame loses its suffix by a new name, and with it, what makes b2fuse show it in the other layout.
    pub(super) fn loses_suffix(&self, frame: &TreeFrame, found: &Found, from: &OsStr, to: &OsStr) -> bool {
        let is_converted = found.stat.is_dir() != (frame.shown == Kind::Directory);
        is_converted && self.rules.is_name(from) && !self.rules.is_name(to)
    }

    /// Whether a frame that is shown as a directory gets a suffix by a new name with which it would be shown as a file the next time.
    pub(super) fn gains_suffix(&self, frame: &TreeFrame, found: &Found, from: &OsStr, to: At<'_>) -> bool {
        let is_kept = frame.shown == Kind::Directory && found.stat.is_dir() && !self.rules.is_name(from);
        let is_idle = frame.writers.load(Relaxed) == 0;
        // Where programs take turns the lock file is in the directory, and the count in it goes with nothing else.
        is_kept
            && is_idle
            && !self.rules.locking
            && self.rules.is_name(to.name)
            && self.rules.shown(frame.stored, self.is_in_store(to.parent)) == Kind::File
            && self.is_chosen(to.parent, to.name)
    }

    /// Stores a frame under a name with which it is shown as what it is shown as, and removes it where it was: without a suffix in the layout
    /// in which it is shown, and with one in the other. It can be opened while
    /// it is copied; what is committed to it meanwhile is copied anew.
    pub(super) fn store_as_shown(
        &self,
        frame: &Arc<TreeFrame>,
        from: At<'_>,
        (to, replaced): (At<'_>, Option<&Found>),
        layout: Layout,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        for _ in 0..TRIES {
            self.quiesce(frame, invalidations)?;
            let times = self.getattr_now(frame.ino)?.meta;
            self.quiesce(frame, invalidations)?;
            let (_, name, found) = self.found(frame.ino)?;
            if name != *from.name {
                return Err(ViewError::Gone);
            }
            if found.stat.is_dir() {
                check_parts(from.dir, from.name)?;
            }
            let before = self.stamp(frame.ino)?;
            let copy = FrameCopy::of(&self.location(from.parent, from.dir, from.name)?)?;
            let like = like_copied(&copy, &found)?;
            let new = NewFrame { like: Some(like), replaced: replaced.map(|found| found.stat), ..NewFrame::default() };
            let staged = self.stage(&copy, &self.location(to.parent, to.dir, to.name)?, layout, new)?;
            // From here on nobody commits to it, neither by this mount nor by another.
            let closed = self.keep_closed(frame, invalidations)?;
            let _turn = self.hold_unlocked(frame)?;
            let _alone = beneath::lock_alone(from.dir, from.name).ok_or(ViewError::InUse)?;
            if copy.is_changed()? || self.stamp(frame.ino)? != before {
                continue;
            }
            // Others may have put something into it meanwhile.
            if found.stat.is_dir() {
                check_parts(from.dir, from.name)?;
            }
            let now = staged.commit()?.close()?;
            let removed = self.becomes_as_shown(frame, (from, &found), to, (&now, times));
            drop(closed);
            return removed;
        }
        Err(ViewError::InUse)
    }

    /// A frame has been stored as what it is shown as, and goes where it was.
    fn becomes_as_shown(
        &self,
        frame: &Arc<TreeFrame>,
        (from, found): (At<'_>, &Found),
        to: At<'_>,
        (now, times): (&Found, Meta),
    ) -> Result<()> {
        if frame.shown == Kind::File
            && let Ok(held) = beneath::hold(to.dir, to.name)
            && beneath::look_at(held.as_fd()).is_ok_and(|found| found.is(now))
        {
            let _ = beneath::set_times(held.as_fd(), Some(times.atime), Some(times.mtime));
        }
        let removed = match self.remove_whole(from.dir, from.name, found) {
            // Others have put something else there, which stays.
            Err(ViewError::Gone | ViewError::NotFound) => Ok(()),
            removed => removed,
        };
        let layout = Self::layout_of(now);
        let mut table = self.table.lock();
        table.becomes_own(frame.ino, now);
        if let Some(node) = table.get_mut(frame.ino) {
            node.shown = match frame.shown {
                Kind::Directory => ShownAs::Frame(TreeFrame::new(frame.ino, Stored::Frame(layout), Kind::Directory)),
                _ => ShownAs::Plain,
            };
        }
        drop(table);
        // Then, so that an open that is not among the handles yet sees what the node is.
        if frame.shown == Kind::File {
            self.move_handles_back(frame, to, now);
        }
        removed
    }
}
