//! Detects changes that other processes make to SOURCE, after each read and before each write, and reloads SOURCE.
//!
//! The store compares the length and the times of the file that begins with the header, and what has SOURCE's name. If times are too coarse
//! to show a change, it compares the header. In a sparse frame that file is the index: the library itself detects changes by it, so a
//! program that changes a frame writes `chunks.b2frame` or replaces it. Our own writes change length and times as well, so nothing is
//! compared while one is under way.

#![expect(private_bounds, reason = "only this layer has media")]

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::commit::CommitState;
use super::{DiskStore, Medium, ReadFrame};
use crate::store::backend::{BackendFile, FileStat, read_exact_at};
use crate::store::error::Complain;
use crate::store::local::watch::Watched;
use crate::store::source::Handle;
use crate::store::source::{Denied, Others, Source, coarse_until, touched_since, written_since};
use crate::store::{FrameImage, Result};

/// What SOURCE looked like after our last write. No other lock is taken under this one, and no I/O is done but stat.
pub(in crate::store) struct Detector {
    /// What has SOURCE's name.
    root: FileStat,
    /// The file that begins with the header, as it was seen.
    header: Option<(Arc<dyn BackendFile>, FileStat)>,
    /// Replaced files that stay open, at most `keep`.
    old: VecDeque<Arc<dyn BackendFile>>,
    keep: usize,
    /// Our own writes under way; while there are any, nothing is compared.
    writers: u32,
    /// A change by others, in words. It stays until SOURCE is reloaded.
    stale: Option<String>,
    /// The change was made to the open file itself, so what is read from it may be wrong.
    spoiled: bool,
    /// The file's attributes or its names have changed.
    touched: bool,
    /// Until then a change may leave the times as they are.
    coarse: Option<Instant>,
}

impl Detector {
    /// For a SOURCE as it was when it was read or created.
    pub(in crate::store) fn new(root: FileStat, header: Option<(Arc<dyn BackendFile>, FileStat)>, keep: usize) -> Self {
        let coarse = header.as_ref().and_then(|(_, seen)| coarse_until(seen));
        let (old, stale) = (VecDeque::new(), None);
        Detector { root, header, old, keep, writers: 0, stale, spoiled: false, touched: false, coarse }
    }

    /// SOURCE was reloaded.
    fn begin(&mut self, root: FileStat, header: (Arc<dyn BackendFile>, FileStat)) {
        let old = std::mem::take(&mut self.old);
        let before = self.header.take();
        *self = Detector { old, header: before, ..Detector::new(root, None, self.keep) };
        self.coarse = coarse_until(&header.1);
        self.header_is(header.0, header.1);
    }

    /// We have replaced the file with the header.
    pub(in crate::store) fn header_is(&mut self, file: Arc<dyn BackendFile>, stat: FileStat) {
        self.touched = false;
        if let Some((before, seen)) = self.header.replace((file, stat))
            && !seen.same_file(&stat)
        {
            self.old.push_front(before);
            self.old.truncate(self.keep);
        }
    }

    /// We have replaced SOURCE itself.
    pub(in crate::store) fn root_is(&mut self, root: FileStat) {
        self.root = root;
    }

    /// The file with the header.
    pub(in crate::store) fn header(&self) -> Option<Arc<dyn BackendFile>> {
        self.header.as_ref().map(|(file, _)| Arc::clone(file))
    }

    /// Its attributes when it was last looked at.
    pub(in crate::store) fn header_stat(&self) -> Option<FileStat> {
        self.header.as_ref().map(|(_, stat)| *stat)
    }

    /// The change by others, in words.
    pub(in crate::store) fn stale(&self) -> Option<&str> {
        self.stale.as_deref()
    }

    /// Whether the file still has the attributes that were seen, and no change was detected.
    pub(in crate::store) fn is_as_seen(&self, now: &FileStat) -> bool {
        self.stale.is_none() && self.writers == 0 && self.header.as_ref().is_some_and(|(_, seen)| !touched_since(seen, now))
    }

    /// A change of our own to the attributes of the file with the header begins. Chunks may be written beside it. It is `None` after a
    /// change by others, which this change must not hide.
    pub(in crate::store) fn begin_attributes(&mut self) -> Option<Arc<dyn BackendFile>> {
        let (file, seen) = self.header.as_ref().filter(|_| self.stale.is_none())?;
        if self.writers == 0 && touched_since(seen, &file.stat().ok()?) {
            return None;
        }
        let file = Arc::clone(file);
        self.writers += 1;
        Some(file)
    }

