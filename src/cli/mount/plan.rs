//! What is to be mounted, where and how: all that can be found out before the store is opened.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::Failure;
use super::super::frames;
use super::super::options::{Options, TreeOptions};
use super::point::{self, Fits};
#[cfg(feature = "remote")]
use super::remote;
use super::source::{check_home, check_source, named, swapped};
use super::spill::SpillPlan;
use super::{Args, tree};
use crate::format::Layout;
use crate::format::plain::plain;
use crate::fs::kernel::Access;
use crate::fs::session::{Config, MountRequest};
#[cfg(feature = "remote")]
use crate::store::remote::{Address, without_secrets};
use crate::store::{Location, in_words};
use crate::view::{Decoded, Rules, Show, Shown};

/// Event loops: half of them may wait for the disk at one time. More cost a round trip nothing.
const THREADS: usize = 8;
/// Bytes of chunks kept in memory.
const CACHE_SIZE: u64 = 256 << 20;

/// Everything that is known before the store is opened.
pub(super) struct Plan {
    /// As the user named it, for messages.
    pub(super) source: PathBuf,
    /// The same, from the root on.
    pub(super) source_path: PathBuf,
    pub(super) kind: SourceKind,
    /// As the user named it, for messages.
    pub(super) shown_point: PathBuf,
    pub(super) read_only: bool,
    /// It was asked for a mount that takes writes.
    pub(super) asked_to_write: bool,
    pub(super) cache_size: u64,
    /// Where decoded blocks go that find no room.
    pub(super) spill: SpillPlan,
    pub(super) wait: Duration,
    pub(super) config: Config,
}

/// What is mounted.
pub(super) enum SourceKind {
    Frame(FramePlan),
    /// A directory of frames.
    Tree(Rules),
    /// A frame in an object store or on a web server.
    #[cfg(feature = "remote")]
    Remote(Box<remote::RemotePlan>),
}

/// What is known of a frame before it is opened.
pub(super) struct FramePlan {
    /// Where it is, and the layout that it has or will have.
    pub(super) location: Location,
    pub(super) layout: Layout,
    /// What is shown: not [`Show::Other`].
    pub(super) show: Show,
    /// As what the data is shown, if that is what is shown.
    pub(super) decoded: Option<Decoded>,
    /// It does not exist yet.
    pub(super) new: bool,
    /// Where a frame that becomes one file is shown.
    pub(super) shown: Shown,
    pub(super) locking: bool,
    /// See [`Options::shows_lists`].
    pub(super) lists: bool,
}

impl Plan {
    pub(super) fn new(args: Args, options: Options) -> Result<Self, Failure> {
        #[cfg(feature = "remote")]
        if let Some(address) = Address::parse(&args.source) {
            let address = address.map_err(Failure)?;
            return Self::remote(args, options, address);
        }
        let source = args.source;
        let create = args.create || options.create;
        let mut flags = options.flags;
        if args.read_only {
            flags |= libc::MS_RDONLY;
        }
        let wanted = args.show.or(options.show).unwrap_or_default();
        let is_tree = tree::is_tree(&source);
        // Beside frames, a tree has files that can be written.
        if wanted.is_decoded() && !is_tree {
            flags |= libc::MS_RDONLY;
        }
        let read_only = flags & libc::MS_RDONLY != 0;
        let source_path = std::path::absolute(&source)
            .map_err(|error| Failure::new(&source, format_args!("cannot be found: {}", in_words(&error))))?;
        let locking = args.locking || options.locking || locking_by_default();
        let (kind, point) = if is_tree {
            let rules = tree::rules(&source, &options, (create, locking), args.show, read_only)?;
            (SourceKind::Tree(rules), tree::check_point(&args.mountpoint, &source, read_only)?)
        } else {
            if let Some(failure) = tree::linked(&source) {
                return Err(failure);
            }
            if options.tree != TreeOptions::default() {
                let reason =
                    "is not a directory of frames; expected one with -o suffixes, frames, noframes, cross, b2z or timeouts";
                return Err(Failure::new(&source, reason));
            }
            let (frame, point) = FramePlan::new(&source, &args.mountpoint, &options, (create, read_only, locking), wanted)?;
            (SourceKind::Frame(frame), point)
        };
        let spill = SpillPlan::new(args.spill.as_deref(), &options, wanted.is_decoded())?;
        let config = config(&options, args.threads.or(options.threads).unwrap_or(THREADS), point, &source_path, flags);
        Ok(Plan {
            source,
            source_path,
            kind,
            shown_point: args.mountpoint,
            read_only,
            asked_to_write: options.read_write,
            cache_size: args.cache_size.or(options.cache_size).unwrap_or(CACHE_SIZE),
            spill,
            wait: options.wait,
            config,
        })
    }

