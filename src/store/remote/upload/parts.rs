//! A large object, which is sent in parts and appears when all of them have arrived: until then, the one before it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use log::debug;
use object_store::PutPayload;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Key;
use parking_lot::Mutex;

use super::super::client::Client;
use super::super::words::in_words;
use super::sending::Sending;

/// How many parts a store takes.
const PARTS: u64 = 10_000;
/// How long a drop waits for the store to remove the parts of an unfinished object.
const ABORT: Duration = Duration::from_secs(5);

/// An object on its way.
pub struct Parts {
    sending: Arc<Sending>,
    store: Arc<dyn MultipartStore>,
    key: Key,
    /// The store's name of the upload.
    id: String,
    /// Bytes of each part but the last.
    part: usize,
    buffer: Vec<u8>,
    /// How many parts were sent.
    sent: usize,
    /// The store's names of the parts that have arrived, by number.
    arrived: Arc<Mutex<HashMap<usize, PartId>>>,
    is_done: bool,
}

/// Bytes of each part of an object of `len` bytes: at least `least`.
fn part_of(len: u64, least: u64) -> io::Result<usize> {
    let part = len.div_ceil(PARTS).next_multiple_of((least / 8).max(1)).max(least);
    let part = u32::try_from(part).ok().and_then(|part| usize::try_from(part).ok());
    part.ok_or_else(|| io::Error::other(format!("{len} bytes; expected no more than a store takes in {PARTS} parts")))
}

impl Parts {
    /// Begins an object of `len` bytes.
    ///
    /// # Errors
    /// What the store answers; an object that is larger than any store takes.
    pub fn begin(sending: &Arc<Sending>, key: &Key, len: u64) -> io::Result<Self> {
        let part = part_of(len, sending.client().part_len())?;
        let unsupported = || io::Error::other("this kind of server takes no objects in parts");
        let store = sending.client().parts().cloned().ok_or_else(unsupported)?;
        Ok(Parts {
            id: create(sending, &store, key)?,
            sending: Arc::clone(sending),
            store,
            key: key.clone(),
            part,
            buffer: Vec::new(),
            sent: 0,
            arrived: Arc::default(),
            is_done: false,
        })
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// As [`Sending::start`].
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some((now, rest)) = bytes.split_at_checked((self.part - self.buffer.len()).min(bytes.len())) {
            if self.buffer.capacity() == 0 {
                self.buffer.try_reserve_exact(self.part).map_err(io::Error::other)?;
            }
            self.buffer.extend_from_slice(now);
            if self.buffer.len() == self.part {
                self.send()?;
            }
            bytes = rest;
            if bytes.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        let (number, len) = (self.sent, self.buffer.len() as u64);
        self.sent += 1;
        let payload = PutPayload::from(std::mem::take(&mut self.buffer));
        let (store, key, id) = (Arc::clone(&self.store), self.key.clone(), self.id.clone());
        let (client, arrived) = (Arc::clone(self.sending.client()), Arc::clone(&self.arrived));
        self.sending.start(len, async move {
            let part = store.put_part(&key, &id, number, payload).await.map_err(|error| client.complain(&error))?;
            arrived.lock().insert(number, part);
            Ok(())
        })
    }

    /// Waits until all parts have arrived: from then on the object can be completed.
    ///
    /// # Errors
    /// As [`Sending::start`].
    pub fn arrive(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.send()?;
        }
        self.sending.finish()
    }

    /// Makes the object of its parts.
    ///
    /// # Errors
    /// What the store answers.
    pub fn complete(&mut self) -> io::Result<()> {
        let mut arrived = std::mem::take(&mut *self.arrived.lock());
        let parts = (0..self.sent).map(|number| arrived.remove(&number)).collect::<Option<Vec<_>>>();
        let parts = parts.ok_or_else(|| io::Error::other("not all parts have arrived"))?;
        let (store, key, id) = (Arc::clone(&self.store), self.key.clone(), self.id.clone());
        let client = Arc::clone(self.sending.client());
        let work =
            async move { store.complete_multipart(&key, &id, parts).await.map(drop).map_err(|error| client.complain(&error)) };
        self.sending.client().wait(work)?;
        self.is_done = true;
        Ok(())
    }
}

fn create(sending: &Arc<Sending>, store: &Arc<dyn MultipartStore>, key: &Key) -> io::Result<String> {
    let (client, store, key) = (Arc::clone(sending.client()), Arc::clone(store), key.clone());
    let work = async move { store.create_multipart(&key).await.map_err(|error| client.complain(&error)) };
    Client::wait(sending.client(), work)
}

/// Removes the parts of an unfinished object, also while this process is ending. Parts that the store does not remove are left to its rules.
impl Drop for Parts {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let (done, is_done) = sync_channel(1);
        let (store, key, id) = (Arc::clone(&self.store), self.key.clone(), std::mem::take(&mut self.id));
        self.sending.client().start(async move {
            if let Err(error) = store.abort_multipart(&key, &id).await {
                debug!("parts of an object are left: {}", in_words(&error));
            }
            let _ = done.send(());
        });
        let _ = is_done.recv_timeout(ABORT);
    }
}
