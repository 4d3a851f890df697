//! A SOURCE that is one file: its own bytes at their own offsets.

use super::*;
use crate::format::header::FrameHeader;
use crate::format::trailer::Trailer;
use crate::format::{ChunkOffset, IndexEntry, index};
use crate::view::SetMode;

const BASE: usize = 97;
const READING: OpenMode = OpenMode { read: true, write: false, truncate: false, drop_privileges: false };

/// A cframe whose file has the parts in this order: a chunk of its own by its place in the index, or a gap of so many bytes.
#[derive(Clone, Copy)]
enum Part {
    Chunk(usize),
    Gap(usize),
}
use Part::{Chunk, Gap};

fn laid_out(cells: &[Cell], parts: &[Part]) -> Vec<u8> {
    let packed = cframe(cells, CHUNKSIZE, CHUNKSIZE as i32);
    let mut header = FrameHeader::parse(&packed[..FrameHeader::announced_len(&packed).unwrap() as usize]).unwrap();
    let mut chunks = Vec::new();
    let mut places = vec![0; cells.len()];
    for part in parts {
        match part {
            Chunk(n) => {
                places[*n] = chunks.len() as u64;
                let Cell::Chunk(bytes) = &cells[*n] else { panic!("no chunk") };
                chunks.extend_from_slice(bytes);
            }
            // Something that a reader would notice.
            Gap(len) => chunks.extend((0..*len).map(|n| (n % 250) as u8 + 1)),
        }
    }
    let entries = cells.iter().zip(&places).map(|(cell, place)| match cell {
        Cell::Special(special) => IndexEntry::Special(*special),
        Cell::Chunk(_) => IndexEntry::Stored(ChunkOffset::new(*place)),
    });
    let mut tail = index::encode(entries.collect::<Vec<_>>().into_iter()).unwrap();
    tail.extend_from_slice(Trailer::encode(&[]).unwrap().as_bytes());
    header.set_cbytes(chunks.len() as u64);
    header.set_frame_len((header.as_bytes().len() + chunks.len() + tail.len()) as u64);
    [header.as_bytes(), &chunks, &tail].concat()
}

fn cells() -> [Cell; 4] {
    [full(1), full(2), zeros(), full(4)]
}

/// Frames with gaps at the beginning, in the middle and at the end, and with chunks in another order than the index has.
fn with_gaps() -> Vec<Vec<u8>> {
    let parts: [&[Part]; 6] = [
        &[Gap(5), Chunk(0), Chunk(1), Chunk(3)],
        &[Chunk(0), Gap(300), Chunk(1), Gap(1), Chunk(3)],
        &[Chunk(0), Chunk(1), Chunk(3), Gap(77)],
        &[Chunk(3), Chunk(0), Chunk(1)],
        &[Gap(96), Chunk(3), Gap(96), Chunk(1), Gap(96), Chunk(0), Gap(96)],
        &[Gap(10_000), Chunk(1), Chunk(0), Gap(5000), Chunk(3), Gap(70_000)],
    ];
    let mut frames: Vec<_> = parts.iter().map(|parts| laid_out(&cells(), parts)).collect();
    frames.push(laid_out(&[zeros(), zeros()], &[Gap(200)]));
    frames
}

fn read_of(view: &ContiguousView, ino: Ino, handle: Option<Handle>) -> Result<Vec<u8>> {
    let mut buf = vec![0; 100_000];
    let count = view.read(ino, handle, 0, &mut buf)?;
    buf.truncate(count);
    Ok(buf)
}

/// The same bytes, with zeros in the gaps, each by its place and length.
fn cleared(frame: &[u8], gaps: &[(usize, usize)]) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    gaps.iter().for_each(|(start, len)| bytes[*start..][..*len].fill(0));
    bytes
}

#[test]
fn a_file_with_gaps_is_shown_as_it_is() {
    for (n, frame) in with_gaps().into_iter().enumerate() {
        let mut mount = Mount::over(Layout::Contiguous, &frame);
        for read_only in [false, true] {
            assert!(mount.read(NAME) == frame, "frame {n}");
            let ino = mount.ino(NAME).unwrap();
            for (n, from) in (0..frame.len() + 20).step_by(frame.len() / 50).enumerate() {
                let mut buf = vec![7; [1, 31, 64, 100, 500, 5000][n % 6]];
                let count = mount.view().read(ino, None, from as u64, &mut buf).unwrap();
                let expected = frame.get(from..).unwrap_or_default();
                assert!(buf[..count] == expected[..buf.len().min(expected.len())]);
            }
            assert_eq!(mount.since(), (0, 0));
            mount.unmount().unwrap();
            assert!(std::fs::read(mount.path()).unwrap() == frame, "nothing was changed");
            mount.mount(read_only);
        }
    }
}

