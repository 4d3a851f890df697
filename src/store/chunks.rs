//! The life of a chunk in a store, from staging until nobody needs it: which there are, and who needs them. No input or output here.
//!
//! ```text
//!   stage --> Staged --- commit names it --> InImage --- commit N does not name it --> Dropped
//!               |                               ^                                        | N is durable
//!               +---- discard ----> Gone <------+------ (while good: pinned, guarded) ---+
//!                                    | no pins, and reads that began before have ended
//!                                    v
//!                              its place is free
//! ```
//!
//! A chunk has a place: its position in the file of a cframe, its id in an sframe. A place is used again only when nobody can need what
//! was there: not the last durable state, not the published one, no pin, no read that may have looked its key up (see
//! [`super::epochs`]). A generation tells chunks apart that were at one place, one after the other.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

// With a path, as tests/microbench has this file from elsewhere.
#[path = "chunks/table.rs"]
mod table;

use table::Table;

/// The number of a state, in the order in which they are published; 0 is the one at open.
pub(super) type Seq = u64;

/// How many times an image names chunks less than the one before; by place.
pub(super) type DroppedRefs = HashMap<u64, u32>;

/// What becomes of a chunk; see the module's picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Written or being written, and in no image yet.
    Staged,
    /// In the published image, or in the one that is being committed.
    InImage,
    /// In neither, but perhaps in the last durable state.
    Dropped,
    /// In no state; pins and reads may still want it.
    Gone,
}

/// A chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Room in bytes; 0 while unknown.
    pub(super) len: u32,
    /// How often the published image, or the one being committed, names it.
    pub(super) refs: u32,
    /// Tells it from others that were, or will be, at the same place.
    pub(super) generation: u32,
    pub(super) pins: u16,
    pub(super) state: State,
    /// It overlaps another one, or cannot be trusted otherwise: neither moved, nor its place given out again.
    pub(super) overlapping: bool,
    /// Discarded while it is in an image that is being committed.
    discarded: bool,
    /// Of a Dropped chunk the first state without it, of a Gone one since when: what else a queue says of it is out of date.
    mark: u64,
}

impl Chunk {
    pub(super) fn new(len: u32, refs: u32, generation: u32, state: State) -> Self {
        Chunk { len, refs, generation, pins: 0, state, overlapping: false, discarded: false, mark: 0 }
    }

    /// Whether the image that is being committed, which drops these, has it.
    pub(super) fn stays(&self, place: u64, dropped: &DroppedRefs) -> bool {
        self.state == State::InImage && dropped.get(&place).is_none_or(|times| self.refs > *times)
    }
}

/// The chunks of a store, and what they come to.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    table: Table,
    /// Dropped chunks, and the first state without them. In the order of states.
    waiting: VecDeque<(Seq, u64)>,
    /// Gone chunks without pins, by the epoch since when; readers may still look at them.
    retired: VecDeque<(u64, u64)>,
    /// Room of the chunks that are in an image, as far as known.
    live: u64,
    /// Room of those that are Dropped.
    waiting_bytes: u64,
    /// Room of all that was ever staged or dropped.
    churn: u64,
}

impl Chunks {
    /// Those that an image has at open: their places in order, each as often as it is named. Their lengths are unknown.
    pub(super) fn opened(places: Vec<u64>, generation: u32) -> Self {
        Chunks { table: Table::opened(places, generation), ..Chunks::default() }
    }

    /// The chunk at a place.
    pub(super) fn get(&self, place: u64) -> Option<Chunk> {
        self.table.get(place)
    }

