//! Chunks by their places. What was there at open and has not changed since costs 12 bytes a chunk.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Chunk, State};

/// In place of a length: the chunk is gone, or in the map.
const ELSEWHERE: u32 = u32::MAX;
/// From how many such places on they are looked at, and dropped when they are half of all.
const MANY: usize = 1024;

/// A map from places to chunks.
#[derive(Debug, Default)]
pub(in crate::store) struct Table {
    /// Places of chunks that were there at open, in order: named once by the image and as they were, unless `lens` says otherwise.
    found: Vec<u64>,
    /// Their lengths in bytes (0 while unknown), or [`ELSEWHERE`].
    lens: Vec<u32>,
    /// Their generation.
    generation: u32,
    /// How many are elsewhere.
    elsewhere: usize,
    /// All other chunks.
    known: BTreeMap<u64, Chunk>,
}

impl Table {
    /// Chunks of unknown lengths, in order; a place may come more than once.
    pub(super) fn opened(mut places: Vec<u64>, generation: u32) -> Self {
        let mut known = BTreeMap::<u64, Chunk>::new();
        for (at, place) in places.iter().enumerate().skip(1) {
            if places.get(at - 1) == Some(place) {
                let chunk = known.entry(*place).or_insert(Chunk::new(0, 1, generation, State::InImage));
                chunk.refs = chunk.refs.saturating_add(1);
            }
        }
        places.dedup();
        let lens = places.iter().map(|place| if known.contains_key(place) { ELSEWHERE } else { 0 }).collect();
        let mut table = Table { found: places, lens, generation, elsewhere: known.len(), known };
        table.thin_out();
        table
    }

    fn as_found(&self, len: u32) -> Chunk {
        Chunk::new(len, 1, self.generation, State::InImage)
    }

    fn index_of(&self, place: u64) -> Option<(usize, u32)> {
        let at = self.found.binary_search(&place).ok()?;
        self.lens.get(at).filter(|len| **len != ELSEWHERE).map(|len| (at, *len))
    }

    /// The chunk at `place` is not as it was found any more; what it was.
    fn take_found(&mut self, place: u64) -> Option<Chunk> {
        let (at, len) = self.index_of(place)?;
        *self.lens.get_mut(at)? = ELSEWHERE;
        self.elsewhere += 1;
        self.thin_out();
        Some(self.as_found(len))
    }

    fn thin_out(&mut self) {
        if self.elsewhere > MANY.max(self.found.len() / 2) {
            let mut lens = self.lens.iter();
            self.found.retain(|_| lens.next().is_some_and(|len| *len != ELSEWHERE));
            self.lens.retain(|len| *len != ELSEWHERE);
            self.elsewhere = 0;
        }
    }

    pub(super) fn get(&self, place: u64) -> Option<Chunk> {
        self.known.get(&place).copied().or_else(|| self.index_of(place).map(|(_, len)| self.as_found(len)))
    }

    /// The chunk at `place`, to be changed.
    pub(super) fn get_mut(&mut self, place: u64) -> Option<&mut Chunk> {
        if let Some(chunk) = self.take_found(place) {
            self.known.insert(place, chunk);
        }
        self.known.get_mut(&place)
    }

    /// Notes how long the chunk at `place` is; answers its state.
    pub(super) fn set_len(&mut self, place: u64, len: u32) -> Option<State> {
        match self.index_of(place) {
            Some((at, _)) if len != ELSEWHERE => {
                *self.lens.get_mut(at)? = len;
                Some(State::InImage)
            }
            _ => {
                let chunk = self.get_mut(place)?;
                chunk.len = len;
                Some(chunk.state)
            }
        }
    }

    pub(super) fn insert(&mut self, place: u64, chunk: Chunk) {
        self.take_found(place);
        self.known.insert(place, chunk);
    }

    pub(super) fn remove(&mut self, place: u64) -> Option<Chunk> {
        self.take_found(place).or_else(|| self.known.remove(&place))
    }

