//! Random sessions, held against a model of the directory.

use super::*;

/// What a directory should hold and SOURCE should become, computed the slow way.
#[derive(Debug, Clone)]
struct Model {
    files: BTreeMap<u32, Vec<u8>>,
    /// Chunk files written since the index was.
    newer: BTreeSet<u32>,
    index: Vec<IndexEntry<ChunkId>>,
    last: u32,
}

impl Model {
    /// Rule 3 of the contract.
    fn settle(&mut self) {
        let files = &self.files;
        for entry in &mut self.index {
            if matches!(entry, IndexEntry::Stored(id) if !files.contains_key(&id.0)) {
                *entry = IndexEntry::Special(Special::Uninit);
            }
        }
        let named: BTreeSet<u32> = crate::view::sparse::state::stored(&self.index).map(|id| id.0).collect();
        for n in self.newer.clone() {
            if named.contains(&n) || !files.contains_key(&n) {
                continue;
            }
            let size = files[&n].len() as u32 - 32;
            let count = self.index.len();
            let last = n as usize + 1 == count;
            if (n as usize) < count {
                let special = matches!(self.index[n as usize], IndexEntry::Special(_));
                if special && (size == CHUNKSIZE || last) {
                    self.index[n as usize] = id(n);
                    if last {
                        self.last = size;
                    }
                }
            } else if n as usize == count && (count == 0 || self.last == CHUNKSIZE) {
                self.index.push(id(n));
                self.last = size;
            }
        }
    }

    /// The names of files that the index does not name.
    fn without_place(&self) -> Vec<String> {
        let lost = self.files.keys().filter(|n| !self.index.contains(&id(**n)));
        lost.map(|n| ChunkId(*n).file_name()).collect()
    }

    fn cells(&self) -> Vec<Cell> {
        let cells = self.index.iter().map(|entry| match entry {
            IndexEntry::Stored(id) => Cell::Chunk(self.files[&id.0].clone()),
            IndexEntry::Special(special) => Cell::Special(*special),
        });
        cells.collect()
    }

    fn position(&self, n: u32) -> Option<usize> {
        self.index.iter().position(|entry| *entry == id(n))
    }

    fn fits(&self, n: u32, size: u32) -> bool {
        match self.position(n) {
            Some(position) if position + 1 < self.index.len() => size == CHUNKSIZE,
            _ => size <= CHUNKSIZE,
        }
    }

    fn write(&mut self, n: u32, bytes: Vec<u8>) {
        match self.position(n) {
            Some(position) if position + 1 == self.index.len() => self.last = bytes.len() as u32 - 32,
            Some(_) => {}
            None => drop(self.newer.insert(n)),
        }
        self.files.insert(n, bytes);
    }
}

