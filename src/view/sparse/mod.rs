//! A frame as the directory that C-Blosc2 would have written: the sparse view. Chunk files are named by the chunk's position when the
//! frame was opened, or, where the store has a file for each chunk as well, by the id that it has there.
//!
//! - [`state`]: files, what they hold, and the index;
//! - [`table`]: from ids to stored chunks;
//! - `write`: drafts, and what a close makes of them; `rename`: names that move;
//! - `xattr`: extended attributes;
//! - `times`: since when chunk files have their content;
//! - `settle`: chunk files that take their places by position; `publish`: when a state goes to the store.
//!
//! What a write means is in three steps. Bytes are written to a draft, which readers see. A close makes the draft a chunk that
//! the store has staged, or an index that is adopted, or refuses it. When index and chunks agree, the whole is published: handed
//! to the store's commit.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use log::debug;
use parking_lot::{Mutex, RwLock};

use self::state::{Numbering, Source, State};
use self::write::Unfinished;
use super::follow::{Follow, Following};
use super::meta::Meta;
use super::names::Name;
use super::pacer::{Pacing, Publish};
use super::xattr::{find, names};
use super::{
    Attr, Creation, DirEntry, Handle, Ino, Invals, Kind, Left, OpenMode, ROOT, RenameMode, Result, SetAttr, SetMode, View,
    ViewError,
};
use crate::format::chunk::ChunkHeader;
use crate::format::index_file::IndexFile;
use crate::format::{self, ChunkId, Fit, IndexEntry, Layout};
use crate::store::{ChunkKey, Draft, FrameImage, FrameStore, ReadAt, ReadGuard, StoreError, Watch};

mod adopt;
mod publish;
mod rename;
mod settle;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod times;
mod write;
mod xattr;

/// Frames of no more chunks have every chunk header read at mount: a damaged one is found then, and the sum of sizes that the
/// index file's header gives is exact. For larger ones the cframe's own cbytes, holes included, stands in for it.
const CHECKED_CHUNKS: usize = 1024;
/// How long nothing may change before files written by hand take their places.
const SETTLE_AFTER: Duration = Duration::from_secs(1);
/// Names that are looked up, and nothing read, by those who do not want to read.
const ONLY_LOOKING: u32 = 8;
/// The most of a chunk that is read ahead of its header, in bytes.
const LIKELY_AT_MOST: u64 = 512 << 10;
/// As much of a chunk file is read at once, in bytes: most chunks are no larger.
const READ_AHEAD: u32 = 1 << 20;

/// What a file held, by its name and numbers that no other content of that name has.
type Content = (String, (u64, u64));

/// The sparse view of a frame.
pub struct SparseView {
    store: Arc<dyn FrameStore>,
    read_only: bool,
    following: Following,
    /// One commit at a time. Taken before `state`, which is not held while the store commits.
    pacer: Pacing,
    /// Names looked up since a chunk was read.
    lookups: AtomicU32,
    /// What is saved beside SOURCE, and where.
    saved: Mutex<HashMap<Content, PathBuf>>,
    /// Where times of chunk files are kept from mount to mount, if so wanted.
    keeper: Option<times::Keeper>,
    /// Held for look-ups and changes in memory, and never across reads of chunks or commits.
    state: RwLock<State>,
}

impl SparseView {
    /// Shows a store's frame; one without a frame yet (`--create`) as an empty directory.
    ///
    /// # Errors
    /// A chunk whose header lies, in a frame small enough to look at all.
    pub fn new(store: Arc<dyn FrameStore>, read_only: bool) -> Result<Self> {
        let state = Self::load(&*store, 0)?;
        Ok(SparseView {
            store,
            read_only,
            following: Following::default(),
            pacer: Pacing::new(),
            lookups: AtomicU32::new(0),
            saved: Mutex::default(),
            keeper: None,
            state: RwLock::new(state),
        })
    }

