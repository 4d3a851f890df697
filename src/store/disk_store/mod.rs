//! A store on a local disk, for both layouts. A [`Medium`] knows where chunks lie and how a state is written; everything else is here.
//!
//! [`commit`] has the order of a commit, [`changes`] the check for changes that others make.

#![expect(private_bounds, reason = "only this layer has media")]

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::format::chunk::ChunkHeader;
use crate::format::times::Identity;
use crate::format::{ChunkId, Layout};
use crate::store::backend::{Backend, BackendFile, FileStat, FsSpace, read_exact_at};
use crate::store::cache::FrameCache;
use crate::store::chunks::Chunks;
use crate::store::error::Complain;
use crate::store::error::Failed;
use crate::store::local::beneath;
use crate::store::local::watch::{Watch, Watched};
use crate::store::location::Location;
use crate::store::lost::LostDirectory;
use crate::store::sidecar::{LAST_PATIENCE, PATIENCE, Sidecar};
use crate::store::source::{Handle, Like, Others, Source, Unfinished};
use crate::store::staged_copies::StagedCopies;
use crate::store::{
    AtClose, CacheStats, ChunkKey, DraftPool, Epochs, FrameImage, FrameStore, LocalStore, OpenOptions, ReadAt, ReadGuard, Result,
    SourceStat, SourceStore, StoreError, Want, lost,
};

pub(in crate::store) mod changes;
pub(in crate::store) mod commit;
mod open;

use changes::Detector;
use commit::{Change, CommitState};

/// A frame that was read from an open SOURCE.
pub(in crate::store) struct ReadFrame<M: Medium> {
    pub(in crate::store) image: FrameImage,
    /// The file that begins with the header, and the attributes that it had when it was read.
    pub(in crate::store) header_file: (Arc<dyn BackendFile>, FileStat),
    pub(in crate::store) commits: M::Commits,
    pub(in crate::store) parts: M::Parts,
}

/// The lock file of a frame.
pub(in crate::store) struct LockPlace {
    pub(in crate::store) dir: Arc<dyn Backend>,
    pub(in crate::store) name: std::ffi::OsString,
    pub(in crate::store) path: PathBuf,
    /// The file whose owner a new lock file gets.
    pub(in crate::store) owner: Option<FileStat>,
}

