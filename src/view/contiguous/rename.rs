//! Names that move and go: a tool's temporary file onto the frame's name, the frame's file to a backup's name.

use std::ffi::OsStr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::ContiguousView;
use super::layout::Layout;
use super::state::Content;
use crate::store::Draft;
use crate::view::{Ino, Invals, RenameMode, Result, ViewError};

/// How much of a former frame is copied at once.
const COPY_PIECE: usize = 1 << 20;

impl ContiguousView {
    /// Removes a name. Without the frame's file SOURCE stays as it is, until another file takes its place.
    pub(super) fn remove_name(&self, parent: Ino, name: &OsStr, _invals: &mut Invals) -> Result<()> {
        let _writing = self.writing.lock();
        let mut state = self.state.write();
        let ino = state.find(parent, name)?;
        if state.frame == Some(ino) {
            state.overlay = None;
            if state.node(ino)?.open > 0 {
                state.retire_frame(&*self.store);
            }
            state.frame = None;
        }
        state.remove(name, &*self.store);
        Ok(())
    }

    /// Renames.
    pub(super) fn move_name(
        &self,
        (from_dir, from): (Ino, &OsStr),
        (to_dir, to): (Ino, &OsStr),
        mode: RenameMode,
        invals: &mut Invals,
    ) -> Result<()> {
        let _writing = self.writing.lock();
        let (ino, content, onto_frame) = {
            let mut state = self.state.write();
            let ino = state.find(from_dir, from)?;
            state.check_name(to_dir, to)?;
            match mode {
                RenameMode::Exchange => return Err(ViewError::Invalid),
                RenameMode::NoReplace if state.named(to).is_some() => return Err(ViewError::Exists),
                _ if from == to => return Ok(()),
                _ => {}
            }
            if !state.is_frame_name(to) {
                if state.frame == Some(ino) {
                    // What is half written belongs to the name, and would be no backup.
                    if state.seen_overlay().is_some() {
                        return Err(ViewError::Invalid);
                    }
                    state.overlay = None;
                    state.retire_frame(&*self.store);
                }
                state.remove(to, &*self.store);
                state.unlink(from);
                state.link(to.to_owned(), ino);
                return Ok(());
            }
            (ino, state.node(ino)?.content.clone(), to)
        };
        match content {
            Content::Frame => return Ok(()),
            Content::Draft(draft) => self.replace_frame(ino, &draft, invals)?,
            Content::Former(layout) => self.replace_frame(ino, &Mutex::new(self.copy_of(&layout)?), invals)?,
        }
        let mut state = self.state.write();
        state.unlink(from);
        state.install_frame(onto_frame, ino, &*self.store);
        Ok(())
    }

    /// The bytes of a frame that was.
    fn copy_of(&self, layout: &Arc<Layout>) -> Result<Draft> {
        let guard = self.store.enter();
        let mut draft = Draft::new(self.store.drafts());
        let mut piece = vec![0; COPY_PIECE];
        let mut offset = 0;
        while offset < layout.len() {
            let count = layout.read_at(&*self.store, &guard, offset, &mut piece)?;
            draft.write_at(&piece[..count], offset).map_err(|error| self.held_error("hold what was written", error))?;
            offset += count as u64;
        }
        Ok(draft)
    }
}
