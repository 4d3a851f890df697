//! What can be told about frames by their names alone, before one is opened.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Failure, strangers};
use crate::format::Layout;
use crate::store::inspect::Inspection;
use crate::store::{Location, StoreError, TEMP_PREFIX, in_words, local};

/// The extension of a frame that has no other.
const EXTENSION: &str = "b2frame";
/// What sparse frames were called when they were called extended ones.
const EXTENDED: &str = "b2eframe";

/// What happens to links among the files of a sparse frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    Refused,
    /// As [`Location::following_links`] says.
    Followed,
}

/// Where the frame at `path` is, and which layout it has; `None` if there is nothing.
///
/// # Errors
/// What is there and no frame.
pub(super) fn find(path: &Path, links: Links) -> Result<Option<(Location, Layout)>, Failure> {
    #[cfg(feature = "remote")]
    if let Some(location) = super::remote::location(path)? {
        let layout = known(&location)?;
        return Ok(layout.map(|layout| (location, layout)));
    }
    match local::stat(path) {
        Ok(None) => return Ok(None),
        Ok(Some(_)) => {}
        Err(error) => return Err(Failure::new(path, format_args!("cannot be read: {}", in_words(&error)))),
    }
    let location = match links {
        Links::Refused => Location::existing(path)?,
        Links::Followed => Location::following_links(path)?,
    };
    let layout = known(&location)?;
    Ok(layout.map(|layout| (location, layout)))
}

/// Which layout the frame at a location has; `None` if there is nothing.
fn known(location: &Location) -> Result<Option<Layout>, Failure> {
    let known = match location.layout() {
        Err(error) => strangers::directory(location).ok_or_else(|| Failure::from_text(error)).map(Some)?,
        Ok(Some(Layout::Contiguous)) => strangers::file(location),
        Ok(Some(Layout::Sparse)) => None,
        Ok(None) => return Ok(None),
    };
    match known {
        Some(what) => Err(Failure::new(location.path(), what)),
        None => Ok(location.layout()?),
    }
}

/// A path as messages have it: of a URL, nothing that could be a secret.
pub(super) fn shown(path: &Path) -> Cow<'_, Path> {
    #[cfg(feature = "remote")]
    return match crate::store::remote::Address::parse(path) {
        Some(Ok(address)) => Cow::Owned(address.to_string().into()),
        // It may be spelled wrong.
        _ => Cow::Owned(crate::store::remote::without_secrets(path.as_os_str()).into_owned().into()),
    };
    #[cfg(not(feature = "remote"))]
    Cow::Borrowed(path)
}

/// What a command looks at: what is at a path or URL, whatever it is.
///
/// # Errors
/// That there is nothing.
pub(super) fn location(path: &Path) -> Result<Location, Failure> {
    #[cfg(feature = "remote")]
    if let Some(location) = super::remote::location(path)? {
        return Ok(location);
    }
    Location::existing(path).map_err(|error| explained(path, error))
}

/// Whether a frame is far away, so that much of it is to be asked for at one time.
pub(super) fn is_remote(path: &Path) -> bool {
    #[cfg(feature = "remote")]
    return crate::store::remote::Address::parse(path).is_some();
    #[cfg(not(feature = "remote"))]
    {
        let _ = path;
        false
    }
}