/// The layout's part of a store: where chunks lie, and how a state is written. A cframe's medium is a file, an sframe's a directory.
///
/// The caller holds the lock of `commits` where that is an argument. All else may be called from any thread.
pub(in crate::store) trait Medium: Sized + Send + Sync + 'static {
    /// Which layout SOURCE has.
    const LAYOUT: Layout;
    /// What SOURCE is, in a word.
    const KIND: &'static str;
    /// Whether reading a chunk detects that others have written it. If not, a change to the file with the header makes every chunk
    /// doubtful.
    const CHECKS_CHUNKS: bool;
    /// How many replaced files with a header stay open, so that the system does not reuse their inode numbers: the library detects a
    /// replaced file by that number. They take room on disk.
    const KEPT_OPEN: usize;
    /// What the medium adds to [`CommitState`].
    type Commits: Default + Send;
    /// What the medium keeps of a frame that was read.
    type Parts;

    // ---- opening ----

    /// Whether a file of this kind can be SOURCE.
    fn is_kind(stat: &FileStat) -> bool;
    /// Opens SOURCE by its name, and locks it for writing.
    fn open(source: &Source, write: bool) -> Result<Handle>;
    /// Creates an empty medium under a temporary name, and locks it.
    fn create(source: &Source, name: &OsStr) -> io::Result<Handle>;
    /// Opens and locks what an earlier process has left of a new frame, cut to the chunks that are there.
    fn resume(source: &Source, unfinished: &Unfinished, options: &OpenOptions) -> io::Result<Handle>;
    /// Reads a frame without its chunks. Their keys get that generation. With `whole`, a change by others in the meantime is an error.
    fn read(source: &Source, handle: &Handle, generation: u32, whole: bool) -> Result<ReadFrame<Self>>;
    /// Finds the lock file's place. A SOURCE that is not `new` must be a frame, as no lock file is made beside anything else.
    fn lock_place(source: &Source, handle: &Handle, new: bool) -> Result<LockPlace>;
    /// The medium of a frame that was read, or of a new one.
    fn new(source: &Source, handle: &Handle, parts: Option<Self::Parts>, common: Arc<Common>, options: &OpenOptions) -> Self;
    /// The generation for the keys of SOURCE's next version.
    fn next_generation(&self) -> u32;
    /// Replaces the version of SOURCE by one that was read; `another` says that SOURCE was opened anew. Nobody reads, stages or commits in
    /// the meantime. Returns what [`Medium::let_go`] frees once the new version is known.
    fn exchange(store: &DiskStore<Self>, handle: &Handle, another: bool, parts: Self::Parts) -> Self::LetGo;
    /// What is left of a version that was replaced.
    type LetGo;
    /// Frees what only the version before needed. `same` says that SOURCE is the same file or directory.
    fn let_go(store: &DiskStore<Self>, rest: Self::LetGo, same: bool);

    // ---- reading ----

    /// Fills a buffer with a chunk's bytes from an offset.
    fn read_chunk(store: &DiskStore<Self>, guard: &ReadGuard<'_>, key: ChunkKey, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Reads and checks a chunk's header, without a check for changes by others.
    fn read_header(store: &DiskStore<Self>, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader>;
    /// The store's error for a failed system call on a chunk.
    fn chunk_error(store: &DiskStore<Self>, key: ChunkKey, action: &'static str, error: io::Error) -> StoreError;
    /// See [`FrameStore::lens_of`].
    fn lens_of(store: &DiskStore<Self>, guard: &ReadGuard<'_>, keys: &[ChunkKey]) -> Vec<Option<u32>>;
    /// See [`FrameStore::prefetch`].
    fn prefetch(store: &DiskStore<Self>, wants: &[Want]);
    /// See [`SourceStore::file_id`].
    fn file_id(_key: ChunkKey) -> Option<ChunkId> {
        None
    }

    // ---- the life of a chunk ----

    /// Calls `run` with the chunks locked, and with a function that finds a chunk by its key.
    fn with_chunks<T>(store: &DiskStore<Self>, run: impl FnOnce(&mut Chunks, &Locate<'_>) -> T) -> T;
    /// Writes a chunk to free space.
    fn stage(store: &DiskStore<Self>, chunk: &dyn ReadAt, len: u32) -> Result<ChunkKey>;
    /// Frees now what nobody needs any more, if the medium does not leave that to the next commit.
    fn collect(_store: &DiskStore<Self>) {}
    /// See [`LocalStore::tidy`].
    fn tidy(_store: &DiskStore<Self>) -> bool {
        false
    }

    // ---- commits ----

    /// Writes an image whose chunks are admitted, and publishes it by [`commit::published`].
    fn write(
        store: &DiskStore<Self>,
        commits: &mut CommitState<Self>,
        image: FrameImage,
        change: &Change,
    ) -> std::result::Result<(), Failed>;
    /// Called after a commit.
    fn after_commit(_store: &DiskStore<Self>, _commits: &mut CommitState<Self>) -> Result<()> {
        Ok(())
    }
    /// Records that `image` is published; `before` is the header of the image before.
    fn published(store: &DiskStore<Self>, commits: &mut CommitState<Self>, before: &[u8], image: &FrameImage, change: &Change);
    /// Returns when the published state is on disk. SOURCE's own name may not be.
    fn sync(store: &DiskStore<Self>) -> io::Result<()>;
    /// Has the state on disk that was found, which any program may have written.
    ///
    /// # Errors
    /// What the disk answers.
    fn sync_found(store: &DiskStore<Self>) -> io::Result<()> {
        Self::sync(store)
    }
    /// Records that the published state is on disk.
    fn is_durable(_store: &DiskStore<Self>, _commits: &mut CommitState<Self>) {}
    /// Called after a sync.
    fn after_sync(store: &DiskStore<Self>, commits: &mut CommitState<Self>);
    /// Called at the end, when the published state is on disk: returns free space to the file system.
    fn finish(_store: &DiskStore<Self>, _commits: &mut CommitState<Self>) -> Result<()> {
        Ok(())
    }
    /// Removes what no state needs. Without `synced` it is not known which state is on disk: then only what was never in a state.
    fn remove_rest(_store: &DiskStore<Self>, _synced: bool) {}
    /// Called before the end: ends background reading.
    fn stop(&self) {}

    // ---- changes by others ----

    /// SOURCE's open file, and the directory if SOURCE is one.
    fn handle(&self) -> (Arc<dyn BackendFile>, Option<Arc<dyn Backend>>);
    /// Replaces SOURCE's open file by one that is locked.
    fn set_handle(store: &DiskStore<Self>, handle: &Handle);
    /// What to watch besides SOURCE's name and the file with the header.
    fn watched(&self) -> Vec<Watched> {
        Vec::new()
    }
    /// Checks the parts of SOURCE of which the system has reported writes.
    fn look_at_parts(_store: &DiskStore<Self>) {}
    /// A part of SOURCE that may be changed: whether it certainly is, and how that was noticed.
    fn suspicion(&self) -> Option<(bool, String)> {
        None
    }
    /// Checks the file with the header and its name in SOURCE; `false` if the name is gone.
    fn look_at_header(store: &DiskStore<Self>, seen: &mut Detector) -> io::Result<bool>;
    /// Whether all of SOURCE but the chunks is what was committed.
    fn is_same_frame(store: &DiskStore<Self>, image: &FrameImage, file: &dyn BackendFile, len: u64) -> bool;
    /// See [`LocalStore::identity`]. If it is too early to tell, the error is how long it is to be waited.
    fn identity(
        _store: &DiskStore<Self>,
        _commits: &CommitState<Self>,
    ) -> std::result::Result<Identity, Option<std::time::Duration>> {
        Err(None)
    }

    // ---- attributes ----

    /// See [`SourceStore::source_stat`].
    fn source_stat(store: &DiskStore<Self>) -> io::Result<SourceStat>;
    /// The file whose attributes these are.
    fn attribute_file(store: &DiskStore<Self>) -> Arc<dyn BackendFile>;
    /// See [`LocalStore::like`].
    fn like(store: &DiskStore<Self>) -> Like;
}

/// Finds a chunk's place by its key, if the key is good.
pub(in crate::store) type Locate<'a> = dyn Fn(&Chunks, ChunkKey) -> Option<u64> + 'a;

/// What background threads need as well.
pub(in crate::store) struct Common {
    pub(in crate::store) epochs: Epochs,
    pub(in crate::store) watch: Watch,
}

/// Sets the mtime of a file or directory, if the system lets this process.
pub(in crate::store) fn set_mtime(file: &dyn BackendFile, when: Option<SystemTime>) {
    if let (Some(fd), Some(_)) = (file.fd(), when) {
        let _ = beneath::set_times(fd, None, when);
    }
}

/// A store for one frame.
///
/// Lock order: `commits`, `gate`, the medium's maps, `detector`, then any one of the others. Reads take `detector` and what leads to a
/// chunk, for a moment, and no lock is held by them across input.
pub struct DiskStore<M: Medium> {
    pub(in crate::store) source: Source,
    pub(in crate::store) sidecar: Option<Sidecar>,
    pub(in crate::store) common: Arc<Common>,
    pub(in crate::store) cache: FrameCache,
    drafts: Arc<DraftPool>,
    pub(in crate::store) image: RwLock<Option<Arc<FrameImage>>>,
    pub(in crate::store) commits: Mutex<CommitState<M>>,
    /// StagedCopies for reading while a chunk is being staged, for writing while SOURCE's file is being replaced.
    pub(in crate::store) gate: RwLock<()>,
    /// The state found at open is known to be on disk, so that space which it does not need is free.
    pub(in crate::store) grounded: AtomicBool,
    pub(in crate::store) detector: Mutex<Detector>,
    pub(in crate::store) copies: StagedCopies,
    /// The directory for bytes that do not fit into SOURCE.
    lost: Mutex<LostDirectory>,
    /// See [`LocalStore::set_written`].
    pub(in crate::store) written: Mutex<(Option<SystemTime>, Option<SystemTime>)>,
    pub(in crate::store) at_close: Mutex<Vec<AtClose>>,
    pub(in crate::store) medium: M,
}

impl<M: Medium> DiskStore<M> {
    /// The error of a system call that has to do with SOURCE.
    pub(in crate::store) fn io(&self, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        move |error| match error.raw_os_error() {
            Some(libc::ESTALE) => {
                let reason = self.detector.lock().stale().map(str::to_owned);
                self.source.stale(reason.unwrap_or_else(|| "it was replaced meanwhile".to_owned()))
            }
            _ => self.source.io(action)(error),
        }
    }

    /// Gives the file with the header of a state that is being committed the mtime of the change. Only its owner may do that; elsewhere it
    /// keeps the time of the commit.
    pub(in crate::store) fn give_mtime(&self, file: &dyn BackendFile) {
        set_mtime(file, self.written.lock().0);
    }

    /// Does something that changes attributes of SOURCE. The caller lets no commit be made meanwhile.
    fn with_attributes(&self, work: &mut dyn FnMut()) {
        let file = self.detector.lock().begin_attributes();
        work();
        if let Some(file) = file {
            self.detector.lock().end_attributes(&*file);
        }
    }

    /// Allows writing to free space. The state found at open may not be on disk, if its writer was killed; an older state on disk may
    /// need that space. So it is synced first.
    fn grounded(&self) -> Result<RwLockReadGuard<'_, ()>> {
        loop {
            if !self.grounded.load(Relaxed) {
                commit::ground(self)?;
            }
            let gate = self.gate.read();
            // While the gate is held, SOURCE is not reloaded.
            if self.grounded.load(Relaxed) {
                return Ok(gate);
            }
        }
    }

    /// Changes a chunk's record, if the key is good.
    fn with_chunk(&self, key: ChunkKey, change: impl FnOnce(&mut Chunks, u64)) {
        if !self.source.read_only {
            M::with_chunks(self, |chunks, locate| {
                if let Some(place) = locate(chunks, key) {
                    change(chunks, place);
                }
            });
        }
    }
}

impl<M: Medium> FrameStore for DiskStore<M> {
    fn committed(&self) -> Option<Arc<FrameImage>> {
        self.image.read().clone()
    }

    fn enter(&self) -> ReadGuard<'_> {
        self.common.epochs.enter()
    }

    fn read_part(&self, guard: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let load = |buf: &mut [u8], offset: u64| M::read_chunk(self, guard, key, buf, offset);
        let failed = |error| M::chunk_error(self, key, "read a chunk", error);
        if guard.is_to_save() {
            if let Some(read) = self.copies.read(key, len, offset, buf, |buf| load(buf, 0)) {
                return read.map_err(failed);
            }
            let read = self.cache.read(key, len, offset, buf, load).map_err(failed);
            return if M::CHECKS_CHUNKS { read } else { self.check_bytes().and(read) };
        }
        let read = self.cache.read(key, len, offset, buf, load);
        read.map_err(|error| self.verify(guard).err().unwrap_or_else(|| failed(error)))
    }

    fn verify(&self, guard: &ReadGuard<'_>) -> Result<()> {
        if !guard.is_to_save() {
            self.check_bytes()?;
        }
        if guard.is_current() { Ok(()) } else { Err(self.source.stale("it has been read again meanwhile")) }
    }

    fn chunk_header(&self, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader> {
        let header = M::read_header(self, guard, key);
        self.verify(guard)?;
        header
    }

    fn lens_of(&self, guard: &ReadGuard<'_>, keys: &[ChunkKey]) -> Vec<Option<u32>> {
        let lens = M::lens_of(self, guard, keys);
        if self.verify(guard).is_ok() { lens } else { vec![None; keys.len()] }
    }

    fn prefetch(&self, wants: &[Want]) {
        M::prefetch(self, wants);
    }

    fn stage(&self, chunk: &dyn ReadAt) -> Result<ChunkKey> {
        self.check_writable()?;
        let len = self.source.chunk_len(chunk)?;
        let _turn = self.wait_for_turn(PATIENCE)?;
        let _gate = self.grounded()?;
        let key = M::stage(self, chunk, len)?;
        self.copies.put(key, chunk);
        Ok(key)
    }

    fn discard(&self, key: ChunkKey) {
        self.copies.forget(key);
        self.with_chunk(key, |chunks, place| chunks.discard(place, self.common.epochs.now()));
        M::collect(self);
    }

    fn pin(&self, key: ChunkKey) {
        self.with_chunk(key, Chunks::pin);
    }

    fn unpin(&self, key: ChunkKey) {
        self.with_chunk(key, |chunks, place| chunks.unpin(place, self.common.epochs.now()));
        M::collect(self);
    }

    fn commit(&self, guard: ReadGuard<'_>, image: FrameImage) -> Result<()> {
        let _turn = self.wait_for_turn(PATIENCE)?;
        commit::commit(self, guard, image)?;
        self.sidecar.as_ref().map_or(Ok(()), Sidecar::committed)
    }

    fn sync(&self) -> Result<()> {
        let _turn = self.wait_for_turn(PATIENCE)?;
        commit::sync(self)
    }

    fn close(&self) -> Result<()> {
        self.medium.stop();
        self.cache.clear();
        if self.source.read_only {
            return Ok(());
        }
        if !self.grounded.load(Relaxed) && !self.commits.lock().has_written() {
            // Nobody is waited for who is at work meanwhile, or has to look for what was done.
            let turn = self.sidecar.as_ref().map(Sidecar::to_read).transpose();
            return commit::close(self, !matches!(turn, Ok(Some(None)) | Err(_)));
        }
        let turn = self.wait_for_turn(LAST_PATIENCE);
        let closed = commit::close(self, turn.is_ok());
        turn.and(closed)
    }

    fn source_store(&self) -> Option<&dyn SourceStore> {
        Some(self)
    }

    fn local(&self) -> Option<&dyn LocalStore> {
        Some(self)
    }
}

impl<M: Medium> SourceStore for DiskStore<M> {
    fn path(&self) -> PathBuf {
        self.source.called()
    }

    fn file_id(&self, key: ChunkKey) -> Option<ChunkId> {
        M::file_id(key)
    }

    fn look(&self) -> Result<Others> {
        self.look_at_source(&self.commits.lock())
    }

    fn glance(&self) -> Option<Result<Others>> {
        self.commits.try_lock().map(|commits| self.look_at_source(&commits))
    }

    fn is_as_seen(&self) -> bool {
        self.looks_as_seen()
    }

    fn reload(&self) -> Result<Arc<FrameImage>> {
        self.read_again()
    }

    fn watch(&self) -> &Watch {
        &self.common.watch
    }

    fn check_writable(&self) -> Result<()> {
        self.claim();
        self.source.check_writable()
    }

    fn source_stat(&self) -> Result<SourceStat> {
        M::source_stat(self).map_err(self.io("stat"))
    }

    fn statvfs(&self) -> Result<FsSpace> {
        let (_, dir) = self.medium.handle();
        dir.unwrap_or_else(|| self.source.backend()).statvfs().map_err(self.io("stat the file system"))
    }

    fn forget_cached(&self) {
        self.cache.clear();
    }

    fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }
}

impl<M: Medium> LocalStore for DiskStore<M> {
    fn set_written(&self, file: SystemTime, directory: Option<SystemTime>) {
        *self.written.lock() = (Some(file), directory);
    }

    fn set_attributes(&self, work: &mut dyn FnMut()) {
        // A commit that is made meanwhile would have put another file with the header in place.
        let _no_commit = self.commits.lock();
        self.with_attributes(work);
    }

    fn relocate(&self, to: &Location, work: &mut dyn FnMut() -> bool) -> Result<()> {
        let commits = self.commits.lock();
        if commits.is_pending() || commits.is_closed() || self.sidecar.is_some() {
            return Err(self.source.unsupported("cannot be moved while it is in use"));
        }
        if let Some(reason) = self.seen_outside(&commits)? {
            return Err(self.source.stale(reason));
        }
        let mut is_moved = false;
        // Its file gets another time by the move.
        self.with_attributes(&mut || is_moved = work());
        if is_moved {
            self.source.is_at(to);
            self.watch_files();
        }
        Ok(())
    }

    fn tidy(&self) -> bool {
        M::tidy(self)
    }

    fn save_lost(&self, name: &str, content: &dyn ReadAt) -> Result<PathBuf> {
        lost::save(&self.source, &self.lost, name, content, self.medium.handle().0.stat().ok())
    }

    fn save_itself(&self) -> Option<Result<PathBuf>> {
        let _no_commit = self.commits.lock();
        let (file, _) = self.medium.handle();
        let stat = match file.stat() {
            Ok(stat) if stat.is_file() => stat,
            Ok(_) => return None,
            Err(error) => return Some(Err(self.io("stat")(error))),
        };
        let name = self.source.place().name().to_string_lossy().into_owned();
        let content = super::frame::FileBytes { file: &*file, len: stat.len };
        Some(lost::save(&self.source, &self.lost, &name, &content, Some(stat)))
    }

    fn read_source(&self, guard: &ReadGuard<'_>, offset: u64, buf: &mut [u8]) -> Result<bool> {
        if M::LAYOUT != Layout::Contiguous {
            return Ok(false);
        }
        let read = read_exact_at(&*self.medium.handle().0, buf, offset).map_err(self.io("read"));
        read.map(|()| true).map_err(|error| self.verify(guard).err().unwrap_or(error))
    }

    fn source(&self) -> Option<(OwnedFd, PathBuf)> {
        if self.source.is_denied() {
            return None; // it is another's
        }
        Some((self.medium.handle().0.fd()?.try_clone_to_owned().ok()?, self.path()))
    }

    fn access_list(&self) -> Result<Option<Vec<u8>>> {
        M::attribute_file(self).access_list().map_err(self.io("read the access list"))
    }

    fn like(&self) -> Result<Like> {
        Ok(M::like(self))
    }

    fn sidecar(&self) -> Option<&Sidecar> {
        self.sidecar.as_ref()
    }

    fn drafts(&self) -> &Arc<DraftPool> {
        &self.drafts
    }

    fn identity(&self) -> Option<Identity> {
        M::identity(self, &self.commits.lock()).ok()
    }

    fn at_close(&self, last: AtClose) {
        self.at_close.lock().push(last);
    }
}

impl<M: Medium> Drop for DiskStore<M> {
    fn drop(&mut self) {
        self.medium.stop();
        commit::abandon(self);
    }
}
