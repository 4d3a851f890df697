//! Readers without locks beside a store that frees and writes again, by loom: every order in which their steps can happen, with up
//! to three changes of thread where none has to wait. What is compiled here is the store's own file.
//!
//!     RUSTFLAGS="--cfg loom" cargo test --release --manifest-path tests/loom/Cargo.toml

#![cfg(all(test, loom))]

#[path = "../../../src/store/epochs.rs"]
mod epochs;

use epochs::Epochs;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{self, SeqCst};
use loom::sync::atomic::fence;
use loom::thread;

/// An atomic number of which every access has its place in one order of all. loom takes SeqCst for AcqRel in all but fences, so each
/// access has one behind it.
#[derive(Debug, Default)]
struct AtomicU64(loom::sync::atomic::AtomicU64);

fn fenced<T>(value: T) -> T {
    fence(SeqCst);
    value
}

impl AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        fenced(self.0.load(order))
    }
    fn store(&self, value: u64, order: Ordering) {
        fenced(self.0.store(value, order));
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        fenced(self.0.fetch_add(value, order))
    }
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        fenced(self.0.fetch_sub(value, order))
    }
}

/// Two places for one chunk. Which of them a reader finds is what a commit changes; the other is free, but for readers that found it
/// before.
#[derive(Default)]
struct Chunk {
    epochs: Epochs,
    place: AtomicU64,
    bytes: [UnsafeCell<u64>; 2],
}

// SAFETY: that nobody reads a place while it is written is what is tested: loom's cells find out.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn read(&self) -> u64 {
        let _guard = self.epochs.enter();
        let place = self.place.load(SeqCst);
        // SAFETY: as above.
        self.bytes[place as usize].with(|bytes| unsafe { *bytes })
    }

    /// Writes the chunk anew in the free place, as often as that is nobody's any more; answers how often it was.
    fn replace(&self, patience: usize, epochs_waited: u64) -> u64 {
        // The free place was never anybody's.
        let (mut stamp, mut written) = (None, 0);
        for _ in 0..patience {
            if stamp.is_some_and(|stamp| self.epochs.advance() < stamp + epochs_waited) {
                continue;
            }
            let free = 1 - self.place.load(SeqCst);
            written += 1;
            // SAFETY: as above.
            self.bytes[free as usize].with_mut(|bytes| unsafe { *bytes = written });
            self.place.store(free, SeqCst);
            stamp = Some(self.epochs.now());
        }
        written
    }
}

fn with_readers(readers: usize, reads: usize, patience: usize, epochs_waited: u64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let chunk = Arc::new(Chunk::default());
        let threads: Vec<_> = (0..readers)
            .map(|_| {
                let chunk = Arc::clone(&chunk);
                thread::spawn(move || {
                    let mut last = 0;
                    for _ in 0..reads {
                        let read = chunk.read();
                        assert!(read >= last, "{read} after {last}");
                        last = read;
                    }
                })
            })
            .collect();
        let written = chunk.replace(patience, epochs_waited);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(chunk.read(), written);
    });
}

#[test]
fn no_reader_sees_its_place_written() {
    with_readers(1, 2, 4, 2);
}

#[test]
fn two_readers() {
    with_readers(2, 1, 4, 2);
}

/// One epoch is too short: that this is found shows that the tests above could fail.
#[test]
#[should_panic]
fn one_epoch_is_too_short() {
    with_readers(1, 1, 4, 1);
}
