//! The encoders of index chunks, of special values, and of chunks that hold their bytes as they are.

use std::ops::Range;

use super::super::super::{Error, Result, Special};
use super::super::header::{self, ChunkHeader};
use super::super::{blosclz, filters};

/// Size of a block.
const BLOCK: usize = 16 * 1024;
/// Size of an item.
const ITEM: usize = 8;
/// The library's level for indexes.
const LEVEL: u8 = 5;
/// Below this size the library does not try to compress.
const MIN_BUFFER: usize = 32;
/// The most that a chunk holds.
const MAX: usize = i32::MAX as usize - ChunkHeader::LEN;

/// Encodes `items`, little-endian words of 8 bytes, as the chunk that C-Blosc2 makes of an index: BloscLZ at level 5 after shuffle,
/// blocks of 16 KiB, never split. What would not shrink becomes a plain copy, and zeros only become a special chunk.
///
/// The bytes are those that the library writes with one thread. (With several it may store the blocks in another order.)
///
/// # Errors
/// When `items` is no whole number of words, or more than a chunk can hold.
pub fn encode(items: &[u8]) -> Result<Vec<u8>> {
    let part = |range: Range<usize>, into: &mut Vec<u8>| into.extend(items.get(range).unwrap_or_default());
    encode_like(items.len(), part, None)
}

/// A chunk as [`encode`] makes them, for another that has some of its items in the same places.
#[derive(Clone, Copy)]
pub struct Before<'a> {
    /// The chunk.
    pub chunk: &'a [u8],
    /// Whether the items in a range, counted in bytes, are the same.
    pub same: &'a dyn Fn(Range<usize>) -> bool,
}

/// As [`encode`], of `nbytes` of items that `items` appends a block at a time. A block of the chunk before, all of whose items are the
/// same, is not compressed again; the answer is the same.
///
/// # Errors
/// As [`encode`].
pub fn encode_like(
    nbytes: usize,
    mut items: impl FnMut(Range<usize>, &mut Vec<u8>),
    before: Option<Before<'_>>,
) -> Result<Vec<u8>> {
    if !nbytes.is_multiple_of(ITEM) || nbytes > MAX {
        let expected = format_args!("a multiple of {ITEM} up to {MAX}");
        return Err(Error::new("chunk: nbytes", 4, nbytes, expected));
    }
    let flags = header::SHUFFLE | header::BITSHUFFLE;
    if nbytes < MIN_BUFFER {
        return Ok(copy(nbytes, items, flags | header::MEMCPY, ITEM));
    }
    let flags = flags | header::DONT_SPLIT;
    match compress(nbytes, &mut items, flags, before) {
        Some(chunk) => Ok(chunk),
        None => Ok(copy(nbytes, items, flags | header::MEMCPY, ITEM)),
    }
}

/// The ranges of bytes that are blocks.
fn blocks(nbytes: usize) -> impl Iterator<Item = Range<usize>> {
    (0..nbytes).step_by(BLOCK).map(move |start| start..start.saturating_add(BLOCK).min(nbytes))
}

impl<'a> Before<'a> {
    /// If it is made of compressed blocks.
    fn of_blocks(self, flags: u8) -> Option<Self> {
        let alike = head(0, flags, ITEM);
        let before = self.chunk.get(..ChunkHeader::LEN)?;
        // Flags, the size of items and of blocks; the filters.
        let same = |range: Range<usize>| before.get(range.clone()) == alike.get(range);
        let same = same(0..header::NBYTES) && same(header::BLOCKSIZE..header::CBYTES) && same(header::FILTERS..ChunkHeader::LEN);
        same.then_some(self)
    }

    /// The stream of a block that both chunks have whole, its csize before it, if it is the same in both.
    fn stream(&self, n: usize, block: &Range<usize>) -> Option<&'a [u8]> {
        let word = |at: usize| self.chunk.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word) as usize);
        let nbytes = word(header::NBYTES)?;
        if block.end > nbytes || block.len() != BLOCK || !(self.same)(block.clone()) {
            return None;
        }
        let field = ChunkHeader::LEN.checked_add(n.checked_mul(4)?)?;
        let next = if block.end < nbytes { word(field.checked_add(4)?)? } else { self.chunk.len() };
        let stream = self.chunk.get(word(field)?..next)?;
        // Another writer may have put its blocks in another order.
        let stored = match i32::from_le_bytes(*stream.first_chunk()?) {
            csize @ 0.. => csize as usize,
            _ => 1,
        };
        (stream.len().checked_sub(4)? == stored).then_some(stream)
    }
}

/// The chunk of `nbytes` that is nothing but a special value, as C-Blosc2 makes one in memory for a special entry of an index: a
/// header. A `typesize` that a chunk cannot have becomes 1; a `blocksize` that does not fit, or is 0, one that does.
///
/// # Errors
/// NaN whose items are not of 4 or 8 bytes, or do not make up nbytes.
pub fn special(special: Special, nbytes: u32, typesize: u32, blocksize: u32) -> Result<Vec<u8>> {
    let whole = u8::try_from(typesize).ok().filter(|size| nbytes.checked_rem(u32::from(*size)) == Some(0));
    let code = match special {
        Special::Zeros => 1,
        Special::Nan => 2,
        Special::Uninit => 4,
    };
    if special == Special::Nan && !whole.is_some_and(|size| matches!(size, 4 | 8)) {
        let expected = format_args!("4 or 8, dividing nbytes {nbytes}, the chunk being all NaN");
        return Err(Error::new("chunk: typesize", header::TYPESIZE as u64, typesize, expected));
    }
    let flags = header::SHUFFLE | header::BITSHUFFLE;
    let mut out = vec![header::VERSION_STABLE, 1, flags, whole.unwrap_or(1)];
    out.extend(nbytes.to_le_bytes());
    let fits =
        |size: &u32| (1..=header::MAX_BLOCKSIZE).contains(size) && whole.is_none_or(|item| size.is_multiple_of(item.into()));
    out.extend(Some(blocksize).filter(fits).unwrap_or(BLOCK as u32).min(nbytes.max(1)).to_le_bytes());
    out.extend([0; 19]);
    out.push(code << 4);
    Ok(finish(out))
}

