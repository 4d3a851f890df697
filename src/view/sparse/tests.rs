//! The view against a store on disk: each promise once, then random operations against a model.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::*;
use crate::format::index_file::IndexFile;
use crate::format::trailer::Trailer;
use crate::format::{ChunkId, IndexEntry, Layout, Special};
use crate::store::{CframeStore, OpenOptions};
use crate::view::frames::{CHUNKSIZE, Cell, cells_of, cframe, chunk, errno, full, header, zeros};
use crate::view::{Creation, DirEntry, FileSystem, Invalidation, OpenMode, ROOT, RenameMode, SetAttr, ViewError};

mod model;
mod others;
mod several;
mod special;
mod syncing;
mod times;
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
        let options = OpenOptions { hold_staged: true, ..OpenOptions::default() };
        let store = CframeStore::open(&self.path(), options).unwrap();
        self.view = Some(SparseView::new(Arc::new(store), false).unwrap());
    }

    fn unmount(&mut self) {
        assert_eq!(self.unmount_losing(), [""; 0]);
    }

    /// Unmounts, and answers which files SOURCE does not have: all are saved.
    fn unmount_losing(&mut self) -> Vec<String> {
        let view = self.view.take().unwrap();
        let left = view.leave(false, &mut Vec::new());
        assert!(left.is_safe(), "{left}");
        let mut names: Vec<String> = left.lost.into_iter().map(|lost| lost.name).collect();
        names.sort();
        assert_eq!(view.shutdown().is_err(), !names.is_empty());
        names
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
        let mut invalidations = Vec::new();
        let mode = OpenMode { read: false, write: true, truncate: true, drop_privileges: false };
        let view = self.view();
        let handle = match self.ino(name) {
            Ok(ino) => view.open(ino, mode)?.handle,
            Err(_) => view.create(ROOT, OsStr::new(name), creation(), mode)?.1.handle,
        };
        for (n, piece) in bytes.chunks(50).enumerate() {
            view.write(handle, n as u64 * 50, piece)?;
        }
        let flushed = view.flush(handle, &mut invalidations);
        view.release(handle, &mut invalidations);
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
    Creation { uid: 0, gid: 0, mode: 0o644, umask: 0, pid: 0, exclusive: false }
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
    assert_eq!(mount.unmount_losing(), ["00000005.chunk", "00000009.chunk"]);
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
    assert_eq!(mount.unmount_losing(), ["00000003.chunk"]);
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
    assert_eq!(mount.unmount_losing(), ["chunks.b2frame"]);
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
    assert_eq!(mount.unmount_losing(), ["00000001.chunk~"]);
    assert_eq!(mount.committed(), [full(1), full(9)]);
    assert_eq!(std::fs::read(mount.dir.path().join("f.b2frame.lost/00000001.chunk~")).unwrap(), chunk(2, CHUNKSIZE));
}

#[test]
fn a_removed_file_is_readable_as_long_as_it_is_open() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let view = mount.view();
    let ino = mount.ino("00000000.chunk").unwrap();
    let handle = view.open(ino, OpenMode { read: true, ..OpenMode::default() }).unwrap().handle;
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
    let handle = view.open(ino, OpenMode { read: true, ..OpenMode::default() }).unwrap().handle;
    assert_eq!(view.getattr(ino).unwrap().nlink, 0);
    view.forget(ino, 1, true);
    assert_eq!(view.read(ino, Some(handle), 0, &mut bytes).unwrap(), 96);
    view.release(handle, &mut Vec::new());
    assert_eq!(errno(view.getattr(ino)), libc::ESTALE);
}

/// The kernel may hear of the last close at any time, also when somebody reads.
#[test]
fn what_was_refused_goes_without_a_word() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let (view, ino) = (mount.view(), mount.ino("00000001.chunk").unwrap());
    let handle = view.open(ino, OpenMode { write: true, truncate: true, ..OpenMode::default() }).unwrap().handle;
    view.write(handle, 0, &[7; 1000]).unwrap();
    assert_eq!(errno(view.flush(handle, &mut Vec::new())), libc::EINVAL);
    assert_eq!(mount.read("00000001.chunk"), chunk(2, CHUNKSIZE));
    let mut invalidations = Vec::new();
    view.release(handle, &mut invalidations);
    assert_eq!(invalidations, []);
    assert!(view.state.read().nodes.get(ino).is_none_or(|node| node.writing.is_none()));
    assert_eq!(mount.read("00000001.chunk"), chunk(2, CHUNKSIZE));
}

#[test]
fn who_was_refused_may_go_on_writing() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let (view, ino) = (mount.view(), mount.ino("00000001.chunk").unwrap());
    let mode = OpenMode { write: true, truncate: true, ..OpenMode::default() };
    let handle = view.open(ino, mode).unwrap().handle;
    let bytes = chunk(9, CHUNKSIZE);
    view.write(handle, 0, &bytes[..40]).unwrap();
    let mut invalidations = Vec::new();
    assert_eq!(errno(view.flush(handle, &mut invalidations)), libc::EINVAL);
    assert_eq!(invalidations, [Invalidation::Data(ino)]);
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
    let handle = view.open(ino, OpenMode { write: true, ..OpenMode::default() }).unwrap().handle;
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

