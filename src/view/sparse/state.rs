//! What the sparse view knows of the frame: what chunk files hold, and the index that gives them their places.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use super::table::Table;
use super::times::Keeper;
use crate::format::chunk::Traits;
use crate::format::index_file::{IndexFile, KnownIndex};
use crate::format::times::Times;
use crate::format::{self, ChunkId, IndexEntry, Layout, Rules};
use crate::store::{ChunkKey, FrameImage, FrameStore, ReadAt, StoreError};
use crate::view::content::Content;
use crate::view::frame_view::Take;
use crate::view::nodes::{Name, Node, Number};
use crate::view::single::{Single, State};
use crate::view::state_lock::Changing;
use crate::view::xattr::FormerLens;
use crate::view::{Ino, Invalidation, Invalidations, Result, ViewError};

/// The index file's number: it comes first in a listing.
pub const INDEX: Number = Number(0);
/// Frames of no more chunks have every chunk header read at mount: a damaged one is found then, and the sum of sizes that the
/// index file's header gives is exact. For larger ones the cframe's own cbytes, holes included, stands in for it.
const CHECKED_CHUNKS: usize = 1024;

/// The number of a chunk file.
pub fn number(id: ChunkId) -> Number {
    Number(u64::from(id.0) + 1)
}

/// The chunk of a file, unless it is the index.
pub fn chunk_of(file: Number) -> Option<ChunkId> {
    file.0.checked_sub(1).and_then(|id| u32::try_from(id).ok()).map(ChunkId)
}

/// A chunk that no index names.
#[derive(Debug, Clone, Copy)]
pub struct Unnamed {
    /// The state's `changes` when it was accepted.
    pub accepted: u64,
    /// What it is.
    pub traits: Traits,
    /// The position of the special entry that its file had.
    pub entry: Option<u32>,
}

/// A chunk file that the index has as a special entry.
#[derive(Debug, Clone, Copy)]
pub struct SpecialFile {
    /// What its chunk is.
    pub traits: Traits,
    /// Where the entry is, as long as the entry is known to be this file's.
    pub position: Option<u32>,
}

/// What a chunk's header says.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub traits: Traits,
    /// Bytes of the chunk.
    pub cbytes: u32,
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
pub enum HeldIndex {
    /// It is the applied index.
    No,
    /// It is missing, being written, or does not parse as a whole. Whenever the index file has a draft.
    Unparsed,
    /// It parses, but chunks that it names are not there; or all are, and the sizes of some have to be read.
    Waiting(Box<IndexFile>, HashSet<ChunkId>),
}

/// A frame as a directory of chunk files.
#[derive(Debug)]
pub struct Sparse {
    pub table: Table,
    /// The index that positions in `table` follow; its header is kept true while chunks are replaced.
    pub applied: Option<IndexFile>,
    /// What the names of chunk files mean.
    pub numbering: Numbering,
    /// `applied` names a chunk at more than one position, of which `table` has the last.
    pub named_twice: bool,
    /// The index chunk that was decoded last.
    pub known_index: Option<Arc<KnownIndex>>,
    /// The index file's bytes where it is not being written.
    pub index_bytes: Option<Arc<Vec<u8>>>,
    pub held: HeldIndex,
    /// `applied` says something else than `index_bytes`: to be mended when the mount settles.
    pub index_stale: bool,
    /// Chunks that `applied` names and that have no file, with the uncompressed size they had where chunks vary in size.
    pub removed: BTreeMap<ChunkId, u32>,
    /// Chunks that `applied` does not name.
    pub unnamed: BTreeMap<ChunkId, Unnamed>,
    /// Files with a draft that SOURCE did not take when they were closed.
    pub unstored: HashSet<Ino>,
    /// `changes` when the index was last written.
    pub index_changed: u64,
    /// What clients may still take for the index file's length.
    pub former_lens: FormerLens,
    /// Chunk files that `applied` has as special entries.
    pub special_files: HashMap<ChunkId, SpecialFile>,
    /// The chunks that `applied` names, or has as special entries, and no commit has taken yet.
    pub fresh: HashMap<ChunkId, Traits>,

    /// Of chunks that a change is about to replace, take away or give another place: see [`Single::change_knowing`].
    pub sizes: HashMap<ChunkKey, Size>,

    /// Counts everything that matters to the frame.
    pub changes: u64,
    /// `changes` when last something changed that a commit writes: a chunk without a place is nothing to it.
    pub frame_changed: u64,
    /// `frame_changed` as of the last commit.
    pub published: u64,
    pub last_change: Instant,
    /// Settling has something to look at.
    pub unsettled: bool,

    /// When chunk files got what they held at mount, by position, as far as that is known.
    pub times: Arc<Times>,
    /// SOURCE did not exist when the mount began.
    pub is_made_here: bool,
    /// Where times of chunk files are kept from mount to mount, if so wanted.
    pub keeper: Option<Arc<Keeper>>,
}

