//! When a state goes to the store: at once, or gathered in a burst; and what becomes of everything at the end.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use log::{debug, error, warn};

use super::state::{Held, Kept, Node, Source};
use super::write::Unfinished;
use super::{SETTLE_AFTER, SparseView, WATCH_EVERY};
use crate::format::{ChunkId, IndexEntry};
use crate::store::{ChunkKey, FrameImage, FrameStore, ReadAt, StoreError, StoredChunk};
use crate::view::locking::{Follow, out_of_step};
use crate::view::names::{INDEX_NAME, Name};
use crate::view::pacer::{Pacer, Pacing, Publish};
use crate::view::{Inval, Invals, Result, ViewError};

impl Follow for SparseView {
    fn reload(&self) -> Result<()> {
        let _nobody_commits = self.pacer.lock();
        self.load_again()
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
        if self.out_of_step.load(Relaxed) {
            return Err(ViewError::Store(out_of_step(&*self.store)));
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
            return again.or(self.pacer.lock().due());
        }
        [again, settle_at, self.publish_due(now)].into_iter().flatten().min()
    }

    /// Whether others have changed SOURCE under a read-only mount, and then shows what it holds now.
    pub(super) fn watch(&self, now: Instant, invals: &mut Invals) -> Option<Instant> {
        match self.store.changed_outside() {
            Ok(false) => {}
            Ok(true) => match self.reload() {
                Ok(()) => invals.push(Inval::All),
                // In the middle of a change by the library the file does not parse: what was known goes on being shown.
                Err(error) => debug!("not shown yet: {error}"),
            },
            Err(error) => debug!("{error}"),
        }
        Some(now + WATCH_EVERY)
    }

    /// Looks at SOURCE again, which others have changed. The state is held meanwhile: what it names is not there any more.
    fn load_again(&self) -> Result<()> {
        let mut state = self.state.write();
        if state.is_uncommitted() || self.store.committed().is_none() {
            return if self.store.changed_outside()? { Err(ViewError::Store(out_of_step(&*self.store))) } else { Ok(()) };
        }
        self.store.reload()?;
        self.out_of_step.store(true, Relaxed);
        state.reloaded(Self::load(&*self.store)?);
        self.out_of_step.store(false, Relaxed);
        Ok(())
    }

    /// The end of a read-write mount: everything that can be committed is, and the rest is saved beside SOURCE.
    pub(super) fn finish(&self) -> Result<()> {
        let mut invals = Vec::new();
        let open: Vec<_> = {
            let state = self.state.read();
            state.nodes.iter().filter(|(_, node)| node.writing.is_some()).map(|(ino, _)| *ino).collect()
        };
        let mut closed = Ok(());
        for ino in open {
            // Files still open at a lazy unmount: whole chunks are taken, the rest was never accepted.
            if let Err(error) = self.close_file(ino, Unfinished::Leave, &mut invals) {
                warn!("{}: {error}", self.show(ino));
                closed = closed.and(Err(error));
            }
        }
        let published = closed.and_then(|()| self.settle(&mut invals)).and_then(|()| self.publish());
        let saved = self.save_lost(published.is_err());
        published.and(saved)
    }

    /// Saves what has no place, or with `all` everything that is not committed.
    fn save_lost(&self, all: bool) -> Result<()> {
        let mut first_error = None;
        let (mut ids, index, drafts, moved) = {
            let state = self.state.read();
            let unfinished = state.nodes.values().filter(|_| all).filter_map(|node| match (&node.name, &node.writing) {
                (Some(name @ Name::Chunk(_)), Some(writing)) => Some((name.to_os_string(), writing.clone())),
                _ => None,
            });
            let drafts: Vec<_> = unfinished.collect();
            let held = !matches!(state.held, Held::No) || all;
            let index = state.index_ino.filter(|_| held).and_then(|ino| state.source(ino).ok());
            let ids = if all { state.uncommitted() } else { Vec::new() };
            let moved = state.nodes.values().filter_map(|node| match (&node.name, &node.kept) {
                (Some(name @ Name::Temp(_)), Kept::Chunk(key, Some(len))) => Some((name.to_os_string(), *key, *len)),
                _ => None,
            });
            let moved: Vec<_> = moved.collect();
            ([ids, state.without_place()].concat(), index, drafts, moved)
        };
        for (name, key, len) in moved {
            // Once a chunk of the frame, now only the file that it was moved to.
            self.save(&name.to_string_lossy(), &StoredChunk { store: &*self.store, key, len }, &mut first_error);
        }
        for (name, writing) in drafts {
            let inner = writing.inner.read();
            if inner.dirty && !inner.bytes.is_empty() {
                self.save(&name.to_string_lossy(), &inner.bytes, &mut first_error);
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
            let chunk = StoredChunk { store: &*self.store, key, len };
            drop(guard);
            self.save(&id.file_name(), &chunk, &mut first_error);
        }
        match index {
            Some(Source::Bytes(bytes)) if !bytes.is_empty() => self.save(INDEX_NAME, &bytes.as_slice(), &mut first_error),
            Some(Source::Writing(writing)) => {
                let inner = writing.inner.read();
                if !inner.bytes.is_empty() {
                    self.save(INDEX_NAME, &inner.bytes, &mut first_error);
                }
            }
            _ => {}
        }
        first_error.map_or(Ok(()), |error| Err(ViewError::Store(error)))
    }

    fn save(&self, name: &str, content: &dyn ReadAt, first_error: &mut Option<StoreError>) {
        match self.store.save_lost(name, content) {
            Ok(path) => {
                warn!("{}: has no place in the frame: saved as {}", self.store.path().join(name).display(), path.display())
            }
            Err(error) => {
                error!("{error}");
                first_error.get_or_insert(error);
            }
        }
    }
}
