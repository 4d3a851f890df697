//! A cframe: one file of header, chunks, index and trailer. What becomes durable when is in `commit`.
//!
//! A chunk's key is its position in the file when it was first seen (the low 48 bits) and a generation. It stays the chunk's key wherever
//! the chunk is moved. Two chunks at one position have different generations, and so have the chunks of a reloaded SOURCE.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};

use super::backend::{Backend, BackendFile, FileStat, read_exact_at};
use super::chunks::{Chunks, Generations};
use super::disk_store::changes::{Detector, has_header};
use super::disk_store::commit::{Change, CommitState};
use super::disk_store::{Common, DiskStore, Locate, LockPlace, Medium, ReadFrame};
use super::error::Complain;
use super::error::{Failed, no_room};
use super::frame::{FileBytes, Frame, Unread};
use super::sidecar;
use super::source::{
    ATTEMPTS, HEADER_ROOM, Handle, KEPT_CHANGING, Like, Source, TICK, Unfinished, has, touched_since, write_from,
};
use super::{ChunkKey, FrameImage, FrameStore, OpenOptions, ReadAt, ReadGuard, Result, SourceStat, StoreError, Want};
use crate::format::chunk::ChunkHeader;
use crate::format::header::Sections;
use crate::format::times::{Identity, Stamp, checksum};
use crate::format::{ChunkOffset, IndexEntry, Layout};

mod chunk_headers;
mod commit;
mod extents;
mod sweep;

use commit::FileStates;
use extents::ExtentMap;

/// How often a frame is read again that others change meanwhile.
const ROUNDS: usize = 3;
/// Positions that a key has room for.
const POSITION_BITS: u32 = 48;

/// Where chunks are read from.
pub(in crate::store) struct Positions {
    pub(in crate::store) file: Arc<dyn BackendFile>,
    /// Positions of chunks that are not where their key says.
    pub(in crate::store) moved: HashMap<ChunkKey, u64>,
    /// Where SOURCE's index has the chunks that were moved since the last commit.
    pub(in crate::store) indexed: HashMap<ChunkKey, u64>,
}

impl Positions {
    fn new(file: Arc<dyn BackendFile>) -> Self {
        Positions { file, moved: HashMap::new(), indexed: HashMap::new() }
    }
}

/// Where the chunk of a good key is.
pub(in crate::store) fn position(moved: &HashMap<ChunkKey, u64>, key: ChunkKey) -> u64 {
    let moved = if moved.is_empty() { None } else { moved.get(&key) };
    moved.copied().unwrap_or(position_of(key))
}

/// The map of the file, made when it is first needed: reading needs none.
pub(in crate::store) struct LazyMap {
    map: Option<ExtentMap>,
    /// Keys of chunks that are not where their key says, by position: the other direction of [`Positions::moved`].
    names: HashMap<u64, ChunkKey>,
    /// How the frame lay at open.
    opened: Option<Sections>,
}

/// A store for one cframe.
pub type CframeStore = DiskStore<Cframe>;

/// The file of a frame. Lock order: `map`, then `place`.
pub struct Cframe {
    pub(in crate::store) place: RwLock<Positions>,
    /// No chunk ends behind this.
    limit: AtomicU64,
    /// Held across no input or output but a truncation.
    map: Mutex<LazyMap>,
    /// Free space is wanted, so the remaining headers are to be read in the background.
    sweeping: AtomicBool,
    generations: Generations,
}

/// What of a frame that was found is the file's own.
pub(in crate::store) struct FileParts {
    sections: Sections,
    generation: u32,
}

fn key_at(position: u64, generation: u32) -> ChunkKey {
    ChunkKey::new(position | u64::from(generation) << POSITION_BITS)
}

fn position_of(key: ChunkKey) -> u64 {
    key.number() & ((1 << POSITION_BITS) - 1)
}

/// Reads and checks everything but the chunks, whose keys `key_at` makes of their positions.
fn parse(
    source: &Source,
    file: &dyn BackendFile,
    file_len: u64,
    key_at: impl Fn(u64) -> ChunkKey,
) -> Result<(FrameImage, Sections)> {
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
    Ok((FrameImage { header, trailer, entries: Arc::new(entries.collect()) }, sections))
}

