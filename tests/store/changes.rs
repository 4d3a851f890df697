//! The changes that the library makes to frames, in all pairs and triples, each followed by a power cut at every moment. The
//! frames are small, and such as the library opens.

use b2fuse::format::header::{FrameHeader, HeaderFields};
use b2fuse::format::metalayer::Metalayer;
use b2fuse::format::trailer::Trailer;
use b2fuse::format::{IndexEntry, Special};
use b2fuse::store::Result;

use crate::disk::{Cut, Dir, Start, start};
use crate::driver::{Driver, Store, create, open};
use crate::for_both;
use crate::frames::{Random, header};
use crate::history::{History, Plan};

/// Bytes in a chunk, uncompressed.
const CHUNKSIZE: u32 = 1200;
/// Of floats, for which there is a NaN.
const TYPESIZE: u8 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Replace,
    Append,
    Insert,
    Delete,
    Reorder,
    Grow,
    Shrink,
    Vlmetalayer,
    Metalayer,
    FillSpecial,
}

impl Change {
    pub const ALL: [Change; 10] = [
        Change::Replace,
        Change::Append,
        Change::Insert,
        Change::Delete,
        Change::Reorder,
        Change::Grow,
        Change::Shrink,
        Change::Vlmetalayer,
        Change::Metalayer,
        Change::FillSpecial,
    ];
}

/// A chunk of items of this size that decodes to these bytes, plainly copied or by LZ4 in one block, whichever is shorter.
fn encode(typesize: u8, bytes: &[u8]) -> Vec<u8> {
    let compressed = lz4_flex::block::compress(bytes);
    let plain = compressed.len() + 8 >= bytes.len();
    let mut chunk = vec![5, 1, if plain { 0x02 | 0x05 } else { 1 << 5 | 0x10 | 0x05 }, typesize];
    for len in [bytes.len(), bytes.len(), 32 + if plain { bytes.len() } else { compressed.len() + 8 }] {
        chunk.extend((len as u32).to_le_bytes());
    }
    chunk.resize(32, 0);
    if plain {
        chunk.extend(bytes);
    } else {
        chunk.extend(36u32.to_le_bytes()); // where the block begins
        chunk.extend((compressed.len() as u32).to_le_bytes());
        chunk.extend(compressed);
    }
    chunk
}

/// A chunk of random data, and so of a random length.
fn some_chunk(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![7; CHUNKSIZE as usize];
    let noise = random.below(u64::from(CHUNKSIZE) + 1) as usize;
    bytes[..noise].iter_mut().for_each(|byte| *byte = random.next() as u8);
    encode(TYPESIZE, &bytes)
}

/// The trailer with a vlmetalayer of so many bytes: MessagePack in a chunk, as Python's has it.
fn trailer(len: u16, random: &mut Random) -> Trailer {
    let mut value = vec![0xc5]; // bin 16
    value.extend(len.to_be_bytes());
    value.extend((0..len).map(|_| random.next() as u8));
    Trailer::encode(&[Metalayer { name: b"vl", content: &encode(1, &value) }]).unwrap()
}

