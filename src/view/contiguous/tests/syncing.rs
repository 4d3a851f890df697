//! What an fsync says of bytes that are not a frame.

use super::*;

fn fsync(mount: &Mount, ino: Ino) -> Result<()> {
    mount.view().fsync(ino, &mut Vec::new())
}

#[test]
fn an_fsync_refuses_once_what_can_never_be_a_frame() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let (before, ino) = (mount.read(NAME), mount.ino(NAME).unwrap());
    let handle = mount.open(NAME, true).unwrap();
    for offset in [0, 100] {
        mount.view().write(handle, offset, &[b'x'; 100]).unwrap();
        // What somebody else asks for is not refused, nor is this one told of it then.
        fsync(&mount, ROOT).unwrap();
        assert_eq!(errno(fsync(&mount, ino)), libc::EINVAL);
        fsync(&mount, ino).unwrap();
    }
    assert_eq!(errno(mount.close(handle)), libc::EINVAL);
    assert!(mount.read(NAME) == before, "what was cut off shows the old bytes at once");
    fsync(&mount, ino).unwrap();
    // Over the beginning of the frame.
    let handle = mount.open(NAME, false).unwrap();
    mount.view().write(handle, 0, &[b'x'; 16]).unwrap();
    assert_eq!(errno(fsync(&mount, ino)), libc::EINVAL);
    mount.view().write(handle, 0, &before[..16]).unwrap();
    fsync(&mount, ino).unwrap();
    mount.close(handle).unwrap();
    assert_eq!(mount.committed(), [full(1), full(2)]);
}

#[test]
fn an_fsync_waits_for_what_may_become_a_frame() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let new = cframe(&[full(5), full(6), full(7)], CHUNKSIZE, CHUNKSIZE as i32);
    let ino = mount.ino(NAME).unwrap();
    let handle = mount.open(NAME, true).unwrap();
    // From the end, and then the beginning.
    for at in [new.len() - 1, 200, 100, 10, 0] {
        mount.view().write(handle, at as u64, &new[at..]).unwrap();
        fsync(&mount, ino).unwrap();
    }
    mount.close(handle).unwrap();
    assert_eq!(mount.committed(), [full(5), full(6), full(7)]);
    let handle = mount.open(NAME, true).unwrap();
    for len in [5, 50, 200, new.len() - 1] {
        mount.view().write(handle, 0, &new[..len]).unwrap();
        fsync(&mount, ino).unwrap();
    }
    // All of it is there, and it is not a frame.
    mount.view().write(handle, new.len() as u64 - 30, &[b'x'; 30]).unwrap();
    assert_eq!(errno(fsync(&mount, ino)), libc::EINVAL);
    assert_eq!(errno(mount.close(handle)), libc::EINVAL);
    assert_eq!(mount.committed(), [full(5), full(6), full(7)]);
}

#[test]
fn an_fsync_that_refuses_has_on_disk_what_was_accepted_before() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let ino = mount.ino(NAME).unwrap();
    mount.store.as_ref().unwrap().full.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(errno(mount.cp(NAME, &cframe(&[full(3)], CHUNKSIZE, CHUNKSIZE as i32))), libc::ENOSPC);
    mount.store.as_ref().unwrap().full.store(false, std::sync::atomic::Ordering::SeqCst);
    fsync(&mount, ino).unwrap();
    let handle = mount.open(NAME, true).unwrap();
    mount.view().write(handle, 0, &cframe(&[full(4)], CHUNKSIZE, CHUNKSIZE as i32)).unwrap();
    mount.view().flush(handle, &mut Vec::new()).unwrap();
    mount.view().write(handle, 0, &[b'x'; 100]).unwrap();
    assert_eq!(errno(fsync(&mount, ino)), libc::EINVAL);
    assert_eq!(mount.committed(), [full(4)]);
    let _ = mount.close(handle);
}
