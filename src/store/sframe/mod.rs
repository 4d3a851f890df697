//! An sframe: a directory of `chunks.b2frame` and a file for each stored chunk. What becomes durable when is in `commit`.
//!
//! A chunk's file is never written to once it is staged, and never written over: a replaced chunk is a new file under an id of
//! which there is no file. So what was opened once needs no second look, and what a crash leaves beside a frame is at worst a
//! file that no index names.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};

use super::backend::{Backend, BackendFile, FileStat, read_exact_at};
use super::chunks::Chunks;
use super::disk_store::changes::{Detector, has_header};
use super::disk_store::commit::{Change, CommitState};
use super::disk_store::{Common, DiskStore, Locate, LockPlace, Medium, ReadFrame};
use super::error::Complain;
use super::error::{Failed, no_room, refused};
use super::frame::{FileBytes, Frame};
use super::local::watch::Watched;
use super::open_files::{Descriptors, OpenChunk, Stamp};
use super::readahead::{Readahead, Reader};
use super::sidecar;
use super::source::{Handle, Like, Source, Unfinished, has, write_from};
use super::{
    ChunkKey, FrameImage, FrameStore, OpenOptions, ReadAt, ReadGuard, Result, SourceStat, StoreError, Want, is_part_of_frame,
};
use crate::format::chunk::ChunkHeader;
use crate::format::{self, ChunkId, INDEX_NAME as INDEX, Layout};

mod changes;
mod commit;
mod files;
mod folder;
mod open;
mod record;

use changes::Suspicion;
use commit::Unsynced;
use files::{Files, Known, id_of, name_of};
use folder::Folder;
use record::{Record, temp_name_of};

/// How much of a file is read ahead, in bytes: for the rest the kernel's own read-ahead does.
const MOST: u64 = 8 << 20;
/// What the kernel reads at one request, at least, in bytes: its default read-ahead. It cuts off what is longer.
const STRIDE: u64 = 128 << 10;

fn index_name() -> &'static OsStr {
    OsStr::new(INDEX)
}

/// A store for one sframe.
pub type SframeStore = DiskStore<Sframe>;

/// The directory of a frame. Lock order: `record`, then any one of the others, which are held across no input or output.
pub struct Sframe {
    directory: Arc<Directory>,
    readahead: Readahead,
    unsynced: Mutex<Unsynced>,
    record: Mutex<Record>,
    /// The directory as a file, locked if it is written to.
    itself: RwLock<Arc<dyn BackendFile>>,
    /// Bytes that the chunk files take on disk, about.
    allocated: AtomicU64,
}

/// What reading needs, in the background as well.
struct Directory {
    /// The directory. Another one only after a reload.
    folder: RwLock<Arc<Folder>>,
    files: Mutex<Files>,
    descriptors: Descriptors,
    /// A leaf lock.
    suspicion: Mutex<Suspicion>,
    common: Arc<Common>,
}

/// What of a frame that was found is the directory's own.
pub(super) struct DirectoryParts {
    folder: Folder,
    files: Files,
    /// Bytes that the chunk files take on disk.
    allocated: u64,
}

/// Files that only our older states needed, and what was known of them.
pub(super) struct Unneeded {
    files: Vec<(ChunkKey, u32)>,
    known: Files,
}

/// What is known of the states of a directory.
#[derive(Default)]
pub(super) struct DirectoryStates {
    /// The lengths of the chunks that P names, added up.
    stored: u64,
}

impl Directory {
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

impl Reader for Directory {
    /// Opens a chunk's file and has the kernel read it. What fails here fails again, and is told, when it is really read.
    fn read_ahead(&self, key: ChunkKey, len: u32) {
        let guard = self.common.epochs.enter();
        if self.files.lock().len(key).is_none() {
            return; // removed since
        }
        let Ok(open) = self.open_chunk(&guard, key) else { return };
        drop(guard);
        let len = u64::from(len).min(MOST);
        (0..len).step_by(STRIDE as usize).for_each(|from| open.file.will_need(from, STRIDE.min(len - from)));
    }
}

/// The header at the beginning of a chunk's file of `len` bytes.
#[expect(clippy::indexing_slicing, reason = "no more is counted than there is in the buffer")]
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
    /// Whether others have removed the directory, or its index, without which it is not a frame.
    fn is_removed(&self) -> bool {
        if self.medium.itself.read().stat().is_ok_and(|stat| stat.links == 0) {
            return true;
        }
        let had_index = self.detector.lock().header().is_some();
        had_index && matches!(self.dir().stat(index_name()), Err(error) if error.kind() == io::ErrorKind::NotFound)
    }

