//! Commits of an sframe: the one place that decides what is on disk before what.
//!
//! State *P* is published: its index file has the name `chunks.b2frame`. State *D* is known to be on disk: *P*, or the one
//! before it. State *N* comes next. What is found at open is P, and D only after a sync of the directory: who published it may
//! have been killed. So nothing is removed before that.
//!
//! | step | does | a crash here leaves |
//! | --- | --- | --- |
//! | 0 | `stage`: new chunk files, written under temporary names, get ids of which there was no file | D or P, and files that nobody asks for |
//! | 1 | the index file of N, under a temporary name | the same |
//! | 2 | fdatasync of each new chunk file that N names, and of the index file; or one syncfs, where they are many | the same |
//! | 3 | fsync of the directory: the names of the chunk files, and the rename to P, are on disk; now D is P | D or P, after it P |
//! | 4 | the index file of N is renamed to `chunks.b2frame` | P or N |
//! | 5 | chunk files that only states before D had are removed | P or N, and files that nobody asks for |
//! | 6 | nothing; N is published, and on disk with the next commit's step 3 or with `sync` | P or N |
//!
//! What a daemon that is killed leaves under names of chunks, the next one finds by a record: see `record.rs`.
//!
//! A rename is seen whole or not at all, and everything that N names was on disk before it. Files that P has and N has not are
//! kept until N is on disk, because until then a crash may bring P back; and as long as a reader or a pin needs them.
//!
//! A frame that did not exist is made in a directory with a temporary name, in the same steps; the directory gets SOURCE's name
//! when all in it is on disk, and does not replace a SOURCE that another process has made in the meantime.
//!
//! # Failures
//!
//! No room in step 0 or 1 is an answer, and nothing has changed. Any other failed write or sync ends all writing: after a
//! failed fdatasync nobody knows what is on disk, and a second one would not say. A rename that failed for reasons unknown may
//! have been done, so what N names is not removed any more.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use log::debug;

use super::super::backend::{Backend, BackendFile, FileStat};
use super::super::birth::Unborn;
use super::super::error::Failed;
use super::super::image::{self, Encoded};
use super::super::sidecar::Sidecar;
use super::super::source::Complain;
use super::super::{ChunkKey, FrameImage, FrameStore, ReadGuard, Result};
use super::files::{Files, Known, id_of, name_of};
use super::record::temp_name_of;
use super::{INDEX, SframeStore, index_name};
use crate::format::header::FrameHeader;
use crate::format::index_file::IndexFile;
use crate::format::{IndexEntry, Layout, index};
use crate::store::chunks::{DroppedRefs, Seq, State};
use crate::store::in_words;

/// The name of an index file that is not finished. Who has the directory's lock is the only one to use it.
const UNFINISHED: &str = ".b2fuse-chunks.tmp";
/// From how many new files on all of the file system is synced, rather than each of them.
const MANY: usize = 8;

/// What is known of the states. Behind the lock that makes commits one at a time.
#[derive(Default)]
pub(super) struct Disk {
    /// The header of P.
    header: Vec<u8>,
    /// P and D, which is P or the one before; `None` while it is not known what is on disk.
    published: Seq,
    durable: Option<Seq>,
    /// Something was committed before others wrote and SOURCE was read again, and need not be on disk.
    written: bool,
    /// The lengths of the chunks that P names, added up.
    stored: u64,
    /// The index of P.
    encoded: Option<Encoded>,
    /// For as long as SOURCE does not exist.
    unborn: Option<Unborn>,
    closed: bool,
}

