//! What others do to SOURCE: noticed after each read and before each write, and read again.
//!
//! Others are known by the file's length and times, or by its header where times are too coarse to tell; and by what has SOURCE's
//! name. Between two looks at the file our own writes change both, so while one is under way nothing is to be seen.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use super::commit::Disk;
use super::{CframeStore, Ground, Parsed, Place, key_at, open_file, parse, position};
use crate::format::IndexEntry;
use crate::format::times::{Identity, Stamp, checksum};
use crate::store::backend::{BackendFile, FileStat, read_exact_at};
use crate::store::local::watch::Watched;
use crate::store::source::{Complain, Denied, KEPT_CHANGING, Others, Source, TICK, coarse_until, touched_since, written_since};
use crate::store::{FrameImage, ReadGuard, Result, StoreError};

/// How often a frame is read again that others change meanwhile.
const ROUNDS: usize = 3;

/// What SOURCE looked like after our last write, to notice those of others.
pub(in crate::store) struct Witness {
    seen: FileStat,
    /// Our own writes under way; while there are any, nothing is to be seen.
    writers: u32,
    /// What others have done; once seen, that stays so until SOURCE is read again.
    stale: Option<String>,
    /// Its attributes have changed, or its names.
    touched: bool,
    /// Until then its times may not tell a change.
    coarse: Option<Instant>,
}

impl Witness {
    /// Of a file as it was when it was read, or made.
    pub(super) fn new(seen: FileStat) -> Self {
        Witness { coarse: coarse_until(&seen), seen, writers: 0, stale: None, touched: false }
    }

    fn look(&mut self, now: &FileStat) {
        if self.stale.is_none() {
            self.stale = written_since(&self.seen, now);
        }
    }

    /// What others have done, if that can be seen by the times of the file.
    fn look_at(&mut self, file: &dyn BackendFile) -> io::Result<()> {
        if self.writers == 0 {
            let now = file.stat()?;
            self.look(&now);
            self.touched |= touched_since(&self.seen, &now);
        }
        Ok(())
    }

    /// Whether times are too coarse to tell just now.
    fn is_coarse(&mut self) -> bool {
        let Some(until) = self.coarse else { return false };
        let coarse = Instant::now() < until;
        if !coarse {
            self.coarse = None;
        }
        coarse
    }
}

impl CframeStore {
    /// The reason why nothing is written to or read from SOURCE any more, if others have changed it.
    pub(in crate::store) fn stale_reason(&self) -> Option<String> {
        self.witness.lock().stale.clone()
    }

    // ---- reads ----

    /// What was read with this guard is of the version of SOURCE that there was when it was taken.
    pub(super) fn verify_read(&self, guard: &ReadGuard<'_>) -> Result<()> {
        if !guard.is_to_save() {
            self.bracket()?;
        }
        if guard.is_current() { Ok(()) } else { Err(self.source.stale("it has been read again meanwhile")) }
    }

    /// Others have not changed the file until now.
    pub(super) fn bracket(&self) -> Result<()> {
        let file = Arc::clone(&self.place.read().file);
        let now = file.stat().map_err(self.io("stat"))?;
        let coarse = {
            let mut witness = self.witness.lock();
            if let Some(reason) = &witness.stale {
                return Err(self.source.stale(reason.clone()));
            }
            let same = !touched_since(&witness.seen, &now);
            if same && !witness.is_coarse() {
                return Ok(());
            }
            same
        };
        if coarse { self.bracket_by_header(&*file) } else { self.bracket_again() }
    }

    /// Looks at the file again, when nothing of ours is written.
    fn bracket_again(&self) -> Result<()> {
        let mut witness = self.witness.lock();
        // The one that was looked at before may have been exchanged by us.
        let file = Arc::clone(&self.place.read().file);
        let touched = witness.touched;
        if let Err(error) = witness.look_at(&*file) {
            drop(witness);
            return Err(self.io("stat")(error));
        }
        let stale = witness.stale.clone();
        if stale.is_some() || witness.touched != touched {
            self.watch.ring();
        }
        stale.map_or(Ok(()), |reason| Err(self.source.stale(reason)))
    }

    fn bracket_by_header(&self, file: &dyn BackendFile) -> Result<()> {
        let Some(image) = self.published.read().clone() else { return Ok(()) };
        if has_header(file, image.header.as_bytes()) {
            return Ok(());
        }
        // Whoever has this is committing, and may have written the next header already.
        let Some(disk) = self.disk.try_lock() else { return Ok(()) };
        if !disk.linked() || has_header(file, disk.header()) {
            return Ok(());
        }
        Err(self.source.stale(self.other_header()))
    }

