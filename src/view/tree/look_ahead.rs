//! Reads the beginnings of files that a listing is about to look at, some at once: by itself each would wait for the disk in turn.
//!
//! Only hints: what fails here, or comes too late, is read when it is looked at. A directory that was listed before is left alone, as
//! what was read then is remembered.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use crate::store::local::beneath;

/// Threads for one part of a listing.
const THREADS: usize = 3;
/// No more threads than these are at work for all listings of a mount.
const MOST: usize = 2 * THREADS;
/// With fewer files, a thread is not worth it.
const FEW: usize = 16;

/// How many threads are at work.
#[derive(Default)]
pub struct LookAhead(Arc<AtomicUsize>);

/// One thread's place among them.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl LookAhead {
    fn place(&self) -> Option<Place> {
        let place = Place(Arc::clone(&self.0));
        (self.0.fetch_add(1, Relaxed) < MOST).then_some(place)
    }

    /// Begins to read the beginnings of these files of a directory, and waits for nothing.
    pub fn begin(&self, dir: &Arc<File>, names: Vec<OsString>) {
        if names.len() < FEW {
            return;
        }
        let names = Arc::new(names);
        for first in 0..THREADS {
            let Some(place) = self.place() else { return };
            let (dir, names) = (Arc::clone(dir), Arc::clone(&names));
            let work = move || {
                let _place = place;
                for name in names.iter().skip(first).step_by(THREADS) {
                    beneath::beginning(dir.as_fd(), name, &mut [0]);
                }
            };
            if thread::Builder::new().name("look-ahead".into()).spawn(work).is_err() {
                return;
            }
        }
    }
}
