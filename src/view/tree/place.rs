//! Where nodes are below: found again by their names, beneath a descriptor that is held, and taken only if they are what they were.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::claims::{Claim, Key};
use super::frame::TreeFrame;
use super::handles::Open;
use super::table::ShownAs;
use super::{LOOKS, Tree};
use crate::store::local::beneath::{self, Found};
use crate::store::walk::has_store_suffix;
use crate::view::{Ino, Invalidation, ROOT, Result, ViewError};

/// Who answers for an inode.
pub enum Whose {
    /// The file system below.
    Passed,
    /// A frame; and which of its files it is: [`ROOT`] is what stands for the frame itself.
    Frame(Arc<TreeFrame>, Ino),
}

/// A name in a directory: by its node, and open.
#[derive(Clone, Copy)]
pub struct At<'a> {
    pub parent: Ino,
    pub dir: BorrowedFd<'a>,
    pub name: &'a OsStr,
}

impl At<'_> {
    /// The directory, open, and the name.
    pub fn below(&self) -> (BorrowedFd<'_>, &OsStr) {
        (self.dir, self.name)
    }

    /// The directory's node and the name.
    pub fn named(&self) -> (Ino, &OsStr) {
        (self.parent, self.name)
    }
}

impl Tree {
    /// Who answers for an inode.
    pub(super) fn whose(&self, ino: Ino) -> Result<Whose> {
        if let Some((frame, inner)) = self.regions.find(ino) {
            return Ok(Whose::Frame(frame, inner));
        }
        match self.table.lock().get(ino).map(|node| &node.shown) {
            Some(ShownAs::Plain) => Ok(Whose::Passed),
            Some(ShownAs::Frame(frame)) => Ok(Whose::Frame(Arc::clone(frame), ROOT)),
            None => Err(ViewError::Gone),
        }
    }

    /// Who answers for an inode, and does for as long as the claim is held: a file that may be a frame does not become one meanwhile.
    pub(super) fn settled(&self, ino: Ino) -> Result<(Option<Claim<'_>>, Whose)> {
        let may_become = {
            let table = self.table.lock();
            table.get(ino).is_some_and(|node| node.frame().is_none() && node.kind == libc::S_IFREG)
        };
        let claim = may_become.then(|| self.claims.share(Key::Node(ino)));
        let whose = self.whose(ino)?;
        // Inside a frame there is nothing to wait for.
        Ok((claim.filter(|_| matches!(whose, Whose::Passed)), whose))
    }

    /// Does `look`, which goes by names, and does it again if it fails while nodes get other names.
    fn while_moving<T>(&self, mut look: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 1..LOOKS {
            let before = self.table.lock().moves();
            match look() {
                Err(_) if self.table.lock().is_moving(before) => {}
                looked => return looked,
            }
        }
        look()
    }

    /// Does what needs a node to be something below. If it is nothing, it may be about to be something else, which is waited for.
    pub(super) fn unless_changing<T>(&self, ino: Ino, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        match work() {
            Err(ViewError::Gone) => {
                let node = self.regions.find(ino).map_or(ino, |(frame, _)| frame.ino);
                let _claim = self.claims.share(Key::Node(node));
                work()
            }
            done => done,
        }
    }

    /// A directory, open.
    pub(super) fn dir(&self, ino: Ino) -> Result<Arc<File>> {
        if let Some(dir) = self.dirs.lock().get(&ino) {
            return Ok(Arc::clone(dir));
        }
        self.while_moving(|| self.walk(ino))
    }

    /// Opens a directory, from the root on.
    fn walk(&self, ino: Ino) -> Result<Arc<File>> {
        if let Some(dir) = self.dirs.lock().get(&ino) {
            return Ok(Arc::clone(dir));
        }
        if ino == ROOT {
            let dir = Arc::new(File::from(self.root.try_clone()?));
            self.dirs.lock().put(ROOT, Arc::clone(&dir));
            return Ok(dir);
        }
        let way = self.table.lock().way(ino).ok_or(ViewError::NotFound)?;
        // From the last directory on the way that is open.
        let (mut at, mut dir) = (0, None);
        {
            let mut dirs = self.dirs.lock();
            for (i, (ino, _)) in way.iter().enumerate().rev() {
                if let Some(open) = dirs.get(ino) {
                    (at, dir) = (i + 1, Some(Arc::clone(open)));
                    break;
                }
            }
        }
        let mut dir = match dir {
            Some(dir) => dir,
            None => self.walk(ROOT)?,
        };
        for (ino, name) in way.into_iter().skip(at) {
            dir = self.step(ino, &dir, &name).or_else(|error| {
                let coming = self.table.lock().coming(ino).next();
                // The kernel lets one directory at a time move from one to another.
                let (parent, name) = coming.ok_or(error)?;
                self.step(ino, &*self.walk(parent)?, &name)
            })?;
            self.dirs.lock().put(ino, Arc::clone(&dir));
        }
        Ok(dir)
    }

