//! The bytes of a kept piece's file: what it is a piece of, a checksum over everything, the piece.
//!
//! | bytes | |
//! | --- | --- |
//! | 8 | magic |
//! | 8 | CRC-64/NVME of all that follows, to the end of the file |
//! | 4, 4, 4, 4 | version, length of the key, length of the tag, 0 |
//! | 8 | length of the whole object |
//! | 8 | length of the piece |
//! | | key, tag, piece |
//!
//! All numbers are little-endian. A file is taken for a piece only if its length, its checksum and its key are right.

use std::io;

use crate::store::backend::{BackendFile, read_exact_at};
use crate::store::checksum;

const MAGIC: [u8; 8] = *b"b2fpiece";
const VERSION: u32 = 1;
/// Bytes before the key.
const HEAD: usize = 48;
/// Bytes of the head that the checksum is not over.
const UNSUMMED: usize = 16;
/// The most bytes that a key may have: URLs are shorter.
pub(super) const MOST_KEY: usize = 64 << 10;
/// The most bytes of an object's tag.
pub(super) const MOST_TAG: usize = 4 << 10;
/// The most bytes of a piece: an index of a frame with some ten million chunks.
pub(super) const MOST_DATA: usize = 256 << 20;

/// A part of an object, or a whole one, as it was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// What [`put`](super::State::put) was given.
    pub bytes: Vec<u8>,
    /// Length of the whole object in bytes.
    pub total_len: u64,
    /// The object's own tag (its ETag), or nothing.
    pub tag: String,
}

/// Why a file is no piece that is wanted.
#[derive(Debug)]
pub(super) enum Unfit {
    /// It is not as it was written, or is none of ours.
    Damaged(String),
    /// It is as it was written, but has this key.
    Foreign(Vec<u8>),
}

impl From<io::Error> for Unfit {
    fn from(error: io::Error) -> Self {
        Unfit::Damaged(crate::store::in_words(&error))
    }
}

/// Adds a text to a key, so that no other texts give the same key.
pub(super) fn add_to_key(key: &mut Vec<u8>, text: &str) {
    key.extend((text.len() as u64).to_le_bytes());
    key.extend(text.as_bytes());
}

/// How long the file of a piece is.
pub(super) fn file_len(key: &[u8], tag: &str, data: &[u8]) -> u64 {
    HEAD as u64 + key.len() as u64 + tag.len() as u64 + data.len() as u64
}

/// What stands in the file before the piece. The lengths are within the bounds of this module.
pub(super) fn before_data(key: &[u8], tag: &str, total_len: u64, data: &[u8]) -> Vec<u8> {
    let mut summed = Vec::with_capacity(HEAD + key.len() + tag.len());
    for number in [VERSION, key.len() as u32, tag.len() as u32, 0] {
        summed.extend(number.to_le_bytes());
    }
    summed.extend(total_len.to_le_bytes());
    summed.extend((data.len() as u64).to_le_bytes());
    summed.extend(key);
    summed.extend(tag.as_bytes());
    let mut digest = checksum::running();
    digest.update(&summed);
    digest.update(data);
    let mut bytes = Vec::with_capacity(UNSUMMED + summed.len());
    bytes.extend(MAGIC);
    bytes.extend(digest.finalize().to_le_bytes());
    bytes.extend(summed);
    bytes
}

/// Reads the file of a piece, `len` bytes long.
pub(super) fn read(file: &dyn BackendFile, len: u64, key: &[u8]) -> Result<Piece, Unfit> {
    let mut head = [0; HEAD];
    read_exact_at(file, &mut head, 0)?;
    let Head { checksum, key_len, tag_len, data_len, total_len } = Head::parse(&head, len)?;
    let mut names = vec![0; key_len + tag_len];
    read_exact_at(file, &mut names, HEAD as u64)?;
    let mut bytes = vec![0; data_len];
    read_exact_at(file, &mut bytes, HEAD as u64 + names.len() as u64)?;
    let mut digest = checksum::running();
    digest.update(head.split_at(UNSUMMED).1);
    digest.update(&names);
    digest.update(&bytes);
    let found = digest.finalize();
    if found != checksum {
        return Err(Unfit::Damaged(format!("its checksum is {found:016x}; expected {checksum:016x}")));
    }
    let tag = names.split_off(key_len);
    if names != key {
        return Err(Unfit::Foreign(names));
    }
    let tag = String::from_utf8(tag).map_err(|_| Unfit::Damaged("its tag is no text".into()))?;
    Ok(Piece { bytes, total_len, tag })
}

/// What the head says, if it can be true of a file of that length.
struct Head {
    checksum: u64,
    key_len: usize,
    tag_len: usize,
    data_len: usize,
    total_len: u64,
}

impl Head {
    fn parse(head: &[u8; HEAD], file_len: u64) -> Result<Self, Unfit> {
        let damaged = |field: &str, got: u64, expected: u64| {
            Unfit::Damaged(format!(
                "its {field} is {got}; expected {expected}{}",
                if field.contains("length") { " at most" } else { "" }
            ))
        };
        let long = |at: usize| head.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
        let short = |at: usize| head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
        if !head.starts_with(&MAGIC) {
            return Err(Unfit::Damaged("it does not begin as a kept piece does".into()));
        }
        let (version, total_len) = (short(16), long(32));
        if version != VERSION {
            return Err(damaged("version", version.into(), VERSION.into()));
        }
        let bounded = |field: &str, got: u64, most: usize| match usize::try_from(got) {
            Ok(len) if len <= most => Ok(len),
            _ => Err(damaged(field, got, most as u64)),
        };
        let key_len = bounded("key's length", short(20).into(), MOST_KEY)?;
        let tag_len = bounded("tag's length", short(24).into(), MOST_TAG)?;
        let data_len = bounded("piece's length", long(40), MOST_DATA)?;
        let expected = (HEAD + key_len + tag_len + data_len) as u64;
        if file_len != expected {
            return Err(Unfit::Damaged(format!("it has {file_len} bytes; expected {expected}")));
        }
        if total_len < data_len as u64 {
            return Err(Unfit::Damaged(format!("its object has {total_len} bytes; expected at least {data_len}")));
        }
        Ok(Head { checksum: long(8), key_len, tag_len, data_len, total_len })
    }
}
