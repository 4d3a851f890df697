//! Stored chunks where they are, each by itself; and looking at many of them in several threads.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

use super::{Finding, Kind, Seen};
use crate::format::chunk::ChunkHeader;
use crate::format::{ChunkId, ChunkOffset, IndexEntry, Position};
use crate::store::backend::{Backend, BackendFile, read_exact_at};
use crate::store::error::in_words;

/// Entries that are looked at before they are told of, and how many a thread takes at once, where only headers are read.
pub(in crate::store) const ROUND: usize = 16 * 1024;
pub(in crate::store) const SHARE: usize = 256;
/// Headers that are closer than this, on the whole, are read with all that is between them, in bytes: a disk is faster at that.
const CLOSE: u64 = 16 << 10;

/// Room for a chunk's header.
pub(in crate::store) type Head = [u8; ChunkHeader::LEN];

/// Where stored chunks are read from.
pub(in crate::store) trait Chunks<P>: Sync {
    /// Reads the first bytes of a chunk, as many of a header's as there are, and says how many, and how much room it has; or says
    /// what is wrong.
    fn head(&self, place: P, head: &mut Head) -> Result<(usize, u64), Box<Finding>>;
    /// Looks at a chunk's header and then reads all of it, known to lie in its room.
    fn whole(&self, place: P, buf: &mut Vec<u8>) -> Result<(Seen, io::Result<()>), Box<Finding>>;
    /// How a message calls the place.
    fn name(&self, place: P) -> String;
    /// Whether the room must be exactly the chunk's.
    fn exact(&self) -> bool;
    /// Whether what is read says nothing about the frame any more: see [`Backend::out_of_reach`].
    fn is_out_of_reach(&self) -> bool;
    /// Headers of these will be read soon: a hint.
    fn expect(&self, _entries: &[IndexEntry<P>]) {}
}

/// Damage at a place.
pub(in crate::store) fn damage<P>(chunks: &impl Chunks<P>, place: P, kind: Kind, what: &dyn std::fmt::Display) -> Finding {
    Finding::damage(kind, format!("{}: {what}", chunks.name(place)))
}

/// Reads a chunk's header, or says what is wrong with it.
pub(in crate::store) fn see<P: Copy>(chunks: &impl Chunks<P>, place: P) -> Result<Seen, Box<Finding>> {
    let mut head = [0; ChunkHeader::LEN];
    let (len, room) = chunks.head(place, &mut head)?;
    believed(chunks, place, head.get(..len).unwrap_or_default(), room)
}

/// A chunk's header, if it can be believed.
fn believed<P: Copy>(chunks: &impl Chunks<P>, place: P, head: &[u8], room: u64) -> Result<Seen, Box<Finding>> {
    let bad = |what: &dyn std::fmt::Display| Box::new(damage(chunks, place, Kind::Chunk, what));
    let header = ChunkHeader::parse(head).map_err(|error| bad(&error))?;
    let cbytes = u64::from(header.cbytes);
    if cbytes > room {
        return Err(bad(&format_args!(
            "chunk: cbytes at byte 12: found {cbytes}, expected at most {room}, the room that it has"
        )));
    }
    Ok(Seen { header, room })
}

/// Reads a whole chunk, or says what is wrong with it; its data are not looked at.
pub(in crate::store) fn read<P: Copy>(chunks: &impl Chunks<P>, place: P, buf: &mut Vec<u8>) -> Result<(), Box<Finding>> {
    let unread =
        |error: io::Error| Box::new(damage(chunks, place, Kind::Data, &format_args!("cannot be read: {}", in_words(&error))));
    chunks.whole(place, buf)?.1.map_err(unread)
}

/// The chunks of a cframe.
pub(in crate::store) struct InFile {
    pub(in crate::store) file: Box<dyn BackendFile>,
    /// Where offsets count from.
    pub(in crate::store) base: u64,
    /// Where the chunks section ends, or the file does.
    pub(in crate::store) end: u64,
}

impl InFile {
    fn start(&self, offset: ChunkOffset) -> u64 {
        self.base.saturating_add(offset.bytes())
    }
}

impl Chunks<ChunkOffset> for InFile {
    fn head(&self, offset: ChunkOffset, head: &mut Head) -> Result<(usize, u64), Box<Finding>> {
        let start = self.start(offset);
        let room = self.end.saturating_sub(start);
        if room < head.len() as u64 {
            let what = format_args!("offset {} lies behind the chunks, which end at byte {}", offset.bytes(), self.end);
            return Err(Box::new(damage(self, offset, Kind::Offset, &what)));
        }
        match read_exact_at(&*self.file, head, start) {
            Ok(()) => Ok((head.len(), room)),
            Err(error) => Err(Box::new(damage(self, offset, Kind::Chunk, &format_args!("cannot be read: {}", in_words(&error))))),
        }
    }

    fn whole(&self, offset: ChunkOffset, buf: &mut Vec<u8>) -> Result<(Seen, io::Result<()>), Box<Finding>> {
        let seen = see(self, offset)?;
        buf.resize(seen.header.cbytes as usize, 0);
        Ok((seen, read_exact_at(&*self.file, buf, self.start(offset))))
    }

    fn name(&self, offset: ChunkOffset) -> String {
        format!("chunk at byte {}", self.start(offset))
    }

