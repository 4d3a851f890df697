//! An sframe: a directory of `chunks.b2frame` and a file for each stored chunk. What becomes durable when is in `commit.rs`.
//!
//! A chunk's file is never written to once it is staged, and never written over: a replaced chunk is a new file under an id of
//! which there is no file. So what was opened once needs no second look, and what a crash leaves beside a frame is at worst a
//! file that nobody asks for.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};

use super::backend::{Backend, BackendFile, FileStat, read_exact_at};
use super::cache::FrameCache;
use super::chunks::Chunks;
use super::error::{no_room, refused};
use super::held::Held;
use super::local::watch::Watch;
use super::location::Location;
use super::sidecar::{self, LAST_PATIENCE, PATIENCE, Sidecar};
use super::source::{Complain, Like, NewFrame, Others, Source, write_from};
use super::{
    CacheStats, ChunkKey, DraftPool, Epochs, FrameImage, FrameStore, LocalStore, OpenOptions, ReadAt, ReadGuard, Result,
    SourceStat, StoreError, birth,
};
use crate::format::chunk::ChunkHeader;
use crate::format::{self, INDEX_NAME as INDEX, IndexEntry};

mod ahead;
mod commit;
mod descriptors;
mod files;
pub(super) mod folder;
mod open;
mod record;
mod witness;

use ahead::Ahead;
pub(super) use ahead::Pool;
use commit::{Disk, Unsynced};
use descriptors::{Descriptors, OpenChunk};
pub(super) use descriptors::{OpenFiles, open_files};
use files::{Files, Known, Stamp, name_of};
use folder::Folder;
use open::{OpenDir, Opened};
use record::{Record, temp_name_of};
use witness::{Suspicion, Witness};

/// How many entries of an index are looked up at a time.
const BATCH: usize = 4096;

fn index_name() -> &'static OsStr {
    OsStr::new(INDEX)
}

/// A store for one sframe.
///
/// Lock order: `disk`, `record`, `witness`, then any one of the others, which are held across no input or output.
pub struct SframeStore {
    source: Source,
    sidecar: Option<Sidecar>,
    shared: Arc<Shared>,
    ahead: Ahead,
    cache: FrameCache,
    drafts: Arc<DraftPool>,
    published: RwLock<Option<Arc<FrameImage>>>,
    disk: Mutex<Disk>,
    witness: Mutex<Witness>,
    unsynced: Mutex<Unsynced>,
    record: Mutex<Record>,
    /// What the directory held at open is on disk.
    grounded: AtomicBool,
    /// The directory as a file, locked if it is written to.
    itself: RwLock<Arc<dyn BackendFile>>,
    held: Held,
    /// Bytes that the chunk files take on disk, about.
    allocated: AtomicU64,
}

/// What reading needs, in the background as well.
struct Shared {
    /// The directory. Another one only after a `reload`.
    folder: RwLock<Arc<Folder>>,
    files: Mutex<Files>,
    epochs: Epochs,
    descriptors: Descriptors,
    /// A leaf lock.
    suspicion: Mutex<Suspicion>,
    watch: Watch,
}

impl Shared {
    /// Does something to a chunk, if its key is good.
    fn with_chunk(&self, key: ChunkKey, change: impl FnOnce(&mut Chunks, u64)) {
        let mut files = self.files.lock();
        if let Some(place) = files.locate(key) {
            change(&mut files.chunks, place);
        }
    }

    /// A chunk's file. The guard is what keeps its name.
    fn open_chunk(&self, _guard: &ReadGuard<'_>, key: ChunkKey) -> io::Result<Arc<OpenChunk>> {
        let ticket = match self.descriptors.get(key) {
            Ok(file) => return Ok(file),
            Err(ticket) => ticket,
        };
        let folder = Arc::clone(&self.folder.read());
        let file = folder.open(&name_of(key), false).inspect_err(|error| {
            if error.kind() == io::ErrorKind::NotFound && self.files.lock().len(key).is_some() {
                self.suspect_missing(key);
            }
        })?;
        let stat = file.stat()?;
        folder.check(&stat, self.files.lock().is_new(key))?;
        self.check_chunk(key, &stat)?;
        let open = Arc::new(OpenChunk { file, stamp: Stamp::from(&stat) });
        self.descriptors.insert(key, Arc::clone(&open), ticket);
        Ok(open)
    }