/// Encodes any bytes as a plain copy, which is what C-Blosc2 makes of those that do not shrink.
///
/// # Errors
/// More than a chunk can hold.
pub fn plain(bytes: &[u8]) -> Result<Vec<u8>> {
    if bytes.len() > MAX {
        return Err(Error::new("chunk: nbytes", 4, bytes.len(), format_args!("at most {MAX}")));
    }
    let part = |range: Range<usize>, into: &mut Vec<u8>| into.extend(bytes.get(range).unwrap_or_default());
    Ok(copy(bytes.len(), part, header::SHUFFLE | header::BITSHUFFLE | header::MEMCPY, 1))
}

/// The header of a chunk of `nbytes` with its cbytes still open.
fn head(nbytes: usize, flags: u8, typesize: usize) -> Vec<u8> {
    let blocksize = if nbytes == 0 { BLOCK } else { nbytes.min(BLOCK) } as u32;
    let mut out = vec![header::VERSION_STABLE, 1, flags, typesize as u8];
    out.extend((nbytes as u32).to_le_bytes());
    out.extend(blocksize.to_le_bytes());
    out.extend([0; 4]);
    out.extend([0, 0, 0, 0, 0, filters::Filter::SHUFFLE]);
    out.extend([0; 10]);
    out
}

fn finish(mut chunk: Vec<u8>) -> Vec<u8> {
    let cbytes = chunk.len() as u32;
    if let Some(field) = chunk.get_mut(header::CBYTES..header::CBYTES + 4) {
        field.copy_from_slice(&cbytes.to_le_bytes());
    }
    chunk
}

fn copy(nbytes: usize, mut items: impl FnMut(Range<usize>, &mut Vec<u8>), flags: u8, typesize: usize) -> Vec<u8> {
    let mut out = head(nbytes, flags, typesize);
    out.reserve(nbytes);
    blocks(nbytes).for_each(|block| items(block, &mut out));
    finish(out)
}

/// `None` where the result would be longer than a plain copy.
fn compress(
    nbytes: usize,
    items: &mut impl FnMut(Range<usize>, &mut Vec<u8>),
    flags: u8,
    before: Option<Before<'_>>,
) -> Option<Vec<u8>> {
    let mut out = head(nbytes, flags, ITEM);
    let count = nbytes.div_ceil(BLOCK);
    let starts_end = ChunkHeader::LEN.checked_add(count.checked_mul(4)?)?;
    let size = nbytes.checked_add(ChunkHeader::LEN)?;
    if starts_end > size {
        return None;
    }
    let before = before.and_then(|before| before.of_blocks(flags));
    out.reserve(before.map_or(0, |before| before.chunk.len()));
    out.resize(starts_end, 0);
    let mut tables = blosclz::Tables::default();
    let (mut plain, mut shuffled) = (Vec::with_capacity(BLOCK), vec![0; nbytes.min(BLOCK)]);
    let mut room = vec![0; BLOCK];
    for (n, block) in blocks(nbytes).enumerate() {
        let start = ChunkHeader::LEN.checked_add(n.checked_mul(4)?)?;
        let at = out.len() as u32;
        out.get_mut(start..start.checked_add(4)?)?.copy_from_slice(&at.to_le_bytes());
        let left = size.checked_sub(out.len())?.checked_sub(4)?;
        // With less room than the block is long, its stream may be another.
        if let Some(stream) = before.filter(|_| left >= block.len()).and_then(|before| before.stream(n, &block)) {
            out.extend_from_slice(stream);
            continue;
        }
        plain.clear();
        items(block.clone(), &mut plain);
        let shuffled = shuffled.get_mut(..block.len())?;
        filters::forward::shuffle(ITEM, plain.get(..block.len())?, shuffled);
        let room = room.get_mut(..left.min(BLOCK))?;
        let (field, stored) = stream(shuffled, room, &mut tables)?;
        out.extend(field.to_le_bytes());
        out.extend_from_slice(room.get(..stored)?);
    }
    if out.len() == starts_end.checked_add(count.checked_mul(4)?)? {
        // Nothing but runs of zeros.
        out.truncate(ChunkHeader::LEN);
        *out.get_mut(header::BLOSC2_FLAGS)? |= 1 << 4;
    }
    Some(finish(out))
}

/// Writes a block's stream to the beginning of `room`: its csize and how many bytes follow that.
fn stream(block: &[u8], room: &mut [u8], tables: &mut blosclz::Tables) -> Option<(i32, usize)> {
    let value = *block.first()?;
    if block.iter().all(|byte| *byte == value) {
        if value == 0 {
            return Some((0, 0));
        }
        *room.first_mut()? = 1;
        return Some((i32::from(value).wrapping_neg(), 1));
    }
    // A stream of the block's own size would be read as a plain one.
    let limit = room.len().min(block.len());
    let stored = match blosclz::compress(LEVEL, block, room.get_mut(..limit)?, tables) {
        Some(stored) if stored != block.len() => stored,
        _ => {
            room.get_mut(..block.len())?.copy_from_slice(block);
            block.len()
        }
    };
    Some((i32::try_from(stored).ok()?, stored))
}
