//! A large object, which is sent in parts and is there when all of them are: until then, the one before it.
//!
//! With a record, the parts that have arrived outlive the process, if they are left: the next one that has the same bytes to send does not
//! send them again. Its own bytes tell which these are, by length and checksum. The first part is sent again all the same, and alone: a
//! store may have removed what was begun, and says so then.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use log::{debug, info};
use object_store::PutPayload;
use object_store::multipart::MultipartStore;
use object_store::path::Path as Key;
use parking_lot::Mutex;

use super::super::client::Client;
use super::super::words::in_words;
use super::record::{Begun, Found, PARTS, Part, Record};
use super::sending::Sending;
use crate::store::checksum::checksum;

/// How long it is waited for that parts of an object that will not be are removed.
const ABORT: Duration = Duration::from_secs(5);

/// An object on its way.
pub struct Parts {
    sending: Arc<Sending>,
    store: Arc<dyn MultipartStore>,
    key: Key,
    begun: Begun,
    buffer: Vec<u8>,
    /// How many parts were sent.
    sent: usize,
    /// Those that an earlier process has sent.
    known: HashMap<usize, Part>,
    arrived: Arc<Mutex<Arrived>>,
    resumed: u64,
    /// What becomes of the parts if no object is made of them.
    leave: bool,
    is_done: bool,
}

/// What has arrived.
struct Arrived {
    ids: HashMap<usize, String>,
    record: Option<Record>,
}

impl Arrived {
    fn add(&mut self, number: usize, part: Part) {
        if let Some(record) = &mut self.record
            && let Err(error) = record.add(number, &part)
        {
            debug!("a part is not recorded: {}", crate::store::in_words(&error));
        }
        self.ids.insert(number, part.id);
    }
}

/// How long parts of an object of so many bytes are, and at least.
fn part_of(len: u64, least: u64) -> io::Result<u64> {
    let part = len.div_ceil(PARTS).next_multiple_of((least / 8).max(1)).max(least);
    if part > u64::from(u32::MAX) {
        return Err(io::Error::other(format!("{len} bytes; expected no more than a store takes in {PARTS} parts")));
    }
    Ok(part)
}

impl Parts {
    /// Begins an object of so many bytes, or goes on with what the record tells of, if that is the same object.
    ///
    /// # Errors
    /// What the store answers; an object that is larger than any store takes.
    pub fn begin(sending: &Arc<Sending>, key: &Key, len: u64, replace: bool, record: Option<Record>) -> io::Result<Self> {
        let part = part_of(len, sending.client().part_len())?;
        let unsupported = || io::Error::other("this kind of server takes no objects in parts");
        let store = sending.client().parts().cloned().ok_or_else(unsupported)?;
        let mut record = record;
        let (begun, known) = match record.as_mut().and_then(Record::take_found) {
            Some(found) if found.is_good_for(len, part, replace) => (found.begun, found.parts),
            found => {
                if let Some(found) = found {
                    abort(sending, &store, key, found.begun.id);
                }
                let begun = Begun { id: create(sending, &store, key)?, len, part, replace };
                if record.as_mut().is_some_and(|record| record.begin(&begun).is_err()) {
                    record = None;
                }
                (begun, HashMap::new())
            }
        };
        Ok(Parts {
            sending: Arc::clone(sending),
            store,
            key: key.clone(),
            begun,
            buffer: Vec::new(),
            sent: 0,
            known,
            arrived: Arc::new(Mutex::new(Arrived { ids: HashMap::new(), record })),
            resumed: 0,
            leave: false,
            is_done: false,
        })
    }

    /// Removes what an earlier process has left of an object that will not be.
    pub fn forget(sending: &Arc<Sending>, key: &Key, mut record: Record, found: Found) {
        if let Some(store) = sending.client().parts() {
            abort(sending, store, key, found.begun.id);
        }
        record.remove();
    }

