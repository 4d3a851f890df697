//! The commit, as far as it is the same in both layouts. [`Medium::write`] writes a state: `cframe/commit.rs` and `sframe/commit.rs` have
//! its steps.
//!
//! State *P* is published: opening SOURCE gives P. State *D* is on disk: it is P, or the state before P. State *N* is being committed.
//!
//! The state found at open is P. It need not be on disk, if its writer was killed or synced nothing. So it is synced before the store
//! writes to free space or removes anything.
//!
//! | step | what happens |
//! | --- | --- |
//! | 1 | The store checks for changes by others. It syncs P, if P may not be on disk. |
//! | 2 | It compares N with P: which chunks N names more often, and which less often. |
//! | 3 | It admits the new chunks of N, so that nothing frees them. |
//! | 4 | The medium writes N and publishes it. |
//! | 5 | Chunks that only P names are dropped. Their space is free when N is on disk: until then a crash may bring P back. |
//!
//! # Failures
//!
//! If there is no room, the commit fails and changes nothing: the chunks of N are what they were before. After any other failed write or
//! sync, the store refuses all further writes: the disk may hold anything of what was written, and another fdatasync would not report it.
//! If a failed rename may have been done, the chunks of N stay.

#![expect(private_bounds, reason = "only this layer has media")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{DiskStore, Medium};
use crate::format::IndexEntry;
use crate::format::header::FrameHeader;
use crate::store::chunks::{DroppedRefs, Seq, State};
use crate::store::create::PendingFrame;
use crate::store::error::Complain;
use crate::store::error::Failed;
use crate::store::image::{self, Encoded};
use crate::store::{ChunkKey, FrameImage, FrameStore, ReadGuard, Result};

/// What the store knows of its states. The lock around it allows one commit at a time.
pub(in crate::store) struct CommitState<M: Medium> {
    /// The header of P.
    header: Vec<u8>,
    /// The numbers of P and D. D is `None` while it is not known which state is on disk.
    published: Seq,
    durable: Option<Seq>,
    /// Is there while SOURCE does not exist.
    pending: Option<PendingFrame>,
    /// This store has committed since it read SOURCE, so it may shorten SOURCE at the end.
    pub(in crate::store) changed: bool,
    /// This store has committed before it read SOURCE again; that need not be on disk.
    written: bool,
    /// The encoded index of P, from which the next one takes what is the same.
    pub(in crate::store) encoded: Option<Encoded>,
    closed: bool,
    /// The medium's part.
    pub(in crate::store) own: M::Commits,
}

impl<M: Medium> CommitState<M> {
    /// For a frame that was opened. It need not be on disk: its writer may have been killed.
    pub(in crate::store) fn opened(header: &FrameHeader, own: M::Commits) -> Self {
        CommitState { header: header.as_bytes().to_vec(), own, ..Self::empty() }
    }

    /// For the same frame, read again after others have changed it. Free space that this store left in it is still its own only if all take
    /// `turns` by the lock file.
    pub(in crate::store) fn reopened(&self, header: &FrameHeader, own: M::Commits, turns: bool) -> Self {
        let written = self.changed || self.written;
        CommitState { changed: self.changed && turns, written, ..Self::opened(header, own) }
    }

    /// For a frame that has only a temporary name yet.
    pub(in crate::store) fn created(pending: PendingFrame) -> Self {
        CommitState { durable: Some(0), pending: Some(pending), ..Self::empty() }
    }

    fn empty() -> Self {
        CommitState {
            header: Vec::new(),
            published: 0,
            durable: None,
            pending: None,
            changed: false,
            written: false,
            encoded: None,
            closed: false,
            own: M::Commits::default(),
        }
    }

    /// The header of P.
    pub(in crate::store) fn header(&self) -> &[u8] {
        &self.header
    }

    /// The number of P.
    pub(in crate::store) fn published(&self) -> Seq {
        self.published
    }

    /// Whether P is on disk.
    pub(in crate::store) fn has_written(&self) -> bool {
        self.durable.is_some() || self.changed || self.written
    }

    pub(in crate::store) fn is_durable(&self) -> bool {
        self.durable == Some(self.published)
    }

    /// Whether the state on disk may be older than P by more than one.
    pub(in crate::store) fn is_unknown(&self) -> bool {
        self.durable.is_none()
    }

    /// The frame under its temporary name.
    pub(in crate::store) fn pending(&self) -> Option<&PendingFrame> {
        self.pending.as_ref()
    }

