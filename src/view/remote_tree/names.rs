//! What names stand for: by what a listing tells, and how they end. The beginnings of frames are read only where their data is shown.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::time::Instant;

use log::warn;

use super::table::Found;
use super::{RemoteTree, failed};
use crate::format::header::FrameHeader;
use crate::format::plain::plain;
use crate::format::{INDEX_NAME, Layout};
use crate::store::in_words;
use crate::store::remote::Tag;
use crate::store::remote::folder::{Entry, LONGEST_NAME};
use crate::store::walk::{STORE_MARK, has_store_suffix};
use crate::view::tree::{DataKind, FIRST_READ, LONGEST_HEADER, Stored};
use crate::view::{Decoded, DirEntry, Ino, Kind, Result, ViewError};

/// Names of a listing that are looked at together, where data is shown.
const AHEAD: usize = 1024;

/// What a frame's data is, and of which state that was said, if a listing tells.
pub struct Known {
    when: Instant,
    state: Option<String>,
    kind: DataKind,
}

/// Who looks at the names of a directory.
pub struct Look<'a> {
    pub dir: &'a str,
    /// The store may be asked what a prefix is.
    pub asks: bool,
    in_store: OnceCell<bool>,
}

impl<'a> Look<'a> {
    pub fn new(dir: &'a str, asks: bool) -> Self {
        Look { dir, asks, in_store: OnceCell::new() }
    }
}

impl RemoteTree {
    /// What clients call a name in a directory, with its key and what it stands for.
    ///
    /// # Errors
    /// What the store answers.
    pub(super) fn find(&self, dir: &str, name: &OsStr) -> Result<Option<(String, Found)>> {
        let Some(name) = name.to_str() else { return Ok(None) };
        let look = Look::new(dir, true);
        if let Some(entry) = self.entry(dir, name)? {
            let (key, found) = self.stands_for(&look, &entry)?;
            let is_elsewhere = matches!(found, Found::Frame(_, _, Some(_)));
            return Ok(Some((key, found)).filter(|_| !is_elsewhere));
        }
        if !self.shows_data() {
            return Ok(None);
        }
        for suffix in Decoded::SUFFIXES {
            let Some(stem) = name.strip_suffix(suffix) else { continue };
            let Some(entry) = self.entry(dir, stem)? else { continue };
            let (key, found) = self.stands_for(&look, &entry)?;
            if matches!(&found, Found::Frame(_, _, Some(decoded)) if decoded.suffix() == suffix) {
                return Ok(Some((key, found)));
            }
        }
        Ok(None)
    }

    /// Lists a directory.
    pub(super) fn list(&self, dir: &str, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let listing = self.directories.whole(dir, cookie > 0).map_err(|error| failed(self.path_of(dir), "list", error))?;
        let look = Look::new(dir, false);
        let entries = listing.behind(cookie);
        if self.shows_data() {
            self.learn_kinds_of(&look, entries.get(..AHEAD).unwrap_or(entries));
        }
        for (next, entry) in entries {
            let (key, found) = match self.stands_for(&look, entry) {
                Ok(found) => found,
                // Whoever looks closer meets the error.
                Err(_) => (format!("{dir}{}", entry.name), Found::Directory),
            };
            let (kind, decoded) = match &found {
                Found::Directory if entry.object.is_some() => (Kind::File, None),
                Found::Directory => (Kind::Directory, None),
                Found::Object(_) => (Kind::File, None),
                Found::Frame(_, shown, decoded) => (*shown, decoded.as_ref()),
            };
            let name = OsString::from(&*entry.name);
            let name = decoded.map_or_else(|| name.clone(), |decoded| decoded.name(&name));
            let ino = self.table.lock().of_key(&key).unwrap_or(Ino(*next));
            if !emit(DirEntry { ino, kind, name: &name, is_known: false, next: *next }) {
                break;
            }
        }
        Ok(())
    }

    fn entry(&self, dir: &str, name: &str) -> Result<Option<Entry>> {
        self.directories.find(dir, name).map_err(|error| failed(self.path_of(dir), "list", error))
    }

    pub(super) fn shows_data(&self) -> bool {
        self.rules.show.is_decoded()
    }

    /// The key of an entry, and what it stands for.
    ///
    /// # Errors
    /// What the store answers.
    pub(super) fn stands_for(&self, look: &Look<'_>, entry: &Entry) -> Result<(String, Found)> {
        let name = OsStr::new(&*entry.name);
        let key = format!("{}{}", look.dir, entry.name);
        let beneath = key.strip_prefix(&*self.root).unwrap_or(&key);
        let is_named = self.rules.is_name(name);
        let may_be = self.rules.is_chosen(beneath.as_bytes()) && (is_named || entry.object.is_none());
        let as_it_is = match &entry.object {
            Some(tag) => (key.clone(), Found::Object(tag.clone())),
            None => (format!("{key}/"), Found::Directory),
        };
        let (layout, is_frame) = match &entry.object {
            Some(_) => (Layout::Contiguous, true),
            // Where data is shown, the header tells.
            None => (Layout::Sparse, may_be && (is_named || self.shows_data() || self.has_index(look, &key)?)),
        };
        if !may_be || !is_frame || self.is_broken(&key, entry.object.as_ref()) {
            return Ok(as_it_is);
        }
        if self.shows_data() {
            return Ok(match self.decoded(look, entry, &key)? {
                Some(decoded) => (key, Found::Frame(entry.object.clone(), Kind::File, Some(decoded))),
                None => as_it_is,
            });
        }
        if !is_named {
            // A listing does not tell it from other prefixes, and what it tells is to be true.
            return Ok((key, Found::Frame(None, Kind::Directory, None)));
        }
        Ok(match (self.rules.shown(Stored::Frame(layout), self.is_in_store(look)?), layout) {
            // It is what it is.
            (Kind::File, Layout::Contiguous) => as_it_is,
            (shown, _) => (key, Found::Frame(entry.object.clone(), shown, None)),
        })
    }

