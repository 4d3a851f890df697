//! The default shapes of chunks and blocks of python-blosc2.
//!
//! A block is to stay in a core's caches, a chunk in those of all cores: both grow from the last dimension, to sizes that divide the
//! array's as far as there are such ones nearby. Sizes are those of python-blosc2 4.14 on Linux. One thing differs: blocks that are
//! asked for are kept, where it takes a shape of its own with as many items.

use super::{Error, Result};

/// The most that a chunk holds.
const MAX_CHUNK: u64 = i32::MAX as u64 - 32;
/// The most that a block holds.
const MAX_BLOCK: u64 = super::chunk::MAX_BLOCKSIZE as u64;
/// The least that is aimed at: of a block, and of a chunk.
const MIN_BLOCK: u64 = 32 << 10;
const MIN_CHUNK: u64 = 4 << 20;
/// So many operands of a computation share a cache.
const OPERANDS: u64 = 4;
/// Sizes above this are divided by sizes below the one aimed at only.
const LARGE: u64 = 100_000;

/// Bytes of a processor's caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caches {
    /// The first level's, for data.
    pub l1: u64,
    /// The second level's.
    pub l2: u64,
    /// The third level's.
    pub l3: u64,
}

impl Default for Caches {
    /// Of a processor that does not tell.
    fn default() -> Self {
        Caches { l1: 32 << 10, l2: 256 << 10, l3: 1 << 20 }
    }
}

/// The shapes of an array's parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Items of a chunk in each dimension.
    pub chunks: Vec<u32>,
    /// Items of a block in each dimension.
    pub blocks: Vec<u32>,
}

impl Partition {
    /// How to cut an array of items of `itemsize` bytes, at least 1, where chunks and blocks are not given.
    ///
    /// # Errors
    /// Given shapes that have another number of dimensions, a 0 where the array has items, blocks larger than chunks; parts of more
    /// bytes than a chunk or a block can have.
    pub fn new(shape: &[u64], itemsize: u64, chunks: Option<&[u32]>, blocks: Option<&[u32]>, caches: Caches) -> Result<Self> {
        check(shape, chunks, "array: chunkshape")?;
        check(shape, blocks, "array: blockshape")?;
        let wide = |sizes: Option<&[u32]>| sizes.map(|sizes| sizes.iter().copied().map(u64::from).collect::<Vec<_>>());
        let (chunks, blocks) = (wide(chunks), wide(blocks));
        let is_empty = shape.contains(&0);
        let blocks = match (blocks, &chunks) {
            (Some(blocks), _) => blocks,
            (None, chunks) => {
                let around = chunks.as_deref().unwrap_or(shape);
                // Nothing divides nothing.
                if around.contains(&0) { around.to_vec() } else { part(block_items(itemsize, caches), around, &[]) }
            }
        };
        let chunks = match chunks {
            Some(chunks) => chunks,
            None if is_empty => shape.iter().zip(&blocks).map(|(size, block)| *size.max(block)).collect(),
            None => {
                let block = product(&blocks).saturating_mul(itemsize).max(1);
                let most = chunk_bytes(block, caches);
                let most = most.saturating_sub(most.checked_rem(block).unwrap_or(0));
                let near = part(most.checked_div(itemsize).unwrap_or(1), shape, &blocks);
                let whole = |((size, near), block): ((&u64, u64), &u64)| near.next_multiple_of((*block).max(1)).min(*size);
                // What was asked for may be larger than the array.
                shape.iter().zip(near).zip(&blocks).map(whole).zip(&blocks).map(|(chunk, block)| chunk.max(*block)).collect()
            }
        };
        for (block, chunk) in blocks.iter().zip(&chunks) {
            if block > chunk {
                return Err(Error::new("array: blockshape", 0, block, format_args!("at most {chunk}, which chunks have")));
            }
        }
        let padded: Vec<u64> = chunks.iter().zip(&blocks).map(|(chunk, block)| chunk.next_multiple_of((*block).max(1))).collect();
        for (sizes, most, field) in [(&padded, MAX_CHUNK, "array: chunkshape"), (&blocks, MAX_BLOCK, "array: blockshape")] {
            let bytes = product(sizes).saturating_mul(itemsize);
            if bytes > most {
                let got = format_args!("{sizes:?} items of {itemsize} bytes");
                return Err(Error::new(field, 0, got, format_args!("at most {most} bytes")));
            }
        }
        let field = "array: chunkshape";
        let narrow = |sizes: Vec<u64>| {
            let narrow: Option<Vec<u32>> = sizes.iter().map(|size| u32::try_from(*size).ok()).collect();
            narrow.ok_or_else(|| Error::new(field, 0, format_args!("{sizes:?}"), format_args!("at most {} each", u32::MAX)))
        };
        Ok(Partition { chunks: narrow(chunks)?, blocks: narrow(blocks)? })
    }
}

