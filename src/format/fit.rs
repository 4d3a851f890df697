//! What sizes of chunks fit where in a frame.

use super::{Error, Result};

/// What uncompressed size fits a place in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// Chunks vary in size, or nothing is known yet.
    Any,
    /// The last chunk, which may be shorter.
    AtMost(u32),
    /// Every other one.
    Exactly(u32),
}

impl Fit {
    /// What fits at `position` of a frame of `count` chunks with the chunksize of its header.
    pub fn at(position: u64, count: u64, chunksize: u32) -> Fit {
        match (chunksize, position.saturating_add(1) >= count) {
            (0, _) => Fit::Any,
            (size, true) => Fit::AtMost(size),
            (size, false) => Fit::Exactly(size),
        }
    }

    /// Checks an uncompressed size.
    ///
    /// # Errors
    /// A chunk that does not fit.
    pub fn check(self, nbytes: u32) -> Result<()> {
        let err = |expected: String| Err(Error::new("chunk: nbytes", 4, nbytes, expected));
        match self {
            Fit::AtMost(0) | Fit::Any => Ok(()),
            Fit::AtMost(size) if nbytes == 0 || nbytes > size => err(format!("1 to {size}, the frame's chunksize")),
            Fit::Exactly(size) if nbytes != size => err(format!("{size}, the frame's chunksize")),
            _ => Ok(()),
        }
    }
}
