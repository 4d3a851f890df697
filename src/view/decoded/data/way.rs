//! Where blocks are kept that reads return to.
//!
//! Reading an array from beginning to end returns to each block once for every row that the block has. The blocks that are
//! needed again next make a band ([`Band`]). A band that fits into the cache is decoded once. Decoded blocks of a larger band are
//! kept in a file. Without a file, some of the blocks are kept in memory, always the same ones, and the others are decoded again for
//! each row. Dropping the least used block would always drop the one that is needed next.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use log::info;

use super::Data;
use crate::format::plain::plain;
use crate::format::tiling::Band;
use crate::store::{FrameStore, in_words};
use crate::view::decoded::band_file::{BandFile, BandSlot};
use crate::view::decoded::blocks::{Block, BlockKey, Keep};
use crate::view::decoded::shape::Shape;

/// Of a cache, what is left for blocks that pass through while others are kept.
const PASSING: u64 = 8 << 20;
/// Smaller parts of a block are not worth being kept.
const PIECE: u64 = 4096;

/// Which bands an array has, seen from a cache.
#[derive(Debug)]
pub(super) struct Bands {
    /// The widest one that fits.
    pub(super) fits: Option<Band>,
    /// Whether two of it fit.
    pub(super) twice: bool,
    /// The widest one of all, if it does not fit.
    pub(super) wide: Option<Band>,
    /// Bytes of the array that the last one of those has.
    pub(super) last: u64,
    /// How much of one may be kept.
    pub(super) keep: Keep,
}

impl Bands {
    pub(super) fn new(shape: &Shape, limit: u64) -> Self {
        let bands = shape.bands();
        let passing = PASSING.min(limit / 16);
        let fits = bands.iter().find(|band| band.len <= limit - passing).copied();
        let twice = fits.is_some_and(|band| band.len <= limit / 3);
        let wide = bands.first().filter(|band| Some(**band) != fits).copied();
        let last = wide.map_or(0, |band| (shape.bytes().saturating_sub(1) % band.chunk_period) % band.period + 1);
        let for_others = match fits {
            Some(band) if twice => passing + 2 * band.len,
            Some(_) => limit,
            None => passing,
        };
        let keep = Keep { most: limit.saturating_sub(for_others), patience: wide.map_or(0, |band| band.len.saturating_mul(2)) };
        Bands { fits, twice, wide, last, keep }
    }
}

/// Where blocks are kept that are come back to.
#[derive(Debug, Clone, Default)]
pub(super) enum Way {
    /// In memory, those used last. So is all that is not read on and on.
    #[default]
    Memory,
    /// In memory, a part of them.
    Some(Keep),
    /// In a file.
    File(Arc<BandFile>),
}

impl Way {
    /// How to keep a block of which this part is needed: who comes to its beginning comes back for the rest. Those that were not kept then
    /// must not take the place of the next band's.
    pub(super) fn keep(&self, part: &Range<u32>) -> Option<Keep> {
        if let (Way::Some(keep), 0) = (self, part.start) { Some(*keep) } else { None }
    }
}

impl Data {
    /// Where blocks are kept, now that somebody reads on and on.
    pub(super) fn begin_way(&self, store: &dyn FrameStore, at: u64) -> Way {
        let (Some(band), Shape::Array(tiling)) = (&self.bands.wide, &self.shape) else { return Way::Memory };
        let mut way = self.way.lock();
        if matches!(&*way, Way::File(file) if !file.is_open()) {
            *way = Way::Memory;
        }
        let (number, end) = tiling.band_at(band, at);
        // What is left of the last band, while others read it too, is not worth another file.
        let is_over = end == tiling.bytes() && end - at < band.period / 2;
        // There may be room for a file now that another band begins.
        let is_another = self.tried.load(Relaxed) != number && self.blocks.files().is_some();
        let is_free = matches!(&*way, Way::Memory) || matches!(&*way, Way::Some(_)) && is_another;
        if is_free && !is_over {
            self.tried.store(number, Relaxed);
            let begun = self.blocks.files().and_then(|files| files.begin(tiling.slots(band), tiling.block_len(), band.len));
            *way = match begun {
                Some(file) => {
                    self.serve(&file, number);
                    Way::File(file)
                }
                None => {
                    self.tell(store, band);
                    Way::Some(self.bands.keep)
                }
            };
        }
        way.clone()
    }

    /// The log says once how often blocks are decoded.
    fn tell(&self, store: &dyn FrameStore, band: &Band) {
        if self.told.swap(true, Relaxed) {
            return;
        }
        // Rows that cross bands which fit do not count.
        let fits = self.bands.fits.map_or(0, |band| band.len);
        let rows =
            self.shape.bands().iter().filter(|band| band.len > fits).fold(1u64, |rows, band| rows.saturating_mul(band.rows));
        let again = 1.0 - self.bands.keep.most.min(band.len) as f64 / band.len.max(1) as f64;
        let times = 1.0 + again * rows.saturating_sub(1) as f64;
        info!(
            "{}: reading in order comes back to {} bytes of blocks again and again, and the cache has {}: each is decoded up to {times:.0} \
             times (--cache-size, --spill DIR)",
            plain(&store.path()),
            band.len,
            self.blocks.limit()
        );
    }

