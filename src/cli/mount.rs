//! `b2fuse mount`: looks at everything that can be wrong while there is someone to tell, mounts, goes to the background, and serves.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::ArgAction;
use clap::builder::{OsStringValueParser, TypedValueParser};
use log::{LevelFilter, error};

use super::background::{self, Role};
use super::log::Target;
use super::options::{self, Options};
use super::{Failure, Outcome, memory, panic, remount};
use crate::store::in_words;
use crate::store::local::{self, mounts};
use crate::view::Show;

mod open;
#[cfg(feature = "remote")]
mod opening;
mod plan;
mod point;
#[cfg(feature = "remote")]
mod remote;
mod serve;
mod source;
mod spill;
mod tree;
mod words;

use plan::Plan;
use serve::serve;

/// Mount a frame in its other layout or decompressed, or a directory of frames; also at a URL
///
/// The daemon serves the mount in the background until it is unmounted. This command returns when the mount can be used; its exit
/// code says whether it can. A file is shown as a directory of chunk files. A directory is shown as one file: in the directory
/// MOUNTPOINT, with SOURCE's name, or as MOUNTPOINT itself if that is a file. With --show npy or raw, the decompressed data of a frame
/// is shown as one file. A directory that is not a frame is shown with all frames in it. A frame at a URL is shown read-only, by
/// default as a directory of chunk files. A prefix of a bucket with frames beneath it is shown as a directory of frames.
/// b2fuse-views(7) says what reads and writes of the mount do.
#[derive(clap::Args)]
#[command(after_long_help = "\
Mount options:
  Words of -o, as in mount(8) and fstab, separated by commas. A backslash
  takes a comma as part of a value.

  ro, rw                  read-only; read-write (default)
  allow_other             give all users access, as far as modes allow
  allow_root              give root access; MOUNTPOINT must be a directory
  nodefault_permissions   do not enforce modes; not with allow_other or
                          allow_root
  uid=, gid=              owner and group of all files, by name or number
  umask=, fmask=, dmask=  octal permission bits to remove: from all, from
                          files, from directories
  fsname=NAME             name of SOURCE in lists of mounts
  auto_unmount            unmount if the daemon dies
  nosuid, nodev, noexec, noatime, nodiratime, sync, dirsync
                          flags, and their opposites
  remount                 change these flags (not sync, dirsync), or ro and
                          rw; a mount that began read-only stays read-only
  nouser_xattr            no extended attributes; saves a request for each
                          file written
  follow_links            with ro: follow your own links in a directory;
                          see b2fuse-views(7)
  wait=SECONDS            how long to wait for an ending daemon of SOURCE
                          (default 30)
  low_latency             faster single requests, more processor time: see
                          below
  dtype=TYPE              with --show npy: item type of arrays without one
                          that NumPy knows, such as <f4
  b2z=dir                 in a directory of frames: show archives of
                          Python-Blosc2 (.b2z) as directories, for reading,
                          with --show npy their arrays as NAME.npy;
                          b2z=file is the default
  suffixes=A:B, frames=GLOB, noframes=GLOB, cross,
  entry_timeout=SECONDS, attr_timeout=SECONDS
                          of a directory of frames: see b2fuse-views(7)
  endpoint=, region=, anonymous, headers=, refresh=, timeout=,
  unsafe-immutable        of a frame at a URL: see below
  locking, create, show=, cache_size=, spill=, threads=, connections=,
  disk_cache=, log_file=, log_level=
                          as the long options

  no before user_xattr negates it. Options for fstab only (noauto, nofail,
  _netdev, x-...) are accepted and ignored.

