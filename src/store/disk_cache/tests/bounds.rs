//! How much is kept, and what goes first.

use super::*;

/// Sets when a file was used.
fn set_used(file: &Path, ago: u64) {
    let time = SystemTime::now() - Duration::from_secs(ago);
    fs::File::options().write(true).open(file).unwrap().set_modified(time).unwrap();
}

#[test]
fn what_was_not_used_for_longest_goes() {
    let (_dir, path, cache) = cache(Some(1 << 20));
    let (one, two) = (cache.state(URL, "t").unwrap(), cache.state("https://host/f", "u").unwrap());
    // 16 KiB each with what stands before it: 60 are as much as may stay.
    let data = bytes(1, 15_000);
    for piece in 0..60 {
        [&one, &two][piece as usize % 2].put("a", piece, &data, 20_000, "");
    }
    assert_eq!(files(&path).len(), 60);
    for (number, file) in files(&path).iter().enumerate() {
        let piece = file.file_name().unwrap().to_str().unwrap().rsplit_once('-').unwrap().1;
        let piece = u64::from_str_radix(piece, 16).unwrap();
        set_used(file, 10_000 - 10 * piece + number as u64 % 2);
    }
    // These have been used again, and a file that was used just now is not touched.
    let stamp = |piece: u64| {
        let name = format!("-{piece:x}");
        let file = files(&path).into_iter().find(|file| file.to_str().unwrap().ends_with(&name)).unwrap();
        fs::metadata(file).unwrap().modified().unwrap()
    };
    assert!(one.get("a", 0).is_some() && two.get("a", 1).is_some());
    assert!(stamp(0).elapsed().unwrap() < Duration::from_secs(100));
    let before = stamp(0);
    assert!(one.get("a", 0).is_some());
    assert_eq!(stamp(0), before);
    let before = stamp(2);
    assert!(before.elapsed().unwrap() > Duration::from_secs(9000));
    // The 61st is too many.
    one.put("b", 0, &data, 20_000, "");
    settle(&cache);
    let left: Vec<u64> = (0..60).filter(|piece| [&one, &two][*piece as usize % 2].get("a", *piece).is_some()).collect();
    assert_eq!(left, [0, 1].into_iter().chain(7..60).collect::<Vec<_>>());
    assert!(one.get("b", 0).is_some());
    assert_eq!(kept(&path), cache.room.low());
    assert_eq!(counted(&cache), kept(&path));
}

#[test]
fn a_smaller_bound_holds_from_the_next_time_on() {
    let (_dir, path, cache) = cache(None);
    let state = cache.state(URL, "t").unwrap();
    for piece in 0..500 {
        state.put("a", piece, &bytes(piece, 10_000), 10_000, "");
    }
    assert_eq!(files(&path).len(), 500);
    let small = DiskCache::open(&path, Some(200 << 10)).unwrap();
    let state = small.state(URL, "t").unwrap();
    state.put("a", 1000, b"one", 3, "");
    assert_eq!(state.get("a", 1000), None, "there is no room yet");
    settle(&small);
    assert!(kept(&path) <= small.room.low());
    state.put("a", 1000, b"one", 3, "");
    assert_eq!(state.get("a", 1000), whole(b"one", ""));
    let nothing = DiskCache::open(&path, Some(0)).unwrap();
    nothing.state(URL, "t").unwrap().put("a", 2000, b"", 0, "");
    assert_eq!(state.get("a", 2000), None);
}

#[test]
fn what_was_never_finished_goes_after_ten_minutes() {
    let (_dir, path, cache) = cache(None);
    let state = cache.state(URL, "t").unwrap();
    state.put("a", 0, b"one", 3, "");
    let folder = files(&path).remove(0).parent().unwrap().to_owned();
    let (old, new) = (folder.join(".b2fuse-1-0.tmp"), folder.join(".b2fuse-1-1.tmp"));
    for file in [&old, &new] {
        fs::write(file, [0; 5000]).unwrap();
    }
    set_used(&old, 11 * 60);
    set_used(&new, 9 * 60);
    cache.sweep().unwrap();
    assert!(!old.exists() && new.exists());
    assert_eq!(super::count(&cache).bytes, 4096 + 8192);
}

#[test]
fn empty_folders_go() {
    let (_dir, path, cache) = cache(None);
    let state = cache.state(URL, "t").unwrap();
    state.put("a", 0, b"one", 3, "");
    let file = files(&path).remove(0);
    fs::remove_file(&file).unwrap();
    cache.sweep().unwrap();
    assert!(!file.parent().unwrap().exists());
    state.put("a", 0, b"two", 3, "");
    assert_eq!(state.get("a", 0), whole(b"two", ""));
}

