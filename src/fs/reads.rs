//! READs without a reply. The kernel holds their pages locked until the reply, so an invalidation of those pages waits for it.
//!
//! A thread that invalidates pages must not wait so: a READ may wait for another program, and a daemon that is killed meanwhile would
//! leave its clients hanging. It leaves out the pages of READs under way. Those are invalidated after their reply, which may be of
//! the state before.

use std::collections::HashMap;
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
}

/// A READ, and whether its pages were left out by an invalidation.
struct Read {
    id: u64,
    start: u64,
    end: u64,
    /// It waits for another program, and is answered from a later state.
    waits: bool,
    outdated: bool,
}

impl Reads {
    /// A READ has come. Returns its number.
    pub(super) fn begin(&self, ino: Ino, start: u64, len: u64) -> u64 {
        let mut state = self.state.lock();
        state.last += 1;
        let id = state.last;
        let read = Read { id, start, end: start.saturating_add(len), waits: false, outdated: false };
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
        self.ended.notify_all();
        read.outdated.then_some((read.start, read.end - read.start))
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

    #[test]
    fn pages_of_reads_under_way_are_left_out_and_named_at_their_end() {
        let (reads, ino, other) = (Reads::default(), Ino(7), Ino(8));
        assert_eq!(reads.gaps(ino, 0, END), [(0, END)]);
        let (first, second, third) = (reads.begin(ino, 4096, 4096), reads.begin(ino, 0, 8192), reads.begin(ino, 16384, 4096));
        assert_eq!(reads.gaps(ino, 0, END), [(8192, 16384), (20480, END)]);
        assert_eq!(reads.gaps(other, 0, END), [(0, END)]);
        assert_eq!(reads.end(ino, first), Some((4096, 4096)));
        let fourth = reads.begin(ino, 32768, 4096);
        assert_eq!(reads.gaps(ino, 0, 20480), [(8192, 16384)]);
        assert_eq!(reads.end(ino, fourth), None, "it began after the invalidation, and lies elsewhere");
        assert_eq!(reads.end(ino, second), Some((0, 8192)));
        assert_eq!(reads.end(ino, third), Some((16384, 4096)));
        assert!(reads.state.lock().open.is_empty());
    }

    #[test]
    fn a_read_that_waits_for_others_is_not_waited_for() {
        let (reads, ino) = (Reads::default(), Ino(7));
        let read = reads.begin(ino, 0, 4096);
        assert!(!reads.wait(ino, Duration::from_millis(1)));
        reads.waits(ino, read);
        assert!(reads.wait(ino, Duration::from_secs(20)));
        reads.end(ino, read);
    }
}
