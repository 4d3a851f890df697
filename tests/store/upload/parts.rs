//! A contiguous upload that goes on where it was, and what becomes of the parts of one that does not.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::LazyLock;

use b2fuse::format::Layout;
use b2fuse::store::copy::FrameCopy;
use b2fuse::store::remote::upload::{NewUpload, Records, Upload};
use b2fuse::store::{self, StoreError};
use object_store::PutPayload;

use super::{Act, Gate, Made, content, copy_of, local, made, objects, put, remote};

/// Bytes of a part of these tests' store.
pub const PART: usize = 64 << 10;
/// Parts of the frame below.
const PARTS: usize = 7;

/// A frame of some parts, and one of as many bytes that differs from it in one part.
static FRAMES: LazyLock<(Made, Made)> = LazyLock::new(|| {
    let sizes = [PART as u32 - 64; PARTS];
    let (one, other) = (made(1, &sizes), made(1, &sizes));
    let mut bytes = std::fs::read(&other.path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&other.path, bytes).unwrap();
    (one, other)
});

/// What a store calls a part of these bytes.
pub fn tag(part: &PutPayload) -> String {
    let bytes: Vec<u8> = part.iter().flat_map(|piece| piece.to_vec()).collect();
    format!("\"{:x}\"", store::checksum::checksum(&bytes))
}

/// A store, and a directory of records.
struct Scene {
    gate: Arc<Gate>,
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Scene { gate: Gate::new(), dir: tempfile::tempdir().unwrap() }
    }

    fn records(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("uploads")).map_or(0, Iterator::count)
    }

    /// Whether a part is recorded.
    fn is_recorded(&self) -> bool {
        let records = std::fs::read_dir(self.dir.path().join("uploads")).unwrap();
        records.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap()).any(|text| text.contains(" part "))
    }

    /// Uploads as the command does; whether there is anything to go on with.
    fn upload(&self, copy: &FrameCopy, replace: bool, chunks: usize) -> Result<u64, (Option<StoreError>, bool)> {
        let records = Records::within(&self.dir.path().join("uploads"), "here");
        let client = self.gate.client("a/frame");
        let new = NewUpload { client: &client, path: Path::new("memory://frame"), replace, records: Some(&records) };
        let ended = |error| {
            drop(client.clone());
            error
        };
        let target = Upload::contiguous(&new, &copy.image, copy.rooms()).map_err(|error| ended((Some(error), false)))?;
        let mut count = 0;
        let done = copy.run(&target, &mut |_| {
            count += 1;
            while count > chunks && !self.is_recorded() {
                std::thread::yield_now();
            }
            count <= chunks
        });
        match done {
            Ok(true) => Ok(target.resumed().bytes),
            Ok(false) => Err((None, target.leave())),
            Err(error @ StoreError::Io { .. }) => Err((Some(error), target.leave())),
            Err(error) => Err((Some(error), false)),
        }
    }

    /// Returns when no request is under way.
    fn settle(&self) {
        while Arc::strong_count(&self.gate) > 1 {
            std::thread::yield_now();
        }
    }

    fn whole(&self, copy: &FrameCopy, replace: bool) -> u64 {
        let done = self.upload(copy, replace, usize::MAX);
        self.settle();
        done.unwrap_or_else(|(error, _)| panic!("{error:?}"))
    }

    /// An upload that ends after some chunks; how many parts there are then.
    fn interrupt(&self, copy: &FrameCopy, replace: bool) -> usize {
        let (error, goes_on) = self.upload(copy, replace, 4).unwrap_err();
        assert!(error.is_none() && goes_on, "{error:?}");
        self.settle();
        assert_eq!((self.uploads(), self.records()), (1, 1));
        let there = self.gate.uploads.lock().values().map(BTreeMap::len).sum();
        assert!((1..PARTS).contains(&there), "{there}");
        self.gate.parts.lock().clear();
        there
    }

    fn uploads(&self) -> usize {
        self.gate.uploads.lock().len()
    }

    fn sent(&self) -> Vec<usize> {
        let mut parts = std::mem::take(&mut *self.gate.parts.lock());
        parts.sort_unstable();
        parts
    }

    fn is_tidy(&self) {
        assert_eq!((self.uploads(), self.records()), (0, 0), "uploads and records that are left");
    }

    fn holds(&self, frame: &Made) {
        assert!(content(&remote(&self.gate.inner, "a/frame").unwrap()) == local(&frame.path));
        self.is_tidy();
    }
}

