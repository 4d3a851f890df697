//! Going through a directory for the frames in it, at any depth.
//!
//! What it promises:
//!
//! - A name is looked up beneath a directory that is held open, and no symbolic link is followed. So nothing outside of the tree is
//!   looked at, whatever others do to it meanwhile.
//! - No stack grows with the depth of the tree, and no more than [`HELD`] directories are open at once. One that was given up is
//!   found again by walking down from the first, and is taken only if it is the same.
//! - Order is that of the names, byte by byte, within each directory. A name that goes away meanwhile is left out.
//! - What cannot be looked at is an error in its place, and the walk goes on after it.
//! - A directory on which a file system is mounted is not gone into.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::backend::{Backend, FileStat};
use super::create::TEMP_PREFIX;
use super::error::Complain;
use super::local::{self, FileBackend};
use super::{Location, Result, StoreError};
use crate::format::header::FrameHeader;
use crate::format::{INDEX_NAME, Layout};

/// How the name of a file ends that may be a frame.
pub const SUFFIXES: [&str; 8] = [".b2frame", ".b2f", ".b2eframe", ".b2nd", ".b2", ".b2e", ".b2b", ".caterva"];
/// How the name of a directory ends that is a store of python-blosc2.
const STORE_SUFFIX: &str = ".b2d";
/// How the name of an archive ends that is a store of python-blosc2.
pub const ARCHIVE_SUFFIX: &str = ".b2z";
/// The file that makes a directory a store of python-blosc2, whatever its name.
pub const STORE_MARK: &str = "embed.b2e";

/// Directories one within the other that are open at once.
pub const HELD: usize = 16;

/// Whether a file of that name may be a frame.
pub fn has_frame_suffix(name: &OsStr) -> bool {
    SUFFIXES.iter().any(|suffix| ends_with(name, suffix))
}

/// Whether a directory of that name is a store of python-blosc2, where it is looked for frames that are files.
pub fn has_store_suffix(name: &OsStr) -> bool {
    ends_with(name, STORE_SUFFIX)
}

/// Whether a name is one with a suffix; a suffix alone is none.
pub fn ends_with(name: &OsStr, suffix: &str) -> bool {
    name.len() > suffix.len() && name.as_bytes().ends_with(suffix.as_bytes())
}

/// Whether a directory is, or lies in, a store of python-blosc2; by a path that [`local::resolve`] gave.
pub(super) fn is_in_store(real: &Path) -> bool {
    let has_mark = |dir: &Path| {
        let mark = FileBackend::open_resolved(dir).and_then(|dir| dir.stat(OsStr::new(STORE_MARK)));
        mark.is_ok_and(|mark| mark.is_file())
    };
    real.iter().any(has_store_suffix) || real.ancestors().any(has_mark)
}

/// Directories, each in the one before, of which the first and the last ones are held open.
pub(super) struct Chain {
    /// Always open.
    first: Arc<FileBackend>,
    below: Vec<Link>,
}

struct Link {
    name: OsString,
    stat: FileStat,
    dir: Option<Arc<FileBackend>>,
}

impl Chain {
    pub(super) fn of(first: Arc<FileBackend>) -> Self {
        Chain { first, below: Vec::new() }
    }

    /// Goes into a directory of the last one.
    pub(super) fn push(&mut self, name: OsString, dir: Arc<FileBackend>) -> io::Result<()> {
        let stat = dir.own_stat()?;
        self.below.push(Link { name, stat, dir: Some(dir) });
        if let Some(other) = self.below.len().checked_sub(HELD + 1).and_then(|at| self.below.get_mut(at)) {
            other.dir = None;
        }
        Ok(())
    }

    /// The names of all but the first.
    pub(super) fn names(&self) -> Vec<OsString> {
        self.below.iter().map(|link| link.name.clone()).collect()
    }

    /// The one that it began with.
    pub(super) fn first(&self) -> &Arc<FileBackend> {
        &self.first
    }

    /// Leaves the last one; not the first.
    pub(super) fn pop(&mut self) {
        self.below.pop();
    }

