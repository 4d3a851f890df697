//! What is asked of the files of a frame: opens the frame, and translates inode numbers and what the kernel must forget.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use parking_lot::Mutex;

use super::attributes::index_of_owner;
use super::claims::Key;
use super::descriptors::OF_A_FRAME;
use super::frame::{OpenFrame, Stored, TreeFrame};
use super::handles::{InsideFile, Open, PassedFile};
use super::passed;
use super::place::{At, Whose};
use super::{Tree, forget_name};
use crate::format::Layout;
use crate::store::local::beneath::{self, Found};
use crate::view::access;
use crate::view::nodes::LOCK_FILE;
use crate::view::regions::ranges;
use crate::view::{
    Attr, Creation, DirEntry, FileSystem, Handle, Ino, Invalidations, Kind, New, OpenMode, Opened, Pages, Push, ROOT, RenameMode,
    Result, Seek, SetAttr, SetMode, ViewError,
};

/// What names of extended attributes begin with that are the frame's own.
const OF_FRAMES: [&str; 3] = ["user.b2frame.", "user.b2nd.", "user.caterva."];
/// How often a handle is taken that just ended with its frame.
const TRIES: usize = 4;

impl Tree {
    /// Adds what the kernel must forget of a frame's files.
    pub(super) fn tell(&self, frame: &Arc<TreeFrame>, inner: Invalidations, invalidations: &mut Invalidations) {
        if self.regions.tell(frame, inner, invalidations) {
            let name = self.table.lock().get(frame.ino).and_then(|node| node.names().first().cloned());
            if let Some((parent, name)) = name.filter(|_| frame.shown == Kind::Directory) {
                invalidations.push(forget_name(parent, &name));
            }
        }
    }

    /// A frame that is to be written to. If another mount had it when it was opened, that may have ended since.
    fn enter_to_write(&self, frame: &Arc<TreeFrame>) -> Result<Arc<OpenFrame>> {
        let open = self.enter_frame(frame)?;
        if !open.part.is_busy {
            return Ok(open);
        }
        drop(open);
        self.close_frame(frame);
        self.enter_frame(frame)
    }

    /// Asks a frame.
    fn ask<T>(&self, frame: &Arc<TreeFrame>, question: impl FnOnce(&dyn FileSystem) -> Result<T>) -> Result<T> {
        let open = self.enter_frame(frame)?;
        question(open.fs()).map_err(|error| self.refused(&open, error))
    }

    /// Changes a frame.
    fn change<T>(
        &self,
        frame: &Arc<TreeFrame>,
        invalidations: &mut Invalidations,
        change: impl FnOnce(&dyn FileSystem, &mut Invalidations) -> Result<T>,
    ) -> Result<T> {
        self.check_writable()?;
        frame.check_writable()?;
        let open = self.enter_to_write(frame)?;
        let mut inner = Invalidations::new();
        let changed = change(open.fs(), &mut inner).map_err(|error| self.refused(&open, error));
        self.tell(frame, inner, invalidations);
        changed
    }

    /// A frame that another mount writes is read-only for us alone.
    fn refused(&self, open: &OpenFrame, error: ViewError) -> ViewError {
        match error {
            ViewError::ReadOnly if open.part.is_busy && !self.rules.read_only => ViewError::InUse,
            error => error,
        }
    }

    fn attr_outside(&self, frame: &Arc<TreeFrame>, attr: Attr) -> Result<Attr> {
        if attr.ino == ROOT {
            let found = self.stat(frame.ino)?;
            return self.frame_attr(frame, &found);
        }
        let attr = Attr { ino: self.regions.outer(frame, attr.ino), ..attr }.with_mode(attr.meta.mode & 0o777);
        if frame.is_archive() {
            return Ok(access::shown(attr, self.rules.lists, || self.archived_rights(frame, &attr).map(Some)));
        }
        Ok(attr)
    }

    // --- names ---

