//! Opens what is to be shown: a store, and a view over it.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use log::{debug, info, warn};

use super::plan::{Plan, SourceKind};
use crate::format::Layout;
use crate::store::times::Records;
use crate::store::{Budgets, CframeStore, FrameStore, NewFrame, OpenOptions, Resources, SframeStore, in_words, sidecar};
use crate::view::{
    ArrayView, Blocks, ContiguousView, Decoded, FileSystem, FrameView, Rules, Show, Shown, Single, SparseView, Tree, ViewError,
    names_items,
};

#[cfg(feature = "remote")]
mod remote;

/// Opens what is to be shown.
///
/// # Errors
/// Those of the store and of the view.
pub(super) fn open(plan: &Plan) -> Result<Arc<dyn FileSystem>, ViewError> {
    let frame = match &plan.kind {
        SourceKind::Tree(rules) => return open_tree(plan, rules),
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
        if matches!(decoded, Decoded::Npy(Some(_))) && store.committed().is_some_and(|image| names_items(&image.header)) {
            info!("{}: the array has an item type of its own, so -o dtype= is ignored", plan.source.display());
        }
        let view = ArrayView::new(store, frame.shown.clone(), decoded.clone(), blocks(plan))?.with_lists(frame.lists);
        return Ok(if locking { Arc::new(view.taking_turns(None)?) } else { Arc::new(view) });
    }
    match frame.show {
        Show::Contiguous => {
            let lock_file = match &frame.shown {
                Shown::As(name) => Some([name, OsStr::new(sidecar::SUFFIX)].into_iter().collect()),
                Shown::OnFile => None,
            };
            shared(
                plan,
                locking,
                ContiguousView::new(store, frame.shown.clone(), read_only)?.with_lists(frame.lists).alone(),
                lock_file,
            )
        }
        _ => {
            let view = SparseView::new(store, read_only)?.with_lists(frame.lists).alone();
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
        warn!(
            "{point}: the lock file lies outside of the mount, so locking does not work between programs on the mount and on SOURCE"
        );
    }
    Ok(Arc::new(view.taking_turns(lock_file)?))
}

/// Blocks of arrays in memory, and in files where there is no room.
pub(super) fn blocks(plan: &Plan) -> Arc<Blocks> {
    Blocks::on_all_cores(plan.cache_size, plan.spill.files())
}

fn open_tree(plan: &Plan, rules: &Rules) -> Result<Arc<dyn FileSystem>, ViewError> {
    let shows_data = rules.show.is_decoded();
    // Chunks are kept decoded, or as they are.
    let cache_bytes = if shows_data { 0 } else { plan.cache_size };
    let resources = Resources::new(Budgets { cache_bytes, ..Budgets::default() });
    let tree = Tree::open(&plan.source, rules.clone(), resources)?;
    Ok(if shows_data { Arc::new(tree.decoding(blocks(plan))) } else { Arc::new(tree) })
}
