//! Other programs that write SOURCE.

use super::*;
use crate::store::Others;

/// What another program makes of SOURCE: into the same file, or by another that takes its place.
fn other(mount: &Mount, cells: &[Cell], in_place: bool) {
    let bytes = cframe(cells, CHUNKSIZE, CHUNKSIZE as i32);
    if in_place {
        return std::fs::write(mount.path(), bytes).unwrap();
    }
    let beside = mount.path().with_extension("beside");
    std::fs::write(&beside, bytes).unwrap();
    std::fs::rename(beside, mount.path()).unwrap();
}

fn follow(mount: &Mount) -> Vec<Invalidation> {
    let mut invalidations = Vec::new();
    mount.view().follow(&mut invalidations);
    invalidations
}

fn read_of(mount: &Mount, ino: Ino) -> Result<Vec<u8>> {
    let mut buf = vec![0; 200];
    let count = mount.view().read(ino, None, 0, &mut buf)?;
    buf.truncate(count);
    Ok(buf)
}

const READING: OpenMode = OpenMode { read: true, write: false, truncate: false, drop_privileges: false };
const WRITING: OpenMode = OpenMode { read: true, write: true, truncate: false, drop_privileges: false };

#[test]
fn what_is_opened_is_up_to_date_and_what_is_open_is_told() {
    for in_place in [true, false] {
        let mount = Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE);
        let old: Vec<Ino> = ["00000000.chunk", "00000002.chunk", "chunks.b2frame"].map(|name| mount.ino(name).unwrap()).into();
        let index = mount.read("chunks.b2frame");
        let handle = mount.view().open(old[0], WRITING).unwrap().handle;
        assert_eq!(read_of(&mount, old[0]).unwrap(), chunk(1, CHUNKSIZE));
        other(&mount, &[full(7), full(8)], in_place);
        // Nobody has looked yet; in a file that is still there the bytes may be.
        for (ino, expected) in [(old[0], chunk(1, CHUNKSIZE)), (old[1], chunk(3, CHUNKSIZE)), (old[2], index)] {
            match read_of(&mount, ino) {
                Ok(bytes) => assert!(bytes == expected, "bytes of another chunk"),
                Err(error) => assert_eq!(error.errno(), libc::ESTALE),
            }
        }
        // Who opens a file that the kernel knew is told to look its name up again.
        assert_eq!(errno(mount.view().open(old[0], READING)), libc::ESTALE);
        let now = mount.ino("00000000.chunk").unwrap();
        assert_ne!(now, old[0]);
        let opened = mount.view().open(now, READING).unwrap().handle;
        assert_eq!(mount.read("00000000.chunk"), chunk(7, CHUNKSIZE));
        assert_eq!(mount.names(), ["chunks.b2frame", "00000000.chunk", "00000001.chunk"]);
        for ino in old.iter().copied() {
            assert_eq!(errno(read_of(&mount, ino)), libc::ESTALE);
            match mount.view().getattr(ino) {
                Ok(last) => assert_eq!((last.ino, last.size, last.nlink), (old[0], chunk(1, CHUNKSIZE).len() as u64, 0)),
                Err(error) => assert!(ino != old[0] && error.errno() == libc::ESTALE, "what is open keeps its attributes"),
            }
        }
        let mut invalidations = Vec::new();
        assert_eq!(errno(mount.view().write(handle, 0, b"x")), libc::ESTALE);
        mount.view().flush(handle, &mut invalidations).unwrap();
        mount.view().release(handle, &mut invalidations);
        mount.view().release(opened, &mut invalidations);
        assert!(follow(&mount).contains(&Invalidation::Names), "the kernel is told");
        assert!(follow(&mount).is_empty(), "once");
        // And once more when whoever wrote must have written.
        let until = Instant::now() + Duration::from_secs(20);
        while !follow(&mount).contains(&Invalidation::Names) {
            assert!(Instant::now() < until, "what may be torn is forgotten");
            std::thread::yield_now();
        }
        assert!(follow(&mount).is_empty());
        // And it is written to as if it had always been there.
        mount.cp("00000001.chunk", &chunk(9, CHUNKSIZE)).unwrap();
        mount.cp("00000002.chunk", &chunk(5, CHUNKSIZE)).unwrap();
        mount.sync();
        assert_eq!(mount.committed(), [full(7), full(9), full(5)]);
        assert!(mount.view().shutdown().is_ok());
    }
}

