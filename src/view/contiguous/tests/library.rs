//! The rounds in which C-Blosc2 changes a cframe, as its source has them and as they were traced, played against the view.

use super::*;
use crate::format::header::FrameHeader;
use crate::format::metalayer::Metalayer;
use crate::format::trailer::Trailer;
use crate::format::{ChunkOffset, IndexEntry, index};

/// What a round does to the file.
#[derive(Debug, Clone)]
pub enum Do {
    Write(u64, Vec<u8>),
    Truncate(u64),
}

/// One mutation.
#[derive(Debug, Clone)]
pub enum Op {
    Append(Cell),
    Insert(usize, Cell),
    Update(usize, Cell),
    Delete(usize),
    Reorder(u64),
    Vlmeta(usize),
}

/// The library's idea of the file.
#[derive(Clone)]
pub struct Library {
    header: FrameHeader,
    pub cells: Vec<Cell>,
    entries: Vec<IndexEntry<ChunkOffset>>,
    /// Length of the chunks section.
    cbytes: u64,
    trailer: Vec<u8>,
    pub file: Vec<u8>,
}

fn stored(cell: &Cell) -> &[u8] {
    match cell {
        Cell::Chunk(bytes) => bytes,
        Cell::Special(_) => &[],
    }
}

fn entry(cell: &Cell, offset: u64) -> IndexEntry<ChunkOffset> {
    match cell {
        Cell::Chunk(_) => IndexEntry::Stored(ChunkOffset::new(offset)),
        Cell::Special(special) => IndexEntry::Special(*special),
    }
}

fn trailer(len: usize) -> Vec<u8> {
    let content = vec![7; len];
    let layers = [Metalayer { name: b"m", content: &content }];
    let layers = if len == 0 { &layers[..0] } else { &layers };
    Trailer::encode(layers).unwrap().as_bytes().to_vec()
}

impl Library {
    pub fn new(cells: &[Cell], vlmeta: usize) -> Self {
        let file = cframe(cells, CHUNKSIZE, CHUNKSIZE as i32);
        let mut offset = 0;
        let entries = cells.iter().map(|cell| {
            offset += stored(cell).len() as u64;
            entry(cell, offset - stored(cell).len() as u64)
        });
        let entries = entries.collect();
        let header = FrameHeader::parse(&file).unwrap();
        let mut library =
            Library { header, cells: cells.to_vec(), entries, cbytes: offset, trailer: trailer(vlmeta), file: Vec::new() };
        library.file = library.whole(&file);
        library
    }

    /// The file, given one with the same chunks.
    fn whole(&mut self, chunks: &[u8]) -> Vec<u8> {
        let index = self.index();
        self.set_lengths(&index);
        let base = self.header.as_bytes().len();
        let chunks = &chunks[base..base + self.cbytes as usize];
        [self.header.as_bytes(), chunks, &index, &self.trailer].concat()
    }

    fn index(&self) -> Vec<u8> {
        index::encode(self.entries.iter().copied()).unwrap()
    }

    fn set_lengths(&mut self, index: &[u8]) {
        let head = self.header.as_bytes().len() as u64;
        self.header.set_frame_len(head + self.cbytes + index.len() as u64 + self.trailer.len() as u64);
        self.header.set_cbytes(self.cbytes);
        self.header.set_nbytes(self.cells.len() as u64 * u64::from(CHUNKSIZE));
    }

    fn last_rounds(&mut self, first: Vec<Do>, index: &[u8]) -> Vec<Vec<Do>> {
        let base = self.header.as_bytes().len() as u64;
        self.set_lengths(index);
        // Without chunks the trailer follows the header, which knows nothing of that before the last round.
        let at = if self.cells.is_empty() { base } else { base + self.cbytes + index.len() as u64 };
        let mut rounds = vec![first];
        rounds.push(vec![Do::Write(0, self.header.as_bytes().to_vec())]);
        let end = at + self.trailer.len() as u64;
        rounds.push(vec![Do::Write(at, self.trailer.clone()), Do::Truncate(end)]);
        rounds.push(vec![Do::Write(16, end.to_be_bytes().to_vec())]);
        self.header.set_frame_len(end);
        rounds
    }

