//! A file system in memory that remembers every operation, so that a test can fail the n-th one, and can make the disk as a
//! power cut would have left it at any point: what was synced is there; of what was not, each sector of 512 bytes holds what it
//! held at some moment since, and names went on to some point in their order.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use b2fuse::store::backend::{Backend, BackendFile, FileStat};

use crate::frames::Random;

const SECTOR: u64 = 512;

type FileId = usize;

#[derive(Debug, Clone)]
pub enum Op {
    Write { file: FileId, offset: u64, data: Vec<u8> },
    SetLen { file: FileId, len: u64 },
    Sync { file: FileId },
    Create { name: OsString, file: FileId },
    Rename { from: OsString, to: OsString },
    Remove { name: OsString },
    SyncDir,
}

impl Op {
    /// Without the data.
    pub fn brief(&self) -> String {
        match self {
            Op::Write { file, offset, data } => format!("write {file} {offset}+{}", data.len()),
            other => format!("{other:?}"),
        }
    }
}

#[derive(Debug, Default)]
struct File {
    data: Vec<u8>,
    changes: u64,
    locked_by: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    files: Vec<File>,
    names: BTreeMap<OsString, FileId>,
    log: Vec<Op>,
    /// The log is for those who cut; others would only fill memory.
    forgetful: bool,
    handles: u64,
    /// The operation, counted by its place in the log, that fails, and with which errno.
    fail: Option<(usize, i32)>,
    failed: bool,
}

/// A directory in memory.
#[derive(Debug, Clone, Default)]
pub struct Dir(Arc<Mutex<State>>);

struct Handle {
    dir: Dir,
    file: FileId,
    id: u64,
}

impl Dir {
    pub fn with_file(name: &str, data: Vec<u8>) -> Dir {
        let dir = Dir::default();
        let mut state = dir.state();
        state.files.push(File { data, ..File::default() });
        state.names.insert(name.into(), 0);
        drop(state);
        dir
    }

    /// Keeps no log.
    pub fn forgetful() -> Dir {
        let dir = Dir::default();
        dir.state().forgetful = true;
        dir
    }

    pub fn len(&self, name: &str) -> u64 {
        let state = self.state();
        state.files[state.names[OsStr::new(name)]].data.len() as u64
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
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

    /// Whether it did.
    pub fn failed(&self) -> bool {
        self.state().failed
    }

    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        Some(state.files[*state.names.get(OsStr::new(name))?].data.clone())
    }

    pub fn names(&self) -> Vec<OsString> {
        self.state().names.keys().cloned().collect()
    }

    /// A write by somebody else.
    pub fn meddle(&self, name: &str, offset: u64, data: &[u8]) {
        let mut state = self.state();
        let file = state.names[OsStr::new(name)];
        write(&mut state.files[file].data, offset, data);
        state.files[file].changes += 1;
    }

    /// Logs an operation and says whether it is to be done.
    fn record(&self, state: &mut State, op: Op) -> io::Result<()> {
        let at = state.log.len();
        if let Some((fail, errno)) = state.fail
            && fail == at
        {
            state.fail = None;
            state.failed = true;
            if let Op::Write { file, offset, data } = &op {
                // Some of it was done, in whole sectors.
                let part = (offset + data.len() as u64 / 2) / SECTOR * SECTOR;
                let part = part.saturating_sub(*offset) as usize;
                write(&mut state.files[*file].data, *offset, &data[..part]);
                state.files[*file].changes += 1;
                state.log.push(Op::Write { file: *file, offset: *offset, data: data[..part].to_vec() });
            }
            return Err(io::Error::from_raw_os_error(errno));
        }
        if !state.forgetful {
            state.log.push(op);
        }
        Ok(())
    }

    /// The directory after a power cut when `upto` operations had been done, where this one began as `start`.
    pub fn after_cut(start: &BTreeMap<OsString, Vec<u8>>, log: &[Op], seed: u64) -> Dir {
        let mut random = Random(seed);
        let in_order = seed == 0; // everything that was done is there
        // Names: up to some point after the last sync of the directory.
        let is_name = |op: &Op| matches!(op, Op::Create { .. } | Op::Rename { .. } | Op::Remove { .. });
        let synced = log.iter().rposition(|op| matches!(op, Op::SyncDir)).unwrap_or(0);
        let unsynced = log[synced..].iter().filter(|op| is_name(op)).count() as u64;
        let mut keep = if in_order { unsynced } else { random.below(unsynced + 1) };
        let mut names: BTreeMap<OsString, FileId> = start.keys().cloned().zip(0..).collect();
        for (at, op) in log.iter().enumerate().filter(|(_, op)| is_name(op)) {
            if at >= synced {
                if keep == 0 {
                    break;
                }
                keep -= 1;
            }
            match op {
                Op::Create { name, file } => drop(names.insert(name.clone(), *file)),
                Op::Rename { from, to } => {
                    let file = names.remove(from).unwrap();
                    names.insert(to.clone(), file);
                }
                Op::Remove { name } => drop(names.remove(name)),
                _ => unreachable!(),
            }
        }
        let dir = Dir::default();
        for (name, file) in names {
            let initial = start.values().nth(file).cloned().unwrap_or_default();
            let data = Self::file_after_cut(initial, log, file, &mut random, in_order);
            let mut state = dir.state();
            let id = state.files.len();
            state.files.push(File { data, ..File::default() });
            state.names.insert(name, id);
        }
        dir
    }

