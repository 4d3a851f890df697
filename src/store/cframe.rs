//! A cframe: opening, reading, staging. What becomes durable when is in `commit.rs`.
//!
//! A chunk's key is where it was when it was first seen, and stays its key wherever it is moved: the position in the file in
//! the low 48 bits, and above them a count that tells chunks staged at the same place one after the other apart (0 for what was
//! there at open). So an old key never means a new chunk.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::backend::{Backend, BackendFile, FileStat, read_exact_at};
use super::cache::ChunkCache;
use super::commit::Disk;
use super::error::no_room;
use super::frame::{FileBytes, Frame, Unread};
use super::sidecar::{self, LAST_PATIENCE, PATIENCE, Sidecar};
use super::source::{Complain, HEADER_ROOM, Source, WRITTEN_BY_US, touched_since, write_from, written_since};
use super::space::Space;
use super::{
    CacheStats, ChunkKey, DraftPool, Epochs, FrameImage, FrameStore, OpenOptions, ReadAt, ReadGuard, Result, SourceStat,
    StoreError, birth,
};
use crate::format::ChunkOffset;
use crate::format::chunk::ChunkHeader;
use crate::format::header::Sections;

mod heads;
mod sweep;

/// Positions that a key has room for.
const POSITION_BITS: u32 = 48;

/// Where chunks are read from.
pub(super) struct Place {
    pub(super) file: Arc<dyn BackendFile>,
    /// Positions of chunks that are not where their key says.
    pub(super) moved: HashMap<ChunkKey, u64>,
}

/// Where the chunk of a good key is.
pub(super) fn position(moved: &HashMap<ChunkKey, u64>, key: ChunkKey) -> u64 {
    let moved = if moved.is_empty() { None } else { moved.get(&key) };
    moved.copied().unwrap_or(position_of(key))
}

/// The map of the file, made when it is first needed: reading needs none.
pub(super) struct Ground {
    space: Option<Space>,
    /// Keys of chunks that are not where their key says, by position: the other direction of [`Place::moved`].
    pub(super) names: HashMap<u64, ChunkKey>,
    /// How the frame lay at open.
    opened: Option<Sections>,
    /// How often SOURCE has been read again.
    age: u64,
}

/// What SOURCE looked like after our last write, to notice those of others.
struct Witness {
    seen: FileStat,
    /// Our own writes under way; while there are any, nothing is to be seen.
    writers: u32,
    stale: Option<String>,
}

/// A store for one cframe.
///
/// Lock order: `disk`, `gate`, `ground`, then any one of `place`, `witness`, `published` and the cache's. Reads take `place`
/// alone, for a moment, and no lock is held by them across input; `ground` is held across no input or output but a truncation.
pub struct CframeStore {
    pub(super) source: Source,
    sidecar: Option<Sidecar>,
    pub(super) place: RwLock<Place>,
    /// No chunk ends behind this.
    limit: AtomicU64,
    pub(super) epochs: Epochs,
    cache: ChunkCache,
    drafts: Arc<DraftPool>,
    pub(super) published: RwLock<Option<Arc<FrameImage>>>,
    pub(super) disk: Mutex<Disk>,
    /// Taken for reading while a chunk is being staged, for writing while the file is being exchanged.
    pub(super) gate: RwLock<()>,
    ground: Mutex<Ground>,
    /// Somebody could have used more room than is known, so the rest of the headers is to be read when there is time.
    sweeping: AtomicBool,
    /// What the file held at open is on disk.
    grounded: AtomicBool,
    witness: Mutex<Witness>,
}

/// A frame as it was read, checked against the file's length.
struct Parsed {
    image: FrameImage,
    sections: Sections,
}

pub(super) fn key_at(position: u64, generation: u16) -> ChunkKey {
    ChunkKey::new(position | u64::from(generation) << POSITION_BITS)
}