    /// It has ended. A length that no write of ours made stays unseen, so that it is noticed.
    pub(in crate::store) fn end_attributes(&mut self, file: &dyn BackendFile) {
        self.writers -= 1;
        if let (Ok(now), Some((_, seen))) = (file.stat(), &mut self.header)
            && (self.writers > 0 || now.len == seen.len)
        {
            *seen = now;
            self.touched = false;
        }
    }

    /// Records that others have replaced something; what is open can still be read.
    pub(in crate::store) fn replaced(&mut self, reason: impl FnOnce() -> String) {
        self.stale.get_or_insert_with(reason);
    }

    fn spoil(&mut self, reason: String) {
        self.spoiled = true;
        self.stale.get_or_insert(reason);
    }

    /// Compares the file with the header.
    pub(in crate::store) fn look_at_header(&mut self) -> io::Result<()> {
        let Some((file, seen)) = self.header.as_ref().filter(|_| self.writers == 0) else { return Ok(()) };
        let now = file.stat()?;
        self.touched |= touched_since(seen, &now);
        if let Some(reason) = written_since(seen, &now) {
            self.spoil(reason);
        }
        Ok(())
    }

    /// Whether a change may leave the times as they are just now.
    fn is_coarse(&mut self) -> bool {
        let Some(until) = self.coarse else { return false };
        let coarse = Instant::now() < until;
        if !coarse {
            self.coarse = None;
        }
        coarse
    }
}

impl<M: Medium> DiskStore<M> {
    // ---- reads ----

    /// Checks that nobody has changed the file with the header until now.
    pub(in crate::store) fn check_bytes(&self) -> Result<()> {
        let Some((file, seen)) = self.detector.lock().header.clone() else { return Ok(()) };
        let now = file.stat().map_err(self.io("stat"))?;
        let coarse = {
            let mut detector = self.detector.lock();
            if let Some(reason) = detector.stale.as_ref().filter(|_| detector.spoiled) {
                return Err(self.source.stale(reason.clone()));
            }
            let same = !touched_since(&seen, &now);
            if same && !detector.is_coarse() {
                return Ok(());
            }
            same
        };
        if coarse { self.check_by_header(&file) } else { self.check_again() }
    }

    /// Compares again under the lock: the file may have been replaced by us since.
    fn check_again(&self) -> Result<()> {
        let mut detector = self.detector.lock();
        let touched = detector.touched;
        if let Err(error) = detector.look_at_header() {
            drop(detector);
            return Err(self.io("stat")(error));
        }
        let spoiled = if detector.spoiled { detector.stale.clone() } else { None };
        if spoiled.is_some() || detector.touched != touched {
            self.common.watch.ring();
        }
        spoiled.map_or(Ok(()), |reason| Err(self.source.stale(reason)))
    }

    fn check_by_header(&self, file: &Arc<dyn BackendFile>) -> Result<()> {
        let image = self.image.read().clone();
        if image.is_none_or(|image| has_header(&**file, image.header.as_bytes())) {
            return Ok(());
        }
        // If this lock is taken, a commit is under way and may have written the next header already.
        let Some(commits) = self.commits.try_lock() else { return Ok(()) };
        if commits.is_pending() || has_header(&**file, commits.header()) {
            return Ok(());
        }
        match self.is_another_header(file) {
            Some(reason) => Err(self.source.stale(reason)),
            None => Ok(()),
        }
    }

    /// Records that the file begins with another header, unless we have replaced the file since; returns the change in words.
    fn is_another_header(&self, file: &Arc<dyn BackendFile>) -> Option<String> {
        let mut detector = self.detector.lock();
        if !detector.header.as_ref().is_some_and(|(now, _)| Arc::ptr_eq(now, file)) {
            return None;
        }
        detector.spoil("its header is another".to_owned());
        self.common.watch.ring();
        detector.stale.clone()
    }

    /// See [`crate::store::SourceStore::is_as_seen`].
    pub(in crate::store) fn looks_as_seen(&self) -> bool {
        let root = self.detector.lock().root;
        let blind = self.common.watch.is_blind();
        if blind && !matches!(self.source.stat(), Ok(Some(stat)) if stat.same_file(&root)) {
            return false;
        }
        let suspicion = self.medium.suspicion();
        let mut detector = self.detector.lock();
        if blind && !matches!(M::look_at_header(self, &mut detector), Ok(true)) {
            return false;
        }
        if detector.stale.is_some() || suspicion.is_some() {
            return false;
        }
        if detector.writers > 0 {
            return true;
        }
        let same = detector.header.as_ref().is_none_or(|(file, seen)| file.stat().is_ok_and(|now| !touched_since(seen, &now)));
        same && !detector.touched && !detector.is_coarse()
    }

