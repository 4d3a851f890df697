//! A mount whose clients take turns with other processes on SOURCE, by the library's lock file.
//!
//! The lock file that the mount shows *is* the one of SOURCE: reads and writes go through to it, and a client's flock(2) becomes
//! one on an open file of its own there. Before a lock is granted, SOURCE is read again if others have had the exclusive one;
//! before an exclusive lock is given back, what was written under it is committed. So who reads under a lock reads neither torn
//! nor stale, on whichever side.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use log::error;
use parking_lot::Mutex;

use super::access::Rights;
use super::follow::Again;
use super::frame_view::{FrameView, Standing, Why};
use super::meta::Meta;
use super::nodes::LOCK_FILE;
use super::single::Single;
use super::{Attr, Flock, Handle, Ino, Invalidations, Kind, Result, ViewError};
use crate::store::sidecar::PATIENCE;
use crate::store::{LockFile, Sidecar, SourceStat, StoreError};

/// How long the files of a client that is killed take to be closed, at most.
const CLOSING: Duration = Duration::from_millis(100);
/// How often a read-only view looks whether others have changed SOURCE, while others are changing it.
const WATCH_AGAIN: Duration = Duration::from_millis(50);
/// Pause between two tries to get a lock that others hold.
const LOCK_AGAIN: Duration = Duration::from_millis(1);
/// For so long a client can have a lock whose file it has closed: the kernel tells of that, but does not wait until it is heard.
const UNHEARD: Duration = Duration::from_millis(20);

/// The locks that clients have.
pub struct Locks {
    clients: Mutex<HashMap<(Ino, Handle), Arc<Client>>>,
    /// What locks on other files are taken on: files without names, that only this process knows.
    stand_ins: Mutex<HashMap<Ino, LockFile>>,
    /// One at a time reads SOURCE again. Taken before any lock of the view.
    following: Mutex<()>,
    ended: AtomicBool,
}

impl Locks {
    /// Whether clients have some, or wait for some.
    pub fn has_any(&self) -> bool {
        !self.clients.lock().is_empty()
    }
}

/// An open file of a client that has had a lock.
struct Client {
    file: LockFile,
    /// The count when it got the exclusive lock that it has.
    exclusive: Mutex<Option<u64>>,
}

impl<V: FrameView> Single<V> {
    /// The same mount, whose clients take turns. `name` is what the lock file is called in its directory, if it has one.
    ///
    /// # Errors
    /// A store that was opened without locking.
    pub fn taking_turns(mut self, name: Option<OsString>) -> Result<Self> {
        self.sidecar()?;
        self.following.by_turns();
        self.state.get_mut().nodes.lock_file = name;
        self.locks = Some(Locks {
            clients: Mutex::default(),
            stand_ins: Mutex::default(),
            following: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        Ok(self)
    }

    fn sidecar(&self) -> Result<&Sidecar> {
        self.store.sidecar().ok_or(ViewError::Invalid)
    }

    fn turns(&self) -> Result<(&Locks, &Sidecar)> {
        Ok((self.locks.as_ref().ok_or(ViewError::Invalid)?, self.sidecar()?))
    }

    // --- the lock file ---

    pub(super) fn lock_file_attr(&self) -> Result<Attr> {
        let sidecar = self.turns()?.1;
        let stat = sidecar.stat()?;
        let attr = Meta::from(SourceStat::from(stat)).attr(LOCK_FILE, Kind::File, stat.len);
        // Its list is not shown.
        Ok(attr.with_mode(Rights::of_meta(&attr.meta, sidecar.access_list()?).bits()))
    }

    pub(super) fn read_lock_file(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.sidecar()?.read_at(buf, offset)?)
    }

    pub(super) fn write_lock_file(&self, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.sidecar()?.write_at(data, offset)?)
    }

    // --- turns ---

    /// Whether others may have changed SOURCE, in their turn, since it was looked at.
    pub(super) fn is_outdated(&self) -> bool {
        let had = |sidecar: &Sidecar| sidecar.count().is_ok_and(|count| sidecar.others_had_it(count));
        self.turns().is_ok_and(|(_, sidecar)| !sidecar.is_clients() && had(sidecar))
    }

