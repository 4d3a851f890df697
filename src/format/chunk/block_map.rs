//! Where the blocks of a stored chunk are, so that single ones can be read and decoded.
//!
//! A [`BlockMap`] is made of the beginning of a chunk ([`BlockMap::need`] says how much of it), without the rest. Each place that it names
//! lies inside the chunk. Whether streams are whole is found out by who decodes them, with `Decoder::blocks_of`.

use std::ops::Range;

use super::super::{Error, Result, Special};
use super::ChunkHeader;
use super::decode::{check_fill, each_block, nan, streams_in};
use super::header::{self as field, Content, MAX_DICT};

/// Where the blocks of a chunk are.
#[derive(Debug)]
pub struct BlockMap {
    pub(super) header: ChunkHeader,
    blocks: Blocks,
    pub(super) dictionary: Option<Vec<u8>>,
}

/// What the blocks of a chunk are made of.
#[derive(Debug)]
enum Blocks {
    /// This value, again and again.
    Run(Vec<u8>),
    /// The bytes as they are, from this offset in the chunk on.
    Copy(u32),
    /// Streams: where each block's begin, and where they end at the latest.
    Streams(Vec<Range<u32>>),
    /// The same of blocks that differ in size, with where each begins in the decoded chunk.
    Varying(Vec<Range<u32>>, Vec<u32>),
}

impl BlockMap {
    /// How many bytes of a chunk's beginning [`BlockMap::parse`] needs, by the chunk's header.
    pub fn need(header: &ChunkHeader) -> u32 {
        let len = header.len as u64;
        let need = match header.content {
            Content::Special(_) | Content::Copy => len,
            Content::Value(size) => len.saturating_add(size.into()),
            // Each block says its size where it begins.
            Content::Blocks if header.vl_blocks => header.cbytes.into(),
            Content::Blocks if header.has_dictionary() => {
                header.starts_end().saturating_add(u64::from(MAX_DICT).saturating_add(4))
            }
            Content::Blocks => header.starts_end(),
        };
        u32::try_from(need).unwrap_or(u32::MAX).min(header.cbytes)
    }

    /// Reads the map from the beginning of a chunk.
    ///
    /// # Errors
    /// When C-Blosc2 would refuse what stands there; blocks that begin outside of the chunk.
    pub fn parse(beginning: &[u8]) -> Result<Self> {
        let header = ChunkHeader::parse(beginning)?;
        let need = BlockMap::need(&header) as usize;
        let there = beginning.len();
        let Some(beginning) = beginning.get(..need) else {
            let expected = format_args!("at least {need}, the header and where the blocks begin");
            return Err(Error::new("chunk: cbytes", field::CBYTES as u64, there, expected));
        };
        let parsed = header.blocks(beginning)?;
        let blocks = match header.content {
            Content::Special(Special::Zeros | Special::Uninit) => Blocks::Run(vec![0]),
            Content::Special(Special::Nan) if header.nbytes == 0 => Blocks::Run(vec![0]),
            Content::Special(Special::Nan) => Blocks::Run(nan(header.typesize)?.to_vec()),
            Content::Value(_) => Blocks::Run(beginning.get(header.len..).unwrap_or_default().to_vec()),
            Content::Copy => Blocks::Copy(header.len as u32),
            Content::Blocks if header.vl_blocks => {
                let (mut extents, mut offsets) = (Vec::new(), Vec::new());
                each_block(&header, beginning, &parsed, |block| {
                    extents.push(block.start as u32..block.end as u32);
                    offsets.push(block.offset as u32);
                    Ok(())
                })?;
                Blocks::Varying(extents, offsets)
            }
            Content::Blocks => Blocks::Streams(extents(&header, parsed.starts())?),
        };
        match &blocks {
            Blocks::Run(value) if !matches!(header.content, Content::Special(Special::Zeros | Special::Uninit)) => {
                check_fill(&header, value.len())?;
            }
            Blocks::Streams(_) => {
                streams_in(&header, header.blocksize as usize)?;
            }
            _ => {}
        }
        let dictionary = parsed.dict.map(<[u8]>::to_vec);
        Ok(BlockMap { header, blocks, dictionary })
    }

    /// The chunk's header.
    pub fn header(&self) -> &ChunkHeader {
        &self.header
    }

    /// The value that the whole chunk is a run of, from its beginning on.
    pub fn run(&self) -> Option<&[u8]> {
        if let Blocks::Run(value) = &self.blocks { Some(value) } else { None }
    }

    /// The block that holds a byte of the decoded chunk, counted from 0.
    pub fn block_at(&self, offset: u32) -> u32 {
        match &self.blocks {
            Blocks::Varying(_, offsets) => offsets.partition_point(|start| *start <= offset).saturating_sub(1) as u32,
            _ => offset.checked_div(self.header.blocksize).unwrap_or(0),
        }
    }

