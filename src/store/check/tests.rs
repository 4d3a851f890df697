//! What is found in frames that were damaged on purpose.

use std::fs::File;
use std::path::PathBuf;

use super::*;
use crate::format::{ChunkOffset, index};
use crate::store::StoreError;
use crate::store::frame::{FileBytes, Frame};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn findings(path: &Path, deep: bool) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    check(path, Depth { deep, threads: 2 }, &mut |finding| findings.push(finding), &mut |_, _| true)?;
    Ok(findings)
}

fn kinds(path: &Path, deep: bool) -> Vec<(Severity, Kind, Option<u64>)> {
    let findings = findings(path, deep).unwrap();
    findings.iter().map(|finding| (finding.severity, finding.kind, finding.position.map(|position| position.0))).collect()
}

/// A copy of a cframe of the test data with something done to its bytes.
fn damaged(name: &str, damage: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.b2frame");
    let mut bytes = std::fs::read(data("cframe").join(name)).unwrap();
    damage(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

/// A copy of an sframe of the test data.
fn copied(name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.b2frame");
    std::fs::create_dir(&path).unwrap();
    for entry in std::fs::read_dir(data("sframe").join(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), path.join(entry.file_name())).unwrap();
    }
    (dir, path)
}

fn frame(path: &Path) -> Frame<ChunkOffset> {
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len();
    Frame::read(&FileBytes { file: &file, len }).unwrap()
}

const DAMAGE: Severity = Severity::Damage;

#[test]
fn the_librarys_own_frames_are_sound() {
    for layout in ["cframe", "sframe"] {
        for entry in std::fs::read_dir(data(layout)).unwrap() {
            let path = entry.unwrap().path();
            for finding in findings(&path, true).unwrap() {
                assert_eq!((finding.severity, finding.kind), (Severity::Note, Kind::Hole), "{}: {finding:?}", path.display());
            }
        }
    }
}

#[test]
fn holes_are_a_note() {
    assert_eq!(kinds(&data("cframe/holes.b2frame"), false), [(Severity::Note, Kind::Hole, None)]);
}

#[test]
fn no_header_no_check() {
    let (_dir, path) = damaged("chunks-3.b2frame", |bytes| bytes[3] = b'x');
    assert!(matches!(findings(&path, false), Err(StoreError::Format { .. })));
    let (_dir, path) = damaged("chunks-3.b2frame", |bytes| bytes.truncate(20));
    assert!(matches!(findings(&path, false), Err(StoreError::Format { .. })));
}

#[test]
fn a_frame_that_was_cut_off() {
    let (_dir, path) = damaged("chunks-3.b2frame", |bytes| bytes.truncate(bytes.len() - 10));
    let kinds = kinds(&path, false);
    assert_eq!(kinds, [(DAMAGE, Kind::FrameLen, None), (DAMAGE, Kind::Trailer, None)], "the chunks themselves are sound");
}

#[test]
fn bytes_behind_the_frame_are_a_note() {
    let (_dir, path) = damaged("chunks-3.b2frame", |bytes| bytes.extend([0; 5]));
    assert_eq!(kinds(&path, true), [(Severity::Note, Kind::FrameLen, None)]);
}

#[test]
fn a_trailer_that_lies_about_its_length() {
    let (_dir, path) = damaged("chunks-3.b2frame", |bytes| {
        let at = bytes.len() - 22;
        bytes[at..at + 4].copy_from_slice(&[0xff; 4]);
    });
    assert_eq!(kinds(&path, false), [(DAMAGE, Kind::Trailer, None)]);
}

#[test]
fn an_index_that_does_not_decode() {
    let source = frame(&data("cframe/chunks-3.b2frame"));
    let at = source.sections.index.start as usize;
    let (_dir, path) = damaged("chunks-3.b2frame", |bytes| bytes[at + 8..at + 12].fill(0xff));
    assert_eq!(kinds(&path, false), [(DAMAGE, Kind::Index, None)]);
}

/// Replaces the index of a frame by another of the same length.
fn with_offsets(name: &str, change: impl FnOnce(&mut Vec<IndexEntry<ChunkOffset>>)) -> (tempfile::TempDir, PathBuf) {
    let Frame { mut entries, sections, .. } = frame(&data("cframe").join(name));
    change(&mut entries);
    let chunk = index::encode(entries.into_iter()).unwrap();
    assert_eq!(chunk.len() as u64, sections.index.end - sections.index.start);
    damaged(name, |bytes| bytes[sections.index.start as usize..sections.index.end as usize].copy_from_slice(&chunk))
}

#[test]
fn an_offset_outside_is_told_with_its_chunk_and_the_others_are_looked_at() {
    let (_dir, path) = with_offsets("chunks-3.b2frame", |entries| entries[1] = IndexEntry::Stored(ChunkOffset::new(1 << 40)));
    let found = kinds(&path, true);
    assert!(found.contains(&(DAMAGE, Kind::Offset, Some(1))), "{found:?}");
    assert!(found.iter().all(|(severity, _, position)| *severity == Severity::Note || *position == Some(1)), "{found:?}");
}

#[test]
fn an_offset_into_a_chunk_is_a_damaged_chunk() {
    let (_dir, path) = with_offsets("chunks-3.b2frame", |entries| {
        let IndexEntry::Stored(offset) = entries[1] else { panic!("a stored chunk") };
        entries[1] = IndexEntry::Stored(ChunkOffset::new(offset.bytes() + 1));
    });
    assert!(kinds(&path, false).contains(&(DAMAGE, Kind::Chunk, Some(1))));
}

#[test]
fn a_chunk_that_reaches_into_the_next() {
    let source = frame(&data("cframe/stored.b2frame"));
    let IndexEntry::Stored(offset) = source.entries[0] else { panic!("a stored chunk") };
    let at = u64::from(source.header.header_len()) as usize + offset.bytes() as usize;
    let (_dir, path) = damaged("stored.b2frame", |bytes| {
        // One chunk is a plain copy, where cbytes and nbytes go together.
        for field in [at + 4, at + 12] {
            let value = i32::from_le_bytes(bytes[field..field + 4].try_into().unwrap()) + 4;
            bytes[field..field + 4].copy_from_slice(&value.to_le_bytes());
        }
    });
    let found = kinds(&path, false);
    assert!(found.contains(&(DAMAGE, Kind::Overlap, Some(1))) && found.contains(&(DAMAGE, Kind::Size, Some(0))), "{found:?}");
}

#[test]
fn only_a_deep_look_sees_damaged_data() {
    let source = frame(&data("cframe/codec-zstd.b2frame"));
    let IndexEntry::Stored(offset) = source.entries[0] else { panic!("a stored chunk") };
    let at = u64::from(source.header.header_len()) as usize + offset.bytes() as usize;
    let (_dir, path) = damaged("codec-zstd.b2frame", |bytes| {
        // The mark of the first Zstd stream, behind the header, the starts of blocks and the stream's length.
        let start = i32::from_le_bytes(bytes[at + 32..at + 36].try_into().unwrap()) as usize;
        bytes[at + start + 4] ^= 0xff;
    });
    assert_eq!(kinds(&path, false), []);
    assert_eq!(kinds(&path, true), [(DAMAGE, Kind::Data, Some(0))]);
}

#[test]
fn a_chunk_that_needs_a_plugin_is_a_note() {
    let source = frame(&data("cframe/codec-lz4hc.b2frame"));
    let base = u64::from(source.header.header_len()) as usize;
    let (_dir, path) = damaged("codec-lz4hc.b2frame", |bytes| {
        for (n, entry) in source.entries.iter().filter_map(|entry| entry.stored()).enumerate() {
            let chunk = &mut bytes[base + entry.bytes() as usize..];
            if n == 0 {
                chunk[18] = 35;
            } else {
                (chunk[2], chunk[22]) = (chunk[2] & 0x1f | 6 << 5, 33);
            }
        }
    });
    assert_eq!(kinds(&path, false), []);
    let found = findings(&path, true).unwrap();
    assert!(found.iter().all(|finding| (finding.severity, finding.kind) == (Severity::Note, Kind::Plugin)), "{found:?}");
    let what: Vec<_> = found.iter().map(|finding| finding.what.as_str()).collect();
    let expected = [
        "1 chunk was not decoded: needed is bytedelta (35), a plugin filter",
        "4 chunks were not decoded: needed is zfp_acc (33), a plugin codec",
    ];
    assert_eq!(what, expected);
}

#[test]
fn a_vlmetalayer_that_is_no_chunk() {
    let source = frame(&data("cframe/metalayers.b2frame"));
    let layer = source.trailer.vlmetalayers().next().unwrap().content.to_vec();
    let (_dir, path) = damaged("metalayers.b2frame", |bytes| {
        let at = bytes.windows(layer.len()).rposition(|window| window == layer).unwrap();
        bytes[at + 12..at + 16].fill(0x7f);
    });
    assert_eq!(kinds(&path, false), [(DAMAGE, Kind::Vlmetalayer, None)]);
}

#[test]
fn files_missing_cut_strange_and_left_over() {
    let (_dir, path) = copied("codec-lz4.b2frame");
    assert_eq!(kinds(&path, true), []);
    std::fs::remove_file(path.join("00000000.chunk")).unwrap();
    let cut = std::fs::read(path.join("00000001.chunk")).unwrap();
    std::fs::write(path.join("00000001.chunk"), &cut[..cut.len() - 1]).unwrap();
    std::fs::write(path.join("00000002.chunk"), [0; 7]).unwrap();
    std::fs::remove_file(path.join("00000003.chunk")).unwrap();
    std::fs::create_dir(path.join("00000003.chunk")).unwrap();
    std::fs::write(path.join("00000004.chunk"), [std::fs::read(path.join("00000004.chunk")).unwrap(), vec![0; 3]].concat())
        .unwrap();
    std::fs::write(path.join("000000FF.chunk"), &cut).unwrap();
    std::fs::write(path.join("readme.txt"), b"x").unwrap();
    std::fs::write(path.join(".b2lock"), [0; 16]).unwrap();
    let expected = [
        (DAMAGE, Kind::Missing, Some(0)),
        (DAMAGE, Kind::Chunk, Some(1)),
        (DAMAGE, Kind::Chunk, Some(2)),
        (DAMAGE, Kind::Chunk, Some(3)),
        (Severity::Note, Kind::Hole, Some(4)),
        (Severity::Note, Kind::Orphan, None),
        (Severity::Note, Kind::Surplus, None),
    ];
    assert_eq!(kinds(&path, true), expected);
}

#[test]
fn whatever_one_byte_says_the_look_ends() {
    for name in ["chunks-3.b2frame", "metalayers.b2frame", "varying.b2frame", "vlblocks-varying.b2frame"] {
        let bytes = std::fs::read(data("cframe").join(name)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.b2frame");
        for at in (0..bytes.len()).step_by(3) {
            for value in [0, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                std::fs::write(&path, bytes).unwrap();
                let mut count = 0u32;
                // Damage or none: it says so, and comes to an end.
                let _ = check(&path, Depth { deep: true, threads: 1 }, &mut |_| count += 1, &mut |_, _| true);
            }
        }
    }
}

#[test]
fn every_special_entry_that_is_not_read_is_named() {
    let (_dir, path) = damaged("fill-nan.b2frame", |bytes| bytes[48..52].copy_from_slice(&2u32.to_be_bytes()));
    let all: Vec<_> = (0..21).map(|position| (DAMAGE, Kind::Misfit, Some(position))).collect();
    assert_eq!(kinds(&path, false), all);
}

#[test]
fn an_array_that_its_chunks_do_not_hold_is_damage() {
    let array = frame(&data("cframe/b2nd-int.b2nd")).header.as_bytes().windows(3).position(|at| at == [0x97, 0, 2]).unwrap();
    // The first size of the shape, of chunks and of blocks, and what is then wrong with the array itself.
    for (place, size, is_wrong) in [(12, 70, true), (27, 8, true), (27, 0, true), (38, 3, true), (12, 6, false)] {
        let (_dir, path) = damaged("b2nd-int.b2nd", |bytes| bytes[array + place] = size);
        let kinds = kinds(&path, false);
        assert_eq!(kinds.contains(&(DAMAGE, Kind::Header, None)), is_wrong, "{place}: {size}: {kinds:?}");
    }
}
