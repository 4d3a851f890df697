//! The requests of the kernel to a tree. Each goes to the file system below, or to the frame that the inode belongs to.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::claims::{Key, With};
use super::handles::Open;
use super::place::Whose;
use super::table::ShownAs;
use super::{READ_AHEAD, Tree, hidden};
use crate::store::local::beneath;
use crate::store::{FsSpace, Watcher};
use crate::view::{
    Attr, Creation, DirEntry, Features, FileSystem, Flock, Handle, Ino, Invalidations, Left, New, OpenMode, Opened, Push,
    RenameMode, Reread, Result, Seek, SetAttr, SetMode, ViewError, Wait,
};

impl FileSystem for Tree {
    fn features(&self) -> Features {
        Features {
            read_only: self.rules.read_only,
            handles: true,
            locks: self.rules.locking,
            holes: false,
            lists_attributes: true,
            read_ahead: Some(if self.shows_data() { crate::view::array::READ_AHEAD } else { READ_AHEAD }),
            far: None,
            passes_on: Some(self.rules.timeouts),
            hears: self.hears(),
            is_untold: false,
            lists: self.rules.lists,
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
            self.leave_names(ino);
            self.listed.lock().pop(&ino);
            if let ShownAs::Frame(frame) = &node.shown {
                self.leave_notes(ino, node.names());
                self.regions.leave(frame);
            }
            return;
        }
        self.forgotten(ino);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.unless_changing(ino, || self.getattr_now(ino))
    }

    fn setattr(&self, ino: Ino, handle: Option<Handle>, set: SetAttr, invalidations: &mut Invalidations) -> Result<Attr> {
        let (settled, whose) = self.settled(ino)?;
        let is_directory = || self.table.lock().get(ino).is_some_and(|node| node.kind == libc::S_IFDIR);
        let sets_times = matches!(whose, Whose::Passed) && (set.atime.is_some() || set.mtime.is_some()) && is_directory();
        let _claim = settled.or_else(|| sets_times.then(|| self.claims.claim(vec![(Key::Times(ino), With::Nobody)])));
        match whose {
            // Of a frame there is no claim yet.
            Whose::Frame(frame, inner) => {
                self.unless_changing(frame.ino, || self.setattr_inside(&frame, ino, inner, handle, set, invalidations))
            }
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
        self.change_passed(handle, |file| beneath::allocate(file, flags, offset, len))
    }

    fn seek(&self, ino: Ino, handle: Handle, offset: u64, seek: Seek) -> Result<u64> {
        match self.passed(handle) {
            Ok(file) => Ok(beneath::seek(&file.file, offset, seek == Seek::Hole)?),
            Err(_) => self.seek_inside(ino, offset, seek),
        }
    }

    fn copy_range(&self, from: (Handle, u64), to: (Handle, u64), len: u64) -> Result<u64> {
        let (Ok(source), Ok(_)) = (self.passed(from.0), self.passed(to.0)) else { return Err(ViewError::CrossDevice) };
        match self.change_passed(to.0, |target| beneath::copy((&source.file, from.1), (target, to.1), len)) {
            Err(ViewError::Unsupported) => Err(ViewError::CrossDevice),
            copied => copied,
        }
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
            Whose::Passed => {
                let made = self.make_passed(parent, name, new, creation)?;
                self.has_come((parent, name), false, invalidations);
                Ok(made)
            }
        }
    }

    fn read(&self, ino: Ino, handle: Option<Handle>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let handle = match handle {
            Some(handle) => handle,
            None => return self.read_pushed(ino, offset, buf),
        };
        match self.handle(handle)? {
            Open::File(file) => file.read(offset, buf),
            Open::Frame(inside) => match self.read_inside(&inside, offset, buf) {
                // Its frame has become a file meanwhile.
                Err(ViewError::Gone) if matches!(self.handle(handle)?, Open::File(_)) => {
                    self.read(ino, Some(handle), offset, buf)
                }
                read => read,
            },
            Open::Lock(lock) => lock.read(offset, buf),
        }
    }

    fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<()> {
        match self.handle(handle)? {
            Open::File(file) => match file.change(|file| file.write_all_at(data, offset)) {
                Some(written) => written,
                None => self.write(handle, offset, data),
            },
            Open::Frame(inside) => self.write_inside(&inside, offset, data),
            Open::Lock(lock) => self.write_lock(&lock, offset, data),
        }
    }

