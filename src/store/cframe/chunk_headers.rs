//! What is read of a cframe besides whole chunks: their headers, one by one or many together, and what is read ahead.
//!
//! Everything named "expect" is a hint to the disk, and waits for nothing.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;

use super::{Cframe, CframeStore};
use crate::format::{self, chunk::ChunkHeader};
use crate::store::backend::{BackendFile, read_exact_at};
use crate::store::error::Complain;
use crate::store::{ChunkKey, Result};

const HEADER: u64 = ChunkHeader::LEN as u64;
/// Chunks with no more bytes between them are read as one.
const NEAR: u64 = 64 << 10;
/// Headers with no more bytes from one to the next are read as one: so many are copied in the time of a system call or two.
const CLOSE: u64 = 8 << 10;
/// No more headers are read as one.
const AT_ONCE: usize = 128;
/// The kernel's smallest page, in bytes.
const PAGE: u64 = 4096;

impl Cframe {
    pub(super) fn expect_whole(&self, chunks: &[(ChunkKey, u32)]) {
        let (file, positions) = self.places(chunks.iter().map(|(key, _)| *key));
        let ranges: Vec<_> = positions.into_iter().zip(chunks).map(|(start, (_, len))| (start, u64::from(*len))).collect();
        // One hint for chunks that follow each other: what is asked for at once is read at once.
        for run in ranges.chunk_by(|(start, len), (next, _)| next.checked_sub(start + len).is_some_and(|gap| gap <= NEAR)) {
            if let (Some((start, _)), Some((last, len))) = (run.first(), run.last()) {
                file.will_need(*start, last + len - start);
            }
        }
    }

    pub(super) fn expect_by_guess(&self, key: ChunkKey, bytes: RangeInclusive<u32>, next: Option<ChunkKey>) {
        let (file, positions) = self.places([key].into_iter().chain(next));
        let Some((start, next)) = positions.split_first() else { return };
        for (from, len) in guess(*start, bytes, next.first().copied()) {
            file.will_need(from, len);
        }
    }
}

impl CframeStore {
    #[expect(clippy::indexing_slicing, reason = "a backend reads no more than there is room for")]
    pub(super) fn read_header(&self, key: ChunkKey) -> Result<ChunkHeader> {
        self.medium.check_version(key).map_err(self.io("read a chunk's header"))?;
        let (file, position) = self.medium.place_of(key);
        let mut bytes = [0; ChunkHeader::LEN];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], position + filled as u64).map_err(self.io("read a chunk's header"))? {
                0 => break,
                n => filled += n,
            }
        }
        self.check_header(&bytes[..filled], position)
    }

    /// A header, as it was read at a position: its sizes agree with each other and with the room there is.
    fn check_header(&self, bytes: &[u8], position: u64) -> Result<ChunkHeader> {
        let inside = |error: format::Error| {
            let offset = error.offset.saturating_add(position);
            self.source.format(format::Error { offset, ..error })
        };
        let header = ChunkHeader::parse(bytes).map_err(inside)?;
        let room = self.medium.limit.load(Relaxed).saturating_sub(position);
        if u64::from(header.cbytes) > room {
            let expected = format!("at most the {room} bytes before the end of the chunks");
            return Err(inside(format::Error::new("chunk: cbytes", 12, header.cbytes, expected)));
        }
        Ok(header)
    }

    /// What the headers at these positions, which are in order, claim as their chunks' lengths; `None` for what cannot be one. Ends
    /// before the first that cannot be read. However odd the rest of a header is, what claims room holds it.
    pub(super) fn read_claims(&self, file: &dyn BackendFile, positions: &[u64]) -> Vec<Option<u64>> {
        const CBYTES: std::ops::Range<usize> = 12..16;
        let mut claims = Vec::with_capacity(positions.len());
        let mut bytes = Vec::new();
        expect_runs(file, positions);
        for run in runs(positions) {
            // No more than a chunk's smallest header: the last one may be at the end.
            let (first, len) = span(run, ChunkHeader::MIN_LEN as u64);
            bytes.resize(len as usize, 0);
            if read_exact_at(file, &mut bytes, first).is_err() {
                break;
            }
            claims.extend(run.iter().map(|position| {
                let cbytes = bytes.get((position - first) as usize..)?.get(CBYTES)?.first_chunk().copied();
                u64::try_from(i32::from_le_bytes(cbytes?)).ok()
            }));
        }
        claims
    }

    pub(super) fn read_lens(&self, keys: &[ChunkKey]) -> Vec<Option<u32>> {
        let (file, positions) = self.medium.places(keys.iter().copied());
        let span = |run| span(run, HEADER);
        expect_runs(&*file, &positions);
        let mut lens = Vec::with_capacity(keys.len());
        let mut bytes = Vec::new();
        for run in runs(&positions) {
            let (first, len) = span(run);
            bytes.resize(len as usize, 0);
            let read = read_exact_at(&*file, &mut bytes, first);
            lens.extend(run.iter().map(|position| {
                read.as_ref().ok()?;
                let header = bytes.get((position - first) as usize..)?.get(..ChunkHeader::LEN)?;
                Some(self.check_header(header, *position).ok()?.cbytes)
            }));
        }
        lens
    }
}

