//! The names beneath a prefix, as a directory would have them: asked for with a delimiter, so that what lies deeper is not listed.
//!
//! What a server says is taken only as far as a directory could have it: names beneath the prefix that was asked for, of 1 to
//! [`LONGEST_NAME`] bytes. A name that is a key and a prefix as well is the prefix.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use object_store::ListResult;
use object_store::list::{PaginatedListOptions, PaginatedListResult};
use object_store::path::Path as Key;

use super::client::{Client, Got, NOT_IN_OBJECT, Tag};
use crate::format::ChunkId;
use crate::store::StoreError;

/// Bytes of a name.
pub const LONGEST_NAME: usize = 255;
/// Beginnings of objects that are asked for at the same time.
const TOGETHER: usize = 256;

/// A name beneath a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Without slashes.
    pub name: Box<str>,
    /// The state of the object, if it is one and not a prefix.
    pub object: Option<Tag>,
}

impl Entry {
    /// Bytes of memory that it takes.
    pub fn weight(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.object.as_ref().map_or(0, Tag::weight)
    }
}

/// What one answer to a listing has.
#[derive(Debug, Default)]
pub struct Page {
    /// In the order of names, each once.
    pub entries: Vec<Entry>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

impl Client {
    /// Whether names can be listed page by page.
    pub fn can_list(&self) -> bool {
        self.pages.is_some()
    }

    /// Whether there is an object at the key, with nothing in it: some programs, and some stores, make one for each directory. It is
    /// asked for only if `error`, of a read of the object, may come of that.
    pub fn is_empty_object(self: &Arc<Self>, error: &StoreError) -> bool {
        let may_be = match error {
            StoreError::Format { .. } => true,
            StoreError::Io { source, .. } => source.kind() == NOT_IN_OBJECT,
            _ => false,
        };
        may_be && self.look("").is_ok_and(|tag| tag.len() == 0)
    }

    /// Whether there is anything beneath the key, taken for a prefix.
    ///
    /// # Errors
    /// As [`Client::page`].
    pub fn is_prefix(self: &Arc<Self>) -> io::Result<bool> {
        let page = self.page_of(&format!("{}/", self.base()), "", None, Some(1))?;
        Ok(!page.entries.is_empty() || page.next.is_some())
    }

    /// The names beneath `dir` that begin so, a thousand at most or what the server thinks fit. `dir` is empty, or ends in a slash; `next`
    /// is what the page before said.
    ///
    /// # Errors
    /// What the store answers; a store that lists nothing.
    pub fn page(self: &Arc<Self>, dir: &str, begins: &str, next: Option<String>) -> io::Result<Page> {
        self.page_of(dir, begins, next, None)
    }

    fn page_of(self: &Arc<Self>, dir: &str, begins: &str, next: Option<String>, most: Option<usize>) -> io::Result<Page> {
        let pages = self.pages.clone().ok_or(io::ErrorKind::Unsupported)?;
        let (client, dir, prefix) = (Arc::clone(self), dir.to_owned(), format!("{dir}{begins}"));
        self.wait(async move {
            let options = PaginatedListOptions {
                delimiter: Some(Cow::Borrowed("/")),
                page_token: next.clone(),
                max_keys: most,
                ..PaginatedListOptions::default()
            };
            let _turn = client.turn().await?;
            client.asked().lists.fetch_add(1, Relaxed);
            let wanted = Some(prefix.as_str()).filter(|prefix| !prefix.is_empty());
            let asked = async { pages.list_paginated(wanted, options).await.map_err(|error| client.complain(&error)) };
            let PaginatedListResult { result, page_token } = client.in_time(asked).await?;
            if page_token.is_some() && page_token == next {
                return Err(io::Error::other("the listing repeats itself: the next page begins where this one did"));
            }
            Ok(Page { entries: entries(&dir, &prefix, result), next: page_token })
        })
    }

    /// What has a name beneath `dir`: one request, unless a thousand other names begin so.
    ///
    /// # Errors
    /// As [`Client::page`].
    pub fn find(self: &Arc<Self>, dir: &str, name: &str) -> io::Result<Option<Entry>> {
        if !is_name(name) || Key::parse(format!("{dir}{name}")).is_err() {
            return Ok(None);
        }
        let Page { entries, next } = self.page(dir, name, None)?;
        let found = entries.into_iter().find(|entry| *entry.name == *name);
        let is_prefix = found.as_ref().is_some_and(|entry| entry.object.is_none());
        if is_prefix || next.is_none() {
            return Ok(found);
        }
        // Names with a space or a dot behind this one come before what is beneath it.
        let beneath = self.page_of(&format!("{dir}{name}/"), "", None, Some(1))?;
        let prefix = (!beneath.entries.is_empty()).then(|| Entry { name: name.into(), object: None });
        Ok(prefix.or(found))
    }

    /// The first bytes of objects, asked for at the same time.
    pub fn beginnings(self: &Arc<Self>, keys: &[String], len: u64) -> Vec<io::Result<Got>> {
        let mut all = Vec::new();
        for keys in keys.chunks(TOGETHER) {
            let clients: Vec<_> = keys.iter().map(|key| Key::parse(key).map(|key| self.at(key))).collect();
            let got = self.wait(async move {
                let each = clients.into_iter().map(|client| async move {
                    client.map_err(|_| io::Error::from(io::ErrorKind::NotFound))?.get("", Some(0..len), None).await
                });
                Ok(futures_util::future::join_all(each).await)
            });
            match got {
                Ok(got) => all.extend(got),
                Err(error) => all.extend(keys.iter().map(|_| Err(io::Error::from(error.kind())))),
            }
        }
        all
    }
}

/// Whether names are those of chunk files, all of them, as an upload of a sparse frame leaves them that is not finished.
pub fn are_chunks<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> bool {
    let mut entries = entries.into_iter().peekable();
    let is_chunk = |entry: &Entry| entry.object.is_some() && ChunkId::from_file_name(entry.name.as_bytes()).is_some();
    entries.peek().is_some() && entries.all(is_chunk)
}

/// What such a prefix is, in words for after its path.
pub const NO_INDEX: &str = "has chunk files and no chunks.b2frame: an upload that is not finished?";

/// Whether a file can have this name.
pub fn is_name(name: &str) -> bool {
    let is_odd = matches!(name, "" | "." | "..") || name.bytes().any(|byte| byte == b'/' || byte == 0);
    !is_odd && name.len() <= LONGEST_NAME
}

/// What lies beneath `dir` and begins with `prefix`.
fn entries(dir: &str, prefix: &str, listed: ListResult) -> Vec<Entry> {
    let entry = |key: &str, object: Option<Tag>| {
        let name = key.strip_prefix(dir).filter(|_| key.starts_with(prefix))?;
        // Some servers do not keep to the delimiter.
        let (name, object) = match name.split_once('/') {
            Some((name, _)) => (name, None),
            None => (name, object),
        };
        is_name(name).then(|| Entry { name: name.into(), object })
    };
    let prefixes = listed.common_prefixes.iter().filter_map(|key| entry(key.as_ref(), None));
    let objects = listed.objects.iter().filter_map(|meta| entry(meta.location.as_ref(), Some(Tag::of(meta))));
    let mut all: Vec<Entry> = prefixes.chain(objects).collect();
    // The prefix comes before the object of the same name.
    all.sort_by(|one, other| (&one.name, one.object.is_some()).cmp(&(&other.name, other.object.is_some())));
    all.dedup_by(|one, before| one.name == before.name);
    all
}