    /// The rounds of a mutation; the cells are those after it.
    pub fn rounds(&mut self, op: &Op) -> Vec<Vec<Do>> {
        let base = self.header.as_bytes().len() as u64;
        let mut first = Vec::new();
        match op {
            Op::Append(cell) | Op::Insert(_, cell) => {
                let at = if let Op::Insert(at, _) = op { *at } else { self.cells.len() };
                self.cells.insert(at, cell.clone());
                self.entries.insert(at, entry(cell, self.cbytes));
                first.push(Do::Write(base + self.cbytes, stored(cell).to_vec()));
                self.cbytes += stored(cell).len() as u64;
            }
            Op::Update(at, cell) => {
                let (old_len, new_len) = (stored(&self.cells[*at]).len() as u64, stored(cell).len() as u64);
                self.cells[*at] = cell.clone();
                match self.entries[*at] {
                    IndexEntry::Special(_) => {
                        self.entries[*at] = entry(cell, self.cbytes);
                        first.push(Do::Write(base + self.cbytes, stored(cell).to_vec()));
                        self.cbytes += new_len;
                    }
                    IndexEntry::Stored(old) => {
                        let old = old.bytes();
                        self.entries[*at] = entry(cell, old);
                        for entry in &mut self.entries {
                            if let IndexEntry::Stored(offset) = entry
                                && offset.bytes() > old
                            {
                                *offset = ChunkOffset::new(offset.bytes() + new_len - old_len);
                            }
                        }
                        let tail = self.file[(base + old + old_len) as usize..(base + self.cbytes) as usize].to_vec();
                        if old_len != new_len && !tail.is_empty() {
                            first.push(Do::Write(base + old + new_len, tail));
                        }
                        first.push(Do::Write(base + old, stored(cell).to_vec()));
                        self.cbytes = self.cbytes + new_len - old_len;
                    }
                }
            }
            Op::Delete(at) => {
                self.cells.remove(*at);
                self.entries.remove(*at);
            }
            Op::Reorder(by) => {
                let by = *by as usize % self.cells.len().max(1);
                self.cells.rotate_left(by);
                self.entries.rotate_left(by);
            }
            Op::Vlmeta(len) => {
                self.trailer = trailer(*len);
                let index = self.index();
                let rounds = self.last_rounds(Vec::new(), &index);
                // The header before it knows of the new length.
                let mut header = self.header.clone();
                header.set_frame_len(self.file.len() as u64);
                return [vec![vec![Do::Write(0, header.as_bytes().to_vec())]], rounds[2..].to_vec()].concat();
            }
        }
        let index = if self.cells.is_empty() { chunk(0, 0) } else { self.index() };
        first.push(Do::Write(base + self.cbytes, index.clone()));
        self.last_rounds(first, &index)
    }

    fn apply(&mut self, what: &Do) {
        match what {
            Do::Write(at, bytes) => {
                let end = *at as usize + bytes.len();
                self.file.resize(self.file.len().max(end), 0);
                self.file[*at as usize..end].copy_from_slice(bytes);
            }
            Do::Truncate(len) => self.file.resize(*len as usize, 0),
        }
    }

    /// Changes the file without a mount, which leaves gaps with something in them.
    fn age(&mut self, ops: usize, random: &mut Random) {
        for _ in 0..ops {
            let op = random.op(self.cells.len());
            self.rounds(&op).iter().flatten().for_each(|what| self.apply(what));
        }
    }

    /// Whether the view may show these bytes of the file, in the middle of a change as well. After the first one, gaps that the
    /// file had before it read as zeros.
    fn is_shown(&self, seen: &[u8], has_gaps: bool) -> bool {
        let shown = self.shown();
        match has_gaps {
            false => seen == self.file || seen == shown,
            true => seen.len() == shown.len() && seen.iter().zip(&self.file).zip(&shown).all(|((s, a), b)| s == a || s == b),
        }
    }

