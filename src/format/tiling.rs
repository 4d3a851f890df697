//! Which blocks of which chunks hold a range of an array's bytes, and where in them.
//!
//! An array's items stand in C order, one row after the other. Its chunks are boxes of the array, its blocks boxes of a chunk; both may
//! hang over an edge, where they are padded. A [`Tiling`] takes a range of the array's bytes apart into [`Tile`]s: the part of one block
//! that belongs to the range. Together, the tiles of a range are the range, each byte once; padding is in none of them.
//!
//! Lengths along the last dimension are in bytes here. Dimensions that chunks and blocks have whole are one with the dimension before.

use std::ops::Range;

use super::array::{Array, MAX_DIM};
use super::header::FrameHeader;
use super::{Error, Position, Result};

pub mod picked;

/// One more for the bytes of an item, where the array has no dimension.
const DIMS: usize = MAX_DIM as usize + 1;

/// Along one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dim {
    /// Items of the array, of a chunk and of a block.
    size: u64,
    chunk: u64,
    block: u64,
    /// Bytes from one item to the next, in the array and in a block.
    stride: u64,
    block_stride: u64,
    /// Chunks, and blocks of a chunk, from one to the next.
    chunk_step: u64,
    block_step: u64,
    /// Items of a block from one that is taken to the next.
    item_step: u64,
}

/// How an array is cut in chunks and blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tiling {
    dims: Vec<Dim>,
    len: u64,
    nchunks: u64,
    block_len: u32,
    chunk_len: u32,
}

/// The part of one block that belongs to a range of the array's bytes.
#[derive(Debug, Clone, Copy)]
pub struct Tile<'a> {
    tiling: &'a Tiling,
    /// The chunk.
    pub chunk: Position,
    /// Where in the decoded chunk the block begins.
    pub start: u32,
    /// Where in the block the part begins, along each dimension, and how many items it has.
    from: [u32; DIMS],
    count: [u32; DIMS],
    /// Where in the range its first byte is.
    offset: u64,
}

/// Bytes of an array of items of `itemsize` bytes.
///
/// # Errors
/// A shape of more bytes than can be counted.
pub fn len_of(array: &Array, itemsize: u32) -> Result<u64> {
    let len = array.items().and_then(|items| items.checked_mul(u64::from(itemsize)));
    len.filter(|len| i64::try_from(*len).is_ok()).ok_or_else(|| {
        let got = format_args!("{:?} items of {itemsize} bytes", array.shape);
        Error::new("array: shape", 0, got, format_args!("at most {} bytes", i64::MAX))
    })
}

impl Tiling {
    /// The array that a header describes, if it describes one, and how it is cut.
    ///
    /// # Errors
    /// A metalayer that does not parse; shapes that the frame's chunks do not have.
    pub fn of_frame(header: &FrameHeader) -> Result<Option<(Array, Self)>> {
        let Some(array) = Array::find(header.metalayers()).transpose()? else { return Ok(None) };
        let tiling = Tiling::new(&array, header.typesize(), header.chunksize())?;
        if header.nchunks().is_some_and(|there| there < tiling.nchunks) {
            let got = format_args!("{} bytes in chunks of {}", header.nbytes(), header.chunksize());
            return Err(Error::new("header: nbytes", 30, got, format_args!("{} chunks, as the array has", tiling.nchunks)));
        }
        Ok(Some((array, tiling)))
    }

