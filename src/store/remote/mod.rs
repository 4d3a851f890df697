//! Frames in object stores and on web servers: reading them, and making new ones.
//!
//! A frame there is what it is on a disk: an object for a cframe; for an sframe a prefix with `chunks.b2frame` and a file for each chunk.
//! A mount shows one state of a frame: that of its index object, or of its only object. Bytes of another state are an error. Others'
//! commits are looked for when somebody reads, no more often than [`Options::refresh`] says.
//!
//! | module | what it is for |
//! | --- | --- |
//! | `client` | requests, and who waits for them: all that is asynchronous |
//! | `state` | one state of a frame: its index, and where its chunks are |
//! | `pieces`, `sequence` | what is in memory or on its way, and what to ask for next |
//! | `load` | brings pieces into memory |
//! | `address`, `access` | URLs without their secrets; credentials and settings, and the stores made of them |
//! | `connector`, `listed` | connections whose answers are no longer than can be good, and whose listings can be read |
//! | `folder` | the names beneath a prefix, page by page |
//! | `object` | an object that is no frame, read by ranges |
//! | `backend`, `walk` | the objects one by one, and the frames beneath a prefix, for commands |
//! | `upload` | a frame on its way into a store |
//! | `words` | what a store answers, without secrets |
//!
//! Lock order: `looked`, then the state, then the leaves. Held while an answer is waited for are only `looked`, a state's `listed` (one
//! listing is asked for, and all wait for that), and what an upload of one object has `filled`. Who waits for the first two gives up
//! when nobody wants it any more.

mod access;
mod address;
mod backend;
mod client;
mod connector;
pub mod folder;
mod listed;
mod load;
mod object;
mod pace;
mod pieces;
mod sequence;
mod state;
pub mod upload;
mod walk;
mod words;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};

use log::{debug, warn};
use parking_lot::{Mutex, RwLock};

pub use self::pieces::Pool;
use self::pieces::{PIECE, PieceKey};
use self::sequence::Sequences;
use self::state::{Lens, State};
use super::disk_cache::DiskCache;
use super::interrupts;
use super::local::watch::Watch;
use super::{
    CacheStats, ChunkKey, Epochs, FrameImage, FrameStore, FsSpace, Others, ReadAt, ReadGuard, Resources, Result, SourceStat,
    SourceStore, StoreError, Want, in_words,
};
use crate::format::chunk::ChunkHeader;
use crate::format::{self, ChunkId, Layout};

pub use self::access::{Access, Opened, check_endpoint};
pub use self::address::{Address, Kind, secrets, without_secrets};
pub use self::backend::location;
pub use self::client::{Client, Got, Listed, PART, REQUESTS, Tag};
pub use self::object::RemoteObject;
pub use self::walk::Walk;

/// Keys for which a listing is asked rather than each chunk.
const WORTH_A_LISTING: usize = 4;
/// Lengths that are asked for in order, or in any order, with nothing read between: whoever does so looks at a listing.
const LOOKS: (u32, u32) = (3, 32);
/// Chunks whose headers are asked for at one time, beside as many that are waited for.
const HEADERS_AHEAD: usize = 128;
/// Chunks of one file whose lengths are then asked for ahead.
const LOOKED_AHEAD: u32 = 256;

/// Of a source whose changes nobody could notice.
const NO_TAG: &str = "has neither an ETag nor a time of its last change, so changes cannot be noticed; -o unsafe-immutable reads it all the \
                      same";

/// Why a state is read no more.
const MEANWHILE: &str = "its objects have changed meanwhile";
/// What happened to an object that the index still names.
const DELETED: &str = "has been deleted, or was never there";
const CHANGED: &str = "has been changed, and the index has not";

/// A store that could not list is not asked to before that.
const LIST_AGAIN: Duration = Duration::from_secs(1);

/// How a remote frame is read.
#[derive(Debug, Clone)]
pub struct Options {
    /// How often others' commits are looked for at most.
    pub refresh: Duration,
    /// A source is read even if nothing tells its states apart.
    pub unsafe_immutable: bool,
    /// Bytes of memory for pieces of chunks, if there is no `pool`.
    pub cache_bytes: u64,
    /// Memory that is shared with other frames.
    pub pool: Option<Arc<Pool>>,
    /// Where pieces are kept for later mounts.
    pub disk: Option<Arc<DiskCache>>,
    /// What beside the URL says which frame is kept there: [`Opened::origin`].
    pub origin: String,
    /// Which layout the frame has, where that is known.
    pub layout: Option<Layout>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            refresh: Duration::from_secs(5),
            unsafe_immutable: false,
            cache_bytes: 96 << 20,
            pool: None,
            disk: None,
            origin: String::new(),
            layout: None,
        }
    }
}

