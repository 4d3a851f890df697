//! A file system in memory that remembers every operation, so that a test can fail the n-th one, and can make the disk as a
//! power cut would have left it at any point (see [`cut`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use b2fuse::store::backend::{Backend, BackendFile, FileStat, FsSpace};

pub use cut::{Cut, cuts, start};

mod cut;

const SECTOR: u64 = 512;
/// What room is given out in.
pub const BLOCK: u64 = 4096;

type FileId = usize;
type DirId = usize;

/// The directory that tests hand to a store.
pub const ROOT: DirId = 0;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    File(FileId),
    Dir(DirId),
}

type Names = BTreeMap<OsString, Node>;

/// What there was at the beginning: every directory, and every file's bytes.
#[derive(Debug, Clone, Default)]
pub struct Start {
    pub dirs: Vec<Names>,
    files: Vec<Vec<u8>>,
}

#[derive(Debug, Clone)]
pub enum Op {
    Write {
        file: FileId,
        offset: u64,
        data: Vec<u8>,
    },
    SetLen {
        file: FileId,
        len: u64,
    },
    Punch {
        file: FileId,
        offset: u64,
        len: u64,
    },
    Sync {
        file: FileId,
    },
    Create {
        dir: DirId,
        name: OsString,
        node: Node,
    },
    Rename {
        dir: DirId,
        from: OsString,
        to: OsString,
        node: Node,
    },
    Exchange {
        dir: DirId,
        one: (OsString, Node),
        other: (OsString, Node),
    },
    Remove {
        dir: DirId,
        name: OsString,
    },
    SyncDir {
        dir: DirId,
    },
    SyncFs,
    /// In the place of one that a broken disk does not do.
    Nothing,
}

impl Op {
    /// Without the data.
    pub fn brief(&self) -> String {
        match self {
            Op::Write { file, offset, data } => format!("write {file} {offset}+{}", data.len()),
            other => format!("{other:?}"),
        }
    }

    /// The file whose content it changes or syncs.
    pub fn file(&self) -> Option<FileId> {
        match self {
            Op::Write { file, .. } | Op::SetLen { file, .. } | Op::Punch { file, .. } | Op::Sync { file } => Some(*file),
            _ => None,
        }
    }

    /// The directory whose names it changes.
    fn names_in(&self) -> Option<DirId> {
        match self {
            Op::Create { dir, .. } | Op::Rename { dir, .. } | Op::Exchange { dir, .. } | Op::Remove { dir, .. } => Some(*dir),
            _ => None,
        }
    }

    fn apply_to(&self, names: &mut Names) {
        match self {
            Op::Create { name, node, .. } => drop(names.insert(name.clone(), *node)),
            Op::Rename { from, to, node, .. } => {
                if names.get(from) == Some(node) {
                    names.remove(from);
                }
                names.insert(to.clone(), *node);
            }
            Op::Exchange { one, other, .. } => {
                names.insert(one.0.clone(), other.1);
                names.insert(other.0.clone(), one.1);
            }
            Op::Remove { name, .. } => drop(names.remove(name)),
            _ => {}
        }
    }
}

#[derive(Debug, Default)]
struct File {
    data: Vec<u8>,
    /// Blocks, by number, that take no room.
    holes: BTreeSet<u64>,
    changes: u64,
    /// Changes of attributes alone.
    touches: u64,
    locked_by: Option<u64>,
}

impl File {
    fn write(&mut self, offset: u64, data: &[u8]) {
        let old = self.data.len() as u64;
        write(&mut self.data, offset, data);
        self.holes.extend(old.div_ceil(BLOCK)..offset / BLOCK);
        for block in offset / BLOCK..(offset + data.len() as u64).div_ceil(BLOCK) {
            self.holes.remove(&block);
        }
        self.changes += 1;
    }

    fn set_len(&mut self, len: u64) {
        let old = self.data.len() as u64;
        self.data.resize(len as usize, 0);
        self.holes.split_off(&len.div_ceil(BLOCK));
        self.holes.extend(old.div_ceil(BLOCK)..len.div_ceil(BLOCK));
        self.changes += 1;
    }

