//! The data of frames, decompressed.
//!
//! - [`data`]: the bytes of a frame, and how they are read; `shape`: how they are cut in chunks;
//! - [`blocks`]: decoded blocks in memory, and the threads that decode ahead;
//! - [`band_file`]: decoded blocks in files, where there is no room in memory;
//! - `reader`: who reads without a mount; `sliced`: a slice of an array; `boxes`: all of one, block after block.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::sync::Arc;

use self::data::Data;
use self::shape::Shape;
use super::error::{Result, ViewError};
use crate::format::array::{Array, ArrayKind};
use crate::format::header::FrameHeader;
use crate::format::npy::{self, ItemType};
use crate::format::object::Object;
use crate::format::tiling::Tiling;
use crate::format::{self, IndexEntry};
use crate::store::{ChunkKey, FrameImage, FrameStore, StoreError};

pub mod band_file;
pub mod blocks;
mod boxes;
pub mod data;
mod reader;
mod shape;
mod sliced;
#[cfg(test)]
mod tests;

pub use band_file::BandFiles;
pub use blocks::Blocks;
pub use boxes::Boxes;
pub use reader::Reader;
pub use sliced::Sliced;

/// As what a frame's data is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// NumPy's format. The items of an array that does not say what they are can be named.
    Npy(Option<ItemType>),
    /// The data alone.
    Raw,
}

impl Decoded {
    /// What names of files end in that show data.
    pub const SUFFIXES: [&str; 2] = [".npy", ".raw"];

    /// What names of such files end in.
    pub fn suffix(&self) -> &'static str {
        let [npy, raw] = Self::SUFFIXES;
        match self {
            Decoded::Npy(_) => npy,
            Decoded::Raw => raw,
        }
    }

    /// The name of the file that shows a frame of that name.
    pub fn name(&self, frame: &OsStr) -> OsString {
        [frame, OsStr::new(self.suffix())].into_iter().collect()
    }
}

/// The data of what a store has, and the state that it is of.
///
/// # Errors
/// What the store cannot read; an object of Python-Blosc2 that is no array of its own; a frame that is no array, where that is wanted; an
/// array whose items nobody can name, or whose shape its chunks do not have.
pub fn open(store: &dyn FrameStore, decoded: &Decoded, blocks: &Arc<Blocks>) -> Result<(Arc<FrameImage>, Data)> {
    let wrong = |source: format::Error| ViewError::Store(StoreError::Format { path: store.path(), source });
    let unsupported = |reason: &str| ViewError::Store(StoreError::Unsupported { path: store.path(), reason: reason.into() });
    let image = store.committed().ok_or_else(|| unsupported("there is no frame yet"))?;
    let header = &image.header;
    let found = look(header, decoded).map_err(|refusal| match refusal {
        Refusal::Object(_) => unsupported(&format!("is {refusal}")),
        Refusal::Format(error) => wrong(error),
    });
    let (head, shape) = match found? {
        Some((head, tiling)) => (head, Shape::Array(tiling)),
        None if *decoded != Decoded::Raw => {
            let reason = "is not an array; expected one (b2nd or Caterva). mount --show raw shows the data of any frame";
            return Err(unsupported(reason));
        }
        None if header.chunksize() == 0 => (Vec::new(), Shape::Varying(ends(store, &image.entries)?)),
        None => (Vec::new(), Shape::Chunks(Tiling::of_chunks(header.nbytes(), header.chunksize()))),
    };
    let entries = Arc::clone(&image.entries);
    let data = Data::new(head, shape, entries, header.typesize(), header.cbytes(), blocks).map_err(wrong)?;
    Ok((image, data))
}

/// Why the data of a frame is not shown.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its chunks do not hold the values.
    Object(Object),
    /// They are not the array that the header describes, or their type is not known.
    Format(format::Error),
}

impl From<format::Error> for Refusal {
    fn from(error: format::Error) -> Self {
        Refusal::Format(error)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Object(object) => write!(f, "{}; {}", object.description(), object.remedy()),
            Refusal::Format(error) => error.fmt(f),
        }
    }
}

/// What a header says of an array, if it describes one: what stands before its data, and how that is cut.
///
/// # Errors
/// An object of Python-Blosc2 whose values are not the data; an array whose items nobody can name, where that is wanted, or whose shape its
/// chunks do not have.
pub fn look(header: &FrameHeader, decoded: &Decoded) -> std::result::Result<Option<(Vec<u8>, Tiling)>, Refusal> {
    if let Some(object) = Object::find(header.metalayers()) {
        return Err(Refusal::Object(object));
    }
    let Some((array, tiling)) = Tiling::of_frame(header)? else { return Ok(None) };
    let head = match decoded {
        Decoded::Raw => Vec::new(),
        Decoded::Npy(named) => npy::header(&item_type(&array, named.as_ref(), header.typesize())?, &array.shape)?,
    };
    Ok(Some((head, tiling)))
}

/// Returns whether an array names a type of its items that can be used.
pub fn names_items(header: &FrameHeader) -> bool {
    let array = Array::find(header.metalayers()).and_then(std::result::Result::ok);
    array.is_some_and(|array| array.dtype.is_some() && item_type(&array, None, header.typesize()).is_ok())
}

/// What helps where an array's own type of items cannot be used.
const REMEDY: &str = "; mount --show npy -o dtype=TYPE sets one, and mount --show raw shows the bytes";

/// The type of an array's items: its own. An array without one, or with one that NumPy does not know or that has another size, may have it
/// `named`.
fn item_type(array: &Array, named: Option<&ItemType>, typesize: u32) -> std::result::Result<ItemType, format::Error> {
    let own = match (&array.dtype, named, array.kind) {
        (Some(dtype), ..) => ItemType::of(dtype).and_then(|item| fitting(item, typesize)),
        (None, Some(named), _) => return fitting(named.clone(), typesize),
        // What Python-Blosc2 takes them for.
        (None, None, ArrayKind::B2nd) => return ItemType::parse(&format!("|S{typesize}")),
        (None, None, ArrayKind::Caterva) => return Ok(ItemType::void(typesize.into())),
    };
    match (own, named) {
        (Err(_), Some(named)) => fitting(named.clone(), typesize),
        (own, _) => own.map_err(|error| format::Error { expected: error.expected + REMEDY, ..error }),
    }
}

/// Hands through a type of the size of a frame's items.
fn fitting(item: ItemType, typesize: u32) -> std::result::Result<ItemType, format::Error> {
    if item.size() == u64::from(typesize) {
        return Ok(item);
    }
    let got = format_args!("{} of {} bytes", item.descr(), item.size());
    Err(format::Error::new("dtype", 0, got, format_args!("one of {typesize} bytes, as the frame's items have")))
}

/// Chunks whose headers are asked for at once.
const HEADERS: usize = 1 << 14;

/// Where each chunk ends, if they differ in size.
fn ends(store: &dyn FrameStore, entries: &[IndexEntry<ChunkKey>]) -> Result<Vec<u64>> {
    let guard = store.enter();
    let mut end = 0u64;
    let mut ends = Vec::with_capacity(entries.len());
    for entries in entries.chunks(HEADERS) {
        let mut headers = store.chunk_headers(&guard, &mut entries.iter().filter_map(|entry| entry.stored()))?.into_iter();
        for entry in entries {
            // What is special by the index has no size of its own.
            if entry.stored().is_some() {
                end += headers.next().map_or(0, |header| u64::from(header.nbytes));
            }
            ends.push(end);
        }
    }
    Ok(ends)
}