    /// Whether SOURCE does not exist yet.
    pub(in crate::store) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The frame has got SOURCE's name; returns what stood for it before.
    pub(in crate::store) fn has_name(&mut self) -> Option<PendingFrame> {
        self.pending.take()
    }

    pub(in crate::store) fn is_closed(&self) -> bool {
        self.closed
    }
}

/// The difference between an image and the published one, in chunks.
#[derive(Default)]
pub(in crate::store) struct Change {
    /// Chunks that the image names more often, by how much, and their states before.
    pub(in crate::store) admitted: Vec<(ChunkKey, u32, State)>,
    pub(in crate::store) dropped: DroppedRefs,
    /// The image is the published one: the commit only moves chunks.
    pub(in crate::store) settling: bool,
}

impl Change {
    /// The same change, after chunks have gone from the first of each two places to the second.
    pub(in crate::store) fn moved(&self, moves: &[(u64, u64)]) -> Self {
        let moves: HashMap<u64, u64> = moves.iter().copied().collect();
        let dropped = self.dropped.iter().map(|(place, times)| (*moves.get(place).unwrap_or(place), *times));
        Change { admitted: self.admitted.clone(), dropped: dropped.collect(), settling: self.settling }
    }
}

/// See [`FrameStore::commit`].
pub(in crate::store) fn commit<M: Medium>(store: &DiskStore<M>, guard: ReadGuard<'_>, image: FrameImage) -> Result<()> {
    let mut commits = store.commits.lock();
    store.source.check_writable()?;
    let old = store.committed();
    let image = image::successor(old.as_deref(), image, M::LAYOUT).map_err(|error| store.source.format(error))?;
    let Some(image) = image else { return Ok(()) };
    if let Some(reason) = store.seen_outside(&commits)? {
        return Err(store.source.stale(reason));
    }
    if commits.is_unknown() {
        sync_published(store, &mut commits)?;
    }
    let old_entries = old.as_ref().map_or(&[][..], |old| &old.entries);
    let change = admit(store, old_entries, &image.entries)?;
    drop(guard); // from here on the image itself keeps its chunks
    let written = write(store, &mut commits, image, &change);
    *store.written.lock() = (None, None);
    written?;
    M::after_commit(store, &mut commits)
}

/// Syncs the state that was found at open, before the first write.
pub(in crate::store) fn ground<M: Medium>(store: &DiskStore<M>) -> Result<()> {
    let mut commits = store.commits.lock();
    store.source.check_writable()?;
    if commits.is_unknown() {
        sync_published(store, &mut commits)?;
    }
    store.grounded.store(true, Relaxed);
    Ok(())
}

/// See [`FrameStore::sync`].
pub(in crate::store) fn sync<M: Medium>(store: &DiskStore<M>) -> Result<()> {
    let mut commits = store.commits.lock();
    store.source.check_writable()?;
    sync_published(store, &mut commits)?;
    M::after_sync(store, &mut commits);
    Ok(())
}

/// Compares the images, checks that every chunk of the new one is stored, and keeps it stored.
fn admit<M: Medium>(store: &DiskStore<M>, old: &[IndexEntry<ChunkKey>], new: &[IndexEntry<ChunkKey>]) -> Result<Change> {
    let image::Difference { gone, come } = image::difference(old, new);
    let mut change = Change::default();
    let unknown = M::with_chunks(store, |chunks, locate| {
        for (key, times) in come {
            let Some(place) = locate(chunks, key) else { return Some(key) };
            change.admitted.push((key, times, chunks.admit(place, times)));
        }
        change.dropped.extend(gone.into_iter().filter_map(|(key, times)| Some((locate(chunks, key)?, times))));
        None
    });
    let Some(key) = unknown else { return Ok(change) };
    expel(store, &change);
    Err(store.source.format(image::unknown(key, new)))
}

/// Undoes [`admit`] after a failed commit.
fn expel<M: Medium>(store: &DiskStore<M>, change: &Change) {
    M::with_chunks(store, |chunks, locate| {
        for &(key, times, was) in &change.admitted {
            if let Some(place) = locate(chunks, key) {
                chunks.expel(place, times, was, store.common.epochs.now());
            }
        }
    });
}

/// Writes an image whose chunks are admitted.
pub(in crate::store) fn write<M: Medium>(
    store: &DiskStore<M>,
    commits: &mut CommitState<M>,
    image: FrameImage,
    change: &Change,
) -> Result<()> {
    M::write(store, commits, image, change).map_err(|Failed { error, harmless, in_doubt }| {
        if !in_doubt {
            expel(store, change);
        }
        if harmless { error } else { store.source.poisoned_by(error) }
    })
}