impl Sparse {
    /// What a store has; without a frame yet (`--create`), an empty directory.
    ///
    /// # Errors
    /// A chunk whose header lies, in a frame small enough to look at all.
    pub fn load(store: &dyn FrameStore, keeper: Option<Arc<Keeper>>) -> Result<Self> {
        let Some(image) = store.committed() else {
            return Ok(Sparse { is_made_here: true, ..Self::new(None, &[], keeper)? });
        };
        let FrameImage { header, trailer, entries } = &*image;
        let mut header = header.clone();
        let numbering = match header.layout() {
            Layout::Contiguous => Numbering::ByPosition,
            Layout::Sparse => Numbering::ById,
        };
        header.set_layout(Layout::Sparse);
        let mut lens = Vec::new();
        // Elsewhere each look is a request, and takes as long as reading the chunk.
        if store.local().is_some() && entries.len() <= CHECKED_CHUNKS {
            let guard = store.enter();
            let sizes = Rules::of(&header).of_any_position();
            for entry in entries.iter() {
                let len = match entry {
                    IndexEntry::Stored(key) => {
                        let chunk = store.chunk_header(&guard, *key)?;
                        // Not "exactly": older libraries leave a short chunk where another one is appended behind it.
                        sizes.check_size(chunk.nbytes).map_err(|source| {
                            let position = lens.len();
                            let expected = format!("{} (chunk {position})", source.expected);
                            StoreError::Format { path: store.path(), source: format::Error { expected, ..source } }
                        })?;
                        chunk.cbytes
                    }
                    IndexEntry::Special(_) => 0,
                };
                lens.push(len);
            }
            header.set_cbytes(lens.iter().map(|len| u64::from(*len)).sum());
        }
        let id_at = |position: u32, key: ChunkKey| store.file_id(key).unwrap_or(ChunkId(position));
        let named = (0u32..).zip(entries.iter()).map(|(position, entry)| entry.map(|key| id_at(position, key)));
        let index = IndexFile { header, trailer: trailer.clone(), entries: Arc::new(named.collect()) };
        let frame = Self::new(Some((index, numbering)), entries, keeper)?;
        let ids = frame.applied.iter().flat_map(|index| index.entries.iter());
        for (entry, len) in ids.zip(lens) {
            if let IndexEntry::Stored(id) = entry {
                frame.table.get(*id).learn_len(len);
            }
        }
        Ok(frame)
    }

    /// `keys` are those of the index's entries.
    fn new(index: Option<(IndexFile, Numbering)>, keys: &[IndexEntry<ChunkKey>], keeper: Option<Arc<Keeper>>) -> Result<Self> {
        let (mut applied, numbering) = index.map_or((None, Numbering::ByPosition), |(index, numbering)| (Some(index), numbering));
        let entries = applied.as_ref().map(|index| index.entries.as_slice()).unwrap_or_default();
        // Of a frame that is nearly all special chunks, the few that are stored are kept one by one.
        let count = stored(entries).count();
        let len = stored(entries).map(|id| id.0 as usize + 1).max().unwrap_or(0);
        let mut table = Table::with_len(if count >= len / 4 { len } else { 0 });
        let mut named_twice = false;
        for (position, (id, key)) in (0u32..).zip(entries.iter().zip(keys)) {
            if let (IndexEntry::Stored(id), IndexEntry::Stored(key)) = (id, key) {
                named_twice |= table.get(*id).key().is_some();
                table.set_chunk(*id, *key, 0);
                table.set_position(*id, Some(position));
            }
        }
        let index_bytes = match &mut applied {
            Some(index) => Some(Arc::new(index.make_file().map_err(ViewError::Rejected)?)),
            None => None,
        };
        Ok(Sparse {
            table,
            held: if index_bytes.is_some() { HeldIndex::No } else { HeldIndex::Unparsed },
            applied,
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
            special_files: HashMap::new(),
            fresh: HashMap::new(),
            sizes: HashMap::new(),
            changes: 0,
            frame_changed: 0,
            published: 0,
            last_change: Instant::now(),
            unsettled: false,
            times: Arc::default(),
            is_made_here: false,
            keeper,
        })
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

    /// The chunk of a file, if its size is not known, and nothing but the chunk tells it.
    pub fn unmeasured_if_varying(&self, file: Number) -> Option<ChunkKey> {
        let varying = self.applied.as_ref().is_some_and(|index| index.header.chunksize() == 0);
        chunk_of(file).filter(|_| varying).and_then(|id| self.unmeasured(id))
    }

    /// The size of a file's chunk, if it is known.
    pub fn size_of(&self, id: ChunkId) -> Option<Size> {
        self.table.get(id).key().and_then(|key| self.sizes.get(&key).copied())
    }

    /// The chunk of a file, if its size is not known.
    pub fn unmeasured(&self, id: ChunkId) -> Option<ChunkKey> {
        self.table.get(id).key().filter(|key| !self.sizes.contains_key(key))
    }

    /// Whether the index file is another than SOURCE's.
    pub fn has_another_index(&self) -> bool {
        self.frame_changed != self.published || self.index_stale || !self.removed.is_empty()
    }
}

impl State<Sparse> {
    /// See [`FrameView::take`](crate::view::frame_view::FrameView::take).
    pub fn take(&mut self, file: Number, how: Take) -> Content {
        let State { frame, chunks, .. } = self;
        frame.touch();
        let Some(id) = chunk_of(file) else {
            frame.held = HeldIndex::Unparsed;
            return frame.index_bytes.take().map_or(Content::Empty, Content::Bytes);
        };
        let mut kept = Content::Empty;
        let mut nbytes = 0;
        if let Some((key, len)) = frame.table.remove(id) {
            nbytes = frame.sizes.remove(&key).map_or(0, |size| size.traits.nbytes);
            if how != Take::Dropped {
                kept = Content::Chunk(key, len);
                chunks.pin(kept.keys());
            }
            chunks.discard(key);
        }
        frame.remove_special(id);
        frame.unnamed.remove(&id);
        frame.fresh.remove(&id);
        if frame.table.get(id).position().is_some() {
            frame.removed.insert(id, nbytes);
            frame.changed_frame();
        }
        if let HeldIndex::Waiting(index, missing) = &mut frame.held
            && index.entries.contains(&IndexEntry::Stored(id))
        {
            missing.insert(id);
        }
        kept
    }

