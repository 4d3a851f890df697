//! How a state of an sframe is written: the one place that decides what of it is on disk before what. The rest of a commit is
//! [`crate::store::disk_store::commit`]'s, states P, D and N are explained there.
//!
//! P is published when its index file has the name `chunks.b2frame`.
//!
//! | step | does | a crash here leaves |
//! | --- | --- | --- |
//! | 0 | `stage`: new chunk files, written under temporary names, get ids that no file had | D or P, and files that no index names |
//! | 1 | the index file of N, under a temporary name | the same |
//! | 2 | fdatasync of each new chunk file that N names, and of the index file; or one syncfs, where they are many | the same |
//! | 3 | fsync of the directory: the names of the chunk files, and the rename to P, are on disk; now D is P | D or P, after it P |
//! | 4 | the index file of N is renamed to `chunks.b2frame` | P or N |
//! | 5 | chunk files that only states before D had are removed | P or N, and files that no index names |
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
//! If there is no room in step 0 or 1, the commit fails and changes nothing. Any other failed write or sync ends all writing. A rename that failed for reasons unknown may
//! have been done, so what N names is not removed any more.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use log::debug;

use super::files::{Files, Known, id_of, name_of};
use super::record::temp_name_of;
use super::{INDEX, Sframe, SframeStore, index_name};
use crate::format::index;
use crate::format::index_file::IndexFile;
use crate::store::backend::{Backend, BackendFile, FileStat};
use crate::store::disk_store::commit::{self, Change};
use crate::store::disk_store::set_mtime;
use crate::store::error::Complain;
use crate::store::error::Failed;
use crate::store::image::Encoded;
use crate::store::sidecar::Sidecar;
use crate::store::{ChunkKey, FrameImage, Result, in_words};

/// The name of an index file that is not finished. Who has the directory's lock is the only one to use it.
const UNFINISHED: &str = ".b2fuse-chunks.tmp";
/// From how many new files on all of the file system is synced, rather than each of them.
const MANY: usize = 8;

type CommitState = commit::CommitState<Sframe>;

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

impl SframeStore {
    /// Removes the files of what nobody needs any more.
    pub(super) fn remove_unneeded(&self) {
        if self.source.is_poisoned() {
            return;
        }
        // Where others have their turn, they may be making files just now that have the names of ours.
        let turn =
            self.sidecar.as_ref().filter(|_| self.medium.directory.files.lock().chunks.has_retired()).map(Sidecar::to_write);
        if matches!(turn, Some(Ok(None) | Err(_))) {
            return;
        }
        let doomed = {
            let mut files = self.medium.directory.files.lock();
            self.common.epochs.advance();
            let epoch = self.common.epochs.advance();
            files.collect(epoch)
        };
        if !doomed.is_empty() {
            self.keep_mtime(|| self.remove(doomed));
        }
    }

    /// Removes files, unless others have written to the frame: then they may be theirs by now.
    pub(super) fn remove(&self, doomed: Vec<(ChunkKey, u32)>) {
        if doomed.is_empty() || self.others_wrote() {
            return;
        }
        let dir = self.dir();
        for (key, len) in doomed {
            self.medium.directory.descriptors.remove(key);
            self.cache.remove(key);
            self.medium.unsynced.lock().forget(key); // not before: as long as it is good a commit may name it
            match remove_chunk(&*dir, key, |stat| self.medium.directory.files.lock().check_doomed(key, stat)) {
                Ok(()) => {
                    self.medium
                        .allocated
                        .fetch_sub(u64::from(len).next_multiple_of(4096).min(self.medium.allocated.load(Relaxed)), Relaxed);
                    self.medium.directory.files.lock().removed(key);
                }
                Err(error) => debug!("{}: stays: {}", self.source.at(name_of(key)).display(), in_words(&error)),
            }
        }
    }

