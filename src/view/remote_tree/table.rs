//! The nodes that the kernel knows, but for those inside frames. A node stands for a key in one state: an object that is another now has
//! another node, so that whoever has the one before open reads no mixture.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use super::frame::RemoteFrame;
use crate::store::remote::Tag;
use crate::view::regions::{LAST_NODE, OURS, next_free};
use crate::view::{Decoded, Ino, Kind, ROOT};

/// What a key is found to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A prefix.
    Directory,
    /// An object, which is shown as it is.
    Object(Tag),
    /// A frame: the state of its object, if it is one; what it is shown as; and if its data is, how.
    Frame(Option<Tag>, Kind, Option<Decoded>),
}

/// What a node stands for.
#[derive(Clone)]
pub enum What {
    /// A prefix.
    Directory,
    /// An object.
    Object(Tag),
    /// A frame.
    Frame(Arc<RemoteFrame>),
}

impl What {
    fn is(&self, found: &Found) -> bool {
        match (self, found) {
            (What::Directory, Found::Directory) => true,
            (What::Object(tag), Found::Object(now)) => tag == now,
            (What::Frame(frame), Found::Frame(object, shown, decoded)) => {
                frame.is_object() == object.is_some() && frame.shown == *shown && frame.decoded == *decoded
            }
            _ => false,
        }
    }
}

/// A name that the kernel knows.
#[derive(Clone)]
pub struct Node {
    /// Of a prefix, with a slash behind it.
    pub key: Arc<str>,
    pub parent: Ino,
    /// As clients know it.
    pub name: OsString,
    pub what: What,
    lookups: u64,
}

/// The nodes. Nothing is asked while the lock around it is held.
pub struct Table {
    nodes: HashMap<Ino, Node>,
    by_key: HashMap<Arc<str>, Ino>,
    last: u64,
}

impl Table {
    /// With the root alone, whose key is empty or ends in a slash.
    pub fn new(root: &str) -> Self {
        let node = Node { key: root.into(), parent: ROOT, name: OsString::new(), what: What::Directory, lookups: 1 };
        Table { by_key: HashMap::from([(Arc::clone(&node.key), ROOT)]), nodes: HashMap::from([(ROOT, node)]), last: 0 }
    }

    pub fn get(&self, ino: Ino) -> Option<&Node> {
        self.nodes.get(&ino)
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node that a key has just now.
    pub fn of_key(&self, key: &str) -> Option<Ino> {
        self.by_key.get(key).copied()
    }

    /// The node of what was found, told to the kernel once more.
    pub fn enter(&mut self, parent: Ino, name: &OsStr, key: &str, found: Found) -> Ino {
        if let Some(ino) = self.by_key.get(key).copied()
            && let Some(node) = self.nodes.get_mut(&ino).filter(|node| node.what.is(&found))
        {
            node.lookups += 1;
            if let (What::Frame(frame), Found::Frame(Some(tag), ..)) = (&node.what, found) {
                frame.is_listed_as(tag);
            }
            return ino;
        }
        let ino = Ino(OURS | next_free(&mut self.last, LAST_NODE, |number| self.nodes.contains_key(&Ino(OURS | number))));
        let what = match found {
            Found::Directory => What::Directory,
            Found::Object(tag) => What::Object(tag),
            Found::Frame(object, shown, decoded) => What::Frame(RemoteFrame::new(ino, key, object, shown, decoded)),
        };
        let key: Arc<str> = key.into();
        self.by_key.insert(Arc::clone(&key), ino);
        self.nodes.insert(ino, Node { key, parent, name: name.to_owned(), what, lookups: 1 });
        ino
    }

    /// The kernel gives back what it was told. Answers a node that nobody knows any more.
    pub fn forget(&mut self, ino: Ino, count: u64) -> Option<Node> {
        let node = self.nodes.get_mut(&ino).filter(|_| ino != ROOT)?;
        node.lookups = node.lookups.saturating_sub(count);
        self.drop_unknown(ino)
    }

    /// Drops a node that the kernel does not know any more, unless it stands for a frame that is open.
    pub fn drop_unknown(&mut self, ino: Ino) -> Option<Node> {
        let is_used = |node: &Node| matches!(&node.what, What::Frame(frame) if frame.opened().is_some());
        self.nodes.get(&ino).filter(|node| ino != ROOT && node.lookups == 0 && !is_used(node))?;
        let node = self.nodes.remove(&ino)?;
        if self.by_key.get(&node.key) == Some(&ino) {
            self.by_key.remove(&node.key);
        }
        Some(node)
    }

    /// What was a directory as a frame is one as a prefix.
    pub fn becomes_directory(&mut self, ino: Ino) {
        self.abandon(ino);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.key = format!("{}/", node.key).into();
            node.what = What::Directory;
            self.by_key.insert(Arc::clone(&node.key), ino);
        }
    }

    /// A key gets another node when it is looked up next.
    pub fn abandon(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get(&ino)
            && self.by_key.get(&node.key) == Some(&ino)
        {
            self.by_key.remove(&node.key);
        }
    }
}