    /// Where a block stands in the decoded chunk; nothing for one that there is not.
    pub fn decoded(&self, n: u32) -> Range<u32> {
        let nbytes = self.header.nbytes;
        match &self.blocks {
            Blocks::Varying(_, offsets) => {
                let at = |n: u32| offsets.get(n as usize).copied().unwrap_or(nbytes);
                at(n)..at(n.saturating_add(1))
            }
            _ => {
                let start = n.saturating_mul(self.header.blocksize).min(nbytes);
                start..start.saturating_add(self.header.blocksize).min(nbytes)
            }
        }
    }

    /// Which bytes of the chunk make a block; none of a run.
    pub fn stored(&self, n: u32) -> Range<u32> {
        match &self.blocks {
            Blocks::Run(_) => 0..0,
            Blocks::Copy(start) => {
                let decoded = self.decoded(n);
                start.saturating_add(decoded.start)..start.saturating_add(decoded.end)
            }
            Blocks::Streams(extents) | Blocks::Varying(extents, _) => extents.get(n as usize).cloned().unwrap_or(0..0),
        }
    }

    /// Whether a block cannot be decoded without the first one.
    pub fn needs_first(&self, n: u32) -> bool {
        n > 0 && matches!(self.blocks, Blocks::Streams(_)) && self.header.has_delta()
    }

    /// Bytes of memory that it takes.
    pub fn weight(&self) -> u64 {
        let extents = match &self.blocks {
            Blocks::Run(value) => value.len(),
            Blocks::Copy(_) => 0,
            Blocks::Streams(extents) => extents.len().saturating_mul(8),
            Blocks::Varying(extents, _) => extents.len().saturating_mul(12),
        };
        let dictionary = self.dictionary.as_ref().map_or(0, Vec::len);
        (size_of::<Self>() as u64).saturating_add(extents as u64).saturating_add(dictionary as u64)
    }
}

/// Where the streams of each block begin, and where those of the next one in the chunk do: blocks may be stored in any order.
fn extents(header: &ChunkHeader, starts: impl Iterator<Item = (u64, i32)>) -> Result<Vec<Range<u32>>> {
    let mut extents = Vec::new();
    for (field, start) in starts {
        let inside = u32::try_from(start).ok().filter(|start| (1..header.cbytes).contains(start));
        let Some(start) = inside else {
            let last = header.cbytes.saturating_sub(1);
            return Err(Error::new("chunk: block start", field, start, format_args!("1 to {last}, inside the chunk")));
        };
        extents.push(start..header.cbytes);
    }
    let mut sorted: Vec<u32> = extents.iter().map(|extent| extent.start).collect();
    sorted.sort_unstable();
    for extent in &mut extents {
        let next = sorted.partition_point(|start| *start <= extent.start);
        extent.end = sorted.get(next).copied().unwrap_or(header.cbytes);
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use super::super::{Decoder, decode, encode};
    use super::*;

    /// Decodes block after block what `chunk` holds, each with no more than its own bytes.
    fn by_blocks(chunk: &[u8]) -> Result<Vec<u8>> {
        let header = ChunkHeader::parse(chunk)?;
        let map = BlockMap::parse(&chunk[..BlockMap::need(&header) as usize])?;
        let mut out = Vec::new();
        let (mut decoder, mut first) = (Decoder::default(), Vec::new());
        let mut blocks = decoder.blocks_of(&map)?;
        let mut n = 0;
        while (out.len() as u32) < header.nbytes {
            let (decoded, stored) = (map.decoded(n), map.stored(n));
            assert_eq!((decoded.start as usize, map.block_at(decoded.end - 1)), (out.len(), n));
            let mut block = vec![0; decoded.len()];
            let stored = chunk[stored.start as usize..stored.end as usize].to_vec();
            blocks.decode(n, &stored, map.needs_first(n).then_some(&first[..]), &mut block)?;
            if n == 0 {
                first = block.clone();
            }
            out.extend(block);
            n += 1;
        }
        Ok(out)
    }

    #[test]
    fn blocks_by_themselves_are_those_of_the_whole_chunk() {
        let items: Vec<u8> = (0..10_000u64).flat_map(|n| (n * n % 1000).to_le_bytes()).collect();
        let zeros = vec![0; 70_000];
        let noise: Vec<u8> = (0..40_000u64).flat_map(|n| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
        for data in [&items[..], &zeros[..], &noise[..], &[][..], &items[..8]] {
            let chunk = encode(data).unwrap();
            assert_eq!(by_blocks(&chunk).unwrap(), data);
            assert_eq!(decode(&chunk, data.len()).unwrap(), data);
        }
    }

    #[test]
    fn a_block_that_begins_outside_is_refused() {
        let items: Vec<u8> = (0..10_000u64).flat_map(|n| (n * n % 1000).to_le_bytes()).collect();
        let chunk = encode(&items).unwrap();
        for start in [0, -1, chunk.len() as i32, i32::MAX] {
            let mut broken = chunk.clone();
            broken[36..40].copy_from_slice(&start.to_le_bytes());
            assert_eq!(BlockMap::parse(&broken).unwrap_err().field, "chunk: block start");
        }
        assert_eq!(BlockMap::parse(&chunk[..50]).unwrap_err().field, "chunk: cbytes");
    }
}
