//! The compressor: the library's search, at all its levels, so that the streams are the library's to the byte.
//!
//! A hash of four bytes says where they stood last. Before anything is written, the same search over a part of the input tells whether
//! it is worth while.

use super::{MAX_COPY, MAX_DISTANCE};

/// Entries of a table.
const SIZE: usize = 1 << 14;
/// From this distance on there are no matches.
const TOO_FAR: usize = 65_535 + MAX_DISTANCE - 1;
/// How far short of its end a match is cut: a token's length counts from 2, and one byte is given to the literals.
const SHIFT: usize = 4;
/// Matches are looked for up to here before the end of the input.
const TAIL: usize = 12;

/// What a level means.
struct Effort {
    /// Bits of a hash.
    hash_bits: u32,
    /// The part of the input that is probed, at its end: one in so many.
    probed: usize,
    /// An input whose probe does not shrink by this factor is left alone.
    worthwhile: f64,
    /// What stands behind a match is noted twice.
    twice: bool,
}

impl Effort {
    fn at(level: u8) -> Self {
        let (hash_bits, probed, worthwhile) = match level {
            0 | 1 => (12, 8, 2.0),
            2 => (13, 4, 1.5),
            3 => (14, 4, 1.2),
            4..=6 => (14, 2, 1.2),
            7 => (14, 1, 1.15),
            8 => (14, 1, 1.1),
            _ => (14, 1, 1.0),
        };
        Effort { hash_bits, probed, worthwhile, twice: level >= 9 }
    }
}

/// Room for the tables of one input after the other: places in short ones need half as much.
pub(in super::super) struct Tables {
    short: Box<[u16; SIZE]>,
    long: Option<Box<[u32; SIZE]>>,
}

impl Default for Tables {
    fn default() -> Self {
        Tables { short: Box::new([0; SIZE]), long: None }
    }
}

/// A place in the input.
trait Place: Copy + Default {
    fn new(at: usize) -> Self;
    fn get(self) -> usize;
}

impl Place for u16 {
    fn new(at: usize) -> Self {
        at as u16
    }

    fn get(self) -> usize {
        self.into()
    }
}

impl Place for u32 {
    fn new(at: usize) -> Self {
        at as u32
    }

    fn get(self) -> usize {
        self as usize
    }
}

/// Compresses `input` to the beginning of `output` and says how long it is: the stream that the library makes at `level`, 1 to 9.
/// `None` where it would not fit or is not worth while.
pub(in super::super) fn compress(level: u8, input: &[u8], output: &mut [u8], tables: &mut Tables) -> Option<usize> {
    // What is longer than any chunk would not fit the places.
    if input.len() < 16 || output.len() < 66 || i32::try_from(input.len()).is_err() {
        return None;
    }
    let effort = Effort::at(level);
    if input.len() <= 1 << 16 {
        compress_with(&effort, input, output, &mut tables.short)
    } else {
        compress_with(&effort, input, output, tables.long.get_or_insert_with(|| Box::new([0; SIZE])))
    }
}

/// Where four bytes with a given hash stood last; 0 where they did not.
struct Search<'a, P> {
    input: &'a [u8],
    table: &'a mut [P; SIZE],
    shift: u32,
}

impl<'a, P: Place> Search<'a, P> {
    fn new(input: &'a [u8], table: &'a mut [P; SIZE], hash_bits: u32) -> Self {
        table.fill(P::default());
        Search { input, table, shift: 32_u32.saturating_sub(hash_bits) }
    }

    /// Notes that `bytes` stand `at` and says where the same hash stood before.
    #[expect(clippy::indexing_slicing, reason = "the index is below SIZE")]
    #[inline(always)]
    fn replace(&mut self, bytes: u32, at: usize) -> usize {
        let hash = bytes.wrapping_mul(2_654_435_761).wrapping_shr(self.shift);
        std::mem::replace(&mut self.table[hash as usize % SIZE], P::new(at)).get()
    }

