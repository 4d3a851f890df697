//! An archive of Python-Blosc2 (`.b2z`) that is open for reading: each file in it is a range of the archive.
//!
//! All that the archive says of itself is checked when it is opened, and read with the descriptor that is held from then on: an archive
//! that takes its name meanwhile is another one. What others write into this one is noticed by its time and its length.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::backend::{Backend, BackendFile, FileStat, read_exact_at};
use super::error::Complain;
use super::frame::zeros;
use super::open_files::Stamp;
use super::{Location, Result};
use crate::format::zip::{Contents, End, Entry, Member, Number};

pub mod members;

/// Bytes of the end of a file that a look at it reads: the whole directory of most archives.
const LOOKED_AT: u64 = 16 << 10;

/// An open archive.
pub struct Archive {
    file: Box<dyn BackendFile>,
    path: PathBuf,
    contents: Contents,
    /// Where the data of each file begins, by its number.
    data: Vec<u64>,
    stamp: Stamp,
    version: u64,
    /// Its directory, for the clock of its file system.
    dir: Arc<dyn Backend>,
    /// It was opened before that clock went on from when it was written, so it may have been written again at the same time.
    is_young: AtomicBool,
    /// It was.
    is_written: AtomicBool,
}

/// A file whose end was read.
struct Ended<'a> {
    file: &'a dyn BackendFile,
    end: End,
    /// The last bytes, and where they begin.
    tail: (Vec<u8>, u64),
}

impl<'a> Ended<'a> {
    fn read(file: &'a dyn BackendFile, len: u64, path: &PathBuf) -> Result<Self> {
        let at = len.saturating_sub(LOOKED_AT);
        let tail = read(file, path, at, len - at)?;
        let end = End::parse(&tail, len).map_err(|error| path.format(error))?;
        Ok(Ended { file, end, tail: (tail, at) })
    }

    /// The directory, if it is among the last bytes.
    fn near_directory(&self) -> Option<&[u8]> {
        let place = &self.end.directory;
        let (from, to) = (place.start.checked_sub(self.tail.1)?, place.end.checked_sub(self.tail.1)?);
        self.tail.0.get(usize::try_from(from).ok()?..usize::try_from(to).ok()?)
    }

    fn contents(&self, directory: &[u8], path: &PathBuf) -> Result<Contents> {
        Contents::parse(directory, &self.end).map_err(|error| path.format(error))
    }
}

fn read(file: &dyn BackendFile, path: &PathBuf, at: u64, len: u64) -> Result<Vec<u8>> {
    let mut bytes = zeros(len).map_err(path.io("read the directory"))?;
    read_exact_at(file, &mut bytes, at).map_err(path.io("read the directory"))?;
    Ok(bytes)
}

impl Archive {
    /// Whether the file here is an archive, by its last bytes: one open and one small read. Of a large one, [`Archive::open`] may find
    /// out otherwise.
    ///
    /// # Errors
    /// That it is none, and why; what the system refuses.
    pub fn look(location: &Location) -> Result<()> {
        let (file, path) = (location.open()?, location.path().to_owned());
        let len = file.stat().map_err(path.io("stat"))?.len;
        let ended = Ended::read(&*file, len, &path)?;
        match ended.near_directory() {
            Some(directory) => ended.contents(directory, &path).map(drop),
            None => Ok(()),
        }
    }

    /// Opens the archive here.
    ///
    /// # Errors
    /// That it is none, and why; what the system refuses; that others are writing it.
    pub fn open(location: &Location) -> Result<Self> {
        let (file, path) = (location.open()?, location.path().to_owned());
        let stamp = Stamp::from(&file.stat().map_err(path.io("stat"))?);
        let dir = Arc::clone(location.backend());
        let is_young = AtomicBool::new(!stamp.is_past(&*dir));
        let opened = Self::read_all(&*file, stamp, &path);
        if Stamp::from(&file.stat().map_err(path.io("stat"))?) != stamp {
            return Err(path.stale("it was written while it was opened"));
        }
        let (contents, data, version) = opened?;
        Ok(Archive { file, path, contents, data, stamp, version, dir, is_young, is_written: AtomicBool::new(false) })
    }

    fn read_all(file: &dyn BackendFile, stamp: Stamp, path: &PathBuf) -> Result<(Contents, Vec<u64>, u64)> {
        let ended = Ended::read(file, stamp.len, path)?;
        let far;
        let directory = match ended.near_directory() {
            Some(directory) => directory,
            None => {
                let place = &ended.end.directory;
                far = read(file, path, place.start, place.end - place.start)?;
                &far
            }
        };
        let contents = ended.contents(directory, path)?;
        let mut hasher = DefaultHasher::new();
        (stamp, directory).hash(&mut hasher);
        let data = find_data(ended.file, &contents, path)?;
        Ok((contents, data, hasher.finish()))
    }

    /// As messages call it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is in it.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// A number that is the same for the same archive, and another for one that was written since.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Bytes of memory that this takes.
    pub fn weight(&self) -> u64 {
        self.contents.weight() + (self.data.capacity() * size_of::<u64>()) as u64
    }

    /// Its descriptor.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.fd()
    }

    /// Attributes of the archive itself.
    ///
    /// # Errors
    /// What the system refuses; that others have written it since it was opened.
    pub fn stat(&self) -> Result<FileStat> {
        let stat = self.file.stat().map_err(self.path.io("stat"))?;
        let is_same = Stamp::from(&stat) == self.stamp && !self.is_written.load(Relaxed);
        if is_same { Ok(stat) } else { Err(self.path.stale("another program has written to it since it was opened")) }
    }

    /// Whether others have written it since it was opened.
    pub fn is_outdated(&self) -> bool {
        // It is read once more when the clock has gone on: from then on its time tells.
        if self.is_young.load(Relaxed) && self.stamp.is_past(&*self.dir) && self.is_young.swap(false, Relaxed) {
            let now = Self::read_all(&*self.file, self.stamp, &self.path);
            if now.is_err() || now.is_ok_and(|(_, data, version)| (&data, version) != (&self.data, self.version)) {
                self.is_written.store(true, Relaxed);
            }
        }
        self.stat().is_err()
    }

    /// Reads a file in it; a short count means that it ends there.
    ///
    /// # Errors
    /// What the system refuses; that others have written the archive since it was opened.
    pub fn read_at(&self, number: Number, buf: &mut [u8], offset: u64) -> Result<usize> {
        let place = self.data.get(number.0 as usize).copied();
        let (Some(Entry::File(Member { len, .. })), Some(place)) = (self.contents.entry(number), place) else { return Ok(0) };
        let wanted = usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        let buf = buf.get_mut(..wanted).unwrap_or_default();
        if !buf.is_empty() {
            let read = read_exact_at(&*self.file, buf, place.saturating_add(offset));
            // Afterwards: what was read before is not what was written later. And first of all: a file that was cut is too short.
            self.stat()?;
            read.map_err(self.path.io("read"))?;
        }
        Ok(wanted)
    }
}

/// Reads all local headers.
fn find_data(file: &dyn BackendFile, contents: &Contents, path: &PathBuf) -> Result<Vec<u64>> {
    let mut data = vec![0; contents.count()];
    let mut header = Vec::new();
    for (number, member) in contents.files() {
        let name = contents.path(number);
        header.resize(Member::header_len(&name), 0);
        read_exact_at(file, &mut header, member.header_at).map_err(path.io("read a local header"))?;
        if let Some(place) = data.get_mut(number.0 as usize) {
            *place = member.data(&name, &header).map_err(|error| path.format(error))?;
        }
    }
    Ok(data)
}
