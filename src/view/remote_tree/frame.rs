//! A frame of a remote tree: closed, until somebody goes inside.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::store::remote::{RemoteStore, Tag};
use crate::view::open_frames::{self, FrameSlot, Openable};
use crate::view::regions::Numbered;
use crate::view::{Attr, Decoded, Ino, Kind};

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
    pub slot: FrameSlot<Arc<RemoteStore>, Tag>,
    regions: Mutex<HashMap<u64, u64>>,
    /// Attributes of the file that stands for it, and when they were read.
    pub sized: Mutex<Option<(Instant, Attr)>>,
}

/// A frame that is open, with its store.
pub type OpenFrame = open_frames::OpenFrame<Arc<RemoteStore>>;

impl Numbered for RemoteFrame {
    fn ino(&self) -> Ino {
        self.ino
    }

    fn regions(&self) -> &Mutex<HashMap<u64, u64>> {
        &self.regions
    }
}

impl Openable for RemoteFrame {
    type Part = Arc<RemoteStore>;
    type State = Tag;

    fn slot(&self) -> &FrameSlot<Arc<RemoteStore>, Tag> {
        &self.slot
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
            slot: FrameSlot::default(),
            regions: Mutex::default(),
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
        self.slot.opened()
    }
}
