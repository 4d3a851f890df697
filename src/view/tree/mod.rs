//! A whole directory, mounted: frames are shown in the layout that the user chose, and everything else is passed through.
//!
//! - [`table`]: the nodes that the kernel knows; [`place`]: where they are below, opened beneath a descriptor that is held;
//! - `passed`: files and directories that are not frames; `listing`: directories;
//! - [`frame`]: a frame, opened when somebody goes inside and closed when others need its place; `inside`: what is asked of its files;
//!   `attributes`: its owner and mode;
//! - `decoded`: frames whose data is shown;
//! - `archives`: those of python-blosc2, each shown as a directory that is only read;
//! - `locking`: flock(2); `lock_files`: where the lock files of frames are;
//! - `making`, `removing`, `renaming`: frames that come, go and move; `stores`: those of python-blosc2; `hidden`: names that are ours;
//! - [`rules`]: what is a frame, and how it is shown and stored.
//!
//! A frame's files have inode numbers of their own, which [`super::regions`] computes: the tree keeps nothing for each of them.
//!
//! Lock order: a frame's state, then the table, then any one of the others, which are leaves. No lock but a frame's state is held during
//! input and output, and that only while the frame is opened or closed.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use lru::LruCache;
use parking_lot::{Mutex, RwLock};

use self::decoded::DecodedNames;
use self::frame::TreeFrame;
use self::frames::Frames;
use self::handles::Open;
use self::place::Whose;
use self::table::Table;
use super::regions::Regions;
use super::{
    Attr, Blocks, Creation, Decoded, DirEntry, Features, FileSystem, Flock, Handle, Ino, Invalidation, Invalidations, Kind, Left,
    New, OpenMode, Opened, Push, ROOT, RenameMode, Reread, Result, Seek, SetAttr, SetMode, Timeouts, ViewError, Wait,
};
use crate::store::local::beneath::{self, FileId, Found};
use crate::store::local::system;
use crate::store::{FsSpace, Resources, Watcher};

mod archives;
mod attributes;
mod decoded;
mod frame;
mod frames;
mod handles;
mod hidden;
mod inside;
mod listing;
mod lock_files;
mod locking;
mod making;
mod moving;
mod passed;
mod place;
mod removing;
mod renaming;
mod rules;
mod stores;
mod table;
#[cfg(test)]
mod tests;

#[cfg(feature = "remote")]
pub(super) use decoded::{DataKind, FIRST_READ, LONGEST_HEADER};
#[cfg(feature = "remote")]
pub(super) use frame::{Stored, is_damage};
pub use rules::Rules;

/// The layout in which frames are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// The one that a frame does not have.
    Other,
    /// Directories of chunk files.
    Sparse,
    /// One file each.
    Contiguous,
    /// The data of each: arrays as files of NumPy's, others as they are.
    Npy,
    /// The data of each as it is.
    Raw,
}

/// Bytes that the kernel reads ahead in a file that it does not read by itself.
const READ_AHEAD: u32 = 1 << 20;

/// So often a name is looked at while others are renamed.
const LOOKS: usize = 16;

/// A directory, mounted whole.
pub struct Tree {
    root: OwnedFd,
    /// The root's path, for messages.
    path: PathBuf,
    device: u64,
    rules: Rules,
    /// The system has labels of SELinux.
    has_labels: bool,
    table: Mutex<Table>,
    /// Directories that are open, to look names up in.
    dirs: Mutex<LruCache<Ino, Arc<OwnedFd>>>,
    handles: RwLock<HashMap<u64, Open>>,
    regions: Regions<TreeFrame>,
    frames: Frames,
    /// When directories were last listed from the beginning.
    listed: Mutex<LruCache<Ino, Instant>>,
    locks: locking::TreeLocks,
    /// What begins as a frame does, and is none.
    broken: Mutex<LruCache<FileId, frame::Sized>>,
    /// Held while an archive is opened. Taken while nothing but that archive's state is held.
    opening: Mutex<()>,
    /// Directories that were made stores.
    stores: Mutex<HashSet<Ino>>,
    /// What frames are shown as whose data is shown.
    decoded: Option<DecodedNames>,
    /// How frames were stored that are gone.
    layouts: Mutex<making::Layouts>,
    /// Held for writing while a file becomes a frame, and for reading while something is done with one that may. Taken before all others.
    adopting: RwLock<()>,
    /// What the kernel must forget because of what a look-up has found. A leaf lock.
    owed: Mutex<Invalidations>,
}

