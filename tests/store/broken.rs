//! The crash tests are tested: of a store that did not sync, or did things in another order, they must find the damage.
//!
//! The log is what a disk gets to see, so a log in which an operation is left out or stands elsewhere is what a broken store
//! would have made.

use std::ffi::OsStr;

use b2fuse::store::{CframeStore, SframeStore};

use crate::changes::{Change, history, sequences, small};
use crate::disk::{Cut, Dir, Op, start};
use crate::driver::{Driver, Promise, Store, create, open};
use crate::history::{History, Plan};

/// Turns what a store did into what a broken one would have done.
type Break = fn(&mut History);

fn is_rename(op: &Op) -> bool {
    matches!(op, Op::Rename { to, .. } if !is_chunk(to))
}

/// A new one is renamed once it is written, which publishes nothing.
fn is_chunk(name: &OsStr) -> bool {
    name.as_encoded_bytes().ends_with(b".chunk")
}

fn is_data_sync(op: &Op) -> bool {
    matches!(op, Op::Sync { .. })
}

/// Puts nothing in the place of some operations.
fn lose(history: &mut History, lost: impl Fn(&Op) -> bool) {
    history.log.iter_mut().filter(|op| lost(op)).for_each(|op| *op = Op::Nothing);
}

/// The files that are given another name, and are no chunks.
fn renamed(history: &History) -> Vec<Option<usize>> {
    use crate::disk::Node::File;
    let files = history.log.iter().filter_map(|op| match op {
        Op::Rename { node: File(file), to, .. } if !is_chunk(to) => Some(Some(*file)),
        _ => None,
    });
    files.collect()
}

/// Where writes stand that begin within a header.
fn header_writes(history: &History) -> Vec<usize> {
    let is_header = |at: &usize| matches!(&history.log[*at], Op::Write { offset, data, .. } if *offset < 60 && data.len() < 100);
    (0..history.log.len()).filter(is_header).collect()
}

fn no_data_sync(history: &mut History) {
    lose(history, is_data_sync);
}

fn no_sync_of_the_directory(history: &mut History) {
    lose(history, |op| matches!(op, Op::SyncDir { .. }));
}

fn no_sync_of_new_chunks(history: &mut History) {
    let renamed = renamed(history);
    lose(history, |op| is_data_sync(op) && !renamed.contains(&op.file()));
}

fn no_sync_of_what_is_renamed(history: &mut History) {
    let renamed = renamed(history);
    lose(history, |op| is_data_sync(op) && renamed.contains(&op.file()));
}

fn header_before_index(history: &mut History) {
    for at in header_writes(history) {
        if at >= 2 && is_data_sync(&history.log[at - 1]) {
            history.log.swap(at - 2, at);
        }
    }
}

/// The header is written, and only then synced what it points to.
fn header_before_sync(history: &mut History) {
    for at in header_writes(history) {
        if at >= 1 && is_data_sync(&history.log[at - 1]) {
            history.log.swap(at - 1, at);
        }
    }
}

fn header_in_two_writes(history: &mut History) {
    for at in header_writes(history).into_iter().rev() {
        let Op::Write { file, offset, data } = history.log[at].clone() else { continue };
        let half = data.len() / 2;
        let (first, second) = (data[..half].to_vec(), data[half..].to_vec());
        history.log[at] = Op::Write { file, offset, data: first };
        history.log.insert(at + 1, Op::Write { file, offset: offset + half as u64, data: second });
        for Promise { since, .. } in history.promises.iter_mut().filter(|promise| promise.since > at) {
            *since += 1;
        }
    }
}

/// A rename before the syncs that it should wait for.
fn rename_before_sync(history: &mut History) {
    for at in (0..history.log.len()).filter(|at| is_rename(&history.log[*at])).collect::<Vec<_>>() {
        let syncs = |op: &&Op| matches!(op, Op::Sync { .. } | Op::SyncDir { .. });
        let count = history.log[..at].iter().rev().take_while(syncs).count();
        history.log[at - count..=at].rotate_right(1);
    }
}

