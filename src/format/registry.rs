//! The numbers that C-Blosc2 gives to codecs and filters, and their names.
//!
//! Numbers from 32 on are plugins registered with the project, from 160 on they are their users' own. Neither are decoded here.

use std::fmt;

/// A codec by the number that a frame header or a chunk gives it; displays as its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CodecId(pub u8);

/// A filter by its number; displays as its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FilterId(pub u8);

/// Where the numbers of plugins begin.
const PLUGINS: u8 = 32;
/// Where the numbers of users begin.
const USERS: u8 = 160;

/// What a chunk needs to be decoded that is no part of the library's own, and so not of b2fuse either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Plugin {
    /// A codec.
    Codec(CodecId),
    /// A filter.
    Filter(FilterId),
}

impl fmt::Display for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plugin::Codec(id) => write!(f, "{id} ({}), a plugin codec", id.0),
            Plugin::Filter(id) => write!(f, "{id} ({}), a plugin filter", id.0),
        }
    }
}

impl CodecId {
    /// It is a plugin's or a user's.
    pub const fn is_plugin(self) -> bool {
        self.0 >= PLUGINS
    }

    /// The name in C-Blosc2, if it has one.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "blosclz",
            1 => "lz4",
            2 => "lz4hc",
            4 => "zlib",
            5 => "zstd",
            32 => "ndlz",
            33 => "zfp_acc",
            34 => "zfp_prec",
            35 => "zfp_rate",
            36 => "openhtj2k",
            37 => "grok",
            38 => "openzl",
            39 => "j2k",
            40 => "htj2k",
            _ => return None,
        })
    }
}

impl FilterId {
    /// No filter: an empty slot of a pipeline.
    pub const NONE: FilterId = FilterId(0);
    /// Truncated precision, which loses bits.
    pub const TRUNC_PREC: FilterId = FilterId(4);

    /// It is a plugin's or a user's.
    pub const fn is_plugin(self) -> bool {
        self.0 >= PLUGINS
    }

    /// The name in C-Blosc2, if it has one.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "nofilter",
            1 => "shuffle",
            2 => "bitshuffle",
            3 => "delta",
            4 => "trunc_prec",
            32 => "ndcell",
            33 => "ndmean",
            34 => "bytedelta_buggy",
            35 => "bytedelta",
            36 => "int_trunc",
            _ => return None,
        })
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(f, self.name(), "codec", self.0)
    }
}

impl fmt::Display for FilterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(f, self.name(), "filter", self.0)
    }
}

fn display(f: &mut fmt::Formatter<'_>, name: Option<&str>, what: &str, number: u8) -> fmt::Result {
    match name {
        Some(name) => f.pad(name),
        None if number >= USERS => f.pad(&format!("user-{what}-{number}")),
        None => f.pad(&format!("unknown-{what}-{number}")),
    }
}