#[test]
fn an_interrupted_contiguous_upload_goes_on_where_it_was() {
    let frame = &FRAMES.0;
    let copy = copy_of(&frame.path);
    for replace in [false, true] {
        let scene = Scene::new();
        let there = scene.interrupt(&copy, replace);
        assert!(remote(&scene.gate.inner, "a/frame").is_err());
        let resumed = scene.whole(&copy, replace);
        // The first part tells whether the store still has the others.
        let expected: Vec<usize> = std::iter::once(0).chain(there..PARTS).collect();
        assert_eq!((scene.sent(), resumed), (expected, ((there - 1) * PART) as u64));
        scene.holds(frame);
    }
    // Twice interrupted.
    let scene = Scene::new();
    scene.interrupt(&copy, false);
    let there = scene.interrupt(&copy, false);
    scene.whole(&copy, false);
    assert_eq!(scene.sent().len(), 1 + PARTS - there);
    scene.holds(frame);
}

#[test]
fn parts_with_other_bytes_are_sent_again() {
    let (frame, other) = &*FRAMES;
    let scene = Scene::new();
    scene.gate.hook(|_, what, _| if what == "complete" { Act::Fail } else { Act::Pass });
    let (error, goes_on) = scene.upload(&copy_of(&frame.path), false, usize::MAX).unwrap_err();
    assert!(matches!(error, Some(StoreError::Io { .. })) && goes_on);
    scene.settle();
    scene.gate.open_gate();
    scene.sent();
    scene.whole(&copy_of(&other.path), false);
    let sent = scene.sent();
    assert!(sent.len() == 2 && sent[0] == 0, "the first, and the one with another byte: {sent:?}");
    scene.holds(other);
}

#[test]
fn what_the_store_has_no_longer_is_sent_anew() {
    let frame = &FRAMES.0;
    let copy = copy_of(&frame.path);
    let scene = Scene::new();
    scene.interrupt(&copy, false);
    scene.gate.uploads.lock().clear();
    assert_eq!(scene.whole(&copy, false), 0);
    assert_eq!(scene.sent().len(), PARTS + 1);
    scene.holds(frame);
    // Parts that are others by now make no object, and not for ever.
    let scene = Scene::new();
    scene.interrupt(&copy, false);
    let spoil = || {
        scene.settle();
        for parts in scene.gate.uploads.lock().values_mut() {
            parts.insert(1, PutPayload::from(vec![0; PART]));
        }
    };
    spoil();
    let mut tries = 0;
    while let Err((error, _)) = scene.upload(&copy, false, usize::MAX) {
        assert!(remote(&scene.gate.inner, "a/frame").is_err() && error.is_some());
        tries += 1;
        assert!(tries < 5);
        spoil();
    }
    scene.settle();
    assert!(tries > 0);
    scene.holds(frame);
}

#[test]
fn a_record_that_is_damaged_or_of_another_object_does_no_harm() {
    let (frame, small) = (&FRAMES.0, made(7, &[3000; 3]));
    let copy = copy_of(&frame.path);
    let record = |scene: &Scene| {
        let all = std::fs::read_dir(scene.dir.path().join("uploads")).unwrap();
        all.map(|entry| entry.unwrap().path()).next().unwrap()
    };
    for spoil in [
        &(|_: Vec<u8>| Vec::new()) as &dyn Fn(Vec<u8>) -> Vec<u8>,
        &|bytes| bytes[..bytes.len() - 9].to_vec(),
        &|bytes| bytes.iter().map(|byte| byte ^ 1).collect(),
        &|_| vec![b'\n'; 1 << 20],
    ] {
        let scene = Scene::new();
        scene.interrupt(&copy, false);
        let path = record(&scene);
        std::fs::write(&path, spoil(std::fs::read(&path).unwrap())).unwrap();
        scene.whole(&copy, false);
        assert!(content(&remote(&scene.gate.inner, "a/frame").unwrap()) == local(&frame.path));
        assert_eq!(scene.records(), 0);
    }
    // Another frame of that name: what is left of the first is removed.
    let scene = Scene::new();
    scene.interrupt(&copy, false);
    scene.whole(&copy_of(&small.path), false);
    scene.holds(&small);
}

