//! How often blocks are decoded by who reads an array without a mount: in boxes, or as a slice.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{BandFiles, Blocks, Decoded, Reader};
use crate::format::Layout;
use crate::format::partition::Caches;
use crate::format::registry::CodecId;
use crate::format::slice::Slice;
use crate::store::array_copy::{ArrayCopy, NewArray};
use crate::store::local::FileBackend;
use crate::store::npy_file::NpyFile;
use crate::store::{CframeStore, Location, NewFrame, OpenOptions};
use crate::view::ViewError;

/// An array of two bytes an item, and the file of NumPy's that it is from.
struct Case {
    shape: Vec<u64>,
    chunks: Vec<u32>,
    blocks: Vec<u32>,
    npy: Vec<u8>,
}

impl Case {
    fn new(shape: &[u64], chunks: &[u32], blocks: &[u32]) -> Self {
        let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
        let head = crate::format::npy::header(&crate::format::npy::ItemType::parse("<u2").unwrap(), shape).unwrap();
        assert!(head.windows(sizes[0].len()).any(|part| part == sizes[0].as_bytes()));
        let count: u64 = shape.iter().product();
        let npy = head.into_iter().chain((0..count).flat_map(|n| ((n / 3 + 1) as u16).to_le_bytes())).collect();
        Case { shape: shape.to_vec(), chunks: chunks.to_vec(), blocks: blocks.to_vec(), npy }
    }

    /// How many blocks it has.
    fn count(&self) -> u64 {
        let along = |((size, chunk), block): ((&u64, &u32), &u32)| {
            let (chunk, block) = (u64::from(*chunk), u64::from(*block));
            (0..size.div_ceil(chunk)).map(|n| (size - n * chunk).min(chunk).div_ceil(block)).sum::<u64>()
        };
        self.shape.iter().zip(&self.chunks).zip(&self.blocks).map(along).product()
    }

    fn reader(&self, dir: &Path, limit: u64, threads: usize) -> (Reader, Arc<Blocks>) {
        std::fs::write(dir.join("x.npy"), &self.npy).unwrap();
        let file = NpyFile::open(&Location::existing(&dir.join("x.npy")).unwrap()).unwrap().unwrap();
        let new = NewArray {
            chunks: Some(self.chunks.clone()),
            blocks: Some(self.blocks.clone()),
            codec: CodecId(1),
            ..NewArray::default()
        };
        let copy = ArrayCopy::of(file, &new, Caches::default()).unwrap();
        let _ = std::fs::remove_file(dir.join("x.b2nd"));
        let target =
            copy.create(&Location::to_be(&dir.join("x.b2nd")).unwrap(), Layout::Contiguous, NewFrame::default()).unwrap();
        assert!(copy.run(&*target, 1, &mut |_| true).unwrap());
        target.close().unwrap();
        let store = Arc::new(CframeStore::open(&dir.join("x.b2nd"), OpenOptions::default()).unwrap());
        let files = BandFiles::new(Arc::new(FileBackend::open(dir).unwrap()));
        let blocks = Blocks::new(limit, threads, Some(files));
        (Reader::with(store, &Decoded::Npy(None), &blocks).unwrap(), blocks)
    }
}

fn cases() -> [Case; 3] {
    [
        Case::new(&[64, 5000], &[64, 800], &[32, 50]),
        Case::new(&[2, 100, 1500], &[1, 40, 750], &[1, 16, 170]),
        Case::new(&[30, 70, 300], &[15, 35, 99], &[5, 10, 26]),
    ]
}

#[test]
fn in_boxes_each_block_is_decoded_once() {
    let dir = tempfile::tempdir().unwrap();
    for case in cases() {
        for threads in [1, 2] {
            let (reader, blocks) = case.reader(dir.path(), 20_000, threads);
            let boxes = reader.boxes().expect("the array has wide bands");
            let mut got = vec![0xee; case.npy.len()];
            got[..boxes.head().len()].copy_from_slice(boxes.head());
            let mut sum = 0;
            let read = boxes.read(|items| {
                sum += items.bytes();
                items.rows(|offset, row| {
                    got[offset as usize..offset as usize + row.len()].copy_from_slice(row);
                    Ok::<(), ViewError>(())
                })?;
                Ok::<bool, ViewError>(true)
            });
            read.unwrap();
            assert!(got == case.npy && sum + boxes.head().len() as u64 == reader.bytes(), "{:?}", case.shape);
            assert_eq!(blocks.counts().decoded.load(Relaxed), case.count(), "{:?}", case.shape);
        }
    }
}

#[test]
fn what_fits_is_not_read_in_boxes() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, _blocks) = cases()[0].reader(dir.path(), 100 << 20, 1);
    assert!(reader.boxes().is_none());
}

#[test]
fn a_slice_that_comes_back_to_blocks_has_each_decoded_once() {
    let dir = tempfile::tempdir().unwrap();
    for case in cases() {
        for (text, part) in [("...", 1.0), ("..., :-7", 1.0), ("..., ::-1", 1.0), ("::-1", 1.5), ("..., 100:300", 1.0)] {
            let (reader, blocks) = case.reader(dir.path(), 20_000, 2);
            let sliced = reader.slice(Some(text)).unwrap();
            let mut got = Vec::new();
            sliced
                .read(|piece| {
                    got.extend_from_slice(piece);
                    true
                })
                .unwrap();
            let slice = Slice::parse(text, &case.shape).unwrap();
            let mut items = vec![0u64];
            for (along, size) in slice.dims.iter().zip(&case.shape) {
                let numbers = |item: &u64| (0..along.count).map(|n| item * size + along.item(n)).collect::<Vec<_>>();
                items = items.iter().flat_map(numbers).collect();
            }
            let wanted: Vec<u8> = items.iter().flat_map(|item| ((item / 3 + 1) as u16).to_le_bytes()).collect();
            assert!(got == wanted, "{text} of {:?}", case.shape);
            let times = blocks.counts().decoded.load(Relaxed) as f64 / case.count() as f64;
            assert!(times <= 1.15 * part, "{text} of {:?}: {times}", case.shape);
            assert_eq!(blocks.files().unwrap().count(), 0, "the file is needed no more");
        }
    }
}
