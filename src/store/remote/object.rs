//! An object that is no frame: read by ranges, ahead of who reads on, through the memory that all frames of a mount share.
//!
//! All reads are of one state: the one that a listing named, as far as states can be told apart.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use object_store::path::Path as Key;
use parking_lot::Mutex;

use super::client::{Client, Tag};
use super::pieces::{Claim, Piece, PieceKey, Pieces, Pool, Wanted};
use super::sequence::Sequences;

/// Bytes that are asked for at once.
const BLOCK: u64 = 1 << 20;

/// An object.
pub struct RemoteObject {
    client: Arc<Client>,
    listed: Tag,
    /// What the first answer told. A leaf lock.
    state: Mutex<Option<Tag>>,
    pool: Arc<Pool>,
    pieces: Arc<Pieces>,
    sequences: Mutex<Sequences>,
    /// The log has told that it is gone.
    is_told: AtomicBool,
}

impl RemoteObject {
    /// The object of a key, in the state that a listing told of. Nothing is asked yet.
    ///
    /// # Errors
    /// A key that is none.
    pub fn new(client: &Client, key: &str, listed: Tag, pool: &Arc<Pool>) -> io::Result<Arc<Self>> {
        let key = Key::parse(key).map_err(|_| io::ErrorKind::NotFound)?;
        let (pool, pieces) = (Arc::clone(pool), Pieces::new(pool));
        let (state, sequences) = (Mutex::default(), Mutex::default());
        let is_told = AtomicBool::new(false);
        Ok(Arc::new(RemoteObject { client: client.at(key), listed, state, pool, pieces, sequences, is_told }))
    }

    /// Whether the log has not told yet that the object is gone. From now on it has.
    pub fn is_first_loss(&self) -> bool {
        !self.is_told.swap(true, Relaxed)
    }

    /// Reads; fewer bytes than there is room for at the end alone.
    ///
    /// # Errors
    /// What the store answers; ESTALE if the object is gone, or in another state.
    pub fn read_at(self: &Arc<Self>, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let end = offset.saturating_add(buf.len() as u64).min(self.listed.len());
        let mut at = offset;
        while at < end {
            let piece = self.block(u32::try_from(at / BLOCK).map_err(|_| io::ErrorKind::FileTooLarge)?)?;
            let from = usize::try_from(at % BLOCK).unwrap_or(usize::MAX);
            let done = usize::try_from(at - offset).unwrap_or(usize::MAX);
            let (here, room) = (piece.bytes.get(from..).unwrap_or_default(), buf.get_mut(done..).unwrap_or_default());
            let count = here.len().min(room.len());
            if let (Some(to), Some(from), true) = (room.get_mut(..count), here.get(..count), count > 0) {
                to.copy_from_slice(from);
            } else {
                break;
            }
            at += count as u64;
        }
        Ok(usize::try_from(at.saturating_sub(offset)).unwrap_or(0))
    }

    fn block(self: &Arc<Self>, place: u32) -> io::Result<Arc<Piece>> {
        let most = self.pool.most() / 2 / BLOCK;
        let window = u32::try_from(most).unwrap_or(u32::MAX).min(u32::try_from(self.client.connections()).unwrap_or(64));
        let ahead = self.sequences.lock().read(place, window);
        let blocks = u32::try_from(self.listed.len().div_ceil(BLOCK)).unwrap_or(u32::MAX);
        for place in ahead.start..ahead.end.min(blocks) {
            if let Some(claim) = self.pieces.claim(PieceKey { place, number: 0 }, BLOCK) {
                let object = Arc::clone(self);
                // Whoever wants it asks again, and hears why it did not come.
                self.client.start(async move { drop(object.fetch(claim).await) });
            }
        }
        match self.pieces.want(PieceKey { place, number: 0 }, BLOCK, self.client.patience(), self.client.short_patience()) {
            Wanted::Here(piece) => Ok(piece),
            Wanted::Failed => Err(io::Error::other("another request for the same data timed out")),
            Wanted::Unwanted => Err(io::Error::from_raw_os_error(libc::EINTR)),
            Wanted::Mine(claim) => {
                let object = Arc::clone(self);
                self.client.wait(async move { object.fetch(claim).await })
            }
        }
    }

    async fn fetch(&self, claim: Claim) -> io::Result<Arc<Piece>> {
        let start = u64::from(claim.key().place) * BLOCK;
        let range = start..start.saturating_add(BLOCK).min(self.listed.len());
        let known = self.state.lock().clone();
        let got = match self.client.get("", Some(range), known.as_ref()).await {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Err(io::Error::from_raw_os_error(libc::ESTALE)),
            got => got?,
        };
        {
            let mut state = self.state.lock();
            let is_same = state.as_ref().map_or_else(|| got.tag.is_like(&self.listed), |state| *state == got.tag);
            if !is_same {
                return Err(io::Error::from_raw_os_error(libc::ESTALE));
            }
            *state = Some(got.tag);
        }
        Ok(claim.fill(Piece { room: got.bytes.len() as u64, bytes: got.bytes }))
    }
}
