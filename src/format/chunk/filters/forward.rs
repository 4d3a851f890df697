//! Blosc's filters, done: shuffle, bitshuffle, delta and truncated precision.
//!
//! Shuffling is unzipping items to planes, in the same vector registers that undo it.

use wide::u8x16;

use super::{LANES, TILE, cut, delta_width, round, transpose_bits};

/// Shuffles in groups of `typesize` bytes. Both sides are as long.
#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "all derive from the two equal lengths and typesize > 0"
)]
pub(in super::super) fn shuffle(typesize: usize, src: &[u8], dst: &mut [u8]) {
    let (items, shuffled) = cut(typesize, src.len());
    if typesize <= 1 || items == 0 {
        return dst.copy_from_slice(src);
    }
    dst[shuffled..].copy_from_slice(&src[shuffled..]);
    let (src, dst) = (&src[..shuffled], &mut dst[..shuffled]);
    let done = match typesize {
        2 => whole_items::<2>(items, src, dst),
        4 => whole_items::<4>(items, src, dst),
        8 => whole_items::<8>(items, src, dst),
        _ => parts_of_items(typesize, items, src, dst),
    };
    for (i, item) in src[done * typesize..].chunks_exact(typesize).enumerate() {
        for (plane, byte) in item.iter().enumerate() {
            dst[plane * items + done + i] = *byte;
        }
    }
}

/// Unzips items of `N` bytes, 2, 4, 8 or 16, as many of them as fill `N` registers, to planes. What zipping does in rounds, as many more of
/// them undo.
#[inline(always)]
fn unzip<const N: usize>(items: [u8x16; N]) -> [u8x16; N] {
    // No loop: the compiler must see where each register goes.
    round(round(round(round(items))))
}

/// Half of what [`unzip`] does, for more registers than the machine has: two rounds at once, of four registers at a time.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "constant bounds of fixed arrays")]
#[inline(always)]
fn unzip_half(before: &[[u8; LANES]; 16], after: &mut [[u8; LANES]; 16]) {
    for (i, after) in after.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (a, b): (u8x16, u8x16) = (before[i].into(), before[i + 4].into());
        let (c, d): (u8x16, u8x16) = (before[i + 8].into(), before[i + 12].into());
        let (low, high) =
            ((u8x16::unpack_low(a, c), u8x16::unpack_low(b, d)), (u8x16::unpack_high(a, c), u8x16::unpack_high(b, d)));
        after[0] = u8x16::unpack_low(low.0, low.1).to_array();
        after[1] = u8x16::unpack_high(low.0, low.1).to_array();
        after[2] = u8x16::unpack_low(high.0, high.1).to_array();
        after[3] = u8x16::unpack_high(high.0, high.1).to_array();
    }
}

/// Shuffles items of `N` bytes, and says how many. There is at least one.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "as in shuffle")]
fn whole_items<const N: usize>(items: usize, src: &[u8], dst: &mut [u8]) -> usize {
    let mut planes: [&mut [[u8; LANES]]; N] = std::array::from_fn(|_| Default::default());
    for (plane, room) in planes.iter_mut().zip(dst.chunks_exact_mut(items)) {
        *plane = room.as_chunks_mut().0;
    }
    for (n, items) in src.as_chunks::<LANES>().0.as_chunks::<N>().0.iter().enumerate() {
        let mut lanes = [u8x16::default(); N];
        for (lanes, bytes) in lanes.iter_mut().zip(items) {
            *lanes = (*bytes).into();
        }
        for (plane, lanes) in planes.iter_mut().zip(unzip(lanes)) {
            plane[n] = lanes.to_array();
        }
    }
    items / LANES * LANES
}

/// Shuffles items of any size above 2, a few of their bytes at a time, and says how many.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "as in shuffle")]
fn parts_of_items(typesize: usize, items: usize, src: &[u8], dst: &mut [u8]) -> usize {
    let most = if typesize >= 16 { 16 } else { 1 << typesize.ilog2() };
    for (n, tile) in src.chunks_exact(TILE * typesize).enumerate() {
        let dst = &mut dst[n * TILE..];
        let mut byte = 0;
        while byte < typesize {
            // The last ones may be done twice.
            let step = if most == 16 { 16 } else { (typesize - byte).next_power_of_two().clamp(2, most) };
            let first = byte.min(typesize - step);
            match step {
                16 => part_16(tile, typesize, first, &mut dst[first * items..], items),
                8 => part::<8>(tile, typesize, first, &mut dst[first * items..], items),
                4 => part::<4>(tile, typesize, first, &mut dst[first * items..], items),
                _ => part::<2>(tile, typesize, first, &mut dst[first * items..], items),
            }
            byte += step;
        }
    }
    items / TILE * TILE
}

/// Puts `N` bytes of each item of a tile, from byte `first` on, to the planes that begin `items` bytes apart in `dst`.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "as in shuffle")]
#[inline(always)]
fn part<const N: usize>(tile: &[u8], typesize: usize, first: usize, dst: &mut [u8], items: usize) {
    let mut tile = tile.chunks_exact(typesize);
    for n in 0..TILE / LANES {
        let mut bytes = [[0; LANES]; N];
        for (part, item) in bytes.as_flattened_mut().as_chunks_mut::<N>().0.iter_mut().zip(&mut tile) {
            part.copy_from_slice(&item[first..first + N]);
        }
        let mut lanes = [u8x16::default(); N];
        for (lanes, bytes) in lanes.iter_mut().zip(bytes) {
            *lanes = bytes.into();
        }
        for (i, lanes) in unzip(lanes).into_iter().enumerate() {
            dst[i * items + n * LANES..][..LANES].copy_from_slice(&lanes.to_array());
        }
    }
}

