//! Which bytes of a cframe's file are whose, and where new ones go. No input or output here.
//!
//! ```text
//!  0        floor                    chunks, holes among them                    tails             end
//!  | header | reserve | chunk | chunk |  hole  | chunk | ... | chunk | old tail | tail | hole | ... | all free
//! ```
//!
//! An extent holds a chunk, whose life [`Chunks`] has, or a tail: index and trailer of a state. It is given out again only when nobody can
//! need it.
//!
//! What was in the file at open has a beginning (its offset) but no known length: that stands in its own header, and a header
//! may be wrong. So from the first to the last of those offsets the file is *unknown*, and nothing in there is free, not even what
//! a freed chunk seemed to have. A sweep goes through it from the beginning, in the background once somebody wants room;
//! behind it lengths are known and holes are free. A caller that would make the file much longer waits for it. Chunks whose claims
//! *overlap* are marked: what they claim is never given out, for as long as the file is open.

use std::ops::Range;

use crate::store::chunks::{Chunk, Chunks, DroppedRefs, Generations, Seq, State};

// With paths, as tests/microbench has this file from elsewhere.
#[path = "defrag.rs"]
mod defrag;
#[path = "free.rs"]
mod free;
#[path = "unknown.rs"]
mod unknown;

use free::Free;
use unknown::Unknown;

/// C-Blosc2 refuses an offset less than this before the end of the chunks section, so nothing is given less room.
const MIN_ROOM: u64 = 32;
/// What file systems give room in, most of them.
const BLOCK: u64 = 4096;
/// Holes that together are no more than this part of what lives are left as they are: each that is given back makes a file's parts more.
const DUST: u64 = 64;
/// How many bytes are tried for a tail to end elsewhere than those before it.
const DODGES: usize = 64;

/// Index and trailer of one state.
#[derive(Debug, Clone, Copy)]
struct Tail {
    pos: u64,
    len: u64,
    /// The commit that replaced it.
    dropped: Option<Seq>,
}

/// The map of a file.
#[derive(Debug)]
pub(in crate::store) struct ExtentMap {
    chunks: Chunks,
    free: Free,
    tails: Vec<Tail>,
    unknown: Option<Unknown>,
    /// How far overlapping claims reach.
    overlaps_reach: u64,
    /// Bytes that may still be copied to keep the file short, less what was staged and dropped.
    granted: i64,
    /// What was staged and dropped before the last commit.
    churn_before: u64,
    /// Where the chunks of the last image ended.
    front: u64,
    /// Where the file ended at open.
    opened_end: u64,
}

impl ExtentMap {
    /// The map of a new file that leaves `floor` bytes for the header.
    pub(in crate::store) fn new(floor: u64) -> Self {
        ExtentMap {
            chunks: Chunks::default(),
            free: Free::new(floor, floor),
            tails: Vec::new(),
            unknown: None,
            overlaps_reach: 0,
            granted: 0,
            churn_before: 0,
            front: 0,
            opened_end: 0,
        }
    }

    /// The map of a frame as it was opened: chunks of a generation begin at `positions` (in any order, and possibly more than once), the
    /// tail is at `tail`, and up to `reserve` the room before the first chunk is kept for the header to grow.
    pub(in crate::store) fn opened(
        header_len: u64,
        reserve: u64,
        mut positions: Vec<u64>,
        generation: u32,
        tail: Range<u64>,
    ) -> Self {
        positions.sort_unstable();
        let first = positions.first().copied();
        let floor = reserve.max(header_len).min(first.unwrap_or(tail.start)).max(header_len);
        let mut map = ExtentMap::new(floor);
        map.chunks = Chunks::opened(positions, generation);
        map.free = Free::new(floor, tail.end);
        map.front = tail.start;
        map.opened_end = tail.end;
        match first {
            Some(first) => {
                map.unknown = Some(Unknown::all(first, tail.start));
                map.free.give(floor, first);
            }
            None => map.free.give(floor, tail.start),
        }
        map.tails.push(Tail { pos: tail.start, len: tail.end - tail.start, dropped: None });
        map
    }

    /// The chunks in it. A place is a position in the file.
    pub(in crate::store) fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    /// The same, to be changed.
    pub(in crate::store) fn chunks_mut(&mut self) -> &mut Chunks {
        &mut self.chunks
    }

    /// Everything from here on is free.
    pub(in crate::store) fn end(&self) -> u64 {
        self.free.end()
    }

    /// Room of the chunks in the image; all of what is unknown counts.
    pub(in crate::store) fn live(&self) -> u64 {
        self.chunks.live() + self.unknown.map_or(0, |unknown| unknown.end - unknown.next)
    }

    // ---- free space ----

