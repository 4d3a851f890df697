//! Random sessions against a model of what POSIX says of names, inodes and open files.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, SystemTime};

use super::*;

const TEMPORARY: [&str; 4] = [".a", ".b", ".c", ".d"];
const TIME: SystemTime = SystemTime::UNIX_EPOCH;

/// A file, by its number in the model.
type Id = usize;

#[derive(Debug, Clone)]
struct File {
    ino: Ino,
    bytes: Vec<u8>,
    mode: u32,
    mtime: Option<SystemTime>,
    /// The kernel has forgotten it.
    forgotten: bool,
    /// Once a file of the frame, it holds what the store keeps for it: it may be read, and not be written to.
    former: bool,
}

struct Model {
    fs: Box<dyn FileSystem>,
    pair: Pair,
    seed: u64,
    files: Vec<File>,
    names: BTreeMap<&'static str, Id>,
    /// Open files, with whether they are open for writing.
    handles: Vec<(Handle, Id, bool)>,
}

impl Model {
    fn new(pair: Pair, path: &Path, seed: u64) -> Self {
        let mut model =
            Model { fs: pair.mount(path), pair, seed, files: Vec::new(), names: BTreeMap::new(), handles: Vec::new() };
        for name in pair.frame_names() {
            let attr = lookup(&*model.fs, name).unwrap();
            let bytes = read(&*model.fs, attr.ino, None).unwrap();
            model.add(name, attr.ino, bytes, attr.meta.mode);
        }
        model
    }

    fn random(&mut self, below: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % below
    }

