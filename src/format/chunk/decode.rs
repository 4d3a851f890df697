//! The decoder, and the check that needs no decoding: both walk over the same streams.
//!
//! A block is one stream, or, where it is split, one for each byte of an item. A stream is an i32 csize and what it announces:
//!
//! | csize | stream |
//! | --- | --- |
//! | 0 | zeros |
//! | negative | a token byte; with bit 0 a run of the byte -csize, nothing else is defined |
//! | the stream's uncompressed size | the bytes as they are |
//! | other | csize bytes of the codec |
//!
//! In a chunk of VL-blocks the field holds the block's uncompressed size, and its stream ends where the next block begins.

use super::super::registry::{FilterId, Plugin};
use super::super::{Error, Result, Special};
use super::ChunkHeader;
use super::codec::{Codecs, Dictionary};
use super::copy::copy_back;
use super::filters::{self, Filter};
use super::header::{self as field, Blocks, Content, read_i32};

/// What a chunk of one value repeated is decoded to at once, in bytes.
const PIECE: usize = 64 << 10;

/// A decoder that keeps codec states and buffers from one chunk to the next.
#[derive(Default)]
pub struct Decoder {
    codecs: Codecs,
    /// Room for one block each: two that the filters take turns with, and one that bitshuffle needs besides.
    buffers: [Vec<u8>; 3],
}

/// The first `len` bytes of a buffer that grows where it has to.
fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        *buffer = vec![0; len];
    }
    buffer.get_mut(..len).unwrap_or_default()
}

/// One block: where its bytes go, and where its streams begin.
pub(super) struct Block {
    /// Its number.
    pub(super) n: u32,
    /// Offset of the field that holds the start.
    pub(super) field: u64,
    /// Where its streams begin in the chunk.
    pub(super) start: usize,
    /// Where the streams must end.
    pub(super) end: usize,
    /// Its place in the decoded chunk.
    pub(super) offset: usize,
    /// Its uncompressed size.
    pub(super) size: usize,
    /// How many streams it is split in.
    pub(super) streams: usize,
}

