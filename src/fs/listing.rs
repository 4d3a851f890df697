//! Listings: with attributes, or of names alone.
//!
//! An attribute costs the kernel 3 us and a kilobyte, in vain for who wants names; without it, who looks at the file sends a request, which
//! takes 6 us at best and mostly 20 or more. Directories of up to [`LISTED_WHOLE`] files are listed with attributes, always: then the
//! kernel knows each file before it is asked for, so that it can be pushed. In larger ones the kernel chooses, reply by reply
//! (`FUSE_READDIRPLUS_AUTO`): names alone, unless names of the last reply were looked up.

use std::ffi::OsStr;
use std::time::Duration;

use fuser::{FileAttr, FileType, INodeNo, ReplyDirectoryPlus};

use super::answers::errno;
use super::shared::{FIRST_COOKIE, FOREVER, GENERATION, Shared, file_type};
use crate::view::{Ino, ROOT, Result, ViewError};

/// See above.
const LISTED_WHOLE: usize = if cfg!(test) { 4000 } else { 1 << 18 };
/// Entries that readdirplus takes from a view at once.
const BATCH: usize = 128;

impl Shared {
    /// Whether the kernel is to choose between names and attributes.
    pub(super) fn is_large(&self) -> bool {
        let mut count = 0;
        let listed = self.view.readdir(ROOT, 0, &mut |_| {
            count += 1;
            count <= LISTED_WHOLE
        });
        listed.is_ok() && count > LISTED_WHOLE
    }

    /// Calls `add` for each entry from `offset` on, with its inode, the cookie behind it, its kind and its name, until that says
    /// that there is no more room.
    pub(super) fn names(&self, ino: Ino, offset: u64, mut add: impl FnMut(INodeNo, u64, FileType, &OsStr) -> bool) -> Result<()> {
        for (cookie, name) in dots(offset) {
            if add(INodeNo(ino.0), cookie, FileType::Directory, name.as_ref()) {
                return Ok(());
            }
        }
        self.view.readdir(ino, offset.saturating_sub(FIRST_COOKIE), &mut |entry| {
            !add(INodeNo(entry.ino.0), entry.next + FIRST_COOKIE, file_type(entry.kind), entry.name)
        })
    }

    /// Fills a reply. A view may not be called back from within its readdir, so entries are taken in batches.
    pub(super) fn readdirplus(&self, ino: Ino, offset: u64, reply: &mut ReplyDirectoryPlus) -> Result<()> {
        let dir = self.attr(&self.view.getattr(ino)?);
        for (cookie, name) in dots(offset) {
            // The kernel looks neither of these up.
            if reply.add(dir.ino, cookie, name, &FOREVER, &dir, GENERATION) {
                return Ok(());
            }
        }
        let mut from = offset.saturating_sub(FIRST_COOKIE);
        loop {
            let mut batch = Vec::with_capacity(BATCH);
            self.view.readdir(ino, from, &mut |entry| {
                batch.push((entry.ino, entry.kind, entry.next, entry.name.to_owned()));
                batch.len() < BATCH
            })?;
            self.view.expect(&batch.iter().map(|(ino, ..)| *ino).collect::<Vec<_>>());
            for (ino, kind, next, name) in &batch {
                from = *next;
                let (attr, ttl) = match self.view.getattr(*ino) {
                    Ok(attr) => (self.attr(&attr), FOREVER),
                    // Removed since it was listed.
                    Err(ViewError::NotFound) => continue,
                    // Listed, but nothing of it is to be believed: whoever looks closer meets the error.
                    Err(refusal) => {
                        errno("listing", *ino, &refusal);
                        (FileAttr { ino: INodeNo(ino.0), kind: file_type(*kind), size: 0, blocks: 0, ..dir }, Duration::ZERO)
                    }
                };
                self.inodes.looked_up(*ino);
                if reply.add(attr.ino, next + FIRST_COOKIE, name, &ttl, &attr, GENERATION) {
                    self.inodes.forgotten(*ino, 1);
                    return Ok(());
                }
            }
            if batch.len() < BATCH {
                return Ok(());
            }
        }
    }
}

/// What comes before a view's own entries, as far as it comes behind `offset`, and the cookies that stand behind it.
fn dots(offset: u64) -> impl Iterator<Item = (u64, &'static str)> {
    [(1, "."), (FIRST_COOKIE, "..")].into_iter().filter(move |(cookie, _)| offset < *cookie)
}
