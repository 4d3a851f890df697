//! How often blocks are decoded by who reads an array in order.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::format::array::{Array, ArrayKind};
use crate::format::tiling::Tiling;
use crate::store::backend::{BackendFile, FileStat};
use crate::store::local::FileBackend;
use crate::store::{CframeStore, OpenOptions};
use crate::view::decoded::BandFiles;
use crate::view::decoded::band_file::BandDirectory;
use crate::view::frames::{Cell, cframe, chunk};

/// Bytes of a block: rows of it, and columns.
const ROWS: u32 = 16;
const COLUMNS: u32 = 2048;
const BLOCK: u64 = ROWS as u64 * COLUMNS as u64;
/// Chunks along the array's rows, each with one block for every layer, and layers.
const CHUNKS: u64 = 64;
const LAYERS: u64 = 3;
const BAND: u64 = CHUNKS * BLOCK;
const ROW: u64 = CHUNKS * COLUMNS as u64;

/// What stands at a place of the array.
fn item(at: u64) -> u8 {
    (at / ROW * 31 + at % ROW / 7) as u8
}

/// An array whose rows cross all chunks of a layer.
fn array(dir: &Path) -> Arc<dyn FrameStore> {
    let mut cells = Vec::new();
    for n in 0..CHUNKS * LAYERS {
        let mut bytes = chunk(0, BLOCK as u32);
        let (layer, column) = (n / CHUNKS, n % CHUNKS);
        for (at, byte) in bytes[32..].iter_mut().enumerate() {
            let (row, inner) = (at as u64 / u64::from(COLUMNS), at as u64 % u64::from(COLUMNS));
            *byte = item((layer * u64::from(ROWS) + row) * ROW + column * u64::from(COLUMNS) + inner);
        }
        cells.push(Cell::Chunk(bytes));
    }
    let path = dir.join("f.b2frame");
    std::fs::write(&path, cframe(&cells, BLOCK as u32, BLOCK as i32)).unwrap();
    Arc::new(CframeStore::open(&path, OpenOptions::default()).unwrap())
}

fn data(store: &dyn FrameStore, blocks: &Arc<Blocks>) -> Arc<Data> {
    let shape = Array {
        kind: ArrayKind::B2nd,
        version: 0,
        shape: vec![u64::from(ROWS) * LAYERS, ROW],
        chunkshape: vec![ROWS, COLUMNS],
        blockshape: vec![ROWS, COLUMNS],
        dtype: None,
    };
    let shape = Shape::Array(Tiling::new(&shape, 1, BLOCK as u32).unwrap());
    let image = store.committed().unwrap();
    Arc::new(Data::new(Vec::new(), shape, Arc::clone(&image.entries), 1, image.header.cbytes(), blocks).unwrap())
}

fn check(data: &Arc<Data>, store: &Arc<dyn FrameStore>, offset: u64, len: u64) {
    let mut buf = vec![0; len as usize];
    assert_eq!(data.read(store, &store.enter(), offset, &mut buf).unwrap() as u64, len);
    let wrong = buf.iter().zip(offset..).find(|(byte, at)| **byte != item(*at));
    assert_eq!(wrong, None, "of {offset} and {len} more");
}

/// Reads row by row, after somebody has found that this is how it is read. How often each block was decoded.
fn read_in_order(data: &Arc<Data>, store: &Arc<dyn FrameStore>, blocks: &Blocks) -> f64 {
    let before = blocks.counts().decoded.load(Relaxed);
    data.expect(store, 0..ROW);
    for row in 0..u64::from(ROWS) * LAYERS {
        check(data, store, row * ROW, ROW);
        if row % 4 == 0 {
            data.expect(store, (row + 4) * ROW..(row + 8) * ROW);
        }
    }
    (blocks.counts().decoded.load(Relaxed) - before) as f64 / (CHUNKS * LAYERS) as f64
}

#[test]
fn a_band_that_does_not_fit_is_decoded_again_as_far_as_it_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = array(dir.path());
    for (part, threads) in [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2)] {
        let blocks = Blocks::new(BAND * part / 4, threads, None);
        let data = data(&*store, &blocks);
        let expected = 1.0 + (1.0 - part as f64 / 4.0) * f64::from(ROWS - 1);
        for _ in 0..2 {
            let times = read_in_order(&data, &store, &blocks);
            assert!((0.95 * expected..1.25 * expected).contains(&times), "{part} quarters: {times}, expected {expected}");
            assert!(blocks.bytes() <= blocks.limit());
        }
    }
}

