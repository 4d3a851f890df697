//! `b2fuse compact`: a frame without holes, in the order of its index.
//!
//! The frame is copied whole, under a temporary name beside it, and takes its place at once: whatever is cut off in between, the
//! frame is the old one or the new one.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::convert::{copy_whole, interrupts, mask, mode_of};
use super::frames;
use super::{End, Failure};
use crate::format::INDEX_NAME;
use crate::store::backend::BackendFile;
use crate::store::check::{Depth, Kind, check};
use crate::store::{self, OpenOptions};

/// Rewrite a frame without holes, its chunks in the order of the index
///
/// Files of a sparse frame are numbered anew, and those that belong to no chunk are removed. Needs room for a second copy of the
/// frame, which then takes its place at once.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  b2fuse compact pressure.b2frame")]
pub(super) struct Args {
    /// The frame, of either layout
    frame: PathBuf,
}

pub(super) fn run(args: &Args) -> End {
    compact(&args.frame).into()
}

fn compact(frame: &Path) -> Result<(), Failure> {
    let failed = |action: &'static str| move |error: io::Error| Failure::new(frame, format_args!("cannot {action}: {error}"));
    let interrupted = interrupts().map_err(failed("handle signals"))?;
    if frames::layout(frame)?.is_none() {
        return Err(Failure::new(frame, "no such file or directory; expected a Blosc2 frame"));
    }
    // The new frame takes the place of the frame itself, not of a link to it.
    let real = std::fs::canonicalize(frame).map_err(failed("be found"))?;
    let reading = OpenOptions { read_only: true, cache_bytes: 0, ..OpenOptions::default() };
    let (layout, source) = store::open(&real, reading)?;
    let Some(image) = source.committed() else { return Err(Failure::new(frame, "holds no frame")) };
    let lens = source.chunk_lens(&source.enter(), &image.entries)?;
    if is_compact(&real, &image.entries)? {
        return Ok(());
    }
    let old = Old::open(&real).map_err(failed("be read"))?;
    mask(mode_of(&real, &*source)?, layout);
    copy_whole(&*source, &image, &lens, layout, &real, true, &interrupted)?;
    old.restore(&real).map_err(failed("be given its old owner and mode"))?;
    Ok(())
}

/// Whether there is nothing to gain: no hole, nothing left over, every chunk in its place.
fn is_compact(frame: &Path, entries: &[crate::format::IndexEntry<store::ChunkKey>]) -> Result<bool, Failure> {
    let keys: Vec<u64> = entries.iter().filter_map(|entry| entry.stored()).map(|key| key.number()).collect();
    let in_place = match frame.is_dir() {
        true => keys.iter().zip(0..).all(|(key, n)| *key == n),
        false => keys.is_sorted(),
    };
    let mut left_over = false;
    let mut found =
        |finding: store::check::Finding| left_over |= matches!(finding.kind, Kind::Hole | Kind::Orphan | Kind::FrameLen);
    check(frame, Depth { deep: false, threads: 1 }, &mut found, &mut |_, _| true)?;
    Ok(in_place && !left_over)
}

/// The files whose owner, mode and extended attributes a new frame gets: they can be read when they have lost their names.
struct Old {
    frame: File,
    /// Of a sparse frame.
    index: Option<File>,
}

impl Old {
    fn open(frame: &Path) -> io::Result<Self> {
        let index = frame.is_dir().then(|| File::open(frame.join(INDEX_NAME))).transpose()?;
        Ok(Old { frame: File::open(frame)?, index })
    }

    fn restore(&self, frame: &Path) -> io::Result<()> {
        if let Some(index) = &self.index {
            for entry in std::fs::read_dir(frame)? {
                File::open(entry?.path())?.copy_attributes(index);
            }
        }
        File::open(frame)?.copy_attributes(&self.frame);
        Ok(())
    }
}
