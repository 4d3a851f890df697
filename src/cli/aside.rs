//! Work in a process of its own, because it may hang: a process that waits for a FUSE daemon's answer is not even ended by SIGKILL.
//! It may be another user's as well.

#![expect(unsafe_code, reason = "fork(2), and closing what was inherited")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rustix::process::{Gid, Pid, Signal, Uid, WaitOptions, kill_process, waitpid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::memory;
use crate::store::local::system;

/// A user and a group.
pub(super) type User = (u32, u32);

/// Another process, to which one talks. Dropped while it works, it is killed, as far as that can be.
pub(super) struct Aside {
    /// Unless it has been waited for.
    pid: Option<Pid>,
    /// Reading from it gives up after a time.
    pub(super) stream: UnixStream,
}

impl Aside {
    /// Has `work` done by a process that has nothing open but what it opens, and one end of a stream. To be called while there is one
    /// thread only.
    ///
    /// # Errors
    /// When there is no such process.
    pub(super) fn start(patience: Duration, work: impl FnOnce(UnixStream)) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(patience))?;
        if let pid @ Some(_) = fork()? {
            return Ok(Aside { pid, stream: ours });
        }
        let done = catch_unwind(AssertUnwindSafe(|| {
            if close_others(&theirs).is_ok() {
                work(theirs);
            }
        }));
        memory::exit_at_once(i32::from(done.is_err()))
    }

    /// Says that there is nothing more to do, and waits until the process has closed its end of the stream.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)?;
        io::copy(&mut &self.stream, &mut io::sink()).map_err(in_time)?;
        // It has nothing else that could hang.
        let _ = waitpid(self.pid.take(), WaitOptions::empty());
        Ok(())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            // Not waited for: it may hang.
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// What reading from the stream said, with [`io::ErrorKind::TimedOut`] for what took too long.
pub(super) fn in_time(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

/// Makes a second process, which has `None` for the other's id. To be called while there is one thread only.
///
/// # Errors
/// When there is none.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: with a single thread, the child may do all that the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// From now on standard input, output and error are this file.
pub(super) fn nothing_on_standard_files(null: &File) -> rustix::io::Result<()> {
    dup2_stdin(null)?;
    dup2_stdout(null)?;
    dup2_stderr(null)
}

/// Whoever waits for the end of what the parent has open is not to wait for this process, which may hang.
fn close_others(stream: &UnixStream) -> io::Result<()> {
    nothing_on_standard_files(&system::open_device("/dev/null")?)?;
    let kept = stream.as_raw_fd();
    // SAFETY: of all descriptors, only the stream is used from here on.
    unsafe {
        for (first, last) in [(3, kept - 1), (kept + 1, i32::MAX)] {
            if first <= last && libc::syscall(libc::SYS_close_range, first, last, 0) < 0 {
                // Before Linux 5.9.
                for other in first..=last.min(1 << 16) {
                    libc::close(other);
                }
            }
        }
    }
    Ok(())
}

/// Makes this process that user's.
pub(super) fn become_user((user, group): User) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}
