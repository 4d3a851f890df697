//! The encoder: what [`Decoder`](super::super::Decoder) undoes.
//!
//! The chunks are laid out as C-Blosc2 does with one thread: blocks in order, runs of one byte without the codec, streams that do not
//! shrink as they are, a chunk that would not shrink as a plain copy, and one of zeros only as a special value.

use super::super::super::{Error, Result};
use super::super::filters::forward;
use super::super::header::{self, ChunkHeader};
use super::codecs::Codecs;
use super::params::{Params, Plan, Step};

/// Below this size the library does not try to compress.
const MIN_BUFFER: usize = 32;
/// The most that a chunk holds.
const MAX: usize = i32::MAX as usize - ChunkHeader::LEN;

/// An encoder that keeps codec states and buffers from one chunk to the next.
#[derive(Default)]
pub struct Encoder {
    codecs: Codecs,
    buffers: Buffers,
}

/// Room for a block each.
#[derive(Default)]
struct Buffers {
    /// Two that the filters take turns with.
    turns: [Vec<u8>; 2],
    /// What bitshuffle needs besides.
    planes: Vec<u8>,
    /// The block that delta compares with.
    reference: Vec<u8>,
    /// A compressed stream.
    stream: Vec<u8>,
}

/// The first `len` bytes of a buffer that grows where it has to.
fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        *buffer = vec![0; len];
    }
    buffer.get_mut(..len).unwrap_or_default()
}

impl Encoder {
    /// Encodes `bytes` as one chunk, which is what `out` then holds: at most 32 bytes more than `bytes`.
    ///
    /// # Errors
    /// More than a chunk can hold, or parameters that no chunk can have: codecs and filters that are plugins, a level above 9, sizes
    /// that are 0, precision truncated of items that are not of 4 or 8 bytes, delta behind a filter that moves bytes.
    pub fn encode(&mut self, bytes: &[u8], params: &Params, out: &mut Vec<u8>) -> Result<()> {
        if bytes.len() > MAX {
            return Err(Error::new("chunk: nbytes", header::NBYTES as u64, bytes.len(), format_args!("at most {MAX}")));
        }
        let plan = params.plan(bytes.len())?;
        out.clear();
        let always = header::SHUFFLE | header::BITSHUFFLE;
        if params.level == 0 || bytes.len() < MIN_BUFFER {
            head(params, &plan, bytes.len(), always | header::MEMCPY, out);
            out.extend_from_slice(bytes);
        } else {
            let delta = if plan.steps.contains(&Step::Delta) { header::DELTA } else { 0 };
            let split = if plan.split { 0 } else { header::DONT_SPLIT };
            let flags = always | delta | split | params.format()? << 5;
            head(params, &plan, bytes.len(), flags, out);
            if self.compress(bytes, params, &plan, out).is_none() {
                out.clear();
                head(params, &plan, bytes.len(), flags | header::MEMCPY, out);
                out.extend_from_slice(bytes);
            }
        }
        let cbytes = out.len() as u32;
        if let Some(field) = out.get_mut(header::CBYTES..).and_then(|rest| rest.first_chunk_mut()) {
            *field = cbytes.to_le_bytes();
        }
        Ok(())
    }

    /// Appends all blocks; `None` where the chunk would be longer than a plain copy.
    fn compress(&mut self, bytes: &[u8], params: &Params, plan: &Plan, out: &mut Vec<u8>) -> Option<()> {
        let limit = bytes.len().checked_add(ChunkHeader::LEN)?;
        let count = bytes.len().div_ceil(plan.blocksize);
        let starts_end = ChunkHeader::LEN.checked_add(count.checked_mul(4)?)?;
        if starts_end > limit {
            return None;
        }
        out.resize(starts_end, 0);
        if plan.steps.contains(&Step::Delta) {
            self.keep_reference(bytes.get(..plan.blocksize)?, plan);
        }
        let mut streams = 0_usize;
        for (n, block) in bytes.chunks(plan.blocksize).enumerate() {
            let at = out.len() as u32;
            let field = ChunkHeader::LEN.checked_add(n.checked_mul(4)?)?;
            *out.get_mut(field..)?.first_chunk_mut()? = at.to_le_bytes();
            let Buffers { turns, planes, reference, stream } = &mut self.buffers;
            let reference = (n > 0).then_some(reference.as_slice());
            let block = filter(block, plan, reference, turns, planes);
            let parts = if plan.split && block.len() == plan.blocksize { plan.typesize } else { 1 };
            let size = block.len().checked_div(parts)?;
            for part in block.chunks_exact(size) {
                let stream = room(stream, size);
                append(part, limit, out, |room| {
                    let stream = stream.get_mut(..room)?;
                    let made = self.codecs.encode(params.codec, params.level, part, stream)?;
                    stream.get(..made)
                })?;
            }
            streams = streams.checked_add(parts)?;
        }
        if out.len() == starts_end.checked_add(streams.checked_mul(4)?)? {
            // Nothing but runs of zeros.
            out.truncate(ChunkHeader::LEN);
            *out.get_mut(header::BLOSC2_FLAGS)? |= 1 << 4;
        }
        Some(())
    }

