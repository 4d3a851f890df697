//! What the event loops, the notifying threads and the session of a mount share, and what answers are made of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fuser::{Errno, FileAttr, FileType, FopenFlags, Generation, INodeNo, ReplyEmpty};
use log::{debug, error, warn};
use parking_lot::{RwLock, RwLockReadGuard};

use super::awake::Awake;
use super::housekeeping::Housekeeping;
use super::inodes::Inodes;
use super::listing::Lists;
use super::notify::{Held, Notify};
use super::push::{Hint, Streams};
use super::spin::Spin;
use crate::view::{Attr, Ino, Invals, Kind, OpenMode, ROOT, View, ViewError};

/// For good. The kernel takes any number of seconds and cuts it to what its clock can hold.
pub(super) const FOREVER: Duration = Duration::from_secs(1 << 31);
/// Numbers are never given twice, so there are no generations.
pub(super) const GENERATION: Generation = Generation(0);
/// Cookies 1 and 2 stand behind `.` and `..`; a view's own begin here.
pub(super) const FIRST_COOKIE: u64 = 2;

/// Pause between two looks at SOURCE: most of what the system tells of is of our own doing.
const PAUSE: Duration = Duration::from_millis(5);
/// The same while others are at work.
const SHORT_PAUSE: Duration = Duration::from_millis(1);

/// What a mount shows instead of a view's own attributes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Owner of everything.
    pub uid: Option<u32>,
    /// Group of everything.
    pub gid: Option<u32>,
    /// Permission bits that nothing has; all others are set.
    pub umask: Option<u32>,
}

/// What the event loops, the notifying threads and the session share.
pub(super) struct Shared {
    pub(super) view: Arc<dyn View>,
    pub(super) inodes: Inodes,
    pub(super) notify: Notify,
    pub(super) housekeeping: Housekeeping,
    pub(super) spin: Spin,
    pub(super) awake: Awake,
    pub(super) lists: Lists,
    /// True once the view is being shut down while the kernel may still ask. Held for reading through every request.
    pub(super) closed: RwLock<bool>,
    streams: Streams,
    overrides: Overrides,
    /// [`View::lock_file`].
    pub(super) lock_file: Option<Ino>,
    /// How often SOURCE had been read again when the kernel last forgot everything.
    pub(super) forgotten: AtomicU64,
    /// READs answered.
    pub(super) reads: AtomicU64,
    /// Who was last refused the removal of an attribute.
    pub(super) stripper: AtomicU32,
}

impl Shared {
    pub(super) fn new(view: Arc<dyn View>, overrides: Overrides) -> Self {
        Shared {
            lock_file: view.lock_file(),
            forgotten: AtomicU64::new(0),
            view,
            inodes: Inodes::default(),
            notify: Notify::default(),
            housekeeping: Housekeeping::default(),
            spin: Spin::default(),
            awake: Awake::default(),
            lists: Lists::default(),
            closed: RwLock::new(false),
            streams: Streams::default(),
            overrides,
            reads: AtomicU64::new(0),
            stripper: AtomicU32::new(0),
        }
    }

    /// One line for the log: what the kernel asked for, and what it was given unasked.
    pub(super) fn report(&self) -> String {
        format!("reads answered: {}; files pushed: {}", self.reads.load(Relaxed), self.notify.pushed.load(Relaxed))
    }

    pub(super) fn enter(&self) -> Option<RwLockReadGuard<'_, bool>> {
        let closed = self.closed.read();
        if *closed { None } else { Some(closed) }
    }

    pub(super) fn attr(&self, attr: &Attr) -> FileAttr {
        FileAttr {
            ino: INodeNo(attr.ino.0),
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            crtime: attr.ctime,
            kind: file_type(attr.kind),
            perm: self.overrides.umask.map_or(attr.perm & 0o777, |umask| 0o777 & !(umask as u16)),
            nlink: attr.nlink,
            uid: self.overrides.uid.unwrap_or(attr.uid),
            gid: self.overrides.gid.unwrap_or(attr.gid),
            rdev: 0,
            blksize: attr.blksize,
            flags: 0,
        }
    }

    /// What the kernel may do with an open file: keep its pages, unless other processes write them, and skip the FLUSH of a close
    /// that has nothing to say.
    pub(super) fn open_flags(&self, ino: Ino, mode: OpenMode) -> FopenFlags {
        match mode.write {
            _ if self.lock_file == Some(ino) => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH,
            _ if !self.view.keeps_pages(ino) => FopenFlags::FOPEN_DIRECT_IO,
            true => FopenFlags::FOPEN_KEEP_CACHE,
            false => FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH,
        }
    }

    /// The body of the thread that has the view look at SOURCE when others may have changed it.
    pub(super) fn follow_others(&self) {
        let Some(watch) = self.view.watch() else { return };
        watch.begin();
        loop {
            let began = Instant::now();
            let mut invals = Invals::new();
            let due = self.view.follow(&mut invals);
            let pause = if invals.is_empty() && due.is_none() { PAUSE } else { SHORT_PAUSE };
            self.notify.forget(invals);
            // A large frame that changes all the time leaves time for those who read it.
            if !watch.wait(due, Instant::now() + pause.max(began.elapsed())) {
                return;
            }
        }
    }

    /// Something has changed: the view may want to be called.
    pub(super) fn changed(&self) {
        self.housekeeping.poke();
    }

    pub(super) fn fsync(&self, ino: Ino, held: Held, reply: ReplyEmpty) {
        let mut invals = Invals::new();
        let outcome = self.view.fsync(ino, &mut invals).map_err(|refusal| errno("fsync", ino, &refusal));
        self.notify.answer(invals, held, move || empty(reply, outcome));
        self.changed();
    }

    /// Lets the readers' tracker see that `ino` was opened or read, and queues what it wants pushed.
    pub(super) fn notify_push(&self, ino: Ino, reading: bool, see: impl FnOnce(&dyn View, &Streams) -> Vec<Hint>) {
        let hints = see(&*self.view, &self.streams);
        self.notify.push(ino, reading, hints);
    }
}

/// The one place where a refusal becomes an errno. Those that a client cannot know the reason of are logged.
pub(super) fn errno(what: &str, ino: impl Into<Option<Ino>>, refusal: &ViewError) -> Errno {
    let ino = ino.into().map_or(0, |ino| ino.0);
    match refusal {
        ViewError::Store(_) => error!("{what}: {refusal}"),
        ViewError::Rejected(_) => warn!("{what} of inode {ino}: {refusal}"),
        _ => debug!("{what} of inode {ino}: {refusal}"),
    }
    Errno::from_i32(refusal.errno())
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::File => FileType::RegularFile,
    }
}

pub(super) fn empty(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

// The root is never looked up and never forgotten.
const _: () = assert!(ROOT.0 == INodeNo::ROOT.0);
