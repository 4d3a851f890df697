//! A view that lives in memory, says what it was asked, and lies only when told to.
//!
//! Bytes that begin with `BAD` are refused at close. The file `index` holds the number of files, told to the kernel when
//! a file is closed or the directory synced (as an index that a view rewrites by itself); closing `drop-NAME` takes `NAME` away as well.
//!
//! Made by [`MemoryView::on_file`], it is a single file: the root, without a name.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::format;
use crate::store::FsSpace;
use crate::view::*;

/// The file that the view writes by itself.
pub const INDEX: &str = "index";

/// What `set` and `bytes` call the file of a view that is one.
pub const THE_FILE: &str = "";

#[derive(Debug, Clone)]
struct File {
    ino: Ino,
    kind: Kind,
    /// What a refused close goes back to.
    good: Vec<u8>,
    bytes: Vec<u8>,
    perm: u16,
    mtime: SystemTime,
}

#[derive(Default)]
struct State {
    files: BTreeMap<OsString, File>,
    /// Removed files, for those who have them open.
    removed: BTreeMap<Ino, File>,
    /// The names of files that were replaced.
    former: BTreeMap<Ino, OsString>,
    handles: BTreeMap<u64, (Ino, bool)>,
    serial: u64,
    /// What is open for writing is read and written without the page cache.
    writes_directly: bool,
}

/// Open, unless it is closed: then whoever comes waits.
#[derive(Default)]
pub struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
    /// Those who wait, and those who have passed.
    pub waiting: AtomicUsize,
    pub passed: AtomicUsize,
}

impl Gate {
    /// Closes it until the answer is dropped.
    pub fn close(&self) -> impl Drop {
        struct Closed<'a>(&'a Gate);
        impl Drop for Closed<'_> {
            fn drop(&mut self) {
                *self.0.closed.lock() = false;
                self.0.opened.notify_all();
            }
        }
        *self.closed.lock() = true;
        Closed(self)
    }

    fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.opened.wait_while(&mut self.closed.lock(), |closed| *closed);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.passed.fetch_add(1, Ordering::SeqCst);
    }
}

#[derive(Default)]
pub struct MemoryView {
    prefetcher: prefetch::Prefetcher,
    /// What commits or syncs passes this.
    pub disk: Gate,
    /// The last close of a file that was open for writing passes this.
    pub last_closes: Gate,
    /// What changes something, an open for writing included, passes this.
    pub changes: Gate,
    read_only: bool,
    /// The root is the only file.
    on_file: bool,
    state: RwLock<State>,
    /// What `shutdown` will say.
    pub last_words: Mutex<Option<ViewError>>,
    pub shut_down: AtomicBool,
    pub opens: AtomicUsize,
    pub ticks: AtomicUsize,
    /// Reads through a handle or, in a read-only view, by the kernel or the pusher.
    pub reads: Mutex<Vec<Ino>>,
    /// Reads without a handle.
    pub pushes: Mutex<Vec<Ino>>,
    /// A push of this file reads, and then waits for it to be written to; not for ever.
    pub slow_push: Mutex<Option<Ino>>,
    /// What the next tick tells the kernel to forget.
    pub stale: Mutex<Invalidations>,
    /// Ask to be called again after this long.
    pub pace: Mutex<Option<Duration>>,
    /// Each read's offset and length.
    pub ranges: Mutex<Vec<(u64, usize)>>,
    /// A read waits, not for ever, until so many are under way.
    pub company: AtomicUsize,
    reading: AtomicUsize,
    /// The most reads that ever were under way.
    pub most_reading: AtomicUsize,
    /// What [`FileSystem::expect`] was called with.
    pub expected: Mutex<Vec<Vec<Ino>>>,
    /// See [`Features::read_ahead`].
    pub read_ahead: Option<u32>,
    /// What [`FileSystem::make`] was called with.
    pub made: Mutex<Vec<String>>,
}