    /// The chunks at places in a range, in order.
    pub(super) fn range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Chunk)> {
        self.table.range(range)
    }

    /// All chunks at places below one, from the last on.
    pub(super) fn descending(&self, below: u64) -> impl Iterator<Item = (u64, Chunk)> {
        self.table.descending(below)
    }

    /// Room of the chunks that are in an image, as far as known.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Room of the chunks that are in an image, each counted as often as it is named.
    pub(super) fn named_bytes(&self) -> u64 {
        let named = |chunk: Chunk| u64::from(chunk.len) * u64::from(chunk.refs);
        self.range(0..u64::MAX).filter(|(_, chunk)| chunk.state == State::InImage).map(|(_, chunk)| named(chunk)).sum()
    }

    /// Room of what the published image has dropped and the durable one may still need.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Room of all that was ever staged or dropped.
    pub(super) fn churn(&self) -> u64 {
        self.churn
    }

    /// Notes how long the chunk at a place is.
    pub(super) fn set_len(&mut self, place: u64, len: u32) {
        match self.table.set_len(place, len) {
            Some(State::InImage) => self.live += u64::from(len),
            Some(State::Dropped) => self.count_dropped(len),
            _ => {}
        }
    }

    /// The chunk at a place overlaps another one.
    pub(super) fn set_overlapping(&mut self, place: u64) {
        if let Some(chunk) = self.table.get_mut(place) {
            chunk.overlapping = true;
        }
    }

    // ---- staging ----

    /// A new chunk at a place where there is none.
    pub(super) fn stage(&mut self, place: u64, len: u32, generation: u32) {
        self.table.insert(place, Chunk::new(len, 0, generation, State::Staged));
        self.churn += u64::from(len);
    }

    /// Another generation for a chunk that was just staged.
    pub(super) fn regenerate(&mut self, place: u64, generation: u32) {
        if let Some(chunk) = self.table.get_mut(place) {
            chunk.generation = generation;
        }
    }

    /// The chunk at a place is none of the store's any more, whatever it was.
    pub(super) fn forget(&mut self, place: u64) -> Option<Chunk> {
        self.table.remove(place)
    }

    /// A staged chunk is not wanted after all.
    pub(super) fn discard(&mut self, place: u64, epoch: u64) {
        let Some(chunk) = self.table.get_mut(place) else { return };
        match chunk.state {
            State::Staged => self.retire(place, epoch),
            State::InImage => chunk.discarded = true,
            State::Dropped | State::Gone => {}
        }
    }

    /// No staged chunk is wanted.
    pub(super) fn discard_staged(&mut self, epoch: u64) {
        for (place, _) in self.rest(|state| state == State::Staged) {
            self.discard(place, epoch);
        }
    }

    /// Counts a pin.
    pub(super) fn pin(&mut self, place: u64) {
        if let Some(chunk) = self.table.get_mut(place) {
            chunk.pins = chunk.pins.saturating_add(1);
        }
    }

    /// Takes a pin back. A count that has reached its bound stays there: such a chunk is kept.
    pub(super) fn unpin(&mut self, place: u64, epoch: u64) {
        let Some(chunk) = self.table.get_mut(place).filter(|chunk| !matches!(chunk.pins, 0 | u16::MAX)) else { return };
        chunk.pins -= 1;
        if chunk.state == State::Gone {
            self.retire(place, epoch);
        }
    }

    /// Nobody wants the chunk any more but pins and reads.
    fn retire(&mut self, place: u64, epoch: u64) {
        let Some(chunk) = self.table.get_mut(place) else { return };
        (chunk.state, chunk.mark) = (State::Gone, epoch);
        if chunk.pins == 0 {
            self.retired.push_back((epoch, place)); // else the last unpin comes here again
        }
    }

    // ---- commits ----

    /// The image being committed names the chunk `times` times more than the one before. What has not been collected is as good as
    /// ever. Answers what it was before, for [`Chunks::expel`].
    pub(super) fn admit(&mut self, place: u64, times: u32) -> State {
        let Some(chunk) = self.table.get_mut(place) else { return State::Gone };
        chunk.refs = chunk.refs.saturating_add(times);
        let was = std::mem::replace(&mut chunk.state, State::InImage);
        if was != State::InImage {
            chunk.discarded = false;
            self.live += u64::from(chunk.len);
        }
        if was == State::Dropped {
            self.waiting_bytes -= u64::from(chunk.len);
        }
        was
    }

    /// Takes [`Chunks::admit`] back, after a commit that changed nothing.
    pub(super) fn expel(&mut self, place: u64, times: u32, was: State, epoch: u64) {
        let Some(chunk) = self.table.get_mut(place) else { return };
        chunk.refs = chunk.refs.saturating_sub(times);
        if was == State::InImage {
            return;
        }
        chunk.state = was;
        let (len, mark, discarded) = (u64::from(chunk.len), chunk.mark, chunk.discarded);
        self.live -= len;
        match was {
            State::Staged if !discarded => {}
            State::Staged | State::Gone => self.retire(place, epoch),
            // Its place in the queue may have been passed meanwhile; it is none behind those that wait.
            State::Dropped => {
                self.waiting_bytes += len;
                self.waiting.push_front((mark, place));
            }
            State::InImage => {}
        }
    }

    /// Of these, the chunks that the image which drops them does not name at all.
    pub(super) fn dying(&self, dropped: &DroppedRefs) -> impl Iterator<Item = (u64, Chunk)> {
        let dies = |place: &u64| self.get(*place).filter(|chunk| chunk.state == State::InImage && !chunk.stays(*place, dropped));
        dropped.keys().filter_map(move |place| dies(place).map(|chunk| (*place, chunk)))
    }

    /// State `seq` is published, which names these less often than the one before.
    pub(super) fn publish(&mut self, seq: Seq, dropped: &DroppedRefs) {
        for (&place, &times) in dropped {
            let Some(chunk) = self.table.get_mut(place) else { continue };
            chunk.refs = chunk.refs.saturating_sub(times);
            if chunk.refs == 0 && chunk.state == State::InImage {
                (chunk.state, chunk.mark) = (State::Dropped, seq);
                let len = chunk.len;
                self.live -= u64::from(len);
                self.waiting.push_back((seq, place));
                self.count_dropped(len);
            }
        }
    }

    fn count_dropped(&mut self, len: u32) {
        self.waiting_bytes += u64::from(len);
        self.churn += u64::from(len);
    }

    /// State `seq`, and with it all before, is on disk.
    pub(super) fn durable(&mut self, seq: Seq, epoch: u64) {
        while let Some((first, place)) = pop_if(&mut self.waiting, |first| first <= seq) {
            if let Some(chunk) = self.table.get(place).filter(|chunk| (chunk.state, chunk.mark) == (State::Dropped, first)) {
                self.waiting_bytes -= u64::from(chunk.len);
                self.retire(place, epoch);
            }
        }
    }

    // ---- places ----

    /// The bytes of a chunk are at another place as well, and are read there from now on; what is at the old one is dropped by state
    /// `seq`.
    pub(super) fn copied(&mut self, from: u64, to: u64, seq: Seq) {
        let Some(chunk) = self.table.get_mut(from) else { return };
        let there = *chunk;
        *chunk = Chunk { refs: 0, pins: 0, state: State::Dropped, mark: seq, ..there };
        self.table.insert(to, there);
        self.waiting_bytes += u64::from(there.len);
        self.waiting.push_back((seq, from));
    }

    /// A chunk is at another place of another file, alone with its claim; nobody needs the old place. Answers what was there.
    pub(super) fn transplant(&mut self, from: u64, to: u64) -> Option<Chunk> {
        let chunk = self.table.remove(from)?;
        let queues = self.waiting.iter_mut().chain(self.retired.iter_mut());
        queues.filter(|(_, place)| *place == from).for_each(|(_, place)| *place = to);
        self.table.insert(to, Chunk { overlapping: false, ..chunk });
        Some(chunk)
    }

    /// Whether there may be something to collect.
    pub(super) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Takes out a chunk that readers have left by `epoch`, if there is one.
    pub(super) fn collect(&mut self, epoch: u64) -> Option<(u64, Chunk)> {
        while let Some((since, place)) = pop_if(&mut self.retired, |since| since.saturating_add(2) <= epoch) {
            let goes = |chunk: &Chunk| (chunk.state, chunk.mark, chunk.pins) == (State::Gone, since, 0);
            if let Some(chunk) = self.table.get(place).filter(goes) {
                self.table.remove(place);
                return Some((place, chunk));
            }
        }
        None
    }

    /// The chunks in such a state, none of them as it was found.
    pub(super) fn rest(&self, is: impl Fn(State) -> bool) -> Vec<(u64, Chunk)> {
        self.table.known().filter(|(_, chunk)| is(chunk.state)).collect()
    }
}

