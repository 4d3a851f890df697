//! Decoded blocks in files without names, for bands that do not fit in memory.
//!
//! A [`BandFile`] has one slot for each block of a band, and serves one band after the other: what a slot says tells of which one its
//! block is. It holds only copies of blocks that can be decoded again: a file that fails is given up, and nothing else happens.
//!
//! A mount has some of them, in one directory, as far as there is room. One that is in use is never taken away: the next reader gets none.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};
use std::time::{Duration, Instant};

use log::warn;
use parking_lot::{Mutex, RwLock};

use crate::store::backend::{Backend, BackendFile, read_exact_at};
use crate::store::in_words;

/// Files that there are at one time.
const MOST: usize = 64;
/// Slots of one file, and of all: each takes 8 bytes of memory.
const SLOTS: u64 = 512 << 10;
const ALL_SLOTS: u64 = 2 << 20;
/// A file that was not used for so long makes room for another one.
const IDLE: Duration = Duration::from_secs(10);
/// What a slot says that is empty, and one that is being written.
const EMPTY: u64 = u64::MAX;
const WRITING: u64 = u64::MAX - 1;

/// A directory for such files.
pub trait BandDirectory: Send + Sync {
    /// Makes a file for reading and writing that has no name and goes with its last handle.
    ///
    /// # Errors
    /// What the system refuses.
    fn create_unnamed(&self) -> io::Result<Box<dyn BackendFile>>;

    /// Bytes that there is room for.
    ///
    /// # Errors
    /// What the system refuses.
    fn available(&self) -> io::Result<u64>;
}

impl<T: Backend> BandDirectory for T {
    fn create_unnamed(&self) -> io::Result<Box<dyn BackendFile>> {
        Backend::create_unnamed(self)
    }

    fn available(&self) -> io::Result<u64> {
        Ok(self.statvfs()?.available_bytes())
    }
}

/// Where the files are made.
pub struct BandFiles {
    dir: Arc<dyn BandDirectory>,
    /// The newest last.
    files: Mutex<VecDeque<Arc<BandFile>>>,
    /// Something has failed.
    failed: AtomicBool,
    /// The log says that blocks are decoded again.
    told: AtomicBool,
    begun: Instant,
}

impl fmt::Debug for BandFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BandFiles").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl BandFiles {
    /// In a directory.
    pub fn new(dir: Arc<dyn BandDirectory>) -> Self {
        BandFiles {
            dir,
            files: Mutex::default(),
            failed: AtomicBool::new(false),
            told: AtomicBool::new(false),
            begun: Instant::now(),
        }
    }

    /// A file for bands of at most so many blocks, of `len` bytes each, which have `bytes` together. `None` if there is no room for them
    /// beside the files that are in use, or once something has failed.
    pub fn begin(&self, slots: u64, len: u32, bytes: u64) -> Option<Arc<BandFile>> {
        self.begin_at(self.begun.elapsed(), slots, len, bytes)
    }

    fn begin_at(&self, now: Duration, slots: u64, len: u32, bytes: u64) -> Option<Arc<BandFile>> {
        if self.failed.load(Relaxed) || slots > SLOTS {
            return None;
        }
        // Not all of what others may need.
        let available = self.dir.available().unwrap_or(u64::MAX) / 4 * 3;
        let file = match self.dir.create_unnamed() {
            Ok(file) => file,
            Err(error) => {
                self.fail(in_words(&error));
                return None;
            }
        };
        let current = RwLock::new(Current { band: 0, file: Some(file) });
        let slots = (0..slots).map(|_| AtomicU64::new(EMPTY)).collect();
        let (filled, used) = (AtomicU64::new(0), AtomicU64::new(millis(now)));
        let file = Arc::new(BandFile { len, bytes, slots, filled, begun: self.begun, used, current });
        let mut ended = Vec::new();
        let mut files = self.files.lock();
        let has_room = loop {
            let (slots, wanted) = files.iter().chain([&file]).fold((0, 0u64), |(slots, wanted), file| {
                (slots + file.slots.len() as u64, wanted.saturating_add(file.unwritten()))
            });
            let freed: u64 = ended.iter().map(|file: &Arc<BandFile>| file.filled.load(Relaxed)).sum();
            if files.len() < MOST && slots <= ALL_SLOTS && wanted <= available.saturating_add(freed) {
                files.push_back(Arc::clone(&file));
                break true;
            }
            let oldest = (0..files.len()).min_by_key(|n| files.get(*n).map(|file| file.used.load(Relaxed)));
            let is_idle = |file: &Arc<BandFile>| file.used.load(Relaxed).saturating_add(millis(IDLE)) <= millis(now);
            match oldest.filter(|n| files.get(*n).is_some_and(is_idle)).and_then(|n| files.remove(n)) {
                Some(idle) => ended.push(idle),
                None => break false,
            }
        };
        let in_use = files.len();
        drop(files);
        ended.iter().for_each(|file| file.end());
        if has_room {
            return Some(file);
        }
        self.tell(format_args!("{bytes} bytes are needed, {available} can be used, and {in_use} files are in use"));
        None
    }

    /// A file is needed no more.
    pub fn end(&self, file: &Arc<BandFile>) {
        self.files.lock().retain(|other| !Arc::ptr_eq(other, file));
        file.end();
    }

    /// A file cannot be used. Says so once, and makes no more.
    pub fn fail(&self, why: impl fmt::Display) {
        let files = std::mem::take(&mut *self.files.lock());
        files.iter().for_each(|file| file.end());
        self.failed.store(true, Relaxed);
        self.tell(why);
    }

    fn tell(&self, why: impl fmt::Display) {
        if !self.told.swap(true, Relaxed) {
            warn!(
                "decoded blocks cannot be kept in a file, and are decoded again instead (--spill names another directory): {why}"
            );
        }
    }

    /// How many files there are.
    pub fn count(&self) -> usize {
        self.files.lock().len()
    }
}

