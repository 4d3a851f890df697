//! Names that come, move and go: a tool's temporary file onto a file of the frame, and any other way round.

use std::ffi::OsStr;

use super::{FrameFileSystem, Single};
use crate::view::frame_view::{FrameView, Take};
use crate::view::nodes::{LOCK_FILE, Name};
use crate::view::writing::Change;
use crate::view::{Creation, Handle, Ino, Invalidations, OpenMode, RenameMode, Result, ViewError};

impl<V: FrameView> Single<V> {
    /// The inode of a name.
    pub(super) fn find(&self, parent: Ino, name: &OsStr) -> Result<Ino> {
        let state = self.state.read();
        let name = state.parse(parent, name)?.ok_or(ViewError::NotFound)?;
        state.find(&name).ok_or(ViewError::NotFound)
    }

    /// Opens a file, made if there is none.
    pub(super) fn create_file(&self, parent: Ino, name: &OsStr, creation: Creation, mode: OpenMode) -> Result<(Ino, Handle)> {
        let name = self.state.read().parse(parent, name)?;
        if name != Some(Name::LockFile) {
            self.check_writable()?;
        }
        let name = name.ok_or(ViewError::NotPermitted)?;
        let existing = self.state.read().find(&name);
        match existing {
            Some(_) if creation.exclusive => Err(ViewError::Exists),
            Some(ino) => Ok((ino, self.open_file(ino, mode)?)),
            None if name == Name::Delayed => Err(ViewError::NotPermitted),
            None if name == Name::LockFile => {
                self.make_lock_file()?;
                Ok((LOCK_FILE, self.open_file(LOCK_FILE, mode)?))
            }
            None => self.new_file(name, creation, mode),
        }
    }

    fn new_file(&self, name: Name, creation: Creation, mode: OpenMode) -> Result<(Ino, Handle)> {
        let (ino, handle) = {
            let _writing = self.writing.lock();
            let mut state = self.state.write();
            if state.find(&name).is_some() {
                return Err(ViewError::Exists);
            }
            let ino = state.nodes.make(creation.into());
            state.nodes.link(name, ino);
            (ino, state.open(ino, true)?)
        };
        if let Err(error) = self.change(handle, Change::Empty) {
            self.end_handle(handle);
            return Err(error);
        }
        if mode.write {
            return Ok((ino, handle));
        }
        let reading = self.state.write().open(ino, false);
        self.end_handle(handle);
        Ok((ino, reading?))
    }

    /// Removes a name. What the frame's files hold stays in SOURCE until others take their places.
    pub(super) fn remove_name(&self, parent: Ino, name: &OsStr) -> Result<()> {
        self.check_writable()?;
        let _writing = self.writing.lock();
        let name = self.state.read().parse(parent, name)?.ok_or(ViewError::NotFound)?;
        let mut state = V::change_to_take(self, &[&name]);
        state.unlink(&name, Take::Kept)?.map(drop).ok_or(ViewError::NotFound)
    }

    /// Renames.
    pub(super) fn move_name(
        &self,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        mode: RenameMode,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        self.check_writable()?;
        let _writing = self.writing.lock();
        let (from, to, ino, is_taken) = {
            let state = self.state.read();
            let from = state.parse(from.0, from.1)?.ok_or(ViewError::NotFound)?;
            let to = state.parse(to.0, to.1)?.ok_or(ViewError::NotPermitted)?;
            if [&from, &to].into_iter().any(|name| matches!(name, Name::LockFile | Name::Delayed)) {
                return Err(ViewError::NotPermitted);
            }
            if mode == RenameMode::Exchange {
                return Err(ViewError::Invalid);
            }
            let ino = state.find(&from).ok_or(ViewError::NotFound)?;
            let is_taken = state.find(&to).is_some();
            (from, to, ino, is_taken)
        };
        if from == to {
            return Ok(());
        }
        if mode == RenameMode::NoReplace && is_taken {
            return Err(ViewError::Exists);
        }
        match to {
            Name::Frame(file) => V::put(self, &from, ino, file, invalidations),
            Name::Temporary(_) | Name::LockFile | Name::Delayed => self.give_name(&from, &to, ino),
        }
    }

    /// Gives a file, with what it holds, another name. A file that had that name is removed.
    pub(in crate::view) fn give_name(&self, from: &Name, to: &Name, ino: Ino) -> Result<()> {
        let mut state = V::change_to_take(self, &[from, to]);
        if state.find(from) != Some(ino) {
            return Err(ViewError::NotFound);
        }
        state.unlink(from, Take::Moved)?;
        state.unlink(to, Take::Kept)?;
        match to {
            Name::Frame(file) => state.link_frame(*file, ino),
            Name::Temporary(_) | Name::LockFile | Name::Delayed => state.nodes.link(to.clone(), ino),
        }
        Ok(())
    }
}
