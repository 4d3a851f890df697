//! Repairs of frames damaged on purpose. What the library's own crashes leave is mended by `tests/python/crash_images.py`.

use super::*;
use crate::format::ChunkOffset;
use crate::store::check::{Depth, Severity, check};
use crate::store::frame::{FileBytes, Frame};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// A cframe of the test data with something done to its bytes.
fn damaged(name: &str, damage: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.b2frame");
    let mut bytes = std::fs::read(data("cframe").join(name)).unwrap();
    damage(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn frame(path: &Path) -> Frame<ChunkOffset> {
    let file = std::fs::File::open(path).unwrap();
    let len = file.metadata().unwrap().len();
    Frame::read(&FileBytes { file: &file, len }).unwrap()
}

/// The stored chunks of a cframe by position.
fn chunks(path: &Path) -> Vec<Option<Vec<u8>>> {
    let bytes = std::fs::read(path).unwrap();
    let frame = frame(path);
    let base = frame.header.header_len() as usize;
    let chunk = |offset: ChunkOffset| {
        let at = base + offset.bytes() as usize;
        let len = i32::from_le_bytes(bytes[at + 12..at + 16].try_into().unwrap()) as usize;
        bytes[at..at + len].to_vec()
    };
    frame.entries.iter().map(|entry| entry.stored().map(chunk)).collect()
}

#[track_caller]
fn sound(path: &Path) {
    let mut damage = Vec::new();
    let depth = Depth { deep: true, threads: 1 };
    check(path, depth, &mut |finding| damage.extend((finding.severity == Severity::Damage).then_some(finding)), &mut |_, _| true)
        .unwrap();
    assert_eq!(damage, []);
}

#[test]
fn sound_frames_need_nothing() {
    for layout in ["cframe", "sframe"] {
        for entry in std::fs::read_dir(data(layout)).unwrap() {
            let path = entry.unwrap().path();
            let plan = plan(&path).unwrap();
            assert_eq!((plan.outlook(), plan.found.first()), (Outlook::Sound, &[][..]), "{}", path.display());
        }
    }
}

#[test]
fn planning_changes_nothing_and_what_is_changed_is_kept() {
    let (dir, path) = damaged("chunks-3.b2frame", |bytes| bytes.truncate(bytes.len() - 10));
    let before = std::fs::read(&path).unwrap();
    let plan = plan(&path).unwrap();
    assert_eq!(plan.outlook(), Outlook::Mendable);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let saved = plan.carry_out().unwrap().unwrap();
    sound(&path);
    assert_eq!(chunks(&path), chunks(&data("cframe/chunks-3.b2frame")));
    // With the copies put back, the frame is what it was.
    let mut after = std::fs::read(&path).unwrap();
    after.truncate(before.len());
    for entry in std::fs::read_dir(saved).unwrap() {
        let entry = entry.unwrap();
        let at: usize = entry.file_name().to_str().unwrap().strip_prefix("bytes-at-").unwrap().parse().unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        after[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    assert_eq!(after, before);
}

#[test]
fn a_header_that_lies_about_lengths() {
    for field in [16..24, 39..47] {
        let (_dir, path) = damaged("codec-lz4.b2frame", |bytes| bytes[field].copy_from_slice(&77u64.to_be_bytes()));
        plan(&path).unwrap().carry_out().unwrap();
        sound(&path);
        assert_eq!(chunks(&path), chunks(&data("cframe/codec-lz4.b2frame")));
    }
}

#[test]
fn a_chunk_that_is_gone_becomes_an_uninitialised_one_and_is_named() {
    let source = frame(&data("cframe/codec-lz4.b2frame"));
    let IndexEntry::Stored(offset) = source.entries[2] else { panic!("a stored chunk") };
    let at = source.header.header_len() as usize + offset.bytes() as usize;
    let (_dir, path) = damaged("codec-lz4.b2frame", |bytes| bytes[at..at + 32].fill(0xff));
    let plan = plan(&path).unwrap();
    assert_eq!(plan.lost.first(), ["chunk 2: it becomes uninitialised"]);
    plan.carry_out().unwrap();
    sound(&path);
    let (mut expected, got) = (chunks(&data("cframe/codec-lz4.b2frame")), chunks(&path));
    expected[2] = None;
    assert_eq!(got, expected);
}

#[test]
fn an_index_is_not_made_again_where_chunks_were_special() {
    let source = frame(&data("cframe/special.b2frame"));
    let (_dir, path) = damaged("special.b2frame", |bytes| bytes[source.sections.index.start as usize..].fill(0));
    let plan = plan(&path).unwrap();
    assert_eq!(plan.outlook(), Outlook::Hopeless, "{plan:?}");
    let before = std::fs::read(&path).unwrap();
    assert_eq!(plan.carry_out().unwrap(), None);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// To the library a frame of 0 bytes has no chunks, so one whose chunks all have none cannot be written.
#[test]
fn chunks_of_no_bytes_make_no_frame() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.b2frame");
    std::fs::create_dir(&path).unwrap();
    let index = include_bytes!("../../../tests/data/hostile/empty-chunks.index");
    std::fs::write(path.join("chunks.b2frame"), index).unwrap();
    for id in 0..3 {
        let chunk = [&[5, 1, 7, 1, 0, 0, 0, 0, 1, 0, 0, 0, 32][..], &[0; 19]].concat();
        std::fs::write(path.join(format!("{id:08X}.chunk")), chunk).unwrap();
    }
    let plan = plan(&path).unwrap();
    assert_eq!(plan.outlook(), Outlook::Hopeless, "{plan:?}");
    assert_eq!(plan.lost.first(), ["the index: header: nbytes at byte 30: found 0, expected bytes in 3 chunks"]);
}

/// Special chunks of a frame whose chunks vary in size have a size that only the header knows.
#[test]
fn special_chunks_among_varying_ones_keep_their_bytes() {
    let special: [IndexEntry<ChunkOffset>; 2] = [IndexEntry::Special(crate::format::Special::Zeros); 2];
    assert_eq!(nbytes_of(&special, &[None, None], 0, 700), Ok(700));
    assert_eq!(nbytes_of(&special, &[None, Some(800)], 0, 700), Ok(800));
    assert_eq!(nbytes_of(&special, &[Some(5), Some(8)], 0, 700), Ok(13));
    assert!(nbytes_of(&special, &[None, None], 0, 0).is_err());
}

#[test]
fn a_trailer_is_found_where_the_header_says_that_the_frame_ends() {
    // Without an index nothing else says where it is, and the file goes on behind it.
    let name = "metalayers.b2frame";
    let source = frame(&data("cframe").join(name));
    let layers: Vec<_> = source.trailer.vlmetalayers().map(|layer| layer.name.to_vec()).collect();
    assert!(!layers.is_empty());
    let index = source.sections.index.start as usize..source.sections.index.end as usize;
    let (_dir, path) = damaged(name, |bytes| {
        // A chunk that was about to be appended, and of which little was written.
        let chunk = bytes[source.sections.chunks.start as usize..][..32].to_vec();
        bytes[index.clone()].fill(0);
        bytes[index.start..index.start + 32].copy_from_slice(&chunk);
        bytes.extend([0; 100]);
    });
    plan(&path).unwrap().carry_out().unwrap();
    sound(&path);
    assert!(frame(&path).trailer.vlmetalayers().map(|layer| layer.name.to_vec()).eq(layers));
}

#[test]
fn a_frame_that_changed_since_it_was_looked_at_is_left_alone() {
    let (_dir, path) = damaged("chunks-3.b2frame", |bytes| bytes.truncate(bytes.len() - 10));
    let plan = plan(&path).unwrap();
    std::fs::copy(data("cframe/chunks-1.b2frame"), &path).unwrap();
    assert!(matches!(plan.carry_out(), Err(StoreError::Stale { .. })));
    sound(&path);
}

#[test]
fn whatever_one_byte_says_planning_ends() {
    for name in ["chunks-3.b2frame", "varying.b2frame"] {
        let bytes = std::fs::read(data("cframe").join(name)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.b2frame");
        for at in (0..bytes.len()).step_by(3) {
            for value in [0, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                std::fs::write(&path, bytes).unwrap();
                let _ = plan(&path);
            }
        }
    }
}

/// Nothing is known against it, and so it is not lost.
#[test]
fn a_chunk_that_needs_a_plugin_is_kept() {
    let (_dir, path) = damaged("codec-lz4hc.b2frame", |bytes| {
        let source = frame(&data("cframe/codec-lz4hc.b2frame"));
        let base = source.header.header_len() as usize;
        for (n, entry) in source.entries.iter().filter_map(|entry| entry.stored()).enumerate() {
            let chunk = &mut bytes[base + entry.bytes() as usize..];
            match n {
                // One that is damaged, so that all the others are decoded.
                0 => chunk[..16].fill(0xff),
                1 => (chunk[2], chunk[22]) = (chunk[2] & 0x1f | 6 << 5, 33),
                _ => chunk[18] = 35,
            }
        }
    });
    let plan = plan(&path).unwrap();
    assert_eq!(plan.lost.first(), ["chunk 0: it becomes uninitialised"]);
}

/// One repair is enough, whatever else is wrong.
#[test]
fn a_special_chunk_that_is_stored_becomes_an_entry_with_all_other_repairs() {
    let offset = frame(&data("cframe/chunks-3.b2frame")).entries[1].stored().unwrap();
    for cut in [0, 10] {
        let (_dir, path) = damaged("chunks-3.b2frame", |bytes| {
            let at = frame(&data("cframe/chunks-3.b2frame")).header.header_len() as usize + offset.bytes() as usize;
            bytes[at + 12..at + 16].copy_from_slice(&32u32.to_le_bytes());
            bytes[at + 31] = 1 << 4; // zeros
            bytes.truncate(bytes.len() - cut);
        });
        plan(&path).unwrap().carry_out().unwrap();
        sound(&path);
        let entries = frame(&path).entries;
        assert_eq!(entries[1], IndexEntry::Special(crate::format::Special::Zeros));
        assert!(entries[0].stored().is_some() && entries[2].stored().is_some());
    }
}

#[test]
fn what_does_not_fit_and_cannot_be_mended_is_named() {
    let array = frame(&data("cframe/b2nd-int.b2nd")).header.as_bytes().windows(3).position(|at| at == [0x97, 0, 2]).unwrap();
    // Blocks of another size than those of the four chunks; chunks of another size than the frame's.
    for (place, size, found) in [(38, 4, 4), (27, 8, 1)] {
        let (_dir, path) = damaged("b2nd-int.b2nd", |bytes| bytes[array + place] = size);
        let plan = plan(&path).unwrap();
        assert_eq!((plan.outlook(), plan.found.first().len()), (Outlook::Hopeless, found), "{plan:?}");
    }
}
