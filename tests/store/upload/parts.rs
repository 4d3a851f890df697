//! A contiguous upload in parts, and what becomes of the parts of one that ends early.

use std::sync::Arc;
use std::sync::LazyLock;

use b2fuse::format::Layout;
use b2fuse::store;
use b2fuse::store::copy::FrameCopy;
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

struct Scene {
    gate: Arc<Gate>,
}

impl Scene {
    fn new() -> Self {
        Scene { gate: Gate::new() }
    }

    /// Uploads as the command does, `chunks` chunks at most; whether the frame was made.
    fn upload(&self, copy: &FrameCopy, replace: bool, chunks: usize) -> store::Result<bool> {
        let mut count = 0;
        let done = super::upload_while(&self.gate.client("a/frame"), copy, Layout::Contiguous, replace, || {
            count += 1;
            count <= chunks
        });
        done.map(|(done, _)| done)
    }

    /// Returns when no request is under way.
    fn settle(&self) {
        while Arc::strong_count(&self.gate) > 1 {
            std::thread::yield_now();
        }
    }

    fn whole(&self, copy: &FrameCopy, replace: bool) {
        assert!(self.upload(copy, replace, usize::MAX).unwrap());
        self.settle();
    }

    fn uploads(&self) -> usize {
        self.gate.uploads.lock().len()
    }

    fn holds(&self, frame: &Made) {
        assert!(content(&remote(&self.gate.inner, "a/frame").unwrap()) == local(&frame.path));
        assert_eq!(self.uploads(), 0, "unfinished uploads");
    }
}

#[test]
fn an_interrupted_contiguous_upload_leaves_nothing_and_begins_anew() {
    let frame = &FRAMES.0;
    let copy = copy_of(&frame.path);
    for replace in [false, true] {
        let scene = Scene::new();
        assert!(!scene.upload(&copy, replace, 4).unwrap());
        scene.settle();
        assert_eq!(scene.uploads(), 0);
        assert!(remote(&scene.gate.inner, "a/frame").is_err());
        scene.gate.parts.lock().clear();
        scene.whole(&copy, replace);
        assert_eq!(scene.gate.parts.lock().len(), PARTS);
        scene.holds(frame);
    }
}

#[test]
fn two_uploads_at_the_same_time_do_not_share_parts() {
    let (frame, other) = &*FRAMES;
    let (copy, second) = (copy_of(&frame.path), copy_of(&other.path));
    let scene = Arc::new(Scene::new());
    put(&scene.gate.inner, "a/frame", &std::fs::read(&frame.path).unwrap());
    // In the middle of an upload another one of the same name begins and ends.
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
    let error = scene.upload(&copy, true, usize::MAX).unwrap_err();
    assert!(error.to_string().contains("left as it is"), "{error}");
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
        let error = scene.upload(&copy, replace, usize::MAX).unwrap_err();
        assert!(error.to_string().contains("left as it is"), "{error}");
        scene.settle();
        scene.holds(other);
    }
    // Any request fails, at any time.
    for at in 0..PARTS + 4 {
        let scene = Scene::new();
        scene.gate.hook(move |number, what, _| if number == at && what != "abort" { Act::Fail } else { Act::Pass });
        let done = scene.upload(&copy, false, usize::MAX);
        scene.settle();
        assert_eq!((scene.uploads(), done.is_ok()), (0, objects(&scene.gate.inner).len() == 1), "request {at}: {done:?}");
    }
}
