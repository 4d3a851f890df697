//! Listings: with attributes, or of names alone.
//!
//! An attribute costs the kernel 3 us and a kilobyte, in vain for who wants names; without it, who looks at the file sends a request, which
//! takes 6 us at best and mostly 20 or more. So a large directory is listed by its names until somebody looks up some of them, and with attributes from
//! there on. (Left to choose, by `FUSE_READDIRPLUS_AUTO`, the kernel asks for attributes in one reply after somebody has looked, and
//! for none in those that follow: of a million files find, which reads 100,000 names before it looks at any, looks up nearly all.)

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use fuser::{Errno, FileAttr, FileType, INodeNo, ReplyDirectoryPlus};

use super::answers::errno;
use super::shared::{FIRST_COOKIE, FOREVER, GENERATION, Shared, file_type};
use crate::view::{Ino, Result, ViewError};

/// Directories of no more files are always listed with attributes: then the kernel knows each file before it is asked for, so that
/// it can be pushed. And where find reads 100,000 names before it looks at any, what is spent on those alone is most of all.
const LISTED_WHOLE: usize = if cfg!(test) { 4000 } else { 1 << 18 };
/// So many names of a larger one are looked up before the others come with attributes.
const LOOKED_AT: u32 = 32;
/// Entries that readdirplus takes from a view at once.
const BATCH: usize = 128;
/// Of no more entries attributes are made ready for the next request.
const READY: usize = 1024;

/// `struct fuse_out_header`: the length of all, an error, the request's number.
const OUT_HEADER: usize = 16;
/// `struct fuse_entry_out`. All zeros stand for an entry that comes without an inode, of which the kernel keeps no more than the name.
const ENTRY_OUT: usize = 128;
/// Where an entry ends is a multiple of this, as is the header's length.
const ALIGNMENT: usize = 8;

/// What is known of the listing under way. Of several at once it is a guess, which costs time and nothing else.
#[derive(Default)]
pub(super) struct Lists {
    /// It is one of many files.
    large: AtomicBool,
    /// Names looked up since it began.
    looked_up: AtomicU32,
}

impl Lists {
    /// Somebody looks at a name.
    pub(super) fn looked_up(&self) {
        self.looked_up.fetch_add(1, Relaxed);
    }
}

/// Where the next request for a listing will go on.
pub(super) struct GoesOn {
    from: u64,
    /// Entries that the last reply held.
    held: usize,
}

impl Shared {
    /// Takes note of a request for a listing from `offset` on; whether it is to be answered with names alone.
    pub(super) fn wants_names(&self, ino: Ino, offset: u64) -> bool {
        if offset == 0 {
            self.lists.large.store(self.has_more_than(ino, LISTED_WHOLE), Relaxed);
            self.lists.looked_up.store(0, Relaxed);
        }
        self.lists.large.load(Relaxed) && self.lists.looked_up.load(Relaxed) < LOOKED_AT
    }

    fn has_more_than(&self, ino: Ino, files: usize) -> bool {
        let mut count = 0;
        let listed = self.view.readdir(ino, 0, &mut |_| {
            count += 1;
            count <= files
        });
        listed.is_ok() && count > files
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

    /// Answers a request for names and attributes with names alone.
    ///
    /// fuser has no entry without an inode, so this writes to the device by itself. `reply` is filled with entries as long as those that
    /// are sent, since only it knows how many there may be; what it then answers, the kernel has no request for any more.
    pub(super) fn list_names(&self, mut device: &File, request: u64, ino: Ino, offset: u64, mut reply: ReplyDirectoryPlus) {
        let mut bytes = vec![0; OUT_HEADER];
        let outcome = self.view.getattr(ino).and_then(|dir| {
            let dir = self.attr(&dir);
            self.names(ino, offset, |ino, cookie, kind, name| {
                let full = reply.add(ino, cookie, name, &Duration::ZERO, &dir, GENERATION);
                if !full {
                    put_name(&mut bytes, ino, cookie, kind, name.as_bytes());
                }
                full
            })
        });
        if let Err(refusal) = outcome {
            return reply.error(errno("readdir", ino, &refusal));
        }
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[8..OUT_HEADER].copy_from_slice(&request.to_ne_bytes());
        reply.error(if device.write(&bytes).is_ok() { Errno::ENOENT } else { Errno::EIO });
    }

    /// Fills a reply; answers where the listing goes on if the reply is full.
    ///
    /// A view may not be called back from within its readdir, so entries are taken in batches.
    pub(super) fn readdirplus(&self, ino: Ino, offset: u64, reply: &mut ReplyDirectoryPlus) -> Result<Option<GoesOn>> {
        let dir = self.attr(&self.view.getattr(ino)?);
        for (cookie, name) in dots(offset) {
            // The kernel looks neither of these up.
            if reply.add(dir.ino, cookie, name, &FOREVER, &dir, GENERATION) {
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

/// What comes before a view's own entries, as far as it comes behind `offset`, and the cookies that stand behind it.
fn dots(offset: u64) -> impl Iterator<Item = (u64, &'static str)> {
    [(1, "."), (FIRST_COOKIE, "..")].into_iter().filter(move |(cookie, _)| offset < *cookie)
}

/// Adds a `struct fuse_direntplus` without an inode.
fn put_name(bytes: &mut Vec<u8>, ino: INodeNo, cookie: u64, kind: FileType, name: &[u8]) {
    let kind = if kind == FileType::Directory { libc::DT_DIR } else { libc::DT_REG };
    bytes.resize(bytes.len() + ENTRY_OUT, 0);
    bytes.extend(ino.0.to_ne_bytes());
    bytes.extend(cookie.to_ne_bytes());
    bytes.extend((name.len() as u32).to_ne_bytes());
    bytes.extend(u32::from(kind).to_ne_bytes());
    bytes.extend(name);
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
}