Frames at URLs:
  s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY
      in S3 (or a compatible store), Google Cloud Storage, Azure: an
      object, or a prefix with chunks.b2frame and chunk files; or a prefix
      with frames beneath it; without KEY, the whole bucket
  abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY
      the same, with the account's name
  https://HOST/PATH
      an object on a web server with range requests; user info and query
      (as of signed URLs) are sent, and shown nowhere

  -o endpoint=URL         address of the store: http://HOST:PORT or
                          https://HOST; of Azure, with /ACCOUNT behind it,
                          which is added to an IP address or localhost
  -o region=NAME          region of the bucket
  -o anonymous            do not sign requests, as for public buckets; the
                          default if there are no credentials
  -o headers=FILE         of https://: send these headers, a line
                          Name: value for each; the file must be yours and
                          hidden from others
  -o refresh=SECONDS      how often to look for commits by others
                          (default 5)
  -o timeout=SECONDS      how long to wait for a response, retries included
                          (default 30)
  -o unsafe-immutable     accept a server that does not identify states of
                          an object: nobody may change the object

  Credentials come from the same places as for the providers' tools:
  AWS_ACCESS_KEY_ID, AWS_..., profiles in ~/.aws;
  GOOGLE_APPLICATION_CREDENTIALS, gcloud's application default;
  AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY and other AZURE_
  variables; or, on a cloud's machines, from the cloud itself. HTTPS_PROXY,
  HTTP_PROXY and NO_PROXY name proxies.

Low latency:
  With -o low_latency, in root's mounts in a virtual machine of at most 8
  cores, the kernel keeps idle cores awake while requests come in quick
  succession. That holds for the whole machine, and while the daemon is
  stopped (SIGSTOP). Without the option, idle cores sleep as usual.

Signals:
  SIGTERM, SIGINT  end the mount as b2fuse umount does; the log names what
                   is not in SOURCE
  SIGHUP           open the log file again; with -f at a terminal, end the
                   mount
  SIGUSR1          write counts of the chunk cache, or of decoded blocks,
                   to the log

Log:
  Without /dev/log, the daemon writes a log of its own in /run/b2fuse
  (root) or $XDG_RUNTIME_DIR/b2fuse, at most 1 MiB, and removes it at the
  end unless it holds a warning. The daemon never waits for its log:
  messages that cannot be written are dropped and counted. A --log-file is
  a regular file or a character device. A link to it is followed only if no
  other user could have made it.

fstab and autofs:
  b2fuse must be in /usr/bin or /usr/local/bin.

  /data/pressure.b2frame /mnt/p fuse.b2fuse ro,allow_other,nofail 0 0
  p -fstype=fuse.b2fuse,ro,allow_other :/data/pressure.b2frame

  Line 1 is for fstab, line 2 for an indirect map of autofs. For systemd,
  add to line 1 x-systemd.automount,x-systemd.idle-timeout=60

Examples:
  # A file as a directory of chunk files
  b2fuse mount pressure.b2frame view
  # A directory as one file, view/many.b2frame, for reading
  b2fuse mount --read-only many.b2frame view
  # For other users too, with fstab's options
  b2fuse mount -o ro,allow_other,umask=022 pressure.b2frame view
  # An array for programs without Blosc2: view/pressure.b2frame.npy
  b2fuse mount --show npy pressure.b2frame view
  # In its own layout, so that changes by a program are atomic
  b2fuse mount --show contiguous pressure.b2frame view
  # A directory with all its frames, each as one file
  b2fuse mount --show contiguous frames view
  # An array in a public bucket, as a .npy file
  b2fuse mount -o anonymous --show npy s3://bucket/big.b2nd view
  # All frames beneath a prefix, each as one file
  b2fuse mount --show contiguous s3://bucket/path view
  # On your own server; what was read is kept for the next mount
  b2fuse mount -o endpoint=http://127.0.0.1:9000 s3://bucket/a.b2nd view
  b2fuse mount --disk-cache cache s3://bucket/a.b2nd view
  # A new frame: a sparse frame copied to the mount becomes the file
  b2fuse mount --create new.b2frame view")]