    fn other_header(&self) -> String {
        self.watch.ring();
        self.witness.lock().stale.get_or_insert_with(|| "its header is another".to_owned()).clone()
    }

    /// Whether others have changed the file, or its name, as far as a glance at the file tells.
    pub(super) fn is_as_seen(&self) -> bool {
        let file = Arc::clone(&self.place.read().file);
        let Ok(now) = file.stat() else { return false };
        if self.watch.is_blind() && !matches!(self.source.stat(), Ok(Some(stat)) if stat.same_file(&now)) {
            return false;
        }
        let mut witness = self.witness.lock();
        let same = witness.stale.is_none() && !witness.touched && !touched_since(&witness.seen, &now);
        same && !witness.is_coarse() || witness.stale.is_none() && witness.writers > 0
    }

    // ---- our writes ----

    /// Runs a write of ours, so that it does not count as a change by others. Where others have written, nothing of ours is
    /// written any more: what is free to us may hold their data.
    pub(in crate::store) fn writing<T>(&self, file: &dyn BackendFile, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        {
            let mut witness = self.witness.lock();
            witness.look_at(file)?;
            if witness.stale.is_some() {
                drop(witness);
                self.watch.ring();
                return Err(io::Error::from_raw_os_error(libc::ESTALE));
            }
            witness.writers += 1;
        }
        let result = write();
        let mut witness = self.witness.lock();
        witness.writers -= 1;
        if let Ok(stat) = file.stat() {
            (witness.seen, witness.coarse) = (stat, None);
        }
        result
    }

    /// The file was renamed by us, or otherwise changed.
    pub(in crate::store) fn witness_file(&self, stat: FileStat) {
        let mut witness = self.witness.lock();
        (witness.seen, witness.touched) = (stat, false);
    }

    /// The file was exchanged by us.
    pub(in crate::store) fn file_is(&self, file: &Arc<dyn BackendFile>, stat: io::Result<FileStat>) {
        {
            let mut witness = self.witness.lock(); // nobody is to see the new file and take it for another's
            self.place.write().file = Arc::clone(file);
            if let Ok(stat) = stat {
                (witness.seen, witness.touched) = (stat, false);
            }
        }
        self.watch_file(file);
    }

    pub(super) fn watch_file(&self, file: &Arc<dyn BackendFile>) {
        let Source { name, around, .. } = &self.source;
        let name = around.iter().map(|around| Watched::Name(Arc::clone(around), name.clone()));
        self.watch.set(name.chain([Watched::File(Arc::clone(file))]).collect());
    }

    // ---- what others have done ----

    /// What others have done to SOURCE since we last read or wrote it, in words.
    pub(in crate::store) fn seen_outside(&self, disk: &Disk) -> Result<Option<String>> {
        Ok(self.look_with(disk)?.hindrance())
    }

    /// See [`crate::store::LocalStore::look`]. What has only other attributes is not looked at any closer.
    fn look_with(&self, disk: &Disk) -> Result<Others> {
        let at_path = self.source.stat()?;
        if let Some(unborn) = disk.unborn() {
            return Ok(unborn.seen_outside(at_path.as_ref()).map_or(Others::Nothing, Others::Changed));
        }
        let at_path = match self.source.frame_at(at_path, FileStat::is_file) {
            Ok(stat) => stat,
            Err(reason) => return Ok(Others::Gone(reason)),
        };
        let (file, touched) = {
            let mut witness = self.witness.lock();
            let file = Arc::clone(&self.place.read().file);
            if !at_path.same_file(&witness.seen) {
                return Ok(Others::Changed("another file has its name now".to_owned()));
            }
            // With the lock held: a write of ours that ends between the two would look like one of others.
            if let Err(error) = witness.look_at(&*file) {
                drop(witness);
                return Err(self.io("stat")(error));
            }
            if let Some(reason) = &witness.stale {
                return Ok(Others::Changed(reason.clone()));
            }
            (file, witness.touched)
        };
        // Times may be too coarse to tell.
        match has_header(&*file, disk.header()) {
            true if touched => Ok(Others::Attributes),
            true => Ok(Others::Nothing),
            false => Ok(Others::Changed(self.other_header())),
        }
    }

