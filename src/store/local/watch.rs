//! Reports changes of frames by others, by inotify(7).
//!
//! Watches are put on what the stores hold open, by way of `/proc/self/fd`, so no name is looked up again. All frames of a mount have one
//! inotify instance, of which a user has few: it takes a slot of `watch_slots`. Where others can change a file without this kernel's
//! knowing, and at inotify's limits, nothing is told, and [`Watch::is_blind`] says so.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use log::{debug, info};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::watch_slots::{self, Slot};
use crate::format::{ChunkId, INDEX_NAME};
use crate::store::backend::BackendFile;

/// File systems that others change from elsewhere, by `f_type`: 9P, AFS, BeeGFS, Ceph, Coda, FUSE (virtiofs too), GFS2, GPFS, Lustre, NCP, NFS,
/// OCFS2, SMB of three kinds, VirtualBox's.
const ELSEWHERE: [u32; 16] = [
    0x0102_1997,
    0x5346_414F,
    0x1983_0326,
    0x00C3_6400,
    0x7375_7245,
    0x6573_5546,
    0x0116_1970,
    0x4750_4653,
    0x0BD0_0BD0,
    0x0000_564C,
    0x0000_6969,
    0x7461_636F,
    0x0000_517B,
    0xFF53_4D42,
    0xFE53_4D42,
    0x786F_4256,
];

/// File systems that tell of a name as it was made, and find it however it is written: VFAT, exFAT, NTFS.
const FOLDS_NAMES: [u32; 3] = [0x4D44, 0x2011_BAB0, 0x7366_746E];

/// More than is ever told of one directory.
const FAR: u64 = 1 << 28;

/// Names that are remembered between two looks, at most.
const NAMES: usize = 1024;
/// Bytes of events that are taken at once.
const EVENTS: usize = 16 << 10;
/// Events that are looked at before somebody looks at the frame, at most.
const MOST_EVENTS: usize = 1 << 16;
/// What happens to names of directories is told so long after the first of it: most of what is written comes in many pieces.
const GATHER: Duration = Duration::from_millis(50);
/// The pause after events that matter to nobody yet.
const REST: Duration = Duration::from_millis(5);
/// The time between two moments of which it is said that something was lost.
const LOST: Duration = Duration::from_secs(1);
/// What has happened to names that nobody has asked for, at most.
const MOST_CHANGES: usize = 1 << 16;

/// What is watched.
#[derive(Clone)]
pub enum Watched {
    /// A directory: what has this name in it.
    Name(Arc<dyn BackendFile>, OsString),
    /// A sparse frame's directory: its index and its chunk files.
    Frame(Arc<dyn BackendFile>),
    /// A file's content and attributes.
    File(Arc<dyn BackendFile>),
}

impl Watched {
    fn file(&self) -> &Arc<dyn BackendFile> {
        match self {
            Watched::Name(file, _) | Watched::Frame(file) | Watched::File(file) => file,
        }
    }

    fn flags(&self) -> WatchFlags {
        let came = WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        match self {
            Watched::Name(..) => came | WatchFlags::MOVED_FROM | WatchFlags::CREATE | WatchFlags::DELETE,
            // Not creation, which each chunk of our own would tell of as well; what is written is closed.
            Watched::Frame(_) => came | WatchFlags::CLOSE_WRITE | WatchFlags::MOVE_SELF,
            Watched::File(_) => WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::CLOSE_WRITE | WatchFlags::MOVE_SELF,
        }
    }

    /// Whether an event matters: two that watch the same file hear what the other one listens to as well.
    fn matters(&self, event: ReadFlags, name: Option<&OsStr>) -> bool {
        let unasked = ReadFlags::IGNORED | ReadFlags::UNMOUNT;
        if event.bits() & (self.flags().bits() | unasked.bits()) == 0 {
            return false;
        }
        match (self, name) {
            (Watched::Name(_, wanted), Some(name)) => wanted == name,
            (Watched::Frame(_), Some(name)) => name == INDEX_NAME || is_chunk(name),
            _ => true,
        }
    }
}

/// What happens to a directory's names, and to the files that have them.
fn of_names() -> WatchFlags {
    names() | WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::CLOSE_WRITE | WatchFlags::ONLYDIR
}

