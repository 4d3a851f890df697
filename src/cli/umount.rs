//! `b2fuse umount`: returns when everything is in SOURCE, on disk.
//!
//! umount(2) comes back before the daemon has noticed. So the daemon is asked who it is while it still answers, told to commit
//! while it still can say that it could not, and its end is waited for.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{End, Failure};
use crate::format::plain::plain;
use crate::fs::kernel::{self, FS_TYPE};
use crate::fs::session::daemon_of;
use crate::store::local::system;

/// How long `-z` waits for a daemon whose files are still open.
const LAZY_WAIT: Duration = Duration::from_secs(2);
/// How long an ended daemon's exit code is waited for: the system may have nobody who collects it.
const REAP_WAIT: Duration = Duration::from_millis(100);

/// Unmount, and return when everything is in the frame, on disk
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  b2fuse umount view
  # Although some process works in it
  b2fuse umount -z view")]
pub(super) struct Args {
    /// Do not mind files that are still open: the mount ends with them
    #[arg(short = 'z', long)]
    lazy: bool,
    /// Where the frame is mounted: a directory or a file
    mountpoint: PathBuf,
}

pub(super) fn run(args: &Args) -> End {
    unmount(&args.mountpoint, args.lazy).into()
}

fn unmount(path: &Path, lazy: bool) -> Result<(), Failure> {
    let failed = |reason: String| Failure::new(path, reason);
    let point = kernel::resolve_point(path).map_err(|error| failed(format!("cannot be found: {error}")))?;
    let mounted = kernel::mounted_at(&point).map_err(|error| failed(format!("cannot list mounts: {error}")))?;
    let found = match mounted {
        Some(mount) if mount.fs_type == FS_TYPE => None,
        Some(mount) => Some(format!("a file system of type {}", mount.fs_type)),
        None => Some("nothing mounted".into()),
    };
    if let Some(found) = found {
        return Err(failed(format!("found {found} there, expected a b2fuse mount")));
    }
    // Of a dead daemon's mount the directory may still be opened, out of the kernel's cache.
    let daemon = match system::open_mounted(&point).and_then(|file| Ok((Process::open(daemon_of(&file)?)?, file))) {
        Ok((daemon, file)) => {
            match file.sync_all() {
                // Another process changed SOURCE: committing can never succeed, and the daemon saves what it has.
                Err(error) if error.raw_os_error() == Some(libc::ESTALE) || lazy => {
                    eprintln!("{}: cannot commit: {error}", plain(path));
                }
                Err(error) => return Err(failed(format!("cannot commit: {error}; still mounted (-z unmounts nevertheless)"))),
                Ok(()) => {}
            }
            Some(daemon)
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => None,
        Err(error) => return Err(failed(format!("cannot reach its daemon: {error}"))),
    };
    kernel::unmount(&point, lazy).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => failed("is busy: some process has a file open there, or works in it".into()),
        _ => failed(format!("cannot unmount: {error}")),
    })?;
    let Some(daemon) = daemon else {
        return Err(failed("unmounted, but its daemon had died: what it had not committed is lost".into()));
    };
    if !daemon.ended_within(lazy.then_some(LAZY_WAIT)) {
        eprintln!("{}: files are still open; the mount ends with them", plain(path));
        return Ok(());
    }
    match daemon.exit_status() {
        None | Some(0) => Ok(()),
        Some(_) => Err(failed("unmounted, but not everything is in the frame: see the daemon's log".into())),
    }
}

/// A process that cannot be taken for another one.
struct Process(OwnedFd);

impl Process {
    fn open(pid: i32) -> io::Result<Process> {
        // SAFETY: takes two numbers, and gives a descriptor that nobody else has.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Process(OwnedFd::from_raw_fd(fd as i32))) }
        }
    }

    /// Waits for the end; for ever, without a limit.
    fn ended_within(&self, limit: Option<Duration>) -> bool {
        self.poll(libc::POLLIN, limit)
    }

    fn poll(&self, events: libc::c_short, limit: Option<Duration>) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events, revents: 0 };
        let millis = limit.map_or(-1, |limit| limit.as_millis() as libc::c_int);
        loop {
            // SAFETY: one pollfd, as said.
            match unsafe { libc::poll(&raw mut poll, 1, millis) } {
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                ready => return ready > 0,
            }
        }
    }

    /// The wait status of a process that has ended; `None` on kernels that do not tell (before 6.15), or if nobody has
    /// collected it in time.
    fn exit_status(&self) -> Option<i32> {
        /// `struct pidfd_info`, of which only the first field and the last are of use here.
        #[repr(C)]
        struct Info {
            mask: u64,
            other: [u32; 13],
            exit_code: i32,
        }
        const GET_INFO: libc::c_ulong = 3 << 30 | (size_of::<Info>() as libc::c_ulong) << 16 | 0xFF << 8 | 11;
        const EXIT: u64 = 1 << 3;
        if !self.poll(libc::POLLHUP, Some(REAP_WAIT)) {
            return None;
        }
        let mut info = Info { mask: EXIT, other: [0; 13], exit_code: 0 };
        // SAFETY: the request's number says how large `info` is.
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), GET_INFO, &raw mut info) };
        (rc == 0 && info.mask & EXIT != 0).then_some(info.exit_code)
    }
}