    fn load(store: &dyn FrameStore, version: u64) -> Result<State> {
        let stat = store.source_stat()?;
        let Some(image) = store.committed() else { return State::new(None, &[], stat, version) };
        let FrameImage { header, trailer, entries } = &*image;
        let mut header = header.clone();
        let numbering = match header.layout() {
            Layout::Contiguous => Numbering::ByPosition,
            Layout::Sparse => Numbering::ById,
        };
        header.set_layout(Layout::Sparse);
        let mut lens = Vec::new();
        if entries.len() <= CHECKED_CHUNKS {
            let guard = store.enter();
            for entry in entries.iter() {
                let len = match entry {
                    IndexEntry::Stored(key) => {
                        let chunk = store.chunk_header(&guard, *key)?;
                        // Not "exactly": older libraries leave a short chunk where another one is appended behind it.
                        Fit::AtMost(header.chunksize()).check(chunk.nbytes).map_err(|source| {
                            let position = lens.len();
                            let expected = format!("{} (chunk {position})", source.expected);
                            StoreError::Format { path: store.path().into(), source: format::Error { expected, ..source } }
                        })?;
                        chunk.cbytes
                    }
                    IndexEntry::Special(_) => 0,
                };
                lens.push(len);
            }
            header.set_cbytes(lens.iter().map(|len| u64::from(*len)).sum());
        }
        let id_at = |position: u32, key: ChunkKey| store.file_id(key).unwrap_or(ChunkId(position));
        let named = (0u32..).zip(entries.iter()).map(|(position, entry)| entry.map(|key| id_at(position, key)));
        let index = IndexFile { header, trailer: trailer.clone(), entries: Arc::new(named.collect()) };
        let state = State::new(Some((index, numbering)), entries, stat, version)?;
        let ids = state.adopted.iter().flat_map(|index| index.entries.iter());
        for (entry, len) in ids.zip(lens) {
            if let IndexEntry::Stored(id) = entry {
                state.table.get(*id).learn_len(len);
            }
        }
        Ok(state)
    }

    /// The length of a stored chunk, read from its header the first time. `guard` is older than the look-up of `key`.
    fn chunk_len(&self, guard: &ReadGuard<'_>, ino: Ino, key: ChunkKey, known: Option<u32>) -> Result<u32> {
        match known {
            Some(len) => Ok(len),
            None => {
                let len = self.store.chunk_header(guard, key)?.cbytes;
                self.state.read().learn_len(ino, key, len);
                Ok(len)
            }
        }
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        if ino == ROOT {
            let state = self.state.read();
            return Ok(state.root.attr(ROOT, Kind::Directory, 4096));
        }
        self.of_one_version(|guard| {
            let (source, mut meta, nlink) = {
                let state = self.state.read();
                let node = state.nodes.get(&ino);
                let nlink = if node.is_some_and(|node| node.name.is_none()) { 0 } else { 1 };
                (state.source(ino)?, node.map_or_else(|| state.meta_at_mount(ino), |node| node.meta), nlink)
            };
            let size = match source {
                Source::Empty => 0,
                Source::Bytes(bytes) => bytes.len() as u64,
                Source::Chunk(key, len) => u64::from(self.chunk_len(guard, ino, key, len)?),
                Source::Writing(writing) => {
                    let inner = writing.inner.read_recursive();
                    meta.mtime = inner.mtime;
                    meta.ctime = inner.mtime.max(meta.ctime);
                    inner.bytes.len()
                }
            };
            Ok(Attr { nlink, ..meta.attr(ino, Kind::File, size) })
        })
    }

