//! Frames on disk: reading chunks, staging new ones, free space, and the one path by which a change becomes durable.
//!
//! A view sees a store as an ordered list of chunks, each found by a [`ChunkKey`] that means nothing outside the store, between
//! a header and a trailer. It stages the bytes of new chunks as they come, and hands over a whole [`FrameImage`] when the state
//! is worth keeping.

use std::fmt;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::format::times::Identity;
use crate::format::{ChunkId, IndexEntry, Layout, Packed, chunk::ChunkHeader, header::FrameHeader, trailer::Trailer};

pub mod backend;
mod birth;
mod cache;
pub mod cframe;
pub mod check;
mod commit;
mod draft;
mod epochs;
mod error;
pub mod examine;
pub mod frame;
mod held;
mod image;
pub mod local;
mod location;
mod lost;
pub mod mark;
pub mod repair;
mod resources;
pub mod sframe;
mod shares;
pub mod sidecar;
mod source;
mod space;
mod spill;
pub mod survey;
pub mod times;

pub use cframe::CframeStore;
pub use draft::{Draft, DraftPool};
pub use epochs::{Epochs, ReadGuard};
pub(crate) use error::in_words;
pub use error::{Result, StoreError};
pub use local::watch::{Watch, Watcher};
pub use location::Location;
pub use resources::{Budgets, Resources};
pub use sframe::SframeStore;
pub use sidecar::{LockFile, Sidecar, Turn};
pub use source::{Like, NewFrame, OpenOptions, Others};

/// A stored chunk, by the store's own reckoning: the position in SOURCE's file for a cframe, the chunk id for an sframe; above it
/// a number that tells a new chunk from an older one of the same place, so that an old key never means a new chunk.
///
/// A key stays good while the chunk is in the committed image, in the image being committed, staged, or pinned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkKey(Packed);

impl ChunkKey {
    /// The largest number of a key.
    pub const MAX: u64 = Packed::MAX;

    /// The key of a number, which is at most [`ChunkKey::MAX`].
    pub const fn new(number: u64) -> Self {
        ChunkKey(Packed::new(number))
    }

    /// Its number.
    pub const fn number(self) -> u64 {
        self.0.number()
    }
}

impl fmt::Debug for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkKey({:#x})", self.number())
    }
}

/// A frame at one moment: what a commit makes SOURCE hold.
///
/// `header` may be of either layout and may come from a client as it is: the store sets layout, frame_len and cbytes by itself
/// when it writes. nbytes, chunksize, metalayers and all else are kept to the byte.
#[derive(Debug, Clone)]
pub struct FrameImage {
    /// The frame's header with its metalayers.
    pub header: FrameHeader,
    /// The trailer with its vlmetalayers, carried through to the byte.
    pub trailer: Trailer,
    /// The index, in order.
    pub entries: Arc<Vec<IndexEntry<ChunkKey>>>,
}

/// What `stat` says of SOURCE, for a view to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceStat {
    /// Permission bits of SOURCE as a file (for an sframe: of `chunks.b2frame`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: SystemTime,
    /// Last change of content.
    pub mtime: SystemTime,
    /// Last change of the inode.
    pub ctime: SystemTime,
    /// Bytes that SOURCE takes on disk.
    pub allocated: u64,
}

/// Counts of the chunk cache, for the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Reads answered from the cache.
    pub hits: u64,
    /// Reads that had to load the chunk.
    pub misses: u64,
    /// Reads that had no use for the cache (a whole chunk at once, or the first look at one).
    pub bypassed: u64,
    /// Bytes held now.
    pub bytes: u64,
    /// Bytes it may hold.
    pub capacity: u64,
}

impl fmt::Display for CacheStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheStats { hits, misses, bypassed, bytes, capacity } = self;
        write!(
            f,
            "chunk cache: {hits} hits, {misses} misses, {bypassed} reads that had no use for it, {bytes} of {capacity} bytes"
        )
    }
}

/// Bytes that can be read at any place: a [`Draft`], a slice.
pub trait ReadAt {
    /// Length in bytes.
    fn len(&self) -> u64;
    /// Whether there is nothing.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Fills `buf` from `offset`; what lies past the end is an error.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// All bytes, where they are in memory: saves a copy.
    fn as_slice(&self) -> Option<&[u8]> {
        None
    }
    /// The first stretch at `offset` or behind it that may hold anything but zeros, cut at `offset`; `None` if there is none up to
    /// the end. What is between two stretches is a hole, and may be kept as one.
    fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        (offset < self.len()).then(|| offset..self.len())
    }
}

/// A chunk in a store, as bytes to read from. Its key must stay good meanwhile.
pub struct StoredChunk<'a> {
    /// Where it is.
    pub store: &'a dyn FrameStore,
    /// Which it is.
    pub key: ChunkKey,
    /// Its length in bytes.
    pub len: u32,
    /// It is read to be saved: see [`FrameStore::enter_to_save`].
    pub to_save: bool,
}

