//! Frames in an object store: the real ones of the repository in one in memory, which counts what it is asked, and fails when told to.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use b2fuse::format::header::{FrameHeader, HeaderFields};
use b2fuse::format::metalayer::Metalayer;
use b2fuse::format::{IndexEntry, Layout};
use b2fuse::store::check::{Checked, Depth, Finding, Kind, check_at};
use b2fuse::store::disk_cache::DiskCache;
use b2fuse::store::remote::{Client, Options, RemoteStore};
use b2fuse::store::{self, Budgets, ChunkKey, FrameStore, OpenOptions, Others, Resources, StoreError, Want};
use b2fuse::view::{ContiguousView, FileSystem, ROOT, Shown, SparseView};
use futures_util::stream::BoxStream;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use parking_lot::Mutex;

use crate::disk::Dir;
use crate::frames::{chunk, content, data, try_content};
use crate::signals;

mod tree;

type Answer = object_store::Result<()>;

/// Called before each request, with its number.
type Before = Box<dyn Fn(usize) -> Answer + Send + Sync>;

/// A store in memory, behind a door.
struct Door {
    inner: Arc<InMemory>,
    gets: AtomicUsize,
    lists: AtomicUsize,
    before: Mutex<Option<Before>>,
    /// Listings are not answered.
    holds_lists: AtomicBool,
    /// They are refused.
    fails_lists: AtomicBool,
    /// Objects are not answered.
    hangs: AtomicBool,
    /// How long each takes; how many are under way, and the most that there were.
    pause: Mutex<Duration>,
    now: AtomicUsize,
    most: AtomicUsize,
    /// What a listing says instead of what is there.
    lie: Mutex<Option<Lie>>,
}

/// Names for a prefix and a token, and the next token.
type Lie = Box<dyn Fn(&str, Option<&str>) -> (Vec<String>, Option<String>) + Send + Sync>;

/// Names of one answer to a listing.
const PAGE: usize = 5;

impl Door {
    fn new() -> Arc<Self> {
        Arc::new(Door {
            inner: Arc::default(),
            gets: AtomicUsize::new(0),
            lists: AtomicUsize::new(0),
            before: Mutex::default(),
            holds_lists: AtomicBool::new(false),
            fails_lists: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            pause: Mutex::default(),
            now: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            lie: Mutex::default(),
        })
    }

    fn store_object(&self, key: &str, bytes: Vec<u8>) {
        block(self.inner.put(&Key::from(key), bytes.into())).unwrap();
    }

    /// The same under a key as it is.
    fn store_object_raw(&self, key: &str, bytes: &[u8]) {
        block(self.inner.put(&Key::parse(key).unwrap(), bytes.to_vec().into())).unwrap();
    }

    fn copy_object(&self, from: &str, to: &str) {
        block(self.inner.copy(&Key::parse(from).unwrap(), &Key::parse(to).unwrap())).unwrap();
    }

    /// Copies all that is beneath a key.
    fn copy_all(&self, from: &str, to: &str) {
        use futures_util::TryStreamExt;
        let all: Vec<ObjectMeta> = block(self.inner.list(Some(&Key::from(from))).try_collect()).unwrap();
        for meta in all {
            self.copy_object(meta.location.as_ref(), &meta.location.as_ref().replacen(from, to, 1));
        }
    }

    fn remove_object(&self, key: &str) {
        block(self.inner.delete(&Key::from(key))).unwrap();
    }

    /// The requests so far, from now on counted anew.
    fn asked(&self) -> usize {
        self.gets.swap(0, SeqCst)
    }

    fn before(&self, before: impl Fn(usize) -> Answer + Send + Sync + 'static) {
        *self.before.lock() = Some(Box::new(before));
    }

    /// Copies a frame to a key.
    fn upload(&self, path: &Path, key: &str) {
        if path.is_file() {
            return self.store_object(key, std::fs::read(path).unwrap());
        }
        for entry in std::fs::read_dir(path).unwrap().map(Result::unwrap) {
            self.store_object(&format!("{key}/{}", entry.file_name().to_str().unwrap()), std::fs::read(entry.path()).unwrap());
        }
    }

    fn client(self: &Arc<Self>, key: &str) -> Arc<Client> {
        let store: Arc<dyn ObjectStore> = Arc::clone(self) as _;
        Client::new(store, Key::from(key), 16, Duration::from_secs(20)).unwrap()
    }

    fn open(self: &Arc<Self>, key: &str, options: Options) -> store::Result<RemoteStore> {
        RemoteStore::open(
            self.client(key),
            &PathBuf::from(format!("memory://{key}")),
            options,
            &Resources::new(Budgets::default()),
        )
    }
}

