//! The lock file of a frame, with which processes that use C-Blosc2's locking take turns: `NAME.b2lock` beside a frame in one
//! file, `.b2lock` in the directory of a sparse one.
//!
//! A reader of the frame holds the shared flock(2) lock on it meanwhile, a writer the exclusive one. The 8 bytes at
//! offset 8, a number in native byte order, go up by one with each exclusive lock: who finds another number than at last reads
//! everything again.
//!
//! The file is never cut, and stays when nobody uses the frame any more. Who removes a frame by the library removes it, and the next who
//! locks makes another: so each turn begins with a look at its name.
//!
//! The daemon takes the lock itself ([`Sidecar::to_write`]), or works under the exclusive lock of a client of its mount, to which
//! it has given one on an open file of the client's own ([`Sidecar::open`]). So a client and a process on SOURCE exclude each
//! other.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use super::backend::{Backend, BackendFile, FileStat, Flock};
use super::error::Complain;
use super::local::hidden;
use super::resources::Budget;
use super::source::OpenOptions;
use super::{Result, StoreError};
use crate::store::in_words;

/// What the lock file is called, after the frame's name; in a sparse frame's directory its whole name.
pub const SUFFIX: &str = ".b2lock";
/// How long a turn is waited for where somebody waits for us.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How long a turn is waited for at the end, after which there is no other.
pub const LAST_PATIENCE: Duration = Duration::from_secs(30);

/// Where the count of exclusive locks is.
const COUNT_AT: u64 = 8;
/// Length of the file, in bytes.
const LEN: u64 = 16;
/// Pause between two tries to get a turn.
const PAUSE: Duration = Duration::from_millis(1);

/// The lock file of one frame.
pub struct Sidecar {
    path: PathBuf,
    name: OsString,
    /// Whom a new one belongs to: the owner of this.
    owner: Option<FileStat>,
    read_only: bool,
    place: RwLock<Arc<OpenLockFile>>,
    hold: Mutex<Hold>,
    /// Told when `depth` comes to 0.
    idle: Condvar,
    /// The count as of which the store knows what is in SOURCE.
    seen: AtomicU64,
    /// How often SOURCE was read again.
    reloads: AtomicU64,
    /// What clients' locks may take of the mount's descriptors.
    locks: Arc<Budget>,
}

/// An open file for the locks of one client.
pub struct LockFile {
    file: Box<dyn BackendFile>,
    locks: Arc<Budget>,
}

impl Deref for LockFile {
    type Target = dyn BackendFile;

    fn deref(&self) -> &Self::Target {
        &*self.file
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        self.locks.give(1);
    }
}

/// Where the lock file is.
struct OpenLockFile {
    dir: Arc<dyn Backend>,
    writable: bool,
    /// What it was when it was opened.
    stat: FileStat,
    /// The daemon's own open file.
    file: Box<dyn BackendFile>,
    /// Its directory was removed, so no other process can find or make the lock file. `file` has no name then.
    is_orphan: bool,
}

/// Who has the lock, as far as that is within this process. No other lock is taken under this one.
#[derive(Default)]
struct Hold {
    /// Turns under way.
    depth: u32,
    /// The daemon's own lock that they are under, and the file that it is on; `None` if it is a client's.
    own: Option<(Flock, Arc<OpenLockFile>)>,
    /// A client of the mount has the exclusive lock.
    client: bool,
    /// Something was committed under it.
    used: bool,
}

/// Others wait, or read only, while this is held. Turns of one process do not exclude each other.
#[must_use]
pub struct FrameLock<'a>(&'a Sidecar);

