//! Many frames that share what a mount has: memory, descriptors, threads, and one that tells of changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use b2fuse::format::IndexEntry;
use b2fuse::store::{Budgets, CframeStore, ChunkKey, Draft, FrameStore, OpenOptions, ReadAt, Resources, SframeStore, open};
use parking_lot::RwLock;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::frames::{Random, chunk, image, wants};

/// A stored chunk: its key, which it is, its length.
type Stored = (ChunkKey, u64, u32);

fn options(resources: &Arc<Resources>) -> OpenOptions {
    OpenOptions { resources: Arc::clone(resources), hold_staged: true, ..OpenOptions::default() }
}

/// A chunk that says which one it is in every eighth byte.
fn marked(id: u64) -> Vec<u8> {
    let mut bytes = chunk(1024 + Random(id).below(60) as u32 * 64, 0);
    bytes[32..].chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&id.to_le_bytes()));
    bytes
}

fn stage(store: &dyn FrameStore, id: u64) -> Stored {
    let bytes = marked(id);
    (store.stage(&bytes).unwrap(), id, bytes.len() as u32)
}

fn commit(store: &dyn FrameStore, table: &[Stored]) {
    store.commit(store.enter(), image(table.iter().map(|(key, ..)| IndexEntry::Stored(*key)).collect())).unwrap();
}

/// Reads `count` words of a chunk from word `from` on, and looks whether they are its own.
fn check(store: &dyn FrameStore, stored: impl FnOnce() -> Stored, at: impl FnOnce(u64) -> (u64, u64)) {
    let guard = store.enter();
    let (key, id, len) = stored();
    let (from, count) = at((u64::from(len) - 32) / 8);
    let mut buf = vec![0; count as usize * 8];
    let read = store.read_chunk(&guard, key, len, 32 + from * 8, &mut buf).unwrap();
    assert_eq!(read, buf.len());
    assert!(buf.chunks_exact(8).all(|word| *word == id.to_le_bytes()), "chunk {id} has bytes of another");
}

/// Two looks bring each chunk into the cache.
fn bring_in(store: &dyn FrameStore, table: &[Stored]) {
    for stored in table {
        [0, 20].into_iter().for_each(|from| check(store, || *stored, |_| (from, 5)));
    }
}

/// A new frame, sparse if its number is odd; the chunk that says `id` is its first.
fn create(path: &Path, n: usize, chunks: u64, id: u64, resources: &Arc<Resources>) -> (Arc<dyn FrameStore>, Vec<Stored>) {
    let store: Arc<dyn FrameStore> = match n % 2 {
        0 => Arc::new(CframeStore::create(path, options(resources)).unwrap()),
        _ => Arc::new(SframeStore::create(path, options(resources)).unwrap()),
    };
    let table: Vec<_> = (0..chunks).map(|n| stage(&*store, id + n)).collect();
    commit(&*store, &table);
    store.sync().unwrap();
    (store, table)
}

/// The table after another open: what the chunks are is known, their keys are not.
fn table_of(store: &dyn FrameStore, before: &[Stored]) -> Vec<Stored> {
    let image = store.committed().unwrap();
    let keys = image.entries.iter().map(|entry| entry.stored().unwrap());
    keys.zip(before).map(|(key, (_, id, len))| (key, *id, *len)).collect()
}

struct Slot {
    path: PathBuf,
    /// None while it is opened again.
    store: RwLock<Option<Arc<dyn FrameStore>>>,
    table: RwLock<Vec<Stored>>,
}

