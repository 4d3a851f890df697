//! The nodes of a tree that the kernel knows, but for those inside frames.
//!
//! A node is known by what it is ([`FileId`]), and found again by a name beneath its directory. No node holds a descriptor.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use super::frame::TreeFrame;
use crate::store::local::beneath::{FileId, Found};
use crate::view::regions::{LAST_NODE, OURS, next_free};
use crate::view::{Handle, Ino, ROOT};

/// So many names of a file are remembered, the last ones.
const NAMES: usize = 8;

/// A file, a directory, or a frame, as long as the kernel knows it.
pub struct Node {
    pub id: FileId,
    /// The file type below, as the mode has it.
    pub kind: u32,
    /// Directories and names in them, the last used first.
    names: Vec<(Ino, Box<OsStr>)>,
    /// How often the kernel was told of it.
    lookups: u64,
    /// Open files of it, which reach it when it has no name any more.
    pub open: Vec<Handle>,
    /// One of them, or one that is closed, kept the file from becoming a frame: the last close may make one of it.
    pub was_written: bool,
    /// It stands for a frame that is open.
    is_open: bool,
    pub shown: ShownAs,
    /// Another file system is mounted here, which is not shown.
    pub is_covered: bool,
    /// The directory has held the file that makes it a store of python-blosc2. It stays a store when that file goes.
    pub is_store: bool,
}

/// What a node is shown as.
#[derive(Clone)]
pub enum ShownAs {
    /// What it is.
    Plain,
    /// A frame.
    Frame(Arc<TreeFrame>),
}

/// The nodes. Nothing is called, and no input or output made, while the lock around it is held.
pub struct Table {
    /// Boxed, as there may be millions, and a map has room to spare.
    nodes: HashMap<Ino, Box<Node>>,
    by_id: HashMap<FileId, Ino>,
    /// The nodes of frames that are open, by directory and name.
    open: HashMap<Ino, HashMap<Box<OsStr>, Ino>>,
    /// The device whose inode numbers are shown as they are.
    device: u64,
    /// The number of ours that a node got last.
    last_node: u64,
    last: u64,
    moves: u64,
    /// Names that renames in progress give to nodes. Below, such a node has one of its names already or this one.
    coming: Vec<(Ino, Ino, Box<OsStr>)>,
}

impl Table {
    /// With the root alone.
    pub fn new(root: &Found) -> Self {
        let node = Node::new(root, ShownAs::Plain);
        let (nodes, by_id) = (HashMap::from([(ROOT, Box::new(node))]), HashMap::from([(root.id, ROOT)]));
        Table { nodes, by_id, open: HashMap::new(), device: root.id.dev, last_node: 0, last: 0, moves: 0, coming: Vec::new() }
    }

    pub fn get(&self, ino: Ino) -> Option<&Node> {
        self.nodes.get(&ino).map(|node| &**node)
    }

    pub fn get_mut(&mut self, ino: Ino) -> Option<&mut Node> {
        self.nodes.get_mut(&ino).map(|node| &mut **node)
    }

    /// The node of a file that was found, if it is known.
    pub fn find(&self, found: &Found) -> Option<Ino> {
        let ino = self.by_id.get(&found.id)?;
        self.nodes.get(ino).filter(|node| node.kind == found.stat.mode & libc::S_IFMT).map(|_| *ino)
    }

    /// How often nodes have got or lost a name, or stood for another file.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Whether any node may have been under another name below since there were so many `moves`.
    pub fn is_moving(&self, since: u64) -> bool {
        self.moves != since || !self.coming.is_empty()
    }

    /// A rename that gives a node a name begins. Without this, the node has no name that is right between the rename below and
    /// [`Table::name`].
    pub fn begin_move(&mut self, ino: Ino, parent: Ino, name: &OsStr) {
        // A request that has the names already reads them again.
        self.moves += 1;
        self.coming.push((ino, parent, name.into()));
    }

    /// The rename ends, done or not.
    pub fn end_move(&mut self, ino: Ino, parent: Ino, name: &OsStr) {
        let is_it = |(of, dir, text): &(Ino, Ino, Box<OsStr>)| *of == ino && *dir == parent && **text == *name;
        if let Some(at) = self.coming.iter().position(is_it) {
            self.coming.swap_remove(at);
        }
        self.moves += 1;
    }

    /// Names that a node may have below: those that it is known by, then those that it is getting.
    pub fn places(&self, ino: Ino) -> Vec<(Ino, OsString)> {
        let known = self.nodes.get(&ino).into_iter().flat_map(|node| &node.names);
        let known = known.map(|(parent, name)| (*parent, name.to_os_string()));
        known.chain(self.coming(ino)).collect()
    }

