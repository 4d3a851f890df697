//! What is asked of the files of a frame: opens the frame, and translates inode numbers.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;

use super::frame::{OpenFrame, RemoteFrame};
use super::{Open, RemoteTree};
use crate::view::{
    Attr, DirEntry, FileSystem, Handle, Ino, Invalidations, Kind, OpenMode, Opened, Push, ROOT, Result, Seek, ViewError,
};

/// How often a handle is taken that just ended with its frame.
const TRIES: usize = 4;

/// An open file of a frame.
pub struct InsideFile {
    frame: Arc<RemoteFrame>,
    inner: Ino,
    mode: OpenMode,
    /// The frame's opening, and its handle in that.
    at: Mutex<(u64, Handle)>,
    lineage: u64,
}

impl RemoteTree {
    /// Asks a frame.
    pub(super) fn ask<T>(&self, frame: &Arc<RemoteFrame>, question: impl FnOnce(&dyn FileSystem) -> Result<T>) -> Result<T> {
        let open = self.enter_frame(frame)?;
        question(open.fs())
    }

    pub(super) fn attr_outside(&self, frame: &Arc<RemoteFrame>, attr: Attr) -> Attr {
        Attr { ino: self.regions.outer(frame, attr.ino), ..attr }
    }

    fn check_directory(frame: &RemoteFrame) -> Result<()> {
        if frame.shown == Kind::Directory { Ok(()) } else { Err(ViewError::NotDirectory) }
    }

    pub(super) fn lookup_inside(&self, frame: &Arc<RemoteFrame>, name: &OsStr) -> Result<Attr> {
        Self::check_directory(frame)?;
        let attr = self.ask(frame, |fs| fs.lookup(ROOT, name))?;
        Ok(self.attr_outside(frame, attr))
    }

    pub(super) fn list_inside(
        &self,
        frame: &Arc<RemoteFrame>,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        Self::check_directory(frame)?;
        self.ask(frame, |fs| {
            fs.readdir(ROOT, cookie, &mut |entry| emit(DirEntry { ino: self.regions.outer(frame, entry.ino), ..entry }))
        })
    }

    pub(super) fn open_inside(&self, frame: &Arc<RemoteFrame>, inner: Ino, mode: OpenMode) -> Result<Opened> {
        let open = self.enter_frame(frame)?;
        let opened = open.fs().open(inner, mode)?;
        let (frame, lineage) = (Arc::clone(frame), frame.slot.lineage.load(Relaxed));
        let file = InsideFile { frame, inner, mode, at: Mutex::new((open.opening, opened.handle)), lineage };
        Ok(Opened { handle: self.keep(Open::Frame(Arc::new(file))), ..opened })
    }

    /// The frame of an open file and the handle in it. A file of a frame that was closed meanwhile is opened again, if it is the same.
    fn current(&self, file: &InsideFile) -> Result<(Arc<OpenFrame>, Handle)> {
        let open = self.enter_frame(&file.frame)?;
        let mut at = file.at.lock();
        if at.0 == open.opening {
            return Ok((open, at.1));
        }
        if file.lineage != file.frame.slot.lineage.load(Relaxed) {
            return Err(ViewError::Gone);
        }
        let opened = open.fs().open(file.inner, file.mode)?;
        *at = (open.opening, opened.handle);
        Ok((open, opened.handle))
    }

    pub(super) fn read_inside(&self, file: &InsideFile, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut result = Err(ViewError::Gone);
        for _ in 0..TRIES {
            let (open, handle) = self.current(file)?;
            result = open.fs().read(file.inner, Some(handle), offset, buf);
            if !matches!(result, Err(ViewError::BadHandle)) {
                break;
            }
        }
        result
    }

    pub(super) fn release_inside(&self, file: &InsideFile, invalidations: &mut Invalidations) {
        let mut inner = Invalidations::new();
        let at = *file.at.lock();
        if let Some(open) = file.frame.opened().filter(|open| open.opening == at.0) {
            open.fs().release(at.1, &mut inner);
        }
        self.tell(&file.frame, inner, invalidations);
    }

    /// A read without a handle, of bytes that are to be pushed.
    pub(super) fn read_pushed(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (frame, inner) = self.regions.find(ino).or_else(|| Some((self.frame_of(ino)?, ROOT))).ok_or(ViewError::Gone)?;
        let open = frame.opened().ok_or(ViewError::Gone)?;
        open.fs().read(inner, None, offset, buf)
    }

    /// Only the data of frames has holes that a client sees.
    pub(super) fn seek_in(&self, ino: Ino, offset: u64, seek: Seek) -> Result<u64> {
        if let Some(frame) = self.frame_of(ino).filter(|frame| frame.decoded.is_some()) {
            return self.ask(&frame, |fs| fs.seek(ROOT, Handle(0), offset, seek));
        }
        match (offset < self.getattr(ino)?.size, seek) {
            (false, _) => Err(ViewError::System(libc::ENXIO)),
            (true, Seek::Data) => Ok(offset),
            (true, Seek::Hole) => Ok(self.getattr(ino)?.size),
        }
    }

    // --- hints ---

    pub(super) fn touched_inside(&self, pid: u32, ino: Ino, read: Option<(u64, u32)>) -> Vec<Push> {
        let frame = self.regions.find(ino).or_else(|| Some((self.frame_of(ino)?, ROOT)));
        frame.map_or_else(Vec::new, |file| self.regions.touched(pid, file, read))
    }
}