    fn punch(&mut self, offset: u64, len: u64) {
        punch(&mut self.data, offset, len);
        let end = (offset + len).min(self.data.len() as u64);
        self.holes.extend(offset.div_ceil(BLOCK)..end / BLOCK);
        self.changes += 1;
    }

    fn allocated(&self) -> u64 {
        (self.data.len() as u64).div_ceil(BLOCK).saturating_sub(self.holes.len() as u64) * BLOCK
    }
}

#[derive(Debug, Default)]
struct State {
    files: Vec<File>,
    /// The first is the root; there is one as soon as somebody looks.
    dirs: Vec<Names>,
    dir_locks: HashMap<DirId, u64>,
    log: Vec<Op>,
    /// The log is for those who cut; others would only fill memory.
    forgetful: bool,
    handles: u64,
    /// The operation, counted by its place in the log, that fails, and with which errno.
    fail: Option<(usize, i32)>,
    failed: Option<Op>,
    /// What somebody else writes just before the operation of that place in the log: to the beginning of which file.
    meddles: Option<(usize, FileId, Vec<u8>)>,
    /// Of any file, bytes that the disk cannot read.
    unreadable: Option<Range<u64>>,
    /// Nothing is written and nothing synced, and who wants that waits; how many do.
    frozen: bool,
    waiting: usize,
    /// Nothing is read either; how many wait.
    is_silent: bool,
    readers: usize,
}

#[derive(Debug, Default)]
struct Disk {
    state: Mutex<State>,
    /// Of `frozen` and `waiting`.
    changed: Condvar,
}

/// A directory in memory.
#[derive(Debug, Clone, Default)]
pub struct Dir {
    disk: Arc<Disk>,
    id: DirId,
}

/// See [`Dir::room`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    pub files: u64,
    pub len: u64,
    pub allocated: u64,
}

/// A disk that takes nothing.
pub struct Frozen<'a>(&'a Dir);

impl Frozen<'_> {
    /// Returns when somebody waits to read.
    pub fn wait_for_a_reader(&self) {
        drop(self.0.disk.changed.wait_while(self.0.state(), |state| state.readers == 0).unwrap());
    }

    /// Returns when somebody waits for the disk.
    pub fn wait_for_a_writer(&self) {
        drop(self.0.disk.changed.wait_while(self.0.state(), |state| state.waiting == 0).unwrap());
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        (state.frozen, state.is_silent) = (false, false);
        drop(state);
        self.0.disk.changed.notify_all();
    }
}

struct Handle {
    dir: Dir,
    node: Node,
    id: u64,
}

impl Dir {
    pub fn with_file(name: &str, data: Vec<u8>) -> Dir {
        let dir = Dir::default();
        let mut state = dir.state();
        state.files.push(File { data, ..File::default() });
        state.dirs[ROOT].insert(name.into(), Node::File(0));
        drop(state);
        dir
    }

    /// With a directory of these files.
    pub fn with_dir(name: &str, files: impl IntoIterator<Item = (OsString, Vec<u8>)>) -> Dir {
        let dir = Dir::default();
        let mut state = dir.state();
        let mut names = Names::new();
        for (name, data) in files {
            names.insert(name, Node::File(state.files.len()));
            state.files.push(File { data, ..File::default() });
        }
        state.dirs.push(names);
        state.dirs[ROOT].insert(name.into(), Node::Dir(1));
        drop(state);
        dir
    }

    /// A directory in this one.
    pub fn sub(&self, name: &str) -> Dir {
        let Some(Node::Dir(id)) = self.names_of(&self.state()).get(OsStr::new(name)).copied() else { panic!("{name}?") };
        Dir { disk: Arc::clone(&self.disk), id }
    }

    /// Keeps no log.
    pub fn forgetful() -> Dir {
        let dir = Dir::default();
        dir.state().forgetful = true;
        dir
    }

    pub fn len(&self, name: &str) -> u64 {
        let state = self.state();
        state.files[self.file(&state, name).unwrap()].data.len() as u64
    }

