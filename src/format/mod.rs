//! Bytes to values and back: frames and chunks as C-Blosc2 writes them, and archives as Python-Blosc2 does.
//!
//! Nothing here reads or writes a file, and nothing here trusts a byte: every length is compared with what is there before
//! anything is allocated, arithmetic on values from disk is checked, and a parser answers bad input with an [`Error`] that
//! names the field, its offset, what was found and what was expected.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

pub mod array;
pub mod chunk;
pub mod cutting;
mod error;
mod fit;
pub mod header;
mod ids;
pub mod index;
pub mod index_file;
pub mod metalayer;
mod msgpack;
pub mod npy;
pub mod object;
pub mod partition;
pub mod plain;
pub mod registry;
pub mod slice;
pub mod tiling;
pub mod times;
pub mod trailer;
pub mod zip;

pub use error::{Error, Result};
pub use fit::{Fit, Kept, Rules};
pub use ids::{ChunkId, ChunkOffset, INDEX_NAME, IndexEntry, Layout, Packed, Position, Special};
