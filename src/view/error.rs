//! Why a view refuses, and the one table from refusals to errno.

use std::{fmt, io};

use crate::format;
use crate::store::{StoreError, in_words};

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
    /// Another process is changing SOURCE: what is asked for is to be tried again soon.
    Unsettled,
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
    /// A chunk that is damaged, or needs a plugin: which one, and what is wrong with it.
    BadChunk(u64, format::Error),
    /// The value of an extended attribute is longer than any can be.
    ValueTooBig,
    /// The name of an extended attribute is longer than what it names can have.
    OutOfRange,
    /// A frame can have no more of these.
    NoRoom,
    /// Nothing like that can be done to this file.
    Unsupported,
    /// Two names that are not on one file system, or that cannot change places in one step.
    CrossDevice,
    /// A directory that is not empty.
    NotEmpty,
    /// The file system below refuses, with this errno.
    System(i32),
    /// What was accepted and is not in SOURCE at the end, in words.
    NotKept(String),
    /// The store failed.
    Store(StoreError),
}

impl ViewError {
    /// The errno that a client sees.
    pub fn errno(&self) -> i32 {
        self.parts().0
    }

    /// The errno, and what there is to say besides what lies in the error.
    fn parts(&self) -> (i32, &'static str) {
        match self {
            ViewError::NotFound => (libc::ENOENT, "no such file"),
            ViewError::Gone => (libc::ESTALE, "the file is gone"),
            ViewError::Exists => (libc::EEXIST, "exists already"),
            ViewError::ReadOnly => (libc::EROFS, "the mount is read-only"),
            ViewError::NotPermitted => (libc::EPERM, "a frame cannot hold a file of that kind"),
            ViewError::IsDirectory => (libc::EISDIR, "is a directory"),
            ViewError::NotDirectory => (libc::ENOTDIR, "is not a directory"),
            ViewError::BadHandle => (libc::EBADF, "the file is not open for this"),
            ViewError::Invalid => (libc::EINVAL, "invalid argument"),
            ViewError::NameTooLong => (libc::ENAMETOOLONG, "the name is too long"),
            ViewError::TooBig => (libc::EFBIG, "larger than anything a frame can hold"),
            ViewError::Locked => (libc::EWOULDBLOCK, "is locked by others"),
            ViewError::Unsettled => (libc::EIO, "another process is changing the frame"),
            ViewError::Interrupted => (libc::EINTR, "a signal interrupted the wait for the lock"),
            ViewError::InUse => (libc::EBUSY, "the frame is being changed by others"),
            ViewError::NoAttribute => (libc::ENODATA, "no such extended attribute"),
            ViewError::NotSettable => (libc::EOPNOTSUPP, "the extended attribute is read-only"),
            ViewError::Unreadable(_) | ViewError::BadChunk(..) => (libc::EIO, ""),
            ViewError::ValueTooBig => (libc::E2BIG, "the value is longer than an extended attribute can be"),
            ViewError::OutOfRange => (libc::ERANGE, "the extended attribute's name is too long"),
            ViewError::Unsupported => (libc::EOPNOTSUPP, "cannot be done to this file"),
            ViewError::CrossDevice => (libc::EXDEV, "cannot be moved there in one step"),
            ViewError::NotEmpty => (libc::ENOTEMPTY, "the directory is not empty"),
            ViewError::System(errno) => (*errno, "the file system below refuses: "),
            ViewError::NoRoom => (libc::ENOSPC, "the frame can have no more vlmetalayers"),
            ViewError::Rejected(_) => (libc::EINVAL, "refused: "),
            ViewError::Unfinished(_) => (libc::EINVAL, "not a whole frame: "),
            ViewError::NotKept(_) => (libc::EIO, "not everything is in the frame: "),
            ViewError::Store(error) => (error.errno(), ""),
        }
    }
}

impl fmt::Display for ViewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.parts().1)?;
        match self {
            ViewError::Unreadable(error) | ViewError::Rejected(error) | ViewError::Unfinished(error) => error.fmt(f),
            ViewError::BadChunk(chunk, error) => write!(f, "chunk {chunk} cannot be read: {error}"),
            ViewError::NotKept(what) => f.write_str(what),
            ViewError::System(errno) => f.write_str(&in_words(&io::Error::from_raw_os_error(*errno))),
            ViewError::Store(error) => error.fmt(f),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ViewError {}

impl From<io::Error> for ViewError {
    fn from(error: io::Error) -> Self {
        ViewError::System(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<StoreError> for ViewError {
    fn from(error: StoreError) -> Self {
        ViewError::Store(error)
    }
}
