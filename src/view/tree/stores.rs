//! Stores of python-blosc2, in which frames are files in the view and in DIR: python-blosc2 looks for files there, and silently skips a leaf that is a
//! directory.
//!
//! A directory is a store by its name, or from the moment on when `embed.b2e` is in it. What was stored in it as a directory before is
//! rewritten as a file then, each frame in one step.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use log::warn;

use super::Tree;
use super::claims::{Key, With};
use super::handles::PassedFile;
use super::making::like_copied;
use super::place::At;
use crate::format::Layout;
use crate::store::copy::FrameCopy;
use crate::store::local::beneath::{self, Found};
use crate::store::walk::STORE_MARK;
use crate::store::{Location, NewFrame, in_words};
use crate::view::{Ino, Invalidations, Result};

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
        if !self.stores.lock().insert(parent) {
            return;
        }
        // What becomes a frame there from now on sees the mark.
        self.claims.wait_for(Key::Within(parent));
        self.rewrite(parent, DEPTH, invalidations);
    }

    /// Rewrites all frames in a directory that are directories.
    fn rewrite(&self, parent: Ino, depth: usize, invalidations: &mut Invalidations) {
        let path = self.path.join(self.path_of(parent, OsStr::new("")));
        let Ok(dir) = self.dir(parent) else { return };
        let mut names = Vec::new();
        let listed = beneath::list(dir.as_fd(), 0, &mut |entry| {
            if matches!(entry.kind, libc::S_IFDIR | 0) {
                names.push(entry.name.to_owned());
            }
            true
        });
        if let Err(error) = listed {
            warn!("{}: {}", path.display(), in_words(&error));
        }
        for name in names {
            // So its node stays until it is rewritten.
            let Ok((ino, found)) = self.enter_at(parent, &name, dir.as_fd(), &name) else { continue };
            if !self.is_covering(&found) {
                let at = At { parent, dir: dir.as_fd(), name: &name };
                match self.rules.look(at.dir, &name, &found) {
                    Some(Layout::Sparse) => {
                        if let Err(error) = self.rewrite_frame(ino, at, &found, invalidations) {
                            let path = path.join(&name);
                            warn!("{}: stays a directory, which Python-Blosc2 does not see: {error}", path.display());
                        }
                    }
                    _ if found.stat.is_dir() && depth > 0 => self.rewrite(ino, depth - 1, invalidations),
                    _ => {}
                }
            }
            self.forget_one(ino);
        }
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
        if frame.is_some() {
            self.becomes_file(ino, &stored);
        }
        drop(changing);
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
