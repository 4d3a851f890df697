//! `b2fuse mount`: looks at everything that can be wrong while there is someone to tell, mounts, goes to the background, and serves.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::ArgAction;
use log::{LevelFilter, debug, error, info, warn};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::background::{self, Side, Starter};
use super::frames::{self, Links};
use super::log::Target;
use super::options::{self, Options, Show, SpillTo, TreeOptions};
use super::{End, Failure, hangup_ignored, memory, panic, remount, strangers, wait};
use crate::format::Layout;
use crate::format::plain::plain;
use crate::fs::kernel::{self, Access, FS_TYPE};
use crate::fs::session::{Config, MountRequest, Mounted, Signal};
use crate::store::local::{self, FileBackend, mounts};
#[cfg(feature = "remote")]
use crate::store::remote::{Access as RemoteAccess, Address, without_secrets};
use crate::store::times::Records;
use crate::store::{
    Budgets, CframeStore, FrameStore, Location, NewFrame, OpenOptions, Resources, SframeStore, in_words, sidecar,
};
use crate::view::decoded::band_file::Directory;
use crate::view::{
    ArrayView, BandFiles, Blocks, ContiguousView, Decoded, FileSystem, FrameView, Rules, Shown, Single, SparseView, ViewError,
};

#[cfg(feature = "remote")]
mod opening;
#[cfg(feature = "remote")]
mod remote;
mod tree;

/// Event loops: half of them may wait for the disk at one time. More cost a round trip nothing.
const THREADS: usize = 8;
/// Bytes of chunks kept in memory.
const CACHE_SIZE: u64 = 256 << 20;

/// Mount a frame in its other layout or decompressed, or a directory of frames; also at a URL
///
/// The mount serves in the background until it is unmounted. This command returns when the mount can be used, and its exit code says whether
/// it can. A file is shown as a directory of chunk files. A directory is shown as one file: in the directory MOUNTPOINT, with SOURCE's
/// name, or as MOUNTPOINT itself if that is a file. With --show npy or raw, the data of a frame is shown, decompressed, as one file. A directory that is no frame is shown with all frames in it. A frame at a URL is shown for reading, as a directory of chunk files if --show says nothing else; a prefix of a bucket with frames beneath it as a directory of frames. b2fuse-views(7) says what reading and writing the mount does.
#[derive(clap::Args)]
#[command(after_long_help = "\
Options of -o:
  Words as in mount(8) and fstab, separated by commas. A backslash takes a comma as part of a value.

  ro, rw                   accept no writes; accept them (default)
  allow_other              let all users in, as far as modes allow
  allow_root               let root in; MOUNTPOINT must be a directory
  nodefault_permissions    do not enforce modes; not with allow_other or allow_root
  uid=, gid=               owner and group of everything that is shown, by name or number
  umask=, fmask=, dmask=   octal permission bits that are taken away: from all, files, directories
  fsname=NAME              what lists of mounts call SOURCE
  auto_unmount             unmount if the daemon dies
  nosuid, nodev, noexec, noatime, nodiratime, sync, dirsync, and their opposites
  remount                  change these flags, but sync and dirsync, or ro and rw of a mount; one
                           that began read-only stays so
  nouser_xattr             no extended attributes; saves a request for each file that is written
  follow_links             with ro: follow links of your own in a directory, see b2fuse-views(7)
  wait=SECONDS             how long to wait for a daemon of SOURCE that is ending (default 30)
  low_latency              spend processor time to serve single requests faster: see below
  dtype=TYPE               with --show npy: what the items of arrays are that do not say it, such as <f4
  b2z=dir                  in a directory of frames: show archives of Python-Blosc2 (.b2z) as
                           directories, for reading; b2z=file is the default
  suffixes=A:B, frames=GLOB, noframes=GLOB, cross, entry_timeout=SECONDS, attr_timeout=SECONDS
                           of a directory of frames: see b2fuse-views(7)
  endpoint=, region=, anonymous, headers=, refresh=, timeout=, unsafe-immutable
                           of a frame at a URL: see below
  locking, create, show=, cache_size=, spill=, threads=, connections=, disk_cache=, log_file=,
  log_level=
                           as the long options; low_latency and user_xattr have opposites with no
  Words for fstab alone (noauto, nofail, _netdev, x-...) are accepted and ignored.

