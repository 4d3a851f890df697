//! What clients have written over the installed frame, until it is installed itself: the bytes and where they are.
//!
//! In memory while they are few, then in an unlinked sparse file on SOURCE's file system, at the same offsets. Memory comes out
//! of the budget that all drafts of a mount share, and the number of parts is bounded: where clients write here and there,
//! small gaps between parts are filled from below.
//!
//! What is the same as something below is not held, only where it is: the library moves everything behind a chunk that changes
//! its size. It is looked for as far away as the last such part, at the same place, at the end, and at the chunks nearby.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Instant, SystemTime};

use parking_lot::RwLock;

use super::layout::FileLayout;
use super::moved::{Moved, Placed};
use crate::format;
use crate::store::{Draft, DraftPool, FrameStore, ReadAt, ReadGuard};
use crate::view::Handle;
use crate::view::intervals::Intervals;
use crate::view::writers::{self, Writers};
use crate::view::writing::Change;

/// Pieces in which bytes are held in memory.
const PAGE: usize = 16 << 10;
/// An overlay that takes more memory goes to a file, in bytes.
const SPILL: u64 = 4 << 20;
/// Parts that are kept apart.
const MOST_PARTS: usize = 1 << 16;
/// How much of a gap is filled at once, in bytes.
const FILL_PIECE: usize = 1 << 20;

/// Shorter writes are held without a look whether they are somewhere below, in bytes.
const SHORTEST_MOVED: usize = 16;
/// What is compared first.
const FIRST_PIECE: usize = 4 << 10;
/// Chunks nearby that may begin what is moved.
const NEARBY: usize = 5;
/// After so many writes in a row that are nowhere below, it is looked for only now and then: looking costs reads.
const PATIENCE: u32 = 8;
/// How often then.
const NOW_AND_THEN: u32 = 16;

/// What is under an overlay.
pub trait Below {
    /// Its length in bytes, whatever of it is still seen.
    fn end(&self) -> u64;
    /// Reads a part of it.
    ///
    /// # Errors
    /// What the store says.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Where its chunks end.
    fn chunks_end(&self) -> u64;
    /// Where some chunks nearby begin.
    fn starts_near(&self, offset: u64) -> Vec<u64>;
}

/// What a close found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No close has looked yet.
    Open,
    /// It is no frame.
    Held(format::Error),
    /// It is one, but not by a whole round of writing: see [`crate::view::contiguous`].
    Unconfirmed,
    /// It is one that could not be stored.
    Unstored,
}

/// Bytes written over a frame. Everything but [`Overlay::refused`] changes only under the view's `writing` mutex.
#[derive(Debug)]
pub struct Overlay {
    /// Tells this one from others.
    pub serial: u64,
    /// Readers see what is below: those who were writing may go on.
    refused: AtomicBool,
    /// Held across input and output by readers of the bytes and by writers, not by a close.
    pub inner: RwLock<Inner>,
}

/// The part that changes with every write.
#[derive(Debug)]
pub struct Inner {
    /// Bytes of what is below that are still seen, from the beginning.
    below: u64,
    len: u64,
    /// All that was written: what is stored, and what is moved.
    written: Intervals,
    /// Clients that have written at the same time.
    writers: Option<Writers>,
    /// Bytes of that which are a hole all the same, where it was a temporary file's.
    hole: u64,
    /// What `data` has.
    stored: Intervals,
    /// What is somewhere below.
    moved: Moved,
    /// Writes in a row that were found nowhere below.
    misses: u32,
    /// Where the writes that follow each other without a gap began, and how far they have come.
    run: Range<u64>,
    /// How far away what was found last was below.
    shift: i64,
    data: Data,
    /// Counts changes.
    pub version: u64,
    /// Changed since a close looked at it, or to be looked at again by another client's close.
    pub dirty: bool,
    /// What that close found.
    pub verdict: Verdict,
    /// A client was told that it is not a frame.
    pub is_told: bool,
    /// Readers have once been shown what is below in its stead.
    pub was_refused: bool,
    pub mtime: SystemTime,
    pub last_write: Instant,
}

/// The bytes. Those outside of what was written mean nothing.
#[derive(Debug)]
enum Data {
    Memory(Pages),
    File(Draft),
}

#[derive(Debug)]
struct Pages {
    pool: Arc<DraftPool>,
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.pool.give(self.pages.len() as u64 * PAGE as u64);
    }
}

/// The parts of `bytes` at `offset` by pages: page, place in it, place in `bytes`, length.
fn by_page(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let place = (at % PAGE as u64) as usize;
        let count = (PAGE - place).min(len - done);
        done += count;
        Some((at / PAGE as u64, place, done - count..done))
    })
}

