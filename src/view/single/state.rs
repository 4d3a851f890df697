//! The table of nodes, and the frame beside it.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::SystemTime;

use crate::store::{ChunkKey, Draft};
use crate::view::content::Content;
use crate::view::frame_view::{Files, FrameView, Take};
use crate::view::meta::Meta;
use crate::view::names::{DELAYED, delayed, is_suffixed, within_delayed};
use crate::view::nodes::{DELAYED_DIR, LOCK_FILE, Name, Node, Nodes, Number, number_of};
use crate::view::state_lock::{HasChunks, StoreChunks};
use crate::view::writing::Writing;
use crate::view::{Handle, Ino, ROOT, Result, SetAttr, ViewError};

/// What a mount of a frame knows, under one lock.
pub struct State<V> {
    /// Its files, as clients know them.
    pub nodes: Nodes,
    /// The frame.
    pub frame: V,
    /// Chunks in the store.
    pub chunks: StoreChunks,
    /// SOURCE is being read again, after which all of this is another.
    pub is_reloading: bool,
}

/// What an inode stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The root directory.
    Root,
    /// The directory of delayed files.
    Delayed,
    /// The lock file of SOURCE.
    LockFile,
    /// A file of the frame.
    Frame(Number),
    /// A temporary file, or a removed one.
    Own,
}

impl<V> HasChunks for State<V> {
    fn chunks(&mut self) -> &mut StoreChunks {
        &mut self.chunks
    }
}

impl<V: FrameView> State<V> {
    /// What an inode stands for.
    ///
    /// # Errors
    /// [`ViewError::Gone`] if there is no such file any more.
    pub fn place(&self, ino: Ino) -> Result<Place> {
        if ino == ROOT && self.nodes.in_directory() {
            return Ok(Place::Root);
        }
        match self.nodes.name(ino)? {
            Some(Name::LockFile) => Ok(Place::LockFile),
            Some(Name::Delayed) => Ok(Place::Delayed),
            Some(Name::Frame(file)) if self.exists(file) => Ok(Place::Frame(file)),
            Some(Name::Frame(_)) => Err(ViewError::Gone),
            Some(Name::Temporary(_)) | None => Ok(Place::Own),
        }
    }

    /// Whether a file of the frame is there.
    pub fn exists(&self, file: Number) -> bool {
        self.nodes.is_linked(file) || self.frame.content(file).is_some()
    }

    /// The inode of a file of the frame, if it is there.
    pub fn ino(&self, file: Number) -> Option<Ino> {
        self.exists(file).then(|| self.nodes.ino(file))
    }

    /// The inode of a name.
    pub fn find(&self, name: &Name) -> Option<Ino> {
        match name {
            Name::Frame(file) => self.ino(*file),
            Name::Temporary(text) => self.nodes.temporary(text),
            Name::LockFile => (!self.nodes.lock_file_is_gone).then_some(LOCK_FILE),
            Name::Delayed => self.nodes.delayed.map(|_| DELAYED_DIR),
        }
    }

    /// How a name is written in its directory.
    pub fn text(&self, name: &Name) -> OsString {
        match name {
            Name::Frame(file) => self.frame.name(*file),
            Name::Temporary(text) => delayed(text).unwrap_or(text).to_owned(),
            Name::Delayed => DELAYED.into(),
            Name::LockFile => self.nodes.lock_file.clone().unwrap_or_default(),
        }
    }

    /// The name that a file has in a directory, or had when it was a file of the frame that others have changed since.
    pub fn last_name(&self, ino: Ino) -> Option<(Ino, OsString)> {
        let name = self.nodes.name(ino).unwrap_or_else(|_| number_of(ino).map(Name::Frame))?;
        let is_delayed = matches!(&name, Name::Temporary(text) if delayed(text).is_some());
        Some((if is_delayed { DELAYED_DIR } else { ROOT }, self.text(&name)))
    }

