//! BloscLZ, the codec of Blosc's own: byte-oriented LZ77 with two kinds of tokens.
//!
//! ```text
//! 000LLLLL                                   L + 1 literal bytes follow
//! LLLDDDDD [255 …] [rest] DDDDDDDD           a match of L + 2 bytes at distance D + 1; L = 7 is continued in bytes until one is not 255
//! LLL11111 [255 …] [rest] 255 HHHHHHHH LLLLLLLL   the same at distance H·256 + L + 8192
//! ```
//!
//! The first token is always a literal run: its upper bits mark the format.

use super::copy::copy_back;

/// Longest run of literals of one token.
const MAX_COPY: usize = 32;
/// From this distance (less one) on a match needs the long form.
const MAX_DISTANCE: usize = 8191;

/// Decompresses `input` to `output` and says how many bytes it made; `None` where the stream is not BloscLZ or does not fit.
pub(super) fn decompress(mut input: &[u8], output: &mut [u8]) -> Option<usize> {
    let mut at = 0_usize;
    let mut token = take(&mut input)? & 31;
    loop {
        if token < 32 {
            let (literals, rest) = input.split_at_checked(usize::from(token).checked_add(1)?)?;
            let end = at.checked_add(literals.len())?;
            match (input.first_chunk::<MAX_COPY>(), output.get_mut(at..).and_then(|room| room.first_chunk_mut::<MAX_COPY>())) {
                // More than is needed, which the next copy overwrites.
                (Some(ahead), Some(room)) => *room = *ahead,
                _ => output.get_mut(at..end)?.copy_from_slice(literals),
            }
            (at, input) = (end, rest);
        } else {
            let mut len = usize::from(token >> 5).checked_add(2)?;
            if token >> 5 == 7 {
                loop {
                    let more = take(&mut input)?;
                    len = len.checked_add(usize::from(more))?;
                    if more != 255 {
                        break;
                    }
                }
            }
            let low = take(&mut input)?;
            // As the library does: only a far match may end a stream.
            if input.is_empty() {
                return None;
            }
            let mut back = usize::from(token & 31).checked_shl(8)?.checked_add(usize::from(low))?;
            if token & 31 == 31 && low == 255 {
                let far = u16::from_be_bytes([take(&mut input)?, take(&mut input)?]);
                back = usize::from(far).checked_add(MAX_DISTANCE)?;
            }
            at = copy_back(output, at, back.checked_add(1)?, len)?;
        }
        match take(&mut input) {
            Some(next) => token = next,
            None => return Some(at),
        }
    }
}

fn take(input: &mut &[u8]) -> Option<u8> {
    let (first, rest) = input.split_first()?;
    *input = rest;
    Some(*first)
}

/// Bits of a hash.
const HASH_BITS: u32 = 14;
/// How far short of its end a match is cut: a token's length counts from 2, and one byte is given to the literals.
const SHIFT: usize = 4;
/// Matches are looked for up to here before the end of the input.
const TAIL: usize = 12;
/// At level 5 the library leaves a block alone that a probe of its second half does not shrink by this factor.
const WORTHWHILE: f64 = 1.2;

/// Where four bytes with a given hash stood last; 0 where they did not.
pub(super) struct Table(Box<[u16; 1 << HASH_BITS]>);

impl Default for Table {
    fn default() -> Self {
        Table(Box::new([0; 1 << HASH_BITS]))
    }
}

impl Table {
    /// Notes that `bytes` stand `at` and says where the same hash stood before.
    fn replace(&mut self, bytes: u32, at: usize) -> usize {
        let hash = bytes.wrapping_mul(2_654_435_761) >> (32 - HASH_BITS);
        match self.0.get_mut(hash as usize) {
            Some(slot) => usize::from(std::mem::replace(slot, at as u16)),
            None => at,
        }
    }

