//! One mount after the other of a frame, short ones and such as are killed: the room that the frame takes at the end of each.

use b2fuse::format::{IndexEntry, Special};
use b2fuse::store::{CframeStore, ChunkKey, FrameStore};

use crate::disk::{BLOCK, Dir};
use crate::driver::{NAME, Store, create, open};
use crate::for_both;
use crate::frames::{Random, image};

for_both!(
    one_chunk_in_each_of_forty_mounts,
    all_chunks_in_each_of_seven_mounts,
    all_chunks_at_once,
    a_thousand_random_mounts,
    killed_again_and_again,
);

/// How many mounts more may pass until the length is bounded.
const MORE_MOUNTS: usize = 3;

/// A chunk: so many bytes, all the same behind the header. `None` for a special one.
type Chunk = Option<(u32, u8)>;

fn bytes_of((len, fill): (u32, u8)) -> Vec<u8> {
    let nbytes = len - 32;
    let mut bytes = vec![5, 1, 0x02 | 0x05, 1];
    [nbytes, nbytes.max(1), len].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    bytes.resize(32, 0);
    bytes.resize(len as usize, fill);
    bytes
}

/// How a mount ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Unmounted,
    /// The process is gone, and the machine goes on.
    Killed,
}

/// A frame that is mounted again and again.
struct Frame {
    dir: Dir,
    random: Random,
    chunks: Vec<Chunk>,
    /// Bytes of the largest chunk.
    max: u32,
    /// The worst ratios at unmount, less three indexes, to what lives: of blocks, of the length.
    blocks: f64,
    length: f64,
    /// How many times in a row the length was too much at unmount; and at most.
    long: usize,
    longest: usize,
}

/// A mount of it.
struct Mount<'a, S> {
    frame: &'a mut Frame,
    store: S,
    entries: Vec<IndexEntry<ChunkKey>>,
    /// What was committed last.
    committed: Vec<Chunk>,
}

impl Frame {
    fn new<S: Store>(count: usize, max: u32, seed: u64) -> Frame {
        let (dir, random) = (Dir::forgetful(), Random(seed));
        let mut this = Frame { dir, random, chunks: vec![], max, blocks: 0.0, length: 0.0, long: 0, longest: 0 };
        let store = create::<S>(&this.dir).unwrap();
        let mut mount = Mount { frame: &mut this, store, entries: vec![], committed: vec![] };
        (0..count).for_each(|_| mount.append());
        mount.commit();
        mount.store.close().unwrap();
        this
    }

    fn some_chunk(&mut self) -> (u32, u8) {
        (33 + self.random.below(u64::from(self.max)) as u32, self.random.next() as u8)
    }

