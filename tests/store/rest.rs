//! What a cframe's file keeps beside the frame: its end, its holes, and the room that was left for more.

use std::ops::Range;

use b2fuse::format::header::{FrameHeader, HeaderFields};
use b2fuse::format::metalayer::Metalayer;
use b2fuse::format::{IndexEntry, Special};
use b2fuse::store::{CframeStore, FrameStore, StoreError};

use crate::disk::{BLOCK, Dir, Op, start};
use crate::driver::{Driver, NAME, create, frame_of, open};
use crate::frames::{Random, chunk, read};
use crate::history::{History, Plan};
use crate::parsed::{Parsed, parse};

fn parsed(dir: &Dir) -> Parsed {
    parse(&dir.bytes(NAME).unwrap())
}

/// With a first commit of such chunks, on disk.
fn driver(lens: impl IntoIterator<Item = u32>) -> Driver<CframeStore> {
    let dir = Dir::default();
    let mut driver = Driver::new(&dir, create::<CframeStore>(&dir).unwrap(), 3, 1500);
    for (fill, len) in lens.into_iter().enumerate() {
        let entry = driver.stage_bytes(chunk(len, fill as u64)).unwrap();
        driver.entries.push(entry);
    }
    mark(&mut driver, 0);
    driver.commit().unwrap();
    driver.sync().unwrap();
    driver
}

/// Another header, of the same length.
fn mark(driver: &mut Driver<CframeStore>, value: u8) {
    let fields = HeaderFields { frame_len: 1 << 20, ..driver.header.fields() };
    driver.header = FrameHeader::encode(&fields, &[Metalayer { name: b"mark", content: &[value] }]).unwrap();
}

/// A commit after which so many bytes more than a tail are free at the end: how long the file was, and what it needs.
fn free_end(free: u32) -> (Driver<CframeStore>, u64) {
    let mut driver = driver([40_000, 30_000]);
    let entry = driver.stage_bytes(chunk(free, 9)).unwrap();
    driver.let_go(entry);
    let long = driver.disk.len(NAME);
    mark(&mut driver, 1);
    (driver, long)
}

#[test]
fn a_commit_cuts_the_end_off_where_more_than_a_64th_of_the_file_is_free() {
    let mut seen = [0; 3];
    for free in (900..1500).step_by(8).chain(1050..1350) {
        let (mut driver, long) = free_end(free);
        driver.commit().unwrap();
        let needed = parsed(&driver.disk).frame_len;
        let (unused, part) = (long - needed, long / 64);
        let expected = if unused > part { needed } else { long };
        assert_eq!(driver.disk.len(NAME), expected, "of {long} bytes {unused} are unused");
        seen[(unused >= part) as usize + (unused > part) as usize] += 1;
        driver.sync().unwrap();
        assert_eq!(driver.disk.len(NAME), needed, "a sync cuts all of it off");
        driver.check();
    }
    assert!(seen.iter().all(|count| *count > 0), "less, as much, more: {seen:?}");
}

/// Nothing is written behind the end that a file is cut to.
#[test]
fn what_is_staged_while_the_end_is_free_is_not_cut_off() {
    let (mut driver, _) = free_end(5000);
    let entry = driver.stage_bytes(chunk(6000, 10)).unwrap();
    driver.commit().unwrap();
    let staged = entry.stored().unwrap();
    assert!(read(&*driver.store, staged) == driver.bytes[&staged]);
    driver.sync().unwrap();
    assert!(read(&*driver.store, staged) == driver.bytes[&staged]);
    driver.entries.push(entry);
    driver.commit().unwrap();
    driver.close().unwrap();
    assert!(parsed(&driver.disk).frame == driver.frame());
}

#[test]
fn a_file_that_cannot_be_cut_stays_as_it_is() {
    for errno in [libc::EIO, libc::EPERM] {
        let (mut driver, long) = free_end(5000);
        let at = {
            let (mut other, _) = free_end(5000);
            other.commit().unwrap();
            let log = other.disk.log();
            log.iter().rposition(|op| matches!(op, Op::SetLen { .. })).expect("it is cut")
        };
        driver.disk.fail_at(at, errno);
        driver.commit().unwrap();
        assert!(matches!(driver.disk.failed(), Some(Op::SetLen { .. })));
        assert_eq!(driver.disk.len(NAME), long, "errno {errno}");
        driver.check();
        assert!(parsed(&driver.disk).frame == driver.frame() && frame_of(&*driver.store) == driver.frame());
        // Whatever was refused, the next one may do it.
        driver.sync().unwrap();
        assert_eq!(driver.disk.len(NAME), parsed(&driver.disk).frame_len, "errno {errno}");
        mark(&mut driver, 2);
        driver.commit().unwrap();
        driver.close().unwrap();
        assert!(parsed(&driver.disk).frame == driver.frame());
    }
}

