//! Archives of python-blosc2 in a tree (`-o b2z=dir`): each is shown as a directory, and only read. It can be renamed, as what it is.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use log::{debug, warn};

use super::decoded::DataKind;
use super::frame::{Sized, Stored, TreeFrame, is_damage};
use super::place::Whose;
use super::{Rules, Tree, forget_name};
use crate::format::header::FrameHeader;
use crate::store::archive::Archive;
use crate::store::local::beneath::{self, Found};
use crate::view::{ArchiveView, Choose, Decoded, FrameFileSystem, Ino, Invalidation, RenameMode, Result, ViewError};

/// Bytes of memory for what is known of the archives that are open. One of them may take more.
const MEMORY: u64 = 32 << 20;

/// Shows frames in an archive as those of the tree around it.
struct Chosen {
    rules: Rules,
    /// The path of the archive beneath DIR.
    at: PathBuf,
}

impl Choose for Chosen {
    fn may_be_frame(&self, path: &Path) -> bool {
        let is_name = path.file_name().is_some_and(|name| self.rules.is_name(name));
        is_name && self.rules.is_chosen(self.at.join(path).as_os_str().as_bytes())
    }

    fn decoded(&self, header: &FrameHeader) -> std::result::Result<Decoded, String> {
        let kind = DataKind::of(header, &self.rules)?;
        kind.shown(&self.rules).ok_or_else(|| "its data is not shown".to_owned())
    }
}

impl Tree {
    /// Whether a name stands for an archive. One that is damaged is named in the log.
    pub(super) fn is_archive(&self, parent: Ino, name: &OsStr, dir: BorrowedFd<'_>, found: &Found) -> bool {
        // A directory has one name.
        if !self.rules.is_archive_name(name) || !found.stat.is_file() || found.stat.links != 1 || self.is_broken(found) {
            return false;
        }
        let looked = self.location(parent, dir, name).and_then(|location| Ok(Archive::look(&location)?));
        match &looked {
            Ok(()) => return true,
            Err(error) if is_damage(&looked) => {
                warn!("{error}; it is shown as what it is on disk");
                self.broken.lock().put(found.id, Sized::from(found));
            }
            Err(error) => debug!("{error}; it is shown as what it is on disk"),
        }
        false
    }

    /// Whether a node is to be shown as what it is shown as: a file that others write may become an archive, and stop being one.
    pub(super) fn is_shown_rightly(&self, ino: Ino, parent: Ino, name: &OsStr, dir: BorrowedFd<'_>, found: &Found) -> bool {
        if !self.rules.is_archive_name(name) || !found.stat.is_file() {
            return true;
        }
        let now = Sized::from(found);
        match self.frame_of(Some(ino)) {
            Some(frame) if frame.is_archive() => {
                if *frame.looked.lock() == Some(now) {
                    return true;
                }
                let is_archive = self.is_archive(parent, name, dir, found);
                if is_archive {
                    *frame.looked.lock() = Some(now);
                }
                is_archive
            }
            Some(_) => true,
            None => self.is_written(ino) || !self.is_archive(parent, name, dir, found),
        }
    }

    /// What a node stands for gets another node: it is shown as another kind of file from now on.
    pub(super) fn shows_anew(&self, ino: Ino) {
        if let Some(frame) = self.frame_of(Some(ino)) {
            self.drop_frame(&frame);
        }
        self.table.lock().abandon(ino);
        self.owed.lock().push(Invalidation::Data(ino));
    }

    /// Whether a file is known to be no frame and no archive, for as long as nobody changes it.
    pub(super) fn is_broken(&self, found: &Found) -> bool {
        self.broken.lock().get(&found.id) == Some(&Sized::from(found))
    }

    /// Opens an archive.
    pub(super) fn open_archive(
        &self,
        parent: Ino,
        dir: BorrowedFd<'_>,
        name: &OsStr,
        found: &Found,
    ) -> Result<Box<dyn FrameFileSystem>> {
        let location = self.location(parent, dir, name)?;
        // Each takes much more memory for a moment than afterwards.
        let _alone = self.opening.lock();
        let archive = Archive::open(&location)?;
        let opened = archive.fd().ok_or(ViewError::Gone).and_then(|file| Ok(beneath::look_at(file)?))?;
        if !opened.is(found) {
            return Err(ViewError::Gone);
        }
        let view = ArchiveView::new(archive);
        let Some(names) = &self.decoded else { return Ok(Box::new(view)) };
        let choose = Chosen { rules: self.rules.clone(), at: self.path_of(parent, name) };
        Ok(Box::new(view.decoding(Box::new(choose), names.blocks(), self.options(true))))
    }