/// What a stream holds.
enum Stream<'a> {
    Run(u8),
    Plain(&'a [u8]),
    Coded(&'a [u8]),
}

/// Checks that `bytes` is one whole chunk: the header, its length, and every block start and stream length, without decoding data.
///
/// # Errors
/// When C-Blosc2 would not decode it for what is checked here, or the chunk ends before or after its cbytes.
pub fn check(bytes: &[u8]) -> Result<ChunkHeader> {
    let header = ChunkHeader::parse(bytes)?;
    if bytes.len() as u64 != u64::from(header.cbytes) {
        return Err(Error::new(
            "chunk: cbytes",
            field::CBYTES as u64,
            header.cbytes,
            format_args!("{}, the size of the chunk", bytes.len()),
        ));
    }
    let blocks = header.blocks(bytes)?;
    if header.content == Content::Blocks {
        each_block(&header, bytes, &blocks, |block| each_stream(bytes, &block, header.vl_blocks, |_, _| Ok(())))?;
    }
    Ok(header)
}

/// Decodes a whole chunk of any standard codec and filter. `limit` bounds the size of the answer.
///
/// # Errors
/// As [`Decoder::decode`].
pub fn decode(bytes: &[u8], limit: usize) -> Result<Vec<u8>> {
    Decoder::default().decode(bytes, limit)
}

impl Decoder {
    /// Decodes a whole chunk of any standard codec and filter. `limit` bounds the size of the answer. What was never initialised
    /// reads as zeros.
    ///
    /// # Errors
    /// When C-Blosc2 would not decode the chunk, when it needs a plugin, or when it is larger than `limit`.
    pub fn decode(&mut self, bytes: &[u8], limit: usize) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.decode_into(bytes, limit, &mut out)?;
        Ok(out)
    }

    /// As [`Decoder::decode`], into a buffer that is made to fit; after an error it holds nothing of use.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn decode_into(&mut self, bytes: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<()> {
        let header = ChunkHeader::parse(bytes)?;
        if header.nbytes as usize > limit {
            return Err(Error::new("chunk: nbytes", field::NBYTES as u64, header.nbytes, format_args!("at most {limit}")));
        }
        let Some(chunk) = bytes.get(..header.cbytes as usize) else {
            return Err(Error::new(
                "chunk: cbytes",
                field::CBYTES as u64,
                header.cbytes,
                format_args!("at most {}, what there is", bytes.len()),
            ));
        };
        let blocks = header.blocks(chunk)?;
        let fresh = out.capacity() < header.nbytes as usize;
        if fresh {
            *out = vec![0; header.nbytes as usize];
        } else {
            out.resize(header.nbytes as usize, 0);
        }
        let value = chunk.get(header.len..).unwrap_or_default();
        match header.content {
            Content::Special(Special::Zeros | Special::Uninit) if fresh => {}
            Content::Special(Special::Zeros | Special::Uninit) => out.fill(0),
            Content::Special(Special::Nan) if out.is_empty() => {}
            Content::Special(Special::Nan) => fill(&header, out, nan(header.typesize)?)?,
            Content::Value(_) => fill(&header, out, value)?,
            // Their lengths were compared when the header was parsed.
            Content::Copy => out.iter_mut().zip(value).for_each(|(to, from)| *to = *from),
            Content::Blocks => self.decode_blocks(&header, chunk, &blocks, out)?,
        }
        Ok(())
    }

    /// As [`Decoder::decode`], a piece at a time, in order: no more is held than one block and the first. `take` gets each piece; a block
    /// may have no more than `most` bytes.
    ///
    /// # Errors
    /// As [`Decoder::decode`], what `take` answers, and a block that is larger than that.
    pub fn decode_pieces(&mut self, bytes: &[u8], most: usize, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let header = ChunkHeader::parse(bytes)?;
        let Some(chunk) = bytes.get(..header.cbytes as usize) else {
            let there = bytes.len();
            let expected = format_args!("at most {there}, what there is");
            return Err(Error::new("chunk: cbytes", field::CBYTES as u64, header.cbytes, expected));
        };
        let blocks = header.blocks(chunk)?;
        let value = chunk.get(header.len..).unwrap_or_default();
        let value = match header.content {
            Content::Special(Special::Zeros | Special::Uninit) => &[0],
            Content::Special(Special::Nan) if header.nbytes == 0 => &[0],
            Content::Special(Special::Nan) => nan(header.typesize)?,
            Content::Value(_) => value,
            Content::Copy => return take(value.get(..header.nbytes as usize).unwrap_or(value)),
            Content::Blocks => return self.decode_each(&header, chunk, &blocks, most, take),
        };
        if !matches!(header.content, Content::Special(Special::Zeros | Special::Uninit)) {
            check_fill(&header, value.len())?;
        }
        // Whole values, so that each piece begins as the first does.
        let piece = value.repeat(PIECE.checked_div(value.len()).unwrap_or(0).max(1));
        let mut left = header.nbytes as usize;
        while left > 0 {
            let part = piece.get(..left.min(piece.len())).unwrap_or_default();
            take(part)?;
            left = left.saturating_sub(part.len().max(1));
        }
        Ok(())
    }

    fn decode_each(
        &mut self,
        header: &ChunkHeader,
        chunk: &[u8],
        blocks: &Blocks,
        most: usize,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let steps = Steps::of(header, Codecs::dictionary(header.codec, blocks.dict, blocks.starts_end)?)?;
        // Delta takes what the first block is from all others; a VL-block is compressed as if it stood alone.
        let delta = steps.pipeline.contains(&Filter::Delta) && !header.vl_blocks;
        let (mut first, mut target) = (None::<Vec<u8>>, Vec::new());
        each_block(header, chunk, blocks, |block| {
            if block.size > most {
                let expected = format_args!("at most {most} bytes in a block");
                return Err(Error::new("chunk: blocksize", field::BLOCKSIZE as u64, block.size, expected));
            }
            let target = room(&mut target, block.size);
            let before = first.as_ref().and_then(|first| first.get(..block.size));
            self.decode_block(header, chunk, &block, &steps, before, target)?;
            if delta && first.is_none() {
                first = Some(target.to_vec());
            }
            take(target)
        })
    }

    /// Checks that a whole chunk decodes, as [`check`] does and its streams besides. Nothing is kept of what they make, so the memory
    /// that it takes is what one stream makes, which is bounded by the stream's length. What needs a plugin
    /// ([`ChunkHeader::plugin`]) passes as far as it can be looked at without.
    ///
    /// # Errors
    /// As [`check`] and [`Decoder::decode`].
    pub fn verify(&mut self, bytes: &[u8]) -> Result<ChunkHeader> {
        let header = check(bytes)?;
        match header.content {
            Content::Value(size) => check_fill(&header, size as usize)?,
            Content::Blocks => {
                let plugin = header.plugin();
                if let Some(Plugin::Codec(_)) = plugin {
                    return Ok(header);
                }
                if plugin.is_none() {
                    pipeline(&header)?;
                }
                let blocks = header.blocks(bytes)?;
                let dictionary = Codecs::dictionary(header.codec, blocks.dict, blocks.starts_end)?;
                each_block(&header, bytes, &blocks, |block| {
                    each_stream(bytes, &block, header.vl_blocks, |stream, size| {
                        let Stream::Coded(coded) = stream else { return Ok(()) };
                        header.codec.can_make(coded.len(), size, block.start)?;
                        let [stage, ..] = &mut self.buffers;
                        self.codecs.decode(header.codec, &dictionary, coded, room(stage, size), block.start)
                    })
                })?;
            }
            Content::Special(Special::Nan) if header.nbytes > 0 => check_fill(&header, nan(header.typesize)?.len())?,
            Content::Copy | Content::Special(_) => {}
        }
        Ok(header)
    }

    fn decode_blocks(&mut self, header: &ChunkHeader, chunk: &[u8], blocks: &Blocks, out: &mut [u8]) -> Result<()> {
        let steps = Steps::of(header, Codecs::dictionary(header.codec, blocks.dict, blocks.starts_end)?)?;
        each_block(header, chunk, blocks, |block| {
            let inside =
                |what: &[u8]| Error::new("chunk: block", block.field, block.size, format_args!("at most {}", what.len()));
            let (before, rest) = out.split_at_mut_checked(block.offset).ok_or_else(|| inside(&[]))?;
            let Some(target) = rest.get_mut(..block.size) else { return Err(inside(rest)) };
            // A VL-block is compressed as if it stood alone.
            let first = if block.offset == 0 || header.vl_blocks { None } else { before.get(..block.size) };
            self.decode_block(header, chunk, &block, &steps, first, target)
        })
    }

    pub(super) fn decode_block(
        &mut self,
        header: &ChunkHeader,
        chunk: &[u8],
        block: &Block,
        steps: &Steps,
        first: Option<&[u8]>,
        target: &mut [u8],
    ) -> Result<()> {
        // Filters that move bytes do so from one buffer to another, the last one to where the block belongs; delta works in place.
        let mut moves = steps.moves;
        let [stage, spare, planes] = &mut self.buffers;
        let mut from = room(stage, if moves > 0 { block.size } else { 0 });
        let mut to = room(spare, if moves > 1 { block.size } else { 0 });
        let planes = room(planes, if steps.bits { block.size } else { 0 });
        let mut left = if moves == 0 { &mut *target } else { &mut *from };
        each_stream(chunk, block, header.vl_blocks, |stream, size| {
            let Some((part, rest)) = std::mem::take(&mut left).split_at_mut_checked(size) else {
                return Err(Error::new("chunk: block", block.field, block.size, "whole streams"));
            };
            left = rest;
            match stream {
                Stream::Run(byte) => part.fill(byte),
                Stream::Plain(bytes) => part.copy_from_slice(bytes),
                Stream::Coded(bytes) => self.codecs.decode(header.codec, &steps.dictionary, bytes, part, block.start)?,
            }
            Ok(())
        })?;
        for filter in steps.pipeline {
            match filter {
                Filter::None | Filter::Unknown(_) => {}
                Filter::Delta => {
                    let current = if moves == 0 { &mut *target } else { &mut *from };
                    filters::undelta(header.typesize.into(), current, first);
                }
                Filter::Shuffle(_) | Filter::BitShuffle => {
                    moves = moves.saturating_sub(1);
                    let into = if moves == 0 { &mut *target } else { &mut *to };
                    match filter {
                        Filter::Shuffle(size) => filters::unshuffle(size.into(), from, into),
                        _ => filters::bitunshuffle(header.typesize.into(), header.version, from, into, planes),
                    }
                    std::mem::swap(&mut from, &mut to);
                }
            }
        }
        Ok(())
    }

    /// Decodes no more than what has changed since `before`, which is a chunk that was decoded without an error: calls `changed` with
    /// each block that is another, and where it stands in the decoded chunk. `false` if the two cannot be compared block by block.
    ///
    /// # Errors
    /// As [`Decoder::decode`], for the same chunks.
    pub fn decode_changes(
        &mut self,
        bytes: &[u8],
        before: &[u8],
        mut changed: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<bool> {
        let (header, old_header) = (ChunkHeader::parse(bytes)?, ChunkHeader::parse(before)?);
        let (Some(chunk), Some(old)) = (bytes.get(..header.cbytes as usize), before.get(..old_header.cbytes as usize)) else {
            return Ok(false);
        };
        let mut like = old_header;
        like.cbytes = header.cbytes;
        if like != header
            || header.content != Content::Blocks
            || header.vl_blocks
            || header.has_dictionary()
            || header.pipeline().contains(&Filter::Delta)
        {
            return Ok(false);
        }
        let steps = Steps::of(&header, Dictionary::None)?;
        let mut extents = Vec::new();
        each_block(&old_header, old, &old_header.blocks(old)?, |block| {
            extents.push(streams_of(old, &block)?);
            Ok(())
        })?;
        let mut extents = extents.into_iter();
        let mut target = Vec::new();
        each_block(&header, chunk, &header.blocks(chunk)?, |block| {
            if extents.next() == Some(streams_of(chunk, &block)?) {
                return Ok(());
            }
            let target = room(&mut target, block.size);
            self.decode_block(&header, chunk, &block, &steps, None, target)?;
            changed(block.offset, target)
        })?;
        Ok(true)
    }
}

