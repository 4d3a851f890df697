//! Which chunk files are this daemon's to remove, should it be killed: a file that is there while a frame is written to.
//!
//! A daemon that is killed leaves files that no index names: staged ones, and dropped ones that a crash might have wanted back.
//! Who comes next cannot tell them from those of others: the library writes a chunk's file first and the index afterwards, and takes
//! any id that no index names. So it is written down which file is meant, by inode, length and time of writing, and what has been
//! written since then is not removed:
//!
//! | step | does | what a daemon finds that comes after a kill |
//! | --- | --- | --- |
//! | 1 | an entry: the file of this id is being made | no file |
//! | 2 | the file is made and written under a temporary name | that: it is removed |
//! | 3 | the entry: which file it is | the same |
//! | 4 | the file gets the chunk's name, if nothing has it | a file with an entry: it is removed if no index names it |
//! | 5 | before an index is published that does not name a chunk any more: an entry, if the file is the one that was in the frame | the same |
//!
//! Nothing waits for the disk here, and nothing fails: what a power cut or a full disk takes of the record is a file that stays.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::time::{Duration, SystemTime};

use log::debug;

use super::super::ChunkKey;
use super::super::backend::{Backend, BackendFile, FileStat, read_exact_at};
use super::super::source::coarse_until;
use super::SframeStore;
use super::files::{Known, id_of, key, name_of};
use crate::store::in_words;

/// Who has the directory's lock is the only one to use it.
const NAME: &str = ".b2fuse-ids.tmp";
const ENTRY: usize = 32;
/// How many bytes are read at once.
const PIECE: usize = 64 << 10;
/// No more than these are read of a record.
const MOST: u64 = 128 << 20;
/// Of what cannot be removed yet, so much is kept in mind.
const LEFT: usize = 1 << 16;

/// The record, and what is in it.
#[derive(Default)]
pub(super) struct Record {
    file: Option<Box<dyn BackendFile>>,
    /// It cannot be made, so nothing is written down.
    without: bool,
    /// Where an id's entry is, and of which of its files that is: the key.
    slots: HashMap<u32, (u32, Option<ChunkKey>)>,
    /// What was left before, and could not be removed yet.
    left: Vec<Entry>,
}

/// A chunk file, and how it was when it was written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    id: u32,
    /// `None` while it is being made.
    written: Option<Written>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Written {
    len: u32,
    ino: u64,
    mtime: SystemTime,
}

impl Written {
    /// `None` for what cannot be written down.
    fn of(stat: &FileStat) -> Option<Self> {
        let len = u32::try_from(stat.len).ok()?;
        stat.mtime.duration_since(SystemTime::UNIX_EPOCH).ok().map(|_| Written { len, ino: stat.ino, mtime: stat.mtime })
    }

    fn is(&self, stat: &FileStat) -> bool {
        stat.is_file() && Written::of(stat) == Some(*self)
    }
}

impl Entry {
    fn to_bytes(self) -> [u8; ENTRY] {
        let (len, ino, time) = match self.written {
            Some(Written { len, ino, mtime }) => (len, ino, mtime.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()),
            None => (0, 0, Duration::ZERO),
        };
        let mut bytes = [0; ENTRY];
        bytes[..4].copy_from_slice(&self.id.to_le_bytes());
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        bytes[8..16].copy_from_slice(&ino.to_le_bytes());
        bytes[16..24].copy_from_slice(&time.as_secs().to_le_bytes());
        bytes[24..28].copy_from_slice(&time.subsec_nanos().to_le_bytes());
        let check = check(&bytes[..28]);
        bytes[28..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8; ENTRY]) -> Option<Self> {
        let mut words = [0; ENTRY / 4];
        for (word, four) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*four);
        }
        let [id, len, ino_low, ino_high, secs_low, secs_high, nanos, sum] = words;
        if sum != check(&bytes[..28]) || nanos >= 1_000_000_000 {
            return None;
        }
        let long = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let ino = long(ino_low, ino_high);
        let mtime = SystemTime::UNIX_EPOCH.checked_add(Duration::new(long(secs_low, secs_high), nanos))?;
        let written = (ino != 0).then_some(Written { len, ino, mtime });
        Some(Entry { id, written })
    }
}

