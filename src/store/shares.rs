//! Values of many frames under one bound: the last used ones stay, whichever frame they are of.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lru::LruCache;
use parking_lot::Mutex;

use super::ChunkKey;

/// The values of all frames, of which each has a [`LruPart`].
pub(super) struct SharedLru<V>(Mutex<Shares<V>>);

impl<V> SharedLru<V> {
    /// Room for values that cost at most `most` together.
    pub(super) fn new(most: u64, cost: fn(&V) -> u64) -> Self {
        SharedLru(Mutex::new(Shares::new(most, cost)))
    }

    /// What all values cost together.
    pub(super) fn sum(&self) -> u64 {
        self.0.lock().sum
    }

    /// The least used half goes; whether there was any.
    pub(super) fn halve(&self) -> bool {
        let mut gone = Vec::new();
        let mut shares = self.0.lock();
        let half = shares.sum / 2;
        shares.shrink(half, &mut gone);
        drop(shares);
        !gone.is_empty()
    }
}

/// The values of one frame. The lock is never held while one is made or dropped.
pub(super) struct LruPart<V> {
    all: Arc<SharedLru<V>>,
    /// Another one each time that all values go, so that what was being made then does not come in afterwards. Read and written with
    /// the lock held.
    member: AtomicU64,
}

/// The number of a frame among those that share a bound; of a value that is being made, when that began.
pub(super) type Member = u64;

impl<V: Clone> LruPart<V> {
    pub(super) fn new(all: &Arc<SharedLru<V>>) -> Self {
        let member = all.0.lock().join().into();
        LruPart { all: Arc::clone(all), member }
    }

    /// A value, or a number with which to bring one.
    pub(super) fn get(&self, key: ChunkKey) -> Result<V, Member> {
        let mut shares = self.all.0.lock();
        let member = self.member.load(Relaxed);
        shares.values.get(&(member, key)).cloned().ok_or(member)
    }

    /// Takes a value in. The caller's read guard must still be held: it is what keeps the key's bytes the same.
    pub(super) fn insert(&self, key: ChunkKey, value: V, member: Member) {
        let gone = self.all.0.lock().insert(member, key, value);
        drop(gone);
    }

    /// Drops a value: its key is about to stand for other bytes, or for none.
    pub(super) fn remove(&self, key: ChunkKey) {
        let mut shares = self.all.0.lock();
        let gone = shares.remove(self.member.load(Relaxed), key);
        drop(shares);
        drop(gone);
    }

    /// Drops all values, and those that are being made.
    pub(super) fn clear(&self) {
        let mut shares = self.all.0.lock();
        let gone = shares.leave(self.member.load(Relaxed));
        self.member.store(shares.join(), Relaxed);
        drop(shares);
        drop(gone);
    }

    /// What its values cost together.
    pub(super) fn sum(&self) -> u64 {
        let shares = self.all.0.lock();
        shares.members.get(&self.member.load(Relaxed)).map_or(0, |share| share.sum)
    }
}

impl<V> Drop for LruPart<V> {
    fn drop(&mut self) {
        let gone = self.all.0.lock().leave(*self.member.get_mut());
        drop(gone);
    }
}

/// The values, by frame and chunk. What goes is handed back, to be dropped when the lock around this is released.
struct Shares<V> {
    values: LruCache<(Member, ChunkKey), V>,
    members: BTreeMap<Member, Share>,
    next: Member,
    /// Sum of `cost` over `values`; never above `most` between two calls.
    sum: u64,
    most: u64,
    cost: fn(&V) -> u64,
}

/// What one frame has.
#[derive(Default)]
struct Share {
    count: usize,
    sum: u64,
    /// The keys of all its values, and of some that have gone.
    keys: Vec<ChunkKey>,
}

impl<V> Shares<V> {
    fn new(most: u64, cost: fn(&V) -> u64) -> Self {
        Shares { values: LruCache::unbounded(), members: BTreeMap::new(), next: 0, sum: 0, most, cost }
    }

    /// A number for a frame, that none had before.
    fn join(&mut self) -> Member {
        self.next += 1;
        self.members.insert(self.next, Share::default());
        self.next
    }

    /// All values of a frame go, and no more are taken in under its number.
    fn leave(&mut self, member: Member) -> LruCache<(Member, ChunkKey), V> {
        let mut gone = LruCache::unbounded();
        let Some(share) = self.members.remove(&member) else { return gone };
        self.sum -= share.sum;
        if share.count == self.values.len() {
            return std::mem::replace(&mut self.values, gone);
        }
        for key in share.keys {
            if let Some(value) = self.values.pop(&(member, key)) {
                gone.put((member, key), value);
            }
        }
        gone
    }

