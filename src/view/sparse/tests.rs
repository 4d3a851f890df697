//! The view against a store on disk: each promise once, then random operations against a model.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::*;
use crate::format::trailer::Trailer;
use crate::format::{ChunkId, Special};
use crate::store::{CframeStore, OpenOptions};
use crate::view::Inval;
use crate::view::frames::{CHUNKSIZE, Cell, cells_of, cframe, chunk, errno, full, header, zeros};

mod xattr;

struct Mount {
    dir: tempfile::TempDir,
    view: Option<SparseView>,
}

impl Mount {
    fn of(cells: &[Cell], last: u32) -> Mount {
        Self::of_bytes(&cframe(cells, last, CHUNKSIZE as i32))
    }

    fn of_bytes(frame: &[u8]) -> Mount {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f.b2frame"), frame).unwrap();
        let mut mount = Mount { dir, view: None };
        mount.mount();
        mount
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("f.b2frame")
    }

    fn mount(&mut self) {
        let store = CframeStore::open(&self.path(), OpenOptions::default()).unwrap();
        self.view = Some(SparseView::new(Arc::new(store), false).unwrap());
    }

    fn unmount(&mut self) {
        self.view.take().unwrap().shutdown().unwrap();
    }

    fn view(&self) -> &SparseView {
        self.view.as_ref().unwrap()
    }

    fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let emit = &mut |entry: DirEntry<'_>| {
            names.push(entry.name.to_str().unwrap().to_owned());
            true
        };
        self.view().readdir(ROOT, 0, emit).unwrap();
        names
    }

    fn ino(&self, name: &str) -> Result<Ino> {
        self.view().lookup(ROOT, OsStr::new(name)).map(|attr| attr.ino)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        let attr = self.view().lookup(ROOT, OsStr::new(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut bytes = vec![0; attr.size as usize + 10];
        let count = self.view().read(attr.ino, None, 0, &mut bytes).unwrap();
        assert_eq!(count as u64, attr.size, "{name}");
        bytes.truncate(count);
        bytes
    }

    /// Like `cp`: opens for writing (making or truncating), writes in pieces, closes.
    fn cp(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut invals = Vec::new();
        let mode = OpenMode { read: false, write: true, truncate: true };
        let view = self.view();
        let handle = match self.ino(name) {
            Ok(ino) => view.open(ino, mode, &mut invals)?,
            Err(_) => view.create(ROOT, OsStr::new(name), creation(), mode)?.1,
        };
        for (n, piece) in bytes.chunks(50).enumerate() {
            view.write(handle, n as u64 * 50, piece)?;
        }
        let flushed = view.flush(handle, &mut invals);
        view.release(handle, &mut invals);
        flushed
    }

    fn rm(&self, name: &str) -> Result<()> {
        self.view().unlink(ROOT, OsStr::new(name), &mut Vec::new())
    }

    fn mv(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = ((ROOT, OsStr::new(from)), (ROOT, OsStr::new(to)));
        self.view().rename(from, to, RenameMode::Replace, &mut Vec::new())
    }

    fn sync(&self) {
        self.view().fsync(ROOT, &mut Vec::new()).unwrap();
    }

    /// What SOURCE holds on disk now, opened anew.
    fn committed(&self) -> Vec<Cell> {
        cells_of(&self.path())
    }
}

fn creation() -> Creation {
    Creation { uid: 0, gid: 0, mode: 0o644, exclusive: false }
}

const UNINIT: Cell = Cell::Special(Special::Uninit);

/// An index file that names these.
fn index_file(entries: &[IndexEntry<ChunkId>], last: u32) -> Vec<u8> {
    let nbytes =
        (entries.len() as u64).saturating_sub(1) * u64::from(CHUNKSIZE) + if entries.is_empty() { 0 } else { u64::from(last) };
    let header = header(Layout::Sparse, nbytes, 0, 1 << 20, CHUNKSIZE as i32);
    let trailer = Trailer::encode(&[]).unwrap();
    IndexFile { header, trailer, entries: Arc::new(entries.to_vec()) }.make_file().unwrap()
}

fn id(id: u32) -> IndexEntry<ChunkId> {
    IndexEntry::Stored(ChunkId(id))
}

#[test]
fn the_view_is_a_directory_of_chunks() {
    let mount = Mount::of(&[full(1), zeros(), full(3), Cell::Chunk(chunk(4, 10))], 10);
    assert_eq!(mount.names(), ["chunks.b2frame", "00000000.chunk", "00000002.chunk", "00000003.chunk"]);
    assert_eq!(mount.read("00000002.chunk"), chunk(3, CHUNKSIZE));
    assert_eq!(mount.read("00000003.chunk"), chunk(4, 10));
    let index = IndexFile::parse(&mount.read("chunks.b2frame")).unwrap();
    assert_eq!(*index.entries, [id(0), IndexEntry::Special(Special::Zeros), id(2), id(3)]);
    assert_eq!(index.header.cbytes(), 96 + 96 + 42);
    assert_eq!(errno(mount.ino("00000001.chunk")), libc::ENOENT);
}

#[test]
fn an_index_of_few_small_chunks_opens_in_the_library() {
    let mut cells = vec![zeros(); 500];
    cells.push(full(1));
    let mount = Mount::of(&cells, CHUNKSIZE);
    let index = IndexFile::parse(&mount.read("chunks.b2frame")).unwrap();
    assert!(index.header.cbytes() >= 500 + 32, "C-Blosc2 compares ids with cbytes - 32");
}

#[test]
fn a_chunk_larger_than_the_frames_chunksize_is_found_at_mount() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.b2frame");
    std::fs::write(&path, cframe(&[full(1), Cell::Chunk(chunk(2, CHUNKSIZE + 1)), full(3)], CHUNKSIZE, CHUNKSIZE as i32))
        .unwrap();
    let store = CframeStore::open(&path, OpenOptions::default()).unwrap();
    let error = SparseView::new(Arc::new(store), false).err().unwrap().to_string();
    assert!(error.ends_with("chunk: nbytes at byte 4: found 65, expected 1 to 64, the frame's chunksize (chunk 1)"), "{error}");
}