impl Disk {
    /// Of a frame that was opened. What is there need not be on disk: who wrote it may have been killed.
    pub(super) fn opened(header: &FrameHeader, stored: u64) -> Self {
        Disk { header: header.as_bytes().to_vec(), stored, ..Disk::default() }
    }
    /// Of a frame that was read again after others have written it.
    pub(super) fn reopened(&self, header: &FrameHeader, stored: u64) -> Self {
        Disk { written: self.written || self.published > 0, ..Disk::opened(header, stored) }
    }
    /// Of a directory that has only a temporary name yet.
    pub(super) fn created(unborn: Unborn) -> Self {
        Disk { unborn: Some(unborn), durable: Some(0), ..Disk::default() }
    }
    pub(super) fn header(&self) -> &[u8] {
        &self.header
    }
    pub(super) fn unborn(&self) -> Option<&Unborn> {
        self.unborn.as_ref()
    }
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }
}

/// Chunk files that are not known to be on disk.
#[derive(Default)]
pub(super) struct Unsynced {
    /// As long as they are few.
    files: Vec<(ChunkKey, Box<dyn BackendFile>)>,
    /// They are not, so all that was staged is to be synced.
    many: bool,
}

impl Unsynced {
    pub(super) fn push(&mut self, key: ChunkKey, file: Box<dyn BackendFile>) {
        if !self.many {
            self.files.push((key, file));
            if self.files.len() > MANY {
                *self = Unsynced { files: Vec::new(), many: true };
            }
        }
    }
    pub(super) fn forget(&mut self, key: ChunkKey) {
        self.files.retain(|(other, _)| *other != key);
    }
}

/// How an image differs from the published one in the chunks it names.
struct Change {
    /// Chunks that are named more often, how much more, and what they were before.
    admitted: Vec<(ChunkKey, u32, State)>,
    dropped: DroppedRefs,
    /// The lengths of the new one's chunks added up.
    stored: u64,
}

/// See [`super::FrameStore::commit`].
pub(super) fn commit(store: &SframeStore, guard: ReadGuard<'_>, image: FrameImage) -> Result<()> {
    let mut disk = store.disk.lock();
    store.source.check_writable()?;
    let old = store.committed();
    let image = image::successor(old.as_deref(), image, Layout::Sparse).map_err(|error| store.source.format(error))?;
    let Some(image) = image else { return Ok(()) };
    if let Some(reason) = store.seen_outside(&disk)? {
        return Err(store.source.stale(reason));
    }
    let old_entries = old.as_ref().map_or(&[][..], |old| &old.entries);
    let change = admit(store, &disk, old_entries, &image.entries)?;
    drop(guard); // from here on the image itself keeps its chunks
    let written = write(store, &mut disk, image, &change);
    written.map_err(|Failed { error, harmless, in_doubt }| {
        if !in_doubt {
            expel(store, &change.admitted);
        }
        if harmless { error } else { store.source.poisoned_by(error) }
    })?;
    store.collect();
    Ok(())
}

/// Has what was found at open on disk, before anything is removed that it does not need.
pub(super) fn ground(store: &SframeStore) -> Result<()> {
    if store.grounded.load(Relaxed) {
        return Ok(());
    }
    let mut disk = store.disk.lock();
    store.source.check_writable()?;
    if disk.durable.is_none() {
        sync_published(store, &mut disk)?;
    }
    store.grounded.store(true, Relaxed);
    Ok(())
}

/// See [`super::FrameStore::sync`].
pub(super) fn sync(store: &SframeStore) -> Result<()> {
    let mut disk = store.disk.lock();
    store.source.check_writable()?;
    sync_published(store, &mut disk)?;
    store.collect();
    Ok(())
}

/// See [`super::FrameStore::close`]. Where others have their turn, nothing is removed any more.
pub(super) fn close(store: &SframeStore, our_turn: bool) -> Result<()> {
    let mut disk = store.disk.lock();
    if std::mem::replace(&mut disk.closed, true) {
        return Ok(());
    }
    // Where another mount has the lock, all is its own. Who only looked leaves all as it is.
    let denied = store.source.is_denied();
    let sync = |disk: &mut Disk| if disk.durable.is_some() || disk.written { sync_published(store, disk) } else { Ok(()) };
    let result = if denied { Ok(()) } else { store.source.check_writable().and_then(|()| sync(&mut disk)) };
    store.source.seal();
    if our_turn && !denied {
        remove_rest(store, &mut disk, result.is_ok());
    }
    let unlocked = store.itself.read().unlock().map_err(store.source.io("unlock"));
    result.and(unlocked)
}

