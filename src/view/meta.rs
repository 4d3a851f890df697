//! Owner, mode and times of what a view shows.

use std::time::SystemTime;

use super::{Attr, Creation, Good, Ino, Kind, SetAttr};
use crate::store::SourceStat;

/// Owner, mode and times of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: SystemTime,
    /// Last change of content.
    pub mtime: SystemTime,
    /// Last change of the inode.
    pub ctime: SystemTime,
}

impl From<SourceStat> for Meta {
    fn from(stat: SourceStat) -> Self {
        let SourceStat { mode, uid, gid, atime, mtime, ctime, .. } = stat;
        Meta { mode: mode & 0o7666, uid, gid, atime, mtime, ctime }
    }
}

impl From<Creation> for Meta {
    fn from(creation: Creation) -> Self {
        let now = SystemTime::now();
        let Creation { uid, gid, mode, .. } = creation;
        Meta { mode: mode & 0o7777, uid, gid, atime: now, mtime: now, ctime: now }
    }
}

impl Meta {
    /// Of the directory that shows a file with these: it can be entered by whoever may read the file.
    pub fn of_directory(self) -> Self {
        Meta { mode: 0o700 | self.mode | (self.mode & 0o444) >> 2, ..self }
    }

    /// Takes over all but the size.
    pub fn change(&mut self, set: &SetAttr) {
        if let Some(mode) = set.mode {
            self.mode = mode & 0o7777;
        }
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        self.atime = set.atime.unwrap_or(self.atime);
        self.mtime = set.mtime.unwrap_or(self.mtime);
        self.ctime = SystemTime::now();
    }

    /// SOURCE's own have changed: what was as they were is as they are.
    pub fn take_over(&mut self, before: Meta, now: Meta) {
        fn take<T: PartialEq>(mine: &mut T, before: T, now: T) {
            if *mine == before {
                *mine = now;
            }
        }
        take(&mut self.mode, before.mode, now.mode);
        take(&mut self.uid, before.uid, now.uid);
        take(&mut self.gid, before.gid, now.gid);
        take(&mut self.atime, before.atime, now.atime);
        take(&mut self.mtime, before.mtime, now.mtime);
        take(&mut self.ctime, before.ctime, now.ctime);
    }

    /// The content changed.
    pub fn written(&mut self, when: SystemTime) {
        self.mtime = when;
        self.ctime = when.max(self.ctime);
    }

    /// The attributes of a file or directory with these.
    pub fn attr(self, ino: Ino, kind: Kind, size: u64) -> Attr {
        let nlink = if kind == Kind::Directory { 2 } else { 1 };
        Attr { ino, kind, size, blocks: size.div_ceil(512), nlink, rdev: 0, meta: self, good: Good::UntilTold }
    }
}