#[test]
fn an_unchanged_mount_leaves_every_byte() {
    let mut mount = Mount::of(&[full(1), zeros(), full(3)], CHUNKSIZE);
    let before = std::fs::read(mount.path()).unwrap();
    mount.read("00000000.chunk");
    mount.sync();
    mount.unmount();
    assert_eq!(std::fs::read(mount.path()).unwrap(), before);
}

#[test]
fn a_chunk_is_replaced_at_close_and_what_is_none_is_refused() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    mount.cp("00000001.chunk", &chunk(9, CHUNKSIZE)).unwrap();
    assert_eq!(mount.read("00000001.chunk"), chunk(9, CHUNKSIZE));
    let good = chunk(7, CHUNKSIZE);
    let longer = [&good[..], b"x"].concat();
    let short = chunk(7, CHUNKSIZE - 1);
    for bad in [&good[..good.len() - 1], &good[..20], &longer, &short, b"no chunk at all, by any reading of the format"] {
        assert_eq!(errno(mount.cp("00000000.chunk", bad)), libc::EINVAL);
        assert_eq!(mount.read("00000000.chunk"), chunk(1, CHUNKSIZE), "the old chunk stays");
    }
    // The last chunk of a frame may be shorter.
    mount.cp("00000001.chunk", &short).unwrap();
    mount.sync();
    assert_eq!(mount.committed(), [full(1), Cell::Chunk(short.clone())]);
    let index = IndexFile::parse(&mount.read("chunks.b2frame")).unwrap();
    assert_eq!(index.header.nbytes(), u64::from(2 * CHUNKSIZE - 1));
    mount.unmount();
    mount.mount();
    assert_eq!(mount.read("00000001.chunk"), short);
}

#[test]
fn an_empty_file_is_not_yet_a_chunk() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    mount.cp("00000001.chunk", b"").unwrap();
    mount.cp("00000002.chunk", b"").unwrap();
    assert_eq!(mount.read("00000001.chunk"), b"");
    mount.sync();
    mount.unmount();
    assert_eq!(mount.committed(), [full(1), full(2)]);
}

