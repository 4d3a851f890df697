//! What is decoded before it is read.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use log::debug;

use super::Data;
use super::chunks::blocks_of;
use super::way::{Bands, Way};
use crate::format::plain::plain;
use crate::format::{IndexEntry, Position};
use crate::store::{FrameStore, Want};
use crate::view::decoded::blocks::{BlockKey, Keep, StateId, Work};
use crate::view::decoded::shape::{Part, Shape};
use crate::view::error::ViewError;

/// What will be read soon begins at most so far ahead of what is read now.
const BEHIND: u64 = 16 << 20;
/// Blocks that are asked for at once, at most.
pub(super) const MOST: usize = 16 << 10;

impl Data {
    /// A part of the file will be read soon. Has it decoded, and with it all blocks that are read together with it.
    pub fn expect(self: &Arc<Self>, store: &Arc<dyn FrameStore>, part: Range<u64>) {
        let head = self.head.len() as u64;
        let Bands { fits, twice, wide, .. } = &self.bands;
        let start = part.start.saturating_sub(head);
        // The reader is not far behind.
        let at = Some(self.at.load(Relaxed)).filter(|at| (start.saturating_sub(BEHIND)..=start).contains(at)).unwrap_or(start);
        let way = self.begin_way(&**store, at);
        // A band is needed as a whole as soon as one row of it is.
        let further = fits.filter(|_| *twice).map_or(0, |band| band.period);
        let mut range = start..part.end.saturating_sub(head).saturating_add(further);
        self.hint(&**store, range.clone());
        if let (Some(band), Shape::Array(tiling), false) = (fits.or(*wide), &self.shape, *twice) {
            if let Way::Some(_) = way {
                return;
            }
            // There is room for one band, and its last rows are not read yet.
            range.end = range.end.min(tiling.band_at(&band, at).1);
        }
        let most = self.blocks.room() / 2;
        let wanted = self.blocks_to_decode(&**store, &way, range, most);
        self.blocks.expect(&self.work(store), &wanted, most, false);
    }

    /// Some places of the file will be read soon, one after the other. Has them decoded.
    pub fn expect_places(self: &Arc<Self>, store: &Arc<dyn FrameStore>, places: Vec<Range<u64>>) {
        let (head, most, way) = (self.head.len() as u64, self.blocks.room() / 4, self.way.lock().clone());
        for Range { start, end } in places {
            let range = start.saturating_sub(head)..end.saturating_sub(head);
            let wanted = self.blocks_to_decode(&**store, &way, range, most);
            self.blocks.expect(&self.work(store), &wanted, most, false);
        }
    }

    /// The blocks of a range, as far as they have no more than `most` bytes.
    fn blocks_to_decode(
        &self,
        store: &dyn FrameStore,
        way: &Way,
        range: Range<u64>,
        most: u64,
    ) -> Vec<(BlockKey, u32, Option<Keep>)> {
        let state = *self.state.lock();
        let (mut wanted, mut bytes, mut is_enough) = (Vec::new(), 0u64, false);
        let guard = store.enter();
        let found = self.shape.parts(range, |part| {
            let chunk = part.chunk();
            if self.entry(chunk).stored().is_none() {
                return Ok(());
            }
            let mut want = |key: BlockKey, len: u32, part: Range<u32>| {
                let before: Option<&(BlockKey, u32, _)> = wanted.last();
                if before.is_none_or(|before| before.0 != key) && !self.is_spilled(way, key) {
                    wanted.push((key, len, way.keep(&part)));
                    bytes += u64::from(len);
                }
                is_enough = bytes > most || wanted.len() >= MOST;
                is_enough
            };
            match part {
                Part::Tile(tile) => {
                    want(BlockKey { of: state, chunk, start: tile.start }, self.block_len(), tile.span());
                }
                Part::Span(span) => {
                    let map = self.map(store, &guard, state, chunk)?;
                    if map.run().is_none() {
                        for (place, part) in blocks_of(&map, &span.place) {
                            if want(BlockKey { of: state, chunk, start: place.start }, place.end - place.start, part) {
                                break;
                            }
                        }
                    }
                }
            }
            // No more than can be decoded ahead.
            if is_enough { Err(ViewError::Gone) } else { Ok(()) }
        });
        if let (Err(error), false) = (found, is_enough) {
            debug!("{}: not read ahead: {error}", plain(&store.path()));
        }
        wanted
    }

    /// Lets the store know which chunks will be read.
    fn hint(&self, store: &dyn FrameStore, range: Range<u64>) {
        let mut wants = Vec::new();
        let mut behind = self.hinted.load(Relaxed);
        let most = self.shape.decoded(Position(0)).saturating_add(32);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let _ = self.shape.parts(range, |part| {
            let Position(chunk) = part.chunk();
            if chunk >= behind {
                behind = chunk + 1;
                if let IndexEntry::Stored(key) = self.entry(Position(chunk)) {
                    let next = self.entry(Position(chunk + 1)).stored();
                    wants.push(Want::Unknown { key, likely: self.likely.clamp(1, most), most, next });
                }
            }
            Ok::<(), ()>(())
        });
        if !wants.is_empty() {
            self.hinted.fetch_max(behind, Relaxed);
            store.prefetch(&wants);
        }
    }

    pub(super) fn work(self: &Arc<Self>, store: &Arc<dyn FrameStore>) -> Arc<dyn Work> {
        Arc::new(Ahead { data: Arc::clone(self), store: Arc::downgrade(store) })
    }
}

/// What is decoded ahead.
struct Ahead {
    data: Arc<Data>,
    store: Weak<dyn FrameStore>,
}

impl Work for Ahead {
    fn decode(&self, key: BlockKey, len: u32) {
        let Some(store) = self.store.upgrade() else { return };
        let guard = store.enter();
        // Keys are good for as long as this is the state.
        let is_current = store.committed().is_some_and(|image| Arc::ptr_eq(&image.entries, &self.data.entries));
        let is_run = |state: StateId| self.data.map(&*store, &guard, state, key.chunk).map(|map| map.run().is_some());
        if !is_current || is_run(key.of).unwrap_or(true) {
            return;
        }
        let way = self.data.way.lock().clone();
        if self.data.is_spilled(&way, key) {
            return;
        }
        if let Ok(bytes) = self.data.decode(&*store, &guard, key, len, &way) {
            self.data.put(key, bytes, &way);
        }
    }
}