    /// Opens a directory in another one.
    fn step(&self, ino: Ino, around: &File, name: &OsStr) -> Result<Arc<File>> {
        let inside = beneath::open_dir(around.as_fd(), name)?;
        self.check_same(ino, &beneath::look_at(inside.as_fd())?)?;
        Ok(Arc::new(File::from(inside)))
    }

    /// A directory's descriptor, to be kept with a frame in it: the one that is open already, if it is that, or another.
    pub(super) fn keep_dir(&self, ino: Ino, dir: BorrowedFd<'_>) -> Result<Arc<File>> {
        let open = self.dirs.lock().get(&ino).cloned();
        match open.filter(|open| open.as_raw_fd() == dir.as_raw_fd()) {
            Some(open) => Ok(open),
            None => Ok(Arc::new(File::from(dir.try_clone_to_owned()?))),
        }
    }

    fn check_same(&self, ino: Ino, found: &Found) -> Result<()> {
        let table = self.table.lock();
        let node = table.get(ino).ok_or(ViewError::Gone)?;
        let same = node.id == found.id && node.kind == found.stat.mode & libc::S_IFMT;
        if same { Ok(()) } else { Err(ViewError::Gone) }
    }

    /// The directory and the name that a node has below.
    pub(super) fn place(&self, ino: Ino) -> Result<(Arc<File>, OsString)> {
        let (dir, name, _) = self.found(ino)?;
        Ok((dir, name))
    }

    /// The same, and what it is now.
    pub(super) fn found(&self, ino: Ino) -> Result<(Arc<File>, OsString, Found)> {
        self.reached(ino, |dir, name, found| Ok((Arc::clone(dir), name.to_owned(), *found)))
    }

    /// What a node is below, held open, and what it is now.
    pub(super) fn found_held(&self, ino: Ino) -> Result<(OwnedFd, Found)> {
        let (_, _, held, found) = self.while_moving(|| {
            self.find(ino, |dir, name| {
                let held = beneath::hold(dir, name)?;
                let found = beneath::look_at(held.as_fd())?;
                Ok((held, found))
            })
        })?;
        Ok((held, found))
    }

    /// Does something with what a node is below, by the directory and the name that it has, and what it was found to be. If that fails, the
    /// node may have got another name, and it is done again.
    pub(super) fn reached<T>(&self, ino: Ino, mut work: impl FnMut(&Arc<File>, &OsStr, &Found) -> Result<T>) -> Result<T> {
        self.while_moving(|| {
            let (dir, name, (), found) = self.find(ino, |dir, name| Ok(((), beneath::look(dir, name)?)))?;
            work(&dir, &name, &found)
        })
    }

