//! Decoding blocks of stored chunks.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use log::error;

use super::Data;
use super::way::Way;
use crate::format::chunk::{BlockMap, fill_run};
use crate::format::{self, IndexEntry, Position};
use crate::store::{ChunkKey, FrameStore, ReadGuard, StoreError};
use crate::view::decoded::blocks::{Bench, Block, BlockKey, Blocks, StateId, Turn};
use crate::view::decoded::shape::Shape;
use crate::view::error::{Result, ViewError};

/// Chunks of which the log says what is wrong with them.
const REPORTS: usize = 100;

impl Data {
    /// A decoded block, from memory or decoded now.
    pub(super) fn block(
        &self,
        store: &dyn FrameStore,
        guard: &ReadGuard<'_>,
        (key, len): (BlockKey, u32),
        part: &Range<u32>,
        way: &Way,
    ) -> Result<Arc<Block>> {
        match self.blocks.claim(key, len, part, way.keep(part)) {
            Turn::Ready(block) => Ok(block),
            Turn::Mine => {
                let claim = BlockClaim { blocks: &self.blocks, key };
                // Whoever had it before has just put it to the file.
                if let Some(block) = self.restore(way, key, len, part) {
                    return Ok(block);
                }
                let bytes = self.decode(store, guard, key, len, way)?;
                std::mem::forget(claim);
                Ok(self.put(key, bytes, way))
            }
        }
    }

    /// A block that was claimed is decoded.
    pub(super) fn put(&self, key: BlockKey, bytes: Vec<u8>, way: &Way) -> Arc<Block> {
        let visible = match &self.shape {
            Shape::Array(tiling) => tiling.visible_in_block(key.chunk, key.start),
            Shape::Chunks(_) | Shape::Varying(_) => bytes.len() as u64,
        };
        // Who waits for it gets it from memory, before it is in the file.
        let block = self.blocks.put(key, bytes, u32::try_from(visible).unwrap_or(u32::MAX));
        self.spill(way, key, block.bytes());
        block
    }

    /// Decodes a block, which may be several of those that the chunk has.
    pub(super) fn decode(
        &self,
        store: &dyn FrameStore,
        guard: &ReadGuard<'_>,
        key: BlockKey,
        len: u32,
        way: &Way,
    ) -> Result<Vec<u8>> {
        let map = self.map(store, guard, key.of, key.chunk)?;
        let wanted = key.start..key.start.saturating_add(len);
        // Who waits for another block must hold nothing that decoding that one may wait for.
        let first = if blocks_of(&map, &wanted).any(|(place, _)| map.needs_first(map.block_at(place.start))) {
            let len = map.decoded(0).end;
            Some(self.block(store, guard, (BlockKey { start: 0, ..key }, len), &(0..len), way)?)
        } else {
            None
        };
        let first = first.as_ref().map(|block| block.bytes());
        self.blocks.with_bench(len, |bench| self.decode_with(store, guard, key, (&map, first), wanted, bench))
    }

    fn decode_with(
        &self,
        store: &dyn FrameStore,
        guard: &ReadGuard<'_>,
        key: BlockKey,
        (map, first): (&BlockMap, Option<&[u8]>),
        wanted: Range<u32>,
        bench: &mut Bench,
    ) -> Result<Vec<u8>> {
        let mut out = self.blocks.buffer((wanted.end - wanted.start) as usize);
        if let Some(value) = map.run() {
            fill_run(value, key.start as usize, &mut out);
            return Ok(out);
        }
        let IndexEntry::Stored(chunk) = self.entry(key.chunk) else { return Ok(out) };
        for (place, part) in blocks_of(map, &wanted) {
            let n = map.block_at(place.start);
            let extent = match map.stored(n) {
                Some(extent) => extent,
                None => self.find_stored(store, guard, key, map, n)?,
            };
            let stored = bench.stored((extent.end - extent.start) as usize);
            read_whole(store, guard, (chunk, map.header().cbytes), extent.start, stored)?;
            let (decoder, stored, whole) = bench.parts();
            let failed = |source| self.damaged(store, key.chunk, source);
            let mut chunk = decoder.blocks_of(map).map_err(failed)?;
            let into = (part.start - wanted.start) as usize..(part.end - wanted.start) as usize;
            if place == part {
                let into = out.get_mut(into).unwrap_or_default();
                chunk.decode(n, stored, first, into).map_err(failed)?;
            } else {
                whole.resize((place.end - place.start) as usize, 0);
                chunk.decode(n, stored, first, whole).map_err(failed)?;
                let from = whole.get((part.start - place.start) as usize..(part.end - place.start) as usize);
                if let (Some(into), Some(from)) = (out.get_mut(into), from) {
                    into.copy_from_slice(from);
                }
            }
        }
        Ok(out)
    }

