//! Where the times of chunk files are kept between mounts: records of [`Times`] in a directory of the daemon's user, one for each
//! frame's file.
//!
//! Nothing there is needed: without a record, or with one that cannot be used, files have the times of SOURCE.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use log::debug;

use super::backend::{Backend, read_exact_at};
use super::create::{TEMP_PREFIX, with_temp_name};
use super::local::system;
use crate::format::times::{Identity, MAX_LEN, Times};

/// The name of the directory.
const NAME: &str = "times";
/// As many records are kept; then the oldest go.
const MOST: usize = 256;

/// The records of a user.
#[derive(Debug, Clone)]
pub struct Records {
    home: PathBuf,
}

impl Records {
    /// Those of the user of this process: in `$XDG_CACHE_HOME/b2fuse/times/`, root's in `/var/cache/b2fuse/times/`.
    ///
    /// # Errors
    /// There is no such place.
    pub fn of_user() -> io::Result<Self> {
        Ok(Records { home: system::cache_home()? })
    }

    /// Those below another directory than the user's for such things.
    pub fn below(home: &Path) -> Self {
        Records { home: home.to_owned() }
    }

    /// The times of a frame's file, if there is a record of just this state of it.
    ///
    /// # Errors
    /// What the system refuses; why a record that is there cannot be used.
    pub fn read(&self, of: &Identity) -> io::Result<Option<Times>> {
        let found = system::cache_dir(&self.home, NAME, false).and_then(|dir| dir.open(&name(of), false));
        let file = match found {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let stat = file.stat()?;
        if stat.uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("the record belongs to another user"));
        }
        let len = usize::try_from(stat.len).ok().filter(|len| *len <= MAX_LEN);
        let len =
            len.ok_or_else(|| io::Error::other(format!("the record has {} bytes; expected at most {MAX_LEN}", stat.len)))?;
        let mut bytes = vec![0; len];
        read_exact_at(&*file, &mut bytes, 0)?;
        let (identity, times) = Times::decode(&bytes).map_err(io::Error::other)?;
        Ok((identity == *of).then_some(times))
    }

    /// Keeps the times of a state of a frame's file, in place of those of an earlier one.
    ///
    /// # Errors
    /// What the system refuses. Then the earlier record stays, which says of which state it is.
    pub fn write(&self, of: &Identity, times: &Times) -> io::Result<()> {
        let dir = system::cache_dir(&self.home, NAME, true)?;
        let (temp, file) = with_temp_name(|name| dir.create(name, 0o600))?;
        // After a crash it may be cut short: then it is not used.
        let written = file.write_at(&times.encode(of), 0).and_then(|()| dir.rename(&temp, &name(of), true));
        if written.is_err() {
            let _ = file.stat().and_then(|stat| dir.remove_file(&temp, &stat));
        }
        written?;
        prune(&*dir);
        Ok(())
    }
}

/// What the record of a file is called.
fn name(of: &Identity) -> OsString {
    format!("{:x}-{:x}", of.dev, of.ino).into()
}

/// Whether a file has the name of a record, or of one that was never finished.
fn is_ours(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let is_record = name.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-') && name.contains(&b'-');
    is_record || name.starts_with(TEMP_PREFIX.as_bytes())
}

