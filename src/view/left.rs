//! What is not in SOURCE when a mount ends.

use std::fmt;
use std::path::{Path, PathBuf};

use log::error;

use super::{Result, ViewError};
use crate::store::in_words;
use crate::store::local::Gone;
use crate::store::{self, StoreError};

/// Of so many files a message says what became of them. The log says it of all.
const NAMED: usize = 5;

/// What a view could not put into SOURCE.
#[derive(Debug, Default)]
pub struct Left {
    /// Why not everything that belongs to the frame is committed.
    pub failed: Option<ViewError>,
    /// What became of SOURCE, if its name is gone.
    pub gone: Option<Gone>,
    /// Files that were accepted, and that SOURCE does not have.
    pub lost: Vec<Lost>,
}

/// What a message about [`Left::gone`] begins with.
pub const BY_OTHERS: &str = "another program has ";

/// A file that was accepted, and that SOURCE does not have.
#[derive(Debug)]
pub struct Lost {
    /// What the mount calls it.
    pub name: String,
    /// Where it is saved, or why it is not.
    pub saved: store::Result<PathBuf>,
}

impl Left {
    /// Whether SOURCE has everything.
    pub fn is_nothing(&self) -> bool {
        self.failed.is_none() && self.gone.is_none() && self.lost.is_empty()
    }

    /// Whether what SOURCE does not have is saved, and waiting would not bring it into SOURCE.
    pub fn is_safe(&self) -> bool {
        self.failed.as_ref().is_none_or(is_final) && self.lost.iter().all(|lost| lost.saved.is_ok())
    }

    /// Whether it says why files are lost.
    fn has_reason(&self) -> bool {
        self.failed.is_some() || self.gone.is_some()
    }

    /// Says of each file in the log what became of it.
    pub fn log(&self, source: &Path) {
        if let Some(failed) = &self.failed {
            error!("{failed}");
        }
        if let Some(gone) = &self.gone {
            error!("{}: {}", source.display(), in_words_of(gone));
        }
        for lost in &self.lost {
            error!("{}: {}", source.display(), Shown(lost, self.has_reason()));
        }
    }

    /// What has come of it, for a caller that only fails or not.
    ///
    /// # Errors
    /// What is not in SOURCE.
    pub fn into_result(self) -> Result<()> {
        match self {
            Left { failed: Some(error), .. } => Err(error),
            left if left.lost.is_empty() => Ok(()),
            left => Err(ViewError::NotKept(left.to_string())),
        }
    }
}

fn in_words_of(gone: &Gone) -> String {
    match gone {
        Gone::Renamed(path) => format!("{BY_OTHERS}renamed SOURCE: it is {} now, and has what was committed", path.display()),
        Gone::Removed => format!("{BY_OTHERS}removed SOURCE"),
    }
}

/// Whether a commit that failed so never succeeds in this mount.
pub(super) fn is_final(error: &ViewError) -> bool {
    matches!(error, ViewError::Store(StoreError::Stale { .. }))
}

/// As a part of one line.
impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gap = "";
        if let Some(failed) = &self.failed {
            write!(f, "{failed}")?;
            gap = "; ";
        }
        if let Some(gone) = &self.gone {
            write!(f, "{gap}{}", in_words_of(gone))?;
            gap = "; ";
        }
        for lost in self.lost.iter().take(NAMED) {
            write!(f, "{gap}{}", Shown(lost, self.has_reason()))?;
            gap = "; ";
        }
        match self.lost.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, "{gap}and {more} more, which the log names"),
        }
    }
}

/// What became of a file; whether the reason was said.
struct Shown<'a>(&'a Lost, bool);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown(Lost { name, saved }, reason_said) = self;
        let why = if *reason_said { " is" } else { " has no place in the frame, and is" };
        match saved {
            Ok(path) => write!(f, "{name}{why} saved as {}", path.display()),
            Err(StoreError::Io { source, .. }) => write!(f, "{name}{why} not saved: {}", in_words(source)),
            Err(error) => write!(f, "{name}{why} not saved: {error}"),
        }
    }
}
