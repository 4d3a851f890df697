//! Frames and chunks for the tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use b2fuse::format::header::{FrameHeader, HeaderFields};
use b2fuse::format::trailer::Trailer;
use b2fuse::format::{IndexEntry, Layout};
use b2fuse::store::{ChunkKey, FrameImage, FrameStore, Result, Want};

/// A small generator, so that a failure comes back with its seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    #[allow(dead_code)]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A chunk of plainly copied data: a header, and `nbytes` bytes that are `fill` and its successors.
pub fn chunk(nbytes: u32, fill: u64) -> Vec<u8> {
    let mut bytes = vec![5, 1, 0x02 | 0x05, 1];
    bytes.extend(nbytes.to_le_bytes());
    bytes.extend(nbytes.max(1).to_le_bytes());
    bytes.extend((nbytes + 32).to_le_bytes());
    bytes.resize(32, 0);
    let mut random = Random(fill);
    while bytes.len() < nbytes as usize + 32 {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes.truncate(nbytes as usize + 32);
    bytes
}

/// A header of `nchunks` chunks of varying size, so that any chunk fits anywhere.
pub fn header(nchunks: usize) -> FrameHeader {
    let fields = HeaderFields {
        frame_len: 1000,
        version: 3,
        varying_chunks: true,
        vl_blocks: false,
        layout: Layout::Sparse,
        codec: 0,
        clevel: 5,
        split_mode: 1,
        nbytes: nchunks as u64 * 10,
        cbytes: 0,
        typesize: 1,
        blocksize: 0,
        chunksize: 0,
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

pub fn image(entries: Vec<IndexEntry<ChunkKey>>) -> FrameImage {
    FrameImage { header: header(entries.len()), trailer: Trailer::encode(&[]).unwrap(), entries: Arc::new(entries) }
}

/// A stored chunk, whole.
pub fn read(store: &dyn FrameStore, key: ChunkKey) -> Vec<u8> {
    try_read(store, key).unwrap()
}

fn try_read(store: &dyn FrameStore, key: ChunkKey) -> Result<Vec<u8>> {
    let guard = store.enter();
    let len = store.chunk_header(&guard, key)?.cbytes;
    let mut bytes = vec![0; len as usize];
    assert_eq!(store.read_chunk(&guard, key, len, 0, &mut bytes)?, bytes.len());
    Ok(bytes)
}

/// All entries of the committed image, with the chunks' bytes.
pub fn content(store: &dyn FrameStore) -> Vec<IndexEntry<Vec<u8>>> {
    try_content(store).unwrap()
}

/// The same, where something may be damaged.
pub fn try_content(store: &dyn FrameStore) -> Result<Vec<IndexEntry<Vec<u8>>>> {
    let Some(image) = store.committed() else { return Ok(vec![]) };
    let entries = image.entries.iter().map(|entry| match entry {
        IndexEntry::Stored(key) => try_read(store, *key).map(IndexEntry::Stored),
        IndexEntry::Special(special) => Ok(IndexEntry::Special(*special)),
    });
    entries.collect()
}

/// The real frames of the repository.
pub fn data(kind: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(kind);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

/// A directory in which a great many files are soon made, and soon removed.
pub fn dir_for_many() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))).unwrap()
}

/// All of these chunks, of which the lengths are known.
pub fn wants(chunks: &[(ChunkKey, u32)]) -> Vec<Want> {
    chunks.iter().map(|(key, len)| Want::Known(*key, *len)).collect()
}
