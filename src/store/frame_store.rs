//! What a store of frames must do, and what one on a local disk does besides.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{
    CacheStats, ChunkKey, DraftPool, FrameImage, FsSpace, Like, Others, ReadAt, ReadGuard, Result, Sidecar, SourceStat,
    StoreError, Turn, Watch,
};
use crate::format::chunk::ChunkHeader;
use crate::format::times::Identity;
use crate::format::{ChunkId, IndexEntry};

/// See [`LocalStore::at_close`].
pub type AtClose = Box<dyn FnOnce(Option<Identity>) + Send>;

/// A frame: a list of chunks between a header and a trailer. Every method may be called from any thread.
///
/// After a failed write or sync every later `stage`, `commit` and `sync` answers [`StoreError::Poisoned`]
/// with the first failure's words; reading goes on.
pub trait FrameStore: Send + Sync {
    /// The last committed image; `None` for a SOURCE that does not exist yet.
    fn committed(&self) -> Option<Arc<FrameImage>>;

    /// See [`ReadGuard`].
    fn enter(&self) -> ReadGuard<'_>;

    /// Reads `buf.len()` bytes of a stored chunk from `offset` on; a short count means the chunk ends there. What was read is good only if
    /// [`FrameStore::verify`] says so
    /// afterwards.
    fn read_part(&self, guard: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// What was read with this guard until now is of the version of SOURCE that there was when the guard was taken.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if that is not known to be so.
    fn verify(&self, guard: &ReadGuard<'_>) -> Result<()>;

    /// Reads and checks a stored chunk's header: its sizes agree with each other and with the room it has in SOURCE.
    fn chunk_header(&self, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader>;

    /// The lengths of chunks in bytes by their headers, which are read together where they lie close to each other: what has no
    /// length, [`FrameStore::chunk_header`] says the error of.
    fn lens_of(&self, guard: &ReadGuard<'_>, keys: &[ChunkKey]) -> Vec<Option<u32>> {
        keys.iter().map(|key| self.chunk_header(guard, *key).ok().map(|header| header.cbytes)).collect()
    }

    /// Lengths in bytes of the chunks of an index, in order; 0 for a special one. What a store knows from opening costs
    /// nothing more; otherwise every header is read.
    fn chunk_lens(&self, guard: &ReadGuard<'_>, entries: &[IndexEntry<ChunkKey>]) -> Result<Vec<u32>> {
        let len = |entry: &IndexEntry<ChunkKey>| match entry {
            IndexEntry::Stored(key) => Ok(self.chunk_header(guard, *key)?.cbytes),
            IndexEntry::Special(_) => Ok(0),
        };
        entries.iter().map(len).collect()
    }

    /// These chunks, with their lengths, will be read soon and whole, in this order: a hint, which costs the caller no waiting.
    fn expect_chunks(&self, _chunks: &[(ChunkKey, u32)]) {}

    /// A chunk whose length nobody knows yet will be read soon: its header first, then all of it. It has as many bytes as are
    /// before `next`, the chunk behind it in the index, if that is no more than the end of the range; or else it is likely to have
    /// as many as its beginning. A hint, which costs the caller no waiting.
    fn expect_unknown(&self, _key: ChunkKey, _bytes: RangeInclusive<u32>, _next: Option<ChunkKey>) {}

    /// Writes a new chunk's bytes where no durable state has any, without making it part of the frame.
    fn stage(&self, chunk: &dyn ReadAt) -> Result<ChunkKey>;

    /// Gives back a staged chunk that never was in an image handed to `commit`. Of any other key it is a no-op.
    fn discard(&self, key: ChunkKey);

    /// Keeps a key good although no image names it any more, for a file that was removed while open. Counted.
    fn pin(&self, key: ChunkKey);

    /// Takes one `pin` back.
    fn unpin(&self, key: ChunkKey);

    /// Makes `image` what SOURCE holds: at every instant until this returns, and after any crash, SOURCE is the last durable
    /// state or this one. Durable at the latest with the next `commit` or [`FrameStore::sync`]. Readers are not held up.
    ///
    /// Keys stay what they are, wherever the store moves the chunks. `guard` is one that was taken **before** the image was put
    /// together: it keeps chunks good that other threads discard in between. From the call on nobody may take a guard and then
    /// look up a key that the image has dropped, unless that is pinned.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if another process has changed SOURCE since this store last read or wrote it;
    /// [`StoreError::Format`] for an image whose header and entries disagree, or which names what is not stored; ENOSPC, after
    /// which all is as before and another commit may succeed.
    fn commit(&self, guard: ReadGuard<'_>, image: FrameImage) -> Result<()>;

    /// Returns when the last committed image is on disk.
    fn sync(&self) -> Result<()>;

    /// The end: makes the last commit durable, gives what the frame does not need back, and releases the frame.
    fn close(&self) -> Result<()>;

    /// What it does besides, if the frame is on a local disk.
    fn local(&self) -> Option<&dyn LocalStore> {
        None
    }
}

/// What a view asks of any store: what there is on a local disk, or what holds elsewhere.
impl dyn FrameStore + '_ {
    /// Reads `buf.len()` bytes of a stored chunk from `offset` on; a short count means the chunk ends there.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if others have changed SOURCE since the guard was taken; what the system refuses.
    pub fn read_chunk(&self, guard: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let count = self.read_part(guard, key, len, offset, buf)?;
        self.verify(guard)?;
        Ok(count)
    }

    /// As [`FrameStore::enter`], to save what a mount holds: what of it is in SOURCE can be read for as long as it is there, whatever
    /// else others have done to SOURCE.
    pub fn enter_to_save(&self) -> ReadGuard<'_> {
        self.enter().saving()
    }

    /// See [`LocalStore::path`]; what messages call it elsewhere.
    pub fn path(&self) -> &Path {
        self.local().map_or(Path::new("frame"), LocalStore::path)
    }

    /// See [`LocalStore::file_id`].
    pub fn file_id(&self, key: ChunkKey) -> Option<ChunkId> {
        self.local()?.file_id(key)
    }

    /// See [`LocalStore::look`].
    ///
    /// # Errors
    /// What the system refuses.
    pub fn look(&self) -> Result<Others> {
        self.local().map_or(Ok(Others::Nothing), LocalStore::look)
    }

    /// See [`LocalStore::glance`].
    pub fn glance(&self) -> Option<Result<Others>> {
        self.local().map_or(Some(Ok(Others::Nothing)), LocalStore::glance)
    }

    /// See [`LocalStore::is_as_seen`].
    pub fn is_as_seen(&self) -> bool {
        self.local().is_none_or(LocalStore::is_as_seen)
    }

    /// See [`LocalStore::reload`].
    ///
    /// # Errors
    /// What the system refuses; what is no frame.
    pub fn reload(&self) -> Result<()> {
        self.local().map_or(Ok(()), |local| local.reload().map(drop))
    }

    /// See [`LocalStore::watch`].
    pub fn watch(&self) -> Option<&Watch> {
        self.local().map(LocalStore::watch)
    }

    /// See [`LocalStore::forget_cached`].
    pub fn forget_cached(&self) {
        if let Some(local) = self.local() {
            local.forget_cached();
        }
    }

    /// See [`LocalStore::cache_stats`].
    pub fn cache_stats(&self) -> CacheStats {
        self.local().map_or_else(CacheStats::default, LocalStore::cache_stats)
    }

    /// See [`LocalStore::save_lost`].
    ///
    /// # Errors
    /// What the system refuses; that there is no place for it.
    pub fn save_lost(&self, name: &str, content: &dyn ReadAt) -> Result<PathBuf> {
        self.local().ok_or_else(|| self.not_local("save what has no place in the frame"))?.save_lost(name, content)
    }

    /// See [`LocalStore::statvfs`].
    ///
    /// # Errors
    /// What the system refuses; that the frame is not on a local disk.
    pub fn statvfs(&self) -> Result<FsSpace> {
        self.local().ok_or_else(|| self.not_local("stat the file system"))?.statvfs()
    }

    fn not_local(&self, action: &'static str) -> StoreError {
        StoreError::Io { path: self.path().to_owned(), action, source: io::ErrorKind::Unsupported.into() }
    }

    /// See [`LocalStore::changed_outside`].
    ///
    /// # Errors
    /// What the system refuses.
    pub fn changed_outside(&self) -> Result<bool> {
        self.local().map_or(Ok(false), LocalStore::changed_outside)
    }

    /// See [`LocalStore::check_writable`].
    ///
    /// # Errors
    /// Why not.
    pub fn check_writable(&self) -> Result<()> {
        self.local().map_or(Ok(()), LocalStore::check_writable)
    }

    /// See [`LocalStore::tidy`].
    pub fn tidy(&self) -> bool {
        self.local().is_some_and(LocalStore::tidy)
    }

    /// See [`LocalStore::source`].
    pub fn source(&self) -> Option<(OwnedFd, PathBuf)> {
        self.local()?.source()
    }

    /// See [`LocalStore::source_stat`]; elsewhere all belongs to the user of this process.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn source_stat(&self) -> Result<SourceStat> {
        self.local().map_or_else(|| Ok(SourceStat::of_this_process()), LocalStore::source_stat)
    }

    /// See [`LocalStore::sidecar`].
    pub fn sidecar(&self) -> Option<&Sidecar> {
        self.local()?.sidecar()
    }

    /// See [`LocalStore::wait_for_turn`].
    ///
    /// # Errors
    /// As [`Sidecar::wait_to_write`].
    pub fn wait_for_turn(&self, patience: Duration) -> Result<Option<Turn<'_>>> {
        self.local().map_or(Ok(None), |local| local.wait_for_turn(patience))
    }

