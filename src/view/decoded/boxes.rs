//! All of an array, read box by box, where reading it in order would come back to more blocks than memory holds.
//!
//! A box is made of whole blocks, so that each is decoded once and none is kept. What a box has are rows that lie apart in the array:
//! this is for those who can write them to their places.

use super::Reader;
use super::data::Data;
use crate::format::array::Array;
use crate::format::slice::Along;
use crate::format::tiling::Tiling;
use crate::format::tiling::picked::Picked;

/// Bytes of a box, and of one whose rows would be shorter than [`ROW`].
const PIECE: u64 = 16 << 20;
const LARGE: u64 = 128 << 20;
/// Rows that are shorter cost more to write than blocks to keep.
const ROW: u64 = 1024;

/// See the module, and [`Reader::boxes`].
pub struct Boxes<'a> {
    reader: &'a Reader,
    array: Array,
    tiling: Tiling,
    /// Items of a box along each dimension.
    side: Vec<u64>,
}

/// A box of the array, with its items in C order.
pub struct BoxOfItems<'a> {
    head: u64,
    shape: &'a [u64],
    item: u64,
    dims: Vec<Along>,
    picked: Picked,
    is_zeros: bool,
    items: &'a [u8],
}

impl Reader {
    /// The array in boxes, if it is better read so than in order.
    pub fn boxes(&self) -> Option<Boxes<'_>> {
        let header = &self.image.header;
        let array = self.array().filter(|_| self.data.is_wide())?;
        let tiling = Tiling::new(&array, header.typesize(), header.chunksize()).ok()?;
        let item = u64::from(header.typesize()).max(1);
        let side = [PIECE, LARGE].map(|budget| side(&array, item, budget));
        let side = side.into_iter().find(|side| row(&array.shape, item, side.iter().copied()).0 >= ROW)?;
        Some(Boxes { reader: self, array, tiling, side })
    }
}

impl Boxes<'_> {
    /// What stands before the data.
    pub fn head(&self) -> &[u8] {
        self.reader.data.head()
    }

    /// Reads one box after the other, as long as `take` wants more.
    ///
    /// # Errors
    /// As [`Reader::read_at`], and what `take` answers.
    pub fn read<E: From<crate::view::ViewError>>(
        &self,
        mut take: impl FnMut(&BoxOfItems<'_>) -> std::result::Result<bool, E>,
    ) -> std::result::Result<(), E> {
        let Reader { store, data, .. } = self.reader;
        let item = u64::from(self.reader.typesize());
        let mut buf = Vec::new();
        let mut finish = |dims: Vec<Along>, picked: Picked| -> std::result::Result<bool, E> {
            let is_zeros = data.reads_as_zeros(&picked);
            if !is_zeros {
                buf.resize(usize::try_from(picked.bytes()).unwrap_or(0), 0);
                data.read_picked(store, &store.enter(), &picked, &mut buf)?;
            }
            let head = data.head().len() as u64;
            take(&BoxOfItems { head, shape: &self.array.shape, item, dims, picked, is_zeros, items: &buf })
        };
        // One is decoded while the one before it is written.
        let mut next: Option<(Vec<Along>, Picked)> = None;
        let mut at = Some(vec![0; self.side.len()]);
        while let Some(place) = at {
            let dims: Vec<Along> = (0..place.len()).map(|n| self.along(n, &place)).collect();
            at = self.behind(place, &dims);
            let picked = Picked::new(&self.array, self.reader.typesize(), &self.tiling, &dims);
            data.expect_picked(store, &picked);
            if let Some((dims, picked)) = next.replace((dims, picked))
                && !finish(dims, picked)?
            {
                return Ok(());
            }
        }
        if let Some((dims, picked)) = next {
            finish(dims, picked)?;
        }
        Ok(())
    }

    /// What the box at a place takes along a dimension: blocks begin anew with each chunk.
    fn along(&self, n: usize, place: &[u64]) -> Along {
        let of = |values: &[u64]| values.get(n).copied().unwrap_or(1);
        let (start, side) = (of(place), of(&self.side));
        let chunk = self.array.chunkshape.get(n).map_or(1, |chunk| u64::from(*chunk).max(1));
        // A whole dimension has all its chunks.
        let is_whole = side >= of(&self.array.shape);
        let len = if is_whole || side.is_multiple_of(chunk) { side } else { side.min(chunk - start % chunk) };
        Along { start, step: 1, count: len.min(of(&self.array.shape) - start), is_kept: true }
    }

    /// The place of the box behind one.
    fn behind(&self, mut place: Vec<u64>, dims: &[Along]) -> Option<Vec<u64>> {
        for ((at, along), size) in place.iter_mut().zip(dims).zip(&self.array.shape).rev() {
            *at += along.count;
            if *at < *size {
                return Some(place);
            }
            *at = 0;
        }
        None
    }
}