/// The store goes without having been closed: what never was part of the frame goes with it.
pub(super) fn abandon(store: &SframeStore) {
    let mut disk = store.disk.lock();
    if !std::mem::replace(&mut disk.closed, true) && !store.source.read_only {
        remove_rest(store, &mut disk, false);
    }
}

/// Removes what no state needs; where it is not known what is on disk, only what never was in a state.
fn remove_rest(store: &SframeStore, disk: &mut Disk, synced: bool) {
    match disk.unborn.take() {
        Some(unborn) => unborn.remove(&store.source),
        None => {
            let rest = store.shared.files.lock().collect_rest(synced);
            store.remove(rest);
            store.remove_record(synced);
        }
    }
}

impl SframeStore {
    /// Removes the files of what nobody needs any more.
    pub(super) fn collect(&self) {
        if self.source.is_poisoned() {
            return;
        }
        // Where others have their turn, they may be making files just now that have the names of ours.
        let turn = self.sidecar.as_ref().filter(|_| self.shared.files.lock().chunks.has_retired()).map(Sidecar::to_write);
        if matches!(turn, Some(Ok(None) | Err(_))) {
            return;
        }
        let doomed = {
            let mut files = self.shared.files.lock();
            self.shared.epochs.advance();
            let epoch = self.shared.epochs.advance();
            files.collect(epoch)
        };
        self.remove(doomed);
    }

    /// Removes files, unless others have written to the frame: then they may be theirs by now.
    pub(super) fn remove(&self, doomed: Vec<(ChunkKey, u32)>) {
        if doomed.is_empty() || self.others_wrote() {
            return;
        }
        let dir = self.dir();
        for (key, len) in doomed {
            self.shared.descriptors.remove(key);
            self.cache.remove(key);
            self.unsynced.lock().forget(key); // not before: as long as it is good a commit may name it
            match remove_chunk(&*dir, key, |stat| self.shared.files.lock().check_doomed(key, stat)) {
                Ok(()) => {
                    self.allocated.fetch_sub(u64::from(len).next_multiple_of(4096).min(self.allocated.load(Relaxed)), Relaxed);
                    self.shared.files.lock().removed(key);
                }
                Err(error) => debug!("{}: stays: {}", self.source.at(name_of(key)).display(), in_words(&error)),
            }
        }
    }

    /// The same, of a frame that has been read again since `known` was what is known of its files.
    pub(super) fn remove_files(&self, doomed: Vec<(ChunkKey, u32)>, known: &Files) {
        if self.others_wrote() {
            return;
        }
        let dir = self.dir();
        for (key, _) in doomed {
            if let Err(error) = remove_chunk(&*dir, key, |stat| known.check_doomed(key, stat)) {
                debug!("{}: stays: {error}", self.source.at(name_of(key)).display());
            }
        }
    }
}

/// Removes a chunk's file, if it is still the one that `known` knows.
fn remove_chunk(dir: &dyn Backend, key: ChunkKey, known: impl FnOnce(&FileStat) -> Option<Known>) -> io::Result<()> {
    let (name, temp) = (name_of(key), temp_name_of(key));
    let gone = |error: io::Error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) };
    let written = || io::Error::other("others have written it");
    match dir.stat(&name) {
        Ok(stat) if !stat.is_file() => dir.remove(&name).or_else(gone),
        Ok(stat) if known(&stat) != Some(Known::Same) => Err(written()),
        Ok(before) => {
            // By another name, as the library may be about to write the file: what it opens from now on is a file of its own.
            match dir.rename(&name, &temp, false) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return dir.remove(&name).or_else(gone),
                Err(error) => return gone(error),
            }
            let same = |now: &FileStat| now.same_file(&before) && (now.len, now.mtime) == (before.len, before.mtime);
            match dir.stat(&temp) {
                Ok(now) if same(&now) => dir.remove(&temp),
                _ => dir.rename(&temp, &name, false).and_then(|()| Err(written())),
            }
        }
        Err(error) => gone(error),
    }
}

