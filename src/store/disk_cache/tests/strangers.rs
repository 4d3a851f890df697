//! Directories and files that are not the cache's own.

use super::*;

fn refusal(path: &Path) -> String {
    DiskCache::open(path, None).err().map(|error| in_words(&error)).unwrap_or_default()
}

#[test]
fn a_directory_that_others_could_change_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/cache");
    DiskCache::open(&path, None).unwrap();
    for made in [&path, path.parent().unwrap()] {
        assert_eq!(fs::metadata(made).unwrap().mode() & 0o777, 0o700);
    }
    for (mode, good) in [(0o755, true), (0o750, true), (0o770, false), (0o702, false), (0o1777, false)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let words = refusal(&path);
        assert_eq!(words.is_empty(), good, "{mode:o}: {words}");
        assert!(good || words.contains(&format!("{mode:04o}; expected")), "{words}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&path, dir.path().join("link")).unwrap();
    assert_eq!(refusal(&dir.path().join("link")), "it is a symbolic link, which is not followed");
    assert_eq!(refusal(&dir.path().join("link/")), "it is a symbolic link, which is not followed");
    symlink(dir.path().join("nowhere"), dir.path().join("dangling")).unwrap();
    assert_eq!(refusal(&dir.path().join("dangling")), "it is a symbolic link, which is not followed");
    assert!(!dir.path().join("nowhere").exists());
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(!refusal(&dir.path().join("file")).is_empty());
    symlink(dir.path().join("a"), dir.path().join("way")).unwrap();
    assert_eq!(refusal(&dir.path().join("way/b/cache")), "", "links on the way are followed");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        assert_eq!(refusal(&path), "it belongs to user 65534; expected user 0");
    }
}

#[test]
fn links_in_it_lead_nowhere() {
    let (dir, path, cache) = cache(None);
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let state = cache.state(URL, "t").unwrap();
    state.put("a", 0, b"one", 3, "");
    let file = files(&path).remove(0);
    let (folder, kept) = (file.parent().unwrap().to_owned(), outside.join(file.file_name().unwrap()));
    // A piece: what it leads to is neither read nor written.
    fs::rename(&file, &kept).unwrap();
    let before = fs::read(&kept).unwrap();
    symlink(&kept, &file).unwrap();
    assert_eq!(state.get("a", 0), None);
    state.put("a", 0, b"two", 3, "");
    assert_eq!(state.get("a", 0), whole(b"two", ""));
    assert!(!fs::symlink_metadata(&file).unwrap().is_symlink());
    // Something in a piece's place that cannot be replaced.
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    state.put("a", 0, b"three", 5, "");
    assert_eq!(state.get("a", 0), None);
    assert_eq!(files(&path).len(), 1, "nothing unfinished is left");
    fs::remove_dir(&file).unwrap();
    // The folder.
    fs::remove_dir_all(&folder).unwrap();
    symlink(&outside, &folder).unwrap();
    assert!(cache.state(URL, "t").is_err());
    state.put("b", 0, b"four", 4, "");
    cache.sweep().unwrap();
    state.discard("a test");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::read(&kept).unwrap(), before);
    // What says how much there is.
    let _ = fs::remove_file(&folder);
    fs::write(outside.join("count"), "theirs").unwrap();
    fs::remove_file(path.join(names::COUNT)).unwrap();
    symlink(outside.join("count"), path.join(names::COUNT)).unwrap();
    let cache = DiskCache::open(&path, None).unwrap();
    let state = cache.state(URL, "t").unwrap();
    state.put("c", 0, b"five", 4, "");
    settle(&cache);
    assert_eq!(state.get("c", 0), None);
    assert_eq!(fs::read(outside.join("count")).unwrap(), b"theirs");
}

#[test]
fn a_folder_of_somebody_else_is_refused() {
    let (_dir, path, cache) = cache(None);
    let state = cache.state(URL, "t").unwrap();
    state.put("a", 0, b"one", 3, "");
    let folder = files(&path).remove(0).parent().unwrap().to_owned();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
    assert!(cache.state(URL, "t").unwrap_err().to_string().contains("has the mode 0770"));
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&folder, Some(65534), None).unwrap();
        assert!(cache.state(URL, "t").unwrap_err().to_string().contains("belongs to user 65534"));
    }
}

/// Everything is too much here.
#[test]
fn what_is_not_ours_is_neither_counted_nor_removed() {
    let (_dir, path, cache) = cache(Some(16 << 10));
    let state = cache.state(URL, "t").unwrap();
    state.put("a", 0, b"one", 3, "");
    let file = files(&path).remove(0);
    let folder = file.parent().unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(1_000_000);
    let put = |path: PathBuf| {
        fs::write(&path, vec![0; 30_000]).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        path
    };
    let upper = file.file_name().unwrap().to_str().unwrap().to_uppercase() + "A";
    fs::create_dir(path.join("s-12")).unwrap();
    fs::create_dir(path.join("s-000000000000001G")).unwrap();
    fs::create_dir(path.join("d-0000000000000001-01")).unwrap();
    let stay = [
        put(path.join("notes")),
        put(path.join("0000000000000001-0")),
        put(path.join("s-0000000000000003")),
        put(folder.join("notes")),
        put(folder.join("1-1")),
        put(folder.join("0000000000000001-01")),
        put(folder.join("0000000000000001-")),
        put(folder.join("+000000000000001-0")),
        put(folder.join(upper)),
        put(path.join("s-12/0000000000000001-1")),
        put(path.join("s-000000000000001G/0000000000000001-1")),
        put(path.join("d-0000000000000001-01/0000000000000001-1")),
    ];
    let pipe = folder.join("0000000000000002-0");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let link = folder.join("0000000000000002-1");
    symlink(path.join("notes"), &link).unwrap();
    let mut goes = vec![put(folder.join("0000000000000001-0")), put(folder.join("0000000000000001-1"))];
    if rustix::process::geteuid().is_root() {
        let theirs = goes.remove(1);
        std::os::unix::fs::chown(&theirs, Some(65534), None).unwrap();
        cache.sweep().unwrap();
        assert!(theirs.exists());
    } else {
        cache.sweep().unwrap();
    }
    assert!(stay.iter().all(|path| path.exists()) && pipe.exists() && fs::symlink_metadata(&link).is_ok());
    assert!(goes.iter().all(|path| !path.exists()));
    assert_eq!(state.get("a", 0), whole(b"one", ""));
    assert_eq!(super::count(&cache).bytes, cost(1));
    state.discard("a test");
    let dropped = path.join(Folder::Dropped(state.id, 0).name());
    assert!(dropped.join("notes").exists() && dropped.join("1-1").exists(), "nor with a state that is dropped");
}