#[test]
fn files_take_their_places_by_position() {
    let mut mount = Mount::of(&[full(1), zeros(), full(3)], CHUNKSIZE);
    mount.cp("00000001.chunk", &chunk(2, CHUNKSIZE)).unwrap();
    mount.cp("00000004.chunk", &chunk(5, 7)).unwrap();
    mount.cp("00000003.chunk", &chunk(4, CHUNKSIZE)).unwrap();
    mount.cp("00000005.chunk", &chunk(6, CHUNKSIZE)).unwrap();
    mount.cp("00000009.chunk", &chunk(10, CHUNKSIZE)).unwrap();
    mount.sync();
    let expected = [full(1), full(2), full(3), full(4), Cell::Chunk(chunk(5, 7))];
    assert_eq!(mount.committed(), expected);
    let index = IndexFile::parse(&mount.read("chunks.b2frame")).unwrap();
    assert_eq!(*index.entries, [id(0), id(1), id(2), id(3), id(4)]);
    assert_eq!(index.header.nbytes(), 4 * 64 + 7);
    // After a short last chunk nothing follows, and after a gap neither: kept as files, and saved at the end.
    assert_eq!(mount.names().len(), 8);
    mount.unmount();
    assert_eq!(mount.committed(), expected);
    let lost = mount.dir.path().join("f.b2frame.lost");
    assert_eq!(std::fs::read(lost.join("00000005.chunk")).unwrap(), chunk(6, CHUNKSIZE));
    assert_eq!(std::fs::read(lost.join("00000009.chunk")).unwrap(), chunk(10, CHUNKSIZE));
}

#[test]
fn a_removed_chunk_becomes_uninitialised_unless_it_comes_back() {
    let mut mount = Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE);
    mount.rm("00000000.chunk").unwrap();
    mount.rm("00000001.chunk").unwrap();
    assert_eq!(mount.names(), ["chunks.b2frame", "00000002.chunk"]);
    mount.cp("00000001.chunk", &chunk(8, CHUNKSIZE)).unwrap();
    mount.sync();
    assert_eq!(mount.committed(), [UNINIT, full(8), full(3)]);
    mount.cp("00000000.chunk", &chunk(9, CHUNKSIZE)).unwrap();
    mount.unmount();
    assert_eq!(mount.committed(), [full(9), full(8), full(3)]);
}

#[test]
fn chunks_of_varying_size_lose_the_position_of_a_removed_one() {
    let cells = [Cell::Chunk(chunk(1, 5)), Cell::Chunk(chunk(2, 500)), Cell::Chunk(chunk(3, 50))];
    let mut mount = Mount::of_bytes(&cframe(&cells, 0, 0));
    mount.rm("00000001.chunk").unwrap();
    mount.cp("00000002.chunk", &chunk(4, 17)).unwrap();
    mount.cp("00000003.chunk", &chunk(5, 18)).unwrap();
    mount.unmount();
    // The last file is one past the positions there were left.
    let first = [Cell::Chunk(chunk(1, 5)), Cell::Chunk(chunk(4, 17))];
    assert_eq!(mount.committed(), first);
    mount.mount();
    assert_eq!(IndexFile::parse(&mount.read("chunks.b2frame")).unwrap().header.nbytes(), 22);
    mount.unmount();
}

#[test]
fn the_index_wins() {
    let mut mount = Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE);
    mount.cp("00000007.chunk", &chunk(8, CHUNKSIZE)).unwrap();
    let index = index_file(&[id(7), id(2), IndexEntry::Special(Special::Nan), id(0)], CHUNKSIZE);
    mount.cp("chunks.b2frame", &index).unwrap();
    assert_eq!(mount.read("chunks.b2frame"), index);
    assert_eq!(mount.names(), ["chunks.b2frame", "00000000.chunk", "00000002.chunk", "00000007.chunk"]);
    let expected = [full(8), full(3), Cell::Special(Special::Nan), full(1)];
    mount.sync();
    assert_eq!(mount.committed(), expected);
    assert_eq!(mount.read("00000007.chunk"), chunk(8, CHUNKSIZE), "names stay with their chunks");
    mount.unmount();
    mount.mount();
    assert_eq!(mount.names(), ["chunks.b2frame", "00000000.chunk", "00000001.chunk", "00000003.chunk"]);
    assert_eq!(mount.read("00000000.chunk"), chunk(8, CHUNKSIZE));
}

