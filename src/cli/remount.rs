//! `b2fuse mount -o remount,...`: other flags for a mount point.
//!
//! They hold for the mount point, and the daemon hears nothing of them. So what is mounted read-write can be made read-only and
//! read-write again, but a daemon that takes no writes goes on like that.

use std::ffi::OsString;
use std::path::Path;

use super::options::Options;
use super::{Failure, busy};
use crate::format::plain::plain;
use crate::fs::kernel::{self, FS_TYPE};
use crate::store::in_words;
use crate::store::local::system;

/// `lists` are what `options` was made of.
///
/// # Errors
/// There is no such mount; what it cannot become; what the system refuses.
pub(super) fn run(point: &Path, options: &Options, lists: &[OsString], read_only: bool) -> Result<(), Failure> {
    let failed = |reason: String| Failure::new(point, reason);
    let real = kernel::resolve_point(point).map_err(|error| failed(format!("cannot be found: {}", in_words(&error))))?;
    let mounted = kernel::mounted_at(&real).map_err(|error| failed(format!("cannot list mounts: {}", in_words(&error))))?;
    let mount = match mounted {
        Some(mount) if mount.fs_type == FS_TYPE => mount,
        Some(mount) => {
            return Err(failed(format!("found a file system of type {} there, expected a b2fuse mount", mount.fs_type)));
        }
        None => return Err(failed("found nothing mounted there, expected a b2fuse mount".into())),
    };
    let mut flags = options.on_top_of(mount.flags, lists).flags;
    if read_only {
        flags |= libc::MS_RDONLY;
    }
    let was = mount.flags & libc::MS_RDONLY != 0;
    let is = flags & libc::MS_RDONLY != 0;
    if !is && mount.read_only {
        let reason = "was mounted read-only, and its daemon takes no writes; unmount it, and mount it again with -o rw";
        return Err(failed(reason.into()));
    }
    if is && !was {
        // What clients have written is not to wait for an end that may be far. Not everybody is let in who may change the mount.
        match system::FoundPath::at(&real).and_then(|found| found.open()) {
            Ok(root) => {
                root.sync_all().map_err(|error| failed(format!("cannot commit, and stays as it is: {}", in_words(&error))))?
            }
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => {}
            Err(error) => return Err(failed(format!("cannot be opened: {}", in_words(&error)))),
        }
    }
    kernel::remount(&mount, flags).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => failed("only root can change a mount; unmount it, and mount it again".into()),
        Some(libc::EBUSY) => failed(format!("{}; files are open for writing", busy::reason(&real))),
        _ => failed(format!("cannot be changed: {}", in_words(&error))),
    })?;
    if !options.of_daemon.is_empty() {
        let stays = options.of_daemon.join(",");
        eprintln!("{}: {} cannot be changed while it is mounted, and is left as it is", plain(point), plain(&stays));
    }
    Ok(())
}