impl BoxOfItems<'_> {
    /// Bytes that it has.
    pub fn bytes(&self) -> u64 {
        self.picked.bytes()
    }

    /// Whether nothing is stored for it, and it reads as zeros.
    pub fn is_zeros(&self) -> bool {
        self.is_zeros
    }

    /// Visits its rows, with the offset of each in the file.
    ///
    /// # Errors
    /// What `visit` answers; then no more are visited.
    pub fn rows<E>(&self, mut visit: impl FnMut(u64, &[u8]) -> std::result::Result<(), E>) -> std::result::Result<(), E> {
        let (row, outer) = row(self.shape, self.item, self.dims.iter().map(|along| along.count));
        let mut strides = vec![self.item; self.shape.len()];
        for n in (1..strides.len()).rev() {
            let stride = strides.get(n).zip(self.shape.get(n)).map_or(0, |(stride, size)| stride * size);
            if let Some(before) = strides.get_mut(n - 1) {
                *before = stride;
            }
        }
        let first: u64 = self.dims.iter().zip(&strides).map(|(along, stride)| along.start * stride).sum();
        let mut at = vec![0; outer];
        for row in self.items.chunks_exact(usize::try_from(row).unwrap_or(usize::MAX).max(1)) {
            let offset: u64 = at.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
            visit(self.head + first + offset, row)?;
            for (at, along) in at.iter_mut().zip(&self.dims).rev() {
                *at += 1;
                if *at < along.count {
                    break;
                }
                *at = 0;
            }
        }
        Ok(())
    }
}

/// How many bytes follow each other in the array of a box with so many items along each dimension, and how many dimensions are before those.
fn row(shape: &[u64], item: u64, counts: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator) -> (u64, usize) {
    let (mut row, mut outer) = (item, counts.len());
    for (count, size) in counts.zip(shape).rev() {
        row = row.saturating_mul(count);
        outer -= 1;
        if count < *size {
            break;
        }
    }
    (row, outer)
}

/// Items of a box along each dimension: whole blocks, and the longest rows of so many bytes in all; or one block.
fn side(array: &Array, item: u64, budget: u64) -> Vec<u64> {
    let sizes = array.shape.iter().zip(&array.chunkshape).zip(&array.blockshape);
    let sizes: Vec<_> = sizes.map(|((size, chunk), block)| (*size, u64::from(*chunk).max(1), u64::from(*block).max(1))).collect();
    let mut side: Vec<u64> = sizes.iter().map(|(size, _, block)| *block.min(size)).collect();
    let mut bytes = side.iter().fold(item, |bytes, along| bytes.saturating_mul(*along));
    for (along, (size, chunk, block)) in side.iter_mut().zip(&sizes).rev() {
        let most = budget.checked_div(bytes.checked_div(*along).unwrap_or(bytes)).unwrap_or(0);
        let unit = if most >= *chunk { chunk } else { block };
        let len = if most >= *size { *size } else { most / unit * unit };
        let len = len.max(*along);
        bytes = (bytes / (*along).max(1)).saturating_mul(len);
        *along = len;
        if len < *size {
            break;
        }
    }
    side
}

impl Data {
    /// Whether items of the array read as zeros, with nothing stored for them.
    fn reads_as_zeros(&self, picked: &Picked) -> bool {
        picked.tiles(|tile| if self.is_zeros(tile.chunk) { Ok(()) } else { Err(()) }).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_have_whole_blocks_and_rows_as_long_as_can_be() {
        for (dims, budget, sides, length) in [
            (&[(256, 256, 256), (320_000, 32_000, 200)][..], PIECE, &[256, 8000][..], 64_000),
            (&[(4096, 4096, 4096), (10_000, 1, 1)], PIECE, &[4096, 512], 4096),
            (&[(100, 10, 5), (50, 50, 50), (1000, 1000, 100)], PIECE, &[40, 50, 1000], 16_000_000),
            // A block that is larger.
            (&[(5000, 5000, 5000), (5000, 5000, 1000)], PIECE, &[5000, 1000], 8000),
            (&[(1000, 1000, 1000), (1000, 1000, 1000), (1000, 1, 1)], LARGE, &[1000, 1000, 16], 128),
        ] {
            let array = Array::cut(dims);
            let side = side(&array, 8, budget);
            assert_eq!((&side[..], row(&array.shape, 8, side.iter().copied()).0), (sides, length));
        }
    }
}
