//! Where the blocks of a stored chunk are, so that single ones can be read and decoded.
//!
//! A [`BlockMap`] is made of small parts of a chunk, without the rest. Each place that it names lies inside the chunk. Whether streams are
//! whole is found out by who decodes them, with `Decoder::blocks_of`. What it takes is bounded whatever the chunk says: where a chunk has
//! very many blocks, the map holds none of their places, and says which part of the chunk does ([`BlockMap::starts_of`]).

use std::ops::Range;

use super::super::{Error, Result, Special};
use super::ChunkHeader;
use super::decode::{check_fill, each_block_by, nan, streams_in};
use super::header::{self as field, Content, MAX_DICT, dictionary};

/// Blocks whose places a map holds, and how many VL-blocks: these say their size only where they begin.
const MANY: u32 = 32 << 10;
const MANY_VL: u32 = 1 << 20;
/// Block starts that are read together, where a map has none.
const WINDOW: u32 = 4096;
/// A chunk of VL-blocks that is no longer is read as a whole.
const WHOLE: u32 = 1 << 20;
/// Bytes that are read of a longer one, where its blocks are smaller than [`SPARSE`].
const PIECE: usize = 64 << 10;
const SPARSE: u32 = 4096;
/// Bytes of a value that a chunk may be a run of.
const MAX_VALUE: u32 = 8 << 20;

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
    /// The same, of more blocks than are held.
    Many,
    /// The same of blocks that differ in size, with where each begins in the decoded chunk.
    Varying(Vec<Range<u32>>, Vec<u32>),
}

