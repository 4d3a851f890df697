//! Reading ahead of those who read one thing after another: on and on through a file, or file after file.
//!
//! A reader is *sequential* when the same thread has read 256 KiB of a file in order, or two files in the view's order, one after
//! the other. What it reads next is asked of the store, and files that are read whole are pushed into the kernel's page cache, which saves
//! their READs altogether. When half of what was requested is used up, more is requested. A read elsewhere begins anew.
//!
//! Pushed files give no sign of being read in a read-only mount (no OPEN, no READ), so the end of one in the middle is left out (all
//! of a small one), whose READ asks for more in time; a read-write mount sees the OPENs. Who looks only at the beginnings of files
//! gets beginnings, of more files. Files above [`LARGEST`] are not pushed: the kernel's own read-ahead does as well.
//!
//! This tells threads apart, and counts bytes and files. The runs of chunks in `store::remote::sequence` are of nobody in particular, and
//! their windows grow with what a network is waited for; `store::cache` only keeps reads that border on each other out of memory.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;

use self::strides::Strides;
use super::Ino;

mod strides;

/// Largest file pushed, in bytes.
pub const LARGEST: u64 = 512 << 10;
/// The kernel's smallest page, in bytes: as much is pushed of a beginning.
pub const PAGE: u64 = 4096;
/// Files of which the beginning is pushed ahead.
pub const HEAD_WINDOW: usize = 64;
/// Whole files pushed ahead: as many as these bytes hold, but within these bounds.
const FILES_WINDOW: u64 = 4 << 20;
const FILES: RangeInclusive<u64> = 16..=128;
/// Files above this, in bytes, can do without their end: the READ of it is cheap beside that of the file.
const TRIPWIRE: u64 = 8 * PAGE;
/// How far ahead in a file its bytes are asked for.
const WINDOW: u64 = 8 << 20;
/// READs of one reader come from several threads, hence a little out of order: this far from where it was is still on its way.
const SLACK: u64 = 4 << 20;
/// Who has read this much of a file in order is a sequential reader of it.
const CERTAIN: u64 = 256 << 10;
/// Readers told apart.
const READERS: usize = 8;
/// Places that one thread may be at, among files that follow each other: it may look into the index between chunks.
const AMONG_FILES: usize = 2;
/// And in files that nothing follows.
const IN_FILES: usize = 4;

/// Bytes to push: the first `len` of `ino`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Push {
    /// Which file.
    pub ino: Ino,
    /// How many bytes.
    pub len: u64,
}

/// What a reader wants next.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// Files, in this order.
    pub pushes: Vec<Push>,
    /// Of the file that it reads.
    pub bytes: Option<Range<u64>>,
    /// Of the same file, a place here and a place there.
    pub places: Vec<Range<u64>>,
}

/// One reader's way.
#[derive(Debug)]
struct Reader {
    pid: u32,
    /// The file that was touched last.
    at: Ino,
    /// Its size (of the first one of a run: the next one's).
    size: u64,
    /// Where reading it began.
    start: u64,
    /// How far it was read. Stays 0 for what came out of the cache.
    end: u64,
    /// Bytes of it that were read, in a file that nothing follows.
    read: u64,
    /// How far its bytes have been asked for: each only once.
    asked: u64,
    /// Whether files are read whole rather than looked into.
    whole: bool,
    /// Files read in order so far.
    run: usize,
    /// What a sequential reader touches next, in order, with sizes: those that were pushed, and at least one more, unless nothing follows.
    ahead: VecDeque<(Ino, u64)>,
    /// How many of `ahead` were pushed.
    pushed: usize,
    /// The reader's OPENs are seen.
    opens: bool,
    /// Nothing follows the file.
    alone: bool,
    /// For finding the reader that has been idle for longest.
    used: u64,
}

/// The readers of a mount. A leaf lock, but for what tells which files follow.
#[derive(Debug, Default)]
pub struct Prefetcher {
    readers: Mutex<(Vec<Reader>, u64)>,
    strides: Mutex<Strides>,
    /// Names looked up since a chunk was read.
    pub lookups: AtomicU32,
}

