//! What the event loops, the notifying threads and the session of a mount share, and parts of replies.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use fuser::{FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, InitFlags};
use log::info;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::backings::Backings;
use super::executor::{Executor, FIRST, LateReads, Loops};
use super::inodes::Inodes;
use super::kernel::Access;
use super::notify::Notify;
use super::placement::Placement;
use super::replies::{Outdated, Replies};
use super::ticker::Ticker;
use super::unmount::Unmounting;
use super::waiters::{self, Waiters};
use crate::store::interrupts;
use crate::store::mark::Mark;
use crate::view::{
    Attr, Features, FileSystem, Good, Ino, Invalidations, Kind, Meta, OpenMode, Opened, POLLED, Pages, ROOT, Timeouts, WATCHED,
};

/// The block size of a directory. glibc reads listings in pieces of that size.
const DIRECTORY_BLKSIZE: u32 = 128 * 1024;
/// The same of a large frame's directory, as far as glibc goes. In a tree the kernel asks for attributes only with the first piece of a
/// listing: this is room for 5,900 chunks, rather than for 740. For a small frame it would cost more than the rest of the listing.
const LARGE_BLKSIZE: u32 = 1024 * 1024;
/// Which frame is large, in blocks of 512 bytes: 8 MiB.
const LARGE: u64 = 1 << 14;
/// Without end: the kernel limits the number to what its clock can hold.
pub(super) const FOREVER: Duration = Duration::from_secs(1 << 31);
/// Inode numbers are never reused, so there is one generation.
pub(super) const GENERATION: Generation = Generation(0);
/// Cookies 1 and 2 stand behind `.` and `..`; a view's own begin here.
pub(super) const FIRST_COOKIE: u64 = 2;

/// The pause between two checks for changes by others: most of what the system reports is our own doing.
const PAUSE: Duration = Duration::from_millis(5);
/// The same while others change SOURCE.
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
    /// Of bits that are `shown`.
    fn perm(&self, attr: &Attr, shown: u16) -> u16 {
        let (all, mask) = match attr.kind {
            Kind::Directory => (0o777, self.dmask),
            _ => (0o666, self.fmask),
        };
        mask.map_or(attr.meta.mode as u16 & shown, |mask| all & !(mask as u16))
    }
}

/// With `allow_root`, only one user and root may see the mount.
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
        Private { uid: rustix::process::geteuid().as_raw(), since: SystemTime::now() }
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

/// Where READs are read into: a fresh buffer for each costs up to a quarter of the time, and one for each event loop would be
/// cold in the core's cache.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// Of at least so many bytes: the one that was used last.
    pub(super) fn take(&self, len: usize) -> Vec<u8> {
        let mut buffer = self.0.lock().pop().unwrap_or_default();
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        buffer
    }

    pub(super) fn give_back(&self, buffer: Vec<u8>) {
        self.0.lock().push(buffer);
    }
}

/// What the event loops, the notifying threads and the session share.
pub(super) struct Shared {
    pub(super) view: Arc<dyn FileSystem>,
    pub(super) features: Features,
    pub(super) inodes: Inodes,
    pub(super) notify: Notify,
    pub(super) ticker: Ticker,
    pub(super) waiters: Arc<Waiters>,
    pub(super) executor: Executor,
    pub(super) loops: Loops,
    /// What the kernel has offered.
    pub(super) offered: OnceLock<InitFlags>,
    pub(super) backings: Arc<Backings>,
    pub(super) placement: Placement,
    /// True once the view is being shut down while the kernel may still ask. Held for reading through every request, those included
    /// that the same event loop does behind it.
    pub(super) closed: RwLock<bool>,
    pub(super) unmounting: Unmounting,
    /// The daemon's mark on SOURCE. A leaf lock.
    pub(super) mark: Mutex<Option<Mark>>,
    /// The mark says that the daemon is ending. Written with `mark` locked.
    pub(super) ending: AtomicBool,
    /// The mount's device number.
    pub(super) device: OnceLock<u32>,
    pub(super) buffers: Buffers,
    overrides: Overrides,
    private: Option<Private>,
    /// How often SOURCE, or a frame of a tree, had been read again when the kernel last forgot it. A leaf lock.
    pub(super) forgotten: Mutex<HashMap<Ino, u64>>,
    /// Replies that say something of names and attributes.
    pub(super) replies: Replies,
    /// READs that wait for another program.
    pub(super) late: LateReads,
    /// The kernel can be told that a name is to be looked up again.
    pub(super) expires: AtomicBool,
    /// READs answered.
    pub(super) reads: AtomicU64,
    /// See [`Shared::say_what_makes_frames`].
    said: AtomicBool,
}

