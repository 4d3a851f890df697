//! The files of a mount by their inodes: names, places in a listing, handles, attributes that were set; what was made, moved or
//! removed during the mount, and who still uses it. One table under all views.
//!
//! A frame's own files have no entry here until somebody opens one for writing, sets its attributes or gives it another name: their
//! inodes are computed from the file's number in the frame, and from the version of SOURCE. When others have changed SOURCE, all of
//! them have other inodes, so that a handle reads one version.
//!
//! | inode | file |
//! | --- | --- |
//! | 1 | the root |
//! | 3 | the lock file |
//! | 5 | the directory of delayed files |
//! | version and number | a file that SOURCE had in that version |
//! | bit 63, and a serial number | a file made during the mount |
//!
//! Nothing here waits, and nothing knows what a file holds: see [`super::frame_view`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::{Duration, Instant, SystemTime};

use super::content::Content;
use super::meta::Meta;
use super::names::{DELAYED, delayed};
use super::writing::Writing;
use super::{Attr, Handle, Ino, Invalidation, Invalidations, ROOT, Result, ViewError};

/// The lock file's inode.
pub const LOCK_FILE: Ino = Ino(3);
/// The inode of the directory of delayed files, `.~tmp~`.
pub const DELAYED_DIR: Ino = Ino(5);
/// Bits of an inode that are a file's number in its frame.
const NUMBER_BITS: u32 = 34;
/// What the bits above are for the first version of SOURCE.
const FIRST_VERSION: u64 = 1;
/// So many versions have inodes of their own.
const VERSIONS: u64 = (1 << (63 - NUMBER_BITS)) - 1;
/// The bit that inodes of files made during the mount have.
pub const MADE: u64 = 1 << 63;
/// The cookie that stands behind the lock file in a listing: behind all others.
const LAST: u64 = 1 << 62;
/// The cookie that stands behind the directory of delayed files.
const LAST_BUT_ONE: u64 = LAST - 1;
/// Attributes of so many files are kept that have lost their inodes.
pub const GIVEN_UP: usize = 256;
/// Serial numbers are above any file's number, and so behind it in a listing.
const FIRST_SERIAL: u64 = 1 << NUMBER_BITS;

/// A file's number in its frame, below 2^34: its place in a listing. What it holds may be replaced, or be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Number(pub u64);

/// A name in the root directory, by what it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Name {
    /// A file of the frame, whether it is there or not.
    Frame(Number),
    /// A tool's temporary file; one in the directory of delayed files by `names::within_delayed`.
    Temporary(OsString),
    /// The directory of delayed files.
    Delayed,
    /// The lock file of SOURCE.
    LockFile,
}

/// What is known of a file that is not just as SOURCE has it.
#[derive(Debug)]
pub struct Node {
    /// `None` once removed, as long as a client may still use the file: until its last close, and until its kernel forgets it.
    pub name: Option<Name>,
    /// The kernel has forgotten the file; the last close ends it.
    forgotten: bool,
    /// Owner, mode and times.
    pub meta: Meta,
    /// Handles open for writing.
    pub writers: u32,
    /// What is being written, in place of what the file held.
    pub writing: Option<Arc<Writing>>,
    /// What a temporary or removed file holds, but for `writing`: pinned, if it is the store's.
    pub kept: Content,
}

impl Node {
    fn new(name: Option<Name>, meta: Meta) -> Self {
        Node { name, forgotten: false, meta, writers: 0, writing: None, kept: Content::Empty }
    }

    /// The draft that readers see.
    pub fn seen_writing(&self) -> Option<&Arc<Writing>> {
        self.writing.as_ref().filter(|writing| !writing.is_refused())
    }
}

/// An open file.
#[derive(Debug)]
pub struct OpenHandle {
    /// Which.
    pub ino: Ino,
    /// For writing.
    pub write: bool,
    /// What this handle has written to last, by serial number.
    serial: AtomicU64,
    /// It was closed after its last write.
    is_closed: AtomicBool,
    /// The version of SOURCE that it was opened in.
    version: u64,
}

