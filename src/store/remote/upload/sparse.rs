//! An sframe on its way into an object store: chunks as they come, many at a time, and the index last.
//!
//! Chunks get ids above all that the index names which is there now, and no object is ever overwritten. What an upload that was
//! interrupted has left has such ids too: a chunk that is there with the same bytes is not sent again.
//!
//! Who has put an index removes what is left below its ids, and above them what was made a day before it. Another upload may begin at that
//! moment. It replaces that index, so it takes nothing from below; and by the same times it sees what is being removed above, and takes
//! nothing of that either. An upload that began earlier makes no frame, as the index is another by then. So no chunk of a frame is removed,
//! in a store that heeds conditions.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, TryStreamExt};
use log::{info, warn};
use md5::{Digest, Md5};
use object_store::path::Path as Key;
use object_store::{Error, GetOptions, ObjectMeta, PutMode, PutOptions, PutPayload, UpdateVersion};
use parking_lot::Mutex;

use super::super::client::{Client, Tag};
use super::super::words::in_words;
use super::parts::Parts;
use super::sending::{Created, Put, Sending};
use super::{Resumed, WHOLE, read};
use crate::format::index_file::IndexFile;
use crate::format::{ChunkId, INDEX_NAME, Layout};
use crate::store::image::successor;
use crate::store::{ChunkKey, FrameImage, ReadAt, Result, StoreError};

/// The largest id of a chunk file.
const MOST_ID: u64 = (1 << 31) - 1;
/// How many ids are tried for a chunk where others take them.
const ATTEMPTS: usize = 8;
/// Ids are left out by chance, up to so many, where others upload at the same time.
const GAP: u64 = 1 << 16;
/// Chunks that no index names, at most: some gigabytes of memory.
const MOST_ORPHANS: usize = 1 << 24;
/// What an interrupted upload has left is not removed before, where another upload may go on with it.
const LEFT_FOR: Duration = Duration::from_secs(24 * 3600);
/// Bytes that are compared at once.
const PIECE: u64 = 8 << 20;

/// Why nothing is replaced.
const NO_CONDITIONS: &str = "the store does not compare ETags when it writes (If-None-Match, If-Match), so nothing can be replaced there \
                             without a danger to what others write; expected a new name";

/// The index that is to be replaced.
struct Before {
    version: UpdateVersion,
    /// When it was put, by the store's clock.
    made: SystemTime,
    ids: HashSet<u32>,
}

/// A chunk object that no index names.
struct Orphan {
    len: u64,
    md5: Option<[u8; 16]>,
    /// When it was made, by the store's clock.
    made: SystemTime,
}

impl Orphan {
    /// Whether an upload whose index was put at that time removes it, if its id is above those of the index.
    fn is_old(&self, index_made: SystemTime) -> bool {
        index_made.duration_since(self.made).is_ok_and(|age| age > LEFT_FOR)
    }
}

/// An upload.
pub struct Sparse {
    path: PathBuf,
    shared: Arc<Shared>,
    before: Option<Before>,
}

/// What the requests share.
struct Shared {
    sending: Arc<Sending>,
    orphans: HashMap<u32, Orphan>,
    /// When the index was put that is there: whoever put it may be removing what was old then.
    doomed_by: Option<SystemTime>,
    /// The id of the first chunk. The others follow, in the order in which they are staged: so another upload of the same finds them.
    start: u64,
    /// The store has no conditions, and says so.
    refuses: AtomicBool,
    /// It seems to ignore them. They are sent all the same.
    ignores: AtomicBool,
    chunks: Mutex<Chunks>,
}

struct Chunks {
    /// By the order in which they were staged.
    ids: Vec<Option<u32>>,
    /// An id that is free, and all above it, as far as nobody else writes.
    free: u64,
    /// Somebody does.
    has_company: bool,
    bytes: u64,
    resumed: Resumed,
}

