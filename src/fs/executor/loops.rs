//! Event loops: a mount begins with [`FIRST`], and the others start when requests wait for one. So an idle mount has few threads.
//!
//! A client's next request often comes before the event loop is done with the last one. So a thread observes for some milliseconds whether
//! all event loops are busy, or requests are queued, and starts the others only then.
//!
//! fuser starts all event loops of a session at once. The others belong to a second session of the same device. The kernel has greeted the
//! first one, so the second is greeted by us, over a socket, in the place of which the device is put afterwards.

#![expect(unsafe_code, reason = "a descriptor is replaced by its number")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use log::{debug, warn};
use parking_lot::Mutex;

use crate::fs::shared::Shared;
use crate::store::in_words;
use crate::store::local::system;

/// Event loops of an idle mount: one for what waits for the disk, one for what waits for other processes, and one that reads.
pub(in crate::fs) const FIRST: usize = 3;

/// Between two looks of the thread that observes.
const PAUSE: Duration = Duration::from_millis(1);
/// So many looks in a row find requests that wait, and the others start; or find none, and it ends.
const LOOKS: u32 = 4;

/// A session that is ready to run.
pub(in crate::fs) type Run = Box<dyn FnOnce() -> io::Result<()>>;
/// Makes a session of so many event loops on what is taken for the device.
type NewSession = Box<dyn Fn(&Arc<Shared>, OwnedFd, usize) -> io::Result<Run> + Send + Sync>;

/// What the other event loops are made of.
pub(in crate::fs) struct Others {
    pub(in crate::fs) device: OwnedFd,
    /// All event loops together.
    pub(in crate::fs) all: usize,
    pub(in crate::fs) session: NewSession,
}

/// Which event loops there are.
#[derive(Default)]
pub(in crate::fs) struct Loops {
    /// Requests that are being served, until all event loops have been started.
    busy: AtomicUsize,
    /// There is nothing to start.
    are_all: AtomicBool,
    /// The thread runs.
    observed: AtomicBool,
    others: Mutex<Option<Arc<Others>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A request that is being served.
pub(in crate::fs) struct Busy<'a>(Option<&'a AtomicUsize>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if let Some(busy) = self.0 {
            busy.fetch_sub(1, Relaxed);
        }
    }
}

impl Loops {
    /// What [`Shared::want_loops`] starts. Until then there is nothing.
    pub(in crate::fs) fn prepare(&self, others: Others) {
        *self.others.lock() = Some(Arc::new(others));
    }

    /// Waits for the end of the other event loops, and of the device.
    pub(in crate::fs) fn join(&self) {
        self.are_all.store(true, Relaxed);
        *self.others.lock() = None;
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// An event loop serves a request.
    pub(in crate::fs) fn begin(self: &Arc<Self>) -> Busy<'_> {
        if self.loops.are_all.load(Relaxed) {
            return Busy(None);
        }
        let busy = &self.loops.busy;
        if busy.fetch_add(1, Relaxed) + 1 >= FIRST {
            self.want_loops();
        }
        Busy(Some(busy))
    }

    /// A request waits, or the next one will. If that lasts, the other event loops start.
    pub(in crate::fs) fn want_loops(self: &Arc<Self>) {
        let loops = &self.loops;
        if loops.are_all.load(Relaxed) || loops.observed.swap(true, Relaxed) {
            return;
        }
        let mut thread = loops.thread.lock();
        let Some(others) = loops.others.lock().clone() else { return };
        let shared = Arc::clone(self);
        let body = move || {
            system::run_on_any_core();
            if !shared.is_crowded() {
                shared.loops.observed.store(false, Relaxed);
                return;
            }
            shared.loops.are_all.store(true, Relaxed);
            if let Err(error) = shared.run_loops(&others) {
                warn!("only {FIRST} threads serve requests: {}", in_words(&error));
            }
            shared.allow(FIRST);
        };
        match std::thread::Builder::new().name("b2fuse-more".into()).spawn(body) {
            Ok(started) => *thread = Some(started),
            Err(error) => {
                // The next request tries again.
                loops.observed.store(false, Relaxed);
                debug!("no thread for more event loops: {}", in_words(&error));
            }
        }
    }

    /// Whether requests wait for event loops for some time.
    fn is_crowded(&self) -> bool {
        let (mut crowded, mut free) = (0, 0);
        while crowded < LOOKS && free < LOOKS {
            std::thread::sleep(PAUSE);
            (crowded, free) = match self.loops.busy.load(Relaxed) >= FIRST || self.is_queued() {
                true => (crowded + 1, 0),
                false => (0, free + 1),
            };
        }
        crowded == LOOKS
    }

    /// Starts the other event loops, and returns when they have ended.
    fn run_loops(self: &Arc<Self>, others: &Others) -> io::Result<()> {
        let (socket, kernel) = UnixDatagram::pair()?;
        kernel.send(&greeting())?;
        let number = socket.as_raw_fd();
        let run = (others.session)(self, socket.into(), others.all - FIRST)?;
        // SAFETY: the number is that of the socket, which the session owns and nothing has read from since.
        if unsafe { libc::dup3(others.device.as_fd().as_raw_fd(), number, libc::O_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
        self.allow(others.all);
        run()
    }
}

/// INIT, as a kernel sends it that offers nothing: `struct fuse_in_header` and `struct fuse_init_in`.
fn greeting() -> Vec<u8> {
    const INIT: u32 = 26;
    const LEN: usize = 40 + 64;
    let mut bytes = Vec::with_capacity(LEN);
    bytes.extend([LEN as u32, INIT].map(u32::to_ne_bytes).concat());
    // Its number.
    bytes.extend(1u64.to_ne_bytes());
    bytes.resize(40, 0);
    // The version, 7.31: what is older has other replies.
    bytes.extend([7u32, 31].map(u32::to_ne_bytes).concat());
    bytes.resize(LEN, 0);
    bytes
}
