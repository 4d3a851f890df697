//! The header of a frame: what all its chunks have in common, where its parts are, and the metalayers.
//!
//! ```text
//!   0 9e            array of 14          39 cbytes            i64, d3 before it
//!   2 "b2frame\0"   str                  48 typesize          i32, d2 before it
//!  11 header_len    i32, d2 before it    53 blocksize         i32, d2 before it
//!  16 frame_len     u64, cf before it    58 chunksize         i32, d2 before it
//!  25 flags         str of 4:            63 nthreads_c        i16, d1 before it
//!     25 version (4 bits), offsets of    66 nthreads_d        i16, d1 before it
//!        64 bits (0x10), varying         68 has_vlmetalayers  c2 or c3
//!        chunks (0x40), VL-blocks (0x80) 69 d8 06             fixext of 16, number of filters
//!     26 layout                          71 filters           6 bytes
//!     27 codec (4 bits), level (4 bits)  77 user codec        78 codec meta
//!     28 split mode, less 1              79 filters_meta      6 bytes
//!  30 nbytes        i64, d3 before it    85 flags 2: dictionary (0x01)      86 reserved
//!                                        87 metalayers, as in [`super::metalayer`]
//! ```
//!
//! MessagePack, so big endian. As C-Blosc2 does, reading goes by these places and does not ask for the markers between them:
//! headers of every age open.

use std::ops::Range;

use rmp::Marker;

use super::metalayer::{self, Metalayer, Part, Table};
use super::msgpack::put;
use super::{Error, Layout, Result, index, trailer};

const MAGIC: &[u8; 8] = b"b2frame\0";
const MAGIC_AT: usize = 2;
const HEADER_LEN: usize = 11;
const FRAME_LEN: usize = 16;
const FLAGS: usize = 25;
const LAYOUT: usize = 26;
const CODEC: usize = 27;
const SPLIT_MODE: usize = 28;
const NBYTES: usize = 30;
const CBYTES: usize = 39;
const TYPESIZE: usize = 48;
const BLOCKSIZE: usize = 53;
const CHUNKSIZE: usize = 58;
const NTHREADS_C: usize = 63;
const NTHREADS_D: usize = 66;
const HAS_VLMETALAYERS: usize = 68;
const NFILTERS: usize = 70;
const FILTERS: usize = 71;
const USER_CODEC: usize = 77;
const CODEC_META: usize = 78;
const FILTERS_META: usize = 79;
const FLAGS2: usize = 85;
/// Where the fixed part ends and the metalayers begin.
const METALAYERS: usize = Part::Header.at();

const VERSION_MASK: u8 = 0x0f;
const OFFSETS_64: u8 = 0x10;
const VARYING_CHUNKS: u8 = 0x40;
const VL_BLOCKS: u8 = 0x80;
const USE_DICT: u8 = 0x01;
const CODEC_MASK: u8 = 0x0f;
const CLEVEL_SHIFT: u32 = 4;
const SPLIT_MASK: u8 = 0x03;
/// The newest version that is known. C-Blosc2 writes 2, and 3 where chunks vary in size or have VL-blocks.
pub const MAX_VERSION: u8 = 3;
const MAX_FILTERS: u8 = 6;
/// The smallest chunk there is, by its header.
const MIN_INDEX_LEN: u64 = 16;

/// A frame header, metalayers included, as it stands in a file: every byte is kept, and setters change only their field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameHeader {
    /// Never shorter than [`FrameHeader::MIN_LEN`], and exactly header_len long.
    raw: Vec<u8>,
    metalayers: Table,
}

