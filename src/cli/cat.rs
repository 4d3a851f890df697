//! `b2fuse cat`: what chunks hold, and with `--npy` what an array holds, on standard output.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::str::FromStr;

use super::{Failure, Outcome, frames, memory, output};
use crate::format::Position;
use crate::format::array::Array;
use crate::format::chunk::Decoder;
use crate::format::plain::plain;
use crate::store::StoreError;
use crate::store::inspect::Inspection;

mod npy;

/// Bytes that are written at once.
const BUFFER: usize = 64 << 10;

/// Write chunks, or an array, to standard output, decompressed
///
/// Chunks are written in the order of the command line. A chunk of zeros, NaN or a repeated value is written as these values, an
/// uninitialised one as zeros.
///
/// A chunk of an array holds its blocks one after the other, with padding beyond the array's edge. If that is not the array's own order, a
/// warning says so.
///
/// With --npy, the array is written as a NumPy file, as `np.save` writes it; or the part that a slice selects, in NumPy's notation: 3:10,:,5.
/// Only the blocks that hold a part of it are read and decompressed. Those that are needed again and do not fit in memory go to a file without a
/// name in the directory for temporary files.
///
/// With --raw, chunks are written byte for byte as they are stored, header included. A special chunk that is not stored is written as the
/// 32 bytes that the library would store for it.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  # A chunk's data, and the chunk as it is stored
  b2fuse cat pressure.b2frame 3 >data
  b2fuse cat --raw pressure.b2frame 3 >00000003.chunk
  # The first two chunks, and all from 4 on
  b2fuse cat pressure.b2frame 0-1 4- | sha256sum
  # The first items of a chunk as numbers
  b2fuse cat pressure.b2frame 0 | od -A d -t f8 -N 80
  # Some rows of an array, in Python
  b2fuse cat --npy pressure.b2frame 3:10,5 >part.npy")]
pub(super) struct Args {
    /// Write the chunks as they are stored
    #[arg(long)]
    raw: bool,
    /// Write the array, or a slice of it, as a NumPy file
    #[arg(long, conflicts_with = "raw")]
    npy: bool,
    /// Write even to a terminal
    #[arg(short, long)]
    force: bool,
    #[cfg(feature = "remote")]
    #[command(flatten)]
    remote: super::remote_args::RemoteArgs,
    /// The frame, of either layout; or its URL
    frame: PathBuf,
    /// Positions, counted from 0: one (3), a range (3-7), or all from one on (3-); with --npy, one slice at most (3:10,:,5)
    #[arg(required_unless_present = "npy", value_name = "POSITION", allow_hyphen_values = true)]
    parts: Vec<String>,
}

/// Chunks from one position to another, or to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Positions {
    first: u64,
    last: Option<u64>,
}

impl FromStr for Positions {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "expected a position such as 3, or a range such as 3-7 or 3-";
        let number = |digits: &str| match digits.bytes().all(|byte| byte.is_ascii_digit()) {
            true => digits.parse().map_err(|_| EXPECTED),
            false => Err(EXPECTED),
        };
        let (first, last) = match text.split_once('-') {
            None => (number(text)?, Some(number(text)?)),
            Some((first, "")) => (number(first)?, None),
            Some((first, last)) => (number(first)?, Some(number(last)?)),
        };
        match last {
            Some(last) if last < first => Err("the range ends before it begins"),
            _ => Ok(Positions { first, last }),
        }
    }
}

impl Positions {
    /// The chunks of a frame, which must all be there; behind the last one, none are.
    fn of(self, inspection: &Inspection) -> Result<Range<u64>, StoreError> {
        let end = match (self.last, inspection.nchunks()) {
            (None, Some(count)) if self.first <= count => count,
            (last, _) => {
                let last = last.unwrap_or(self.first);
                if inspection.entry(Position(last)).is_none() {
                    // Which says why.
                    inspection.read_chunk(Position(last))?;
                }
                last.saturating_add(1)
            }
        };
        Ok(self.first..end)
    }
}

