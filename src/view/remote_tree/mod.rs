//! A prefix of an object store as a directory, for reading: keys are files, prefixes are directories, and frames are shown as in a local
//! tree.
//!
//! - `directory`: listings, and for how long they are good; `names`: what a name stands for by them;
//! - `table`: the nodes that the kernel knows;
//! - `frame`: a frame; `frames`: those that are open, until others need their place; `inside`: what is asked of their files.
//!
//! Frames are recognised by name, not by content: a look into each object would take one request each. A name that turns out to
//! be no frame when a client goes inside is shown as what it is in the store from then on.
//!
//! A listing is asked for once in the time of `-o refresh=`; the kernel believes what it was told no longer than that. Names that no file
//! can have are left out, and so are objects that have the name of a prefix.
//!
//! Lock order: a frame's `changing`, a directory's `asking`, then any one of the others, which are leaves. Only those two are held
//! while the store is asked.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime};

use log::warn;
use lru::LruCache;
use parking_lot::{Mutex, RwLock};

use self::directory::{Beneath, Directories};
use self::frame::RemoteFrame;
use self::inside::InsideFile;
use self::names::Known;
use self::table::{Node, Table, What};
use super::open_frames::OpenFrames;
use super::regions::Regions;
use super::{
    Attr, Blocks, DirEntry, Features, FileSystem, Good, Handle, Ino, Invalidation, Invalidations, Kind, Meta, OpenMode, Opened,
    Pages, Push, ROOT, Result, Rules, Seek, ViewError, Wait,
};
use crate::format::plain::plain;
use crate::store::remote::folder::NO_INDEX;
use crate::store::remote::{Client, Options, Pool, RemoteObject};
use crate::store::{FsSpace, Resources, SourceStat, StoreError, Watch, Watcher};

mod directory;
mod frame;
mod frames;
mod inside;
mod names;
mod table;

/// Bytes that the kernel reads ahead in a file.
const READ_AHEAD: u32 = 1 << 20;
/// Objects whose bytes stay in memory when nobody has them open.
const OBJECTS: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");
/// So many keys are remembered that are called as frames and are none.
const BROKEN: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");
/// Of so many frames it is remembered what their data is.
const KINDS: NonZeroUsize = NonZeroUsize::new(1 << 15).expect("not zero");
/// How often a name is looked at that turns out to be something else than it is called.
const LOOKS: usize = 3;

/// A prefix, shown as a directory.
pub struct RemoteTree {
    client: Arc<Client>,
    /// What messages call it.
    path: PathBuf,
    /// Its key: empty, or with a slash behind it.
    root: String,
    rules: Rules,
    options: Options,
    pool: Arc<Pool>,
    resources: Arc<Resources>,
    /// Rung when the kernel is to forget something.
    watch: Watch,
    /// Owner and mode of everything, and the time of what has none.
    began: Meta,
    directories: Directories,
    table: Mutex<Table>,
    regions: Regions<RemoteFrame>,
    frames: OpenFrames<RemoteFrame>,
    handles: RwLock<HashMap<u64, Open>>,
    last_handle: AtomicU64,
    objects: Mutex<LruCache<Ino, Arc<RemoteObject>>>,
    /// Keys that are called as frames and are none, and the state that was found, if it is known: nothing for what is not there.
    broken: Mutex<LruCache<String, Option<String>>>,
    kinds: Mutex<LruCache<String, Known>>,
    /// Where data is decoded, if that is what is shown.
    blocks: Option<Arc<Blocks>>,
    /// What the kernel must forget because of what was found.
    owed: Mutex<Invalidations>,
}

/// An open file.
#[derive(Clone)]
enum Open {
    Object(Arc<RemoteObject>, Ino),
    Frame(Arc<InsideFile>),
}

