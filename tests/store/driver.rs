//! Random work on a store, step for step beside a model of what the frame must hold.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use b2fuse::format::header::{FrameHeader, HeaderFields};
use b2fuse::format::metalayer::Metalayer;
use b2fuse::format::trailer::Trailer;
use b2fuse::format::{IndexEntry, Special};
use b2fuse::store::{
    Budgets, CframeStore, ChunkKey, FrameImage, FrameStore, LocalStore, OpenOptions, ReadGuard, Resources, Result, SframeStore,
};
use b2fuse::view::{ContiguousView, FileSystem, Shown, SparseView};

use crate::disk::Dir;
use crate::frames::{Random, chunk, header, read, try_content};

pub const NAME: &str = "source.b2frame";

/// What a frame holds, its places aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub entries: Vec<IndexEntry<Vec<u8>>>,
    pub metalayers: Vec<(Vec<u8>, Vec<u8>)>,
    pub nbytes: u64,
    pub trailer: Vec<u8>,
}

/// What a store says that the frame holds.
pub fn frame_of(store: &dyn FrameStore) -> Frame {
    try_frame_of(store).unwrap()
}

/// The same, where something may be damaged.
pub fn try_frame_of(store: &dyn FrameStore) -> Result<Frame> {
    let image = store.committed().unwrap();
    Ok(Frame {
        entries: try_content(store)?,
        metalayers: metalayers(&image.header),
        nbytes: image.header.nbytes(),
        trailer: image.trailer.as_bytes().to_vec(),
    })
}

pub fn metalayers(header: &FrameHeader) -> Vec<(Vec<u8>, Vec<u8>)> {
    header.metalayers().map(|layer| (layer.name.to_vec(), layer.content.to_vec())).collect()
}

/// An nbytes that is right for so many chunks.
fn set_count(header: &mut FrameHeader, count: usize) {
    let each = match header.chunksize() {
        0 => 10,
        chunksize => chunksize.into(),
    };
    header.set_nbytes(count as u64 * each);
}

