//! One suite for all views: what every file system of one frame promises, whatever layout it shows of whatever store.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::frames::{CHUNKSIZE, cframe, chunk, errno, full, sframe};
use super::*;
use crate::format::Layout;
use crate::store::{FrameStore, OpenOptions, open};

pub mod counting;
mod model;
mod park;
mod unlocked;

/// The name of the one file that a contiguous view shows.
const NAME: &str = "shown.b2frame";

/// What is shown of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pair {
    source: Layout,
    shown: Layout,
}

const PAIRS: [Pair; 4] = [
    Pair { source: Layout::Contiguous, shown: Layout::Sparse },
    Pair { source: Layout::Sparse, shown: Layout::Sparse },
    Pair { source: Layout::Sparse, shown: Layout::Contiguous },
    Pair { source: Layout::Contiguous, shown: Layout::Contiguous },
];

impl Pair {
    /// Makes a SOURCE of three chunks.
    fn make(self, dir: &Path) -> PathBuf {
        let (path, bytes) = (dir.join("f.b2frame"), cframe(&[full(1), full(2), full(3)], CHUNKSIZE, CHUNKSIZE as i32));
        match self.source {
            Layout::Contiguous => std::fs::write(&path, bytes).unwrap(),
            Layout::Sparse => sframe(&path, &bytes),
        }
        path
    }

    fn store(self, path: &Path) -> Arc<dyn FrameStore> {
        open(path, OpenOptions { hold_staged: true, ..OpenOptions::default() }).unwrap().1
    }

    fn mount(self, path: &Path) -> Box<dyn FileSystem> {
        self.show(self.store(path))
    }

    fn show(self, store: Arc<dyn FrameStore>) -> Box<dyn FileSystem> {
        match self.shown {
            Layout::Sparse => Box::new(SparseView::new(store, false).unwrap()),
            Layout::Contiguous => Box::new(ContiguousView::new(store, Shown::As(NAME.into()), false).unwrap()),
        }
    }

    /// Names of files of the frame.
    fn frame_names(self) -> &'static [&'static str] {
        match self.shown {
            Layout::Sparse => &["00000000.chunk", "00000001.chunk", "00000002.chunk"],
            Layout::Contiguous => &[NAME],
        }
    }

    /// Bytes that such a file can hold.
    fn good(self, fill: u8) -> Vec<u8> {
        match self.shown {
            Layout::Sparse => chunk(fill, CHUNKSIZE),
            Layout::Contiguous => cframe(&[full(fill), full(fill ^ 1), full(3)], CHUNKSIZE, CHUNKSIZE as i32),
        }
    }
}

fn lookup(fs: &dyn FileSystem, name: &str) -> Result<Attr> {
    fs.lookup(ROOT, OsStr::new(name))
}

fn read(fs: &dyn FileSystem, ino: Ino, handle: Option<Handle>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 1 << 16];
    let count = fs.read(ino, handle, 0, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}
