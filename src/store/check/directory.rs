//! An sframe's directory: the index file, the chunk files it names, and those it does not.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::parts::Parts;
use super::{Checked, Chunks, Depth, Finding, Kind, walk};
use crate::format::chunk::ChunkHeader;
use crate::format::{ChunkId, INDEX_NAME};
use crate::store::backend::{Backend, BackendFile, FileBackend, read_exact_at};
use crate::store::{Result, StoreError, sidecar};

pub(super) fn check(
    path: &Path,
    dir: &FileBackend,
    depth: Depth,
    found: &mut dyn FnMut(Finding),
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Checked> {
    let index_path = path.join(INDEX_NAME);
    let failed = |action| {
        let path = index_path.clone();
        move |source| StoreError::Io { path, action, source }
    };
    let file = File::open(&index_path).map_err(failed("open"))?;
    let len = file.metadata().map_err(failed("stat"))?.len();
    let parts = Parts::<ChunkId>::read(&index_path, &file, len, found)?;
    parts.check_metadata(depth.deep, found);
    let Some(entries) = &parts.entries else { return Ok(parts.checked(0, 0, depth.deep)) };
    let sum = walk(&parts.header, entries, &InDirectory(dir), depth, found, progress, &mut |_, _, _| {});
    let largest = entries.iter().filter_map(|entry| entry.stored()).max();
    let bound = parts.header.cbytes().saturating_sub(ChunkHeader::LEN as u64);
    if let Some(id) = largest.filter(|id| u64::from(id.0) > bound) {
        // It holds ids against the bound that is meant for a cframe's offsets.
        let what = format!(
            "header: cbytes at byte 39: found {}, expected at least {} for C-Blosc2 to open a frame with chunk {id}",
            parts.header.cbytes(),
            u64::from(id.0) + ChunkHeader::LEN as u64
        );
        found(Finding::damage(Kind::Header, what));
    }
    let named: HashSet<ChunkId> = entries.iter().filter_map(|entry| entry.stored()).collect();
    others(path, &named, found)?;
    Ok(parts.checked(sum.stored, sum.bytes, depth.deep))
}

/// Tells of files that the index does not name.
fn others(path: &Path, named: &HashSet<ChunkId>, found: &mut dyn FnMut(Finding)) -> Result<()> {
    let failed = |source| StoreError::Io { path: path.to_owned(), action: "list", source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        match ChunkId::from_file_name(name.as_bytes()) {
            Some(id) if named.contains(&id) => {}
            _ if name == INDEX_NAME || name == sidecar::SUFFIX => {}
            id => names.push((name, id.is_some())),
        }
    }
    names.sort_unstable();
    for (name, chunk) in names {
        let name = name.to_string_lossy();
        found(match chunk {
            true => Finding::note(Kind::Orphan, format!("{name}: no entry of the index names it")),
            false => Finding::note(Kind::Surplus, format!("{name}: is no part of a frame")),
        });
    }
    Ok(())
}

/// The chunk files of an sframe.
struct InDirectory<'a>(&'a FileBackend);

impl InDirectory<'_> {
    fn open(&self, id: ChunkId) -> io::Result<Box<dyn BackendFile>> {
        self.0.open(OsStr::new(&id.file_name()), false)
    }
}

impl Chunks<ChunkId> for InDirectory<'_> {
    fn head(&self, id: ChunkId) -> std::result::Result<(Vec<u8>, u64), Box<Finding>> {
        let bad = |kind, what: &dyn std::fmt::Display| Box::new(Finding::damage(kind, format!("{}: {what}", self.name(id))));
        let file = self.open(id).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => bad(Kind::Missing, &"is not there"),
            _ => bad(Kind::Chunk, &format!("cannot be opened: {error}")),
        })?;
        let stat = file.stat().map_err(|error| bad(Kind::Chunk, &format!("cannot be read: {error}")))?;
        if !stat.is_file() {
            return Err(bad(Kind::Chunk, &"is no regular file"));
        }
        let mut head = vec![0; stat.len.min(ChunkHeader::LEN as u64) as usize];
        match read_exact_at(&*file, &mut head, 0) {
            Ok(()) => Ok((head, stat.len)),
            Err(error) => Err(bad(Kind::Chunk, &format!("cannot be read: {error}"))),
        }
    }

    fn whole(&self, id: ChunkId, cbytes: u32, buf: &mut Vec<u8>) -> io::Result<()> {
        buf.resize(cbytes as usize, 0);
        read_exact_at(&*self.open(id)?, buf, 0)
    }

    fn name(&self, id: ChunkId) -> String {
        id.file_name()
    }

    fn exact(&self) -> bool {
        true
    }
}
