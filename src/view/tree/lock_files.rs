//! Where the lock files of frames are, in the tree and below. In both, the one of a directory is `.b2lock` in it, and the one of a file
//! `NAME.b2lock` beside it. So if a frame is shown as another kind than it is below, its lock file is in another place.
//!
//! A file that holds anything but a count is not a lock file, whatever its name, and is shown as an ordinary file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::debug;

use super::attributes::rights_of;
use super::frame::{OpenFrame, Stored, TreeFrame};
use super::{Tree, passed};
use crate::format::Layout;
use crate::store::backend::BackendFile;
use crate::store::in_words;
use crate::store::local::beneath::{self, Found, Onto};
use crate::store::sidecar::{SUFFIX, may_be_lock_file};
use crate::view::access;
use crate::view::nodes::LOCK_FILE;
use crate::view::{Attr, Flock, Ino, Kind, Result, ViewError};

/// How long a lock file that is to be removed may be in use, by those who have a lock only for a moment.
const MOMENT: Duration = Duration::from_millis(200);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(2);

/// A frame that a lock file belongs to by its name.
pub struct Owner {
    /// What it is shown as.
    pub shown: Kind,
    /// How it is stored.
    pub layout: Layout,
    /// If it is known already.
    pub frame: Option<Arc<TreeFrame>>,
}

/// The lock file of a frame that is about to go.
#[derive(Clone, Copy)]
pub struct LockOf {
    shown: Kind,
    layout: Layout,
    is_gone: bool,
}

/// Where a name in a directory leads to.
enum Leads {
    /// To the same name below.
    Same,
    /// To the lock file in the directory of this frame below.
    Into,
    /// Nowhere: below it is the lock file of a frame that is shown as a directory.
    Nowhere,
}