impl ReadAt for StoredChunk<'_> {
    fn len(&self) -> u64 {
        u64::from(self.len)
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let guard = if self.to_save { self.store.enter_to_save() } else { self.store.enter() };
        match self.store.read_chunk(&guard, self.key, self.len, offset, buf) {
            Ok(count) if count == buf.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// See [`FrameStore::at_close`].
pub type AtClose = Box<dyn FnOnce(Option<Identity>) + Send>;

/// A frame on disk in one of the layouts. Every method may be called from any thread.
///
/// After a failed write or sync every later `stage`, `commit` and `sync` answers [`StoreError::Poisoned`] with the first
/// failure's words; reading goes on.
pub trait FrameStore: Send + Sync {
    /// SOURCE as the user named it.
    fn path(&self) -> &Path;

    /// The last committed image; `None` for a SOURCE that does not exist yet.
    fn committed(&self) -> Option<Arc<FrameImage>>;

    /// See [`ReadGuard`].
    fn enter(&self) -> ReadGuard<'_>;

    /// As [`FrameStore::enter`], to save what a mount holds: what of it is in SOURCE can be read for as long as it is there, whatever
    /// else others have done to SOURCE.
    fn enter_to_save(&self) -> ReadGuard<'_> {
        self.enter().saving()
    }

    /// Reads `buf.len()` bytes of a stored chunk from `offset` on; a short count means the chunk ends there.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if others have changed SOURCE since the guard was taken; what the system refuses.
    fn read_chunk(&self, guard: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let count = self.read_part(guard, key, len, offset, buf)?;
        self.verify(guard)?;
        Ok(count)
    }

    /// As [`FrameStore::read_chunk`], for who reads several chunks: what was read is good only if [`FrameStore::verify`] says so
    /// afterwards.
    fn read_part(&self, guard: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// What was read with this guard until now is of the version of SOURCE that there was when the guard was taken.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if that is not known to be so.
    fn verify(&self, guard: &ReadGuard<'_>) -> Result<()>;

    /// Whether SOURCE has not been read again since the guard was taken.
    fn is_current(&self, guard: &ReadGuard<'_>) -> bool;

    /// Reads and checks a stored chunk's header: its sizes agree with each other and with the room it has in SOURCE.
    fn chunk_header(&self, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader>;

    /// The id of the file that holds a stored chunk, in a store that has a file for each.
    fn file_id(&self, _key: ChunkKey) -> Option<ChunkId> {
        None
    }

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

    /// Whether others have left SOURCE alone, as far as a glance tells that waits for nothing.
    fn is_as_seen(&self) -> bool;

    /// What others have done to SOURCE since this store last read or wrote it.
    fn look(&self) -> Result<Others>;

    /// The same, unless a commit or a sync would have to be waited for.
    fn glance(&self) -> Option<Result<Others>>;

    /// Whether another process has changed or replaced SOURCE since this store last read or wrote it.
    fn changed_outside(&self) -> Result<bool> {
        Ok(self.look()?.hindrance().is_some())
    }

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

    /// statvfs of the file system that holds SOURCE.
    fn statvfs(&self) -> Result<libc::statvfs>;

    /// The lock file by which SOURCE is shared with other processes, where locking was asked for.
    fn sidecar(&self) -> Option<&Sidecar> {
        None
    }

    /// Waits for the turn to change SOURCE, where others are to be given theirs. Whoever commits without having it waits for it
    /// then.
    ///
    /// # Errors
    /// As [`Sidecar::wait_to_write`].
    fn wait_for_turn(&self, patience: Duration) -> Result<Option<Turn<'_>>> {
        self.sidecar().map(|sidecar| sidecar.wait_to_write(patience)).transpose()
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

    /// The end: makes the last commit durable, gives what the frame does not need back to the file system, and releases SOURCE.
    fn close(&self) -> Result<()>;
}

/// Opens a frame of either layout: a directory is an sframe, a file a cframe.
///
/// # Errors
/// As [`CframeStore::open`] and [`SframeStore::open`].
pub fn open(path: &Path, options: OpenOptions) -> Result<(Layout, Arc<dyn FrameStore>)> {
    open_at(&Location::existing(path)?, options)
}

/// Opens the frame at a location.
///
/// # Errors
/// As [`open`].
pub fn open_at(location: &Location, options: OpenOptions) -> Result<(Layout, Arc<dyn FrameStore>)> {
    if location.stat()?.is_some_and(|stat| stat.is_dir()) {
        Ok((Layout::Sparse, Arc::new(SframeStore::open_at(location, options)?)))
    } else {
        Ok((Layout::Contiguous, Arc::new(CframeStore::open_at(location, options)?)))
    }
}
