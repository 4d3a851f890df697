//! Other programs that write SOURCE.

use super::*;
use crate::view::{Opened, Pages};

/// What another program makes of SOURCE: into the same files, or by another frame that takes its place.
fn other(mount: &Mount, cells: &[Cell], in_place: bool) {
    let new = mount.dir.path().join("new.b2frame");
    sframe(&new, &cframe(cells, CHUNKSIZE, CHUNKSIZE as i32));
    let gone = mount.dir.path().join("gone.b2frame");
    if in_place {
        let mut files: Vec<_> = std::fs::read_dir(&new).unwrap().map(|file| file.unwrap().file_name()).collect();
        files.sort(); // the index comes last
        for name in files {
            std::fs::write(mount.path().join(&name), std::fs::read(new.join(&name)).unwrap()).unwrap();
        }
        return std::fs::remove_dir_all(new).unwrap();
    }
    std::fs::rename(mount.path(), &gone).unwrap();
    std::fs::rename(new, mount.path()).unwrap();
    std::fs::remove_dir_all(gone).unwrap();
}

fn follow(mount: &Mount) -> Vec<Invalidation> {
    let mut invalidations = Vec::new();
    mount.view().follow(&mut invalidations);
    invalidations
}

fn read_of(view: &ContiguousView, ino: Ino, handle: Option<Handle>) -> Result<Vec<u8>> {
    let mut buf = vec![0; 10_000];
    let count = view.read(ino, handle, 0, &mut buf)?;
    buf.truncate(count);
    Ok(buf)
}

const READING: OpenMode = OpenMode { read: true, write: false, truncate: false, drop_privileges: false };
const WRITING: OpenMode = OpenMode { read: true, write: true, truncate: false, drop_privileges: false };

fn frame_of(cells: &[Cell]) -> Vec<u8> {
    cframe(cells, CHUNKSIZE, CHUNKSIZE as i32)
}

#[test]
fn what_is_opened_is_up_to_date_and_what_is_open_is_told() {
    for in_place in [true, false] {
        let (before, after) = ([full(1), full(2), full(3)], [full(7), full(8)]);
        let mount = Mount::of(&before, CHUNKSIZE);
        let old = mount.ino(NAME).unwrap();
        let handle = mount.view().open(old, WRITING).unwrap().handle;
        assert!(mount.read(NAME) == frame_of(&before));
        other(&mount, &after, in_place);
        match read_of(mount.view(), old, None) {
            Ok(bytes) => assert!(bytes == frame_of(&before), "a mixture"),
            Err(error) => assert_eq!(error.errno(), libc::ESTALE),
        }
        // What nobody notices who looks only at the index file, the system tells, or who reads.
        follow(&mount);
        assert_eq!(errno(mount.view().open(old, READING)), libc::ESTALE);
        assert_ne!(mount.ino(NAME).unwrap(), old);
        assert!(mount.read(NAME) == frame_of(&after));
        assert_eq!(errno(read_of(mount.view(), old, Some(handle))), libc::ESTALE);
        let last = mount.view().getattr(old).unwrap();
        assert_eq!((last.size, last.nlink), (frame_of(&before).len() as u64, 0), "what is open keeps its attributes");
        assert_eq!(errno(mount.view().write(handle, 0, b"x")), libc::ESTALE);
        mount.close(handle).unwrap_or(());
        // And it is written to as if it had always been there.
        mount.cp(NAME, &frame_of(&[full(7), full(9), full(8)])).unwrap();
        mount.sync();
        assert_eq!(mount.committed(), [full(7), full(9), full(8)]);
        mount.view().shutdown().unwrap();
    }
}

#[test]
fn what_is_uncommitted_ends_reading_and_writing_and_is_saved() {
    let before = [full(1), full(2), full(3)];
    let mount = Mount::of(&before, CHUNKSIZE);
    let handle = mount.open(NAME, false).unwrap();
    let changed = frame_of(&[full(1), full(5), full(3)]);
    mount.view().write(handle, 0, &changed).unwrap();
    // The library appends.
    let mut index = std::fs::read(mount.path().join("chunks.b2frame")).unwrap();
    let later = std::time::SystemTime::now() + Duration::from_secs(5);
    index.truncate(index.len());
    std::fs::write(mount.path().join("chunks.b2frame"), &index).unwrap();
    let file = std::fs::File::options().write(true).open(mount.path().join("chunks.b2frame")).unwrap();
    file.set_modified(later).unwrap();
    assert_eq!(follow(&mount), [Invalidation::All]);
    let ino = mount.ino(NAME).unwrap();
    assert_eq!(errno(read_of(mount.view(), ino, None)), libc::ESTALE);
    assert_eq!(errno(mount.view().open(ino, READING)), libc::ESTALE);
    assert_eq!(errno(mount.view().write(handle, 0, b"x")), libc::ESTALE);
    assert_eq!(errno(mount.cp(".other", b"x")), libc::ESTALE);
    assert_eq!(errno(mount.view().fsync(ino, &mut Vec::new())), libc::ESTALE);
    assert_eq!(errno(mount.view().shutdown()), libc::ESTALE);
    let saved = mount.dir.path().join("f.b2frame.lost").join(NAME);
    assert!(std::fs::read(saved).unwrap() == changed);
    assert_eq!(mount.committed(), before);
}

