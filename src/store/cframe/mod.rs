//! A cframe: opening, reading, staging. What becomes durable when is in `commit.rs`.
//!
//! A chunk's key is where it was when it was first seen, and stays its key wherever it is moved: the position in the file in
//! the low 48 bits, and above them a generation that tells chunks staged at the same place one after the other apart, and those of
//! a SOURCE that others have changed from those of the one before. So an old key never means a new chunk.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::backend::{Backend, BackendFile, FileStat, read_exact_at};
use super::cache::FrameCache;
use super::chunks::Generations;
use super::error::no_room;
use super::frame::{FileBytes, Frame, Unread};
use super::held::Held;
use super::local::watch::Watch;
use super::location::Location;
use super::sidecar::{self, LAST_PATIENCE, PATIENCE, Sidecar};
use super::source::{ATTEMPTS, Complain, HEADER_ROOM, KEPT_CHANGING, Like, NewFrame, Others, Source, write_from};
use super::{
    AtClose, CacheStats, ChunkKey, DraftPool, Epochs, FrameImage, FrameStore, LocalStore, OpenOptions, ReadAt, ReadGuard, Result,
    SourceStat, StoreError, birth,
};
use crate::format::ChunkOffset;
use crate::format::chunk::ChunkHeader;
use crate::format::header::Sections;
use crate::format::times::Identity;

mod changes;
mod chunk_headers;
mod commit;
mod extents;
mod sweep;

use changes::Witness;
use commit::Disk;
use extents::ExtentMap;

/// Positions that a key has room for.
const POSITION_BITS: u32 = 48;

/// Where chunks are read from.
pub(in crate::store) struct Place {
    pub(in crate::store) file: Arc<dyn BackendFile>,
    /// Positions of chunks that are not where their key says.
    pub(in crate::store) moved: HashMap<ChunkKey, u64>,
    /// Of those that were moved since the last commit: where they are by SOURCE's index.
    pub(in crate::store) indexed: HashMap<ChunkKey, u64>,
}

impl Place {
    fn new(file: Arc<dyn BackendFile>) -> Self {
        Place { file, moved: HashMap::new(), indexed: HashMap::new() }
    }
}

/// Where the chunk of a good key is.
pub(in crate::store) fn position(moved: &HashMap<ChunkKey, u64>, key: ChunkKey) -> u64 {
    let moved = if moved.is_empty() { None } else { moved.get(&key) };
    moved.copied().unwrap_or(position_of(key))
}

/// The map of the file, made when it is first needed: reading needs none.
pub(in crate::store) struct Ground {
    space: Option<ExtentMap>,
    /// Keys of chunks that are not where their key says, by position: the other direction of [`Place::moved`].
    pub(in crate::store) names: HashMap<u64, ChunkKey>,
    /// How the frame lay at open.
    opened: Option<Sections>,
}

/// A store for one cframe.
///
/// Lock order: `disk`, `gate`, `ground`, `witness`, then any one of `place`, `published`, `held` and the cache's. Reads take `place`
/// and `witness`, for a moment, and no lock is held by them across input; `ground` is held across no input or output but a truncation.
pub struct CframeStore {
    pub(in crate::store) source: Source,
    sidecar: Option<Sidecar>,
    pub(in crate::store) place: RwLock<Place>,
    /// No chunk ends behind this.
    limit: AtomicU64,
    pub(in crate::store) epochs: Epochs,
    cache: FrameCache,
    drafts: Arc<DraftPool>,
    pub(in crate::store) published: RwLock<Option<Arc<FrameImage>>>,
    pub(in crate::store) disk: Mutex<Disk>,
    /// Taken for reading while a chunk is being staged, for writing while the file is being exchanged.
    pub(in crate::store) gate: RwLock<()>,
    ground: Mutex<Ground>,
    /// Somebody could have used more room than is known, so the rest of the headers is to be read when there is time.
    sweeping: AtomicBool,
    /// What the file held at open is on disk.
    grounded: AtomicBool,
    witness: Mutex<Witness>,
    generations: Generations,
    pub(in crate::store) held: Held,
    watch: Watch,
    at_close: Mutex<Vec<AtClose>>,
}

