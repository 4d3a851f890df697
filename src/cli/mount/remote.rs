//! A mount of a frame in an object store or on a web server, or of a prefix with frames beneath it: read-only, and opened by the daemon, as
//! no request is made before it is there.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::Failure;
use super::super::options::{Options, Show, TreeOptions, parse_disk_cache};
use super::super::remote::{Connected, connect};
use super::plan::Plan;
use super::point::{self, Fits};
use super::serve::blocks;
use crate::format::Layout;
use crate::fs::kernel;
use crate::store::disk_cache::DiskCache;
use crate::store::remote::{Access, Address, RemoteStore};
use crate::store::{Budgets, FrameStore, Resources, StoreError, in_words, remote};
use crate::view::{ArrayView, ContiguousView, Decoded, FileSystem, RemoteTree, Rules, Shown, SparseView, Timeouts, ViewError};

/// Bytes of memory for what was fetched, where nothing else is asked for.
pub(super) const CACHE_SIZE: u64 = 96 << 20;
/// Of them for what was fetched, where the rest is for what was decoded.
const FETCHED: u64 = 32 << 20;
/// Event loops: each may wait for the store.
pub(super) const THREADS: usize = 32;

/// What is known of it before it is opened.
pub(super) struct RemotePlan {
    address: Address,
    access: Access,
    /// What is shown. Without, the default of a remote frame: its chunks as files.
    show: Option<Show>,
    decoded: Option<Decoded>,
    /// What is shown if it is a prefix with frames beneath it, and whether the options are for such a one.
    rules: Rules,
    is_tree_wanted: bool,
    on_file: bool,
    /// Where chunks are kept for later mounts, and how many bytes of them.
    disk_cache: Option<(PathBuf, Option<u64>)>,
}

impl RemotePlan {
    /// And the mount point without symbolic links.
    pub(super) fn new(
        address: Address,
        point: &Path,
        options: &Options,
        access: Access,
        (create, locking): (bool, bool),
        show: Option<Show>,
    ) -> Result<(Self, PathBuf), Failure> {
        let source = PathBuf::from(address.to_string());
        let failed =
            |option: &str| Err(Failure::new(&source, format_args!("is remote and read-only, for which there is no {option}")));
        if create {
            return failed("--create");
        }
        if locking {
            return failed("--locking");
        }
        if options.follow_links {
            return failed("-o follow_links");
        }
        if options.tree.cross || options.tree.archives {
            return failed(if options.tree.cross { "-o cross" } else { "-o b2z=dir" });
        }
        let is_tree_wanted = options.tree != TreeOptions::default();
        if is_tree_wanted && address.is_http() {
            return Err(Failure::new(&source, "is one frame; -o suffixes, frames, noframes and timeouts are for directories"));
        }
        let mut rules = super::tree::rules(&source, options, (false, false), show, true)?;
        // What others change is seen no later than that.
        let Timeouts { entry, attr } = &mut rules.timeouts;
        (*entry, *attr) = ((*entry).min(access.refresh), (*attr).min(access.refresh));
        if options.dtype.is_some() && show != Some(Show::Npy) {
            return Err(Failure::new(&source, "is not shown as npy, which -o dtype= is for; expected --show npy"));
        }
        let is_one_file = show.is_some_and(|show| show != Show::Sparse);
        let (point, on_file) = point::check(point, Fits::one_file(is_one_file), None)?;
        if on_file && options.access == kernel::Access::Root {
            return Err(Failure::new(
                &point,
                "is a file, whose size and times everybody sees; expected a directory for allow_root",
            ));
        }
        let decoded = match show {
            Some(Show::Npy) => Some(Decoded::Npy(options.dtype.clone())),
            Some(Show::Raw) => Some(Decoded::Raw),
            _ => None,
        };
        let disk_cache = options.disk_cache.as_deref().map(|text| kept_in(text).map_err(|what| Failure::new(&source, what)));
        let disk_cache = disk_cache.transpose()?;
        Ok((RemotePlan { address, access, show, decoded, rules, is_tree_wanted, on_file, disk_cache }, point))
    }
}