impl Tree {
    /// Shows a directory. Messages call it `path`.
    ///
    /// # Errors
    /// What the system refuses; what is no directory.
    pub fn open(path: &Path, rules: Rules, resources: Arc<Resources>) -> Result<Self> {
        let (root, real) = beneath::open_root(path)?;
        Self::over(root, real, rules, resources)
    }

    /// Shows a directory that is open.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn over(root: OwnedFd, path: PathBuf, rules: Rules, resources: Arc<Resources>) -> Result<Self> {
        let found = beneath::look_at(root.as_fd())?;
        if !found.stat.is_dir() {
            return Err(ViewError::NotDirectory);
        }
        let limits = frames::Limits::of_this_process();
        Ok(Tree {
            device: found.id.dev,
            has_labels: system::has_labels(),
            table: Mutex::new(Table::new(&found)),
            dirs: Mutex::new(LruCache::new(limits.dirs)),
            handles: RwLock::default(),
            regions: Regions::default(),
            frames: Frames::new(resources, limits.frames),
            owed: Mutex::default(),
            listed: Mutex::new(LruCache::new(listing::REMEMBERED)),
            locks: locking::TreeLocks::default(),
            broken: Mutex::new(LruCache::new(frames::BROKEN)),
            opening: Mutex::default(),
            stores: Mutex::default(),
            decoded: None,
            layouts: Mutex::default(),
            adopting: RwLock::default(),
            root,
            path,
            rules,
        })
    }

    /// The same, where the data of frames is shown, which is decoded here.
    #[must_use]
    pub fn decoding(mut self, blocks: Arc<Blocks>) -> Self {
        self.decoded = Some(DecodedNames::new(blocks));
        self
    }

    /// Has on disk whatever clients did, where they may do anything.
    fn sync_all(&self) -> Result<()> {
        if self.rules.read_only {
            return Ok(());
        }
        Ok(beneath::sync_fs(self.root.as_fd())?)
    }

    fn check_writable(&self) -> Result<()> {
        if self.rules.read_only { Err(ViewError::ReadOnly) } else { Ok(()) }
    }

    /// What a name in a directory stands for, told to the kernel once more.
    fn enter(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        let name = &self.name_below(parent, name)?;
        let (dir, below) = self.below(parent, name)?;
        let (ino, found) = self.enter_at(parent, name, dir.as_fd(), &below)?;
        self.attr_of(ino, &found).inspect_err(|_| self.forget(ino, 1, false))
    }

    /// The node of what a name in a directory stands for, told to the kernel once more.
    fn enter_node(&self, parent: Ino, name: &OsStr) -> Result<Ino> {
        let dir = self.dir(parent)?;
        Ok(self.enter_at(parent, name, dir.as_fd(), name)?.0)
    }

    /// The same, and what it is; below it has another name, perhaps in another directory.
    fn enter_at(&self, parent: Ino, name: &OsStr, dir: std::os::fd::BorrowedFd<'_>, below: &OsStr) -> Result<(Ino, Found)> {
        for attempt in 1.. {
            // What is found may be renamed before it is in the table, which then has its other name already.
            let moves = Some(self.table.lock().moves()).filter(|_| attempt < LOOKS);
            let found = beneath::look(dir, below)?;
            if let Some(ino) = self.enter_found(parent, name, dir, &found, moves) {
                return Ok((ino, found));
            }
        }
        Err(ViewError::Gone)
    }

    /// The node of what was found, told to the kernel once more; none if something was renamed since there were so many `moves`.
    fn enter_found(
        &self,
        parent: Ino,
        name: &OsStr,
        dir: std::os::fd::BorrowedFd<'_>,
        found: &Found,
        moves: Option<u64>,
    ) -> Option<Ino> {
        let known = self.table.lock().find(found);
        let known = known.or_else(|| self.is_now(parent, name, found));
        let known = known.filter(|ino| {
            let stays = self.is_shown_rightly(*ino, parent, name, dir, found);
            if !stays {
                self.shows_anew(*ino);
            }
            stays
        });
        let settled = || Some(self.table.lock()).filter(|table| moves.is_none_or(|moves| moves == table.moves()));
        Some(match known {
            Some(_) => settled()?.enter(found, parent, name, |_| table::Shown::Plain),
            None => {
                let is_covered = self.is_covering(found);
                let stored = if is_covered { None } else { self.stored_at(parent, name, dir, found) };
                let (stored, decoded) = self.data_at(name, dir, found, stored);
                let in_store = matches!(stored, Some(frame::Stored::Frame(_))) && self.is_in_store(parent);
                let mut table = settled()?;
                let ino = table.enter(found, parent, name, |ino| match stored {
                    None => table::Shown::Plain,
                    Some(stored) => {
                        let shown = self.rules.shown(stored, in_store);
                        table::Shown::Frame(TreeFrame::of_data(ino, stored, shown, decoded.clone()))
                    }
                });
                if let Some(node) = table.get_mut(ino).filter(|_| is_covered) {
                    node.is_covered = true;
                }
                ino
            }
        })
    }

    /// Whether another file system is mounted on what was found, which is not shown.
    fn is_covering(&self, found: &Found) -> bool {
        found.stat.is_dir() && found.id.dev != self.device && !self.rules.cross
    }

    /// The layout of the frame that a name stands for, if it is one that the user wants shown.
    fn frame_at(
        &self,
        parent: Ino,
        name: &OsStr,
        dir: std::os::fd::BorrowedFd<'_>,
        found: &Found,
    ) -> Option<crate::format::Layout> {
        let layout = self.rules.look(dir, name, found)?;
        if self.is_broken(found) {
            return None;
        }
        self.is_chosen(parent, name).then_some(layout)
    }

    /// Whether the user wants what has a name shown as a frame, if it is one.
    fn is_chosen(&self, parent: Ino, name: &OsStr) -> bool {
        let is_all = self.rules.frames.is_empty() && self.rules.noframes.is_empty();
        is_all || self.rules.is_chosen(self.path_of(parent, name).as_os_str().as_encoded_bytes())
    }

    /// Attributes of a node below, which are these just now, as they are shown.
    fn attr_of(&self, ino: Ino, found: &Found) -> Result<Attr> {
        let shown = {
            let table = self.table.lock();
            table.get(ino).map(|node| (node.shown.clone(), node.is_covered))
        };
        match shown {
            Some((table::Shown::Frame(frame), _)) => self.frame_attr(&frame, found),
            Some((table::Shown::Plain, _)) => Ok(passed::attr(ino, found)),
            None => Err(ViewError::Gone),
        }
    }

    /// A path beneath the root, for messages and patterns.
    fn path_of(&self, parent: Ino, name: &OsStr) -> PathBuf {
        let way = self.table.lock().way(parent).unwrap_or_default();
        let mut path: PathBuf = way.into_iter().map(|(_, name)| name).collect();
        path.push(name);
        path
    }

    /// What is owed to the kernel from before.
    fn pay(&self, invalidations: &mut Invalidations) {
        let mut owed = std::mem::take(&mut *self.owed.lock());
        self.in_shown_names(&mut owed);
        invalidations.append(&mut owed);
    }

    /// What a frame that was found is stored as, and what its data is shown as: of nothing but frames whose data can be shown, where that
    /// is what is shown.
    fn data_at(
        &self,
        name: &OsStr,
        dir: std::os::fd::BorrowedFd<'_>,
        found: &Found,
        stored: Option<frame::Stored>,
    ) -> (Option<frame::Stored>, Option<Decoded>) {
        match stored {
            Some(frame::Stored::Frame(layout)) if self.shows_data() => match self.decoded_at(name, dir, found, layout) {
                Some(decoded) => (stored, Some(decoded)),
                None => (None, None),
            },
            _ => (stored, None),
        }
    }
}