    /// Of everything that a name leads to: how many files, their lengths added up, and the room that they take.
    pub fn room(&self) -> Room {
        let state = self.state();
        let mut room = Room::default();
        let mut reached = vec![self.id];
        while let Some(id) = reached.pop() {
            for node in state.dirs[id].values() {
                match node {
                    Node::Dir(dir) => reached.push(*dir),
                    Node::File(file) => {
                        let file = &state.files[*file];
                        room = Room {
                            files: room.files + 1,
                            len: room.len + file.data.len() as u64,
                            allocated: room.allocated + file.allocated(),
                        };
                    }
                }
            }
        }
        room
    }

    /// The process that has files open is killed: `store` does nothing any more, and what was locked is not.
    pub fn kill<S>(&self, store: S) {
        std::mem::forget(store);
        let mut state = self.state();
        state.dir_locks.clear();
        state.files.iter_mut().for_each(|file| file.locked_by = None);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.disk.state.lock().unwrap();
        if state.dirs.is_empty() {
            state.dirs.push(Names::new());
        }
        state
    }

    /// From now on the disk takes nothing, until the end of the answer. It can be read.
    pub fn freeze(&self) -> Frozen<'_> {
        self.state().frozen = true;
        Frozen(self)
    }

    /// The same of a disk from which nothing is read either.
    pub fn silence(&self) -> Frozen<'_> {
        self.state().is_silent = true;
        self.freeze()
    }

    /// The state, once it may be changed.
    fn thawed(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.waiting += 1;
        self.disk.changed.notify_all();
        let mut state = self.disk.changed.wait_while(state, |state| state.frozen).unwrap();
        state.waiting -= 1;
        state
    }

    /// The state, once a file may be read.
    fn speaking(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.readers += 1;
        self.disk.changed.notify_all();
        let mut state = self.disk.changed.wait_while(state, |state| state.is_silent).unwrap();
        state.readers -= 1;
        state
    }

    fn names_of<'a>(&self, state: &'a State) -> &'a Names {
        &state.dirs[self.id]
    }

    fn node(&self, state: &State, name: &OsStr) -> io::Result<Node> {
        Ok(*self.names_of(state).get(name).ok_or(io::ErrorKind::NotFound)?)
    }

    fn file(&self, state: &State, name: &str) -> Option<FileId> {
        match self.node(state, OsStr::new(name)) {
            Ok(Node::File(file)) => Some(file),
            _ => None,
        }
    }

    fn handle(&self, state: &mut State, node: Node) -> Box<Handle> {
        state.handles += 1;
        Box::new(Handle { dir: self.clone(), node, id: state.handles })
    }

    pub fn log_len(&self) -> usize {
        self.state().log.len()
    }

    pub fn log(&self) -> Vec<Op> {
        self.state().log.clone()
    }

    /// Lets the operation that will be the `at`-th of the log fail.
    pub fn fail_at(&self, at: usize, errno: i32) {
        self.state().fail = Some((at, errno));
    }

    /// From now on these bytes cannot be read; or all can.
    pub fn set_unreadable(&self, bytes: Option<Range<u64>>) {
        self.state().unreadable = bytes;
    }

    /// What failed, if it did.
    pub fn failed(&self) -> Option<Op> {
        self.state().failed.clone()
    }

    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        Some(state.files[self.file(&state, name)?].data.clone())
    }

    pub fn names(&self) -> Vec<OsString> {
        self.names_of(&self.state()).keys().cloned().collect()
    }

    /// Makes a directory of the real file system what this one is.
    pub fn write_to(&self, path: &Path) {
        let state = self.state();
        for (name, node) in self.names_of(&state) {
            match node {
                Node::File(file) => std::fs::write(path.join(name), &state.files[*file].data).unwrap(),
                Node::Dir(_) => std::fs::create_dir(path.join(name)).unwrap(),
            }
        }
        let dirs: Vec<_> = self.names_of(&state).iter().map(|(name, node)| (name.clone(), *node)).collect();
        drop(state);
        for (name, node) in dirs {
            if let Node::Dir(id) = node {
                Dir { disk: Arc::clone(&self.disk), id }.write_to(&path.join(name));
            }
        }
    }

    /// A write by somebody else.
    pub fn meddle(&self, name: &str, offset: u64, data: &[u8]) {
        let mut state = self.state();
        let file = self.file(&state, name).unwrap();
        state.files[file].write(offset, data);
    }

    /// Somebody else sets attributes.
    pub fn touch(&self, name: &str) {
        let mut state = self.state();
        let file = self.file(&state, name).unwrap();
        state.files[file].touches += 1;
    }

    /// The same as [`Dir::meddle`], just before what will be the `at`-th operation of the log.
    pub fn meddle_at(&self, at: usize, name: &str, data: &[u8]) {
        let mut state = self.state();
        let file = self.file(&state, name).unwrap();
        state.meddles = Some((at, file, data.to_vec()));
    }

    /// Logs an operation and says whether it is to be done.
    fn record(&self, state: &mut State, op: Op) -> io::Result<()> {
        let at = state.log.len();
        if let Some((_, file, data)) = state.meddles.take_if(|(then, ..)| *then == at) {
            state.files[file].write(0, &data);
        }
        if let Some((fail, errno)) = state.fail
            && fail == at
        {
            state.fail = None;
            state.failed = Some(op.clone());
            if let Op::Write { file, offset, data } = &op {
                // Some of it was done, in whole sectors.
                let part = (offset + data.len() as u64 / 2) / SECTOR * SECTOR;
                let part = part.saturating_sub(*offset) as usize;
                state.files[*file].write(*offset, &data[..part]);
                state.log.push(Op::Write { file: *file, offset: *offset, data: data[..part].to_vec() });
            }
            return Err(io::Error::from_raw_os_error(errno));
        }
        if !state.forgetful {
            state.log.push(op);
        }
        Ok(())
    }

    /// Does something to names, and logs it.
    fn rename_by(&self, state: &mut State, op: Op) -> io::Result<()> {
        self.record(state, op.clone())?;
        op.apply_to(&mut state.dirs[self.id]);
        Ok(())
    }
}

