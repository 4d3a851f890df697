//! Small frames for the tests of both views, made by code.

use std::path::Path;
use std::sync::Arc;

use super::Result;
use crate::format::header::{FrameHeader, HeaderFields};
use crate::format::trailer::Trailer;
use crate::format::{ChunkOffset, IndexEntry, Layout, Special};
use crate::store::{CframeStore, FrameImage, FrameStore, OpenOptions, SframeStore, open};

pub const CHUNKSIZE: u32 = 64;

/// A plain-copy chunk of `nbytes` bytes, all `fill`.
pub fn chunk(fill: u8, nbytes: u32) -> Vec<u8> {
    let mut chunk = vec![5, 1, 0x07, 1];
    chunk.extend(nbytes.to_le_bytes());
    chunk.extend(nbytes.to_le_bytes());
    chunk.extend((nbytes + 32).to_le_bytes());
    chunk.resize(32, 0);
    chunk.resize(32 + nbytes as usize, fill);
    chunk
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    Chunk(Vec<u8>),
    Special(Special),
}

pub fn header(layout: Layout, nbytes: u64, cbytes: u64, frame_len: u64, chunksize: i32) -> FrameHeader {
    let fields = HeaderFields {
        frame_len,
        version: if chunksize == 0 { 3 } else { 2 },
        varying_chunks: chunksize == 0,
        vl_blocks: false,
        layout,
        codec: 0,
        clevel: 5,
        split_mode: 3,
        nbytes,
        cbytes,
        typesize: 1,
        blocksize: 0,
        chunksize,
        nthreads_compress: 1,
        nthreads_decompress: 1,
        has_vlmetalayers: false,
        filters: [0; 6],
        filters_meta: [0; 6],
        user_codec: 0,
        codec_meta: 0,
        use_dict: false,
    };
    FrameHeader::encode(&fields, &[]).unwrap()
}

/// A cframe of the cells, the last of `last` bytes.
pub fn cframe(cells: &[Cell], last: u32, chunksize: i32) -> Vec<u8> {
    let mut chunks = Vec::new();
    let entries = cells.iter().map(|cell| match cell {
        Cell::Special(special) => IndexEntry::Special(*special),
        Cell::Chunk(bytes) => {
            chunks.extend_from_slice(bytes);
            IndexEntry::Stored(ChunkOffset::new((chunks.len() - bytes.len()) as u64))
        }
    });
    let entries: Vec<_> = entries.collect();
    let index = match entries.len() {
        0 => Vec::new(),
        _ => crate::format::index::encode(entries.into_iter()).unwrap(),
    };
    let trailer = Trailer::encode(&[]).unwrap();
    let nbytes = match chunksize {
        0 => cells.iter().map(|cell| if let Cell::Chunk(c) = cell { c.len() as u64 - 32 } else { 0 }).sum(),
        size => (cells.len() as u64).saturating_sub(1) * size as u64 + if cells.is_empty() { 0 } else { u64::from(last) },
    };
    let mut header = header(Layout::Contiguous, nbytes, chunks.len() as u64, 1 << 20, chunksize);
    let len = header.as_bytes().len() + chunks.len() + index.len() + trailer.as_bytes().len();
    header.set_frame_len(len as u64);
    [header.as_bytes(), &chunks, &index, trailer.as_bytes()].concat()
}

pub fn cells_of(path: &Path) -> Vec<Cell> {
    let (_, store) = open(path, OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    cells_in(&*store)
}

/// The chunks that a store has committed.
pub fn cells_in(store: &dyn FrameStore) -> Vec<Cell> {
    let image = store.committed().unwrap();
    let guard = store.enter();
    let cells = image.entries.iter().map(|entry| match entry {
        IndexEntry::Special(special) => Cell::Special(*special),
        IndexEntry::Stored(key) => {
            let len = store.chunk_header(&guard, *key).unwrap().cbytes;
            let mut bytes = vec![0; len as usize];
            assert_eq!(store.read_chunk(&guard, *key, len, 0, &mut bytes).unwrap(), bytes.len());
            Cell::Chunk(bytes)
        }
    });
    cells.collect()
}

pub fn full(fill: u8) -> Cell {
    Cell::Chunk(chunk(fill, CHUNKSIZE))
}

pub fn zeros() -> Cell {
    Cell::Special(Special::Zeros)
}

pub fn errno<T>(result: Result<T>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

/// Makes an sframe of a cframe's chunks.
pub fn sframe(path: &Path, frame: &[u8]) {
    let beside = path.with_extension("cframe");
    std::fs::write(&beside, frame).unwrap();
    let from = CframeStore::open(&beside, OpenOptions::default()).unwrap();
    let to = SframeStore::create(path, OpenOptions::default()).unwrap();
    let guard = from.enter();
    let image = from.committed().unwrap();
    let entries = image.entries.iter().map(|entry| {
        entry.map(|key| {
            let mut bytes = vec![0; from.chunk_header(&guard, key).unwrap().cbytes as usize];
            (&from as &dyn FrameStore).read_chunk(&guard, key, bytes.len() as u32, 0, &mut bytes).unwrap();
            to.stage(&bytes).unwrap()
        })
    });
    let entries = Arc::new(entries.collect());
    to.commit(to.enter(), FrameImage { entries, ..(*image).clone() }).unwrap();
    to.close().unwrap();
    std::fs::remove_file(beside).unwrap();
}
