//! Keeps some descriptors free, so that reading, listing and committing always go on. When few are left, frames that nobody uses are
//! closed; if that does not help, nothing more is opened that would stay open.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::Tree;
use crate::store::local::system;
use crate::view::{Result, ViewError};

/// Descriptors that an open frame takes at most: its file, or its directory and its index, and the directory that it is in, which it shares
/// with its neighbours. Chunk files that are kept open are closed when there is need.
pub const OF_A_FRAME: usize = 3;

/// How many descriptors there may be.
pub struct Descriptors {
    limit: usize,
    /// So many are kept back.
    reserve: usize,
    /// So many were taken since all were counted.
    uncounted: AtomicUsize,
}

impl Descriptors {
    /// Of a process that may have so many.
    pub fn new(limit: usize) -> Self {
        Descriptors { limit, reserve: (limit / 8).max(8), uncounted: AtomicUsize::new(0) }
    }

    fn is_short(&self, count: usize) -> bool {
        system::open_descriptors().is_ok_and(|open| open.saturating_add(count).saturating_add(self.reserve) > self.limit)
    }
}

impl Tree {
    /// That there is room for so many descriptors that stay open. Closes what nobody uses, if that makes room.
    ///
    /// # Errors
    /// EMFILE.
    pub(super) fn check_room(&self, count: usize) -> Result<()> {
        let descriptors = &self.descriptors;
        // Counting takes time, so only half of what is kept back is left at worst.
        if descriptors.uncounted.fetch_add(count, Relaxed) + count <= descriptors.reserve / 2 {
            return Ok(());
        }
        if descriptors.is_short(count) {
            self.close_idle();
            if descriptors.is_short(count) {
                return Err(ViewError::System(libc::EMFILE));
            }
        }
        descriptors.uncounted.store(count, Relaxed);
        Ok(())
    }

    /// Closes all frames that nobody uses, and all directories and chunk files that are open only to be found again at once.
    fn close_idle(&self) {
        self.frames.resources().close_kept_files();
        for frame in self.frames.open.listed() {
            self.close_frame(&frame);
        }
        self.dirs.lock().clear();
    }
}