impl Sparse {
    /// Looks at what is there.
    ///
    /// # Errors
    /// See [`super::Upload::sparse`].
    pub fn begin(sending: Arc<Sending>, path: &Path, replace: bool, count: u64) -> Result<Self> {
        let failed = |action| move |source| StoreError::Io { path: path.to_owned(), action, source };
        let refuse = |reason: String| Err(StoreError::Unsupported { path: path.to_owned(), reason });
        let client = sending.client();
        let before = index(client).map_err(failed("read what is there"))?;
        if before.is_some() && !replace {
            return refuse("exists already; expected a new name (--force replaces what is there)".to_owned());
        }
        let before = match before {
            None => None,
            Some((bytes, version, made)) => match IndexFile::parse(&bytes) {
                Ok(index) => {
                    let ids = index.entries.iter().filter_map(|entry| entry.stored()).map(|id| id.0).collect();
                    Some(Before { version, made, ids })
                }
                Err(error) => return refuse(format!("{INDEX_NAME} there is damaged ({error}); expected a new name")),
            },
        };
        let largest = before.as_ref().and_then(|before| before.ids.iter().copied().max());
        let orphans = match list(client, before.is_some(), largest).map_err(failed("list what is there"))? {
            Listed::Chunks(orphans) => orphans,
            Listed::Foreign(name) => {
                let name = Path::new(&name).display().to_string();
                return refuse(format!("holds {name:?}, which is no part of a sparse frame; expected a new name"));
            }
        };
        let is_file = before.is_none()
            && !client.key("").as_ref().is_empty()
            && sending.look(&client.key("")).map_err(failed("look at what is there"))?.is_some();
        if is_file {
            return refuse(
                "is one object, and a sparse frame needs a prefix; expected another name (or remove the object first)".to_owned(),
            );
        }
        let start = largest.map_or(0, |id| u64::from(id) + 1);
        let free = orphans.keys().max().map_or(0, |id| u64::from(*id) + 1).max(start.saturating_add(count));
        if start.saturating_add(count) > MOST_ID {
            return refuse(format!(
                "has chunks up to id {start}, and {count} more would get ids above {MOST_ID}; expected a new name"
            ));
        }
        let chunks = Chunks { ids: Vec::new(), free, has_company: false, bytes: 0, resumed: Resumed::default() };
        let doomed_by = before.as_ref().map(|before| before.made);
        let shared = Shared {
            sending,
            orphans,
            doomed_by,
            start,
            refuses: AtomicBool::new(false),
            ignores: AtomicBool::new(false),
            chunks: Mutex::new(chunks),
        };
        Ok(Sparse { path: path.to_owned(), shared: Arc::new(shared), before })
    }

    /// What was there.
    pub fn resumed(&self) -> Resumed {
        self.shared.chunks.lock().resumed
    }

    /// Sends a chunk; answers before it has arrived.
    ///
    /// # Errors
    /// What the store answers, to this one or to one before.
    pub fn stage(&self, chunk: &dyn ReadAt) -> Result<ChunkKey> {
        let number = {
            let mut chunks = self.shared.chunks.lock();
            chunks.ids.push(None);
            chunks.bytes = chunks.bytes.saturating_add(chunk.len());
            chunks.ids.len() - 1
        };
        let sent = if chunk.len() > WHOLE * self.shared.sending.client().part_len() {
            self.send_large(number, chunk)
        } else {
            self.send(number, chunk)
        };
        sent.map_err(self.failed("upload a chunk"))?;
        if self.before.is_some() && self.shared.has_no_conditions() {
            return Err(StoreError::Unsupported { path: self.path.clone(), reason: NO_CONDITIONS.to_owned() });
        }
        Ok(ChunkKey::new(number as u64))
    }

