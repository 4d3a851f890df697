//! Which chunk files are this daemon's to remove: their ids, in a file that is there while a frame is written to.
//!
//! A daemon that is killed leaves files that no index names: staged ones, and dropped ones that a crash might have wanted back.
//! Who comes next cannot tell them from what others put there, unless it is written down. An id is, as soon as a file of that
//! number has been made, and before an index is published that does not name it any more. Nothing waits for the disk here: what a power cut
//! takes of the record is a file that stays, as those of others do.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;

use log::debug;

use super::super::backend::{Backend, BackendFile, read_exact_at};
use super::SframeStore;
use super::files::{key_of, name_of};
use crate::format::ChunkId;

/// Who has the directory's lock is the only one to use it.
const NAME: &str = ".b2fuse-ids.tmp";
/// An id, and the same with every bit the other way round: nothing else is one.
const ENTRY: usize = 8;
/// How many bytes are read at once.
const PIECE: usize = 64 << 10;
/// No more than these are read of a record.
const MOST: u64 = 128 << 20;

/// The record, and what is in it.
#[derive(Default)]
pub(super) struct Record {
    file: Option<Box<dyn BackendFile>>,
    len: u64,
    /// Bits by id, 64 of them by id / 64.
    noted: HashMap<u32, u64>,
    /// Something of somebody else's could not be removed.
    stays: bool,
}

impl Record {
    /// Takes an id in, if it is new.
    fn note(&mut self, id: u32) -> bool {
        let bits = self.noted.entry(id / 64).or_default();
        let before = *bits;
        *bits |= 1 << (id % 64);
        *bits != before
    }

    fn forget(&mut self, id: u32) {
        if let Some(bits) = self.noted.get_mut(&(id / 64)) {
            *bits &= !(1 << (id % 64));
        }
    }

    /// Writes ids down, those that are not there.
    fn append(&mut self, ids: impl Iterator<Item = u32>) -> io::Result<()> {
        let new: Vec<u32> = ids.filter(|id| self.note(*id)).collect();
        let bytes: Vec<u8> = new.iter().flat_map(|id| [id.to_le_bytes(), (!id).to_le_bytes()]).flatten().collect();
        let written = match &self.file {
            Some(file) if !bytes.is_empty() => file.write_at(&bytes, self.len),
            _ => Ok(()),
        };
        match written {
            Ok(()) => self.len += bytes.len() as u64,
            Err(_) => new.into_iter().for_each(|id| self.forget(id)),
        }
        written
    }
}

/// The ids in a record.
fn read(file: &dyn BackendFile) -> io::Result<Vec<u32>> {
    let stat = file.stat()?;
    if !stat.is_file() {
        return Err(io::Error::other("is no regular file"));
    }
    let len = stat.len.min(MOST);
    let (mut ids, mut piece) = (Vec::new(), vec![0; PIECE]);
    let mut at = 0;
    while at < len {
        let piece = &mut piece[..PIECE.min((len - at) as usize)];
        read_exact_at(file, piece, at)?;
        at += piece.len() as u64;
        ids.extend(piece.chunks_exact(ENTRY).filter_map(|entry| {
            let (id, check) = entry.split_at(ENTRY / 2);
            let id = u32::from_le_bytes(id.try_into().ok()?);
            (check == (!id).to_le_bytes()).then_some(id)
        }));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

impl SframeStore {
    /// Writes down which chunk files are ours to remove, before they are made or dropped. The first time it removes what somebody
    /// left who was killed; P is on disk by then.
    pub(super) fn record(&self, ids: impl Iterator<Item = ChunkId>) -> io::Result<()> {
        let mut record = self.record.lock();
        if record.file.is_none() {
            self.begin(&mut record)?;
        }
        record.append(ids.map(|id| id.0))
    }

    fn begin(&self, record: &mut Record) -> io::Result<()> {
        let dir = self.dir();
        let left = match dir.open(OsStr::new(NAME), false).and_then(|file| read(&*file)) {
            Ok(ids) => self.remove_left(&*dir, ids),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    debug!("{}: {error}", self.source.at(NAME).display());
                }
                Vec::new()
            }
        };
        let mut created = dir.create(OsStr::new(NAME), 0o600);
        if matches!(&created, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
            dir.remove(OsStr::new(NAME))?; // never written to: who knows where else it has a name
            created = dir.create(OsStr::new(NAME), 0o600);
        }
        *record = Record { file: Some(created?), stays: !left.is_empty(), ..Record::default() };
        record.append(left.into_iter())
    }

    /// Removes the files of ids that are neither in the frame nor staged. Answers those that could not be.
    fn remove_left(&self, dir: &dyn Backend, mut ids: Vec<u32>) -> Vec<u32> {
        let known = |id: &u32| self.shared.files.lock().knows(*id);
        if self.others_wrote() {
            return ids;
        }
        ids.retain(|id| {
            let name = name_of(key_of(ChunkId(*id)));
            !known(id) && dir.stat(&name).is_ok_and(|stat| stat.is_file()) && dir.remove(&name).is_err()
        });
        ids
    }

    /// At the end, when nothing is left that it is needed for.
    pub(super) fn remove_record(&self) {
        let mut record = self.record.lock();
        if record.file.take().is_some() && !record.stays && !self.shared.files.lock().has_rest() {
            let _ = self.dir().remove(OsStr::new(NAME));
        }
    }
}
