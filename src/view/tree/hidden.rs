//! Names in a tree that are ours: unfinished frames, and removed ones that are still being taken apart. They are not shown, and nobody
//! else makes any.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use log::debug;

use super::Tree;
use crate::store::local::beneath;
use crate::store::{TEMP_PREFIX, in_words};
use crate::view::Result;

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

/// The process that a name of something that is gone belongs to.
fn owner(name: &OsStr) -> Option<u32> {
    let rest = name.to_str()?.strip_prefix(GONE)?;
    rest.split('-').next()?.parse().ok()
}

/// Whether a name of ours stands for something that a process has left which is gone.
pub fn is_dead(dir: BorrowedFd<'_>, name: &OsStr) -> bool {
    if let Some(pid) = owner(name) {
        return !is_alive(pid);
    }
    // Whoever makes a frame has it locked.
    let is_unfinished = is_ours(name) && name.as_bytes().ends_with(b".tmp");
    is_unfinished && beneath::is_unlocked(dir, name)
}

/// What is ours is a directory of files at most: deeper than this nothing is gone into, whoever made it.
const DEPTH: usize = 2;

/// Removes a file, or a directory with all that is in it, if that is no more than we make.
///
/// # Errors
/// What the system refuses.
pub fn take_apart(dir: BorrowedFd<'_>, name: &OsStr) -> std::io::Result<()> {
    take_apart_to(dir, name, DEPTH)
}

fn take_apart_to(dir: BorrowedFd<'_>, name: &OsStr, depth: usize) -> std::io::Result<()> {
    match beneath::look(dir, name)?.stat.is_dir() {
        false => beneath::remove(dir, name, false),
        true if depth == 0 => Err(std::io::ErrorKind::DirectoryNotEmpty.into()),
        true => {
            let inside = beneath::open_dir(dir, name)?;
            let mut names = Vec::new();
            beneath::list(inside.as_fd(), 0, &mut |entry| {
                names.push(entry.name.to_owned());
                true
            })?;
            names.iter().try_for_each(|name| take_apart_to(inside.as_fd(), name, depth - 1))?;
            beneath::remove(dir, name, true)
        }
    }
}

impl Tree {
    /// A name of ours for what is to go.
    pub(super) fn name_of_ours(&self) -> OsString {
        name(self.table.lock().serial())
    }

    /// Takes something of ours apart.
    pub(super) fn discard(&self, dir: BorrowedFd<'_>, name: &OsStr) {
        if let Err(error) = take_apart(dir, name) {
            debug!("{}: cannot remove {}: {}", self.path.display(), name.display(), in_words(&error));
        }
    }

    /// Removes a directory of a frame in one step: it loses its name first. Nothing in it goes before that is on disk, or a crash could
    /// leave a half of it under its name.
    pub(super) fn remove_whole(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
        let ours = self.name_of_ours();
        beneath::rename((dir, name), (dir, &ours), beneath::Onto::Nothing)?;
        beneath::sync_dir(dir)?;
        self.discard(dir, &ours);
        Ok(())
    }
}

/// Whether there is a process of that number, which may be one that made a name.
fn is_alive(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else { return false };
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_else_nested_deep_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (root, _) = beneath::open_root(dir.path()).unwrap();
        std::fs::create_dir_all(dir.path().join("shallow/inside")).unwrap();
        std::fs::write(dir.path().join("shallow/file"), "x").unwrap();
        std::fs::create_dir_all(dir.path().join("deep/1/2/3")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("link")).unwrap();
        take_apart(root.as_fd(), OsStr::new("shallow")).unwrap();
        assert!(!dir.path().join("shallow").exists());
        assert!(take_apart(root.as_fd(), OsStr::new("deep")).is_err());
        assert!(dir.path().join("deep/1/2/3").exists());
        take_apart(root.as_fd(), OsStr::new("link")).unwrap();
        assert!(dir.path().join("link").symlink_metadata().is_err());
    }

    #[test]
    fn names_of_dead_processes_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let (root, _) = beneath::open_root(dir.path()).unwrap();
        let dead = |name: &str| is_dead(root.as_fd(), OsStr::new(name));
        assert!(dead(".b2fuse-gone-2147483646-1"), "no process has this number");
        assert!(!dead(name(1).to_str().unwrap()), "our own");
        assert!(!dead("gone"));
        std::fs::write(dir.path().join(".b2fuse-1-1.tmp"), "x").unwrap();
        assert!(dead(".b2fuse-1-1.tmp"));
        let held = std::fs::File::open(dir.path().join(".b2fuse-1-1.tmp")).unwrap();
        held.lock().unwrap();
        assert!(!dead(".b2fuse-1-1.tmp"), "somebody has its lock");
    }
}
