//! What the contiguous view knows of the frame: what its file holds.

use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::SystemTime;

use crate::store::{ChunkKey, FrameStore};
use crate::view::Result;
use crate::view::frame_file::FrameFile;
use crate::view::frame_file::layout::{FileLayout, Outline};
use crate::view::frame_file::overlay::Overlay;
use crate::view::nodes::Number;
use crate::view::single::State;
use crate::view::xattr::FormerLens;

/// The number of the one file.
pub const FRAME: Number = Number(0);

/// A frame as one file.
#[derive(Debug)]
pub struct Contiguous {
    /// The file's name; where the mount point is the file, SOURCE's.
    pub name: OsString,
    /// The last state that was installed: what the file holds, but for the overlay.
    pub layout: Arc<FileLayout>,
    /// Another mount would show it otherwise.
    pub is_relaid: bool,
    /// What clients may still take for the file's length.
    pub former_lens: FormerLens,
    /// What is written over it.
    pub overlay: Option<Arc<Overlay>>,
    /// The file was removed, or has another name now.
    pub is_gone: bool,

    /// Chunks of `layout` that no commit has taken yet.
    pub staged: HashSet<ChunkKey>,
    /// Counts installed states.
    pub version: u64,
    /// `version` as of the last commit.
    pub published: u64,
}

impl Contiguous {
    /// What a store has, laid out by an outline of it if there is one.
    ///
    /// # Errors
    /// What it cannot read.
    pub fn load(store: &dyn FrameStore, name: OsString, outline: Option<&Outline>) -> Result<Self> {
        Ok(Contiguous {
            name,
            layout: Arc::new(FileLayout::load(store, outline)?),
            is_relaid: outline.is_some(),
            former_lens: FormerLens::default(),
            overlay: None,
            is_gone: false,
            staged: HashSet::new(),
            version: 0,
            published: 0,
        })
    }

    /// Lets the file show no more bytes of SOURCE that belong to no part of the frame: the store is about to write there.
    pub fn leave_source(&mut self) {
        self.is_relaid = true;
        if let Some(cleared) = self.layout.cleared() {
            self.layout = Arc::new(cleared);
        }
    }

    /// What the file holds.
    pub fn file(&self) -> FrameFile {
        FrameFile { layout: Arc::clone(&self.layout), overlay: self.seen_overlay().cloned() }
    }

    /// Whether the last commit took what was installed last.
    pub fn is_published(&self) -> bool {
        self.version == self.published
    }

    /// What is written over the layout and seen by readers.
    pub fn seen_overlay(&self) -> Option<&Arc<Overlay>> {
        self.overlay.as_ref().filter(|overlay| !overlay.refused())
    }
}

impl State<Contiguous> {
    /// Handles that may write to the frame.
    pub fn frame_writers(&self) -> u32 {
        self.ino(FRAME).map_or(0, |ino| self.nodes.writers(ino))
    }

    /// Whether somebody who has a part in what is written may write on.
    pub fn has_writer(&self) -> bool {
        let serial = self.frame.overlay.as_ref().map(|overlay| overlay.serial);
        serial.is_some_and(|serial| self.nodes.handles().any(|open| open.has_part_in(serial)))
    }

    /// Takes note of when the frame's file was written to.
    pub fn frame_changed(&mut self, mtime: SystemTime) {
        if let Some(Ok(node)) = self.ino(FRAME).map(|ino| self.node(ino)) {
            node.meta.written(mtime);
        }
    }
}
