//! Items of an array that lie at equal steps along each dimension, as a slice takes them.

use super::super::array::Array;
use super::super::slice::Along;
use super::{Cut, DIMS, Position, Tile, Tiling, dims};

/// Items of an array, side by side in C order: in [`Tile`]s, of which each is what one block has of them.
#[derive(Debug, Clone)]
pub struct Picked {
    /// Of the array; but strides are of the items taken.
    tiling: Tiling,
    /// Along each of its dimensions: the first item, and how many.
    start: [u64; DIMS],
    count: [u64; DIMS],
    bytes: u64,
    blocks: u64,
}

/// Along one dimension: sizes of the array, of a chunk and of a block, and what is taken.
#[derive(Clone, Copy)]
struct Side {
    sizes: (u64, u64, u64),
    start: u64,
    step: u64,
    count: u64,
}

impl Side {
    fn is_whole(&self) -> bool {
        let (size, chunk, block) = self.sizes;
        size == chunk && chunk == block && self.start == 0 && self.step == 1 && self.count == size
    }

    /// Of `len` items behind each.
    fn times(&self, len: u64) -> Self {
        let (size, chunk, block) = self.sizes;
        let sizes = (size.saturating_mul(len), chunk.saturating_mul(len), block.saturating_mul(len));
        Side { sizes, start: self.start.saturating_mul(len), step: 1, count: self.count.saturating_mul(len) }
    }

    /// How many blocks have something of it, at most.
    fn blocks(&self) -> u64 {
        let (_, chunk, block) = self.sizes;
        let number = |at: u64| {
            let (chunks, inner) = (at.checked_div(chunk).unwrap_or(0), at.checked_rem(chunk).unwrap_or(0));
            chunks.saturating_mul(chunk.div_ceil(block.max(1))).saturating_add(inner.checked_div(block).unwrap_or(0))
        };
        let last = self.start.saturating_add(self.count.saturating_sub(1).saturating_mul(self.step));
        number(last).saturating_sub(number(self.start)).saturating_add(1).min(self.count)
    }
}

impl Picked {
    /// What is taken along each dimension of an array that is cut as `tiling` says. A negative step counts as the same items the other
    /// way round.
    pub fn new(array: &Array, itemsize: u32, tiling: &Tiling, taken: &[Along]) -> Self {
        let item = u64::from(itemsize);
        let sizes = array.shape.iter().zip(&array.chunkshape).zip(&array.blockshape);
        let mut sides: Vec<Side> = sizes
            .zip(taken)
            .map(|(((&size, &chunk), &block), along)| {
                let step = along.step.unsigned_abs().max(1);
                let before = along.count.saturating_sub(1).saturating_mul(step);
                let start = if along.step < 0 { along.start.saturating_sub(before) } else { along.start };
                // One item has no other to be a step from.
                let step = if along.count > 1 { step } else { 1 };
                Side { sizes: (size, chunk.into(), block.into()), start, step, count: along.count }
            })
            .collect();
        sides.push(Side { sizes: (item, item, item), start: 0, step: 1, count: item });
        // What is taken as a whole makes longer rows.
        while let [.., before, last] = sides.as_mut_slice()
            && before.step == 1
            && last.is_whole()
        {
            *before = before.times(last.count);
            sides.pop();
        }
        let sizes: Vec<_> = sides.iter().map(|side| side.sizes).collect();
        let (mut dims, _) = dims(&sizes);
        let (mut start, mut count, mut stride) = ([0; DIMS], [1; DIMS], 1u64);
        for ((n, side), dim) in sides.iter().enumerate().zip(&mut dims).rev() {
            (dim.stride, dim.item_step) = (stride, side.step);
            stride = stride.saturating_mul(side.count);
            if let (Some(start), Some(count)) = (start.get_mut(n), count.get_mut(n)) {
                (*start, *count) = (side.start, side.count);
            }
        }
        let blocks = sides.iter().fold(1, |blocks: u64, side| blocks.saturating_mul(side.blocks()));
        Picked { tiling: Tiling { dims, ..tiling.clone() }, start, count, bytes: stride, blocks }
    }

