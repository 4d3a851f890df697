//! Reads of decompressed data while another process changes SOURCE.
//!
//! The file keeps its inode through changes that leave the places of its items ([`FrameView::keeps_inode`]). A map of it cannot be
//! refused a page without killing its program, so a read waits until SOURCE is whole again ([`ViewError::Unsettled`]):
//!
//! - A read from the last state that was loaded is good while SOURCE is untouched since, and was whole when it was loaded.
//! - A write changes the times of a file first and its bytes afterwards. So a state is whole if nothing was written for a moment.
//! - A program that waits for its own map writes nothing meanwhile, so that moment comes. Where others write all the time, it may not
//!   come for long: then what can be read is read, and is dropped from memory and from the page cache at the next such moment.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use crate::store::{StoreError, Watch};
use crate::view::content::Content;
use crate::view::frame_view::FrameView;
use crate::view::nodes::{GIVEN_UP, Number};
use crate::view::prefetch::PAGE;
use crate::view::single::{Single, State};
use crate::view::{Attr, Handle, Ino, Invalidation, Invalidations, Kind, ROOT, Result, ViewError};

/// How long reads wait for a writer that pauses at no time.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long reads wait where SOURCE cannot be read and nothing is written to it.
const GIVE_UP: Duration = Duration::from_secs(10);
/// The least pause between two requests for a look at SOURCE.
const RING_AGAIN: Duration = Duration::from_millis(20);
/// The number of the one file.
const FRAME: Number = Number(0);

/// What keeps reads waiting. A leaf lock is around it.
#[derive(Debug, Default)]
pub struct Unrest {
    /// Since when SOURCE has not been whole for a moment, if it is not known to be.
    since: Option<Instant>,
    /// Pages of the states before were forgotten then, though SOURCE was not whole.
    forgotten: Option<Instant>,
    /// Since when reads fail.
    failing: Option<Instant>,
    /// The times of SOURCE when it could not be read, and when they were seen first.
    written: Option<(Instant, SystemTime, SystemTime)>,
    /// When a look at SOURCE was asked for.
    rung: Option<Instant>,
}

impl Unrest {
    /// SOURCE was loaded, and is not known to be whole. Returns whether pages must be forgotten now.
    pub fn begin(&mut self, now: Instant) -> bool {
        self.failing = None;
        let since = *self.since.get_or_insert(now);
        let is_due = now.saturating_duration_since(self.forgotten.unwrap_or(since)) >= PATIENCE;
        if is_due {
            self.forgotten = Some(now);
        }
        is_due
    }

    /// SOURCE is whole.
    pub fn end(&mut self) {
        *self = Unrest::default();
    }

    /// Whether the state that was loaded can be read.
    fn lets_read(&self, now: Instant) -> bool {
        self.since.is_none_or(|since| now.saturating_duration_since(since) >= PATIENCE)
    }

    /// SOURCE cannot be read, and has these times.
    pub fn is_written(&mut self, now: Instant, times: (SystemTime, SystemTime)) {
        if !matches!(self.written, Some((_, mtime, ctime)) if (mtime, ctime) == times) {
            self.written = Some((now, times.0, times.1));
        }
    }

    /// A read has failed. Returns whether it is to be tried again.
    fn fails(&mut self, now: Instant) -> bool {
        let since = *self.failing.get_or_insert(now);
        let since = self.written.map_or(since, |(seen, ..)| seen.max(since));
        now.saturating_duration_since(since) < GIVE_UP
    }

    /// Whether it is time to ask for a look at SOURCE.
    fn rings(&mut self, now: Instant) -> bool {
        let rings = self.rung.is_none_or(|rung| now.saturating_duration_since(rung) >= RING_AGAIN);
        if rings {
            self.rung = Some(now);
        }
        rings
    }
}

impl<V: FrameView> Single<V> {
    /// Whether reads wait for the end of a change by others. Objects far away are replaced as a whole.
    pub(in crate::view) fn waits_for_changes(&self) -> bool {
        V::KEEPS_INODE && self.store.local().is_some()
    }

    /// What the kernel must forget of a file that keeps its inode.
    pub(super) fn pages_of_data(&self) -> Invalidation {
        Invalidation::Data(self.state.read().nodes.ino(FRAME))
    }

    /// Reads from the last state that was loaded, if that is whole.
    pub(in crate::view) fn read_settled(&self, ino: Ino, handle: Option<Handle>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let following = &self.following;
        following.check()?;
        if !following.is_by_turns() && self.store.watch().is_some_and(Watch::is_blind) {
            self.glance();
        }
        let guard = self.store.enter();
        let content = {
            let state = self.state.read();
            if let Some(Ok(open)) = handle.map(|handle| state.nodes.handle(handle)) {
                state.nodes.check_version(open)?;
            }
            state.content(ino)?
        };
        if following.is_out_of_step() || !following.unrest.lock().lets_read(Instant::now()) {
            return Err(self.later());
        }
        self.has_read(&content);
        match self.read_content(&guard, ino, &content, offset, buf) {
            Err(ViewError::Gone | ViewError::Store(StoreError::Stale { .. })) => Err(self.later()),
            // Half a chunk, or a place that is another's by now.
            Err(ViewError::Store(_) | ViewError::BadChunk(..)) if !self.store.is_as_seen() => Err(self.later()),
            read => read,
        }
    }

