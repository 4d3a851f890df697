//! Looks names up: finds what a name stands for below, decides what that is shown as, and gives its attributes.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

use super::claims::Key;
use super::frame::{OpenFrame, Stored, TreeFrame};
use super::table::ShownAs;
use super::{LOOKS, Tree};
use crate::format::Layout;
use crate::store::local::beneath::{self, Found};
use crate::view::{Attr, Decoded, FileSystem, Good, Ino, Invalidation, Invalidations, Result, ViewError};

impl Tree {
    /// What a name in a directory stands for, told to the kernel once more.
    pub(super) fn enter(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        let name = &self.name_below(parent, name)?;
        let (dir, below) = self.below(parent, name)?;
        let heard = self.heard(parent);
        let (ino, found) = self.enter_at(parent, name, dir.as_fd(), &below)?;
        let attr = self.attr_of(ino, &found).inspect_err(|_| self.forget(ino, 1, false))?;
        Ok(self.good((parent, name), attr, &found, heard))
    }

    /// The node of what a name in a directory stands for, told to the kernel once more.
    pub(super) fn enter_node(&self, parent: Ino, name: &OsStr) -> Result<Ino> {
        let dir = self.dir(parent)?;
        Ok(self.enter_at(parent, name, dir.as_fd(), name)?.0)
    }

    /// The same, and what it is; below it has another name, perhaps in another directory.
    pub(super) fn enter_at(&self, parent: Ino, name: &OsStr, dir: BorrowedFd<'_>, below: &OsStr) -> Result<(Ino, Found)> {
        for attempt in 1.. {
            // What is found may be renamed before it is in the table, which then has its other name already.
            let moves = Some(self.table.lock().moves()).filter(|_| attempt < LOOKS);
            let found = beneath::look(dir, below)?;
            if self.is_being_stored(parent, name, &found) {
                continue;
            }
            if let Some(ino) = self.enter_found(parent, name, dir, &found, moves) {
                return Ok((ino, found));
            }
        }
        Err(ViewError::Gone)
    }

    /// Whether a name was found to stand for what no node does, while a frame is made of what had it: that is in its place already, and
    /// its node stands for it when this returns.
    fn is_being_stored(&self, parent: Ino, name: &OsStr, found: &Found) -> bool {
        if self.table.lock().find(found).is_some() {
            return false;
        }
        let name = Key::Name(parent, name.to_owned());
        let is_claimed = self.claims.is_alone(&name);
        if is_claimed {
            drop(self.claims.share(name));
        }
        is_claimed
    }

    /// The node of what was found, told to the kernel once more; none if something was renamed since there were so many `moves`.
    pub(super) fn enter_found(
        &self,
        parent: Ino,
        name: &OsStr,
        dir: BorrowedFd<'_>,
        found: &Found,
        moves: Option<u64>,
    ) -> Option<Ino> {
        let known = self.table.lock().find(found);
        if let Some(frame) = self.frame_of(known) {
            self.put_elsewhere(&frame, found);
        }
        let known = self.table.lock().find(found);
        let known = known.or_else(|| self.is_now(parent, name, found));
        let known = known.filter(|ino| {
            let stays = self.is_shown_rightly(*ino, parent, name, dir, found);
            if !stays {
                self.shows_anew(*ino);
            }
            stays
        });
        let settled = || Some(self.table.lock()).filter(|table| moves.is_none_or(|moves| moves == table.moves()));
        Some(match known {
            Some(ino) => {
                let mut table = settled()?;
                // The node may stand for another file by now, and what was found for another node.
                if table.find(found) != Some(ino) {
                    return None;
                }
                table.enter(found, parent, name, |_| ShownAs::Plain)
            }
            None => {
                let is_covered = self.is_covering(found);
                let stored = if is_covered { None } else { self.stored_at(parent, name, dir, found) };
                let (stored, decoded) = self.data_at(name, dir, found, stored);
                let in_store = matches!(stored, Some(Stored::Frame(_))) && self.is_in_store(parent);
                let mut table = settled()?;
                let ino = table.enter(found, parent, name, |ino| match stored {
                    None => ShownAs::Plain,
                    Some(stored) => {
                        let shown = self.rules.shown(stored, in_store);
                        ShownAs::Frame(TreeFrame::of_data(ino, stored, shown, decoded.clone()))
                    }
                });
                if let Some(node) = table.get_mut(ino).filter(|_| is_covered) {
                    node.is_covered = true;
                }
                ino
            }
        })
    }

