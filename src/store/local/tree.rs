//! What going through a tree of directories needs of one of them.

use std::ffi::OsStr;
use std::io;

use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags};

use super::spare::openat;
use super::{DIRECTORY, FileBackend, component};
use crate::store::backend::FileStat;

impl FileBackend {
    /// Opens a directory in this one, without following a link.
    ///
    /// # Errors
    /// What the system refuses; what is no directory, a link for one (ENOTDIR).
    pub fn inside(&self, name: &OsStr) -> io::Result<Self> {
        let fd = openat(&self.handle, component(name)?, OFlags::RDONLY | DIRECTORY, Mode::empty())?;
        Ok(FileBackend { handle: fd.into(), links: self.links.inside() })
    }

    /// Attributes of the directory itself.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn own_stat(&self) -> io::Result<FileStat> {
        Ok(rustix::fs::fstat(&self.handle)?.into())
    }

    /// Whether the directory, which was opened from one on device `around`, is where another file system is mounted.
    pub fn is_mount_point(&self, around: u64) -> bool {
        if let Ok(stat) = rustix::fs::statx(&self.handle, "", AtFlags::EMPTY_PATH, StatxFlags::empty())
            && stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
        {
            return stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        }
        // Before Linux 5.8.
        self.own_stat().is_ok_and(|stat| stat.dev != around)
    }
}