/// The values of a header that say how new chunks are to be made, and those of [`FrameHeader`]'s own getters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderFields {
    /// Length of the whole frame (of an sframe: of `chunks.b2frame`) in bytes.
    pub frame_len: u64,
    /// Version of the format, 0 to 3.
    pub version: u8,
    /// The flag that chunks vary in size. Readers go by chunksize.
    pub varying_chunks: bool,
    /// Blocks vary in size: every chunk is a VL-block chunk.
    pub vl_blocks: bool,
    /// The frame type.
    pub layout: Layout,
    /// 0 BloscLZ, 1 LZ4, 2 LZ4HC, 4 Zlib, 5 Zstd, 6 the one that `user_codec` names.
    pub codec: u8,
    /// Compression level, 0 to 9.
    pub clevel: u8,
    /// 1 always, 2 never, 3 automatic, 4 as Blosc1 did.
    pub split_mode: u8,
    /// Uncompressed bytes of all chunks.
    pub nbytes: u64,
    /// See [`FrameHeader::cbytes`].
    pub cbytes: u64,
    /// Bytes of an item; may exceed the 255 that a chunk's own header can say.
    pub typesize: u32,
    /// Bytes of a block; 0 leaves it to the compressor.
    pub blocksize: i32,
    /// Uncompressed bytes of a chunk; 0 where they vary, -1 where no chunk has said yet.
    pub chunksize: i32,
    /// Threads of the compressor when the frame was written.
    pub nthreads_compress: i16,
    /// Threads of the decompressor when the frame was written.
    pub nthreads_decompress: i16,
    /// The flag that the trailer has vlmetalayers. Readers go by the trailer.
    pub has_vlmetalayers: bool,
    /// Filters in the order in which the compressor applies them: 0 none, 1 shuffle, 2 bitshuffle, 3 delta, 4 truncated
    /// precision, from 32 on registered and user-defined ones.
    pub filters: [u8; 6],
    /// A byte of meaning for each filter.
    pub filters_meta: [u8; 6],
    /// The codec once more, by its full number.
    pub user_codec: u8,
    /// A byte of meaning for the codec.
    pub codec_meta: u8,
    /// Chunks are compressed with a dictionary.
    pub use_dict: bool,
}

/// Where the parts of a frame are, in bytes from its beginning. They follow each other without a gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sections {
    /// The chunks with their holes; empty in an sframe, and in a frame without chunks whatever its cbytes says.
    pub chunks: Range<u64>,
    /// The index chunk; empty in a frame without chunks.
    pub index: Range<u64>,
    /// The trailer.
    pub trailer: Range<u64>,
}

impl FrameHeader {
    /// Bytes that are enough for [`FrameHeader::announced_len`].
    pub const PREFIX_LEN: usize = FRAME_LEN + 8;
    /// The smallest header that C-Blosc2 opens: the fixed part, and a map of no metalayers.
    pub const MIN_LEN: usize = METALAYERS + 7;
    /// Bytes that are enough for [`FrameHeader::begins_cframe`] and [`FrameHeader::announced_frame`].
    pub const KIND_LEN: usize = LAYOUT + 1;

    /// Whether a file that begins so is a cframe, whole or not: it has the mark of a frame, and not the type of an sframe's index file.
    pub fn begins_cframe(beginning: &[u8]) -> bool {
        let marked = beginning.get(MAGIC_AT..).is_some_and(|rest| rest.starts_with(MAGIC));
        marked && beginning.get(LAYOUT).is_none_or(|layout| *layout != layout_to_raw(Layout::Sparse))
    }

    /// The header_len field, checked against what a header can be and against frame_len, from the first bytes of a file.
    /// frame_len itself is for the caller to compare with the file.
    ///
    /// # Errors
    /// Too few bytes, another magic, or lengths that no frame can have.
    pub fn announced_len(prefix: &[u8]) -> Result<u32> {
        if prefix.len() < Self::PREFIX_LEN {
            let expected = format_args!("at least {}", Self::PREFIX_LEN).to_string();
            return Err(Error::new("header", 0, format_args!("{} bytes", prefix.len()), expected));
        }
        let magic: [u8; 8] = array(prefix, MAGIC_AT);
        if &magic != MAGIC {
            let got = format!("\"{}\"", magic.escape_ascii());
            return Err(Error::new("header: magic", MAGIC_AT as u64, got, "\"b2frame\", the mark of a frame"));
        }
        let header_len = i32::from_be_bytes(array(prefix, HEADER_LEN));
        let frame_len = i64::from_be_bytes(array(prefix, FRAME_LEN));
        let longest = frame_len.saturating_sub(trailer::MIN_LEN as i64);
        if longest < Self::MIN_LEN as i64 {
            let expected = format!("at least {}", Self::MIN_LEN + trailer::MIN_LEN);
            return Err(Error::new("header: frame_len", FRAME_LEN as u64, frame_len, expected));
        }
        if header_len < Self::MIN_LEN as i32 || i64::from(header_len) > longest {
            let expected = format!("{} to {longest}", Self::MIN_LEN);
            return Err(Error::new("header: header_len", HEADER_LEN as u64, header_len, expected));
        }
        Ok(header_len.cast_unsigned())
    }

