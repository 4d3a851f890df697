//! Readers beside writers: no read sees another chunk's bytes, whatever is replaced, moved and given out again meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use b2fuse::format::IndexEntry;
use b2fuse::store::{Budgets, ChunkKey, FrameImage, OpenOptions, Resources};
use parking_lot::{Mutex, RwLock};

use crate::driver::Store;
use crate::for_both;
use crate::frames::{Random, chunk, image, wants};

/// A chunk that says which one it is in every eighth byte.
fn marked(id: u64, len: u32) -> Vec<u8> {
    let mut bytes = chunk(len, 0);
    bytes[32..].chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&id.to_le_bytes()));
    bytes
}

for_both!(readers_never_see_the_bytes_of_another_chunk);

fn readers_never_see_the_bytes_of_another_chunk<S: Store>() {
    let dir = tempfile::tempdir().unwrap();
    let resources = Resources::new(Budgets { cache_bytes: 200_000, ..Budgets::default() });
    let options = OpenOptions { resources, ..OpenOptions::default() };
    let store = S::create_at(&dir.path().join("frame.b2frame"), options).unwrap();
    let stage = |id: u64| {
        let len = 256 + Random(id).below(60) as u32 * 64;
        (store.stage(&marked(id, len)).unwrap(), id, len + 32)
    };
    const COUNT: u64 = 60;
    let ids = AtomicU64::new(COUNT);
    // What a view has: which chunk stands where. A commit may drop only what is not in it any more.
    let table: RwLock<Vec<(ChunkKey, u64, u32)>> = RwLock::new((0..COUNT).map(stage).collect());
    let entries = |table: &[(ChunkKey, u64, u32)]| table.iter().map(|(key, ..)| IndexEntry::Stored(*key)).collect::<Vec<_>>();
    store.commit(store.enter(), image(entries(&table.read()))).unwrap();
    let committing = Mutex::new(());
    let done = AtomicBool::new(false);
    let rounds = if cfg!(debug_assertions) { 300 } else { 1500 };
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (store, table, done) = (&store, &table, &done);
            scope.spawn(move || {
                let mut random = Random(1000 + reader);
                let mut reads = 0u64;
                while !done.load(Relaxed) || reads < 1000 {
                    let guard = store.enter();
                    let (key, id, len) = table.read()[random.below(COUNT) as usize];
                    if random.below(4) == 0 {
                        store.prefetch(&wants(&[(key, len)]));
                    }
                    let words = (len as u64 - 32) / 8;
                    let from = random.below(words);
                    let count = 1 + random.below(words - from);
                    let mut buf = vec![0; count as usize * 8];
                    let read = store.read_chunk(&guard, key, len, 32 + from * 8, &mut buf).unwrap();
                    assert_eq!(read, buf.len());
                    let wrong = buf.chunks_exact(8).find(|word| **word != id.to_le_bytes());
                    assert_eq!(wrong, None, "chunk {id} has bytes of another");
                    reads += 1;
                }
            });
        }
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (store, table, ids, committing, stage) = (&store, &table, &ids, &committing, &stage);
                scope.spawn(move || {
                    let mut random = Random(writer);
                    for round in 0..rounds {
                        let fresh = stage(ids.fetch_add(1, Relaxed));
                        let at = random.below(COUNT) as usize;
                        let old = std::mem::replace(&mut table.write()[at], fresh);
                        store.discard(old.0);
                        if random.below(3) == 0 {
                            let _one = committing.lock();
                            let guard = store.enter();
                            let entries = entries(&table.read());
                            std::thread::yield_now(); // the other writer may discard what is in it
                            let FrameImage { header, trailer, .. } = image(entries.clone());
                            store.commit(guard, FrameImage { header, trailer, entries: Arc::new(entries) }).unwrap();
                        }
                        if round % 50 == 0 {
                            store.sync().unwrap();
                        }
                    }
                })
            })
            .collect();
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    store.commit(store.enter(), image(entries(&table.read()))).unwrap();
    store.close().unwrap();
}