    /// How an array of items of `itemsize` bytes is cut, whose chunks have `chunksize` bytes each.
    ///
    /// # Errors
    /// Shapes that no array can have, or whose chunks have another size.
    pub fn new(array: &Array, itemsize: u32, chunksize: u32) -> Result<Self> {
        let wrong = |field, got: &dyn std::fmt::Display, expected: &dyn std::fmt::Display| Error::new(field, 0, got, expected);
        let item = u64::from(itemsize);
        let len = len_of(array, itemsize)?;
        let empty = Tiling { dims: Vec::new(), len: 0, nchunks: 0, block_len: 0, chunk_len: 0 };
        if len == 0 {
            return Ok(empty);
        }
        let mut sizes = Vec::with_capacity(DIMS);
        for ((&size, &chunk), &block) in array.shape.iter().zip(&array.chunkshape).zip(&array.blockshape) {
            if block > chunk {
                return Err(wrong("array: blockshape", &block, &format_args!("at most {chunk}, which chunks have")));
            }
            sizes.push((size, u64::from(chunk), u64::from(block)));
        }
        match sizes.last_mut() {
            Some((size, chunk, block)) => {
                for along in [size, chunk, block] {
                    *along = along.saturating_mul(item);
                }
            }
            None => sizes.push((item, item, item)),
        }
        let whole = |sizes: &[(u64, u64, u64)], along: fn(&(u64, u64, u64)) -> u64| {
            sizes.iter().map(along).try_fold(1u64, u64::checked_mul)
        };
        let block_len = whole(&sizes, |size| size.2).and_then(|len| u32::try_from(len).ok());
        let padded = whole(&sizes, |size| size.1.next_multiple_of(size.2)).and_then(|len| u32::try_from(len).ok());
        let (Some(block_len), Some(chunk_len)) = (block_len, padded.filter(|len| *len == chunksize)) else {
            let got = format_args!("{:?} in blocks of {:?}, of items of {itemsize} bytes", array.chunkshape, array.blockshape);
            return Err(wrong("array: chunkshape", &got, &format_args!("chunks of {chunksize} bytes, as the frame has")));
        };
        // What is whole everywhere makes longer rows.
        while let [.., before, last] = sizes.as_mut_slice() {
            if last.0 != last.1 || last.1 != last.2 {
                break;
            }
            let times = last.0;
            for along in [&mut before.0, &mut before.1, &mut before.2] {
                *along = along.saturating_mul(times);
            }
            sizes.pop();
        }
        let (dims, nchunks) = dims(&sizes);
        Ok(Tiling { dims, len, nchunks, block_len, chunk_len })
    }

    /// `len` bytes that are cut in chunks of `chunksize` one after the other, and not in blocks.
    pub fn of_chunks(len: u64, chunksize: u32) -> Self {
        let chunk = u64::from(chunksize.max(1));
        let dim = Dim { size: len, chunk, block: chunk, stride: 1, block_stride: 1, chunk_step: 1, block_step: 1, item_step: 1 };
        let dims = if len == 0 { Vec::new() } else { vec![dim] };
        Tiling { dims, len, nchunks: len.div_ceil(chunk), block_len: chunksize, chunk_len: chunksize }
    }

    /// Bytes of the array.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// How many chunks there are.
    pub fn nchunks(&self) -> u64 {
        self.nchunks
    }

    /// Bytes of a block, padding included; 0 if there are none.
    pub fn block_len(&self) -> u32 {
        self.block_len
    }

    /// Bytes of a decoded chunk, padding included; 0 if there are none. The last one of chunks without blocks may be shorter.
    pub fn chunk_len(&self) -> u32 {
        self.chunk_len
    }

    /// The bands that somebody crosses who reads the array from beginning to end, the widest first: all blocks that hold the rows which
    /// one layer of blocks has in common. Each with its length in bytes, padding included, and how often each of its blocks is come back to.
    pub fn bands(&self) -> Vec<Band> {
        let mut bands = Vec::new();
        for (n, dim) in self.dims.iter().enumerate() {
            let Some(behind) = self.dims.get(n.saturating_add(1)..).filter(|behind| !behind.is_empty()) else { break };
            let rows = dim.block.min(dim.size);
            if rows > 1 {
                let before = self.dims.get(..n).unwrap_or_default().iter();
                let thick = before.map(|dim| dim.block).fold(dim.block, u64::saturating_mul);
                let len = behind.iter().fold(thick, |len, dim| {
                    let (whole, rest) =
                        (dim.size.checked_div(dim.chunk).unwrap_or(0), dim.size.checked_rem(dim.chunk).unwrap_or(0));
                    let blocks = whole.saturating_mul(dim.chunk.div_ceil(dim.block)).saturating_add(rest.div_ceil(dim.block));
                    len.saturating_mul(blocks.saturating_mul(dim.block))
                });
                let period = dim.stride.saturating_mul(rows);
                let blocks = len.checked_div(self.block_len.into()).unwrap_or(0);
                bands.push(Band { dim: n, len, blocks, rows, period, chunk_period: dim.stride.saturating_mul(dim.chunk) });
            }
        }
        bands
    }