impl MemoryView {
    pub fn new<'a>(read_only: bool, files: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Self {
        let view = MemoryView { read_only, ..MemoryView::default() };
        for (name, bytes) in [(INDEX, b"0".to_vec())].into_iter().chain(files) {
            view.set(name, bytes);
        }
        view
    }

    /// A view that is one file.
    pub fn on_file(read_only: bool, bytes: Vec<u8>) -> Self {
        let view = MemoryView { read_only, on_file: true, ..MemoryView::default() };
        let file = File::new(ROOT, Kind::File, bytes, 0o640);
        view.state.write().files.insert(THE_FILE.into(), file);
        view
    }

    /// From now on, what is opened for writing is read and written without the page cache.
    pub fn write_directly(&self) {
        self.state.write().writes_directly = true;
    }

    /// Changes a file behind the kernel's back.
    pub fn set(&self, name: &str, bytes: Vec<u8>) -> Ino {
        let mut state = self.state.write();
        state.serial += 1;
        let fresh = Ino(100 + state.serial);
        let file = File::new(fresh, Kind::File, bytes, 0o644);
        let ino = state.files.get(OsStr::new(name)).map_or(fresh, |old| old.ino);
        state.files.insert(name.into(), File { ino, ..file });
        ino
    }

    /// Puts another file in the place of one; who asks for the old one finds nothing.
    pub fn replace(&self, name: &str, bytes: Vec<u8>) {
        {
            let mut state = self.state.write();
            if let Some(file) = state.files.remove(OsStr::new(name)) {
                state.former.insert(file.ino, name.into());
            }
        }
        self.set(name, bytes);
    }

    /// The bytes that the view has for a name.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.state.read().files.get(OsStr::new(name)).map(|file| file.good.clone())
    }

    fn wait_for_company(&self) {
        let wanted = self.company.load(Ordering::SeqCst);
        self.most_reading.fetch_max(self.reading.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let until = Instant::now() + Duration::from_secs(2);
        while self.most_reading.load(Ordering::SeqCst) < wanted && Instant::now() < until {
            std::thread::yield_now();
        }
        self.reading.fetch_sub(1, Ordering::SeqCst);
    }

    fn close(&self, ino: Ino, invalidations: &mut Invalidations) -> Result<()> {
        let mut state = self.state.write();
        let Some((name, file)) = state.files.iter_mut().find(|(_, file)| file.ino == ino) else { return Ok(()) };
        if file.bytes.starts_with(b"BAD") && file.bytes != file.good {
            file.bytes = file.good.clone();
            invalidations.push(Invalidation::Data(ino));
            return Err(ViewError::Rejected(format::Error::new("test", 0, "BAD", "anything else")));
        }
        file.good = file.bytes.clone();
        if let Some(victim) = name.to_str().and_then(|name| name.strip_prefix("drop-")).map(OsString::from) {
            state.files.remove(&victim);
            invalidations.push(Invalidation::Entry(ROOT, victim));
        }
        Self::count(&mut state, ino, invalidations);
        Ok(())
    }

    /// Rewrites the index, unless that is what was closed.
    fn count(state: &mut State, closed: Ino, invalidations: &mut Invalidations) {
        let count = state.files.len().to_string().into_bytes();
        if let Some(index) = state.files.get_mut(OsStr::new(INDEX)).filter(|index| index.ino != closed) {
            index.bytes = count.clone();
            index.good = count;
            invalidations.push(Invalidation::Data(index.ino));
        }
    }
}

impl File {
    fn new(ino: Ino, kind: Kind, bytes: Vec<u8>, perm: u16) -> Self {
        File { ino, kind, good: bytes.clone(), bytes, perm, mtime: SystemTime::now() }
    }
}

impl State {
    fn file(&self, ino: Ino) -> Result<&File> {
        let named = self.files.values().find(|file| file.ino == ino);
        named.or_else(|| self.removed.get(&ino)).ok_or(ViewError::NotFound)
    }

