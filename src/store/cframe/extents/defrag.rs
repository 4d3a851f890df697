//! Keeping a file short: which chunks go where when there are holes.

use super::{Chunk, DroppedRefs, ExtentMap, State};

/// How many chunks, and how many holes for each, are considered for one move.
const TRIES: usize = 8;
/// How many chunks that the image does not have, and how many holes, are passed over for one move.
const LOOKS: usize = 4096;
/// Bytes that a commit may copy whatever it writes.
const FREE_MOVES: u64 = 1 << 20;

/// What part of what lives may be moved at unmount, whatever was written.
const GRANT: u64 = 4;
/// And how many bytes at most: some seconds' copying.
const MOST_GRANTED: u64 = 1 << 30;

/// A chunk to be copied to a place further down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    pub from: u64,
    pub to: u64,
    pub len: u64,
}

/// How much a commit may still move, and what will then be in the image.
pub struct Moves {
    live: u64,
    budget: u64,
    all: bool,
    /// Where the last one was taken from: above, nothing is left that can be moved.
    below: u64,
    /// Where what stays above ends, and how many chunks that is: for which there was no hole.
    kept: u64,
    misses: usize,
}

impl ExtentMap {
    /// Whether the holes, and what will be holes after a sync, make the file longer than it should be at rest: one and a half
    /// times what lives in it, less a little, and three tails. And whether copying what would make it short is paid for by what
    /// was written; where others left many holes it gets shorter from commit to commit.
    pub(in crate::store) fn can_settle(&self) -> bool {
        self.is_long() && self.free.bytes() + self.chunks.waiting_bytes() <= self.credit() + FREE_MOVES
    }

    /// The first half of that: whether the file is longer than it should be at rest, by as much as is known.
    pub(in crate::store) fn is_long(&self) -> bool {
        let tail = self.tails.last().map_or(0, |tail| tail.len);
        self.free.bytes() + self.chunks.waiting_bytes() > self.live() / 5 * 2 + tail
    }

    /// Lets a part of what lives be moved besides, whatever was written: what earlier mounts left long, some more make short.
    pub(in crate::store) fn grant_moves(&mut self) {
        self.granted += (self.live() / GRANT).min(MOST_GRANTED) as i64;
    }

    /// Bytes that may still be copied: as many as were ever staged and dropped, what was granted besides, less what was copied.
    fn credit(&self) -> u64 {
        self.chunks.churn().saturating_add_signed(self.granted)
    }

    /// Goes on for as long as moving brings something.
    pub(in crate::store) fn progress(&self) -> (u64, u64) {
        (self.credit(), self.free.end())
    }

    /// What may be moved in a commit that drops `dropped`: as much again as was written and dropped since the last one, and a
    /// little more. With `all`, everything that was ever written or dropped may be moved once again, and a little more.
    pub(in crate::store) fn moves(&self, dropped: &DroppedRefs, all: bool) -> Moves {
        let dying: u64 = dropped.keys().filter_map(|pos| self.chunks.get(*pos)).map(|chunk| u64::from(chunk.len)).sum();
        let (credit, recent) = (self.credit(), self.chunks.churn() - self.churn_before);
        let budget = if all { credit + FREE_MOVES } else { credit.min(FREE_MOVES + 2 * recent) };
        Moves {
            live: self.chunks.live().saturating_sub(dying),
            budget,
            all,
            below: u64::MAX,
            kept: self.overlaps_reach,
            misses: 0,
        }
    }

    /// The next chunk to copy further down, so that the file gets shorter: one of the highest, into a hole that is large enough.
    /// `None` when the file is short enough as it is, when nothing can be won, and when the budget is used up.
    pub(in crate::store) fn next_move(&mut self, dropped: &DroppedRefs, moves: &mut Moves) -> Option<Move> {
        if self.unknown.is_some() {
            return None;
        }
        let enough = self.free.floor() + moves.live + moves.live / 6;
        let mut looks = 0;
        let mut found = None;
        for (from, chunk) in self.chunks.descending(moves.below) {
            if !chunk.stays(from, dropped) {
                looks += 1;
                if looks == LOOKS {
                    break;
                }
                continue;
            }
            let len = u64::from(chunk.len);
            if moves.kept.max(from + len) <= enough {
                break;
            }
            if is_movable(from, &chunk, dropped)
                && let Some(to) = self.hole_below(from, len, moves.all)
            {
                found = Some((from, to, len));
                break;
            }
            moves.kept = moves.kept.max(from + len);
            moves.below = from;
            moves.misses += 1;
            if moves.misses == TRIES {
                break;
            }
        }
        let (from, to, len) = found?;
        moves.below = from;
        self.begin_move(from, to, len, moves)
    }

    /// A hole for a chunk further down: one of the tightest, or the largest; where all is put in order, the lowest.
    fn hole_below(&self, from: u64, len: u64, lowest: bool) -> Option<u64> {
        let fitting = || self.free.fitting(len);
        let lowest = lowest.then(|| self.free.holes(..).take(LOOKS).find(|(_, room)| *room >= len)).flatten();
        let holes = lowest.map(|(to, _)| to).into_iter().chain(fitting().take(TRIES)).chain(fitting().next_back());
        holes.into_iter().find(|to| *to < from)
    }

    /// Where no chunk fits into a hole: the chunks that are to be taken out of the way so that the lowest hole becomes larger.
    /// All behind it, if they can also come down again, which leaves no hole at all; else the next one.
    pub(in crate::store) fn lifts(&self, dropped: &DroppedRefs, moves: &Moves) -> Vec<u64> {
        // Not where the chunks are low enough, and only the tail has yet to follow them.
        let stuck = self.unknown.is_none() && self.chunks_end(dropped) - self.free.floor() > moves.live + moves.live / 5 * 2;
        let hole = self.free.holes(..).next().filter(|_| stuck);
        let Some((hole, len)) = hole else { return Vec::new() };
        let behind = self.chunks.range(hole + len..u64::MAX).filter(|(pos, chunk)| is_movable(*pos, chunk, dropped));
        let mut sum = 0;
        let mut lifts: Vec<u64> = behind
            .map_while(|(pos, chunk)| {
                sum += 2 * u64::from(chunk.len);
                (sum <= moves.budget).then_some(pos)
            })
            .collect();
        if sum > moves.budget {
            lifts.truncate(1);
        }
        lifts
    }

    /// The move of one of [`ExtentMap::lifts`].
    pub(in crate::store) fn lift(&mut self, from: u64, moves: &mut Moves) -> Option<Move> {
        let len = self.room(from)?;
        self.begin_move(from, self.free.end(), len, moves)
    }

    fn begin_move(&mut self, from: u64, to: u64, len: u64, moves: &mut Moves) -> Option<Move> {
        moves.budget = moves.budget.checked_sub(len)?;
        self.granted -= len.min(self.credit()) as i64;
        self.free.take(to, to + len);
        Some(Move { from, to, len })
    }

    /// The bytes of a move could not be copied.
    pub(in crate::store) fn not_moved(&mut self, step: Move) {
        self.free.give(step.to, step.to + step.len);
    }
}

/// Whether a chunk can be moved before the image that drops these is published.
fn is_movable(pos: u64, chunk: &Chunk, dropped: &DroppedRefs) -> bool {
    chunk.state == State::InImage && !chunk.overlapping && !dropped.contains_key(&pos)
}
