//! One commit at a time: what is the same in both layouts. In which order a state is written, [`Medium::write`] says: see
//! [`crate::store::cframe`] and [`crate::store::sframe`].
//!
//! State *P* is published. State *D* is known to be on disk: *P*, or the one before it. State *N* comes next. What is found at open is P,
//! and D only after a sync: who wrote it may have been killed. So nothing is staged before that, and nothing removed.
//!
//! | step | does |
//! | --- | --- |
//! | 1 | compares N with P: which chunks it names more often, and which less |
//! | 2 | looks whether others have written; has P on disk, if that is not known |
//! | 3 | admits the chunks of N: nobody takes them away any more |
//! | 4 | writes N and publishes it, by the medium's steps |
//! | 5 | what only P has is dropped, and free when N is on disk, because until then a crash may bring P back |
//!
//! # Failures
//!
//! No room is an answer, and nothing has changed: the chunks of N are again what they were. Any other failed write or sync ends all
//! writing: after a failed fdatasync nobody knows what is on disk, and a second one would not say. Where a rename may have been done,
//! the chunks of N stay.

#![expect(private_bounds, reason = "only this layer has media")]

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

/// What is known of the states. Behind the lock that makes commits one at a time.
pub(in crate::store) struct CommitState<M: Medium> {
    /// The header of P.
    header: Vec<u8>,
    /// P and D, which is P or the one before; `None` while it is not known what is on disk.
    published: Seq,
    durable: Option<Seq>,
    /// For as long as SOURCE does not exist.
    pending: Option<PendingFrame>,
    /// Something was committed since SOURCE was read, so its room is this store's to give back.
    pub(in crate::store) changed: bool,
    /// Something was committed before that, which need not be on disk.
    written: bool,
    /// The index of P.
    pub(in crate::store) encoded: Option<Encoded>,
    closed: bool,
    /// What the medium knows besides.
    pub(in crate::store) own: M::Commits,
}

impl<M: Medium> CommitState<M> {
    /// Of a frame that was opened. What is there need not be on disk: who wrote it may have been killed.
    pub(in crate::store) fn opened(header: &FrameHeader, own: M::Commits) -> Self {
        CommitState { header: header.as_bytes().to_vec(), own, ..Self::empty() }
    }

    /// Of the same frame, read again after others have written it. Only where `turns` are taken with them is the room that this store
    /// left in it still its own to give back.
    pub(in crate::store) fn reopened(&self, header: &FrameHeader, own: M::Commits, turns: bool) -> Self {
        let written = self.changed || self.written;
        CommitState { changed: self.changed && turns, written, ..Self::opened(header, own) }
    }

    /// Of a frame that has only a temporary name yet.
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
    pub(in crate::store) fn is_durable(&self) -> bool {
        self.durable == Some(self.published)
    }

    /// Whether it is not known what is on disk: P, or an older state.
    pub(in crate::store) fn is_unknown(&self) -> bool {
        self.durable.is_none()
    }

    /// What has only a temporary name yet.
    pub(in crate::store) fn pending(&self) -> Option<&PendingFrame> {
        self.pending.as_ref()
    }

    /// Whether SOURCE does not exist yet.
    pub(in crate::store) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// SOURCE has its name.
    pub(in crate::store) fn has_name(&mut self) -> Option<PendingFrame> {
        self.pending.take()
    }

    pub(in crate::store) fn is_closed(&self) -> bool {
        self.closed
    }
}

/// How an image differs from the published one in the chunks that it names.
#[derive(Default)]
pub(in crate::store) struct Change {
    /// Chunks that are named more often, how much more, and what they were before.
    pub(in crate::store) admitted: Vec<(ChunkKey, u32, State)>,
    pub(in crate::store) dropped: DroppedRefs,
    /// Nothing is new: it is about the places.
    pub(in crate::store) settling: bool,
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
    write(store, &mut commits, image, &change)?;
    M::after_commit(store, &mut commits)
}

/// Has what was found at open on disk, before anything is staged or removed.
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

