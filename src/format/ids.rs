//! Numbers that differ in meaning differ in type.

use std::fmt;
use std::num::NonZeroU32;

/// Which of the two layouts a frame has. Source: byte 26 of the frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// A cframe: one file holds header, chunks, index and trailer.
    Contiguous,
    /// An sframe: a directory of `chunks.b2frame` and a file a chunk.
    Sparse,
}

/// A place in the index: the n-th chunk of the frame, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position(pub u64);

/// The number in the name of an sframe's chunk file, `XXXXXXXX.chunk`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub u32);

/// The index file of every sframe.
pub const INDEX_NAME: &str = "chunks.b2frame";

impl ChunkId {
    /// The name of the chunk's file.
    pub fn file_name(self) -> String {
        // By hand: directories have a million of them.
        let digits = self.0.to_be_bytes().into_iter().flat_map(|byte| [byte >> 4, byte & 0xF]);
        let digits = digits.map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0').to_ascii_uppercase());
        let mut name = String::with_capacity(14);
        name.extend(digits);
        name.push_str(".chunk");
        name
    }

    /// The id in the name of a chunk's file: what C-Blosc2 prints with %08X, and nothing else. `0000000a.chunk` is another file
    /// to it.
    pub fn from_file_name(name: &[u8]) -> Option<Self> {
        let digits = name.strip_suffix(b".chunk")?;
        if digits.len() != 8 || !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F')) {
            return None;
        }
        let digits = std::str::from_utf8(digits).ok()?;
        u32::from_str_radix(digits, 16).ok().map(ChunkId)
    }
}

impl fmt::Display for ChunkId {
    /// The file's name without the extension: eight capital hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}", self.0)
    }
}

/// A number that is never the largest ones there are: an entry of an index takes no more room than it, and there are millions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Packed {
    /// The upper half, and one: never 0.
    high: NonZeroU32,
    low: u32,
}

const _: () = assert!(size_of::<IndexEntry<Packed>>() == 8 && size_of::<IndexEntry<ChunkId>>() == 8);

impl Packed {
    /// The largest there is.
    pub const MAX: u64 = ((u32::MAX as u64) << 32) - 1;

    /// From a number, which is at most [`Packed::MAX`].
    pub const fn new(number: u64) -> Self {
        let high = match NonZeroU32::new(((number >> 32) as u32).wrapping_add(1)) {
            Some(high) => high,
            None => NonZeroU32::MAX,
        };
        Packed { high, low: number as u32 }
    }

    /// The number.
    pub const fn number(self) -> u64 {
        (self.high.get().wrapping_sub(1) as u64) << 32 | self.low as u64
    }
}

/// Where a chunk begins in a cframe, in bytes from the **end of the header**. An index has none of 2^63 bytes and more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkOffset(Packed);

impl ChunkOffset {
    /// From a number of bytes.
    pub const fn new(bytes: u64) -> Self {
        ChunkOffset(Packed::new(bytes))
    }

    /// In bytes.
    pub const fn bytes(self) -> u64 {
        self.0.number()
    }
}

impl fmt::Debug for ChunkOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkOffset({})", self.bytes())
    }
}

/// A chunk of which no byte is stored: its index entry says all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    /// Every byte is zero (code 1).
    Zeros,
    /// Every item is NaN (code 2).
    Nan,
    /// The values were never set (code 4).
    Uninit,
}

impl Special {
    /// In a word, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Special::Zeros => "zeros",
            Special::Nan => "nan",
            Special::Uninit => "uninit",
        }
    }
}

/// One entry of an index, where `P` says what a stored chunk is found by: a [`ChunkOffset`], a [`ChunkId`] or a store's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IndexEntry<P> {
    /// The chunk's bytes are stored at, or under, this.
    Stored(P),
    /// No bytes are stored.
    Special(Special),
}

impl<P> IndexEntry<P> {
    /// The same entry with another way to find a stored chunk.
    pub fn map<Q>(self, place: impl FnOnce(P) -> Q) -> IndexEntry<Q> {
        match self {
            IndexEntry::Stored(old) => IndexEntry::Stored(place(old)),
            IndexEntry::Special(special) => IndexEntry::Special(special),
        }
    }

    /// What the chunk is found by, if it is stored.
    pub fn stored(self) -> Option<P> {
        match self {
            IndexEntry::Stored(place) => Some(place),
            IndexEntry::Special(_) => None,
        }
    }
}
