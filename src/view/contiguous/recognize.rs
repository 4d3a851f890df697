//! When is what was written a frame, and which of its chunks are new?
//!
//! A chunk in a place where nothing was written, at the beginning of one of the layout's extents, is the one that was there: it
//! keeps its key without a look. Others are compared with likely old ones, in pieces, and keep the key of the one they equal:
//! C-Blosc2 moves everything behind a chunk that changes its size. The rest is checked as far as that can be done without
//! decoding, and staged.
//!
//! # The library's rounds of writing
//!
//! C-Blosc2 3.3 changes a cframe in four rounds, each with an open and a close of its own, and without ever reading whether the
//! close succeeded:
//!
//! 1. for an update that changes the chunk's size, the chunks behind it, moved; the chunk, if it is stored; the index, behind
//!    the chunks;
//! 2. the header, whole, with the new frame_len;
//! 3. the trailer, whole, behind the index; the file is cut behind it;
//! 4. the 8 bytes of frame_len.
//!
//! A change of a metalayer is round 2, of a vlmetalayer rounds 2 to 4. A new frame in the place of an old one is cut to nothing,
//! then header, chunks and index in the first round, then rounds 3 and 4.
//!
//! So a change of chunks is **whole** when index, header and trailer all lie in what was written since the last frame was installed, which
//! is the case after round 3, and not before. What parses earlier has either part of the old frame or part of the new one:
//!
//! | operation | after round 1 | after round 2 |
//! | --- | --- | --- |
//! | append, insert, update of a special chunk | longer than frame_len; where a long trailer leaves room, the index's place begins with the new chunk | shorter than frame_len, or of that length with the trailer as it was: complete, and waits for round 3 |
//! | append or insert of a special chunk, delete, fill special | longer or shorter than frame_len, or an index of another number of chunks; where chunks vary in size, it may parse, with the header's nbytes untrue | as above |
//! | reorder, update by a chunk of the same size | complete, if the index has its old length | complete |
//! | update by a longer chunk | longer than frame_len; where the trailer leaves room, the index's place begins with the end of the chunks | as append |
//! | update by a shorter chunk, or a special one | the **old index is still whole** if the chunk shrank by more than the index's length. It parses; where a chunk becomes a special one among chunks of the same length, every one behind it is *the next one*, and the last is the new index | longer than frame_len |
//!
//! What parses but is not whole waits: for the next round, or for a second in which nobody writes, since people patch files
//! too. It is then taken, unless a chunk is now where another one was, or a new one reads as an index of this very frame, or
//! only a part of it was written: then it is one of the states in the last row, or in the middle of that round, where the first
//! bytes that are moved end up in a chunk whose structure shows nothing of it. So a library that is killed between its rounds or
//! in one leaves the state before, or the one after.
//!
//! After round 3 the state is installed; round 4 writes what is there, which is seen without a look at the chunks. Where only
//! header or trailer were written, and neither chunks nor index, the trailer must have been written whole or not at all.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::format::chunk::ChunkHeader;
use crate::format::header::{FrameHeader, Sections};
use crate::format::trailer::Trailer;
use crate::format::{self, ChunkOffset, Error, Fit, IndexEntry, Rules, index};
use crate::store::frame::{Frame, Unread, zeros};
use crate::store::validate::{CHECKED_LEN, InvalidChunk, MOST_HOLE, validate_chunk, verify_chunk};
use crate::store::{ChunkKey, FrameImage, ReadAt, StoreError};
use crate::view::frame_file::layout::{Extent, Extents, FileLayout, Gaps};
use crate::view::frame_file::moved::Moved;
use crate::view::frame_file::overlay::Overlaid;
use crate::view::intervals::Intervals;
use crate::view::writers::{self, Writers};

mod search;

/// Holes that are told one by one.
const MOST_HOLES: usize = 64;
/// No old chunk.
const NONE: u32 = u32::MAX;

/// What was found.
pub enum Recognized {
    /// Nothing but the frame that is installed already, to the byte.
    Same,
    /// No frame, or not yet.
    Held(Error),
    /// A frame, but not by a whole change.
    Unconfirmed,
    /// A frame.
    Frame(Box<Candidate>),
}

