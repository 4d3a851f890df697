//! `b2fuse convert FILE.npy ARRAY`: the data of a file of NumPy's as an array.

use std::thread;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::{Args, check_target, decode, fill_new, frames, mask};
use crate::cli::Failure;
use crate::format::Layout;
use crate::format::registry::{CodecId, FilterId};
use crate::store::array_copy::{ArrayCopy, NewArray};
use crate::store::local::system;
use crate::store::npy_file::NpyFile;
use crate::store::{Location, NewFrame, local};

/// Filters that a chunk can have.
const SLOTS: usize = 6;

/// How an array is to be made.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ArrayArgs {
    /// Of a file of NumPy's: items of a chunk along each dimension [default: what Python-Blosc2 takes]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = items)]
    chunks: Option<Vec<u32>>,
    /// Likewise: items of a block [default: what Python-Blosc2 takes]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = items)]
    blocks: Option<Vec<u32>>,
    /// Likewise: the codec [default: zstd]
    #[arg(long, value_name = "CODEC", value_parser = codecs())]
    codec: Option<CodecId>,
    /// Likewise: how hard to compress, from 0, not at all, to 9 [default: 5]
    #[arg(long, value_name = "N", value_parser = level)]
    level: Option<u8>,
    /// Likewise: up to six of shuffle, bitshuffle, delta and trunc_prec=BITS, in the order in which they are applied, or none [default:
    /// shuffle]
    #[arg(long, value_name = "FILTER,...", value_delimiter = ',', value_parser = filter)]
    filters: Option<Vec<(FilterId, u8)>>,
}

impl ArrayArgs {
    /// Whether any was asked for.
    pub(super) fn is_given(&self) -> bool {
        let ArrayArgs { chunks, blocks, codec, level, filters } = self;
        chunks.is_some() || blocks.is_some() || codec.is_some() || level.is_some() || filters.is_some()
    }

    /// # Errors
    /// More filters than there are slots: wrong usage.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.filters.as_ref().map_or(0, Vec::len) {
            ..=SLOTS => Ok(()),
            count => Err(format!("found {count} filters in '--filters'; expected at most {SLOTS}")),
        }
    }

    /// What an array is to be like.
    pub(super) fn new_array(&self) -> NewArray {
        let standard = NewArray::default();
        let filters = match &self.filters {
            None => standard.filters,
            Some(filters) => {
                let mut slots = [(FilterId::NONE, 0); SLOTS];
                // The library's own are in the last ones.
                let free = slots.len().saturating_sub(filters.len());
                for (slot, filter) in slots.iter_mut().skip(free).zip(filters) {
                    *slot = *filter;
                }
                slots
            }
        };
        NewArray {
            chunks: self.chunks.clone(),
            blocks: self.blocks.clone(),
            codec: self.codec.unwrap_or(standard.codec),
            level: self.level.unwrap_or(standard.level),
            filters,
        }
    }
}

/// The codecs that there is an encoder for.
const CODECS: [CodecId; 5] = [CodecId(0), CodecId(1), CodecId(2), CodecId(4), CodecId(5)];

fn codecs() -> impl TypedValueParser<Value = CodecId> {
    let names = CODECS.into_iter().filter_map(CodecId::name);
    let find = |text: String| CODECS.into_iter().find(|codec| codec.name() == Some(&text)).ok_or("expected a codec");
    PossibleValuesParser::new(names).try_map(find)
}

fn items(text: &str) -> Result<u32, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits && *number > 0);
    number.ok_or_else(|| "expected numbers of items, at least 1, separated by commas, such as 100,200".into())
}

fn level(text: &str) -> Result<u8, String> {
    text.parse().ok().filter(|level| text.len() == 1 && *level <= 9).ok_or_else(|| "expected a number from 0 to 9".into())
}

fn filter(text: &str) -> Result<(FilterId, u8), String> {
    let expected = || "expected shuffle, bitshuffle, delta, trunc_prec=BITS or none".to_owned();
    if text == "none" {
        return Ok((FilterId::NONE, 0));
    }
    let (name, bits) = text.split_once('=').map_or((text, None), |(name, bits)| (name, Some(bits)));
    let filter = (1..=4).map(FilterId).find(|filter| filter.name() == Some(name)).ok_or_else(expected)?;
    match (filter.0, bits) {
        (1..=3, None) => Ok((filter, 0)),
        (4, Some(bits)) => Ok((filter, bits.parse::<i8>().map_err(|_| expected())?.cast_unsigned())),
        _ => Err(expected()),
    }
}

/// The file of NumPy's that SRC is, if it is one.
pub(super) fn source(args: &Args) -> Result<Option<(Location, NpyFile)>, Failure> {
    if !matches!(local::stat(&args.src), Ok(Some(_))) {
        return Ok(None);
    }
    let location = Location::existing(&args.src)?;
    Ok(NpyFile::open(&location)?.map(|file| (location, file)))
}

/// # Errors
/// The copy of a NumPy file is to have a name that only another one has.
pub(super) fn check_name(args: &Args) -> Result<(), Failure> {
    if !decode::is_meant(args) {
        return Ok(());
    }
    let reason = "is the name of a NumPy file (.npy), and SRC is one already; expected the name of a frame, such as x.b2nd";
    Err(Failure::new(&args.dst, reason))
}

pub(super) fn run(args: &Args, (src, file): (Location, NpyFile)) -> Result<(), Failure> {
    let new = args.array.new_array();
    let dst = frames::to_be(&args.dst)?;
    let replaced = check_target(&src, &dst, args.force)?;
    check_name(args)?;
    let copy = ArrayCopy::of(file, &new, system::caches())?;
    let to = args.show.map_or(Layout::Contiguous, Layout::from);
    let mode = copy.mode();
    mask(mode, to);
    let write_protected = to == Layout::Contiguous && mode & 0o200 == 0;
    let new = NewFrame { write_protected, replaced, ..NewFrame::default() };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let create = || copy.create(&dst, to, new.clone());
    let target = fill_new(&dst, copy.bytes(), create, |target, progress| Ok(copy.run(target, threads, progress)?))?;
    Ok(target.close()?)
}