    /// The last one.
    pub(super) fn last(&mut self) -> io::Result<Arc<FileBackend>> {
        match self.below.last() {
            None => return Ok(self.first.clone()),
            Some(Link { dir: Some(dir), .. }) => return Ok(dir.clone()),
            Some(Link { dir: None, .. }) => {}
        }
        let held_from = self.below.len().saturating_sub(HELD);
        let mut dir = self.first.clone();
        for (n, link) in self.below.iter_mut().enumerate() {
            dir = Arc::new(dir.inside(&link.name)?);
            if !dir.own_stat()?.same_file(&link.stat) {
                return Err(io::Error::other("another directory has its name now"));
            }
            link.dir = (n >= held_from).then(|| dir.clone());
        }
        Ok(dir)
    }
}

/// A name that the walk has come to.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Where it is.
    pub location: Location,
    /// What it was when it was looked at.
    pub stat: FileStat,
    /// Whether it is in a store of python-blosc2, at any depth.
    pub in_store: bool,
}

/// Where the walk has come to.
#[derive(Debug)]
pub enum Step {
    /// A frame: a directory with an index file, or a file that begins as a cframe does and is called as one. The walk does not go into it.
    Frame(Entry, Layout),
    /// A directory that is none. The walk goes into it.
    Enter(Entry),
    /// All of the directory that the walk is in has been gone through; last of all, of the first.
    Leave,
    /// A directory on which another file system is mounted.
    MountPoint(Entry),
    /// Anything else: a file, a link, a FIFO.
    Other(Entry),
}

/// A directory that the walk is in.
struct Level {
    /// What is left of it, the last first.
    rest: Vec<OsString>,
    in_store: bool,
    /// Nothing in it is a frame: it is one itself.
    in_frame: bool,
}

/// A walk through a directory.
pub struct Walk {
    chain: Chain,
    levels: Vec<Level>,
    /// Of the last level: as messages call it, and as it is.
    path: PathBuf,
    real: PathBuf,
    /// The sparse frame that was come to last.
    frame: Option<(Entry, Arc<FileBackend>)>,
    /// All of the last level has been gone through.
    leaving: bool,
}

impl Walk {
    /// Through the directory at `path`, which is one that is no frame; `None` if there is something else, or nothing.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn of(path: &Path) -> Result<Option<Self>> {
        let failed = |source| StoreError::Io { path: path.to_owned(), action: "open", source };
        if !local::stat(path).map_err(failed)?.is_some_and(|stat| stat.is_dir()) {
            return Ok(None);
        }
        let real = local::resolve(path).map_err(failed)?;
        let first = Arc::new(FileBackend::open_resolved(&real).map_err(failed)?);
        match first.stat(OsStr::new(INDEX_NAME)) {
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let mut walk = Walk {
            chain: Chain::of(first.clone()),
            levels: Vec::new(),
            path: path.to_owned(),
            real: real.clone(),
            frame: None,
            leaving: false,
        };
        let level = walk.level(&first, is_in_store(&real), false)?;
        walk.levels.push(level);
        Ok(Some(walk))
    }

    /// The path of the directory that the walk is in, as messages call it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Without symbolic links: the path of the directory that the walk is in.
    pub fn real_path(&self) -> &Path {
        &self.real
    }

