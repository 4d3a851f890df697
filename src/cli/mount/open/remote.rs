//! Opens a frame in an object store or on a web server, or a prefix with frames beneath it.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::super::frames::shown_name;
use super::super::super::remote::{Connected, connect, no_such_object};
use super::super::plan::Plan;
use super::super::remote::RemotePlan;
use super::blocks;
use crate::format::Layout;
use crate::store::disk_cache::DiskCache;
use crate::store::remote::{Address, RemoteStore};
use crate::store::{Budgets, FrameStore, Resources, StoreError, remote};
use crate::view::{ArrayView, ContiguousView, FileSystem, RemoteTree, Show, Shown, SparseView, ViewError};

/// Bytes of memory for what was fetched, where the rest is for what was decoded.
const FETCHED: u64 = 32 << 20;

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
        Err(error) if client.can_list() && (error.errno() == libc::ENOENT || client.is_empty_object(&error)) => {
            let blocks = remote.decoded.as_ref().map(|_| blocks(plan));
            return match RemoteTree::open(client, &path, remote.rules.clone(), options, resources, blocks) {
                Err(listed) if listed.errno() == libc::ENOENT => Err(no_such_object(error).into()),
                Ok(_) if remote.on_file => Err(on_file(plan, remote, "a directory").into()),
                tree => Ok(Arc::new(tree?)),
            };
        }
        Err(error) if is_web_directory(&remote.address) && is_no_frame(&error) => {
            let reason = "ends in '/', and a web server cannot list what lies beneath; expected the URL of one frame";
            return Err(unsupported(reason.to_owned()).into());
        }
        store => store.map_err(no_such_object)?,
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
        return Ok(Arc::new(ContiguousView::new(store, shown(shown_name(Path::new(&name))), true)?));
    }
    if remote.on_file {
        return Err(on_file(plan, remote, "shown as a directory").into());
    }
    Ok(Arc::new(SparseView::new(store, true)?))
}

/// That the mount point is a file.
fn on_file(plan: &Plan, remote: &RemotePlan, what: &str) -> StoreError {
    let reason = format!("is a file, and {} is {what}; expected a directory to mount on", remote.address);
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