    /// Bytes of all the items.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many blocks have them, at most.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Visits the tiles. Their places are those in a buffer of all the items.
    ///
    /// # Errors
    /// What `visit` answers; then no more are visited.
    #[expect(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "all indexes are below DIMS; steps are above 0, and all places lie in the array"
    )]
    pub fn tiles<'a, E>(&'a self, mut visit: impl FnMut(&Tile<'a>) -> Result<(), E>) -> Result<(), E> {
        if self.bytes == 0 || self.tiling.len == 0 {
            return Ok(());
        }
        let dims = self.tiling.dims.as_slice();
        // What is left of a dimension, from a number on.
        let cut = |n: usize, number: u64| {
            let (dim, at) = (&dims[n], self.start[n] + number * dims[n].item_step);
            let last = self.start[n] + (self.count[n] - 1) * dim.item_step;
            let cut = Cut::of(dim, at, last + 1);
            Cut { count: cut.count.div_ceil(dim.item_step), ..cut }
        };
        let mut at = [0; DIMS];
        let mut cuts = [Cut::default(); DIMS];
        for (n, first) in cuts.iter_mut().enumerate().take(dims.len()) {
            *first = cut(n, 0);
        }
        loop {
            let mut tile =
                Tile { tiling: &self.tiling, chunk: Position(0), start: 0, from: [0; DIMS], count: [1; DIMS], offset: 0 };
            let mut block = 0;
            for (n, dim) in dims.iter().enumerate() {
                let cut = &cuts[n];
                tile.chunk.0 += cut.chunk * dim.chunk_step;
                block += cut.block * dim.block_step;
                (tile.from[n], tile.count[n]) = (cut.from as u32, cut.count as u32);
                tile.offset += at[n] * dim.stride;
            }
            tile.start = (block * u64::from(self.tiling.block_len)) as u32;
            visit(&tile)?;
            let mut n = dims.len();
            loop {
                if n == 0 {
                    return Ok(());
                }
                n -= 1;
                at[n] += cuts[n].count;
                if at[n] < self.count[n] {
                    cuts[n] = cut(n, at[n]);
                    break;
                }
                at[n] = 0;
                cuts[n] = cut(n, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::slice::Slice;
    use super::*;
    use proptest::prelude::*;

    fn array() -> impl Strategy<Value = Array> {
        let dim = (1u64..9, 1u32..6).prop_flat_map(|(size, chunk)| (Just(size), Just(chunk), 1..=chunk));
        prop::collection::vec(dim, 0..4).prop_map(|dims| Array::cut(&dims))
    }

    /// An array, the length of its items, and a slice of it.
    fn case() -> impl Strategy<Value = (Array, u32, Slice)> {
        (array(), 1u32..5, prop::collection::vec((0u64..9, -4i64..5, any::<bool>()), 4)).prop_map(|(array, item, ways)| {
            let dims = array.shape.iter().zip(ways).map(|(size, (start, step, whole))| match (step, whole) {
                (0, _) => format!("{}", start % size),
                (_, true) => ":".to_owned(),
                _ => format!("{start}::{step}"),
            });
            let text = dims.collect::<Vec<_>>().join(",");
            let slice = Slice::parse(if text.is_empty() { "()" } else { &text }, &array.shape).unwrap();
            (array, item, slice)
        })
    }

    /// Chunk, and place in it, of each byte, as the tiles of a whole array say; which have tests of their own.
    fn places(tiling: &Tiling) -> Vec<(u64, u64)> {
        let mut places = vec![(0, 0); tiling.bytes() as usize];
        tiling
            .tiles(0..tiling.bytes(), |tile| {
                tile.rows(|from, to, len| {
                    (0..len).for_each(|n| places[(to + n) as usize] = (tile.chunk.0, u64::from(tile.start) + from + n));
                });
                Ok::<_, ()>(())
            })
            .unwrap();
        places
    }

    proptest! {
        #[test]
        fn tiles_are_the_items_of_the_slice((array, item, slice) in case()) {
            let sizes = array.chunkshape.iter().zip(&array.blockshape);
            let chunk_len = sizes.map(|(chunk, block)| chunk.next_multiple_of(*block)).product::<u32>() * item;
            let tiling = Tiling::new(&array, item, chunk_len).unwrap();
            let places = places(&tiling);
            let mut firsts = vec![0u64];
            for (along, size) in slice.dims.iter().zip(&array.shape) {
                let mut numbers: Vec<u64> = (0..along.count).map(|number| along.item(number)).collect();
                numbers.sort_unstable();
                firsts = firsts.iter().flat_map(|first| numbers.iter().map(move |number| first * size + number)).collect();
            }
            let item = u64::from(item);
            let wanted: Vec<_> = firsts.iter().flat_map(|first| first * item..(first + 1) * item).map(|at| Some(places[at as usize])).collect();
            let picked = Picked::new(&array, item as u32, &tiling, &slice.dims);
            prop_assert_eq!(picked.bytes(), wanted.len() as u64);
            let (mut got, mut blocks) = (vec![None; wanted.len()], std::collections::HashSet::new());
            picked.tiles(|tile| {
                assert!(blocks.insert((tile.chunk, tile.start)), "a block comes twice");
                let mut sum = 0;
                tile.rows(|from, to, len| {
                    for n in 0..len {
                        let place = &mut got[(to + n) as usize];
                        assert!(place.is_none(), "a byte comes twice");
                        *place = Some((tile.chunk.0, u64::from(tile.start) + from + n));
                    }
                    sum += len;
                });
                assert_eq!(sum, tile.bytes());
                Ok::<_, ()>(())
            }).unwrap();
            prop_assert_eq!(got, wanted);
            prop_assert!(blocks.len() as u64 <= picked.blocks());
        }
    }
}
