//! Directories whose names are watched, so that the kernel may believe for long what it is told of the frames in them.
//!
//! A frame that is one file, with one name, changes only if its directory's watch tells. What the kernel is told of it is noted; what the
//! watch tells is looked up there, and told to the kernel, which then asks again. Hence the order of things:
//!
//! - it is asked how much was heard of a directory, then the file is looked at, and what was found is noted only if no more was heard;
//! - so what is heard later finds the note;
//! - what the kernel must forget waits for the replies that were being made when it was heard ([`FileSystem::outdated`](crate::view::FileSystem::outdated)).
//!
//! Nobody hears of a change through a mapping of the file before it is unmapped, so that the kernel believes nothing for more than
//! [`WATCHED`](crate::view::WATCHED). Frames that are directories change inside, which their directory's watch does not tell.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd};

use log::debug;
use parking_lot::Mutex;

use super::Tree;
use super::frame::TreeFrame;
use crate::store::local::beneath::Found;
use crate::store::local::watch::NameChange;
use crate::view::{Attr, Good, Ino, Invalidation, Invalidations, Kind, ViewError};

/// So many directories are watched, the first that are listed: each takes a kilobyte of the kernel's memory, and one of the watches that a
/// user may have.
const MOST: usize = 4096;

/// What the kernel was told of names in directories that are watched.
#[derive(Default)]
pub struct WatchedNames {
    /// By directory of frames, and a number for the name. Under this lock that of the watcher is taken, and those of `more` and `files`.
    told: Mutex<HashMap<Ino, HashMap<u64, Note>>>,
    /// Directories whose names are watched. Under this lock those of the table, of `told` and of the watcher are taken.
    directories: Mutex<HashSet<Ino>>,
    /// Files that are watched while they are open. Under this lock those of the table and of the watcher are taken.
    files: Mutex<HashSet<Ino>>,
    /// What else the kernel must forget behind the replies that are being made. A leaf lock.
    more: Mutex<Invalidations>,
    /// Nobody can choose names that have the same number.
    numbers: RandomState,
}

/// What the kernel was told of a name.
#[derive(Debug, Clone, Copy)]
struct Note {
    ino: Ino,
    /// It may believe the attributes too, and not the name alone.
    attr: bool,
}

impl WatchedNames {
    fn number(&self, name: &OsStr) -> u64 {
        self.numbers.hash_one(name)
    }
}

impl Tree {
    /// Watches the names of a directory that frames are in, if that can be done.
    pub(super) fn watch_frames(&self, ino: Ino, dir: BorrowedFd<'_>) {
        if !self.rules.watches || self.shows_data() || self.watched.told.lock().contains_key(&ino) {
            return;
        }
        if !self.watch_names(ino, dir) {
            return;
        }
        match self.frames.resources().watcher().watch_files(ino.0, dir) {
            Ok(()) => drop(self.watched.told.lock().entry(ino).or_default()),
            Err(error) => debug!("{}: names are not watched: {error}", self.path.display()),
        }
    }

    /// Watches the names of a directory, if that can be done; whether it is watched.
    pub(super) fn watch_names(&self, ino: Ino, dir: BorrowedFd<'_>) -> bool {
        if !self.rules.watches {
            return false;
        }
        let mut directories = self.watched.directories.lock();
        if !directories.contains(&ino) {
            if directories.len() >= MOST {
                return false;
            }
            if let Err(error) = self.frames.resources().watcher().watch_names(ino.0, dir) {
                debug!("{}: names are not watched: {error}", self.path.display());
                return false;
            }
            directories.insert(ino);
        }
        true
    }

    /// Whether what others write to files is heard.
    pub(super) fn hears(&self) -> bool {
        self.rules.watches && !self.is_elsewhere
    }

    /// Watches an open file, unless it is a frame's, of which the frame tells. Whether others are heard of.
    pub(super) fn watch_file(&self, ino: Ino) -> bool {
        let open = self.table.lock().get(ino).map(|node| node.open.first().copied());
        let Some(Some(handle)) = open else { return true };
        let Ok(file) = self.passed(handle) else { return true };
        let mut files = self.watched.files.lock();
        if !files.contains(&ino) {
            if let Err(error) = self.frames.resources().watcher().watch_file(ino.0, file.file.as_fd()) {
                debug!("{}: a file is not watched: {error}", self.path.display());
                return false;
            }
            files.insert(ino);
        }
        true
    }

    /// A file is not open any more.
    pub(super) fn leave_file(&self, ino: Ino) {
        let mut files = self.watched.files.lock();
        // Somebody may have opened it again.
        let is_open = || self.table.lock().get(ino).is_some_and(|node| !node.open.is_empty());
        if files.contains(&ino) && !is_open() {
            files.remove(&ino);
            self.frames.resources().watcher().leave_names(ino.0);
        }
    }

    /// The kernel knows a directory no more, and so none of its names.
    pub(super) fn leave_names(&self, ino: Ino) {
        let mut directories = self.watched.directories.lock();
        // It may have got to know it again.
        if directories.contains(&ino) && self.table.lock().get(ino).is_none() {
            directories.remove(&ino);
            self.watched.told.lock().remove(&ino);
            self.frames.resources().watcher().leave_names(ino.0);
        }
    }