    /// Which of the bands of that kind a place in the array lies in, counted in the array's order, and where reading leaves it, or comes
    /// to the next layer of it.
    pub fn band_at(&self, band: &Band, offset: u64) -> (u64, u64) {
        let (mut number, mut rest, mut begin, mut end) = (0u64, offset.min(self.len.saturating_sub(1)), 0u64, self.len);
        for dim in self.dims.iter().take(band.dim.saturating_add(1)) {
            let at = rest.checked_div(dim.stride).unwrap_or(0);
            rest = rest.checked_rem(dim.stride).unwrap_or(0);
            let (chunk, in_chunk) = (at.checked_div(dim.chunk).unwrap_or(0), at.checked_rem(dim.chunk).unwrap_or(0));
            let block = in_chunk.checked_div(dim.block).unwrap_or(0);
            number = dim.number(number, chunk, block);
            let behind = block.saturating_add(1).saturating_mul(dim.block).min(dim.chunk);
            let behind = chunk.saturating_mul(dim.chunk).saturating_add(behind).min(dim.size);
            end = begin.saturating_add(behind.saturating_mul(dim.stride));
            begin = begin.saturating_add(at.saturating_mul(dim.stride));
        }
        (number, end)
    }

    /// Which of the bands of that kind a block is in, counted as by [`Tiling::band_at`], and which of that band's blocks it is, from 0 on.
    pub fn place_in_band(&self, band: &Band, chunk: Position, start: u32) -> (u64, u64) {
        let (mut numbers, mut chunk) = ([0u64; 2], chunk.0);
        let mut block = u64::from(start).checked_div(self.block_len.into()).unwrap_or(0);
        for (n, dim) in self.dims.iter().enumerate() {
            let (at, inner) = (chunk.checked_div(dim.chunk_step).unwrap_or(0), block.checked_div(dim.block_step).unwrap_or(0));
            chunk = chunk.checked_rem(dim.chunk_step).unwrap_or(0);
            block = block.checked_rem(dim.block_step).unwrap_or(0);
            let [outer, slot] = &mut numbers;
            let number = if n <= band.dim { outer } else { slot };
            *number = dim.number(*number, at, inner);
        }
        (numbers[0], numbers[1])
    }

    /// How many blocks [`Tiling::place_in_band`] can tell apart in a band of that kind.
    pub fn slots(&self, band: &Band) -> u64 {
        let behind = self.dims.iter().skip(band.dim.saturating_add(1));
        behind.fold(1, |slots: u64, dim| slots.saturating_mul(dim.number(1, 0, 0)))
    }

    /// How many bytes of the array a block has, without padding.
    pub fn visible_in_block(&self, chunk: Position, start: u32) -> u64 {
        let (mut len, mut chunk) = (1u64, chunk.0);
        let mut block = u64::from(start).checked_div(self.block_len.into()).unwrap_or(0);
        for dim in &self.dims {
            let (at, inner) = (chunk.checked_div(dim.chunk_step).unwrap_or(0), block.checked_div(dim.block_step).unwrap_or(0));
            chunk = chunk.checked_rem(dim.chunk_step).unwrap_or(0);
            block = block.checked_rem(dim.block_step).unwrap_or(0);
            let in_chunk = dim.chunk.min(dim.size.saturating_sub(at.saturating_mul(dim.chunk)));
            len = len.saturating_mul(in_chunk.saturating_sub(inner.saturating_mul(dim.block)).min(dim.block));
        }
        len
    }

    /// Visits the tiles of a range, as far as the array reaches. Those of one row of blocks come together.
    ///
    /// # Errors
    /// What `visit` answers; then no more are visited.
    pub fn tiles<'a, E>(
        &'a self,
        range: Range<u64>,
        mut visit: impl FnMut(&Tile<'a>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let range = range.start.min(self.len)..range.end.min(self.len);
        if range.is_empty() {
            return Ok(());
        }
        let mut place = Boxed { from: [0; DIMS], count: [1; DIMS] };
        self.boxes(0, range.clone(), &mut place, &mut |place| self.tiles_of_box(place, range.start, &mut visit))
    }

