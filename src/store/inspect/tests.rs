//! What is read of sound frames, and of damaged ones.

use std::ffi::CString;

use super::*;
use crate::format::chunk::Decoder;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

type Told = Vec<(Position, IndexEntry<ChunkPlace>, Option<std::result::Result<Seen, Finding>>)>;

fn told(inspection: &Inspection, threads: usize) -> Told {
    let mut told = Vec::new();
    let read = inspection.chunks(threads, &mut |position, entry, seen| {
        told.push((position, entry, seen));
        true
    });
    read.unwrap();
    told
}

fn content(inspection: &Inspection) -> Vec<u8> {
    let mut decoder = Decoder::default();
    let chunk = |position| inspection.read_chunk(Position(position)).unwrap();
    (0..inspection.nchunks().unwrap()).flat_map(|position| decoder.decode(&chunk(position), 1 << 20).unwrap()).collect()
}

#[test]
fn every_frame_of_the_library_is_read_whole() {
    for layout in ["cframe", "sframe"] {
        for entry in std::fs::read_dir(data(layout)).unwrap() {
            let path = entry.unwrap().path();
            let inspection = Inspection::open(&path).unwrap();
            assert_eq!(inspection.findings(), [], "{}", path.display());
            assert_eq!(inspection.layout() == Layout::Sparse, path.is_dir());
            let told = told(&inspection, 3);
            assert_eq!(told, self::told(&inspection, 1));
            assert!(told.iter().map(|(position, ..)| position.0).eq(0..inspection.nchunks().unwrap()));
            assert!(told.iter().map(|(_, entry, _)| *entry).eq(inspection.entries()));
            let varying = inspection.header().chunksize() == 0;
            let mut nbytes = 0;
            for (position, entry, seen) in told {
                let Some(seen) = seen else {
                    let made = ChunkHeader::parse(&inspection.read_chunk(position).unwrap()).unwrap();
                    assert_eq!(entry, IndexEntry::Special(made.special.unwrap()));
                    assert_eq!(inspection.special_nbytes(position), Some(made.nbytes));
                    nbytes += u64::from(made.nbytes);
                    continue;
                };
                let seen = seen.unwrap();
                assert_eq!(inspection.read_chunk(position).unwrap().len() as u64, u64::from(seen.header.cbytes));
                assert!(inspection.layout() == Layout::Contiguous || seen.room == u64::from(seen.header.cbytes));
                assert!(!varying || inspection.special_nbytes(position).is_none());
                nbytes += u64::from(seen.header.nbytes);
            }
            assert_eq!(nbytes, inspection.header().nbytes(), "{}", path.display());
            let other = data(if layout == "cframe" { "sframe" } else { "cframe" }).join(path.file_name().unwrap());
            if other.exists() && nbytes < 1 << 20 {
                assert_eq!(content(&inspection), content(&Inspection::open(&other).unwrap()), "{}", path.display());
            }
        }
    }
}

#[test]
fn special_entries_become_chunks_that_decode() {
    let inspection = Inspection::open(&data("cframe/fill-nan.b2frame")).unwrap();
    let last = Position(inspection.nchunks().unwrap() - 1);
    let left = inspection.header().nbytes() - last.0 * u64::from(inspection.header().chunksize());
    let bytes = chunk::decode(&inspection.read_chunk(last).unwrap(), 1 << 20).unwrap();
    assert_eq!(bytes.len() as u64, left);
    assert!(bytes.chunks(4).all(|item| f32::from_le_bytes(item.try_into().unwrap()).is_nan()));
}

#[test]
fn room_that_nothing_uses() {
    let unused = |name: &str| {
        let inspection = Inspection::open(&data(name)).unwrap();
        let mut extents = inspection.extents()?;
        for (position, entry, seen) in told(&inspection, 1) {
            let (Some(ChunkPlace::Offset(offset)), Some(Ok(seen))) = (entry.stored(), seen) else { continue };
            extents.add(offset, seen.header.cbytes, position);
        }
        Some(extents.unused(&mut |_, what| panic!("{what}")))
    };
    assert_eq!(unused("cframe/chunks-3.b2frame"), Some(Unused::default()));
    assert!(unused("cframe/holes.b2frame").unwrap().bytes > 0);
    assert_eq!(unused("sframe/chunks-1.b2frame"), None);
}

#[test]
fn whoever_has_seen_enough_can_stop() {
    let inspection = Inspection::open(&data("cframe/chunks-2500.b2frame")).unwrap();
    let mut count = 0;
    let read = inspection.chunks(2, &mut |_, _, _| {
        count += 1;
        count < 7
    });
    read.unwrap();
    assert_eq!(count, 7);
}

#[test]
fn a_damaged_frame_shows_what_is_left_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.b2frame");
    let bytes = std::fs::read(data("cframe/metalayers.b2frame")).unwrap();
    // Without its trailer.
    std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    let inspection = Inspection::open(&path).unwrap();
    assert!(inspection.trailer().is_none() && inspection.header().metalayers().len() > 0);
    assert!(told(&inspection, 1).iter().all(|(.., seen)| matches!(seen, None | Some(Ok(_)))));
    let kinds: Vec<_> = inspection.findings().iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::FrameLen, Kind::Trailer]);
    // With half its bytes.
    std::fs::write(&path, &bytes[..inspection.header().header_len() as usize + 20]).unwrap();
    let inspection = Inspection::open(&path).unwrap();
    assert_eq!((inspection.nchunks(), told(&inspection, 1).len()), (None, 0));
    let error = inspection.read_chunk(Position(0)).unwrap_err().to_string();
    assert!(error.ends_with("chunk 0: cannot be found: the frame has no index that can be read"), "{error}");
    // With less than a header.
    std::fs::write(&path, &bytes[..80]).unwrap();
    assert!(matches!(Inspection::open(&path), Err(StoreError::Format { .. })));
}

#[test]
fn chunks_that_cannot_be_read_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(data("sframe/codec-lz4.b2frame")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    std::fs::remove_file(dir.path().join("00000001.chunk")).unwrap();
    let inspection = Inspection::open(dir.path()).unwrap();
    let bad: Vec<_> = told(&inspection, 2).into_iter().filter_map(|(position, _, seen)| Some((position, seen?.err()?))).collect();
    let [(Position(1), finding)] = bad.as_slice() else { panic!("{bad:?}") };
    assert_eq!((finding.kind, finding.what.as_str()), (Kind::Missing, "00000001.chunk: is not there"));
    let error = |position| inspection.read_chunk(Position(position)).unwrap_err().to_string();
    assert!(error(1).ends_with(": chunk 1: 00000001.chunk: is not there"), "{}", error(1));
    assert!(error(5).ends_with(": chunk 5: is not there; the frame has 5, counted from 0"), "{}", error(5));
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    let name = CString::new(fifo.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: `name` ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    for path in [fifo.as_path(), Path::new("/dev/null")] {
        let error = Inspection::open(path).err().unwrap().to_string();
        assert!(error.ends_with("is no regular file; expected a Blosc2 frame"), "{error}");
    }
}
