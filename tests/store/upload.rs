//! Uploads into an object store in memory, which fails, loses answers, ignores conditions and lets others in, when told to.

mod download;
mod parts;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use b2fuse::format::{IndexEntry, Layout};
use b2fuse::store::copy::FrameCopy;
use b2fuse::store::remote::upload::{NewUpload, Resumed, Upload};
use b2fuse::store::remote::{Client, Options, RemoteStore};
use b2fuse::store::{self, Budgets, CframeStore, FrameStore, Location, NewFrame, OpenOptions, Resources, SframeStore};
use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Key;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use parking_lot::Mutex;

use crate::frames::{chunk, content, data, image};
use crate::signals;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Pass,
    /// Nothing is done.
    Fail,
    /// It is done, and nobody hears of it.
    Lose,
    /// It is done whatever its condition says.
    Ignore,
    /// There are no conditions.
    Refuse,
}

/// Called before each request, with its number, what it is and its key.
type Hook = Arc<dyn Fn(usize, &str, &str) -> Act + Send + Sync>;

/// A store in memory, behind a gate.
#[derive(Default)]
struct Gate {
    inner: Arc<InMemory>,
    count: AtomicUsize,
    /// Keys of what was put, in order.
    puts: Mutex<Vec<String>>,
    hook: Mutex<Option<Hook>>,
    /// Puts under way, and the most that there were.
    now: AtomicUsize,
    most: AtomicUsize,
    pause: Mutex<Duration>,
    /// Parts of objects that are not there yet, by what their upload is called.
    uploads: Mutex<BTreeMap<String, BTreeMap<usize, PutPayload>>>,
    /// Numbers of the parts that were put, in order.
    parts: Mutex<Vec<usize>>,
    begun: AtomicUsize,
    /// By how much the store's clock is ahead of when its objects were made.
    ahead: Mutex<Duration>,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::default()
    }

    fn hook(&self, hook: impl Fn(usize, &str, &str) -> Act + Send + Sync + 'static) {
        self.count.store(0, SeqCst);
        *self.hook.lock() = Some(Arc::new(hook));
    }

    fn open_gate(&self) {
        *self.hook.lock() = None;
    }

    fn act(&self, what: &str, key: &Key) -> Act {
        let hook = self.hook.lock().clone();
        hook.map_or(Act::Pass, |hook| hook(self.count.fetch_add(1, SeqCst), what, key.as_ref()))
    }

    /// Keys that were put since the last call.
    fn puts(&self) -> Vec<String> {
        std::mem::take(&mut *self.puts.lock())
    }

    fn client(self: &Arc<Self>, key: &str) -> Arc<Client> {
        let client = Client::new(Arc::clone(self) as _, Key::from(key), 16, Duration::from_secs(20)).unwrap();
        client.with_parts(Arc::clone(self) as _, parts::PART as u64)
    }
}