    fn mount<S: Store>(&mut self, end: End, work: impl FnOnce(&mut Mount<'_, S>)) {
        let dir = self.dir.clone();
        let store = open::<S>(&dir, false).unwrap();
        let entries = store.committed().unwrap().entries.to_vec();
        let committed = self.chunks.clone();
        let mut mount = Mount { frame: self, store, entries, committed };
        mount.check();
        let before = dir.room();
        let committed = mount.store.committed();
        work(&mut mount);
        let changed = committed.unwrap().entries != mount.store.committed().unwrap().entries;
        match end {
            End::Unmounted => {
                mount.store.close().unwrap();
                let store = mount.store;
                self.measure(&store, changed);
                if !changed {
                    let now = dir.room();
                    let most = before.allocated + before.allocated / 32;
                    assert!(now.len <= before.len && now.allocated <= most, "nothing was changed: {before:?}, {now:?}");
                }
            }
            End::Killed => dir.kill(mount.store),
        }
    }

    fn measure<S: Store>(&mut self, store: &S, changed: bool) {
        let live: u64 = self.chunks.iter().flatten().map(|(len, _)| u64::from(*len)).sum();
        let room = self.dir.room();
        let (dir, name) = S::index(&self.dir);
        let file = dir.len(name);
        let sparse = name != NAME;
        let header = store.committed().unwrap().header.clone();
        let index = if sparse { file } else { header.frame_len() - header.cbytes() - u64::from(header.header_len()) };
        let over = |bytes: u64, slack: u64| bytes.saturating_sub(3 * index + slack) as f64 / live.max(1) as f64;
        // Room comes in blocks, of each file.
        let (length, blocks) = (over(room.len, 1024), over(room.allocated, 1024 + room.files * BLOCK));
        if !changed {
            return;
        }
        self.long = if length >= 1.5 { self.long + 1 } else { 0 };
        self.longest = self.longest.max(self.long);
        self.length = self.length.max(length);
        self.blocks = self.blocks.max(blocks);
        if sparse {
            let stored = self.chunks.iter().flatten().count() as u64;
            assert_eq!(room.files, stored + 1, "files: {:?}", dir.names());
        }
    }

    fn assert_bounded(&self) {
        let Frame { blocks, length, longest, .. } = self;
        println!(
            "at unmount at most {blocks:.3} times what lives in it, by length {length:.3}; {longest} times in a row too long"
        );
        assert!(*blocks < 1.5, "more room than promised");
        assert!(*longest <= MORE_MOUNTS, "longer than promised for {longest} mounts");
    }
}

impl<S: Store> Mount<'_, S> {
    /// All is as it was left.
    fn check(&self) {
        let guard = self.store.enter();
        assert_eq!(self.entries.len(), self.frame.chunks.len());
        for (entry, chunk) in self.entries.iter().zip(&self.frame.chunks) {
            let found = entry.stored().map(|key| {
                let len = self.store.chunk_header(&guard, key).unwrap().cbytes;
                let mut bytes = vec![0; len as usize];
                assert_eq!(self.store.read_chunk(&guard, key, len, 0, &mut bytes).unwrap(), bytes.len());
                bytes
            });
            assert!(found == chunk.map(bytes_of), "a chunk is another");
        }
    }

    fn stage(&mut self) -> (IndexEntry<ChunkKey>, Chunk) {
        let chunk = self.frame.some_chunk();
        (IndexEntry::Stored(self.store.stage(&bytes_of(chunk)).unwrap()), Some(chunk))
    }

    fn append(&mut self) {
        let (entry, chunk) = self.stage();
        self.entries.push(entry);
        self.frame.chunks.push(chunk);
    }

    fn replace(&mut self, at: usize) {
        let (entry, chunk) = self.stage();
        self.put(at, entry, chunk);
    }

    fn put(&mut self, at: usize, entry: IndexEntry<ChunkKey>, chunk: Chunk) {
        self.frame.chunks[at] = chunk;
        if let IndexEntry::Stored(old) = std::mem::replace(&mut self.entries[at], entry) {
            self.store.discard(old); // if it is in no state yet
        }
    }

    fn remove(&mut self, at: usize) {
        self.frame.chunks.remove(at);
        if let IndexEntry::Stored(old) = self.entries.remove(at) {
            self.store.discard(old);
        }
    }

    /// What was not committed is not wanted.
    fn forget(&mut self) {
        self.entries = self.store.committed().unwrap().entries.to_vec();
        self.frame.chunks = self.committed.clone();
    }

    fn commit(&mut self) {
        self.committed = self.frame.chunks.clone();
        self.store.commit(self.store.enter(), image(self.entries.clone())).unwrap();
    }

    fn below(&mut self, bound: usize) -> usize {
        self.frame.random.below(bound as u64) as usize
    }
}

fn one_chunk_in_each_of_forty_mounts<S: Store>() {
    let mut frame = Frame::new::<S>(20, 40_000, 1);
    for round in 0..40 {
        frame.mount::<S>(End::Unmounted, |mount| {
            mount.replace(7 * round % 20);
            mount.commit();
        });
    }
    frame.assert_bounded();
}

