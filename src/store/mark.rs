//! What a daemon says of itself on SOURCE, for other processes: that it is there, for which mount, and that it is ending.
//!
//! A mark is a lock for reading (`F_OFD_SETLK`) of one byte far behind the end of any file. It keeps nobody from anything, needs no
//! file of its own, is seen from every namespace, and is gone at the latest when the process is. Where locks of this kind cannot be
//! had, there are no marks.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::local;

/// The first byte of all marks: no frame is as long.
const FIRST: i64 = 1 << 62;
/// Mounts are told apart by their device numbers, of at most so many bits.
const DEVICE_BITS: u32 = 32;

/// How far a daemon is with its mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It serves it.
    Serving,
    /// It does not any more, and will release SOURCE.
    Ending,
}

impl Life {
    /// The byte that says so.
    fn byte(self, device: u32) -> i64 {
        let area = match self {
            Life::Serving => 0,
            Life::Ending => 1,
        };
        FIRST + (area << DEVICE_BITS) + i64::from(device)
    }
}

/// SOURCE with the mark of a daemon, which stays for as long as this does.
#[derive(Debug)]
pub struct Mark {
    source: OwnedFd,
    device: u32,
}

impl Mark {
    /// Marks SOURCE, as the store has it open, for the mount with that device number.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn new(source: OwnedFd, device: u32, life: Life) -> io::Result<Self> {
        let mark = Mark { source, device };
        mark.set(life)?;
        Ok(mark)
    }

    /// Says something else.
    ///
    /// # Errors
    /// What the system refuses; then what was said before is still said.
    pub fn set(&self, life: Life) -> io::Result<()> {
        let other = if life == Life::Serving { Life::Ending } else { Life::Serving };
        lock(self.source.as_fd(), libc::F_OFD_SETLK, libc::F_RDLCK, life.byte(self.device), 1)?;
        lock(self.source.as_fd(), libc::F_OFD_SETLK, libc::F_UNLCK, other.byte(self.device), 1).map(drop)
    }

    /// Which file is marked: its device and its inode.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn file(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(&self.source)?;
        Ok((stat.st_dev, stat.st_ino))
    }
}

/// SOURCE of another process, to watch its mark.
#[derive(Debug)]
pub struct Watch {
    source: File,
    device: u32,
}

impl Watch {
    /// Opens what has that name if it is that file, and one that nothing happens to when it is opened.
    ///
    /// # Errors
    /// What the system refuses; that it is another file.
    pub fn new(path: &Path, file: (u64, u64), device: u32) -> io::Result<Self> {
        let source = local::system::open_known(path, file)?;
        Ok(Watch { source, device })
    }

    /// Whether the daemon says anything at all.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn is_marked(&self) -> io::Result<bool> {
        for life in [Life::Serving, Life::Ending] {
            if lock(self.source.as_fd(), libc::F_OFD_GETLK, libc::F_WRLCK, life.byte(self.device), 1)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Sets a lock on bytes of a file, or asks for the first that is in the way of one, which is answered by its first byte.
fn lock(file: BorrowedFd<'_>, command: libc::c_int, kind: libc::c_int, start: i64, len: i64) -> io::Result<Option<i64>> {
    // SAFETY: all zeros are a valid flock.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start;
    lock.l_len = len;
    // SAFETY: these commands take a flock, which is read and perhaps written.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((lock.l_type != libc::F_UNLCK as libc::c_short).then_some(lock.l_start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_seen_by_others_as_long_as_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "frame").unwrap();
        for path in [dir.path().to_owned(), dir.path().join("file")] {
            let mark = Mark::new(File::open(&path).unwrap().into(), 50, Life::Serving).unwrap();
            let watch = |device| Watch::new(&path, mark.file().unwrap(), device).unwrap();
            let (ours, others) = (watch(50), watch(51));
            assert!(ours.is_marked().unwrap() && !others.is_marked().unwrap());
            mark.set(Life::Ending).unwrap();
            assert!(ours.is_marked().unwrap() && !others.is_marked().unwrap());
            assert!(Watch::new(&path, (0, 0), 50).is_err(), "another file");
            drop(mark);
            assert!(!ours.is_marked().unwrap());
        }
    }
}
