//! Clients that write one file at the same time, and which of its bytes are as each of them wrote them.
//!
//! The kernel splits a write(2) into several WRITEs, and other clients' opens with `O_TRUNC`, closes and fsyncs come between them. So a close may
//! find a chunk that is part one client's and part another's, or was never written in between, and whose structure shows nothing of it.
//! A part of a frame (header, chunk, index, trailer) is taken if all of it is as one client wrote it. Otherwise:
//!
//! | the part | is |
//! | --- | --- |
//! | while another client that has written is open | not taken yet |
//! | of a file in which one client has changed or cut off bytes of another | refused |
//! | with bytes that were never written | refused |
//! | else, as of programs that copy pieces of a file at the same time | taken if it decodes |

use std::io;
use std::ops::Range;

use super::Handle;
use super::intervals::Intervals;
use crate::format::{Error, Result};

/// Parts that are kept apart, of all clients.
const MOST_PARTS: usize = 1 << 14;
/// How much is compared at once, in bytes.
const PIECE: usize = 1 << 20;

/// What each of several clients has written to a file.
#[derive(Debug, Clone)]
pub struct Writers {
    /// By handle: the bytes that are as it wrote them last. Bytes that several handles wrote alike are in several.
    parts: Vec<(Handle, Intervals)>,
    /// A client has changed or cut off bytes of another.
    have_overwritten: bool,
}

impl Writers {
    /// Those of a file to which one handle has written so far.
    pub fn new(first: Handle, written: Intervals) -> Self {
        Writers { parts: vec![(first, written)], have_overwritten: false }
    }

    /// Those of a file that a handle has emptied while another one was writing to it.
    pub fn of_emptied(handle: Handle) -> Self {
        Writers { have_overwritten: true, ..Self::new(handle, Intervals::default()) }
    }

    /// Whether another handle has written in a part.
    pub fn has_others(&self, handle: Handle, part: Range<u64>) -> bool {
        self.parts.iter().any(|(other, parts)| *other != handle && parts.touches(part.clone()))
    }

    /// Notes a write; `is_same` if the bytes were there before.
    pub fn write(&mut self, handle: Handle, part: Range<u64>, is_same: bool) {
        if !is_same {
            self.have_overwritten |= self.has_others(handle, part.clone());
            let others = self.parts.iter_mut().filter(|(other, _)| *other != handle);
            others.for_each(|(_, parts)| parts.remove(part.clone()));
        }
        match self.parts.iter_mut().find(|(other, _)| *other == handle) {
            Some((_, parts)) => parts.insert(part),
            None => {
                let mut parts = Intervals::default();
                parts.insert(part);
                self.parts.push((handle, parts));
            }
        }
        self.parts.retain(|(_, parts)| parts.count() > 0);
        if self.parts.iter().map(|(_, parts)| parts.count()).sum::<usize>() > MOST_PARTS {
            // What is written from now on is known again.
            self.parts.clear();
            self.have_overwritten = true;
        }
    }

    /// Notes another length.
    pub fn set_len(&mut self, handle: Handle, len: u64) {
        self.have_overwritten |= self.has_others(handle, len..u64::MAX);
        self.parts.iter_mut().for_each(|(_, parts)| parts.cut(len));
    }

    fn is_of_one(&self, part: &Range<u64>) -> bool {
        self.parts.iter().any(|(_, parts)| parts.covers(part.clone()))
    }
}

/// Returns whether a file has these bytes from `offset` on. `read` fills a buffer from an offset on, and returns false if the file is too
/// short for that.
///
/// # Errors
/// What `read` returns.
pub fn has_bytes(data: &[u8], offset: u64, mut read: impl FnMut(&mut [u8], u64) -> io::Result<bool>) -> io::Result<bool> {
    let (mut buf, mut at) = (Vec::new(), offset);
    for piece in data.chunks(PIECE) {
        buf.resize(piece.len(), 0);
        if !read(&mut buf, at)? || buf != piece {
            return Ok(false);
        }
        at += piece.len() as u64;
    }
    Ok(true)
}

/// Checks that a part of a file may be taken: see the module. `is_filled` if all of it was written, `is_written` if a client that has
/// written to the file has it open. Returns whether all of it is one client's.
///
/// # Errors
/// It is not taken, or not yet.
pub fn check(writers: Option<&Writers>, part: &Range<u64>, is_filled: bool, is_written: bool) -> Result<bool> {
    match writers {
        None => Ok(is_filled),
        Some(writers) if writers.is_of_one(part) => Ok(true),
        Some(writers) if is_written || writers.have_overwritten || !is_filled => {
            let got = format_args!("{} bytes that several clients wrote at the same time", part.end - part.start);
            Err(Error::new("file", part.start, got, "a part that one client wrote"))
        }
        Some(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Handle = Handle(1);
    const OTHER: Handle = Handle(2);

    fn writers() -> Writers {
        let mut written = Intervals::default();
        written.insert(0..100);
        Writers::new(ONE, written)
    }

    fn is_taken(writers: &Writers, part: Range<u64>) -> Option<bool> {
        check(Some(writers), &part, true, false).ok()
    }

    #[test]
    fn pieces_of_several_clients_are_no_clients_whole() {
        let mut writers = writers();
        writers.write(OTHER, 100..200, false);
        assert_eq!(is_taken(&writers, 0..100), Some(true));
        assert_eq!(is_taken(&writers, 100..200), Some(true));
        assert_eq!(is_taken(&writers, 50..150), Some(false));
        assert!(check(Some(&writers), &(50..150), true, true).is_err(), "one is still open");
        assert!(check(Some(&writers), &(50..150), false, false).is_err(), "something was never written");
    }

    #[test]
    fn bytes_over_those_of_another_client_mix() {
        let mut writers = writers();
        writers.write(OTHER, 0..50, false);
        assert_eq!([0..50, 50..100, 40..60].map(|part| is_taken(&writers, part)), [Some(true), Some(true), None]);
        writers.write(OTHER, 50..100, false);
        assert_eq!(is_taken(&writers, 40..60), Some(true));
    }

    #[test]
    fn the_same_bytes_are_of_all_who_wrote_them() {
        let mut writers = writers();
        writers.write(OTHER, 0..50, true);
        assert_eq!(is_taken(&writers, 0..100), Some(true));
        writers.write(OTHER, 50..150, false);
        assert_eq!((is_taken(&writers, 0..150), is_taken(&writers, 0..50)), (Some(true), Some(true)));
    }

    #[test]
    fn what_is_cut_off_is_of_no_client() {
        let mut writers = writers();
        writers.set_len(OTHER, 0);
        writers.write(OTHER, 0..50, false);
        writers.write(ONE, 50..100, false);
        assert_eq!([0..50, 50..100, 40..60].map(|part| is_taken(&writers, part)), [Some(true), Some(true), None]);
    }

    #[test]
    fn parts_without_end_take_no_memory() {
        let mut writers = writers();
        for n in 0..2 * MOST_PARTS as u64 {
            writers.write(Handle(n % 7), 2 * n..2 * n + 1, false);
        }
        assert!(writers.parts.iter().map(|(_, parts)| parts.count()).sum::<usize>() <= MOST_PARTS);
        writers.write(ONE, 0..100, false);
        assert_eq!((is_taken(&writers, 0..100), is_taken(&writers, 99..102)), (Some(true), None));
    }
}
