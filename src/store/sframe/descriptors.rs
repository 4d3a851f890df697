//! Chunk files that are open, the last used ones: opening a file by its name costs as much as reading some kilobytes of it.

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;

use super::super::ChunkKey;
use super::super::backend::{BackendFile, descriptor_budget};
use super::files::Stamp;

/// When an open began, as far as [`Descriptors::clear`] cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// An open chunk file.
pub(super) struct OpenChunk {
    pub(super) file: Box<dyn BackendFile>,
    /// As it was when it was opened.
    pub(super) stamp: Stamp,
}

/// The open files. The lock is never held while a file is opened or closed.
pub(super) struct Descriptors {
    inner: Mutex<Inner>,
}

struct Inner {
    open: LruCache<ChunkKey, Arc<OpenChunk>>,
    /// Goes up when all are closed, so that what was being opened then does not come in afterwards.
    generation: u64,
}

impl Descriptors {
    pub(super) fn new() -> Self {
        let room = NonZeroUsize::new(descriptor_budget()).unwrap_or(NonZeroUsize::MIN);
        let inner = Inner { open: LruCache::new(room), generation: 0 };
        Descriptors { inner: Mutex::new(inner) }
    }

    /// An open file, or a ticket with which to bring one.
    pub(super) fn get(&self, key: ChunkKey) -> Result<Arc<OpenChunk>, Ticket> {
        let mut inner = self.inner.lock();
        inner.open.get(&key).map(Arc::clone).ok_or(Ticket(inner.generation))
    }

    /// Takes an open file in. The caller's read guard must still be held: it is what keeps the key's file the same.
    pub(super) fn insert(&self, key: ChunkKey, file: &Arc<OpenChunk>, ticket: Ticket) {
        let mut inner = self.inner.lock();
        if inner.generation == ticket.0 {
            let old = inner.open.push(key, Arc::clone(file));
            drop(inner);
            drop(old); // closed after the lock
        }
    }

    /// Closes a file that is about to be removed.
    pub(super) fn remove(&self, key: ChunkKey) {
        let old = self.inner.lock().open.pop(&key);
        drop(old);
    }

    /// Closes all.
    pub(super) fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.generation += 1;
        let room = inner.open.cap();
        let old = std::mem::replace(&mut inner.open, LruCache::new(room));
        drop(inner);
        drop(old);
    }
}
