//! Where in the file which chunk is: what the view shows where nothing is written over it.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::format::header::FrameHeader;
use crate::format::trailer::Trailer;
use crate::format::{self, ChunkOffset, IndexEntry, index};
use crate::store::{ChunkKey, FrameImage, FrameStore, ReadGuard, StoreError, Want};

/// A stored chunk's place in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins, in bytes from the file's beginning.
    pub start: u64,
    /// How long it is, in bytes.
    pub len: u32,
    /// Where the store has it.
    pub key: ChunkKey,
}

impl Extent {
    /// Where it ends.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.len))
    }
}

/// Extents by where they begin; none overlaps another. 20 bytes each.
#[derive(Debug, Clone, Default)]
pub struct Extents {
    starts: Vec<u64>,
    lens: Vec<u32>,
    keys: Vec<ChunkKey>,
}

impl Extents {
    /// Room for `count`.
    pub fn with_capacity(count: usize) -> Self {
        Extents { starts: Vec::with_capacity(count), lens: Vec::with_capacity(count), keys: Vec::with_capacity(count) }
    }

    /// Adds one behind all others.
    pub fn push(&mut self, extent: Extent) {
        debug_assert!(self.len() == 0 || self.get(self.len() - 1).is_some_and(|last| last.end() <= extent.start));
        self.starts.push(extent.start);
        self.lens.push(extent.len);
        self.keys.push(extent.key);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// The n-th in the file.
    pub fn get(&self, n: usize) -> Option<Extent> {
        Some(Extent { start: *self.starts.get(n)?, len: *self.lens.get(n)?, key: *self.keys.get(n)? })
    }

    /// The first that ends behind `offset`, by number.
    pub fn reaching(&self, offset: u64) -> usize {
        let after = self.starts.partition_point(|start| *start <= offset);
        match after.checked_sub(1) {
            Some(before) if self.get(before).is_some_and(|extent| extent.end() > offset) => before,
            _ => after,
        }
    }

    /// All, from the n-th on.
    pub fn from(&self, n: usize) -> impl Iterator<Item = Extent> {
        (n..self.len()).filter_map(|n| self.get(n))
    }

    /// The keys, in the order of the file.
    pub fn keys(&self) -> &[ChunkKey] {
        &self.keys
    }
}

/// A frame as a file: header, chunks, index and trailer at their places, and zeros in between. Never changes.
#[derive(Debug)]
pub struct FileLayout {
    /// What a commit of this is. The header is of the contiguous layout, as it stands in the file.
    pub image: FrameImage,
    /// The chunks, between header and tail.
    pub extents: Extents,
    /// Where the index begins, and the trailer behind it.
    pub tail_start: u64,
    /// The bytes of index and trailer.
    pub tail: Vec<u8>,
}

impl FileLayout {
    /// The file that C-Blosc2 would have written of the store's frame: chunks in the order of the index, and no holes.
    ///
    /// # Errors
    /// Chunks whose lengths cannot be read; more of them than an index can hold.
    pub fn canonical(store: &dyn FrameStore) -> Result<FileLayout, StoreError> {
        let Some(image) = store.committed() else {
            let reason = "there is no frame yet".to_owned();
            return Err(StoreError::Unsupported { path: store.path(), reason });
        };
        let lens = {
            let guard = store.enter();
            // What is behind a chunk stays there where its length would have to be asked for.
            store.rooms(&guard, &image)?.0
        };
        let wrong = |source: format::Error| StoreError::Format { path: store.path(), source };
        let base = u64::from(image.header.header_len());
        let mut extents = Extents::with_capacity(image.entries.iter().filter(|entry| entry.stored().is_some()).count());
        let mut end = base;
        for (entry, len) in image.entries.iter().zip(lens) {
            if let IndexEntry::Stored(key) = entry {
                extents.push(Extent { start: end, len, key: *key });
                end = end.saturating_add(u64::from(len));
            }
        }
        let mut places = extents.starts.iter();
        let entries = image.entries.iter().map(|entry| {
            entry.map(|_| ChunkOffset::new(places.next().map_or(0, |start| start - base))) // one for each stored entry
        });
        let mut tail = index::encode(entries).map_err(wrong)?;
        tail.extend_from_slice(image.trailer.as_bytes());
        let mut header = image.header.clone();
        header.set_layout(format::Layout::Contiguous);
        header.set_cbytes(end - base);
        header.set_frame_len(end.saturating_add(tail.len() as u64));
        let FrameImage { trailer, entries, .. } = &*image;
        let image = FrameImage { header, trailer: trailer.clone(), entries: Arc::clone(entries) };
        Ok(FileLayout { image, extents, tail_start: end, tail })
    }

