//! The bytes of a frame, decompressed: an array in C order, with or without NumPy's header, or one chunk after the other.
//!
//! A [`Data`] is of one state of a frame. A read takes its range apart into parts of blocks, has those decoded that nobody has decoded yet,
//! and copies what is asked for. No block is decoded twice at the same time, and none that a range does not touch.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;

use self::chunks::blocks_of;
use self::way::{Bands, Way};
use super::blocks::{BlockKey, Blocks, StateId};
use super::shape::{Part, Shape, Span};
use crate::format::chunk::fill_run;
use crate::format::tiling::Tile;
use crate::format::{self, IndexEntry, Position, Special};
use crate::store::{ChunkKey, FrameStore, ReadGuard, interrupts};
use crate::view::error::{Result, ViewError};

mod chunks;
mod holes;
mod picked;
mod readahead;
#[cfg(test)]
mod tests;
mod way;

/// Bytes of the blocks that one read holds at one time, and how many these are at most: memory that no cache counts.
const BATCH: u64 = 4 << 20;
const NEEDS: usize = 1024;
/// Who needs less than this has it decoded by no other thread.
const WORTH_SHARING: u64 = 64 << 10;

/// See the module.
pub struct Data {
    /// What stands before the data.
    head: Vec<u8>,
    shape: Shape,
    entries: Arc<Vec<IndexEntry<ChunkKey>>>,
    /// Bytes of an item: what NaN by the index is made of.
    typesize: u32,
    blocks: Arc<Blocks>,
    state: Mutex<StateId>,
    /// How many bytes of the data are zeros for which nothing is stored.
    zeros: u64,
    /// The length of a chunk that is likely, in bytes.
    likely: u32,
    /// Up to which chunk the store knows what will be read.
    hinted: AtomicU64,
    reported: Mutex<HashSet<Position>>,
    bands: Bands,
    way: Mutex<Way>,
    /// Where the last read began, and where it ended.
    at: AtomicU64,
    end: AtomicU64,
    /// For which band a file was asked for last.
    tried: AtomicU64,
    /// Bytes that were read since a file serves its band.
    read_of_band: AtomicU64,
    /// The log says that blocks are decoded more than once.
    told: AtomicBool,
}

/// A part of a range, and the block that has it.
struct Need<'a> {
    key: BlockKey,
    /// Bytes of the block.
    len: u32,
    /// What of them is needed.
    part: Range<u32>,
    to: Destination<'a>,
}

/// Where a part of a block belongs.
enum Destination<'a> {
    Tile(Tile<'a>),
    /// In a row, from there on in the range.
    Bytes(usize),
}

/// Blocks that are dealt with together.
struct Batch<'a> {
    state: StateId,
    way: Way,
    /// Bytes that they have at most, but for one.
    most: u64,
    bytes: u64,
    needs: Vec<Need<'a>>,
}

impl<'a> Batch<'a> {
    fn add(&mut self, need: Need<'a>) {
        self.bytes += u64::from(need.len);
        self.needs.push(need);
    }

    fn is_full(&self) -> bool {
        self.bytes >= self.most || self.needs.len() >= NEEDS
    }
}

impl Data {
    /// The data of a state of a frame, with `head` before it.
    ///
    /// # Errors
    /// Fewer chunks than the shape takes.
    pub fn new(
        head: Vec<u8>,
        shape: Shape,
        entries: Arc<Vec<IndexEntry<ChunkKey>>>,
        typesize: u32,
        cbytes: u64,
        blocks: &Arc<Blocks>,
    ) -> std::result::Result<Self, format::Error> {
        if (entries.len() as u64) < shape.nchunks() {
            let wanted = shape.nchunks();
            let expected = format_args!("{wanted}, which the shape takes");
            return Err(format::Error::new("index: chunks", 0, entries.len(), expected));
        }
        let is_zeros = |entry: &IndexEntry<_>| matches!(entry, IndexEntry::Special(Special::Zeros | Special::Uninit));
        let zeros = entries.iter().zip(0..shape.nchunks()).filter(|(entry, _)| is_zeros(entry));
        let zeros = zeros.map(|(_, position)| shape.visible(Position(position))).sum();
        let average = cbytes / (entries.len() as u64).max(1);
        Ok(Data {
            head,
            typesize,
            state: Mutex::new(blocks.new_state()),
            blocks: Arc::clone(blocks),
            zeros,
            likely: u32::try_from(average + average / 2).unwrap_or(u32::MAX),
            hinted: AtomicU64::new(0),
            reported: Mutex::default(),
            bands: Bands::new(&shape, blocks.limit()),
            way: Mutex::default(),
            at: AtomicU64::new(0),
            end: AtomicU64::new(0),
            tried: AtomicU64::new(u64::MAX),
            read_of_band: AtomicU64::new(0),
            told: AtomicBool::new(false),
            shape,
            entries,
        })
    }

