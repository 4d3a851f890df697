//! Logs of daemons on a system that keeps none: a file for each mount point in the runtime directory of whoever mounted.
//!
//! Whoever writes a log holds a shared lock on it (flock(2)). Logs that nobody holds are of daemons that were killed, or that had
//! something to tell. They stay for a day, the last [`LAST`] longer; the next log that is opened removes the others.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;

use super::FileBackend;
use super::runtime_dir::{DIR, own_dir, runtime_dir};
use crate::store::backend::{Backend, BackendFile, FileStat, Flock};

/// Bytes of a name, at the most.
const LONGEST: usize = 200;
/// How a name ends.
const SUFFIX: &[u8] = b".log";
/// How many logs stay, however old.
const LAST: usize = 16;
/// How long others stay.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// How often a log is opened anew while somebody is about to remove it, and the pause between.
const TRIES: (usize, Duration) = (100, Duration::from_millis(1));

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
        let name = name_of(point);
        // Those that cannot be removed stay.
        let _ = remove_old(&dir, &name);
        let mut tries = 0;
        let (file, new) = loop {
            let opened = open_or_make(&dir, &name);
            // Somebody else may be about to remove it. A file system without locks has no log removed either.
            let held = |file| BackendFile::flock(file, Flock::Shared, None).unwrap_or(true);
            let stays = match &opened {
                Ok((file, _)) => held(file) && BackendFile::stat(file)?.links > 0,
                Err(error) => error.kind() != io::ErrorKind::NotFound,
            };
            tries += 1;
            if stays || tries == TRIES.0 {
                break opened?;
            }
            std::thread::sleep(TRIES.1);
        };
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

/// Opens a log, and makes it if there is none; whether it was made.
fn open_or_make(dir: &FileBackend, name: &OsStr) -> io::Result<(File, bool)> {
    let open = |more: OFlags| {
        let flags = OFlags::WRONLY | OFlags::APPEND | super::SAFELY | more;
        rustix::fs::openat(&dir.handle, name, flags, Mode::RUSR | Mode::WUSR)
    };
    let (file, new) = match open(OFlags::CREATE | OFlags::EXCL) {
        Ok(file) => (File::from(file), true),
        Err(rustix::io::Errno::EXIST) => (super::regular(open(OFlags::empty())?.into())?, false),
        Err(error) => return Err(error.into()),
    };
    let stat = FileStat::from(rustix::fs::fstat(&file)?);
    if stat.uid != geteuid().as_raw() || stat.links > 1 {
        return Err(io::Error::other(format!("{DIR} in the runtime directory holds another user's file")));
    }
    Ok((file, new))
}

/// Removes old logs that nobody holds, all but the last and `mine`.
fn remove_old(dir: &FileBackend, mine: &OsStr) -> io::Result<()> {
    let names = dir.names()?.into_iter().filter(|name| name.as_bytes().ends_with(SUFFIX) && name != mine);
    let mut logs: Vec<_> = names.filter_map(|name| Some((dir.stat(&name).ok().filter(FileStat::is_file)?.mtime, name))).collect();
    logs.sort_unstable_by(|one, other| other.cmp(one));
    let now = SystemTime::now();
    for (mtime, name) in logs.into_iter().skip(LAST) {
        if now.duration_since(mtime).is_ok_and(|age| age > KEPT) {
            // The others may still go.
            let _ = remove_unheld(dir, &name, mtime);
        }
    }
    Ok(())
}

/// Removes a log that nobody holds, and that nobody has written since.
fn remove_unheld(dir: &FileBackend, name: &OsStr, written: SystemTime) -> io::Result<()> {
    let file = dir.open(name, false)?;
    let unheld = file.try_lock()?;
    let stat = file.stat()?;
    let ours = stat.uid == geteuid().as_raw() && stat.links == 1;
    if unheld && ours && stat.mtime == written { dir.remove_file(name, &stat) } else { Ok(()) }
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
    OsString::from(OsStr::from_bytes(&[&name, SUFFIX].concat()))
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

    #[test]
    fn old_logs_that_nobody_holds_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, days: u64| {
            let file = File::create(dir.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - KEPT * u32::try_from(days).unwrap()).unwrap();
            file
        };
        for n in 0..LAST {
            make(&format!("last{n}.log"), 2);
        }
        let held = make("held.log", 9);
        assert!(BackendFile::flock(&held, Flock::Shared, None).unwrap());
        for name in ["mine.log", "old.log", "log", "linked.log", "precious"] {
            make(name, 9);
        }
        std::fs::hard_link(dir.path().join("linked.log"), dir.path().join("second")).unwrap();
        std::os::unix::fs::symlink("precious", dir.path().join("link.log")).unwrap();
        std::fs::create_dir(dir.path().join("folder.log")).unwrap();
        let before = std::fs::read_dir(dir.path()).unwrap().count();
        let backend = FileBackend::open(dir.path()).unwrap();
        remove_old(&backend, OsStr::new("mine.log")).unwrap();
        assert!(!dir.path().join("old.log").exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), before - 1);
        // It was held by a daemon that has ended.
        BackendFile::unlock(&held).unwrap();
        remove_old(&backend, OsStr::new("mine.log")).unwrap();
        assert!(!dir.path().join("held.log").exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), before - 2);
    }
}