/// Lengths that were asked for since somebody has read.
#[derive(Debug, Default)]
struct Looks {
    /// Behind the last one.
    next: u32,
    in_order: u32,
    count: u32,
}

impl Looks {
    /// One more. Whether this is somebody who looks at all of them.
    fn add(&mut self, place: u32) -> bool {
        self.in_order = if place == self.next { self.in_order + 1 } else { 1 };
        self.next = place.saturating_add(1);
        self.count += 1;
        self.in_order >= LOOKS.0 || self.count >= LOOKS.1
    }
}

/// When a look for others' commits began, and when it ended.
struct Looked {
    began: Instant,
    ended: Instant,
    /// Whether it found no object.
    is_gone: bool,
}

impl Looked {
    fn found(&self) -> Others {
        if self.is_gone { Others::Gone("its object was deleted".to_owned()) } else { Others::Nothing }
    }
}

/// A frame in an object store.
pub struct RemoteStore {
    client: Arc<Client>,
    /// What messages call it: its URL without secrets.
    path: PathBuf,
    options: Options,
    pool: Arc<Pool>,
    epochs: Epochs,
    watch: Watch,
    state: RwLock<Arc<State>>,
    sequences: Mutex<Sequences>,
    /// What was looked at and not read. A leaf lock.
    looks: Mutex<Looks>,
    /// The last look for others' commits. Held while that is done.
    looked: Mutex<Looked>,
    /// The same without a lock: no look is due before.
    due: Mutex<Instant>,
    /// It is known to be in another state.
    is_changed: AtomicBool,
}

impl RemoteStore {
    /// Opens a frame: of an sframe by one request, of a cframe by three at most.
    ///
    /// # Errors
    /// What is there and no frame; a source whose states nothing tells apart; what the store answers.
    pub fn open(client: Arc<Client>, path: &Path, options: Options, resources: &Resources) -> Result<Self> {
        let pool = options.pool.clone().unwrap_or_else(|| Pool::new(options.cache_bytes));
        let began = Instant::now();
        let state = State::read(&client, path, options.layout, 0, &pool)?.kept_in(options.disk.as_ref(), path, &options.origin);
        if !state.tag.tells() && !options.unsafe_immutable {
            return Err(StoreError::Unsupported { path: path.to_owned(), reason: NO_TAG.to_owned() });
        }
        Ok(RemoteStore {
            client,
            path: path.to_owned(),
            pool,
            epochs: Epochs::default(),
            watch: Watch::by_readers(resources.watcher()),
            state: RwLock::new(Arc::new(state)),
            sequences: Mutex::default(),
            looks: Mutex::default(),
            looked: Mutex::new(Looked { began, ended: Instant::now(), is_gone: false }),
            due: Mutex::new(Instant::now() + options.refresh),
            is_changed: AtomicBool::new(false),
            options,
        })
    }

    /// The state of its index object, or of its one object, that is shown.
    pub fn tag(&self) -> Tag {
        self.now().tag.clone()
    }

    /// The layout that the frame has.
    pub fn layout(&self) -> Layout {
        self.now().layout()
    }

    fn now(&self) -> Arc<State> {
        Arc::clone(&self.state.read())
    }

    fn stale(&self, reason: &str) -> StoreError {
        StoreError::Stale { path: self.path.clone(), reason: reason.to_owned() }
    }

    /// The state that a key is of, and its place there.
    fn find(&self, key: ChunkKey) -> Result<(Arc<State>, u32)> {
        let state = self.now();
        let place = state.place(key).ok_or_else(|| self.stale("it has been read again meanwhile"))?;
        Ok((state, place))
    }

