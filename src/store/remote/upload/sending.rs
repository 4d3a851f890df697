//! Bytes on their way to the store: many requests at a time, in bounded memory.
//!
//! The bytes under way begin small and grow as long as responses come soon: a slow link does not get more than it can carry before a
//! request is given up.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::path::Path as Key;
use object_store::{Error, GetOptions, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use parking_lot::{Condvar, Mutex};

use super::super::client::Client;
use crate::store::interrupts;

/// Bytes on their way at most, and at first.
const MOST: u64 = 64 << 20;
const FIRST: u64 = 8 << 20;
/// An answer within this time comes soon.
const SOON: Duration = Duration::from_secs(4);
/// How often a conditional request without an answer is sent again, once it is known that it did nothing.
const ATTEMPTS: usize = 4;

/// What became of an object that must be a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It is there.
    Made,
    /// There is one of that name already.
    Exists,
    /// The store takes no such condition.
    NoConditions,
}

/// What became of an object under a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is there.
    Done,
    /// Another one is there by now.
    Other,
    /// The store takes no such condition.
    NoConditions,
}

/// What is on its way.
pub struct Sending {
    client: Arc<Client>,
    traffic: Mutex<Traffic>,
    /// Something has arrived, or failed.
    arrived: Condvar,
}

struct Traffic {
    bytes: u64,
    requests: usize,
    most: u64,
    failed: Option<io::Error>,
}

impl Sending {
    /// Of that client.
    pub fn new(client: &Arc<Client>) -> Arc<Self> {
        let traffic = Traffic { bytes: 0, requests: 0, most: FIRST, failed: None };
        Arc::new(Sending { client: Arc::clone(client), traffic: Mutex::new(traffic), arrived: Condvar::new() })
    }

    /// The client.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Starts a request that carries so many bytes, as soon as there is room for them.
    ///
    /// # Errors
    /// That of an earlier request; EINTR if nobody wants it any more.
    pub fn start(self: &Arc<Self>, len: u64, work: impl Future<Output = io::Result<()>> + Send + 'static) -> io::Result<()> {
        let mut traffic = self.traffic.lock();
        loop {
            self.check(&mut traffic)?;
            let has_room = traffic.bytes.saturating_add(len) <= traffic.most || traffic.requests == 0;
            if has_room && traffic.requests < self.client.connections() {
                break;
            }
            self.arrived.wait_for(&mut traffic, interrupts::PAUSE);
        }
        traffic.bytes = traffic.bytes.saturating_add(len);
        traffic.requests += 1;
        drop(traffic);
        let way = OnItsWay { sending: Arc::clone(self), len, begun: Instant::now(), done: None };
        self.client.start(async move { way.end(work.await) });
        Ok(())
    }

    /// Waits until all has arrived.
    ///
    /// # Errors
    /// As [`Sending::start`].
    pub fn finish(&self) -> io::Result<()> {
        let mut traffic = self.traffic.lock();
        loop {
            self.check(&mut traffic)?;
            if traffic.requests == 0 {
                return Ok(());
            }
            self.arrived.wait_for(&mut traffic, interrupts::PAUSE);
        }
    }

