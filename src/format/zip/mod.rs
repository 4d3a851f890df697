//! Archives of Python-Blosc2 (`.b2z`): ZIP files whose members are stored as they are, so that each is a range of the archive.
//!
//! ```text
//!   member     local header (30 bytes), name, extra fields, data
//!   ...
//!   directory  for each member: header (46 bytes), name, extra fields, comment
//!   end        with more than 65,535 members or 4 GiB: record (56) and locator (20) of ZIP64; then the end record (22)
//! ```
//!
//! Little endian. There are many ways to read a ZIP file, and two programs that choose differently see different members. So this takes
//! only what can be read in one way: the end record ends the file, the directory ends where the end begins, no two members share a
//! byte, no two names are the same, and a local header says what the directory says.
//!
//! [`End`] and [`Contents::parse`] read the directory; [`Member::data`] reads a local header.

mod contents;
mod end;
mod record;
#[cfg(test)]
pub(crate) mod tests;

pub use contents::{Contents, Entry, Member, Number};
pub use end::End;

/// The longest directory that is read.
pub const MAX_DIRECTORY: u64 = 24 << 20;
/// The most files and directories in an archive.
pub const MAX_ENTRIES: usize = 1 << 18;
/// The longest path of a member.
pub const MAX_PATH: usize = 4096;
/// The longest name in a directory.
pub const MAX_NAME: usize = 255;