/// A small generator of reproducible numbers (xorshift).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn random_session(seed: u64, steps: u32) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let cells = [full(1), zeros(), full(2), full(3)];
    let mut mount = Mount::of(&cells, CHUNKSIZE);
    let files = [(0, 1), (2, 2), (3, 3)].map(|(n, fill)| (n, chunk(fill, CHUNKSIZE)));
    let index = vec![id(0), IndexEntry::Special(Special::Zeros), id(2), id(3)];
    let mut model = Model { files: files.into(), newer: BTreeSet::new(), index, last: CHUNKSIZE };
    for step in 0..steps {
        let at = format!("seed {seed}, step {step}");
        let n = rng.below(8) as u32;
        let name = ChunkId(n).file_name();
        let fill = rng.below(250) as u8;
        match rng.below(12) {
            0..=3 => {
                let size = if rng.below(4) == 0 { 1 + rng.below(70) as u32 } else { CHUNKSIZE };
                let fits = model.fits(n, size);
                let temp = rng.below(3) == 0;
                let result = if temp {
                    mount.cp(".temp", &chunk(fill, size)).unwrap();
                    mount.mv(".temp", &name)
                } else {
                    mount.cp(&name, &chunk(fill, size))
                };
                assert_eq!(errno(result), if fits { 0 } else { libc::EINVAL }, "{at}: {name} of {size}");
                if fits {
                    model.write(n, chunk(fill, size));
                } else if temp {
                    mount.rm(".temp").unwrap();
                } else if !model.files.contains_key(&n) {
                    // A file that was never a chunk is empty.
                    assert_eq!(mount.read(&name), b"", "{at}");
                    mount.rm(&name).unwrap();
                }
            }
            4 => {
                let known = model.files.remove(&n).is_some();
                model.newer.remove(&n);
                assert_eq!(errno(mount.rm(&name)), if known { 0 } else { libc::ENOENT }, "{at}");
            }
            5 | 6 => {
                // A new index of files that are there, the last of which says how long it is.
                let mut index = Vec::new();
                for n in model.files.keys() {
                    match rng.below(5) {
                        0 => {}
                        1 => index.insert(rng.below(index.len() as u64 + 1) as usize, IndexEntry::Special(Special::Nan)),
                        _ => index.insert(rng.below(index.len() as u64 + 1) as usize, id(*n)),
                    }
                }
                let short = |entry: &IndexEntry<ChunkId>| matches!(entry, IndexEntry::Stored(id) if model.files[&id.0].len() as u32 != CHUNKSIZE + 32);
                let last = match index.iter().position(short) {
                    Some(position) => {
                        let entry = index.remove(position);
                        index.retain(|entry| !short(entry));
                        index.push(entry);
                        let IndexEntry::Stored(id) = entry else { unreachable!() };
                        model.files[&id.0].len() as u32 - 32
                    }
                    None => CHUNKSIZE,
                };
                let bytes = index_file(&index, last);
                mount.cp("chunks.b2frame", &bytes[..rng.below(bytes.len() as u64) as usize]).unwrap();
                mount.cp("chunks.b2frame", &bytes).unwrap();
                let named_before: BTreeSet<u32> = crate::view::sparse::state::stored(&model.index).map(|id| id.0).collect();
                model.index = index;
                model.last = last;
                model.files.retain(|n, _| !named_before.contains(n) || model.index.contains(&id(*n)));
                model.newer.clear();
            }
            7 => {
                let to = rng.below(8) as u32;
                if n != to && model.files.contains_key(&n) {
                    let bytes = model.files[&n].clone();
                    let fits = model.fits(to, bytes.len() as u32 - 32);
                    let result = mount.mv(&name, &ChunkId(to).file_name());
                    assert_eq!(errno(result), if fits { 0 } else { libc::EINVAL }, "{at}");
                    if fits {
                        model.files.remove(&n);
                        model.newer.remove(&n);
                        model.write(to, bytes);
                    }
                }
            }
            8 if step % 5 == 0 => {
                let lost = mount.unmount_losing();
                model.settle();
                assert_eq!(lost, model.without_place(), "{at}: what is said to be lost");
                assert_eq!(mount.committed(), model.cells(), "{at}: after unmount");
                // The next mount numbers by position, and files without a place are gone.
                let cells = model.cells();
                model.index = (0u32..)
                    .zip(&cells)
                    .map(|(n, cell)| match cell {
                        Cell::Chunk(_) => id(n),
                        Cell::Special(special) => IndexEntry::Special(*special),
                    })
                    .collect();
                model.files = (0u32..)
                    .zip(cells)
                    .filter_map(|(n, cell)| match cell {
                        Cell::Chunk(bytes) => Some((n, bytes)),
                        Cell::Special(_) => None,
                    })
                    .collect();
                model.newer.clear();
                mount.mount();
            }
            _ => {
                mount.sync();
                model.settle();
                assert_eq!(mount.committed(), model.cells(), "{at}: after fsync");
                let index = IndexFile::parse(&mount.read("chunks.b2frame")).unwrap();
                assert_eq!(*index.entries, model.index, "{at}");
            }
        }
        let names: Vec<String> = model.files.keys().map(|n| ChunkId(*n).file_name()).collect();
        assert_eq!(mount.names()[1..], names, "{at}");
        for (n, bytes) in &model.files {
            assert_eq!(mount.read(&ChunkId(*n).file_name()), *bytes, "{at}: {n}");
        }
    }
    let lost = mount.unmount_losing();
    model.settle();
    assert_eq!(lost, model.without_place());
}

#[test]
fn random_sessions_agree_with_the_model() {
    for seed in 1..=40 {
        random_session(seed, 120);
    }
}