    /// See [`crate::store::LocalStore::look`].
    pub(super) fn look_at_source(&self) -> Result<Others> {
        self.look_behind(&self.disk.lock())
    }

    /// See [`crate::store::LocalStore::glance`].
    pub(super) fn glance_at_source(&self) -> Option<Result<Others>> {
        self.disk.try_lock().map(|disk| self.look_behind(&disk))
    }

    fn look_behind(&self, disk: &Disk) -> Result<Others> {
        let others = self.look_with(disk)?;
        if others != Others::Attributes {
            return Ok(others);
        }
        // Who sets times may have written as well.
        let file = Arc::clone(&self.place.read().file);
        let stat = file.stat().map_err(self.io("stat"))?;
        let same = self.is_same_frame(&*file, stat.len);
        let mut witness = self.witness.lock();
        if !same {
            let reason = witness.stale.get_or_insert_with(|| "its index is another".to_owned());
            return Ok(Others::Changed(reason.clone()));
        }
        if witness.writers == 0 && written_since(&witness.seen, &stat).is_none() {
            (witness.seen, witness.touched) = (stat, false);
        }
        Ok(others)
    }

    /// Whether all of SOURCE but the chunks is what was committed.
    fn is_same_frame(&self, file: &dyn BackendFile, len: u64) -> bool {
        let Some(image) = self.published.read().clone() else { return false };
        let Ok(Parsed { image: now, .. }) = parse(&self.source, file, len, |position| key_at(position, 0)) else {
            return false;
        };
        let place = self.place.read();
        let none = HashMap::new();
        let same = |(old, new): (&IndexEntry<_>, &IndexEntry<_>)| {
            let indexed = |key| place.indexed.get(&key).copied().unwrap_or_else(|| position(&place.moved, key));
            old.map(indexed) == new.map(|key| position(&none, key))
        };
        image.header.as_bytes() == now.header.as_bytes()
            && image.trailer.as_bytes() == now.trailer.as_bytes()
            && image.entries.len() == now.entries.len()
            && image.entries.iter().zip(now.entries.iter()).all(same)
    }

    // ---- which state it is ----

    /// See [`crate::store::LocalStore::identity`]. If it is too early to tell, the error is how long it is to be waited.
    pub(super) fn identity_with(&self, disk: &Disk) -> std::result::Result<Identity, Option<Duration>> {
        // Where another machine may write, its clock is not known, and what is known here may be old.
        if !disk.linked() || self.source.is_denied() || self.source.backend.clock().is_none() {
            return Err(None);
        }
        let file = Arc::clone(&self.place.read().file);
        let now = file.stat().map_err(|_| None)?;
        {
            let witness = self.witness.lock();
            if witness.stale.is_some() || witness.writers > 0 || touched_since(&witness.seen, &now) {
                return Err(None);
            }
        }
        let (mtime, ctime) = (now.mtime.into(), Stamp::from(now.ctime));
        // A file system that keeps whole seconds does not tell two changes in one of them apart.
        if ctime.is_whole_second() || !has_header(&*file, disk.header()) {
            return Err(None);
        }
        // Until the clock has gone on, a change may leave all times as they are.
        let age = SystemTime::now().duration_since(now.ctime).unwrap_or_else(|ahead| match ahead.duration() < TICK {
            true => Duration::ZERO,
            false => TICK,
        });
        match TICK.checked_sub(age).filter(|left| !left.is_zero()) {
            Some(left) => Err(Some(left)),
            None => Ok(Identity { dev: now.dev, ino: now.ino, len: now.len, mtime, ctime, header: checksum(disk.header()) }),
        }
    }

    /// See [`crate::store::LocalStore::at_close`]. `whole` if all has gone well so far.
    pub(in crate::store) fn part(&self, disk: &Disk, whole: bool) {
        let last = std::mem::take(&mut *self.at_close.lock());
        if last.is_empty() {
            return;
        }
        let state = if whole { self.identity_with(disk) } else { Err(None) };
        let state = match state {
            Err(Some(left)) => {
                std::thread::sleep(left);
                self.identity_with(disk)
            }
            state => state,
        };
        let state = state.ok();
        last.into_iter().for_each(|last| last(state));
    }

    // ---- reading again ----