/// Holes are filled from above until the file is short; the keys stay what they are, and the index what it would be from nothing.
#[test]
fn chunks_are_moved_until_the_file_is_short() {
    let mut moved = 0;
    for seed in 0..6 {
        let mut random = Random(seed);
        let dir = Dir::default();
        let start = start(&dir);
        let mut driver = Driver::new(&dir, create::<CframeStore>(&dir).unwrap(), seed, 1500);
        for fill in 0..40 {
            let entry = driver.stage_bytes(chunk(200 + random.below(3000) as u32, fill)).unwrap();
            driver.entries.push(entry);
        }
        driver.commit().unwrap();
        let before = places(&dir, &driver);
        let from = dir.log_len();
        // Some of them go, and the rest keeps its places in the index.
        for at in 0..40 {
            if random.below(5) < 3 {
                let old = std::mem::replace(&mut driver.entries[at], IndexEntry::Special(Special::Zeros));
                driver.let_go(old);
            }
        }
        driver.commit().unwrap();
        driver.sync().unwrap();
        driver.check();
        let there = parsed(&dir);
        assert!(there.frame == driver.frame(), "seed {seed}");
        let tail = there.frame_len - there.index.start;
        assert!(
            dir.len(NAME) <= 1024 + there.live() * 3 / 2 + 3 * tail,
            "seed {seed}: {} bytes for {}",
            dir.len(NAME),
            there.live()
        );
        let after = places(&dir, &driver);
        moved += after.iter().zip(&before).filter(|(after, before)| after.is_some() && after != before).count();
        // What has moved is named again beside what is new.
        for round in 0..3 {
            let at = driver.at().unwrap();
            let entry = driver.stage_bytes(chunk(500, 100 + round)).unwrap();
            let old = std::mem::replace(&mut driver.entries[at], entry);
            driver.let_go(old);
            driver.commit().unwrap();
            assert!(parsed(&dir).frame == driver.frame(), "seed {seed}, round {round}");
        }
        driver.close().unwrap();
        assert!(parsed(&dir).frame == driver.frame(), "seed {seed}, closed");
        History::new(start, &driver).judge::<CframeStore>(Plan { from, any: 3, seed, ..Plan::default() }).unwrap();
    }
    assert!(moved > 20, "only {moved} chunks were moved");
}

/// Where the chunk of each entry is.
fn places(dir: &Dir, driver: &Driver<CframeStore>) -> Vec<Option<u64>> {
    use b2fuse::format::{ChunkOffset, index};
    let bytes = dir.bytes(NAME).unwrap();
    let there = parse(&bytes);
    let index = &bytes[there.index.start as usize..there.index.end as usize];
    let entries = index::decode::<ChunkOffset>(index, Some(driver.entries.len() as u64)).unwrap();
    entries.iter().map(|entry| entry.stored().map(ChunkOffset::bytes)).collect()
}

/// An index of several blocks, of which the next one takes over what stays; and what was moved stands in a block where no entry is
/// another.
#[test]
fn an_index_that_is_taken_over_is_what_it_would_be_from_nothing() {
    let mut driver = driver([20_000; 24]);
    let low = driver.entries.drain(..12).collect::<Vec<_>>();
    driver.entries.extend([IndexEntry::Special(Special::Zeros); 40_000]);
    driver.entries.extend(low);
    driver.commit().unwrap();
    driver.sync().unwrap();
    let before = places(&driver.disk, &driver);
    for round in 0..4u64 {
        // Two of the lowest go, and those of the first block come down into their place.
        for _ in 0..2 {
            let old = driver.entries.pop().unwrap();
            driver.let_go(old);
        }
        driver.entries[20_000 + round as usize] = driver.stage_bytes(chunk(700, 100 + round)).unwrap();
        driver.commit().unwrap();
        assert!(parsed(&driver.disk).frame == driver.frame(), "round {round}");
        driver.sync().unwrap();
        assert!(parsed(&driver.disk).frame == driver.frame(), "round {round}, synced");
        driver.check();
    }
    let after = places(&driver.disk, &driver);
    let moved = after[..12].iter().zip(&before).filter(|(after, before)| after != before).count();
    assert!(moved > 2, "only {moved} chunks were moved");
    driver.close().unwrap();
    assert!(parsed(&driver.disk).frame == driver.frame());
}

