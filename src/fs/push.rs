//! Reading ahead over the ends of files: who reads chunk after chunk finds the next ones in the page cache already.
//!
//! A reader is *sequential* when the same thread has read two files in the view's order, one after the other. Then the next
//! files are stored into the kernel's page cache from the pages thread of [`notify`](super::notify), which saves their READs
//! altogether. Pushed files give no sign of being read in a read-only mount (no OPEN, no READ), so the
//! end of one in the middle is left out (all of a small one), whose READ asks for more in time; a read-write mount sees the OPENs.
//!
//! Who looks only at the beginnings of files gets beginnings, of more files.
//!
//! Not pushed: files the kernel does not know, files above [`LARGEST`] (their own readahead does as well), files open for writing.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use fuser::{INodeNo, Notifier};
use log::debug;
use parking_lot::Mutex;

use crate::store::in_words;
use crate::view::{FileSystem, Ino};

/// Largest file pushed, in bytes.
pub(super) const LARGEST: u64 = 512 << 10;
/// Whole files pushed ahead: as many as these bytes hold, but within these bounds.
const WINDOW_BYTES: u64 = 4 << 20;
const WINDOW: RangeInclusive<u64> = 16..=128;
/// Files of which the beginning is pushed ahead.
const HEAD_WINDOW: usize = 64;
/// The kernel's smallest page, in bytes: as much is pushed of a beginning.
pub(super) const PAGE: u64 = 4096;
/// Files above this, in bytes, can do without their end: the READ of it is cheap beside that of the file.
const TRIPWIRE: u64 = 8 * PAGE;
/// More hints than this are not kept: what was asked for first is dropped first.
pub(super) const LONGEST_QUEUE: usize = 8 * HEAD_WINDOW;
/// Readers told apart.
const STREAMS: usize = 8;
/// Places that one reader may be at: it may look into the index between chunks.
const STREAMS_OF_ONE: usize = 2;

/// Bytes to push: the first `len` of `ino`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hint {
    pub(super) ino: Ino,
    pub(super) len: u64,
}

/// One reader's way through the files.
#[derive(Debug)]
struct Stream {
    pid: u32,
    /// The file that was touched last.
    at: Ino,
    /// Its size (of the first one of a run: the next one's).
    size: u64,
    /// How far it was read, in bytes. Stays 0 for what came out of the cache.
    read: u64,
    /// Whether files are read whole rather than looked into.
    whole: bool,
    /// Files read in order so far.
    run: usize,
    /// What a sequential reader touches next, in order, with sizes: those that were pushed, and at least one more.
    ahead: VecDeque<(Ino, u64)>,
    /// How many of `ahead` were pushed.
    pushed: usize,
    /// The reader's OPENs are seen.
    opens: bool,
    /// For finding the stream that has been idle for longest.
    used: u64,
}

/// The readers. A leaf lock, but for [`FileSystem::next_files`], which is called under it.
#[derive(Default)]
pub(super) struct Streams(Mutex<(Vec<Stream>, u64)>);

impl Streams {
    /// `pid` opens `ino` for reading, or has read so many bytes of it from an offset on. What comes back is to be pushed.
    pub(super) fn touched(&self, view: &dyn FileSystem, pid: u32, ino: Ino, read: Option<(u64, u32)>) -> Vec<Hint> {
        let (begin, end) = read.map_or((0, 0), |(offset, len)| (offset, offset.saturating_add(u64::from(len))));
        let mut guard = self.0.lock();
        let (streams, clock) = &mut *guard;
        *clock += 1;
        if let Some(stream) = streams.iter_mut().find_map(|s| (s.pid == pid && s.reach(ino)).then_some(s)) {
            stream.used = *clock;
            stream.read = stream.read.max(end);
            stream.opens |= read.is_none();
            return stream.refill(view);
        }
        // Only the beginning of a file begins a run.
        let ahead: VecDeque<_> = if begin == 0 { view.next_files(ino, 1).into() } else { VecDeque::new() };
        let Some(&(_, size)) = ahead.front() else { return Vec::new() };
        let (at, used) = (ino, *clock);
        let stream = Stream { pid, at, size, read: end, whole: true, run: 1, ahead, pushed: 0, opens: read.is_none(), used };
        let of_pid = streams.iter().filter(|stream| stream.pid == pid).count();
        let place = if of_pid >= STREAMS_OF_ONE {
            streams.iter_mut().filter(|stream| stream.pid == pid).min_by_key(|stream| stream.used)
        } else if streams.len() >= STREAMS {
            streams.iter_mut().min_by_key(|stream| stream.used)
        } else {
            None
        };
        match place {
            Some(place) => *place = stream,
            None => streams.push(stream),
        }
        Vec::new()
    }
}

impl Stream {
    /// Moves to `ino` if that is where the reader is, or what it touches next.
    fn reach(&mut self, ino: Ino) -> bool {
        if self.at == ino {
            return true;
        }
        let Some(place) = self.ahead.iter().position(|ahead| ahead.0 == ino) else { return false };
        if self.read > 0 {
            self.whole = self.read >= self.size;
        }
        self.at = ino;
        self.size = self.ahead[place].1;
        self.read = 0;
        self.run += 1;
        self.ahead.drain(..=place);
        self.pushed = self.pushed.saturating_sub(place + 1);
        true
    }

    /// Chooses what to push, when half a window is used up. Where nothing is seen of that for want of OPENs, one file in the
    /// middle is pushed without its end, and the READ of that tells.
    fn refill(&mut self, view: &dyn FileSystem) -> Vec<Hint> {
        let window = match self.whole {
            true => (WINDOW_BYTES / self.size.max(1)).clamp(*WINDOW.start(), *WINDOW.end()) as usize,
            false => HEAD_WINDOW,
        };
        if self.run < 2 || self.pushed > window / 2 {
            return Vec::new();
        }
        let from = self.ahead.back().map_or(self.at, |last| last.0);
        self.ahead.extend(view.next_files(from, (window + 1).saturating_sub(self.ahead.len())));
        let end = self.ahead.len().min(window);
        let begin = self.pushed.min(end);
        self.pushed = end;
        let tripwire = begin.max(window / 2);
        let fresh = self.ahead.range(begin..end).zip(begin..);
        let hints = fresh.filter(|((_, size), _)| (1..=LARGEST).contains(size)).filter_map(|(&(ino, size), place)| {
            let len = match (self.whole, self.opens) {
                (false, _) => size.min(PAGE),
                (true, false) if place == tripwire && size > TRIPWIRE => (size - 1) / PAGE * PAGE,
                (true, false) if place == tripwire => return None,
                (true, _) => size,
            };
            Some(Hint { ino, len })
        });
        hints.collect()
    }
}

/// Stores the file's bytes, as they are now, into the page cache.
pub(super) fn store(notifier: &Notifier, view: &dyn FileSystem, hint: Hint, buf: &mut Vec<u8>) {
    let len = hint.len.min(LARGEST) as usize;
    if buf.len() < len {
        buf.resize(len, 0);
    }
    let outcome = match view.read(hint.ino, None, 0, &mut buf[..len]) {
        Ok(0) => return,
        Ok(n) => notifier.store(INodeNo(hint.ino.0), 0, &buf[..n]).map_err(|error| in_words(&error)),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = outcome {
        debug!("inode {} not pushed: {error}", hint.ino.0);
    }
}
