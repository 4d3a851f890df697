//! How many files this process may have open: as many as it is allowed to ask for. Programs that it runs get what it had. And threads
//! that have none of them.

#![expect(unsafe_code, reason = "a limit is set between fork and exec, and descriptors are closed by number")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::{DupFlags, dup3};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::system;

/// What was there before.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Low numbers that nothing uses yet.
static RESERVED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Reserves two of the lowest numbers for `lowered`. To be called before much is open.
pub fn reserve() {
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    reserved.extend((0..2).filter_map(|_| system::open_device("/dev/null").ok()).map(OwnedFd::from));
}

/// The same file under a reserved number, if there is one: see [`keep_only`].
pub(crate) fn lowered(file: OwnedFd) -> OwnedFd {
    let reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner).pop();
    reserved.and_then(|mut low| dup3(&file, &mut low, DupFlags::CLOEXEC).ok().map(|()| low)).unwrap_or(file)
}

/// Raises the limit of this process to the highest that it may set.
pub fn raise_limit() {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, ..before };
    if before.current != before.maximum && setrlimit(Resource::Nofile, raised).is_ok() {
        let _ = BEFORE.set(before);
    }
}

/// Has a program begin with the limit of before: there are some that look at every number a file may have.
pub(crate) fn lower_for(command: &mut Command) {
    if let Some(before) = BEFORE.get() {
        let before = *before;
        // SAFETY: a system call on a copy, as may be made between fork and exec.
        unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nofile, before)?)) };
    }
}

/// Gives the calling thread a table of descriptors of its own, with `file` under two numbers, its own and `also`, and nothing else. The
/// tables of the other threads stay as they are. The thread must use no other descriptor from then on, and drop none.
///
/// Files with higher numbers are never in the new table. Those with lower ones are closed there, which some file systems take for a
/// close, and flush. Hence [`lowered`].
///
/// # Errors
/// ENOSYS before Linux 5.9: the thread still shares the table.
pub(crate) fn keep_only(file: &impl AsRawFd, also: RawFd) -> io::Result<()> {
    let kept = file.as_raw_fd();
    let (low, high) = (kept.min(also), kept.max(also));
    close_range(high + 1, RawFd::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    close_range(low + 1, high - 1, 0)?;
    close_range(0, low - 1, 0)?;
    // SAFETY: the numbers are those of this thread alone, and whoever uses `also` here wants what `file` is.
    if kept != also && unsafe { libc::dup2(kept, also) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Closes what this process inherited beyond its standard files. To be called before it opens anything.
pub fn close_inherited() {
    // Before Linux 5.9 they stay open.
    let _ = close_range(3, RawFd::MAX, 0);
}

fn close_range(first: RawFd, last: RawFd, flags: libc::c_uint) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: numbers only; that nothing uses the descriptors any more, callers see to.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