/// What happens to the names themselves.
fn names() -> WatchFlags {
    WatchFlags::MOVED_TO | WatchFlags::MOVED_FROM | WatchFlags::CREATE | WatchFlags::DELETE
}

/// What others have done to a name in a directory that is watched.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NameChange {
    /// It was made, removed or renamed.
    Name(OsString),
    /// The file that has it has changed.
    File(OsString),
    /// The file that is watched by itself has changed.
    Itself,
}

/// What others have done to names, by the numbers of directories. None if something was lost.
pub type NameChanges = Option<HashSet<(u64, NameChange)>>;

fn is_chunk(name: &OsStr) -> bool {
    ChunkId::from_file_name(name.as_bytes()).is_some()
}

/// Waits for changes of any frame, and is woken for other reasons. One thread waits.
#[derive(Default)]
pub struct Watcher {
    /// None in it where the system gives no bell.
    started: OnceLock<Option<Started>>,
    /// Held across no waiting. Of what is locked elsewhere, only `names` is taken while it is held.
    table: Mutex<Table>,
    /// Somebody has rung before there was a bell, or since it was last heard.
    rung: AtomicBool,
    stopped: AtomicBool,
}

struct Started {
    bell: OwnedFd,
    /// None where the system gives none, or no slot is free.
    inotify: Option<OwnedFd>,
    _slot: Option<Slot>,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By a number of ours.
    frames: BTreeMap<u64, WatchedFrame>,
    /// Who watches what, by the number that events bear.
    watched: HashMap<i32, Vec<(u64, Watched)>>,
    directories: Directories,
}

/// Directories all of whose names are watched, and files that are watched by themselves.
#[derive(Default)]
struct Directories {
    /// By the number that events bear.
    all: HashMap<i32, Directory>,
    /// The number that events of a directory bear.
    numbers: HashMap<u64, i32>,
    /// What has happened to their names.
    changes: HashSet<(u64, NameChange)>,
    /// Something was not told; and when that was last so.
    has_lost: bool,
    lost: Option<Instant>,
    /// When to tell of it.
    due: Option<Instant>,
    /// What [`Heard`] of the last one began with: no two ever say the same.
    last: u64,
}

struct Directory {
    number: u64,
    heard: Heard,
}

/// How often something was told of a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heard {
    /// Of its names and of their files.
    pub all: u64,
    /// Of its names.
    pub names: u64,
}

impl Directories {
    /// Takes an event of a directory.
    fn hear(&mut self, wd: i32, event: ReadFlags, name: Option<&OsStr>) {
        if event.contains(ReadFlags::IGNORED) {
            if let Some(gone) = self.all.remove(&wd) {
                self.numbers.remove(&gone.number);
            }
            return;
        }
        let Some(directory) = self.all.get_mut(&wd) else { return };
        let number = directory.number;
        let is_name = name.is_some() && event.bits() & names().bits() != 0;
        directory.heard.all += 1;
        directory.heard.names += u64::from(is_name);
        let change = match name {
            Some(name) if is_name => NameChange::Name(name.to_owned()),
            Some(name) => NameChange::File(name.to_owned()),
            None => NameChange::Itself,
        };
        if self.changes.len() < MOST_CHANGES {
            self.changes.insert((number, change));
        } else {
            self.has_lost = true;
        }
        self.due.get_or_insert_with(|| Instant::now() + GATHER);
    }

    /// Events were lost.
    fn lose(&mut self) {
        for Directory { heard: Heard { all, names }, .. } in self.all.values_mut() {
            (*all, *names) = (*all + 1, *names + 1);
        }
        if !self.all.is_empty() {
            self.has_lost = true;
            self.due.get_or_insert_with(Instant::now);
        }
    }
}

#[derive(Default)]
struct WatchedFrame {
    told: Arc<Told>,
    /// Nothing of it can be watched, and it is not to be looked at by the clock.
    by_readers: bool,
    /// What the log calls it.
    path: PathBuf,
    wanted: Vec<Watched>,
    /// The numbers of what is watched for it.
    numbers: Vec<i32>,
}

/// What a frame is told.
#[derive(Default)]
struct Told {
    blind: AtomicBool,
    rung: AtomicBool,
    /// Chunk files that somebody has written. A leaf lock.
    names: Mutex<HashSet<OsString>>,
}

