//! `SOURCE.lost/`: where that goes which a mount accepted and could not put into the frame.
//!
//! The directory lies beside SOURCE, has mode 0700, and belongs to SOURCE's owner where that may be set. It is never reached through
//! a link, and never one that somebody else may have made: then `.lost.1` to `.lost.9` are tried, and after them the state directory of
//! the daemon's user (root: `/var/lib/b2fuse/lost`). Once found it is held open, and everything goes there.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;

use super::backend::{Backend, BackendFile, FileStat};
use super::source::{Complain, Source, write_from};
use super::{ReadAt, Result, StoreError, local};

/// How many names are tried beside SOURCE.
const NAMES: u32 = 10;
/// The permission bits of the directory.
const MODE: u32 = 0o700;

/// The directory, once something was lost.
#[derive(Default)]
pub(super) struct Lost {
    open: Option<Open>,
}

struct Open {
    dir: Box<dyn Backend>,
    path: PathBuf,
}

/// See [`super::FrameStore::save_lost`].
pub(super) fn save(source: &Source, name: &str, content: &dyn ReadAt) -> Result<PathBuf> {
    let mut lost = source.lost.lock();
    let owner = source.stat()?.filter(|stat| stat.is_file() || stat.is_dir());
    let Open { dir, path } = match &mut lost.open {
        Some(open) => open,
        none => none.insert(find(source, owner.as_ref())?),
    };
    let failed = |error| StoreError::Io { path: path.clone(), action: "save what has no place in the frame", source: error };
    let name = name.replace('/', "_");
    let mut unique = name.clone();
    let mut attempt = 0u32;
    let file = loop {
        match dir.create(OsStr::new(&unique), 0o600) {
            Ok(file) => break file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < u32::MAX => {
                attempt += 1;
                unique = format!("{name}.{attempt}");
            }
            Err(error) => return Err(failed(error)),
        }
    };
    let saved = write(content, &*file).and_then(|()| {
        if let Some(owner) = &owner {
            // Where that is not allowed it stays the daemon's.
            let _ = file.set_owner(owner);
            file.set_mode(owner.mode & 0o666 | 0o600);
        }
        file.sync_all()?;
        dir.sync_dir()?;
        source.backend.sync_dir()
    });
    if let Err(error) = saved {
        // Half of it is of no use, and takes room.
        let _ = file.stat().and_then(|stat| dir.remove_file(OsStr::new(&unique), &stat));
        return Err(failed(error));
    }
    Ok(path.join(unique))
}

fn write(content: &dyn ReadAt, file: &dyn BackendFile) -> io::Result<()> {
    write_from(content, content.len(), file, 0).map_err(|failed| failed.error)
}

/// A directory that nobody else has made: beside SOURCE, or else where the daemon's user keeps such things.
fn find(source: &Source, owner: Option<&FileStat>) -> Result<Open> {
    let mut last = None;
    for attempt in 0..NAMES {
        let mut name = source.name.clone();
        name.push(if attempt == 0 { ".lost".to_owned() } else { format!(".lost.{attempt}") });
        match beside(source, &name, owner) {
            Ok(dir) => return Ok(Open { dir, path: source.dir.join(name) }),
            Err(error) => last = Some(error),
        }
    }
    let elsewhere = local::system::state_dir("lost").and_then(|(home, path)| {
        let name = unique_name(&source.name, &*home)?;
        Ok(Open { dir: home.create_dir(&name, MODE)?, path: path.join(name) })
    });
    elsewhere.map_err(|error| source.io("make a directory for what has no place in the frame")(last.unwrap_or(error)))
}

/// A name that is free, for what is lost of a frame of that name.
fn unique_name(frame: &OsStr, dir: &dyn Backend) -> io::Result<OsString> {
    for attempt in 0u32.. {
        let mut name = frame.to_owned();
        name.push(format!(".{}.{attempt}", std::process::id()));
        match dir.stat(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(name),
            _ => {}
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The directory of that name beside SOURCE: a new one, or one that an earlier daemon has made.
fn beside(source: &Source, name: &OsStr, owner: Option<&FileStat>) -> io::Result<Box<dyn Backend>> {
    match source.backend.create_dir(name, MODE) {
        Ok(dir) => {
            if let Some(owner) = owner {
                let _ = dir.itself()?.set_owner(owner);
            }
            source.backend.sync_dir()?;
            Ok(dir)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let dir = source.backend.open_dir(name)?;
            let (stat, around) = (dir.itself()?.stat()?, source.backend.itself()?.stat()?);
            match owner.is_some_and(|owner| made_by_us(&stat, &around, owner)) {
                true => Ok(dir),
                false => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// Whether a directory that is there can only have been made by a daemon, or by SOURCE's owner for himself: nobody but the owner can
/// get into it, and nobody else could have put another directory of the owner's in its place.
fn made_by_us(dir: &FileStat, around: &FileStat, owner: &FileStat) -> bool {
    let others_may_exchange = around.mode & 0o022 != 0 && around.mode & libc::S_ISVTX == 0;
    let around_is_trusted = around.uid == owner.uid || around.uid == 0 || around.uid == rustix::process::geteuid().as_raw();
    dir.uid == owner.uid && dir.mode & 0o7777 == MODE && around_is_trusted && !others_may_exchange
}
