//! Power cuts at every operation, and failures of every operation.

use std::ffi::OsStr;

use b2fuse::store::{CframeStore, OpenOptions, SframeStore, StoreError};

use crate::changes::Change;
use crate::disk::{Cut, Dir, Node, Op, Start, cuts, start};
use crate::driver::{Driver, Frame, NAME, Store, create, open};
use crate::for_both;
use crate::frames::{Random, data};
use crate::history::{History, Plan, found};

for_both!(
    a_power_cut_leaves_the_old_state_or_the_new_one,
    large_frames_survive_power_cuts,
    changes_of_the_header_survive_power_cuts,
    real_frames_survive_power_cuts,
    a_store_goes_on_after_a_cut,
    mounts_one_after_the_other_survive_power_cuts,
    what_was_committed_before_a_kill_is_on_disk_before_its_room_is_used,
    a_failed_operation_ends_all_writing_and_harms_nothing,
    a_change_by_others_is_not_overwritten,
    replacing_survives_power_cuts,
    a_chunk_that_was_removed_and_comes_back_is_on_disk,
);

/// Fewer where the compiler has not made it fast.
fn many(seeds: u64) -> u64 {
    if cfg!(debug_assertions) { seeds / 5 } else { seeds }
}

/// Cuts the power everywhere in what a driver did on a disk that was as `start`, and in what follows upon some of the cuts.
fn cut_everywhere<S: Store>(driver: &Driver<S>, start: Start, any: u64, seed: u64) {
    let plan = Plan { any, again: 400, seed, ..Plan::default() };
    History::new(start, driver).judge::<S>(plan).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}

fn a_power_cut_leaves_the_old_state_or_the_new_one<S: Store>() {
    for seed in 0..many(40) {
        let dir = Dir::default();
        let start = start(&dir);
        let mut driver = Driver::new(&dir, create::<S>(&dir).unwrap(), seed, 1500);
        for _ in 0..50 {
            driver.step().unwrap();
        }
        cut_everywhere(&driver, start, 5, seed);
    }
}

/// Where the space of what is dropped is not waited for, three states are in the file: two that a cut may leave, and the next.
fn large_frames_survive_power_cuts<S: Store>() {
    for seed in 0..many(40) {
        let dir = Dir::default();
        let start = start(&dir);
        let mut driver = Driver::new(&dir, create::<S>(&dir).unwrap(), seed, 400);
        driver.add_large(30, 1500).unwrap();
        driver.commit().unwrap();
        for _ in 0..40 {
            driver.step().unwrap();
        }
        cut_everywhere(&driver, start, 2, seed);
    }
}

fn changes_of_the_header_survive_power_cuts<S: Store>() {
    for seed in 0..many(200) {
        let dir = Dir::default();
        let start = start(&dir);
        let mut driver = Driver::new(&dir, create::<S>(&dir).unwrap(), seed, 200);
        driver.mostly_headers = true;
        for _ in 0..40 {
            driver.step().unwrap();
        }
        cut_everywhere(&driver, start, 3, seed);
    }
}

fn real_frames_survive_power_cuts<S: Store>() {
    for (seed, path) in data(S::DATA).into_iter().enumerate() {
        let dir = S::disk(&path);
        let start = start(&dir);
        let mut driver = Driver::new(&dir, open::<S>(&dir, false).unwrap(), seed as u64, 1500);
        for _ in 0..25 {
            driver.step().unwrap();
        }
        cut_everywhere(&driver, start, 3, seed as u64);
    }
}

fn a_store_goes_on_after_a_cut<S: Store>() {
    for seed in 0..many(100) {
        let dir = Dir::default();
        let start = start(&dir);
        let mut driver = Driver::new(&dir, create::<S>(&dir).unwrap(), seed, 1500);
        driver.commit().unwrap();
        for _ in 0..40 {
            driver.step().unwrap();
        }
        let log = dir.log();
        let upto = Random(seed).below(log.len() as u64) as usize;
        let dir = Dir::after_cut(&start, &log[..upto], Cut::Any(seed));
        let Ok(store) = open::<S>(&dir, false) else { continue };
        let mut driver = Driver::new(&dir, store, seed, 1500);
        for _ in 0..40 {
            driver.step().unwrap();
        }
        driver.commit().unwrap();
        driver.check_file(&dir);
    }
}

/// The power goes at any moment of any of them: also when a daemon was killed, and what it had committed was not on disk yet.
fn mounts_one_after_the_other_survive_power_cuts<S: Store>() {
    for seed in 0..many(60) {
        let dir = Dir::default();
        let start = start(&dir);
        let max_len = [300, 1500, 15_000][seed as usize % 3];
        let mut driver = Driver::new(&dir, create::<S>(&dir).unwrap(), seed, max_len);
        if seed % 4 == 0 {
            driver.add_large(10, 3000).unwrap();
        }
        driver.commit().unwrap();
        for _ in 0..8 {
            for _ in 0..driver.random.below(8) {
                driver.step().unwrap();
            }
            match driver.random.below(3) {
                0 => dir.kill(driver.store.clone()),
                _ => driver.close().unwrap(),
            }
            driver.mount_again(open::<S>(&dir, false).unwrap());
        }
        cut_everywhere(&driver, start, 3, seed);
    }
}