#[test]
fn an_index_is_held_until_it_parses_and_its_chunks_are_there() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let before = mount.committed();
    let index = index_file(&[id(1), id(5)], CHUNKSIZE);
    // Written in halves, as by a client that opens and closes for each piece.
    mount.cp("chunks.b2frame", &index[..60]).unwrap();
    assert_eq!(mount.read("chunks.b2frame"), index[..60], "what is held is what readers see");
    mount.sync();
    assert_eq!(mount.committed(), before);
    mount.cp("chunks.b2frame", &index).unwrap();
    mount.sync();
    assert_eq!(mount.committed(), before, "chunk 5 is not there");
    mount.cp("00000005.chunk", &chunk(6, CHUNKSIZE)).unwrap();
    mount.sync();
    assert_eq!(mount.committed(), [full(2), full(6)]);
    // One that never becomes whole is saved.
    mount.cp("chunks.b2frame", &index[..70]).unwrap();
    mount.unmount();
    assert_eq!(mount.committed(), [full(2), full(6)]);
    assert_eq!(std::fs::read(mount.dir.path().join("f.b2frame.lost/chunks.b2frame")).unwrap(), index[..70]);
}

#[test]
fn temporary_files_are_renamed_into_place() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    mount.cp(".00000001.chunk.Xy12", &chunk(9, CHUNKSIZE)).unwrap();
    let ino = mount.ino(".00000001.chunk.Xy12").unwrap();
    mount.mv(".00000001.chunk.Xy12", "00000001.chunk").unwrap();
    assert_eq!(mount.ino("00000001.chunk").unwrap(), ino);
    mount.cp(".bad", b"nothing").unwrap();
    assert_eq!(errno(mount.mv(".bad", "00000001.chunk")), libc::EINVAL);
    assert_eq!((mount.read(".bad"), mount.read("00000001.chunk")), (b"nothing".to_vec(), chunk(9, CHUNKSIZE)));
    mount.cp(".index", &index_file(&[id(1), id(0)], CHUNKSIZE)).unwrap();
    mount.mv(".index", "chunks.b2frame").unwrap();
    mount.sync();
    assert_eq!(mount.committed(), [full(9), full(1)]);
    // Away and back under another name: the chunk goes with it.
    mount.mv("00000000.chunk", ".kept").unwrap();
    mount.mv(".kept", "00000002.chunk").unwrap();
    mount.sync();
    assert_eq!(mount.committed(), [full(9), UNINIT, full(1)]);
    assert_eq!(errno(mount.cp("other", b"x")), libc::EPERM);
    assert_eq!(errno(mount.mv(".bad", "other")), libc::EPERM);
    mount.unmount();
    assert_eq!(mount.committed(), [full(9), UNINIT, full(1)]);
}

#[test]
fn backups_are_kept_and_outlive_the_mount_beside_source() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    mount.mv("00000001.chunk", "00000001.chunk~").unwrap();
    mount.cp("00000001.chunk", &chunk(9, CHUNKSIZE)).unwrap();
    assert_eq!(mount.read("00000001.chunk~"), chunk(2, CHUNKSIZE));
    mount.unmount();
    assert_eq!(mount.committed(), [full(1), full(9)]);
    assert_eq!(std::fs::read(mount.dir.path().join("f.b2frame.lost/00000001.chunk~")).unwrap(), chunk(2, CHUNKSIZE));
}

#[test]
fn a_removed_file_is_readable_as_long_as_it_is_open() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let view = mount.view();
    let ino = mount.ino("00000000.chunk").unwrap();
    let handle = view.open(ino, OpenMode { read: true, ..OpenMode::default() }, &mut Vec::new()).unwrap();
    mount.rm("00000000.chunk").unwrap();
    for fill in 10..30 {
        mount.cp("00000000.chunk", &chunk(fill, CHUNKSIZE)).unwrap();
        mount.sync();
    }
    let mut bytes = vec![0; 200];
    assert_eq!(view.read(ino, Some(handle), 0, &mut bytes).unwrap(), 96);
    assert_eq!(bytes[..96], chunk(1, CHUNKSIZE));
    assert_eq!(mount.read("00000000.chunk"), chunk(29, CHUNKSIZE));
    view.release(handle, &mut Vec::new());
    // Whoever looked the name up before may open it still.
    let handle = view.open(ino, OpenMode { read: true, ..OpenMode::default() }, &mut Vec::new()).unwrap();
    assert_eq!(view.getattr(ino).unwrap().nlink, 0);
    view.forget(ino);
    assert_eq!(view.read(ino, Some(handle), 0, &mut bytes).unwrap(), 96);
    view.release(handle, &mut Vec::new());
    assert_eq!(errno(view.getattr(ino)), libc::ESTALE);
}

