//! Names that change. A frame moves as one thing; in place of another it comes in one step, by an exchange of the two, after which the
//! old one is removed under the name that the new one had.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};

use log::warn;

use super::removing::check_parts;
use super::table::Shown;
use super::{Tree, hidden, rules};
use crate::format::Layout;
use crate::store::local::beneath::{self, Onto};
use crate::view::{Ino, Inval, Invals, Kind, RenameMode, Result, ViewError};

impl Tree {
    pub(super) fn rename_passed(
        &self,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        mode: RenameMode,
        invals: &mut Invals,
    ) -> Result<()> {
        self.check_writable()?;
        if hidden::is_ours(from.1) {
            return Err(ViewError::NotFound);
        }
        self.check_new(to.0, to.1)?;
        let _alone = (self.rules.is_name(from.1) || self.rules.is_name(to.1)).then(|| self.adopting.write());
        let (from_dir, to_dir) = (self.dir(from.0)?, self.dir(to.0)?);
        let (below_from, below_to) = ((from_dir.as_fd(), from.1), (to_dir.as_fd(), to.1));
        let source = beneath::look(below_from.0, from.1)?;
        let target = beneath::look(below_to.0, to.1).ok();
        let (ino, other) = {
            let table = self.table.lock();
            (table.find(&source), target.as_ref().and_then(|target| table.find(target)))
        };
        let ino = ino.or_else(|| self.is_now(from.0, from.1, &source));
        let other = other.or_else(|| target.as_ref().and_then(|target| self.is_now(to.0, to.1, target)));
        if ino.is_some() && ino == other && mode != RenameMode::NoReplace {
            // Two names of one file: nothing is done, as natively.
            return Ok(beneath::rename(below_from, below_to, Onto::Anything)?);
        }
        let (frame, replaced) = (self.frame_of(ino), self.frame_of(other));
        if mode == RenameMode::NoReplace && target.is_some() {
            return Err(ViewError::Exists);
        }
        if let Some(frame) = &frame {
            if !self.rules.is_name(to.1) && !source.stat.is_dir() && frame.shown == Kind::Directory {
                return Err(ViewError::CrossDevice);
            }
            self.quiesce(frame, invals)?;
        }
        if let (Some(replaced), RenameMode::Exchange) = (&replaced, mode) {
            if !self.rules.is_name(from.1) && replaced.shown == Kind::Directory {
                return Err(ViewError::CrossDevice);
            }
            self.quiesce(replaced, invals)?;
        }
        if mode == RenameMode::Exchange {
            beneath::rename(below_from, below_to, Onto::Exchange)?;
            self.has_moved(ino, from, to);
            self.has_moved(other, to, from);
            return Ok(());
        }
        // A file that gets a frame's name, and is one.
        if let (None, Some(ino), false) = (&frame, ino, source.stat.is_dir())
            && source.stat.is_file()
            && source.stat.links == 1
            && self.rules.is_name(to.1)
            && !self.is_written(ino)
            && rules::is_cframe(below_from.0, from.1, source.stat.len)
            && replaced.as_ref().is_none_or(|replaced| replaced.shown == Kind::File)
        {
            let layout = target.as_ref().filter(|_| replaced.is_some()).map(Self::layout_of);
            if self.wanted(to.0, to.1, layout) == Some(Layout::Sparse) {
                if let Some(replaced) = &replaced
                    && self.quiesce(replaced, invals).is_err()
                {
                    self.drop_frame(replaced);
                }
                if target.as_ref().is_some_and(|target| target.stat.is_dir()) {
                    check_parts(below_to.0, to.1)?;
                }
                self.adopt(ino, (from.0, from.1, below_from.0, &source), (to.0, to.1, below_to.0), target.as_ref())?;
                beneath::remove(below_from.0, from.1, false)?;
                self.unname(other, to);
                self.has_moved(Some(ino), from, to);
                invals.push(Inval::Attr(ino));
                return Ok(());
            }
        }
        // A directory and a file change places, and so do two directories that are not empty.
        let by_frames = frame.is_some() || replaced.is_some();
        let mixed = target.as_ref().filter(|target| by_frames && (target.stat.is_dir() || source.stat.is_dir()));
        let mixed = mixed.map(|target| target.stat.is_dir());
        if let (Some(replaced), Some(target)) = (&replaced, &target) {
            if replaced.shown == Kind::Directory && !self.enter_frame(replaced)?.view.is_empty() {
                return Err(ViewError::NotEmpty);
            }
            if target.stat.is_dir() && replaced.opened().is_none_or(|open| open.view.is_made()) {
                check_parts(below_to.0, to.1)?;
            }
            // From here on it is not followed: that its name is gone is our own doing.
            self.frames.remove(replaced);
        }
        let moved = self.rename_below(below_from, below_to, mixed, mode);
        if let (Some(replaced), Some(target)) = (&replaced, &target) {
            if moved.is_err() && replaced.opened().is_some() {
                self.frames.add(replaced);
            }
            if moved.is_ok() {
                self.drop_frame(replaced);
                self.remember(to.0, to.1, Self::layout_of(target));
            }
        }
        moved?;
        self.unname(other, to);
        self.has_moved(ino, from, to);
        if let Some(ino) = ino.filter(|_| source.stat.is_file() && source.stat.links == 1) {
            self.named_anew(ino, to, &source);
        }
        Ok(())
    }

