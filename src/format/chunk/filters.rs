//! Blosc's filters, undone: shuffle, bitshuffle and delta; and shuffle done, for indexes.
//!
//! Shuffle gathers the n-th bytes of all items, bitshuffle the n-th bits; what is left behind the last whole item (for bitshuffle:
//! the last whole eight items) stays where it is. Delta is an exclusive or with the item before in the first block of a chunk, and
//! with the first block in the others. Both shuffles work on squares of 8 × 8 bytes held in eight words, two squares at a time so
//! that the compiler can use vector registers.

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
    const TRUNC_PREC: u8 = 4;

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

/// Two squares of 8 × 8 bytes: row, then square.
type Rows = [[u64; 2]; 8];

/// Swaps row and column numbers bit by bit: `unit` bits a column.
#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::needless_range_loop,
    reason = "constant bounds of fixed arrays, which the compiler unrolls"
)]
#[inline(always)]
fn transpose<const UNIT: u32>(rows: &mut Rows) {
    let masks: [u64; 3] = match UNIT {
        8 => [0x00ff_00ff_00ff_00ff, 0x0000_ffff_0000_ffff, 0x0000_0000_ffff_ffff],
        _ => [0x5555_5555_5555_5555, 0x3333_3333_3333_3333, 0x0f0f_0f0f_0f0f_0f0f],
    };
    for (step, mask) in masks.into_iter().enumerate() {
        let (distance, shift) = (1 << step, UNIT << step);
        for i in (0..8).filter(|i| i & distance == 0) {
            for lane in 0..2 {
                let (a, b) = (rows[i][lane], rows[i + distance][lane]);
                rows[i][lane] = (a & mask) | ((b & mask) << shift);
                rows[i + distance][lane] = ((a >> shift) & mask) | (b & !mask);
            }
        }
    }
}

/// Elements that two squares take at once.
const TILE: usize = 16;

/// The word at the beginning of `bytes`.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// The two words at the beginning of `bytes`.
#[inline(always)]
fn words(bytes: &[u8]) -> [u64; 2] {
    [word(bytes), word(bytes.get(8..).unwrap_or_default())]
}

/// Undoes shuffle. Both sides are as long.
pub(super) fn unshuffle(typesize: usize, src: &[u8], dst: &mut [u8]) {
    match typesize {
        0 | 1 => dst.copy_from_slice(src),
        2 => unshuffle_small::<2>(src, dst),
        4 => unshuffle_small::<4>(src, dst),
        8 => unshuffle_any(8, src, dst),
        16 => unshuffle_any(16, src, dst),
        _ => unshuffle_any(typesize, src, dst),
    }
}

/// Cuts a block in its shuffled part, of `len / typesize` bytes a plane, and the rest.
fn cut(typesize: usize, len: usize) -> (usize, usize) {
    let items = len.checked_div(typesize).unwrap_or(0);
    (items, items.saturating_mul(typesize))
}

fn unshuffle_small<const SIZE: usize>(src: &[u8], dst: &mut [u8]) {
    let (items, shuffled) = cut(SIZE, src.len());
    let (src, src_rest) = src.split_at(shuffled);
    let (dst, dst_rest) = dst.split_at_mut(shuffled);
    dst_rest.copy_from_slice(src_rest);
    let mut planes = src.chunks_exact(items.max(1));
    let planes: [&[u8]; SIZE] = std::array::from_fn(|_| planes.next().unwrap_or_default());
    let (dst, _) = dst.as_chunks_mut::<SIZE>();
    for (plane, bytes) in planes.into_iter().enumerate() {
        for (item, byte) in dst.iter_mut().zip(bytes) {
            if let Some(place) = item.get_mut(plane) {
                *place = *byte;
            }
        }
    }
}

