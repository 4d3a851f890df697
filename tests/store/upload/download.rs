//! Downloads that go on where they were.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use b2fuse::format::Layout;
use b2fuse::store::copy::{FrameCopy, Resume};
use b2fuse::store::remote::{Options, RemoteStore};
use b2fuse::store::{self, Budgets, FrameStore, Location, NewFrame, Resources};

use super::{Act, Gate, LAYOUTS, Made, copy_of, local, made, upload};

const CHUNKS: usize = 40;

/// A remote frame, and a place for a copy of it.
struct Scene {
    gate: Arc<Gate>,
    dir: tempfile::TempDir,
    records: tempfile::TempDir,
    to: Layout,
    gets: Arc<AtomicUsize>,
}

impl Scene {
    fn new(frame: &Made, from: Layout, to: Layout) -> Self {
        let gate = Gate::new();
        upload(&gate, &copy_of(&frame.path), from, false).unwrap();
        let gets = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&gets);
        gate.hook(move |_, what, _| {
            count.fetch_add(usize::from(what == "get"), SeqCst);
            Act::Pass
        });
        Scene { gate, dir: tempfile::tempdir().unwrap(), records: tempfile::tempdir().unwrap(), to, gets }
    }

    fn target(&self) -> PathBuf {
        self.dir.path().join("copy")
    }

    /// Downloads as the command does, no more than so many chunks; how many were there, or whether the next one goes on.
    fn download(&self, chunks: usize, replace: bool) -> Result<u64, bool> {
        // What was asked for ahead is under way still.
        while Arc::strong_count(&self.gate) > 1 {
            std::thread::yield_now();
        }
        self.gets.store(0, SeqCst);
        // No window that grows: all that is fetched is needed.
        let options = Options { unsafe_immutable: true, ..Options::default() };
        let source = RemoteStore::open(
            self.gate.client("a/frame"),
            Path::new("memory://frame"),
            options,
            &Resources::new(Budgets::default()),
        );
        let source = Arc::new(source.unwrap());
        let at = Location::to_be(&self.target()).unwrap();
        let replaced = at.stat().unwrap().filter(|_| replace);
        let state = source.tag().line();
        let copy = FrameCopy::over(source).unwrap();
        let mut resume = Resume::open(&at, &state, copy.rooms().len(), Some(&self.records.path().join("downloads"))).unwrap();
        let new = NewFrame { resumed: Some(resume.unfinished()), replaced, ..NewFrame::default() };
        let target = copy.create(&at, self.to, new).unwrap();
        let mut count = 0;
        let done = copy.run_resumed(&*target, Some(&mut resume), &mut |_| {
            count += 1;
            count <= chunks
        });
        if !done.unwrap() {
            return Err(resume.leave());
        }
        target.close().unwrap();
        resume.end();
        Ok(resume.found())
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// What is left of a copy.
    fn left(&self) -> PathBuf {
        let names = self.names();
        let left: Vec<_> = names.iter().filter(|name| name.starts_with(".b2fuse-") && name.ends_with(".tmp")).collect();
        assert_eq!(left.len(), 1, "{names:?}");
        self.dir.path().join(left[0])
    }

    /// The files of a copy.
    fn files(path: &Path) -> BTreeMap<String, Vec<u8>> {
        if path.is_file() {
            return BTreeMap::from([(String::new(), std::fs::read(path).unwrap())]);
        }
        let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
        files.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect()
    }

    fn is(&self, frame: &Made) {
        assert_eq!(self.names(), ["copy"]);
        assert_eq!(std::fs::read_dir(self.records.path().join("downloads")).unwrap().count(), 0, "records");
        assert!(local(&self.target()) == local(&frame.path));
        // As of a copy that was made at once.
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("copy");
        let copy = copy_of(&frame.path);
        let target = copy.create(&Location::to_be(&at).unwrap(), self.to, NewFrame::default()).unwrap();
        assert!(copy.run(&*target, &mut |_| true).unwrap());
        target.close().unwrap();
        let (got, expected) = (Self::files(&self.target()), Self::files(&at));
        assert!(got.keys().eq(expected.keys()) && got == expected, "{:?}: {:?}", self.to, got.keys());
    }
}

fn frame() -> Made {
    made(1, &[3000; CHUNKS])
}

fn scenes(frame: &Made) -> impl Iterator<Item = Scene> {
    LAYOUTS.into_iter().flat_map(|from| LAYOUTS.map(|to| (from, to))).map(|(from, to)| Scene::new(frame, from, to))
}

#[test]
fn an_interrupted_download_goes_on_where_it_was() {
    let frame = frame();
    for scene in scenes(&frame) {
        assert_eq!(scene.download(29, false), Err(true));
        assert!(!scene.target().exists() && scene.left().exists());
        // Again, before anything was fetched.
        assert_eq!(scene.download(3, false), Err(true));
        assert_eq!(scene.download(CHUNKS, false), Ok(30));
        let gets = scene.gets.load(SeqCst);
        assert!(gets <= CHUNKS - 30 + 3, "{gets} requests for {} chunks", CHUNKS - 30);
        scene.is(&frame);
        assert_eq!(scene.download(0, true), Err(true), "it is replaced by the next");
        assert!(local(&scene.target()) == local(&frame.path));
        assert_eq!(scene.download(CHUNKS, true), Ok(1));
        scene.is(&frame);
    }
}

