//! Goes through all kept files: counts them and, if there are too many bytes, removes the least recently used.
//!
//! Only files with names of the cache's own form, that belong to the directory's owner, are counted and removed. A file that was used since
//! it was seen stays.

use std::collections::BinaryHeap;
use std::ffi::OsStr;
use std::io;
use std::time::{Duration, SystemTime};

use super::names::{Folder, InFolder, piece_name};
use super::room::cost;
use crate::store::backend::Backend;

/// As many of the oldest files are remembered at a time: some megabytes.
const MOST_OLD: usize = 1 << 17;
/// After so long nobody writes to an unfinished file any more.
const UNFINISHED: Duration = Duration::from_secs(10 * 60);

/// A file of a piece. The newest is the greatest.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Old {
    used: SystemTime,
    folder: u64,
    object: u64,
    piece: u64,
    cost: u64,
}

/// What was found.
pub(super) struct Found {
    /// Bytes that are kept.
    pub(super) bytes: u64,
    /// The files that were not used for longest.
    oldest: BinaryHeap<Old>,
}

/// Looks through everything. What was dropped, and what was never finished, is removed.
pub(super) fn walk(dir: &dyn Backend, owner: u32) -> io::Result<Found> {
    let mut found = Found { bytes: 0, oldest: BinaryHeap::new() };
    let mut folders = Vec::new();
    dir.each_name(&mut |name| {
        folders.extend(Folder::parse(name));
        true
    })?;
    for folder in folders {
        // It may have gone since, and one that is no directory is none of ours.
        let Ok(inside) = dir.open_dir(&folder.name()) else { continue };
        match folder {
            Folder::Dropped(..) => {
                clear(dir, folder, &*inside, owner);
            }
            Folder::State(state) => {
                if found.add(&*inside, state, owner)? == 0 {
                    // Whoever wants to keep something makes it again. One that holds something else stays.
                    let _ = dir.remove_dir(&folder.name());
                }
            }
        }
    }
    Ok(found)
}

/// Removes what is ours in a folder, and the folder. Answers what the files cost.
pub(super) fn clear(dir: &dyn Backend, folder: Folder, inside: &dyn Backend, owner: u32) -> u64 {
    let (mut names, mut freed) = (Vec::new(), 0);
    let _ = inside.each_name(&mut |name| {
        names.extend(InFolder::parse(name).map(|_| name.to_owned()));
        true
    });
    for name in names {
        if let Some((_, cost)) = seen(inside, &name, owner)
            && inside.remove(&name).is_ok()
        {
            freed += cost;
        }
    }
    let _ = dir.remove_dir(&folder.name());
    freed
}

/// When a file of ours was last used, and what it costs.
fn seen(folder: &dyn Backend, name: &OsStr, owner: u32) -> Option<(SystemTime, u64)> {
    let stat = folder.stat(name).ok().filter(|stat| stat.is_file() && stat.uid == owner)?;
    Some((stat.mtime, cost(stat.len)))
}

impl Found {
    /// Adds what is in a folder; answers how many files stay. A file that is there under one name or another all the while is not missed:
    /// what is unfinished is looked for first, and is then found with its name at the latest.
    fn add(&mut self, inside: &dyn Backend, folder: u64, owner: u32) -> io::Result<u64> {
        let mut count = 0;
        inside.each_name(&mut |name| {
            let Some(InFolder::Unfinished) = InFolder::parse(name) else { return true };
            let Some((used, cost)) = seen(inside, name, owner) else { return true };
            let age = SystemTime::now().duration_since(used).unwrap_or_default();
            if age <= UNFINISHED || inside.remove(name).is_err() {
                count += 1;
                self.bytes = self.bytes.saturating_add(cost);
            }
            true
        })?;
        inside.each_name(&mut |name| {
            let Some(InFolder::Piece(object, piece)) = InFolder::parse(name) else { return true };
            let Some((used, cost)) = seen(inside, name, owner) else { return true };
            self.oldest.push(Old { used, folder, object, piece, cost });
            if self.oldest.len() > MOST_OLD {
                self.oldest.pop();
            }
            count += 1;
            self.bytes = self.bytes.saturating_add(cost);
            true
        })?;
        Ok(count)
    }

    /// Removes the oldest files until at most `low` bytes are kept. Answers how many bytes were removed.
    pub(super) fn evict(&mut self, dir: &dyn Backend, owner: u32, low: u64) -> u64 {
        let mut freed = 0;
        let mut opened: Option<(u64, Box<dyn Backend>)> = None;
        for old in std::mem::take(&mut self.oldest).into_sorted_vec() {
            if self.bytes <= low {
                break;
            }
            if opened.as_ref().is_none_or(|(folder, _)| *folder != old.folder) {
                opened = dir.open_dir(&Folder::State(old.folder).name()).ok().map(|inside| (old.folder, inside));
            }
            let Some((_, inside)) = &opened else { continue };
            let name = piece_name(old.object, old.piece);
            // One that was used meanwhile, or has gone, is somebody's to count.
            if seen(&**inside, &name, owner) == Some((old.used, old.cost)) && inside.remove(&name).is_ok() {
                freed += old.cost;
                self.bytes = self.bytes.saturating_sub(old.cost);
            }
        }
        freed
    }
}
