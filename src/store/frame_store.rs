//! The interface of a store: [`FrameStore`] is what every store does, [`SourceStore`] what one does besides whose frame has a name and may
//! be changed by others, and [`LocalStore`] what only one on a local disk does.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{
    CacheStats, ChunkKey, DraftPool, FrameImage, FrameLock, FsSpace, Like, Location, Others, ReadAt, ReadGuard, Result, Sidecar,
    SourceStat, StoreError, Watch,
};
use crate::format::chunk::ChunkHeader;
use crate::format::times::Identity;
use crate::format::{ChunkId, IndexEntry};

/// See [`LocalStore::at_close`].
pub type AtClose = Box<dyn FnOnce(Option<Identity>) + Send>;

/// A chunk that will be read soon, from its beginning to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// It has so many bytes.
    Known(ChunkKey, u32),
    /// Nobody knows its length yet, so its header is read first. It has as many bytes as are before the next one, if these are no more
    /// than `most`; or else it is likely to have so many.
    Unknown {
        /// Which.
        key: ChunkKey,
        /// How many bytes are likely.
        likely: u32,
        /// How many it has at most.
        most: u32,
        /// The chunk behind it in the index.
        next: Option<ChunkKey>,
    },
}

impl Want {
    /// The chunk and its length, if that is known.
    pub fn known(&self) -> Option<(ChunkKey, u32)> {
        if let Want::Known(key, len) = self { Some((*key, *len)) } else { None }
    }
}

/// A frame: a list of chunks between a header and a trailer. Every method may be called from any thread.
///
/// After a failed write or sync every later `stage`, `commit` and `sync` fails with [`StoreError::Poisoned`], which tells the first
/// failure. Reading goes on.
#[expect(clippy::missing_errors_doc, reason = "what the system refuses, where a method says nothing else")]
pub trait FrameStore: Send + Sync {
    /// The last committed image; `None` while the frame does not exist yet.
    fn committed(&self) -> Option<Arc<FrameImage>>;

    /// See [`ReadGuard`].
    fn enter(&self) -> ReadGuard<'_>;