    fn dir(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.medium.directory.folder.read())
    }

    /// The file whose owner, mode and attributes new files get: the index file, or of a new frame what it is to be like.
    fn like_index(&self) -> Option<Arc<dyn BackendFile>> {
        let index = self.detector.lock().header();
        index.or_else(|| self.source.new.like.as_ref().map(|like| Arc::clone(like.files())))
    }

    /// The permission bits that a new file is made with. Nobody can open it for whom it is not meant until it has its owner.
    fn mode_of_new_files(&self) -> u32 {
        match (self.detector.lock().header_stat(), &self.source.new.like) {
            (Some(index), _) if index.belongs_to_this_process() => index.mode & 0o666,
            (Some(_), _) | (None, Some(_)) => 0o600,
            (None, None) => self.source.new.file_mode(),
        }
    }

    /// Gives a new file the owner, mode and attributes of the others, where it has not got them by being made.
    fn give_attributes(&self, file: &dyn BackendFile) {
        let owner = |stat: FileStat| (stat.mode, stat.uid, stat.gid);
        let index = self.detector.lock().header_stat().map(owner);
        if index.is_some() && index == file.stat().ok().map(owner) {
            return;
        }
        if let Some(like) = self.like_index() {
            file.copy_attributes(&*like);
        }
    }

    /// An id for a chunk of `len` bytes.
    fn reserve(&self, len: u32) -> Result<ChunkKey> {
        let reserved = self.medium.directory.files.lock().reserve(len);
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
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.medium.directory.files.lock().skip(key),
                Err(error) => {
                    self.medium.directory.files.lock().removed(key);
                    let harmless = refused(&error);
                    let error = Sframe::chunk_error(self, key, "make the file of a chunk", error);
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
                self.medium.directory.files.lock().stamp(key, &stat);
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
                self.medium.directory.files.lock().skip(std::mem::replace(&mut key, next));
                self.record_making(key);
                dir.rename(&temp, &temp_name_of(key), true)?;
                temp = temp_name_of(key);
            }
        });
        let error = match named {
            Ok(Ok(())) => return Ok(key),
            Ok(Err(error)) => error,
            Err(error) => Sframe::chunk_error(self, key, "make the file of a chunk", error),
        };
        self.unmake(key);
        Err(error)
    }

    /// The file that the next chunk would get, if it is there already with that length and checksum: of a frame that was begun before. One
    /// that is there and is not that is removed.
    fn find_chunk(&self, len: u32, sum: u64) -> Result<Option<(ChunkKey, Box<dyn BackendFile>)>> {
        let dir = self.dir();
        self.ready_record();
        let key = self.reserve(len)?;
        let name = name_of(key);
        if let Ok(file) = dir.open(&name, true)
            && let Ok(stat) = file.stat()
            && stat.len == u64::from(len)
            && stat.links == 1
            && has(&*file, 0, len.into(), sum)
        {
            self.medium.directory.files.lock().stamp(key, &stat);
            self.record_making(key);
            self.record_made(key, &stat);
            return Ok(Some((key, file)));
        }
        if self.committed().is_none() {
            let _ = dir.remove(&name);
        }
        self.medium.directory.files.lock().removed(key);
        Ok(None)
    }

    /// A chunk's file is there.
    fn is_staged(&self, key: ChunkKey, len: u32, file: Box<dyn BackendFile>) {
        self.medium.allocated.fetch_add(u64::from(len).next_multiple_of(4096), Relaxed);
        self.medium.unsynced.lock().push(key, file);
    }

    /// A chunk's file came to nothing before it had its name.
    fn unmake(&self, key: ChunkKey) {
        let _ = self.dir().remove(&temp_name_of(key));
        self.medium.directory.files.lock().removed(key);
    }
}