#[test]
fn many_frames_share_one_budget_of_each_kind() {
    const FRAMES: usize = 50;
    const CHUNKS: u64 = 8;
    let dir = tempfile::tempdir().unwrap();
    let budgets =
        Budgets { cache_bytes: 200_000, draft_bytes: 300_000, held_bytes: 20_000, open_files: 12, threads: 2, locks: 4 };
    let resources = Resources::new(budgets);
    let within = |what: &str| {
        let used = resources.used();
        let bounds = [
            (used.cache_bytes, budgets.cache_bytes),
            (used.draft_bytes, budgets.draft_bytes),
            (used.held_bytes, budgets.held_bytes),
            (used.open_files as u64, budgets.open_files as u64),
            (used.threads as u64, budgets.threads as u64),
        ];
        assert!(bounds.iter().all(|(used, most)| used <= most), "{what}: {used:?}");
        used
    };
    let ids = AtomicU64::new(FRAMES as u64 * CHUNKS);
    let slots: Vec<_> = (0..FRAMES)
        .map(|n| {
            let path = dir.path().join(format!("{n}.b2frame"));
            let (store, table) = create(&path, n, CHUNKS, n as u64 * CHUNKS, &resources);
            Slot { path, store: RwLock::new(Some(store)), table: RwLock::new(table) }
        })
        .collect();
    let done = AtomicBool::new(false);
    let rounds = if cfg!(debug_assertions) { 400 } else { 1500 };
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (slots, done, within) = (&slots, &done, &within);
            scope.spawn(move || {
                let mut random = Random(1000 + reader);
                let mut reads = 0;
                while !done.load(Relaxed) || reads < 2000 {
                    let Slot { store, table, .. } = &slots[random.below(FRAMES as u64) as usize];
                    let store = store.read();
                    let store = store.as_deref().unwrap();
                    // Some chunks more often than others.
                    let (one, from) = (random.below(CHUNKS) & random.next(), random.next());
                    if one == 0 {
                        let hints: Vec<_> = table.read().iter().map(|(key, _, len)| (*key, *len)).collect();
                        store.prefetch(&wants(&hints));
                    }
                    check(store, || table.read()[one as usize], |words| (from % (words - 5), 5));
                    reads += 1;
                    if reads % 50 == 0 {
                        within("a reader");
                    }
                }
            });
        }
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (slots, ids, within, resources) = (&slots, &ids, &within, &resources);
                scope.spawn(move || {
                    let mut random = Random(writer);
                    for round in 0..rounds {
                        let n = random.below(FRAMES as u64 / 2) * 2 + writer;
                        let Slot { path, store, table } = &slots[n as usize];
                        if round % 10 == 9 {
                            let mut store = store.write();
                            store.take().unwrap().close().unwrap();
                            let (_, again) = open(path, options(resources)).unwrap();
                            let mut table = table.write();
                            *table = table_of(&*again, &table);
                            *store = Some(again);
                            continue;
                        }
                        let store = store.read();
                        let store = store.as_deref().unwrap();
                        // As a view does: what is committed is what a draft has.
                        let id = ids.fetch_add(1, Relaxed);
                        let mut draft = Draft::new(store.local().unwrap().drafts());
                        draft.write_at(&marked(id), 0).unwrap();
                        draft.write_at(&[7; 100], random.below(200_000) + 10_000).unwrap();
                        draft.set_len(marked(id).len() as u64).unwrap();
                        within("a writer");
                        let fresh = (store.stage(&draft).unwrap(), id, ReadAt::len(&draft) as u32);
                        drop(draft);
                        let old = std::mem::replace(&mut table.write()[random.below(CHUNKS) as usize], fresh);
                        store.discard(old.0);
                        let table = table.read().clone();
                        commit(store, &table);
                    }
                })
            })
            .collect();
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    let cached: u64 = slots.iter().map(|slot| slot.store.read().as_ref().unwrap().cache_stats().bytes).sum();
    let used = within("at rest");
    assert_eq!((cached, used.draft_bytes), (used.cache_bytes, 0));
    assert!(cached > budgets.cache_bytes / 2 && used.threads > 0, "all was in use");
    for Slot { path, store, table } in slots {
        let (store, table) = (store.into_inner().unwrap(), table.into_inner());
        commit(&*store, &table);
        store.close().unwrap();
        drop(store);
        let (_, store) = open(&path, OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
        table_of(&*store, &table).into_iter().for_each(|stored| check(&*store, || stored, |words| (0, words)));
    }
    assert_eq!(resources.used(), Budgets { cache_bytes: 0, draft_bytes: 0, held_bytes: 0, open_files: 0, ..used });
}

#[test]
fn drafts_of_all_frames_share_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let resources = Resources::new(Budgets { draft_bytes: 100_000, held_bytes: 3000, ..Budgets::default() });
    let frames: Vec<_> = (0..3).map(|n| create(&dir.path().join(format!("{n}")), n, 1, 0, &resources).0).collect();
    let written = |n: usize| {
        let mut draft = Draft::new(frames[n].local().unwrap().drafts());
        draft.write_at(&[7; 60_000], 0).unwrap();
        let in_memory = draft.as_slice().is_some();
        (draft, in_memory)
    };
    let (first, in_memory) = written(0);
    assert!(in_memory);
    assert!(!written(1).1 && !written(2).1, "the first one has most of it");
    assert_eq!(resources.used().draft_bytes, 65_536);
    drop(first);
    assert!(written(1).1 && written(2).1);
    assert_eq!(resources.used().draft_bytes, 0);
    for (n, held) in [(0, 2032), (1, 2032), (2, 2032)] {
        frames[n].stage(&chunk(2000, 1)).unwrap();
        assert_eq!(resources.used().held_bytes, held, "there is no room for another copy");
    }
    drop(frames);
    assert_eq!(resources.used().held_bytes, 0);
}

