use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};

use super::names::InFolder;
use super::room::Count;
use super::*;

mod bounds;
mod damage;
mod strangers;

const URL: &str = "s3://bucket/path/big.b2frame";

/// A cache in a new directory, and the directory.
fn cache(most: Option<u64>) -> (tempfile::TempDir, PathBuf, Arc<DiskCache>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    let cache = DiskCache::open(&path, most).unwrap();
    (dir, path, cache)
}

/// Bytes that tell which they are.
fn bytes(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left((at % 61) as u32) ^ at) as u8).collect()
}

fn whole(bytes: &[u8], tag: &str) -> Option<Piece> {
    Some(Piece { bytes: bytes.to_vec(), total_len: bytes.len() as u64, tag: tag.into() })
}

/// Returns when the thread that looks through everything has ended.
fn settle(cache: &DiskCache) {
    let thread = cache.sweeper.lock().thread.take();
    if let Some(thread) = thread {
        thread.join().unwrap();
    }
}

/// All files in the folders.
fn files(path: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let mut files: Vec<PathBuf> =
        folders.flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// What they cost. One that goes meanwhile costs nothing, and one that has its length only, not yet its bytes, does not either.
fn kept(path: &Path) -> u64 {
    let cost = |file: &PathBuf| {
        let stat = fs::symlink_metadata(file).ok()?;
        Some(if file.extension().is_some() { cost(stat.len()).min(stat.blocks() * 512) } else { cost(stat.len()) })
    };
    files(path).iter().filter_map(cost).sum()
}

/// What they cost to whoever counts.
fn counted_by_walking(cache: &DiskCache) -> u64 {
    sweep::walk(&*cache.dir, cache.owner).unwrap().bytes
}

fn count(cache: &DiskCache) -> Count {
    cache.room.count(&*cache.dir).unwrap().unwrap().unwrap()
}

/// What is counted when this cache has told what it has given back.
fn counted(cache: &DiskCache) -> u64 {
    cache.room.take(&*cache.dir, 0).unwrap();
    count(cache).bytes
}

#[test]
fn what_is_put_is_got_again_in_the_same_state_only() {
    let (_dir, path, cache) = cache(None);
    let state = cache.state(URL, "\"e1\"").unwrap();
    assert_eq!(state.get("a", 0), None);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "nothing is made before there is something to keep");
    let all = [
        ("a", 0, 0),
        ("a", 1, 1),
        ("a", u64::MAX, 4096),
        ("", 0, 131_072),
        ("../../b\n\0", 7, 3),
        ("ä".repeat(9000).as_str(), 0, 9),
    ]
    .map(|(object, piece, len)| (object.to_owned(), piece, bytes(piece, len)));
    for (object, piece, bytes) in &all {
        state.put(object, *piece, bytes, bytes.len() as u64 + piece / 2, "\"own\"");
    }
    // As another process or mount finds them.
    let other = DiskCache::open(&path, None).unwrap();
    for cache in [&cache, &other] {
        let state = cache.state(URL, "\"e1\"").unwrap();
        for (object, piece, bytes) in &all {
            let expected = Piece { bytes: bytes.clone(), total_len: bytes.len() as u64 + piece / 2, tag: "\"own\"".into() };
            assert_eq!(state.get(object, *piece), Some(expected), "{object} {piece}");
        }
        assert_eq!((state.get("a", 2), state.get("b", 0)), (None, None));
        for (url, tag) in [(URL, "\"e2\""), (URL, ""), ("s3://bucket/path/big.b2fram", "e\"e1\""), ("", "\"e1\"")] {
            assert_eq!(cache.state(url, tag).unwrap().get("a", 1), None, "{url} {tag}");
        }
    }
    other.state(URL, "\"e1\"").unwrap().put("a", 1, b"new", 3, "");
    assert_eq!(state.get("a", 1), whole(b"new", ""));
    counted(&other);
    assert_eq!(counted(&cache), kept(&path), "what is replaced is not counted");
    for file in files(&path) {
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    }
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    assert_eq!(files(&path).len(), all.len(), "nothing unfinished is left");
}

#[test]
fn what_cannot_be_kept_is_not() {
    let (_dir, path, cache) = cache(Some(1 << 20));
    let state = cache.state(URL, "t").unwrap();
    state.put("large", 0, &bytes(0, 1 << 20), 1 << 20, "");
    state.put("short", 0, &bytes(0, 10), 9, "");
    state.put("tag", 0, &bytes(0, 10), 10, &"t".repeat(MOST_TAG + 1));
    state.put(&"o".repeat(MOST_KEY), 0, &bytes(0, 10), 10, "");
    assert!(files(&path).is_empty());
    assert!(cache.state(&"u".repeat(MOST_KEY), "t").unwrap_err().to_string().contains("expected at most 65536"));
    let tag = "t".repeat(MOST_TAG);
    state.put("tag", 0, &bytes(0, 10), 10, &tag);
    assert_eq!(state.get("tag", 0), whole(&bytes(0, 10), &tag));
}

#[test]
fn a_dropped_state_is_gone_for_all_and_begins_anew() {
    let (_dir, path, one) = cache(None);
    let two = DiskCache::open(&path, None).unwrap();
    let kept_state = one.state("https://host/other", "t").unwrap();
    kept_state.put("a", 0, b"stays", 5, "");
    let (state, other) = (one.state(URL, "t").unwrap(), two.state(URL, "t").unwrap());
    for piece in 0..20 {
        state.put("a", piece, &bytes(piece, 100), 100, "");
    }
    other.put("b", 0, b"other", 5, "");
    other.discard("a test");
    assert_eq!(files(&path).len(), 1);
    for state in [&state, &other, &one.state(URL, "t").unwrap()] {
        assert_eq!((state.get("a", 3), state.get("b", 0)), (None, None));
    }
    assert_eq!(kept_state.get("a", 0), whole(b"stays", ""));
    state.put("a", 1, b"again", 5, "");
    assert_eq!(one.state(URL, "t").unwrap().get("a", 1), whole(b"again", ""));
    other.put("a", 2, b"and again", 9, "");
    assert_eq!(state.get("a", 2), whole(b"and again", ""));
    counted(&one);
    assert_eq!(counted(&two), kept(&path));
    // One that was killed while it dropped has left this.
    fs::rename(files(&path)[0].parent().unwrap(), path.join(Folder::Dropped(7, 0).name())).unwrap();
    one.sweep().unwrap();
    assert!(!path.join(Folder::Dropped(7, 0).name()).exists());
}

#[test]
fn a_folder_or_a_count_that_is_removed_is_made_again() {
    let (_dir, path, cache) = cache(None);
    let state = cache.state(URL, "t").unwrap();
    state.put("a", 0, b"one", 3, "");
    for entry in fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() { fs::remove_dir_all(entry).unwrap() } else { fs::remove_file(entry).unwrap() }
    }
    assert_eq!(state.get("a", 0), None);
    state.put("a", 0, b"two", 3, "");
    settle(&cache);
    assert_eq!(state.get("a", 0), whole(b"two", ""));
    assert_eq!(counted(&cache), kept(&path));
}
