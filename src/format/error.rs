//! What can be wrong with bytes: the field, where it is, what it holds and what was expected.

use std::fmt;

/// Shorthand for results of this layer.
pub type Result<T> = std::result::Result<T, Error>;

/// Bytes that are not what the format says. The path is added by the layer that knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The structure and field in the format's words, as `header: frame_len`.
    pub field: &'static str,
    /// Byte offset of the field from the beginning of the structure that was parsed.
    pub offset: u64,
    /// What is there.
    pub got: String,
    /// What would have been right.
    pub expected: String,
}

impl Error {
    /// Builds the error; `got` and `expected` are rendered at once, errors being rare.
    pub fn new(field: &'static str, offset: u64, got: impl fmt::Display, expected: impl fmt::Display) -> Self {
        Error { field, offset, got: got.to_string(), expected: expected.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: found {}, expected {}", self.field, self.offset, self.got, self.expected)
    }
}

impl std::error::Error for Error {}
