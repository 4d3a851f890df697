//! When a state goes to the store: at once, or gathered in a burst; and what becomes of everything at the end.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use log::{debug, error};

use super::state::{Held, Kept, Node, Source};
use super::write::Unfinished;
use super::{SETTLE_AFTER, SparseView};
use crate::format::{ChunkId, IndexEntry};
use crate::store::{ChunkKey, FrameImage, FrameStore, ReadAt, StoredChunk};
use crate::view::follow::{Again, Follow, Following};
use crate::view::left::is_final;
use crate::view::names::{INDEX_NAME, Name};
use crate::view::pacer::{Pacer, Pacing, Publish};
use crate::view::{Inval, Invals, Left, Lost, Result, ViewError};

impl Follow for SparseView {
    fn following(&self) -> &Following {
        &self.following
    }

    /// The state is held meanwhile: what it names is not there any more.
    fn reload(&self, wait: bool, invals: &mut Invals) -> Result<Again> {
        let pacer = if wait { Some(self.pacer.lock()) } else { self.pacer.try_lock() };
        let Some(_nobody_commits) = pacer else { return Ok(Again::Busy) };
        let mut state = self.state.write();
        if state.is_uncommitted() {
            return Ok(Again::Uncommitted);
        }
        self.store.reload()?;
        self.following.out_of_step(true);
        let version = state.next_version();
        state.reloaded(Self::load(&*self.store, version)?, invals);
        self.following.out_of_step(false);
        Ok(Again::Done)
    }

    fn is_uncommitted(&self) -> bool {
        self.state.read().is_uncommitted()
    }

    fn take_attributes(&self, invals: &mut Invals) {
        if let Ok(stat) = self.store.source_stat() {
            self.state.write().take_attributes(stat.into());
            invals.push(Inval::All);
        }
    }

    fn hand_over(&self, invals: &mut Invals) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.drop_unfinished(invals);
        self.state.write().drop_empty(invals);
        self.settle(invals)?;
        self.publish()
    }

    fn is_unfinished(&self) -> bool {
        let state = self.state.read();
        let written = |node: &Node| node.writing.is_some() && matches!(node.name, Some(Name::Index | Name::Chunk(_)));
        state.handles.values().any(|open| open.write && state.nodes.get(&open.ino).is_some_and(written))
    }

    fn drop_unfinished(&self, invals: &mut Invals) {
        if self.state.read().index_is_left_behind()
            && let Err(error) = self.state.write().drop_index(invals)
        {
            error!("{}: {error}", self.store.path().display());
        }
    }
}

impl Publish for SparseView {
    fn store(&self) -> &dyn FrameStore {
        &*self.store
    }

    fn pacing(&self) -> &Pacing {
        &self.pacer
    }

    fn has_news(&self) -> bool {
        self.state.read().publishable()
    }

    fn commit(&self, pacer: &mut Pacer) -> Result<()> {
        let began = Instant::now();
        let guard = self.store.enter(); // what is discarded from here on stays good until the store knows the image
        let (image, changes, fresh) = {
            let state = self.state.read();
            if !state.publishable() {
                pacer.settle();
                return Ok(());
            }
            let Some(index) = &state.adopted else { return Ok(()) };
            // Not collected to an option: that grows a vector step by step, and there may be a million entries.
            let mut all = true;
            let mut key_of = |id: ChunkId| {
                let key = state.table.get(id).key();
                all &= key.is_some();
                key.unwrap_or(ChunkKey::new(0))
            };
            let keys: Vec<IndexEntry<ChunkKey>> = index.entries.iter().map(|entry| entry.map(&mut key_of)).collect();
            if !all {
                return Ok(());
            }
            let image = FrameImage { header: index.header.clone(), trailer: index.trailer.clone(), entries: Arc::new(keys) };
            let fresh: Vec<_> = state.fresh.keys().map(|id| (*id, state.table.get(*id).key())).collect();
            (image, state.frame_changed, fresh)
        };
        if let Some(hindrance) = self.following.hindrance(&*self.store) {
            return Err(ViewError::Store(hindrance));
        }
        let committed = self.store.commit(guard, image);
        pacer.committed(began);
        committed?;
        let mut state = self.state.write();
        state.published = changes;
        for (id, key) in fresh {
            if state.table.get(id).key() == key {
                state.fresh.remove(&id);
            }
        }
        debug!("{}: committed", self.store.path().display());
        Ok(())
    }
}

impl SparseView {
    /// What a read-write mount has to do now, and when again.
    pub(super) fn work(&self, now: Instant, invals: &mut Invals) -> Option<Instant> {
        let again = self.store.tidy().then_some(now);
        let settle_at = {
            let state = self.state.read();
            state.unsettled.then_some(state.last_change + SETTLE_AFTER)
        };
        if settle_at.is_some_and(|at| at <= now) {
            let settled = self.settle(invals).and_then(|()| {
                let mut pacer = self.pacer.lock();
                if self.has_news() { self.commit_in_turn(&mut pacer) } else { Ok(()) }
            });
            if let Err(error) = settled {
                error!("{error}");
            }
            let due = again.or(self.pacer.lock().due());
            return [due, self.keep_times(now)].into_iter().flatten().min();
        }
        [again, settle_at, self.publish_due(now), self.keep_times(now)].into_iter().flatten().min()
    }

