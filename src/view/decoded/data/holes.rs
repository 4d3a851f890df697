//! Parts of the data that read as zeros and for which nothing is stored.

use super::Data;
use crate::format::{IndexEntry, Position, Special};
use crate::view::Seek;
use crate::view::error::{Result, ViewError};

/// Holes that are shorter are no holes: who looks for one has to go from one to the next.
const SHORTEST_HOLE: u64 = 4096;
/// Chunks that are looked at for the beginning of a hole, at least; behind them, all counts as data.
const MOST_CHUNKS: usize = 1 << 20;

impl Data {
    /// Where data, or a hole, begins that is not before an offset: a hole is a part that reads as zeros.
    ///
    /// # Errors
    /// ENXIO if there is none.
    pub fn seek(&self, offset: u64, seek: Seek) -> Result<u64> {
        let (len, head) = (self.bytes(), self.head.len() as u64);
        if offset >= len {
            return Err(ViewError::System(libc::ENXIO));
        }
        let at = offset.saturating_sub(head);
        match seek {
            Seek::Data if offset < head || self.zeros == 0 => Ok(offset),
            Seek::Data => {
                let mut looked = 0;
                match self.data_from(at, &mut looked) {
                    Some(data) if data - at < SHORTEST_HOLE => Ok(offset),
                    Some(data) => Ok(head + data),
                    None => Err(ViewError::System(libc::ENXIO)),
                }
            }
            Seek::Hole if self.zeros == 0 => Ok(len),
            Seek::Hole => Ok(head + self.hole_from(at)),
        }
    }

    /// Where the next hole begins; the end if there is none.
    fn hole_from(&self, mut at: u64) -> u64 {
        let (end, mut looked) = (self.shape.bytes(), 0);
        while looked < MOST_CHUNKS {
            let zeros = self.shape.find(at, |chunk| {
                looked += 1;
                self.is_zeros(chunk)
            });
            let Some(zeros) = zeros else { return end };
            match self.data_from(zeros, &mut looked) {
                Some(data) if data - zeros < SHORTEST_HOLE => at = data,
                _ => return zeros,
            }
        }
        end
    }

    /// Where the next byte is that is not a zero by the index.
    fn data_from(&self, at: u64, looked: &mut usize) -> Option<u64> {
        self.shape.find(at, |chunk| {
            *looked += 1;
            !self.is_zeros(chunk)
        })
    }

    /// Whether a chunk reads as zeros, with nothing stored for it.
    pub(in crate::view::decoded) fn is_zeros(&self, chunk: Position) -> bool {
        matches!(self.entry(chunk), IndexEntry::Special(Special::Zeros | Special::Uninit))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::format::array::Array;
    use crate::format::tiling::Tiling;
    use crate::store::ChunkKey;
    use crate::view::decoded::blocks::Blocks;
    use crate::view::decoded::shape::Shape;

    /// An array of bytes, of which those chunks are stored.
    fn array(dims: &[(u64, u32, u32)], head: usize, is_stored: impl Fn(u64) -> bool) -> Data {
        let chunk_len = dims.iter().map(|(_, chunk, block)| chunk.next_multiple_of(*block)).product();
        let tiling = Tiling::new(&Array::cut(dims), 1, chunk_len).unwrap();
        let entry = |n| if is_stored(n) { IndexEntry::Stored(ChunkKey::new(n)) } else { IndexEntry::Special(Special::Zeros) };
        let entries = Arc::new((0..tiling.nchunks()).map(entry).collect());
        Data::new(vec![1; head], Shape::Array(tiling), entries, 1, 0, &Blocks::new(0, 1, None)).unwrap()
    }

    /// The data and holes that somebody finds who goes from one to the next.
    fn walk(data: &Data) -> Vec<(u64, u64)> {
        let (mut found, mut at) = (Vec::new(), 0);
        while let Ok(begin) = data.seek(at, Seek::Data) {
            let end = data.seek(begin, Seek::Hole).unwrap();
            assert!(begin >= at && end > begin, "{at}: {begin}, {end}");
            found.push((begin, end));
            if end == data.bytes() {
                break;
            }
            at = end;
        }
        found
    }

    #[test]
    fn zeros_in_very_many_runs_are_one_hole() {
        for (rows, columns, chunk) in [(4096, 1024, (4096, 1)), (1 << 24, 64, (1 << 24, 4))] {
            let dims = [(rows, chunk.0, chunk.0), (columns, chunk.1, chunk.1)];
            let begun = Instant::now();
            assert_eq!(walk(&array(&dims, 128, |_| false)), [(0, 128)]);
            // The last layer of chunks is stored.
            let dims = [(rows * 2, chunk.0, chunk.0), dims[1]];
            let stored = columns / u64::from(chunk.1);
            let data = array(&dims, 128, |n| n >= stored);
            assert_eq!(walk(&data), [(0, 128), (128 + rows * columns, data.bytes())]);
            assert!(begun.elapsed().as_secs() < 2);
        }
    }

    #[test]
    fn what_is_found_is_what_each_byte_says() {
        for (dims, period) in [
            (&[(50_000, 7000, 100)][..], 3),
            (&[(30, 7, 3), (5000, 900, 100)], 2),
            (&[(5, 2, 1), (7, 3, 2), (3001, 1500, 1500)], 4),
            (&[(3, 2, 2), (9001, 4500, 50), (2, 2, 1)], 2),
        ] {
            let is_stored = |n: u64| (n * 7 % 5).is_multiple_of(period);
            let data = array(dims, 64, is_stored);
            let mut is_data = vec![true; 64];
            let len = data.shape.bytes();
            let Shape::Array(tiling) = &data.shape else { unreachable!() };
            let stored = (0..len).map(|at| tiling.run_at(at).is_some_and(|(chunk, _)| is_stored(chunk.0)));
            is_data.extend(stored);
            // Short holes are data.
            let mut at = 0;
            while let Some(begin) = (at..is_data.len()).find(|at| !is_data[*at]) {
                let end = (begin..is_data.len()).find(|at| is_data[*at]).unwrap_or(is_data.len());
                if (end - begin) < SHORTEST_HOLE as usize && end < is_data.len() {
                    is_data[begin..end].fill(true);
                }
                at = end;
            }
            let mut wanted = Vec::new();
            let mut at = 0;
            while let Some(begin) = (at..is_data.len()).find(|at| is_data[*at]) {
                let end = (begin..is_data.len()).find(|at| !is_data[*at]).unwrap_or(is_data.len());
                wanted.push((begin as u64, end as u64));
                at = end;
            }
            assert_eq!(walk(&data), wanted, "{dims:?}");
        }
    }
}
