//! What a write to the frame means: each promise once.

use super::*;
use crate::format::IndexEntry;

fn frame(fills: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let cells: Vec<Cell> = fills.into_iter().map(full).collect();
    cframe(&cells, CHUNKSIZE, CHUNKSIZE as i32)
}

/// The header's length in these frames.
const BASE: usize = 97;

#[test]
fn what_did_not_change_is_not_written() {
    let cells: Vec<Cell> = (0..200u8).map(|n| if n % 9 == 4 { zeros() } else { full(n) }).collect();
    let build = |cells: &[Cell]| cframe(cells, CHUNKSIZE, CHUNKSIZE as i32);
    for layout in [Layout::Sparse, Layout::Contiguous] {
        let mount = Mount::over(layout, &build(&cells));
        let cp = |cells: &[Cell]| {
            mount.since();
            mount.cp(NAME, &build(cells)).unwrap();
            mount.sync();
            assert_eq!(mount.committed(), cells);
            assert!(mount.read(NAME) == build(cells));
            mount.since()
        };
        assert_eq!(cp(&cells), (0, 0), "the same frame");
        let mut other = cells.clone();
        other[100] = zeros();
        assert_eq!(cp(&other), (0, 1), "a chunk less, all behind it moved");
        other[100] = full(231);
        assert_eq!(cp(&other), (1, 1), "a chunk more");
        other[7] = Cell::Special(Special::Nan);
        other[8] = full(230);
        other[9] = full(7);
        assert_eq!(cp(&other), (1, 1), "one that is new, and one that has moved");
        other.reverse();
        assert_eq!(cp(&other), (0, 1), "every chunk in another place");
        other.rotate_left(77);
        assert_eq!(cp(&other), (0, 1));
        other.truncate(50);
        assert_eq!(cp(&other), (0, 1), "the first fifty");
        other.push(other[3].clone());
        assert_eq!(cp(&other), (1, 1), "the same bytes twice are two chunks");
    }
}

#[test]
fn what_is_only_moved_is_neither_held_nor_written() {
    const SIZE: u32 = 30_000;
    let cells: Vec<Cell> = (0..150u8).map(|n| Cell::Chunk(chunk(n, SIZE))).collect();
    for (old, new) in [
        (full(1), zeros()),
        (full(1), Cell::Chunk(super::library::repeated(7, SIZE))),
        (Cell::Chunk(super::library::repeated(7, SIZE)), full(1)),
    ] {
        let large = |cell| if cell == full(1) { Cell::Chunk(chunk(200, SIZE)) } else { cell };
        let mut cells = cells.clone();
        cells[20] = large(old);
        let before = cframe(&cells, SIZE, SIZE as i32);
        let mount = Mount::of_bytes(&before);
        let old_len = if let Cell::Chunk(bytes) = &cells[20] { bytes.len() } else { 0 };
        cells[20] = large(new);
        let after = cframe(&cells, SIZE, SIZE as i32);
        // As the library does it: all behind the chunk at once, which arrives in pieces.
        let at = BASE + 20 * (SIZE as usize + 32);
        let old_end = at + old_len;
        let tail = &before[old_end..old_end + 129 * (SIZE as usize + 32)];
        let new_len = if let Cell::Chunk(bytes) = &cells[20] { bytes.len() } else { 0 };
        let moved_to = at + new_len;
        let handle = mount.open(NAME, false).unwrap();
        // Forwards where the chunk shrinks, from the end where it grows; each piece in two, as the kernel cuts it at a page.
        let mut pieces: Vec<usize> = (0..tail.len()).step_by(1 << 17).collect();
        if new_len > SIZE as usize {
            pieces.reverse();
        }
        for from in pieces {
            let piece = &tail[from..tail.len().min(from + (1 << 17))];
            let (first, second) = piece.split_at(piece.len() - 77);
            mount.view().write(handle, (moved_to + from) as u64, first).unwrap();
            mount.view().write(handle, (moved_to + from + first.len()) as u64, second).unwrap();
        }
        let used = mount.view().drafts.used();
        assert!(used < 1 << 19, "{used} bytes held for {}", tail.len());
        mount.view().write(handle, at as u64, &after[at..moved_to]).unwrap();
        mount.view().write(handle, (moved_to + tail.len()) as u64, &after[moved_to + tail.len()..]).unwrap();
        mount.view().write(handle, 0, &after[..BASE]).unwrap();
        let set = SetAttr { size: Some(after.len() as u64), ..SetAttr::default() };
        mount.view().setattr(mount.ino(NAME).unwrap(), Some(handle), set, &mut Vec::new()).unwrap();
        assert!(mount.read(NAME) == after);
        mount.since();
        let reads = mount.store.as_ref().unwrap().reads.swap(0, std::sync::atomic::Ordering::SeqCst);
        mount.close(handle).unwrap();
        let compared = mount.store.as_ref().unwrap().reads.load(std::sync::atomic::Ordering::SeqCst);
        assert!(compared < 20, "{compared} reads at the close, {reads} before");
        assert_eq!(mount.committed(), cells);
        assert!(mount.since().0 <= 1 && mount.read(NAME) == after);
    }
}