/// A new file beside SOURCE, locked.
fn create_locked(backend: &dyn Backend, name: &OsStr, mode: u32) -> io::Result<Arc<dyn BackendFile>> {
    let file = backend.create(name, mode)?;
    file.try_lock()?;
    Ok(Arc::from(file))
}

impl CframeStore {
    /// The file, as it is open now.
    fn file(&self) -> Arc<dyn BackendFile> {
        Arc::clone(&self.medium.place.read().file)
    }

    /// Runs `f` with the map of the file, which is made the first time from the index.
    fn with_map<T>(&self, f: impl FnOnce(&mut ExtentMap, &mut HashMap<u64, ChunkKey>) -> T) -> T {
        let mut lazy = self.medium.map.lock();
        let LazyMap { map, names, opened } = &mut *lazy;
        let map = map.get_or_insert_with(|| {
            let (Some(image), Some(sections)) = (self.committed(), opened.take()) else { return ExtentMap::new(HEADER_ROOM) };
            // Not collected: that grows a vector step by step, and there may be a million.
            let mut stored = Vec::with_capacity(image.entries.len());
            stored.extend(image.entries.iter().filter_map(|entry| entry.stored().map(position_of)));
            let tail = sections.index.start..sections.trailer.end;
            let (header_len, generation) = (u64::from(image.header.header_len()), self.medium.generations.first());
            ExtentMap::opened(header_len, HEADER_ROOM, stored, generation, tail)
        });
        f(map, names)
    }

    /// Whether anything has been written, or was about to be.
    fn has_map(&self) -> bool {
        self.medium.map.lock().map.is_some()
    }

    /// Frees what nobody reads any more.
    fn free(&self, map: &mut ExtentMap, names: &mut HashMap<u64, ChunkKey>) {
        self.common.epochs.advance();
        let epoch = self.common.epochs.advance();
        map.collect(epoch, |position| {
            if let Some(key) = names.remove(&position) {
                self.medium.place.write().moved.remove(&key);
            }
        });
    }

    /// Runs `f` with the map, in which what nobody reads is free.
    fn with_free_map<T>(&self, f: impl FnOnce(&mut ExtentMap) -> T) -> T {
        self.with_map(|map, names| {
            self.free(map, names);
            f(map)
        })
    }

    /// The file was exchanged by us.
    fn file_is(&self, file: &Arc<dyn BackendFile>, stat: io::Result<FileStat>) {
        {
            let mut detector = self.detector.lock(); // nobody is to see the new file and take it for another's
            self.medium.place.write().file = Arc::clone(file);
            if let Ok(stat) = stat {
                detector.root_is(stat);
                detector.header_is(Arc::clone(file), stat);
            }
        }
        self.watch_files();
    }
}

impl Cframe {
    /// Where a chunk is now, in which file.
    fn place_of(&self, key: ChunkKey) -> (Arc<dyn BackendFile>, u64) {
        let place = self.place.read();
        (Arc::clone(&place.file), position(&place.moved, key))
    }

    /// Where chunks are now. The file is the one that they are in.
    fn places(&self, keys: impl Iterator<Item = ChunkKey>) -> (Arc<dyn BackendFile>, Vec<u64>) {
        let place = self.place.read();
        let positions = keys.map(|key| position(&place.moved, key)).collect();
        (Arc::clone(&place.file), positions)
    }

    /// Where the chunk of a key is among those of the map; `None` if the key is not good any more.
    fn locate(&self, chunks: &Chunks, key: ChunkKey) -> Option<u64> {
        if let Some(position) = self.place.read().moved.get(&key) {
            return Some(*position);
        }
        let position = position_of(key);
        (key_at(position, chunks.get(position)?.generation) == key).then_some(position)
    }

    /// Refuses a key that is none of this version of SOURCE.
    fn check_version(&self, key: ChunkKey) -> io::Result<()> {
        match self.generations.has((key.number() >> POSITION_BITS) as u32) {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ESTALE)),
        }
    }

    /// A chunk ends at `end`.
    fn raise_limit(&self, end: u64) {
        self.limit.fetch_max(end, Relaxed);
    }
}

