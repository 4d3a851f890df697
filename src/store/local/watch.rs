//! Who changes a frame, as inotify(7) tells it.
//!
//! Watches are put on what the store holds open, by way of `/proc/self/fd`, so no name is looked up again. One that watches has one
//! inotify instance. Where others can change a file without this kernel's knowing, and at inotify's limits, nothing is told, and
//! [`Watch::is_blind`] says so.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use log::{debug, info};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

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

/// Names that are remembered between two looks, at most.
const NAMES: usize = 1024;
/// Bytes of events that are taken at once.
const EVENTS: usize = 16 << 10;
/// Events that are looked at before somebody looks at the frame, at most.
const MOST_EVENTS: usize = 1 << 16;

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

    /// Whether something of that name matters.
    fn matters(&self, name: Option<&OsStr>) -> bool {
        match (self, name) {
            (Watched::Name(_, wanted), Some(name)) => wanted == name,
            (Watched::Frame(_), Some(name)) => name == INDEX_NAME || is_chunk(name),
            _ => true,
        }
    }
}

fn is_chunk(name: &OsStr) -> bool {
    ChunkId::from_file_name(name.as_bytes()).is_some()
}

/// Waits for changes, and is woken for other reasons.
#[derive(Default)]
pub struct Watch {
    started: OnceLock<Started>,
    /// A leaf lock, held across no waiting.
    inner: Mutex<Inner>,
    blind: AtomicBool,
    /// Somebody has rung before there was a bell, or since it was last heard.
    rung: AtomicBool,
    stopped: AtomicBool,
}

struct Started {
    bell: OwnedFd,
    /// None where the system gives none.
    inotify: Option<OwnedFd>,
}

#[derive(Default)]
struct Inner {
    wanted: Vec<Watched>,
    /// What is watched, by the number that events bear.
    watched: Vec<(i32, Watched)>,
    /// Chunk files that somebody has written.
    names: HashSet<OsString>,
}

impl Watch {
    /// What is to be watched from now on.
    pub fn set(&self, wanted: Vec<Watched>) {
        let mut inner = self.inner.lock();
        inner.wanted = wanted;
        self.follow(&mut inner);
    }

    /// Begins to watch; before that, nothing is.
    pub fn begin(&self) {
        let Ok(bell) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
            self.blind.store(true, SeqCst);
            return;
        };
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let inotify =
            inotify.inspect_err(|error| info!("changes by others are looked for now and then: no inotify: {error}")).ok();
        let _ = self.started.set(Started { bell, inotify });
        self.follow(&mut self.inner.lock());
    }

    /// Puts watches on what is wanted, and takes the others away.
    fn follow(&self, inner: &mut Inner) {
        let Some(started) = self.started.get() else { return };
        let before = std::mem::take(&mut inner.watched);
        // What has SOURCE's name cannot be watched in a directory that may not be read.
        let mut blind = !inner.wanted.iter().any(|watched| matches!(watched, Watched::Name(..)));
        for watched in &inner.wanted {
            match started.watch(watched) {
                Ok(number) => inner.watched.push((number, watched.clone())),
                Err(error) => {
                    blind = true;
                    debug!("not watched: {error}");
                }
            }
        }
        for (number, _) in before {
            if let Some(inotify) = &started.inotify
                && !inner.watched.iter().any(|(other, _)| *other == number)
            {
                let _ = inotify::remove_watch(inotify, number);
            }
        }
        if self.blind.swap(blind, SeqCst) != blind && blind {
            info!("changes by others are looked for now and then, as the system does not tell of them here");
        }
    }

    /// Whether changes may go untold.
    pub fn is_blind(&self) -> bool {
        self.blind.load(SeqCst)
    }

    /// Wakes who waits.
    pub fn ring(&self) {
        if !self.rung.swap(true, SeqCst)
            && let Some(started) = self.started.get()
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

    /// The chunk files that somebody has written since this was last asked.
    pub fn names(&self) -> HashSet<OsString> {
        std::mem::take(&mut self.inner.lock().names)
    }

    /// Returns when something was changed or somebody rings, or at a time; what is changed before `rested` is told then. Answers whether
    /// to go on.
    pub fn wait(&self, until: Option<Instant>, rested: Instant) -> bool {
        let Some(started) = self.started.get() else { return false };
        loop {
            if self.stopped.load(SeqCst) {
                return false;
            }
            let now = Instant::now();
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
            if told && !resting && self.take(started) {
                return !self.stopped.load(SeqCst);
            }
        }
    }

    /// Takes what was told; whether anything of it matters.
    fn take(&self, started: &Started) -> bool {
        let Some(inotify) = &started.inotify else { return false };
        let mut buf = [MaybeUninit::uninit(); EVENTS];
        let mut reader = inotify::Reader::new(inotify, &mut buf);
        let mut inner = self.inner.lock();
        let mut matters = false;
        for _ in 0..MOST_EVENTS {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                        matters = true;
                        continue;
                    }
                    let Some((_, watched)) = inner.watched.iter().find(|(number, _)| *number == event.wd()) else { continue };
                    if !watched.matters(name) {
                        continue;
                    }
                    matters = true;
                    if let (Watched::Frame(_), Some(name)) = (watched, name)
                        && is_chunk(name)
                        && inner.names.len() < NAMES
                    {
                        let name = name.to_owned();
                        inner.names.insert(name);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        matters
    }
}

impl Started {
    fn watch(&self, watched: &Watched) -> io::Result<i32> {
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let (inotify, file) = (self.inotify.as_ref().ok_or_else(unsupported)?, watched.file());
        let fd = file.fd().ok_or_else(unsupported)?;
        if is_elsewhere(fd)? {
            return Err(unsupported());
        }
        // This link leads to the open file, whatever has become of its name.
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        Ok(inotify::add_watch(inotify, path, watched.flags())?)
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
fn is_elsewhere(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(ELSEWHERE.contains(&(rustix::fs::fstatfs(fd)?.f_type as u32)))
}
