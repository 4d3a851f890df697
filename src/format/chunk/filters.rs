//! Blosc's filters, undone: shuffle, bitshuffle and delta. What does them is in [`forward`].
//!
//! Shuffle gathers the n-th bytes of all items, bitshuffle the n-th bits; what is left behind the last whole item (for bitshuffle:
//! the last whole eight items) stays where it is. Delta is an exclusive or with the item before in the first block of a chunk, and
//! with the first block in the others. Undoing a shuffle is zipping planes: two at a time, in vector registers, until whole items
//! stand there.

use wide::{u8x16, u64x2};

pub(super) mod forward;

/// A filter in a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    /// An empty slot, or one whose filter needs no undoing (truncated precision).
    None,
    /// Bytes are grouped in items of this size.
    Shuffle(u8),
    BitShuffle,
    Delta,
    /// A registered or user-defined filter, by its id.
    Unknown(u8),
}

impl Filter {
    pub(super) const SHUFFLE: u8 = 1;
    pub(super) const BITSHUFFLE: u8 = 2;
    pub(super) const DELTA: u8 = 3;
    pub(super) const TRUNC_PREC: u8 = 4;

    /// A slot of a header. Shuffle's metadata, where it is not 0, stands for the typesize.
    pub(super) fn new(id: u8, meta: u8, typesize: u8) -> Self {
        match id {
            0 | Self::TRUNC_PREC => Filter::None,
            Self::SHUFFLE => Filter::Shuffle(if meta == 0 { typesize } else { meta }),
            Self::BITSHUFFLE => Filter::BitShuffle,
            Self::DELTA => Filter::Delta,
            other => Filter::Unknown(other),
        }
    }
}

/// Cuts a block in its shuffled part, of `len / typesize` bytes a plane, and the rest.
fn cut(typesize: usize, len: usize) -> (usize, usize) {
    let items = len.checked_div(typesize).unwrap_or(0);
    (items, items.saturating_mul(typesize))
}

/// Undoes shuffle. Both sides are as long.
#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "all derive from the two equal lengths and typesize > 0"
)]
pub(super) fn unshuffle(typesize: usize, src: &[u8], dst: &mut [u8]) {
    if typesize <= 1 {
        return dst.copy_from_slice(src);
    }
    let (items, shuffled) = cut(typesize, src.len());
    dst[shuffled..].copy_from_slice(&src[shuffled..]);
    let dst = &mut dst[..shuffled];
    let done = match typesize {
        2 => whole_items::<2>(items, src, dst),
        4 => whole_items::<4>(items, src, dst),
        8 => whole_items::<8>(items, src, dst),
        16 => whole_items::<16>(items, src, dst),
        _ => parts_of_items(typesize, items, src, dst),
    };
    for (i, item) in dst[done * typesize..].chunks_exact_mut(typesize).enumerate() {
        for (plane, byte) in item.iter_mut().enumerate() {
            *byte = src[plane * items + done + i];
        }
    }
}

/// Bytes of a vector register.
const LANES: usize = 16;

/// Interleaves registers that stand half of all apart: in the number of a byte, the highest bit comes to be the lowest.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "constant bounds of fixed arrays")]
#[inline(always)]
fn round<const N: usize>(before: [u8x16; N]) -> [u8x16; N] {
    let mut after = before;
    for i in 0..N / 2 {
        let (a, b) = (before[i], before[i + N / 2]);
        (after[2 * i], after[2 * i + 1]) = (u8x16::unpack_low(a, b), u8x16::unpack_high(a, b));
    }
    after
}

/// Zips `N` planes, 2, 4, 8 or 16, to items of `N` bytes, in rounds: each brings together planes that stand half of those left
/// apart.
#[inline(always)]
fn zip<const N: usize>(mut planes: [u8x16; N]) -> [u8x16; N] {
    // No loop: the compiler must see where each register goes.
    planes = round(planes);
    if N > 2 {
        planes = round(planes);
    }
    if N > 4 {
        planes = round(planes);
    }
    if N > 8 {
        planes = round(planes);
    }
    planes
}

