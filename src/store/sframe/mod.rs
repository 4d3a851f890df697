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

use super::backend::{Backend, BackendFile, read_exact_at};
use super::cache::ChunkCache;
use super::error::{no_room, refused};
use super::sidecar::{self, LAST_PATIENCE, PATIENCE, Sidecar};
use super::source::{Complain, Source, WRITTEN_BY_US, write_from};
use super::{
    CacheStats, ChunkKey, DraftPool, Epochs, FrameImage, FrameStore, OpenOptions, ReadAt, ReadGuard, Result, SourceStat,
    StoreError, birth,
};
use crate::format::chunk::ChunkHeader;
use crate::format::{self, INDEX_NAME as INDEX, IndexEntry};

mod ahead;
mod commit;
mod descriptors;
mod files;
mod open;
mod record;
mod witness;

use ahead::Ahead;
use commit::{Disk, Unsynced};
use descriptors::Descriptors;
use files::{Files, id_of, name_of};
use open::{OpenDir, Opened};
use record::Record;
use witness::Witness;

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
    cache: ChunkCache,
    drafts: Arc<DraftPool>,
    published: RwLock<Option<Arc<FrameImage>>>,
    disk: Mutex<Disk>,
    witness: Mutex<Witness>,
    unsynced: Mutex<Unsynced>,
    record: Mutex<Record>,
    /// What the directory held at open is on disk.
    grounded: AtomicBool,
    /// The directory as a file, locked if it is written to.
    itself: Box<dyn BackendFile>,
    /// Bytes that the chunk files take on disk, about.
    allocated: AtomicU64,
}

/// What reading needs, in the background as well.
struct Shared {
    /// The directory. Another one only after a `reload`.
    dir: RwLock<Arc<dyn Backend>>,
    files: Mutex<Files>,
    epochs: Epochs,
    descriptors: Descriptors,
}

