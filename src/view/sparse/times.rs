//! The times of chunk files (since when each has its content), from one mount to the next.
//!
//! A record is of one state of SOURCE's file, to the last byte and attribute ([`Identity`]), so what it says holds by position. Of
//! SOURCE in any other state nothing is known: its chunk files have its mtime.
//!
//! Chunk files are named by position at mount. In the next mount another chunk may have a file's name: such a file has had its content
//! only since the record was made, whatever time the chunk has now.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use log::debug;
use parking_lot::Mutex;

use super::state::{HeldIndex, Numbering, Sparse, chunk_of};
use crate::format::times::{Gather, Identity, Stamp, Times};
use crate::format::{ChunkId, IndexEntry};
use crate::store::in_words;
use crate::store::times::Records;
use crate::view::nodes::{Name, Node};
use crate::view::single::Single;

/// A record is made when nothing was committed for so long; what is committed later makes it useless.
const IDLE: Duration = Duration::from_secs(10);
/// And not more often than this.
const APART: Duration = Duration::from_secs(60);

/// Where times are kept, and what is there.
#[derive(Debug)]
pub struct Keeper {
    records: Records,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// What the record of SOURCE's file says.
    record: Option<(Identity, Arc<Times>)>,
    /// The state's `published` when it was last looked at.
    published: u64,
    due: Option<Instant>,
    last: Option<Instant>,
}

/// What a record is made of.
struct Snapshot {
    entries: Arc<Vec<IndexEntry<ChunkId>>>,
    /// Times of files that are not as they were at mount, by id.
    set: Vec<(ChunkId, Stamp)>,
    before: Arc<Times>,
    /// What all others have.
    source: Stamp,
}

impl Single<Sparse> {
    /// The same view, whose chunk files have the times of an earlier mount where these are known; what it knows is kept for the next.
    #[must_use]
    pub fn keeping_times(mut self, records: Records) -> Self {
        let mut kept = Kept::default();
        if let Some(identity) = self.store.identity() {
            let times = records.read(&identity).unwrap_or_else(|error| {
                debug!("{}: the times of an earlier mount are not used: {}", self.store.path().display(), in_words(&error));
                None
            });
            let frame = &mut self.state.get_mut().frame;
            let count = frame.applied.as_ref().map(|index| index.entries.len() as u64);
            if let Some(times) = times.filter(|times| count == Some(times.len().into())) {
                frame.times = Arc::new(times);
                kept.record = Some((identity, Arc::clone(&frame.times)));
            }
        }
        let keeper = Arc::new(Keeper { records, kept: Mutex::new(kept) });
        self.state.get_mut().frame.keeper = Some(Arc::clone(&keeper));
        self.load = Box::new(move |store| Sparse::load(store, Some(Arc::clone(&keeper))));
        self
    }

    /// Makes a record if it is due; answers when to look again.
    pub(super) fn keep_times(&self, now: Instant) -> Option<Instant> {
        let (keeper, published) = {
            let state = self.state.read();
            (Arc::clone(state.frame.keeper.as_ref()?), state.frame.published)
        };
        let mut kept = keeper.kept.lock();
        if std::mem::replace(&mut kept.published, published) != published {
            let rested = kept.last.map_or(now, |last| last + APART);
            kept.due = Some(rested.max(now + IDLE));
        }
        if kept.due.is_none_or(|due| due > now) {
            return kept.due;
        }
        // Whoever has it is committing.
        let Some(_nobody_commits) = self.commit_throttle.try_lock() else { return Some(now + IDLE) };
        (kept.due, kept.last) = (None, Some(now));
        if let Some(snapshot) = self.snapshot()
            && let Some(identity) = self.store.identity()
        {
            self.log_kept(snapshot.keep(&keeper.records, &mut kept, &identity));
        }
        None
    }

    /// Has a record made of what the mount leaves.
    pub(super) fn keep_times_at_close(&self) {
        let Some(keeper) = self.state.read().frame.keeper.clone() else { return };
        let Some(snapshot) = self.snapshot().filter(Snapshot::says_anything) else { return };
        let (records, mut kept) = (keeper.records.clone(), std::mem::take(&mut *keeper.kept.lock()));
        let source = self.store.path();
        self.store.at_close(Box::new(move |identity| {
            let Some(identity) = identity else { return };
            log_kept(&source, snapshot.keep(&records, &mut kept, &identity));
        }));
    }

    fn log_kept(&self, result: io::Result<()>) {
        log_kept(&self.store.path(), result);
    }

    /// What is known, if SOURCE has all that files show.
    fn snapshot(&self) -> Option<Snapshot> {
        if self.following.hindrance(&*self.store).is_some() {
            return None;
        }
        let state = self.state.read();
        let frame = &state.frame;
        let whole = frame.frame_changed == frame.published && matches!(frame.held, HeldIndex::No) && frame.removed.is_empty();
        let index = frame.applied.as_ref().filter(|_| whole)?;
        let time = |node: &Node| match node.name {
            Some(Name::Frame(file)) => Some((chunk_of(file)?, Stamp::from(node.meta.mtime))),
            _ => None,
        };
        let mut set: Vec<_> = state.nodes.iter().filter_map(|(_, node)| time(node)).collect();
        let (entries, before, source) = (Arc::clone(&index.entries), Arc::clone(&frame.times), state.nodes.source.mtime.into());
        drop(state);
        set.sort_unstable_by_key(|(id, _)| *id);
        Some(Snapshot { entries, set, before, source })
    }
}

fn log_kept(source: &std::path::Path, result: io::Result<()>) {
    if let Err(error) = result {
        debug!("{}: times of chunk files are not kept: {}", source.display(), in_words(&error));
    }
}

impl Snapshot {
    /// Whether not all files are as at a mount without a record.
    fn says_anything(&self) -> bool {
        !self.set.is_empty() || !self.before.is_empty() || !is_in_order(&self.entries)
    }

    fn times(&self, now: Stamp) -> Times {
        let mut gather = Gather::new(now);
        let mut set = self.set.iter().peekable();
        for (position, entry) in (0u32..).zip(self.entries.iter()) {
            while set.next_if(|(id, _)| id.0 < position).is_some() {}
            gather.push(entry.stored().map(|id| match set.peek() {
                _ if id.0 != position => gather.now(),
                Some((id, time)) if id.0 == position => *time,
                _ => self.before.get(position).unwrap_or(self.source),
            }));
        }
        gather.finish()
    }

    fn keep(&self, records: &Records, kept: &mut Kept, identity: &Identity) -> io::Result<()> {
        let times = self.times(SystemTime::now().into());
        // Without a record files would have the same.
        if times.is_empty() || times.only() == Some(identity.mtime) {
            return Ok(());
        }
        if kept.record.as_ref().is_some_and(|(of, before)| of == identity && **before == times) {
            return Ok(());
        }
        records.write(identity, &times)?;
        kept.record = Some((*identity, Arc::new(times)));
        Ok(())
    }
}

impl Sparse {
    /// Since when a chunk file that is as it was at mount has its content, if a record says so.
    pub(super) fn time_at_mount(&self, id: ChunkId) -> Option<SystemTime> {
        self.times.get(id.0).and_then(Stamp::time)
    }

    /// Whether the next mount gives every chunk file the name that it has now.
    pub(super) fn is_in_order(&self) -> bool {
        self.numbering == Numbering::ById || self.applied.as_ref().is_none_or(|index| is_in_order(&index.entries))
    }
}

fn is_in_order(entries: &[IndexEntry<ChunkId>]) -> bool {
    (0u32..).zip(entries).all(|(position, entry)| entry.stored().is_none_or(|id| id.0 == position))
}
