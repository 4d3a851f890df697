//! Data of remote objects, kept on the local disk from mount to mount: each piece of an object in a file of its own.
//!
//! The directory may be used by several mounts and processes at once, and be killed, cut off or filled at any moment. What is promised:
//!
//! - What [`State::get`] gives is what [`State::put`] was given for the same URL, state, object and piece. Each file has a checksum
//!   over everything, and names what it is a piece of. One that is not as it was written is removed, and then there is none.
//! - Nothing fails because of the cache: what cannot be kept is not kept, and the log says so once.
//! - All files together, each rounded up to 4 KiB, stay within the bound, whoever made them. The least recently used are removed first;
//!   a thread does that, which runs only while there is work.
//! - Nothing is written, read or removed but beneath the directory that was opened; no link is followed there; and names are made of
//!   numbers, so that a URL can do nothing with them. What has another name than the cache's own stays.
//! - Nobody waits for another process: no lock is held while pieces are read and written.
//!
//! What is in the directory, by module:
//!
//! | name | what it is | module |
//! | --- | --- | --- |
//! | `s-STATE/OBJECT-PIECE` | a piece | `piece` |
//! | `s-STATE/.b2fuse-*.tmp` | one that is being written; removed after ten minutes | |
//! | `d-STATE-NUMBER/` | a state that was dropped, until its files are removed | |
//! | `count`, `lock` | how much is kept; held by whoever looks through all | `room`, `sweep` |
//!
//! Nothing is synced: what a power cut damages is seen by its checksum.

mod names;
mod piece;
mod room;
mod sweep;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use log::{debug, warn};
use parking_lot::{Mutex, RwLock};

use super::backend::{Backend, BackendFile};
use super::checksum::checksum;
use super::create::with_temp_name;
use super::in_words;
use super::local::{set_times, system};
use names::{Folder, LOCK, piece_name};
use piece::{MOST_DATA, MOST_KEY, MOST_TAG, Unfit, add_to_key};
use room::{Room, cost};

pub use piece::Piece;

/// What is kept where nothing else is said, in bytes.
pub const DEFAULT_SIZE: u64 = 10 << 30;

/// A file that was used within this time is not marked as used again.
const FRESH: Duration = Duration::from_secs(30);
/// So long nobody looks through everything after a time that came to nothing.
const PAUSE: Duration = Duration::from_secs(1);
/// So often it is tried to get at what says how much is kept.
const TRIES: u32 = 100;

/// A directory with pieces. See the module.
pub struct DiskCache {
    dir: Box<dyn Backend>,
    /// As the user named it, for messages.
    path: PathBuf,
    /// To whom everything in it belongs.
    owner: u32,
    room: Room,
    sweeper: Mutex<Sweeper>,
    /// It has been said that something is not kept.
    warned: AtomicBool,
}

/// Who looks through everything.
#[derive(Default)]
struct Sweeper {
    thread: Option<JoinHandle<()>>,
    not_before: Option<Instant>,
}

impl DiskCache {
    /// Opens the directory, which is made if there is none, with its parents, so that only the user of this process can use it. Of what is
    /// in it at most `most_bytes` are kept, [`DEFAULT_SIZE`] where nothing is said. Reads nothing else, however much there is.
    ///
    /// # Errors
    /// What the system refuses; a link; a directory that belongs to another user, or that its group or others may write.
    pub fn open(dir: &Path, most_bytes: Option<u64>) -> io::Result<Arc<Self>> {
        Self::in_backend(system::private_dir(dir)?, dir, most_bytes)
    }

