//! Clients that write one file at the same time: no chunk is taken, and no index, that is part one client's and part another's.

use super::*;

const NAME: &str = "00000001.chunk";

fn open(mount: &Mount, name: &str, truncate: bool) -> Handle {
    let mode = OpenMode { read: false, write: true, truncate, drop_privileges: false };
    mount.view().open(mount.ino(name).unwrap(), mode).unwrap().handle
}

fn close(mount: &Mount, handle: Handle) -> i32 {
    let flushed = mount.view().flush(handle, &mut Vec::new());
    mount.view().release(handle, &mut Vec::new());
    errno(flushed)
}

fn write(mount: &Mount, handle: Handle, bytes: &[u8], part: std::ops::Range<usize>) {
    mount.view().write(handle, part.start as u64, &bytes[part]).unwrap();
}

fn mount() -> Mount {
    Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE)
}

#[test]
fn a_chunk_that_another_client_truncates_between_two_writes_is_no_chunk_yet() {
    let new = chunk(7, CHUNKSIZE);
    for sync in [false, true] {
        let mount = mount();
        let one = open(&mount, NAME, true);
        write(&mount, one, &new, 0..60);
        let other = open(&mount, NAME, true);
        write(&mount, one, &new, 60..new.len());
        write(&mount, other, &new, 0..40);
        if sync {
            mount.view().fsync(mount.ino(NAME).unwrap(), &mut Vec::new()).unwrap();
        }
        assert_eq!(close(&mount, one), 0);
        mount.sync();
        assert_eq!(cells_of(&mount.path()), [full(1), full(2), full(3)], "a part of it was never written");
        write(&mount, other, &new, 40..new.len());
        assert_eq!(close(&mount, other), 0);
        mount.sync();
        assert_eq!(cells_of(&mount.path()), [full(1), full(7), full(3)]);
    }
}

#[test]
fn a_chunk_of_two_clients_is_refused_at_the_last_close() {
    let (ones, others) = (chunk(7, CHUNKSIZE), chunk(8, CHUNKSIZE));
    for truncate in [false, true] {
        let mut mount = mount();
        let (one, other) = (open(&mount, NAME, truncate), open(&mount, NAME, truncate));
        write(&mount, one, &ones, 0..ones.len());
        write(&mount, other, &others, 0..40);
        assert_eq!((close(&mount, one), close(&mount, other)), (0, libc::EINVAL));
        assert_eq!(mount.read(NAME), chunk(2, CHUNKSIZE));
        mount.cp(NAME, &ones).unwrap();
        mount.unmount();
        assert_eq!(cells_of(&mount.path()), [full(1), full(7), full(3)]);
    }
}

#[test]
fn a_chunk_that_a_client_has_emptied_is_not_ended_by_another() {
    let new = chunk(7, CHUNKSIZE);
    let mount = mount();
    let one = open(&mount, NAME, true);
    write(&mount, one, &new, 0..40);
    // It ends where the first one was when the second began.
    let other = open(&mount, NAME, true);
    write(&mount, other, &chunk(8, CHUNKSIZE), 0..40);
    write(&mount, one, &new, 40..new.len());
    assert_eq!((close(&mount, one), close(&mount, other)), (0, libc::EINVAL));
    mount.sync();
    assert_eq!(cells_of(&mount.path()), [full(1), full(2), full(3)]);
}

#[test]
fn the_same_bytes_and_pieces_of_them_are_taken() {
    let new = chunk(7, CHUNKSIZE);
    for pieces in [[0..50, 50..96], [0..96, 0..96], [0..96, 0..50], [50..96, 0..50]] {
        let mount = mount();
        let (one, other) = (open(&mount, NAME, true), open(&mount, NAME, false));
        let [first, second] = pieces;
        write(&mount, one, &new, first);
        write(&mount, other, &new, second);
        assert_eq!((close(&mount, one), close(&mount, other)), (0, 0));
        mount.sync();
        assert_eq!(cells_of(&mount.path()), [full(1), full(7), full(3)]);
    }
}

#[test]
fn an_index_of_two_clients_is_held() {
    let mount = mount();
    let old = mount.read("chunks.b2frame");
    let mut new = old.clone();
    let last = new.len() - 1;
    new[last] ^= 1; // the fingerprint's last byte, which nothing depends on
    let (one, other) = (open(&mount, "chunks.b2frame", true), open(&mount, "chunks.b2frame", true));
    write(&mount, one, &new, 0..new.len());
    write(&mount, other, &old, last..last + 1);
    assert_eq!((close(&mount, one), close(&mount, other)), (0, 0));
    let ino = mount.ino("chunks.b2frame").unwrap();
    assert!(mount.view().state.read().nodes.get(ino).unwrap().writing.is_some());
    mount.cp("chunks.b2frame", &new).unwrap();
    assert!(mount.view().state.read().nodes.get(ino).unwrap().writing.is_none());
}
