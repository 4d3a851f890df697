//! What the sparse view knows: files, what they hold, and the index that gives them their places.
//!
//! Nothing here blocks on the disk except where said; the view takes [`State`] under one lock, shared for reads.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use parking_lot::{RwLock, RwLockReadGuard};

use super::table::Table;
use crate::format::index_file::{IndexFile, KnownIndex};
use crate::format::times::Times;
use crate::format::{ChunkId, IndexEntry};
use crate::store::{ChunkKey, Draft, FrameStore, ReadAt, SourceStat};
use crate::view::meta::Meta;
use crate::view::names::Name;
use crate::view::xattr::FormerLens;
use crate::view::{Handle, Ino, Inval, Invals, ROOT, Result, ViewError};

/// The inode of the index file that was there at mount.
const INDEX_INO: Ino = Ino(2);
/// Bits of an inode that are a chunk's id. Those above count the versions of SOURCE that others have made, from [`FIRST_VERSION`] on.
const ID_BITS: u32 = 32;
/// Inode of chunk 0 as it was at mount, without those bits; the others follow.
const FIRST_VERSION: u64 = 2;
/// As many versions have inodes of their own.
const LAST_VERSION: u64 = (1 << 31) - 1;
/// The bit that inodes of files made during the mount have.
const NEW_INO: u64 = 1 << 63;
/// Numbers that are given out one after the other are above any chunk's place in a listing.
const FIRST_SERIAL: u64 = 1 << 34;

/// Bytes being written to a file, in place of what it held.
///
/// Lock order: the view's state before `inner`. `inner` may be held across I/O, so whoever holds the state must not wait for it. A
/// close holds it shared while it stores the bytes; those who read them do not queue up behind a writer that waits for that.
#[derive(Debug)]
pub struct Writing {
    /// Tells this draft from others of the same file.
    pub serial: u64,
    /// Nothing of what the file held before is in it, but for what was written again.
    pub from_nothing: bool,
    /// A close found no chunk: readers see the old bytes again, but those who were writing may go on.
    pub refused: AtomicBool,
    /// No longer what the file holds: a writer who finds this set, with `inner` locked, must look again.
    pub detached: AtomicBool,
    pub inner: RwLock<Inner>,
}

impl Writing {
    /// The bytes, if they are those of a version and nobody is changing them. Nobody does before the answer is dropped: whoever ends
    /// the draft keeps it until that is done, or what is written in between would be lost.
    pub fn still(&self, version: u64) -> Option<RwLockReadGuard<'_, Inner>> {
        self.inner.try_read_recursive().filter(|inner| inner.version == version)
    }
}

/// The part of a draft that changes with every write.
#[derive(Debug)]
pub struct Inner {
    pub bytes: Draft,
    /// Bytes that it may have: fewer once it is renamed onto the index.
    pub most: u64,
    /// Counts changes of `bytes`.
    pub version: u64,
    /// Changed since a close looked at it.
    pub dirty: bool,
    pub mtime: SystemTime,
}

impl Inner {
    /// Notes a change of the bytes, made now.
    pub fn changed(&mut self) {
        self.version += 1;
        self.dirty = true;
        self.mtime = SystemTime::now();
    }
}

/// What a file holds that is neither in the table nor the index.
#[derive(Debug)]
pub enum Kept {
    Nothing,
    /// A stored chunk, pinned.
    Chunk(ChunkKey, Option<u32>),
    Bytes(Arc<Vec<u8>>),
}

/// A file that differs from what its name says at mount: written, with attributes of its own, renamed, or without a name.
#[derive(Debug)]
pub struct Node {
    /// `None` once removed, as long as a client may still use the file: until its last close, and until its kernel forgets it.
    pub name: Option<Name>,
    /// The kernel has forgotten the file; the last close ends it.
    pub forgotten: bool,
    pub meta: Meta,
    /// Handles open for writing.
    pub writers: u32,
    pub writing: Option<Arc<Writing>>,
    /// For temporary and removed files.
    pub kept: Kept,
}