#[test]
fn a_frame_of_another_make_replaces_all() {
    for (from, to) in makes().iter().flat_map(|from| makes().into_iter().map(move |to| (from.clone(), to))) {
        let mut mount = Mount::of_bytes(&from);
        mount.cp(NAME, &to).unwrap();
        assert!(mount.read(NAME) == to);
        mount.unmount().unwrap();
        mount.mount(false);
        assert!(mount.read(NAME) == to);
    }
}

#[test]
fn what_is_no_frame_is_refused_and_the_old_bytes_are_back() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let before = mount.read(NAME);
    let mut wrong_chunk = before.clone();
    wrong_chunk[BASE + 12] += 1;
    let mut overlap = before.clone();
    overlap[BASE + 8] += 1; // blocksize
    overlap[BASE + 2] = 0; // no plain copy, and so no such chunk
    for bad in [&before[..before.len() - 1], &before[..before.len() / 2], b"", b"no frame", &wrong_chunk, &overlap] {
        assert_eq!(errno(mount.cp(NAME, bad)), libc::EINVAL);
        assert!(mount.read(NAME) == before);
        assert!(mount.view().state.read().frame.overlay.is_none());
    }
    mount.unmount().unwrap();
    assert_eq!(mount.committed(), [full(1), full(2)]);
}

/// The kernel may hear of the last close at any time, also when somebody reads.
#[test]
fn what_was_refused_goes_without_a_word() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let before = mount.read(NAME);
    let handle = mount.open(NAME, true).unwrap();
    mount.view().write(handle, 0, b"no frame").unwrap();
    assert_eq!(errno(mount.view().flush(handle, &mut Vec::new())), libc::EINVAL);
    assert!(mount.read(NAME) == before);
    let mut invalidations = Vec::new();
    mount.view().release(handle, &mut invalidations);
    assert_eq!(invalidations, []);
    assert!(mount.view().state.read().frame.overlay.is_none() && mount.read(NAME) == before);
}

#[test]
fn a_close_of_a_duplicate_before_the_first_write_ends_nothing() {
    // `cat frame > NAME`: the shell opens, duplicates, and closes the first descriptor.
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let before = mount.read(NAME);
    let new = frame([7]);
    let handle = mount.open(NAME, true).unwrap();
    let mut invalidations = Vec::new();
    assert_eq!(errno(mount.view().flush(handle, &mut invalidations)), libc::EINVAL);
    assert_eq!(invalidations, [Invalidation::Data(mount.ino(NAME).unwrap())]);
    assert!(mount.read(NAME) == before);
    mount.view().write(handle, 0, &new[..100]).unwrap();
    assert_eq!(mount.read(NAME).len(), 100, "readers see what is being written");
    mount.view().write(handle, 100, &new[100..]).unwrap();
    mount.close(handle).unwrap();
    assert!(mount.read(NAME) == new);
    assert_eq!(mount.committed(), [full(7)]);
}

