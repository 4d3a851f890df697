//! The bytes of a file that are free: holes, and everything behind its end.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeBounds;

/// No two holes touch, none ends at `end`, all lie between `floor` and `end`.
#[derive(Debug)]
pub(super) struct Free {
    /// Lengths of the holes, by position; and both, by length.
    holes: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    /// Their sum.
    bytes: u64,
    /// Nothing below is given out: the header, and room for it to grow.
    floor: u64,
    /// Everything from here on is free.
    end: u64,
}

impl Free {
    /// Without holes.
    pub(super) fn new(floor: u64, end: u64) -> Self {
        Free { holes: BTreeMap::new(), by_len: BTreeSet::new(), bytes: 0, floor, end }
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes in holes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The holes that begin in a range, as positions and lengths, in order.
    pub(super) fn holes(&self, range: impl RangeBounds<u64>) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        self.holes.range(range).map(|(start, len)| (*start, *len))
    }

    /// Where there are holes with room for `len`, the tightest first.
    pub(super) fn fitting(&self, len: u64) -> impl DoubleEndedIterator<Item = u64> {
        self.by_len.range((len, 0)..).map(|(_, start)| *start)
    }

    /// All holes, the largest first.
    pub(super) fn largest(&self) -> impl Iterator<Item = (u64, u64)> {
        self.by_len.iter().rev().map(|(len, start)| (*start, *len))
    }

    /// Takes `start..end` back, as far as it lies above the floor.
    pub(super) fn give(&mut self, start: u64, end: u64) {
        let mut start = start.max(self.floor);
        let mut end = end;
        if start >= end {
            return;
        }
        let before = self.holes(..start).next_back();
        if let Some((before, len)) = before.filter(|(before, len)| before + len == start) {
            self.remove(before, len);
            start = before;
        }
        if let Some(&len) = self.holes.get(&end) {
            self.remove(end, len);
            end += len;
        }
        if end == self.end {
            self.end = start;
        } else {
            self.holes.insert(start, end - start);
            self.by_len.insert((end - start, start));
            self.bytes += end - start;
        }
    }

    fn remove(&mut self, start: u64, len: u64) {
        self.holes.remove(&start);
        self.by_len.remove(&(len, start));
        self.bytes -= len;
    }

    /// Gives out `start..end`, which is free: within one hole, or behind the end.
    pub(super) fn take(&mut self, start: u64, end: u64) {
        if start >= self.end {
            let hole = self.end;
            self.end = end;
            self.give(hole, start);
            return;
        }
        let hole = self.holes(..=start).next_back();
        let Some((hole, len)) = hole else { return };
        self.remove(hole, len);
        self.give(hole, start);
        self.give(end, hole + len);
    }

    /// Gives out the beginning of the smallest hole that is large enough, else of what is behind the end.
    pub(super) fn alloc(&mut self, len: u64) -> u64 {
        let pos = self.fitting(len).next().unwrap_or(self.end);
        self.take(pos, pos + len);
        pos
    }

    /// Gives nothing out below `to` any more, where nothing has been given out.
    pub(super) fn raise_floor(&mut self, to: u64) {
        let below = |free: &Self| free.holes(..to).next();
        while let Some((start, len)) = below(self) {
            self.remove(start, len);
            self.give(start.max(to), start + len);
        }
        self.floor = self.floor.max(to);
        self.end = self.end.max(to);
    }

    #[cfg(test)]
    pub(super) fn assert_sound(&self) {
        assert_eq!(self.holes.len(), self.by_len.len());
        assert_eq!(self.bytes, self.holes.values().sum::<u64>());
        let mut last = self.floor;
        for (start, len) in self.holes(..) {
            assert!(self.by_len.contains(&(len, start)));
            assert!(len > 0 && start >= last, "holes {last} and {start}");
            assert!(start > last || start == self.floor, "two holes touch at {start}");
            last = start + len;
        }
        assert!(last < self.end || self.holes.is_empty(), "a hole at the end");
    }
}
