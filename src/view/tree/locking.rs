//! flock(2) in a tree, for a mount that takes turns with other processes.
//!
//! - Of a frame's lock file, it is a lock on that file below, by turns as in a mount of that one frame: see [`crate::view`]'s `locks`. A
//!   client has the lock file open without the frame's being open: a frame is opened for the first lock, and is not closed while
//!   somebody has one. So whoever waits for a lock waits as natively, whatever becomes of the frame meanwhile.
//! - Of any other file of a frame, this mount alone knows of it.
//! - Of a file that is passed on, it is one on the open file below.
//!
//! A file that a client has a lock on, or whose lock file somebody has a lock on, does not become a frame: that waits for the unlock.
//!
//! Lock order: all here are leaves.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;

use super::Tree;
use super::frame::{OpenFrame, Told, TreeFrame};
use super::handles::{InsideFile, LockHandle, LockWhose, Open, PassedFile};
use super::lock_files::open_lock_file;
use crate::store::backend::BackendFile;
use crate::store::local::beneath;
use crate::view::nodes::LOCK_FILE;
use crate::view::{
    Attr, Creation, Flock, Handle, Ino, Invalidation, Invalidations, Kind, OpenMode, Opened, Pages, ROOT, Reread, Result,
    ViewError, Wait,
};

/// Bytes of a lock file.
const LEN: u64 = 16;
/// How often a lock is asked for that was got on a file which was not the lock file any more.
const TRIES: usize = 64;

/// The locks of clients.
#[derive(Default)]
pub struct TreeLocks {
    /// By handle. One that was asked for stays until it is given back, or the handle ends.
    lockers: Mutex<HashMap<u64, Arc<Locker>>>,
    /// Files that are to become frames when they are unlocked.
    postponed: Mutex<HashSet<Ino>>,
    /// How often any frame was read again.
    rereads: AtomicU64,
    /// The directory of which lock files were listed last.
    listed: Mutex<Option<(Ino, Listed)>>,
}

/// Names of lock files, each with its place in a listing.
pub type Listed = Arc<Vec<(u64, OsString)>>;

/// A lock that a handle has, or waits for.
struct Locker {
    on: On,
    is_held: AtomicBool,
}

enum On {
    /// A file that is passed on.
    Passed(Arc<PassedFile>),
    /// A lock file that is no frame's, or not yet.
    File(Arc<File>),
    /// A file of a frame. What was opened for the lock ends with it.
    Frame { frame: Arc<TreeFrame>, open: Arc<OpenFrame>, inner: Ino, handle: Handle, is_own: bool },
}

impl Locker {
    fn new(on: On) -> Arc<Self> {
        Arc::new(Locker { on, is_held: AtomicBool::new(false) })
    }
}

impl TreeLocks {
    /// Lock files of a directory as they were listed last, for who `goes_on` with that.
    pub fn listed(&self, dir: Ino, goes_on: bool) -> Option<Listed> {
        let listed = self.listed.lock();
        listed.as_ref().filter(|(of, _)| goes_on && *of == dir).map(|(_, listed)| Arc::clone(listed))
    }

    pub fn keep_listed(&self, dir: Ino, listed: Vec<(u64, OsString)>) -> Listed {
        let listed = Arc::new(listed);
        *self.listed.lock() = Some((dir, Arc::clone(&listed)));
        listed
    }

    fn locker(&self, handle: Handle) -> Option<Arc<Locker>> {
        self.lockers.lock().get(&handle.0).cloned()
    }
}

fn flock(file: &File, lock: Flock, until: Option<&AtomicBool>) -> Result<()> {
    match BackendFile::flock(file, lock, until) {
        Ok(true) => Ok(()),
        Ok(false) => Err(ViewError::Locked),
        Err(error) if error.kind() == ErrorKind::Interrupted => Err(ViewError::Interrupted),
        Err(error) => Err(error.into()),
    }
}

impl Tree {
    // --- lock files ---

    /// Whether a node is a lock file, or may be one: its names in the tree tell.
    fn lock_node(&self, ino: Ino) -> Option<(Ino, OsString)> {
        let first = self.table.lock().get(ino)?.names().first().cloned();
        first.filter(|(_, name)| self.locked_name(name).is_some()).map(|(parent, name)| (parent, name.into()))
    }

