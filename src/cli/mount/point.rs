//! The mount point: what may be mounted on, and what is said of everything else.

use std::path::{Path, PathBuf};

use super::super::Failure;
use crate::format::plain::plain;
use crate::fs::kernel::{self, FS_TYPE};
use crate::store::backend::Backend;
use crate::store::in_words;
use crate::store::local::{self, FileBackend, mounts};

/// What is said of a mount whose daemon is gone.
const DEAD: &str = "is a mount whose daemon has died; unmount it first (b2fuse umount)";

/// What a mount point is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PointKind {
    Directory,
    File,
    /// Neither.
    Other,
}

/// What can be shown on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fits {
    Directory,
    DirectoryOrFile,
}

impl Fits {
    /// One file fits on a file, too.
    pub(super) fn one_file(is_one_file: bool) -> Self {
        if is_one_file { Fits::DirectoryOrFile } else { Fits::Directory }
    }

    fn in_words(self) -> &'static str {
        match self {
            Fits::Directory => "directory",
            Fits::DirectoryOrFile => "directory or file",
        }
    }
}

/// Whether a mount fails so whose daemon has died: with ECONNABORTED while the guard replies.
fn is_of_dead(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// What is at the mount point.
///
/// # Errors
/// Nothing is there, or a mount that does not answer.
pub(super) fn kind(point: &Path, fits: Fits) -> Result<PointKind, Failure> {
    let failed = |reason: String| Err(Failure::new(point, reason));
    match local::stat(point) {
        Ok(Some(stat)) if stat.is_dir() => Ok(PointKind::Directory),
        Ok(Some(stat)) if stat.is_file() => Ok(PointKind::File),
        Ok(Some(_)) => Ok(PointKind::Other),
        Ok(None) => failed(format!("no such {} to mount on; mkdir makes a directory", fits.in_words())),
        Err(error) if is_of_dead(&error) => failed(DEAD.into()),
        Err(error) => failed(format!("cannot be used as mount point: {}", in_words(&error))),
    }
}

/// The mount point without symbolic links, and whether it is a file. `misfit` says more of a file where only a directory fits.
///
/// # Errors
/// Nothing is there, or what is there does not fit, or is a mount of ours already.
pub(super) fn check(point: &Path, fits: Fits, misfit: Option<&str>) -> Result<(PathBuf, bool), Failure> {
    let on_file = match kind(point, fits)? {
        PointKind::Directory => false,
        PointKind::File if fits == Fits::DirectoryOrFile => true,
        PointKind::File if misfit.is_some() => return Err(Failure::new(point, misfit.unwrap_or_default())),
        PointKind::File | PointKind::Other => {
            return Err(Failure::new(point, format_args!("is not a {}; expected one to mount on", fits.in_words())));
        }
    };
    Ok((resolve(point)?, on_file))
}

/// What is said of a mount point with files in it, which are hidden for as long as the mount lasts. A directory may be mounted on itself.
pub(super) fn hides(point: &Path, shown: &Path, source: &Path) -> Option<String> {
    if local::resolve(source).is_ok_and(|source| source == point) {
        return None;
    }
    let mut has_any = false;
    let listed = FileBackend::open_resolved(point).ok()?.each_name(&mut |_| {
        has_any = true;
        false
    });
    let what = "is not empty; what is in it is hidden until the unmount";
    (listed.is_ok() && has_any).then(|| format!("{}: warning: {what}", plain(shown)))
}

/// The mount point without symbolic links.
///
/// # Errors
/// It cannot be found, or is a mount of ours already.
pub(super) fn resolve(point: &Path) -> Result<PathBuf, Failure> {
    let real =
        local::resolve(point).map_err(|error| Failure::new(point, format_args!("cannot be found: {}", in_words(&error))))?;
    let failed = |reason: String| Err(Failure::new(point, reason));
    match kernel::mounted_at(&real) {
        Ok(Some(mount)) if mount.fs_type == FS_TYPE => {
            // Its attributes may still be in the kernel's caches.
            if mounts::answers(&real).is_err_and(|error| is_of_dead(&error)) {
                return failed(DEAD.into());
            }
            failed(format!("is busy: {} is mounted there already (b2fuse umount)", Path::new(&mount.source).display()))
        }
        _ => Ok(real),
    }
}
