//! A whole frame as one file.
//!
//! - [`layout`]: which chunk is where in the file;
//! - [`overlay`]: what clients have written over it; `moved`: which parts are only moved.

use std::io;
use std::sync::Arc;

use self::layout::FileLayout;
use self::overlay::{Overlaid, Overlay};
use crate::store::{FrameStore, ReadGuard, StoreError};

pub mod layout;
pub mod moved;
pub mod overlay;

/// What the file of a frame holds, or held.
#[derive(Debug, Clone)]
pub struct FrameFile {
    pub layout: Arc<FileLayout>,
    /// What is written over it.
    pub overlay: Option<Arc<Overlay>>,
}

impl FrameFile {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.overlay.as_ref().map_or_else(|| self.layout.len(), |overlay| overlay.inner.read().len())
    }

    /// Reads; a short count means the end. `guard` is older than the look-up of the file.
    ///
    /// # Errors
    /// What the file system says that holds what was written; what the store says.
    pub fn read(
        &self,
        store: &dyn FrameStore,
        guard: &ReadGuard<'_>,
        offset: u64,
        buf: &mut [u8],
    ) -> io::Result<std::result::Result<usize, StoreError>> {
        match &self.overlay {
            None => Ok(self.layout.read_at(store, guard, offset, buf)),
            Some(overlay) => Overlaid { store, guard, layout: &self.layout, overlay }.read_at(buf, offset).map(Ok),
        }
    }
}