    pub(super) fn lookup_inside(&self, frame: &Arc<TreeFrame>, inner: Ino, name: &OsStr) -> Result<Attr> {
        if frame.shown != Kind::Directory {
            return Err(ViewError::NotDirectory);
        }
        if self.is_lock_name(frame, name) {
            return self.lock_attr_inside(frame);
        }
        let attr = self.ask(frame, |fs| fs.lookup(inner, name))?;
        self.attr_outside(frame, attr)
    }

    pub(super) fn getattr_inside(&self, frame: &Arc<TreeFrame>, inner: Ino) -> Result<Attr> {
        if inner == LOCK_FILE && self.takes_turns(frame) {
            return self.lock_attr_inside(frame);
        }
        let attr = self.ask(frame, |fs| fs.getattr(inner))?;
        self.attr_outside(frame, attr)
    }

    pub(super) fn list_inside(
        &self,
        frame: &Arc<TreeFrame>,
        inner: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if frame.shown != Kind::Directory {
            return Err(ViewError::NotDirectory);
        }
        self.ask(frame, |fs| {
            fs.readdir(inner, cookie, &mut |entry| {
                let is_there = entry.ino != LOCK_FILE || !self.takes_turns(frame) || self.lock_attr_inside(frame).is_ok();
                !is_there || emit(DirEntry { ino: self.regions.outer(frame, entry.ino), ..entry })
            })
        })
    }

    pub(super) fn create_inside(
        &self,
        frame: &Arc<TreeFrame>,
        parent: Ino,
        inner: Ino,
        name: &OsStr,
        creation: Creation,
        mode: OpenMode,
    ) -> Result<(Attr, Opened)> {
        frame.check_writable()?;
        if self.is_lock_name(frame, name) {
            return self.create_lock_inside(frame, creation.exclusive, mode);
        }
        self.check_room(OF_A_FRAME)?;
        // What has come since the kernel looked it has not let the caller open: it looks again.
        let masked = Creation { mode: creation.mode & 0o777 & !creation.umask, exclusive: true, ..creation };
        let open = self.enter_to_write(frame)?;
        let (attr, opened) = match open.fs().create(inner, name, masked, mode) {
            Err(ViewError::Exists) if !creation.exclusive => return Err(ViewError::Gone),
            Err(ViewError::NotPermitted) if self.is_not_begun(frame, &open) => {
                drop(open);
                self.becomes_directory(frame)?;
                return self.create_passed(parent, name, creation, mode);
            }
            made => made.map_err(|error| self.refused(&open, error))?,
        };
        let opened = self.keep_inside(frame, &open, attr.ino, mode, opened);
        Ok((self.attr_outside(frame, attr)?, opened))
    }

    #[expect(clippy::too_many_arguments, reason = "as the request has them")]
    pub(super) fn make_inside(
        &self,
        frame: &Arc<TreeFrame>,
        parent: Ino,
        inner: Ino,
        name: &OsStr,
        new: New<'_>,
        creation: Creation,
        invalidations: &mut Invalidations,
    ) -> Result<Attr> {
        frame.check_writable()?;
        if matches!(new, New::Link(_)) {
            return Err(ViewError::NotPermitted);
        }
        let masked = Creation { mode: creation.mode & 0o777 & !creation.umask, ..creation };
        match self.change(frame, invalidations, |fs, invalidations| fs.make(inner, name, new, masked, invalidations)) {
            Err(ViewError::NotPermitted) if frame.opened().is_some_and(|open| self.is_not_begun(frame, &open)) => {
                self.becomes_directory(frame)?;
                self.make_passed(parent, name, new, creation)
            }
            made => self.attr_outside(frame, made?),
        }
    }

    pub(super) fn unlink_inside(
        &self,
        frame: &Arc<TreeFrame>,
        inner: Ino,
        name: &OsStr,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        if self.is_lock_name(frame, name) {
            self.lock_attr_inside(frame)?;
            return self.remove_lock_file(frame);
        }
        self.change(frame, invalidations, |fs, invalidations| fs.unlink(inner, name, invalidations))
    }

