//! Copies that wait for their places in the frame: the directory `.~tmp~` of `rsync --delay-updates`, and what is left of them at the end.

use std::ffi::OsStr;

use super::Single;
use crate::store::ReadAt;
use crate::view::frame_view::FrameView;
use crate::view::nodes::{DELAYED_DIR, Name, Node};
use crate::view::{Creation, Ino, Lost, Result, ViewError};

impl<V: FrameView> Single<V> {
    /// Makes the directory of delayed files, which is the only one that a frame takes.
    pub(super) fn make_directory(&self, parent: Ino, name: &OsStr, creation: Creation) -> Result<Ino> {
        self.check_writable()?;
        let _writing = self.writing.lock();
        let mut state = self.state.write();
        match state.parse(parent, name)? {
            Some(name) if state.find(&name).is_some() => Err(ViewError::Exists),
            Some(Name::Delayed) => {
                state.nodes.delayed = Some(creation.into());
                Ok(DELAYED_DIR)
            }
            _ => Err(ViewError::NotPermitted),
        }
    }

    /// Removes it, once it is empty.
    pub(super) fn remove_directory(&self, parent: Ino, name: &OsStr) -> Result<()> {
        self.check_writable()?;
        let _writing = self.writing.lock();
        let mut state = self.state.write();
        let name = state.parse(parent, name)?.ok_or(ViewError::NotFound)?;
        match state.find(&name) {
            None => Err(ViewError::NotFound),
            Some(_) if name != Name::Delayed => Err(ViewError::NotDirectory),
            Some(_) if state.nodes.delayed_from(0).next().is_some() => Err(ViewError::NotEmpty),
            Some(_) => {
                state.nodes.delayed = None;
                Ok(())
            }
        }
    }

    /// Saves copies beside SOURCE that were never given the name of a file of the frame.
    pub(super) fn save_copies(&self) -> Vec<Lost> {
        let copies: Vec<_> = {
            let state = self.state.read();
            let copy = |node: &Node| match (&node.name, node.seen_writing()) {
                (Some(name @ Name::Temporary(text)), Some(writing)) if state.is_copy(text) => {
                    Some((state.text(name), writing.clone()))
                }
                _ => None,
            };
            state.nodes.iter().filter_map(|(_, node)| copy(node)).collect()
        };
        let mut lost = Vec::new();
        for (name, writing) in copies {
            let inner = writing.inner.read();
            if !inner.bytes.is_empty() {
                lost.push(self.save(name.to_string_lossy().into(), [writing.serial, inner.version], &inner.bytes));
            }
        }
        lost
    }
}
