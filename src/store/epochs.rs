//! When may space that was freed be written again? When every read that could still be looking at it has ended.
//!
//! Reads are counted in the epoch in which they began, the current one or the one before: two counters by turns. What is freed
//! is stamped with the current epoch, and can be reused two epochs later: after the first step no new read can
//! reach it, and the second step waits for the last read that could.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

// What tests/loom compiles this file with.
#[cfg(loom)]
use super::{AtomicU64, SeqCst};

/// A count of reads, alone on its cache line: every read writes to one of the two.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// The counters of one store.
#[derive(Debug, Default)]
pub struct Epochs {
    current: AtomicU64,
    /// Reads under way, by the parity of the epoch in which they began.
    reads: [Count; 2],
    /// Twice the number of times that a state of others took the place of the store's; one more while that is being done.
    version: AtomicU64,
}

/// Holds off the reuse of freed space while a read that looked its key up before is under way. Cheap: two atomic operations.
///
/// Take it **before** looking a key up in anything that a commit may change, drop it after the read.
///
/// What is read with it is of the version of SOURCE that there was when it was taken, or an error.
#[derive(Debug)]
pub struct ReadGuard<'a> {
    count: &'a AtomicU64,
    version: u64,
    version_now: &'a AtomicU64,
    to_save: bool,
}

impl ReadGuard<'_> {
    /// Whether there has been one version of SOURCE since it was taken.
    pub fn is_current(&self) -> bool {
        self.version & 1 == 0 && self.version == self.version_now.load(SeqCst)
    }

    /// The version of SOURCE that there was when it was taken.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Taken to save what a mount holds: others may have changed SOURCE, as long as the bytes asked for are still there.
    pub(crate) fn is_to_save(&self) -> bool {
        self.to_save
    }

    /// The same guard, taken for that.
    pub(crate) fn saving(mut self) -> Self {
        self.to_save = true;
        self
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, SeqCst);
    }
}

/// A state of others is taking the place of the store's.
#[must_use]
pub(crate) struct Turnover<'a>(&'a AtomicU64);

impl Drop for Turnover<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Epochs {
    /// Begins a read.
    #[expect(clippy::indexing_slicing, reason = "one bit of two")]
    pub fn enter(&self) -> ReadGuard<'_> {
        loop {
            let epoch = self.current.load(SeqCst);
            let count = &self.reads[(epoch & 1) as usize].0;
            count.fetch_add(1, SeqCst);
            if self.current.load(SeqCst) == epoch {
                let version_now = &self.version;
                return ReadGuard { count, version: version_now.load(SeqCst), version_now, to_save: false };
            }
            // The epoch went on between the two: counted in a counter that may already have been found empty.
            count.fetch_sub(1, SeqCst);
        }
    }

    /// Another version begins. What is read with a guard that was taken before the end of the answer is refused.
    pub(crate) fn turn_over(&self) -> Turnover<'_> {
        self.version.fetch_add(1, SeqCst);
        Turnover(&self.version)
    }

    /// The stamp for what is freed now.
    pub(crate) fn now(&self) -> u64 {
        self.current.load(SeqCst)
    }

    /// Goes on to the next epoch if the reads of the one before have ended, and answers the current one. What was stamped two
    /// before that, or earlier, can be seen by nobody.
    ///
    /// One caller at a time (the store calls it with its space locked).
    #[expect(clippy::indexing_slicing, reason = "one bit of two")]
    pub(crate) fn advance(&self) -> u64 {
        let epoch = self.current.load(SeqCst);
        if self.reads[((epoch + 1) & 1) as usize].0.load(SeqCst) > 0 {
            return epoch;
        }
        self.current.store(epoch + 1, SeqCst);
        epoch + 1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn without_reads_two_steps_free() {
        let epochs = Epochs::default();
        let stamp = epochs.now();
        epochs.advance();
        assert!(epochs.advance() >= stamp + 2);
    }

    #[test]
    fn a_read_that_began_before_holds_the_second_step() {
        let epochs = Epochs::default();
        let old = epochs.enter();
        let stamp = epochs.now();
        for _ in 0..5 {
            assert!(epochs.advance() < stamp + 2);
        }
        let new = epochs.enter(); // began after: does not hold
        drop(old);
        assert_eq!(epochs.advance(), stamp + 2);
        drop(new);
    }

    #[test]
    fn a_guard_is_of_one_version() {
        let epochs = Epochs::default();
        let before = epochs.enter();
        assert!(before.is_current());
        let turnover = epochs.turn_over();
        let meanwhile = epochs.enter();
        drop(turnover);
        assert!(!before.is_current() && !meanwhile.is_current());
        assert!(epochs.enter().is_current());
    }

    #[test]
    fn guards_from_many_threads_are_never_overtaken() {
        let epochs = Epochs::default();
        let start = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..20_000 {
                        let _guard = epochs.enter();
                        let began = epochs.now(); // that epoch, or one later
                        std::hint::spin_loop();
                        assert!(epochs.now() <= began + 1, "what was freed in epoch {began} was let go under a read");
                    }
                });
            }
            start.wait();
            for _ in 0..100_000 {
                epochs.advance();
            }
        });
    }
}