    /// Looks from `at` on for an earlier copy of what stands there, up to `limit`, which is [`TAIL`] before the end. Matches that
    /// `short` says are too short, by their length and their distance less one, do not count.
    #[expect(clippy::arithmetic_side_effects, reason = "places in an input of our own, of less than 2 GiB")]
    #[inline(always)]
    fn next(&mut self, from: usize, limit: usize, short: impl Fn(usize, usize) -> bool) -> Option<Match> {
        let input = self.input;
        // Nothing where the last match ended behind the limit.
        for (i, window) in input.get(from..limit + 3)?.windows(4).enumerate() {
            let (at, bytes) = (from + i, word(window, 0));
            let before = self.replace(bytes, at);
            // Where nothing stood, the distance is all that lies before.
            let distance = at.wrapping_sub(before).wrapping_sub(1);
            if distance < TOO_FAR - 1 && word(input, before) == bytes {
                let end = self.end(before + 4, at + 4);
                if !short(end - at, distance) {
                    return Some(Match { at, distance, end });
                }
            }
        }
        None
    }

    /// Where a match ends of which all before `at` is known, short of [`SHIFT`].
    #[expect(clippy::arithmetic_side_effects, reason = "places in an input of our own, of less than 2 GiB")]
    #[inline(always)]
    fn end(&self, before: usize, at: usize) -> usize {
        let bound = self.input.len() - 1;
        let (ahead, behind) = (self.input.get(at..bound), self.input.get(before..));
        (at + common(ahead.unwrap_or_default(), behind.unwrap_or_default()) + 1).min(bound) - SHIFT
    }
}

/// A match from `at` to `end`, but for [`SHIFT`].
struct Match {
    at: usize,
    /// Less one.
    distance: usize,
    end: usize,
}

/// The four bytes `at`.
#[expect(clippy::arithmetic_side_effects, reason = "places in an input of our own, of less than 2 GiB")]
#[inline(always)]
fn word(input: &[u8], at: usize) -> u32 {
    input.get(at..at + 4).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// How many bytes of `a` begin `b`, too.
#[inline(always)]
fn common(a: &[u8], b: &[u8]) -> usize {
    let mut same = 0_usize;
    // Long matches are what takes time.
    for (x, y) in a.as_chunks::<32>().0.iter().zip(b.as_chunks::<32>().0) {
        if x != y {
            break;
        }
        same = same.saturating_add(32);
    }
    let rest = |s, same| <[u8]>::get(s, same..).unwrap_or_default();
    for (x, y) in rest(a, same).as_chunks::<8>().0.iter().zip(rest(b, same).as_chunks::<8>().0) {
        let differ = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differ != 0 {
            return same.saturating_add((differ.trailing_zeros() / 8) as usize);
        }
        same = same.saturating_add(8);
    }
    same.saturating_add(rest(a, same).iter().zip(rest(b, same)).take_while(|(x, y)| x == y).count())
}

#[expect(clippy::arithmetic_side_effects, reason = "places in an input of our own, of 16 bytes to 2 GiB")]
fn compress_with<P: Place>(effort: &Effort, input: &[u8], output: &mut [u8], table: &mut [P; SIZE]) -> Option<usize> {
    if probe(effort, input, table) < effort.worthwhile {
        return None;
    }
    let mut search = Search::new(input, table, effort.hash_bits);
    let mut out = Writer { output, at: 0, literals: 0 };
    out.open_literals()?;
    out.literals(input, 0, 4)?;
    let limit = input.len() - TAIL;
    let mut at = 4;
    // Short far matches cost the decoder more than they save.
    let short = |len, distance| len <= if distance < MAX_DISTANCE { 3 } else { 5 };
    while let Some(found) = search.next(at, limit, short) {
        out.literals(input, at, found.at)?;
        out.close_literals();
        out.copy(found.end - found.at, found.distance)?;
        let bytes = word(input, found.end);
        search.replace(bytes, found.end);
        if effort.twice {
            search.replace(bytes >> 8, found.end + 1);
        }
        at = found.end + 2;
        out.open_literals()?;
    }
    out.literals(input, at, input.len())?;
    out.close_literals();
    *out.output.first_mut()? |= 1 << 5;
    Some(out.at)
}

/// The ratio to expect, from a part of `input`: the same search, counting what it would write.
#[expect(clippy::arithmetic_side_effects, reason = "places and sizes in an input of our own, of less than 2 GiB")]
fn probe<P: Place>(effort: &Effort, input: &[u8], table: &mut [P; SIZE]) -> f64 {
    let part = input.get(input.len() - input.len() / effort.probed..).unwrap_or_default();
    let input = part.get(..1 << effort.hash_bits).unwrap_or(part);
    let mut search = Search::new(input, table, effort.hash_bits);
    let (mut written, mut literals, mut at) = (5_usize, 4, 0);
    let limit = input.len().saturating_sub(TAIL);
    loop {
        let found = search.next(at, limit, |len, _| len <= 3);
        let next = found.as_ref().map_or(limit.max(at), |found| found.at);
        let new = next - at;
        written += new + (literals + new) / MAX_COPY;
        literals = (literals + new) % MAX_COPY;
        at = next;
        let Some(Match { distance, end, .. }) = found else { break };
        let len = end - at;
        written += if distance < MAX_DISTANCE { 3 } else { 5 } - usize::from(literals == 0);
        written += if len < 7 { 0 } else { (len - 7) / 255 + 1 };
        literals = 0;
        search.replace(word(input, end), end);
        at = end + 2;
    }
    at as f64 / written as f64
}

/// A stream being written. The byte before the current run of literals is kept for its token.
struct Writer<'a> {
    output: &'a mut [u8],
    at: usize,
    /// Literals since the token; never [`MAX_COPY`].
    literals: usize,
}

