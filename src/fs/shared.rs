//! What the event loops, the notifying threads and the session of a mount share, and what answers are made of.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use fuser::{Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyEmpty, ReplyOpen};
use log::{debug, error, warn};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::awake::Awake;
use super::housekeeping::Housekeeping;
use super::inodes::Inodes;
use super::kernel::Access;
use super::listing::Lists;
use super::notify::{Held, Notify};
use super::push::{Hint, Streams};
use super::spin::Spin;
use super::unmount::Unmounting;
use super::waiters::Waiters;
use super::workers::Workers;
use crate::store::Watch;
use crate::store::mark::Mark;
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
    /// Permission bits that directories do not have; all others are set.
    pub dmask: Option<u32>,
    /// Permission bits that files do not have; all others are set, but nothing here is a program to be run.
    pub fmask: Option<u32>,
}

impl Overrides {
    fn perm(&self, attr: &Attr) -> u16 {
        let (all, mask) = match attr.kind {
            Kind::Directory => (0o777, self.dmask),
            Kind::File => (0o666, self.fmask),
        };
        mask.map_or(attr.perm & 0o777, |mask| all & !(mask as u16))
    }
}

/// That nobody but one user and root is to see anything (`allow_root`).
///
/// The kernel lets in one user or everybody: for root, it has to let in everybody. fuser refuses the requests of others, but much is
/// answered from the kernel's caches, without a request. Modes are what it checks there too. So everything belongs to that user, and
/// others have no right to it; root passes that check. Then names, attributes and pages in caches are of no use to others, but for
/// the root of the mount: who may search the directory above sees its attributes. Those say nothing about SOURCE.
struct Private {
    uid: u32,
    /// When the mount began.
    since: SystemTime,
}

impl Private {
    fn new() -> Self {
        // SAFETY: cannot fail, and touches no memory.
        Private { uid: unsafe { libc::geteuid() }, since: SystemTime::now() }
    }

    fn shown(&self, attr: FileAttr) -> FileAttr {
        let own = FileAttr { uid: self.uid, perm: attr.perm & 0o700, ..attr };
        if own.ino != INodeNo::ROOT {
            return own;
        }
        let since = self.since;
        FileAttr { size: 0, blocks: 0, atime: since, mtime: since, ctime: since, crtime: since, ..own }
    }
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
    pub(super) waiters: Arc<Waiters>,
    pub(super) workers: Workers,
    /// True once the view is being shut down while the kernel may still ask. Held for reading through every request
    /// that is not handed to another thread.
    pub(super) closed: RwLock<bool>,
    pub(super) unmounting: Unmounting,
    /// What is said of this mount on SOURCE. A leaf.
    pub(super) mark: Mutex<Option<Mark>>,
    /// That is that it is ending. Written with `mark` locked.
    pub(super) ending: AtomicBool,
    /// The mount's device number.
    pub(super) device: OnceLock<u32>,
    streams: Streams,
    overrides: Overrides,
    private: Option<Private>,
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
    pub(super) fn new(view: Arc<dyn View>, overrides: Overrides, access: Access, loops: usize) -> Self {
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
            waiters: Arc::default(),
            workers: Workers::new(loops),
            closed: RwLock::new(false),
            unmounting: Unmounting::default(),
            mark: Mutex::default(),
            ending: AtomicBool::new(false),
            device: OnceLock::new(),
            streams: Streams::default(),
            overrides,
            private: (access == Access::Root).then(Private::new),
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
        let shown = FileAttr {
            ino: INodeNo(attr.ino.0),
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            crtime: attr.ctime,
            kind: file_type(attr.kind),
            perm: self.overrides.perm(attr),
            nlink: attr.nlink,
            uid: self.overrides.uid.unwrap_or(attr.uid),
            gid: self.overrides.gid.unwrap_or(attr.gid),
            rdev: 0,
            blksize: attr.blksize,
            flags: 0,
        };
        self.private.as_ref().map_or(shown, |private| private.shown(shown))
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
        let Some(watcher) = self.view.watch().map(Watch::watcher) else { return };
        watcher.begin();
        loop {
            let began = Instant::now();
            let mut invals = Invals::new();
            let due = self.view.follow(&mut invals);
            self.say_again();
            let pause = if invals.is_empty() && due.is_none() { PAUSE } else { SHORT_PAUSE };
            self.notify.forget(invals);
            // A large frame that changes all the time leaves time for those who read it.
            if !watcher.wait(due, Instant::now() + pause.max(began.elapsed())) {
                return;
            }
        }
    }

    /// Something has changed: the view may want to be called.
    pub(super) fn changed(&self) {
        self.housekeeping.poke();
    }

    /// Opens a file for writing, or cuts it to nothing.
    pub(super) fn open_to_change(&self, ino: Ino, mode: OpenMode, reply: ReplyOpen) {
        if mode.write {
            self.notify.writer_came(ino);
        }
        let outcome = self.view.open(ino, mode).map_err(|refusal| errno("open", ino, &refusal));
        if mode.write && outcome.is_err() {
            self.notify.writer_gone(ino);
        }
        let flags = self.open_flags(ino, mode);
        self.notify.answer_writer(ino, move || match outcome {
            Ok(handle) => reply.opened(FileHandle(handle.0), flags),
            Err(errno) => reply.error(errno),
        });
        self.changed();
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
