//! Sessions: a client of a view, who does anything in any order.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use b2fuse::format::index_file::IndexFile;
use b2fuse::format::trailer::Trailer;
use b2fuse::format::{ChunkId, ChunkOffset, IndexEntry, Layout, Special, index};
use b2fuse::store::frame::Frame;
use b2fuse::store::{Budgets, FrameImage, FrameStore, OpenOptions, Resources, open};
use b2fuse::view::{
    ContiguousView, Creation, FileSystem, Handle, Ino, Invalidations, OpenMode, Opened, ROOT, RenameMode, SetAttr, Shown, SparseView,
};

use crate::disk::{Content, all_whole, content, copied, emptied, on_disk};
use crate::input::Input;

/// Operations of one session.
const MOST_OPS: usize = 64;
const SHOWN: &str = "shown.b2frame";
/// Files that grow beyond this are left alone.
const LONGEST: u64 = 1 << 20;

macro_rules! cframe {
    ($name:literal) => {
        include_bytes!(concat!("../../data/cframe/", $name, ".b2frame"))
    };
}
const CFRAMES: [&[u8]; 5] =
    [cframe!("chunks-3"), cframe!("special"), cframe!("varying"), cframe!("metalayers"), cframe!("emptied")];

struct Session<'a> {
    input: Input<'a>,
    path: PathBuf,
    store: Arc<dyn FrameStore>,
    view: Box<dyn FileSystem>,
    names: &'static [&'static str],
    handles: Vec<(Handle, Ino)>,
    now: Instant,
    /// The last committed image, with the bytes of its chunks.
    last: Option<(Arc<FrameImage>, Content)>,
}

/// A cframe shown as a directory.
pub fn sparse(data: &[u8]) {
    let mut input = Input(data);
    let path = emptied().join("f.b2frame");
    std::fs::write(&path, *input.pick(&CFRAMES)).expect("room in memory");
    let (_, store) = open(&path, options()).expect("a frame of the library's");
    let view = Box::new(SparseView::new(Arc::clone(&store), false).expect("a frame of the library's"));
    let names = &[
        "chunks.b2frame",
        "00000000.chunk",
        "00000001.chunk",
        "00000002.chunk",
        "00000003.chunk",
        "00000009.chunk",
        ".tmp",
        "00000001.chunk~",
        ".b2lock",
        "other",
    ];
    Session::new(input, path, store, view, names).run(Session::sparse_frame, |_| None);
}

/// An sframe shown as one file.
pub fn contiguous(data: &[u8]) {
    let mut input = Input(data);
    let path = emptied().join("f.b2frame");
    spread(input.pick::<&[u8]>(&CFRAMES), &path);
    let (_, store) = open(&path, options()).expect("a frame of the library's");
    let view =
        Box::new(ContiguousView::new(Arc::clone(&store), Shown::As(SHOWN.into()), false).expect("a frame of the library's"));
    let names = &[SHOWN, ".tmp", "shown.b2frame~", "shown.b2frame.b2lock", "other"];
    Session::new(input, path, store, view, names).run(Session::contiguous_frame, Session::contiguous_shown);
}

fn options() -> OpenOptions {
    let budgets = Budgets { cache_bytes: 1 << 16, draft_bytes: 1 << 16, ..Budgets::default() };
    OpenOptions { resources: Resources::new(budgets), ..OpenOptions::default() }
}

/// Writes a cframe as an sframe.
fn spread(bytes: &[u8], path: &Path) {
    let frame = Frame::<ChunkOffset>::read(&bytes).expect("a frame of the library's");
    std::fs::create_dir(path).expect("room in memory");
    let mut cbytes = 0;
    let entries = (0u32..).zip(&frame.entries).map(|(id, entry)| {
        entry.map(|offset| {
            let at = frame.sections.chunks.start as usize + offset.bytes() as usize;
            let len = u32::from_le_bytes(bytes[at + 12..at + 16].try_into().expect("four bytes")) as usize;
            std::fs::write(path.join(format!("{id:08X}.chunk")), &bytes[at..at + len]).expect("room in memory");
            cbytes += len as u64;
            ChunkId(id)
        })
    });
    let entries = Arc::new(entries.collect());
    let mut file = IndexFile { header: frame.header.clone(), trailer: frame.trailer.clone(), entries };
    file.header.set_cbytes(cbytes);
    std::fs::write(path.join("chunks.b2frame"), file.make_file().expect("few chunks")).expect("room in memory");
}