    /// Length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.tail_start.saturating_add(self.tail.len() as u64)
    }

    /// The chunks that begin in a part of the file: what reaches into it was wanted before, or is being read.
    pub fn wants(&self, part: Range<u64>) -> Vec<Want> {
        let behind = self.extents.from(self.extents.reaching(part.start)).skip_while(|extent| extent.start < part.start);
        let wanted = behind.take_while(|extent| extent.start < part.end);
        wanted.map(|extent| Want::Known(extent.key, extent.len)).collect()
    }

    /// The header's bytes.
    pub fn head(&self) -> &[u8] {
        self.image.header.as_bytes()
    }

    /// The trailer, which the tail ends with.
    pub fn trailer(&self) -> &Trailer {
        &self.image.trailer
    }

    /// The header.
    pub fn header(&self) -> &FrameHeader {
        &self.image.header
    }

    /// Reads; a short count means the end. `guard` is older than the look-up of this layout in anything that changes. All that was read is
    /// of one version of SOURCE.
    ///
    /// # Errors
    /// What the store says; a chunk that is shorter in the store than it was.
    #[expect(clippy::indexing_slicing, reason = "no more is counted than there is in the buffer")]
    pub fn read_at(
        &self,
        store: &dyn FrameStore,
        guard: &ReadGuard<'_>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, StoreError> {
        let count = self.len().saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut rest = &mut buf[..count];
        let mut at = offset;
        copy_of(self.head(), 0, &mut at, &mut rest);
        let mut next = self.extents.reaching(at);
        let mut of_store = false;
        while at < self.tail_start && !rest.is_empty() {
            match self.extents.get(next) {
                Some(extent) if extent.start <= at => {
                    let piece = take(&mut rest, extent.end() - at);
                    let got = store.read_part(guard, extent.key, extent.len, at - extent.start, piece)?;
                    if got < piece.len() {
                        let source = io::ErrorKind::UnexpectedEof.into();
                        return Err(StoreError::Io { path: store.path(), action: "read a chunk", source });
                    }
                    of_store = true;
                    at += got as u64;
                    next += 1;
                }
                other => {
                    let piece = take(&mut rest, other.map_or(self.tail_start, |extent| extent.start) - at);
                    piece.fill(0);
                    at += piece.len() as u64;
                }
            }
        }
        copy_of(&self.tail, self.tail_start, &mut at, &mut rest);
        if of_store {
            store.verify(guard)?;
        }
        Ok(count)
    }
}

/// Takes the first `count` bytes off `rest`, or as many as there are.
fn take<'a>(rest: &mut &'a mut [u8], count: u64) -> &'a mut [u8] {
    let count = rest.len().min(usize::try_from(count).unwrap_or(usize::MAX));
    let (first, others) = std::mem::take(rest).split_at_mut(count);
    *rest = others;
    first
}

/// Copies what `bytes`, which begin at `start`, have from `at` on.
#[expect(clippy::indexing_slicing, reason = "what is taken is no longer than what was asked for")]
fn copy_of(bytes: &[u8], start: u64, at: &mut u64, rest: &mut &mut [u8]) {
    let from = at.checked_sub(start).and_then(|skip| bytes.get(usize::try_from(skip).ok()?..)).unwrap_or_default();
    let piece = take(rest, from.len() as u64);
    piece.copy_from_slice(&from[..piece.len()]);
    *at += piece.len() as u64;
}