impl OpenHandle {
    /// Whether this handle has a part in what is being written under this number.
    pub fn has_part_in(&self, serial: u64) -> bool {
        self.write && self.serial.load(Relaxed) == serial
    }

    /// Whether it has a part in that, and was not closed after its last write.
    fn writes(&self, serial: u64) -> bool {
        self.has_part_in(serial) && !self.is_closed()
    }

    fn take_part_in(&self, serial: u64) {
        self.serial.store(serial, Relaxed);
        self.is_closed.store(false, Relaxed);
    }

    /// A client has closed it; another process may have it all the same.
    pub fn close(&self) {
        self.is_closed.store(true, Relaxed);
    }

    /// Whether it was closed after its last write.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }
}

/// What is at the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// A directory of the frame's files.
    Directory,
    /// The mount point itself is this file of the frame.
    File(Number),
}

/// The table.
#[derive(Debug)]
pub struct Nodes {
    nodes: HashMap<Ino, Node>,
    /// Files of the frame that have an inode other than the computed one, because they were made or moved here.
    linked: BTreeMap<Number, Ino>,
    /// Temporary files, and the order in which they came: their place in a listing.
    temporary: HashMap<OsString, (Ino, u64)>,
    order: BTreeMap<u64, OsString>,
    /// What the lock file of SOURCE is called, if it is shown.
    pub lock_file: Option<OsString>,
    /// Clients have removed it, or have not made it yet.
    pub lock_file_is_gone: bool,
    handles: HashMap<u64, OpenHandle>,
    /// How many of them each open file has.
    open: HashMap<Ino, u32>,
    last_serial: u64,
    /// Attributes of files that have lost their inodes, which the kernel may still know. The oldest first.
    given_up: VecDeque<Attr>,
    /// How often others have changed SOURCE.
    version: u64,
    /// When that was last seen.
    reloaded: Option<Instant>,
    root: Root,
    /// Of the root, if that is a directory.
    pub directory: Meta,
    /// Of the directory of delayed files, if a client has made it.
    pub delayed: Option<Meta>,
    /// Of SOURCE, and of all files that have no other.
    pub source: Meta,
    /// When a file of the frame last changed, whatever time a client has given it.
    pub written: SystemTime,
}

impl Nodes {
    /// A table of a frame as SOURCE has it.
    pub fn new(root: Root, source: Meta) -> Self {
        let mut nodes = Nodes {
            nodes: HashMap::new(),
            linked: BTreeMap::new(),
            temporary: HashMap::new(),
            order: BTreeMap::new(),
            lock_file: None,
            lock_file_is_gone: false,
            handles: HashMap::new(),
            open: HashMap::new(),
            last_serial: FIRST_SERIAL,
            given_up: VecDeque::new(),
            version: 0,
            reloaded: None,
            root,
            directory: source.of_directory(),
            delayed: None,
            source,
            written: source.mtime,
        };
        nodes.link_root();
        nodes
    }

    fn link_root(&mut self) {
        if let Root::File(number) = self.root {
            let source = self.source;
            self.linked.insert(number, ROOT);
            self.nodes.entry(ROOT).or_insert_with(|| Node::new(Some(Name::Frame(number)), source)).meta = source;
        }
    }

    /// Whether the root is a directory.
    pub fn in_directory(&self) -> bool {
        self.root == Root::Directory
    }

    /// A number never given before.
    pub fn serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    /// How often others have changed SOURCE.
    pub fn version(&self) -> u64 {
        self.version
    }

    // --- names ---

    /// The first and the last inode of files that SOURCE has now.
    pub fn shown(&self) -> (Ino, Ino) {
        let first = (FIRST_VERSION + self.version % VERSIONS) << NUMBER_BITS;
        (Ino(first), Ino(first | (FIRST_SERIAL - 1)))
    }

    /// The inode of a file of the frame, if it is there.
    pub fn ino(&self, file: Number) -> Ino {
        let computed = || Ino(self.shown().0.0 | file.0);
        self.linked.get(&file).copied().unwrap_or_else(computed)
    }

