//! Looking at every part of a frame, and saying all that is wrong with it, where opening a frame stops at the first thing.
//!
//! Nothing is written and no lock is taken: a frame that another process is changing may show findings that are gone the next
//! time. What is found is told as it is found, in the order of the frame: its parts, then its chunks by position, then what
//! lies between them.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

use self::parts::Parts;
use super::backend::FileBackend;
use super::{Result, StoreError};
use crate::format::chunk::{ChunkHeader, Decoder};
use crate::format::header::FrameHeader;
use crate::format::index::Place;
use crate::format::{ChunkOffset, Fit, IndexEntry, Layout, Position};

mod directory;
mod parts;
mod room;
#[cfg(test)]
mod tests;

/// Chunks that are looked at before their findings are told, and the most that a thread takes at once.
const ROUND: usize = 16 * 1024;
const SHARE: usize = 32;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is lost, and the library reads the frame as it should: unused room, files that belong to no chunk.
    Note,
    /// Something does not read, or reads as something else than was written.
    Damage,
}

/// What a finding is about: stable names for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The frame header.
    Header,
    /// frame_len against the file.
    FrameLen,
    /// The index chunk.
    Index,
    /// The trailer.
    Trailer,
    /// A vlmetalayer's content.
    Vlmetalayer,
    /// An index entry that points nowhere.
    Offset,
    /// A chunk's header, or its length against the room it has.
    Chunk,
    /// A chunk's data.
    Data,
    /// A chunk's uncompressed size against the frame's.
    Size,
    /// Chunks that share bytes.
    Overlap,
    /// A chunk file that is not there.
    Missing,
    /// A chunk file that no index entry names.
    Orphan,
    /// Another file in an sframe's directory.
    Surplus,
    /// Room in a cframe that nothing uses.
    Hole,
}

impl Kind {
    /// The name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Header => "header",
            Kind::FrameLen => "frame_len",
            Kind::Index => "index",
            Kind::Trailer => "trailer",
            Kind::Vlmetalayer => "vlmetalayer",
            Kind::Offset => "offset",
            Kind::Chunk => "chunk",
            Kind::Data => "data",
            Kind::Size => "size",
            Kind::Overlap => "overlap",
            Kind::Missing => "missing",
            Kind::Orphan => "orphan",
            Kind::Surplus => "surplus",
            Kind::Hole => "hole",
        }
    }
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub kind: Kind,
    /// The chunk, where it is about one.
    pub position: Option<Position>,
    /// What is wrong, with its place, in words.
    pub what: String,
}

impl Finding {
    fn damage(kind: Kind, what: impl Into<String>) -> Self {
        Finding { severity: Severity::Damage, kind, position: None, what: what.into() }
    }
    fn note(kind: Kind, what: impl Into<String>) -> Self {
        Finding { severity: Severity::Note, kind, position: None, what: what.into() }
    }
    fn at(self, position: usize) -> Self {
        Finding { position: Some(Position(position as u64)), ..self }
    }
}

/// What was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// The frame's layout.
    pub layout: Layout,
    /// Entries of the index; `None` where it cannot be read, and so no chunk was looked at.
    pub chunks: Option<u64>,
    /// Chunks that are stored, and not only a special entry of the index.
    pub stored: u64,
    /// Bytes of the stored chunks.
    pub bytes: u64,
    /// Whether every chunk was decoded.
    pub deep: bool,
}

/// How to look.
#[derive(Debug, Clone, Copy)]
pub struct Depth {
    /// Decode every chunk, and not only read its header.
    pub deep: bool,
    /// Threads that look at chunks, at least 1.
    pub threads: usize,
}

