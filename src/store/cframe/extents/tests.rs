use std::collections::HashMap;

use super::*;

/// A small generator, so that a failure comes back with its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Generations are of no account here.
fn stage(map: &mut ExtentMap, len: u32) -> (u64, u32) {
    map.stage(len, &Generations::new(u16::MAX.into()))
}

/// An epoch at which all reads have ended.
const LATE: u64 = u64::MAX;

impl ExtentMap {
    /// What must hold at any time.
    fn check(&self) {
        self.free.assert_sound();
        let known = |pos: u64| self.unknown.is_none_or(|unknown| !(unknown.next..unknown.end).contains(&pos));
        let chunks =
            self.chunks.range(0..u64::MAX).filter(|(pos, _)| known(*pos)).map(|(pos, chunk)| (pos, pos + u64::from(chunk.len)));
        let unknown = self.unknown.map(|unknown| (unknown.next, unknown.end));
        for (start, end) in chunks.chain(self.tails.iter().map(|tail| (tail.pos, tail.pos + tail.len))).chain(unknown) {
            assert!(end <= self.end(), "{start}..{end} lies behind the end at {}", self.end());
            let before = self.free.holes(..end).next_back().map(|(pos, len)| pos + len);
            assert!(before.is_none_or(|before| before <= start), "{start}..{end} is used and free");
        }
        let live: u64 = self
            .chunks
            .descending(u64::MAX)
            .filter(|(_, chunk)| chunk.state == State::InImage)
            .map(|(_, chunk)| u64::from(chunk.len))
            .sum();
        assert_eq!(self.chunks.live(), live);
    }
}

#[test]
fn the_smallest_hole_that_fits_is_used_and_neighbours_join() {
    let mut space = ExtentMap::new(100);
    let at: Vec<u64> = [50, 200, 40, 100, 40].iter().map(|len| stage(&mut space, *len).0).collect();
    assert_eq!(at, [100, 150, 350, 390, 490]);
    space.chunks.discard(at[1], 0);
    space.chunks.discard(at[3], 0);
    space.collect(LATE, |_| ());
    space.check();
    assert_eq!(stage(&mut space, 90).0, 390, "the hole of 100 and not that of 200");
    space.chunks.discard(at[2], 0);
    space.collect(LATE, |_| ());
    assert_eq!(stage(&mut space, 240).0, 150, "200 and 40 beside each other");
    space.check();
    space.chunks.discard(at[4], 0);
    space.collect(LATE, |_| ());
    assert_eq!(space.end(), 480, "and 10 of the hole before");
    space.check();
}

#[test]
fn what_readers_may_see_waits_for_two_epochs() {
    let mut space = ExtentMap::new(0);
    let (pos, _) = stage(&mut space, 100);
    space.chunks.discard(pos, 7);
    space.collect(8, |_| ());
    assert_ne!(stage(&mut space, 100).0, pos);
    space.collect(9, |_| ());
    assert_eq!(stage(&mut space, 100).0, pos);
}

#[test]
fn what_a_commit_drops_waits_until_that_commit_is_on_disk() {
    let mut space = ExtentMap::new(0);
    let (old, _) = stage(&mut space, 100);
    space.chunks.admit(old, 1);
    let (first, _) = space.place_tail(50, &DroppedRefs::new(), |_| false);
    space.publish(1, &DroppedRefs::new());
    let (new, _) = stage(&mut space, 100);
    space.chunks.admit(new, 1);
    let dropped = DroppedRefs::from([(old, 1)]);
    let (second, _) = space.place_tail(50, &dropped, |_| false);
    space.durable(1, 0);
    space.publish(2, &dropped);
    space.collect(LATE, |_| ());
    space.check();
    assert!(![old, first, second, new].contains(&stage(&mut space, 32).0), "commit 1 may come back");
    space.durable(2, 0);
    space.collect(LATE, |_| ());
    space.check();
    assert_eq!([stage(&mut space, 100).0, stage(&mut space, 50).0], [old, first.min(old + 100)]);
}