/// The library writes a chunk before the index by which the frame is one of varying chunks.
#[test]
fn a_frame_that_is_made_here_may_turn_to_chunks_of_varying_size() {
    let dir = tempfile::tempdir().unwrap();
    let store = CframeStore::create(&dir.path().join("f.b2frame"), OpenOptions::default()).unwrap();
    let mut mount = Mount { dir, view: Some(SparseView::new(Arc::new(store), false).unwrap()) };
    mount.cp("00000000.chunk", &chunk(1, CHUNKSIZE)).unwrap();
    mount.cp("chunks.b2frame", &index_file(&[id(0)], CHUNKSIZE)).unwrap();
    mount.sync();
    mount.cp("00000001.chunk", &chunk(2, CHUNKSIZE + 8)).unwrap();
    let mut index = IndexFile {
        header: header(Layout::Sparse, u64::from(2 * CHUNKSIZE + 8), 0, 1 << 20, 0),
        trailer: Trailer::encode(&[]).unwrap(),
        entries: Arc::new(vec![id(0), id(1)]),
    };
    mount.cp("chunks.b2frame", &index.make_file().unwrap()).unwrap();
    mount.sync();
    let expected = [full(1), Cell::Chunk(chunk(2, CHUNKSIZE + 8))];
    assert_eq!(mount.committed(), expected);
    mount.unmount();
    assert_eq!(mount.committed(), expected);
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
    assert_eq!((attr.meta.mtime, attr.meta.mode), (then, 0o600));
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
    let (ino, mut invalidations) = (mount.ino("chunks.b2frame").unwrap(), Vec::new());
    let mode = OpenMode { read: true, write: true, truncate: false, drop_privileges: false };
    let handle = mount.view().open(ino, mode).unwrap().handle;
    let len = 3u64 << 30;
    mount.view().write(handle, 16, &len.to_be_bytes()).unwrap();
    let set = SetAttr { size: Some(len), ..SetAttr::default() };
    mount.view().setattr(ino, Some(handle), set, &mut invalidations).unwrap();
    let memory = most();
    let _ = mount.view().flush(handle, &mut invalidations);
    assert!(most() - memory < 1 << 20, "{} KiB", most() - memory);
    mount.view().release(handle, &mut invalidations);
    mount.cp("chunks.b2frame", &file).unwrap();
    mount.unmount();
    assert_eq!(mount.committed(), before);
}

#[test]
fn a_file_longer_than_any_index_is_not_renamed_onto_it() {
    let mut mount = Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE);
    let (before, index) = (mount.committed(), mount.read("chunks.b2frame"));
    mount.cp(".t", &index).unwrap();
    let ino = mount.ino(".t").unwrap();
    let handle =
        mount.view().open(ino, OpenMode { read: true, write: true, truncate: false, drop_privileges: false }).unwrap().handle;
    let resize = |size: u64| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        mount.view().setattr(ino, Some(handle), set, &mut Vec::new())
    };
    for len in [4 << 60, crate::format::index_file::MAX_LEN + 1] {
        resize(len).unwrap();
        let error = mount.mv(".t", "chunks.b2frame").unwrap_err();
        assert!(matches!(error, ViewError::TooBig), "{error}");
        assert!(mount.ino(".t").is_ok() && mount.read("chunks.b2frame") == index, "both names are as they were");
    }
    resize(index.len() as u64).unwrap();
    mount.mv(".t", "chunks.b2frame").unwrap();
    // Nor is it lengthened by whoever had it open before.
    let longer = mount.view().write(handle, crate::format::index_file::MAX_LEN, b"more");
    assert!(matches!(longer, Err(ViewError::TooBig)), "{longer:?}");
    mount.view().release(handle, &mut Vec::new());
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

