//! Logs of daemons on a system that keeps none: a file for each mount point in the runtime directory of whoever mounted.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;

use super::FileBackend;
use super::runtime_dir::{DIR, own_dir, runtime_dir};
use crate::store::backend::{Backend, BackendFile, FileStat};

/// Bytes of a name, at the most.
const LONGEST: usize = 200;

/// A log that is open for appending.
#[derive(Debug)]
pub struct OwnLog {
    dir: FileBackend,
    name: OsString,
    /// The log.
    pub file: File,
    /// It was made just now.
    pub new: bool,
}

impl OwnLog {
    /// Opens the log of the mount at `point`, and makes it if there is none, for the user of this process alone to read. No link is
    /// followed, in a directory of the user's own.
    ///
    /// # Errors
    /// There is no runtime directory; what the system refuses; what is there and belongs to somebody else, or is no log.
    pub fn open(point: &Path) -> io::Result<Self> {
        let me = geteuid();
        let base = runtime_dir(me.as_raw()).ok_or(io::ErrorKind::NotFound)?;
        let dir = own_dir(&base, DIR)?;
        let refused = |what: &str| Err(io::Error::other(format!("{DIR} in the runtime directory {what}")));
        let name = name_of(point);
        let open = |more: OFlags| {
            let flags = OFlags::WRONLY | OFlags::APPEND | super::SAFELY | more;
            rustix::fs::openat(&dir.handle, &name, flags, Mode::RUSR | Mode::WUSR)
        };
        let (file, new) = match open(OFlags::CREATE | OFlags::EXCL) {
            Ok(file) => (File::from(file), true),
            Err(rustix::io::Errno::EXIST) => (super::regular(open(OFlags::empty())?.into())?, false),
            Err(error) => return Err(error.into()),
        };
        let stat = FileStat::from(rustix::fs::fstat(&file)?);
        if stat.uid != me.as_raw() || stat.links != 1 {
            return refused("holds another user's file");
        }
        file.set_mode(0o600);
        Ok(OwnLog { dir, name, file, new })
    }

    /// Removes it, if it still has its name.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn remove(&self) -> io::Result<()> {
        self.dir.remove_file(&self.name, &BackendFile::stat(&self.file)?)
    }
}

/// The log of a mount that a user made, if there is one.
pub fn own_log(point: &Path, user: u32) -> Option<PathBuf> {
    let path = runtime_dir(user)?.join(DIR).join(name_of(point));
    rustix::fs::lstat(&path).is_ok_and(|stat| stat.st_uid == user).then_some(path)
}

/// What the log of a mount point is called.
fn name_of(point: &Path) -> OsString {
    let mut bytes = point.as_os_str().as_bytes().to_vec();
    bytes.drain(..bytes.len().saturating_sub(LONGEST));
    let mut name: Vec<u8> = bytes.into_iter().skip_while(|byte| *byte == b'/').collect();
    name.iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = b'-');
    OsString::from(OsStr::from_bytes(&[&name, b".log".as_slice()].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_logs() {
        assert_eq!(name_of(Path::new("/mnt/a b")), "mnt-a b.log");
        assert_eq!(name_of(Path::new("/")), ".log");
        assert!(name_of(Path::new(&format!("/{}", "d/".repeat(2000)))).len() <= LONGEST + 4);
    }
}
