//! Requests that may have to wait until other processes give their locks back: on threads of their own, since the event loops must
//! go on, or no client could give one back either.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fuser::{ReplyData, ReplyEmpty};

use super::answers::{Reply, errno};
use super::executor::Reading;
use super::notify::KernelLock;
use super::shared::Shared;
use super::spawn;
use crate::view::{Flock, Handle, Ino, Invalidations, Reread, ViewError, Wait};

/// How long a lock is waited for, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    None,
    /// On this thread, for the moment that it takes to give back.
    Moment,
    /// On a thread of its own, for as long as this client does, which the kernel has named by a thread's id.
    OfClient(u32),
}

impl Shared {
    /// Answers a READ when other processes have done what they are doing to what is read.
    pub(super) fn read_waiting(
        self: &Arc<Self>,
        reading: Reading,
        (ino, handle, offset): (Ino, Option<Handle>, u64),
        len: usize,
        reply: ReplyData,
    ) {
        self.run(Wait::Others, move |shared| {
            let _reading = reading;
            let mut buffer = vec![0; len];
            let read = shared.view.catch_up(ino).and_then(|reread| {
                if shared.is_outdated(&reread) {
                    shared.notify.forget(reread.invalidations);
                }
                shared.view.read(ino, handle, offset, &mut buffer)
            });
            buffer.truncate(*read.as_ref().unwrap_or(&0));
            reply.send(read.map(|_| buffer).map_err(|refusal| errno("read", ino, &refusal)));
        });
    }

    /// Takes a lock, or gives it back, which commits what was written under it.
    pub(super) fn lock(
        self: &Arc<Self>,
        ino: Ino,
        handle: Handle,
        lock: Option<Flock>,
        patience: Patience,
        mut invalidations: Invalidations,
        reply: ReplyEmpty,
    ) {
        let never = AtomicBool::new(false);
        match (self.view.lock(ino, handle, lock, (patience == Patience::Moment).then_some(&never), &mut invalidations), patience)
        {
            (Err(ViewError::Locked), Patience::OfClient(client)) => {
                // Not as one request of those that the end waits for: who knows when others give it back.
                let shared = Arc::clone(self);
                spawn("b2fuse-lock", "a client that waits for a lock, which fails", move || {
                    let work = |until: &_| shared.view.lock(ino, handle, lock, Some(until), &mut invalidations);
                    let outcome = shared.waiters.wait(client, work);
                    shared.locked(ino, outcome, invalidations, reply);
                });
            }
            (outcome, _) => self.locked(ino, outcome, invalidations, reply),
        }
    }

    /// Answers a request for a lock when the kernel has forgotten what others have changed.
    fn locked(
        self: &Arc<Self>,
        ino: Ino,
        outcome: Result<Reread, ViewError>,
        mut invalidations: Invalidations,
        reply: ReplyEmpty,
    ) {
        let mut outcome = outcome.map_err(|refusal| errno("flock", ino, &refusal));
        // Another client's answer may be on its way behind the same: it does no harm to forget twice.
        if let Ok(reread) = &mut outcome
            && self.is_outdated(reread)
        {
            invalidations.append(&mut reread.invalidations);
        }
        let shared = Arc::clone(self);
        self.notify.answer(invalidations, KernelLock::Nothing, move || {
            if let Ok(reread) = &outcome {
                shared.has_forgotten(reread);
            }
            reply.send(outcome.map(drop));
        });
    }

    /// Whether the kernel knows something that was read again since.
    fn is_outdated(&self, reread: &Reread) -> bool {
        self.forgotten.lock().get(&reread.of).copied().unwrap_or(0) < reread.count
    }

    fn has_forgotten(&self, reread: &Reread) {
        if reread.count > 0 {
            let mut forgotten = self.forgotten.lock();
            let count = forgotten.entry(reread.of).or_default();
            *count = reread.count.max(*count);
        }
    }
}