#[expect(clippy::arithmetic_side_effects, reason = "places in a stream that is shorter than 2 GiB")]
impl Writer<'_> {
    /// `None` where there are not `n` bytes left.
    fn need(&self, n: usize) -> Option<()> {
        (self.at + n <= self.output.len()).then_some(())
    }

    fn put(&mut self, byte: u8) -> Option<()> {
        *self.output.get_mut(self.at)? = byte;
        self.at += 1;
        Some(())
    }

    fn open_literals(&mut self) -> Option<()> {
        self.literals = 0;
        self.put(MAX_COPY as u8 - 1)
    }

    /// Literals from `from` to `to`.
    #[inline(always)]
    fn literals(&mut self, input: &[u8], mut from: usize, to: usize) -> Option<()> {
        while from < to {
            let n = (to - from).min(MAX_COPY - self.literals);
            // The token of the next run is asked for with each literal: that is where the library gives up.
            self.need(n + 1)?;
            match (
                input.get(from..).and_then(|rest| rest.first_chunk::<MAX_COPY>()),
                self.output.get_mut(self.at..).and_then(|room| room.first_chunk_mut::<MAX_COPY>()),
            ) {
                // More than is needed, which is overwritten by what comes next.
                (Some(ahead), Some(room)) => *room = *ahead,
                _ => self.output.get_mut(self.at..self.at + n)?.copy_from_slice(input.get(from..from + n)?),
            }
            (from, self.at, self.literals) = (from + n, self.at + n, self.literals + n);
            if self.literals == MAX_COPY {
                self.open_literals()?;
            }
        }
        Some(())
    }

    fn close_literals(&mut self) {
        match self.literals {
            0 => self.at -= 1,
            n => {
                if let Some(token) = self.output.get_mut(self.at - n - 1) {
                    *token = n as u8 - 1;
                }
            }
        }
    }

    /// A match of `len` + 2 bytes, with the distance less one.
    #[inline(always)]
    fn copy(&mut self, len: usize, distance: usize) -> Option<()> {
        let far = distance.checked_sub(MAX_DISTANCE);
        let high = if far.is_some() { 31 } else { (distance >> 8) as u8 };
        let tail = if far.is_some() { 4 } else { 2 };
        if len < 7 {
            self.need(tail)?;
            self.put(((len as u8) << 5) | high)?;
        } else {
            self.put((7 << 5) | high)?;
            let mut rest = len - 7;
            while rest >= 255 {
                self.put(255)?;
                rest -= 255;
            }
            self.need(tail)?;
            self.put(rest as u8)?;
        }
        match far {
            Some(far) => [255, (far >> 8) as u8, far as u8].into_iter().try_for_each(|byte| self.put(byte)),
            None => self.put(distance as u8),
        }
    }
}