    /// The same in any directory, of whoever it is. `path` is how messages call it.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn in_backend(dir: Box<dyn Backend>, path: &Path, most_bytes: Option<u64>) -> io::Result<Arc<Self>> {
        Ok(Arc::new(DiskCache {
            owner: dir.itself()?.stat()?.uid,
            dir,
            path: path.to_owned(),
            room: Room::new(most_bytes.unwrap_or(DEFAULT_SIZE)),
            sweeper: Mutex::default(),
            warned: AtomicBool::new(false),
        }))
    }

    /// What is kept of a frame at a URL while it is in one state, which `tag` tells from all others: the ETag of its index or of its
    /// file. The URL has no query and names no user: it stands in the files.
    ///
    /// # Errors
    /// What the system refuses; something else than a directory of ours in the place of the state's; a URL that is longer than 64 KiB.
    pub fn state(self: &Arc<Self>, url: &str, tag: &str) -> io::Result<State> {
        let mut key = Vec::new();
        add_to_key(&mut key, url);
        add_to_key(&mut key, tag);
        if key.len() > MOST_KEY {
            let words = format!("the URL and its tag have {} bytes; expected at most {MOST_KEY}", url.len() + tag.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
        }
        let id = checksum(&key);
        let state = State { cache: Arc::clone(self), id, key, folder: RwLock::default() };
        *state.folder.write() = match self.dir.open_dir(&Folder::State(id).name()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(self.checked(opened?)?),
        };
        Ok(state)
    }

    /// A folder, if nobody else can put anything into it.
    fn checked(&self, folder: Box<dyn Backend>) -> io::Result<Arc<dyn Backend>> {
        let stat = folder.itself()?.stat()?;
        if stat.uid != self.owner || stat.mode & 0o022 != 0 {
            let (uid, mode, owner) = (stat.uid, stat.mode & 0o7777, self.owner);
            let words =
                format!("a folder in it belongs to user {uid} and has the mode {mode:04o}; expected user {owner} and 0700");
            return Err(io::Error::other(words));
        }
        Ok(folder.into())
    }

    /// Has everything looked through, by a thread, unless one is at it.
    fn start_sweep(self: &Arc<Self>) {
        let mut sweeper = self.sweeper.lock();
        let is_busy = sweeper.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        if is_busy || sweeper.not_before.is_some_and(|time| Instant::now() < time) {
            return;
        }
        let cache = Arc::clone(self);
        let started = thread::Builder::new().name("b2fuse-cache".into()).spawn(move || {
            let swept = cache.sweep();
            let done = matches!(swept, Ok(true));
            if let Err(error) = swept {
                cache.complain("be looked through", &error);
            }
            cache.sweeper.lock().not_before = (!done).then(|| Instant::now() + PAUSE);
        });
        match started {
            Ok(thread) => sweeper.thread = Some(thread),
            Err(error) => self.complain("be looked through", &error),
        }
    }

    /// Counts what is kept, and removes what is too much; `false` if it could not be, or if another process is at it.
    fn sweep(&self) -> io::Result<bool> {
        let lock = self.dir.open(LOCK.as_ref(), true).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => self.dir.create(LOCK.as_ref(), 0o600),
            _ => Err(error),
        })?;
        if !lock.try_lock()? {
            return Ok(false);
        }
        // Others have it for microseconds.
        let Some(before) = again(|| self.room.count(&*self.dir))? else { return Ok(false) };
        let mut removed = 0;
        let bytes = loop {
            let mut found = sweep::walk(&*self.dir, self.owner)?;
            if found.bytes <= self.room.high() {
                break found.bytes;
            }
            let freed = found.evict(&*self.dir, self.owner, self.room.low());
            removed += freed;
            if freed == 0 || found.bytes <= self.room.low() {
                break found.bytes;
            }
        };
        debug!("{}: {bytes} bytes are kept, {removed} were removed", self.path.display());
        let is_told = again(|| Ok(self.room.set_right(&*self.dir, bytes, before)?.then_some(())))?.is_some();
        Ok(is_told && bytes <= self.room.high())
    }

    /// Says that something is not kept: once as a warning.
    fn complain(&self, action: &str, error: &io::Error) {
        let (path, error) = (self.path.display(), in_words(error));
        if self.warned.swap(true, Relaxed) {
            debug!("{path}: the cache cannot {action}: {error}");
        } else {
            warn!("{path}: the cache cannot {action}: {error}; what is read may not be kept");
        }
    }
}

/// A folder of the cache: what is kept of a frame while it is in one state.
pub struct State {
    cache: Arc<DiskCache>,
    id: u64,
    /// URL and tag, as all keys begin.
    key: Vec<u8>,
    /// None until there is something to keep.
    folder: RwLock<Option<Arc<dyn Backend>>>,
}

impl fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskCache").field("path", &self.path).finish_non_exhaustive()
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("path", &self.called()).finish_non_exhaustive()
    }
}

