//! A frame on its way into an object store, in either layout: a target for those who copy frames, which stage chunk after chunk and
//! commit once.
//!
//! A reader sees no frame, the one before, or the new one. Requests that carry chunks run beside each other, in bounded memory.
//!
//! | module | what it is for |
//! | --- | --- |
//! | `sparse` | an object for each chunk, then the index |
//! | `contiguous` | one object |
//! | `parts` | a large object, in parts |
//! | `sending` | requests under way, and conditions |
//!
//! What a store guarantees that takes conditions with a write (If-None-Match, If-Match; S3, GCS and Azure do): nobody's frame is
//! overwritten but the one that was there when the upload began, and no chunk of it, whoever writes at the same time. An object of more
//! than 32 MiB cannot be sent under a condition: there it is looked, just before, whether the name is as it was.

mod contiguous;
mod parts;
mod sending;
mod sparse;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use self::contiguous::Contiguous;
use self::sending::Sending;
use self::sparse::Sparse;
use super::client::Client;
use crate::format::Layout;
use crate::format::chunk::ChunkHeader;
use crate::store::{ChunkKey, Epochs, FrameImage, FrameStore, ReadAt, ReadGuard, Result, StoreError};

/// Parts of the largest object that is sent by one request: 32 MiB.
const WHOLE: u64 = 4;

/// Where a frame is to be made, and how.
pub struct NewUpload<'a> {
    /// The place.
    pub client: &'a Arc<Client>,
    /// What messages call it: its URL without secrets.
    pub path: &'a Path,
    /// A frame of this layout that is there is replaced. Without, it is an error.
    pub replace: bool,
}

/// Chunks of a sparse frame that an earlier upload sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resumed {
    /// How many.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A frame that is being uploaded.
pub struct Upload {
    path: PathBuf,
    epochs: Epochs,
    committed: Mutex<Option<Arc<FrameImage>>>,
    kind: Kind,
}

enum Kind {
    Sparse(Sparse),
    Contiguous(Box<Contiguous>),
}

impl Upload {
    /// Begins an sframe with `count` chunks at most.
    ///
    /// # Errors
    /// Something has the name that is not to be replaced; what the store answers.
    pub fn sparse(new: &NewUpload<'_>, count: u64) -> Result<Self> {
        let sending = Sending::new(new.client);
        let sparse = Sparse::begin(sending, new.path, new.replace, count)?;
        Ok(Self::of(new, Kind::Sparse(sparse)))
    }

    /// Begins a cframe with this image, where each chunk gets room for so many bytes (0 for a special one). The chunks are staged in the
    /// order of the index.
    ///
    /// # Errors
    /// As [`Upload::sparse`].
    pub fn contiguous(new: &NewUpload<'_>, image: &FrameImage, rooms: &[u32]) -> Result<Self> {
        let sending = Sending::new(new.client);
        Ok(Self::of(new, Kind::Contiguous(Box::new(Contiguous::begin(sending, new, image, rooms)?))))
    }

    fn of(new: &NewUpload<'_>, kind: Kind) -> Self {
        Upload { path: new.path.to_owned(), epochs: Epochs::default(), committed: Mutex::default(), kind }
    }

    /// Chunks of an earlier upload that were not sent again: of a contiguous frame none.
    pub fn resumed(&self) -> Resumed {
        match &self.kind {
            Kind::Sparse(sparse) => sparse.resumed(),
            Kind::Contiguous(_) => Resumed::default(),
        }
    }

    /// Its layout.
    pub fn layout(&self) -> Layout {
        match &self.kind {
            Kind::Sparse(_) => Layout::Sparse,
            Kind::Contiguous(_) => Layout::Contiguous,
        }
    }

    fn unreadable(&self) -> StoreError {
        StoreError::Io { path: self.path.clone(), action: "read", source: io::ErrorKind::Unsupported.into() }
    }
}

/// Fills `buf` with what is at an offset of a chunk that is being staged.
fn read(chunk: &dyn ReadAt, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = crate::store::frame::zeros(len)?;
    chunk.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

impl FrameStore for Upload {
    fn committed(&self) -> Option<Arc<FrameImage>> {
        self.committed.lock().clone()
    }

    fn enter(&self) -> ReadGuard<'_> {
        self.epochs.enter()
    }

    fn read_part(&self, _guard: &ReadGuard<'_>, _key: ChunkKey, _len: u32, _offset: u64, _buf: &mut [u8]) -> Result<usize> {
        Err(self.unreadable())
    }

    fn verify(&self, _guard: &ReadGuard<'_>) -> Result<()> {
        Ok(())
    }

    fn chunk_header(&self, _guard: &ReadGuard<'_>, _key: ChunkKey) -> Result<ChunkHeader> {
        Err(self.unreadable())
    }

    fn stage(&self, chunk: &dyn ReadAt) -> Result<ChunkKey> {
        match &self.kind {
            Kind::Sparse(sparse) => sparse.stage(chunk),
            Kind::Contiguous(contiguous) => contiguous.stage(chunk),
        }
    }

    fn discard(&self, _key: ChunkKey) {}

    fn pin(&self, _key: ChunkKey) {}

    fn unpin(&self, _key: ChunkKey) {}

    fn commit(&self, _guard: ReadGuard<'_>, image: FrameImage) -> Result<()> {
        match &self.kind {
            Kind::Sparse(sparse) => sparse.commit(&image)?,
            Kind::Contiguous(contiguous) => contiguous.commit(&image)?,
        }
        *self.committed.lock() = Some(Arc::new(image));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}