#[test]
fn clients_locks_on_all_frames_share_their_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let resources = Resources::new(Budgets { locks: 3, ..Budgets::default() });
    let locking = OpenOptions { locking: true, ..options(&resources) };
    let frames = [0, 1].map(|n| {
        let path = dir.path().join(format!("{n}.b2frame"));
        create(&path, n, 1, 1, &resources).0.close().unwrap();
        open(&path, locking.clone()).unwrap().1
    });
    let sidecars = frames.each_ref().map(|store| store.sidecar().unwrap());
    let one = sidecars[0].open().unwrap();
    let more = [sidecars[1].again(&one).unwrap(), sidecars[1].unnamed().unwrap()];
    let refused = sidecars.map(|sidecar| sidecar.open().err().unwrap().errno());
    assert_eq!(refused, [libc::ENOLCK; 2]);
    drop(more);
    assert_eq!(resources.used().locks, 1);
    let _others = sidecars.map(|sidecar| sidecar.open().unwrap());
}

#[test]
fn a_frame_that_is_closed_gives_its_share_back_and_leaves_the_others_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let resources = Resources::new(Budgets::default());
    let frames: Vec<_> = (0..6).map(|n| create(&dir.path().join(format!("{n}")), n, 10, 10 * n as u64, &resources)).collect();
    let mut others = resources.used();
    for (n, (store, table)) in frames.iter().enumerate() {
        bring_in(&**store, table);
        let stats = store.cache_stats();
        assert_eq!((stats.hits, stats.misses, stats.bypassed), (0, 10, 10), "frame {n} counts its own");
        if n == 3 {
            others = resources.used();
        }
    }
    let mut frames = frames.into_iter();
    let kept: Vec<_> = frames.by_ref().take(4).collect();
    for (n, (store, table)) in frames.enumerate() {
        for _ in 0..20 {
            let hints: Vec<_> = table.iter().map(|(key, _, len)| (*key, *len)).collect();
            store.prefetch(&wants(&hints));
        }
        if n == 0 {
            store.close().unwrap(); // or not
        }
        drop(store);
    }
    assert_eq!(resources.used(), Budgets { threads: resources.used().threads, ..others });
    for (store, table) in &kept {
        table.iter().for_each(|stored| check(&**store, || *stored, |words| (words - 5, 5)));
        let stats = store.cache_stats();
        assert_eq!((stats.hits, stats.misses, stats.bypassed), (10, 10, 10));
        store.forget_cached();
        assert_eq!(store.cache_stats().bytes, 0);
    }
    assert_eq!((resources.used().cache_bytes, resources.used().open_files), (0, others.open_files));
}

/// Which frames are told something, now or within a time.
fn told(resources: &Resources, frames: &[Arc<dyn FrameStore>], within: Duration) -> Vec<usize> {
    assert!(resources.watcher().wait(Some(Instant::now() + within), Instant::now()));
    (0..frames.len()).filter(|n| frames[*n].watch().unwrap().take()).collect()
}

