//! The parts of chunks that are in memory or on their way: each is fetched once, however many readers need it.
//!
//! When the memory is full, the piece that was used longest ago is dropped first. A fetch that fails leaves nothing behind: the
//! next reader fetches again, and gets the error of that attempt.
//!
//! Frames of one mount share a [`Pool`]: pieces of one frame are dropped when another needs the memory.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::{Condvar, Mutex};

use crate::store::interrupts;

/// Bytes of a piece; the last one of a chunk may have fewer.
pub const PIECE: u64 = 4 << 20;
/// Bytes that a piece takes beside its own.
const BESIDE: u64 = 256;

/// The number of the piece that is a chunk's header alone, for who wants to know how long it is.
pub const HEADER: u32 = u32::MAX;

/// A part of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PieceKey {
    /// Which chunk: its place among all that a state of the frame has.
    pub place: u32,
    /// Which part of it, counted from 0 in steps of [`PIECE`]; or [`HEADER`].
    pub number: u32,
}

/// Its bytes.
#[derive(Debug)]
pub struct Piece {
    /// What was read.
    pub bytes: Vec<u8>,
    /// Length in bytes of all that there is room for: an sframe's chunk file, or in a cframe all up to the next chunk.
    pub room: u64,
}

impl Piece {
    /// Bytes of memory that it takes.
    fn cost(&self) -> u64 {
        self.bytes.len() as u64 + BESIDE
    }
}

/// Memory for pieces, of one frame or of many.
pub struct Pool {
    table: Mutex<Table>,
    /// A piece has come, or will not come.
    settled: Condvar,
    /// Bytes that there may be.
    most: u64,
    /// How many have had pieces here.
    owners: AtomicU64,
}

/// What is in memory of one state of a frame.
pub struct Pieces {
    pool: Arc<Pool>,
    owner: u64,
}

/// A piece, and whose it is.
type OwnKey = (u64, PieceKey);

struct Table {
    ready: LruCache<OwnKey, Arc<Piece>>,
    bytes: u64,
    loading: HashSet<OwnKey>,
    /// Bytes that are likely to come.
    coming: u64,
    hits: u64,
    misses: u64,
}

/// The duty to load a piece, or to say that it does not come.
pub struct Claim {
    pieces: Arc<Pieces>,
    key: PieceKey,
    likely: u64,
}

/// What becomes of who wants a piece.
pub enum Wanted {
    /// It is here.
    Here(Arc<Piece>),
    /// Nobody has asked for it yet.
    Mine(Claim),
    /// Whoever wanted it does not want it any more.
    Unwanted,
    /// Somebody else has asked for it for as long as one asks, and it has not come.
    Failed,
}

/// Counts for the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pieces that were there, or on their way, when they were wanted.
    pub hits: u64,
    /// Pieces that had to be asked for when they were wanted.
    pub misses: u64,
    /// Bytes in memory.
    pub bytes: u64,
    /// Bytes that there may be.
    pub most: u64,
}

impl Pool {
    /// Room for so many bytes.
    pub fn new(most: u64) -> Arc<Self> {
        let table = Table { ready: LruCache::unbounded(), bytes: 0, loading: HashSet::new(), coming: 0, hits: 0, misses: 0 };
        Arc::new(Pool { table: Mutex::new(table), settled: Condvar::new(), most, owners: AtomicU64::new(0) })
    }