fn position_of(key: ChunkKey) -> u64 {
    key.number() & ((1 << POSITION_BITS) - 1)
}

impl CframeStore {
    /// Opens a frame.
    ///
    /// # Errors
    /// What the system refuses; a file that is no cframe, in the format's words; another mount that writes to it.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self> {
        if path.is_dir() {
            let reason = "is a directory, and only a frame in one file can be shown as a directory".to_owned();
            return Err(StoreError::Unsupported { path: path.to_owned(), reason });
        }
        Self::open_source(Source::existing(path, options)?, options)
    }

    /// Opens a frame in any backend; `path` is how messages call it, `dir` the path of the backend's directory.
    ///
    /// # Errors
    /// As [`CframeStore::open`].
    pub fn open_in(backend: Arc<dyn Backend>, path: &Path, dir: &Path, name: &OsStr, options: OpenOptions) -> Result<Self> {
        Self::open_source(Source::new(backend, path, dir, name, options), options)
    }

    fn open_source(source: Source, options: OpenOptions) -> Result<Self> {
        let sidecar = lock_file(&source, options)?;
        let turn = sidecar.as_ref().map(|sidecar| sidecar.wait_to_read(PATIENCE)).transpose()?;
        let file = open_file(&source)?;
        let stat = file.stat().map_err(source.io("stat"))?;
        let Parsed { image, sections } = parse(&source, &*file, stat.len)?;
        if let Some(sidecar) = &sidecar {
            sidecar.in_step(sidecar.count()?);
        }
        drop(turn);
        let disk = Disk::opened(&image.header, sections.index.is_empty());
        let store = Self::assemble(source, sidecar, options, file, stat, disk);
        store.limit.store(sections.chunks.end, Relaxed);
        store.ground.lock().opened = Some(sections);
        *store.published.write() = Some(Arc::new(image));
        Ok(store)
    }

    /// A store for a frame that does not exist yet: it comes into being with the first commit.
    ///
    /// # Errors
    /// What the system refuses; a name that exists.
    pub fn create(path: &Path, options: OpenOptions) -> Result<Self> {
        Self::create_source(Source::to_be(path, options)?, options)
    }

    /// As [`CframeStore::create`], in any backend.
    ///
    /// # Errors
    /// As [`CframeStore::create`].
    pub fn create_in(backend: Arc<dyn Backend>, path: &Path, dir: &Path, name: &OsStr, options: OpenOptions) -> Result<Self> {
        Self::create_source(Source::new(backend, path, dir, name, options), options)
    }

    fn create_source(source: Source, options: OpenOptions) -> Result<Self> {
        let create = |name: &OsStr| create_locked(&*source.backend, name);
        let (unborn, file) = birth::conceive(&source, create, |file| file.stat())?;
        let stat = file.stat().map_err(source.io("create"))?;
        let sidecar = lock_file(&source, options)?;
        let store = Self::assemble(source, sidecar, options, file, stat, Disk::created(unborn));
        store.ground.lock().space = Some(Space::new(options.header_room));
        store.is_grounded();
        Ok(store)
    }

    fn assemble(
        source: Source,
        sidecar: Option<Sidecar>,
        options: OpenOptions,
        file: Arc<dyn BackendFile>,
        stat: FileStat,
        disk: Disk,
    ) -> Self {
        CframeStore {
            sidecar,
            drafts: DraftPool::new(Arc::clone(&source.backend), options.draft_bytes),
            source,
            place: RwLock::new(Place { file, moved: HashMap::new() }),
            limit: AtomicU64::new(0),
            epochs: Epochs::default(),
            cache: ChunkCache::new(options.cache_bytes),
            published: RwLock::new(None),
            disk: Mutex::new(disk),
            gate: RwLock::new(()),
            ground: Mutex::new(Ground { space: None, names: HashMap::new(), opened: None, age: 0 }),
            sweeping: AtomicBool::new(false),
            grounded: AtomicBool::new(false),
            witness: Mutex::new(Witness { seen: stat, writers: 0, stale: None }),
        }
    }

    // ---- errors ----

    pub(super) fn io(&self, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        move |error| {
            // Only [`CframeStore::writing`] answers ESTALE with a reason noted.
            let stale = (error.raw_os_error() == Some(libc::ESTALE)).then(|| self.witness.lock().stale.clone()).flatten();
            match stale {
                Some(reason) => self.source.stale(reason),
                None => self.source.io(action)(error),
            }
        }
    }

    // ---- the map ----

    /// Runs `f` with the map of the file, which is made the first time from the index.
    pub(super) fn with_ground<T>(&self, f: impl FnOnce(&mut Space, &mut HashMap<u64, ChunkKey>) -> T) -> T {
        self.with_age(|space, names, _| f(space, names))
    }

    /// The same; the number says how often SOURCE has been read again.
    fn with_age<T>(&self, f: impl FnOnce(&mut Space, &mut HashMap<u64, ChunkKey>, u64) -> T) -> T {
        let mut ground = self.ground.lock();
        let Ground { space, names, opened, age } = &mut *ground;
        let space = space.get_or_insert_with(|| {
            let published = self.published.read().clone();
            let (Some(image), Some(sections)) = (published, opened.take()) else { return Space::new(HEADER_ROOM) };
            // Not collected: that grows a vector step by step, and there may be a million.
            let mut stored = Vec::with_capacity(image.entries.len());
            stored.extend(image.entries.iter().filter_map(|entry| entry.stored().map(position_of)));
            let tail = sections.index.start..sections.trailer.end;
            Space::opened(u64::from(image.header.header_len()), HEADER_ROOM, stored, tail)
        });
        f(space, names, *age)
    }

    /// Whether anything has been written, or was about to be.
    pub(super) fn has_map(&self) -> bool {
        self.ground.lock().space.is_some()
    }

    /// What is published is on disk, so what it does not need is free.
    pub(super) fn is_grounded(&self) {
        self.grounded.store(true, Relaxed);
    }

    /// The right to put chunks where the last state needs nothing. What was found at open may not be on disk yet, if who wrote it
    /// was killed, and what is on disk need other bytes: so it is synced before.
    fn grounded(&self) -> Result<RwLockReadGuard<'_, ()>> {
        loop {
            if !self.grounded.load(Relaxed) {
                super::commit::ground(self)?;
            }
            let gate = self.gate.read();
            // With the gate held SOURCE is not read again.
            if self.grounded.load(Relaxed) {
                return Ok(gate);
            }
        }
    }

    /// Frees what nobody reads any more.
    pub(super) fn collect(&self, space: &mut Space, names: &mut HashMap<u64, ChunkKey>) {
        self.epochs.advance();
        let epoch = self.epochs.advance();
        space.collect(epoch, |position| {
            let key = names.remove(&position);
            if let Some(key) = key {
                self.place.write().moved.remove(&key);
            }
        });
    }

    /// Where the chunk of a key is; `None` if the key is not good any more.
    pub(super) fn locate(&self, space: &Space, key: ChunkKey) -> Option<u64> {
        if let Some(position) = self.place.read().moved.get(&key) {
            return Some(*position);
        }
        let position = position_of(key);
        let generation = space.generation(position)?;
        (key_at(position, generation) == key).then_some(position)
    }

    /// A chunk ends at `end`.
    pub(super) fn raise_limit(&self, end: u64) {
        self.limit.fetch_max(end, Relaxed);
    }

    // ---- our writes, and those of others ----

    /// Runs a write of ours, so that it does not count as a change by others. Where others have written, nothing of ours is
    /// written any more: what is free to us may hold their data.
    pub(super) fn writing<T>(&self, file: &dyn BackendFile, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        {
            let mut witness = self.witness.lock();
            if witness.writers == 0 {
                witness.look(&file.stat()?);
            }
            if witness.stale.is_some() {
                return Err(io::Error::from_raw_os_error(libc::ESTALE));
            }
            witness.writers += 1;
        }
        let result = write();
        let mut witness = self.witness.lock();
        witness.writers -= 1;
        if let Ok(stat) = file.stat() {
            witness.seen = stat;
        }
        result
    }

    /// What others have done to SOURCE since we last read or wrote it, in words.
    pub(super) fn seen_outside(&self, disk: &Disk) -> Result<Option<String>> {
        let at_path = self.source.stat()?;
        if let Some(unborn) = disk.unborn() {
            return Ok(unborn.seen_outside(at_path.as_ref()));
        }
        let Some(at_path) = at_path else { return Ok(Some("it was removed".to_owned())) };
        let header = disk.header();
        let file = Arc::clone(&self.place.read().file);
        {
            let mut witness = self.witness.lock();
            if !at_path.same_file(&witness.seen) {
                return Ok(Some("another file has its name now".to_owned()));
            }
            if witness.writers == 0 {
                // With the lock held: a write of ours that ends between the two would look like one of others.
                match file.stat() {
                    Ok(now) => witness.look(&now),
                    Err(error) => {
                        drop(witness);
                        return Err(self.io("stat")(error));
                    }
                }
            }
            if let Some(reason) = &witness.stale {
                return Ok(Some(reason.clone()));
            }
        }
        let mut on_disk = vec![0; header.len()];
        let read = read_exact_at(&*file, &mut on_disk, 0);
        Ok((read.is_err() || on_disk != header).then(|| "its header is another".to_owned()))
    }

    /// The file was exchanged by us.
    pub(super) fn witness_file(&self, stat: FileStat) {
        self.witness.lock().seen = stat;
    }
}

