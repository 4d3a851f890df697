//! Learning how long the chunks are that were there at open, so that the room between them can be used.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{CframeStore, key_at};
use crate::store::ChunkKey;

/// How many headers are read at once.
const AT_ONCE: usize = 256;
/// How many times that in a row where nobody waits: some milliseconds, if they are in memory.
const IN_A_ROW: usize = 16;
/// Of no more headers than these all are read at the end of a mount that changed something.
const FEW: usize = 1 << 16;
/// Of more, so many say whether it is worth it: whether that part of the file is unused.
const SAMPLE: usize = 1024;
const WORTH: u64 = 16;

impl CframeStore {
    /// Reads the headers of a few chunks that were there at open, so that the room between them becomes known. Answers whether
    /// there was anything to learn, and more is to be learnt.
    ///
    /// What makes room free is held to what a read is: it is of the version of SOURCE whose map this is, or it is dropped.
    pub(in crate::store) fn sweep(&self, count: usize) -> bool {
        let guard = self.epochs.enter();
        let mut positions = Vec::new();
        self.with_ground(|space, _| space.unknown(count, &mut positions));
        if positions.is_empty() {
            return false;
        }
        let file = Arc::clone(&self.place.read().file);
        let claims = self.read_claims(&*file, &positions);
        if self.verify_read(&guard).is_err() {
            return false; // others have written: who reads SOURCE again begins a map of its own
        }
        self.with_ground(|space, _| {
            // A map is exchanged with the ground locked, so this says whose it is.
            for (position, claim) in positions.iter().zip(&claims).filter(|_| guard.is_current()) {
                space.learn(*position, *claim);
            }
        });
        // What cannot be read may claim any room, so nothing behind it is free.
        !claims.is_empty()
    }

    /// Goes on sweeping where somebody could have used the room, and says whether there is more to do.
    pub(super) fn sweep_on(&self) -> bool {
        if !self.sweeping.load(Relaxed) {
            return false;
        }
        let more = (0..IN_A_ROW).all(|_| self.sweep(AT_ONCE));
        self.sweeping.store(more, Relaxed);
        more
    }

    /// The sweep is worth going on with.
    pub(in crate::store) fn want_sweep(&self) {
        self.sweeping.store(true, Relaxed);
    }

    /// Sweeps to the end, unless that would take long and bring little.
    pub(in crate::store) fn sweep_rest(&self) {
        let (count, sample) = self.with_ground(|space, _| space.sample(SAMPLE));
        if count > FEW {
            let file = Arc::clone(&self.place.read().file);
            let positions: Vec<u64> = sample.iter().map(|(position, _)| *position).collect();
            let claims = self.read_claims(&*file, &positions);
            let room: u64 = sample.iter().map(|(position, next)| next - position).sum();
            let unused = sample
                .iter()
                .zip(claims)
                .map(|((position, next), claim)| (next - position).saturating_sub(claim.unwrap_or(u64::MAX)));
            let unused: u64 = unused.sum();
            if unused < room / WORTH {
                return;
            }
        }
        while self.sweep(AT_ONCE) {}
    }

    /// Room for a new chunk.
    pub(super) fn allocate(&self, len: u32) -> (ChunkKey, u64) {
        let room = u64::from(len);
        let must_look = || {
            self.with_ground(|space, names| {
                self.collect(space, names);
                space.must_look(room)
            })
        };
        while must_look() && self.sweep(AT_ONCE) {}
        self.with_ground(|space, _| {
            if space.next_unknown().is_some() && !space.has_hole(room) {
                self.want_sweep();
            }
            let (position, mut generation) = space.stage(len, &self.generations);
            while self.place.read().moved.contains_key(&key_at(position, generation)) {
                generation = self.generations.next();
                space.chunks_mut().regenerate(position, generation);
            }
            let end = position + space.room(position).unwrap_or(room);
            self.raise_limit(end);
            let key = key_at(position, generation);
            self.cache.remove(key);
            (key, position)
        })
    }
}