/// What a [`Watcher`] is to one frame.
pub struct Watch {
    watcher: Arc<Watcher>,
    number: u64,
    told: Arc<Told>,
}

impl Watch {
    /// One that watches nothing yet.
    pub(in crate::store) fn new(watcher: &Arc<Watcher>, path: &Path) -> Self {
        Self::with(watcher, WatchedFrame { path: path.to_owned(), ..WatchedFrame::default() })
    }

    /// One for a frame that the system knows nothing of: only who reads it rings.
    #[cfg(feature = "remote")]
    pub fn by_readers(watcher: &Arc<Watcher>) -> Self {
        Self::with(watcher, WatchedFrame { by_readers: true, ..WatchedFrame::default() })
    }

    fn with(watcher: &Arc<Watcher>, frame: WatchedFrame) -> Self {
        let told = Arc::clone(&frame.told);
        let mut table = watcher.table.lock();
        table.next += 1;
        let number = table.next;
        table.frames.insert(number, frame);
        drop(table);
        Watch { watcher: Arc::clone(watcher), number, told }
    }

    /// What is to be watched from now on.
    pub fn set(&self, wanted: Vec<Watched>) {
        let mut table = self.watcher.table.lock();
        if let Some(frame) = table.frames.get_mut(&self.number) {
            frame.wanted = wanted;
        }
        self.watcher.follow(&mut table, self.number);
    }

    /// Whether changes may go untold.
    pub fn is_blind(&self) -> bool {
        self.told.blind.load(SeqCst)
    }

    /// Wakes who waits, on behalf of this frame.
    pub fn ring(&self) {
        self.told.rung.store(true, SeqCst);
        self.watcher.ring();
    }

    /// Whether something has been told of this frame, or somebody has rung, since this was last asked.
    pub fn take(&self) -> bool {
        self.told.rung.swap(false, SeqCst)
    }

    /// The chunk files that somebody has written since this was last asked.
    pub fn names(&self) -> HashSet<OsString> {
        std::mem::take(&mut self.told.names.lock())
    }

    /// Where to wait.
    pub fn watcher(&self) -> &Arc<Watcher> {
        &self.watcher
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.told.blind.store(true, SeqCst); // nobody needs to be told
        self.set(Vec::new());
        self.watcher.table.lock().frames.remove(&self.number);
    }
}

