//! The frames of a remote tree that are open: each is opened when somebody goes inside, and closed when others need its place.
//!
//! A closed frame is opened again when a client reads an open file of it. The read succeeds if the store still has the same state.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use log::warn;
use object_store::path::Path as Key;

use super::RemoteTree;
use super::frame::{OpenFrame, RemoteFrame};
use super::table::What;
use crate::format::{INDEX_NAME, Layout};
use crate::store::remote::{Options, RemoteStore, Tag};
use crate::store::{FrameStore, descriptor_limit, interrupts};
use crate::view::open_frames::Most;
use crate::view::tree::is_damage;
use crate::view::{
    ArrayView, Attr, ContiguousView, FrameFileSystem, Good, Ino, Invalidation, Invalidations, Kind, ROOT, Result, Shown,
    SparseView, ViewError,
};

/// Bytes that the indexes of open frames take together, if more than one is open.
const MOST: u64 = 48 << 20;
/// Bytes that an open frame takes, and each entry of its index.
const WEIGHT: (u64, u64) = (32 << 10, 80);

/// Those that may be open at a time, where some of them are not in use.
pub fn most() -> Most {
    Most { count: (descriptor_limit() / 8).clamp(8, 256), weight: MOST }
}

impl RemoteTree {
    /// A frame, opened if it is not.
    ///
    /// # Errors
    /// What the store answers. [`ViewError::Gone`] of what is no frame: it is shown as what it is from then on.
    pub(super) fn enter_frame(&self, frame: &Arc<RemoteFrame>) -> Result<Arc<OpenFrame>> {
        let mut is_no_frame = false;
        let entered = self.frames.enter(
            &**frame,
            |changing| Ok(interrupts::lock(changing)?),
            |_| true,
            |closed| {
                self.frames.make_room(1, |frame| self.close_frame(frame));
                let (store, view) = self.open_frame(frame).inspect_err(|_| is_no_frame = true)?;
                if closed.left.take() != Some(store.tag()) {
                    self.regions.renumber(&**frame);
                    if closed.openings > 0 {
                        self.owe(Invalidation::Data(frame.ino));
                    }
                }
                let entries = store.committed().map_or(0, |image| image.entries.len() as u64);
                let weight = WEIGHT.0 + entries.saturating_mul(WEIGHT.1);
                Ok(self.frames.begin(frame, closed, view, weight, store))
            },
        );
        entered.map_err(|error| if is_no_frame { self.is_no_frame(frame, error) } else { error })
    }

    fn open_frame(&self, frame: &RemoteFrame) -> Result<(Arc<RemoteStore>, Box<dyn FrameFileSystem>)> {
        let key = Key::parse(&frame.key).map_err(|_| ViewError::NotFound)?;
        let layout = if frame.is_object() { Layout::Contiguous } else { Layout::Sparse };
        let options = Options { layout: Some(layout), ..self.options.clone() };
        let store = Arc::new(RemoteStore::open(self.client.at(key), &self.path_of(&frame.key), options, &self.resources)?);
        let shown: Arc<dyn FrameStore> = store.clone();
        let view: Box<dyn FrameFileSystem> = match (&frame.decoded, &self.blocks) {
            (Some(decoded), Some(blocks)) => Box::new(
                ArrayView::new(shown, Shown::OnFile, decoded.clone(), Arc::clone(blocks))?.settling(self.rules.timeouts.attr),
            ),
            _ if frame.shown == Kind::Directory => Box::new(SparseView::new(shown, true)?),
            _ => Box::new(ContiguousView::new(shown, Shown::OnFile, true)?),
        };
        Ok((store, view))
    }