/// Undoes shuffle for items of `N` bytes, and says for how many.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "as in unshuffle")]
fn whole_items<const N: usize>(items: usize, src: &[u8], dst: &mut [u8]) -> usize {
    let mut planes = [&[[0; LANES]][..0]; N];
    for (i, plane) in planes.iter_mut().enumerate() {
        *plane = src[i * items..][..items].as_chunks().0;
    }
    for (n, out) in dst.as_chunks_mut::<LANES>().0.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        let mut lanes = [u8x16::default(); N];
        for (lanes, plane) in lanes.iter_mut().zip(planes) {
            *lanes = plane[n].into();
        }
        for (out, lanes) in out.iter_mut().zip(zip(lanes)) {
            *out = lanes.to_array();
        }
    }
    items / LANES * LANES
}

/// Items that other sizes are worked on at once: few enough for the first-level cache.
const TILE: usize = 4 * LANES;

/// Undoes shuffle for items of any size above 2, a few planes at a time, and says for how many.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "as in unshuffle")]
fn parts_of_items(typesize: usize, items: usize, src: &[u8], dst: &mut [u8]) -> usize {
    let most = if typesize >= 16 { 16 } else { 1 << typesize.ilog2() };
    for (n, tile) in dst.chunks_exact_mut(TILE * typesize).enumerate() {
        let src = &src[n * TILE..];
        let mut plane = 0;
        while plane < typesize {
            // The last ones may be done twice.
            let step = if most == 16 { 16 } else { (typesize - plane).next_power_of_two().clamp(2, most) };
            let first = plane.min(typesize - step);
            match step {
                16 => part::<16>(&src[first * items..], items, tile, typesize, first),
                8 => part::<8>(&src[first * items..], items, tile, typesize, first),
                4 => part::<4>(&src[first * items..], items, tile, typesize, first),
                _ => part::<2>(&src[first * items..], items, tile, typesize, first),
            }
            plane += step;
        }
    }
    items / TILE * TILE
}

/// Puts the `N` planes that begin `items` bytes apart in `src` to their place in a tile of items, at byte `first` of each.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "as in unshuffle")]
#[inline(always)]
fn part<const N: usize>(src: &[u8], items: usize, tile: &mut [u8], typesize: usize, first: usize) {
    let mut planes = [&[[0; LANES]; TILE / LANES]; N];
    for (i, plane) in planes.iter_mut().enumerate() {
        let Some(bytes) = src[i * items..][..TILE].as_chunks().0.first_chunk() else { return };
        *plane = bytes;
    }
    let mut out = tile.chunks_exact_mut(typesize);
    for n in 0..TILE / LANES {
        let mut lanes = [u8x16::default(); N];
        for (lanes, plane) in lanes.iter_mut().zip(planes) {
            *lanes = plane[n].into();
        }
        for lanes in &zip(lanes) {
            for part in lanes.to_array().as_chunks::<N>().0 {
                let Some(item) = out.next() else { return };
                item[first..first + N].copy_from_slice(part);
            }
        }
    }
}

/// Undoes bitshuffle. All three are as long; `planes` is room to work in. Chunks of version 2 were shuffled only where the number
/// of items is a multiple of 8.
#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "all derive from the equal lengths and typesize > 0"
)]
pub(super) fn bitunshuffle(typesize: usize, version: u8, src: &[u8], dst: &mut [u8], planes: &mut [u8]) {
    let (all, _) = cut(typesize, src.len());
    let items = if version == 2 && all % 8 != 0 { 0 } else { all / 8 * 8 };
    let shuffled = items * typesize;
    dst[shuffled..].copy_from_slice(&src[shuffled..]);
    if items == 0 {
        return;
    }
    let planes = &mut planes[..shuffled];
    for (plane, bits) in planes.chunks_exact_mut(items).zip(src[..shuffled].chunks_exact(items)) {
        plane_of_bits(bits, plane);
    }
    unshuffle(typesize, planes, &mut dst[..shuffled]);
}