impl Sidecar {
    /// Opens the lock file of that name, or makes it. A new one belongs to the owner of `frame`, and whoever may write the frame may
    /// write it.
    ///
    /// # Errors
    /// What the system refuses. For a store that only reads, a lock file that may only be read is good enough.
    pub(super) fn new(
        dir: Arc<dyn Backend>,
        name: &OsStr,
        path: PathBuf,
        options: &OpenOptions,
        frame: Option<&FileStat>,
    ) -> Result<Self> {
        let is_spared = || options.spare_lock_file && dir.stat(name).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        let place = match is_spared() {
            true => OpenLockFile::nowhere(dir).map_err(path.io("open the lock file"))?,
            false => Self::open_in(dir, name, &path, options.read_only, frame)?,
        };
        let (hold, idle) = (Mutex::default(), Condvar::new());
        let (seen, reloads) = (AtomicU64::new(0), AtomicU64::new(0));
        let (name, read_only, place) = (name.to_owned(), options.read_only, RwLock::new(Arc::new(place)));
        let locks = Arc::clone(&options.resources.locks);
        Ok(Sidecar { path, name, owner: frame.copied(), read_only, place, hold, idle, seen, reloads, locks })
    }

    fn open_in(
        dir: Arc<dyn Backend>,
        name: &OsStr,
        path: &PathBuf,
        read_only: bool,
        frame: Option<&FileStat>,
    ) -> Result<OpenLockFile> {
        let create = || -> io::Result<Box<dyn BackendFile>> {
            let file = dir.create(name, if frame.is_some() { 0o600 } else { 0o666 })?;
            if let Some(frame) = frame {
                // Where that is not allowed, the file stays the daemon's.
                let _ = file.set_owner(frame);
                file.set_mode(frame.mode & 0o666);
            }
            Ok(file)
        };
        let made = || match dir.open(name, true) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match create() {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => dir.open(name, true),
                made => made,
            },
            opened => opened,
        };
        let (file, writable) = match made() {
            Ok(file) => (file, true),
            Err(_) if read_only => (dir.open(name, false).map_err(path.io("open the lock file"))?, false),
            Err(error) => return Err(path.io("open the lock file")(error)),
        };
        let stat = checked(&*file, path)?;
        if writable && stat.len < LEN {
            // Lengthening takes nothing from anyone who is writing the count just now.
            file.set_len(LEN).map_err(path.io("write the lock file"))?;
        }
        Ok(OpenLockFile { dir, writable, stat, file, is_orphan: false })
    }

    /// The lock file that has the name now: who has one open that was removed has one that nobody asks for any more. Where there is none
    /// it is made, if `make` says so; without one there is nobody to be kept out. If its directory was removed, turns within this process
    /// are taken by a file without a name.
    fn current(&self, make: bool) -> Result<Arc<OpenLockFile>> {
        let place = self.place();
        match place.dir.stat(&self.name) {
            _ if place.is_orphan => return Ok(place),
            Ok(now) if now.same_file(&place.stat) => return Ok(place),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && make => {}
            Err(_) => return Ok(place),
        }
        let opened = match Self::open_in(Arc::clone(&place.dir), &self.name, &self.path, self.read_only, self.owner.as_ref()) {
            Err(_) if place.is_dir_removed() => {
                let orphan = OpenLockFile::nowhere(Arc::clone(&place.dir)).map_err(self.path.io("open the lock file"))?;
                *self.place.write() = Arc::new(OpenLockFile { is_orphan: true, ..orphan });
                self.in_step(self.count()?);
                return Ok(self.place());
            }
            opened => opened?,
        };
        *self.place.write() = Arc::new(opened);
        // Whoever has had a turn by it has not been heard of.
        self.in_step(self.count()?.wrapping_sub(1));
        Ok(self.place())
    }

    /// Makes the lock file, if it was removed.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn make(&self) -> Result<()> {
        self.current(true).map(drop)
    }

    fn place(&self) -> Arc<OpenLockFile> {
        Arc::clone(&self.place.read())
    }

    /// SOURCE is in another directory from now on, as its lock file is: those who have one open have one that nobody asks for any more.
    pub(super) fn move_to(&self, dir: Arc<dyn Backend>, frame: &FileStat) -> Result<()> {
        let place = Self::open_in(dir, &self.name, &self.path, self.read_only, Some(frame))?;
        *self.place.write() = Arc::new(place);
        self.in_step(self.count()?);
        Ok(())
    }

    /// For messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lock file's attributes.
    ///
    /// # Errors
    /// What the system refuses, as with all that follow.
    pub fn stat(&self) -> Result<FileStat> {
        self.place().file.stat().map_err(self.path.io("stat the lock file"))
    }

    /// The value of the attribute that holds the lock file's access list, if it has one.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn access_list(&self) -> Result<Option<Vec<u8>>> {
        self.place().file.access_list().map_err(self.path.io("read the access list of the lock file"))
    }

    /// An open file of its own, for the locks of one client.
    ///
    /// # Errors
    /// ENOLCK if clients have as many locks as they may; what the system refuses.
    pub fn open(&self) -> Result<LockFile> {
        let place = self.current(true)?;
        self.lock_file(|| place.file.reopen(place.writable))
    }

    /// Whether an open file of a client is the lock file that others find by its name.
    pub fn is_lock_file(&self, file: &LockFile) -> bool {
        let place = self.place();
        file.stat().is_ok_and(|stat| stat.same_file(&place.stat)) && place.has_name(&self.name)
    }

    /// A file without a name, beside the lock file, for locks that only this process knows.
    ///
    /// # Errors
    /// As [`Sidecar::open`].
    pub fn unnamed(&self) -> Result<LockFile> {
        self.lock_file(|| self.place().dir.create_unnamed())
    }

    /// The same file, opened anew: two locks on one open file would be one.
    ///
    /// # Errors
    /// As [`Sidecar::open`].
    pub fn again(&self, file: &LockFile) -> Result<LockFile> {
        self.lock_file(|| file.reopen(false))
    }

    fn lock_file(&self, open: impl FnOnce() -> io::Result<Box<dyn BackendFile>>) -> Result<LockFile> {
        let failed = self.path.io("lock");
        if !self.locks.take(1) {
            return Err(failed(io::Error::from_raw_os_error(libc::ENOLCK)));
        }
        let opened = open().inspect_err(|_| self.locks.give(1));
        Ok(LockFile { file: opened.map_err(failed)?, locks: Arc::clone(&self.locks) })
    }

    /// Reads its bytes as they are now.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.place().file.read_at(buf, offset).map_err(self.path.io("read the lock file"))
    }

    /// Writes to it what a client writes: the count, and what else the library may keep in its few bytes.
    ///
    /// # Errors
    /// What the system refuses; EFBIG behind the few bytes that it has.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > LEN) {
            return Err(self.path.io("write the lock file")(io::Error::from_raw_os_error(libc::EFBIG)));
        }
        self.place().file.write_at(data, offset).map_err(self.path.io("write the lock file"))
    }

    /// Exclusive locks until now.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn count(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        // As the library has it, a file that is too short says 0.
        Ok(if self.read_at(&mut bytes, COUNT_AT)? == bytes.len() { u64::from_ne_bytes(bytes) } else { 0 })
    }

    /// Whether others have had the exclusive lock since SOURCE was read or written, whatever they did.
    pub fn others_had_it(&self, count: u64) -> bool {
        self.seen.load(SeqCst) != count
    }

    /// As of this count the store knows what is in SOURCE.
    pub fn in_step(&self, count: u64) {
        self.seen.store(count, SeqCst);
    }

    /// SOURCE has been read again; to be called before [`Sidecar::in_step`].
    pub fn reloaded(&self) {
        self.reloads.fetch_add(1, SeqCst);
    }

    /// How often SOURCE has been read again.
    pub fn reloads(&self) -> u64 {
        self.reloads.load(SeqCst)
    }

    /// The daemon's turn to change SOURCE, as part of one that it has, or under the lock of a client; `None` if others have
    /// theirs.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn to_write(&self) -> Result<Option<FrameLock<'_>>> {
        let mut hold = self.hold.lock();
        if hold.depth == 0 && !hold.client {
            let place = self.current(true)?;
            if !place.file.flock(Flock::Exclusive, None).map_err(self.path.io("lock"))? {
                return Ok(None);
            }
            if !place.has_name(&self.name) {
                // Removed by who had the lock before: the next try finds another.
                let _ = place.file.unlock();
                return Ok(None);
            }
            let bumped = self.count().and_then(|count| {
                self.write_at(&count.wrapping_add(1).to_ne_bytes(), COUNT_AT)?;
                // Who was in step stays so: nobody else writes now.
                let _ = self.seen.compare_exchange(count, count.wrapping_add(1), SeqCst, SeqCst);
                Ok(())
            });
            if let Err(error) = bumped {
                let _ = place.file.unlock();
                return Err(error);
            }
            hold.own = Some((Flock::Exclusive, place));
        }
        if matches!(hold.own, Some((Flock::Shared, _))) {
            return Ok(None);
        }
        hold.depth += 1;
        Ok(Some(FrameLock(self)))
    }

    /// A turn to read SOURCE, as part of one that the daemon has; `None` if others are changing it.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn to_read(&self) -> Result<Option<FrameLock<'_>>> {
        let mut hold = self.hold.lock();
        if hold.depth == 0 && !hold.client {
            let place = self.current(false)?;
            if !place.file.flock(Flock::Shared, None).map_err(self.path.io("lock"))? {
                return Ok(None);
            }
            hold.own = Some((Flock::Shared, place));
        }
        hold.depth += 1;
        Ok(Some(FrameLock(self)))
    }

    /// Waits for a turn to write.
    ///
    /// # Errors
    /// EAGAIN if others do not give theirs back.
    pub fn wait_to_write(&self, patience: Duration) -> Result<FrameLock<'_>> {
        self.wait(patience, || self.to_write())
    }

    /// Waits for a turn to read.
    ///
    /// # Errors
    /// As [`Sidecar::wait_to_write`].
    pub fn wait_to_read(&self, patience: Duration) -> Result<FrameLock<'_>> {
        self.wait(patience, || self.to_read())
    }

    fn wait<'a>(&self, patience: Duration, turn: impl Fn() -> Result<Option<FrameLock<'a>>>) -> Result<FrameLock<'a>> {
        let until = Instant::now() + patience;
        loop {
            if let Some(turn) = turn()? {
                return Ok(turn);
            }
            if Instant::now() >= until {
                let source = io::Error::from_raw_os_error(libc::EAGAIN);
                return Err(StoreError::Io { path: self.path.clone(), action: "get the lock, which others hold", source });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// A client has been given the exclusive lock.
    pub fn client_has_it(&self) {
        self.hold.lock().client = true;
    }

    /// A client is about to give back the exclusive lock that it got when the count was `before`: returns when nothing is done
    /// under it any more, and sees to it that what was is counted, should the client not have done so.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn client_leaves(&self, before: u64) -> Result<()> {
        let mut hold = self.hold.lock();
        while hold.depth > 0 {
            self.idle.wait(&mut hold);
        }
        hold.client = false;
        if std::mem::take(&mut hold.used) && self.count()? == before {
            self.write_at(&before.wrapping_add(1).to_ne_bytes(), COUNT_AT)?;
        }
        Ok(())
    }

    /// Something was committed; in a turn of the daemon's own, what is in SOURCE is what the store knows.
    pub(super) fn committed(&self) -> Result<()> {
        let mut hold = self.hold.lock();
        if hold.own.is_some() {
            self.in_step(self.count()?);
        }
        hold.used |= hold.client;
        Ok(())
    }

    /// Whether a client of the mount has the exclusive lock, so that nobody need be waited for.
    pub fn is_clients(&self) -> bool {
        self.hold.lock().client
    }
}