#[test]
fn who_was_refused_may_go_on_writing() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let (view, ino) = (mount.view(), mount.ino("00000001.chunk").unwrap());
    let mode = OpenMode { write: true, truncate: true, read: false };
    let handle = view.open(ino, mode, &mut Vec::new()).unwrap();
    let bytes = chunk(9, CHUNKSIZE);
    view.write(handle, 0, &bytes[..40]).unwrap();
    let mut invals = Vec::new();
    assert_eq!(errno(view.flush(handle, &mut invals)), libc::EINVAL);
    assert_eq!(invals, [Inval::Data(ino)]);
    assert_eq!(mount.read("00000001.chunk"), chunk(2, CHUNKSIZE));
    view.write(handle, 40, &bytes[40..]).unwrap();
    view.flush(handle, &mut Vec::new()).unwrap();
    view.release(handle, &mut Vec::new());
    assert_eq!(mount.read("00000001.chunk"), bytes);
}

#[test]
fn a_part_of_a_chunk_is_changed_in_place() {
    let mut mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let (view, ino) = (mount.view(), mount.ino("00000000.chunk").unwrap());
    let handle = view.open(ino, OpenMode { write: true, ..OpenMode::default() }, &mut Vec::new()).unwrap();
    view.write(handle, 40, b"changed").unwrap();
    view.flush(handle, &mut Vec::new()).unwrap();
    view.release(handle, &mut Vec::new());
    let mut expected = chunk(1, CHUNKSIZE);
    expected[40..47].copy_from_slice(b"changed");
    mount.unmount();
    assert_eq!(mount.committed(), [Cell::Chunk(expected), full(2)]);
}

#[test]
fn a_whole_sframe_copied_in_makes_the_cframe() {
    for index_first in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.b2frame");
        let store = CframeStore::create(&path, OpenOptions::default()).unwrap();
        let mut mount = Mount { dir, view: Some(SparseView::new(Arc::new(store), false).unwrap()) };
        assert!(mount.names().is_empty());
        let index = index_file(&[id(0), IndexEntry::Special(Special::Zeros), id(5)], 10);
        if index_first {
            mount.cp("chunks.b2frame", &index).unwrap();
        }
        mount.cp("00000000.chunk", &chunk(1, CHUNKSIZE)).unwrap();
        mount.sync();
        assert!(!path.exists(), "nothing under the final name before it is whole");
        mount.cp("00000005.chunk", &chunk(2, 10)).unwrap();
        if !index_first {
            mount.cp("chunks.b2frame", &index).unwrap();
        }
        mount.sync();
        let expected = [full(1), zeros(), Cell::Chunk(chunk(2, 10))];
        assert_eq!(mount.committed(), expected);
        mount.unmount();
        assert_eq!(mount.committed(), expected);
    }
}

#[test]
fn times_and_modes_set_are_kept() {
    let mount = Mount::of(&[full(1)], CHUNKSIZE);
    let view = mount.view();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    mount.cp("00000000.chunk", &chunk(2, CHUNKSIZE)).unwrap();
    let ino = mount.ino("00000000.chunk").unwrap();
    let set = SetAttr { mtime: Some(then), mode: Some(0o600), ..SetAttr::default() };
    view.setattr(ino, None, set, &mut Vec::new()).unwrap();
    mount.sync();
    let attr = view.getattr(ino).unwrap();
    assert_eq!((attr.mtime, attr.perm), (then, 0o600));
}