/// From the first header of a run to the end of the last one, each of so many bytes: where, and how many bytes.
fn span(run: &[u64], header: u64) -> (u64, u64) {
    run.first().zip(run.last()).map_or((0, 0), |(first, last)| (*first, last - first + header))
}

/// Asks for all of them at first, so that the disk has them all in hand.
fn expect_runs(file: &dyn BackendFile, positions: &[u64]) {
    for (first, len) in runs(positions).map(|run| span(run, HEADER)) {
        file.will_need(first, len);
    }
}

/// Headers that are read as one.
fn runs(positions: &[u64]) -> impl Iterator<Item = &[u64]> {
    let close = |a: &u64, b: &u64| b.checked_sub(*a).is_some_and(|between| between <= CLOSE);
    positions.chunk_by(close).flat_map(|run| run.chunks(AT_ONCE))
}

/// What to ask the disk for, as positions and lengths: see [`Want::Unknown`](super::Want::Unknown). The
/// header by itself, which is there sooner than the whole.
fn guess(start: u64, bytes: RangeInclusive<u32>, next: Option<u64>) -> impl Iterator<Item = (u64, u64)> {
    let to_next = next.and_then(|next| next.checked_sub(start)).filter(|len| (1..=u64::from(*bytes.end())).contains(len));
    let len = to_next.unwrap_or(u64::from(*bytes.start()));
    let head = (start + HEADER).next_multiple_of(PAGE) - start;
    [(start, head)].into_iter().chain((len > head).then(|| (start + head, len - head)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_lie_close_are_read_as_one() {
        let of = |positions: &[u64]| runs(positions).map(<[_]>::to_vec).collect::<Vec<_>>();
        assert_eq!(of(&[]), Vec::<Vec<u64>>::new());
        assert_eq!(
            of(&[100, 200, 200 + CLOSE, 201 + 2 * CLOSE, 50]),
            [vec![100, 200, 200 + CLOSE], vec![201 + 2 * CLOSE], vec![50]]
        );
        let many: Vec<u64> = (0..300).map(|n| n * 2048).collect();
        assert_eq!(of(&many).iter().map(Vec::len).collect::<Vec<_>>(), [128, 128, 44]);
    }

    #[test]
    fn an_unknown_chunk_ends_where_the_next_begins_or_is_as_long_as_most() {
        let of = |start, bytes, next| guess(start, bytes, next).collect::<Vec<_>>();
        // Up to the next one.
        assert_eq!(of(4096 + 10, 1000..=100_000, Some(4096 + 10 + 60_000)), [(4106, 4086), (8192, 55_914)]);
        // Moved to the front, or farther off than a chunk can be long: a guess.
        assert_eq!(of(8192, 10_000..=100_000, Some(0)), [(8192, 4096), (12288, 5904)]);
        assert_eq!(of(8192, 10_000..=100_000, Some(200_000)), [(8192, 4096), (12288, 5904)]);
        assert_eq!(of(8192, 10_000..=100_000, Some(8192)), [(8192, 4096), (12288, 5904)]);
        // All of it in the header's page, and a header across two.
        assert_eq!(of(0, 1000..=2000, None), [(0, 4096)]);
        assert_eq!(of(4090, 1000..=20_000, None), [(4090, 4102)]);
    }
}
