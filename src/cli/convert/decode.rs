//! `b2fuse convert ARRAY FILE.npy`: the data of an array as a file of NumPy's.

use std::ffi::OsStr;
#[cfg(feature = "remote")]
use std::sync::Arc;

use super::{Args, check_target, frames, interruptible, is_interrupted, progress};
use crate::cli::Failure;
use crate::format::Layout;
use crate::store::Location;
#[cfg(feature = "remote")]
use crate::store::SourceStore;
use crate::store::backend::FileStat;
use crate::store::new_file::NewFile;
#[cfg(feature = "remote")]
use crate::store::remote::RemoteStore;
use crate::view::{Decoded, Reader, Seek, ViewError};

/// Bytes that are written at once.
const PIECE: usize = 4 << 20;
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
    write(args, Source::Local(src, layout), &dst, replaced)
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
    let (len, bar) = (reader.bytes(), progress::of_bytes(reader.bytes()));
    let mut piece = vec![0; PIECE];
    let (mut at, mut asked) = (0, 0);
    while at < len {
        if is_interrupted() {
            bar.finish_and_clear();
            return Err(Failure::new(dst.path(), "interrupted; nothing was made"));
        }
        // What reads as zeros is a hole.
        let data = match reader.seek(at, Seek::Data) {
            Ok(data) => data,
            Err(ViewError::System(libc::ENXIO)) => len,
            Err(error) => return Err(failed(error)),
        };
        bar.inc(data - at);
        at = data;
        if at + AHEAD / 2 > asked {
            asked = asked.max(at);
            reader.expect(asked..at + AHEAD);
            asked = at + AHEAD;
        }
        let end = if at < len { reader.seek(at, Seek::Hole).map_err(failed)? } else { len };
        let wanted = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
        let buf = piece.get_mut(..wanted).unwrap_or_default();
        let count = reader.read_at(at, buf).map_err(failed)?;
        file.write_at(buf.get(..count).unwrap_or_default(), at)?;
        at += count as u64;
        bar.inc(count as u64);
        if count < wanted {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(file.finish(len)?)
}