impl OpenLockFile {
    /// In place of one that is not there: until there is one, there is nobody to be kept out.
    fn nowhere(dir: Arc<dyn Backend>) -> io::Result<Self> {
        let file: Box<dyn BackendFile> = Box::new(hidden()?);
        Ok(OpenLockFile { dir, writable: true, stat: file.stat()?, file, is_orphan: false })
    }

    /// Whether its directory was removed. Such a directory gets neither a name nor a file again.
    fn is_dir_removed(&self) -> bool {
        self.dir.itself().and_then(|dir| dir.stat()).is_ok_and(|stat| stat.links == 0)
    }

    /// Whether it is still what its name stands for, as far as that can be told.
    fn has_name(&self, name: &OsStr) -> bool {
        match self.dir.stat(name) {
            _ if self.is_orphan => true,
            Ok(now) => now.same_file(&self.stat),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }
}

/// The attributes of a lock file that was opened. It is written in place, so it must not be a file that has another name elsewhere, or that
/// holds anything else.
fn checked(file: &dyn BackendFile, path: &PathBuf) -> Result<FileStat> {
    let stat = file.stat().map_err(path.io("stat the lock file"))?;
    if stat.links > 1 {
        return Err(path.unsupported(format!("has {} names (hard links), and a lock file must have one; remove it", stat.links)));
    }
    let mut first = [0; COUNT_AT as usize];
    let count = file.read_at(&mut first, 0).map_err(path.io("read the lock file"))?;
    if !may_be_lock_file(stat.len, first.get(..count).unwrap_or_default()) {
        return Err(
            path.unsupported(format!("has {} bytes and is not a lock file, but has the name of one; rename it", stat.len))
        );
    }
    Ok(stat)
}

/// Whether a file of that length that begins so holds nothing but a count.
#[must_use]
pub fn may_be_lock_file(len: u64, first: &[u8]) -> bool {
    len <= LEN && first.iter().take(COUNT_AT as usize).all(|byte| *byte == 0)
}

impl Drop for FrameLock<'_> {
    fn drop(&mut self) {
        let mut hold = self.0.hold.lock();
        hold.depth -= 1;
        if hold.depth == 0 {
            if let Some((_, place)) = hold.own.take()
                && let Err(error) = place.file.unlock()
            {
                log::error!("{}: cannot unlock: {}", self.0.path.display(), in_words(&error));
            }
            self.0.idle.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::local::FileBackend;
    use super::*;

    #[test]
    fn a_lock_file_that_was_removed_and_made_again_is_the_one_that_turns_are_taken_by() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.b2lock");
        let one = sidecar(dir.path());
        one.in_step(0);
        std::fs::remove_file(&path).unwrap();
        drop(one.to_read().unwrap().unwrap());
        assert!(!path.exists(), "who reads needs none");
        let other = sidecar(dir.path());
        let turn = other.to_write().unwrap().unwrap();
        assert!(one.to_read().unwrap().is_none() && one.to_write().unwrap().is_none());
        drop(turn);
        drop(one.to_read().unwrap().unwrap());
        assert!(one.others_had_it(one.count().unwrap()));
        std::fs::remove_file(&path).unwrap();
        let client = one.open().unwrap();
        assert!(client.flock(Flock::Exclusive, None).unwrap());
        assert!(other.to_read().unwrap().is_none(), "made again for the client");
    }

    #[test]
    fn turns_are_taken_in_a_directory_that_was_removed() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("frame");
        std::fs::create_dir(&inside).unwrap();
        let sidecar = sidecar(&inside);
        std::fs::remove_dir_all(&inside).unwrap();
        for _ in 0..2 {
            drop(sidecar.to_write().unwrap().unwrap());
            drop(sidecar.to_read().unwrap().unwrap());
        }
        assert!(!sidecar.others_had_it(sidecar.count().unwrap()), "no other process can have had a turn");
        let (one, other) = (sidecar.open().unwrap(), sidecar.open().unwrap());
        assert!(sidecar.is_lock_file(&one) && one.flock(Flock::Exclusive, None).unwrap());
        assert!(sidecar.to_write().unwrap().is_none(), "a client has the lock");
        assert!(!other.flock(Flock::Exclusive, None).unwrap(), "clients of the mount exclude each other");
        one.unlock().unwrap();
        drop(sidecar.to_write().unwrap().unwrap());
        assert!(!inside.exists());
    }

