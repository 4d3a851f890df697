//! Uploads a cframe to an object store: one object, which appears when it is whole.
//!
//! Where everything will be is known before the first byte is sent, as the header comes first. Small frames are one request, under a
//! condition; large ones are sent in parts.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::path::Path as Key;
use object_store::{ObjectMeta, PutPayload, UpdateVersion};
use parking_lot::Mutex;

use super::parts::Parts;
use super::sending::{Put, Sending};
use super::{NewUpload, WHOLE, read};
use crate::format::{self, ChunkOffset, INDEX_NAME, IndexEntry, Layout, index};
use crate::store::image::successor;
use crate::store::{ChunkKey, FrameImage, ReadAt, Result, StoreError};

/// Bytes of a chunk that are read at once.
const PIECE: u64 = 4 << 20;

/// An upload.
pub struct Contiguous {
    path: PathBuf,
    key: Key,
    sending: Arc<Sending>,
    before: Option<ObjectMeta>,
    /// Room of the stored chunks, in order.
    rooms: Vec<u32>,
    /// Index and trailer.
    tail: Vec<u8>,
    entries: usize,
    filled: Mutex<Filled>,
}

struct Filled {
    chunks: usize,
    body: Option<Body>,
}

enum Body {
    Small(Vec<u8>),
    Large(Parts),
}

impl Body {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Body::Small(all) => {
                all.extend_from_slice(bytes);
                Ok(())
            }
            Body::Large(parts) => parts.write(bytes),
        }
    }
}

/// Header, and index with trailer, of a frame whose chunks lie one behind the other; and bytes of all of it.
fn plan(image: &FrameImage, rooms: &[u32]) -> format::Result<(Vec<u8>, Vec<u8>, u64)> {
    let mut image = match successor(None, image.clone(), Layout::Contiguous)? {
        Some(image) => image,
        None => image.clone(),
    };
    let mut at = 0u64;
    let offsets = image.entries.iter().zip(rooms).map(|(entry, room)| {
        entry.map(|_| {
            let offset = ChunkOffset::new(at);
            at = at.saturating_add(u64::from(*room));
            offset
        })
    });
    let offsets: Vec<IndexEntry<ChunkOffset>> = offsets.collect();
    let mut tail = index::encode(offsets.into_iter())?;
    tail.extend_from_slice(image.trailer.as_bytes());
    let len = image.header.as_bytes().len() as u64 + at + tail.len() as u64;
    image.header.set_cbytes(at);
    image.header.set_frame_len(len);
    Ok((image.header.as_bytes().to_vec(), tail, len))
}

impl Contiguous {
    /// Looks at what is there.
    fn look(sending: &Arc<Sending>, path: &Path, replace: bool) -> Result<Option<ObjectMeta>> {
        let failed = |action| move |source| StoreError::Io { path: path.to_owned(), action, source };
        let refuse = |reason: &str| Err(StoreError::Unsupported { path: path.to_owned(), reason: reason.to_owned() });
        let key = sending.client().key("");
        if key.as_ref().is_empty() {
            return refuse("is a bucket; expected a name in it");
        }
        if sending.look(&sending.client().key(INDEX_NAME)).map_err(failed("look at what is there"))?.is_some() {
            return refuse(
                "is the prefix of a sparse frame there, and a contiguous one is one object; expected another name, \
                 or that it is removed first",
            );
        }
        let before = sending.look(&key).map_err(failed("look at what is there"))?;
        if before.is_some() && !replace {
            return refuse("exists already; expected a new name (--force replaces what is there)");
        }
        let client = sending.client();
        let is_prefix = || match client.is_prefix() {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
            found => Ok(found.unwrap_or(false)),
        };
        if before.is_none() && client.can_list() && is_prefix().map_err(failed("look at what is there"))? {
            return refuse("is a prefix with objects beneath it, and a contiguous frame is one object; expected another name");
        }
        Ok(before)
    }

    /// Looks at what is there, and begins.
    ///
    /// # Errors
    /// See [`super::Upload::contiguous`].
    pub fn begin(sending: Arc<Sending>, new: &NewUpload<'_>, image: &FrameImage, rooms: &[u32]) -> Result<Self> {
        let &NewUpload { path, replace, .. } = new;
        let failed = |action| move |source| StoreError::Io { path: path.to_owned(), action, source };
        let before = Self::look(&sending, path, replace)?;
        let key = sending.client().key("");
        let (header, tail, len) = plan(image, rooms).map_err(|source| StoreError::Format { path: path.to_owned(), source })?;
        let mut body = if len <= WHOLE * sending.client().part_len() {
            Body::Small(Vec::with_capacity(usize::try_from(len).unwrap_or(0)))
        } else {
            Body::Large(Parts::begin(&sending, &key, len).map_err(failed("begin to upload"))?)
        };
        body.write(&header).map_err(failed("upload"))?;
        let stored = image.entries.iter().zip(rooms).filter(|(entry, _)| entry.stored().is_some());
        Ok(Contiguous {
            path: path.to_owned(),
            key,
            sending,
            before,
            rooms: stored.map(|(_, room)| *room).collect(),
            tail,
            entries: image.entries.len(),
            filled: Mutex::new(Filled { chunks: 0, body: Some(body) }),
        })
    }

