//! Why a view refuses, and the one table from refusals to errno.

use std::fmt;

use crate::format;
use crate::store::StoreError;

/// Shorthand for results of this layer.
pub type Result<T> = std::result::Result<T, ViewError>;

/// A refusal.
#[derive(Debug)]
pub enum ViewError {
    /// No such name.
    NotFound,
    /// An inode that is gone: the kernel looks its name up again.
    Gone,
    /// The name exists.
    Exists,
    /// The mount is read-only.
    ReadOnly,
    /// Nothing of that kind can be in a frame.
    NotPermitted,
    /// A directory where a file is needed.
    IsDirectory,
    /// A file where a directory is needed.
    NotDirectory,
    /// The handle is not open, or not for this.
    BadHandle,
    /// The arguments make no sense.
    Invalid,
    /// The name is too long.
    NameTooLong,
    /// The file would become larger than anything a frame can hold.
    TooBig,
    /// Written bytes that are no chunk, or no chunk that fits.
    Rejected(format::Error),
    /// Written bytes that are no frame. They are held, as more may follow that make them one.
    Unfinished(format::Error),
    /// Others hold a lock that excludes the one asked for.
    Locked,
    /// A lock is waited for no longer.
    Interrupted,
    /// Others are in the middle of a change that this one would spoil.
    InUse,
    /// No extended attribute of that name.
    NoAttribute,
    /// An extended attribute that cannot be set, or not to this.
    NotSettable,
    /// An extended attribute whose value is damaged, or needs a plugin.
    Unreadable(format::Error),
    /// The value of an extended attribute is longer than any can be.
    ValueTooBig,
    /// The name of an extended attribute is longer than what it names can have.
    OutOfRange,
    /// A frame can have no more of these.
    NoRoom,
    /// What was accepted and is not in SOURCE at the end, in words.
    NotKept(String),
    /// The store failed.
    Store(StoreError),
}

impl ViewError {
    /// The errno that a client sees.
    pub fn errno(&self) -> i32 {
        match self {
            ViewError::NotFound => libc::ENOENT,
            ViewError::Gone => libc::ESTALE,
            ViewError::Exists => libc::EEXIST,
            ViewError::ReadOnly => libc::EROFS,
            ViewError::NotPermitted => libc::EPERM,
            ViewError::IsDirectory => libc::EISDIR,
            ViewError::NotDirectory => libc::ENOTDIR,
            ViewError::BadHandle => libc::EBADF,
            ViewError::Invalid | ViewError::Rejected(_) | ViewError::Unfinished(_) => libc::EINVAL,
            ViewError::NameTooLong => libc::ENAMETOOLONG,
            ViewError::TooBig => libc::EFBIG,
            ViewError::Locked => libc::EWOULDBLOCK,
            ViewError::Interrupted => libc::EINTR,
            ViewError::InUse => libc::EBUSY,
            ViewError::NoAttribute => libc::ENODATA,
            ViewError::NotSettable => libc::EOPNOTSUPP,
            ViewError::Unreadable(_) | ViewError::NotKept(_) => libc::EIO,
            ViewError::ValueTooBig => libc::E2BIG,
            ViewError::OutOfRange => libc::ERANGE,
            ViewError::NoRoom => libc::ENOSPC,
            ViewError::Store(error) => match error {
                StoreError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
                StoreError::Format { .. } | StoreError::Unsupported { .. } | StoreError::Poisoned { .. } => libc::EIO,
                StoreError::Busy { .. } => libc::EBUSY,
                StoreError::Stale { .. } => libc::ESTALE,
            },
        }
    }
}

impl fmt::Display for ViewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViewError::NotFound => f.write_str("no such file"),
            ViewError::Gone => f.write_str("the file is gone"),
            ViewError::Exists => f.write_str("exists already"),
            ViewError::ReadOnly => f.write_str("the mount is read-only"),
            ViewError::NotPermitted => f.write_str("nothing of that kind can be in a frame"),
            ViewError::IsDirectory => f.write_str("is a directory"),
            ViewError::NotDirectory => f.write_str("is not a directory"),
            ViewError::BadHandle => f.write_str("the file is not open for this"),
            ViewError::Invalid => f.write_str("invalid argument"),
            ViewError::NameTooLong => f.write_str("the name is too long"),
            ViewError::TooBig => f.write_str("larger than anything a frame can hold"),
            ViewError::Locked => f.write_str("is locked by others"),
            ViewError::Interrupted => f.write_str("a signal came before the lock"),
            ViewError::InUse => f.write_str("the frame is being changed by others"),
            ViewError::NoAttribute => f.write_str("no such extended attribute"),
            ViewError::NotSettable => f.write_str("the extended attribute says what the bytes are, and cannot be set"),
            ViewError::Unreadable(error) => error.fmt(f),
            ViewError::ValueTooBig => f.write_str("the value is longer than an extended attribute can be"),
            ViewError::OutOfRange => f.write_str("the extended attribute's name is too long"),
            ViewError::NoRoom => f.write_str("the frame can have no more vlmetalayers"),
            ViewError::Rejected(error) => write!(f, "refused: {error}"),
            ViewError::Unfinished(error) => write!(f, "not a whole frame: {error}"),
            ViewError::NotKept(what) => write!(f, "not everything is in the frame: {what}"),
            ViewError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ViewError {}

impl From<StoreError> for ViewError {
    fn from(error: StoreError) -> Self {
        ViewError::Store(error)
    }
}
