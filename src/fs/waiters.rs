//! Who waits for a lock wants to hear of it when a signal comes, or to die of it.
//!
//! The kernel says so by INTERRUPT, which fuser answers with ENOSYS; from then on a client waits for its answer whatever comes, SIGKILL
//! included. So one thread looks at all clients that wait, and has those that have a signal to handle answered with EINTR. The kernel
//! takes that for ERESTARTSYS: without a handler of the client's own, it asks for the lock again.
//!
//! What each waits in is flock(2), on a thread of ours, which a signal of our own ends.

#![expect(unsafe_code, reason = "a signal handler that does nothing, and tgkill(2)")]

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use log::debug;
use parking_lot::Mutex;
use rustix::process::Pid;
use rustix::thread::gettid;

use crate::store::in_words;
use crate::store::local::system;

/// Pause between two looks at the same client.
const PAUSE: Duration = Duration::from_millis(50);
/// Of the time, looking takes one part in so many at most: with very many clients, pauses are longer.
const SHARE: u32 = 8;
/// Ends system calls that wait. It does nothing else.
const NUDGE: libc::c_int = libc::SIGUSR2;

/// The number of the capability.
const CAP_SYS_ADMIN: u32 = 21;

/// Who waits.
#[derive(Default)]
pub(super) struct Waiters(Mutex<State>);

/// No other lock is taken under this one.
#[derive(Default)]
struct State {
    waiting: Vec<Arc<Waiter>>,
    /// There is a thread that looks at them.
    watched: bool,
}

struct Waiter {
    /// A thread of a client, by its id.
    client: u32,
    /// The thread of ours that waits for it, by its id.
    thread: Pid,
    /// It has been seen: if it cannot be seen later, it is gone.
    seen: AtomicBool,
    /// It is to wait no longer.
    until: AtomicBool,
}

/// What a look at a client finds.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Waits,
    /// It has a signal to handle.
    Signalled,
    /// There is no such thread, or not any more.
    Gone,
    /// This look failed.
    Unknown,
}

impl Waiters {
    /// Calls `work`, which waits in system calls for something that `client` wants, until it has got that or what it is called with is
    /// set. A client that cannot be seen (0: it is in another PID namespace) waits on.
    pub(super) fn wait<T>(self: &Arc<Self>, client: u32, work: impl FnOnce(&AtomicBool) -> T) -> T {
        accept_nudges();
        let waiter = Arc::new(Waiter { client, thread: gettid(), seen: AtomicBool::new(false), until: AtomicBool::new(false) });
        if client != 0 {
            self.add(Arc::clone(&waiter));
        }
        let outcome = work(&waiter.until);
        self.0.lock().waiting.retain(|other| !Arc::ptr_eq(other, &waiter));
        outcome
    }

    fn add(self: &Arc<Self>, waiter: Arc<Waiter>) {
        let mut state = self.0.lock();
        state.waiting.push(waiter);
        if !state.watched {
            let waiters = Arc::clone(self);
            let thread = std::thread::Builder::new().name("b2fuse-watch".into()).spawn(move || waiters.watch());
            state.watched =
                thread.inspect_err(|error| debug!("cannot watch the clients that wait for locks: {}", in_words(error))).is_ok();
        }
    }

    /// Until nobody waits.
    fn watch(&self) {
        let visible = clients_are_visible();
        let mut pause = PAUSE;
        loop {
            std::thread::sleep(pause);
            let waiting = {
                let mut state = self.0.lock();
                if !visible {
                    state.waiting.clear();
                }
                if state.waiting.is_empty() {
                    state.watched = false;
                    return;
                }
                state.waiting.clone()
            };
            let began = Instant::now();
            for waiter in &waiting {
                self.look_at(waiter);
            }
            pause = PAUSE.max(began.elapsed() * SHARE);
        }
    }

