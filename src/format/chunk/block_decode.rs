//! Decoding single blocks of a chunk, by a [map](BlockMap) of it.

use super::super::{Error, Result};
use super::BlockMap;
use super::block_map::field_of;
use super::codec::Codecs;
use super::copy::fill_run;
use super::decode::{Block, Decoder, Steps, streams_in};
use super::header::{self as field, Content};

/// Decodes blocks of one chunk.
pub struct ChunkDecoder<'a> {
    decoder: &'a mut Decoder,
    map: &'a BlockMap,
    steps: Option<Steps<'a>>,
}

impl Decoder {
    /// Makes ready to decode single blocks of a chunk.
    ///
    /// # Errors
    /// A chunk that needs a plugin; a dictionary that is none.
    pub fn blocks_of<'a>(&'a mut self, map: &'a BlockMap) -> Result<ChunkDecoder<'a>> {
        let header = &map.header;
        let steps = match header.content {
            Content::Blocks => {
                let dictionary = Codecs::dictionary(header.codec, map.dictionary.as_deref(), header.starts_end() as usize)?;
                Some(Steps::of(header, dictionary)?)
            }
            _ => None,
        };
        Ok(ChunkDecoder { decoder: self, map, steps })
    }
}

impl ChunkDecoder<'_> {
    /// Decodes a block. `stored` is what the [map](BlockMap::stored) says of it, and `first` the first block, decoded, where the
    /// block [needs it](BlockMap::needs_first); `out` is as long as the block.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn decode(&mut self, n: u32, stored: &[u8], first: Option<&[u8]>, out: &mut [u8]) -> Result<()> {
        let header = &self.map.header;
        let place = self.map.decoded(n);
        if place.len() != out.len() {
            let expected = format_args!("{}, which block {n} has", place.len());
            return Err(Error::new("chunk: block", field::BLOCKSIZE as u64, out.len(), expected));
        }
        let Some(steps) = &self.steps else {
            if let Some(value) = self.map.run() {
                fill_run(value, place.start as usize, out);
            } else if stored.len() == out.len() {
                out.copy_from_slice(stored);
            } else {
                return Err(Error::new("chunk: block", u64::from(place.start), stored.len(), out.len()));
            }
            return Ok(());
        };
        let size = out.len();
        // In VL-blocks the stream comes after the block's size, as a csize before the others.
        let streams = if header.vl_blocks { 1 } else { streams_in(header, size)? };
        let block = Block { n, field: field_of(header, n).into(), start: 0, end: stored.len(), offset: 0, size, streams };
        let first = first.and_then(|first| first.get(..size));
        self.decoder.decode_block(header, stored, &block, steps, first, out)
    }
}
