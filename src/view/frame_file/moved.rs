//! Parts of a file that hold what another part of the layout below holds: what the library moves need not be held.

use std::collections::BTreeMap;
use std::ops::Range;

/// A part, and where below its bytes begin.
pub type Placed = (Range<u64>, u64);

/// Parts, none empty, none over another, each with the place below where the same bytes are.
#[derive(Debug, Default, Clone)]
pub struct Moved(
    /// From begin to end, and where the beginning is below.
    BTreeMap<u64, (u64, u64)>,
);

impl Moved {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Adds a part, in place of what was there.
    pub fn insert(&mut self, part: Range<u64>, from: u64) {
        self.remove(part.clone());
        if part.is_empty() {
            return;
        }
        let mut part = part;
        if let Some(&(end, next)) = self.0.get(&part.end)
            && from + (part.end - part.start) == next
        {
            self.0.remove(&part.end);
            part.end = end;
        }
        if let Some((start, (end, before))) = self.0.range_mut(..part.start).next_back()
            && *end == part.start
            && *before + (part.start - start) == from
        {
            *end = part.end;
        } else {
            self.0.insert(part.start, (part.end, from));
        }
    }

    /// Takes a part away.
    pub fn remove(&mut self, part: Range<u64>) {
        let first = self.0.range(..=part.start).next_back().map_or(part.start, |(start, _)| *start);
        let overlaps = self.0.range(first..part.end.max(first)).filter(|(_, (end, _))| *end > part.start);
        let overlaps: Vec<(u64, u64, u64)> = overlaps.map(|(start, (end, from))| (*start, *end, *from)).collect();
        for (start, end, from) in overlaps {
            self.0.remove(&start);
            if start < part.start {
                self.0.insert(start, (part.start, from));
            }
            if part.end < end {
                self.0.insert(part.end, (end, from + (part.end - start)));
            }
        }
    }

    /// What they have in common with `part`, in order, each with where it is below.
    pub fn within(&self, part: Range<u64>) -> impl Iterator<Item = Placed> {
        let first = self.0.range(..=part.start).next_back().map_or(part.start, |(start, _)| *start);
        let reaching = self.0.range(first..).take_while(move |(start, _)| **start < part.end);
        reaching.filter_map(move |(start, (end, from))| {
            let common = part.start.max(*start)..part.end.min(*end);
            (!common.is_empty()).then(|| (common.clone(), from + (common.start - start)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn are_what_a_table_of_bytes_says(steps in prop::collection::vec((0..200u64, 0..40u64, prop::option::of(0..30u64)), 1..60)) {
            let mut moved = Moved::default();
            let mut bytes = [None; 320];
            for (start, len, from) in steps {
                match from {
                    // Often what goes on where another ends.
                    Some(from) => moved.insert(start..start + len, start + from / 10),
                    None => moved.remove(start..start + len),
                }
                for at in start..start + len {
                    bytes[at as usize] = from.map(|from| at + from / 10);
                }
            }
            let mut seen = [None; 320];
            for (part, from) in moved.within(0..320) {
                for at in part.clone() {
                    prop_assert_eq!(seen[at as usize].replace(from + at - part.start), None);
                }
            }
            prop_assert_eq!(seen, bytes);
        }
    }
}
