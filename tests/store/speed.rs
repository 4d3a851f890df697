//! Figures, printed: `cargo test --release --test store -- --ignored --nocapture speed`.

use std::sync::Arc;
use std::time::Instant;

use b2fuse::format::IndexEntry;
use b2fuse::store::{CframeStore, FrameImage, FrameStore, OpenOptions, SframeStore};

use crate::driver::Store;
use crate::frames::{Random, chunk, dir_for_many, image, wants};

fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
#[ignore = "prints figures"]
fn a_million_chunks_in_a_file() {
    a_million_chunks::<CframeStore>();
}

#[test]
#[ignore = "prints figures"]
fn a_million_chunks_in_files() {
    a_million_chunks::<SframeStore>();
}

fn a_million_chunks<S: Store>() {
    let dir = dir_for_many();
    let path = dir.path().join("million.b2frame");
    let count = 1_000_000;
    let mut random = Random(1);
    let began = Instant::now();
    let store = S::create_at(&path, OpenOptions::default()).unwrap();
    let entries: Vec<_> = (0..count)
        .map(|_| {
            let bytes = chunk(1 + random.below(190) as u32, 1);
            IndexEntry::Stored(store.stage(&bytes).unwrap())
        })
        .collect();
    println!("stage: {:?} each", began.elapsed() / count);
    let began = Instant::now();
    store.commit(store.enter(), image(entries)).unwrap();
    println!("first commit: {:?}", began.elapsed());
    store.close().unwrap();
    drop(store);
    let before = rss();
    for _ in 0..3 {
        let began = Instant::now();
        let store = S::open_at(&path, OpenOptions::default()).unwrap();
        println!("open: {:?}, {} MB", began.elapsed(), rss() - before);
        drop(store);
    }
    let store = S::open_at(&path, OpenOptions::default()).unwrap();
    for round in 0..10 {
        let old = store.committed().unwrap();
        let mut entries = (*old.entries).clone();
        let began = Instant::now();
        let at = random.below(count.into()) as usize;
        entries[at] = IndexEntry::Stored(store.stage(&chunk(100 + round, 3)).unwrap());
        let staged = began.elapsed();
        store.commit(store.enter(), FrameImage { entries: Arc::new(entries), ..(*old).clone() }).unwrap();
        println!(
            "stage {staged:?}, with commit {:?}; {} MB; frame_len {}",
            began.elapsed(),
            rss() - before,
            store.committed().unwrap().header.frame_len()
        );
    }
}

/// Reading all chunks of many small files one after the other, with hints and without, and `cat`. As root, for dropping what
/// the kernel has in its cache.
#[test]
#[ignore = "prints figures"]
fn a_pass_through_many_files() {
    const COUNT: usize = 4096;
    const LEN: u32 = 128 << 10;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("frame");
    let store = SframeStore::create(&path, OpenOptions::default()).unwrap();
    let entries: Vec<_> = (0..COUNT).map(|at| IndexEntry::Stored(store.stage(&chunk(LEN - 32, at as u64)).unwrap())).collect();
    store.commit(store.enter(), image(entries)).unwrap();
    store.close().unwrap();
    let drop_caches = || {
        std::process::Command::new("sync").status().unwrap();
        std::fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    };
    let rate = |began: Instant| (COUNT * LEN as usize) as f64 / began.elapsed().as_secs_f64() / 1e6;
    let pass = |cold: bool, hints: usize, piece: usize| {
        let store = SframeStore::open(&path, OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
        let keys: Vec<_> = store.committed().unwrap().entries.iter().map(|entry| (entry.stored().unwrap(), LEN)).collect();
        let mut buf = vec![0; piece];
        if cold {
            drop_caches(); // opening has read headers
        }
        let began = Instant::now();
        for (at, (key, len)) in keys.iter().enumerate() {
            if hints > 0 && at % (hints / 2) == 0 {
                let from = if at == 0 { 0 } else { at + hints / 2 };
                let from = from.min(COUNT);
                store.prefetch(&wants(&keys[from..(at + hints).min(COUNT)]));
            }
            for offset in (0..u64::from(*len)).step_by(piece) {
                assert_eq!(store.read_chunk(&store.enter(), *key, *len, offset, &mut buf).unwrap(), piece);
            }
        }
        rate(began)
    };
    let cat = |cold: bool| {
        let mut names: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        if cold {
            drop_caches();
        }
        let began = Instant::now();
        let cat = std::process::Command::new("cat").args(&names).stdout(std::process::Stdio::null()).status();
        assert!(cat.unwrap().success());
        rate(began)
    };
    for cold in [true, false] {
        let measure = |name: &str, run: &dyn Fn() -> f64| {
            let runs: Vec<f64> = (0..3).map(|_| run()).collect();
            println!("{} {name:28} {runs:.0?} MB/s", if cold { "cold" } else { "warm" });
        };
        measure("cat", &|| cat(cold));
        for hints in [0, 16, 64, 128] {
            measure(&format!("whole chunks, {hints} hints"), &|| pass(cold, hints, LEN as usize));
        }
        measure("4 KiB, 64 hints", &|| pass(cold, 64, 4096));
    }
}

/// Small reads here and there, of chunks that the kernel has in its cache: of a file from memory of our own, of files not.
#[test]
#[ignore = "prints figures"]
fn small_reads() {
    fn run<S: Store>(name: &str) {
        const LEN: u32 = 128 << 10;
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let store = S::create_at(&dir.path().join("frame"), OpenOptions::default()).unwrap();
        let keys: Vec<_> = (0..512).map(|fill| store.stage(&chunk(LEN - 32, fill)).unwrap()).collect();
        store.commit(store.enter(), image(keys.iter().map(|key| IndexEntry::Stored(*key)).collect())).unwrap();
        let mut random = Random(1);
        let mut buf = [0; 4096];
        for round in 0..3 {
            let began = Instant::now();
            const READS: u32 = 200_000;
            for _ in 0..READS {
                let key = keys[random.below(512) as usize];
                let offset = random.below(u64::from(LEN) / 4096) * 4096;
                store.read_chunk(&store.enter(), key, LEN, offset, &mut buf).unwrap();
            }
            println!("{name}, round {round}: {:?} for 4 KiB; {:?}", began.elapsed() / READS, store.cache_stats());
        }
    }
    run::<CframeStore>("cframe");
    run::<SframeStore>("sframe");
}
