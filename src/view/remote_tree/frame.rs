//! A frame of a remote tree: closed, until somebody goes inside.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};

use crate::store::remote::{RemoteStore, Tag};
use crate::view::regions::Numbered;
use crate::view::{Attr, Decoded, FileSystem, FrameFileSystem, Ino, Kind};

/// A frame.
pub struct RemoteFrame {
    /// What stands for it in the tree.
    pub ino: Ino,
    /// The key of its object, or its prefix without a slash.
    pub key: String,
    /// A directory, or a file.
    pub shown: Kind,
    /// What its data is shown as, if that is what is shown.
    pub decoded: Option<Decoded>,
    /// The state of its object, as a listing told of it; none of a prefix.
    listed: Mutex<Option<Tag>>,
    /// Held while it is opened or closed.
    pub changing: Mutex<Closed>,
    pub current: RwLock<Option<Arc<OpenFrame>>>,
    regions: Mutex<HashMap<u64, u64>>,
    /// How often its files were not the same any more when it was opened again.
    pub lineage: AtomicU64,
    /// Attributes of the file that stands for it, and when they were read.
    pub sized: Mutex<Option<(Instant, Attr)>>,
}

/// What is known of a frame that is closed.
#[derive(Default)]
pub struct Closed {
    /// Its state when it was closed, if its files can keep their inodes.
    pub left: Option<Tag>,
    /// How often it was opened.
    pub openings: u64,
}

/// A frame that is open.
pub struct OpenFrame {
    pub view: Box<dyn FrameFileSystem>,
    pub store: Arc<RemoteStore>,
    /// Which of the frame's openings it is.
    pub opening: u64,
    /// Bytes of memory that it takes.
    pub weight: u64,
    /// When it was last used, by a count of all uses.
    pub used: AtomicU64,
}

impl OpenFrame {
    pub fn fs(&self) -> &dyn FileSystem {
        &*self.view
    }
}

impl Numbered for RemoteFrame {
    fn ino(&self) -> Ino {
        self.ino
    }

    fn regions(&self) -> &Mutex<HashMap<u64, u64>> {
        &self.regions
    }
}

impl RemoteFrame {
    pub fn new(ino: Ino, key: &str, listed: Option<Tag>, shown: Kind, decoded: Option<Decoded>) -> Arc<Self> {
        Arc::new(RemoteFrame {
            ino,
            key: key.to_owned(),
            shown,
            decoded,
            listed: Mutex::new(listed),
            changing: Mutex::default(),
            current: RwLock::default(),
            regions: Mutex::default(),
            lineage: AtomicU64::new(0),
            sized: Mutex::default(),
        })
    }

    /// Whether it is one object, and not a prefix.
    pub fn is_object(&self) -> bool {
        self.listed.lock().is_some()
    }

    /// The state of its object.
    pub fn listed(&self) -> Option<Tag> {
        self.listed.lock().clone()
    }

    /// A listing tells of its object.
    pub fn is_listed_as(&self, tag: Tag) {
        let before = self.listed.lock().replace(tag.clone());
        if before != Some(tag) {
            *self.sized.lock() = None;
        }
    }

    /// The same, if it is open.
    pub fn opened(&self) -> Option<Arc<OpenFrame>> {
        self.current.read().clone()
    }

    /// Takes it away from those who come, if `may` and nobody uses it just now.
    pub fn take(&self, may: impl FnOnce(&OpenFrame) -> bool) -> Option<OpenFrame> {
        let mut current = self.current.write();
        let open = current.take_if(|open| Arc::strong_count(open) == 1 && may(open))?;
        Arc::try_unwrap(open).map_err(|open| *current = Some(open)).ok()
    }
}