    /// Has the walk go through the sparse frame that it came to last as through any directory, where nothing is a frame.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn enter_frame(&mut self) -> Result<()> {
        let Some((entry, dir)) = self.frame.take() else { return Ok(()) };
        self.enter(&entry, dir, true)
    }

    /// The directory that the walk is in: after [`Step::Leave`] the one that it leaves.
    ///
    /// # Errors
    /// It was given up, and is not found again.
    pub fn here(&mut self) -> Result<Arc<FileBackend>> {
        self.chain.last().map_err(self.path.io("open"))
    }

    /// Leaves the directory that was entered last, at once.
    pub fn leave_at_once(&mut self) {
        self.levels.pop();
        if !self.levels.is_empty() {
            self.chain.pop();
            self.path.pop();
            self.real.pop();
        }
    }

    /// The names in a directory.
    fn level(&self, dir: &FileBackend, in_store: bool, in_frame: bool) -> Result<Level> {
        let mut rest = dir.names().map_err(self.path.io("list"))?;
        let in_store = in_store || dir.stat(OsStr::new(STORE_MARK)).is_ok_and(|mark| mark.is_file());
        rest.retain(|name| !name.as_bytes().starts_with(TEMP_PREFIX.as_bytes()));
        rest.sort_unstable_by(|one, other| other.cmp(one));
        Ok(Level { rest, in_store, in_frame })
    }

    fn enter(&mut self, entry: &Entry, dir: Arc<FileBackend>, in_frame: bool) -> Result<()> {
        let name = entry.location.name();
        self.path.push(name);
        self.real.push(name);
        let in_store = entry.in_store || has_store_suffix(name);
        let entered = self.level(&dir, in_store, in_frame).and_then(|level| {
            self.chain.push(name.to_owned(), dir).map_err(self.path.io("open"))?;
            self.levels.push(level);
            Ok(())
        });
        if entered.is_err() {
            self.path.pop();
            self.real.pop();
        }
        entered
    }

    /// What has a name in the last directory; `None` if nothing has.
    fn look(&mut self, name: &OsStr, in_store: bool, in_frame: bool) -> Result<Option<Step>> {
        let path = self.path.join(name);
        let around = match self.chain.last() {
            Ok(around) => around,
            Err(error) => {
                // Nor is anything else in it.
                self.levels.last_mut().into_iter().for_each(|level| level.rest.clear());
                return Err(self.path.io("open")(error));
            }
        };
        let Some(stat) = there(around.stat(name)).map_err(path.io("stat"))? else { return Ok(None) };
        let backend: Arc<dyn Backend> = around.clone();
        let entry = Entry { location: Location::in_backend(backend, &path, &self.real, name), stat, in_store };
        if stat.is_dir() {
            let Some(dir) = there(around.inside(name)).map_err(path.io("open"))? else { return Ok(None) };
            if dir.is_mount_point(around.own_stat().map_err(path.io("stat"))?.dev) {
                return Ok(Some(Step::MountPoint(entry)));
            }
            let dir = Arc::new(dir);
            let index = if in_frame { None } else { there(dir.stat(OsStr::new(INDEX_NAME))).map_err(path.io("read"))? };
            if index.is_some() {
                self.frame = Some((entry.clone(), dir));
                return Ok(Some(Step::Frame(entry, Layout::Sparse)));
            }
            self.enter(&entry, dir, in_frame)?;
            return Ok(Some(Step::Enter(entry)));
        }
        if stat.is_file() && !in_frame && has_frame_suffix(name) {
            let mut beginning = [0; FrameHeader::KIND_LEN];
            let Some(file) = there(around.open(name, false)).map_err(path.io("open"))? else { return Ok(None) };
            let read = file.read_at(&mut beginning, 0).map_err(path.io("be read"))?;
            if beginning.get(..read).is_some_and(FrameHeader::begins_cframe) {
                return Ok(Some(Step::Frame(entry, Layout::Contiguous)));
            }
        }
        Ok(Some(Step::Other(entry)))
    }
}

