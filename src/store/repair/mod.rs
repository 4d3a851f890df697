//! Repairs frames whose writer, the library or another program, was stopped in the middle of a change.
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

use std::ffi::OsStr;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::backend::{Backend, BackendFile, FileStat};
use super::error::Complain;
use super::{Location, Result, StoreError};
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
    location: Location,
    frame: Opened,
    /// What is wrong.
    pub found: Told,
    /// What carrying out the plan will do.
    pub steps: Vec<String>,
    /// What is lost and stays lost.
    pub lost: Told,
    work: Work,
}

/// What was looked at. The plan is carried out on the same file or directory, or not at all.
enum Opened {
    File(Box<dyn BackendFile>),
    Dir(Arc<dyn Backend>),
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Opened::File(_) => "File",
            Opened::Dir(_) => "Dir",
        })
    }
}

/// Things to be told, of which a small frame can have millions: the first of them, and how many more there are. Equal if all are.
#[derive(Default)]
pub struct Told {
    first: Vec<String>,
    more: u64,
    all: DefaultHasher,
}

impl Told {
    /// How many are kept.
    pub const MOST: usize = 1000;

    fn push(&mut self, what: impl fmt::Display) {
        let what = what.to_string();
        what.hash(&mut self.all);
        match self.first.len() < Self::MOST {
            true => self.first.push(what),
            false => self.more += 1,
        }
    }

    /// The first of them.
    pub fn first(&self) -> &[String] {
        &self.first
    }

    /// How many more there are.
    pub fn more(&self) -> u64 {
        self.more
    }
}

impl PartialEq for Told {
    fn eq(&self, other: &Self) -> bool {
        (&self.first, self.more, self.all.finish()) == (&other.first, other.more, other.all.finish())
    }
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told").field("first", &self.first).field("more", &self.more).finish_non_exhaustive()
    }
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
    let location = Location::existing(path)?;
    let frame = match location.stat()? {
        Some(stat) if stat.is_dir() => Opened::Dir(Arc::from(location.open_dir()?)),
        _ => Opened::File(location.open()?),
    };
    Plan::of(location, frame)
}

impl Plan {
    fn of(location: Location, frame: Opened) -> Result<Plan> {
        let (found, steps, lost) = (Told::default(), Vec::new(), Told::default());
        let mut plan = Plan { location, frame, found, steps, lost, work: Work::Nothing };
        plan.look()?;
        Ok(plan)
    }

    fn look(&mut self) -> Result<()> {
        // Taken out for the time being, as the plan is written to while it is read.
        let frame = std::mem::replace(&mut self.frame, Opened::Dir(Arc::clone(self.location.backend())));
        let looked = match &frame {
            Opened::Dir(dir) => sframe::plan(self, &**dir),
            Opened::File(file) => cframe::plan(self, &**file),
        };
        self.frame = frame;
        looked
    }

    fn path(&self) -> &Path {
        self.location.path()
    }

    /// Whether there is something to do, and whether it can be done.
    pub fn outlook(&self) -> Outlook {
        match self.work {
            Work::Nothing => Outlook::Sound,
            Work::Impossible => Outlook::Hopeless,
            Work::Cframe { .. } | Work::Sframe { .. } => Outlook::Mendable,
        }
    }

    /// Does what was planned; returns the directory with the bytes that were replaced.
    ///
    /// # Errors
    /// What the system refuses; a frame that is mounted for writing, or that has changed since it was looked at.
    pub fn carry_out(&self) -> Result<Option<PathBuf>> {
        let location = &self.location;
        match (&self.work, &self.frame) {
            (Work::Cframe { writes, len }, Opened::File(seen)) => {
                let file = location.backend().open(location.name(), true).map_err(location.io("open for writing"))?;
                let stat = file.stat().map_err(location.io("stat"))?;
                if !stat.same_file(&seen.stat().map_err(location.io("stat"))?) {
                    return Err(self.another());
                }
                self.lock(&*file)?;
                self.unchanged(Opened::File(file.reopen(false).map_err(location.io("open"))?))?;
                let saved = Saved::begin(location, &stat).map_err(location.io("save what is there"))?;
                cframe::carry_out(&*file, writes, *len, &saved).map_err(location.io("repair"))?;
                Ok(Some(saved.path))
            }
            (Work::Sframe { index }, Opened::Dir(dir)) => {
                let itself = dir.itself().map_err(location.io("open"))?;
                self.lock(&*itself)?;
                self.unchanged(Opened::Dir(Arc::clone(dir)))?;
                let stat = itself.stat().map_err(location.io("stat"))?;
                let saved = Saved::begin(location, &stat).map_err(location.io("save what is there"))?;
                sframe::carry_out(&**dir, index, &saved).map_err(location.io("repair"))?;
                Ok(Some(saved.path))
            }
            _ => Ok(None),
        }
    }

    fn lock(&self, frame: &dyn BackendFile) -> Result<()> {
        match frame.try_lock().map_err(self.location.io("lock"))? {
            true => Ok(()),
            false => Err(StoreError::busy(self.path(), frame)),
        }
    }

    /// With the frame locked, the same plan must come out again.
    fn unchanged(&self, frame: Opened) -> Result<()> {
        let again = Plan::of(self.location.clone(), frame)?;
        if again.found == self.found && again.steps == self.steps { Ok(()) } else { Err(self.another()) }
    }

    fn another(&self) -> StoreError {
        self.location.stale("it is another now than when it was looked at")
    }
}

/// A new directory beside the frame for what is about to change.
struct Saved {
    dir: Box<dyn Backend>,
    path: PathBuf,
    /// The frame's owner, to whom it belongs.
    owner: FileStat,
}

impl Saved {
    fn begin(location: &Location, owner: &FileStat) -> io::Result<Saved> {
        for attempt in 0u32.. {
            let mut name = location.name().to_owned();
            name.push(if attempt == 0 { ".before-repair".to_owned() } else { format!(".before-repair.{attempt}") });
            match location.backend().create_dir(&name, 0o700) {
                Ok(dir) => {
                    // Where that is not allowed it stays ours.
                    let _ = dir.itself()?.set_owner(owner);
                    location.backend().sync_dir()?;
                    return Ok(Saved { dir, path: location.dir_path().join(name), owner: *owner });
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
        let _ = to.set_owner(&self.owner);
        super::backend::copy_range(from, offset, &*to, 0, len)?;
        to.sync_all()?;
        self.dir.sync_dir()
    }
}

/// A header from the bytes at the beginning of a file, whatever it says of the frame's length.
fn header_of(mut bytes: Vec<u8>) -> format::Result<FrameHeader> {
    const FRAME_LEN: std::ops::Range<usize> = 16..24;
    let said = bytes.get(FRAME_LEN).and_then(|field| field.first_chunk()).copied().map_or(0, u64::from_be_bytes);
    if let Some(field) = bytes.get_mut(FRAME_LEN) {
        field.copy_from_slice(&(i64::MAX as u64).to_be_bytes());
    }
    let mut header = FrameHeader::parse_vec(bytes)?;
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
        plan.found.push(format_args!("vlmetalayer \"{}\": does not decode", name.escape_debug()));
        plan.lost.push(format_args!("vlmetalayer \"{}\"", name.escape_debug()));
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