impl Shared {
    /// A chunk's file. The guard is what keeps its name.
    fn open_chunk(&self, _guard: &ReadGuard<'_>, key: ChunkKey) -> io::Result<Arc<dyn BackendFile>> {
        let ticket = match self.descriptors.get(key) {
            Ok(file) => return Ok(file),
            Err(ticket) => ticket,
        };
        let dir = Arc::clone(&self.dir.read());
        let file = Arc::from(dir.open(&name_of(key), false)?);
        self.descriptors.insert(key, &file, ticket);
        Ok(file)
    }
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
        Self::open_source(Source::existing(path, options)?, options)
    }

    /// Opens a frame in any backend; `path` is how messages call it, `dir` the path of the backend's directory, in which it has
    /// the name `name`.
    ///
    /// # Errors
    /// As [`SframeStore::open`].
    pub fn open_in(backend: Arc<dyn Backend>, path: &Path, dir: &Path, name: &OsStr, options: OpenOptions) -> Result<Self> {
        Self::open_source(Source::new(backend, path, dir, name, options), options)
    }

    fn open_source(source: Source, options: OpenOptions) -> Result<Self> {
        let OpenDir { dir, itself, stat: dir_stat } = open::open_dir(&source)?;
        let lock_file = || Sidecar::new(Arc::clone(&dir), OsStr::new(sidecar::SUFFIX), source.at(sidecar::SUFFIX), options);
        let sidecar = options.locking.then(lock_file).transpose()?;
        let turn = sidecar.as_ref().map(|sidecar| sidecar.wait_to_read(PATIENCE)).transpose()?;
        let Opened { index, index_stat, image, found, allocated } = open::open(&source, &*dir)?;
        if let Some(sidecar) = &sidecar {
            sidecar.in_step(sidecar.count()?);
        }
        drop(turn);
        let lens = found.iter().map(|found| u64::from(found.len)).sum();
        let mut store = Self::assemble(source, options, dir, itself, Files::opened(found), Witness::new(dir_stat));
        store.sidecar = sidecar;
        store.allocated.store(allocated, Relaxed);
        store.witness.lock().index_is(index, index_stat);
        *store.disk.lock() = Disk::opened(&image.header, store.sum_of(&image.entries, lens));
        *store.published.write() = Some(Arc::new(image));
        Ok(store)
    }

    /// The lengths of an index's chunks added up, where those of its files come to `files` bytes: more if one is named twice.
    fn sum_of(&self, entries: &[IndexEntry<ChunkKey>], files: u64) -> u64 {
        let stored = entries.iter().filter(|entry| entry.stored().is_some()).count();
        let files_known = self.shared.files.lock();
        match stored == files_known.count() {
            true => files,
            false => {
                entries.iter().filter_map(|entry| entry.stored()).filter_map(|key| files_known.len(key)).map(u64::from).sum()
            }
        }
    }

    /// A store for a frame that does not exist yet: it comes into being, whole, with the first commit.
    ///
    /// # Errors
    /// What the system refuses; a name that exists.
    pub fn create(path: &Path, options: OpenOptions) -> Result<Self> {
        Self::create_source(Source::to_be(path, options)?, options)
    }

    /// As [`SframeStore::create`], in any backend.
    ///
    /// # Errors
    /// As [`SframeStore::create`].
    pub fn create_in(backend: Arc<dyn Backend>, path: &Path, dir: &Path, name: &OsStr, options: OpenOptions) -> Result<Self> {
        Self::create_source(Source::new(backend, path, dir, name, options), options)
    }

    fn create_source(source: Source, options: OpenOptions) -> Result<Self> {
        let create = |name: &OsStr| {
            let dir = source.backend.create_dir(name)?;
            let itself = dir.itself()?;
            itself.try_lock()?;
            Ok((dir, itself))
        };
        let (unborn, (dir, itself)) = birth::conceive(&source, create, |(_, itself)| itself.stat())?;
        let stat = itself.stat().map_err(source.io("create"))?;
        let store = Self::assemble(source, options, Arc::from(dir), itself, Files::default(), Witness::new(stat));
        *store.disk.lock() = Disk::created(unborn);
        Ok(store)
    }

    fn assemble(
        source: Source,
        options: OpenOptions,
        dir: Arc<dyn Backend>,
        itself: Box<dyn BackendFile>,
        files: Files,
        witness: Witness,
    ) -> Self {
        SframeStore {
            source,
            sidecar: None,
            drafts: DraftPool::new(Arc::clone(&dir), options.draft_bytes),
            shared: Arc::new(Shared {
                dir: RwLock::new(dir),
                files: Mutex::new(files),
                epochs: Epochs::default(),
                descriptors: Descriptors::new(),
            }),
            ahead: Ahead::default(),
            cache: ChunkCache::new(options.cache_bytes),
            published: RwLock::new(None),
            disk: Mutex::new(Disk::default()),
            witness: Mutex::new(witness),
            unsynced: Mutex::new(Unsynced::default()),
            record: Mutex::new(Record::default()),
            grounded: AtomicBool::new(false),
            itself,
            allocated: AtomicU64::new(0),
        }
    }

    fn dir(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.shared.dir.read())
    }

    /// A failure that has to do with one chunk.
    fn chunk_io(&self, key: ChunkKey, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        move |error| self.source.at(name_of(key)).io(action)(error)
    }

    /// A new file for a chunk of `len` bytes.
    fn create_chunk(&self, len: u32) -> Result<(ChunkKey, Box<dyn BackendFile>)> {
        let dir = self.dir();
        loop {
            let reserved = self.shared.files.lock().reserve(len);
            let Some(key) = reserved else {
                return Err(self.source.unsupported("has no id left for another chunk"));
            };
            // Noted only now: what has the name already is not ours.
            let noted = |file| match self.record([id_of(key)].into_iter()) {
                Ok(()) => Ok(file),
                Err(error) => dir.remove(&name_of(key)).and(Err(error)),
            };
            match dir.create(&name_of(key), 0o666).and_then(noted) {
                Ok(file) => return Ok((key, file)),
                // An orphan: who knows whose.
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
}

impl FrameStore for SframeStore {
    fn path(&self) -> &Path {
        &self.source.path
    }

    fn committed(&self) -> Option<Arc<FrameImage>> {
        self.published.read().clone()
    }

    fn enter(&self) -> ReadGuard<'_> {
        self.shared.epochs.enter()
    }

    fn read_chunk(&self, guard: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let load = |buf: &mut [u8], offset: u64| read_exact_at(&*self.shared.open_chunk(guard, key)?, buf, offset);
        self.cache.read(key, len, offset, buf, load).map_err(self.chunk_io(key, "read a chunk"))
    }

    fn chunk_header(&self, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader> {
        let read = || {
            let file = self.shared.open_chunk(guard, key)?;
            let len = self.shared.files.lock().len(key);
            let len = len.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            header_of(&*file, len.into())
        };
        let header = read().map_err(self.chunk_io(key, "read a chunk's header"))?;
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
        self.ahead.expect(&self.shared, chunks);
    }

    fn stage(&self, chunk: &dyn ReadAt) -> Result<ChunkKey> {
        self.source.check_writable()?;
        let len = self.source.chunk_len(chunk)?;
        let _turn = self.wait_for_turn(PATIENCE)?;
        commit::ground(self)?;
        let (key, file) = self.create_chunk(len)?;
        if let Some(index) = self.witness.lock().differing_owner(&*file) {
            file.copy_attributes(&*index);
        }
        let Err(failed) = write_from(chunk, len.into(), &*file, 0) else {
            self.allocated.fetch_add(u64::from(len).next_multiple_of(4096), Relaxed);
            self.unsynced.lock().push(key, file);
            return Ok(key);
        };
        drop(file);
        let harmless = failed.reading || no_room(&failed.error);
        let error = self.chunk_io(key, "write a chunk")(failed.error);
        if harmless {
            self.discard(key);
            Err(error)
        } else {
            Err(self.source.poisoned_by(error))
        }
    }

    fn discard(&self, key: ChunkKey) {
        if !self.source.read_only {
            self.shared.files.lock().discard(key, self.shared.epochs.now());
            self.collect();
        }
    }

    fn pin(&self, key: ChunkKey) {
        if !self.source.read_only {
            self.shared.files.lock().pin(key);
        }
    }

    fn unpin(&self, key: ChunkKey) {
        if !self.source.read_only {
            self.shared.files.lock().unpin(key, self.shared.epochs.now());
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

    fn changed_outside(&self) -> Result<bool> {
        if !self.source.read_only {
            let disk = self.disk.lock();
            return Ok(self.seen_outside(&disk)?.is_some());
        }
        let image = self.committed();
        let header = image.as_ref().map(|image| image.header.as_bytes()).unwrap_or_default();
        self.changed_since_read(header)
    }

    fn reload(&self) -> Result<Arc<FrameImage>> {
        let mut disk = self.disk.lock();
        let mut dir = self.dir();
        let mut dir_stat = self.witness.lock().dir;
        if self.source.read_only {
            let open = open::open_dir(&self.source)?;
            (dir, dir_stat) = (open.dir, open.stat);
        } else {
            if self.sidecar.is_none() {
                return Err(self.source.unsupported(WRITTEN_BY_US));
            }
            // Our lock is on the directory that we know.
            if disk.unborn().is_some() || !self.source.stat()?.is_some_and(|stat| stat.same_file(&dir_stat)) {
                return Err(self.source.stale("it is not the directory that it was"));
            }
        }
        let Opened { index, index_stat, image, found, allocated } = open::open(&self.source, &*dir)?;
        let lens = found.iter().map(|found| u64::from(found.len)).sum();
        let image = Arc::new(image);
        let (rest, known) = {
            let mut files = self.shared.files.lock();
            let mut rest = files.collect_rest(true);
            // Others may have used an id again.
            rest.retain(|(key, _)| found.binary_search_by_key(&id_of(*key).0, |found| found.id).is_err());
            (rest, std::mem::replace(&mut *files, Files::opened(found)))
        };
        drop(known);
        *self.shared.dir.write() = Arc::clone(&dir);
        self.shared.descriptors.clear();
        self.cache.clear();
        *self.unsynced.lock() = Unsynced::default();
        self.allocated.store(allocated, Relaxed);
        *disk = Disk::opened(&image.header, self.sum_of(&image.entries, lens));
        self.grounded.store(false, Relaxed);
        *self.published.write() = Some(Arc::clone(&image));
        {
            let mut witness = self.witness.lock();
            (witness.dir, witness.stale) = (dir_stat, None);
            witness.index_is(Arc::clone(&index), index_stat);
        }
        // What only our older states needed goes when the one that is there now is on disk.
        if !self.source.read_only && !rest.is_empty() && index.sync_all().and_then(|()| dir.sync_dir()).is_ok() {
            self.remove(rest);
        }
        Ok(image)
    }

    fn save_lost(&self, name: &str, content: &dyn ReadAt) -> Result<PathBuf> {
        self.source.save_lost(name, content)
    }

    fn source_stat(&self) -> Result<SourceStat> {
        let index = self.witness.lock().index();
        let stat = match &index {
            Some(index) => index.stat(),
            None => self.itself.stat(),
        };
        let mut stat = SourceStat::from(stat.map_err(self.source.io("stat"))?);
        stat.allocated += self.allocated.load(Relaxed);
        if index.is_none() {
            stat.mode &= 0o666; // of the directory
        }
        Ok(stat)
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

    fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    fn close(&self) -> Result<()> {
        self.ahead.stop();
        if self.source.read_only {
            return Ok(());
        }
        let turn = self.wait_for_turn(LAST_PATIENCE);
        let closed = commit::close(self, turn.is_ok());
        turn.and(closed)
    }
}

impl Drop for SframeStore {
    fn drop(&mut self) {
        self.ahead.stop();
        commit::abandon(self);
    }
}
