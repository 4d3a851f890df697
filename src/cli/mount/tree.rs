//! A mount of a whole directory: what can be wrong with it before it is there, and what the options make of it.

use std::path::{Path, PathBuf};

use super::super::options::{Options, TreeOptions};
use super::super::{Failure, strangers};
use super::point::{self, Fits, PointKind};
use super::source::check_device;
use crate::format::plain::plain;
use crate::store::walk::SUFFIXES;
use crate::store::{Location, in_words, local};
use crate::view::{DEFAULT_TIMEOUTS, Rules, Show, Timeouts};

/// Whether SOURCE is a directory that is no frame, and no array of another kind.
pub(super) fn is_tree(source: &Path) -> bool {
    // Whoever owns the directory that a link is in could lead the mount to any other.
    let itself: PathBuf = source.components().collect(); // without a slash behind it, which would be through a link
    let Ok(Some(stat)) = local::stat_itself(&itself) else { return false };
    // What is called as a frame was meant to be one: whoever owns the directory above could have put another in its place, with links in it.
    let named =
        itself.file_name().is_some_and(|name| SUFFIXES.iter().any(|suffix| name.as_encoded_bytes().ends_with(suffix.as_bytes())));
    let is_anothers = || Location::existing(source).is_ok_and(|location| strangers::array(&location).is_some());
    stat.is_dir() && !named && !local::has_index(source) && !is_anothers()
}

/// Of what would be a directory of frames, but is a link to one: where it leads to.
pub(super) fn linked(source: &Path) -> Option<Failure> {
    let is_dir = local::stat(source).is_ok_and(|stat| stat.is_some_and(|stat| stat.is_dir()));
    if !is_dir || local::has_index(source) || is_tree(source) {
        return None;
    }
    let real = local::resolve(source).ok().filter(|real| is_tree(real))?;
    Some(Failure::new(source, format_args!("is a symbolic link; expected the directory that it leads to, {}", plain(&real))))
}

/// What a mount of a directory shows.
///
/// # Errors
/// Options that are for a mount of one frame.
pub(super) fn rules(
    source: &Path,
    options: &Options,
    (create, locking): (bool, bool),
    show: Option<Show>,
    read_only: bool,
) -> Result<Rules, Failure> {
    let failed =
        |option: &str| Err(Failure::new(source, format_args!("is a directory of frames; expected one frame with {option}")));
    if create {
        return failed("--create");
    }
    if options.follow_links {
        return failed("-o follow_links");
    }
    let TreeOptions { suffixes, frames, noframes, cross, archives, entry_timeout, attr_timeout } = options.tree.clone();
    Ok(Rules {
        show: show.or(options.show).unwrap_or_default(),
        suffixes: suffixes.unwrap_or_else(|| SUFFIXES.map(str::to_owned).to_vec()),
        frames,
        noframes,
        cross,
        archives,
        read_only,
        locking,
        dtype: options.dtype.clone(),
        lists: options.shows_lists(),
        // Who says how long means it.
        watches: entry_timeout.is_none() && attr_timeout.is_none(),
        timeouts: Timeouts {
            entry: entry_timeout.unwrap_or(DEFAULT_TIMEOUTS.entry),
            attr: attr_timeout.unwrap_or(DEFAULT_TIMEOUTS.attr),
        },
    })
}

fn swapped(source: &Path, point: &Path) -> Failure {
    let point = plain(point);
    Failure::new(source, format_args!("is no frame, and {point} is one; expected the frame first, and then where to mount it"))
}

/// The mount point without symbolic links, if the directory can be shown there. It may be the directory itself.
pub(super) fn check_point(point: &Path, source: &Path, read_only: bool) -> Result<PathBuf, Failure> {
    let failed = |reason: String| Err(Failure::new(point, reason));
    match point::kind(point, Fits::Directory)? {
        PointKind::Directory => {}
        PointKind::File | PointKind::Other => {
            return match Location::existing(point) {
                Ok(location) if strangers::is_frame(&location) => Err(swapped(source, point)),
                _ => failed("is not a directory; expected a directory to mount on".into()),
            };
        }
    }
    if local::has_index(point) {
        return Err(swapped(source, point));
    }
    let real = point::resolve(point)?;
    let dir =
        local::resolve(source).map_err(|error| Failure::new(source, format_args!("cannot be found: {}", in_words(&error))))?;
    let shown = source.display();
    if real != dir && dir.starts_with(&real) {
        return failed(format!("lies above {shown}, which the mount would hide"));
    }
    if real != dir && real.starts_with(&dir) {
        return failed(format!("lies inside {shown}, and would be shown in itself; expected a place outside, or {shown}"));
    }
    if let (false, Ok(Some(stat))) = (read_only, local::stat(source)) {
        check_device(source, stat.dev, "a directory on a local file system")?;
    }
    Ok(real)
}