    /// Shows what SOURCE holds, of which a lock has been got.
    fn read_again(&self) -> Result<()> {
        let (locks, sidecar) = self.turns()?;
        let _one_at_a_time = locks.following.lock();
        let count = sidecar.count()?;
        if sidecar.others_had_it(count) {
            let mut invalidations = Invalidations::new(); // the kernel forgets everything because of the count
            match self.reload(true, &mut invalidations)? {
                Again::Done | Again::Kept | Again::Outdated => sidecar.reloaded(),
                _ if self.store.changed_outside()? => {
                    self.refuse("others had the lock meanwhile", &mut invalidations);
                    return Err(self.following.hindrance(&*self.store).map_or(ViewError::Gone, ViewError::Store));
                }
                _ => {}
            }
            sidecar.in_step(count);
        }
        Ok(())
    }

    /// Waits until others have done what they are doing, and shows it.
    pub(super) fn wait_for_others(&self) -> Result<u64> {
        let (_, sidecar) = self.turns()?;
        let _turn = sidecar.wait_to_read(PATIENCE)?;
        if !sidecar.is_clients() {
            self.read_again()?;
        }
        Ok(sidecar.reloads())
    }

    /// Shows what others have done who take no turns, unless somebody has his.
    pub(super) fn look_in_turn(
        &self,
        look: impl FnOnce(&mut Invalidations) -> Option<Instant>,
        invalidations: &mut Invalidations,
    ) -> Option<Instant> {
        let Ok((locks, sidecar)) = self.turns() else { return look(invalidations) };
        let _one_at_a_time = locks.following.lock();
        self.look_by_turns(sidecar, look, invalidations)
    }

    fn look_by_turns(
        &self,
        sidecar: &Sidecar,
        look: impl FnOnce(&mut Invalidations) -> Option<Instant>,
        invalidations: &mut Invalidations,
    ) -> Option<Instant> {
        let Ok(Some(_turn)) = sidecar.to_read() else {
            // In the middle of a change by others there is nothing to look at.
            return Some(Instant::now() + WATCH_AGAIN);
        };
        let count = sidecar.count();
        let mut seen = Invalidations::new();
        let due = look(&mut seen);
        if let (Ok(count), false) = (count, seen.is_empty()) {
            sidecar.reloaded();
            sidecar.in_step(count);
        }
        invalidations.append(&mut seen);
        due
    }

    /// What is to be looked at before a file is opened, where nobody is to be waited for.
    pub(super) fn glance_in_turn(&self) {
        if self.store.is_as_seen() {
            return;
        }
        if let Ok((locks, sidecar)) = self.turns()
            && let Some(_one_at_a_time) = locks.following.try_lock()
        {
            let glance = |_: &mut Invalidations| {
                self.glance();
                None
            };
            self.look_by_turns(sidecar, glance, &mut Invalidations::new());
        }
    }

    /// Does something as a client would who takes the exclusive lock for it, if turns are taken. Whoever has it already through this mount
    /// is in the middle of something, and may be kept from going on by the kernel until this is answered: so that is not waited
    /// for, but for as long as it takes the kernel to tell of a file that was closed.
    pub(super) fn in_turn(
        &self,
        work: impl FnOnce(&mut Invalidations) -> Result<()>,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        let Ok((_, sidecar)) = self.turns() else { return work(invalidations) };
        let handle = Handle(self.state.write().nodes.serial());
        let (before, began) = (sidecar.reloads(), Instant::now());
        let patience = || if sidecar.is_clients() { UNHEARD } else { PATIENCE };
        let locked = loop {
            match self.take_lock(LOCK_FILE, handle, Flock::Exclusive, None, invalidations) {
                Err(ViewError::Locked) if began.elapsed() < patience() => std::thread::sleep(LOCK_AGAIN),
                locked => break locked,
            }
        };
        let done = locked.and_then(|_| work(invalidations));
        let unlocked = self.unlock(LOCK_FILE, handle, invalidations);
        if sidecar.reloads() != before {
            invalidations.append(&mut self.all_shown());
        }
        match done {
            // The kernel would make another error of EAGAIN.
            Err(ViewError::Locked) => Err(ViewError::InUse),
            done => done.and(unlocked),
        }
    }

    // --- flock(2) ---

    fn lock_failed(&self, source: io::Error) -> ViewError {
        ViewError::Store(StoreError::Io { path: self.store.path(), action: "lock", source })
    }

