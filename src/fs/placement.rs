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
            }
            let run = self.run.fetch_add(1, Relaxed);
            if run == FIRST || run > 0 && run.is_multiple_of(EVERY) {
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
        debug!("cannot move an event loop to another core: {}", in_words(&error.into()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{scope, spawn};
    use std::time::{Duration, Instant};

    use rustix::thread::gettid;

    use super::*;
    use crate::store::local::system::run_on_any_core;

    const IN_TIME: Duration = Duration::from_secs(20);

    fn only(core: usize) -> CpuSet {
        let mut one = CpuSet::new();
        one.set(core);
        one
    }

    fn here() -> CpuSet {
        sched_getaffinity(None).unwrap()
    }

    /// A thread that sleeps on this core until what is answered is dropped, and its id.
    fn sleeper(core: usize) -> (Sender<()>, u32) {
        let (until, asleep) = channel::<()>();
        let (id, its_id) = channel();
        spawn(move || {
            sched_setaffinity(None, &only(core)).unwrap();
            id.send(gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            let _ = asleep.recv();
        });
        let client = its_id.recv().unwrap();
        let began = Instant::now();
        while waiters::sleeps_on(client) != Some(core as u32) {
            assert!(began.elapsed() < IN_TIME, "it does not sleep on {core}");
            std::thread::yield_now();
        }
        (until, client)
    }

    fn serve(placement: &Placement, client: u32, times: u32) {
        (0..times).for_each(|_| placement.serve(client));
    }

    #[test]
    fn who_asks_alone_is_served_on_its_own_core_and_nobody_else() {
        let all = here();
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).take(2).collect();
        let placement = Placement::new();
        placement.start();
        let clients: Vec<_> = cores.iter().map(|core| sleeper(*core)).collect();
        for (core, (_, client)) in cores.iter().zip(&clients).filter(|_| cores.len() > 1) {
            scope(|scope| {
                scope.spawn(|| {
                    serve(&placement, *client, FIRST);
                    assert!(here() == all, "not yet");
                    serve(&placement, *client, 1);
                    assert!(here() == only(*core));
                    // The kernel itself may ask in between.
                    placement.serve(0);
                    assert!(here() == only(*core));
                    // What is started there is not kept there.
                    scope.spawn(|| {
                        run_on_any_core();
                        assert!(here() == all);
                    });
                    // Another event loop follows.
                    scope.spawn(|| {
                        placement.serve(*client);
                        assert!(here() == only(*core));
                    });
                });
            });
            scope(|scope| {
                scope.spawn(|| {
                    placement.serve(*client);
                    assert!(here() == only(*core));
                    placement.serve(1);
                    assert!(here() == all, "somebody else asks");
                });
            });
        }
    }

    #[test]
    fn who_does_not_sleep_meanwhile_is_served_anywhere() {
        let placement = Placement::new();
        placement.start();
        scope(|scope| {
            scope.spawn(|| {
                // Who is served runs.
                serve(&placement, gettid().as_raw_nonzero().get().cast_unsigned(), 10 * EVERY);
                assert!(here() == sched_getaffinity(Some(rustix::process::getpid())).unwrap());
                // Nobody has this number.
                serve(&placement, u32::MAX, 10 * EVERY);
                assert_eq!(placement.core.load(Relaxed), ANY);
            });
        });
    }
}
