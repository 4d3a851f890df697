//! `b2fuse convert`: a copy in the other layout, without a mount.
//!
//! Chunks are staged in the order of the index, and one commit makes a frame of them: until then DST has a temporary name, which
//! goes again whatever happens.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use indicatif::{HumanBytes, ProgressBar};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{End, Failure, hangup_ignored, progress, wait};
use super::{frames, memory};
use crate::format::{IndexEntry, Layout};
use crate::store::backend::FileStat;
use crate::store::in_words;
use crate::store::{
    self, AtClose, Budgets, CframeStore, ChunkKey, FrameImage, FrameStore, Location, NewFrame, OpenOptions, Resources,
    SframeStore, StoreError, StoredChunk, local,
};
use crate::view::ViewError;

/// Chunks that are announced to SRC's store at once.
const WINDOW: usize = 64;
/// Larger chunks are copied piece by piece, in bytes.
const WHOLE: u32 = 16 << 20;
/// Bytes of an index entry before it is compressed.
const ENTRY: u64 = 8;
/// Kept before the chunks of a new contiguous frame, and more than enough for the headers of chunks of index and trailer.
const MARGIN: u64 = 4096;

/// Copy a frame into its other layout
///
/// The copy has the same chunks, byte for byte, and the same metadata. It gets the name DST when it is whole and on disk.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  # A file becomes a directory
  b2fuse convert pressure.b2frame sparse.b2frame
  # A directory becomes a file, in place of the one that is there
  b2fuse convert --force many.b2frame pressure.b2frame")]
pub(super) struct Args {
    /// Replace an existing DST, in one step
    #[arg(long)]
    force: bool,
    /// The frame
    src: PathBuf,
    /// The copy to make: a directory if SRC is a file, a file if SRC is a directory
    dst: PathBuf,
}

pub(super) fn run(args: &Args) -> End {
    convert(args).into()
}

fn convert(args: &Args) -> Result<(), Failure> {
    memory::end_with(&args.src, 1);
    let interrupted =
        interrupts().map_err(|error| Failure::new(&args.src, format_args!("cannot handle signals: {}", in_words(&error))))?;
    let (src, layout) = frames::existing(&args.src)?;
    let dst = frames::to_be(&args.dst)?;
    let replaced = check_target(&src, &dst, args.force)?;
    let resources = Resources::new(Budgets { cache_bytes: 0, ..Budgets::default() });
    let reading = OpenOptions { read_only: true, resources, ..OpenOptions::default() };
    let (_, source) = store::open_at(&src, reading).map_err(frames::damaged)?;
    let Some(image) = source.committed() else { return Err(Failure::new(&args.src, "holds no frame")) };
    let to = match layout {
        Layout::Contiguous => Layout::Sparse,
        Layout::Sparse => Layout::Contiguous,
    };
    let mode = mode_of(&args.src, &*source)?;
    mask(mode, to);
    let lens = source.chunk_lens(&source.enter(), &image.entries)?;
    let write_protected = to == Layout::Contiguous && mode & 0o200 == 0;
    let new = NewFrame { write_protected, replaced, ..NewFrame::default() };
    copy_whole(&*source, &image, &lens, to, &dst, (args.force, new, None), &interrupted)
}

/// Makes a frame at `dst` that holds what `source` does, with its chunks in the order of the index and no holes between them. What is
/// to be done at the end is done of a frame in one file.
///
/// # Errors
/// Too little room, in advance; `dst` exists, unless it is to be replaced; what the stores refuse. Nothing is left of the copy.
pub(super) fn copy_whole(
    source: &dyn FrameStore,
    image: &FrameImage,
    lens: &[u32],
    to: Layout,
    dst: &Location,
    (replace, new, last): (bool, NewFrame, Option<AtClose>),
    interrupted: &AtomicBool,
) -> Result<(), Failure> {
    let header_room = image.header.as_bytes().len() as u64;
    let options = OpenOptions { replace, header_room, ..OpenOptions::default() };
    let create = || -> Result<Arc<dyn FrameStore>, ViewError> {
        Ok(match to {
            Layout::Contiguous => Arc::new(CframeStore::create_at(dst, options.clone(), new.clone())?),
            Layout::Sparse => Arc::new(SframeStore::create_at(dst, options.clone(), new.clone())?),
        })
    };
    let target = wait::until_released(wait::PATIENCE, |text| eprintln!("{text}"), Failure::from_text, create)?;
    Need::of(image, lens, to).check(&*target)?;
    let bar = progress::of_bytes(lens.iter().map(|len| u64::from(*len)).sum());
    let copied = copy(source, &*target, image, lens, &bar, interrupted);
    bar.finish_and_clear();
    let entries = copied?;
    if source.changed_outside()? {
        return Err(Failure::new(source.path(), "was changed by another process while it was being copied"));
    }
    // What was replaced and cannot be removed is worth a word.
    super::log::start(super::log::Target::AfterSuccess, log::LevelFilter::Warn);
    let guard = target.enter();
    target.commit(guard, FrameImage { entries: Arc::new(entries), ..image.clone() })?;
    target.sync()?;
    if let Some(last) = last {
        target.at_close(last);
    }
    Ok(target.close()?)
}