    /// Whether a prefix holds the index of an sframe.
    fn has_index(&self, look: &Look<'_>, key: &str) -> Result<bool> {
        let inside = format!("{key}/");
        let index = match look.asks {
            true => self.entry(&inside, INDEX_NAME)?,
            false => self.directories.known(&inside, INDEX_NAME).flatten(),
        };
        Ok(index.is_some_and(|index| index.object.is_some()))
    }

    /// Whether a directory is in a store of python-blosc2, where it is looked for frames that are files.
    fn is_in_store(&self, look: &Look<'_>) -> Result<bool> {
        if let Some(known) = look.in_store.get() {
            return Ok(*known);
        }
        let mut is_store = look.dir.split('/').any(|name| has_store_suffix(OsStr::new(name)));
        let mut dir = look.dir;
        while !is_store && dir.len() >= self.root.len() {
            is_store = self.entry(dir, STORE_MARK)?.is_some_and(|mark| mark.object.is_some());
            if dir.is_empty() {
                break;
            }
            dir = super::parent_of(dir.trim_end_matches('/'));
        }
        Ok(*look.in_store.get_or_init(|| is_store))
    }

    // --- data ---

    /// What a frame's data is shown as, if it can be, and its name with the suffix is free.
    fn decoded(&self, look: &Look<'_>, entry: &Entry, key: &str) -> Result<Option<Decoded>> {
        let kind = match self.kind_known(entry, key) {
            Some(kind) => kind,
            None => {
                self.learn_kinds(&[(key.to_owned(), entry)]);
                // The log says why not.
                self.kind_known(entry, key).ok_or(ViewError::System(libc::EIO))?
            }
        };
        let Some(decoded) = kind.shown(&self.rules) else { return Ok(None) };
        let name = format!("{}{}", entry.name, decoded.suffix());
        let is_taken = match self.directories.known(look.dir, &name) {
            Some(found) => found.is_some(),
            None => self.entry(look.dir, &name)?.is_some(),
        };
        Ok(Some(decoded).filter(|_| name.len() <= LONGEST_NAME && !is_taken))
    }

    fn kind_known(&self, entry: &Entry, key: &str) -> Option<DataKind> {
        let mut kinds = self.kinds.lock();
        let known = kinds.get(key)?;
        let is_good = match &entry.object {
            Some(tag) => known.state.as_ref() == Some(&tag.line()),
            None => known.when.elapsed() < self.options.refresh,
        };
        is_good.then_some(known.kind)
    }

    /// Reads the headers of entries that may be frames whose data is shown, many at a time.
    fn learn_kinds_of(&self, look: &Look<'_>, entries: &[(u64, Entry)]) {
        let may_be = |entry: &&Entry| entry.object.is_none() || self.rules.is_name(OsStr::new(&*entry.name));
        let keys =
            entries.iter().map(|(_, entry)| entry).filter(may_be).map(|entry| (format!("{}{}", look.dir, entry.name), entry));
        let unknown: Vec<_> = keys.filter(|(key, entry)| self.kind_known(entry, key).is_none()).collect();
        self.learn_kinds(&unknown);
    }

    fn learn_kinds(&self, entries: &[(String, &Entry)]) {
        let objects: Vec<String> = entries
            .iter()
            .map(|(key, entry)| if entry.object.is_some() { key.clone() } else { format!("{key}/{INDEX_NAME}") })
            .collect();
        let when = Instant::now();
        for ((object, (key, entry)), got) in objects.iter().zip(entries).zip(self.client.beginnings(&objects, FIRST_READ as u64))
        {
            let whole = |bytes: Vec<u8>| {
                let len = FrameHeader::announced_len(&bytes).map_err(|error| error.to_string())? as usize;
                let bytes = match len {
                    _ if len > LONGEST_HEADER => return Err("its header is longer than that of any array".to_owned()),
                    _ if len > bytes.len() => {
                        let again = self.client.beginnings(std::slice::from_ref(object), len as u64).pop();
                        again.and_then(io::Result::ok).ok_or("its header cannot be read")?.bytes
                    }
                    _ => bytes,
                };
                let header = FrameHeader::parse(bytes.get(..len).ok_or("its header is cut off")?);
                DataKind::of(&header.map_err(|error| error.to_string())?, &self.rules)
            };
            let kind = match got {
                Ok(got) => whole(got.bytes).unwrap_or_else(|reason| {
                    warn!("{}: is shown as it is in the store: {reason}", plain(&self.path_of(key)));
                    DataKind::Broken
                }),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => DataKind::Broken,
                Err(error) => {
                    warn!("{}: cannot be looked at: {}", plain(&self.path_of(key)), in_words(&error));
                    continue;
                }
            };
            let state = entry.object.as_ref().map(Tag::line);
            self.kinds.lock().put(key.clone(), Known { when, state, kind });
        }
    }
}