impl Pages {
    /// Whether there was room.
    #[expect(clippy::indexing_slicing, reason = "a part of a page, and of the buffer")]
    fn write_at(&mut self, data: &[u8], offset: u64) -> bool {
        let new = by_page(offset, data.len()).filter(|(page, ..)| !self.pages.contains_key(page)).count() as u64;
        let held = (self.pages.len() as u64 + new) * PAGE as u64;
        if held > SPILL || new > 0 && !self.pool.take(new * PAGE as u64) {
            return false;
        }
        for (page, place, part) in by_page(offset, data.len()) {
            let page = self.pages.entry(page).or_insert_with(|| vec![0; PAGE].into_boxed_slice());
            page[place..place + part.len()].copy_from_slice(&data[part]);
        }
        true
    }

    #[expect(clippy::indexing_slicing, reason = "parts of what lies between offset and end")]
    fn read_at(&self, buf: &mut [u8], offset: u64) {
        for (page, place, part) in by_page(offset, buf.len()) {
            let len = part.len();
            match self.pages.get(&page) {
                Some(page) => buf[part].copy_from_slice(&page[place..place + len]),
                None => buf[part].fill(0),
            }
        }
    }
}

impl Data {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Data::Memory(pages) => {
                pages.read_at(buf, offset);
                Ok(())
            }
            Data::File(draft) => draft.read_exact_at(buf, offset),
        }
    }
}

impl Overlay {
    /// One over a file of `below` bytes, in which nothing is written yet.
    pub fn new(serial: u64, below: u64, pool: &Arc<DraftPool>) -> Self {
        let pages = Pages { pool: Arc::clone(pool), pages: BTreeMap::new() };
        Self::with(serial, below, below, Intervals::default(), Data::Memory(pages))
    }

    /// One that covers all with the bytes of a draft, to which these clients have written at the same time.
    pub fn of_draft(serial: u64, draft: Draft, writers: Option<Writers>) -> Self {
        let (len, hole) = (draft.len(), draft.hole());
        let mut written = Intervals::default();
        written.insert(0..len);
        let mut overlay = Self::with(serial, 0, len, written, Data::File(draft));
        let inner = overlay.inner.get_mut();
        (inner.hole, inner.writers) = (hole, writers);
        overlay
    }

    fn with(serial: u64, below: u64, len: u64, written: Intervals, data: Data) -> Self {
        let inner = Inner {
            below,
            len,
            stored: written.clone(),
            moved: Moved::default(),
            misses: 0,
            run: 0..0,
            shift: 0,
            written,
            writers: None,
            hole: 0,
            data,
            version: 0,
            dirty: true,
            verdict: Verdict::Open,
            is_told: false,
            was_refused: false,
            mtime: SystemTime::now(),
            last_write: Instant::now(),
        };
        Overlay { serial, refused: AtomicBool::new(false), inner: RwLock::new(inner) }
    }

    /// The draft that it was made of.
    pub fn into_draft(self) -> Option<Draft> {
        match self.inner.into_inner().data {
            Data::File(draft) => Some(draft),
            Data::Memory(_) => None,
        }
    }

    /// Whether readers see what is below.
    pub fn refused(&self) -> bool {
        self.refused.load(Relaxed)
    }

    /// Shows readers what is below, or what is written again.
    pub fn set_refused(&self, refused: bool) {
        self.refused.store(refused, Relaxed);
        if refused {
            self.inner.write().was_refused = true;
        }
    }
}

impl Inner {
    /// Length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of what is below that are still seen, from the beginning.
    pub fn below(&self) -> u64 {
        self.below
    }

    /// What was written.
    pub fn written(&self) -> &Intervals {
        &self.written
    }

    /// Clients that have written at the same time.
    pub fn writers(&self) -> Option<&Writers> {
        self.writers.as_ref()
    }

    /// How much of what was written may be a hole all the same, which has cost a client nothing.
    pub fn hole(&self) -> u64 {
        self.hole
    }

    /// What was written that is somewhere below.
    pub fn moved(&self) -> &Moved {
        &self.moved
    }

    fn changed(&mut self) {
        self.version += 1;
        self.dirty = true;
        self.verdict = Verdict::Open;
        self.is_told = false;
        self.mtime = SystemTime::now();
        self.last_write = Instant::now();
    }

    /// Makes a change by a handle, beside which `another` may write.
    ///
    /// # Errors
    /// What the file system says; what was there before is then still there.
    pub fn apply(&mut self, handle: Handle, another: Option<Handle>, change: Change<'_>, below: &dyn Below) -> io::Result<()> {
        if let (Some(another), None) = (another, &self.writers) {
            self.writers = Some(Writers::new(another, self.written.clone()));
        }
        match change {
            Change::Write(offset, data) => {
                let part = offset..offset.saturating_add(data.len() as u64);
                let has_others = self.writers.as_ref().is_some_and(|writers| writers.has_others(handle, part.clone()));
                let is_same = has_others && self.reads_as(data, offset, below)?;
                self.write_at(data, offset, below)?;
                if let Some(writers) = &mut self.writers {
                    writers.write(handle, part, is_same);
                }
                Ok(())
            }
            Change::Resize(len) => self.resize(handle, len),
            Change::Empty => self.resize(handle, 0),
        }
    }