pub(super) fn run(args: &Args) -> Outcome {
    #[cfg(feature = "remote")]
    if let Err(what) = super::remote::reach(&args.remote, &[&args.frame]) {
        return Outcome::Usage(what);
    }
    if args.npy {
        return match args.parts.as_slice() {
            [] => npy::run(args, None).into(),
            [slice] => npy::run(args, Some(slice)).into(),
            [_, second, ..] => Outcome::Usage(format!(
                "unexpected '{}' after the slice; expected commas between its parts: 3:10,:,5",
                plain(second)
            )),
        };
    }
    let positions = args
        .parts
        .iter()
        .map(|part| part.parse().map_err(|expected| format!("invalid value '{}' for '<POSITION>...': {expected}", plain(part))));
    match positions.collect::<Result<Vec<_>, _>>() {
        Ok(positions) => cat(args, &positions).into(),
        Err(what) => Outcome::Usage(what),
    }
}

/// Standard output, if it may be written to.
fn stdout(args: &Args) -> Result<Option<File>, Failure> {
    let stdout = io::stdout();
    if stdout.is_terminal() && !args.force {
        return Err(Failure::new(&args.frame, "is binary data, which is not written to a terminal; redirect it, or use --force"));
    }
    match stdout.as_fd().try_clone_to_owned() {
        Ok(fd) => Ok(Some(fd.into())),
        Err(error) => output::written(Err(error)).map(|()| None),
    }
}

fn cat(args: &Args, positions: &[Positions]) -> Result<(), Failure> {
    memory::end_with(&args.frame);
    let Some(stdout) = stdout(args)? else { return Ok(()) };
    // A buffer for small chunks, and none that looks for lines. What is in it is written after a failure as well.
    let mut out = BufWriter::with_capacity(BUFFER, stdout);
    let inspection = frames::inspect(&args.frame)?;
    let ranges = positions.iter().map(|positions| positions.of(&inspection)).collect::<Result<Vec<_>, _>>()?;
    let limit = match inspection.header().chunksize() {
        0 => usize::MAX,
        size => size as usize,
    };
    let (mut decoder, mut data) = (Decoder::default(), Vec::new());
    for position in ranges.into_iter().flatten() {
        let chunk = inspection.read_chunk(Position(position))?;
        let bytes = if args.raw {
            &chunk
        } else {
            let failed = |error| Failure::new(&args.frame, format_args!("chunk {position}: {error}"));
            decoder.decode_into(&chunk, limit, &mut data).map_err(failed)?;
            &data
        };
        if let Err(error) = out.write_all(bytes) {
            return output::written(Err(error));
        }
    }
    output::written(out.flush())?;
    // At the end, as a failure is one line.
    if !args.raw {
        warn_of_order(args, &inspection);
    }
    Ok(())
}

/// Says it if what is written is not what one would take it for.
fn warn_of_order(args: &Args, inspection: &Inspection) {
    let Some(Ok(array)) = Array::find(inspection.header().metalayers()) else { return };
    if !array.is_in_c_order() {
        let Array { shape, chunkshape, blockshape, .. } = &array;
        let shapes = format!("chunks of {chunkshape:?} in blocks of {blockshape:?}");
        let text = format!("warning: an array of {shape:?} in {shapes}: the bytes come block by block, not row by row");
        super::log::say(&Failure::new(&args.frame, text).0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_ranges() {
        let range = |first, last| Ok(Positions { first, last });
        for (text, parsed) in
            [("0", range(0, Some(0))), ("3-7", range(3, Some(7))), ("3-3", range(3, Some(3))), ("3-", range(3, None))]
        {
            assert_eq!(text.parse::<Positions>(), parsed, "{text}");
        }
        for text in ["", "-", "-3", "3-7-", "3 ", "+3", "0x3", "7-3", "3..7", "99999999999999999999"] {
            assert!(text.parse::<Positions>().is_err(), "{text}");
        }
    }
}
