//! Opening an sframe: its index, and a look at every chunk file.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use log::warn;

use super::super::backend::{BackendFile, FileStat};
use super::super::disk_store::ReadFrame;
use super::super::error::Complain;
use super::super::error::in_words;
use super::super::frame::{FileBytes, Frame, Unread};
use super::super::source::Handle;
use super::super::source::{ATTEMPTS, KEPT_CHANGING, Source, touched_since};
use super::super::{FrameImage, Result, StoreError};
use super::files::{Files, FoundFile, key, name_of};
use super::folder::Folder;
use super::{DirectoryParts, DirectoryStates, INDEX, Sframe, header_of, index_name};
use crate::format::chunk::ChunkHeader;
use crate::format::plain::plain;
use crate::format::{ChunkId, IndexEntry};

/// Threads that look at chunk files.
const THREADS: usize = 4;
/// How many files are worth a thread more.
const FILES_PER_THREAD: usize = 512;
/// Of how many chunks the headers are read at most, evenly over all.
const HEADERS: usize = 1024;
/// How many bad chunk files are named.
const NAMED: usize = 8;

/// Reads what is in the directory; the keys are of generation `first`. With `whole`, it is an error that somebody changes it meanwhile.
pub(super) fn open(source: &Source, handle: &Handle, first: u32, whole: bool) -> Result<ReadFrame<Sframe>> {
    let dir = &handle.dir.clone().unwrap_or_else(|| source.backend());
    let mut attempt = 1;
    loop {
        let index = dir.open(index_name(), false).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => source.unsupported(format!("is a directory without {INDEX}, so not a sparse frame")),
            _ => source.at(INDEX).io("open")(error),
        })?;
        let index_stat = index.stat().map_err(source.at(INDEX).io("stat"))?;
        let folder = Folder::opened(Arc::clone(dir), handle.stat, index_stat);
        // Elsewhere the clock is another; what is changed from now on is likely to be younger than the index.
        let since = dir.clock().unwrap_or(index_stat.ctime);
        let looked_at = read(source, &folder, &*index, index_stat.len, since, first);
        // Whoever is writing may have been in the middle of it.
        let changed = index.stat().is_ok_and(|stat| touched_since(&index_stat, &stat));
        if changed && (looked_at.is_err() || whole) {
            if attempt < ATTEMPTS {
                attempt += 1;
                continue;
            }
            return Err(looked_at.err().unwrap_or_else(|| source.stale(KEPT_CHANGING)));
        }
        let (image, named, Measured { found, recent, allocated, .. }) = looked_at?;
        let files = Files::opened(named, &found, Some(since), recent.into_iter().collect(), first);
        let commits = DirectoryStates { stored: files.chunks.named_bytes() };
        let header_file = (Arc::from(index), index_stat);
        return Ok(ReadFrame { image, header_file, commits, parts: DirectoryParts { folder, files, allocated } });
    }
}

/// Opens the directory, locked if it is to be written to.
pub(super) fn open_dir(source: &Source, write: bool) -> Result<Handle> {
    let place = source.place();
    for _ in 0..ATTEMPTS {
        let dir = place.backend().open_dir(place.name()).map_err(source.io("open"))?;
        let itself = dir.itself().map_err(source.io("open"))?;
        let stat = itself.stat().map_err(source.io("stat"))?;
        if write {
            dir.check_writable().map_err(source.io("open for writing"))?;
            if !itself.try_lock().map_err(source.io("lock"))? {
                return Err(StoreError::busy(&source.called(), &*itself));
            }
        }
        // Whoever had the lock may have put another directory here between our open and our lock.
        if place.backend().stat(place.name()).map_err(source.io("stat"))?.same_file(&stat) {
            return Ok(Handle { file: itself, dir: Some(Arc::from(dir)), stat });
        }
    }
    Err(source.stale(KEPT_CHANGING))
}

/// Reads an index file.
pub(super) fn read_index(source: &Source, index: &dyn BackendFile, len: u64) -> Result<Frame<ChunkId>> {
    Frame::<ChunkId>::read(&FileBytes { file: index, len }).map_err(|unread| match unread {
        Unread::Io { action, source: error } => source.at(INDEX).io(action)(error),
        Unread::Format(error) => source.at(INDEX).format(error),
        Unread::OtherLayout => source.at(INDEX).unsupported("is a contiguous frame, not the index file of a sparse one"),
    })
}

