//! The index chunk: a Blosc2 chunk of little-endian 64-bit entries, one a chunk, in the frame's order.
//!
//! ```text
//! bit  63   62..59   58..56   55..0
//!      0    ------ place -----------     a stored chunk: its offset (cframe) or its id (sframe)
//!      1    0        code     0          a special chunk: 1 zeros, 2 NaN, 4 uninitialised
//! ```
//!
//! An index of 40 bytes can stand for 268 million entries (one repeated value), so the size that the chunk's header announces is
//! compared with what the frame's header says before anything is allocated. Both may lie: where so few bytes would unfold to more
//! than [`MOST_UNFOLDED`] entries, they are refused. (C-Blosc2 opens such frames, as it unfolds nothing.)

use std::ops::Range;

use super::{ChunkId, ChunkOffset, Error, IndexEntry, Layout, Result, Special, chunk};

/// Bytes of an entry.
const ENTRY_LEN: usize = 8;
/// Set in special entries only.
const SPECIAL_BIT: u64 = 1 << 63;
/// Where a special entry has its code.
const CODE_SHIFT: u32 = 56;
/// The smallest chunk there is, by its header.
const MIN_CHUNK_LEN: u64 = 32;

/// Chunks that a frame can have at most: C-Blosc2 holds the index's size in an `i32`.
pub const MAX_ENTRIES: u64 = i32::MAX as u64 / ENTRY_LEN as u64;

/// Entries that an index of whatever length may unfold to: enough for a frame of tebibytes filled with one special value, and some
/// hundred mebibytes of memory.
pub const MOST_UNFOLDED: u64 = 1 << 24;
/// An index of more entries must have a byte for so many of them; a run in a compressed index takes one for 32.
const UNFOLDED_PER_BYTE: u64 = 64;

/// Bytes of a block of an index: the library's have a few mebibytes, and several blocks are held while one is decoded.
const LARGEST_BLOCK: usize = 16 << 20;

/// What an entry of an index can hold beside special values.
pub trait Place: Copy {
    /// The layout whose indexes have such entries.
    const LAYOUT: Layout;
    /// From a non-negative entry.
    ///
    /// # Errors
    /// What is no place in this layout.
    fn from_raw(raw: u64, position: u64) -> Result<Self>;
    /// To a non-negative entry.
    fn to_raw(self) -> u64;
    /// Checks the places of an index against the length of its frame's chunks section.
    ///
    /// # Errors
    /// The first that lies outside, where that means anything.
    fn check(_entries: &[IndexEntry<Self>], _chunks_len: u64) -> Result<()> {
        Ok(())
    }
}

impl Place for ChunkOffset {
    const LAYOUT: Layout = Layout::Contiguous;
    fn check(entries: &[IndexEntry<Self>], chunks_len: u64) -> Result<()> {
        check_offsets(entries, chunks_len)
    }
    fn from_raw(raw: u64, _position: u64) -> Result<Self> {
        Ok(ChunkOffset::new(raw))
    }
    fn to_raw(self) -> u64 {
        self.bytes()
    }
}

impl Place for ChunkId {
    const LAYOUT: Layout = Layout::Sparse;
    fn from_raw(raw: u64, position: u64) -> Result<Self> {
        let id = u32::try_from(raw).map_err(|_| {
            Error::new(
                "index: entry",
                byte_of(position),
                format_args!("id {raw} for chunk {position}"),
                "an id of at most 32 bits",
            )
        })?;
        Ok(ChunkId(id))
    }
    fn to_raw(self) -> u64 {
        u64::from(self.0)
    }
}

