//! `b2fuse compact`: frames without holes, in the order of their indexes.
//!
//! The frame is copied whole, under a temporary name beside it, and takes its place at once: whatever is cut off in between, the
//! frame is the old one or the new one.

use std::io;
use std::path::{Path, PathBuf};

use super::convert::{is_interrupted, make};
use super::trees::{self, Item};
use super::{Failure, Outcome};
use super::{frames, memory};
use crate::format::Layout;
use crate::format::plain::plain;
use crate::format::times::Times;
use crate::fs::kernel::{self, FS_TYPE};
use crate::store::check::{Depth, Kind, check_at};
use crate::store::copy::FrameCopy;
use crate::store::in_words;
use crate::store::times::Records;
use crate::store::walk::Entry;
use crate::store::{self, AtClose, FrameStore, LocalStore, Location, NewFrame};

/// Rewrite a frame without holes, its chunks in the order of the index
///
/// Files of a sparse frame are numbered anew, and files that belong to no chunk are removed. A second copy of the frame is written, and
/// replaces it in one step; it needs as much space as the frame's chunks.
///
/// For a directory, or a store of Python-Blosc2 (.b2d), all frames in it are compacted, at any depth, one after the other; see `b2fuse
/// check` for what counts as a frame. A file with several names (hard links) is left as it is, and is named on stderr.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  b2fuse compact pressure.b2frame
  # All frames below a directory
  b2fuse compact frames")]
pub(super) struct Args {
    /// The frame, of either layout, or a directory of frames
    frame: PathBuf,
}

pub(super) fn run(args: &Args) -> Outcome {
    if let Err(failure) = frames::local_only(&args.frame) {
        return Outcome::Failed(failure);
    }
    let mut failed = false;
    let tree = trees::each(&args.frame, &mut |item| {
        let compacted = match item {
            Item::Frame(entry, layout) => in_directory(&entry, layout),
            Item::Called(_) => Ok(()),
            Item::Unread(_, failure) => Err(failure),
        };
        if let Err(Failure(line)) = compacted {
            eprintln!("{line}");
            failed = true;
        }
        !is_interrupted()
    });
    match tree {
        Ok(true) => Outcome::Code(u8::from(failed)),
        Ok(false) => compact(&args.frame).into(),
        Err(failure) => Outcome::Failed(failure),
    }
}

fn compact(frame: &Path) -> Result<(), Failure> {
    memory::end_with(frame);
    // The new frame takes the place of the frame itself, not of a link to it.
    let (location, layout) = frames::existing(frame)?;
    // What is mounted cannot be replaced, which would show only when the copy is whole.
    if let Ok(Some(mount)) = kernel::mounted_at(&location.real_path())
        && mount.fs_type == FS_TYPE
    {
        let shown = plain(Path::new(&mount.source)).to_string();
        return Err(Failure::new(frame, format_args!("is a mount; expected the frame that it shows, {shown}")));
    }
    compact_at(&location, layout)
}

/// A frame that nobody has named.
fn in_directory(entry: &Entry, layout: Layout) -> Result<(), Failure> {
    if layout == Layout::Contiguous && entry.stat.links > 1 {
        let what = format_args!(
            "is left as it is: it has {} names (hard links), and only one of them would get the new frame",
            entry.stat.links
        );
        return Err(Failure::new(entry.location.path(), what));
    }
    compact_at(&entry.location, layout)
}

fn compact_at(location: &Location, layout: Layout) -> Result<(), Failure> {
    let frame = location.path();
    let failed =
        |action: &'static str| move |error: io::Error| Failure::new(frame, format_args!("cannot {action}: {}", in_words(&error)));
    let copy = FrameCopy::of(location).map_err(frames::damaged)?;
    let (source, entries) = (&*copy.source, &copy.image.entries);
    if is_compact(location, layout, entries)? {
        return Ok(());
    }
    let Some(like) = source.local().map(LocalStore::like).transpose()? else { return Ok(()) };
    let replaced = like.frame.stat().map_err(failed("be read"))?;
    let new = NewFrame { like: Some(like), replaced: Some(replaced), ..NewFrame::default() };
    let last = keep_times(source, entries.len());
    make(&copy, layout, location, new, last).map(drop)
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
