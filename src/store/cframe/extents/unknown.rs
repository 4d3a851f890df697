//! What others wrote: where their chunks begin is known, and how long they are only their headers say.

use super::{ExtentMap, MIN_ROOM};

/// The smallest length that a chunk's header can claim (that of a Blosc1 chunk without data).
const MIN_CLAIM: u64 = 16;
/// What part of what lives in it a file may grow by before somebody waits for the sweep.
const GROWTH: u64 = 16;

/// The part of the file that was written by others, as far as it has not been swept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unknown {
    /// The next offset to look at; everything before is known.
    pub(super) next: u64,
    /// Where the chunks section ended at open.
    pub(super) end: u64,
    /// How far the claims seen so far reach, and whose claim that is.
    pub(super) reach: u64,
    pub(super) reach_of: Option<u64>,
}

impl Unknown {
    /// Chunks somewhere in `next..end`, the first one at `next`.
    pub(in crate::store) fn all(next: u64, end: u64) -> Self {
        Unknown { next, end, reach: next, reach_of: None }
    }
}

impl ExtentMap {
    /// The next position of which only the header at it says how long it is.
    pub(in crate::store) fn next_unknown(&self) -> Option<u64> {
        self.unknown.map(|unknown| unknown.next)
    }

    /// Up to `count` positions from there on, for reading their headers with the space unlocked.
    pub(in crate::store) fn unknown(&self, count: usize, into: &mut Vec<u64>) {
        into.clear();
        if let Some(unknown) = self.unknown {
            into.extend(self.chunks.range(unknown.next..unknown.end).take(count).map(|(pos, _)| pos));
        }
    }

    /// Whether a chunk of `len` bytes should wait for the sweep: else it would be put at the end, and the file has become longer by a
    /// good part already. One chunk never waits.
    pub(in crate::store) fn must_look(&self, len: u64) -> bool {
        let len = len.max(MIN_ROOM);
        let bound = self.opened_end + len.max(self.live() / GROWTH);
        self.unknown.is_some() && !self.has_hole(len) && self.free.end() + len > bound
    }

    /// Of the chunks whose lengths are unknown: how many there are, and `count` of them, evenly, each with where the next one begins.
    pub(in crate::store) fn sample(&self, count: usize) -> (usize, Vec<(u64, u64)>) {
        let Some(Unknown { next, end, .. }) = self.unknown else { return (0, Vec::new()) };
        let positions: Vec<u64> = self.chunks.range(next..end).map(|(pos, _)| pos).collect();
        let each = positions.len().div_ceil(count).max(1);
        let next = |at: usize| positions.get(at + 1).copied().unwrap_or(end);
        let sample = positions.iter().enumerate().step_by(each).map(|(at, pos)| (*pos, next(at))).collect();
        (positions.len(), sample)
    }

    /// Takes note of what the header at `pos`, the next unknown position, claims as the chunk's length; `None` if that cannot
    /// be a chunk. What others have learnt meanwhile is ignored.
    pub(in crate::store) fn learn(&mut self, pos: u64, claim: Option<u64>) {
        let Some(mut unknown) = self.unknown.filter(|unknown| unknown.next == pos) else { return };
        let next = self.chunks.range(pos + 1..unknown.end).next().map_or(unknown.end, |(next, _)| next);
        let claim = claim.filter(|claim| *claim >= MIN_CLAIM).map(|claim| pos.saturating_add(claim.max(MIN_ROOM)));
        let end = claim.unwrap_or(next.max(pos + MIN_ROOM)).min(unknown.end);
        let overlaps = unknown.reach > pos;
        if overlaps && let Some(other) = unknown.reach_of {
            self.overlaps(other, unknown.reach);
        } else {
            self.free.give(unknown.reach, pos);
        }
        let len = u32::try_from(end - pos).unwrap_or(u32::MAX);
        self.chunks.set_len(pos, len);
        if overlaps || claim != Some(end) {
            self.overlaps(pos, end);
        }
        if end > unknown.reach {
            unknown.reach = end;
            unknown.reach_of = Some(pos);
        }
        self.sweep_to_next(unknown, pos);
    }

    /// The sweep goes on to the next used position after `pos`, or has come to its end.
    pub(super) fn sweep_to_next(&mut self, mut unknown: Unknown, pos: u64) {
        if let Some((next, _)) = self.chunks.range(pos + 1..unknown.end).next() {
            unknown.next = next;
            self.unknown = Some(unknown);
        } else {
            self.unknown = None;
            self.free.give(unknown.reach, unknown.end);
        }
    }

    fn overlaps(&mut self, pos: u64, end: u64) {
        self.overlaps_reach = self.overlaps_reach.max(end);
        self.chunks.set_overlapping(pos);
    }
}