    /// Bytes that were not sent again.
    pub fn resumed(&self) -> u64 {
        self.resumed
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// As [`Sending::start`].
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let part = self.begun.part as usize;
        while let Some((now, rest)) = bytes.split_at_checked((part - self.buffer.len()).min(bytes.len())) {
            if self.buffer.capacity() == 0 {
                self.buffer.try_reserve_exact(part).map_err(io::Error::other)?;
            }
            self.buffer.extend_from_slice(now);
            if self.buffer.len() == part {
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
        let (number, len, sum) = (self.sent, self.buffer.len() as u64, checksum(&self.buffer));
        self.sent += 1;
        if number > 0
            && let Some(known) = self.known.get(&number)
            && (known.len, known.sum) == (len, sum)
        {
            self.arrived.lock().ids.insert(number, known.id.clone());
            self.resumed += len;
            self.buffer.clear();
            return self.sending.go_on();
        }
        let payload = PutPayload::from(std::mem::take(&mut self.buffer));
        if number == 0 && !self.known.is_empty() {
            return self.send_first(payload, len, sum);
        }
        self.sending.start(len, self.put(number, payload, len, sum))
    }

    /// Sends a part.
    fn put(
        &self,
        number: usize,
        payload: PutPayload,
        len: u64,
        sum: u64,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (store, key, id) = (Arc::clone(&self.store), self.key.clone(), self.begun.id.clone());
        let (client, arrived) = (Arc::clone(self.sending.client()), Arc::clone(&self.arrived));
        async move {
            let part = store.put_part(&key, &id, number, payload).await.map_err(|error| client.complain(&error))?;
            arrived.lock().add(number, Part { len, sum, id: part.content_id });
            Ok(())
        }
    }

    /// Sends the first part of an object that an earlier process has begun, and begins it anew if the store has it no longer.
    fn send_first(&mut self, payload: PutPayload, len: u64, sum: u64) -> io::Result<()> {
        let client = Arc::clone(self.sending.client());
        let error = match client.wait(self.put(0, payload.clone(), len, sum)) {
            Err(error) if is_gone(&error) => error,
            sent => return sent,
        };
        info!("{}: what was sent of it is no longer in the store, and is sent again: {error}", self.key);
        self.begun.id = create(&self.sending, &self.store, &self.key)?;
        self.known.clear();
        {
            let mut arrived = self.arrived.lock();
            let Arrived { record, .. } = &mut *arrived;
            if record.as_mut().is_some_and(|record| record.begin(&self.begun).is_err()) {
                *record = None;
            }
        }
        client.wait(self.put(0, payload, len, sum))
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
        let parts = {
            let mut arrived = self.arrived.lock();
            if let Some(record) = &mut arrived.record
                && record.end().is_err()
            {
                // It would be tried again for ever.
                record.remove();
                arrived.record = None;
            }
            let id = |number| arrived.ids.get(&number).map(|id| object_store::multipart::PartId { content_id: id.clone() });
            (0..self.sent).map(id).collect::<Option<Vec<_>>>()
        };
        let parts = parts.ok_or_else(|| io::Error::other("not all parts have arrived"))?;
        let (store, key, id) = (Arc::clone(&self.store), self.key.clone(), self.begun.id.clone());
        let client = Arc::clone(self.sending.client());
        let work =
            async move { store.complete_multipart(&key, &id, parts).await.map(drop).map_err(|error| client.complain(&error)) };
        self.sending.client().wait(work)?;
        self.is_done = true;
        if let Some(record) = &mut self.arrived.lock().record {
            record.remove();
        }
        Ok(())
    }

    /// If no object is made of the parts, they stay, for a process that goes on with them. Answers whether there will be anything.
    pub fn leave(&mut self) -> bool {
        let arrived = self.arrived.lock();
        self.leave = arrived.record.is_some() && !(arrived.ids.is_empty() && self.known.is_empty());
        self.leave
    }
}

/// Whether the store has an answer that says that it does not have what was begun.
fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOENT) || error.kind() == io::ErrorKind::PermissionDenied
}

fn create(sending: &Arc<Sending>, store: &Arc<dyn MultipartStore>, key: &Key) -> io::Result<String> {
    let (client, store, key) = (Arc::clone(sending.client()), Arc::clone(store), key.clone());
    let work = async move { store.create_multipart(&key).await.map_err(|error| client.complain(&error)) };
    Client::wait(sending.client(), work)
}

/// Removes parts. Those that are on their way arrive at nothing. What cannot be removed is left for the store's own rules. It is waited for
/// though this process may be ending: that would leave them.
fn abort(sending: &Arc<Sending>, store: &Arc<dyn MultipartStore>, key: &Key, id: String) {
    let (done, is_done) = sync_channel(1);
    let (store, key) = (Arc::clone(store), key.clone());
    sending.client().start(async move {
        if let Err(error) = store.abort_multipart(&key, &id).await {
            debug!("parts of an object are left: {}", in_words(&error));
        }
        let _ = done.send(());
    });
    let _ = is_done.recv_timeout(ABORT);
}

impl Drop for Parts {
    fn drop(&mut self) {
        if !self.is_done && !self.leave {
            abort(&self.sending, &self.store, &self.key, std::mem::take(&mut self.begun.id));
            if let Some(record) = &mut self.arrived.lock().record {
                record.remove();
            }
        }
    }
}
