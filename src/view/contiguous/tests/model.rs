//! Random operations on the file against a model: its bytes, and what the last installed frame was.

use super::library::Random;
use super::*;
use crate::view::frame_file::overlay::{Below, Overlay};

/// What the file should be.
struct Model {
    /// The installed frame.
    installed: Vec<u8>,
    now: Vec<u8>,
}

/// Bytes under an overlay, with chunks of 1000 bytes.
struct Bytes<'a>(&'a [u8]);

impl Below for Bytes<'_> {
    fn end(&self) -> u64 {
        self.0.len() as u64
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.copy_from_slice(&self.0[offset as usize..][..buf.len()]);
        Ok(())
    }
    fn chunks_end(&self) -> u64 {
        self.end()
    }
    fn starts_near(&self, offset: u64) -> Vec<u64> {
        (0..5).map(|n| (offset / 1000 + n) * 1000).collect()
    }
}

fn resize(mount: &Mount, handle: Handle, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    mount.view().setattr(mount.ino(NAME).unwrap(), Some(handle), set, &mut Vec::new()).unwrap();
}

#[test]
fn the_file_is_what_was_written() {
    let mut random = Random(0xdead_beef_cafe_f00d);
    for case in 0..60 {
        let cells: Vec<Cell> = (0..random.next(40)).map(|n| full(n as u8)).collect();
        let frame = cframe(&cells, CHUNKSIZE, CHUNKSIZE as i32);
        let mount = Mount::over([Layout::Sparse, Layout::Contiguous][case % 2], &frame);
        let mut model = Model { installed: frame.clone(), now: frame };
        let handles = [mount.open(NAME, false).unwrap(), mount.open(NAME, false).unwrap()];
        for _ in 0..60 {
            let handle = handles[random.next(2) as usize];
            let at = random.next(model.now.len() as u64 + 200);
            match random.next(20) {
                0..=7 => {
                    let bytes: Vec<u8> = (0..random.next(300)).map(|_| random.next(256) as u8).collect();
                    mount.view().write(handle, at, &bytes).unwrap();
                    let end = at as usize + bytes.len();
                    if !bytes.is_empty() {
                        model.now.resize(model.now.len().max(end), 0);
                        model.now[at as usize..end].copy_from_slice(&bytes);
                    }
                }
                8 => {
                    resize(&mount, handle, at);
                    model.now.resize(at as usize, 0);
                }
                // What it was, or another frame, all over it.
                9 | 10 => {
                    let other: Vec<Cell> = (0..random.next(20)).map(|n| full(n as u8 + 50)).collect();
                    let bytes = match random.next(2) {
                        0 => model.installed.clone(),
                        _ => cframe(&other, CHUNKSIZE, CHUNKSIZE as i32),
                    };
                    mount.view().write(handle, 0, &bytes).unwrap();
                    resize(&mount, handle, bytes.len() as u64);
                    mount.view().flush(handle, &mut Vec::new()).unwrap();
                    model = Model { installed: bytes.clone(), now: bytes };
                }
                11 => {
                    let _ = mount.view().flush(handle, &mut Vec::new());
                    // Where another handle is to close last, this one says first what can be no frame.
                    let _ = mount.view().fsync(mount.ino(NAME).unwrap(), &mut Vec::new());
                    if mount.view().state.read().frame.overlay.is_none() {
                        model.installed = mount.read(NAME);
                    }
                }
                _ => {
                    let mut buf = vec![1; random.next(500) as usize];
                    let count = mount.view().read(mount.ino(NAME).unwrap(), Some(handle), at, &mut buf).unwrap();
                    let expected = model.now.get(at as usize..).unwrap_or_default();
                    let expected = &expected[..expected.len().min(buf.len())];
                    assert!(buf[..count] == *expected, "case {case} at {at}");
                }
            }
            assert_eq!(mount.view().getattr(mount.ino(NAME).unwrap()).unwrap().size, model.now.len() as u64);
        }
        assert!(mount.read(NAME) == model.now, "case {case}");
        for handle in handles {
            let _ = mount.close(handle);
        }
        mount.wait(20);
        assert!(mount.read(NAME) == model.installed, "case {case}: what was no frame is gone");
    }
}