#[inline(always)]
#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "all derive from the two equal lengths and typesize > 0"
)]
fn unshuffle_any(typesize: usize, src: &[u8], dst: &mut [u8]) {
    let (items, shuffled) = cut(typesize, src.len());
    dst[shuffled..].copy_from_slice(&src[shuffled..]);
    let tiled = items / TILE * TILE;
    let square = typesize / 8 * 8;
    for at in (0..tiled).step_by(TILE) {
        let tile = &mut dst[at * typesize..(at + TILE) * typesize];
        for plane in (0..square).step_by(8) {
            let mut rows: Rows = std::array::from_fn(|i| words(&src[(plane + i) * items + at..]));
            transpose::<8>(&mut rows);
            for item in 0..TILE {
                let from = item * typesize + plane;
                tile[from..from + 8].copy_from_slice(&rows[item % 8][item / 8].to_le_bytes());
            }
        }
        for plane in square..typesize {
            for (item, byte) in tile.chunks_exact_mut(typesize).zip(&src[plane * items + at..]) {
                item[plane] = *byte;
            }
        }
    }
    for (i, item) in dst[tiled * typesize..shuffled].chunks_exact_mut(typesize).enumerate() {
        for (plane, byte) in item.iter_mut().enumerate() {
            *byte = src[plane * items + tiled + i];
        }
    }
}

/// Shuffles items of 8 bytes. Both sides are as long.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "all derive from the two equal lengths")]
pub(super) fn shuffle8(src: &[u8], dst: &mut [u8]) {
    let (items, shuffled) = cut(8, src.len());
    dst[shuffled..].copy_from_slice(&src[shuffled..]);
    let tiled = items / TILE * TILE;
    for at in (0..tiled).step_by(TILE) {
        let tile = &src[at * 8..(at + TILE) * 8];
        let mut rows: Rows = std::array::from_fn(|i| [word(&tile[i * 8..]), word(&tile[(i + 8) * 8..])]);
        transpose::<8>(&mut rows);
        for (plane, row) in rows.iter().enumerate() {
            for (lane, word) in row.iter().enumerate() {
                let from = plane * items + at + lane * 8;
                dst[from..from + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
    for (i, item) in src[tiled * 8..shuffled].chunks_exact(8).enumerate() {
        for (plane, byte) in item.iter().enumerate() {
            dst[plane * items + tiled + i] = *byte;
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
    let row_len = items / 8;
    let planes = &mut planes[..shuffled];
    for (plane, bits) in planes.chunks_exact_mut(items).zip(src[..shuffled].chunks_exact(items)) {
        for at in (0..row_len).step_by(TILE) {
            let n = TILE.min(row_len - at);
            let mut rows: Rows = std::array::from_fn(|bit| {
                let row = &bits[bit * row_len + at..bit * row_len + at + n];
                if n == TILE {
                    return words(row);
                }
                let mut padded = [0; TILE];
                padded[..n].copy_from_slice(row);
                words(&padded)
            });
            transpose::<1>(&mut rows);
            transpose::<8>(&mut rows);
            for (i, out) in plane[at * 8..(at + n) * 8].chunks_exact_mut(8).enumerate() {
                out.copy_from_slice(&rows[i % 8][i / 8].to_le_bytes());
            }
        }
    }
    unshuffle(typesize, planes, &mut dst[..shuffled]);
}

/// Undoes delta in `block`. `first` is the first block of the chunk, decoded; without it `block` is that one.
pub(super) fn undelta(typesize: usize, block: &mut [u8], first: Option<&[u8]>) {
    // The width of the difference: other sizes than these are taken in words or in bytes.
    let width = match typesize {
        1 | 2 | 4 | 8 => typesize,
        size if size.is_multiple_of(8) => 8,
        _ => 1,
    };
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

fn undelta_first<const WIDTH: usize>(block: &mut [u8]) {
    let mut before = [0; WIDTH];
    for item in block.as_chunks_mut::<WIDTH>().0 {
        for (byte, reference) in item.iter_mut().zip(before) {
            *byte ^= reference;
        }
        before = *item;
    }
}
