//! Names in a tree that are ours: unfinished frames, and removed ones that are still being taken apart. They are not shown, and nobody
//! else makes any.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use log::debug;

use super::Tree;
use crate::store::local::beneath::{self, Found};
use crate::store::{TEMP_PREFIX, in_words};
use crate::view::{Result, ViewError};

/// How the names of frames begin that are removed already.
const GONE: &str = ".b2fuse-gone-";

/// Whether a name is one of ours.
pub fn is_ours(name: &OsStr) -> bool {
    name.as_bytes().starts_with(TEMP_PREFIX.as_bytes())
}

/// A name for what is removed, or is to be put in place: no two are alike in a directory.
pub fn name(number: u64) -> OsString {
    format!("{GONE}{}-{number}", std::process::id()).into()
}

/// What a name of ours stands for, if nobody needs it any more. Whoever makes a frame, or reads one that is gone, has it locked. The process
/// in the name says nothing: after a restart another has its number.
pub fn dead(dir: BorrowedFd<'_>, name: &OsStr) -> Option<Found> {
    let is_left = |name: &[u8]| name.starts_with(GONE.as_bytes()) || name.ends_with(b".tmp");
    if !is_ours(name) || !is_left(name.as_bytes()) {
        return None;
    }
    let found = beneath::look(dir, name).ok()?;
    let may_go = found.stat.is_file() || found.stat.is_dir() && may_go(&beneath::look_at(dir).ok()?, &found);
    (may_go && beneath::lock_alone(dir, name).is_some()).then_some(found)
}

/// Whether a directory of that name can be taken apart: nobody can have given it the name who may not remove what is in it. Others who may
/// write the directory around it could have given the name to one that is no affair of theirs.
fn may_go(around: &Found, found: &Found) -> bool {
    let (around, found) = (&around.stat, &found.stat);
    let me = rustix::process::geteuid().as_raw();
    !around.lets_others_rename() && (found.uid == around.uid || around.uid == 0 || around.uid == me)
}

/// So many are locked and removed at once.
const LOCKED: usize = 64;
/// As many names are read at once.
const AT_ONCE: usize = 1024;

/// Removes what was `seen` under a name: a file, or a directory with the files in it. What is in a directory in there was not made by us.
///
/// # Errors
/// What the system refuses; something else has the name now.
pub fn take_apart(dir: BorrowedFd<'_>, name: &OsStr, seen: &Found) -> io::Result<()> {
    if !seen.stat.is_dir() {
        return match beneath::look(dir, name)?.is(seen) {
            true => gone(beneath::remove(dir, name, false)),
            false => Err(other()),
        };
    }
    let inside = beneath::open_dir(dir, name)?;
    if !beneath::look_at(inside.as_fd())?.is(seen) {
        return Err(other());
    }
    loop {
        let mut names = Vec::new();
        beneath::list(inside.as_fd(), 0, &mut |entry| {
            names.push((entry.name.to_owned(), entry.kind == libc::S_IFDIR));
            names.len() < AT_ONCE
        })?;
        if names.is_empty() {
            return gone(beneath::remove(dir, name, true));
        }
        names.iter().try_for_each(|(name, is_dir)| gone(beneath::remove(inside.as_fd(), name, *is_dir)))?;
    }
}

/// Another may be taking the same apart.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn other() -> io::Error {
    io::Error::other("something else has its name now")
}

impl Tree {
    /// A name of ours for what is to be put in place, or is to go.
    pub(super) fn name_of_ours(&self) -> OsString {
        name(self.table.lock().serial())
    }

