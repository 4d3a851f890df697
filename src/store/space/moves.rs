//! Keeping a file short: which chunks go where when there are holes.

use super::{Chunk, Doomed, Seq, Space, State};

/// How many chunks, and how many holes for each, are considered for one move.
const TRIES: usize = 8;
/// How many chunks are looked at, from the end, for some that can be moved.
const LOOKS: usize = 256;
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
}

impl Space {
    /// Whether the holes, and what will be holes after a sync, make the file longer than it should be at rest: one and a half
    /// times what lives in it, less a little, and three tails. And whether copying what would make it short is paid for by what
    /// was written; where others left many holes it gets shorter from commit to commit.
    pub(in super::super) fn can_settle(&self) -> bool {
        self.is_long() && self.free.bytes() + self.waiting_bytes <= self.credit + FREE_MOVES
    }

    /// The first half of that: whether the file is longer than it should be at rest, by as much as is known.
    pub(in super::super) fn is_long(&self) -> bool {
        let tail = self.tails.last().map_or(0, |tail| tail.len);
        self.free.bytes() + self.waiting_bytes > self.live() / 5 * 2 + tail
    }

    /// Lets a part of what lives be moved besides, whatever was written: what earlier mounts left long, some more make short.
    pub(in super::super) fn grant_moves(&mut self) {
        self.credit = self.credit.saturating_add((self.live() / GRANT).min(MOST_GRANTED));
    }

    /// Goes on for as long as moving brings something.
    pub(in super::super) fn progress(&self) -> (u64, u64) {
        (self.credit, self.free.end())
    }

    /// What may be moved in a commit that drops `doomed`: as much again as was written and dropped since the last one, and a
    /// little more. With `all`, everything that was ever written or dropped may be moved once again, and a little more.
    pub(in super::super) fn moves(&self, doomed: &Doomed, all: bool) -> Moves {
        let dying: u64 = doomed.keys().filter_map(|pos| self.used.get(*pos)).map(|chunk| u64::from(chunk.len)).sum();
        let budget = if all { self.credit + FREE_MOVES } else { self.credit.min(FREE_MOVES + 2 * self.recent) };
        Moves { live: self.live.saturating_sub(dying), budget, all }
    }

    /// The next chunk to copy further down, so that the file gets shorter: one of the highest, into a hole that is large enough.
    /// `None` when the file is short enough as it is, when nothing can be won, and when the budget is used up.
    pub(in super::super) fn next_move(&mut self, doomed: &Doomed, moves: &mut Moves) -> Option<Move> {
        if self.unknown.is_some() || self.chunks_end(doomed) - self.free.floor() <= moves.live + moves.live / 6 {
            return None;
        }
        let highest = self.used.descending().take(LOOKS).filter(|(pos, chunk)| chunk.movable(*pos, doomed)).take(TRIES);
        let (from, to, len) = highest
            .filter_map(|(from, chunk)| {
                let len = u64::from(chunk.len);
                // The tightest ones, or the largest; where all is put in order, the lowest.
                let fitting = || self.free.fitting(len);
                let lowest = self.free.holes(..).take(LOOKS).find(|(_, room)| *room >= len).map(|(to, _)| to);
                let holes = lowest.filter(|_| moves.all).into_iter().chain(fitting().take(TRIES)).chain(fitting().next_back());
                holes.into_iter().find(|to| *to < from).map(|to| (from, to, len))
            })
            .next()?;
        self.begin_move(from, to, len, moves)
    }

    /// Where no chunk fits into a hole: the chunks that are to be taken out of the way so that the lowest hole becomes larger.
    /// All behind it, if they can also come down again, which leaves no hole at all; else the next one.
    pub(in super::super) fn lifts(&self, doomed: &Doomed, moves: &Moves) -> Vec<u64> {
        // Not where the chunks are low enough, and only the tail has yet to follow them.
        let stuck = self.unknown.is_none() && self.chunks_end(doomed) - self.free.floor() > moves.live + moves.live / 5 * 2;
        let hole = self.free.holes(..).next().filter(|_| stuck);
        let Some((hole, len)) = hole else { return Vec::new() };
        let behind = self.used.range(hole + len..u64::MAX).filter(|(pos, chunk)| chunk.movable(*pos, doomed));
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

    /// The move of one of [`Space::lifts`].
    pub(in super::super) fn lift(&mut self, from: u64, moves: &mut Moves) -> Option<Move> {
        let len = self.room(from)?;
        self.begin_move(from, self.free.end(), len, moves)
    }

    fn begin_move(&mut self, from: u64, to: u64, len: u64, moves: &mut Moves) -> Option<Move> {
        moves.budget = moves.budget.checked_sub(len)?;
        self.credit = self.credit.saturating_sub(len);
        self.free.take(to, to + len);
        self.used.insert(to, Chunk::new(len as u32, 0, 0, State::Staged));
        Some(Move { from, to, len })
    }

    /// The bytes of a move have been copied; the old place is free once commit `seq` is on disk.
    pub(in super::super) fn moved(&mut self, moved: Move, seq: Seq) {
        let Some(chunk) = self.used.get_mut(moved.from) else { return };
        let there = *chunk;
        *chunk = Chunk { refs: 0, pins: 0, state: State::Dropped, ..there };
        self.used.insert(moved.to, there);
        self.waiting_bytes += moved.len;
        self.waiting.push_back((seq, moved.from));
    }
}

impl Chunk {
    fn movable(&self, pos: u64, doomed: &Doomed) -> bool {
        self.state == State::InImage && !self.tangled && !doomed.contains_key(&pos)
    }
}
