//! What an fsync says of bytes that are not a chunk.

use super::*;
use crate::view::Handle;

impl Mount {
    fn begin(&self, name: &str) -> (Ino, Handle) {
        let ino = self.ino(name).unwrap();
        let mode = OpenMode { write: true, truncate: true, ..OpenMode::default() };
        (ino, self.view().open(ino, mode).unwrap().handle)
    }

    fn write(&self, handle: Handle, offset: usize, bytes: &[u8]) {
        self.view().write(handle, offset as u64, bytes).unwrap();
    }

    fn fsync(&self, ino: Ino) -> Result<()> {
        self.view().fsync(ino, &mut Vec::new())
    }

    fn close(&self, handle: Handle) -> Result<()> {
        let flushed = self.view().flush(handle, &mut Vec::new());
        self.view().release(handle, &mut Vec::new());
        flushed
    }
}

#[test]
fn an_fsync_refuses_once_what_can_never_be_a_chunk() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let good = chunk(9, CHUNKSIZE);
    let longer = [&good[..], b"x"].concat();
    for bad in [&[b'x'; 100][..], &longer] {
        let (ino, handle) = mount.begin("00000000.chunk");
        mount.write(handle, 0, bad);
        mount.fsync(ROOT).unwrap();
        assert_eq!(errno(mount.fsync(ino)), libc::EINVAL);
        mount.fsync(ino).unwrap();
        assert_eq!(errno(mount.close(handle)), libc::EINVAL);
        mount.fsync(ino).unwrap();
    }
    assert_eq!(mount.committed(), [full(1), full(2)]);
    // Refused with it is nothing else.
    let (ino, handle) = mount.begin("00000000.chunk");
    mount.write(handle, 0, &[b'x'; 100]);
    mount.cp("00000001.chunk", &good).unwrap();
    assert_eq!(errno(mount.fsync(ino)), libc::EINVAL);
    assert_eq!(mount.committed(), [full(1), full(9)]);
    assert_eq!(errno(mount.close(handle)), libc::EINVAL);
}

#[test]
fn an_fsync_waits_for_what_may_become_a_chunk() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let good = chunk(9, CHUNKSIZE);
    let (ino, handle) = mount.begin("00000000.chunk");
    for at in [good.len() - 1, 50, 40] {
        mount.write(handle, at, &good[at..]);
        mount.fsync(ino).unwrap();
    }
    mount.write(handle, 0, &good);
    mount.fsync(ino).unwrap();
    mount.close(handle).unwrap();
    assert_eq!(mount.committed(), [full(9), full(2)]);
    let (ino, handle) = mount.begin("00000001.chunk");
    for len in [0, 5, 31, 32, 50, good.len()] {
        mount.write(handle, 0, &good[..len]);
        mount.fsync(ino).unwrap();
    }
    mount.close(handle).unwrap();
    assert_eq!(mount.committed(), [full(9), full(9)]);
}
