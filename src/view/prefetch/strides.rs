//! Readers that take a place here and a place there, at equal distances: a column of an array through a map, for example.
//!
//! The kernel tells nothing of such a reader but its READs. Three of them at equal distances make a pattern. The next places of the
//! pattern are requested ahead, and more of them the longer it holds.

use std::ops::{Range, RangeInclusive};

use crate::view::Ino;

/// Distances differ by so much from page to page, in bytes.
const ROUNDING: u64 = 2 * super::PAGE;
/// A longer place belongs to a sequential reader, in bytes.
const LONGEST: u64 = 1 << 20;
/// Equal distances that make a pattern.
const CERTAIN: u64 = 2;
/// Places by which a READ may be early or late.
const LATE: RangeInclusive<i64> = -3..=3;
/// Places requested ahead, at most.
const DEPTH: u64 = 16;

/// The places of one reader in one file.
#[derive(Debug)]
struct Stride {
    pid: u32,
    ino: Ino,
    /// Where the first place of the pattern begins.
    first: u64,
    /// The last place. READs that touch each other make one place.
    last: Range<u64>,
    distance: i64,
    /// Equal distances so far.
    run: u64,
    /// Places behind the last one that were requested.
    asked: u64,
}

/// The patterns of a mount's readers, the one used last in front.
#[derive(Debug, Default)]
pub(super) struct Strides(Vec<Stride>);

impl Strides {
    /// `pid` has read a range of `ino`. Returns places to request.
    pub(super) fn touched(&mut self, pid: u32, ino: Ino, range: &Range<u64>) -> Vec<Range<u64>> {
        match self.0.iter().position(|stride| (stride.pid, stride.ino) == (pid, ino)) {
            Some(at) => self.0.get_mut(..=at).unwrap_or_default().rotate_right(1),
            None => {
                self.0.truncate(super::READERS - 1);
                let (first, last) = (range.start, range.clone());
                self.0.insert(0, Stride { pid, ino, first, last, distance: 0, run: 0, asked: 0 });
            }
        }
        self.0.first_mut().map_or_else(Vec::new, |stride| stride.step(range))
    }
}

impl Stride {
    fn step(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        if range.start <= self.last.end && range.end >= self.last.start {
            self.last = self.last.start.min(range.start)..self.last.end.max(range.end);
            if self.last.end - self.last.start > LONGEST {
                (self.last, self.run, self.distance) = (range.clone(), 0, 0);
            }
            return Vec::new();
        }
        let distance = range.start.wrapping_sub(self.last.start).cast_signed();
        let steps = self.steps(distance);
        if steps < 0 {
            return Vec::new();
        }
        match steps.unsigned_abs() {
            0 => (self.first, self.distance, self.run, self.asked) = (self.last.start, distance, 1, 0),
            steps => (self.run, self.asked) = (self.run + steps, self.asked.saturating_sub(steps)),
        }
        let len = self.last.end - self.last.start;
        self.last = range.clone();
        self.ask(len.max(range.end - range.start))
    }

    /// How many places of the pattern a distance is, or 0. READs of one reader come from several threads, hence out of order.
    fn steps(&self, distance: i64) -> i64 {
        let is_match = |steps: i64| distance.abs_diff(self.distance.saturating_mul(steps)) <= ROUNDING * steps.unsigned_abs();
        let near = if self.run >= CERTAIN { LATE } else { 1..=1 };
        near.filter(|steps| self.run > 0 && *steps != 0).find(|steps| is_match(*steps)).unwrap_or(0)
    }

    /// Chooses places of that length, when half of those requested are used up.
    fn ask(&mut self, len: u64) -> Vec<Range<u64>> {
        let depth = (2 * self.run).min(DEPTH);
        if self.run < CERTAIN || self.asked > depth / 2 {
            return Vec::new();
        }
        // Over all of them, what a page rounds off is least.
        let way = i128::from(self.last.start) - i128::from(self.first);
        let place = |n: u64| {
            let start = u64::try_from(i128::from(self.last.start) + way * i128::from(n) / i128::from(self.run)).ok()?;
            Some(start..start.checked_add(len)?)
        };
        let places = (self.asked + 1..=depth).map_while(place).collect();
        self.asked = depth;
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    fn read(strides: &mut Strides, pid: u32, start: u64, len: u64) -> Vec<Range<u64>> {
        strides.touched(pid, FILE, &(start..start + len))
    }

    #[test]
    fn places_at_equal_distances_are_requested_once_and_ahead() {
        // Neither the distance nor the item is at a page's beginning.
        let page = |n: u64| (600 + n * 4_152_960) / 4096 * 4096;
        for order in [(0..300).collect::<Vec<u64>>(), (0..300).rev().collect()] {
            let (mut strides, mut asked) = (Strides::default(), Vec::new());
            for (step, n) in order.iter().enumerate() {
                let is_asked = asked.iter().any(|place: &Range<u64>| place.start.abs_diff(page(*n)) <= ROUNDING);
                assert!(step < 3 || is_asked, "{n}: {asked:?}");
                asked.extend(read(&mut strides, 1, page(*n), 4096));
            }
            let last = asked.iter().filter(|place| place.start > page(299)).count() as u64;
            assert!(asked.len() as u64 <= 300 + DEPTH && last <= DEPTH, "{}", asked.len());
        }
    }

    #[test]
    fn a_pattern_outlives_reads_out_of_order() {
        let (mut strides, mut asked) = (Strides::default(), Vec::new());
        for n in [0u64, 1, 2, 4, 3, 5, 7, 6, 8, 9] {
            asked.extend(read(&mut strides, 1, n << 22, 4096));
        }
        let expected: Vec<u64> = (3..=asked.len() as u64 + 2).map(|n| n << 22).collect();
        assert_eq!(asked.iter().map(|place| place.start).collect::<Vec<_>>(), expected);
        assert!(asked.len() > 10, "{asked:?}");
    }

    #[test]
    fn sequential_and_random_readers_have_no_pattern() {
        let mut strides = Strides::default();
        for n in 0..1000u64 {
            assert_eq!(read(&mut strides, 1, n << 17, 1 << 17), []);
            assert_eq!(read(&mut strides, 2, ((n * 7919 % 1009) * (n % 7 + 1)) << 24, 4096), []);
        }
    }

    #[test]
    fn a_place_may_take_several_reads() {
        let (mut strides, mut asked) = (Strides::default(), 0);
        for n in 0..20u64 {
            for part in [0, 4096] {
                let places = read(&mut strides, 1, (n << 20) + part, 4096);
                assert!(places.iter().all(|place| place.end - place.start == 8192));
                asked += places.len();
            }
        }
        assert!((10..40).contains(&asked), "{asked}");
    }
}