impl Tree {
    /// The frame's name that a lock file's name is made of.
    pub(super) fn locked_name<'a>(&self, name: &'a OsStr) -> Option<&'a OsStr> {
        if !self.rules.locking || self.shows_data() {
            return None;
        }
        let stem = name.as_bytes().strip_suffix(SUFFIX.as_bytes())?;
        (!stem.is_empty()).then(|| OsStr::from_bytes(stem))
    }

    /// Whether a name in a frame's directory is the lock file's.
    pub(super) fn is_lock_name(&self, frame: &TreeFrame, name: &OsStr) -> bool {
        self.takes_turns(frame) && name == SUFFIX
    }

    /// Whether a frame has a lock file, or may have one.
    pub(super) fn takes_turns(&self, frame: &TreeFrame) -> bool {
        self.rules.locking && !frame.is_archive()
    }

    /// The frame of that name, if there is one.
    pub(super) fn owner(&self, parent: Ino, name: &OsStr) -> Option<Owner> {
        let dir = self.dir(parent).ok()?;
        let found = beneath::look(dir.as_fd(), name).ok()?;
        let known = self.table.lock().find(&found);
        if let Some(ino) = known.or_else(|| self.is_now(parent, name, &found)) {
            let frame = self.frame_of(Some(ino)).filter(|frame| self.takes_turns(frame))?;
            return Some(Owner { shown: frame.shown, layout: layout_now(&frame, &found), frame: Some(frame) });
        }
        if self.is_covering(&found) {
            return None;
        }
        let layout = self.frame_at(parent, name, dir.as_fd(), &found)?;
        Some(Owner { shown: self.rules.shown(Stored::Frame(layout), self.is_in_store(parent)), layout, frame: None })
    }

    fn leads(&self, parent: Ino, name: &OsStr, dir: BorrowedFd<'_>) -> Leads {
        let Some(owner) = self.locked_name(name).and_then(|stem| self.owner(parent, stem)) else { return Leads::Same };
        let is_other = || beneath::look(dir, name).is_ok() && lock_file(dir, name).is_none();
        match (owner.shown, owner.layout) {
            (Kind::File, Layout::Sparse) if !is_other() => Leads::Into,
            (Kind::Directory, Layout::Contiguous) if !is_other() => Leads::Nowhere,
            _ => Leads::Same,
        }
    }

    /// Where a name in a directory is below.
    pub(super) fn below(&self, parent: Ino, name: &OsStr) -> Result<(Arc<File>, OsString)> {
        let dir = self.dir(parent)?;
        match (self.leads(parent, name, dir.as_fd()), self.locked_name(name)) {
            (Leads::Into, Some(stem)) => Ok((Arc::new(beneath::open_dir(dir.as_fd(), stem)?.into()), SUFFIX.into())),
            (Leads::Nowhere, _) => Err(ViewError::NotFound),
            _ => Ok((dir, name.to_owned())),
        }
    }

    /// Whether a name in a directory is taken by the lock file of a frame, which may not be there yet.
    pub(super) fn is_of_a_lock(&self, parent: Ino, name: &OsStr) -> bool {
        let Some(owner) = self.locked_name(name).and_then(|stem| self.owner(parent, stem)) else { return false };
        let Ok(dir) = self.dir(parent) else { return false };
        match (owner.shown, owner.layout) {
            (Kind::Directory, Layout::Sparse) => false,
            _ => beneath::look(dir.as_fd(), name).is_err() || lock_file(dir.as_fd(), name).is_some(),
        }
    }

    /// Where the lock file of a frame is below.
    pub(super) fn lock_place(&self, frame: &TreeFrame) -> Result<(Arc<File>, OsString)> {
        let (dir, name, found) = self.found(frame.ino)?;
        match layout_now(frame, &found) {
            Layout::Sparse => Ok((Arc::new(beneath::open_dir(dir.as_fd(), &name)?.into()), SUFFIX.into())),
            Layout::Contiguous => Ok((dir, beside(&name))),
        }
    }

    /// Attributes of the lock file in the directory that a frame is shown as.
    pub(super) fn lock_attr_inside(&self, frame: &Arc<TreeFrame>) -> Result<Attr> {
        if frame.opened().is_some_and(|open| open.view.has_no_lock_file()) {
            return Err(ViewError::NotFound);
        }
        let (dir, name) = self.lock_place(frame)?;
        let found = lock_file(dir.as_fd(), &name).ok_or(ViewError::NotFound)?;
        let attr = passed::attr(self.regions.outer(frame, LOCK_FILE), &found).with_mode(found.stat.mode & 0o777);
        // Its list is not shown.
        Ok(access::shown(attr, false, || rights_of(beneath::hold(dir.as_fd(), &name)?.as_fd()).map(Some)))
    }

    /// Names of lock files that are shown in a directory and are not there below: those of frames that are shown as files.
    pub(super) fn lock_files_shown(&self, parent: Ino, dir: BorrowedFd<'_>) -> Result<Vec<OsString>> {
        let mut dirs = Vec::new();
        beneath::list(dir, 0, &mut |entry| {
            if matches!(entry.kind, libc::S_IFDIR | 0) {
                dirs.push(entry.name.to_owned());
            }
            true
        })?;
        let is_shown = |stem: &OsString| {
            let inside = beneath::open_dir(dir, stem).ok()?;
            lock_file(inside.as_fd(), OsStr::new(SUFFIX))?;
            let name = beside(stem);
            let leads = self.leads(parent, &name, dir);
            (matches!(leads, Leads::Into) && !self.is_gone(parent, stem)).then_some(name)
        };
        Ok(dirs.iter().filter_map(is_shown).collect())
    }

    /// Whether a name that is there below is not shown.
    pub(super) fn is_hidden_lock(&self, parent: Ino, name: &OsStr, dir: BorrowedFd<'_>) -> bool {
        let Some(stem) = self.locked_name(name) else { return false };
        match self.leads(parent, name, dir) {
            Leads::Same => self.is_gone(parent, stem),
            // It is shown with those of other frames.
            Leads::Into | Leads::Nowhere => true,
        }
    }

    /// Whether clients have removed the lock file of a frame that is open and shown as a file.
    pub(super) fn is_gone(&self, parent: Ino, stem: &OsStr) -> bool {
        let frame = self.owner(parent, stem).filter(|owner| owner.shown == Kind::File).and_then(|owner| owner.frame);
        frame.and_then(|frame| frame.opened()).is_some_and(|open| open.view.has_no_lock_file())
    }

    // --- lock files that go and move ---

    /// That nobody has a lock on a frame, which is to lose its name.
    ///
    /// # Errors
    /// [`ViewError::InUse`].
    pub(super) fn check_unlocked(&self, frame: &TreeFrame) -> Result<()> {
        self.hold_unlocked(frame).map(drop)
    }

    /// The lock on a frame: nobody else has it meanwhile. None if there is no lock file.
    ///
    /// # Errors
    /// [`ViewError::InUse`] if somebody has it.
    pub(super) fn hold_unlocked(&self, frame: &TreeFrame) -> Result<Option<File>> {
        if !self.takes_turns(frame) {
            return Ok(None);
        }
        let (dir, name) = self.lock_place(frame)?;
        hold_alone(dir.as_fd(), &name, MOMENT)
    }

    /// The same, where nobody is waited for.
    pub(super) fn is_locked(&self, frame: &TreeFrame) -> bool {
        let held = |(dir, name): (Arc<File>, OsString)| hold_alone(dir.as_fd(), &name, Duration::ZERO);
        self.takes_turns(frame) && self.lock_place(frame).and_then(held).is_err()
    }

    /// Whether the directory that a frame is shown as has no names.
    pub(super) fn is_empty(&self, frame: &Arc<TreeFrame>, open: &OpenFrame) -> bool {
        open.view.is_empty() && !(self.takes_turns(frame) && self.lock_attr_inside(frame).is_ok())
    }

    /// A client removes the lock file of a frame.
    pub(super) fn remove_lock_file(&self, frame: &TreeFrame) -> Result<()> {
        self.check_writable()?;
        let (dir, name) = self.lock_place(frame)?;
        remove_unused(dir.as_fd(), &name, MOMENT)?;
        if let Some(open) = frame.opened() {
            open.view.forget_lock_file();
        }
        Ok(())
    }

    /// A client removes a lock file in a directory. Answers whether that is one of a frame.
    pub(super) fn remove_lock_beside(&self, parent: Ino, name: &OsStr) -> Result<bool> {
        if !self.is_of_a_lock(parent, name) {
            return Ok(false);
        }
        let owner = self.locked_name(name).and_then(|stem| self.owner(parent, stem)).ok_or(ViewError::NotFound)?;
        if owner.shown == Kind::Directory || self.locked_name(name).is_some_and(|stem| self.is_gone(parent, stem)) {
            return Err(ViewError::NotFound);
        }
        match owner.frame {
            Some(frame) => self.remove_lock_file(&frame)?,
            None => {
                self.check_writable()?;
                let (dir, name) = self.below(parent, name)?;
                remove_unused(dir.as_fd(), &name, MOMENT)?;
            }
        }
        Ok(true)
    }

    /// What is to become of the lock file of a frame that is this below.
    pub(super) fn lock_of(&self, frame: &TreeFrame, found: &Found) -> LockOf {
        let is_gone = frame.opened().is_some_and(|open| open.view.has_no_lock_file());
        // An archive has none.
        let shown = if frame.is_archive() { Kind::File } else { frame.shown };
        LockOf { shown, layout: layout_now(frame, found), is_gone }
    }

    /// A frame is about to be removed. As natively, the lock file of what is shown as a file stays beside it, until it is removed too.
    pub(super) fn lock_stays(&self, lock: LockOf, dir: BorrowedFd<'_>, name: &OsStr) {
        if lock.shown == Kind::File && lock.layout == Layout::Sparse && !lock.is_gone {
            self.lock_out(dir, name);
        }
    }

    /// A frame was removed. As natively, the lock file of what is shown as a directory goes with it; and one that clients removed before does
    /// not come back.
    pub(super) fn lock_goes(&self, lock: LockOf, dir: BorrowedFd<'_>, name: &OsStr) {
        let goes = lock.layout == Layout::Contiguous && (lock.shown == Kind::Directory || lock.is_gone);
        if self.rules.locking && goes {
            let _ = remove_unused(dir, &beside(name), Duration::ZERO);
        }
    }

    /// Moves the lock file out of a frame's directory below, to where that of a file would be.
    pub(super) fn lock_out(&self, dir: BorrowedFd<'_>, name: &OsStr) {
        self.move_lock(dir, name, false);
    }

    /// Moves it into the directory.
    pub(super) fn lock_in(&self, dir: BorrowedFd<'_>, name: &OsStr) {
        self.move_lock(dir, name, true);
    }

    fn move_lock(&self, dir: BorrowedFd<'_>, name: &OsStr, into: bool) {
        if !self.rules.locking {
            return;
        }
        let Ok(inside) = beneath::open_dir(dir, name) else { return };
        let (outer, inner) = ((dir, beside(name)), (inside.as_fd(), OsString::from(SUFFIX)));
        let (from, to) = if into { (outer, inner) } else { (inner, outer) };
        if lock_file(from.0, &from.1).is_some()
            && let Err(error) = beneath::rename((from.0, &from.1), (to.0, &to.1), Onto::Nothing)
        {
            debug!("{}: the lock file of {} stays: {}", self.path.display(), name.display(), in_words(&error));
        }
    }

    /// A frame has another name, or two have changed theirs: the lock file of one that is a file below and is shown as a directory goes along.
    pub(super) fn locks_move(
        &self,
        locks: [Option<LockOf>; 2],
        from: (BorrowedFd<'_>, &OsStr),
        to: (BorrowedFd<'_>, &OsStr),
        both: bool,
    ) {
        if !self.rules.locking {
            return;
        }
        let goes_along =
            |lock: Option<LockOf>| lock.is_some_and(|lock| lock.shown == Kind::Directory && lock.layout == Layout::Contiguous);
        let [goes, comes] = locks.map(goes_along);
        let (old, new) = (beside(from.1), beside(to.1));
        let onto = match (goes, comes) {
            (true, true) if both && lock_file(to.0, &new).is_some() => Onto::Exchange,
            (_, true) if !both => {
                let _ = remove_unused(to.0, &new, Duration::ZERO);
                Onto::Nothing
            }
            _ => Onto::Nothing,
        };
        let moves = |one: (BorrowedFd<'_>, &OsStr), other: (BorrowedFd<'_>, &OsStr)| {
            if lock_file(one.0, one.1).is_some()
                && let Err(error) = beneath::rename(one, other, onto)
            {
                debug!("{}: {} stays: {}", self.path.display(), one.1.display(), in_words(&error));
            }
        };
        if goes {
            moves((from.0, &old), (to.0, &new));
        } else if comes && both {
            moves((to.0, &new), (from.0, &old));
        }
    }

    /// The lock of a file that is about to be stored as a frame: nobody else has it meanwhile. None if there is no lock file.
    ///
    /// # Errors
    /// [`ViewError::InUse`] if somebody has it.
    pub(super) fn lock_to_adopt(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<Option<File>> {
        if !self.rules.locking {
            return Ok(None);
        }
        self.lock_out(dir, name);
        let held = hold_alone(dir, &beside(name), MOMENT);
        if held.is_err() {
            self.lock_in(dir, name);
        }
        held
    }
}

/// The name of the lock file of a frame in one file.
pub fn beside(name: &OsStr) -> OsString {
    [name, OsStr::new(SUFFIX)].into_iter().collect()
}

/// How a frame is stored that is this below: one that is only begun is an empty directory.
fn layout_now(frame: &TreeFrame, found: &Found) -> Layout {
    match frame.stored {
        Stored::Frame(layout) if frame.opened().is_some_and(|open| !open.view.is_made()) => layout,
        _ => Tree::layout_of(found),
    }
}

/// What a name stands for, if that may be a lock file.
pub fn lock_file(dir: BorrowedFd<'_>, name: &OsStr) -> Option<Found> {
    let found = beneath::look(dir, name).ok().filter(|found| found.stat.is_file() && found.stat.links == 1)?;
    let mut first = [0; 8];
    let first = beneath::beginning(dir, name, &mut first)?;
    may_be_lock_file(found.stat.len, first).then_some(found)
}

/// A lock file, open, if its name stands for one.
pub fn open_lock_file(dir: BorrowedFd<'_>, name: &OsStr, write: bool) -> Result<Option<File>> {
    let Some(found) = lock_file(dir, name) else { return Ok(None) };
    let file = match beneath::open_file(dir, name, if write { libc::O_RDWR } else { libc::O_RDONLY }) {
        // As with the library, who only reads does not need it for more.
        Err(error) if write && matches!(error.raw_os_error(), Some(libc::EACCES | libc::EROFS)) => {
            beneath::open_file(dir, name, libc::O_RDONLY)
        }
        opened => opened,
    }?;
    if beneath::look_at(file.as_fd())?.is(&found) { Ok(Some(file)) } else { Err(ViewError::Gone) }
}

/// The exclusive lock on a lock file, if there is one.
fn hold_alone(dir: BorrowedFd<'_>, name: &OsStr, patience: Duration) -> Result<Option<File>> {
    let until = Instant::now() + patience;
    loop {
        let Some(file) = open_lock_file(dir, name, false)? else { return Ok(None) };
        if BackendFile::flock(&file, Flock::Exclusive, None)? {
            return Ok(Some(file));
        }
        if Instant::now() >= until {
            return Err(ViewError::InUse);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Removes a lock file that nobody has a lock on.
fn remove_unused(dir: BorrowedFd<'_>, name: &OsStr, patience: Duration) -> Result<()> {
    let held = hold_alone(dir, name, patience)?.ok_or(ViewError::NotFound)?;
    if beneath::look(dir, name)?.is(&beneath::look_at(held.as_fd())?) {
        Ok(beneath::remove(dir, name, false)?)
    } else {
        Err(ViewError::InUse)
    }
}