    /// Opens a lock file beside a frame; none if it is none.
    pub(super) fn open_lock(&self, ino: Ino, mode: OpenMode) -> Result<Option<Opened>> {
        let Some((parent, name)) = self.lock_node(ino) else { return Ok(None) };
        let Some(stem) = self.locked_name(&name) else { return Ok(None) };
        if mode.write && self.rules.read_only && !self.is_of_a_lock(parent, &name) {
            return Err(ViewError::ReadOnly);
        }
        let opened = self.reached(ino, |dir, below, found| match open_lock_file(dir.as_fd(), below, mode.write)? {
            Some(file) if !beneath::look_at(file.as_fd())?.is(found) => Err(ViewError::Gone),
            opened => Ok(opened),
        })?;
        let Some(file) = opened else { return Ok(None) };
        Ok(Some(self.keep_lock(ino, LockWhose::Named(parent, stem.to_owned()), file, mode)))
    }

    /// Keeps what was made under the name of a lock file, which no frame has yet.
    pub(super) fn keep_lock_beside(&self, ino: Ino, (parent, stem): (Ino, &OsStr), file: File, mode: OpenMode) -> Opened {
        self.keep_lock(ino, LockWhose::Named(parent, stem.to_owned()), file, mode)
    }

    fn keep_lock(&self, ino: Ino, whose: LockWhose, file: File, mode: OpenMode) -> Opened {
        let open = LockHandle { whose, write: mode.write, file: Mutex::new(Arc::new(file)) };
        Opened { handle: self.keep(ino, Open::Lock(Arc::new(open))), pages: Pages::Foreign }
    }

    /// Opens a lock file beside a frame, made if there is none; none if no frame has that name.
    pub(super) fn create_lock(
        &self,
        parent: Ino,
        name: &OsStr,
        creation: Creation,
        mode: OpenMode,
    ) -> Result<Option<(Attr, Opened)>> {
        if !self.is_of_a_lock(parent, name) {
            return Ok(None);
        }
        let Some(stem) = self.locked_name(name) else { return Ok(None) };
        let there = if self.is_gone(parent, stem) { Err(ViewError::NotFound) } else { self.enter(parent, name) };
        let attr = match there {
            Ok(attr) if creation.exclusive => {
                self.forget_one(attr.ino);
                return Err(ViewError::Exists);
            }
            Err(ViewError::NotFound | ViewError::System(libc::ENOENT)) => {
                let ino = self.enter_node(parent, stem)?;
                let made = match self.frame_of(Some(ino)) {
                    Some(frame) if frame.shown == Kind::File => self.make_lock_file(&frame),
                    _ => Err(ViewError::NotPermitted),
                };
                self.forget_one(ino);
                made?;
                self.enter(parent, name)?
            }
            found => found?,
        };
        let opened = self.open_lock(attr.ino, mode).and_then(|opened| opened.ok_or(ViewError::Gone));
        Ok(Some((attr, opened.inspect_err(|_| self.forget_one(attr.ino))?)))
    }

    fn make_lock_file(&self, frame: &Arc<TreeFrame>) -> Result<()> {
        let open = self.enter_frame(frame)?;
        open.view.make_lock_file()
    }

    /// Opens the lock file in the directory that a frame is shown as.
    pub(super) fn open_lock_inside(&self, frame: &Arc<TreeFrame>, mode: OpenMode) -> Result<Opened> {
        let (dir, name) = self.lock_place(frame)?;
        let file = open_lock_file(dir.as_fd(), &name, mode.write)?.ok_or(ViewError::Gone)?;
        Ok(self.keep_lock(frame.ino, LockWhose::Frame(Arc::clone(frame)), file, mode))
    }

    /// The same, made if there is none.
    pub(super) fn create_lock_inside(&self, frame: &Arc<TreeFrame>, is_new: bool, mode: OpenMode) -> Result<(Attr, Opened)> {
        let attr = match self.lock_attr_inside(frame) {
            Ok(_) if is_new => return Err(ViewError::Exists),
            Err(ViewError::NotFound) => {
                self.make_lock_file(frame)?;
                self.lock_attr_inside(frame)?
            }
            found => found?,
        };
        Ok((attr, self.open_lock_inside(frame, mode)?))
    }

    pub(super) fn write_lock(&self, lock: &LockHandle, offset: u64, data: &[u8]) -> Result<()> {
        if !lock.write {
            return Err(ViewError::BadHandle);
        }
        let is_frames = match &lock.whose {
            LockWhose::Frame(_) => true,
            LockWhose::Named(parent, name) => self.owner(*parent, name).is_some(),
        };
        if is_frames && offset.checked_add(data.len() as u64).is_none_or(|end| end > LEN) {
            return Err(ViewError::System(libc::EFBIG));
        }
        Ok(lock.file().write_all_at(data, offset)?)
    }