    fn file_mut(&mut self, ino: Ino) -> Result<&mut File> {
        let named = self.files.values_mut().find(|file| file.ino == ino);
        named.or_else(|| self.removed.get_mut(&ino)).ok_or(ViewError::NotFound)
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        // SAFETY: neither can fail or touches memory.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let attr = |kind, size: usize, perm: u16, mtime| {
            let meta = Meta { mode: perm.into(), uid, gid, atime: mtime, mtime, ctime: mtime };
            Attr { ino, kind, size: size as u64, blocks: 0, nlink: 1, rdev: 0, meta, good: Good::UntilTold }
        };
        match self.file(ino) {
            Err(_) if ino == ROOT => Ok(attr(Kind::Directory, 0, 0o755, SystemTime::UNIX_EPOCH)),
            file => file.map(|file| attr(file.kind, file.bytes.len(), file.perm, file.mtime)),
        }
    }

    fn open(&mut self, ino: Ino, write: bool) -> Opened {
        self.serial += 1;
        self.handles.insert(self.serial, (ino, write));
        let pages = if write && self.writes_directly { Pages::Direct } else { Pages::Kept };
        Opened { handle: Handle(self.serial), pages }
    }

    /// What has a new name is a new and empty file or directory.
    fn named(&mut self, name: &OsStr, kind: Kind, creation: Creation) -> Result<Attr> {
        let ino = match self.files.get(name) {
            Some(_) if creation.exclusive => return Err(ViewError::Exists),
            Some(file) => file.ino,
            None => {
                self.serial += 1;
                let file = File::new(Ino(100 + self.serial), kind, Vec::new(), creation.mode as u16);
                self.files.entry(name.into()).or_insert(file).ino
            }
        };
        self.attr(ino)
    }

    fn remove(&mut self, name: &OsStr) -> Result<Ino> {
        let file = self.files.remove(name).ok_or(ViewError::NotFound)?;
        let ino = file.ino;
        self.removed.insert(ino, file);
        Ok(ino)
    }
}

impl FileSystem for MemoryView {
    fn features(&self) -> Features {
        let handles = !self.read_only || self.on_file;
        Features {
            read_only: self.read_only,
            handles,
            locks: false,
            holes: false,
            lists_attributes: true,
            read_ahead: self.read_ahead,
            far: None,
            passes_on: None,
            hears: false,
            is_untold: false,
            lists: false,
        }
    }

    fn xattrs(&self, _ino: Ino) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn xattr(&self, _ino: Ino, _name: &OsStr) -> Result<Vec<u8>> {
        Err(ViewError::NoAttribute)
    }

    fn set_xattr(&self, _ino: Ino, _name: &OsStr, _value: Option<&[u8]>, _mode: SetMode, _: &mut Invalidations) -> Result<()> {
        Err(ViewError::NotSettable)
    }

    fn lookup(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        assert_eq!(parent, ROOT);
        let state = self.state.read();
        state.attr(state.files.get(name).ok_or(ViewError::NotFound)?.ino)
    }

    fn forget(&self, ino: Ino, _count: u64, altogether: bool) {
        if !altogether {
            return;
        }
        self.state.write().removed.remove(&ino);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.state.read().attr(ino)
    }