    pub(super) fn rename_inside(
        &self,
        frame: &Arc<TreeFrame>,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        mode: RenameMode,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        self.change(frame, invalidations, |fs, invalidations| fs.rename(from, to, mode, invalidations))
    }

    pub(super) fn rmdir_inside(
        &self,
        frame: &Arc<TreeFrame>,
        inner: Ino,
        name: &OsStr,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        self.change(frame, invalidations, |fs, invalidations| fs.rmdir(inner, name, invalidations))
    }

    // --- attributes ---

    pub(super) fn setattr_inside(
        &self,
        frame: &Arc<TreeFrame>,
        ino: Ino,
        inner: Ino,
        handle: Option<Handle>,
        set: SetAttr,
        invalidations: &mut Invalidations,
    ) -> Result<Attr> {
        if inner == LOCK_FILE && self.takes_turns(frame) {
            return self.lock_attr_inside(frame);
        }
        self.check_writable()?;
        frame.check_writable()?;
        if inner != ROOT {
            let handle = self.inner_handle(handle)?;
            let attr = self.change(frame, invalidations, |fs, invalidations| fs.setattr(inner, handle, set, invalidations))?;
            return self.attr_outside(frame, attr);
        }
        if set.size.is_some() {
            let handle = self.inner_handle(handle)?;
            let size = SetAttr { size: set.size, ..SetAttr::default() };
            self.change(frame, invalidations, |fs, invalidations| fs.setattr(ROOT, handle, size, invalidations))?;
        }
        let rest = SetAttr { size: None, ..set };
        if !rest.is_of_metadata() {
            *frame.sized.lock() = None;
            return self.frame_attr(frame, &self.stat(ino)?);
        }
        if (rest.uid, rest.gid) != (None, None) && frame.opened().is_some_and(|open| open.view.is_made()) {
            // It is read anew with the files' new owner, rather than when somebody is reading.
            let _ = self.quiesce(frame, invalidations);
        }
        match frame.opened().filter(|open| !open.part.is_busy) {
            // Below nothing has a name that could show it, and the frame would take it for a write by others.
            Some(open) if frame.removed.load(SeqCst) => drop(open.fs().setattr(ROOT, None, rest, invalidations)),
            None => self.keeping_handles(frame, || match frame.opened() {
                // It was opened just now.
                Some(open) => {
                    let mut result = Ok(());
                    open.view.set_attributes(&mut || result = self.set_below_frame(frame, ino, &rest));
                    result
                }
                None => self.set_below_frame(frame, ino, &rest),
            })?,
            Some(open) => {
                let mut result = Ok(());
                open.view.set_attributes(&mut || {
                    result = self.set_below_frame(frame, ino, &rest);
                    if !open.view.is_made()
                        && let Some((pending, _)) = open.fs().source()
                    {
                        // What will take the place of the empty directory. It is written to all the time, so its times are its own.
                        let bits = if frame.stored == Stored::Frame(Layout::Sparse) { 0o7777 } else { 0o666 };
                        let set = SetAttr { mode: rest.mode.map(|mode| mode & bits), atime: None, mtime: None, ..rest };
                        let _ = passed::set_held(pending.as_fd(), &set);
                    }
                });
                result?;
                if frame.shown == Kind::Directory || rest.atime.is_some() || rest.mtime.is_some() {
                    let _ = open.fs().setattr(ROOT, None, rest, &mut Invalidations::new());
                }
                invalidations.extend(ranges(&**frame));
            }
        }
        *frame.sized.lock() = None;
        self.getattr_now(ino)
    }

    /// Whether an extended attribute is the frame's own.
    fn is_of_frame(inner: Ino, name: &OsStr) -> bool {
        inner != ROOT || OF_FRAMES.iter().any(|prefix| name.as_bytes().starts_with(prefix.as_bytes()))
    }

