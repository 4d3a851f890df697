//! A store that counts what is staged, committed and read, and panics where I/O is asked of it by a thread that has locked what
//! readers need. All views of these tests are over one.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;

use crate::format::ChunkId;
use crate::format::chunk::ChunkHeader;
use crate::format::times::Identity;
use crate::store::*;
use crate::view::state_lock::held::check;

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
    /// Called when SOURCE has been read again.
    pub reloaded: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Counting {
    pub fn new(inner: Arc<dyn FrameStore>) -> Arc<Self> {
        let zero = AtomicUsize::default;
        let no = AtomicBool::default;
        let (staged, commits, reads, hinted) = (zero(), zero(), zero(), zero());
        Arc::new(Counting { inner, staged, commits, reads, hinted, stale: no(), full: no(), reloaded: Mutex::default() })
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
        check("read_part");
        self.reads.fetch_add(1, SeqCst);
        self.inner.read_part(guard, key, len, offset, buf)
    }

    fn verify(&self, guard: &ReadGuard<'_>) -> Result<()> {
        self.inner.verify(guard)
    }

    fn chunk_header(&self, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader> {
        check("chunk_header");
        self.reads.fetch_add(1, SeqCst);
        self.inner.chunk_header(guard, key)
    }

    fn len_of(&self, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<u32> {
        check("len_of");
        self.reads.fetch_add(1, SeqCst);
        self.inner.len_of(guard, key)
    }

    fn lens_of(&self, guard: &ReadGuard<'_>, keys: &[ChunkKey]) -> Vec<Option<u32>> {
        check("lens_of");
        self.inner.lens_of(guard, keys)
    }

    fn prefetch(&self, wants: &[Want]) {
        check("prefetch");
        self.hinted.fetch_add(wants.iter().filter_map(Want::known).count(), SeqCst);
        self.inner.prefetch(wants);
    }

    fn stage(&self, chunk: &dyn ReadAt) -> Result<ChunkKey> {
        check("stage");
        if self.full.load(SeqCst) {
            let source = std::io::Error::from_raw_os_error(libc::ENOSPC);
            return Err(StoreError::Io { path: self.inner.path(), action: "write a chunk", source });
        }
        self.staged.fetch_add(1, SeqCst);
        self.inner.stage(chunk)
    }

    fn discard(&self, key: ChunkKey) {
        check("discard");
        self.inner.discard(key);
    }

    fn pin(&self, key: ChunkKey) {
        self.inner.pin(key);
    }

    fn unpin(&self, key: ChunkKey) {
        check("unpin");
        self.inner.unpin(key);
    }

    fn commit(&self, guard: ReadGuard<'_>, image: FrameImage) -> Result<()> {
        check("commit");
        self.commits.fetch_add(1, SeqCst);
        if self.stale.load(SeqCst) {
            return Err(StoreError::Stale { path: self.inner.path(), reason: "told so".into() });
        }
        self.inner.commit(guard, image)
    }

    fn sync(&self) -> Result<()> {
        check("sync");
        self.inner.sync()
    }

    fn close(&self) -> Result<()> {
        check("close");
        self.inner.close()
    }

    fn source_store(&self) -> Option<&dyn SourceStore> {
        Some(self)
    }

    fn local(&self) -> Option<&dyn LocalStore> {
        Some(self)
    }
}

impl Counting {
    fn here(&self) -> &dyn LocalStore {
        self.inner.local().expect("a store on the local disk")
    }
}

impl SourceStore for Counting {
    fn path(&self) -> PathBuf {
        self.here().path()
    }

    fn file_id(&self, key: ChunkKey) -> Option<ChunkId> {
        self.here().file_id(key)
    }

    fn look(&self) -> Result<Others> {
        check("look");
        self.here().look()
    }

    fn glance(&self) -> Option<Result<Others>> {
        check("glance");
        self.here().glance()
    }

    fn is_as_seen(&self) -> bool {
        check("is_as_seen");
        self.here().is_as_seen()
    }

    fn reload(&self) -> Result<Arc<FrameImage>> {
        check("reload");
        let image = self.here().reload();
        if let Some(reloaded) = self.reloaded.lock().take() {
            reloaded();
        }
        image
    }

    fn watch(&self) -> &Watch {
        self.here().watch()
    }

    fn check_writable(&self) -> Result<()> {
        check("check_writable");
        self.here().check_writable()
    }

    fn source_stat(&self) -> Result<SourceStat> {
        check("source_stat");
        self.here().source_stat()
    }

    fn statvfs(&self) -> Result<crate::store::FsSpace> {
        check("statvfs");
        self.here().statvfs()
    }

    fn forget_cached(&self) {
        self.here().forget_cached();
    }

    fn cache_stats(&self) -> CacheStats {
        self.here().cache_stats()
    }
}

impl LocalStore for Counting {
    fn set_attributes(&self, work: &mut dyn FnMut()) {
        self.here().set_attributes(work);
    }

    fn relocate(&self, to: &Location, work: &mut dyn FnMut() -> bool) -> Result<()> {
        self.here().relocate(to, work)
    }

    fn tidy(&self) -> bool {
        check("tidy");
        self.here().tidy()
    }

    fn save_lost(&self, name: &str, content: &dyn ReadAt) -> Result<PathBuf> {
        check("save_lost");
        self.here().save_lost(name, content)
    }

    fn save_itself(&self) -> Option<Result<PathBuf>> {
        check("save_itself");
        self.here().save_itself()
    }

    fn read_source(&self, guard: &ReadGuard<'_>, offset: u64, buf: &mut [u8]) -> Result<bool> {
        check("read_source");
        self.here().read_source(guard, offset, buf)
    }

    fn source(&self) -> Option<(OwnedFd, PathBuf)> {
        check("source");
        self.here().source()
    }

    fn access_list(&self) -> Result<Option<Vec<u8>>> {
        check("the access list");
        self.here().access_list()
    }

    fn like(&self) -> Result<Like> {
        check("like");
        self.here().like()
    }

    fn sidecar(&self) -> Option<&Sidecar> {
        check("the lock file");
        self.here().sidecar()
    }

    fn drafts(&self) -> &Arc<DraftPool> {
        self.here().drafts()
    }

    fn identity(&self) -> Option<Identity> {
        check("identity");
        self.here().identity()
    }

    fn at_close(&self, last: AtClose) {
        self.here().at_close(last);
    }

    fn changed_outside(&self) -> Result<bool> {
        check("changed_outside");
        self.here().changed_outside()
    }

    fn wait_for_turn(&self, patience: Duration) -> Result<Option<FrameLock<'_>>> {
        check("wait_for_turn");
        self.here().wait_for_turn(patience)
    }
}