    /// Does what changes the directory after the commit that was the reason for it, and leaves the directory its mtime.
    pub(super) fn keep_mtime(&self, work: impl FnOnce()) {
        let itself = Arc::clone(&self.medium.itself.read());
        let before = itself.stat();
        work();
        set_mtime(&*itself, before.ok().map(|before| before.mtime));
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

pub(super) fn write(
    store: &SframeStore,
    commits: &mut CommitState,
    mut image: FrameImage,
    change: &Change,
) -> std::result::Result<(), Failed> {
    // Step 1.
    let stored = stored(store, commits.own.stored, change);
    image.header.set_cbytes(stored);
    let mut index = IndexFile {
        header: image.header,
        trailer: image.trailer,
        entries: Arc::new(image.entries.iter().map(|entry| entry.map(id_of)).collect()),
    };
    let encoded = commits.encoded.take();
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
    let done = finish(store, commits, &*dir, file, image, change);
    match done {
        Ok(()) => {
            commits.own.stored = stored;
            commits.encoded = Some(encoded);
        }
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
    commits: &mut CommitState,
    dir: &dyn Backend,
    file: Arc<dyn BackendFile>,
    image: FrameImage,
    change: &Change,
) -> std::result::Result<(), Failed> {
    let source = &store.source;
    store.give_mtime(&*file);
    // Step 2.
    sync_files(store, dir, &*file).map_err(|error| Failed::fatal(source.io("sync new files")(error)))?;
    // Step 3.
    let parent = || if commits.is_unknown() { source.backend().sync_dir() } else { Ok(()) };
    let named = dir.sync_dir().and_then(|()| parent());
    named.map_err(|error| Failed::fatal(source.io("sync the directory")(error)))?;
    commit::durable(store, commits);
    // Step 4.
    let dying = store.medium.directory.files.lock().dying(&change.dropped);
    store.record_dropped(&dying);
    if let Some(reason) = store.seen_outside(commits).map_err(Failed::harmless)? {
        return Err(Failed::harmless(source.stale(reason)));
    }
    {
        let mut detector = store.detector.lock(); // nobody is to see the new file and take it for another's
        let renamed = dir.rename(OsStr::new(UNFINISHED), index_name(), true).and_then(|()| file.stat());
        let stat = renamed.map_err(|error| Failed::rename(source.at(INDEX).io("replace it")(error)))?;
        detector.header_is(file, stat);
    }
    store.watch_files();
    let first = commits.is_pending();
    if let Some(pending) = commits.pending() {
        if let Some(like) = &source.new.like {
            // Not before: it may take away the right to make files in it.
            let itself = store.medium.itself.read();
            itself.copy_attributes(&*like.frame);
            if let Ok(like) = like.frame.stat() {
                like.give_mode(&**itself, true);
            }
        }
        dir.sync_dir().map_err(|error| Failed::fatal(source.io("sync the directory")(error)))?;
        pending.give_name(source, None)?;
        commits.has_name();
    }
    set_mtime(&**store.medium.itself.read(), store.written.lock().1);
    // Step 6.
    commit::published(store, commits, image, change);
    if first {
        commit::durable(store, commits);
    }
    Ok(())
}

/// The lengths of an image's chunks added up, where those of the one before come to `before`.
fn stored(store: &SframeStore, before: u64, change: &Change) -> u64 {
    let files = store.medium.directory.files.lock();
    let come = change.admitted.iter().map(|(key, times, _)| u64::from(files.len(*key).unwrap_or(0)) * u64::from(*times));
    let len = |place: u64| files.chunks.get(place).map_or(0, |chunk| u64::from(chunk.len));
    let gone = change.dropped.iter().map(|(place, times)| len(*place) * u64::from(*times));
    (before + come.sum::<u64>()).saturating_sub(gone.sum())
}

/// Has what N names on disk, names aside.
fn sync_files(store: &SframeStore, dir: &dyn Backend, index: &dyn BackendFile) -> io::Result<()> {
    let Unsynced { files, many } = std::mem::take(&mut *store.medium.unsynced.lock());
    if many {
        return dir.sync_fs();
    }
    let (now, mut later): (Vec<_>, Vec<_>) = {
        let known = store.medium.directory.files.lock();
        files.into_iter().partition(|(key, _)| known.is_in_image(*key))
    };
    later.retain(|(key, _)| store.medium.directory.files.lock().len(*key).is_some());
    later.into_iter().for_each(|(key, file)| store.medium.unsynced.lock().push(key, file));
    now.iter().try_for_each(|(_, file)| file.sync_data())?;
    index.sync_all()
}