    pub(super) fn xattrs_inside(&self, frame: &Arc<TreeFrame>, ino: Ino, inner: Ino) -> Result<Vec<u8>> {
        let mut names = self.ask(frame, |fs| fs.xattrs(inner))?;
        if inner == ROOT {
            let own = names.split_inclusive(|byte| *byte == 0);
            names = own.filter(|name| Self::is_of_frame(inner, OsStr::from_bytes(name))).flatten().copied().collect();
            let passed = self.held(ino, |held| Ok(beneath::xattrs(held)?)).unwrap_or_default();
            // What is the frame's own cannot be the file's.
            let passed = passed.split_inclusive(|byte| *byte == 0);
            names.extend(passed.filter(|name| !Self::is_of_frame(inner, OsStr::from_bytes(name))).flatten());
        }
        Ok(names)
    }

    pub(super) fn xattr_inside(&self, frame: &Arc<TreeFrame>, ino: Ino, inner: Ino, name: &OsStr) -> Result<Vec<u8>> {
        if inner == ROOT && name == access::NAME {
            return self.frame_list(frame);
        }
        if !Self::is_of_frame(inner, name) {
            return self.xattr_passed(ino, name);
        }
        if name.as_bytes().starts_with(access::NAMES.as_bytes()) && name != access::NAME {
            return Err(ViewError::NoAttribute);
        }
        if name == access::NAME {
            // The kernel asks before it lets anybody in.
            return if frame.is_archive() {
                self.archived_list(frame, &self.ask(frame, |fs| fs.getattr(inner))?)
            } else {
                self.ask(frame, |fs| fs.xattr(inner, name))
            };
        }
        if !name.as_bytes().starts_with(b"user.") {
            return Err(ViewError::Unsupported);
        }
        self.ask(frame, |fs| fs.xattr(inner, name))
    }

    #[expect(clippy::too_many_arguments, reason = "as the request has them")]
    pub(super) fn set_xattr_inside(
        &self,
        frame: &Arc<TreeFrame>,
        ino: Ino,
        inner: Ino,
        name: &OsStr,
        value: Option<&[u8]>,
        mode: SetMode,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        frame.check_writable()?;
        if !Self::is_of_frame(inner, name) {
            if frame.shown == Kind::File {
                self.held(ino, |held| match beneath::look_at(held)? {
                    found if found.stat.is_dir() => index_of_owner(held, &found, None).map(drop),
                    _ => Ok(()),
                })?;
            }
            self.keeping_handles(frame, || match name == access::NAME {
                true => self.set_list_below(frame, ino, value, mode),
                false => self.set_xattr_passed(ino, name, value, mode),
            })?;
            if let Some(open) = frame.opened().filter(|open| !open.view.is_made())
                && let Some((pending, _)) = open.fs().source()
                && !name.as_bytes().starts_with(b"system.")
            {
                // What will take the place of the empty directory.
                let _ = beneath::set_xattr(pending.as_fd(), name, value, 0);
            }
            return Ok(());
        }
        if name == access::NAME && !frame.is_archive() {
            return self.change(frame, invalidations, |fs, invalidations| fs.set_xattr(inner, name, value, mode, invalidations));
        }
        if !name.as_bytes().starts_with(b"user.") {
            return Err(ViewError::NotSettable);
        }
        self.change(frame, invalidations, |fs, invalidations| fs.set_xattr(inner, name, value, mode, invalidations))
    }

    // --- open files ---

    fn keep_inside(&self, frame: &Arc<TreeFrame>, open: &OpenFrame, inner: Ino, mode: OpenMode, opened: Opened) -> Opened {
        let file = InsideFile {
            frame: Arc::clone(frame),
            inner,
            mode,
            at: Mutex::new(Some((open.opening, opened.handle))),
            lineage: frame.slot.lineage.load(Relaxed),
            is_writing: AtomicBool::new(false),
        };
        frame.handles.fetch_add(1, Relaxed);
        file.begin_writing();
        Opened { handle: self.keep(frame.ino, Open::Frame(Arc::new(file))), ..opened }
    }

