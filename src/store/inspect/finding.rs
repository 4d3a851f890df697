//! What is found to be wrong with a frame, or worth a word.

use crate::format::registry::Plugin;
use crate::format::{self, Position};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is lost, and the library reads the frame as it should: unused room, files that belong to no chunk.
    Note,
    /// Something does not read, or reads as something else than was written.
    Damage,
}

/// What a finding is about: stable names for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The frame header.
    Header,
    /// frame_len against the file.
    FrameLen,
    /// The index chunk.
    Index,
    /// The trailer.
    Trailer,
    /// A vlmetalayer's content.
    Vlmetalayer,
    /// An index entry that points nowhere.
    Offset,
    /// A chunk's header, or its length against the room it has.
    Chunk,
    /// A chunk's data.
    Data,
    /// A chunk's uncompressed size against the frame's.
    Size,
    /// A chunk that C-Blosc2 does not read in this frame, whatever it holds.
    Misfit,
    /// Chunks that share bytes.
    Overlap,
    /// A chunk file that is not there.
    Missing,
    /// A chunk file that no index entry names.
    Orphan,
    /// Another file in an sframe's directory.
    Surplus,
    /// Room in a cframe that nothing uses.
    Hole,
    /// Chunks that cannot be decoded without a plugin.
    Plugin,
}

impl Kind {
    /// The name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Header => "header",
            Kind::FrameLen => "frame_len",
            Kind::Index => "index",
            Kind::Trailer => "trailer",
            Kind::Vlmetalayer => "vlmetalayer",
            Kind::Offset => "offset",
            Kind::Chunk => "chunk",
            Kind::Data => "data",
            Kind::Size => "size",
            Kind::Misfit => "misfit",
            Kind::Overlap => "overlap",
            Kind::Missing => "missing",
            Kind::Orphan => "orphan",
            Kind::Surplus => "surplus",
            Kind::Hole => "hole",
            Kind::Plugin => "plugin",
        }
    }
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub kind: Kind,
    /// The chunk, where it is about one.
    pub position: Option<Position>,
    /// What is wrong, with its place, in words.
    pub what: String,
}

impl Finding {
    /// Damage.
    pub fn damage(kind: Kind, what: impl Into<String>) -> Self {
        Finding { severity: Severity::Damage, kind, position: None, what: what.into() }
    }
    /// A note.
    pub fn note(kind: Kind, what: impl Into<String>) -> Self {
        Finding { severity: Severity::Note, kind, position: None, what: what.into() }
    }
    /// A vlmetalayer's content cannot be read.
    pub fn vlmetalayer(name: &[u8], error: &format::Error) -> Self {
        Finding::damage(Kind::Vlmetalayer, format!("vlmetalayer {}: {error}", quoted(name)))
    }
    /// A vlmetalayer's content takes a plugin to decode.
    pub fn undecoded_vlmetalayer(name: &[u8], plugin: Plugin) -> Self {
        Finding::note(Kind::Plugin, format!("vlmetalayer {} was not decoded: needed is {plugin}", quoted(name)))
    }
    /// The same, about the chunk at a position.
    pub fn at(self, position: Position) -> Self {
        Finding { position: Some(position), ..self }
    }
}

fn quoted(name: &[u8]) -> String {
    format!("\"{}\"", String::from_utf8_lossy(name).escape_debug())
}
