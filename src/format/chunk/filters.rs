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

/// Items that are worked on at once: few enough for the first-level cache, enough for the compiler to use vector registers.
const TILE: usize = 128;

/// Alternates the bytes of two sides of the same length.
fn zip(a: &[u8], b: &[u8], out: &mut [u8]) {
    for ((pair, a), b) in out.as_chunks_mut::<2>().0.iter_mut().zip(a).zip(b) {
        *pair = [*a, *b];
    }
}

/// Room for a tile of eight planes, twice: what one step has zipped, and what the next makes of it.
type Tile = [[u8; TILE * 8]; 2];

/// Zips `WIDTH` planes, of `TILE` bytes each, to items of `WIDTH` bytes, in rounds: each brings together planes that stand half of
/// those left apart. `WIDTH` is 1, 2, 4 or 8.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "constant bounds of fixed arrays")]
#[inline(always)]
fn zip_planes<const WIDTH: usize>(planes: [&[u8]; WIDTH], tile: &mut Tile, out: &mut [u8]) {
    let [a, b] = tile;
    let half = TILE * 8 / 2;
    match WIDTH {
        1 => out.copy_from_slice(planes[0]),
        2 => zip(planes[0], planes[1 % WIDTH], out),
        4 => {
            for i in 0..2 {
                zip(planes[i], planes[(i + 2) % WIDTH], &mut a[i * TILE * 2..][..TILE * 2]);
            }
            zip(&a[..TILE * 2], &a[TILE * 2..TILE * 4], out);
        }
        _ => {
            for i in 0..4 {
                zip(planes[i], planes[(i + 4) % WIDTH], &mut a[i * TILE * 2..][..TILE * 2]);
            }
            for i in 0..2 {
                zip(&a[i * TILE * 2..][..TILE * 2], &a[(i + 2) * TILE * 2..][..TILE * 2], &mut b[i * half..][..half]);
            }
            zip(&b[..half], &b[half..], out);
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
    let tiled = items / TILE * TILE;
    let mut room: Tile = [[0; TILE * 8]; 2];
    for at in (0..tiled).step_by(TILE) {
        let tile = &mut dst[at * typesize..][..TILE * typesize];
        let mut plane = 0;
        while plane < typesize {
            let from = &src[plane * items + at..];
            plane += match typesize - plane {
                8.. => place::<8>(from, items, tile, typesize, plane, &mut room),
                4.. => place::<4>(from, items, tile, typesize, plane, &mut room),
                2.. => place::<2>(from, items, tile, typesize, plane, &mut room),
                _ => place::<1>(from, items, tile, typesize, plane, &mut room),
            };
        }
    }
    for (i, item) in dst[tiled * typesize..shuffled].chunks_exact_mut(typesize).enumerate() {
        for (plane, byte) in item.iter_mut().enumerate() {
            *byte = src[plane * items + tiled + i];
        }
    }
}

/// Puts a tile of the `WIDTH` planes that begin `items` bytes apart in `src` to their place in items of `typesize`.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "as in unshuffle")]
#[inline(always)]
fn place<const WIDTH: usize>(src: &[u8], items: usize, tile: &mut [u8], typesize: usize, plane: usize, room: &mut Tile) -> usize {
    let planes: [&[u8]; WIDTH] = std::array::from_fn(|i| &src[i * items..][..TILE]);
    if typesize == WIDTH {
        zip_planes(planes, room, tile);
    } else {
        let mut zipped = [0; TILE * 8];
        let zipped = &mut zipped[..TILE * WIDTH];
        zip_planes(planes, room, zipped);
        for (item, part) in tile.chunks_exact_mut(typesize).zip(zipped.as_chunks::<WIDTH>().0) {
            item[plane..plane + WIDTH].copy_from_slice(part);
        }
    }
    WIDTH
}

/// Shuffles items of 8 bytes. Both sides are as long.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "all derive from the two equal lengths")]
pub(super) fn shuffle8(src: &[u8], dst: &mut [u8]) {
    let (items, shuffled) = cut(8, src.len());
    dst[shuffled..].copy_from_slice(&src[shuffled..]);
    let tiled = items / 8 * 8;
    for at in (0..tiled).step_by(8) {
        let tile = &src[at * 8..][..64];
        let mut rows: [u64; 8] = std::array::from_fn(|i| tile[i * 8..].first_chunk().map_or(0, |row| u64::from_le_bytes(*row)));
        for (step, mask) in [0x00ff_00ff_00ff_00ff_u64, 0x0000_ffff_0000_ffff, 0x0000_0000_ffff_ffff].into_iter().enumerate() {
            swap_bits(&mut rows, 1 << step, 8 << step, mask);
        }
        for (plane, row) in rows.iter().enumerate() {
            dst[plane * items + at..][..8].copy_from_slice(&row.to_le_bytes());
        }
    }
    for (i, item) in src[tiled * 8..shuffled].chunks_exact(8).enumerate() {
        for (plane, byte) in item.iter().enumerate() {
            dst[plane * items + tiled + i] = *byte;
        }
    }
}

/// Exchanges a bit of the row number with a bit of the column number: rows `distance` apart, columns of `shift` bits apart, those
/// in `mask` coming first.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "constant bounds of fixed arrays")]
#[inline(always)]
fn swap_bits(rows: &mut [u64; 8], distance: usize, shift: u32, mask: u64) {
    for i in (0..8).filter(|i| i & distance == 0) {
        let (a, b) = (rows[i], rows[i + distance]);
        rows[i] = (a & mask) | ((b & mask) << shift);
        rows[i + distance] = ((a >> shift) & mask) | (b & !mask);
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
    let (row_len, planes) = (items / 8, &mut planes[..shuffled]);
    let mut rows = [[0; TILE]; 8];
    let mut room: Tile = [[0; TILE * 8]; 2];
    for (plane, bits) in planes.chunks_exact_mut(items).zip(src[..shuffled].chunks_exact(items)) {
        for at in (0..row_len).step_by(TILE) {
            let n = TILE.min(row_len - at);
            for (row, bits) in rows.iter_mut().zip(bits.chunks_exact(row_len)) {
                row[..n].copy_from_slice(&bits[at..at + n]);
            }
            transpose_bits(&mut rows);
            // Row r holds the bytes of items r, r + 8, r + 16, …
            let sides = rows.each_ref().map(|row| &row[..]);
            if n == TILE {
                zip_planes(sides, &mut room, &mut plane[at * 8..][..TILE * 8]);
            } else {
                let mut zipped = [0; TILE * 8];
                zip_planes(sides, &mut room, &mut zipped);
                plane[at * 8..][..n * 8].copy_from_slice(&zipped[..n * 8]);
            }
        }
    }
    unshuffle(typesize, planes, &mut dst[..shuffled]);
}

/// Exchanges row number and bit number.
fn transpose_bits(rows: &mut [[u8; TILE]; 8]) {
    swap_bit::<1>(rows, 0x5555_5555_5555_5555);
    swap_bit::<2>(rows, 0x3333_3333_3333_3333);
    swap_bit::<4>(rows, 0x0f0f_0f0f_0f0f_0f0f);
}

/// Exchanges one bit of the row number with one of the bit number, `mask` being the bits that come first.
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "constant bounds of fixed arrays")]
#[inline(always)]
fn swap_bit<const DISTANCE: usize>(rows: &mut [[u8; TILE]; 8], mask: u64) {
    for i in (0..8).filter(|i| i & DISTANCE == 0) {
        let (above, below) = rows.split_at_mut(i + DISTANCE);
        for (x, y) in above[i].as_chunks_mut::<8>().0.iter_mut().zip(below[0].as_chunks_mut::<8>().0) {
            let (a, b) = (u64::from_le_bytes(*x), u64::from_le_bytes(*y));
            *x = ((a & mask) | ((b & mask) << DISTANCE)).to_le_bytes();
            *y = (((a >> DISTANCE) & mask) | (b & !mask)).to_le_bytes();
        }
    }
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
