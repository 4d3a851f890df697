//! An sframe as the one file that C-Blosc2 would have written: the contiguous view.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Instant;

use super::{Attr, Creation, DirEntry, Handle, Ino, Invals, OpenMode, RenameMode, Result, SetAttr, View};
use crate::store::FrameStore;

/// The contiguous view of a frame.
pub struct ContiguousView {}

/// Where the one file of a contiguous view is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// In the mount's directory, under this name.
    As(OsString),
    /// The mount point itself is the file.
    OnFile,
}

impl ContiguousView {
    /// Shows a store's frame.
    ///
    /// # Errors
    /// What the store cannot read.
    pub fn new(_store: Arc<dyn FrameStore>, _shown: Shown, _read_only: bool) -> Result<Self> {
        unimplemented!()
    }
}

impl View for ContiguousView {
    fn read_only(&self) -> bool {
        unimplemented!()
    }
    fn lookup(&self, _parent: Ino, _name: &OsStr) -> Result<Attr> {
        unimplemented!()
    }
    fn forget(&self, _ino: Ino) {
        unimplemented!()
    }
    fn getattr(&self, _ino: Ino) -> Result<Attr> {
        unimplemented!()
    }
    fn setattr(&self, _ino: Ino, _handle: Option<Handle>, _set: SetAttr, _invals: &mut Invals) -> Result<Attr> {
        unimplemented!()
    }
    fn open(&self, _ino: Ino, _mode: OpenMode, _invals: &mut Invals) -> Result<Handle> {
        unimplemented!()
    }
    fn create(&self, _parent: Ino, _name: &OsStr, _creation: Creation, _mode: OpenMode) -> Result<(Attr, Handle)> {
        unimplemented!()
    }
    fn read(&self, _ino: Ino, _handle: Option<Handle>, _offset: u64, _buf: &mut [u8]) -> Result<usize> {
        unimplemented!()
    }
    fn write(&self, _handle: Handle, _offset: u64, _data: &[u8]) -> Result<()> {
        unimplemented!()
    }
    fn flush(&self, _handle: Handle, _invals: &mut Invals) -> Result<()> {
        unimplemented!()
    }
    fn release(&self, _handle: Handle, _invals: &mut Invals) {
        unimplemented!()
    }
    fn fsync(&self, _ino: Ino, _invals: &mut Invals) -> Result<()> {
        unimplemented!()
    }
    fn unlink(&self, _parent: Ino, _name: &OsStr, _invals: &mut Invals) -> Result<()> {
        unimplemented!()
    }
    fn rename(&self, _from: (Ino, &OsStr), _to: (Ino, &OsStr), _mode: RenameMode, _invals: &mut Invals) -> Result<()> {
        unimplemented!()
    }
    fn readdir(&self, _ino: Ino, _cookie: u64, _emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        unimplemented!()
    }
    fn next_files(&self, _ino: Ino, _count: usize) -> Vec<(Ino, u64)> {
        Vec::new()
    }
    fn statfs(&self) -> Result<libc::statvfs> {
        unimplemented!()
    }
    fn tick(&self, _now: Instant, _invals: &mut Invals) -> Option<Instant> {
        unimplemented!()
    }
    fn shutdown(&self) -> Result<()> {
        unimplemented!()
    }
    fn report(&self) -> String {
        unimplemented!()
    }
}