    /// The index file, unless removed.
    pub fn index_ino(&self) -> Option<Ino> {
        self.ino(INDEX)
    }

    /// Chunk files that were emptied, and that nobody has open for writing, hold their chunks again.
    pub fn drop_empty(&mut self, invalidations: &mut Invalidations) {
        let emptied = |node: &Node| match (&node.name, &node.writing) {
            (Some(Name::Frame(file)), Some(writing)) if node.writers == 0 => {
                let has_chunk = chunk_of(*file).is_some_and(|id| self.frame.table.get(id).key().is_some());
                has_chunk && writing.inner.try_read_recursive().is_some_and(|inner| inner.bytes.is_empty())
            }
            _ => false,
        };
        let emptied: Vec<Ino> = self.nodes.iter().filter(|(_, node)| emptied(node)).map(|(ino, _)| ino).collect();
        for ino in emptied {
            self.end_writing(ino, false);
            invalidations.push(Invalidation::Data(ino));
        }
    }

    /// Whether anything is written that SOURCE does not have.
    pub fn is_uncommitted(&self) -> bool {
        let written = |node: &Node| match &node.name {
            Some(Name::Temporary(_)) => node.kept.is_of_store(),
            Some(Name::Frame(_)) => node.seen_writing().is_some(),
            Some(Name::LockFile | Name::Delayed) | None => false,
        };
        let frame = &self.frame;
        frame.frame_changed != frame.published
            || !matches!(frame.held, HeldIndex::No)
            || frame.index_stale
            || !frame.removed.is_empty()
            || !frame.unnamed.is_empty()
            || self.nodes.iter().any(|(_, node)| written(node))
    }

    /// Whether there is something new that can be committed.
    pub fn publishable(&self) -> bool {
        let frame = &self.frame;
        frame.frame_changed != frame.published
            && matches!(frame.held, HeldIndex::No)
            && self.exists(INDEX)
            && frame.applied.is_some()
            && frame.removed.is_empty()
    }
}

impl Single<Sparse> {
    /// The state, to be changed, when the sizes are known that a change needs: those of the chunks that are named are read before, without the
    /// lock.
    ///
    /// # Errors
    /// A chunk's header cannot be read.
    pub fn change_knowing(&self, needed: impl Fn(&Sparse) -> Vec<ChunkKey>) -> Result<Changing<'_, State<Sparse>>> {
        let mut sizes = Vec::new();
        loop {
            let guard = self.store.enter();
            let mut state = self.state.write();
            state.frame.sizes.extend(sizes.drain(..));
            let needed = needed(&state.frame);
            if needed.is_empty() {
                return Ok(state);
            }
            drop(state);
            for key in needed {
                let header = self.store.chunk_header(&guard, key)?;
                sizes.push((key, Size { traits: header.traits(), cbytes: header.cbytes }));
            }
        }
    }
}

/// The stored chunks of an index, in order.
pub fn stored(entries: &[IndexEntry<ChunkId>]) -> impl Iterator<Item = ChunkId> {
    entries.iter().filter_map(|entry| entry.stored())
}