    /// Takes a range of what lies within a place, from dimension `n` on, apart into boxes, in order.
    fn boxes<E>(
        &self,
        n: usize,
        range: Range<u64>,
        place: &mut Boxed,
        visit: &mut impl FnMut(&Boxed) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let Some(dim) = self.dims.get(n) else { return Ok(()) };
        let stride = dim.stride.max(1);
        let split = |at: u64| (at.checked_div(stride).unwrap_or(0), at.checked_rem(stride).unwrap_or(0));
        let ((mut first, skip), (last, rest)) = (split(range.start), split(range.end));
        if first == last {
            place.set(n, first, 1);
            return self.boxes(n.saturating_add(1), skip..rest, place, visit);
        }
        if skip > 0 {
            place.set(n, first, 1);
            self.boxes(n.saturating_add(1), skip..stride, place, visit)?;
            first = first.saturating_add(1);
        }
        if first < last {
            place.set(n, first, last.saturating_sub(first));
            for (m, dim) in self.dims.iter().enumerate().skip(n.saturating_add(1)) {
                place.set(m, 0, dim.size);
            }
            visit(place)?;
        }
        if rest > 0 {
            place.set(n, last, 1);
            self.boxes(n.saturating_add(1), 0..rest, place, visit)?;
        }
        Ok(())
    }

    /// Visits the tiles of a box. `begin` is where the range begins in the array.
    #[expect(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "all indexes are below DIMS; all places lie in the array"
    )]
    fn tiles_of_box<'a, E>(
        &'a self,
        place: &Boxed,
        begin: u64,
        visit: &mut impl FnMut(&Tile<'a>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let dims = self.dims.as_slice();
        let mut at = place.from;
        let mut cuts = [Cut::default(); DIMS];
        for (n, dim) in dims.iter().enumerate() {
            cuts[n] = Cut::of(dim, at[n], place.from[n] + place.count[n]);
        }
        loop {
            let mut tile = Tile { tiling: self, chunk: Position(0), start: 0, from: [0; DIMS], count: [1; DIMS], offset: 0 };
            let (mut block, mut offset) = (0, 0);
            for (n, dim) in dims.iter().enumerate() {
                let cut = &cuts[n];
                tile.chunk.0 += cut.chunk * dim.chunk_step;
                block += cut.block * dim.block_step;
                (tile.from[n], tile.count[n]) = (cut.from as u32, cut.count as u32);
                offset += at[n] * dim.stride;
            }
            tile.start = (block * u64::from(self.block_len)) as u32;
            tile.offset = offset - begin;
            visit(&tile)?;
            let mut n = dims.len();
            loop {
                if n == 0 {
                    return Ok(());
                }
                n -= 1;
                let end = place.from[n] + place.count[n];
                at[n] += cuts[n].count;
                if at[n] < end {
                    cuts[n] = Cut::of(&dims[n], at[n], end);
                    break;
                }
                at[n] = place.from[n];
                cuts[n] = Cut::of(&dims[n], at[n], end);
            }
        }
    }

    /// The first place in the array, not before an offset, of a chunk that `is_wanted` says. Rows that cross the same chunks are looked at
    /// once, so that each chunk is asked for as often as there are dimensions, at most.
    pub fn find(&self, offset: u64, mut is_wanted: impl FnMut(Position) -> bool) -> Option<u64> {
        if offset >= self.len { None } else { self.find_in(0, 0, offset, &mut is_wanted) }
    }

    /// The same from dimension `n` on, within one row of those before; `chunk` is the number of that row's first chunk.
    fn find_in(&self, n: usize, chunk: u64, offset: u64, is_wanted: &mut impl FnMut(Position) -> bool) -> Option<u64> {
        let Some(dim) = self.dims.get(n) else { return is_wanted(Position(chunk)).then_some(offset) };
        let (mut at, mut rest) = (offset.checked_div(dim.stride)?, offset.checked_rem(dim.stride)?);
        while at < dim.size {
            let along = at.checked_div(dim.chunk)?;
            let chunk = chunk.saturating_add(along.saturating_mul(dim.chunk_step));
            let place = |at: u64, found: u64| at.saturating_mul(dim.stride).saturating_add(found);
            if let Some(found) = self.find_in(n.saturating_add(1), chunk, rest, is_wanted) {
                return Some(place(at, found));
            }
            // What this row has before the offset, the next row of the same chunks may have behind it.
            let next = at.saturating_add(1);
            let end = along.saturating_add(1).saturating_mul(dim.chunk).min(dim.size);
            if rest > 0
                && next < end
                && let Some(found) = self.find_in(n.saturating_add(1), chunk, 0, is_wanted)
            {
                return Some(place(next, found));
            }
            (at, rest) = (end, 0);
        }
        None
    }

    /// From a place in the array on: the chunk that has it, and how many bytes in a row it has.
    #[cfg(test)]
    pub(crate) fn run_at(&self, offset: u64) -> Option<(Position, u64)> {
        if offset >= self.len {
            return None;
        }
        let (mut chunk, mut rest, mut run) = (0u64, offset, 0);
        for dim in &self.dims {
            let at = rest.checked_div(dim.stride)?;
            rest = rest.checked_rem(dim.stride)?;
            chunk = chunk.saturating_add(at.checked_div(dim.chunk)?.saturating_mul(dim.chunk_step));
            let end = at.checked_div(dim.chunk)?.saturating_add(1).saturating_mul(dim.chunk).min(dim.size);
            run = end.saturating_sub(at);
        }
        Some((Position(chunk), run))
    }

    /// How many bytes of the array a chunk has, without padding.
    pub fn visible(&self, chunk: Position) -> u64 {
        let mut rest = chunk.0;
        let mut len = 1u64;
        for dim in &self.dims {
            let at = rest.checked_div(dim.chunk_step).unwrap_or(0);
            rest = rest.checked_rem(dim.chunk_step).unwrap_or(0);
            len = len.saturating_mul(dim.size.saturating_sub(at.saturating_mul(dim.chunk)).min(dim.chunk));
        }
        len
    }
}