/// Takes the first of a queue, if its time has come.
fn pop_if(queue: &mut VecDeque<(u64, u64)>, come: impl FnOnce(u64) -> bool) -> Option<(u64, u64)> {
    let (mark, _) = *queue.front()?;
    if come(mark) { queue.pop_front() } else { None }
}

/// Which generations the keys of one version of SOURCE have: those of no other version, but for the ones that are as many chunks and
/// more behind as there are generations.
#[derive(Debug)]
pub(super) struct Generations {
    /// As many as there are.
    count: u32,
    /// That of what was there when SOURCE was read.
    first: AtomicU32,
    /// How far behind it the last one is that was given out, and the farthest.
    last: AtomicU32,
    farthest: AtomicU32,
}

impl Generations {
    pub(super) const fn new(count: u32) -> Self {
        Generations { count, first: AtomicU32::new(0), last: AtomicU32::new(0), farthest: AtomicU32::new(0) }
    }

    /// That of what was there when SOURCE was read.
    pub(super) fn first(&self) -> u32 {
        self.first.load(Relaxed)
    }

    fn behind_first(&self, by: u32) -> u32 {
        ((u64::from(self.first()) + u64::from(by)) % u64::from(self.count)) as u32
    }

    /// One for a new chunk. One caller at a time.
    pub(super) fn next(&self) -> u32 {
        let last = self.last.load(Relaxed);
        let next = if last < self.count - 1 { last + 1 } else { 1 };
        self.last.store(next, Relaxed);
        self.farthest.fetch_max(next, Relaxed);
        self.behind_first(next)
    }

    /// Whether this version has given it out.
    pub(super) fn has(&self, generation: u32) -> bool {
        let count = u64::from(self.count);
        let behind = (u64::from(generation) + count - u64::from(self.first())) % count;
        behind <= self.farthest.load(Relaxed).into()
    }

    /// The first one of the next version.
    pub(super) fn next_first(&self) -> u32 {
        self.behind_first(self.farthest.load(Relaxed).min(self.count - 2) + 1)
    }

    /// The next version begins with it.
    pub(super) fn begin(&self, first: u32) {
        self.first.store(first, Relaxed);
        self.last.store(0, Relaxed);
        self.farthest.store(0, Relaxed);
    }
}