/// The whole blocks of the largest holes, until the rest is less than a 64th of what lives.
fn blocks(there: &Parsed) -> Vec<Range<u64>> {
    let mut holes = there.holes();
    holes.sort_unstable_by_key(|hole| (hole.end - hole.start, hole.start));
    let mut left: u64 = holes.iter().map(|hole| hole.end - hole.start).sum();
    let mut blocks = Vec::new();
    for hole in holes.into_iter().rev() {
        let len = hole.end - hole.start;
        if left <= there.live() / 64 || len < BLOCK {
            break;
        }
        left -= len;
        let whole = hole.start.next_multiple_of(BLOCK)..hole.end / BLOCK * BLOCK;
        if !whole.is_empty() {
            blocks.push(whole);
        }
    }
    blocks.sort_unstable_by_key(|block| block.start);
    blocks
}

#[test]
fn closing_gives_whole_blocks_of_holes_back_and_no_byte_of_what_lives() {
    let mut punched_in_all = 0;
    for seed in 0..8 {
        let mut random = Random(seed);
        let mut driver = driver((0..24).map(|_| 5000 + random.below(12_000) as u32).collect::<Vec<_>>());
        // A few, and no two side by side: too little to move others for.
        for at in [2, 9, 16, 20] {
            let at = at + random.below(3) as usize;
            let old = std::mem::replace(&mut driver.entries[at], IndexEntry::Special(Special::Zeros));
            driver.let_go(old);
        }
        driver.commit().unwrap();
        let from = driver.disk.log_len();
        driver.close().unwrap();
        let there = parsed(&driver.disk);
        assert!(there.frame == driver.frame(), "seed {seed}");
        assert_eq!(driver.disk.len(NAME), there.frame_len, "seed {seed}");
        let log = driver.disk.log();
        let mut punched: Vec<_> = log[from..]
            .iter()
            .filter_map(|op| match op {
                Op::Punch { offset, len, .. } => Some(*offset..offset + len),
                _ => None,
            })
            .collect();
        punched.sort_unstable_by_key(|block| block.start);
        assert_eq!(punched, blocks(&there), "seed {seed}");
        punched_in_all += punched.len();
    }
    assert!(punched_in_all > 10, "only {punched_in_all} holes were punched");
}

#[test]
fn room_that_was_left_for_appending_goes_when_the_store_is_closed() {
    let mut left = 0;
    for count in 1..20 {
        let mut driver = driver([30_000, 20_000]);
        for fill in 0..count {
            let entry = driver.stage_bytes(chunk(900, 50 + fill)).unwrap();
            driver.entries.push(entry);
            driver.commit().unwrap();
        }
        let slack = |there: &Parsed| there.index.start - there.chunks.last().unwrap().end;
        let before = parsed(&driver.disk);
        left = left.max(slack(&before));
        driver.close().unwrap();
        let after = parsed(&driver.disk);
        assert!(after.frame == driver.frame());
        let tail = after.frame_len - after.index.start;
        assert!(slack(&after) < tail.max(512), "{count}: {} bytes are left before a tail of {tail}", slack(&after));
        assert_eq!(driver.disk.len(NAME), after.frame_len);
    }
    assert!(left > 1000, "no room was left for appending");
}

/// Closing fails at any of its operations: SOURCE is whole, and the store is closed.
#[test]
fn closing_that_fails_leaves_the_frame_as_it_is() {
    let prepare = || {
        let mut driver = driver([9000, 9000, 9000, 9000, 9000, 9000, 9000, 9000, 20_000]);
        for at in [1, 4] {
            let old = std::mem::replace(&mut driver.entries[at], IndexEntry::Special(Special::Zeros));
            driver.let_go(old);
        }
        for fill in 0..3 {
            let entry = driver.stage_bytes(chunk(900, 50 + fill)).unwrap();
            driver.entries.push(entry);
            driver.commit().unwrap();
        }
        driver.stage_bytes(chunk(15_000, 99)).unwrap(); // no image will have it
        driver
    };
    let (log, from) = {
        let mut driver = prepare();
        let from = driver.disk.log_len();
        driver.close().unwrap();
        (driver.disk.log(), from)
    };
    assert!(log[from..].iter().any(|op| matches!(op, Op::Punch { .. })), "nothing is punched");
    assert!(log[from..].iter().any(|op| matches!(op, Op::SetLen { .. })), "nothing is cut off");
    for errno in [libc::EIO, libc::ENOSPC] {
        for at in 0..log.len() - from {
            let mut driver = prepare();
            driver.disk.fail_at(from + at, errno);
            let result = driver.close();
            let failed = driver.disk.failed().unwrap().brief();
            assert!(parsed(&driver.disk).frame == driver.frame(), "errno {errno}, {failed}");
            assert!(result.is_err() || failed.starts_with("Punch"), "errno {errno}, {failed}: nobody was told");
            driver.store.close().unwrap();
            let error = driver.store.stage(&chunk(10, 1)).unwrap_err();
            assert!(!matches!(error, StoreError::Stale { .. }), "{error}");
            let again = open::<CframeStore>(&driver.disk, false).unwrap();
            assert!(frame_of(&again) == driver.frame());
        }
    }
}
