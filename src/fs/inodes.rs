//! Which inodes the kernel knows, by its own count of lookups.
//!
//! Four bytes for each known inode where numbers lie close together, which those of a frame do.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::view::{Ino, ROOT};

/// Inodes a page. A page exists while one of its counts is above zero.
const PAGE: u64 = 64;

/// The counts. A leaf lock: nothing is called while it is held.
#[derive(Default)]
pub(super) struct Inodes(Mutex<HashMap<u64, Box<[u32; PAGE as usize]>>>);

#[expect(clippy::indexing_slicing, reason = "what is left when divided by a page's length is in the page")]
impl Inodes {
    /// An inode is about to be named in a reply.
    pub(super) fn looked_up(&self, ino: Ino) {
        let mut pages = self.0.lock();
        let counts = pages.entry(ino.0 / PAGE).or_insert_with(|| Box::new([0; PAGE as usize]));
        let count = &mut counts[(ino.0 % PAGE) as usize];
        *count = count.saturating_add(1);
    }

    /// The kernel gives back `n` lookups. True if that was the last.
    pub(super) fn forgotten(&self, ino: Ino, n: u64) -> bool {
        let mut pages = self.0.lock();
        let Some(counts) = pages.get_mut(&(ino.0 / PAGE)) else { return false };
        let count = &mut counts[(ino.0 % PAGE) as usize];
        let before = *count;
        *count = count.saturating_sub(u32::try_from(n).unwrap_or(u32::MAX));
        let last = before > 0 && *count == 0;
        if last && counts.iter().all(|count| *count == 0) {
            pages.remove(&(ino.0 / PAGE));
        }
        last
    }

    /// Whether the kernel can have pages or attributes of `ino`.
    pub(super) fn knows(&self, ino: Ino) -> bool {
        ino == ROOT || self.0.lock().get(&(ino.0 / PAGE)).is_some_and(|counts| counts[(ino.0 % PAGE) as usize] > 0)
    }

    /// Every known inode, the root last.
    pub(super) fn all(&self) -> Vec<Ino> {
        let pages = self.0.lock();
        let known = pages.iter().flat_map(|(page, counts)| {
            (0..PAGE).filter(|i| counts[*i as usize] > 0).map(move |i| Ino(page * PAGE + i)).filter(|ino| *ino != ROOT)
        });
        known.chain([ROOT]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_up_and_down() {
        let inodes = Inodes::default();
        let (a, b) = (Ino(70), Ino(1 << 60));
        assert!(!inodes.knows(a) && inodes.knows(ROOT));
        inodes.looked_up(a);
        inodes.looked_up(a);
        inodes.looked_up(b);
        let mut all = inodes.all();
        all.sort();
        assert_eq!(all, [ROOT, a, b]);
        assert!(!inodes.forgotten(a, 1));
        assert!(inodes.knows(a));
        assert!(inodes.forgotten(a, 1));
        assert!(!inodes.forgotten(a, 1), "a forget too many is not the last one again");
        assert!(inodes.forgotten(b, 5));
        assert!(inodes.0.lock().is_empty());
    }
}
