//! Finding the parts of a frame in a file whose header cannot be believed.

use std::io;

use super::Plan;
use crate::format::chunk::{ChunkHeader, Decoder};
use crate::format::header::FrameHeader;
use crate::format::index;
use crate::format::tiling::Tiling;
use crate::format::trailer::Trailer;
use crate::format::{ChunkOffset, IndexEntry, Kept, Rules, Special};
use crate::store::ReadAt;
use crate::store::backend::{BackendFile, read_exact_at};
use crate::store::frame::{FileBytes, FramePart, Unread, zeros};

/// A trailer is looked for this far behind an index.
const TRAILER_WINDOW: u64 = 64 << 20;
/// What is read at once in a search.
const WINDOW: u64 = 1 << 20;
/// An index chunk is not looked at if it is larger than any index that the library makes.
const INDEX_LIMIT: u64 = i32::MAX as u64;

/// A file of bytes of which anything may be true.
pub(super) struct Bytes<'a> {
    pub(super) file: &'a dyn BackendFile,
    pub(super) len: u64,
}

/// An index that was found, and that all chunks it names agree with.
pub(super) struct FoundIndex {
    /// Where its chunk begins and ends.
    pub(super) at: u64,
    pub(super) end: u64,
    pub(super) entries: Vec<IndexEntry<ChunkOffset>>,
    /// Uncompressed sizes of the stored chunks.
    pub(super) sizes: Vec<Option<u32>>,
}

impl Bytes<'_> {
    pub(super) fn read(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut bytes = zeros(len.min(self.len.saturating_sub(offset)))?;
        read_exact_at(self.file, &mut bytes, offset)?;
        Ok(bytes)
    }

    /// Reads what may be a part of a frame, but for one that is nearly all a hole.
    pub(super) fn part(&self, part: FramePart, offset: u64, len: u64) -> io::Result<Option<Vec<u8>>> {
        let end = offset.saturating_add(len).min(self.len);
        match part.read(&FileBytes { file: self.file, len: self.len }, offset.min(end)..end) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Unread::Io { source, .. }) => Err(source),
            Err(_) => Ok(None),
        }
    }

    /// A chunk that begins at `at` and ends within `limit`, by its header.
    pub(super) fn chunk_at(&self, at: u64, limit: u64) -> io::Result<Option<ChunkHeader>> {
        let head = self.read(at, ChunkHeader::LEN as u64)?;
        let header = ChunkHeader::parse(&head).ok();
        Ok(header.filter(|header| {
            let room = limit.min(self.len).saturating_sub(at);
            u64::from(header.cbytes) <= room && header.cbytes as usize >= ChunkHeader::LEN
        }))
    }

    /// Whether a chunk decodes from beginning to end.
    pub(super) fn decodes(&self, at: u64, header: &ChunkHeader, decoder: &mut Decoder) -> io::Result<bool> {
        let bytes = self.read(at, u64::from(header.cbytes))?;
        Ok(decoder.verify(&bytes).is_ok())
    }

    /// An index at `at` that decodes, and whose chunks are all there.
    pub(super) fn index_at(&self, frame: &FrameHeader, at: u64) -> io::Result<Option<FoundIndex>> {
        let Some(header) = self.chunk_at(at, self.len)? else { return Ok(None) };
        let looks = header.typesize == 8 && header.nbytes > 0 && header.nbytes.is_multiple_of(8);
        // A change that was cut off adds or removes one chunk. A header of chunks that vary in size knows no number, but such frames
        // have no index of a single run, and what may be one at every other byte must not be long to look at.
        let count = u64::from(header.nbytes) / 8;
        let near = match frame.nchunks() {
            Some(said) => count.abs_diff(said) <= 1,
            None => count <= u64::from(header.cbytes) * 64,
        };
        if !looks || !near || u64::from(header.cbytes) > INDEX_LIMIT {
            return Ok(None);
        }
        let Some(bytes) = self.part(FramePart::Index, at, u64::from(header.cbytes))? else { return Ok(None) };
        let Ok(entries) = index::decode::<ChunkOffset>(&bytes, None) else { return Ok(None) };
        Ok(self.sizes(frame, &entries, at)?.map(|sizes| {
            let end = at + u64::from(header.cbytes);
            FoundIndex { at, end, entries, sizes }
        }))
    }

    /// The sizes of all chunks of an index, if every one of them lies before `end`, fits its place, and shares no byte with another.
    fn sizes(&self, frame: &FrameHeader, entries: &[IndexEntry<ChunkOffset>], end: u64) -> io::Result<Option<Vec<Option<u32>>>> {
        let base = u64::from(frame.header_len());
        let mut extents = Vec::new();
        let mut sizes = Vec::with_capacity(entries.len().min(1 << 20));
        for (position, entry) in (0u64..).zip(entries) {
            let IndexEntry::Stored(offset) = entry else {
                sizes.push(None);
                continue;
            };
            let Some(at) = base.checked_add(offset.bytes()).filter(|at| *at < end) else { return Ok(None) };
            let Some(header) = self.chunk_at(at, end)? else { return Ok(None) };
            let last = position + 1 == entries.len() as u64;
            if !fits(frame, &header, last) {
                return Ok(None);
            }
            extents.push(at..at + u64::from(header.cbytes));
            sizes.push(Some(header.nbytes));
        }
        extents.sort_unstable_by_key(|extent| extent.start);
        let apart = extents.windows(2).all(|pair| matches!(pair, [a, b] if a.end <= b.start));
        Ok(apart.then_some(sizes))
    }

    /// Goes from chunk to chunk from the end of the header on, as long as one follows the other and fits the frame. Answers
    /// where they begin, and where the last one ends.
    pub(super) fn walk(&self, frame: &FrameHeader, most: usize) -> io::Result<(Vec<(u64, ChunkHeader)>, u64)> {
        let mut at = u64::from(frame.header_len());
        let mut chunks = Vec::new();
        while chunks.len() < most
            && let Some(header) = self.chunk_at(at, self.len)?
            && fits(frame, &header, false) | fits(frame, &header, true)
        {
            chunks.push((at, header));
            at += u64::from(header.cbytes);
        }
        Ok((chunks, at))
    }

    /// Looks for an index: where the header says, behind the chunks that follow each other from the beginning, then anywhere,
    /// from the end of the file backwards.
    pub(super) fn find_index(&self, frame: &FrameHeader) -> io::Result<Option<FoundIndex>> {
        let base = u64::from(frame.header_len());
        let said = base.saturating_add(frame.cbytes());
        if let Some(index) = self.index_at(frame, said)? {
            return Ok(Some(index));
        }
        // An index that looks like a chunk of the frame would be walked over: every step may be its beginning.
        let mut at = base;
        while let Some(header) = self.chunk_at(at, self.len)? {
            if at > base
                && let Some(index) = self.index_at(frame, at)?
            {
                return Ok(Some(index));
            }
            at += u64::from(header.cbytes);
        }
        self.scan_for_index(frame, base)
    }

    fn scan_for_index(&self, frame: &FrameHeader, base: u64) -> io::Result<Option<FoundIndex>> {
        let mut end = self.len;
        while end > base {
            let start = end.saturating_sub(WINDOW).max(base);
            // Nothing begins in a hole.
            let data = FileBytes { file: self.file, len: self.len }.next_data(start);
            if data.is_none_or(|data| data.start >= end) {
                end = start;
                continue;
            }
            // A header that begins in this window may end in the next.
            let bytes = self.read(start, end - start + ChunkHeader::LEN as u64)?;
            for (n, head) in bytes.windows(16).enumerate().rev() {
                // Version, and items of 8 bytes: a look at the rest is dearer.
                let plausible = matches!(head, [1..=6, _, _, 8, ..]);
                let at = start + n as u64;
                if plausible
                    && at < end
                    && let Some(index) = self.index_at(frame, at)?
                {
                    return Ok(Some(index));
                }
            }
            end = start;
        }
        Ok(None)
    }

    /// A trailer that begins at `at`, wherever it ends.
    pub(super) fn trailer_at(&self, at: u64) -> io::Result<Option<Trailer>> {
        let bytes = self.read(at, TRAILER_WINDOW)?;
        // The last 22 bytes begin with their mark and the trailer's length, which must be what is before them and they.
        let candidates = bytes.windows(5).enumerate().filter_map(|(n, window)| match window {
            [0xce, length @ ..] => {
                let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
                (n.checked_add(23)? == length).then_some(length)
            }
            _ => None,
        });
        let mut parsed = candidates.filter_map(|length| Trailer::parse(bytes.get(..length)?).ok());
        Ok(parsed.next())
    }

    /// The trailer that ends with the file, or where the header says that the frame ends.
    pub(super) fn trailer_before(&self, end: u64, base: u64) -> io::Result<Option<(u64, Trailer)>> {
        if end > self.len || end < base {
            return Ok(None);
        }
        let tail_len = (end - base).min(Trailer::TAIL_LEN as u64);
        let tail = self.read(end - tail_len, tail_len)?;
        let Ok(len) = Trailer::announced_len(&tail, u32::try_from(base).unwrap_or(u32::MAX), end) else { return Ok(None) };
        let at = end - u64::from(len);
        let trailer = self.part(FramePart::Trailer, at, u64::from(len))?.and_then(|bytes| Trailer::parse_vec(bytes).ok());
        Ok(trailer.map(|trailer| (at, trailer)))
    }
}

