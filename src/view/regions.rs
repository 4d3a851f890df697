//! Inodes of the files of many frames in one mount.
//!
//! A frame's inodes have 64 bits, of which the lower 34 tell its files apart and the upper 30 hardly ever change. In a tree each
//! value of the upper ones is a *region* of the frame, counted from 1:
//!
//! ```text
//!   63   62 .. 34   33 .. 0
//!    1 |  region  |  file  |        region 0: nodes of the tree itself
//! ```
//!
//! A region that was given back is not given again before all others have been, so a frame that comes back as another has other inodes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use super::{Ino, Invalidation, Invalidations, ROOT};

/// The bit of numbers that are ours, and not those of a file system below.
pub const OURS: u64 = 1 << 63;
/// Bits that tell the files of a frame apart.
const FILE_BITS: u32 = 34;
const FILE: u64 = (1 << FILE_BITS) - 1;
/// The last region.
const LAST_REGION: u64 = (1 << (63 - FILE_BITS)) - 1;
/// The last number of a node that is not in a region.
pub const LAST_NODE: u64 = FILE;

/// A frame, whose files have inodes of some regions.
pub trait Numbered {
    /// The inode of what stands for it.
    fn ino(&self) -> Ino;

    /// Its regions, by the upper bits of its own inodes. Locked before what the regions are kept in.
    fn regions(&self) -> &Mutex<HashMap<u64, u64>>;
}

/// The number after the `last` one that is given next, from 1 to `most`, and then from 1 again. There are more than can be taken at once.
pub fn next_free(last: &mut u64, most: u64, is_taken: impl Fn(u64) -> bool) -> u64 {
    loop {
        *last = if *last >= most { 1 } else { *last + 1 };
        if !is_taken(*last) {
            return *last;
        }
    }
}

/// Which frame has a region, and the upper bits that it stands for.
pub struct Regions<F> {
    map: RwLock<HashMap<u64, (Weak<F>, u64)>>,
    /// The region that was given last. A leaf lock.
    last: Mutex<u64>,
}

impl<F> Default for Regions<F> {
    fn default() -> Self {
        Regions { map: RwLock::default(), last: Mutex::new(0) }
    }
}

impl<F: Numbered> Regions<F> {
    /// The frame that an inode belongs to, and its number there.
    pub fn find(&self, ino: Ino) -> Option<(Arc<F>, Ino)> {
        let region = (ino.0 & !OURS) >> FILE_BITS;
        if ino.0 & OURS == 0 || region == 0 {
            return None;
        }
        let map = self.map.read();
        let (frame, upper) = map.get(&region)?;
        Some((frame.upgrade()?, Ino(upper << FILE_BITS | ino.0 & FILE)))
    }

    /// The inode of a frame's file in the tree.
    pub fn outer(&self, frame: &Arc<F>, inner: Ino) -> Ino {
        if inner == ROOT {
            return frame.ino();
        }
        let upper = inner.0 >> FILE_BITS;
        let region = *frame.regions().lock().entry(upper).or_insert_with(|| {
            let mut map = self.map.write();
            let region = next_free(&mut self.last.lock(), LAST_REGION, |region| map.contains_key(&region));
            map.insert(region, (Arc::downgrade(frame), upper));
            region
        });
        Ino(OURS | region << FILE_BITS | inner.0 & FILE)
    }

    /// The frame's files get other inodes from now on.
    pub fn leave(&self, frame: &F) {
        // The frame's first, as above.
        let mut regions = frame.regions().lock();
        let mut map = self.map.write();
        for (_, region) in regions.drain() {
            map.remove(&region);
        }
    }

    /// The frames that inodes belong to, each with their numbers there.
    pub fn by_frame(&self, inos: &[Ino]) -> Vec<(Arc<F>, Vec<Ino>)> {
        let mut frames: BTreeMap<Ino, (Arc<F>, Vec<Ino>)> = BTreeMap::new();
        for (frame, inner) in inos.iter().filter_map(|ino| self.find(*ino)) {
            frames.entry(frame.ino()).or_insert_with(|| (frame, Vec::new())).1.push(inner);
        }
        frames.into_values().collect()
    }

    /// Adds what the kernel must forget of a frame's files. Whether all its names are to be looked up again.
    pub fn tell(&self, frame: &Arc<F>, inner: Invalidations, invalidations: &mut Invalidations) -> bool {
        let outer = |ino: Ino| self.outer(frame, ino);
        let mut all = false;
        for inval in inner {
            match inval {
                Invalidation::Data(ino) => invalidations.push(Invalidation::Data(outer(ino))),
                Invalidation::Range(ino, start, len) => invalidations.push(Invalidation::Range(outer(ino), start, len)),
                Invalidation::Attr(ino) => invalidations.push(Invalidation::Attr(outer(ino))),
                Invalidation::Entry(parent, name) => invalidations.push(Invalidation::Entry(outer(parent), name)),
                Invalidation::Expired(parent, name) => invalidations.push(Invalidation::Expired(outer(parent), name)),
                Invalidation::Names => all = true,
                // One range is of one region.
                Invalidation::AttrWithin(first, _) => {
                    invalidations.extend(region_of(&**frame, first).map(|(first, last)| Invalidation::AttrWithin(first, last)));
                }
                Invalidation::Within(first, _) => {
                    invalidations.extend(region_of(&**frame, first).map(|(first, last)| Invalidation::Within(first, last)));
                }
                Invalidation::All => {
                    invalidations.push(Invalidation::Data(frame.ino()));
                    invalidations.extend(ranges(&**frame));
                    all = true;
                }
            }
        }
        all
    }
}

/// All files of a frame, for the kernel to forget.
pub fn ranges(frame: &impl Numbered) -> Vec<Invalidation> {
    frame
        .regions()
        .lock()
        .values()
        .map(|region| range_of(*region))
        .map(|(first, last)| Invalidation::Within(first, last))
        .collect()
}

/// The first and the last inode of the region that an inode of a frame is in, if it has one.
fn region_of(frame: &impl Numbered, inner: Ino) -> Option<(Ino, Ino)> {
    frame.regions().lock().get(&(inner.0 >> FILE_BITS)).map(|region| range_of(*region))
}

fn range_of(region: u64) -> (Ino, Ino) {
    let first = OURS | region << FILE_BITS;
    (Ino(first), Ino(first | FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Frame(Ino, Mutex<HashMap<u64, u64>>);

    impl Numbered for Frame {
        fn ino(&self) -> Ino {
            self.0
        }

        fn regions(&self) -> &Mutex<HashMap<u64, u64>> {
            &self.1
        }
    }

    #[test]
    fn regions_begin_again_after_the_last_and_none_has_two_frames() {
        let regions = Regions::default();
        let frame = |ino: u64| Arc::new(Frame(Ino(ino), Mutex::default()));
        let of = |frame: &Arc<Frame>| regions.outer(frame, Ino(5 << FILE_BITS | 7));
        let (one, last, next) = (frame(11), frame(12), frame(13));
        let first = of(&one);
        *regions.last.lock() = LAST_REGION - 1;
        for (frame, region) in [(&last, LAST_REGION), (&next, 2)] {
            let ino = of(frame);
            assert_eq!(ino, Ino(OURS | region << FILE_BITS | 7));
            let (found, inner) = regions.find(ino).unwrap();
            assert_eq!((found.0, inner), (frame.0, Ino(5 << FILE_BITS | 7)));
        }
        assert_eq!(regions.find(first).unwrap().0.0, one.0);
    }
}