/// At least fifty times as much as there is room for, by two caches with three threads each.
///
/// A sweep that finds another cache's at work is tried again after `PAUSE`; until then little is kept. So the threads write until pieces that
/// were not there were kept of eight times as many bytes: two threads may count the same one, and the others have been removed.
#[test]
fn the_bound_holds_whoever_writes() {
    const BOUND: u64 = 1 << 20;
    let (_dir, path, one) = cache(Some(BOUND));
    let two = DiskCache::open(&path, Some(BOUND)).unwrap();
    let (most, found, still) = (Mutex::new(0), Mutex::new((0, 0)), RwLock::new(()));
    let is_enough = |(hits, kept): (u32, u64)| hits > 400 && kept > 8 * BOUND;
    let deadline = Instant::now() + Duration::from_secs(60);
    thread::scope(|scope| {
        for (worker, cache) in [&one, &two, &one, &two, &one, &two].into_iter().enumerate() {
            let (path, most, found, still) = (&path, &most, &found, &still);
            scope.spawn(move || {
                let state = cache.state(URL, &format!("{}", worker % 3)).unwrap();
                for step in 0.. {
                    if step >= 700 && (is_enough(*found.lock()) || Instant::now() > deadline) {
                        break;
                    }
                    let piece = bytes(step, 8)[worker] as u64;
                    let data = bytes(piece, 1 + (piece as usize * 331) % 40_000);
                    let writing = still.read();
                    let is_new = state.get("a", piece).is_none();
                    state.put("a", piece, &data, data.len() as u64, "");
                    if let Some(got) = state.get("a", piece) {
                        assert_eq!(got.bytes, data);
                        let (hits, kept) = &mut *found.lock();
                        *hits += 1;
                        *kept += if is_new { data.len() as u64 } else { 0 };
                    }
                    drop(writing);
                    if step % 10 == 0 {
                        let _nobody_writes = still.write();
                        let mut most = most.lock();
                        *most = (*most).max(kept(path));
                    }
                }
            });
        }
    });
    for cache in [&one, &two] {
        settle(cache);
    }
    let most = most.into_inner();
    assert!((600 << 10..=BOUND).contains(&most), "{most}");
    let found = found.into_inner();
    assert!(is_enough(found), "{found:?}");
    assert!(one.sweep().unwrap());
    counted(&two);
    assert!(files(&path).iter().all(|file| file.extension().is_none()), "nothing unfinished is left");
    assert!(one.sweep().unwrap());
    assert_eq!(counted(&one), kept(&path));
}

/// Two of them are on at a time, and nobody waits.
#[test]
fn who_holds_the_locks_stops_nobody() {
    let (_dir, path, cache) = cache(Some(1 << 20));
    let state = cache.state(URL, "t").unwrap();
    state.put("a", 0, b"one", 3, "");
    let count = cache.dir.open(names::COUNT.as_ref(), true).unwrap();
    assert!(count.try_lock().unwrap());
    for piece in 0..200 {
        state.put("a", piece, &bytes(piece, 10_000), 10_000, "");
    }
    settle(&cache);
    assert!(kept(&path) <= 8 << 10, "no more is kept than a little that is not counted");
    count.unlock().unwrap();
    let lock = cache.dir.create(LOCK.as_ref(), 0o600).or_else(|_| cache.dir.open(LOCK.as_ref(), true)).unwrap();
    assert!(lock.try_lock().unwrap());
    assert!(!cache.sweep().unwrap());
    state.put("a", 300, b"", 0, "");
    settle(&cache);
}

const CHILD: &str = "B2FUSE_TEST_CACHE";
const CHILD_MOST: u64 = 2 << 20;

/// What a process does that is killed: puts pieces until then.
#[test]
#[ignore = "is run by another test, as a process of its own"]
fn child() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let cache = DiskCache::open(dir.as_ref(), Some(CHILD_MOST)).unwrap();
    let state = cache.state(URL, "t").unwrap();
    let mut piece = u64::from(std::process::id());
    loop {
        piece = (piece * 31 + 7) % 211;
        let data = bytes(piece, 1 + (piece as usize * 331) % 50_000);
        state.put("a", piece, &data, data.len() as u64, "own");
        if let Some(got) = state.get("a", piece) {
            assert_eq!(got.bytes, data);
        }
        println!("put {piece}");
    }
}

#[test]
fn processes_that_are_killed_leave_nothing_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    for round in 0..8 {
        let mut children: Vec<_> = (0..3)
            .map(|_| {
                Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "store::disk_cache::tests::bounds::child", "--ignored", "--nocapture"])
                    .env(CHILD, &path)
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for (number, child) in children.iter_mut().enumerate() {
            let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
            let puts = lines.map(Result::unwrap).filter(|line| line.starts_with("put")).take(20 + 37 * round + number).count();
            assert_eq!(puts, 20 + 37 * round + number);
        }
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let most = kept(&path);
        assert!(most <= CHILD_MOST, "{most} in round {round}");
        let cache = DiskCache::open(&path, Some(CHILD_MOST)).unwrap();
        let state = cache.state(URL, "t").unwrap();
        let got: Vec<(u64, Piece)> = (0..211).filter_map(|piece| Some((piece, state.get("a", piece)?))).collect();
        assert!(got.len() > 10, "{}", got.len());
        for (piece, got) in got {
            assert_eq!(Some(got), whole(&bytes(piece, 1 + (piece as usize * 331) % 50_000), "own"));
        }
        assert!(files(&path).iter().all(|file| {
            let name = file.file_name().unwrap();
            InFolder::parse(name) == Some(InFolder::Unfinished) || fs::metadata(file).is_ok_and(|stat| stat.len() > 48)
        }));
        assert!(cache.sweep().unwrap());
        assert_eq!(counted(&cache), counted_by_walking(&cache));
    }
}