/// The special entry that a frame needs for a chunk that is stored.
pub(super) fn entry_for(frame: &FrameHeader, chunk: &ChunkHeader, position: usize, count: usize) -> Option<Special> {
    match Rules::of(frame).at(position as u64, count as u64).keep(&chunk.traits()) {
        Ok(Kept::Entry(special)) => Some(special),
        _ => None,
    }
}

/// Names a chunk that C-Blosc2 does not read where it is, and that stays as it is. Returns whether it is one.
pub(super) fn is_misfit(plan: &mut Plan, frame: &FrameHeader, chunk: &ChunkHeader, position: usize, count: usize) -> bool {
    let kept = Rules::of(frame).at(position as u64, count as u64).keep(&chunk.traits());
    kept.is_err_and(|error| {
        plan.found.push(format_args!("chunk {position}: {error}; it stays as it is"));
        true
    })
}

/// The same of an array that the frame cannot be, and of special entries that it cannot have.
pub(super) fn has_misfit<P>(plan: &mut Plan, frame: &FrameHeader, entries: &[IndexEntry<P>]) -> bool {
    let rules = Rules::of(frame);
    let special = entries.iter().enumerate().filter_map(|(position, entry)| match entry {
        IndexEntry::Special(special) => rules.check_entry(*special).err().map(|error| format!("chunk {position}: {error}")),
        IndexEntry::Stored(_) => None,
    });
    let array = Tiling::of_frame(frame).err().map(|error| error.to_string());
    let mut has = false;
    for what in array.into_iter().chain(special) {
        plan.found.push(format_args!("{what}; it stays as it is"));
        has = true;
    }
    has
}

/// Whether a chunk can be one of a frame's, by its size.
pub(super) fn fits(frame: &FrameHeader, header: &ChunkHeader, last: bool) -> bool {
    let (position, count) = if last { (0, 1) } else { (0, 2) };
    Rules::of(frame).at(position, count).check_size(header.nbytes).is_ok()
}