    /// A piece of a chunk, waited for if it is not here; what is likely to be read next is asked for beside it.
    fn piece(&self, state: &Arc<State>, place: u32, number: u32) -> Result<Arc<pieces::Piece>> {
        if number == 0 {
            let window = self.pool.most() / 2 / state.likely(place);
            let window =
                u32::try_from(window).unwrap_or(u32::MAX).min(4 * u32::try_from(self.client.connections()).unwrap_or(64));
            let ahead = self.sequences.lock().read(place, window);
            load::ahead(state, ahead);
        }
        self.look_soon();
        let failed = match load::now(state, PieceKey { place, number }) {
            Ok(piece) => return Ok(piece),
            Err(error) => error,
        };
        let mut path = self.path.clone();
        path.extend(state.id(place).map(ChunkId::file_name));
        let reason = match failed.raw_os_error() {
            Some(libc::ENOENT) => DELETED,
            Some(libc::ESTALE) => CHANGED,
            _ => return Err(StoreError::Io { path, action: "read a chunk", source: failed }),
        };
        // The index may be another as well, or deleted.
        if self.is_changed.load(SeqCst) || !Arc::ptr_eq(state, &self.now()) {
            return Err(self.stale(MEANWHILE));
        }
        match self.look_again(Duration::ZERO) {
            Ok(Others::Changed(_)) => return Err(self.stale(MEANWHILE)),
            // The mount looks, and tells it once.
            Ok(Others::Gone(_)) => self.watch.ring(),
            _ if state.is_first_loss(place) => warn!("{}: {reason}; reads of it fail", path.display()),
            _ => {}
        }
        Err(StoreError::Lost { path, reason })
    }

    /// Looks at the frame, unless that was done a moment ago. All who wait for a look share the next one.
    fn look_again(&self, pause: Duration) -> Result<Others> {
        let asked = Instant::now();
        let mut looked = match interrupts::lock(&self.looked) {
            Ok(looked) => looked,
            Err(source) => return Err(StoreError::Io { path: self.path.clone(), action: "look for changes", source }),
        };
        if self.is_changed.load(SeqCst) {
            return Ok(Others::Changed("its object is another".to_owned()));
        }
        if looked.ended.elapsed() < pause || looked.began >= asked {
            return Ok(looked.found());
        }
        let state = self.now();
        let began = Instant::now();
        let now = self.client.look(if state.layout() == Layout::Sparse { format::INDEX_NAME } else { "" });
        let ended = Instant::now();
        let is_gone = match &now {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
            Err(_) => looked.is_gone,
            Ok(_) => false,
        };
        *looked = Looked { began, ended, is_gone };
        *self.due.lock() = looked.ended + self.options.refresh;
        match now {
            Ok(tag) if tag == state.tag => Ok(Others::Nothing),
            Ok(_) => {
                self.is_changed.store(true, SeqCst);
                Ok(Others::Changed("its object is another".to_owned()))
            }
            Err(_) if is_gone => Ok(looked.found()),
            Err(error) => {
                debug!("{}: cannot be looked at: {}", self.path.display(), in_words(&error));
                Ok(Others::Nothing)
            }
        }
    }

    /// Has the mount look, if it is time to.
    fn look_soon(&self) {
        let now = Instant::now();
        let mut due = self.due.lock();
        if *due <= now {
            *due = now + self.options.refresh;
            drop(due);
            self.watch.ring();
        }
    }

    fn read_only(&self) -> StoreError {
        StoreError::Io { path: self.path.clone(), action: "write", source: io::Error::from_raw_os_error(libc::EROFS) }
    }

    fn header(&self, state: &Arc<State>, place: u32) -> Result<ChunkHeader> {
        self.header_in(state, PieceKey { place, number: 0 })
    }

    /// The header of a chunk, by a piece that has it.
    fn header_in(&self, state: &Arc<State>, PieceKey { place, number }: PieceKey) -> Result<ChunkHeader> {
        let piece = self.piece(state, place, number)?;
        let head = piece.bytes.get(..ChunkHeader::LEN).unwrap_or(&piece.bytes);
        let header = ChunkHeader::parse(head).and_then(|header| match u64::from(header.cbytes) <= piece.room {
            true => Ok(header),
            false => {
                let expected = format!("at most the {} bytes that it has room for", piece.room);
                Err(format::Error::new("chunk: cbytes", 12, header.cbytes, expected))
            }
        });
        let mut path = self.path.clone();
        path.extend(state.id(place).map(ChunkId::file_name));
        header.map_err(|source| StoreError::Format { path, source })
    }

    /// Lengths by the chunks' headers. When the store does not give one, it is not asked for the rest: that would take as long each time.
    fn lens_by_headers(&self, state: &Arc<State>, places: &[Option<u32>]) -> Vec<Option<u32>> {
        let mut lens = Vec::with_capacity(places.len());
        for place in places {
            lens.push(match place.map(|place| self.header_in(state, load::header_of(state, place))) {
                Some(Ok(header)) => Some(header.cbytes),
                Some(Err(StoreError::Io { .. } | StoreError::Lost { .. })) => break,
                _ => None,
            });
        }
        lens.resize(places.len(), None);
        lens
    }

