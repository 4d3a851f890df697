//! Tiles against places that are worked out item by item.

use super::*;
use proptest::prelude::*;

fn chunk_len(dims: &[(u64, u32, u32)], item: u32) -> u32 {
    dims.iter().map(|(_, chunk, block)| chunk.next_multiple_of(*block)).product::<u32>() * item
}

/// Where each byte of the array is, by the format's own words.
fn places(dims: &[(u64, u32, u32)], item: u64) -> Vec<(u64, u64)> {
    let items: u64 = dims.iter().map(|dim| dim.0).product();
    let mut places = Vec::new();
    for n in 0..items {
        let (mut rest, mut chunk, mut block, mut inner) = (n, 0, 0, 0);
        let (mut chunks, mut blocks, mut inners) = (1, 1, 1);
        for (size, chunksize, blocksize) in dims.iter().rev() {
            let (chunksize, blocksize) = (u64::from(*chunksize), u64::from(*blocksize));
            let at = rest % size;
            rest /= size;
            chunk += at / chunksize * chunks;
            block += at % chunksize / blocksize * blocks;
            inner += at % chunksize % blocksize * inners;
            chunks *= size.div_ceil(chunksize);
            blocks *= chunksize.div_ceil(blocksize);
            inners *= blocksize;
        }
        for byte in 0..item {
            places.push((chunk, (block * inners + inner) * item + byte));
        }
    }
    places
}

fn dims() -> impl Strategy<Value = Vec<(u64, u32, u32)>> {
    let dim = (1u64..9, 1u32..6).prop_flat_map(|(size, chunk)| (Just(size), Just(chunk), 1..=chunk));
    prop::collection::vec(dim, 0..5)
}

proptest! {
    #[test]
    fn tiles_of_a_range_are_the_range(dims in dims(), item in 1u32..5, from in 0u64..3000, len in 0u64..3000) {
        let places = places(&dims, item.into());
        let tiling = Tiling::new(&Array::cut(&dims), item, chunk_len(&dims, item)).unwrap();
        prop_assert_eq!(tiling.bytes(), places.len() as u64);
        let total = places.len() as u64;
        let (from, end) = (from.min(total), (from + len).min(total));
        let wanted = &places[from as usize..end as usize];
        let mut got = vec![None; wanted.len()];
        tiling.tiles(from..from + len, |tile| {
            let mut sum = 0;
            tile.rows(|inner, to, len| {
                for n in 0..len {
                    let place = &mut got[(to + n) as usize];
                    assert!(place.is_none(), "a byte comes twice");
                    *place = Some((tile.chunk.0, u64::from(tile.start) + inner + n));
                }
                sum += len;
            });
            assert_eq!(sum, tile.bytes());
            let (mut first, mut last) = (u64::MAX, 0);
            tile.rows(|inner, _, len| (first, last) = (first.min(inner), last.max(inner + len)));
            assert_eq!(tile.span(), first as u32..last as u32);
            if let Some((piece, at)) = tile.piece() {
                assert_eq!(u64::from(piece.end - piece.start), sum);
                assert_eq!(got[at as usize], Some((tile.chunk.0, u64::from(tile.start + piece.start))));
            }
            Ok::<_, ()>(())
        }).unwrap();
        let wanted: Vec<_> = wanted.iter().copied().map(Some).collect();
        prop_assert_eq!(got, wanted);
    }

    #[test]
    fn blocks_have_places_in_bands(dims in dims(), item in 1u32..5) {
        let places = places(&dims, item.into());
        let tiling = Tiling::new(&Array::cut(&dims), item, chunk_len(&dims, item)).unwrap();
        let block_len = tiling.block_len();
        let block = |place: (u64, u64)| (Position(place.0), place.1 as u32 / block_len * block_len);
        let mut visible = std::collections::HashMap::new();
        for place in &places {
            *visible.entry(block(*place)).or_insert(0) += 1;
        }
        for (block, len) in &visible {
            prop_assert_eq!(tiling.visible_in_block(block.0, block.1), *len);
        }
        for band in tiling.bands() {
            let mut blocks = std::collections::HashMap::new();
            let mut at = 0;
            while at < tiling.bytes() {
                let (number, end) = tiling.band_at(&band, at);
                prop_assert!(end > at && end - at <= band.period);
                for place in &places[at as usize..end as usize] {
                    let block = block(*place);
                    let (of, slot) = tiling.place_in_band(&band, block.0, block.1);
                    prop_assert_eq!(of, number);
                    // Each block has a slot of its own.
                    prop_assert_eq!(*blocks.entry((of, slot)).or_insert(block), block);
                }
                at = end;
            }
            let most = blocks.keys().map(|(_, slot)| *slot).max().unwrap_or(0);
            prop_assert!(most < tiling.slots(&band), "{} of {}", most, tiling.slots(&band));
        }
    }

    #[test]
    fn runs_follow_each_other(dims in dims(), item in 1u32..5) {
        let places = places(&dims, item.into());
        let tiling = Tiling::new(&Array::cut(&dims), item, chunk_len(&dims, item)).unwrap();
        let (mut at, mut visible) = (0, std::collections::HashMap::new());
        while let Some((chunk, run)) = tiling.run_at(at) {
            prop_assert!(run > 0);
            let places = &places[at as usize..(at + run) as usize];
            prop_assert!(places.iter().all(|place| place.0 == chunk.0));
            *visible.entry(chunk).or_insert(0) += run;
            at += run;
        }
        prop_assert_eq!(at, tiling.bytes());
        prop_assert!(visible.iter().all(|(chunk, len)| tiling.visible(*chunk) == *len));
        prop_assert_eq!(visible.len() as u64, tiling.nchunks());
    }
}