/// Decodes an index chunk, which must be exactly `bytes`; no bytes at all are the index of an empty frame. `expected` is the
/// number of entries that the header gives; without it (chunks of varying size) the index's own size says.
///
/// # Errors
/// A chunk that is none or does not decode, a size other than the expected one, and an entry that is neither a place nor a
/// special value that C-Blosc2 writes. Offsets within entries count in the decoded index.
pub fn decode<P: Place>(bytes: &[u8], expected: Option<u64>) -> Result<Vec<IndexEntry<P>>> {
    if bytes.is_empty() && expected == Some(0) {
        return Ok(Vec::new());
    }
    let nbytes = check(bytes, expected)?.nbytes as usize;
    let mut entries = Vec::new();
    entries
        .try_reserve_exact(nbytes / ENTRY_LEN)
        .map_err(|_| Error::new("index: nbytes", 4, nbytes, "an index that memory has room for"))?;
    // Blocks need not end with an entry.
    let mut begun = [0; ENTRY_LEN];
    let mut len = 0;
    // An error in an entry comes before one in a later block, and is none of the chunk's.
    let mut wrong = None;
    let mut push = |raw: [u8; ENTRY_LEN]| {
        let entry = entry_from_raw(u64::from_le_bytes(raw), entries.len() as u64);
        entry.map(|entry| entries.push(entry))
    };
    let decoded = chunk::Decoder::default().decode_pieces(bytes, LARGEST_BLOCK, |mut piece| {
        let mut take = || {
            if len > 0 {
                let (head, rest) = piece.split_at(piece.len().min(ENTRY_LEN.saturating_sub(len)));
                begun.iter_mut().skip(len).zip(head).for_each(|(to, from)| *to = *from);
                (len, piece) = (len.saturating_add(head.len()), rest);
                if len < ENTRY_LEN {
                    return Ok(());
                }
                push(begun)?;
            }
            let (raw, rest) = piece.as_chunks::<ENTRY_LEN>();
            raw.iter().try_for_each(|raw| push(*raw))?;
            begun.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            len = rest.len();
            Ok(())
        };
        take().inspect_err(|error: &Error| wrong = Some(error.clone()))
    });
    match wrong {
        Some(wrong) => Err(wrong),
        None => decoded.map_err(of_index).map(|()| entries),
    }
}

/// As [`decode`], of an index that has much of one decoded before, `known` and its `entries`: what is left of it is not decoded again.
///
/// # Errors
/// As [`decode`].
pub fn decode_like<P: Place>(
    bytes: &[u8],
    expected: Option<u64>,
    known: &[u8],
    entries: &[IndexEntry<P>],
) -> Result<Vec<IndexEntry<P>>> {
    if bytes.is_empty() || known.is_empty() {
        return decode(bytes, expected);
    }
    let header = check(bytes, expected)?;
    // Blocks of whole entries only, or one would begin in the middle of an entry.
    let whole = (header.blocksize as usize).is_multiple_of(ENTRY_LEN);
    if !whole || header.nbytes as usize != entries.len().saturating_mul(ENTRY_LEN) {
        return decode(bytes, expected);
    }
    let mut like = entries.to_vec();
    let changed = |offset: usize, block: &[u8]| {
        let first = offset / ENTRY_LEN;
        let (raw, _) = block.as_chunks::<ENTRY_LEN>();
        for ((position, raw), entry) in (first as u64..).zip(raw).zip(like.get_mut(first..).unwrap_or_default()) {
            *entry = entry_from_raw(u64::from_le_bytes(*raw), position)?;
        }
        Ok(())
    };
    match chunk::Decoder::default().decode_changes(bytes, known, changed) {
        Ok(true) => Ok(like),
        // What is wrong with it is said in one place.
        _ => decode(bytes, expected),
    }
}

/// Checks the size of an index chunk, and returns its header: the decoded index is no larger than the header says.
fn check(bytes: &[u8], expected: Option<u64>) -> Result<chunk::ChunkHeader> {
    let header = chunk::ChunkHeader::parse(bytes).map_err(of_index)?;
    if u64::from(header.cbytes) != bytes.len() as u64 {
        return Err(Error::new(
            "index: cbytes",
            12,
            header.cbytes,
            format_args!("the {} bytes that it has room for", bytes.len()),
        ));
    }
    // C-Blosc2 looks entries up by item, so it opens no frame whose index has items of another size.
    if usize::from(header.typesize) != ENTRY_LEN {
        return Err(Error::new("index: typesize", 3, header.typesize, ENTRY_LEN));
    }
    let nbytes = u64::from(header.nbytes);
    match expected {
        Some(count) if count.checked_mul(ENTRY_LEN as u64) != Some(nbytes) => {
            return Err(Error::new("index: nbytes", 4, nbytes, format_args!("8 bytes for each of {count} chunks")));
        }
        // Only a frame that has bytes does not know how many chunks.
        None if nbytes == 0 => {
            return Err(Error::new("index: nbytes", 4, nbytes, "8 bytes for each chunk, of which there is one at least"));
        }
        _ if !nbytes.is_multiple_of(ENTRY_LEN as u64) => {
            return Err(Error::new("index: nbytes", 4, nbytes, "a multiple of 8"));
        }
        _ => {}
    }
    let most = MOST_UNFOLDED.max((bytes.len() as u64).saturating_mul(UNFOLDED_PER_BYTE));
    if nbytes > most.saturating_mul(ENTRY_LEN as u64) {
        let expected = format_args!("at most {most} chunks in an index of {} bytes", bytes.len());
        return Err(Error::new("index: nbytes", 4, nbytes, expected));
    }
    Ok(header)
}