    /// What stands before the data.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.head.len() as u64 + self.shape.bytes()
    }

    /// How many blocks of 512 bytes it would take on a disk that has holes for zeros: at least one for one byte.
    pub fn blocks(&self) -> u64 {
        (self.bytes() - self.zeros).div_ceil(512).max(u64::from(self.bytes() > 0))
    }

    /// One line for the log: of the blocks of all frames of the mount.
    pub fn report(&self) -> String {
        self.blocks.report()
    }

    /// Forgets what was decoded: it may be of another state.
    pub fn forget(&self) {
        self.end_way();
        let before = std::mem::replace(&mut *self.state.lock(), self.blocks.new_state());
        self.blocks.forget(before);
    }

    /// Reads; a short count means the end. `guard` is older than the look-up of this data.
    ///
    /// # Errors
    /// What the store says; chunks that cannot be decoded, or have another length than they should.
    #[expect(clippy::indexing_slicing, reason = "no more is counted than there is in the buffer")]
    pub fn read(
        self: &Arc<Self>,
        store: &Arc<dyn FrameStore>,
        guard: &ReadGuard<'_>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let count = self.bytes().saturating_sub(offset).min(buf.len() as u64) as usize;
        let of_head = self.head.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        let (into_head, out) = buf[..count].split_at_mut(of_head.len().min(count));
        into_head.copy_from_slice(&of_head[..into_head.len()]);
        if !out.is_empty() {
            let start = offset.saturating_sub(self.head.len() as u64);
            self.read_data(store, guard, start..start + out.len() as u64, out)?;
        }
        Ok(count)
    }

    fn read_data(
        self: &Arc<Self>,
        store: &Arc<dyn FrameStore>,
        guard: &ReadGuard<'_>,
        range: Range<u64>,
        out: &mut [u8],
    ) -> Result<()> {
        let mut batch = self.batch(self.enter_range(&**store, &range));
        self.shape.parts(range.clone(), |part| self.plan(store, guard, part, &mut batch, out))?;
        self.fill(store, guard, &mut batch, out)?;
        self.leave_range(&batch.way, &range);
        Ok(())
    }

    /// No blocks yet, for who reads that way.
    fn batch<'a>(&self, way: Way) -> Batch<'a> {
        let most = (self.blocks.room() / 8).min(BATCH);
        Batch { state: *self.state.lock(), way, most, bytes: 0, needs: Vec::new() }
    }

    /// Fills in a part of a range that is a run of one value, or notes which blocks it needs.
    fn plan<'a>(
        self: &'a Arc<Self>,
        store: &Arc<dyn FrameStore>,
        guard: &ReadGuard<'_>,
        part: Part<'a>,
        batch: &mut Batch<'a>,
        out: &mut [u8],
    ) -> Result<()> {
        let fill = |part: &Part<'_>, value: &[u8], out: &mut [u8]| match part {
            Part::Tile(tile) => tile.fill(value, out),
            Part::Span(Span { place, offset, .. }) => {
                let (len, at) = ((place.end - place.start) as usize, *offset as usize);
                if let Some(out) = out.get_mut(at..at.saturating_add(len)) {
                    fill_run(value, place.start as usize, out);
                }
            }
        };
        let (chunk, of) = (part.chunk(), batch.state);
        match self.entry(chunk) {
            IndexEntry::Special(Special::Zeros | Special::Uninit) => fill(&part, &[0], out),
            IndexEntry::Special(Special::Nan) => match self.typesize {
                4 => fill(&part, &f32::NAN.to_le_bytes(), out),
                8 => fill(&part, &f64::NAN.to_le_bytes(), out),
                size => return Err(self.damaged(&**store, chunk, no_nan(size))),
            },
            IndexEntry::Stored(_) => match part {
                // That it is a run is found out where it is not in memory.
                Part::Tile(tile) => {
                    let key = BlockKey { of, chunk, start: tile.start };
                    batch.add(Need { key, len: self.block_len(), part: tile.span(), to: Destination::Tile(tile) });
                }
                Part::Span(span) => {
                    let map = self.map(&**store, guard, of, chunk)?;
                    if let Some(value) = map.run() {
                        fill(&Part::Span(span), value, out);
                        return Ok(());
                    }
                    for (place, part) in blocks_of(&map, &span.place) {
                        let to = (part.start - span.place.start) as usize + span.offset as usize;
                        let key = BlockKey { of, chunk, start: place.start };
                        let part = part.start - place.start..part.end - place.start;
                        batch.add(Need { key, len: place.end - place.start, part, to: Destination::Bytes(to) });
                        if batch.is_full() {
                            self.fill(store, guard, batch, out)?;
                        }
                    }
                }
            },
        }
        if batch.is_full() { self.fill(store, guard, batch, out) } else { Ok(()) }
    }

    /// Copies what is needed of some blocks, and decodes those that nobody has decoded.
    fn fill<'a>(
        self: &'a Arc<Self>,
        store: &Arc<dyn FrameStore>,
        guard: &ReadGuard<'_>,
        batch: &mut Batch<'a>,
        out: &mut [u8],
    ) -> Result<()> {
        let (needs, way, state) = (std::mem::take(&mut batch.needs), &batch.way, batch.state);
        let _in_hand = self.blocks.in_hand(std::mem::take(&mut batch.bytes));
        let mut blocks = self.blocks.ready(needs.iter().map(|need| (need.key, &need.part)));
        let mut missing = Vec::new();
        for (need, block) in needs.iter().zip(&mut blocks) {
            if block.is_some() {
                continue;
            }
            *block = self.restore(way, need.key, need.len, &need.part);
            if block.is_some() {
                continue;
            }
            if let Destination::Tile(tile) = &need.to
                && let Some(value) = self.map(&**store, guard, state, need.key.chunk)?.run()
            {
                tile.fill(value, out);
                continue;
            }
            missing.push((need.key, need.len, way.keep(&need.part)));
        }
        let sum: u64 = missing.iter().map(|(_, len, _)| u64::from(*len)).sum();
        if let (Some(others @ [_, ..]), true) = (missing.get(1..), sum >= WORTH_SHARING && self.blocks.has_threads()) {
            self.blocks.expect(&self.work(store), others, self.blocks.room() / 2, true);
        }
        let mut read = Vec::with_capacity(needs.len());
        let mut missing = missing.into_iter().peekable();
        for (need, block) in needs.into_iter().zip(blocks) {
            let Need { key, len, part, to } = need;
            let block = match block {
                Some(block) => block,
                None if missing.next_if(|(first, ..)| *first == key).is_some() => {
                    // A read of very many blocks must not keep the mount from its end.
                    if interrupts::is_ending() {
                        return Err(ViewError::System(libc::EINTR));
                    }
                    self.block(&**store, guard, (key, len), &part, way)?
                }
                None => continue,
            };
            let bytes = match &to {
                Destination::Tile(tile) => {
                    tile.copy_from_part(block.bytes(), block.begin(), out);
                    tile.bytes()
                }
                Destination::Bytes(at) => {
                    let from = part.start.saturating_sub(block.begin()) as usize..part.end.saturating_sub(block.begin()) as usize;
                    let into = out.get_mut(*at..at.saturating_add(from.len()));
                    if let (Some(into), Some(from)) = (into, block.bytes().get(from.clone())) {
                        into.copy_from_slice(from);
                    }
                    from.len() as u64
                }
            };
            read.push((key, block, bytes));
        }
        self.blocks.served(read);
        Ok(())
    }

    fn entry(&self, chunk: Position) -> IndexEntry<ChunkKey> {
        let entry = usize::try_from(chunk.0).ok().and_then(|chunk| self.entries.get(chunk));
        // There are as many as the shape takes.
        entry.copied().unwrap_or(IndexEntry::Special(Special::Uninit))
    }

    fn block_len(&self) -> u32 {
        if let Shape::Array(tiling) = &self.shape { tiling.block_len() } else { 0 }
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        self.end_way();
        self.blocks.forget(*self.state.get_mut());
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Data").field("len", &self.bytes()).finish_non_exhaustive()
    }
}

fn no_nan(typesize: u32) -> format::Error {
    format::Error::new("header: typesize", 48, typesize, "4 or 8, the chunk being all NaN")
}
