//! What the contiguous view knows: files, what they hold, and who has them open.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::Shown;
use super::layout::Layout;
use super::overlay::Overlay;
use crate::store::{ChunkKey, Draft, FrameStore, SourceStat, sidecar};
use crate::view::meta::Meta;
use crate::view::names::is_temporary;
use crate::view::xattr::FormerLens;
use crate::view::{Handle, Ino, Inval, Invals, ROOT, Result, ViewError};

/// The inode of the frame's file that was there at mount, in a directory.
const FRAME_INO: Ino = Ino(2);
/// Inodes of files made during the mount, handles and drafts are numbered from here on.
const FIRST_NEW: u64 = 16;

/// What a file holds.
#[derive(Debug, Clone)]
pub enum Content {
    /// The frame: the state's `layout`, and what is written over it.
    Frame,
    /// A temporary file.
    Draft(Arc<Mutex<Draft>>),
    /// A frame that this file was, until another one took its name, or it lost it. The chunks are pinned.
    Former(Arc<Layout>),
}

/// A file that has a name, or that somebody may still use.
#[derive(Debug)]
pub struct Node {
    /// Its place in the listing; `None` once removed.
    pub place: Option<u64>,
    /// The kernel has forgotten the file; the last close ends it.
    pub forgotten: bool,
    pub meta: Meta,
    pub content: Content,
    /// Handles open.
    pub open: u32,
    /// Of these, for writing.
    pub writers: u32,
}

/// An open file.
#[derive(Debug, Clone, Copy)]
pub struct Open {
    pub ino: Ino,
    pub write: bool,
    /// The overlay that this handle has written to last, by serial number.
    pub serial: u64,
    /// Of the versions of SOURCE that others have made, the one that it was opened in.
    of: u64,
}

#[derive(Debug)]
pub struct State {
    shown: Shown,
    /// How often others have changed SOURCE. Its file has another inode each time, unless it is the mount point.
    reloads: u64,
    /// Handles of the mount point, if that is the file, that were opened before the last time.
    outdated: usize,
    /// The last state that was adopted: what the frame's file holds, but for the overlay.
    pub layout: Arc<Layout>,
    /// What clients may still take for the file's length.
    pub former_lens: FormerLens,
    /// What is written over it.
    pub overlay: Option<Arc<Overlay>>,
    /// The frame's file, unless it was removed or has another name now.
    pub frame: Option<Ino>,
    pub nodes: HashMap<Ino, Node>,
    /// Names by their place in the listing, which never changes.
    listing: BTreeMap<u64, (OsString, Ino)>,
    places: HashMap<OsString, u64>,
    pub handles: HashMap<u64, Open>,
    last_serial: u64,

    /// Chunks of `layout` that no commit has taken yet.
    pub staged: HashSet<ChunkKey>,
    /// Counts adopted states.
    pub version: u64,
    /// `version` as of the last commit.
    pub published: u64,

    pub root: Meta,
    /// Owner, mode and times of SOURCE.
    source: Meta,
}

impl State {
    pub fn new(shown: Shown, layout: Layout, stat: SourceStat) -> Self {
        let meta = Meta::from(stat);
        let mut state = State {
            reloads: 0,
            outdated: 0,
            layout: Arc::new(layout),
            former_lens: FormerLens::default(),
            overlay: None,
            frame: None,
            nodes: HashMap::new(),
            listing: BTreeMap::new(),
            places: HashMap::new(),
            handles: HashMap::new(),
            last_serial: FIRST_NEW,
            staged: HashSet::new(),
            version: 0,
            published: 0,
            root: meta.of_directory(),
            source: meta,
            shown,
        };
        let node = Node { place: None, forgotten: false, meta, content: Content::Frame, open: 0, writers: 0 };
        match &state.shown {
            Shown::As(name) => {
                let name = name.clone();
                state.nodes.insert(FRAME_INO, node);
                state.frame = Some(FRAME_INO);
                state.link(name, FRAME_INO);
            }
            Shown::OnFile => {
                state.nodes.insert(ROOT, node);
                state.frame = Some(ROOT);
            }
        }
        state
    }

    /// Whether the mount point is a directory.
    pub fn in_directory(&self) -> bool {
        self.shown != Shown::OnFile
    }

    /// A number never given before.
    pub fn serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    // --- names ---

    /// Whether the name is the frame's.
    pub fn is_frame_name(&self, name: &OsStr) -> bool {
        matches!(&self.shown, Shown::As(shown) if shown == name)
    }

    /// Checks that files of that name can be in the directory.
    pub fn check_name(&self, parent: Ino, name: &OsStr) -> Result<()> {
        self.check_parent(parent, name)?;
        let lock = || match &self.shown {
            Shown::As(shown) => *name == *[shown, OsStr::new(sidecar::SUFFIX)].into_iter().collect::<OsString>(),
            Shown::OnFile => false,
        };
        if self.is_frame_name(name) || is_temporary(name, |of| self.is_frame_name(of)) || lock() {
            return Ok(());
        }
        Err(ViewError::NotPermitted)
    }

