//! Which chunk files there are, and which ids are free. No input or output here.
//!
//! The life of a chunk is that of all stores ([`Chunks`]), where its place is the id. In the end its file is removed: its id is free
//! when that is done. A key is the id, and above it the generation.
//!
//! Others may write a chunk file in place, or put another there, and the index says nothing of it. What was there when the frame was read
//! has not been changed since then, by its times; of a file of our own, and of one that was so new that times cannot tell, it is
//! known what they were ([`Stamp`]).

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::time::SystemTime;

use crate::format::ChunkId;
use crate::store::ChunkKey;
use crate::store::backend::FileStat;
use crate::store::chunks::{Chunk, Chunks, DroppedRefs, Generations, State};
use crate::store::open_files::Stamp;

/// As many generations as a key has room for.
const GENERATIONS: u32 = (ChunkKey::MAX >> 32) as u32;

/// What is known of a file that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// It is the one that it was.
    Same,
    /// Somebody has changed its attributes, or put another with older times in its place.
    Touched,
    /// Somebody has written it.
    Written,
}

/// A file that was there at open.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoundFile {
    pub(super) id: u32,
    /// Length in bytes.
    pub(super) len: u32,
}

/// The table.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) chunks: Chunks,
    generations: Generations,
    /// When the files began to be looked at that were there; what is changed from then on has later times.
    since: Option<SystemTime>,
    /// Those that were changed no earlier.
    recent: HashMap<u32, FileStat>,
    /// Of files of our own, since they were written.
    stamps: HashMap<u32, Stamp>,
    /// Chunks that are nobody's any more, and whose files are being removed, or could not be.
    removing: HashMap<u32, Chunk>,
    /// No id below is free but the spare ones.
    next: u64,
    spare: BTreeSet<u32>,
}

/// The name of a chunk's file.
pub(super) fn name_of(key: ChunkKey) -> OsString {
    OsString::from(id_of(key).file_name())
}

/// The id of a chunk's file.
pub(super) fn id_of(key: ChunkKey) -> ChunkId {
    ChunkId(key.number() as u32)
}

/// Where a chunk is among [`Chunks`].
fn place_of(key: ChunkKey) -> u64 {
    id_of(key).0.into()
}

pub(super) fn key(id: u32, generation: u32) -> ChunkKey {
    ChunkKey::new(u64::from(id) | u64::from(generation) << 32)
}

fn generation_of(key: ChunkKey) -> u32 {
    (key.number() >> 32) as u32
}

/// Where the chunk of a key is among [`Chunks`], if the key is good.
pub(super) fn locate(chunks: &Chunks, key: ChunkKey) -> Option<u64> {
    let place = place_of(key);
    chunks.get(place).filter(|chunk| chunk.generation == generation_of(key)).map(|_| place)
}

/// The key of a chunk at a place.
fn key_at(place: u64, chunk: &Chunk) -> ChunkKey {
    key(place as u32, chunk.generation)
}

impl Default for Files {
    fn default() -> Self {
        Self::opened(Vec::new(), &[], None, HashMap::new(), 0)
    }
}

impl Files {
    /// The table of a frame that was opened: the ids that its index names, in order, each as often as it does; and the files of these,
    /// which were looked at from `since` on. `first` is the generation of their keys.
    pub(super) fn opened(
        named: Vec<u64>,
        found: &[FoundFile],
        since: Option<SystemTime>,
        recent: HashMap<u32, FileStat>,
        first: u32,
    ) -> Self {
        let generations = Generations::new(GENERATIONS);
        generations.begin(first);
        let mut chunks = Chunks::opened(named, first);
        found.iter().for_each(|FoundFile { id, len }| chunks.set_len(u64::from(*id), *len));
        let (stamps, removing) = (HashMap::new(), HashMap::new());
        Files { chunks, generations, since, recent, stamps, removing, next: 0, spare: BTreeSet::new() }
    }

    /// The generation of what is found next.
    pub(super) fn next_first(&self) -> u32 {
        self.generations.next_first()
    }

    /// The key of the file of an id, if that is in the published image or the one being committed.
    pub(super) fn key_in_image(&self, id: ChunkId) -> Option<ChunkKey> {
        let chunk = self.chunks.get(id.0.into())?;
        (chunk.state == State::InImage).then(|| key(id.0, chunk.generation))
    }

    /// Whether this process has made the file of a key.
    pub(super) fn is_new(&self, key: ChunkKey) -> bool {
        generation_of(key) != self.generations.first()
    }

    /// A file of our own was written.
    pub(super) fn stamp(&mut self, key: ChunkKey, stat: &FileStat) {
        if self.chunk(key).is_some() {
            self.stamps.insert(id_of(key).0, stat.into());
        }
    }

    /// Whether the file that has a key's name is the one that the key stands for. `None` if the key is not good.
    pub(super) fn check(&self, key: ChunkKey, now: &FileStat) -> Option<Known> {
        Some(self.check_file(key, &self.chunk(key)?, now))
    }

