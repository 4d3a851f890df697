//! Reads the data of a frame without a mount.

use std::ops::Range;
use std::sync::Arc;

use super::band_file::BandFiles;
use super::blocks::Blocks;
use super::data::Data;
use super::{Decoded, open};
use crate::format::Layout;
use crate::format::array::Array;
use crate::store::local::FileBackend;
use crate::store::{Budgets, CframeStore, FrameImage, FrameStore, Location, OpenOptions, Resources, SframeStore};
use crate::view::Seek;
use crate::view::error::Result;

/// Bytes of blocks that are kept in memory.
const CACHE: u64 = 256 << 20;

/// Files for blocks that find no room there, in the directory for temporary files.
fn temporary() -> Option<BandFiles> {
    let dir = FileBackend::open(&std::env::temp_dir()).ok()?;
    Some(BandFiles::new(Arc::new(dir)))
}

/// A frame that is open to read its data. All that is read is of one state: when others have changed the frame, reading fails.
pub struct Reader {
    pub(super) store: Arc<dyn FrameStore>,
    pub(super) image: Arc<FrameImage>,
    pub(super) data: Arc<Data>,
}

impl Reader {
    /// Opens a frame.
    ///
    /// # Errors
    /// As [`open`]; what the store cannot open.
    pub fn open(location: &Location, layout: Layout, decoded: &Decoded) -> Result<Self> {
        let resources = Resources::new(Budgets { cache_bytes: 0, ..Budgets::default() });
        let options = OpenOptions { read_only: true, resources, ..OpenOptions::default() };
        let store: Arc<dyn FrameStore> = match layout {
            Layout::Contiguous => Arc::new(CframeStore::open_at(location, options)?),
            Layout::Sparse => Arc::new(SframeStore::open_at(location, options)?),
        };
        Self::over(store, decoded)
    }

    /// Of a frame that is open.
    ///
    /// # Errors
    /// As [`open`].
    pub fn over(store: Arc<dyn FrameStore>, decoded: &Decoded) -> Result<Self> {
        Self::with(store, decoded, &Blocks::on_all_cores(CACHE, temporary()))
    }

    /// The same, where blocks are kept elsewhere.
    ///
    /// # Errors
    /// As [`open`].
    pub fn with(store: Arc<dyn FrameStore>, decoded: &Decoded, blocks: &Arc<Blocks>) -> Result<Self> {
        let (image, data) = open(&*store, decoded, blocks)?;
        Ok(Reader { store, image, data: Arc::new(data) })
    }

    /// The shape and type of the array, if it is one.
    pub fn array(&self) -> Option<Array> {
        Array::find(self.image.header.metalayers()).and_then(std::result::Result::ok)
    }

    /// Bytes of an item.
    pub fn typesize(&self) -> u32 {
        self.image.header.typesize()
    }

    /// How many chunks it has.
    pub fn chunks(&self) -> u64 {
        self.image.entries.len() as u64
    }

    /// Length in bytes, with what stands before the data.
    pub fn bytes(&self) -> u64 {
        self.data.bytes()
    }

    /// How many of them take room on a disk that has holes for zeros.
    pub fn allocated(&self) -> u64 {
        self.data.blocks().saturating_mul(512).min(self.data.bytes())
    }

    /// Reads; a short count means the end. What lies in several blocks is decoded on all cores.
    ///
    /// # Errors
    /// What the store says; chunks that cannot be decoded; that others have changed the frame.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.data.read(&self.store, &self.store.enter(), offset, buf)
    }

    /// A part will be read soon, and is decoded meanwhile.
    pub fn expect(&self, part: Range<u64>) {
        self.data.expect(&self.store, part);
    }

    /// Where data, or a part that reads as zeros, begins that is not before an offset.
    ///
    /// # Errors
    /// ENXIO if there is none.
    pub fn seek(&self, offset: u64, seek: Seek) -> Result<u64> {
        self.data.seek(offset, seek)
    }

    /// The store, for attributes of the frame.
    pub fn store(&self) -> &dyn FrameStore {
        &*self.store
    }
}