    /// The open file that the locks of a handle are on.
    fn client(&self, ino: Ino, handle: Handle) -> Result<Arc<Client>> {
        let (locks, sidecar) = self.turns()?;
        let mut clients = locks.clients.lock();
        if let Some(client) = clients.get(&(ino, handle)) {
            return Ok(Arc::clone(client));
        }
        let file = match locks.stand_ins.lock().entry(ino) {
            _ if ino == LOCK_FILE => sidecar.open()?,
            Entry::Occupied(stand_in) => sidecar.again(stand_in.get())?,
            Entry::Vacant(place) => {
                let stand_in = sidecar.unnamed()?;
                let file = sidecar.again(&stand_in)?;
                place.insert(stand_in);
                file
            }
        };
        let client = Arc::new(Client { file, exclusive: Mutex::new(None) });
        clients.insert((ino, handle), Arc::clone(&client));
        Ok(client)
    }

    pub(super) fn take_lock(
        &self,
        ino: Ino,
        handle: Handle,
        lock: Flock,
        until: Option<&AtomicBool>,
        invalidations: &mut Invalidations,
    ) -> Result<u64> {
        let (locks, sidecar) = self.turns()?;
        let client = loop {
            let client = self.client(ino, handle)?;
            self.leave_turn(&client, invalidations)?;
            match client.file.flock(lock, until) {
                Ok(true) if ino != LOCK_FILE || sidecar.is_lock_file(&client.file) => break client,
                // Who had it before has removed the file.
                Ok(true) => drop(locks.clients.lock().remove(&(ino, handle))),
                Ok(false) => return Err(ViewError::Locked),
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(ViewError::Interrupted),
                Err(error) => return Err(self.lock_failed(error)),
            }
        };
        if ino == LOCK_FILE {
            let granted = if locks.ended.load(SeqCst) { Err(ViewError::Gone) } else { self.read_again() };
            if let Err(error) = granted {
                let _ = client.file.unlock();
                return Err(error);
            }
            if lock == Flock::Exclusive {
                *client.exclusive.lock() = Some(sidecar.count()?);
                sidecar.client_has_it();
            }
            V::settle(self, Why::LeftBehind, invalidations)?;
        }
        Ok(sidecar.reloads())
    }

    pub(super) fn give_lock_back(&self, ino: Ino, handle: Handle, wait: bool, invalidations: &mut Invalidations) -> Result<u64> {
        self.closed(ino, handle, wait)?;
        self.unlock(ino, handle, invalidations)?;
        Ok(self.sidecar()?.reloads())
    }

