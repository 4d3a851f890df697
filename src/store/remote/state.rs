//! One state of a remote frame: the content of its index object when it was read, and where its chunks are.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Instant, SystemTime};

use log::warn;
use parking_lot::Mutex;

use super::client::{Client, Got, MOST, Tag};
use super::pieces::{PIECE, Pieces, Pool};
use crate::format::header::FrameHeader;
use crate::format::index::Place as IndexPlace;
use crate::format::{ChunkId, ChunkOffset, INDEX_NAME, IndexEntry, Layout};
use crate::store::disk_cache::{DiskCache, State as Kept};
use crate::store::frame::{Frame, Unread};
use crate::store::{ChunkKey, FrameImage, ReadAt, Result, StoreError, in_words};

/// Bytes of a file's beginning that are asked for at first: the header of most frames.
const HEAD: u64 = 64 << 10;
/// Bytes of index and trailer that are asked for at once.
const TAIL: u64 = 64 << 20;
/// Generations of keys. A key of a state is good in no other, until so many have come.
const GENERATIONS: u32 = 1 << 20;

/// Where the chunks of a frame are, by place: the first one that the index names is the first place.
pub enum Places {
    /// The ids of chunk files.
    Files(Vec<u32>),
    /// In one file: where each begins, and up to where it may reach.
    Ranges(Vec<Range<u64>>),
}

/// What a listing has told.
#[derive(Default)]
pub enum Lens {
    /// It was not asked for.
    #[default]
    Unknown,
    /// Lengths by place.
    Known(Arc<Vec<Option<u32>>>),
    /// Nothing. It is asked for again after this moment, if ever.
    Refused(Option<Instant>),
}

/// A state.
pub struct State {
    pub client: Arc<Client>,
    pub generation: u32,
    pub image: Arc<FrameImage>,
    /// The object that it was read from: the index file, or the frame's one file.
    pub tag: Tag,
    /// When the index file was read, by the store's clock. What was changed later is of another state.
    pub begun: Option<SystemTime>,
    pub places: Places,
    pub pieces: Arc<Pieces>,
    /// Where pieces are kept for later mounts.
    pub disk: Option<Arc<Kept>>,
    /// Bytes on their way there.
    pub keeping: AtomicU64,
    /// Lengths by place, as a listing gives them. Held while that is asked for.
    pub listed: Mutex<Lens>,
    /// What chunk files were when they were first seen, by place: a short form of it. A leaf lock.
    pub seen: Mutex<HashMap<u32, u64>>,
    /// Chunk files that the log has told to be lost, by place; for a frame of one object, its first place. A leaf lock.
    pub told: Mutex<HashSet<u32>>,
}

impl State {
    /// Reads what the store has now. Which layout that is, is looked for where `layout` does not say.
    ///
    /// # Errors
    /// What is there and no frame; what the store answers.
    pub fn read(client: &Arc<Client>, path: &Path, layout: Option<Layout>, generation: u32, pool: &Arc<Pool>) -> Result<Self> {
        if layout != Some(Layout::Contiguous) && client.has_prefixes() {
            match client.read(INDEX_NAME, None, None) {
                Ok(got) => return Self::sparse(client, path, got, generation, pool),
                Err(error) if layout.is_none() && error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(source) => return Err(StoreError::Io { path: path.join(INDEX_NAME), action: "read", source }),
            }
        }
        let failed = |source| StoreError::Io { path: path.to_owned(), action: "read", source };
        let head = client.read("", Some(0..HEAD), None).map_err(failed)?;
        Self::contiguous(client, path, head, generation, pool)
    }

    fn sparse(client: &Arc<Client>, path: &Path, got: Got, generation: u32, pool: &Arc<Pool>) -> Result<Self> {
        let path = &path.join(INDEX_NAME);
        let Got { bytes, tag, answered } = got;
        let parts = Mutex::new(vec![(0, bytes)]);
        let known = Known { client, name: INDEX_NAME, tag: &tag, parts };
        let Frame { header, trailer, entries, .. } = frame::<ChunkId>(&known, path)?;
        let (entries, places) = numbered(&entries, generation);
        let places = Places::Files(places.into_iter().map(|id| id.0).collect());
        drop(known);
        let image = FrameImage { header, trailer, entries: Arc::new(entries) };
        Ok(State { begun: answered, ..Self::new(client, image, tag, places, generation, pool) })
    }