    /// Whether a node is the lock file of a frame, which nobody is to cut: the count would be gone.
    pub(super) fn is_frames_lock(&self, ino: Ino) -> bool {
        self.rules.locking && self.lock_node(ino).is_some_and(|(parent, name)| self.is_of_a_lock(parent, &name))
    }

    // --- flock(2) ---

    pub(super) fn take_lock(
        &self,
        handle: Handle,
        lock: Flock,
        until: Option<&AtomicBool>,
        invalidations: &mut Invalidations,
    ) -> Result<Reread> {
        let open = self.handle(handle)?;
        if let Some(locker) = self.locks.locker(handle).filter(|locker| locker.is_held.load(SeqCst)) {
            return self.lock_on(&locker, lock, until, invalidations);
        }
        match open {
            Open::File(file) => self.lock_anew(handle, On::Passed(file), lock, until, invalidations),
            Open::Frame(file) => {
                let (open, inner_handle) = self.current(&file)?;
                let frame = Arc::clone(&file.frame);
                let on = On::Frame { frame, open, inner: file.inner, handle: inner_handle, is_own: false };
                self.lock_anew(handle, on, lock, until, invalidations)
            }
            Open::Lock(file) => self.lock_by_file(handle, &file, lock, until, invalidations),
        }
    }

    /// A lock of a handle that has none.
    fn lock_anew(
        &self,
        handle: Handle,
        on: On,
        lock: Flock,
        until: Option<&AtomicBool>,
        invalidations: &mut Invalidations,
    ) -> Result<Reread> {
        let locker = Locker::new(on);
        if let Some(before) = self.locks.locker(handle)
            && let Err(error) = self.unlock_on(&before, None, invalidations)
        {
            self.end_lock(&locker, invalidations);
            // The handle keeps a lock that could not be given back yet.
            if !matches!(error, ViewError::Locked) {
                self.locks.lockers.lock().remove(&handle.0);
            }
            return Err(error);
        }
        self.locks.lockers.lock().insert(handle.0, Arc::clone(&locker));
        self.lock_on(&locker, lock, until, invalidations)
    }

    /// What was opened for a lock ends.
    fn end_lock(&self, locker: &Locker, invalidations: &mut Invalidations) {
        if let On::Frame { frame, open, handle, is_own: true, .. } = &locker.on {
            let mut inner = Invalidations::new();
            open.fs().release(*handle, &mut inner);
            self.tell(frame, inner, invalidations);
            frame.handles.fetch_sub(1, SeqCst);
            self.end_removed(frame);
        }
    }

    fn lock_on(
        &self,
        locker: &Locker,
        lock: Flock,
        until: Option<&AtomicBool>,
        invalidations: &mut Invalidations,
    ) -> Result<Reread> {
        let reread = match &locker.on {
            On::Passed(file) => flock(&file.file, lock, until).map(|()| Reread::NEVER),
            On::File(file) => flock(file, lock, until).map(|()| Reread::NEVER),
            On::Frame { frame, open, inner, handle, .. } => {
                let mut inner_invals = Invalidations::new();
                let locked = open.fs().lock(*inner, *handle, Some(lock), until, &mut inner_invals);
                self.tell(frame, inner_invals, invalidations);
                locked.map(|reread| self.reread(frame, open, &reread))
            }
        };
        // A lock that is changed may be lost while it is.
        locker.is_held.store(reread.is_ok(), SeqCst);
        reread
    }

    /// A lock by an open lock file: on the frame that it is for now, or on the file itself where there is none.
    fn lock_by_file(
        &self,
        handle: Handle,
        file: &Arc<LockHandle>,
        lock: Flock,
        until: Option<&AtomicBool>,
        invalidations: &mut Invalidations,
    ) -> Result<Reread> {
        for _ in 0..TRIES {
            let reread = match self.frame_to_lock(file)? {
                None => {
                    self.reopen(file)?;
                    let reread = self.lock_anew(handle, On::File(file.file()), lock, until, invalidations)?;
                    self.forget_beside(file, invalidations);
                    self.frame_now(file)?.is_none().then_some(reread)
                }
                Some(frame) => {
                    let locked = self.lock_frame(handle, &frame, lock, until, invalidations);
                    self.forget_one(frame.ino);
                    let reread = locked?;
                    self.frame_now(file)?.is_some_and(|now| Arc::ptr_eq(&now, &frame)).then_some(reread)
                }
            };
            match reread {
                Some(reread) => return Ok(reread),
                // It is another's by now.
                None => drop(self.give_lock_back(handle, until, invalidations)?),
            }
        }
        Err(ViewError::Gone)
    }

