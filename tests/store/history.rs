//! Cuts the power at every moment of what a store did, looks what is there, and goes on from it, to cut the power again.

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::ErrorKind;

use b2fuse::store::StoreError;

use crate::changes::Change;
use crate::disk::{Cut, Dir, Op, Start, cuts, start};
use crate::driver::{Driver, Frame, Promise, Store, create, open, try_frame_of};
use crate::frames::Random;

thread_local! {
    /// Images of disks that this test has opened, no two of one history alike.
    pub static IMAGES: Cell<u64> = const { Cell::new(0) };
}

/// What a store did, and what it said about it.
pub struct History {
    pub start: Start,
    pub log: Vec<Op>,
    states: Vec<Option<Frame>>,
    pub promises: Vec<Promise>,
}

/// How closely one looks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plan {
    /// The first operation of the log after which the power goes.
    pub from: usize,
    /// Subsets of what was not synced, at each operation.
    pub any: u64,
    /// Of so many images one is opened for writing, and the power cut again in all that this does; 0 for none.
    pub again: u64,
    pub seed: u64,
}

/// What is in SOURCE, if it exists.
pub fn found<S: Store>(dir: &Dir) -> Result<Option<Frame>, StoreError> {
    match open::<S>(dir, true) {
        Ok(store) => try_frame_of(&store).map(Some),
        Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl History {
    /// Of a driver on a disk that was as `start`.
    pub fn new<S: Store>(start: Start, driver: &Driver<S>) -> History {
        History { start, log: driver.disk.log(), states: driver.states.clone(), promises: driver.promises.clone() }
    }

    /// Which states a crash may leave when so many operations had been done.
    fn promised(&self, upto: usize) -> Promise {
        let since = self.promises.partition_point(|promise| promise.since <= upto);
        self.promises[since - 1]
    }

    /// Disks as power cuts leave them, and what they may hold.
    pub fn some_images(&self, count: u64, seed: u64) -> impl Iterator<Item = (Dir, Vec<&Frame>)> {
        let mut random = Random(seed);
        (0..count).map(move |_| {
            let upto = random.below(self.log.len() as u64 + 1) as usize;
            let Promise { oldest, newest, .. } = self.promised(upto);
            let dir = Dir::after_cut(&self.start, &self.log[..upto], Cut::Any(random.next()));
            (dir, self.states[oldest..=newest].iter().flatten().collect())
        })
    }

    /// Cuts the power after every operation, several ways. The first image that holds something else than the last durable
    /// state or the next one is the error.
    pub fn judge<S: Store>(&self, plan: Plan) -> Result<(), String> {
        let mut seen: HashMap<u64, Option<Frame>> = HashMap::new();
        let mut random = Random(plan.seed);
        for upto in plan.from..=self.log.len() {
            let log = &self.log[..upto];
            let Promise { oldest, newest, .. } = self.promised(upto);
            // Two states that follow each other, the one on disk and the other on its way. Which they are, this has to say
            // the same for all ways at this moment.
            let mut pairs: Vec<usize> = (oldest..newest.max(oldest + 1)).collect();
            for cut in cuts(log, plan.any, plan.seed) {
                let at = || format!("{cut:?} after {upto} ({:?})", log.last().map(Op::brief));
                let dir = Dir::after_cut(&self.start, log, cut);
                let print = dir.fingerprint();
                let found = match seen.entry(print) {
                    Entry::Occupied(known) => &*known.into_mut(),
                    Entry::Vacant(new) => {
                        IMAGES.set(IMAGES.get() + 1);
                        let found = found::<S>(&dir).map_err(|error| format!("{}: {error}", at()))?;
                        assert_eq!(dir.log_len(), 0, "to look is not to touch");
                        if plan.again > 0 && random.below(plan.again) == 0 {
                            again::<S>(dir, &found, random.next()).map_err(|error| format!("{}, then {error}", at()))?;
                        }
                        &*new.insert(found)
                    }
                };
                let is = |state: usize| state <= newest && self.states[state] == *found;
                pairs.retain(|state| is(*state) || is(state + 1));
                if pairs.is_empty() {
                    let states: Vec<usize> = (0..self.states.len()).filter(|state| self.states[*state] == *found).collect();
                    return Err(format!("{}: state {states:?}, but of {oldest} to {newest} only the last two", at()));
                }
            }
        }
        Ok(())
    }
}

/// Opens what a crash left, changes and closes it, and cuts the power everywhere in that.
fn again<S: Store>(dir: Dir, found: &Option<Frame>, seed: u64) -> Result<(), String> {
    let start = start(&dir);
    let store = if found.is_some() { open::<S>(&dir, false) } else { create::<S>(&dir) };
    let mut driver = Driver::new(&dir, store.map_err(|error| format!("opened for writing: {error}"))?, seed, 700);
    if driver.states[0] != *found {
        return Err("opened for writing: another state".into());
    }
    let mut work = || {
        for _ in 0..driver.random.below(3) {
            let change = Change::ALL[driver.random.below(Change::ALL.len() as u64) as usize];
            driver.change(change)?;
            driver.commit()?;
        }
        driver.close()
    };
    work().map_err(|error| format!("after the crash: {error}"))?;
    History::new(start, &driver).judge::<S>(Plan { any: 2, seed, ..Plan::default() })
}