/// Removes the oldest records where there are too many.
fn prune(dir: &dyn Backend) {
    let Ok(names) = dir.names() else { return };
    let ours: Vec<OsString> = names.into_iter().filter(|name| is_ours(name)).collect();
    let Some(surplus) = ours.len().checked_sub(MOST).filter(|surplus| *surplus > 0) else { return };
    let mut dated: Vec<_> = ours.into_iter().filter_map(|name| Some((dir.stat(&name).ok()?, name))).collect();
    dated.sort_by_key(|(stat, _)| stat.mtime);
    for (stat, name) in dated.into_iter().take(surplus) {
        if let Err(error) = dir.remove_file(&name, &stat) {
            debug!("{}: cannot remove an old record of times: {}", name.display(), super::in_words(&error));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::format::times::{Gather, Stamp};

    fn identity(ino: u64) -> Identity {
        let at = Stamp::from(SystemTime::UNIX_EPOCH);
        Identity { dev: 1, ino, len: 3, mtime: at, ctime: at, header: 4 }
    }

    fn times() -> Times {
        let mut gather = Gather::new(Stamp::from(SystemTime::UNIX_EPOCH));
        for n in 0..10 {
            gather.push(Some((SystemTime::UNIX_EPOCH + Duration::from_secs(n)).into()));
        }
        gather.finish()
    }

    /// Records below a home that is not there yet, and the path of their directory.
    fn records(dir: &tempfile::TempDir) -> (Records, PathBuf) {
        let home = dir.path().join("a/home");
        (Records::below(&home), home.join("b2fuse/times"))
    }

    #[test]
    fn a_record_is_read_of_the_state_that_it_is_of() {
        let dir = tempfile::tempdir().unwrap();
        let (records, at) = records(&dir);
        assert_eq!(records.read(&identity(2)).unwrap(), None);
        assert!(!dir.path().join("a").exists(), "reading makes nothing");
        records.write(&identity(2), &times()).unwrap();
        records.write(&identity(3), &Times::default()).unwrap();
        assert_eq!(records.read(&identity(2)).unwrap(), Some(times()));
        let others = [
            Identity { len: 4, ..identity(2) },
            Identity { header: 5, ..identity(2) },
            Identity { mtime: SystemTime::now().into(), ..identity(2) },
            Identity { ctime: SystemTime::now().into(), ..identity(2) },
            Identity { dev: 2, ..identity(2) },
        ];
        for other in others {
            assert_eq!(records.read(&other).unwrap(), None);
        }
        std::fs::copy(at.join("1-2"), at.join("1-9")).unwrap();
        assert_eq!(records.read(&identity(9)).unwrap(), None, "of another file");
        records.write(&Identity { len: 4, ..identity(2) }, &times()).unwrap();
        assert_eq!(records.read(&identity(2)).unwrap(), None);
        for (path, mode) in [(at.join("1-2"), 0o600), (at.clone(), 0o700), (at.parent().unwrap().into(), 0o700)] {
            assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, mode);
        }
        assert_eq!(std::fs::read_dir(at).unwrap().count(), 3, "nothing is left over");
    }

    #[test]
    fn what_is_not_ours_is_neither_read_nor_written() {
        let dir = tempfile::tempdir().unwrap();
        let (records, at) = records(&dir);
        records.write(&identity(2), &times()).unwrap();
        // A record that is a link, garbage, long, a directory.
        let kept = dir.path().join("kept");
        std::fs::rename(at.join("1-2"), &kept).unwrap();
        symlink(&kept, at.join("1-2")).unwrap();
        assert!(records.read(&identity(2)).is_err());
        let before = std::fs::read(&kept).unwrap();
        std::fs::remove_file(at.join("1-2")).unwrap();
        std::fs::write(at.join("1-2"), "garbage").unwrap();
        assert!(records.read(&identity(2)).is_err());
        std::fs::File::options().write(true).open(at.join("1-2")).unwrap().set_len(1 << 30).unwrap();
        assert!(records.read(&identity(2)).unwrap_err().to_string().contains("expected at most"));
        std::fs::remove_file(at.join("1-2")).unwrap();
        std::fs::create_dir(at.join("1-2")).unwrap();
        assert!(records.read(&identity(2)).is_err() && records.write(&identity(2), &times()).is_err());
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), 1, "nothing unfinished stays");
        std::fs::remove_dir(at.join("1-2")).unwrap();
        // A link takes no writes: it is replaced.
        symlink(&kept, at.join("1-2")).unwrap();
        records.write(&identity(2), &Times::default()).unwrap();
        assert_eq!(std::fs::read(&kept).unwrap(), before);
        // A directory that others may write, or that is a link.
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(records.read(&identity(2)).is_err() && records.write(&identity(2), &times()).is_err());
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::rename(&at, dir.path().join("moved")).unwrap();
        symlink(dir.path().join("moved"), &at).unwrap();
        assert!(records.read(&identity(2)).is_err() && records.write(&identity(2), &times()).is_err());
    }

    #[test]
    fn the_oldest_records_go() {
        let dir = tempfile::tempdir().unwrap();
        let (records, at) = records(&dir);
        records.write(&identity(0), &times()).unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(1000);
        for n in 0..300u64 {
            let file = std::fs::File::create(at.join(format!("2-{n:x}"))).unwrap();
            file.set_modified(long_ago + Duration::from_secs(n)).unwrap();
        }
        let unfinished = std::fs::File::create(at.join(".b2fuse-1-0.tmp")).unwrap();
        unfinished.set_modified(long_ago - Duration::from_secs(1)).unwrap();
        std::fs::write(at.join("notes"), "somebody's").unwrap();
        records.write(&identity(1), &times()).unwrap();
        let left = |name: &str| at.join(name).exists();
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), MOST + 1);
        assert!(left("notes") && left("1-0") && left("1-1") && left("2-12b"));
        assert!(!left(".b2fuse-1-0.tmp") && !left("2-0") && !left("2-2d"));
        assert_eq!(records.read(&identity(0)).unwrap(), Some(times()));
    }
}