/// Encodes an index as C-Blosc2 writes it; of no entries it makes no bytes, as a frame without chunks has no index. Where all
/// entries are the same special value it is the 40 bytes that *fill special* makes, up to [`MOST_UNFOLDED`].
///
/// # Errors
/// More entries than a chunk can hold.
pub fn encode<P: Place>(entries: impl ExactSizeIterator<Item = IndexEntry<P>>) -> Result<Vec<u8>> {
    let count = entries.len();
    if count as u64 > MAX_ENTRIES {
        return Err(Error::new("index: nbytes", 4, format_args!("{count} chunks"), format_args!("at most {MAX_ENTRIES}")));
    }
    let mut entries = entries.map(entry_to_raw).peekable();
    let Some(first) = entries.next() else { return Ok(Vec::new()) };
    let mut run = 1usize;
    while first & SPECIAL_BIT != 0 && entries.next_if_eq(&first).is_some() {
        run = run.saturating_add(1);
    }
    if run == count && run > 1 && run as u64 <= MOST_UNFOLDED {
        return Ok(repeated(first, run));
    }
    let words = std::iter::repeat_n(first, run).chain(entries);
    let mut raw = Vec::with_capacity(count.saturating_mul(ENTRY_LEN));
    words.for_each(|word| raw.extend(word.to_le_bytes()));
    chunk::encode(&raw)
}

/// An index as [`encode`] makes them, for another that has much of it.
#[derive(Clone, Copy)]
pub struct Before<'a> {
    /// Its bytes.
    pub chunk: &'a [u8],
    /// Whether the entries in a range of positions, which both have, are the same.
    pub same: &'a dyn Fn(Range<usize>) -> bool,
}

/// As [`encode`], of `count` entries that `entries` gives a stretch at a time; the same bytes, for less work the more of the index
/// before is left. Of one that C-Blosc2 made, the streams are taken over as they are, if they stand in order.
///
/// # Errors
/// As [`encode`].
pub fn encode_like<P: Place, I: Iterator<Item = IndexEntry<P>>>(
    count: usize,
    entries: impl Fn(Range<usize>) -> I,
    before: Option<Before<'_>>,
) -> Result<Vec<u8>> {
    let is_special = |entry: IndexEntry<P>| matches!(entry, IndexEntry::Special(_));
    if count as u64 > MAX_ENTRIES || !entries(0..count.min(1)).any(|entry| !is_special(entry)) {
        // What can be a run, or nothing at all.
        return encode(Stretch { entries: entries(0..count), left: count });
    }
    let positions = |bytes: Range<usize>| bytes.start / ENTRY_LEN..bytes.end / ENTRY_LEN;
    let items = |bytes: Range<usize>, into: &mut Vec<u8>| {
        entries(positions(bytes)).map(entry_to_raw).for_each(|word| into.extend(word.to_le_bytes()));
    };
    let same = |bytes: Range<usize>| before.is_some_and(|before| (before.same)(positions(bytes)));
    let before = before.map(|before| chunk::Before { chunk: before.chunk, same: &same });
    chunk::encode_like(count.saturating_mul(ENTRY_LEN), items, before)
}

/// An iterator of known length.
struct Stretch<I> {
    entries: I,
    left: usize,
}

