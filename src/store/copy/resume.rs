//! A copy of a frame that is far away, which the next process goes on with after this one has ended.
//!
//! The unfinished copy stays beside its target, under a name that is made of the target's: `.b2fuse-X.tmp`, as other unfinished frames have.
//! What is in it is recorded with the state of the user of this process: length and checksum of each chunk, in order. Chunks get their
//! places in that order too, so the next process has each where this one had it, and fetches it only if the bytes there have another
//! checksum. What was written and not on disk when a machine lost its power is found in that way.
//!
//! The record says of which state of which source it is. With any other, nothing of it counts.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use log::debug;

use super::WHOLE;
use crate::format::chunk::ChunkHeader;
use crate::store::checksum::{self, Digest, checksum};
use crate::store::create::TEMP_PREFIX;
use crate::store::journal::{self, Journal};
use crate::store::source::Unfinished;
use crate::store::{ChunkKey, FrameStore, Location, ReadAt, ReadGuard, Result, StoreError, StoredChunk, in_words};

/// The least room of a chunk in a contiguous frame, in bytes.
const LEAST: u64 = 32;

/// What an earlier process has copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Copied {
    len: u32,
    sum: u64,
}

/// A copy that can be gone on with.
pub struct Resume {
    journal: Journal,
    copied: Vec<Copied>,
    /// Chunks that this process has staged.
    staged: usize,
    /// Of them, those that were there.
    found: u64,
    unfinished: Arc<Unfinished>,
    is_over: bool,
}

impl Resume {
    /// Looks for what there is of a copy to that place, of at most so many chunks of what `source` says, in one line that is another for
    /// every other state. `None` if another process is making that copy, or if nothing can be recorded: then nothing is left of the copy
    /// if it ends early. `within` is a directory for records, instead of `$XDG_STATE_HOME/b2fuse/downloads/`, root's `/var/lib/...`.
    pub fn open(target: &Location, source: &str, most: usize, within: Option<&Path>) -> Option<Self> {
        let opened = || {
            let dir = journal::directory(within, "downloads")?;
            let of = target.real_path();
            let name = OsString::from(format!("{TEMP_PREFIX}{:016x}.tmp", checksum(of.as_os_str().as_bytes())));
            let (of, source) = (format!("{of:?}"), format!("source {source:?}"));
            let (mut is_same, mut copied) = (false, Vec::new());
            let mut take = |line: &str| match is_same {
                false => {
                    is_same = line == source;
                    is_same
                }
                true => parse(line).filter(|_| copied.len() < most).map(|chunk| copied.push(chunk)).is_some(),
            };
            let Some(mut journal) = Journal::open(dir, &of, &mut take)? else { return Ok(None) };
            if !is_same {
                journal.clear(&of)?;
                journal.add(&source)?;
            }
            let bytes = copied.iter().map(|chunk| u64::from(chunk.len).max(LEAST)).sum();
            let unfinished = Unfinished { name, chunks: copied.len() as u64, bytes, leave: AtomicBool::new(false) };
            let unfinished = Arc::new(unfinished);
            io::Result::Ok(Some(Resume { journal, copied, staged: 0, found: 0, unfinished, is_over: false }))
        };
        opened().unwrap_or_else(|error| {
            debug!("{}: what is copied is not recorded: {}", target.path().display(), in_words(&error));
            None
        })
    }

    /// For [`crate::store::NewFrame`].
    pub fn unfinished(&self) -> Arc<Unfinished> {
        Arc::clone(&self.unfinished)
    }

    /// Bytes that need no room any more.
    pub fn bytes(&self) -> u64 {
        self.copied.iter().map(|chunk| u64::from(chunk.len)).sum()
    }

    /// Chunks that were there, and were not fetched.
    pub fn found(&self) -> u64 {
        self.found
    }

    /// How many chunks are there, if they are as they were written.
    pub fn count(&self) -> usize {
        self.copied.len()
    }