    /// Reads from a chunk's file what is there as long as nobody has changed it.
    fn read_from<T>(
        &self,
        guard: &ReadGuard<'_>,
        key: ChunkKey,
        read: impl FnOnce(&dyn BackendFile) -> io::Result<T>,
    ) -> io::Result<T> {
        let open = self.open_chunk(guard, key)?;
        let read = read(&*open.file);
        if Stamp::from(&open.file.stat()?) != open.stamp {
            self.suspect(key, Known::Written, "was written to");
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        read
    }
}

/// The lock file in the directory.
fn lock_file(source: &Source, dir: &Arc<dyn Backend>, options: &OpenOptions) -> Result<Sidecar> {
    let index = dir.stat(index_name()).map_err(source.at(INDEX).io("stat"))?;
    if dir.stat(OsStr::new(sidecar::SUFFIX)).is_err() {
        // None is made in what is no frame.
        let file = dir.open(index_name(), false).map_err(source.at(INDEX).io("open"))?;
        let len = file.stat().map_err(source.at(INDEX).io("stat"))?.len;
        open::read_index(source, &*file, len)?;
    }
    Sidecar::new(Arc::clone(dir), OsStr::new(sidecar::SUFFIX), source.at(sidecar::SUFFIX), options, Some(&index))
}

/// The header at the beginning of a chunk's file of `len` bytes.
fn header_of(file: &dyn BackendFile, len: u64) -> io::Result<format::Result<ChunkHeader>> {
    let mut bytes = [0; ChunkHeader::LEN];
    let have = bytes.len().min(usize::try_from(len).unwrap_or(usize::MAX));
    read_exact_at(file, &mut bytes[..have], 0)?;
    Ok(ChunkHeader::parse(&bytes[..have]).and_then(|header| {
        if u64::from(header.cbytes) > len {
            let expected = format!("at most the file's length of {len}");
            return Err(format::Error::new("chunk: cbytes", 12, header.cbytes, expected));
        }
        Ok(header)
    }))
}

impl SframeStore {
    /// Opens a frame.
    ///
    /// # Errors
    /// What the system refuses; a directory that is no sframe; chunk files that are missing or damaged, all of them by name up
    /// to a readable number; another mount that writes to it.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self> {
        Self::open_source(Source::existing(path, &options)?, &options)
    }

    /// Opens the frame at a location.
    ///
    /// # Errors
    /// As [`SframeStore::open`].
    pub fn open_at(location: &Location, options: OpenOptions) -> Result<Self> {
        Self::open_source(Source::new(location, &options, NewFrame::default()), &options)
    }

    /// Opens a frame in any backend; `path` is how messages call it, `dir` the path of the backend's directory, in which it has
    /// the name `name`.
    ///
    /// # Errors
    /// As [`SframeStore::open`].
    pub fn open_in(backend: Arc<dyn Backend>, path: &Path, dir: &Path, name: &OsStr, options: OpenOptions) -> Result<Self> {
        Self::open_at(&Location::in_backend(backend, path, dir, name), options)
    }

    fn open_source(source: Source, options: &OpenOptions) -> Result<Self> {
        let OpenDir { dir, itself, stat: dir_stat } = open::open_dir(&source, !source.read_only)?;
        let sidecar = options.locking.then(|| lock_file(&source, &dir, options)).transpose()?;
        let turn = sidecar.as_ref().map(|sidecar| sidecar.wait_to_read(PATIENCE)).transpose()?;
        let Opened { index, index_stat, image, named, found, since, recent, allocated } =
            open::open(&source, &dir, dir_stat, 0, false)?;
        if let Some(sidecar) = &sidecar {
            sidecar.in_step(sidecar.count()?);
        }
        drop(turn);
        let files = Files::opened(named, &found, since, recent, 0);
        let stored = files.chunks.named_bytes();
        let folder = Folder::opened(dir, dir_stat, index_stat);
        let mut store = Self::assemble(source, options, folder, itself, files, Witness::new(dir_stat));
        store.sidecar = sidecar;
        store.allocated.store(allocated, Relaxed);
        store.witness.lock().index_is(index, index_stat);
        *store.disk.lock() = Disk::opened(&image.header, stored);
        *store.published.write() = Some(Arc::new(image));
        store.watch_files();
        Ok(store)
    }

