//! Which bytes of a cframe's file are whose, and where new ones go. No input or output here.
//!
//! ```text
//!  0        floor                    chunks, holes among them                    tails             end
//!  | header | reserve | chunk | chunk |  hole  | chunk | ... | chunk | old tail | tail | hole | ... | all free
//! ```
//!
//! An extent is given out again only when nobody can need it: not the last durable state, not the published one, no pin, no
//! read that may have looked its key up (see [`super::epochs`]). A chunk goes through these states:
//!
//! ```text
//!   stage --> Staged --- commit names it --> InImage --- commit N does not name it --> Dropped
//!               |                               ^                                        | N is durable
//!               +---- discard ----> Gone <------+------ (while good: pinned, guarded) ---+
//!                                    | no pins, and reads that began before have ended
//!                                    v
//!                                   free
//! ```
//!
//! What was in the file at open has a beginning (its offset) but no known length: that stands in its own header, and a header
//! may lie. So from the first to the last of those offsets the file is *unknown*, and nothing in there is free, not even what
//! a freed chunk seemed to have. A sweep goes through it from the beginning, in the background once somebody wants room;
//! behind it lengths are known and holes are free. Who would make the file much longer waits for it. Chunks whose claims
//! overlap are *tangled*: what they claim is never given out, for as long as the file is open.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

// With paths, as tests/microbench has this file from elsewhere.
#[path = "space/free.rs"]
mod free;
#[path = "space/moves.rs"]
mod moves;
#[path = "space/unknown.rs"]
mod unknown;
#[path = "space/used.rs"]
mod used;

use free::Free;
use unknown::Unknown;
use used::Used;

/// No chunk has a larger one; a key has no room for the very last.
const LAST_GENERATION: u16 = u16::MAX - 1;

/// The number of a commit, counted from 1; 0 is the state at open.
pub(super) type Seq = u64;

/// C-Blosc2 refuses an offset less than this before the end of the chunks section, so nothing is given less room.
const MIN_ROOM: u64 = 32;
/// What file systems give room in, most of them.
const BLOCK: u64 = 4096;
/// Holes that together are no more than this part of what lives are left as they are: each that is given back makes a file's parts more.
const DUST: u64 = 64;
/// How many bytes are tried for a tail to end elsewhere than those before it.
const DODGES: usize = 64;

/// What becomes of a chunk; see the module's picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Written, and in no image yet.
    Staged,
    /// In the published image, or in the one that is being committed.
    InImage,
    /// In neither, but perhaps in the last durable state.
    Dropped,
    /// In no state; pins and reads may still want it.
    Gone,
}

/// An extent that holds a chunk. 16 bytes, as there may be millions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chunk {
    /// Room in bytes; 0 while unknown.
    len: u32,
    /// How often the published image, or the one being committed, names it.
    refs: u32,
    /// Pins.
    pins: u16,
    /// Tells this chunk from others that were, or will be, at the same place.
    generation: u16,
    state: State,
    /// Overlaps another chunk, or cannot be trusted otherwise: neither moved nor given out again.
    tangled: bool,
    /// Has an entry in `retired`.
    queued: bool,
    /// Discarded while it is in an image that is being committed.
    discarded: bool,
}

/// Index and trailer of one state.
#[derive(Debug, Clone, Copy)]
struct Tail {
    pos: u64,
    len: u64,
    /// The commit that replaced it.
    dropped: Option<Seq>,
}

/// How many times an image names a chunk less than the one before; by position.
pub(super) type Doomed = HashMap<u64, u32>;