impl RemoteTree {
    /// Shows what lies beneath the key of a client, if there is anything. Messages call it `path`. Where data is shown, it is decoded in
    /// `blocks`.
    ///
    /// # Errors
    /// What the store answers; ENOENT if nothing lies beneath the key; chunks of a frame whose upload is not finished.
    pub fn open(
        client: Arc<Client>,
        path: &Path,
        rules: Rules,
        options: Options,
        resources: Arc<Resources>,
        blocks: Option<Arc<Blocks>>,
    ) -> Result<Self> {
        let root = match client.base().as_ref() {
            "" => String::new(),
            key => format!("{key}/"),
        };
        let pool = options.pool.clone().unwrap_or_else(|| Pool::new(options.cache_bytes));
        let options = Options { pool: Some(Arc::clone(&pool)), ..options };
        let now = SystemTime::now();
        let stat = SourceStat { mode: 0o444, atime: now, mtime: now, ctime: now, ..SourceStat::of_this_process() };
        let directories = Directories::new(Arc::clone(&client), options.refresh);
        match directories.beneath(&root).map_err(|error| failed(path.to_owned(), "list", error))? {
            Beneath::Nothing => return Err(failed(path.to_owned(), "read", io::Error::from_raw_os_error(libc::ENOENT))),
            Beneath::Chunks => {
                return Err(StoreError::Unsupported { path: path.to_owned(), reason: NO_INDEX.to_owned() }.into());
            }
            Beneath::Names => {}
        }
        Ok(RemoteTree {
            directories,
            table: Mutex::new(Table::new(&root)),
            regions: Regions::default(),
            frames: OpenFrames::new(frames::most()),
            handles: RwLock::default(),
            last_handle: AtomicU64::new(0),
            objects: Mutex::new(LruCache::new(OBJECTS)),
            broken: Mutex::new(LruCache::new(BROKEN)),
            kinds: Mutex::new(LruCache::new(KINDS)),
            owed: Mutex::default(),
            watch: Watch::by_readers(resources.watcher()),
            began: stat.into(),
            path: path.to_owned(),
            client,
            root,
            rules,
            options,
            pool,
            resources,
            blocks,
        })
    }

    fn node(&self, ino: Ino) -> Result<Node> {
        self.table.lock().get(ino).cloned().ok_or(ViewError::Gone)
    }

    /// Does something with a node, and again if that was called as a frame and turns out to be a directory like others.
    fn as_it_turns_out<T>(&self, ino: Ino, mut work: impl FnMut(&Node) -> Result<T>) -> Result<T> {
        let node = self.node(ino)?;
        match (work(&node), &node.what) {
            (Err(ViewError::Gone), What::Frame(_)) => match self.node(ino)? {
                Node { what: What::Frame(_), .. } => Err(ViewError::Gone),
                node => work(&node),
            },
            (done, _) => done,
        }
    }

    /// What a name in a directory stands for, told to the kernel once more.
    fn enter(&self, parent: Ino, dir: &str, name: &OsStr) -> Result<Attr> {
        for _ in 0..LOOKS {
            let (key, found) = self.find(dir, name)?.ok_or(ViewError::NotFound)?;
            let ino = self.table.lock().enter(parent, name, &key, found);
            match self.getattr(ino) {
                // It is no frame, as it was called.
                Err(ViewError::Gone) => self.forget(ino, 1, false),
                attr => return attr.inspect_err(|_| self.forget(ino, 1, false)),
            }
        }
        Err(ViewError::Gone)
    }

    fn attr(&self, ino: Ino, what: &What) -> Result<Attr> {
        let of = |modified: SystemTime| Meta { atime: modified, mtime: modified, ctime: modified, ..self.began };
        let directory = |meta: Meta| meta.attr(ino, Kind::Directory, 4096);
        let as_directory = |meta: Meta| Meta { mode: 0o555, ..meta };
        let attr = match what {
            // One link of a directory says that nobody has counted.
            What::Directory => Attr { nlink: 1, ..directory(as_directory(self.began)) },
            What::Object(tag) => of(tag.modified()).attr(ino, Kind::File, tag.len()),
            What::Frame(frame) if frame.shown == Kind::Directory => {
                directory(as_directory(frame.listed().map_or(self.began, |tag| of(tag.modified()))))
            }
            What::Frame(frame) => return self.measured(frame),
        };
        Ok(Attr { good: Good::Timeouts, ..attr })
    }

    /// The kernel is to forget something.
    fn owe(&self, inval: Invalidation) {
        self.owed.lock().push(inval);
        self.watch.ring();
    }