    /// Where the blocks of a stored chunk are.
    pub(super) fn map(
        &self,
        store: &dyn FrameStore,
        guard: &ReadGuard<'_>,
        state: StateId,
        chunk: Position,
    ) -> Result<Arc<BlockMap>> {
        if let Some(map) = self.blocks.map(state, chunk) {
            return Ok(map);
        }
        let IndexEntry::Stored(key) = self.entry(chunk) else { return Err(ViewError::Gone) };
        let header = store.chunk_header(guard, key).map_err(|error| self.unreadable(store, chunk, error))?;
        let expected = self.shape.decoded(chunk);
        if u64::from(header.nbytes) != expected {
            let expected = format_args!("{expected}, as the frame's shape has it");
            return Err(self.damaged(store, chunk, format::Error::new("chunk: nbytes", 4, header.nbytes, expected)));
        }
        let block_len = self.block_len();
        if block_len > 0 && header.has_streams() && header.blocksize != block_len {
            let expected = format_args!("{block_len}, as the array's blocks have");
            return Err(self.damaged(store, chunk, format::Error::new("chunk: blocksize", 8, header.blocksize, expected)));
        }
        let read = |at: u32, buf: &mut [u8]| read_whole(store, guard, (key, header.cbytes), at, buf).map_err(Failed::Read);
        let map = BlockMap::read(&header, read).map_err(|failed| match failed {
            Failed::Read(error) => error,
            Failed::Format(source) => self.damaged(store, chunk, source),
        })?;
        // What was read twice is the same, or somebody is writing it.
        let map = map.ok_or(ViewError::Gone)?;
        let map = Arc::new(map);
        self.blocks.keep_map(state, chunk, &map);
        Ok(map)
    }

    /// Which bytes of a chunk make a block, where its map does not hold that.
    fn find_stored(
        &self,
        store: &dyn FrameStore,
        guard: &ReadGuard<'_>,
        key: BlockKey,
        map: &BlockMap,
        n: u32,
    ) -> Result<Range<u32>> {
        let IndexEntry::Stored(chunk) = self.entry(key.chunk) else { return Err(ViewError::Gone) };
        let place = map.starts_of(n);
        let starts = match self.blocks.starts(key.of, key.chunk, place.start) {
            Some(starts) => starts,
            None => {
                let mut starts = vec![0; (place.end - place.start) as usize];
                read_whole(store, guard, (chunk, map.header().cbytes), place.start, &mut starts)?;
                let starts = Arc::new(starts);
                self.blocks.keep_starts(key.of, key.chunk, place.start, &starts);
                starts
            }
        };
        map.stored_by(n, &starts).map_err(|source| self.damaged(store, key.chunk, source))
    }

    /// What keeps from a chunk, if that is the chunk itself.
    fn unreadable(&self, store: &dyn FrameStore, chunk: Position, error: StoreError) -> ViewError {
        match error {
            StoreError::Format { source, .. } => self.damaged(store, chunk, source),
            StoreError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                self.damaged(store, chunk, format::Error::new("chunk: file", 0, "no such file", "the chunk's file"))
            }
            error => ViewError::Store(error),
        }
    }

    /// What is wrong with a chunk: the log says it once.
    pub(super) fn damaged(&self, store: &dyn FrameStore, chunk: Position, source: format::Error) -> ViewError {
        let path = store.path();
        let mut reported = self.reported.lock();
        if reported.len() < REPORTS && reported.insert(chunk) {
            error!("{}: chunk {} cannot be read: {source}", format::plain::plain(&path), chunk.0);
        }
        ViewError::BadChunk(chunk.0, source)
    }
}

/// Why there is no map of a chunk.
enum Failed {
    Read(ViewError),
    Format(format::Error),
}

impl From<format::Error> for Failed {
    fn from(source: format::Error) -> Self {
        Failed::Format(source)
    }
}

/// A block that somebody has claimed: given up if it comes to nothing.
struct BlockClaim<'a> {
    blocks: &'a Blocks,
    key: BlockKey,
}

impl Drop for BlockClaim<'_> {
    fn drop(&mut self) {
        self.blocks.give_up(self.key);
    }
}

/// The blocks of a chunk that have something of a range: where each stands, and what of that is in the range.
pub(super) fn blocks_of(map: &BlockMap, range: &Range<u32>) -> impl Iterator<Item = (Range<u32>, Range<u32>)> {
    let (mut at, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let place = map.decoded(map.block_at(at));
        let part = at..place.end.min(end);
        // Behind the last block there is nothing.
        at = part.end.max(at.saturating_add(1));
        (!part.is_empty()).then_some((place, part))
    })
}

/// Reads a part of a chunk of that length.
fn read_whole(
    store: &dyn FrameStore,
    guard: &ReadGuard<'_>,
    (key, len): (ChunkKey, u32),
    offset: u32,
    buf: &mut [u8],
) -> Result<()> {
    if store.read_chunk(guard, key, len, offset.into(), buf)? < buf.len() {
        let source = io::ErrorKind::UnexpectedEof.into();
        return Err(ViewError::Store(StoreError::Io { path: store.path(), action: "read a chunk", source }));
    }
    Ok(())
}
