//! LZ4 blocks, as LZ4 and LZ4HC write them.
//!
//! ```text
//! LLLLMMMM [255 …] [rest]          L literals, L = 15 being continued in bytes until one is not 255, then the literals
//! DDDDDDDD DDDDDDDD [255 …] [rest] a match of M + 4 bytes, M = 15 being continued likewise, at distance D (little endian)
//! ```
//!
//! The last sequence has literals only. This decoder is our own because the safe ones of others copy overlapping matches byte by
//! byte, and the shuffled planes of regular data are little else.

use super::copy::copy_back;

/// Room for any literals and any match whose lengths fit in the token: 14 bytes, taken as 16, and 18.
const QUICK: usize = 16 + 18;

/// Decompresses `input` to `output` and says how many bytes it made; `None` where the block is broken or does not fit. Matches
/// may reach back into `dictionary`, which stands before the output.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "bounded by arrays of fixed sizes inside both sides"
)]
pub(super) fn decompress(input: &[u8], output: &mut [u8], dictionary: &[u8]) -> Option<usize> {
    let (mut from, mut at) = (0_usize, 0_usize);
    loop {
        let token = *input.get(from)?;
        let distance;
        // Far from both ends, what is copied may be more than is needed: the next copy overwrites the rest.
        if token < 0xf0
            && let Some(ahead) = input.get(from..).and_then(|rest| rest.first_chunk::<{ 1 + 16 + 2 }>())
            && let Some(room) = output.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<QUICK>())
        {
            let literals = usize::from(token >> 4);
            room[..16].copy_from_slice(&ahead[1..17]);
            distance = usize::from(u16::from_le_bytes([ahead[1 + literals], ahead[2 + literals]]));
            (from, at) = (from + 1 + literals + 2, at + literals);
            let len = usize::from(token & 15) + 4;
            if len < 15 + 4
                && distance >= len
                && let Some(back) = at.checked_sub(distance)
            {
                output.copy_within(back..back + 18, at);
                at += len;
                continue;
            }
        } else {
            from += 1;
            let literals = length(input, &mut from, token >> 4)?;
            let (after, end) = (from.checked_add(literals)?, at.checked_add(literals)?);
            output.get_mut(at..end)?.copy_from_slice(input.get(from..after)?);
            (from, at) = (after, end);
            if from == input.len() {
                return Some(at);
            }
            distance = usize::from(u16::from_le_bytes(*input.get(from..)?.first_chunk()?));
            from += 2;
        }
        let len = length(input, &mut from, token & 15)?.checked_add(4)?;
        at = match distance.checked_sub(at) {
            None | Some(0) => copy_back(output, at, distance, len)?,
            Some(before) => {
                let known = dictionary.get(dictionary.len().checked_sub(before)?..)?;
                let known = known.get(..len).unwrap_or(known);
                let end = at.checked_add(known.len())?;
                output.get_mut(at..end)?.copy_from_slice(known);
                match len.checked_sub(known.len())? {
                    0 => end,
                    rest => copy_back(output, end, distance, rest)?,
                }
            }
        };
    }
}

/// A length that four bits begin.
#[inline(always)]
fn length(input: &[u8], from: &mut usize, bits: u8) -> Option<usize> {
    let mut length = usize::from(bits);
    if bits == 15 {
        loop {
            let more = *input.get(*from)?;
            *from = from.checked_add(1)?;
            length = length.checked_add(usize::from(more))?;
            if more != 255 {
                break;
            }
        }
    }
    Some(length)
}
