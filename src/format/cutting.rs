//! The way of an array's items from a file, where they stand in C or Fortran order, to the chunks of a frame.
//!
//! A chunk is a box of the array; what of it lies in the array is read run by run, and put where it belongs in the chunk's blocks, which
//! are boxes of the chunk, one after the other. What hangs over an edge is zeros. [`super::tiling`] goes the other way.

use super::array::{Array, MAX_DIM};
use super::{Error, Position, Result};

const DIMS: usize = MAX_DIM as usize;
/// Runs that begin no further apart than this, in bytes, are read together with what lies between them.
const NEAR: u64 = 4096;
/// Bytes of runs that are read together, at most.
const TOGETHER: u64 = 1 << 20;

/// Along one dimension: items of the array, of a chunk and of a block; bytes from one item to the next in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dim {
    size: u64,
    chunk: u64,
    block: u64,
    stride: u64,
}

/// How an array in a file is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cutting {
    dims: Vec<Dim>,
    item: usize,
    fortran: bool,
    nchunks: u64,
    chunk_len: usize,
    block_len: usize,
}

/// A box: where it begins along each dimension, and how many items it has.
#[derive(Clone, Copy)]
struct Boxed {
    from: [u64; DIMS],
    count: [u64; DIMS],
}

impl Cutting {
    /// How an array of items of `itemsize` bytes is cut that a file has in C order, or with the first dimension varying fastest.
    ///
    /// # Errors
    /// Arrays of more than 2⁶³ bytes, chunks that no frame can have, blocks larger than chunks, shapes of different lengths.
    pub fn new(array: &Array, itemsize: u32, fortran: bool) -> Result<Self> {
        let wrong = |field, expected: &dyn std::fmt::Display| {
            let Array { shape, chunkshape, blockshape, .. } = array;
            let got =
                format_args!("{shape:?} in chunks of {chunkshape:?} and blocks of {blockshape:?}, of items of {itemsize} bytes");
            Err(Error::new(field, 0, got, expected))
        };
        let ndim = array.shape.len();
        if ndim > DIMS {
            return Err(Error::new("array: shape", 0, format_args!("{ndim} dimensions"), format_args!("at most {DIMS}")));
        }
        if array.chunkshape.len() != ndim || array.blockshape.len() != ndim {
            return wrong("array: shape", &"three shapes of as many dimensions");
        }
        let item = u64::from(itemsize.max(1));
        let sizes = array.shape.iter().zip(&array.chunkshape).zip(&array.blockshape);
        let mut dims: Vec<Dim> =
            sizes.map(|((&size, &chunk), &block)| Dim { size, chunk: chunk.into(), block: block.into(), stride: 0 }).collect();
        if dims.iter().any(|dim| dim.block > dim.chunk || (dim.size > 0 && dim.block == 0)) {
            return wrong("array: blockshape", &"at least 1, and no more than chunks have");
        }
        let bytes = |along: fn(&Dim) -> u64| dims.iter().map(along).try_fold(item, u64::checked_mul);
        let len = bytes(|dim| dim.size).filter(|len| i64::try_from(*len).is_ok());
        let chunk_len = bytes(|dim| dim.chunk.next_multiple_of(dim.block.max(1))).and_then(|len| i32::try_from(len).ok());
        let (Some(_), Some(chunk_len)) = (len, chunk_len) else {
            return wrong("array: chunkshape", &format_args!("at most {} bytes, in chunks of {}", i64::MAX, i32::MAX));
        };
        let block_len = bytes(|dim| dim.block).and_then(|len| usize::try_from(len).ok()).unwrap_or(0);
        let mut stride = item;
        let mut set = |dim: &mut Dim| {
            dim.stride = stride;
            stride = stride.saturating_mul(dim.size);
        };
        if fortran {
            dims.iter_mut().for_each(&mut set)
        } else {
            dims.iter_mut().rev().for_each(&mut set)
        }
        let nchunks = array.nchunks().unwrap_or(u64::MAX);
        Ok(Cutting { dims, item: item as usize, fortran, nchunks, chunk_len: chunk_len as usize, block_len })
    }

    /// How many chunks there are.
    pub fn nchunks(&self) -> u64 {
        self.nchunks
    }

    /// Bytes of a chunk, padding included.
    pub fn chunk_len(&self) -> usize {
        self.chunk_len
    }

    /// Bytes of a block, padding included.
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// Bytes of the array that a chunk has, padding not included; 0 behind the last one.
    pub fn visible(&self, chunk: Position) -> u64 {
        self.place(chunk).map_or(0, |place| self.bytes(&place))
    }