    /// Bytes in holes.
    pub(in crate::store) fn holes(&self) -> u64 {
        self.free.bytes()
    }

    /// Whether a hole has room for `len`.
    pub(in crate::store) fn has_hole(&self, len: u64) -> bool {
        self.free.fitting(len.max(MIN_ROOM)).next().is_some()
    }

    /// Holes of whole blocks, the largest first, until what is left is little beside what lives: as positions and lengths.
    pub(in crate::store) fn blocks_to_give_back(&self) -> Vec<(u64, u64)> {
        let mut left = self.free.bytes();
        let mut holes = Vec::new();
        for (start, len) in self.free.largest() {
            if left <= self.live() / DUST || len < BLOCK {
                break;
            }
            left -= len;
            let (from, to) = (start.next_multiple_of(BLOCK), (start + len) / BLOCK * BLOCK);
            if from < to {
                holes.push((from, to - from));
            }
        }
        holes
    }

    /// Keeps everything below `to` for the header, unless something is there.
    pub(in crate::store) fn raise_floor(&mut self, to: u64) -> bool {
        if !self.is_clear(to) {
            return false;
        }
        self.free.raise_floor(to);
        true
    }

    /// Whether no state, pin or read needs anything below `to` but the header.
    pub(in crate::store) fn is_clear(&self, to: u64) -> bool {
        let used = self.chunks.range(0..to).next().is_some();
        let unknown = self.unknown.is_some_and(|unknown| unknown.next < to);
        let tails = self.tails.iter().any(|tail| tail.pos < to);
        !(used || unknown || tails)
    }

    // ---- chunks ----

    /// Room for a new chunk of `len` bytes: where, and its generation.
    pub(in crate::store) fn stage(&mut self, len: u32, generations: &Generations) -> (u64, u32) {
        let room = u64::from(len).max(MIN_ROOM);
        let (pos, generation) = (self.free.alloc(room), generations.next());
        self.chunks.stage(pos, room as u32, generation);
        (pos, generation)
    }

    /// Room of the chunk at `pos`; `None` where there is none, or where only its header would say.
    pub(in crate::store) fn room(&self, pos: u64) -> Option<u64> {
        self.chunks.get(pos).map(|chunk| u64::from(chunk.len)).filter(|len| *len > 0)
    }

    /// Frees what readers have left by `epoch`, and tells of each position.
    pub(in crate::store) fn collect(&mut self, epoch: u64, mut freed: impl FnMut(u64)) {
        while let Some((pos, chunk)) = self.chunks.collect(epoch) {
            freed(pos);
            self.give_back(pos, chunk);
        }
    }

    /// The room of a chunk that is not in the map any more.
    fn give_back(&mut self, pos: u64, chunk: Chunk) {
        let end = pos + u64::from(chunk.len);
        match self.unknown {
            Some(unknown) if unknown.next == pos => self.sweep_to_next(unknown, pos),
            // The sweep will find a hole here.
            Some(unknown) if (unknown.next..unknown.end).contains(&pos) => {}
            _ if chunk.overlapping => {}
            // Its claim may reach over chunks that the sweep has not come to.
            Some(unknown) if pos < unknown.next => self.free.give(pos, unknown.next.min(end)),
            _ => self.free.give(pos, end),
        }
    }

    // ---- commits ----

    /// Finds a place for a tail: as low as can be above the chunks of the image that is being committed, which drops `dropped`.
    ///
    /// Answers where its extent begins, and where the tail itself does: so that it does not end where `taken` says that another
    /// one did.
    ///
    /// Where chunks are being appended, some room is left before it: else every commit would leave a hole of the size of its
    /// tail between two chunks.
    pub(in crate::store) fn place_tail(&mut self, len: u64, dropped: &DroppedRefs, taken: impl Fn(u64) -> bool) -> (u64, u64) {
        let front = self.chunks_end(dropped);
        let before = std::mem::replace(&mut self.front, front);
        // A file's first state is perhaps its only one.
        let grown = if before == 0 { 0 } else { front.saturating_sub(before) };
        let ahead = if grown > 0 { (4 * len + 2 * grown).min(self.chunks.live() / 16) } else { 0 };
        let lowest = front + ahead;
        // The same few places serve by turns; a few bytes more make the ends differ.
        let fits = |start: u64, end: u64| {
            let at = (start..).take(DODGES).find(|at| !taken(at + len)).unwrap_or(start);
            (end.saturating_sub(at) >= len).then_some((start, at))
        };
        let around = self.free.holes(..=lowest).next_back().map(|(start, len)| (lowest, start + len));
        let above = self.free.holes(lowest + 1..).map(|(start, len)| (start, start + len));
        let hole = around.into_iter().chain(above).find_map(|(start, end)| fits(start, end));
        let behind = || fits(self.free.end().max(lowest), u64::MAX).unwrap_or((self.free.end(), self.free.end()));
        let (slot, at) = hole.unwrap_or_else(behind);
        self.free.take(slot, at + len);
        self.tails.push(Tail { pos: slot, len: at + len - slot, dropped: None });
        (slot, at)
    }