impl Medium for Sframe {
    const LAYOUT: Layout = Layout::Sparse;
    const KIND: &'static str = "directory";
    const CHECKS_CHUNKS: bool = true;
    const KEPT_OPEN: usize = 8;
    type Commits = DirectoryStates;
    type Parts = DirectoryParts;
    type LetGo = Unneeded;

    // ---- opening ----

    fn is_kind(stat: &FileStat) -> bool {
        stat.is_dir()
    }

    fn open(source: &Source, write: bool) -> Result<Handle> {
        open::open_dir(source, write)
    }

    fn create(source: &Source, name: &OsStr) -> io::Result<Handle> {
        let dir: Arc<dyn Backend> =
            Arc::from(source.backend().create_dir(name, if source.new.like.is_some() { 0o700 } else { 0o777 })?);
        let itself = dir.itself()?;
        itself.try_lock()?;
        let stat = itself.stat()?;
        Ok(Handle { file: itself, dir: Some(dir), stat })
    }

    fn resume(source: &Source, unfinished: &Unfinished, _options: &OpenOptions) -> io::Result<Handle> {
        let backend = source.backend();
        let dir: Arc<dyn Backend> = Arc::from(backend.open_dir(&unfinished.name)?);
        let itself = dir.itself()?;
        let stat = itself.stat()?;
        if !Unfinished::is_ours(&*backend, &stat) || !itself.try_lock()? || !backend.stat(&unfinished.name)?.same_file(&stat) {
            return Err(io::Error::other("it may be somebody else's"));
        }
        for name in dir.names()? {
            match ChunkId::from_file_name(name.as_bytes()) {
                Some(ChunkId(id)) if u64::from(id) < unfinished.chunks => {}
                // The last chunk may be there without having been recorded.
                _ if is_part_of_frame(&name) => dir.remove(&name)?,
                _ => return Err(io::Error::other(format!("it holds {}, which is no part of a frame", name.display()))),
            }
        }
        let stat = itself.stat()?;
        Ok(Handle { file: itself, dir: Some(dir), stat })
    }

    fn read(source: &Source, handle: &Handle, generation: u32, whole: bool) -> Result<ReadFrame<Self>> {
        open::open(source, handle, generation, whole)
    }

    fn lock_place(source: &Source, handle: &Handle, _new: bool) -> Result<LockPlace> {
        let dir = &handle.dir.clone().unwrap_or_else(|| source.backend());
        let index = dir.stat(index_name()).map_err(source.at(INDEX).io("stat"))?;
        let name = OsStr::new(sidecar::SUFFIX);
        if dir.stat(name).is_err() {
            // None is made in what is no frame.
            let file = dir.open(index_name(), false).map_err(source.at(INDEX).io("open"))?;
            let len = file.stat().map_err(source.at(INDEX).io("stat"))?.len;
            open::read_index(source, &*file, len)?;
        }
        let path = source.at(sidecar::SUFFIX);
        Ok(LockPlace { dir: Arc::clone(dir), name: name.to_owned(), path, owner: Some(index) })
    }

    fn new(source: &Source, handle: &Handle, parts: Option<DirectoryParts>, common: Arc<Common>, options: &OpenOptions) -> Self {
        let made = || {
            let folder = Folder::made(handle.dir.clone().unwrap_or_else(|| source.backend()));
            DirectoryParts { folder, files: Files::default(), allocated: 0 }
        };
        let DirectoryParts { folder, files, allocated } = parts.unwrap_or_else(made);
        let directory = Arc::new(Directory {
            folder: RwLock::new(Arc::new(folder)),
            files: Mutex::new(files),
            descriptors: Descriptors::new(&options.resources.open_files),
            suspicion: Mutex::default(),
            common,
        });
        Sframe {
            readahead: Readahead::new(&options.resources.ahead, directory.clone()),
            directory,
            unsynced: Mutex::default(),
            record: Mutex::default(),
            itself: RwLock::new(Arc::clone(&handle.file)),
            allocated: AtomicU64::new(allocated),
        }
    }

    fn next_generation(&self) -> u32 {
        self.directory.files.lock().next_first()
    }

