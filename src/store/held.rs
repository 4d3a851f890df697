//! What was staged and is in no committed state, in case others write over it in SOURCE: a copy as far as memory is given for it, or else a
//! sum by which to tell whether it is still there.

use std::collections::HashMap;
use std::io;

use parking_lot::Mutex;

use super::{ChunkKey, ReadAt};

/// Bytes of copies, at most.
const MOST: usize = 32 << 20;
/// Pieces in which chunks are summed that are not in memory.
const PIECE: usize = 1 << 20;

/// A staged chunk.
enum Chunk {
    Copy(Box<[u8]>),
    Sum(u64),
}

/// What a store has staged and not committed. A leaf lock.
#[derive(Default)]
pub(super) struct Held(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    chunks: HashMap<ChunkKey, Chunk>,
    /// Bytes of copies.
    bytes: usize,
}

impl Held {
    /// A chunk was staged.
    pub(super) fn put(&self, key: ChunkKey, chunk: &dyn ReadAt) -> io::Result<()> {
        let len = usize::try_from(chunk.len()).unwrap_or(usize::MAX);
        let copied = self.0.lock().bytes.saturating_add(len) <= MOST;
        let chunk = match chunk.as_slice() {
            Some(bytes) if copied => Chunk::Copy(bytes.into()),
            _ => Chunk::Sum(sum_of(chunk)?),
        };
        let mut inner = self.0.lock();
        inner.take(key);
        inner.bytes += chunk.bytes();
        inner.chunks.insert(key, chunk);
        Ok(())
    }

    /// A chunk was committed or given back.
    pub(super) fn forget(&self, key: ChunkKey) {
        let taken = self.0.lock().take(key);
        drop(taken);
    }

    /// Of these, none is held any more.
    pub(super) fn forget_all(&self, keys: impl Iterator<Item = ChunkKey>) {
        let mut inner = self.0.lock();
        if !inner.chunks.is_empty() {
            keys.for_each(|key| drop(inner.take(key)));
        }
    }

    /// Nothing is held any more.
    pub(super) fn clear(&self) {
        let inner = std::mem::take(&mut *self.0.lock());
        drop(inner);
    }

    /// Reads a part of a staged chunk: from its copy, or by `load` from SOURCE if all of it is there as it was. `None` if the chunk is
    /// not held.
    pub(super) fn read(
        &self,
        key: ChunkKey,
        len: u32,
        offset: u64,
        buf: &mut [u8],
        load: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> Option<io::Result<usize>> {
        let part = |bytes: &[u8], buf: &mut [u8]| {
            let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
            let count = rest.len().min(buf.len());
            buf[..count].copy_from_slice(&rest[..count]);
            count
        };
        let sum = match self.0.lock().chunks.get(&key)? {
            Chunk::Copy(bytes) => return Some(Ok(part(bytes, buf))),
            Chunk::Sum(sum) => *sum,
        };
        let mut bytes = vec![0; len as usize];
        Some(load(&mut bytes).and_then(|()| match sum_of(&bytes) {
            Ok(now) if now == sum => Ok(part(&bytes, buf)),
            _ => Err(io::Error::other("others have written over it")),
        }))
    }
}

impl Chunk {
    fn bytes(&self) -> usize {
        match self {
            Chunk::Copy(bytes) => bytes.len(),
            Chunk::Sum(_) => 0,
        }
    }
}

impl Inner {
    fn take(&mut self, key: ChunkKey) -> Option<Chunk> {
        let chunk = self.chunks.remove(&key)?;
        self.bytes -= chunk.bytes();
        Some(chunk)
    }
}

/// A sum in which any change is seen that is not made on purpose.
fn sum_of(chunk: &dyn ReadAt) -> io::Result<u64> {
    let mut sum = Sum::default();
    if let Some(bytes) = chunk.as_slice() {
        sum.add(bytes);
        return Ok(sum.end());
    }
    let len = chunk.len();
    let mut piece = vec![0; usize::try_from(len).unwrap_or(PIECE).min(PIECE)];
    let mut done = 0;
    while done < len {
        let count = piece.len().min(usize::try_from(len - done).unwrap_or(PIECE));
        chunk.read_exact_at(&mut piece[..count], done)?;
        sum.add(&piece[..count]);
        done += count as u64;
    }
    Ok(sum.end())
}

/// Four sums by turns, as one alone waits for each of its multiplications. All pieces but the last are multiples of 32 bytes.
struct Sum([u64; 4]);

impl Default for Sum {
    fn default() -> Self {
        Sum([0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9, 0x27D4_EB2F_1656_67C5])
    }
}

impl Sum {
    fn mix(&mut self, lane: usize, word: u64) {
        self.0[lane] = (self.0[lane] ^ word).wrapping_mul(0x9FB2_1C65_1E98_DF25).rotate_left(29);
    }

    fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for (at, word) in words.iter().enumerate() {
            self.mix(at & 3, u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            last[7] = rest.len() as u8;
            self.mix(3, u64::from_le_bytes(last));
        }
    }

    fn end(mut self) -> u64 {
        for lane in 1..4 {
            let word = self.0[lane];
            self.mix(0, word);
        }
        self.0[0] ^ self.0[0] >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ChunkKey = ChunkKey::new(7);

    /// Not in memory, as a draft that went to a file.
    struct Elsewhere(Vec<u8>);

    impl ReadAt for Elsewhere {
        fn len(&self) -> u64 {
            self.0.len() as u64
        }
        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
            self.0.as_slice().read_exact_at(buf, offset)
        }
    }

    #[test]
    fn a_copy_needs_nothing_and_a_sum_finds_what_is_another() {
        let bytes: Vec<u8> = (0..3_000_001u32).map(|i| (i * 7 >> 3) as u8).collect();
        let len = bytes.len() as u32;
        let mut buf = vec![0; 100];
        let held = Held::default();
        held.put(KEY, &bytes).unwrap();
        let never = |_: &mut [u8]| panic!("there is a copy");
        assert_eq!(held.read(KEY, len, 50, &mut buf, never).unwrap().unwrap(), 100);
        assert_eq!(buf, bytes[50..150]);
        assert_eq!(held.read(KEY, len, u64::from(len) - 3, &mut buf, never).unwrap().unwrap(), 3);
        held.put(KEY, &Elsewhere(bytes.clone())).unwrap();
        assert_eq!(held.0.lock().bytes, 0);
        let load = |from: &[u8]| {
            let from = from.to_vec();
            move |buf: &mut [u8]| {
                buf.copy_from_slice(&from);
                Ok(())
            }
        };
        assert_eq!(held.read(KEY, len, 70, &mut buf, load(&bytes)).unwrap().unwrap(), 100);
        assert_eq!(buf, bytes[70..170]);
        for at in [0, 31, 1 << 20, bytes.len() - 1] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(held.read(KEY, len, 0, &mut buf, load(&other)).unwrap().is_err(), "{at}");
        }
        held.forget_all([KEY].into_iter());
        assert!(held.read(KEY, len, 0, &mut buf, load(&bytes)).is_none());
    }

    #[test]
    fn copies_take_no_more_than_they_are_given() {
        let held = Held::default();
        for n in 0..40 {
            held.put(ChunkKey::new(n), &vec![n as u8; 1 << 20]).unwrap();
        }
        assert_eq!(held.0.lock().bytes, MOST);
        held.clear();
        assert_eq!(held.0.lock().bytes, 0);
    }
}
