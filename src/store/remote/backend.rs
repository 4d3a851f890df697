//! A remote frame as files that can be looked at one by one, for the commands that do so: nothing of it can be written.
//!
//! A file is asked for when it is first read, its beginning first; all that is read of it later is of the same state.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::Mutex;

use super::NO_TAG;
use super::client::{Client, Got, Listed, NOT_IN_OBJECT, Tag};
use crate::format::{INDEX_NAME, Layout};
use crate::store::Location;
use crate::store::backend::{Backend, BackendFile, FileStat, FsSpace, names_cannot_be_changed, read_only};

/// Bytes that are asked for at once by who reads on, and of the end of a file: trailer and index are there.
const BLOCK: u64 = 256 << 10;
/// Bytes that are asked for where somebody looks, at the beginning of a chunk or between others.
const LOOK: u64 = 4 << 10;
/// Who reads so many bytes behind what was read goes on.
const NEAR: u64 = 64 << 10;
/// Names that a command looks at.
const MOST_NAMES: usize = 1 << 24;
/// Bytes of a chunk that will be read whole, at first.
const WHOLE: u64 = 4 << 20;
/// Bytes of parts of a file that are kept; at least the last part is.
const KEPT: usize = 16 << 20;

/// The location of a frame: `path` is how messages call it, without secrets. It is read `regardless` of whether its states can be told
/// apart, or only then.
pub fn location(client: &Arc<Client>, path: &Path, regardless: bool) -> Location {
    of_kind(client, path, OnceLock::new(), regardless, Arc::default())
}

/// The location of a frame that is an object, or a prefix with an index, as a listing tells; what it is, and how it begins.
///
/// # Errors
/// What the store answers.
pub fn found(client: &Arc<Client>, path: &Path, layout: Layout) -> io::Result<(Location, FileStat, Arc<Vec<u8>>)> {
    let failure = Arc::default();
    let (file, kind): (_, fn(Arc<Remote>) -> Kind) = match layout {
        Layout::Contiguous => (Arc::new(Remote::opened(client, "", BLOCK, &failure)?), Kind::Object),
        Layout::Sparse => {
            (Arc::new(Remote::of(client, INDEX_NAME, client.read(INDEX_NAME, None, None)?, &failure)), Kind::Prefix)
        }
    };
    let beginning = file.part(0).map_or_else(Arc::default, |(_, bytes)| bytes);
    let stat = if layout == Layout::Contiguous { file.stat()? } else { directory_stat() };
    Ok((of_kind(client, path, OnceLock::from(Ok(kind(file))), true, failure), stat, beginning))
}

fn of_kind(
    client: &Arc<Client>,
    path: &Path,
    kind: OnceLock<io::Result<Kind>>,
    regardless: bool,
    failure: Arc<Failure>,
) -> Location {
    let name = path.file_name().unwrap_or(OsStr::new("frame")).to_owned();
    let dir = path.parent().unwrap_or(Path::new("")).to_owned();
    let around = Around { client: Arc::clone(client), name: name.clone(), kind, regardless, failure };
    Location::in_backend(Arc::new(around), path, &dir, &name)
}

/// What has the frame's name.
#[derive(Clone)]
enum Kind {
    /// An sframe, and its index.
    Prefix(Arc<Remote>),
    /// A cframe, or anything else.
    Object(Arc<Remote>),
}

/// Where the frame is: nothing else is there to be seen.
struct Around {
    client: Arc<Client>,
    name: OsString,
    /// Asked for once: a command looks at one state, and waits once for a store that is away.
    kind: OnceLock<io::Result<Kind>>,
    regardless: bool,
    failure: Arc<Failure>,
}

/// The first failure that says nothing about the frame: of the store, or that others have changed the frame.
#[derive(Default)]
struct Failure(OnceLock<io::Error>);

impl Failure {
    /// Keeps an error that is none of the frame's. A file that is not there, or is empty, is one, unless it is what `must` be there.
    fn of<T>(&self, result: io::Result<T>, must: bool) -> io::Result<T> {
        if let Err(error) = &result
            && (must || error.raw_os_error() != Some(libc::ENOENT) && error.kind() != NOT_IN_OBJECT)
        {
            let _ = self.0.set(same(error));
        }
        result
    }
}

impl Around {
    fn kind(&self, name: &OsStr) -> io::Result<Kind> {
        if name != self.name {
            return Err(io::ErrorKind::NotFound.into());
        }
        match self.kind.get_or_init(|| self.ask()) {
            Ok(kind) => Ok(kind.clone()),
            Err(error) => Err(same(error)),
        }
    }