    /// The frame that an open lock file is for.
    fn frame_now(&self, file: &LockHandle) -> Result<Option<Arc<TreeFrame>>> {
        Ok(self.frame_to_lock(file)?.inspect(|frame| self.forget_one(frame.ino)))
    }

    /// The frame that an open lock file is for, told to the kernel once more, so that it stays until [`Tree::forget_one`].
    fn frame_to_lock(&self, file: &LockHandle) -> Result<Option<Arc<TreeFrame>>> {
        match &file.whose {
            LockWhose::Frame(frame) => {
                let is_known = self.table.lock().tell(frame.ino);
                if is_known { Ok(Some(Arc::clone(frame))) } else { Err(ViewError::Gone) }
            }
            LockWhose::Named(parent, name) => {
                if self.owner(*parent, name).is_none_or(|owner| owner.shown == Kind::Directory) {
                    return Ok(None);
                }
                let ino = self.enter_node(*parent, name)?;
                let frame = self.frame_of(Some(ino));
                if frame.is_none() {
                    self.forget_one(ino);
                }
                Ok(frame)
            }
        }
    }

    /// The file that has the name now: natively, too, it is opened by who asks for its first lock.
    fn reopen(&self, file: &LockHandle) -> Result<()> {
        let LockWhose::Named(parent, name) = &file.whose else { return Ok(()) };
        let (dir, name) = self.below(*parent, &super::lock_files::beside(name))?;
        let now = beneath::look(dir.as_fd(), &name);
        let before = beneath::look_at(file.file().as_fd())?;
        if now.is_ok_and(|now| !now.is(&before))
            && let Some(opened) = open_lock_file(dir.as_fd(), &name, file.write)?
        {
            *file.file.lock() = Arc::new(opened);
        }
        Ok(())
    }

    fn lock_frame(
        &self,
        handle: Handle,
        frame: &Arc<TreeFrame>,
        lock: Flock,
        until: Option<&AtomicBool>,
        invalidations: &mut Invalidations,
    ) -> Result<Reread> {
        // It is opened by who may read it: others are waited for here, where a signal ends that.
        let turn = match frame.opened() {
            Some(_) => None,
            None => {
                let (dir, name) = self.lock_place(frame)?;
                let turn = open_lock_file(dir.as_fd(), &name, false)?;
                if let Some(turn) = &turn {
                    flock(turn, Flock::Shared, until)?;
                }
                turn
            }
        };
        let open = self.enter_frame(frame)?;
        drop(turn);
        let mode = OpenMode { read: true, write: true, ..OpenMode::default() };
        let inner = open.fs().open(LOCK_FILE, mode)?;
        frame.handles.fetch_add(1, SeqCst);
        let on = On::Frame { frame: Arc::clone(frame), open, inner: LOCK_FILE, handle: inner.handle, is_own: true };
        self.lock_anew(handle, on, lock, until, invalidations)
    }

    /// What a lock is for that is no frame yet may be in the kernel's caches as others had it.
    fn forget_beside(&self, file: &LockHandle, invalidations: &mut Invalidations) {
        if let LockWhose::Named(parent, name) = &file.whose
            && let Some(ino) = self.known(*parent, name)
        {
            invalidations.push(Invalidation::Data(ino));
        }
    }

    fn known(&self, parent: Ino, name: &OsStr) -> Option<Ino> {
        let dir = self.dir(parent).ok()?;
        let found = beneath::look(dir.as_fd(), name).ok()?;
        self.table.lock().find(&found)
    }

    /// Gives a lock back, if a handle has one; the handle may have ended.
    pub(super) fn give_lock_back(
        &self,
        handle: Handle,
        until: Option<&AtomicBool>,
        invalidations: &mut Invalidations,
    ) -> Result<Reread> {
        let Some(locker) = self.locks.locker(handle) else { return Ok(Reread::NEVER) };
        let unlocked = self.unlock_on(&locker, until, invalidations);
        if matches!(unlocked, Err(ViewError::Locked)) {
            return unlocked;
        }
        {
            let mut lockers = self.locks.lockers.lock();
            if lockers.get(&handle.0).is_some_and(|now| Arc::ptr_eq(now, &locker)) {
                lockers.remove(&handle.0);
            }
        }
        self.adopt_unlocked(invalidations);
        unlocked
    }