    /// What a copy of the file must have: everything that a state, a pin or a read may need, the tails excepted. Runs in order.
    pub(in crate::store) fn runs(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut add = |run: Range<u64>| match runs.last_mut() {
            Some(last) if last.end >= run.start => last.end = last.end.max(run.end),
            _ => runs.push(run),
        };
        for (pos, chunk) in self.chunks.range(0..u64::MAX) {
            match self.unknown {
                Some(unknown) if (unknown.next..unknown.end).contains(&pos) => add(unknown.next..unknown.end),
                _ => add(pos..pos + u64::from(chunk.len)),
            }
        }
        runs
    }

    /// The chunks that begin below `to`, all of them known.
    pub(in crate::store) fn below(&self, to: u64) -> Vec<(u64, u64)> {
        self.chunks.range(0..to).map(|(pos, chunk)| (pos, u64::from(chunk.len))).collect()
    }

    /// Room above everything, and not below `least`.
    pub(in crate::store) fn reserve_above(&mut self, len: u64, least: u64) -> u64 {
        let pos = self.free.end().max(least);
        self.free.take(pos, pos + len);
        pos
    }

    /// A chunk is at another place of another file; nobody needs the old place.
    pub(in crate::store) fn transplant(&mut self, from: u64, to: u64) {
        if let Some(chunk) = self.chunks.transplant(from, to) {
            self.give_back(from, chunk);
        }
    }

    /// Gives back what [`ExtentMap::reserve_above`] took.
    pub(in crate::store) fn unreserve(&mut self, pos: u64, len: u64) {
        self.free.give(pos, pos + len);
    }

    /// Takes note of a tail within the reserve: the trailer of a frame without chunks, right after the header.
    pub(in crate::store) fn low_tail(&mut self, pos: u64, len: u64) {
        self.tails.push(Tail { pos, len, dropped: None });
    }

    /// Takes the last [`ExtentMap::place_tail`] back.
    pub(in crate::store) fn remove_tail(&mut self, pos: u64) {
        if let Some(at) = self.tails.iter().position(|tail| tail.pos == pos) {
            let tail = self.tails.remove(at);
            self.free.give(tail.pos, tail.pos + tail.len);
        }
    }

    /// No state has a tail any more: the file is another.
    pub(in crate::store) fn forget_tails(&mut self) {
        for tail in std::mem::take(&mut self.tails) {
            self.free.give(tail.pos, tail.pos + tail.len);
        }
    }

    /// Bytes between the chunks and the tail of the published image that a tail could use.
    pub(in crate::store) fn tail_slack(&self) -> u64 {
        let lowest = self.chunks_end(&DroppedRefs::new());
        let tail = self.tails.last().map_or(lowest, |tail| tail.pos);
        self.free
            .holes(..tail)
            .filter(|(start, len)| start + len > lowest)
            .map(|(start, len)| len.min(start + len - lowest))
            .max()
            .unwrap_or(0)
    }

    /// The end of the highest chunk that the image being committed has.
    fn chunks_end(&self, dropped: &DroppedRefs) -> u64 {
        let highest = self.chunks.descending(u64::MAX).find(|(pos, chunk)| chunk.stays(*pos, dropped));
        let highest = highest.map_or(self.free.floor(), |(pos, chunk)| pos + u64::from(chunk.len));
        highest.max(self.overlaps_reach).max(self.unknown.map_or(0, |unknown| unknown.end))
    }

    /// Commit `seq` is published, with the tail that was placed last; it names `dropped` less often than the one before.
    pub(in crate::store) fn publish(&mut self, seq: Seq, dropped: &DroppedRefs) {
        let tails = self.tails.len();
        for tail in self.tails.iter_mut().take(tails.saturating_sub(1)) {
            tail.dropped.get_or_insert(seq);
        }
        self.churn_before = self.chunks.churn();
        self.chunks.publish(seq, dropped);
    }

    /// Commit `seq`, and with it all before, is on disk.
    pub(in crate::store) fn durable(&mut self, seq: Seq, epoch: u64) {
        self.chunks.durable(seq, epoch);
        // No reader looks at a tail by its place.
        while let Some(at) = self.tails.iter().position(|tail| tail.dropped.is_some_and(|dropped| dropped <= seq)) {
            let tail = self.tails.remove(at);
            self.free.give(tail.pos, tail.pos + tail.len);
        }
    }
}

#[cfg(test)]
mod tests;
