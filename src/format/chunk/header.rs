//! The header of a chunk, and where its blocks begin.
//!
//! ```text
//!  0 version   1 versionlz  2 flags        3 typesize
//!  4 nbytes    8 blocksize 12 cbytes                       (i32 each; a Blosc1 chunk's header ends here)
//! 16 filters  22 user codec 23 codec meta 24 filters_meta 30 flags2 31 blosc2 flags
//! ```
//!
//! What is accepted and refused here is what C-Blosc2's own decoder accepts and refuses, so a chunk that passes is one that the
//! library can read, as far as that can be seen without decoding it.

use super::super::registry::{CodecId, FilterId, Plugin};
use super::super::{Error, Result, Special};
use super::filters::Filter;
use super::traits::{Form, Traits};

pub(super) const VERSION: usize = 0;
pub(super) const FLAGS: usize = 2;
pub(super) const TYPESIZE: usize = 3;
pub(super) const NBYTES: usize = 4;
pub(super) const BLOCKSIZE: usize = 8;
pub(super) const CBYTES: usize = 12;
pub(super) const FILTERS: usize = 16;
pub(super) const USER_CODEC: usize = 22;
pub(super) const FILTERS_META: usize = 24;
pub(super) const FLAGS2: usize = 30;
pub(super) const BLOSC2_FLAGS: usize = 31;

/// Bytes of a Blosc1 header, which is how a Blosc2 header begins.
pub(super) const BLOSC1_LEN: usize = 16;
/// Slots of the filter pipeline.
const PIPELINE: usize = 6;

/// Bits of flags. Shuffle and bitshuffle together say that the header is a Blosc2 one, with a pipeline of its own.
pub(super) const SHUFFLE: u8 = 0x01;
pub(super) const MEMCPY: u8 = 0x02;
pub(super) const BITSHUFFLE: u8 = 0x04;
pub(super) const DELTA: u8 = 0x08;
pub(super) const DONT_SPLIT: u8 = 0x10;

/// Bits of blosc2 flags.
const USE_DICT: u8 = 0x01;
const LAZY: u8 = 0x08;
const INSTRUMENTED: u8 = 0x80;
/// Bit of flags2.
const VL_BLOCKS: u8 = 0x01;

/// The newest version that C-Blosc2 3.3 writes (chunks of VL-blocks).
pub const MAX_VERSION: u8 = 6;
/// What C-Blosc2 writes for every other chunk.
pub(super) const VERSION_STABLE: u8 = 5;
/// Chunks of this version hold garbage in the sixth filter slot.
const VERSION_ALPHA: u8 = 3;
/// BLOSC2_MAXBLOCKSIZE, which is also the largest size of a repeated value.
pub const MAX_BLOCKSIZE: u32 = 536_866_816;
/// BLOSC2_MAXDICTSIZE.
pub(super) const MAX_DICT: u32 = 32 * 1024;

/// The stream format in the upper three bits of flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    BloscLz,
    /// LZ4 and LZ4HC write the same format.
    Lz4,
    Zlib,
    Zstd,
    /// A registered or user-defined codec, by its id.
    User(u8),
    /// A value of the three bits that stands for no codec.
    Unknown(u8),
}

/// What follows the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Block starts, perhaps a dictionary, and compressed streams.
    Blocks,
    /// The uncompressed bytes.
    Copy,
    /// Nothing, or in a chunk marked as a copy nothing that matters.
    Special(Special),
    /// One value of this many bytes, of which the chunk is a run.
    Value(u32),
}

/// What a chunk's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Uncompressed size.
    pub nbytes: u32,
    /// Size of the whole chunk, header included.
    pub cbytes: u32,
    /// Size of a block, never above a positive nbytes; for VL-block chunks the number of blocks.
    pub blocksize: u32,
    /// Size of an item.
    pub typesize: u8,
    /// The chunk is a run of a special value: nothing but the header is stored.
    pub special: Option<Special>,
    pub(super) version: u8,
    pub(super) codec: Codec,
    pub(super) content: Content,
    /// In the order in which they were applied.
    filter_ids: [u8; PIPELINE],
    filters_meta: [u8; PIPELINE],
    /// Bytes of the header: 16 or 32.
    pub(super) len: usize,
    pub(super) split: bool,
    pub(super) vl_blocks: bool,
    pub(super) instrumented: bool,
    use_dict: bool,
}

/// The i32 at `offset` of `bytes`, or an error that calls it `field`.
pub(super) fn read_i32(bytes: &[u8], offset: usize, field: &'static str) -> Result<i32> {
    let end = offset.saturating_add(4);
    match bytes.get(offset..end).and_then(|b| b.try_into().ok()) {
        Some(b) => Ok(i32::from_le_bytes(b)),
        None => {
            Err(Error::new(field, offset as u64, format_args!("{} bytes in all", bytes.len()), format_args!("at least {end}")))
        }
    }
}

