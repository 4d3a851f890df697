//! Listings: with attributes, or of names alone.
//!
//! An attribute costs the kernel 3 us and a kilobyte, in vain for who wants names; without it, who looks at the file sends a request, which
//! takes 6 us at best and mostly 20 or more. Directories of up to [`LISTED_WHOLE`] files are listed with attributes, always: then the
//! kernel knows each file before it is asked for, so that it can be pushed. In larger ones the kernel chooses, reply by reply
//! (`FUSE_READDIRPLUS_AUTO`): names alone, unless names of the last reply were looked up.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use fuser::{FileAttr, FileType, INodeNo, ReplyDirectoryPlus};

use super::answers::errno;
use super::shared::{FIRST_COOKIE, FOREVER, GENERATION, Shared, Shown, file_type};
use crate::view::{DirEntry, Ino, Kind, ROOT, Result, Timeouts, ViewError};

/// See above.
const LISTED_WHOLE: usize = if cfg!(test) { 4000 } else { 1 << 18 };
/// Entries that readdirplus takes from a view at once.
const BATCH: usize = 128;

/// An entry of a listing.
struct Listed {
    ino: Ino,
    kind: Kind,
    name: OsString,
    is_known: bool,
    next: u64,
}

impl Shared {
    /// Whether the kernel is to choose between names and attributes.
    pub(super) fn is_large(&self) -> bool {
        if self.features.passes_on.is_some() {
            return true;
        }
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

    /// Attributes of a name that a listing has, counted as told to the kernel; none if it is gone.
    fn listed(&self, parent: Ino, entry: &Listed, dir: FileAttr) -> Result<Option<Shown>> {
        let attr = if entry.is_known { self.view.getattr(entry.ino) } else { self.view.lookup(parent, &entry.name) };
        match attr {
            Ok(attr) => Ok(Some(self.entry(&attr))),
            // Removed since it was listed.
            Err(ViewError::NotFound) => Ok(None),
            Err(refusal) if !entry.is_known => {
                errno("listing", entry.ino, &refusal);
                Ok(None)
            }
            // Listed, but nothing of it is to be believed: whoever looks closer meets the error.
            Err(refusal) => {
                errno("listing", entry.ino, &refusal);
                self.inodes.looked_up(entry.ino);
                let attr = FileAttr { ino: INodeNo(entry.ino.0), kind: file_type(entry.kind), size: 0, blocks: 0, ..dir };
                Ok(Some(Shown { attr, valid: Timeouts { entry: Duration::ZERO, attr: Duration::ZERO } }))
            }
        }
    }

    /// Fills a reply. A view may not be called back from within its readdir, so entries are taken in batches.
    pub(super) fn readdirplus(&self, ino: Ino, offset: u64, reply: &mut ReplyDirectoryPlus) -> Result<()> {
        let dir = self.attr(&self.view.getattr(ino)?).attr;
        for (cookie, name) in dots(offset) {
            // The kernel looks neither of these up.
            if reply.add(dir.ino, cookie, name, &FOREVER, &dir, GENERATION) {
                return Ok(());
            }
        }
        let mut from = offset.saturating_sub(FIRST_COOKIE);
        loop {
            let mut batch = Vec::with_capacity(BATCH);
            self.view.entries(ino, from, &mut |entry| {
                let DirEntry { ino, kind, name, is_known, next } = entry;
                batch.push(Listed { ino, kind, name: name.to_owned(), is_known, next });
                batch.len() < BATCH
            })?;
            self.view.expect(&batch.iter().filter(|entry| entry.is_known).map(|entry| entry.ino).collect::<Vec<_>>());
            for entry in &batch {
                from = entry.next;
                let Some(Shown { attr, valid }) = self.listed(ino, entry, dir)? else { continue };
                // One time for both is all that fuser takes here.
                let valid = valid.entry.min(valid.attr);
                if reply.add(attr.ino, entry.next + FIRST_COOKIE, &entry.name, &valid, &attr, GENERATION) {
                    let told = Ino(attr.ino.0);
                    let altogether = self.inodes.forgotten(told, 1);
                    self.view.forget(told, 1, altogether);
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
