//! Random work beside a model.

use crate::disk::Dir;
use crate::driver::{Driver, NAME, create, open};
use crate::frames::data;

#[test]
fn what_was_committed_is_what_is_read() {
    for seed in 0..if cfg!(debug_assertions) { 15 } else { 200 } {
        let dir = Dir::default();
        let mut driver = Driver::new(create(&dir).unwrap(), seed, 3000);
        driver.commit().unwrap();
        for _ in 0..150 {
            driver.step().unwrap();
            if driver.random.below(10) == 0 {
                driver.commit().unwrap();
                driver.check_file(&dir);
            }
        }
        driver.commit().unwrap();
        b2fuse::store::FrameStore::close(&driver.store).unwrap();
        driver.check_file(&dir);
        assert_eq!(dir.names(), [NAME], "seed {seed}");
    }
}

#[test]
fn real_frames_take_any_change() {
    for (seed, path) in data("cframe").into_iter().enumerate() {
        let dir = Dir::with_file(NAME, std::fs::read(&path).unwrap());
        let mut driver = Driver::new(open(&dir, false).unwrap(), seed as u64, 2000);
        for _ in 0..150 {
            driver.step().unwrap();
        }
        driver.commit().unwrap();
        driver.check_file(&dir);
    }
}