#[test]
fn what_is_uncommitted_ends_reading_and_writing_and_is_saved() {
    for in_place in [true, false] {
        let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
        let chunk_ino = mount.ino("00000000.chunk").unwrap();
        // It fits nowhere, so it waits.
        mount.cp("00000FFF.chunk", &chunk(3, CHUNKSIZE)).unwrap();
        let lost = mount.ino("00000FFF.chunk").unwrap();
        // Somebody is in the middle of another.
        let begun =
            mount.view().open(mount.ino("00000001.chunk").unwrap(), OpenMode { truncate: true, ..WRITING }).unwrap().handle;
        mount.view().write(begun, 0, b"half a chunk").unwrap();
        other(&mount, &[full(7), full(8), full(9), full(10)], in_place);
        assert_eq!(follow(&mount), [Invalidation::All]);
        for ino in [chunk_ino, lost, mount.ino("chunks.b2frame").unwrap()] {
            assert_eq!(errno(read_of(&mount, ino)), libc::ESTALE);
            assert_eq!(errno(mount.view().open(ino, READING)), libc::ESTALE);
        }
        assert_eq!(errno(mount.cp("00000000.chunk", &chunk(5, CHUNKSIZE))), libc::ESTALE);
        assert_eq!(errno(mount.cp("00000005.chunk", &chunk(5, CHUNKSIZE))), libc::ESTALE);
        assert_eq!(errno(mount.view().write(begun, 12, b"and more")), libc::ESTALE);
        assert_eq!(errno(mount.view().fsync(ROOT, &mut Vec::new())), libc::ESTALE);
        assert_eq!(errno(mount.rm("00000000.chunk")), libc::ESTALE);
        assert_eq!(errno(mount.mv("00000FFF.chunk", ".x")), libc::ESTALE);
        assert!(follow(&mount).is_empty());
        assert_eq!(errno(mount.view().shutdown()), libc::ESTALE);
        let saved = mount.path().with_file_name("f.b2frame.lost");
        assert_eq!(std::fs::read(saved.join("00000FFF.chunk")).unwrap(), chunk(3, CHUNKSIZE));
        assert_eq!(std::fs::read(saved.join("00000001.chunk")).unwrap(), b"half a chunk");
        assert_eq!(mount.committed(), [full(7), full(8), full(9), full(10)]);
    }
}

#[test]
fn without_a_frame_of_its_name_what_is_open_is_shown_and_not_written_to() {
    type Deed = fn(&std::path::Path);
    let nothing: Deed = |_| {};
    let link: Deed = |path| std::os::unix::fs::symlink("away.b2frame", path).unwrap();
    let directory: Deed = |path| std::fs::create_dir(path).unwrap();
    let text: Deed = |path| std::fs::write(path, "no frame").unwrap();
    for deed in [nothing, link, directory, text] {
        let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
        let ino = mount.ino("00000000.chunk").unwrap();
        let away = mount.path().with_file_name("away.b2frame");
        std::fs::rename(mount.path(), &away).unwrap();
        deed(&mount.path());
        for _ in 0..3 {
            assert!(!follow(&mount).contains(&Invalidation::Names));
            assert_eq!(mount.read("00000001.chunk"), chunk(2, CHUNKSIZE));
            mount.view().open(ino, READING).unwrap();
        }
        assert_eq!(errno(mount.cp("00000000.chunk", &chunk(5, CHUNKSIZE))), libc::ESTALE);
        assert_eq!(errno(mount.rm("00000000.chunk")), libc::ESTALE);
        assert_eq!(mount.read("00000000.chunk"), chunk(1, CHUNKSIZE));
        let _ = std::fs::remove_file(mount.path()).or_else(|_| std::fs::remove_dir(mount.path()));
        std::fs::rename(away, mount.path()).unwrap();
        follow(&mount);
        mount.cp("00000000.chunk", &chunk(5, CHUNKSIZE)).unwrap();
        mount.sync();
        assert_eq!(mount.committed(), [full(5), full(2)]);
        mount.view().shutdown().unwrap();
    }
}