/// The dimensions of an array, of its chunks and of its blocks by their sizes; and how many chunks there are.
fn dims(sizes: &[(u64, u64, u64)]) -> (Vec<Dim>, u64) {
    let (mut stride, mut block_stride, mut chunk_step, mut block_step) = (1u64, 1u64, 1u64, 1u64);
    let mut dims = Vec::with_capacity(sizes.len());
    for &(size, chunk, block) in sizes.iter().rev() {
        dims.push(Dim { size, chunk, block, stride, block_stride, chunk_step, block_step, item_step: 1 });
        stride = stride.saturating_mul(size);
        block_stride = block_stride.saturating_mul(block);
        chunk_step = chunk_step.saturating_mul(size.div_ceil(chunk));
        block_step = block_step.saturating_mul(chunk.div_ceil(block));
    }
    dims.reverse();
    (dims, chunk_step)
}

/// See [`Tiling::bands`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Band {
    /// Along which dimension the next such band follows.
    pub dim: usize,
    /// Its bytes, padding of its blocks included.
    pub len: u64,
    /// How many blocks it has at most.
    pub blocks: u64,
    /// How many rows its blocks have.
    pub rows: u64,
    /// How many bytes of the array are read from one such band to the next one.
    pub period: u64,
    /// After how many bytes of the array another row of chunks begins, with a band of its own.
    pub chunk_period: u64,
}

/// A box of the array: where it begins along each dimension, and how many items it has.
struct Boxed {
    from: [u64; DIMS],
    count: [u64; DIMS],
}

impl Dim {
    /// A number for the block of a chunk along this dimension, behind the number along those before it.
    fn number(&self, before: u64, chunk: u64, block: u64) -> u64 {
        // Not beyond the chunks of a size that is no multiple of theirs: some numbers stand for nothing.
        let blocks = self.chunk.div_ceil(self.block);
        let count = self.size.div_ceil(self.chunk).saturating_mul(blocks);
        before.saturating_mul(count).saturating_add(chunk.saturating_mul(blocks)).saturating_add(block)
    }
}

impl Boxed {
    fn set(&mut self, n: usize, from: u64, count: u64) {
        if let (Some(place), Some(len)) = (self.from.get_mut(n), self.count.get_mut(n)) {
            (*place, *len) = (from, count);
        }
    }
}

/// The part of a row that one block has: along one dimension.
#[derive(Clone, Copy, Default)]
struct Cut {
    chunk: u64,
    /// In the chunk.
    block: u64,
    /// In the block.
    from: u64,
    count: u64,
}