/// Chunks are removed as soon as a state without them is published, and not when it is on disk.
fn removed_before_durable(history: &mut History) {
    for at in 0..history.log.len() {
        let syncs = |op: &Op| matches!(op, Op::SyncDir { .. });
        // By another name, and then that one.
        if matches!(&history.log[at], Op::Rename { from, .. } if is_chunk(from))
            && let Some(sync) = history.log[..at].iter().rposition(syncs)
        {
            history.log[sync..=at].rotate_right(1);
        }
    }
}

/// Holes are punched as soon as a state without what was there is published, and not when it is on disk.
fn punched_before_durable(history: &mut History) {
    for at in 0..history.log.len() {
        if matches!(&history.log[at], Op::Punch { .. })
            && let Some(sync) = history.log[..at].iter().rposition(is_data_sync)
        {
            history.log[sync..=at].rotate_right(1);
        }
    }
}

#[test]
fn holes_punched_too_early_are_found() {
    let mut found = 0;
    for seed in 0..5 {
        let dir = Dir::default();
        let mut driver = Driver::new(&dir, create::<CframeStore>(&dir).unwrap(), seed, 1500);
        driver.add_large(10, 9000).unwrap();
        driver.commit().unwrap();
        driver.close().unwrap();
        drop(driver);
        let start = start(&dir);
        let dir = Dir::after_cut(&start, &[], Cut::Clean);
        let mut driver = Driver::new(&dir, open::<CframeStore>(&dir, false).unwrap(), seed, 1500);
        for _ in 0..3 {
            driver.change(Change::Replace).unwrap();
        }
        driver.commit().unwrap();
        driver.close().unwrap();
        let mut history = History::new(start, &driver);
        let plan = Plan { any: 10, seed, ..Plan::default() };
        history.judge::<CframeStore>(plan).expect("nothing is broken yet");
        assert!(history.log.iter().any(|op| matches!(op, Op::Punch { .. })), "seed {seed}: nothing is punched");
        punched_before_durable(&mut history);
        found += u32::from(history.judge::<CframeStore>(plan).is_err());
    }
    assert!(found > 0, "holes are punched too early, and no crash shows it");
}

fn is_found<S: Store>(breaks: &[(&str, Break)]) {
    let small = small::<S>();
    for (name, broken) in breaks {
        let damage = sequences(2, 1).find_map(|changes| {
            let (mut history, _) = history::<S>(&small, &changes, 1);
            let plan = Plan { any: 4, ..Plan::default() };
            history.judge::<S>(plan).expect("nothing is broken yet");
            broken(&mut history);
            history.judge::<S>(plan).err().map(|error| format!("{changes:?}: {error}"))
        });
        println!("{name}: {}", damage.unwrap_or_else(|| panic!("{name}, and no crash shows it")));
    }
}

#[test]
fn damage_by_a_broken_cframe_store_is_found() {
    is_found::<CframeStore>(&[
        ("no data sync", no_data_sync),
        ("no sync of the directory", no_sync_of_the_directory),
        ("a new file that is not synced", no_sync_of_what_is_renamed),
        ("a new file named before it is synced", rename_before_sync),
        ("the header before the index", header_before_index),
        ("the header before the sync", header_before_sync),
        ("the header in two writes", header_in_two_writes),
    ]);
}

#[test]
fn damage_by_a_broken_sframe_store_is_found() {
    is_found::<SframeStore>(&[
        ("no data sync", no_data_sync),
        ("no sync of the directory", no_sync_of_the_directory),
        ("no sync of new chunks", no_sync_of_new_chunks),
        ("no sync of the index", no_sync_of_what_is_renamed),
        ("the index named before the chunks are synced", rename_before_sync),
        ("chunks removed too early", removed_before_durable),
    ]);
}
