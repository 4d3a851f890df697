//! The end of an archive, which says where its directory is.

use std::ops::Range;

use super::record::Fields;
use super::{MAX_DIRECTORY, MAX_ENTRIES};
use crate::format::{Error, Result};

const END: &[u8; 4] = b"PK\x05\x06";
const END_LEN: u64 = 22;
const LOCATOR: &[u8; 4] = b"PK\x06\x07";
const LOCATOR_LEN: u64 = 20;
const END64: &[u8; 4] = b"PK\x06\x06";
const END64_LEN: u64 = 56;

/// Where the directory of an archive is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// How many members it has.
    pub count: u64,
    /// Where in the file.
    pub directory: Range<u64>,
}

impl End {
    /// So many bytes from the end of a file are enough for [`End::parse`].
    pub const LEN: u64 = END_LEN + LOCATOR_LEN + END64_LEN;

    /// Reads the end of a file of `file_len` bytes from its last bytes: all of them, or [`End::LEN`] at least. Offsets in errors are
    /// those in the file.
    ///
    /// # Errors
    /// Another end than one of an archive that ends with its end record, which lies right behind its directory.
    pub fn parse(tail: &[u8], file_len: u64) -> Result<Self> {
        let tail = Fields::new(tail, file_len.saturating_sub(tail.len() as u64));
        let at = file_len.saturating_sub(END_LEN);
        let end = tail.part("zip: end record", at, END_LEN)?;
        end.expect(0, "zip: end record", END)?;
        end.expect(4, "zip: number of this disk", &[0; 2])?;
        end.expect(6, "zip: disk of the directory", &[0; 2])?;
        end.expect(20, "zip: length of the comment", &[0; 2])?;
        let (here, count) = (u64::from(end.u16(8)?), u64::from(end.u16(10)?));
        if here != count {
            return Err(end.error(8, "zip: members on this disk", here, count));
        }
        let (len, offset) = (u64::from(end.u32(12)?), u64::from(end.u32(16)?));
        let locator_at = at.saturating_sub(LOCATOR_LEN);
        let locator = tail.part("zip: ZIP64 locator", locator_at, LOCATOR_LEN).ok();
        let locator = locator.filter(|locator| locator.expect(0, "", LOCATOR).is_ok());
        let found = match locator {
            None => Found { count, len, offset, ends: at },
            Some(locator) => {
                let wide = Found::in_zip64(&tail, &locator, locator_at)?;
                // What fits into the end record stands there as well.
                for (field, of_end, narrow, wide, most) in [
                    ("zip: members", 10, count, wide.count, u64::from(u16::MAX)),
                    ("zip: length of the directory", 12, len, wide.len, u64::from(u32::MAX)),
                    ("zip: offset of the directory", 16, offset, wide.offset, u64::from(u32::MAX)),
                ] {
                    if narrow != wide && narrow != most {
                        return Err(end.error(of_end, field, narrow, format_args!("{wide}, as in the ZIP64 record")));
                    }
                }
                wide
            }
        };
        found.check(&end)
    }
}

/// What an end says.
struct Found {
    count: u64,
    len: u64,
    offset: u64,
    /// Where the directory must end.
    ends: u64,
}

impl Found {
    fn in_zip64(tail: &Fields<'_>, locator: &Fields<'_>, locator_at: u64) -> Result<Self> {
        locator.expect(4, "zip: disk of the ZIP64 record", &[0; 4])?;
        locator.expect(16, "zip: number of disks", &[1, 0, 0, 0])?;
        let at = locator_at.saturating_sub(END64_LEN);
        if locator.u64(8)? != at {
            return Err(locator.error(8, "zip: offset of the ZIP64 record", locator.u64(8)?, at));
        }
        let record = tail.part("zip: ZIP64 record", at, END64_LEN)?;
        record.expect(0, "zip: ZIP64 record", END64)?;
        // What follows the field.
        record.expect(4, "zip: length of the ZIP64 record", &44u64.to_le_bytes())?;
        record.expect(16, "zip: disks of the ZIP64 record", &[0; 8])?;
        let (here, count) = (record.u64(24)?, record.u64(32)?);
        if here != count {
            return Err(record.error(24, "zip: members on this disk", here, count));
        }
        Ok(Found { count, len: record.u64(40)?, offset: record.u64(48)?, ends: at })
    }

    fn check(self, end: &Fields<'_>) -> Result<End> {
        let Found { count, len, offset, ends } = self;
        if len > MAX_DIRECTORY {
            return Err(end.error(12, "zip: length of the directory", len, format_args!("at most {MAX_DIRECTORY}")));
        }
        if count > MAX_ENTRIES as u64 {
            return Err(end.error(10, "zip: members", count, format_args!("at most {MAX_ENTRIES}")));
        }
        if offset.checked_add(len) != Some(ends) {
            let got = format_args!("{offset} with a length of {len}");
            return Err(end.error(16, "zip: offset of the directory", got, format_args!("one that ends at {ends}")));
        }
        Ok(End { count, directory: offset..ends })
    }
}

impl Fields<'_> {
    fn error(&self, at: u64, field: &'static str, got: impl std::fmt::Display, expected: impl std::fmt::Display) -> Error {
        Error::new(field, self.offset(at), got, expected)
    }
}
