//! Random work beside a model.

use crate::disk::Dir;
use crate::driver::{Driver, NAME, Store, create, open};
use crate::for_both;
use crate::frames::data;

for_both!(what_was_committed_is_what_is_read, real_frames_take_any_change);

fn what_was_committed_is_what_is_read<S: Store>() {
    for seed in 0..if cfg!(debug_assertions) { 15 } else { 200 } {
        let dir = Dir::default();
        let mut driver = Driver::new(&dir, create::<S>(&dir).unwrap(), seed, 3000);
        driver.commit().unwrap();
        for _ in 0..150 {
            driver.step().unwrap();
            if driver.random.below(10) == 0 {
                driver.commit().unwrap();
                driver.check_file(&dir);
            }
        }
        driver.commit().unwrap();
        driver.store.close().unwrap();
        driver.check_file(&dir);
        assert_eq!(dir.names(), [NAME], "seed {seed}");
    }
}

fn real_frames_take_any_change<S: Store>() {
    for (seed, path) in data(S::DATA).into_iter().enumerate() {
        let dir = S::disk(&path);
        let mut driver = Driver::new(&dir, open::<S>(&dir, false).unwrap(), seed as u64, 2000);
        for _ in 0..150 {
            driver.step().unwrap();
        }
        driver.commit().unwrap();
        driver.check_file(&dir);
    }
}
