//! Listings with attributes.

use std::time::Duration;

use fuser::{FileAttr, INodeNo, ReplyDirectoryPlus};

use super::shared::{FIRST_COOKIE, FOREVER, GENERATION, Shared, errno, file_type};
use crate::view::{Ino, ROOT, Result, ViewError};

/// Entries that readdirplus takes from a view at once.
const BATCH: usize = 128;
/// Of no more entries attributes are made ready for the next request.
const READY: usize = 1024;

/// Where the next request for a listing will go on.
pub(super) struct GoesOn {
    from: u64,
    /// Entries that the last reply held.
    held: usize,
}

impl Shared {
    /// Whether the mount has so many files.
    pub(super) fn has_more_than(&self, files: usize) -> bool {
        let mut count = 0;
        let listed = self.view.readdir(ROOT, 0, &mut |_| {
            count += 1;
            count <= files
        });
        listed.is_ok() && count > files
    }

    /// Fills a reply; answers where the listing goes on if the reply is full.
    ///
    /// A view may not be called back from within its readdir, so entries are taken in batches.
    pub(super) fn readdirplus(&self, ino: Ino, offset: u64, reply: &mut ReplyDirectoryPlus) -> Result<Option<GoesOn>> {
        let dir = self.attr(&self.view.getattr(ino)?);
        for (cookie, name) in [(1, "."), (2, "..")] {
            // The kernel looks neither of these up.
            if offset < cookie && reply.add(dir.ino, cookie, name, &FOREVER, &dir, GENERATION) {
                return Ok(None);
            }
        }
        let mut held = 0;
        let mut from = offset.saturating_sub(FIRST_COOKIE);
        loop {
            let mut batch = Vec::with_capacity(BATCH);
            self.view.readdir(ino, from, &mut |entry| {
                batch.push((entry.ino, entry.kind, entry.next, entry.name.to_owned()));
                batch.len() < BATCH
            })?;
            self.view.expect(&batch.iter().map(|(ino, ..)| *ino).collect::<Vec<_>>());
            for (ino, kind, next, name) in &batch {
                let (attr, ttl) = match self.view.getattr(*ino) {
                    Ok(attr) => (self.attr(&attr), FOREVER),
                    // Removed since it was listed.
                    Err(ViewError::NotFound) => {
                        from = *next;
                        continue;
                    }
                    // Listed, but nothing of it is to be believed: whoever looks closer meets the error.
                    Err(refusal) => {
                        errno("listing", *ino, &refusal);
                        (FileAttr { ino: INodeNo(ino.0), kind: file_type(*kind), size: 0, blocks: 0, ..dir }, Duration::ZERO)
                    }
                };
                self.inodes.looked_up(*ino);
                if reply.add(attr.ino, next + FIRST_COOKIE, name, &ttl, &attr, GENERATION) {
                    self.inodes.forgotten(*ino, 1);
                    return Ok(Some(GoesOn { from, held }));
                }
                from = *next;
                held += 1;
            }
            if batch.len() < BATCH {
                return Ok(None);
            }
        }
    }

    /// Makes the attributes ready that the next request will want, while the kernel and the client are busy with the last reply.
    pub(super) fn list_on(&self, ino: Ino, goes_on: &GoesOn) {
        let count = goes_on.held.min(READY);
        let mut inos = Vec::with_capacity(count);
        let listed = self.view.readdir(ino, goes_on.from, &mut |entry| {
            inos.push(entry.ino);
            inos.len() < count
        });
        if listed.is_ok() {
            self.view.expect(&inos);
        }
    }
}
