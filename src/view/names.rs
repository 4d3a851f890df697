//! The names that a sparse frame's directory can hold.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::format::ChunkId;

/// The index file of every sframe.
pub const INDEX_NAME: &str = "chunks.b2frame";

/// A name in the sparse view, by what it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Name {
    /// `chunks.b2frame`.
    Index,
    /// `XXXXXXXX.chunk`.
    Chunk(ChunkId),
    /// A name that begins with a dot: a tool's temporary file, `.b2lock`.
    Temp(OsString),
}

impl Name {
    /// Reads a name; `None` for one that cannot be in a frame.
    pub fn parse(name: &OsStr) -> Option<Name> {
        let bytes = name.as_bytes();
        if bytes == INDEX_NAME.as_bytes() {
            return Some(Name::Index);
        }
        if bytes.first() == Some(&b'.') {
            return Some(Name::Temp(name.to_owned()));
        }
        let digits = bytes.strip_suffix(b".chunk")?;
        // What C-Blosc2 prints with %08X, and nothing else: `0000000a.chunk` is another file to it.
        if digits.len() != 8 || !digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F')) {
            return None;
        }
        let digits = std::str::from_utf8(digits).ok()?;
        u32::from_str_radix(digits, 16).ok().map(|id| Name::Chunk(ChunkId(id)))
    }

    /// The name as it stands in the directory.
    pub fn to_os_string(&self) -> OsString {
        match self {
            Name::Index => INDEX_NAME.into(),
            Name::Chunk(id) => chunk_name(*id).into(),
            Name::Temp(name) => name.clone(),
        }
    }
}

/// The file name of a chunk.
pub fn chunk_name(id: ChunkId) -> String {
    format!("{id}.chunk")
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
        for other in ["0000000a.chunk", "000000A.chunk", "00000000A.chunk", "+000000A.chunk", "0000000A.chunk~", "x", ""] {
            assert_eq!(parse(other), None, "{other}");
        }
        assert_eq!(Name::Chunk(ChunkId(0x2e)).to_os_string(), "0000002E.chunk");
    }
}
