//! Requests that may have to wait until other processes give their locks back: on threads of their own, since the event loops must
//! go on, or no client could give one back either.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use fuser::{ReplyData, ReplyEmpty};
use log::error;

use super::notify::Held;
use super::shared::{Shared, empty, errno};
use crate::store::in_words;
use crate::view::{Flock, Handle, Ino, Inval, Invals, ViewError};

/// Whether and where something is waited for that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    No,
    /// On this thread, for the moment that it takes to give back.
    Here,
    /// On a thread of its own, for as long as this client does, which the kernel has named by a thread's id.
    Aside(u32),
}

impl Shared {
    /// Runs `work`, which may have to wait for the disk, or for other processes: the event loops must go on, or no client could give a
    /// lock back.
    pub(super) fn patiently(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        if self.view.may_wait() { self.alone(work) } else { self.aside(work) }
    }

    /// Answers a READ when other processes have done what they are doing to what is read.
    pub(super) fn read_patiently(self: &Arc<Self>, ino: Ino, handle: Option<Handle>, offset: u64, len: usize, reply: ReplyData) {
        self.patiently(move |shared| {
            let mut buffer = vec![0; len];
            let read = shared.view.catch_up().and_then(|reloads| {
                if shared.forgotten.load(SeqCst) < reloads {
                    shared.notify.forget(vec![Inval::All]);
                }
                shared.view.read(ino, handle, offset, &mut buffer)
            });
            match read {
                Ok(n) => reply.data(&buffer[..n]),
                Err(refusal) => reply.error(errno("read", ino, &refusal)),
            }
        });
    }

    /// Takes a lock, or gives it back, which commits what was written under it.
    pub(super) fn lock(
        self: &Arc<Self>,
        ino: Ino,
        handle: Handle,
        lock: Option<Flock>,
        wait: Wait,
        mut invals: Invals,
        reply: ReplyEmpty,
    ) {
        let never = AtomicBool::new(false);
        match (self.view.lock(ino, handle, lock, (wait == Wait::Here).then_some(&never), &mut invals), wait) {
            (Err(ViewError::Locked), Wait::Aside(client)) => {
                // Not as one request of those that the end waits for: who knows when others give it back.
                let shared = Arc::clone(self);
                let thread = std::thread::Builder::new().name("b2fuse-lock".into()).spawn(move || {
                    let work = |until: &_| shared.view.lock(ino, handle, lock, Some(until), &mut invals);
                    let outcome = shared.waiters.wait(client, work);
                    shared.locked(ino, outcome, invals, reply);
                });
                if let Err(error) = thread {
                    error!("no thread to wait for a lock, which fails: {}", in_words(&error));
                }
            }
            (outcome, _) => self.locked(ino, outcome, invals, reply),
        }
    }

    /// Answers a request for a lock when the kernel has forgotten what others have changed.
    fn locked(self: &Arc<Self>, ino: Ino, outcome: Result<u64, ViewError>, mut invals: Invals, reply: ReplyEmpty) {
        let outcome = outcome.map_err(|refusal| errno("flock", ino, &refusal));
        // Another client's answer may be on its way behind the same: it does no harm to forget twice.
        if outcome.is_ok_and(|reloads| self.forgotten.load(SeqCst) < reloads) {
            invals.push(Inval::All);
        }
        let shared = Arc::clone(self);
        self.notify.answer(invals, Held::Nothing, move || {
            if let Ok(reloads) = outcome {
                shared.forgotten.fetch_max(reloads, SeqCst);
            }
            empty(reply, outcome.map(drop));
        });
    }
}