    /// Gives what is to go, and was `seen`, a name of ours. Something else that has its name now keeps it.
    fn put_away_below(&self, dir: BorrowedFd<'_>, from: &OsStr, seen: &Found) -> Result<OsString> {
        // Nobody takes for dead what only passes under such a name.
        let _making = self.making.read();
        let _lock = beneath::lock_shared(dir, from);
        loop {
            let ours = self.name_of_ours();
            match beneath::rename((dir, from), (dir, &ours), beneath::Onto::Nothing) {
                // A process that had our number has left it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                renamed => {
                    renamed?;
                    if !beneath::look(dir, &ours)?.is(seen) {
                        beneath::rename((dir, &ours), (dir, from), beneath::Onto::Nothing)?;
                        return Err(ViewError::Gone);
                    }
                    return Ok(ours);
                }
            }
        }
    }

    /// The same, and has that on disk.
    pub(super) fn hide(&self, dir: BorrowedFd<'_>, from: &OsStr, seen: &Found) -> Result<OsString> {
        let ours = self.put_away_below(dir, from, seen)?;
        beneath::sync_dir(dir)?;
        Ok(ours)
    }

    /// Removes a file that was `seen`. Something else that has its name now keeps it.
    pub(super) fn remove_file(&self, dir: BorrowedFd<'_>, name: &OsStr, seen: &Found) -> Result<()> {
        let ours = self.put_away_below(dir, name, seen)?;
        Ok(gone(beneath::remove(dir, &ours, false))?)
    }

    /// Takes apart what killed daemons have left. That it has these names may not be on disk: a crash could bring back the names that it
    /// had, of a half then.
    ///
    /// What is just being made has no lock for a moment, for which the caller `waits`, or comes another time.
    pub(super) fn sweep(&self, dir: BorrowedFd<'_>, dead: &[(OsString, Found)], waits: bool) {
        for dead in dead.chunks(LOCKED) {
            let locked: Vec<_> = {
                let alone = if waits { Some(self.making.write()) } else { self.making.try_write() };
                let Some(_alone) = alone else { return };
                dead.iter().filter_map(|(name, seen)| Some((name, seen, beneath::lock_alone(dir, name)?))).collect()
            };
            if !locked.is_empty() && beneath::sync_dir(dir).is_ok() {
                locked.iter().for_each(|(name, seen, _lock)| self.discard(dir, name, seen));
            }
        }
    }

    /// Takes something of ours apart, which was `seen`.
    pub(super) fn discard(&self, dir: BorrowedFd<'_>, name: &OsStr, seen: &Found) {
        if let Err(error) = take_apart(dir, name, seen) {
            debug!("{}: cannot remove {}: {}", self.path.display(), name.display(), in_words(&error));
        }
    }

    /// Removes a directory of a frame, which was `seen`, in one step: it loses its name first. Nothing in it goes before that is on disk, or a crash could
    /// leave a half of it under its name.
    pub(super) fn remove_whole(&self, dir: BorrowedFd<'_>, name: &OsStr, seen: &Found) -> Result<()> {
        let ours = self.hide(dir, name, seen)?;
        self.discard(dir, &ours, seen);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> (tempfile::TempDir, std::os::fd::OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        let (root, _) = beneath::open_root(dir.path()).unwrap();
        (dir, root)
    }

    #[test]
    fn what_somebody_else_nested_is_left() {
        let (dir, root) = root();
        let apart =
            |name: &str| take_apart(root.as_fd(), OsStr::new(name), &beneath::look(root.as_fd(), OsStr::new(name)).unwrap());
        std::fs::create_dir_all(dir.path().join("shallow/inside")).unwrap();
        for number in 0..2 * AT_ONCE {
            std::fs::write(dir.path().join(format!("shallow/{number}")), "x").unwrap();
        }
        std::fs::create_dir_all(dir.path().join("deep/1/2")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("link")).unwrap();
        apart("shallow").unwrap();
        assert!(!dir.path().join("shallow").exists());
        assert!(apart("deep").is_err());
        assert!(dir.path().join("deep/1/2").exists());
        apart("link").unwrap();
        assert!(dir.path().join("link").symlink_metadata().is_err());
    }

    #[test]
    fn what_has_taken_the_name_is_left() {
        let (dir, root) = root();
        std::fs::create_dir(dir.path().join("ours")).unwrap();
        let seen = beneath::look(root.as_fd(), OsStr::new("ours")).unwrap();
        std::fs::rename(dir.path().join("ours"), dir.path().join("away")).unwrap();
        std::fs::create_dir(dir.path().join("ours")).unwrap();
        std::fs::write(dir.path().join("ours/file"), "x").unwrap();
        assert!(take_apart(root.as_fd(), OsStr::new("ours"), &seen).is_err());
        assert!(dir.path().join("ours/file").exists());
    }

    #[test]
    fn what_others_could_have_named_is_left() {
        let (_dir, root) = root();
        let found = |uid: u32, mode: u32| {
            let mut found = beneath::look_at(root.as_fd()).unwrap();
            (found.stat.uid, found.stat.mode) = (uid, libc::S_IFDIR | mode);
            found
        };
        let me = rustix::process::geteuid().as_raw();
        for (around, kept, expected) in [
            ((me, 0o755), (me, 0o700), true),
            ((me, 0o755), (1234, 0o700), true),
            ((me, 0o1777), (1234, 0o700), true),
            ((me, 0o777), (me, 0o700), false),
            ((me, 0o775), (me, 0o700), false),
            ((1234, 0o755), (1234, 0o700), true),
            ((1234, 0o755), (4321, 0o700), false),
        ] {
            assert_eq!(may_go(&found(around.0, around.1), &found(kept.0, kept.1)), expected, "{around:?} {kept:?}");
        }
    }

    #[test]
    fn what_nobody_has_locked_is_dead_whoever_has_the_number() {
        let (dir, root) = root();
        let is_dead = |name: &OsStr| dead(root.as_fd(), name).is_some();
        for name in [OsStr::new(".b2fuse-1-1.tmp"), OsStr::new(".b2fuse-gone-1-1"), &name(1)] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            assert!(is_dead(name), "{name:?}");
            let held = beneath::lock_shared(root.as_fd(), name).unwrap();
            assert!(!is_dead(name), "somebody has the lock of {name:?}");
            drop(held);
            assert!(is_dead(name), "{name:?}");
        }
        std::fs::write(dir.path().join("gone"), "x").unwrap();
        assert!(!is_dead(OsStr::new("gone")));
        assert!(!is_dead(OsStr::new(".b2fuse-gone-1-2")), "it is not there");
    }
}
