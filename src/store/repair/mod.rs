//! Mending frames that the library, or something worse, was stopped in the middle of changing.
//!
//! [`plan`] only looks. What it finds to be done it does with [`Plan::carry_out`], in an order that leaves the frame no worse if
//! it is stopped in its turn:
//!
//! | layout | first | then | last |
//! | --- | --- | --- | --- |
//! | cframe | the bytes that change are copied to a directory beside the frame | a new index and trailer behind everything else; fsync | the header, one write within 512 bytes; fsync |
//! | sframe | the index file is copied likewise | a new index file under a temporary name; fsync | rename over `chunks.b2frame`; fsync of the directory |
//!
//! No chunk is ever written, moved or invented. A chunk that does not read any more becomes an uninitialised one, and is named; its
//! bytes, if there are any, stay where they are.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::backend::{Backend, BackendFile, FileBackend};
use super::{Result, StoreError};
use crate::format::chunk::Decoder;
use crate::format::header::FrameHeader;
use crate::format::metalayer::Metalayer;
use crate::format::trailer::Trailer;
use crate::format::{self, IndexEntry};

mod cframe;
mod search;
mod sframe;
#[cfg(test)]
mod tests;

/// What is wrong with a frame, what can be done about it, and what cannot.
#[derive(Debug)]
pub struct Plan {
    path: PathBuf,
    /// What is wrong.
    pub found: Vec<String>,
    /// What carrying out the plan will do.
    pub steps: Vec<String>,
    /// What is lost and stays lost.
    pub lost: Vec<String>,
    work: Work,
}

#[derive(Debug)]
enum Work {
    /// The frame is sound.
    Nothing,
    /// It is beyond what can be known.
    Impossible,
    /// Writes to the frame's one file, in this order, and its length afterwards.
    Cframe { writes: Vec<(u64, Vec<u8>)>, len: u64 },
    /// A new index file.
    Sframe { index: Vec<u8> },
}

/// How a plan stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// There is nothing to mend.
    Sound,
    /// It can be mended.
    Mendable,
    /// It cannot.
    Hopeless,
}

/// Looks at a frame of either layout, and plans its repair.
///
/// # Errors
/// What cannot be read, and files that have not even a frame's header.
pub fn plan(path: &Path) -> Result<Plan> {
    let mut plan = Plan { path: path.to_owned(), found: Vec::new(), steps: Vec::new(), lost: Vec::new(), work: Work::Nothing };
    if path.is_dir() {
        sframe::plan(&mut plan)?
    } else {
        cframe::plan(&mut plan)?
    }
    Ok(plan)
}

impl Plan {
    /// Whether there is something to do, and whether it can be done.
    pub fn outlook(&self) -> Outlook {
        match self.work {
            Work::Nothing => Outlook::Sound,
            Work::Impossible => Outlook::Hopeless,
            Work::Cframe { .. } | Work::Sframe { .. } => Outlook::Mendable,
        }
    }

    /// Does what was planned; answers the directory with what was there before.
    ///
    /// # Errors
    /// What the system refuses; a frame that is mounted for writing, or that has changed since it was looked at.
    pub fn carry_out(&self) -> Result<Option<PathBuf>> {
        let io = |action| move |source| StoreError::Io { path: self.path.clone(), action, source };
        match &self.work {
            Work::Nothing | Work::Impossible => Ok(None),
            Work::Cframe { writes, len } => {
                let (backend, dir, name) = self.beside().map_err(io("open"))?;
                let file = backend.open(&name, true).map_err(io("open for writing"))?;
                self.lock(file.try_lock().map_err(io("lock"))?)?;
                self.unchanged()?;
                let saved = Saved::begin(&backend, &dir, &name).map_err(io("save what is there"))?;
                cframe::carry_out(&*file, writes, *len, &saved).map_err(io("repair"))?;
                Ok(Some(saved.path))
            }
            Work::Sframe { index } => {
                let (backend, dir, name) = self.beside().map_err(io("open"))?;
                let inside = FileBackend::open(&dir.join(&name)).map_err(io("open"))?;
                let itself = inside.itself().map_err(io("open"))?;
                self.lock(itself.try_lock().map_err(io("lock"))?)?;
                self.unchanged()?;
                let saved = Saved::begin(&backend, &dir, &name).map_err(io("save what is there"))?;
                sframe::carry_out(&inside, index, &saved).map_err(io("repair"))?;
                Ok(Some(saved.path))
            }
        }
    }