/// Compares the images and makes sure that every chunk the new one names is there, and stays.
fn admit(store: &SframeStore, disk: &Disk, old: &[IndexEntry<ChunkKey>], new: &[IndexEntry<ChunkKey>]) -> Result<Change> {
    let image::Difference { gone, come } = image::difference(old, new);
    let (mut admitted, mut dropped) = (Vec::new(), DroppedRefs::new());
    let mut stored = disk.stored;
    let mut files = store.shared.files.lock();
    for (key, times) in gone {
        let len = u64::from(files.len(key).unwrap_or(0));
        stored = stored.saturating_sub(len * u64::from(times));
        dropped.extend(files.locate(key).map(|place| (place, times)));
    }
    for (key, times) in come {
        let (Some(len), Some(place)) = (files.len(key), files.locate(key)) else {
            drop(files);
            expel(store, &admitted);
            return Err(store.source.format(image::unknown(key, new)));
        };
        stored += u64::from(len) * u64::from(times);
        admitted.push((key, times, files.chunks.admit(place, times)));
    }
    Ok(Change { admitted, dropped, stored })
}

/// The commit came to nothing: its new chunks are as they were.
fn expel(store: &SframeStore, admitted: &[(ChunkKey, u32, State)]) {
    let mut files = store.shared.files.lock();
    for (key, times, was) in admitted {
        if let Some(place) = files.locate(*key) {
            files.chunks.expel(place, *times, *was, store.shared.epochs.now());
        }
    }
}

fn write(store: &SframeStore, disk: &mut Disk, mut image: FrameImage, change: &Change) -> std::result::Result<(), Failed> {
    // Step 1.
    image.header.set_cbytes(change.stored);
    let mut index = IndexFile {
        header: image.header,
        trailer: image.trailer,
        entries: Arc::new(image.entries.iter().map(|entry| entry.map(id_of)).collect()),
    };
    let encoded = disk.encoded.take();
    let same = |stretch: Range<usize>| encoded.as_ref().is_some_and(|before| before.has(&image.entries, stretch));
    let before = encoded.as_ref().map(|before| index::Before { chunk: before.chunk(), same: &same });
    let bytes = index.make_file_like(before).map_err(|error| Failed::harmless(store.source.format(error)))?;
    let part = index.index_in(&bytes);
    let IndexFile { header, trailer, entries } = index;
    drop(entries);
    let image = FrameImage { header, trailer, entries: image.entries };
    let encoded = Encoded::new(bytes, part, &image.entries);
    let dir = store.dir();
    let file = unfinished(store, &*dir, encoded.file()).map_err(Failed::write)?;
    let done = finish(store, disk, &*dir, file, image, change);
    match done {
        Ok(()) => disk.encoded = Some(encoded),
        Err(_) => drop(dir.remove(OsStr::new(UNFINISHED))),
    }
    done
}

/// An index file under its temporary name.
fn unfinished(store: &SframeStore, dir: &dyn Backend, bytes: &[u8]) -> Result<Arc<dyn BackendFile>> {
    let name = OsStr::new(UNFINISHED);
    let mut created = dir.create(name, store.mode_of_new_files());
    if matches!(&created, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
        let _ = dir.remove(name); // of somebody who was killed
        created = dir.create(name, store.mode_of_new_files());
    }
    let at = store.source.at(INDEX);
    let file = created.map_err(at.io("make a new file beside it"))?;
    store.give_attributes(&*file);
    if let Err(error) = file.write_at(bytes, 0) {
        let _ = dir.remove(name);
        return Err(at.io("write the new one")(error));
    }
    Ok(Arc::from(file))
}

