//! Names that change. A frame moves as one thing; in place of another it comes in one step, by an exchange of the two, after which the
//! old one is removed under the name that the new one had.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use log::warn;

use super::claims::{Claim, Key, With};
use super::frame::{Stored, TreeFrame, is_damage};
use super::lock_files::LockOf;
use super::making::Empty;
use super::place::At;
use super::removing::{check_dead, check_parts};
use super::table::ShownAs;
use super::{LOOKS, Tree, forget_name, hidden, rules};
use crate::format::Layout;
use crate::store::local::beneath::{self, Found, Onto};
use crate::view::{Ino, Invalidation, Invalidations, Kind, RenameMode, Result, ViewError};

/// What two names were found to stand for, each with the node of that, and the claim that they go on to.
struct Claimed<'a> {
    source: (Option<Ino>, Found),
    target: (Option<Ino>, Option<Found>),
    _claim: Option<Claim<'a>>,
}

impl Tree {
    /// What two names stand for, one of which is to become the other, or to change with it. If one may be a frame, or is to become one, they
    /// stand for that as long as the claim is held.
    fn claim_names(&self, from: At<'_>, to: At<'_>) -> Result<Claimed<'_>> {
        let look = || {
            let (source, target) = (self.look_known(from)?, self.look_known(to).ok());
            Ok::<_, ViewError>((source, (target.and_then(|(ino, _)| ino), target.map(|(_, found)| found))))
        };
        for _ in 0..LOOKS {
            let (source, target) = look()?;
            if !self.may_be_frame(from.name, Some(&source.1)) && !self.may_be_frame(to.name, target.1.as_ref()) {
                return Ok(Claimed { source, target, _claim: None });
            }
            let nodes = [source.0, target.0];
            let mut keys = self.becoming(to.parent);
            keys.extend(self.becoming(from.parent));
            keys.extend(nodes.iter().flatten().map(|ino| (Key::Node(*ino), With::Nobody)));
            keys.extend([from, to].map(|at| (Key::Name(at.parent, at.name.to_owned()), With::Nobody)));
            let claim = self.claims.claim(keys);
            // One may have become a frame before, or gone.
            let (source, target) = look()?;
            if [source.0, target.0] == nodes {
                return Ok(Claimed { source, target, _claim: Some(claim) });
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
        let from = At { parent: from.0, dir: from_dir.as_fd(), name: from.1 };
        let to = At { parent: to.0, dir: to_dir.as_fd(), name: to.1 };
        let Claimed { source: (ino, source), target: (other, target), _claim } = self.claim_names(from, to)?;
        self.check_named(ino, from.parent, from.name)?;
        if target.is_some() {
            self.check_named(other, to.parent, to.name)?;
        }
        if ino.is_some() && ino == other && mode != RenameMode::NoReplace {
            // Two names of one file: nothing is done, as natively.
            return Ok(beneath::rename(from.below(), to.below(), Onto::Anything)?);
        }
        let (frame, replaced) = (self.frame_of(ino), self.frame_of(other));
        let _coming = ino.map(|ino| self.moves_to(ino, to));
        let _other_coming = other.filter(|_| mode == RenameMode::Exchange).map(|ino| self.moves_to(ino, from));
        Rename { tree: self, from, to, mode, ino, source, frame, other, target, replaced }.run(invalidations)
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
                self.rename_at(one.2, other.2, Onto::Exchange)?;
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
        match open.is_some_and(|open| !open.part.is_busy) {
            true => Ok(()),
            false => Ok(beneath::sync_whole(at.dir, at.name)?),
        }
    }

    /// Renames below. The nodes are to follow.
    fn rename_at(&self, from: At<'_>, to: At<'_>, onto: Onto) -> io::Result<()> {
        beneath::rename(from.below(), to.below(), onto)?;
        #[cfg(test)]
        self.follow_slowly();
        Ok(())
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
            return Ok(self.rename_at(from, to, onto)?);
        };
        self.rename_at(from, to, Onto::Exchange).map_err(|error| match error.raw_os_error() {
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

    /// Whether a client may still write to a file, as far as it is known at all: one that it has closed ends a moment later.
    pub(super) fn is_written(&self, ino: Ino) -> bool {
        let Some(open) = self.table.lock().get(ino).map(|node| node.open.clone()) else { return true };
        open.into_iter().any(|handle| self.passed(handle).is_ok_and(|file| file.is_writing()))
    }

    /// Whether no frame can be made of a file before one of its handles ends: a client writes to it, or the kernel has it by itself.
    pub(super) fn is_kept_file(&self, ino: Ino) -> bool {
        let Some(open) = self.table.lock().get(ino).map(|node| node.open.clone()) else { return true };
        open.into_iter().any(|handle| self.passed(handle).is_ok_and(|file| file.keeps_file()))
    }

    /// A file has another name, with which it may be a frame, or not be one any more.
    fn named_anew(&self, ino: Option<Ino>, to: (Ino, &OsStr), source: &Found, invalidations: &mut Invalidations) {
        let Some(ino) = ino.filter(|_| is_single_file(source)) else { return };
        let Ok(dir) = self.dir(to.0) else { return };
        let at = At { parent: to.0, dir: dir.as_fd(), name: to.1 };
        match (self.frame_of(Some(ino)), self.rules.is_name(to.1)) {
            (Some(frame), false) if is_file(&frame) => {
                // First, so that an open that is not among the handles yet sees it.
                if let Some(node) = self.table.lock().get_mut(ino) {
                    node.shown = ShownAs::Plain;
                }
                self.move_handles_back(&frame, at, source);
                self.drop_frame(&frame);
                // The frame shows no holes, which the file has.
                invalidations.push(Invalidation::Data(ino));
            }
            (None, true) if !self.is_kept_file(ino) => {
                if let Ok(found) = beneath::look(at.dir, at.name)
                    && found.is(source)
                    && rules::is_cframe(at.dir, at.name, found.stat.len)
                {
                    self.becomes_frame(ino, at, &found, invalidations);
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

    /// A node is about to get a name. It is found under either until this is dropped.
    fn moves_to<'a>(&'a self, ino: Ino, to: At<'a>) -> Moving<'a> {
        self.table.lock().begin_move(ino, to.parent, to.name);
        Moving { tree: self, ino, to }
    }

    /// A node has another name.
    fn has_moved(&self, ino: Option<Ino>, from: (Ino, &OsStr), to: (Ino, &OsStr)) {
        let Some(ino) = ino else { return };
        let mut table = self.table.lock();
        table.unname(ino, from.0, from.1);
        table.name(ino, to.0, to.1);
    }
}

/// A node that gets another name, from before that is so below until after the table has it.
struct Moving<'a> {
    tree: &'a Tree,
    ino: Ino,
    to: At<'a>,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.tree.table.lock().end_move(self.ino, self.to.parent, self.to.name);
    }
}

/// A name that becomes another, or changes with it. What they stand for is claimed.
struct Rename<'a> {
    tree: &'a Tree,
    from: At<'a>,
    to: At<'a>,
    mode: RenameMode,
    /// What gets the name: its node, what it is below, and as a frame.
    ino: Option<Ino>,
    source: Found,
    frame: Option<Arc<TreeFrame>>,
    /// The same of what has it.
    other: Option<Ino>,
    target: Option<Found>,
    replaced: Option<Arc<TreeFrame>>,
}

impl Rename<'_> {
    fn run(mut self, invalidations: &mut Invalidations) -> Result<()> {
        let tree = self.tree;
        self.replaced.as_ref().map_or(Ok(()), |replaced| tree.check_unlocked(replaced))?;
        if self.mode == RenameMode::NoReplace && self.target.is_some() {
            return Err(ViewError::Exists);
        }
        let onto = (self.target.is_some(), self.mode);
        tree.check_rename(self.frame.as_ref(), self.to.name, self.replaced.as_ref(), onto)?;
        if self.mode == RenameMode::Exchange {
            return self.exchange(invalidations);
        }
        if self.frame.is_some() && self.replaced.is_none() && self.target.is_some_and(|target| target.stat.is_dir()) {
            // Below the two may change places, for which it need not be empty.
            check_dead(beneath::open_dir(self.to.dir, self.to.name)?.as_fd())?;
        }
        let locks = self.locks();
        if let Some(frame) = self.frame.as_ref().filter(|frame| self.loses_suffix(frame)) {
            let layout = if frame.shown == Kind::Directory { Layout::Sparse } else { Layout::Contiguous };
            return self.store_as_shown(frame, layout, locks, invalidations);
        }
        if let Some(frame) = self.frame.as_ref().filter(|frame| self.gains_suffix(frame)) {
            return self.store_as_shown(frame, Layout::Contiguous, locks, invalidations);
        }
        let begins = self.frame.as_ref().map_or(Ok(false), |frame| tree.unbegin(frame))?;
        self.frame = self.frame.filter(|_| !begins);
        // Who has what is replaced open goes on reading it.
        let replaced = self.replaced.clone();
        let _leaving = replaced.as_ref().map(|replaced| replaced.leaves());
        let kept = replaced.clone().filter(|replaced| tree.is_being_read(replaced));
        if let Some(ino) = self.ino.filter(|ino| self.becomes_directory(*ino))
            && self.store_as_directory(ino, kept.as_ref(), invalidations)?
        {
            return Ok(());
        }
        self.change_name(kept.as_ref(), invalidations)?;
        tree.locks_move(locks, self.from.below(), self.to.below(), false);
        if begins {
            tree.begin(self.to.parent, self.to.name, self.to.dir, &Empty::Seen(self.source));
        }
        tree.named_anew(self.ino, self.to.named(), &self.source, invalidations);
        Ok(())
    }

    /// What is to become of the lock files.
    fn locks(&self) -> [Option<LockOf>; 2] {
        [(&self.frame, Some(&self.source)), (&self.replaced, self.target.as_ref())]
            .map(|(frame, found)| Some(self.tree.lock_of(frame.as_ref()?, found?)))
    }

    fn loses_suffix(&self, frame: &TreeFrame) -> bool {
        self.tree.loses_suffix(frame, &self.source, self.from.name, self.to.name)
    }

    /// The two change their names.
    fn exchange(&self, invalidations: &mut Invalidations) -> Result<()> {
        let Rename { tree, from, to, frame, replaced, .. } = self;
        let other_loses = match (replaced, &self.target) {
            (Some(replaced), Some(target)) => tree.loses_suffix(replaced, target, to.name, from.name),
            _ => false,
        };
        if other_loses || frame.as_ref().is_some_and(|frame| self.loses_suffix(frame)) {
            return Err(ViewError::CrossDevice);
        }
        let locks = self.locks();
        tree.ends_by_name(frame.as_ref(), to.name, invalidations)?;
        tree.ends_by_name(replaced.as_ref(), from.name, invalidations)?;
        tree.exchange((self.ino, frame.as_ref(), *from), (self.other, replaced.as_ref(), *to), invalidations)?;
        tree.locks_move(locks, from.below(), to.below(), true);
        tree.named_anew(self.ino, to.named(), &self.source, invalidations);
        if let Some(target) = &self.target {
            tree.named_anew(self.other, from.named(), target, invalidations);
        }
        Ok(())
    }

    /// Onto a free name.
    fn gains_suffix(&self, frame: &TreeFrame) -> bool {
        self.target.is_none() && self.tree.gains_suffix(frame, &self.source, self.from.name, self.to)
    }

    /// A frame loses its suffix, or gets one, and is stored so that it is shown as it was.
    fn store_as_shown(
        &self,
        frame: &Arc<TreeFrame>,
        layout: Layout,
        locks: [Option<LockOf>; 2],
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        let Rename { tree, from, to, target, .. } = self;
        // Tools copy over a frame, and over what is neither a file nor a directory.
        let is_special = |found: &Found| !matches!(found.stat.mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK);
        if self.replaced.is_some() || target.as_ref().is_some_and(is_special) {
            return Err(ViewError::CrossDevice);
        }
        tree.store_as_shown(frame, *from, (*to, target.as_ref()), layout, invalidations)?;
        tree.locks_move(locks, from.below(), to.below(), false);
        tree.lock_in(to.dir, to.name);
        self.names_change();
        invalidations.push(Invalidation::Data(frame.ino));
        // The kernel goes on knowing a directory as one.
        if frame.shown != Kind::Directory {
            invalidations.push(forget_name(to.parent, to.name));
        }
        Ok(())
    }

    /// Whether a file that is a frame gets a name with which it is to be stored as a directory.
    fn becomes_directory(&self, ino: Ino) -> bool {
        let Rename { tree, from, to, replaced, .. } = self;
        let layout = self.target.as_ref().filter(|_| replaced.is_some()).map(Tree::layout_of);
        self.frame.is_none()
            && is_single_file(&self.source)
            && tree.rules.is_name(to.name)
            && !tree.is_kept_file(ino)
            && rules::is_cframe(from.dir, from.name, self.source.stat.len)
            && replaced.as_ref().is_none_or(|replaced| replaced.shown == Kind::File)
            && tree.wanted(to.parent, to.name, Kind::File, layout) == Some(Layout::Sparse)
    }

    /// Stores a file that is a frame under its new name, in place of what has that, which is `kept` for who has it open. Answers whether it
    /// was a frame.
    fn store_as_directory(&self, ino: Ino, kept: Option<&Arc<TreeFrame>>, invalidations: &mut Invalidations) -> Result<bool> {
        let Rename { tree, from, to, target, replaced, .. } = self;
        if target.is_some_and(|target| target.stat.is_dir()) {
            check_parts(to.dir, to.name)?;
        }
        // Nobody opens it meanwhile.
        let changing = replaced.as_ref().map(|replaced| match kept {
            Some(kept) => kept.slot.changing.lock(),
            None => tree.closed_for_good(replaced, invalidations),
        });
        if let Some(kept) = kept {
            tree.leave_name(kept);
        }
        let adopted = tree.adopt(ino, (*from, &self.source), *to, (target.as_ref(), kept));
        if let (Some(kept), Err(_)) = (kept, &adopted) {
            tree.keep_name(kept);
        }
        drop(changing);
        // What a client has just cut to write it anew is no frame now, and moves as any file does; so does what a client writes to.
        if is_damage(&adopted) || matches!(adopted, Err(ViewError::InUse)) && tree.is_kept_file(ino) {
            return Ok(false);
        }
        adopted?;
        match (replaced, kept) {
            (_, Some(kept)) => tree.ends_with_last_close(kept),
            (Some(replaced), None) => tree.drop_frame(replaced),
            (None, None) => {}
        }
        match tree.remove_file(from.dir, from.name, &self.source) {
            // Others have put something else there, which stays.
            Err(ViewError::Gone | ViewError::NotFound) => {}
            removed => removed?,
        }
        self.names_change();
        invalidations.push(Invalidation::Data(ino));
        Ok(true)
    }

    /// What has the old name gets the new one, in place of what has that.
    fn change_name(&self, kept: Option<&Arc<TreeFrame>>, invalidations: &mut Invalidations) -> Result<()> {
        let Rename { tree, from, to, frame, target, replaced, .. } = self;
        if let (Some(replaced), Some(target)) = (replaced, target) {
            if replaced.shown == Kind::Directory && !tree.is_empty(replaced, &*tree.enter_frame(replaced)?) {
                return Err(ViewError::NotEmpty);
            }
            if target.stat.is_dir() && replaced.opened().is_none_or(|open| open.view.is_made()) {
                check_parts(to.dir, to.name)?;
            }
        }
        // A directory and a file change places, and so do two directories that are not empty.
        let by_frames = frame.is_some() || replaced.is_some();
        let mixed = target.as_ref().filter(|target| by_frames && (target.stat.is_dir() || self.source.stat.is_dir()));
        let mixed = mixed.map(|target| (target, replaced.is_some()));
        tree.ends_by_name(frame.as_ref(), to.name, invalidations)?;
        // Nobody opens it meanwhile.
        let changing = replaced.as_ref().map(|replaced| replaced.slot.changing.lock());
        if let Some(replaced) = replaced {
            tree.leave_name(replaced);
        }
        let moved = tree.carry(frame.as_ref(), *to, invalidations, &mut || {
            if replaced.is_some() {
                tree.sync_comer(frame.as_ref(), *from)?;
            }
            tree.rename_below(*from, *to, mixed, self.mode, kept)?;
            self.names_change();
            Ok(())
        });
        if let (Some(replaced), Err(_)) = (replaced, &moved) {
            tree.keep_name(replaced);
        }
        drop(changing);
        moved?;
        if let (Some(replaced), Some(target)) = (replaced, target) {
            match kept {
                Some(_) => tree.ends_with_last_close(replaced),
                None => tree.drop_frame(replaced),
            }
            tree.remember(to.parent, to.name, replaced.shown, Tree::layout_of(target));
        }
        Ok(())
    }

    /// Has the nodes known by their new names.
    fn names_change(&self) {
        self.tree.unname(self.other, self.to.named());
        self.tree.has_moved(self.ino, self.from.named(), self.to.named());
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