/// What is done to each block of a chunk.
pub(super) struct Steps<'a> {
    pipeline: [Filter; 6],
    dictionary: Dictionary<'a>,
    /// Filters that move bytes.
    moves: usize,
    /// Bitshuffle is among them.
    bits: bool,
}

impl<'a> Steps<'a> {
    pub(super) fn of(header: &ChunkHeader, dictionary: Dictionary<'a>) -> Result<Self> {
        let pipeline = pipeline(header)?;
        let moves = pipeline.iter().filter(|filter| matches!(filter, Filter::Shuffle(_) | Filter::BitShuffle)).count();
        Ok(Steps { moves, bits: pipeline.contains(&Filter::BitShuffle), pipeline, dictionary })
    }
}

/// All bytes of a block that is not of the VL kind.
fn streams_of<'a>(chunk: &'a [u8], block: &Block) -> Result<&'a [u8]> {
    let mut end = block.start;
    each_stream(chunk, block, false, |stream, _| {
        end = end.saturating_add(4).saturating_add(match stream {
            Stream::Run(0) => 0,
            Stream::Run(_) => 1,
            Stream::Plain(bytes) | Stream::Coded(bytes) => bytes.len(),
        });
        Ok(())
    })?;
    Ok(chunk.get(block.start..end).unwrap_or_default())
}