/// A size that C-Blosc2 keeps in an i32 and that can't be negative.
fn read_size(bytes: &[u8], offset: usize, field: &'static str) -> Result<u32> {
    let value = read_i32(bytes, offset, field)?;
    u32::try_from(value).map_err(|_| Error::new(field, offset as u64, value, "a size that is not negative"))
}

impl ChunkHeader {
    /// Bytes that [`ChunkHeader::parse`] needs, or fewer where the chunk is shorter (a Blosc1 chunk of 16 bytes and data).
    pub const LEN: usize = 32;
    /// Bytes that every chunk has at least.
    pub const MIN_LEN: usize = BLOSC1_LEN;

    /// Parses and checks the header at the beginning of `bytes`.
    ///
    /// # Errors
    /// When C-Blosc2 would refuse the header.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let too_short =
            |need| Error::new("chunk: header", 0, format_args!("{} bytes", bytes.len()), format_args!("at least {need}"));
        let Some(&[version, _versionlz, flags, typesize, ..]) = bytes.get(..BLOSC1_LEN) else {
            return Err(too_short(BLOSC1_LEN));
        };
        if typesize == 0 {
            return Err(Error::new("chunk: typesize", TYPESIZE as u64, 0, "1 to 255"));
        }
        let nbytes = read_size(bytes, NBYTES, "chunk: nbytes")?;
        let cbytes = read_size(bytes, CBYTES, "chunk: cbytes")?;
        let stored_blocksize = read_size(bytes, BLOCKSIZE, "chunk: blocksize")?;
        if !(1..=MAX_BLOCKSIZE).contains(&stored_blocksize) {
            let expected = format_args!("1 to {MAX_BLOCKSIZE}");
            return Err(Error::new("chunk: blocksize", BLOCKSIZE as u64, stored_blocksize, expected));
        }

        let extended = flags & SHUFFLE != 0 && flags & BITSHUFFLE != 0;
        let len = if extended { Self::LEN } else { BLOSC1_LEN };
        if u64::from(cbytes) < len as u64 {
            return Err(Error::new("chunk: cbytes", CBYTES as u64, cbytes, format_args!("at least {len}, the header")));
        }
        let (mut ids, mut metas, mut user_codec, mut flags2, mut blosc2_flags) = ([0; PIPELINE], [0; PIPELINE], 0, 0, 0);
        if extended {
            let array = |at: usize| bytes.get(at..).and_then(|b| b.first_chunk::<PIPELINE>()).copied();
            let byte = |at: usize| bytes.get(at).copied().ok_or_else(|| too_short(Self::LEN));
            ids = array(FILTERS).ok_or_else(|| too_short(Self::LEN))?;
            metas = array(FILTERS_META).ok_or_else(|| too_short(Self::LEN))?;
            (user_codec, flags2, blosc2_flags) = (byte(USER_CODEC)?, byte(FLAGS2)?, byte(BLOSC2_FLAGS)?);
            if version == VERSION_ALPHA {
                ids[5] = 0;
                metas[5] = 0;
            }
        } else {
            // The last of these that is set takes the slot, as in the library.
            if flags & SHUFFLE != 0 {
                ids[5] = Filter::SHUFFLE;
            }
            if flags & BITSHUFFLE != 0 {
                ids[5] = Filter::BITSHUFFLE;
            }
            if flags & DELTA != 0 {
                ids[4] = Filter::DELTA;
            }
        }
        let vl_blocks = flags2 & VL_BLOCKS != 0;
        if version > MAX_VERSION && flags2 & !VL_BLOCKS != 0 {
            let got = format_args!("{version} with flags2 {flags2:#04x}");
            return Err(Error::new("chunk: version", VERSION as u64, got, format_args!("at most {MAX_VERSION}")));
        }