impl Cut {
    /// From `at` on, and not beyond `end`.
    #[expect(clippy::arithmetic_side_effects, reason = "chunk and block are above 0, and at lies before end in the array")]
    fn of(dim: &Dim, at: u64, end: u64) -> Self {
        let (chunk, in_chunk) = (at / dim.chunk, at % dim.chunk);
        let (block, from) = (in_chunk / dim.block, in_chunk % dim.block);
        let count = (dim.block - from).min(dim.chunk - in_chunk).min(end - at);
        Cut { chunk, block, from, count }
    }
}

impl Tile<'_> {
    /// Bytes that it has.
    pub fn bytes(&self) -> u64 {
        self.count.iter().fold(1, |len, count| len.saturating_mul(u64::from(*count)))
    }

    /// Where it lies in the block, if that is one piece: nothing is between its bytes, neither there nor in the range.
    pub fn piece(&self) -> Option<(Range<u32>, u64)> {
        let dims = self.tiling.dims.len();
        let rows = self.count.get(..dims.saturating_sub(1)).unwrap_or_default();
        if rows.iter().any(|count| *count > 1) {
            return None;
        }
        let from = self
            .from
            .iter()
            .zip(&self.tiling.dims)
            .fold(0u64, |at, (from, dim)| at.saturating_add(u64::from(*from).saturating_mul(dim.block_stride)));
        let range = u32::try_from(from).ok()?..u32::try_from(from.saturating_add(self.bytes())).ok()?;
        Some((range, self.offset))
    }

    /// Visits its rows: where each begins in the block, where in the range, and how many bytes it has.
    #[expect(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "all indexes are below DIMS; all places lie in the array"
    )]
    fn rows(&self, mut visit: impl FnMut(u64, u64, u64)) {
        let dims = self.tiling.dims.as_slice();
        let last = dims.len() - 1;
        let mut at = [0u64; DIMS];
        let mut from: u64 = (0..=last).map(|n| u64::from(self.from[n]) * dims[n].block_stride).sum();
        let mut to = self.offset;
        loop {
            visit(from, to, self.count[last].into());
            let mut n = last;
            loop {
                if n == 0 {
                    return;
                }
                n -= 1;
                at[n] += 1;
                from += dims[n].block_stride * dims[n].item_step;
                to += dims[n].stride;
                if at[n] < u64::from(self.count[n]) {
                    break;
                }
                from -= at[n] * dims[n].block_stride * dims[n].item_step;
                to -= at[n] * dims[n].stride;
                at[n] = 0;
            }
        }
    }

    /// From its first byte in the block to behind its last one.
    pub fn span(&self) -> Range<u32> {
        let dims = self.from.iter().zip(&self.count).zip(&self.tiling.dims);
        let place = |n: u64, dim: &Dim| n.saturating_mul(dim.block_stride);
        let (first, last) = dims.fold((0u64, 0u64), |(first, last), ((from, count), dim)| {
            let from = u64::from(*from);
            let further = u64::from(*count).saturating_sub(1).saturating_mul(dim.item_step);
            (first.saturating_add(place(from, dim)), last.saturating_add(place(from.saturating_add(further), dim)))
        });
        let cut = |at: u64| u32::try_from(at).unwrap_or(u32::MAX);
        cut(first)..cut(last.saturating_add(1))
    }

    /// Copies it from the decoded block to `out`, which is the range. What does not fit is left as it is.
    pub fn copy(&self, block: &[u8], out: &mut [u8]) {
        self.copy_from_part(block, 0, out);
    }

    /// The same, from what the block has from a place on.
    pub fn copy_from_part(&self, block: &[u8], begin: u32, out: &mut [u8]) {
        self.rows(|from, to, len| {
            let Some(from) = from.checked_sub(begin.into()) else { return };
            let (from, to, len) = (from as usize, to as usize, len as usize);
            let piece = block.get(from..from.saturating_add(len));
            if let (Some(piece), Some(into)) = (piece, out.get_mut(to..to.saturating_add(len))) {
                into.copy_from_slice(piece);
            }
        });
    }

    /// Fills it in `out` with a value that the whole chunk repeats from its beginning on.
    pub fn fill(&self, value: &[u8], out: &mut [u8]) {
        self.rows(|from, to, len| {
            if let Some(into) = out.get_mut(to as usize..(to.saturating_add(len)) as usize) {
                super::chunk::fill_run(value, (from as usize).saturating_add(self.start as usize), into);
            }
        });
    }
}

#[cfg(test)]
mod tests;
