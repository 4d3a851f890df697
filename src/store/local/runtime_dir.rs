//! The directory of a user's mounts for what need not outlive the machine's next start: logs, and slots of inotify instances.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;

use super::FileBackend;
use crate::store::backend::Backend;

/// The directory's name in the runtime directory.
pub(super) const DIR: &str = "b2fuse";

/// Where programs of a user keep what need not outlive the machine's next start.
pub(super) fn runtime_dir(user: u32) -> Option<PathBuf> {
    let mine = user == geteuid().as_raw();
    let named = || std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    match user {
        0 => Some("/run".into()),
        _ if mine && named().is_some() => named(),
        _ => {
            let path = PathBuf::from(format!("/run/user/{user}"));
            rustix::fs::lstat(&path).is_ok_and(|stat| stat.st_uid == user).then_some(path)
        }
    }
}

/// Opens a directory of that name in `base`, and makes it if there is none. No link is followed.
///
/// # Errors
/// What the system refuses; that it belongs to another user.
pub(super) fn own_dir(base: &Path, name: &str) -> io::Result<FileBackend> {
    let base = FileBackend::open(base)?;
    match base.create_dir(OsStr::new(name), 0o700) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::RDONLY | super::DIRECTORY;
    let dir = FileBackend::of(rustix::fs::openat(&*base.handle, name, flags, Mode::empty())?);
    if rustix::fs::fstat(&*dir.handle)?.st_uid != geteuid().as_raw() {
        return Err(io::Error::other(format!("{name} in the runtime directory belongs to somebody else")));
    }
    Ok(dir)
}