    fn exchange(store: &SframeStore, handle: &Handle, another: bool, parts: DirectoryParts) -> Unneeded {
        let Sframe { directory, unsynced, itself, allocated, .. } = &store.medium;
        let mut files = directory.files.lock();
        let mut rest = files.collect_rest(true);
        // Others may have used an id again.
        rest.retain(|(key, _)| parts.files.key_in_image(id_of(*key)).is_none());
        let known = std::mem::replace(&mut *files, parts.files);
        drop(files);
        *directory.folder.write() = Arc::new(parts.folder);
        directory.descriptors.clear();
        *directory.suspicion.lock() = None;
        *unsynced.lock() = Unsynced::default();
        allocated.store(parts.allocated, Relaxed);
        if another {
            store.forget_record();
            *itself.write() = Arc::clone(&handle.file);
        }
        Unneeded { files: rest, known }
    }

    fn let_go(store: &SframeStore, Unneeded { files, known }: Unneeded, same: bool) {
        // What only our older states needed goes when the one that is there now is on disk.
        let index = store.detector.lock().header();
        let synced = || index.is_some_and(|index| index.sync_all().and_then(|()| store.dir().sync_dir()).is_ok());
        if same && !files.is_empty() && store.source.check_writable().is_ok() && synced() {
            store.remove_files(files, &known);
        }
    }

    // ---- reading ----

    fn read_chunk(store: &SframeStore, guard: &ReadGuard<'_>, key: ChunkKey, buf: &mut [u8], offset: u64) -> io::Result<()> {
        store.medium.directory.read_from(guard, key, |file| read_exact_at(file, buf, offset))
    }