    /// Reads `buf.len()` bytes of a stored chunk from `offset` on; a short count means that the chunk ends there. The bytes may be used
    /// only if [`FrameStore::verify`] succeeds afterwards.
    fn read_part(&self, guard: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Checks that everything read with this guard belongs to the version of the frame that was there when the guard was taken.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if others have changed the frame since, or may have.
    fn verify(&self, guard: &ReadGuard<'_>) -> Result<()>;

    /// Reads a stored chunk's header and checks that its sizes agree with each other and with the chunk's room.
    fn chunk_header(&self, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader>;

    /// The headers of chunks, in their order. A store that is far away is asked for many at one time, and has no more of them in memory than
    /// it would have anyhow.
    ///
    /// # Errors
    /// As [`FrameStore::chunk_header`].
    fn chunk_headers(&self, guard: &ReadGuard<'_>, keys: &mut dyn Iterator<Item = ChunkKey>) -> Result<Vec<ChunkHeader>> {
        keys.map(|key| self.chunk_header(guard, key)).collect()
    }

    /// The length of a chunk in bytes: by its header, or by another word for it that costs less.
    ///
    /// # Errors
    /// As [`FrameStore::chunk_header`].
    fn len_of(&self, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<u32> {
        self.chunk_header(guard, key).map(|header| header.cbytes)
    }

    /// The lengths of chunks in bytes by their headers, which are read together where they lie close to each other: what has no
    /// length, [`FrameStore::chunk_header`] says the error of.
    fn lens_of(&self, guard: &ReadGuard<'_>, keys: &[ChunkKey]) -> Vec<Option<u32>> {
        keys.iter().map(|key| self.chunk_header(guard, *key).ok().map(|header| header.cbytes)).collect()
    }

    /// These chunks will be read soon, in this order: a hint, which costs the caller no waiting.
    fn prefetch(&self, _wants: &[Want]) {}

    /// Writes a new chunk to free space, without making it part of the frame.
    fn stage(&self, chunk: &dyn ReadAt) -> Result<ChunkKey>;

    /// Drops a staged chunk that was never in an image handed to `commit`. Any other key is left as it is.
    fn discard(&self, key: ChunkKey);

    /// Keeps a key good that no image names any more, for a file that was removed while it is open. Pins are counted.
    fn pin(&self, key: ChunkKey);

    /// Removes one pin.
    fn unpin(&self, key: ChunkKey);

    /// Makes `image` the content of the frame. Until this returns, and after any crash, the frame is the last durable state or this one.
    /// The next `commit` or [`FrameStore::sync`] makes it durable. Readers do not wait.
    ///
    /// Keys stay good wherever the store moves the chunks. The caller took `guard` **before** it put the image together: the guard keeps
    /// chunks good that other threads discard in between. After this call, callers must not look up a key that the image dropped,
    /// unless it is pinned.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if another process has changed the frame since this store last read or wrote it;
    /// [`StoreError::Format`] if the image's header and entries disagree, or an entry names a chunk that is not stored; ENOSPC, which
    /// changes nothing, so that another commit may succeed.
    fn commit(&self, guard: ReadGuard<'_>, image: FrameImage) -> Result<()>;

    /// Returns when the last committed image is on disk.
    fn sync(&self) -> Result<()>;

    /// Makes the last commit durable, frees the space that the frame does not need, and releases the frame.
    fn close(&self) -> Result<()>;

    /// The rest of the interface, if SOURCE has a name.
    fn source_store(&self) -> Option<&dyn SourceStore> {
        None
    }

    /// And of that of a frame on a local disk.
    fn local(&self) -> Option<&dyn LocalStore> {
        None
    }
}

/// What a view calls on any store: its own method, or a default where it has none.
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

    /// Returns the lengths in bytes of an index's chunks, in order; 0 for a special one. A store that does not know them from opening
    /// reads every header.
    ///
    /// # Errors
    /// As [`FrameStore::chunk_header`].
    pub fn chunk_lens(&self, guard: &ReadGuard<'_>, entries: &[IndexEntry<ChunkKey>]) -> Result<Vec<u32>> {
        /// How many entries are looked up at a time.
        const BATCH: usize = 4096;
        let mut lens = Vec::with_capacity(entries.len());
        for batch in entries.chunks(BATCH) {
            let keys: Vec<ChunkKey> = batch.iter().filter_map(|entry| entry.stored()).collect();
            let mut of_batch = self.lens_of(guard, &keys).into_iter();
            for entry in batch {
                lens.push(match entry {
                    IndexEntry::Stored(key) => match of_batch.next().flatten() {
                        Some(len) => len,
                        None => self.chunk_header(guard, *key)?.cbytes,
                    },
                    IndexEntry::Special(_) => 0,
                });
            }
        }
        Ok(lens)
    }

    /// Returns the bytes that each chunk of an image takes at most, in order, 0 for a special one; and whether they are the lengths. A store
    /// that would have to ask for each length says what there is room for, up to the next chunk.
    ///
    /// # Errors
    /// As [`FrameStore::chunk_header`].
    pub fn rooms(&self, guard: &ReadGuard<'_>, image: &FrameImage) -> Result<(Vec<u32>, bool)> {
        let room = |entry: &IndexEntry<ChunkKey>| self.source_store()?.room(entry.stored()?);
        if image.entries.iter().find(|entry| entry.stored().is_some()).is_none_or(|entry| room(entry).is_none()) {
            return Ok((self.chunk_lens(guard, &image.entries)?, true));
        }
        // A hole may be of any length.
        let most = u64::from(image.header.chunksize()) + ChunkHeader::LEN as u64;
        let len = |entry: &IndexEntry<ChunkKey>| match (entry.stored(), room(entry)) {
            (None, _) => Ok(0),
            (Some(_), Some(room)) if room <= most => Ok(u32::try_from(room).unwrap_or(u32::MAX)),
            (Some(key), _) => self.chunk_header(guard, key).map(|header| header.cbytes),
        };
        Ok((image.entries.iter().map(len).collect::<Result<_>>()?, false))
    }

    /// Like [`FrameStore::enter`], to save what a mount holds: its chunks can be read although others have changed SOURCE, as long as
    /// their bytes are still there.
    pub fn enter_to_save(&self) -> ReadGuard<'_> {
        self.enter().saving()
    }

    /// See [`SourceStore::path`]; what messages call it elsewhere.
    pub fn path(&self) -> PathBuf {
        self.source_store().map_or_else(|| PathBuf::from("frame"), SourceStore::path)
    }

    /// See [`SourceStore::file_id`].
    pub fn file_id(&self, key: ChunkKey) -> Option<ChunkId> {
        self.source_store()?.file_id(key)
    }

    /// See [`SourceStore::look`].
    ///
    /// # Errors
    /// What the system refuses.
    pub fn look(&self) -> Result<Others> {
        self.source_store().map_or(Ok(Others::Nothing), SourceStore::look)
    }

    /// See [`SourceStore::glance`].
    pub fn glance(&self) -> Option<Result<Others>> {
        self.source_store().map_or(Some(Ok(Others::Nothing)), SourceStore::glance)
    }

    /// See [`SourceStore::refreshes`].
    pub fn refreshes(&self) -> Option<Duration> {
        self.source_store().and_then(SourceStore::refreshes)
    }

    /// See [`SourceStore::is_as_seen`].
    pub fn is_as_seen(&self) -> bool {
        self.source_store().is_none_or(SourceStore::is_as_seen)
    }

    /// See [`SourceStore::reload`].
    ///
    /// # Errors
    /// What the system refuses; what is no frame.
    pub fn reload(&self) -> Result<()> {
        self.source_store().map_or(Ok(()), |store| store.reload().map(drop))
    }

    /// See [`SourceStore::watch`].
    pub fn watch(&self) -> Option<&Watch> {
        self.source_store().map(SourceStore::watch)
    }

    /// See [`SourceStore::forget_cached`].
    pub fn forget_cached(&self) {
        if let Some(store) = self.source_store() {
            store.forget_cached();
        }
    }

    /// See [`SourceStore::cache_stats`].
    pub fn cache_stats(&self) -> CacheStats {
        self.source_store().map_or_else(CacheStats::default, SourceStore::cache_stats)
    }

    /// See [`LocalStore::save_lost`].
    ///
    /// # Errors
    /// What the system refuses; that there is no place for it.
    pub fn save_lost(&self, name: &str, content: &dyn ReadAt) -> Result<PathBuf> {
        self.local().ok_or_else(|| self.not_local("save what has no place in the frame"))?.save_lost(name, content)
    }

    /// See [`SourceStore::statvfs`].
    ///
    /// # Errors
    /// What the system refuses; that the frame is not on a local disk.
    pub fn statvfs(&self) -> Result<FsSpace> {
        self.source_store().ok_or_else(|| self.not_local("stat the file system"))?.statvfs()
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

    /// See [`SourceStore::check_writable`].
    ///
    /// # Errors
    /// Why not.
    pub fn check_writable(&self) -> Result<()> {
        self.source_store().map_or(Ok(()), SourceStore::check_writable)
    }

    /// See [`LocalStore::tidy`].
    pub fn tidy(&self) -> bool {
        self.local().is_some_and(LocalStore::tidy)
    }

    /// See [`LocalStore::source`].
    pub fn source(&self) -> Option<(OwnedFd, PathBuf)> {
        self.local()?.source()
    }

    /// See [`SourceStore::source_stat`]; elsewhere all belongs to the user of this process.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn source_stat(&self) -> Result<SourceStat> {
        self.source_store().map_or_else(|| Ok(SourceStat::of_this_process()), SourceStore::source_stat)
    }

    /// See [`LocalStore::access_list`].
    ///
    /// # Errors
    /// What the system refuses.
    pub fn access_list(&self) -> Result<Option<Vec<u8>>> {
        self.local().map_or(Ok(None), LocalStore::access_list)
    }

    /// See [`LocalStore::sidecar`].
    pub fn sidecar(&self) -> Option<&Sidecar> {
        self.local()?.sidecar()
    }

    /// See [`LocalStore::wait_for_turn`].
    ///
    /// # Errors
    /// As [`Sidecar::wait_to_write`].
    pub fn wait_for_turn(&self, patience: Duration) -> Result<Option<FrameLock<'_>>> {
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

/// What a store does besides whose SOURCE has a name and attributes, and that others may change: on a local disk or elsewhere.
#[expect(clippy::missing_errors_doc, reason = "what the system refuses, where a method says nothing else")]
pub trait SourceStore: FrameStore {
    /// SOURCE as the user named it.
    fn path(&self) -> PathBuf;

    /// The id of the chunk's file, if each chunk has a file.
    fn file_id(&self, _key: ChunkKey) -> Option<ChunkId> {
        None
    }

    /// Bytes that a chunk has at most, where its length is not known before the chunk is read.
    fn room(&self, _key: ChunkKey) -> Option<u64> {
        None
    }

    /// Looks for changes that others have made to SOURCE since this store last read or wrote it.
    fn look(&self) -> Result<Others>;

    /// Like [`SourceStore::look`]; `None` if it would have to wait for a commit or a sync.
    fn glance(&self) -> Option<Result<Others>>;

    /// Whether SOURCE looks unchanged. A quick check, which waits for nothing.
    fn is_as_seen(&self) -> bool;
    /// Of a source far away, how long nobody looks at it again; `None` of one on this machine.
    fn refreshes(&self) -> Option<Duration> {
        None
    }

    /// Reads SOURCE again after others have changed or replaced it. Keys given out before are not good any more, and reads with an older
    /// guard fail. The caller holds no staged and no pinned chunk. If SOURCE is not a frame, nothing changes.
    fn reload(&self) -> Result<Arc<FrameImage>>;

    /// Wakes the thread that waits for changes by others.
    fn watch(&self) -> &Watch;

    /// Checks that this store may write. A SOURCE that was replaced by one which another mount had locked is tried again.
    ///
    /// # Errors
    /// The reason why it may not.
    fn check_writable(&self) -> Result<()>;

    /// SOURCE's attributes, for a view to show.
    fn source_stat(&self) -> Result<SourceStat>;

    /// What there is in the file system that holds SOURCE.
    fn statvfs(&self) -> Result<FsSpace>;

    /// Empties the chunk cache.
    fn forget_cached(&self);

    /// Counts of the chunk cache.
    fn cache_stats(&self) -> CacheStats;
}

/// What a store on a local disk does besides: SOURCE is a file or directory, which can be locked, moved and copied.
#[expect(clippy::missing_errors_doc, reason = "what the system refuses, where a method says nothing else")]
pub trait LocalStore: SourceStore {
    /// Does something that changes attributes of SOURCE, which is then no change by others.
    fn set_attributes(&self, work: &mut dyn FnMut());

    /// Moves SOURCE. `work` gives it another name, and answers whether it did: then it is found at `to` from now on. Nothing is committed
    /// meanwhile.
    ///
    /// # Errors
    /// Before `work` runs: a SOURCE that is not there yet, that is another by now, or whose lock file would have to be moved as well.
    fn relocate(&self, to: &Location, work: &mut dyn FnMut() -> bool) -> Result<()>;

    /// Does a little background work; returns whether there is more. One thread calls it from time to time.
    fn tidy(&self) -> bool {
        false
    }

    /// Saves bytes that do not fit into the frame to `SOURCE.lost/NAME`, never over an older file; returns the path.
    fn save_lost(&self, name: &str, content: &dyn ReadAt) -> Result<PathBuf>;

    /// Saves SOURCE's file to `SOURCE.lost/` as it is open, with everything that was committed; `None` if SOURCE is a directory.
    fn save_itself(&self) -> Option<Result<PathBuf>> {
        None
    }

    /// Fills a buffer with SOURCE's own bytes from an offset on; `false` if SOURCE is not one file. The bytes may be used only if
    /// [`FrameStore::verify`] succeeds afterwards.
    fn read_source(&self, _guard: &ReadGuard<'_>, _offset: u64, _buf: &mut [u8]) -> Result<bool> {
        Ok(false)
    }

    /// SOURCE's open descriptor, and its path as the user named it.
    fn source(&self) -> Option<(OwnedFd, PathBuf)> {
        None
    }

    /// The value of the attribute that holds the access list of the file whose attributes [`SourceStore::source_stat`] gives.
    fn access_list(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// SOURCE's open files, from which a copy takes owner, mode and attributes.
    fn like(&self) -> Result<Like>;

    /// SOURCE's lock file, if the store was opened with locking.
    fn sidecar(&self) -> Option<&Sidecar> {
        None
    }

    /// The pool that holds clients' unfinished writes.
    fn drafts(&self) -> &Arc<DraftPool>;

    /// Identifies the state of SOURCE's file, if every later change to the file will change that identity.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Sets the mtimes that the next commit gives: to the file that begins with the header, and to SOURCE if it is a directory.
    fn set_written(&self, _file: SystemTime, _directory: Option<SystemTime>) {}

    /// Registers a function for [`FrameStore::close`] to call after its last write, while SOURCE is still locked. It receives SOURCE's
    /// final identity.
    fn at_close(&self, _last: AtClose) {}

    /// Whether another process has changed or replaced SOURCE since this store last read or wrote it.
    fn changed_outside(&self) -> Result<bool> {
        Ok(self.look()?.hindrance().is_some())
    }

    /// Waits for the exclusive lock by which processes take turns to change SOURCE, if the store was opened with locking. A commit waits
    /// for it too.
    ///
    /// # Errors
    /// As [`Sidecar::wait_to_write`].
    fn wait_for_turn(&self, patience: Duration) -> Result<Option<FrameLock<'_>>> {
        self.sidecar().map(|sidecar| sidecar.wait_to_write(patience)).transpose()
    }
}