    fn unlock_on(&self, locker: &Locker, until: Option<&AtomicBool>, invalidations: &mut Invalidations) -> Result<Reread> {
        let unlocked = match &locker.on {
            On::Passed(file) => BackendFile::unlock(&file.file).map(|()| Reread::NEVER).map_err(ViewError::from),
            On::File(file) => BackendFile::unlock(&**file).map(|()| Reread::NEVER).map_err(ViewError::from),
            On::Frame { frame, open, inner, handle, .. } => {
                let mut inner_invals = Invalidations::new();
                let unlocked = open.fs().lock(*inner, *handle, None, until, &mut inner_invals);
                self.tell(frame, inner_invals, invalidations);
                unlocked.map(|reread| self.reread(frame, open, &reread))
            }
        };
        if !matches!(unlocked, Err(ViewError::Locked)) {
            locker.is_held.store(false, SeqCst);
            self.end_lock(locker, invalidations);
        }
        unlocked
    }

    /// What the kernel must have forgotten of a frame before a client goes on: also what it knew before the frame was closed once.
    fn reread(&self, frame: &Arc<TreeFrame>, open: &OpenFrame, inner: &Reread) -> Reread {
        let mut told = frame.told.lock();
        if (told.opening, told.reloads) != (open.opening, inner.count) {
            let is_first = told.opening == 0 && inner.count == 0 && open.opening == 1;
            let count = if is_first { 0 } else { self.locks.rereads.fetch_add(1, SeqCst) + 1 };
            *told = Told { opening: open.opening, reloads: inner.count, count };
        }
        let count = told.count;
        drop(told);
        let mut invalidations = Invalidations::new();
        if count > 0 {
            self.tell(frame, inner.invalidations.clone(), &mut invalidations);
        }
        Reread { of: frame.ino, count, invalidations }
    }

    /// Waits until others have done what they are doing to a frame.
    pub(super) fn wait_for_others(&self, ino: Ino) -> Result<Reread> {
        let super::place::Whose::Frame(frame, inner) = self.whose(ino)? else { return Ok(Reread::NEVER) };
        let open = self.enter_frame(&frame)?;
        let reread = open.fs().catch_up(inner)?;
        Ok(self.reread(&frame, &open, &reread))
    }

    /// Whether an open file shows what its frame is now, though others have changed that: the library keeps a frame's file open, and goes on to
    /// read it under its next lock if it has the same inode. As long as somebody has a lock, nothing changes.
    pub(super) fn follows_locks(&self, file: &InsideFile) -> bool {
        let is_locked = |locker: &Arc<Locker>| match &locker.on {
            On::Frame { frame, inner: LOCK_FILE, .. } => Arc::ptr_eq(frame, &file.frame) && locker.is_held.load(SeqCst),
            _ => false,
        };
        self.rules.locking && file.inner == ROOT && !file.mode.write && self.locks.lockers.lock().values().any(is_locked)
    }

    /// What a change may have to wait for.
    pub(super) fn waits_for(&self, ino: Ino) -> Wait {
        if !self.rules.locking {
            return Wait::Disk;
        }
        match self.whose(ino) {
            Ok(super::place::Whose::Frame(frame, inner)) => frame.opened().map_or(Wait::Others, |open| open.fs().may_wait(inner)),
            // A name in it may be a frame's.
            Ok(super::place::Whose::Passed) if self.table.lock().get(ino).is_some_and(|node| node.kind == libc::S_IFDIR) => {
                Wait::Others
            }
            _ => Wait::Disk,
        }
    }

    // --- files that become frames ---

    /// Whether a file that is to become a frame has to wait for those who have locks on it.
    pub(super) fn is_postponed(&self, ino: Ino, dir: std::os::fd::BorrowedFd<'_>, name: &OsStr) -> bool {
        if !self.rules.locking {
            return false;
        }
        let is_on = |locker: &Arc<Locker>| matches!(&locker.on, On::Passed(file) if file.ino == ino);
        let is_locked = self.locks.lockers.lock().values().any(is_on);
        let is_taken = || matches!(self.try_lock_beside(dir, name), Err(ViewError::InUse));
        let waits = is_locked || is_taken();
        if waits {
            self.locks.postponed.lock().insert(ino);
        }
        waits
    }

    fn try_lock_beside(&self, dir: std::os::fd::BorrowedFd<'_>, name: &OsStr) -> Result<()> {
        let Some(file) = open_lock_file(dir, &super::lock_files::beside(name), false)? else { return Ok(()) };
        match flock(&file, Flock::Exclusive, None) {
            Err(ViewError::Locked) => Err(ViewError::InUse),
            locked => locked,
        }
    }

    /// Files become frames that nobody writes and nobody has a lock on any more.
    pub(super) fn adopt_unlocked(&self, invalidations: &mut Invalidations) {
        let postponed = std::mem::take(&mut *self.locks.postponed.lock());
        for ino in postponed {
            self.written(ino, invalidations);
        }
    }
}
