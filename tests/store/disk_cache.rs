//! The cache on disk when operations fail, and when the power goes: nothing but what was put is ever got.

use std::path::Path;
use std::sync::Arc;

use b2fuse::store::disk_cache::{DiskCache, Piece};

use crate::disk::{Dir, cuts, start};

const URL: &str = "https://host/frame";
const PIECES: u64 = 7;

fn cache(disk: &Dir) -> Option<Arc<DiskCache>> {
    DiskCache::in_backend(Box::new(disk.clone()), Path::new("cache"), Some(1 << 20)).ok()
}

/// What is put as a piece the first time, or again. The longest have several sectors.
fn piece(number: u64, again: bool) -> Piece {
    let bytes: Vec<u8> = (0..10 + number * 300).map(|at| (at * 7 + number * 31) as u8 ^ u8::from(again)).collect();
    Piece { total_len: bytes.len() as u64 + number, bytes, tag: format!("tag {again}") }
}

fn put(cache: &Arc<DiskCache>, number: u64, again: bool) {
    if let Ok(state) = cache.state(URL, if number.is_multiple_of(2) { "even" } else { "odd" }) {
        let Piece { bytes, total_len, tag } = piece(number, again);
        state.put("object", number, &bytes, total_len, &tag);
    }
}

/// All that the cache is for: pieces, pieces replaced, and a state that is dropped.
fn work(disk: &Dir) {
    let Some(cache) = cache(disk) else { return };
    (0..PIECES).for_each(|number| put(&cache, number, false));
    (0..PIECES).step_by(3).for_each(|number| put(&cache, number, true));
    if let Ok(state) = cache.state(URL, "odd") {
        state.discard("a test");
    }
    put(&cache, 1, true);
    drop(cache);
}

/// How many pieces are got. They are what was put.
fn got(disk: &Dir) -> u64 {
    let Some(cache) = cache(disk) else { return 0 };
    let mut count = 0;
    for number in 0..PIECES {
        let Ok(state) = cache.state(URL, if number.is_multiple_of(2) { "even" } else { "odd" }) else { continue };
        if let Some(found) = state.get("object", number) {
            assert!([false, true].iter().any(|again| found == piece(number, *again)), "piece {number}: {found:?}");
            count += 1;
        }
    }
    count
}

/// It can be used again.
fn recovers(disk: &Dir) {
    let cache = cache(disk).expect("the disk is good again");
    let state = cache.state(URL, "even").expect("the disk is good again");
    state.discard("a test");
    assert_eq!(state.get("object", 0), None);
}

#[test]
fn a_cut_of_the_power_leaves_pieces_whole_or_none() {
    let disk = Dir::default();
    let before = start(&disk);
    work(&disk);
    assert_eq!(got(&disk), 5);
    let log = disk.log();
    let (mut images, mut most, mut least) = (0, 0, u64::MAX);
    for end in 0..=log.len() {
        for cut in cuts(&log[..end], 12, 1) {
            let after = Dir::after_cut(&before, &log[..end], cut);
            let count = got(&after);
            (most, least) = (most.max(count), least.min(count));
            recovers(&after);
            images += 1;
        }
    }
    assert!(images > 1000 && most == PIECES && least == 0, "{images} {least} {most}");
}

#[test]
fn whatever_fails_nothing_wrong_is_got() {
    let whole = Dir::default();
    work(&whole);
    let operations = whole.log().len();
    for errno in [libc::EIO, libc::ENOSPC] {
        for at in 0..operations {
            let disk = Dir::default();
            disk.fail_at(at, errno);
            work(&disk);
            // One piece, or the folder of one, is what a failure costs; the whole of a state if that is being dropped.
            assert!(disk.failed().is_some());
            assert!(got(&disk) >= 3, "operation {at}: {:?}", disk.failed());
            recovers(&disk);
        }
    }
}
