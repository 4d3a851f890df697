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

mod compress;

pub(super) use compress::{Tables, compress};

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
