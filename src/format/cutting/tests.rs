//! There by a cutting, and back by a tiling.

use proptest::{collection::vec, prelude::*};

use super::super::tiling::Tiling;
use super::*;

/// Places of an array's items in the file, for each in C order.
fn order(shape: &[u64], fortran: bool) -> Vec<u64> {
    let mut places = vec![0];
    for (n, size) in shape.iter().enumerate() {
        let stride: u64 = if fortran { shape[..n].iter().product() } else { shape[n + 1..].iter().product() };
        places = places.iter().flat_map(|place| (0..*size).map(move |i| place + i * stride)).collect();
    }
    places
}

/// Cuts a file whose items are numbered in C order, and has [`Tiling`] put the array together again.
fn there_and_back(dims: &[(u64, u32, u32)], item: usize, fortran: bool) {
    let array = Array::cut(dims);
    let places = order(&array.shape, fortran);
    let items = |n: usize| (0..item).map(move |byte| (n * 31 + byte * 7 + 1) as u8);
    let mut file = vec![0; places.len() * item];
    for (n, place) in places.iter().enumerate() {
        file[*place as usize * item..][..item].copy_from_slice(&items(n).collect::<Vec<_>>());
    }
    let cutting = Cutting::new(&array, item as u32, fortran).unwrap();
    let (mut rows, mut visible) = (Rows::default(), 0);
    let chunks: Vec<Vec<u8>> = (0..cutting.nchunks())
        .map(|n| {
            // Nothing of the chunk before is left.
            let mut out = vec![0xee; 7];
            let read = |offset: u64, buf: &mut [u8]| -> std::result::Result<(), ()> {
                buf.copy_from_slice(file.get(offset as usize..offset as usize + buf.len()).ok_or(())?);
                Ok(())
            };
            cutting.fill(Position(n), read, &mut rows, &mut out).unwrap();
            assert_eq!(out.len(), cutting.chunk_len());
            visible += cutting.visible(Position(n));
            out
        })
        .collect();
    assert_eq!(visible, file.len() as u64);
    assert_eq!(cutting.visible(Position(cutting.nchunks())), 0);
    let tiling = Tiling::new(&array, item as u32, cutting.chunk_len() as u32).unwrap();
    let mut again = vec![0; file.len()];
    let done: std::result::Result<(), ()> = tiling.tiles(0..file.len() as u64, |tile| {
        let chunk = &chunks[tile.chunk.0 as usize];
        tile.copy(&chunk[tile.start as usize..][..cutting.block_len()], &mut again);
        Ok(())
    });
    done.unwrap();
    let expected: Vec<u8> = (0..places.len()).flat_map(items).collect();
    assert!(again == expected, "{dims:?}, items of {item}, fortran {fortran}");
    // All else is zeros.
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    assert_eq!(chunks.iter().map(|chunk| sum(chunk)).sum::<u64>(), sum(&expected));
}

#[test]
fn arrays_of_all_kinds_of_edges() {
    for dims in [
        &[][..],
        &[(7, 7, 7)],
        &[(100, 30, 8)],
        &[(100, 30, 10)],
        &[(1, 4, 2)],
        &[(10, 4, 2), (12, 12, 12)],
        // Chunks that are not filled along a dimension in the middle.
        &[(2, 2, 1), (1, 2, 1), (8, 2, 1)],
        &[(4, 2, 1), (3, 2, 1), (8, 2, 2)],
        &[(10, 4, 3), (12, 5, 2)],
        &[(9, 4, 4), (3, 3, 3)],
        &[(8, 4, 1), (300, 300, 100)],
        &[(5, 1, 1), (10, 4, 3)],
        &[(1000, 40, 40), (9, 2, 2)],
        &[(3, 2, 1), (5, 5, 2), (4, 4, 4)],
        &[(4, 3, 2), (5, 2, 2), (6, 4, 3), (3, 3, 1)],
        &[(2, 1, 1); 8],
    ] {
        for (item, fortran) in [(1, false), (3, false), (8, false), (1, true), (4, true), (5, true)] {
            there_and_back(dims, item, fortran);
        }
    }
}

#[test]
fn what_no_array_can_be_is_refused() {
    for (dims, field) in [
        (&[(10, 4, 5)][..], "array: blockshape"),
        (&[(10, 4, 0)], "array: blockshape"),
        (&[(u64::MAX, 4, 4)], "array: chunkshape"),
        (&[(1 << 40, u32::MAX, 1)], "array: chunkshape"),
        (&[(1 << 32, 1, 1), (1 << 32, 1, 1)], "array: chunkshape"),
    ] {
        assert_eq!(Cutting::new(&Array::cut(dims), 8, false).unwrap_err().field, field, "{dims:?}");
    }
    assert_eq!(Cutting::new(&Array::cut(&[(1, 1, 1); 17]), 8, false).unwrap_err().field, "array: shape");
    assert_eq!(Cutting::new(&Array::cut(&[(0, 0, 0), (5, 5, 5)]), 8, false).unwrap().nchunks(), 0);
}

proptest! {
    #[test]
    fn every_item_comes_to_its_place(
        dims in vec((1..12_u64, 1..9_u32, 1..6_u32), 0..5),
        item in 1..18_usize,
        fortran in any::<bool>(),
    ) {
        let dims: Vec<_> = dims.into_iter().map(|(size, chunk, block)| (size, chunk, block.min(chunk))).collect();
        there_and_back(&dims, item, fortran);
    }
}
