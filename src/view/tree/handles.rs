//! Open files of a tree.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use parking_lot::{Mutex, RwLock};

use super::frame::TreeFrame;
use crate::store::local::beneath;
use crate::view::{Handle, Ino, OpenMode, Result};

/// An open file.
#[derive(Clone)]
pub enum Open {
    /// One that is passed on.
    File(Arc<PassedFile>),
    /// A file of a frame.
    Frame(Arc<InsideFile>),
    /// The lock file of a frame, or what may become one.
    Lock(Arc<LockHandle>),
}

impl Open {
    /// The frame that a file of a frame is in.
    pub fn frame(&self) -> Option<&Arc<TreeFrame>> {
        match self {
            Open::Frame(file) => Some(&file.frame),
            Open::File(_) | Open::Lock(_) => None,
        }
    }
}

/// An open file below.
pub struct PassedFile {
    pub ino: Ino,
    pub file: File,
    /// It was opened to be written to.
    pub write: bool,
    /// Who writes may not keep bits by which programs run as others.
    pub drops: bool,
    /// The kernel may read and write by itself what this has open.
    pub is_passed_through: bool,
    /// It was closed, and nothing was written to it since: its handle ends a moment later.
    is_closed: AtomicBool,
    /// Whether its handle is a frame's by now. Held for reading while it is changed, and for writing while a frame is made of its file.
    pub has_moved: RwLock<bool>,
}

impl PassedFile {
    pub fn new(ino: Ino, file: File, mode: OpenMode, is_passed_through: bool) -> Arc<Self> {
        Arc::new(PassedFile {
            ino,
            file,
            write: mode.write,
            drops: mode.drop_privileges,
            is_passed_through,
            is_closed: AtomicBool::new(false),
            has_moved: RwLock::new(false),
        })
    }

    /// Whether a client may still write to it.
    pub fn is_writing(&self) -> bool {
        self.write && !self.is_closed.load(SeqCst)
    }

    /// Whether no frame can be made of its file: a client may still write to it, or the kernel would go on with the file by itself.
    pub fn keeps_file(&self) -> bool {
        self.is_passed_through || self.is_writing()
    }

    /// A client has closed it. Another process, or a map, may have it all the same.
    pub fn close(&self) {
        self.is_closed.store(true, SeqCst);
    }

    /// Changes it. None if its handle is a frame's by now, which is to be changed then.
    pub fn change<T>(&self, work: impl FnOnce(&File) -> io::Result<T>) -> Option<Result<T>> {
        let has_moved = self.has_moved.read();
        if *has_moved {
            return None;
        }
        self.is_closed.store(false, SeqCst);
        self.drop_privileges();
        Some(work(&self.file).map_err(Into::into))
    }

    pub fn read(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while !buf.is_empty() {
            match self.file.read_at(buf, offset) {
                Ok(0) => break,
                Ok(count) => {
                    (done, offset) = (done + count, offset + count as u64);
                    buf = buf.get_mut(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    /// Takes away the bits by which a program runs as its owner or group, as the file system would if the caller wrote by itself.
    fn drop_privileges(&self) {
        if self.drops {
            drop_privileges(self.file.as_fd());
        }
    }
}

pub fn drop_privileges(file: BorrowedFd<'_>) {
    let Ok(found) = beneath::look_at(file) else { return };
    let mode = found.stat.mode;
    let by_group = mode & libc::S_IXGRP != 0;
    let kept = mode & !libc::S_ISUID & if by_group { !libc::S_ISGID } else { !0 };
    if found.stat.is_file() && kept != mode {
        let _ = beneath::set_mode(file, kept & 0o7777);
    }
}

/// An open file of a frame.
pub struct InsideFile {
    pub frame: Arc<TreeFrame>,
    pub inner: Ino,
    pub mode: OpenMode,
    /// The frame's opening, and its handle in that. None of a file that was open when a frame was made of it, and not used since.
    pub at: Mutex<Option<(u64, Handle)>>,
    pub lineage: u64,
    /// It counts among the frame's writers: it can write, and was not closed since it was opened or written to last.
    pub is_writing: AtomicBool,
}

impl InsideFile {
    /// A client writes to it.
    pub fn begin_writing(&self) {
        if self.mode.write && !self.is_writing.swap(true, SeqCst) {
            self.frame.writers.fetch_add(1, SeqCst);
        }
    }

    /// A client has closed it, or its handle ends.
    pub fn end_writing(&self) {
        if self.is_writing.swap(false, SeqCst) {
            self.frame.writers.fetch_sub(1, SeqCst);
        }
    }
}

/// An open lock file.
pub struct LockHandle {
    pub whose: LockWhose,
    pub write: bool,
    pub file: Mutex<Arc<File>>,
}

/// Which frame it is for.
pub enum LockWhose {
    /// What has that name in a directory, if that is a frame.
    Named(Ino, OsString),
    /// One that is shown as a directory.
    Frame(Arc<TreeFrame>),
}

impl LockHandle {
    pub fn file(&self) -> Arc<File> {
        Arc::clone(&self.file.lock())
    }

    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.file().read_at(buf, offset)?)
    }
}
