//! Where in the file which chunk is: what the view shows where nothing is written over it.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::format::header::{FrameHeader, Sections};
use crate::format::trailer::Trailer;
use crate::format::{self, ChunkOffset, IndexEntry, Layout, index};
use crate::store::frame::zeros;
use crate::store::{ChunkKey, FrameImage, FrameStore, ReadGuard, StoreError, Want};

/// Bytes of an entry in an encoded index that SOURCE's own tail may have, and besides.
const MOST_OF_ENTRY: u64 = 16;
const MOST_OF_INDEX: u64 = 4096;

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

/// The bytes of a layout that belong to no part of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gaps {
    /// Zeros.
    Zeros,
    /// SOURCE's own bytes at the same offsets, of this version of SOURCE (see [`ReadGuard::version`]).
    OfSource(u64),
    /// Zeros, where clients may still have SOURCE's bytes.
    Cleared,
}

/// A frame as a file: header, chunks, index and trailer at their places, and [`Gaps`] in between. Never changes.
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
    /// What is between the chunks.
    pub gaps: Gaps,
}

/// Where a file had the parts of a frame, without the frame.
#[derive(Debug)]
pub struct Outline {
    header: FrameHeader,
    tail_start: u64,
    tail: Vec<u8>,
}

impl FileLayout {
    /// The file of the store's frame: by an outline of it, or as it lies in SOURCE if that is one file, or else as C-Blosc2 would have
    /// written it.
    ///
    /// # Errors
    /// Chunks whose lengths cannot be read; more of them than an index can hold.
    pub fn load(store: &dyn FrameStore, outline: Option<&Outline>) -> Result<FileLayout, StoreError> {
        let guard = store.enter();
        let Some(image) = store.committed() else {
            let reason = "there is no frame yet".to_owned();
            return Err(StoreError::Unsupported { path: store.path(), reason });
        };
        // What is behind a chunk stays there where its length would have to be asked for.
        let lens = store.rooms(&guard, &image)?.0;
        if let Some(layout) = outline.and_then(|outline| Self::again(&image, &lens, outline)) {
            return Ok(layout);
        }
        match Self::of_source(store, &guard, &image, &lens)? {
            Some(layout) => Ok(layout),
            None => Self::packed(store, &image, lens),
        }
    }

    /// The file as it lies in SOURCE. `None` if SOURCE is not one file, or its parts overlap.
    fn of_source(
        store: &dyn FrameStore,
        guard: &ReadGuard<'_>,
        image: &FrameImage,
        lens: &[u32],
    ) -> Result<Option<FileLayout>, StoreError> {
        let (Some(local), Layout::Contiguous) = (store.local(), image.header.layout()) else { return Ok(None) };
        let (trailer, count) = (image.trailer.as_bytes(), image.entries.len() as u64);
        let Ok(Sections { index, trailer: end, .. }) = image.header.sections(trailer.len() as u32) else { return Ok(None) };
        // A longer one than that is padded.
        if index.end - index.start > count.saturating_mul(MOST_OF_ENTRY).saturating_add(MOST_OF_INDEX) {
            return Ok(None);
        }
        let failed = |source| StoreError::Io { path: store.path(), action: "read the index", source };
        let mut tail = zeros(end.end - index.start).map_err(failed)?;
        if !local.read_source(guard, index.start, &mut tail)? {
            return Ok(None);
        }
        store.verify(guard)?;
        let gaps = Gaps::OfSource(guard.version());
        Ok(Self::lay_out(image.clone(), lens, index.start, tail, gaps))
    }

    /// The file as it was; `None` if the frame is another.
    fn again(image: &FrameImage, lens: &[u32], outline: &Outline) -> Option<FileLayout> {
        let Outline { header, tail_start, tail } = outline;
        let mut stored = header.clone();
        stored.set_layout(image.header.layout());
        stored.set_cbytes(image.header.cbytes());
        stored.set_frame_len(image.header.frame_len());
        if stored != image.header {
            return None;
        }
        let image = FrameImage { header: header.clone(), ..image.clone() };
        Self::lay_out(image, lens, *tail_start, tail.clone(), Gaps::Zeros)
    }

