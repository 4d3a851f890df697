//! Storing into the kernel's page cache what a sequential reader reads next, from the pages thread of [`notify`](super::notify).
//!
//! What that is, [`prefetch`](crate::view::prefetch) says. Not pushed: files the kernel does not know, files open for writing.

use fuser::INodeNo;
use log::debug;

use super::apart::Apart;
use crate::store::in_words;
use crate::view::prefetch::{HEAD_WINDOW, LARGEST};
use crate::view::{FileSystem, Push};

/// More than this is not kept: what was asked for first is dropped first.
pub(super) const LONGEST_QUEUE: usize = 8 * HEAD_WINDOW;

/// Stores the file's bytes, as they are now, into the page cache.
#[expect(clippy::indexing_slicing, reason = "the buffer has that length, and a view reads no more into it")]
pub(super) fn store(apart: &mut Apart, view: &dyn FileSystem, push: Push, buf: &mut Vec<u8>) {
    let len = push.len.min(LARGEST) as usize;
    if buf.len() < len {
        buf.resize(len, 0);
    }
    let outcome = match view.read(push.ino, None, 0, &mut buf[..len]) {
        Ok(0) => return,
        Ok(n) => {
            let bytes = std::mem::take(buf);
            let done = apart.run(move |teller| (teller.notifier.store(INodeNo(push.ino.0), 0, &bytes[..n]), bytes));
            let stored = done.and_then(|(stored, bytes)| {
                *buf = bytes;
                stored
            });
            stored.map_err(|error| in_words(&error))
        }
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = outcome {
        debug!("inode {} not pushed: {error}", push.ino.0);
    }
}