impl FileSystem for Tree {
    fn features(&self) -> Features {
        Features {
            read_only: self.rules.read_only,
            handles: true,
            locks: self.rules.locking,
            holes: false,
            lists_attributes: true,
            read_ahead: Some(READ_AHEAD),
            far: None,
            passes_on: Some(self.rules.timeouts),
        }
    }

    fn lookup(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        match self.whose(parent)? {
            Whose::Passed if hidden::is_ours(name) => Err(ViewError::NotFound),
            Whose::Passed if self.locked_name(name).is_some_and(|stem| self.is_gone(parent, stem)) => Err(ViewError::NotFound),
            Whose::Passed => self.enter(parent, name),
            Whose::Frame(frame, inner) => self.lookup_inside(&frame, inner, name),
        }
    }

    fn forget(&self, ino: Ino, count: u64, altogether: bool) {
        if let Some((frame, inner)) = self.regions.find(ino) {
            if altogether && let Some(open) = frame.opened() {
                open.fs().forget(inner, count, true);
            }
            return;
        }
        let gone = self.table.lock().forget(ino, count);
        if gone.is_some() {
            self.stores.lock().remove(&ino);
        }
        if let Some(node) = gone {
            self.dirs.lock().pop(&ino);
            self.listed.lock().pop(&ino);
            if let table::Shown::Frame(frame) = &node.shown {
                self.regions.leave(frame);
            }
            return;
        }
        self.forgotten(ino);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        match self.whose(ino)? {
            Whose::Frame(frame, inner) if inner != ROOT => self.getattr_inside(&frame, inner),
            Whose::Frame(frame, _) if frame.removed.load(SeqCst) => {
                let open = frame.opened().ok_or(ViewError::Gone)?;
                Ok(Attr { ino, nlink: 0, ..open.fs().getattr(ROOT)? })
            }
            _ => {
                let found = self.stat(ino)?;
                self.attr_of(ino, &found)
            }
        }
    }

