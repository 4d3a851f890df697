//! Clients that write one frame at the same time: what is committed is a state of one of them, or no byte of it mixes within a part.

use super::*;
use crate::format::chunk::{Encoder, Params, Split};
use crate::format::registry::{CodecId, FilterId};

/// The header's length in these frames.
const BASE: usize = 97;
/// Within the first chunk, behind its header.
const EARLY: usize = BASE + 40;
const LATE: usize = BASE + 80;

fn frame(fills: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let cells: Vec<Cell> = fills.into_iter().map(full).collect();
    cframe(&cells, CHUNKSIZE, CHUNKSIZE as i32)
}

/// A chunk of LZ4 that has 4096 bytes.
fn coded() -> Vec<u8> {
    let filters = [(FilterId(0), 0); 6];
    let params = Params { codec: CodecId(1), level: 5, filters, typesize: 1, blocksize: 4096, split: Split::Never };
    let data: Vec<u8> = (0..4096u32).map(|n| (n % 200) as u8).collect();
    let mut chunk = Vec::new();
    Encoder::default().encode(&data, &params, &mut chunk).unwrap();
    assert!(chunk.len() < 4096);
    chunk
}

fn mounts() -> [Mount; 2] {
    [Layout::Sparse, Layout::Contiguous].map(|layout| Mount::over(layout, &frame([1, 2, 3])))
}

impl Mount {
    fn write(&self, handle: Handle, bytes: &[u8], part: std::ops::Range<usize>) {
        self.view().write(handle, part.start as u64, &bytes[part]).unwrap();
    }
}

/// The kernel truncates at an open without the lock under which a write(2) comes in several WRITEs.
#[test]
fn a_file_that_another_client_truncates_between_two_writes_is_no_frame_yet() {
    for sync in [false, true] {
        for mount in mounts() {
            let new = frame([7, 8, 9]);
            let one = mount.open(NAME, true).unwrap();
            mount.write(one, &new, 0..LATE);
            let other = mount.open(NAME, true).unwrap();
            mount.write(one, &new, LATE..new.len());
            mount.write(other, &new, 0..EARLY);
            if sync {
                mount.sync();
            }
            mount.close(one).unwrap();
            mount.wait(20);
            assert_eq!(mount.committed(), [full(1), full(2), full(3)], "a part of the first chunk was never written");
            mount.write(other, &new, EARLY..new.len());
            mount.close(other).unwrap();
            assert_eq!(mount.committed(), [full(7), full(8), full(9)]);
        }
    }
}

#[test]
fn what_a_client_leaves_half_written_over_a_frame_of_another_is_refused() {
    for mut mount in mounts() {
        let before = mount.read(NAME);
        let new = frame([7, 8, 9]);
        let (one, other) = (mount.open(NAME, true).unwrap(), mount.open(NAME, true).unwrap());
        mount.write(one, &frame([4, 5, 6]), 0..new.len());
        mount.write(other, &new, 0..EARLY);
        mount.close(one).unwrap();
        // The client is killed.
        assert_eq!(errno(mount.close(other)), libc::EINVAL);
        assert_eq!(mount.committed(), [full(1), full(2), full(3)]);
        mount.wait(20);
        assert!(mount.read(NAME) == before);
        mount.unmount().unwrap();
        assert_eq!(mount.committed(), [full(1), full(2), full(3)]);
    }
}

/// Plain copies decode whatever their bytes are.
#[test]
fn chunks_that_are_of_two_clients_are_not_taken() {
    let (ones, others) = (frame([4, 5, 6]), frame([7, 8, 9]));
    for mount in mounts() {
        let (one, other) = (mount.open(NAME, false).unwrap(), mount.open(NAME, false).unwrap());
        mount.write(other, &others, 0..LATE);
        mount.write(one, &ones, 0..ones.len());
        mount.write(other, &others, BASE + 32..LATE);
        mount.close(one).unwrap();
        assert_eq!(mount.committed(), [full(1), full(2), full(3)]);
        // Nor if the other one ends there.
        assert_eq!(errno(mount.close(other)), libc::EINVAL);
        mount.wait(20);
        assert_eq!(mount.committed(), [full(1), full(2), full(3)]);
    }
    for mount in mounts() {
        let (one, other) = (mount.open(NAME, false).unwrap(), mount.open(NAME, false).unwrap());
        mount.write(other, &others, 0..LATE);
        mount.write(one, &ones, 0..ones.len());
        mount.write(other, &others, LATE..others.len());
        mount.close(other).unwrap();
        assert_eq!(errno(mount.close(one)), libc::EINVAL);
        mount.wait(20);
        // Whole chunks of one or the other are no harm.
        let (one, other) = (mount.open(NAME, false).unwrap(), mount.open(NAME, false).unwrap());
        mount.write(other, &others, 0..BASE + 96);
        mount.write(one, &ones, 0..ones.len());
        mount.write(other, &others, 0..BASE + 96);
        mount.close(one).unwrap();
        assert_eq!(mount.committed(), [full(7), full(5), full(6)]);
        mount.close(other).unwrap();
        assert_eq!(mount.committed(), [full(7), full(5), full(6)]);
    }
}

