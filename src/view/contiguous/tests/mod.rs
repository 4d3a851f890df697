//! The view against a store on disk.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::*;
use crate::format::{Layout, Special};
use crate::store::{OpenOptions, open};
use crate::view::frames::{CHUNKSIZE, Cell, cells_of, cframe, chunk, errno, full, sframe, zeros};
use crate::view::tests::counting::Counting;
use crate::view::{Creation, DirEntry, FileSystem, Invalidation, Kind, OpenMode, ROOT, RenameMode, SetAttr};

mod library;
mod model;
mod names;
mod others;
mod own;
mod several;
mod syncing;
mod writing;
mod xattr;

struct Mount {
    dir: tempfile::TempDir,
    view: Option<ContiguousView>,
    store: Option<Arc<Counting>>,
}

const NAME: &str = "shown.b2frame";

impl Mount {
    fn of(cells: &[Cell], last: u32) -> Mount {
        Self::of_bytes(&cframe(cells, last, CHUNKSIZE as i32))
    }

    fn of_bytes(frame: &[u8]) -> Mount {
        Self::over(Layout::Sparse, frame)
    }

    /// A mount of a SOURCE of that layout, with the frame's chunks.
    fn over(layout: Layout, frame: &[u8]) -> Mount {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Mount { dir, view: None, store: None };
        match layout {
            Layout::Contiguous => std::fs::write(mount.path(), frame).unwrap(),
            Layout::Sparse => sframe(&mount.path(), frame),
        }
        mount.mount(false);
        mount
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("f.b2frame")
    }

    fn mount(&mut self, read_only: bool) {
        let (_, store) = open(&self.path(), OpenOptions { read_only, ..OpenOptions::default() }).unwrap();
        let store = Counting::new(store);
        self.store = Some(Arc::clone(&store));
        self.view = Some(ContiguousView::new(store, Shown::As(NAME.into()), read_only).unwrap());
    }

    fn unmount(&mut self) -> Result<()> {
        let unmounted = self.view.take().unwrap().shutdown();
        self.store = None;
        unmounted
    }

    /// Chunks staged and commits made since the last call.
    fn since(&self) -> (usize, usize) {
        self.store.as_ref().unwrap().since()
    }

    fn open(&self, name: &str, truncate: bool) -> Result<Handle> {
        let mode = OpenMode { read: true, write: true, truncate, drop_privileges: false };
        match self.ino(name) {
            Ok(ino) => Ok(self.view().open(ino, mode)?.handle),
            Err(_) => Ok(self.view().create(ROOT, OsStr::new(name), creation(), mode)?.1.handle),
        }
    }

    fn close(&self, handle: Handle) -> Result<()> {
        let mut invalidations = Vec::new();
        let flushed = self.view().flush(handle, &mut invalidations);
        self.view().release(handle, &mut invalidations);
        flushed
    }

    /// Like `cp`: opens for writing (making or truncating), writes in pieces, closes.
    fn cp(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let handle = self.open(name, true)?;
        for (n, piece) in bytes.chunks(50).enumerate() {
            self.view().write(handle, n as u64 * 50, piece)?;
        }
        self.close(handle)
    }

    /// Opens without truncating, writes, closes.
    fn patch(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let handle = self.open(NAME, false)?;
        self.view().write(handle, offset, bytes)?;
        self.close(handle)
    }

    fn mv(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = ((ROOT, OsStr::new(from)), (ROOT, OsStr::new(to)));
        self.view().rename(from, to, RenameMode::Replace, &mut Vec::new())
    }

    fn sync(&self) {
        self.view().fsync(self.ino(NAME).unwrap(), &mut Vec::new()).unwrap();
    }

    /// Lets that much time pass.
    fn wait(&self, seconds: u64) -> Invalidations {
        let mut invalidations = Vec::new();
        self.view().tick(Instant::now() + Duration::from_secs(seconds), &mut invalidations);
        invalidations
    }

    /// What SOURCE holds on disk now, opened anew.
    fn committed(&self) -> Vec<Cell> {
        cells_of(&self.path())
    }

    fn view(&self) -> &ContiguousView {
        self.view.as_ref().unwrap()
    }