    fn send(&self, number: usize, chunk: &dyn ReadAt) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let payload = PutPayload::from(match chunk.as_slice() {
            Some(bytes) => bytes.to_vec(),
            None => read(chunk, 0, chunk.len())?,
        });
        if number == 0 {
            // Alone: it tells what the store makes of conditions.
            let replaces = self.before.is_some();
            return self.shared.sending.client().wait(async move { shared.place_first(payload, replaces).await });
        }
        self.shared.sending.start(chunk.len(), async move { shared.place(number, payload).await.map(drop) })
    }

    /// Sends a chunk that is too large for one request; answers when it has arrived.
    fn send_large(&self, number: usize, chunk: &dyn ReadAt) -> io::Result<()> {
        let shared = &self.shared;
        let mut id = shared.id(number)?;
        let orphan = shared.orphans.get(&id).filter(|orphan| !shared.is_doomed(orphan) && orphan.len == chunk.len());
        if orphan.is_some() && self.is_same_large(id, chunk)? {
            shared.placed(number, id, Some(chunk.len()));
            return Ok(());
        }
        while shared.sending.look(&shared.key(id))?.is_some() {
            id = shared.free_id()?;
        }
        let mut parts = Parts::begin(&shared.sending, &shared.key(id), chunk.len())?;
        let mut at = 0;
        while at < chunk.len() {
            let bytes = read(chunk, at, PIECE.min(chunk.len() - at))?;
            parts.write(&bytes)?;
            at += bytes.len() as u64;
        }
        parts.arrive()?;
        parts.complete()?;
        shared.placed(number, id, None);
        Ok(())
    }

    fn is_same_large(&self, id: u32, chunk: &dyn ReadAt) -> io::Result<bool> {
        let client = self.shared.sending.client();
        let mut at = 0;
        while at < chunk.len() {
            let range = at..chunk.len().min(at + PIECE);
            let got = client.read(&ChunkId(id).file_name(), Some(range.clone()), None)?;
            if got.tag.len() != chunk.len() || got.bytes != read(chunk, at, range.end - at)? {
                return Ok(false);
            }
            at = range.end;
        }
        Ok(true)
    }

    /// Makes a frame of the chunks that were staged.
    ///
    /// # Errors
    /// What the store answers; something has the name by now that is not what was to be replaced.
    pub fn commit(&self, image: &FrameImage) -> Result<()> {
        let shared = &self.shared;
        shared.sending.finish().map_err(self.failed("upload a chunk"))?;
        let (ids, bytes) = {
            let chunks = shared.chunks.lock();
            (chunks.ids.clone(), chunks.bytes)
        };
        let id = |key: ChunkKey| {
            let id = usize::try_from(key.number()).ok().and_then(|number| ids.get(number).copied().flatten());
            ChunkId(id.unwrap_or(u32::MAX))
        };
        let wrong = |source| StoreError::Format { path: self.path.join(INDEX_NAME), source };
        let entries: Vec<_> = image.entries.iter().map(|entry| entry.map(id)).collect();
        let mut image = match successor(None, image.clone(), Layout::Sparse).map_err(wrong)? {
            Some(image) => image,
            None => return Ok(()),
        };
        image.header.set_cbytes(bytes);
        let mut file = IndexFile { header: image.header, trailer: image.trailer, entries: Arc::new(entries) };
        let bytes = file.make_file().map_err(wrong)?;
        self.put_index(bytes.clone())?;
        let named: HashSet<u32> = file.entries.iter().filter_map(|entry| entry.stored()).map(|id| id.0).collect();
        self.remove_others(&named, bytes);
        Ok(())
    }

    fn put_index(&self, bytes: Vec<u8>) -> Result<()> {
        let stale = |reason: &str| Err(StoreError::Unsupported { path: self.path.clone(), reason: reason.to_owned() });
        let (shared, replaced) = (Arc::clone(&self.shared), self.before.as_ref().map(|before| before.version.clone()));
        let is_new = replaced.is_none();
        let work = async move {
            let (sending, payload) = (&shared.sending, PutPayload::from(bytes));
            let key = sending.client().key(INDEX_NAME);
            if is_new && shared.has_no_conditions() && sending.head(&key).await?.is_some() {
                return Ok(Put::Other);
            }
            match sending.put_if(INDEX_NAME, payload.clone(), replaced).await? {
                // An index without chunks: none has told before.
                Put::NoConditions if is_new && sending.head(&key).await?.is_some() => Ok(Put::Other),
                Put::NoConditions if is_new => sending.overwrite(&key, payload).await.map(|()| Put::Done),
                put => Ok(put),
            }
        };
        match self.shared.sending.client().wait(work).map_err(self.failed("upload the index"))? {
            Put::Done => Ok(()),
            Put::NoConditions => stale(NO_CONDITIONS),
            Put::Other if is_new => stale("exists by now: another upload was faster, and its frame is left as it is"),
            Put::Other => stale("was changed by another meanwhile, and is left as it is; try again to replace that"),
        }
    }

    /// Removes the chunks of the frame before, and what interrupted uploads have left. Ids above those of this frame are where the next
    /// upload looks for chunks that are there already, and one may have begun since the index was put: such chunks are left for a day.
    fn remove_others(&self, named: &HashSet<u32>, index: Vec<u8>) {
        if self.shared.has_no_conditions() {
            return;
        }
        let largest = named.iter().copied().max();
        let orphans = self.shared.orphans.keys().filter(|id| !named.contains(id));
        let (mut gone, above): (Vec<u32>, Vec<u32>) = orphans.partition(|id| largest.is_some_and(|largest| **id < largest));
        gone.extend(self.before.iter().flat_map(|before| &before.ids).filter(|id| !named.contains(id)));
        if gone.is_empty() && above.is_empty() {
            return;
        }
        let (shared, path) = (Arc::clone(&self.shared), self.path.clone());
        let removed = self.shared.sending.client().wait(async move {
            let sending = &shared.sending;
            if !above.is_empty()
                && sending.has(INDEX_NAME, &PutPayload::from(index)).await?
                && let Some(now) = sending.head(&sending.client().key(INDEX_NAME)).await?
            {
                let now = Tag::of(&now).modified();
                let is_old = |id: &u32| shared.orphans.get(id).is_some_and(|orphan| orphan.is_old(now));
                gone.extend(above.into_iter().filter(is_old));
            }
            let keys: Vec<_> = gone.iter().map(|id| Ok(shared.key(*id))).collect();
            let keys = futures_util::stream::iter(keys).boxed();
            let mut answers = shared.sending.client().store().delete_stream(keys);
            let mut left = None;
            while let Some(answer) = answers.next().await {
                if let Err(error) = answer
                    && !matches!(error, Error::NotFound { .. })
                {
                    left.get_or_insert(in_words(&error));
                }
            }
            match left {
                Some(why) => Err(io::Error::other(why)),
                None => Ok(()),
            }
        });
        if let Err(error) = removed {
            warn!("{}: cannot remove chunks that no longer belong to the frame: {error}", path.display());
        }
    }

    fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> StoreError {
        move |source| StoreError::Io { path: self.path.clone(), action, source }
    }
}