    /// One more archive is open. Closes those that nobody can come to any more, and those that were not used for longest, if all together
    /// take too much memory.
    pub(super) fn limit_archives(&self, last: &Arc<TreeFrame>) {
        if !last.is_archive() {
            return;
        }
        let mut open: Vec<_> = self.frames.open.listed().into_iter().filter(|frame| frame.is_archive()).collect();
        open.retain(|frame| !self.close_orphan(frame));
        let weight = |frame: &Arc<TreeFrame>| frame.opened().map_or(0, |open| open.view.weight());
        let mut sum: u64 = open.iter().map(weight).sum();
        open.sort_by_key(|frame| frame.opened().map_or(0, |open| open.used()));
        for frame in open.iter().filter(|frame| !Arc::ptr_eq(frame, last)) {
            if sum <= MEMORY {
                return;
            }
            let freed = weight(frame);
            if self.close_frame(frame) {
                sum = sum.saturating_sub(freed);
            }
        }
    }

    /// An archive that others have written since it was opened is opened anew by whoever comes next. The caller lets nobody open it
    /// meanwhile.
    pub(super) fn put_away(&self, frame: &Arc<TreeFrame>) {
        frame.slot.detach();
        self.unlist(frame);
        self.regions.renumber(&**frame);
        let name = self.table.lock().get(frame.ino).and_then(|node| node.names().first().cloned());
        let mut owed = self.owed.lock();
        owed.push(Invalidation::Data(frame.ino));
        owed.extend(name.map(|(parent, name)| forget_name(parent, &name)));
    }

    /// Closes an archive whose file was removed or replaced, if nobody has a file in it open: it would take room on disk for nobody.
    pub(super) fn close_orphan(&self, frame: &Arc<TreeFrame>) -> bool {
        let is_idle = frame.is_archive() && frame.handles.load(SeqCst) == 0;
        is_idle && frame.opened().is_some_and(|open| open.view.is_orphan()) && self.close_frame(frame)
    }

    /// The kernel knows a node no more. Of an archive nothing is kept, if nobody has a file in it open.
    pub(super) fn forgotten(&self, ino: Ino) {
        let frame = self.table.lock().get(ino).filter(|node| node.is_forgotten()).and_then(|node| node.frame().cloned());
        if let Some(frame) = frame.filter(|frame| frame.is_archive() && frame.handles.load(SeqCst) == 0) {
            self.close_frame(&frame);
        }
    }

    /// That none of these is an archive, or in one.
    ///
    /// # Errors
    /// [`ViewError::ReadOnly`].
    pub(super) fn check_no_archive(whose: &[&Whose]) -> Result<()> {
        whose.iter().try_for_each(|whose| match whose {
            Whose::Frame(frame, _) => frame.check_writable(),
            Whose::Passed => Ok(()),
        })
    }

    /// That a rename is one of an archive to a free name of an archive, or has to do with none.
    ///
    /// # Errors
    /// [`ViewError::ReadOnly`], and EEXIST for a name that is taken.
    pub(super) fn check_rename(
        &self,
        frame: Option<&Arc<TreeFrame>>,
        to: &OsStr,
        replaced: Option<&Arc<TreeFrame>>,
        (is_taken, mode): (bool, RenameMode),
    ) -> Result<()> {
        if let Some(replaced) = replaced {
            replaced.check_writable()?;
        }
        match frame {
            Some(frame) if frame.is_archive() => match (mode, is_taken, self.rules.is_archive_name(to)) {
                (RenameMode::Exchange, ..) | (_, _, false) => Err(ViewError::ReadOnly),
                (_, true, _) => Err(ViewError::Exists),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// What a name stands for is stored as.
    pub(super) fn stored_at(&self, parent: Ino, name: &OsStr, dir: BorrowedFd<'_>, found: &Found) -> Option<Stored> {
        if self.is_archive(parent, name, dir, found) {
            return Some(Stored::Archive);
        }
        self.frame_at(parent, name, dir, found).map(Stored::Frame)
    }
}