    /// Asks the system to report changes by others.
    pub(in crate::store) fn watch_files(&self) {
        let place = self.source.place();
        let around = place.around.iter();
        let mut watched: Vec<_> = around.map(|around| Watched::Name(Arc::clone(around), place.name().to_owned())).collect();
        watched.extend(self.medium.watched());
        watched.extend(self.detector.lock().header().map(Watched::File));
        self.common.watch.set(watched);
    }

    // ---- our writes ----

    /// Runs a write of our own to the file with the header, which is not taken for a change by others. It fails if others have written:
    /// what is free space to us may hold their data.
    pub(in crate::store) fn writing<T>(&self, file: &dyn BackendFile, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        {
            let mut detector = self.detector.lock();
            detector.look_at_header()?;
            if detector.stale.is_some() {
                drop(detector);
                self.common.watch.ring();
                return Err(io::Error::from_raw_os_error(libc::ESTALE));
            }
            detector.writers += 1;
        }
        let result = write();
        let mut detector = self.detector.lock();
        detector.writers -= 1;
        if let (Ok(stat), Some((_, seen))) = (file.stat(), &mut detector.header) {
            *seen = stat;
            detector.coarse = None;
        }
        result
    }

    // ---- what others have done ----

    /// A change by others that forbids a commit, in words.
    pub(in crate::store) fn seen_outside(&self, commits: &CommitState<M>) -> Result<Option<String>> {
        Ok(self.look_with(commits)?.hindrance())
    }

    /// See [`crate::store::SourceStore::look`]. If only attributes have changed, the content is not compared.
    fn look_with(&self, commits: &CommitState<M>) -> Result<Others> {
        let at_path = self.source.stat()?;
        if let Some(pending) = commits.pending() {
            return Ok(pending.seen_outside(at_path.as_ref()).map_or(Others::Nothing, Others::Changed));
        }
        let at_path = match self.source.frame_at(at_path, M::is_kind) {
            Ok(stat) => stat,
            Err(reason) => return Ok(Others::Gone(reason)),
        };
        M::look_at_parts(self);
        let (header, known) = {
            let mut detector = self.detector.lock();
            if !at_path.same_file(&detector.root) {
                return Ok(Others::Changed(format!("another {} has its name now", M::KIND)));
            }
            // Under the lock: a write of our own that ends in between would look like a change by others.
            match M::look_at_header(self, &mut detector) {
                Ok(true) => {}
                Ok(false) => return Ok(Others::Gone("its chunks.b2frame was removed".to_owned())),
                Err(error) => {
                    drop(detector);
                    return Err(self.io("stat")(error));
                }
            }
            (detector.header(), detector.stale.is_some())
        };
        // The times may be too coarse to show a change.
        if let Some(header) = header.filter(|header| !known && !has_header(&**header, commits.header())) {
            self.is_another_header(&header);
        }
        let suspicion = self.medium.suspicion();
        let mut detector = self.detector.lock();
        if let Some((true, reason)) = &suspicion {
            detector.replaced(|| reason.clone());
        }
        Ok(match (&detector.stale, suspicion) {
            (Some(reason), _) => Others::Changed(reason.clone()),
            (None, Some((_, reason))) => Others::Touched(reason),
            (None, None) if detector.touched => Others::Attributes,
            (None, None) => Others::Nothing,
        })
    }

    /// See [`crate::store::SourceStore::look`].
    pub(in crate::store) fn look_at_source(&self, commits: &CommitState<M>) -> Result<Others> {
        let others = self.look_with(commits)?;
        if others != Others::Attributes {
            return Ok(others);
        }
        // A program that set the times may have written before.
        let (header, image) = (self.detector.lock().header(), self.image.read().clone());
        let Some(file) = header else { return Ok(Others::Nothing) };
        let stat = file.stat().map_err(self.io("stat"))?;
        let same = image.is_some_and(|image| M::is_same_frame(self, &image, &*file, stat.len));
        let mut detector = self.detector.lock();
        if !same {
            detector.spoil("its index is another".to_owned());
            return Ok(Others::Changed(detector.stale.clone().unwrap_or_default()));
        }
        if detector.writers == 0
            && let Some((_, seen)) = &mut detector.header
            && written_since(seen, &stat).is_none()
        {
            *seen = stat;
            detector.touched = false;
        }
        Ok(others)
    }