impl<S: Store> Driver<S> {
    /// A change as the library makes it; what cannot be done with what is there is none.
    pub fn change(&mut self, change: Change) -> Result<()> {
        let count = self.entries.len();
        let at = self.at();
        match change {
            Change::Replace => {
                let Some(at) = at else { return Ok(()) };
                let new = self.stage_some()?;
                let old = std::mem::replace(&mut self.entries[at], new);
                self.let_go(old);
            }
            Change::Append => {
                let new = self.stage_some()?;
                self.entries.push(new);
            }
            Change::Insert => {
                let new = self.stage_some()?;
                self.entries.insert(at.unwrap_or(0), new);
            }
            Change::Delete => {
                let Some(at) = at else { return Ok(()) };
                let old = self.entries.remove(at);
                self.let_go(old);
            }
            Change::Reorder => {
                for last in (1..count).rev() {
                    let other = self.random.below(last as u64 + 1) as usize;
                    self.entries.swap(last, other);
                }
            }
            Change::Grow => self.entries.extend([IndexEntry::Special(Special::Zeros); 2]),
            Change::Shrink => {
                for old in self.entries.split_off(count.saturating_sub(2)) {
                    self.let_go(old);
                }
            }
            Change::Vlmetalayer => {
                let len = [3, 200, 700][self.random.below(3) as usize];
                self.trailer = trailer(len, &mut self.random);
                self.header.set_has_vlmetalayers(true);
            }
            Change::Metalayer => {
                // Of another length, or reaching behind the first sector, the header cannot change in place.
                let len = [6, 6, 100, 500][self.random.below(4) as usize];
                let value: Vec<u8> = (0..len).map(|_| self.random.next() as u8).collect();
                let layers = [Metalayer { name: b"shape", content: &value[..6] }, Metalayer { name: b"meta", content: &value }];
                self.header = FrameHeader::encode(&HeaderFields { frame_len: 1 << 20, ..self.header.fields() }, &layers).unwrap();
            }
            Change::FillSpecial => {
                let special = [Special::Zeros, Special::Nan, Special::Uninit][self.random.below(3) as usize];
                for old in std::mem::replace(&mut self.entries, vec![IndexEntry::Special(special); count]) {
                    self.let_go(old);
                }
            }
        }
        Ok(())
    }

    fn stage_some(&mut self) -> Result<IndexEntry<b2fuse::store::ChunkKey>> {
        let bytes = some_chunk(&mut self.random);
        self.stage_bytes(bytes)
    }
}

/// A disk with a small frame on it.
pub fn small<S: Store>() -> Start {
    let dir = Dir::default();
    let mut driver = Driver::new(&dir, create::<S>(&dir).unwrap(), 1, 1);
    let fields = HeaderFields {
        varying_chunks: false,
        chunksize: CHUNKSIZE as i32,
        blocksize: CHUNKSIZE as i32,
        typesize: TYPESIZE.into(),
        ..header(0).fields()
    };
    driver.header = FrameHeader::encode(&fields, &[Metalayer { name: b"shape", content: &[0; 6] }]).unwrap();
    for change in [Change::Append, Change::Append, Change::Grow, Change::Append, Change::Append, Change::Vlmetalayer] {
        driver.change(change).unwrap();
    }
    driver.commit().unwrap();
    driver.close().unwrap();
    start(&dir)
}

/// What a store does when these changes are made, each committed, to a small frame; and where in its log the last one begins.
pub fn history<S: Store>(small: &Start, changes: &[Change], seed: u64) -> (History, usize) {
    let dir = Dir::after_cut(small, &[], Cut::Clean);
    let start = start(&dir);
    let mut driver = Driver::new(&dir, open::<S>(&dir, false).unwrap(), seed, 1);
    let mut from = 0;
    for change in changes {
        from = dir.log_len();
        driver.change(*change).unwrap();
        driver.commit().unwrap();
    }
    driver.close().unwrap();
    (History::new(start, &driver), from)
}

/// All sequences of so many changes, every `step`-th.
pub fn sequences(len: u32, step: usize) -> impl Iterator<Item = Vec<Change>> {
    let all = Change::ALL.len();
    (0..all.pow(len)).step_by(step).map(move |number| (0..len).map(|at| Change::ALL[number / all.pow(at) % all]).collect())
}

for_both!(all_pairs_and_triples_survive_power_cuts);

fn all_pairs_and_triples_survive_power_cuts<S: Store>() {
    survive_power_cuts::<S>(sequences(2, 1).chain(sequences(3, 1)), 1);
}

/// Power cuts in all of these sequences. A triple's first two are a pair as well.
pub fn survive_power_cuts<S: Store>(sequences: impl Iterator<Item = Vec<Change>>, seed: u64) {
    let small = small::<S>();
    for changes in sequences {
        let (history, last) = history::<S>(&small, &changes, seed);
        let from = if changes.len() > 2 { last } else { 0 };
        let plan = Plan { from, any: 2, again: 30, seed };
        history.judge::<S>(plan).unwrap_or_else(|error| panic!("{changes:?}, seed {seed}: {error}"));
    }
}