#[test]
fn whole_dimensions_make_longer_rows() {
    let dims = [(100, 10, 2), (20, 20, 20), (8, 8, 8)];
    let tiling = Tiling::new(&Array::cut(&dims), 4, chunk_len(&dims, 4)).unwrap();
    assert_eq!((tiling.dims.len(), tiling.bands()), (1, vec![]));
    let mut pieces = Vec::new();
    let mut note = |tile: &Tile<'_>| {
        pieces.push((tile.chunk.0, tile.start, tile.piece()));
        Ok::<_, ()>(())
    };
    tiling.tiles(0..6400, &mut note).unwrap();
    let tile = |n: u32| (0, n * 1280, Some((0..1280, u64::from(n) * 1280)));
    assert_eq!(pieces, [tile(0), tile(1), tile(2), tile(3), tile(4)]);
}

#[test]
fn bands_are_what_the_rows_of_a_block_cross() {
    let dims = [(100, 10, 5), (30, 20, 10)];
    let tiling = Tiling::new(&Array::cut(&dims), 8, chunk_len(&dims, 8)).unwrap();
    assert_eq!(
        tiling.bands(),
        [Band { dim: 0, len: 5 * 30 * 8, blocks: 3, rows: 5, period: 5 * 30 * 8, chunk_period: 10 * 30 * 8 }]
    );
    let dims = [(7, 4, 2), (9, 5, 3), (4, 4, 2)];
    let bands = Tiling::new(&Array::cut(&dims), 1, chunk_len(&dims, 1)).unwrap().bands();
    // 9 in chunks of 5 and blocks of 3: two blocks and two, of which the last is not whole.
    assert_eq!(bands[0], Band { dim: 0, len: 2 * 12 * 4, blocks: 8, rows: 2, period: 2 * 36, chunk_period: 4 * 36 });
    assert_eq!(bands[1], Band { dim: 1, len: 2 * 3 * 4, blocks: 2, rows: 3, period: 3 * 4, chunk_period: 5 * 4 });
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |dims: &[(u64, u32, u32)], item, chunksize| Tiling::new(&Array::cut(dims), item, chunksize).unwrap_err().field;
    assert_eq!(refused(&[(u64::MAX / 4, 1, 1), (8, 1, 1)], 1, 1), "array: shape");
    assert_eq!(refused(&[(1 << 40, 1, 1)], u32::MAX, 1), "array: shape");
    assert_eq!(refused(&[(10, 4, 5)], 1, 5), "array: blockshape");
    assert_eq!(refused(&[(10, 4, 3)], 1, 4), "array: chunkshape");
    assert_eq!(refused(&[(10, u32::MAX, u32::MAX), (10, 4, 4)], 1, 4), "array: chunkshape");
    let none = Tiling::new(&Array::cut(&[(0, 0, 0), (1 << 40, 7, 3)]), 8, 99).unwrap();
    assert_eq!((none.bytes(), none.nchunks(), none.run_at(0)), (0, 0, None));
}
