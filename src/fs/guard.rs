//! A small process beside the daemon, that frees clients when the daemon has been killed.
//!
//! A daemon that is killed closes its devices, and the kernel ends the requests that were read from them. But where a thread of it hangs
//! in the kernel (see `apart`, or a disk that does not answer), one device stays open, and with it the connection. Then
//! requests that no thread had read, and all that come later, would wait for ever. So the guard has a device as well. When the kernel
//! tells it by a signal that the first thread of the daemon has ended, it
//!
//! 1. aborts the connection, where the kernel shows the file for that (fusectl) and the user may write to it;
//! 2. replies to each request with ECONNABORTED until the daemon is gone, and ends: the kernel aborts the connection with the last
//!    device. That takes no privilege.
//!
//! It never unmounts: programs that go on writing must find an error, and not the directory below. Neither a pidfd nor a pipe would report
//! the death of a daemon of which one thread hangs; /proc would, but may be that of another PID namespace.
//!
//! It is the program itself, run anew under the name [`NAME`], so it holds nothing of the daemon's memory or files: its standard input is
//! the device, its standard output the file that aborts. Standard error is for `auto_unmount`, with which fusermount3 looks at the mount
//! when all copies of a socket are closed: that must be after the connection has ended.

#![expect(unsafe_code, reason = "the kernel's word that the daemon has ended is a signal and its sender")]

use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use log::debug;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, set_parent_process_death_signal, setsid};

use super::adapter::MAX_WRITE;
use super::apart::clone_device;
use super::kernel::Mountpoint;
use crate::store::in_words;
use crate::store::local::descriptors;

/// The name under which the program is a guard.
pub const NAME: &str = "b2fuse-guard";
/// How long requests are replied to where the daemon's end cannot be seen.
const BLIND: Duration = Duration::from_secs(5);

/// The daemon's side. Dropped, the guard ends.
pub(super) struct Guard(Child);

impl Guard {
    /// Starts the guard of this process. To be called by the first thread, whose end it is told of. Without one, only a thread that
    /// hangs when the daemon is killed is a danger.
    pub(super) fn start(device: &impl AsFd, point: &Mountpoint) -> Option<Self> {
        let start = || {
            let file_or_null = |file: Option<OwnedFd>| file.map_or_else(Stdio::null, Stdio::from);
            let mut command = Command::new("/proc/self/exe");
            command
                .arg0(NAME)
                .arg(getpid().to_string())
                .env_clear()
                .stdin(clone_device(device)?)
                .stdout(file_or_null(point.open_abort().map(OwnedFd::from)))
                .stderr(file_or_null(point.auto_unmount()));
            // SAFETY: it makes system calls only.
            unsafe { command.pre_exec(listen) };
            command.spawn()
        };
        start().inspect_err(|error| debug!("no guard: {}", in_words(error))).ok().map(Guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The guard's process.
///
/// # Errors
/// It was not started by a daemon.
pub fn run(daemon: &str) -> io::Result<()> {
    descriptors::close_inherited();
    let daemon = daemon.parse().ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    // So that it does not look like the daemon to who looks for that.
    let _ = rustix::thread::set_name(c"b2fuse-guard");
    let _ = setsid();
    std::env::set_current_dir("/")?;
    let device: File = io::stdin().as_fd().try_clone_to_owned()?.into();
    fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
    // The kernel forgets it where a program that is run gets capabilities which its caller had not.
    set_parent_process_death_signal(Some(Signal::USR2))?;
    let process = pidfd_open(daemon, PidfdFlags::empty());
    let lives = getppid() == Some(daemon);
    if lives {
        wait_for_end(daemon);
    }
    // If it has gone before, its number may be another's.
    let process = process.ok().filter(|_| lives);
    // It fails where there is no such file, or no connection any more.
    let _ = io::stdout().as_fd().try_clone_to_owned().and_then(|abort| File::from(abort).write_all(b"1"));
    let refused = refuse_all(&device, process.as_ref());
    // An exit closes files in no order, and standard error is to be the last: fusermount3 looks at the mount then.
    drop(device);
    rustix::stdio::dup2_stdin(io::stdout())?;
    refused
}

/// Has the kernel tell of the end of the thread that has forked this process. No other signal ends it; only the daemon does, by SIGKILL. To
/// be done before the program is run anew, which keeps all of it: so it is done before the first request is answered.
fn listen() -> io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call fills the set, the second reads it.
    let rc = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut())
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(set_parent_process_death_signal(Some(Signal::USR2))?)
}

/// Waits for the signal of [`listen`]. Of one that somebody else sends, the sender is another.
fn wait_for_end(daemon: Pid) {
    let mut wanted = MaybeUninit::<libc::sigset_t>::uninit();
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    loop {
        // SAFETY: the first two calls fill the set, the third reads it and fills what is zero before, in which a signal of a process has
        // its sender.
        let (signal, sender) = unsafe {
            libc::sigemptyset(wanted.as_mut_ptr());
            libc::sigaddset(wanted.as_mut_ptr(), libc::SIGUSR2);
            (libc::sigwaitinfo(wanted.as_ptr(), info.as_mut_ptr()), info.assume_init_ref().si_pid())
        };
        // SIGCONT and debuggers interrupt it.
        if signal == libc::SIGUSR2 && sender == daemon.as_raw_nonzero().get() {
            return;
        }
    }
}

/// Replies to each request with ECONNABORTED until the connection has ended, or the process is gone.
fn refuse_all(device: &File, process: Option<&OwnedFd>) -> io::Result<()> {
    // The kernel wants room for the longest request.
    let mut buffer = vec![0; MAX_WRITE as usize + 4096];
    let until = Instant::now() + BLIND;
    loop {
        let mut files = vec![PollFd::new(device, PollFlags::IN)];
        files.extend(process.map(|process| PollFd::new(process, PollFlags::IN)));
        let wait = Timespec { tv_sec: 1, tv_nsec: 0 };
        match poll(&mut files, Some(&wait)) {
            Err(rustix::io::Errno::INTR) => continue,
            done => done?,
        };
        let [asked, ended] = [0, 1].map(|at| files.get(at).map_or(PollFlags::empty(), PollFd::revents));
        // Whoever goes on asking does not keep it here.
        if !ended.is_empty() || process.is_none() && Instant::now() > until {
            return Ok(());
        }
        if asked.contains(PollFlags::IN) {
            match rustix::io::read(device, &mut *buffer) {
                Ok(len) => refuse(device, buffer.get(..len).unwrap_or_default()),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        } else if !asked.is_empty() {
            return Ok(());
        }
    }
}

/// Replies to a request with ECONNABORTED, if it is one that wants a reply.
fn refuse(mut device: &File, request: &[u8]) {
    const FORGET: u32 = 2;
    const INTERRUPT: u32 = 36;
    const BATCH_FORGET: u32 = 42;
    // struct fuse_in_header: length, opcode, number.
    let opcode = request.get(4..).and_then(|rest| rest.first_chunk()).map(|bytes| u32::from_ne_bytes(*bytes));
    let Some(number) = request.get(8..).and_then(|rest| rest.first_chunk::<8>()) else { return };
    if matches!(opcode, Some(FORGET | INTERRUPT | BATCH_FORGET)) {
        return;
    }
    // struct fuse_out_header: length, error, number. A client that has gone meanwhile needs none.
    let reply = [&16u32.to_ne_bytes()[..], &(-libc::ECONNABORTED).to_ne_bytes(), number].concat();
    let _ = device.write_all(&reply);
}
