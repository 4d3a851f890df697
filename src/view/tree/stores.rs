//! Stores of python-blosc2, in which frames are files in the view and in DIR: python-blosc2 looks for files there, and silently skips a leaf that is a
//! directory.
//!
//! A directory is a store by its name, or from the moment on when `embed.b2e` is in it, until the kernel forgets the directory. What was stored in it as a directory before is
//! rewritten as a file then, each frame in one step. So is what comes into a store by another name.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use log::warn;

use super::claims::{Key, With};
use super::frame::TreeFrame;
use super::handles::PassedFile;
use super::making::like_copied;
use super::place::At;
use super::{Tree, forget_name, hidden, rules};
use crate::format::Layout;
use crate::store::copy::FrameCopy;
use crate::store::local::beneath::{self, Found};
use crate::store::walk::{STORE_MARK, has_store_suffix};
use crate::store::{Location, NewFrame, in_words};
use crate::view::{Ino, Invalidations, Kind, Result, ViewError};

/// Directories in a store are not gone into deeper than this.
const DEPTH: usize = 32;

impl Tree {
    /// A file was closed: if it makes a store of its directory, what is in there becomes what a store holds.
    pub(super) fn closed(&self, file: &PassedFile, invalidations: &mut Invalidations) {
        if !file.write || self.rules.read_only {
            return;
        }
        let name = self.table.lock().get(file.ino).and_then(|node| node.names().first().cloned());
        let Some((parent, _)) = name.filter(|(_, name)| **name == *STORE_MARK) else { return };
        self.becomes_store(parent, invalidations);
    }

    /// The mark is in a directory: what is in there becomes what a store holds.
    fn becomes_store(&self, parent: Ino, invalidations: &mut Invalidations) {
        if self.rules.read_only || !self.stores.lock().insert(parent) {
            return;
        }
        self.is_store(parent);
        // What becomes a frame there from now on sees the mark.
        self.claims.wait_for(Key::Within(parent));
        self.rewrite(parent, DEPTH, invalidations);
    }

    /// Whether a directory holds the mark, or has held it since the kernel knows the directory. A client that removes a store removes the mark at
    /// any time: the other names keep their kinds until they go.
    pub(super) fn is_store(&self, ino: Ino) -> bool {
        if self.table.lock().get(ino).is_some_and(|node| node.is_store) {
            return true;
        }
        let is_store = self.dir(ino).is_ok_and(|dir| rules::is_store(dir.as_fd()));
        if is_store && let Some(node) = self.table.lock().get_mut(ino) {
            node.is_store = true;
        }
        is_store
    }

    /// Notes that a directory is a store, before its mark loses the name.
    pub(super) fn keeps_store(&self, (parent, name): (Ino, &OsStr)) {
        if *name == *STORE_MARK {
            self.is_store(parent);
        }
    }

    /// A name stands for what it did no longer: it could have been the mark.
    pub(super) fn leaves_mark(&self, (parent, name): (Ino, &OsStr)) {
        if *name == *STORE_MARK {
            self.stores.lock().remove(&parent);
        }
    }

    /// Whether what has a name comes into a store, or becomes one, by another name.
    pub(super) fn enters_store(&self, from: (Ino, &OsStr), to: (Ino, &OsStr)) -> bool {
        let becomes = has_store_suffix(to.1) && !has_store_suffix(from.1);
        let comes = becomes || from.0 != to.0 && self.is_in_store(to.0);
        // Where data is shown, frames are not for clients to change.
        comes && !self.shows_data() && !self.is_in_store(from.0)
    }

    /// That what comes into a store can be rewritten there.
    ///
    /// # Errors
    /// [`ViewError::InUse`] of a frame that somebody is writing.
    pub(super) fn check_enters(&self, (parent, name): (Ino, &OsStr)) -> Result<()> {
        let dir = self.dir(parent)?;
        let Ok(found) = beneath::look(dir.as_fd(), name) else { return Ok(()) };
        let known = self.table.lock().find(&found);
        let is_written = |frame: Arc<TreeFrame>| frame.writers.load(Relaxed) > 0 && !frame.is_archive();
        if self.frame_of(known).is_some_and(is_written) { Err(ViewError::InUse) } else { Ok(()) }
    }