/// The filters in the order in which they are undone.
fn pipeline(header: &ChunkHeader) -> Result<[Filter; 6]> {
    if header.instrumented || header.nbytes == 0 {
        // An instrumented chunk holds measurements instead of data.
        return Ok([Filter::None; 6]);
    }
    let mut pipeline = header.pipeline();
    pipeline.reverse();
    if let Some(Filter::Unknown(id)) = pipeline.iter().find(|filter| matches!(filter, Filter::Unknown(_))) {
        let (id, expected) = (FilterId(*id), "shuffle, bitshuffle, delta or trunc_prec");
        return Err(if id.is_plugin() {
            Error::new("chunk: filters", field::FILTERS as u64, Plugin::Filter(id), expected)
        } else {
            Error::new("chunk: filters", field::FILTERS as u64, id.0, expected)
        });
    }
    Ok(pipeline)
}

/// Calls `visit` for each block in order.
pub(super) fn each_block(
    header: &ChunkHeader,
    chunk: &[u8],
    blocks: &Blocks,
    visit: impl FnMut(Block) -> Result<()>,
) -> Result<()> {
    each_block_by(header, chunk.len(), blocks, |start| read_i32(chunk, start, "chunk: VL-block size"), visit)
}

/// The same of a chunk of that length, of whose VL-blocks `size_at` says the size that stands where one begins.
pub(super) fn each_block_by<E: From<Error>>(
    header: &ChunkHeader,
    len: usize,
    blocks: &Blocks,
    mut size_at: impl FnMut(usize) -> std::result::Result<i32, E>,
    mut visit: impl FnMut(Block) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let nbytes = header.nbytes as usize;
    let mut offset = 0_usize;
    let mut starts = blocks.starts().peekable();
    let mut n = 0_u32;
    while let Some((field, start)) = starts.next() {
        let outside = |expected: &dyn std::fmt::Display| Error::new("chunk: block start", field, start, expected);
        let Some(start) = usize::try_from(start).ok().filter(|start| (1..len).contains(start)) else {
            return Err(outside(&format_args!("1 to {}, inside the chunk", len.saturating_sub(1))).into());
        };
        let left = nbytes.saturating_sub(offset);
        let (size, streams, end);
        if header.vl_blocks {
            let next = starts.peek().map_or(len, |(_, next)| usize::try_from(*next).unwrap_or(0));
            if start < blocks.starts_end || next > len || next.saturating_sub(start) <= 4 {
                let expected = format_args!("at least {} and 5 or more before the next, {next}", blocks.starts_end);
                return Err(outside(&expected).into());
            }
            let announced = size_at(start)?;
            size = usize::try_from(announced).unwrap_or(0);
            if size == 0 || size > left {
                let expected = format_args!("1 to {left}, what is left of nbytes");
                return Err(Error::new("chunk: VL-block size", start as u64, announced, expected).into());
            }
            (streams, end) = (1, next);
        } else {
            let blocksize = header.blocksize as usize;
            size = blocksize.min(left);
            end = len;
            streams = streams_in(header, size)?;
        }
        visit(Block { n, field, start, end, offset, size, streams })?;
        offset = offset.saturating_add(size);
        n = n.saturating_add(1);
    }
    if offset != nbytes {
        let expected = format_args!("{offset}, what the blocks hold");
        return Err(Error::new("chunk: nbytes", field::NBYTES as u64, nbytes, expected).into());
    }
    Ok(())
}