/// A chunk that no index names.
#[derive(Debug, Clone, Copy)]
pub struct Unnamed {
    /// The state's `changes` when it was accepted.
    pub accepted: u64,
    /// Its uncompressed size.
    pub nbytes: u32,
}

/// An open file.
#[derive(Debug)]
pub struct Open {
    pub ino: Ino,
    pub write: bool,
    /// The draft that this handle has written to last, by serial number.
    pub serial: AtomicU64,
}

/// What a file's bytes are read from.
#[derive(Debug, Clone)]
pub enum Source {
    Empty,
    Chunk(ChunkKey, Option<u32>),
    Bytes(Arc<Vec<u8>>),
    Writing(Arc<Writing>),
}

/// What the name of a chunk file meant when the frame was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbering {
    /// The chunk's position in the index.
    ByPosition,
    /// The chunk's id in SOURCE. A new file of a larger id than all others is behind them.
    ById,
}

/// Whether the index file is one that can be committed.
#[derive(Debug)]
pub enum Held {
    /// It is the adopted index.
    No,
    /// It is missing, being written, or does not parse as a whole. Whenever the index file has a draft.
    Unparsed,
    /// It parses, but chunks that it names are not there.
    Waiting(Box<IndexFile>, HashSet<ChunkId>),
}

#[derive(Debug)]
pub struct State {
    /// How often others have changed SOURCE. Its chunk files have other inodes each time.
    version: u64,
    pub table: Table,
    /// Files of chunks that were made or renamed during the mount.
    chunk_inos: HashMap<ChunkId, Ino>,
    /// The index file, unless removed.
    pub index_ino: Option<Ino>,
    /// Temporary files, and the order in which they came: their place in a listing.
    temps: HashMap<OsString, (Ino, u64)>,
    temp_order: BTreeMap<u64, OsString>,
    pub nodes: HashMap<Ino, Node>,
    pub handles: HashMap<u64, Open>,
    open_counts: HashMap<Ino, u32>,
    last_serial: u64,

    /// The index that positions in `table` follow; its header is kept true while chunks are replaced.
    pub adopted: Option<IndexFile>,
    /// What the names of chunk files mean.
    pub numbering: Numbering,
    /// `adopted` names a chunk at more than one position, of which `table` has the last.
    pub named_twice: bool,
    /// The index chunk that was decoded last.
    pub known_index: Option<Arc<KnownIndex>>,
    /// The index file's bytes where it is not being written.
    pub index_bytes: Option<Arc<Vec<u8>>>,
    pub held: Held,
    /// `adopted` says something else than `index_bytes`: to be mended when the mount settles.
    pub index_stale: bool,
    /// Chunks that `adopted` names and that have no file, with the uncompressed size they had where chunks vary in size.
    pub removed: BTreeMap<ChunkId, u32>,
    /// Chunks that `adopted` does not name.
    pub unnamed: BTreeMap<ChunkId, Unnamed>,
    /// Files with a draft that SOURCE did not take when they were closed.
    pub unstored: HashSet<Ino>,
    /// `changes` when the index was last written.
    pub index_changed: u64,
    /// What clients may still take for the index file's length.
    pub former_lens: FormerLens,
    /// Uncompressed sizes of the chunks that `adopted` names and no commit has taken yet.
    pub fresh: HashMap<ChunkId, u32>,

    /// Counts everything that matters to the frame.
    pub changes: u64,
    /// `changes` when last something changed that a commit writes: a chunk without a place is nothing to it.
    pub frame_changed: u64,
    /// `frame_changed` as of the last commit.
    pub published: u64,
    pub last_change: Instant,
    /// Settling has something to look at.
    pub unsettled: bool,

    pub root: Meta,
    pub defaults: Meta,
    /// When chunk files got what they held at mount, by position, as far as that is known.
    pub times: Arc<Times>,
}

