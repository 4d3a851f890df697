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
use crate::store::local::beneath::Found;
use crate::store::local::watch::{self, NameChange};
use crate::store::walk::STORE_MARK;
use crate::view::{Attr, Good, Ino, Invalidation, Invalidations};

/// So many directories are watched, the first that are listed: each takes a kilobyte of the kernel's memory, and one of the watches that a
/// user may have.
const MOST: usize = 4096;

/// What the kernel was told of names in directories that are watched.
#[derive(Default)]
pub struct WatchedNames {
    /// By directory, and a number for the name. The watcher's lock is taken under this one, and nothing else.
    told: Mutex<HashMap<Ino, HashMap<u64, Note>>>,
    /// Files that are watched while they are open. The watcher's lock is taken under this one, and nothing else.
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
    pub(super) fn watch_names(&self, ino: Ino, dir: BorrowedFd<'_>) {
        let watcher = self.frames.resources().watcher();
        if !self.rules.watches || self.shows_data() || self.heard(ino).is_some() || self.watched.told.lock().len() >= MOST {
            return;
        }
        match watcher.watch_names(ino.0, dir) {
            Ok(()) => drop(self.watched.told.lock().insert(ino, HashMap::new())),
            Err(error) => debug!("{}: names are not watched: {error}", self.path.display()),
        }
    }

    /// Whether what others write to files is heard.
    pub(super) fn hears(&self) -> bool {
        self.rules.watches && watch::is_elsewhere(self.root.as_fd()).is_ok_and(|elsewhere| !elsewhere)
    }

    /// Watches an open file.
    pub(super) fn watch_file(&self, ino: Ino) {
        let open = self.table.lock().get(ino).and_then(|node| node.open.first().copied());
        let Some(Ok(file)) = open.map(|handle| self.passed(handle)) else { return };
        let mut files = self.watched.files.lock();
        if !files.contains(&ino) {
            match self.frames.resources().watcher().watch_file(ino.0, file.file.as_fd()) {
                Ok(()) => drop(files.insert(ino)),
                Err(error) => debug!("{}: a file is not watched: {error}", self.path.display()),
            }
        }
    }

    /// A file is not open any more.
    pub(super) fn leave_file(&self, ino: Ino) {
        if self.watched.files.lock().remove(&ino) {
            self.frames.resources().watcher().leave_names(ino.0);
        }
    }

    /// The kernel knows a directory no more, and so none of its names.
    pub(super) fn leave_names(&self, ino: Ino) {
        if self.watched.told.lock().remove(&ino).is_some() {
            self.frames.resources().watcher().leave_names(ino.0);
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
        let is_frame = || self.frame_of(Some(attr.ino)).is_some_and(|frame| !frame.is_archive());
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
        let found = self.stat(ino)?;
        let attr = self.attr_of(ino, &found)?;
        Ok(match &name {
            Some((parent, name)) => self.good((*parent, name), attr, &found, heard),
            None => attr,
        })
    }

    /// What the kernel was told, or is being told, is true no more.
    pub(super) fn is_outdated(&self, what: impl Iterator<Item = Invalidation>) {
        self.watched.more.lock().extend(what);
        self.frames.resources().watcher().ring();
    }

    /// See [`FileSystem::outdated`](crate::view::FileSystem::outdated).
    pub(super) fn outdated_names(&self) -> Invalidations {
        let mut told = self.watched.told.lock();
        let changes = self.frames.resources().watcher().name_changes();
        let is_mark = |change: &(u64, NameChange)| matches!(&change.1, NameChange::Name(name) if name == STORE_MARK);
        let Some(changes) = changes.filter(|changes| !changes.iter().any(is_mark)) else {
            // Anything may have become anything.
            told.values_mut().for_each(HashMap::clear);
            return vec![Invalidation::All];
        };
        let mut outdated = std::mem::take(&mut *self.watched.more.lock());
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