impl Shared {
    pub(super) fn new(view: Arc<dyn FileSystem>, overrides: Overrides, access: Access) -> Self {
        if waiters::clients_are_visible() {
            interrupts::look_by(waiters::is_unwanted);
        }
        Shared {
            forgotten: Mutex::default(),
            features: view.features(),
            view,
            inodes: Inodes::default(),
            notify: Notify::default(),
            ticker: Ticker::default(),
            waiters: Arc::default(),
            executor: Executor::new(FIRST),
            loops: Loops::default(),
            offered: OnceLock::new(),
            backings: Arc::default(),
            placement: Placement::new(),
            closed: RwLock::new(false),
            unmounting: Unmounting::default(),
            mark: Mutex::default(),
            ending: AtomicBool::new(false),
            device: OnceLock::new(),
            buffers: Buffers::default(),
            overrides,
            private: (access == Access::Root).then(Private::new),
            replies: Replies::default(),
            late: LateReads::default(),
            expires: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            said: AtomicBool::new(false),
        }
    }

    /// One line for the log: counts of requests and of pushed pages.
    pub(super) fn report(&self) -> String {
        format!("reads answered: {}; files pushed: {}", self.reads.load(Relaxed), self.notify.pushed.load(Relaxed))
    }

    pub(super) fn enter(&self) -> Option<RwLockReadGuard<'_, bool>> {
        let closed = self.closed.read();
        if *closed { None } else { Some(closed) }
    }

    /// Attributes, and how long they are good.
    pub(super) fn attr(&self, attr: &Attr) -> Shown {
        let Attr { ino, kind, size, blocks, nlink, rdev, meta: Meta { uid, gid, atime, mtime, ctime, .. }, good } = *attr;
        let bits = if self.features.passes_on.is_some() { 0o7777 } else { 0o777 };
        let shown = FileAttr {
            ino: INodeNo(ino.0),
            size,
            blocks,
            atime,
            mtime,
            ctime,
            crtime: ctime,
            kind: file_type(kind),
            perm: self.overrides.perm(attr, bits),
            nlink,
            uid: self.overrides.uid.unwrap_or(uid),
            gid: self.overrides.gid.unwrap_or(gid),
            rdev,
            blksize: match kind {
                Kind::Directory if blocks >= LARGE && self.view.is_of_frame(ino) => LARGE_BLKSIZE,
                Kind::Directory => DIRECTORY_BLKSIZE,
                _ => 4096,
            },
            flags: 0,
        };
        let attr = self.private.as_ref().map_or(shown, |private| private.shown(shown));
        let timeouts = self.features.passes_on.or(self.features.far);
        let both = |time: Duration| Timeouts { entry: time, attr: time };
        let valid = match (good, timeouts) {
            (Good::Timeouts, None) => both(POLLED),
            (Good::UntilTold, _) | (_, None) => both(FOREVER),
            (Good::Watched, _) if self.expires.load(Relaxed) => both(WATCHED),
            (Good::Watched | Good::Timeouts, Some(timeouts)) => timeouts,
            (Good::Once, Some(timeouts)) => Timeouts { attr: Duration::ZERO, ..timeouts },
        };
        Shown { attr, valid }
    }

    /// The attributes of a file under a name that the kernel is told of.
    pub(super) fn entry(&self, attr: &Attr) -> Shown {
        self.inodes.looked_up(attr.ino);
        self.attr(attr)
    }

    /// The thread that has the view check SOURCE when others may have changed it.
    pub(super) fn follow_others(&self) {
        let Some(watcher) = self.view.watcher() else { return };
        let mut outdated = Outdated::default();
        loop {
            let began = Instant::now();
            let mut invalidations = Invalidations::new();
            let mut due = self.view.follow(&mut invalidations);
            self.say_again();
            let pause = if invalidations.is_empty() && due.is_none() { PAUSE } else { SHORT_PAUSE };
            self.notify.forget(invalidations);
            let (forgotten, soon) = outdated.next(self.view.outdated(), &self.replies);
            self.notify.forget(forgotten);
            due = due.into_iter().chain(soon).min();
            // Leave time for readers if a large frame changes all the time.
            if !watcher.wait(due, Instant::now() + pause.max(began.elapsed())) {
                return;
            }
        }
    }

    /// Says once where other names can be made, which a mount of one frame has no place for.
    pub(super) fn say_what_makes_frames(&self) {
        if !self.said.swap(true, Relaxed) {
            info!("this mount holds only the files of its own frame; mount the frame's directory to make other names");
        }
    }

    /// Called after a change: the view may want its tick.
    pub(super) fn changed(&self) {
        self.ticker.poke();
    }

    /// `pid` has opened a file or read of it, as [`FileSystem::touched`] has it; queues what is to be pushed then.
    pub(super) fn touched(&self, pid: u32, ino: Ino, read: Option<(u64, u32)>) {
        let hints = self.view.touched(pid, ino, read);
        self.notify.push(ino, read.is_some_and(|(offset, _)| offset == 0), hints);
    }
}