    fn serve(&self, file: &BandFile, band: u64) {
        file.serve(band);
        self.read_of_band.store(0, Relaxed);
    }

    /// A range is being read. Says where blocks are kept.
    pub(super) fn enter_range(&self, store: &dyn FrameStore, range: &Range<u64>) -> Way {
        let (Some(band), Shape::Array(tiling)) = (&self.bands.wide, &self.shape) else {
            self.at.store(range.start, Relaxed);
            return Way::Memory;
        };
        self.at.store(range.start, Relaxed);
        let before = self.end.swap(range.end, Relaxed);
        // Two reads that follow each other may have needed all blocks of a band already, before anybody is called a sequential reader.
        let follows = range.start > 0 && range.start == before;
        let way = if follows { self.begin_way(store, range.start) } else { self.way.lock().clone() };
        if let Way::File(file) = &way {
            let (now, served) = (tiling.band_at(band, range.start).0, file.band());
            // Reads come a little out of order.
            if now == served.saturating_add(1) || follows && now != served {
                self.serve(file, now);
            }
        }
        way
    }

    /// A range was read. Gives the file back when all was.
    pub(super) fn leave_range(&self, way: &Way, range: &Range<u64>) {
        let (Way::File(file), Shape::Array(tiling), Some(band)) = (way, &self.shape, &self.bands.wide) else { return };
        let len = range.end - range.start;
        let read = self.read_of_band.fetch_add(len, Relaxed) + len;
        let (last, _) = tiling.band_at(band, tiling.bytes());
        if file.band() != last || read < self.bands.last {
            return;
        }
        let mut way = self.way.lock();
        if let (Some(files), true) = (self.blocks.files(), matches!(&*way, Way::File(now) if Arc::ptr_eq(now, file))) {
            files.end(file);
            *way = Way::Memory;
        }
    }

    /// Nothing is kept any more.
    pub(in crate::view::decoded) fn end_way(&self) {
        let way = std::mem::take(&mut *self.way.lock());
        if let (Way::File(file), Some(files)) = (way, self.blocks.files()) {
            files.end(&file);
        }
    }

    // --- the file of a band ---

    fn place_in_file(&self, key: BlockKey) -> Option<BandSlot> {
        let (Shape::Array(tiling), Some(band)) = (&self.shape, &self.bands.wide) else { return None };
        (key.of == *self.state.lock()).then(|| tiling.place_in_band(band, key.chunk, key.start))
    }

    pub(super) fn is_spilled(&self, way: &Way, key: BlockKey) -> bool {
        let Way::File(file) = way else { return false };
        self.place_in_file(key).is_some_and(|place| file.has(place))
    }

    /// Has the file keep a block.
    pub(super) fn spill(&self, way: &Way, key: BlockKey, bytes: &[u8]) {
        let (Way::File(file), Some(place)) = (way, self.place_in_file(key)) else { return };
        match file.write(place, bytes) {
            Ok(false) => {}
            Ok(true) => drop(self.blocks.counts().spilled_bytes.fetch_add(bytes.len() as u64, Relaxed)),
            Err(error) => self.give_files_up(&error),
        }
    }

    /// A part of a block, from the file.
    pub(super) fn restore(&self, way: &Way, key: BlockKey, len: u32, part: &Range<u32>) -> Option<Arc<Block>> {
        let Way::File(file) = way else { return None };
        let place = self.place_in_file(key).filter(|place| file.has(*place))?;
        // With it the next rows, as far as there is room for those of all blocks.
        let share = (self.blocks.limit() / 4).checked_div(self.bands.wide.map_or(1, |band| band.blocks)).unwrap_or(0);
        let wanted = u64::from(part.end - part.start);
        let is_kept = share > wanted && share >= PIECE;
        let end = if is_kept { u64::from(part.start).saturating_add(share) } else { part.end.into() };
        let end = u32::try_from(end).unwrap_or(u32::MAX).min(len).max(part.end);
        let mut bytes = self.blocks.buffer((end - part.start) as usize);
        match file.read(place, part.start, &mut bytes) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                self.give_files_up(&error);
                return None;
            }
        }
        self.blocks.counts().restored_bytes.fetch_add(bytes.len() as u64, Relaxed);
        let block = Arc::new(Block::part(bytes, part.start));
        if is_kept {
            self.blocks.put_part(key, &block);
        }
        Some(block)
    }

    fn give_files_up(&self, error: &std::io::Error) {
        if let Some(files) = self.blocks.files() {
            files.fail(in_words(error));
        }
        *self.way.lock() = Way::Memory;
    }
}