    /// Adds a chunk.
    ///
    /// # Errors
    /// What the store answers; a chunk that has no room.
    pub fn stage(&self, chunk: &dyn ReadAt) -> Result<ChunkKey> {
        let mut filled = self.filled.lock();
        let number = filled.chunks;
        let room = self.rooms.get(number).copied().map_or(0, u64::from);
        if chunk.len() > room {
            let reason = format!("stored chunk {number} has {} bytes; expected at most {room}", chunk.len());
            return Err(StoreError::Unsupported { path: self.path.clone(), reason });
        }
        filled.chunks += 1;
        let Some(body) = &mut filled.body else { return Err(self.ended()) };
        let written = match chunk.as_slice() {
            Some(bytes) => body.write(bytes),
            None => write_all(body, chunk),
        };
        written.and_then(|()| pad(body, room - chunk.len())).map_err(self.failed("upload"))?;
        Ok(ChunkKey::new(number as u64))
    }

    /// Makes a frame of the chunks that were added.
    ///
    /// # Errors
    /// What the store answers; something has the name by now that is not what was to be replaced.
    pub fn commit(&self, image: &FrameImage) -> Result<()> {
        let mut filled = self.filled.lock();
        if filled.chunks != self.rooms.len() || image.entries.len() != self.entries {
            let reason = format!("{} chunks were copied; expected {}", filled.chunks, self.rooms.len());
            return Err(StoreError::Unsupported { path: self.path.clone(), reason });
        }
        let Some(body) = &mut filled.body else { return Err(self.ended()) };
        body.write(&self.tail).map_err(self.failed("upload"))?;
        match body {
            Body::Small(bytes) => {
                let bytes = std::mem::take(bytes);
                filled.body = None;
                return self.put(bytes);
            }
            Body::Large(parts) => {
                parts.arrive().map_err(self.failed("upload"))?;
                self.check()?;
                parts.complete().map_err(self.failed("end the upload"))?;
            }
        }
        filled.body = None;
        Ok(())
    }

    /// Whether the name is as it was.
    fn check(&self) -> Result<()> {
        let now = self.sending.look(&self.key).map_err(self.failed("look at what is there"))?;
        let state = |meta: &ObjectMeta| (meta.e_tag.clone(), meta.version.clone(), meta.size, meta.last_modified);
        if now.as_ref().map(state) == self.before.as_ref().map(state) { Ok(()) } else { Err(self.changed()) }
    }

    /// All of it by one request.
    fn put(&self, bytes: Vec<u8>) -> Result<()> {
        let sending = Arc::clone(&self.sending);
        let version = |meta: &ObjectMeta| UpdateVersion { e_tag: meta.e_tag.clone(), version: meta.version.clone() };
        let (payload, version) = (PutPayload::from(bytes), self.before.as_ref().map(version));
        let sent = payload.clone();
        let put = self.sending.client().wait(async move { sending.put_if("", sent, version).await });
        match put.map_err(self.failed("upload"))? {
            Put::Done => Ok(()),
            Put::Other => Err(self.changed()),
            Put::NoConditions => {
                self.check()?;
                let (sending, key) = (Arc::clone(&self.sending), self.key.clone());
                let work = async move { sending.overwrite(&key, payload).await };
                self.sending.client().wait(work).map_err(self.failed("upload"))
            }
        }
    }

    fn changed(&self) -> StoreError {
        let reason = match self.before {
            None => "exists by now: another upload was faster, and is left as it is",
            Some(_) => "was changed by another meanwhile, and is left as it is; try again to replace that",
        };
        StoreError::Unsupported { path: self.path.clone(), reason: reason.to_owned() }
    }

    fn ended(&self) -> StoreError {
        StoreError::Poisoned { path: self.path.clone(), reason: "the upload has ended".to_owned() }
    }

    fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> StoreError {
        move |source| StoreError::Io { path: self.path.clone(), action, source }
    }
}

fn write_all(body: &mut Body, chunk: &dyn ReadAt) -> io::Result<()> {
    let mut at = 0;
    while at < chunk.len() {
        let bytes = read(chunk, at, PIECE.min(chunk.len() - at))?;
        body.write(&bytes)?;
        at += bytes.len() as u64;
    }
    Ok(())
}

/// What a chunk does not need of its room.
fn pad(body: &mut Body, mut len: u64) -> io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    while len > 0 {
        let now = len.min(ZEROS.len() as u64);
        body.write(ZEROS.get(..now as usize).unwrap_or_default())?;
        len -= now;
    }
    Ok(())
}
