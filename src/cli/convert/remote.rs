//! `b2fuse convert` from a URL, to a URL, or both.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use super::{Args, check_found, check_room, decode, encode, fill_new, frames, interruptible, is_interrupted, mask, progress};
use crate::cli::remote::{Connected, connect, no_such_object};
use crate::cli::{Failure, Outcome, log, memory, output};
use crate::format::Layout;
use crate::format::plain::plain;
use crate::store::array_copy::ArrayCopy;
use crate::store::copy::{FrameCopy, Need, Resume};
use crate::store::local::system;
use crate::store::npy_file::NpyFile;
use crate::store::remote::upload::{NewUpload, Upload};
use crate::store::remote::{self, Access, Address, Options, RemoteStore};
use crate::store::walk::Walk;
use crate::store::{Budgets, FrameStore, NewFrame, Resources, SourceStore, StoreError};

/// Bytes of memory for what is read of a remote source.
const CACHE: u64 = 64 << 20;

/// A source or a target.
enum Place {
    Here(PathBuf),
    There(Address),
}

impl Place {
    fn of(path: &Path) -> Result<Self, Failure> {
        match Address::parse(path) {
            None => Ok(Place::Here(path.to_owned())),
            Some(Ok(address)) => Ok(Place::There(address)),
            Some(Err(line)) => Err(Failure(line)),
        }
    }

    /// As messages call it.
    fn shown(&self) -> PathBuf {
        match self {
            Place::Here(path) => path.clone(),
            Place::There(address) => PathBuf::from(address.to_string()),
        }
    }
}

/// Copies, if one of both is a URL.
pub(super) fn run(args: &Args, access: &Access) -> Option<Outcome> {
    let (src, dst) = match (Place::of(&args.src), Place::of(&args.dst)) {
        (Ok(Place::Here(_)), Ok(Place::Here(_))) => return None,
        (Ok(src), Ok(dst)) => (src, dst),
        (Err(failure), _) | (_, Err(failure)) => return Some(Outcome::Failed(failure)),
    };
    memory::end_with(&src.shown());
    Some(convert(args, access, &src, &dst).into())
}

fn convert(args: &Args, access: &Access, src: &Place, dst: &Place) -> Result<(), Failure> {
    if let (Place::There(src), Place::There(dst)) = (src, dst) {
        check_apart(src, dst)?;
    }
    if let (Place::Here(path), Place::There(address)) = (src, dst) {
        if let Ok(Some(_)) = Walk::of(path) {
            return Err(Failure::new(path, "is a directory without chunks.b2frame; expected one frame to upload"));
        }
        if let Some((_, file)) = encode::source(args)? {
            encode::check_name(args)?;
            return upload_array(args, access, file, address);
        }
    }
    if args.array.is_given() {
        return Err(Failure::new(
            &src.shown(),
            "is not a NumPy file (.npy); expected one with --chunks, --blocks, --codec, --level or --filters",
        ));
    }
    match (src, dst) {
        (Place::There(src), Place::Here(path)) if decode::is_meant(args) => {
            let target = frames::to_be(path)?;
            let replaced = check_found(&target, args.force)?;
            decode::check_file(&target, replaced.as_ref())?;
            decode::write(args, decode::Source::Remote(open(src, access)?.0), &target, replaced)?;
            say_made(path, "a NumPy file")
        }
        (Place::There(src), Place::Here(path)) => download(args, open(src, access)?, path),
        (_, Place::There(address)) => {
            let (copy, layout) = match src {
                Place::Here(path) => {
                    let (location, layout) = frames::existing(path)?;
                    (FrameCopy::of(&location).map_err(frames::damaged)?, layout)
                }
                Place::There(src) => {
                    let (store, _) = open(src, access)?;
                    let layout = store.layout();
                    (FrameCopy::over(store)?, layout)
                }
            };
            upload(args, access, &copy, target_layout(args, layout), address)
        }
        (Place::Here(_), Place::Here(_)) => Ok(()),
    }
}

/// The layout of the copy: what goes elsewhere or comes from there stays what it is, unless another layout is asked for.
fn target_layout(args: &Args, source: Layout) -> Layout {
    args.show.map_or(source, Layout::from)
}