    /// The inode of a temporary file.
    pub fn temporary(&self, name: &OsStr) -> Option<Ino> {
        self.temporary.get(name).map(|(ino, _)| *ino)
    }

    /// The name of a file: none if it has lost it, an error if there is no such file. One of the frame may be gone as well.
    pub fn name(&self, ino: Ino) -> Result<Option<Name>> {
        if let Some(node) = self.nodes.get(&ino) {
            return Ok(node.name.clone());
        }
        match number_of(ino) {
            None if ino == LOCK_FILE && self.lock_file.is_some() => Ok(Some(Name::LockFile)),
            None if ino == DELAYED_DIR && self.delayed.is_some() => Ok(Some(Name::Delayed)),
            Some(file) if self.ino(file) == ino => Ok(Some(Name::Frame(file))),
            _ => Err(ViewError::Gone),
        }
    }

    /// Whether a file of the frame was made or moved here, which may hold nothing yet.
    pub fn is_linked(&self, file: Number) -> bool {
        self.linked.contains_key(&file)
    }

    /// Such files, from a number on.
    pub fn linked(&self, from: Number) -> impl Iterator<Item = Number> {
        self.linked.range(from..).map(|(file, _)| *file)
    }

    /// Temporary files, the directory of delayed ones and the lock file from a cookie on, each with the one that stands behind it.
    pub fn others_from(&self, cookie: u64) -> impl Iterator<Item = (u64, Ino, OsString)> {
        let temporary = |(place, name): (&u64, &OsString)| match delayed(name) {
            Some(_) => None,
            None => Some((place + 1, self.temporary(name)?, name.clone())),
        };
        let directory = self.delayed.iter().filter(move |_| cookie < LAST_BUT_ONE);
        let directory = directory.map(|_| (LAST_BUT_ONE, DELAYED_DIR, DELAYED.into()));
        let is_listed = cookie < LAST && !self.lock_file_is_gone;
        let lock_file = self.lock_file.iter().filter(move |_| is_listed).map(|name| (LAST, LOCK_FILE, name.clone()));
        self.order.range(cookie..).filter_map(temporary).chain(directory).chain(lock_file)
    }

    /// The files in the directory of delayed ones, likewise.
    pub fn delayed_from(&self, cookie: u64) -> impl Iterator<Item = (u64, Ino, OsString)> {
        let entry = |(place, name): (&u64, &OsString)| Some((place + 1, self.temporary(name)?, delayed(name)?.to_owned()));
        self.order.range(cookie..).filter_map(entry)
    }

    /// What is known of a file, if it is not just as SOURCE has it.
    pub fn get(&self, ino: Ino) -> Option<&Node> {
        self.nodes.get(&ino)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, ino: Ino) -> Option<&mut Node> {
        self.nodes.get_mut(&ino)
    }