impl Medium for Cframe {
    const LAYOUT: Layout = Layout::Contiguous;
    const KIND: &'static str = "file";
    const CHECKS_CHUNKS: bool = false;
    const KEPT_OPEN: usize = 0;
    type Commits = FileStates;
    type Parts = FileParts;
    type LetGo = ();

    // ---- opening ----

    fn is_kind(stat: &FileStat) -> bool {
        stat.is_file()
    }

    fn open(source: &Source, write: bool) -> Result<Handle> {
        let place = source.place();
        let (backend, name) = (place.backend(), place.name());
        for _ in 0..ATTEMPTS {
            let action = if write { "open for writing" } else { "open" };
            let file = backend.open(name, write).map_err(|error| match backend.stat(name) {
                Ok(stat) if stat.is_dir() => source.unsupported("is a directory; expected a frame in one file"),
                Ok(stat) if !stat.is_file() && !stat.is_link() => {
                    source.unsupported("is no regular file; expected a Blosc2 frame")
                }
                _ => source.io(action)(error),
            })?;
            let file: Arc<dyn BackendFile> = Arc::from(file);
            let stat = file.stat().map_err(source.io("stat"))?;
            if write && !file.try_lock().map_err(source.io("lock"))? {
                return Err(StoreError::busy(&source.called(), &*file));
            }
            // Whoever had the lock may have exchanged the file between our open and our lock.
            if !write || backend.stat(name).map_err(source.io("stat"))?.same_file(&stat) {
                return Ok(Handle { file, dir: None, stat });
            }
        }
        Err(source.stale(KEPT_CHANGING))
    }

    fn create(source: &Source, name: &OsStr) -> io::Result<Handle> {
        let file = create_locked(&*source.backend(), name, source.new.file_mode())?;
        if let Some(like) = &source.new.like {
            file.copy_attributes(&**like.files());
            like.files().stat()?.give_mode(&*file, false);
        }
        let stat = file.stat()?;
        Ok(Handle { file, dir: None, stat })
    }

    fn resume(source: &Source, unfinished: &Unfinished, options: &OpenOptions) -> io::Result<Handle> {
        let backend = source.backend();
        let file = backend.open(&unfinished.name, true)?;
        let stat = file.stat()?;
        if !Unfinished::is_ours(&*backend, &stat) || !file.try_lock()? || !backend.stat(&unfinished.name)?.same_file(&stat) {
            return Err(io::Error::other("it may be somebody else's"));
        }
        // The last chunk may be there without having been recorded.
        let end = options.header_room.saturating_add(unfinished.bytes);
        if stat.len > end {
            file.set_len(end)?;
        }
        let stat = file.stat()?;
        Ok(Handle { file: Arc::from(file), dir: None, stat })
    }

    fn read(source: &Source, handle: &Handle, generation: u32, whole: bool) -> Result<ReadFrame<Self>> {
        for _ in 0..ROUNDS {
            let before = handle.file.stat().map_err(source.io("stat"))?;
            let parsed = parse(source, &*handle.file, before.len, |position| key_at(position, generation));
            let after = handle.file.stat().map_err(source.io("stat"))?;
            if !whole || !touched_since(&before, &after) {
                let (image, sections) = parsed?;
                let commits = FileStates::opened(&image.header, sections.index.is_empty());
                let header_file = (Arc::clone(&handle.file), before);
                return Ok(ReadFrame { image, header_file, commits, parts: FileParts { sections, generation } });
            }
        }
        Err(source.stale(KEPT_CHANGING))
    }