Frames at URLs:
  s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY
                           in S3 or what speaks its protocol, Google Cloud Storage, Azure: an object,
                           or a prefix with chunks.b2frame and chunk files; or a prefix with frames
                           beneath it, without a KEY the whole bucket
  abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY
                           the same, with the account's name
  https://HOST/PATH        an object on a web server that answers ranges; user info and query (as of
                           signed URLs) are sent, and shown nowhere

  -o endpoint=URL          another place of the store: http://HOST:PORT or https://HOST
  -o region=NAME           of a bucket
  -o anonymous             do not sign requests, as for public buckets; the default if there are no
                           credentials
  -o headers=FILE          of https://: send these headers, a line Name: value for each; the file must
                           be yours and hidden from others
  -o refresh=SECONDS       how often to look for what others have committed (default 5)
  -o timeout=SECONDS       how long to wait for an answer, trying again meanwhile (default 30)
  -o unsafe-immutable      read from a server that does not tell states of an object apart: nobody
                           may change it

  Credentials are those of the providers' own programs: AWS_ACCESS_KEY_ID and other AWS_ variables,
  profiles in ~/.aws; GOOGLE_APPLICATION_CREDENTIALS, gcloud's application default;
  AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY and other AZURE_ variables; and where a cloud
  gives them to its machines, these. HTTPS_PROXY, HTTP_PROXY and NO_PROXY name proxies.

Low latency:
  With -o low_latency, in root's mounts in a virtual machine of at most 8 cores, the kernel keeps
  idle cores awake while requests come in quick succession. That holds for the whole machine, and
  while the daemon is stopped (SIGSTOP). The default uses no such means.

Signals:
  SIGTERM, SIGINT   end the mount as b2fuse umount does; the log names what is not in SOURCE
  SIGHUP            open the log file again; with -f at a terminal, end the mount
  SIGUSR1           write counts of the chunk cache, or of decoded blocks, to the log

Log:
  Without /dev/log, the daemon writes a log of its own in /run/b2fuse (root) or
  $XDG_RUNTIME_DIR/b2fuse, 1 MiB at most, and removes it at the end unless it holds a warning.
  The daemon never waits for its log: messages that cannot be written are dropped and counted.
  A --log-file is a regular file or a character device. A link to it is followed only if no other
  user could have made it.

fstab and autofs:
  b2fuse must be in /usr/bin or /usr/local/bin.

  /data/pressure.b2frame /mnt/p fuse.b2fuse ro,allow_other,nofail 0 0
  p -fstype=fuse.b2fuse,ro,allow_other :/data/pressure.b2frame

  The second line is of an indirect map of autofs. For systemd, add to the first one
  x-systemd.automount,x-systemd.idle-timeout=60

Examples:
  # A file as a directory of chunk files
  b2fuse mount pressure.b2frame view
  # A directory as one file, view/many.b2frame, for reading
  b2fuse mount --read-only many.b2frame view
  # For other users too, with fstab's options
  b2fuse mount -o ro,allow_other,umask=022 pressure.b2frame view
  # An array for programs that know nothing of Blosc2: view/pressure.b2frame.npy
  b2fuse mount --show npy pressure.b2frame view
  # In its own layout, so that changes by a program are atomic
  b2fuse mount --show contiguous pressure.b2frame view
  # A directory with all its frames, each as one file
  b2fuse mount --show contiguous frames view
  # A frame in a public bucket, as the array that it is
  b2fuse mount -o anonymous,region=eu-west-1 --show npy s3://bucket/path/big.b2nd view
  # All frames beneath a prefix, each as one file
  b2fuse mount --show contiguous s3://bucket/path view
  # With a server of one's own, keeping what was read for the next mount
  b2fuse mount -o endpoint=http://127.0.0.1:9000 --disk-cache cache s3://bucket/a.b2nd view
  # A new frame: copy a sparse frame to the mount, and new.b2frame is the file
  b2fuse mount --create new.b2frame view")]