    /// Whoever looks up a name opens it next, as a rule: a chunk whose header has to be read from the disk for its length comes
    /// with it, or the disk would be waited for twice. Not so for those who only look.
    fn expect_chunk(&self, ino: Ino) {
        if self.lookups.load(Relaxed) >= ONLY_LOOKING {
            return;
        }
        self.lookups.fetch_add(1, Relaxed);
        let state = self.state.read();
        let (Ok(Source::Chunk(key, None)), Some(index)) = (state.source(ino), &state.adopted) else { return };
        // Half as much again as the average, but not more than an incompressible one.
        let average = index.header.cbytes() / (index.entries.len() as u64).max(1);
        let most = match u64::from(index.header.chunksize()) {
            0 => LIKELY_AT_MOST,
            chunksize => (ChunkHeader::LEN as u64 + chunksize).min(LIKELY_AT_MOST),
        } as u32;
        let likely = (average + average / 2).clamp(1, most.into()) as u32;
        let position = match state.name_of(ino) {
            Ok(Some(Name::Chunk(id))) => state.table.get(id).position(),
            _ => None,
        };
        let behind = position.and_then(|position| index.entries.get(position as usize + 1)).and_then(|entry| entry.stored());
        let next = behind.and_then(|id| state.table.get(id).key());
        drop(state);
        self.store.expect_unknown(key, likely..=most, next);
    }

    fn writable(&self) -> Result<()> {
        self.check_writable()
    }

    fn empty_draft(&self) -> Draft {
        Draft::new(self.store.drafts())
    }
}

fn read_slice(bytes: &[u8], offset: u64, buf: &mut [u8]) -> usize {
    let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
    let count = rest.len().min(buf.len());
    buf[..count].copy_from_slice(&rest[..count]);
    count
}

impl View for SparseView {
    fn read_only(&self) -> bool {
        self.read_only
    }

    fn lookup(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        let name = State::parse_name(parent, name)?.ok_or(ViewError::NotFound)?;
        let ino = self.state.read().find(&name).ok_or(ViewError::NotFound)?;
        self.expect_chunk(ino);
        self.attr(ino)
    }