    fn lock_place(source: &Source, handle: &Handle, new: bool) -> Result<LockPlace> {
        let suffixed = |name: &OsStr| [name, OsStr::new(sidecar::SUFFIX)].into_iter().collect::<OsString>();
        let place = source.place();
        let name = suffixed(place.name());
        match place.backend().stat(&name) {
            // None is made beside what is no frame.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !new {
                    parse(source, &*handle.file, handle.stat.len, |position| key_at(position, 0))?;
                }
            }
            Err(error) => return Err(source.io("stat the lock file")(error)),
            Ok(_) => {}
        }
        let path = suffixed(place.location.path().as_os_str()).into();
        Ok(LockPlace { dir: Arc::clone(place.backend()), name, path, owner: source.stat()? })
    }

    fn new(_: &Source, handle: &Handle, parts: Option<FileParts>, _: Arc<Common>, options: &OpenOptions) -> Self {
        let (map, opened, limit) = match parts {
            Some(FileParts { sections, .. }) => (None, Some(sections.clone()), sections.chunks.end),
            None => (Some(ExtentMap::new(options.header_room)), None, 0),
        };
        Cframe {
            place: RwLock::new(Positions::new(Arc::clone(&handle.file))),
            limit: AtomicU64::new(limit),
            map: Mutex::new(LazyMap { map, names: HashMap::new(), opened }),
            sweeping: AtomicBool::new(false),
            generations: Generations::new(u16::MAX.into()),
        }
    }

    fn next_generation(&self) -> u32 {
        self.generations.next_first()
    }

    fn exchange(store: &CframeStore, handle: &Handle, _another: bool, parts: FileParts) {
        let FileParts { sections, generation } = parts;
        let medium = &store.medium;
        let mut map = medium.map.lock();
        medium.generations.begin(generation);
        medium.limit.store(sections.chunks.end, Relaxed);
        *map = LazyMap { map: None, names: HashMap::new(), opened: Some(sections) };
        *medium.place.write() = Positions::new(Arc::clone(&handle.file));
        medium.sweeping.store(false, Relaxed);
    }

    fn let_go(_store: &CframeStore, _rest: (), _same: bool) {}

    // ---- reading ----

    fn read_chunk(store: &CframeStore, _guard: &ReadGuard<'_>, key: ChunkKey, buf: &mut [u8], offset: u64) -> io::Result<()> {
        store.medium.check_version(key)?;
        let (file, position) = store.medium.place_of(key);
        read_exact_at(&*file, buf, position + offset)
    }

    fn read_header(store: &CframeStore, _guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader> {
        store.read_header(key)
    }

    fn chunk_error(store: &CframeStore, _key: ChunkKey, action: &'static str, error: io::Error) -> StoreError {
        store.io(action)(error)
    }

    fn lens_of(store: &CframeStore, _guard: &ReadGuard<'_>, keys: &[ChunkKey]) -> Vec<Option<u32>> {
        store.read_lens(keys)
    }

    fn prefetch(store: &CframeStore, wants: &[Want]) {
        let known: Vec<_> = wants.iter().filter_map(Want::known).collect();
        if !known.is_empty() {
            store.medium.expect_whole(&known);
        }
        for want in wants {
            if let Want::Unknown { key, likely, most, next } = *want {
                store.medium.expect_by_guess(key, likely..=most, next);
            }
        }
    }

    // ---- the life of a chunk ----

    fn with_chunks<T>(store: &CframeStore, run: impl FnOnce(&mut Chunks, &Locate<'_>) -> T) -> T {
        store.with_map(|map, _| run(map.chunks_mut(), &|chunks, key| store.medium.locate(chunks, key)))
    }

    fn stage(store: &CframeStore, chunk: &dyn ReadAt, len: u32) -> Result<ChunkKey> {
        let (key, position) = store.allocate(len);
        if position + u64::from(len) >= 1 << POSITION_BITS {
            store.discard(key);
            return Err(store.io("write a chunk")(io::Error::from_raw_os_error(libc::EFBIG)));
        }
        let file = store.file();
        if chunk.known_sum().is_some_and(|sum| has(&*file, position, len.into(), sum)) {
            return Ok(key);
        }
        let mut reading = false;
        let written = store.writing(&*file, || {
            write_from(chunk, len.into(), &*file, position).map_err(|failed| {
                reading = failed.reading;
                failed.error
            })
        });
        written.map(|()| key).map_err(|source| {
            let harmless = reading || no_room(&source);
            let error = store.io("write a chunk")(source);
            if harmless {
                store.discard(key);
                return error;
            }
            store.source.poisoned_by(error)
        })
    }

    fn tidy(store: &CframeStore) -> bool {
        commit::prepare(store);
        store.sweep_on()
    }

    // ---- commits ----

    fn write(
        store: &CframeStore,
        commits: &mut CommitState<Self>,
        image: FrameImage,
        change: &Change,
    ) -> std::result::Result<(), Failed> {
        commit::write(store, commits, image, change)
    }

    fn after_commit(store: &CframeStore, commits: &mut CommitState<Self>) -> Result<()> {
        commit::after_commit(store, commits)
    }

    fn published(store: &CframeStore, commits: &mut CommitState<Self>, before: &[u8], image: &FrameImage, change: &Change) {
        let seq = commits.published();
        store.with_map(|map, _| map.publish(seq, &change.dropped));
        if !change.dropped.is_empty() {
            store.want_sweep();
        }
        commits.own.published(before, image);
        store.medium.place.write().indexed.clear();
    }

    fn sync(store: &CframeStore) -> io::Result<()> {
        store.file().sync_data()
    }

    fn is_durable(store: &CframeStore, commits: &mut CommitState<Self>) {
        commits.own.durable(commits.header().len());
        let seq = commits.published();
        if store.has_map() {
            store.with_map(|map, names| {
                map.durable(seq, store.common.epochs.now());
                store.free(map, names);
            });
        }
    }

    fn after_sync(store: &CframeStore, commits: &mut CommitState<Self>) {
        // What others have written since is not ours to move or to cut.
        if store.has_map() && matches!(store.seen_outside(commits), Ok(None)) {
            commit::settle(store, commits);
        }
    }

    fn finish(store: &CframeStore, commits: &mut CommitState<Self>) -> Result<()> {
        commit::keep_mtime(store, || commit::finish(store, commits))
    }

    // ---- changes by others ----

    fn handle(&self) -> (Arc<dyn BackendFile>, Option<Arc<dyn Backend>>) {
        (Arc::clone(&self.place.read().file), None)
    }

    fn set_handle(store: &CframeStore, handle: &Handle) {
        store.file_is(&handle.file, Ok(handle.stat));
    }

    fn look_at_header(_store: &CframeStore, seen: &mut Detector) -> io::Result<bool> {
        seen.look_at_header().map(|()| true)
    }

    fn is_same_frame(store: &CframeStore, image: &FrameImage, file: &dyn BackendFile, len: u64) -> bool {
        let Ok((now, _)) = parse(&store.source, file, len, |position| key_at(position, 0)) else { return false };
        let place = store.medium.place.read();
        let same = |(old, new): (&IndexEntry<_>, &IndexEntry<_>)| {
            let indexed = |key| place.indexed.get(&key).copied().unwrap_or_else(|| position(&place.moved, key));
            old.map(indexed) == new.map(position_of)
        };
        image.header.as_bytes() == now.header.as_bytes()
            && image.trailer.as_bytes() == now.trailer.as_bytes()
            && image.entries.len() == now.entries.len()
            && image.entries.iter().zip(now.entries.iter()).all(same)
    }

    fn identity(store: &CframeStore, commits: &CommitState<Self>) -> std::result::Result<Identity, Option<Duration>> {
        // Where another machine may write, its clock is not known, and what is known here may be old.
        if commits.is_pending() || store.source.is_denied() || store.source.backend().clock().is_none() {
            return Err(None);
        }
        let file = store.file();
        let now = file.stat().map_err(|_| None)?;
        let (mtime, ctime) = (now.mtime.into(), Stamp::from(now.ctime));
        // A file system that keeps whole seconds does not tell two changes in one of them apart.
        let is_as_seen = store.detector.lock().is_as_seen(&now);
        if !is_as_seen || ctime.is_whole_second() || !has_header(&*file, commits.header()) {
            return Err(None);
        }
        // Until the clock has gone on, a change may leave all times as they are.
        let age = SystemTime::now().duration_since(now.ctime).unwrap_or_else(|ahead| match ahead.duration() < TICK {
            true => Duration::ZERO,
            false => TICK,
        });
        match TICK.checked_sub(age).filter(|left| !left.is_zero()) {
            Some(left) => Err(Some(left)),
            None => Ok(Identity { dev: now.dev, ino: now.ino, len: now.len, mtime, ctime, header: checksum(commits.header()) }),
        }
    }

    // ---- attributes ----

    fn source_stat(store: &CframeStore) -> io::Result<SourceStat> {
        Ok(store.file().stat()?.into())
    }

    fn attribute_file(store: &CframeStore) -> Arc<dyn BackendFile> {
        store.file()
    }

    fn like(store: &CframeStore) -> Like {
        Like { frame: store.file(), index: None }
    }
}