impl State {
    /// `keys` are those of the index's entries.
    pub fn new(
        index: Option<(IndexFile, Numbering)>,
        keys: &[IndexEntry<ChunkKey>],
        stat: SourceStat,
        version: u64,
    ) -> Result<Self> {
        let (mut adopted, numbering) = index.map_or((None, Numbering::ByPosition), |(index, numbering)| (Some(index), numbering));
        let entries = adopted.as_ref().map(|index| index.entries.as_slice()).unwrap_or_default();
        // Of a frame that is nearly all special chunks, the few that are stored are kept one by one.
        let count = stored(entries).count();
        let len = stored(entries).map(|id| id.0 as usize + 1).max().unwrap_or(0);
        let mut table = Table::with_len(if count >= len / 4 { len } else { 0 });
        let mut named_twice = false;
        for (position, (id, key)) in (0u32..).zip(entries.iter().zip(keys)) {
            if let (IndexEntry::Stored(id), IndexEntry::Stored(key)) = (id, key) {
                named_twice |= table.get(*id).exists();
                table.set_chunk(*id, *key, 0);
                table.set_position(*id, Some(position));
            }
        }
        let index_bytes = match &mut adopted {
            Some(index) => Some(Arc::new(index.make_file().map_err(ViewError::Rejected)?)),
            None => None,
        };
        let defaults = Meta::from(stat);
        let root = defaults.of_directory();
        Ok(State {
            version,
            table,
            chunk_inos: HashMap::new(),
            index_ino: index_bytes.is_some().then_some(INDEX_INO),
            temps: HashMap::new(),
            temp_order: BTreeMap::new(),
            nodes: HashMap::new(),
            handles: HashMap::new(),
            open_counts: HashMap::new(),
            last_serial: FIRST_SERIAL,
            held: if index_bytes.is_some() { Held::No } else { Held::Unparsed },
            adopted,
            named_twice,
            numbering,
            known_index: None,
            index_bytes,
            index_stale: false,
            removed: BTreeMap::new(),
            unnamed: BTreeMap::new(),
            unstored: HashSet::new(),
            index_changed: 0,
            former_lens: FormerLens::default(),
            fresh: HashMap::new(),
            changes: 0,
            frame_changed: 0,
            published: 0,
            last_change: Instant::now(),
            unsettled: false,
            root,
            defaults,
            times: Arc::default(),
        })
    }

    /// A number never given before: for handles, drafts and the order of temporary files.
    pub fn serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    /// Notes that something was written that settling, or a commit, will have to look at.
    pub fn touch(&mut self) {
        self.last_change = Instant::now();
        self.unsettled = true;
    }

    /// Notes that what a commit would write is another.
    pub fn changed_frame(&mut self) {
        self.changes += 1;
        self.frame_changed = self.changes;
    }

    // --- names ---

    /// The inode of a name.
    pub fn find(&self, name: &Name) -> Option<Ino> {
        match name {
            Name::Index => self.index_ino,
            Name::Chunk(id) => self.table.get(*id).exists().then(|| self.chunk_ino(*id)),
            Name::Temp(name) => self.temps.get(name).map(|(ino, _)| *ino),
        }
    }

    /// The inode of a chunk file that exists.
    pub fn chunk_ino(&self, id: ChunkId) -> Ino {
        self.chunk_inos.get(&id).copied().unwrap_or(Ino((FIRST_VERSION + self.version) << ID_BITS | u64::from(id.0)))
    }

    /// An inode never given before.
    fn new_ino(&mut self) -> Ino {
        Ino(NEW_INO | self.serial())
    }

    /// What the next version of SOURCE counts as.
    pub fn next_version(&self) -> u64 {
        (self.version + 1).min(LAST_VERSION - FIRST_VERSION)
    }

