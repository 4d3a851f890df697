//! The names that a view's directory can hold.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::format::ChunkId;

pub use crate::format::INDEX_NAME;

/// A name in the sparse view, by what it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Name {
    /// `chunks.b2frame`.
    Index,
    /// `XXXXXXXX.chunk`.
    Chunk(ChunkId),
    /// A tool's temporary file: a name that begins with a dot (`.b2lock` among them), or a backup of one of the other names.
    Temp(OsString),
}

impl Name {
    /// Reads a name; `None` for one that cannot be in a frame.
    pub fn parse(name: &OsStr) -> Option<Name> {
        let bytes = name.as_bytes();
        if bytes == INDEX_NAME.as_bytes() {
            return Some(Name::Index);
        }
        if is_temporary(name, |of| Name::parse(of).is_some()) {
            return Some(Name::Temp(name.to_owned()));
        }
        ChunkId::from_file_name(bytes).map(Name::Chunk)
    }

    /// The name as it stands in the directory.
    pub fn to_os_string(&self) -> OsString {
        match self {
            Name::Index => INDEX_NAME.into(),
            Name::Chunk(id) => id.file_name().into(),
            Name::Temp(name) => name.clone(),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_the_library_prints() {
        let parse = |s: &str| Name::parse(OsStr::new(s));
        assert_eq!(parse("chunks.b2frame"), Some(Name::Index));
        assert_eq!(parse("0000000A.chunk"), Some(Name::Chunk(ChunkId(10))));
        assert_eq!(parse("FFFFFFFF.chunk"), Some(Name::Chunk(ChunkId(u32::MAX))));
        assert_eq!(parse(".b2lock"), Some(Name::Temp(".b2lock".into())));
        for other in ["0000000a.chunk", "000000A.chunk", "00000000A.chunk", "+000000A.chunk", "x~", "x.~1~", "~", "x", ""] {
            assert_eq!(parse(other), None, "{other}");
        }
        for backup in ["0000000A.chunk~", "0000000A.chunk.~12~", "chunks.b2frame~"] {
            assert_eq!(parse(backup), Some(Name::Temp(backup.into())));
        }
        assert_eq!(Name::Chunk(ChunkId(0x2e)).to_os_string(), "0000002E.chunk");
    }
}