impl BlockMap {
    /// Makes the map of a chunk with that header. `read` fills a buffer with the chunk's bytes from a place on. `None` if another
    /// header stands there.
    ///
    /// # Errors
    /// When C-Blosc2 would refuse what stands there; blocks that begin outside of the chunk; more VL-blocks, or a longer repeated value,
    /// than there is room for; what `read` answers.
    pub fn read<E: From<Error>>(
        header: &ChunkHeader,
        mut read: impl FnMut(u32, &mut [u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<Option<Self>, E> {
        check_room(header)?;
        let is_many = header.content == Content::Blocks && !header.vl_blocks && header.nblocks() > MANY;
        let mut beginning = vec![0; need(header, is_many) as usize];
        read(0, &mut beginning)?;
        if ChunkHeader::parse(&beginning)? != *header {
            return Ok(None);
        }
        if is_many {
            streams_in(header, header.blocksize as usize)?;
            let dictionary = match header.has_dictionary() {
                false => None,
                true => {
                    let at = u32::try_from(header.starts_end()).unwrap_or(u32::MAX);
                    let mut bytes = vec![0; MAX_DICT.saturating_add(4).min(header.cbytes.saturating_sub(at)) as usize];
                    read(at, &mut bytes)?;
                    Some(dictionary(&bytes, at.into())?.to_vec())
                }
            };
            return Ok(Some(BlockMap { header: *header, blocks: Blocks::Many, dictionary }));
        }
        let parsed = header.blocks(&beginning)?;
        let blocks = match header.content {
            Content::Special(Special::Zeros | Special::Uninit) => Blocks::Run(vec![0]),
            Content::Special(Special::Nan) if header.nbytes == 0 => Blocks::Run(vec![0]),
            Content::Special(Special::Nan) => Blocks::Run(nan(header.typesize)?.to_vec()),
            Content::Value(_) => Blocks::Run(beginning.get(header.len..).unwrap_or_default().to_vec()),
            Content::Copy => Blocks::Copy(header.len as u32),
            Content::Blocks if header.vl_blocks => {
                let bytes = if header.cbytes <= WHOLE { beginning.clone() } else { Vec::new() };
                let mut sizes = Sizes { len: header.cbytes, piece: piece_of(header), at: 0, bytes };
                let (mut extents, mut offsets) = (Vec::new(), Vec::new());
                each_block_by(
                    header,
                    header.cbytes as usize,
                    &parsed,
                    |start| sizes.at(start, &mut read),
                    |block| {
                        extents.push(block.start as u32..block.end as u32);
                        offsets.push(block.offset as u32);
                        Ok::<(), E>(())
                    },
                )?;
                Blocks::Varying(extents, offsets)
            }
            Content::Blocks => Blocks::Streams(extents(header, parsed.starts())?),
        };
        match &blocks {
            Blocks::Run(value) if !matches!(header.content, Content::Special(Special::Zeros | Special::Uninit)) => {
                check_fill(header, value.len())?;
            }
            Blocks::Streams(_) => {
                streams_in(header, header.blocksize as usize)?;
            }
            _ => {}
        }
        let dictionary = parsed.dict.map(<[u8]>::to_vec);
        Ok(Some(BlockMap { header: *header, blocks, dictionary }))
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

    /// Which bytes of the chunk make a block; none of a run. `None` where the map does not hold that: [`BlockMap::starts_of`] does.
    pub fn stored(&self, n: u32) -> Option<Range<u32>> {
        Some(match &self.blocks {
            Blocks::Run(_) => 0..0,
            Blocks::Copy(start) => {
                let decoded = self.decoded(n);
                start.saturating_add(decoded.start)..start.saturating_add(decoded.end)
            }
            Blocks::Many => return None,
            Blocks::Streams(extents) | Blocks::Varying(extents, _) => extents.get(n as usize).cloned().unwrap_or(0..0),
        })
    }

    /// Which bytes of the chunk say where the block and some of its neighbours begin.
    pub fn starts_of(&self, n: u32) -> Range<u32> {
        let first = n.checked_div(WINDOW).unwrap_or(0).saturating_mul(WINDOW);
        let end = first.saturating_add(WINDOW).min(self.header.nblocks());
        field_of(&self.header, first)..field_of(&self.header, end)
    }

    /// Which bytes of the chunk make a block, at most, by what stands at [`BlockMap::starts_of`] it.
    ///
    /// # Errors
    /// A block that begins outside of the chunk.
    pub fn stored_by(&self, n: u32, starts: &[u8]) -> Result<Range<u32>> {
        let header = &self.header;
        let at = field_of(header, n).saturating_sub(self.starts_of(n).start) as usize;
        let start = field::read_i32(starts, at, "chunk: block start")?;
        let start = inside(header, field_of(header, n).into(), start)?;
        // No stream is longer than what it holds; each has its length in front.
        let streams = u32::try_from(streams_in(header, self.decoded(n).len())?).unwrap_or(u32::MAX);
        let most = header.blocksize.saturating_add(streams.saturating_mul(4));
        Ok(start..start.saturating_add(most).min(header.cbytes))
    }

    /// Whether a block cannot be decoded without the first one.
    pub fn needs_first(&self, n: u32) -> bool {
        n > 0 && matches!(self.blocks, Blocks::Streams(_) | Blocks::Many) && self.header.has_delta()
    }

    /// Bytes of memory that it takes.
    pub fn weight(&self) -> u64 {
        let extents = match &self.blocks {
            Blocks::Run(value) => value.len(),
            Blocks::Copy(_) | Blocks::Many => 0,
            Blocks::Streams(extents) => extents.len().saturating_mul(8),
            Blocks::Varying(extents, _) => extents.len().saturating_mul(12),
        };
        let dictionary = self.dictionary.as_ref().map_or(0, Vec::len);
        (size_of::<Self>() as u64).saturating_add(extents as u64).saturating_add(dictionary as u64)
    }
}

/// How many bytes of a chunk's beginning are read first.
fn need(header: &ChunkHeader, is_many: bool) -> u32 {
    let len = header.len as u64;
    let need = match header.content {
        Content::Special(_) | Content::Copy => len,
        Content::Value(size) => len.saturating_add(size.into()),
        Content::Blocks if is_many => len,
        Content::Blocks if header.vl_blocks && header.cbytes <= WHOLE => header.cbytes.into(),
        Content::Blocks if header.has_dictionary() => header.starts_end().saturating_add(u64::from(MAX_DICT).saturating_add(4)),
        Content::Blocks => header.starts_end(),
    };
    u32::try_from(need).unwrap_or(u32::MAX).min(header.cbytes)
}

/// Whether a map of such a chunk is small enough.
fn check_room(header: &ChunkHeader) -> Result<()> {
    match header.content {
        Content::Blocks if header.vl_blocks && header.nblocks() > MANY_VL => {
            let expected = format_args!("at most {MANY_VL} VL-blocks");
            Err(Error::new("chunk: blocksize", field::BLOCKSIZE as u64, header.nblocks(), expected))
        }
        Content::Value(size) if size > MAX_VALUE => {
            let expected = format_args!("a repeated value of at most {MAX_VALUE} bytes");
            Err(Error::new("chunk: cbytes", field::CBYTES as u64, header.cbytes, expected))
        }
        _ => Ok(()),
    }
}

/// Where the start of a block stands in its chunk.
pub(super) fn field_of(header: &ChunkHeader, n: u32) -> u32 {
    (header.len as u32).saturating_add(n.saturating_mul(4))
}

/// How much is read to know the size of one VL-block, and of those behind it.
fn piece_of(header: &ChunkHeader) -> usize {
    if header.cbytes.checked_div(header.nblocks()).unwrap_or(0) < SPARSE { PIECE } else { 4 }
}

/// The sizes that VL-blocks say where they begin.
struct Sizes {
    /// Bytes of the chunk, and of what is read at once.
    len: u32,
    piece: usize,
    /// What was read last, and where that begins.
    at: usize,
    bytes: Vec<u8>,
}

impl Sizes {
    fn at<E: From<Error>>(
        &mut self,
        start: usize,
        read: &mut impl FnMut(u32, &mut [u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<i32, E> {
        let there = |sizes: &Sizes| Some(*sizes.bytes.get(start.checked_sub(sizes.at)?..)?.first_chunk::<4>()?);
        if there(self).is_none() {
            self.bytes.resize(self.piece.min((self.len as usize).saturating_sub(start)), 0);
            self.at = start;
            read(u32::try_from(start).unwrap_or(u32::MAX), &mut self.bytes)?;
        }
        let Some(size) = there(self) else { return Ok(field::read_i32(&[], start, "chunk: VL-block size")?) };
        Ok(i32::from_le_bytes(size))
    }
}

/// Where a block begins, which must be inside of the chunk.
fn inside(header: &ChunkHeader, field: u64, start: i32) -> Result<u32> {
    u32::try_from(start).ok().filter(|start| (1..header.cbytes).contains(start)).ok_or_else(|| {
        let last = header.cbytes.saturating_sub(1);
        Error::new("chunk: block start", field, start, format_args!("1 to {last}, inside the chunk"))
    })
}

/// Where the streams of each block begin, and where those of the next one in the chunk do: blocks may be stored in any order.
fn extents(header: &ChunkHeader, starts: impl Iterator<Item = (u64, i32)>) -> Result<Vec<Range<u32>>> {
    let mut extents = Vec::new();
    for (field, start) in starts {
        extents.push(inside(header, field, start)?..header.cbytes);
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
    use super::super::{Decoder, Encoder, Params, Split, decode, encode};
    use super::*;
    use crate::format::registry::{CodecId, FilterId};

    fn map(chunk: &[u8]) -> Result<BlockMap> {
        let header = ChunkHeader::parse(chunk)?;
        let map = BlockMap::read(&header, |at, buf| -> Result<()> {
            buf.copy_from_slice(&chunk[at as usize..at as usize + buf.len()]);
            Ok(())
        });
        Ok(map?.unwrap())
    }

    /// Decodes block after block what `chunk` holds, each with no more than its own bytes.
    fn by_blocks(chunk: &[u8]) -> Result<Vec<u8>> {
        let (header, map) = (ChunkHeader::parse(chunk)?, map(chunk)?);
        let mut out = Vec::new();
        let (mut decoder, mut first) = (Decoder::default(), Vec::new());
        let mut blocks = decoder.blocks_of(&map)?;
        let mut n = 0;
        while (out.len() as u32) < header.nbytes {
            let decoded = map.decoded(n);
            let stored = match map.stored(n) {
                Some(stored) => stored,
                None => {
                    let starts = map.starts_of(n);
                    map.stored_by(n, &chunk[starts.start as usize..starts.end as usize])?
                }
            };
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
            assert_eq!(map(&broken).unwrap_err().field, "chunk: block start");
        }
    }

    /// How many bytes of a chunk are read for its map.
    fn read_for(chunk: &[u8]) -> (BlockMap, usize) {
        let (header, mut sum) = (ChunkHeader::parse(chunk).unwrap(), 0);
        let map = BlockMap::read(&header, |at, buf| -> Result<()> {
            sum += buf.len();
            buf.copy_from_slice(&chunk[at as usize..at as usize + buf.len()]);
            Ok(())
        });
        (map.unwrap().unwrap(), sum)
    }

    #[test]
    fn of_very_many_blocks_no_more_is_read_and_held_than_of_few() {
        let data: Vec<u8> = (0..400_000u64).flat_map(|n| if n % 40 == 0 { n } else { 0 }.to_le_bytes()).collect();
        for (filters, split) in [([0, 0, 0, 0, 0, 1], Split::Always), ([0, 0, 0, 0, 3, 1], Split::Never)] {
            let filters = filters.map(|id| (FilterId(id), 0));
            let params = Params { codec: CodecId(1), level: 5, filters, typesize: 8, blocksize: 64, split };
            let mut chunk = Vec::new();
            Encoder::default().encode(&data, &params, &mut chunk).unwrap();
            let (map, read) = read_for(&chunk);
            assert!(map.header().nblocks() > MANY && map.stored(0).is_none());
            assert!(map.weight() < 1000 && read == ChunkHeader::LEN, "{} and {read} bytes", map.weight());
            assert_eq!(by_blocks(&chunk).unwrap(), data);
            let starts = map.starts_of(40_000);
            let mut broken = chunk[starts.start as usize..starts.end as usize].to_vec();
            broken[(40_000 - 36_864) * 4..][..4].copy_from_slice(&(chunk.len() as i32).to_le_bytes());
            assert_eq!(map.stored_by(40_000, &broken).unwrap_err().field, "chunk: block start");
        }
    }

    /// A chunk of VL-blocks, which hold their bytes as they are.
    fn vl_chunk(sizes: &[usize]) -> (Vec<u8>, Vec<u8>) {
        let mut chunk = encode(&[1; 800]).unwrap()[..ChunkHeader::LEN].to_vec();
        let (mut starts, mut streams, mut data) = (Vec::new(), Vec::new(), Vec::new());
        let first = chunk.len() + sizes.len() * 4;
        for (n, size) in sizes.iter().enumerate() {
            starts.extend(((first + streams.len()) as i32).to_le_bytes());
            streams.extend((*size as i32).to_le_bytes());
            streams.extend((0..*size).map(|at| (at * 31 + n) as u8));
            data.extend_from_slice(&streams[streams.len() - size..]);
        }
        chunk[16..28].fill(0);
        chunk[2] = 0x15;
        chunk[3] = 1;
        chunk[field::FLAGS2] = 1;
        chunk[field::BLOSC2_FLAGS] = 0;
        let cbytes = first + streams.len();
        for (at, value) in [(field::NBYTES, data.len()), (field::BLOCKSIZE, sizes.len()), (field::CBYTES, cbytes)] {
            chunk[at..at + 4].copy_from_slice(&(value as i32).to_le_bytes());
        }
        chunk.extend(starts);
        chunk.extend(streams);
        (chunk, data)
    }

    #[test]
    fn of_long_vl_blocks_only_the_beginnings_are_read() {
        for (sizes, most) in [
            ((0..20).map(|n| 1000 + n * 50_000).collect::<Vec<_>>(), 32 + 20 * 8),
            ((0..20_000).map(|n| 100 + n % 50).collect(), 4_000_000),
            (vec![1, 7, 100], 500),
        ] {
            let (chunk, data) = vl_chunk(&sizes);
            let (map, read) = read_for(&chunk);
            assert!(map.header().has_vl_blocks() && read <= most, "{read} bytes of {}", chunk.len());
            assert_eq!(by_blocks(&chunk).unwrap(), data);
        }
    }

    #[test]
    fn more_vl_blocks_than_there_is_room_for_are_refused() {
        let (mut chunk, _) = vl_chunk(&[1; 2]);
        chunk[field::BLOCKSIZE..][..4].copy_from_slice(&(MANY_VL as i32 + 1).to_le_bytes());
        chunk[field::CBYTES..][..4].copy_from_slice(&(MANY_VL as i32 * 16).to_le_bytes());
        let header = ChunkHeader::parse(&chunk).unwrap();
        let error = BlockMap::read(&header, |_, _| -> Result<()> { panic!("nothing is read") }).unwrap_err();
        assert_eq!(error.field, "chunk: blocksize");
    }
}