    fn check_parent(&self, parent: Ino, name: &OsStr) -> Result<()> {
        match parent {
            ROOT if !self.in_directory() => Err(ViewError::NotDirectory),
            ROOT if name.len() > 255 => Err(ViewError::NameTooLong),
            ROOT => Ok(()),
            _ => Err(ViewError::NotDirectory),
        }
    }

    /// The inode of a name.
    pub fn find(&self, parent: Ino, name: &OsStr) -> Result<Ino> {
        self.check_parent(parent, name)?;
        self.named(name).ok_or(ViewError::NotFound)
    }

    /// The inode of a name in the directory.
    pub fn named(&self, name: &OsStr) -> Option<Ino> {
        self.listing.get(self.places.get(name)?).map(|(_, ino)| *ino)
    }

    /// Gives a free name to a file that has none.
    pub fn link(&mut self, name: OsString, ino: Ino) {
        let place = self.serial();
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.place = Some(place);
        }
        self.places.insert(name.clone(), place);
        self.listing.insert(place, (name, ino));
    }

    /// The names behind a listing's cookie, each with the cookie that stands after it.
    pub fn list(&self, cookie: u64) -> impl Iterator<Item = (u64, &OsStr, Ino)> {
        self.listing.range(cookie.saturating_add(1)..).map(|(place, (name, ino))| (*place, name.as_os_str(), *ino))
    }

    /// The frame's name; where the mount point is the file, SOURCE's.
    pub fn frame_name<'a>(&'a self, source: &'a Path) -> &'a OsStr {
        match &self.shown {
            Shown::As(name) => name,
            Shown::OnFile => source.file_name().unwrap_or_default(),
        }
    }

    pub fn node(&self, ino: Ino) -> Result<&Node> {
        self.nodes.get(&ino).ok_or(ViewError::Gone)
    }

    pub fn node_mut(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(ViewError::Gone)
    }

    /// Makes a file of a free name.
    pub fn new_file(&mut self, name: OsString, meta: Meta, content: Content) -> Ino {
        let ino = Ino(self.serial());
        self.nodes.insert(ino, Node { place: None, forgotten: false, meta, content, open: 0, writers: 0 });
        self.link(name, ino);
        ino
    }

    /// Takes a name away from its file.
    pub fn unlink(&mut self, name: &OsStr) -> Option<Ino> {
        let place = self.places.remove(name)?;
        let (_, ino) = self.listing.remove(&place)?;
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.place = None;
        }
        Some(ino)
    }

    /// Makes the frame's file one that was the frame: it holds what was adopted last, for as long as somebody uses it.
    pub fn retire_frame(&mut self, store: &dyn FrameStore) {
        let layout = Arc::clone(&self.layout);
        if let Some(ino) = self.frame.take()
            && let Some(node) = self.nodes.get_mut(&ino)
        {
            layout.extents.keys().iter().for_each(|key| store.pin(*key));
            node.content = Content::Former(layout);
        }
    }

    /// Gives a file the frame's name, and makes it the frame.
    pub fn install_frame(&mut self, name: &OsStr, ino: Ino, store: &dyn FrameStore) {
        self.remove(name, store);
        self.link(name.to_owned(), ino);
        self.frame = Some(ino);
        if let Some(node) = self.nodes.get_mut(&ino)
            && let Content::Former(layout) = std::mem::replace(&mut node.content, Content::Frame)
        {
            layout.extents.keys().iter().for_each(|key| store.unpin(*key));
        }
    }

    /// Takes a name away; what nobody has open ends with it.
    pub fn remove(&mut self, name: &OsStr, store: &dyn FrameStore) -> Option<Ino> {
        let ino = self.unlink(name)?;
        if self.nodes.get(&ino).is_some_and(|node| node.open == 0) {
            self.drop_node(ino, store);
        }
        Some(ino)
    }

    /// What only the view kept alive ends.
    fn drop_node(&mut self, ino: Ino, store: &dyn FrameStore) {
        if let Some(node) = self.nodes.remove(&ino)
            && let Content::Former(layout) = node.content
        {
            layout.extents.keys().iter().for_each(|key| store.unpin(*key));
        }
    }

    /// Ends every pin.
    pub fn unpin_all(&mut self, store: &dyn FrameStore) {
        let former: Vec<Ino> =
            self.nodes.iter().filter(|(_, node)| matches!(node.content, Content::Former(_))).map(|(ino, _)| *ino).collect();
        former.into_iter().for_each(|ino| self.drop_node(ino, store));
    }

    /// The kernel has forgotten a file.
    pub fn forget(&mut self, ino: Ino, store: &dyn FrameStore) {
        match self.nodes.get_mut(&ino) {
            Some(node) if node.place.is_some() || self.frame == Some(ino) => {}
            Some(node) if node.open > 0 => node.forgotten = true, // its last close is still on the way
            Some(_) => self.drop_node(ino, store),
            None => {}
        }
    }

    // --- handles ---

    pub fn open(&mut self, ino: Ino, write: bool) -> Result<Handle> {
        let handle = self.serial();
        let node = self.node_mut(ino)?;
        node.open += 1;
        node.writers += u32::from(write);
        let of = self.reloads;
        self.handles.insert(handle, Open { ino, write, serial: 0, of });
        Ok(Handle(handle))
    }

    /// Ends a handle, and with the last one what only it kept alive.
    pub fn close(&mut self, handle: Handle, store: &dyn FrameStore) {
        let Some(open) = self.handles.remove(&handle.0) else { return };
        if open.ino == ROOT && open.of != self.reloads {
            self.outdated -= 1;
        }
        let Some(node) = self.nodes.get_mut(&open.ino) else { return };
        node.open = node.open.saturating_sub(1);
        node.writers = node.writers.saturating_sub(u32::from(open.write));
        if node.open == 0 && node.forgotten && node.place.is_none() {
            self.drop_node(open.ino, store);
        }
    }

    /// Whether what a handle was opened for is still there.
    ///
    /// # Errors
    /// [`ViewError::Gone`] if others have changed it since.
    pub fn check_version(&self, open: &Open) -> Result<()> {
        if open.ino == ROOT && open.of != self.reloads { Err(ViewError::Gone) } else { Ok(()) }
    }

    /// Whether nobody has an older version of the mount point open, which is the file.
    pub fn is_of_one_version(&self) -> bool {
        self.outdated == 0
    }

    /// The name of a file.
    pub fn name_of(&self, ino: Ino) -> Option<&OsStr> {
        let place = self.nodes.get(&ino)?.place?;
        self.listing.get(&place).map(|(name, _)| name.as_os_str())
    }

    /// Handles that may write to the frame.
    pub fn frame_writers(&self) -> u32 {
        self.frame.and_then(|ino| self.nodes.get(&ino)).map_or(0, |node| node.writers)
    }

    /// Whether somebody who has a part in what is written may write on.
    pub fn has_writer(&self) -> bool {
        let serial = self.overlay.as_ref().map(|overlay| overlay.serial);
        self.handles.values().any(|open| open.write && Some(open.serial) == serial)
    }

    /// Takes note of when the frame's file was written to.
    pub fn frame_changed(&mut self, mtime: SystemTime) {
        if let Some(node) = self.frame.and_then(|ino| self.nodes.get_mut(&ino)) {
            node.meta.written(mtime);
        }
    }

    // --- the frame ---

    /// Whether the last commit took what was adopted last.
    pub fn is_published(&self) -> bool {
        self.version == self.published
    }

    /// Whether anything is written that SOURCE does not have.
    pub fn is_uncommitted(&self) -> bool {
        !self.is_published() || self.seen_overlay().is_some() || self.frame.is_none()
    }

    /// Takes over what SOURCE holds now, which others have changed; there is nothing uncommitted. Whoever has open what was SOURCE's finds
    /// it gone. Temporary files stay.
    pub fn reloaded(&mut self, layout: Layout, meta: Meta, invals: &mut Invals) {
        self.layout = Arc::new(layout);
        self.former_lens.clear();
        self.overlay = None;
        self.staged.clear();
        (self.root, self.source) = (meta.of_directory(), meta);
        self.reloads += 1;
        self.outdated = self.handles.values().filter(|open| open.ino == ROOT).count();
        // The chunks of what was the frame may be gone as well.
        let is_ours = |(ino, node): (&Ino, &Node)| {
            let former = matches!(node.content, Content::Former(_));
            (former || self.frame == Some(*ino) && *ino != ROOT).then_some(*ino)
        };
        let gone: Vec<Ino> = self.nodes.iter().filter_map(is_ours).collect();
        for ino in gone {
            if let Some(name) = self.name_of(ino).map(OsStr::to_owned) {
                self.unlink(&name);
                invals.push(Inval::Entry(ROOT, name));
            }
            self.nodes.remove(&ino);
        }
        match self.shown.clone() {
            Shown::As(name) => self.frame = Some(self.new_file(name, meta, Content::Frame)),
            Shown::OnFile => {
                if let Ok(node) = self.node_mut(ROOT) {
                    node.meta = meta;
                }
            }
        }
    }

    /// Takes over owner, mode and times of SOURCE, where a client has set no others.
    pub fn take_attributes(&mut self, now: Meta) {
        let before = std::mem::replace(&mut self.source, now);
        self.root.take_over(before.of_directory(), now.of_directory());
        if let Some(node) = self.frame.and_then(|ino| self.nodes.get_mut(&ino)) {
            node.meta.take_over(before, now);
        }
    }

    /// What is written over the layout and seen by readers.
    pub fn seen_overlay(&self) -> Option<&Arc<Overlay>> {
        self.overlay.as_ref().filter(|overlay| !overlay.refused())
    }
}
