//! The encoders.
//!
//! [`Encoder`] makes any chunk that C-Blosc2 makes without plugins and dictionaries. The functions are for what a frame has besides
//! its data: index chunks, special values, and chunks that hold their bytes as they are.

mod codecs;
mod encoder;
mod index;
mod params;

pub use encoder::Encoder;
pub use index::{Before, encode, encode_like, plain, special};
pub use params::{Params, Split};

#[cfg(test)]
mod tests;
