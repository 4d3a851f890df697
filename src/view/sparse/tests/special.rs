//! Chunks that say only "all zeros" or the like, copied over chunk files.

use super::*;

/// A chunk of nothing but its header.
fn special(code: u8, nbytes: u32) -> Vec<u8> {
    let mut chunk = chunk(0, nbytes);
    chunk.truncate(32);
    chunk[2] = 0x05;
    chunk[12..16].copy_from_slice(&32u32.to_le_bytes());
    chunk[31] = code << 4;
    chunk
}

fn entries(mount: &Mount) -> Vec<IndexEntry<ChunkId>> {
    IndexFile::parse(&mount.read("chunks.b2frame")).unwrap().entries.to_vec()
}

#[test]
fn a_special_chunk_becomes_an_entry_and_its_file_stays() {
    for (code, value) in [(1, Special::Zeros), (4, Special::Uninit)] {
        for position in 0..3u8 {
            let mut mount = Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE);
            let name = format!("{position:08X}.chunk");
            let written = special(code, CHUNKSIZE);
            mount.cp(&name, &written).unwrap();
            assert_eq!(entries(&mount)[usize::from(position)], IndexEntry::Special(value), "the library reads the mount at once");
            assert_eq!(mount.read(&name), written, "cmp and rsync agree");
            let mut expected = vec![full(1), full(2), full(3)];
            expected[usize::from(position)] = Cell::Special(value);
            mount.sync();
            assert_eq!(mount.committed(), expected);
            assert_eq!(mount.read(&name), written);
            mount.unmount();
            assert_eq!(mount.committed(), expected);
            mount.mount();
            assert_eq!(mount.names().len(), 3, "index and two chunks");
        }
    }
}

#[test]
fn the_file_of_a_special_entry_takes_other_chunks() {
    let mut mount = Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE);
    let zero = special(1, CHUNKSIZE);
    for last in [chunk(7, CHUNKSIZE), zero.clone(), special(4, CHUNKSIZE), chunk(8, CHUNKSIZE)] {
        mount.cp("00000001.chunk", &zero).unwrap();
        mount.cp("00000001.chunk", &chunk(6, CHUNKSIZE)).unwrap();
        assert!(mount.cp("00000001.chunk", &chunk(6, 5)).is_err(), "it is not the last one");
        mount.cp(".temporary", &last).unwrap();
        mount.mv(".temporary", "00000001.chunk").unwrap();
        mount.sync();
        let cell = match last[31] >> 4 {
            1 => zeros(),
            4 => UNINIT,
            _ => Cell::Chunk(last.clone()),
        };
        assert_eq!(mount.committed(), [full(1), cell, full(3)]);
        assert_eq!(mount.read("00000001.chunk"), last);
    }
    mount.cp("00000001.chunk", &zero).unwrap();
    mount.rm("00000001.chunk").unwrap();
    mount.unmount();
    assert_eq!(mount.committed(), [full(1), UNINIT, full(3)]);
}

#[test]
fn special_chunks_are_placed_and_appended() {
    let mut mount = Mount::of(&[full(1), zeros()], CHUNKSIZE);
    mount.cp("00000001.chunk", &special(4, CHUNKSIZE)).unwrap();
    mount.cp("00000002.chunk", &special(1, CHUNKSIZE)).unwrap();
    mount.cp("00000003.chunk", &special(1, 10)).unwrap();
    mount.sync();
    assert_eq!(mount.committed(), [full(1), UNINIT, zeros(), zeros()]);
    assert_eq!(mount.read("00000003.chunk"), special(1, 10));
    mount.unmount();
}

#[test]
fn an_index_may_name_a_special_chunk() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    mount.cp("00000005.chunk", &special(1, CHUNKSIZE)).unwrap();
    mount.cp("chunks.b2frame", &index_file(&[id(5), id(0), id(1)], CHUNKSIZE)).unwrap();
    assert_eq!(entries(&mount), [IndexEntry::Special(Special::Zeros), id(0), id(1)]);
    mount.sync();
    assert_eq!(mount.committed(), [zeros(), full(1), full(2)]);
    assert_eq!(mount.read("00000005.chunk"), special(1, CHUNKSIZE));
    // An index written by a client that knows only the entry.
    mount.cp("chunks.b2frame", &index_file(&[id(1), IndexEntry::Special(Special::Zeros), id(0)], CHUNKSIZE)).unwrap();
    mount.unmount();
    assert_eq!(mount.committed(), [full(2), zeros(), full(1)]);
}

#[test]
fn no_special_chunk_is_taken_where_chunks_vary_in_size() {
    let frame = cframe(&[Cell::Chunk(chunk(1, 9)), Cell::Chunk(chunk(2, 5))], 5, 0);
    let mut mount = Mount::of_bytes(&frame);
    assert_eq!(errno(mount.cp("00000000.chunk", &special(1, 9))), libc::EINVAL);
    mount.unmount();
    assert_eq!(mount.committed(), [Cell::Chunk(chunk(1, 9)), Cell::Chunk(chunk(2, 5))]);
}