    /// Of a frame at a URL.
    #[cfg(feature = "remote")]
    fn remote(args: Args, options: Options, address: Address) -> Result<Self, Failure> {
        // Neither messages nor the table of mounts have a secret of it.
        let source = PathBuf::from(address.to_string());
        let show = args.show.or(options.show);
        let access = options.remote.clone();
        let (remote, point) = remote::RemotePlan::new(address, &args.mountpoint, &options, access, show)?;
        let spill = SpillPlan::new(args.spill.as_deref(), &options, show.unwrap_or_default().is_decoded())?;
        let threads = args.threads.or(options.threads).unwrap_or(remote::THREADS);
        let config = config(&options, threads, point, &source, options.flags | libc::MS_RDONLY);
        Ok(Plan {
            source_path: source.clone(),
            source,
            kind: SourceKind::Remote(Box::new(remote)),
            shown_point: args.mountpoint,
            read_only: true,
            asked_to_write: options.read_write,
            cache_size: args.cache_size.or(options.cache_size).unwrap_or(remote::CACHE_SIZE),
            spill,
            wait: options.wait,
            config,
        })
    }
}

/// What the mount is asked of the kernel.
fn config(options: &Options, threads: usize, point: PathBuf, source: &Path, flags: libc::c_ulong) -> Config {
    let mount = MountRequest {
        point,
        fsname: options.fsname.as_deref().map_or_else(|| source.as_os_str().to_owned(), shown),
        flags,
        access: options.access,
        auto_unmount: options.auto_unmount,
        default_permissions: options.default_permissions,
    };
    let (overrides, xattrs, low_latency) = (options.overrides(), options.xattrs, options.low_latency);
    Config { mount, threads, overrides, xattrs, low_latency, guarded: true }
}

impl FramePlan {
    /// And the mount point without symbolic links.
    fn new(
        source: &Path,
        mountpoint: &Path,
        options: &Options,
        (create, read_only, locking): (bool, bool, bool),
        show: Show,
    ) -> Result<(Self, PathBuf), Failure> {
        let (location, layout, new) = check_source(source, create, options.follow_links)
            .map_err(|failure| swapped(source, mountpoint).unwrap_or(failure))?;
        if !read_only {
            check_home(&location)?;
        }
        let show = match show {
            Show::Other if layout == Layout::Contiguous => Show::Sparse,
            Show::Other => Show::Contiguous,
            show => show,
        };
        if new && show != Show::Sparse {
            let reason = "does not exist, and --create makes it only in a mount with --show sparse (the default)";
            return Err(Failure::new(source, reason));
        }
        let fits = Fits::one_file(show == Show::Contiguous || show.is_decoded());
        let file = if layout == Layout::Contiguous { "one too, " } else { "" };
        let misfit =
            format!("is a file, and {} is {file}to be shown as a directory; expected a directory to mount on", source.display());
        let (point, on_file) = point::check(mountpoint, fits, Some(&misfit))?;
        if !new {
            let real = location.real_path();
            let shown = source.display();
            let reason = if real == point {
                format!(
                    "is SOURCE itself, which the mount would hide; expected another {}",
                    if on_file { "file" } else { "directory" }
                )
            } else if real.starts_with(&point) {
                format!("lies above {shown}, which the mount would hide")
            } else if point.starts_with(&real) {
                format!("lies inside {shown}, and the mount would hide a part of it; expected a place outside")
            } else {
                String::new()
            };
            if !reason.is_empty() {
                return Err(Failure::new(mountpoint, reason));
            }
        }
        if on_file && options.access == Access::Root {
            let reason = "is a file, whose size and times everybody sees; expected a directory for allow_root";
            return Err(Failure::new(mountpoint, reason));
        }
        let decoded = match show {
            Show::Npy => Some(Decoded::Npy(options.dtype.clone())),
            Show::Raw => Some(Decoded::Raw),
            _ => None,
        };
        let name = named(source, &location);
        let shown = match (&decoded, name.file_name()) {
            _ if on_file => Shown::OnFile,
            (Some(decoded), Some(name)) => Shown::As(decoded.name(name)),
            _ => Shown::As(frames::shown_name(&name)),
        };
        // In the daemon's log a path must be good in any directory.
        let path = std::path::absolute(source).unwrap_or_else(|_| source.to_owned());
        Ok((
            FramePlan {
                location: location.called(&path),
                layout,
                show,
                decoded,
                new,
                shown,
                locking,
                lists: options.shows_lists(),
            },
            point,
        ))
    }
}

impl Plan {
    /// The same words, with paths as the user named them: in the daemon's log they are good in any directory.
    pub(super) fn as_given(&self, Failure(line): Failure) -> Failure {
        let given = [(&self.source_path, &self.source), (&self.config.mount.point, &self.shown_point)].into_iter().find_map(
            |(path, given)| {
                let rest = line.strip_prefix(&plain(path).to_string())?;
                // What lies beside it has a name that begins like its own.
                let whole = rest.starts_with([':', '/']);
                let given = plain(given).to_string();
                (whole || rest.starts_with('.') && !given.ends_with(['.', '/'])).then(|| format!("{given}{rest}"))
            },
        );
        Failure(given.unwrap_or(line))
    }
}

/// A name for the table of mounts, which everybody can read.
fn shown(name: &OsStr) -> OsString {
    #[cfg(feature = "remote")]
    return without_secrets(name).into_owned();
    #[cfg(not(feature = "remote"))]
    name.to_owned()
}

/// Whether the library would use locks unasked.
fn locking_by_default() -> bool {
    std::env::var_os("BLOSC_LOCKING").is_some_and(|value| !value.is_empty() && value != "0")
}