/// From step 2 on.
fn finish(
    store: &SframeStore,
    disk: &mut Disk,
    dir: &dyn Backend,
    file: Arc<dyn BackendFile>,
    image: FrameImage,
    change: &Change,
) -> std::result::Result<(), Failed> {
    let source = &store.source;
    // Step 2.
    sync_files(store, dir, &*file).map_err(|error| Failed::fatal(source.io("sync new files")(error)))?;
    // Step 3.
    sync_names(store, disk, dir).map_err(|error| Failed::fatal(source.io("sync the directory")(error)))?;
    durable(store, disk);
    // Step 4.
    let dying = store.shared.files.lock().dying(&change.dropped);
    store.record_dropped(&dying);
    if let Some(reason) = store.seen_outside(disk).map_err(Failed::harmless)? {
        return Err(Failed::harmless(source.stale(reason)));
    }
    {
        let mut witness = store.witness.lock(); // nobody is to see the new file and take it for another's
        let renamed = dir.rename(OsStr::new(UNFINISHED), index_name(), true).and_then(|()| file.stat());
        let stat = renamed.map_err(|error| Failed::rename(source.at(INDEX).io("replace it")(error)))?;
        witness.index_is(file, stat);
    }
    store.watch_files();
    let first = disk.unborn.is_some();
    if let Some(unborn) = &disk.unborn {
        if let Some(like) = &source.new.like {
            // Not before: it may take away the right to make files in it.
            store.itself.read().copy_attributes(&*like.frame);
        }
        dir.sync_dir().map_err(|error| Failed::fatal(source.io("sync the directory")(error)))?;
        unborn.born(source, None)?;
        disk.unborn = None;
    }
    // Step 6.
    disk.published += 1;
    disk.stored = change.stored;
    disk.header = image.header.as_bytes().to_vec();
    store.shared.files.lock().chunks.publish(disk.published, &change.dropped);
    store.held.forget_all(change.admitted.iter().map(|(key, ..)| *key));
    *store.published.write() = Some(Arc::new(image));
    if first {
        durable(store, disk);
    }
    Ok(())
}

/// Has what N names on disk, names aside.
fn sync_files(store: &SframeStore, dir: &dyn Backend, index: &dyn BackendFile) -> io::Result<()> {
    let Unsynced { files, many } = std::mem::take(&mut *store.unsynced.lock());
    if many {
        return dir.sync_fs();
    }
    let (now, mut later): (Vec<_>, Vec<_>) = {
        let known = store.shared.files.lock();
        files.into_iter().partition(|(key, _)| known.is_in_image(*key))
    };
    later.retain(|(key, _)| store.shared.files.lock().len(*key).is_some());
    later.into_iter().for_each(|(key, file)| store.unsynced.lock().push(key, file));
    now.iter().try_for_each(|(_, file)| file.sync_data())?;
    index.sync_all()
}

/// P is on disk.
fn durable(store: &SframeStore, disk: &mut Disk) {
    disk.durable = Some(disk.published);
    store.shared.files.lock().chunks.durable(disk.published, store.shared.epochs.now());
}

/// Has the names in the directory on disk; the first time the directory's own as well, which it may have got only just before.
fn sync_names(store: &SframeStore, disk: &Disk, dir: &dyn Backend) -> io::Result<()> {
    dir.sync_dir()?;
    if disk.durable.is_none() { store.source.backend.sync_dir() } else { Ok(()) }
}

fn sync_published(store: &SframeStore, disk: &mut Disk) -> Result<()> {
    if disk.durable < Some(disk.published) {
        let synced = sync_names(store, disk, &*store.dir());
        synced.map_err(|error| store.source.poisoned_by(store.source.io("sync the directory")(error)))?;
        durable(store, disk);
    }
    Ok(())
}