/// A daemon that is killed leaves a state that perhaps is not on disk, and there is an older one, which needs what is free in this.
fn what_was_committed_before_a_kill_is_on_disk_before_its_room_is_used<S: Store>() {
    for seed in 0..many(20) {
        let dir = Dir::default();
        let start = start(&dir);
        let mut driver = Driver::new(&dir, create::<S>(&dir).unwrap(), seed, 1500);
        driver.add_large(40, 1500).unwrap();
        driver.commit().unwrap();
        driver.close().unwrap();
        driver.mount_again(open::<S>(&dir, false).unwrap());
        // So little that its space is not waited for.
        for _ in 0..2 {
            driver.change(Change::Replace).unwrap();
        }
        driver.commit().unwrap();
        dir.kill(driver.store.clone());
        driver.mount_again(open::<S>(&dir, false).unwrap());
        for _ in 0..3 {
            driver.change(Change::Append).unwrap();
            while driver.store.tidy() {}
        }
        let plan = Plan { any: 6, seed, ..Plan::default() };
        History::new(start, &driver).judge::<S>(plan).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

fn a_failed_operation_ends_all_writing_and_harms_nothing<S: Store>() {
    for errno in [libc::EIO, libc::ENOSPC] {
        let (mut poisoned, mut harmless) = (0, 0);
        for seed in 0..many(10) {
            let count = fail::<S>(seed, usize::MAX, errno, &mut poisoned, &mut harmless);
            for at in 0..count {
                fail::<S>(seed, at, errno, &mut poisoned, &mut harmless);
            }
        }
        let (least_poisoned, least_harmless) = if errno == libc::EIO { (50, 1) } else { (20, 20) };
        println!("errno {errno}: {poisoned} ended all writing, {harmless} did not");
        assert!(poisoned > least_poisoned * many(10) && harmless > least_harmless * many(10));
    }
}

/// Whether it is about a daemon's record of its chunk files, which nothing depends on.
fn is_of_record(dir: &Dir, op: &Op) -> bool {
    let is_record = |op: &Op| match op {
        Op::Create { name, node: Node::File(file), .. } if name == ".b2fuse-ids.tmp" => Some(*file),
        _ => None,
    };
    is_record(op).is_some() || op.file().is_some() && dir.log().iter().filter_map(is_record).any(|file| op.file() == Some(file))
}

/// Works on a store whose `at`-th operation fails, and says how many operations that was.
fn fail<S: Store>(seed: u64, at: usize, errno: i32, poisoned: &mut u64, harmless: &mut u64) -> usize {
    let dir = Dir::default();
    let start = start(&dir);
    dir.fail_at(at, errno);
    let Ok(store) = create::<S>(&dir) else { return 0 };
    let mut driver = Driver::new(&dir, store, seed, 1500);
    let mut result = driver.commit();
    for _ in 0..30 {
        if result.is_err() {
            break;
        }
        result = driver.step();
    }
    let done = dir.log_len();
    let Some(failed) = dir.failed() else {
        result.unwrap();
        return done;
    };
    let at = || format!("seed {seed}, operation {at}, {}", failed.brief());
    driver.check(); // reading goes on
    let over = match driver.sync() {
        Ok(()) => None,
        Err(StoreError::Poisoned { reason, .. }) => Some(reason),
        Err(error) => panic!("{}: {error}", at()),
    };
    let is_noted = is_of_record(&dir, &failed);
    let is_fatal = match failed {
        _ if is_noted => false,
        Op::Sync { .. } | Op::SyncDir { .. } | Op::SyncFs => true,
        Op::Write { .. } => errno == libc::EIO,
        _ => false,
    };
    assert!(over.is_some() || !is_fatal, "{}: writing goes on", at());
    // Nothing needs the error of an operation that only makes room.
    let is_removed = matches!(&failed, Op::Rename { from, .. } if from.as_encoded_bytes().ends_with(b".chunk"));
    let is_cleaning = is_noted || is_removed || matches!(failed, Op::Remove { .. } | Op::SetLen { .. });
    assert!(result.is_err() || over.is_some() || is_cleaning || errno == libc::ENOSPC, "{}: nobody was told", at());
    match over {
        Some(reason) => {
            *poisoned += 1;
            let error = std::io::Error::from_raw_os_error(errno).to_string();
            let words = error.split(" (os error").next().unwrap();
            assert!(reason.contains(words), "{}: {reason}", at());
            let before = dir.log_len();
            assert!(matches!(driver.store.commit(driver.store.enter(), driver.image()), Err(StoreError::Poisoned { .. })));
            assert!(matches!(driver.store.stage(&vec![0; 50]), Err(StoreError::Poisoned { .. })));
            driver.check();
            assert_eq!(dir.log_len(), before, "{}: something was written after a failure", at());
            let _ = driver.store.close();
        }
        None => {
            *harmless += 1;
            for _ in 0..5 {
                driver.step().unwrap_or_else(|error| panic!("{}, and then {error}", at()));
            }
            driver.commit().unwrap();
            driver.check_file(&dir);
            driver.close().unwrap();
        }
    }
    // And then the power goes.
    let plan = Plan { from: done, any: 3, seed, ..Plan::default() };
    History::new(start, &driver).judge::<S>(plan).unwrap_or_else(|error| panic!("{}, and then {error}", at()));
    done
}

fn a_change_by_others_is_not_overwritten<S: Store>() {
    for tamper in 0..3 {
        let dir = Dir::default();
        let mut driver = Driver::new(&dir, create::<S>(&dir).unwrap(), 1, 1500);
        driver.commit().unwrap();
        for _ in 0..20 {
            driver.step().unwrap();
        }
        driver.commit().unwrap();
        assert!(!driver.store.changed_outside().unwrap());
        let (dir, name) = S::index(&dir);
        let bytes = dir.bytes(name).unwrap();
        match tamper {
            0 => dir.meddle(name, 16, &bytes[16..24]), // no byte is another, but it was written
            1 => dir.meddle(name, bytes.len() as u64, b"x"),
            _ => {
                use b2fuse::store::backend::Backend;
                dir.create(OsStr::new("other"), 0).unwrap().write_at(&bytes, 0).unwrap();
                dir.rename(OsStr::new("other"), OsStr::new(name), true).unwrap();
            }
        }
        assert!(driver.store.changed_outside().unwrap());
        let before = dir.bytes(name).unwrap();
        while driver.states.last() == Some(&Some(driver.frame())) {
            driver.step().unwrap_or(());
        }
        assert!(matches!(driver.commit(), Err(StoreError::Stale { .. })));
        driver.store.close().unwrap();
        let after = dir.bytes(name).unwrap();
        let sector = before.len().min(512);
        assert!(after[..sector] == before[..sector], "the header of another was overwritten");
    }
}

/// What is in SOURCE, whichever layout it has.
fn found_either(dir: &Dir) -> Frame {
    let cframe = dir.bytes(NAME).is_some();
    let found = if cframe { found::<CframeStore>(dir) } else { found::<SframeStore>(dir) };
    found.unwrap().expect("there is one at every instant")
}

fn replacing_survives_power_cuts<S: Store>() {
    let olds = [CframeStore::disk(&data("cframe")[3]), SframeStore::disk(&data("sframe")[3])];
    for (seed, dir) in olds.into_iter().enumerate() {
        let (start, old) = (start(&dir), found_either(&dir));
        let options = OpenOptions { replace: true, ..OpenOptions::default() };
        let mut driver = Driver::new(&dir, S::create_in(&dir, options).unwrap(), seed as u64, 1500);
        driver.add_large(3, 700).unwrap();
        let before = dir.log_len();
        driver.commit().unwrap();
        let (log, new) = (dir.log(), driver.frame());
        assert!(new != old && found_either(&dir) == new);
        assert_eq!(dir.names(), [NAME], "what was replaced is gone");
        for upto in 0..=log.len() {
            for cut in cuts(&log[..upto], 20, seed as u64) {
                let dir = Dir::after_cut(&start, &log[..upto], cut);
                let found = found_either(&dir);
                assert!(found == old || found == new, "{cut:?} after {upto}");
                assert!(found == old || upto > before, "before the commit");
            }
        }
        let dir = Dir::after_cut(&start, &log, Cut::Any(1));
        assert!(found_either(&dir) == new, "it was on disk when the commit returned");
    }
}

/// A file that was removed while it is open keeps its chunk, and may get a name again.
fn a_chunk_that_was_removed_and_comes_back_is_on_disk<S: Store>() {
    let dir = Dir::default();
    let start = start(&dir);
    let mut driver = Driver::new(&dir, create::<S>(&dir).unwrap(), 1, 1500);
    driver.commit().unwrap();
    driver.add_large(1, 1500).unwrap();
    let entry = driver.entries[0];
    let key = entry.stored().unwrap();
    driver.store.pin(key);
    driver.entries.clear();
    driver.let_go(entry);
    driver.entries.push(entry);
    driver.commit().unwrap();
    driver.sync().unwrap();
    let plan = Plan { any: 10, ..Plan::default() };
    History::new(start, &driver).judge::<S>(plan).unwrap();
}