/// In how many streams a block of `size` bytes is split.
pub(super) fn streams_in(header: &ChunkHeader, size: usize) -> Result<usize> {
    let streams = if header.split && size == header.blocksize as usize { usize::from(header.typesize) } else { 1 };
    if size == 0 || !size.is_multiple_of(streams) {
        let expected = format_args!("a positive multiple of typesize {streams}, the block being split");
        return Err(Error::new("chunk: blocksize", field::BLOCKSIZE as u64, size, expected));
    }
    Ok(streams)
}

/// Calls `visit` for each stream of a block with its uncompressed size.
fn each_stream<'a>(
    chunk: &'a [u8],
    block: &Block,
    vl: bool,
    mut visit: impl FnMut(Stream<'a>, usize) -> Result<()>,
) -> Result<()> {
    let size = block.size.checked_div(block.streams).unwrap_or(0);
    let mut at = block.start;
    for _ in 0..block.streams {
        let csize = read_i32(chunk, at, "chunk: stream")?;
        let field = at as u64;
        at = at.saturating_add(4);
        let short = |need: usize| {
            let expected = format_args!("{need} bytes of block {} at {at}", block.n);
            Error::new("chunk: csize", field, format_args!("{csize}, with {} bytes left", block.end.saturating_sub(at)), expected)
        };
        let stream = match usize::try_from(csize) {
            _ if vl => {
                let coded = chunk.get(at..block.end).ok_or_else(|| short(1))?;
                if coded.len() == size { Stream::Plain(coded) } else { Stream::Coded(coded) }
            }
            Ok(0) => Stream::Run(0),
            Ok(len) => {
                let coded = at.checked_add(len).and_then(|end| chunk.get(at..end)).ok_or_else(|| short(len))?;
                at = at.saturating_add(len);
                if len == size { Stream::Plain(coded) } else { Stream::Coded(coded) }
            }
            Err(_) => {
                let token = *chunk.get(at).ok_or_else(|| short(1))?;
                let value = u8::try_from(csize.unsigned_abs());
                let (1, Ok(value)) = (token & 1, value) else {
                    let got = format_args!("{csize} with token {token:#04x}");
                    return Err(Error::new("chunk: csize", field, got, "a run of one byte, -255 to -1 with token 0x01"));
                };
                at = at.saturating_add(1);
                Stream::Run(value)
            }
        };
        visit(stream, size)?;
    }
    Ok(())
}

/// The NaN that the library makes for items of `typesize`.
pub(super) fn nan(typesize: u8) -> Result<&'static [u8]> {
    match typesize {
        4 => Ok(&[0, 0, 0xc0, 0x7f]),
        8 => Ok(&[0, 0, 0, 0, 0, 0, 0xf8, 0x7f]),
        _ => Err(Error::new("chunk: typesize", field::TYPESIZE as u64, typesize, "4 or 8, the chunk being all NaN")),
    }
}

/// Checks that blocks can be filled with a value of `size` bytes.
pub(super) fn check_fill(header: &ChunkHeader, size: usize) -> Result<()> {
    if header.nblocks() > 1 && !(header.blocksize as usize).is_multiple_of(size) {
        let expected = format_args!("a multiple of the repeated value's {size} bytes");
        return Err(Error::new("chunk: blocksize", field::BLOCKSIZE as u64, header.blocksize, expected));
    }
    Ok(())
}

/// Fills `out` with a value, as the library does it: block by block.
fn fill(header: &ChunkHeader, out: &mut [u8], value: &[u8]) -> Result<()> {
    check_fill(header, value.len())?;
    let (size, len) = (value.len(), out.len());
    if let Some(first) = out.get_mut(..size) {
        first.copy_from_slice(value);
        copy_back(out, size, size, len.saturating_sub(size));
    }
    Ok(())
}