    /// See [`crate::store::LocalStore::reload`].
    pub(super) fn read_again(&self) -> Result<Arc<FrameImage>> {
        let mut disk = self.disk.lock();
        let _nobody_stages = self.gate.write();
        let held = Arc::clone(&self.place.read().file);
        let at_path = self.source.frame_at(self.source.stat()?, FileStat::is_file).map_err(|reason| self.source.stale(reason))?;
        if !disk.linked() || disk.is_closed() {
            return Err(self.source.stale("it is not there"));
        }
        let held_stat = held.stat().map_err(self.io("stat"))?;
        let is_held = at_path.same_file(&held_stat);
        let (file, denied) = match is_held && !self.source.is_denied() {
            // Our lock is on the file that we know.
            true => (held, None),
            false => open_again(&self.source)?,
        };
        if !is_held {
            self.source.check_follower(&held_stat, &file.stat().map_err(self.io("stat"))?)?;
        }
        let generation = self.generations.next_first();
        let (Parsed { image, sections }, stat) = self.parse_whole(&*file, generation)?;
        let opened = disk.reopened(&image.header, sections.index.is_empty(), self.sidecar.is_some());
        let image = Arc::new(image);
        {
            let mut ground = self.ground.lock();
            let _turnover = self.epochs.turn_over();
            let mut witness = self.witness.lock();
            self.generations.begin(generation);
            self.limit.store(sections.chunks.end, Relaxed);
            *ground = Ground { space: None, names: HashMap::new(), opened: Some(sections) };
            *self.place.write() = Place::new(Arc::clone(&file));
            self.cache.clear();
            self.held.clear();
            *self.published.write() = Some(Arc::clone(&image));
            *disk = opened;
            self.grounded.store(false, Relaxed);
            self.sweeping.store(false, Relaxed);
            *witness = Witness::new(stat);
        }
        self.source.set_denied(denied);
        self.watch_file(&file);
        Ok(image)
    }

    /// Reads the frame of a file while nobody changes it.
    fn parse_whole(&self, file: &dyn BackendFile, generation: u32) -> Result<(Parsed, FileStat)> {
        for round in 1.. {
            let before = file.stat().map_err(self.io("stat"))?;
            let parsed = parse(&self.source, file, before.len, |position| key_at(position, generation));
            let after = file.stat().map_err(self.io("stat"))?;
            if !touched_since(&before, &after) {
                return Ok((parsed?, after));
            }
            if round == ROUNDS {
                break;
            }
        }
        Err(self.source.stale(KEPT_CHANGING))
    }

    /// Takes SOURCE for writing, if it could not be taken when it got its name and can be by now.
    pub(super) fn claim(&self) {
        if !self.source.is_denied() {
            return;
        }
        let _disk = self.disk.lock();
        let _nobody_stages = self.gate.write();
        let Ok(file) = open_file(&self.source) else { return };
        let mut witness = self.witness.lock();
        let as_seen = file.stat().is_ok_and(|stat| !touched_since(&witness.seen, &stat));
        if as_seen && witness.stale.is_none() {
            self.place.write().file = Arc::clone(&file);
            witness.touched = false;
            drop(witness);
            self.watch_file(&file);
            self.source.set_denied(None);
        } else {
            witness.touched = true;
            self.watch.ring();
        }
    }
}

/// Whether a file begins with a header.
fn has_header(file: &dyn BackendFile, header: &[u8]) -> bool {
    let mut on_disk = vec![0; header.len()];
    read_exact_at(file, &mut on_disk, 0).is_ok() && on_disk == header
}

/// Opens what has SOURCE's name now: for writing if this store writes and may.
fn open_again(source: &Source) -> Result<(Arc<dyn BackendFile>, Option<Denied>)> {
    let error = match open_file(source) {
        Ok(file) => return Ok((file, None)),
        Err(error) => error,
    };
    match Denied::by(&error).filter(|_| !source.read_only) {
        Some(denied) => {
            let file = source.backend.open(&source.name, false).map_err(source.io("open"))?;
            Ok((Arc::from(file), Some(denied)))
        }
        None => Err::<_, StoreError>(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{LocalStore, OpenOptions};

    #[test]
    fn a_glance_waits_for_no_sync() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.b2frame");
        std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cframe/b2nd-int.b2nd"), &path).unwrap();
        let store = CframeStore::open(&path, OpenOptions::default()).unwrap();
        assert!(matches!(store.glance(), Some(Ok(Others::Nothing))));
        let syncing = store.disk.lock();
        assert!(store.glance().is_none());
        drop(syncing);
        assert!(store.glance().is_some());
    }
}