/// A frame as it was read, checked against the file's length.
struct Parsed {
    image: FrameImage,
    sections: Sections,
}

fn key_at(position: u64, generation: u32) -> ChunkKey {
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
        Self::open_source(Source::existing(path, &options)?, &options)
    }

    /// Opens the frame at a location.
    ///
    /// # Errors
    /// As [`CframeStore::open`].
    pub fn open_at(location: &Location, options: OpenOptions) -> Result<Self> {
        Self::open_source(Source::new(location, &options, NewFrame::default()), &options)
    }

    /// Opens a frame in any backend; `path` is how messages call it, `dir` the path of the backend's directory.
    ///
    /// # Errors
    /// As [`CframeStore::open`].
    pub fn open_in(backend: Arc<dyn Backend>, path: &Path, dir: &Path, name: &OsStr, options: OpenOptions) -> Result<Self> {
        Self::open_at(&Location::in_backend(backend, path, dir, name), options)
    }

    fn open_source(source: Source, options: &OpenOptions) -> Result<Self> {
        if options.locking && !has_lock_file(&source)? {
            // None is made beside what is no frame.
            let file = open_file(&source)?;
            let len = file.stat().map_err(source.io("stat"))?.len;
            parse(&source, &*file, len, |position| key_at(position, 0))?;
        }
        let sidecar = lock_file(&source, options)?;
        let turn = sidecar.as_ref().map(|sidecar| sidecar.wait_to_read(PATIENCE)).transpose()?;
        let file = open_file(&source)?;
        let stat = file.stat().map_err(source.io("stat"))?;
        let Parsed { image, sections } = parse(&source, &*file, stat.len, |position| key_at(position, 0))?;
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
        Self::create_source(Source::to_be(path, &options)?, &options)
    }

    /// As [`CframeStore::create`], at a location.
    ///
    /// # Errors
    /// As [`CframeStore::create`].
    pub fn create_at(location: &Location, options: OpenOptions, new: NewFrame) -> Result<Self> {
        Self::create_source(Source::new(location, &options, new), &options)
    }

    /// As [`CframeStore::create`], in any backend.
    ///
    /// # Errors
    /// As [`CframeStore::create`].
    pub fn create_in(backend: Arc<dyn Backend>, path: &Path, dir: &Path, name: &OsStr, options: OpenOptions) -> Result<Self> {
        Self::create_at(&Location::in_backend(backend, path, dir, name), options, NewFrame::default())
    }

    fn create_source(source: Source, options: &OpenOptions) -> Result<Self> {
        let create = |name: &OsStr| {
            let file = create_locked(&*source.backend, name, source.new.file_mode())?;
            if let Some(like) = &source.new.like {
                file.copy_attributes(&**like.files());
            }
            Ok(file)
        };
        let (unborn, file) = birth::conceive(&source, create, |file| file.stat())?;
        let stat = file.stat().map_err(source.io("create"))?;
        let sidecar = lock_file(&source, options)?;
        let store = Self::assemble(source, sidecar, options, file, stat, Disk::created(unborn));
        store.ground.lock().space = Some(ExtentMap::new(options.header_room));
        store.is_grounded();
        Ok(store)
    }

    fn assemble(
        source: Source,
        sidecar: Option<Sidecar>,
        options: &OpenOptions,
        file: Arc<dyn BackendFile>,
        stat: FileStat,
        disk: Disk,
    ) -> Self {
        let store = CframeStore {
            sidecar,
            drafts: DraftPool::sharing(Arc::clone(&source.backend), &options.resources.drafts),
            source,
            place: RwLock::new(Place::new(Arc::clone(&file))),
            limit: AtomicU64::new(0),
            epochs: Epochs::default(),
            cache: FrameCache::new(&options.resources.cache),
            published: RwLock::new(None),
            disk: Mutex::new(disk),
            gate: RwLock::new(()),
            ground: Mutex::new(Ground { space: None, names: HashMap::new(), opened: None }),
            sweeping: AtomicBool::new(false),
            grounded: AtomicBool::new(false),
            witness: Mutex::new(Witness::new(stat)),
            generations: Generations::new(u16::MAX.into()),
            held: Held::new(options.hold_staged, &options.resources.held),
            watch: Watch::new(options.resources.watcher()),
            at_close: Mutex::default(),
        };
        store.watch_file(&file);
        store
    }

    // ---- errors ----

    pub(in crate::store) fn io(&self, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        move |error| match error.raw_os_error() {
            Some(libc::ESTALE) => self.source.stale(self.stale_reason().unwrap_or_else(|| "it is another by now".to_owned())),
            _ => self.source.io(action)(error),
        }
    }

    // ---- the map ----

    /// Runs `f` with the map of the file, which is made the first time from the index.
    pub(in crate::store) fn with_ground<T>(&self, f: impl FnOnce(&mut ExtentMap, &mut HashMap<u64, ChunkKey>) -> T) -> T {
        let mut ground = self.ground.lock();
        let Ground { space, names, opened } = &mut *ground;
        let space = space.get_or_insert_with(|| {
            let published = self.published.read().clone();
            let (Some(image), Some(sections)) = (published, opened.take()) else { return ExtentMap::new(HEADER_ROOM) };
            // Not collected: that grows a vector step by step, and there may be a million.
            let mut stored = Vec::with_capacity(image.entries.len());
            stored.extend(image.entries.iter().filter_map(|entry| entry.stored().map(position_of)));
            let tail = sections.index.start..sections.trailer.end;
            ExtentMap::opened(u64::from(image.header.header_len()), HEADER_ROOM, stored, self.generations.first(), tail)
        });
        f(space, names)
    }

    /// Whether anything has been written, or was about to be.
    pub(in crate::store) fn has_map(&self) -> bool {
        self.ground.lock().space.is_some()
    }

    /// What is published is on disk, so what it does not need is free.
    pub(in crate::store) fn is_grounded(&self) {
        self.grounded.store(true, Relaxed);
    }

    /// The right to put chunks where the last state needs nothing. What was found at open may not be on disk yet, if who wrote it
    /// was killed, and what is on disk need other bytes: so it is synced before.
    fn grounded(&self) -> Result<RwLockReadGuard<'_, ()>> {
        loop {
            if !self.grounded.load(Relaxed) {
                commit::ground(self)?;
            }
            let gate = self.gate.read();
            // With the gate held SOURCE is not read again.
            if self.grounded.load(Relaxed) {
                return Ok(gate);
            }
        }
    }

    /// Frees what nobody reads any more.
    pub(in crate::store) fn collect(&self, space: &mut ExtentMap, names: &mut HashMap<u64, ChunkKey>) {
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
    pub(in crate::store) fn locate(&self, space: &ExtentMap, key: ChunkKey) -> Option<u64> {
        if let Some(position) = self.place.read().moved.get(&key) {
            return Some(*position);
        }
        let position = position_of(key);
        (key_at(position, space.chunks().get(position)?.generation) == key).then_some(position)
    }

    /// Whether a key is one of this version of SOURCE.
    fn is_of_this_version(&self, key: ChunkKey) -> bool {
        self.generations.has((key.number() >> POSITION_BITS) as u32)
    }

    /// A chunk ends at `end`.
    pub(in crate::store) fn raise_limit(&self, end: u64) {
        self.limit.fetch_max(end, Relaxed);
    }
}