    #[test]
    fn a_lock_file_that_is_spared_is_made_for_who_writes() {
        let dir = tempfile::tempdir().unwrap();
        let backend = Arc::new(FileBackend::open(dir.path()).unwrap());
        let (path, options) = (dir.path().join("f.b2lock"), OpenOptions { spare_lock_file: true, ..OpenOptions::default() });
        let spared = || Sidecar::new(backend.clone(), OsStr::new("f.b2lock"), path.clone(), &options, None).unwrap();
        let (one, two) = (spared(), spared());
        drop(one.to_read().unwrap().unwrap());
        assert!(!path.exists());
        let turn = one.to_write().unwrap().unwrap();
        assert!(two.to_read().unwrap().is_none() && two.to_write().unwrap().is_none());
        drop(turn);
        drop(two.to_read().unwrap().unwrap());
        assert!(two.others_had_it(two.count().unwrap()));
        assert!(one.to_read().unwrap().is_some());
    }

    #[test]
    fn a_file_that_holds_something_else_is_not_taken_for_a_lock_file() {
        let dir = tempfile::tempdir().unwrap();
        for content in [&b"hello"[..], &[0; 17], b"12345678\0\0\0\0\0\0\0\0"] {
            std::fs::write(dir.path().join("f.b2lock"), content).unwrap();
            let backend = Arc::new(FileBackend::open(dir.path()).unwrap());
            let opened =
                Sidecar::new(backend, OsStr::new("f.b2lock"), dir.path().join("f.b2lock"), &OpenOptions::default(), None);
            assert!(matches!(opened.err(), Some(StoreError::Unsupported { .. })));
            assert_eq!(std::fs::read(dir.path().join("f.b2lock")).unwrap(), content);
        }
    }

