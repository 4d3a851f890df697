//! Names that tools use for a time, and names that go.

use super::*;

fn frame(fills: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let cells: Vec<Cell> = fills.into_iter().map(full).collect();
    cframe(&cells, CHUNKSIZE, CHUNKSIZE as i32)
}

fn names(mount: &Mount) -> Vec<String> {
    let mut names = Vec::new();
    let emit = &mut |entry: DirEntry<'_>| {
        names.push(entry.name.to_str().unwrap().to_owned());
        true
    };
    mount.view().readdir(ROOT, 0, emit).unwrap();
    names
}

#[test]
fn only_names_that_tools_use_can_be_made() {
    let mount = Mount::of(&[full(1)], CHUNKSIZE);
    for name in [".shown.b2frame.Xy12", "shown.b2frame.b2lock", "shown.b2frame~", "shown.b2frame.~1~"] {
        mount.cp(name, b"anything").unwrap();
        assert_eq!(mount.read(name), b"anything");
    }
    for name in ["other.b2frame", "shown.b2frame2", "shown.b2frame.b2lock2", "x~"] {
        assert_eq!(errno(mount.cp(name, b"anything")), libc::EPERM, "{name}");
    }
    assert_eq!(names(&mount).len(), 5);
    assert_eq!(mount.committed(), [full(1)]);
}

#[test]
fn a_temporary_file_takes_the_frames_place_and_readers_keep_theirs() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let (before, old) = (mount.read(NAME), mount.ino(NAME).unwrap());
    let reader = mount.view().open(old, OpenMode { read: true, ..OpenMode::default() }).unwrap().handle;
    let new = frame([1, 7]);
    mount.cp(".t", &new).unwrap();
    let temporary = mount.ino(".t").unwrap();
    mount.since();
    mount.mv(".t", NAME).unwrap();
    assert_eq!(mount.since(), (1, 1), "the chunk that is the same is not written");
    assert_eq!((names(&mount), mount.ino(NAME).unwrap()), (vec![NAME.to_owned()], temporary));
    assert!(mount.read(NAME) == new);
    mount.cp(NAME, &frame([8, 9])).unwrap();
    mount.sync();
    let mut bytes = vec![0; before.len()];
    assert_eq!(mount.view().read(old, Some(reader), 0, &mut bytes).unwrap(), before.len());
    assert!(bytes == before, "who had it open reads what it was");
    mount.view().release(reader, &mut Vec::new());
    mount.view().forget(old, 1, true);
    assert_eq!(errno(mount.view().getattr(old)), libc::ESTALE);
    mount.unmount().unwrap();
    assert_eq!(mount.committed(), [full(8), full(9)]);
    assert_eq!(std::fs::read_dir(mount.path()).unwrap().count(), 3);
}

#[test]
fn a_temporary_file_that_is_no_frame_keeps_its_name() {
    let mount = Mount::of(&[full(1)], CHUNKSIZE);
    let before = mount.read(NAME);
    mount.cp(".t", b"no frame").unwrap();
    assert_eq!(errno(mount.mv(".t", NAME)), libc::EINVAL);
    assert!(mount.read(NAME) == before && mount.read(".t") == b"no frame");
}

#[test]
fn a_backup_is_what_the_frame_was_and_can_come_back() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let before = mount.read(NAME);
    let new = frame([3]);
    mount.mv(NAME, "shown.b2frame~").unwrap();
    assert_eq!(errno(mount.ino(NAME)), libc::ENOENT);
    mount.cp(NAME, &new).unwrap();
    mount.sync();
    assert_eq!(mount.committed(), [full(3)]);
    assert!(mount.read("shown.b2frame~") == before);
    mount.mv("shown.b2frame~", NAME).unwrap();
    assert!(mount.read(NAME) == before);
    mount.unmount().unwrap();
    assert_eq!(mount.committed(), [full(1), full(2)]);
    assert_eq!(std::fs::read_dir(mount.path()).unwrap().count(), 3);
}

#[test]
fn source_stays_when_the_file_is_removed_until_another_takes_its_place() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let before = mount.read(NAME);
    mount.view().unlink(ROOT, OsStr::new(NAME), &mut Vec::new()).unwrap();
    assert!(names(&mount).is_empty());
    mount.view().fsync(ROOT, &mut Vec::new()).unwrap();
    assert_eq!(mount.committed(), [full(1), full(2)]);
    mount.unmount().unwrap();
    mount.mount(false);
    assert!(mount.read(NAME) == before);
    mount.view().unlink(ROOT, OsStr::new(NAME), &mut Vec::new()).unwrap();
    mount.since();
    mount.cp(NAME, &frame([2, 1])).unwrap();
    mount.sync();
    assert_eq!(mount.committed(), [full(2), full(1)]);
    assert_eq!(mount.since(), (0, 1));
}

#[test]
fn times_and_modes_of_a_copy_are_kept() {
    let mount = Mount::of(&[full(1)], CHUNKSIZE);
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let set = SetAttr { mtime: Some(then), mode: Some(0o600), ..SetAttr::default() };
    // As `cp -p` does it: before the close.
    let handle = mount.open(NAME, true).unwrap();
    mount.view().write(handle, 0, &frame([5])).unwrap();
    mount.view().setattr(mount.ino(NAME).unwrap(), Some(handle), set, &mut Vec::new()).unwrap();
    mount.close(handle).unwrap();
    let attr = mount.view().getattr(mount.ino(NAME).unwrap()).unwrap();
    assert_eq!((attr.meta.mtime, attr.meta.mode), (then, 0o600));
    // As rsync does it: on the temporary file.
    mount.cp(".t", &frame([6])).unwrap();
    mount.view().setattr(mount.ino(".t").unwrap(), None, set, &mut Vec::new()).unwrap();
    mount.mv(".t", NAME).unwrap();
    let attr = mount.view().getattr(mount.ino(NAME).unwrap()).unwrap();
    assert_eq!((attr.meta.mtime, attr.meta.mode), (then, 0o600));
}

/// As when the rename ends while the write waits for its turn.
#[test]
fn what_is_written_to_a_file_that_has_just_become_the_frame_is_the_frames() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    mount.cp(".t", &frame([3, 4])).unwrap();
    let handle = mount.open(".t", false).unwrap();
    mount.mv(".t", NAME).unwrap();
    let after = frame([5, 6]);
    Contiguous::write(mount.view(), handle, None, Change::Write(0, &after)).unwrap();
    mount.close(handle).unwrap();
    assert!(mount.read(NAME) == after);
    mount.unmount().unwrap();
    assert_eq!(mount.committed(), [full(5), full(6)]);
}