/// What the lock file beside SOURCE is called.
fn lock_name(source: &Source) -> OsString {
    [&source.name, OsStr::new(sidecar::SUFFIX)].into_iter().collect()
}

/// Whether something has the lock file's name.
fn has_lock_file(source: &Source) -> Result<bool> {
    match source.backend.stat(&lock_name(source)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(source.io("stat the lock file")(error)),
    }
}

/// The lock file beside SOURCE, if locking is asked for.
fn lock_file(source: &Source, options: &OpenOptions) -> Result<Option<Sidecar>> {
    let frame = if options.locking { source.stat()? } else { None };
    let name = lock_name(source);
    let path = [source.path.as_os_str(), OsStr::new(sidecar::SUFFIX)].into_iter().collect::<OsString>();
    let open = || Sidecar::new(Arc::clone(&source.backend), &name, path.into(), options, frame.as_ref());
    options.locking.then(open).transpose()
}

/// Opens SOURCE, locked if it is to be written to.
fn open_file(source: &Source) -> Result<Arc<dyn BackendFile>> {
    let Source { backend, name, read_only, .. } = source;
    for _ in 0..ATTEMPTS {
        let action = if *read_only { "open" } else { "open for writing" };
        let file = backend.open(name, !read_only).map_err(|error| match backend.stat(name) {
            Ok(stat) if stat.is_dir() => source.unsupported("is a directory; expected a frame in one file"),
            Ok(stat) if !stat.is_file() && !stat.is_link() => source.unsupported("is no regular file; expected a Blosc2 frame"),
            _ => source.io(action)(error),
        })?;
        let stat = file.stat().map_err(source.io("stat"))?;
        if *read_only {
            return Ok(Arc::from(file));
        }
        if !file.try_lock().map_err(source.io("lock"))? {
            return Err(StoreError::busy(&source.path, &*file));
        }
        // Whoever had the lock may have exchanged the file between our open and our lock.
        if backend.stat(name).map_err(source.io("stat"))?.same_file(&stat) {
            return Ok(Arc::from(file));
        }
    }
    Err(source.stale(KEPT_CHANGING))
}