/// Waits for something, also in a thread that carries requests.
fn block<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let wait = || tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work);
    std::thread::scope(|scope| scope.spawn(wait).join().unwrap())
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Door")
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Door")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Door {
    async fn put_opts(&self, key: &Key, payload: PutPayload, options: PutOptions) -> object_store::Result<PutResult> {
        self.inner.put_opts(key, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Key,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Key, options: GetOptions) -> object_store::Result<GetResult> {
        let number = self.gets.fetch_add(1, SeqCst);
        if let Some(before) = &*self.before.lock() {
            before(number)?;
        }
        if self.hangs.load(SeqCst) {
            std::future::pending::<()>().await;
        }
        self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
        let pause = *self.pause.lock();
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let got = self.inner.get_opts(key, options).await;
        self.now.fetch_sub(1, SeqCst);
        got
    }

    fn delete_stream(
        &self,
        keys: BoxStream<'static, object_store::Result<Key>>,
    ) -> BoxStream<'static, object_store::Result<Key>> {
        self.inner.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.lists.fetch_add(1, SeqCst);
        if self.holds_lists.load(SeqCst) {
            return Box::pin(futures_util::stream::pending());
        }
        if self.fails_lists.load(SeqCst) {
            let away = Error::Generic { store: "Door", source: "away".into() };
            return Box::pin(futures_util::stream::iter([Err(away)]));
        }
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Key, to: &Key, options: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[async_trait::async_trait]
impl PaginatedListStore for Door {
    async fn list_paginated(
        &self,
        prefix: Option<&str>,
        options: PaginatedListOptions,
    ) -> object_store::Result<PaginatedListResult> {
        use futures_util::TryStreamExt;
        self.lists.fetch_add(1, SeqCst);
        if let Some(before) = &*self.before.lock() {
            before(usize::MAX)?;
        }
        assert_eq!(options.delimiter.as_deref(), Some("/"));
        let (prefix, token) = (prefix.unwrap_or_default(), options.page_token);
        let meta = |name: &String| ObjectMeta {
            location: Key::parse(name).unwrap(),
            last_modified: Default::default(),
            size: 7,
            e_tag: Some("lie".into()),
            version: None,
        };
        if let Some(lie) = &*self.lie.lock() {
            let (names, page_token) = lie(prefix, token.as_deref());
            let (prefixes, objects): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.ends_with('/'));
            let common_prefixes = prefixes.into_iter().map(|name| Key::parse(name).unwrap()).collect();
            let objects = objects.into_iter().map(meta).collect();
            let result = ListResult { common_prefixes, objects, extensions: Default::default() };
            return Ok(PaginatedListResult { result, page_token });
        }
        let all: Vec<ObjectMeta> = self.inner.list(None).try_collect().await?;
        let mut names = std::collections::BTreeMap::new();
        for meta in all {
            let Some(rest) = meta.location.as_ref().strip_prefix(prefix) else { continue };
            match rest.split_once('/') {
                Some((first, _)) => names.insert(format!("{prefix}{first}/"), None),
                None => names.insert(meta.location.to_string(), Some(meta)),
            };
        }
        let from: usize = token.map_or(0, |token| token.parse().unwrap());
        let most = options.max_keys.unwrap_or(PAGE).min(PAGE);
        let page_token = (names.len() > from + most).then(|| (from + most).to_string());
        let mut result = ListResult { common_prefixes: vec![], objects: vec![], extensions: Default::default() };
        for (name, meta) in names.into_iter().skip(from).take(most) {
            match meta {
                Some(meta) => result.objects.push(meta),
                None => result.common_prefixes.push(Key::parse(name).unwrap()),
            }
        }
        Ok(PaginatedListResult { result, page_token })
    }
}