    /// Looks for an earlier copy of what stands `at`: its distance less one, and the place at which the match ends, short of
    /// [`SHIFT`].
    fn find(&mut self, input: &[u8], at: usize) -> Option<(usize, usize)> {
        let bytes = word(input, at);
        let before = self.replace(bytes, at);
        let distance = at.checked_sub(before)?.checked_sub(1)?;
        if word(input, before) != bytes {
            return None;
        }
        let bound = input.len().checked_sub(1)?;
        let from = at.checked_add(4)?;
        let (ahead, behind) = (input.get(from..bound)?, input.get(before.checked_add(4)?..)?);
        let end = from.checked_add(common(ahead, behind))?.checked_add(1)?.min(bound);
        Some((distance, end.checked_sub(SHIFT)?))
    }
}

/// The four bytes `at`.
fn word(input: &[u8], at: usize) -> u32 {
    input.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// How many bytes of `a` begin `b`, too.
fn common(a: &[u8], b: &[u8]) -> usize {
    let ((a8, _), (b8, _)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut same = 0_usize;
    for (x, y) in a8.iter().zip(b8) {
        let differ = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differ != 0 {
            return same.saturating_add((differ.trailing_zeros() / 8) as usize);
        }
        same = same.saturating_add(8);
    }
    let rest = |s| <[u8]>::get(s, same..).unwrap_or_default();
    same.saturating_add(rest(a).iter().zip(rest(b)).take_while(|(x, y)| x == y).count())
}

/// Compresses `input`, at most 64 KiB, to the beginning of `output` and says how long it is: the stream that the library makes at
/// level 5. `None` where it would not fit or is not worth while.
#[expect(clippy::arithmetic_side_effects, reason = "positions in a block of our own, of at most 64 KiB")]
pub(super) fn compress(input: &[u8], output: &mut [u8], table: &mut Table) -> Option<usize> {
    if input.len() < 16 || output.len() < 66 || probe(input, table) < WORTHWHILE {
        return None;
    }
    table.0.fill(0);
    let mut out = Writer { output, at: 0, literals: 0 };
    out.open_literals()?;
    for &byte in input.get(..4)? {
        out.literal(byte)?;
    }
    let limit = input.len() - TAIL;
    let mut at = 4;
    while at < limit {
        match table.find(input, at) {
            // Short far matches cost the decoder more than they save.
            Some((distance, end)) if end - at > if distance < MAX_DISTANCE { 3 } else { 5 } => {
                out.close_literals();
                out.copy(end - at, distance)?;
                table.replace(word(input, end), end);
                at = end + 2;
                out.open_literals()?;
            }
            _ => {
                out.literal(*input.get(at)?)?;
                at += 1;
            }
        }
    }
    for &byte in input.get(at..)? {
        out.literal(byte)?;
    }
    out.close_literals();
    *out.output.first_mut()? |= 1 << 5;
    Some(out.at)
}

/// The ratio to expect, from the second half of `input`: the same search, counting what it would write.
#[expect(clippy::arithmetic_side_effects, reason = "positions and sizes in a block of our own, of at most 64 KiB")]
fn probe(input: &[u8], table: &mut Table) -> f64 {
    let half = input.get(input.len() - input.len() / 2..).unwrap_or_default();
    let input = half.get(..1 << HASH_BITS).unwrap_or(half);
    table.0.fill(0);
    let (mut written, mut literals, mut at) = (5_usize, 4, 0);
    let limit = input.len().saturating_sub(TAIL);
    while at < limit {
        match table.find(input, at) {
            Some((distance, end)) if end - at > 3 => {
                let len = end - at;
                written += if distance < MAX_DISTANCE { 3 } else { 5 } - usize::from(literals == 0);
                written += if len < 7 { 0 } else { (len - 7) / 255 + 1 };
                literals = 0;
                table.replace(word(input, end), end);
                at = end + 2;
            }
            _ => {
                at += 1;
                written += 1;
                literals += 1;
                if literals == MAX_COPY {
                    literals = 0;
                    written += 1;
                }
            }
        }
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

#[expect(clippy::arithmetic_side_effects, reason = "positions in a block of our own, of at most 64 KiB")]
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

    fn literal(&mut self, byte: u8) -> Option<()> {
        // The token of the next run is asked for with each literal: that is where the library gives up.
        self.need(2)?;
        self.put(byte)?;
        self.literals += 1;
        if self.literals == MAX_COPY { self.open_literals() } else { Some(()) }
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
