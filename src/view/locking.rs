//! A view whose clients take turns with other processes on SOURCE, by the library's lock file.
//!
//! The lock file that the mount shows *is* the one of SOURCE: reads and writes go through to it, and a client's flock(2) becomes
//! one on an open file of its own there. Before a lock is granted, SOURCE is read again if others have had the exclusive one;
//! before an exclusive lock is given back, what was written under it is committed. So who reads under a lock reads neither torn
//! nor stale, on whichever side.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use log::error;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::follow::{Again, Follow};
use super::meta::Meta;
use super::{
    Attr, Creation, DirEntry, Flock, Handle, Ino, Inval, Invals, Kind, Left, OpenMode, ROOT, RenameMode, Result, SetAttr,
    SetMode, View, ViewError,
};
use crate::store::backend::{BackendFile, lock_budget};
use crate::store::sidecar::PATIENCE;
use crate::store::{FrameStore, Sidecar, StoreError, Watch};

/// The lock file's inode: between what the views number first, and what they number later.
const LOCK_INO: Ino = Ino(3);
/// The handles of the lock file are numbered from here on, far from what a view numbers.
const FIRST_HANDLE: u64 = 1 << 62;
/// The cookie that stands after the lock file in a listing: behind all others.
const LAST: u64 = 1 << 62;
/// How long the files of a client that is killed take to be closed, at most.
const CLOSING: Duration = Duration::from_millis(100);
/// How often a read-only view looks whether others have changed SOURCE, while others are changing it.
const WATCH_AGAIN: Duration = Duration::from_millis(50);
/// Pause between two tries to get a lock that others hold.
const LOCK_AGAIN: Duration = Duration::from_millis(1);
/// For so long a client can have a lock whose file it has closed: the kernel tells of that, but does not wait until it is heard.
const UNHEARD: Duration = Duration::from_millis(20);

/// A view with the lock file of SOURCE.
pub struct Locking<V> {
    view: V,
    store: Arc<dyn FrameStore>,
    /// What the lock file is called in the mount; `None` where the mount has no directory for it.
    name: Option<OsString>,
    clients: Mutex<HashMap<(Ino, Handle), Arc<Client>>>,
    most_clients: usize,
    /// What locks on other files are taken on: files without names, that only this process knows.
    stand_ins: Mutex<HashMap<Ino, Box<dyn BackendFile>>>,
    /// How many handles of the lock file there have been.
    handles: AtomicU64,
    /// One at a time reads SOURCE again. Taken before any lock of the view.
    following: Mutex<()>,
    ended: AtomicBool,
}

/// An open file of a client that has had a lock.
struct Client {
    file: Box<dyn BackendFile>,
    /// The count when it got the exclusive lock that it has.
    exclusive: Mutex<Option<u64>>,
}