    /// Returns whether a temporary name is that of a whole copy that waits for its place in the frame: one that must not be lost.
    pub fn is_copy(&self, text: &OsStr) -> bool {
        let is_frames = |of: &OsStr| matches!(self.frame.parse(of), Some(Name::Frame(_)));
        delayed(text).is_some() || V::TAKES_SUFFIXES && is_suffixed(text, is_frames)
    }

    /// Such files, and the directory of delayed ones.
    pub fn has_copies(&self) -> bool {
        let is_copy = |node: &Node| matches!(&node.name, Some(Name::Temporary(text)) if self.is_copy(text));
        self.nodes.delayed.is_some() || self.nodes.iter().any(|(_, node)| is_copy(node))
    }

    /// What a file holds, a draft that was refused left aside.
    ///
    /// # Errors
    /// It is a directory; it is gone.
    pub fn content(&self, ino: Ino) -> Result<Content> {
        match self.nodes.get(ino).and_then(Node::seen_writing) {
            Some(writing) => Ok(Content::Draft(Arc::clone(writing))),
            None => self.settled(ino),
        }
    }

    /// What a file held before a draft of it was begun.
    ///
    /// # Errors
    /// As [`State::content`].
    pub fn settled(&self, ino: Ino) -> Result<Content> {
        if ino == ROOT && self.nodes.in_directory() {
            return Err(ViewError::IsDirectory);
        }
        match self.nodes.name(ino)? {
            Some(Name::Frame(file)) => {
                let made = || self.nodes.is_linked(file).then_some(Content::Empty);
                self.frame.content(file).or_else(made).ok_or(ViewError::Gone)
            }
            Some(Name::LockFile) => Err(ViewError::Invalid),
            Some(Name::Delayed) => Err(ViewError::IsDirectory),
            Some(Name::Temporary(_)) | None => Ok(self.nodes.get(ino).map_or(Content::Empty, |node| node.kept.clone())),
        }
    }

    /// Notes the length of a stored chunk, if a file still holds it.
    pub fn learn(&self, ino: Ino, key: ChunkKey, len: u32) {
        if let Ok(Place::Frame(file)) = self.place(ino) {
            self.frame.learn(file, key, len);
        }
    }

    /// Owner, mode and times of a file.
    pub fn meta(&self, ino: Ino) -> Meta {
        let since = || number_of(ino).and_then(|file| self.frame.about(Some(file)).since);
        let at_mount = || Meta { mtime: since().unwrap_or(self.nodes.source.mtime), ..self.nodes.source };
        self.nodes.get(ino).map_or_else(at_mount, |node| node.meta)
    }

