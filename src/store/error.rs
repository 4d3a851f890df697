//! What can go wrong between a frame's bytes and the disk.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::backend::BackendFile;
use super::mark::{LockHolder, holder};
use crate::format::{self, plain::plain};

/// Shorthand for results of this layer.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A failure of the store. Its words begin with the path, and say what was found and what was expected.
#[derive(Debug)]
pub enum StoreError {
    /// The operating system refused.
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done, as in `cannot ACTION`.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// Bytes on disk, or of an image to commit, that are no frame.
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: format::Error,
    },
    /// SOURCE is not a frame of the kind wanted, in words.
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Another process writes to SOURCE.
    Busy {
        /// The file.
        path: PathBuf,
        /// Who that is.
        holder: LockHolder,
    },
    /// Another process changed SOURCE under a read-write mount.
    Stale {
        /// The file.
        path: PathBuf,
        /// What was seen.
        reason: String,
    },
    /// A remote object that the index still names was deleted or changed. The log tells it once.
    Lost {
        /// The object.
        path: PathBuf,
        /// What happened to it.
        reason: &'static str,
    },
    /// An earlier write or sync failed; nothing more is written.
    Poisoned {
        /// The file.
        path: PathBuf,
        /// The first failure.
        reason: String,
    },
}

impl StoreError {
    /// Another process has the lock of that file.
    pub(super) fn busy(path: &Path, file: &dyn BackendFile) -> Self {
        StoreError::Busy { path: path.to_owned(), holder: file.fd().map(holder).unwrap_or_default() }
    }
}

impl StoreError {
    /// The file that it is about.
    pub fn path(&self) -> &Path {
        match self {
            StoreError::Io { path, .. }
            | StoreError::Format { path, .. }
            | StoreError::Unsupported { path, .. }
            | StoreError::Busy { path, .. }
            | StoreError::Stale { path, .. }
            | StoreError::Lost { path, .. }
            | StoreError::Poisoned { path, .. } => path,
        }
    }

    /// The errno that a client sees.
    pub fn errno(&self) -> i32 {
        match self {
            StoreError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            StoreError::Format { .. } | StoreError::Unsupported { .. } => libc::EIO,
            StoreError::Lost { .. } | StoreError::Poisoned { .. } => libc::EIO,
            StoreError::Busy { .. } => libc::EBUSY,
            StoreError::Stale { .. } => libc::ESTALE,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Io { path, action, source } => write!(f, "{}: cannot {action}: {}", plain(path), in_words(source)),
            StoreError::Format { path, source } => write!(f, "{}: {source}", plain(path)),
            StoreError::Unsupported { path, reason } => write!(f, "{}: {reason}", plain(path)),
            StoreError::Busy { path, holder } => {
                write!(f, "{}: is mounted for writing already", plain(path))?;
                holder.process.map_or(Ok(()), |process| write!(f, " by process {process}"))?;
                f.write_str("; unmount it first, or mount with -o ro")
            }
            StoreError::Stale { path, reason } => {
                write!(f, "{}: was changed by another process under the mount ({reason})", plain(path))
            }
            StoreError::Lost { path, reason } => write!(f, "{}: {reason}", plain(path)),
            StoreError::Poisoned { path, reason } => {
                write!(f, "{}: takes no more writes after an earlier failure: {reason}", plain(path))
            }
        }
    }
}

/// A refusal of the system in words, without its number, and in words that fit what it was asked for: links are not followed, however many
/// there are. To be used wherever such an error is shown.
pub(crate) fn in_words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ELOOP) => "it is a symbolic link, which is not followed".to_owned(),
        Some(number) => error.to_string().trim_end_matches(&format!(" (os error {number})")).to_owned(),
        None => error.to_string(),
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StoreError::Io { source, .. } => Some(source),
            StoreError::Format { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A commit that came to nothing.
pub(super) struct Failed {
    pub(super) error: StoreError,
    /// Nothing has changed, and another commit may succeed.
    pub(super) harmless: bool,
    /// The new state may be what is on disk all the same.
    pub(super) in_doubt: bool,
}

impl Failed {
    pub(super) fn harmless(error: StoreError) -> Self {
        Failed { error, harmless: true, in_doubt: false }
    }
    pub(super) fn fatal(error: StoreError) -> Self {
        Failed { error, harmless: false, in_doubt: false }
    }
    pub(super) fn in_doubt(error: StoreError) -> Self {
        Failed { error, harmless: false, in_doubt: true }
    }
    /// A file could not be made or written.
    pub(super) fn write(error: StoreError) -> Self {
        let harmless = matches!(&error, StoreError::Io { source, .. } if refused(source));
        Failed { error, harmless, in_doubt: false }
    }
    /// A rename failed.
    pub(super) fn rename(error: StoreError) -> Self {
        // A file system of another machine says so of a rename that it is asked for twice, as the first answer was lost.
        let gone = matches!(&error, StoreError::Io { source, .. } if source.raw_os_error() == Some(libc::ENOENT));
        let failed = if gone { Self::fatal(error) } else { Self::write(error) };
        Failed { in_doubt: !failed.harmless, ..failed }
    }
}

/// Whether nothing was written: there is no room, and may be some later, or others have written to the file.
pub(super) fn no_room(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::ESTALE))
}

/// Whether a file or a name was refused for reasons that may pass, and no harm done: what others have put in the way may go again.
pub(super) fn refused(error: &io::Error) -> bool {
    use libc::*;
    const PASSING: [i32; 16] = [
        EACCES, EPERM, EROFS, EMFILE, ENFILE, ENOMEM, EINVAL, ENOSYS, EEXIST, ENOENT, EISDIR, ENOTDIR, ENOTEMPTY, ELOOP, EXDEV,
        ENXIO,
    ];
    no_room(error) || error.raw_os_error().is_some_and(|errno| PASSING.contains(&errno))
}

/// What errors are told of.
pub(super) trait Complain {
    /// By the user's name.
    fn called(&self) -> PathBuf;

    fn io(&self, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        move |source| StoreError::Io { path: self.called(), action, source }
    }
    fn format(&self, source: format::Error) -> StoreError {
        StoreError::Format { path: self.called(), source }
    }
    fn unsupported(&self, reason: impl Into<String>) -> StoreError {
        StoreError::Unsupported { path: self.called(), reason: reason.into() }
    }
    fn stale(&self, reason: impl Into<String>) -> StoreError {
        StoreError::Stale { path: self.called(), reason: reason.into() }
    }
}

impl Complain for PathBuf {
    fn called(&self) -> PathBuf {
        self.clone()
    }
}