/// Either store, so that one suite does for both.
pub trait Store: LocalStore + Sized {
    fn read_chunk(&self, guard: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        (self as &dyn FrameStore).read_chunk(guard, key, len, offset, buf)
    }
    /// Where real frames of this layout are in `tests/data`.
    const DATA: &str;
    /// The file that every commit changes or replaces: the directory it is in, and its name.
    fn index(dir: &Dir) -> (Dir, &'static str);
    fn open_in(dir: &Dir, options: OpenOptions) -> Result<Self>;
    fn create_in(dir: &Dir, options: OpenOptions) -> Result<Self>;
    /// A disk with a real frame as SOURCE.
    fn disk(frame: &Path) -> Dir;
    fn open_at(path: &Path, options: OpenOptions) -> Result<Self>;
    fn create_at(path: &Path, options: OpenOptions) -> Result<Self>;
    /// Copies a real frame.
    fn copy(from: &Path, to: &Path);
    /// What a mount shows of it.
    fn view(self: Arc<Self>) -> Box<dyn FileSystem>;
}

impl Store for CframeStore {
    const DATA: &str = "cframe";
    fn index(dir: &Dir) -> (Dir, &'static str) {
        (dir.clone(), NAME)
    }
    fn open_in(dir: &Dir, options: OpenOptions) -> Result<Self> {
        Self::open_in(Arc::new(dir.clone()), Path::new(NAME), Path::new(""), OsStr::new(NAME), options)
    }
    fn create_in(dir: &Dir, options: OpenOptions) -> Result<Self> {
        Self::create_in(Arc::new(dir.clone()), Path::new(NAME), Path::new(""), OsStr::new(NAME), options)
    }
    fn disk(frame: &Path) -> Dir {
        Dir::with_file(NAME, std::fs::read(frame).unwrap())
    }
    fn open_at(path: &Path, options: OpenOptions) -> Result<Self> {
        Self::open(path, options)
    }
    fn create_at(path: &Path, options: OpenOptions) -> Result<Self> {
        Self::create(path, options)
    }
    fn copy(from: &Path, to: &Path) {
        std::fs::copy(from, to).unwrap();
    }
    fn view(self: Arc<Self>) -> Box<dyn FileSystem> {
        Box::new(SparseView::new(self, false).unwrap())
    }
}

impl Store for SframeStore {
    const DATA: &str = "sframe";
    fn index(dir: &Dir) -> (Dir, &'static str) {
        (dir.sub(NAME), "chunks.b2frame")
    }
    fn open_in(dir: &Dir, options: OpenOptions) -> Result<Self> {
        Self::open_in(Arc::new(dir.clone()), Path::new(NAME), Path::new(""), OsStr::new(NAME), options)
    }
    fn create_in(dir: &Dir, options: OpenOptions) -> Result<Self> {
        Self::create_in(Arc::new(dir.clone()), Path::new(NAME), Path::new(""), OsStr::new(NAME), options)
    }
    fn disk(frame: &Path) -> Dir {
        let files = std::fs::read_dir(frame).unwrap().map(|entry| entry.unwrap());
        Dir::with_dir(NAME, files.map(|file| (file.file_name(), std::fs::read(file.path()).unwrap())))
    }
    fn open_at(path: &Path, options: OpenOptions) -> Result<Self> {
        Self::open(path, options)
    }
    fn create_at(path: &Path, options: OpenOptions) -> Result<Self> {
        Self::create(path, options)
    }
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir(to).unwrap();
        for file in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    fn view(self: Arc<Self>) -> Box<dyn FileSystem> {
        Box::new(ContiguousView::new(self, Shown::As(NAME.into()), false).unwrap())
    }
}

fn resources() -> Arc<Resources> {
    Resources::new(Budgets { cache_bytes: 50_000, draft_bytes: 1 << 20, ..Budgets::default() })
}

pub fn open<S: Store>(dir: &Dir, read_only: bool) -> Result<S> {
    S::open_in(dir, OpenOptions { read_only, resources: resources(), ..OpenOptions::default() })
}

pub fn create<S: Store>(dir: &Dir) -> Result<S> {
    S::create_in(dir, OpenOptions { resources: resources(), ..OpenOptions::default() })
}

/// Makes a test of each function of a store, for both.
#[macro_export]
macro_rules! for_both {
    ($($test:ident),* $(,)?) => {
        mod cframe {
            $(#[test] fn $test() { super::$test::<b2fuse::store::CframeStore>() })*
        }
        mod sframe {
            $(#[test] fn $test() { super::$test::<b2fuse::store::SframeStore>() })*
        }
    };
}

/// Which states a crash may leave from a moment on.
#[derive(Debug, Clone, Copy)]
pub struct Promise {
    /// How long the disk's log was then.
    pub since: usize,
    /// The last state that was promised to be on disk.
    pub oldest: usize,
    /// The last state that was handed over.
    pub newest: usize,
}

pub struct Driver<S> {
    pub store: Arc<S>,
    pub disk: Dir,
    pub random: Random,
    pub header: FrameHeader,
    pub trailer: Trailer,
    pub entries: Vec<IndexEntry<ChunkKey>>,
    /// The bytes of every chunk that is good: in `entries`, in the committed image, or pinned.
    pub bytes: std::collections::HashMap<ChunkKey, Vec<u8>>,
    pins: Vec<ChunkKey>,
    /// What was committed, in order; the first is what was there at the beginning.
    pub states: Vec<Option<Frame>>,
    /// What the store has promised of them, each promise until the next.
    pub promises: Vec<Promise>,
    max_len: u64,
    /// Steps change headers, and let chunks come and go altogether.
    pub mostly_headers: bool,
    /// How long the disk's log was when the store was opened again.
    mounted_at: usize,
}

impl<S: Store> Driver<S> {
    /// A driver of a store as it was opened or created on a disk.
    pub fn new(disk: &Dir, store: S, seed: u64, max_len: u64) -> Self {
        let (mut header, trailer, entries) = match store.committed() {
            Some(image) => (image.header.clone(), image.trailer.clone(), image.entries.to_vec()),
            None => (header(0), Trailer::encode(&[]).unwrap(), vec![]),
        };
        if header.fields().chunksize < 0 {
            header.set_chunksize(100); // no chunk has said yet
        }
        let states = vec![store.committed().map(|_| frame_of(&store))];
        let mut driver = Driver {
            store: Arc::new(store),
            disk: disk.clone(),
            random: Random(seed),
            header,
            trailer,
            entries,
            bytes: Default::default(),
            pins: vec![],
            states,
            promises: vec![Promise { since: 0, oldest: 0, newest: 0 }],
            max_len,
            mostly_headers: false,
            mounted_at: 0,
        };
        for entry in driver.entries.clone() {
            if let IndexEntry::Stored(key) = entry {
                driver.bytes.insert(key, read(&*driver.store, key));
            }
        }
        driver
    }

    /// Adds chunks that are large beside those to come: what a commit then drops is little, and its space not waited for.
    pub fn add_large(&mut self, count: usize, len: u32) -> Result<()> {
        for _ in 0..count {
            let bytes = chunk(len, self.random.next());
            let key = self.store.stage(&bytes)?;
            self.bytes.insert(key, bytes);
            self.entries.push(IndexEntry::Stored(key));
        }
        Ok(())
    }

    fn some_chunk(&mut self) -> Vec<u8> {
        let len = 1 + self.random.below(self.max_len) as u32;
        let fill = self.random.next();
        chunk(len, fill)
    }

    fn stage(&mut self) -> Result<IndexEntry<ChunkKey>> {
        let bytes = self.some_chunk();
        self.stage_bytes(bytes)
    }

    pub fn stage_bytes(&mut self, bytes: Vec<u8>) -> Result<IndexEntry<ChunkKey>> {
        let key = self.store.stage(&bytes)?;
        assert!(self.bytes.insert(key, bytes).is_none_or(|_| !self.good(key)), "a key that is in use was given out again");
        Ok(IndexEntry::Stored(key))
    }

    fn good(&self, key: ChunkKey) -> bool {
        let named = |entries: &[IndexEntry<ChunkKey>]| entries.contains(&IndexEntry::Stored(key));
        named(&self.entries) || self.pins.contains(&key) || self.store.committed().is_some_and(|image| named(&image.entries))
    }

    pub fn at(&mut self) -> Option<usize> {
        let count = self.entries.len() as u64;
        (count > 0).then(|| self.random.below(count) as usize)
    }

    /// One step. Errors are those of the store; the model then is as before the step.
    pub fn step(&mut self) -> Result<()> {
        let kind = match self.mostly_headers {
            true => [0, 13, 17, 21, 22, 22, 22, 22, 23, 31, 32, 32, 32][self.random.below(13) as usize],
            false => self.random.below(40),
        };
        match kind {
            0..12 => {
                let Some(at) = self.at() else { return Ok(()) };
                let new = self.stage()?;
                let old = std::mem::replace(&mut self.entries[at], new);
                self.let_go(old);
            }
            12..16 => {
                let at = self.random.below(self.entries.len() as u64 + 1) as usize;
                let new = self.stage()?;
                self.entries.insert(at, new);
            }
            16..18 => {
                let Some(at) = self.at() else { return Ok(()) };
                let old = self.entries.remove(at);
                self.let_go(old);
            }
            18 => {
                let by = self.at().unwrap_or(0);
                self.entries.rotate_left(by);
            }
            19 => {
                let special = [Special::Zeros, Special::Nan, Special::Uninit][self.random.below(3) as usize];
                let at = self.random.below(self.entries.len() as u64 + 1) as usize;
                self.entries.insert(at, IndexEntry::Special(special));
            }
            20 => {
                // The same chunk twice.
                let Some(at) = self.at() else { return Ok(()) };
                self.entries.push(self.entries[at]);
            }
            21 => {
                let value = vec![self.random.next() as u8; self.random.below(3000) as usize];
                self.trailer = Trailer::encode(&[Metalayer { name: b"vl", content: &value }]).unwrap();
            }
            22 => {
                // Long metalayers: the header reaches behind the first sector.
                let len = [5, 100, 300, 500, 600, 5000][self.random.below(6) as usize];
                let value = vec![self.random.next() as u8; len];
                let fields = HeaderFields { frame_len: 1 << 20, ..self.header.fields() };
                let at_end = [Metalayer { name: b"shape", content: &value[..5] }, Metalayer { name: b"meta", content: &value }];
                self.header = FrameHeader::encode(&fields, &at_end).unwrap();
            }
            23 if self.mostly_headers || self.random.below(3) == 0 => {
                for old in std::mem::take(&mut self.entries) {
                    self.let_go(old);
                }
            }
            24 => {
                // Staged for nothing.
                let bytes = self.some_chunk();
                let key = self.store.stage(&bytes)?;
                self.store.discard(key);
            }
            25 => {
                let Some(at) = self.at() else { return Ok(()) };
                if let IndexEntry::Stored(key) = self.entries[at] {
                    self.store.pin(key);
                    self.pins.push(key);
                }
            }
            26..28 if !self.pins.is_empty() => {
                let at = self.random.below(self.pins.len() as u64) as usize;
                // What is to come back must be committed first.
                if !self.entries.contains(&IndexEntry::Stored(self.pins[at])) {
                    let key = self.pins.swap_remove(at);
                    self.store.unpin(key);
                }
            }
            28 => {
                // A pinned chunk comes back.
                if let Some(key) = self.pins.last() {
                    self.entries.push(IndexEntry::Stored(*key));
                }
            }
            29 => self.sync()?,
            30 => self.held_read()?,
            31 => while self.store.tidy() {},
            _ => self.commit()?,
        }
        self.check();
        Ok(())
    }

    /// A chunk that no image names any more goes, if it never was in one.
    pub fn let_go(&mut self, entry: IndexEntry<ChunkKey>) {
        if let IndexEntry::Stored(key) = entry
            && !self.entries.contains(&entry)
        {
            self.store.discard(key);
        }
    }

    pub fn image(&self) -> FrameImage {
        let mut header = self.header.clone();
        set_count(&mut header, self.entries.len());
        FrameImage { header, trailer: self.trailer.clone(), entries: Arc::new(self.entries.clone()) }
    }

    pub fn frame(&self) -> Frame {
        let image = self.image();
        let entries = self.entries.iter().map(|entry| match entry {
            IndexEntry::Stored(key) => IndexEntry::Stored(self.bytes[key].clone()),
            IndexEntry::Special(special) => IndexEntry::Special(*special),
        });
        Frame {
            entries: entries.collect(),
            metalayers: metalayers(&image.header),
            nbytes: image.header.nbytes(),
            trailer: image.trailer.as_bytes().to_vec(),
        }
    }

    pub fn commit(&mut self) -> Result<()> {
        let frame = Some(self.frame());
        let is_new = self.states.last() != Some(&frame);
        let before = self.promised();
        if is_new {
            self.states.push(frame); // from now on it may be on disk
            self.promise(before.oldest, before.newest + 1);
        }
        let first = self.store.committed().is_none();
        if let Err(error) = self.store.commit(self.store.enter(), self.image()) {
            if is_new && self.store.sync().is_ok() {
                // It was an answer, and all is as before.
                self.states.pop();
                self.promise(before.newest, before.newest);
            }
            return Err(error);
        }
        if is_new {
            self.promise(before.newest + usize::from(first), before.newest + 1);
        }
        Ok(())
    }

    pub fn sync(&mut self) -> Result<()> {
        self.store.sync()?;
        let Promise { newest, .. } = self.promised();
        self.promise(newest, newest);
        Ok(())
    }

    /// The store is opened again: what was not committed is gone, and so are all keys.
    pub fn mount_again(&mut self, store: S) {
        let image = store.committed().expect("a frame");
        self.header = image.header.clone();
        if self.header.fields().chunksize < 0 {
            self.header.set_chunksize(100); // no chunk has said yet
        }
        self.trailer = image.trailer.clone();
        self.entries = image.entries.to_vec();
        (self.pins, self.bytes) = Default::default();
        assert!(self.states.last() == Some(&Some(frame_of(&store))), "what was committed is not what is there");
        for key in self.entries.iter().filter_map(|entry| entry.stored()) {
            self.bytes.insert(key, read(&store, key));
        }
        self.store = Arc::new(store);
        self.mounted_at = self.disk.log_len();
    }

    pub fn close(&mut self) -> Result<()> {
        self.store.close()?;
        // Who only looked has nothing to do with what a killed process did not wait for.
        if self.mounted_at == 0 || self.disk.log_len() > self.mounted_at {
            let Promise { newest, .. } = self.promised();
            self.promise(newest, newest);
        }
        Ok(())
    }

    fn promised(&self) -> Promise {
        *self.promises.last().unwrap()
    }

    fn promise(&mut self, oldest: usize, newest: usize) {
        self.promises.push(Promise { since: self.disk.log_len(), oldest, newest });
    }

    /// A read that began before its chunk was dropped, and ends some commits later.
    fn held_read(&mut self) -> Result<()> {
        let stored = |entry: &IndexEntry<ChunkKey>| matches!(entry, IndexEntry::Stored(_));
        let Some(at) = self.entries.iter().position(stored) else { return Ok(()) };
        let IndexEntry::Stored(key) = self.entries[at] else { return Ok(()) };
        let expected = self.bytes[&key].clone();
        let mut result = Ok(());
        let fresh: Result<Vec<_>> = (0..4).map(|_| self.stage()).collect();
        let fresh = fresh?;
        let store = Arc::clone(&self.store);
        let guard = store.enter();
        let mut entries = self.entries.clone();
        for (round, new) in fresh.iter().enumerate() {
            let at = (at + round) % entries.len();
            entries[at] = *new;
            self.entries = entries.clone();
            result = self.commit().and_then(|()| self.sync());
            if result.is_err() {
                break;
            }
            let mut got = vec![0; expected.len()];
            let count = store.read_chunk(&guard, key, expected.len() as u32, 0, &mut got).unwrap();
            assert!(count == expected.len() && got == expected, "a chunk was overwritten under a read");
        }
        drop(guard);
        result
    }

    /// Every chunk that is good reads as it was written, in pieces and whole; once others have changed the file, none is.
    pub fn check(&mut self) {
        if self.store.changed_outside().unwrap() {
            return;
        }
        let mut keys: Vec<ChunkKey> = self.pins.clone();
        keys.extend(self.entries.iter().filter_map(|entry| match entry {
            IndexEntry::Stored(key) => Some(*key),
            IndexEntry::Special(_) => None,
        }));
        for key in keys {
            let expected = &self.bytes[&key];
            assert!(read(&*self.store, key) == *expected, "chunk {key:?} is not what was written");
            let from = self.random.below(expected.len() as u64);
            let mut piece = vec![0; 1 + self.random.below(200) as usize];
            let count = self.store.read_chunk(&self.store.enter(), key, expected.len() as u32, from, &mut piece).unwrap();
            assert_eq!(piece[..count], expected[from as usize..][..count]);
            assert_eq!(count, piece.len().min(expected.len() - from as usize));
        }
    }

    /// A reader that opens the file now sees what was committed last.
    pub fn check_file(&self, dir: &Dir) {
        let Some(Some(last)) = self.states.last() else { return };
        let other = open::<S>(dir, true).unwrap();
        assert!(frame_of(&other) == *last, "the file does not hold what was committed");
    }
}