/// In which half an entry is seen, and zeros.
fn check(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811C_9DC5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Where a chunk's file is made.
pub(super) fn temp_name_of(key: ChunkKey) -> OsString {
    OsString::from(format!(".b2fuse-{:08X}.tmp", id_of(key).0))
}

impl Record {
    /// Writes an entry in the place of an older one of its id.
    fn put(&mut self, entry: Entry, of: Option<ChunkKey>) {
        let Some(file) = &self.file else { return };
        let next = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let slot = self.slots.get(&entry.id).map_or(next, |(slot, _)| *slot);
        // What could not be written is not there to be trusted: the one before is of another file.
        if file.write_at(&entry.to_bytes(), u64::from(slot) * ENTRY as u64).is_ok() {
            self.slots.insert(entry.id, (slot, of));
        }
    }
}

/// Hands the entries of a record on, some thousands at a time.
#[expect(clippy::indexing_slicing, reason = "no more is counted than there is in the buffer")]
fn read(file: &dyn BackendFile, len: u64, mut take: impl FnMut(Vec<Entry>)) -> io::Result<()> {
    let len = len.min(MOST);
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < len {
        let piece = &mut piece[..PIECE.min((len - at) as usize)];
        read_exact_at(file, piece, at)?;
        at += piece.len() as u64;
        take(piece.as_chunks().0.iter().filter_map(Entry::of_bytes).collect());
    }
    Ok(())
}

impl SframeStore {
    /// The first time it removes what somebody left who was killed; P is on disk by then. Before an id is given out, which may be one
    /// of those.
    pub(super) fn ready_record(&self) {
        let mut record = self.medium.record.lock();
        if record.file.is_none() && !record.without {
            self.begin(&mut record);
        }
    }

    /// Step 1.
    pub(super) fn record_making(&self, key: ChunkKey) {
        self.put_down([(key, None)].into_iter());
    }

    /// Step 3.
    pub(super) fn record_made(&self, key: ChunkKey, stat: &FileStat) {
        self.put_down([(key, Written::of(stat))].into_iter().filter(|(_, written)| written.is_some()));
    }

    /// Step 5.
    pub(super) fn record_dropped(&self, keys: &[ChunkKey]) {
        let dir = self.dir();
        self.ready_record();
        let noted: Vec<bool> = {
            let record = self.medium.record.lock();
            keys.iter().map(|key| record.slots.get(&id_of(*key).0).is_some_and(|(_, of)| *of == Some(*key))).collect()
        };
        self.put_down(keys.iter().zip(noted).filter(|(_, noted)| !noted).filter_map(|(key, _)| {
            let stat = dir.stat(&name_of(*key)).ok()?;
            let same = self.medium.directory.files.lock().check(*key, &stat) == Some(Known::Same);
            Some((*key, Some(Written::of(&stat).filter(|_| same)?)))
        }));
    }

    fn put_down(&self, entries: impl Iterator<Item = (ChunkKey, Option<Written>)>) {
        let mut record = self.medium.record.lock();
        for (key, written) in entries {
            record.put(Entry { id: id_of(key).0, written }, written.map(|_| key));
        }
    }

    fn begin(&self, record: &mut Record) {
        let dir = self.dir();
        let mut left = Vec::new();
        let removed = dir.open(OsStr::new(NAME), false).and_then(|file| {
            let stat = file.stat()?;
            if !stat.is_file() || !self.is_ours(&stat) {
                return Err(io::Error::other("is not what a daemon of this frame left"));
            }
            read(&*file, stat.len, |entries| {
                let stay = self.remove_left(&*dir, entries);
                left.extend(stay.into_iter().take(LEFT - left.len()));
            })
        });
        if let Err(error) = removed.as_ref()
            && error.kind() != io::ErrorKind::NotFound
        {
            debug!("{}: {}", self.source.at(NAME).display(), in_words(error));
        }
        let mut created = dir.create(OsStr::new(NAME), 0o600);
        if matches!(&created, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
            // Never written to: who knows where else it has a name.
            created = dir.remove(OsStr::new(NAME)).and_then(|()| dir.create(OsStr::new(NAME), 0o600));
        }
        *record = Record::default();
        match created {
            Ok(file) => record.file = Some(file),
            Err(error) => {
                debug!("{}: cannot be made: {}", self.source.at(NAME).display(), in_words(&error));
                record.without = true;
            }
        }
        left.iter().for_each(|entry| record.put(*entry, None));
        record.left = left;
    }

    /// Whether a file is of a daemon's making, by its owner.
    fn is_ours(&self, stat: &FileStat) -> bool {
        stat.belongs_to_this_process() || self.detector.lock().header_stat().is_some_and(|index| index.uid == stat.uid)
    }

    /// Removes the files of entries that are neither in the frame nor staged. Answers the entries of those that may be removed later.
    fn remove_left(&self, dir: &dyn Backend, mut entries: Vec<Entry>) -> Vec<Entry> {
        if self.others_wrote() || self.is_another_index() {
            return entries;
        }
        entries.retain(|entry| {
            let known = self.medium.directory.files.lock().knows(entry.id);
            !known && self.remove_one(dir, entry).unwrap_or_else(|error| error.kind() != io::ErrorKind::NotFound)
        });
        entries
    }

    /// Whether it is to be tried again later.
    fn remove_one(&self, dir: &dyn Backend, entry: &Entry) -> io::Result<bool> {
        let key = key(entry.id, 0);
        let (name, temp) = (name_of(key), temp_name_of(key));
        let Some(written) = entry.written else {
            // Nobody but a daemon puts anything there.
            let stat = dir.stat(&temp)?;
            return if stat.is_file() && self.is_ours(&stat) { dir.remove_file(&temp, &stat).map(|()| false) } else { Ok(false) };
        };
        let is_it = |stat: &FileStat| written.is(stat) && self.is_ours(stat);
        if dir.stat(&temp).is_ok_and(|stat| is_it(&stat)) {
            dir.remove(&temp)?; // it had not got its name yet
        }
        let stat = dir.stat(&name)?;
        if !is_it(&stat) {
            return Ok(false);
        }
        // Not while the clock stands still: others may have written it again, and its times would not say so.
        if coarse_until(&stat).is_some() {
            return Ok(true);
        }
        // By another name, as the library may be about to write the file: what it opens by the name from now on is a file of its own.
        dir.rename(&name, &temp, false)?;
        match dir.stat(&temp) {
            Ok(stat) if is_it(&stat) => dir.remove(&temp)?,
            _ => dir.rename(&temp, &name, false)?,
        }
        Ok(false)
    }

    /// At the end, when nothing is left that it is needed for. With `all`, what could not be removed before is tried again.
    pub(super) fn remove_record(&self, all: bool) {
        let mut record = self.medium.record.lock();
        let Some(file) = record.file.take() else { return };
        let dir = self.dir();
        let left = std::mem::take(&mut record.left);
        let left = if left.is_empty() || !all { left } else { self.remove_left(&*dir, left) };
        if left.is_empty() && !self.medium.directory.files.lock().has_rest() {
            let _ = file.stat().and_then(|stat| dir.remove_file(OsStr::new(NAME), &stat));
        }
    }

    /// The directory may have been another daemon's meanwhile, or is another.
    pub(super) fn forget_record(&self) {
        *self.medium.record.lock() = Record::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_others_do_not() {
        let mtime = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
        let made = Entry { id: 7, written: Some(Written { len: 1000, ino: 1 << 40, mtime }) };
        for entry in [made, Entry { id: u32::MAX, written: None }, Entry { id: 0, written: None }] {
            let bytes = entry.to_bytes();
            assert_eq!(Entry::of_bytes(&bytes), Some(entry));
            for at in 0..ENTRY {
                let mut other = bytes;
                other[at] ^= 0x40;
                assert_eq!(Entry::of_bytes(&other), None, "byte {at}");
            }
        }
        assert_eq!(Entry::of_bytes(&[0; ENTRY]), None);
    }
}
