//! Removes names. A frame is removed in one step; until then DIR has its last committed state.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::claims::{Claim, Key, With};
use super::frame::{Removed, TreeFrame};
use super::place::At;
use super::{LOOKS, Tree, hidden};
use crate::store::is_part_of_frame;
use crate::store::local::beneath::{self, Found, Onto};
use crate::view::{Ino, Invalidations, Kind, Result, ViewError};

impl Tree {
    pub(super) fn remove(&self, parent: Ino, name: &OsStr, is_dir: bool) -> Result<()> {
        self.check_writable()?;
        if hidden::is_ours(name) {
            return Err(ViewError::NotFound);
        }
        if !is_dir && self.remove_lock_beside(parent, name)? {
            return Ok(());
        }
        let dir = self.dir(parent)?;
        let dir = dir.as_fd();
        let (known, found, _claim) = self.claim_removed(parent, name, dir)?;
        self.check_named(known, parent, name)?;
        let frame = self.frame_of(known);
        if let Some(ino) = known.filter(|_| is_dir && frame.is_none()) {
            // Who has it open goes on to see it: this keeps it open as well, for as long as there is room.
            let _ = self.dir(ino);
        }
        self.keeps_store((parent, name));
        match frame {
            Some(frame) => self.remove_frame(&frame, parent, name, is_dir, dir, &found)?,
            None => self.remove_plain(dir, name, is_dir)?,
        }
        if let Some(ino) = known {
            self.table.lock().unname(ino, parent, name);
        }
        if is_dir {
            self.forget_layouts(found.id);
        }
        self.names_change(parent);
        self.leaves_mark((parent, name));
        Ok(())
    }

    /// What a name stands for that is to be removed: its node, and what it is below. If it may be a frame, it stays that while the claim is
    /// held.
    fn claim_removed(&self, parent: Ino, name: &OsStr, dir: BorrowedFd<'_>) -> Result<(Option<Ino>, Found, Option<Claim<'_>>)> {
        for _ in 0..LOOKS {
            let (ino, found) = self.look_known(At { parent, dir, name })?;
            if !self.may_be_frame(name, Some(&found)) {
                return Ok((ino, found, None));
            }
            let node = ino.map(|ino| (Key::Node(ino), With::Nobody));
            let claim = self.claims.claim(node.into_iter().chain([(Key::Name(parent, name.to_owned()), With::Others)]).collect());
            // It may have become a frame before, or have gone.
            let (now, found) = self.look_known(At { parent, dir, name })?;
            if now == ino {
                return Ok((ino, found, Some(claim)));
            }
        }
        Err(ViewError::Gone)
    }

    /// That the kernel knows a file by a name: it has let the caller remove or replace that file, and no other that has the name since. It
    /// looks again if not.
    pub(super) fn check_named(&self, known: Option<Ino>, parent: Ino, name: &OsStr) -> Result<()> {
        let table = self.table.lock();
        let node = known.and_then(|ino| table.get(ino)).filter(|node| node.has_name(parent, name));
        if node.is_some() { Ok(()) } else { Err(ViewError::Gone) }
    }

    pub(super) fn remove_plain(&self, dir: BorrowedFd<'_>, name: &OsStr, is_dir: bool) -> Result<()> {
        match beneath::remove(dir, name, is_dir) {
            Err(error) if is_dir && error.raw_os_error() == Some(libc::ENOTEMPTY) => {
                let inside = beneath::open_dir(dir, name)?;
                self.lift_removed(inside.as_fd(), dir)?;
                let left = check_dead(inside.as_fd())?;
                self.sweep(inside.as_fd(), &left, true);
                Ok(beneath::remove(dir, name, true)?)
            }
            removed => Ok(removed?),
        }
    }