    fn ask(&self) -> io::Result<Kind> {
        let kind = self.there()?;
        let (Kind::Prefix(file) | Kind::Object(file)) = &kind;
        if self.regardless || file.tag.tells() { Ok(kind) } else { Err(io::Error::other(NO_TAG)) }
    }

    fn there(&self) -> io::Result<Kind> {
        match self.client.has_prefixes().then(|| self.client.read(INDEX_NAME, None, None)) {
            Some(Ok(got)) => Ok(Kind::Prefix(Arc::new(Remote::of(&self.client, INDEX_NAME, got, &self.failure)))),
            Some(Err(error)) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(Kind::Object(Arc::new(Remote::opened(&self.client, "", BLOCK, &self.failure)?))),
        }
    }
}

/// An error once more.
fn same(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::new(error.kind(), error.to_string()), io::Error::from_raw_os_error)
}

/// A directory that is only read, and has no changes to sync.
macro_rules! is_only_read {
    () => {
        names_cannot_be_changed!();
        fn sync_dir(&self) -> io::Result<()> {
            Ok(())
        }
        fn sync_fs(&self) -> io::Result<()> {
            Ok(())
        }
        fn itself(&self) -> io::Result<Arc<dyn BackendFile>> {
            Ok(Arc::new(Directory))
        }
        fn statvfs(&self) -> io::Result<FsSpace> {
            Ok(FsSpace { io_size: BLOCK, block_size: 4096, name_max: 255, ..FsSpace::default() })
        }
    };
}

