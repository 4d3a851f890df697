//! READs without a reply. The kernel holds their pages locked until the reply, so an invalidation of those pages waits for it.
//!
//! A thread that invalidates pages must not wait so: a READ may wait for another program, and a daemon that is killed meanwhile would
//! leave its clients hanging. It leaves out the pages of READs under way. Those are invalidated after their reply, which may be of
//! the state before.
//!
//! A write(2) changes the kernel's pages before its WRITE is sent. If they are dropped in between, by an open or an invalidation, a READ
//! can bring back the bytes from before the WRITE, and the page would keep them. So READs of files that are open for writing are noted, and
//! before its reply a WRITE invalidates what READs may have got too early. The kernel sends one WRITE of a file at a time, and changes pages
//! for the next one after the reply. So a READ counts for the first WRITE after its reply. Pages that were changed through a mapping are not
//! dropped before they are written back: their WRITEs come in between.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::view::Ino;

/// See the module. A leaf lock.
#[derive(Default)]
pub(super) struct Reads {
    state: Mutex<State>,
    /// A READ has its reply.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    last: u64,
    open: HashMap<Ino, Vec<Read>>,
    /// Files that are open for writing.
    written: HashMap<Ino, Written>,
}

/// A request: its number, by which the kernel counts those that it sends, and the thread that it is for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    pub(super) unique: u64,
    pub(super) client: u32,
}

/// A file that is open for writing.
#[derive(Default)]
struct Written {
    handles: usize,
    /// READs that have their replies since the last WRITE, the last one last.
    ended: VecDeque<Ended>,
    /// Where READs before these were, from the first byte to the last.
    before: Option<(u64, u64)>,
}

/// A READ that has its reply.
struct Ended {
    origin: Origin,
    start: u64,
    end: u64,
}

/// So many READs are remembered of a file, each by itself.
const REMEMBERED: usize = 64;

/// A READ, and whether its pages were left out by an invalidation.
struct Read {
    id: u64,
    origin: Origin,
    start: u64,
    end: u64,
    /// A WRITE has changed what it reads.
    overtaken: bool,
    /// It waits for another program, and is answered from a later state.
    waits: bool,
    outdated: bool,
}

impl Reads {
    /// A READ has come. Returns its number.
    pub(super) fn begin(&self, ino: Ino, start: u64, len: u64, origin: Origin) -> u64 {
        let mut state = self.state.lock();
        state.last += 1;
        let id = state.last;
        let end = start.saturating_add(len);
        let read = Read { id, origin, start, end, overtaken: false, waits: false, outdated: false };
        state.open.entry(ino).or_default().push(read);
        id
    }

    /// A READ is to be tried later.
    pub(super) fn waits(&self, ino: Ino, id: u64) {
        let mut state = self.state.lock();
        if let Some(read) = state.open.get_mut(&ino).and_then(|reads| reads.iter_mut().find(|read| read.id == id)) {
            read.waits = true;
        }
        self.ended.notify_all();
    }

