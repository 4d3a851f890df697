//! What stores of both layouts share: SOURCE by its names, whether it may be written to, and how a new one is made.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use log::warn;
use parking_lot::{Mutex, RwLock};

use super::backend::{Backend, BackendFile, FileStat, PIECE, read_exact_at};
use super::checksum;
use super::error::Complain;
use super::location::Location;
use super::mark::LockHolder;
use super::{Budgets, ReadAt, Resources, Result, SourceStat, StoreError};
use crate::format;
use crate::store::in_words;

/// Kept before the first chunk of a new file, where nothing else is asked for.
pub(super) const HEADER_ROOM: u64 = 1024;

/// The longest tick of the kernel's clock, and some.
pub(super) const TICK: Duration = Duration::from_millis(20);
/// That of file systems that keep no more than seconds.
const COARSE_TICK: Duration = Duration::from_millis(2100);

/// How often opening begins anew, as others exchange or change the frame meanwhile.
pub(super) const ATTEMPTS: usize = 10;
/// Why it is given up.
pub(super) const KEPT_CHANGING: &str = "it kept changing while it was being opened";

/// How to open a store.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Nothing will be written; no lock is taken.
    pub read_only: bool,
    /// What the store shares with all that are opened with the same; by default, with none.
    pub resources: Arc<Resources>,
    /// What has the name of a frame to be created is replaced by it, whole, at its first commit. Without, it is an error.
    pub replace: bool,
    /// Of a frame in one file that is to be created: bytes before the first chunk, for a header that may grow. A header that
    /// will not grow needs no more than its own length; then the frame has no hole.
    pub header_room: u64,
    /// Take turns with other processes by the frame's lock file, as C-Blosc2 does where locking is asked for.
    pub locking: bool,
    /// With `locking`: a lock file that is not there is made for the first who writes, and not to be read.
    pub spare_lock_file: bool,
    /// Keep copies of what is staged until it is committed, as far as a bound of memory allows: others may write over it in SOURCE.
    pub hold_staged: bool,
    /// In a store that only reads: chunk and index files may be symbolic links, where
    /// [`super::local::FileBackend::following_links_inside`] follows them.
    pub follow_links: bool,
    /// In a store that only reads: chunk files that are missing or damaged keep nobody from the others. To read one is an error.
    pub skip_damaged: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            resources: Resources::new(Budgets::default()),
            replace: false,
            header_room: HEADER_ROOM,
            locking: false,
            spare_lock_file: false,
            hold_staged: false,
            follow_links: false,
            skip_damaged: false,
        }
    }
}

/// Owner, permission bits and extended attributes for a new frame: those of open files. They are set by descriptor, before the frame
/// has its name. A directory may be like a file, and a file like a directory: who may read the one may search the other.
#[derive(Clone)]
pub struct Like {
    /// For the frame's file, or its directory.
    pub frame: Arc<dyn BackendFile>,
    /// For the index file and the chunk files of a sparse frame.
    pub index: Option<Arc<dyn BackendFile>>,
}

impl Like {
    /// For the files of a frame.
    pub(super) fn files(&self) -> &Arc<dyn BackendFile> {
        self.index.as_ref().unwrap_or(&self.frame)
    }
}

/// What others have done to SOURCE since the store last read or wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Others {
    /// Nothing that can be seen.
    Nothing,
    /// Its owner, mode or times are others; its content is the same.
    Attributes,
    /// A part of it may be another that cannot be seen to be the same, in words: [`super::SourceStore::reload`] reads it. Nothing keeps
    /// from committing.
    Touched(String),
    /// It is another state, in words: [`super::SourceStore::reload`] reads it.
    Changed(String),
    /// Nothing that could be a frame has its name, in words. What the store has open goes on being read.
    Gone(String),
}

impl Others {
    /// Why nothing can be committed over it, in words.
    pub(super) fn hindrance(self) -> Option<String> {
        match self {
            Others::Nothing | Others::Attributes | Others::Touched(_) => None,
            Others::Changed(reason) | Others::Gone(reason) => Some(reason),
        }
    }
}

/// What is to be known of a frame that does not exist yet.
#[derive(Clone, Default)]
pub struct NewFrame {
    /// Without, a new frame belongs to the user of this process, and the umask says who may use it.
    pub like: Option<Like>,
    /// Not even its owner may write to its file, in the end.
    pub write_protected: bool,
    /// With [`OpenOptions::replace`]: the only file or directory that may be replaced.
    pub replaced: Option<FileStat>,
    /// It may have been begun before.
    pub resumed: Option<Arc<Unfinished>>,
}