impl Watcher {
    /// Begins to watch; before that, nothing is. Returns why there is no inotify instance, if there is none.
    pub fn begin(&self) -> Option<io::Error> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let taken = watch_slots::take().and_then(|slot| Ok((inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?, slot)));
        let (taken, reason) = match taken {
            Ok(taken) => (Some(taken), bell.as_ref().err().map(|error| (*error).into())),
            Err(error) => (None, Some(error)),
        };
        let started = bell.ok().map(|bell| {
            let (inotify, slot) = taken.unzip();
            Started { bell, inotify, _slot: slot }
        });
        let mut table = self.table.lock();
        if self.started.set(started).is_ok() {
            let frames: Vec<_> = table.frames.keys().copied().collect();
            frames.into_iter().for_each(|number| self.follow(&mut table, number));
        }
        reason
    }

    /// Puts watches on what a frame wants, and takes the others away.
    fn follow(&self, Table { frames, watched, directories, .. }: &mut Table, number: u64) {
        let (Some(started), Some(frame)) = (self.started.get(), frames.get_mut(&number)) else { return };
        let before = std::mem::take(&mut frame.numbers);
        for wd in &before {
            watched.entry(*wd).or_default().retain(|(other, _)| *other != number);
        }
        // What has SOURCE's name cannot be watched in a directory that may not be read.
        let mut blind = !frame.by_readers && !frame.wanted.iter().any(|wanted| matches!(wanted, Watched::Name(..)));
        for wanted in &frame.wanted {
            match started.as_ref().ok_or_else(unsupported).and_then(|started| started.watch(wanted)) {
                Ok(wd) => {
                    frame.numbers.push(wd);
                    watched.entry(wd).or_default().push((number, wanted.clone()));
                }
                Err(error) => {
                    blind = true;
                    debug!("not watched: {error}");
                }
            }
        }
        for wd in before {
            if watched.get(&wd).is_some_and(Vec::is_empty) {
                watched.remove(&wd);
                if directories.all.contains_key(&wd) {
                    continue;
                }
                if let Some(Started { inotify: Some(inotify), .. }) = started {
                    let _ = inotify::remove_watch(inotify, wd);
                }
            }
        }
        // Of a mount without an instance that is said once.
        let is_alone = started.as_ref().is_some_and(|started| started.inotify.is_some());
        if frame.told.blind.swap(blind, SeqCst) != blind && blind && is_alone {
            info!("{}: polling for changes by others, because the system does not report them here", frame.path.display());
        }
    }

    /// Watches all names of a directory, which has this number from now on, unless changes may go untold.
    ///
    /// # Errors
    /// What the system refuses; where changes may go untold.
    pub fn watch_names(&self, number: u64, directory: BorrowedFd<'_>) -> io::Result<()> {
        self.hear_of(number, directory, names() | WatchFlags::ONLYDIR)
    }

    /// The same, and the files that have them.
    ///
    /// # Errors
    /// As [`Watcher::watch_names`]; where one name can be written in several ways.
    pub fn watch_files(&self, number: u64, directory: BorrowedFd<'_>) -> io::Result<()> {
        if FOLDS_NAMES.contains(&(rustix::fs::fstatfs(directory)?.f_type as u32)) {
            return Err(unsupported());
        }
        self.hear_of(number, directory, of_names())
    }

    /// Watches a file, which has this number from now on, unless changes may go untold.
    ///
    /// # Errors
    /// As [`Watcher::watch_names`].
    pub fn watch_file(&self, number: u64, file: BorrowedFd<'_>) -> io::Result<()> {
        self.hear_of(number, file, WatchFlags::MODIFY)
    }

    fn hear_of(&self, number: u64, file: BorrowedFd<'_>, flags: WatchFlags) -> io::Result<()> {
        let started = self.started.get().and_then(Option::as_ref).ok_or_else(unsupported)?;
        // It may take long.
        check_here(file)?;
        let mut table = self.table.lock();
        let wd = started.add(file, flags)?;
        let directories = &mut table.directories;
        if directories.numbers.insert(number, wd) == Some(wd) {
            return Ok(());
        }
        directories.last = directories.last.wrapping_add(FAR);
        let heard = Heard { all: directories.last, names: directories.last };
        // One that was given up with its number, or is known by another.
        if let Some(before) = directories.all.insert(wd, Directory { number, heard }) {
            directories.numbers.remove(&before.number);
        }
        Ok(())
    }

    /// Watches a directory's names, or a file, no more.
    pub fn leave_names(&self, number: u64) {
        let mut table = self.table.lock();
        let Some(wd) = table.directories.numbers.remove(&number) else { return };
        table.directories.all.remove(&wd);
        if !table.watched.contains_key(&wd)
            && let Some(Some(Started { inotify: Some(inotify), .. })) = self.started.get()
        {
            let _ = inotify::remove_watch(inotify, wd);
        }
    }

    /// How much was told of a directory's names; none if they are not watched.
    pub fn heard_of_names(&self, number: u64) -> Option<Heard> {
        let table = self.table.lock();
        let wd = table.directories.numbers.get(&number)?;
        table.directories.all.get(wd).map(|directory| directory.heard)
    }

    /// What has happened to names since this was last asked.
    pub fn name_changes(&self) -> NameChanges {
        let directories = &mut self.table.lock().directories;
        let changes = std::mem::take(&mut directories.changes);
        if !directories.has_lost {
            directories.due = None;
            return Some(changes);
        }
        // To forget everything costs all clients much, and whoever owns a directory can bring it about.
        let now = Instant::now();
        if let Some(again) = directories.lost.map(|last| last + LOST).filter(|again| *again > now) {
            directories.due = Some(again);
            return Some(changes);
        }
        (directories.due, directories.has_lost, directories.lost) = (None, false, Some(now));
        None
    }

    /// Wakes who waits.
    pub fn ring(&self) {
        if !self.rung.swap(true, SeqCst)
            && let Some(Some(started)) = self.started.get()
        {
            let _ = rustix::io::write(&started.bell, &1u64.to_ne_bytes());
        }
    }

    /// From now on nobody waits any more.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.rung.store(false, SeqCst); // or nobody would hear it again
        self.ring();
    }

    /// Returns when something was changed or somebody rings, or at a time; what is changed before `rested` is told then. Answers whether
    /// to go on. [`Watch::take`] says of which frames something was told.
    pub fn wait(&self, until: Option<Instant>, mut rested: Instant) -> bool {
        let Some(Some(started)) = self.started.get() else { return false };
        loop {
            if self.stopped.load(SeqCst) {
                return false;
            }
            let now = Instant::now();
            let names = self.table.lock().directories.due;
            let until = until.into_iter().chain(names).min();
            if self.rung.swap(false, SeqCst) || until.is_some_and(|until| until <= now) {
                return !self.stopped.load(SeqCst);
            }
            let resting = now < rested;
            let timeout = match (resting, until) {
                (true, Some(until)) => Some(until.min(rested)),
                (true, None) => Some(rested),
                (false, until) => until,
            };
            let told = started.poll(timeout.map(|at| at.saturating_duration_since(now)), !resting);
            if told && !resting {
                if self.hear(started) {
                    return !self.stopped.load(SeqCst);
                }
                rested = Instant::now() + REST;
            }
        }
    }

    /// Takes what was told, and tells the frames that it matters to; whether there are any.
    fn hear(&self, started: &Started) -> bool {
        let Some(inotify) = &started.inotify else { return false };
        let mut buf = [MaybeUninit::uninit(); EVENTS];
        let mut reader = inotify::Reader::new(inotify, &mut buf);
        let mut table = self.table.lock();
        let Table { frames, watched: all, directories, .. } = &mut *table;
        let mut matters = false;
        for _ in 0..MOST_EVENTS {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                frames.values().for_each(|frame| frame.told.rung.store(true, SeqCst));
                directories.lose();
                matters = true;
                continue;
            }
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            directories.hear(event.wd(), event.events(), name);
            for (number, watched) in all.get(&event.wd()).into_iter().flatten() {
                let Some(frame) = frames.get(number).filter(|_| watched.matters(event.events(), name)) else { continue };
                matters = true;
                frame.told.rung.store(true, SeqCst);
                if let (Watched::Frame(_), Some(name)) = (watched, name)
                    && is_chunk(name)
                {
                    let mut names = frame.told.names.lock();
                    if names.len() < NAMES {
                        names.insert(name.to_owned());
                    }
                }
            }
        }
        matters
    }
}