        let special = (blosc2_flags >> 4) & 7;
        let memcpy = flags & MEMCPY != 0;
        if vl_blocks && (memcpy || special != 0) {
            let got = if memcpy { "a plain copy of VL-blocks" } else { "a special value with VL-blocks" };
            return Err(Error::new("chunk: flags2", FLAGS2 as u64, got, "compressed blocks"));
        }
        if memcpy && nbytes.checked_add(len as u32) != Some(cbytes) {
            let expected = format_args!("nbytes {nbytes} and the header of {len}, the chunk being a plain copy");
            return Err(Error::new("chunk: cbytes", CBYTES as u64, cbytes, expected));
        }
        let content = match special {
            0 if memcpy => Content::Copy,
            0 => Content::Blocks,
            1 => Content::Special(Special::Zeros),
            2 => Content::Special(Special::Nan),
            3 => Content::Value(cbytes.saturating_sub(len as u32)),
            4 => Content::Special(Special::Uninit),
            _ => return Err(Error::new("chunk: special value", BLOSC2_FLAGS as u64, special, "0 to 4")),
        };
        // A lazy chunk is what the library makes in memory of a stored one; it has no data of its own.
        let holds_data = (special == 0 && nbytes > 0) || blosc2_flags & USE_DICT != 0;
        if blosc2_flags & LAZY != 0 && holds_data {
            return Err(Error::new("chunk: blosc2 flags", BLOSC2_FLAGS as u64, "a lazy chunk", "a stored chunk"));
        }

        let blocksize = if !vl_blocks && nbytes > 0 { stored_blocksize.min(nbytes) } else { stored_blocksize };
        let header = ChunkHeader {
            nbytes,
            cbytes,
            blocksize,
            typesize,
            special: if let Content::Special(special) = content { Some(special) } else { None },
            version,
            codec: match flags >> 5 {
                0 => Codec::BloscLz,
                1 => Codec::Lz4,
                3 => Codec::Zlib,
                4 => Codec::Zstd,
                6 => Codec::User(user_codec),
                other => Codec::Unknown(other),
            },
            content,
            filter_ids: ids,
            filters_meta: metas,
            len,
            split: flags & DONT_SPLIT == 0 && !vl_blocks,
            vl_blocks,
            instrumented: blosc2_flags & INSTRUMENTED != 0,
            use_dict: blosc2_flags & USE_DICT != 0,
        };
        header.check_values()?;
        if header.content == Content::Blocks && header.starts_end() > u64::from(cbytes) {
            let expected =
                format_args!("at least {}, the header and the starts of {} blocks", header.starts_end(), header.nblocks());
            return Err(Error::new("chunk: cbytes", CBYTES as u64, cbytes, expected));
        }
        Ok(header)
    }

    /// The checks of chunks that are a run of one value.
    fn check_values(&self) -> Result<()> {
        let size = match self.content {
            Content::Special(Special::Nan | Special::Uninit) => u32::from(self.typesize),
            Content::Value(0) => {
                let expected = "a value behind the header";
                return Err(Error::new("chunk: cbytes", CBYTES as u64, self.cbytes, expected));
            }
            Content::Value(size) if size > MAX_BLOCKSIZE || size > self.nbytes => {
                let expected = format_args!("a repeated value of at most nbytes {}", self.nbytes);
                return Err(Error::new("chunk: cbytes", CBYTES as u64, self.cbytes, expected));
            }
            Content::Value(size) => size,
            _ => return Ok(()),
        };
        if !self.nbytes.is_multiple_of(size) {
            let expected = format_args!("a multiple of the value's {size} bytes");
            return Err(Error::new("chunk: nbytes", NBYTES as u64, self.nbytes, expected));
        }
        Ok(())
    }

    /// The filters in the order in which they were applied, as the decoder sees them.
    pub(super) fn pipeline(&self) -> [Filter; PIPELINE] {
        let mut filters = [Filter::None; PIPELINE];
        for (filter, (id, meta)) in filters.iter_mut().zip(self.filters()) {
            *filter = Filter::new(id.0, meta, self.typesize);
        }
        filters
    }

    /// The six slots of the filter pipeline, empty ones included, each with its byte of meaning.
    pub fn filters(&self) -> impl Iterator<Item = (FilterId, u8)> + use<> {
        self.filter_ids.map(FilterId).into_iter().zip(self.filters_meta)
    }

    /// The codec, if the chunk's stream format is that of one; LZ4 stands for LZ4HC as well. What is not compressed has a codec too:
    /// the one that was tried.
    pub fn codec(&self) -> Option<CodecId> {
        Some(CodecId(match self.codec {
            Codec::BloscLz => 0,
            Codec::Lz4 => 1,
            Codec::Zlib => 4,
            Codec::Zstd => 5,
            Codec::User(id) => id,
            Codec::Unknown(_) => return None,
        }))
    }

    /// The plugin that the chunk's data needs to be decoded, if it needs one: the codec, or else the filter that is undone first.
    pub fn plugin(&self) -> Option<Plugin> {
        if self.content != Content::Blocks || self.nbytes == 0 {
            return None;
        }
        match self.codec {
            Codec::User(id) if CodecId(id).is_plugin() => return Some(Plugin::Codec(CodecId(id))),
            _ if self.instrumented => return None,
            _ => {}
        }
        self.filter_ids.into_iter().rev().map(FilterId).find(|id| id.is_plugin()).map(Plugin::Filter)
    }

    /// What matters to the frame that is to have the chunk.
    pub fn traits(&self) -> Traits {
        let form = match self.content {
            _ if self.len != Self::LEN => Form::Blosc1,
            Content::Blocks if matches!(self.codec, Codec::Unknown(_)) => Form::UnknownCodec,
            _ if self.vl_blocks => Form::VlBlocks,
            Content::Special(special) => Form::Special(special),
            Content::Value(size) => Form::Value(size),
            Content::Blocks | Content::Copy => Form::Blocks,
        };
        Traits { nbytes: self.nbytes, blocksize: self.blocksize, typesize: self.typesize, form }
    }

    /// The data is stored as it is, neither filtered nor compressed.
    pub fn is_copy(&self) -> bool {
        self.content == Content::Copy
    }

    /// The chunk is a run of one value that it stores, of this many bytes.
    pub fn repeated_value(&self) -> Option<u32> {
        if let Content::Value(size) = self.content { Some(size) } else { None }
    }

    /// Blocks differ in size.
    pub fn has_vl_blocks(&self) -> bool {
        self.vl_blocks
    }

    /// The streams were compressed with a dictionary that the chunk holds.
    pub fn has_dictionary(&self) -> bool {
        self.use_dict
    }

    /// The data is in streams, block by block.
    pub fn has_streams(&self) -> bool {
        self.content == Content::Blocks
    }

    /// Blocks are stored as what they differ in from the first one.
    pub fn has_delta(&self) -> bool {
        self.pipeline().contains(&Filter::Delta)
    }

    /// How many blocks the chunk has.
    pub fn nblocks(&self) -> u32 {
        if self.vl_blocks { self.blocksize } else { self.nbytes.div_ceil(self.blocksize.max(1)) }
    }

    /// Where the block starts end, in a chunk that has them.
    pub(super) fn starts_end(&self) -> u64 {
        if self.nbytes == 0 && self.cbytes as usize == self.len {
            return self.len as u64;
        }
        (self.len as u64).saturating_add(u64::from(self.nblocks()).saturating_mul(4))
    }

    /// Reads what stands before the streams of `chunk`, which is one whole chunk with this header.
    pub(super) fn blocks<'a>(&self, chunk: &'a [u8]) -> Result<Blocks<'a>> {
        let empty = self.nbytes == 0 && self.cbytes as usize == self.len && self.special.is_none();
        let end = if self.content == Content::Blocks { self.starts_end() as usize } else { self.len };
        let starts = chunk.get(self.len..end).unwrap_or_default();
        let mut dict = None;
        // The library reads the dictionary of any chunk that is said to have one, needed or not.
        if self.use_dict && !empty {
            dict = Some(dictionary(chunk.get(end..).unwrap_or_default(), end as u64)?);
        }
        Ok(Blocks { starts, dict, starts_end: end })
    }
}

