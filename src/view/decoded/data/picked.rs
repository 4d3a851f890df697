//! Items of an array that are not one range of it.

use std::sync::Arc;

use super::super::shape::{Part, Shape};
use super::readahead::MOST;
use super::way::Way;
use super::{BlockKey, Data};
use crate::format::tiling::Band;
use crate::format::tiling::picked::Picked;
use crate::store::{FrameStore, ReadGuard};
use crate::view::error::Result;

impl Data {
    /// Reads items of the array, which fill `out`. Blocks that have none of them are not decoded. `guard` is older than the look-up of
    /// this data.
    ///
    /// # Errors
    /// As [`Data::read`].
    pub fn read_picked(
        self: &Arc<Self>,
        store: &Arc<dyn FrameStore>,
        guard: &ReadGuard<'_>,
        picked: &Picked,
        out: &mut [u8],
    ) -> Result<()> {
        let way = self.way.lock().clone();
        let mut batch = self.batch(way);
        picked.tiles(|tile| self.plan(store, guard, Part::Tile(*tile), &mut batch, out))?;
        self.fill(store, guard, &mut batch, out)
    }

    /// Whether reading the array in order comes back to more blocks than memory holds.
    pub fn is_wide(&self) -> bool {
        self.bands.wide.is_some()
    }

    /// The same of a part of the array: `blocks_of` says how many blocks a part has of one band.
    pub fn is_wide_in(&self, blocks_of: impl Fn(&Band) -> u64) -> bool {
        let bytes = |band: &Band| blocks_of(band).saturating_mul(self.block_len().into());
        self.bands.wide.as_ref().is_some_and(|band| bytes(band) > self.blocks.limit() / 8 * 7)
    }

    /// Items are read on and on, from a place in the array on, and blocks kept for who comes back to them. Whether another band begins.
    pub fn comes_to_band(&self, at: u64) -> bool {
        let (Some(band), Shape::Array(tiling), Way::File(file)) = (&self.bands.wide, &self.shape, &*self.way.lock()) else {
            return true;
        };
        file.band() != tiling.band_at(band, at).0
    }

    /// See [`Data::comes_to_band`]: blocks are kept for that band from now on.
    pub fn begin_band(&self, store: &dyn FrameStore, at: u64) {
        let way = self.begin_way(store, at);
        if let (Some(band), Shape::Array(tiling), Way::File(file)) = (&self.bands.wide, &self.shape, &way) {
            file.serve(tiling.band_at(band, at).0);
        }
    }

    /// Items of the array will be read soon, and are decoded meanwhile.
    pub fn expect_picked(self: &Arc<Self>, store: &Arc<dyn FrameStore>, picked: &Picked) {
        let (state, len, way) = (*self.state.lock(), self.block_len(), self.way.lock().clone());
        let mut wanted = Vec::new();
        let found = picked.tiles(|tile| {
            let key = BlockKey { of: state, chunk: tile.chunk, start: tile.start };
            if self.entry(tile.chunk).stored().is_some() && !self.is_spilled(&way, key) {
                wanted.push((key, len, way.keep(&tile.span())));
            }
            // No more than can be decoded ahead.
            if wanted.len() < MOST { Ok(()) } else { Err(()) }
        });
        debug_assert!(found.is_ok() || wanted.len() == MOST);
        self.blocks.expect(&self.work(store), &wanted, self.blocks.room() / 2, false);
    }
}
