//! Which bytes of a file its chunks take.

use std::ops::Range;

use crate::format::{ChunkOffset, Position};

/// The room that the chunks of a cframe take in its file.
pub struct Extents {
    section: Range<u64>,
    /// Start, length, first position in the index.
    chunks: Vec<(u64, u32, u64)>,
}

/// A small index can name the same few chunks millions of times: they are looked for when there are so many.
const MANY: usize = 1 << 16;

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
        if self.chunks.len() == self.chunks.capacity() && self.chunks.len() >= MANY {
            self.drop_copies();
            if self.chunks.len() > self.chunks.capacity() / 2 {
                self.chunks.reserve(self.chunks.capacity());
            }
        }
        self.chunks.push((self.section.start.saturating_add(offset.bytes()), cbytes, position.0));
    }

    /// The same chunk under several entries is no overlap.
    fn drop_copies(&mut self) {
        self.chunks.sort_unstable();
        self.chunks.dedup_by_key(|(start, len, _)| (*start, *len));
    }

    /// What is left, when all chunks have been taken. `overlap` learns of each chunk that begins within another: its position, what
    /// is wrong.
    pub fn unused(mut self, overlap: &mut dyn FnMut(Position, String)) -> Unused {
        self.drop_copies();
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