/// Compares the images and makes sure that every chunk the new one names is there, and stays.
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

/// The commit came to nothing: its new chunks are as they were.
fn expel<M: Medium>(store: &DiskStore<M>, change: &Change) {
    M::with_chunks(store, |chunks, locate| {
        for &(key, times, was) in &change.admitted {
            if let Some(place) = locate(chunks, key) {
                chunks.expel(place, times, was, store.shared.epochs.now());
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

/// What was written is what SOURCE holds.
pub(in crate::store) fn published<M: Medium>(
    store: &DiskStore<M>,
    commits: &mut CommitState<M>,
    image: FrameImage,
    change: &Change,
) {
    store.held.forget_all(change.admitted.iter().map(|(key, ..)| *key));
    commits.published += 1;
    commits.changed = true;
    let before = std::mem::replace(&mut commits.header, image.header.as_bytes().to_vec());
    M::published(store, commits, &before, &image, change);
    *store.image.write() = Some(Arc::new(image));
}

/// State `seq` is on disk.
pub(in crate::store) fn durable<M: Medium>(store: &DiskStore<M>, commits: &mut CommitState<M>) {
    commits.durable = Some(commits.published);
    store.grounded.store(true, Relaxed);
    M::is_durable(store, commits);
}

/// Has P on disk; the first time its name as well, which it may have got only just before.
pub(in crate::store) fn sync_published<M: Medium>(store: &DiskStore<M>, commits: &mut CommitState<M>) -> Result<()> {
    if commits.durable >= Some(commits.published) {
        return Ok(());
    }
    let synced = M::sync(store);
    let synced = synced.and_then(|()| if commits.is_unknown() { store.source.backend.sync_dir() } else { Ok(()) });
    synced.map_err(|source| store.source.poisoned_by(store.io("sync")(source)))?;
    durable(store, commits);
    Ok(())
}

/// See [`FrameStore::close`]. Where others have their turn, nothing is written any more.
pub(in crate::store) fn close<M: Medium>(store: &DiskStore<M>, our_turn: bool) -> Result<()> {
    let mut commits = store.commits.lock();
    if std::mem::replace(&mut commits.closed, true) {
        return Ok(());
    }
    // Where another mount has the lock, all is its own. Who only looked leaves all as it is.
    let ours = our_turn && !store.source.is_denied();
    let result = if store.source.is_denied() { Ok(()) } else { finish(store, &mut commits, ours) };
    store.source.seal();
    clean_up(store, &mut commits, ours.then_some(result.is_ok()));
    store.part(&commits, ours && result.is_ok());
    let unlocked = store.medium.handle().0.unlock().map_err(store.io("unlock"));
    result.and(unlocked)
}

fn finish<M: Medium>(store: &DiskStore<M>, commits: &mut CommitState<M>, ours: bool) -> Result<()> {
    let written = commits.durable.is_some() || commits.changed || commits.written;
    if commits.is_pending() || !written {
        return Ok(());
    }
    store.source.check_writable()?;
    sync_published(store, commits)?;
    if ours { M::finish(store, commits) } else { Ok(()) }
}

/// Removes what never became SOURCE, and what no state needs; `synced` says whether it is known what is on disk, if it is our turn.
fn clean_up<M: Medium>(store: &DiskStore<M>, commits: &mut CommitState<M>, synced: Option<bool>) {
    match (commits.pending.take(), synced) {
        (Some(pending), _) => pending.remove(&store.source),
        (None, Some(synced)) => M::remove_rest(store, synced),
        (None, None) => {}
    }
}

/// The store goes without having been closed: what never was part of the frame goes with it.
pub(in crate::store) fn abandon<M: Medium>(store: &DiskStore<M>) {
    let mut commits = store.commits.lock();
    if !std::mem::replace(&mut commits.closed, true) && !store.source.read_only {
        clean_up(store, &mut commits, Some(false));
    }
}

impl<M: Medium> DiskStore<M> {
    /// See [`crate::store::LocalStore::at_close`]. `whole` if all has gone well so far.
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