fn failed() -> Error {
    Error::Generic { store: "memory", source: "away".into() }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Gate {
    async fn put_opts(&self, key: &Key, payload: PutPayload, mut options: PutOptions) -> object_store::Result<PutResult> {
        self.puts.lock().push(key.to_string());
        let act = self.act("put", key);
        self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
        let pause = *self.pause.lock();
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        self.now.fetch_sub(1, SeqCst);
        let is_plain = options.mode == PutMode::Overwrite;
        match act {
            Act::Fail => return Err(failed()),
            Act::Refuse if !is_plain => {
                return Err(Error::NotImplemented { operation: "put".into(), implementer: "gate".into() });
            }
            Act::Ignore => options.mode = PutMode::Overwrite,
            _ => {}
        }
        let done = self.inner.put_opts(key, payload, options).await;
        if act == Act::Lose && done.is_ok() { Err(failed()) } else { done }
    }

    async fn put_multipart_opts(
        &self,
        key: &Key,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Key, options: GetOptions) -> object_store::Result<GetResult> {
        match self.act(if options.head { "head" } else { "get" }, key) {
            Act::Fail => Err(failed()),
            _ => {
                let mut got = self.inner.get_opts(key, options).await?;
                got.meta.last_modified += *self.ahead.lock();
                Ok(got)
            }
        }
    }

    fn delete_stream(
        &self,
        keys: BoxStream<'static, object_store::Result<Key>>,
    ) -> BoxStream<'static, object_store::Result<Key>> {
        self.act("delete", &Key::default());
        self.inner.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Key, to: &Key, options: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn no_such_upload(id: &str) -> Error {
    Error::NotFound { path: id.into(), source: "NoSuchUpload".into() }
}

#[async_trait::async_trait]
impl MultipartStore for Gate {
    async fn create_multipart(&self, key: &Key) -> object_store::Result<MultipartId> {
        if self.act("multipart", key) == Act::Fail {
            return Err(failed());
        }
        let id = format!("{key} {}", self.begun.fetch_add(1, SeqCst));
        self.uploads.lock().insert(id.clone(), BTreeMap::new());
        Ok(id)
    }

    async fn put_part(&self, key: &Key, id: &MultipartId, number: usize, part: PutPayload) -> object_store::Result<PartId> {
        self.parts.lock().push(number);
        let act = self.act("part", key);
        if act == Act::Fail {
            return Err(failed());
        }
        let content_id = parts::tag(&part);
        self.uploads.lock().get_mut(id).ok_or_else(|| no_such_upload(id))?.insert(number, part);
        if act == Act::Lose { Err(failed()) } else { Ok(PartId { content_id }) }
    }

    async fn complete_multipart(&self, key: &Key, id: &MultipartId, ids: Vec<PartId>) -> object_store::Result<PutResult> {
        let act = self.act("complete", key);
        if act == Act::Fail {
            return Err(failed());
        }
        let sent = self.uploads.lock().remove(id).ok_or_else(|| no_such_upload(id))?;
        let mut bytes = Vec::new();
        for (number, wanted) in ids.into_iter().enumerate() {
            match sent.get(&number) {
                Some(part) if parts::tag(part) == wanted.content_id => {
                    part.iter().for_each(|piece| bytes.extend_from_slice(piece))
                }
                _ => {
                    self.uploads.lock().insert(id.clone(), sent);
                    return Err(Error::Generic { store: "memory", source: "InvalidPart".into() });
                }
            }
        }
        let done = self.inner.put(key, bytes.into()).await;
        if act == Act::Lose { Err(failed()) } else { done }
    }

    async fn abort_multipart(&self, key: &Key, id: &MultipartId) -> object_store::Result<()> {
        match self.act("abort", key) {
            Act::Fail => Err(failed()),
            _ => self.uploads.lock().remove(id).map(drop).ok_or_else(|| no_such_upload(id)),
        }
    }
}

/// Does something in a thread of its own: also in one that carries requests.
fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

fn block<T: Send>(work: impl Future<Output = T> + Send) -> T {
    aside(|| tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work))
}

/// All objects, by their names.
fn objects(store: &InMemory) -> BTreeMap<String, Vec<u8>> {
    block(async {
        let all: Vec<ObjectMeta> = store.list(None).try_collect().await.unwrap();
        let mut objects = BTreeMap::new();
        for meta in all {
            let bytes = store.get(&meta.location).await.unwrap().bytes().await.unwrap();
            objects.insert(meta.location.to_string(), bytes.to_vec());
        }
        objects
    })
}

fn remote(store: &Arc<InMemory>, key: &str) -> store::Result<RemoteStore> {
    let client = Client::new(Arc::clone(store) as _, Key::from(key), 16, Duration::from_secs(20)).unwrap();
    let options = Options { refresh: Duration::ZERO, ..Options::default() };
    RemoteStore::open(client, Path::new("memory://frame"), options, &Resources::new(Budgets::default()))
}

fn put(store: &InMemory, key: &str, bytes: &[u8]) {
    block(store.put(&Key::from(key), bytes.to_vec().into())).unwrap();
}

/// A frame on the disk of chunks with so many bytes of data each.
struct Made {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn made(seed: u64, sizes: &[u32]) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("frame");
    let store = CframeStore::create(&path, OpenOptions::default()).unwrap();
    let guard = store.enter();
    let stage = |(n, size): (u64, &u32)| IndexEntry::Stored(store.stage(&chunk(*size, seed + n).as_slice()).unwrap());
    let entries = (0..).zip(sizes).map(stage).collect();
    store.commit(guard, image(entries)).unwrap();
    store.close().unwrap();
    Made { _dir: dir, path }
}

fn copy_of(path: &Path) -> FrameCopy {
    FrameCopy::of(&Location::existing(path).unwrap()).unwrap()
}

fn local(path: &Path) -> Vec<IndexEntry<Vec<u8>>> {
    content(&*store::open(path, OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap().1)
}

/// Uploads a copy; `go_on` is asked after each chunk.
fn upload_while(
    client: &Arc<Client>,
    copy: &FrameCopy,
    layout: Layout,
    replace: bool,
    mut go_on: impl FnMut() -> bool,
) -> store::Result<(bool, Resumed)> {
    let new = NewUpload { client, path: Path::new("memory://frame"), replace };
    let upload = match layout {
        Layout::Sparse => Upload::sparse(&new, copy.rooms().len() as u64)?,
        Layout::Contiguous => Upload::contiguous(&new, &copy.image, copy.rooms())?,
    };
    let done = copy.run(&upload, &mut |_| go_on())?;
    Ok((done, upload.resumed()))
}

fn upload(gate: &Arc<Gate>, copy: &FrameCopy, layout: Layout, replace: bool) -> store::Result<Resumed> {
    upload_while(&gate.client("a/frame"), copy, layout, replace, || true).map(|(_, resumed)| resumed)
}

const LAYOUTS: [Layout; 2] = [Layout::Sparse, Layout::Contiguous];

#[test]
fn what_is_uploaded_is_what_a_local_copy_is() {
    for path in data("sframe").into_iter().chain(data("cframe")) {
        let copy = copy_of(&path);
        for layout in LAYOUTS {
            let dir = tempfile::tempdir().unwrap();
            let at = dir.path().join("copy");
            let target = copy.create(&Location::to_be(&at).unwrap(), layout, NewFrame::default()).unwrap();
            assert!(copy.run(&*target, &mut |_| true).unwrap());
            target.close().unwrap();
            let mut expected = BTreeMap::new();
            if layout == Layout::Contiguous {
                expected.insert("a/frame".to_owned(), std::fs::read(&at).unwrap());
            } else {
                for entry in std::fs::read_dir(&at).unwrap().map(Result::unwrap) {
                    let name = format!("a/frame/{}", entry.file_name().to_str().unwrap());
                    expected.insert(name, std::fs::read(entry.path()).unwrap());
                }
            }
            let gate = Gate::new();
            upload(&gate, &copy, layout, false).unwrap();
            let got = objects(&gate.inner);
            assert!(got.keys().eq(expected.keys()), "{}: {:?}, expected {:?}", path.display(), got.keys(), expected.keys());
            for (name, bytes) in &expected {
                assert!(got[name] == *bytes, "{}: {name} as {layout:?}", path.display());
            }
            let is_same = content(&remote(&gate.inner, "a/frame").unwrap()) == local(&path);
            assert!(is_same, "{}", path.display());
        }
    }
}

#[test]
fn from_a_store_to_a_store_and_to_a_disk() {
    let frame = made(1, &[3000; 150]);
    let expected = local(&frame.path);
    for from in LAYOUTS {
        for to in LAYOUTS {
            let gate = Gate::new();
            upload(&gate, &copy_of(&frame.path), from, false).unwrap();
            let copy = FrameCopy::over(Arc::new(remote(&gate.inner, "a/frame").unwrap())).unwrap();
            upload_while(&gate.client("b"), &copy, to, false, || true).unwrap();
            assert!(content(&remote(&gate.inner, "b").unwrap()) == expected, "{from:?} to {to:?}");

            let dir = tempfile::tempdir().unwrap();
            let at = dir.path().join("copy");
            let target = copy.create(&Location::to_be(&at).unwrap(), to, NewFrame::default()).unwrap();
            assert!(copy.run(&*target, &mut |_| true).unwrap());
            target.close().unwrap();
            assert!(local(&at) == expected, "{from:?} to {to:?}");
        }
    }
}

#[test]
fn holes_of_a_remote_file_are_bounded() {
    // A chunk is replaced by a larger one, and its place is free.
    let frame = made(1, &[3000, 3000, 3000, 3000]);
    let store = CframeStore::open(&frame.path, OpenOptions::default()).unwrap();
    let mut entries = (*store.committed().unwrap().entries).clone();
    entries[1] = IndexEntry::Stored(store.stage(&chunk(90_000, 77).as_slice()).unwrap());
    store.commit(store.enter(), image(entries)).unwrap();
    store.sync().unwrap();
    // Not closed: that would move chunks into the hole.
    let expected = content(&store);
    let gate = Gate::new();
    put(&gate.inner, "holes", &std::fs::read(&frame.path).unwrap());
    let copy = FrameCopy::over(Arc::new(remote(&gate.inner, "holes").unwrap())).unwrap();
    for to in LAYOUTS {
        upload_while(&gate.client("b").clone(), &copy, to, false, || true).unwrap();
        assert!(content(&remote(&gate.inner, "b").unwrap()) == expected, "{to:?}");
        for key in objects(&gate.inner).into_keys().filter(|key| key.starts_with('b')) {
            block(gate.inner.delete(&Key::from(key))).unwrap();
        }
    }
    store.close().unwrap();
}

#[test]
fn an_interrupted_upload_goes_on_where_it_was() {
    let frame = made(1, &[3000; 40]);
    let copy = copy_of(&frame.path);
    for at in [0, 1, 7, 39] {
        let gate = Gate::new();
        let mut chunks = 0;
        let client = gate.client("a/frame");
        let (done, _) = upload_while(&client, &copy, Layout::Sparse, false, || {
            chunks += 1;
            chunks <= at
        })
        .unwrap();
        assert!(!done && remote(&gate.inner, "a/frame").is_err());
        drop(client);
        // What is on its way arrives, or does not: the requests hold the store.
        while Arc::strong_count(&gate) > 1 {
            std::thread::yield_now();
        }
        let there = objects(&gate.inner).len();
        gate.puts();
        let resumed = upload(&gate, &copy, Layout::Sparse, false).unwrap();
        assert!(there > 0);
        assert_eq!(resumed.chunks as usize, there);
        assert_eq!(resumed.bytes, resumed.chunks * 3032);
        // One to see whether conditions are heeded, and the index.
        assert_eq!(gate.puts().len(), 40 - resumed.chunks as usize + 2);
        assert!(content(&remote(&gate.inner, "a/frame").unwrap()) == local(&frame.path));
        assert_eq!(objects(&gate.inner).len(), 41);
    }
}

#[test]
fn what_another_upload_has_left_is_not_taken_for_this_one() {
    // Chunks of the same length with other bytes, one of another length, and one behind the end.
    let frame = made(1, &[3000; 10]);
    let gate = Gate::new();
    for (id, size, seed) in [(0, 3000, 1), (1, 3000, 900), (2, 2000, 3), (7, 3000, 8), (30, 3000, 5)] {
        put(&gate.inner, &format!("a/frame/{id:08X}.chunk"), &chunk(size, seed));
    }
    let resumed = upload(&gate, &copy_of(&frame.path), Layout::Sparse, false).unwrap();
    assert_eq!(resumed.chunks, 2, "those with ids 0 and 7");
    assert!(content(&remote(&gate.inner, "a/frame").unwrap()) == local(&frame.path));
    // What is no part of the frame is gone.
    assert_eq!(objects(&gate.inner).len(), 11);
}

#[test]
fn after_a_failed_request_there_is_no_frame_and_after_a_lost_answer_there_is() {
    let frame = made(1, &[3000; 12]);
    let copy = copy_of(&frame.path);
    for layout in LAYOUTS {
        let mut fine = 0;
        for at in 0..40 {
            let gate = Gate::new();
            gate.hook(move |number, _, _| if number >= at { Act::Fail } else { Act::Pass });
            let done = upload(&gate, &copy, layout, false);
            gate.open_gate();
            fine += u32::from(done.is_ok());
            assert_eq!(done.is_ok(), remote(&gate.inner, "a/frame").is_ok(), "from request {at} on");
            if let Err(error) = done {
                assert!(error.to_string().starts_with("memory://frame: cannot "), "{error}");
                upload(&gate, &copy, layout, false).unwrap();
            }
            assert!(content(&remote(&gate.inner, "a/frame").unwrap()) == local(&frame.path));
        }
        assert!((1..40).contains(&fine), "{fine}");
        let gate = Gate::new();
        gate.hook(|_, what, _| if what == "put" { Act::Lose } else { Act::Pass });
        upload(&gate, &copy, layout, false).unwrap();
        upload(&gate, &copy, layout, true).unwrap();
        assert!(content(&remote(&gate.inner, "a/frame").unwrap()) == local(&frame.path));
    }
}

#[test]
fn readers_see_no_frame_the_old_one_or_the_new_one() {
    let (old, new) = (made(1, &[3000; 8]), made(500, &[3000; 9]));
    let (before, after) = (local(&old.path), local(&new.path));
    for layout in LAYOUTS {
        for first in [true, false] {
            let gate = Gate::new();
            if !first {
                upload(&gate, &copy_of(&old.path), layout, false).unwrap();
            }
            let (inner, before, after) = (Arc::clone(&gate.inner), before.clone(), after.clone());
            let seen = Arc::new(Mutex::new([0; 3]));
            let all = Arc::clone(&seen);
            // One reader was there before, and each step has a new one.
            let reader = Mutex::new((!first).then(|| remote(&gate.inner, "a/frame").unwrap()));
            let look = move || {
                let mut seen = all.lock();
                let mut check = |got: store::Result<Vec<IndexEntry<Vec<u8>>>>| match got {
                    Ok(got) if got == before && !first => seen[0] += 1,
                    Ok(got) if got == after => seen[1] += 1,
                    Ok(_) => panic!("a mixture"),
                    Err(_) => seen[2] += 1,
                };
                check(remote(&inner, "a/frame").and_then(|store| crate::frames::try_content(&store)));
                if let Some(store) = &*reader.lock() {
                    check(crate::frames::try_content(store));
                    let _ = (store as &dyn FrameStore).look();
                    (store as &dyn FrameStore).reload().unwrap();
                }
            };
            let look = Arc::new(look);
            let at_each = Arc::clone(&look);
            gate.hook(move |_, _, _| {
                aside(|| at_each());
                Act::Pass
            });
            upload(&gate, &copy_of(&new.path), layout, !first).unwrap();
            gate.open_gate();
            look();
            let seen = *seen.lock();
            assert!(seen[1] > 0 && if first { seen[2] > 0 && seen[0] == 0 } else { seen[0] > 0 }, "{layout:?}: {seen:?}");
            // Fresh readers of a frame that is being replaced always find one.
            assert!(first || seen[2] <= 1, "{layout:?}: {seen:?}");
            assert_eq!(objects(&gate.inner).len(), if layout == Layout::Sparse { 10 } else { 1 });
        }
    }
}

#[test]
fn of_two_uploads_at_the_same_time_one_wins_whole() {
    let (old, one, other) = (made(1, &[3000; 5]), made(500, &[3000; 9]), made(700, &[3000; 9]));
    let (first, second) = (local(&one.path), local(&other.path));
    let mut lost = 0;
    for layout in LAYOUTS {
        for replace in [false, true] {
            for at in 0..16 {
                let gate = Gate::new();
                if replace {
                    upload(&gate, &copy_of(&old.path), layout, false).unwrap();
                }
                let (inner, path) = (Arc::clone(&gate.inner), other.path.clone());
                let inside = Arc::new(Mutex::new(None));
                let result = Arc::clone(&inside);
                gate.hook(move |number, _, _| {
                    if number == at {
                        let open = Arc::new(Gate { inner: Arc::clone(&inner), ..Gate::default() });
                        *result.lock() = Some(aside(|| upload(&open, &copy_of(&path), layout, replace).is_ok()));
                    }
                    Act::Pass
                });
                let outside = upload(&gate, &copy_of(&one.path), layout, replace);
                // The other one may be at work still, in a request that nobody waits for any more.
                while Arc::strong_count(&gate) > 1 {
                    std::thread::yield_now();
                }
                gate.open_gate();
                let got = content(&remote(&gate.inner, "a/frame").unwrap());
                // None: the other one had no turn. An upload that began after the other had ended replaces it.
                let inside = *inside.lock();
                match (inside, &outside) {
                    (None, Ok(_)) => assert!(got == first),
                    (Some(true), Ok(_)) if replace => assert!(got == first || got == second, "at {at}"),
                    (Some(true), Err(_)) => {
                        assert!(got == second, "{layout:?}, at {at}");
                        lost += 1;
                    }
                    other => panic!("{layout:?}, {replace}, at {at}: {other:?}"),
                }
            }
        }
    }
    assert!(lost > 0);
    // And in threads of their own.
    for layout in LAYOUTS {
        for replace in [false, true] {
            for _ in 0..20 {
                let gate = Gate::new();
                if replace {
                    upload(&gate, &copy_of(&old.path), layout, false).unwrap();
                }
                let run = |path: &Path| upload(&gate, &copy_of(path), layout, replace).is_ok();
                let (one, other) = std::thread::scope(|scope| {
                    let other = scope.spawn(|| run(&other.path));
                    (run(&one.path), other.join().unwrap())
                });
                assert!((one || other) && (replace || !(one && other)));
                let got = content(&remote(&gate.inner, "a/frame").unwrap());
                assert!(one && got == first || other && got == second, "{layout:?}");
            }
        }
    }
}

#[test]
fn a_store_without_conditions_replaces_no_sframe() {
    let (old, new) = (made(1, &[3000; 5]), made(500, &[3000; 9]));
    for act in [Act::Ignore, Act::Refuse] {
        for layout in LAYOUTS {
            let gate = Gate::new();
            gate.hook(move |_, _, _| act);
            upload(&gate, &copy_of(&old.path), layout, false).unwrap();
            assert!(content(&remote(&gate.inner, "a/frame").unwrap()) == local(&old.path));
            let error = upload(&gate, &copy_of(&new.path), layout, false).unwrap_err();
            assert!(error.to_string().contains("exists already"), "{error}");
            let done = upload(&gate, &copy_of(&new.path), layout, true);
            if layout == Layout::Sparse {
                let error = done.unwrap_err();
                assert!(error.to_string().contains("does not compare ETags"), "{error}");
            }
            let expected = if layout == Layout::Sparse { &old } else { &new };
            assert!(content(&remote(&gate.inner, "a/frame").unwrap()) == local(&expected.path));
        }
    }
}

#[test]
fn large_chunks_and_files_are_sent_in_parts() {
    let frame = made(1, &[3000, 300 << 10, 3000, 200 << 10]);
    let (copy, expected) = (copy_of(&frame.path), local(&frame.path));
    for layout in LAYOUTS {
        let gate = Gate::new();
        let parts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&parts);
        gate.hook(move |_, what, _| {
            counted.fetch_add(usize::from(what == "multipart"), SeqCst);
            Act::Pass
        });
        upload(&gate, &copy, layout, false).unwrap();
        assert!(content(&remote(&gate.inner, "a/frame").unwrap()) == expected, "{layout:?}");
        assert_eq!(parts.load(SeqCst), 1, "{layout:?}");
        upload(&gate, &copy, layout, true).unwrap();
        assert!(content(&remote(&gate.inner, "a/frame").unwrap()) == expected, "{layout:?}");
    }
    // The large one is found again.
    let gate = Gate::new();
    let mut chunks = 0;
    upload_while(&gate.client("a/frame"), &copy, Layout::Sparse, false, || {
        chunks += 1;
        chunks < 2
    })
    .unwrap();
    assert_eq!(upload(&gate, &copy, Layout::Sparse, false).unwrap().chunks, 2);
    assert!(content(&remote(&gate.inner, "a/frame").unwrap()) == expected);
}

#[test]
fn what_may_be_of_an_upload_in_progress_is_left_for_a_day() {
    let (old, new, other) = (made(1, &[3000; 3]), made(500, &[3000; 4]), made(700, &[3000; 9]));
    let gate = Gate::new();
    upload(&gate, &copy_of(&old.path), Layout::Sparse, false).unwrap();
    // An upload that is interrupted, or in progress: nobody can tell.
    let mut chunks = 0;
    let client = gate.client("a/frame");
    let stopped = upload_while(&client, &copy_of(&other.path), Layout::Sparse, true, || {
        chunks += 1;
        chunks < 9
    });
    assert!(!stopped.unwrap().0);
    drop(client);
    while Arc::strong_count(&gate) > 1 {
        std::thread::yield_now();
    }
    // Ids from 3 on.
    let left = objects(&gate.inner).len() - 4;
    assert!((1..=9).contains(&left), "{left}");
    let chunks = |gate: &Gate| objects(&gate.inner).into_keys().filter(|key| key.ends_with(".chunk")).count();
    // Another frame replaces the old one, and gets ids above. What is left below goes.
    let outside = Arc::new(Mutex::new(Vec::new()));
    let (inner, seen) = (Arc::clone(&gate.inner), Arc::clone(&outside));
    gate.hook(move |_, what, key| {
        if what == "put" && key.ends_with("chunks.b2frame") {
            // Chunks of one that began before, and goes on.
            for id in 100u32..103 {
                let key = format!("a/frame/{id:08X}.chunk");
                aside(|| put(&inner, &key, b"in progress"));
                seen.lock().push(key);
            }
        }
        Act::Pass
    });
    upload(&gate, &copy_of(&new.path), Layout::Sparse, true).unwrap();
    gate.open_gate();
    assert!(content(&remote(&gate.inner, "a/frame").unwrap()) == local(&new.path));
    let there = objects(&gate.inner);
    assert!(outside.lock().iter().all(|key| there.contains_key(key)));
    assert_eq!(chunks(&gate), 4 + 3, "{:?}", there.keys());
    // The next upload finds them, and leaves them as long as they are young.
    for (hours, left) in [(0, 3), (23, 3), (25, 0)] {
        *gate.ahead.lock() = Duration::from_secs(hours * 3600);
        upload(&gate, &copy_of(&old.path), Layout::Sparse, true).unwrap();
        let there = objects(&gate.inner);
        assert_eq!(outside.lock().iter().filter(|key| there.contains_key(*key)).count(), left, "after {hours} hours");
        assert_eq!(chunks(&gate), 3 + left, "{:?}", there.keys());
    }
}

#[test]
fn chunks_that_another_upload_may_be_removing_are_not_gone_on_with() {
    let (old, new) = (made(1, &[3000; 3]), made(700, &[3000; 9]));
    for (hours, is_resumed) in [(0, true), (23, true), (25, false)] {
        let gate = Gate::new();
        upload(&gate, &copy_of(&old.path), Layout::Sparse, false).unwrap();
        for (id, seed) in (3..8u32).zip(700..) {
            put(&gate.inner, &format!("a/frame/{id:08X}.chunk"), &chunk(3000, seed));
        }
        // The index is so much younger than they.
        *gate.ahead.lock() = Duration::from_secs(hours * 3600);
        // Whoever put it removes them, as soon as they were looked for.
        let inner = Arc::clone(&gate.inner);
        let removes = Mutex::new(!is_resumed);
        gate.hook(move |_, what, _| {
            if what == "put" && std::mem::take(&mut *removes.lock()) {
                (3..8u32).for_each(|id| block(inner.delete(&Key::from(format!("a/frame/{id:08X}.chunk")))).unwrap());
            }
            Act::Pass
        });
        let resumed = upload(&gate, &copy_of(&new.path), Layout::Sparse, true).unwrap();
        assert_eq!(resumed.chunks, if is_resumed { 5 } else { 0 }, "after {hours} hours");
        assert!(content(&remote(&gate.inner, "a/frame").unwrap()) == local(&new.path));
    }
}

#[test]
fn what_has_the_name_already_is_left_alone() {
    let frame = made(1, &[3000; 5]);
    let copy = copy_of(&frame.path);
    let refused = |gate: &Arc<Gate>, layout, replace, words: &str| {
        let before = objects(&gate.inner);
        let error = upload(gate, &copy, layout, replace).unwrap_err().to_string();
        assert!(error.starts_with("memory://frame: ") && error.contains(words), "{error}");
        assert_eq!(objects(&gate.inner), before);
    };
    for replace in [false, true] {
        let gate = Gate::new();
        upload(&gate, &copy, Layout::Contiguous, false).unwrap();
        refused(&gate, Layout::Sparse, replace, "is one object, and a sparse frame needs a prefix");
        let gate = Gate::new();
        upload(&gate, &copy, Layout::Sparse, false).unwrap();
        refused(&gate, Layout::Contiguous, replace, "is the prefix of a sparse frame");
        let gate = Gate::new();
        put(&gate.inner, "a/frame/notes.txt", b"x");
        refused(&gate, Layout::Sparse, replace, "holds \"notes.txt\"");
        let gate = Gate::new();
        put(&gate.inner, "a/frame/chunks.b2frame", b"x");
        refused(&gate, Layout::Sparse, replace, if replace { "is damaged" } else { "exists already" });
    }
    // Neighbours whose names begin alike are none of it.
    let gate = Gate::new();
    put(&gate.inner, "a/frame2", b"x");
    put(&gate.inner, "a/frame.txt/x", b"x");
    upload(&gate, &copy, Layout::Sparse, false).unwrap();
    refused(&gate, Layout::Sparse, false, "exists already");
}

#[test]
fn ids_end_where_readers_say() {
    let frame = made(1, &[3000; 2]);
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("sparse");
    let store = SframeStore::create(&at, OpenOptions::default()).unwrap();
    let entries = vec![IndexEntry::Stored(store.stage(&chunk(10, 1).as_slice()).unwrap())];
    store.commit(store.enter(), image(entries)).unwrap();
    store.close().unwrap();
    let gate = Gate::new();
    for entry in std::fs::read_dir(&at).unwrap().map(Result::unwrap) {
        put(&gate.inner, &format!("a/frame/{}", entry.file_name().to_str().unwrap()), &std::fs::read(entry.path()).unwrap());
    }
    // An index that names the last id but one.
    let index = std::fs::read(at.join("chunks.b2frame")).unwrap();
    let mut file = b2fuse::format::index_file::IndexFile::parse(&index).unwrap();
    file.entries = Arc::new(vec![IndexEntry::Stored(b2fuse::format::ChunkId((1 << 31) - 2))]);
    put(&gate.inner, "a/frame/chunks.b2frame", &file.make_file().unwrap());
    let error = upload(&gate, &copy_of(&frame.path), Layout::Sparse, true).unwrap_err();
    assert!(error.to_string().contains("ids above 2147483647"), "{error}");
}

#[test]
fn requests_run_beside_each_other_within_a_bound() {
    let frame = made(1, &[3000; 100]);
    let gate = Gate::new();
    *gate.pause.lock() = Duration::from_millis(5);
    upload(&gate, &copy_of(&frame.path), Layout::Sparse, false).unwrap();
    let most = gate.most.load(SeqCst);
    assert!((8..=16).contains(&most), "{most} at the same time");
}

#[test]
fn who_waits_is_stopped() {
    let frame = made(1, &[3000; 40]);
    let copy = copy_of(&frame.path);
    let gate = Gate::new();
    let waits = signals::serve();
    let signal = waits.signal();
    gate.hook(move |number, what, _| {
        if what == "put" && number > 10 {
            signal.send();
        }
        Act::Pass
    });
    let client = gate.client("a/frame");
    let new = NewUpload { client: &client, path: Path::new("memory://frame"), replace: false };
    let target = Upload::sparse(&new, 40).unwrap();
    let error = copy.run(&target, &mut |_| true).unwrap_err();
    drop(waits);
    assert_eq!(error.errno(), libc::EINTR, "{error}");
    assert!(remote(&gate.inner, "a/frame").is_err());
}

#[test]
fn a_source_that_is_exchanged_meanwhile_makes_no_frame() {
    let (old, new) = (made(1, &[3000; 80]), made(500, &[3000; 80]));
    let source = Gate::new();
    for layout in LAYOUTS {
        upload(&source, &copy_of(&old.path), layout, false).unwrap();
        let copy = FrameCopy::over(Arc::new(remote(&source.inner, "a/frame").unwrap())).unwrap();
        let gate = Gate::new();
        let mut chunks = 0;
        let done = upload_while(&gate.client("a/frame"), &copy, Layout::Sparse, false, || {
            chunks += 1;
            if chunks == 10 {
                upload(&source, &copy_of(&new.path), layout, true).unwrap();
            }
            true
        });
        assert!(done.is_err() && remote(&gate.inner, "a/frame").is_err());
        for key in objects(&source.inner).into_keys() {
            block(source.inner.delete(&Key::from(key))).unwrap();
        }
    }
}

#[test]
fn a_request_that_panics_ends_the_upload_with_an_error() {
    let frame = made(1, &[3000; 10]);
    let copy = copy_of(&frame.path);
    let gate = Gate::new();
    gate.hook(|number, what, _| match what == "put" && number > 5 {
        true => panic!("as a bug does"),
        false => Act::Pass,
    });
    for layout in LAYOUTS {
        let error = upload(&gate, &copy, layout, false).unwrap_err();
        assert!(error.to_string().contains("dropped"), "{error}");
        assert!(remote(&gate.inner, "a/frame").is_err());
    }
}

#[test]
fn a_frame_is_not_hidden_by_one_that_goes_on_beside_it() {
    let frame = made(1, &[3000; 10]);
    let copy = copy_of(&frame.path);
    let gate = Gate::new();
    upload(&gate, &copy, Layout::Contiguous, false).unwrap();
    // An upload to the same name, which was interrupted before.
    put(&gate.inner, "a/frame/00000000.chunk", b"x");
    let error = upload(&gate, &copy, Layout::Sparse, false).unwrap_err();
    assert!(error.to_string().contains("is one object, and a sparse frame needs a prefix"), "{error}");
}
