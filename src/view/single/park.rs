//! A frame that is closed while nobody uses it, and opened again under its nodes: its files keep their inodes, and the attributes
//! that clients have set, as long as SOURCE is what it was.

use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::{Load, Single};
use crate::format::times::Identity;
use crate::store::{FrameStore, Location};
use crate::view::frame_file::layout::Outline;
use crate::view::frame_view::{FrameView, Standing};
use crate::view::locks::Locks;
use crate::view::nodes::{LOCK_FILE, Nodes};
use crate::view::{FileSystem, Invalidation, Invalidations, ROOT, Result, ViewError};

/// A frame that is closed: what is known of its files.
pub struct Parked<V: FrameView> {
    nodes: Nodes,
    load: Box<Load<V>>,
    read_only: bool,
    takes_turns: bool,
    /// The state of SOURCE that the nodes are of; `None` where that cannot be told, or where its files would have other names.
    identity: Option<Identity>,
}

impl<V: FrameView> Single<V> {
    /// Whether it can be closed without anybody's noticing: nobody has a file open, no removed file is still known, and SOURCE has
    /// everything.
    pub fn is_idle(&self) -> bool {
        let state = self.state.read();
        state.nodes.is_idle() && !state.has_copies() && !V::is(&state, Standing::Uncommitted)
    }

    /// Closes the store of an idle frame.
    ///
    /// # Errors
    /// What SOURCE does not have.
    pub fn park(self) -> Result<Parked<V>> {
        let is_renamed = self.is(Standing::Renamed);
        let identity = Arc::new(Mutex::new(self.store.identity().filter(|_| self.read_only)));
        let left = Arc::clone(&identity);
        self.store.at_close(Box::new(move |identity| *left.lock() = identity));
        self.shutdown()?;
        let identity = identity.lock().take().filter(|_| !is_renamed);
        let Single { state, load, read_only, locks, .. } = self;
        Ok(Parked { nodes: state.into_inner().nodes, load, read_only, takes_turns: locks.is_some(), identity })
    }
}

/// Whether the store of a frame can be closed, and what becomes of its files then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Not now: something is uncommitted, or known to clients alone.
    Busy,
    /// Yes; when it is opened again, its files are others.
    Anew,
    /// Yes; opened again with the same SOURCE, its files have the inodes that they have now.
    Stable,
}

/// A frame that is opened when somebody goes inside, and closed when others need its place.
pub trait FrameFileSystem: FileSystem {
    /// Whether the store can be closed.
    fn rest(&self) -> Rest;

    /// Where its file has the parts of the frame, if the same SOURCE would be shown otherwise without it.
    fn outline(&self) -> Option<Outline> {
        None
    }

    /// Ends the frame without another word: nothing more is committed, and nothing saved.
    fn drop_all(&self);

    /// Ends it; one that SOURCE has got nothing from, without a sync.
    ///
    /// # Errors
    /// What SOURCE does not have.
    fn end(&self) -> Result<()> {
        if self.is_untouched() {
            self.drop_all();
            return Ok(());
        }
        self.shutdown()
    }

    /// Moves SOURCE, while clients have files of it open. `work` does it, and answers whether it did.
    ///
    /// # Errors
    /// Before `work` runs: what keeps it where it is.
    fn relocate(&self, to: &Location, work: &mut dyn FnMut() -> bool) -> Result<()>;

    /// SOURCE is about to lose its name by what the mount does, or has it back as that failed. Without, it is read and not written to.
    fn leave_name(&self, left: bool);

    /// Does something that changes attributes of SOURCE, as clients have asked for, and shows them.
    fn set_attributes(&self, work: &mut dyn FnMut());

    /// Sets the times that its directory has from now on.
    fn set_directory_times(&self, _mtime: SystemTime, _ctime: SystemTime) {}

    /// Whether SOURCE has got nothing from it since it was opened.
    fn is_untouched(&self) -> bool;

    /// Whether there is a frame, and not only an empty directory in which one may be made.
    fn is_made(&self) -> bool;

    /// Whether its directory has no names, but for the lock file.
    fn is_empty(&self) -> bool;

    /// Whether others have written what it shows, and it does not follow them by itself: it is to be opened anew.
    fn is_outdated(&self) -> bool {
        false
    }

    /// Whether what it shows has no name any more, and is there only for who has it open. What follows others by itself need not say.
    fn is_orphan(&self) -> bool {
        false
    }