/// As after a write that was interrupted, or by another program: bytes behind the frame's end are no part of it.
#[test]
fn bytes_behind_the_frame_are_not_shown() {
    let frame = laid_out(&cells(), &[Gap(5), Chunk(0), Chunk(1), Chunk(3)]);
    let mount = Mount::over(Layout::Contiguous, &[&frame[..], b"behind"].concat());
    assert!(mount.read(NAME) == frame);
}

#[test]
fn chunks_that_overlap_are_shown_one_after_the_other() {
    let packed = cframe(&[full(1), full(1), full(3)], CHUNKSIZE, CHUNKSIZE as i32);
    // The first two entries name one chunk.
    let mut frame = packed[..BASE].to_vec();
    frame.extend_from_slice(&packed[BASE + 96..BASE + 288]);
    let entries = [0, 0, 96].map(|at| IndexEntry::Stored(ChunkOffset::new(at)));
    frame.extend(index::encode(entries.into_iter()).unwrap());
    frame.extend_from_slice(Trailer::encode(&[]).unwrap().as_bytes());
    let len = frame.len() as u64;
    frame[16..24].copy_from_slice(&len.to_be_bytes());
    let mut header = FrameHeader::parse(&frame[..BASE]).unwrap();
    header.set_cbytes(192);
    frame[..BASE].copy_from_slice(header.as_bytes());
    let mount = Mount::over(Layout::Contiguous, &frame);
    assert!(mount.read(NAME) == packed);
}

#[test]
fn a_change_keeps_offsets_and_length_and_clears_the_gaps() {
    for synced in [false, true] {
        let frame = laid_out(&cells(), &[Gap(96), Chunk(0), Gap(300), Chunk(1), Chunk(3), Gap(40)]);
        let gaps = [(BASE, 96), (BASE + 192, 300), (BASE + 684, 40)];
        let mut mount = Mount::over(Layout::Contiguous, &frame);
        let ino = mount.ino(NAME).unwrap();
        assert!(mount.read(NAME) == frame);
        mount.patch(BASE as u64 + 96, &chunk(9, CHUNKSIZE)).unwrap();
        let mut expected = cleared(&frame, &gaps);
        expected[BASE + 96..BASE + 192].copy_from_slice(&chunk(9, CHUNKSIZE));
        assert!(mount.read(NAME) == expected, "before it is taken");
        let told = if synced {
            let mut invalidations = Vec::new();
            mount.view().fsync(ino, &mut invalidations).unwrap();
            invalidations
        } else {
            mount.wait(2)
        };
        let ranges = gaps.map(|(start, len)| Invalidation::Range(ino, start as u64, len as u64));
        assert!(ranges.iter().all(|range| told.contains(range)), "{told:?}");
        assert_eq!(mount.committed(), [full(9), full(2), zeros(), full(4)]);
        assert!(mount.read(NAME) == expected, "the commit is not seen");
        mount.sync();
        assert!(mount.read(NAME) == expected);
        // What is told once is not told again.
        mount.patch(BASE as u64 + 96, &chunk(8, CHUNKSIZE)).unwrap();
        assert_eq!(mount.wait(2), []);
        mount.unmount().unwrap();
        mount.mount(false);
        assert!(mount.read(NAME) == std::fs::read(mount.path()).unwrap());
    }
}

#[test]
fn what_is_refused_leaves_zeros_and_the_kernel_is_told() {
    let frame = laid_out(&cells(), &[Gap(96), Chunk(0), Chunk(1), Chunk(3)]);
    let mount = Mount::over(Layout::Contiguous, &frame);
    let ino = mount.ino(NAME).unwrap();
    assert_eq!(errno(mount.cp(NAME, b"no frame")), libc::EINVAL);
    assert!(mount.read(NAME) == cleared(&frame, &[(BASE, 96)]));
    assert_eq!(mount.since(), (0, 0));
    // Nothing was written, but SOURCE's bytes are not shown any more.
    mount.patch(BASE as u64 + 96, &chunk(9, CHUNKSIZE)).unwrap();
    assert!(mount.wait(2).contains(&Invalidation::Range(ino, BASE as u64, 96)));
}

