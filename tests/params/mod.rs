//! What an encoder is asked for, in files that tests/python makes for tests here.

use b2fuse::format::chunk::{Params, Split};
use b2fuse::format::registry::{CodecId, FilterId};

/// The parameters of an encoder, as tests/python/encode_matrix.py writes them.
pub fn params(record: &[u8]) -> Params {
    let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().unwrap());
    Params {
        codec: CodecId(record[0]),
        level: record[1],
        split: [Split::Always, Split::Never, Split::Auto, Split::ForwardCompat][usize::from(record[2]) - 1],
        typesize: word(3),
        blocksize: word(7),
        filters: std::array::from_fn(|slot| (FilterId(record[11 + slot]), record[17 + slot])),
    }
}