/// Stages every chunk, and returns the index of the copy.
fn copy(
    source: &dyn FrameStore,
    target: &dyn FrameStore,
    image: &FrameImage,
    lens: &[u32],
    bar: &ProgressBar,
    interrupted: &AtomicBool,
) -> Result<Vec<IndexEntry<ChunkKey>>, Failure> {
    let guard = source.enter();
    let mut entries = Vec::with_capacity(lens.len());
    let mut bytes = Vec::new();
    let windows = || image.entries.chunks(WINDOW).zip(lens.chunks(WINDOW));
    let mut next = windows();
    for (window, lens) in windows() {
        // Of the next window as well, for a disk that is to be busy all the time.
        let ahead = if entries.is_empty() { 2 } else { 1 };
        for (window, lens) in next.by_ref().take(ahead) {
            let stored = window.iter().zip(lens).filter_map(|(entry, len)| Some((entry.stored()?, *len)));
            source.expect_chunks(&stored.collect::<Vec<_>>());
        }
        for (entry, len) in window.iter().zip(lens) {
            if interrupted.load(Relaxed) {
                return Err(Failure::new(target.path(), "interrupted; nothing was made"));
            }
            entries.push(match entry {
                IndexEntry::Special(special) => IndexEntry::Special(*special),
                IndexEntry::Stored(key) if *len > WHOLE => {
                    IndexEntry::Stored(target.stage(&StoredChunk { store: source, key: *key, len: *len, to_save: false })?)
                }
                IndexEntry::Stored(key) => {
                    bytes.resize(*len as usize, 0);
                    let read = source.read_chunk(&guard, *key, *len, 0, &mut bytes)?;
                    if read != bytes.len() {
                        let reason = format!("chunk {} ends after {read} bytes; expected {len}", entries.len());
                        return Err(Failure::new(source.path(), reason));
                    }
                    IndexEntry::Stored(target.stage(&bytes.as_slice())?)
                }
            });
            bar.inc(u64::from(*len));
        }
    }
    Ok(entries)
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::from_text(error)
    }
}

/// What a copy takes of its file system.
struct Need {
    bytes: u64,
    /// Of the many small files of a sparse frame, each takes whole blocks.
    files: u64,
}

impl Need {
    /// Blocks of this many bytes are what most file systems give room in.
    const BLOCK: u64 = 4096;

    fn of(image: &FrameImage, lens: &[u32], to: Layout) -> Need {
        let index = image.entries.len() as u64 * ENTRY;
        let rest = image.header.as_bytes().len() as u64 + image.trailer.as_bytes().len() as u64 + index + MARGIN;
        let lens = lens.iter().map(|len| u64::from(*len)).filter(|len| *len > 0);
        match to {
            Layout::Contiguous => Need { bytes: rest + lens.sum::<u64>(), files: 1 },
            Layout::Sparse => Need {
                files: 2 + lens.clone().count() as u64,
                bytes: rest + lens.map(|len| len.next_multiple_of(Self::BLOCK)).sum::<u64>(),
            },
        }
    }

    /// # Errors
    /// There is not enough, with both numbers.
    fn check(&self, target: &dyn FrameStore) -> Result<(), Failure> {
        let system = target.statvfs()?;
        let failed = |reason: String| Err(Failure::new(target.path(), reason));
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        if free < self.bytes {
            return failed(format!("needs {}, and its file system has {} left", HumanBytes(self.bytes), HumanBytes(free)));
        }
        // Where files are not counted, there are none at all.
        if system.f_files > 0 && system.f_favail < self.files {
            return failed(format!("needs {} files, and its file system has room for {}", self.files, system.f_favail));
        }
        Ok(())
    }
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
    let Some(found) = found else { return Ok(None) };
    if found.is_link() {
        return failed("is a symbolic link; expected a new name".into());
    }
    if real.starts_with(&name) {
        return failed(format!("holds {}; expected a new name", src.path().display()));
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

/// Permission bits of a frame, as one for all its files: of a sparse frame, what its directory does not let through does not count.
fn mode_of(src: &Path, source: &dyn FrameStore) -> Result<u32, Failure> {
    let mode = source.source_stat()?.mode & 0o777;
    let around =
        source.like()?.frame.stat().map_err(|error| Failure::new(src, format_args!("cannot be read: {}", in_words(&error))))?;
    let through = if around.is_dir() { around.mode & 0o111 } else { 0o111 };
    Ok(mode & (through * 7))
}

/// Has everything that is made from now on no more permission bits than cp(1) would give it: those of SRC without those of the
/// umask. Its owner can always read and write for the time being.
fn mask(mode: u32, to: Layout) {
    let searchable = if to == Layout::Sparse { (mode & 0o444) >> 2 } else { 0 };
    // SAFETY: neither call can fail or touches memory; there is only one thread that makes files.
    unsafe {
        let umask = libc::umask(0);
        libc::umask(umask | 0o077 & !(mode | searchable) as libc::mode_t);
    }
}

/// Set once by whoever wants it to end.
pub(super) fn interrupts() -> std::io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let hangup = (!hangup_ignored()).then_some(SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(flag)
}