    /// Those that it is getting.
    pub fn coming(&self, ino: Ino) -> impl Iterator<Item = (Ino, OsString)> {
        self.coming.iter().filter(move |(of, ..)| *of == ino).map(|(_, parent, name)| (*parent, name.to_os_string()))
    }

    /// A number never given before, of an open file or a name.
    pub fn serial(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The node of what a name was found to be, told to the kernel once more. One that is new is `shown` so.
    pub fn enter(&mut self, found: &Found, parent: Ino, name: &OsStr, shown: impl FnOnce(Ino) -> ShownAs) -> Ino {
        let ino = match self.find(found) {
            Some(ino) => ino,
            None => {
                // What has the number of a node of before is another.
                if let Some(before) = self.by_id.remove(&found.id).filter(|before| *before != ROOT) {
                    self.clear_names(before);
                }
                let ino = self.number(found);
                self.nodes.insert(ino, Box::new(Node::new(found, shown(ino))));
                self.by_id.insert(found.id, ino);
                ino
            }
        };
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.lookups += 1;
        }
        self.add_name(ino, parent, name);
        ino
    }

    /// A node is told to the kernel once more; false if it is not known.
    pub fn tell(&mut self, ino: Ino) -> bool {
        self.nodes.get_mut(&ino).map(|node| node.lookups += 1).is_some()
    }

    /// The number below, where it tells files apart.
    fn number(&mut self, found: &Found) -> Ino {
        let below = Ino(found.id.ino);
        let is_good = found.id.dev == self.device && below.0 & OURS == 0 && below.0 > ROOT.0;
        if is_good && !self.nodes.contains_key(&below) {
            return below;
        }
        // Those of nodes that the kernel has forgotten come again at last: what is above them stands for files of frames.
        Ino(OURS | next_free(&mut self.last_node, LAST_NODE, |number| self.nodes.contains_key(&Ino(OURS | number))))
    }

    #[cfg(test)]
    pub fn count_nodes_from(&mut self, last: u64) {
        self.last_node = last;
    }

    /// The kernel gives back what it was told. Answers a node that nobody knows any more.
    pub fn forget(&mut self, ino: Ino, count: u64) -> Option<Node> {
        let node = self.nodes.get_mut(&ino).filter(|_| ino != ROOT)?;
        node.lookups = node.lookups.saturating_sub(count);
        self.drop_unknown(ino)
    }

    /// Drops a node that the kernel does not know any more, unless it stands for a frame that is open.
    pub fn drop_unknown(&mut self, ino: Ino) -> Option<Node> {
        let is_used = |node: &Node| node.frame().is_some_and(|frame| frame.opened().is_some());
        self.nodes.get(&ino).filter(|node| ino != ROOT && node.lookups == 0 && !is_used(node))?;
        self.closed(ino);
        let node = self.nodes.remove(&ino)?;
        if self.by_id.get(&node.id) == Some(&ino) {
            self.by_id.remove(&node.id);
        }
        Some(*node)
    }

    /// A node stands for another file below from now on, which has taken the place of the one before.
    pub fn becomes(&mut self, ino: Ino, found: &Found) {
        // What is being looked up was found before, or is found once more.
        self.moves += 1;
        if let Some(node) = self.nodes.get_mut(&ino) {
            if self.by_id.get(&node.id) == Some(&ino) {
                self.by_id.remove(&node.id);
            }
            (node.id, node.kind) = (found.id, found.stat.mode & libc::S_IFMT);
            if let Some(before) = self.by_id.insert(found.id, ino).filter(|before| *before != ino) {
                self.clear_names(before);
            }
        }
    }

    /// The same of what this process has made, so that no other node can stand for it.
    pub fn becomes_own(&mut self, ino: Ino, found: &Found) {
        let other = self.find(found).filter(|other| *other != ino);
        debug_assert!(other.is_none(), "{:?} has two nodes: {other:?} and {ino:?}", found.id);
        self.becomes(ino, found);
    }

    /// A node has one name from now on. Answers those that it has lost.
    pub fn keep_name(&mut self, ino: Ino, parent: Ino, name: &OsStr) -> Vec<(Ino, Box<OsStr>)> {
        let Some(node) = self.nodes.get_mut(&ino) else { return Vec::new() };
        let (kept, lost) = std::mem::take(&mut node.names).into_iter().partition(|(dir, text)| *dir == parent && **text == *name);
        node.names = kept;
        lost.iter().for_each(|(dir, name)| self.unindex(ino, *dir, name));
        lost
    }

