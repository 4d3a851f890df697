//! The compressors behind one call, each at the library's levels.

use flate2::{Compress, Compression, FlushCompress, Status};
use lz4::block::{CompressionMode, compress_to_buffer};
use zstd::zstd_safe::{CCtx, max_c_level};

use super::super::super::registry::CodecId;
use super::super::blosclz;

/// States that are worth keeping between streams.
#[derive(Default)]
pub(super) struct Codecs {
    blosclz: blosclz::Tables,
    /// With its level.
    zlib: Option<(u8, Compress)>,
    zstd: Option<CCtx<'static>>,
}

impl Codecs {
    /// Compresses a stream to the beginning of `out` and says how long it is; `None` where it does not fit, or is not worth while.
    /// `level` is 1 to 9.
    pub(super) fn encode(&mut self, codec: CodecId, level: u8, stream: &[u8], out: &mut [u8]) -> Option<usize> {
        let made = match codec.0 {
            0 => blosclz::compress(level, stream, out, &mut self.blosclz)?,
            1 => compress_to_buffer(stream, Some(CompressionMode::FAST(10_i32.saturating_sub(level.into()))), false, out).ok()?,
            2 => compress_to_buffer(stream, Some(CompressionMode::HIGHCOMPRESSION(level.into())), false, out).ok()?,
            4 => {
                let known = self.zlib.take().filter(|(known, _)| *known == level);
                let (_, mut state) = known.unwrap_or_else(|| (level, Compress::new(Compression::new(level.into()), true)));
                state.reset();
                let Ok(Status::StreamEnd) = state.compress(stream, out, FlushCompress::Finish) else {
                    // A state that did not come to its end is not what it was after a reset: zlib-rs 0.6 goes on with what is left.
                    return None;
                };
                let made = usize::try_from(state.total_out()).ok()?;
                self.zlib = Some((level, state));
                made
            }
            5 => {
                let level = if level < 9 { i32::from(level).saturating_mul(2).saturating_sub(1) } else { max_c_level() };
                self.zstd.get_or_insert_with(CCtx::create).compress(out, stream, level).ok()?
            }
            _ => return None,
        };
        (made > 0).then_some(made)
    }
}