impl Shared {
    fn key(&self, id: u32) -> Key {
        self.sending.client().key(&ChunkId(id).file_name())
    }

    /// Whether others may be removing it. They have put the index that this upload is to replace, and saw the same times; if another index is
    /// put meanwhile, this upload makes no frame.
    fn is_doomed(&self, orphan: &Orphan) -> bool {
        self.doomed_by.is_some_and(|made| orphan.is_old(made))
    }

    fn has_no_conditions(&self) -> bool {
        self.refuses.load(Relaxed) || self.ignores.load(Relaxed)
    }

    /// The id that a chunk gets if it is free.
    fn id(&self, number: usize) -> io::Result<u32> {
        checked(self.start.saturating_add(number as u64))
    }

    fn free_id(&self) -> io::Result<u32> {
        let mut chunks = self.chunks.lock();
        let id = checked(chunks.free)?;
        chunks.free += 1;
        Ok(id)
    }

    /// Takes free ids from elsewhere: somebody else takes them here.
    fn keep_away(&self) {
        let mut chunks = self.chunks.lock();
        if !std::mem::replace(&mut chunks.has_company, true) {
            chunks.free += RandomState::new().hash_one(chunks.free) % GAP;
        }
    }

    fn placed(&self, number: usize, id: u32, resumed: Option<u64>) {
        let mut chunks = self.chunks.lock();
        if let Some(place) = chunks.ids.get_mut(number) {
            *place = Some(id);
        }
        if let Some(bytes) = resumed {
            chunks.resumed.chunks += 1;
            chunks.resumed.bytes = chunks.resumed.bytes.saturating_add(bytes);
        }
    }

    /// Finds an id for a chunk, and has it there.
    async fn place(&self, number: usize, payload: PutPayload) -> io::Result<u32> {
        let mut id = self.id(number)?;
        if let Some(orphan) = self.orphans.get(&id) {
            let may_be_same = !self.is_doomed(orphan) && orphan.len == payload.content_length() as u64;
            if may_be_same && self.is_same(id, orphan.md5, &payload).await? {
                self.placed(number, id, Some(orphan.len));
                return Ok(id);
            }
            id = self.free_id()?;
        }
        for _ in 0..ATTEMPTS {
            let key = self.key(id);
            let created = match self.refuses.load(Relaxed) {
                true => Created::NoConditions,
                false => self.sending.create(&key, payload.clone()).await?,
            };
            let is_there = match created {
                Created::Made => true,
                Created::Exists => match self.sending.head(&key).await? {
                    Some(meta) => meta.size == payload.content_length() as u64 && self.is_same(id, md5(&meta), &payload).await?,
                    None => false,
                },
                Created::NoConditions => {
                    self.refuses.store(true, Relaxed);
                    self.sending.overwrite(&key, payload.clone()).await?;
                    true
                }
            };
            if is_there {
                self.placed(number, id, None);
                return Ok(id);
            }
            self.keep_away();
            id = self.free_id()?;
        }
        Err(io::Error::other("others write chunks there at the same time"))
    }