/// # Errors
/// [`is_elsewhere`].
fn check_here(fd: BorrowedFd<'_>) -> io::Result<()> {
    if is_elsewhere(fd)? { Err(unsupported()) } else { Ok(()) }
}

fn unsupported() -> io::Error {
    io::ErrorKind::Unsupported.into()
}

impl Started {
    fn watch(&self, watched: &Watched) -> io::Result<i32> {
        let fd = watched.file().fd().ok_or_else(unsupported)?;
        check_here(fd)?;
        self.add(fd, watched.flags())
    }

    fn add(&self, fd: BorrowedFd<'_>, flags: WatchFlags) -> io::Result<i32> {
        let inotify = self.inotify.as_ref().ok_or_else(unsupported)?;
        // This link leads to the open file, whatever has become of its name.
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        // Others may watch the same file.
        Ok(inotify::add_watch(inotify, path, flags | WatchFlags::MASK_ADD)?)
    }

    /// Waits for something to be told; for the bell only, if `inotify` is false.
    fn poll(&self, timeout: Option<std::time::Duration>, inotify: bool) -> bool {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let bell = PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN);
        let mut fds = vec![bell];
        if let Some(system) = self.inotify.as_ref().filter(|_| inotify) {
            fds.push(PollFd::from_borrowed_fd(system.as_fd(), PollFlags::IN));
        }
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return false;
        }
        let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        if ready(0) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.bell, &mut count);
        }
        ready(1)
    }
}

/// Whether others can change a file without this kernel's knowing.
///
/// # Errors
/// What the system refuses.
pub fn is_elsewhere(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(ELSEWHERE.contains(&(rustix::fs::fstatfs(fd)?.f_type as u32)))
}