/// Checks a frame of either layout. `found` gets every finding; `progress` is told how many chunks of how many are done, and
/// answers whether to go on.
///
/// # Errors
/// What cannot be read at all, because the system refuses or because there is no frame header.
pub fn check(
    path: &Path,
    depth: Depth,
    found: &mut dyn FnMut(Finding),
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Checked> {
    let failed = |action| move |source| StoreError::Io { path: path.to_owned(), action, source };
    let meta = std::fs::metadata(path).map_err(failed("open"))?;
    if meta.is_dir() {
        let dir = FileBackend::open(path).map_err(failed("open"))?;
        return directory::check(path, &dir, depth, found, progress);
    }
    let file = File::open(path).map_err(failed("open"))?;
    if !meta.is_file() {
        let reason = "is no regular file; expected a Blosc2 frame".to_owned();
        return Err(StoreError::Unsupported { path: path.to_owned(), reason });
    }
    let parts = Parts::<ChunkOffset>::read(path, &file, meta.len(), found)?;
    parts.check_metadata(depth.deep, found);
    let Some(entries) = &parts.entries else { return Ok(parts.checked(0, 0, depth.deep)) };
    let base = u64::from(parts.header.header_len());
    let mut extents = room::Extents::new(base..parts.chunks_end);
    let reader = room::InFile { file: &file, base, end: parts.chunks_end };
    let sum = walk(&parts.header, entries, &reader, depth, found, progress, &mut |position, offset, cbytes| {
        extents.add(base.saturating_add(offset.0), cbytes, position);
    });
    extents.report(found);
    Ok(parts.checked(sum.stored, sum.bytes, depth.deep))
}

/// Where stored chunks are read from.
trait Chunks<P>: Sync {
    /// Reads the first bytes of a chunk, at most a header's, and says how much room it has; or says what is wrong.
    fn head(&self, place: P) -> std::result::Result<(Vec<u8>, u64), Box<Finding>>;
    /// Reads a whole chunk, known to lie in its room.
    fn whole(&self, place: P, cbytes: u32, buf: &mut Vec<u8>) -> io::Result<()>;
    /// How a message calls the place.
    fn name(&self, place: P) -> String;
    /// Whether the room must be exactly the chunk's.
    fn exact(&self) -> bool;
}

/// What all chunks come to.
#[derive(Default, Clone, Copy)]
struct Sum {
    stored: u64,
    bytes: u64,
    nbytes: u64,
    complete: bool,
}

/// Looks at every chunk of an index, in several threads, a round at a time; `sound` learns the places of those whose headers
/// can be believed.
fn walk<P: Place + Send + Sync>(
    header: &FrameHeader,
    entries: &[IndexEntry<P>],
    chunks: &dyn Chunks<P>,
    depth: Depth,
    found: &mut dyn FnMut(Finding),
    progress: &mut dyn FnMut(usize, usize) -> bool,
    sound: &mut dyn FnMut(usize, P, u32),
) -> Sum {
    let mut sum = Sum { complete: true, ..Sum::default() };
    let count = entries.len() as u64;
    let stop = AtomicBool::new(false);
    // A deep look takes long, and whoever watches wants to see it move.
    let round = if depth.deep { SHARE * depth.threads.max(1) * 4 } else { ROUND };
    let mut done = 0;
    for batch in entries.chunks(round) {
        if !progress(done, entries.len()) {
            stop.store(true, Relaxed);
            break;
        }
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::new());
        let look = || {
            let mut bench = Bench::default();
            loop {
                let from = next.fetch_add(SHARE, Relaxed);
                let Some(share) = batch.get(from..batch.len().min(from.saturating_add(SHARE))).filter(|share| !share.is_empty())
                else {
                    return;
                };
                let mut mine = Vec::with_capacity(share.len());
                for (position, entry) in (done + from..).zip(share) {
                    let IndexEntry::Stored(place) = *entry else { continue };
                    let fit = Fit::at(position as u64, count, header.chunksize());
                    let seen = one(chunks, place, fit, depth.deep.then_some(&mut bench));
                    mine.push((position, place, seen));
                }
                results.lock().append(&mut mine);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..depth.threads.min(batch.len().div_ceil(SHARE)) {
                scope.spawn(look);
            }
            look();
        });
        let mut results = results.into_inner();
        results.sort_unstable_by_key(|(position, ..)| *position);
        for (position, place, seen) in results {
            sum.stored += 1;
            if let Some(chunk) = seen.header {
                sum.bytes = sum.bytes.saturating_add(u64::from(chunk.cbytes));
                sum.nbytes = sum.nbytes.saturating_add(u64::from(chunk.nbytes));
                sound(position, place, chunk.cbytes);
            } else {
                sum.complete = false;
            }
            for finding in seen.findings {
                found(finding.at(position));
            }
        }
        done += batch.len();
    }
    let stopped = stop.load(Relaxed);
    if !stopped {
        progress(done, entries.len());
    }
    // Special entries of a frame whose chunks vary in size have no size of their own.
    let all_stored = sum.stored == count;
    if header.chunksize() == 0 && sum.complete && !stopped && all_stored && sum.nbytes != header.nbytes() {
        let what =
            format!("header: nbytes at byte 30: found {}, expected {}, the sum of the chunks", header.nbytes(), sum.nbytes);
        found(Finding::damage(Kind::Size, what));
    }
    sum
}

/// What a thread decodes with.
#[derive(Default)]
struct Bench {
    decoder: Decoder,
    bytes: Vec<u8>,
}

/// What one chunk was found to be.
struct Seen {
    /// Its header, where that can be believed.
    header: Option<ChunkHeader>,
    findings: Vec<Finding>,
}

fn one<P: Place>(chunks: &dyn Chunks<P>, place: P, fit: Fit, deep: Option<&mut Bench>) -> Seen {
    let name = chunks.name(place);
    let bad = |kind, what: &dyn std::fmt::Display| Finding::damage(kind, format!("{name}: {what}"));
    let lost = |finding| Seen { header: None, findings: vec![finding] };
    let (head, room) = match chunks.head(place) {
        Ok(head) => head,
        Err(finding) => return lost(*finding),
    };
    let header = match ChunkHeader::parse(&head) {
        Ok(header) => header,
        Err(error) => return lost(bad(Kind::Chunk, &error)),
    };
    let cbytes = u64::from(header.cbytes);
    if cbytes > room {
        let what = format!("chunk: cbytes at byte 12: found {cbytes}, expected at most {room}, the room that it has");
        return lost(bad(Kind::Chunk, &what));
    }
    let mut findings = Vec::new();
    if chunks.exact() && cbytes < room {
        findings.push(Finding::note(Kind::Hole, format!("{name}: {} bytes behind the chunk", room - cbytes)));
    }
    if let Err(error) = fit.check(header.nbytes) {
        findings.push(bad(Kind::Size, &error));
    }
    if let Some(Bench { decoder, bytes }) = deep {
        match chunks.whole(place, header.cbytes, bytes) {
            Err(error) => findings.push(bad(Kind::Data, &format!("cannot be read: {error}"))),
            Ok(()) => {
                if let Err(error) = decoder.verify(bytes) {
                    findings.push(bad(Kind::Data, &error));
                }
            }
        }
    }
    Seen { header: Some(header), findings }
}