    /// Has open files go on as a frame's, which was made of what they are: each is opened there when it is used next.
    pub(super) fn move_handles(&self, frame: &Arc<TreeFrame>, open: &[(Handle, Arc<PassedFile>)]) {
        let mut handles = self.handles.write();
        for (handle, passed) in open {
            let Some(open) = handles.get_mut(&handle.0) else { continue };
            let mode = OpenMode { read: true, write: passed.write, truncate: false, drop_privileges: passed.drops };
            let lineage = frame.slot.lineage.load(Relaxed);
            let (at, is_writing) = (Mutex::new(None), AtomicBool::new(false));
            let file = InsideFile { frame: Arc::clone(frame), inner: ROOT, mode, at, lineage, is_writing };
            // One that could write may have been duplicated before it was closed.
            frame.handles.fetch_add(1, SeqCst);
            *open = Open::Frame(Arc::new(file));
        }
        drop(handles);
        if let Some(node) = self.table.lock().get_mut(frame.ino) {
            node.open.retain(|handle| !open.iter().any(|(moved, _)| moved == handle));
            node.was_written = false;
        }
        self.leave_file(frame.ino);
    }

    /// Has open files of a frame go on with the file that it is below. The caller makes the node that of the file.
    pub(super) fn move_handles_back(&self, frame: &Arc<TreeFrame>, at: At<'_>, found: &Found) {
        let inside: Vec<_> = self.handles.read().iter().filter_map(|(number, open)| of_frame(*number, open, frame)).collect();
        for (handle, inside) in inside {
            let flags = if inside.mode.write { libc::O_RDWR } else { libc::O_RDONLY };
            let Ok(file) = beneath::open_file(at.dir, at.name, flags) else { continue };
            if !beneath::look_at(file.as_fd()).is_ok_and(|now| now.is(found)) {
                continue;
            }
            let passed = PassedFile::new(frame.ino, file, inside.mode, false);
            // One that could write was closed, and ends a moment later.
            passed.close();
            if let Some(node) = self.table.lock().get_mut(frame.ino) {
                node.open.push(handle);
            }
            let moved = self.handles.write().get_mut(&handle.0).map(|open| *open = Open::File(passed));
            if moved.is_none()
                && let Some(node) = self.table.lock().get_mut(frame.ino)
            {
                // It has ended.
                node.open.retain(|open| *open != handle);
            }
        }
    }

    pub(super) fn open_inside(&self, frame: &Arc<TreeFrame>, ino: Ino, inner: Ino, mode: OpenMode) -> Result<Opened> {
        if inner == LOCK_FILE && self.takes_turns(frame) {
            return self.open_lock_inside(frame, mode);
        }
        if mode.write || mode.truncate {
            self.check_writable()?;
            frame.check_writable()?;
            self.check_room(OF_A_FRAME)?;
        }
        // Before it is open: what removes or replaces the frame meanwhile keeps it for this handle, or is seen to have not.
        frame.handles.fetch_add(1, SeqCst);
        let opened = if frame.leaving.load(SeqCst) { Ok(None) } else { self.open_counted(frame, inner, mode) };
        frame.handles.fetch_sub(1, SeqCst);
        self.end_removed(frame);
        match opened? {
            Some(opened) => Ok(opened),
            None => {
                drop(self.claims.share(Key::Node(frame.ino)));
                self.open(ino, mode)
            }
        }
    }