/// Makes a plane of bytes, a multiple of eight, of its bits. Both sides are as long.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "as in bitunshuffle")]
fn plane_of_bits(bits: &[u8], plane: &mut [u8]) {
    let row_len = bits.len() / 8;
    let mut rows = [&[[0; LANES]][..0]; 8];
    for (row, bits) in rows.iter_mut().zip(bits.chunks_exact(row_len)) {
        *row = bits.as_chunks().0;
    }
    let (whole, rest) = plane.as_chunks_mut::<{ 8 * LANES }>();
    let done = whole.len() * LANES;
    for (i, out) in whole.iter_mut().enumerate() {
        let mut lanes = [u8x16::default(); 8];
        for (lanes, row) in lanes.iter_mut().zip(rows) {
            *lanes = row[i].into();
        }
        *out = bytes_of_bits(lanes);
    }
    if !rest.is_empty() {
        let mut lanes = [u8x16::default(); 8];
        for (lanes, row) in lanes.iter_mut().zip(bits.chunks_exact(row_len)) {
            let mut padded = [0; LANES];
            padded[..row_len - done].copy_from_slice(&row[done..]);
            *lanes = padded.into();
        }
        rest.copy_from_slice(&bytes_of_bits(lanes)[..rest.len()]);
    }
}

/// The bytes whose first bits, second and so on are given.
#[inline(always)]
fn bytes_of_bits(rows: [u8x16; 8]) -> [u8; 8 * LANES] {
    let mut out = [0; 8 * LANES];
    // Register r holds the bytes of items r, r + 8, r + 16, …
    for (out, lanes) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(zip(transpose_bits(rows))) {
        *out = lanes.to_array();
    }
    out
}

/// Exchanges the number of a register and that of a bit.
#[inline(always)]
fn transpose_bits(rows: [u8x16; 8]) -> [u8x16; 8] {
    let mut rows = rows.map(|row| {
        let [low, high] = row.to_array().as_chunks::<8>().0.first_chunk().map_or([0; 2], |words| words.map(u64::from_le_bytes));
        u64x2::new([low, high])
    });
    swap_bit(&mut rows, [(0, 1), (2, 3), (4, 5), (6, 7)], 1, 0x5555_5555_5555_5555);
    swap_bit(&mut rows, [(0, 2), (1, 3), (4, 6), (5, 7)], 2, 0x3333_3333_3333_3333);
    swap_bit(&mut rows, [(0, 4), (1, 5), (2, 6), (3, 7)], 4, 0x0f0f_0f0f_0f0f_0f0f);
    rows.map(|row| {
        let mut bytes = [0; LANES];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(row.to_array()) {
            *bytes = word.to_le_bytes();
        }
        bytes.into()
    })
}

/// Exchanges one bit of the register's number, in which `pairs` differ, with one of the bit's number: bits `distance` apart, those in
/// `mask` coming first.
#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "constant pairs of registers, shifted by less than their width"
)]
#[inline(always)]
fn swap_bit(rows: &mut [u64x2; 8], pairs: [(usize, usize); 4], distance: u64, mask: u64) {
    for (i, j) in pairs {
        let differ = ((rows[i] >> distance) ^ rows[j]) & u64x2::splat(mask);
        rows[j] ^= differ;
        rows[i] ^= differ << distance;
    }
}

/// Undoes delta in `block`. `first` is the first block of the chunk, decoded; without it `block` is that one.
pub(super) fn undelta(typesize: usize, block: &mut [u8], first: Option<&[u8]>) {
    let width = delta_width(typesize);
    let (_, whole) = cut(width, block.len());
    let block = block.get_mut(..whole).unwrap_or_default();
    match (first, width) {
        (Some(first), _) => block.iter_mut().zip(first).for_each(|(byte, reference)| *byte ^= reference),
        (None, 1) => undelta_first::<1>(block),
        (None, 2) => undelta_first::<2>(block),
        (None, 4) => undelta_first::<4>(block),
        (None, _) => undelta_first::<8>(block),
    }
}

/// The width of the difference: other sizes than these are taken in words or in bytes.
fn delta_width(typesize: usize) -> usize {
    match typesize {
        1 | 2 | 4 | 8 => typesize,
        size if size.is_multiple_of(8) => 8,
        _ => 1,
    }
}

fn undelta_first<const WIDTH: usize>(block: &mut [u8]) {
    let mut before = [0; WIDTH];
    for item in block.as_chunks_mut::<WIDTH>().0 {
        for (byte, reference) in item.iter_mut().zip(before) {
            *byte ^= reference;
        }
        before = *item;
    }
}
