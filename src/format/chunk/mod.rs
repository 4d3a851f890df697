//! Blosc2 chunks: headers, the decoder for all standard codecs and filters, and encoders of index chunks and of plain copies.
//!
//! A chunk that [`check`] passes is whole; one that [`decode`] passes holds what C-Blosc2 would read from it. Nothing is allocated
//! beyond the `limit` given to `decode` and a few blocks of working room, each no larger than the chunk's decoded size.

mod blosclz;
mod codec;
mod copy;
mod decode;
mod encode;
mod filters;
mod header;
mod lz4;

pub use decode::{Decoder, check, decode};
pub use encode::{Before, encode, encode_like, plain, special};
pub use header::{ChunkHeader, MAX_VERSION};

#[cfg(test)]
mod tests;
