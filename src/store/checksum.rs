//! The checksum of what is kept on a disk and found there again: CRC-64/NVME. It tells what chance has changed, and not what somebody has.

use crc_fast::CrcAlgorithm;
pub use crc_fast::Digest;

const ALGORITHM: CrcAlgorithm = CrcAlgorithm::Crc64Nvme;

/// Of some bytes: also what names are made of, so that nothing in a path or a URL can be part of one.
pub fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(ALGORITHM, bytes)
}

/// Of bytes that come piece by piece.
pub fn running() -> Digest {
    Digest::new(ALGORITHM)
}