    fn exact(&self) -> bool {
        false
    }

    fn is_out_of_reach(&self) -> bool {
        self.file.is_out_of_reach()
    }

    fn expect(&self, entries: &[IndexEntry<ChunkOffset>]) {
        const LEN: u64 = ChunkHeader::LEN as u64;
        let starts = || entries.iter().filter_map(|entry| entry.stored()).map(|offset| self.start(offset));
        let (Some(first), Some(last)) = (starts().min(), starts().max()) else { return };
        if last - first <= CLOSE * entries.len() as u64 {
            self.file.will_need(first, last - first + LEN);
        } else {
            starts().for_each(|start| self.file.will_need(start, LEN));
        }
    }
}

/// The chunk files of an sframe.
pub(in crate::store) struct InDirectory(pub(in crate::store) Arc<dyn Backend>);

/// A chunk's file, with how many bytes of a header it has, and how many bytes.
type Opened = (Box<dyn BackendFile>, (usize, u64));

impl InDirectory {
    /// A chunk's file, and what `head` reads of it.
    fn opened(&self, id: ChunkId, whole: bool, head: &mut Head) -> Result<Opened, Box<Finding>> {
        let bad = |kind, what: &dyn std::fmt::Display| Box::new(damage(self, id, kind, what));
        let name = id.file_name();
        let name = OsStr::new(&name);
        let file = if whole { self.0.open_whole(name) } else { self.0.open(name, false) };
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => bad(Kind::Missing, &"is not there"),
            _ => bad(Kind::Chunk, &format_args!("cannot be opened: {}", in_words(&error))),
        })?;
        let unread = |error: io::Error| bad(Kind::Chunk, &format_args!("cannot be read: {}", in_words(&error)));
        let stat = file.stat().map_err(unread)?;
        let len = stat.len.min(head.len() as u64) as usize;
        read_exact_at(&*file, head.get_mut(..len).unwrap_or_default(), 0).map_err(unread)?;
        Ok((file, (len, stat.len)))
    }
}

impl Chunks<ChunkId> for InDirectory {
    fn head(&self, id: ChunkId, head: &mut Head) -> Result<(usize, u64), Box<Finding>> {
        Ok(self.opened(id, false, head)?.1)
    }

    fn whole(&self, id: ChunkId, buf: &mut Vec<u8>) -> Result<(Seen, io::Result<()>), Box<Finding>> {
        let mut head = [0; ChunkHeader::LEN];
        let (file, (len, room)) = self.opened(id, true, &mut head)?;
        let seen = believed(self, id, head.get(..len).unwrap_or_default(), room)?;
        buf.resize(seen.header.cbytes as usize, 0);
        Ok((seen, read_exact_at(&*file, buf, 0)))
    }

    fn name(&self, id: ChunkId) -> String {
        id.file_name()
    }

    fn exact(&self) -> bool {
        true
    }

    fn is_out_of_reach(&self) -> bool {
        self.0.out_of_reach(false).is_some()
    }
}

/// Looks at the stored chunks of an index in several threads, which take a `share` of entries at once, and after every `round` tells of
/// these entries in order: of stored ones with what was seen. Each thread has an `S` of its own.
///
/// `go_on` is asked before every round, with the number of entries that are done. Answers whether all were told of: not if the frame was
/// out of reach, of which rounds nothing is told.
pub(in crate::store) fn in_order<P: Copy + Send + Sync, S: Default, T: Send>(
    chunks: &impl Chunks<P>,
    entries: &[IndexEntry<P>],
    threads: usize,
    (round, share): (usize, usize),
    look: &(impl Fn(&mut S, Position, P) -> T + Sync),
    tell: &mut impl FnMut(Position, IndexEntry<P>, Option<T>) -> bool,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> bool {
    let mut done = 0;
    for batch in entries.chunks(round) {
        if !go_on(done) {
            return false;
        }
        // Files far away are waited for one by one: all threads are to have some.
        let share = if chunks.exact() { share.min(batch.len().div_ceil(threads.max(1) * 4)).max(1) } else { share };
        let shares = batch.chunks(share);
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::with_capacity(shares.len()));
        let work = || {
            let mut state = S::default();
            loop {
                let n = next.fetch_add(1, Relaxed);
                let Some(mine) = shares.clone().nth(n) else { return };
                chunks.expect(mine);
                let first = done + n * share;
                let seen = |(at, entry): (usize, &IndexEntry<P>)| {
                    let place = entry.stored().filter(|_| !chunks.is_out_of_reach());
                    place.map(|place| look(&mut state, Position(at as u64), place))
                };
                let mine: Vec<Option<T>> = (first..).zip(mine).map(seen).collect();
                results.lock().push((n, mine));
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.min(shares.len()) {
                // Whoever gets no thread does it with fewer.
                if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        if chunks.is_out_of_reach() {
            return false;
        }
        let mut results = results.into_inner();
        results.sort_unstable_by_key(|(n, _)| *n);
        let seen = results.into_iter().flat_map(|(_, share)| share);
        for ((position, entry), seen) in (done..).zip(batch).zip(seen) {
            if !tell(Position(position as u64), *entry, seen) {
                return false;
            }
        }
        done += batch.len();
    }
    true
}
