//! Which chunk files there are, who wants them, and which ids are free.
//!
//! ```text
//!   reserve            admit              publish                durable           collect
//!  --------> Staged --------> InImage --------------> Dropped -----------> Gone -----------> Removing ---> (no file)
//!               |                                                           ^
//!               +---------------------------- discard ----------------------+
//! ```
//!
//! A file that is Gone is as good as ever for pins and reads until it is collected. A key is the id, and above it a number that
//! tells a new file from older ones of the same id, and those of a SOURCE that others have changed from those of the one before. So an
//! old key never means a new chunk.
//!
//! Others may write a chunk file in place, or put another there, and the index says nothing of it. What was there when the frame was read
//! has not been changed since then, by its times; of a file of our own, and of one that was so new that times cannot tell, it is
//! known what they were ([`Stamp`]).
//!
//! What was there at open and has not changed since costs 8 bytes a chunk.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::OsString;
use std::time::SystemTime;

use super::super::ChunkKey;
use super::super::backend::FileStat;
use crate::format::ChunkId;

/// No file has a larger one: the most that a key has room for.
const LAST_SERIAL: u32 = (ChunkKey::MAX >> 32) as u32;

/// Numbers states, in the order in which they are published.
pub(super) type Seq = u64;

/// What becomes of a file; see the module's picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Written or being written, and in no image yet.
    Staged,
    /// In the published image, or in the one that is being committed.
    InImage,
    /// In neither, but perhaps in the last durable state.
    Dropped,
    /// In no state; pins and reads may still want it.
    Gone,
    /// Nobody's: its name is being removed, or could not be.
    Removing,
}

/// A file of which more is to be known than that it was there at open.
#[derive(Debug, Clone, Copy)]
struct File {
    /// The upper half of the key.
    serial: u32,
    /// Length in bytes.
    len: u32,
    pins: u16,
    state: State,
    /// Of a Dropped file the first state without it, of a Gone one since when: what else a queue says of the file is out of date.
    mark: u64,
    /// Given back by its stager while it was in an image being committed.
    discarded: bool,
    /// Of a file of our own, since it was written.
    stamp: Option<Stamp>,
}

/// What tells that nobody has written a file since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    mtime: SystemTime,
    len: u64,
}

impl From<&FileStat> for Stamp {
    fn from(stat: &FileStat) -> Self {
        Stamp { mtime: stat.mtime, len: stat.len }
    }
}

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
pub(super) struct Found {
    pub(super) id: u32,
    /// Length in bytes; 0 once it has been removed.
    pub(super) len: u32,
}

/// The table. It does no input or output.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// By id. All are in the published image, unless `known` says otherwise.
    found: Vec<Found>,
    /// The upper half of their keys.
    first: u32,
    /// When they began to be looked at; what is changed from then on has later times.
    since: Option<SystemTime>,
    /// Those that were changed no earlier.
    recent: HashMap<u32, FileStat>,
    known: HashMap<u32, File>,
    /// No id below is free but the spare ones.
    next: u64,
    spare: BTreeSet<u32>,
    serial: u32,
    /// Dropped files, and the first state without them.
    waiting: VecDeque<(Seq, u32)>,
    /// Files that are Gone and have no pins, and since when.
    retired: VecDeque<(u64, u32)>,
}

/// The name of a chunk's file.
pub(super) fn name_of(key: ChunkKey) -> OsString {
    OsString::from(id_of(key).file_name())
}

/// The id of a chunk's file.
pub(super) fn id_of(key: ChunkKey) -> ChunkId {
    ChunkId(key.number() as u32)
}

pub(super) fn key(id: u32, serial: u32) -> ChunkKey {
    ChunkKey::new(u64::from(id) | u64::from(serial) << 32)
}

fn serial_of(key: ChunkKey) -> u32 {
    (key.number() >> 32) as u32
}

/// Takes the first of a queue, if its time has come.
fn front_if(queue: &mut VecDeque<(u64, u32)>, come: impl FnOnce(u64) -> bool) -> Option<(u64, u32)> {
    let (mark, _) = *queue.front()?;
    if come(mark) { queue.pop_front() } else { None }
}

impl Files {
    /// The table of a frame that was opened; `found` is in the order of ids, and was looked at from `since` on. Its keys are none of the
    /// table before.
    pub(super) fn opened(found: Vec<Found>, since: Option<SystemTime>, recent: HashMap<u32, FileStat>, first: u32) -> Self {
        Files { found, first, since, recent, serial: first, ..Files::default() }
    }

    /// The upper half of the keys of what is found next.
    pub(super) fn next_first(&self) -> u32 {
        if self.serial < LAST_SERIAL { self.serial + 1 } else { 0 }
    }

    /// The key of a file that was found.
    pub(super) fn key_of_found(&self, id: ChunkId) -> ChunkKey {
        key(id.0, self.first)
    }

