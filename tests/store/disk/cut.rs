//! The disk as a power cut leaves it: what was synced is there, and of what was not any part.
//!
//! Each sector of 512 bytes holds what it held at some moment since the file's last sync, and a file ends where it ended at some
//! such moment. Each change of a directory is there as a whole or not at all, since its last sync, whatever became of the others.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;

use super::{Dir, File, FileId, Names, Node, Op, ROOT, SECTOR, Start, punch, write};
use crate::frames::Random;

/// In which way the power goes.
#[derive(Debug, Clone, Copy)]
pub enum Cut {
    /// Everything that was done is there.
    Clean,
    /// The same, but the last operation is a write of which only the first sectors are there, or all but those.
    Torn { sectors: u64, first: bool },
    /// Any part of what was not synced, by this seed.
    Any(u64),
}

/// At how many places at most a write is torn.
const TEARS: u64 = 4;

/// The ways in which the power can go after the last operation of `log`, `any` of them by chance.
pub fn cuts(log: &[Op], any: u64, seed: u64) -> Vec<Cut> {
    let mut cuts = vec![Cut::Clean];
    if let Some(Op::Write { offset, data, .. }) = log.last() {
        let end = offset + data.len() as u64;
        let sectors = end.div_ceil(SECTOR) - offset / SECTOR;
        let step = sectors.div_ceil(TEARS).max(1);
        for sectors in (1..sectors).step_by(step as usize) {
            cuts.extend([true, false].map(|first| Cut::Torn { sectors, first }));
        }
    }
    let mut random = Random(seed ^ (log.len() as u64) << 32);
    cuts.extend((0..any).map(|_| Cut::Any(random.next())));
    cuts
}

/// What there is, for [`Dir::after_cut`].
pub fn start(dir: &Dir) -> Start {
    let state = dir.state();
    Start { dirs: state.dirs.clone(), files: state.files.iter().map(|file| file.data.clone()).collect() }
}

impl Dir {
    /// The disk after a power cut when the operations of `log` had been done, where it began as `start`.
    pub fn after_cut(start: &Start, log: &[Op], cut: Cut) -> Dir {
        let mut random = match cut {
            Cut::Any(seed) => Some(Random(seed)),
            _ => None,
        };
        let torn = torn(log, cut);
        let log = if torn.is_some() { &log[..log.len() - 1] } else { log };
        let mut dirs = start.dirs.clone();
        let made = log.iter().filter(|op| matches!(op, Op::Create { node: Node::Dir(_), .. })).count();
        dirs.resize(start.dirs.len() + made, Names::new());
        for (id, names) in dirs.iter_mut().enumerate() {
            let syncs = |op: &Op| matches!(op, Op::SyncFs) || matches!(op, Op::SyncDir { dir } if *dir == id);
            let synced = log.iter().rposition(syncs).unwrap_or(0);
            let likely = random.as_mut().map_or(10, |random| [1, 5, 9, 10][random.below(4) as usize]);
            for (at, op) in log.iter().enumerate().filter(|(_, op)| op.names_in() == Some(id)) {
                if at < synced || random.as_mut().is_none_or(|random| random.below(10) < likely) {
                    op.apply_to(names);
                }
            }
        }
        // What nothing leads to is nowhere.
        let mut reached = vec![ROOT];
        let mut files = Vec::new();
        while let Some(id) = reached.pop() {
            for node in dirs[id].values() {
                match node {
                    Node::Dir(dir) => reached.push(*dir),
                    Node::File(file) => files.push(*file),
                }
            }
        }
        files.sort_unstable();
        files.dedup();
        let dir = Dir::default();
        let mut state = dir.state();
        state.files.resize_with(files.last().map_or(0, |last| last + 1), File::default);
        for file in files {
            let initial = start.files.get(file).cloned().unwrap_or_default();
            let mut data = file_after_cut(initial, log, file, random.as_mut());
            if let Some(Op::Write { offset, data: part, .. }) = torn.as_ref().filter(|op| op.file() == Some(file)) {
                write(&mut data, *offset, part);
            }
            state.files[file].data = data;
        }
        state.dirs = dirs;
        drop(state);
        dir
    }

    /// Tells disks with different content apart.
    pub fn fingerprint(&self) -> u64 {
        let state = self.state();
        let mut hasher = DefaultHasher::new();
        let mut reached = vec![ROOT];
        while let Some(id) = reached.pop() {
            for (name, node) in &state.dirs[id] {
                hasher.write(name.as_encoded_bytes());
                match node {
                    Node::Dir(dir) => {
                        hasher.write_u8(1);
                        reached.push(*dir);
                    }
                    Node::File(file) => {
                        hasher.write_usize(state.files[*file].data.len());
                        hasher.write(&state.files[*file].data);
                    }
                }
            }
        }
        hasher.finish()
    }
}

/// The part of the last write that is there.
fn torn(log: &[Op], cut: Cut) -> Option<Op> {
    let (Cut::Torn { sectors, first }, Some(Op::Write { file, offset, data })) = (cut, log.last()) else { return None };
    let at = (offset / SECTOR + sectors) * SECTOR;
    let (head, rest) = data.split_at((at - offset) as usize);
    Some(match first {
        true => Op::Write { file: *file, offset: *offset, data: head.to_vec() },
        false => Op::Write { file: *file, offset: at, data: rest.to_vec() },
    })
}

fn file_after_cut(initial: Vec<u8>, log: &[Op], file: FileId, random: Option<&mut Random>) -> Vec<u8> {
    let ops: Vec<&Op> = log.iter().filter(|op| op.file() == Some(file) || matches!(op, Op::SyncFs)).collect();
    let apply = |file: &mut Vec<u8>, op: &Op| match op {
        Op::Write { offset, data, .. } => write(file, *offset, data),
        Op::SetLen { len, .. } => file.resize(*len as usize, 0),
        Op::Punch { offset, len, .. } => punch(file, *offset, *len),
        _ => {}
    };
    let mut current = initial;
    let Some(random) = random else {
        ops.iter().for_each(|op| apply(&mut current, op));
        return current;
    };
    let synced = ops.iter().rposition(|op| matches!(op, Op::Sync { .. } | Op::SyncFs)).unwrap_or(0);
    ops[..synced].iter().for_each(|op| apply(&mut current, op));
    let mut versions = vec![current]; // of the whole file, from the sync on
    for op in &ops[synced..] {
        let mut next = versions.last().unwrap().clone();
        apply(&mut next, op);
        versions.push(next);
    }
    let count = versions.len() as u64;
    // Mostly sector by sector, sometimes all of one moment and a few sectors of others.
    let base = random.below(count);
    let mixed = random.below(3) > 0;
    let mut pick = |likely: u64| if mixed && random.below(2) == 0 { random.below(count) } else { likely };
    let mut out = vec![0; versions[pick(base) as usize].len()];
    for (sector, chunk) in out.chunks_mut(SECTOR as usize).enumerate() {
        let version = &versions[pick(base) as usize];
        let from = version.get(sector * SECTOR as usize..).unwrap_or_default();
        let have = from.len().min(chunk.len());
        chunk[..have].copy_from_slice(&from[..have]);
    }
    out
}
