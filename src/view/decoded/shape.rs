//! How the data of a frame is cut in chunks: in boxes of an array, or one chunk after the other.

use std::ops::Range;

use crate::format::Position;
use crate::format::tiling::{Band, Tile, Tiling};

/// See the module.
#[derive(Debug)]
pub enum Shape {
    /// An array.
    Array(Tiling),
    /// Chunks of one size, but for the last one.
    Chunks(Tiling),
    /// Chunks that differ in size: where each ends.
    Varying(Vec<u64>),
}

/// A part of a range that lies in one chunk.
pub enum Part<'a> {
    /// Of one block.
    Tile(Tile<'a>),
    /// Bytes in a row.
    Span(Span),
}

/// Bytes in a row of one chunk.
#[derive(Debug, Clone)]
pub struct Span {
    pub chunk: Position,
    /// Where in the decoded chunk.
    pub place: Range<u32>,
    /// Where in the range.
    pub offset: u64,
}

impl Part<'_> {
    /// The chunk.
    pub fn chunk(&self) -> Position {
        match self {
            Part::Tile(tile) => tile.chunk,
            Part::Span(span) => span.chunk,
        }
    }
}

impl Shape {
    /// Bytes of all the data.
    pub fn bytes(&self) -> u64 {
        match self {
            Shape::Array(tiling) | Shape::Chunks(tiling) => tiling.bytes(),
            Shape::Varying(ends) => ends.last().copied().unwrap_or(0),
        }
    }

    /// How many chunks it takes.
    pub fn nchunks(&self) -> u64 {
        match self {
            Shape::Array(tiling) | Shape::Chunks(tiling) => tiling.nchunks(),
            Shape::Varying(ends) => ends.len() as u64,
        }
    }

    /// How many bytes of the data a chunk has.
    pub fn visible(&self, chunk: Position) -> u64 {
        match self {
            Shape::Array(tiling) | Shape::Chunks(tiling) => tiling.visible(chunk),
            Shape::Varying(ends) => varying(ends, chunk.0 as usize).map_or(0, |place| place.end - place.start),
        }
    }

    /// How many bytes a chunk must decode to.
    pub fn decoded(&self, chunk: Position) -> u64 {
        match self {
            Shape::Array(tiling) => tiling.chunk_len().into(),
            Shape::Chunks(_) | Shape::Varying(_) => self.visible(chunk),
        }
    }

    /// The bands of [`Tiling::bands`].
    pub fn bands(&self) -> Vec<Band> {
        if let Shape::Array(tiling) = self { tiling.bands() } else { Vec::new() }
    }

    /// The first place in the data, not before an offset, of a chunk that `is_wanted` says.
    pub fn find(&self, offset: u64, mut is_wanted: impl FnMut(Position) -> bool) -> Option<u64> {
        match self {
            Shape::Array(tiling) | Shape::Chunks(tiling) => tiling.find(offset, is_wanted),
            Shape::Varying(ends) => {
                let first = ends.partition_point(|end| *end <= offset);
                (first..ends.len()).find_map(|chunk| {
                    let place = varying(ends, chunk).filter(|place| !place.is_empty())?;
                    is_wanted(Position(chunk as u64)).then(|| place.start.max(offset))
                })
            }
        }
    }

    /// Visits the parts of a range.
    ///
    /// # Errors
    /// What `visit` answers.
    pub fn parts<'a, E>(&'a self, range: Range<u64>, mut visit: impl FnMut(Part<'a>) -> Result<(), E>) -> Result<(), E> {
        match self {
            Shape::Array(tiling) => tiling.tiles(range, |tile| visit(Part::Tile(*tile))),
            Shape::Chunks(tiling) => tiling.tiles(range, |tile| {
                let Some((place, offset)) = tile.piece() else { return Ok(()) };
                visit(Part::Span(Span { chunk: tile.chunk, place, offset }))
            }),
            Shape::Varying(ends) => {
                let mut chunk = ends.partition_point(|end| *end <= range.start);
                while let Some(place) = varying(ends, chunk).filter(|place| place.start < range.end) {
                    let (from, to) = (place.start.max(range.start), place.end.min(range.end));
                    if from < to {
                        // A chunk has less than 2^31 bytes.
                        let part = (from - place.start) as u32..(to - place.start) as u32;
                        visit(Part::Span(Span { chunk: Position(chunk as u64), place: part, offset: from - range.start }))?;
                    }
                    chunk += 1;
                }
                Ok(())
            }
        }
    }
}

/// Where a chunk lies.
fn varying(ends: &[u64], chunk: usize) -> Option<Range<u64>> {
    let start = chunk.checked_sub(1).map_or(Some(0), |before| ends.get(before).copied())?;
    Some(start..*ends.get(chunk)?)
}