impl Witness {
    fn look(&mut self, now: &FileStat) {
        if self.stale.is_none() {
            self.stale = written_since(&self.seen, now);
        }
    }
}

/// The lock file beside SOURCE, if locking is asked for.
fn lock_file(source: &Source, options: OpenOptions) -> Result<Option<Sidecar>> {
    let name = [&source.name, OsStr::new(sidecar::SUFFIX)].into_iter().collect::<OsString>();
    let path = [source.path.as_os_str(), OsStr::new(sidecar::SUFFIX)].into_iter().collect::<OsString>();
    let open = || Sidecar::new(Arc::clone(&source.backend), &name, path.into(), options);
    options.locking.then(open).transpose()
}

/// Opens SOURCE, locked if it is to be written to.
fn open_file(source: &Source) -> Result<Arc<dyn BackendFile>> {
    let Source { backend, name, read_only, .. } = source;
    loop {
        let action = if *read_only { "open" } else { "open for writing" };
        let file = backend.open(name, !read_only).map_err(source.io(action))?;
        let stat = file.stat().map_err(source.io("stat"))?;
        if !stat.is_file() {
            return Err(source.unsupported("is not a regular file"));
        }
        if *read_only {
            return Ok(Arc::from(file));
        }
        if !file.try_lock().map_err(source.io("lock"))? {
            return Err(StoreError::Busy { path: source.path.clone() });
        }
        // Whoever had the lock may have exchanged the file between our open and our lock.
        if backend.stat(name).map_err(source.io("stat"))?.same_file(&stat) {
            return Ok(Arc::from(file));
        }
    }
}

