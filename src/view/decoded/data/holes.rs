//! Parts of the data that read as zeros and for which nothing is stored.

use super::Data;
use crate::format::{IndexEntry, Special};
use crate::view::Seek;
use crate::view::error::{Result, ViewError};

/// Holes that are shorter are no holes: who looks for one has to go from one to the next.
const SHORTEST_HOLE: u64 = 4096;
/// Runs of one chunk that are looked at for the end of a hole, or of data.
const MOST_RUNS: usize = 1 << 20;

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
        let mut at = offset.saturating_sub(head);
        if offset < head {
            match seek {
                Seek::Data => return Ok(offset),
                Seek::Hole => at = 0,
            }
        }
        if self.zeros == 0 {
            return Ok(if let Seek::Hole = seek { len } else { offset });
        }
        let mut looked = 0;
        while let Some(zeros) = self.zeros_at(at, &mut looked) {
            let is_hole = zeros >= SHORTEST_HOLE || (zeros > 0 && at + zeros == self.shape.bytes());
            match (seek, is_hole, looked < MOST_RUNS) {
                (Seek::Hole, true, _) => return Ok(head + at),
                (Seek::Hole, false, false) => return Ok(len),
                (Seek::Data, false, _) | (Seek::Data, true, false) => return Ok(head + at),
                (Seek::Data, true, true) => at += zeros,
                (Seek::Hole, false, true) => at += zeros.max(self.shape.run_at(at).map_or(1, |(_, run)| run)),
            }
        }
        match seek {
            Seek::Hole => Ok(len),
            Seek::Data => Err(ViewError::System(libc::ENXIO)),
        }
    }

    /// How many zeros stand at a place, as the index says; `None` behind the end.
    fn zeros_at(&self, offset: u64, looked: &mut usize) -> Option<u64> {
        let mut zeros = 0;
        let (mut chunk, mut run) = self.shape.run_at(offset)?;
        while matches!(self.entry(chunk), IndexEntry::Special(Special::Zeros | Special::Uninit)) && *looked < MOST_RUNS {
            *looked += 1;
            zeros += run;
            match self.shape.run_at(offset + zeros) {
                Some(next) => (chunk, run) = next,
                None => break,
            }
        }
        *looked += 1;
        Some(zeros)
    }
}