/// What a directory should hold and SOURCE should become, computed the slow way.
#[derive(Debug, Clone)]
struct Model {
    files: BTreeMap<u32, Vec<u8>>,
    /// Chunk files written since the index was.
    newer: BTreeSet<u32>,
    index: Vec<IndexEntry<ChunkId>>,
    last: u32,
}

impl Model {
    /// Rule 3 of the contract.
    fn settle(&mut self) {
        let files = &self.files;
        for entry in &mut self.index {
            if matches!(entry, IndexEntry::Stored(id) if !files.contains_key(&id.0)) {
                *entry = IndexEntry::Special(Special::Uninit);
            }
        }
        let named: BTreeSet<u32> = super::state::stored(&self.index).map(|id| id.0).collect();
        for n in self.newer.clone() {
            if named.contains(&n) || !files.contains_key(&n) {
                continue;
            }
            let size = files[&n].len() as u32 - 32;
            let count = self.index.len();
            let last = n as usize + 1 == count;
            if (n as usize) < count {
                let special = matches!(self.index[n as usize], IndexEntry::Special(_));
                if special && (size == CHUNKSIZE || last) {
                    self.index[n as usize] = id(n);
                    if last {
                        self.last = size;
                    }
                }
            } else if n as usize == count && (count == 0 || self.last == CHUNKSIZE) {
                self.index.push(id(n));
                self.last = size;
            }
        }
    }

    fn cells(&self) -> Vec<Cell> {
        let cells = self.index.iter().map(|entry| match entry {
            IndexEntry::Stored(id) => Cell::Chunk(self.files[&id.0].clone()),
            IndexEntry::Special(special) => Cell::Special(*special),
        });
        cells.collect()
    }

    fn position(&self, n: u32) -> Option<usize> {
        self.index.iter().position(|entry| *entry == id(n))
    }

    fn fits(&self, n: u32, size: u32) -> bool {
        match self.position(n) {
            Some(position) if position + 1 < self.index.len() => size == CHUNKSIZE,
            _ => size <= CHUNKSIZE,
        }
    }

    fn write(&mut self, n: u32, bytes: Vec<u8>) {
        match self.position(n) {
            Some(position) if position + 1 == self.index.len() => self.last = bytes.len() as u32 - 32,
            Some(_) => {}
            None => drop(self.newer.insert(n)),
        }
        self.files.insert(n, bytes);
    }
}

