//! Finds the old chunk that a chunk equals. Tries its own place, where it was written from below, the order of the old ones, then anywhere.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{NONE, Recognizer, Stop, of_chunk};
use crate::format::Error;
use crate::format::chunk::ChunkHeader;
use crate::store::ReadAt;
use crate::view::frame_file::layout::Extent;
use crate::view::frame_file::moved::Placed;

/// Old chunks that are compared with a new one, from the one behind the last that was found on: one or two may have gone.
const WINDOW: usize = 3;
/// What is compared first: different chunks mostly differ here.
const FIRST_PIECE: usize = 4 << 10;
/// What is compared at once after that.
const PIECE: usize = 1 << 20;
/// How much of a chunk is looked at to find the old one that it may be.
const FINGERPRINT: usize = 256;
/// Old chunks of the same length and beginning that are compared with a new one.
const MOST_ALIKE: usize = 8;

impl Recognizer<'_> {
    /// Old extents by number for the chunks that are in their old place, where nothing was written.
    #[expect(clippy::indexing_slicing, reason = "`next` is the number of an old chunk, each of which has a place in `used`")]
    pub(super) fn kept_in_place(&mut self, places: &[(u64, u32)], ends: &[u64]) -> Result<Vec<u32>, Stop> {
        let olds = &self.layout.extents;
        let mut used = vec![false; olds.len()];
        let mut found = vec![NONE; places.len()];
        let mut written = self.written.iter().peekable();
        let mut next = 0;
        for ((found, (start, position)), end) in found.iter_mut().zip(places).zip(ends) {
            while olds.get(next).is_some_and(|old| old.start < *start) {
                next += 1;
            }
            let Some(old) = olds.get(next).filter(|old| old.start == *start) else { continue };
            while written.next_if(|part| part.end <= old.start).is_some() {}
            let touched = written.peek().is_some_and(|part| part.start < old.end());
            if old.end() > *end || old.end() > self.below || touched {
                continue;
            }
            self.check_old(&old, *start, *position)?;
            *found = next as u32;
            used[next] = true;
        }
        self.used = used;
        Ok(found)
    }

    /// What fitted before fits again, unless all chunks have to be something else.
    fn check_old(&self, old: &Extent, start: u64, position: u32) -> Result<(), Stop> {
        if self.is_other {
            let header = self.file.store.chunk_header(self.file.guard, old.key)?;
            self.fit(position).check(&header.traits()).map_err(|error| of_chunk(error, start, position))?;
        }
        Ok(())
    }

    fn check_found(&self, old: usize, start: u64, position: u32) -> Result<(), Stop> {
        self.layout.extents.get(old).map_or(Ok(()), |old| self.check_old(&old, start, position))
    }

    /// Chunks that were found to be old ones when they were written.
    #[expect(clippy::indexing_slicing, reason = "places, ends and found are of one length, and `used` of the old chunks'")]
    pub(super) fn known_as_moved(&mut self, places: &[(u64, u32)], ends: &[u64], found: &mut [u32]) -> Result<(), Stop> {
        let end = self.file.len();
        let moved: Vec<Placed> = self.moved.within(0..end).collect();
        for (part, from) in moved {
            let first = places.partition_point(|(start, _)| *start < part.start);
            for n in first..places.len() {
                let (start, position) = places[n];
                if start >= part.end {
                    break;
                }
                let place = from + (start - part.start);
                let number = self.layout.extents.reaching(place);
                let Some(old) = self.layout.extents.get(number).filter(|old| old.start == place) else { continue };
                let here = start.saturating_add(u64::from(old.len));
                if found[n] != NONE || self.used[number] || here > part.end || here > ends[n] {
                    continue;
                }
                self.check_old(&old, start, position)?;
                self.check_moved(start, position, number)?;
                self.used[number] = true;
                found[n] = number as u32;
            }
        }
        Ok(())
    }

    /// Chunks that are in the order of the old ones, but not in their places. Answers those that were not found, by number, with
    /// their lengths.
    #[expect(clippy::indexing_slicing, reason = "places, ends and found are of one length, and `used` of the old chunks'")]
    pub(super) fn moved(&mut self, places: &[(u64, u32)], ends: &[u64], found: &mut [u32]) -> Result<Vec<(usize, u32)>, Stop> {
        let mut missed = Vec::new();
        let mut next = 0;
        for (n, (start, position)) in places.iter().enumerate() {
            if found[n] != NONE {
                next = found[n] as usize + 1;
                continue;
            }
            let len = self.chunk_len(*start, ends[n], *position)?;
            match self.same_as(*start, len, next..next + WINDOW)? {
                Some(old) => {
                    self.check_found(old, *start, *position)?;
                    self.check_moved(*start, *position, old)?;
                    self.used[old] = true;
                    found[n] = old as u32;
                    next = old + 1;
                }
                None => missed.push((n, len)),
            }
        }
        Ok(missed)
    }

    /// Chunks that are anywhere else than they were: found by how they begin. Answers those that are new.
    #[expect(clippy::indexing_slicing, reason = "numbers of places, and of old chunks")]
    pub(super) fn shuffled(
        &mut self,
        places: &[(u64, u32)],
        missed: Vec<(usize, u32)>,
        found: &mut [u32],
    ) -> Result<Vec<(usize, u32)>, Stop> {
        let lens: HashSet<u32> = missed.iter().map(|(_, len)| *len).collect();
        let mut alike: HashMap<u64, Vec<usize>> = HashMap::new();
        let mut buf = [0; FINGERPRINT];
        for (number, _) in self.used.iter().enumerate().filter(|(_, used)| !**used) {
            let Some(old) = self.layout.extents.get(number).filter(|old| lens.contains(&old.len)) else { continue };
            let count = self.file.store.read_chunk(self.file.guard, old.key, old.len, 0, &mut buf)?;
            alike.entry(fingerprint(old.len, &buf[..count])).or_default().push(number);
        }
        if alike.is_empty() {
            return Ok(missed);
        }
        let mut new = Vec::new();
        for (n, len) in missed {
            let (start, position) = places[n];
            let head = &mut buf[..FINGERPRINT.min(len as usize)];
            self.file.read_exact_at(head, start).map_err(Stop::Io)?;
            let candidates = alike.get(&fingerprint(len, head)).map(Vec::as_slice).unwrap_or_default();
            let candidates: Vec<usize> = candidates.iter().copied().filter(|old| !self.used[*old]).take(MOST_ALIKE).collect();
            match self.same_as(start, len, candidates)? {
                Some(old) => {
                    self.check_found(old, start, position)?;
                    self.check_moved(start, position, old)?;
                    self.used[old] = true;
                    found[n] = old as u32;
                }
                None => new.push((n, len)),
            }
        }
        Ok(new)
    }

    /// Without a whole change a chunk may be written over with what it was, but not be where another one was.
    fn check_moved(&self, start: u64, position: u32, old: usize) -> Result<(), Stop> {
        if self.whole || self.layout.extents.get(old).is_some_and(|old| old.start == start) {
            return Ok(());
        }
        let error = Error::new("chunk", 0, "one from another place", "chunks where they were, as the index was not written");
        Err(Stop::Held(of_chunk(error, start, position)))
    }

    /// The length of the chunk at `start`, by its header.
    fn chunk_len(&self, start: u64, end: u64, position: u32) -> Result<u32, Stop> {
        let room = end.saturating_sub(start);
        let head = self.bytes(start..start + room.min(ChunkHeader::LEN as u64))?;
        let inside = |error| of_chunk(error, start, position);
        let header = ChunkHeader::parse(&head).map_err(inside)?;
        if u64::from(header.cbytes) > room {
            let expected = format_args!("at most the {room} bytes before what comes next");
            return Err(inside(Error::new("chunk: cbytes", 12, header.cbytes, expected)).into());
        }
        self.fit(position).check_size(header.nbytes).map_err(inside)?;
        Ok(header.cbytes)
    }

    /// The first of some old chunks that has the same bytes as the chunk at `start`, and is not yet another one's; without a whole
    /// change even then, as one that is there twice has been moved.
    #[expect(clippy::indexing_slicing, reason = "the number of an old chunk, each of which has a place in `used`")]
    fn same_as(&self, start: u64, len: u32, olds: impl IntoIterator<Item = usize>) -> Result<Option<usize>, Stop> {
        for number in olds {
            let old = self.layout.extents.get(number).filter(|old| old.len == len && !(self.whole && self.used[number]));
            if let Some(old) = old
                && self.equal(start, &old)?
            {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    fn equal(&self, start: u64, old: &Extent) -> Result<bool, Stop> {
        let len = u64::from(old.len);
        let (mut new_bytes, mut old_bytes) = (Vec::new(), Vec::new());
        let mut done = 0;
        while done < len {
            let piece = if done == 0 { FIRST_PIECE } else { PIECE };
            let piece = (len - done).min(piece as u64) as usize;
            new_bytes.resize(piece, 0);
            old_bytes.resize(piece, 0);
            let count = self.file.store.read_chunk(self.file.guard, old.key, old.len, done, &mut old_bytes)?;
            self.file.read_exact_at(&mut new_bytes, start + done).map_err(Stop::Io)?;
            if count < piece || new_bytes != old_bytes {
                return Ok(false);
            }
            done += piece as u64;
        }
        Ok(true)
    }
}

fn fingerprint(len: u32, head: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (len, head).hash(&mut hasher);
    hasher.finish()
}