    /// A name stands for what had another name, or for another of its names.
    pub(super) fn has_come(&self, (parent, name): (Ino, &OsStr), enters: bool, invalidations: &mut Invalidations) {
        let is_mark = *name == *STORE_MARK;
        let Some(dir) = (is_mark || enters).then(|| self.dir(parent).ok()).flatten() else { return };
        if is_mark && rules::is_store(dir.as_fd()) {
            return self.becomes_store(parent, invalidations);
        }
        if enters && let Ok((ino, found)) = self.enter_at(parent, name, dir.as_fd(), name) {
            self.rewrite_name(ino, At { parent, dir: dir.as_fd(), name }, &found, DEPTH, invalidations);
            self.forget_one(ino);
        }
    }

    /// Rewrites all frames in a directory that are directories, and shows as files what are files.
    fn rewrite(&self, parent: Ino, depth: usize, invalidations: &mut Invalidations) {
        let Ok(dir) = self.dir(parent) else { return };
        let mut names = Vec::new();
        let listed = beneath::list(dir.as_fd(), 0, &mut |entry| {
            let may_be_frame = matches!(entry.kind, libc::S_IFDIR | 0) || self.rules.is_name(entry.name);
            if may_be_frame && !hidden::is_ours(entry.name) {
                names.push(entry.name.to_owned());
            }
            true
        });
        if let Err(error) = listed {
            let path = self.path.join(self.path_of(parent, OsStr::new("")));
            warn!("{}: {}", path.display(), in_words(&error));
        }
        for name in names {
            // So its node stays until it is rewritten.
            let Ok((ino, found)) = self.enter_at(parent, &name, dir.as_fd(), &name) else { continue };
            self.rewrite_name(ino, At { parent, dir: dir.as_fd(), name: &name }, &found, depth, invalidations);
            self.forget_one(ino);
        }
    }

    fn rewrite_name(&self, ino: Ino, at: At<'_>, found: &Found, depth: usize, invalidations: &mut Invalidations) {
        if self.is_covering(found) {
            return;
        }
        let rewritten = match self.rules.look(at.dir, at.name, found) {
            Some(Layout::Sparse) => self.rewrite_frame(ino, at, found, invalidations),
            Some(Layout::Contiguous) => self.is_shown_as_file(ino, at, invalidations),
            None if found.stat.is_dir() && depth > 0 => {
                self.rewrite(ino, depth - 1, invalidations);
                Ok(())
            }
            None => Ok(()),
        };
        if let Err(error) = rewritten {
            let path = self.path.join(self.path_of(at.parent, at.name));
            warn!("{}: stays a directory, which Python-Blosc2 does not see: {error}", path.display());
        }
    }

    /// A frame that is a file was perhaps shown as a directory until now. What is shown as another kind of file gets another node.
    fn is_shown_as_file(&self, ino: Ino, at: At<'_>, invalidations: &mut Invalidations) -> Result<()> {
        let frame = self.frame_of(Some(ino)).filter(|frame| frame.shown == Kind::Directory && !frame.is_archive());
        if let Some(frame) = frame {
            self.quiesce(&frame, invalidations)?;
            self.shows_anew(ino);
            invalidations.push(forget_name(at.parent, at.name));
        }
        Ok(())
    }

    pub(super) fn rewrite_frame(&self, ino: Ino, at: At<'_>, found: &Found, invalidations: &mut Invalidations) -> Result<()> {
        let name = (Key::Name(at.parent, at.name.to_owned()), With::Nobody);
        let _claim = self.claims.claim(vec![(Key::Node(ino), With::Nobody), name]);
        let frame = self.frame_of(Some(ino));
        // Nobody opens it, and so nobody commits to it, until it is a file.
        let changing = frame.as_ref().map(|frame| self.keep_closed(frame, invalidations)).transpose()?;
        let location = self.location(at.parent, at.dir, at.name)?;
        let _alone = self.lock_to_adopt(at.dir, at.name)?;
        let stored = self.store_as_file(&location, found);
        if stored.is_err() {
            self.lock_in(at.dir, at.name);
        }
        let stored = stored?;
        match &frame {
            Some(frame) if frame.shown == Kind::File => self.becomes_file(ino, at, &stored),
            Some(_) => {
                drop(changing);
                self.shows_anew(ino);
                invalidations.push(forget_name(at.parent, at.name));
            }
            None => {}
        }
        Ok(())
    }

    /// Stores a frame as a file, in place of the directory that was found.
    fn store_as_file(&self, location: &Location, found: &Found) -> Result<Found> {
        let copy = FrameCopy::of(location)?;
        let like = like_copied(&copy, found)?;
        let new = NewFrame { like: Some(like), replaced: Some(found.stat), ..NewFrame::default() };
        self.stage(&copy, location, Layout::Contiguous, new)?.commit()?.close()
    }
}
