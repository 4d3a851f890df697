//! Fuzz targets: what holds for any bytes, and for any order of operations.
//!
//! | target | input | what holds, besides that nothing panics and memory is bounded |
//! | --- | --- | --- |
//! | [`frame`] | a frame, all but its chunks | what parses encodes to the same values |
//! | [`metadata`] | a header, and a trailer | the same |
//! | [`index`] | an index chunk, or entries | the same, both ways |
//! | [`index_file`] | the index file of a sparse frame | the same, and a file made again does not change |
//! | [`chunk`] | a chunk | what decodes passes the check; a used decoder decodes as a new one |
//! | [`times`] | a record of times, all but its checksum | the same |
//! | [`archive`] | a `.b2z`, or its directory | every name leads to one member, and no two members share a byte |
//! | [`dtype`] | a text that names a type of items | what parses is written again to a text of the same type |
//! | [`npy`] | the beginning of a .npy file | likewise, and no more of the file is asked for than there may be |
//! | [`slice`] | the shape of an array, and a text | items lie in the array, and each block that tiles come from comes once |
//! | [`store`] | a cframe, or an index file with chunk files | what opens can be committed to, and keeps the chunks that were not touched |
//! | [`examine`] | likewise | `check`, `repair` and what is shown to people end, and what was repaired is sound |
//! | [`sparse`], [`contiguous`] | operations of a client | SOURCE is always the state that was last committed, and every chunk in it is whole |
//!
//! `scripts/fuzz` runs them.

mod disk;
mod format;
mod input;
mod memory;
mod npy;
mod session;

pub use disk::{examine, store};
pub use format::{archive, chunk, frame, index, index_file, metadata, times};
pub use npy::{dtype, npy, slice};
pub use session::{contiguous, sparse};