    fn pick(&mut self, names: &[&'static str]) -> &'static str {
        names[self.random(names.len())]
    }

    fn any_name(&mut self) -> &'static str {
        let all: Vec<_> = self.pair.frame_names().iter().chain(&TEMPORARY).copied().collect();
        self.pick(&all)
    }

    fn is_frame(&self, name: &str) -> bool {
        self.pair.frame_names().contains(&name)
    }

    fn add(&mut self, name: &'static str, ino: Ino, bytes: Vec<u8>, mode: u32) -> Id {
        self.files.push(File { ino, bytes, mode, mtime: None, forgotten: false, former: false });
        self.names.insert(name, self.files.len() - 1);
        self.files.len() - 1
    }

    fn is_open(&self, id: Id) -> bool {
        self.handles.iter().any(|(_, of, _)| *of == id)
    }

    fn is_being_written(&self, id: Id) -> bool {
        self.handles.iter().any(|(_, of, write)| *of == id && *write)
    }

    fn has_name(&self, id: Id) -> bool {
        self.names.values().any(|of| *of == id)
    }

    /// Makes or cuts a file, writes it, closes it; the handle goes on being open or not.
    fn write(&mut self, name: &'static str) {
        let fill = self.random(100) as u8;
        let bytes = if self.is_frame(name) || self.random(2) == 0 { self.pair.good(fill) } else { vec![fill; 77] };
        let mode = OpenMode { read: true, write: true, truncate: true, drop_privileges: false };
        let known = self.names.get(name).copied();
        if known.is_some_and(|id| self.is_being_written(id)) {
            return;
        }
        let (id, handle) = match known {
            Some(id) => (id, self.fs.open(self.files[id].ino, mode).unwrap().handle),
            None => {
                let creation = Creation { uid: 1, gid: 2, mode: 0o640, umask: 0, pid: 0, exclusive: true };
                let (attr, opened) = self.fs.create(ROOT, OsStr::new(name), creation, mode).unwrap();
                assert_eq!((attr.size, attr.meta.uid, attr.meta.gid), (0, 1, 2), "{name}");
                (self.add(name, attr.ino, Vec::new(), 0o640), opened.handle)
            }
        };
        for (n, piece) in bytes.chunks(50).enumerate() {
            self.fs.write(handle, n as u64 * 50, piece).unwrap();
        }
        self.files[id].bytes = bytes;
        (self.files[id].mtime, self.files[id].former) = (None, false);
        self.fs.flush(handle, &mut Invalidations::new()).unwrap();
        self.handles.push((handle, id, true));
        if self.random(3) > 0 {
            self.close(self.handles.len() - 1);
        }
    }

    fn close(&mut self, at: usize) {
        let (handle, ..) = self.handles.swap_remove(at);
        self.fs.release(handle, &mut Invalidations::new());
        assert_eq!(errno(self.fs.flush(handle, &mut Invalidations::new())), libc::EBADF);
    }

    fn rename(&mut self, from: &'static str, to: &'static str) {
        let renamed = self.fs.rename((ROOT, from.as_ref()), (ROOT, to.as_ref()), RenameMode::Replace, &mut Invalidations::new());
        let Some(id) = self.names.get(from).copied() else { return assert_eq!(errno(renamed), libc::ENOENT) };
        let fits = !self.is_frame(to) || self.files[id].bytes.len() != 77 && !self.files[id].bytes.is_empty();
        if from != to && !fits {
            return assert_eq!(errno(renamed), libc::EINVAL, "{from} {to}");
        }
        renamed.unwrap_or_else(|error| panic!("{from} {to}: {error}"));
        self.names.remove(from);
        self.names.insert(to, id);
        if from != to {
            self.files[id].former = self.is_frame(from) && !self.is_frame(to);
        }
    }

    fn step(&mut self) {
        match self.random(10) {
            0 | 1 => {
                let name = self.any_name();
                self.write(name);
            }
            2 => {
                let name = self.any_name();
                let removed = self.fs.unlink(ROOT, OsStr::new(name), &mut Invalidations::new());
                match self.names.remove(name) {
                    Some(id) => {
                        removed.unwrap();
                        self.files[id].former |= self.is_frame(name);
                    }
                    None => assert_eq!(errno(removed), libc::ENOENT),
                }
            }
            3 | 4 => {
                let (from, to) = (self.any_name(), self.any_name());
                self.rename(from, to);
            }
            5 => {
                let name = self.any_name();
                if let Some(id) = self.names.get(name).copied() {
                    let mode = OpenMode { read: true, ..OpenMode::default() };
                    let handle = self.fs.open(self.files[id].ino, mode).unwrap().handle;
                    assert_eq!(errno(self.fs.write(handle, 0, b"x")), libc::EBADF);
                    self.handles.push((handle, id, false));
                }
            }
            6 if !self.handles.is_empty() => {
                let at = self.random(self.handles.len());
                self.close(at);
            }
            7 => {
                let id = self.random(self.files.len());
                self.fs.forget(self.files[id].ino, 1, true);
                self.files[id].forgotten = true;
            }
            8 => {
                let name = self.any_name();
                if let Some(id) = self.names.get(name).copied() {
                    let mtime = TIME + Duration::from_secs(self.random(1000) as u64);
                    let set = SetAttr { mode: Some(0o604), mtime: Some(mtime), ..SetAttr::default() };
                    let attr = self.fs.setattr(self.files[id].ino, None, set, &mut Invalidations::new()).unwrap();
                    assert_eq!((attr.meta.mode, attr.meta.mtime), (0o604, mtime), "{name}");
                    (self.files[id].mode, self.files[id].mtime) = (0o604, Some(mtime));
                }
            }
            _ => {}
        }
    }

    fn check(&mut self) {
        let mut listed = Vec::new();
        let mut cookie = 0;
        // A name at a time, as the smallest buffer would have it.
        loop {
            let (before, from) = (listed.len(), cookie);
            let emit = &mut |entry: DirEntry<'_>| {
                assert!(entry.next > from, "cookies grow");
                cookie = entry.next;
                listed.push((entry.name.to_str().unwrap().to_owned(), entry.ino));
                false
            };
            self.fs.readdir(ROOT, from, emit).unwrap();
            if listed.len() == before {
                break;
            }
        }
        listed.retain(|(name, _)| name != "chunks.b2frame");
        listed.sort();
        let mut expected: Vec<_> = self.names.iter().map(|(name, id)| ((*name).to_owned(), self.files[*id].ino)).collect();
        expected.sort();
        assert_eq!(listed, expected);
        for (name, id) in self.names.clone() {
            let attr = lookup(&*self.fs, name).unwrap();
            let file = &mut self.files[id];
            assert_eq!((attr.ino, attr.size, attr.nlink), (file.ino, file.bytes.len() as u64, 1), "{name}");
            assert_eq!(attr.meta.mode, file.mode, "{name}");
            assert!(file.mtime.is_none_or(|mtime| mtime == attr.meta.mtime), "{name}");
            assert_eq!(self.fs.last_name(file.ino), Some((ROOT, name.into())));
            file.forgotten = false;
        }
        for id in 0..self.files.len() {
            let File { ino, bytes, forgotten, .. } = &self.files[id];
            let attr = self.fs.getattr(*ino);
            if self.has_name(id) || self.is_open(id) || !forgotten {
                assert_eq!(attr.unwrap().nlink, u32::from(self.has_name(id)));
                assert!(read(&*self.fs, *ino, None).unwrap() == *bytes, "inode {ino:?}");
            } else {
                assert_eq!(errno(attr), libc::ESTALE);
            }
        }
        for (handle, id, _) in &self.handles {
            assert!(read(&*self.fs, self.files[*id].ino, Some(*handle)).unwrap() == self.files[*id].bytes);
        }
        let inos: HashSet<Ino> = self.files.iter().map(|file| file.ino).collect();
        assert_eq!(inos.len(), self.files.len(), "no inode is given twice");
    }
}

#[test]
fn names_inodes_and_open_files_are_as_in_any_directory() {
    for pair in PAIRS {
        for seed in 0..24 {
            let dir = tempfile::tempdir().unwrap();
            let path = pair.make(dir.path());
            let mut model = Model::new(pair, &path, seed);
            for _ in 0..40 {
                model.step();
                model.check();
            }
            while !model.handles.is_empty() {
                model.close(0);
            }
            model.check();
            let fs = model.fs;
            let left = fs.leave(true, &mut Invalidations::new());
            assert!(left.is_safe(), "{pair:?} {seed}: {left}");
            let _ = fs.shutdown();
        }
    }
}