fn local(path: &Path) -> Vec<IndexEntry<Vec<u8>>> {
    let (_, store) = store::open(path, OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    content(&*store)
}

fn keys(store: &dyn FrameStore) -> Vec<ChunkKey> {
    store.committed().unwrap().entries.iter().filter_map(|entry| entry.stored()).collect()
}

#[test]
fn real_frames_are_what_they_are_on_a_disk() {
    for path in data("sframe").into_iter().chain(data("cframe")) {
        let door = Door::new();
        door.upload(&path, "a/frame");
        let remote = door.open("a/frame", Options::default()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(content(&remote) == local(&path), "{}", path.display());
        let here = store::open(&path, OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap().1;
        let (image, expected) = (remote.committed().unwrap(), here.committed().unwrap());
        assert_eq!(image.header.as_bytes(), expected.header.as_bytes());
        assert_eq!(image.trailer.as_bytes(), expected.trailer.as_bytes());
        // All lengths at once are those of one at a time.
        let lens = |store: &dyn FrameStore| store.chunk_lens(&store.enter(), &store.committed().unwrap().entries).unwrap();
        assert_eq!(lens(&remote), lens(&*here), "{}", path.display());
    }
}

/// An sframe of chunks of so many bytes, and the same in one file.
fn frames(door: &Door, nchunks: usize, nbytes: u32) -> (tempfile::TempDir, Vec<IndexEntry<Vec<u8>>>) {
    let dir = tempfile::tempdir().unwrap();
    for (name, layout) in [("sparse", Layout::Sparse), ("one", Layout::Contiguous)] {
        let path = dir.path().join(name);
        let store: Box<dyn FrameStore> = match layout {
            Layout::Sparse => Box::new(store::SframeStore::create(&path, OpenOptions::default()).unwrap()),
            Layout::Contiguous => Box::new(store::CframeStore::create(&path, OpenOptions::default()).unwrap()),
        };
        let guard = store.enter();
        let entries = (0..nchunks).map(|n| IndexEntry::Stored(store.stage(&chunk(nbytes, n as u64).as_slice()).unwrap()));
        let image = crate::frames::image(entries.collect());
        store.commit(guard, image).unwrap();
        store.close().unwrap();
        door.upload(&path, name);
    }
    let expected = (0..nchunks).map(|n| IndexEntry::Stored(chunk(nbytes, n as u64))).collect();
    (dir, expected)
}

#[test]
fn requests_are_counted() {
    let door = Door::new();
    let (_dir, expected) = frames(&door, 100, 60_000);
    let sparse = door.open("sparse", Options::default()).unwrap();
    assert_eq!(door.asked(), 1, "to open an sframe");
    let one_chunk = keys(&sparse)[40];
    let mut buf = vec![0; 60_032];
    sparse.chunk_header(&sparse.enter(), one_chunk).unwrap();
    sparse.read_part(&sparse.enter(), one_chunk, 60_032, 0, &mut buf).unwrap();
    assert_eq!(door.asked(), 1, "to look at a chunk and to read it");
    let sparse = door.open("sparse", Options::default()).unwrap();
    door.asked();
    assert!(content(&sparse) == expected);
    assert_eq!(door.asked(), 100, "to read all chunks");
    // What is listed is not asked for one by one.
    let sparse = door.open("sparse", Options::default()).unwrap();
    door.asked();
    let lens = (&sparse as &dyn FrameStore).chunk_lens(&sparse.enter(), &sparse.committed().unwrap().entries).unwrap();
    assert_eq!((lens, door.asked()), (vec![60_032; 100], 0));

    let one = door.open("one", Options::default()).unwrap();
    let opened = door.asked();
    assert!(opened <= 3, "to open a cframe: {opened}");
    assert!(content(&one) == expected);
    let read = door.asked();
    assert!((6..=40).contains(&read), "neighbours are asked for together: {read}");
}

#[test]
fn who_looks_at_all_lengths_makes_the_store_list_and_who_reads_does_not() {
    let door = Door::new();
    let (_dir, _) = frames(&door, 100, 6000);
    let sparse = door.open("sparse", Options::default()).unwrap();
    door.asked();
    for key in keys(&sparse) {
        assert_eq!(sparse.len_of(&sparse.enter(), key).unwrap(), 6032);
    }
    assert_eq!((door.asked(), door.lists.swap(0, SeqCst)), (2, 1), "to look at all");
    let sparse = door.open("sparse", Options::default()).unwrap();
    door.asked();
    for key in keys(&sparse) {
        let len = sparse.len_of(&sparse.enter(), key).unwrap();
        sparse.read_part(&sparse.enter(), key, len, 0, &mut [0; 10]).unwrap();
    }
    assert_eq!((door.asked(), door.lists.load(SeqCst)), (100, 0), "to look at each and read it");
}

#[test]
fn who_wants_the_lengths_of_large_chunks_of_one_file_gets_their_headers_alone() {
    let door = Door::new();
    let (_dir, _) = frames(&door, 20, 300_000);
    let client = door.client("one");
    let path = PathBuf::from("memory://one");
    let open = || RemoteStore::open(Arc::clone(&client), &path, Options::default(), &Resources::new(Budgets::default())).unwrap();
    let store = open();
    let before = client.asked().bytes.load(SeqCst);
    let lens = (&store as &dyn FrameStore).chunk_lens(&store.enter(), &store.committed().unwrap().entries).unwrap();
    assert_eq!((lens, client.asked().bytes.load(SeqCst) - before), (vec![300_032; 20], 20 * 32));
    // One after the other: whoever looks at one may read it.
    let store = open();
    let before = client.asked().bytes.load(SeqCst);
    for key in keys(&store) {
        assert_eq!(store.len_of(&store.enter(), key).unwrap(), 300_032);
    }
    let asked = client.asked().bytes.load(SeqCst) - before;
    assert!(asked <= 2 * 300_100 + 20 * 32, "{asked}");
}

#[test]
fn headers_of_chunks_of_varying_size_are_asked_for_many_at_a_time() {
    use b2fuse::view::{Blocks, Decoded, decoded};
    // Small chunks, which are read with their neighbours, and large ones, of which only headers are.
    for (count, nbytes) in [(300, 3000), (40, 300_000)] {
        let door = Door::new();
        let (_dir, _) = frames(&door, count, nbytes);
        for name in ["sparse", "one"] {
            let client = door.client(name);
            let resources = Resources::new(Budgets::default());
            let store = RemoteStore::open(client.clone(), Path::new("memory://frame"), Options::default(), &resources).unwrap();
            door.asked();
            let (before, began) = (client.asked().bytes.load(SeqCst), Instant::now());
            *door.pause.lock() = Duration::from_millis(20);
            door.most.store(0, SeqCst);
            let (_, data) = decoded::open(&store, &Decoded::Raw, &Blocks::new(1 << 20, 1, None)).unwrap();
            *door.pause.lock() = Duration::ZERO;
            assert_eq!(data.bytes(), u64::from(nbytes) * count as u64);
            let (asked, most) = (door.asked(), door.most.load(SeqCst));
            let bytes = client.asked().bytes.load(SeqCst) - before;
            assert!(asked <= count, "{name}: {asked} requests for {count} headers");
            assert!(name == "one" && asked < 9 || most >= 12, "{name}: {most} at one time");
            assert!(bytes <= count as u64 * 3100, "{name}: {bytes} bytes");
            // One after the other, they took longer.
            assert!(began.elapsed() < Duration::from_millis(20) * count as u32 / 2, "{name}: {:?}", began.elapsed());
        }
    }
}

#[test]
fn what_is_on_disk_is_not_asked_for_again_and_neighbours_that_are_not_are_asked_for_together() {
    let door = Door::new();
    let (dir, expected) = frames(&door, 100, 60_000);
    let disk = DiskCache::open(&dir.path().join("cache"), None).unwrap();
    for name in ["one", "sparse"] {
        let options = || Options { disk: Some(Arc::clone(&disk)), ..Options::default() };
        let mut asked = Vec::new();
        // A mount does not wait until all is on disk.
        while asked.last().is_none_or(|last| *last > 3) && asked.len() < 50 {
            assert!(content(&door.open(name, options()).unwrap()) == expected, "{name}");
            asked.push(door.asked());
        }
        assert!(asked[0] <= 101 && (name == "sparse" || asked[0] <= 40), "{name}: {asked:?}");
        assert!(*asked.last().unwrap() <= 3, "{name}: {asked:?}");
    }
}

#[test]
fn chunks_of_several_pieces_are_read_whole_and_in_part() {
    let door = Door::new();
    let (_dir, expected) = frames(&door, 2, 9 << 20);
    for name in ["sparse", "one"] {
        let store = door.open(name, Options { cache_bytes: 16 << 20, ..Options::default() }).unwrap();
        assert!(content(&store) == expected, "{name}");
        let (key, IndexEntry::Stored(bytes)) = (keys(&store)[1], &expected[1]) else { panic!() };
        let mut part = vec![0; 100];
        let at = (8 << 20) - 50;
        assert_eq!(store.read_part(&store.enter(), key, bytes.len() as u32, at, &mut part).unwrap(), 100);
        assert_eq!(part, bytes[at as usize..][..100]);
        let end = bytes.len() as u64 - 10;
        assert_eq!(store.read_part(&store.enter(), key, bytes.len() as u32, end, &mut part).unwrap(), 10);
    }
}

/// Reads all chunks of a frame that others exchange for another at each request in turn: old, new, or an error.
fn exchanged(name: &'static str, exchange: fn(&Door, &Path)) {
    let (other, others) = {
        let door = Door::new();
        frames(&door, 6, 3000)
    };
    let others: Vec<_> = others.into_iter().rev().collect();
    let path = Arc::new(other.path().join(name));
    // The other one is as long, and has the same chunks in another order, so that a mixture is not seen but by its bytes.
    reorder(&path, &others);
    let mut seen = [0; 3];
    for at in 0..12 {
        let door = Door::new();
        let (_dir, expected) = frames(&door, 6, 3000);
        let remote = door.open(name, Options { refresh: Duration::ZERO, ..Options::default() });
        let (asked, path) = (Arc::downgrade(&door), Arc::clone(&path));
        door.asked();
        door.before(move |number| {
            if number == at {
                exchange(&asked.upgrade().unwrap(), &path);
            }
            Ok(())
        });
        let Ok(remote) = remote else { continue };
        for _ in 0..2 {
            match try_content(&remote) {
                Ok(got) if got == expected => seen[0] += 1,
                Ok(got) if got == others => seen[1] += 1,
                Ok(_) => panic!("a mixture, exchanged at request {at}"),
                Err(error) => {
                    assert!(matches!(error, StoreError::Stale { .. } | StoreError::Io { .. }), "{error}");
                    seen[2] += 1;
                }
            }
            if !matches!((&remote as &dyn FrameStore).look().unwrap(), Others::Nothing) {
                (&remote as &dyn FrameStore).reload().unwrap();
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

fn reorder(path: &Path, wanted: &[IndexEntry<Vec<u8>>]) {
    let store: Box<dyn FrameStore> = match path.is_dir() {
        true => Box::new(store::SframeStore::open(path, OpenOptions::default()).unwrap()),
        false => Box::new(store::CframeStore::open(path, OpenOptions::default()).unwrap()),
    };
    let guard = store.enter();
    let entries = wanted.iter().map(|entry| match entry {
        IndexEntry::Stored(bytes) => IndexEntry::Stored(store.stage(&bytes.as_slice()).unwrap()),
        IndexEntry::Special(special) => IndexEntry::Special(*special),
    });
    let image = crate::frames::image(entries.collect());
    store.commit(guard, image).unwrap();
    store.close().unwrap();
}

#[test]
fn a_file_that_is_exchanged_is_never_mixed() {
    exchanged("one", |door, path| door.upload(path, "one"));
}

#[test]
fn an_sframe_that_is_written_anew_under_other_ids_is_never_mixed() {
    exchanged("sparse", |door, path| {
        door.upload(path, "sparse");
        (0..6).for_each(|id| door.remove_object(&format!("sparse/{id:08X}.chunk")));
    });
}

#[test]
fn a_chunk_that_is_gone_is_an_error_and_its_neighbours_are_not() {
    let door = Door::new();
    let (_dir, _) = frames(&door, 6, 3000);
    door.remove_object("sparse/00000003.chunk");
    let store = door.open("sparse", Options::default()).unwrap();
    let error = store.chunk_header(&store.enter(), keys(&store)[3]).unwrap_err();
    assert!(matches!(&error, StoreError::Lost { .. }) && error.errno() == libc::EIO, "{error}");
    assert!(error.to_string().contains("00000003.chunk: has been deleted"), "{error}");
    store.chunk_header(&store.enter(), keys(&store)[4]).unwrap();
}

#[test]
fn what_is_here_is_read_while_the_store_is_away() {
    let door = Door::new();
    let (_dir, expected) = frames(&door, 6, 3000);
    let store = door.open("sparse", Options { refresh: Duration::ZERO, ..Options::default() }).unwrap();
    assert!(content(&store) == expected);
    door.before(|_| Err(Error::Generic { store: "memory", source: "away".into() }));
    assert!(content(&store) == expected);
    assert_eq!((&store as &dyn FrameStore).look().unwrap(), Others::Nothing, "nothing is known of it");
    let away = door.open("sparse", Options::default()).map(drop).unwrap_err();
    assert_eq!(away.errno(), libc::EIO);
}

#[test]
fn hints_are_read_ahead_once() {
    let door = Door::new();
    let (_dir, expected) = frames(&door, 20, 3000);
    let store = door.open("sparse", Options::default()).unwrap();
    door.asked();
    let wants: Vec<Want> = keys(&store).into_iter().map(|key| Want::Known(key, 3032)).collect();
    store.prefetch(&wants);
    store.prefetch(&wants);
    assert!(content(&store) == expected);
    assert_eq!(door.asked(), 20);
}

#[test]
fn nothing_is_written() {
    let door = Door::new();
    let (_dir, _) = frames(&door, 1, 3000);
    let store = door.open("one", Options::default()).unwrap();
    assert_eq!(store.stage(&chunk(10, 0).as_slice()).unwrap_err().errno(), libc::EROFS);
    let image = (*store.committed().unwrap()).clone();
    assert_eq!(store.commit(store.enter(), image).unwrap_err().errno(), libc::EROFS);
    assert_eq!((&store as &dyn FrameStore).check_writable().unwrap_err().errno(), libc::EROFS);
}

#[test]
fn what_is_no_frame_is_said() {
    let door = Door::new();
    let no = |door: &Arc<Door>| door.open("x", Options::default()).map(drop).unwrap_err();
    assert_eq!(no(&door).errno(), libc::ENOENT);
    door.store_object("x", b"no frame at all, but some text".to_vec());
    assert!(matches!(no(&door), StoreError::Format { .. }));
    door.store_object("x", vec![]);
    no(&door);
    door.store_object("x/chunks.b2frame", vec![0; 10]);
    assert!(matches!(no(&door), StoreError::Format { .. }));
}

#[test]
fn a_store_that_is_away_is_not_asked_for_each_length() {
    let door = Door::new();
    let (_dir, _) = frames(&door, 100, 60_000);
    let store = door.open("one", Options::default()).unwrap();
    door.asked();
    door.before(|_| Err(Error::Generic { store: "memory", source: "away".into() }));
    assert_eq!(store.lens_of(&store.enter(), &keys(&store)), vec![None; 100]);
    assert!(door.asked() <= 10, "neighbours together, and one of them again");
}

#[test]
fn a_store_that_is_away_is_asked_once_by_a_command() {
    let door = Door::new();
    let client = door.client("frame");
    let location = store::remote::location(&client, Path::new("memory://frame"), false);
    door.before(|_| Err(Error::Generic { store: "Door", source: "away".into() }));
    for _ in 0..3 {
        assert!(location.layout().is_err_and(|error| error.to_string().ends_with("away")));
        assert!(location.open().is_err() && location.open_dir().is_err());
        assert!(!client.is_empty_object(&location.stat().unwrap_err()));
    }
    assert_eq!(door.asked(), 1);
}

/// What a check says of the sparse frame of 100 chunks, while requests from the third on are answered so, or after `meanwhile` was done.
fn checked(
    deep: bool,
    answer: impl Fn() -> Answer + Send + Sync + 'static,
    meanwhile: impl Fn(&Door),
) -> (store::Result<Checked>, Vec<Finding>, usize) {
    let door = Door::new();
    let _frames = frames(&door, 100, 6000);
    let location = store::remote::location(&door.client("sparse"), Path::new("memory://sparse"), false);
    location.layout().unwrap();
    door.asked();
    door.before(move |number| if number < 2 { Ok(()) } else { answer() });
    meanwhile(&door);
    let mut found = Vec::new();
    let checked = check_at(&location, Depth { deep, threads: 2 }, &mut |finding| found.push(finding), &mut |_, _| true);
    // Its header is no real one.
    found.retain(|finding| finding.kind != Kind::Size);
    (checked, found, door.asked())
}

#[test]
fn a_check_of_a_store_that_fails_says_so_and_ends() {
    for deep in [false, true] {
        let away = || Err(Error::Generic { store: "Door", source: "away".into() });
        let (checked, found, asked) = checked(deep, away, |_| {});
        let error = checked.unwrap_err().to_string();
        assert!(error.ends_with("cannot read: away") && found.is_empty(), "{error}, {found:?}");
        assert!(asked <= 6, "{asked}");
    }
}

#[test]
fn a_check_of_a_frame_that_is_replaced_or_removed_meanwhile_finds_no_damage_in_it() {
    let nothing = || Ok(());
    let (replaced, found, _) = checked(true, nothing, |door| {
        door.remove_object("sparse/00000005.chunk");
        door.copy_object("one", "sparse/chunks.b2frame");
    });
    let error = replaced.unwrap_err().to_string();
    assert!(error.contains("was changed by others") && found.is_empty(), "{error}, {found:?}");
    let (removed, found, _) = checked(false, nothing, |door| {
        door.remove_object("sparse/00000005.chunk");
        door.remove_object("sparse/chunks.b2frame");
    });
    let error = removed.unwrap_err().to_string();
    assert!(error.contains("was removed") && found.is_empty(), "{error}, {found:?}");
    // A chunk alone is damage.
    let (damaged, found, _) = checked(true, nothing, |door| door.remove_object("sparse/00000005.chunk"));
    assert!(damaged.is_ok() && found.len() == 1, "{damaged:?}, {found:?}");
    assert_eq!((found[0].kind, found[0].position.map(|position| position.0)), (Kind::Missing, Some(5)));
    // An empty one too.
    let (damaged, found, _) = checked(true, nothing, |door| door.store_object("sparse/00000005.chunk", Vec::new()));
    assert!(damaged.is_ok() && found.len() == 1, "{damaged:?}, {found:?}");
}

#[test]
fn a_deep_check_asks_for_each_chunk_once() {
    let (sound, found, asked) = checked(true, || Ok(()), |_| {});
    assert_eq!((sound.unwrap().stored, found), (100, Vec::new()));
    assert_eq!(asked, 100);
}

#[test]
fn names_and_lengths_of_a_frame_that_others_replace_are_seen_when_they_are_listed() {
    let door = Door::new();
    let (_first, _) = frames(&door, 3, 6000);
    let open = || Arc::new(door.open("sparse", Options { refresh: Duration::ZERO, ..Options::default() }).unwrap());
    let names = |view: &dyn FileSystem| {
        let mut names = Vec::new();
        view.readdir(ROOT, 0, &mut |entry| {
            names.push(entry.name.to_owned());
            true
        })
        .unwrap();
        names.len()
    };
    let sparse = SparseView::new(open(), true).unwrap();
    let contiguous = ContiguousView::new(open(), Shown::As("frame".into()), true).unwrap();
    let len = || contiguous.lookup(ROOT, "frame".as_ref()).unwrap().size;
    assert!(sparse.keeps_listing(ROOT) && names(&sparse) == 4);
    let before = len();
    let (_second, _) = frames(&door, 5, 6000);
    assert!(!sparse.keeps_listing(ROOT), "others have replaced it");
    assert_eq!(names(&sparse), 6);
    assert!(sparse.keeps_listing(ROOT));
    let deadline = Instant::now() + Duration::from_secs(20);
    while len() < before + 2 * 6000 {
        assert!(Instant::now() < deadline, "nobody has looked");
    }
    assert_eq!(sparse.features().far.map(|time| time.attr), Some(Duration::ZERO));
}

#[test]
fn many_who_wait_for_a_look_share_one() {
    let door = Door::new();
    let (_dir, _) = frames(&door, 3, 6000);
    let store = door.open("sparse", Options { refresh: Duration::ZERO, ..Options::default() }).unwrap();
    let source = store.source_store().unwrap();
    door.asked();
    let (begun, until) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (first, last) = (Arc::clone(&begun), Arc::clone(&until));
    door.before(move |number| {
        if number == 0 {
            first.wait();
            last.wait();
        }
        Ok(())
    });
    std::thread::scope(|scope| {
        scope.spawn(|| source.look().unwrap());
        begun.wait();
        let waiting: Vec<_> = (0..8).map(|_| scope.spawn(|| source.look().unwrap())).collect();
        // All of them ask while the first look is under way, or share the next one.
        until.wait();
        waiting.into_iter().for_each(|waits| assert!(matches!(waits.join().unwrap(), Others::Nothing)));
    });
    assert!(door.asked() <= 9);
}

#[test]
fn a_listing_that_has_failed_is_asked_for_again() {
    let door = Door::new();
    let (_dir, _) = frames(&door, 20, 6000);
    let remote = door.open("sparse", Options { refresh: Duration::ZERO, ..Options::default() }).unwrap();
    let keys = keys(&remote);
    door.asked();
    door.fails_lists.store(true, SeqCst);
    assert_eq!(remote.lens_of(&remote.enter(), &keys), vec![None; 20]);
    door.fails_lists.store(false, SeqCst);
    assert_eq!(remote.lens_of(&remote.enter(), &keys), vec![None; 20], "not within a second");
    assert_eq!(door.lists.load(SeqCst), 1);
    let deadline = Instant::now() + Duration::from_secs(20);
    while remote.lens_of(&remote.enter(), &keys) != vec![Some(6032); 20] {
        assert!(Instant::now() < deadline, "it is not listed again");
        std::thread::yield_now();
    }
    assert_eq!((door.lists.load(SeqCst), door.asked()), (2, 0));
}

#[test]
fn a_store_that_is_away_is_waited_for_once() {
    let door = Door::new();
    let (_dir, _) = frames(&door, 8, 6000);
    let store: Arc<dyn ObjectStore> = Arc::clone(&door) as _;
    let client = Client::new(store, Key::from("sparse"), 16, Duration::from_secs(4)).unwrap();
    let path = PathBuf::from("memory://sparse");
    let remote = RemoteStore::open(client, &path, Options::default(), &Resources::new(Budgets::default())).unwrap();
    door.hangs.store(true, SeqCst);
    let keys = keys(&remote);
    let read = |key: ChunkKey| {
        let began = Instant::now();
        let read = remote.chunk_header(&remote.enter(), key);
        (read.is_ok(), began.elapsed())
    };
    let (is_read, took) = read(keys[0]);
    assert!(!is_read && took >= Duration::from_secs(4), "{took:?}");
    for key in &keys[1..4] {
        let (is_read, took) = read(*key);
        assert!(!is_read && took < Duration::from_secs(4), "{took:?}");
    }
    door.hangs.store(false, SeqCst);
    // Hints have asked for it too, and are heard again when they have failed.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !read(keys[5]).0 {
        assert!(Instant::now() < deadline, "it is not heard of again");
    }
}

#[test]
fn a_long_header_costs_one_request_more() {
    let door = Door::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long");
    let store = store::CframeStore::create(&path, OpenOptions::default()).unwrap();
    let guard = store.enter();
    let entries = (0..10).map(|n| IndexEntry::Stored(store.stage(&chunk(60_000, n).as_slice()).unwrap()));
    let mut image = crate::frames::image(entries.collect());
    let content = vec![7; 200_000];
    let fields = HeaderFields { frame_len: 1 << 30, ..image.header.fields() };
    image.header = FrameHeader::encode(&fields, &[Metalayer { name: b"long", content: &content }]).unwrap();
    store.commit(guard, image).unwrap();
    store.close().unwrap();
    door.upload(&path, "long");
    let store = door.open("long", Options { layout: Some(Layout::Contiguous), ..Options::default() }).unwrap();
    assert_eq!(door.asked(), 3, "its beginning, the rest of the header, and the end");
    assert!(self::content(&store) == local(&path));
}

#[test]
fn a_listing_that_was_interrupted_is_asked_for_again() {
    let door = Door::new();
    let (_dir, _) = frames(&door, 20, 3000);
    let store = door.open("sparse", Options::default()).unwrap();
    door.asked();
    door.holds_lists.store(true, SeqCst);
    let client = signals::serve();
    client.signal().send();
    assert_eq!(store.lens_of(&store.enter(), &keys(&store)), vec![None; 20]);
    drop(client);
    door.holds_lists.store(false, SeqCst);
    assert_eq!(store.lens_of(&store.enter(), &keys(&store)), vec![Some(3032); 20]);
    assert_eq!(door.asked(), 0);
}

#[test]
fn a_slow_disk_is_waited_for_while_the_store_is_away() {
    // More than the second that a disk has before the store is asked, and less than twice that: who has waited for half of it gives up.
    let patience = Duration::from_millis(1900);
    for name in ["sparse", "one"] {
        let door = Door::new();
        let (_dir, expected) = frames(&door, 4, 3000);
        let disk = Dir::default();
        let cache = DiskCache::in_backend(Box::new(disk.clone()), Path::new("cache"), None).unwrap();
        let open = |cache_bytes| {
            let client = Client::new(Arc::clone(&door) as _, Key::from(name), 16, patience).unwrap();
            let options = Options { disk: Some(Arc::clone(&cache)), cache_bytes, ..Options::default() };
            RemoteStore::open(client, Path::new("memory://frame"), options, &Resources::new(Budgets::default())).unwrap()
        };
        let mut asked = usize::MAX;
        while asked > 3 {
            door.asked();
            assert!(content(&open(1 << 20)) == expected);
            asked = door.asked();
        }
        let store = open(1 << 20);
        let (is_away, hears) = std::sync::mpsc::channel();
        door.before(move |_| {
            let _ = is_away.send(());
            Err(Error::Generic { store: "Door", source: "away".into() })
        });
        let slow = disk.silence();
        let wants: Vec<_> = keys(&store).into_iter().map(|key| Want::Known(key, 3032)).collect();
        store.prefetch(&wants);
        slow.wait_for_a_reader();
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| try_content(&store));
            // The disk answers when the store has not.
            hears.recv().unwrap();
            drop(slow);
            assert!(reads.join().unwrap().unwrap() == expected, "{name}");
        });
    }
}

#[test]
fn a_cache_whose_disk_hangs_keeps_nobody_from_the_store() {
    let door = Door::new();
    let (_dir, expected) = frames(&door, 20, 3000);
    let disk = Dir::default();
    let cache = DiskCache::in_backend(Box::new(disk.clone()), Path::new("cache"), None).unwrap();
    let frozen = disk.freeze();
    let store = door.open("sparse", Options { disk: Some(cache), ..Options::default() }).unwrap();
    let (done, wait) = std::sync::mpsc::channel();
    let reads = std::thread::spawn(move || done.send(content(&store)));
    let read = wait.recv_timeout(Duration::from_secs(100)).expect("reads wait for the disk");
    assert!(read == expected);
    drop(frozen);
    reads.join().unwrap().unwrap();
}