    /// As [`Files::check`], of a file that is to be removed.
    pub(super) fn check_doomed(&self, key: ChunkKey, now: &FileStat) -> Option<Known> {
        let chunk = self.removing.get(&id_of(key).0).filter(|chunk| chunk.generation == generation_of(key))?;
        Some(self.check_file(key, chunk, now))
    }

    fn check_file(&self, key: ChunkKey, chunk: &Chunk, now: &FileStat) -> Known {
        if let Some(stamp) = self.stamps.get(&id_of(key).0) {
            return if *stamp == Stamp::from(now) { Known::Same } else { Known::Written };
        }
        if now.len < u64::from(chunk.len) {
            return Known::Written;
        }
        if self.is_new(key) {
            return Known::Written; // ours has not got the name yet
        }
        let Some(since) = self.since else { return Known::Same };
        match self.recent.get(&id_of(key).0) {
            Some(seen) if now.same_file(seen) && (now.len, now.mtime) == (seen.len, seen.mtime) => {
                match now.ctime == seen.ctime {
                    true => Known::Same,
                    false => Known::Touched,
                }
            }
            Some(_) => Known::Written,
            None if now.mtime >= since => Known::Written,
            None if now.ctime >= since => Known::Touched,
            None => Known::Same,
        }
    }

    /// The chunk of a key, if that is good.
    fn chunk(&self, key: ChunkKey) -> Option<Chunk> {
        self.chunks.get(locate(&self.chunks, key)?)
    }

    /// The length of a chunk's file in bytes, if the key is good.
    pub(super) fn len(&self, key: ChunkKey) -> Option<u32> {
        self.chunk(key).map(|chunk| chunk.len)
    }

    /// Whether the published image, or the one being committed, names the chunk.
    pub(super) fn is_in_image(&self, key: ChunkKey) -> bool {
        self.chunk(key).is_some_and(|chunk| chunk.state == State::InImage)
    }

    /// Of chunks that an image drops, the keys of those that it does not name at all.
    pub(super) fn dying(&self, dropped: &DroppedRefs) -> Vec<ChunkKey> {
        self.chunks.dying(dropped).map(|(place, chunk)| key_at(place, &chunk)).collect()
    }

    /// An id for a new file of `len` bytes: the lowest of which no file is known. `None` if there is none left.
    pub(super) fn reserve(&mut self, len: u32) -> Option<ChunkKey> {
        let id = match self.spare.pop_first() {
            Some(id) => id,
            None => loop {
                let id = u32::try_from(self.next).ok()?;
                self.next += 1;
                if !self.knows(id) {
                    break id;
                }
            },
        };
        let generation = self.generations.next();
        self.chunks.stage(id.into(), len, generation);
        Some(key(id, generation))
    }

    /// The file could not be made, as somebody else's has the name: it is nobody's business here from now on.
    pub(super) fn skip(&mut self, key: ChunkKey) {
        self.chunks.forget(place_of(key));
        self.stamps.remove(&id_of(key).0);
    }

    // ---- removing ----

    /// Files that readers have left by `epoch`, to be removed: their keys and lengths. To be handed to [`Files::removed`].
    pub(super) fn collect(&mut self, epoch: u64) -> Vec<(ChunkKey, u32)> {
        let mut out = Vec::new();
        while let Some((place, chunk)) = self.chunks.collect(epoch) {
            out.push(self.begin_removing(place, chunk));
        }
        out
    }

    /// Everything that no image has, at the end: as [`Files::collect`]. Where `all` is false, only what never was in one.
    pub(super) fn collect_rest(&mut self, all: bool) -> Vec<(ChunkKey, u32)> {
        let rest = self.chunks.rest(|state| match state {
            State::Staged => true,
            State::Dropped | State::Gone => all,
            State::InImage => false,
        });
        rest.into_iter()
            .map(|(place, chunk)| {
                self.chunks.forget(place);
                self.begin_removing(place, chunk)
            })
            .collect()
    }

    fn begin_removing(&mut self, place: u64, chunk: Chunk) -> (ChunkKey, u32) {
        self.removing.insert(place as u32, chunk);
        (key_at(place, &chunk), chunk.len)
    }

    /// Whether the frame has a file of that number, or had one until now.
    pub(super) fn knows(&self, id: u32) -> bool {
        self.chunks.get(id.into()).is_some() || self.removing.contains_key(&id)
    }

    /// Whether there are files that no image has.
    pub(super) fn has_rest(&self) -> bool {
        !self.removing.is_empty() || !self.chunks.rest(|state| state != State::InImage).is_empty()
    }

    /// A file's name is gone: its id is free again.
    pub(super) fn removed(&mut self, key: ChunkKey) {
        let id = id_of(key).0;
        self.skip(key);
        self.removing.remove(&id);
        if u64::from(id) < self.next {
            self.spare.insert(id);
        }
    }
}
