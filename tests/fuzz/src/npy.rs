//! NumPy's words: types of items, headers of files, slices.

use std::collections::HashSet;

use b2fuse::format::array::{Array, ArrayKind};
use b2fuse::format::npy::{ItemType, MAX_HEADER, NpyHeader, Parsed, header};
use b2fuse::format::slice::Slice;
use b2fuse::format::tiling::{Tiling, picked::Picked};

use crate::memory::within;

const KIB: usize = 1 << 10;
/// An array of more items is not gone through.
const MOST_ITEMS: u64 = 1 << 12;

/// The most that a literal of `len` bytes may take.
fn parsing(len: usize) -> usize {
    64 * KIB + 256 * len
}

pub fn dtype(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(item) = within(parsing(data.len()), || ItemType::parse(text)) else { return };
    // A name that is empty is no name in NumPy's words, and a field without one gets another.
    if !item.descr().contains("''") {
        let again = ItemType::parse(&item.b2nd_text()).expect("what is written is a type");
        assert_eq!((again.size(), again.descr()), (item.size(), item.descr()));
    }
    same_header(&item, &[3, 4], &header(&item, &[3, 4]));
}

/// Whether what is written is read as what it was.
fn same_header(item: &ItemType, shape: &[u64], written: &b2fuse::format::Result<Vec<u8>>) {
    let Ok(written) = written else { return };
    assert!(written.len().is_multiple_of(64) && written.last() == Some(&b'\n'));
    match NpyHeader::parse(written) {
        Ok(Parsed::Header(header)) => {
            assert_eq!(header.data_offset, written.len() as u64);
            assert_eq!(header.shape[..shape.len()], *shape);
            assert!(header.shape[shape.len()..].iter().product::<u64>() * header.item.size() == item.size());
        }
        // Written by NumPy as well, and read by nobody.
        Ok(Parsed::Needs(_)) => panic!("it is there as a whole"),
        Err(error) => assert!(written.len() > MAX_HEADER || is_large(item, &error), "{error}"),
    }
}

fn is_large(item: &ItemType, error: &b2fuse::format::Error) -> bool {
    error.field == "npy: shape" && item.size() > 1 << 20
}

pub fn npy(data: &[u8]) {
    match within(parsing(data.len()), || NpyHeader::parse(data)) {
        Ok(Parsed::Header(header)) => {
            assert!(header.data_offset <= data.len() as u64);
            assert!(header.data_len().is_some());
            let written = b2fuse::format::npy::header(&header.item, &header.shape);
            same_header(&header.item, &header.shape, &written);
        }
        Ok(Parsed::Needs(len)) => assert!(len > data.len() && len <= MAX_HEADER),
        Err(error) => assert!(!error.expected.is_empty()),
    }
}

pub fn slice(data: &[u8]) {
    // Dimensions of an array, of its chunks and of its blocks, and a text.
    let Some((ndim, rest)) = data.split_first() else { return };
    let Some((sizes, text)) = rest.split_at_checked(usize::from(ndim % 5) * 3) else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (mut shape, mut chunkshape, mut blockshape) = (Vec::new(), Vec::new(), Vec::new());
    for size in sizes.chunks_exact(3) {
        let chunk = u32::from(size[1] % 8) + 1;
        shape.push(u64::from(size[0]));
        chunkshape.push(chunk);
        blockshape.push(u32::from(size[2]) % chunk + 1);
    }
    let Ok(slice) = within(64 * KIB + 64 * text.len(), || Slice::parse(text, &shape)) else { return };
    assert_eq!(slice.dims.len(), shape.len());
    for (along, size) in slice.dims.iter().zip(&shape) {
        assert!((0..along.count).all(|number| along.item(number) < *size), "{along:?}");
    }
    let array = Array { kind: ArrayKind::B2nd, version: 0, shape, chunkshape, blockshape, dtype: None };
    let sizes = array.chunkshape.iter().zip(&array.blockshape);
    let chunk_len = 3 * sizes.map(|(chunk, block)| chunk.next_multiple_of(*block)).product::<u32>();
    let tiling = Tiling::new(&array, 3, chunk_len).expect("an array as any other");
    let picked = Picked::new(&array, 3, &tiling, &slice.dims);
    assert_eq!(picked.bytes(), 3 * slice.dims.iter().map(|along| along.count).product::<u64>());
    if picked.bytes() > 3 * MOST_ITEMS {
        return;
    }
    let (mut bytes, mut blocks) = (0, HashSet::new());
    let visited = picked.tiles(|tile| {
        assert!(blocks.insert((tile.chunk, tile.start)), "a block comes twice");
        assert!(tile.chunk.0 < tiling.nchunks() && tile.start < tiling.chunk_len());
        bytes += tile.bytes();
        Ok::<(), ()>(())
    });
    assert!(visited.is_ok());
    assert_eq!(bytes, picked.bytes());
}
