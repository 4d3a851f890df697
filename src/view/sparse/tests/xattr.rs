//! Extended attributes, and the library in the middle of its rounds when one is set.

use super::*;
use crate::format::metalayer::Metalayer;
use crate::view::SetMode;

const UNIT: &str = "user.b2frame.vlmeta.unit";
const INDEX: &str = "chunks.b2frame";

impl Mount {
    fn set(&self, ino: Ino, name: &str, value: Option<&[u8]>) -> i32 {
        errno(self.view().set_xattr(ino, OsStr::new(name), value, SetMode::Any, &mut Vec::new()))
    }

    fn get(&self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        self.view().xattr(ino, OsStr::new(name))
    }

    /// Opens the index file without truncating, writes, cuts if asked to, closes: a round of the library's.
    fn round(&self, offset: usize, bytes: &[u8], end: Option<usize>) {
        let (view, ino) = (self.view(), self.ino(INDEX).unwrap());
        let handle =
            view.open(ino, OpenMode { read: true, write: true, truncate: false, drop_privileges: false }).unwrap().handle;
        view.write(handle, offset as u64, bytes).unwrap();
        if let Some(end) = end {
            let set = SetAttr { size: Some(end as u64), ..SetAttr::default() };
            view.setattr(ino, Some(handle), set, &mut Vec::new()).unwrap();
        }
        let _ = view.flush(handle, &mut Vec::new());
        view.release(handle, &mut Vec::new());
    }
}

