//! Going through the keys beneath a prefix for the frames there, at any depth: as [`crate::store::walk`] does through a directory.
//!
//! Order is that of the names, byte by byte, within each directory. What cannot be looked at is an error in its place, and the walk goes on
//! after it. The walk reads the beginning of an object with a frame's name, and the index of a prefix that is a frame. They are not fetched
//! again when the frame is opened at its location.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::path::Path as Key;

use super::backend::{directory_stat, found};
use super::client::Client;
use super::folder::{Entry as Name, NO_INDEX, Page, are_chunks};
use crate::format::header::FrameHeader;
use crate::format::{INDEX_NAME, Layout};
use crate::store::walk::{Entry, Step, has_frame_suffix};
use crate::store::{Result, StoreError};

/// Bytes of memory for the names of one directory.
const MOST: usize = 64 << 20;
/// The same for all directories that a walk is in, and how many these are.
const MOST_ALTOGETHER: usize = 4 * MOST;
const DEEPEST: usize = 512;
/// Answers that a listing takes at most: some may have nothing in them.
const MOST_PAGES: usize = 10_000;

/// A walk.
pub struct Walk {
    client: Arc<Client>,
    levels: Vec<Level>,
}

/// A directory that the walk is in.
struct Level {
    dir: String,
    path: PathBuf,
    rest: std::vec::IntoIter<Name>,
    /// Bytes of memory that the names take.
    weight: usize,
}

impl Level {
    fn new(dir: String, path: &Path, names: Vec<Name>) -> Self {
        let weight = names.iter().map(Name::weight).sum();
        Level { dir, path: path.to_owned(), rest: names.into_iter(), weight }
    }
}

/// What is beneath a prefix.
enum Beneath {
    Frame,
    Names(Vec<Name>),
}

impl Walk {
    /// Through what is beneath the key of a client, if that is something and no frame. Messages call it `path`.
    ///
    /// # Errors
    /// What the store answers.
    pub fn of(client: &Arc<Client>, path: &Path) -> Result<Option<Self>> {
        let dir = match client.base().as_ref() {
            "" => String::new(),
            key => format!("{key}/"),
        };
        let beneath = beneath(client, &dir).map_err(|source| failed(path, "list", source))?;
        Ok(match beneath {
            Beneath::Names(names) if are_chunks(&names) => {
                return Err(StoreError::Unsupported { path: path.to_owned(), reason: NO_INDEX.to_owned() });
            }
            Beneath::Names(names) if !names.is_empty() => {
                let level = Level::new(dir, path, names);
                Some(Walk { client: Arc::clone(client), levels: vec![level] })
            }
            _ => None,
        })
    }

    fn step(&mut self, key: String, path: &Path, object: bool) -> Result<Option<Step>> {
        let here =
            Key::parse(&key).map(|key| self.client.at(key)).map_err(|_| failed(path, "read", io::ErrorKind::NotFound.into()))?;
        let found = |layout| found(&here, path, layout).map_err(|source| failed(path, "read", source));
        let entry = |location, stat| Entry { location, stat, in_store: false };
        if object {
            if !path.file_name().is_some_and(has_frame_suffix) {
                return Ok(None);
            }
            let (location, stat, beginning) = found(Layout::Contiguous)?;
            let announced = FrameHeader::announced_frame(&beginning);
            let is_frame = announced.is_some_and(|(layout, len)| layout == Layout::Contiguous && len <= stat.len);
            let entry = entry(location, stat);
            return Ok(Some(if is_frame { Step::Frame(entry, Layout::Contiguous) } else { Step::Other(entry) }));
        }
        let dir = format!("{key}/");
        match beneath(&self.client, &dir).map_err(|source| failed(path, "list", source))? {
            Beneath::Frame => {
                let (location, stat, _) = found(Layout::Sparse)?;
                Ok(Some(Step::Frame(entry(location, stat), Layout::Sparse)))
            }
            Beneath::Names(names) => {
                let level = Level::new(dir, path, names);
                let weight: usize = self.levels.iter().map(|level| level.weight).sum();
                if self.levels.len() >= DEEPEST || weight + level.weight > MOST_ALTOGETHER {
                    return Err(failed(
                        path,
                        "list",
                        io::Error::other("it lies deeper, or beside more names, than can be listed"),
                    ));
                }
                self.levels.push(level);
                Ok(Some(Step::Enter(entry(super::location(&here, path, true), directory_stat()))))
            }
        }
    }
}

impl Iterator for Walk {
    type Item = Result<Step>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let level = self.levels.last_mut()?;
            let Some(name) = level.rest.next() else {
                self.levels.pop();
                return Some(Ok(Step::Leave));
            };
            let (key, path) = (format!("{}{}", level.dir, name.name), level.path.join(OsStr::new(&*name.name)));
            match self.step(key, &path, name.object.is_some()) {
                Ok(None) => {}
                Ok(Some(step)) => return Some(Ok(step)),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn failed(path: &Path, action: &'static str, source: io::Error) -> StoreError {
    StoreError::Io { path: path.to_owned(), action, source }
}

fn beneath(client: &Arc<Client>, dir: &str) -> io::Result<Beneath> {
    let is_index = |name: &Name| *name.name == *INDEX_NAME && name.object.is_some();
    let Page { entries: mut names, mut next } = client.page(dir, "", None)?;
    if names.iter().any(is_index) || next.is_some() && client.find(dir, INDEX_NAME)?.is_some_and(|name| is_index(&name)) {
        return Ok(Beneath::Frame);
    }
    let (mut weight, mut pages) = (0, 1);
    while let Some(token) = next.take() {
        let page = client.page(dir, "", Some(token))?;
        weight += page.entries.iter().map(Name::weight).sum::<usize>();
        pages += 1;
        if weight > MOST || pages > MOST_PAGES {
            return Err(io::Error::other("there are more names than can be listed at once"));
        }
        names.extend(page.entries);
        next = page.next;
    }
    // A name may be a key on one page and a prefix on another.
    names.sort_by(|one, other| (&one.name, one.object.is_some()).cmp(&(&other.name, other.object.is_some())));
    names.dedup_by(|one, before| one.name == before.name);
    Ok(Beneath::Names(names))
}