#[test]
fn only_the_last_close_of_those_who_write_refuses() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let (before, new) = (mount.read(NAME), frame([7]));
    let write = |handle, bytes: &[u8]| mount.view().write(handle, 0, bytes).unwrap();
    let one = mount.open(NAME, true).unwrap();
    write(one, b"text");
    // Another process begins anew before the first one closes.
    let other = mount.open(NAME, true).unwrap();
    mount.view().flush(one, &mut Vec::new()).unwrap();
    write(other, &new);
    // The first one's handle ends a moment after its close.
    mount.close(other).unwrap();
    mount.view().release(one, &mut Vec::new());
    assert!(mount.read(NAME) == new);
    // The one who is last hears of it, though the other's handle has not ended yet.
    let (one, other) = (mount.open(NAME, true).unwrap(), mount.open(NAME, true).unwrap());
    [one, other].into_iter().for_each(|handle| write(handle, b"text"));
    mount.view().flush(other, &mut Vec::new()).unwrap();
    assert_eq!(errno(mount.close(one)), libc::EINVAL);
    mount.view().release(other, &mut Vec::new());
    assert!(mount.read(NAME) == new && before != new);
    assert_eq!(mount.committed(), [full(7)]);
}

#[test]
fn half_a_change_is_held_for_a_while_and_then_dropped() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let before = mount.read(NAME);
    assert_eq!(errno(mount.patch(16, &1234u64.to_be_bytes())), libc::EINVAL);
    let held = mount.read(NAME);
    assert_eq!(held[16..24], 1234u64.to_be_bytes());
    mount.wait(5);
    mount.sync();
    assert!(mount.read(NAME) == held);
    // Not while somebody may still write.
    let handle = mount.open(NAME, false).unwrap();
    assert!(mount.wait(15).is_empty() && mount.read(NAME) == held);
    mount.close(handle).unwrap();
    assert_eq!(mount.wait(15), [Invalidation::Data(mount.ino(NAME).unwrap())]);
    assert!(mount.read(NAME) == before);
    // The other half makes it whole.
    assert_eq!(errno(mount.patch(16, &1234u64.to_be_bytes())), libc::EINVAL);
    mount.patch(16, &(before.len() as u64).to_be_bytes()).unwrap();
    assert!(mount.read(NAME) == before);
    assert_eq!(mount.since(), (0, 0));
}

#[test]
fn a_chunk_patched_in_place_is_taken_after_a_second() {
    let mount = Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE);
    mount.patch(BASE as u64 + 96, &chunk(9, CHUNKSIZE)).unwrap();
    assert_eq!(mount.committed(), [full(1), full(2), full(3)]);
    let now = Instant::now();
    let due = mount.view().tick(now, &mut Vec::new()).unwrap();
    assert!(due <= now + Duration::from_secs(1));
    // Whoever has it open but wrote nothing of this does not matter.
    let idle = mount.open(NAME, false).unwrap();
    mount.wait(2);
    assert_eq!(mount.committed(), [full(1), full(9), full(3)]);
    assert_eq!(mount.since(), (1, 1));
    mount.close(idle).unwrap();
    // Or when somebody asks for it to be on disk.
    mount.patch(BASE as u64, &chunk(8, CHUNKSIZE)).unwrap();
    mount.sync();
    assert_eq!(mount.committed(), [full(8), full(9), full(3)]);
    // But a chunk where another one was is what a library leaves that was killed while it moved them.
    assert_eq!(errno(mount.patch(BASE as u64, &chunk(9, CHUNKSIZE))), libc::EINVAL);
    // And a chunk of a size that does not fit is none.
    assert_eq!(errno(mount.patch(BASE as u64, &chunk(9, CHUNKSIZE - 1))), libc::EINVAL);
    mount.wait(20);
    assert_eq!(mount.committed(), [full(8), full(9), full(3)]);
}

/// A library that is killed when it has just begun to move what is behind a chunk has written over a part of one, and nothing in
/// that chunk's structure tells.
#[test]
fn a_chunk_of_which_only_a_part_was_written_is_never_taken() {
    let mut mount = Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE);
    for (offset, len) in [(32 + 40, 24), (32, 63), (0, 95), (1, 95)] {
        assert_eq!(errno(mount.patch(BASE as u64 + 96 + offset, &chunk(9, CHUNKSIZE)[offset as usize..][..len])), libc::EINVAL);
        mount.sync();
        mount.wait(20);
        assert_eq!(mount.committed(), [full(1), full(2), full(3)]);
    }
    assert_eq!(errno(mount.patch(BASE as u64 + 96 + 50, &[9; 10])), libc::EINVAL);
    mount.unmount().unwrap();
    assert_eq!(mount.committed(), [full(1), full(2), full(3)]);
}

