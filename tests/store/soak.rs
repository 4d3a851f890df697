//! Power cuts for as long as one likes: `scripts/crash-soak` says how long by `B2FUSE_CRASH_SECONDS`, and where to begin by
//! `B2FUSE_CRASH_SEED`. Without them it is a few rounds.

use std::any::type_name;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::changes::{sequences, survive_power_cuts};
use crate::disk::{Dir, start};
use crate::driver::{Driver, Store, create, open};
use crate::for_both;
use crate::frames::{Random, data};
use crate::history::{History, IMAGES, Plan};

for_both!(power_cuts_without_end);

fn power_cuts_without_end<S: Store>() {
    let number = |name| env::var(name).ok().map(|value| value.parse::<u64>().expect(name));
    let (seconds, first) = (number("B2FUSE_CRASH_SECONDS"), number("B2FUSE_CRASH_SEED").unwrap_or(1));
    let began = Instant::now();
    let goes_on = |seed: u64| match seconds {
        Some(seconds) => began.elapsed() < Duration::from_secs(seconds),
        None => seed < first + 3,
    };
    let mut failures = vec![];
    for seed in (first..).take_while(|seed| goes_on(*seed)) {
        if catch_unwind(AssertUnwindSafe(|| round::<S>(seed))).is_err() {
            eprintln!("failed: {}, B2FUSE_CRASH_SEED={seed}", type_name::<S>());
            failures.push(seed);
        }
    }
    println!(
        "{}: {} images in {} s, {} failures",
        type_name::<S>().rsplit("::").next().unwrap(),
        IMAGES.get(),
        began.elapsed().as_secs(),
        failures.len()
    );
    assert!(failures.is_empty(), "seeds {failures:?}");
}

/// Some triples of changes, and a long random sequence on a frame that is new or a real one.
fn round<S: Store>(seed: u64) {
    survive_power_cuts::<S>(sequences(2, 7).chain(sequences(3, 37)), seed);
    let mut random = Random(seed);
    let real = data(S::DATA);
    let dir = match random.below(3) {
        0 => S::disk(&real[random.below(real.len() as u64) as usize]),
        _ => Dir::default(),
    };
    let start = start(&dir);
    let max_len = [200, 1500, 6000, 15_000][random.below(4) as usize];
    let store = if dir.names().is_empty() { create::<S>(&dir) } else { open::<S>(&dir, false) };
    let mut driver = Driver::new(&dir, store.unwrap(), seed, max_len);
    driver.mostly_headers = random.below(5) == 0;
    if random.below(4) == 0 {
        // What is dropped is little beside these.
        driver.add_large(20, 1500).unwrap();
        driver.commit().unwrap();
    }
    for _ in 0..random.below(60) {
        driver.step().unwrap();
        if random.below(15) == 0 && driver.store.committed().is_some() {
            if random.below(3) == 0 {
                dir.kill(driver.store.clone());
            } else {
                driver.close().unwrap();
            }
            driver.mount_again(open::<S>(&dir, false).unwrap());
        }
    }
    driver.close().unwrap();
    let plan = Plan { any: 4, again: 100, seed, ..Plan::default() };
    History::new(start, &driver).judge::<S>(plan).unwrap_or_else(|error| panic!("a long sequence of seed {seed}: {error}"));
}