#[test]
fn two_uploads_at_the_same_time_do_not_share_parts() {
    let (frame, other) = &*FRAMES;
    let (copy, second) = (copy_of(&frame.path), copy_of(&other.path));
    let scene = Arc::new(Scene::new());
    scene.interrupt(&copy, true);
    // In the middle of an upload that goes on, another one of the same name begins and ends.
    let inside = Arc::new(parking_lot::Mutex::new(None));
    let (weak, result) = (Arc::downgrade(&scene), Arc::clone(&inside));
    let second = Arc::new(parking_lot::Mutex::new(Some(second)));
    scene.gate.hook(move |_, what, _| {
        let taken = if what == "part" { second.lock().take() } else { None };
        if let Some(second) = taken {
            let scene = weak.upgrade().unwrap();
            *result.lock() = Some(super::aside(|| scene.upload(&second, true, usize::MAX).is_ok()));
        }
        Act::Pass
    });
    let (error, goes_on) = scene.upload(&copy, true, usize::MAX).unwrap_err();
    assert!(!goes_on && error.unwrap().to_string().contains("left as it is"));
    assert_eq!(*inside.lock(), Some(true));
    scene.gate.open_gate();
    scene.settle();
    scene.holds(other);
}

#[test]
fn parts_of_an_upload_that_is_refused_or_fails_are_removed() {
    let (frame, other) = &*FRAMES;
    let copy = copy_of(&frame.path);
    // Another has the name when the parts are there.
    for replace in [false, true] {
        let scene = Scene::new();
        let inner = Arc::clone(&scene.gate.inner);
        let bytes = std::fs::read(&other.path).unwrap();
        scene.gate.hook(move |_, what, _| {
            if what == "part" {
                super::aside(|| put(&inner, "a/frame", &bytes));
            }
            Act::Pass
        });
        let (error, goes_on) = scene.upload(&copy, replace, usize::MAX).unwrap_err();
        assert!(!goes_on && error.unwrap().to_string().contains("left as it is"));
        scene.settle();
        scene.holds(other);
    }
    // By the time of the next upload.
    let scene = Scene::new();
    scene.interrupt(&copy, false);
    put(&scene.gate.inner, "a/frame", &std::fs::read(&other.path).unwrap());
    let (error, _) = scene.upload(&copy, false, usize::MAX).unwrap_err();
    assert!(error.unwrap().to_string().contains("exists already"));
    scene.settle();
    scene.holds(other);
    // One that replaces has been interrupted, and goes on if that is said again.
    let there = scene.interrupt(&copy, true);
    let (error, _) = scene.upload(&copy, false, usize::MAX).unwrap_err();
    assert!(error.unwrap().to_string().contains("exists already"));
    scene.settle();
    scene.whole(&copy, true);
    assert_eq!(scene.sent().len(), 1 + PARTS - there);
    scene.holds(frame);
    // Where nothing is recorded, nothing is left: of any request that fails, at any time.
    for at in 0..PARTS + 4 {
        let scene = Scene::new();
        scene.gate.hook(move |number, what, _| if number == at && what != "abort" { Act::Fail } else { Act::Pass });
        let client = scene.gate.client("a/frame");
        let done = super::upload_while(&client, &copy, Layout::Contiguous, false, || true);
        drop(client);
        scene.settle();
        assert_eq!((scene.uploads(), done.is_ok()), (0, objects(&scene.gate.inner).len() == 1), "request {at}: {done:?}");
    }
}
