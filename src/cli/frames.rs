//! What can be told about frames by their names alone, before one is opened.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::Failure;
use crate::format::{INDEX_NAME, Layout};
use crate::store::survey::Survey;

/// The extension of a frame that has no other.
const EXTENSION: &str = "b2frame";
/// What sparse frames were called when they were called extended ones.
const EXTENDED: &str = "b2eframe";

/// Which layout the frame at `path` has, if it is a frame; `None` if there is nothing.
///
/// # Errors
/// What is there and no frame.
pub(super) fn layout(path: &Path) -> Result<Option<Layout>, Failure> {
    let failed = |reason: &str| Err(Failure::new(path, reason));
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => match std::fs::metadata(path.join(INDEX_NAME)) {
            Ok(_) => Ok(Some(Layout::Sparse)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                failed("is a directory without chunks.b2frame; expected a Blosc2 frame")
            }
            Err(error) => failed(&format!("cannot be read: {error}")),
        },
        Ok(meta) if meta.is_file() => Ok(Some(Layout::Contiguous)),
        Ok(_) => failed("is no regular file; expected a Blosc2 frame"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => failed(&format!("cannot be read: {error}")),
    }
}

/// The frame at `path`, to be looked at.
///
/// # Errors
/// What is there and no frame, or not there.
pub(super) fn survey(path: &Path) -> Result<Survey, Failure> {
    match layout(path)? {
        Some(_) => Ok(Survey::open(path)?),
        None => Err(Failure::new(path, "no such file or directory; expected a Blosc2 frame")),
    }
}

/// The directory that a frame to be made will be in, with no symbolic link in it.
///
/// # Errors
/// There is none.
pub(super) fn home(path: &Path) -> Result<PathBuf, Failure> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match std::fs::canonicalize(dir) {
        Ok(dir) if dir.is_dir() && path.file_name().is_some() => Ok(dir),
        _ => Err(Failure::new(path, "cannot be created: there is no such directory")),
    }
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