    /// Keeps the first block as readers will see it.
    fn keep_reference(&mut self, first: &[u8], plan: &Plan) {
        let reference = room(&mut self.buffers.reference, first.len());
        reference.copy_from_slice(first);
        for step in &plan.steps {
            if let Step::Truncate(mask) = step {
                forward::truncate(plan.typesize, *mask, first, reference);
            }
        }
    }
}

/// Appends one stream, which `encode` makes where it must, in as many bytes as it is given at most. `None` where it does not fit in
/// `limit`.
fn append<'a>(part: &[u8], limit: usize, out: &mut Vec<u8>, encode: impl FnOnce(usize) -> Option<&'a [u8]>) -> Option<()> {
    let left = limit.checked_sub(out.len())?.checked_sub(4)?;
    let (value, rest) = part.split_first()?;
    if is_run(*value, rest) {
        out.extend(i32::from(*value).wrapping_neg().to_le_bytes());
        if *value > 0 {
            left.checked_sub(1)?;
            out.push(1);
        }
        return Some(());
    }
    // A stream of its own uncompressed size would be read as a plain one.
    let stream = encode(left.min(part.len())).filter(|stream| stream.len() != part.len()).unwrap_or(part);
    left.checked_sub(stream.len())?;
    out.extend((stream.len() as u32).to_le_bytes());
    out.extend_from_slice(stream);
    Some(())
}

fn is_run(value: u8, bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<32>();
    chunks.iter().all(|chunk| *chunk == [value; 32]) && rest.iter().all(|byte| *byte == value)
}

/// Applies all filters to a block. What comes out is the block itself or one of `turns`.
fn filter<'a>(
    block: &'a [u8],
    plan: &Plan,
    reference: Option<&[u8]>,
    turns: &'a mut [Vec<u8>; 2],
    planes: &mut Vec<u8>,
) -> &'a [u8] {
    let [from, to] = turns;
    let len = |at: usize| if plan.steps.len() > at { block.len() } else { 0 };
    let (mut to, mut from) = (room(from, len(0)), room(to, len(1)));
    let mut filtered = false;
    for step in &plan.steps {
        let source = if filtered { &*from } else { block };
        match step {
            Step::Shuffle(size) => forward::shuffle(*size, source, to),
            Step::BitShuffle => forward::bitshuffle(plan.typesize, source, to, room(planes, block.len())),
            Step::Delta => forward::delta(plan.typesize, source, to, reference),
            Step::Truncate(mask) => forward::truncate(plan.typesize, *mask, source, to),
        }
        std::mem::swap(&mut from, &mut to);
        filtered = true;
    }
    if filtered { from } else { block }
}

/// Appends a header whose cbytes is still open.
fn head(params: &Params, plan: &Plan, nbytes: usize, flags: u8, out: &mut Vec<u8>) {
    out.extend([header::VERSION_STABLE, 1, flags, plan.typesize as u8]);
    out.extend((nbytes as u32).to_le_bytes());
    out.extend((plan.blocksize as u32).to_le_bytes());
    out.extend([0; 4]);
    out.extend(params.filters.map(|(id, _)| id.0));
    out.extend([params.codec.0, 0]);
    out.extend(params.filters.map(|(_, meta)| meta));
    out.extend([0; 2]);
}