    fn append(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<()> {
        match self.handle(handle)? {
            // To where the file ends just now: whether that is wanted a client may change while it has the file open.
            Open::File(file) => match file.change(|file| beneath::append(file, data)) {
                Some(written) => written,
                None => self.append(handle, offset, data),
            },
            Open::Frame(inside) => self.write_inside(&inside, offset, data),
            Open::Lock(lock) => self.write_lock(&lock, offset, data),
        }
    }

    fn flush(&self, handle: Handle, invalidations: &mut Invalidations) -> Result<()> {
        self.pay(invalidations);
        match self.handle(handle)? {
            Open::File(file) => {
                self.closed(&file, invalidations);
                self.close_passed(&file, invalidations);
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
            Whose::Frame(frame, inner) => self.rmdir_inside(&frame, inner, name, invalidations),
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
            (Whose::Passed, Whose::Passed) => {
                let both = [(from, to), (to, from)];
                let renamed = both.get(..if mode == RenameMode::Exchange { 2 } else { 1 }).unwrap_or_default();
                let enter: Vec<_> = renamed.iter().map(|(from, to)| self.enters_store(*from, *to)).collect();
                for (_, (name, _)) in enter.iter().zip(renamed).filter(|(enters, _)| **enters) {
                    self.check_enters(*name)?;
                }
                renamed.iter().for_each(|(from, _)| self.keeps_store(*from));
                self.rename_passed(from, to, mode, invalidations)?;
                for ((from, to), enters) in renamed.iter().zip(enter) {
                    self.names_change(from.0);
                    self.names_change(to.0);
                    self.renamed(*to);
                    self.leaves_mark(*from);
                    self.has_come(*to, enters, invalidations);
                }
                Ok(())
            }
            (Whose::Frame(one, source), Whose::Frame(other, target)) if Arc::ptr_eq(&one, &other) => {
                self.rename_inside(&one, (source, from.1), (target, to.1), mode, invalidations)
            }
            // Tools copy then.
            _ => Err(ViewError::CrossDevice),
        }
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        self.unless_changing(ino, || match self.whose(ino)? {
            Whose::Frame(frame, inner) => self.xattrs_inside(&frame, ino, inner),
            Whose::Passed => self.held(ino, |held| Ok(beneath::xattrs(held)?)),
        })
    }

    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>> {
        self.unless_changing(ino, || match self.whose(ino)? {
            Whose::Frame(frame, inner) => self.xattr_inside(&frame, ino, inner, name),
            Whose::Passed => self.xattr_passed(ino, name),
        })
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
            Whose::Frame(frame, inner) => {
                self.unless_changing(frame.ino, || self.set_xattr_inside(&frame, ino, inner, name, value, mode, invalidations))
            }
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

    fn caches_listing(&self, ino: Ino) -> bool {
        !self.hears() || !matches!(self.whose(ino), Ok(Whose::Passed)) || self.watches_listing(ino)
    }

    fn is_of_frame(&self, ino: Ino) -> bool {
        matches!(self.whose(ino), Ok(Whose::Frame(..)))
    }

    fn touched(&self, pid: u32, ino: Ino, read: Option<(u64, u32)>) -> Vec<Push> {
        self.touched_inside(pid, ino, read)
    }

    fn expect(&self, inos: &[Ino]) {
        self.regions.hand(inos, |fs, inner| fs.expect(inner));
    }

    fn prefetch(&self, inos: &[Ino]) {
        self.regions.hand(inos, |fs, inner| fs.prefetch(inner));
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
                let (parent, name) = frame.opened()?.fs().last_name(inner)?;
                Some((self.regions.outer(&frame, parent), name))
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

    fn hear_of(&self, ino: Ino) -> bool {
        self.watch_file(ino)
    }

    fn outdated(&self) -> Invalidations {
        self.outdated_names()
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
        let gone = crate::store::local::gone(self.root.as_fd(), &self.path).filter(|_| !self.rules.read_only);
        Left { failed: left.failed.or(synced.err()), gone, ..left }
    }

    fn source(&self) -> Option<(OwnedFd, PathBuf)> {
        Some((self.root.try_clone().ok()?, self.path.clone()))
    }

    fn shutdown(&self) -> Result<()> {
        self.frames.open.shut().and(self.sync_all())
    }

    fn report(&self) -> String {
        let known = self.table.lock().iter().count();
        let decoded = self.decoded.as_ref().map(|decoded| format!("; {}", decoded.report())).unwrap_or_default();
        format!("{}{decoded}; nodes: {known}, open files: {}", self.frames.report(), self.handles.read().len())
    }
}