/// The map of a file.
#[derive(Debug)]
pub(super) struct Space {
    used: Used,
    free: Free,
    tails: Vec<Tail>,
    unknown: Option<Unknown>,
    /// What commit `.0` dropped, in the order of commits.
    waiting: VecDeque<(Seq, u64)>,
    /// What has gone, by the epoch when it did; readers may still look at it.
    retired: VecDeque<(u64, u64)>,
    /// Room of the chunks that are in an image, as far as known.
    live: u64,
    /// Sum of the rooms in `waiting`, about.
    waiting_bytes: u64,
    /// How far tangled claims reach.
    tangled_reach: u64,
    /// Bytes that may still be copied to keep the file short: grows with what is staged and dropped.
    credit: u64,
    /// What was staged and dropped since the last commit.
    recent: u64,
    /// Where the chunks of the last image ended.
    front: u64,
    /// Where the file ended at open.
    opened_end: u64,
    generation: u16,
}

impl Space {
    /// The map of a new file that leaves `floor` bytes for the header.
    pub(super) fn new(floor: u64) -> Self {
        Space {
            used: Used::default(),
            free: Free::new(floor, floor),
            tails: Vec::new(),
            unknown: None,
            waiting: VecDeque::new(),
            retired: VecDeque::new(),
            live: 0,
            waiting_bytes: 0,
            tangled_reach: 0,
            credit: 0,
            recent: 0,
            front: 0,
            opened_end: 0,
            generation: 0,
        }
    }

    /// The map of a frame as it was opened: chunks begin at `positions` (in any order, and possibly more than once), the tail
    /// is at `tail`, and up to `reserve` the room before the first chunk is kept for the header to grow.
    pub(super) fn opened(header_len: u64, reserve: u64, mut positions: Vec<u64>, tail: Range<u64>) -> Self {
        positions.sort_unstable();
        let first = positions.first().copied();
        let floor = reserve.max(header_len).min(first.unwrap_or(tail.start)).max(header_len);
        let mut space = Space::new(floor);
        space.used = Used::opened(positions);
        space.free = Free::new(floor, tail.end);
        space.front = tail.start;
        space.opened_end = tail.end;
        match first {
            Some(first) => {
                space.unknown = Some(Unknown::all(first, tail.start));
                space.free.give(floor, first);
            }
            None => space.free.give(floor, tail.start),
        }
        space.tails.push(Tail { pos: tail.start, len: tail.end - tail.start, dropped: None });
        space
    }

    /// Everything from here on is free.
    pub(super) fn end(&self) -> u64 {
        self.free.end()
    }

    /// Room of the chunks in the image; all of what is unknown counts.
    pub(super) fn live(&self) -> u64 {
        self.live + self.unknown.map_or(0, |unknown| unknown.end - unknown.next)
    }

    /// Room of what the published image has dropped and the durable one may still need.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    // ---- free space ----

    /// Bytes in holes.
    pub(super) fn holes(&self) -> u64 {
        self.free.bytes()
    }

    /// Whether a hole has room for `len`.
    pub(super) fn has_hole(&self, len: u64) -> bool {
        self.free.fitting(len.max(MIN_ROOM)).next().is_some()
    }

