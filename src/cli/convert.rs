//! `b2fuse convert`: a copy in another layout, without a mount.
//!
//! A copy on this machine has a temporary name until it is complete, and is removed if anything fails before. The chunks that a failed
//! upload of a sparse frame has sent stay in the store, those that a failed download has fetched stay beside DST, and the next try takes
//! them. A contiguous upload begins anew.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use indicatif::HumanBytes;
use rustix::fs::Mode;
use rustix::process::umask;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{Failure, Outcome, hangup_ignored, progress, wait};
use super::{frames, memory};
use crate::format::Layout;
use crate::store::backend::FileStat;
use crate::store::copy::{FrameCopy, Need};
use crate::store::interrupts;
use crate::store::walk::Walk;
use crate::store::{AtClose, FrameStore, LocalStore, Location, NewFrame, StoreError, in_words, local};

mod decode;
mod encode;
#[cfg(feature = "remote")]
mod remote;
mod tree;

/// Copy a frame into its other layout, or a directory with all frames in one layout
///
/// The copy has the same chunks, byte for byte, and the same metadata. It gets the name DST when it is whole and on disk. A chunk that the
/// library does not read is copied as it is (`b2fuse check` finds it): the copy is never worse than SRC.
///
/// b2fuse writes no other formats: names that end in .zarr, .h5, .csv and the like are refused. If DST ends in .npy, it becomes a NumPy file with the data of SRC, which must be an array. If SRC is a NumPy file, DST becomes an
/// array with its data, compressed by all cores, in chunks and blocks of the shapes that Python-Blosc2 takes, unless options set others.
///
/// Each of SRC and DST may be a URL: s3://, gs:// or az://BUCKET/KEY; SRC also http:// or https://. Then the copy has SRC's layout, unless
/// --show sets another, and a line says what was made. Many chunks are sent and fetched at a time. At a URL nobody sees a half-written frame: the index of a sparse one is sent last, and a contiguous one is there when it is whole.
/// After an interrupted or killed download, or upload of a sparse frame, the same command takes the chunks that are there, checked by
/// length and checksum. A download records them in $XDG_STATE_HOME/b2fuse (root: /var/lib/b2fuse). Unfinished downloads are beside DST, with
/// names that begin with .b2fuse- and end in .tmp; a mount of that directory removes them. A contiguous upload begins anew. Parts of a
/// killed one stay in the store until its rules remove them.
///
/// --force replaces a frame of the same layout, if nobody else has changed it meanwhile. An object of more than 32 MiB is sent in parts,
/// without a condition: before, it is looked whether others have made one of that name, but do not upload such chunks, or such a contiguous
/// frame, to one name twice at the same time. A NumPy file becomes a sparse frame at a URL.
///
/// With --show, SRC may be a directory. Everything in it is copied, at any depth: each frame (see `b2fuse check`) in that
/// layout, and all other files as they are, with owner, mode, times and extended attributes, links as links. DST must not exist, or be an
/// empty directory. Names that begin with .b2fuse- are left out. In a store of Python-Blosc2, which is a directory whose name ends in .b2d
/// or that holds embed.b2e, frames become or stay files with either layout, because the library finds only files there. A frame that cannot be
/// read is copied as it is and named on stderr, and the exit code is 1.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  # A file becomes a directory
  b2fuse convert pressure.b2frame sparse.b2frame
  # An array to a NumPy file
  b2fuse convert pressure.b2frame pressure.npy
  # A NumPy file to an array, in chunks of 100 by 200 items
  b2fuse convert --chunks 100,200 --codec lz4 pressure.npy new.b2nd
  # A directory becomes a file, in place of the one that is there
  b2fuse convert --force many.b2frame pressure.b2frame
  # A file, to an object store, as one object, and back
  b2fuse convert pressure.b2frame s3://bucket/pressure.b2frame
  b2fuse convert s3://bucket/pressure.b2frame copy.b2frame
  # The same, as an object for each chunk
  b2fuse convert --show sparse pressure.b2frame s3://bucket/pressure
  # A directory, with all frames in it as directories of chunks
  b2fuse convert --show sparse frames frames.sparse")]
pub(super) struct Args {
    /// Replace an existing DST, in one step; only when copying one frame
    #[arg(long)]
    force: bool,
    /// The layout of the copy [default: the one that SRC does not have; from or to a URL, the one that it has; for a
    /// NumPy file, contiguous]
    #[arg(long, value_name = "LAYOUT")]
    show: Option<Show>,
    #[command(flatten)]
    array: encode::ArrayArgs,
    #[cfg(feature = "remote")]
    #[command(flatten)]
    remote: super::remote_args::RemoteArgs,
    /// The frame, or a file of NumPy's; with --show, also a directory of frames; or a frame's URL
    src: PathBuf,
    /// The copy to make: a frame of the other layout, or of LAYOUT; a directory if SRC is a directory of frames; or a URL of an object store
    dst: PathBuf,
}

/// A layout, as `b2fuse mount` calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Show {
    Contiguous,
    Sparse,
}