pub(super) struct Args {
    /// Options as in mount(8) and fstab: ro, allow_other, fsname=NAME, uid=USER, umask=OCTAL, ...
    #[arg(short = 'o', value_name = "OPTION,...")]
    options: Vec<OsString>,
    /// Accept no writes
    #[arg(short, long)]
    read_only: bool,
    /// What to show: the layout that SOURCE does not have, or a named one, which may be SOURCE's own; or its data, decompressed [default: other]
    #[arg(long, value_name = "VIEW", ignore_case = true)]
    show: Option<Show>,
    /// If SOURCE does not exist, make a new contiguous frame. The mount is empty until a sparse frame is copied into it
    #[arg(long)]
    create: bool,
    /// Follow the library's locking, with the frames' own lock files [default: if $BLOSC_LOCKING is set]
    #[arg(long)]
    locking: bool,
    /// Bytes of chunks to keep in memory, with K, M, G or T [default: 256M; of a frame at a URL 96M]
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    cache_size: Option<u64>,
    /// With --show npy or raw: where decoded blocks go that are needed again and find no room in memory, in files without names; none
    /// decodes them again [default: the directory for temporary files]
    #[arg(long, value_name = "DIR|none")]
    spill: Option<OsString>,
    /// Of a remote frame: requests at one time [default: 64]
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "N", value_parser = super::remote_args::connections)]
    connections: Option<usize>,
    /// Of a remote frame: keep chunks in this directory for later mounts, SIZE bytes of them with K, M, G or T [default size: 10G]
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "DIR[:SIZE]")]
    disk_cache: Option<OsString>,
    /// Threads that serve requests; at least 4 run [default: 8]
    #[arg(long, value_name = "N", value_parser = options::threads)]
    threads: Option<usize>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Where to write messages [default: the system's log; with -f, stderr]
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Log messages of this level and above [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = options::levels(), ignore_case = true, hide_possible_values = false)]
    log_level: Option<LevelFilter>,
    /// Log more; twice for everything
    #[arg(short, action = ArgAction::Count)]
    verbose: u8,
    /// Check everything, and do not mount
    #[arg(long, hide = true)]
    fake: bool,
    /// The frame: a file, shown as a directory of chunk files, or a directory, shown as one file (see --show). Or a directory of frames, or
    /// the URL of a frame or of a prefix with frames beneath it
    source: PathBuf,
    /// Where to show it: a directory; for a frame that is shown as one file, also a file
    mountpoint: PathBuf,
}

/// Everything that is known before the store is opened.
struct Plan {
    /// As the user named it, for messages.
    source: PathBuf,
    /// The same, from the root on.
    source_path: PathBuf,
    kind: SourceKind,
    /// As the user named it, for messages.
    shown_point: PathBuf,
    read_only: bool,
    cache_size: u64,
    /// Where decoded blocks go that find no room.
    spill: Option<Arc<dyn Directory>>,
    wait: Duration,
    config: Config,
}

/// What is mounted.
enum SourceKind {
    Frame(FramePlan),
    /// A directory of frames.
    Tree(Rules),
    /// A frame in an object store or on a web server.
    #[cfg(feature = "remote")]
    Remote(Box<remote::RemotePlan>),
}