    /// Stages the next chunk, of that length if it is known. Answers its length too, and its beginning, where that was fetched.
    pub(super) fn stage(
        &mut self,
        source: &dyn FrameStore,
        guard: &ReadGuard<'_>,
        key: ChunkKey,
        len: Option<u32>,
        target: &dyn FrameStore,
    ) -> Result<(ChunkKey, u32, Vec<u8>)> {
        let number = self.staged;
        self.staged += 1;
        let copied = self.copied.get(number).copied().filter(|copied| len.is_none_or(|len| len == copied.len));
        let len = match (copied, len) {
            (Some(copied), _) => copied.len,
            (None, Some(len)) => len,
            (None, None) => source.chunk_header(guard, key)?.cbytes,
        };
        let chunk = Chunk { source, guard, key, len, known: copied.map(|copied| copied.sum), read: RefCell::default() };
        let staged = target.stage(&chunk).map_err(|error| chunk.error().unwrap_or(error))?;
        match (chunk.sum(), copied) {
            (None, Some(_)) => self.found += 1,
            (Some(sum), Some(copied)) if sum == copied.sum => {}
            (Some(sum), None) if number >= self.copied.len() => self.note(Copied { len, sum }),
            // The source is not what it was.
            _ => self.end(),
        }
        let mut bytes = chunk.read.into_inner().bytes;
        bytes.truncate(ChunkHeader::LEN);
        Ok((staged, len, bytes))
    }

    fn note(&mut self, Copied { len, sum }: Copied) {
        if !self.is_over
            && let Err(error) = self.journal.add(&format!("{len} {sum:x}"))
        {
            debug!("what is copied is no longer recorded: {}", in_words(&error));
            self.is_over = true;
        }
    }

    /// If no frame is made of the copy, it stays where it is. Answers whether there will be anything to go on with.
    pub fn leave(&self) -> bool {
        let leaves = !self.journal.is_removed() && (self.staged > 0 || self.count() > 0);
        self.unfinished.leave.store(leaves, Relaxed);
        leaves
    }

    /// If no frame is made of the copy, it goes.
    pub fn abandon(&self) {
        self.unfinished.leave.store(false, Relaxed);
    }

    /// There is nothing to go on with.
    pub fn end(&mut self) {
        self.is_over = true;
        self.journal.remove();
    }
}

impl Drop for Resume {
    fn drop(&mut self) {
        if !self.unfinished.leave.load(Relaxed) && !self.journal.is_removed() {
            self.journal.remove();
        }
    }
}

fn parse(line: &str) -> Option<Copied> {
    let (len, sum) = line.split_once(' ')?;
    Some(Copied { len: len.parse().ok()?, sum: u64::from_str_radix(sum, 16).ok()? })
}

/// A chunk that is fetched when its bytes are asked for.
struct Chunk<'a> {
    source: &'a dyn FrameStore,
    guard: &'a ReadGuard<'a>,
    key: ChunkKey,
    len: u32,
    known: Option<u64>,
    read: RefCell<Read>,
}

/// What was asked for so far, from the beginning on.
struct Read {
    bytes: Vec<u8>,
    digest: Digest,
    done: u64,
    error: Option<StoreError>,
}

impl Default for Read {
    fn default() -> Self {
        Read { bytes: Vec::new(), digest: checksum::running(), done: 0, error: None }
    }
}

impl Chunk<'_> {
    /// The checksum of what was read, if that was all of it.
    fn sum(&self) -> Option<u64> {
        let read = self.read.borrow();
        (read.done == u64::from(self.len)).then(|| read.digest.clone().finalize())
    }

    fn error(&self) -> Option<StoreError> {
        self.read.borrow_mut().error.take()
    }

    fn fetch(&self, buf: &mut [u8], offset: u64, read: &mut Read) -> io::Result<()> {
        let Chunk { source, guard, key, len, .. } = *self;
        if len > WHOLE {
            return StoredChunk { store: source, key, len, to_save: false }.read_exact_at(buf, offset);
        }
        if read.bytes.is_empty() {
            let mut bytes = vec![0; len as usize];
            let count = source.read_chunk(guard, key, len, 0, &mut bytes).map_err(|error| {
                let told = io::Error::from_raw_os_error(error.errno());
                read.error = Some(error);
                told
            })?;
            if count != bytes.len() {
                return Err(io::Error::other(format!("a chunk ends after {count} bytes; expected {len}")));
            }
            read.bytes = bytes;
        }
        let from = usize::try_from(offset).ok().and_then(|offset| read.bytes.get(offset..)?.get(..buf.len()));
        buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl ReadAt for Chunk<'_> {
    fn len(&self) -> u64 {
        self.len.into()
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let read = &mut *self.read.borrow_mut();
        self.fetch(buf, offset, read)?;
        if offset == read.done {
            read.digest.update(buf);
            read.done += buf.len() as u64;
        }
        Ok(())
    }
    fn known_sum(&self) -> Option<u64> {
        self.known
    }
}