/// A small generator of reproducible numbers (xorshift).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn random_session(seed: u64, steps: u32) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let cells = [full(1), zeros(), full(2), full(3)];
    let mut mount = Mount::of(&cells, CHUNKSIZE);
    let files = [(0, 1), (2, 2), (3, 3)].map(|(n, fill)| (n, chunk(fill, CHUNKSIZE)));
    let index = vec![id(0), IndexEntry::Special(Special::Zeros), id(2), id(3)];
    let mut model = Model { files: files.into(), newer: BTreeSet::new(), index, last: CHUNKSIZE };
    for step in 0..steps {
        let at = format!("seed {seed}, step {step}");
        let n = rng.below(8) as u32;
        let name = ChunkId(n).file_name();
        let fill = rng.below(250) as u8;
        match rng.below(12) {
            0..=3 => {
                let size = if rng.below(4) == 0 { 1 + rng.below(70) as u32 } else { CHUNKSIZE };
                let fits = model.fits(n, size);
                let temp = rng.below(3) == 0;
                let result = if temp {
                    mount.cp(".temp", &chunk(fill, size)).unwrap();
                    mount.mv(".temp", &name)
                } else {
                    mount.cp(&name, &chunk(fill, size))
                };
                assert_eq!(errno(result), if fits { 0 } else { libc::EINVAL }, "{at}: {name} of {size}");
                if fits {
                    model.write(n, chunk(fill, size));
                } else if temp {
                    mount.rm(".temp").unwrap();
                } else if !model.files.contains_key(&n) {
                    // A file that was never a chunk is empty.
                    assert_eq!(mount.read(&name), b"", "{at}");
                    mount.rm(&name).unwrap();
                }
            }
            4 => {
                let known = model.files.remove(&n).is_some();
                model.newer.remove(&n);
                assert_eq!(errno(mount.rm(&name)), if known { 0 } else { libc::ENOENT }, "{at}");
            }
            5 | 6 => {
                // A new index of files that are there, the last of which says how long it is.
                let mut index = Vec::new();
                for n in model.files.keys() {
                    match rng.below(5) {
                        0 => {}
                        1 => index.insert(rng.below(index.len() as u64 + 1) as usize, IndexEntry::Special(Special::Nan)),
                        _ => index.insert(rng.below(index.len() as u64 + 1) as usize, id(*n)),
                    }
                }
                let short = |entry: &IndexEntry<ChunkId>| matches!(entry, IndexEntry::Stored(id) if model.files[&id.0].len() as u32 != CHUNKSIZE + 32);
                let last = match index.iter().position(short) {
                    Some(position) => {
                        let entry = index.remove(position);
                        index.retain(|entry| !short(entry));
                        index.push(entry);
                        let IndexEntry::Stored(id) = entry else { unreachable!() };
                        model.files[&id.0].len() as u32 - 32
                    }
                    None => CHUNKSIZE,
                };
                let bytes = index_file(&index, last);
                mount.cp("chunks.b2frame", &bytes[..rng.below(bytes.len() as u64) as usize]).unwrap();
                mount.cp("chunks.b2frame", &bytes).unwrap();
                let named_before: BTreeSet<u32> = super::state::stored(&model.index).map(|id| id.0).collect();
                model.index = index;
                model.last = last;
                model.files.retain(|n, _| !named_before.contains(n) || model.index.contains(&id(*n)));
                model.newer.clear();
            }
            7 => {
                let to = rng.below(8) as u32;
                if n != to && model.files.contains_key(&n) {
                    let bytes = model.files[&n].clone();
                    let fits = model.fits(to, bytes.len() as u32 - 32);
                    let result = mount.mv(&name, &ChunkId(to).file_name());
                    assert_eq!(errno(result), if fits { 0 } else { libc::EINVAL }, "{at}");
                    if fits {
                        model.files.remove(&n);
                        model.newer.remove(&n);
                        model.write(to, bytes);
                    }
                }
            }
            8 if step % 5 == 0 => {
                mount.unmount();
                model.settle();
                assert_eq!(mount.committed(), model.cells(), "{at}: after unmount");
                // The next mount numbers by position, and files without a place are gone.
                let cells = model.cells();
                model.index = (0u32..)
                    .zip(&cells)
                    .map(|(n, cell)| match cell {
                        Cell::Chunk(_) => id(n),
                        Cell::Special(special) => IndexEntry::Special(*special),
                    })
                    .collect();
                model.files = (0u32..)
                    .zip(cells)
                    .filter_map(|(n, cell)| match cell {
                        Cell::Chunk(bytes) => Some((n, bytes)),
                        Cell::Special(_) => None,
                    })
                    .collect();
                model.newer.clear();
                mount.mount();
            }
            _ => {
                mount.sync();
                model.settle();
                assert_eq!(mount.committed(), model.cells(), "{at}: after fsync");
                let index = IndexFile::parse(&mount.read("chunks.b2frame")).unwrap();
                assert_eq!(*index.entries, model.index, "{at}");
            }
        }
        let names: Vec<String> = model.files.keys().map(|n| ChunkId(*n).file_name()).collect();
        assert_eq!(mount.names()[1..], names, "{at}");
        for (n, bytes) in &model.files {
            assert_eq!(mount.read(&ChunkId(*n).file_name()), *bytes, "{at}: {n}");
        }
    }
    mount.unmount();
}

#[test]
fn random_sessions_agree_with_the_model() {
    for seed in 1..=40 {
        random_session(seed, 120);
    }
}

/// A hole costs a client nothing, and must not cost the daemon gibibytes.
#[test]
fn an_index_that_is_nearly_all_hole_is_not_read() {
    let most = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let mut mount = Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE);
    let before = mount.committed();
    let file = mount.read("chunks.b2frame");
    let (ino, mut invals) = (mount.ino("chunks.b2frame").unwrap(), Vec::new());
    let mode = OpenMode { read: true, write: true, truncate: false };
    let handle = mount.view().open(ino, mode, &mut invals).unwrap();
    let len = 3u64 << 30;
    mount.view().write(handle, 16, &len.to_be_bytes()).unwrap();
    let set = SetAttr { size: Some(len), ..SetAttr::default() };
    mount.view().setattr(ino, Some(handle), set, &mut invals).unwrap();
    let memory = most();
    let _ = mount.view().flush(handle, &mut invals);
    assert!(most() - memory < 1 << 20, "{} KiB", most() - memory);
    mount.view().release(handle, &mut invals);
    mount.cp("chunks.b2frame", &file).unwrap();
    mount.unmount();
    assert_eq!(mount.committed(), before);
}