#[test]
fn one_watcher_tells_each_frame_of_its_own() {
    const SOON: Duration = Duration::from_secs(10);
    // What was done is told when it has been done.
    const NOW: Duration = Duration::from_millis(20);
    let dir = tempfile::tempdir().unwrap();
    let resources = Resources::new(Budgets::default());
    let path = |n: usize| dir.path().join(format!("{n}.b2frame"));
    let mut frames: Vec<_> = (0..6).map(|n| create(&path(n), n, 3, 0, &resources).0).collect();
    resources.watcher().begin();
    frames.push(create(&path(6), 6, 3, 0, &resources).0);
    frames.push(create(&path(7), 7, 3, 0, &resources).0);
    // The directory of that one is watched for the name of another as well.
    frames.push(create(&path(7).join("inner"), 0, 3, 0, &resources).0);
    assert!(frames.iter().all(|store| !store.watch().unwrap().is_blind()));
    frames.iter().for_each(|store| store.watch().unwrap().ring());
    assert_eq!(told(&resources, &frames, SOON).len(), 9);
    // What begins to be watched while frames are made may be told of.
    while !told(&resources, &frames, NOW).is_empty() {}
    let touch = |n: usize| match n % 2 {
        0 => fs::File::options().write(true).open(path(n)).unwrap().set_modified(std::time::SystemTime::now()).unwrap(),
        _ => fs::write(path(n).join("00000001.chunk"), chunk(100, 1)).unwrap(),
    };
    for n in [2, 3, 6, 7] {
        touch(n);
        assert_eq!(told(&resources, &frames, SOON), [n]);
        assert_eq!(frames[n].watch().unwrap().names().len(), n % 2);
        while !told(&resources, &frames, NOW).is_empty() {}
    }
    fs::create_dir(path(7).join("00000077.chunk")).unwrap();
    assert_eq!(told(&resources, &frames, NOW), [0; 0], "what only the other one listens to");
    fs::rename(path(7).join("inner"), dir.path().join("outer")).unwrap();
    assert_eq!(told(&resources, &frames, SOON), [8]);
    // The directory is watched for its neighbours still, and for the names that they have.
    drop(frames.remove(4));
    drop(frames.remove(3));
    [3, 4].into_iter().for_each(touch);
    assert_eq!(told(&resources, &frames, NOW), [0; 0]);
    fs::rename(path(3), path(4).with_extension("old")).unwrap();
    assert_eq!(told(&resources, &frames, NOW), [0; 0]);
    fs::rename(path(5), path(3)).unwrap();
    assert_eq!(told(&resources, &frames, SOON), [3], "the fourth of those that are left");
    resources.watcher().stop();
    assert!(!resources.watcher().wait(None, Instant::now()));
}

const LIMITED: &str = "B2FUSE_TEST_LIMITED";

/// What is kept open to be faster is closed where something must be opened: with 75 frames and a limit of 256, these alone have some 200.
#[test]
fn nothing_fails_for_want_of_descriptors_that_can_be_done_without() {
    if std::env::var_os(LIMITED).is_none() {
        // In a process of its own, as the limit is a process's.
        let name = "shared::nothing_fails_for_want_of_descriptors_that_can_be_done_without";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--exact", "--nocapture"]).env(LIMITED, "1").output().unwrap();
        let words = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && words.contains("1 passed"), "{words}{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..getrlimit(Resource::Nofile) }).unwrap();
    let resources = Resources::new(Budgets::default());
    assert_eq!(Budgets::default().open_files, 64);
    resources.watcher().begin();
    let mut closed = false;
    let frames: Vec<_> = (0..75)
        .map(|n| {
            let path = dir.path().join(n.to_string());
            let (store, table) = create(&path, n, 20, 0, &resources);
            store.close().unwrap();
            drop(store);
            let options = OpenOptions { read_only: n % 5 > 0, ..options(&resources) };
            let (_, store) = open(&path, options).unwrap();
            let table = table_of(&*store, &table);
            table.iter().for_each(|stored| check(&*store, || *stored, |words| (0, words)));
            let open = resources.used().open_files;
            closed |= n > 10 && open < 60;
            (store, table)
        })
        .collect();
    assert!(closed, "all had room beside each other");
    for (n, (store, table)) in frames.iter().enumerate() {
        table.iter().for_each(|stored| check(&**store, || *stored, |words| (0, words)));
        if n % 5 == 0 {
            let mut table = table.clone();
            table[7] = stage(&**store, 1000);
            commit(&**store, &table);
            store.save_lost("beside", &marked(7)).unwrap();
        }
    }
    // Of the following there is no more for 50 frames than for one. Looking takes descriptors, too.
    setrlimit(Resource::Nofile, Rlimit { current: Some(300), ..getrlimit(Resource::Nofile) }).unwrap();
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    for (store, table) in &frames {
        store.prefetch(&wants(&table.iter().map(|(key, _, len)| (*key, *len)).collect::<Vec<_>>()));
    }
    let started = threads() - before;
    assert!((1..=3).contains(&started), "{started}");
    let inotify = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    assert_eq!(inotify.filter(|link| link.ends_with("anon_inode:inotify")).count(), 1);
}