    fn contiguous(client: &Arc<Client>, path: &Path, head: Got, generation: u32, pool: &Arc<Pool>) -> Result<Self> {
        let Got { mut bytes, tag, .. } = head;
        let have = bytes.len() as u64;
        let failed = |source| StoreError::Io { path: path.to_owned(), action: "read the index", source };
        if let Some(rest) = rest_of_header(&bytes, &tag) {
            bytes.extend(client.read("", Some(rest), Some(&tag)).map_err(failed)?.bytes);
        }
        let tail = tail_of(&bytes, &tag);
        let parts = Mutex::new(vec![(0, bytes)]);
        let known = Known { client, name: "", tag: &tag, parts };
        if let Some(tail) = tail.filter(|tail| tail.end > have) {
            known.fetch(tail).map_err(failed)?;
        }
        let Frame { header, trailer, entries, sections } = frame::<ChunkOffset>(&known, path)?;
        let (entries, offsets) = numbered(&entries, generation);
        let places = Places::Ranges(rooms(&offsets, &sections.chunks));
        drop(known);
        let image = FrameImage { header, trailer, entries: Arc::new(entries) };
        Ok(Self::new(client, image, tag, places, generation, pool))
    }

    fn new(client: &Arc<Client>, image: FrameImage, tag: Tag, places: Places, generation: u32, pool: &Arc<Pool>) -> Self {
        State {
            client: Arc::clone(client),
            generation: generation % GENERATIONS,
            image: Arc::new(image),
            tag,
            begun: None,
            places,
            pieces: Pieces::new(pool),
            disk: None,
            keeping: AtomicU64::new(0),
            listed: Mutex::default(),
            seen: Mutex::default(),
            told: Mutex::default(),
        }
    }

    /// Pieces are kept on disk from now on, under the frame's URL, where its store is, and this state of it.
    pub fn kept_in(self, disk: Option<&Arc<DiskCache>>, path: &Path, origin: &str) -> Self {
        let url = format!("{}\n{origin}", path.to_string_lossy());
        let disk = disk.and_then(|disk| match disk.state(&url, &self.tag.line()) {
            Ok(kept) => Some(Arc::new(kept)),
            Err(error) => {
                warn!("{}: nothing is kept on disk: {}", path.display(), in_words(&error));
                None
            }
        });
        State { disk: disk.filter(|_| self.tag.tells()), ..self }
    }

    /// Whether lengths by a listing are here, without waiting for one that is on its way.
    pub fn is_listed(&self) -> bool {
        self.listed.try_lock().is_some_and(|listed| matches!(*listed, Lens::Known(_)))
    }

    /// The layout of the frame.
    pub fn layout(&self) -> Layout {
        match self.places {
            Places::Files(_) => Layout::Sparse,
            Places::Ranges(_) => Layout::Contiguous,
        }
    }