impl State {
    /// A piece that was kept, by whatever process.
    pub fn get(&self, object: &str, piece: u64) -> Option<Piece> {
        let folder = self.folder.read().clone()?;
        let (key, name) = self.names(object, piece);
        let file = match folder.open(&name, false) {
            Ok(file) => file,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    debug!("{}: cannot read {}: {}", self.called(), name.display(), in_words(&error));
                }
                return None;
            }
        };
        let stat = file.stat().ok()?;
        match piece::read(&*file, stat.len, &key) {
            Ok(piece) => {
                mark_used(&*file, stat.mtime);
                Some(piece)
            }
            Err(Unfit::Damaged(words)) => {
                debug!("{}: {} is damaged: {words}", self.called(), name.display());
                if folder.remove_file(&name, &stat).is_ok() {
                    self.cache.room.give(cost(stat.len));
                }
                None
            }
            Err(Unfit::Foreign(found)) => {
                // Another object's name may be made of the same number. Another state's pieces do not come here by themselves.
                if !found.starts_with(&self.key) {
                    self.discard("a piece of something else is among its own");
                }
                None
            }
        }
    }

    /// Keeps a piece of an object, which is `total_len` bytes long as a whole and has a tag of its own, or none. What was kept as the same
    /// piece is replaced.
    pub fn put(&self, object: &str, piece: u64, bytes: &[u8], total_len: u64, tag: &str) {
        let (key, name) = self.names(object, piece);
        let len = piece::file_len(&key, tag, bytes);
        let fits =
            key.len() <= MOST_KEY && tag.len() <= MOST_TAG && bytes.len() <= MOST_DATA && cost(len) <= self.cache.room.high();
        if !fits || total_len < bytes.len() as u64 {
            debug!("{}: {} is not kept: {} bytes of {total_len}", self.called(), name.display(), bytes.len());
            return;
        }
        match self.write(&name, &piece::before_data(&key, tag, total_len, bytes), bytes, len) {
            Ok(false) => {}
            Ok(true) => self.cache.start_sweep(),
            Err(error) => self.cache.complain("be written", &error),
        }
    }

    /// Drops everything that is kept of this state, for all processes: for when something about it is doubtful. It loses its name at
    /// once, so that nothing of it is found again if this is killed. What is put from then on is kept.
    pub fn discard(&self, why: &str) {
        debug!("{}: is dropped: {why}", self.called());
        let held = self.folder.write().take();
        let dir = &*self.cache.dir;
        for number in 0..u64::MAX {
            let dropped = Folder::Dropped(self.id, number);
            match dir.rename(&Folder::State(self.id).name(), &dropped.name(), false) {
                Ok(()) => {
                    if let Ok(inside) = dir.open_dir(&dropped.name()) {
                        self.cache.room.give(sweep::clear(dir, dropped, &*inside, self.cache.owner));
                    }
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                Err(error) => {
                    // Its name stays, so at least what is in it goes.
                    debug!("{}: cannot be renamed: {}", self.called(), in_words(&error));
                    if let Some(held) = &held {
                        self.cache.room.give(sweep::clear(dir, Folder::State(self.id), &**held, self.cache.owner));
                    }
                    return;
                }
            }
        }
    }

    /// How messages call it: not by its URL.
    fn called(&self) -> String {
        self.cache.path.join(Folder::State(self.id).name()).display().to_string()
    }

    /// What a piece's file says that it is, and what it is called.
    fn names(&self, object: &str, piece: u64) -> (Vec<u8>, OsString) {
        let mut key = self.key.clone();
        add_to_key(&mut key, object);
        key.extend(piece.to_le_bytes());
        (key, piece_name(checksum(object.as_bytes()), piece))
    }

    /// Writes a piece's file of `len` bytes, if there is room. Answers whether it is time to look through everything.
    fn write(&self, name: &OsStr, head: &[u8], data: &[u8], len: u64) -> io::Result<bool> {
        let room = &self.cache.room;
        room.begin(&*self.cache.dir)?;
        let Begun { folder, temp, file } = self.begin()?;
        let taken = file.set_len(len).and_then(|()| room.take(&*self.cache.dir, cost(len)));
        if !taken.as_ref().is_ok_and(|room| room.taken) {
            let _ = folder.remove(&temp);
            return taken.map(|room| room.sweep);
        }
        let written = file.write_at(head, 0).and_then(|()| file.write_at(data, head.len() as u64)).and_then(|()| {
            // Removed, not replaced: if somebody else has removed it just now, it is taken off already.
            let before = folder.stat(name).ok().filter(|stat| stat.is_file() && folder.remove(name).is_ok());
            room.give(before.map_or(0, |stat| cost(stat.len)));
            folder.rename(&temp, name, true)
        });
        if written.is_err() {
            let _ = folder.remove(&temp);
            room.give(cost(len));
        }
        written.and(taken.map(|room| room.sweep))
    }

    /// Makes a file with a temporary name, in the folder that has the state's name now.
    fn begin(&self) -> io::Result<Begun> {
        let mut again = true;
        loop {
            let held = self.folder.read().clone();
            let folder = held.map_or_else(|| self.make_folder(), Ok)?;
            match with_temp_name(|name| folder.create(name, 0o600)) {
                Ok((temp, file)) => return Ok(Begun { folder, temp, file }),
                // The folder was removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound && again => {
                    again = false;
                    *self.folder.write() = None;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn make_folder(&self) -> io::Result<Arc<dyn Backend>> {
        let (dir, name) = (&self.cache.dir, Folder::State(self.id).name());
        let made = match dir.create_dir(&name, 0o700) {
            // By another thread or process, which may be writing to it already.
            Err(_) if dir.stat(&name).is_ok_and(|stat| stat.is_dir()) => dir.open_dir(&name)?,
            made => made?,
        };
        let made = self.cache.checked(made)?;
        Ok(Arc::clone(self.folder.write().get_or_insert(made)))
    }
}

/// A file that has no name of a piece yet.
struct Begun {
    folder: Arc<dyn Backend>,
    temp: OsString,
    file: Box<dyn BackendFile>,
}

/// Tries until there is something, but not for long.
fn again<T>(mut get: impl FnMut() -> io::Result<Option<T>>) -> io::Result<Option<T>> {
    for _ in 0..TRIES {
        if let Some(got) = get()? {
            return Ok(Some(got));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(None)
}

/// Notes that a file was used now, if it is not known to have been just before.
fn mark_used(file: &dyn BackendFile, used: SystemTime) {
    let now = SystemTime::now();
    if now.duration_since(used).is_ok_and(|age| age < FRESH) {
        return;
    }
    if let Some(fd) = file.fd() {
        let _ = set_times(fd, now, now);
    }
}