    fn file_after_cut(initial: Vec<u8>, log: &[Op], file: FileId, random: &mut Random, in_order: bool) -> Vec<u8> {
        let ours = |op: &&Op| match op {
            Op::Write { file: other, .. } | Op::SetLen { file: other, .. } | Op::Sync { file: other } => *other == file,
            _ => false,
        };
        let ops: Vec<&Op> = log.iter().filter(ours).collect();
        let synced = ops.iter().rposition(|op| matches!(op, Op::Sync { .. })).unwrap_or(0);
        let apply = |file: &mut Vec<u8>, op: &Op| match op {
            Op::Write { offset, data, .. } => write(file, *offset, data),
            Op::SetLen { len, .. } => file.resize(*len as usize, 0),
            _ => {}
        };
        let mut current = initial;
        ops[..synced].iter().for_each(|op| apply(&mut current, op));
        let mut versions = vec![current]; // of the whole file, from the sync on
        for op in &ops[synced..] {
            let mut next = versions.last().unwrap().clone();
            apply(&mut next, op);
            versions.push(next);
        }
        let last = versions.len() as u64 - 1;
        if in_order {
            return versions.pop().unwrap();
        }
        // Mostly sector by sector, sometimes all of one moment and a few sectors of others.
        let base = random.below(last + 1);
        let mixed = random.below(3) > 0;
        let mut pick = |likely: u64| if mixed && random.below(2) == 0 { random.below(last + 1) } else { likely };
        let mut out = vec![0; versions[pick(base) as usize].len()];
        for (sector, chunk) in out.chunks_mut(SECTOR as usize).enumerate() {
            let version = &versions[pick(base) as usize];
            let from = version.get(sector * SECTOR as usize..).unwrap_or_default();
            let have = from.len().min(chunk.len());
            chunk[..have].copy_from_slice(&from[..have]);
        }
        out
    }
}

fn write(file: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset as usize..end].copy_from_slice(data);
}

fn stat_of(file: &File, id: FileId) -> FileStat {
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(file.changes);
    FileStat {
        dev: 1,
        ino: id as u64,
        mode: libc::S_IFREG | 0o644,
        uid: 0,
        gid: 0,
        len: file.data.len() as u64,
        allocated: file.data.len() as u64,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

impl Backend for Dir {
    fn open(&self, name: &OsStr, _write: bool) -> io::Result<Box<dyn BackendFile>> {
        let mut state = self.state();
        let file = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        state.handles += 1;
        Ok(Box::new(Handle { dir: self.clone(), file, id: state.handles }))
    }
    fn create(&self, name: &OsStr, _mode: u32) -> io::Result<Box<dyn BackendFile>> {
        let mut state = self.state();
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = state.files.len();
        self.record(&mut state, Op::Create { name: name.to_owned(), file })?;
        state.files.push(File::default());
        state.names.insert(name.to_owned(), file);
        state.handles += 1;
        Ok(Box::new(Handle { dir: self.clone(), file, id: state.handles }))
    }
    fn create_unnamed(&self) -> io::Result<Box<dyn BackendFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn rename(&self, from: &OsStr, to: &OsStr, replace: bool) -> io::Result<()> {
        let mut state = self.state();
        if !replace && state.names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.record(&mut state, Op::Rename { from: from.to_owned(), to: to.to_owned() })?;
        let file = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), file);
        Ok(())
    }
    fn remove(&self, name: &OsStr) -> io::Result<()> {
        let mut state = self.state();
        self.record(&mut state, Op::Remove { name: name.to_owned() })?;
        state.names.remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    fn subdir(&self, _name: &OsStr) -> io::Result<Box<dyn Backend>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.state();
        self.record(&mut state, Op::SyncDir)
    }
    fn stat(&self, name: &OsStr) -> io::Result<FileStat> {
        let state = self.state();
        let file = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(stat_of(&state.files[file], file))
    }
    fn statvfs(&self) -> io::Result<libc::statvfs> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl BackendFile for Handle {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.dir.state();
        let data = state.files[self.file].data.get(offset as usize..).unwrap_or_default();
        let count = data.len().min(buf.len());
        buf[..count].copy_from_slice(&data[..count]);
        Ok(count)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.dir.state();
        if !state.forgetful {
            self.dir.record(&mut state, Op::Write { file: self.file, offset, data: data.to_vec() })?;
        }
        write(&mut state.files[self.file].data, offset, data);
        state.files[self.file].changes += 1;
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.dir.state();
        self.dir.record(&mut state, Op::SetLen { file: self.file, len })?;
        state.files[self.file].data.resize(len as usize, 0);
        state.files[self.file].changes += 1;
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.dir.state();
        self.dir.record(&mut state, Op::Sync { file: self.file })
    }
    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }
    fn stat(&self) -> io::Result<FileStat> {
        Ok(stat_of(&self.dir.state().files[self.file], self.file))
    }
    fn try_lock(&self) -> io::Result<bool> {
        let mut state = self.dir.state();
        let lock = &mut state.files[self.file].locked_by;
        Ok(*lock.get_or_insert(self.id) == self.id)
    }
    fn unlock(&self) -> io::Result<()> {
        let mut state = self.dir.state();
        let lock = &mut state.files[self.file].locked_by;
        if *lock == Some(self.id) {
            *lock = None;
        }
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = BackendFile::unlock(self);
    }
}

/// Where each file of a directory stands, for [`Dir::after_cut`].
pub fn start(dir: &Dir) -> BTreeMap<OsString, Vec<u8>> {
    let state = dir.state();
    let by_id: HashMap<FileId, &OsString> = state.names.iter().map(|(name, id)| (*id, name)).collect();
    assert!((0..by_id.len()).all(|id| by_id.contains_key(&id)), "names in the order of their files");
    state.names.iter().map(|(name, id)| (name.clone(), state.files[*id].data.clone())).collect()
}