    /// The same for the first chunk, and finds out whether the store heeds conditions.
    async fn place_first(&self, payload: PutPayload, replaces: bool) -> io::Result<()> {
        let key = self.key(self.place(0, payload.clone()).await?);
        if self.refuses.load(Relaxed) {
            return Ok(());
        }
        // The same bytes once more: a store that ignores the condition changes nothing by it. Others may have removed them in between.
        let mut heeds = false;
        for _ in 0..2 {
            heeds = heeds || self.sending.create(&key, payload.clone()).await? == Created::Exists;
        }
        if heeds && replaces {
            let other = UpdateVersion { e_tag: Some("\"00000000000000000000000000000000\"".into()), version: Some("1".into()) };
            let options = PutOptions { mode: PutMode::Update(other), ..PutOptions::default() };
            heeds = self.sending.client().store().put_opts(&key, payload, options).await.is_err();
        }
        if !heeds {
            let place = self.sending.client().base();
            info!("{place}: the store ignores conditions: two uploads at the same time would not notice each other");
            self.ignores.store(true, Relaxed);
        }
        Ok(())
    }

    /// Whether an object of that length is these bytes.
    async fn is_same(&self, id: u32, tag: Option<[u8; 16]>, payload: &PutPayload) -> io::Result<bool> {
        if let Some(tag) = tag {
            let mut hash = Md5::new();
            payload.iter().for_each(|bytes| hash.update(bytes));
            if <[u8; 16]>::from(hash.finalize()) == tag {
                return Ok(true);
            }
        }
        // What looks like a checksum may be none: of an object that the store has encrypted.
        self.sending.has(&ChunkId(id).file_name(), payload).await
    }
}

fn checked(id: u64) -> io::Result<u32> {
    u32::try_from(id)
        .ok()
        .filter(|id| u64::from(*id) <= MOST_ID)
        .ok_or_else(|| io::Error::other(format!("a chunk would get the id {id}; expected at most {MOST_ID}")))
}

/// The checksum that an entity tag may be: 32 hexadecimal digits in quotes.
fn md5(meta: &ObjectMeta) -> Option<[u8; 16]> {
    let digits = meta.e_tag.as_deref()?.trim_matches('"');
    if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
}

/// The index that is there, and what a condition to replace it needs.
fn index(client: &Arc<Client>) -> io::Result<Option<(Vec<u8>, UpdateVersion, SystemTime)>> {
    let asked = Arc::clone(client);
    client.wait(async move {
        let got = match asked.store().get_opts(&asked.key(INDEX_NAME), GetOptions::default()).await {
            Ok(got) => got,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(asked.complain(&error)),
        };
        let version = UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
        let made = Tag::of(&got.meta).modified();
        Ok(Some((asked.whole(got).await?, version, made)))
    })
}

/// What is under a prefix.
enum Listed {
    /// Chunk objects that no index names.
    Chunks(HashMap<u32, Orphan>),
    /// Something else.
    Foreign(String),
}

/// Lists the chunk objects behind an id. Where a frame is, nothing else counts.
fn list(client: &Arc<Client>, is_frame: bool, largest: Option<u32>) -> io::Result<Listed> {
    let asked = Arc::clone(client);
    client.wait(async move {
        let (store, base) = (asked.store(), asked.key(""));
        let mut all = match largest {
            Some(id) => store.list_with_offset(Some(&base), &asked.key(&ChunkId(id).file_name())),
            None => store.list(Some(&base)),
        };
        let mut chunks = HashMap::new();
        loop {
            let meta = match all.try_next().await {
                Ok(Some(meta)) => meta,
                Ok(None) => return Ok(Listed::Chunks(chunks)),
                Err(error @ Error::PermissionDenied { .. }) => {
                    // Who may write need not be allowed to list. Nothing is overwritten all the same.
                    info!("{base}: cannot be listed, so chunks of an earlier upload are not found: {}", in_words(&error));
                    return Ok(Listed::Chunks(chunks));
                }
                Err(error) => return Err(asked.complain(&error)),
            };
            let name = meta.location.as_ref().get(base.as_ref().len()..).unwrap_or_default().trim_start_matches('/');
            match ChunkId::from_file_name(name.as_bytes()) {
                Some(ChunkId(_)) if chunks.len() >= MOST_ORPHANS => {
                    return Err(io::Error::other(format!("there are more than {MOST_ORPHANS} chunks that no index names")));
                }
                Some(ChunkId(id)) if u64::from(id) <= MOST_ID => {
                    chunks.insert(id, Orphan { len: meta.size, md5: md5(&meta), made: Tag::of(&meta).modified() });
                }
                _ if is_frame || name.is_empty() || name == INDEX_NAME => {}
                _ => return Ok(Listed::Foreign(name.to_owned())),
            }
        }
    })
}