    /// Opens a file of a frame; none if the frame was made an ordinary file or another frame meanwhile.
    fn open_counted(&self, frame: &Arc<TreeFrame>, inner: Ino, mode: OpenMode) -> Result<Option<Opened>> {
        let open = if mode.write || mode.truncate { self.enter_to_write(frame)? } else { self.enter_frame(frame)? };
        let opened = open.fs().open(inner, mode).map_err(|error| self.refused(&open, error))?;
        // Its file may have pages of what it was.
        let is_renewed = inner == ROOT && frame.is_renewed.swap(false, SeqCst);
        let pages = if is_renewed && opened.pages == Pages::Kept { Pages::Fresh } else { opened.pages };
        let opened = self.keep_inside(frame, &open, inner, mode, Opened { pages, ..opened });
        // What makes something else of the frame has found this handle, or is found here.
        if self.frame_of(Some(frame.ino)).is_none_or(|now| !Arc::ptr_eq(&now, frame)) {
            self.release(opened.handle, &mut Invalidations::new());
            return Ok(None);
        }
        Ok(Some(opened))
    }

    /// The frame of an open file and the handle in it. A file of a frame that was closed meanwhile is opened again, if it is the same.
    pub(super) fn current(&self, file: &InsideFile) -> Result<(Arc<OpenFrame>, Handle)> {
        let open = self.enter_frame(&file.frame)?;
        let mut at = file.at.lock();
        if let Some((opening, handle)) = *at
            && opening == open.opening
        {
            return Ok((open, handle));
        }
        let is_other = file.lineage != file.frame.slot.lineage.load(Relaxed);
        let has_written = file.mode.write && at.is_some();
        if has_written || is_other && !self.follows_locks(file) {
            return Err(ViewError::Gone);
        }
        let opened = open.fs().open(file.inner, OpenMode { truncate: false, ..file.mode })?;
        *at = Some((open.opening, opened.handle));
        Ok((open, opened.handle))
    }

    fn with_file<T>(&self, file: &InsideFile, mut work: impl FnMut(&dyn FileSystem, Handle) -> Result<T>) -> Result<T> {
        let mut result = Err(ViewError::Gone);
        for _ in 0..TRIES {
            let (open, handle) = self.current(file)?;
            result = work(open.fs(), handle).map_err(|error| self.refused(&open, error));
            match result {
                Err(ViewError::Gone) if self.follows_locks(file) => self.follow(file, &open)?,
                Err(ViewError::BadHandle) if !file.mode.write => {}
                _ => break,
            }
        }
        result
    }

    /// Opens a file of a frame again as it is now.
    fn follow(&self, file: &InsideFile, open: &OpenFrame) -> Result<()> {
        let opened = open.fs().open(file.inner, OpenMode { truncate: false, ..file.mode })?;
        let before = file.at.lock().replace((open.opening, opened.handle));
        if let Some((_, handle)) = before.filter(|(opening, _)| *opening == open.opening) {
            open.fs().release(handle, &mut Invalidations::new());
        }
        Ok(())
    }

    /// The frame's own handle of an open file by which something is changed.
    fn inner_handle(&self, handle: Option<Handle>) -> Result<Option<Handle>> {
        let Some(handle) = handle else { return Ok(None) };
        match self.handle(handle)? {
            Open::Frame(file) => {
                file.begin_writing();
                Ok(Some(self.current(&file)?.1))
            }
            Open::File(_) | Open::Lock(_) => Ok(None),
        }
    }

    pub(super) fn read_inside(&self, file: &InsideFile, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.with_file(file, |fs, handle| fs.read(file.inner, Some(handle), offset, buf))
    }

    pub(super) fn write_inside(&self, file: &InsideFile, offset: u64, data: &[u8]) -> Result<()> {
        file.begin_writing();
        self.with_file(file, |fs, handle| fs.write(handle, offset, data))
    }

    pub(super) fn flush_inside(&self, file: &InsideFile, invalidations: &mut Invalidations) -> Result<()> {
        // What is written to a file that has no name any more is for nobody else.
        if !file.mode.write || file.at.lock().is_none() || file.frame.removed.load(SeqCst) {
            return Ok(());
        }
        // Before, so that what is written meanwhile counts. The handle ends a moment after the close returns, if it was not duplicated.
        file.end_writing();
        let mut inner = Invalidations::new();
        let flushed = self.with_file(file, |fs, handle| fs.flush(handle, &mut inner));
        if flushed.is_err() {
            file.begin_writing();
        }
        self.tell(&file.frame, inner, invalidations);
        flushed
    }