    fn remove_frame(
        &self,
        frame: &Arc<TreeFrame>,
        parent: Ino,
        name: &OsStr,
        is_dir: bool,
        dir: BorrowedFd<'_>,
        found: &Found,
    ) -> Result<()> {
        frame.check_writable()?;
        match (frame.shown == Kind::Directory, is_dir) {
            (true, false) => return Err(ViewError::IsDirectory),
            (false, true) => return Err(ViewError::NotDirectory),
            (true, true) if !self.is_empty(frame, &*self.enter_frame(frame)?) => return Err(ViewError::NotEmpty),
            _ => {}
        }
        self.check_unlocked(frame)?;
        let is_made = frame.opened().is_none_or(|open| open.view.is_made());
        let lock = self.lock_of(frame, found);
        if found.stat.is_dir() && is_made {
            check_parts(dir, name)?;
        }
        let _leaving = frame.leaves();
        let is_open = self.is_being_read(frame);
        let layout = Self::layout_of(found);
        self.lock_stays(lock, dir, name);
        let removed = {
            // Nobody opens it meanwhile.
            let _changing = frame.slot.changing.lock();
            self.leave_name(frame);
            let removed = self.remove_below(frame, name, dir, found, (is_made, is_open));
            if removed.is_err() {
                self.keep_name(frame);
            }
            removed
        };
        if removed.is_err() {
            self.lock_in(dir, name);
        }
        removed?;
        if is_open {
            self.ends_with_last_close(frame);
        } else {
            self.drop_frame(frame);
        }
        self.lock_goes(lock, dir, name);
        self.remember(parent, name, frame.shown, layout);
        Ok(())
    }

    fn remove_below(
        &self,
        frame: &Arc<TreeFrame>,
        name: &OsStr,
        dir: BorrowedFd<'_>,
        found: &Found,
        (is_made, is_open): (bool, bool),
    ) -> Result<()> {
        match (found.stat.is_dir(), is_made) {
            (is_dir, false) | (is_dir @ false, _) => beneath::remove(dir, name, is_dir)?,
            (true, true) if is_open => {
                self.put_aside(frame, dir, name, found)?;
            }
            (true, true) => self.remove_whole(dir, name, found)?,
        }
        #[cfg(test)]
        self.follow_slowly();
        Ok(())
    }

    /// Whether somebody has a frame open that is shown as a file, and can go on reading it when it has no name any more: it is open itself.
    /// The frame is [leaving](TreeFrame::leaves), so that what is opened later waits.
    pub(super) fn is_being_read(&self, frame: &Arc<TreeFrame>) -> bool {
        frame.handles.load(SeqCst) > 0 && frame.shown == Kind::File && self.enter_frame(frame).is_ok()
    }

    /// Takes the directory of a frame, which was `seen`, its name, in one step. Who has the frame open goes on reading, and the last close removes the rest.
    pub(super) fn put_aside(&self, frame: &TreeFrame, dir: BorrowedFd<'_>, name: &OsStr, seen: &Found) -> Result<()> {
        let held = dir.try_clone_to_owned()?;
        // A frame that is only read has no lock of its own.
        let lock = beneath::lock_shared(dir, name);
        let name = self.hide(dir, name, seen)?;
        *frame.rest.lock() = Some(Removed { dir: held, name, found: *seen, _lock: lock });
        Ok(())
    }

    /// Moves removed frames that clients still read out of a directory, to the one `around` it: they keep no client from removing the directory.
    fn lift_removed(&self, inside: BorrowedFd<'_>, around: BorrowedFd<'_>) -> Result<()> {
        let open: Vec<_> = self.handles.read().values().filter_map(|open| open.frame().cloned()).collect();
        let seen = beneath::look_at(inside)?;
        for frame in open.iter().filter(|frame| frame.removed.load(SeqCst)) {
            let kept = frame.rest.lock().as_ref().map(|rest| (rest.dir.try_clone(), rest.name.clone(), rest.found));
            let Some((dir, name, found)) = kept else { continue };
            if !beneath::look_at(dir?.as_fd())?.is(&seen) {
                continue;
            }
            let (dir, ours) = (around.try_clone_to_owned()?, self.name_of_ours());
            match beneath::rename((inside, &name), (around, &ours), Onto::Nothing) {
                // Its last close has just removed it.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                renamed => renamed?,
            }
            let is_needed = match &mut *frame.rest.lock() {
                Some(rest) => {
                    (rest.dir, rest.name) = (dir, ours.clone());
                    true
                }
                None => false,
            };
            if !is_needed {
                self.discard(around, &ours, &found);
            }
        }
        Ok(())
    }