    fn setattr(&self, ino: Ino, handle: Option<Handle>, set: SetAttr, invalidations: &mut Invalidations) -> Result<Attr> {
        {
            let mut state = self.state.write();
            if let Ok(file) = state.file_mut(ino) {
                if let Some(size) = set.size {
                    file.bytes.resize(size as usize, 0);
                    // More than is needed, to have the kernel look for pages of what it is just cutting.
                    invalidations.push(Invalidation::Data(ino));
                }
                file.perm = set.mode.map_or(file.perm, |mode| mode as u16);
                file.mtime = set.mtime.unwrap_or(file.mtime);
            }
        }
        if set.size.is_some() && handle.is_none() {
            self.disk.pass();
            self.close(ino, invalidations)?;
        }
        self.getattr(ino)
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Opened> {
        self.opens.fetch_add(1, Ordering::SeqCst);
        if mode.write {
            self.changes.pass();
        }
        let mut state = self.state.write();
        let file = state.file_mut(ino)?;
        if mode.truncate {
            file.bytes.clear();
        }
        Ok(state.open(ino, mode.write))
    }

    fn create(&self, parent: Ino, name: &OsStr, creation: Creation, mode: OpenMode) -> Result<(Attr, Opened)> {
        self.changes.pass();
        assert_eq!(parent, ROOT);
        if name.to_string_lossy().starts_with("no") {
            return Err(ViewError::NotPermitted);
        }
        let mut state = self.state.write();
        let attr = state.named(name, Kind::File, creation)?;
        Ok((attr, state.open(attr.ino, mode.write)))
    }

    fn make(&self, parent: Ino, name: &OsStr, new: New<'_>, creation: Creation, _invals: &mut Invalidations) -> Result<Attr> {
        assert_eq!(parent, ROOT);
        self.made.lock().push(format!("{} {new:?}", name.display()));
        let kind = match new {
            New::File => Kind::File,
            New::Directory if !name.to_string_lossy().starts_with("no") => Kind::Directory,
            _ => return Err(ViewError::NotPermitted),
        };
        self.state.write().named(name, kind, creation)
    }

    fn rmdir(&self, parent: Ino, name: &OsStr, _invals: &mut Invalidations) -> Result<()> {
        assert_eq!(parent, ROOT);
        self.state.write().remove(name).map(drop)
    }

    fn read(&self, ino: Ino, handle: Option<Handle>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if handle.is_some() { &self.reads } else { &self.pushes }.lock().push(ino);
        self.ranges.lock().push((offset, buf.len()));
        self.wait_for_company();
        let state = self.state.read();
        let bytes = &state.file(ino)?.bytes;
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        let read = bytes.clone();
        drop(state);
        if handle.is_none() && *self.slow_push.lock() == Some(ino) {
            let until = Instant::now() + Duration::from_millis(300);
            while Instant::now() < until && self.state.read().file(ino)?.bytes == read {
                std::thread::yield_now();
            }
            *self.slow_push.lock() = None;
        }
        Ok(count)
    }

    fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<()> {
        self.changes.pass();
        let mut state = self.state.write();
        let (ino, write) = *state.handles.get(&handle.0).ok_or(ViewError::BadHandle)?;
        if !write {
            return Err(ViewError::BadHandle);
        }
        let bytes = &mut state.file_mut(ino)?.bytes;
        let end = offset as usize + data.len();
        bytes.resize(bytes.len().max(end), 0);
        bytes[offset as usize..end].copy_from_slice(data);
        Ok(())
    }

    fn flush(&self, handle: Handle, invalidations: &mut Invalidations) -> Result<()> {
        let (ino, write) = *self.state.read().handles.get(&handle.0).ok_or(ViewError::BadHandle)?;
        if !write {
            return Ok(());
        }
        self.disk.pass();
        self.close(ino, invalidations)
    }

    fn release(&self, handle: Handle, invalidations: &mut Invalidations) {
        let handle = self.state.write().handles.remove(&handle.0);
        if let Some((ino, true)) = handle {
            self.last_closes.pass();
            assert!(!self.shut_down.load(Ordering::SeqCst));
            invalidations.push(Invalidation::Attr(ino));
        }
    }

    fn fsync(&self, ino: Ino, invalidations: &mut Invalidations) -> Result<()> {
        self.disk.pass();
        if self.on_file {
            return self.close(ino, invalidations);
        }
        invalidations.push(Invalidation::Entry(ROOT, OsString::from("gone")));
        if ino == ROOT {
            Self::count(&mut self.state.write(), ROOT, invalidations);
            return Ok(());
        }
        self.close(ino, invalidations)
    }

    fn unlink(&self, parent: Ino, name: &OsStr, invalidations: &mut Invalidations) -> Result<()> {
        self.changes.pass();
        assert_eq!(parent, ROOT);
        let ino = self.state.write().remove(name)?;
        invalidations.extend([Invalidation::Attr(ino), Invalidation::Entry(ROOT, name.into())]);
        Ok(())
    }

    fn rename(&self, from: (Ino, &OsStr), to: (Ino, &OsStr), mode: RenameMode, invalidations: &mut Invalidations) -> Result<()> {
        self.disk.pass();
        let mut state = self.state.write();
        match mode {
            RenameMode::Exchange => return Err(ViewError::Invalid),
            RenameMode::NoReplace if state.files.contains_key(to.1) => return Err(ViewError::Exists),
            _ => {}
        }
        let file = state.files.remove(from.1).ok_or(ViewError::NotFound)?;
        let _ = state.remove(to.1);
        state.files.insert(to.1.into(), file);
        invalidations.push(Invalidation::Entry(ROOT, from.1.into()));
        Ok(())
    }

    fn readdir(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        assert_eq!(ino, ROOT);
        if self.on_file {
            return Err(ViewError::NotDirectory);
        }
        let mut files: Vec<_> = self.state.read().files.iter().map(|(name, file)| (file.ino, file.kind, name.clone())).collect();
        files.sort_by_key(|file| file.0);
        for (ino, kind, name) in files.iter().filter(|(ino, ..)| ino.0 > cookie) {
            if !emit(DirEntry { ino: *ino, kind: *kind, name, is_known: true, next: ino.0 }) {
                break;
            }
        }
        Ok(())
    }

    fn touched(&self, pid: u32, ino: Ino, read: Option<(u64, u32)>) -> Vec<Push> {
        let following = |ino, most| {
            let state = self.state.read();
            let Some(place) = state.files.values().position(|file| file.ino == ino) else { return Vec::new() };
            state.files.values().skip(place + 1).take(most).map(|file| (file.ino, file.bytes.len() as u64)).collect()
        };
        self.prefetcher.touched(pid, ino, read, following).pushes
    }

    fn expect(&self, inos: &[Ino]) {
        self.expected.lock().push(inos.to_vec());
    }

    fn lock(&self, _: Ino, _: Handle, _: Option<Flock>, _: Option<&AtomicBool>, _: &mut Invalidations) -> Result<Reread> {
        Err(ViewError::Invalid)
    }

    fn catch_up(&self, _ino: Ino) -> Result<Reread> {
        Err(ViewError::Invalid)
    }

    fn may_wait(&self, _ino: Ino) -> Wait {
        Wait::Disk
    }

    fn last_name(&self, ino: Ino) -> Option<(Ino, OsString)> {
        let state = self.state.read();
        let named = state.files.iter().find(|(_, file)| file.ino == ino).map(|(name, _)| name);
        Some((ROOT, named.or_else(|| state.former.get(&ino)).cloned()?))
    }

    fn statfs(&self) -> Result<FsSpace> {
        let space = FsSpace { blocks: 1000, free: 10, available: 9, ..FsSpace::default() };
        Ok(FsSpace { io_size: 4096, block_size: 512, name_max: 255, ..space })
    }

    fn tick(&self, now: Instant, invalidations: &mut Invalidations) -> Option<Instant> {
        self.ticks.fetch_add(1, Ordering::SeqCst);
        invalidations.append(&mut self.stale.lock());
        self.pace.lock().map(|pace| now + pace)
    }

    fn leave(&self, _regardless: bool, invalidations: &mut Invalidations) -> Left {
        Left { failed: self.fsync(ROOT, invalidations).err(), ..Left::default() }
    }

    fn shutdown(&self) -> Result<()> {
        assert!(!self.shut_down.swap(true, Ordering::SeqCst), "shut down twice");
        self.last_words.lock().take().map_or(Ok(()), Err)
    }

    fn report(&self) -> String {
        "in memory".into()
    }
}