/// See the module.
pub struct BandFile {
    /// Bytes of a slot, and of a band.
    len: u32,
    bytes: u64,
    /// Which band's block each slot has.
    slots: Vec<AtomicU64>,
    /// Bytes of the slots that were ever written.
    filled: AtomicU64,
    begun: Instant,
    /// When it was used last, in milliseconds from then on.
    used: AtomicU64,
    /// For writing only to change it: while it is held, no slot is written twice, or for another band.
    current: RwLock<Current>,
}

struct Current {
    /// Blocks of this band are written.
    band: u64,
    /// `None` at the end.
    file: Option<Box<dyn BackendFile>>,
}

/// A block: which band has it, and which of the band's it is.
pub type BandSlot = (u64, u64);

impl fmt::Debug for BandFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BandFile").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

impl BandFile {
    /// Whether it still is of use.
    pub fn is_open(&self) -> bool {
        self.current.read().file.is_some()
    }

    fn end(&self) {
        self.current.write().file = None;
    }

    /// Bytes that it may grow by.
    fn unwritten(&self) -> u64 {
        self.bytes.saturating_sub(self.filled.load(Relaxed))
    }

    fn is_used(&self) {
        self.used.store(millis(self.begun.elapsed()), Relaxed);
    }

    /// Which band it is for now.
    pub fn band(&self) -> u64 {
        self.current.read().band
    }

    /// It is for another band from now on.
    pub fn serve(&self, band: u64) {
        self.current.write().band = band;
    }

    /// Whether it has a block.
    pub fn has(&self, (band, slot): BandSlot) -> bool {
        self.slot(slot).is_some_and(|slot| slot.load(Acquire) == band)
    }

    fn slot(&self, slot: u64) -> Option<&AtomicU64> {
        self.slots.get(usize::try_from(slot).ok()?)
    }

    /// Takes a block, if it is of the band that this is for, and has a slot that nobody writes. Whether that was so.
    ///
    /// # Errors
    /// What the file system says. Then there is no such block.
    pub fn write(&self, (band, slot): BandSlot, bytes: &[u8]) -> io::Result<bool> {
        let at = slot.saturating_mul(self.len.into());
        let current = self.current.read();
        let (Some(slot), Some(file)) = (self.slot(slot), &current.file) else { return Ok(false) };
        let before = slot.load(Relaxed);
        let is_free = band == current.band && before != band && before != WRITING && bytes.len() <= self.len as usize;
        if !is_free || slot.compare_exchange(before, WRITING, SeqCst, Relaxed).is_err() {
            return Ok(false);
        }
        fence(SeqCst);
        self.is_used();
        if before == EMPTY {
            self.filled.fetch_add(self.len.into(), Relaxed);
        }
        let written = file.write_at(bytes, at);
        slot.store(if written.is_ok() { band } else { EMPTY }, Release);
        written.map(|()| true)
    }

