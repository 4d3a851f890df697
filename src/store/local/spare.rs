//! Descriptors that can be done without, for when the process may open nothing more: the limit is the whole process's.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// Who keeps files open to be faster.
pub trait Spare: Send + Sync {
    /// Closes some; whether there were any.
    fn close_some(&self) -> bool;
}

static ALL: Mutex<Vec<Weak<dyn Spare>>> = Mutex::new(Vec::new());

/// From now on, as long as it lives.
pub fn register<T: Spare + 'static>(spare: &Arc<T>) {
    let mut all = ALL.lock();
    all.retain(|other| other.strong_count() > 0);
    let spare: Weak<T> = Arc::downgrade(spare);
    all.push(spare);
}

fn close_some() -> bool {
    let all: Vec<_> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
    all.iter().filter(|spare| spare.close_some()).count() > 0
}

/// Opens something, and again after closing what is kept, as long as there is some, where there are no more descriptors.
pub(super) fn opening<T>(mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) if close_some() => {}
            opened => return opened,
        }
    }
}

/// openat(2).
pub(super) fn openat(dir: impl AsFd, name: impl Arg + Copy, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    opening(|| rustix::fs::openat(&dir, name, flags, mode))
}