    fn resize(&mut self, handle: Handle, len: u64) -> io::Result<()> {
        self.set_len(len)?;
        if let Some(writers) = &mut self.writers {
            writers.set_len(handle, len);
        }
        Ok(())
    }

    /// Whether a part of the file has these bytes.
    fn reads_as(&self, data: &[u8], offset: u64, below: &dyn Below) -> io::Result<bool> {
        writers::has_bytes(data, offset, |buf, at| {
            let (count, gaps) = self.read_at(buf, at)?;
            for (gap, from) in gaps {
                let place = (gap.start - at) as usize..(gap.end - at) as usize;
                below.read(from, buf.get_mut(place).unwrap_or_default())?;
            }
            Ok(count == buf.len())
        })
    }

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// What the file system says; what was there before is then still there.
    pub fn write_at(&mut self, data: &[u8], offset: u64, below: &dyn Below) -> io::Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or_else(|| io::Error::from_raw_os_error(libc::EFBIG))?;
        if data.is_empty() {
            return Ok(());
        }
        self.run = if self.run.end == offset { self.run.start..end } else { offset..end };
        match self.find_below(data, offset, below)? {
            Some(from) => {
                self.misses = 0;
                self.shift = from.wrapping_sub(offset).cast_signed();
                self.stored.remove(offset..end);
                self.moved.insert(offset..end, from);
            }
            None => {
                self.misses = self.misses.saturating_add(1);
                self.store(data, offset)?;
            }
        }
        self.written.insert(offset..end);
        self.len = self.len.max(end);
        self.changed();
        if self.stored.count() + self.moved.count() > MOST_PARTS {
            self.join_parts(below)?;
        }
        Ok(())
    }

    /// Where the same bytes are below.
    fn find_below(&self, data: &[u8], offset: u64, below: &dyn Below) -> io::Result<Option<u64>> {
        if data.len() < SHORTEST_MOVED || self.misses > PATIENCE && !self.misses.is_multiple_of(NOW_AND_THEN) {
            return Ok(None);
        }
        let mut buf = Vec::new();
        // What is moved comes in pieces: forwards, the first of which may be a short one, or backwards, from the end.
        let shifted = offset.checked_add_signed(self.shift);
        let last = below.chunks_end().checked_sub(data.len() as u64);
        let before = offset - self.run.start;
        let nearby = below.starts_near(self.run.start).into_iter().map(|start| start.saturating_add(before));
        let places = shifted.into_iter().chain([offset]).chain(last).chain(nearby);
        for from in places.filter(|from| from.saturating_add(data.len() as u64) <= below.end()) {
            let (head, rest) = data.split_at(data.len().min(FIRST_PIECE));
            let mut at = from;
            let mut same = true;
            for piece in std::iter::once(head).chain(rest.chunks(FILL_PIECE)) {
                buf.resize(piece.len(), 0);
                below.read(at, &mut buf)?;
                same = buf == piece;
                if !same {
                    break;
                }
                at += piece.len() as u64;
            }
            if same {
                return Ok(Some(from));
            }
        }
        Ok(None)
    }

    /// Holds bytes.
    fn store(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        self.put(data, offset)?;
        let part = offset..offset + data.len() as u64;
        self.moved.remove(part.clone());
        self.stored.insert(part);
        Ok(())
    }

    fn put(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        if let Data::Memory(pages) = &mut self.data {
            if pages.write_at(data, offset) {
                return Ok(());
            }
            let mut draft = Draft::new(&pages.pool);
            let mut buf = Vec::new();
            for part in self.stored.iter() {
                buf.resize((part.end - part.start) as usize, 0); // all of it is in memory now
                pages.read_at(&mut buf, part.start);
                draft.write_at(&buf, part.start)?;
            }
            self.data = Data::File(draft);
        }
        match &mut self.data {
            Data::File(draft) => draft.write_at(data, offset),
            Data::Memory(_) => Ok(()),
        }
    }

    /// Halves the number of parts, at least: holds what is between them, the shortest first.
    fn join_parts(&mut self, below: &dyn Below) -> io::Result<()> {
        let mut longest = PAGE as u64;
        let mut buf = Vec::new();
        while self.stored.count() + self.moved.count() > MOST_PARTS / 2 {
            let starts = self.written.iter().skip(1).map(|part| part.start);
            let gaps = self.written.iter().zip(starts).map(|(part, next)| (part.end..next, part.end));
            let gaps = gaps.chain(self.moved.within(0..self.len));
            let gaps: Vec<_> = gaps.filter(|(gap, _)| gap.end - gap.start <= longest).collect();
            for (gap, from) in gaps {
                let moved = self.written.touches(gap.clone());
                let mut at = gap.start;
                while at < gap.end {
                    buf.resize((gap.end - at).min(FILL_PIECE as u64) as usize, 0);
                    let seen = if moved { u64::MAX } else { self.below.saturating_sub(at) };
                    let seen = seen.min(buf.len() as u64) as usize;
                    let (seen, cut) = buf.split_at_mut(seen);
                    cut.fill(0);
                    if !seen.is_empty() {
                        below.read(from + (at - gap.start), seen)?;
                    }
                    self.store(&buf, at)?;
                    at += buf.len() as u64;
                }
                self.written.insert(gap);
            }
            longest = longest.saturating_mul(4);
        }
        Ok(())
    }

    /// Cuts or lengthens.
    ///
    /// # Errors
    /// EFBIG beyond what a file can have.
    pub fn set_len(&mut self, len: u64) -> io::Result<()> {
        if len > i64::MAX as u64 {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        self.below = self.below.min(len);
        self.written.cut(len);
        self.stored.cut(len);
        self.moved.remove(len..u64::MAX);
        self.len = len;
        self.changed();
        match &mut self.data {
            Data::File(draft) if draft.len() > len => draft.set_len(len),
            _ => Ok(()),
        }
    }

    /// Reads what is held, and zeros where nothing is written and nothing below is seen. Answers how many bytes there are, and
    /// which parts of them are to be read from below, and where from.
    ///
    /// # Errors
    /// What the file system says.
    #[expect(clippy::indexing_slicing, reason = "parts of what lies between offset and end")]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<(usize, Vec<Placed>)> {
        let count = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let end = offset.saturating_add(count as u64);
        let mut gaps: Vec<_> = self.moved.within(offset..end).collect();
        let mut at = offset;
        for part in self.written.within(offset..end).chain(std::iter::once(end..end)) {
            let seen = self.below.clamp(at, part.start);
            if at < seen {
                gaps.push((at..seen, at));
            }
            buf[(seen - offset) as usize..(part.start - offset) as usize].fill(0);
            at = part.end;
        }
        for part in self.stored.within(offset..end) {
            let piece = &mut buf[(part.start - offset) as usize..(part.end - offset) as usize];
            self.data.read_exact_at(piece, part.start)?;
        }
        Ok((count, gaps))
    }

    /// See [`ReadAt::next_data`]; what is seen from below is taken for data.
    pub fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        if offset < self.below {
            return Some(offset..self.below);
        }
        let rest = offset..self.len.max(offset);
        let held = self.stored.within(rest.clone()).find_map(|part| match &self.data {
            Data::Memory(_) => Some(part),
            Data::File(draft) => {
                draft.next_data(part.start).filter(|data| data.start < part.end).map(|data| data.start..data.end.min(part.end))
            }
        });
        let moved = self.moved.within(rest).next().map(|(part, _)| part);
        held.into_iter().chain(moved).min_by_key(|part| part.start)
    }
}