impl From<Show> for Layout {
    fn from(show: Show) -> Self {
        match show {
            Show::Contiguous => Layout::Contiguous,
            Show::Sparse => Layout::Sparse,
        }
    }
}

pub(super) fn run(args: &Args) -> Outcome {
    if let Err(what) = args.array.check() {
        return Outcome::Usage(what);
    }
    if let Err(failure) = check_format(&args.dst) {
        return Outcome::Failed(failure);
    }
    #[cfg(feature = "remote")]
    match args.remote.access() {
        Err(what) => return Outcome::Usage(what),
        Ok(access) => {
            if let Some(end) = remote::run(args, &access) {
                return end;
            }
            if let Err(what) = args.remote.check(&[]) {
                return Outcome::Usage(what);
            }
        }
    }
    memory::end_with(&args.src);
    match (Walk::of(&args.src), args.show) {
        (Ok(Some(walk)), Some(layout)) => tree::run(args, walk, layout.into()),
        (Ok(Some(_)), None) => {
            let what = frames::existing(&args.src).err().map_or_else(String::new, |Failure(line)| line);
            Outcome::Failed(Failure(format!("{what}; --show contiguous and --show sparse copy a directory of frames")))
        }
        // What keeps from a directory is said as of a frame.
        _ => convert(args).into(),
    }
}

/// What names of files and directories end in that are of other formats, in lower case.
const OTHER_FORMATS: [&str; 22] = [
    "b2z", "csv", "feather", "fits", "h5", "hdf5", "json", "mat", "n5", "nc", "nc4", "npz", "orc", "parquet", "pkl", "raw",
    "tif", "tiff", "tsv", "txt", "zarr", "zip",
];

/// # Errors
/// A copy that is to have a name of another format: nobody could read it by that name.
fn check_format(dst: &Path) -> Result<(), Failure> {
    let extension = dst.extension().and_then(OsStr::to_str).map(str::to_lowercase);
    match extension.filter(|extension| OTHER_FORMATS.contains(&extension.as_str())) {
        Some(extension) => Err(Failure::new(
            dst,
            format_args!(
                "is a name of another format (.{extension}); expected the name of a frame, such as x.b2nd, or of a NumPy file (.npy)"
            ),
        )),
        None => Ok(()),
    }
}

fn convert(args: &Args) -> Result<(), Failure> {
    if let Some(file) = encode::source(args)? {
        return encode::run(args, file);
    }
    if args.array.is_given() {
        return Err(Failure::new(
            &args.src,
            "is not a NumPy file (.npy); expected one with --chunks, --blocks, --codec, --level or --filters",
        ));
    }
    if decode::is_meant(args) {
        return decode::run(args);
    }
    let (src, layout) = frames::existing(&args.src).map_err(or_array)?;
    let dst = frames::to_be(&args.dst)?;
    let replaced = check_target(&src, &dst, args.force)?;
    let copy = FrameCopy::of(&src).map_err(frames::damaged)?;
    let to = match (args.show, layout) {
        (Some(show), _) => show.into(),
        (None, Layout::Contiguous) => Layout::Sparse,
        (None, Layout::Sparse) => Layout::Contiguous,
    };
    let mode = copy.mode()?;
    mask(mode, to);
    let write_protected = to == Layout::Contiguous && mode & 0o200 == 0;
    let new = NewFrame { write_protected, replaced, ..NewFrame::default() };
    make(&copy, to, &dst, new, None).map(drop)
}

/// The same of SRC, which may be a file of NumPy's as well.
fn or_array(Failure(line): Failure) -> Failure {
    const FRAME: &str = "expected a Blosc2 frame";
    // The last one, as the path comes first.
    match line.rsplit_once(FRAME) {
        Some((before, after)) if after.is_empty() || after.starts_with(" (") => {
            Failure(format!("{before}{FRAME} or a .npy file{after}"))
        }
        _ => Failure(line),
    }
}

/// Makes a frame at `dst`, with the chunks in the order of the index and no holes between them; `last` is done at its end. Answers what
/// was made.
///
/// # Errors
/// Too little room, in advance; `dst` exists and is not what is to be replaced; what the stores refuse. Nothing is left of the copy.
pub(super) fn make(
    copy: &FrameCopy,
    to: Layout,
    dst: &Location,
    new: NewFrame,
    last: Option<AtClose>,
) -> Result<Option<FileStat>, Failure> {
    let create = || copy.create(dst, to, new.clone());
    let fill = |target: &dyn FrameStore, progress: &mut dyn FnMut(u64) -> bool| {
        check_room(copy.need(to), target)?;
        Ok(copy.run(target, &mut |len| progress(len.into()))?)
    };
    let target = fill_new(dst, copy.bytes(), create, fill)?;
    if let Some(last) = last {
        target.at_close(last);
    }
    let frame = target.local().map(LocalStore::like).transpose()?;
    let made = frame.and_then(|like| like.frame.stat().ok());
    target.close()?;
    Ok(made)
}