    pub(super) fn release_inside(&self, file: &InsideFile, invalidations: &mut Invalidations) {
        let mut inner = Invalidations::new();
        let at = *file.at.lock();
        if let (Some((opening, handle)), Some(open)) = (at, file.frame.opened())
            && open.opening == opening
        {
            open.fs().release(handle, &mut inner);
        }
        self.tell(&file.frame, inner, invalidations);
        file.frame.handles.fetch_sub(1, SeqCst);
        file.end_writing();
        self.end_removed(&file.frame);
        self.close_orphan(&file.frame);
        // While all were in use, more could have been opened than there is room for.
        self.make_room(0);
        self.forgotten(file.frame.ino);
    }

    pub(super) fn fsync_inside(&self, frame: &Arc<TreeFrame>, inner: Ino, invalidations: &mut Invalidations) -> Result<()> {
        if frame.is_unsynced.load(SeqCst) && !frame.removed.load(SeqCst) {
            let (dir, name) = self.place(frame.ino)?;
            beneath::sync_whole(dir.as_fd(), &name)?;
            frame.is_unsynced.store(false, SeqCst);
        }
        match frame.opened() {
            Some(open) if !open.part.is_busy && !frame.removed.load(SeqCst) => {
                let mut inner_invals = Invalidations::new();
                let synced = open.fs().fsync(inner, &mut inner_invals);
                self.tell(frame, inner_invals, invalidations);
                synced
            }
            _ => Ok(()),
        }
    }

    /// An fsync of a directory reaches the frames that are right in it.
    pub(super) fn sync_inside(&self, ino: Ino, invalidations: &mut Invalidations) -> Result<()> {
        for frame in self.frames.open.listed() {
            if self.parent(frame.ino).is_ok_and(|parent| parent == ino) {
                self.fsync_inside(&frame, ROOT, invalidations)?;
            }
        }
        Ok(())
    }

    /// A read without a handle, of bytes that are to be pushed.
    pub(super) fn read_pushed(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match self.whose(ino)? {
            Whose::Frame(frame, inner) => match frame.opened() {
                Some(open) => open.fs().read(inner, None, offset, buf),
                None => Err(ViewError::Gone),
            },
            Whose::Passed => Err(ViewError::Gone),
        }
    }

    /// A frame's files have no holes that a client sees.
    pub(super) fn seek_inside(&self, ino: Ino, offset: u64, seek: Seek) -> Result<u64> {
        let Whose::Frame(frame, inner) = self.whose(ino)? else { return Err(ViewError::BadHandle) };
        if frame.decoded.is_some() {
            return self.ask(&frame, |fs| fs.seek(inner, Handle(0), offset, seek));
        }
        let size = match inner {
            ROOT => self.getattr_now(ino)?.size,
            _ => self.getattr_inside(&frame, inner)?.size,
        };
        match (offset < size, seek) {
            (false, _) => Err(ViewError::System(libc::ENXIO)),
            (true, Seek::Data) => Ok(offset),
            (true, Seek::Hole) => Ok(size),
        }
    }

    // --- hints ---

    pub(super) fn touched_inside(&self, pid: u32, ino: Ino, read: Option<(u64, u32)>) -> Vec<Push> {
        self.regions.find(ino).map_or_else(Vec::new, |file| self.regions.touched(pid, file, read))
    }
}

/// An open file, if it is of that frame.
fn of_frame(number: u64, open: &Open, frame: &Arc<TreeFrame>) -> Option<(Handle, Arc<InsideFile>)> {
    match open {
        Open::Frame(inside) if Arc::ptr_eq(&inside.frame, frame) => Some((Handle(number), Arc::clone(inside))),
        _ => None,
    }
}
