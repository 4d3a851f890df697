//! Frames, on disk and far away: reading chunks, staging new ones, free space, and the one path by which a change becomes durable.
//!
//! To a view, a store is a list of chunks between a header and a trailer. The view finds each chunk by a [`ChunkKey`], which means nothing
//! outside the store. It stages new chunks as they come, and commits a whole [`FrameImage`].
//!
//! | module | what it does |
//! | --- | --- |
//! | `frame_store` | the interface: [`FrameStore`], with [`SourceStore`] and [`LocalStore`] for what only some do |
//! | `disk_store` | opens, reads, stages, commits and closes a frame of either layout, and notices changes by others |
//! | `cframe`, `sframe` | where the chunks of each layout lie, and the steps that write a state |
//! | `chunks` | the life of a chunk |
//! | `copy`, `check`, `repair`, `inspect` | what the commands do to a frame |
//! | `array_copy`, `npy_file` | makes a frame of an array in a file of NumPy's |
//! | `new_file` | a file that is no frame, made whole |
//! | `disk_cache` | data of remote frames, kept on the local disk from mount to mount |
//! | `archive` | an archive of Python-Blosc2, for reading |
//! | `walk` | goes through a directory for the frames in it |
//! | `backend`, `local` | files and directories, and the local file system |
//! | `interrupts` | whether a client still needs what a thread waits for |
//! | `remote` | frames in object stores and on web servers: reading them, and uploads |
//! | `resources` | what all frames of a mount share |

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use crate::format::{IndexEntry, Layout, Packed, header::FrameHeader, trailer::Trailer};

pub mod archive;
pub mod array_copy;
pub mod backend;
mod cache;
pub mod cframe;
pub mod check;
pub mod checksum;
mod chunks;
pub mod copy;
mod create;
pub mod disk_cache;
mod disk_store;
mod draft;
mod epochs;
mod error;
pub mod frame;
mod frame_store;
mod image;
pub mod inspect;
pub mod interrupts;
pub mod journal;
pub mod local;
mod location;
mod lost;
pub mod mark;
pub mod new_file;
pub mod npy_file;
mod open_files;
mod readahead;
#[cfg(feature = "remote")]
pub mod remote;
pub mod repair;
mod resources;
pub mod sframe;
mod shares;
pub mod sidecar;
mod source;
mod spill;
mod staged_copies;
pub mod times;
pub mod validate;
pub mod walk;

pub use backend::{FsSpace, descriptor_limit};
pub use cframe::CframeStore;
pub(crate) use create::{TEMP_PREFIX, is_part_of_frame};
pub use draft::{Draft, DraftPool};
pub use epochs::{Epochs, ReadGuard};
pub(crate) use error::in_words;
pub use error::{Result, StoreError};
pub use frame_store::{AtClose, FrameStore, LocalStore, SourceStore, Want};
pub use local::watch::{Watch, Watcher};
pub use location::Location;
pub use resources::{Budgets, Resources};
pub use sframe::SframeStore;
pub use sidecar::{FrameLock, LockFile, Sidecar};
pub use source::{Like, NewFrame, OpenOptions, Others, Unfinished};

/// Names a stored chunk. The store alone knows what the number means: the chunk's position in a cframe's file, or its id in an sframe, and
/// a generation, so that an old key never names a new chunk at the same place.
///
/// A key is good while its chunk is staged, pinned, in the committed image, or in the image being committed.
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
/// `header` may be of either layout, and may be a client's bytes: the store sets layout, frame_len and cbytes when it writes. It keeps
/// every other byte.
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

impl SourceStat {
    /// Of a frame that no file stands for.
    pub fn of_this_process() -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let now = SystemTime::now();
        SourceStat { mode: 0o600, uid, gid, atime: now, mtime: now, ctime: now, allocated: 0 }
    }
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
        write!(f, "chunk cache: {hits} hits, {misses} misses, {bypassed} reads that bypassed it, {bytes} of {capacity} bytes")
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
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// What cannot be read, and what lies past the end.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// All bytes, if they are in memory, so that they need not be copied.
    fn as_slice(&self) -> Option<&[u8]> {
        None
    }
    /// The first range from `offset` on that may hold other bytes than zeros; `None` if only zeros follow. Between two ranges is a hole,
    /// and a copy may keep it as one.
    fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        (offset < self.len()).then(|| offset..self.len())
    }
    /// The checksum of all bytes, if it is known: what is there already with that checksum need not be read from here.
    fn known_sum(&self) -> Option<u64> {
        None
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
    /// It is read to be saved, whatever others have done to SOURCE.
    pub to_save: bool,
}

impl ReadAt for StoredChunk<'_> {
    fn len(&self) -> u64 {
        u64::from(self.len)
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let guard = self.store.enter();
        let guard = if self.to_save { guard.saving() } else { guard };
        match self.store.read_chunk(&guard, self.key, self.len, offset, buf) {
            Ok(count) if count == buf.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// Opens a frame of either layout: a directory is an sframe, a file a cframe.
///
/// # Errors
/// What the system refuses; what is not a frame, in the format's words; chunk files that are missing or damaged; another mount that
/// writes to it.
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