/// A frame that can be installed.
pub struct Candidate {
    /// The file, with exactly the bytes that were written. What is in no part of the frame reads as zeros from now on.
    pub layout: FileLayout,
    /// Chunks that were staged for it.
    pub staged: Vec<ChunkKey>,
    /// Chunks of the layout before that are not in it.
    pub dropped: Vec<ChunkKey>,
    /// Parts that may have held something and read as zeros from now on.
    pub holes: Vec<Range<u64>>,
}

/// Why there is no answer, or none but `Held`.
enum Stop {
    Held(Error),
    Io(io::Error),
    Store(StoreError),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Held(error)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Stop::Store(error)
    }
}

impl From<InvalidChunk> for Stop {
    fn from(invalid: InvalidChunk) -> Self {
        match invalid {
            InvalidChunk::Bad(error) => Stop::Held(error),
            InvalidChunk::Io(error) => Stop::Io(error),
        }
    }
}

/// Looks at the file as it is now. With `accept`, what is a frame is taken for one even if it was not written by a whole change;
/// otherwise nothing of that is staged. `is_written` if a client that has written has it open. Nobody may write meanwhile.
///
/// # Errors
/// What cannot be read or staged; what was staged before is given back.
pub fn recognize(file: &Overlaid<'_>, accept: bool, is_written: bool) -> Result<Recognized, StoreError> {
    let (below, written, hole, moved, writers) = {
        let inner = file.overlay.inner.read();
        (inner.below(), inner.written().clone(), inner.hole(), inner.moved().clone(), inner.writers().cloned())
    };
    let mut recognizer = Recognizer {
        file,
        layout: file.layout,
        below,
        written,
        hole,
        moved,
        writers,
        is_written,
        whole: true,
        dry: false,
        count: 0,
        rules: Rules::of(file.layout.header()),
        is_other: false,
        used: Vec::new(),
        staged: Vec::new(),
    };
    let found = recognizer.run(accept);
    if !matches!(found, Ok(Recognized::Frame(_))) {
        recognizer.staged.iter().for_each(|key| file.store.discard(*key));
    }
    match found {
        Ok(found) => Ok(found),
        Err(Stop::Held(error)) => Ok(Recognized::Held(error)),
        Err(Stop::Store(error)) => Err(error),
        Err(Stop::Io(source)) => Err(StoreError::Io { path: file.store.path(), action: "read back what was written", source }),
    }
}

/// Whether the file may be a new frame that C-Blosc2 has not finished: after its first round the trailer is missing, and after
/// the second frame_len knows only of the smallest one.
pub fn is_begun(file: &Overlaid<'_>) -> bool {
    let mut prefix = vec![0; FrameHeader::PREFIX_LEN];
    if file.read_exact_at(&mut prefix, 0).is_err() || FrameHeader::announced_len(&prefix).is_err() {
        return false;
    }
    let frame_len = prefix.last_chunk().copied().map_or(0, u64::from_be_bytes);
    let index_end = frame_len.saturating_sub(Trailer::TAIL_LEN as u64);
    match file.len().checked_sub(index_end) {
        Some(0) => true,
        Some(len @ 1..=MOST_HOLE) => {
            let mut trailer = vec![0; len as usize];
            file.read_exact_at(&mut trailer, index_end).is_ok() && Trailer::parse(&trailer).is_ok()
        }
        _ => false,
    }
}

/// Whether a file that is not a frame may become one without a change of its first bytes: they are not all there, or they announce a
/// frame, of which in a file that was written from nothing more is to come.
pub fn may_become(file: &Overlaid<'_>, from_nothing: bool) -> bool {
    let mut prefix = vec![0; FrameHeader::PREFIX_LEN];
    let are_there = {
        let (inner, end) = (file.overlay.inner.read(), prefix.len() as u64);
        inner.written().covers(inner.below().min(end)..end)
    };
    if !are_there || file.read_exact_at(&mut prefix, 0).is_err() {
        return true;
    }
    let frame_len = prefix.last_chunk().copied().map_or(0, u64::from_be_bytes);
    FrameHeader::announced_len(&prefix).is_ok() && (!from_nothing || file.len() < frame_len || is_begun(file))
}