/// Makes a frame at `dst`, not closed yet, that `create` begins and `fill` fills. That one tells how much of `bytes` is done, and `false`
/// if it was stopped.
fn fill_new(
    dst: &Location,
    bytes: u64,
    create: impl Fn() -> Result<Arc<dyn FrameStore>, StoreError>,
    fill: impl FnOnce(&dyn FrameStore, &mut dyn FnMut(u64) -> bool) -> Result<bool, Failure>,
) -> Result<Arc<dyn FrameStore>, Failure> {
    interruptible(dst.path())?;
    let create = || Ok(create()?);
    let target = wait::until_released(wait::PATIENCE, "", |text| eprintln!("{text}"), Failure::from_text, create)?;
    // What was replaced and cannot be removed is worth a word.
    super::log::start(super::log::Target::AfterSuccess, log::LevelFilter::Warn);
    let bar = progress::of_bytes(bytes);
    let done = fill(&*target, &mut |len| {
        bar.inc(len);
        !is_interrupted()
    });
    bar.finish_and_clear();
    match done {
        Ok(true) => Ok(target),
        Err(error) if !is_interrupted() => Err(error),
        _ => Err(Failure::new(dst.path(), "interrupted; nothing was made")),
    }
}

/// As [`listen_for_signals`], for a copy of that name.
fn interruptible(dst: &Path) -> Result<(), Failure> {
    listen_for_signals().map_err(|error| Failure::new(dst, format_args!("cannot handle signals: {}", in_words(&error))))
}

/// Set by the signals that end a program, once they are listened for.
static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on the signals that end a program have copies end, without a trace of what is unfinished.
pub(super) fn listen_for_signals() -> io::Result<()> {
    static LISTENS: AtomicBool = AtomicBool::new(false);
    if LISTENS.swap(true, Relaxed) {
        return Ok(());
    }
    let hangup = (!hangup_ignored()).then_some(SIGHUP);
    // Who waits for what is far away goes on no longer.
    interrupts::serve(rustix::process::getpid().as_raw_pid().cast_unsigned());
    interrupts::look_by(|_| is_interrupted());
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        signal_hook::flag::register(signal, INTERRUPTED.clone())?;
    }
    Ok(())
}

/// Whether there was such a signal.
pub(super) fn is_interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::from_text(error)
    }
}

/// # Errors
/// There is not enough, with both numbers.
fn check_room(need: Need, target: &dyn FrameStore) -> Result<(), Failure> {
    let space = target.statvfs()?;
    let failed = |reason: String| Err(Failure::new(&target.path(), reason));
    check_bytes(&target.path(), need.bytes, space.available_bytes())?;
    // Where files are not counted, there are none at all.
    if space.files > 0 && space.available_files < need.files {
        return failed(format!("needs {} files, and its file system has room for {}", need.files, space.available_files));
    }
    Ok(())
}

/// # Errors
/// There is not enough, with both numbers.
fn check_bytes(path: &Path, need: u64, free: u64) -> Result<(), Failure> {
    if free >= need {
        return Ok(());
    }
    Err(Failure::new(path, format_args!("needs {}, and its file system has {} left", HumanBytes(need), HumanBytes(free))))
}

/// Whether a copy may have the name of DST; answers what it would replace.
fn check_target(src: &Location, dst: &Location, force: bool) -> Result<Option<FileStat>, Failure> {
    let failed = |reason: String| Err(Failure::new(dst.path(), reason));
    let (real, name) = (src.real_path(), dst.real_path());
    let found = dst.stat()?;
    if found.is_some() && local::resolve(&name).is_ok_and(|dst| dst == real) {
        return failed("is SRC itself; expected another name".into());
    }
    if name.starts_with(&real) {
        return failed(format!("lies inside {}; expected a place outside", src.path().display()));
    }
    if found.is_some_and(|found| !found.is_link()) && real.starts_with(&name) {
        return failed(format!("holds {}; expected a new name", src.path().display()));
    }
    check_found(dst, force)
}

/// The same, where SRC is elsewhere.
fn check_found(dst: &Location, force: bool) -> Result<Option<FileStat>, Failure> {
    let failed = |reason: String| Err(Failure::new(dst.path(), reason));
    let Some(found) = dst.stat()? else { return Ok(None) };
    if found.is_link() {
        return failed("is a symbolic link; expected a new name".into());
    }
    if found.is_dir() && dst.layout().is_err() {
        return failed("is a directory without chunks.b2frame; expected a new name, or a frame to replace".into());
    }
    if !found.is_dir() && !found.is_file() {
        return failed("is no regular file; expected a new name, or a frame to replace".into());
    }
    if !force {
        return failed("exists already; expected a new name (--force replaces what is there)".into());
    }
    Ok(Some(found))
}

/// Has everything that is made from now on no more permission bits than cp(1) would give it: those of SRC without those of the
/// umask. Its owner can always read and write for the time being.
fn mask(mode: u32, to: Layout) {
    let searchable = if to == Layout::Sparse { (mode & 0o444) >> 2 } else { 0 };
    let more = Mode::from_raw_mode(0o077 & !(mode | searchable));
    // There is only one thread that makes files.
    umask(umask(Mode::empty()) | more);
}