/// Prints what was made.
fn say_made(dst: &Path, what: &str) -> Result<(), Failure> {
    let line = format!("{}: made {what}\n", plain(dst));
    output::written(io::stdout().write_all(line.as_bytes()))
}

/// Opens a source. Answers too what beside its URL says which object it is.
fn open(src: &Address, access: &Access) -> Result<(Arc<RemoteStore>, String), Failure> {
    let Connected { client, path, origin } = reach(src, access)?;
    let options = Options {
        // Others' commits are looked for at the end of the copy.
        refresh: std::time::Duration::ZERO,
        unsafe_immutable: access.unsafe_immutable,
        cache_bytes: CACHE,
        ..Options::default()
    };
    let resources = Resources::new(Budgets { cache_bytes: 0, ..Budgets::default() });
    match RemoteStore::open(Arc::clone(&client), &path, options, &resources) {
        Ok(store) => Ok((Arc::new(store), origin)),
        Err(error) if error.errno() == libc::ENOENT && client.can_list() && remote::Walk::of(&client, &path)?.is_some() => {
            Err(Failure::new(&path, "is a prefix without chunks.b2frame; expected one frame to download or copy"))
        }
        Err(error) => Err(no_such_object(error).into()),
    }
}

fn reach(address: &Address, access: &Access) -> Result<Connected, Failure> {
    connect(address, access).map_err(|what| Failure::new(Path::new(&address.to_string()), what))
}

/// A copy on this machine, which has its name when it is whole. One that was interrupted is gone on with.
fn download(args: &Args, (source, origin): (Arc<RemoteStore>, String), path: &Path) -> Result<(), Failure> {
    let to = target_layout(args, source.layout());
    let dst = frames::to_be(path)?;
    let replaced = check_found(&dst, args.force)?;
    let (tag, url) = (source.tag(), source.path());
    let copy = FrameCopy::over(source)?;
    // An object has no mode.
    mask(0o666, to);
    let state = format!("{origin} {} {} {to:?}", url.display(), tag.line());
    let mut resume = if tag.tells() { Resume::open(&dst, &state, copy.rooms().len(), None) } else { None };
    let new = NewFrame { replaced, resumed: resume.as_ref().map(Resume::unfinished), ..NewFrame::default() };
    let mut goes_on = "begins anew";
    // Also if this one does not get as far as that.
    resume.as_ref().map(Resume::leave);
    let fill = |target: &dyn FrameStore, progress: &mut dyn FnMut(u64) -> bool| {
        let Need { bytes, files } = copy.need(to);
        let there = resume.as_ref().map_or((0, 0), |resume| (resume.bytes(), resume.count() as u64));
        check_room(Need { bytes: bytes.saturating_sub(there.0), files: files.saturating_sub(there.1) }, target)?;
        let done = copy.run_resumed(target, resume.as_mut(), &mut |len| progress(len.into()));
        let is_to_stay = matches!(done, Ok(false) | Err(StoreError::Io { .. }));
        match &resume {
            Some(resume) if is_to_stay && resume.leave() => goes_on = "goes on with the chunks that are there",
            Some(resume) => resume.abandon(),
            None => {}
        }
        Ok(done?)
    };
    let made = fill_new(&dst, copy.bytes(), || copy.create(&dst, to, new.clone()), fill);
    match made {
        Ok(target) => {
            target.close()?;
            resume.iter_mut().for_each(Resume::end);
            say_made(
                dst.path(),
                match to {
                    Layout::Contiguous => "a contiguous frame, one file",
                    Layout::Sparse => "a sparse frame, a directory with a file for each chunk",
                },
            )
        }
        Err(_) if is_interrupted() => {
            let what = if replaced.is_some() { "what was there is as it was" } else { "no frame was made" };
            Err(Failure::new(dst.path(), format_args!("interrupted; {what}, and the same command {goes_on}")))
        }
        Err(Failure(line)) if goes_on != "begins anew" => Err(Failure(format!("{line}; the same command {goes_on}"))),
        Err(failure) => Err(failure),
    }
}