    /// The node of a file that is there, made if it had none.
    ///
    /// # Errors
    /// It is a directory; it is gone.
    pub fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        match self.place(ino)? {
            Place::Frame(file) if self.nodes.get(ino).is_none() => {
                let meta = self.meta(ino);
                self.nodes.insert(ino, Name::Frame(file), meta);
            }
            Place::Root | Place::Delayed => return Err(ViewError::IsDirectory),
            Place::LockFile => return Err(ViewError::Invalid),
            Place::Frame(_) | Place::Own => {}
        }
        self.nodes.get_mut(ino).ok_or(ViewError::Gone)
    }

    /// Sets all attributes but the size. A time of what is being written is the caller's to set, without this lock.
    pub fn set_attributes(&mut self, ino: Ino, set: &SetAttr) -> Result<Option<Content>> {
        match (self.place(ino)?, &mut self.nodes.delayed) {
            (Place::Root, _) => {
                self.nodes.directory.change(set);
                return Ok(None);
            }
            (Place::Delayed, Some(meta)) => {
                meta.change(set);
                return Ok(None);
            }
            _ => {}
        }
        let settled = self.settled(ino)?;
        let node = self.node(ino)?;
        let before = node.meta.mtime;
        node.meta.change(set);
        Ok(match &node.writing {
            None => Some(settled),
            Some(writing) => {
                // It is that of what is being written, which may be refused: the old bytes keep theirs.
                if set.mtime.is_some() && !writing.is_refused() {
                    node.meta.mtime = before;
                }
                Some(Content::Draft(Arc::clone(writing)))
            }
        })
    }

    /// The entries of a directory from a cookie on, at most so many: each with the cookie that stands behind it, and its inode.
    pub fn list(&self, directory: Ino, cookie: u64, most: usize) -> Vec<(u64, Ino, OsString)> {
        if directory == DELAYED_DIR {
            return self.nodes.delayed_from(cookie).take(most).collect();
        }
        let from = Number(cookie);
        let mut files = self.frame.files(Files::From(from), most);
        let last = if files.len() < most { None } else { files.last().copied() };
        let made = self.nodes.linked(from).take_while(|file| last.is_none_or(|last| *file < last));
        files.extend(made.filter(|file| self.frame.content(*file).is_none()));
        files.sort_unstable();
        let files = files.into_iter().map(|file| (file.0 + 1, self.nodes.ino(file), self.frame.name(file)));
        files.chain(self.nodes.others_from(cookie)).take(most).collect()
    }

    // --- handles ---

    /// Opens a file.
    ///
    /// # Errors
    /// It is a directory; it is gone.
    pub fn open(&mut self, ino: Ino, write: bool) -> Result<Handle> {
        if write {
            self.node(ino)?;
        } else if matches!(self.place(ino)?, Place::Root | Place::Delayed) {
            return Err(ViewError::IsDirectory);
        }
        Ok(self.nodes.open(ino, write))
    }

    /// Ends a handle, and with the last one what only it kept alive. Answers the file of the frame that nobody can write to any more.
    pub fn close(&mut self, handle: Handle) -> Option<Number> {
        let (open, ends) = self.nodes.close(handle)?;
        if ends {
            self.drop_node(open.ino);
        }
        let node = self.nodes.get(open.ino).filter(|node| open.write && node.writers == 0)?;
        // Nobody has seen any of it since it was refused, so nothing is said: see `FileSystem::release`.
        let is_refused = node.writing.as_ref().is_some_and(|writing| writing.is_refused());
        let file = match node.name {
            Some(Name::Frame(file)) => Some(file),
            _ => None,
        };
        if is_refused {
            self.end_writing(open.ino, false);
        }
        file
    }

    /// The kernel has forgotten a file.
    pub fn forget(&mut self, ino: Ino) {
        if self.nodes.forget(ino) {
            self.drop_node(ino);
        }
    }

    fn drop_node(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.remove(ino) {
            self.chunks.unpin(node.kept.keys());
        }
    }

    /// Ends every pin, as nobody uses anything any more.
    pub fn unpin_all(&mut self) {
        let kept: Vec<Ino> = self.nodes.iter().filter(|(_, node)| node.kept.is_of_store()).map(|(ino, _)| ino).collect();
        for ino in kept {
            if let Some(node) = self.nodes.get_mut(ino) {
                self.chunks.unpin(std::mem::replace(&mut node.kept, Content::Empty).keys());
            }
        }
    }

    // --- names ---

    /// Takes a name away. What the file held stays with it while somebody has it open, or if it is not dropped: one that is about to
    /// open it must find it as long as the kernel knows it. Answers the file, if there was one.
    ///
    /// # Errors
    /// What keeps the frame from losing it; then nothing is changed.
    pub fn unlink(&mut self, name: &Name, how: Take) -> Result<Option<Ino>> {
        match name {
            Name::LockFile => return Err(ViewError::NotPermitted),
            Name::Delayed => return Err(ViewError::IsDirectory),
            Name::Frame(_) | Name::Temporary(_) => {}
        }
        let Some(ino) = self.find(name) else { return Ok(None) };
        let how = if how == Take::Dropped && self.nodes.is_open(ino) { Take::Kept } else { how };
        if how != Take::Dropped {
            self.node(ino)?;
        }
        let kept = match name {
            Name::Frame(file) => Some(V::take(self, *file, how)?),
            Name::Temporary(_) | Name::LockFile | Name::Delayed => None,
        };
        self.nodes.unlink(name);
        match (self.nodes.get_mut(ino), kept) {
            (Some(node), Some(kept)) => node.kept = kept,
            (Some(_), None) => {}
            (None, kept) => kept.into_iter().for_each(|kept| self.chunks.unpin(kept.keys())),
        }
        if how == Take::Dropped {
            self.drop_node(ino);
        }
        Ok(Some(ino))
    }

    /// Gives a file without a name that of a file of the frame, whose content is what the file holds from now on.
    pub fn link_frame(&mut self, file: Number, ino: Ino) {
        self.nodes.link(Name::Frame(file), ino);
        if let Some(node) = self.nodes.get_mut(ino) {
            self.chunks.unpin(std::mem::replace(&mut node.kept, Content::Empty).keys());
        }
    }

    // --- drafts ---

    /// Begins a draft of a file in place of what it holds now, with bytes written at that time.
    pub fn begin(&mut self, ino: Ino, bytes: Draft, mtime: SystemTime) -> Result<Arc<Writing>> {
        let writing = Arc::new(Writing::new(self.nodes.serial(), bytes, mtime));
        if let Some(old) = self.node(ino)?.writing.replace(Arc::clone(&writing)) {
            old.detach();
        }
        if let Ok(Place::Frame(file)) = self.place(ino) {
            self.frame.begun(file);
        }
        Ok(writing)
    }

    /// Ends a file's draft. If it was `accepted`, the file has its time.
    pub fn end_writing(&mut self, ino: Ino, accepted: bool) {
        if let Some(node) = self.nodes.get_mut(ino)
            && let Some(writing) = node.writing.take()
        {
            writing.detach();
            if accepted {
                let mtime = writing.inner.read_recursive().mtime;
                (node.meta.mtime, node.meta.ctime) = (mtime, mtime);
                if matches!(node.name, Some(Name::Frame(_))) {
                    self.nodes.written = if mtime >= self.nodes.written { mtime } else { SystemTime::now() };
                }
            }
        }
    }

    /// Whether this is a file's draft, and the file of the frame is still its place.
    pub fn is_current(&self, ino: Ino, file: Number, writing: &Arc<Writing>) -> bool {
        let node = self.nodes.get(ino).filter(|node| node.name == Some(Name::Frame(file)));
        node.and_then(|node| node.writing.as_ref()).is_some_and(|now| Arc::ptr_eq(now, writing))
    }

    /// The draft that a handle has a part in, with its file and that file's place in the frame.
    ///
    /// # Errors
    /// There is no such handle.
    pub fn joined(&self, handle: Handle) -> Result<Option<(Ino, Number, Arc<Writing>)>> {
        let open = self.nodes.handle(handle)?;
        let writing = self.nodes.get(open.ino).and_then(|node| node.writing.as_ref());
        let writing = writing.filter(|writing| open.has_part_in(writing.serial));
        Ok(match (writing, self.place(open.ino)) {
            (Some(writing), Ok(Place::Frame(file))) => Some((open.ino, file, Arc::clone(writing))),
            _ => None,
        })
    }

    /// Whether a name can be looked for in a directory.
    ///
    /// # Errors
    /// The parent is none; the name is too long.
    pub fn parse(&self, parent: Ino, name: &OsStr) -> Result<Option<Name>> {
        if !self.nodes.in_directory() || parent != ROOT && parent != DELAYED_DIR {
            return Err(ViewError::NotDirectory);
        }
        match self.nodes.lock_file.as_deref() {
            _ if name.len() > 255 => Err(ViewError::NameTooLong),
            _ if parent == DELAYED_DIR && self.nodes.delayed.is_none() => Err(ViewError::NotFound),
            _ if parent == DELAYED_DIR => {
                let is_delayed = *name != *DELAYED && self.frame.parse(name).is_some();
                Ok(is_delayed.then(|| Name::Temporary(within_delayed(name))))
            }
            Some(lock_file) if lock_file == name => Ok(Some(Name::LockFile)),
            _ if *name == *DELAYED => Ok(Some(Name::Delayed)),
            _ => Ok(self.frame.parse(name)),
        }
    }
}
