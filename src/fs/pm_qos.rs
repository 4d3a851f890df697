//! Cores with nothing to do are kept awake while requests come in quick succession.
//!
//! A request wakes an event loop, and its answer wakes the client. In a virtual machine either may find its core asleep, and the
//! host has to bring it back: with that a request takes three or four times as long as it would. Root may ask the kernel for
//! cores that are there at once (`/dev/cpu_dma_latency`, which the kernel's documentation has under "PM QoS"): those then look
//! for work without a pause. We ask for it while many requests come, and the kernel takes it back by itself if we die.
//!
//! It is a setting of the whole machine, so it is for who mounts to ask for it: a daemon that is stopped meanwhile (SIGSTOP, a frozen
//! cgroup) keeps all cores awake until it goes on. The host pays with the cores' whole time. So a machine with many cores is left
//! alone, and one that is not virtual as well: what it would cost and gain there has not been measured.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use log::{debug, warn};
use parking_lot::{Condvar, Mutex};

use crate::store::in_words;
use crate::store::local::system;

const DEVICE: &str = "/dev/cpu_dma_latency";
/// What the kernel idles by, and what that is called in a virtual machine.
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
const VIRTUAL: &str = "haltpoll";
/// With more cores than this, most of them would be awake for nothing.
const MOST_CORES: usize = 8;

/// So many requests
const BURST: u32 = 16;
/// within this time are quick succession,
const WITHIN: Duration = Duration::from_millis(4);
/// and fewer than this in as much time are not, once it has begun.
const ENOUGH: u32 = 8;

/// The longest that a core may take to be there, in microseconds: not at all, and as long as it likes.
const AT_ONCE: i32 = 0;
const ANY: i32 = -1;

/// Shared by the event loops of a mount and the thread that runs [`PmQos::run`].
pub(super) struct PmQos {
    /// Where to ask.
    device: File,
    /// Requests so far.
    requests: AtomicU32,
    /// Cores are qos. Changed under the lock only.
    held: AtomicBool,
    /// A leaf lock.
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// When the last full [`BURST`] of requests was there that found cores asleep.
    last: Option<Instant>,
    /// The mount ends.
    stop: bool,
}

impl PmQos {
    /// Opens the device, where that is allowed and of use. It needs a thread for [`PmQos::run`].
    pub(super) fn open(point: &Path) -> Option<Self> {
        let at = |path, error: io::Error| io::Error::other(format!("{path}: {}", in_words(&error)));
        let device = system::read(DRIVER)
            .map_err(|error| at(DRIVER, error))
            .map(|driver| String::from_utf8_lossy(&driver).into_owned())
            .and_then(|driver| match (driver.trim_end(), cores()) {
                (VIRTUAL, ..=MOST_CORES) => system::open_device(DEVICE).map_err(|error| at(DEVICE, error)),
                (VIRTUAL, cores) => Err(io::Error::other(format!("found {cores} cores, expected at most {MOST_CORES}"))),
                (driver, _) => Err(io::Error::other(format!("{DRIVER}: found {driver}, expected {VIRTUAL}"))),
            });
        device
            .inspect_err(|error| warn!("{}: low_latency has no effect: {}", point.display(), in_words(error)))
            .ok()
            .map(Self::over)
    }

    fn over(device: File) -> Self {
        PmQos { device, requests: AtomicU32::new(0), held: AtomicBool::new(false), state: Mutex::default(), wake: Condvar::new() }
    }

    /// A request has come.
    pub(super) fn asked(&self) {
        self.asked_at(Instant::now);
    }

    fn asked_at(&self, now: impl FnOnce() -> Instant) {
        let request = self.requests.fetch_add(1, Relaxed).wrapping_add(1);
        if request.is_multiple_of(BURST) && !self.held.load(Relaxed) {
            let mut state = self.state.lock();
            let now = now();
            let last = state.last.replace(now);
            let quick = last.is_some_and(|last| now.saturating_duration_since(last) <= WITHIN);
            if quick && !state.stop && !self.held.swap(true, Relaxed) {
                self.ask_for(AT_ONCE);
                self.wake.notify_one();
            }
        }
    }