    fn keep(&self, open: Open) -> Handle {
        let handle = self.last_handle.fetch_add(1, Relaxed) + 1;
        self.handles.write().insert(handle, open);
        Handle(handle)
    }

    fn open_object(&self, node: &Node, ino: Ino) -> Result<Arc<RemoteObject>> {
        let What::Object(tag) = &node.what else { return Err(ViewError::IsDirectory) };
        if let Some(object) = self.objects.lock().get(&ino) {
            return Ok(Arc::clone(object));
        }
        let object = RemoteObject::new(&self.client, &node.key, tag.clone(), &self.pool)?;
        self.objects.lock().put(ino, Arc::clone(&object));
        Ok(object)
    }
}

impl FileSystem for RemoteTree {
    fn features(&self) -> Features {
        Features {
            read_only: true,
            handles: true,
            locks: false,
            holes: false,
            // Of a frame that is shown as a file, the size is not.
            lists_attributes: false,
            read_ahead: Some(READ_AHEAD),
            far: Some(self.rules.timeouts),
            passes_on: Some(self.rules.timeouts),
            hears: false,
            is_untold: false,
            lists: false,
        }
    }

    fn lookup(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        self.as_it_turns_out(parent, |node| match &node.what {
            What::Directory => self.enter(parent, &node.key, name),
            What::Frame(frame) => self.lookup_inside(frame, name),
            What::Object(_) => Err(ViewError::NotDirectory),
        })
    }