    /// The directory that the frame is in, symbolic links resolved, and its name there.
    fn beside(&self) -> io::Result<(FileBackend, PathBuf, OsString)> {
        let real = self.path.canonicalize()?;
        match (real.parent(), real.file_name()) {
            (Some(dir), Some(name)) => Ok((FileBackend::open(dir)?, dir.to_owned(), name.to_owned())),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn lock(&self, locked: bool) -> Result<()> {
        if locked { Ok(()) } else { Err(StoreError::Busy { path: self.path.clone() }) }
    }

    /// With the frame locked, the same plan must come out again.
    fn unchanged(&self) -> Result<()> {
        let again = plan(&self.path)?;
        if again.found == self.found && again.steps == self.steps {
            return Ok(());
        }
        let reason = "it is another now than when it was looked at".to_owned();
        Err(StoreError::Stale { path: self.path.clone(), reason })
    }
}

/// A new directory beside the frame for what is about to change.
struct Saved {
    dir: Box<dyn Backend>,
    path: PathBuf,
}

impl Saved {
    fn begin(backend: &FileBackend, dir: &Path, frame: &OsStr) -> io::Result<Saved> {
        for attempt in 0u32.. {
            let mut name = frame.to_owned();
            name.push(if attempt == 0 { ".before-repair".to_owned() } else { format!(".before-repair.{attempt}") });
            let path = dir.join(&name);
            match std::fs::create_dir(&path) {
                Ok(()) => {
                    backend.sync_dir()?;
                    return Ok(Saved { dir: backend.subdir(&name)?, path });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Copies a part of a file to a new one, on disk when this returns.
    fn copy(&self, name: &str, from: &dyn BackendFile, offset: u64, len: u64) -> io::Result<()> {
        let to = self.dir.create(OsStr::new(name), 0o600)?;
        super::backend::copy_range(from, offset, &*to, 0, len)?;
        to.sync_all()?;
        self.dir.sync_dir()
    }
}

/// A header from the bytes at the beginning of a file, whatever it says of the frame's length.
fn header_of(bytes: &[u8]) -> format::Result<FrameHeader> {
    const FRAME_LEN: std::ops::Range<usize> = 16..24;
    let mut copy = bytes.to_vec();
    let said = copy.get(FRAME_LEN).and_then(|field| field.first_chunk()).copied().map_or(0, u64::from_be_bytes);
    if let Some(field) = copy.get_mut(FRAME_LEN) {
        field.copy_from_slice(&(i64::MAX as u64).to_be_bytes());
    }
    let mut header = FrameHeader::parse(&copy)?;
    header.set_frame_len(said);
    Ok(header)
}

/// An empty trailer, for a frame that has lost its own.
fn empty_trailer() -> format::Result<Trailer> {
    Trailer::encode(&[])
}

/// Takes vlmetalayers out of a trailer whose contents do not decode; answers whether all did.
fn sound_layers(plan: &mut Plan, trailer: &mut Trailer) -> bool {
    let mut decoder = Decoder::default();
    let mut decodes = |layer: &Metalayer<'_>| decoder.verify(layer.content).is_ok();
    let (sound, broken): (Vec<_>, Vec<_>) = trailer.vlmetalayers().partition(|layer| decodes(layer));
    if broken.is_empty() {
        return true;
    }
    for layer in broken {
        let name = String::from_utf8_lossy(layer.name);
        plan.found.push(format!("vlmetalayer \"{}\": does not decode", name.escape_debug()));
        plan.lost.push(format!("vlmetalayer \"{}\"", name.escape_debug()));
    }
    let left = Trailer::encode(&sound);
    if let Ok(left) = left {
        plan.steps.push("leave out the vlmetalayers that are lost".to_owned());
        *trailer = left;
    }
    false
}

/// Uncompressed bytes of a frame with these chunks, of which `sizes` has those that are stored; `said` is what its header says.
///
/// # Errors
/// Chunks of no bytes at all: to C-Blosc2 a frame of 0 bytes has no chunks.
fn nbytes_of<P: Copy>(entries: &[IndexEntry<P>], sizes: &[Option<u32>], chunksize: u32, said: u64) -> format::Result<u64> {
    let nbytes = sum_of(entries, sizes, chunksize, said);
    if nbytes == 0 && !entries.is_empty() {
        return Err(format::Error::new("header: nbytes", 30, 0, format_args!("bytes in {} chunks", entries.len())));
    }
    Ok(nbytes)
}

fn sum_of<P: Copy>(entries: &[IndexEntry<P>], sizes: &[Option<u32>], chunksize: u32, said: u64) -> u64 {
    let (count, size) = (entries.len() as u64, u64::from(chunksize));
    if size == 0 {
        let sum = sizes.iter().flatten().map(|size| u64::from(*size)).sum();
        // The sizes of special chunks nobody knows but the header.
        return if sizes.contains(&None) { said.max(sum) } else { sum };
    }
    match sizes.last() {
        None => 0,
        Some(Some(last)) => (count - 1).saturating_mul(size).saturating_add(u64::from(*last)),
        // A special chunk has no size of its own: as long as the header's is possible, it is as good as any.
        Some(None) if said.div_ceil(size) == count => said,
        Some(None) => count.saturating_mul(size),
    }
}