/// How many threads look at chunks. Of a frame far away each waits for a request most of the time.
pub(super) fn threads(is_remote: bool) -> usize {
    #[cfg(feature = "remote")]
    if is_remote {
        return super::remote::connections();
    }
    let _ = is_remote;
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// That a frame is none at a URL, for a command that writes to it. Nothing is asked of its server.
///
/// # Errors
/// That it is one.
pub(super) fn local_only(path: &Path) -> Result<(), Failure> {
    if is_remote(path) {
        return Err(Failure::new(path, "is a URL; expected a file or directory on this machine"));
    }
    match (local::stat(path), strangers::name(path, false)) {
        (Ok(None), Some(what)) => Err(Failure::new(path, what)),
        _ => Ok(()),
    }
}

/// What keeps a command from a frame, in words that are the same for all commands if it is no frame or not there.
pub(super) fn explained(path: &Path, error: StoreError) -> Failure {
    match existing(path) {
        Err(failure) => failure,
        Ok(_) => Failure::from_text(error),
    }
}

/// As [`explained`], of the frame at a location.
pub(super) fn explained_at(location: &Location, error: StoreError) -> Failure {
    match known(location) {
        Err(failure) => failure,
        Ok(None) if is_remote(location.path()) => missing(location.path(), ""),
        Ok(_) => Failure::from_text(error),
    }
}

/// What opening a frame has come to; of a damaged one, with what to do.
pub(super) fn damaged(error: StoreError) -> Failure {
    let what = match &error {
        StoreError::Format { source, .. } if source.field == "header: magic" => return Failure::from_text(error),
        // A type of items that cannot be named is no damage.
        StoreError::Format { source, .. } if source.field.starts_with("dtype") || source.field == "array: dtype_format" => {
            return Failure::from_text(error);
        }
        StoreError::Format { source, .. } if source.expected.starts_with("at most the file's length") => "the file is cut off: ",
        StoreError::Format { .. } => "",
        _ => return Failure::from_text(error),
    };
    if is_remote(error.path()) {
        return Failure::from_text(format_args!("{error}; {what}b2fuse check shows all damage"));
    }
    Failure::from_text(format_args!("{error}; {what}b2fuse check shows all damage, and b2fuse repair shows what can be repaired"))
}

/// As [`find`], of a frame that must be there.
///
/// # Errors
/// What is there and no frame, or not there.
pub(super) fn existing(path: &Path) -> Result<(Location, Layout), Failure> {
    find(path, Links::Refused)?.ok_or_else(|| missing(path, "no such file or directory; expected a Blosc2 frame"))
}

/// Of a directory, or what is beneath a URL, without frames.
pub(super) fn without_frames(path: &Path) -> Failure {
    if is_remote(path) {
        return existing(path).err().unwrap_or_else(|| Failure::new(path, "holds no frame"));
    }
    let known = Location::existing(path).ok().and_then(|location| strangers::directory(&location));
    let what = known.as_deref().unwrap_or("holds no frame; expected a Blosc2 frame, or a directory with frames in it");
    Failure::new(path, what)
}

/// That there is nothing of that name.
pub(super) fn missing(path: &Path, reason: &str) -> Failure {
    if is_remote(path) {
        return Failure::new(path, "no such object; expected a Blosc2 frame");
    }
    Failure::new(path, strangers::name(path, true).as_deref().unwrap_or(reason))
}

/// The frame at `path`, to be looked at.
///
/// # Errors
/// What is there and no frame, or not there.
pub(super) fn inspect(path: &Path) -> Result<Inspection, Failure> {
    Inspection::open_at(&existing(path)?.0).map_err(damaged)
}

/// As [`inspect`], of the frame at a location.
///
/// # Errors
/// As [`inspect`].
pub(super) fn inspect_at(location: &Location) -> Result<Inspection, Failure> {
    known(location)?;
    Inspection::open_at(location).map_err(damaged)
}

/// Where a frame is to be made.
///
/// # Errors
/// There is no directory for it; a name that only unfinished frames have.
pub(super) fn to_be(path: &Path) -> Result<Location, Failure> {
    if path.file_name().is_some_and(|name| name.as_bytes().starts_with(TEMP_PREFIX.as_bytes())) {
        let what =
            format!("has a name of unfinished frames, which b2fuse removes; expected one that does not begin with {TEMP_PREFIX}");
        return Err(Failure::new(path, what));
    }
    Location::to_be(path).map_err(|_| Failure::new(path, "cannot be created: there is no such directory"))
}

/// What a sparse frame is called as one file: as its directory, but for extensions that a file does not have.
pub(super) fn shown_name(directory: &Path) -> OsString {
    let Some(name) = directory.file_name() else { return OsString::from(format!("frame.{EXTENSION}")) };
    match Path::new(name).extension() {
        Some(extension) if extension != OsStr::new(EXTENDED) => name.to_owned(),
        _ => Path::new(name).with_extension(EXTENSION).into_os_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_called_as_its_directory() {
        for (directory, name) in [
            ("/data/a.b2frame", "a.b2frame"),
            ("/data/a.b2nd", "a.b2nd"),
            ("/data/a.b2nd/", "a.b2nd"),
            ("/data/a.b2eframe", "a.b2frame"),
            ("/data/a.b.b2eframe", "a.b.b2frame"),
            ("/data/a", "a.b2frame"),
            ("/data/a.2024", "a.2024"),
            ("/data/.a", ".a.b2frame"),
            ("/", "frame.b2frame"),
        ] {
            assert_eq!(shown_name(Path::new(directory)), name, "{directory}");
        }
    }
}
