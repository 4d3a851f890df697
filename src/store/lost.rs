//! `SOURCE.lost/`: where a mount saves data that it accepted and could not put into the frame.
//!
//! The directory lies beside SOURCE, has mode 0700, and belongs to SOURCE's owner where that may be set. It is never reached through
//! a link, and never one that somebody else may have made: then `.lost.1` to `.lost.9` are tried, and after them the state directory of
//! the daemon's user (root: `/var/lib/b2fuse/lost`). Once found it is held open, and everything goes there.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::backend::{Backend, BackendFile, FileStat};
use super::error::Complain;
use super::source::{Source, write_from};
use super::{ReadAt, Result, StoreError, local};

/// How many names are tried beside SOURCE.
const NAMES: u32 = 10;
/// The permission bits of the directory.
const MODE: u32 = 0o700;

/// The directory, once something was lost.
#[derive(Default)]
pub(super) struct LostDirectory {
    open: Option<Open>,
}

struct Open {
    dir: Box<dyn Backend>,
    path: PathBuf,
}

/// See [`super::LocalStore::save_lost`].
/// `held` is SOURCE as it is open: it has an owner even if its name is gone.
pub(super) fn save(
    source: &Source,
    lost: &Mutex<LostDirectory>,
    name: &str,
    content: &dyn ReadAt,
    held: Option<FileStat>,
) -> Result<PathBuf> {
    let mut lost = lost.lock();
    let owner = source.stat()?.or(held).filter(|stat| stat.is_file() || stat.is_dir());
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
        source.backend().sync_dir()
    });
    if let Err(error) = saved {
        // Half of it is of no use, and takes room.
        let _ = file.stat().and_then(|stat| dir.remove_file(OsStr::new(&unique), &stat));
        return Err(failed(error));
    }
    Ok(path.join(unique))
}

/// Holes stay holes.
fn write(content: &dyn ReadAt, file: &dyn BackendFile) -> io::Result<()> {
    let mut at = 0;
    while let Some(data) = content.next_data(at).filter(|data| data.end > at) {
        let part = Stretch { content, from: data.start, len: data.end - data.start };
        write_from(&part, part.len, file, data.start).map_err(|failed| failed.error)?;
        at = data.end;
    }
    file.set_len(content.len())
}

/// A stretch of what is saved.
struct Stretch<'a> {
    content: &'a dyn ReadAt,
    from: u64,
    len: u64,
}

impl ReadAt for Stretch<'_> {
    fn len(&self) -> u64 {
        self.len
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.content.read_exact_at(buf, self.from + offset)
    }
}

/// A directory that nobody else has made: beside SOURCE, or else where the daemon's user keeps such things.
fn find(source: &Source, owner: Option<&FileStat>) -> Result<Open> {
    let (place, mut last) = (source.place(), None);
    for attempt in 0..NAMES {
        let mut name = place.name().to_owned();
        name.push(if attempt == 0 { ".lost".to_owned() } else { format!(".lost.{attempt}") });
        match beside(source, &name, owner) {
            Ok(dir) => return Ok(Open { dir, path: place.location.dir_path().join(name) }),
            Err(error) => last = Some(error),
        }
    }
    let elsewhere = local::system::state_dir("lost").and_then(|(home, path)| {
        let name = unique_name(place.name(), &*home)?;
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
    let backend = source.backend();
    match backend.create_dir(name, MODE) {
        Ok(dir) => {
            if let Some(owner) = owner {
                let _ = dir.itself()?.set_owner(owner);
            }
            backend.sync_dir()?;
            Ok(dir)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let dir = backend.open_dir(name)?;
            let (stat, around) = (dir.itself()?.stat()?, backend.itself()?.stat()?);
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
    let around_is_trusted = around.uid == owner.uid || around.uid == 0 || around.uid == rustix::process::geteuid().as_raw();
    dir.uid == owner.uid && dir.mode & 0o7777 == MODE && around_is_trusted && !around.lets_others_rename()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};

    use super::super::location::Location;
    use super::super::source::{NewFrame, OpenOptions};
    use super::*;

    /// Bytes at the beginning and at the end of a long hole.
    struct Sparse;

    const FAR: u64 = 1 << 40;

    impl ReadAt for Sparse {
        fn len(&self) -> u64 {
            FAR + 10
        }
        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
            assert!(!(10..FAR).contains(&offset), "the hole is read");
            buf.fill(7);
            Ok(())
        }
        fn next_data(&self, offset: u64) -> Option<std::ops::Range<u64>> {
            [0..10, FAR..FAR + 10].into_iter().find(|data| data.end > offset).map(|data| data.start.max(offset)..data.end)
        }
    }

    fn source(dir: &tempfile::TempDir) -> Source {
        let path = dir.path().join("frame");
        if !path.exists() {
            std::fs::write(&path, "").unwrap();
        }
        Source::new(&Location::existing(&path).unwrap(), &OpenOptions::default(), NewFrame::default())
    }

    #[test]
    fn holes_stay_holes_and_nobody_else_looks_in() {
        let dir = tempfile::tempdir().unwrap();
        let saved = save(&source(&dir), &Mutex::default(), "x", &Sparse, None).unwrap();
        let meta = std::fs::metadata(&saved).unwrap();
        assert_eq!((meta.len(), meta.mode() & 0o077 & !0o044), (FAR + 10, 0));
        assert!(meta.blocks() < 100);
        assert_eq!(std::fs::metadata(saved.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_is_there_and_not_ours_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", at("frame.lost")).unwrap();
        std::fs::write(at("frame.lost.1"), "").unwrap();
        // One that anybody may look into is not a daemon's.
        std::fs::DirBuilder::new().mode(0o755).create(at("frame.lost.2")).unwrap();
        let first = save(&source(&dir), &Mutex::default(), "x", &b"1".as_slice(), None).unwrap();
        let root = dir.path().canonicalize().unwrap();
        assert_eq!(first, root.join("frame.lost.3/x"));
        // The next daemon finds the same one again.
        assert_eq!(save(&source(&dir), &Mutex::default(), "x", &b"2".as_slice(), None).unwrap(), root.join("frame.lost.3/x.1"));
        assert_eq!(std::fs::read_dir(at("elsewhere")).unwrap().count(), 0);
        // Where others may exchange names, even that could be somebody else's.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(save(&source(&dir), &Mutex::default(), "x", &b"3".as_slice(), None).unwrap(), root.join("frame.lost.4/x"));
    }

    #[test]
    fn half_a_file_is_not_kept() {
        struct Broken;
        impl ReadAt for Broken {
            fn len(&self) -> u64 {
                10
            }
            fn read_exact_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
                Err(io::Error::other("broken"))
            }
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(save(&source(&dir), &Mutex::default(), "x", &Broken, None).is_err());
        assert_eq!(std::fs::read_dir(dir.path().join("frame.lost")).unwrap().count(), 0);
    }
}
