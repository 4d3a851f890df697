//! What a daemon says of itself on SOURCE, for other processes: that it is there, for which mount, and that it is ending.
//! [`holder`] says who has SOURCE locked.
//!
//! A mark is a lock for reading (`F_OFD_SETLK`) of one byte far behind the end of any file. It keeps nobody from anything, needs no
//! file of its own, is seen from every namespace, and never outlives the process. Where locks of this kind cannot be
//! had, there are no marks.

#![expect(unsafe_code, reason = "locks of open file descriptions, fcntl(2)")]

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

/// What a mark can say.
const SAYINGS: [(Life, bool); 4] = [(Life::Serving, true), (Life::Ending, true), (Life::Serving, false), (Life::Ending, false)];

impl Life {
    /// The first of the bytes that say so, of a mount that writes or of one that does not; the device number is added.
    fn area(self, writes: bool) -> i64 {
        FIRST + ((i64::from(self == Life::Ending) * 2 + i64::from(writes)) << DEVICE_BITS)
    }
}

/// SOURCE with the mark of a daemon, which stays for as long as this does.
#[derive(Debug)]
pub struct Mark {
    source: OwnedFd,
    device: u32,
    writes: bool,
}

impl Mark {
    /// Marks SOURCE, as the store has it open, for the mount with that device number, which writes or does not.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn new(source: OwnedFd, device: u32, writes: bool, life: Life) -> io::Result<Self> {
        let mark = Mark { source, device, writes };
        mark.set(life)?;
        Ok(mark)
    }

    /// Says something else.
    ///
    /// # Errors
    /// What the system refuses; then what was said before is still said.
    pub fn set(&self, life: Life) -> io::Result<()> {
        let other = if life == Life::Serving { Life::Ending } else { Life::Serving };
        let byte = |life: Life| life.area(self.writes) + i64::from(self.device);
        lock(self.source.as_fd(), libc::F_OFD_SETLK, libc::F_RDLCK, byte(life), 1)?;
        lock(self.source.as_fd(), libc::F_OFD_SETLK, libc::F_UNLCK, byte(other), 1).map(drop)
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
pub struct MarkWatch {
    source: File,
    device: u32,
}

impl MarkWatch {
    /// Opens what has that name if it is that file, and one that nothing happens to when it is opened.
    ///
    /// # Errors
    /// What the system refuses; that it is another file.
    pub fn new(path: &Path, file: (u64, u64), device: u32) -> io::Result<Self> {
        let source = local::system::open_known(path, file)?;
        Ok(MarkWatch { source, device })
    }

    /// Whether the daemon says anything at all.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn is_marked(&self) -> io::Result<bool> {
        for (life, writes) in SAYINGS {
            let byte = life.area(writes) + i64::from(self.device);
            if lock(self.source.as_fd(), libc::F_OFD_GETLK, libc::F_WRLCK, byte, 1)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Who has SOURCE locked for writing, as far as that can be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockHolder {
    /// What the daemon says of itself, if it is one, and its mount's device number.
    pub says: Option<(Life, u32)>,
    /// Its process id, if that has one here.
    pub process: Option<u32>,
}

/// Who has a file locked that is open here.
pub fn holder(file: BorrowedFd<'_>) -> LockHolder {
    let says = |life: Life| {
        let area = life.area(true);
        let at = lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, area, 1 << DEVICE_BITS).ok()??;
        Some((life, u32::try_from(at - area).ok()?))
    };
    // One that is ending may be over before its mark is.
    LockHolder { says: says(Life::Serving).or_else(|| says(Life::Ending)), process: process(file) }
}

/// The process that has the exclusive lock of flock(2), as the kernel lists it.
fn process(file: BorrowedFd<'_>) -> Option<u32> {
    let stat = rustix::fs::fstat(file).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let id = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let locks = local::system::read("/proc/locks").ok()?;
    let locks = String::from_utf8_lossy(&locks);
    locks.lines().find_map(|line| {
        // 1: FLOCK  ADVISORY  WRITE 1234 fe:00:567 0 EOF
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", process, file, ..] = words[..] else { return None };
        process.parse().ok().filter(|_| file == id)
    })
}

/// Sets a lock on bytes of a file, or asks for the first that is in the way of one, which is answered by its first byte.
fn lock(file: BorrowedFd<'_>, command: libc::c_int, kind: libc::c_int, start: i64, len: i64) -> io::Result<Option<i64>> {
    let (kind, whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    let mut lock = libc::flock { l_type: kind, l_whence: whence, l_start: start, l_len: len, l_pid: 0 };
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
    fn who_has_a_lock_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "frame").unwrap();
        for path in [dir.path().to_owned(), dir.path().join("file")] {
            let (ours, theirs) = (File::open(&path).unwrap(), File::open(&path).unwrap());
            let seen = || holder(theirs.as_fd());
            assert_eq!(seen(), LockHolder::default());
            // A reader is not who has it.
            let reader = Mark::new(File::open(&path).unwrap().into(), 7, false, Life::Serving).unwrap();
            assert_eq!(seen(), LockHolder::default());
            rustix::fs::flock(&ours, rustix::fs::FlockOperation::LockExclusive).unwrap();
            let process = Some(std::process::id());
            assert_eq!(seen(), LockHolder { says: None, process });
            let mark = Mark::new(ours.into(), 50, true, Life::Serving).unwrap();
            assert_eq!(seen(), LockHolder { says: Some((Life::Serving, 50)), process });
            mark.set(Life::Ending).unwrap();
            assert_eq!(seen(), LockHolder { says: Some((Life::Ending, 50)), process });
            drop((mark, reader));
            assert_eq!(seen(), LockHolder::default());
        }
    }

    #[test]
    fn a_mark_is_seen_by_others_as_long_as_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "frame").unwrap();
        for (path, writes) in [(dir.path().to_owned(), true), (dir.path().join("file"), false)] {
            let mark = Mark::new(File::open(&path).unwrap().into(), 50, writes, Life::Serving).unwrap();
            let watch = |device| MarkWatch::new(&path, mark.file().unwrap(), device).unwrap();
            let (ours, others) = (watch(50), watch(51));
            assert!(ours.is_marked().unwrap() && !others.is_marked().unwrap());
            mark.set(Life::Ending).unwrap();
            assert!(ours.is_marked().unwrap() && !others.is_marked().unwrap());
            assert!(MarkWatch::new(&path, (0, 0), 50).is_err(), "another file");
            drop(mark);
            assert!(!ours.is_marked().unwrap());
        }
    }
}