    /// How many stored chunks there are, each counted once.
    pub fn count(&self) -> u32 {
        let count = match &self.places {
            Places::Files(ids) => ids.len(),
            Places::Ranges(ranges) => ranges.len(),
        };
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The place that a key of this state stands for.
    pub fn place(&self, key: ChunkKey) -> Option<u32> {
        let place = key.number() as u32;
        ((key.number() >> 32) as u32 == self.generation && place < self.count()).then_some(place)
    }

    /// The id of the chunk file at a place.
    pub fn id(&self, place: u32) -> Option<ChunkId> {
        match &self.places {
            Places::Files(ids) => ids.get(place as usize).copied().map(ChunkId),
            Places::Ranges(_) => None,
        }
    }

    /// Whether the log has not told yet that the object of a chunk is lost. From now on it has.
    pub fn is_first_loss(&self, place: u32) -> bool {
        self.told.lock().insert(if self.layout() == Layout::Sparse { place } else { 0 })
    }

    /// The bytes of the frame's file that the chunk at a place may have.
    pub fn range(&self, place: u32) -> Option<Range<u64>> {
        match &self.places {
            Places::Files(_) => None,
            Places::Ranges(ranges) => ranges.get(place as usize).cloned(),
        }
    }

    /// Bytes that a chunk is likely to have.
    pub fn likely(&self, place: u32) -> u64 {
        let average = || self.image.header.cbytes() / u64::from(self.count()).max(1);
        self.range(place).map_or_else(average, |range| range.end - range.start).clamp(1, PIECE)
    }

    /// What messages call the object of a chunk.
    pub fn name(&self, place: u32) -> String {
        self.id(place).map_or_else(String::new, |id| id.file_name())
    }
}

/// What is missing of a long header.
fn rest_of_header(head: &[u8], tag: &Tag) -> Option<Range<u64>> {
    let (have, end) = (head.len() as u64, u64::from(FrameHeader::announced_len(head).ok()?));
    (have < end && end <= tag.len().min(TAIL)).then_some(have..end)
}

/// The bytes behind the chunks, as the header announces them: index and trailer.
fn tail_of(head: &[u8], tag: &Tag) -> Option<Range<u64>> {
    let header_len = FrameHeader::announced_len(head).ok()?;
    let header = FrameHeader::parse(head.get(..header_len as usize)?).ok()?;
    let start = u64::from(header_len).checked_add(header.cbytes())?;
    let end = header.frame_len().min(tag.len());
    (start < end && end - start <= TAIL).then_some(start..end)
}

fn frame<P: IndexPlace>(known: &Known<'_>, path: &Path) -> Result<Frame<P>> {
    Frame::<P>::read(known).map_err(|unread| match unread {
        Unread::Io { action, source } => StoreError::Io { path: path.to_owned(), action, source },
        Unread::Format(source) => StoreError::Format { path: path.to_owned(), source },
        Unread::OtherLayout => {
            let reason = match P::LAYOUT {
                Layout::Contiguous => "is the index file of a sparse frame; expected the prefix that it is under",
                Layout::Sparse => "is a frame in one file, not the index file of a sparse frame",
            };
            StoreError::Unsupported { path: path.to_owned(), reason: reason.to_owned() }
        }
    })
}

/// The entries with keys in place of where chunks are, and these by place.
fn numbered<P: IndexPlace + std::hash::Hash + Eq>(
    entries: &[IndexEntry<P>],
    generation: u32,
) -> (Vec<IndexEntry<ChunkKey>>, Vec<P>) {
    let mut known: HashMap<P, u32> = HashMap::new();
    let mut places = Vec::new();
    let generation = u64::from(generation % GENERATIONS) << 32;
    let mut number = |at: P| {
        let place = *known.entry(at).or_insert_with(|| {
            places.push(at);
            places.len() as u32 - 1
        });
        ChunkKey::new(generation | u64::from(place))
    };
    let keys = entries.iter().map(|entry| entry.map(&mut number)).collect();
    (keys, places)
}

/// Where each chunk begins in the file, and where the next one does.
fn rooms(offsets: &[ChunkOffset], chunks: &Range<u64>) -> Vec<Range<u64>> {
    let start = |offset: &ChunkOffset| chunks.start.saturating_add(offset.bytes()).min(chunks.end);
    let mut sorted: Vec<u64> = offsets.iter().map(start).collect();
    sorted.sort_unstable();
    let end = |at: u64| sorted.get(sorted.partition_point(|other| *other <= at)).copied().unwrap_or(chunks.end);
    offsets.iter().map(start).map(|at| at..end(at)).collect()
}

/// An object in one state, parts of which have been read.
struct Known<'a> {
    client: &'a Arc<Client>,
    name: &'a str,
    tag: &'a Tag,
    parts: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Known<'_> {
    fn fetch(&self, range: Range<u64>) -> io::Result<()> {
        let got = self.client.read(self.name, Some(range.clone()), Some(self.tag))?;
        self.parts.lock().push((range.start, got.bytes));
        Ok(())
    }

    fn copy(&self, buf: &mut [u8], offset: u64) -> bool {
        let mut found = |(start, bytes): &(u64, Vec<u8>)| {
            let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
            buf.copy_from_slice(bytes.get(from..from.checked_add(buf.len())?)?);
            Some(())
        };
        self.parts.lock().iter().find_map(&mut found).is_some()
    }
}

impl ReadAt for Known<'_> {
    fn len(&self) -> u64 {
        self.tag.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if buf.is_empty() || self.copy(buf, offset) {
            return Ok(());
        }
        let len = buf.len() as u64;
        if len > MOST {
            return Err(io::Error::other(format!("{len} bytes are to be read at once; expected at most {MOST}")));
        }
        self.fetch(offset..offset.saturating_add(len))?;
        if self.copy(buf, offset) { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}
