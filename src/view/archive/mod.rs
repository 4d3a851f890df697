//! An archive of Python-Blosc2 (`.b2z`) as the directory that its store would be, for reading.
//!
//! Files and directories in it have numbers, by which their inodes are computed: below the 34 bits that tell the files of a frame apart
//! stands the number, above them what is the same for as long as nobody has written the archive. So an inode of an archive that was
//! written since is none of this one, and no handle reads another file than it was opened for.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::{
    Attr, DirEntry, Features, FileSystem, FrameFileSystem, Good, Handle, Ino, Invalidations, Kind, Meta, OpenMode, Opened, Pages,
    ROOT, Rest, Result, ViewError, Wait,
};
use crate::format::zip::{Entry, Number};
use crate::store::archive::Archive;
use crate::store::{FsSpace, Location, OpenOptions};
use crate::view::decoded::Blocks;

pub use self::decoded::Choose;
use self::decoded::{DecodedMembers, Shown};

mod decoded;
#[cfg(test)]
mod tests;

/// Bits of an inode that are a number in the archive.
const NUMBER_BITS: u32 = 34;
/// Set in an inode through which the data of a frame is shown: never the bytes of its file, whatever is found out about it later.
const DECODED: u64 = 1 << (NUMBER_BITS - 1);
/// What tells archives apart takes so many bits above them, of which the first is always set.
const VERSION_BITS: u32 = 29;

/// An archive, shown as a directory.
pub struct ArchiveView {
    archive: Arc<Archive>,
    /// Where the data of frames is shown.
    decoded: Option<DecodedMembers>,
    /// The upper bits of all inodes but the root.
    version: u64,
}

/// Attributes of a directory that stands for an archive, or is in it, by those of the archive: whoever may read that may enter.
pub fn directory_meta(archive: Meta) -> Meta {
    let mode = archive.mode & 0o444;
    Meta { mode: mode | mode >> 2, ..archive }
}

fn is_decoded(ino: Ino) -> bool {
    ino != ROOT && ino.0 & DECODED != 0
}

impl ArchiveView {
    /// Shows an archive.
    pub fn new(archive: Archive) -> Self {
        let version = 1 << VERSION_BITS | archive.version() & ((1 << VERSION_BITS) - 1);
        ArchiveView { archive: Arc::new(archive), decoded: None, version }
    }

    /// The same, where the data of frames is shown as chosen.
    #[must_use]
    pub fn decoding(self, choose: Box<dyn Choose>, blocks: Arc<Blocks>, options: OpenOptions) -> Self {
        let decoded = Some(DecodedMembers::new(&self.archive, choose, blocks, options));
        ArchiveView { decoded, ..self }
    }

    /// The file or directory that is shown under a name.
    fn child(&self, dir: Number, name: &OsStr) -> Option<Number> {
        let child = self.archive.contents().child(dir, name.as_bytes());
        let Some(decoded) = &self.decoded else { return child };
        match child {
            Some(number) => decoded.shown(number).is_none().then_some(number),
            None => decoded.find(dir, name),
        }
    }

    /// The name under which a file or directory is shown.
    fn name(&self, number: Number) -> Cow<'_, OsStr> {
        match &self.decoded {
            Some(decoded) => Cow::Owned(decoded.name(number)),
            None => Cow::Borrowed(OsStr::from_bytes(self.archive.contents().name(number))),
        }
    }

    fn ino(&self, number: Number) -> Ino {
        let shown = if self.shown(number).is_some() { DECODED } else { 0 };
        if number == Number::ROOT { ROOT } else { Ino(self.version << NUMBER_BITS | shown | u64::from(number.0)) }
    }

    fn shown(&self, number: Number) -> Option<Shown> {
        self.decoded.as_ref()?.shown(number)
    }

    fn number(&self, ino: Ino) -> Result<Number> {
        if ino == ROOT {
            return Ok(Number::ROOT);
        }
        let number = u32::try_from(ino.0 & (DECODED - 1)).ok().map(Number);
        number.filter(|_| ino.0 >> NUMBER_BITS == self.version).ok_or(ViewError::Gone)
    }

    fn entry(&self, number: Number) -> Result<Entry> {
        self.archive.contents().entry(number).ok_or(ViewError::Gone)
    }

    fn directory(&self, ino: Ino) -> Result<Number> {
        let number = self.number(ino)?;
        match self.entry(number)? {
            Entry::Directory => Ok(number),
            Entry::File(_) => Err(ViewError::NotDirectory),
        }
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        let number = self.number(ino)?;
        let stat = self.archive.stat()?;
        let (mode, links) = (stat.mode & 0o444, 1);
        let meta = Meta { mode, uid: stat.uid, gid: stat.gid, atime: stat.atime, mtime: stat.mtime, ctime: stat.ctime };
        let attr = match self.entry(number)? {
            Entry::Directory => directory_meta(meta).attr(ino, Kind::Directory, 4096),
            Entry::File(_) if is_decoded(ino) => meta.attr(ino, Kind::File, self.shown(number).ok_or(ViewError::Gone)?.len),
            Entry::File(member) => meta.attr(ino, Kind::File, member.len),
        };
        // One link of a directory says that nobody has counted.
        Ok(Attr { nlink: links, good: Good::Timeouts, ..attr })
    }
}