    /// What the view shows for the file: what is in no chunk reads as zeros.
    fn shown(&self) -> Vec<u8> {
        let base = self.header.as_bytes().len();
        let mut shown = self.file.clone();
        if self.cells.is_empty() {
            return shown;
        }
        let mut holes = vec![true; self.cbytes as usize];
        for (cell, entry) in self.cells.iter().zip(&self.entries) {
            if let IndexEntry::Stored(at) = entry {
                holes[at.bytes() as usize..][..stored(cell).len()].fill(false);
            }
        }
        for (byte, hole) in shown[base..].iter_mut().zip(holes) {
            if hole {
                *byte = 0;
            }
        }
        shown
    }
}

/// An open, writes, a close, as the library does it: without a look at what the close says.
pub fn play(mount: &Mount, round: &[Do]) {
    let handle = mount.open(NAME, false).unwrap();
    for what in round {
        match what {
            Do::Write(at, bytes) => {
                for (n, piece) in bytes.chunks(100).enumerate() {
                    mount.view().write(handle, at + n as u64 * 100, piece).unwrap();
                }
            }
            Do::Truncate(len) => {
                let set = SetAttr { size: Some(*len), ..SetAttr::default() };
                mount.view().setattr(mount.ino(NAME).unwrap(), Some(handle), set, &mut Vec::new()).unwrap();
            }
        }
    }
    let _ = mount.close(handle);
}

pub fn varied(seed: u64) -> Cell {
    match seed % 7 {
        0 => zeros(),
        1 => Cell::Special(Special::Nan),
        // Every other length: a repeated value.
        2 => Cell::Chunk(repeated(seed as u8, CHUNKSIZE)),
        _ => full((seed % 251) as u8 + 1),
    }
}

/// A chunk of 33 bytes that stands for `nbytes` times a value.
pub fn repeated(value: u8, nbytes: u32) -> Vec<u8> {
    let mut bytes = chunk(value, nbytes);
    bytes.truncate(33);
    bytes[2] = 0x05;
    bytes[12..16].copy_from_slice(&33u32.to_le_bytes());
    bytes[31] = 3 << 4;
    bytes
}

/// Numbers that are the same in each run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below.max(1)
    }

    pub fn op(&mut self, count: usize) -> Op {
        let at = self.next(count as u64) as usize;
        let cell = varied(self.next(1 << 20));
        match self.next(if count == 0 { 2 } else { 12 }) {
            0 | 1 => Op::Append(cell),
            2 | 3 => Op::Insert(at, cell),
            4 => Op::Delete(at),
            5 => Op::Reorder(self.next(9)),
            6 => Op::Vlmeta(self.next(400) as usize),
            7 | 8 => Op::Update(at, zeros()),
            _ => Op::Update(at, cell),
        }
    }
}

/// Chunks that a commit has to write.
fn news(op: &Op) -> usize {
    match op {
        Op::Append(Cell::Chunk(_)) | Op::Insert(_, Cell::Chunk(_)) | Op::Update(_, Cell::Chunk(_)) => 1,
        _ => 0,
    }
}

#[test]
fn every_round_of_the_library_is_harmless_and_the_last_makes_the_state() {
    let mut random = Random(0x1234_5678_9abc_def1);
    for case in 0..24 {
        let cells: Vec<Cell> = (0..random.next(12)).map(|_| varied(random.next(1 << 20))).collect();
        let mut library = Library::new(&cells, [0, 0, 90, 700][case % 4]);
        let layout = [Layout::Sparse, Layout::Contiguous][case / 4 % 2];
        let has_gaps = layout == Layout::Contiguous && case > 8;
        library.age(if has_gaps { 15 } else { 0 }, &mut random);
        let mount = Mount::over(layout, &library.file);
        assert!(mount.read(NAME) == library.file, "case {case}");
        for _ in 0..20 {
            let op = random.op(library.cells.len());
            let before = library.cells.clone();
            let rounds = library.rounds(&op);
            mount.since();
            for (n, round) in rounds.iter().enumerate() {
                play(&mount, round);
                round.iter().for_each(|what| library.apply(what));
                let seen = mount.read(NAME);
                assert!(library.is_shown(&seen, has_gaps), "case {case}, {op:?}, round {n}");
                mount.view().publish().unwrap();
                let committed = mount.committed();
                assert!(committed == before || committed == library.cells, "case {case}, {op:?}, round {n}: {committed:?}");
            }
            library.file = library.shown();
            assert!(mount.read(NAME) == library.file, "case {case}, {op:?}");
            assert!(mount.committed() == library.cells, "case {case}, {op:?}");
            let (staged, commits) = mount.since();
            assert!(staged <= news(&op), "case {case}, {op:?}: {staged} staged");
            assert!(commits <= 1 || matches!(op, Op::Vlmeta(_)), "case {case}, {op:?}: {commits} commits");
        }
    }
}

