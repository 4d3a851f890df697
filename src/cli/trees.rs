//! Directories of frames, where a command takes one in place of a frame.
//!
//! What is told about each frame is what is told about one that is named itself, by its path in the directory. What is wrong with one
//! does not keep from going on to the next.

use std::path::{Path, PathBuf};

use super::{Failure, frames, memory};
use crate::format::Layout;
use crate::format::plain::plain;
use crate::store;
use crate::store::walk::{Entry, Step, Walk, has_frame_suffix};

/// What the walk through a directory has come to.
pub(super) enum Item {
    /// A frame.
    Frame(Entry, Layout),
    /// A file that is called as a frame, and does not begin as one.
    Called(Entry),
    /// Something that was not looked at, and why.
    Unread(PathBuf, Failure),
}

/// A walk through what is at a path, or beneath a URL, and no frame.
fn walk(path: &Path) -> Result<Option<Box<dyn Iterator<Item = store::Result<Step>>>>, Failure> {
    #[cfg(feature = "remote")]
    if frames::is_remote(path) {
        return Ok(super::remote::walk(path)?.map(|walk| Box::new(walk) as Box<_>));
    }
    // What keeps from a directory is said as of a frame.
    Ok(Walk::of(path).ok().flatten().map(|walk| Box::new(walk) as Box<_>))
}

/// Tells `found` of what there is in the directory at `path`, until it answers that it has enough. `false` if there is no such
/// directory, or it is a frame itself. From each frame on, a lack of memory ends the process.
///
/// # Errors
/// There is no frame in the directory, nor anything that could not be looked at.
pub(super) fn each(path: &Path, found: &mut dyn FnMut(Item) -> bool) -> Result<bool, Failure> {
    memory::end_with(path);
    let Some(walk) = walk(path)? else { return Ok(false) };
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
