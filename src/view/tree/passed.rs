//! Files and directories that are not frames: every operation becomes the same operation on DIR.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::claims::Key;
use super::handles::{Open, PassedFile, drop_privileges};
use super::place::Whose;
use super::table::ShownAs;
use super::{Tree, hidden, kind_of};
use crate::store::local::beneath::{self, Caller, Found};
use crate::view::access;
use crate::view::{
    Attr, Creation, FileSystem, Good, Handle, Ino, Invalidations, Kind, Meta, New, OpenMode, Opened, Pages, ROOT, Result,
    SetAttr, SetMode, ViewError,
};

/// Attributes as they are below.
pub fn attr(ino: Ino, found: &Found) -> Attr {
    let stat = &found.stat;
    Attr {
        ino,
        kind: kind_of(stat.mode),
        size: stat.len,
        blocks: stat.allocated / 512,
        nlink: u32::try_from(stat.links).unwrap_or(u32::MAX),
        rdev: kernel_device(found.rdev),
        meta: Meta {
            mode: stat.mode & 0o7777,
            uid: stat.uid,
            gid: stat.gid,
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
        },
        good: Good::Timeouts,
    }
}

/// A device's number as the kernel encodes it in 32 bits.
fn kernel_device(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// The reverse of it.
fn device(rdev: u32) -> u64 {
    rustix::fs::makedev((rdev & 0xf_ff00) >> 8, rdev & 0xff | (rdev >> 12) & 0xf_ff00)
}

/// On whose behalf something is made.
pub fn caller(creation: &Creation) -> Caller {
    Caller { uid: creation.uid, gid: creation.gid, umask: creation.umask, pid: creation.pid }
}

impl Tree {
    /// An open file.
    pub(super) fn handle(&self, handle: Handle) -> Result<Open> {
        self.handles.read().get(&handle.0).cloned().ok_or(ViewError::BadHandle)
    }

    /// Attributes of a node as it is now. The caller may have claimed it.
    pub(super) fn getattr_now(&self, ino: Ino) -> Result<Attr> {
        match self.whose(ino)? {
            Whose::Frame(frame, inner) if inner != ROOT => self.getattr_inside(&frame, inner),
            Whose::Frame(frame, _) if frame.removed.load(SeqCst) => {
                let open = frame.opened().ok_or(ViewError::Gone)?;
                Ok(Attr { ino, nlink: 0, ..open.fs().getattr(ROOT)? })
            }
            _ => self.getattr_watched(ino),
        }
    }

    /// Attributes of what is passed on, which is this just now.
    pub(super) fn passed_attr(&self, ino: Ino, found: &Found) -> Attr {
        let attr = attr(ino, found);
        // With its list it is what it is below.
        if self.rules.lists { attr } else { access::shown(attr, false, || self.rights_passed(ino).map(Some)) }
    }

    /// An open file that is passed on.
    pub(super) fn passed(&self, handle: Handle) -> Result<Arc<PassedFile>> {
        match self.handle(handle)? {
            Open::File(file) => Ok(file),
            Open::Frame(_) | Open::Lock(_) => Err(ViewError::Unsupported),
        }
    }

    /// Changes an open file that is passed on.
    ///
    /// # Errors
    /// [`ViewError::Unsupported`] of any other; what the system refuses.
    pub(super) fn change_passed<T>(&self, handle: Handle, work: impl Fn(&File) -> io::Result<T>) -> Result<T> {
        loop {
            if let Some(changed) = self.passed(handle)?.change(&work) {
                return changed;
            }
        }
    }

    /// Keeps an open file; answers its handle.
    pub(super) fn keep(&self, ino: Ino, open: Open) -> Handle {
        let handle = Handle(self.table.lock().serial());
        let written = match &open {
            Open::File(file) => Some(file.keeps_file()),
            Open::Frame(_) | Open::Lock(_) => None,
        };
        // Before the node has it: whoever finds it there looks it up.
        self.handles.write().insert(handle.0, open);
        if let (Some(written), Some(node)) = (written, self.table.lock().get_mut(ino)) {
            node.open.push(handle);
            node.was_written |= written;
        }
        handle
    }

    pub(super) fn open_passed(&self, ino: Ino, mode: OpenMode) -> Result<Opened> {
        if mode.write || mode.truncate {
            self.check_writable()?;
        }
        self.check_room(1)?;
        let flags = match (mode.read, mode.write) {
            (true, true) => libc::O_RDWR,
            (false, true) => libc::O_WRONLY,
            (_, false) => libc::O_RDONLY,
        };
        let opened = self.reached(ino, |dir, name, found| {
            if !found.stat.is_file() {
                // The kernel opens all others by itself.
                return Err(ViewError::Invalid);
            }
            let has_privileges = found.stat.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
            let file = beneath::open_file(dir.as_fd(), name, flags)?;
            if !beneath::look_at(file.as_fd())?.is(found) {
                return Err(ViewError::Gone);
            }
            Ok((file, name.to_owned(), has_privileges))
        });
        let (file, name, has_privileges) = match opened {
            Ok(opened) => opened,
            // Removed, and still open.
            Err(ViewError::Gone) => {
                let open = self.table.lock().get(ino).map(|node| node.open.clone()).unwrap_or_default();
                let open = open.into_iter().find_map(|handle| self.passed(handle).ok()).ok_or(ViewError::Gone)?;
                (beneath::open_again(&open.file, flags)?, OsString::new(), true)
            }
            Err(error) => return Err(error),
        };
        if mode.truncate {
            // Not before: another file may have the name by now.
            if mode.drop_privileges {
                drop_privileges(file.as_fd());
            }
            beneath::set_len(file.as_fd(), 0)?;
        }
        let pages = match has_privileges || self.rules.may_become(&name) {
            true => Pages::Fresh,
            false => Pages::Passthrough,
        };
        Ok(self.opened_passed(ino, file, mode, pages))
    }

    pub(super) fn create_passed(&self, parent: Ino, name: &OsStr, creation: Creation, mode: OpenMode) -> Result<(Attr, Opened)> {
        if let Some(lock) = self.create_lock(parent, name, creation, mode)? {
            return Ok(lock);
        }
        self.check_writable()?;
        self.check_new(parent, name)?;
        self.check_room(1)?;
        let dir = self.dir(parent)?;
        // Nobody makes a frame of it before it is known that the caller writes to it.
        let _named = self.rules.is_name(name).then(|| self.claims.share(Key::Name(parent, name.to_owned())));
        // Opened for reading as well, for who opens it through this file when it has no name any more.
        let made = beneath::create(dir.as_fd(), name, creation.mode, libc::O_RDWR, caller(&creation));
        let file = match made {
            // Somebody has made it since the kernel looked. Whether the caller may open it the kernel has to say, so it looks again.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && !creation.exclusive => {
                return Err(ViewError::Gone);
            }
            made => made?,
        };
        let found = beneath::look_at(file.as_fd())?;
        self.names_change(parent);
        let ino = self.table.lock().enter(&found, parent, name, |_| ShownAs::Plain);
        if let Some(stem) = self.locked_name(name) {
            return Ok((self.passed_attr(ino, &found), self.keep_lock_beside(ino, (parent, stem), file, mode)));
        }
        let pages = if self.rules.may_become(name) { Pages::Fresh } else { Pages::Passthrough };
        let opened = self.opened_passed(ino, file, mode, pages);
        Ok((self.attr_of(ino, &found)?, opened))
    }

    /// The kernel takes all opens of a file by itself, if it has taken one that is not closed.
    fn opened_passed(&self, ino: Ino, file: File, mode: OpenMode, pages: Pages) -> Opened {
        let open = self.table.lock().get(ino).map(|node| node.open.clone()).unwrap_or_default();
        let is_another = || open.into_iter().any(|handle| self.passed(handle).is_ok_and(|file| file.is_passed_through));
        let is_passed_through = pages == Pages::Passthrough || is_another();
        Opened { handle: self.keep(ino, Open::File(PassedFile::new(ino, file, mode, is_passed_through))), pages }
    }

    pub(super) fn forget_one(&self, ino: Ino) {
        self.forget(ino, 1, false);
    }

    /// Whether something may be made under a name.
    pub(super) fn check_new(&self, parent: Ino, name: &OsStr) -> Result<()> {
        if hidden::is_ours(name) {
            return Err(ViewError::NotPermitted);
        }
        match self.table.lock().get(parent) {
            Some(node) if node.is_covered => return Err(ViewError::NotPermitted),
            Some(_) => {}
            None => return Err(ViewError::Gone),
        }
        if self.is_of_a_lock(parent, name) { Err(ViewError::NotPermitted) } else { Ok(()) }
    }

    pub(super) fn make_passed(&self, parent: Ino, name: &OsStr, new: New<'_>, creation: Creation) -> Result<Attr> {
        self.check_writable()?;
        self.check_new(parent, name)?;
        let (dir, caller) = (self.dir(parent)?, caller(&creation));
        let dir = dir.as_fd();
        self.names_change(parent);
        match new {
            New::File => beneath::make_special(dir, name, libc::S_IFREG | creation.mode, 0, caller)?,
            New::Directory => return self.make_directory(parent, name, &creation),
            New::Symlink(text) => beneath::make_link(dir, name, text, caller)?,
            New::Special(kind, rdev) => {
                let kind = match kind {
                    Kind::Fifo => libc::S_IFIFO,
                    Kind::Socket => libc::S_IFSOCK,
                    Kind::BlockDevice => libc::S_IFBLK,
                    Kind::CharDevice => libc::S_IFCHR,
                    Kind::Directory | Kind::File | Kind::Symlink => return Err(ViewError::Invalid),
                };
                beneath::make_special(dir, name, kind | creation.mode, device(rdev), caller)?;
            }
            New::Link(of) => return self.link(of, parent, name),
        }
        self.enter(parent, name)
    }

    /// Another name. A frame has one name: with two, its commits would have to break one off.
    fn link(&self, of: Ino, parent: Ino, name: &OsStr) -> Result<Attr> {
        if self.regions.find(of).is_some() {
            return Err(ViewError::CrossDevice);
        }
        if self.is_frames_lock(of) || self.table.lock().get(of).is_some_and(|node| node.frame().is_some()) {
            return Err(ViewError::NotPermitted);
        }
        let dir = self.dir(parent)?;
        self.held(of, |held| Ok(beneath::add_name(held, dir.as_fd(), name)?))?;
        self.enter(parent, name)
    }

    pub(super) fn readlink_passed(&self, ino: Ino) -> Result<OsString> {
        self.reached(
            ino,
            |dir, name, found| {
                if found.stat.is_link() { Ok(beneath::link_text(dir.as_fd(), name)?) } else { Err(ViewError::Invalid) }
            },
        )
    }

    pub(super) fn setattr_passed(&self, ino: Ino, handle: Option<Handle>, set: SetAttr) -> Result<Attr> {
        self.check_writable()?;
        let SetAttr { size, mode, uid, gid, atime, mtime, .. } = set;
        if (size, mode, uid, gid, atime, mtime) == (None, None, None, None, None, None) {
            // So the kernel asks for what chown(2) does even if it changes neither owner nor group, and for what a write does of which it
            // tells nothing else. Who may write may take the bits away.
            if self.is_open_to_write(ino) {
                self.held(ino, |held| {
                    drop_privileges(held);
                    Ok(())
                })?;
            } else {
                self.held(ino, |held| drop_privileges_for(held, set.caller))?;
            }
        }
        let set = if set.size.is_some() && self.is_frames_lock(ino) { SetAttr { size: None, ..set } } else { set };
        self.set_below(ino, handle, &set)?;
        let found = self.stat(ino)?;
        self.attr_of(ino, &found)
    }

    /// Whether a file has a handle for writing, closed or not: it may have been duplicated.
    fn is_open_to_write(&self, ino: Ino) -> bool {
        let open = self.table.lock().get(ino).map(|node| node.open.clone()).unwrap_or_default();
        open.into_iter().any(|handle| self.passed(handle).is_ok_and(|file| file.write))
    }

    /// Sets attributes of what a node is below.
    fn set_below(&self, ino: Ino, handle: Option<Handle>, set: &SetAttr) -> Result<()> {
        if let Some(size) = set.size {
            match handle.filter(|handle| self.passed(*handle).is_ok_and(|file| file.write)) {
                Some(handle) => self.change_passed(handle, |file| file.set_len(size))?,
                None => self.held(ino, |held| {
                    if set.drop_privileges {
                        drop_privileges(held);
                    }
                    Ok(beneath::set_len(held, size)?)
                })?,
            }
        }
        if (set.mode, set.uid, set.gid, set.atime, set.mtime) == (None, None, None, None, None) {
            return Ok(());
        }
        self.held(ino, |held| set_held(held, set))
    }

    pub(super) fn xattr_passed(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>> {
        // ls asks for the label of every file, until it hears that there are no labels.
        if !self.has_labels && name == "security.selinux" {
            return Err(ViewError::Unsupported);
        }
        // What is shown as a directory is asked for it by ls, and only directories have one.
        if name == "system.posix_acl_default" && self.table.lock().get(ino).is_some_and(|node| node.kind == libc::S_IFREG) {
            return Err(ViewError::NoAttribute);
        }
        // Of the file itself: the name may stand for another by now, and the kernel goes by its list of access rights.
        self.held(ino, |held| Ok(beneath::xattr(held, name)?))
    }

    pub(super) fn set_xattr_passed(&self, ino: Ino, name: &OsStr, value: Option<&[u8]>, mode: SetMode) -> Result<()> {
        let flags = match mode {
            SetMode::Any => 0,
            SetMode::Create => libc::XATTR_CREATE,
            SetMode::Replace => libc::XATTR_REPLACE,
        };
        self.held(ino, |held| Ok(beneath::set_xattr(held, name, value, flags)?))
    }

    pub(super) fn fsync_passed(&self, ino: Ino, invalidations: &mut Invalidations) -> Result<()> {
        let kind = self.table.lock().get(ino).map(|node| node.kind).ok_or(ViewError::Gone)?;
        if kind == libc::S_IFDIR {
            self.sync_inside(ino, invalidations)?;
            return Ok(beneath::sync_dir(self.dir(ino)?.as_fd())?);
        }
        let open = self.table.lock().get(ino).map(|node| node.open.clone()).unwrap_or_default();
        match open.into_iter().find_map(|handle| self.passed(handle).ok()) {
            Some(file) => Ok(file.file.sync_all()?),
            None => Ok(()),
        }
    }

    pub(super) fn release_passed(&self, handle: Handle, file: Arc<PassedFile>, invalidations: &mut Invalidations) {
        // Closes of several may come in another order than they were made.
        let (is_last, is_written) = {
            let mut table = self.table.lock();
            table.get_mut(file.ino).map_or((true, false), |node| {
                node.open.retain(|open| *open != handle);
                let is_last = node.open.is_empty();
                (is_last, is_last && std::mem::take(&mut node.was_written))
            })
        };
        if is_last {
            self.leave_file(file.ino);
        }
        let ino = file.ino;
        drop(file);
        if is_written {
            self.written(ino, invalidations);
        }
    }
}

/// Takes away bits by which a program runs as its owner or group, if a user may: root, or the owner.
fn drop_privileges_for(held: BorrowedFd<'_>, (uid, gid): (u32, u32)) -> Result<()> {
    let stat = beneath::look_at(held)?.stat;
    let by_group = stat.mode & libc::S_ISGID != 0 && (stat.mode & libc::S_IXGRP != 0 || stat.gid != gid);
    let has_any = stat.is_file() && (stat.mode & libc::S_ISUID != 0 || by_group);
    if has_any && uid != 0 && uid != stat.uid {
        return Err(ViewError::NotPermitted);
    }
    drop_privileges(held);
    Ok(())
}

/// Sets all attributes but the size of what is held.
pub fn set_held(held: BorrowedFd<'_>, set: &SetAttr) -> Result<()> {
    if set.uid.is_some() || set.gid.is_some() {
        beneath::set_owner(held, set.uid, set.gid)?;
    }
    if let Some(mode) = set.mode {
        beneath::set_mode(held, mode)?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        beneath::set_times(held, set.atime, set.mtime)?;
    }
    Ok(())
}
