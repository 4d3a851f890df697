//! The lock over the state that readers need. No I/O is done while it is held: chunks that a change gives back are given to the store after it is
//! released.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::store::{ChunkKey, FrameStore};

/// What readers need, under its lock.
pub struct StateLock<S>(RwLock<S>);

/// A state that says what becomes of chunks.
pub trait HasChunks {
    /// What it does with them.
    fn chunks(&mut self) -> &mut StoreChunks;
}

impl<S: HasChunks> StateLock<S> {
    /// Locks it from now on.
    pub fn new(state: S) -> Self {
        StateLock(RwLock::new(state))
    }

    /// To look something up.
    pub fn read(&self) -> Reading<'_, S> {
        Reading { state: self.0.read(), _held: Held::new() }
    }

    /// To change something.
    pub fn write(&self) -> Changing<'_, S> {
        Changing { state: self.0.write(), _held: Held::new(), _freed: None }
    }

    /// To change something before others know of it.
    pub fn get_mut(&mut self) -> &mut S {
        self.0.get_mut()
    }

    /// The state, which nobody needs any more.
    pub fn into_inner(self) -> S {
        self.0.into_inner()
    }
}

/// The state, to be looked at.
pub struct Reading<'a, S> {
    state: RwLockReadGuard<'a, S>,
    _held: Held,
}

impl<S> Deref for Reading<'_, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.state
    }
}

/// The state, to be changed.
pub struct Changing<'a, S: HasChunks> {
    // Dropped in this order: the lock is released before anything is given back.
    state: RwLockWriteGuard<'a, S>,
    _held: Held,
    _freed: Option<Freed>,
}

impl<S: HasChunks> Deref for Changing<'_, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S: HasChunks> DerefMut for Changing<'_, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}

impl<S: HasChunks> Drop for Changing<'_, S> {
    fn drop(&mut self) {
        self._freed = self.state.chunks().freed.take();
    }
}

/// What the state does with chunks in the store.
pub struct StoreChunks {
    store: Arc<dyn FrameStore>,
    freed: Option<Freed>,
}

impl StoreChunks {
    /// Chunks in this store.
    pub fn new(store: Arc<dyn FrameStore>) -> Self {
        StoreChunks { store, freed: None }
    }

    /// See [`FrameStore::pin`].
    pub fn pin(&self, keys: &[ChunkKey]) {
        keys.iter().for_each(|key| self.store.pin(*key));
    }

    /// See [`FrameStore::unpin`].
    pub fn unpin(&mut self, keys: &[ChunkKey]) {
        if !keys.is_empty() {
            self.freed().unpinned.extend_from_slice(keys);
        }
    }

    /// See [`FrameStore::discard`].
    pub fn discard(&mut self, key: ChunkKey) {
        self.freed().discarded.push(key);
    }

    fn freed(&mut self) -> &mut Freed {
        let StoreChunks { store, freed } = self;
        freed.get_or_insert_with(|| Freed { store: Arc::clone(store), discarded: Vec::new(), unpinned: Vec::new() })
    }
}

/// What a change of the state has made superfluous: given back to the store when this is dropped.
struct Freed {
    store: Arc<dyn FrameStore>,
    discarded: Vec<ChunkKey>,
    unpinned: Vec<ChunkKey>,
}

impl Drop for Freed {
    fn drop(&mut self) {
        self.discarded.iter().for_each(|key| self.store.discard(*key));
        self.unpinned.iter().for_each(|key| self.store.unpin(*key));
    }
}

/// Lets tests know that this thread has a state locked.
struct Held;

impl Held {
    fn new() -> Self {
        #[cfg(test)]
        held::COUNT.with(|count| count.set(count.get() + 1));
        Held
    }
}

#[cfg(test)]
pub mod held {
    use std::cell::Cell;

    thread_local! {
        pub(super) static COUNT: Cell<usize> = const { Cell::new(0) };
    }

    impl Drop for super::Held {
        fn drop(&mut self) {
            COUNT.with(|count| count.set(count.get() - 1));
        }
    }

    /// Panics if this thread has a state locked.
    #[track_caller]
    pub fn check(what: &str) {
        assert_eq!(COUNT.with(Cell::get), 0, "{what} under the lock that readers need");
    }
}