    fn forget(&self, ino: Ino) {
        if self.state.read().outlived(ino) {
            self.state.write().forget(ino, &*self.store);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.attr(ino)
    }

    fn setattr(&self, ino: Ino, handle: Option<Handle>, set: SetAttr, invals: &mut Invals) -> Result<Attr> {
        self.writable()?;
        if let Some(size) = set.size {
            if ino == ROOT {
                return Err(ViewError::IsDirectory);
            }
            self.resize(ino, handle, size, invals)?;
        }
        {
            let mut state = self.state.write();
            let (meta, writing) = if ino == ROOT {
                (&mut state.root, None)
            } else {
                let node = state.node(ino)?;
                (&mut node.meta, node.writing.clone())
            };
            let now = meta.mtime;
            meta.change(&set);
            if let Some(mtime) = set.mtime
                && let Some(writing) = writing
            {
                // It is that of what is being written, which may be refused: the old bytes keep theirs.
                if !writing.refused.load(Relaxed) {
                    meta.mtime = now;
                }
                drop(state);
                writing.inner.write().mtime = mtime;
            }
        }
        self.attr(ino)
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Handle> {
        if ino == ROOT {
            return Err(ViewError::IsDirectory);
        }
        if mode.write || mode.truncate {
            self.writable()?;
        }
        self.glance_before(true)?;
        let mut state = self.state.write();
        state.name_of(ino)?;
        let mut serial = 0;
        if mode.write {
            state.node(ino)?;
        }
        if mode.truncate {
            serial = state.begin(ino, self.empty_draft())?;
            state.touch();
        }
        Ok(state.open(ino, mode.write, serial))
    }

    fn create(&self, parent: Ino, name: &OsStr, creation: Creation, mode: OpenMode) -> Result<(Attr, Handle)> {
        self.writable()?;
        let name = State::parse_name(parent, name)?.ok_or(ViewError::NotPermitted)?;
        let existing = self.state.read().find(&name);
        if let Some(ino) = existing {
            if creation.exclusive {
                return Err(ViewError::Exists);
            }
            let handle = self.open(ino, mode)?;
            return Ok((self.attr(ino)?, handle));
        }
        let (ino, handle) = {
            let mut state = self.state.write();
            if state.find(&name).is_some() {
                return Err(ViewError::Exists);
            }
            let ino = state.new_file(name, Meta::from(creation));
            let serial = state.begin(ino, self.empty_draft())?;
            state.touch();
            (ino, state.open(ino, mode.write, serial))
        };
        Ok((self.attr(ino)?, handle))
    }

    fn read(&self, ino: Ino, _handle: Option<Handle>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if ino == ROOT {
            return Err(ViewError::IsDirectory);
        }
        self.glance_before(false)?;
        self.of_one_version(|guard| {
            let source = self.state.read().source(ino)?;
            match source {
                Source::Empty => Ok(0),
                Source::Bytes(bytes) => Ok(read_slice(&bytes, offset, buf)),
                Source::Writing(writing) => {
                    writing.inner.read_recursive().bytes.read_at(buf, offset).map_err(|error| self.draft_error("read", error))
                }
                Source::Chunk(key, len) => {
                    if self.lookups.load(Relaxed) > 0 {
                        self.lookups.store(0, Relaxed);
                    }
                    let len = self.chunk_len(guard, ino, key, len)?;
                    Ok(self.store.read_chunk(guard, key, len, offset, buf)?)
                }
            }
        })
    }

    fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<()> {
        self.following.check()?;
        self.write_handle(handle, offset, data)
    }

    fn flush(&self, handle: Handle, invals: &mut Invals) -> Result<()> {
        self.following.check()?;
        self.close_handle(handle, invals)?;
        self.publish_soon()
    }

    fn release(&self, handle: Handle, invals: &mut Invals) {
        // Nearly always a flush came before and there is nothing left: not after writes through a mapping.
        let left = self.close_handle(handle, invals).and_then(|()| self.publish_soon());
        if let Err(error) = left {
            debug!("{}: at the last close: {error}", self.store.path().display());
        }
        self.state.write().close(handle, &*self.store);
    }

    fn fsync(&self, ino: Ino, invals: &mut Invals) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.following.check()?;
        if ino != ROOT {
            match self.close_file(ino, Unfinished::Leave, invals) {
                Ok(()) | Err(ViewError::Gone) => {}
                Err(error) => return Err(error),
            }
        }
        self.store_again(invals)?;
        self.settle(invals)?;
        self.publish()?;
        Ok(self.store.sync()?)
    }

    fn unlink(&self, parent: Ino, name: &OsStr, _invals: &mut Invals) -> Result<()> {
        self.writable()?;
        let name = State::parse_name(parent, name)?.ok_or(ViewError::NotFound)?;
        self.state.write().unlink(&name, true, &*self.store).map(drop).ok_or(ViewError::NotFound)
    }

    fn rename(&self, from: (Ino, &OsStr), to: (Ino, &OsStr), mode: RenameMode, invals: &mut Invals) -> Result<()> {
        self.writable()?;
        let source = State::parse_name(from.0, from.1)?.ok_or(ViewError::NotFound)?;
        let target = State::parse_name(to.0, to.1)?.ok_or(ViewError::NotPermitted)?;
        if mode == RenameMode::Exchange {
            return Err(ViewError::Invalid);
        }
        self.rename_file(source, target, mode, invals)?;
        self.publish_soon()
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        self.attributes(ino, |attributes| names(attributes))
    }

    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>> {
        self.attributes(ino, |attributes| find(attributes, name.as_bytes()))?
    }

    fn set_xattr(&self, ino: Ino, name: &OsStr, value: Option<&[u8]>, mode: SetMode, invals: &mut Invals) -> Result<()> {
        self.set_attribute(ino, name.as_bytes(), value, mode, invals)
    }

    fn readdir(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        if ino != ROOT {
            return Err(ViewError::NotDirectory);
        }
        // A piece at a time, so that `emit` may ask the view for attributes.
        const PIECE: usize = 128;
        let mut cookie = cookie;
        loop {
            let piece: Vec<_> = self.state.read().list(cookie).take(PIECE).collect();
            for (next, ino, name) in &piece {
                if !emit(DirEntry { ino: *ino, kind: Kind::File, name, next: *next }) {
                    return Ok(());
                }
                cookie = *next;
            }
            if piece.len() < PIECE {
                return Ok(());
            }
        }
    }

    fn next_files(&self, ino: Ino, count: usize) -> Vec<(Ino, u64)> {
        let state = self.state.read();
        let Ok(Some(Name::Chunk(id))) = state.name_of(ino) else { return Vec::new() };
        let (Some(position), Some(index)) = (state.table.get(id).position(), &state.adopted) else { return Vec::new() };
        let after = index.entries.get(position as usize + 1..).unwrap_or_default();
        let files = state::stored(after).take(count).map_while(|id| {
            let slot = state.table.get(id);
            slot.key()?;
            Some((state.chunk_ino(id), u64::from(slot.len()?)))
        });
        files.collect()
    }

    fn expect(&self, inos: &[Ino]) {
        let guard = self.store.enter();
        let (unknown, keys): (Vec<_>, Vec<_>) = {
            let state = self.state.read();
            let chunk = |ino: &Ino| match state.source(*ino) {
                Ok(Source::Chunk(key, None)) => Some((*ino, key)),
                _ => None,
            };
            inos.iter().filter_map(chunk).unzip()
        };
        if keys.is_empty() {
            return;
        }
        let lens = self.store.lens_of(&guard, &keys);
        let state = self.state.read();
        for ((ino, key), len) in unknown.into_iter().zip(keys).zip(lens) {
            if let Some(len) = len {
                state.learn_len(ino, key, len);
            }
        }
    }

    fn expect_reads(&self, inos: &[Ino]) {
        let chunks: Vec<_> = {
            let state = self.state.read();
            let source = |ino: &Ino| state.source(*ino).ok();
            let chunk = |source| match source {
                Source::Chunk(key, Some(len)) => Some((key, len)),
                _ => None,
            };
            inos.iter().filter_map(source).filter_map(chunk).collect()
        };
        self.store.expect_chunks(&chunks);
    }

    fn read_ahead(&self) -> Option<u32> {
        Some(READ_AHEAD)
    }

    fn statfs(&self) -> Result<libc::statvfs> {
        Ok(self.store.statvfs()?)
    }

    fn tick(&self, now: Instant, invals: &mut Invals) -> Option<Instant> {
        if self.read_only { None } else { self.work(now, invals) }
    }

    fn keeps_pages(&self, _ino: Ino) -> bool {
        true
    }

    fn last_name(&self, ino: Ino) -> Option<OsString> {
        let named = self.state.read().name_of(ino);
        named.unwrap_or_else(|_| Some(state::former_name(ino))).map(|name| name.to_os_string())
    }

    fn watch(&self) -> Option<&Watch> {
        Some(self.store.watch())
    }

    fn follow(&self, invals: &mut Invals) -> Option<Instant> {
        self.look(invals)
    }

    fn leave(&self, regardless: bool, invals: &mut Invals) -> Left {
        if self.read_only { Left::default() } else { self.leave_source(regardless, invals) }
    }

    fn source(&self) -> Option<(OwnedFd, PathBuf)> {
        self.store.source()
    }

    fn shutdown(&self) -> Result<()> {
        let result = if self.read_only { Ok(()) } else { self.finish() };
        self.keep_times_at_close();
        let closed = self.store.close().map_err(ViewError::from);
        debug!("{}: {}", self.store.path().display(), self.report());
        result.and(closed)
    }

    fn report(&self) -> String {
        let cache = self.store.cache_stats();
        let (files, open) = {
            let state = self.state.read();
            (state.nodes.len(), state.handles.len())
        };
        format!("{cache}; commits: {}; files touched: {files}, open: {open}", self.pacer.lock().commits(),)
    }
}