#[test]
fn temporary_files_stay_and_removed_ones_are_gone() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    mount.cp(".new", &chunk(4, CHUNKSIZE)).unwrap();
    mount.cp("00000002.chunk", &chunk(3, CHUNKSIZE)).unwrap();
    mount.sync();
    let removed = mount.ino("00000002.chunk").unwrap();
    let handle = mount.view().open(removed, READING).unwrap().handle;
    mount.rm("00000002.chunk").unwrap();
    mount.sync();
    assert_eq!(read_of(&mount, removed).unwrap(), chunk(3, CHUNKSIZE));
    other(&mount, &[full(7), full(8)], true);
    follow(&mount);
    assert_eq!(errno(read_of(&mount, removed)), libc::ESTALE, "not an empty file");
    mount.view().release(handle, &mut Vec::new());
    assert_eq!(mount.read(".new"), chunk(4, CHUNKSIZE));
    mount.mv(".new", "00000001.chunk").unwrap();
    mount.sync();
    assert_eq!(mount.committed(), [full(7), full(4)]);
    mount.view().shutdown().unwrap();
}

#[test]
fn other_attributes_are_taken_over_where_nobody_has_set_any() {
    use std::os::unix::fs::PermissionsExt;
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let (one, two) = (mount.ino("00000000.chunk").unwrap(), mount.ino("00000001.chunk").unwrap());
    let set = SetAttr { mode: Some(0o400), ..SetAttr::default() };
    mount.view().setattr(two, None, set, &mut Vec::new()).unwrap();
    mount.cp("00000FFF.chunk", &chunk(3, CHUNKSIZE)).unwrap();
    std::fs::set_permissions(mount.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(
        follow(&mount).iter().all(|inval| matches!(inval, Invalidation::Attr(_) | Invalidation::AttrWithin(..))),
        "pages stay"
    );
    let perm = |ino| mount.view().getattr(ino).unwrap().meta.mode;
    assert_eq!((perm(one), perm(two), perm(ROOT)), (0o640, 0o400, 0o750));
    assert_eq!(mount.ino("00000000.chunk").unwrap(), one);
    assert_eq!(mount.view().store.look().unwrap(), Others::Nothing);
    assert_eq!(read_of(&mount, one).unwrap(), chunk(1, CHUNKSIZE), "nothing is refused because of it");
}

#[test]
fn a_read_only_view_follows_and_says_when_it_is_not_shown_yet() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    mount.unmount();
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let store = CframeStore::open(&mount.path(), options).unwrap();
    mount.view = Some(SparseView::new(Arc::new(store), true).unwrap());
    let old = mount.ino("00000000.chunk").unwrap();
    assert_eq!(mount.view().tick(Instant::now(), &mut Vec::new()), None, "nothing is to be done now and then");
    let bytes = cframe(&[full(7), full(8)], CHUNKSIZE, CHUNKSIZE as i32);
    // In the middle of a change.
    std::fs::write(mount.path(), &bytes[..bytes.len() / 2]).unwrap();
    let mut invalidations = Vec::new();
    assert!(mount.view().follow(&mut invalidations).is_some(), "it is tried again soon");
    assert!(invalidations.is_empty());
    assert_eq!(errno(read_of(&mount, old)), libc::ESTALE);
    std::fs::write(mount.path(), &bytes).unwrap();
    assert!(follow(&mount).contains(&Invalidation::Names));
    assert_eq!(mount.read("00000000.chunk"), chunk(7, CHUNKSIZE));
    assert_eq!(errno(mount.view().getattr(old)), libc::ESTALE);
}