impl Backend for Around {
    fn open(&self, name: &OsStr, write: bool) -> io::Result<Box<dyn BackendFile>> {
        match self.kind(name)? {
            _ if write => read_only(),
            Kind::Object(file) => Ok(Box::new(Shared(file))),
            Kind::Prefix(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn open_dir(&self, name: &OsStr) -> io::Result<Box<dyn Backend>> {
        match self.kind(name)? {
            Kind::Prefix(index) => {
                Ok(Box::new(Prefix { client: Arc::clone(&self.client), index, failure: Arc::clone(&self.failure) }))
            }
            Kind::Object(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn names(&self) -> io::Result<Vec<OsString>> {
        Ok(vec![self.name.clone()])
    }

    fn stat(&self, name: &OsStr) -> io::Result<FileStat> {
        match self.kind(name)? {
            Kind::Prefix(_) => Directory.stat(),
            Kind::Object(file) => file.stat(),
        }
    }

    fn out_of_reach(&self, look: bool) -> Option<io::Error> {
        // All that is read of one object is of one state.
        if let (true, Some(Ok(Kind::Prefix(index)))) = (look && self.failure.0.get().is_none(), self.kind.get()) {
            let now = self.failure.of(self.client.look(INDEX_NAME), true);
            if now.is_ok_and(|now| now != index.tag) {
                let _ = self.failure.0.set(io::Error::from_raw_os_error(libc::ESTALE));
            }
        }
        self.failure.0.get().map(same)
    }

    is_only_read!();
}

/// The files of an sframe.
struct Prefix {
    client: Arc<Client>,
    index: Arc<Remote>,
    failure: Arc<Failure>,
}

impl Prefix {
    fn file(&self, name: &OsStr, begin: u64) -> io::Result<Arc<Remote>> {
        if name == INDEX_NAME {
            return Ok(Arc::clone(&self.index));
        }
        let name = name.to_str().filter(|name| !name.is_empty() && !name.contains('/'));
        let opened = Remote::opened(&self.client, name.ok_or(io::ErrorKind::NotFound)?, begin, &self.failure);
        self.failure.of(opened.map(Arc::new), false)
    }
}

impl Backend for Prefix {
    fn open(&self, name: &OsStr, write: bool) -> io::Result<Box<dyn BackendFile>> {
        if write { read_only() } else { Ok(Box::new(Shared(self.file(name, LOOK)?))) }
    }

    fn open_whole(&self, name: &OsStr) -> io::Result<Box<dyn BackendFile>> {
        Ok(Box::new(Shared(self.file(name, WHOLE)?)))
    }

    fn out_of_reach(&self, _look: bool) -> Option<io::Error> {
        self.failure.0.get().map(same)
    }

    fn open_dir(&self, _name: &OsStr) -> io::Result<Box<dyn Backend>> {
        Err(io::ErrorKind::NotADirectory.into())
    }

    fn names(&self) -> io::Result<Vec<OsString>> {
        let first = |listed: Listed| listed.name.split('/').next().filter(|name| !name.is_empty()).map(OsString::from);
        let mut names = self.client.list(vec![None..None], MOST_NAMES, first)?;
        names.dedup();
        Ok(names)
    }

    fn stat(&self, name: &OsStr) -> io::Result<FileStat> {
        self.file(name, LOOK)?.stat()
    }

    is_only_read!();
}

/// Attributes of an object: nobody owns it but who looks.
fn stat_of(kind: u32, len: u64, modified: SystemTime) -> FileStat {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (atime, mtime, ctime) = (modified, modified, modified);
    FileStat { dev: 0, ino: 0, mode: kind | 0o444, links: 1, uid, gid, len, allocated: len, atime, mtime, ctime }
}

/// Those of a prefix.
pub fn directory_stat() -> FileStat {
    stat_of(libc::S_IFDIR | 0o111, 0, SystemTime::UNIX_EPOCH)
}

/// One object in one state.
struct Remote {
    client: Arc<Client>,
    name: String,
    tag: Tag,
    /// Parts that were read, and where they begin; the oldest first. A leaf lock.
    parts: Mutex<Vec<(u64, Arc<Vec<u8>>)>>,
    failure: Arc<Failure>,
}

impl Remote {
    fn opened(client: &Arc<Client>, name: &str, begin: u64, failure: &Arc<Failure>) -> io::Result<Self> {
        Ok(Self::of(client, name, client.read(name, Some(0..begin), None)?, failure))
    }

    fn of(client: &Arc<Client>, name: &str, got: Got, failure: &Arc<Failure>) -> Self {
        let parts = Mutex::new(vec![(0, Arc::new(got.bytes))]);
        Remote { client: Arc::clone(client), name: name.to_owned(), tag: got.tag, parts, failure: Arc::clone(failure) }
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(stat_of(libc::S_IFREG, self.tag.len(), self.tag.modified()))
    }

    /// What to ask for when a part is read that is not here.
    fn around(&self, offset: u64, len: u64) -> Range<u64> {
        let goes_on = self.parts.lock().iter().any(|(start, bytes)| {
            let end = start + bytes.len() as u64;
            (end..end.saturating_add(NEAR)).contains(&offset)
        });
        let tail = self.tag.len().saturating_sub(BLOCK);
        let (start, least) = match goes_on {
            true => (offset, BLOCK),
            false if offset >= tail => (tail.max(LOOK).min(offset), BLOCK),
            false => (offset, LOOK),
        };
        start..offset.saturating_add(len.max(least)).min(self.tag.len())
    }

    /// The part that a byte is in.
    fn part(&self, offset: u64) -> Option<(usize, Arc<Vec<u8>>)> {
        let parts = self.parts.lock();
        parts.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
            (from < bytes.len()).then(|| (from, Arc::clone(bytes)))
        })
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if buf.is_empty() || offset >= self.tag.len() {
            return Ok(0);
        }
        let (from, bytes) = match self.part(offset) {
            Some(part) => part,
            None => {
                let Range { start, end } = self.around(offset, buf.len() as u64);
                let got = self.failure.of(self.client.read(&self.name, Some(start..end), Some(&self.tag)), true)?;
                let bytes = Arc::new(got.bytes);
                let mut parts = self.parts.lock();
                parts.push((start, Arc::clone(&bytes)));
                let mut kept: usize = parts.iter().map(|(_, bytes)| bytes.len()).sum();
                while kept > KEPT && parts.len() > 1 {
                    kept -= parts.remove(0).1.len();
                }
                (usize::try_from(offset - start).unwrap_or(usize::MAX), bytes)
            }
        };
        let here = bytes.get(from..).unwrap_or_default();
        let count = here.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..count), here.get(..count)) {
            to.copy_from_slice(from);
        }
        Ok(count)
    }
}

/// What cannot be done to a file that is only read.
macro_rules! bytes_cannot_be_changed {
    () => {
        fn write_at(&self, _data: &[u8], _offset: u64) -> io::Result<()> {
            read_only()
        }
        fn set_len(&self, _len: u64) -> io::Result<()> {
            read_only()
        }
        fn sync_data(&self) -> io::Result<()> {
            Ok(())
        }
        fn sync_all(&self) -> io::Result<()> {
            Ok(())
        }
        fn try_lock(&self) -> io::Result<bool> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn unlock(&self) -> io::Result<()> {
            Ok(())
        }
    };
}

struct Shared(Arc<Remote>);

impl BackendFile for Shared {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.0.stat()
    }

    fn is_out_of_reach(&self) -> bool {
        self.0.failure.0.get().is_some()
    }

    bytes_cannot_be_changed!();
}

/// A prefix, as a file.
struct Directory;

impl BackendFile for Directory {
    fn read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        Err(io::ErrorKind::IsADirectory.into())
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(directory_stat())
    }

    bytes_cannot_be_changed!();
}