    /// See [`LocalStore::identity`].
    pub fn identity(&self) -> Option<Identity> {
        self.local()?.identity()
    }

    /// See [`LocalStore::at_close`].
    pub fn at_close(&self, last: AtClose) {
        if let Some(local) = self.local() {
            local.at_close(last);
        }
    }
}

/// What a store on a local disk does besides: SOURCE has a path, attributes and room, others may change it, and it can be locked.
pub trait LocalStore: FrameStore {
    /// SOURCE as the user named it.
    fn path(&self) -> &Path;

    /// The id of the file that holds a stored chunk, in a store that has a file for each.
    fn file_id(&self, _key: ChunkKey) -> Option<ChunkId> {
        None
    }

    /// What others have done to SOURCE since this store last read or wrote it.
    fn look(&self) -> Result<Others>;

    /// The same, unless a commit or a sync would have to be waited for.
    fn glance(&self) -> Option<Result<Others>>;

    /// Whether others have left SOURCE alone, as far as a glance tells that waits for nothing.
    fn is_as_seen(&self) -> bool;

    /// Reads SOURCE again, which others may have changed: what has its name now. No key that was given out before is good any more, and
    /// what was read with an older guard is refused. Nothing may be staged, pinned or in an image to be committed. What is no frame
    /// changes nothing.
    fn reload(&self) -> Result<Arc<FrameImage>>;