/// Waits for a lock of flock(2) until `until` is set and a signal comes, as EINTR says then: who has it by then, has it no longer.
fn wait_for(file: &dyn BackendFile, lock: Flock, until: &AtomicBool) -> io::Result<bool> {
    let Some(fd) = file.fd() else { return file.flock(lock, true) };
    let operation = match lock {
        Flock::Shared => FlockOperation::LockShared,
        Flock::Exclusive => FlockOperation::LockExclusive,
    };
    loop {
        if until.load(SeqCst) {
            return Err(ErrorKind::Interrupted.into());
        }
        match flock(fd, operation) {
            Ok(()) if until.load(SeqCst) => file.unlock()?,
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_ours(handle: Handle) -> bool {
    handle.0 >= FIRST_HANDLE
}

impl<V: Follow> Locking<V> {
    /// `name` is what the lock file is called in the mount's directory, if that is one.
    ///
    /// # Errors
    /// A store that was opened without locking.
    pub fn new(view: V, store: Arc<dyn FrameStore>, name: Option<OsString>) -> Result<Self> {
        let locking = Locking {
            view,
            store,
            name,
            clients: Mutex::default(),
            most_clients: lock_budget(),
            stand_ins: Mutex::default(),
            handles: AtomicU64::new(0),
            following: Mutex::default(),
            ended: AtomicBool::new(false),
        };
        locking.sidecar().map(drop)?;
        locking.view.following().by_turns();
        Ok(locking)
    }

    fn sidecar(&self) -> Result<&Sidecar> {
        self.store.sidecar().ok_or(ViewError::Invalid)
    }

    fn is_lock_file(&self, parent: Ino, name: &OsStr) -> bool {
        parent == ROOT && self.name.as_deref() == Some(name)
    }

    /// A lock belongs to an open file, so each has a handle of its own.
    fn new_handle(&self) -> Handle {
        Handle(FIRST_HANDLE + self.handles.fetch_add(1, SeqCst))
    }

    /// Whether others may have changed SOURCE since the view has looked at it.
    fn is_outdated(&self) -> bool {
        let had = |sidecar: &Sidecar| sidecar.count().is_ok_and(|count| sidecar.others_had_it(count));
        self.sidecar().is_ok_and(|sidecar| !sidecar.is_clients() && had(sidecar))
    }

    fn attr(&self) -> Result<Attr> {
        let stat = self.sidecar()?.stat()?;
        Ok(Meta::from(crate::store::SourceStat::from(stat)).attr(LOCK_INO, Kind::File, stat.len))
    }

    /// The open file that the locks of a handle are on.
    fn client(&self, ino: Ino, handle: Handle) -> Result<Arc<Client>> {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(&(ino, handle)) {
            return Ok(Arc::clone(client));
        }
        // Each takes a file, and one for all of an inode that is not the lock file.
        if clients.len() + self.stand_ins.lock().len() >= self.most_clients {
            return Err(self.failed(std::io::Error::from_raw_os_error(libc::ENOLCK)));
        }
        let file = if ino == LOCK_INO { self.sidecar()?.open()? } else { self.stand_in(ino)? };
        let client = Arc::new(Client { file, exclusive: Mutex::new(None) });
        clients.insert((ino, handle), Arc::clone(&client));
        Ok(client)
    }

    fn stand_in(&self, ino: Ino) -> Result<Box<dyn BackendFile>> {
        let mut files = self.stand_ins.lock();
        let file = match files.entry(ino) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.sidecar()?.unnamed()?),
        };
        // Opened anew, or all would share the locks of one open file.
        file.reopen(false).map_err(|error| self.failed(error))
    }

    fn failed(&self, source: std::io::Error) -> ViewError {
        ViewError::Store(StoreError::Io { path: self.store.path().into(), action: "lock", source })
    }

    /// Shows what SOURCE holds, of which a lock has been got.
    fn read_again(&self) -> Result<()> {
        let _one_at_a_time = self.following.lock();
        let sidecar = self.sidecar()?;
        let count = sidecar.count()?;
        if sidecar.others_had_it(count) {
            let mut invals = Invals::new(); // the kernel forgets everything because of the count
            match self.view.reload(true, &mut invals)? {
                Again::Done => sidecar.reloaded(),
                _ if self.store.changed_outside()? => {
                    self.view.refuse("others had the lock meanwhile", &mut invals);
                    return Err(self.view.following().hindrance(&*self.store).map_or(ViewError::Gone, ViewError::Store));
                }
                _ => {}
            }
            sidecar.in_step(count);
        }
        Ok(())
    }

    /// Shows what others have done who take no turns, unless somebody has his.
    fn look_in_turn(&self, look: impl FnOnce(&mut Invals) -> Option<Instant>, invals: &mut Invals) -> Option<Instant> {
        let Some((sidecar, Ok(Some(_turn)))) = self.store.sidecar().map(|sidecar| (sidecar, sidecar.to_read())) else {
            // In the middle of a change by others there is nothing to look at.
            return Some(Instant::now() + WATCH_AGAIN);
        };
        let count = sidecar.count();
        let mut seen = Invals::new();
        let due = look(&mut seen);
        if let (Ok(count), true) = (count, seen.contains(&Inval::All)) {
            sidecar.reloaded();
            sidecar.in_step(count);
        }
        invals.append(&mut seen);
        due
    }

    /// What is to be looked at before a file is opened.
    fn glance_before_open(&self) {
        if self.store.is_as_seen() {
            return;
        }
        if let Some(_one_at_a_time) = self.following.try_lock() {
            let mut invals = Invals::new();
            self.look_in_turn(
                |_| {
                    self.view.glance();
                    None
                },
                &mut invals,
            );
        }
    }

    /// What is to be done before an exclusive lock is given back.
    fn leave(&self, client: &Client, invals: &mut Invals) -> Result<()> {
        let Some(before) = client.exclusive.lock().take() else { return Ok(()) };
        let sidecar = self.sidecar()?;
        let handed_over = self.view.hand_over(invals);
        sidecar.client_leaves(before)?;
        // Nobody else has written since it was granted, unless without locks.
        if !matches!(handed_over, Err(ViewError::Store(StoreError::Stale { .. }))) {
            sidecar.in_step(sidecar.count()?);
        }
        handed_over
    }

    /// A client that is killed closes its lock file before what it was writing: to that, the lock still belongs.
    fn closed(&self, ino: Ino, handle: Handle, wait: bool) -> Result<()> {
        let exclusive = self.clients.lock().get(&(ino, handle)).is_some_and(|client| client.exclusive.lock().is_some());
        let until = Instant::now() + CLOSING;
        while exclusive && self.view.is_unfinished() && Instant::now() < until {
            if !wait {
                return Err(ViewError::Locked);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn unlock(&self, ino: Ino, handle: Handle, invals: &mut Invals) -> Result<()> {
        let Some(client) = self.clients.lock().remove(&(ino, handle)) else { return Ok(()) };
        let left = self.leave(&client, invals);
        client.file.unlock().map_err(|error| self.failed(error))?;
        if ino != LOCK_INO && !self.clients.lock().keys().any(|(other, _)| *other == ino) {
            self.stand_ins.lock().remove(&ino);
        }
        left
    }
}

impl<V: Follow> View for Locking<V> {
    fn lock_file(&self) -> Option<Ino> {
        self.name.as_ref().map(|_| LOCK_INO)
    }

    fn may_wait(&self) -> bool {
        !self.store.sidecar().is_some_and(Sidecar::is_clients)
    }

    fn lock(
        &self,
        ino: Ino,
        handle: Handle,
        lock: Option<Flock>,
        until: Option<&AtomicBool>,
        invals: &mut Invals,
    ) -> Result<u64> {
        let sidecar = self.sidecar()?;
        let Some(lock) = lock else {
            self.closed(ino, handle, until.is_some())?;
            self.unlock(ino, handle, invals)?;
            return Ok(sidecar.reloads());
        };
        let client = self.client(ino, handle)?;
        self.leave(&client, invals)?;
        let got = match until {
            None => client.file.flock(lock, false),
            Some(until) => wait_for(&*client.file, lock, until),
        };
        match got {
            Ok(true) => {}
            Ok(false) => return Err(ViewError::Locked),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(ViewError::Interrupted),
            Err(error) => return Err(self.failed(error)),
        }
        if ino == LOCK_INO {
            let granted = if self.ended.load(SeqCst) { Err(ViewError::Gone) } else { self.read_again() };
            if let Err(error) = granted {
                let _ = client.file.unlock();
                return Err(error);
            }
            if lock == Flock::Exclusive {
                *client.exclusive.lock() = Some(sidecar.count()?);
                sidecar.client_has_it();
            }
            self.view.drop_unfinished(invals);
        }
        Ok(sidecar.reloads())
    }

    fn catch_up(&self) -> Result<u64> {
        let sidecar = self.sidecar()?;
        let _turn = sidecar.wait_to_read(PATIENCE)?;
        if !sidecar.is_clients() {
            self.read_again()?;
        }
        Ok(sidecar.reloads())
    }

    fn lookup(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        if self.is_lock_file(parent, name) { self.attr() } else { self.view.lookup(parent, name) }
    }

    fn forget(&self, ino: Ino) {
        if ino != LOCK_INO {
            self.view.forget(ino);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        if ino == LOCK_INO { self.attr() } else { self.view.getattr(ino) }
    }

    fn setattr(&self, ino: Ino, handle: Option<Handle>, set: SetAttr, invals: &mut Invals) -> Result<Attr> {
        // Nobody is to cut the lock file: the count would be gone.
        if ino == LOCK_INO { self.attr() } else { self.view.setattr(ino, handle, set, invals) }
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Handle> {
        if ino == LOCK_INO {
            return Ok(self.new_handle());
        }
        self.glance_before_open();
        self.view.open(ino, mode)
    }

    fn create(&self, parent: Ino, name: &OsStr, creation: Creation, mode: OpenMode) -> Result<(Attr, Handle)> {
        match self.is_lock_file(parent, name) {
            true if creation.exclusive => Err(ViewError::Exists),
            true => Ok((self.attr()?, self.new_handle())),
            false => self.view.create(parent, name, creation, mode),
        }
    }

    fn read(&self, ino: Ino, handle: Option<Handle>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if ino == LOCK_INO {
            return Ok(self.sidecar()?.read_at(buf, offset)?);
        }
        let read = self.view.read(ino, handle, offset, buf);
        match read {
            // Others may have taken away what it was, in their turn or in one that is over.
            Err(ViewError::Store(_)) if self.is_outdated() => Err(ViewError::Locked),
            read => read,
        }
    }

    fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<()> {
        if is_ours(handle) { Ok(self.sidecar()?.write_at(data, offset)?) } else { self.view.write(handle, offset, data) }
    }

    fn flush(&self, handle: Handle, invals: &mut Invals) -> Result<()> {
        if is_ours(handle) { Ok(()) } else { self.view.flush(handle, invals) }
    }

    fn release(&self, handle: Handle, invals: &mut Invals) {
        if !is_ours(handle) {
            self.view.release(handle, invals);
        }
    }

    fn fsync(&self, ino: Ino, invals: &mut Invals) -> Result<()> {
        if ino == LOCK_INO { Ok(()) } else { self.view.fsync(ino, invals) }
    }

    fn unlink(&self, parent: Ino, name: &OsStr, invals: &mut Invals) -> Result<()> {
        if self.is_lock_file(parent, name) { Err(ViewError::NotPermitted) } else { self.view.unlink(parent, name, invals) }
    }

    fn rename(&self, from: (Ino, &OsStr), to: (Ino, &OsStr), mode: RenameMode, invals: &mut Invals) -> Result<()> {
        if self.is_lock_file(from.0, from.1) || self.is_lock_file(to.0, to.1) {
            return Err(ViewError::NotPermitted);
        }
        self.view.rename(from, to, mode, invals)
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        if ino == LOCK_INO { Ok(Vec::new()) } else { self.view.xattrs(ino) }
    }

    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>> {
        if ino == LOCK_INO { Err(ViewError::NoAttribute) } else { self.view.xattr(ino, name) }
    }

    /// As a client would who takes the exclusive lock for it. Whoever has it already through this mount is in the middle of
    /// something, and may be kept from going on by the kernel until this is answered: so that is not waited for, but for as long as
    /// it takes the kernel to tell of a file that was closed.
    fn set_xattr(&self, ino: Ino, name: &OsStr, value: Option<&[u8]>, mode: SetMode, invals: &mut Invals) -> Result<()> {
        if ino == LOCK_INO {
            return Err(ViewError::NotSettable);
        }
        if self.view.read_only() {
            return Err(ViewError::ReadOnly);
        }
        let sidecar = self.sidecar()?;
        let (handle, before, began) = (self.new_handle(), sidecar.reloads(), Instant::now());
        let patience = || if sidecar.is_clients() { UNHEARD } else { PATIENCE };
        let locked = loop {
            match self.lock(LOCK_INO, handle, Some(Flock::Exclusive), None, invals) {
                Err(ViewError::Locked) if began.elapsed() < patience() => std::thread::sleep(LOCK_AGAIN),
                locked => break locked,
            }
        };
        let set = locked.and_then(|_| self.view.set_xattr(ino, name, value, mode, invals));
        let unlocked = self.unlock(LOCK_INO, handle, invals);
        if sidecar.reloads() != before {
            invals.push(Inval::All);
        }
        match set {
            // The kernel would make another error of EAGAIN.
            Err(ViewError::Locked) => Err(ViewError::InUse),
            set => set.and(unlocked),
        }
    }

    fn readdir(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        if cookie >= LAST {
            return Ok(());
        }
        let mut more = true;
        self.view.readdir(ino, cookie, &mut |entry| {
            more = emit(entry);
            more
        })?;
        if let Some(name) = self.name.as_deref().filter(|_| more && ino == ROOT) {
            emit(DirEntry { ino: LOCK_INO, kind: Kind::File, name, next: LAST });
        }
        Ok(())
    }

    fn tick(&self, now: Instant, invals: &mut Invals) -> Option<Instant> {
        self.view.tick(now, invals)
    }

    fn follow(&self, invals: &mut Invals) -> Option<Instant> {
        let _one_at_a_time = self.following.lock();
        self.look_in_turn(|invals| self.view.follow(invals), invals)
    }

    fn shutdown(&self) -> Result<()> {
        self.ended.store(true, SeqCst);
        // No client is left, whatever the kernel has told us.
        let clients: Vec<_> = self.clients.lock().keys().copied().collect();
        for (ino, handle) in clients {
            if let Err(error) = self.unlock(ino, handle, &mut Invals::new()) {
                error!("{error}");
            }
        }
        self.view.shutdown()
    }

    fn leave(&self, regardless: bool, invals: &mut Invals) -> Left {
        self.view.leave(regardless, invals)
    }

    // ---- the view's own ----

    fn source(&self) -> Option<(OwnedFd, PathBuf)> {
        self.view.source()
    }

    fn read_only(&self) -> bool {
        self.view.read_only()
    }

    fn next_files(&self, ino: Ino, count: usize) -> Vec<(Ino, u64)> {
        self.view.next_files(ino, count)
    }

    fn expect(&self, inos: &[Ino]) {
        self.view.expect(inos);
    }

    fn expect_reads(&self, inos: &[Ino]) {
        self.view.expect_reads(inos);
    }

    fn read_ahead(&self) -> Option<u32> {
        self.view.read_ahead()
    }

    fn keeps_pages(&self, ino: Ino) -> bool {
        self.view.keeps_pages(ino)
    }

    fn last_name(&self, ino: Ino) -> Option<OsString> {
        if ino == LOCK_INO { self.name.clone() } else { self.view.last_name(ino) }
    }

    fn watch(&self) -> Option<&Watch> {
        self.view.watch()
    }

    fn statfs(&self) -> Result<libc::statvfs> {
        self.view.statfs()
    }

    fn report(&self) -> String {
        self.view.report()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use std::fs::File;

    use crate::store::{CframeStore, OpenOptions};
    use crate::view::SparseView;
    use crate::view::counting::Counting;
    use crate::view::frames::{CHUNKSIZE, Cell, cells_of, cframe, chunk, full};

    const ONE: Handle = Handle(1 << 63);
    const EVERYTHING: OpenMode = OpenMode { read: true, write: true, truncate: true };

    fn mount(path: &Path, cells: &[Cell]) -> Locking<SparseView> {
        std::fs::write(path, cframe(cells, CHUNKSIZE, CHUNKSIZE as i32)).unwrap();
        let options = OpenOptions { locking: true, ..OpenOptions::default() };
        let store: Arc<dyn FrameStore> = Arc::new(CframeStore::open(path, options).unwrap());
        Locking::new(SparseView::new(Arc::clone(&store), false).unwrap(), store, Some(".b2lock".into())).unwrap()
    }

    /// What another process does with the exclusive lock.
    fn other(path: &Path, cells: &[Cell]) {
        let file = std::fs::File::options().read(true).write(true).open(path.with_extension("b2frame.b2lock")).unwrap();
        assert!(file.flock(Flock::Exclusive, false).unwrap());
        let mut count = [0; 8];
        file.read_at(&mut count, 8).unwrap();
        file.write_at(&(u64::from_ne_bytes(count) + 1).to_ne_bytes(), 8).unwrap();
        std::fs::write(path, cframe(cells, CHUNKSIZE, CHUNKSIZE as i32)).unwrap();
    }

    fn lock(view: &impl View, lock: Option<Flock>) -> Result<u64> {
        view.lock(LOCK_INO, ONE, lock, None, &mut Invals::new())
    }

    fn put(view: &impl View, name: &str, bytes: &[u8]) -> Ino {
        let creation = Creation { uid: 0, gid: 0, mode: 0o644, exclusive: false };
        let (attr, handle) = view.create(ROOT, OsStr::new(name), creation, EVERYTHING).unwrap();
        view.write(handle, 0, bytes).unwrap();
        view.flush(handle, &mut Invals::new()).unwrap();
        view.release(handle, &mut Invals::new());
        attr.ino
    }

    fn content(view: &impl View, name: &str) -> Vec<u8> {
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
        let view = Locking::new(SparseView::new(counting.clone(), false).unwrap(), store, None).unwrap();
        let chunks = ["00000000.chunk", "00000001.chunk"].map(|name| view.lookup(ROOT, OsStr::new(name)).unwrap().ino);
        view.expect_reads(&chunks);
        assert_eq!(counting.hinted.load(SeqCst), 2);
        assert_eq!(view.read_ahead(), Some(1 << 20));
    }

    #[test]
    fn what_is_uncommitted_when_others_have_changed_source_keeps_everybody_from_locking() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.b2frame");
        let view = mount(&path, &[full(1), full(2)]);
        let chunk = view.lookup(ROOT, OsStr::new("00000001.chunk")).unwrap().ino;
        let handle = view.open(chunk, EVERYTHING).unwrap();
        other(&path, &[full(7), full(8), full(9)]);
        let refused = lock(&view, Some(Flock::Shared));
        assert!(matches!(refused, Err(ViewError::Store(StoreError::Stale { .. }))), "{refused:?}");
        view.release(handle, &mut Invals::new());
    }

    #[test]
    fn a_lock_that_comes_too_late_is_given_back() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.b2frame");
        let view = mount(&path, &[full(1)]);
        let open = || File::options().read(true).write(true).open(path.with_extension("b2frame.b2lock")).unwrap();
        let (holder, until) = (open(), AtomicBool::new(false));
        assert!(holder.flock(Flock::Exclusive, false).unwrap());
        std::thread::scope(|scope| {
            let wait = || view.lock(LOCK_INO, ONE, Some(Flock::Exclusive), Some(&until), &mut Invals::new());
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
        assert!(holder.flock(Flock::Exclusive, false).unwrap());
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
            open.push(view.open(ino, EVERYTHING).unwrap());
        }
        assert!(matches!(lock(&view, None), Err(ViewError::Locked)), "its other files are still to be closed");
        for handle in open {
            let _ = view.flush(handle, &mut Invals::new());
            view.release(handle, &mut Invals::new());
        }
        lock(&view, None).unwrap();
        assert_eq!(content(&view, "chunks.b2frame"), index);
        assert_eq!(content(&view, "00000001.chunk"), chunk(2, CHUNKSIZE));
        assert_eq!(cells_of(&path), [full(1), full(2)]);
        view.shutdown().unwrap();
    }
}