#[test]
fn tails_do_not_end_where_others_did() {
    let mut space = ExtentMap::new(0);
    let (slot, at) = space.place_tail(50, &DroppedRefs::new(), |end| [50, 51, 52].contains(&end));
    assert_eq!((slot, at), (0, 3));
    assert_eq!(space.end(), 53);
}

#[test]
fn one_chunk_never_waits_for_the_sweep_and_more_do_where_the_file_would_grow() {
    // 32 chunks of 100 bytes, with as much room behind each.
    let positions: Vec<u64> = (0..32).map(|n| 100 + 200 * n).collect();
    let mut space = ExtentMap::opened(100, 100, positions, 0, 6500..6550);
    assert!(!space.must_look(5000), "one chunk");
    let bound = 6400 / 16;
    assert!(!space.must_look(bound));
    stage(&mut space, 300);
    assert!(!space.must_look(100) && space.must_look(101), "a part of what lives");
    space.learn(100, Some(100));
    assert!(!space.must_look(90), "there is a hole");
    while let Some(pos) = space.next_unknown() {
        space.learn(pos, Some(100));
    }
    assert!(!space.must_look(5000), "nothing to learn");
    space.check();
}

#[test]
fn blocks_are_given_back_whole_and_dust_is_not() {
    let mut space = ExtentMap::opened(100, 100, vec![100, 20_000, 50_000], 0, 50_100..50_150);
    [(100, 10_000), (20_000, 29_000), (50_000, 100)].into_iter().for_each(|(pos, len)| space.learn(pos, Some(len)));
    space.check();
    assert_eq!(space.blocks_to_give_back(), [(12_288, 4096)], "of 10,100 to 20,000; 49,000 to 50,000 has none");
    let mut space = ExtentMap::opened(100, 100, vec![100, 1_010_000], 0, 1_010_100..1_010_150);
    [(100, 1_000_000), (1_010_000, 100)].into_iter().for_each(|(pos, len)| space.learn(pos, Some(len)));
    assert_eq!(space.blocks_to_give_back(), [], "little beside what lives");
}

#[test]
fn what_cannot_be_learnt_is_not_free() {
    let mut space = ExtentMap::opened(100, 100, vec![100, 1000, 2000], 0, 5000..5050);
    space.learn(100, Some(50));
    space.learn(1000, None);
    space.learn(2000, Some(50));
    space.check();
    let holes: Vec<_> = space.free.holes(..).collect();
    assert_eq!(holes, [(150, 850), (2050, 2950)], "all up to the next one may be the second's");
    let mut late = ExtentMap::opened(100, 100, vec![100, 1000, 2000], 0, 5000..5050);
    late.learn(100, Some(1500));
    late.learn(1000, Some(50));
    late.learn(2000, Some(50));
    late.check();
    assert_eq!(late.free.holes(..).collect::<Vec<_>>(), [(1600, 400), (2050, 2950)], "what the first claims is the first's");
}