    /// Lengths of chunk files by place, by a listing.
    fn listed(&self, state: &Arc<State>) -> Option<Arc<Vec<Option<u32>>>> {
        let mut listed = interrupts::lock(&state.listed).ok()?;
        match &*listed {
            Lens::Known(lens) => return Some(Arc::clone(lens)),
            Lens::Refused(again) if again.is_none_or(|again| Instant::now() < again) => return None,
            Lens::Unknown | Lens::Refused(_) => {}
        }
        match load::list(state) {
            Ok(lens) => {
                let lens = Arc::new(lens);
                *listed = Lens::Known(Arc::clone(&lens));
                return Some(lens);
            }
            // Of whoever does not want it any more. The next one may.
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => {
                warn!("{}: cannot be listed: {}", self.path.display(), in_words(&error));
                let is_forbidden = error.kind() == io::ErrorKind::PermissionDenied;
                let again = Instant::now() + self.options.refresh.max(LIST_AGAIN);
                *listed = Lens::Refused(Some(again).filter(|_| !is_forbidden));
            }
        }
        None
    }
}

impl FrameStore for RemoteStore {
    fn committed(&self) -> Option<Arc<FrameImage>> {
        Some(Arc::clone(&self.state.read().image))
    }

    fn enter(&self) -> ReadGuard<'_> {
        self.epochs.enter()
    }

    fn read_part(&self, _guard: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (state, place) = self.find(key)?;
        *self.looks.lock() = Looks::default();
        let end = u64::from(len).min(offset.saturating_add(buf.len() as u64));
        let mut at = offset;
        while at < end {
            let piece = self.piece(&state, place, u32::try_from(at / PIECE).unwrap_or(u32::MAX))?;
            let from = usize::try_from(at % PIECE).unwrap_or(usize::MAX);
            let bytes = piece.bytes.get(from..).unwrap_or_default();
            let done = usize::try_from(at - offset).unwrap_or(usize::MAX);
            let rest = buf.get_mut(done..).unwrap_or_default();
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(rest.len()).min(bytes.len());
            if wanted == 0 {
                break;
            }
            if let (Some(to), Some(from)) = (rest.get_mut(..wanted), bytes.get(..wanted)) {
                to.copy_from_slice(from);
            }
            at += wanted as u64;
        }
        Ok(usize::try_from(at.saturating_sub(offset)).unwrap_or(0))
    }

    fn verify(&self, guard: &ReadGuard<'_>) -> Result<()> {
        if guard.is_current() { Ok(()) } else { Err(self.stale("it has been read again meanwhile")) }
    }

    fn chunk_header(&self, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader> {
        let (state, place) = self.find(key)?;
        let header = self.header(&state, place);
        self.verify(guard)?;
        header
    }

    fn chunk_headers(&self, guard: &ReadGuard<'_>, keys: &mut dyn Iterator<Item = ChunkKey>) -> Result<Vec<ChunkHeader>> {
        let found: Vec<_> = keys.map(|key| self.find(key)).collect::<Result<_>>()?;
        let mut windows = found.chunks(HEADERS_AHEAD).inspect(|window| {
            if let Some((state, _)) = window.first() {
                load::headers_ahead(state, window.iter().map(|(_, place)| *place));
            }
        });
        let mut headers = Vec::with_capacity(found.len());
        let mut next = windows.next();
        while let Some(window) = next {
            // The next ones are on their way while these come.
            next = windows.next();
            for (state, place) in window {
                headers.push(self.header_in(state, load::piece_with_header(state, *place))?);
            }
        }
        self.verify(guard)?;
        Ok(headers)
    }

    fn len_of(&self, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<u32> {
        let (state, place) = self.find(key)?;
        let looks_at_all = self.looks.lock().add(place);
        if state.layout() == Layout::Contiguous && looks_at_all {
            load::lens_ahead(&state, place..place.saturating_add(LOOKED_AHEAD).min(state.count()));
            return self.header_in(&state, load::header_of(&state, place)).map(|header| header.cbytes);
        }
        // A look at one chunk reads it, as it is likely to be read next.
        if state.layout() == Layout::Sparse && (looks_at_all || state.is_listed()) {
            let listed = self.listed(&state).and_then(|lens| lens.get(place as usize).copied().flatten());
            self.verify(guard)?;
            if let Some(len) = listed {
                return Ok(len);
            }
        }
        self.chunk_header(guard, key).map(|header| header.cbytes)
    }

    fn lens_of(&self, guard: &ReadGuard<'_>, keys: &[ChunkKey]) -> Vec<Option<u32>> {
        let state = self.now();
        let places: Vec<Option<u32>> = keys.iter().map(|key| state.place(*key)).collect();
        let lens = if state.layout() == Layout::Contiguous {
            load::lens_ahead(&state, places.iter().flatten().copied());
            self.lens_by_headers(&state, &places)
        } else if keys.len() < WORTH_A_LISTING {
            self.lens_by_headers(&state, &places)
        } else {
            let listed = self.listed(&state);
            let len = |place: u32| listed.as_ref()?.get(place as usize).copied().flatten();
            places.iter().map(|place| len((*place)?)).collect()
        };
        if self.verify(guard).is_ok() { lens } else { vec![None; keys.len()] }
    }

    fn prefetch(&self, wants: &[Want]) {
        let state = self.now();
        let key = |want: &Want| match want {
            Want::Known(key, _) | Want::Unknown { key, .. } => *key,
        };
        load::each_ahead(&state, wants.iter().filter_map(|want| state.place(key(want))));
    }

    fn stage(&self, _chunk: &dyn ReadAt) -> Result<ChunkKey> {
        Err(self.read_only())
    }

    fn discard(&self, _key: ChunkKey) {}

    fn pin(&self, _key: ChunkKey) {}

    fn unpin(&self, _key: ChunkKey) {}

    fn commit(&self, _guard: ReadGuard<'_>, _image: FrameImage) -> Result<()> {
        Err(self.read_only())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }

    fn source_store(&self) -> Option<&dyn SourceStore> {
        Some(self)
    }
}

impl SourceStore for RemoteStore {
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    fn file_id(&self, key: ChunkKey) -> Option<ChunkId> {
        let state = self.now();
        state.id(state.place(key)?)
    }

    fn room(&self, key: ChunkKey) -> Option<u64> {
        let state = self.now();
        state.range(state.place(key)?).map(|range| range.end - range.start)
    }

    fn look(&self) -> Result<Others> {
        self.look_again(self.options.refresh)
    }

    fn glance(&self) -> Option<Result<Others>> {
        Some(self.look())
    }

    fn refreshes(&self) -> Option<Duration> {
        Some(self.options.refresh)
    }

    fn is_as_seen(&self) -> bool {
        !self.is_changed.load(SeqCst) && Instant::now() < *self.due.lock()
    }

    fn reload(&self) -> Result<Arc<FrameImage>> {
        let before = self.now();
        let layout = Some(before.layout());
        let state = State::read(&self.client, &self.path, layout, before.generation.wrapping_add(1), &self.pool)?;
        let state = state.kept_in(self.options.disk.as_ref(), &self.path, &self.options.origin);
        let image = Arc::clone(&state.image);
        let turnover = self.epochs.turn_over();
        *self.state.write() = Arc::new(state);
        *self.sequences.lock() = Sequences::default();
        self.is_changed.store(false, SeqCst);
        drop(turnover);
        Ok(image)
    }

    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn check_writable(&self) -> Result<()> {
        Err(self.read_only())
    }

    fn source_stat(&self) -> Result<SourceStat> {
        let state = self.now();
        let modified = if state.tag.modified() > SystemTime::UNIX_EPOCH { state.tag.modified() } else { SystemTime::now() };
        let stat = SourceStat::of_this_process();
        let allocated = state.image.header.cbytes();
        Ok(SourceStat { mode: 0o444, atime: modified, mtime: modified, ctime: modified, allocated, ..stat })
    }

    fn statvfs(&self) -> Result<FsSpace> {
        let cbytes = self.now().image.header.cbytes();
        Ok(FsSpace { io_size: 1 << 20, block_size: 4096, blocks: cbytes.div_ceil(4096), name_max: 255, ..FsSpace::default() })
    }

    fn forget_cached(&self) {
        // What is kept is of one state, whatever time has gone by.
    }

    fn cache_stats(&self) -> CacheStats {
        let counts = self.now().pieces.counts();
        CacheStats { hits: counts.hits, misses: counts.misses, bypassed: 0, bytes: counts.bytes, capacity: counts.most }
    }
}
