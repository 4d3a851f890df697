//! Listings of directories below, with frames as what they are shown as, and without what is ours.

use std::os::fd::AsFd;

use super::{Tree, hidden, kind_of};
use crate::store::local::beneath;
use crate::view::{DirEntry, Ino, Kind, Result};

impl Tree {
    /// With `looks`, what may be a frame is looked at, so that its kind is right.
    pub(super) fn list(&self, ino: Ino, cookie: u64, looks: bool, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        if self.table.lock().get(ino).is_some_and(|node| node.is_covered) {
            return Ok(());
        }
        let dir = self.dir(ino)?;
        let mut dead = Vec::new();
        beneath::list(dir.as_fd(), cookie, &mut |entry| {
            if hidden::is_ours(entry.name) {
                if !self.rules.read_only && hidden::is_dead(dir.as_fd(), entry.name) {
                    dead.push(entry.name.to_owned());
                }
                return true;
            }
            let kind = if looks { self.listed_kind(ino, dir.as_fd(), &entry) } else { kind_of(entry.kind) };
            emit(DirEntry { ino: Ino(entry.ino), kind, name: entry.name, is_known: false, next: entry.next })
        })?;
        dead.iter().for_each(|name| self.discard(dir.as_fd(), name));
        Ok(())
    }

    /// What an entry is shown as: what may be a frame is looked at.
    fn listed_kind(&self, parent: Ino, dir: std::os::fd::BorrowedFd<'_>, entry: &beneath::Listed<'_>) -> Kind {
        let may_be = match entry.kind {
            libc::S_IFREG => self.rules.is_name(entry.name),
            libc::S_IFDIR | 0 => true,
            _ => false,
        };
        if !may_be {
            return kind_of(entry.kind);
        }
        let Ok(found) = beneath::look(dir, entry.name) else { return kind_of(entry.kind) };
        let known = {
            let table = self.table.lock();
            table.find(&found).and_then(|ino| table.get(ino)).map(|node| node.frame().map(|frame| frame.shown))
        };
        let shown = match known {
            Some(shown) => shown,
            None => {
                let layout = self.frame_at(parent, entry.name, dir, &found);
                layout.map(|layout| self.rules.shown(layout, self.is_in_store(parent)))
            }
        };
        shown.unwrap_or_else(|| kind_of(found.stat.mode))
    }
}