#[test]
fn what_is_left_at_the_unmount_is_taken_if_it_is_a_frame() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    mount.patch(BASE as u64, &chunk(9, CHUNKSIZE)).unwrap();
    mount.unmount().unwrap();
    assert_eq!(mount.committed(), [full(9), full(2)]);
    mount.mount(false);
    assert_eq!(errno(mount.patch(16, &[0; 8])), libc::EINVAL);
    mount.unmount().unwrap();
    assert_eq!(mount.committed(), [full(9), full(2)]);
}

#[test]
fn a_change_of_length_without_a_handle_ends_with_the_call() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let (before, ino) = (mount.read(NAME), mount.ino(NAME).unwrap());
    for size in [0, 10, before.len() as u64 - 1, before.len() as u64 + 1, 1 << 40] {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        assert_eq!(errno(mount.view().setattr(ino, None, set, &mut Vec::new())), libc::EINVAL, "{size}");
        assert!(mount.read(NAME) == before, "{size}");
    }
    let set = SetAttr { size: Some(before.len() as u64), ..SetAttr::default() };
    assert_eq!(mount.view().setattr(ino, None, set, &mut Vec::new()).unwrap().size, before.len() as u64);
    assert_eq!(mount.since(), (0, 0));
}

#[test]
fn writes_through_a_mapping_come_after_the_close() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let new = frame([5, 6, 7]);
    let handle = mount.open(NAME, false).unwrap();
    mount.view().flush(handle, &mut Vec::new()).unwrap();
    mount.view().write(handle, 0, &new).unwrap();
    mount.view().release(handle, &mut Vec::new());
    mount.sync();
    assert_eq!(mount.committed(), [full(5), full(6), full(7)]);
}

#[test]
fn holes_read_as_zeros_and_the_kernel_is_told() {
    let mount = Mount::of(&[full(1)], CHUNKSIZE);
    let mut new = frame([1, 2, 3]);
    // As after a delete: the chunk's bytes are still there, and no entry names them.
    let cells = [full(1), full(3)];
    let head = BASE + 3 * 96;
    let entries = [0u64, 192].map(|at| IndexEntry::Stored(crate::format::ChunkOffset::new(at)));
    let index = crate::format::index::encode(entries.into_iter()).unwrap();
    let trailer = new.split_off(new.len() - 35);
    new.truncate(head);
    new.extend(index);
    new.extend(trailer);
    let len = new.len() as u64;
    new[16..24].copy_from_slice(&len.to_be_bytes());
    new[30..38].copy_from_slice(&128u64.to_be_bytes());
    let handle = mount.open(NAME, true).unwrap();
    mount.view().write(handle, 0, &new).unwrap();
    let mut invalidations = Vec::new();
    mount.view().flush(handle, &mut invalidations).unwrap();
    assert_eq!(invalidations, [Invalidation::Range(mount.ino(NAME).unwrap(), BASE as u64 + 96, 96)]);
    assert_eq!(mount.committed(), cells);
    new[BASE + 96..BASE + 192].fill(0);
    assert!(mount.read(NAME) == new);
    // A hole that stays one is not told again.
    let mut invalidations = Vec::new();
    mount.view().write(handle, 16, &len.to_be_bytes()).unwrap();
    mount.view().write(handle, 0, &new[..BASE]).unwrap();
    mount.view().flush(handle, &mut invalidations).unwrap();
    assert!(invalidations.is_empty());
}