#[test]
fn a_chunk_that_lies_is_shown_once_it_does_not() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let mut bytes = cframe(&[full(7), full(8)], CHUNKSIZE, CHUNKSIZE as i32);
    let at = bytes.windows(4).rposition(|part| part == chunk(8, CHUNKSIZE)[12..16].to_vec()).unwrap();
    bytes[at + 3] = 0x7f; // cbytes of a chunk's header
    std::fs::write(mount.path(), &bytes).unwrap();
    assert!(!follow(&mount).contains(&Invalidation::Names));
    assert!(read_of(&mount, mount.ino("00000000.chunk").unwrap()).is_err());
    assert_eq!(errno(mount.cp("00000000.chunk", &chunk(5, CHUNKSIZE))), libc::ESTALE);
    assert!(!follow(&mount).contains(&Invalidation::Names), "nor when nothing has changed since");
    other(&mount, &[full(7), full(8)], true);
    assert!(follow(&mount).contains(&Invalidation::Names));
    assert_eq!(mount.read("00000001.chunk"), chunk(8, CHUNKSIZE));
}

#[test]
fn an_index_that_could_not_be_held_against_the_chunks_is_saved() {
    for in_place in [true, false] {
        let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
        let handle =
            mount.view().open(mount.ino("chunks.b2frame").unwrap(), OpenMode { truncate: true, ..WRITING }).unwrap().handle;
        // With another chunksize, so that every chunk is to be looked at, of which SOURCE has none any more.
        let header = header(Layout::Sparse, 2 * u64::from(CHUNKSIZE), 0, 1 << 20, CHUNKSIZE as i32 + 1);
        let entries = Arc::new(vec![id(1), id(0)]);
        let bytes = IndexFile { header, trailer: Trailer::encode(&[]).unwrap(), entries }.make_file().unwrap();
        mount.view().write(handle, 0, &bytes).unwrap();
        std::fs::write(mount.path(), "short").unwrap();
        assert!(mount.view().flush(handle, &mut Vec::new()).is_err());
        mount.view().release(handle, &mut Vec::new());
        other(&mount, &[full(7), full(8), full(9)], in_place);
        follow(&mount);
        assert_eq!(errno(mount.view().shutdown()), libc::ESTALE);
        let saved = mount.path().with_file_name("f.b2frame.lost");
        assert!(std::fs::read(saved.join("chunks.b2frame")).unwrap() == bytes);
        assert_eq!(mount.committed(), [full(7), full(8), full(9)]);
    }
}

#[test]
fn attributes_that_others_set_are_shown_but_not_the_time_of_our_own_commits() {
    use std::os::unix::fs::PermissionsExt;
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let before = mount.view().getattr(mount.ino("00000000.chunk").unwrap()).unwrap();
    let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    mount.view().setattr(mount.ino("00000001.chunk").unwrap(), None, set, &mut Vec::new()).unwrap();
    mount.cp("00000001.chunk", &chunk(9, CHUNKSIZE)).unwrap();
    mount.sync();
    std::fs::set_permissions(mount.path(), std::fs::Permissions::from_mode(0o604)).unwrap();
    assert!(follow(&mount).contains(&Invalidation::Attr(ROOT)));
    let after = mount.view().getattr(before.ino).unwrap();
    assert_eq!((after.meta.mode, after.meta.mtime), (0o604, before.meta.mtime));
    let written = mount.view().getattr(mount.ino("00000001.chunk").unwrap()).unwrap();
    assert_eq!(written.meta.mode, 0o640, "a client has set another");
}
