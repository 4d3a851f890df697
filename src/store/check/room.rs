//! Chunks in a cframe's file: each by itself, and which bytes they take.

use std::fs::File;
use std::io;
use std::ops::Range;

use super::{Chunks, Finding, Kind};
use crate::format::ChunkOffset;
use crate::format::chunk::ChunkHeader;
use crate::store::backend::read_exact_at;

/// The chunks of a cframe.
pub(super) struct InFile<'a> {
    pub(super) file: &'a File,
    /// Where offsets count from.
    pub(super) base: u64,
    /// Where the chunks section ends.
    pub(super) end: u64,
}

impl InFile<'_> {
    fn start(&self, offset: ChunkOffset) -> u64 {
        self.base.saturating_add(offset.0)
    }
}

impl Chunks<ChunkOffset> for InFile<'_> {
    fn head(&self, offset: ChunkOffset) -> Result<(Vec<u8>, u64), Box<Finding>> {
        let start = self.start(offset);
        let room = self.end.saturating_sub(start);
        if room < ChunkHeader::LEN as u64 {
            let what =
                format!("{}: offset {} lies behind the chunks, which end at byte {}", self.name(offset), offset.0, self.end);
            return Err(Box::new(Finding::damage(Kind::Offset, what)));
        }
        let mut head = vec![0; ChunkHeader::LEN];
        match read_exact_at(self.file, &mut head, start) {
            Ok(()) => Ok((head, room)),
            Err(error) => Err(Box::new(Finding::damage(Kind::Chunk, format!("{}: cannot be read: {error}", self.name(offset))))),
        }
    }

    fn whole(&self, offset: ChunkOffset, cbytes: u32, buf: &mut Vec<u8>) -> io::Result<()> {
        buf.resize(cbytes as usize, 0);
        read_exact_at(self.file, buf, self.start(offset))
    }

    fn name(&self, offset: ChunkOffset) -> String {
        format!("chunk at byte {}", self.start(offset))
    }

    fn exact(&self) -> bool {
        false
    }
}

/// The room that chunks take in a file.
pub(super) struct Extents {
    section: Range<u64>,
    /// Start, length, position in the index.
    chunks: Vec<(u64, u32, usize)>,
}

impl Extents {
    pub(super) fn new(section: Range<u64>) -> Self {
        Extents { section, chunks: Vec::new() }
    }

    pub(super) fn add(&mut self, start: u64, len: u32, position: usize) {
        self.chunks.push((start, len, position));
    }

    /// Tells of chunks that overlap, and how much room is not used.
    pub(super) fn report(mut self, found: &mut dyn FnMut(Finding)) {
        self.chunks.sort_unstable();
        let (mut end, mut holes, mut unused) = (self.section.start, 0u64, 0u64);
        let mut last: Option<(u64, u32, usize)> = None;
        for &(start, len, position) in &self.chunks {
            match last {
                // The same chunk under two entries is no overlap.
                Some((at, same, _)) if (at, same) == (start, len) => continue,
                Some((_, _, other)) if start < end => {
                    let what = format!("chunk at byte {start}: begins within chunk {other}, which ends at byte {end}");
                    found(Finding::damage(Kind::Overlap, what).at(position));
                }
                _ if start > end => {
                    holes += 1;
                    unused += start - end;
                }
                _ => {}
            }
            let to = start.saturating_add(u64::from(len));
            if to > end {
                end = to;
                last = Some((start, len, position));
            }
        }
        if self.section.end > end {
            holes += 1;
            unused += self.section.end - end;
        }
        if unused > 0 {
            let what = match holes {
                1 => format!("{unused} bytes in one hole between the chunks"),
                _ => format!("{unused} bytes in {holes} holes between the chunks"),
            };
            found(Finding::note(Kind::Hole, what));
        }
    }
}