    /// What the first [`FrameHeader::KIND_LEN`] bytes of a file say of the frame in it: its layout and its length; `None` if they are not
    /// the beginning of a frame.
    pub fn announced_frame(prefix: &[u8]) -> Option<(Layout, u64)> {
        Self::announced_len(prefix).ok()?;
        let layout = match prefix.get(LAYOUT)? {
            0 => Layout::Contiguous,
            1 => Layout::Sparse,
            _ => return None,
        };
        let frame_len = i64::from_be_bytes(array(prefix, FRAME_LEN));
        u64::try_from(frame_len).ok().map(|len| (layout, len))
    }

    /// Parses a header from the beginning of `bytes`, which may be longer than it.
    ///
    /// # Errors
    /// What [`FrameHeader::announced_len`] refuses, an unknown version or layout, sizes that are negative or make more chunks
    /// than an index can have, metalayers that lie outside.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let header_len = Self::announced_len(bytes)?;
        let raw = bytes.get(..header_len as usize).ok_or_else(|| {
            let expected = format!("at most the {} bytes that are there", bytes.len());
            Error::new("header: header_len", HEADER_LEN as u64, header_len, expected)
        })?;
        Self::from_raw(raw.to_vec())
    }

    /// The same, without a copy.
    ///
    /// # Errors
    /// As [`FrameHeader::parse`].
    pub fn parse_vec(mut bytes: Vec<u8>) -> Result<Self> {
        let header_len = Self::announced_len(&bytes)? as usize;
        if header_len > bytes.len() {
            return Self::parse(&bytes);
        }
        bytes.truncate(header_len);
        Self::from_raw(bytes)
    }

    /// Of just the bytes of a header.
    fn from_raw(raw: Vec<u8>) -> Result<Self> {
        let [flags] = array(&raw, FLAGS);
        let [layout] = array(&raw, LAYOUT);
        if flags & VERSION_MASK > MAX_VERSION {
            let expected = format!("at most {MAX_VERSION}");
            return Err(Error::new("header: version", FLAGS as u64, flags & VERSION_MASK, expected));
        }
        if layout > 1 {
            return Err(Error::new("header: frame type", LAYOUT as u64, layout, "0 (contiguous) or 1 (sparse)"));
        }
        let nbytes = i64::from_be_bytes(array(&raw, NBYTES));
        if nbytes < 0 {
            return Err(Error::new("header: nbytes", NBYTES as u64, nbytes, "a size that is not negative"));
        }
        let cbytes = i64::from_be_bytes(array(&raw, CBYTES));
        if cbytes < 0 {
            return Err(Error::new("header: cbytes", CBYTES as u64, cbytes, "a size that is not negative"));
        }
        let typesize = i32::from_be_bytes(array(&raw, TYPESIZE));
        if typesize <= 0 {
            return Err(Error::new("header: typesize", TYPESIZE as u64, typesize, "a size above zero"));
        }
        let chunksize = i32::from_be_bytes(array(&raw, CHUNKSIZE));
        if chunksize < 0 && nbytes > 0 {
            return Err(Error::new("header: chunksize", CHUNKSIZE as u64, chunksize, "a size that is not negative"));
        }
        let [nfilters] = array(&raw, NFILTERS);
        if nfilters > MAX_FILTERS {
            let expected = format!("at most {MAX_FILTERS}");
            return Err(Error::new("header: number of filters", NFILTERS as u64, nfilters, expected));
        }
        let header = FrameHeader { metalayers: Table::parse(&raw, Part::Header)?, raw };
        if let Some(nchunks) = header.nchunks()
            && nchunks > index::MAX_ENTRIES
        {
            let got = format!("{nbytes}, which is {nchunks} chunks of {chunksize} bytes");
            return Err(Error::new("header: nbytes", NBYTES as u64, got, format_args!("at most {} chunks", index::MAX_ENTRIES)));
        }
        Ok(header)
    }

    /// Builds a header as C-Blosc2 3 writes it, markers included.
    ///
    /// # Errors
    /// More or longer metalayers than a header can have, or values that [`FrameHeader::parse`] refuses.
    pub fn encode(fields: &HeaderFields, metalayers: &[Metalayer<'_>]) -> Result<Self> {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let mut out = vec![Marker::FixArray(14).to_u8()];
        put(&mut out, Marker::FixStr(8), MAGIC);
        put(&mut out, Marker::I32, &[0; 4]); // header_len, known at the end
        put(&mut out, Marker::U64, &fields.frame_len.to_be_bytes());
        let flags = [
            fields.version & VERSION_MASK
                | OFFSETS_64
                | flag(fields.varying_chunks, VARYING_CHUNKS)
                | flag(fields.vl_blocks, VL_BLOCKS),
            layout_to_raw(fields.layout),
            fields.codec & CODEC_MASK | fields.clevel << CLEVEL_SHIFT,
            fields.split_mode.wrapping_sub(1) & SPLIT_MASK,
        ];
        put(&mut out, Marker::FixStr(4), &flags);
        put(&mut out, Marker::I64, &fields.nbytes.to_be_bytes());
        put(&mut out, Marker::I64, &fields.cbytes.to_be_bytes());
        put(&mut out, Marker::I32, &fields.typesize.to_be_bytes());
        put(&mut out, Marker::I32, &fields.blocksize.to_be_bytes());
        put(&mut out, Marker::I32, &fields.chunksize.to_be_bytes());
        put(&mut out, Marker::I16, &fields.nthreads_compress.to_be_bytes());
        put(&mut out, Marker::I16, &fields.nthreads_decompress.to_be_bytes());
        put(&mut out, bool_marker(fields.has_vlmetalayers), &[]);
        put(&mut out, Marker::FixExt16, &[MAX_FILTERS]);
        out.extend(fields.filters);
        out.extend([fields.user_codec, fields.codec_meta]);
        out.extend(fields.filters_meta);
        out.extend([flag(fields.use_dict, USE_DICT), 0]);
        metalayer::encode(&mut out, Part::Header, metalayers)?;
        let header_len = i32::try_from(out.len())
            .map_err(|_| Error::new("header: header_len", HEADER_LEN as u64, out.len(), format_args!("at most {}", i32::MAX)))?;
        patch(&mut out, HEADER_LEN, header_len.to_be_bytes());
        Self::parse(&out)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.raw
    }
    /// header_len: bytes of the header, metalayers included.
    pub fn header_len(&self) -> u32 {
        u32::from_be_bytes(array(&self.raw, HEADER_LEN))
    }
    /// frame_len: bytes of the whole frame, for an sframe of `chunks.b2frame`.
    pub fn frame_len(&self) -> u64 {
        u64::from_be_bytes(array(&self.raw, FRAME_LEN))
    }
    /// The frame type.
    pub fn layout(&self) -> Layout {
        match array(&self.raw, LAYOUT) {
            [0] => Layout::Contiguous,
            _ => Layout::Sparse,
        }
    }
    /// nbytes: uncompressed bytes of all chunks.
    pub fn nbytes(&self) -> u64 {
        u64::from_be_bytes(array(&self.raw, NBYTES))
    }
    /// cbytes: for a cframe the length of the chunks section in bytes, holes included; for an sframe the sum of the stored
    /// chunks' sizes. In a frame that has lost its last chunk C-Blosc2 leaves what was there before, so without chunks it
    /// means nothing.
    pub fn cbytes(&self) -> u64 {
        u64::from_be_bytes(array(&self.raw, CBYTES))
    }
    /// chunksize: uncompressed bytes of every chunk but the last. 0 says that chunks vary in size, or, as long as the frame
    /// has none, that no chunk has given the size yet (C-Blosc2 writes -1 for that).
    pub fn chunksize(&self) -> u32 {
        u32::try_from(i32::from_be_bytes(array(&self.raw, CHUNKSIZE))).unwrap_or(0)
    }
    /// typesize: bytes of an item, at least 1.
    pub fn typesize(&self) -> u32 {
        u32::from_be_bytes(array(&self.raw, TYPESIZE))
    }
    /// The number of chunks: ceil(nbytes / chunksize); `None` when chunks vary in size and only the index knows.
    pub fn nchunks(&self) -> Option<u64> {
        match (self.nbytes(), u64::from(self.chunksize())) {
            (0, _) => Some(0),
            (nbytes, chunksize) => nbytes.checked_next_multiple_of(chunksize)?.checked_div(chunksize),
        }
    }
    /// Every value of the fixed part.
    pub fn fields(&self) -> HeaderFields {
        let raw = &self.raw;
        let [flags] = array(raw, FLAGS);
        let [codec] = array(raw, CODEC);
        let [split_mode] = array(raw, SPLIT_MODE);
        let [user_codec] = array(raw, USER_CODEC);
        let [codec_meta] = array(raw, CODEC_META);
        let [flags2] = array(raw, FLAGS2);
        HeaderFields {
            frame_len: self.frame_len(),
            version: flags & VERSION_MASK,
            varying_chunks: flags & VARYING_CHUNKS != 0,
            vl_blocks: flags & VL_BLOCKS != 0,
            layout: self.layout(),
            codec: codec & CODEC_MASK,
            clevel: codec >> CLEVEL_SHIFT,
            split_mode: (split_mode & SPLIT_MASK).saturating_add(1),
            nbytes: self.nbytes(),
            cbytes: self.cbytes(),
            typesize: self.typesize(),
            blocksize: i32::from_be_bytes(array(raw, BLOCKSIZE)),
            chunksize: i32::from_be_bytes(array(raw, CHUNKSIZE)),
            nthreads_compress: i16::from_be_bytes(array(raw, NTHREADS_C)),
            nthreads_decompress: i16::from_be_bytes(array(raw, NTHREADS_D)),
            has_vlmetalayers: array(raw, HAS_VLMETALAYERS) == [Marker::True.to_u8()],
            filters: array(raw, FILTERS),
            filters_meta: array(raw, FILTERS_META),
            user_codec,
            codec_meta,
            use_dict: flags2 & USE_DICT != 0,
        }
    }
    /// The metalayers in order.
    pub fn metalayers(&self) -> impl ExactSizeIterator<Item = Metalayer<'_>> {
        self.metalayers.iter(&self.raw)
    }

    /// Where the parts of the frame are, given the length of its trailer ([`super::trailer::Trailer::announced_len`]).
    ///
    /// # Errors
    /// Parts that overlap, or an index that cannot be one by its length.
    pub fn sections(&self, trailer_len: u32) -> Result<Sections> {
        let header_len = u64::from(self.header_len());
        let frame_len = self.frame_len();
        let room = frame_len.saturating_sub(header_len);
        let room = room.checked_sub(u64::from(trailer_len)).ok_or_else(|| {
            let at = frame_len.saturating_sub(trailer::LEN_FROM_END);
            Error::new("trailer: trailer_len", at, trailer_len, format_args!("at most {room}"))
        })?;
        let chunks_len = match self.layout() {
            Layout::Contiguous if self.nbytes() > 0 => self.cbytes(),
            _ => 0,
        };
        let index_len = room
            .checked_sub(chunks_len)
            .ok_or_else(|| Error::new("header: cbytes", CBYTES as u64, chunks_len, format_args!("at most {room}")))?;
        let wrong = |expected: &str| {
            let got = format!("{frame_len}, which leaves {index_len} bytes for the index");
            Error::new("header: frame_len", FRAME_LEN as u64, got, expected)
        };
        match self.nbytes() {
            0 if index_len != 0 => return Err(wrong("header and trailer only, as there are no chunks")),
            1.. if index_len < MIN_INDEX_LEN => return Err(wrong("at least the 16 bytes of a chunk's header")),
            1.. if index_len > i32::MAX as u64 => return Err(wrong("at most the 2147483647 bytes of a chunk")),
            _ => {}
        }
        let index_at = header_len.saturating_add(chunks_len);
        let trailer_at = index_at.saturating_add(index_len);
        Ok(Sections { chunks: header_len..index_at, index: index_at..trailer_at, trailer: trailer_at..frame_len })
    }

    /// Sets frame_len in bytes.
    pub fn set_frame_len(&mut self, value: u64) {
        patch(&mut self.raw, FRAME_LEN, value.to_be_bytes());
    }
    /// Sets the frame type.
    pub fn set_layout(&mut self, value: Layout) {
        patch(&mut self.raw, LAYOUT, [layout_to_raw(value)]);
    }
    /// Sets nbytes.
    pub fn set_nbytes(&mut self, value: u64) {
        patch(&mut self.raw, NBYTES, value.to_be_bytes());
    }
    /// Sets cbytes.
    pub fn set_cbytes(&mut self, value: u64) {
        patch(&mut self.raw, CBYTES, value.to_be_bytes());
    }
    /// Sets chunksize in bytes, where the first chunk of a frame gives it.
    pub fn set_chunksize(&mut self, value: u32) {
        patch(&mut self.raw, CHUNKSIZE, value.to_be_bytes());
    }
    /// Sets the flag that says whether the trailer holds vlmetalayers.
    pub fn set_has_vlmetalayers(&mut self, value: bool) {
        patch(&mut self.raw, HAS_VLMETALAYERS, [bool_marker(value).to_u8()]);
    }
}