impl<I: Iterator> Iterator for Stretch<I> {
    type Item = I::Item;
    fn next(&mut self) -> Option<I::Item> {
        self.left = self.left.saturating_sub(1);
        self.entries.next()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<I: Iterator> ExactSizeIterator for Stretch<I> {}

/// The chunk that stands for `count` times `word`, at most [`MAX_ENTRIES`].
fn repeated(word: u64, count: usize) -> Vec<u8> {
    let nbytes = count.saturating_mul(ENTRY_LEN) as u32;
    let mut chunk = vec![5, 1, 0x05, ENTRY_LEN as u8]; // version, codec format, an extended header
    chunk.extend(nbytes.to_le_bytes());
    chunk.extend(nbytes.min(16 << 10).to_le_bytes()); // blocksize
    chunk.extend(40u32.to_le_bytes()); // cbytes
    chunk.extend([0; 15]);
    chunk.push(0x30); // special value: the one that follows
    chunk.extend(word.to_le_bytes());
    chunk
}

/// Checks that every offset leaves room for a chunk's header in a chunks section of `chunks_len` bytes, as C-Blosc2 does on
/// opening a frame. Where a chunk ends only its own header says.
///
/// # Errors
/// The first entry that points outside.
pub fn check_offsets(entries: &[IndexEntry<ChunkOffset>], chunks_len: u64) -> Result<()> {
    for (position, entry) in (0u64..).zip(entries) {
        if let IndexEntry::Stored(offset) = entry
            && offset.bytes().checked_add(MIN_CHUNK_LEN).is_none_or(|end| end > chunks_len)
        {
            return Err(Error::new(
                "index: entry",
                byte_of(position),
                format_args!("offset {} for chunk {position}", offset.bytes()),
                format_args!("at least {MIN_CHUNK_LEN} bytes before the end of the chunks at {chunks_len}"),
            ));
        }
    }
    Ok(())
}

fn entry_from_raw<P: Place>(raw: u64, position: u64) -> Result<IndexEntry<P>> {
    if raw & SPECIAL_BIT == 0 {
        return P::from_raw(raw, position).map(IndexEntry::Stored);
    }
    // The other bits are reserved: an entry that uses them means something that would be lost on the way back.
    let special = [Special::Zeros, Special::Nan, Special::Uninit].into_iter().find(|&special| special_to_raw(special) == raw);
    special.map(IndexEntry::Special).ok_or_else(|| {
        Error::new(
            "index: entry",
            byte_of(position),
            format_args!("{raw:#018x} for chunk {position}"),
            "an offset, an id, or the code of zeros, NaN or uninitialised values",
        )
    })
}

fn entry_to_raw<P: Place>(entry: IndexEntry<P>) -> u64 {
    match entry {
        IndexEntry::Stored(place) => place.to_raw(),
        IndexEntry::Special(special) => special_to_raw(special),
    }
}

const fn special_to_raw(special: Special) -> u64 {
    let code = match special {
        Special::Zeros => 1,
        Special::Nan => 2,
        Special::Uninit => 4,
    };
    SPECIAL_BIT | code << CODE_SHIFT
}

/// Says of an error of the chunk layer that it is the index's chunk that is wrong.
fn of_index(error: Error) -> Error {
    let field = error.field.strip_prefix("chunk: ").unwrap_or(error.field);
    Error::new("index", error.offset, format_args!("{field} {}", error.got), error.expected)
}

/// Where an entry is in the decoded index.
fn byte_of(position: u64) -> u64 {
    position.saturating_mul(ENTRY_LEN as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_the_way_to_raw_and_back() {
        let entries = [
            IndexEntry::Stored(ChunkOffset::new(0)),
            IndexEntry::Stored(ChunkOffset::new(i64::MAX as u64)),
            IndexEntry::Special(Special::Zeros),
            IndexEntry::Special(Special::Nan),
            IndexEntry::Special(Special::Uninit),
        ];
        let raw = entries.map(entry_to_raw);
        assert_eq!(raw[2..], [0x8100_0000_0000_0000, 0x8200_0000_0000_0000, 0x8400_0000_0000_0000]);
        assert_eq!(raw.map(|raw| entry_from_raw::<ChunkOffset>(raw, 0).unwrap()), entries);
    }

    #[test]
    fn reserved_codes_and_long_ids_are_refused_with_their_position() {
        for raw in [1 << 63, 0x8300_0000_0000_0000, 0x8100_0000_0000_0001, 0x9100_0000_0000_0000, u64::MAX] {
            let error = entry_from_raw::<ChunkOffset>(raw, 3).unwrap_err();
            assert_eq!((error.field, error.offset), ("index: entry", 24));
            assert!(error.to_string().contains("for chunk 3"), "{error}");
        }
        assert_eq!(ChunkId::from_raw(0xFFFF_FFFF, 0), Ok(ChunkId(u32::MAX)));
        assert_eq!(ChunkId::from_raw(1 << 32, 2).unwrap_err().offset, 16);
    }

    #[test]
    fn offsets_must_leave_room_for_a_chunk_header() {
        let stored = |offset| [IndexEntry::Special(Special::Nan), IndexEntry::Stored(ChunkOffset::new(offset))];
        assert_eq!(check_offsets(&stored(68), 100), Ok(()));
        assert_eq!(check_offsets(&stored(69), 100).unwrap_err().offset, 8);
        assert!(check_offsets(&stored(i64::MAX as u64), 100).is_err());
        assert!(check_offsets(&stored(0), 31).is_err());
    }
}