    /// Looks the names of a node up, until one of them is that of the node. Returns the directory, the name, and what `look` finds.
    fn find<T>(
        &self,
        ino: Ino,
        look: impl Fn(BorrowedFd<'_>, &OsStr) -> std::io::Result<(T, Found)>,
    ) -> Result<(Arc<File>, OsString, T, Found)> {
        let places = {
            let table = self.table.lock();
            table.get(ino).ok_or(ViewError::Gone)?;
            table.places(ino)
        };
        for (parent, name) in places {
            let looked = self.below(parent, &name).and_then(|(dir, name)| {
                let (what, found) = look(dir.as_fd(), &name)?;
                Ok((dir, name, what, found))
            });
            let (dir, name, what, found) = match looked {
                // That says nothing of the name.
                Err(error) if matches!(error.errno(), libc::EMFILE | libc::ENFILE | libc::ENOMEM) => return Err(error),
                Err(_) => continue,
                Ok(looked) => looked,
            };
            if self.check_same(ino, &found).is_ok() || self.is_now_of(ino, parent, &name, &found) {
                return Ok((dir, name, what, found));
            }
        }
        Err(ViewError::Gone)
    }

    /// What a name stands for below, with its node.
    pub(super) fn look_known(&self, at: At<'_>) -> Result<(Option<Ino>, Found)> {
        let found = beneath::look(at.dir, at.name)?;
        let known = self.table.lock().find(&found);
        Ok((known.or_else(|| self.is_now(at.parent, at.name, &found)), found))
    }

    /// The frame that is now another file of the same name, because its own commit has replaced the file below.
    pub(super) fn is_now(&self, parent: Ino, name: &OsStr, found: &Found) -> Option<Ino> {
        if !self.rules.is_name(name) && !found.stat.is_dir() {
            return None;
        }
        let ino = self.table.lock().open_frame(parent, name)?;
        self.is_now_of(ino, parent, name, found).then_some(ino)
    }

    /// Whether a frame is now this file, for the same reason.
    fn is_now_of(&self, ino: Ino, parent: Ino, name: &OsStr, found: &Found) -> bool {
        let frame = self.frame_of(Some(ino)).filter(|frame| !frame.has_other_data());
        let open = frame.and_then(|frame| frame.opened());
        let source = open.and_then(|open| open.fs().source());
        if !source.is_some_and(|(source, _)| beneath::look_at(source.as_fd()).is_ok_and(|now| now.is(found))) {
            return false;
        }
        let lost = {
            let mut table = self.table.lock();
            table.becomes(ino, found);
            // Not by a name that it is only getting.
            let is_named = table.get(ino).is_some_and(|node| node.has_name(parent, name));
            if is_named { table.keep_name(ino, parent, name) } else { Vec::new() }
        };
        // Whoever looks one of these up just now may still tell the kernel what it was before.
        let lost = lost.into_iter().map(|(parent, name)| Invalidation::Expired(parent, name.into_os_string()));
        self.outdate(lost.chain([Invalidation::Attr(ino)]));
        true
    }

    /// Attributes below.
    pub(super) fn stat(&self, ino: Ino) -> Result<Found> {
        if ino == ROOT {
            return Ok(beneath::look_at(self.root.as_fd())?);
        }
        let dir = self.dirs.lock().peek(&ino).cloned();
        if let Some(dir) = dir {
            return Ok(beneath::look_at(dir.as_fd())?);
        }
        match self.found(ino) {
            Ok((_, _, found)) => Ok(found),
            Err(ViewError::Gone) => self.open_file_of(ino, |file| Ok(beneath::look_at(file)?)),
            Err(error) => Err(error),
        }
    }

    /// Does something with an open file of a node, which may have no name any more, or with a removed frame that is open.
    fn open_file_of<T>(&self, ino: Ino, work: impl FnOnce(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
        let open = self.table.lock().get(ino).map(|node| node.open.clone()).unwrap_or_default();
        for handle in open {
            if let Ok(Open::File(file)) = self.handle(handle) {
                return work(file.file.as_fd());
            }
        }
        let removed = self.frame_of(Some(ino)).filter(|frame| frame.removed.load(SeqCst));
        let open = removed.and_then(|frame| frame.opened()).ok_or(ViewError::Gone)?;
        let (source, _) = open.fs().source().ok_or(ViewError::Gone)?;
        work(source.as_fd())
    }

    /// Does something with what a node is below, held open.
    pub(super) fn held<T>(&self, ino: Ino, work: impl FnOnce(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
        if ino == ROOT {
            return work(self.root.as_fd());
        }
        let dir = self.dirs.lock().peek(&ino).cloned();
        if let Some(dir) = dir {
            return work(dir.as_fd());
        }
        match self.found_held(ino) {
            Ok((held, _)) => work(held.as_fd()),
            Err(ViewError::Gone) => self.open_file_of(ino, work),
            Err(error) => Err(error),
        }
    }

    /// Whether a name, which was found to stand for this, may stand for a frame, now or when it gets one.
    pub(super) fn may_be_frame(&self, name: &OsStr, found: Option<&Found>) -> bool {
        self.rules.is_name(name) || found.is_some_and(|found| found.stat.is_dir())
    }

    /// Whether a directory is in a store of python-blosc2, at any depth.
    pub(super) fn is_in_store(&self, parent: Ino) -> bool {
        let way = self.table.lock().way(parent).unwrap_or_default();
        if way.iter().any(|(_, name)| has_store_suffix(name)) || self.path.file_name().is_some_and(has_store_suffix) {
            return true;
        }
        self.is_store(ROOT) || way.iter().any(|(ino, _)| self.is_store(*ino))
    }
}