    fn setattr(&self, ino: Ino, handle: Option<Handle>, set: SetAttr, invalidations: &mut Invalidations) -> Result<Attr> {
        let (settled, whose) = self.settled(ino)?;
        // The times of a directory are not set while a file in it becomes a frame, which gives them back as they were.
        let _settled = settled.or_else(|| matches!(whose, Whose::Passed).then(|| self.adopting.read()));
        match whose {
            Whose::Frame(frame, inner) => self.setattr_inside(&frame, ino, inner, handle, set, invalidations),
            Whose::Passed => self.setattr_passed(ino, handle, set),
        }
    }

    fn readlink(&self, ino: Ino) -> Result<OsString> {
        self.readlink_passed(ino)
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Opened> {
        let (_settled, whose) = self.settled(ino)?;
        match whose {
            Whose::Frame(frame, inner) => self.open_inside(&frame, ino, inner, mode),
            Whose::Passed => match self.open_lock(ino, mode)? {
                Some(opened) => Ok(opened),
                None => self.open_passed(ino, mode),
            },
        }
    }

    fn backing(&self, handle: Handle) -> Result<OwnedFd> {
        let file = self.passed(handle)?;
        Ok(beneath::reopen(&file.file)?)
    }

    fn allocate(&self, handle: Handle, offset: u64, len: u64, flags: i32) -> Result<()> {
        let file = self.passed(handle)?;
        file.drop_privileges();
        Ok(beneath::allocate(&file.file, flags, offset, len)?)
    }

    fn seek(&self, ino: Ino, handle: Handle, offset: u64, seek: Seek) -> Result<u64> {
        match self.passed(handle) {
            Ok(file) => Ok(beneath::seek(&file.file, offset, seek == Seek::Hole)?),
            Err(_) => self.seek_inside(ino, offset, seek),
        }
    }

    fn copy_range(&self, from: (Handle, u64), to: (Handle, u64), len: u64) -> Result<u64> {
        let (source, target) = (self.passed(from.0), self.passed(to.0));
        let (Ok(source), Ok(target)) = (source, target) else { return Err(ViewError::CrossDevice) };
        target.drop_privileges();
        Ok(beneath::copy((&source.file, from.1), (&target.file, to.1), len)?)
    }

    fn create(&self, parent: Ino, name: &OsStr, creation: Creation, mode: OpenMode) -> Result<(Attr, Opened)> {
        self.check_name(parent, name)?;
        match self.whose(parent)? {
            Whose::Frame(frame, inner) => self.create_inside(&frame, parent, inner, name, creation, mode),
            Whose::Passed => self.create_passed(parent, name, creation, mode),
        }
    }

    fn make(
        &self,
        parent: Ino,
        name: &OsStr,
        new: New<'_>,
        creation: Creation,
        invalidations: &mut Invalidations,
    ) -> Result<Attr> {
        self.pay(invalidations);
        self.check_name(parent, name)?;
        match self.whose(parent)? {
            Whose::Frame(frame, inner) => self.make_inside(&frame, parent, inner, name, new, creation, invalidations),
            Whose::Passed => self.make_passed(parent, name, new, creation),
        }
    }

    fn read(&self, ino: Ino, handle: Option<Handle>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let handle = match handle {
            Some(handle) => handle,
            None => return self.read_pushed(ino, offset, buf),
        };
        match self.handle(handle)? {
            Open::File(file) => file.read(offset, buf),
            Open::Frame(inside) => self.read_inside(&inside, offset, buf),
            Open::Lock(lock) => lock.read(offset, buf),
        }
    }

    fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<()> {
        match self.handle(handle)? {
            Open::File(file) => file.write(offset, data),
            Open::Frame(inside) => self.write_inside(&inside, offset, data),
            Open::Lock(lock) => self.write_lock(&lock, offset, data),
        }
    }

    fn append(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<()> {
        match self.handle(handle)? {
            Open::File(file) => file.append(data),
            Open::Frame(inside) => self.write_inside(&inside, offset, data),
            Open::Lock(lock) => self.write_lock(&lock, offset, data),
        }
    }

    fn flush(&self, handle: Handle, invalidations: &mut Invalidations) -> Result<()> {
        self.pay(invalidations);
        match self.handle(handle)? {
            Open::File(file) => {
                self.closed(&file, invalidations);
                Ok(())
            }
            Open::Frame(inside) => self.flush_inside(&inside, invalidations),
            Open::Lock(_) => Ok(()),
        }
    }

    fn release(&self, handle: Handle, invalidations: &mut Invalidations) {
        self.pay(invalidations);
        let open = self.handles.write().remove(&handle.0);
        match open {
            Some(Open::File(file)) => self.release_passed(handle, file, invalidations),
            Some(Open::Frame(inside)) => self.release_inside(&inside, invalidations),
            Some(Open::Lock(_)) => self.adopt_unlocked(invalidations),
            None => {}
        }
    }

    fn fsync(&self, ino: Ino, invalidations: &mut Invalidations) -> Result<()> {
        self.pay(invalidations);
        match self.whose(ino)? {
            Whose::Frame(frame, inner) => self.fsync_inside(&frame, inner, invalidations),
            Whose::Passed => self.fsync_passed(ino, invalidations),
        }
    }

    fn unlink(&self, parent: Ino, name: &OsStr, invalidations: &mut Invalidations) -> Result<()> {
        self.pay(invalidations);
        self.check_name(parent, name)?;
        match self.whose(parent)? {
            Whose::Frame(frame, inner) => self.unlink_inside(&frame, inner, name, invalidations),
            Whose::Passed => self.remove(parent, name, false),
        }
    }

    fn rmdir(&self, parent: Ino, name: &OsStr, invalidations: &mut Invalidations) -> Result<()> {
        self.pay(invalidations);
        self.check_name(parent, name)?;
        match self.whose(parent)? {
            Whose::Frame(frame, _) => frame.check_writable().and(Err(ViewError::NotDirectory)),
            Whose::Passed => self.remove(parent, name, true),
        }
    }

    fn rename(&self, from: (Ino, &OsStr), to: (Ino, &OsStr), mode: RenameMode, invalidations: &mut Invalidations) -> Result<()> {
        self.pay(invalidations);
        self.check_name(from.0, from.1)?;
        self.check_name(to.0, to.1)?;
        let whose = (self.whose(from.0)?, self.whose(to.0)?);
        Self::check_no_archive(&[&whose.0, &whose.1])?;
        match whose {
            (Whose::Passed, Whose::Passed) => self.rename_passed(from, to, mode, invalidations),
            (Whose::Frame(one, inner), Whose::Frame(other, _)) if Arc::ptr_eq(&one, &other) => {
                self.rename_inside(&one, inner, from.1, to.1, mode, invalidations)
            }
            // Tools copy then.
            _ => Err(ViewError::CrossDevice),
        }
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        match self.whose(ino)? {
            Whose::Frame(frame, inner) => self.xattrs_inside(&frame, ino, inner),
            Whose::Passed => self.held(ino, |held| Ok(beneath::xattrs(held)?)),
        }
    }

    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>> {
        match self.whose(ino)? {
            Whose::Frame(frame, inner) => self.xattr_inside(&frame, ino, inner, name),
            Whose::Passed => self.xattr_passed(ino, name),
        }
    }

    fn set_xattr(
        &self,
        ino: Ino,
        name: &OsStr,
        value: Option<&[u8]>,
        mode: SetMode,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        self.check_writable()?;
        let (_settled, whose) = self.settled(ino)?;
        match whose {
            Whose::Frame(frame, inner) => self.set_xattr_inside(&frame, ino, inner, name, value, mode, invalidations),
            Whose::Passed => self.set_xattr_passed(ino, name, value, mode),
        }
    }

    fn readdir(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        match self.whose(ino)? {
            Whose::Frame(frame, inner) => self.list_inside(&frame, inner, cookie, emit),
            Whose::Passed => self.list(ino, cookie, true, emit),
        }
    }

    fn entries(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        match self.whose(ino)? {
            Whose::Frame(frame, inner) => self.list_inside(&frame, inner, cookie, emit),
            Whose::Passed => self.list(ino, cookie, false, emit),
        }
    }

    fn keeps_listing(&self, ino: Ino) -> bool {
        match self.whose(ino) {
            // Others may write an archive unheard.
            Ok(Whose::Frame(frame, _)) => !frame.is_archive(),
            // With a new listing come the attributes of all names, which the kernel would have to ask for one by one when they are too old.
            Ok(Whose::Passed) => self.is_listing_young(ino),
            Err(_) => false,
        }
    }

    fn touched(&self, pid: u32, ino: Ino, read: Option<(u64, u32)>) -> Vec<Push> {
        self.touched_inside(pid, ino, read)
    }

    fn expect(&self, inos: &[Ino]) {
        self.by_frame(inos, |fs, inner| fs.expect(inner));
    }

    fn prefetch(&self, inos: &[Ino]) {
        self.by_frame(inos, |fs, inner| fs.prefetch(inner));
    }

    fn lock(
        &self,
        _ino: Ino,
        handle: Handle,
        lock: Option<Flock>,
        until: Option<&AtomicBool>,
        invalidations: &mut Invalidations,
    ) -> Result<Reread> {
        match lock {
            Some(lock) => self.take_lock(handle, lock, until, invalidations),
            None => self.give_lock_back(handle, until, invalidations),
        }
    }

    fn catch_up(&self, ino: Ino) -> Result<Reread> {
        self.wait_for_others(ino)
    }

    fn may_wait(&self, ino: Ino) -> Wait {
        self.waits_for(ino)
    }

    fn last_name(&self, ino: Ino) -> Option<(Ino, OsString)> {
        match self.regions.find(ino) {
            Some((frame, inner)) => {
                let (_, name) = frame.opened()?.fs().last_name(inner)?;
                Some((frame.ino, name))
            }
            None => {
                let table = self.table.lock();
                let node = table.get(ino)?;
                let (parent, name) = node.names().first()?;
                let shown = node.frame().map_or_else(|| name.to_os_string(), |frame| frame.name_shown(name));
                Some((*parent, shown))
            }
        }
    }

    fn watcher(&self) -> Option<Arc<Watcher>> {
        Some(Arc::clone(self.frames.resources().watcher()))
    }

    fn follow(&self, invalidations: &mut Invalidations) -> Option<Instant> {
        self.pay(invalidations);
        self.follow_frames(invalidations)
    }

    fn statfs(&self) -> Result<FsSpace> {
        Ok(beneath::space(self.root.as_fd())?)
    }

    fn tick(&self, now: Instant, invalidations: &mut Invalidations) -> Option<Instant> {
        self.pay(invalidations);
        self.tick_frames(now, invalidations)
    }

    fn leave(&self, regardless: bool, invalidations: &mut Invalidations) -> Left {
        let left = self.leave_frames(regardless, invalidations);
        // Names that were changed, and files that are passed on.
        let synced = self.sync_all();
        Left { failed: left.failed.or(synced.err()), ..left }
    }

    fn source(&self) -> Option<(OwnedFd, PathBuf)> {
        Some((self.root.try_clone().ok()?, self.path.clone()))
    }

    fn shutdown(&self) -> Result<()> {
        self.shut_frames().and(self.sync_all())
    }

    fn report(&self) -> String {
        let known = self.table.lock().iter().count();
        let decoded = self.decoded.as_ref().map(|decoded| format!("; {}", decoded.report())).unwrap_or_default();
        format!("{}{decoded}; nodes: {known}, open files: {}", self.frames.report(), self.handles.read().len())
    }
}

/// What the kernel must forget of a name and of what it stood for.
fn forget_name(parent: Ino, name: &OsStr) -> Invalidation {
    Invalidation::Entry(parent, name.to_owned())
}

/// See [`Timeouts`].
pub const DEFAULT_TIMEOUTS: Timeouts =
    Timeouts { entry: std::time::Duration::from_secs(1), attr: std::time::Duration::from_secs(1) };

/// The kind of a file by its mode.
fn kind_of(mode: u32) -> Kind {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFLNK => Kind::Symlink,
        libc::S_IFIFO => Kind::Fifo,
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFBLK => Kind::BlockDevice,
        libc::S_IFCHR => Kind::CharDevice,
        _ => Kind::File,
    }
}
