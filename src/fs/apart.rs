//! Notifications that wait for locks of clients, by a thread that keeps nothing of a killed daemon open.
//!
//! The kernel ends a connection when its last device is closed, and a daemon that is killed closes its devices when its threads have ended.
//! A thread that waits in the kernel for a client's lock does not end, and the client waits for a reply that never comes: both hang for
//! ever. So such a thread has a table of descriptors of its own, and in it a device of its own: a clone. The device on which requests were
//! read closes with all the other threads, the kernel ends these requests with ECONNABORTED, clients release their locks, the thread ends,
//! and the connection with it. Requests that no thread had read are for the [guard](super::guard).
//!
//! Such a thread must neither log, nor drop a descriptor, nor read a file: it has none. It ends when the mount is idle.

#![expect(unsafe_code, reason = "ioctl(2) of the FUSE device")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::Notifier;

use super::kernel::DEVICE;
use crate::store::local::{descriptors, system};

/// How long threads are kept without work.
pub(super) const IDLE: Duration = if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(5) };

/// Opens another device of the same connection. Requests that are read from one device are replied to there.
///
/// # Errors
/// What the system refuses.
pub(super) fn clone_device(device: &impl AsFd) -> io::Result<OwnedFd> {
    /// `_IOR(229, 0, uint32_t)`
    const CLONE: u32 = 2 << 30 | 4 << 16 | 229 << 8;
    let clone = OwnedFd::from(system::open_device(DEVICE)?);
    let of = device.as_fd().as_raw_fd().cast_unsigned();
    // SAFETY: the request reads one number, which is there.
    let rc = unsafe { libc::ioctl(clone.as_raw_fd(), libc::c_ulong::from(CLONE), &raw const of) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(clone) }
}

/// By which the kernel is notified.
pub(super) struct Teller {
    pub(super) notifier: Notifier,
    /// For notifications that fuser does not know.
    pub(super) device: File,
}

type Work = Box<dyn FnOnce(&Teller) + Send>;

/// Does what may hang in a thread of its own, one thing at a time.
pub(super) struct Apart {
    name: &'static str,
    teller: Arc<Teller>,
    /// Under which number fuser writes; none where there is one device only, so that a thread is of no use.
    fuser: Option<RawFd>,
    thread: Option<(Sender<Work>, JoinHandle<()>)>,
}

impl Apart {
    /// With a thread of that name. `fuser` is the number of fuser's device, if there is another one for [`Teller::device`].
    pub(super) fn new(name: &'static str, teller: Arc<Teller>, fuser: Option<RawFd>) -> Self {
        Apart { name, teller, fuser, thread: None }
    }

    /// For what cannot hang.
    pub(super) fn teller(&self) -> &Teller {
        &self.teller
    }

    /// Does `work` apart, and waits for it.
    ///
    /// # Errors
    /// The thread has ended before it was done.
    pub(super) fn run<T: Send + 'static>(&mut self, work: impl FnOnce(&Teller) -> T + Send + 'static) -> io::Result<T> {
        let Some((jobs, _)) = self.started() else { return Ok(work(&self.teller)) };
        let (done, outcome) = channel();
        let work: Work = Box::new(move |teller| drop(done.send(work(teller))));
        if let Err(unsent) = jobs.send(work) {
            self.thread = None;
            unsent.0(&self.teller);
        }
        outcome.recv().map_err(|_| io::Error::other("the thread for it has ended"))
    }

    fn started(&mut self) -> Option<&(Sender<Work>, JoinHandle<()>)> {
        if let (None, Some(fuser)) = (&self.thread, self.fuser) {
            let (jobs, received) = channel::<Work>();
            let teller = Arc::clone(&self.teller);
            let body = move || {
                // Before Linux 5.9 it shares all files.
                let _ = descriptors::keep_only(&teller.device, fuser);
                received.into_iter().for_each(|work| work(&teller));
            };
            let thread = std::thread::Builder::new().name(self.name.into()).spawn(body);
            self.thread = thread.ok().map(|thread| (jobs, thread));
        }
        self.thread.as_ref()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some((jobs, thread)) = self.thread.take() {
            drop(jobs);
            // It drops its share of the device before the last one goes, which would close nothing there.
            let _ = thread.join();
        }
    }
}
