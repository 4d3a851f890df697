//! The trailer of a frame: the vlmetalayers, and the trailer's own length, by which it is found from the end.
//!
//! ```text
//!   0 94            array of 4                len - 23 ce              uint32
//!   1 version       0 (beta) or 1             len - 22 trailer_len     u32
//!   2 vlmetalayers, as in [`super::metalayer`] len - 18 d8 type         fixext of 16, fingerprint type
//!                                             len - 16 fingerprint     16 bytes
//! ```
//!
//! MessagePack, so big endian. C-Blosc2 writes no fingerprint: type 0, and zeros.

use rmp::Marker;

use super::metalayer::{self, Metalayer, Part, Table};
use super::msgpack::put;
use super::{Error, Result};

/// The smallest trailer: nothing but what stands around the vlmetalayers.
pub(super) const MIN_LEN: usize = 25;
/// From the marker of trailer_len to the end.
const TAIL: usize = 23;
/// From trailer_len itself to the end.
pub(super) const LEN_FROM_END: u64 = TAIL as u64 - 1;
const VERSION: u8 = 1;

/// The most vlmetalayers that C-Blosc2 3.3 writes. It reads 8192, but of a frame that has more than these, every change fails in
/// the middle.
pub const MOST_WRITTEN: usize = 16;

/// A trailer as it stands in a file: every byte is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trailer {
    raw: Vec<u8>,
    vlmetalayers: Table,
}

impl Trailer {
    /// The last bytes of a frame, enough for [`Trailer::announced_len`].
    pub const TAIL_LEN: usize = MIN_LEN;

    /// The trailer_len field from the last [`Trailer::TAIL_LEN`] bytes of a frame of `frame_len` bytes with a header of
    /// `header_len`, checked against both.
    ///
    /// # Errors
    /// Too few bytes, no trailer_len where it must be, or one that leaves no room for the header. Offsets in errors are
    /// those in the frame.
    pub fn announced_len(tail: &[u8], header_len: u32, frame_len: u64) -> Result<u32> {
        let at = frame_len.saturating_sub(TAIL as u64);
        let Some([marker, len @ ..]) = tail.last_chunk::<TAIL>().and_then(|tail| tail.first_chunk::<5>()) else {
            return Err(Error::new("trailer", at, format_args!("{} bytes", tail.len()), format_args!("at least {TAIL}")));
        };
        if *marker != Marker::U32.to_u8() {
            return Err(Error::new("trailer: mark of trailer_len", at, format_args!("{marker:#04x}"), "0xce"));
        }
        let len = u32::from_be_bytes(*len);
        let most = frame_len.saturating_sub(u64::from(header_len)).min(i32::MAX as u64);
        if len < MIN_LEN as u32 || u64::from(len) > most {
            let expected = format!("{MIN_LEN} to {most}");
            return Err(Error::new("trailer: trailer_len", at.saturating_add(1), len, expected));
        }
        Ok(len)
    }

    /// Parses a trailer; `bytes` is exactly it.
    ///
    /// # Errors
    /// Another length than its own trailer_len, vlmetalayers that lie outside.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        Self::check(bytes).map(|vlmetalayers| Trailer { raw: bytes.to_vec(), vlmetalayers })
    }

    /// The same, without a copy.
    ///
    /// # Errors
    /// As [`Trailer::parse`].
    pub fn parse_vec(bytes: Vec<u8>) -> Result<Self> {
        Self::check(&bytes).map(|vlmetalayers| Trailer { raw: bytes, vlmetalayers })
    }

    fn check(bytes: &[u8]) -> Result<Table> {
        let len = Self::announced_len(bytes, 0, bytes.len() as u64)?;
        if len as usize != bytes.len() {
            let at = (bytes.len() as u64).saturating_sub(LEN_FROM_END);
            return Err(Error::new("trailer: trailer_len", at, len, format_args!("{}, the trailer's length", bytes.len())));
        }
        Table::parse(bytes, Part::Trailer)
    }

    /// Builds a trailer as C-Blosc2 3 writes it.
    ///
    /// # Errors
    /// More or longer vlmetalayers than a trailer can have.
    pub fn encode(vlmetalayers: &[Metalayer<'_>]) -> Result<Self> {
        let mut out = vec![Marker::FixArray(4).to_u8(), VERSION];
        metalayer::encode(&mut out, Part::Trailer, vlmetalayers)?;
        let len = out.len().saturating_add(TAIL);
        let len = u32::try_from(len)
            .map_err(|_| Error::new("trailer: trailer_len", out.len() as u64, len, format_args!("at most {}", i32::MAX)))?;
        put(&mut out, Marker::U32, &len.to_be_bytes());
        put(&mut out, Marker::FixExt16, &[0; 17]);
        Self::parse(&out)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.raw
    }
    /// The vlmetalayers in order; the content of each is a Blosc2 chunk.
    pub fn vlmetalayers(&self) -> impl ExactSizeIterator<Item = Metalayer<'_>> {
        self.vlmetalayers.iter(&self.raw)
    }
}