/// The index file with a chunk more, of id `id`, and those vlmetalayers.
fn with_chunk(file: &[u8], id: u32, layers: &[Metalayer<'_>]) -> IndexFile {
    let mut index = IndexFile::parse(file).unwrap();
    Arc::make_mut(&mut index.entries).push(IndexEntry::Stored(ChunkId(id)));
    index.header.set_nbytes(index.entries.len() as u64 * u64::from(CHUNKSIZE));
    index.trailer = Trailer::encode(layers).unwrap();
    index
}

#[test]
fn a_vlmetalayer_is_set_and_removed_on_directory_and_index_file() {
    let mut mount = Mount::of(&[full(1), zeros(), full(3)], CHUNKSIZE);
    let before = mount.read(INDEX);
    for (on, value) in [(ROOT, &b"\xa6kelvin"[..]), (mount.ino(INDEX).unwrap(), b""), (ROOT, &[7; 60_000])] {
        assert_eq!(mount.set(on, UNIT, Some(value)), 0);
        assert_eq!(mount.get(ROOT, UNIT).unwrap(), value);
        assert_eq!(mount.get(mount.ino(INDEX).unwrap(), UNIT).unwrap(), value);
        assert_eq!(IndexFile::parse(&mount.read(INDEX)).unwrap().trailer.vlmetalayers().len(), 1);
    }
    mount.unmount();
    mount.mount();
    assert_eq!(mount.get(ROOT, UNIT).unwrap(), [7; 60_000]);
    assert_eq!(mount.set(ROOT, UNIT, None), 0);
    assert!(mount.read(INDEX) == before, "as it was");
    assert_eq!(mount.set(ROOT, UNIT, None), libc::ENODATA);
    mount.sync();
    assert_eq!(mount.committed(), [full(1), zeros(), full(3)]);
}

#[test]
fn chunk_files_say_what_they_hold() {
    let repeated = {
        let mut bytes = chunk(9, CHUNKSIZE);
        bytes.truncate(33);
        bytes[2] = 0x05;
        bytes[12..16].copy_from_slice(&33u32.to_le_bytes());
        bytes[31] = 3 << 4;
        bytes
    };
    let mount = Mount::of(&[full(1), zeros(), Cell::Chunk(repeated.clone())], CHUNKSIZE);
    let (first, last) = (mount.ino("00000000.chunk").unwrap(), mount.ino("00000002.chunk").unwrap());
    let prefixed = |name| format!("user.b2frame.{name}");
    for (name, of_first, of_last) in
        [("position", "0", "2"), ("nbytes", "64", "64"), ("cbytes", "96", "33"), ("codec", "blosclz", "blosclz")]
    {
        assert_eq!(mount.get(first, &prefixed(name)).unwrap(), of_first.as_bytes(), "{name}");
        assert_eq!(mount.get(last, &prefixed(name)).unwrap(), of_last.as_bytes(), "{name}");
        assert_eq!(mount.set(first, &prefixed(name), Some(of_first.as_bytes())), 0, "as it is");
        assert_eq!(mount.set(first, &prefixed(name), Some(b"7")), libc::EOPNOTSUPP);
        assert_eq!(mount.set(first, &prefixed(name), None), libc::EOPNOTSUPP);
    }
    assert_eq!(errno(mount.get(first, &prefixed("special"))), libc::ENODATA);
    assert_eq!(mount.get(last, &prefixed("special")).unwrap(), b"value");
    assert!(!mount.view().xattrs(first).unwrap().windows(8).any(|part| part == b".special"));
    assert!(mount.view().xattrs(last).unwrap().ends_with(b"user.b2frame.special\0"));
    assert_eq!(mount.set(first, UNIT, Some(b"1")), libc::EOPNOTSUPP, "not of a chunk");
    // Where it has no place, and as a temporary file.
    mount.cp("00000009.chunk", &repeated).unwrap();
    let placeless = mount.ino("00000009.chunk").unwrap();
    assert_eq!(errno(mount.get(placeless, &prefixed("position"))), libc::ENODATA);
    assert_eq!(mount.get(placeless, &prefixed("special")).unwrap(), b"value");
    mount.cp(".temporary", &repeated).unwrap();
    let temporary = mount.ino(".temporary").unwrap();
    assert_eq!(mount.view().xattrs(temporary).unwrap(), b"");
    assert_eq!(mount.set(temporary, &prefixed("position"), Some(b"5")), 0, "taken, and not kept");
    assert_eq!(errno(mount.get(temporary, &prefixed("position"))), libc::ENODATA);
}

#[test]
fn an_attribute_between_the_librarys_rounds_is_refused_or_harmless() {
    for at in 0..=5 {
        let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
        let old = mount.read(INDEX);
        // An append, by somebody who knows of no attribute.
        let mut index = with_chunk(&old, 2, &[]);
        let new = index.make_file().unwrap();
        let head = index.header.as_bytes();
        let trailer = new.len() - index.trailer.as_bytes().len();
        let mut outcomes = Vec::new();
        for n in 0..=5 {
            if n == at {
                outcomes.push(mount.set(ROOT, UNIT, Some(&[9; 100])));
            }
            match n {
                0 => mount.cp("00000002.chunk", &chunk(3, CHUNKSIZE)).unwrap(),
                1 => mount.round(head.len(), &new[head.len()..trailer], None),
                2 => mount.round(0, head, None),
                3 => mount.round(trailer, &new[trailer..], Some(new.len())),
                4 => mount.round(16, &(new.len() as u64).to_be_bytes(), None),
                _ => {}
            }
        }
        // While a chunk file waits for the index to name it, and between the rounds.
        let expected = if (1..=3).contains(&at) { libc::EBUSY } else { 0 };
        assert_eq!(outcomes, [expected], "before {at}");
        let kept = mount.get(ROOT, UNIT).is_ok();
        assert_eq!(kept, at >= 4, "before {at}");
        mount.sync();
        assert_eq!(mount.committed(), [full(1), full(2), full(3)], "before {at}");
        let seen = IndexFile::parse(&mount.read(INDEX)).unwrap();
        assert_eq!(seen.trailer.vlmetalayers().len(), usize::from(kept));
        assert_eq!(seen.entries.len(), 3);
    }
}

#[test]
fn a_header_by_somebody_who_does_not_know_the_new_length_is_set_right() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let old = mount.read(INDEX);
    for (n, value) in [&[1; 10][..], &[2; 50], &[]].into_iter().enumerate() {
        assert_eq!(mount.set(ROOT, UNIT, Some(value)), 0);
        let seen = mount.read(INDEX);
        mount.round(16, &(old.len() as u64).to_be_bytes(), None);
        assert!(mount.read(INDEX) == seen, "after {n}");
    }
    // What is no former length is held, as ever.
    mount.round(16, &(old.len() as u64 + 1).to_be_bytes(), None);
    assert_eq!(mount.set(ROOT, UNIT, Some(b"x")), libc::EBUSY);
    assert_eq!(mount.get(ROOT, UNIT).unwrap(), b"");
}
