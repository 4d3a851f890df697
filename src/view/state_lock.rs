//! The lock over what readers need. No I/O is done by who has it: chunks that a change gives back are given to the store after it is
//! released.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::single::State;
use crate::store::{ChunkKey, FrameStore};

/// A [`State`] under its lock.
pub struct StateLock<V>(RwLock<State<V>>);

impl<V> StateLock<V> {
    /// Locks it from now on.
    pub fn new(state: State<V>) -> Self {
        StateLock(RwLock::new(state))
    }

    /// To look something up.
    pub fn read(&self) -> Reading<'_, V> {
        Reading { state: self.0.read(), _held: Held::new() }
    }

    /// To change something.
    pub fn write(&self) -> Changing<'_, V> {
        Changing { state: self.0.write(), _held: Held::new(), _freed: None }
    }

    /// To change something before others know of it.
    pub fn get_mut(&mut self) -> &mut State<V> {
        self.0.get_mut()
    }

    /// The state, which nobody needs any more.
    pub fn into_inner(self) -> State<V> {
        self.0.into_inner()
    }
}

/// The state, to be looked at.
pub struct Reading<'a, V> {
    state: RwLockReadGuard<'a, State<V>>,
    _held: Held,
}

impl<V> Deref for Reading<'_, V> {
    type Target = State<V>;

    fn deref(&self) -> &State<V> {
        &self.state
    }
}

/// The state, to be changed.
pub struct Changing<'a, V> {
    // Dropped in this order: the lock is released before anything is given back.
    state: RwLockWriteGuard<'a, State<V>>,
    _held: Held,
    _freed: Option<Freed>,
}

impl<V> Deref for Changing<'_, V> {
    type Target = State<V>;

    fn deref(&self) -> &State<V> {
        &self.state
    }
}

impl<V> DerefMut for Changing<'_, V> {
    fn deref_mut(&mut self) -> &mut State<V> {
        &mut self.state
    }
}

impl<V> Drop for Changing<'_, V> {
    fn drop(&mut self) {
        self._freed = self.state.chunks.freed.take();
    }
}

/// What the state does with chunks in the store.
pub struct Chunks {
    store: Arc<dyn FrameStore>,
    freed: Option<Freed>,
}

impl Chunks {
    /// Chunks in this store.
    pub fn new(store: Arc<dyn FrameStore>) -> Self {
        Chunks { store, freed: None }
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
        let Chunks { store, freed } = self;
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
