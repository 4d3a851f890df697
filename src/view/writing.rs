//! Bytes that are being written to a file, whole, in place of what it held.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;

use parking_lot::{RwLock, RwLockReadGuard};

use super::Handle;
use super::intervals::Intervals;
use super::writers::{self, Writers};
use crate::format;
use crate::store::{Draft, ReadAt};

/// Parts that are kept apart.
const MOST_PARTS: usize = 1 << 12;

/// A draft of a file.
///
/// Lock order: the state of the mount before `inner`. `inner` may be held across I/O, so whoever holds the state must not wait for it. A
/// close holds it shared while it stores the bytes; those who read them do not queue up behind a writer that waits for that.
#[derive(Debug)]
pub struct Writing {
    /// Tells this draft from others of the same file.
    pub serial: u64,
    /// Nothing of what the file held before is in it, but for what was written again.
    pub from_nothing: bool,
    /// A close refused it: readers see the old bytes again, but those who were writing may go on.
    refused: AtomicBool,
    /// An fsync said that this can never be a chunk.
    told: AtomicBool,
    /// No longer what the file holds: a writer who finds this set, with `inner` locked, must look again.
    detached: AtomicBool,
    pub inner: RwLock<Inner>,
}

/// The part of a draft that changes with every write.
#[derive(Debug)]
pub struct Inner {
    pub bytes: Draft,
    /// Bytes that it may have: fewer once it is renamed onto a file that may have no more.
    pub most: u64,
    /// Counts changes of `bytes`.
    pub version: u64,
    /// Changed since a close looked at it.
    pub dirty: bool,
    pub mtime: SystemTime,
    /// What clients have written of it; less, if that would be too many parts.
    written: Intervals,
    /// Clients that have written at the same time.
    pub writers: Option<Writers>,
}

/// A change of a file's bytes.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// Bytes, and where.
    Write(u64, &'a [u8]),
    /// Another length.
    Resize(u64),
    /// Nothing is left, as a file is opened to be written anew.
    Empty,
}

impl Change<'_> {
    /// Where the bytes end that it touches.
    pub fn end(&self) -> u64 {
        match self {
            Change::Write(offset, data) => offset.saturating_add(data.len()),
            Change::Resize(len) => *len,
            Change::Empty => 0,
        }
    }
}

impl Writing {
    /// A draft that holds these bytes, written at that time.
    pub fn new(serial: u64, bytes: Draft, mtime: SystemTime) -> Self {
        let from_nothing = bytes.is_empty();
        let (written, writers) = (Intervals::default(), None);
        let inner = Inner { bytes, most: i64::MAX as u64, version: 0, dirty: true, mtime, written, writers };
        let (refused, told, detached) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        Writing { serial, from_nothing, refused, told, detached, inner: RwLock::new(inner) }
    }

    /// The bytes, if they are those of a version and nobody is changing them. Nobody does before the answer is dropped: whoever ends
    /// the draft keeps it until that is done, or what is written in between would be lost.
    pub fn still(&self, version: u64) -> Option<RwLockReadGuard<'_, Inner>> {
        self.inner.try_read_recursive().filter(|inner| inner.version == version)
    }

    /// Whether readers see the old bytes.
    pub fn is_refused(&self) -> bool {
        self.refused.load(Relaxed)
    }

    /// Refuses it; to be called with `inner` locked, so that whoever goes on writing takes it back. Whether it was refused before.
    pub fn refuse(&self) -> bool {
        self.refused.swap(true, Relaxed)
    }

    /// An fsync says that it can never be a chunk. Whether that was said before, there or at a close.
    pub fn tell(&self) -> bool {
        self.is_refused() || self.told.swap(true, Relaxed)
    }

    /// It is no longer what the file holds.
    pub fn detach(&self) {
        self.detached.store(true, Relaxed);
    }

    /// Whether somebody is writing it from nothing, or has just begun to.
    pub fn is_begun(&self, writers: u32) -> bool {
        self.from_nothing && (writers > 0 || self.inner.try_read().is_some_and(|inner| inner.bytes.is_empty()))
    }

    /// Makes a change by a handle, beside which `another` may write; `None` if this is no longer what the file holds.
    ///
    /// # Errors
    /// EFBIG; what the file system says that holds the draft.
    pub fn apply(&self, handle: Handle, another: Option<Handle>, change: Change<'_>) -> io::Result<Option<()>> {
        let mut inner = self.inner.write();
        if self.detached.load(Relaxed) {
            return Ok(None);
        }
        if change.end() > inner.most {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        if let (Some(another), None) = (another, &inner.writers) {
            inner.writers = Some(Writers::new(another, inner.written.clone()));
        }
        match change {
            Change::Write(offset, data) => inner.write_at(handle, data, offset)?,
            Change::Resize(len) => inner.set_len(handle, len)?,
            Change::Empty => inner.set_len(handle, 0)?,
        }
        inner.version += 1;
        inner.dirty = true;
        inner.mtime = SystemTime::now();
        self.refused.store(false, Relaxed);
        self.told.store(false, Relaxed);
        Ok(Some(()))
    }
}

impl Inner {
    fn write_at(&mut self, handle: Handle, data: &[u8], offset: u64) -> io::Result<()> {
        let part = offset..offset.saturating_add(data.len() as u64);
        let has_others = self.writers.as_ref().is_some_and(|writers| writers.has_others(handle, part.clone()));
        let is_same = has_others && self.reads_as(data, offset)?;
        self.bytes.write_at(data, offset)?;
        self.written.insert(part.clone());
        if self.written.count() > MOST_PARTS {
            self.written = Intervals::default();
            self.written.insert(part.clone());
        }
        if let Some(writers) = &mut self.writers {
            writers.write(handle, part, is_same);
        }
        Ok(())
    }

    fn set_len(&mut self, handle: Handle, len: u64) -> io::Result<()> {
        self.bytes.set_len(len)?;
        self.written.cut(len);
        if let Some(writers) = &mut self.writers {
            writers.set_len(handle, len);
        }
        Ok(())
    }

    fn reads_as(&self, data: &[u8], offset: u64) -> io::Result<bool> {
        if offset.saturating_add(data.len() as u64) > self.bytes.len() {
            return Ok(false);
        }
        writers::has_bytes(data, offset, |buf, at| self.bytes.read_exact_at(buf, at).map(|()| true))
    }

    /// Checks that the whole may be taken for a chunk or an index: see [`writers`]. `is_written` if a client that has written to it has it
    /// open. Returns whether it is to be decoded before.
    ///
    /// # Errors
    /// It is not taken, or not yet.
    pub fn check_writers(&self, is_written: bool) -> format::Result<bool> {
        let all = 0..self.bytes.len();
        let is_filled = self.written.covers(all.clone());
        // What nobody has written to is what it was.
        let is_of_one = writers::check(self.writers.as_ref(), &all, is_filled || self.written.count() == 0, is_written)?;
        Ok(!is_of_one)
    }
}