    /// A frame that is open goes with its name, and a node with its file. If others have put another file under that name, the frame is
    /// closed, if nobody would notice, and opened under the name that its file has. If its data is shown, its inode is given up.
    pub(super) fn put_elsewhere(&self, frame: &Arc<TreeFrame>, found: &Found) {
        if frame.decoded.is_some() {
            if frame.opened().is_some_and(|open| open.view.is_outdated() || !self.is_open_as(&open, found)) {
                self.give_up(frame);
            }
        } else if let Some(open) = frame.opened()
            && open.view.is_untouched()
            && !self.is_open_as(&open, found)
        {
            drop(open);
            if self.close_frame(frame) {
                self.outdate([Invalidation::Data(frame.ino)]);
            }
        }
    }

    /// Whether an open frame is what was found.
    pub(super) fn is_open_as(&self, open: &OpenFrame, found: &Found) -> bool {
        let source = open.fs().source();
        source.is_none_or(|(source, _)| beneath::look_at(source.as_fd()).is_ok_and(|now| now.is(found)))
    }

    /// Whether another file system is mounted on what was found, which is not shown.
    pub(super) fn is_covering(&self, found: &Found) -> bool {
        found.stat.is_dir() && found.id.dev != self.device && !self.rules.cross
    }

    /// The layout of the frame that a name stands for, if it is one that the user wants shown.
    pub(super) fn frame_at(&self, parent: Ino, name: &OsStr, dir: BorrowedFd<'_>, found: &Found) -> Option<Layout> {
        let layout = self.rules.look(dir, name, found)?;
        if self.is_broken(found) {
            return None;
        }
        self.is_chosen(parent, name).then_some(layout)
    }

    /// Whether the user wants what has a name shown as a frame, if it is one.
    pub(super) fn is_chosen(&self, parent: Ino, name: &OsStr) -> bool {
        let is_all = self.rules.frames.is_empty() && self.rules.noframes.is_empty();
        is_all || self.rules.is_chosen(self.path_of(parent, name).as_os_str().as_encoded_bytes())
    }

    /// Attributes of a node below, which are these just now, as they are shown.
    pub(super) fn attr_of(&self, ino: Ino, found: &Found) -> Result<Attr> {
        let shown = {
            let table = self.table.lock();
            table.get(ino).map(|node| (node.shown.clone(), node.is_covered))
        };
        match shown {
            Some((ShownAs::Frame(frame), _)) => self.frame_attr(&frame, found),
            // What is written to it may make a frame of it, at the close: then it has the length that a frame has.
            Some((ShownAs::Plain, _)) if self.may_become_frame(ino) => {
                Ok(Attr { good: Good::Once, ..self.passed_attr(ino, found) })
            }
            Some((ShownAs::Plain, _)) => Ok(self.passed_attr(ino, found)),
            None => Err(ViewError::Gone),
        }
    }

    /// Whether the next close may make a frame of a file.
    fn may_become_frame(&self, ino: Ino) -> bool {
        let table = self.table.lock();
        table.get(ino).is_some_and(|node| node.was_written && node.names().iter().any(|(_, name)| self.rules.is_name(name)))
    }

    /// A path beneath the root, for messages and patterns.
    pub(super) fn path_of(&self, parent: Ino, name: &OsStr) -> PathBuf {
        let way = self.table.lock().way(parent).unwrap_or_default();
        let mut path: PathBuf = way.into_iter().map(|(_, name)| name).collect();
        path.push(name);
        path
    }

    /// What is owed to the kernel from before.
    pub(super) fn pay(&self, invalidations: &mut Invalidations) {
        let mut owed = std::mem::take(&mut *self.owed.lock());
        self.in_shown_names(&mut owed);
        invalidations.append(&mut owed);
    }

    /// What a frame that was found is stored as, and what its data is shown as: of nothing but frames whose data can be shown, where that
    /// is what is shown.
    pub(super) fn data_at(
        &self,
        name: &OsStr,
        dir: BorrowedFd<'_>,
        found: &Found,
        stored: Option<Stored>,
    ) -> (Option<Stored>, Option<Decoded>) {
        match stored {
            Some(Stored::Frame(layout)) if self.shows_data() => match self.decoded_at(name, dir, found, layout) {
                Some(decoded) => (stored, Some(decoded)),
                None => (None, None),
            },
            _ => (stored, None),
        }
    }
}