/// The dictionary that stands at the beginning of `bytes`, which is `at` in its chunk.
pub(super) fn dictionary(bytes: &[u8], at: u64) -> Result<&[u8]> {
    let size = match bytes.first_chunk() {
        Some(size) => i32::from_le_bytes(*size),
        None => {
            let (least, there) = (at.saturating_add(4), at.saturating_add(bytes.len() as u64));
            let found = format_args!("{there} bytes in all");
            return Err(Error::new("chunk: dictionary size", at, found, format_args!("at least {least}")));
        }
    };
    let Some(size) = u32::try_from(size).ok().filter(|size| (1..=MAX_DICT).contains(size)) else {
        return Err(Error::new("chunk: dictionary size", at, size, format_args!("1 to {MAX_DICT}")));
    };
    let rest = bytes.get(4..).unwrap_or_default();
    rest.get(..size as usize).ok_or_else(|| {
        let expected = format_args!("a dictionary of {size}");
        Error::new("chunk: dictionary", at, format_args!("{} bytes", rest.len()), expected)
    })
}

/// What stands between header and streams.
pub(super) struct Blocks<'a> {
    /// One i32 a block: where its streams begin, from the beginning of the chunk.
    starts: &'a [u8],
    /// The dictionary that the streams were compressed with.
    pub(super) dict: Option<&'a [u8]>,
    /// Where the starts end.
    pub(super) starts_end: usize,
}

impl Blocks<'_> {
    /// The starts of the blocks with the offsets they are stored at.
    pub(super) fn starts(&self) -> impl Iterator<Item = (u64, i32)> {
        let first = self.starts_end.saturating_sub(self.starts.len()) as u64;
        let (words, _) = self.starts.as_chunks::<4>();
        (first..).step_by(4).zip(words.iter().map(|word| i32::from_le_bytes(*word)))
    }
}