fn all_chunks_in_each_of_seven_mounts<S: Store>() {
    let mut frame = Frame::new::<S>(40, 40_000, 2);
    for _ in 0..7 {
        frame.mount::<S>(End::Unmounted, |mount| {
            for at in 0..40 {
                mount.replace(at);
                mount.commit();
            }
        });
    }
    frame.assert_bounded();
}

fn all_chunks_at_once<S: Store>() {
    let mut frame = Frame::new::<S>(40, 400_000, 3);
    frame.mount::<S>(End::Unmounted, |mount| {
        (0..40).for_each(|at| mount.replace(at));
        mount.commit();
    });
    for at in 0..MORE_MOUNTS {
        frame.mount::<S>(End::Unmounted, |mount| {
            mount.replace(at);
            mount.commit();
        });
    }
    frame.assert_bounded();
}

/// The process dies with all chunks replaced: in one commit, or staged for none.
fn killed_again_and_again<S: Store>() {
    let mut frame = Frame::new::<S>(20, 1_000_000, 4);
    for round in 0..10 {
        frame.mount::<S>(End::Killed, |mount| match round % 2 {
            0 => {
                (0..20).for_each(|at| mount.replace(at));
                mount.commit();
            }
            _ => (0..20).for_each(|_| {
                mount.stage();
            }),
        });
    }
    for at in 0..=MORE_MOUNTS {
        frame.mount::<S>(End::Unmounted, |mount| {
            mount.replace(at);
            mount.commit();
        });
    }
    frame.assert_bounded();
}

/// Changes as they come, and how they are committed.
fn change<S: Store>(mount: &mut Mount<'_, S>, kind: u64) {
    let count = mount.entries.len();
    match kind {
        0..5 => {
            let at = mount.below(count);
            mount.replace(at);
        }
        5 => {
            // All of them, a few in a commit.
            let each = 1 + mount.below(count);
            for at in 0..count {
                mount.replace(at);
                if at % each == 0 {
                    mount.commit();
                }
            }
        }
        6 => (0..count).for_each(|at| mount.replace(at)),
        7 => mount.append(),
        8 if count > 1 => {
            let at = mount.below(count);
            mount.remove(at);
        }
        9 => {
            let at = mount.below(count);
            mount.put(at, IndexEntry::Special(Special::Zeros), None);
        }
        10 => {
            // For nothing.
            let (entry, _) = mount.stage();
            mount.store.discard(entry.stored().unwrap());
        }
        11 => mount.entries.rotate_left(1),
        12 => mount.store.sync().unwrap(),
        13 => while mount.store.tidy() {},
        _ => assert!(!mount.store.tidy() || mount.entries.len() > 4096),
    }
    if kind == 11 {
        mount.frame.chunks.rotate_left(1);
    }
}

fn a_thousand_random_mounts<S: Store>() {
    let (mut blocks, mut length, mut longest) = (0.0, 0.0, 0);
    let kinds = [(1, 300_000), (6, 100_000), (30, 30_000), (40, 3000), (300, 10_000), (60, 150_000)];
    let (frames, mounts) = (20, 50);
    for seed in 0..frames {
        let (count, max) = kinds[seed % kinds.len()];
        let mut frame = Frame::new::<S>(count, max, seed as u64);
        for _ in 0..mounts {
            let end = if frame.random.below(4) == 0 { End::Killed } else { End::Unmounted };
            // Sizes change with what is in the chunks.
            frame.max = max / (1 + frame.random.below(4) * frame.random.below(2)) as u32;
            let changes = [0, 1, 1, 3, 20][frame.random.below(5) as usize];
            frame.mount::<S>(end, |mount| {
                for _ in 0..changes {
                    let kind = mount.below(15) as u64;
                    change(mount, kind);
                    if mount.below(3) == 0 {
                        mount.commit();
                    }
                }
                if mount.below(5) > 0 {
                    mount.commit();
                } else {
                    mount.forget();
                }
            });
        }
        blocks = frame.blocks.max(blocks);
        length = frame.length.max(length);
        longest = frame.longest.max(longest);
    }
    println!(
        "{} mounts: at unmount at most {blocks:.3} times what lives, by length {length:.3}; too long at most {longest} times in a row",
        frames * mounts
    );
    assert!(blocks < 1.5, "more room than promised");
    assert!(longest <= MORE_MOUNTS, "longer than promised for {longest} mounts");
}

