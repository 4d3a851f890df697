//! The parameters of a chunk to encode, and what follows from them.

use super::super::super::registry::{CodecId, FilterId};
use super::super::super::{Error, Result};
use super::super::filters::Filter;
use super::super::header::{self, MAX_BLOCKSIZE};

/// The most streams of a block that is split where the library may choose.
const MAX_STREAMS: usize = 16;
/// The fewest bytes of such a stream.
const MIN_STREAM: usize = 32;
/// The highest level.
const MAX_LEVEL: u8 = 9;

/// Whether each block is cut in as many streams as an item has bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Split {
    /// Every block but a last short one.
    Always,
    /// None.
    Never,
    /// Where the library takes it for useful: fast codecs after shuffle, items of at most 16 bytes.
    Auto,
    /// Today the same, and the library's default.
    #[default]
    ForwardCompat,
}

/// How chunks are compressed: what C-Blosc2 calls compression parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// BloscLZ, LZ4, LZ4HC, Zlib or Zstandard.
    pub codec: CodecId,
    /// From 0, which only copies, to 9.
    pub level: u8,
    /// The pipeline in the order in which it is applied, each filter with its metadata: the bits of truncated precision, or the
    /// size of the groups of a shuffle, 0 being the typesize.
    pub filters: [(FilterId, u8); 6],
    /// Bytes of an item; above 255 the chunk counts in bytes, as in the library.
    pub typesize: u32,
    /// Bytes of a block, a multiple of typesize; what is above the chunk's size is taken for that.
    pub blocksize: u32,
    /// Whether blocks are split.
    pub split: Split,
}

/// One filter of the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// In groups of this size.
    Shuffle(usize),
    BitShuffle,
    Delta,
    /// Leaves these bits of every item.
    Truncate(u64),
}

/// [`Params`] that have been checked, for chunks of one size.
pub(super) struct Plan {
    pub(super) typesize: usize,
    /// Never above a positive size of the chunk.
    pub(super) blocksize: usize,
    pub(super) split: bool,
    pub(super) steps: Vec<Step>,
}

impl Params {
    /// The bits that stand for the codec in a chunk's flags.
    pub(super) fn format(&self) -> Result<u8> {
        match self.codec.0 {
            0 => Ok(0),
            1 | 2 => Ok(1),
            4 => Ok(3),
            5 => Ok(4),
            _ => Err(Error::new("chunk: codec", header::USER_CODEC as u64, self.codec, "blosclz, lz4, lz4hc, zlib or zstd")),
        }
    }

    pub(super) fn plan(&self, nbytes: usize) -> Result<Plan> {
        self.format()?;
        if self.level > MAX_LEVEL {
            return Err(Error::new("chunk: level", header::FLAGS as u64, self.level, format_args!("at most {MAX_LEVEL}")));
        }
        let typesize = match self.typesize {
            0 => return Err(Error::new("chunk: typesize", header::TYPESIZE as u64, 0, "at least 1")),
            1..=255 => self.typesize as usize,
            _ => 1,
        };
        if !(1..=MAX_BLOCKSIZE).contains(&self.blocksize) {
            let expected = format_args!("1 to {MAX_BLOCKSIZE}");
            return Err(Error::new("chunk: blocksize", header::BLOCKSIZE as u64, self.blocksize, expected));
        }
        let most = (self.blocksize as usize).min(nbytes);
        let whole = most.saturating_sub(most.checked_rem(typesize).unwrap_or(0));
        let blocksize = if whole == 0 { most } else { whole };
        let split = whole > 0 && self.splits(typesize, blocksize);
        Ok(Plan { typesize, blocksize: blocksize.max(1), split, steps: self.steps(typesize)? })
    }

    /// Whether a block of whole items is split.
    fn splits(&self, typesize: usize, blocksize: usize) -> bool {
        match self.split {
            Split::Always => true,
            Split::Never => false,
            Split::Auto | Split::ForwardCompat => {
                let fast = match self.codec.0 {
                    0 | 1 => true,
                    5 => self.level <= 5,
                    _ => false,
                };
                let shuffled = self.filters.iter().any(|(id, _)| id.0 == Filter::SHUFFLE);
                fast && shuffled && typesize <= MAX_STREAMS && blocksize.checked_div(typesize) >= Some(MIN_STREAM)
            }
        }
    }

    fn steps(&self, typesize: usize) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        for (id, meta) in self.filters {
            let refuse = |got: &dyn std::fmt::Display, expected: &str| {
                Err(Error::new("chunk: filters", header::FILTERS as u64, got, expected))
            };
            match id.0 {
                0 => {}
                Filter::SHUFFLE => match if meta == 0 { typesize } else { usize::from(meta) } {
                    1 => {}
                    size => steps.push(Step::Shuffle(size)),
                },
                Filter::BITSHUFFLE => steps.push(Step::BitShuffle),
                // Readers compare with the decoded first block, whatever other filters have made of it.
                Filter::DELTA if steps.iter().all(|step| matches!(step, Step::Truncate(_))) => steps.push(Step::Delta),
                Filter::DELTA => return refuse(&"delta behind another filter", "delta once, in front of shuffle and bitshuffle"),
                Filter::TRUNC_PREC => steps.push(Step::Truncate(kept_bits(typesize, meta.cast_signed())?)),
                _ => return refuse(&id, "shuffle, bitshuffle, delta or trunc_prec"),
            }
        }
        Ok(steps)
    }
}

/// What is left of the bits of an item: `bits` of its mantissa, or where that is negative all but so many.
fn kept_bits(typesize: usize, bits: i8) -> Result<u64> {
    let mantissa = match typesize {
        4 => 23,
        8 => 52,
        _ => return Err(Error::new("chunk: typesize", header::TYPESIZE as u64, typesize, "4 or 8 for trunc_prec")),
    };
    let zeroed = if bits < 0 { Some(bits.unsigned_abs()) } else { u8::checked_sub(mantissa, bits.unsigned_abs()) };
    match zeroed {
        Some(zeroed) if zeroed < mantissa => Ok(u64::MAX.checked_shl(zeroed.into()).unwrap_or(0)),
        _ => {
            let expected = format_args!("1 to {mantissa}, or -1 to -{} for as many less", mantissa.saturating_sub(1));
            Err(Error::new("chunk: filters meta", header::FILTERS_META as u64, bits, expected))
        }
    }
}
