//! `b2fuse compact`: a frame without holes, in the order of its index.
//!
//! The frame is copied whole, under a temporary name beside it, and takes its place at once: whatever is cut off in between, the
//! frame is the old one or the new one.

use std::io;
use std::path::{Path, PathBuf};

use super::convert::make;
use super::{End, Failure};
use super::{frames, memory};
use crate::format::Layout;
use crate::format::times::Times;
use crate::store::check::{Depth, Kind, check_at};
use crate::store::copy::FrameCopy;
use crate::store::in_words;
use crate::store::times::Records;
use crate::store::{self, AtClose, FrameStore, LocalStore, Location, NewFrame};

/// Rewrite a frame without holes, its chunks in the order of the index
///
/// Files of a sparse frame are numbered anew, and files that belong to no chunk are removed. A second copy of the frame is written, and
/// replaces it in one step; it needs as much space as the frame's chunks.
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
    memory::end_with(frame, 1);
    let failed =
        |action: &'static str| move |error: io::Error| Failure::new(frame, format_args!("cannot {action}: {}", in_words(&error)));
    // The new frame takes the place of the frame itself, not of a link to it.
    let (location, layout) = frames::existing(frame)?;
    let copy = FrameCopy::of(&location).map_err(frames::damaged)?;
    let (source, entries) = (&*copy.source, &copy.image.entries);
    if is_compact(&location, layout, entries)? {
        return Ok(());
    }
    let Some(like) = source.local().map(LocalStore::like).transpose()? else { return Ok(()) };
    let replaced = like.frame.stat().map_err(failed("be read"))?;
    let new = NewFrame { like: Some(like), replaced: Some(replaced), ..NewFrame::default() };
    let last = keep_times(source, entries.len());
    make(&copy, layout, &location, new, last)
}

/// Has the chunk files of a mount have the times that they had before. They have the same names: positions stay what they are.
fn keep_times(source: &dyn FrameStore, count: usize) -> Option<AtClose> {
    let before = source.identity()?;
    let records = Records::of_user().ok()?;
    let known = records.read(&before).ok().flatten();
    let times = known.unwrap_or_else(|| Times::all(u32::try_from(count).unwrap_or(0), before.mtime));
    Some(Box::new(move |identity| {
        if let Some(identity) = identity.filter(|_| !times.is_empty()) {
            // Without, they have the time of the new frame.
            let _ = records.write(&identity, &times);
        }
    }))
}

/// Whether there is nothing to gain: no hole, nothing left over, every chunk in its place.
fn is_compact(
    location: &Location,
    layout: Layout,
    entries: &[crate::format::IndexEntry<store::ChunkKey>],
) -> Result<bool, Failure> {
    let keys: Vec<u64> = entries.iter().filter_map(|entry| entry.stored()).map(|key| key.number()).collect();
    let in_place = match layout {
        Layout::Sparse => keys.iter().zip(0..).all(|(key, n)| *key == n),
        Layout::Contiguous => keys.is_sorted(),
    };
    let mut left_over = false;
    let mut found =
        |finding: store::check::Finding| left_over |= matches!(finding.kind, Kind::Hole | Kind::Orphan | Kind::FrameLen);
    check_at(location, Depth { deep: false, threads: 1 }, &mut found, &mut |_, _| true)?;
    Ok(in_place && !left_over)
}
