//! Items of an array that are not one range of it.

use std::sync::Arc;

use super::super::shape::Part;
use super::way::Way;
use super::{BlockKey, Data};
use crate::format::tiling::picked::Picked;
use crate::store::{FrameStore, ReadGuard};
use crate::view::error::{Result, ViewError};

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
        let mut batch = self.batch(Way::default());
        picked.tiles(|tile| self.plan(store, guard, Part::Tile(*tile), &mut batch, out))?;
        self.fill(store, guard, &mut batch, out)
    }

    /// Items of the array will be read soon, and are decoded meanwhile.
    pub fn expect_picked(self: &Arc<Self>, store: &Arc<dyn FrameStore>, picked: &Picked) {
        let (state, len) = (*self.state.lock(), self.block_len());
        let mut wanted = Vec::new();
        let found = picked.tiles(|tile| {
            if self.entry(tile.chunk).stored().is_some() {
                wanted.push((BlockKey { of: state, chunk: tile.chunk, start: tile.start }, len, None));
            }
            Ok::<(), ViewError>(())
        });
        debug_assert!(found.is_ok());
        self.blocks.expect(&self.work(store), &wanted, self.blocks.room() / 2, false);
    }
}