impl<'a> Session<'a> {
    fn new(
        input: Input<'a>,
        path: PathBuf,
        store: Arc<dyn FrameStore>,
        view: Box<dyn FileSystem>,
        names: &'static [&'static str],
    ) -> Self {
        let last = store.committed().map(|image| (image, content(&*store)));
        Session { input, path, store, view, names, handles: Vec::new(), now: Instant::now(), last }
    }

    /// `frame` does as the library does; `shown` is what the view shows, as chunks, where that must be what is
    /// committed. (In a directory, files may wait for others.)
    fn run(mut self, frame: fn(&mut Self), shown: fn(&Self) -> Option<Content>) {
        for _ in 0..MOST_OPS {
            if self.input.is_empty() {
                break;
            }
            match self.input.below(16) {
                0..4 => frame(&mut self),
                _ => self.operation(),
            }
            self.look();
        }
        if self.input.byte() & 3 > 0 {
            for (handle, _) in std::mem::take(&mut self.handles) {
                let _ = self.view.flush(handle, &mut Vec::new());
                self.view.release(handle, &mut Vec::new());
            }
            // Long enough for what waits to be taken or given up.
            for wait in [2, 20] {
                self.view.tick(self.now.max(Instant::now()) + Duration::from_secs(wait), &mut Vec::new());
            }
            self.look();
            if self.view.fsync(ROOT, &mut Vec::new()).is_ok() {
                self.look();
                if let (Some(shown), Some((_, content))) = (shown(&self), &self.last) {
                    let brief = |content: &Content| -> Vec<_> {
                        content.iter().flatten().map(|entry| entry.clone().map(|bytes| bytes.len())).collect()
                    };
                    assert!(shown == *content, "shown is {:?}, and committed {:?}", brief(&shown), brief(content));
                }
            }
        }
        let _ = self.view.shutdown();
        self.look();
        self.look_at_disk();
        let lost = self.path.with_extension("b2frame.lost");
        assert!(lost.is_dir() || !lost.exists());
    }

    /// What was committed is on disk, and whole.
    fn look(&mut self) {
        let Some(image) = self.store.committed() else { return };
        if self.last.as_ref().is_some_and(|(last, _)| Arc::ptr_eq(last, &image)) {
            return;
        }
        let now = content(&*self.store);
        all_whole(&now);
        self.last = Some((image, now));
        self.look_at_disk();
    }

    /// What is on disk is what was committed last.
    fn look_at_disk(&self) {
        let Some((image, content)) = &self.last else { return };
        let (found, on_disk) = on_disk(&self.path);
        assert!(on_disk == *content, "SOURCE is not what was committed");
        assert!(found.trailer == image.trailer);
        assert!(found.header.metalayers().eq(image.header.metalayers()));
        assert_eq!(found.header.nbytes(), image.header.nbytes());
    }

    /// The chunks of the frame; nothing if its name is gone.
    fn contiguous_shown(&self) -> Option<Content> {
        let bytes = self.read(OsStr::new(SHOWN))?;
        let frame = Frame::<ChunkOffset>::read(&bytes.as_slice()).expect("what was given up is not shown");
        let chunk = |offset: ChunkOffset| {
            let at = frame.sections.chunks.start as usize + offset.bytes() as usize;
            let len = u32::from_le_bytes(bytes[at + 12..at + 16].try_into().expect("four bytes")) as usize;
            bytes[at..at + len].to_vec()
        };
        Some(frame.entries.iter().map(|entry| Some(entry.map(chunk))).collect())
    }

    fn name(&mut self) -> &'static OsStr {
        OsStr::new(*self.input.pick(self.names))
    }

    fn handle(&mut self) -> Option<(Handle, Ino)> {
        if self.handles.is_empty() { None } else { Some(*self.input.pick(&self.handles)) }
    }

    fn lookup(&self, name: &OsStr) -> Option<(Ino, u64)> {
        self.view.lookup(ROOT, name).ok().map(|attr| (attr.ino, attr.size))
    }

    fn read(&self, name: &OsStr) -> Option<Vec<u8>> {
        let (ino, size) = self.lookup(name).filter(|(_, size)| *size <= LONGEST)?;
        let mut bytes = vec![0; size as usize];
        let handle = self.view.open(ino, OpenMode { read: true, ..OpenMode::default() }).ok()?.handle;
        let count = self.view.read(ino, Some(handle), 0, &mut bytes);
        self.view.release(handle, &mut Vec::new());
        bytes.truncate(count.ok()?);
        Some(bytes)
    }

    /// Something to write: a chunk, bytes, or what another file holds.
    fn data(&mut self) -> Vec<u8> {
        let size = self.last.as_ref().map_or(0, |(image, _)| image.header.chunksize()).min(4096);
        match self.input.below(6) {
            0 | 1 => copied(size, self.input.byte()),
            2 => copied(u32::from(self.input.byte()), 1),
            3 => {
                let stored = self.last.iter().flat_map(|(_, content)| content).flatten();
                let chunks: Vec<_> = stored.cloned().filter_map(IndexEntry::stored).collect();
                if chunks.is_empty() { Vec::new() } else { self.input.pick(&chunks).clone() }
            }
            4 => {
                let name = self.name();
                let mut bytes = self.read(name).unwrap_or_default();
                if !bytes.is_empty() && self.input.byte() & 1 == 1 {
                    let at = self.input.below(bytes.len());
                    bytes[at] = self.input.byte();
                }
                bytes
            }
            _ => {
                let len = self.input.below(64);
                self.input.bytes(len)
            }
        }
    }

    fn offset(&mut self) -> u64 {
        match self.input.byte() {
            value @ 0..240 => u64::from(value / 2) * if value & 1 == 0 { 1 } else { 32 },
            240..250 => u64::from(self.input.byte()) << 8,
            250..254 => 1 << self.input.below(64),
            _ => u64::MAX - u64::from(self.input.byte()),
        }
    }

    fn mode(&mut self) -> OpenMode {
        let bits = self.input.byte();
        OpenMode { read: true, write: bits & 3 > 0, truncate: bits & 4 > 0, drop_privileges: false }
    }

    fn operation(&mut self) {
        let mut invals = Invalidations::new();
        match self.input.below(16) {
            0 | 1 => {
                let (name, mode) = (self.name(), self.mode());
                if let Some((ino, _)) = self.lookup(name)
                    && let Ok(opened) = self.view.open(ino, mode)
                {
                    self.handles.push((opened.handle, ino));
                }
            }
            2 => {
                let (name, mode) = (self.name(), self.mode());
                let creation = Creation { uid: 0, gid: 0, mode: 0o644, umask: 0, pid: 0, exclusive: self.input.byte() & 1 == 1 };
                if let Ok((attr, opened)) = self.view.create(ROOT, name, creation, mode) {
                    self.handles.push((opened.handle, attr.ino));
                }
            }
            3 | 4 => {
                if let Some((handle, _)) = self.handle() {
                    let (offset, data) = (self.offset(), self.data());
                    let _ = self.view.write(handle, offset, &data);
                }
            }
            5 => {
                let (name, data) = (self.name(), self.data());
                self.put(name, &data, true);
            }
            6 => {
                let size = Some(self.offset());
                let set = SetAttr { size, ..SetAttr::default() };
                match (self.input.byte() & 1, self.handle()) {
                    (1, Some((handle, ino))) => drop(self.view.setattr(ino, Some(handle), set, &mut invals)),
                    _ => {
                        let name = self.name();
                        if let Some((ino, _)) = self.lookup(name) {
                            let _ = self.view.setattr(ino, None, set, &mut invals);
                        }
                    }
                }
            }
            7 => {
                if let Some((handle, _)) = self.handle() {
                    let _ = self.view.flush(handle, &mut invals);
                }
            }
            8 => {
                if !self.handles.is_empty() {
                    let at = self.input.below(self.handles.len());
                    let (handle, _) = self.handles.swap_remove(at);
                    if self.input.byte() & 1 == 0 {
                        let _ = self.view.flush(handle, &mut invals);
                    }
                    self.view.release(handle, &mut invals);
                }
            }
            9 | 10 => {
                let modes = [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                let (from, to, mode) = (self.name(), self.name(), *self.input.pick(&modes));
                let _ = self.view.rename((ROOT, from), (ROOT, to), mode, &mut invals);
            }
            11 => {
                let name = self.name();
                let _ = self.view.unlink(ROOT, name, &mut invals);
            }
            12 => {
                if let Some((handle, ino)) = self.handle() {
                    let mut bytes = vec![0; 4096];
                    let offset = self.offset();
                    let _ = self.view.read(ino, Some(handle), offset, &mut bytes);
                    let _ = self.view.getattr(ino);
                }
            }
            13 => {
                let ino = self.handle().map_or(ROOT, |(_, ino)| ino);
                let _ = self.view.fsync(ino, &mut invals);
            }
            14 => {
                self.now += Duration::from_millis(self.input.below(4) as u64 * 4000 + 100);
                let _ = self.view.tick(self.now.max(Instant::now()), &mut invals);
            }
            _ => {
                let mut listed = Vec::new();
                let _ = self.view.readdir(ROOT, 0, &mut |entry| {
                    listed.push((entry.ino, entry.name.to_owned()));
                    true
                });
                for (ino, name) in listed {
                    let attr = self.view.lookup(ROOT, &name).expect("what is listed is there");
                    assert_eq!(attr.ino, ino);
                    let bytes = self.read(&name);
                    assert!(attr.size > LONGEST || bytes.is_some_and(|bytes| bytes.len() as u64 == attr.size), "{name:?}: short");
                }
            }
        }
    }

    /// Writes a whole file.
    fn put(&mut self, name: &OsStr, data: &[u8], truncate: bool) {
        let creation = Creation { uid: 0, gid: 0, mode: 0o644, umask: 0, pid: 0, exclusive: false };
        let mode = OpenMode { read: true, write: true, truncate, drop_privileges: false };
        if let Ok((_, Opened { handle, .. })) = self.view.create(ROOT, name, creation, mode) {
            let _ = self.view.write(handle, 0, data);
            let _ = self.view.flush(handle, &mut Vec::new());
            self.view.release(handle, &mut Vec::new());
        }
    }

    /// Changes of an index that the library makes, without what it does to the chunks.
    fn change<P: Copy>(&mut self, entries: &mut Vec<IndexEntry<P>>, new: impl FnOnce(&mut Self) -> IndexEntry<P>) {
        let at = self.input.below(entries.len() + 1);
        match self.input.below(5) {
            0 if at < entries.len() => drop(entries.remove(at)),
            1 if at < entries.len() => entries[at] = new(self),
            2 if at < entries.len() => {
                let other = self.input.below(entries.len());
                entries.swap(at, other);
            }
            3 => {
                let special = *self.input.pick(&[Special::Zeros, Special::Nan, Special::Uninit]);
                entries.insert(at, IndexEntry::Special(special));
            }
            _ => {
                let entry = new(self);
                entries.insert(at, entry);
            }
        }
    }

    /// A new index file for the sparse view, now and then with the chunk file first.
    fn sparse_frame(&mut self) {
        let name = OsStr::new("chunks.b2frame");
        let Some(mut file) = self.read(name).and_then(|bytes| IndexFile::parse(&bytes).ok()) else { return };
        let mut entries = (*file.entries).clone();
        if entries.len() > 64 {
            return;
        }
        self.change(&mut entries, |session| {
            let id = session.input.below(12) as u32;
            if session.input.byte() & 1 == 0 {
                let data = session.data();
                session.put(OsStr::new(&format!("{id:08X}.chunk")), &data, true);
            }
            IndexEntry::Stored(ChunkId(id))
        });
        file.header.set_nbytes(entries.len() as u64 * u64::from(file.header.chunksize().max(1)));
        file.entries = Arc::new(entries);
        let made = file.make_file().expect("few chunks");
        let target = if self.input.byte() & 3 == 0 { OsStr::new(".tmp") } else { name };
        self.put(target, &made, true);
    }

    /// A new frame for the contiguous view: in the rounds of the library, of which one may be missing, or as a whole.
    fn contiguous_frame(&mut self) {
        let name = OsStr::new(SHOWN);
        let Some(mut bytes) = self.read(name) else { return };
        let Ok(Frame { mut header, mut entries, sections, .. }) = Frame::<ChunkOffset>::read(&bytes.as_slice()) else { return };
        if entries.len() > 64 {
            return;
        }
        let base = sections.chunks.start as usize;
        let mut chunks = bytes[base..sections.chunks.end as usize].to_vec();
        let mut added = Vec::new();
        let at = chunks.len() as u64;
        self.change(&mut entries, |session| {
            added = session.data();
            IndexEntry::Stored(ChunkOffset::new(at))
        });
        chunks.extend(&added);
        let encoded = index::encode(entries.iter().copied()).expect("few chunks");
        let mut trailer = bytes[sections.trailer.start as usize..sections.trailer.end as usize].to_vec();
        if self.input.byte() & 15 == 0 {
            trailer = Trailer::encode(&[]).expect("nothing").as_bytes().to_vec();
        }
        header.set_layout(Layout::Contiguous);
        header.set_nbytes(entries.len() as u64 * u64::from(header.chunksize().max(1)));
        header.set_cbytes(chunks.len() as u64);
        let shown = if entries.is_empty() { 0 } else { chunks.len() };
        let index_at = base + shown;
        let end = (index_at + encoded.len() + trailer.len()) as u64;
        header.set_frame_len(end);
        let first = if entries.is_empty() { Vec::new() } else { [&added[..], &encoded].concat() };
        if self.input.byte() & 1 == 0 {
            let whole = if entries.is_empty() { &[][..] } else { &chunks };
            bytes = [header.as_bytes(), whole, &encoded, &trailer].concat();
            let target = if self.input.byte() & 3 == 0 { OsStr::new(".tmp") } else { name };
            return self.put(target, &bytes, true);
        }
        let missing = self.input.below(8);
        let rounds: [(usize, &[u8], bool); 4] = [
            (index_at - added.len().min(index_at), &first, false),
            (0, header.as_bytes(), false),
            (index_at + encoded.len(), &trailer, true),
            (16, &end.to_be_bytes(), false),
        ];
        for (n, (offset, data, cut)) in rounds.into_iter().enumerate() {
            if n == missing {
                continue;
            }
            let mut invals = Invalidations::new();
            let Some((ino, _)) = self.lookup(name) else { return };
            let mode = OpenMode { read: true, write: true, truncate: false, drop_privileges: false };
            let Ok(Opened { handle, .. }) = self.view.open(ino, mode) else { return };
            let _ = self.view.write(handle, offset as u64, data);
            if cut {
                let set = SetAttr { size: Some(end), ..SetAttr::default() };
                let _ = self.view.setattr(ino, Some(handle), set, &mut invals);
            }
            let _ = self.view.flush(handle, &mut invals);
            self.view.release(handle, &mut invals);
            self.look();
        }
    }
}