#[test]
fn a_frame_that_was_is_gone_and_temporary_files_stay() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    mount.cp(".new", &frame_of(&[full(4)])).unwrap();
    mount.mv(NAME, &format!("{NAME}~")).unwrap();
    mount.cp(NAME, &frame_of(&[full(3)])).unwrap();
    mount.sync();
    let backup = mount.ino(&format!("{NAME}~")).unwrap();
    assert!(read_of(mount.view(), backup, None).unwrap() == frame_of(&[full(1), full(2)]));
    other(&mount, &[full(7), full(8)], false);
    assert!(follow(&mount).contains(&Invalidation::Entry(ROOT, format!("{NAME}~").into())));
    assert_eq!(errno(read_of(mount.view(), backup, None)), libc::ESTALE, "not an empty file");
    assert_eq!(errno(mount.ino(&format!("{NAME}~"))), libc::ENOENT);
    assert!(mount.read(".new") == frame_of(&[full(4)]));
    mount.mv(".new", NAME).unwrap();
    mount.sync();
    assert_eq!(mount.committed(), [full(4)]);
    mount.view().shutdown().unwrap();
}

/// The root has one inode for ever: there, handles tell versions apart, and pages are kept only while all are of one.
#[test]
fn a_mount_point_that_is_the_file_keeps_versions_apart_by_handle() {
    for read_only in [true, false] {
        let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
        mount.unmount().unwrap();
        let (_, store) = open(&mount.path(), OpenOptions { read_only, ..OpenOptions::default() }).unwrap();
        mount.view = Some(ContiguousView::new(store, Shown::OnFile, read_only).unwrap());
        let view = mount.view();
        let Opened { handle: old, pages } = view.open(ROOT, READING).unwrap();
        assert_eq!(pages, Pages::Kept);
        assert!(read_of(view, ROOT, Some(old)).unwrap() == frame_of(&[full(1), full(2)]));
        other(&mount, &[full(7), full(8)], false);
        assert_eq!(follow(&mount), [Invalidation::Names, Invalidation::Data(ROOT)]);
        assert_eq!(errno(read_of(view, ROOT, Some(old))), libc::ESTALE);
        let Opened { handle: new, pages } = view.open(ROOT, READING).unwrap();
        assert_eq!(pages, Pages::Direct, "they would be the old handle's as well");
        assert!(read_of(view, ROOT, Some(new)).unwrap() == frame_of(&[full(7), full(8)]));
        view.release(old, &mut Vec::new());
        let Opened { handle: newer, pages } = view.open(ROOT, READING).unwrap();
        assert_eq!(pages, Pages::Kept);
        view.release(newer, &mut Vec::new());
        view.release(new, &mut Vec::new());
        view.shutdown().unwrap();
    }
}

/// As when SOURCE was read again while the write waited for its turn.
#[test]
fn a_write_that_was_meant_for_an_older_version_changes_nothing() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    mount.unmount().unwrap();
    let (_, store) = open(&mount.path(), OpenOptions::default()).unwrap();
    mount.view = Some(ContiguousView::new(store, Shown::OnFile, false).unwrap());
    let view = mount.view();
    let handle = view.open(ROOT, WRITING).unwrap().handle;
    other(&mount, &[full(7), full(8)], false);
    follow(&mount);
    let written = Contiguous::write(view, handle, Some(FRAME), Change::Write(0, b"of the older version"));
    assert_eq!(errno(written), libc::ESTALE);
    assert!(read_of(view, ROOT, None).unwrap() == frame_of(&[full(7), full(8)]));
    view.release(handle, &mut Vec::new());
    view.shutdown().unwrap();
}

#[test]
fn an_accepted_frame_is_saved_rather_than_what_is_half_written_over_it() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let accepted = frame_of(&[full(3), full(4)]);
    let committing = mount.view().commit_throttle.committing();
    mount.cp(NAME, &accepted).unwrap();
    drop(committing);
    let handle = mount.open(NAME, true).unwrap();
    mount.view().write(handle, 0, b"half a frame").unwrap();
    other(&mount, &[full(7), full(8)], true);
    assert_eq!(follow(&mount), [Invalidation::All]);
    assert_eq!(errno(mount.view().shutdown()), libc::ESTALE);
    let saved = mount.dir.path().join("f.b2frame.lost").join(NAME);
    assert!(std::fs::read(saved).unwrap() == accepted);
    assert_eq!(mount.committed(), [full(7), full(8)]);
}

#[test]
fn a_backup_that_is_written_anew_is_a_temporary_file_like_any() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let backup = format!("{NAME}~");
    mount.mv(NAME, &backup).unwrap();
    mount.cp(NAME, &frame_of(&[full(3)])).unwrap();
    mount.sync();
    mount.cp(&backup, b"written anew").unwrap();
    other(&mount, &[full(7), full(8)], false);
    follow(&mount);
    assert_eq!(mount.read(&backup), b"written anew");
    mount.view().shutdown().unwrap();
}