impl FrameFileSystem for ArchiveView {
    fn rest(&self) -> Rest {
        Rest::Stable
    }

    fn drop_all(&self) {}

    fn relocate(&self, _to: &Location, work: &mut dyn FnMut() -> bool) -> Result<()> {
        // It is read by its descriptor.
        work();
        Ok(())
    }

    fn leave_name(&self, _left: bool) {}

    fn set_attributes(&self, work: &mut dyn FnMut()) {
        work();
    }

    fn is_untouched(&self) -> bool {
        true
    }

    fn is_made(&self) -> bool {
        true
    }

    fn is_empty(&self) -> bool {
        self.archive.contents().list(Number::ROOT).is_empty()
    }

    fn is_outdated(&self) -> bool {
        self.archive.is_outdated()
    }

    fn is_orphan(&self) -> bool {
        self.archive.stat().is_ok_and(|stat| stat.links == 0)
    }

    fn weight(&self) -> u64 {
        self.archive.weight() + self.decoded.as_ref().map_or(0, DecodedMembers::weight)
    }
}

/// What would change something is refused.
impl FileSystem for ArchiveView {
    fn features(&self) -> Features {
        Features {
            read_only: true,
            handles: false,
            locks: false,
            holes: false,
            lists_attributes: true,
            read_ahead: None,
            far: None,
            passes_on: None,
            hears: false,
            is_untold: false,
            lists: false,
        }
    }

    fn lookup(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        let dir = self.directory(parent)?;
        let number = self.child(dir, name).ok_or(ViewError::NotFound)?;
        self.attr(self.ino(number))
    }

    fn forget(&self, _ino: Ino, _count: u64, _altogether: bool) {}

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.attr(ino)
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Opened> {
        let number = self.number(ino)?;
        if self.entry(number)? == Entry::Directory {
            return Err(ViewError::IsDirectory);
        }
        if mode.write || mode.truncate {
            return Err(ViewError::ReadOnly);
        }
        // What is read is known by its inode.
        Ok(Opened { handle: Handle(ino.0), pages: Pages::Kept })
    }

    fn read(&self, ino: Ino, _handle: Option<Handle>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let number = self.number(ino)?;
        match &self.decoded {
            Some(decoded) if is_decoded(ino) => decoded.read_at(number, buf, offset),
            _ => Ok(self.archive.read_at(number, buf, offset)?),
        }
    }

    fn release(&self, _handle: Handle, _invals: &mut Invalidations) {}

    fn xattrs(&self, _ino: Ino) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn xattr(&self, _ino: Ino, _name: &OsStr) -> Result<Vec<u8>> {
        Err(ViewError::NoAttribute)
    }

    fn readdir(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let inside = self.archive.contents().list(self.directory(ino)?);
        let passed = u32::try_from(cookie).unwrap_or(u32::MAX);
        for number in (inside.start.saturating_add(passed)..inside.end).map(Number) {
            let kind = match self.entry(number)? {
                Entry::Directory => Kind::Directory,
                Entry::File(_) => Kind::File,
            };
            let name = self.name(number);
            let next = u64::from(number.0 - inside.start) + 1;
            if !emit(DirEntry { ino: self.ino(number), kind, name: &name, is_known: true, next }) {
                break;
            }
        }
        Ok(())
    }

    fn may_wait(&self, _ino: Ino) -> Wait {
        Wait::Never
    }

    fn statfs(&self) -> Result<FsSpace> {
        Err(ViewError::Unsupported)
    }

    fn shutdown(&self) -> Result<()> {
        Ok(())
    }

    fn report(&self) -> String {
        format!("{} entries", self.archive.contents().count())
    }
}