    /// A READ has its reply. Returns where its pages are, and how many bytes, if they are to be invalidated now.
    pub(super) fn end(&self, ino: Ino, id: u64) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        let reads = state.open.get_mut(&ino)?;
        let place = reads.iter().position(|read| read.id == id)?;
        let read = reads.swap_remove(place);
        if reads.is_empty() {
            state.open.remove(&ino);
        }
        if let Some(written) = state.written.get_mut(&ino) {
            let Read { origin, start, end, .. } = read;
            written.ended.push_back(Ended { origin, start, end });
            if written.ended.len() > REMEMBERED
                && let Some(first) = written.ended.pop_front()
            {
                let (from, to) = written.before.unwrap_or((first.start, first.end));
                written.before = Some((from.min(first.start), to.max(first.end)));
            }
        }
        self.ended.notify_all();
        (read.outdated || read.overtaken).then_some((read.start, read.end - read.start))
    }

    /// Whether a WRITE has changed what a READ reads since this was last asked.
    pub(super) fn is_overtaken(&self, ino: Ino, id: u64) -> bool {
        let mut state = self.state.lock();
        let read = state.open.get_mut(&ino).and_then(|reads| reads.iter_mut().find(|read| read.id == id));
        read.is_some_and(|read| std::mem::take(&mut read.overtaken))
    }

    /// A file is about to be opened for writing.
    pub(super) fn writer_came(&self, ino: Ino) {
        self.state.lock().written.entry(ino).or_default().handles += 1;
    }

    /// A handle that was open for writing is gone.
    pub(super) fn writer_gone(&self, ino: Ino) {
        let mut state = self.state.lock();
        if let Some(written) = state.written.get_mut(&ino) {
            written.handles -= 1;
            if written.handles == 0 {
                state.written.remove(&ino);
            }
        }
    }

    /// A WRITE has changed a range of a file. READs of it that are under way are noted. Returns where in this range READs may have brought
    /// back too early what was there before, and how many bytes. `from_mapping` says whose pages it writes.
    pub(super) fn overtake(&self, ino: Ino, start: u64, end: u64, write: Origin, from_mapping: bool) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        let State { open, written, .. } = &mut *state;
        // A thread sends a WRITE after the replies to its READs.
        let comes_before = |read: Origin| read.client == write.client && read.unique < write.unique;
        let mut range = None;
        let mut add = |from: u64, to: u64| {
            if from < end && to > start {
                let (least, most) = range.unwrap_or((u64::MAX, 0));
                range = Some((from.max(start).min(least), to.min(end).max(most)));
            }
        };
        for read in open.get_mut(&ino).into_iter().flatten() {
            if read.start < end && read.end > start && !comes_before(read.origin) {
                read.overtaken = true;
                add(read.start, read.end);
            }
        }
        if let Some(written) = written.get_mut(&ino).filter(|_| !from_mapping) {
            let ended = written.ended.drain(..).filter(|read| !comes_before(read.origin)).map(|read| (read.start, read.end));
            ended.chain(written.before.take()).for_each(|(from, to)| add(from, to));
        }
        range.map(|(from, to)| (from, to - from))
    }

    /// The parts of a range of a file in which no READ is under way. The READs in between are noted. `end` may be `u64::MAX`.
    pub(super) fn gaps(&self, ino: Ino, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut state = self.state.lock();
        let mut busy = Vec::new();
        for read in state.open.get_mut(&ino).into_iter().flatten().filter(|read| read.start < end && read.end > start) {
            read.outdated = true;
            busy.push((read.start, read.end));
        }
        busy.sort_unstable();
        let (mut gaps, mut at) = (Vec::new(), start);
        for (from, to) in busy {
            if at < from {
                gaps.push((at, from));
            }
            at = at.max(to);
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    /// Waits until all READs of a file have their replies that are under way now, but for those that wait for another program. Returns
    /// false if that takes longer than `patience`.
    pub(super) fn wait(&self, ino: Ino, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.state.lock();
        let last = state.last;
        let is_busy =
            |state: &State| state.open.get(&ino).is_some_and(|reads| reads.iter().any(|read| read.id <= last && !read.waits));
        while is_busy(&state) {
            if self.ended.wait_until(&mut state, until).timed_out() {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u64 = u64::MAX;

    fn by(client: u32, unique: u64) -> Origin {
        Origin { unique, client }
    }

    #[test]
    fn pages_of_reads_under_way_are_left_out_and_named_at_their_end() {
        let (reads, ino, other) = (Reads::default(), Ino(7), Ino(8));
        assert_eq!(reads.gaps(ino, 0, END), [(0, END)]);
        let (first, second, third) = (
            reads.begin(ino, 4096, 4096, by(1, 2)),
            reads.begin(ino, 0, 8192, by(1, 2)),
            reads.begin(ino, 16384, 4096, by(1, 2)),
        );
        assert_eq!(reads.gaps(ino, 0, END), [(8192, 16384), (20480, END)]);
        assert_eq!(reads.gaps(other, 0, END), [(0, END)]);
        assert_eq!(reads.end(ino, first), Some((4096, 4096)));
        let fourth = reads.begin(ino, 32768, 4096, by(1, 2));
        assert_eq!(reads.gaps(ino, 0, 20480), [(8192, 16384)]);
        assert_eq!(reads.end(ino, fourth), None, "it began after the invalidation, and lies elsewhere");
        assert_eq!(reads.end(ino, second), Some((0, 8192)));
        assert_eq!(reads.end(ino, third), Some((16384, 4096)));
        assert!(reads.state.lock().open.is_empty());
    }

    #[test]
    fn a_read_that_waits_for_others_is_not_waited_for() {
        let (reads, ino) = (Reads::default(), Ino(7));
        let read = reads.begin(ino, 0, 4096, by(1, 2));
        assert!(!reads.wait(ino, Duration::from_millis(1)));
        reads.waits(ino, read);
        assert!(reads.wait(ino, Duration::from_secs(20)));
        reads.end(ino, read);
    }

    #[test]
    fn a_write_finds_the_reads_that_came_too_early_for_it() {
        let (reads, ino) = (Reads::default(), Ino(7));
        let read = |start, origin| reads.end(ino, reads.begin(ino, start, 4096, origin));
        let write = |start, end, origin| reads.overtake(ino, start, end, origin, false);
        reads.writer_came(ino);
        read(0, by(1, 10));
        assert_eq!(write(0, 100, by(1, 12)), None, "the same thread, one after the other");
        read(0, by(1, 14));
        assert_eq!(reads.overtake(ino, 0, 100, by(2, 16), true), None, "nobody can have dropped the page");
        assert_eq!(write(0, 100, by(2, 16)), Some((0, 100)));
        assert_eq!(write(0, 100, by(2, 18)), None, "its page was changed after that READ's reply");
        read(0, by(1, 22));
        assert_eq!(write(50, 8192, by(2, 20)), Some((50, 4046)));
        read(0, by(1, 24));
        assert_eq!(write(4096, 8192, by(2, 26)), None);
        assert_eq!(write(0, 4096, by(2, 28)), None, "it came after the reply to a WRITE that came after that READ's");
        assert_eq!(reads.overtake(Ino(8), 0, 100, by(2, 30), false), None);
        let under_way = reads.begin(ino, 4096, 4096, by(1, 34));
        assert_eq!(write(5000, 5001, by(1, 36)), None, "the same thread, which has its reply");
        assert!(!reads.is_overtaken(ino, under_way));
        assert_eq!(write(5000, 5001, by(2, 32)), Some((5000, 1)));
        assert!(reads.is_overtaken(ino, under_way));
        assert!(!reads.is_overtaken(ino, under_way), "it has read again");
        write(5000, 5001, by(2, 38));
        assert_eq!(reads.end(ino, under_way), Some((4096, 4096)));
        reads.writer_gone(ino);
        assert!(reads.state.lock().written.is_empty());
        assert_eq!(read(0, by(1, 40)), None);
    }

    #[test]
    fn no_read_is_forgotten_before_a_write_however_many_come() {
        let (reads, ino) = (Reads::default(), Ino(7));
        reads.writer_came(ino);
        for page in 0..REMEMBERED as u64 + 2 {
            reads.end(ino, reads.begin(ino, page * 4096, 4096, by(1, page)));
        }
        assert_eq!(reads.overtake(ino, 100, 200, by(2, 1000), false), Some((100, 100)));
        assert_eq!(reads.overtake(ino, 100, 200, by(2, 1002), false), None);
    }
}