fn layout_to_raw(layout: Layout) -> u8 {
    match layout {
        Layout::Contiguous => 0,
        Layout::Sparse => 1,
    }
}

fn bool_marker(value: bool) -> Marker {
    if value { Marker::True } else { Marker::False }
}

/// `N` bytes at `at`, which is within the fixed part of a header long enough for it.
fn array<const N: usize>(raw: &[u8], at: usize) -> [u8; N] {
    let found = raw.get(at..).and_then(|rest| rest.first_chunk());
    debug_assert!(found.is_some(), "{N} bytes at {at} of {}", raw.len());
    found.copied().unwrap_or([0; N])
}

/// Puts `value` at `at`, which is within the fixed part.
fn patch<const N: usize>(raw: &mut [u8], at: usize, value: [u8; N]) {
    let found = raw.get_mut(at..).and_then(|rest| rest.first_chunk_mut());
    debug_assert!(found.is_some(), "{N} bytes at {at}");
    if let Some(found) = found {
        *found = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_the_marker_of_a_real_frame_before_it() {
        let real = include_bytes!("../../tests/data/cframe/codec-zstd.b2frame");
        let places = [
            (MAGIC_AT, 0xa8),
            (HEADER_LEN, 0xd2),
            (FRAME_LEN, 0xcf),
            (FLAGS, 0xa4),
            (NBYTES, 0xd3),
            (CBYTES, 0xd3),
            (TYPESIZE, 0xd2),
            (BLOCKSIZE, 0xd2),
            (CHUNKSIZE, 0xd2),
            (NTHREADS_C, 0xd1),
            (NTHREADS_D, 0xd1),
            (NFILTERS, 0xd8),
        ];
        for (at, marker) in places {
            assert_eq!(real[at - 1], marker, "before {at}");
        }
        assert_eq!(real[METALAYERS], 0x93);
    }
}