/// Checks a shape that is given.
fn check(shape: &[u64], part: Option<&[u32]>, field: &'static str) -> Result<()> {
    let Some(part) = part else { return Ok(()) };
    if part.len() != shape.len() {
        let (got, expected) = (part.len(), shape.len());
        return Err(Error::new(
            field,
            0,
            format_args!("{got} dimension{}", if got == 1 { "" } else { "s" }),
            format_args!("{expected}, as the array has"),
        ));
    }
    if shape.iter().zip(part).any(|(size, part)| *size > 0 && *part == 0) {
        return Err(Error::new(field, 0, 0, "at least 1 in each dimension"));
    }
    Ok(())
}

fn product(sizes: &[u64]) -> u64 {
    sizes.iter().fold(1, |product, size| product.saturating_mul(*size))
}

/// Items of a block.
fn block_items(itemsize: u64, caches: Caches) -> u64 {
    let least = if !cfg!(target_arch = "x86_64") {
        caches.l1
    } else if caches.l2 >= 2 << 20 {
        caches.l1.saturating_mul(4)
    } else {
        caches.l2 / OPERANDS
    };
    MIN_BLOCK.max(least).min(MAX_BLOCK).max(itemsize).checked_div(itemsize).unwrap_or(1)
}

/// Bytes to aim at for a chunk whose blocks have `block` bytes.
fn chunk_bytes(block: u64, caches: Caches) -> u64 {
    let several = block.saturating_mul(32);
    let guess = if several < 64 << 20 { several } else { block };
    let shared = if caches.l3 > caches.l2 { caches.l3 } else { guess } / OPERANDS;
    let shared = if caches.l2 > shared { shared.max(caches.l2 / OPERANDS) } else { shared };
    shared.clamp(MIN_CHUNK, MAX_CHUNK).max(block)
}

/// A part of a shape without zeros, of about so many items, grown from the last dimension, and in none smaller than `least`.
fn part(items: u64, shape: &[u64], least: &[u64]) -> Vec<u64> {
    let mut part = vec![1; shape.len()];
    let mut left = items;
    for (n, (part, &size)) in part.iter_mut().zip(shape).enumerate().rev() {
        if left <= 1 {
            break;
        }
        let least = least.get(n).copied().unwrap_or(1);
        let all = size.max(least);
        *part = if all <= left {
            divisor_near(size, all, false)
        } else {
            let aim = left.max(least);
            let found = divisor_near(size, aim, true);
            if aim / 2 < found && found < aim.saturating_mul(2) { found } else { aim }
        };
        left = left.checked_div(*part).unwrap_or(0);
    }
    part
}

/// The divisor of `size` that is nearest to `aim`; with `below`, or of a large size, the next one below.
fn divisor_near(size: u64, aim: u64, below: bool) -> u64 {
    let divides = |n: &u64| size.checked_rem(*n) == Some(0);
    if divides(&aim) {
        return aim;
    }
    if below || size > LARGE {
        return (1..aim).rev().find(divides).unwrap_or(1);
    }
    let pairs = (1..=size.isqrt()).filter(divides).flat_map(|n| [Some(n), size.checked_div(n)]).flatten();
    pairs.fold((1, size), |(best, least), n| if n.abs_diff(aim) < least { (n, n.abs_diff(aim)) } else { (best, least) }).0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an EPYC: what python-blosc2 4.14.1 answers there.
    const CACHES: Caches = Caches { l1: 48 << 10, l2: 1 << 20, l3: 32 << 20 };

    #[test]
    fn given_parts_are_kept_and_checked() {
        let of = |shape: &[u64], chunks, blocks| Partition::new(shape, 8, chunks, blocks, CACHES);
        let both = of(&[10, 20], Some(&[4, 30]), Some(&[3, 7])).unwrap();
        assert_eq!((both.chunks, both.blocks), (vec![4, 30], vec![3, 7]));
        // A block that is given is the least of a chunk, even of an array that is smaller.
        let blocks = of(&[10, 20], None, Some(&[3, 32])).unwrap();
        assert_eq!((blocks.chunks, blocks.blocks), (vec![10, 32], vec![3, 32]));
        assert_eq!(of(&[10, 20], Some(&[4, 30]), None).unwrap().blocks, [4, 30]);
        for (shape, chunks, blocks, field) in [
            (&[10, 20][..], Some(&[4][..]), None, "array: chunkshape"),
            (&[10, 20], Some(&[4, 0]), None, "array: chunkshape"),
            (&[10, 20], None, Some(&[0, 4][..]), "array: blockshape"),
            (&[10, 20], Some(&[4, 4]), Some(&[4, 5]), "array: blockshape"),
            (&[1 << 40], Some(&[1 << 28]), None, "array: chunkshape"),
            (&[1 << 40], None, Some(&[1 << 27]), "array: blockshape"),
        ] {
            assert_eq!(of(shape, chunks, blocks).unwrap_err().field, field, "{shape:?} {chunks:?} {blocks:?}");
        }
    }

    #[test]
    fn nothing_is_cut_in_nothing() {
        let empty = Partition::new(&[0, 5], 8, None, None, CACHES).unwrap();
        assert_eq!((empty.chunks, empty.blocks), (vec![0, 5], vec![0, 5]));
        let single = Partition::new(&[], 8, None, None, CACHES).unwrap();
        assert_eq!((single.chunks, single.blocks), (vec![], vec![]));
    }
}