/// What is known of a frame before it is opened.
struct FramePlan {
    /// Where it is, and the layout that it has or will have.
    location: Location,
    layout: Layout,
    /// What is shown: not [`Show::Other`].
    show: Show,
    /// As what the data is shown, if that is what is shown.
    decoded: Option<Decoded>,
    /// It does not exist yet.
    new: bool,
    /// Where a frame that becomes one file is shown.
    shown: Shown,
    locking: bool,
}

pub(super) fn run(args: Args) -> End {
    let mut options = Options::default();
    for list in &args.options {
        if let Err(what) = options.add(list) {
            return End::Usage(what);
        }
    }
    #[cfg(feature = "remote")]
    {
        options.remote.connections = args.connections.unwrap_or(options.remote.connections);
        options.disk_cache = args.disk_cache.clone().or(options.disk_cache);
    }
    if let Err(what) = options.conflict() {
        return End::Usage(what);
    }
    if options.remount {
        return remount::run(&args.mountpoint, &options, &args.options, args.read_only).into();
    }
    #[cfg(feature = "remote")]
    if Address::parse(&args.source).is_none() && (options.remote != RemoteAccess::default() || options.disk_cache.is_some()) {
        return End::Usage(
            "endpoint=, region=, anonymous, headers=, refresh=, timeout=, connections=, unsafe-immutable and disk_cache= are for frames at \
             URLs, and SOURCE is none"
                .to_owned(),
        );
    }
    mount(args, options).unwrap_or_else(End::Failed)
}

fn mount(args: Args, options: Options) -> Result<End, Failure> {
    share_memory();
    memory::end_with(&args.source, 1);
    local::descriptors::raise_limit();
    let wanted = args.log_level.or(options.log_level).unwrap_or(LevelFilter::Info);
    let level = match args.verbose {
        0 => wanted,
        1 => wanted.max(LevelFilter::Debug),
        _ => LevelFilter::Trace,
    };
    let log_file = match args.log_file.as_ref().or(options.log_file.as_ref()) {
        Some(path) => {
            let failed = |error| Failure::new(path, format_args!("cannot open the log file: {}", in_words(&error)));
            Some((local::open_log_file(path).map_err(failed)?, std::path::absolute(path).map_err(failed)?))
        }
        None => None,
    };
    let (foreground, fake) = (args.foreground, args.fake);
    let plan = Plan::new(args, options)?;
    if fake {
        return Ok(End::Done);
    }
    let target = match log_file {
        Some((file, path)) => Target::File(file, path),
        None if foreground => Target::Stderr,
        None => Target::System { point: plan.config.mount.point.clone() },
    };
    if foreground {
        let heard = matches!(target, Target::Stderr);
        super::log::start(target, level);
        let hangup = if heard && io::stderr().is_terminal() { Hangup::Ends } else { Hangup::Reopens };
        let outcome = serve(&plan, hangup, &mut None);
        if let (Err(Failure(line)), false) = (&outcome, heard) {
            error!("{line}");
        }
        return Ok(outcome.map_err(|failure| plan.as_given(failure)).into());
    }
    let side = background::split()
        .map_err(|error| Failure::new(&plan.shown_point, format_args!("cannot fork: {}", in_words(&error))))?;
    match side {
        Side::Starter(outcome) => {
            let failed = |what: &str| {
                let place = super::log::place(&plan.config.mount.point, rustix::process::geteuid().as_raw());
                Failure::new(&plan.shown_point, format_args!("{what}; see {place}"))
            };
            outcome.map_err(|why| why.map_or_else(|| failed("its daemon ended without a word"), Failure))?;
            // The daemon says that it serves; this process may see for itself.
            mounts::answers(&plan.config.mount.point)
                .map_err(|error| failed(&format!("is mounted, but does not answer: {}", in_words(&error))))?;
            Ok(End::Done)
        }
        Side::Daemon(starter) => {
            super::log::start(target, level);
            let mut starter = Some(starter);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| serve(&plan, Hangup::Reopens, &mut starter)));
            let outcome = outcome.unwrap_or_else(|_| Err(Failure(panic::happened().unwrap_or_default())));
            match (&outcome, starter) {
                (Err(Failure(line)), Some(starter)) => {
                    super::log::failed_to_start(line);
                    starter.failed(&plan.as_given(Failure(line.clone())).0);
                }
                (Err(Failure(line)), None) => error!("{line}"),
                (Ok(()), _) => {}
            }
            // It has been told, and stderr may be whose it was.
            Ok(outcome.map_or(End::Code(1), |()| End::Done))
        }
    }
}