/// Records that the image which was written is SOURCE's content.
pub(in crate::store) fn published<M: Medium>(
    store: &DiskStore<M>,
    commits: &mut CommitState<M>,
    image: FrameImage,
    change: &Change,
) {
    store.copies.forget_all(change.admitted.iter().map(|(key, ..)| *key));
    commits.published += 1;
    commits.changed = true;
    let before = std::mem::replace(&mut commits.header, image.header.as_bytes().to_vec());
    M::published(store, commits, &before, &image, change);
    *store.image.write() = Some(Arc::new(image));
}

/// Records that P is on disk.
pub(in crate::store) fn durable<M: Medium>(store: &DiskStore<M>, commits: &mut CommitState<M>) {
    commits.durable = Some(commits.published);
    store.grounded.store(true, Relaxed);
    M::is_durable(store, commits);
}

/// Syncs P. The first time it syncs SOURCE's name as well, which may be as new.
pub(in crate::store) fn sync_published<M: Medium>(store: &DiskStore<M>, commits: &mut CommitState<M>) -> Result<()> {
    if commits.durable >= Some(commits.published) {
        return Ok(());
    }
    let synced = match commits.is_unknown() {
        true => M::sync_found(store).and_then(|()| store.source.backend().sync_dir()),
        false => M::sync(store),
    };
    synced.map_err(|source| store.source.poisoned_by(store.io("sync")(source)))?;
    durable(store, commits);
    Ok(())
}

/// See [`FrameStore::close`]. Nothing is written while other processes have their turn.
pub(in crate::store) fn close<M: Medium>(store: &DiskStore<M>, our_turn: bool) -> Result<()> {
    let mut commits = store.commits.lock();
    if std::mem::replace(&mut commits.closed, true) {
        return Ok(());
    }
    // If another mount has SOURCE's lock, this one changes nothing. A store that wrote nothing changes nothing either.
    let ours = our_turn && !store.source.is_denied();
    let result = if store.source.is_denied() { Ok(()) } else { finish(store, &mut commits, ours) };
    store.source.seal();
    clean_up(store, &mut commits, ours.then_some(result.is_ok()));
    store.part(&commits, ours && result.is_ok());
    let unlocked = store.medium.handle().0.unlock().map_err(store.io("unlock"));
    result.and(unlocked)
}

fn finish<M: Medium>(store: &DiskStore<M>, commits: &mut CommitState<M>, ours: bool) -> Result<()> {
    if commits.is_pending() || !commits.has_written() || is_removed(store) {
        return Ok(());
    }
    store.source.check_writable()?;
    sync_published(store, commits)?;
    if ours { M::finish(store, commits) } else { Ok(()) }
}

/// Whether no name leads to SOURCE any more, so that its content ends with this store.
fn is_removed<M: Medium>(store: &DiskStore<M>) -> bool {
    store.medium.handle().0.stat().is_ok_and(|stat| stat.links == 0)
}

/// Removes a frame that never became SOURCE, or what no state needs. `synced`: whether P is on disk; `None` if it is not our turn.
fn clean_up<M: Medium>(store: &DiskStore<M>, commits: &mut CommitState<M>, synced: Option<bool>) {
    match (commits.pending.take(), synced) {
        (Some(pending), _) => pending.remove(&store.source),
        (None, Some(synced)) => M::remove_rest(store, synced),
        (None, None) => {}
    }
}

/// Called when a store is dropped without [`close`]: removes what was never part of a frame.
pub(in crate::store) fn abandon<M: Medium>(store: &DiskStore<M>) {
    let mut commits = store.commits.lock();
    if !std::mem::replace(&mut commits.closed, true) && !store.source.read_only {
        clean_up(store, &mut commits, Some(false));
    }
}

impl<M: Medium> DiskStore<M> {
    /// Calls the functions of [`crate::store::LocalStore::at_close`]. Without `whole` SOURCE's final state is not known.
    fn part(&self, commits: &CommitState<M>, whole: bool) {
        let last = std::mem::take(&mut *self.at_close.lock());
        if last.is_empty() {
            return;
        }
        let state = if whole { M::identity(self, commits) } else { Err(None) };
        let state = match state {
            Err(Some(left)) => {
                std::thread::sleep(left);
                M::identity(self, commits)
            }
            state => state,
        };
        let state = state.ok();
        last.into_iter().for_each(|last| last(state));
    }
}
