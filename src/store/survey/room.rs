//! Which bytes of a file its chunks take.

use std::ops::Range;

use crate::format::{ChunkOffset, Position};

/// The room that the chunks of a cframe take in its file.
pub struct Extents {
    section: Range<u64>,
    /// Start, length, position in the index.
    chunks: Vec<(u64, u32, u64)>,
}

/// Room that no chunk uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unused {
    /// In so many places.
    pub holes: u64,
    /// So many bytes.
    pub bytes: u64,
}

impl Extents {
    pub(super) fn new(section: Range<u64>) -> Self {
        Extents { section, chunks: Vec::new() }
    }

    /// Takes a chunk: its place, its cbytes, its position.
    pub fn add(&mut self, offset: ChunkOffset, cbytes: u32, position: Position) {
        self.chunks.push((self.section.start.saturating_add(offset.0), cbytes, position.0));
    }

    /// What is left, when all chunks have been taken. `overlap` learns of each chunk that begins within another: its position, what
    /// is wrong.
    pub fn unused(mut self, overlap: &mut dyn FnMut(Position, String)) -> Unused {
        self.chunks.sort_unstable();
        let (mut end, mut unused) = (self.section.start, Unused::default());
        let mut hole = |from: u64, to: u64| {
            if to > from {
                unused.holes += 1;
                unused.bytes += to - from;
            }
        };
        let mut last: Option<(u64, u32, u64)> = None;
        for &(start, len, position) in &self.chunks {
            match last {
                // The same chunk under two entries is no overlap.
                Some((at, same, _)) if (at, same) == (start, len) => continue,
                Some((_, _, other)) if start < end => {
                    let what = format!("chunk at byte {start}: begins within chunk {other}, which ends at byte {end}");
                    overlap(Position(position), what);
                }
                _ => hole(end, start),
            }
            let to = start.saturating_add(u64::from(len));
            if to > end {
                end = to;
                last = Some((start, len, position));
            }
        }
        hole(end, self.section.end);
        unused
    }
}
