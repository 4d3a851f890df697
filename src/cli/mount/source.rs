//! SOURCE, when it is one frame: where it is, which layout it has, and whether it may be written to.

use std::path::{Path, PathBuf};

use super::super::frames::{self, Links};
use super::super::{Failure, strangers};
use crate::format::Layout;
use crate::format::plain::plain;
use crate::fs::kernel;
use crate::store::{Location, in_words};

/// Where SOURCE is, which layout it has or will have, and whether it is new, if it can be mounted.
pub(super) fn check_source(source: &Path, create: bool, follow_links: bool) -> Result<(Location, Layout, bool), Failure> {
    let links = if follow_links { Links::Followed } else { Links::Refused };
    match frames::find(source, links)? {
        Some((location, layout)) => Ok((location, layout, false)),
        None if create => Ok((frames::to_be(source)?, Layout::Contiguous, true)),
        None => Err(frames::missing(source, "no such file; expected a Blosc2 frame (--create makes a new one)")),
    }
}

/// Of a SOURCE that cannot be mounted: that the other argument can.
pub(super) fn swapped(source: &Path, point: &Path) -> Option<Failure> {
    let (location, layout) = frames::find(point, Links::Refused).ok()??;
    let is_frame = layout == Layout::Sparse || strangers::is_frame(&location);
    let reason = format!("is no frame, and {} is one; expected the frame first, and then where to mount it", plain(point));
    is_frame.then(|| Failure::new(source, reason))
}

/// That SOURCE is not in another of our mounts, if it is to be written to: what is staged in it the other would take for its own, and
/// neither could promise what it does of a local file system.
pub(super) fn check_home(location: &Location) -> Result<(), Failure> {
    let source = location.path();
    let device = match location.stat()? {
        Some(stat) => stat.dev,
        None => {
            let dir = location.backend().itself().and_then(|dir| dir.stat());
            dir.map_err(|error| Failure::new(source, format_args!("cannot be found: {}", in_words(&error))))?.dev
        }
    };
    check_device(source, device, "a frame on a local file system")
}

/// That a device is none of our mounts, where something to be written to was expected.
pub(super) fn check_device(source: &Path, device: u64, expected: &str) -> Result<(), Failure> {
    match kernel::mount_with(device) {
        Ok(Some(mount)) => {
            let reason = format!(
                "is in the b2fuse mount {} of {}; expected {expected} (--read-only accepts this one)",
                mount.point.display(),
                Path::new(&mount.source).display()
            );
            Err(Failure::new(source, reason))
        }
        Ok(None) => Ok(()),
        Err(error) => Err(Failure::new(source, format_args!("cannot list mounts: {}", in_words(&error)))),
    }
}

/// The frame's path with the name that the user has for it.
pub(super) fn named(source: &Path, location: &Location) -> PathBuf {
    if source.file_name().is_some() { source.to_owned() } else { location.real_path() }
}
