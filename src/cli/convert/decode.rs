//! `b2fuse convert ARRAY FILE.npy`: the data of an array as a file of NumPy's.

use std::ffi::OsStr;
#[cfg(feature = "remote")]
use std::sync::Arc;

use indicatif::ProgressBar;

use super::{Args, check_bytes, check_target, frames, interruptible, is_interrupted, progress};
use crate::cli::Failure;
use crate::format::Layout;
#[cfg(feature = "remote")]
use crate::store::SourceStore;
use crate::store::backend::FileStat;
use crate::store::new_file::NewFile;
#[cfg(feature = "remote")]
use crate::store::remote::RemoteStore;
use crate::store::{Location, StoreError};
use crate::view::{Boxes, Decoded, Reader, Seek, ViewError};

/// Bytes that are written at once.
const PIECE: usize = 4 << 20;
/// Zeros that are no shorter need not be written.
const HOLE: usize = 4096;
/// Bytes that are decoded ahead of them.
const AHEAD: u64 = 16 << 20;

/// Whether a copy of that name is to be a file of NumPy's.
pub(super) fn is_meant(args: &Args) -> bool {
    args.dst.extension() == Some(OsStr::new("npy"))
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let (src, layout) = frames::existing(&args.src)?;
    let dst = frames::to_be(&args.dst)?;
    let replaced = check_target(&src, &dst, args.force)?;
    check_file(&dst, replaced.as_ref())?;
    write(args, Source::Local(src, layout), &dst, replaced)
}

/// # Errors
/// What is to be replaced is a frame that is a directory, which no file can take the place of.
pub(super) fn check_file(dst: &Location, replaced: Option<&FileStat>) -> Result<(), Failure> {
    match replaced {
        Some(there) if !there.is_file() => {
            Err(Failure::new(dst.path(), "is a directory; expected a new name, or a file to replace"))
        }
        _ => Ok(()),
    }
}

/// Where the array is.
pub(super) enum Source {
    Local(Location, Layout),
    #[cfg(feature = "remote")]
    Remote(Arc<RemoteStore>),
}

/// Writes the file of NumPy's, in place of what is to be replaced.
pub(super) fn write(args: &Args, source: Source, dst: &Location, replaced: Option<FileStat>) -> Result<(), Failure> {
    if args.show.is_some() {
        return Err(Failure::new(dst.path(), "is a NumPy file, which has no layout; expected no --show"));
    }
    let src = match &source {
        Source::Local(location, _) => location.path().to_owned(),
        #[cfg(feature = "remote")]
        Source::Remote(store) => store.path(),
    };
    let failed = |error: ViewError| match error {
        _ if is_interrupted() => Failure::new(dst.path(), "interrupted; nothing was made"),
        ViewError::Store(error) => frames::damaged(error),
        error => Failure::new(&src, error),
    };
    let reader = match source {
        Source::Local(src, layout) => Reader::open(&src, layout, &Decoded::Npy(None)),
        #[cfg(feature = "remote")]
        Source::Remote(store) => Reader::over(store, &Decoded::Npy(None)),
    };
    let reader = reader.map_err(failed)?;
    interruptible(dst.path())?;
    // What is elsewhere has no mode.
    let mode = if reader.store().local().is_some() { reader.store().source_stat()?.mode & 0o666 } else { 0o666 };
    let file = NewFile::create(dst, mode, replaced)?;
    check_bytes(dst.path(), reader.allocated(), file.available()?)?;
    let bar = progress::of_bytes(reader.bytes());
    let written = match reader.boxes() {
        Some(boxes) => in_boxes(&boxes, &file, &bar, &failed),
        None => in_order(&reader, &file, &bar, &failed),
    };
    bar.finish_and_clear();
    written?;
    if is_interrupted() {
        return Err(Failure::new(dst.path(), "interrupted; nothing was made"));
    }
    Ok(file.finish(reader.bytes())?)
}

/// Writes from beginning to end, until there is a signal.
fn in_order(reader: &Reader, file: &NewFile, bar: &ProgressBar, failed: &impl Fn(ViewError) -> Failure) -> Result<(), Failure> {
    let len = reader.bytes();
    let mut piece = vec![0; PIECE];
    let (mut at, mut asked, mut hole) = (0, 0, 0);
    while at < len && !is_interrupted() {
        if at >= hole {
            // What reads as zeros is a hole.
            let data = match reader.seek(at, Seek::Data) {
                Ok(data) => data,
                Err(ViewError::System(libc::ENXIO)) => len,
                Err(error) => return Err(failed(error)),
            };
            bar.inc(data - at);
            at = data;
            hole = if at < len { reader.seek(at, Seek::Hole).map_err(failed)?.max(at + 1) } else { len };
        }
        if at + AHEAD / 2 > asked {
            asked = asked.max(at);
            reader.expect(asked..at + AHEAD);
            asked = at + AHEAD;
        }
        let wanted = usize::try_from(hole - at).unwrap_or(PIECE).min(PIECE);
        let buf = piece.get_mut(..wanted).unwrap_or_default();
        let count = reader.read_at(at, buf).map_err(failed)?;
        file.write_at(buf.get(..count).unwrap_or_default(), at)?;
        at += count as u64;
        bar.inc(count as u64);
        if count < wanted {
            break;
        }
    }
    Ok(())
}

/// Writes box after box, until there is a signal.
fn in_boxes(boxes: &Boxes<'_>, file: &NewFile, bar: &ProgressBar, failed: &impl Fn(ViewError) -> Failure) -> Result<(), Failure> {
    file.write_at(boxes.head(), 0)?;
    let written = boxes.read(|items| {
        if !items.is_zeros() {
            items.rows(|offset, row| match row.len() >= HOLE && row.iter().all(|byte| *byte == 0) {
                true => Ok(()),
                false => file.write_at(row, offset).map_err(Stopped::Writing),
            })?;
        }
        bar.inc(items.bytes());
        Ok(!is_interrupted())
    });
    written.map_err(|stopped| match stopped {
        Stopped::Reading(error) => failed(error),
        Stopped::Writing(error) => error.into(),
    })
}

/// What keeps from a copy.
enum Stopped {
    Reading(ViewError),
    Writing(StoreError),
}

impl From<ViewError> for Stopped {
    fn from(error: ViewError) -> Self {
        Stopped::Reading(error)
    }
}