/// A chunk that is only in a gap, where new ones are stored.
#[test]
fn a_chunk_that_equals_a_gap_is_stored() {
    let mut frame = laid_out(&cells(), &[Chunk(0), Gap(96), Chunk(1), Chunk(3)]);
    frame[BASE + 96..BASE + 192].copy_from_slice(&chunk(7, CHUNKSIZE));
    let mut mount = Mount::over(Layout::Contiguous, &frame);
    let new = cframe(&[full(6), full(7), full(5), full(7), full(8)], CHUNKSIZE, CHUNKSIZE as i32);
    let handle = mount.open(NAME, false).unwrap();
    let view = mount.view();
    view.write(handle, 0, &new).unwrap();
    let set = SetAttr { size: Some(new.len() as u64), ..SetAttr::default() };
    view.setattr(mount.ino(NAME).unwrap(), Some(handle), set, &mut Vec::new()).unwrap();
    mount.close(handle).unwrap();
    mount.sync();
    assert!(mount.read(NAME) == new);
    mount.unmount().unwrap();
    assert_eq!(mount.committed(), [full(6), full(7), full(5), full(7), full(8)]);
}

#[test]
fn a_removed_file_reads_its_gaps_as_zeros_while_others_are_written() {
    let frame = laid_out(&cells(), &[Gap(96), Chunk(0), Gap(300), Chunk(1), Chunk(3)]);
    let mount = Mount::over(Layout::Contiguous, &frame);
    let (old, gaps) = (mount.ino(NAME).unwrap(), [(BASE, 96), (BASE + 192, 300)]);
    let reader = mount.view().open(old, READING).unwrap().handle;
    mount.cp(".t", &cframe(&[full(5), full(6), full(7), full(8)], CHUNKSIZE, CHUNKSIZE as i32)).unwrap();
    mount.mv(".t", NAME).unwrap();
    mount.sync();
    assert!(read_of(mount.view(), old, Some(reader)).unwrap() == cleared(&frame, &gaps));
    mount.view().release(reader, &mut Vec::new());
    assert_eq!(mount.committed(), [full(5), full(6), full(7), full(8)]);
}

#[test]
fn an_attribute_moves_nothing_but_the_end() {
    let frame = laid_out(&cells(), &[Gap(96), Chunk(0), Gap(300), Chunk(1), Chunk(3)]);
    let mount = Mount::over(Layout::Contiguous, &frame);
    let set = |value| {
        let (ino, name) = (mount.ino(NAME).unwrap(), OsStr::new("user.b2frame.vlmeta.unit"));
        mount.view().set_xattr(ino, name, value, SetMode::Any, &mut Vec::new()).unwrap();
        mount.sync();
    };
    set(Some(&[7; 600][..]));
    let seen = mount.read(NAME);
    let end = BASE + 96 * 3 + 396;
    assert!(seen[BASE..end] == cleared(&frame, &[(BASE, 96), (BASE + 192, 300)])[BASE..end]);
    set(None);
    assert!(mount.read(NAME) == cleared(&frame, &[(BASE, 96), (BASE + 192, 300)]));
}

#[test]
fn what_others_make_of_source_is_shown_as_it_is() {
    for in_place in [false, true] {
        let frames = with_gaps();
        let mount = Mount::over(Layout::Contiguous, &frames[0]);
        for (before, frame) in frames.iter().zip(&frames[1..]) {
            let old = mount.ino(NAME).unwrap();
            assert!(mount.read(NAME) == *before);
            match in_place {
                true => std::fs::write(mount.path(), frame).unwrap(),
                false => {
                    let beside = mount.dir.path().join("beside");
                    std::fs::write(&beside, frame).unwrap();
                    std::fs::rename(beside, mount.path()).unwrap();
                }
            }
            match read_of(mount.view(), old, None) {
                Ok(bytes) => assert!(bytes == *before && !in_place, "a mixture"),
                Err(error) => assert_eq!(error.errno(), libc::ESTALE),
            }
            mount.view().follow(&mut Vec::new());
            assert_eq!(errno(read_of(mount.view(), old, None)), libc::ESTALE);
            assert!(mount.read(NAME) == *frame);
        }
        mount.view().shutdown().unwrap();
    }
}
