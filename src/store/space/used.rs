//! The extents that hold chunks, by position. What was there at open and has not changed since costs 12 bytes a chunk.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Chunk, State};

/// In place of a length: the chunk is gone, or in the map.
const ELSEWHERE: u32 = u32::MAX;
/// From how many such places on they are looked at, and dropped when they are half of all.
const MANY: usize = 1024;

/// A map from positions to chunks.
#[derive(Debug, Default)]
pub(super) struct Used {
    /// Positions of chunks that were there at open, in order: named once by the image and as they were, unless `lens` says otherwise.
    found: Vec<u64>,
    /// Their rooms in bytes (0 while unknown), or [`ELSEWHERE`].
    lens: Vec<u32>,
    /// How many are elsewhere.
    elsewhere: usize,
    /// All other chunks.
    known: BTreeMap<u64, Chunk>,
}

fn as_found(len: u32) -> Chunk {
    Chunk::new(len, 1, 0, State::InImage)
}

impl Used {
    /// Chunks of unknown lengths, in order; a position may come more than once.
    pub(super) fn opened(mut positions: Vec<u64>) -> Self {
        let mut known = BTreeMap::<u64, Chunk>::new();
        for (at, pos) in positions.iter().enumerate().skip(1) {
            if positions.get(at - 1) == Some(pos) {
                let chunk = known.entry(*pos).or_insert(as_found(0));
                chunk.refs = chunk.refs.saturating_add(1);
            }
        }
        positions.dedup();
        let lens = positions.iter().map(|pos| if known.contains_key(pos) { ELSEWHERE } else { 0 }).collect();
        let mut used = Used { found: positions, lens, elsewhere: known.len(), known };
        used.thin_out();
        used
    }

    fn place(&self, pos: u64) -> Option<(usize, u32)> {
        let at = self.found.binary_search(&pos).ok()?;
        self.lens.get(at).filter(|len| **len != ELSEWHERE).map(|len| (at, *len))
    }

    /// The chunk at `pos` is not as it was found any more; what it was.
    fn take_found(&mut self, pos: u64) -> Option<Chunk> {
        let (at, len) = self.place(pos)?;
        *self.lens.get_mut(at)? = ELSEWHERE;
        self.elsewhere += 1;
        self.thin_out();
        Some(as_found(len))
    }

    fn thin_out(&mut self) {
        if self.elsewhere > MANY.max(self.found.len() / 2) {
            let mut lens = self.lens.iter();
            self.found.retain(|_| lens.next().is_some_and(|len| *len != ELSEWHERE));
            self.lens.retain(|len| *len != ELSEWHERE);
            self.elsewhere = 0;
        }
    }

    pub(super) fn get(&self, pos: u64) -> Option<Chunk> {
        self.known.get(&pos).copied().or_else(|| self.place(pos).map(|(_, len)| as_found(len)))
    }

    /// The chunk at `pos`, to be changed.
    pub(super) fn get_mut(&mut self, pos: u64) -> Option<&mut Chunk> {
        if let Some(chunk) = self.take_found(pos) {
            self.known.insert(pos, chunk);
        }
        self.known.get_mut(&pos)
    }

    /// Notes how long the chunk at `pos` is; answers its state.
    pub(super) fn set_len(&mut self, pos: u64, len: u32) -> Option<State> {
        match self.place(pos) {
            Some((at, _)) if len != ELSEWHERE => {
                *self.lens.get_mut(at)? = len;
                Some(State::InImage)
            }
            _ => {
                let chunk = self.get_mut(pos)?;
                chunk.len = len;
                Some(chunk.state)
            }
        }
    }

    pub(super) fn insert(&mut self, pos: u64, chunk: Chunk) {
        self.take_found(pos);
        self.known.insert(pos, chunk);
    }

    pub(super) fn remove(&mut self, pos: u64) -> Option<Chunk> {
        self.take_found(pos).or_else(|| self.known.remove(&pos))
    }

    /// The chunks at positions in a range, in order.
    pub(super) fn range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Chunk)> {
        let (from, to) =
            (self.found.partition_point(|pos| *pos < range.start), self.found.partition_point(|pos| *pos < range.end));
        let mut found = self.slice(from..to.max(from)).peekable();
        let mut known = self.known.range(range.start..range.end.max(range.start)).map(|(pos, chunk)| (*pos, *chunk)).peekable();
        std::iter::from_fn(move || match (found.peek(), known.peek()) {
            (Some((a, _)), Some((b, _))) if a < b => found.next(),
            (Some(_), None) => found.next(),
            _ => known.next(),
        })
    }

    /// All chunks at positions below one, from the last on.
    pub(super) fn descending(&self, below: u64) -> impl Iterator<Item = (u64, Chunk)> {
        let mut found = self.slice(0..self.found.partition_point(|pos| *pos < below)).rev().peekable();
        let mut known = self.known.range(..below).rev().map(|(pos, chunk)| (*pos, *chunk)).peekable();
        std::iter::from_fn(move || match (found.peek(), known.peek()) {
            (Some((a, _)), Some((b, _))) if a > b => found.next(),
            (Some(_), None) => found.next(),
            _ => known.next(),
        })
    }

    /// Where chunks are staged.
    pub(super) fn staged(&self) -> Vec<u64> {
        self.known.iter().filter(|(_, chunk)| chunk.state == State::Staged).map(|(pos, _)| *pos).collect()
    }

    fn slice(&self, places: Range<usize>) -> impl DoubleEndedIterator<Item = (u64, Chunk)> {
        let found = self.found.get(places.clone()).unwrap_or_default();
        let lens = self.lens.get(places).unwrap_or_default();
        found.iter().zip(lens).filter(|(_, len)| **len != ELSEWHERE).map(|(pos, len)| (*pos, as_found(*len)))
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
                model.entry(*pos).and_modify(|chunk| chunk.refs += 1).or_insert(as_found(0));
            }
            let mut used = Used::opened(positions);
            for round in 0..20_000u32 {
                let pos = random(3 * many + 2);
                let chunk = Chunk::new(round, 2, 3, State::Staged);
                match random(6) {
                    0 => {
                        used.insert(pos, chunk);
                        model.insert(pos, chunk);
                    }
                    1 => assert_eq!(used.remove(pos), model.remove(&pos)),
                    2 => {
                        let len = if random(50) == 0 { ELSEWHERE } else { round };
                        let state = model.get_mut(&pos).map(|chunk| {
                            chunk.len = len;
                            chunk.state
                        });
                        assert_eq!(used.set_len(pos, len), state);
                    }
                    3 => {
                        assert_eq!(
                            used.get_mut(pos).map(|chunk| chunk.pins += 1),
                            model.get_mut(&pos).map(|chunk| chunk.pins += 1)
                        );
                    }
                    _ => assert_eq!(used.get(pos), model.get(&pos).copied()),
                }
                if round % (many as u32) == 0 {
                    let to = pos + random(many);
                    assert!(used.range(pos..to).eq(model.range(pos..to).map(|(pos, chunk)| (*pos, *chunk))));
                    assert!(used.descending(u64::MAX).eq(model.iter().rev().map(|(pos, chunk)| (*pos, *chunk))));
                    assert!(used.descending(to).eq(model.range(..to).rev().map(|(pos, chunk)| (*pos, *chunk))));
                    assert!(used.found.len() <= MANY + 2 * (used.found.len() - used.elsewhere) + 1, "what is gone takes no room");
                }
            }
        }
    }
}