#[test]
fn clients_that_write_the_same_bytes_do_not_disturb_each_other() {
    let new = frame([7, 8, 9]);
    for (truncate, mount) in [false, true].into_iter().flat_map(|truncate| mounts().map(|mount| (truncate, mount))) {
        let one = mount.open(NAME, truncate).unwrap();
        mount.write(one, &new, 0..EARLY);
        let other = mount.open(NAME, truncate).unwrap();
        for (from, to) in (0..new.len()).step_by(50).map(|from| (from, new.len().min(from + 50))) {
            mount.write(one, &new, from.max(EARLY).min(to)..to);
            mount.write(other, &new, from..to);
        }
        mount.close(one).unwrap();
        assert_eq!(mount.committed(), [full(7), full(8), full(9)]);
        mount.close(other).unwrap();
        assert_eq!(mount.committed(), [full(7), full(8), full(9)]);
    }
}

#[test]
fn pieces_of_a_copy_are_taken_with_the_last_one_if_their_chunks_decode() {
    let new = frame([7, 8, 9]);
    for mount in mounts() {
        let (one, other) = (mount.open(NAME, true).unwrap(), mount.open(NAME, false).unwrap());
        mount.write(other, &new, LATE..new.len());
        mount.write(one, &new, 0..LATE);
        mount.close(other).unwrap();
        assert_eq!(mount.committed(), [full(1), full(2), full(3)], "one may write on");
        mount.close(one).unwrap();
        assert_eq!(mount.committed(), [full(7), full(8), full(9)]);
    }
    // A stream of a codec, of which nothing but decoding shows what became of it.
    let coded = coded();
    let good = cframe(&[Cell::Chunk(coded.clone())], 4096, 4096);
    let mut bad = good.clone();
    bad[BASE + coded.len() - 8..BASE + coded.len()].fill(0xff);
    for (frame, is_taken) in [(good, true), (bad, false)] {
        for mount in mounts() {
            let (one, other) = (mount.open(NAME, true).unwrap(), mount.open(NAME, false).unwrap());
            let middle = BASE + coded.len() / 2;
            mount.write(other, &frame, middle..frame.len());
            mount.write(one, &frame, 0..middle);
            mount.close(other).unwrap();
            assert_eq!(errno(mount.close(one)), if is_taken { 0 } else { libc::EINVAL });
            assert_eq!(mount.committed().len(), if is_taken { 1 } else { 3 });
            // One client may copy in what does not decode.
            mount.cp(NAME, &frame).unwrap();
            assert_eq!(mount.committed().len(), 1);
        }
    }
}

#[test]
fn a_temporary_file_that_two_clients_wrote_does_not_replace_the_frame() {
    let (ones, others) = (frame([4, 5, 6]), frame([7, 8, 9]));
    for mount in mounts() {
        let (one, other) = (mount.open(".t", true).unwrap(), mount.open(".t", false).unwrap());
        mount.write(one, &ones, 0..ones.len());
        mount.write(other, &others, 0..EARLY);
        mount.close(one).unwrap();
        for is_closed in [false, true] {
            if is_closed {
                mount.close(other).unwrap();
            }
            assert_eq!(errno(mount.mv(".t", NAME)), libc::EINVAL);
            assert_eq!(mount.committed(), [full(1), full(2), full(3)]);
        }
        mount.cp(".t", &ones).unwrap();
        mount.mv(".t", NAME).unwrap();
        assert_eq!(mount.committed(), [full(4), full(5), full(6)]);
    }
}

/// A client that keeps the file open after a change of its own does not keep another one's change from SOURCE.
#[test]
fn a_client_that_stays_holds_up_no_other() {
    let new = frame([7, 8, 9, 10]);
    for mount in mounts() {
        let stays = mount.open(NAME, false).unwrap();
        mount.write(stays, &frame([1, 5, 3]), BASE + 96..BASE + 2 * 96);
        let other = mount.open(NAME, false).unwrap();
        mount.write(other, &new, 0..new.len());
        mount.close(other).unwrap();
        assert_eq!(mount.committed(), [full(7), full(8), full(9), full(10)]);
        mount.close(stays).unwrap();
        assert_eq!(mount.committed(), [full(7), full(8), full(9), full(10)]);
    }
}