    /// Makes `out` hold a chunk, its blocks one after the other. `read` fills a buffer from a place in the items of the file; `rows` is
    /// room to work in.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn fill<E>(
        &self,
        chunk: Position,
        mut read: impl FnMut(u64, &mut [u8]) -> std::result::Result<(), E>,
        rows: &mut Rows,
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), E> {
        let Some(place) = self.place(chunk) else {
            out.clear();
            return Ok(());
        };
        let len = usize::try_from(self.bytes(&place)).unwrap_or(usize::MAX).min(self.chunk_len);
        if len < self.chunk_len {
            out.clear();
        }
        out.resize(self.chunk_len, 0);
        if self.is_in_order(&place) {
            return self.read_box(&place, &mut read, &mut rows.together, out.get_mut(..len).unwrap_or_default());
        }
        if rows.apart.len() < len {
            rows.apart.resize(len, 0);
        }
        let apart = rows.apart.get_mut(..len).unwrap_or_default();
        self.read_box(&place, &mut read, &mut rows.together, apart)?;
        self.arrange(&place, apart, out);
        Ok(())
    }

    /// The part of a chunk that lies in the array.
    fn place(&self, chunk: Position) -> Option<Boxed> {
        let (mut rest, mut place) = (chunk.0, Boxed { from: [0; DIMS], count: [1; DIMS] });
        let sides = place.from.iter_mut().zip(&mut place.count);
        let mut sides: Vec<_> = sides.take(self.dims.len()).collect();
        for (dim, (from, count)) in self.dims.iter().zip(&mut sides).rev() {
            let along = dim.size.div_ceil(dim.chunk.max(1));
            **from = rest.checked_rem(along)?.saturating_mul(dim.chunk);
            **count = dim.size.saturating_sub(**from).min(dim.chunk);
            rest = rest.checked_div(along)?;
        }
        (rest == 0).then_some(place)
    }

    fn bytes(&self, place: &Boxed) -> u64 {
        place.count.iter().fold(self.item as u64, |bytes, count| bytes.saturating_mul(*count))
    }

    /// Whether the items of a box, in C order, are in the order of the chunk, with padding behind them only.
    fn is_in_order(&self, place: &Boxed) -> bool {
        if self.fortran && self.dims.len() > 1 {
            return false;
        }
        // From the last dimension on, blocks are whole; then comes one that they cut; in all before, they have one item.
        let mut dims =
            self.dims.iter().zip(place.count).rev().skip_while(|(dim, count)| *count == dim.chunk && dim.chunk == dim.block);
        let Some((dim, count)) = dims.next() else { return true };
        let mut before = dims.peekable();
        let is_last = before.clone().all(|(dim, _)| dim.chunk == 1);
        // Behind what the array does not fill, there is padding.
        let mut is_whole = true;
        (is_last || (count == dim.chunk && dim.chunk.checked_rem(dim.block) == Some(0)))
            && before.all(|(dim, count)| {
                let follows = dim.block == 1 && (is_whole || dim.chunk == 1);
                is_whole &= count == dim.chunk;
                follows
            })
    }

    /// Reads a box as it stands in the file, its runs one after the other.
    #[expect(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "places in the array, which has less than 2^63 bytes"
    )]
    fn read_box<E>(
        &self,
        place: &Boxed,
        read: &mut impl FnMut(u64, &mut [u8]) -> std::result::Result<(), E>,
        together: &mut Vec<u8>,
        out: &mut [u8],
    ) -> std::result::Result<(), E> {
        // From the slowest dimension to the fastest.
        let mut order: Vec<(Dim, u64)> = self.dims.iter().copied().zip(place.count).collect();
        let mut offset: u64 = self.dims.iter().zip(place.from).map(|(dim, from)| dim.stride * from).sum();
        if self.fortran {
            order.reverse();
        }
        let mut run = self.item as u64;
        while let Some((dim, count)) = order.pop() {
            run *= count;
            if count < dim.size {
                break;
            }
        }
        // Runs that lie near to each other.
        let (mut near, mut step) = (1, 0);
        if let Some((dim, count)) = order.last().copied()
            && dim.stride <= NEAR
        {
            (near, step) = (count, dim.stride);
            order.pop();
        }
        let at_once = (TOGETHER / step.max(1)).max(1);
        let mut at = vec![0; order.len()];
        let mut pieces = out.chunks_exact_mut((run * near) as usize);
        loop {
            let Some(piece) = pieces.next() else { return Ok(()) };
            if near == 1 {
                read(offset, piece)?;
            }
            for (n, runs) in piece.chunks_mut((run * at_once) as usize).enumerate().filter(|_| near > 1) {
                let count = runs.len() as u64 / run;
                let span = (step * (count - 1) + run) as usize;
                if together.len() < span {
                    together.resize(span, 0);
                }
                read(offset + n as u64 * at_once * step, &mut together[..span])?;
                for (to, from) in runs.chunks_exact_mut(run as usize).zip(together.chunks(step as usize)) {
                    to.copy_from_slice(&from[..run as usize]);
                }
            }
            // The next one.
            let mut n = order.len();
            loop {
                if n == 0 {
                    return Ok(());
                }
                n -= 1;
                let (dim, count) = order[n];
                at[n] += 1;
                offset += dim.stride;
                if at[n] < count {
                    break;
                }
                offset -= dim.stride * count;
                at[n] = 0;
            }
        }
    }

    /// Puts a box's items, as they stand in the file, to their blocks.
    #[expect(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "places in a chunk, which has less than 2^31 bytes"
    )]
    fn arrange(&self, place: &Boxed, apart: &[u8], out: &mut [u8]) {
        let ndim = self.dims.len();
        let (item, mut strides) = (self.item, [0; DIMS]);
        let mut stride = item;
        for n in 0..ndim {
            let n = if self.fortran { n } else { ndim - 1 - n };
            strides[n] = stride;
            stride *= place.count[n] as usize;
        }
        let mut origin = [0_u64; DIMS];
        for block in out.chunks_exact_mut(self.block_len) {
            let mut count = [0; DIMS];
            for n in 0..ndim {
                count[n] = place.count[n].saturating_sub(origin[n]).min(self.dims[n].block) as usize;
            }
            if count[..ndim].iter().all(|count| *count > 0) {
                let from = (0..ndim).map(|n| origin[n] as usize * strides[n]).sum::<usize>();
                self.arrange_block(&count[..ndim], &strides, &apart[from..], block);
            }
            for n in (0..ndim).rev() {
                origin[n] += self.dims[n].block;
                if origin[n] < self.dims[n].chunk {
                    break;
                }
                origin[n] = 0;
            }
        }
    }

    /// Puts `count` items along each dimension, `strides` apart, to the beginning of a block.
    #[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "as in arrange")]
    fn arrange_block(&self, count: &[usize], strides: &[usize; DIMS], apart: &[u8], block: &mut [u8]) {
        let item = self.item;
        let mut row_len = item;
        let mut outer = count.len();
        let mut block_stride = item;
        // What is a row in both.
        while outer > 0 && strides[outer - 1] == row_len && block_stride == row_len {
            outer -= 1;
            row_len *= count[outer];
            block_stride *= self.dims[outer].block as usize;
        }
        let mut block_strides = [0; DIMS];
        for n in (0..outer).rev() {
            block_strides[n] = block_stride;
            block_stride *= self.dims[n].block as usize;
        }
        // The last dimension that is left in a loop of its own.
        let (inner, from_step, to_step) = match outer.checked_sub(1) {
            Some(last) => (count[last], strides[last], block_strides[last]),
            None => (1, row_len, row_len),
        };
        let outer = outer.saturating_sub(1);
        let (mut at, mut from, mut to) = ([0; DIMS], 0, 0);
        loop {
            let (apart, block) = (&apart[from..], &mut block[to..]);
            match row_len {
                1 => copy_items::<1>(inner, apart, from_step, block, to_step),
                2 => copy_items::<2>(inner, apart, from_step, block, to_step),
                4 => copy_items::<4>(inner, apart, from_step, block, to_step),
                8 => copy_items::<8>(inner, apart, from_step, block, to_step),
                16 => copy_items::<16>(inner, apart, from_step, block, to_step),
                _ => {
                    for i in 0..inner {
                        block[i * to_step..][..row_len].copy_from_slice(&apart[i * from_step..][..row_len]);
                    }
                }
            }
            let mut n = outer;
            loop {
                if n == 0 {
                    return;
                }
                n -= 1;
                at[n] += 1;
                (from, to) = (from + strides[n], to + block_strides[n]);
                if at[n] < count[n] {
                    break;
                }
                (from, to) = (from - strides[n] * count[n], to - block_strides[n] * count[n]);
                at[n] = 0;
            }
        }
    }
}

/// Copies items of `N` bytes that are `from_step` bytes apart, to be `to_step` apart.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "as in arrange")]
fn copy_items<const N: usize>(count: usize, from: &[u8], from_step: usize, to: &mut [u8], to_step: usize) {
    for i in 0..count {
        to[i * to_step..][..N].copy_from_slice(&from[i * from_step..][..N]);
    }
}

/// Room for [`Cutting::fill`] to work in.
#[derive(Debug, Default)]
pub struct Rows {
    /// A box as it stands in the file.
    apart: Vec<u8>,
    /// Runs with what lies between them.
    together: Vec<u8>,
}

#[cfg(test)]
mod tests;