impl Prefetcher {
    /// `pid` opens `ino` for reading, or has read so many bytes of it from an offset on. `following` says which files follow one, at most
    /// so many, with their sizes.
    pub fn touched(
        &self,
        pid: u32,
        ino: Ino,
        read: Option<(u64, u32)>,
        following: impl Fn(Ino, usize) -> Vec<(Ino, u64)>,
    ) -> Next {
        let range = read.map(|(offset, len)| offset..offset.saturating_add(u64::from(len)));
        let mut guard = self.readers.lock();
        let (readers, clock) = &mut *guard;
        *clock += 1;
        if let Some(reader) = readers.iter_mut().find_map(|r| (r.pid == pid && r.reach(ino, range.as_ref())).then_some(r)) {
            reader.used = *clock;
            reader.opens |= read.is_none();
            let goes_on = reader.advance(range.as_ref());
            let places = if reader.alone { self.places(pid, ino, range.as_ref()) } else { Vec::new() };
            let bytes = if goes_on { reader.ask() } else { None };
            return Next { bytes, pushes: reader.push(following), places };
        }
        let ahead: VecDeque<_> = following(ino, 1).into();
        let (alone, size) = (ahead.is_empty(), ahead.front().map_or(0, |next| next.1));
        let places = if alone { self.places(pid, ino, range.as_ref()) } else { Vec::new() };
        let Range { start, end } = range.unwrap_or_default();
        // Only the beginning of a file begins a run.
        if !alone && start > 0 {
            return Next::default();
        }
        let (opens, used) = (read.is_none(), *clock);
        let reader = Reader {
            pid,
            at: ino,
            size,
            start,
            end,
            read: end - start,
            asked: end,
            whole: true,
            run: 1,
            ahead,
            pushed: 0,
            opens,
            alone,
            used,
        };
        let of_pid = |reader: &Reader| reader.pid == pid && reader.alone == alone;
        let most = if alone { IN_FILES } else { AMONG_FILES };
        let place = if readers.iter().filter(|reader| of_pid(reader)).count() >= most {
            readers.iter_mut().filter(|reader| of_pid(reader)).min_by_key(|reader| reader.used)
        } else if readers.len() >= READERS {
            readers.iter_mut().min_by_key(|reader| reader.used)
        } else {
            None
        };
        match place {
            Some(place) => *place = reader,
            None => readers.push(reader),
        }
        Next { places, ..Next::default() }
    }

    fn places(&self, pid: u32, ino: Ino, range: Option<&Range<u64>>) -> Vec<Range<u64>> {
        range.map_or_else(Vec::new, |range| self.strides.lock().touched(pid, ino, range))
    }
}

impl Reader {
    /// Moves to `ino` if that is where the reader is, or what it touches next.
    fn reach(&mut self, ino: Ino, range: Option<&Range<u64>>) -> bool {
        if self.at == ino {
            let is_near = |range: &Range<u64>| range.start >= self.start && range.start.abs_diff(self.end) <= SLACK;
            return !self.alone || range.is_none_or(is_near);
        }
        let Some((place, size)) =
            self.ahead.iter().enumerate().find(|(_, ahead)| ahead.0 == ino).map(|(at, ahead)| (at, ahead.1))
        else {
            return false;
        };
        if self.end > 0 {
            self.whole = self.end >= self.size;
        }
        self.at = ino;
        self.size = size;
        (self.start, self.end, self.asked) = (0, 0, 0);
        self.run += 1;
        self.ahead.drain(..=place);
        self.pushed = self.pushed.saturating_sub(place + 1);
        true
    }

    /// A range was read. A reader that leaves out more than it reads begins anew there: returns false.
    fn advance(&mut self, range: Option<&Range<u64>>) -> bool {
        let Some(Range { start, end }) = range.cloned() else { return true };
        self.end = self.end.max(end);
        self.read = self.read.saturating_add(end - start);
        let begins = self.alone && self.end - self.start > SLACK && self.has_gaps();
        if begins {
            (self.start, self.end, self.read, self.asked) = (start, end, end - start, end);
        }
        !begins
    }

    fn has_gaps(&self) -> bool {
        self.read < (self.end - self.start) / 2
    }

    /// Chooses which part of the file to ask for, when half a window is used up.
    fn ask(&mut self) -> Option<Range<u64>> {
        self.asked = self.asked.max(self.end);
        let wanted = self.end.saturating_add(WINDOW);
        let is_certain = self.end.saturating_sub(self.start) >= CERTAIN && !self.has_gaps();
        if !self.alone || !is_certain || wanted - self.asked < WINDOW / 2 {
            return None;
        }
        Some(std::mem::replace(&mut self.asked, wanted)..wanted)
    }