#[test]
fn a_band_that_fits_is_decoded_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = array(dir.path());
    for (limit, threads) in [(BAND * 9 / 8, 1), (BAND * 9 / 8, 2), (BAND * 2, 1), (BAND * 4, 2)] {
        let blocks = Blocks::new(limit, threads, None);
        let data = data(&*store, &blocks);
        assert_eq!(read_in_order(&data, &store, &blocks), 1.0, "{limit}, {threads}");
        assert_eq!(read_in_order(&data, &store, &blocks), 1.0, "{limit}, {threads}, again");
    }
}

#[test]
fn a_band_that_does_not_fit_is_decoded_once_where_it_may_go_to_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = array(dir.path());
    for limit in [0, BLOCK, BAND / 4, BAND / 2, BAND * 3 / 4] {
        for threads in [1, 2] {
            let files = BandFiles::new(Arc::new(FileBackend::open(dir.path()).unwrap()));
            let blocks = Blocks::new(limit, threads, Some(files));
            let data = data(&*store, &blocks);
            for _ in 0..2 {
                let times = read_in_order(&data, &store, &blocks);
                assert!(times <= 1.0 + f64::from(u8::from(threads > 1)) * 0.1, "{limit}, {threads}: {times}");
                assert_eq!(blocks.files().unwrap().count(), 0, "all was read");
            }
            assert_eq!(blocks.counts().spilled_bytes.load(Relaxed), 2 * LAYERS * BAND);
        }
    }
}

#[test]
fn of_many_who_read_in_order_none_loses_its_file() {
    let dirs: Vec<_> = (0..6).map(|_| tempfile::tempdir().unwrap()).collect();
    let files = BandFiles::new(Arc::new(FileBackend::open(dirs[0].path()).unwrap()));
    let blocks = Blocks::new(BAND / 2, 1, Some(files));
    let stores: Vec<_> = dirs.iter().map(|dir| array(dir.path())).collect();
    let all: Vec<_> = stores.iter().map(|store| (store, data(&**store, &blocks))).collect();
    for row in 0..u64::from(ROWS) * LAYERS {
        for (store, data) in &all {
            check(data, store, row * ROW, ROW);
        }
    }
    // The first row is read before anybody knows that others follow.
    let most = 6 * (CHUNKS * LAYERS + CHUNKS);
    let decoded = blocks.counts().decoded.load(Relaxed);
    assert!(decoded <= most, "{decoded}, expected {most}");
    assert_eq!(blocks.files().unwrap().count(), 0, "all was read");
}

#[test]
fn who_reads_here_and_there_has_nothing_spilled() {
    let dir = tempfile::tempdir().unwrap();
    let store = array(dir.path());
    let blocks = Blocks::new(BAND / 4, 1, Some(BandFiles::new(Arc::new(FileBackend::open(dir.path()).unwrap()))));
    let data = data(&*store, &blocks);
    for n in 0..500 {
        check(&data, &store, n * 7919 * 4096 % (data.bytes() - 4096), 4096);
    }
    assert_eq!((blocks.files().unwrap().count(), blocks.counts().spilled_bytes.load(Relaxed)), (0, 0));
    assert!(blocks.counts().decoded.load(Relaxed) <= 1500);
}

/// A directory whose files take only so many more blocks.
struct Full {
    dir: FileBackend,
    left: Arc<AtomicU64>,
}

struct FullFile(Box<dyn BackendFile>, Arc<AtomicU64>);

impl BandDirectory for Full {
    fn create_unnamed(&self) -> io::Result<Box<dyn BackendFile>> {
        Ok(Box::new(FullFile(BandDirectory::create_unnamed(&self.dir)?, Arc::clone(&self.left))))
    }

    fn available(&self) -> io::Result<u64> {
        self.dir.available()
    }
}

impl BackendFile for FullFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let left = self.1.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        left.map_err(|_| io::Error::from_raw_os_error(libc::ENOSPC))?;
        self.0.write_at(data, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }
    fn stat(&self) -> io::Result<FileStat> {
        self.0.stat()
    }
    fn try_lock(&self) -> io::Result<bool> {
        self.0.try_lock()
    }
    fn unlock(&self) -> io::Result<()> {
        self.0.unlock()
    }
}

#[test]
fn a_file_that_takes_nothing_more_changes_no_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let store = array(dir.path());
    for after in [0, 5, 100] {
        let full = Arc::new(Full { dir: FileBackend::open(dir.path()).unwrap(), left: Arc::new(AtomicU64::new(after)) });
        let blocks = Blocks::new(BAND / 2, 2, Some(BandFiles::new(full)));
        let data = data(&*store, &blocks);
        assert!(read_in_order(&data, &store, &blocks) > 2.0);
        assert_eq!(blocks.counts().spilled_bytes.load(Relaxed), after * BLOCK);
        assert_eq!(blocks.files().unwrap().count(), 0);
    }
}