#[test]
fn a_commit_that_fails_is_said_and_the_frame_saved() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    mount.store.as_ref().unwrap().stale.store(true, std::sync::atomic::Ordering::SeqCst);
    let new = frame([3, 2, 1]);
    assert_eq!(errno(mount.cp(NAME, &new)), libc::ESTALE);
    assert!(mount.read(NAME) == new, "what is held goes on being shown");
    let lost = mount.dir.path().join("f.b2frame.lost");
    for _ in 0..2 {
        let left = mount.view().leave(false, &mut Vec::new());
        assert!(left.is_safe() && !left.is_nothing());
        assert_eq!(
            left.lost.into_iter().map(|lost| (lost.name, lost.saved.unwrap())).collect::<Vec<_>>(),
            [(NAME.to_owned(), lost.join(NAME))]
        );
    }
    assert_eq!(errno(mount.unmount()), libc::ESTALE);
    assert!(std::fs::read(lost.join(NAME)).unwrap() == new);
    assert_eq!(std::fs::read_dir(lost).unwrap().count(), 1, "saved once");
    assert_eq!(mount.committed(), [full(1), full(2)]);
}

#[test]
fn what_there_is_no_room_for_is_held_until_there_is() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let full_disk = |full| mount.store.as_ref().unwrap().full.store(full, std::sync::atomic::Ordering::SeqCst);
    let new = frame([3, 2, 1, 4]);
    full_disk(true);
    assert_eq!(errno(mount.cp(NAME, &new)), libc::ENOSPC);
    assert!(mount.wait(20).is_empty() && mount.read(NAME) == new);
    assert_eq!(errno(mount.view().fsync(ROOT, &mut Vec::new())), libc::ENOSPC);
    let left = mount.view().leave(false, &mut Vec::new());
    assert!(!left.is_safe() && left.lost.is_empty(), "it may succeed later");
    assert!(!mount.dir.path().join("f.b2frame.lost").exists());
    full_disk(false);
    mount.sync();
    assert_eq!(mount.committed(), [full(3), full(2), full(1), full(4)]);
    full_disk(true);
    let other = frame([9, 2]);
    assert_eq!(errno(mount.cp(NAME, &other)), libc::ENOSPC);
    assert_eq!(errno(mount.unmount()), libc::ENOSPC);
    assert!(std::fs::read(mount.dir.path().join("f.b2frame.lost").join(NAME)).unwrap() == other);
}

#[test]
fn superseded_states_leave_nothing_behind() {
    let mut mount = Mount::of(&[full(0)], CHUNKSIZE);
    for n in 1..40u8 {
        // In a burst most of these are never committed.
        mount.cp(NAME, &frame([n, n + 1, n + 2])).unwrap();
    }
    mount.unmount().unwrap();
    assert_eq!(mount.committed(), [full(39), full(40), full(41)]);
    assert_eq!(std::fs::read_dir(mount.path()).unwrap().count(), 4);
}

#[test]
fn lengths_that_lie_take_no_memory() {
    let mount = Mount::of(&[full(1)], CHUNKSIZE);
    let before = mount.read(NAME);
    for (nbytes, cbytes) in [(1u64 << 40, 0u64), (0, 0), (1 << 40, (1 << 50) - (1 << 30))] {
        let len = 1u64 << 50;
        let mut head = before[..BASE].to_vec();
        head[16..24].copy_from_slice(&len.to_be_bytes());
        head[30..38].copy_from_slice(&nbytes.to_be_bytes());
        head[39..47].copy_from_slice(&cbytes.to_be_bytes());
        head[58..62].copy_from_slice(&(1u32 << 30).to_be_bytes());
        let mut tail = before[before.len() - 35..].to_vec();
        let at = tail.len() - 22;
        tail[at..at + 4].copy_from_slice(&(1u32 << 30).to_be_bytes());
        let handle = mount.open(NAME, true).unwrap();
        mount.view().write(handle, 0, &head).unwrap();
        mount.view().write(handle, len - 35, &tail).unwrap();
        assert_eq!(errno(mount.close(handle)), libc::EINVAL);
    }
    // Nor in a temporary file that is renamed over the frame.
    let (len, header_len) = ((1u64 << 31) + 100, i32::MAX);
    let mut head = before[..BASE].to_vec();
    head[11..15].copy_from_slice(&header_len.to_be_bytes());
    head[16..24].copy_from_slice(&len.to_be_bytes());
    let handle = mount.open(".t", true).unwrap();
    mount.view().write(handle, 0, &head).unwrap();
    mount.view().write(handle, len - 35, &before[before.len() - 35..]).unwrap();
    mount.close(handle).unwrap();
    let Err(ViewError::Rejected(error)) = mount.mv(".t", NAME) else { panic!("not refused") };
    assert!(error.got.ends_with("bytes that were never written"), "{error}");
    assert!(mount.read(NAME) == before);
}