    /// Tells who waits in it that others may have done something to SOURCE.
    fn watch(&self) -> &Watch;

    /// Whether this store writes to SOURCE. Where another mount had a SOURCE that took the place of the one before, that is tried again.
    ///
    /// # Errors
    /// Why not.
    fn check_writable(&self) -> Result<()>;

    /// Does some of the work that nobody waits for, and says whether there is more. To be called now and then, by one thread.
    fn tidy(&self) -> bool {
        false
    }

    /// Saves bytes that found no place in the frame to `SOURCE.lost/NAME`, never over an older file; returns where.
    fn save_lost(&self, name: &str, content: &dyn ReadAt) -> Result<PathBuf>;

    /// SOURCE as it is open, and where it is, as the user named it.
    fn source(&self) -> Option<(OwnedFd, PathBuf)> {
        None
    }

    /// For attributes of the view.
    fn source_stat(&self) -> Result<SourceStat>;

    /// The open files of SOURCE, for a copy that is to have their owner, mode and attributes.
    fn like(&self) -> Result<Like>;

    /// What there is in the file system that holds SOURCE.
    fn statvfs(&self) -> Result<FsSpace>;

    /// The lock file by which SOURCE is shared with other processes, where locking was asked for.
    fn sidecar(&self) -> Option<&Sidecar> {
        None
    }

    /// Where a client's unfinished writes are held.
    fn drafts(&self) -> &Arc<DraftPool>;

    /// Forgets what it has in memory of chunks.
    fn forget_cached(&self);

    /// Cache counts.
    fn cache_stats(&self) -> CacheStats;

    /// Which state of SOURCE's file this store has, if nothing that happens to the file from now on leaves it the same.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Has [`FrameStore::close`] call this when it writes nothing more to SOURCE, before others may have it, with the state that SOURCE is
    /// left in.
    fn at_close(&self, _last: AtClose) {}

    /// Whether another process has changed or replaced SOURCE since this store last read or wrote it.
    fn changed_outside(&self) -> Result<bool> {
        Ok(self.look()?.hindrance().is_some())
    }

    /// Waits for the turn to change SOURCE, where others are to be given theirs. Whoever commits without having it waits for it
    /// then.
    ///
    /// # Errors
    /// As [`Sidecar::wait_to_write`].
    fn wait_for_turn(&self, patience: Duration) -> Result<Option<Turn<'_>>> {
        self.sidecar().map(|sidecar| sidecar.wait_to_write(patience)).transpose()
    }
}
