//! Keeps the times of a directory while a frame is stored in it: storing makes and renames files there, which no client has asked for.
//! Names that clients make or remove meanwhile still count. A client that sets these times waits, by a claim on them.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::Tree;
use crate::store::local::beneath;
use crate::view::Ino;

/// The times that directories get back. A leaf lock, held while times are set.
#[derive(Default)]
pub struct DirTimes(Mutex<HashMap<Ino, Kept>>);

struct Kept {
    /// How many frames are being stored there.
    users: usize,
    atime: SystemTime,
    mtime: SystemTime,
}

/// Gives a directory its times back when it is dropped.
pub struct TimesKept<'a> {
    of: &'a DirTimes,
    parent: Ino,
    dir: BorrowedFd<'a>,
}

impl Tree {
    /// A directory gets back the times that it has now, but for what clients do to it meanwhile.
    pub(super) fn keep_times<'a>(&'a self, parent: Ino, dir: BorrowedFd<'a>) -> Option<TimesKept<'a>> {
        let mut kept = self.dir_times.0.lock();
        if let Some(kept) = kept.get_mut(&parent) {
            kept.users += 1;
        } else {
            let stat = beneath::look_at(dir).ok()?.stat;
            kept.insert(parent, Kept { users: 1, atime: stat.atime, mtime: stat.mtime });
        }
        drop(kept);
        Some(TimesKept { of: &self.dir_times, parent, dir })
    }

    /// A client makes or removes a name in a directory.
    pub(super) fn names_change(&self, parent: Ino) {
        if let Some(kept) = self.dir_times.0.lock().get_mut(&parent) {
            kept.mtime = SystemTime::now();
        }
    }
}

impl Drop for TimesKept<'_> {
    fn drop(&mut self) {
        let mut all = self.of.0.lock();
        let Some(kept) = all.get_mut(&self.parent) else { return };
        let _ = beneath::set_times(self.dir, Some(kept.atime), Some(kept.mtime));
        kept.users -= 1;
        if kept.users == 0 {
            all.remove(&self.parent);
        }
    }
}
