//! What was staged and is in no committed state, in case others write over it in SOURCE: a copy as far as memory is given for it, or else a
//! sum by which to tell whether it is still there. Of what is not in memory any more when it is staged, there is neither.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::resources::Budget;
use super::{ChunkKey, ReadAt};

/// A staged chunk.
enum StagedCopy {
    Copy(Box<[u8]>),
    Sum(u64),
}

/// What a store has staged and not committed. A leaf lock.
pub(super) struct StagedCopies {
    wanted: bool,
    budget: Arc<Budget>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    chunks: HashMap<ChunkKey, StagedCopy>,
    /// Bytes of copies, taken out of the budget.
    bytes: u64,
}

impl StagedCopies {
    /// Nothing is held unless it is `wanted`, and copies only as far as the budget allows.
    pub(super) fn new(wanted: bool, budget: &Arc<Budget>) -> Self {
        StagedCopies { wanted, budget: Arc::clone(budget), inner: Mutex::default() }
    }

    /// A chunk was staged.
    pub(super) fn put(&self, key: ChunkKey, chunk: &dyn ReadAt) {
        let Some(bytes) = chunk.as_slice().filter(|_| self.wanted) else { return };
        let copied = self.budget.take(bytes.len() as u64);
        let chunk = if copied { StagedCopy::Copy(bytes.into()) } else { StagedCopy::Sum(sum_of(bytes)) };
        let mut inner = self.inner.lock();
        self.take(&mut inner, key);
        inner.bytes += chunk.bytes();
        inner.chunks.insert(key, chunk);
    }

    /// A chunk was committed or given back.
    pub(super) fn forget(&self, key: ChunkKey) {
        let taken = self.take(&mut self.inner.lock(), key);
        drop(taken);
    }

    /// Of these, none is held any more.
    pub(super) fn forget_all(&self, keys: impl Iterator<Item = ChunkKey>) {
        let mut inner = self.inner.lock();
        if !inner.chunks.is_empty() {
            keys.for_each(|key| drop(self.take(&mut inner, key)));
        }
    }

    /// Nothing is held any more.
    pub(super) fn clear(&self) {
        let inner = std::mem::take(&mut *self.inner.lock());
        self.budget.give(inner.bytes);
    }

    fn take(&self, inner: &mut Inner, key: ChunkKey) -> Option<StagedCopy> {
        let chunk = inner.chunks.remove(&key)?;
        inner.bytes -= chunk.bytes();
        self.budget.give(chunk.bytes());
        Some(chunk)
    }

    /// Reads a part of a staged chunk: from its copy, or by `load` from SOURCE if all of it is there as it was. `None` if the chunk is
    /// not held.
    #[expect(clippy::indexing_slicing, reason = "no more is counted than there is in the buffer")]
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
        let sum = match self.inner.lock().chunks.get(&key)? {
            StagedCopy::Copy(bytes) => return Some(Ok(part(bytes, buf))),
            StagedCopy::Sum(sum) => *sum,
        };
        let mut bytes = vec![0; len as usize];
        Some(load(&mut bytes).and_then(|()| match sum_of(&bytes) == sum {
            true => Ok(part(&bytes, buf)),
            false => Err(io::Error::other("others have written over it")),
        }))
    }
}

impl StagedCopy {
    fn bytes(&self) -> u64 {
        match self {
            StagedCopy::Copy(bytes) => bytes.len() as u64,
            StagedCopy::Sum(_) => 0,
        }
    }
}

impl Drop for StagedCopies {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A sum in which any change is seen that is not made on purpose. Four by turns, as one alone waits for each of its multiplications.
#[expect(clippy::indexing_slicing, reason = "two bits of four; the rest is shorter than a word")]
fn sum_of(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9FB2_1C65_1E98_DF25).rotate_left(29);
    let mut sums = [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9, 0x27D4_EB2F_1656_67C5];
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        sums[at & 3] = mix(sums[at & 3], u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let sum = sums.into_iter().fold(bytes.len() as u64, mix);
    let sum = mix(sum, u64::from_le_bytes(last));
    sum ^ sum >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ChunkKey = ChunkKey::new(7);
    const MOST: usize = 32 << 20;

    #[test]
    fn a_copy_needs_nothing_and_a_sum_finds_what_is_another() {
        let bytes: Vec<u8> = (0..3_000_001u32).map(|i| ((i * 7) >> 3) as u8).collect();
        let len = bytes.len() as u32;
        let mut buf = vec![0; 100];
        let budget = Budget::new(MOST as u64);
        let held = StagedCopies::new(true, &budget);
        held.put(KEY, &bytes);
        let never = |_: &mut [u8]| panic!("there is a copy");
        assert_eq!(held.read(KEY, len, 50, &mut buf, never).unwrap().unwrap(), 100);
        assert_eq!(buf, bytes[50..150]);
        assert_eq!(held.read(KEY, len, u64::from(len) - 3, &mut buf, never).unwrap().unwrap(), 3);
        held.forget(KEY);
        held.put(ChunkKey::new(8), &vec![0; MOST]);
        held.put(KEY, &bytes);
        assert_eq!(budget.used(), MOST as u64, "no room for another copy");
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
        let budget = Budget::new(MOST as u64);
        for wanted in [true, false] {
            let frames = [StagedCopies::new(wanted, &budget), StagedCopies::new(wanted, &budget)];
            for n in 0..40 {
                frames[n as usize % 2].put(ChunkKey::new(n), &vec![n as u8; 1 << 20]);
            }
            assert_eq!(budget.used(), if wanted { MOST as u64 } else { 0 });
            let [one, other] = frames;
            one.clear();
            assert_eq!(budget.used(), if wanted { 16 << 20 } else { 0 });
            drop(other);
            assert_eq!(budget.used(), 0);
        }
    }
}