    /// Renames below. With `mixed` the two change places, and what was replaced, a directory or not, goes afterwards.
    fn rename_below(
        &self,
        from: (BorrowedFd<'_>, &OsStr),
        to: (BorrowedFd<'_>, &OsStr),
        mixed: Option<bool>,
        mode: RenameMode,
    ) -> Result<()> {
        let Some(is_dir) = mixed else {
            let onto = if mode == RenameMode::NoReplace { Onto::Nothing } else { Onto::Anything };
            return Ok(beneath::rename(from, to, onto)?);
        };
        beneath::rename(from, to, Onto::Exchange).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOSYS) => ViewError::CrossDevice,
            _ => error.into(),
        })?;
        // The new one has its name for good before anything of the old one goes.
        let synced = beneath::sync_dir(to.0).map_err(ViewError::from);
        let removed = synced.and_then(|()| match is_dir {
            true => self.remove_whole(from.0, from.1),
            false => Ok(beneath::remove(from.0, from.1, false)?),
        });
        if let Err(error) = removed {
            warn!("{}: what was replaced is left under the name {}: {error}", self.path.display(), from.1.display());
        }
        Ok(())
    }

    /// Whether somebody has a file open for writing, as far as it is known at all.
    pub(super) fn is_written(&self, ino: Ino) -> bool {
        let Some(open) = self.table.lock().get(ino).map(|node| node.open.clone()) else { return true };
        open.into_iter().any(|handle| self.passed(handle).is_ok_and(|file| file.write))
    }

    /// A file has another name, with which it may be a frame, or not be one any more.
    fn named_anew(&self, ino: Ino, to: (Ino, &OsStr), source: &beneath::Found) {
        match (self.frame_of(Some(ino)), self.rules.is_name(to.1)) {
            (Some(frame), false) if frame.shown == Kind::File && frame.layout == Layout::Contiguous => {
                self.drop_frame(&frame);
                if let Some(node) = self.table.lock().get_mut(ino) {
                    node.shown = Shown::Plain;
                }
            }
            (None, true) if !self.is_written(ino) => {
                let Ok(dir) = self.dir(to.0) else { return };
                if !rules::is_cframe(dir.as_fd(), to.1, source.stat.len) {
                    return;
                }
                match self.wanted(to.0, to.1, None) {
                    // Its last writer has gone meanwhile.
                    Some(Layout::Sparse) => self.store_as_directory(ino, to.0, to.1),
                    _ => self.take_as_frame(ino, to.0),
                }
            }
            _ => {}
        }
    }

    fn unname(&self, ino: Option<Ino>, of: (Ino, &OsStr)) {
        if let Some(ino) = ino {
            self.table.lock().unname(ino, of.0, of.1);
        }
    }

    /// A node has another name; of a frame that is closed, what was below is what is below now.
    fn has_moved(&self, ino: Option<Ino>, from: (Ino, &OsStr), to: (Ino, &OsStr)) {
        let Some(ino) = ino else { return };
        {
            let mut table = self.table.lock();
            table.unname(ino, from.0, from.1);
            table.name(ino, to.0, to.1);
        }
        if let Some(frame) = self.frame_of(Some(ino)) {
            let mut closed = frame.changing.lock();
            if closed.left.is_some() {
                closed.left = self.stamp(ino).ok();
            }
        }
    }
}
