//! The names that a view's directory can hold.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub use crate::format::INDEX_NAME;

/// Whether tools use such a name for a time: one that begins with a dot, or a backup of a name that may be there.
pub fn is_temporary(name: &OsStr, may_be: impl Fn(&OsStr) -> bool) -> bool {
    let bytes = name.as_bytes();
    bytes.first() == Some(&b'.') || backed_up(bytes).is_some_and(|of| may_be(OsStr::from_bytes(of)))
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