    /// The chunks at positions in a range, in order.
    pub(super) fn range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Chunk)> {
        let (from, to) =
            (self.found.partition_point(|place| *place < range.start), self.found.partition_point(|place| *place < range.end));
        let mut found = self.slice(from..to.max(from)).peekable();
        let mut known =
            self.known.range(range.start..range.end.max(range.start)).map(|(place, chunk)| (*place, *chunk)).peekable();
        std::iter::from_fn(move || match (found.peek(), known.peek()) {
            (Some((a, _)), Some((b, _))) if a < b => found.next(),
            (Some(_), None) => found.next(),
            _ => known.next(),
        })
    }

    /// All chunks at positions below one, from the last on.
    pub(super) fn descending(&self, below: u64) -> impl Iterator<Item = (u64, Chunk)> {
        let mut found = self.slice(0..self.found.partition_point(|place| *place < below)).rev().peekable();
        let mut known = self.known.range(..below).rev().map(|(place, chunk)| (*place, *chunk)).peekable();
        std::iter::from_fn(move || match (found.peek(), known.peek()) {
            (Some((a, _)), Some((b, _))) if a > b => found.next(),
            (Some(_), None) => found.next(),
            _ => known.next(),
        })
    }

    /// The chunks that are not as they were found.
    pub(super) fn known(&self) -> impl Iterator<Item = (u64, Chunk)> {
        self.known.iter().map(|(place, chunk)| (*place, *chunk))
    }

    fn slice(&self, indices: Range<usize>) -> impl DoubleEndedIterator<Item = (u64, Chunk)> {
        let found = self.found.get(indices.clone()).unwrap_or_default();
        let lens = self.lens.get(indices).unwrap_or_default();
        found.iter().zip(lens).filter(|(_, len)| **len != ELSEWHERE).map(|(place, len)| (*place, self.as_found(*len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_behaves_as_a_map() {
        let mut state = 7u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for many in [10, 5000] {
            let mut positions: Vec<u64> = (0..many).map(|_| random(3 * many)).collect();
            positions.sort_unstable();
            let mut model = BTreeMap::<u64, Chunk>::new();
            for pos in &positions {
                model.entry(*pos).and_modify(|chunk| chunk.refs += 1).or_insert(Chunk::new(0, 1, 5, State::InImage));
            }
            let mut table = Table::opened(positions, 5);
            for round in 0..20_000u32 {
                let pos = random(3 * many + 2);
                let chunk = Chunk::new(round, 2, 3, State::Staged);
                match random(6) {
                    0 => {
                        table.insert(pos, chunk);
                        model.insert(pos, chunk);
                    }
                    1 => assert_eq!(table.remove(pos), model.remove(&pos)),
                    2 => {
                        let len = if random(50) == 0 { ELSEWHERE } else { round };
                        let state = model.get_mut(&pos).map(|chunk| {
                            chunk.len = len;
                            chunk.state
                        });
                        assert_eq!(table.set_len(pos, len), state);
                    }
                    3 => {
                        assert_eq!(
                            table.get_mut(pos).map(|chunk| chunk.pins += 1),
                            model.get_mut(&pos).map(|chunk| chunk.pins += 1)
                        );
                    }
                    _ => assert_eq!(table.get(pos), model.get(&pos).copied()),
                }
                if round % (many as u32) == 0 {
                    let to = pos + random(many);
                    assert!(table.range(pos..to).eq(model.range(pos..to).map(|(pos, chunk)| (*pos, *chunk))));
                    assert!(table.descending(u64::MAX).eq(model.iter().rev().map(|(pos, chunk)| (*pos, *chunk))));
                    assert!(table.descending(to).eq(model.range(..to).rev().map(|(pos, chunk)| (*pos, *chunk))));
                    assert!(
                        table.found.len() <= MANY + 2 * (table.found.len() - table.elsewhere) + 1,
                        "what is gone takes no room"
                    );
                }
            }
        }
    }
}