    /// The file with chunks of these lengths where the index says, which the tail begins with; `None` if the index is not the image's
    /// or parts overlap. The image's header is the file's.
    fn lay_out(image: FrameImage, lens: &[u32], tail_start: u64, tail: Vec<u8>, gaps: Gaps) -> Option<FileLayout> {
        let (trailer, entries) = (image.trailer.as_bytes(), &image.entries);
        let (encoded, last) = tail.split_at_checked(tail.len().checked_sub(trailer.len())?)?;
        let offsets = index::decode::<ChunkOffset>(encoded, Some(entries.len() as u64)).ok()?;
        let is_alike = |(one, other): (&IndexEntry<_>, &IndexEntry<_>)| one.map(|_| ()) == other.map(|_| ());
        if last != trailer || !offsets.iter().zip(entries.iter()).all(is_alike) {
            return None;
        }
        let base = u64::from(image.header.header_len());
        let mut places = Vec::with_capacity(offsets.len());
        for ((offset, entry), len) in offsets.iter().zip(entries.iter()).zip(lens) {
            if let (Some(offset), Some(key)) = (offset.stored(), entry.stored()) {
                places.push(Extent { start: base.saturating_add(offset.bytes()), len: *len, key });
            }
        }
        places.sort_unstable_by_key(|place| place.start);
        let mut extents = Extents::with_capacity(places.len());
        let (mut end, mut has_gaps) = (base, false);
        for place in places {
            if place.start < end || place.end() > tail_start {
                return None;
            }
            has_gaps |= place.start > end;
            end = place.end();
            extents.push(place);
        }
        has_gaps |= end < tail_start;
        let gaps = if has_gaps { gaps } else { Gaps::Zeros };
        Some(FileLayout { image, extents, tail_start, tail, gaps })
    }

    /// What [`FileLayout::load`] needs to make the same file of the same frame.
    pub fn outline(&self) -> Outline {
        Outline { header: self.header().clone(), tail_start: self.tail_start, tail: self.tail.clone() }
    }

    /// The file that C-Blosc2 would have written: chunks of these lengths in the order of the index, and no gaps.
    fn packed(store: &dyn FrameStore, image: &FrameImage, lens: Vec<u32>) -> Result<FileLayout, StoreError> {
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
        let FrameImage { trailer, entries, .. } = image;
        let image = FrameImage { header, trailer: trailer.clone(), entries: Arc::clone(entries) };
        Ok(FileLayout { image, extents, tail_start: end, tail, gaps: Gaps::Zeros })
    }

    /// The same without SOURCE's bytes in the gaps, which a change of SOURCE is about to overwrite; `None` if it has none.
    pub fn cleared(&self) -> Option<FileLayout> {
        let Gaps::OfSource(_) = self.gaps else { return None };
        let FileLayout { image, extents, tail_start, tail, .. } = self;
        let (image, extents, tail) = (image.clone(), extents.clone(), tail.clone());
        Some(FileLayout { image, extents, tail_start: *tail_start, tail, gaps: Gaps::Cleared })
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
                    of_store |= self.read_gap(store, guard, at, piece)?;
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

    /// Fills a buffer with bytes between the chunks. Returns whether they are SOURCE's.
    fn read_gap(&self, store: &dyn FrameStore, guard: &ReadGuard<'_>, at: u64, buf: &mut [u8]) -> Result<bool, StoreError> {
        match (self.gaps, store.local()) {
            (Gaps::OfSource(version), Some(local)) if !guard.is_to_save() => {
                if version != guard.version() {
                    let reason = "another version of it was read".to_owned();
                    return Err(StoreError::Stale { path: store.path(), reason });
                }
                local.read_source(guard, at, buf)
            }
            _ => {
                buf.fill(0);
                Ok(false)
            }
        }
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
