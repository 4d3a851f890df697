//! A client that asks alone is served on its own core.
//!
//! Who asks one thing after the other sleeps while it is answered, and the event loop sleeps while the client goes on. On two cores
//! each wakes the other out of idling: in a virtual machine 20 to 50 us a request, 9 on one core. The scheduler would keep
//! them apart, since it knows only that the other core is idle. So after some requests of one thread, and no other's in between, the event loops
//! go where that thread sleeps, and back to all cores as soon as another one asks, or where it does not sleep while it is served.
//!
//! All of it is a guess about speed: races between event loops cost a little of that, and nothing else.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use log::debug;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::waiters;
use crate::store::in_words;

/// Requests of one client before it is looked at, and between two looks: it may have moved. A look takes as long as a request.
const FIRST: u32 = 16;
const EVERY: u32 = 64;

/// No core in particular.
const ANY: u32 = u32::MAX;

thread_local! {
    /// Where this event loop is kept.
    static HERE: Cell<u32> = const { Cell::new(ANY) };
}

/// Shared by the event loops of a mount.
pub(super) struct Placement {
    /// The cores that the daemon may use; none where clients cannot be seen, or there is only one.
    cores: OnceLock<CpuSet>,
    /// Who asked last, by thread id.
    client: AtomicU32,
    /// Requests that it has made since another did.
    run: AtomicU32,
    /// Where it is served.
    core: AtomicU32,
}

impl Placement {
    pub(super) fn new() -> Self {
        Placement { cores: OnceLock::new(), client: AtomicU32::new(0), run: AtomicU32::new(0), core: AtomicU32::new(ANY) }
    }

    /// To be called before the first request.
    pub(super) fn start(&self) {
        if let Ok(cores) = sched_getaffinity(None)
            && cores.count() > 1
            && waiters::clients_are_visible()
        {
            let _ = self.cores.set(cores);
        }
    }

    /// The thread `client` has sent a request, which this thread is about to serve; 0 for the kernel itself.
    pub(super) fn serve(&self, client: u32) {
        let Some(cores) = self.cores.get() else { return };
        if client != 0 {
            if self.client.swap(client, Relaxed) != client {
                self.run.store(0, Relaxed);
                self.core.store(ANY, Relaxed);
            } else if matches!(self.run.fetch_add(1, Relaxed), run if run == FIRST || run % EVERY == 0 && run > 0) {
                self.core.store(waiters::sleeps_on(client).unwrap_or(ANY), Relaxed);
            }
        }
        let core = self.core.load(Relaxed);
        if HERE.get() != core {
            go_to(core, cores);
            HERE.set(core);
        }
    }
}

fn go_to(core: u32, all: &CpuSet) {
    let mut one = CpuSet::new();
    let at = core as usize;
    let to = if at < CpuSet::MAX_CPU && all.is_set(at) {
        one.set(at);
        &one
    } else {
        all
    };
    if let Err(error) = sched_setaffinity(None, to) {
        debug!("an event loop stays where it is: {}", in_words(&error.into()));
    }
}
