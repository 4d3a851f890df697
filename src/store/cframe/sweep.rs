//! Learning how long the chunks are that were there at open, so that the room between them can be used.

use std::sync::atomic::Ordering::Relaxed;

use super::{CframeStore, key_at};
use crate::store::{ChunkKey, FrameStore};

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
        let guard = self.common.epochs.enter();
        let mut positions = Vec::new();
        self.with_map(|map, _| map.unknown(count, &mut positions));
        if positions.is_empty() {
            return false;
        }
        let file = self.file();
        let claims = self.read_claims(&*file, &positions);
        if self.verify(&guard).is_err() {
            return false; // others have written: who reads SOURCE again begins a map of its own
        }
        self.with_map(|map, _| {
            // A map is exchanged with the ground locked, so this says whose it is.
            for (position, claim) in positions.iter().zip(&claims).filter(|_| guard.is_current()) {
                map.learn(*position, *claim);
            }
        });
        // What cannot be read may claim any room, so nothing behind it is free.
        !claims.is_empty()
    }

    /// Goes on sweeping where somebody could have used the room, and says whether there is more to do.
    pub(super) fn sweep_on(&self) -> bool {
        if !self.medium.sweeping.load(Relaxed) {
            return false;
        }
        let more = (0..IN_A_ROW).all(|_| self.sweep(AT_ONCE));
        self.medium.sweeping.store(more, Relaxed);
        more
    }

    /// The sweep is worth going on with.
    pub(in crate::store) fn want_sweep(&self) {
        self.medium.sweeping.store(true, Relaxed);
    }

    /// Sweeps to the end, unless that would take long and bring little.
    pub(in crate::store) fn sweep_rest(&self) {
        let (count, sample) = self.with_map(|map, _| map.sample(SAMPLE));
        if count > FEW {
            let file = self.file();
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
        let must_look = || self.with_free_map(|map| map.must_look(room));
        while must_look() && self.sweep(AT_ONCE) {}
        self.with_map(|map, _| {
            if map.next_unknown().is_some() && !map.has_hole(room) {
                self.want_sweep();
            }
            let (position, mut generation) = map.stage(len, &self.medium.generations);
            while self.medium.place.read().moved.contains_key(&key_at(position, generation)) {
                generation = self.medium.generations.next();
                map.chunks_mut().regenerate(position, generation);
            }
            let end = position + map.room(position).unwrap_or(room);
            self.medium.raise_limit(end);
            let key = key_at(position, generation);
            self.cache.remove(key);
            (key, position)
        })
    }
}