    /// Takes a value in, unless its frame has left.
    fn insert(&mut self, member: Member, key: ChunkKey, value: V) -> Vec<V> {
        let Some(share) = self.members.get_mut(&member) else { return vec![value] };
        let cost = (self.cost)(&value);
        let mut gone = Vec::new();
        match self.values.put((member, key), value) {
            Some(old) => {
                let before = (self.cost)(&old);
                share.sum -= before;
                self.sum -= before;
                gone.push(old);
            }
            None => {
                share.count += 1;
                share.keys.push(key);
            }
        }
        share.sum += cost;
        self.sum += cost;
        if share.keys.len() > 2 * share.count + 64 {
            share.keys.retain(|key| self.values.contains(&(member, *key)));
            share.keys.sort_unstable();
            share.keys.dedup();
        }
        self.shrink(self.most, &mut gone);
        gone
    }

    fn remove(&mut self, member: Member, key: ChunkKey) -> Option<V> {
        let value = self.values.pop(&(member, key))?;
        self.left(member, &value);
        Some(value)
    }

    /// The least used values go, until the rest costs at most `most`.
    fn shrink(&mut self, most: u64, gone: &mut Vec<V>) {
        while self.sum > most {
            let Some(((member, _), value)) = self.values.pop_lru() else { break };
            self.left(member, &value);
            gone.push(value);
        }
    }

    fn left(&mut self, member: Member, value: &V) {
        let cost = (self.cost)(value);
        self.sum -= cost;
        if let Some(share) = self.members.get_mut(&member) {
            share.count -= 1;
            share.sum -= cost;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert { key: u64, cost: u64 },
        Get(u64),
        Remove(u64),
        Again,
    }

    fn step() -> impl Strategy<Value = (usize, Step)> {
        let key = || 0..40u64;
        let step = prop_oneof![
            8 => (key(), 1..30u64).prop_map(|(key, cost)| Step::Insert { key, cost }),
            3 => key().prop_map(Step::Get),
            2 => key().prop_map(Step::Remove),
            1 => Just(Step::Again),
        ];
        (0..3usize, step)
    }

    proptest! {
        #[test]
        fn each_frame_has_its_own_and_all_together_keep_the_bound(steps in prop::collection::vec(step(), 1..800)) {
            let mut shares = Shares::new(300, |value: &u64| *value);
            let mut members = [shares.join(), shares.join(), shares.join()];
            // With the time of the last use.
            let mut model: HashMap<(Member, u64), (u64, usize)> = HashMap::new();
            for (now, (n, step)) in steps.into_iter().enumerate() {
                let member = members[n];
                match step {
                    Step::Insert { key, cost } => {
                        shares.insert(member, ChunkKey::new(key), cost);
                        model.insert((member, key), (cost, now));
                        while model.values().map(|(cost, _)| cost).sum::<u64>() > 300 {
                            let oldest = *model.iter().min_by_key(|(_, (_, used))| *used).unwrap().0;
                            model.remove(&oldest);
                        }
                    }
                    Step::Get(key) => {
                        let found = model.get_mut(&(member, key)).map(|(cost, used)| { *used = now; &*cost });
                        prop_assert_eq!(shares.values.get(&(member, ChunkKey::new(key))), found);
                    }
                    Step::Remove(key) => {
                        let found = model.remove(&(member, key)).map(|(cost, _)| cost);
                        prop_assert_eq!(shares.remove(member, ChunkKey::new(key)), found);
                    }
                    Step::Again => {
                        let before = model.len();
                        model.retain(|(of, _), _| *of != member);
                        prop_assert_eq!(shares.leave(member).len(), before - model.len());
                        prop_assert_eq!(shares.insert(member, ChunkKey::new(1), 7), vec![7]);
                        members[n] = shares.join();
                    }
                }
                let sum_of = |member| model.iter().filter(|((of, _), _)| *of == member).map(|(_, (cost, _))| cost).sum::<u64>();
                for member in members {
                    prop_assert_eq!(shares.members[&member].sum, sum_of(member));
                }
                prop_assert_eq!(shares.sum, model.values().map(|(cost, _)| cost).sum::<u64>());
                prop_assert!(shares.members.values().all(|share| share.keys.len() <= 2 * share.count + 65 + 40));
                prop_assert_eq!(shares.values.len(), model.len());
            }
        }
    }
}