fn upload(args: &Args, access: &Access, copy: &FrameCopy, to: Layout, dst: &Address) -> Result<(), Failure> {
    let begin = |new: &NewUpload<'_>| match to {
        Layout::Sparse => Upload::sparse(new, copy.rooms().len() as u64),
        Layout::Contiguous => Upload::contiguous(new, &copy.image, copy.rooms()),
    };
    let fill = |target: &Upload, progress: &mut dyn FnMut(u64) -> bool| copy.run(target, &mut |len| progress(len.into()));
    send(args, access, dst, (copy.bytes(), copy.rooms().len() as u64), begin, fill)
}

fn upload_array(args: &Args, access: &Access, file: NpyFile, dst: &Address) -> Result<(), Failure> {
    let shown = PathBuf::from(dst.to_string());
    if args.show.map(Layout::from) == Some(Layout::Contiguous) {
        return Err(Failure::new(
            &shown,
            "is to be one object, whose header comes before chunks of lengths that nobody knows yet; expected --show sparse, or a \
             frame on this machine first",
        ));
    }
    let new = args.array.new_array();
    let copy = ArrayCopy::of(file, &new, system::caches())?;
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let begin = |new: &NewUpload<'_>| Upload::sparse(new, copy.count());
    let fill = |target: &Upload, progress: &mut dyn FnMut(u64) -> bool| copy.run(target, threads, progress);
    send(args, access, dst, (copy.bytes(), copy.count()), begin, fill)
}

/// Makes a frame at a URL, of so many bytes and chunks, that `begin` begins and `fill` fills.
fn send(
    args: &Args,
    access: &Access,
    dst: &Address,
    (bytes, chunks): (u64, u64),
    begin: impl FnOnce(&NewUpload<'_>) -> crate::store::Result<Upload>,
    fill: impl FnOnce(&Upload, &mut dyn FnMut(u64) -> bool) -> crate::store::Result<bool>,
) -> Result<(), Failure> {
    let shown = PathBuf::from(dst.to_string());
    if dst.is_http() {
        return Err(Failure::new(
            &shown,
            "is on a web server, and b2fuse only reads from those; expected a URL of an object store",
        ));
    }
    interruptible(&shown)?;
    let Connected { client, path, .. } = reach(dst, access)?;
    let new = NewUpload { client: &client, path: &path, replace: args.force };
    let target = begin(&new)?;
    // What was replaced and cannot be removed is worth a word.
    log::start(log::Target::AfterSuccess, ::log::LevelFilter::Warn);
    let bar = progress::of_chunks_and_bytes(bytes);
    let mut count = 0;
    let done = fill(&target, &mut |len| {
        count += 1;
        bar.set_message(format!("{count} of {chunks}"));
        bar.inc(len);
        !is_interrupted()
    });
    bar.finish_and_clear();
    let next = match target.layout() {
        Layout::Sparse => "the same command goes on with the chunks that are there",
        Layout::Contiguous => "the same command begins anew",
    };
    match done {
        Ok(true) => say_made(
            &shown,
            match target.layout() {
                Layout::Contiguous => "a contiguous frame, one object",
                Layout::Sparse => "a sparse frame, an object for each chunk",
            },
        ),
        _ if is_interrupted() => {
            let what = if args.force { "what was there is as it was" } else { "no frame was made" };
            Err(Failure::new(&shown, format_args!("interrupted; {what}, and {next}")))
        }
        Ok(false) => Err(Failure::new(&shown, "was stopped")),
        Err(error @ StoreError::Io { .. }) => Err(Failure::from_text(format_args!("{error}; {next}"))),
        Err(error) => Err(Failure::from_text(error)),
    }
}

/// # Errors
/// One of both is the other, or is in it.
fn check_apart(src: &Address, dst: &Address) -> Result<(), Failure> {
    let failed = |reason: String| Err(Failure::new(Path::new(&dst.to_string()), reason));
    if (src.kind(), src.bucket()) != (dst.kind(), dst.bucket()) {
        return Ok(());
    }
    let (from, to) = (src.key(), dst.key());
    if from == to {
        return failed("is SRC itself; expected another name".to_owned());
    }
    if to.prefix_matches(&from) {
        return failed(format!("lies inside {src}; expected a place outside"));
    }
    if from.prefix_matches(&to) {
        return failed(format!("holds {src}; expected a new name"));
    }
    Ok(())
}
