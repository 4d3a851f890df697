//! Names that go. A frame goes in one step: until then it is what was committed last.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::Tree;
use super::frame::TreeFrame;
use super::hidden;
use crate::store::is_part_of_frame;
use crate::store::local::beneath::{self, Found};
use crate::view::{Ino, Invals, Kind, Result, ViewError};

impl Tree {
    pub(super) fn remove(&self, parent: Ino, name: &OsStr, is_dir: bool) -> Result<()> {
        self.check_writable()?;
        if hidden::is_ours(name) {
            return Err(ViewError::NotFound);
        }
        let _settled = self.rules.is_name(name).then(|| self.adopting.read());
        let dir = self.dir(parent)?;
        let dir = dir.as_fd();
        let found = beneath::look(dir, name)?;
        let known = self.table.lock().find(&found);
        let known = known.or_else(|| self.is_now(parent, name, &found));
        let frame = self.frame_of(known);
        if let Some(ino) = known.filter(|_| is_dir && frame.is_none()) {
            // Who has it open goes on to see it: this keeps it open as well, for as long as there is room.
            let _ = self.dir(ino);
        }
        match frame {
            Some(frame) => self.remove_frame(&frame, parent, name, is_dir, dir, &found)?,
            None => self.remove_plain(dir, name, is_dir)?,
        }
        if let Some(ino) = known {
            self.table.lock().unname(ino, parent, name);
        }
        Ok(())
    }

    fn remove_plain(&self, dir: BorrowedFd<'_>, name: &OsStr, is_dir: bool) -> Result<()> {
        match beneath::remove(dir, name, is_dir) {
            Err(error) if is_dir && error.raw_os_error() == Some(libc::ENOTEMPTY) => {
                // What dead mounts have left in it nobody else can remove.
                let inside = beneath::open_dir(dir, name)?;
                let mut left = Vec::new();
                beneath::list(inside.as_fd(), 0, &mut |entry| {
                    left.push(entry.name.to_owned());
                    true
                })?;
                if !left.iter().all(|name| hidden::is_dead(inside.as_fd(), name)) {
                    return Err(ViewError::NotEmpty);
                }
                left.iter().for_each(|name| self.discard(inside.as_fd(), name));
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
        match (frame.shown == Kind::Directory, is_dir) {
            (true, false) => return Err(ViewError::IsDirectory),
            (false, true) => return Err(ViewError::NotDirectory),
            (true, true) if !self.enter_frame(frame)?.view.is_empty() => return Err(ViewError::NotEmpty),
            _ => {}
        }
        let is_made = frame.opened().is_none_or(|open| open.view.is_made());
        if found.stat.is_dir() && is_made {
            check_parts(dir, name)?;
        }
        let is_open = frame.handles.load(Relaxed) > 0 && frame.shown == Kind::File;
        let layout = Self::layout_of(found);
        // From here on it is not followed: that its name is gone is our own doing.
        self.frames.remove(frame);
        let removed = self.remove_below(frame, name, dir, (found.stat.is_dir(), is_made, is_open));
        if removed.is_err() && frame.opened().is_some() {
            self.frames.add(frame);
        }
        removed?;
        if is_open {
            frame.removed.store(true, SeqCst);
            // The last close may have come meanwhile.
            self.end_removed(frame);
        } else {
            self.drop_frame(frame);
        }
        self.remember(parent, name, layout);
        Ok(())
    }

    fn remove_below(
        &self,
        frame: &Arc<TreeFrame>,
        name: &OsStr,
        dir: BorrowedFd<'_>,
        (is_dir, is_made, is_open): (bool, bool, bool),
    ) -> Result<()> {
        match (is_dir, is_made) {
            (false, _) => beneath::remove(dir, name, false)?,
            // No frame has come into being.
            (true, false) => {
                self.drop_frame(frame);
                beneath::remove(dir, name, true)?;
            }
            (true, true) if is_open => {
                // Who has it open goes on reading.
                let ours = self.name_of_ours();
                beneath::rename((dir, name), (dir, &ours), beneath::Onto::Nothing)?;
                beneath::sync_dir(dir)?;
                *frame.rest.lock() = Some((dir.try_clone_to_owned()?, ours));
            }
            (true, true) => self.remove_whole(dir, name)?,
        }
        Ok(())
    }

    /// Ends a frame without another word: whoever has a file of it open finds it gone.
    pub(super) fn drop_frame(&self, frame: &Arc<TreeFrame>) {
        let _changing = frame.changing.lock();
        if let Some(open) = frame.detach() {
            open.view.drop_all();
        }
        self.frames.remove(frame);
        self.renumber(frame);
        *frame.sized.lock() = None;
    }

    /// The last handle of a removed frame is gone.
    pub(super) fn end_removed(&self, frame: &Arc<TreeFrame>) {
        if frame.removed.load(SeqCst) && frame.handles.load(SeqCst) == 0 {
            self.drop_frame(frame);
            if let Some((dir, name)) = frame.rest.lock().take() {
                self.discard(dir.as_fd(), &name);
            }
        }
    }

    /// A frame that is about to get another name: everything is committed, and it is closed.
    pub(super) fn quiesce(&self, frame: &Arc<TreeFrame>, invals: &mut Invals) -> Result<()> {
        if frame.writers.load(Relaxed) > 0 {
            return Err(ViewError::InUse);
        }
        if frame.opened().is_none() {
            return Ok(());
        }
        self.fsync_inside(frame, crate::view::ROOT, invals)?;
        if !self.close_frame(frame) {
            let _changing = frame.changing.lock();
            if let Some(open) = frame.detach() {
                open.view.end()?;
            }
            self.frames.remove(frame);
            self.renumber(frame);
        }
        Ok(())
    }

    /// The frame that a node stands for.
    pub(super) fn frame_of(&self, ino: Option<Ino>) -> Option<Arc<TreeFrame>> {
        self.table.lock().get(ino?)?.frame().cloned()
    }
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