    /// A frame whose name is gone ends when nobody has it open any more, which may be now.
    pub(super) fn ends_with_last_close(&self, frame: &Arc<TreeFrame>) {
        frame.removed.store(true, SeqCst);
        self.end_removed(frame);
    }

    /// Ends a frame without another word: whoever has a file of it open finds it gone.
    pub(super) fn drop_frame(&self, frame: &Arc<TreeFrame>) {
        let _changing = frame.slot.changing.lock();
        if let Some(open) = frame.slot.detach() {
            // Who is just reading does not look for the name.
            open.view.leave_name(true);
            open.view.drop_all();
        }
        self.unlist(frame);
        self.regions.renumber(&**frame);
        *frame.sized.lock() = None;
    }

    /// The last handle of a removed frame is gone.
    pub(super) fn end_removed(&self, frame: &Arc<TreeFrame>) {
        if frame.removed.load(SeqCst) && frame.handles.load(SeqCst) == 0 {
            self.drop_frame(frame);
            let rest = frame.rest.lock().take();
            if let Some(rest) = rest {
                self.discard(rest.dir.as_fd(), &rest.name, &rest.found);
            }
        }
    }

    /// A frame that is about to get another name: everything is committed, and it is closed.
    pub(super) fn quiesce(&self, frame: &Arc<TreeFrame>, invalidations: &mut Invalidations) -> Result<()> {
        self.check_unlocked(frame)?;
        if frame.writers.load(Relaxed) > 0 {
            return Err(ViewError::InUse);
        }
        if frame.opened().is_none() {
            return Ok(());
        }
        self.fsync_inside(frame, crate::view::ROOT, invalidations)?;
        // Its own commit may have put another file in place of the one that its node is known by.
        let _ = self.found(frame.ino);
        if !self.close_frame(frame) {
            let _changing = frame.slot.changing.lock();
            if let Some(open) = frame.slot.detach() {
                open.view.end()?;
            }
            self.unlist(frame);
            self.regions.renumber(&**frame);
        }
        Ok(())
    }

    /// The frame that a node stands for.
    pub(super) fn frame_of(&self, ino: Option<Ino>) -> Option<Arc<TreeFrame>> {
        self.table.lock().get(ino?)?.frame().cloned()
    }
}

/// That a directory holds nothing but what dead mounts have left in it, which nobody else can remove. Answers that.
pub fn check_dead(dir: BorrowedFd<'_>) -> Result<Vec<(OsString, Found)>> {
    let (mut left, mut is_other) = (Vec::new(), false);
    beneath::list(dir, 0, &mut |entry| {
        match hidden::dead(dir, entry.name) {
            Some(found) => left.push((entry.name.to_owned(), found)),
            None => is_other = true,
        }
        !is_other
    })?;
    if is_other { Err(ViewError::NotEmpty) } else { Ok(left) }
}

/// That the directory of a frame holds nothing that is no part of it, as that would go with it unseen.
pub fn check_parts(dir: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
    let inside = beneath::open_dir(dir, name)?;
    let mut other = false;
    beneath::list(inside.as_fd(), 0, &mut |entry| {
        let is_part = is_part_of_frame(entry.name);
        other |= !is_part;
        is_part
    })?;
    if other { Err(ViewError::NotEmpty) } else { Ok(()) }
}