    /// A frame cannot be opened. If that is not the moment's fault, it is shown as what it is in the store.
    fn is_no_frame(&self, frame: &RemoteFrame, error: ViewError) -> ViewError {
        let is_missing = error.errno() == libc::ENOENT;
        let result = Err::<(), _>(error);
        if !is_missing && !is_damage(&result) {
            return result.err().unwrap_or(ViewError::Gone);
        }
        let parent = super::parent_of(&frame.key);
        if is_missing && frame.is_object() {
            self.directories.forget(parent);
        } else {
            // A prefix without an index is a directory, however it is called.
            if let Err(error) = &result
                && !is_missing
            {
                warn!("{error}; it is shown as it is in the store");
            }
            let state = frame.listed().map(|tag| tag.line());
            let state = if is_missing { Some(String::new()) } else { state };
            self.broken.lock().put(frame.key.clone(), state);
        }
        let mut table = self.table.lock();
        if !frame.is_object() && frame.shown == Kind::Directory {
            table.becomes_directory(frame.ino);
            return ViewError::Gone;
        }
        let node = table.get(frame.ino).map(|node| (node.parent, node.name.clone()));
        table.abandon(frame.ino);
        drop(table);
        if let Some((parent, name)) = node {
            self.owe(Invalidation::Entry(parent, name));
        }
        ViewError::Gone
    }

    /// Whether a key is known to be no frame: an object in this state; or a prefix, as its listing tells if it is known.
    pub(super) fn is_broken(&self, key: &str, object: Option<&Tag>) -> bool {
        let Some(then) = self.broken.lock().get(key).cloned() else { return false };
        let now = match object {
            Some(tag) => Some(tag.line()),
            None => match self.directories.known(&format!("{key}/"), INDEX_NAME) {
                None => return true,
                Some(index) => Some(index.and_then(|index| index.object).map_or_else(String::new, |tag| tag.line())),
            },
        };
        let is_same = then.is_none() || then == now;
        match is_same {
            true => self.broken.lock().put(key.to_owned(), now),
            false => self.broken.lock().pop(key),
        };
        is_same
    }

    /// Closes a frame, if nobody would notice.
    fn close_frame(&self, frame: &Arc<RemoteFrame>) -> bool {
        if !self.frames.close(&self.regions, frame, || true, |store, _, _| Some(store.tag())) {
            return false;
        }
        let mut table = self.table.lock();
        let node = table.get(frame.ino).map(|node| (node.parent, node.name.clone()));
        let is_gone = table.drop_unknown(frame.ino).is_some();
        drop(table);
        if is_gone {
            self.regions.leave(frame);
        }
        // Nobody follows it now: who comes again looks it up.
        if let Some((parent, name)) = node {
            self.owe(Invalidation::Entry(parent, name));
        }
        true
    }

    /// Attributes of the file that stands for a frame, which is opened for that unless it was a moment ago.
    pub(super) fn measured(&self, frame: &Arc<RemoteFrame>) -> Result<Attr> {
        let known = *frame.sized.lock();
        let open = match (frame.opened(), known) {
            (Some(open), _) => open,
            (None, Some((read, attr))) if read.elapsed() < self.options.refresh => return Ok(attr),
            (None, _) => self.enter_frame(frame)?,
        };
        let inner = open.fs().getattr(ROOT)?;
        let attr = Attr { ino: frame.ino, kind: Kind::File, nlink: 1, good: Good::Timeouts, ..inner };
        *frame.sized.lock() = Some((Instant::now(), attr));
        Ok(attr)
    }

    // --- all frames ---

    /// Adds what the kernel must forget of a frame's files.
    pub(super) fn tell(&self, frame: &Arc<RemoteFrame>, inner: Invalidations, invalidations: &mut Invalidations) {
        if self.regions.tell(frame, inner, invalidations) && frame.shown == Kind::Directory {
            let table = self.table.lock();
            invalidations.extend(table.get(frame.ino).map(|node| Invalidation::Entry(node.parent, node.name.clone())));
        }
    }

    pub(super) fn follow_frames(&self, invalidations: &mut Invalidations) -> Option<Instant> {
        self.frames.each(|frame, fs| {
            let mut inner = Invalidations::new();
            let due = fs.follow(&mut inner);
            self.tell(frame, inner, invalidations);
            due
        })
    }

    /// The frame that a node stands for.
    pub(super) fn frame_of(&self, ino: Ino) -> Option<Arc<RemoteFrame>> {
        match &self.table.lock().get(ino)?.what {
            What::Frame(frame) => Some(Arc::clone(frame)),
            _ => None,
        }
    }

    /// What messages call a key.
    pub(super) fn path_of(&self, key: &str) -> PathBuf {
        let beneath = key.strip_prefix(&*self.root).unwrap_or(key);
        if beneath.is_empty() { self.path.clone() } else { self.path.join(Path::new(beneath)) }
    }
}