    fn read_header(store: &SframeStore, guard: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader> {
        let directory = &store.medium.directory;
        let len = directory.files.lock().len(key).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        if matches!(len, Ok(0)) {
            let error = format::Error::new("chunk: header", 0, "a file that is missing or damaged", "a chunk");
            return Err(store.source.at(name_of(key)).format(error));
        }
        let header = len.and_then(|len| directory.read_from(guard, key, |file| header_of(file, len.into())));
        let header = header.map_err(|error| Self::chunk_error(store, key, "read a chunk's header", error))?;
        header.map_err(|error| store.source.at(name_of(key)).format(error))
    }

    fn chunk_error(store: &SframeStore, key: ChunkKey, action: &'static str, error: io::Error) -> StoreError {
        match error.raw_os_error() {
            Some(libc::ESTALE) => store.source.stale(format!("its {} is another by now", name_of(key).display())),
            Some(libc::ENOENT) if store.is_removed() => store.source.stale("its directory was removed"),
            _ => store.source.at(name_of(key)).io(action)(error),
        }
    }

    fn lens_of(store: &SframeStore, _guard: &ReadGuard<'_>, keys: &[ChunkKey]) -> Vec<Option<u32>> {
        let files = store.medium.directory.files.lock();
        keys.iter().map(|key| files.len(*key)).collect()
    }

    fn prefetch(store: &SframeStore, wants: &[Want]) {
        // A file's length is known to whoever opens it.
        store.medium.readahead.expect(&wants.iter().filter_map(Want::known).collect::<Vec<_>>());
    }

    fn file_id(key: ChunkKey) -> Option<ChunkId> {
        Some(id_of(key))
    }

    // ---- the life of a chunk ----

    fn with_chunks<T>(store: &SframeStore, run: impl FnOnce(&mut Chunks, &Locate<'_>) -> T) -> T {
        run(&mut store.medium.directory.files.lock().chunks, &files::locate)
    }

    fn stage(store: &SframeStore, chunk: &dyn ReadAt, len: u32) -> Result<ChunkKey> {
        if let Some(sum) = chunk.known_sum()
            && let Some((key, file)) = store.find_chunk(len, sum)?
        {
            store.is_staged(key, len, file);
            return Ok(key);
        }
        let (key, file) = store.create_chunk(len)?;
        store.give_attributes(&*file);
        if let Err(failed) = write_from(chunk, len.into(), &*file, 0) {
            drop(file);
            store.unmake(key);
            let harmless = failed.reading || no_room(&failed.error);
            let error = Self::chunk_error(store, key, "write a chunk", failed.error);
            return Err(if harmless { error } else { store.source.poisoned_by(error) });
        }
        let key = store.name_chunk(key, len, &*file)?;
        store.is_staged(key, len, file);
        Ok(key)
    }

    fn collect(store: &SframeStore) {
        if !store.source.read_only {
            store.remove_unneeded();
        }
    }

    // ---- commits ----

    fn write(
        store: &SframeStore,
        commits: &mut CommitState<Self>,
        image: FrameImage,
        change: &Change,
    ) -> std::result::Result<(), Failed> {
        commit::write(store, commits, image, change)
    }

    fn after_commit(store: &SframeStore, _commits: &mut CommitState<Self>) -> Result<()> {
        store.remove_unneeded();
        Ok(())
    }

    fn published(store: &SframeStore, commits: &mut CommitState<Self>, _before: &[u8], _image: &FrameImage, change: &Change) {
        store.medium.directory.files.lock().chunks.publish(commits.published(), &change.dropped);
    }

    fn sync(store: &SframeStore) -> io::Result<()> {
        store.dir().sync_dir()
    }

    /// Whoever wrote the chunk files may have synced none of them.
    fn sync_found(store: &SframeStore) -> io::Result<()> {
        store.dir().sync_fs().and_then(|()| store.dir().sync_dir())
    }

    fn is_durable(store: &SframeStore, commits: &mut CommitState<Self>) {
        store.medium.directory.files.lock().chunks.durable(commits.published(), store.common.epochs.now());
    }

    fn after_sync(store: &SframeStore, _commits: &mut CommitState<Self>) {
        store.remove_unneeded();
    }

    fn remove_rest(store: &SframeStore, synced: bool) {
        let rest = store.medium.directory.files.lock().collect_rest(synced);
        store.keep_mtime(|| {
            store.remove(rest);
            store.remove_record(synced);
        });
    }

    fn stop(&self) {
        self.readahead.stop();
        self.directory.descriptors.clear();
    }

    // ---- changes by others ----

    fn handle(&self) -> (Arc<dyn BackendFile>, Option<Arc<dyn Backend>>) {
        (Arc::clone(&self.itself.read()), Some(Arc::clone(&self.directory.folder.read())))
    }

    fn set_handle(store: &SframeStore, handle: &Handle) {
        store.forget_record();
        *store.medium.itself.write() = Arc::clone(&handle.file);
    }

    fn watched(&self) -> Vec<Watched> {
        vec![Watched::Frame(Arc::clone(&self.itself.read()))]
    }

    fn look_at_parts(store: &SframeStore) {
        store.medium.directory.look_at_chunks();
    }

    fn suspicion(&self) -> Option<(bool, String)> {
        let suspicion = self.directory.suspicion.lock();
        suspicion.as_ref().map(|(known, reason)| (*known == Known::Written, reason.clone()))
    }

    fn look_at_header(store: &SframeStore, seen: &mut Detector) -> io::Result<bool> {
        changes::look_at_index(&*store.dir(), seen)
    }

    fn is_same_frame(_store: &SframeStore, image: &FrameImage, file: &dyn BackendFile, len: u64) -> bool {
        let Ok(now) = Frame::<ChunkId>::read(&FileBytes { file, len }) else { return false };
        image.header.as_bytes() == now.header.as_bytes()
            && image.trailer.as_bytes() == now.trailer.as_bytes()
            && image.entries.len() == now.entries.len()
            && image.entries.iter().zip(&now.entries).all(|(old, new)| old.map(id_of) == *new)
    }

    // ---- attributes ----

    fn source_stat(store: &SframeStore) -> io::Result<SourceStat> {
        let index = store.detector.lock().header();
        let mut stat = SourceStat::from(match &index {
            Some(index) => index.stat()?,
            None => store.medium.itself.read().stat()?,
        });
        stat.allocated += store.medium.allocated.load(Relaxed);
        if index.is_none() {
            stat.mode &= 0o666; // of the directory
        }
        Ok(stat)
    }

    fn attribute_file(store: &SframeStore) -> Arc<dyn BackendFile> {
        let index = store.detector.lock().header();
        index.unwrap_or_else(|| Arc::clone(&store.medium.itself.read()))
    }

    fn like(store: &SframeStore) -> Like {
        Like { frame: Arc::clone(&store.medium.itself.read()), index: store.like_index() }
    }
}