    /// A store for a frame that does not exist yet: it comes into being, whole, with the first commit.
    ///
    /// # Errors
    /// What the system refuses; a name that exists.
    pub fn create(path: &Path, options: OpenOptions) -> Result<Self> {
        Self::create_source(Source::to_be(path, &options)?, &options)
    }

    /// As [`SframeStore::create`], at a location.
    ///
    /// # Errors
    /// As [`SframeStore::create`].
    pub fn create_at(location: &Location, options: OpenOptions, new: NewFrame) -> Result<Self> {
        Self::create_source(Source::new(location, &options, new), &options)
    }

    /// As [`SframeStore::create`], in any backend.
    ///
    /// # Errors
    /// As [`SframeStore::create`].
    pub fn create_in(backend: Arc<dyn Backend>, path: &Path, dir: &Path, name: &OsStr, options: OpenOptions) -> Result<Self> {
        Self::create_at(&Location::in_backend(backend, path, dir, name), options, NewFrame::default())
    }

    fn create_source(source: Source, options: &OpenOptions) -> Result<Self> {
        let create = |name: &OsStr| {
            let dir = source.backend.create_dir(name, if source.new.like.is_some() { 0o700 } else { 0o777 })?;
            let itself = dir.itself()?;
            itself.try_lock()?;
            Ok((dir, itself))
        };
        let (unborn, (dir, itself)) = birth::conceive(&source, create, |(_, itself)| itself.stat())?;
        let stat = itself.stat().map_err(source.io("create"))?;
        let folder = Folder::made(Arc::from(dir));
        let store = Self::assemble(source, options, folder, itself, Files::default(), Witness::new(stat));
        *store.disk.lock() = Disk::created(unborn);
        Ok(store)
    }

    fn assemble(
        source: Source,
        options: &OpenOptions,
        folder: Folder,
        itself: Box<dyn BackendFile>,
        files: Files,
        witness: Witness,
    ) -> Self {
        let resources = &options.resources;
        let drafts = DraftPool::sharing(Arc::clone(&folder), &resources.drafts);
        let shared = Arc::new(Shared {
            folder: RwLock::new(Arc::new(folder)),
            files: Mutex::new(files),
            epochs: Epochs::default(),
            descriptors: Descriptors::new(&resources.open_files),
            suspicion: Mutex::default(),
            watch: Watch::new(resources.watcher()),
        });
        SframeStore {
            source,
            sidecar: None,
            drafts,
            ahead: Ahead::new(&resources.ahead, shared.clone()),
            shared,
            cache: FrameCache::new(&resources.cache),
            published: RwLock::new(None),
            disk: Mutex::new(Disk::default()),
            witness: Mutex::new(witness),
            unsynced: Mutex::new(Unsynced::default()),
            record: Mutex::new(Record::default()),
            grounded: AtomicBool::new(false),
            itself: RwLock::new(Arc::from(itself)),
            held: Held::new(options.hold_staged, &resources.held),
            allocated: AtomicU64::new(0),
        }
    }