    /// Holes of whole blocks, the largest first, until what is left is little beside what lives: as positions and lengths.
    pub(super) fn blocks_to_give_back(&self) -> Vec<(u64, u64)> {
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
    pub(super) fn raise_floor(&mut self, to: u64) -> bool {
        if !self.is_clear(to) {
            return false;
        }
        self.free.raise_floor(to);
        true
    }

    /// Whether no state, pin or read needs anything below `to` but the header.
    pub(super) fn is_clear(&self, to: u64) -> bool {
        let used = self.used.range(0..to).next().is_some();
        let unknown = self.unknown.is_some_and(|unknown| unknown.next < to);
        let tails = self.tails.iter().any(|tail| tail.pos < to);
        !(used || unknown || tails)
    }

    // ---- the life of a chunk ----

    /// Room for a new chunk of `len` bytes: where, and its generation.
    pub(super) fn stage(&mut self, len: u32) -> (u64, u16) {
        let room = u64::from(len).max(MIN_ROOM);
        let pos = self.free.alloc(room);
        self.next_generation();
        self.used.insert(pos, Chunk::new(room as u32, 0, self.generation, State::Staged));
        self.credit = self.credit.saturating_add(room);
        self.recent += room;
        (pos, self.generation)
    }

    fn next_generation(&mut self) {
        self.generation = if self.generation < LAST_GENERATION { self.generation + 1 } else { 1 }; // 0 is what was there at open
    }

    /// Another generation for a chunk that was just staged.
    pub(super) fn regenerate(&mut self, pos: u64) -> u16 {
        self.next_generation();
        if let Some(chunk) = self.used.get_mut(pos) {
            chunk.generation = self.generation;
        }
        self.generation
    }

    /// The generation of the chunk at `pos`, if there is one.
    pub(super) fn generation(&self, pos: u64) -> Option<u16> {
        self.used.get(pos).map(|chunk| chunk.generation)
    }

    /// Room of the chunk at `pos`; `None` where there is none, or where only its header would say.
    pub(super) fn room(&self, pos: u64) -> Option<u64> {
        self.used.get(pos).map(|chunk| u64::from(chunk.len)).filter(|len| *len > 0)
    }

    /// A staged chunk is not wanted after all.
    pub(super) fn discard(&mut self, pos: u64, epoch: u64) {
        let Some(chunk) = self.used.get_mut(pos) else { return };
        match chunk.state {
            State::Staged => {
                chunk.state = State::Gone;
                self.retire(pos, epoch);
            }
            State::InImage => chunk.discarded = true,
            State::Dropped | State::Gone => {}
        }
    }

    /// No staged chunk is wanted.
    pub(super) fn discard_staged(&mut self, epoch: u64) {
        for pos in self.used.staged() {
            self.discard(pos, epoch);
        }
    }

    /// Counts a pin.
    pub(super) fn pin(&mut self, pos: u64) {
        if let Some(chunk) = self.used.get_mut(pos) {
            chunk.pins = chunk.pins.saturating_add(1);
        }
    }

    /// Takes a pin back. A count that has reached its bound stays there: such a chunk is kept for good.
    pub(super) fn unpin(&mut self, pos: u64, epoch: u64) {
        let Some(chunk) = self.used.get_mut(pos) else { return };
        if chunk.pins == 0 || chunk.pins == u16::MAX {
            return;
        }
        chunk.pins -= 1;
        if chunk.state == State::Gone {
            self.retire(pos, epoch);
        }
    }

    /// The image being committed names the chunk `times` times more than the one before. What has not been given out again is
    /// as good as ever. Answers what it was before, for [`Space::expel`].
    pub(super) fn admit(&mut self, pos: u64, times: u32) -> State {
        let Some(chunk) = self.used.get_mut(pos) else { return State::Gone };
        let (state, queued) = (chunk.state, chunk.queued);
        chunk.refs = chunk.refs.saturating_add(times);
        chunk.state = State::InImage;
        chunk.queued = false;
        if state != State::InImage {
            self.live += u64::from(chunk.len);
            chunk.discarded = false;
        }
        if state == State::Dropped {
            self.waiting.retain(|(_, waiting)| *waiting != pos);
        }
        if queued {
            self.retired.retain(|(_, retired)| *retired != pos);
        }
        state
    }

    /// Takes [`Space::admit`] back: the commit after `published` failed before it changed anything.
    pub(super) fn expel(&mut self, pos: u64, times: u32, was: State, published: Seq, epoch: u64) {
        let Some(chunk) = self.used.get_mut(pos) else { return };
        chunk.refs = chunk.refs.saturating_sub(times);
        if was == State::InImage {
            return;
        }
        chunk.state = was;
        self.live -= u64::from(chunk.len);
        match was {
            State::Staged if chunk.discarded => {
                chunk.state = State::Gone;
                self.retire(pos, epoch);
            }
            State::Gone => self.retire(pos, epoch),
            State::Dropped => self.waiting.push_back((published, pos)),
            State::Staged | State::InImage => {}
        }
    }

    /// Nobody wants the chunk any more but pins and reads.
    fn retire(&mut self, pos: u64, epoch: u64) {
        let Some(chunk) = self.used.get_mut(pos) else { return };
        if chunk.pins > 0 {
            return; // the last unpin comes here again
        }
        if std::mem::replace(&mut chunk.queued, true) {
            self.retired.retain(|(_, retired)| *retired != pos);
        }
        self.retired.push_back((epoch, pos));
    }

    /// Frees what readers have left by `epoch`, and tells of each position.
    pub(super) fn collect(&mut self, epoch: u64, mut freed: impl FnMut(u64)) {
        while let Some(&(stamp, pos)) = self.retired.front() {
            if stamp + 2 > epoch {
                break;
            }
            self.retired.pop_front();
            let Some(chunk) = self.used.get_mut(pos) else { continue };
            chunk.queued = false;
            if chunk.state != State::Gone || chunk.pins > 0 {
                continue;
            }
            let chunk = *chunk;
            self.used.remove(pos);
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
            _ if chunk.tangled => {}
            // Its claim may reach over chunks that the sweep has not come to.
            Some(unknown) if pos < unknown.next => self.free.give(pos, unknown.next.min(end)),
            _ => self.free.give(pos, end),
        }
    }

    // ---- commits ----

    /// Finds a place for a tail: as low as can be above the chunks of the image that is being committed, which drops `doomed`.
    ///
    /// Answers where its extent begins, and where the tail itself does: so that it does not end where `taken` says that another
    /// one did.
    ///
    /// Where chunks are being appended, some room is left before it: else every commit would leave a hole of the size of its
    /// tail between two chunks.
    pub(super) fn place_tail(&mut self, len: u64, doomed: &Doomed, taken: impl Fn(u64) -> bool) -> (u64, u64) {
        let front = self.chunks_end(doomed);
        let before = std::mem::replace(&mut self.front, front);
        // A file's first state is perhaps its only one.
        let grown = if before == 0 { 0 } else { front.saturating_sub(before) };
        let ahead = if grown > 0 { (4 * len + 2 * grown).min(self.live / 16) } else { 0 };
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
    pub(super) fn runs(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut add = |run: Range<u64>| match runs.last_mut() {
            Some(last) if last.end >= run.start => last.end = last.end.max(run.end),
            _ => runs.push(run),
        };
        for (pos, chunk) in self.used.range(0..u64::MAX) {
            match self.unknown {
                Some(unknown) if (unknown.next..unknown.end).contains(&pos) => add(unknown.next..unknown.end),
                _ => add(pos..pos + u64::from(chunk.len)),
            }
        }
        runs
    }

    /// The chunks that begin below `to`, all of them known.
    pub(super) fn below(&self, to: u64) -> Vec<(u64, u64)> {
        self.used.range(0..to).map(|(pos, chunk)| (pos, u64::from(chunk.len))).collect()
    }

    /// Room above everything, and not below `least`.
    pub(super) fn reserve_above(&mut self, len: u64, least: u64) -> u64 {
        let pos = self.free.end().max(least);
        self.free.take(pos, pos + len);
        pos
    }

    /// A chunk is at another place of another file; nobody needs the old place.
    pub(super) fn transplant(&mut self, from: u64, to: u64) {
        let Some(chunk) = self.used.remove(from) else { return };
        let queues = self.waiting.iter_mut().map(|(_, pos)| pos).chain(self.retired.iter_mut().map(|(_, pos)| pos));
        queues.filter(|pos| **pos == from).for_each(|pos| *pos = to);
        self.give_back(from, chunk);
        self.used.insert(to, Chunk { tangled: false, ..chunk }); // alone with its claim now
    }

    /// Gives back what [`Space::reserve_above`] took.
    pub(super) fn unreserve(&mut self, pos: u64, len: u64) {
        self.free.give(pos, pos + len);
    }

    /// Takes note of a tail within the reserve: the trailer of a frame without chunks, right after the header.
    pub(super) fn low_tail(&mut self, pos: u64, len: u64) {
        self.tails.push(Tail { pos, len, dropped: None });
    }

    /// Takes the last [`Space::place_tail`] back.
    pub(super) fn remove_tail(&mut self, pos: u64) {
        if let Some(at) = self.tails.iter().position(|tail| tail.pos == pos) {
            let tail = self.tails.remove(at);
            self.free.give(tail.pos, tail.pos + tail.len);
        }
    }

    /// No state has a tail any more: the file is another.
    pub(super) fn forget_tails(&mut self) {
        for tail in std::mem::take(&mut self.tails) {
            self.free.give(tail.pos, tail.pos + tail.len);
        }
    }

    /// Bytes between the chunks and the tail of the published image that a tail could use.
    pub(super) fn tail_slack(&self) -> u64 {
        let lowest = self.chunks_end(&Doomed::new());
        let tail = self.tails.last().map_or(lowest, |tail| tail.pos);
        self.free
            .holes(..tail)
            .filter(|(start, len)| start + len > lowest)
            .map(|(start, len)| len.min(start + len - lowest))
            .max()
            .unwrap_or(0)
    }

    /// The end of the highest chunk that the image being committed has.
    fn chunks_end(&self, doomed: &Doomed) -> u64 {
        let highest = self.used.descending(u64::MAX).find(|(pos, chunk)| chunk.stays(*pos, doomed));
        let highest = highest.map_or(self.free.floor(), |(pos, chunk)| pos + u64::from(chunk.len));
        highest.max(self.tangled_reach).max(self.unknown.map_or(0, |unknown| unknown.end))
    }

    /// Commit `seq` is published, with the tail that was placed last; it names `doomed` less often than the one before.
    pub(super) fn publish(&mut self, seq: Seq, doomed: &Doomed) {
        let tails = self.tails.len();
        for tail in self.tails.iter_mut().take(tails.saturating_sub(1)) {
            tail.dropped.get_or_insert(seq);
        }
        self.recent = 0;
        for (&pos, &times) in doomed {
            let Some(chunk) = self.used.get_mut(pos) else { continue };
            chunk.refs = chunk.refs.saturating_sub(times);
            if chunk.refs == 0 && chunk.state == State::InImage {
                chunk.state = State::Dropped;
                self.live -= u64::from(chunk.len);
                self.credit = self.credit.saturating_add(u64::from(chunk.len));
                self.recent += u64::from(chunk.len);
                self.waiting_bytes += u64::from(chunk.len);
                self.waiting.push_back((seq, pos));
            }
        }
    }

    /// Commit `seq`, and with it all before, is on disk.
    pub(super) fn durable(&mut self, seq: Seq, epoch: u64) {
        while let Some(&(dropped, pos)) = self.waiting.front() {
            if dropped > seq {
                break;
            }
            self.waiting.pop_front();
            if let Some(chunk) = self.used.get_mut(pos)
                && chunk.state == State::Dropped
            {
                chunk.state = State::Gone;
                self.retire(pos, epoch);
            }
        }
        if self.waiting.is_empty() {
            self.waiting_bytes = 0;
        }
        // No reader looks at a tail by its place.
        while let Some(at) = self.tails.iter().position(|tail| tail.dropped.is_some_and(|dropped| dropped <= seq)) {
            let tail = self.tails.remove(at);
            self.free.give(tail.pos, tail.pos + tail.len);
        }
    }
}

impl Chunk {
    fn new(len: u32, refs: u32, generation: u16, state: State) -> Self {
        Chunk { len, refs, pins: 0, generation, state, tangled: false, queued: false, discarded: false }
    }
}

#[cfg(test)]
mod tests;