/// A layout with what is written over it: the file as it is now.
pub struct Overlaid<'a> {
    pub store: &'a dyn FrameStore,
    /// Older than the look-up of the layout.
    pub guard: &'a ReadGuard<'a>,
    pub layout: &'a FileLayout,
    pub overlay: &'a Overlay,
}

impl Overlaid<'_> {
    /// Reads; a short count means the end.
    ///
    /// # Errors
    /// What the file system or the store says.
    #[expect(clippy::indexing_slicing, reason = "parts of what lies between offset and end")]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let (count, gaps) = self.overlay.inner.read().read_at(buf, offset)?;
        for (gap, from) in gaps {
            let piece = &mut buf[(gap.start - offset) as usize..(gap.end - offset) as usize];
            self.read(from, piece)?;
        }
        Ok(count)
    }
}

impl Below for Overlaid<'_> {
    fn end(&self) -> u64 {
        self.layout.len()
    }

    fn chunks_end(&self) -> u64 {
        self.layout.tail_start
    }

    fn starts_near(&self, offset: u64) -> Vec<u64> {
        let extents = &self.layout.extents;
        let first = extents.reaching(offset).saturating_sub(NEARBY / 2);
        extents.from(first).take(NEARBY).map(|extent| extent.start).collect()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match self.layout.read_at(self.store, self.guard, offset, buf) {
            Ok(count) if count == buf.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(crate::store::StoreError::Io { source, .. }) => Err(source),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

impl ReadAt for Overlaid<'_> {
    fn len(&self) -> u64 {
        self.overlay.inner.read().len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self.read_at(buf, offset)? {
            count if count == buf.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        self.overlay.inner.read().next_data(offset)
    }
}
