//! Frames as they lie on disk, read without a store.

use std::fs;
use std::path::{Path, PathBuf};

use b2fuse::format::chunk::ChunkHeader;
use b2fuse::format::index_file::IndexFile;
use b2fuse::format::{ChunkOffset, IndexEntry, Layout, Special};
use b2fuse::store::frame::Frame;

/// All that a copy in either layout has to keep.
#[derive(Debug, PartialEq)]
pub struct Content {
    /// With what the two layouts have different set to the same.
    pub header: Vec<u8>,
    pub trailer: Vec<u8>,
    pub chunks: Vec<Result<Vec<u8>, Special>>,
}

pub fn content(path: &Path) -> Content {
    let (mut header, trailer, chunks) = if path.is_dir() {
        let index = IndexFile::parse(&fs::read(path.join("chunks.b2frame")).unwrap()).unwrap();
        let chunks = index.entries.iter().map(|entry| match entry {
            IndexEntry::Stored(id) => Ok(fs::read(path.join(format!("{id}.chunk"))).unwrap()),
            IndexEntry::Special(special) => Err(*special),
        });
        (index.header, index.trailer, chunks.collect())
    } else {
        let bytes = fs::read(path).unwrap();
        let frame = Frame::<ChunkOffset>::read(&bytes).unwrap();
        assert_eq!(frame.header.frame_len(), bytes.len() as u64);
        let section = frame.header.header_len() as usize;
        let chunks = frame.entries.iter().map(|entry| match entry {
            IndexEntry::Stored(offset) => {
                let rest = &bytes[section + offset.bytes() as usize..];
                Ok(rest[..ChunkHeader::parse(rest).unwrap().cbytes as usize].to_vec())
            }
            IndexEntry::Special(special) => Err(*special),
        });
        (frame.header, frame.trailer, chunks.collect())
    };
    header.set_layout(Layout::Contiguous);
    header.set_cbytes(0);
    header.set_frame_len(0);
    Content { header: header.as_bytes().to_vec(), trailer: trailer.as_bytes().to_vec(), chunks }
}

/// The frames of `tests/data` in a layout.
pub fn frames(layout: &str) -> Vec<PathBuf> {
    fs::read_dir(super::data(layout)).unwrap().map(|entry| entry.unwrap().path()).collect()
}