    fn ask_for(&self, latency: i32) {
        if let Err(error) = (&self.device).write_all(&latency.to_ne_bytes()) {
            debug!("{DEVICE}: {}", in_words(&error));
        }
    }

    /// The body of the thread that lets cores sleep again.
    pub(super) fn run(&self) {
        let mut state = self.state.lock();
        while !state.stop {
            if !self.held.load(Relaxed) {
                self.wake.wait(&mut state);
                continue;
            }
            let before = self.requests.load(Relaxed);
            self.wake.wait_for(&mut state, WITHIN);
            if self.requests.load(Relaxed).wrapping_sub(before) < ENOUGH {
                self.held.store(false, Relaxed);
                self.ask_for(ANY);
            }
        }
        if self.held.swap(false, Relaxed) {
            self.ask_for(ANY);
        }
    }

    /// Ends the thread. From then on cores may sleep.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_one();
    }
}

/// Cores that the kernel has, whether or not we may run on them.
fn cores() -> usize {
    let cores = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN);
    cores.ok().flatten().and_then(|cores| usize::try_from(cores).ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read, pipe};
    use std::os::fd::OwnedFd;
    use std::sync::LazyLock;

    use super::*;

    fn on_a_pipe() -> (PmQos, PipeReader) {
        let (reader, writer) = pipe().unwrap();
        (PmQos::over(File::from(OwnedFd::from(writer))), reader)
    }

    fn asked_for(device: &mut impl Read) -> i32 {
        let mut bytes = [0; 4];
        device.read_exact(&mut bytes).unwrap();
        i32::from_ne_bytes(bytes)
    }

    /// `count` requests from the second `from` on, one every `pause`; after how many of them cores were qos.
    fn requests(qos: &PmQos, from: u64, pause: Duration, count: u32) -> u32 {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        let from = *BEGAN + Duration::from_secs(from);
        let one = |n: u32| {
            qos.asked_at(|| from + pause * n);
            u32::from(qos.held.load(Relaxed))
        };
        (0..count).map(one).sum()
    }

    #[test]
    fn cores_are_awake_while_requests_come_in_quick_succession() {
        let (qos, mut device) = on_a_pipe();
        std::thread::scope(|scope| {
            scope.spawn(|| qos.run());
            for round in 1..4 {
                assert!(requests(&qos, round, Duration::from_micros(50), 2 * BURST) > 0);
                assert_eq!(asked_for(&mut device), AT_ONCE);
                // No more requests come.
                assert_eq!(asked_for(&mut device), ANY);
                assert!(!qos.held.load(Relaxed));
            }
            qos.stop();
        });
        drop(qos);
        let mut rest = Vec::new();
        device.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "{rest:?}");
    }

    #[test]
    fn requests_now_and_then_let_cores_sleep() {
        let (qos, mut device) = on_a_pipe();
        let pause = WITHIN / BURST + Duration::from_micros(1);
        assert_eq!(requests(&qos, 1, pause, 100 * BURST), 0);
        // Bursts of half of what counts.
        for second in 1000..1100 {
            assert_eq!(requests(&qos, second, Duration::ZERO, BURST / 2), 0);
        }
        drop(qos);
        assert_eq!(device.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn at_the_end_cores_may_sleep() {
        let (qos, mut device) = on_a_pipe();
        requests(&qos, 1, Duration::ZERO, 2 * BURST);
        assert_eq!(asked_for(&mut device), AT_ONCE);
        qos.stop();
        qos.run();
        assert_eq!(asked_for(&mut device), ANY);
        // Nobody is there to see to it later.
        assert_eq!(requests(&qos, 2, Duration::ZERO, 4 * BURST), 0);
        drop(qos);
        assert_eq!(device.read(&mut [0]).unwrap(), 0);
    }
}
