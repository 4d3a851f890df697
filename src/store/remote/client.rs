//! Requests to an object store, with callers that wait for the response and callers that do not.
//!
//! Everything asynchronous ends here: a runtime of its own thread carries the requests, at most so many at a time. Retries, signatures and
//! connections are the crate's. An answer that is not what was asked for is an error: other bytes of an object than those of the state
//! that was asked for are never handed out.

use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use futures_util::TryStreamExt;
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;
use object_store::path::Path as Key;
use object_store::{Attribute, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::connector::{ServerTime, WeakTag};
use super::pace::{LEAST_RATE, time_left};
use super::words::{errno, in_words, is_not_in_object};
use crate::format::plain::plain;
use crate::store::interrupts;

/// What the threads are called that carry requests. A panic there is an error to whoever waits for the request.
pub const REQUESTS: &str = "b2fuse-requests";
/// The most bytes that are taken into memory by one request.
pub const MOST: u64 = 1 << 30;
/// Bytes of a part of a large object, at least: more than any store asks for.
pub const PART: u64 = 8 << 20;
/// Bytes that are allocated upon a server's word.
const TRUSTED: u64 = 64 << 20;
/// Room for bodies that are coming, in steps of so many bytes: 64 MiB. A larger one comes alone.
const STEP: u64 = 1024;
const ROOM: u32 = 64 << 10;
/// How often an object is asked for whose body ends too early each time.
const ATTEMPTS: usize = 4;

/// The kind of an error that says that an object has no such range: an empty one has none.
pub const NOT_IN_OBJECT: io::ErrorKind = io::ErrorKind::UnexpectedEof;

/// How long a store is waited for that has been silent for all of a request's time. The request goes on all the same, so that an answer
/// that comes later is heard.
const AWAY: Duration = Duration::from_secs(1);

/// How long a caller waits for a silent store until the user is told.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// What tells one state of an object from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    /// As the store gave it, with quotes and the mark of a weak one.
    etag: Option<String>,
    /// Of the last change; the beginning of time where the store does not say.
    modified: SystemTime,
    /// Length of the object in bytes.
    len: u64,
}

impl Tag {
    /// Of an answer, which may have a weak entity tag beside what the crate takes of it.
    fn of_answer(got: &GetResult) -> Self {
        let tag = Tag::of(&got.meta);
        let weak = got.extensions.get().map(|WeakTag(weak)| weak.clone());
        Tag { etag: tag.etag.or(weak), ..tag }
    }

    pub(super) fn of(meta: &ObjectMeta) -> Self {
        let millis = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
        let etag = meta.e_tag.clone().filter(|etag| !etag.is_empty());
        Tag { etag, modified: SystemTime::UNIX_EPOCH + Duration::from_millis(millis), len: meta.size }
    }

    /// The length of the object in bytes.
    #[expect(clippy::len_without_is_empty, reason = "of an object, not of this")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// When the object was changed; the beginning of time if nobody says.
    pub fn modified(&self) -> SystemTime {
        self.modified
    }

    /// Whether it tells states apart: a length alone does not.
    pub fn tells(&self) -> bool {
        self.etag.is_some() || self.modified > SystemTime::UNIX_EPOCH
    }

    /// The entity tag, if the store compares it byte by byte.
    fn strong(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| !etag.starts_with("W/"))
    }

    /// Whether the state that a listing tells of may be this one, of an answer: both may write the same tag, and the same time, in another way.
    pub fn is_like(&self, listed: &Tag) -> bool {
        let bare = |tag: &Tag| tag.etag.as_deref().map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned());
        let seconds = |tag: &Tag| tag.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let is_same = match (bare(self), bare(listed)) {
            (Some(one), Some(other)) => one == other,
            _ => seconds(self) == seconds(listed),
        };
        self.len == listed.len && is_same
    }

    /// Bytes of memory that it takes.
    pub(super) fn weight(&self) -> usize {
        size_of::<Self>() + self.etag.as_ref().map_or(0, String::len)
    }

    /// One line that is another for every other state, as far as can be told.
    pub fn line(&self) -> String {
        let modified = self.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        format!("{} {} {}", self.len, modified.as_millis(), self.etag.as_deref().unwrap_or("-"))
    }
}