/// So many that only some headers are looked at, at the end of a mount in which nobody had to wait for more room.
#[test]
fn a_few_of_very_many_chunks_in_each_mount() {
    const COUNT: usize = 70_000;
    let mut frame = Frame::new::<CframeStore>(COUNT, 60, 6);
    for round in 0..12 {
        frame.mount::<CframeStore>(End::Unmounted, |mount| {
            (0..3000).for_each(|n| mount.replace((round * 5003 + 23 * n) % COUNT));
            mount.commit();
        });
    }
    frame.assert_bounded();
    assert!(frame.length < 1.35, "holes are looked for from a sixteenth on");
}

#[test]
fn what_a_pin_or_a_read_holds_is_not_given_back() {
    let mut frame = Frame::new::<CframeStore>(10, 200_000, 5);
    let dir = frame.dir.clone();
    let store = open::<CframeStore>(&dir, false).unwrap();
    let old = store.committed().unwrap();
    let chunks = frame.chunks.clone();
    let key = |at: usize| old.entries[at].stored().unwrap();
    let entries = old.entries.to_vec();
    let mut mount = Mount { frame: &mut frame, store, entries, committed: vec![] };
    mount.store.pin(key(3));
    (0..10).for_each(|at| mount.replace(at));
    let guard = mount.store.enter(); // what it has looked up is dropped now
    mount.store.commit(mount.store.enter(), image(mount.entries.clone())).unwrap();
    mount.store.sync().unwrap();
    mount.store.close().unwrap();
    for (at, chunk) in chunks.iter().enumerate() {
        let expected = bytes_of(chunk.unwrap());
        let mut bytes = vec![0; expected.len()];
        mount.store.read_chunk(&guard, key(at), bytes.len() as u32, 0, &mut bytes).unwrap();
        assert!(bytes == expected, "chunk {at} under a read");
    }
    drop(guard);
    mount.check();
    // The next mount knows of neither.
    frame.mount::<CframeStore>(End::Unmounted, |mount| {
        mount.replace(0);
        mount.commit();
    });
    frame.assert_bounded();
}

#[test]
fn blocks_go_back_to_a_real_file_system() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("frame.b2frame");
    let store = CframeStore::create(&path, Default::default()).unwrap();
    let stage = |store: &CframeStore, fill: u8| IndexEntry::Stored(store.stage(&bytes_of((1 << 20, fill))).unwrap());
    let mut entries: Vec<_> = (0..16).map(|n| stage(&store, n)).collect();
    store.commit(store.enter(), image(entries.clone())).unwrap();
    store.close().unwrap();
    drop(store);
    let store = CframeStore::open(&path, Default::default()).unwrap();
    entries = store.committed().unwrap().entries.to_vec();
    for at in [3, 4, 9] {
        entries[at] = stage(&store, 0x80 + at as u8);
    }
    store.commit(store.enter(), image(entries)).unwrap();
    store.close().unwrap();
    drop(store);
    let stat = std::fs::metadata(&path).unwrap();
    assert!(stat.len() > 18 << 20, "they are at the end: {}", stat.len());
    assert!(stat.blocks() * 512 < (16 << 20) + (64 << 10), "{} bytes are taken", stat.blocks() * 512);
    let store = CframeStore::open(&path, Default::default()).unwrap();
    let found = crate::frames::content(&store);
    let fill = |at: u8| if [3, 4, 9].contains(&at) { 0x80 + at } else { at };
    assert!((0..16).all(|at| found[at as usize] == IndexEntry::Stored(bytes_of((1 << 20, fill(at))))));
}
