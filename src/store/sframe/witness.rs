//! What others do to SOURCE: noticed after each read and before each commit, and read again.
//!
//! Others are held to what the library itself notices: who changes a frame writes to `chunks.b2frame`, or puts another in its
//! place. Who only writes a chunk file is noticed when that is read, and where the system tells of it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::super::backend::{Backend, BackendFile, FileStat, read_exact_at};
use super::super::frame::{FileBytes, Frame};
use super::super::local::watch::Watched;
use super::super::source::{Complain, Denied, Others, Source, coarse_until, touched_since, written_since};
use super::super::{FrameImage, ReadGuard, Result, StoreError};
use super::commit::{Disk, Unsynced};
use super::files::{Files, Known, id_of, name_of};
use super::folder::Folder;
use super::open::{self, OpenDir, Opened};
use super::{INDEX, SframeStore, index_name};
use crate::format::ChunkId;

/// How many older index files are kept open, so that their inode numbers are not given out again: the library tells a replaced
/// file by that number.
const OLD: usize = 8;

/// What was seen.
pub(super) struct Witness {
    pub(super) dir: FileStat,
    index: Option<(Arc<dyn BackendFile>, FileStat)>,
    old: VecDeque<Arc<dyn BackendFile>>,
    /// What others have done; once seen, that stays so until SOURCE is read again.
    stale: Option<String>,
    /// They have done it to the index file that is open, which is none of this version any more.
    spoiled: bool,
    /// The index file's attributes have changed, or its names.
    touched: bool,
    /// Until then its times may not tell a change.
    coarse: Option<Instant>,
}

impl Witness {
    pub(super) fn new(dir: FileStat) -> Self {
        Witness { dir, index: None, old: VecDeque::new(), stale: None, spoiled: false, touched: false, coarse: None }
    }

    /// This is the index file from now on.
    pub(super) fn index_is(&mut self, file: Arc<dyn BackendFile>, stat: FileStat) {
        self.touched = false;
        if let Some((before, _)) = self.index.replace((file, stat)) {
            self.old.truncate(OLD - 1);
            self.old.push_front(before);
        }
    }

    /// The index file.
    pub(super) fn index(&self) -> Option<Arc<dyn BackendFile>> {
        self.index.as_ref().map(|(file, _)| Arc::clone(file))
    }

    /// The index file's attributes when it was last looked at.
    pub(super) fn index_stat(&self) -> Option<FileStat> {
        self.index.as_ref().map(|(_, stat)| *stat)
    }

    /// Looks whether others have written to the index file that is open.
    fn look_at_index(&mut self) -> io::Result<()> {
        let Some((file, seen)) = &self.index else { return Ok(()) };
        let now = file.stat()?;
        self.touched |= touched_since(seen, &now);
        if let Some(reason) = written_since(seen, &now) {
            self.spoil(reason);
        }
        Ok(())
    }

    fn spoil(&mut self, reason: String) {
        self.spoiled = true;
        self.stale.get_or_insert(reason);
    }