/// A part of an object.
#[derive(Debug)]
pub struct Got {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The state of the object that they are of.
    pub tag: Tag,
    /// When the store answered, by its own clock, if it says so.
    pub answered: Option<SystemTime>,
}

/// An object that a listing tells of.
#[derive(Debug)]
pub struct Listed {
    /// Its key, from the prefix on that was listed.
    pub name: String,
    /// Its state.
    pub tag: Tag,
}

/// Why an object was not read.
enum Failed {
    /// The connection was lost after the answer had begun.
    Body(io::Error),
    Whole(io::Error),
}

impl Failed {
    fn into_inner(self) -> io::Error {
        match self {
            Failed::Body(error) | Failed::Whole(error) => error,
        }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed::Whole(error)
    }
}

/// What was asked of the store so far.
#[derive(Debug)]
pub struct Asked {
    began: Instant,
    /// Milliseconds from then on to the last sign of life.
    heard: AtomicU64,
    /// A request has waited for all its time, and nothing came since: until something does, others are not waited for as long.
    is_away: AtomicBool,
    /// The user was told that the store is waited for. Once is enough.
    is_told: AtomicBool,
    /// Requests that read an object or a part of one.
    pub gets: AtomicU64,
    /// Bytes that came of them.
    pub bytes: AtomicU64,
    /// Requests for attributes alone.
    pub heads: AtomicU64,
    /// Listings.
    pub lists: AtomicU64,
}

/// A place in an object store, and the means to ask it.
pub struct Client {
    store: Arc<dyn ObjectStore>,
    /// The same, where it lists names page by page.
    pub(super) pages: Option<Arc<dyn PaginatedListStore>>,
    /// The same, where it takes objects in parts.
    parts: Option<Arc<dyn MultipartStore>>,
    /// Bytes of such a part, at least.
    part: u64,
    /// The key of the frame: its file, or the prefix of its files.
    base: Key,
    /// Whether there are keys below it: not on a web server.
    has_prefixes: bool,
    /// Requests at one time.
    turns: Arc<Semaphore>,
    /// Bytes of memory for bodies that are coming, in steps of [`STEP`].
    room: Arc<Semaphore>,
    connections: usize,
    /// How long the store may be silent, with all that is tried again.
    timeout: Duration,
    asked: Arc<Asked>,
    carrier: Arc<Carrier>,
    /// Tells the user that a caller waits for a silent store.
    tell: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// What requests run in. Its last owner may be one of them.
struct Carrier(Option<Runtime>);

impl Client {
    /// Of a frame at a key of a store, with at most so many requests at a time.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn new(store: Arc<dyn ObjectStore>, base: Key, connections: usize, timeout: Duration) -> io::Result<Arc<Self>> {
        Self::with(store, None, base, true, connections, timeout)
    }

    /// The same where the store lists names page by page, for [`Client::page`].
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn listing(
        store: Arc<dyn ObjectStore>,
        pages: Arc<dyn PaginatedListStore>,
        base: Key,
        connections: usize,
        timeout: Duration,
    ) -> io::Result<Arc<Self>> {
        Self::with(store, Some(pages), base, true, connections, timeout)
    }