/// What there is of a new frame, under a name that the next process finds: it goes on with that.
#[derive(Debug)]
pub struct Unfinished {
    /// The name, beside SOURCE.
    pub name: OsString,
    /// Chunks that are there.
    pub chunks: u64,
    /// Bytes of the room that they have in a contiguous frame.
    pub bytes: u64,
    /// It is left there if no frame is made of it.
    pub leave: AtomicBool,
}

impl Unfinished {
    /// Whether a file or directory in that directory is ours, so that it can be gone on with: nobody else can have given it the name.
    pub(super) fn is_ours(dir: &dyn Backend, found: &FileStat) -> bool {
        let is_alone = found.is_dir() || found.links == 1;
        let around = dir.itself().and_then(|dir| dir.stat());
        is_alone && found.belongs_to_this_process() && around.is_ok_and(|around| !around.lets_others_rename())
    }
}

/// Whether a file has bytes with that checksum at an offset.
pub(super) fn has(file: &dyn BackendFile, offset: u64, len: u64, sum: u64) -> bool {
    let mut digest = checksum::running();
    let mut buf = vec![0; usize::try_from(len).unwrap_or(PIECE).min(PIECE)];
    let mut done = 0;
    while done < len {
        let piece = buf.len().min(usize::try_from(len - done).unwrap_or(PIECE));
        let Some(piece) = buf.get_mut(..piece) else { return false };
        if read_exact_at(file, piece, offset + done).is_err() {
            return false;
        }
        digest.update(piece);
        done += piece.len() as u64;
    }
    digest.finalize() == sum
}

impl NewFrame {
    /// The permission bits with which a file of the frame is made, before the umask cuts them.
    pub(super) fn file_mode(&self) -> u32 {
        match (&self.like, self.write_protected) {
            (Some(_), _) => 0o600,
            (None, true) => 0o466,
            (None, false) => 0o666,
        }
    }
}

/// A place of SOURCE.
pub(super) struct Place {
    pub(super) location: Location,
    /// The directory as a file, if it can be opened as one.
    pub(super) around: Option<Arc<dyn BackendFile>>,
}

impl Place {
    fn new(location: &Location) -> Arc<Self> {
        let around = location.backend().itself().ok();
        Arc::new(Place { location: location.clone(), around })
    }

    pub(super) fn name(&self) -> &OsStr {
        self.location.name()
    }

    pub(super) fn backend(&self) -> &Arc<dyn Backend> {
        self.location.backend()
    }
}

/// SOURCE by its names.
pub(super) struct Source {
    /// Where it is. It is exchanged when SOURCE is moved by who has it open, under the lock of the store's commits. A leaf lock.
    place: RwLock<Arc<Place>>,
    pub(super) read_only: bool,
    /// See [`OpenOptions::skip_damaged`].
    pub(super) skip_damaged: bool,
    /// What has SOURCE's name is replaced, if SOURCE is to be created.
    pub(super) replace: bool,
    /// How SOURCE is made, if it is to be created.
    pub(super) new: NewFrame,
    /// Why this store, which was opened for writing, does not write to what has SOURCE's name now.
    denied: Mutex<Option<Denied>>,
    /// The first failure after which what is on disk is not known any more.
    poison: OnceLock<String>,
}

impl Complain for Source {
    fn called(&self) -> PathBuf {
        self.place().location.path().to_owned()
    }
}

/// SOURCE as it is open, and locked if it is written to.
pub(super) struct Handle {
    /// The frame's file, or its directory as a file.
    pub(super) file: Arc<dyn BackendFile>,
    /// The directory.
    pub(super) dir: Option<Arc<dyn Backend>>,
    pub(super) stat: FileStat,
}

impl Source {
    pub(super) fn new(location: &Location, options: &OpenOptions, new: NewFrame) -> Self {
        Source {
            place: RwLock::new(Place::new(location)),
            read_only: options.read_only,
            skip_damaged: options.skip_damaged && options.read_only,
            replace: options.replace,
            new,
            denied: Mutex::default(),
            poison: OnceLock::new(),
        }
    }

    /// One that exists.
    pub(super) fn existing(path: &Path, options: &OpenOptions) -> Result<Self> {
        let location = match options.follow_links && options.read_only {
            true => Location::following_links(path)?,
            false => Location::existing(path)?,
        };
        Ok(Self::new(&location, options, NewFrame::default()))
    }

    /// One that is to come into being.
    pub(super) fn to_be(path: &Path, options: &OpenOptions) -> Result<Self> {
        Ok(Self::new(&Location::to_be(path)?, options, NewFrame::default()))
    }

    /// Where it is just now.
    pub(super) fn place(&self) -> Arc<Place> {
        Arc::clone(&self.place.read())
    }