#[test]
fn readers_see_whole_chunks_while_others_write() {
    let cells: Vec<Cell> = (0..64u8).map(full).collect();
    let mount = Mount::of(&cells, CHUNKSIZE);
    let (view, ino) = (mount.view(), mount.ino(NAME).unwrap());
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers = (0..2).map(|_| {
            scope.spawn(|| {
                let mut seen = 0;
                while !ended.load(std::sync::atomic::Ordering::SeqCst) || seen == 0 {
                    let mut buf = [0; 96];
                    assert_eq!(view.read(ino, None, BASE as u64 + 96 * 40, &mut buf).unwrap(), 96);
                    assert_eq!(buf[..], chunk(40, CHUNKSIZE)[..]);
                    seen += 1;
                }
            })
        });
        let readers: Vec<_> = readers.collect();
        let mut cells = cells.clone();
        for n in 0..60u8 {
            cells[usize::from(n) % 40] = full(100 + n);
            let new = cframe(&cells, CHUNKSIZE, CHUNKSIZE as i32);
            let handle = mount.open(NAME, false).unwrap();
            view.write(handle, 0, &new).unwrap();
            mount.close(handle).unwrap();
            mount.view().publish().unwrap();
        }
        ended.store(true, std::sync::atomic::Ordering::SeqCst);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn of_two_writers_one_frame_is_left_and_it_is_committed() {
    let mount = Mount::of(&vec![full(0); 8], CHUNKSIZE);
    let frames: Vec<Vec<u8>> = (0..16u8).map(|n| frame((0..8).map(|k| n * 8 + k))).collect();
    let view = mount.view();
    let ino = mount.ino(NAME).unwrap();
    std::thread::scope(|scope| {
        for (n, frames) in frames.chunks(8).enumerate() {
            scope.spawn(move || {
                for round in 0..80 {
                    let mode = OpenMode { write: true, ..OpenMode::default() };
                    let handle = view.open(ino, mode).unwrap().handle;
                    view.write(handle, 0, &frames[(round + n) % 8]).unwrap();
                    if round % 9 == n {
                        view.fsync(ino, &mut Vec::new()).unwrap();
                    }
                    view.tick(Instant::now(), &mut Vec::new());
                    view.flush(handle, &mut Vec::new()).unwrap();
                    view.release(handle, &mut Vec::new());
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..2000 {
                let mut buf = vec![0; frames[0].len()];
                view.read(ino, None, 0, &mut buf).unwrap();
                assert!(buf[..BASE] == frames[0][..BASE]);
                view.getattr(ino).unwrap();
            }
        });
    });
    mount.sync();
    let left = mount.read(NAME);
    assert!(frames.contains(&left));
    assert!(Mount::of_bytes(&left).committed() == mount.committed());
}

#[test]
fn the_end_of_a_handle_leaves_alone_what_another_has_begun_meanwhile() {
    let mount = Mount::of_bytes(&frame([1, 2, 3]));
    let (view, ino) = (mount.view(), mount.ino(NAME).unwrap());
    for round in 0..50 {
        let refused = mount.open(NAME, true).unwrap();
        view.write(refused, 0, b"no frame").unwrap();
        assert_eq!(errno(view.flush(refused, &mut Vec::new())), libc::EINVAL);
        let (begins, has_begun) = std::sync::mpsc::channel();
        let next = mount.open(NAME, false).unwrap();
        std::thread::scope(|scope| {
            // The kernel releases a file some time after its close: here it waits for the lock while another is cut to nothing.
            let writing = view.writing.lock();
            scope.spawn(move || {
                begins.send(()).unwrap();
                view.release(refused, &mut Vec::new());
            });
            has_begun.recv().unwrap();
            for _ in 0..100 {
                std::thread::yield_now();
            }
            view.change_frame(next, Change::Empty).unwrap();
            drop(writing);
        });
        assert_eq!(view.getattr(ino).unwrap().size, 0, "round {round}: what was cut is seen");
        mount.close(next).unwrap_err();
    }
}