    fn look_at(&self, waiter: &Arc<Waiter>) {
        if !waiter.until.load(SeqCst) {
            match look(waiter.client) {
                Look::Waits => return waiter.seen.store(true, SeqCst),
                Look::Unknown => return,
                Look::Gone if !waiter.seen.load(SeqCst) => {
                    // It is hidden from us (hidepid).
                    return self.0.lock().waiting.retain(|other| !Arc::ptr_eq(other, waiter));
                }
                Look::Gone | Look::Signalled => waiter.until.store(true, SeqCst),
            }
        }
        // Again and again: it may be about to wait, and just not do so yet. If the thread has ended, this fails.
        // SAFETY: takes numbers; what is sent does nothing but end a system call.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), waiter.thread.as_raw_nonzero(), NUDGE) };
    }
}

/// Has [`NUDGE`] end system calls of this thread, without starting them again.
fn accept_nudges() {
    extern "C" fn nothing(_: libc::c_int) {}
    static HANDLER: Once = Once::new();
    // SAFETY: the handler does nothing; a sigaction of zeros has no flags, and an empty mask. The set is filled before it is used.
    unsafe {
        HANDLER.call_once(|| {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(NUDGE, &raw const action, std::ptr::null_mut());
        });
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, NUDGE);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Whether what /proc has under a number is who the kernel means by it in a request: both go by our own PID namespace. (/proc may be
/// that of an outer one; and fusermount3, which mounts, may run in an inner one.)
pub(super) fn clients_are_visible() -> bool {
    let namespace = |of: &str| system::read_link(format!("/proc/self/ns/{of}")).ok();
    let ours = read("self").is_ok_and(|status| field(&status, "NSpid:").is_none_or(|ids| ids.split_whitespace().count() == 1));
    ours && namespace("pid") == namespace("pid_for_children")
}

/// The core on which a client sleeps; `None` if it does not, or cannot be seen.
pub(super) fn sleeps_on(client: u32) -> Option<u32> {
    /// The fields behind the program's name, which may hold anything: the state, and proc_pid_stat(5)'s `processor`.
    const PROCESSOR: usize = 36;
    let stat = system::read(format!("/proc/{client}/stat")).ok()?;
    let fields = String::from_utf8_lossy(stat.rsplit(|byte| *byte == b')').next()?).into_owned();
    let mut fields = fields.split_ascii_whitespace();
    if !matches!(fields.next()?, "S" | "D") {
        return None;
    }
    fields.nth(PROCESSOR - 1)?.parse().ok()
}

/// Whether a thread has CAP_SYS_ADMIN in the user namespace of this process.
pub(super) fn is_administrator(thread: u32) -> bool {
    let namespace = |of: &str| system::read_link(format!("/proc/{of}/ns/user")).ok();
    let has_capability = || {
        let set = u64::from_str_radix(field(&read(thread).ok()?, "CapEff:")?, 16).ok()?;
        Some(set & 1 << CAP_SYS_ADMIN != 0)
    };
    let own = namespace("self");
    thread != 0
        && clients_are_visible()
        && own.is_some()
        && namespace(&thread.to_string()) == own
        && has_capability() == Some(true)
}

fn read(process: impl std::fmt::Display) -> io::Result<String> {
    // Names of programs can be any bytes.
    system::read(format!("/proc/{process}/status")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Whether a client has a signal to handle, or is gone.
pub(super) fn is_unwanted(client: u32) -> bool {
    matches!(look(client), Look::Signalled)
}

fn look(client: u32) -> Look {
    match read(client) {
        Ok(status) => judge(&status).unwrap_or(Look::Unknown),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Look::Gone,
        Err(_) => Look::Unknown,
    }
}

/// What `/proc/ID/status` says.
///
/// Who is told EINTR without a signal that the kernel holds for this very thread would see an errno that is none. A signal to a
/// process is held for its first thread if that does not block it; for which of the others otherwise, nothing says. (One that
/// ends the process is held for all of them.)
fn judge(status: &str) -> Option<Look> {
    let signals = |name| u128::from_str_radix(field(status, name)?, 16).ok();
    if field(status, "State:")?.starts_with(['Z', 'X']) {
        return Some(Look::Gone);
    }
    let is_first = field(status, "Tgid:")? == field(status, "Pid:")?;
    let pending = signals("SigPnd:")? | if is_first { signals("ShdPnd:")? } else { 0 };
    let handled = pending & !signals("SigBlk:")? & !signals("SigIgn:")?;
    Some(if handled == 0 { Look::Waits } else { Look::Signalled })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first thread of a process, or another; with these pending, blocked and ignored.
    fn status(first: bool, [thread, process, blocked, ignored]: [u64; 4]) -> String {
        let id = if first { 10 } else { 11 };
        format!(
            "Name:\tState: Z\nState:\tD (disk sleep)\nTgid:\t10\nNgid:\t0\nPid:\t{id}\nNSpid:\t{id}\nSigQ:\t1/100\n\
             SigPnd:\t{thread:016x}\nShdPnd:\t{process:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t0\n"
        )
    }

    #[test]
    fn a_signal_counts_that_this_thread_will_handle() {
        const KILL: u64 = 1 << 8;
        const ALARM: u64 = 1 << 13;
        for first in [true, false] {
            for (signals, counts) in [
                ([0, 0, 0, 0], false),
                ([ALARM, 0, 0, 0], true),
                ([KILL, 0, ALARM, ALARM], true),
                ([ALARM, ALARM, ALARM, 0], false),
                ([ALARM, ALARM, 0, ALARM], false),
                ([ALARM, ALARM, KILL, 0], true),
                // Perhaps for another thread, unless this one is the first.
                ([0, ALARM, KILL, 0], first),
                ([0, ALARM, ALARM, 0], false),
            ] {
                let expected = if counts { Look::Signalled } else { Look::Waits };
                assert_eq!(judge(&status(first, signals)), Some(expected), "{signals:?} {first}");
            }
        }
    }

    #[test]
    fn a_zombie_is_gone_and_half_a_file_says_nothing() {
        assert_eq!(judge(&status(true, [0; 4]).replace("\nState:\tD", "\nState:\tZ")), Some(Look::Gone));
        let whole = status(true, [0; 4]);
        assert_eq!(judge(&whole[..whole.find("SigBlk").unwrap()]), None);
        assert_eq!(judge(""), None);
        assert_eq!(look(u32::MAX), Look::Gone);
        assert_eq!(look(std::process::id()), Look::Waits);
        assert!(clients_are_visible());
    }

    #[test]
    fn a_wait_in_a_system_call_ends_when_the_client_is_gone() {
        let waiters = Arc::new(Waiters::default());
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let client = child.id();
        let (reader, writer) = io::pipe().unwrap();
        let wait = std::thread::spawn({
            let waiters = Arc::clone(&waiters);
            move || {
                waiters.wait(client, |until| {
                    let mut byte = [0_u8];
                    while !until.load(SeqCst) {
                        // It never comes.
                        let _ = rustix::io::read(&reader, &mut byte);
                    }
                })
            }
        });
        while !waiters.0.lock().waiting.first().is_some_and(|waiter| waiter.seen.load(SeqCst)) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        wait.join().unwrap();
        child.wait().unwrap();
        drop(writer);
        assert!(waiters.0.lock().waiting.is_empty());
    }

    #[test]
    fn clients_that_cannot_be_seen_wait_on() {
        let waiters = Arc::new(Waiters::default());
        let ended = waiters.wait(u32::MAX, |until| {
            while !waiters.0.lock().waiting.is_empty() {
                std::thread::yield_now();
            }
            until.load(SeqCst)
        });
        assert!(!ended);
        assert!(!waiters.wait(0, |until| !waiters.0.lock().waiting.is_empty() || until.load(SeqCst)));
    }
}