/// What an index has in common with the applied one is not looked at again, and yet nothing of it escapes.
#[test]
fn an_index_like_the_applied_one() {
    let mount = Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE);
    let view = mount.view();
    let same = index_file(&[id(0), id(1), id(2)], CHUNKSIZE);
    mount.cp("chunks.b2frame", &same).unwrap();
    let entries = |view: &SparseView| Arc::clone(&view.state.read().frame.applied.as_ref().unwrap().entries);
    let first = entries(view);
    mount.cp("chunks.b2frame", &same).unwrap();
    assert!(Arc::ptr_eq(&first, &entries(view)), "decoded once");
    // A chunk of the common part that is missing.
    mount.rm("00000001.chunk").unwrap();
    mount.cp("chunks.b2frame", &same).unwrap();
    assert!(matches!(&view.state.read().frame.held, state::HeldIndex::Waiting(_, missing) if missing.len() == 1));
    mount.cp("00000001.chunk", &chunk(7, CHUNKSIZE)).unwrap();
    assert!(matches!(view.state.read().frame.held, state::HeldIndex::No));
    // One of it, new, that fits as the last, which it is no more.
    mount.cp("00000002.chunk", &chunk(8, 10)).unwrap();
    mount.cp("00000003.chunk", &chunk(9, CHUNKSIZE)).unwrap();
    mount.cp("chunks.b2frame", &index_file(&[id(0), id(1), id(2), id(3)], CHUNKSIZE)).unwrap();
    assert!(matches!(view.state.read().frame.held, state::HeldIndex::Unparsed));
    mount.rm("00000003.chunk").unwrap();
    // A chunk at two positions, then at the first of them alone.
    mount.cp("00000002.chunk", &chunk(8, CHUNKSIZE)).unwrap();
    mount.cp("chunks.b2frame", &index_file(&[id(0), id(1), id(2), id(0)], CHUNKSIZE)).unwrap();
    assert_eq!(view.state.read().frame.table.get(ChunkId(0)).position(), Some(3));
    mount.cp("chunks.b2frame", &index_file(&[id(0), id(1), id(2)], CHUNKSIZE)).unwrap();
    assert_eq!(view.state.read().frame.table.get(ChunkId(0)).position(), Some(0));
    assert_eq!(mount.names(), ["chunks.b2frame", "00000000.chunk", "00000001.chunk", "00000002.chunk"]);
    mount.sync();
    assert_eq!(mount.committed(), [full(1), Cell::Chunk(chunk(7, CHUNKSIZE)), Cell::Chunk(chunk(8, CHUNKSIZE))]);
}

#[test]
fn who_closes_during_a_commit_leaves_the_next_one_to_the_tick() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let view = mount.view();
    let committing = view.commit_throttle.committing();
    mount.cp("00000000.chunk", &chunk(5, CHUNKSIZE)).unwrap();
    assert_eq!(mount.committed()[0], full(1), "the close waited for nobody");
    drop(committing);
    let due = view.tick(Instant::now(), &mut Vec::new()).unwrap();
    assert!(due <= Instant::now() + std::time::Duration::from_secs(1));
    view.tick(due, &mut Vec::new());
    assert_eq!(mount.committed()[0], full(5));
}

#[test]
fn names_are_what_the_library_prints() {
    let parse = |name: &str| parse(OsStr::new(name));
    let temporary = |name: &str| Some(Name::Temporary(name.into()));
    assert_eq!(parse("chunks.b2frame"), Some(Name::Frame(INDEX)));
    assert_eq!(parse("0000000A.chunk"), Some(Name::Frame(number(ChunkId(10)))));
    assert_eq!(parse("FFFFFFFF.chunk"), Some(Name::Frame(number(ChunkId(u32::MAX)))));
    assert_eq!(parse(".b2lock"), temporary(".b2lock"));
    for other in ["0000000a.chunk", "000000A.chunk", "00000000A.chunk", "+000000A.chunk", "x~", "x.~1~", "~", "x", ""] {
        assert_eq!(parse(other), None, "{other}");
    }
    for backup in ["0000000A.chunk~", "0000000A.chunk.~12~", "chunks.b2frame~"] {
        assert_eq!(parse(backup), temporary(backup));
    }
    for id in [0, 1, u32::MAX] {
        assert_eq!(chunk_of(number(ChunkId(id))), Some(ChunkId(id)));
    }
}

#[test]
fn an_index_that_waits_is_saved_again_when_it_is_another() {
    let mount = Mount::of(&[full(1)], CHUNKSIZE);
    for missing in [5, 6] {
        let index = index_file(&[id(0), id(missing)], CHUNKSIZE);
        mount.cp("chunks.b2frame", &index).unwrap();
        let left = mount.view().leave(false, &mut Vec::new());
        let saved = left.lost.iter().find(|lost| lost.name == "chunks.b2frame").unwrap();
        assert!(std::fs::read(saved.saved.as_ref().unwrap()).unwrap() == index, "{missing}");
    }
}

#[test]
fn an_index_with_another_chunksize_is_taken_if_the_chunks_fit() {
    for (chunksize, nbytes, fits) in [(2 * CHUNKSIZE, CHUNKSIZE, true), (CHUNKSIZE / 2, CHUNKSIZE / 2, false)] {
        let mount = Mount::of(&[full(1)], CHUNKSIZE);
        let header = header(Layout::Sparse, nbytes.into(), 0, 1 << 20, chunksize as i32);
        let entries = Arc::new(vec![IndexEntry::Stored(ChunkId(0))]);
        let bytes = IndexFile { header, trailer: Trailer::encode(&[]).unwrap(), entries }.make_file().unwrap();
        mount.cp("chunks.b2frame", &bytes).unwrap();
        assert_eq!(matches!(mount.view().state.read().frame.held, state::HeldIndex::No), fits);
        mount.sync();
        let store = CframeStore::open(&mount.path(), OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
        let committed = store.committed().unwrap().header.chunksize();
        assert_eq!(committed, if fits { chunksize } else { CHUNKSIZE });
    }
}