    fn sidecar(dir: &Path) -> Sidecar {
        let backend = Arc::new(FileBackend::open(dir).unwrap());
        Sidecar::new(backend, OsStr::new("f.b2lock"), dir.join("f.b2lock"), &OpenOptions::default(), None).unwrap()
    }

    #[test]
    fn turns_of_two_daemons_exclude_each_other_and_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (sidecar(dir.path()), sidecar(dir.path()));
        let turn = one.to_write().unwrap().unwrap();
        let nested = one.to_write().unwrap().unwrap();
        assert!(other.to_write().unwrap().is_none() && other.to_read().unwrap().is_none());
        drop(turn);
        assert!(other.to_read().unwrap().is_none(), "a part of the turn is under way");
        assert!(!one.others_had_it(1) && other.others_had_it(1));
        drop(nested);
        let reading = other.to_read().unwrap().unwrap();
        assert!(one.to_read().unwrap().is_some() && one.to_write().unwrap().is_none());
        assert!(other.to_write().unwrap().is_none(), "a turn to read is none to write");
        drop(reading);
        assert_eq!(std::fs::read(dir.path().join("f.b2lock")).unwrap()[8..], 1u64.to_ne_bytes());
    }

    #[test]
    fn a_turn_under_a_clients_lock_neither_locks_nor_counts() {
        let dir = tempfile::tempdir().unwrap();
        let sidecar = sidecar(dir.path());
        let client = sidecar.open().unwrap();
        assert!(client.flock(Flock::Exclusive, None).unwrap());
        assert!(sidecar.to_write().unwrap().is_none());
        sidecar.client_has_it();
        drop(sidecar.to_write().unwrap().unwrap());
        assert_eq!(sidecar.count().unwrap(), 0);
        sidecar.committed().unwrap();
        sidecar.client_leaves(0).unwrap();
        assert_eq!(sidecar.count().unwrap(), 1, "the client did not count what was done under its lock");
        assert!(sidecar.to_write().unwrap().is_none(), "given back only with the client's own");
        client.unlock().unwrap();
        assert!(sidecar.to_write().unwrap().is_some());
    }
}
