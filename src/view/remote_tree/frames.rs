//! The frames of a remote tree that are open: each is opened when somebody goes inside, and closed when others need its place.
//!
//! A closed frame is opened again when a client reads an open file of it. The read succeeds if the store still has the same state.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use log::{error, warn};
use object_store::path::Path as Key;
use parking_lot::Mutex;

use super::RemoteTree;
use super::frame::{OpenFrame, RemoteFrame};
use super::table::What;
use crate::format::{INDEX_NAME, Layout};
use crate::store::remote::{Options, RemoteStore, Tag};
use crate::store::{FrameStore, descriptor_limit, interrupts};
use crate::view::tree::is_damage;
use crate::view::{
    ArrayView, Attr, ContiguousView, FrameFileSystem, Ino, Invalidation, Invalidations, Kind, ROOT, Rest, Result, Shown,
    SparseView, ViewError,
};

/// Bytes that the indexes of open frames take together, if more than one is open.
const MOST: u64 = 48 << 20;
/// Bytes that an open frame takes, and each entry of its index.
const WEIGHT: (u64, u64) = (32 << 10, 80);

/// The frames that are open.
#[derive(Default)]
pub struct Frames {
    open: Mutex<Vec<Arc<RemoteFrame>>>,
    uses: AtomicU64,
}

impl Frames {
    /// Those that are open just now.
    pub fn all(&self) -> Vec<(Arc<RemoteFrame>, Arc<OpenFrame>)> {
        let open = self.open.lock().clone();
        open.into_iter().filter_map(|frame| frame.opened().map(|open| (frame, open))).collect()
    }

    fn use_number(&self) -> u64 {
        self.uses.fetch_add(1, Relaxed)
    }
}

impl RemoteTree {
    /// A frame, opened if it is not.
    ///
    /// # Errors
    /// What the store answers. [`ViewError::Gone`] of what is no frame: it is shown as what it is from then on.
    pub(super) fn enter_frame(&self, frame: &Arc<RemoteFrame>) -> Result<Arc<OpenFrame>> {
        let used = |open: Arc<OpenFrame>| {
            open.used.store(self.frames.use_number(), Relaxed);
            open
        };
        if let Some(open) = frame.opened() {
            return Ok(used(open));
        }
        let mut closed = interrupts::lock(&frame.changing)?;
        if let Some(open) = frame.opened() {
            return Ok(used(open));
        }
        self.make_room();
        let (store, view) = match self.open_frame(frame) {
            Ok(opened) => opened,
            Err(error) => {
                drop(closed);
                return Err(self.is_no_frame(frame, error));
            }
        };
        if closed.left.take() != Some(store.tag()) {
            self.renumber(frame);
            if closed.openings > 0 {
                self.owe(Invalidation::Data(frame.ino));
            }
        }
        closed.openings += 1;
        let entries = store.committed().map_or(0, |image| image.entries.len() as u64);
        let weight = WEIGHT.0 + entries.saturating_mul(WEIGHT.1);
        let used = AtomicU64::new(self.frames.use_number());
        let open = Arc::new(OpenFrame { view, store, opening: closed.openings, weight, used });
        *frame.current.write() = Some(Arc::clone(&open));
        self.frames.open.lock().push(Arc::clone(frame));
        Ok(open)
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

    /// Closes frames that nobody uses until there is room for one more.
    fn make_room(&self) {
        let most = (descriptor_limit() / 8).clamp(8, 256);
        let mut open = self.frames.all();
        let mut weight: u64 = open.iter().map(|(_, open)| open.weight).sum();
        if open.len() < most && weight < MOST {
            return;
        }
        open.sort_by_key(|(_, open)| open.used.load(Relaxed));
        let mut count = open.len();
        for (frame, open) in open {
            // A few at once, so that not each that comes has to look for one.
            if count < most - most / 16 && weight < MOST {
                return;
            }
            let freed = open.weight;
            drop(open);
            if self.close_frame(&frame) {
                (count, weight) = (count - 1, weight.saturating_sub(freed));
            }
        }
    }

    /// Closes a frame, if nobody would notice.
    fn close_frame(&self, frame: &Arc<RemoteFrame>) -> bool {
        let Some(mut closed) = frame.changing.try_lock() else { return false };
        let mut rest = Rest::Busy;
        let taken = frame.take(|open| {
            rest = open.view.rest();
            rest != Rest::Busy
        });
        let Some(open) = taken else { return false };
        closed.left = Some(open.store.tag()).filter(|_| rest == Rest::Stable);
        if let Err(error) = open.view.end() {
            error!("{error}");
        }
        drop(open);
        self.frames.open.lock().retain(|other| !Arc::ptr_eq(other, frame));
        if closed.left.is_none() {
            self.renumber(frame);
        }
        drop(closed);
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

    /// The files of a frame are others from now on: they get other inodes, and nobody's handle is for one of them.
    fn renumber(&self, frame: &RemoteFrame) {
        self.regions.leave(frame);
        frame.lineage.fetch_add(1, Relaxed);
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
        let attr = Attr { ino: frame.ino, kind: Kind::File, nlink: 1, volatile: true, ..inner };
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
        let mut due = None;
        for (frame, open) in self.frames.all() {
            let mut inner = Invalidations::new();
            due = [due, open.fs().follow(&mut inner)].into_iter().flatten().min();
            self.tell(&frame, inner, invalidations);
        }
        due
    }

    pub(super) fn shut_frames(&self) -> Result<()> {
        let mut result = Ok(());
        for (frame, open) in self.frames.all() {
            *frame.current.write() = None;
            result = result.and(open.view.end());
        }
        result
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