/// A new file beside SOURCE, locked.
pub(super) fn create_locked(backend: &dyn Backend, name: &OsStr) -> io::Result<Arc<dyn BackendFile>> {
    let file = backend.create(name, 0o666)?;
    file.try_lock()?;
    Ok(Arc::from(file))
}

/// Reads and checks everything but the chunks.
fn parse(source: &Source, file: &dyn BackendFile, file_len: u64) -> Result<Parsed> {
    let frame = Frame::<ChunkOffset>::read(&FileBytes { file, len: file_len }).map_err(|unread| match unread {
        Unread::Io { action, source: error } => source.io(action)(error),
        Unread::Format(error) => source.format(error),
        Unread::OtherLayout => source.unsupported("is the index file of a sparse frame, not a frame in one file"),
    })?;
    let Frame { header, trailer, entries, sections } = frame;
    let frame_len = header.frame_len();
    if frame_len >= 1 << POSITION_BITS {
        let most = (1u64 << POSITION_BITS) - 1;
        return Err(source.unsupported(format!("is {frame_len} bytes long, and at most {most} can be handled")));
    }
    let base = u64::from(header.header_len());
    let entries = entries.into_iter().map(|entry| entry.map(|offset| key_at(base + offset.0, 0)));
    let image = FrameImage { header, trailer, entries: Arc::new(entries.collect()) };
    Ok(Parsed { image, sections })
}