    /// All such files.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, &Node)> {
        self.nodes.iter().map(|(ino, node)| (*ino, node))
    }

    /// Notes that a file is there, with its name and attributes. It has no entry yet.
    pub fn insert(&mut self, ino: Ino, name: Name, meta: Meta) {
        self.nodes.insert(ino, Node::new(Some(name), meta));
    }

    /// A new file, without a name as yet.
    pub fn make(&mut self, meta: Meta) -> Ino {
        let ino = Ino(MADE | self.serial());
        self.nodes.insert(ino, Node::new(None, meta));
        ino
    }

    /// Gives a name that is free to a file without one.
    pub fn link(&mut self, name: Name, ino: Ino) {
        match &name {
            Name::Frame(file) => {
                self.linked.insert(*file, ino);
            }
            Name::Temporary(text) => {
                let place = self.serial();
                self.temporary.insert(text.clone(), (ino, place));
                self.order.insert(place, text.clone());
            }
            Name::LockFile | Name::Delayed => {}
        }
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.name = Some(name);
        }
        self.written = SystemTime::now();
        self.directory.written(self.written);
    }

    /// Takes a name away.
    pub fn unlink(&mut self, name: &Name) {
        let ino = match name {
            Name::Frame(file) => {
                let ino = self.ino(*file);
                self.linked.remove(file);
                Some(ino)
            }
            Name::Temporary(text) => self.temporary.remove(text).map(|(ino, place)| {
                self.order.remove(&place);
                ino
            }),
            Name::LockFile | Name::Delayed => None,
        };
        let now = SystemTime::now();
        if let Some(node) = ino.and_then(|ino| self.nodes.get_mut(&ino)) {
            node.name = None;
            node.meta.ctime = now;
        }
        self.written = now;
        self.directory.written(now);
    }

    /// Ends what is known of a file. What it held is the caller's to give back.
    pub fn remove(&mut self, ino: Ino) -> Option<Node> {
        let node = self.nodes.remove(&ino)?;
        if let Some(writing) = &node.writing {
            writing.detach();
        }
        Some(node)
    }

    /// The kernel has forgotten a file. True if nobody can use it any more.
    pub fn forget(&mut self, ino: Ino) -> bool {
        let open = self.is_open(ino);
        match self.nodes.get_mut(&ino) {
            Some(node) if node.name.is_none() => {
                node.forgotten = open; // its last close is still on the way
                !open
            }
            _ => false,
        }
    }

    // --- handles ---

    /// Opens a file.
    pub fn open(&mut self, ino: Ino, write: bool) -> Handle {
        let handle = self.serial();
        self.handles.insert(
            handle,
            OpenHandle { ino, write, serial: AtomicU64::new(0), is_closed: AtomicBool::new(false), version: self.version },
        );
        *self.open.entry(ino).or_default() += 1;
        if let Some(node) = self.nodes.get_mut(&ino).filter(|_| write) {
            node.writers += 1;
        }
        Handle(handle)
    }

    /// Ends a handle. Answers the file, and whether nobody can use it any more.
    pub fn close(&mut self, handle: Handle) -> Option<(OpenHandle, bool)> {
        let open = self.handles.remove(&handle.0)?;
        let last = self.open.get_mut(&open.ino).is_none_or(|count| {
            *count -= 1;
            *count == 0
        });
        if last {
            self.open.remove(&open.ino);
        }
        let node = self.nodes.get_mut(&open.ino);
        let ends = node.is_some_and(|node| {
            node.writers = node.writers.saturating_sub(u32::from(open.write));
            last && node.name.is_none() && node.forgotten
        });
        Some((open, ends))
    }

    /// An open file.
    ///
    /// # Errors
    /// There is none.
    pub fn handle(&self, handle: Handle) -> Result<&OpenHandle> {
        self.handles.get(&handle.0).ok_or(ViewError::BadHandle)
    }

    /// Whether what a handle was opened for is still there, where its inode does not tell.
    ///
    /// # Errors
    /// [`ViewError::Gone`] if others have changed it since.
    pub fn check_version(&self, open: &OpenHandle) -> Result<()> {
        if open.ino == ROOT && open.version != self.version { Err(ViewError::Gone) } else { Ok(()) }
    }

    /// A handle is about to write under this number. Returns another one that writes under it, if the handle did not write under it
    /// before.
    ///
    /// # Errors
    /// There is no such handle.
    pub fn take_part(&self, handle: Handle, serial: u64) -> Result<Option<Handle>> {
        let open = self.handle(handle)?;
        if open.writes(serial) {
            return Ok(None);
        }
        open.take_part_in(serial);
        // Of two that do this at the same time, one finds the other.
        fence(SeqCst);
        Ok(self.another_writer(handle, serial))
    }

    /// Another handle that has written under this number and was not closed since.
    pub fn another_writer(&self, handle: Handle, serial: u64) -> Option<Handle> {
        let mut others = self.handles.iter().filter(|(number, open)| **number != handle.0 && open.writes(serial));
        others.next().map(|(number, _)| Handle(*number))
    }

    /// Whether a handle has written under this number and was not closed since.
    pub fn is_written(&self, serial: u64) -> bool {
        self.handles.values().any(|open| open.writes(serial))
    }

    /// All open files.
    pub fn handles(&self) -> impl Iterator<Item = &OpenHandle> {
        self.handles.values()
    }

    /// Whether somebody has a file open.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.open.contains_key(&ino)
    }

    /// Whether nobody uses a file that a mount that begins now would not show.
    pub fn is_idle(&self) -> bool {
        self.handles.is_empty() && self.nodes.values().all(|node| node.name.is_some() && !node.kept.is_of_store())
    }

    /// Whether inodes are those of a table that would begin now: none was made here, and SOURCE was never read again.
    pub fn is_pristine(&self) -> bool {
        self.version == 0
            && self.linked.keys().all(|file| self.ino(*file) == ROOT)
            && self.temporary.is_empty()
            && self.delayed.is_none()
    }

    /// Handles that may write to a file.
    pub fn writers(&self, ino: Ino) -> u32 {
        self.nodes.get(&ino).map_or(0, |node| node.writers)
    }

    /// Whether nobody has an older version of a file open under the same inode.
    pub fn is_of_one_version(&self, ino: Ino) -> bool {
        ino != ROOT || self.handles.values().all(|open| open.ino != ROOT || open.version == self.version)
    }

    /// Whether others have changed SOURCE so little time ago.
    pub fn is_reloaded_since(&self, time: Duration) -> bool {
        self.reloaded.is_some_and(|when| when.elapsed() < time)
    }

    // --- other programs ---

    /// Others have changed SOURCE, which has these attributes now; nothing was uncommitted. Files of the frame, and files that hold
    /// something of the store's, are gone. Other temporary files stay.
    pub fn reloaded(&mut self, source: Meta, invalidations: &mut Invalidations) {
        self.version += 1;
        self.reloaded = Some(Instant::now());
        (self.directory, self.source, self.written) = (source.of_directory(), source, source.mtime);
        self.linked.clear();
        let (temporary, order) = (&mut self.temporary, &mut self.order);
        self.nodes.retain(|ino, node| {
            if node.seen_writing().is_some() {
                // Nothing is read of what it held before.
                node.kept = Content::Empty;
            }
            // Who has the root open keeps it open.
            let stays = *ino == ROOT || !matches!(node.name, Some(Name::Frame(_))) && !node.kept.is_of_store();
            if let (false, Some(Name::Temporary(text))) = (stays, &node.name) {
                if let Some((_, place)) = temporary.remove(text) {
                    order.remove(&place);
                }
                invalidations.push(match delayed(text) {
                    Some(name) => Invalidation::Entry(DELAYED_DIR, name.to_owned()),
                    None => Invalidation::Entry(ROOT, text.clone()),
                });
            }
            if let Some(writing) = node.writing.as_ref().filter(|_| !stays) {
                writing.detach();
            }
            stays
        });
        self.link_root();
    }

    /// A file loses its inode, with these attributes.
    pub fn give_up(&mut self, attr: Attr) {
        self.given_up.push_back(attr);
        if self.given_up.len() > GIVEN_UP {
            self.given_up.pop_front();
        }
    }

    /// The last attributes of a file that has lost its inode.
    pub fn given_up(&self, ino: Ino) -> Option<Attr> {
        self.given_up.iter().find(|attr| attr.ino == ino).copied()
    }

    /// The kernel has forgotten a file that had lost its inode.
    pub fn forget_given_up(&mut self, ino: Ino) {
        self.given_up.retain(|attr| attr.ino != ino);
    }

    /// Takes over owner, mode and times of SOURCE, where a client has set no others; its mtime only if so.
    pub fn take_attributes(&mut self, now: Meta, mtime: bool) {
        let now = if mtime { now } else { Meta { mtime: self.source.mtime, ..now } };
        let before = std::mem::replace(&mut self.source, now);
        self.directory.take_over(before.of_directory(), now.of_directory());
        self.nodes.values_mut().for_each(|node| node.meta.take_over(before, now));
    }
}

/// The number of a file that SOURCE has, or had in an earlier version, in the frame.
pub fn number_of(ino: Ino) -> Option<Number> {
    (ino.0 & MADE == 0 && ino.0 >> NUMBER_BITS >= FIRST_VERSION).then_some(Number(ino.0 & (FIRST_SERIAL - 1)))
}
