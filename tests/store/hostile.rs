//! Files that are no frames, frames that lie, and what others do to SOURCE.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use b2fuse::format::header::{FrameHeader, HeaderFields};
use b2fuse::format::metalayer::Metalayer;
use b2fuse::format::trailer::Trailer;
use b2fuse::format::{ChunkOffset, IndexEntry, Layout, index};
use b2fuse::store::{CframeStore, FrameImage, FrameStore, LocalStore, OpenOptions, SourceStore, StoreError};

use crate::disk::Dir;
use crate::driver::{Driver, NAME, create, open};
use crate::frames::{Random, chunk, content, data, header, read, try_content};

fn read_only() -> OpenOptions {
    OpenOptions { read_only: true, ..OpenOptions::default() }
}

fn real(name: &str) -> Vec<u8> {
    std::fs::read(data("cframe").into_iter().find(|path| path.ends_with(name)).unwrap()).unwrap()
}

fn in_dir(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("frame.b2frame");
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

/// A frame of these chunks at these offsets, in this order.
pub fn frame(offsets: &[u64], chunks: &[u8]) -> Vec<u8> {
    let entries = offsets.iter().map(|offset| IndexEntry::Stored(ChunkOffset::new(*offset)));
    let index = index::encode(entries).unwrap();
    let trailer = Trailer::encode(&[]).unwrap();
    let mut header = header(offsets.len());
    let header_len = header.as_bytes().len() as u64;
    header.set_layout(Layout::Contiguous);
    header.set_cbytes(chunks.len() as u64);
    header.set_frame_len(header_len + (chunks.len() + index.len() + trailer.as_bytes().len()) as u64);
    [header.as_bytes(), chunks, &index, trailer.as_bytes()].concat()
}

#[test]
fn what_is_no_frame_is_refused_in_one_line() {
    let good = real("chunks-3.b2frame");
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let len = good.len();
    let outside = frame(&[0, 5000], &chunk(100, 1));
    for (bytes, words) in [
        (vec![], "header at byte 0: found 0 bytes"),
        (good[..50].to_vec(), "header: header_len at byte 11"),
        (good[..len - 1].to_vec(), "header: frame_len at byte 16"),
        (with(2, b"nonsense"), "header: magic at byte 2: found \"nonsense\""),
        (with(11, &i32::MAX.to_be_bytes()), "header: header_len at byte 11: found 2147483647"),
        (with(16, &u64::MAX.to_be_bytes()), "header: frame_len at byte 16"),
        (with(16, &(1u64 << 60).to_be_bytes()), "header: frame_len at byte 16: found 1152921504606846976"),
        (with(30, &i64::MAX.to_be_bytes()), "header: nbytes at byte 30"),
        (with(39, &i64::MAX.to_be_bytes()), "header: cbytes at byte 39"),
        (with(len - 22, &u32::MAX.to_be_bytes()), "trailer: trailer_len at byte"),
        (with(26, &[1]), "sparse"),
        (outside, "offset 5000 for chunk 1"),
    ] {
        let (_dir, path) = in_dir(&bytes);
        for options in [read_only(), OpenOptions::default()] {
            let Err(error) = CframeStore::open(&path, options) else { panic!("{words}: opened") };
            let line = error.to_string();
            assert!(line.starts_with(path.to_str().unwrap()), "{line}");
            assert!(line.contains(words), "{words} is not in: {line}");
            assert!(!line.contains('\n'), "{line}");
        }
        assert!(std::fs::read(&path).unwrap() == bytes, "changed");
    }
    let (dir, _) = in_dir(&good);
    for path in [dir.path(), Path::new("/dev/null")] {
        let error = CframeStore::open(path, read_only()).err().unwrap();
        assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
    }
    let error = CframeStore::open(&dir.path().join("missing"), read_only()).err().unwrap();
    assert!(matches!(&error, StoreError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound), "{error}");
}

#[test]
fn a_file_may_be_longer_than_its_frame() {
    let mut bytes = real("chunks-3.b2frame");
    let expected = {
        let (_dir, path) = in_dir(&bytes);
        content(&CframeStore::open(&path, read_only()).unwrap())
    };
    bytes.extend([0xee; 10_000]);
    let (_dir, path) = in_dir(&bytes);
    assert!(content(&CframeStore::open(&path, OpenOptions::default()).unwrap()) == expected);
}

#[test]
fn chunks_that_overlap_keep_every_byte_that_they_claim() {
    for seed in 0..if cfg!(debug_assertions) { 30 } else { 300 } {
        let mut random = Random(seed);
        let mut chunks: Vec<u8> = vec![];
        let mut offsets = vec![];
        for _ in 0..2 + random.below(12) {
            let bytes = chunk(40 + random.below(400) as u32, random.next());
            match random.below(3) {
                // A chunk within the bytes of another.
                0 if chunks.len() > 700 => {
                    let inner = chunk(10, random.next());
                    let at = random.below(chunks.len() as u64 - 600) as usize;
                    chunks[at..at + inner.len()].copy_from_slice(&inner);
                    offsets.push(at as u64);
                }
                // A chunk that claims what follows it as well.
                1 => {
                    offsets.push(chunks.len() as u64);
                    let claim = bytes.len() as u32 + random.below(900) as u32;
                    chunks.extend(&bytes);
                    let at = *offsets.last().unwrap() as usize;
                    chunks[at + 12..at + 16].copy_from_slice(&claim.to_le_bytes());
                    chunks[at + 4..at + 8].copy_from_slice(&(claim - 32).to_le_bytes());
                    chunks[at + 8..at + 12].copy_from_slice(&(claim - 32).to_le_bytes());
                }
                _ => {
                    offsets.push(chunks.len() as u64);
                    chunks.extend(&bytes);
                }
            }
        }
        chunks.extend(vec![0x77; 2000]); // so that every claim is within the chunks
        if random.below(2) == 0 {
            offsets.push(offsets[0]); // one twice
        }
        let dir = Dir::with_file(NAME, frame(&offsets, &chunks));
        let store = open::<CframeStore>(&dir, false).unwrap();
        // Some have been overwritten by others until their header is none: those cannot be followed.
        let image = store.committed().unwrap();
        let mut keys: Vec<_> = image.entries.iter().filter_map(|entry| entry.stored()).collect();
        for _ in 0..2 {
            let one_by_one = keys.iter().map(|key| Some(store.chunk_header(&store.enter(), *key).ok()?.cbytes));
            assert_eq!(store.lens_of(&store.enter(), &keys), one_by_one.collect::<Vec<_>>(), "read together");
            keys.reverse();
        }
        let readable = image.entries.iter().filter(|entry| match entry {
            IndexEntry::Stored(key) => store.chunk_header(&store.enter(), *key).is_ok(),
            IndexEntry::Special(_) => true,
        });
        if readable.count() < image.entries.len() {
            continue;
        }
        let mut driver = Driver::new(&dir, store, seed, 600);
        for mount in 0..3 {
            for _ in 0..30 {
                driver.step().unwrap(); // which compares all
            }
            driver.commit().unwrap();
            driver.close().unwrap();
            driver.check_file(&dir);
            if mount < 2 {
                driver.mount_again(open(&dir, false).unwrap());
            }
        }
    }
}

/// One chunk lies over several others. What its header says cannot be read for a while, and nothing behind it is taken meanwhile.
#[test]
fn what_cannot_be_read_may_claim_anything() {
    let mut chunks: Vec<u8> = (0..4).flat_map(|n| chunk(3000, n)).collect();
    let over = chunks.len();
    chunks.extend(chunk(60_000, 7));
    for inner in 1..6 {
        let at = over + 9000 * inner;
        chunks[at..at + 2032].copy_from_slice(&chunk(2000, inner as u64));
    }
    let mut offsets: Vec<u64> = (0..4).map(|n| 3032 * n).collect();
    offsets.extend((0..6).map(|inner| (over + 9000 * inner) as u64));
    let dir = Dir::with_file(NAME, frame(&offsets, &chunks));
    let header_len = u64::from(open::<CframeStore>(&dir, true).unwrap().committed().unwrap().header.header_len());
    let store = open::<CframeStore>(&dir, false).unwrap();
    let entries = store.committed().unwrap().entries.to_vec();
    let expected = read(&store, entries[4].stored().unwrap());
    let start = header_len + over as u64;
    dir.set_unreadable(Some(start..start + 16));
    let mut changed = entries.clone();
    for _ in 0..3 {
        for entry in &mut changed[5..] {
            *entry = IndexEntry::Stored(store.stage(&chunk(1500, 99)).unwrap());
        }
        store.commit(store.enter(), crate::frames::image(changed.clone())).unwrap();
        store.sync().unwrap();
        while store.tidy() {}
    }
    store.close().unwrap();
    dir.set_unreadable(None);
    let again = open::<CframeStore>(&dir, false).unwrap();
    let found = content(&again);
    assert!(found[4] == IndexEntry::Stored(expected.clone()), "the bytes of a chunk whose header could not be read");
    assert!(found[5..].iter().all(|entry| *entry == IndexEntry::Stored(chunk(1500, 99))));
    // Alone with its claim now, it still has it.
    again.stage(&chunk(1500, 98)).unwrap();
    again.commit(again.enter(), crate::frames::image(again.committed().unwrap().entries[1..].to_vec())).unwrap();
    again.close().unwrap();
    assert!(content(&open::<CframeStore>(&dir, true).unwrap())[3] == IndexEntry::Stored(expected));
}

#[test]
fn a_chunk_whose_header_cannot_be_read_is_not_moved_out_of_the_headers_way() {
    let chunks: Vec<u8> = (0..4).flat_map(|n| chunk(3000, n)).collect();
    let dir = Dir::with_file(NAME, frame(&[0, 3032, 6064, 9096], &chunks));
    let store = open::<CframeStore>(&dir, false).unwrap();
    let before = content(&store);
    let old = store.committed().unwrap();
    let fields = HeaderFields { frame_len: 1 << 20, ..old.header.fields() };
    let header = FrameHeader::encode(&fields, &[Metalayer { name: b"long", content: &[7; 3000] }]).unwrap();
    let image = FrameImage { header, ..(*old).clone() };
    let start = u64::from(old.header.header_len());
    dir.set_unreadable(Some(start..start + 16));
    let error = store.commit(store.enter(), image.clone()).unwrap_err();
    assert!(error.to_string().contains("cannot read a chunk's header"), "{error}");
    dir.set_unreadable(None);
    assert!(content(&open::<CframeStore>(&dir, true).unwrap()) == before);
    assert_eq!(dir.names(), [NAME]);
    store.commit(store.enter(), image).unwrap();
    store.close().unwrap();
    assert!(content(&open::<CframeStore>(&dir, true).unwrap()) == before);
}

#[test]
fn a_second_writer_is_refused_also_after_the_file_was_exchanged() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let (_dir, path) = in_dir(&real("chunks-3.b2frame"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let inode = || std::fs::metadata(&path).unwrap().ino();
    let before = inode();
    let store = CframeStore::open(&path, OpenOptions::default()).unwrap();
    let expected = content(&store);
    let old = store.committed().unwrap();
    let fields = HeaderFields { frame_len: 1 << 20, ..old.header.fields() };
    let header = FrameHeader::encode(&fields, &[Metalayer { name: b"long", content: &[7; 3000] }]).unwrap();
    store.commit(store.enter(), FrameImage { header, ..(*old).clone() }).unwrap();
    assert_ne!(inode(), before, "another file");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
    assert!(matches!(CframeStore::open(&path, OpenOptions::default()), Err(StoreError::Busy { .. })));
    assert!(content(&store) == expected);
    assert!(content(&CframeStore::open(&path, read_only()).unwrap()) == expected);
    assert!(!store.changed_outside().unwrap());
    store.close().unwrap();
    CframeStore::open(&path, OpenOptions::default()).unwrap();
}

#[test]
fn a_reader_sees_what_others_write_once_it_is_whole() {
    let (dir, path) = in_dir(&real("chunks-3.b2frame"));
    let reader = CframeStore::open(&path, read_only()).unwrap();
    let before = content(&reader);
    assert!(!reader.changed_outside().unwrap());
    let writer = CframeStore::open(&path, OpenOptions::default()).unwrap();
    let old = writer.committed().unwrap();
    let mut entries = (*old.entries).clone();
    entries.swap(0, 1);
    writer.commit(writer.enter(), FrameImage { entries: Arc::new(entries), ..(*old).clone() }).unwrap();
    assert!(reader.changed_outside().unwrap());
    assert!(matches!(try_content(&reader), Err(StoreError::Stale { .. })), "not before it is asked to");
    reader.reload().unwrap();
    let after = content(&reader);
    assert!(after[0] == before[1] && after[1] == before[0] && after[2] == before[2]);
    assert!(!reader.changed_outside().unwrap());
    drop(writer);
    // In the middle of somebody's change.
    std::fs::write(&path, &real("chunks-3.b2frame")[..100]).unwrap();
    assert!(reader.changed_outside().unwrap());
    assert!(reader.reload().is_err());
    // Another file under the same name.
    let other = dir.path().join("other");
    std::fs::write(&other, real("chunks-1.b2frame")).unwrap();
    std::fs::rename(&other, &path).unwrap();
    assert!(reader.changed_outside().unwrap());
    assert_eq!(reader.reload().unwrap().entries.len(), 1);
    assert_eq!(content(&reader).len(), 1);
}

#[test]
fn a_read_only_store_writes_nothing() {
    let (_dir, path) = in_dir(&real("chunks-3.b2frame"));
    let store = CframeStore::open(&path, read_only()).unwrap();
    let errno = |error: StoreError| match error {
        StoreError::Io { source, .. } => source.raw_os_error(),
        _ => None,
    };
    assert_eq!(store.stage(&chunk(10, 1)).map_err(errno), Err(Some(libc::EROFS)));
    let image = (*store.committed().unwrap()).clone();
    assert_eq!(store.commit(store.enter(), image).map_err(errno), Err(Some(libc::EROFS)));
}

#[test]
fn images_that_would_harm_are_refused() {
    let (_dir, path) = in_dir(&real("chunks-3.b2frame"));
    let store = CframeStore::open(&path, OpenOptions::default()).unwrap();
    let before = std::fs::read(&path).unwrap();
    let old = store.committed().unwrap();
    let with = |entries: Vec<_>| FrameImage { entries: Arc::new(entries), ..(*old).clone() };
    let fewer = with(old.entries[..2].to_vec());
    let staged = store.stage(&chunk(100, 1)).unwrap();
    store.discard(staged);
    store.sync().unwrap();
    for _ in 0..3 {
        let other = store.stage(&chunk(100, 2)).unwrap(); // in the same place, but not the same
        assert_ne!(other, staged);
        store.discard(other);
    }
    let mut entries = (*old.entries).clone();
    entries[1] = IndexEntry::Stored(staged);
    let gone = with(entries.clone());
    entries[1] = IndexEntry::Stored(b2fuse::store::ChunkKey::new(12345));
    let never = with(entries);
    let mut header = old.header.clone();
    header.set_nbytes(0);
    let emptied = FrameImage { header, ..(*old).clone() };
    for (image, words) in
        [(fewer, "header: nbytes"), (gone, "image: entry"), (never, "image: entry"), (emptied, "header: nbytes")]
    {
        let error = store.commit(store.enter(), image).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(std::fs::read(&path).unwrap()[..before.len()] == before, "the frame was touched");
    store.commit(store.enter(), (*old).clone()).unwrap();
    let IndexEntry::Stored(key) = old.entries[0] else { panic!("a stored chunk") };
    read(&store, key);
}

#[test]
fn what_has_no_place_is_saved_and_never_over_older_files() {
    let (dir, path) = in_dir(&real("chunks-3.b2frame"));
    let store = CframeStore::open(&path, OpenOptions::default()).unwrap();
    let first = store.save_lost("00000007.chunk", &chunk(100, 1)).unwrap();
    let second = store.save_lost("00000007.chunk", &chunk(100, 2)).unwrap();
    assert_eq!(first, dir.path().canonicalize().unwrap().join("frame.b2frame.lost/00000007.chunk"));
    assert_ne!(first, second);
    assert!(std::fs::read(first).unwrap() == chunk(100, 1) && std::fs::read(second).unwrap() == chunk(100, 2));
    let inside = store.save_lost("../../etc/evil", &chunk(5, 3)).unwrap();
    assert_eq!(inside.parent().unwrap(), dir.path().canonicalize().unwrap().join("frame.b2frame.lost"));
}

#[test]
fn a_source_that_came_into_being_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new.b2frame");
    let store = CframeStore::create(&path, OpenOptions::default()).unwrap();
    let key = store.stage(&chunk(100, 1)).unwrap();
    std::fs::write(&path, b"mine").unwrap();
    assert!(store.changed_outside().unwrap());
    let error = store.commit(store.enter(), crate::frames::image(vec![IndexEntry::Stored(key)])).unwrap_err();
    assert!(matches!(error, StoreError::Stale { .. }), "{error}");
    store.close().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let error = CframeStore::create(&path, OpenOptions::default()).err().unwrap();
    assert!(matches!(&error, StoreError::Io { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists), "{error}");
}

#[test]
fn a_frame_that_lost_its_last_chunk_is_closed_after_a_chunk_was_only_staged() {
    // The library leaves the cbytes that was.
    let bytes = real("emptied.b2frame");
    assert_ne!(FrameHeader::parse(&bytes).unwrap().cbytes(), 0);
    let (_dir, path) = in_dir(&bytes);
    let store = CframeStore::open(&path, OpenOptions::default()).unwrap();
    store.stage(&chunk(100, 1)).unwrap();
    store.close().unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);
}

/// An image with a chunk that the published one has dropped, and with one that was never stored, is refused, and changes nothing.
#[test]
fn a_refused_image_leaves_what_was_dropped_as_it_was() {
    let dir = Dir::default();
    let store = create::<CframeStore>(&dir).unwrap();
    let mut entries: Vec<_> = (0..40).map(|fill| IndexEntry::Stored(store.stage(&chunk(3000, fill)).unwrap())).collect();
    store.commit(store.enter(), crate::frames::image(entries.clone())).unwrap();
    let dropped = std::mem::replace(&mut entries[3], IndexEntry::Stored(store.stage(&chunk(3000, 99)).unwrap()));
    store.commit(store.enter(), crate::frames::image(entries.clone())).unwrap();
    let unknown = IndexEntry::Stored(b2fuse::store::ChunkKey::new(0xfff0 << 48 | 77));
    let mut both = entries.clone();
    both.extend([dropped, unknown]);
    store.commit(store.enter(), crate::frames::image(both)).unwrap_err();
    store.sync().unwrap();
    let len = dir.len(NAME);
    for fill in 0..40 {
        entries[0] = IndexEntry::Stored(store.stage(&chunk(3000, fill)).unwrap());
        store.commit(store.enter(), crate::frames::image(entries.clone())).unwrap();
    }
    store.sync().unwrap();
    assert!(dir.len(NAME) <= len + 3 * 3032, "freed room is not used again: {len}, then {}", dir.len(NAME));
    store.close().unwrap();
}
