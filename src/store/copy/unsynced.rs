//! A directory whose files and names are not waited for: of many frames that are made one after the other, none is of use before all are
//! there, and one wait for the whole file system at the end does for all.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use crate::store::backend::{Backend, BackendFile, FileStat, Flock, FsSpace};

/// What syncs return at once in.
pub(super) struct Unsynced(pub(super) Arc<dyn Backend>);

/// A file in it.
struct File(Arc<dyn BackendFile>);

fn unsynced(file: io::Result<Box<dyn BackendFile>>) -> io::Result<Box<dyn BackendFile>> {
    Ok(Box::new(File(Arc::from(file?))))
}

impl Backend for Unsynced {
    fn sync_dir(&self) -> io::Result<()> {
        Ok(())
    }
    fn sync_fs(&self) -> io::Result<()> {
        Ok(())
    }

    // The rest is handed on.
    fn clock(&self) -> Option<SystemTime> {
        self.0.clock()
    }
    fn open(&self, name: &OsStr, write: bool) -> io::Result<Box<dyn BackendFile>> {
        unsynced(self.0.open(name, write))
    }
    fn create(&self, name: &OsStr, mode: u32) -> io::Result<Box<dyn BackendFile>> {
        unsynced(self.0.create(name, mode))
    }
    fn create_unnamed(&self) -> io::Result<Box<dyn BackendFile>> {
        unsynced(self.0.create_unnamed())
    }
    fn rename(&self, from: &OsStr, to: &OsStr, replace: bool) -> io::Result<()> {
        self.0.rename(from, to, replace)
    }
    fn remove(&self, name: &OsStr) -> io::Result<()> {
        self.0.remove(name)
    }
    fn create_dir(&self, name: &OsStr, mode: u32) -> io::Result<Box<dyn Backend>> {
        Ok(Box::new(Unsynced(Arc::from(self.0.create_dir(name, mode)?))))
    }
    fn open_dir(&self, name: &OsStr) -> io::Result<Box<dyn Backend>> {
        Ok(Box::new(Unsynced(Arc::from(self.0.open_dir(name)?))))
    }
    fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        self.0.remove_dir(name)
    }
    fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        self.0.exchange(one, other)
    }
    fn names(&self) -> io::Result<Vec<OsString>> {
        self.0.names()
    }
    fn itself(&self) -> io::Result<Arc<dyn BackendFile>> {
        Ok(Arc::new(File(self.0.itself()?)))
    }
    fn check_writable(&self) -> io::Result<()> {
        self.0.check_writable()
    }
    fn stat(&self, name: &OsStr) -> io::Result<FileStat> {
        self.0.stat(name)
    }
    fn statvfs(&self) -> io::Result<FsSpace> {
        self.0.statvfs()
    }
}

impl BackendFile for File {
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    // The rest is handed on.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(data, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn stat(&self) -> io::Result<FileStat> {
        self.0.stat()
    }
    fn try_lock(&self) -> io::Result<bool> {
        self.0.try_lock()
    }
    fn unlock(&self) -> io::Result<()> {
        self.0.unlock()
    }
    fn flock(&self, lock: Flock, until: Option<&AtomicBool>) -> io::Result<bool> {
        self.0.flock(lock, until)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
    fn will_need(&self, offset: u64, len: u64) {
        self.0.will_need(offset, len);
    }
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.punch_hole(offset, len)
    }
    fn reopen(&self, write: bool) -> io::Result<Box<dyn BackendFile>> {
        unsynced(self.0.reopen(write))
    }
    fn copy_attributes(&self, from: &dyn BackendFile) {
        self.0.copy_attributes(from);
    }
    fn set_owner(&self, owner: &FileStat) -> io::Result<()> {
        self.0.set_owner(owner)
    }
    fn set_mode(&self, mode: u32) {
        self.0.set_mode(mode);
    }
}