    /// Bytes that there may be.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Counts for the log.
    pub fn counts(&self) -> Counts {
        let table = self.table.lock();
        Counts { hits: table.hits, misses: table.misses, bytes: table.bytes, most: self.most }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Pieces {
    /// Those of one more owner.
    pub fn new(pool: &Arc<Pool>) -> Arc<Self> {
        Arc::new(Pieces { pool: Arc::clone(pool), owner: pool.owners.fetch_add(1, Relaxed) })
    }

    /// The piece, when it is here; or the duty to load it, where it is not even on its way. `likely` is how many bytes it may have. Whoever
    /// has waited for at least half of `patience` for another's request does not begin anew when that fails, and does not wait for longer
    /// than `most`.
    pub fn want(self: &Arc<Self>, key: PieceKey, likely: u64, patience: Duration, most: Option<Duration>) -> Wanted {
        let began = Instant::now();
        let mut table = self.pool.table.lock();
        let mut has_waited = false;
        let own = (self.owner, key);
        loop {
            if let Some(piece) = table.ready.get(&own).cloned() {
                table.hits += u64::from(!has_waited);
                return Wanted::Here(piece);
            }
            if !table.loading.contains(&own) {
                if has_waited && began.elapsed() >= patience / 2 {
                    return Wanted::Failed;
                }
                table.misses += 1;
                return Wanted::Mine(self.claimed(&mut table, key, likely));
            }
            table.hits += u64::from(!has_waited);
            has_waited = true;
            if self.pool.settled.wait_for(&mut table, interrupts::PAUSE).timed_out() {
                if interrupts::is_unwanted() {
                    return Wanted::Unwanted;
                }
                if most.is_some_and(|most| began.elapsed() >= most) {
                    return Wanted::Failed;
                }
            }
        }
    }

    /// The duty to load a piece ahead: not if it is here or on its way, or if too much is already.
    pub fn claim(self: &Arc<Self>, key: PieceKey, likely: u64) -> Option<Claim> {
        let mut table = self.pool.table.lock();
        let own = (self.owner, key);
        let is_known = table.ready.contains(&own) || table.loading.contains(&own);
        let is_full = table.coming.saturating_add(likely) > self.pool.most / 2;
        (!is_known && !is_full).then(|| self.claimed(&mut table, key, likely))
    }

    fn claimed(self: &Arc<Self>, table: &mut Table, key: PieceKey, likely: u64) -> Claim {
        table.loading.insert((self.owner, key));
        table.coming = table.coming.saturating_add(likely);
        Claim { pieces: Arc::clone(self), key, likely }
    }

    /// Whether a piece is here, or on its way.
    pub fn is_known(&self, key: PieceKey) -> bool {
        let (table, own) = (self.pool.table.lock(), (self.owner, key));
        table.ready.contains(&own) || table.loading.contains(&own)
    }

    /// The piece, if it is here.
    #[cfg(test)]
    pub fn peek(&self, key: PieceKey) -> Option<Arc<Piece>> {
        self.pool.table.lock().ready.get(&(self.owner, key)).cloned()
    }

    /// Counts for the log: of all who share the room.
    pub fn counts(&self) -> Counts {
        self.pool.counts()
    }
}

impl Drop for Pieces {
    /// Nobody can ask for them any more.
    fn drop(&mut self) {
        let mut gone = Vec::new();
        let mut table = self.pool.table.lock();
        let own: Vec<OwnKey> = table.ready.iter().map(|(key, _)| *key).filter(|(owner, _)| *owner == self.owner).collect();
        for key in own {
            if let Some(piece) = table.ready.pop(&key) {
                table.bytes -= piece.cost();
                gone.push(piece);
            }
        }
        drop(table);
    }
}

impl Claim {
    /// Which piece.
    pub fn key(&self) -> PieceKey {
        self.key
    }

    /// It is here.
    pub fn fill(self, piece: Piece) -> Arc<Piece> {
        let piece = Arc::new(piece);
        let pool = Arc::clone(&self.pieces.pool);
        let own = (self.pieces.owner, self.key);
        let mut gone = Vec::new();
        {
            let mut table = pool.table.lock();
            table.bytes += piece.cost();
            if let Some(before) = table.ready.put(own, Arc::clone(&piece)) {
                table.bytes -= before.cost();
                gone.push(before);
            }
            while table.bytes > pool.most && table.ready.len() > 1 {
                let Some((_, oldest)) = table.ready.pop_lru() else { break };
                table.bytes -= oldest.cost();
                gone.push(oldest);
            }
        }
        piece
    }
}

impl Drop for Claim {
    /// Whoever waits looks again.
    fn drop(&mut self) {
        {
            let mut table = self.pieces.pool.table.lock();
            table.loading.remove(&(self.pieces.owner, self.key));
            table.coming = table.coming.saturating_sub(self.likely);
        }
        self.pieces.pool.settled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: PieceKey = PieceKey { place: 3, number: 0 };

    const LONG: Duration = Duration::from_secs(60);

    fn piece(len: usize) -> Piece {
        Piece { bytes: vec![1; len], room: len as u64 }
    }

    #[test]
    fn a_piece_is_asked_for_once() {
        let pieces = Pieces::new(&Pool::new(1000));
        let Wanted::Mine(claim) = pieces.want(KEY, 10, LONG, None) else { panic!("somebody has it") };
        assert!(pieces.claim(KEY, 10).is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| match pieces.want(KEY, 10, LONG, None) {
                Wanted::Here(piece) => piece.bytes.len(),
                _ => 0,
            });
            claim.fill(piece(10));
            assert_eq!(waits.join().unwrap(), 10);
        });
        assert!(pieces.claim(KEY, 10).is_none());
    }

    #[test]
    fn what_does_not_come_is_asked_for_again() {
        let pieces = Pieces::new(&Pool::new(1000));
        let claim = pieces.claim(KEY, 10).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| matches!(pieces.want(KEY, 10, LONG, None), Wanted::Mine(_)));
            drop(claim);
            assert!(waits.join().unwrap());
        });
        assert!(pieces.claim(KEY, 10).is_some());
    }

    #[test]
    fn who_has_waited_long_for_what_does_not_come_does_not_begin_anew() {
        let pieces = Pieces::new(&Pool::new(1000));
        let claim = pieces.claim(KEY, 10).unwrap();
        let (waiting, waits) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| waiting.send(matches!(pieces.want(KEY, 10, Duration::from_millis(20), None), Wanted::Failed)));
            }
            // All are counted as soon as they wait.
            while pieces.counts().hits < 3 {
                std::thread::yield_now();
            }
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(20) {
                std::thread::yield_now();
            }
            drop(claim);
        });
        assert_eq!(waits.try_iter().collect::<Vec<_>>(), [true; 3]);
    }

    #[test]
    fn small_pieces_take_more_than_their_bytes() {
        let pieces = Pieces::new(&Pool::new(100_000));
        for place in 0..1000 {
            pieces.claim(PieceKey { place, number: 0 }, 1).unwrap().fill(piece(1));
        }
        let left = (0..1000).filter(|place| pieces.peek(PieceKey { place: *place, number: 0 }).is_some()).count();
        assert!((100..400).contains(&left), "{left}");
    }

    #[test]
    fn memory_is_bounded() {
        let pieces = Pieces::new(&Pool::new(100_000));
        for place in 0..100 {
            pieces.claim(PieceKey { place, number: 0 }, 9000).unwrap().fill(piece(9000));
            assert!(pieces.counts().bytes <= 100_000);
        }
        assert!(
            pieces.peek(PieceKey { place: 99, number: 0 }).is_some() && pieces.peek(PieceKey { place: 0, number: 0 }).is_none()
        );
        let ahead: Vec<_> = (200..300).map_while(|place| pieces.claim(PieceKey { place, number: 0 }, 10_000)).collect();
        assert_eq!(ahead.len(), 5, "half of it is for what is read ahead");
    }

    #[test]
    fn owners_share_the_room_and_nothing_else() {
        let pool = Pool::new(100_000);
        let (one, other) = (Pieces::new(&pool), Pieces::new(&pool));
        one.claim(KEY, 40_000).unwrap().fill(piece(40_000));
        assert!(other.peek(KEY).is_none());
        other.claim(KEY, 50_000).unwrap().fill(piece(50_000));
        assert_eq!((one.peek(KEY).unwrap().bytes.len(), other.peek(KEY).unwrap().bytes.len()), (40_000, 50_000));
        other.claim(PieceKey { place: 4, number: 0 }, 30_000).unwrap().fill(piece(30_000));
        assert!(one.peek(KEY).is_none(), "it was used longest ago");
        drop(other);
        assert_eq!(pool.counts().bytes, 0);
    }
}