impl FrameStore for CframeStore {
    fn path(&self) -> &Path {
        &self.source.path
    }

    fn committed(&self) -> Option<Arc<FrameImage>> {
        self.published.read().clone()
    }

    fn enter(&self) -> ReadGuard<'_> {
        self.epochs.enter()
    }

    fn read_chunk(&self, _guard: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let load = |buf: &mut [u8], offset: u64| {
            let (file, position) = self.place_of(key);
            read_exact_at(&*file, buf, position + offset)
        };
        self.cache.read(key, len, offset, buf, load).map_err(self.io("read a chunk"))
    }

    fn expect_chunks(&self, chunks: &[(ChunkKey, u32)]) {
        self.expect_whole(chunks);
    }

    fn expect_unknown(&self, key: ChunkKey, bytes: RangeInclusive<u32>, next: Option<ChunkKey>) {
        self.expect_by_guess(key, bytes, next);
    }

    fn chunk_header(&self, _guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader> {
        self.read_header(key)
    }

    fn lens_of(&self, _guard: &ReadGuard<'_>, keys: &[ChunkKey]) -> Vec<Option<u32>> {
        self.read_lens(keys)
    }

    fn stage(&self, chunk: &dyn ReadAt) -> Result<ChunkKey> {
        self.source.check_writable()?;
        let len = self.source.chunk_len(chunk)?;
        let _turn = self.wait_for_turn(PATIENCE)?;
        let _gate = self.grounded()?;
        let (key, position) = self.allocate(len);
        if position + u64::from(len) >= 1 << POSITION_BITS {
            self.discard(key);
            return Err(self.io("write a chunk")(io::Error::from_raw_os_error(libc::EFBIG)));
        }
        let file = Arc::clone(&self.place.read().file);
        let mut reading = false;
        let written = self.writing(&*file, || {
            write_from(chunk, len.into(), &*file, position).map_err(|failed| {
                reading = failed.reading;
                failed.error
            })
        });
        match written {
            Ok(()) => Ok(key),
            Err(source) => {
                let harmless = reading || no_room(&source);
                let error = self.io("write a chunk")(source);
                if harmless {
                    self.discard(key);
                    Err(error)
                } else {
                    Err(self.source.poisoned_by(error))
                }
            }
        }
    }

    fn discard(&self, key: ChunkKey) {
        if self.source.read_only {
            return;
        }
        self.with_ground(|space, _| {
            if let Some(position) = self.locate(space, key) {
                space.discard(position, self.epochs.now());
            }
        });
    }

    fn pin(&self, key: ChunkKey) {
        if self.source.read_only {
            return;
        }
        self.with_ground(|space, _| {
            if let Some(position) = self.locate(space, key) {
                space.pin(position);
            }
        });
    }

    fn unpin(&self, key: ChunkKey) {
        if self.source.read_only {
            return;
        }
        self.with_ground(|space, _| {
            if let Some(position) = self.locate(space, key) {
                space.unpin(position, self.epochs.now());
            }
        });
    }

    fn commit(&self, guard: ReadGuard<'_>, image: FrameImage) -> Result<()> {
        let _turn = self.wait_for_turn(PATIENCE)?;
        super::commit::commit(self, guard, image)?;
        self.sidecar.as_ref().map_or(Ok(()), Sidecar::committed)
    }

    fn sync(&self) -> Result<()> {
        let _turn = self.wait_for_turn(PATIENCE)?;
        super::commit::sync(self)
    }

    fn changed_outside(&self) -> Result<bool> {
        if !self.source.read_only {
            return Ok(self.seen_outside(&self.disk.lock())?.is_some());
        }
        let at_path = self.source.backend.stat(&self.source.name).map_err(self.io("stat"))?;
        let seen = self.witness.lock().seen;
        if touched_since(&seen, &at_path) {
            return Ok(true);
        }
        // Times may be too coarse to tell.
        let header = self.committed().map(|image| image.header.as_bytes().to_vec()).unwrap_or_default();
        let file = Arc::clone(&self.place.read().file);
        let mut on_disk = vec![0; header.len()];
        Ok(read_exact_at(&*file, &mut on_disk, 0).is_err() || on_disk != header)
    }

    fn reload(&self) -> Result<Arc<FrameImage>> {
        let mut disk = self.disk.lock();
        let _nobody_stages = self.gate.write();
        let mut file = Arc::clone(&self.place.read().file);
        if self.source.read_only {
            file = open_file(&self.source)?;
        } else {
            if self.sidecar.is_none() {
                return Err(self.source.unsupported(WRITTEN_BY_US));
            }
            let (Some(at_path), true) = (self.source.stat()?, disk.linked()) else {
                return Err(self.source.stale("it is not there"));
            };
            // Our lock is on the file that we know.
            if !at_path.same_file(&file.stat().map_err(self.io("stat"))?) {
                file = open_file(&self.source)?;
            }
        }
        let stat = file.stat().map_err(self.io("stat"))?;
        let Parsed { image, sections } = parse(&self.source, &*file, stat.len)?;
        *disk = disk.reopened(&image.header, sections.index.is_empty());
        let image = Arc::new(image);
        let mut ground = self.ground.lock();
        self.limit.store(sections.chunks.end, Relaxed);
        *ground = Ground { space: None, names: HashMap::new(), opened: Some(sections), age: ground.age + 1 };
        self.grounded.store(false, Relaxed);
        *self.place.write() = Place { file, moved: HashMap::new() };
        self.cache.clear();
        *self.published.write() = Some(Arc::clone(&image));
        *self.witness.lock() = Witness { seen: stat, writers: 0, stale: None };
        Ok(image)
    }

    fn tidy(&self) -> bool {
        super::commit::prepare(self);
        self.sweep_on()
    }

    fn save_lost(&self, name: &str, content: &dyn ReadAt) -> Result<PathBuf> {
        self.source.save_lost(name, content)
    }

    fn source_stat(&self) -> Result<SourceStat> {
        let file = Arc::clone(&self.place.read().file);
        Ok(file.stat().map_err(self.io("stat"))?.into())
    }

    fn statvfs(&self) -> Result<libc::statvfs> {
        self.source.backend.statvfs().map_err(self.io("stat the file system"))
    }

    fn sidecar(&self) -> Option<&Sidecar> {
        self.sidecar.as_ref()
    }

    fn drafts(&self) -> &Arc<DraftPool> {
        &self.drafts
    }

    fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    fn close(&self) -> Result<()> {
        if self.source.read_only {
            return Ok(());
        }
        let turn = self.wait_for_turn(LAST_PATIENCE);
        let closed = super::commit::close(self, turn.is_ok());
        turn.and(closed)
    }
}

impl Drop for CframeStore {
    fn drop(&mut self) {
        super::commit::abandon(self);
    }
}