    fn ino(&self, name: &str) -> Result<Ino> {
        self.view().lookup(ROOT, OsStr::new(name)).map(|attr| attr.ino)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        let attr = self.view().lookup(ROOT, OsStr::new(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut bytes = vec![0; attr.size as usize + 10];
        let count = self.view().read(attr.ino, None, 0, &mut bytes).unwrap();
        assert_eq!(count as u64, attr.size, "{name}");
        bytes.truncate(count);
        bytes
    }
}

fn creation() -> Creation {
    Creation { uid: 0, gid: 0, mode: 0o644, umask: 0, pid: 0, exclusive: false }
}

/// Frames of every make: last chunk short, special chunks, one kind only, no chunks, chunks of varying size.
fn makes() -> Vec<Vec<u8>> {
    let cells = [full(1), zeros(), full(3), Cell::Special(Special::Nan), Cell::Chunk(chunk(4, 10))];
    let varying: Vec<Cell> = (1..9).map(|n| Cell::Chunk(chunk(n, u32::from(n) * 9))).collect();
    vec![
        cframe(&cells, 10, CHUNKSIZE as i32),
        cframe(&cells[..1], CHUNKSIZE, CHUNKSIZE as i32),
        cframe(&vec![zeros(); 700], CHUNKSIZE, CHUNKSIZE as i32),
        cframe(&[], 0, CHUNKSIZE as i32),
        cframe(&varying, 0, 0),
        cframe(&(0..300).map(|n| full(n as u8)).collect::<Vec<_>>(), CHUNKSIZE, CHUNKSIZE as i32),
    ]
}

#[test]
fn the_file_is_the_frame_that_the_library_would_write() {
    for (frame, layout) in makes().into_iter().flat_map(|frame| [(frame.clone(), Layout::Sparse), (frame, Layout::Contiguous)]) {
        let mut mount = Mount::over(layout, &frame);
        assert!(mount.read(NAME) == frame);
        mount.unmount().unwrap();
        mount.mount(true);
        assert!(mount.read(NAME) == frame);
    }
}

#[test]
fn any_part_can_be_read() {
    for frame in makes() {
        let mount = Mount::of_bytes(&frame);
        let ino = mount.ino(NAME).unwrap();
        for (n, from) in (0..frame.len() + 20).step_by(7).enumerate() {
            let len = [1, 31, 64, 100, 500, 5000][n % 6];
            let mut buf = vec![7; len];
            let count = mount.view().read(ino, None, from as u64, &mut buf).unwrap();
            let expected = frame.get(from..).unwrap_or_default();
            assert_eq!(buf[..count], expected[..len.min(expected.len())]);
        }
    }
}

#[test]
fn the_directory_has_one_name() {
    let mount = Mount::of(&[full(1)], CHUNKSIZE);
    let mut names = Vec::new();
    let emit = &mut |entry: DirEntry<'_>| {
        names.push((entry.name.to_owned(), entry.ino));
        true
    };
    mount.view().readdir(ROOT, 0, emit).unwrap();
    assert_eq!(names, [(NAME.into(), mount.ino(NAME).unwrap())]);
    assert_eq!(errno(mount.ino("other")), libc::ENOENT);
    assert_eq!(mount.view().getattr(ROOT).unwrap().kind, Kind::Directory);
}

#[test]
fn a_mount_point_that_is_a_file_is_the_frame() {
    let frame = cframe(&[full(1), full(2)], CHUNKSIZE, CHUNKSIZE as i32);
    let mut mount = Mount::of_bytes(&frame);
    mount.unmount().unwrap();
    let (_, store) = open(&mount.path(), OpenOptions::default()).unwrap();
    let view = ContiguousView::new(store, Shown::OnFile, false).unwrap();
    let attr = view.getattr(ROOT).unwrap();
    assert_eq!((attr.kind, attr.size, attr.nlink), (Kind::File, frame.len() as u64, 1));
    let mut buf = vec![0; frame.len()];
    assert_eq!(view.read(ROOT, None, 0, &mut buf).unwrap(), frame.len());
    assert!(buf == frame);
    assert_eq!(errno(view.lookup(ROOT, OsStr::new("x"))), libc::ENOTDIR);
}

#[test]
fn a_read_only_view_shows_what_others_have_made_of_source() {
    for layout in [Layout::Sparse, Layout::Contiguous] {
        let mut mount = Mount::over(layout, &cframe(&[full(1), full(2)], CHUNKSIZE, CHUNKSIZE as i32));
        mount.unmount().unwrap();
        mount.mount(true);
        let before = mount.read(NAME);
        let other = cframe(&[full(9), full(8), full(7)], CHUNKSIZE, CHUNKSIZE as i32);
        let follow = || {
            let mut invalidations = Vec::new();
            mount.view().follow(&mut invalidations);
            invalidations
        };
        assert!(follow().is_empty() && mount.read(NAME) == before);
        let old = mount.ino(NAME).unwrap();
        {
            let (_, store) = open(&mount.path(), OpenOptions::default()).unwrap();
            let view = ContiguousView::new(store, Shown::As(NAME.into()), false).unwrap();
            let mode = OpenMode { write: true, truncate: true, ..OpenMode::default() };
            let handle = view.open(mount.ino(NAME).unwrap(), mode).unwrap().handle;
            view.write(handle, 0, &other).unwrap();
            view.flush(handle, &mut Vec::new()).unwrap();
            view.shutdown().unwrap();
        }
        assert_eq!(follow(), [Invalidation::Names, Invalidation::Data(ROOT)]);
        assert!(mount.read(NAME) == if layout == Layout::Sparse { other } else { std::fs::read(mount.path()).unwrap() });
        assert_eq!(mount.committed(), [full(9), full(8), full(7)]);
        assert_eq!(errno(mount.view().getattr(old)), libc::ESTALE, "another version is another file");
        let mode = OpenMode { write: true, ..OpenMode::default() };
        assert_eq!(errno(mount.view().open(mount.ino(NAME).unwrap(), mode)), libc::EROFS);
    }
}

#[test]
fn a_sequential_reader_has_its_chunks_asked_for_in_time() {
    let cells: Vec<Cell> = (0..400).map(|n| Cell::Chunk(chunk(n as u8, 40_000))).collect();
    let mount = Mount::of_bytes(&cframe(&cells, 40_000, 40_000));
    let ino = mount.ino(NAME).unwrap();
    let size = mount.view().getattr(ino).unwrap().size;
    let mut buf = vec![0; 1 << 17];
    let mut offset = 0;
    while offset < size {
        let count = mount.view().read(ino, None, offset, &mut buf).unwrap() as u64;
        assert_eq!(mount.view().touched(1, ino, Some((offset, buf.len() as u32))), []);
        offset += count;
    }
    let hinted = mount.store.as_ref().unwrap().hinted.load(std::sync::atomic::Ordering::SeqCst);
    assert!((300..=400).contains(&hinted), "{hinted}");
}
