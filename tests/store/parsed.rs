//! A cframe's bytes, read by who knows the format alone.

use std::ops::Range;

use b2fuse::format::header::FrameHeader;
use b2fuse::format::trailer::Trailer;
use b2fuse::format::{ChunkOffset, IndexEntry, index};

use crate::driver::{Frame, metalayers};

/// A cframe, and where its parts are.
pub struct Parsed {
    pub frame: Frame,
    pub frame_len: u64,
    /// Of each stored chunk once, in the order of the file.
    pub chunks: Vec<Range<u64>>,
    pub index: Range<u64>,
}

/// Parses a cframe. No parts of it overlap, and its index is byte for byte what would be encoded from nothing.
pub fn parse(bytes: &[u8]) -> Parsed {
    let header = FrameHeader::parse(bytes).unwrap();
    let (header_len, frame_len) = (u64::from(header.header_len()), header.frame_len());
    let bytes = bytes.get(..frame_len as usize).expect("the file is shorter than its frame");
    let tail = &bytes[bytes.len() - Trailer::TAIL_LEN..];
    let trailer_len = Trailer::announced_len(tail, header.header_len(), frame_len).unwrap();
    let sections = header.sections(trailer_len).unwrap();
    let part = |range: &Range<u64>| &bytes[range.start as usize..range.end as usize];
    let trailer = Trailer::parse(part(&sections.trailer)).unwrap();
    let entries = index::decode::<ChunkOffset>(part(&sections.index), header.nchunks()).unwrap();
    index::check_offsets(&entries, sections.chunks.end - sections.chunks.start).unwrap();
    assert!(
        index::encode(entries.iter().copied()).unwrap() == part(&sections.index),
        "the index is not what is encoded from nothing"
    );
    let chunk = |offset: ChunkOffset| {
        let start = header_len + offset.bytes();
        let head = part(&(start..start + 32));
        let len = u32::from_le_bytes(head[12..16].try_into().unwrap());
        start..start + u64::from(len)
    };
    let mut chunks: Vec<_> = entries.iter().filter_map(|entry| entry.stored()).map(chunk).collect();
    chunks.sort_unstable_by_key(|chunk| chunk.start);
    chunks.dedup();
    let ends = chunks.iter().map(|chunk| chunk.end).chain([frame_len]);
    let starts = chunks.iter().map(|chunk| chunk.start).chain([sections.index.start]);
    assert!([header_len].into_iter().chain(ends).zip(starts).all(|(end, start)| end <= start), "parts of the frame overlap");
    let frame = Frame {
        entries: entries.iter().map(|entry| entry.map(|offset| part(&chunk(offset)).to_vec())).collect::<Vec<IndexEntry<_>>>(),
        metalayers: metalayers(&header),
        nbytes: header.nbytes(),
        trailer: trailer.as_bytes().to_vec(),
    };
    Parsed { frame, frame_len, chunks, index: sections.index }
}

impl Parsed {
    /// Bytes of the chunks.
    pub fn live(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.end - chunk.start).sum()
    }

    /// What lies between two chunks, or the last and the index.
    pub fn holes(&self) -> Vec<Range<u64>> {
        let starts = self.chunks.iter().skip(1).map(|chunk| chunk.start).chain([self.index.start]);
        self.chunks
            .iter()
            .map(|chunk| chunk.end)
            .zip(starts)
            .map(|(end, start)| end..start)
            .filter(|hole| !hole.is_empty())
            .collect()
    }
}
