//! Names that change. A frame moves as one thing; in place of another it comes in one step, by an exchange of the two, after which the
//! old one is removed under the name that the new one had.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use log::warn;

use super::claims::{Claim, Key, With};
use super::frame::{Stored, TreeFrame, is_damage};
use super::making::Empty;
use super::place::At;
use super::removing::{check_dead, check_parts};
use super::table::Shown;
use super::{LOOKS, Tree, forget_name, hidden, rules};
use crate::format::Layout;
use crate::store::local::beneath::{self, Found, Onto};
use crate::view::{Ino, Invalidation, Invalidations, Kind, RenameMode, Result, ViewError};

/// What a name was found to stand for, and the node of that.
type Known<F> = (Option<Ino>, F);

impl Tree {
    /// What two names stand for, one of which is to become the other, or to change with it. If one may be a frame, or is to become one, they
    /// stand for that as long as the claim is held.
    fn claim_names(
        &self,
        (from, from_dir): ((Ino, &OsStr), BorrowedFd<'_>),
        (to, to_dir): ((Ino, &OsStr), BorrowedFd<'_>),
    ) -> Result<(Known<Found>, Known<Option<Found>>, Option<Claim<'_>>)> {
        let known = |parent: Ino, name: &OsStr, found: &Found| {
            let known = self.table.lock().find(found);
            known.or_else(|| self.is_now(parent, name, found))
        };
        let look = || {
            let (source, target) = (beneath::look(from_dir, from.1)?, beneath::look(to_dir, to.1).ok());
            let ino = known(from.0, from.1, &source);
            let other = target.as_ref().and_then(|target| known(to.0, to.1, target));
            Ok::<_, ViewError>(((ino, source), (other, target)))
        };
        for _ in 0..LOOKS {
            let (source, target) = look()?;
            if !self.may_be_frame(from.1, Some(&source.1)) && !self.may_be_frame(to.1, target.1.as_ref()) {
                return Ok((source, target, None));
            }
            let nodes = [source.0, target.0];
            let mut keys = self.becoming(to.0);
            keys.extend(self.becoming(from.0));
            keys.extend(nodes.iter().flatten().map(|ino| (Key::Node(*ino), With::Nobody)));
            keys.extend([from, to].map(|(parent, name)| (Key::Name(parent, name.to_owned()), With::Nobody)));
            let claim = self.claims.claim(keys);
            // One may have become a frame before, or gone.
            let (source, target) = look()?;
            if [source.0, target.0] == nodes {
                return Ok((source, target, Some(claim)));
            }
        }
        Err(ViewError::Gone)
    }

    pub(super) fn rename_passed(
        &self,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        mode: RenameMode,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        self.check_writable()?;
        if hidden::is_ours(from.1) {
            return Err(ViewError::NotFound);
        }
        self.check_new(to.0, to.1)?;
        if self.is_of_a_lock(from.0, from.1) {
            return Err(ViewError::NotPermitted);
        }
        let (from_dir, to_dir) = (self.dir(from.0)?, self.dir(to.0)?);
        let (below_from, below_to) = ((from_dir.as_fd(), from.1), (to_dir.as_fd(), to.1));
        let ((ino, source), (other, target), _claim) = self.claim_names((from, below_from.0), (to, below_to.0))?;
        self.check_named(ino, from.0, from.1)?;
        if target.is_some() {
            self.check_named(other, to.0, to.1)?;
        }
        if ino.is_some() && ino == other && mode != RenameMode::NoReplace {
            // Two names of one file: nothing is done, as natively.
            return Ok(beneath::rename(below_from, below_to, Onto::Anything)?);
        }
        let (frame, replaced) = (self.frame_of(ino), self.frame_of(other));
        replaced.as_ref().map_or(Ok(()), |replaced| self.check_unlocked(replaced))?;
        let locks = [(&frame, Some(&source)), (&replaced, target.as_ref())]
            .map(|(frame, found)| Some(self.lock_of(frame.as_ref()?, found?)));
        if mode == RenameMode::NoReplace && target.is_some() {
            return Err(ViewError::Exists);
        }
        self.check_rename(frame.as_ref(), to.1, replaced.as_ref(), (target.is_some(), mode))?;
        let at_from = At { parent: from.0, dir: below_from.0, name: from.1 };
        let at_to = At { parent: to.0, dir: below_to.0, name: to.1 };
        let loses = frame.as_ref().is_some_and(|frame| self.loses_suffix(frame, &source, from.1, to.1));
        if mode == RenameMode::Exchange {
            let other_loses = match (&replaced, &target) {
                (Some(replaced), Some(target)) => self.loses_suffix(replaced, target, to.1, from.1),
                _ => false,
            };
            if loses || other_loses {
                return Err(ViewError::CrossDevice);
            }
            self.ends_by_name(frame.as_ref(), to.1, invalidations)?;
            self.ends_by_name(replaced.as_ref(), from.1, invalidations)?;
            let frames = (frame.as_ref(), replaced.as_ref());
            self.exchange((ino, frames.0, at_from), (other, frames.1, at_to), invalidations)?;
            self.locks_move(locks, below_from, below_to, true);
            self.named_anew(ino, to, &source);
            if let Some(target) = &target {
                self.named_anew(other, from, target);
            }
            return Ok(());
        }
        if frame.is_some() && replaced.is_none() && target.as_ref().is_some_and(|target| target.stat.is_dir()) {
            // Below the two may change places, for which it need not be empty.
            check_dead(beneath::open_dir(below_to.0, to.1)?.as_fd())?;
        }
        if let Some(frame) = frame.as_ref().filter(|_| loses) {
            // Tools copy over a frame, and over what is neither a file nor a directory.
            let is_special =
                |found: &Found| !matches!(found.stat.mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK);
            if replaced.is_some() || target.as_ref().is_some_and(is_special) {
                return Err(ViewError::CrossDevice);
            }
            self.store_as_shown(frame, at_from, (at_to, target.as_ref()), invalidations)?;
            self.locks_move(locks, below_from, below_to, false);
            self.lock_in(below_to.0, below_to.1);
            self.unname(other, to);
            self.has_moved(ino, from, to);
            invalidations.push(Invalidation::Data(frame.ino));
            // The kernel goes on knowing a directory as one.
            if frame.shown != Kind::Directory {
                invalidations.push(forget_name(to.0, to.1));
            }
            return Ok(());
        }
        let begins = match &frame {
            Some(frame) => self.unbegin(frame)?,
            None => false,
        };
        let frame = frame.filter(|_| !begins);
        // Who has what is replaced open goes on reading it.
        let kept = replaced.as_ref().filter(|replaced| self.is_being_read(replaced));
        // A file that gets a frame's name, and is one.
        if let (None, Some(ino)) = (&frame, ino)
            && is_single_file(&source)
            && self.rules.is_name(to.1)
            && !self.is_written(ino)
            && rules::is_cframe(below_from.0, from.1, source.stat.len)
            && replaced.as_ref().is_none_or(|replaced| replaced.shown == Kind::File)
        {
            let layout = target.as_ref().filter(|_| replaced.is_some()).map(Self::layout_of);
            if self.wanted(to.0, to.1, layout) == Some(Layout::Sparse) {
                if target.as_ref().is_some_and(|target| target.stat.is_dir()) {
                    check_parts(below_to.0, to.1)?;
                }
                // Nobody opens it meanwhile.
                let changing = replaced.as_ref().map(|replaced| match kept {
                    Some(kept) => kept.changing.lock(),
                    None => self.closed_for_good(replaced, invalidations),
                });
                if let Some(kept) = kept {
                    self.leave_name(kept);
                }
                let adopted = self.adopt(ino, (at_from, &source), at_to, (target.as_ref(), kept));
                if let (Some(kept), Err(_)) = (kept, &adopted) {
                    self.keep_name(kept);
                }
                drop(changing);
                // What somebody has just cut to write it anew is no frame now, and moves as any file does.
                if !is_damage(&adopted) {
                    adopted?;
                    match (&replaced, kept) {
                        (_, Some(kept)) => self.ends_with_last_close(kept),
                        (Some(replaced), None) => self.drop_frame(replaced),
                        (None, None) => {}
                    }
                    match self.remove_file(below_from.0, from.1, &source) {
                        // Others have put something else there, which stays.
                        Err(ViewError::Gone | ViewError::NotFound) => {}
                        removed => removed?,
                    }
                    self.unname(other, to);
                    self.has_moved(Some(ino), from, to);
                    invalidations.push(Invalidation::Attr(ino));
                    return Ok(());
                }
            }
        }
        // A directory and a file change places, and so do two directories that are not empty.
        let by_frames = frame.is_some() || replaced.is_some();
        let mixed = target.as_ref().filter(|target| by_frames && (target.stat.is_dir() || source.stat.is_dir()));
        if let (Some(replaced), Some(target)) = (&replaced, &target) {
            if replaced.shown == Kind::Directory && !self.is_empty(replaced, &*self.enter_frame(replaced)?) {
                return Err(ViewError::NotEmpty);
            }
            if target.stat.is_dir() && replaced.opened().is_none_or(|open| open.view.is_made()) {
                check_parts(below_to.0, to.1)?;
            }
        }
        let mixed = mixed.map(|target| (target, replaced.is_some()));
        self.ends_by_name(frame.as_ref(), to.1, invalidations)?;
        // Nobody opens it meanwhile.
        let changing = replaced.as_ref().map(|replaced| replaced.changing.lock());
        if let Some(replaced) = &replaced {
            self.leave_name(replaced);
        }
        let moved = self.carry(frame.as_ref(), at_to, invalidations, &mut || {
            if replaced.is_some() {
                self.sync_comer(frame.as_ref(), at_from)?;
            }
            self.rename_below(at_from, at_to, mixed, mode, kept)?;
            self.unname(other, to);
            self.has_moved(ino, from, to);
            Ok(())
        });
        if let (Some(replaced), Err(_)) = (&replaced, &moved) {
            self.keep_name(replaced);
        }
        drop(changing);
        if let (Some(replaced), Some(target)) = (&replaced, &target) {
            match &moved {
                Ok(()) if kept.is_some() => self.ends_with_last_close(replaced),
                Ok(()) => self.drop_frame(replaced),
                Err(_) => {}
            }
            if moved.is_ok() {
                self.remember(to.0, to.1, Self::layout_of(target));
            }
        }
        moved?;
        self.locks_move(locks, below_from, below_to, false);
        if begins {
            self.begin(to.0, to.1, below_to.0, &Empty::Seen(source));
        }
        self.named_anew(ino, to, &source);
        Ok(())
    }

    /// Closes a file that is stored as it is shown, where its new name makes it an ordinary one. Nobody can be writing to it.
    fn ends_by_name(&self, frame: Option<&Arc<TreeFrame>>, to: &OsStr, invalidations: &mut Invalidations) -> Result<()> {
        match frame.filter(|frame| is_file(frame) && !self.rules.is_name(to)) {
            Some(frame) => self.quiesce(frame, invalidations),
            None => Ok(()),
        }
    }

    /// Two names change what they stand for.
    fn exchange(
        &self,
        one: (Option<Ino>, Option<&Arc<TreeFrame>>, At<'_>),
        other: (Option<Ino>, Option<&Arc<TreeFrame>>, At<'_>),
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        for frame in [one.1, other.1].into_iter().flatten() {
            self.unbegin(frame)?;
        }
        let still = |frame: Option<&Arc<TreeFrame>>| frame.and_then(|frame| self.frame_of(Some(frame.ino)));
        let (first, second) = (still(one.1), still(other.1));
        let (one_name, other_name) = (one.2.named(), other.2.named());
        let mut told = Invalidations::new();
        let done = self.carry(first.as_ref(), other.2, invalidations, &mut || {
            self.carry(second.as_ref(), one.2, &mut told, &mut || {
                if second.is_some() {
                    self.sync_comer(first.as_ref(), one.2)?;
                }
                if first.is_some() {
                    self.sync_comer(second.as_ref(), other.2)?;
                }
                beneath::rename(one.2.below(), other.2.below(), Onto::Exchange)?;
                self.has_moved(one.0, one_name, other_name);
                self.has_moved(other.0, other_name, one_name);
                Ok(())
            })
        });
        invalidations.append(&mut told);
        done
    }

    /// Has on disk what takes the place of a frame, before it does: a crash could leave neither. Of a frame that is open
    /// [`carry`](Self::carry) has seen to it, unless somebody is writing.
    fn sync_comer(&self, frame: Option<&Arc<TreeFrame>>, at: At<'_>) -> Result<()> {
        let is_idle = |frame: &&Arc<TreeFrame>| frame.writers.load(Relaxed) == 0;
        let open = frame.filter(is_idle).and_then(|frame| frame.opened());
        match open.is_some_and(|open| !open.is_busy) {
            true => Ok(()),
            false => Ok(beneath::sync_whole(at.dir, at.name)?),
        }
    }

    /// Renames below. With `mixed`, what is to be replaced and whether it is a frame, the two change places, and it goes afterwards.
    pub(super) fn rename_below(
        &self,
        from: At<'_>,
        to: At<'_>,
        mixed: Option<(&Found, bool)>,
        mode: RenameMode,
        kept: Option<&Arc<TreeFrame>>,
    ) -> Result<()> {
        let Some((replaced, is_frame)) = mixed else {
            let onto = if mode == RenameMode::NoReplace { Onto::Nothing } else { Onto::Anything };
            return Ok(beneath::rename(from.below(), to.below(), onto)?);
        };
        beneath::rename(from.below(), to.below(), Onto::Exchange).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOSYS) => ViewError::CrossDevice,
            _ => error.into(),
        })?;
        // The new one has its name for good before anything of the old one goes.
        let synced = beneath::sync_dir(to.dir).map_err(ViewError::from);
        let removed = synced.and_then(|()| match (replaced.stat.is_dir() && is_frame, kept) {
            (true, Some(kept)) => self.put_aside(kept, from.dir, from.name, replaced),
            (true, None) => self.remove_whole(from.dir, from.name, replaced),
            // In a directory that is no frame there may be something by now, which stays.
            (false, _) if replaced.stat.is_dir() => self.remove_plain(from.dir, from.name, true),
            (false, _) => self.remove_file(from.dir, from.name, replaced),
        });
        if let Err(error) = removed {
            warn!("{}: what was replaced is left under the name {}: {error}", self.path.display(), from.name.display());
        }
        Ok(())
    }

    /// Whether somebody has a file open for writing, as far as it is known at all.
    pub(super) fn is_written(&self, ino: Ino) -> bool {
        let Some(open) = self.table.lock().get(ino).map(|node| node.open.clone()) else { return true };
        open.into_iter().any(|handle| self.passed(handle).is_ok_and(|file| file.write))
    }

    /// A file has another name, with which it may be a frame, or not be one any more.
    fn named_anew(&self, ino: Option<Ino>, to: (Ino, &OsStr), source: &Found) {
        let Some(ino) = ino.filter(|_| is_single_file(source)) else { return };
        match (self.frame_of(Some(ino)), self.rules.is_name(to.1)) {
            (Some(frame), false) if is_file(&frame) => {
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

    /// A node has another name.
    fn has_moved(&self, ino: Option<Ino>, from: (Ino, &OsStr), to: (Ino, &OsStr)) {
        let Some(ino) = ino else { return };
        let mut table = self.table.lock();
        table.unname(ino, from.0, from.1);
        table.name(ino, to.0, to.1);
    }
}

/// Whether what was found is a file without another name.
fn is_single_file(found: &Found) -> bool {
    found.stat.is_file() && found.stat.links == 1
}

/// Whether a frame is a file, here and below.
fn is_file(frame: &TreeFrame) -> bool {
    frame.shown == Kind::File && frame.stored == Stored::Frame(Layout::Contiguous)
}