    /// The directory that it is in.
    pub(super) fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(self.place().backend())
    }

    /// It was moved.
    pub(super) fn is_at(&self, location: &Location) {
        *self.place.write() = Place::new(location);
    }

    // ---- errors ----

    /// What has SOURCE's name, if anything has.
    pub(super) fn stat(&self) -> Result<Option<FileStat>> {
        let place = self.place();
        match place.backend().stat(place.name()) {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.io("stat")(error)),
        }
    }

    /// What has SOURCE's name, if it can be a frame by its kind; or why not.
    pub(super) fn frame_at(
        &self,
        at_path: Option<FileStat>,
        is_kind: fn(&FileStat) -> bool,
    ) -> std::result::Result<FileStat, String> {
        match at_path {
            None => Err("no file or directory has its name any more".to_owned()),
            Some(stat) if is_kind(&stat) => Ok(stat),
            Some(stat) if stat.is_link() => Err("a symbolic link has its name now".to_owned()),
            Some(stat) if stat.is_dir() => Err("a directory has its name now".to_owned()),
            Some(stat) if stat.is_file() => Err("a file has its name now".to_owned()),
            Some(_) => Err("something that is no frame has its name now".to_owned()),
        }
    }

    /// Whether what has got SOURCE's name may be followed: see [`Source::check_successor`].
    pub(super) fn check_follower(&self, before: &FileStat, now: &FileStat) -> Result<()> {
        match self.place().around.as_ref().and_then(|around| around.stat().ok()) {
            Some(around) => self.check_successor(&around, before, now),
            None => Ok(()),
        }
    }

    /// Whether what has got the name of another in a directory may be shown in its place: not a file of somebody else's that was left in
    /// a directory whose owner could have given it the name, and that not all may read who read the one before; nor one that is
    /// somebody else's under another name as well.
    pub(super) fn check_successor(&self, dir: &FileStat, before: &FileStat, now: &FileStat) -> Result<()> {
        let me = rustix::process::geteuid().as_raw();
        if !may_be_shown(me, dir, before, now) {
            let FileStat { uid, .. } = *now;
            return Err(self.stale(format!("what has its name now belongs to user {uid}, not to user {}", before.uid)));
        }
        if now.is_file() && now.links > 1 && now.uid != dir.uid && !only_trusted_write(me, dir) {
            let FileStat { uid, links, .. } = *now;
            return Err(self.stale(format!("what has its name now belongs to user {uid}, and has {links} names")));
        }
        Ok(())
    }

    /// Something in SOURCE's directory, to complain of.
    pub(super) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.called().join(name)
    }

    /// A chunk's length, if it can be one's.
    pub(super) fn chunk_len(&self, chunk: &dyn ReadAt) -> Result<u32> {
        u32::try_from(chunk.len()).ok().filter(|len| (1..=i32::MAX as u32).contains(len)).ok_or_else(|| {
            let expected = format!("1 to {}", i32::MAX);
            self.format(format::Error::new("chunk: length", 0, chunk.len(), expected))
        })
    }

    /// Refuses everything that writes, after a failure and in a read-only store.
    pub(super) fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(self.io("write")(io::Error::from_raw_os_error(libc::EROFS)));
        }
        if let Some(denied) = *self.denied.lock() {
            return Err(denied.error(self));
        }
        match self.poison.get() {
            Some(reason) => Err(StoreError::Poisoned { path: self.called(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Why nothing is written, for as long as that is so.
    pub(super) fn set_denied(&self, denied: Option<Denied>) {
        let before = std::mem::replace(&mut *self.denied.lock(), denied);
        if let Some(denied) = denied.filter(|denied| before != Some(*denied)) {
            warn!("{}; it is shown read-only", denied.error(self));
        }
    }

    /// Whether there is a reason not to write.
    pub(super) fn is_denied(&self) -> bool {
        self.denied.lock().is_some()
    }

    /// Takes note of a failure after which what is on disk is not known any more; hands it through.
    pub(super) fn poisoned_by(&self, error: StoreError) -> StoreError {
        let reason = match &error {
            StoreError::Io { action, source, .. } => format!("cannot {action}: {}", in_words(source)),
            other => other.to_string(),
        };
        if self.poison.set(reason).is_ok() {
            warn!("{error}; the mount writes nothing more");
        }
        error
    }

    /// Whether nothing more is written.
    pub(super) fn is_poisoned(&self) -> bool {
        self.poison.get().is_some()
    }

    /// Ends all writing.
    pub(super) fn seal(&self) {
        let _ = self.poison.set("it is closed".to_owned());
    }
}

/// Why a SOURCE that took the place of another is not written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denied {
    /// Another mount has its lock.
    Busy(LockHolder),
    /// The system refuses, with this errno.
    Refused(i32),
}

impl Denied {
    /// What an error says of who may write, if it does.
    pub(super) fn by(error: &StoreError) -> Option<Self> {
        const REFUSALS: [i32; 4] = [libc::EACCES, libc::EPERM, libc::EROFS, libc::ETXTBSY];
        match error {
            StoreError::Busy { holder, .. } => Some(Denied::Busy(*holder)),
            StoreError::Io { source, .. } => source.raw_os_error().filter(|errno| REFUSALS.contains(errno)).map(Denied::Refused),
            _ => None,
        }
    }

    fn error(self, source: &Source) -> StoreError {
        match self {
            Denied::Busy(holder) => StoreError::Busy { path: source.called(), holder },
            Denied::Refused(errno) => source.io("open for writing")(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Bytes that could not be written.
pub(super) struct WriteFailed {
    pub(super) error: io::Error,
    /// It is not the file that failed, but what the bytes come from.
    pub(super) reading: bool,
}

/// Writes `len` bytes from anywhere to a file.
#[expect(clippy::indexing_slicing, reason = "no more is counted than there is in the buffer")]
pub(super) fn write_from(
    bytes: &dyn ReadAt,
    len: u64,
    file: &dyn BackendFile,
    offset: u64,
) -> std::result::Result<(), WriteFailed> {
    let writing = |error| WriteFailed { error, reading: false };
    if let Some(bytes) = bytes.as_slice() {
        return file.write_at(bytes, offset).map_err(writing);
    }
    let mut buf = vec![0; usize::try_from(len).unwrap_or(PIECE).min(PIECE)];
    let mut done = 0;
    while done < len {
        let piece = buf.len().min(usize::try_from(len - done).unwrap_or(PIECE));
        bytes.read_exact_at(&mut buf[..piece], done).map_err(|error| WriteFailed { error, reading: true })?;
        file.write_at(&buf[..piece], offset + done).map_err(writing)?;
        done += piece as u64;
    }
    Ok(())
}

/// What differs between what `stat` said of a file when we last read or wrote it and what it says now, where others must have
/// had their hands in it.
pub(super) fn written_since(seen: &FileStat, now: &FileStat) -> Option<String> {
    if now.len != seen.len {
        return Some(format!("its length was {} and is {}", seen.len, now.len));
    }
    if now.mtime != seen.mtime {
        let ago = SystemTime::now().duration_since(now.mtime).unwrap_or_default();
        return Some(format!("it was written to {:.1} s ago", ago.as_secs_f64()));
    }
    None
}

/// Whether a file is another, or as much as its attributes have changed.
pub(super) fn touched_since(seen: &FileStat, now: &FileStat) -> bool {
    !now.same_file(seen) || now.len != seen.len || now.mtime != seen.mtime || now.ctime != seen.ctime || now.links != seen.links
}

/// For how long the times of a file may stay what they are when it is changed again: as long as the clock that they are taken from
/// stands still.
pub(super) fn coarse_until(stat: &FileStat) -> Option<Instant> {
    let whole = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|time| time.subsec_nanos() == 0);
    let tick = if whole(stat.mtime) && whole(stat.ctime) { COARSE_TICK } else { TICK };
    let now = SystemTime::now();
    let age = now.duration_since(stat.mtime).or_else(|_| stat.mtime.duration_since(now)).ok()?;
    tick.checked_sub(age).filter(|left| !left.is_zero()).map(|left| Instant::now() + left)
}

impl From<FileStat> for SourceStat {
    fn from(stat: FileStat) -> Self {
        SourceStat {
            mode: stat.mode & 0o7777,
            uid: stat.uid,
            gid: stat.gid,
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
            allocated: stat.allocated,
        }
    }
}

/// Whether nobody gives names in a directory but root and the user of this process.
fn only_trusted_write(me: u32, dir: &FileStat) -> bool {
    (dir.uid == 0 || dir.uid == me) && dir.mode & 0o022 == 0
}

/// Whether a file may be shown with owner and mode of `index`, where `dir` is who may write its directory.
pub(super) fn may_be_shown(me: u32, dir: &FileStat, index: &FileStat, file: &FileStat) -> bool {
    let same_group = file.gid == index.gid;
    let readable = |bit: u32| file.mode & bit != 0;
    let by_group = readable(0o004) || (same_group && readable(0o040));
    file.uid == index.uid
        || only_trusted_write(me, dir)
        || (by_group
            && (index.mode & 0o040 == 0 || same_group || readable(0o004))
            && (index.mode & 0o004 == 0 || readable(0o004)))
}