    fn check(&self, traffic: &mut Traffic) -> io::Result<()> {
        if let Some(error) = &traffic.failed {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        if interrupts::is_unwanted() { Err(io::Error::from_raw_os_error(libc::EINTR)) } else { Ok(()) }
    }

    /// Makes an object that is a new one. A request whose answer was lost may have made it: [`Created::Exists`] is said of that one too.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn create(&self, key: &Key, payload: PutPayload) -> io::Result<Created> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let error = match self.client.store().put_opts(key, payload.clone(), options).await {
                Ok(_) => return Ok(Created::Made),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                    Error::NotFound { path: String::new(), source: "it was there, and is gone again".into() }
                }
                Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => return Ok(Created::NoConditions),
                Err(error @ Error::Generic { .. }) => error,
                Err(error) => return Err(self.client.complain(&error)),
            };
            // The crate sends nothing again that may have been done and must not be done twice. What is there tells.
            match self.head(key).await? {
                Some(_) => return Ok(Created::Exists),
                None if attempt < ATTEMPTS => {}
                None => return Err(self.client.complain(&error)),
            }
        }
    }

    /// Makes an object of the frame under a condition: that there is none, or that it is of that version. What is there by now is ours if it
    /// has these bytes: the answer to a request that did its work may have been lost.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn put_if(&self, name: &str, payload: PutPayload, replaced: Option<UpdateVersion>) -> io::Result<Put> {
        let key = self.client.key(name);
        let Some(version) = replaced else {
            return match self.create(&key, payload.clone()).await? {
                Created::Made => Ok(Put::Done),
                Created::Exists if self.has(name, &payload).await? => Ok(Put::Done),
                Created::Exists => Ok(Put::Other),
                Created::NoConditions => Ok(Put::NoConditions),
            };
        };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let options = PutOptions { mode: PutMode::Update(version.clone()), ..PutOptions::default() };
            let error = match self.client.store().put_opts(&key, payload.clone(), options).await {
                Ok(_) => return Ok(Put::Done),
                Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => return Ok(Put::NoConditions),
                Err(error) => error,
            };
            let is_other = matches!(error, Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotFound { .. });
            if !is_other && !matches!(error, Error::Generic { .. }) {
                return Err(self.client.complain(&error));
            }
            match self.has(name, &payload).await? {
                true => return Ok(Put::Done),
                false if is_other => return Ok(Put::Other),
                // It did nothing. The condition holds as before.
                false if attempt < ATTEMPTS => {}
                false => return Err(self.client.complain(&error)),
            }
        }
    }

    /// Whether an object of the frame has these bytes.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn has(&self, name: &str, payload: &PutPayload) -> io::Result<bool> {
        match self.client.get(name, None, None).await {
            Ok(got) => Ok(is_equal(&got.bytes, payload)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What the store says of an object, if there is one.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn head(&self, key: &Key) -> io::Result<Option<ObjectMeta>> {
        match self.client.store().get_opts(key, GetOptions { head: true, ..GetOptions::default() }).await {
            Ok(got) => Ok(Some(got.meta)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.client.complain(&error)),
        }
    }

    /// As [`Sending::head`], for those who wait.
    ///
    /// # Errors
    /// What the store answers.
    pub fn look(self: &Arc<Self>, key: &Key) -> io::Result<Option<ObjectMeta>> {
        let (sending, key) = (Arc::clone(self), key.clone());
        self.client.wait(async move { sending.head(&key).await })
    }

    /// Makes or replaces an object, whatever is there.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn overwrite(&self, key: &Key, payload: PutPayload) -> io::Result<()> {
        self.client.store().put(key, payload).await.map(drop).map_err(|error| self.client.complain(&error))
    }
}

/// A request that carries so many bytes, until it has an answer, or is dropped by a bug.
struct OnItsWay {
    sending: Arc<Sending>,
    len: u64,
    begun: Instant,
    done: Option<io::Result<()>>,
}

impl OnItsWay {
    fn end(mut self, done: io::Result<()>) {
        self.done = Some(done);
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let mut traffic = self.sending.traffic.lock();
        traffic.bytes = traffic.bytes.saturating_sub(self.len);
        traffic.requests -= 1;
        match self.done.take().unwrap_or_else(|| Err(io::Error::other("the request was dropped"))) {
            Err(error) => {
                traffic.failed.get_or_insert(error);
            }
            Ok(()) if self.begun.elapsed() < SOON => traffic.most = traffic.most.saturating_add(self.len).min(MOST),
            Ok(()) => {}
        }
        self.sending.arrived.notify_all();
    }
}

fn is_equal(bytes: &[u8], payload: &PutPayload) -> bool {
    let mut rest = bytes;
    let same = payload.iter().all(|part| match rest.strip_prefix(part.as_ref()) {
        Some(behind) => {
            rest = behind;
            true
        }
        None => false,
    });
    same && rest.is_empty()
}
