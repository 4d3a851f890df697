//! Comparing images, and holding them against what readers accept.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{ChunkKey, FrameImage};
use crate::format::header::FrameHeader;
use crate::format::{self, IndexEntry, Layout};

/// What comes from a client must be what readers accept, and its number of entries what they compute from the header. Lengths
/// are for the store to set.
fn check(header: &mut FrameHeader, count: usize, layout: Layout) -> format::Result<()> {
    let count = count as u64;
    header.set_layout(layout);
    header.set_cbytes(0);
    header.set_frame_len(i64::MAX as u64);
    FrameHeader::parse(header.as_bytes())?;
    let fits = match header.nchunks() {
        Some(nchunks) => nchunks == count,
        None => count > 0,
    };
    if fits {
        return Ok(());
    }
    let got = format!("{} with chunks of {} bytes", header.nbytes(), header.chunksize());
    Err(format::Error::new("header: nbytes", 30, got, format!("the size of the {count} chunks in the index")))
}

/// An image as it may become the successor of `old`: accepted by readers, and with lengths as they are now, for the store to set.
/// `None` if nothing is different.
pub(super) fn successor(old: Option<&FrameImage>, mut image: FrameImage, layout: Layout) -> format::Result<Option<FrameImage>> {
    check(&mut image.header, image.entries.len(), layout)?;
    let Some(old) = old else { return Ok(Some(image)) };
    image.header.set_cbytes(old.header.cbytes());
    image.header.set_frame_len(old.header.frame_len());
    let same_entries = || Arc::ptr_eq(&image.entries, &old.entries) || image.entries == old.entries;
    let same = image.header == old.header && image.trailer == old.trailer && same_entries();
    Ok((!same).then_some(image))
}

/// An index as it was encoded, so that of the next one only what is new has to be.
pub(super) struct Encoded {
    /// The bytes, in the middle of what was written with them.
    bytes: Vec<u8>,
    part: Range<usize>,
    entries: Arc<Vec<IndexEntry<ChunkKey>>>,
    /// Keys whose chunks are at other places since then. In order.
    moved: Vec<ChunkKey>,
}

impl Encoded {
    /// More moved chunks than these are not looked for.
    const MOST_MOVED: usize = 256;

    /// The index of `entries` is in that part of `bytes`.
    pub(super) fn new(bytes: Vec<u8>, part: Range<usize>, entries: &Arc<Vec<IndexEntry<ChunkKey>>>) -> Self {
        Encoded { bytes, part, entries: Arc::clone(entries), moved: Vec::new() }
    }

    /// The same, once these chunks are at other places; `None` if it is of no use then.
    pub(super) fn after(mut self, moved: &[ChunkKey]) -> Option<Self> {
        self.moved.extend(moved);
        self.moved.sort_unstable();
        self.moved.dedup();
        (self.moved.len() <= Self::MOST_MOVED).then_some(self)
    }

    /// All that was written.
    pub(super) fn file(&self) -> &[u8] {
        &self.bytes
    }

    /// Its bytes.
    pub(super) fn chunk(&self) -> &[u8] {
        self.bytes.get(self.part.clone()).unwrap_or_default()
    }

    /// Whether a stretch of `entries` is encoded here as it is now.
    pub(super) fn has(&self, entries: &[IndexEntry<ChunkKey>], stretch: Range<usize>) -> bool {
        let now = entries.get(stretch.clone());
        let moved = |entry: &IndexEntry<ChunkKey>| entry.stored().is_some_and(|key| self.moved.binary_search(&key).is_ok());
        now.is_some() && now == self.entries.get(stretch) && (self.moved.is_empty() || !now.unwrap_or_default().iter().any(moved))
    }
}

/// How two indexes differ in the stored chunks that they name, and how much more often.
pub(super) struct Difference {
    /// Named more often by the old one.
    pub(super) gone: BTreeMap<ChunkKey, u32>,
    /// Named more often by the new one.
    pub(super) come: BTreeMap<ChunkKey, u32>,
}

/// Compares two indexes. Memory is that of the stretch in which they differ.
pub(super) fn difference(old: &[IndexEntry<ChunkKey>], new: &[IndexEntry<ChunkKey>]) -> Difference {
    let (gone, come) = differing(old, new);
    let (mut gone, mut come) = (counts(gone), counts(come));
    for (key, times) in &mut come {
        if let Some(before) = gone.get_mut(key) {
            let both = (*before).min(*times);
            *before -= both;
            *times -= both;
        }
    }
    gone.retain(|_, times| *times > 0);
    come.retain(|_, times| *times > 0);
    Difference { gone, come }
}

/// The complaint about an index that names what is not stored.
pub(super) fn unknown(key: ChunkKey, entries: &[IndexEntry<ChunkKey>]) -> format::Error {
    let position = entries.iter().position(|entry| *entry == IndexEntry::Stored(key)).unwrap_or(0);
    let got = format!("key {:#x} for chunk {position}", key.number());
    format::Error::new("image: entry", 8 * position as u64, got, "the key of a chunk that is stored")
}

/// The stored chunks of the stretch in which two indexes differ.
#[expect(clippy::indexing_slicing, reason = "what is equal at an end is no longer than either")]
fn differing(old: &[IndexEntry<ChunkKey>], new: &[IndexEntry<ChunkKey>]) -> (Vec<ChunkKey>, Vec<ChunkKey>) {
    let stored = |entry: &IndexEntry<ChunkKey>| match entry {
        IndexEntry::Stored(key) => Some(*key),
        IndexEntry::Special(_) => None,
    };
    if old.len() == new.len() {
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        for (old, new) in old.iter().zip(new).filter(|(old, new)| old != new) {
            gone.extend(stored(old));
            come.extend(stored(new));
        }
        return (gone, come);
    }
    let before = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[before..], &new[before..]);
    let after = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[..old.len() - after], &new[..new.len() - after]);
    (old.iter().filter_map(stored).collect(), new.iter().filter_map(stored).collect())
}

fn counts(keys: impl IntoIterator<Item = ChunkKey>) -> BTreeMap<ChunkKey, u32> {
    let mut counts = BTreeMap::new();
    for key in keys {
        *counts.entry(key).or_default() += 1;
    }
    counts
}
