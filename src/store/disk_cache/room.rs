//! How many bytes are kept by all processes together, as near as that can be known without waiting for any of them.
//!
//! A file in the cache's directory has the number. Each process adds what it is about to keep before it does, under a lock of flock(2)
//! that nobody waits for: if another process holds it, a few bytes may be counted later. A process that removes a file subtracts it. So the
//! number is rather too large than too small; a look through the whole directory (`sweep`) corrects it. After a power cut it may be
//! too small by what was kept in the last seconds, for a day at most.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::names::{COUNT, Folder};
use crate::store::backend::{Backend, BackendFile, read_exact_at};
use crate::store::checksum::checksum;

/// What a file's length is rounded up to: the room that it takes on most file systems.
const BLOCK: u64 = 4096;
/// After so long the number is taken for wrong, whatever it says.
const GOOD_FOR: Duration = Duration::from_secs(24 * 60 * 60);

const MAGIC: [u8; 8] = *b"b2fcount";
const LEN: usize = 48;

/// What a file of that many bytes costs: none is empty unless it is damaged.
pub(super) fn cost(len: u64) -> u64 {
    len.max(1).checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX)
}

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    /// Bytes that are kept.
    pub(super) bytes: u64,
    /// Bytes that were ever taken: grows only.
    pub(super) taken: u64,
    /// How often it was set right.
    pub(super) sweeps: u64,
    /// When that was last set right, in seconds since 1970.
    pub(super) swept: u64,
}

impl Count {
    /// Set right now.
    pub(super) fn now(bytes: u64, taken: u64) -> Self {
        Count { bytes, taken, sweeps: 0, swept: seconds(SystemTime::now()) }
    }

    fn is_old(&self) -> bool {
        // As old if its time is still to come.
        seconds(SystemTime::now()).checked_sub(self.swept).is_none_or(|age| age > GOOD_FOR.as_secs())
    }