    /// Bytes of memory that it takes all the time, where that is worth counting.
    fn weight(&self) -> u64 {
        0
    }

    /// Whether clients see no lock file, because they have removed it.
    fn has_no_lock_file(&self) -> bool {
        false
    }

    /// Clients have removed the lock file.
    fn forget_lock_file(&self) {}

    /// Makes the lock file, if there is none.
    ///
    /// # Errors
    /// What the system refuses; there are no turns.
    fn make_lock_file(&self) -> Result<()> {
        Err(ViewError::Invalid)
    }
}

impl<V: FrameView> FrameFileSystem for Single<V> {
    fn rest(&self) -> Rest {
        let state = self.state.read();
        let nodes = &state.nodes;
        let is_busy = V::is(&state, Standing::Uncommitted)
            || self.locks.as_ref().is_some_and(Locks::has_any)
            || self.store.committed().is_none()
            || nodes.handles().any(|open| open.write)
            || state.has_copies()
            || nodes.iter().any(|(_, node)| node.name.is_none() || node.kept.is_of_store());
        let is_same = !V::is(&state, Standing::Renamed) || state.frame.outline().is_some();
        let is_stable = nodes.is_pristine() && is_same;
        match (is_busy, is_stable) {
            (true, _) => Rest::Busy,
            (false, true) => Rest::Stable,
            (false, false) if nodes.handles().next().is_some() => Rest::Busy,
            (false, false) => Rest::Anew,
        }
    }

    fn outline(&self) -> Option<Outline> {
        self.state.read().frame.outline()
    }

    fn has_no_lock_file(&self) -> bool {
        self.state.read().nodes.lock_file_is_gone
    }

    fn forget_lock_file(&self) {
        self.state.write().nodes.lock_file_is_gone = true;
    }

    fn make_lock_file(&self) -> Result<()> {
        self.store.sidecar().ok_or(ViewError::Invalid)?.make()?;
        self.state.write().nodes.lock_file_is_gone = false;
        Ok(())
    }

    fn drop_all(&self) {
        self.drop_locks();
        self.state.write().unpin_all();
        if let Err(error) = self.store.close() {
            log::debug!("{}: {error}", self.store.path().display());
        }
    }

    fn relocate(&self, to: &Location, work: &mut dyn FnMut() -> bool) -> Result<()> {
        Ok(self.store.local().ok_or(ViewError::Unsupported)?.relocate(to, work)?)
    }

    fn leave_name(&self, left: bool) {
        self.lose_name(left);
    }

    fn set_attributes(&self, work: &mut dyn FnMut()) {
        match self.store.local() {
            Some(local) => local.set_attributes(work),
            None => work(),
        }
        if let Ok(stat) = self.store.source_stat() {
            self.state.write().nodes.take_attributes(stat.into(), V::TAKES_MTIME);
        }
    }

    fn set_directory_times(&self, mtime: SystemTime, ctime: SystemTime) {
        let directory = &mut self.state.write().nodes.directory;
        (directory.mtime, directory.ctime) = (mtime, ctime);
    }

    fn is_untouched(&self) -> bool {
        let commits = self.commit_throttle.lock().commits();
        let state = self.state.read();
        commits == 0 && !state.has_copies() && !V::is(&state, Standing::Uncommitted) && !V::is(&state, Standing::Changed)
    }

    fn is_made(&self) -> bool {
        self.store.committed().is_some()
    }

    fn is_outdated(&self) -> bool {
        self.following.is_outdated()
    }

    fn is_empty(&self) -> bool {
        self.state.read().list(ROOT, 0, 2).iter().all(|(_, ino, _)| *ino == LOCK_FILE)
    }
}

impl<V: FrameView> Parked<V> {
    /// Opens it again. Where SOURCE is not what it was, its files have other inodes, and `invalidations` says what the kernel must forget.
    ///
    /// # Errors
    /// What is wrong with the frame.
    pub fn open(self, store: Arc<dyn FrameStore>, invalidations: &mut Invalidations) -> Result<Single<V>> {
        let Parked { mut nodes, load, read_only, takes_turns, identity } = self;
        if identity.is_none() || store.identity() != identity {
            nodes.reloaded(store.source_stat()?.into(), invalidations);
            invalidations.extend([Invalidation::Names, Invalidation::Data(ROOT)]);
        }
        let lock_file = nodes.lock_file.clone();
        let frame = Single::under(nodes, store, read_only, load)?;
        if takes_turns { frame.taking_turns(lock_file) } else { Ok(frame) }
    }
}