/// As [`part`], for 16 bytes of each item. Each plane is written to at once: planes that are far apart push each other out of the cache.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "as in shuffle")]
fn part_16(tile: &[u8], typesize: usize, first: usize, dst: &mut [u8], items: usize) {
    let (mut quarters, mut half) = ([[[0; LANES]; 16]; TILE / LANES], [[0; LANES]; 16]);
    for (quarter, items) in quarters.iter_mut().zip(tile.chunks_exact(LANES * typesize)) {
        for (bytes, item) in quarter.iter_mut().zip(items.chunks_exact(typesize)) {
            let Some(part) = item[first..].first_chunk() else { return };
            *bytes = *part;
        }
        unzip_half(quarter, &mut half);
        unzip_half(&half, quarter);
    }
    for i in 0..16 {
        let plane = &mut dst[i * items..][..TILE];
        for (plane, quarter) in plane.as_chunks_mut().0.iter_mut().zip(&quarters) {
            *plane = quarter[i];
        }
    }
}

/// Shuffles bits. All three are as long; `planes` is room to work in.
#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "all derive from the equal lengths and typesize > 0"
)]
pub(in super::super) fn bitshuffle(typesize: usize, src: &[u8], dst: &mut [u8], planes: &mut [u8]) {
    let (items, _) = cut(typesize, src.len());
    let items = items / 8 * 8;
    let shuffled = items * typesize;
    dst[shuffled..].copy_from_slice(&src[shuffled..]);
    if items == 0 {
        return;
    }
    let planes = if typesize == 1 {
        src
    } else {
        shuffle(typesize, &src[..shuffled], &mut planes[..shuffled]);
        planes
    };
    for (bits, plane) in dst[..shuffled].chunks_exact_mut(items).zip(planes[..shuffled].chunks_exact(items)) {
        bits_of_plane(plane, bits);
    }
}

/// Gathers the bits of a plane of bytes, a multiple of eight. Both sides are as long.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "as in bitshuffle")]
fn bits_of_plane(plane: &[u8], bits: &mut [u8]) {
    let row_len = plane.len() / 8;
    let (whole, rest) = plane.as_chunks::<{ 8 * LANES }>();
    let mut rows: [&mut [[u8; LANES]]; 8] = std::array::from_fn(|_| Default::default());
    for (row, room) in rows.iter_mut().zip(bits.chunks_exact_mut(row_len)) {
        *row = room.as_chunks_mut().0;
    }
    for (i, bytes) in whole.iter().enumerate() {
        for (row, lanes) in rows.iter_mut().zip(bits_of_bytes(bytes)) {
            row[i] = lanes.to_array();
        }
    }
    if !rest.is_empty() {
        let mut padded = [0; 8 * LANES];
        padded[..rest.len()].copy_from_slice(rest);
        for (row, lanes) in bits.chunks_exact_mut(row_len).zip(bits_of_bytes(&padded)) {
            row[whole.len() * LANES..].copy_from_slice(&lanes.to_array()[..rest.len() / 8]);
        }
    }
}

/// The first bits of some bytes, the second, and so on.
#[inline(always)]
fn bits_of_bytes(bytes: &[u8; 8 * LANES]) -> [u8x16; 8] {
    let mut lanes = [u8x16::default(); 8];
    for (lanes, bytes) in lanes.iter_mut().zip(bytes.as_chunks::<LANES>().0) {
        *lanes = (*bytes).into();
    }
    // Register r holds the bytes of items r, r + 8, r + 16, …
    transpose_bits(unzip(lanes))
}

/// Takes the differences of a block to `first`, the first block of the chunk as readers see it; without it `src` is that one. Both
/// sides are as long.
pub(in super::super) fn delta(typesize: usize, src: &[u8], dst: &mut [u8], first: Option<&[u8]>) {
    dst.copy_from_slice(src);
    let width = delta_width(typesize);
    let (_, whole) = cut(width, src.len());
    let difference = |dst: Option<&mut [u8]>, reference: &[u8]| {
        for (byte, reference) in dst.unwrap_or_default().iter_mut().zip(reference) {
            *byte ^= reference;
        }
    };
    match first {
        Some(first) => difference(dst.get_mut(..whole), first),
        None => difference(dst.get_mut(width..whole), src),
    }
}

/// Leaves of all items the bits of `mask`. Both sides are as long; items are of 4 or 8 bytes.
pub(in super::super) fn truncate(typesize: usize, mask: u64, src: &[u8], dst: &mut [u8]) {
    dst.copy_from_slice(src);
    if typesize == 4 {
        for item in dst.as_chunks_mut().0 {
            *item = (u32::from_le_bytes(*item) & mask as u32).to_le_bytes();
        }
    } else {
        for item in dst.as_chunks_mut().0 {
            *item = (u64::from_le_bytes(*item) & mask).to_le_bytes();
        }
    }
}
