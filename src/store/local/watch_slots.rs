//! Slots of inotify instances, of which a user has few for all programs together: the mounts of a user take a quarter at most.
//!
//! A slot is a file that a mount has locked (flock(2)) in the user's own directory for mounts. The lock ends with the process, so no slot
//! outlives its mount.

use std::fs::File;
use std::io;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::process::geteuid;

use super::FileBackend;
use super::runtime_dir::{DIR, own_dir, runtime_dir};
use super::system;

/// Share of the instances that mounts take.
const SHARE: u32 = 4;
/// Instances of a user where the system does not say how many there are.
const DEFAULT: u32 = 128;
/// Instances that a user may have: of all namespaces, and in this one.
const LIMITS: [&str; 2] = ["/proc/sys/fs/inotify/max_user_instances", "/proc/sys/user/max_inotify_instances"];

/// The right to one inotify instance, for as long as this lives.
pub(super) struct Slot {
    _locked: File,
}

/// Takes a slot.
///
/// # Errors
/// What the system refuses; that all slots are taken.
pub(super) fn take() -> io::Result<Slot> {
    take_in(&dir()?, count())
}

fn take_in(dir: &FileBackend, count: u32) -> io::Result<Slot> {
    // Mounts that begin together look in other places first.
    let first = std::process::id() % count;
    for slot in (first..count).chain(0..first) {
        let flags = OFlags::RDWR | OFlags::CREATE | super::SAFELY;
        let file = File::from(openat(&*dir.handle, format!("watch-{slot}"), flags, Mode::RUSR | Mode::WUSR)?);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Slot { _locked: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other(format!("the mounts of this user have {count} inotify instances already, a quarter of all")))
}

/// The directory of the slots. A user without a runtime directory has one among the temporary files.
fn dir() -> io::Result<FileBackend> {
    let me = geteuid().as_raw();
    match runtime_dir(me).map(|base| own_dir(&base, DIR)) {
        Some(Ok(dir)) => Ok(dir),
        _ => own_dir(&std::env::temp_dir(), &format!("{DIR}-{me}")),
    }
}

/// The number of slots, at least one.
fn count() -> u32 {
    let limit = |path: &str| String::from_utf8(system::read(path).ok()?).ok()?.trim().parse::<u32>().ok();
    (LIMITS.into_iter().filter_map(limit).min().unwrap_or(DEFAULT) / SHARE).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_slots_are_taken_than_there_are_and_a_slot_is_free_again() {
        let base = tempfile::tempdir().unwrap();
        let dir = own_dir(base.path(), DIR).unwrap();
        let mut taken: Vec<Slot> = (0..3).map(|_| take_in(&dir, 3).unwrap()).collect();
        assert!(take_in(&dir, 3).is_err_and(|error| error.to_string().contains("3 inotify instances")));
        taken.pop();
        taken.push(take_in(&dir, 3).unwrap());
        assert!(take_in(&dir, 3).is_err());
        assert!(count() >= 1);
    }

    #[test]
    fn a_directory_or_file_that_is_a_link_is_not_used() {
        let base = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", base.path().join(DIR)).unwrap();
        assert!(own_dir(base.path(), DIR).is_err());
        let dir = own_dir(base.path(), "other").unwrap();
        std::os::unix::fs::symlink("target", base.path().join("other/watch-0")).unwrap();
        assert!(take_in(&dir, 1).is_err());
        assert!(!base.path().join("other/target").exists());
    }
}