    /// Whether others may have written. A quick check.
    pub(in crate::store) fn others_wrote(&self) -> bool {
        let mut detector = self.detector.lock();
        !matches!(M::look_at_header(self, &mut detector), Ok(true)) || detector.stale.is_some()
    }

    // ---- reading again ----

    /// See [`crate::store::SourceStore::reload`].
    pub(in crate::store) fn read_again(&self) -> Result<Arc<FrameImage>> {
        let mut commits = self.commits.lock();
        let _nobody_stages = self.gate.write();
        let at_path = self.source.frame_at(self.source.stat()?, M::is_kind).map_err(|reason| self.source.stale(reason))?;
        if commits.is_pending() || commits.is_closed() {
            return Err(self.source.stale("it is not there"));
        }
        let root = self.detector.lock().root;
        // Our lock is on the file that is open.
        let another = match at_path.same_file(&root) && !self.source.is_denied() {
            true => None,
            false => Some(open_again::<M>(&self.source)?),
        };
        // What was opened says which it is: the name may have become another's since it was looked at.
        let same = another.as_ref().is_none_or(|(handle, _)| handle.stat.same_file(&root));
        if let Some((handle, _)) = another.as_ref().filter(|_| !same) {
            self.source.check_follower(&root, &handle.stat)?;
        }
        let handle = match &another {
            Some((Handle { file, dir, stat }, _)) => Handle { file: Arc::clone(file), dir: dir.clone(), stat: *stat },
            None => {
                let (file, dir) = self.medium.handle();
                Handle { file, dir, stat: at_path }
            }
        };
        let generation = self.medium.next_generation();
        let ReadFrame { image, header_file, commits: own, parts } = M::read(&self.source, &handle, generation, true)?;
        let before = self.detector.lock().header_stat();
        if let (Some(_), Some(before)) = (&handle.dir, before.filter(|before| !before.same_file(&header_file.1))) {
            // An index has owner and mode of its own, which are those of what is shown.
            self.source.check_successor(&handle.stat, &before, &header_file.1)?;
        }
        let opened = commits.reopened(&image.header, own, self.sidecar.is_some());
        let image = Arc::new(image);
        let rest = {
            let _turnover = self.common.epochs.turn_over();
            let rest = M::exchange(self, &handle, another.is_some(), parts);
            self.cache.clear();
            self.copies.clear();
            *self.image.write() = Some(Arc::clone(&image));
            *commits = opened;
            self.grounded.store(false, Relaxed);
            self.detector.lock().begin(handle.stat, header_file);
            rest
        };
        if let Some((handle, denied)) = another {
            self.source.set_denied(denied);
            if let Some(dir) = &handle.dir {
                self.move_drafts(dir);
                let index = self.detector.lock().header_stat();
                if let (Some(sidecar), Some(index)) = (&self.sidecar, index) {
                    sidecar.move_to(Arc::clone(dir), &index)?;
                }
            }
        }
        self.watch_files();
        M::let_go(self, rest, same);
        Ok(image)
    }

    /// Tries to lock a SOURCE that was locked by another mount when it was reloaded.
    pub(in crate::store) fn claim(&self) {
        if !self.source.is_denied() {
            return;
        }
        let _commits = self.commits.lock();
        let _nobody_stages = self.gate.write();
        let Ok(handle) = M::open(&self.source, true) else { return };
        let as_seen = {
            let mut detector = self.detector.lock();
            let looked = M::look_at_header(self, &mut detector);
            matches!(looked, Ok(true)) && detector.stale.is_none() && !detector.touched && handle.stat.same_file(&detector.root)
        };
        if as_seen {
            M::set_handle(self, &handle);
            self.watch_files();
            self.source.set_denied(None);
        } else {
            self.detector.lock().touched = true;
            self.common.watch.ring();
        }
    }
}

/// Whether a file begins with a header.
pub(in crate::store) fn has_header(file: &dyn BackendFile, header: &[u8]) -> bool {
    let mut on_disk = vec![0; header.len()];
    read_exact_at(file, &mut on_disk, 0).is_ok() && on_disk == header
}

/// Opens what has SOURCE's name now: for writing if this store writes and may.
fn open_again<M: Medium>(source: &Source) -> Result<(Handle, Option<Denied>)> {
    let error = match M::open(source, !source.read_only) {
        Ok(handle) => return Ok((handle, None)),
        Err(error) => error,
    };
    match Denied::by(&error).filter(|_| !source.read_only) {
        Some(denied) => Ok((M::open(source, false)?, Some(denied))),
        None => Err(error),
    }
}
