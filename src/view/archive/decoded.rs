//! The frames in an archive whose data is shown: each as a file that has the frame's name and a suffix.
//!
//! What cannot be shown so is the file that it is in the archive, under its own name.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use log::warn;
use lru::LruCache;
use parking_lot::Mutex;

use crate::format::Layout;
use crate::format::header::FrameHeader;
use crate::format::plain::plain;
use crate::format::zip::{Entry, Number};
use crate::store::archive::Archive;
use crate::store::archive::members::location;
use crate::store::{CframeStore, OpenOptions, StoreError};
use crate::view::decoded::{Blocks, Decoded, Reader, look};
use crate::view::{Result, ViewError};

/// Frames of which it is remembered what they are shown as.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1 << 12).expect("not zero");
/// Frames that are open.
const OPEN: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");
/// Bytes of memory for an open frame, and for each of its chunks.
const WEIGHT: (u64, u64) = (4096, 32);
/// A longer header describes no array that can be shown, and the bytes of a header that are read at first.
const HEADER: (usize, usize) = (4 << 20, 4096);
/// The longest name.
const LONGEST_NAME: usize = 255;

/// Chooses how frames are shown.
pub trait Choose: Send + Sync {
    /// Returns whether a file with this path in the archive may be a frame.
    fn may_be_frame(&self, path: &Path) -> bool;

    /// Returns how the data of a frame is shown.
    ///
    /// # Errors
    /// What keeps it from being shown.
    fn decoded(&self, header: &FrameHeader) -> std::result::Result<Decoded, String>;
}

/// Frames in an archive whose data is shown.
pub struct DecodedMembers {
    archive: Arc<Archive>,
    choose: Box<dyn Choose>,
    blocks: Arc<Blocks>,
    options: OpenOptions,
    /// Leaf locks.
    known: Mutex<LruCache<Number, Option<Shown>>>,
    open: Mutex<LruCache<Number, Arc<Reader>>>,
}

/// The file that shows a frame.
#[derive(Clone)]
pub struct Shown {
    decoded: Decoded,
    /// Length in bytes.
    pub len: u64,
}

impl DecodedMembers {
    /// Shows frames of an archive as chosen, with blocks decoded in `blocks`.
    pub fn new(archive: &Arc<Archive>, choose: Box<dyn Choose>, blocks: Arc<Blocks>, options: OpenOptions) -> Self {
        let (known, open) = (Mutex::new(LruCache::new(REMEMBERED)), Mutex::new(LruCache::new(OPEN)));
        DecodedMembers { archive: Arc::clone(archive), choose, blocks, options, known, open }
    }

    /// Bytes of memory that open frames take, without their blocks.
    pub fn weight(&self) -> u64 {
        self.open.lock().iter().map(|(_, reader)| WEIGHT.0 + WEIGHT.1.saturating_mul(reader.chunks())).sum()
    }

    /// The file that shows a frame; `None` for a file that is shown as it is.
    pub fn shown(&self, number: Number) -> Option<Shown> {
        if let Some(known) = self.known.lock().get(&number) {
            return known.clone();
        }
        let contents = self.archive.contents();
        let Some(Entry::File(member)) = contents.entry(number) else { return None };
        let path = contents.path(number);
        if !self.choose.may_be_frame(Path::new(OsStr::from_bytes(&path))) {
            return None;
        }
        let mut beginning = vec![0; HEADER.1.min(usize::try_from(member.len).unwrap_or(HEADER.1))];
        // Of an archive that was written meanwhile nothing is remembered.
        self.archive.read_at(number, &mut beginning, 0).ok()?;
        let kind = FrameHeader::announced_frame(&beginning);
        let is_frame = kind.is_some_and(|(layout, len)| layout == Layout::Contiguous && len <= member.len);
        let shown = is_frame.then(|| self.look(number, beginning)).and_then(|shown| match shown {
            Ok(shown) => Some(shown),
            Err(reason) => {
                warn!("{}: is shown as it is in the archive: {reason}", plain(&self.path_of(number)));
                None
            }
        });
        self.known.lock().put(number, shown.clone());
        shown
    }

    fn look(&self, number: Number, mut bytes: Vec<u8>) -> std::result::Result<Shown, String> {
        let len = FrameHeader::announced_len(&bytes).map_err(|error| error.to_string())? as usize;
        if len > HEADER.0 {
            return Err(format!("its header has {len} bytes; expected at most {}", HEADER.0));
        }
        if len > bytes.len() {
            bytes.resize(len, 0);
            self.archive.read_at(number, &mut bytes, 0).map_err(|error| error.to_string())?;
        }
        let header = FrameHeader::parse(bytes.get(..len).unwrap_or_default()).map_err(|error| error.to_string())?;
        let decoded = self.choose.decoded(&header)?;
        let contents = self.archive.contents();
        let name = decoded.name(OsStr::from_bytes(contents.name(number)));
        if name.len() > LONGEST_NAME || contents.child(contents.parent(number), name.as_bytes()).is_some() {
            return Err(format!("the name {} is too long, or taken", plain(Path::new(&name))));
        }
        let len = match look(&header, &decoded) {
            Ok(Some((head, tiling))) => head.len() as u64 + tiling.bytes(),
            _ => header.nbytes(),
        };
        Ok(Shown { decoded, len })
    }

    fn path_of(&self, number: Number) -> std::path::PathBuf {
        self.archive.path().join(OsStr::from_bytes(&self.archive.contents().path(number)))
    }

    /// The name of a file, as it is shown.
    pub fn name(&self, number: Number) -> OsString {
        let name = OsStr::from_bytes(self.archive.contents().name(number));
        self.shown(number).map_or_else(|| name.to_owned(), |shown| shown.decoded.name(name))
    }

    /// The frame in a directory that is shown under a name.
    pub fn find(&self, dir: Number, name: &OsStr) -> Option<Number> {
        Decoded::SUFFIXES.iter().find_map(|suffix| {
            let stem = name.as_bytes().strip_suffix(suffix.as_bytes())?;
            let number = self.archive.contents().child(dir, stem)?;
            self.shown(number).filter(|shown| shown.decoded.suffix() == *suffix).map(|_| number)
        })
    }

    /// Reads the data of a frame.
    ///
    /// # Errors
    /// As [`Reader::read_at`]; [`ViewError::Gone`] for a frame that cannot be opened, whose file is shown as it is from then on.
    pub fn read_at(&self, number: Number, buf: &mut [u8], offset: u64) -> Result<usize> {
        let shown = self.shown(number).ok_or(ViewError::Gone)?;
        let open = self.open.lock().get(&number).cloned();
        let reader = match open.map_or_else(|| self.open(number, &shown), Ok) {
            Err(ViewError::Store(error @ (StoreError::Format { .. } | StoreError::Unsupported { .. }))) => {
                warn!("{error}; it is shown as it is in the archive");
                self.known.lock().put(number, None);
                return Err(ViewError::Gone);
            }
            reader => reader?,
        };
        reader.read_at(offset, buf)
    }

    fn open(&self, number: Number, shown: &Shown) -> Result<Arc<Reader>> {
        let store = CframeStore::open_at(&location(&self.archive, number), self.options.clone())?;
        let reader = Arc::new(Reader::with(Arc::new(store), &shown.decoded, &self.blocks)?);
        self.open.lock().put(number, Arc::clone(&reader));
        Ok(reader)
    }
}
