//! What all frames of a mount share: memory, descriptors, threads, and who tells of changes by others.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::backend::{descriptor_budget, lock_budget};
use super::cache::ChunkCache;
use super::local::watch::Watcher;
use super::open_files::{OpenFiles, open_files};
use super::readahead::Pool;

/// How much of each there may be, or is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// Bytes of memory for chunks that are read in pieces.
    pub cache_bytes: u64,
    /// Bytes of memory for what clients are writing.
    pub draft_bytes: u64,
    /// Bytes of memory for copies of what is staged and not committed.
    pub held_bytes: u64,
    /// Chunk files that are kept open to be read again.
    pub open_files: usize,
    /// Threads that read ahead.
    pub threads: usize,
    /// Open files for the locks of clients.
    pub locks: usize,
}

impl Default for Budgets {
    fn default() -> Self {
        Budgets {
            cache_bytes: 256 << 20,
            draft_bytes: 64 << 20,
            held_bytes: 32 << 20,
            open_files: descriptor_budget(),
            threads: 3,
            locks: lock_budget(),
        }
    }
}

/// Made once for a mount, and handed to each frame that is opened in it ([`super::OpenOptions::resources`]).
pub struct Resources {
    pub(super) cache: Arc<ChunkCache>,
    pub(super) drafts: Arc<Budget>,
    pub(super) held: Arc<Budget>,
    pub(super) open_files: Arc<OpenFiles>,
    pub(super) ahead: Arc<Pool>,
    pub(super) locks: Arc<Budget>,
    watcher: Arc<Watcher>,
}

impl Resources {
    /// All that there is for some frames.
    pub fn new(budgets: Budgets) -> Arc<Self> {
        Arc::new(Resources {
            cache: ChunkCache::new(budgets.cache_bytes),
            drafts: Budget::new(budgets.draft_bytes),
            held: Budget::new(budgets.held_bytes),
            open_files: open_files(budgets.open_files),
            ahead: Pool::new(budgets.threads),
            locks: Budget::new(budgets.locks as u64),
            watcher: Arc::default(),
        })
    }

    /// The same, for frames that are only looked at in passing: what watches them tells nobody.
    pub fn in_passing(&self) -> Arc<Self> {
        Arc::new(Resources {
            cache: Arc::clone(&self.cache),
            drafts: Arc::clone(&self.drafts),
            held: Arc::clone(&self.held),
            open_files: Arc::clone(&self.open_files),
            ahead: Arc::clone(&self.ahead),
            locks: Arc::clone(&self.locks),
            watcher: Arc::default(),
        })
    }

    /// What is in use.
    pub fn used(&self) -> Budgets {
        Budgets {
            cache_bytes: self.cache.bytes(),
            draft_bytes: self.drafts.used(),
            held_bytes: self.held.used(),
            open_files: self.open_files.sum() as usize,
            threads: self.ahead.threads(),
            locks: self.locks.used() as usize,
        }
    }

    /// Closes chunk files that are kept open to be read again, all of them: others need the descriptors.
    pub fn close_kept_files(&self) {
        while self.open_files.halve() {}
    }

    /// Tells of changes by others, to all frames.
    pub fn watcher(&self) -> &Arc<Watcher> {
        &self.watcher
    }
}

impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resources").field("used", &self.used()).finish_non_exhaustive()
    }
}

/// Something of which there is only so much.
pub(super) struct Budget {
    most: u64,
    used: AtomicU64,
}

impl Budget {
    pub(super) fn new(most: u64) -> Arc<Self> {
        Arc::new(Budget { most, used: AtomicU64::new(0) })
    }

    /// Takes some, unless that is more than is left; [`Budget::give`] brings it back.
    pub(super) fn take(&self, amount: u64) -> bool {
        self.used.fetch_update(Relaxed, Relaxed, |used| used.checked_add(amount).filter(|sum| *sum <= self.most)).is_ok()
    }

    pub(super) fn give(&self, amount: u64) {
        self.used.fetch_sub(amount, Relaxed);
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }
}
