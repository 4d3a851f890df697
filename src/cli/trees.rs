//! Directories of frames, where a command takes one in place of a frame.
//!
//! What is told about each frame is what is told about one that is named itself, by its path in the directory. What is wrong with one
//! does not keep from going on to the next.

use std::path::{Path, PathBuf};

use super::{Failure, frames, memory};
use crate::format::Layout;
use crate::format::plain::plain;
use crate::store::archive::members;
use crate::store::walk::{ARCHIVE_SUFFIX, Entry, Step, Walk, ends_with, has_frame_suffix};
use crate::store::{self, Location};

/// What the walk through a directory has come to.
pub(super) enum Item {
    /// A frame.
    Frame(Entry, Layout),
    /// A file that is called as a frame, and does not begin as one.
    Called(Entry),
    /// Something that was not looked at, and why.
    Unread(PathBuf, Failure),
}

/// The steps of a walk.
type Steps = Box<dyn Iterator<Item = store::Result<Step>>>;

/// A walk through what is at a path, or beneath a URL, and no frame.
fn walk(path: &Path) -> Result<Option<Steps>, Failure> {
    #[cfg(feature = "remote")]
    if frames::is_remote(path) {
        return Ok(super::remote::walk(path)?.map(|walk| Box::new(walk) as Box<_>));
    }
    // What keeps from a directory is said as of a frame.
    Ok(Walk::of(path).ok().flatten().map(|walk| Box::new(walk) as Box<_>))
}

/// The frames in an archive of Python-Blosc2 (.b2z), if there are any.
fn archive(path: &Path) -> Option<Steps> {
    if !path.file_name().is_some_and(|name| ends_with(name, ARCHIVE_SUFFIX)) {
        return None;
    }
    // What keeps from an archive is said as of a frame.
    let steps = members::frames(&Location::existing(path).ok()?).ok()?;
    let has_frame = steps.iter().any(|step| matches!(step, Step::Frame(..)));
    has_frame.then(|| Box::new(steps.into_iter().map(Ok)) as Box<_>)
}

/// As [`each`], for a command that only reads: of the archive at `path` as well.
///
/// # Errors
/// As [`each`].
pub(super) fn each_to_read(path: &Path, found: &mut dyn FnMut(Item) -> bool) -> Result<bool, Failure> {
    memory::end_with(path);
    match archive(path) {
        Some(steps) => through(path, steps, found),
        None => each(path, found),
    }
}

/// Tells `found` of what there is in the directory at `path`, until it answers that it has enough. `false` if there is no such
/// directory, or it is a frame itself. From each frame on, a lack of memory ends the process.
///
/// # Errors
/// There is no frame in the directory, nor anything that could not be looked at.
pub(super) fn each(path: &Path, found: &mut dyn FnMut(Item) -> bool) -> Result<bool, Failure> {
    memory::end_with(path);
    match walk(path)? {
        Some(walk) => through(path, walk, found),
        None => Ok(false),
    }
}

fn through(path: &Path, walk: Steps, found: &mut dyn FnMut(Item) -> bool) -> Result<bool, Failure> {
    let (mut any, mut called) = (false, 0u64);
    for step in walk {
        let item = match step {
            Ok(Step::Frame(entry, layout)) => {
                memory::end_with(entry.location.path());
                Item::Frame(entry, layout)
            }
            Ok(Step::Other(entry)) if entry.stat.is_file() && has_frame_suffix(entry.location.name()) => {
                called += 1;
                Item::Called(entry)
            }
            Ok(Step::MountPoint(entry)) => {
                eprintln!("{}: was skipped: another file system is mounted there", plain(entry.location.path()));
                continue;
            }
            Ok(Step::Enter(_) | Step::Leave | Step::Other(_)) => continue,
            Err(error) => Item::Unread(error.path().to_owned(), Failure::from_text(error)),
        };
        any |= !matches!(item, Item::Called(_));
        if !found(item) {
            return Ok(true);
        }
    }
    match (any, called) {
        (true, _) => Ok(true),
        (false, 0) => Err(frames::without_frames(path)),
        (false, 1) => Err(Failure::new(path, "holds no frame, only a file with a frame's name")),
        (false, n) => Err(Failure::new(path, format_args!("holds no frame, only {n} files with a frame's name"))),
    }
}