fn write(file: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset as usize..end].copy_from_slice(data);
}

/// Zeros, as far as the file reaches.
fn punch(file: &mut [u8], offset: u64, len: u64) {
    let end = file.len().min((offset + len) as usize);
    file[(offset as usize).min(end)..end].fill(0);
}

fn stat_of(state: &State, node: Node) -> FileStat {
    let file = match node {
        Node::File(id) => Some(&state.files[id]),
        Node::Dir(_) => None,
    };
    let (mode, ino) = match node {
        Node::File(id) => (libc::S_IFREG | 0o644, id as u64),
        Node::Dir(id) => (libc::S_IFDIR | 0o755, 1 << 40 | id as u64),
    };
    let (len, allocated) = file.map_or((0, 0), |file| (file.data.len() as u64, file.allocated()));
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(file.map_or(0, |file| file.changes));
    let ctime = time + Duration::from_micros(file.map_or(0, |file| file.touches));
    FileStat { dev: 1, ino, mode, links: 1, uid: 0, gid: 0, len, allocated, atime: time, mtime: time, ctime }
}

impl Backend for Dir {
    fn open(&self, name: &OsStr, _write: bool) -> io::Result<Box<dyn BackendFile>> {
        let mut state = self.state();
        let node = self.node(&state, name)?;
        Ok(self.handle(&mut state, node))
    }
    fn create(&self, name: &OsStr, _mode: u32) -> io::Result<Box<dyn BackendFile>> {
        let mut state = self.state();
        if self.names_of(&state).contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let node = Node::File(state.files.len());
        self.rename_by(&mut state, Op::Create { dir: self.id, name: name.to_owned(), node })?;
        state.files.push(File::default());
        Ok(self.handle(&mut state, node))
    }
    fn create_unnamed(&self) -> io::Result<Box<dyn BackendFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn rename(&self, from: &OsStr, to: &OsStr, replace: bool) -> io::Result<()> {
        let mut state = self.state();
        if !replace && self.names_of(&state).contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let node = self.node(&state, from)?;
        self.rename_by(&mut state, Op::Rename { dir: self.id, from: from.to_owned(), to: to.to_owned(), node })
    }
    fn remove(&self, name: &OsStr) -> io::Result<()> {
        let mut state = self.state();
        self.node(&state, name)?;
        self.rename_by(&mut state, Op::Remove { dir: self.id, name: name.to_owned() })
    }
    fn create_dir(&self, name: &OsStr, _mode: u32) -> io::Result<Box<dyn Backend>> {
        let mut state = self.state();
        if self.names_of(&state).contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = state.dirs.len();
        self.rename_by(&mut state, Op::Create { dir: self.id, name: name.to_owned(), node: Node::Dir(id) })?;
        state.dirs.push(Names::new());
        Ok(Box::new(Dir { disk: Arc::clone(&self.disk), id }))
    }
    fn open_dir(&self, name: &OsStr) -> io::Result<Box<dyn Backend>> {
        match self.node(&self.state(), name)? {
            Node::Dir(id) => Ok(Box::new(Dir { disk: Arc::clone(&self.disk), id })),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }
    fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        let mut state = self.state();
        match self.node(&state, name)? {
            Node::Dir(id) if !state.dirs[id].is_empty() => Err(io::ErrorKind::DirectoryNotEmpty.into()),
            Node::Dir(_) => self.rename_by(&mut state, Op::Remove { dir: self.id, name: name.to_owned() }),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }
    fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        let mut state = self.state();
        let one = (one.to_owned(), self.node(&state, one)?);
        let other = (other.to_owned(), self.node(&state, other)?);
        self.rename_by(&mut state, Op::Exchange { dir: self.id, one, other })
    }
    fn names(&self) -> io::Result<Vec<OsString>> {
        Ok(Dir::names(self))
    }
    fn itself(&self) -> io::Result<Arc<dyn BackendFile>> {
        let directory: Box<dyn BackendFile> = self.handle(&mut self.state(), Node::Dir(self.id));
        Ok(directory.into())
    }
    fn check_writable(&self) -> io::Result<()> {
        Ok(())
    }
    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.thawed();
        self.record(&mut state, Op::SyncDir { dir: self.id })
    }
    fn sync_fs(&self) -> io::Result<()> {
        let mut state = self.thawed();
        self.record(&mut state, Op::SyncFs)
    }
    fn stat(&self, name: &OsStr) -> io::Result<FileStat> {
        let state = self.state();
        Ok(stat_of(&state, self.node(&state, name)?))
    }
    fn statvfs(&self) -> io::Result<FsSpace> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Handle {
    fn file(&self) -> io::Result<FileId> {
        match self.node {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }
}

impl BackendFile for Handle {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.dir.speaking();
        let data = state.files[self.file()?].data.get(offset as usize..).unwrap_or_default();
        let count = data.len().min(buf.len());
        if state.unreadable.as_ref().is_some_and(|bad| offset < bad.end && bad.start < offset + count as u64) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        buf[..count].copy_from_slice(&data[..count]);
        Ok(count)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let (mut state, file) = (self.dir.thawed(), self.file()?);
        if !state.forgetful {
            self.dir.record(&mut state, Op::Write { file, offset, data: data.to_vec() })?;
        }
        state.files[file].write(offset, data);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let (mut state, file) = (self.dir.thawed(), self.file()?);
        self.dir.record(&mut state, Op::SetLen { file, len })?;
        state.files[file].set_len(len);
        Ok(())
    }
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        let (mut state, file) = (self.dir.thawed(), self.file()?);
        self.dir.record(&mut state, Op::Punch { file, offset, len })?;
        state.files[file].punch(offset, len);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        let (mut state, file) = (self.dir.thawed(), self.file()?);
        self.dir.record(&mut state, Op::Sync { file })
    }
    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }
    fn stat(&self) -> io::Result<FileStat> {
        Ok(stat_of(&self.dir.state(), self.node))
    }
    fn try_lock(&self) -> io::Result<bool> {
        let mut state = self.dir.state();
        Ok(match self.node {
            Node::File(file) => *state.files[file].locked_by.get_or_insert(self.id) == self.id,
            Node::Dir(dir) => *state.dir_locks.entry(dir).or_insert(self.id) == self.id,
        })
    }
    fn unlock(&self) -> io::Result<()> {
        let mut state = self.dir.state();
        match self.node {
            Node::File(file) => drop(state.files[file].locked_by.take_if(|by| *by == self.id)),
            Node::Dir(dir) => drop(state.dir_locks.get(&dir) == Some(&self.id) && state.dir_locks.remove(&dir).is_some()),
        }
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = BackendFile::unlock(self);
    }
}