    /// The key of the file of an id, if that is in the published image or the one being committed.
    pub(super) fn key_in_image(&self, id: ChunkId) -> Option<ChunkKey> {
        let key = self.known.get(&id.0).map_or(self.key_of_found(id), |file| key(id.0, file.serial));
        self.is_in_image(key).then_some(key)
    }

    /// Whether this process has made the file of a key.
    pub(super) fn is_new(&self, key: ChunkKey) -> bool {
        serial_of(key) != self.first
    }

    /// A file of our own was written.
    pub(super) fn stamp(&mut self, key: ChunkKey, stat: &FileStat) {
        if let Some(file) = self.known(key) {
            file.stamp = Some(stat.into());
        }
    }

    /// Whether the file that has a key's name is the one that the key stands for. `None` if the key is not good.
    pub(super) fn check(&self, key: ChunkKey, now: &FileStat) -> Option<Known> {
        Some(self.check_file(key, self.file(key)?, now))
    }

    /// As [`Files::check`], of a file that is to be removed.
    pub(super) fn check_doomed(&self, key: ChunkKey, now: &FileStat) -> Option<Known> {
        let file = self.known.get(&id_of(key).0).filter(|file| file.serial == serial_of(key))?;
        Some(self.check_file(key, *file, now))
    }

    fn check_file(&self, key: ChunkKey, file: File, now: &FileStat) -> Known {
        if let Some(stamp) = file.stamp {
            return if stamp == Stamp::from(now) { Known::Same } else { Known::Written };
        }
        if now.len < u64::from(file.len) {
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

    fn found(&self, id: u32) -> Option<Found> {
        let at = self.found.binary_search_by_key(&id, |found| found.id).ok()?;
        self.found.get(at).copied().filter(|found| found.len > 0)
    }

    /// The file of a key, if that is good.
    fn file(&self, key: ChunkKey) -> Option<File> {
        let (id, serial) = (id_of(key).0, serial_of(key));
        match self.known.get(&id) {
            Some(file) => (file.serial == serial && file.state != State::Removing).then_some(*file),
            None if serial == self.first => self.found(id).map(|Found { len, .. }| File {
                serial,
                len,
                pins: 0,
                state: State::InImage,
                mark: 0,
                discarded: false,
                stamp: None,
            }),
            None => None,
        }
    }

    /// The same, to be changed.
    fn known(&mut self, key: ChunkKey) -> Option<&mut File> {
        let file = self.file(key)?;
        Some(self.known.entry(id_of(key).0).or_insert(file))
    }

    /// How many files there were at open.
    pub(super) fn count(&self) -> usize {
        self.found.len()
    }

    /// The length of a chunk's file in bytes, if the key is good.
    pub(super) fn len(&self, key: ChunkKey) -> Option<u32> {
        self.file(key).map(|file| file.len)
    }

    /// Whether the published image, or the one being committed, names the chunk.
    pub(super) fn is_in_image(&self, key: ChunkKey) -> bool {
        self.file(key).is_some_and(|file| file.state == State::InImage)
    }

    // ---- staging ----

    /// An id for a new file of `len` bytes: the lowest of which no file is known. `None` if there is none left.
    pub(super) fn reserve(&mut self, len: u32) -> Option<ChunkKey> {
        let id = match self.spare.pop_first() {
            Some(id) => id,
            None => {
                let mut found = self.found.partition_point(|found| u64::from(found.id) < self.next);
                loop {
                    let id = u32::try_from(self.next).ok()?;
                    self.next += 1;
                    let taken = self.found.get(found).filter(|found| found.id == id);
                    found += usize::from(taken.is_some());
                    if taken.is_none_or(|found| found.len == 0) && !self.known.contains_key(&id) {
                        break id;
                    }
                }
            }
        };
        self.serial = match self.serial {
            serial if serial < LAST_SERIAL => serial + 1,
            _ => 0,
        };
        if self.serial == self.first {
            self.serial += 1; // never of our own what is found's
        }
        let file = File { serial: self.serial, len, pins: 0, state: State::Staged, mark: 0, discarded: false, stamp: None };
        self.known.insert(id, file);
        Some(key(id, self.serial))
    }

    /// The file could not be made, as somebody else's has the name: it is nobody's business here from now on.
    pub(super) fn skip(&mut self, key: ChunkKey) {
        self.known.remove(&id_of(key).0);
    }

    /// A staged chunk is given back.
    pub(super) fn discard(&mut self, key: ChunkKey, epoch: u64) {
        let Some(file) = self.known.get_mut(&id_of(key).0).filter(|file| file.serial == serial_of(key)) else { return };
        match file.state {
            State::Staged => {
                file.state = State::Gone;
                self.retire(key, epoch);
            }
            State::InImage => file.discarded = true,
            State::Dropped | State::Gone | State::Removing => {}
        }
    }

    pub(super) fn pin(&mut self, key: ChunkKey) {
        if let Some(file) = self.known(key) {
            file.pins = file.pins.saturating_add(1);
        }
    }

    pub(super) fn unpin(&mut self, key: ChunkKey, epoch: u64) {
        let Some(file) = self.known(key).filter(|file| file.pins > 0) else { return };
        file.pins -= 1;
        if file.state == State::Gone {
            self.retire(key, epoch);
        }
    }

    /// Nobody wants the file any more but pins and reads.
    fn retire(&mut self, key: ChunkKey, epoch: u64) {
        let Some(file) = self.known(key).filter(|file| file.pins == 0) else { return }; // the last unpin comes here again
        file.mark = epoch;
        self.retired.push_back((epoch, id_of(key).0));
    }

    // ---- commits ----

    /// The image being committed names the chunk, and the published one does not. What has not been removed is as good as
    /// ever. Answers what it was before, for [`Files::expel`].
    pub(super) fn admit(&mut self, key: ChunkKey) -> Option<State> {
        let file = self.known(key)?;
        let was = std::mem::replace(&mut file.state, State::InImage);
        if was != State::InImage {
            file.discarded = false;
        }
        Some(was)
    }

    /// Takes [`Files::admit`] back, after a commit that changed nothing.
    pub(super) fn expel(&mut self, key: ChunkKey, was: State, epoch: u64) {
        let Some(file) = self.known(key) else { return };
        file.state = was;
        let mark = file.mark;
        match was {
            State::Staged if file.discarded => {
                file.state = State::Gone;
                self.retire(key, epoch);
            }
            State::Gone => self.retire(key, epoch),
            // Its place in the queue may have been passed meanwhile; it is none behind those that wait.
            State::Dropped => self.waiting.push_front((mark, id_of(key).0)),
            State::Staged | State::InImage | State::Removing => {}
        }
    }

    /// State `seq` is published, the first that does not name these chunks.
    pub(super) fn publish(&mut self, seq: Seq, without: &[ChunkKey]) {
        for key in without {
            if let Some(file) = self.known(*key) {
                (file.state, file.mark) = (State::Dropped, seq);
                self.waiting.push_back((seq, id_of(*key).0));
            }
        }
    }

    /// State `seq` is on disk.
    pub(super) fn durable(&mut self, seq: Seq, epoch: u64) {
        while let Some((first, id)) = front_if(&mut self.waiting, |first| first <= seq) {
            let waits = |file: &&mut File| (file.state, file.mark) == (State::Dropped, first);
            if let Some(file) = self.known.get_mut(&id).filter(waits) {
                file.state = State::Gone;
                let key = key(id, file.serial);
                self.retire(key, epoch);
            }
        }
    }

    // ---- removing ----

    /// Whether there may be something to collect.
    pub(super) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Files that readers have left by `epoch`, to be removed: their keys and lengths. To be handed to [`Files::removed`].
    pub(super) fn collect(&mut self, epoch: u64) -> Vec<(ChunkKey, u32)> {
        let mut out = Vec::new();
        while let Some((stamp, id)) = front_if(&mut self.retired, |stamp| stamp + 2 <= epoch) {
            let goes = |file: &&mut File| (file.state, file.mark, file.pins) == (State::Gone, stamp, 0);
            if let Some(file) = self.known.get_mut(&id).filter(goes) {
                file.state = State::Removing;
                out.push((key(id, file.serial), file.len));
            }
        }
        out
    }

    /// Everything that no image has, at the end: as [`Files::collect`]. Where `all` is false, only what never was in one.
    pub(super) fn collect_rest(&mut self, all: bool) -> Vec<(ChunkKey, u32)> {
        let goes = |state| match state {
            State::Staged => true,
            State::Dropped | State::Gone => all,
            State::InImage | State::Removing => false,
        };
        let mut out: Vec<_> = Vec::new();
        for (id, file) in self.known.iter_mut().filter(|(_, file)| goes(file.state)) {
            file.state = State::Removing;
            out.push((key(*id, file.serial), file.len));
        }
        out.sort_unstable_by_key(|(key, _)| id_of(*key));
        out
    }

    /// Whether the frame has a file of that number, or had one until now.
    pub(super) fn knows(&self, id: u32) -> bool {
        self.known.contains_key(&id) || self.found(id).is_some()
    }

    /// Whether there are files that no image has.
    pub(super) fn has_rest(&self) -> bool {
        self.known.values().any(|file| file.state != State::InImage)
    }

    /// A file's name is gone: its id is free again.
    pub(super) fn removed(&mut self, key: ChunkKey) {
        let id = id_of(key).0;
        self.known.remove(&id);
        if let Ok(at) = self.found.binary_search_by_key(&id, |found| found.id)
            && let Some(found) = self.found.get_mut(at)
        {
            found.len = 0;
        }
        if u64::from(id) < self.next {
            self.spare.insert(id);
        }
    }
}