#[test]
fn a_refused_rename_of_the_index_does_not_hold_up_commits() {
    let mut mount = Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE);
    assert!(mount.mv("chunks.b2frame", "00000002.chunk").is_err());
    let Cell::Chunk(bytes) = full(9) else { panic!("a stored chunk") };
    mount.cp("00000000.chunk", &bytes).unwrap();
    mount.sync();
    assert_eq!(mount.committed(), [full(9), full(2), full(3)]);
    mount.unmount();
    assert_eq!(mount.committed(), [full(9), full(2), full(3)]);
}

/// What an index has in common with the adopted one is not looked at again, and yet nothing of it escapes.
#[test]
fn an_index_like_the_adopted_one() {
    let mount = Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE);
    let view = mount.view();
    let same = index_file(&[id(0), id(1), id(2)], CHUNKSIZE);
    mount.cp("chunks.b2frame", &same).unwrap();
    let entries = |view: &SparseView| Arc::clone(&view.state.read().adopted.as_ref().unwrap().entries);
    let first = entries(view);
    mount.cp("chunks.b2frame", &same).unwrap();
    assert!(Arc::ptr_eq(&first, &entries(view)), "decoded once");
    // A chunk of the common part that is missing.
    mount.rm("00000001.chunk").unwrap();
    mount.cp("chunks.b2frame", &same).unwrap();
    assert!(matches!(&view.state.read().held, state::Held::Waiting(_, missing) if missing.len() == 1));
    mount.cp("00000001.chunk", &chunk(7, CHUNKSIZE)).unwrap();
    assert!(matches!(view.state.read().held, state::Held::No));
    // One of it, new, that fits as the last, which it is no more.
    mount.cp("00000002.chunk", &chunk(8, 10)).unwrap();
    mount.cp("00000003.chunk", &chunk(9, CHUNKSIZE)).unwrap();
    mount.cp("chunks.b2frame", &index_file(&[id(0), id(1), id(2), id(3)], CHUNKSIZE)).unwrap();
    assert!(matches!(view.state.read().held, state::Held::Unparsed));
    mount.rm("00000003.chunk").unwrap();
    // A chunk at two positions, then at the first of them alone.
    mount.cp("00000002.chunk", &chunk(8, CHUNKSIZE)).unwrap();
    mount.cp("chunks.b2frame", &index_file(&[id(0), id(1), id(2), id(0)], CHUNKSIZE)).unwrap();
    assert_eq!(view.state.read().table.get(ChunkId(0)).position(), Some(3));
    mount.cp("chunks.b2frame", &index_file(&[id(0), id(1), id(2)], CHUNKSIZE)).unwrap();
    assert_eq!(view.state.read().table.get(ChunkId(0)).position(), Some(0));
    assert_eq!(mount.names(), ["chunks.b2frame", "00000000.chunk", "00000001.chunk", "00000002.chunk"]);
    mount.sync();
    assert_eq!(mount.committed(), [full(1), Cell::Chunk(chunk(7, CHUNKSIZE)), Cell::Chunk(chunk(8, CHUNKSIZE))]);
}

#[test]
fn who_closes_during_a_commit_leaves_the_next_one_to_the_tick() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let view = mount.view();
    let committing = view.pacer.committing();
    mount.cp("00000000.chunk", &chunk(5, CHUNKSIZE)).unwrap();
    assert_eq!(mount.committed()[0], full(1), "the close waited for nobody");
    drop(committing);
    let due = view.tick(Instant::now(), &mut Vec::new()).unwrap();
    assert!(due <= Instant::now() + std::time::Duration::from_secs(1));
    view.tick(due, &mut Vec::new());
    assert_eq!(mount.committed()[0], full(5));
}