#[test]
fn what_is_not_as_it_was_written_is_fetched_again() {
    let frame = frame();
    for scene in scenes(&frame) {
        assert_eq!(scene.download(29, false), Err(true));
        let left = scene.left();
        // As after a loss of power, and a kill between a chunk and its record.
        if scene.to == Layout::Contiguous {
            let mut bytes = std::fs::read(&left).unwrap();
            bytes[5000..9000].fill(0);
            bytes.truncate(70_000);
            std::fs::write(&left, bytes).unwrap();
        } else {
            for (id, len) in [(1u32, 0), (2, 3031), (30, 3032), (31, 100)] {
                std::fs::write(left.join(format!("{id:08X}.chunk")), vec![7; len]).unwrap();
            }
            std::fs::remove_file(left.join("00000009.chunk")).unwrap();
            std::fs::write(left.join(".b2fuse-0000001E.tmp"), b"x").unwrap();
        }
        let found = scene.download(CHUNKS, false).unwrap();
        assert!((18..30).contains(&found), "{found}");
        scene.is(&frame);
        // All of it is gone: a mount of the directory removes what nobody holds.
        let scene = Scene::new(&frame, Layout::Sparse, scene.to);
        assert_eq!(scene.download(29, false), Err(true));
        let left = scene.left();
        if left.is_dir() {
            std::fs::remove_dir_all(left).unwrap()
        } else {
            std::fs::remove_file(left).unwrap()
        }
        assert_eq!(scene.download(CHUNKS, false), Ok(0));
        scene.is(&frame);
    }
    // More than was recorded: the first state of the file had other chunks behind.
    let scene = Scene::new(&frame, Layout::Sparse, Layout::Contiguous);
    assert_eq!(scene.download(9, false), Err(true));
    let left = scene.left();
    let mut bytes = std::fs::read(&left).unwrap();
    bytes.extend(vec![7; 1 << 20]);
    std::fs::write(&left, bytes).unwrap();
    assert_eq!(scene.download(CHUNKS, false), Ok(10));
    scene.is(&frame);
}

#[test]
fn of_a_source_that_has_changed_nothing_is_taken() {
    let (frame, other) = (frame(), made(500, &[3000; CHUNKS - 1]));
    for scene in scenes(&frame) {
        assert_eq!(scene.download(29, false), Err(true));
        let layout = if super::objects(&scene.gate.inner).contains_key("a/frame") { Layout::Contiguous } else { Layout::Sparse };
        upload(&scene.gate, &copy_of(&other.path), layout, true).unwrap();
        assert_eq!(scene.download(CHUNKS, false), Ok(0));
        scene.is(&other);
    }
}

#[test]
fn what_may_be_somebody_elses_is_neither_taken_nor_removed() {
    let frame = frame();
    for to in LAYOUTS {
        let scene = Scene::new(&frame, Layout::Sparse, to);
        assert_eq!(scene.download(29, false), Err(true));
        let left = scene.left();
        if to == Layout::Contiguous {
            std::fs::hard_link(&left, scene.records.path().join("precious")).unwrap();
        } else {
            std::fs::write(left.join("precious"), b"x").unwrap();
        }
        let before = Scene::files(&left);
        assert_eq!(scene.download(CHUNKS, false), Ok(0));
        let mut expected = before.clone();
        expected.retain(|name, _| !name.starts_with(".b2fuse-"));
        let mut after = Scene::files(&left);
        after.retain(|name, _| !name.starts_with(".b2fuse-"));
        assert!(after == expected, "{to:?}");
        assert!(local(&scene.target()) == local(&frame.path));
    }
    // In a directory where others may rename.
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new(&frame, Layout::Sparse, Layout::Contiguous);
    assert_eq!(scene.download(29, false), Err(true));
    std::fs::set_permissions(scene.dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(scene.download(CHUNKS, false), Ok(0));
    assert!(local(&scene.target()) == local(&frame.path));
}

#[test]
fn two_downloads_at_the_same_time_do_not_share_what_is_left() {
    let frame = frame();
    let scene = Scene::new(&frame, Layout::Sparse, Layout::Contiguous);
    let at = Location::to_be(&scene.target()).unwrap();
    let records = scene.records.path().join("downloads");
    let one = Resume::open(&at, "a state", 9, Some(&records)).unwrap();
    assert!(Resume::open(&at, "a state", 9, Some(&records)).is_none());
    drop(one);
    assert!(Resume::open(&at, "a state", 9, Some(&records)).is_some());
}

#[test]
fn a_copy_that_fails_otherwise_leaves_nothing() {
    let frame = frame();
    let scene = Scene::new(&frame, Layout::Sparse, Layout::Contiguous);
    let gate = Arc::clone(&scene.gate);
    let (path, count) = (frame.path.clone(), AtomicUsize::new(0));
    gate.hook(move |_, what, _| if what == "get" && count.fetch_add(1, SeqCst) > 9 { Act::Fail } else { Act::Pass });
    let source = RemoteStore::open(
        scene.gate.client("a/frame"),
        Path::new("memory://frame"),
        Options::default(),
        &Resources::new(Budgets::default()),
    );
    let source: Arc<dyn FrameStore> = Arc::new(source.unwrap());
    let copy = FrameCopy::over(source).unwrap();
    let at = Location::to_be(&scene.target()).unwrap();
    let records = scene.records.path().join("downloads");
    let mut resume = Resume::open(&at, "a state", 99, Some(&records)).unwrap();
    let new = NewFrame { resumed: Some(resume.unfinished()), ..NewFrame::default() };
    let target = copy.create(&at, Layout::Contiguous, new).unwrap();
    let error = copy.run_resumed(&*target, Some(&mut resume), &mut |_| true).unwrap_err();
    assert!(matches!(error, store::StoreError::Io { .. }) && error.to_string().starts_with("memory://frame"), "{error}");
    drop((target, resume));
    assert!(scene.names().is_empty() && path.exists());
    assert_eq!(std::fs::read_dir(records).unwrap().count(), 0);
}