    /// Looks whether others have put another index file in its place; `None` if they have removed it.
    fn look_at_name(&mut self, now: io::Result<FileStat>) -> io::Result<Option<()>> {
        let Some((_, seen)) = &self.index else { return Ok(Some(())) };
        match now {
            Ok(now) if !now.same_file(seen) => {
                self.stale.get_or_insert_with(|| format!("another {INDEX} is in its place"));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        self.look_at_index()?;
        Ok(Some(()))
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

/// What stands for the index file by its name.
fn index_at(dir: &dyn Backend) -> io::Result<FileStat> {
    match dir.stat(index_name())? {
        // Where it is followed, it is the file that counts.
        stat if stat.is_link() => dir.open(index_name(), false)?.stat(),
        stat => Ok(stat),
    }
}

impl SframeStore {
    // ---- reads ----

    /// What was read with this guard is of the version of SOURCE that there was when it was taken.
    pub(super) fn verify_read(&self, guard: &ReadGuard<'_>) -> Result<()> {
        if !guard.is_to_save() {
            self.bracket()?;
        }
        match guard.is_current() {
            true => Ok(()),
            false => Err(self.source.stale("it has been read again meanwhile")),
        }
    }

    /// Others have not changed the index file until now.
    fn bracket(&self) -> Result<()> {
        let Some((file, seen)) = self.witness.lock().index.clone() else { return Ok(()) };
        let now = file.stat().map_err(self.source.at(INDEX).io("stat"))?;
        let coarse = {
            let mut witness = self.witness.lock();
            if let Some(reason) = witness.stale.as_ref().filter(|_| witness.spoiled) {
                return Err(self.source.stale(reason.clone()));
            }
            let same = !touched_since(&seen, &now);
            if same && !witness.is_coarse() {
                return Ok(());
            }
            same
        };
        if coarse { self.bracket_by_header(&*file) } else { self.bracket_again() }
    }

    /// Looks at the index file again: the one that was looked at before may have been replaced by us.
    fn bracket_again(&self) -> Result<()> {
        let mut witness = self.witness.lock();
        let touched = witness.touched;
        witness.look_at_index().map_err(self.source.at(INDEX).io("stat"))?;
        let spoiled = if witness.spoiled { witness.stale.clone() } else { None };
        if spoiled.is_some() || witness.touched != touched {
            self.shared.watch.ring();
        }
        spoiled.map_or(Ok(()), |reason| Err(self.source.stale(reason)))
    }

    fn bracket_by_header(&self, file: &dyn BackendFile) -> Result<()> {
        // Whoever has this is committing, and has an index file of our own in its place soon.
        let Some(disk) = self.disk.try_lock() else { return Ok(()) };
        if disk.unborn().is_some() || has_header(file, disk.header()) {
            return Ok(());
        }
        let mut witness = self.witness.lock();
        if !witness.index().is_some_and(|now| std::ptr::addr_eq(&raw const *now, &raw const *file)) {
            return Ok(()); // replaced by us since
        }
        witness.spoil("its header is another".to_owned());
        self.shared.watch.ring();
        Err(self.source.stale("its header is another"))
    }

    /// Whether others have changed the index file, or its name, as far as a glance at the file tells.
    pub(super) fn looks_as_seen(&self) -> bool {
        let mut witness = self.witness.lock();
        if self.shared.watch.is_blind() {
            let named = matches!(self.source.stat(), Ok(Some(stat)) if stat.same_file(&witness.dir));
            if !named || !matches!(witness.look_at_name(index_at(&*self.dir())), Ok(Some(()))) {
                return false;
            }
        }
        if witness.stale.is_some() || witness.touched || self.shared.suspicion.lock().is_some() {
            return false;
        }
        let same = match &witness.index {
            Some((file, seen)) => file.stat().is_ok_and(|now| !touched_since(seen, &now)),
            None => true,
        };
        same && !witness.is_coarse()
    }

    pub(super) fn watch_files(&self) {
        let Source { name, around, .. } = &self.source;
        let mut watched: Vec<_> = around.iter().map(|around| Watched::Name(Arc::clone(around), name.clone())).collect();
        watched.push(Watched::Frame(Arc::clone(&self.itself.read())));
        watched.extend(self.witness.lock().index().map(Watched::File));
        self.shared.watch.set(watched);
    }

    // ---- what others have done ----

    /// What others have done to SOURCE since we last read or wrote it, in words.
    pub(super) fn seen_outside(&self, disk: &Disk) -> Result<Option<String>> {
        Ok(self.look_with(disk)?.hindrance())
    }

    /// See [`super::LocalStore::look`]. What has only other attributes is not looked at any closer.
    fn look_with(&self, disk: &Disk) -> Result<Others> {
        let at_path = self.source.stat()?;
        if let Some(unborn) = disk.unborn() {
            return Ok(unborn.seen_outside(at_path.as_ref()).map_or(Others::Nothing, Others::Changed));
        }
        let at_path = match self.source.frame_at(at_path, FileStat::is_dir) {
            Ok(stat) => stat,
            Err(reason) => return Ok(Others::Gone(reason)),
        };
        self.look_at_chunks();
        let mut witness = self.witness.lock();
        if !at_path.same_file(&witness.dir) {
            return Ok(Others::Changed("another directory has its name now".to_owned()));
        }
        let named = witness.look_at_name(index_at(&*self.dir()));
        if named.map_err(|error| self.source.at(INDEX).io("stat")(error))?.is_none() {
            return Ok(Others::Gone(format!("its {INDEX} was removed")));
        }
        if witness.stale.is_none()
            && let Some((file, _)) = &witness.index
            && !has_header(&**file, disk.header())
        {
            // Times may be too coarse to tell.
            witness.spoil("its header is another".to_owned());
        }
        let suspicion = self.shared.suspicion.lock().clone();
        if let Some((Known::Written, reason)) = &suspicion {
            witness.stale.get_or_insert_with(|| reason.clone());
        }
        Ok(match (&witness.stale, suspicion) {
            (Some(reason), _) => Others::Changed(reason.clone()),
            (None, Some((_, reason))) => Others::Touched(reason),
            (None, None) if witness.touched => Others::Attributes,
            (None, None) => Others::Nothing,
        })
    }

    /// Looks at the chunk files that somebody has written, as the system tells.
    fn look_at_chunks(&self) {
        let dir = self.dir();
        for name in self.shared.watch.names() {
            let Some(id) = ChunkId::from_file_name(OsStr::new(&name).as_bytes()) else { continue };
            let Some(key) = self.shared.files.lock().key_in_image(id) else { continue };
            match dir.stat(&name) {
                // Where it is followed, reading it tells.
                Ok(stat) if stat.is_link() => {}
                Ok(stat) => drop(self.shared.check_chunk(key, &stat)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.shared.suspect_missing(key),
                Err(_) => {}
            }
        }
    }

    /// See [`super::LocalStore::look`].
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
        let Some(file) = self.witness.lock().index() else { return Ok(Others::Nothing) };
        let stat = file.stat().map_err(self.source.at(INDEX).io("stat"))?;
        let same = self.is_same_frame(&*file, stat.len);
        let mut witness = self.witness.lock();
        if !same {
            witness.spoil("its index is another".to_owned());
            return Ok(Others::Changed(witness.stale.clone().unwrap_or_default()));
        }
        let as_seen = witness.index.as_ref().is_some_and(|(_, seen)| written_since(seen, &stat).is_none());
        if as_seen {
            witness.touched = false;
            witness.index = Some((file, stat));
        }
        Ok(others)
    }

    /// Whether the index file holds what was committed.
    fn is_same_frame(&self, file: &dyn BackendFile, len: u64) -> bool {
        let Some(image) = self.published.read().clone() else { return false };
        let Ok(now) = Frame::<ChunkId>::read(&FileBytes { file, len }) else { return false };
        image.header.as_bytes() == now.header.as_bytes()
            && image.trailer.as_bytes() == now.trailer.as_bytes()
            && image.entries.len() == now.entries.len()
            && image.entries.iter().zip(&now.entries).all(|(old, new)| old.map(id_of) == *new)
    }

    /// Whether others have written, as far as that is cheap to see; where that cannot be seen, they may have.
    pub(super) fn others_wrote(&self) -> bool {
        let mut witness = self.witness.lock();
        let named = witness.look_at_name(index_at(&*self.dir()));
        !matches!(named, Ok(Some(()))) || witness.stale.is_some()
    }

    /// Whether the index file says something else than what was committed, whatever its times say.
    pub(super) fn is_another_index(&self) -> bool {
        let (index, image) = (self.witness.lock().index(), self.published.read().clone());
        match (index, image) {
            (Some(file), Some(image)) => !has_header(&*file, image.header.as_bytes()),
            (None, None) => false,
            _ => true,
        }
    }

    // ---- reading again ----

    /// See [`super::LocalStore::reload`].
    pub(super) fn read_again(&self) -> Result<Arc<FrameImage>> {
        let mut disk = self.disk.lock();
        let at_path = self.source.frame_at(self.source.stat()?, FileStat::is_dir).map_err(|reason| self.source.stale(reason))?;
        if disk.unborn().is_some() || disk.is_closed() {
            return Err(self.source.stale("it is not there"));
        }
        let dir_stat = self.witness.lock().dir;
        let same_dir = at_path.same_file(&dir_stat);
        // Our lock is on the directory that we know.
        let another = match same_dir && !self.source.is_denied() {
            true => None,
            false => Some(open_again(&self.source)?),
        };
        if let Some((open, _)) = another.as_ref().filter(|_| !same_dir) {
            self.source.check_follower(&dir_stat, &open.stat)?;
        }
        let (dir, dir_stat) = match &another {
            Some((open, _)) => (Arc::clone(&open.dir), open.stat),
            None => (self.dir(), at_path),
        };
        let first = self.shared.files.lock().next_first();
        let opened = open::open(&self.source, &dir, dir_stat, first, true)?;
        let Opened { index, index_stat, image, named, found, since, recent, allocated } = opened;
        let image = Arc::new(image);
        let files = Files::opened(named, &found, since, recent, first);
        let stored = files.chunks.named_bytes();
        let folder = Folder::opened(Arc::clone(&dir), dir_stat, index_stat);
        let (rest, before) = {
            let _turnover = self.shared.epochs.turn_over();
            let mut witness = self.witness.lock();
            let mut known = self.shared.files.lock();
            let mut rest = known.collect_rest(true);
            // Others may have used an id again.
            rest.retain(|(key, _)| files.key_in_image(id_of(*key)).is_none());
            let before = std::mem::replace(&mut *known, files);
            drop(known);
            *self.shared.folder.write() = Arc::new(folder);
            self.shared.descriptors.clear();
            self.cache.clear();
            self.held.clear();
            *self.unsynced.lock() = Unsynced::default();
            *self.shared.suspicion.lock() = None;
            self.allocated.store(allocated, Relaxed);
            *disk = disk.reopened(&image.header, stored);
            self.grounded.store(false, Relaxed);
            *self.published.write() = Some(Arc::clone(&image));
            (witness.dir, witness.stale, witness.spoiled) = (dir_stat, None, false);
            witness.coarse = coarse_until(&index_stat);
            witness.index_is(Arc::clone(&index), index_stat);
            (rest, before)
        };
        if let Some((open, denied)) = another {
            self.forget_record();
            *self.itself.write() = Arc::from(open.itself);
            self.source.set_denied(denied);
            self.drafts.move_to(Arc::clone(&dir));
            if let Some(sidecar) = &self.sidecar {
                sidecar.move_to(Arc::clone(&dir), &index_stat)?;
            }
        }
        self.watch_files();
        // What only our older states needed goes when the one that is there now is on disk.
        if same_dir
            && self.source.check_writable().is_ok()
            && !rest.is_empty()
            && index.sync_all().and_then(|()| dir.sync_dir()).is_ok()
        {
            self.remove_files(rest, &before);
        }
        Ok(image)
    }

    /// Takes SOURCE for writing, if it could not be taken when it got its name and can be by now.
    pub(super) fn claim(&self) {
        if !self.source.is_denied() {
            return;
        }
        let _disk = self.disk.lock();
        let Ok(OpenDir { itself, stat, .. }) = open::open_dir(&self.source, true) else { return };
        let mut witness = self.witness.lock();
        let _ = witness.look_at_name(index_at(&*self.dir()));
        if stat.same_file(&witness.dir) && witness.stale.is_none() {
            drop(witness);
            self.forget_record();
            *self.itself.write() = Arc::from(itself);
            self.source.set_denied(None);
        } else {
            witness.touched = true;
            self.shared.watch.ring();
        }
    }
}

/// Whether a file begins with a header.
fn has_header(file: &dyn BackendFile, header: &[u8]) -> bool {
    let mut on_disk = vec![0; header.len()];
    read_exact_at(file, &mut on_disk, 0).is_ok() && on_disk == header
}

/// Opens what has SOURCE's name now: for writing if this store writes and may.
fn open_again(source: &Source) -> Result<(OpenDir, Option<Denied>)> {
    let error = match open::open_dir(source, !source.read_only) {
        Ok(dir) => return Ok((dir, None)),
        Err(error) => error,
    };
    match Denied::by(&error).filter(|_| !source.read_only) {
        Some(denied) => Ok((open::open_dir(source, false)?, Some(denied))),
        None => Err::<_, StoreError>(error),
    }
}

/// What reading has found out about a chunk file that others have changed.
pub(super) type Suspicion = Option<(Known, String)>;

impl super::Shared {
    /// Whether a file is the one that a key stands for.
    ///
    /// # Errors
    /// ESTALE if it is another, or another by now.
    pub(super) fn check_chunk(&self, key: super::ChunkKey, now: &FileStat) -> io::Result<()> {
        let known = self.files.lock().check(key, now);
        match known {
            Some(Known::Same) => return Ok(()),
            Some(Known::Touched) => self.suspect(key, Known::Touched, "has other attributes, or is another file"),
            Some(Known::Written) => self.suspect(key, Known::Written, "was written to"),
            None => {}
        }
        Err(io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// A file of the frame is not there.
    pub(super) fn suspect_missing(&self, key: super::ChunkKey) {
        self.suspect(key, Known::Written, "was removed");
    }

    pub(super) fn suspect(&self, key: super::ChunkKey, known: Known, what: &str) {
        let mut suspicion = self.suspicion.lock();
        if !matches!(&*suspicion, Some((Known::Written, _))) {
            *suspicion = Some((known, format!("its {} {what}", name_of(key).display())));
        }
        drop(suspicion);
        self.watch.ring();
    }
}