    /// Why a read fails while others change SOURCE.
    fn later(&self) -> ViewError {
        // Others may have taken away what it was, in their turn or in one that is over.
        if self.is_outdated() {
            return ViewError::Locked;
        }
        let (now, mut unrest) = (Instant::now(), self.following.unrest.lock());
        if unrest.rings(now)
            && let Some(watch) = self.store.watch()
        {
            watch.ring();
        }
        if unrest.fails(now) { ViewError::Unsettled } else { ViewError::System(libc::EIO) }
    }

    /// SOURCE could not be read.
    pub(super) fn is_not_read(&self) {
        if self.waits_for_changes()
            && let Ok(stat) = self.store.source_stat()
        {
            self.following.unrest.lock().is_written(Instant::now(), (stat.mtime, stat.ctime));
        }
    }

    /// SOURCE was read again, and the file kept its inode. Returns what the kernel must forget now: pages stay until SOURCE is whole.
    pub(super) fn data_is_loaded(&self, invalidations: &mut Invalidations) {
        let pages = self.pages_of_data();
        match pages {
            Invalidation::Data(ino) if self.waits_for_changes() && !self.following.unrest.lock().begin(Instant::now()) => {
                invalidations.push(Invalidation::Attr(ino));
            }
            pages => invalidations.push(pages),
        }
    }
}

/// What the kernel must forget at once of a file that grows: what was its last page has zeros behind the end.
pub fn last_page<V: FrameView>(state: &State<V>, next: &V) -> Option<Invalidation> {
    let (Content::Data(before), Content::Data(now)) = (state.frame.content(FRAME)?, next.content(FRAME)?) else { return None };
    let (start, rest) = (before.bytes() / PAGE * PAGE, before.bytes() % PAGE);
    (rest > 0 && now.bytes() > before.bytes()).then(|| Invalidation::Range(state.nodes.ino(FRAME), start, PAGE))
}

/// Attributes of files that may lose their inodes and that clients have open, and of the file that shows decompressed data: clients
/// may have it open without the file system's being told.
pub fn last_attributes<V: FrameView>(state: &State<V>) -> Vec<Attr> {
    let open: BTreeSet<Ino> = state.nodes.handles().map(|open| open.ino).collect();
    let data = V::KEEPS_INODE.then(|| state.nodes.ino(FRAME));
    let files = data.into_iter().chain(open).filter(|ino| *ino != ROOT).take(GIVEN_UP);
    let attributes = files.filter_map(|ino| {
        let content = state.content(ino).ok()?;
        let len = match &content {
            Content::Chunk(_, len) => u64::from((*len)?),
            Content::Frame(file) => file.len(),
            Content::Data(data) => data.bytes(),
            Content::Empty | Content::Bytes(_) | Content::Draft(_) => return None,
        };
        let attr = state.meta(ino).attr(ino, Kind::File, len);
        let blocks = if let Content::Data(data) = &content { data.blocks() } else { attr.blocks };
        Some(Attr { nlink: 0, blocks, ..attr })
    });
    attributes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    #[test]
    fn reads_wait_until_source_is_whole_but_not_for_ever() {
        let (mut unrest, began) = (Unrest::default(), Instant::now());
        assert!(unrest.lets_read(began));
        assert!(!unrest.begin(began) && !unrest.lets_read(began));
        let last = began + PATIENCE - MOMENT;
        assert!(!unrest.begin(last) && !unrest.lets_read(last));
        assert!(unrest.begin(last + MOMENT) && unrest.lets_read(last + MOMENT), "pages are forgotten now and then");
        assert!(!unrest.begin(last + 2 * MOMENT));
        unrest.end();
        assert!(unrest.lets_read(began));
    }

    #[test]
    fn reads_fail_some_time_after_the_last_write() {
        let (mut unrest, began) = (Unrest::default(), Instant::now());
        let (one, two) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + MOMENT);
        assert!(unrest.fails(began) && !unrest.fails(began + GIVE_UP));
        unrest.is_written(began, (one, one));
        let later = began + Duration::from_secs(5);
        unrest.is_written(later, (one, one));
        assert!(!unrest.fails(began + GIVE_UP), "nothing was written");
        unrest.is_written(later, (one, two));
        assert!(unrest.fails(began + GIVE_UP) && !unrest.fails(later + GIVE_UP));
    }

    #[test]
    fn looks_are_asked_for_now_and_then() {
        let (mut unrest, began) = (Unrest::default(), Instant::now());
        assert!(unrest.rings(began) && !unrest.rings(began + MOMENT) && unrest.rings(began + RING_AGAIN));
    }
}