impl Plan {
    fn new(args: Args, options: Options) -> Result<Self, Failure> {
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
        if options.follow_links && !read_only {
            return Err(Failure::new(&source, "links are followed only in a read-only mount (-o ro,follow_links)"));
        }
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
                let reason = "is no directory of frames, as suffixes, frames, noframes, cross, b2z and timeouts are for";
                return Err(Failure::new(&source, reason));
            }
            let (frame, point) = FramePlan::new(&source, &args.mountpoint, &options, (create, read_only, locking), wanted)?;
            (SourceKind::Frame(frame), point)
        };
        let spill = args.spill.as_deref().map(SpillTo::from).or_else(|| options.spill.clone());
        let spill = spill_dir(&source, spill, wanted.is_decoded())?;
        let config = config(&options, args.threads.or(options.threads).unwrap_or(THREADS), point, &source_path, flags);
        Ok(Plan {
            source,
            source_path,
            kind,
            shown_point: args.mountpoint,
            read_only,
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
        let (create, locking) = (args.create || options.create, args.locking || options.locking);
        let show = args.show.or(options.show);
        let access = options.remote.clone();
        let (remote, point) = remote::RemotePlan::new(address, &args.mountpoint, &options, access, (create, locking), show)?;
        let spill = args.spill.as_deref().map(SpillTo::from).or_else(|| options.spill.clone());
        let spill = spill_dir(&source, spill, show.unwrap_or_default().is_decoded())?;
        let threads = args.threads.or(options.threads).unwrap_or(remote::THREADS);
        let config = config(&options, threads, point, &source, options.flags | libc::MS_RDONLY);
        Ok(Plan {
            source_path: source.clone(),
            source,
            kind: SourceKind::Remote(Box::new(remote)),
            shown_point: args.mountpoint,
            read_only: true,
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
    Config { mount, threads, overrides: options.overrides(), xattrs: options.xattrs, low_latency: options.low_latency }
}

/// The directory for decoded blocks that find no room.
fn spill_dir(source: &Path, spill: Option<SpillTo>, is_decoded: bool) -> Result<Option<Arc<dyn Directory>>, Failure> {
    let open = |dir: &Path| FileBackend::open(dir).map(|dir| Some(Arc::new(dir) as Arc<dyn Directory>));
    match spill {
        Some(_) if !is_decoded => {
            Err(Failure::new(source, "is shown as it is stored; expected --show npy or --show raw with --spill"))
        }
        Some(SpillTo::Dir(dir)) => open(&dir).map_err(|error| {
            Failure::new(&dir, format_args!("cannot take decoded blocks: {} (--spill none goes without)", in_words(&error)))
        }),
        None if is_decoded => Ok(open(&std::env::temp_dir()).unwrap_or_else(|error| {
            debug!("{}: cannot take decoded blocks: {}", std::env::temp_dir().display(), in_words(&error));
            None
        })),
        Some(SpillTo::Nothing) | None => Ok(None),
    }
}

/// Blocks of arrays in memory, and in files where there is no room.
fn blocks(plan: &Plan) -> Arc<Blocks> {
    Blocks::on_all_cores(plan.cache_size, plan.spill.clone().map(BandFiles::new))
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
        if options.dtype.is_some() && show != Show::Npy {
            return Err(Failure::new(source, "is not shown as npy, which -o dtype= is for; expected --show npy"));
        }
        if new && show != Show::Sparse {
            let reason = "cannot be begun as one file that is shown; expected a frame that exists, or --show sparse";
            return Err(Failure::new(source, reason));
        }
        let (point, on_file) = check_point(mountpoint, source, layout, show)?;
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
        Ok((FramePlan { location: location.called(&path), layout, show, decoded, new, shown, locking }, point))
    }
}
impl Plan {
    /// The same words, with paths as the user named them: in the daemon's log they are good in any directory.
    fn as_given(&self, Failure(line): Failure) -> Failure {
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

/// Where SOURCE is, which layout it has or will have, and whether it is new, if it can be mounted.
fn check_source(source: &Path, create: bool, follow_links: bool) -> Result<(Location, Layout, bool), Failure> {
    let links = if follow_links { Links::Followed } else { Links::Refused };
    match frames::find(source, links)? {
        Some((location, layout)) => Ok((location, layout, false)),
        None if create => Ok((frames::to_be(source)?, Layout::Contiguous, true)),
        None => Err(frames::missing(source, "no such file; expected a Blosc2 frame (--create begins a new one)")),
    }
}

/// Of a SOURCE that cannot be mounted: that the other argument can.
fn swapped(source: &Path, point: &Path) -> Option<Failure> {
    let (location, layout) = frames::find(point, Links::Refused).ok()??;
    let is_frame = layout == Layout::Sparse || strangers::is_frame(&location);
    let reason = format!("is no frame, and {} is one; expected the frame first, and then where to mount it", plain(point));
    is_frame.then(|| Failure::new(source, reason))
}

/// That SOURCE is not in another of our mounts, if it is to be written to: what is staged in it the other would take for its own, and
/// neither could promise what it does of a local file system.
fn check_home(location: &Location) -> Result<(), Failure> {
    let source = location.path();
    let device = match location.stat()? {
        Some(stat) => stat.dev,
        None => {
            let dir = location.backend().itself().and_then(|dir| dir.stat());
            dir.map_err(|error| Failure::new(source, format_args!("cannot be found: {}", in_words(&error))))?.dev
        }
    };
    check_device(source, device, "a frame on a local file system")
}

/// That a device is none of our mounts, where something to be written to was expected.
fn check_device(source: &Path, device: u64, expected: &str) -> Result<(), Failure> {
    match kernel::mount_with(device) {
        Ok(Some(mount)) => {
            let reason = format!(
                "is in the b2fuse mount {} of {}; expected {expected} (--read-only accepts this one)",
                mount.point.display(),
                Path::new(&mount.source).display()
            );
            Err(Failure::new(source, reason))
        }
        Ok(None) => Ok(()),
        Err(error) => Err(Failure::new(source, format_args!("cannot list mounts: {}", in_words(&error)))),
    }
}

/// A name for the table of mounts, which everybody can read.
fn shown(name: &OsStr) -> OsString {
    #[cfg(feature = "remote")]
    return without_secrets(name).into_owned();
    #[cfg(not(feature = "remote"))]
    name.to_owned()
}

/// What is said of a mount that nobody answers for.
const DEAD: &str = "is a mount whose daemon has died; unmount it first (b2fuse umount)";

/// The mount point without symbolic links, and whether it is a file, if that layout can be shown there.
fn check_point(point: &Path, source: &Path, layout: Layout, show: Show) -> Result<(PathBuf, bool), Failure> {
    let failed = |reason: String| Err(Failure::new(point, reason));
    let is_one_file = show == Show::Contiguous || show.is_decoded();
    let wanted = if is_one_file { "directory or file" } else { "directory" };
    let on_file = match local::stat(point) {
        Ok(Some(stat)) if stat.is_dir() => false,
        Ok(Some(stat)) if stat.is_file() && is_one_file => true,
        Ok(Some(stat)) if stat.is_file() => {
            let source = source.display();
            let file = if layout == Layout::Contiguous { "one too, " } else { "" };
            return failed(format!("is a file, and {source} is {file}to be shown as a directory; expected one to mount on"));
        }
        Ok(Some(_)) => return failed(format!("is no {wanted}; expected one to mount on")),
        Ok(None) => return failed(format!("no such {wanted}; expected one to mount on (mkdir makes it)")),
        Err(error) => {
            return failed(match error.raw_os_error() {
                Some(libc::ENOTCONN) => DEAD.into(),
                _ => format!("cannot be used as mount point: {}", in_words(&error)),
            });
        }
    };
    let real =
        local::resolve(point).map_err(|error| Failure::new(point, format_args!("cannot be found: {}", in_words(&error))))?;
    mounted_already(point, &real)?;
    Ok((real, on_file))
}

/// That nothing of ours is mounted on the mount point, which is that without symbolic links.
fn mounted_already(point: &Path, real: &Path) -> Result<(), Failure> {
    let failed = |reason: String| Err(Failure::new(point, reason));
    match kernel::mounted_at(real) {
        Ok(Some(mount)) if mount.fs_type == FS_TYPE => {
            // Its attributes may still be in the kernel's caches.
            if mounts::answers(real).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN)) {
                return failed(DEAD.into());
            }
            failed(format!("is busy: {} is mounted there already (b2fuse umount)", Path::new(&mount.source).display()))
        }
        _ => Ok(()),
    }
}

/// What SIGHUP does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hangup {
    /// The terminal is gone that messages go to, and so is whoever sat there.
    Ends,
    /// The log file has got another name, if there is one.
    Reopens,
}

/// Opens, mounts, leaves who waits for that when the mount answers, and returns when all is over. Ends at once if nobody waits any more.
fn serve(plan: &Plan, hangup: Hangup, starter: &mut Option<Starter>) -> Result<(), Failure> {
    let wanted: &[i32] = match hangup {
        Hangup::Ends if hangup_ignored() => &[SIGTERM, SIGINT, SIGUSR1],
        _ => &[SIGTERM, SIGINT, SIGHUP, SIGUSR1],
    };
    let mut signals = Signals::new(wanted)
        .map_err(|error| Failure::new(&plan.shown_point, format_args!("cannot handle signals: {}", in_words(&error))))?;
    let failed = |error: ViewError| match error {
        ViewError::Store(error) => frames::damaged(error),
        error => Failure::new(&plan.source, error),
    };
    let say = |text: &str| {
        let heard = super::log::announce(text);
        let Failure(text) = plan.as_given(Failure(text.to_owned()));
        match starter {
            Some(starter) => starter.say(&text),
            None if heard => {}
            None => eprintln!("{text}"),
        }
    };
    let open = || wait::until_released(plan.wait, say, failed, || open(plan));
    #[cfg(feature = "remote")]
    let view = match &plan.kind {
        SourceKind::Remote(_) => opening::unless_ended(&mut signals, hangup, &plan.source, open)?,
        _ => open()?,
    };
    #[cfg(not(feature = "remote"))]
    let view = open()?;
    let mounted = match Mounted::start(view.clone(), &plan.config) {
        Ok(mounted) => mounted,
        Err(error) => {
            if let Err(error) = view.shutdown() {
                error!("{error}");
            }
            return Err(Failure::from_text(error));
        }
    };
    panic::serving();
    let control = mounted.control();
    let stop = signals.handle();
    let thread = std::thread::Builder::new().name("b2fuse-signals".into()).spawn({
        let control = control.clone();
        move || {
            for signal in signals.forever() {
                match signal {
                    SIGUSR1 => control.send(Signal::Report),
                    SIGHUP if hangup == Hangup::Reopens => super::log::reopen(),
                    _ => control.send(Signal::End),
                }
            }
        }
    });
    if let Err(error) = thread {
        error!("signals are not handled: {}", in_words(&error));
    }
    if let Some(starter) = starter {
        // Else the mount is taken away again.
        starter.leave().map_err(|error| {
            Failure::new(&plan.shown_point, format_args!("cannot go to the background: {}", in_words(&error)))
        })?;
        super::log::leave();
    }
    info!("{}: mounted on {}", plan.source.display(), plan.config.mount.point.display());
    memory::serving();
    if starter.take().is_some_and(|starter| !starter.ready()) {
        control.send(Signal::End);
    }
    let outcome = mounted.run().map_err(failed);
    stop.close();
    outcome
}

fn open(plan: &Plan) -> Result<Arc<dyn FileSystem>, ViewError> {
    let frame = match &plan.kind {
        SourceKind::Tree(rules) => return tree::open(plan, rules),
        #[cfg(feature = "remote")]
        SourceKind::Remote(remote) => return remote::open(plan, remote),
        SourceKind::Frame(frame) => frame,
    };
    let (read_only, locking) = (plan.read_only, frame.locking);
    // Chunks are kept decoded, or as they are.
    let cache_bytes = if frame.decoded.is_some() { 0 } else { plan.cache_size };
    let resources = Resources::new(Budgets { cache_bytes, ..Budgets::default() });
    let skip_damaged = frame.decoded.is_some();
    let options = OpenOptions { read_only, locking, resources, skip_damaged, hold_staged: !read_only, ..OpenOptions::default() };
    let store: Arc<dyn FrameStore> = match frame.layout {
        _ if frame.new => Arc::new(CframeStore::create_at(&frame.location, options, NewFrame::default())?),
        Layout::Contiguous => Arc::new(CframeStore::open_at(&frame.location, options)?),
        Layout::Sparse => Arc::new(SframeStore::open_at(&frame.location, options)?),
    };
    if let Some(decoded) = &frame.decoded {
        let view = ArrayView::new(store, frame.shown.clone(), decoded.clone(), blocks(plan))?;
        return Ok(if locking { Arc::new(view.taking_turns(None)?) } else { Arc::new(view) });
    }
    match frame.show {
        Show::Contiguous => {
            let lock_file = match &frame.shown {
                Shown::As(name) => Some([name, OsStr::new(sidecar::SUFFIX)].into_iter().collect()),
                Shown::OnFile => None,
            };
            shared(plan, locking, ContiguousView::new(store, frame.shown.clone(), read_only)?, lock_file)
        }
        _ => {
            let view = SparseView::new(store, read_only)?;
            let records =
                Records::of_user().inspect_err(|error| debug!("times of chunk files are not kept: {}", in_words(error)));
            let view = if let Ok(records) = records { view.keeping_times(records) } else { view };
            shared(plan, locking, view, Some(sidecar::SUFFIX.into()))
        }
    }
}

/// With turns, if these are asked for. `lock_file` is what the lock file is called in the mount.
fn shared<V: FrameView>(
    plan: &Plan,
    locking: bool,
    view: Single<V>,
    lock_file: Option<OsString>,
) -> Result<Arc<dyn FileSystem>, ViewError> {
    if !locking {
        return Ok(Arc::new(view));
    }
    if lock_file.is_none() {
        let point = plan.shown_point.display();
        warn!("{point}: its lock file lies outside of the mount: clients of the mount take no turns with SOURCE's");
    }
    Ok(Arc::new(view.taking_turns(lock_file)?))
}

/// Whether the library would use locks unasked.
fn locking_by_default() -> bool {
    std::env::var_os("BLOSC_LOCKING").is_some_and(|value| !value.is_empty() && value != "0")
}

/// The frame's path with the name that the user has for it.
fn named(source: &Path, location: &Location) -> PathBuf {
    if source.file_name().is_some() { source.to_owned() } else { location.real_path() }
}

/// Has all threads take memory from one place. By default each has its own, and keeps there what it has once freed: after some commits
/// of a million chunks, an index for every thread.
#[expect(unsafe_code, reason = "mallopt(3)")]
fn share_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
