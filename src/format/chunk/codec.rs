//! The codecs behind one call.

use std::fmt;

use zstd::zstd_safe::{DCtx, DDict, get_error_name};

use super::super::registry::{CodecId, Plugin};
use super::super::{Error, Result};
use super::header::{self, Codec};
use super::{blosclz, lz4};

/// States that are worth keeping between streams.
#[derive(Default)]
pub(super) struct Codecs {
    zlib: Option<flate2::Decompress>,
    zstd: Option<DCtx<'static>>,
}

/// A chunk's dictionary, made ready.
pub(super) enum Dictionary<'a> {
    None,
    Lz4(&'a [u8]),
    Zstd(DDict<'a>),
}

impl Codec {
    /// Checks that a stream of `len` bytes can be decoded, and can make `size` at all, before room is made for them. `offset` is
    /// where its block begins.
    pub(super) fn can_make(self, len: usize, size: usize, offset: usize) -> Result<()> {
        let ratio = match self {
            // A match grows by 255 with each byte.
            Codec::BloscLz | Codec::Lz4 => 255,
            // 258 bytes with two bits.
            Codec::Zlib => 1032,
            // A block of 128 KiB with four bytes.
            Codec::Zstd => 32 << 10,
            Codec::User(id) => {
                let (id, expected) = (CodecId(id), "blosclz, lz4, lz4hc, zlib or zstd");
                return Err(if id.is_plugin() {
                    Error::new("chunk: user codec", header::USER_CODEC as u64, Plugin::Codec(id), expected)
                } else {
                    Error::new("chunk: user codec", header::USER_CODEC as u64, id.0, expected)
                });
            }
            Codec::Unknown(format) => {
                return Err(Error::new("chunk: codec format", header::FLAGS as u64, format, "0, 1, 3, 4 or 6"));
            }
        };
        let most = len.saturating_mul(ratio).saturating_add(512);
        if size <= most {
            return Ok(());
        }
        Err(Error::new("chunk: stream", offset as u64, format_args!("{len} bytes for {size}"), format_args!("at most {most}")))
    }
}

impl Codecs {
    /// Makes ready the dictionary of a chunk, which stands at `offset`. Codecs without dictionaries ignore it.
    pub(super) fn dictionary<'a>(codec: Codec, dictionary: Option<&'a [u8]>, offset: usize) -> Result<Dictionary<'a>> {
        match (codec, dictionary) {
            (Codec::Lz4, Some(content)) => Ok(Dictionary::Lz4(content)),
            (Codec::Zstd, Some(content)) => DDict::try_create(content).map(Dictionary::Zstd).ok_or_else(|| {
                let len = content.len();
                Error::new("chunk: dictionary", offset as u64, format_args!("{len} bytes that Zstandard refuses"), "a dictionary")
            }),
            _ => Ok(Dictionary::None),
        }
    }

    /// Decodes one stream that makes exactly `out`. `offset` is where its block begins.
    pub(super) fn decode(
        &mut self,
        codec: Codec,
        dictionary: &Dictionary,
        stream: &[u8],
        out: &mut [u8],
        offset: usize,
    ) -> Result<()> {
        let size = out.len();
        codec.can_make(stream.len(), size, offset)?;
        let bad = |name: &'static str, got: &dyn fmt::Display| {
            Error::new(name, offset as u64, got, format_args!("a stream that makes {size} bytes"))
        };
        let made = match codec {
            Codec::BloscLz => blosclz::decompress(stream, out).ok_or_else(|| bad("chunk: BloscLZ stream", &"a broken one"))?,
            Codec::Lz4 => {
                let before = if let Dictionary::Lz4(content) = dictionary { content } else { &[][..] };
                lz4::decompress(stream, out, before).ok_or_else(|| bad("chunk: LZ4 stream", &"a broken one"))?
            }
            Codec::Zlib => {
                let state = self.zlib.get_or_insert_with(|| flate2::Decompress::new(true));
                state.reset(true);
                match state.decompress(stream, out, flate2::FlushDecompress::Finish) {
                    Ok(flate2::Status::StreamEnd) => state.total_out() as usize,
                    Ok(_) => return Err(bad("chunk: Zlib stream", &"one without an end")),
                    Err(error) => return Err(bad("chunk: Zlib stream", &error)),
                }
            }
            Codec::Zstd => {
                let state = self.zstd.get_or_insert_with(DCtx::create);
                match dictionary {
                    Dictionary::Zstd(content) => state.decompress_using_ddict(out, stream, content),
                    _ => state.decompress(out, stream),
                }
                .map_err(|code| bad("chunk: Zstandard stream", &get_error_name(code)))?
            }
            // Refused before.
            Codec::User(_) | Codec::Unknown(_) => 0,
        };
        if made == size { Ok(()) } else { Err(bad("chunk: stream", &format_args!("one that makes {made}"))) }
    }
}
