//! Claims on single files and names of a tree. A file is claimed while it is stored as a frame, and a name while it is renamed or removed.
//! Requests for the same file or name wait until that is done; all other requests go on.
//!
//! A thread has at most one claim, and takes it before any lock. A claim takes everything that it names at once, so claims cannot wait for
//! each other in a circle.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;

use parking_lot::{Condvar, Mutex};

use crate::view::Ino;

/// What can be claimed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// A node.
    Node(Ino),
    /// A name in a directory.
    Name(Ino, OsString),
    /// That files become frames in a directory, at any depth.
    Within(Ino),
    /// The times of a directory, which gets them back when a file in it has become a frame.
    Times(Ino),
}

/// With whom a claim is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum With {
    /// With those who share it too.
    Others,
    /// With nobody.
    Nobody,
}

/// All claims. A leaf lock.
#[derive(Default)]
pub struct Claims {
    held: Mutex<Held>,
    freed: Condvar,
}

#[derive(Default)]
struct Held {
    /// How many share each; [`ALONE`] where one has it alone.
    keys: HashMap<Key, usize>,
    waiting: usize,
}

const ALONE: usize = usize::MAX;

impl Held {
    fn is_free(&self, wanted: &[(Key, With)]) -> bool {
        wanted.iter().all(|(key, with)| match self.keys.get(key) {
            None => true,
            Some(&ALONE) => false,
            Some(_) => *with == With::Others,
        })
    }
}

impl Claims {
    /// Claims all of these, each once, as soon as all can be had.
    pub fn claim(&self, mut wanted: Vec<(Key, With)>) -> Claim<'_> {
        // Of one that is named twice, the stricter claim counts.
        wanted.sort_by_key(|(_, with)| *with == With::Others);
        let mut keys: Vec<(Key, With)> = Vec::with_capacity(wanted.len());
        for (key, with) in wanted {
            if !keys.iter().any(|(other, _)| *other == key) {
                keys.push((key, with));
            }
        }
        let mut held = self.held.lock();
        while !held.is_free(&keys) {
            held.waiting += 1;
            self.freed.wait(&mut held);
            held.waiting -= 1;
        }
        for (key, with) in &keys {
            let count = held.keys.entry(key.clone()).or_insert(0);
            *count = if *with == With::Nobody { ALONE } else { *count + 1 };
        }
        drop(held);
        Claim { of: self, keys }
    }

    /// Shares one.
    pub fn share(&self, key: Key) -> Claim<'_> {
        self.claim(vec![(key, With::Others)])
    }

    /// Whether one is claimed and not shared.
    pub fn is_alone(&self, key: &Key) -> bool {
        self.held.lock().keys.get(key) == Some(&ALONE)
    }

    /// Returns when nobody has one any more who has it now.
    pub fn wait_for(&self, key: Key) {
        drop(self.claim(vec![(key, With::Nobody)]));
    }

    /// How many wait.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.held.lock().waiting
    }
}

/// Ends when it is dropped.
pub struct Claim<'a> {
    of: &'a Claims,
    keys: Vec<(Key, With)>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut held = self.of.held.lock();
        for (key, _) in self.keys.drain(..) {
            if let Entry::Occupied(mut entry) = held.keys.entry(key) {
                match *entry.get() {
                    1 | ALONE => drop(entry.remove()),
                    shared => *entry.get_mut() = shared - 1,
                }
            }
        }
        if held.waiting > 0 {
            self.of.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn name(text: &str) -> Key {
        Key::Name(Ino(1), text.into())
    }

    #[test]
    fn what_is_claimed_alone_is_waited_for_and_nothing_else_is() {
        let claims = Claims::default();
        let alone = claims.claim(vec![(Key::Node(Ino(7)), With::Nobody), (name("a"), With::Nobody), (name("a"), With::Others)]);
        drop(claims.claim(vec![(Key::Node(Ino(8)), With::Nobody), (name("b"), With::Nobody)]));
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(claims.claim(vec![(name("b"), With::Others), (name("a"), With::Others)]));
                done.send(()).unwrap();
            });
            while claims.waiting() == 0 {
                std::thread::yield_now();
            }
            // Who waits has nothing of what it waits for.
            drop(claims.claim(vec![(name("b"), With::Nobody)]));
            assert!(is_done.try_recv().is_err());
            drop(alone);
            is_done.recv_timeout(Duration::from_secs(20)).unwrap();
        });
        assert!(claims.held.lock().keys.is_empty());
    }

    #[test]
    fn what_is_shared_ends_with_the_last() {
        let claims = Claims::default();
        let (one, other) = (claims.share(name("a")), claims.share(name("a")));
        drop(one);
        assert!(!claims.held.lock().is_free(&[(name("a"), With::Nobody)]));
        drop(other);
        claims.wait_for(name("a"));
        assert!(claims.held.lock().keys.is_empty());
    }
}