    fn forget(&self, ino: Ino, count: u64, altogether: bool) {
        if let Some((frame, inner)) = self.regions.find(ino) {
            if altogether && let Some(open) = frame.opened() {
                open.fs().forget(inner, count, true);
            }
            return;
        }
        let gone = self.table.lock().forget(ino, count);
        if let Some(Node { what, .. }) = gone {
            self.objects.lock().pop(&ino);
            if let What::Frame(frame) = what {
                self.regions.leave(&frame);
            }
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        if let Some((frame, inner)) = self.regions.find(ino) {
            return self.ask(&frame, |fs| fs.getattr(inner)).map(|attr| self.attr_outside(&frame, attr));
        }
        let node = self.node(ino)?;
        self.attr(ino, &node.what)
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Opened> {
        if mode.write || mode.truncate {
            return Err(ViewError::ReadOnly);
        }
        if let Some((frame, inner)) = self.regions.find(ino) {
            return self.open_inside(&frame, inner, mode);
        }
        let node = self.node(ino)?;
        match &node.what {
            What::Directory => Err(ViewError::IsDirectory),
            What::Frame(frame) => self.open_inside(frame, ROOT, mode),
            What::Object(_) => {
                let object = self.open_object(&node, ino)?;
                Ok(Opened { handle: self.keep(Open::Object(object, ino)), pages: Pages::Kept })
            }
        }
    }

    fn read(&self, ino: Ino, handle: Option<Handle>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let Some(handle) = handle else { return self.read_pushed(ino, offset, buf) };
        let open = self.handles.read().get(&handle.0).cloned().ok_or(ViewError::BadHandle)?;
        match open {
            Open::Frame(file) => self.read_inside(&file, offset, buf),
            Open::Object(object, ino) => object.read_at(buf, offset).map_err(|error| {
                let Ok(node) = self.node(ino) else { return ViewError::Gone };
                if error.raw_os_error() == Some(libc::ESTALE) {
                    if object.is_first_loss() {
                        let path = self.path_of(&node.key);
                        warn!("{}: has been deleted or changed; reads of its open files fail", plain(&path));
                    }
                    self.directories.forget(parent_of(&node.key));
                    return ViewError::Gone;
                }
                failed(self.path_of(&node.key), "read", error)
            }),
        }
    }

    fn release(&self, handle: Handle, invalidations: &mut Invalidations) {
        let open = self.handles.write().remove(&handle.0);
        if let Some(Open::Frame(file)) = open {
            self.release_inside(&file, invalidations);
        }
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        match self.regions.find(ino) {
            Some((frame, inner)) => self.ask(&frame, |fs| fs.xattrs(inner)),
            // `ls -l` asks for all: no frame is opened for that.
            None => self.frame_of(ino).and_then(|frame| frame.opened()).map_or(Ok(Vec::new()), |open| open.fs().xattrs(ROOT)),
        }
    }

    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>> {
        let is_ours = name.as_bytes().starts_with(b"user.");
        match self.regions.find(ino).or_else(|| Some((self.frame_of(ino)?, ROOT))) {
            Some((frame, inner)) if is_ours => self.ask(&frame, |fs| fs.xattr(inner, name)),
            _ => Err(ViewError::NoAttribute),
        }
    }

    fn readdir(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.as_it_turns_out(ino, |node| match &node.what {
            What::Directory => self.list(&node.key, cookie, emit),
            What::Frame(frame) => self.list_inside(frame, cookie, emit),
            What::Object(_) => Err(ViewError::NotDirectory),
        })
    }

    fn keeps_listing(&self, ino: Ino) -> bool {
        match self.node(ino) {
            Ok(Node { key, what: What::Directory, .. }) => self.directories.is_told(&key),
            // One that is closed may be another when it is opened again.
            Ok(Node { what: What::Frame(frame), .. }) => frame.opened().is_some_and(|open| open.fs().keeps_listing(ROOT)),
            _ => true,
        }
    }

    fn seek(&self, ino: Ino, _handle: Handle, offset: u64, seek: Seek) -> Result<u64> {
        self.seek_in(ino, offset, seek)
    }

    fn touched(&self, pid: u32, ino: Ino, read: Option<(u64, u32)>) -> Vec<Push> {
        self.touched_inside(pid, ino, read)
    }

    fn expect(&self, inos: &[Ino]) {
        self.regions.hand(inos, |fs, inner| fs.expect(inner));
    }

    fn prefetch(&self, inos: &[Ino]) {
        self.regions.hand(inos, |fs, inner| fs.prefetch(inner));
    }

    fn may_wait(&self, _ino: Ino) -> Wait {
        Wait::Disk
    }

    fn last_name(&self, ino: Ino) -> Option<(Ino, OsString)> {
        match self.regions.find(ino) {
            Some((frame, inner)) => Some((frame.ino, frame.opened()?.fs().last_name(inner)?.1)),
            None => self.node(ino).ok().filter(|_| ino != ROOT).map(|node| (node.parent, node.name)),
        }
    }

    fn watcher(&self) -> Option<Arc<Watcher>> {
        Some(Arc::clone(self.resources.watcher()))
    }

    fn follow(&self, invalidations: &mut Invalidations) -> Option<Instant> {
        self.watch.take();
        invalidations.append(&mut self.owed.lock());
        self.follow_frames(invalidations)
    }

    fn statfs(&self) -> Result<FsSpace> {
        Ok(FsSpace { io_size: 1 << 20, block_size: 4096, name_max: 255, ..FsSpace::default() })
    }

    fn shutdown(&self) -> Result<()> {
        self.frames.shut()
    }

    fn report(&self) -> String {
        let (frames, counts, known) = (self.frames.count(), self.pool.counts(), self.table.lock().len());
        let open = self.handles.read().len();
        let data = self.blocks.as_ref().map(|blocks| format!("; {}", blocks.report())).unwrap_or_default();
        let asked = self.client.asked();
        format!(
            "requests: {} for bytes, {} for listings; cached: {} of {} bytes{data}; frames open: {frames}; nodes: {known}, open files: {open}",
            asked.gets.load(Relaxed),
            asked.lists.load(Relaxed),
            counts.bytes,
            counts.most
        )
    }
}

/// What the store answers, of a key as messages call it.
fn failed(path: PathBuf, action: &'static str, source: io::Error) -> ViewError {
    match source.raw_os_error() {
        Some(libc::EINTR) => ViewError::Interrupted,
        _ => ViewError::Store(StoreError::Io { path, action, source }),
    }
}

/// The directory that a key is in: empty, or with a slash behind it.
fn parent_of(key: &str) -> &str {
    let key = key.strip_suffix('/').unwrap_or(key);
    key.rfind('/').and_then(|at| key.get(..=at)).unwrap_or_default()
}