    /// Of a frame on a web server, whose one file the store is.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn of_file(store: Arc<dyn ObjectStore>, connections: usize, timeout: Duration) -> io::Result<Arc<Self>> {
        Self::with(store, None, Key::default(), false, connections, timeout)
    }

    fn with(
        store: Arc<dyn ObjectStore>,
        pages: Option<Arc<dyn PaginatedListStore>>,
        base: Key,
        has_prefixes: bool,
        connections: usize,
        timeout: Duration,
    ) -> io::Result<Arc<Self>> {
        let runtime =
            Builder::new_multi_thread().worker_threads(2).max_blocking_threads(8).thread_name(REQUESTS).enable_all().build()?;
        let turns = Arc::new(Semaphore::new(connections.max(1)));
        Ok(Arc::new(Client {
            store,
            pages,
            parts: None,
            part: PART,
            base,
            has_prefixes,
            turns,
            room: Arc::new(Semaphore::new(ROOM as usize)),
            connections: connections.max(1),
            timeout,
            asked: Arc::new(Asked::new()),
            carrier: Arc::new(Carrier(Some(runtime))),
            tell: None,
        }))
    }

    /// Of another frame in the same store, which takes turns with this one: all have as many requests at one time together.
    pub fn at(&self, base: Key) -> Arc<Self> {
        Arc::new(Client { base, ..self.same() })
    }

    /// The same where the store takes objects in parts of at least so many bytes, for uploads.
    #[must_use]
    pub fn with_parts(&self, parts: Arc<dyn MultipartStore>, part: u64) -> Arc<Self> {
        Arc::new(Client { parts: Some(parts), part: part.max(1), ..self.same() })
    }

    /// The same, which calls `tell` once when a caller has waited for `TOLD_AFTER` and the store was silent.
    #[must_use]
    pub fn telling(&self, tell: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Client { tell: Some(Arc::new(tell)), ..self.same() })
    }

    fn same(&self) -> Self {
        Client {
            store: Arc::clone(&self.store),
            pages: self.pages.clone(),
            parts: self.parts.clone(),
            part: self.part,
            base: self.base.clone(),
            has_prefixes: self.has_prefixes,
            turns: Arc::clone(&self.turns),
            room: Arc::clone(&self.room),
            connections: self.connections,
            timeout: self.timeout,
            asked: Arc::clone(&self.asked),
            carrier: Arc::clone(&self.carrier),
            tell: self.tell.clone(),
        }
    }

    /// Whether there may be a prefix of that name, and not only an object.
    pub fn has_prefixes(&self) -> bool {
        self.has_prefixes
    }

    /// A turn to ask, given back when it is dropped. It is waited for as long as others get answers.
    pub(super) async fn turn(&self) -> io::Result<SemaphorePermit<'_>> {
        let mut turn = pin!(self.turns.acquire());
        loop {
            match tokio::time::timeout(self.timeout, turn.as_mut()).await {
                Ok(turn) => return turn.map_err(io::Error::other),
                Err(_) if self.asked.silence() < self.timeout => {}
                Err(_) => return Err(self.no_answer()),
            }
        }
    }

    /// How long the store may be silent.
    pub(super) fn patience(&self) -> Duration {
        self.timeout
    }

    /// The same while the store is away; `None` if it is not.
    pub(super) fn short_patience(&self) -> Option<Duration> {
        self.asked.is_away.load(Relaxed).then(|| self.timeout.min(AWAY))
    }

    /// How many requests there are at one time at most.
    pub fn connections(&self) -> usize {
        self.connections
    }

    /// What was asked so far.
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// The key of the frame.
    pub fn base(&self) -> &Key {
        &self.base
    }

    /// The store itself, for what only one caller does.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// The same, where it takes objects in parts.
    pub fn parts(&self) -> Option<&Arc<dyn MultipartStore>> {
        self.parts.as_ref()
    }

    /// Bytes of such a part, at least.
    pub fn part_len(&self) -> u64 {
        self.part
    }

    /// The key of a file of the frame; the frame itself is called with an empty name.
    pub fn key(&self, name: &str) -> Key {
        if name.is_empty() { self.base.clone() } else { self.base.clone().join(name) }
    }

    /// Waits for what is asked of the store, no longer than the time that is set for it.
    ///
    /// # Errors
    /// What the store answers; that it is silent; EINTR if nobody wants the answer any more.
    pub fn wait<T: Send + 'static>(&self, work: impl Future<Output = io::Result<T>> + Send + 'static) -> io::Result<T> {
        let (done, answer) = sync_channel(1);
        self.start(async move {
            let _ = done.send(work.await);
        });
        let began = Instant::now();
        let is_over = |patience: Duration| began.elapsed() >= patience;
        let is_away = self.short_patience().is_some();
        loop {
            match answer.recv_timeout(interrupts::PAUSE) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) if is_away && self.short_patience().is_some_and(is_over) => {
                    return Err(self.no_answer());
                }
                Err(RecvTimeoutError::Timeout) if interrupts::is_unwanted() => {
                    return Err(io::Error::from_raw_os_error(libc::EINTR));
                }
                Err(RecvTimeoutError::Timeout) if is_over(TOLD_AFTER) && self.asked.silence() >= TOLD_AFTER => self.tell(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the request was dropped")),
            }
        }
    }

    fn tell(&self) {
        if let Some(tell) = &self.tell
            && !self.asked.is_told.swap(true, Relaxed)
        {
            tell();
        }
    }

    /// Has something done that nobody waits for.
    pub fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.carrier.0 {
            drop(runtime.spawn(work));
        }
    }

    /// Reads a part of an object, or all of it, as `get` does.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn read(self: &Arc<Self>, name: &str, range: Option<Range<u64>>, state: Option<&Tag>) -> io::Result<Got> {
        let (client, name, state) = (Arc::clone(self), name.to_owned(), state.cloned());
        self.wait(async move { client.get(&name, range, state.as_ref()).await })
    }

    /// Asks for a part of an object, or for all of it. What lies behind the object's end is left out.
    ///
    /// # Errors
    /// What the store answers; ESTALE if the object is in another state than `state`.
    pub async fn get(&self, name: &str, range: Option<Range<u64>>, state: Option<&Tag>) -> io::Result<Got> {
        for _ in 1..ATTEMPTS {
            match self.get_once(name, range.clone(), state).await {
                // The time is for all attempts together.
                Err(Failed::Body(error)) if error.kind() != io::ErrorKind::TimedOut => {
                    log::debug!("{}: asked for once more: {error}", self.base)
                }
                Err(Failed::Body(error)) => return Err(error),
                Err(Failed::Whole(error)) => return Err(error),
                Ok(got) => return Ok(got),
            }
        }
        self.get_once(name, range, state).await.map_err(Failed::into_inner)
    }

    async fn get_once(&self, name: &str, range: Option<Range<u64>>, state: Option<&Tag>) -> Result<Got, Failed> {
        let mut options = GetOptions { range: range.clone().map(GetRange::Bounded), ..GetOptions::default() };
        options.if_match = state.and_then(Tag::strong).map(str::to_owned);
        let key = self.key(name);
        if key.as_ref().is_empty() && self.has_prefixes {
            // A bucket is no object: it would be listed.
            return Err(io::Error::from_raw_os_error(libc::ENOENT).into());
        }
        let _turn = self.turn().await?;
        self.asked.gets.fetch_add(1, Relaxed);
        let asked = async { self.store.get_opts(&key, options).await.map_err(|error| self.complain(&error)) };
        let got = self.in_time(asked).await?;
        let tag = Tag::of_answer(&got);
        let answered = got.extensions.get().map(|ServerTime(time)| *time);
        if state.is_some_and(|state| *state != tag) {
            return Err(io::Error::from_raw_os_error(libc::ESTALE).into());
        }
        // A store keeps with an object how others should read it. Of a web server it says what was done to the bytes on their way.
        let encoding = got.attributes.get(&Attribute::ContentEncoding).filter(|_| !self.has_prefixes);
        if let Some(encoding) = encoding.filter(|encoding| !encoding.as_ref().eq_ignore_ascii_case("identity")) {
            let encoding = plain(encoding.as_ref()).to_string();
            return Err(io::Error::other(format!(
                "the server encodes what it sends ({encoding}); expected the bytes as they are"
            ))
            .into());
        }
        let wanted = range.map_or(tag.len, |range| range.end.min(tag.len).saturating_sub(range.start));
        if wanted > MOST {
            return Err(io::Error::other(format!("the object has {wanted} bytes; expected at most {MOST}")).into());
        }
        // Nobody knew before how much it would be.
        let room = u32::try_from(wanted / STEP + 1).unwrap_or(ROOM).min(ROOM);
        let _room = self.room.acquire_many(room).await.map_err(io::Error::other)?;
        let bytes = self.body(got, wanted).await?;
        self.asked.bytes.fetch_add(wanted, Relaxed);
        Ok(Got { bytes, tag, answered })
    }

    /// The body of an answer, which has so many bytes.
    async fn body(&self, got: GetResult, wanted: u64) -> Result<Vec<u8>, Failed> {
        let mut bytes = Vec::with_capacity(usize::try_from(wanted.min(TRUSTED)).unwrap_or(0));
        let is_strong = Tag::of_answer(&got).strong().is_some();
        let mut parts = got.into_stream();
        let mut count = 0;
        let began = Instant::now();
        loop {
            let next = async { parts.try_next().await.map_err(|error| self.complain(&error)) };
            let left = time_left(self.timeout, began, bytes.len());
            let part = self.within(left, next).await.map_err(|error| match error.kind() {
                io::ErrorKind::TimedOut if left < self.timeout => too_slow(bytes.len(), began.elapsed()),
                _ => error,
            });
            // The crate goes on with a body itself where the ETag says that it is the same.
            let part = part.map_err(if is_strong { Failed::Whole } else { Failed::Body })?;
            let Some(part) = part else { break };
            count += part.len() as u64;
            if count > wanted {
                break;
            }
            bytes.extend_from_slice(&part);
        }
        if count != wanted {
            let more = if count > wanted { " or more" } else { "" };
            return Err(io::Error::other(format!("{count} bytes{more} came; expected {wanted}")).into());
        }
        Ok(bytes)
    }

    /// The whole body of an answer to a request for all of an object.
    ///
    /// # Errors
    /// What the store answers; more than [`MOST`] bytes.
    pub(super) async fn whole(&self, got: GetResult) -> io::Result<Vec<u8>> {
        let len = got.meta.size;
        if len > MOST {
            return Err(io::Error::other(format!("the object has {len} bytes; expected at most {MOST}")));
        }
        self.body(got, len).await.map_err(Failed::into_inner)
    }

    /// Asks for an object's attributes.
    ///
    /// # Errors
    /// What the store answers.
    pub fn look(self: &Arc<Self>, name: &str) -> io::Result<Tag> {
        let (client, name) = (Arc::clone(self), name.to_owned());
        self.wait(async move {
            let _turn = client.turn().await?;
            client.asked.heads.fetch_add(1, Relaxed);
            let key = client.key(&name);
            let options = GetOptions { head: true, ..GetOptions::default() };
            let asked = async { client.store.get_opts(&key, options).await.map_err(|error| client.complain(&error)) };
            Ok(Tag::of_answer(&client.in_time(asked).await?))
        })
    }

    /// Lists the files of the frame in parts, all at the same time: those behind each of these names, up to the next of them. What `keep`
    /// makes of each is kept, of `most` names altogether.
    ///
    /// # Errors
    /// What the store answers; more names than that.
    pub fn list<T: Send + 'static>(
        self: &Arc<Self>,
        parts: Vec<Range<Option<String>>>,
        most: usize,
        keep: impl Fn(Listed) -> Option<T> + Send + Sync + 'static,
    ) -> io::Result<Vec<T>> {
        let client = Arc::clone(self);
        self.wait(async move {
            let left = AtomicUsize::new(most);
            let take = |listed: Listed| {
                let is_left = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
                if is_left { Ok(keep(listed)) } else { Err(io::Error::other(format!("there are more than {most} names"))) }
            };
            let work = parts.into_iter().map(|part| client.list_part(part, &take));
            let all = futures_util::future::try_join_all(work).await?;
            Ok(all.into_iter().flatten().collect())
        })
    }

    async fn list_part<T>(
        &self,
        part: Range<Option<String>>,
        take: impl Fn(Listed) -> io::Result<Option<T>>,
    ) -> io::Result<Vec<T>> {
        let _turn = self.turn().await?;
        self.asked.lists.fetch_add(1, Relaxed);
        let mut names = match &part.start {
            Some(name) => self.store.list_with_offset(Some(&self.base), &self.key(name)),
            None => self.store.list(Some(&self.base)),
        };
        let mut all = Vec::new();
        let begin = self.base.as_ref().len();
        while let Some(meta) = self.in_time(async { names.try_next().await.map_err(|error| self.complain(&error)) }).await? {
            let name = meta.location.as_ref().get(begin..).unwrap_or_default().trim_start_matches('/').to_owned();
            if part.end.as_ref().is_some_and(|end| name > *end) {
                break;
            }
            all.extend(take(Listed { name, tag: Tag::of(&meta) })?);
        }
        Ok(all)
    }

    /// Waits for one sign of life, no longer than the time that is set.
    pub(super) async fn in_time<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        self.within(self.timeout, work).await
    }

    /// The same, no longer than `patience`.
    async fn within<T>(&self, patience: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let began = self.asked.now();
        let waited = Instant::now();
        let done = match tokio::time::timeout(patience, work).await {
            Ok(done) => done,
            Err(_) => Err(self.no_answer()),
        };
        match &done {
            Err(error) if !is_an_answer(error) => {
                // Others may have had answers meanwhile.
                if waited.elapsed() >= self.timeout / 2 && self.asked.heard.load(Relaxed) <= began {
                    self.asked.is_away.store(true, Relaxed);
                }
            }
            _ => self.asked.hear(),
        }
        done
    }

    /// Without a number of the system's: to clients it is EIO.
    fn no_answer(&self) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, format!("the server was silent for {} s", self.timeout.as_secs_f32()))
    }

    /// What the store has answered, without secrets.
    pub(super) fn complain(&self, error: &object_store::Error) -> io::Error {
        let number = errno(error);
        match number {
            libc::ENOENT | libc::ESTALE => io::Error::from_raw_os_error(number),
            _ => {
                let kind = io::Error::from_raw_os_error(number).kind();
                log::debug!("{}: {}", self.base, in_words(error));
                io::Error::new(if is_not_in_object(error) { NOT_IN_OBJECT } else { kind }, in_words(error))
            }
        }
    }
}

fn too_slow(count: usize, took: Duration) -> io::Error {
    let words =
        format!("the server sent {count} bytes in {:.1} s; expected at least {LEAST_RATE} per second", took.as_secs_f32());
    io::Error::new(io::ErrorKind::TimedOut, words)
}

/// Whether the store has said something, and not only failed.
pub(super) fn is_an_answer(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE))
        || matches!(error.kind(), io::ErrorKind::PermissionDenied | NOT_IN_OBJECT)
}

impl Asked {
    fn new() -> Self {
        let none = AtomicU64::default;
        Asked {
            began: Instant::now(),
            heard: none(),
            is_away: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            gets: none(),
            bytes: none(),
            heads: none(),
            lists: none(),
        }
    }

    /// Milliseconds since this began.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn hear(&self) {
        self.heard.store(self.now(), Relaxed);
        self.is_away.store(false, Relaxed);
    }

    /// How long nothing has come.
    fn silence(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(self.heard.load(Relaxed)))
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // What it carries holds no client that waits for it.
            runtime.shutdown_background();
        }
    }
}