    /// The kernel knows a frame no more, by none of its names.
    pub(super) fn leave_notes(&self, ino: Ino, names: &[(Ino, Box<OsStr>)]) {
        let mut told = self.watched.told.lock();
        for (parent, name) in names {
            let number = self.watched.number(name);
            if let Some(notes) = told.get_mut(parent)
                && notes.get(&number).is_some_and(|note| note.ino == ino)
            {
                notes.remove(&number);
            }
        }
    }

    /// A client has renamed what has this name now: the kernel believes the name as long as the one before, of which others can be heard.
    pub(super) fn renamed(&self, to: (Ino, &OsStr)) {
        if self.rules.watches && !self.shows_data() {
            self.outdate([Invalidation::Expired(to.0, to.1.to_owned())]);
        }
    }

    /// How much was heard of a directory's names and their files; none if they are not watched.
    pub(super) fn heard(&self, dir: Ino) -> Option<u64> {
        let heard = self.rules.watches.then(|| self.frames.resources().watcher().heard_of_names(dir.0))?;
        heard.map(|heard| heard.all)
    }

    /// How much was heard of a directory's names alone.
    pub(super) fn heard_of_names(&self, dir: Ino) -> Option<u64> {
        self.frames.resources().watcher().heard_of_names(dir.0).map(|heard| heard.names)
    }

    /// Attributes for the kernel, of what was found under a name when so much had been heard of the directory.
    pub(super) fn good(&self, (parent, name): (Ino, &OsStr), attr: Attr, found: &Found, heard: Option<u64>) -> Attr {
        // Of one that is shown as a file an open frame says how long it is, as of when it last looked.
        let is_it = |frame: &TreeFrame| frame.shown == Kind::Directory || frame.opened().is_none();
        let is_frame = || self.frame_of(Some(attr.ino)).is_some_and(|frame| !frame.is_archive() && is_it(&frame));
        let is_same = || self.table.lock().get(attr.ino).is_some_and(|node| node.id == found.id);
        if heard.is_none() || !found.stat.is_file() || found.stat.links != 1 || !is_frame() || !is_same() {
            return attr;
        }
        let mut told = self.watched.told.lock();
        match told.get_mut(&parent) {
            Some(names) if self.heard(parent) == heard => {
                names.insert(self.watched.number(name), Note { ino: attr.ino, attr: true });
                Attr { good: Good::Watched, ..attr }
            }
            _ => attr,
        }
    }

    /// The same, of a node that the kernel knows.
    pub(super) fn getattr_watched(&self, ino: Ino) -> crate::view::Result<Attr> {
        // One name, or it would have to be known which one was found.
        let name = match self.table.lock().get(ino).map(|node| (node.frame().is_some(), node.names())) {
            Some((true, [(parent, name)])) => Some((*parent, name.clone())),
            _ => None,
        };
        let heard = name.as_ref().and_then(|(parent, _)| self.heard(*parent));
        let frame = self.frame_of(Some(ino));
        let found = match self.stat(ino) {
            // A map outlives the name.
            Err(ViewError::Gone) => {
                let data = frame.filter(|frame| frame.decoded.is_some());
                return data.and_then(|frame| self.last_attr(&frame)).ok_or(ViewError::Gone);
            }
            found => found?,
        };
        if let Some(frame) = frame {
            self.put_elsewhere(&frame, &found);
            if let Some(attr) = frame.given_up.get() {
                return Ok(*attr);
            }
        }
        let attr = self.attr_of(ino, &found)?;
        Ok(match &name {
            Some((parent, name)) => self.good((*parent, name), attr, &found, heard),
            None => attr,
        })
    }

    /// What the kernel was told, or is being told, is true no more.
    pub(super) fn outdate(&self, what: impl IntoIterator<Item = Invalidation>) {
        self.watched.more.lock().extend(what);
        self.frames.resources().watcher().ring();
    }

    /// See [`FileSystem::outdated`](crate::view::FileSystem::outdated).
    pub(super) fn outdated_names(&self) -> Invalidations {
        let mut told = self.watched.told.lock();
        let Some(changes) = self.frames.resources().watcher().name_changes() else {
            // Anything may have become anything.
            told.values_mut().for_each(HashMap::clear);
            return vec![Invalidation::All];
        };
        let mut outdated = std::mem::take(&mut *self.watched.more.lock());
        // Listings too.
        let listed: HashSet<u64> =
            changes.iter().filter(|(_, change)| matches!(change, NameChange::Name(_))).map(|(dir, _)| *dir).collect();
        outdated.extend(listed.into_iter().map(|dir| Invalidation::Data(Ino(dir))));
        // Names first: of what has another name, or is another file, there is more to forget.
        for (dir, change) in &changes {
            if let NameChange::Name(name) = change
                && let Some(note) = told.get_mut(&Ino(*dir)).and_then(|names| names.remove(&self.watched.number(name)))
            {
                outdated.extend([Invalidation::Expired(Ino(*dir), name.clone()), Invalidation::Attr(note.ino)]);
            }
        }
        for (dir, change) in &changes {
            if let NameChange::File(name) = change
                && let Some(note) = told.get_mut(&Ino(*dir)).and_then(|names| names.get_mut(&self.watched.number(name)))
                && std::mem::take(&mut note.attr)
            {
                outdated.push(Invalidation::Attr(note.ino));
            }
            if *change == NameChange::Itself && self.watched.files.lock().contains(&Ino(*dir)) {
                outdated.push(Invalidation::Data(Ino(*dir)));
            }
        }
        outdated
    }
}
