//! Listings of directories below, with frames as what they are shown as, and without what is ours.

use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use super::frame::Stored;
use super::{Tree, hidden, kind_of};
use crate::store::local::beneath;
use crate::view::{DirEntry, Ino, Kind, Result, WATCHED};

/// Of so many directories it is remembered when they were listed.
pub const REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// As many of what dead mounts have left are removed with one listing.
const DEAD: usize = 256;

/// The cookie behind all that is listed below, in a mount that shows lock files elsewhere. No file system that is known here gives a place
/// beyond it to anything but the end.
const LOCKS: u64 = 0x7fff_ffff_0000_0000;

/// The place of a name among lock files: 1 and up.
fn place_of(name: &OsStr) -> u64 {
    let hash = name.as_bytes().iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    1 + u64::from(hash >> 1)
}

/// A listing of a directory from its beginning on.
pub struct Listing {
    pub(super) began: Instant,
    /// None of that directory is known to have come before.
    is_first: bool,
    /// How much had been heard of its names, if they are watched.
    heard: Option<u64>,
    /// Entries that are frames by their names, and others.
    frames: u64,
    others: u64,
}

impl Tree {
    /// With `looks`, what may be a frame is looked at, so that its kind is right.
    pub(super) fn list(&self, ino: Ino, cookie: u64, looks: bool, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        if self.table.lock().get(ino).is_some_and(|node| node.is_covered) {
            return Ok(());
        }
        let dir = self.dir(ino)?;
        let is_first = self.is_first_listing(ino, cookie);
        let mut ahead = Vec::new();
        let mut dead = Vec::new();
        let mut goes_on = true;
        let (mut frames, mut others) = (0, 0);
        beneath::list(dir.as_fd(), self.below_cookie(cookie), &mut |entry| {
            if hidden::is_ours(entry.name) {
                if !self.rules.read_only
                    && dead.len() < DEAD
                    && let Some(found) = hidden::dead(dir.as_fd(), entry.name)
                {
                    dead.push((entry.name.to_owned(), found));
                }
                return true;
            }
            if self.is_hidden_lock(ino, entry.name, dir.as_fd()) {
                return true;
            }
            let shown = if self.may_be_shown(&entry) { self.name_shown(ino, entry.name, dir.as_fd()) } else { None };
            if let Some(name) = &shown {
                goes_on = emit(DirEntry { ino: Ino(entry.ino), kind: Kind::File, name, is_known: false, next: entry.next });
                return goes_on;
            }
            if self.is_frames_file(&entry) {
                if (cookie, frames) == (0, 0) {
                    // Before any of them is looked at.
                    self.watch_frames(ino, dir.as_fd());
                }
                frames += 1;
                if is_first && !looks {
                    ahead.push(entry.name.to_owned());
                }
            } else {
                others += 1;
            }
            let kind = if looks { self.listed_kind(ino, dir.as_fd(), &entry) } else { kind_of(entry.kind) };
            let next = if self.rules.locking { entry.next.min(LOCKS) } else { entry.next };
            goes_on = emit(DirEntry { ino: Ino(entry.ino), kind, name: entry.name, is_known: false, next });
            goes_on
        })?;
        self.has_listed(ino, frames, others);
        self.look_ahead.begin(&dir, ahead);
        if goes_on && self.rules.locking {
            self.list_locks(ino, dir.as_fd(), cookie, emit)?;
        }
        self.sweep(dir.as_fd(), &dead, false);
        Ok(())
    }

    /// Watches a directory that is about to be listed, if that can be done: the kernel does not look by itself whether a listing that it
    /// has is still good.
    pub(super) fn watches_listing(&self, ino: Ino) -> bool {
        self.dir(ino).is_ok_and(|dir| self.watch_names(ino, dir.as_fd()))
    }

    /// Whether an entry is a frame by its name, as one file.
    fn is_frames_file(&self, entry: &beneath::Listed<'_>) -> bool {
        entry.kind == libc::S_IFREG && self.rules.is_name(entry.name)
    }

    /// Whether a directory is listed for the first time, from a cookie on. That it is listed is remembered.
    fn is_first_listing(&self, ino: Ino, cookie: u64) -> bool {
        let mut listed = self.listed.lock();
        if cookie > 0 {
            return listed.get(&ino).is_some_and(|listing| listing.is_first);
        }
        let is_first = !listed.contains(&ino);
        let heard = self.heard_of_names(ino);
        listed.put(ino, Listing { began: Instant::now(), is_first, heard, frames: 0, others: 0 });
        is_first
    }

    /// So many entries were listed once more.
    fn has_listed(&self, ino: Ino, frames: u64, others: u64) {
        if let Some(listing) = self.listed.lock().get_mut(&ino) {
            listing.frames += frames;
            listing.others += others;
        }
    }

    /// Whether an entry may be a frame whose data is shown.
    fn may_be_shown(&self, entry: &beneath::Listed<'_>) -> bool {
        self.shows_data() && (self.rules.is_name(entry.name) || matches!(entry.kind, libc::S_IFDIR | 0))
    }

    /// From where the directory below is listed.
    fn below_cookie(&self, cookie: u64) -> u64 {
        if self.rules.locking && cookie >= LOCKS { u64::MAX } else { cookie }
    }

    /// Lists lock files that are elsewhere below, behind all else. Each has its place by its name, whichever others there are.
    fn list_locks(
        &self,
        ino: Ino,
        dir: std::os::fd::BorrowedFd<'_>,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let kept = self.locks.listed(ino, cookie > LOCKS);
        let listed = match kept {
            Some(listed) => listed,
            None => {
                let mut named: Vec<_> =
                    self.lock_files_shown(ino, dir)?.into_iter().map(|name| (place_of(&name), name)).collect();
                named.sort_unstable();
                let mut last = 0;
                for (place, _) in &mut named {
                    last = (*place).max(last + 1);
                    *place = last;
                }
                self.locks.keep_listed(ino, named)
            }
        };
        for (place, name) in listed.iter() {
            let next = LOCKS.saturating_add(*place);
            if next > cookie && !emit(DirEntry { ino: Ino(*place), kind: Kind::File, name, is_known: false, next }) {
                break;
            }
        }
        Ok(())
    }

    /// Whether the names and attributes that came with the last listing are good for some time.
    pub(super) fn is_listing_young(&self, ino: Ino) -> bool {
        let heard = self.heard_of_names(ino);
        let mut listed = self.listed.lock();
        let Some(listing) = listed.get(&ino) else { return false };
        let is_watched = heard.is_some() && heard == listing.heard && listing.frames > listing.others;
        let good = if is_watched { WATCHED } else { self.rules.timeouts.entry.min(self.rules.timeouts.attr) };
        listing.began.elapsed() < good / 2
    }

    /// What an entry is shown as: what may be a frame is looked at.
    fn listed_kind(&self, parent: Ino, dir: std::os::fd::BorrowedFd<'_>, entry: &beneath::Listed<'_>) -> Kind {
        let may_be = match entry.kind {
            libc::S_IFREG => self.rules.is_name(entry.name) || self.rules.is_archive_name(entry.name),
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
                let stored = self.stored_at(parent, entry.name, dir, &found);
                stored.map(|stored| self.rules.shown(stored, stored != Stored::Archive && self.is_in_store(parent)))
            }
        };
        shown.unwrap_or_else(|| kind_of(found.stat.mode))
    }
}