#[test]
fn an_overlay_of_many_parts_stays_small_and_true() {
    let dir = tempfile::tempdir().unwrap();
    let backend = crate::store::local::FileBackend::open(dir.path()).unwrap();
    let pool = crate::store::DraftPool::new(Arc::new(backend), 8 << 20);
    let mut expected: Vec<u8> = (0..5_000_000u32).map(|n| n as u8).collect();
    let original = expected.clone();
    let overlay = Overlay::new(1, expected.len() as u64, &pool);
    let below = Bytes(&original);
    let mut inner = overlay.inner.write();
    for n in 0..150_000usize {
        let at = n * 7919 % 1_000_000 * 5;
        inner.write_at(&[n as u8], at as u64, &below).unwrap();
        expected[at] = n as u8;
        assert!(inner.written().count() <= 1 << 16);
    }
    let mut seen = vec![0; expected.len()];
    let (count, gaps) = inner.read_at(&mut seen, 0).unwrap();
    assert_eq!(count, expected.len());
    for (gap, from) in gaps {
        below.read(from, &mut seen[gap.start as usize..gap.end as usize]).unwrap();
    }
    assert!(seen == expected);
    assert!(pool.used() <= 8 << 20);
    drop(inner);
    drop(overlay);
    assert_eq!(pool.used(), 0);
}

#[test]
fn what_is_below_is_not_held_and_reads_as_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let backend = crate::store::local::FileBackend::open(dir.path()).unwrap();
    let pool = crate::store::DraftPool::new(Arc::new(backend), 0);
    let mut random = Random(0x1357_9bdf_0246_8ace);
    let mut moved = 0;
    for case in 0..40 {
        let original: Vec<u8> = (0..300_000).map(|_| random.next(256) as u8).collect();
        let mut expected = original.clone();
        let below = Bytes(&original);
        let overlay = Overlay::new(1, original.len() as u64, &pool);
        let mut inner = overlay.inner.write();
        for step in 0..40 {
            let at = random.next(expected.len() as u64 + 1000) as usize;
            let len = random.next(40_000) as usize;
            let bytes: Vec<u8> = match random.next(6) {
                // A part from elsewhere, or from here; what follows the last one.
                0..=2 => {
                    let from = (at / 1000 + random.next(5) as usize) * 1000 % 250_000;
                    original[from..from + len].to_vec()
                }
                3 => original.get(at..at + len).unwrap_or_default().to_vec(),
                4 => (0..len).map(|_| random.next(256) as u8).collect(),
                _ => {
                    inner.set_len(at as u64).unwrap();
                    expected.resize(at, 0);
                    continue;
                }
            };
            for (n, piece) in bytes.chunks(16_384).enumerate() {
                inner.write_at(piece, (at + n * 16_384) as u64, &below).unwrap();
            }
            if !bytes.is_empty() {
                expected.resize(expected.len().max(at + bytes.len()), 0);
                expected[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            let mut seen = vec![9; expected.len()];
            let (count, gaps) = inner.read_at(&mut seen, 0).unwrap();
            assert_eq!(count, expected.len());
            for (gap, from) in gaps {
                below.read(from, &mut seen[gap.start as usize..gap.end as usize]).unwrap();
            }
            assert!(seen == expected, "case {case}, step {step}");
            let mut left = expected.clone();
            let mut at = 0;
            while let Some(part) = inner.next_data(at) {
                assert!(at <= part.start && part.start < part.end, "case {case}, step {step}: {part:?} from {at}");
                left[part.start as usize..part.end as usize].fill(0);
                at = part.end;
            }
            assert!(left.iter().all(|byte| *byte == 0), "case {case}, step {step}: more than what has stretches");
            moved += inner.moved().count();
        }
    }
    assert!(moved > 1000, "{moved}");
}

#[test]
fn a_hole_in_what_was_written_is_said_to_be_one() {
    let dir = tempfile::tempdir().unwrap();
    let backend = crate::store::local::FileBackend::open(dir.path()).unwrap();
    let pool = crate::store::DraftPool::new(Arc::new(backend), 8 << 20);
    let held = |overlay: &Overlay| {
        let inner = overlay.inner.read();
        let parts: Vec<_> = std::iter::successors(inner.next_data(0), |part| inner.next_data(part.end)).collect();
        (parts.iter().map(|part| part.end - part.start).sum::<u64>(), parts.last().map(|part| part.end))
    };
    // Lengthened over what is below, and a temporary file that was.
    let overlay = Overlay::new(1, 1000, &pool);
    overlay.inner.write().set_len(4 << 60).unwrap();
    assert_eq!(held(&overlay), (1000, Some(1000)));
    let mut draft = crate::store::Draft::new(&pool);
    draft.write_at(b"far away", 1 << 40).unwrap();
    draft.set_len(4 << 60).unwrap();
    let overlay = Overlay::of_draft(2, draft, None);
    let (bytes, end) = held(&overlay);
    assert!((8..=4 << 20).contains(&bytes) && end > Some(1 << 40), "{bytes} {end:?}");
}
