//! The names that a view's directory can hold.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

pub use crate::format::INDEX_NAME;

/// Whether tools use such a name for a time: one that begins with a dot, or a backup of a name that may be there.
pub fn is_temporary(name: &OsStr, may_be: impl Fn(&OsStr) -> bool) -> bool {
    let bytes = name.as_bytes();
    bytes.first() == Some(&b'.') || backed_up(bytes).is_some_and(|of| may_be(OsStr::from_bytes(of)))
}

/// Returns whether a name is another one with a suffix behind a dot, as programs that copy files give it to a copy until it is whole
/// (`aws s3 cp`, rclone): `00000003.chunk.1a2b`.
pub fn is_suffixed(name: &OsStr, may_be: impl Fn(&OsStr) -> bool) -> bool {
    let bytes = name.as_bytes();
    let mut dots = bytes.iter().enumerate().filter(|(at, byte)| **byte == b'.' && at + 1 < bytes.len());
    dots.any(|(at, _)| bytes.get(..at).is_some_and(|of| may_be(OsStr::from_bytes(of))))
}

/// The directory that `rsync --delay-updates` moves whole files to, until all are there.
pub const DELAYED: &str = ".~tmp~";

/// The name in the table of files for a name in [`DELAYED`]. No other has a slash.
pub fn within_delayed(name: &OsStr) -> OsString {
    [OsStr::new(DELAYED), OsStr::new("/"), name].into_iter().collect()
}

/// The name in [`DELAYED`] of such a file.
pub fn delayed(name: &OsStr) -> Option<&OsStr> {
    let name = name.as_bytes().strip_prefix(DELAYED.as_bytes())?.strip_prefix(b"/")?;
    Some(OsStr::from_bytes(name))
}

/// What a name that `cp --backup` and editors give to the old file, `NAME~` or `NAME.~1~`, is a backup of.
fn backed_up(name: &[u8]) -> Option<&[u8]> {
    let name = name.strip_suffix(b"~")?;
    let start = name.iter().rposition(|b| !b.is_ascii_digit()).map_or(0, |last| last + 1);
    match name.get(..start).and_then(|name| name.strip_suffix(b".~")) {
        Some(of) if start < name.len() => Some(of),
        _ => Some(name),
    }
}