/// Frames as others, friend or foe, may have left them: offsets in any order, some twice, chunks that claim less or more than
/// the room they have. Whatever is replaced, no byte that a chunk still in the image claims is ever given out.
#[test]
fn nothing_that_a_live_chunk_claims_is_given_out() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let hostile = random.below(3); // how many in ten lie
        let header_len = 90 + random.below(50);
        let mut positions = vec![];
        let mut claims = HashMap::new();
        let mut end = header_len + random.below(3) * 50;
        for _ in 0..1 + random.below(40) {
            let len = 32 + random.below(300);
            let lies = random.below(10) < hostile;
            let pos = if lies { header_len + random.below(end - header_len + 1) } else { end };
            let claim = match random.below(4) {
                0 if lies => random.below(40),
                1 if lies => random.below(5000),
                2 if lies => i32::MAX as u64,
                _ => len,
            };
            claims.entry(pos).or_insert(claim);
            positions.extend(vec![pos; 1 + random.below(10) as usize / 9]);
            end = end.max(pos + len) + random.below(2) * random.below(100);
        }
        let chunks_end = end;
        for at in (1..positions.len()).rev() {
            positions.swap(at, random.below(at as u64 + 1) as usize);
        }
        let mut space = ExtentMap::opened(header_len, 1024, positions.clone(), 0, end..end + 77);
        let extent = |pos: u64| (pos, (pos + claims[&pos].max(32)).min(chunks_end));
        let mut ours: HashMap<u64, u64> = HashMap::new();
        let mut image = positions;
        let mut seq = 0;
        let mut durable_foreign: Vec<u64> = image.clone();
        for _ in 0..150 {
            let mut dropped = DroppedRefs::new();
            for _ in 0..1 + random.below(3) {
                let len = 32 + random.below(400);
                if !space.has_hole(len) {
                    let mut batch = vec![];
                    space.unknown(random.below(4) as usize, &mut batch);
                    batch.iter().for_each(|pos| space.learn(*pos, claims.get(pos).copied()));
                }
                space.collect(LATE, |_| ());
                let (pos, _) = stage(&mut space, len as u32);
                let mut needed: Vec<u64> = image.iter().filter(|pos| !ours.contains_key(pos)).copied().collect();
                needed.extend(&durable_foreign);
                for (start, end) in needed.into_iter().map(extent) {
                    assert!(pos + len <= start || end <= pos, "seed {seed}: {pos}+{len} is in {start}..{end}");
                }
                assert!(pos >= header_len);
                let at = random.below(image.len() as u64) as usize;
                let old = std::mem::replace(&mut image[at], pos);
                space.chunks.admit(pos, 1);
                *dropped.entry(old).or_default() += 1;
                ours.insert(pos, len);
                space.check();
            }
            seq += 1;
            let mut moves = space.moves(&dropped, random.below(2) == 0);
            let lifts = if random.below(3) == 0 { space.lifts(&dropped, &moves) } else { vec![] };
            let mut lifts = lifts.into_iter();
            while let Some(step) = match lifts.next() {
                Some(from) => space.lift(from, &mut moves),
                None => space.next_move(&dropped, &mut moves),
            } {
                let len = ours.get(&step.from).copied().unwrap_or_else(|| extent(step.from).1 - step.from);
                assert_eq!(step.len, len);
                for (start, end) in
                    image.iter().chain(&durable_foreign).filter(|pos| !ours.contains_key(pos)).map(|pos| extent(*pos))
                {
                    assert!(step.to + len <= start || end <= step.to, "seed {seed}: moved into {start}..{end}");
                }
                image.iter_mut().filter(|pos| **pos == step.from).for_each(|pos| *pos = step.to);
                ours.insert(step.to, len);
                space.chunks.copied(step.from, step.to, seq);
                space.check();
            }
            let (tail, _) = space.place_tail(60, &dropped, |_| false);
            let highest = image.iter().map(|pos| ours.get(pos).map_or_else(|| extent(*pos).1, |len| pos + len)).max().unwrap();
            assert!(tail >= highest, "seed {seed}: the tail at {tail} is not behind the chunks, which end at {highest}");
            space.durable(seq - 1, 0);
            space.publish(seq, &dropped);
            durable_foreign = image.iter().filter(|pos| !ours.contains_key(pos)).copied().collect();
            space.collect(LATE, |_| ());
            space.check();
            for (start, end) in durable_foreign.iter().map(|pos| extent(*pos)) {
                let overlap = space.free.holes(..end).find(|(hole, len)| hole + len > start);
                assert!(overlap.is_none(), "seed {seed}: {overlap:?} is free, and {start}..{end} is a chunk's");
            }
        }
    }
}