pub(super) struct Args {
    /// Options as in mount(8) and fstab: ro, allow_other, fsname=NAME, uid=USER, umask=OCTAL, ...
    #[arg(short = 'o', value_name = "OPTION,...")]
    options: Vec<OsString>,
    /// Accept no writes
    #[arg(short, long)]
    read_only: bool,
    /// What to show: the layout that SOURCE does not have (other), a named layout (SOURCE's own too), or the decompressed data [default: other]
    #[arg(long, value_name = "VIEW", ignore_case = true)]
    show: Option<Show>,
    /// If SOURCE does not exist, make a new contiguous frame. The mount is empty until a sparse frame is copied into it
    #[arg(long)]
    create: bool,
    /// Use the library's locking, through the frames' own lock files [default: only if $BLOSC_LOCKING is set]
    #[arg(long)]
    locking: bool,
    /// Memory for cached chunks, in bytes or with K, M, G or T [default: 256M; for a frame at a URL 96M]
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    cache_size: Option<u64>,
    /// With --show npy or raw: the directory for unnamed files of decoded blocks that do not fit in memory and are needed again; none
    /// decodes them again [default: the directory for temporary files]
    #[arg(long, value_name = "DIR|none", value_parser = OsStringValueParser::new().try_map(named))]
    spill: Option<OsString>,
    /// For a frame at a URL: how many requests at a time [default: 64]
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "N", value_parser = super::remote_args::connections)]
    connections: Option<usize>,
    /// For a frame at a URL: keep chunks in DIR for later mounts, up to SIZE, in bytes or with K, M, G or T [default size: 10G]
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "DIR[:SIZE]")]
    disk_cache: Option<OsString>,
    /// Number of threads that serve requests at most, 1 to 64; 4 at least [default: 8]
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
    /// Log more (debug); -vv logs everything (trace)
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

/// # Errors
/// There is no name.
fn named(name: OsString) -> Result<OsString, &'static str> {
    if name.is_empty() { Err("expected a directory, or none") } else { Ok(name) }
}

pub(super) fn run(args: Args) -> Outcome {
    let mut options = Options::default();
    for list in &args.options {
        if let Err(what) = options.add(list) {
            return Outcome::Usage(what);
        }
    }
    #[cfg(feature = "remote")]
    {
        options.remote.connections = args.connections.unwrap_or(options.remote.connections);
        options.disk_cache = args.disk_cache.clone().or(options.disk_cache);
    }
    if let Err(what) = words::check(&args, &options) {
        return Outcome::Usage(what);
    }
    if options.remount {
        return remount::run(&args.mountpoint, &options, &args.options, args.read_only).into();
    }
    mount(args, options).unwrap_or_else(Outcome::Failed)
}

fn mount(args: Args, options: Options) -> Result<Outcome, Failure> {
    share_memory();
    memory::end_with(&args.source);
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
        return Ok(Outcome::Done);
    }
    if let Some(line) = point::hides(&plan.config.mount.point, &plan.shown_point, &plan.source) {
        eprintln!("{line}");
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
    let role = background::split()
        .map_err(|error| Failure::new(&plan.shown_point, format_args!("cannot fork: {}", in_words(&error))))?;
    match role {
        Role::Starter(outcome) => {
            let failed = |what: &str| {
                let place = super::log::place(&plan.config.mount.point, rustix::process::geteuid().as_raw());
                Failure::new(&plan.shown_point, format_args!("{what}; see {place}"))
            };
            outcome.map_err(|why| why.map_or_else(|| failed("its daemon ended without an error message"), Failure))?;
            // The daemon says that it serves; this process may see for itself.
            mounts::answers(&plan.config.mount.point)
                .map_err(|error| failed(&format!("is mounted, but does not respond: {}", in_words(&error))))?;
            Ok(Outcome::Done)
        }
        Role::Daemon(starter) => {
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
            Ok(outcome.map_or(Outcome::Code(1), |()| Outcome::Done))
        }
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

/// Has all threads take memory from one place. By default each has its own, and keeps there what it has once freed: after some commits
/// of a million chunks, an index for every thread.
///
/// Each event loop has a buffer of 16 MiB and uses its beginning. Taken from the heap, 128 KiB of each would be written with zeros, so such
/// memory comes from the system. The rest is as the allocator itself sets it once it has released one of these.
#[expect(unsafe_code, reason = "mallopt(3)")]
fn share_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets numbers of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 16 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 32 << 20);
    }
}