    /// A node stands for nothing any more; what it stood for gets another.
    pub fn abandon(&mut self, ino: Ino) {
        self.clear_names(ino);
        if let Some(node) = self.nodes.get(&ino)
            && self.by_id.get(&node.id) == Some(&ino)
        {
            self.by_id.remove(&node.id);
        }
    }

    /// A name is gone, or stands for something else.
    pub fn unname(&mut self, ino: Ino, parent: Ino, name: &OsStr) {
        self.moves += 1;
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.names.retain(|(dir, text)| !(*dir == parent && **text == *name));
        }
        self.unindex(ino, parent, name);
    }

    /// A name that a node has got.
    pub fn name(&mut self, ino: Ino, parent: Ino, name: &OsStr) {
        self.moves += 1;
        self.add_name(ino, parent, name);
    }

    fn add_name(&mut self, ino: Ino, parent: Ino, name: &OsStr) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let before = if node.is_open { node.names.clone() } else { Vec::new() };
        node.named(parent, name);
        if node.is_open {
            before.iter().for_each(|(dir, name)| self.unindex(ino, *dir, name));
            self.opened(ino);
        }
    }

    fn clear_names(&mut self, ino: Ino) {
        let names = self.nodes.get_mut(&ino).map(|node| std::mem::take(&mut node.names)).unwrap_or_default();
        names.iter().for_each(|(dir, name)| self.unindex(ino, *dir, name));
    }

    fn unindex(&mut self, ino: Ino, parent: Ino, name: &OsStr) {
        if let Some(names) = self.open.get_mut(&parent)
            && names.get(name) == Some(&ino)
        {
            names.remove(name);
            if names.is_empty() {
                self.open.remove(&parent);
            }
        }
    }

    /// The frame of a node is open from now on.
    pub fn opened(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        node.is_open = true;
        for (parent, name) in &node.names {
            self.open.entry(*parent).or_default().insert(name.clone(), ino);
        }
    }

    /// The frame of a node is not open any more.
    pub fn closed(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        node.is_open = false;
        let names = node.names.clone();
        names.iter().for_each(|(dir, name)| self.unindex(ino, *dir, name));
    }

    /// The node of the frame of that name, if that is open.
    pub fn open_frame(&self, parent: Ino, name: &OsStr) -> Option<Ino> {
        self.open.get(&parent)?.get(name).copied()
    }

    /// All nodes.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, &Node)> {
        self.nodes.iter().map(|(ino, node)| (*ino, &**node))
    }

    /// From the root to a directory: the names on the way, each with its node; none if the way is lost.
    pub fn way(&self, mut ino: Ino) -> Option<Vec<(Ino, OsString)>> {
        let mut way = Vec::new();
        while ino != ROOT {
            let (parent, name) = self.nodes.get(&ino)?.names.first()?;
            way.push((ino, name.to_os_string()));
            if way.len() > MAX_DEPTH {
                return None;
            }
            ino = *parent;
        }
        way.reverse();
        Some(way)
    }
}

/// Deeper than any path can be told to the kernel; more is a circle, made by renames that crossed.
const MAX_DEPTH: usize = 1 << 16;

impl Node {
    fn new(found: &Found, shown: ShownAs) -> Self {
        let kind = found.stat.mode & libc::S_IFMT;
        Node {
            id: found.id,
            kind,
            names: Vec::new(),
            lookups: 0,
            open: Vec::new(),
            was_written: false,
            is_open: false,
            shown,
            is_covered: false,
            is_store: false,
        }
    }

    fn named(&mut self, parent: Ino, name: &OsStr) {
        if self.kind == libc::S_IFDIR {
            self.names.clear(); // a directory has one name
        }
        match self.names.iter().position(|(dir, text)| *dir == parent && **text == *name) {
            Some(0) => {}
            Some(at) => self.names.swap(0, at),
            None => {
                // Most files have one name.
                self.names.reserve_exact(1);
                self.names.insert(0, (parent, name.into()));
                self.names.truncate(NAMES);
            }
        }
    }

    /// Whether the kernel knows it no more.
    pub fn is_forgotten(&self) -> bool {
        self.lookups == 0
    }

    /// The names that it is known by, the last used first.
    pub fn names(&self) -> &[(Ino, Box<OsStr>)] {
        &self.names
    }

    /// Whether it is known by a name.
    pub fn has_name(&self, parent: Ino, name: &OsStr) -> bool {
        self.names.iter().any(|(dir, text)| *dir == parent && **text == *name)
    }

    /// The frame that it is shown as.
    pub fn frame(&self) -> Option<&Arc<TreeFrame>> {
        match &self.shown {
            ShownAs::Frame(frame) => Some(frame),
            ShownAs::Plain => None,
        }
    }
}