struct Recognizer<'a> {
    file: &'a Overlaid<'a>,
    layout: &'a FileLayout,
    /// Bytes of the layout that are still seen, from the beginning.
    below: u64,
    written: Intervals,
    /// How much of `written` may be a hole.
    hole: u64,
    moved: Moved,
    /// Clients that have written at the same time, and whether one of them may write on.
    writers: Option<Writers>,
    is_written: bool,
    /// The change is a whole one.
    whole: bool,
    /// Nothing is staged.
    dry: bool,
    /// Chunks of the new frame, and what they have to be.
    count: u64,
    rules: Rules,
    /// Chunks that fitted the layout may not fit any more.
    is_other: bool,
    /// Old extents whose chunk the new frame has: none may have it twice.
    used: Vec<bool>,
    staged: Vec<ChunkKey>,
}

impl Recognizer<'_> {
    fn run(&mut self, accept: bool) -> Result<Recognized, Stop> {
        let (header, sections) = self.outline()?;
        self.whole = self.is_whole(&sections);
        if self.is_installed(&header, &sections) {
            return Ok(Recognized::Same);
        }
        if self.writers.is_some() {
            let Sections { chunks, index, trailer } = &sections;
            for part in [0..chunks.start, index.clone(), trailer.clone()] {
                self.is_of_one(part)?;
            }
        }
        self.dry = !self.whole && !accept;
        let frame = Frame::<ChunkOffset>::read(self.file).map_err(|unread| match unread {
            Unread::Io { source, .. } => Stop::Io(source),
            Unread::Format(error) => Stop::Held(error),
            Unread::OtherLayout => Stop::Held(sparse()),
        })?;
        self.count = frame.entries.len() as u64;
        self.rules = Rules::of(&frame.header);
        let old = &self.layout.image;
        Rules::check_frame(&frame.header, &frame.entries, Some((&old.header, &old.entries)))?;
        self.is_other = !self.rules.allow_all_of(&Rules::of(self.layout.header()));
        let (extents, entries) = self.chunks(&frame.entries, &frame.sections)?;
        if self.dry {
            return Ok(Recognized::Unconfirmed);
        }
        let tail = self.bytes(sections.index.start..sections.trailer.end)?;
        let holes = self.holes(&extents, &frame.sections);
        let image = FrameImage { header: frame.header, trailer: frame.trailer, entries: Arc::new(entries) };
        let layout = FileLayout { image, extents, tail_start: sections.index.start, tail, gaps: Gaps::Zeros };
        let olds = self.layout.extents.keys().iter().zip(&self.used);
        let dropped = olds.filter(|(_, used)| !**used).map(|(key, _)| *key).collect();
        Ok(Recognized::Frame(Box::new(Candidate { layout, staged: std::mem::take(&mut self.staged), dropped, holes })))
    }

    fn bytes(&self, part: Range<u64>) -> Result<Vec<u8>, Stop> {
        let mut bytes = zeros(part.end.saturating_sub(part.start)).map_err(Stop::Io)?;
        self.file.read_exact_at(&mut bytes, part.start).map_err(Stop::Io)?;
        Ok(bytes)
    }

    /// The header and where the parts are, with no more than those parts in memory that are as long as they say.
    fn outline(&self) -> Result<(FrameHeader, Sections), Stop> {
        let len = self.file.len();
        let prefix = self.bytes(0..len.min(FrameHeader::PREFIX_LEN as u64))?;
        let header_len = u64::from(FrameHeader::announced_len(&prefix)?);
        let file_len = || format!("the file's length, {len}");
        if header_len > len {
            return Err(Error::new("header: header_len", 11, header_len, format_args!("at most {}", file_len())).into());
        }
        self.check_hole(0..header_len)?;
        let header = FrameHeader::parse(&self.bytes(0..header_len)?)?;
        if header.layout() != format::Layout::Contiguous {
            return Err(Stop::Held(sparse()));
        }
        if header.frame_len() != len {
            return Err(Error::new("header: frame_len", 16, header.frame_len(), file_len()).into());
        }
        let tail = self.bytes(len.saturating_sub(Trailer::TAIL_LEN as u64)..len)?;
        let trailer_len = Trailer::announced_len(&tail, header.header_len(), len)?;
        let sections = header.sections(trailer_len)?;
        self.check_hole(sections.index.start..sections.trailer.end)?;
        if !sections.index.is_empty() {
            let head =
                self.bytes(sections.index.start..sections.index.end.min(sections.index.start + ChunkHeader::LEN as u64))?;
            let index = ChunkHeader::parse(&head)?;
            let room = sections.index.end - sections.index.start;
            if u64::from(index.cbytes) != room {
                let expected = format_args!("the {room} bytes that it has room for");
                return Err(Error::new("index: cbytes", 12, index.cbytes, expected).into());
            }
        }
        Ok((header, sections))
    }

    fn check_hole(&self, part: Range<u64>) -> Result<(), Stop> {
        let unseen = self.below.clamp(part.start, part.end)..part.end;
        let written: u64 = self.written.within(unseen.clone()).map(|part| part.end - part.start).sum();
        let hole = unseen.end - unseen.start - written + self.hole.min(written);
        if hole <= MOST_HOLE {
            return Ok(());
        }
        let got = format_args!("{hole} bytes that were never written");
        Err(Error::new("header: header_len, or trailer: trailer_len", part.start, got, format_args!("at most {MOST_HOLE}"))
            .into())
    }

    /// Whether a part of the file is as it was.
    fn unwritten(&self, part: Range<u64>) -> bool {
        part.end <= self.below && !self.written.touches(part)
    }

    /// Whether all of a part is as one client wrote it: see [`writers`].
    fn is_of_one(&self, part: Range<u64>) -> Result<bool, Stop> {
        if self.unwritten(part.clone()) {
            return Ok(true);
        }
        let is_filled = self.written.covers(self.below.clamp(part.start, part.end)..part.end);
        Ok(writers::check(self.writers.as_ref(), &part, is_filled, self.is_written)?)
    }

    /// Whether what was written is a whole change.
    fn is_whole(&self, sections: &Sections) -> bool {
        let Sections { chunks, index, trailer } = sections;
        let untouched = self.unwritten(chunks.start..index.end)
            && chunks.start == self.layout.head().len() as u64
            && index.start == self.layout.tail_start;
        let trailer_whole = self.written.covers(trailer.clone());
        if untouched {
            return trailer_whole || !self.written.touches(trailer.clone());
        }
        trailer_whole && self.written.covers(0..chunks.start) && self.written.covers(index.clone())
    }

    /// Whether the file is the installed frame, without a look at chunks.
    fn is_installed(&self, header: &FrameHeader, sections: &Sections) -> bool {
        self.unwritten(sections.chunks.start..sections.trailer.end)
            && self.layout.len() == sections.trailer.end
            && self.layout.header() == header
    }

    /// Finds or stages each chunk.
    #[expect(clippy::indexing_slicing, reason = "found has a place for each chunk, and entries one for each position")]
    fn chunks(
        &mut self,
        offsets: &[IndexEntry<ChunkOffset>],
        sections: &Sections,
    ) -> Result<(Extents, Vec<IndexEntry<ChunkKey>>), Stop> {
        let base = sections.chunks.start;
        let stored = (0u32..).zip(offsets).filter_map(|(position, entry)| Some((base + entry.stored()?.bytes(), position)));
        let mut places: Vec<(u64, u32)> = stored.collect();
        if !places.is_sorted() {
            places.sort_unstable();
        }
        let ends = places.iter().skip(1).map(|(next, _)| *next).chain([sections.chunks.end]);
        let ends: Vec<u64> = ends.collect();
        let mut found = self.kept_in_place(&places, &ends)?;
        self.known_as_moved(&places, &ends, &mut found)?;
        let missed = self.moved(&places, &ends, &mut found)?;
        let missed = self.shuffled(&places, missed, &mut found)?;
        let lens: HashMap<usize, u32> = missed.iter().copied().collect();
        let mut extents = Extents::with_capacity(places.len());
        let mut entries: Vec<_> = offsets.iter().map(|entry| entry.map(|_| ChunkKey::new(0))).collect();
        for (n, (start, position)) in places.iter().enumerate() {
            let (len, key) = match self.layout.extents.get(found[n] as usize) {
                Some(old) if found[n] != NONE => (old.len, old.key),
                _ => {
                    let len = lens.get(&n).copied().unwrap_or(0);
                    (len, self.stage(*start, len, *position)?)
                }
            };
            extents.push(Extent { start: *start, len, key });
            entries[*position as usize] = IndexEntry::Stored(key);
        }
        Ok((extents, entries))
    }

    fn fit(&self, position: u32) -> Fit {
        self.rules.at(u64::from(position), self.count)
    }

    /// Checks a new chunk, and writes it to the store.
    fn stage(&mut self, start: u64, len: u32, position: u32) -> Result<ChunkKey, Stop> {
        let fit = self.fit(position);
        let part = Part { file: self.file, start, len: u64::from(len) };
        if !self.whole && !self.written.covers(start..start + part.len) {
            let error = Error::new("chunk", 0, "one that was written in parts only", "a whole one, as the index was not written");
            return Err(Stop::Held(of_chunk(error, start, position)));
        }
        let inside = |invalid| match invalid {
            InvalidChunk::Bad(error) => Stop::Held(of_chunk(error, start, position)),
            InvalidChunk::Io(error) => Stop::Io(error),
        };
        if !self.is_of_one(start..start + part.len)? {
            verify_chunk(&part).map_err(inside)?;
        }
        let key = if part.len > CHECKED_LEN {
            let header = validate_chunk(&part, fit).map_err(inside)?;
            fit.check(&header.traits()).map_err(|error| of_chunk(error, start, position))?;
            if self.dry { ChunkKey::new(0) } else { self.file.store.stage(&part)? }
        } else {
            let bytes = self.bytes(start..start + part.len)?;
            let header = validate_chunk(&bytes, fit).map_err(inside)?;
            fit.check(&header.traits()).map_err(|error| of_chunk(error, start, position))?;
            if !self.whole && self.reads_as_index(&header, &bytes) {
                let error = Error::new("chunk", 0, "an index of this frame", "a chunk, as the index was not written");
                return Err(Stop::Held(of_chunk(error, start, position)));
            }
            if self.dry { ChunkKey::new(0) } else { self.file.store.stage(&bytes)? }
        };
        if !self.dry {
            self.staged.push(key);
        }
        Ok(key)
    }

    fn reads_as_index(&self, header: &ChunkHeader, chunk: &[u8]) -> bool {
        let count = u64::from(header.nbytes) / 8;
        count.abs_diff(self.count) <= 1 && index::decode::<ChunkOffset>(chunk, Some(count)).is_ok()
    }

    /// What is in no part of the new frame, but for what was a hole before.
    fn holes(&self, extents: &Extents, sections: &Sections) -> Vec<Range<u64>> {
        let mut holes: Vec<Range<u64>> = Vec::new();
        let mut end = sections.chunks.start;
        for (start, next) in extents.from(0).map(|extent| (extent.start, extent.end())).chain([(sections.chunks.end, 0)]) {
            let hole = end..start;
            end = next;
            if hole.is_empty() || self.was_hole(&hole) {
                continue;
            }
            let full = holes.len() >= MOST_HOLES;
            match holes.last_mut().filter(|_| full) {
                Some(last) => last.end = hole.end,
                None => holes.push(hole),
            }
        }
        holes
    }

    fn was_hole(&self, part: &Range<u64>) -> bool {
        let old = self.layout;
        let reached = old.extents.get(old.extents.reaching(part.start));
        old.gaps == Gaps::Zeros
            && !self.written.touches(part.clone())
            && (part.start >= self.below
                || part.start >= old.head().len() as u64
                    && part.end <= old.tail_start
                    && reached.is_none_or(|extent| extent.start >= part.end))
    }
}

fn sparse() -> Error {
    Error::new("header: frame type", 26, "a sparse frame's index file", "a contiguous frame (0)")
}

/// An error in a chunk, with its place in the file and in the index.
fn of_chunk(error: Error, start: u64, position: u32) -> Error {
    let expected = format!("{} (chunk {position})", error.expected);
    Error { offset: error.offset.saturating_add(start), expected, ..error }
}

/// A part of a file.
struct Part<'a> {
    file: &'a dyn ReadAt,
    start: u64,
    len: u64,
}

impl ReadAt for Part<'_> {
    fn len(&self) -> u64 {
        self.len
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, self.start + offset)
    }
}
