//! The copy that codecs of the LZ77 family are made of: bytes of the output again, perhaps those that are just being written.

/// Matches up to this length are copied in steps of 16 bytes.
const SHORT: usize = 64;

/// Repeats at `at` the `len` bytes that stand `distance` before it, which may overlap what is written, and says where they end;
/// `None` where there are none or they do not fit. Behind them, up to 32 bytes may be overwritten.
#[inline(always)]
pub(super) fn copy_back(output: &mut [u8], at: usize, distance: usize, len: usize) -> Option<usize> {
    let from = at.checked_sub(distance)?;
    let end = at.checked_add(len)?;
    if distance == 0 || end > output.len() {
        return None;
    }
    if distance == 1 {
        let value = *output.get(from)?;
        output.get_mut(at..end)?.fill(value);
    } else if len <= SHORT && end.saturating_add(32) <= output.len() {
        copy_short(output, at, distance, end);
    } else {
        copy_long(output, at, from, end)?;
    }
    Some(end)
}

/// Of each distance below 8: what repeats the first bytes of a word at that distance when they are multiplied with it, and how
/// many bytes of the product can be followed by the product again.
const PATTERNS: [(u64, usize); 8] = [
    (0, 8),
    (0x0101_0101_0101_0101, 8),
    (0x0001_0001_0001_0001, 8),
    (0x0001_0000_0100_0001, 6),
    (0x0000_0001_0000_0001, 8),
    (0x0000_0100_0000_0001, 5),
    (0x0001_0000_0000_0001, 6),
    (0x0100_0000_0000_0001, 7),
];

/// In steps that may go beyond `end`, behind which there are 32 bytes.
#[expect(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "distance <= at <= end <= len - 32")]
#[inline(always)]
fn copy_short(output: &mut [u8], mut at: usize, mut distance: usize, end: usize) {
    if distance < 8 {
        let (multiplier, step) = PATTERNS[distance];
        let before = output[at - distance..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let unused = 64 - 8 * distance as u32;
        let pattern = ((before << unused) >> unused).wrapping_mul(multiplier).to_le_bytes();
        for i in 0..4 {
            output[at + i * step..][..8].copy_from_slice(&pattern);
        }
        // Three steps are enough for a distance of at least 16, and whole repetitions.
        (at, distance) = (at + 3 * step, distance + 3 * step);
    } else if distance < 16 {
        output.copy_within(at - distance..at - distance + 8, at);
        output.copy_within(at - distance + 8..at - distance + 16, at + 8);
        (at, distance) = (at + distance, 2 * distance);
    }
    while at < end {
        output.copy_within(at - distance..at - distance + 16, at);
        at += 16;
    }
}

/// What was copied can be copied again: each round doubles what there is.
fn copy_long(output: &mut [u8], at: usize, from: usize, end: usize) -> Option<()> {
    let mut done = at;
    while done < end {
        let have = done.checked_sub(from)?;
        let step = have.min(end.checked_sub(done)?);
        output.copy_within(from..from.checked_add(step)?, done);
        done = done.checked_add(step)?;
    }
    Some(())
}

/// Fills `out` with a value that is repeated from offset 0 on, of which `out` begins at `offset`.
pub fn fill_run(value: &[u8], offset: usize, out: &mut [u8]) {
    if let [byte] = value {
        return out.fill(*byte);
    }
    let phase = offset.checked_rem(value.len()).unwrap_or(0);
    let (behind, before) = (value.get(phase..).unwrap_or_default(), value.get(..phase).unwrap_or_default());
    let mut rest = &mut *out;
    for part in [behind, before] {
        let len = part.len().min(rest.len());
        let (first, others) = std::mem::take(&mut rest).split_at_mut(len);
        first.copy_from_slice(part.get(..len).unwrap_or_default());
        rest = others;
    }
    let (len, left) = (value.len(), rest.len());
    if left > 0 {
        copy_back(out, len, len, left);
    }
}
