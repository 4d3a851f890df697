//! One event loop waits, awake, for its only client's next request.
//!
//! A client that asks one thing after the other sleeps while it is answered, and the event loop sleeps while the client goes on.
//! Each wakes the other out of its core's idling, which takes longer than the work: in a virtual machine most of the time of a
//! request. So after its answer an event loop looks for the next request for a moment, instead of falling asleep at once: as
//! long as one client asks alone, and as long as that pays. Whoever else wants the core gets it.
//!
//! The other loops are parked meanwhile, or the kernel would wake them for nothing with each request. They are back when the
//! leading loop gives up, and soon if it does not get on with its work, which may have to wait for a disk.
//!
//! All of it is a guess about speed: races between the loops cost a little of that, and nothing else.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a request is waited for awake.
const MOMENT: Duration = Duration::from_micros(80);
/// How long a leading loop may work at one request before the others come to its help.
const HELP_AFTER: Duration = Duration::from_millis(1);
/// Requests that a client makes without others in between before it is waited for.
const READY: u32 = 4;
/// What a request that came in time earns, and what one that did not costs.
const EARNED: u32 = 1;
const LOST: u32 = 4;
/// Once so much is lost, only one in so many requests is waited for.
const MOST: u32 = 16;
const TRY_EVERY: u32 = 64;

/// Hints to the processor that nothing is done, between two looks: about a microsecond.
const PAUSES: u32 = 32;

/// No event loop.
const NOBODY: u32 = 0;

thread_local! {
    /// This event loop's number.
    static ME: Cell<u32> = const { Cell::new(NOBODY) };
}

fn me() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(NOBODY);
    if ME.get() == NOBODY {
        ME.set(LAST.fetch_add(1, Relaxed) + 1);
    }
    ME.get()
}

/// Shared by the event loops of a mount.
#[derive(Default)]
pub(super) struct Spin {
    /// Where requests come from; none where the process has but one core, which the client needs.
    device: OnceLock<OwnedFd>,
    /// Who asked last, by thread id.
    client: AtomicU32,
    /// Requests that it has made since another did.
    run: AtomicU32,
    /// What has been lost by waiting in vain, less what was earned.
    lost: AtomicU32,
    /// The loop that leads.
    leader: AtomicU32,
    /// Requests answered.
    turns: AtomicU32,
    /// Loops parked. The lock is for no more than to wait by.
    parked: AtomicU32,
    park: Mutex<()>,
    back: Condvar,
}

/// A request that is being answered. When it is dropped, after the answer, the next one is waited for.
pub(super) struct Turn<'a> {
    spin: &'a Spin,
    /// Whether to wait.
    wait: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(device) = self.spin.device.get() {
            self.spin.answered(device, self.wait);
        }
    }
}

impl Spin {
    /// To be called before the first request, with the device that they come from.
    pub(super) fn start(&self, device: OwnedFd) {
        if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
            let _ = self.device.set(device);
        }
    }

    /// The thread `client` has sent a request; 0 for the kernel itself.
    pub(super) fn turn(&self, client: u32) -> Turn<'_> {
        let run = if client == 0 || self.client.swap(client, Relaxed) == client {
            self.run.fetch_add(1, Relaxed).wrapping_add(1)
        } else {
            self.run.store(0, Relaxed);
            0
        };
        let pays = || self.lost.load(Relaxed) < MOST || run.is_multiple_of(TRY_EVERY);
        let wait = run >= READY && self.device.get().is_some() && pays();
        Turn { spin: self, wait }
    }

    /// What a loop does before it asks the kernel for a request.
    fn answered(&self, device: &OwnedFd, wait: bool) {
        self.turns.fetch_add(1, Relaxed);
        if !wait {
            return self.step_down();
        }
        if !self.leads() && self.leader.compare_exchange(NOBODY, me(), SeqCst, SeqCst).is_err() {
            return self.wait();
        }
        let lost = self.lost.load(Relaxed);
        if came(device) {
            self.lost.store(lost.saturating_sub(EARNED), Relaxed);
        } else {
            self.lost.store((lost + LOST).min(MOST), Relaxed);
            self.step_down();
        }
    }

    fn leads(&self) -> bool {
        self.leader.load(SeqCst) == me()
    }

    fn step_down(&self) {
        let steps_down = self.leads() && self.leader.compare_exchange(me(), NOBODY, SeqCst, SeqCst).is_ok();
        if steps_down && self.parked.load(SeqCst) > 0 {
            // With the lock: whoever is about to wait has seen that nobody leads, or waits already.
            let _waiting = self.park.lock();
            self.back.notify_all();
        }
    }

    /// Waits until no loop leads. One that has not answered for a while leads no more: who waits for it does so once.
    fn wait(&self) {
        let mut waiting = self.park.lock();
        self.parked.fetch_add(1, SeqCst);
        loop {
            let (leader, turns) = (self.leader.load(SeqCst), self.turns.load(Relaxed));
            if leader == NOBODY {
                break;
            }
            if self.back.wait_for(&mut waiting, HELP_AFTER).timed_out() && self.turns.load(Relaxed) == turns {
                let _ = self.leader.compare_exchange(leader, NOBODY, SeqCst, SeqCst);
                break;
            }
        }
        self.parked.fetch_sub(1, SeqCst);
    }
}

