//! Which parts of a file were written.

use std::collections::BTreeMap;
use std::ops::Range;

/// Parts of a file, none empty, none touching another.
#[derive(Debug, Default, Clone)]
pub struct Intervals(
    /// From begin to end.
    BTreeMap<u64, u64>,
);

impl Intervals {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Adds a part.
    pub fn insert(&mut self, part: Range<u64>) {
        let Range { mut start, mut end } = part;
        if start >= end {
            return;
        }
        if let Some((before, until)) = self.0.range(..start).next_back()
            && *until >= start
        {
            if *until >= end {
                return;
            }
            start = *before;
        }
        while let Some((&next, &until)) = self.0.range(start..=end).next() {
            end = end.max(until);
            self.0.remove(&next);
        }
        self.0.insert(start, end);
    }

    /// Takes away everything from `at` on.
    pub fn cut(&mut self, at: u64) {
        self.0.split_off(&at);
        if let Some((_, end)) = self.0.iter_mut().next_back() {
            *end = at.min(*end);
        }
    }

    /// Takes a part away.
    pub fn remove(&mut self, part: Range<u64>) {
        let overlaps: Vec<Range<u64>> = self.touching(part.clone()).collect();
        for whole in overlaps {
            self.0.remove(&whole.start);
            for rest in [whole.start..part.start.min(whole.end), part.end.max(whole.start)..whole.end] {
                if !rest.is_empty() {
                    self.0.insert(rest.start, rest.end);
                }
            }
        }
    }

    /// Those that have something in common with `part`, whole.
    fn touching(&self, part: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.0.range(..=part.start).next_back().map_or(part.start, |(start, _)| *start);
        let Range { start, end } = part;
        self.0
            .range(first..)
            .take_while(move |(from, _)| **from < end)
            .map(|(from, to)| *from..*to)
            .filter(move |whole| whole.start.max(start) < whole.end.min(end))
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    /// What they have in common with `part`, in order.
    pub fn within(&self, part: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let Range { start, end } = part;
        self.touching(part).map(move |whole| start.max(whole.start)..end.min(whole.end))
    }

    /// Whether any of `part` is in one of them.
    pub fn touches(&self, part: Range<u64>) -> bool {
        self.within(part).next().is_some()
    }

    /// Whether all of `part` is.
    pub fn covers(&self, part: Range<u64>) -> bool {
        part.is_empty() || self.within(part.clone()).next().is_some_and(|first| first == part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Found by the test below.
    #[test]
    fn nothing_inserted_is_nothing() {
        let mut intervals = Intervals::default();
        intervals.insert(0..0);
        assert_eq!(intervals.iter().count(), 0);
        assert!(!intervals.touches(248..301) && !intervals.covers(248..301));
        assert_eq!(intervals.within(248..301).count(), 0);
    }

    proptest! {
        #[test]
        fn are_what_a_table_of_bytes_says(steps in prop::collection::vec((0..200u64, 0..40u64, 0..10u8), 1..60), probe in (0..250u64, 0..60u64)) {
            let mut intervals = Intervals::default();
            let mut bytes = [false; 320];
            for (start, len, what) in steps {
                match what {
                    0 => {
                        intervals.cut(start);
                        bytes[start as usize..].fill(false);
                    }
                    1..=3 => {
                        intervals.remove(start..start + len);
                        bytes[start as usize..][..len as usize].fill(false);
                    }
                    _ => {
                        intervals.insert(start..start + len);
                        bytes[start as usize..][..len as usize].fill(true);
                    }
                }
            }
            let mut seen = [false; 320];
            for part in intervals.iter() {
                prop_assert!(!part.is_empty());
                seen[part.start as usize..part.end as usize].fill(true);
            }
            prop_assert_eq!(seen, bytes);
            prop_assert!(intervals.iter().zip(intervals.iter().skip(1)).all(|(a, b)| a.end < b.start));
            let (from, to) = (probe.0, probe.0 + probe.1);
            let probed = &bytes[from as usize..to as usize];
            prop_assert_eq!(intervals.touches(from..to), probed.contains(&true));
            prop_assert_eq!(intervals.covers(from..to), !probed.contains(&false));
            let within: u64 = intervals.within(from..to).map(|part| part.end - part.start).sum();
            prop_assert_eq!(within as usize, probed.iter().filter(|bit| **bit).count());
        }
    }
}
