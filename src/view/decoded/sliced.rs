//! A slice of an array, read piece by piece: in bounded memory, and only from the blocks that hold a part of it.

use std::ops::Range;

use super::{Reader, item_type};
use crate::format::array::Array;
use crate::format::npy;
use crate::format::slice::{Along, Slice};
use crate::format::tiling::Tiling;
use crate::format::tiling::picked::Picked;
use crate::store::StoreError;
use crate::view::error::{Result, ViewError};

/// Bytes that are read at once.
const PIECE: u64 = 4 << 20;
/// Bytes of the blocks that they are in, which are in memory at the same time.
const BLOCKS: u64 = 32 << 20;
/// What a block counts at least, for what is noted of it.
const BLOCK: u64 = 2 << 10;

/// What a slice takes of an array. See [`Reader::slice`].
pub struct Sliced<'a> {
    reader: &'a Reader,
    array: Array,
    tiling: Tiling,
    slice: Slice,
    head: Vec<u8>,
}

impl Reader {
    /// What a slice takes of the array, in NumPy's words; `None` for all of it.
    ///
    /// # Errors
    /// A frame that is no array, or items that nobody can name; what no slice of it is.
    pub fn slice(&self, text: Option<&str>) -> Result<Sliced<'_>> {
        let wrong = |source| ViewError::Store(StoreError::Format { path: self.store.path(), source });
        let header = &self.image.header;
        let array = Array::find(header.metalayers()).transpose().map_err(wrong)?;
        let array = array.ok_or_else(|| {
            let reason = "is no array; expected one (b2nd or Caterva)".into();
            ViewError::Store(StoreError::Unsupported { path: self.store.path(), reason })
        })?;
        let typesize = header.typesize();
        let slice = match text {
            None => Slice::whole(&array.shape),
            Some(text) => Slice::parse(text, &array.shape).map_err(wrong)?,
        };
        let item = item_type(&array, None, typesize).map_err(wrong)?;
        let head = npy::header(&item, &slice.shape()).map_err(wrong)?;
        let tiling = Tiling::new(&array, typesize, header.chunksize()).map_err(wrong)?;
        Ok(Sliced { reader: self, array, tiling, slice, head })
    }
}

impl Sliced<'_> {
    /// What NumPy writes in front of the items.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Reads the items in order, and hands them over in pieces, as long as `take` wants more.
    ///
    /// # Errors
    /// As [`Reader::read_at`].
    pub fn read(&self, mut take: impl FnMut(&[u8]) -> bool) -> Result<()> {
        if self.slice.dims.iter().any(|along| along.count == 0) || self.tiling.bytes() == 0 {
            return Ok(());
        }
        let Reader { store, data, .. } = self.reader;
        let mut buf = Vec::new();
        let mut finish = |piece: Piece| -> Result<bool> {
            buf.resize(usize::try_from(piece.picked.bytes()).unwrap_or(0), 0);
            data.read_picked(store, &store.enter(), &piece.picked, &mut buf)?;
            turn(&piece.dims, self.reader.typesize() as usize, &mut buf);
            Ok(take(&buf))
        };
        let is_wide = self.is_wide();
        // One is decoded while the one before it is handed over.
        let mut next: Option<Piece> = None;
        let mut dims = self.slice.dims.clone();
        let more = self.pieces(0, &mut dims, &mut |piece| {
            let at = if is_wide { self.last(&piece.dims) } else { 0 };
            if is_wide && data.comes_to_band(at) {
                // Blocks of another band take the places of those that are still read.
                if let Some(before) = next.take()
                    && !finish(before)?
                {
                    return Ok(false);
                }
                data.begin_band(&**store, at);
            }
            data.expect_picked(store, &piece.picked);
            next.replace(piece).map_or(Ok(true), &mut finish)
        });
        let done = match (more, next) {
            (Ok(true), Some(last)) => finish(last).map(drop),
            (more, _) => more.map(drop),
        };
        data.end_way();
        done
    }

    /// Whether the slice comes back to more blocks than memory holds.
    fn is_wide(&self) -> bool {
        self.reader.data.is_wide_in(|band| {
            let one = |(n, along): (usize, &Along)| if n <= band.dim { part(along, 0..1) } else { *along };
            let dims: Vec<Along> = self.slice.dims.iter().enumerate().map(one).collect();
            Picked::new(&self.array, self.reader.typesize(), &self.tiling, &dims).blocks()
        })
    }

    /// Where in the array the last item of a piece is.
    fn last(&self, dims: &[Along]) -> u64 {
        let item = dims.iter().zip(&self.array.shape).fold(0u64, |item, (along, size)| {
            item.saturating_mul(*size).saturating_add(along.item(along.count.saturating_sub(1)))
        });
        item.saturating_mul(self.reader.typesize().into())
    }

    /// Takes what some dimensions have apart into pieces, in order; those before dimension `n` have one item each.
    fn pieces(&self, n: usize, dims: &mut [Along], visit: &mut impl FnMut(Piece) -> Result<bool>) -> Result<bool> {
        let picked = |dims: &[Along]| Picked::new(&self.array, self.reader.typesize(), &self.tiling, dims);
        let block = BLOCK.max(self.tiling.block_len().into());
        // Two of the largest blocks, as rows may begin in one and end in the next.
        let most = (BLOCKS / block).max(2);
        let fits = |picked: &Picked| picked.bytes() <= PIECE && picked.blocks() <= most;
        let all = picked(dims);
        let Some(along) = dims.get(n).copied().filter(|_| !fits(&all)) else {
            return visit(Piece { picked: all, dims: dims.to_vec() });
        };
        let mut at = 0;
        while at < along.count {
            let mut len = along.count - at;
            loop {
                set(dims, n, part(&along, at..at + len));
                let piece = picked(dims);
                if fits(&piece) {
                    if !visit(Piece { picked: piece, dims: dims.to_vec() })? {
                        return Ok(false);
                    }
                    break;
                }
                if len == 1 {
                    if !self.pieces(n + 1, dims, visit)? {
                        return Ok(false);
                    }
                    break;
                }
                len = len.div_ceil(2);
            }
            at += len;
        }
        set(dims, n, along);
        Ok(true)
    }
}

/// What is read at once.
struct Piece {
    picked: Picked,
    dims: Vec<Along>,
}

fn set(dims: &mut [Along], n: usize, along: Along) {
    if let Some(place) = dims.get_mut(n) {
        *place = along;
    }
}

/// Some of the items that are taken along a dimension.
fn part(along: &Along, numbers: Range<u64>) -> Along {
    Along { start: along.item(numbers.start), count: numbers.end - numbers.start, ..*along }
}

/// Turns items round along the dimensions that are taken from their end on.
fn turn(dims: &[Along], itemsize: usize, items: &mut [u8]) {
    let mut len = itemsize;
    for along in dims.iter().rev() {
        let row = len;
        len = len.saturating_mul(usize::try_from(along.count).unwrap_or(usize::MAX));
        if along.step < 0 && along.count > 1 {
            for rows in items.chunks_exact_mut(len) {
                let (mut left, mut rest) = (rows.chunks_exact_mut(row), along.count / 2);
                while rest > 0 {
                    rest -= 1;
                    if let (Some(first), Some(last)) = (left.next(), left.next_back()) {
                        first.swap_with_slice(last);
                    }
                }
            }
        }
    }
}
