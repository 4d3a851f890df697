//! A store that counts what is staged, committed and read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use crate::format::IndexEntry;
use crate::format::chunk::ChunkHeader;
use crate::store::{ChunkKey, FrameImage, FrameStore, LocalStore, ReadAt, ReadGuard, Result, StoreError};

pub struct Counting {
    pub inner: Arc<dyn FrameStore>,
    pub staged: AtomicUsize,
    pub commits: AtomicUsize,
    pub reads: AtomicUsize,
    pub hinted: AtomicUsize,
    /// Commits fail with ESTALE.
    pub stale: AtomicBool,
    /// Staging fails with ENOSPC.
    pub full: AtomicBool,
}

impl Counting {
    pub fn new(inner: Arc<dyn FrameStore>) -> Arc<Self> {
        let zero = AtomicUsize::default;
        let no = AtomicBool::default;
        Arc::new(Counting { inner, staged: zero(), commits: zero(), reads: zero(), hinted: zero(), stale: no(), full: no() })
    }

    /// Counts since the last call: chunks staged, and commits.
    pub fn since(&self) -> (usize, usize) {
        (self.staged.swap(0, SeqCst), self.commits.swap(0, SeqCst))
    }
}

impl FrameStore for Counting {
    fn committed(&self) -> Option<Arc<FrameImage>> {
        self.inner.committed()
    }

    fn enter(&self) -> ReadGuard<'_> {
        self.inner.enter()
    }

    fn read_part(&self, guard: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.reads.fetch_add(1, SeqCst);
        self.inner.read_part(guard, key, len, offset, buf)
    }

    fn verify(&self, guard: &ReadGuard<'_>) -> Result<()> {
        self.inner.verify(guard)
    }

    fn chunk_header(&self, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader> {
        self.reads.fetch_add(1, SeqCst);
        self.inner.chunk_header(guard, key)
    }

    fn chunk_lens(&self, guard: &ReadGuard<'_>, entries: &[IndexEntry<ChunkKey>]) -> Result<Vec<u32>> {
        self.inner.chunk_lens(guard, entries)
    }

    fn expect_chunks(&self, chunks: &[(ChunkKey, u32)]) {
        self.hinted.fetch_add(chunks.len(), SeqCst);
        self.inner.expect_chunks(chunks);
    }

    fn stage(&self, chunk: &dyn ReadAt) -> Result<ChunkKey> {
        if self.full.load(SeqCst) {
            let source = std::io::Error::from_raw_os_error(libc::ENOSPC);
            return Err(StoreError::Io { path: self.inner.path().into(), action: "write a chunk", source });
        }
        self.staged.fetch_add(1, SeqCst);
        self.inner.stage(chunk)
    }

    fn discard(&self, key: ChunkKey) {
        self.inner.discard(key);
    }

    fn pin(&self, key: ChunkKey) {
        self.inner.pin(key);
    }

    fn unpin(&self, key: ChunkKey) {
        self.inner.unpin(key);
    }

    fn commit(&self, guard: ReadGuard<'_>, image: FrameImage) -> Result<()> {
        self.commits.fetch_add(1, SeqCst);
        if self.stale.load(SeqCst) {
            return Err(StoreError::Stale { path: self.inner.path().into(), reason: "told so".into() });
        }
        self.inner.commit(guard, image)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn close(&self) -> Result<()> {
        self.inner.close()
    }

    fn local(&self) -> Option<&dyn LocalStore> {
        self.inner.local()
    }
}