/// What is shown of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    pub(super) attr: FileAttr,
    /// How long the kernel may believe it, and the name under which it was found.
    pub(super) valid: Timeouts,
}

/// The reply to an open.
pub(super) struct OpenReply {
    pub(super) ino: Ino,
    pub(super) handle: FileHandle,
    pub(super) flags: FopenFlags,
    /// Of a file that is passed on: what the kernel may read and write by itself, and where that is counted.
    pub(super) backing: Option<(Option<OwnedFd>, Arc<Backings>)>,
}

impl OpenReply {
    /// Of a file whose pages the kernel has and that this process reads and writes.
    pub(super) fn new(ino: Ino, opened: Opened, mode: OpenMode) -> Self {
        OpenReply { ino, handle: FileHandle(opened.handle.0), flags: flags(opened, mode), backing: None }
    }
}

impl Shared {
    /// The reply to an open. A file that the kernel may read and write by itself it gets from [`Backings`].
    pub(super) fn opened(&self, ino: Ino, opened: Opened, mode: OpenMode) -> OpenReply {
        let file = match opened.pages {
            Pages::Fresh => None,
            Pages::Passthrough if self.backings.wanted(ino) => self.view.backing(opened.handle).ok(),
            Pages::Passthrough => None,
            Pages::Kept | Pages::Direct | Pages::Foreign => {
                // It may be a frame, and get a name of another file while it is open.
                self.backings.count(ino);
                return OpenReply::new(ino, opened, mode);
            }
        };
        OpenReply { backing: Some((file, Arc::clone(&self.backings))), ..OpenReply::new(ino, opened, mode) }
    }
}

/// What the kernel may cache. The kernel sends no FLUSH for a close that cannot fail.
fn flags(opened: Opened, mode: OpenMode) -> FopenFlags {
    match (opened.pages, mode.write) {
        (Pages::Foreign, _) => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH,
        (Pages::Direct, _) => FopenFlags::FOPEN_DIRECT_IO,
        (Pages::Kept, true) => FopenFlags::FOPEN_KEEP_CACHE,
        (Pages::Kept, false) => FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH,
        (Pages::Passthrough, _) => FopenFlags::FOPEN_NOFLUSH,
        (Pages::Fresh, true) => FopenFlags::empty(),
        (Pages::Fresh, false) => FopenFlags::FOPEN_NOFLUSH,
    }
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::File => FileType::RegularFile,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::CharDevice => FileType::CharDevice,
    }
}

// The root is never looked up and never forgotten.
const _: () = assert!(ROOT.0 == INodeNo::ROOT.0);
