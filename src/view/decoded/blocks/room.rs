//! What decoding takes besides the blocks that are kept: bounded for all who decode and read together.

use parking_lot::{Condvar, Mutex};

use super::Blocks;
use crate::format::chunk::Decoder;

/// Blocks that are being decoded have so many bytes together, with what is needed besides, or are one.
pub(super) const IN_FLIGHT: u64 = 12 << 20;
/// What a block that is being decoded takes, in its own length: as it is stored, and room for filters.
pub(super) const SHARE: u64 = 4;
/// Benches are kept to be used again as long as they have no more bytes than this.
pub(super) const BENCHES: u64 = 8 << 20;

/// Blocks that readers hold, to copy from them, have so many bytes together, or are those of one reader.
pub(super) const IN_HAND: u64 = 16 << 20;

/// See the module.
#[derive(Default)]
pub(super) struct Room {
    pub(super) benches: Mutex<Benches>,
    /// A bench is put back.
    bench: Condvar,
    /// Bytes that readers hold, and that one of them holds less.
    in_hand: Mutex<u64>,
    handed_back: Condvar,
}

#[derive(Default)]
pub(super) struct Benches {
    idle: Vec<Bench>,
    /// Bytes of those.
    pub(super) bytes: u64,
    /// Bytes of those that are in use.
    in_flight: u64,
}

/// What is needed to decode blocks, kept from one to the next.
#[derive(Default)]
pub struct Bench {
    decoder: Decoder,
    /// A block as it is stored.
    stored: Vec<u8>,
    /// A block of which only a part is wanted.
    whole: Vec<u8>,
    /// How much it has grown to, about.
    bytes: u64,
}

impl Bench {
    /// Room for a block as it is stored.
    pub fn stored(&mut self, len: usize) -> &mut [u8] {
        self.stored.resize(len, 0);
        &mut self.stored
    }

    /// The decoder, the block that is stored, and room for one that is decoded.
    pub fn parts(&mut self) -> (&mut Decoder, &[u8], &mut Vec<u8>) {
        (&mut self.decoder, &self.stored, &mut self.whole)
    }
}

impl Blocks {
    /// What is needed to decode a block of so many bytes, for a while. Waits while others decode too much for that.
    pub fn with_bench<T>(&self, len: u32, work: impl FnOnce(&mut Bench) -> T) -> T {
        let room = &self.shared.room;
        let need = u64::from(len).saturating_mul(SHARE);
        let mut benches = room.benches.lock();
        while benches.in_flight > 0 && benches.in_flight.saturating_add(need) > IN_FLIGHT {
            room.bench.wait(&mut benches);
        }
        benches.in_flight = benches.in_flight.saturating_add(need);
        let mut bench = benches.idle.pop().unwrap_or_default();
        benches.bytes = benches.bytes.saturating_sub(bench.bytes);
        drop(benches);
        // After a panic, too.
        let in_flight = InFlight(room, need);
        bench.bytes = bench.bytes.max(need);
        let done = work(&mut bench);
        let mut benches = room.benches.lock();
        if benches.bytes.saturating_add(bench.bytes) <= BENCHES {
            benches.bytes = benches.bytes.saturating_add(bench.bytes);
            benches.idle.push(bench);
        }
        drop(benches);
        drop(in_flight);
        done
    }

    /// Somebody holds blocks of so many bytes while the answer lives. Waits while others hold too much for that. Whoever has an answer
    /// asks for no other.
    pub fn in_hand(&self, bytes: u64) -> InHand<'_> {
        let room = &self.shared.room;
        let mut held = room.in_hand.lock();
        while *held > 0 && held.saturating_add(bytes) > IN_HAND {
            room.handed_back.wait(&mut held);
        }
        *held = held.saturating_add(bytes);
        InHand(room, bytes)
    }
}

/// What somebody holds of blocks.
pub struct InHand<'a>(&'a Room, u64);

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        let InHand(room, bytes) = self;
        let mut held = room.in_hand.lock();
        *held = held.saturating_sub(*bytes);
        drop(held);
        room.handed_back.notify_all();
    }
}

/// What a bench takes while it is in use.
struct InFlight<'a>(&'a Room, u64);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let InFlight(room, need) = self;
        let mut benches = room.benches.lock();
        benches.in_flight = benches.in_flight.saturating_sub(*need);
        drop(benches);
        room.bench.notify_all();
    }
}
