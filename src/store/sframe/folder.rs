//! SOURCE's directory, and whose files in it may be shown.
//!
//! A view shows every chunk file with the owner and mode of the index file. Whoever may write the directory could put a file of
//! somebody else there (a second name of one, or one that was left there) and have the daemon show what only its owner may read. So
//! a file of another owner must be one that those who may read the index may read as well.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use super::super::backend::{Backend, FileStat};
use super::super::source::may_be_shown;

/// SOURCE's directory, held open.
#[derive(Clone)]
pub(super) struct Folder {
    backend: Arc<dyn Backend>,
    /// Owner and mode of the directory and of the index file; `None` for a frame that is being made.
    owners: Option<(FileStat, FileStat)>,
}

impl Deref for Folder {
    type Target = Arc<dyn Backend>;
    fn deref(&self) -> &Self::Target {
        &self.backend
    }
}

impl Folder {
    /// Of a frame that was opened.
    pub(super) fn opened(backend: Arc<dyn Backend>, dir: FileStat, index: FileStat) -> Self {
        Folder { backend, owners: Some((dir, index)) }
    }

    /// A directory of our own making, under a temporary name.
    pub(super) fn made(backend: Arc<dyn Backend>) -> Self {
        Folder { backend, owners: None }
    }

    /// Whether a chunk file may be shown. `ours` says that this process has made a file of that name.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(&self, file: &FileStat, ours: bool) -> io::Result<()> {
        let Some((dir, index)) = &self.owners else { return Ok(()) };
        let me = rustix::process::geteuid().as_raw();
        if ours && me != 0 && file.uid == me && file.links == 1 {
            return Ok(());
        }
        if may_be_shown(me, dir, index, file) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "it belongs to user {}, not to user {} as the index does, and not all who read the index may read it",
                file.uid, index.uid
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn stat(uid: u32, gid: u32, mode: u32) -> FileStat {
        FileStat {
            dev: 1,
            ino: 1,
            mode,
            links: 1,
            uid,
            gid,
            len: 0,
            allocated: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
        }
    }

    #[test]
    fn files_of_others_are_shown_only_to_those_who_may_read_them() {
        let (dir, index) = (stat(1000, 1000, 0o755), stat(1000, 1000, 0o644));
        let shown = |file| may_be_shown(0, &dir, &index, &file);
        assert!(shown(stat(1000, 1000, 0o600)), "the owner's own");
        assert!(!shown(stat(0, 0, 0o600)) && !shown(stat(0, 1000, 0o640)));
        assert!(shown(stat(0, 0, 0o644)));
        let index = stat(1000, 50, 0o660);
        let shown = |file| may_be_shown(0, &dir, &index, &file);
        assert!(shown(stat(1001, 50, 0o640)) && !shown(stat(1001, 51, 0o640)) && !shown(stat(1001, 50, 0o600)));
    }

    #[test]
    fn where_only_root_writes_all_is_shown() {
        let (dir, index) = (stat(0, 0, 0o755), stat(1000, 1000, 0o644));
        assert!(may_be_shown(0, &dir, &index, &stat(5, 5, 0o600)));
        assert!(!may_be_shown(0, &stat(0, 0, 0o775), &index, &stat(5, 5, 0o600)));
    }
}