/// A new file beside SOURCE, locked.
pub(in crate::store) fn create_locked(backend: &dyn Backend, name: &OsStr, mode: u32) -> io::Result<Arc<dyn BackendFile>> {
    let file = backend.create(name, mode)?;
    file.try_lock()?;
    Ok(Arc::from(file))
}

/// Reads and checks everything but the chunks, whose keys `key_at` makes of their positions.
fn parse(source: &Source, file: &dyn BackendFile, file_len: u64, key_at: impl Fn(u64) -> ChunkKey) -> Result<Parsed> {
    let frame = Frame::<ChunkOffset>::read(&FileBytes { file, len: file_len }).map_err(|unread| match unread {
        Unread::Io { action, source: error } => source.io(action)(error),
        Unread::Format(error) => source.format(error),
        Unread::OtherLayout => source.unsupported("is the index file of a sparse frame; expected the directory that it is in"),
    })?;
    let Frame { header, trailer, entries, sections } = frame;
    let frame_len = header.frame_len();
    if frame_len >= 1 << POSITION_BITS {
        let most = (1u64 << POSITION_BITS) - 1;
        return Err(source.unsupported(format!("is {frame_len} bytes long, and at most {most} can be handled")));
    }
    let base = u64::from(header.header_len());
    let entries = entries.into_iter().map(|entry| entry.map(|offset| key_at(base + offset.bytes())));
    let image = FrameImage { header, trailer, entries: Arc::new(entries.collect()) };
    Ok(Parsed { image, sections })
}

impl FrameStore for CframeStore {
    fn committed(&self) -> Option<Arc<FrameImage>> {
        self.published.read().clone()
    }