    pub(super) fn encode(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let (magic, rest) = bytes.split_at_mut(8);
        magic.copy_from_slice(&MAGIC);
        for (place, number) in rest.chunks_exact_mut(8).zip([self.bytes, self.taken, self.sweeps, self.swept]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let (summed, sum) = bytes.split_at_mut(LEN - 8);
        sum.copy_from_slice(&checksum(summed).to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; LEN]) -> Option<Self> {
        let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let count = Count { bytes: number(8)?, taken: number(16)?, sweeps: number(24)?, swept: number(32)? };
        (count.encode() == *bytes).then_some(count)
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whether there is room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    /// It is taken: what is kept stays within the bound.
    pub(super) taken: bool,
    /// It is time to look through the directory.
    pub(super) sweep: bool,
}

/// The room that a cache has.
pub(super) struct Room {
    most: u64,
    told: Mutex<Told>,
    /// What this process has given back, and the file does not say yet.
    given: AtomicU64,
}

/// The file with the number.
#[derive(Default)]
struct Told {
    file: Option<Box<dyn BackendFile>>,
    /// What it said last; more than there is room for if that was nothing.
    bytes: u64,
    /// How often that had been set right.
    sweeps: Option<u64>,
    /// What this process has taken that it does not say yet.
    untold: u64,
}

impl Room {
    pub(super) fn new(most: u64) -> Self {
        Room { most, told: Mutex::default(), given: AtomicU64::new(0) }
    }

    /// Above this many bytes some are removed.
    pub(super) fn high(&self) -> u64 {
        self.most - self.most / 16
    }

    /// So many are left then.
    pub(super) fn low(&self) -> u64 {
        self.most - self.most / 8
    }

    /// Makes sure that there is a file with the number: to be called before anything else is made, as it begins with nothing then.
    ///
    /// # Errors
    /// What the system refuses.
    pub(super) fn begin(&self, dir: &dyn Backend) -> io::Result<()> {
        let mut told = self.told.lock();
        // One that was removed is not the one that others find.
        if !told.file.as_ref().is_some_and(|file| file.stat().is_ok_and(|stat| stat.links > 0)) {
            told.file = Some(open(dir)?);
        }
        Ok(())
    }

    /// Takes room for a file that has its length already, so that whoever is counting sees it.
    ///
    /// # Errors
    /// What the system refuses of the file with the number.
    pub(super) fn take(&self, dir: &dyn Backend, cost: u64) -> io::Result<Taken> {
        let mut result = Taken { taken: false, sweep: false };
        if cost > self.high() {
            return Ok(result);
        }
        let mut told = self.told.lock();
        let Told { file, bytes, sweeps, untold } = &mut *told;
        let updated = update(file, dir, |count| {
            let Some(count) = count else {
                *bytes = u64::MAX;
                result.sweep = true;
                return None;
            };
            let mut taken = std::mem::take(untold);
            // Whoever set it right may not have seen what was removed before.
            let given = self.given.swap(0, Relaxed);
            let given = if sweeps.replace(count.sweeps) == Some(count.sweeps) { given } else { 0 };
            let before = count.bytes.saturating_sub(given).saturating_add(taken);
            let after = before.saturating_add(cost);
            result = Taken { taken: after <= self.most - self.most / 32, sweep: after > self.high() || count.is_old() };
            *bytes = before;
            if result.taken {
                *bytes = after;
                taken = taken.saturating_add(cost);
            }
            Some(Count { bytes: *bytes, taken: count.taken.wrapping_add(taken), ..count })
        });
        if !updated? {
            // Another process has it just now. What is left above lets eight do this at a time.
            let more = untold.saturating_add(cost);
            let after = bytes.saturating_add(more);
            result = Taken { taken: after <= self.high() && more <= self.most / 256, sweep: after > self.high() };
            if result.taken {
                *untold = more;
            }
        }
        Ok(result)
    }

    /// Gives the room of a file back, by whoever has removed it.
    pub(super) fn give(&self, cost: u64) {
        self.given.fetch_add(cost, Relaxed);
    }

    /// What the file says now, or nothing if that is damaged; `None` if another process is at it.
    pub(super) fn count(&self, dir: &dyn Backend) -> io::Result<Option<Option<Count>>> {
        let mut found = None;
        let updated = update(&mut self.told.lock().file, dir, |count| {
            found = count;
            None
        })?;
        Ok(updated.then_some(found))
    }

    /// Has the file say what was counted by somebody who began to when it said `before`; `false` if another process is at it.
    pub(super) fn set_right(&self, dir: &dyn Backend, counted: u64, before: Option<Count>) -> io::Result<bool> {
        update(&mut self.told.lock().file, dir, |now| {
            // What was taken meanwhile may have been seen, or not, and what was given back may have been before: nothing is missed so.
            let taken = now.map_or(0, |now| now.taken);
            let since = before.map_or(0, |before| taken.wrapping_sub(before.taken));
            let sweeps = now.map_or_else(|| seconds(SystemTime::now()), |now| now.sweeps.wrapping_add(1));
            Some(Count { sweeps, ..Count::now(counted.saturating_add(since), taken) })
        })
    }
}

/// Replaces what the file says, under its lock; with `None` it is left as it is. Answers whether the lock was to be had.
fn update(
    kept: &mut Option<Box<dyn BackendFile>>,
    dir: &dyn Backend,
    change: impl FnOnce(Option<Count>) -> Option<Count>,
) -> io::Result<bool> {
    let file = match kept {
        Some(file) => file,
        none => none.insert(open(dir)?),
    };
    if !file.try_lock()? {
        return Ok(false);
    }
    let mut bytes = [0; LEN];
    let count = read_exact_at(&**file, &mut bytes, 0).ok().and_then(|()| Count::decode(&bytes));
    let written = change(count).map_or(Ok(()), |count| file.write_at(&count.encode(), 0));
    file.unlock()?;
    written.map(|()| true)
}

/// Opens the file, or makes it: with a number where nothing is kept, and else without one.
fn open(dir: &dyn Backend) -> io::Result<Box<dyn BackendFile>> {
    match dir.open(COUNT.as_ref(), true) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let mut empty = true;
    dir.each_name(&mut |name| {
        empty = Folder::parse(name).is_none();
        empty
    })?;
    let made = match dir.create(COUNT.as_ref(), 0o600) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return dir.open(COUNT.as_ref(), true),
        made => made?,
    };
    let written = if empty { made.write_at(&Count::now(0, 0).encode(), 0) } else { Ok(()) };
    if written.is_err() {
        // The next time it begins with nothing again.
        let _ = dir.remove(COUNT.as_ref());
    }
    written.map(|()| made)
}