#[test]
fn a_library_that_dies_between_rounds_leaves_the_state_before_or_after() {
    let mut random = Random(0x9876_5432_1abc_def1);
    for case in 0..100 {
        let cells: Vec<Cell> = (0..1 + random.next(12)).map(|_| varied(random.next(1 << 20))).collect();
        let mut library = Library::new(&cells, [0, 0, 90, 700][case % 4]);
        let layout = [Layout::Sparse, Layout::Contiguous][case / 4 % 2];
        library.age(if layout == Layout::Contiguous { case / 8 } else { 0 }, &mut random);
        let cells = library.cells.clone();
        let mount = Mount::over(layout, &library.file);
        let op = random.op(library.cells.len());
        let rounds = library.rounds(&op);
        let last = random.next(rounds.len() as u64) as usize;
        for (n, round) in rounds[..=last].iter().enumerate() {
            // In the last round, perhaps in the middle of it.
            let count = if n == last { 1 + random.next(round.len() as u64) as usize } else { round.len() };
            play(&mount, &round[..count]);
        }
        mount.wait(2);
        mount.wait(20);
        mount.view().publish().unwrap();
        let committed = mount.committed();
        assert!(committed == cells || committed == library.cells, "case {case}, {op:?}, {last}: {committed:?}");
        let seen = Mount::of_bytes(&mount.read(NAME));
        assert_eq!(seen.committed(), committed, "case {case}: what is shown is what is committed");
    }
}

#[test]
fn a_special_value_among_chunks_of_one_length_is_not_taken_for_a_shift() {
    // After the first round the old index is whole, each chunk behind the new special one is the next one, and the last is the
    // new index.
    for at in 0..8 {
        let cells: Vec<Cell> = (0..8).map(|n| full(n + 1)).collect();
        let mut library = Library::new(&cells, 0);
        let mount = Mount::of_bytes(&library.file);
        let rounds = library.rounds(&Op::Update(at, zeros()));
        play(&mount, &rounds[0]);
        mount.sync();
        assert_eq!(mount.committed(), cells);
        mount.wait(2);
        assert_eq!(mount.committed(), cells);
        rounds[1..].iter().for_each(|round| play(&mount, round));
        assert_eq!(mount.committed(), library.cells);
        assert_eq!(mount.since().0, 0);
    }
}

#[test]
fn a_new_frame_by_the_library_takes_the_place_of_the_old() {
    let mount = Mount::of(&[full(1), full(2)], CHUNKSIZE);
    let new = Library::new(&[full(5), zeros(), full(7)], 0);
    let mut header = new.header.clone();
    // The library announces the smallest trailer first.
    let without = new.file.len() - new.trailer.len();
    header.set_frame_len(without as u64 + 25);
    let first = [header.as_bytes(), &new.file[header.as_bytes().len()..without]].concat();
    assert_eq!(errno(mount.cp(NAME, &first)), libc::EINVAL);
    play(&mount, &[Do::Write(without as u64, new.trailer.clone()), Do::Truncate(new.file.len() as u64)]);
    play(&mount, &[Do::Write(16, (new.file.len() as u64).to_be_bytes().to_vec())]);
    assert_eq!(mount.committed(), new.cells);
    assert!(mount.read(NAME) == new.file);
}