/// What is there, if it has not gone away.
fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Iterator for Walk {
    type Item = Result<Step>;

    fn next(&mut self) -> Option<Result<Step>> {
        self.frame = None;
        if std::mem::take(&mut self.leaving) {
            self.leave_at_once();
        }
        loop {
            let level = self.levels.last_mut()?;
            let (in_store, in_frame) = (level.in_store, level.in_frame);
            let Some(name) = level.rest.pop() else {
                self.leaving = true;
                return Some(Ok(Step::Leave));
            };
            match self.look(&name, in_store, in_frame) {
                Ok(None) => {}
                Ok(Some(step)) => return Some(Ok(step)),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    const FRAME: &[u8] = include_bytes!("../../tests/data/cframe/chunks-1.b2frame");

    /// A directory in a directory, and so on, with a frame after it in each.
    fn nested(top: &Path, depth: usize) {
        let mut dir = top.to_owned();
        for _ in 0..depth {
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("z.b2nd"), FRAME).unwrap();
            dir.push("d");
        }
    }

    /// Every frame that a walk comes to, by inode number, and how many things it could not look at.
    fn rest(walk: Walk) -> (Vec<u64>, usize) {
        let (mut frames, mut errors) = (Vec::new(), 0);
        for step in walk {
            match step {
                Ok(Step::Frame(entry, _)) => frames.push(entry.stat.ino),
                Ok(_) => {}
                Err(_) => errors += 1,
            }
        }
        (frames, errors)
    }

    /// Replaces the top of a tree while the walk is at its bottom, where the top is no longer held open.
    fn swapped(swap: impl Fn(&Path, &Path)) {
        const DEPTH: usize = 3 * HELD;
        let place = tempfile::tempdir().unwrap();
        let (tree, outside) = (place.path().join("tree"), place.path().join("outside"));
        nested(&tree, DEPTH);
        nested(&outside, DEPTH);
        let mut walk = Walk::of(&tree).unwrap().unwrap();
        assert_eq!(walk.by_ref().take_while(|step| matches!(step, Ok(Step::Enter(_)))).count(), DEPTH - 1);
        // The first frame has been taken from it: the one at the bottom.
        swap(&tree.join("d"), &outside.join("d"));
        let (frames, errors) = rest(walk);
        let (mut dir, mut foreign) = (outside, HashSet::new());
        while dir.exists() {
            foreign.insert(fs::metadata(dir.join("z.b2nd")).unwrap().ino());
            dir.push("d");
        }
        assert!(foreign.len() > 1 || !frames.is_empty());
        assert!(frames.iter().all(|frame| !foreign.contains(frame)), "what is outside is not looked at");
        assert_eq!((frames.len(), errors), (HELD - 1 + 1, DEPTH - HELD - 1), "those that are held, and the first directory's");
    }

    #[test]
    fn a_directory_that_became_a_link_is_not_followed() {
        swapped(|tree, outside| {
            fs::rename(tree, tree.with_file_name("away")).unwrap();
            symlink(outside, tree).unwrap();
        });
    }

    #[test]
    fn a_directory_that_became_another_is_not_taken() {
        swapped(|tree, outside| {
            fs::rename(tree, tree.with_file_name("away")).unwrap();
            fs::create_dir(tree).unwrap();
            for name in ["d", "z.b2nd"] {
                fs::rename(tree.with_file_name("away").join(name), tree.join(name)).unwrap();
            }
            assert!(outside.exists());
        });
    }

    #[test]
    fn what_changes_under_a_walk_is_what_it_is_when_it_is_looked_at() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join("tree").join(name);
        fs::create_dir(place.path().join("tree")).unwrap();
        nested(&place.path().join("outside"), 2);
        for dir in ["gone", "link", "file", "frame"] {
            nested(&at(dir), 1);
        }
        fs::write(at("gone.b2nd"), FRAME).unwrap();
        fs::write(at("link.b2nd"), FRAME).unwrap();
        let walk = Walk::of(&place.path().join("tree")).unwrap().unwrap();
        for dir in ["gone", "link", "file"] {
            fs::remove_dir_all(at(dir)).unwrap();
        }
        fs::remove_file(at("gone.b2nd")).unwrap();
        fs::remove_file(at("link.b2nd")).unwrap();
        symlink("../outside", at("link")).unwrap();
        symlink("../outside/z.b2nd", at("link.b2nd")).unwrap();
        fs::write(at("file"), "x").unwrap();
        fs::write(at("frame/chunks.b2frame"), "no frame").unwrap();
        fs::write(at("late.b2nd"), FRAME).unwrap();
        let steps: Vec<_> = walk.map(Result::unwrap).collect();
        let words = |step: &Step| match step {
            Step::Frame(entry, layout) => format!("{layout:?} {}", entry.location.name().display()),
            Step::Other(entry) => format!("other {}", entry.location.name().display()),
            step => format!("{step:?}"),
        };
        let steps: Vec<_> = steps.iter().map(words).collect();
        assert_eq!(steps, ["other file", "Sparse frame", "other link", "other link.b2nd", "Leave"]);
    }

    #[test]
    fn names_of_frames() {
        for name in ["a.b2frame", "a.b2f", "a.b2eframe", "a.b2nd", "a.b2", "a.b2e", "a.b2b", "a.caterva", ".a.b2nd", "a\n.b2nd"] {
            assert!(has_frame_suffix(OsStr::new(name)), "{name}");
        }
        for name in ["a", "b2nd", "a.b2nd.tmp", "a.B2ND", "a.b2d", "a.b2z", "a.b2nd~", "a.b2lock", ".b2nd", ""] {
            assert!(!has_frame_suffix(OsStr::new(name)), "{name}");
        }
        for (name, store) in [("a.b2d", true), ("a.b2d.old", false), (".b2d", false)] {
            assert_eq!(has_store_suffix(OsStr::new(name)), store, "{name}");
        }
    }
}