    /// Fills `buf` from a place in a block on. `false` if there is no such block, or none any more.
    ///
    /// # Errors
    /// What the file system says.
    pub fn read(&self, (band, slot): BandSlot, from: u32, buf: &mut [u8]) -> io::Result<bool> {
        let current = self.current.read();
        let Some(file) = &current.file else { return Ok(false) };
        if !self.has((band, slot)) {
            return Ok(false);
        }
        self.is_used();
        read_exact_at(&**file, buf, slot.saturating_mul(self.len.into()).saturating_add(from.into()))?;
        // Whoever has begun to write another block there meanwhile has said so before. This one cannot have come back to the slot.
        fence(SeqCst);
        Ok(self.has((band, slot)))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::local::FileBackend;

    fn files(dir: &std::path::Path) -> BandFiles {
        BandFiles::new(Arc::new(FileBackend::open(dir).unwrap()))
    }

    #[test]
    fn a_slot_has_a_block_of_one_band() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let file = files.begin(3, 100, 300).unwrap();
        let mut buf = [0; 10];
        assert!(!file.read((0, 1), 5, &mut buf).unwrap(), "nothing was written");
        assert!(file.write((0, 1), &[7; 100]).unwrap());
        assert!(!file.write((0, 1), &[8; 100]).unwrap(), "it has it already");
        assert!(!file.write((1, 1), &[8; 100]).unwrap(), "another band is served");
        assert!(!file.write((0, 3), &[8; 100]).unwrap(), "there is no such slot");
        assert!(file.read((0, 1), 90, &mut buf).unwrap());
        assert_eq!(buf, [7; 10]);
        file.serve(1);
        assert!(file.read((0, 1), 0, &mut buf).unwrap(), "until there is another one");
        assert!(file.write((1, 1), &[8; 100]).unwrap());
        assert!(!file.read((0, 1), 0, &mut buf).unwrap());
        assert!(file.read((1, 1), 0, &mut buf).unwrap());
        assert_eq!(buf, [8; 10]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it has no name");
    }

    #[test]
    fn readers_see_whole_blocks_of_their_band_while_others_write() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let file = files.begin(2, 4096, 8192).unwrap();
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = || {
                let (mut seen, mut buf) = (0u32, [0; 4096]);
                while !end.load(Relaxed) || seen == 0 {
                    for band in [file.band().saturating_sub(1), file.band()] {
                        if file.read((band, 1), 0, &mut buf).unwrap() {
                            assert!(buf.iter().all(|byte| u64::from(*byte) == band % 250), "of another band");
                            seen += 1;
                        }
                    }
                }
            };
            scope.spawn(reader);
            scope.spawn(reader);
            for band in 0..4000 {
                file.serve(band);
                assert!(file.write((band, 1), &[(band % 250) as u8; 4096]).unwrap());
            }
            end.store(true, Relaxed);
        });
    }

    #[test]
    fn a_file_in_use_is_not_taken_from_its_reader() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let all: Vec<_> = (0..MOST).map(|_| files.begin(1, 10, 10).unwrap()).collect();
        assert!(files.begin(1, 10, 10).is_none());
        assert!(all.iter().all(|file| file.is_open()), "the newcomer gets none");
        // All but the first one are not used for a while.
        let later = files.begun.elapsed() + IDLE;
        all[0].used.store(millis(later), Relaxed);
        assert!(files.begin_at(later, 1, 10, 10).is_some());
        let open: Vec<bool> = all.iter().map(|file| file.is_open()).collect();
        assert_eq!((open[0], open.iter().filter(|open| !**open).count()), (true, 1));
    }

    #[test]
    fn what_fails_ends_all() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        assert!(files.begin(SLOTS + 1, 1, 1).is_none());
        let all: Vec<_> = (0..4).map(|_| files.begin(1, 10, 10).unwrap()).collect();
        files.end(&all[3]);
        assert_eq!((files.count(), all[3].is_open()), (3, false));
        files.fail("for a test");
        assert!(all.iter().all(|file| !file.is_open()));
        assert!(!all[0].write((0, 0), &[1; 10]).unwrap());
        assert!(files.begin(1, 10, 10).is_none());
    }

    #[test]
    fn no_file_is_begun_that_would_take_all_room() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        assert!(files.begin(1, 10, u64::MAX / 2).is_none());
        // What the others will still write is not there for one more.
        let available = files.dir.available().unwrap();
        let half = files.begin(1, 10, available / 2).unwrap();
        assert!(files.begin(1, 10, available / 2).is_none() && half.is_open());
        files.end(&half);
        assert!(files.begin(1, 10, available / 2).is_some());
    }
}
