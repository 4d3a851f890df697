//! Extended attributes, and the library in the middle of its rounds when one is set.

use super::library::{Library, Random, play, varied};
use super::*;
use crate::format::trailer::Trailer;
use crate::view::SetMode;

fn set(mount: &Mount, name: &str, value: Option<&[u8]>) -> i32 {
    let ino = mount.ino(NAME).unwrap();
    errno(mount.view().set_xattr(ino, OsStr::new(name), value, SetMode::Any, &mut Vec::new()))
}

fn get(mount: &Mount, name: &str) -> Result<Vec<u8>> {
    mount.view().xattr(mount.ino(NAME).unwrap(), OsStr::new(name))
}

const UNIT: &str = "user.b2frame.vlmeta.unit";

#[test]
fn a_vlmetalayer_is_set_and_removed_and_nothing_else_moves() {
    for layout in [Layout::Sparse, Layout::Contiguous] {
        let mut mount = Mount::over(layout, &cframe(&[full(1), zeros(), full(3)], CHUNKSIZE, CHUNKSIZE as i32));
        let before = mount.read(NAME);
        assert_eq!(errno(get(&mount, UNIT)), libc::ENODATA);
        mount.since();
        for value in [&b"\xa6kelvin"[..], b"", &[7; 60_000]] {
            assert_eq!(set(&mount, UNIT, Some(value)), 0);
            assert_eq!(get(&mount, UNIT).unwrap(), value);
            let tail = before.len() - Trailer::encode(&[]).unwrap().as_bytes().len();
            let seen = mount.read(NAME);
            assert_eq!(seen[24..68], before[24..68]);
            assert_eq!(seen[69..tail], before[69..tail]);
            mount.sync();
            assert_eq!(get(&Mount::of_bytes(&seen), UNIT).unwrap(), value, "what is shown is that frame");
        }
        assert_eq!(mount.since(), (0, 3), "no chunk is written");
        mount.unmount().unwrap();
        mount.mount(false);
        // SOURCE has the longer end at another place.
        let shown = |mount: &Mount| if layout == Layout::Sparse { before.clone() } else { std::fs::read(mount.path()).unwrap() };
        assert_eq!(get(&mount, UNIT).unwrap(), [7; 60_000]);
        assert_eq!(set(&mount, UNIT, None), 0);
        assert!(layout == Layout::Contiguous || mount.read(NAME) == before, "as it was");
        assert_eq!(set(&mount, UNIT, None), libc::ENODATA);
        mount.unmount().unwrap();
        mount.mount(true);
        assert!(mount.read(NAME) == shown(&mount));
        assert_eq!(set(&mount, UNIT, Some(b"")), libc::EROFS);
    }
}

#[test]
fn what_the_kernel_must_forget_is_the_header_and_the_end() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let (ino, before, mut invalidations) = (mount.ino(NAME).unwrap(), mount.read(NAME), Vec::new());
    mount.view().set_xattr(ino, OsStr::new(UNIT), Some(b"1"), SetMode::Any, &mut invalidations).unwrap();
    let seen = mount.read(NAME);
    let told = |at: usize| {
        invalidations.iter().any(|inval| match inval {
            Invalidation::Range(_, start, len) => (*start..start + len).contains(&(at as u64)),
            _ => false,
        })
    };
    assert!(invalidations.contains(&Invalidation::Attr(ino)));
    for (at, byte) in seen.iter().enumerate().filter(|(at, byte)| before.get(*at) != Some(*byte)) {
        assert!(told(at), "byte {at}, now {byte}");
    }
}

#[test]
fn an_attribute_between_the_librarys_rounds_is_refused_or_harmless() {
    let mut random = Random(0x5555_1234_1abc_def1);
    let (mut taken, mut refused, mut kept) = (0, 0, 0);
    for case in 0..240 {
        let cells: Vec<Cell> = (0..random.next(10)).map(|_| varied(random.next(1 << 20))).collect();
        let mut library = Library::new(&cells, [0, 0, 90, 700][case % 4]);
        let mount = Mount::over([Layout::Sparse, Layout::Contiguous][case / 4 % 2], &library.file);
        let op = random.op(cells.len());
        let rounds = library.rounds(&op);
        let at = random.next(rounds.len() as u64 + 1) as usize;
        let value = vec![9; random.next(300) as usize];
        for n in 0..=rounds.len() {
            if n == at {
                match set(&mount, UNIT, Some(&value)) {
                    0 => taken += 1,
                    libc::EBUSY => refused += 1,
                    other => panic!("case {case}, {op:?} before round {n}: {other}"),
                }
            }
            if let Some(round) = rounds.get(n) {
                play(&mount, round);
            }
        }
        let seen = mount.read(NAME);
        mount.view().publish().unwrap();
        assert_eq!(mount.committed(), library.cells, "case {case}, {op:?} before round {at}");
        assert_eq!(Mount::of_bytes(&seen).committed(), library.cells, "case {case}, {op:?}: what is shown is a frame");
        kept += usize::from(get(&mount, UNIT).is_ok_and(|now| now == value));
    }
    assert!(taken > 80 && refused > 40 && kept > 40, "{taken} taken, {refused} refused, {kept} kept to the end");
}

#[test]
fn while_the_file_is_written_from_nothing_any_attribute_is_taken_and_none_kept() {
    let mount = Mount::of(&[full(1)], CHUNKSIZE);
    let new = cframe(&[full(5), full(6)], CHUNKSIZE, CHUNKSIZE as i32);
    let handle = mount.open(NAME, true).unwrap();
    mount.view().write(handle, 0, &new).unwrap();
    for name in [UNIT, "user.b2nd.shape", "user.else"] {
        assert_eq!(set(&mount, name, Some(b"x")), 0, "{name}");
    }
    mount.close(handle).unwrap();
    assert_eq!(errno(get(&mount, UNIT)), libc::ENODATA);
    assert_eq!(mount.committed(), [full(5), full(6)]);
    for (name, now) in [("user.b2nd.shape", libc::EOPNOTSUPP), ("user.else", libc::EOPNOTSUPP)] {
        assert_eq!(set(&mount, name, Some(b"x")), now, "{name}");
    }
    assert_eq!(set(&mount, "user.b2frame.layout", Some(b"contiguous")), 0, "as it is");
    // A write over a part of it: what it will be is not known.
    let handle = mount.open(NAME, false).unwrap();
    mount.view().write(handle, 100, b"xyz").unwrap();
    assert_eq!(set(&mount, UNIT, Some(b"x")), libc::EBUSY);
    assert_eq!(set(&mount, "user.b2frame.layout", Some(b"contiguous")), 0);
    let _ = mount.close(handle);
}
