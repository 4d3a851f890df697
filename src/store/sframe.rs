//! An sframe: a directory of `chunks.b2frame` and a file for each stored chunk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{CacheStats, ChunkKey, DraftPool, FrameImage, FrameStore, OpenOptions, ReadAt, ReadGuard, Result, SourceStat};
use crate::format::chunk::ChunkHeader;

/// A store for one sframe.
pub struct SframeStore {}

impl SframeStore {
    /// Opens a frame.
    ///
    /// # Errors
    /// What the system refuses; a directory that is no sframe; chunk files that are missing or damaged, all of them by name up
    /// to a readable number; another mount that writes to it.
    pub fn open(_path: &Path, _options: OpenOptions) -> Result<Self> {
        unimplemented!()
    }

    /// A store for a frame that does not exist yet: it comes into being, whole, with the first commit.
    ///
    /// # Errors
    /// What the system refuses; a name that exists.
    pub fn create(_path: &Path, _options: OpenOptions) -> Result<Self> {
        unimplemented!()
    }
}

impl FrameStore for SframeStore {
    fn path(&self) -> &Path {
        unimplemented!()
    }
    fn committed(&self) -> Option<Arc<FrameImage>> {
        unimplemented!()
    }
    fn enter(&self) -> ReadGuard<'_> {
        unimplemented!()
    }
    fn read_chunk(&self, _guard: &ReadGuard<'_>, _key: ChunkKey, _len: u32, _offset: u64, _buf: &mut [u8]) -> Result<usize> {
        unimplemented!()
    }
    fn chunk_header(&self, _guard: &ReadGuard<'_>, _key: ChunkKey) -> Result<ChunkHeader> {
        unimplemented!()
    }
    fn stage(&self, _chunk: &dyn ReadAt) -> Result<ChunkKey> {
        unimplemented!()
    }
    fn discard(&self, _key: ChunkKey) {
        unimplemented!()
    }
    fn pin(&self, _key: ChunkKey) {
        unimplemented!()
    }
    fn unpin(&self, _key: ChunkKey) {
        unimplemented!()
    }
    fn commit(&self, _guard: ReadGuard<'_>, _image: FrameImage) -> Result<()> {
        unimplemented!()
    }
    fn sync(&self) -> Result<()> {
        unimplemented!()
    }
    fn changed_outside(&self) -> Result<bool> {
        unimplemented!()
    }
    fn reload(&self) -> Result<Arc<FrameImage>> {
        unimplemented!()
    }
    fn save_lost(&self, _name: &str, _content: &dyn ReadAt) -> Result<PathBuf> {
        unimplemented!()
    }
    fn source_stat(&self) -> Result<SourceStat> {
        unimplemented!()
    }
    fn statvfs(&self) -> Result<libc::statvfs> {
        unimplemented!()
    }
    fn drafts(&self) -> &Arc<DraftPool> {
        unimplemented!()
    }
    fn cache_stats(&self) -> CacheStats {
        unimplemented!()
    }
    fn close(&self) -> Result<()> {
        unimplemented!()
    }
}