    /// The name of a file, unless it has lost it.
    pub fn name_of(&self, ino: Ino) -> Result<Option<Name>> {
        if let Some(node) = self.nodes.get(&ino) {
            return Ok(node.name.clone());
        }
        if Some(ino) == self.index_ino {
            return Ok(Some(Name::Index));
        }
        match chunk_of(ino) {
            Some(id) if self.table.get(id).exists() && self.chunk_ino(id) == ino => Ok(Some(Name::Chunk(id))),
            _ => Err(ViewError::Gone),
        }
    }

    /// Owner, mode and times of a file that nothing has changed since mount.
    pub fn meta_at_mount(&self, ino: Ino) -> Meta {
        match chunk_of(ino) {
            Some(id) => Meta { mtime: self.time_at_mount(id), ..self.defaults },
            None => self.defaults,
        }
    }

    /// The node of a file that exists, made if it had none.
    pub fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        if !self.nodes.contains_key(&ino) {
            let name = self.name_of(ino)?;
            let meta = self.meta_at_mount(ino);
            self.nodes.insert(ino, Node { name, forgotten: false, meta, writers: 0, writing: None, kept: Kept::Nothing });
        }
        self.nodes.get_mut(&ino).ok_or(ViewError::Gone)
    }

    /// Gives `name` to a new or nameless file. The name must be free.
    pub fn link(&mut self, name: Name, ino: Ino) {
        match &name {
            Name::Index => self.index_ino = Some(ino),
            Name::Chunk(id) => {
                self.table.set_blank(*id);
                self.chunk_inos.insert(*id, ino);
            }
            Name::Temp(text) => {
                let order = self.serial();
                self.temps.insert(text.clone(), (ino, order));
                self.temp_order.insert(order, text.clone());
            }
        }
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.name = Some(name);
        }
        self.root.mtime = SystemTime::now();
    }

    /// Makes an empty file under a name that is free.
    pub fn new_file(&mut self, name: Name, meta: Meta) -> Ino {
        let ino = self.new_ino();
        self.nodes.insert(ino, Node { name: None, forgotten: false, meta, writers: 0, writing: None, kept: Kept::Nothing });
        self.link(name, ino);
        ino
    }

    /// Takes a name away. What the file held goes to its node while somebody has it open, or with `keep`, for a file that the
    /// kernel knows: one that is about to open it must find it as long as that may be. Answers the file, if there was one.
    pub fn unlink(&mut self, name: &Name, keep: bool, store: &dyn FrameStore) -> Option<Ino> {
        let ino = self.find(name)?;
        let keep = keep || self.open_counts.contains_key(&ino);
        let mut kept = Kept::Nothing;
        if keep {
            self.node(ino).ok()?;
        }
        match name {
            Name::Index => {
                self.index_ino = None;
                kept = self.index_bytes.take().map_or(Kept::Nothing, Kept::Bytes);
                self.held = Held::Unparsed;
                self.touch();
            }
            Name::Chunk(id) => {
                self.chunk_inos.remove(id);
                let nbytes = self.nbytes_if_varying(*id, store);
                if let Some((key, len)) = self.table.remove(*id) {
                    if keep {
                        store.pin(key);
                        kept = Kept::Chunk(key, len);
                    }
                    store.discard(key);
                }
                self.unnamed.remove(id);
                self.fresh.remove(id);
                if self.table.get(*id).position().is_some() {
                    self.removed.insert(*id, nbytes);
                    self.changed_frame();
                }
                if let Held::Waiting(index, missing) = &mut self.held
                    && index.entries.contains(&IndexEntry::Stored(*id))
                {
                    missing.insert(*id);
                }
                self.touch();
            }
            Name::Temp(text) => {
                if let Some((_, order)) = self.temps.remove(text) {
                    self.temp_order.remove(&order);
                }
                if let Some(node) = self.nodes.get_mut(&ino) {
                    kept = std::mem::replace(&mut node.kept, Kept::Nothing);
                }
            }
        }
        match self.nodes.get_mut(&ino) {
            Some(node) if keep => {
                node.name = None;
                node.kept = kept;
                node.meta.ctime = SystemTime::now();
            }
            _ => {
                if let Kept::Chunk(key, _) = kept {
                    store.unpin(key);
                }
                self.drop_node(ino, store);
            }
        }
        self.root.mtime = SystemTime::now();
        Some(ino)
    }

    /// The uncompressed size of a chunk whose size nothing but itself tells.
    fn nbytes_if_varying(&self, id: ChunkId, store: &dyn FrameStore) -> u32 {
        let varying = self.adopted.as_ref().is_some_and(|index| index.header.chunksize() == 0);
        match self.table.get(id).key() {
            Some(key) if varying => store.chunk_header(&store.enter(), key).map_or(0, |header| header.nbytes),
            _ => 0,
        }
    }

    /// Forgets what is known of a file, after its name is gone or because it is as at mount again.
    fn drop_node(&mut self, ino: Ino, store: &dyn FrameStore) {
        if let Some(node) = self.nodes.remove(&ino) {
            if let Some(writing) = node.writing {
                writing.detached.store(true, Ordering::Relaxed);
            }
            if let Kept::Chunk(key, _) = node.kept {
                store.unpin(key);
            }
        }
    }

    /// The names from a listing's cookie on, each with its inode and the cookie that stands after it.
    pub fn list(&self, cookie: u64) -> impl Iterator<Item = (u64, Ino, OsString)> {
        // 0: the index file; then the chunks; then temporary files, whose serial numbers are larger than any chunk's.
        let index = (cookie < 1).then_some(self.index_ino).flatten().map(|ino| (1, ino, Name::Index.to_os_string()));
        let first = cookie.saturating_sub(1);
        let chunks =
            self.table.files_from(first).map(|(id, _)| (u64::from(id.0) + 2, self.chunk_ino(id), Name::Chunk(id).to_os_string()));
        let temps = self.temp_order.range(cookie..).filter_map(|(order, name)| {
            let (ino, _) = self.temps.get(name)?;
            Some((order + 1, *ino, name.clone()))
        });
        index.into_iter().chain(chunks).chain(temps)
    }

    /// Parses a name in the root directory.
    pub fn parse_name(parent: Ino, name: &OsStr) -> Result<Option<Name>> {
        match parent {
            ROOT if name.len() > 255 => Err(ViewError::NameTooLong),
            ROOT => Ok(Name::parse(name)),
            _ => Err(ViewError::NotDirectory),
        }
    }

    // --- contents ---

    /// What a file's bytes are read from, a draft that was refused left aside.
    pub fn source(&self, ino: Ino) -> Result<Source> {
        if let Some(writing) = self.nodes.get(&ino).and_then(|node| node.writing.as_ref())
            && !writing.refused.load(Ordering::Relaxed)
        {
            return Ok(Source::Writing(writing.clone()));
        }
        self.settled_source(ino)
    }

    /// What a file held before it was written to.
    pub fn settled_source(&self, ino: Ino) -> Result<Source> {
        Ok(match self.name_of(ino)? {
            Some(Name::Index) => self.index_bytes.clone().map_or(Source::Empty, Source::Bytes),
            Some(Name::Chunk(id)) => {
                let slot = self.table.get(id);
                slot.key().map_or(Source::Empty, |key| Source::Chunk(key, slot.len()))
            }
            Some(Name::Temp(_)) | None => match self.nodes.get(&ino).map(|node| &node.kept) {
                Some(Kept::Chunk(key, len)) => Source::Chunk(*key, *len),
                Some(Kept::Bytes(bytes)) => Source::Bytes(bytes.clone()),
                _ => Source::Empty,
            },
        })
    }

    /// Remembers the length of a stored chunk, if the file still holds it.
    pub fn learn_len(&self, ino: Ino, key: ChunkKey, len: u32) {
        if let Ok(Some(Name::Chunk(id))) = self.name_of(ino) {
            let slot = self.table.get(id);
            if slot.key() == Some(key) {
                slot.learn_len(len);
            }
        }
    }

    /// Begins a draft of a file in place of what it holds now.
    pub fn begin(&mut self, ino: Ino, bytes: Draft) -> Result<u64> {
        let serial = self.serial();
        let is_index = self.index_ino == Some(ino);
        let node = self.node(ino)?;
        let from_nothing = bytes.is_empty();
        let inner = RwLock::new(Inner { bytes, most: i64::MAX as u64, version: 0, dirty: true, mtime: SystemTime::now() });
        let writing = Writing { serial, from_nothing, refused: AtomicBool::new(false), detached: AtomicBool::new(false), inner };
        if let Some(old) = node.writing.replace(Arc::new(writing)) {
            old.detached.store(true, Ordering::Relaxed);
        }
        if is_index {
            // From here on the file is not the adopted index any more, whatever it will be.
            self.held = Held::Unparsed;
        }
        Ok(serial)
    }

    /// Ends a file's draft; `changed` is when it was last written to, where that is to stay.
    pub fn end_writing(&mut self, ino: Ino, changed: Option<SystemTime>) {
        if let Some(node) = self.nodes.get_mut(&ino)
            && let Some(writing) = node.writing.take()
        {
            writing.detached.store(true, Ordering::Relaxed);
            if let Some(mtime) = changed {
                node.meta.mtime = mtime;
                node.meta.ctime = mtime;
            }
        }
    }

    /// Chunk files that were emptied, and that nobody has open for writing, hold their chunks again.
    pub fn drop_empty(&mut self, invals: &mut Invals) {
        let emptied = |node: &Node| match (&node.name, &node.writing) {
            (Some(Name::Chunk(id)), Some(writing)) if node.writers == 0 && self.table.get(*id).key().is_some() => {
                writing.inner.try_read_recursive().is_some_and(|inner| inner.bytes.is_empty())
            }
            _ => false,
        };
        let emptied: Vec<Ino> = self.nodes.iter().filter(|(_, node)| emptied(node)).map(|(ino, _)| *ino).collect();
        for ino in emptied {
            self.end_writing(ino, None);
            invals.push(Inval::Data(ino));
        }
    }

    // --- handles ---

    pub fn open(&mut self, ino: Ino, write: bool, serial: u64) -> Handle {
        let handle = self.serial();
        self.handles.insert(handle, Open { ino, write, serial: AtomicU64::new(serial) });
        *self.open_counts.entry(ino).or_default() += 1;
        if write && let Some(node) = self.nodes.get_mut(&ino) {
            node.writers += 1;
        }
        Handle(handle)
    }

    /// Ends a handle, and with the last one what only it kept alive.
    pub fn close(&mut self, handle: Handle, store: &dyn FrameStore) {
        let Some(open) = self.handles.remove(&handle.0) else { return };
        let ino = open.ino;
        let last = match self.open_counts.get_mut(&ino) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => {
                self.open_counts.remove(&ino);
                true
            }
        };
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        if open.write {
            node.writers = node.writers.saturating_sub(1);
            let refused = node.writing.as_ref().is_some_and(|writing| writing.refused.load(Ordering::Relaxed));
            // Nobody has seen any of it since it was refused, so nothing is said: see `View::release`.
            if node.writers == 0 && refused {
                self.end_writing(ino, None);
            }
        }
        if last && self.nodes.get(&ino).is_some_and(|node| node.name.is_none() && node.forgotten) {
            self.drop_node(ino, store);
        }
    }

    /// Whether there is anything to do when the kernel forgets a file.
    pub fn outlived(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.name.is_none())
    }

    /// The kernel has forgotten a file that lost its name.
    pub fn forget(&mut self, ino: Ino, store: &dyn FrameStore) {
        if self.outlived(ino) {
            if self.open_counts.contains_key(&ino) {
                // Its last close is still on the way.
                self.node(ino).map(|node| node.forgotten = true).ok();
            } else {
                self.drop_node(ino, store);
            }
        }
    }

    // --- commits ---

    /// Whether anything is written that SOURCE does not have.
    pub fn is_uncommitted(&self) -> bool {
        let written = |node: &Node| match &node.name {
            Some(Name::Temp(_)) => matches!(node.kept, Kept::Chunk(..)),
            Some(_) => node.writing.as_ref().is_some_and(|writing| !writing.refused.load(Ordering::Relaxed)),
            None => false,
        };
        self.frame_changed != self.published
            || !matches!(self.held, Held::No)
            || self.index_stale
            || !self.removed.is_empty()
            || !self.unnamed.is_empty()
            || self.nodes.values().any(written)
    }

    /// Whether the index file is another than SOURCE's.
    pub fn has_another_index(&self) -> bool {
        self.frame_changed != self.published || self.index_stale || !self.removed.is_empty()
    }

    /// Takes over what SOURCE holds now, which others have changed; there is nothing uncommitted. Of what was SOURCE's, whoever has it open
    /// finds it gone. Temporary files stay.
    pub fn reloaded(&mut self, now: State, invals: &mut Invals) {
        let State { version, table, adopted, index_bytes, root, defaults, times, named_twice, numbering, .. } = now;
        (self.version, self.table, self.adopted, self.index_bytes) = (version, table, adopted, index_bytes);
        (self.root, self.defaults, self.times) = (root, defaults, times);
        (self.named_twice, self.numbering) = (named_twice, numbering);
        self.chunk_inos.clear();
        self.index_ino = Some(self.new_ino());
        self.held = Held::No;
        self.nodes.retain(|_, node| {
            let is_ours = match (&node.name, &node.kept) {
                (Some(Name::Temp(_)), _) => true,
                (Some(Name::Chunk(_) | Name::Index), _) | (None, Kept::Chunk(..)) => false,
                (None, _) => true,
            };
            if let Some(writing) = node.writing.as_ref().filter(|_| !is_ours) {
                writing.detached.store(true, Ordering::Relaxed);
            }
            is_ours
        });
        self.unstored.clear();
        self.fresh.clear();
        self.former_lens.clear();
        self.index_changed = self.changes;
        invals.push(Inval::Entry(ROOT, Name::Index.to_os_string()));
    }

    /// Takes over owner, mode and times of SOURCE, where a client has set no others. Nobody but this mount has written to it since the
    /// last time, so its mtime says nothing of files that are as they were at mount.
    pub fn take_attributes(&mut self, now: Meta) {
        let now = Meta { mtime: self.defaults.mtime, ..now };
        let before = std::mem::replace(&mut self.defaults, now);
        self.root.take_over(before.of_directory(), now.of_directory());
        self.nodes.values_mut().for_each(|node| node.meta.take_over(before, now));
    }

    /// Whether there is something new that can be committed.
    pub fn publishable(&self) -> bool {
        self.frame_changed != self.published
            && matches!(self.held, Held::No)
            && self.index_ino.is_some()
            && self.adopted.is_some()
            && self.removed.is_empty()
    }
}

/// The chunk of an inode, if it is a chunk file's as it was at mount, or as others have made it since.
fn chunk_of(ino: Ino) -> Option<ChunkId> {
    (FIRST_VERSION..=LAST_VERSION).contains(&(ino.0 >> ID_BITS)).then_some(ChunkId(ino.0 as u32))
}

/// The name of a file that was SOURCE's until others changed that.
pub fn former_name(ino: Ino) -> Name {
    chunk_of(ino).map_or(Name::Index, Name::Chunk)
}

/// The stored chunks of an index, in order.
pub fn stored(entries: &[IndexEntry<ChunkId>]) -> impl Iterator<Item = ChunkId> {
    entries.iter().filter_map(|entry| entry.stored())
}