    fn enter(&self) -> ReadGuard<'_> {
        self.epochs.enter()
    }

    fn read_part(&self, guard: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let load = |buf: &mut [u8], offset: u64| {
            if !self.is_of_this_version(key) {
                return Err(io::Error::from_raw_os_error(libc::ESTALE));
            }
            let (file, position) = self.place_of(key);
            read_exact_at(&*file, buf, position + offset)
        };
        if guard.is_to_save() {
            if let Some(read) = self.held.read(key, len, offset, buf, |buf| load(buf, 0)) {
                return read.map_err(self.source.io("read a chunk"));
            }
            let read = self.cache.read(key, len, offset, buf, load).map_err(self.io("read a chunk"));
            return self.bracket().and(read);
        }
        self.cache.read(key, len, offset, buf, load).map_err(|error| match self.bracket() {
            Ok(()) => self.io("read a chunk")(error),
            Err(changed) => changed,
        })
    }

    fn verify(&self, guard: &ReadGuard<'_>) -> Result<()> {
        self.verify_read(guard)
    }

    fn expect_chunks(&self, chunks: &[(ChunkKey, u32)]) {
        self.expect_whole(chunks);
    }

    fn expect_unknown(&self, key: ChunkKey, bytes: RangeInclusive<u32>, next: Option<ChunkKey>) {
        self.expect_by_guess(key, bytes, next);
    }

    fn chunk_header(&self, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader> {
        let header = self.read_header(key);
        self.verify_read(guard)?;
        header
    }

    fn lens_of(&self, guard: &ReadGuard<'_>, keys: &[ChunkKey]) -> Vec<Option<u32>> {
        let lens = self.read_lens(keys);
        if self.verify_read(guard).is_ok() { lens } else { vec![None; keys.len()] }
    }

    fn stage(&self, chunk: &dyn ReadAt) -> Result<ChunkKey> {
        self.check_writable()?;
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
            Ok(()) => {
                self.held.put(key, chunk);
                Ok(key)
            }
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
        self.held.forget(key);
        self.with_ground(|space, _| {
            if let Some(position) = self.locate(space, key) {
                space.chunks_mut().discard(position, self.epochs.now());
            }
        });
    }

    fn pin(&self, key: ChunkKey) {
        if self.source.read_only {
            return;
        }
        self.with_ground(|space, _| {
            if let Some(position) = self.locate(space, key) {
                space.chunks_mut().pin(position);
            }
        });
    }

    fn unpin(&self, key: ChunkKey) {
        if self.source.read_only {
            return;
        }
        self.with_ground(|space, _| {
            if let Some(position) = self.locate(space, key) {
                space.chunks_mut().unpin(position, self.epochs.now());
            }
        });
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
        self.cache.clear();
        if self.source.read_only {
            return Ok(());
        }
        let turn = self.wait_for_turn(LAST_PATIENCE);
        let closed = commit::close(self, turn.is_ok());
        turn.and(closed)
    }

    fn local(&self) -> Option<&dyn LocalStore> {
        Some(self)
    }
}

impl LocalStore for CframeStore {
    fn path(&self) -> &Path {
        &self.source.path
    }

    fn check_writable(&self) -> Result<()> {
        self.claim();
        self.source.check_writable()
    }

    fn is_as_seen(&self) -> bool {
        CframeStore::is_as_seen(self)
    }

    fn look(&self) -> Result<Others> {
        self.look_at_source()
    }

    fn glance(&self) -> Option<Result<Others>> {
        self.glance_at_source()
    }

    fn reload(&self) -> Result<Arc<FrameImage>> {
        self.read_again()
    }

    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn tidy(&self) -> bool {
        commit::prepare(self);
        self.sweep_on()
    }

    fn save_lost(&self, name: &str, content: &dyn ReadAt) -> Result<PathBuf> {
        super::lost::save(&self.source, name, content)
    }

    fn source_stat(&self) -> Result<SourceStat> {
        let file = Arc::clone(&self.place.read().file);
        Ok(file.stat().map_err(self.io("stat"))?.into())
    }

    fn like(&self) -> Result<Like> {
        Ok(Like { frame: Arc::clone(&self.place.read().file), index: None })
    }

    fn source(&self) -> Option<(std::os::fd::OwnedFd, PathBuf)> {
        if self.source.is_denied() {
            return None; // it is another's
        }
        let file = Arc::clone(&self.place.read().file);
        Some((file.fd()?.try_clone_to_owned().ok()?, self.path().to_owned()))
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

    fn forget_cached(&self) {
        self.cache.clear();
    }

    fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    fn identity(&self) -> Option<Identity> {
        self.identity_with(&self.disk.lock()).ok()
    }

    fn at_close(&self, last: AtClose) {
        self.at_close.lock().push(last);
    }
}

impl Drop for CframeStore {
    fn drop(&mut self) {
        commit::abandon(self);
    }
}
