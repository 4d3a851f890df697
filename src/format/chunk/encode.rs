//! The encoders: of index chunks, of special values, and of chunks that hold their bytes as they are.

use super::super::{Error, Result, Special};
use super::header::{self, ChunkHeader};
use super::{blosclz, filters};

/// Size of a block.
const BLOCK: usize = 16 * 1024;
/// Size of an item.
const ITEM: usize = 8;
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
    if !items.len().is_multiple_of(ITEM) || items.len() > MAX {
        let expected = format_args!("a multiple of {ITEM} up to {MAX}");
        return Err(Error::new("chunk: nbytes", 4, items.len(), expected));
    }
    let flags = header::SHUFFLE | header::BITSHUFFLE;
    if items.len() < MIN_BUFFER {
        return Ok(copy(items, flags | header::MEMCPY, ITEM));
    }
    let flags = flags | header::DONT_SPLIT;
    match compress(items, flags) {
        Some(chunk) => Ok(chunk),
        None => Ok(copy(items, flags | header::MEMCPY, ITEM)),
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
    Ok(copy(bytes, header::SHUFFLE | header::BITSHUFFLE | header::MEMCPY, 1))
}

/// The header of a chunk of `items` with its cbytes still open.
fn head(items: &[u8], flags: u8, typesize: usize) -> Vec<u8> {
    let blocksize = if items.is_empty() { BLOCK } else { items.len().min(BLOCK) } as u32;
    let mut out = Vec::with_capacity(items.len().saturating_add(ChunkHeader::LEN));
    out.extend([header::VERSION_STABLE, 1, flags, typesize as u8]);
    out.extend((items.len() as u32).to_le_bytes());
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

fn copy(items: &[u8], flags: u8, typesize: usize) -> Vec<u8> {
    let mut out = head(items, flags, typesize);
    out.extend(items);
    finish(out)
}

/// `None` where the result would be longer than a plain copy.
fn compress(items: &[u8], flags: u8) -> Option<Vec<u8>> {
    let mut out = head(items, flags, ITEM);
    let blocks = items.len().div_ceil(BLOCK);
    let starts_end = ChunkHeader::LEN.checked_add(blocks.checked_mul(4)?)?;
    let size = items.len().checked_add(ChunkHeader::LEN)?;
    if starts_end > size {
        return None;
    }
    out.resize(size, 0);
    let mut table = blosclz::Table::default();
    let mut shuffled = vec![0; items.len().min(BLOCK)];
    let mut at = starts_end;
    for (n, block) in items.chunks(BLOCK).enumerate() {
        let start = ChunkHeader::LEN.checked_add(n.checked_mul(4)?)?;
        out.get_mut(start..start.checked_add(4)?)?.copy_from_slice(&(at as u32).to_le_bytes());
        let shuffled = shuffled.get_mut(..block.len())?;
        filters::shuffle8(block, shuffled);
        let (csize, room) = out.get_mut(at..)?.split_first_chunk_mut::<4>()?;
        let (field, stored) = stream(shuffled, room, &mut table)?;
        *csize = field.to_le_bytes();
        at = at.checked_add(4)?.checked_add(stored)?;
    }
    if at == starts_end.checked_add(blocks.checked_mul(4)?)? {
        // Nothing but runs of zeros.
        at = ChunkHeader::LEN;
        *out.get_mut(header::BLOSC2_FLAGS)? |= 1 << 4;
    }
    out.truncate(at);
    Some(finish(out))
}

/// Writes a block's stream to the beginning of `room`: its csize and how many bytes follow that.
fn stream(block: &[u8], room: &mut [u8], table: &mut blosclz::Table) -> Option<(i32, usize)> {
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
    let stored = match blosclz::compress(block, room.get_mut(..limit)?, table) {
        Some(stored) if stored != block.len() => stored,
        _ => {
            room.get_mut(..block.len())?.copy_from_slice(block);
            block.len()
        }
    };
    Some((i32::try_from(stored).ok()?, stored))
}