    /// Chooses what to push, when half a window is used up. Where nothing is seen of that for want of OPENs, one file in the
    /// middle is pushed without its end, and the READ of that tells.
    fn push(&mut self, following: impl Fn(Ino, usize) -> Vec<(Ino, u64)>) -> Vec<Push> {
        let window = match self.whole {
            true => (FILES_WINDOW / self.size.max(1)).clamp(*FILES.start(), *FILES.end()) as usize,
            false => HEAD_WINDOW,
        };
        if self.run < 2 || self.pushed > window / 2 {
            return Vec::new();
        }
        let from = self.ahead.back().map_or(self.at, |last| last.0);
        self.ahead.extend(following(from, (window + 1).saturating_sub(self.ahead.len())));
        let end = self.ahead.len().min(window);
        let begin = self.pushed.min(end);
        self.pushed = end;
        let tripwire = begin.max(window / 2);
        let fresh = self.ahead.range(begin..end).zip(begin..);
        let pushes = fresh.filter(|((_, size), _)| (1..=LARGEST).contains(size)).filter_map(|(&(ino, size), place)| {
            let len = match (self.whole, self.opens) {
                (false, _) => size.min(PAGE),
                (true, false) if place == tripwire && size > TRIPWIRE => (size - 1) / PAGE * PAGE,
                (true, false) if place == tripwire => return None,
                (true, _) => size,
            };
            Some(Push { ino, len })
        });
        pushes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    fn read(prefetcher: &Prefetcher, offset: u64, len: u32) -> Option<Range<u64>> {
        let next = prefetcher.touched(1, FILE, Some((offset, len)), |_, _| Vec::new());
        assert_eq!(next.pushes, []);
        next.bytes
    }

    #[test]
    fn a_sequential_reader_asks_for_everything_once() {
        let prefetcher = Prefetcher::default();
        let mut asked = Vec::new();
        for n in [0, 1, 3, 2, 4, 5, 6, 8, 7].into_iter().chain(9..100u64) {
            asked.extend(read(&prefetcher, n << 17, 1 << 17));
        }
        assert!(asked[0].start <= 1 << 20 && asked.last().unwrap().end >= (100 << 17) + WINDOW / 2);
        assert!(asked.windows(2).all(|pair| pair[0].end == pair[1].start), "{asked:?}");
    }

    #[test]
    fn who_jumps_about_asks_for_nothing() {
        let prefetcher = Prefetcher::default();
        for n in 0..1000u64 {
            assert_eq!(read(&prefetcher, (n * 7919 % 1000) << 24, 4096), None);
        }
    }

    #[test]
    fn a_page_here_and_a_page_there_is_not_sequential() {
        for (distance, len) in
            [(64 << 10, 4096), (1 << 20, 4096), (1 << 20, 256 << 10), (SLACK - 4096, 4096), (SLACK - 4096, 1 << 20)]
        {
            let prefetcher = Prefetcher::default();
            for n in 0..1000 {
                assert_eq!(read(&prefetcher, n * distance, len), None, "{distance}");
            }
            let asked = (0..100u64).filter_map(|n| read(&prefetcher, 1000 * distance + (n << 17), 1 << 17)).count();
            assert!(asked >= 2, "{distance}: who reads on from there is sequential: {asked}");
        }
    }

    #[test]
    fn two_places_of_a_reader_are_told_apart() {
        let prefetcher = Prefetcher::default();
        let (mut one, mut two) = (0, 0);
        for n in 0..64u64 {
            one += usize::from(read(&prefetcher, n << 17, 1 << 17).is_some());
            two += usize::from(read(&prefetcher, (1 << 40) + (n << 17), 1 << 17).is_some());
        }
        assert!(one >= 2 && one == two, "{one} {two}");
    }

    /// What is pushed when files of a directory of that many, all of the same size, are read whole in an order.
    fn pushed(files: u64, size: u64, opens: bool, order: impl IntoIterator<Item = (u32, u64)>) -> Vec<u64> {
        let prefetcher = Prefetcher::default();
        let following = |ino: Ino, most| (ino.0 + 1..files).take(most).map(|ino| (Ino(ino), size)).collect();
        let mut pushed = Vec::new();
        for (pid, file) in order {
            let open = opens.then_some(None);
            for read in open.into_iter().chain([Some((0, size as u32))]) {
                let next = prefetcher.touched(pid, Ino(file), read, following);
                assert_eq!(next.bytes, None);
                pushed.extend(next.pushes.iter().map(|push| push.ino.0));
            }
        }
        pushed
    }

    #[test]
    fn who_reads_file_after_file_has_each_pushed_once() {
        for size in [1000, 100_000, LARGEST] {
            assert_eq!(pushed(300, size, true, (0..300).map(|file| (1, file))), (2..300).collect::<Vec<_>>(), "{size}");
        }
        assert!(pushed(300, LARGEST + 1, true, (0..300).map(|file| (1, file))).is_empty());
        // Without OPENs, small files that tell of being read are left out.
        let told = pushed(300, 1000, false, (0..300).map(|file| (1, file)));
        assert!(told.len() > 290 && told.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}");
    }

    #[test]
    fn who_reads_files_in_no_order_or_each_by_another_thread_has_none_pushed() {
        assert!(pushed(300, 1000, true, (0..300).map(|n| (1, n * 17 % 300))).is_empty());
        assert!(pushed(300, 1000, true, (0..300).map(|n| (n as u32, n))).is_empty());
    }
}
