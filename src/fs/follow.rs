//! Event loops go where their only client is.
//!
//! A client that waits for each answer runs by turns with the thread that gives it. On one core that takes two switches; between
//! two, each side wakes the other out of its idling, which takes several times as long. So when one client has asked for a while
//! and nobody else, the loops pin themselves to the core that it runs on, and look now and then whether it still does. They
//! are free again as soon as another client asks, or this one has requests under way while it works: then cores are for
//! working side by side. A client that others keep interrupting is followed less and less readily.
//!
//! All of it is a guess about speed: races between the loops cost a little of that, and nothing else.

use std::cell::Cell;
use std::fs;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

/// Requests that a client makes without others in between before it is followed.
const READY: u32 = 16;
/// The same for one that has often been interrupted.
const RELUCTANT: u32 = 4096;
/// Requests between two looks at where the client is.
const LOOK_EVERY: u32 = 64;
/// Not pinned, or not to be.
const ANYWHERE: i32 = -1;

thread_local! {
    /// The core that this thread is pinned to.
    static PINNED: Cell<i32> = const { Cell::new(ANYWHERE) };
}

/// Where the event loops are to be. Shared by them.
pub(super) struct Follow {
    /// The cores that the process may use; `None` where there are fewer than two, or nobody knows.
    allowed: Option<libc::cpu_set_t>,
    /// Who asked last, by thread id.
    client: AtomicU32,
    /// Requests that it has made since another did.
    run: AtomicU32,
    /// How many it takes to be followed.
    ready: AtomicU32,
    target: AtomicI32,
}

impl Default for Follow {
    fn default() -> Self {
        let number = AtomicU32::new;
        Follow { allowed: cores(), client: number(0), run: number(0), ready: number(READY), target: AtomicI32::new(ANYWHERE) }
    }
}

impl Follow {
    /// The thread `client` has sent a request that it waits for. To be called by an event loop, before it does the work.
    pub(super) fn asked(&self, client: u32) {
        let Some(allowed) = &self.allowed else { return };
        if client == 0 {
            return;
        }
        if self.client.load(Relaxed) == client {
            let run = self.run.load(Relaxed).saturating_add(1);
            self.run.store(run, Relaxed);
            let ready = self.ready.load(Relaxed);
            if let Some(followed) = run.checked_sub(ready)
                && followed.is_multiple_of(LOOK_EVERY)
            {
                let core = core_of(client).filter(|core| has(allowed, *core)).unwrap_or(ANYWHERE);
                self.target.store(core, Relaxed);
            }
        } else {
            self.client.store(client, Relaxed);
            self.interrupted();
        }
        self.go(allowed);
    }

    /// A request has come that its client does not wait for.
    pub(super) fn streaming(&self) {
        let Some(allowed) = &self.allowed else { return };
        if self.run.load(Relaxed) > 0 {
            self.interrupted();
        }
        self.go(allowed);
    }

    /// Another client, or another way of reading: from here on it is counted anew.
    fn interrupted(&self) {
        let (run, ready) = (self.run.swap(0, Relaxed), self.ready.load(Relaxed));
        if self.target.swap(ANYWHERE, Relaxed) != ANYWHERE {
            let paid = run / READY > ready;
            self.ready.store(if paid { READY } else { (2 * ready).min(RELUCTANT) }, Relaxed);
        }
    }

    /// This thread, if it is an event loop, may run anywhere again: what it starts inherits that.
    pub(super) fn release(&self) {
        if let Some(allowed) = &self.allowed
            && PINNED.replace(ANYWHERE) != ANYWHERE
        {
            pin(allowed);
        }
    }

    fn go(&self, allowed: &libc::cpu_set_t) {
        let target = self.target.load(Relaxed);
        if PINNED.get() == target {
            return;
        }
        match usize::try_from(target) {
            Ok(core) => {
                // SAFETY: a cpu_set_t is an array of integers, of which zeros are valid.
                let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
                // SAFETY: sets a bit of it, and `core` was found in `allowed`, which is as large.
                unsafe { libc::CPU_SET(core, &mut set) };
                pin(&set);
            }
            Err(_) => pin(allowed),
        }
        PINNED.set(target);
    }
}

/// Binds this thread. Where that is refused it stays where it is, which is no harm.
fn pin(set: &libc::cpu_set_t) {
    // SAFETY: the set is as large as said.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) };
}

fn has(set: &libc::cpu_set_t, core: i32) -> bool {
    // SAFETY: looks at a bit of the set, if it has that many.
    usize::try_from(core).is_ok_and(|core| core < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(core, set) })
}

fn cores() -> Option<libc::cpu_set_t> {
    // SAFETY: as in `go`.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the set is as large as said; counting looks at its bits.
    let several = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) == 0 && libc::CPU_COUNT(&set) > 1 };
    several.then_some(set)
}

/// The core that a thread runs on, or ran on last.
fn core_of(thread: u32) -> Option<i32> {
    let stat = fs::read(format!("/proc/{thread}/stat")).ok()?;
    core_in(&stat)
}

/// Field 39 of a line of /proc/PID/stat. The name, field 2, stands in brackets and may hold any byte.
fn core_in(stat: &[u8]) -> Option<i32> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let field = stat.get(name_end + 2..)?.split(|byte| *byte == b' ').nth(39 - 3)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_is_read_behind_a_name_of_any_kind() {
        let rest = (3..=52).map(|field| if field == 39 { "7".to_owned() } else { format!("{}", 1000 + field) });
        let line = format!("12 (a ) R 1) {}\n", rest.collect::<Vec<_>>().join(" "));
        assert_eq!(core_in(line.as_bytes()), Some(7));
        assert_eq!(core_in(b"12 (cut) R 1"), None);
        assert_eq!(core_in(b""), None);
        assert!(core_of(std::process::id()).is_some_and(|core| core >= 0));
    }

    #[test]
    fn one_client_is_followed_and_two_are_not() {
        let follow = Follow::default();
        if follow.allowed.is_none() {
            return;
        }
        // Threads of their own, as pinning stays with the thread.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let me = std::process::id();
                for _ in 0..=READY {
                    assert_eq!(PINNED.get(), ANYWHERE);
                    follow.asked(me);
                }
                assert_eq!(Some(PINNED.get()), core_of(me).or(Some(PINNED.get())));
                assert_ne!(PINNED.get(), ANYWHERE);
                assert!(core_count() == 1);
                follow.asked(me + 1);
                assert_eq!(PINNED.get(), ANYWHERE);
                assert!(core_count() > 1);
                for _ in 0..=READY {
                    follow.asked(me);
                    assert_eq!(PINNED.get(), ANYWHERE, "interrupted before, it has to wait for longer");
                }
                for _ in 0..READY {
                    follow.asked(me);
                }
                assert_ne!(PINNED.get(), ANYWHERE);
                follow.streaming();
                assert_eq!((PINNED.get(), core_count() > 1), (ANYWHERE, true));
            });
        });
    }

    fn core_count() -> i32 {
        // SAFETY: as in `cores`.
        unsafe {
            let mut set: libc::cpu_set_t = MaybeUninit::zeroed().assume_init();
            libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
            libc::CPU_COUNT(&set)
        }
    }
}
