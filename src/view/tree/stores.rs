//! Stores of python-blosc2, in which frames are files in the view and in DIR: python-blosc2 looks for files there, and silently skips a leaf that is a
//! directory.
//!
//! A directory is a store by its name, or from the moment on when `embed.b2e` is in it. What was stored in it as a directory before is
//! rewritten as a file then, each frame in one step.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use log::warn;

use super::Tree;
use super::handles::PassedFile;
use super::making::{like_copied, store_copy};
use crate::format::Layout;
use crate::store::copy::FrameCopy;
use crate::store::local::beneath::{self, Found};
use crate::store::walk::STORE_MARK;
use crate::store::{NewFrame, in_words};
use crate::view::{Invalidations, Result};

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
        let _alone = self.adopting.write();
        if let Ok(dir) = self.dir(parent) {
            let path = self.path.join(self.path_of(parent, OsStr::new("")));
            self.rewrite(dir.as_fd(), &path, DEPTH, invalidations);
        }
    }

    /// Rewrites all frames in a directory that are directories.
    fn rewrite(&self, dir: BorrowedFd<'_>, path: &Path, depth: usize, invalidations: &mut Invalidations) {
        let mut names = Vec::new();
        let listed = beneath::list(dir, 0, &mut |entry| {
            if matches!(entry.kind, libc::S_IFDIR | 0) {
                names.push(entry.name.to_owned());
            }
            true
        });
        if let Err(error) = listed {
            warn!("{}: {}", path.display(), in_words(&error));
        }
        for name in names {
            let Ok(found) = beneath::look(dir, &name) else { continue };
            let path = path.join(&name);
            match self.rules.look(dir, &name, &found) {
                Some(Layout::Sparse) => {
                    if let Err(error) = self.rewrite_frame(dir, &name, &path, &found, invalidations) {
                        warn!("{}: stays a directory, which Python-Blosc2 does not see: {error}", path.display());
                    }
                }
                _ if found.stat.is_dir() && depth > 0 => {
                    if let Ok(inside) = beneath::open_dir(dir, &name) {
                        self.rewrite(inside.as_fd(), &path, depth - 1, invalidations);
                    }
                }
                _ => {}
            }
        }
    }

    pub(super) fn rewrite_frame(
        &self,
        dir: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
        found: &Found,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        let ino = self.table.lock().find(found);
        if let Some(frame) = self.frame_of(ino) {
            self.quiesce(&frame, invalidations)?;
        }
        let location = self.location_called(path, dir, name)?;
        let _alone = self.lock_to_adopt(dir, name)?;
        let copy = FrameCopy::of(&location)?;
        let like = like_copied(&copy, found)?;
        let new = NewFrame { like: Some(like), replaced: Some(found.stat), ..NewFrame::default() };
        let stored = store_copy(&copy, &location, Layout::Contiguous, new);
        if stored.is_err() {
            self.lock_in(dir, name);
        }
        let stored = stored?;
        if let Some(ino) = ino {
            self.becomes_file(ino, &stored);
        }
        Ok(())
    }
}