    fn dir(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.shared.folder.read())
    }

    /// A failure that has to do with one chunk.
    fn chunk_io(&self, key: ChunkKey, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        move |error| match error.raw_os_error() {
            Some(libc::ESTALE) => self.source.stale(format!("its {} is another by now", name_of(key).display())),
            _ => self.source.at(name_of(key)).io(action)(error),
        }
    }

    /// The file whose owner, mode and attributes new files get: the index file, or of a new frame what it is to be like.
    fn like_index(&self) -> Option<Arc<dyn BackendFile>> {
        let index = self.witness.lock().index();
        index.or_else(|| self.source.new.like.as_ref().map(|like| Arc::clone(like.files())))
    }

    /// The permission bits that a new file is made with. Nobody can open it for whom it is not meant until it has its owner.
    fn mode_of_new_files(&self) -> u32 {
        match (self.witness.lock().index_stat(), &self.source.new.like) {
            (Some(index), _) if index.belongs_to_this_process() => index.mode & 0o666,
            (Some(_), _) | (None, Some(_)) => 0o600,
            (None, None) => self.source.new.file_mode(),
        }
    }

    /// Gives a new file the owner, mode and attributes of the others, where it has not got them by being made.
    fn give_attributes(&self, file: &dyn BackendFile) {
        let owner = |stat: FileStat| (stat.mode, stat.uid, stat.gid);
        let index = self.witness.lock().index_stat().map(owner);
        if index.is_some() && index == file.stat().ok().map(owner) {
            return;
        }
        if let Some(like) = self.like_index() {
            file.copy_attributes(&*like);
        }
    }

    /// An id for a chunk of `len` bytes.
    fn reserve(&self, len: u32) -> Result<ChunkKey> {
        let reserved = self.shared.files.lock().reserve(len);
        reserved.ok_or_else(|| self.source.unsupported("has no id left for another chunk"))
    }

    /// A new file for a chunk of `len` bytes, by a temporary name: one that is being written is no chunk file, whoever is killed.
    fn create_chunk(&self, len: u32) -> Result<(ChunkKey, Box<dyn BackendFile>)> {
        let dir = self.dir();
        self.ready_record();
        loop {
            let key = self.reserve(len)?;
            self.record_making(key);
            let name = temp_name_of(key);
            let create = || dir.create(&name, self.mode_of_new_files());
            let created = match create() {
                // Of somebody who was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.remove(&name).is_ok() => create(),
                created => created,
            };
            match created {
                Ok(file) => return Ok((key, file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.shared.files.lock().skip(key),
                Err(error) => {
                    self.shared.files.lock().removed(key);
                    let harmless = refused(&error);
                    let error = self.chunk_io(key, "make the file of a chunk")(error);
                    return Err(if harmless { error } else { self.source.poisoned_by(error) });
                }
            }
        }
    }

    /// Gives a chunk's file, which has been written, its name: that of another id where something has it already.
    fn name_chunk(&self, mut key: ChunkKey, len: u32, file: &dyn BackendFile) -> Result<ChunkKey> {
        let dir = self.dir();
        let mut temp = temp_name_of(key);
        let named = file.stat().and_then(|stat| {
            loop {
                self.shared.files.lock().stamp(key, &stat);
                self.record_made(key, &stat);
                match dir.rename(&temp, &name_of(key), false) {
                    // An orphan: who knows whose.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    named => return named.map(|()| Ok(())),
                }
                let next = match self.reserve(len) {
                    Ok(next) => next,
                    Err(error) => return Ok(Err(error)),
                };
                self.shared.files.lock().skip(std::mem::replace(&mut key, next));
                self.record_making(key);
                dir.rename(&temp, &temp_name_of(key), true)?;
                temp = temp_name_of(key);
            }
        });
        let error = match named {
            Ok(Ok(())) => return Ok(key),
            Ok(Err(error)) => error,
            Err(error) => self.chunk_io(key, "make the file of a chunk")(error),
        };
        self.unmake(key);
        Err(error)
    }

    /// A chunk's file came to nothing before it had its name.
    fn unmake(&self, key: ChunkKey) {
        let _ = self.dir().remove(&temp_name_of(key));
        self.shared.files.lock().removed(key);
    }
}

impl FrameStore for SframeStore {
    fn committed(&self) -> Option<Arc<FrameImage>> {
        self.published.read().clone()
    }

    fn enter(&self) -> ReadGuard<'_> {
        self.shared.epochs.enter()
    }

    fn read_part(&self, guard: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let load = |buf: &mut [u8], offset: u64| self.shared.read_from(guard, key, |file| read_exact_at(file, buf, offset));
        if guard.is_to_save()
            && let Some(read) = self.held.read(key, len, offset, buf, |buf| load(buf, 0))
        {
            return read.map_err(self.chunk_io(key, "read a chunk"));
        }
        let read = self.cache.read(key, len, offset, buf, load);
        read.map_err(|error| match self.verify_read(guard) {
            Ok(()) => self.chunk_io(key, "read a chunk")(error),
            Err(changed) => changed,
        })
    }

    fn verify(&self, guard: &ReadGuard<'_>) -> Result<()> {
        self.verify_read(guard)
    }

    fn chunk_header(&self, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader> {
        let read = || {
            let len = self.shared.files.lock().len(key);
            let len = len.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            self.shared.read_from(guard, key, |file| header_of(file, len.into()))
        };
        let header = read();
        self.verify_read(guard)?;
        let header = header.map_err(self.chunk_io(key, "read a chunk's header"))?;
        header.map_err(|error| self.source.at(name_of(key)).format(error))
    }

    fn chunk_lens(&self, _guard: &ReadGuard<'_>, entries: &[IndexEntry<ChunkKey>]) -> Result<Vec<u32>> {
        let mut lens = Vec::with_capacity(entries.len());
        for batch in entries.chunks(BATCH) {
            let files = self.shared.files.lock();
            for entry in batch {
                let len = match entry {
                    IndexEntry::Stored(key) => files.len(*key).ok_or(*key),
                    IndexEntry::Special(_) => Ok(0),
                };
                match len {
                    Ok(len) => lens.push(len),
                    Err(key) => return Err(self.chunk_io(key, "find a chunk")(io::ErrorKind::NotFound.into())),
                }
            }
        }
        Ok(lens)
    }

    fn expect_chunks(&self, chunks: &[(ChunkKey, u32)]) {
        self.ahead.expect(chunks);
    }

    fn stage(&self, chunk: &dyn ReadAt) -> Result<ChunkKey> {
        self.check_writable()?;
        let len = self.source.chunk_len(chunk)?;
        let _turn = self.wait_for_turn(PATIENCE)?;
        commit::ground(self)?;
        let (key, file) = self.create_chunk(len)?;
        self.give_attributes(&*file);
        if let Err(failed) = write_from(chunk, len.into(), &*file, 0) {
            drop(file);
            self.unmake(key);
            let harmless = failed.reading || no_room(&failed.error);
            let error = self.chunk_io(key, "write a chunk")(failed.error);
            return Err(if harmless { error } else { self.source.poisoned_by(error) });
        }
        let key = self.name_chunk(key, len, &*file)?;
        self.allocated.fetch_add(u64::from(len).next_multiple_of(4096), Relaxed);
        self.held.put(key, chunk);
        self.unsynced.lock().push(key, file);
        Ok(key)
    }

    fn discard(&self, key: ChunkKey) {
        if !self.source.read_only {
            self.held.forget(key);
            self.shared.with_chunk(key, |chunks, place| chunks.discard(place, self.shared.epochs.now()));
            self.collect();
        }
    }

    fn pin(&self, key: ChunkKey) {
        if !self.source.read_only {
            self.shared.with_chunk(key, Chunks::pin);
        }
    }

    fn unpin(&self, key: ChunkKey) {
        if !self.source.read_only {
            self.shared.with_chunk(key, |chunks, place| chunks.unpin(place, self.shared.epochs.now()));
            self.collect();
        }
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
        self.ahead.stop();
        self.shared.descriptors.clear();
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

impl LocalStore for SframeStore {
    fn path(&self) -> &Path {
        &self.source.path
    }

    fn file_id(&self, key: ChunkKey) -> Option<crate::format::ChunkId> {
        Some(files::id_of(key))
    }

    fn check_writable(&self) -> Result<()> {
        self.claim();
        self.source.check_writable()
    }

    fn is_as_seen(&self) -> bool {
        self.looks_as_seen()
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
        &self.shared.watch
    }

    fn save_lost(&self, name: &str, content: &dyn ReadAt) -> Result<PathBuf> {
        super::lost::save(&self.source, name, content)
    }

    fn source_stat(&self) -> Result<SourceStat> {
        let index = self.witness.lock().index();
        let stat = match &index {
            Some(index) => index.stat(),
            None => self.itself.read().stat(),
        };
        let mut stat = SourceStat::from(stat.map_err(self.source.io("stat"))?);
        stat.allocated += self.allocated.load(Relaxed);
        if index.is_none() {
            stat.mode &= 0o666; // of the directory
        }
        Ok(stat)
    }

    fn like(&self) -> Result<Like> {
        let frame = self.dir().itself().map_err(self.source.io("open"))?;
        Ok(Like { frame: Arc::from(frame), index: self.like_index() })
    }

    fn source(&self) -> Option<(std::os::fd::OwnedFd, PathBuf)> {
        if self.source.is_denied() {
            return None; // it is another's
        }
        Some((self.itself.read().fd()?.try_clone_to_owned().ok()?, self.path().to_owned()))
    }

    fn statvfs(&self) -> Result<libc::statvfs> {
        self.dir().statvfs().map_err(self.source.io("stat the file system"))
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
}

impl Drop for SframeStore {
    fn drop(&mut self) {
        self.ahead.stop();
        commit::abandon(self);
    }
}