/// Whether a request comes within a moment.
fn came(device: &OwnedFd) -> bool {
    let mut event = [PollFd::new(device, PollFlags::IN)];
    let began = Instant::now();
    loop {
        if poll(&mut event, Some(&Timespec::default())) != Ok(0) {
            return true;
        }
        if began.elapsed() > MOMENT {
            return false;
        }
        // Two cores may be one in truth, so it does little.
        for _ in 0..PAUSES {
            std::hint::spin_loop();
        }
        // Nobody is to wait for a core because of this.
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, PipeWriter, Write, pipe};
    use std::sync::mpsc::channel;

    use super::*;

    const CLIENT: u32 = 7;
    const IN_TIME: Duration = Duration::from_secs(20);

    /// A device on which a request waits for ever, or none ever comes.
    fn on_a_pipe(request: bool) -> (Spin, PipeWriter) {
        let (reader, mut writer): (PipeReader, _) = pipe().unwrap();
        if request {
            writer.write_all(&[0]).unwrap();
        }
        let spin = Spin::default();
        spin.device.set(reader.into()).unwrap();
        (spin, writer)
    }

    impl Spin {
        fn is_led(&self) -> bool {
            self.leader.load(SeqCst) != NOBODY
        }
    }

    fn answer(spin: &Spin, clients: impl IntoIterator<Item = u32>) {
        clients.into_iter().for_each(|client| drop(spin.turn(client)));
    }

    #[test]
    fn a_loop_leads_while_one_client_asks_alone() {
        let (spin, _requests) = on_a_pipe(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                answer(&spin, [CLIENT; READY as usize]);
                assert!(!spin.is_led());
                // The kernel's own requests do not count as another's.
                answer(&spin, [CLIENT, 0, CLIENT]);
                assert!(spin.is_led());
                answer(&spin, [CLIENT + 1]);
                assert!(!spin.is_led());
                answer(&spin, (0..1000).map(|n| n % 2 + 1));
                assert!(!spin.is_led());
            });
        });
    }

    #[test]
    fn who_takes_longer_to_ask_is_seldom_waited_for() {
        let (spin, _requests) = on_a_pipe(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                answer(&spin, [CLIENT; 100]);
                assert_eq!((spin.lost.load(SeqCst), spin.is_led()), (MOST, false));
                let waited = (0..10 * TRY_EVERY).filter(|_| spin.turn(CLIENT).wait).count();
                assert_eq!(waited, 10);
            });
        });
    }

    #[test]
    fn who_asks_in_time_again_is_waited_for_again() {
        let (spin, _requests) = on_a_pipe(true);
        spin.lost.store(MOST, SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                answer(&spin, [CLIENT; 2 * TRY_EVERY as usize]);
                assert!(spin.is_led() && spin.lost.load(SeqCst) < MOST);
            });
        });
    }

    #[test]
    fn other_loops_are_back_when_the_leader_steps_down_or_is_stuck() {
        for stuck in [false, true] {
            let (spin, _requests) = on_a_pipe(true);
            std::thread::scope(|scope| {
                let (led, is_led) = channel();
                let (parked, is_parked) = channel::<()>();
                let (back, is_back) = channel();
                let spin = &spin;
                scope.spawn(move || {
                    answer(spin, [CLIENT; 2 * READY as usize]);
                    led.send(()).unwrap();
                    is_parked.recv_timeout(IN_TIME).unwrap();
                    while !stuck && spin.is_led() {
                        // Another client's request ends it.
                        answer(spin, [CLIENT, CLIENT + 1]);
                    }
                });
                scope.spawn(move || {
                    is_led.recv_timeout(IN_TIME).unwrap();
                    parked.send(()).unwrap();
                    answer(spin, [CLIENT]);
                    if stuck {
                        assert!(!spin.is_led());
                        answer(spin, [CLIENT]);
                        assert!(spin.leads(), "it is waited for once");
                    }
                    back.send(()).unwrap();
                });
                is_back.recv_timeout(IN_TIME).unwrap();
            });
            assert_eq!(spin.is_led(), stuck);
            assert_eq!(spin.parked.load(SeqCst), 0);
        }
    }
}