/// The directory for chunks, from the root on: the daemon is in another one than the user.
fn kept_in(text: &OsStr) -> Result<(PathBuf, Option<u64>), String> {
    let (dir, most) = parse_disk_cache(text).map_err(|expected| format!("--disk-cache: {expected}"))?;
    let dir = std::path::absolute(&dir).map_err(|error| format!("--disk-cache: {}", in_words(&error)))?;
    Ok((dir, most))
}

/// The directory that chunks are kept in.
fn disk_cache(dir: &Path, most: Option<u64>) -> Result<Arc<DiskCache>, StoreError> {
    DiskCache::open(dir, most).map_err(|source| StoreError::Io { path: dir.to_owned(), action: "keep chunks", source })
}

/// Opens the frame, or what lies beneath the prefix if there is none, and shows it.
pub(super) fn open(plan: &Plan, remote: &RemotePlan) -> Result<Arc<dyn FileSystem>, ViewError> {
    let unsupported = |reason: String| StoreError::Unsupported { path: PathBuf::from(remote.address.to_string()), reason };
    let Connected { client, path, origin } = connect(&remote.address, &remote.access).map_err(unsupported)?;
    let cache_bytes = if remote.decoded.is_some() { plan.cache_size.min(FETCHED) } else { plan.cache_size };
    let options = remote::Options {
        refresh: remote.access.refresh,
        unsafe_immutable: remote.access.unsafe_immutable,
        cache_bytes,
        origin,
        disk: remote.disk_cache.as_ref().map(|(dir, most)| disk_cache(dir, *most)).transpose()?,
        ..remote::Options::default()
    };
    let resources = Resources::new(Budgets { cache_bytes: 0, ..Budgets::default() });
    let store = match RemoteStore::open(Arc::clone(&client), &path, options.clone(), &resources) {
        Err(error) if client.can_list() && (error.errno() == libc::ENOENT || client.is_empty_object()) => {
            let blocks = remote.decoded.as_ref().map(|_| blocks(plan));
            return match RemoteTree::open(client, &path, remote.rules.clone(), options, resources, blocks) {
                Err(listed) if listed.errno() == libc::ENOENT => Err(error.into()),
                Ok(_) if remote.on_file => Err(on_file(plan, remote, "a directory").into()),
                tree => Ok(Arc::new(tree?)),
            };
        }
        Err(error) if is_web_directory(&remote.address) && is_no_frame(&error) => {
            let reason = "ends in '/', and no web server can be asked for what lies beneath; expected the URL of one frame";
            return Err(unsupported(reason.to_owned()).into());
        }
        store => store?,
    };
    if remote.is_tree_wanted {
        let reason = "is one frame; -o suffixes, frames, noframes and timeouts are for directories";
        return Err(unsupported(reason.to_owned()).into());
    }
    let layout = store.layout();
    let store: Arc<dyn FrameStore> = Arc::new(store);
    let name = OsString::from(remote.address.name());
    let shown = |name: OsString| if remote.on_file { Shown::OnFile } else { Shown::As(name) };
    if let Some(decoded) = &remote.decoded {
        let view = ArrayView::new(store, shown(decoded.name(&name)), decoded.clone(), blocks(plan))?;
        return Ok(Arc::new(view));
    }
    let show = match remote.show {
        Some(Show::Other) if layout == Layout::Sparse => Show::Contiguous,
        Some(Show::Contiguous) => Show::Contiguous,
        _ => Show::Sparse,
    };
    if show == Show::Contiguous {
        return Ok(Arc::new(ContiguousView::new(store, shown(super::super::frames::shown_name(Path::new(&name))), true)?));
    }
    if remote.on_file {
        return Err(on_file(plan, remote, "shown as a directory").into());
    }
    Ok(Arc::new(SparseView::new(store, true)?))
}

/// That the mount point is a file.
fn on_file(plan: &Plan, remote: &RemotePlan, what: &str) -> StoreError {
    let reason = format!("is a file, and {} is {what}; expected one to mount on", remote.address);
    StoreError::Unsupported { path: plan.shown_point.clone(), reason }
}

fn is_web_directory(address: &Address) -> bool {
    address.is_http() && address.to_string().trim_end_matches("?...").ends_with('/')
}

/// Whether the server has answered, and not with a frame.
fn is_no_frame(error: &StoreError) -> bool {
    match error {
        StoreError::Format { .. } => true,
        StoreError::Io { source, .. } => matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied),
        _ => false,
    }
}