    /// See [`View::leave`](crate::view::View::leave).
    pub(super) fn leave_source(&self, regardless: bool, invals: &mut Invals) -> Left {
        let committed = self.commit_all(invals);
        if let Err(error) = &committed
            && !regardless
            && !is_final(error)
        {
            return Left { failed: committed.err(), lost: Vec::new() };
        }
        let all = committed.is_err() || {
            let state = self.state.read();
            state.frame_changed != state.published
        };
        Left { failed: committed.err(), lost: self.save_lost(all) }
    }

    /// Everything that can be committed is, and on disk.
    fn commit_all(&self, invals: &mut Invals) -> Result<()> {
        if let Some(hindrance) = self.following.hindrance(&*self.store) {
            // What is there cannot be made a part of what others have made.
            return if self.is_uncommitted() { Err(hindrance.into()) } else { Ok(()) };
        }
        let open: Vec<_> = {
            let mut state = self.state.write();
            state.unstored.clear();
            state.nodes.iter().filter(|(_, node)| node.writing.is_some()).map(|(ino, _)| *ino).collect()
        };
        let mut closed = Ok(());
        for ino in open {
            // Files still open at a lazy unmount: whole chunks are taken, the rest was never accepted.
            match self.close_file(ino, Unfinished::Leave, invals) {
                Ok(()) | Err(ViewError::Rejected(_)) => {}
                Err(error) => {
                    debug!("{}: {error}", self.show(ino));
                    closed = closed.and(Err(error));
                }
            }
        }
        closed?;
        self.settle(invals)?;
        self.publish()?;
        Ok(self.store.sync()?)
    }

    /// The end of a read-write mount: everything that can be committed is, and the rest is saved beside SOURCE.
    pub(super) fn finish(&self) -> Result<()> {
        let left = self.leave_source(true, &mut Invals::new());
        left.log(self.store.path());
        left.into_result()
    }

    /// Saves what has no place, or with `all` everything that is not committed.
    fn save_lost(&self, all: bool) -> Vec<Lost> {
        let (mut ids, index, drafts, moved) = {
            let state = self.state.read();
            let unfinished = state.nodes.values().filter(|_| all).filter_map(|node| match (&node.name, &node.writing) {
                (Some(name @ Name::Chunk(_)), Some(writing)) => Some((name.to_os_string(), writing.clone())),
                _ => None,
            });
            let drafts: Vec<_> = unfinished.filter(|(_, writing)| !writing.refused.load(Relaxed)).collect();
            let held = !matches!(state.held, Held::No) || all && state.has_another_index();
            let index = state.index_ino.filter(|_| held).and_then(|ino| state.source(ino).ok());
            let ids = if all { state.uncommitted() } else { Vec::new() };
            let moved = state.nodes.values().filter_map(|node| match (&node.name, &node.kept) {
                (Some(name @ Name::Temp(_)), Kept::Chunk(key, Some(len))) => Some((name.to_os_string(), *key, *len)),
                _ => None,
            });
            let moved: Vec<_> = moved.collect();
            ([ids, state.without_place()].concat(), index.map(|index| (index, state.index_changed)), drafts, moved)
        };
        let mut lost = Vec::new();
        for (name, key, len) in moved {
            // Once a chunk of the frame, now only the file that it was moved to.
            let chunk = StoredChunk { store: &*self.store, key, len, to_save: true };
            lost.push(self.save(&name.to_string_lossy(), (0, key.number()), &chunk));
        }
        for (name, writing) in drafts {
            let inner = writing.inner.read();
            if inner.dirty && !inner.bytes.is_empty() {
                lost.push(self.save(&name.to_string_lossy(), (writing.serial, inner.version), &inner.bytes));
            }
        }
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            let guard = self.store.enter();
            let slot = {
                let state = self.state.read();
                state.table.get(id).key().zip(state.table.get(id).len())
            };
            let Some((key, len)) = slot else { continue };
            let chunk = StoredChunk { store: &*self.store, key, len, to_save: true };
            drop(guard);
            lost.push(self.save(&id.file_name(), (0, key.number()), &chunk));
        }
        match index {
            Some((Source::Bytes(bytes), changed)) if !bytes.is_empty() => {
                lost.push(self.save(INDEX_NAME, (0, changed), &bytes.as_slice()));
            }
            Some((Source::Writing(writing), _)) => {
                let inner = writing.inner.read();
                if !inner.bytes.is_empty() {
                    lost.push(self.save(INDEX_NAME, (writing.serial, inner.version), &inner.bytes));
                }
            }
            _ => {}
        }
        lost
    }

    /// Saves a file beside SOURCE, unless that was done before; `content` goes by the numbers.
    fn save(&self, name: &str, numbers: (u64, u64), content: &dyn ReadAt) -> Lost {
        let mut before = self.saved.lock();
        let key = (name.to_owned(), numbers);
        let saved = match before.get(&key) {
            Some(path) => Ok(path.clone()),
            None => self.store.save_lost(name, content),
        };
        if let Ok(path) = &saved {
            before.insert(key, path.clone());
        }
        Lost { name: name.to_owned(), saved }
    }
}