fn read(
    source: &Source,
    folder: &Folder,
    index: &dyn BackendFile,
    len: u64,
    since: SystemTime,
    first: u32,
) -> Result<(FrameImage, Vec<u64>, Measured)> {
    let frame = read_index(source, index, len)?;
    let mut ids: Vec<u32> = frame.entries.iter().filter_map(|entry| entry.stored().map(|id| id.0)).collect();
    ids.sort_unstable();
    let named = ids.iter().copied().map(u64::from).collect();
    ids.dedup();
    let mut measured = measure(folder, &ids, since);
    if measured.bad > 0 && source.skip_damaged {
        warn!("{}: {}; the others can be read", plain(&source.called()), measured.complaint(ids.len()));
        measured.bad = 0;
    }
    if measured.bad > 0 {
        return Err(source.unsupported(measured.complaint(ids.len())));
    }
    let entries: Vec<IndexEntry<_>> = frame.entries.into_iter().map(|entry| entry.map(|id| key(id.0, first))).collect();
    Ok((FrameImage { header: frame.header, trailer: frame.trailer, entries: Arc::new(entries) }, named, measured))
}

/// What was found of the chunk files.
#[derive(Default)]
struct Measured {
    found: Vec<FoundFile>,
    /// Files that were changed since the look began.
    recent: Vec<(u32, FileStat)>,
    allocated: u64,
    /// How many files are missing or damaged, and what is wrong with the first of them.
    bad: usize,
    complaints: Vec<String>,
}

impl Measured {
    fn complaint(&self, of: usize) -> String {
        let mut words = format!("{} of {of} chunk files missing or damaged: {}", self.bad, self.complaints.join("; "));
        if self.bad > self.complaints.len() {
            words += &format!("; and {} more", self.bad - self.complaints.len());
        }
        words
    }
}

/// Looks at the files of these ids.
fn measure(folder: &Folder, ids: &[u32], since: SystemTime) -> Measured {
    let threads = (ids.len() / FILES_PER_THREAD).clamp(1, THREADS);
    let each = ids.len().div_ceil(threads);
    let step = ids.len().div_ceil(HEADERS).max(1);
    let part = |thread: usize| (thread * each).min(ids.len())..((thread + 1) * each).min(ids.len());
    let parts: Vec<Measured> = std::thread::scope(|scope| {
        let others: Vec<_> =
            (1..threads).map(|thread| scope.spawn(move || measure_part(folder, ids, part(thread), step, since))).collect();
        let first = measure_part(folder, ids, part(0), step, since);
        let others = others.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(first).chain(others).collect()
    });
    let mut all = Measured { found: Vec::with_capacity(ids.len()), ..Measured::default() };
    for part in parts {
        all.found.extend(part.found);
        all.recent.extend(part.recent);
        all.allocated += part.allocated;
        all.bad += part.bad;
        all.complaints.extend(part.complaints);
    }
    all.complaints.truncate(NAMED);
    all
}

#[expect(clippy::indexing_slicing, reason = "the part is one of these ids")]
fn measure_part(folder: &Folder, ids: &[u32], part: Range<usize>, step: usize, since: SystemTime) -> Measured {
    let mut out = Measured { found: Vec::with_capacity(part.len()), ..Measured::default() };
    for (at, id) in part.clone().zip(&ids[part]) {
        match look_at(folder, ChunkId(*id), at.is_multiple_of(step)) {
            Ok(stat) => {
                out.found.push(FoundFile { id: *id, len: stat.len as u32 });
                out.allocated += stat.allocated;
                if stat.mtime >= since || stat.ctime >= since {
                    out.recent.push((*id, stat));
                }
            }
            Err(complaint) => {
                // If that is no hindrance, it is as good as empty.
                out.found.push(FoundFile { id: *id, len: 0 });
                out.bad += 1;
                if out.complaints.len() < NAMED {
                    out.complaints.push(format!("{}.chunk {complaint}", ChunkId(*id)));
                }
            }
        }
    }
    out
}

/// A chunk file's attributes, or what is wrong with it.
fn look_at(folder: &Folder, id: ChunkId, header_too: bool) -> std::result::Result<FileStat, String> {
    let name = name_of(key(id.0, 0));
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "is missing".to_owned(),
        _ => format!("cannot be read: {}", in_words(&error)),
    };
    let mut stat = folder.stat(&name).map_err(unreadable)?;
    let mut file = None;
    if stat.is_link() || (stat.is_file() && header_too) {
        // A link is opened only where links are followed; where they are not, that is the error.
        let opened = folder.open(&name, false).map_err(unreadable)?;
        stat = opened.stat().map_err(unreadable)?;
        file = Some(opened);
    }
    if !stat.is_file() {
        return Err(format!("is {}", if stat.is_dir() { "a directory" } else { "no regular file" }));
    }
    folder.check(&stat, false).map_err(unreadable)?;
    match stat.len {
        0 => return Err("is empty".to_owned()),
        len if len < ChunkHeader::MIN_LEN as u64 => return Err(format!("has {len} bytes, fewer than a chunk's header")),
        len if len > i32::MAX as u64 => return Err(format!("has {len} bytes, more than a chunk can have")),
        _ => {}
    }
    if let Some(file) = file.filter(|_| header_too) {
        header_of(&*file, stat.len).map_err(unreadable)?.map_err(|error| format!("is no chunk ({error})"))?;
    }
    Ok(stat)
}
