//! Blosc2 chunks: headers, the decoder for all standard codecs and filters, of whole chunks and of single blocks, and the encoder.
//!
//! A chunk that [`check`] passes is whole; one that `decode` passes holds what C-Blosc2 would read from it. Nothing is allocated
//! beyond the `limit` given to `decode` and a few blocks of working room, each no larger than the chunk's decoded size.

mod block_decode;
mod block_map;
mod blosclz;
mod codec;
mod copy;
mod decode;
mod encode;
mod filters;
mod header;
mod lz4;
mod traits;

pub use block_decode::ChunkDecoder;
pub use block_map::BlockMap;
pub use copy::fill_run;
pub use decode::{Decoder, check, decode};
pub use encode::{Before, Encoder, Params, Split, encode, encode_like, plain, special};
pub use header::{ChunkHeader, MAX_BLOCKSIZE, MAX_VERSION};
pub use traits::{Form, Traits};

#[cfg(test)]
mod tests;