    /// A client that is killed closes its lock file before what it was writing: to that, the lock still belongs.
    fn closed(&self, ino: Ino, handle: Handle, wait: bool) -> Result<()> {
        let clients = self.turns()?.0.clients.lock();
        let exclusive = clients.get(&(ino, handle)).is_some_and(|client| client.exclusive.lock().is_some());
        drop(clients);
        let until = Instant::now() + CLOSING;
        while exclusive && self.is(Standing::Unfinished) && Instant::now() < until {
            if !wait {
                return Err(ViewError::Locked);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// What is to be done before an exclusive lock is given back.
    fn leave_turn(&self, client: &Client, invalidations: &mut Invalidations) -> Result<()> {
        let Some(before) = client.exclusive.lock().take() else { return Ok(()) };
        let sidecar = self.sidecar()?;
        let settled = if self.read_only { Ok(None) } else { V::settle(self, Why::HandOver, invalidations) };
        let handed_over = settled.and_then(|_| if self.read_only { Ok(()) } else { self.publish() });
        sidecar.client_leaves(before)?;
        // Nobody else has written since it was granted, unless without locks.
        if !matches!(handed_over, Err(ViewError::Store(StoreError::Stale { .. }))) {
            sidecar.in_step(sidecar.count()?);
        }
        handed_over
    }

    fn unlock(&self, ino: Ino, handle: Handle, invalidations: &mut Invalidations) -> Result<()> {
        let (locks, _) = self.turns()?;
        let Some(client) = locks.clients.lock().remove(&(ino, handle)) else { return Ok(()) };
        let left = self.leave_turn(&client, invalidations);
        client.file.unlock().map_err(|error| self.lock_failed(error))?;
        if ino != LOCK_FILE && !locks.clients.lock().keys().any(|(other, _)| *other == ino) {
            locks.stand_ins.lock().remove(&ino);
        }
        left
    }

    /// The end of a frame of which nothing more is committed.
    pub(super) fn drop_locks(&self) {
        let Ok((locks, sidecar)) = self.turns() else { return };
        locks.ended.store(true, SeqCst);
        let clients: Vec<_> = locks.clients.lock().drain().map(|(_, client)| client).collect();
        for client in clients {
            if let Some(before) = client.exclusive.lock().take()
                && let Err(error) = sidecar.client_leaves(before)
            {
                error!("{error}");
            }
            if let Err(error) = client.file.unlock() {
                error!("{}", self.lock_failed(error));
            }
        }
    }

    /// The end: no client is left, whatever the kernel has told us.
    pub(super) fn unlock_all(&self) {
        let Some(locks) = &self.locks else { return };
        locks.ended.store(true, SeqCst);
        let clients: Vec<_> = locks.clients.lock().keys().copied().collect();
        for (ino, handle) in clients {
            if let Err(error) = self.unlock(ino, handle, &mut Invalidations::new()) {
                error!("{error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use std::ffi::OsStr;
    use std::fs::File;

    use crate::store::backend::BackendFile;
    use crate::store::{CframeStore, FrameStore, OpenOptions};
    use crate::view::frames::{CHUNKSIZE, Cell, cells_of, cframe, chunk, full};
    use crate::view::tests::counting::Counting;
    use crate::view::{Creation, FileSystem, OpenMode, ROOT, SparseView};

    const ONE: Handle = Handle(1 << 63);
    const EVERYTHING: OpenMode = OpenMode { read: true, write: true, truncate: true, drop_privileges: false };

    fn mount(path: &Path, cells: &[Cell]) -> SparseView {
        std::fs::write(path, cframe(cells, CHUNKSIZE, CHUNKSIZE as i32)).unwrap();
        let options = OpenOptions { locking: true, ..OpenOptions::default() };
        let store: Arc<dyn FrameStore> = Arc::new(CframeStore::open(path, options).unwrap());
        SparseView::new(store, false).unwrap().taking_turns(Some(".b2lock".into())).unwrap()
    }

    /// What another process does with the exclusive lock.
    fn other(path: &Path, cells: &[Cell]) {
        let file = std::fs::File::options().read(true).write(true).open(path.with_extension("b2frame.b2lock")).unwrap();
        assert!(file.flock(Flock::Exclusive, None).unwrap());
        let mut count = [0; 8];
        file.read_at(&mut count, 8).unwrap();
        file.write_at(&(u64::from_ne_bytes(count) + 1).to_ne_bytes(), 8).unwrap();
        std::fs::write(path, cframe(cells, CHUNKSIZE, CHUNKSIZE as i32)).unwrap();
    }

    fn lock(view: &impl FileSystem, lock: Option<Flock>) -> Result<u64> {
        view.lock(LOCK_FILE, ONE, lock, None, &mut Invalidations::new()).map(|reread| reread.count)
    }

    fn put(view: &impl FileSystem, name: &str, bytes: &[u8]) -> Ino {
        let creation = Creation { uid: 0, gid: 0, mode: 0o644, umask: 0, pid: 0, exclusive: false };
        let (attr, opened) = view.create(ROOT, OsStr::new(name), creation, EVERYTHING).unwrap();
        let handle = opened.handle;
        view.write(handle, 0, bytes).unwrap();
        view.flush(handle, &mut Invalidations::new()).unwrap();
        view.release(handle, &mut Invalidations::new());
        attr.ino
    }

    fn content(view: &impl FileSystem, name: &str) -> Vec<u8> {
        let attr = view.lookup(ROOT, OsStr::new(name)).unwrap();
        let mut bytes = vec![0; attr.size as usize];
        assert_eq!(view.read(attr.ino, None, 0, &mut bytes).unwrap(), bytes.len());
        bytes
    }

    #[test]
    fn who_gets_a_lock_sees_what_others_did_and_the_next_sees_what_was_done_under_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.b2frame");
        let view = mount(&path, &[full(1), full(2)]);
        assert_eq!(lock(&view, Some(Flock::Exclusive)).unwrap(), 0);
        let made = put(&view, "00000002.chunk", &chunk(3, CHUNKSIZE));
        assert_eq!(lock(&view, None).unwrap(), 0);
        assert_eq!(cells_of(&path), [full(1), full(2), full(3)]);

        other(&path, &[full(7), full(8)]);
        assert_eq!(lock(&view, Some(Flock::Shared)).unwrap(), 1, "read again");
        assert_eq!(content(&view, "00000000.chunk"), chunk(7, CHUNKSIZE));
        // The kernel may know the file that is not there any more by its name.
        assert!(matches!(view.lookup(ROOT, OsStr::new("00000002.chunk")), Err(ViewError::NotFound)));
        assert!(matches!(view.open(made, EVERYTHING), Err(ViewError::Gone)));
        assert_eq!(lock(&view, Some(Flock::Exclusive)).unwrap(), 1);
        put(&view, "00000002.chunk", &chunk(9, CHUNKSIZE));
        assert_eq!(lock(&view, None).unwrap(), 1);
        assert_eq!(cells_of(&path), [full(7), full(8), full(9)]);
        view.shutdown().unwrap();
    }

    #[test]
    fn hints_are_handed_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.b2frame");
        std::fs::write(&path, cframe(&[full(1), full(2)], CHUNKSIZE, CHUNKSIZE as i32)).unwrap();
        let options = OpenOptions { locking: true, ..OpenOptions::default() };
        let store: Arc<dyn FrameStore> = Arc::new(CframeStore::open(&path, options).unwrap());
        let counting = Counting::new(Arc::clone(&store));
        let view = SparseView::new(counting.clone(), false).unwrap().taking_turns(None).unwrap();
        let chunks = ["00000000.chunk", "00000001.chunk"].map(|name| view.lookup(ROOT, OsStr::new(name)).unwrap().ino);
        view.prefetch(&chunks);
        assert_eq!(counting.hinted.load(SeqCst), 2);
        assert_eq!(view.features().read_ahead, Some(1 << 20));
    }

    #[test]
    fn what_is_uncommitted_when_others_have_changed_source_keeps_everybody_from_locking() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.b2frame");
        let view = mount(&path, &[full(1), full(2)]);
        let chunk = view.lookup(ROOT, OsStr::new("00000001.chunk")).unwrap().ino;
        let handle = view.open(chunk, EVERYTHING).unwrap().handle;
        other(&path, &[full(7), full(8), full(9)]);
        let refused = lock(&view, Some(Flock::Shared));
        assert!(matches!(refused, Err(ViewError::Store(StoreError::Stale { .. }))), "{refused:?}");
        view.release(handle, &mut Invalidations::new());
    }

    #[test]
    fn a_lock_that_comes_too_late_is_given_back() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.b2frame");
        let view = mount(&path, &[full(1)]);
        let open = || File::options().read(true).write(true).open(path.with_extension("b2frame.b2lock")).unwrap();
        let (holder, until) = (open(), AtomicBool::new(false));
        assert!(holder.flock(Flock::Exclusive, None).unwrap());
        std::thread::scope(|scope| {
            let wait = || view.lock(LOCK_FILE, ONE, Some(Flock::Exclusive), Some(&until), &mut Invalidations::new());
            let waiter = scope.spawn(wait);
            let inode = format!(":{} ", holder.metadata().unwrap().ino());
            let waits = |line: &str| line.contains("->") && line.contains(&inode);
            while !std::fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
                std::thread::yield_now();
            }
            // And no signal.
            until.store(true, SeqCst);
            holder.unlock().unwrap();
            assert!(matches!(waiter.join().unwrap(), Err(ViewError::Interrupted)));
            assert!(matches!(wait(), Err(ViewError::Interrupted)));
        });
        assert!(holder.flock(Flock::Exclusive, None).unwrap());
        holder.unlock().unwrap();
        view.shutdown().unwrap();
    }

    #[test]
    fn what_a_killed_client_leaves_is_dropped_with_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.b2frame");
        let view = mount(&path, &[full(1), full(2)]);
        let index = content(&view, "chunks.b2frame");
        lock(&view, Some(Flock::Exclusive)).unwrap();
        let mut open = Vec::new();
        for name in ["chunks.b2frame", "00000001.chunk"] {
            let ino = view.lookup(ROOT, OsStr::new(name)).unwrap().ino;
            open.push(view.open(ino, EVERYTHING).unwrap().handle);
        }
        assert!(matches!(lock(&view, None), Err(ViewError::Locked)), "its other files are still to be closed");
        for handle in open {
            let _ = view.flush(handle, &mut Invalidations::new());
            view.release(handle, &mut Invalidations::new());
        }
        lock(&view, None).unwrap();
        assert_eq!(content(&view, "chunks.b2frame"), index);
        assert_eq!(content(&view, "00000001.chunk"), chunk(2, CHUNKSIZE));
        assert_eq!(cells_of(&path), [full(1), full(2)]);
        view.shutdown().unwrap();
    }

    #[test]
    fn the_lock_file_cannot_be_removed() {
        let dir = tempfile::tempdir().unwrap();
        let view = mount(&dir.path().join("f.b2frame"), &[full(1)]);
        let removed = view.unlink(ROOT, OsStr::new(".b2lock"), &mut Invalidations::new());
        assert!(matches!(removed, Err(ViewError::NotPermitted)), "{removed:?}");
        view.shutdown().unwrap();
    }
}
