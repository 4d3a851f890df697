//! A prefix of the store in memory, mounted whole but for the kernel: what is shown, what is asked, and what hostile answers come to. A
//! listing has five names.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use b2fuse::view::{
    Attr, Blocks, FileSystem, Handle, Ino, Invalidations, Kind, OpenMode, ROOT, RemoteTree, Rules, Show, Timeouts, ViewError,
};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const READING: OpenMode = OpenMode { read: true, write: false, truncate: false, drop_privileges: false };

fn rules(show: Show) -> Rules {
    Rules {
        show,
        suffixes: b2fuse::store::walk::SUFFIXES.map(str::to_owned).to_vec(),
        frames: vec![],
        noframes: vec![],
        cross: false,
        archives: false,
        read_only: true,
        locking: false,
        lists: false,
        dtype: None,
        timeouts: Timeouts { entry: HOUR, attr: HOUR },
        watches: false,
    }
}

impl Door {
    fn tree(self: &Arc<Self>, key: &str, show: Show, refresh: Duration) -> Result<RemoteTree, ViewError> {
        let client =
            Client::listing(Arc::clone(self) as _, Arc::clone(self) as _, Key::from(key), 16, Duration::from_secs(20)).unwrap();
        let options = Options { refresh, cache_bytes: 8 << 20, ..Options::default() };
        let resources = Resources::new(Budgets { cache_bytes: 0, ..Budgets::default() });
        let blocks = matches!(show, Show::Npy | Show::Raw).then(|| Blocks::new(8 << 20, 1, None));
        RemoteTree::open(client, Path::new("memory://tree"), rules(show), options, resources, blocks)
    }

    /// Listings and other requests, from now on counted anew.
    fn counts(&self) -> (usize, usize) {
        (self.lists.swap(0, SeqCst), self.asked())
    }
}

fn find(tree: &RemoteTree, path: &str) -> Result<Attr, ViewError> {
    let mut attr = tree.getattr(ROOT)?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        attr = tree.lookup(attr.ino, OsStr::new(name))?;
    }
    Ok(attr)
}

fn names(tree: &RemoteTree, ino: Ino) -> Result<BTreeMap<String, Kind>, ViewError> {
    let (mut names, mut cookie) = (BTreeMap::new(), 0);
    loop {
        let before = names.len();
        // A few at a time, as the kernel takes them.
        tree.readdir(ino, cookie, &mut |entry| {
            assert!(names.insert(entry.name.to_str().unwrap().to_owned(), entry.kind).is_none(), "{:?} comes twice", entry.name);
            cookie = entry.next;
            names.len() < before + 3
        })?;
        if names.len() == before {
            return Ok(names);
        }
    }
}

fn open(tree: &RemoteTree, path: &str) -> Result<(Attr, Handle), ViewError> {
    let attr = find(tree, path)?;
    Ok((attr, tree.open(attr.ino, READING)?.handle))
}

fn read(tree: &RemoteTree, path: &str) -> Result<Vec<u8>, ViewError> {
    let (attr, handle) = open(tree, path)?;
    let mut bytes = vec![0; attr.size as usize + 10];
    let len = tree.read(attr.ino, Some(handle), 0, &mut bytes)?;
    tree.release(handle, &mut Invalidations::new());
    bytes.truncate(len);
    Ok(bytes)
}

fn kinds(pairs: &[(&str, Kind)]) -> BTreeMap<String, Kind> {
    pairs.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect()
}

#[test]
fn keys_are_files_and_prefixes_are_directories() {
    let door = Door::new();
    let keys: Vec<String> =
        ["a", "a-1", "a-2", "a-3", "a-4", "a-5", "a/below", "b", "d/e/f", "ü 100%"].map(String::from).to_vec();
    for key in &keys {
        door.store_object_raw(&format!("top/{key}"), key.as_bytes());
    }
    door.store_object_raw("topmost", b"not beneath it");
    let tree = door.tree("top", Show::Other, HOUR).unwrap();
    assert_eq!(door.counts(), (1, 0));
    // Six names begin with a: what is beneath it comes on the second page.
    assert_eq!(find(&tree, "a").unwrap().kind, Kind::Directory);
    assert_eq!(door.counts(), (3, 0), "names that begin so, one beneath it, and a look whether it is a frame");
    let (file, dir) = (Kind::File, Kind::Directory);
    let all = [
        ("a", dir),
        ("a-1", file),
        ("a-2", file),
        ("a-3", file),
        ("a-4", file),
        ("a-5", file),
        ("b", file),
        ("d", dir),
        ("ü 100%", file),
    ];
    assert_eq!(names(&tree, ROOT).unwrap(), kinds(&all));
    assert_eq!(door.counts(), (1, 0), "the second page alone");
    for key in keys.iter().filter(|key| *key != "a") {
        assert_eq!(read(&tree, key).unwrap(), key.as_bytes(), "{key}");
    }
    assert_eq!(read(&tree, "a/below").unwrap(), b"a/below");
    for missing in ["c", "a-6", "a/b", "d/e/g", "topmost", "b/x"] {
        assert!(matches!(find(&tree, missing), Err(ViewError::NotFound | ViewError::NotDirectory)), "{missing}");
    }
    assert!(matches!(tree.open(find(&tree, "b").unwrap().ino, OpenMode { write: true, ..READING }), Err(ViewError::ReadOnly)));
    assert_eq!(door.tree("nothing", Show::Other, HOUR).map(drop).unwrap_err().errno(), libc::ENOENT);
}

#[test]
fn frames_are_shown_as_the_user_wants() {
    let door = Door::new();
    let (_dir, expected) = frames(&door, 6, 3000);
    for (from, to) in [("one", "t/one.b2frame"), ("one", "t/st.b2d/in.b2frame"), ("one", "t/marked/in.b2frame")] {
        door.copy_object(from, to);
    }
    door.store_object_raw("t/marked/embed.b2e", b"");
    for to in ["t/sparse.b2frame", "t/unnamed"] {
        door.copy_all("sparse", to);
    }
    door.store_object_raw("t/fake.b2frame", b"no frame");
    door.store_object_raw("t/plain.b2frame/text", b"no frame");
    let (file, dir) = (Kind::File, Kind::Directory);
    for (show, cframe, sframe) in [(Show::Other, dir, file), (Show::Sparse, dir, dir), (Show::Contiguous, file, file)] {
        let tree = door.tree("t", show, HOUR).unwrap();
        let all = [
            ("fake.b2frame", cframe),
            ("marked", dir),
            ("one.b2frame", cframe),
            ("plain.b2frame", sframe),
            ("sparse.b2frame", sframe),
            ("st.b2d", dir),
            ("unnamed", dir),
        ];
        assert_eq!(names(&tree, ROOT).unwrap(), kinds(&all), "{show:?}");
        for (name, kind) in [
            ("one.b2frame", cframe),
            ("sparse.b2frame", sframe),
            ("unnamed", dir),
            ("st.b2d/in.b2frame", file),
            ("marked/in.b2frame", file),
        ] {
            let attr = find(&tree, name).unwrap();
            assert_eq!(attr.kind, kind, "{show:?}: {name}");
            if kind == dir {
                assert_eq!(names(&tree, attr.ino).unwrap().len(), 7, "{show:?}: {name}");
                let IndexEntry::Stored(chunk) = &expected[3] else { panic!() };
                assert_eq!(read(&tree, &format!("{name}/00000003.chunk")).unwrap(), *chunk);
            } else {
                assert_eq!(&read(&tree, name).unwrap()[2..9], b"b2frame", "{show:?}: {name}");
            }
        }
        // What is called as a frame is what it is, from the first look inside on.
        for _ in 0..2 {
            let plain = find(&tree, "plain.b2frame").unwrap();
            assert_eq!((plain.kind, names(&tree, plain.ino).unwrap()), (dir, kinds(&[("text", file)])), "{show:?}");
        }
        assert_eq!(read(&tree, "plain.b2frame/text").unwrap(), b"no frame");
        let fake = find(&tree, "fake.b2frame").unwrap();
        if fake.kind == dir {
            assert!(matches!(names(&tree, fake.ino), Err(ViewError::Gone)));
        }
        assert_eq!(read(&tree, "fake.b2frame").unwrap(), b"no frame", "{show:?}");
        assert_eq!(names(&tree, ROOT).unwrap()["fake.b2frame"], file, "{show:?}");
    }
    let tree = door.tree("t", Show::Raw, HOUR).unwrap();
    door.counts();
    let raw = names(&tree, ROOT).unwrap();
    assert_eq!(door.counts(), (1, 7), "a page, and the beginning of what may be a frame");
    let all = ["fake.b2frame", "marked", "one.b2frame.raw", "plain.b2frame", "sparse.b2frame.raw", "st.b2d", "unnamed.raw"];
    assert_eq!(raw.keys().map(String::as_str).collect::<Vec<_>>(), all);
    for name in ["one.b2frame.raw", "sparse.b2frame.raw", "unnamed.raw", "st.b2d/in.b2frame.raw"] {
        assert_eq!(read(&tree, name).unwrap().len(), 6 * 3000, "{name}");
    }
    assert!(matches!(find(&tree, "one.b2frame"), Err(ViewError::NotFound)), "it has another name");
}

#[test]
fn a_listing_answers_until_it_is_old() {
    let door = Door::new();
    for name in ["x", "y", "z"] {
        door.store_object_raw(&format!("t/{name}"), b"1");
    }
    let tree = door.tree("t", Show::Other, HOUR).unwrap();
    door.counts();
    for name in ["x", "y", "z", "none", "none"] {
        let _ = find(&tree, name);
    }
    names(&tree, ROOT).unwrap();
    assert_eq!(door.counts(), (0, 0));
    let tree = door.tree("t", Show::Other, Duration::ZERO).unwrap();
    find(&tree, "x").unwrap();
    door.store_object_raw("t/new", b"1");
    door.remove_object("t/x");
    assert!(matches!(find(&tree, "x"), Err(ViewError::NotFound)));
    assert_eq!(names(&tree, ROOT).unwrap().into_keys().collect::<Vec<_>>(), ["new", "y", "z"]);
    find(&tree, "new").unwrap();
}

#[test]
fn an_object_that_is_replaced_is_another_file() {
    let door = Door::new();
    let old: Vec<u8> = (0..3_000_000u32).map(|n| ((n * 7) >> 5) as u8).collect();
    door.store_object_raw("t/x", &old);
    let tree = door.tree("t", Show::Other, Duration::ZERO).unwrap();
    assert!(read(&tree, "x").unwrap() == old);
    let (attr, handle) = open(&tree, "x").unwrap();
    let mut buf = [0; 100];
    assert_eq!(tree.read(attr.ino, Some(handle), 5, &mut buf).unwrap(), 100);
    let new: Vec<u8> = old.iter().map(|byte| !byte).collect();
    door.store_object_raw("t/x", &new);
    let again = find(&tree, "x").unwrap();
    assert_ne!(again.ino, attr.ino);
    assert!(read(&tree, "x").unwrap() == new);
    // What is in memory is of the old state, and all else is an error.
    assert_eq!(tree.read(attr.ino, Some(handle), 5, &mut buf).unwrap(), 100);
    assert_eq!(buf, old[5..105]);
    door.store_object_raw("t/y", &old);
    let (attr, handle) = open(&tree, "y").unwrap();
    door.store_object_raw("t/y", &new);
    assert!(matches!(tree.read(attr.ino, Some(handle), 0, &mut buf), Err(ViewError::Gone)));
    door.remove_object("t/y");
    assert!(matches!(tree.read(attr.ino, Some(handle), 0, &mut buf), Err(ViewError::Gone)));
}

#[test]
fn a_frame_that_is_replaced_is_shown_anew() {
    let (door, other) = (Door::new(), Door::new());
    let (_dir, old) = frames(&door, 6, 3000);
    let (_other, new) = frames(&other, 8, 2000);
    door.copy_all("sparse", "t/s.b2frame");
    door.copy_object("one", "t/c.b2frame");
    let tree = door.tree("t", Show::Sparse, Duration::ZERO).unwrap();
    let chunk = |entries: &[IndexEntry<Vec<u8>>]| entries[1].clone().stored().unwrap();
    let names = ["s.b2frame/00000001.chunk", "c.b2frame/00000001.chunk"];
    for name in names {
        assert_eq!(read(&tree, name).unwrap(), chunk(&old));
    }
    let before: Vec<_> = names.map(|name| open(&tree, name).unwrap()).into();
    let objects = block(futures_util::TryStreamExt::try_collect::<Vec<_>>(other.inner.list(None))).unwrap();
    for meta in objects {
        let bytes = block(async { other.inner.get(&meta.location).await.unwrap().bytes().await }).unwrap();
        let to = meta.location.as_ref().replacen("sparse", "t/s.b2frame", 1).replacen("one", "t/c.b2frame", 1);
        door.store_object_raw(&to, &bytes);
    }
    for (name, (attr, handle)) in names.into_iter().zip(before) {
        // The first open finds out, and the next shows it at the latest.
        let mut now = read(&tree, name);
        for _ in 0..3 {
            tree.follow(&mut Invalidations::new());
            now = read(&tree, name);
        }
        assert_eq!(now.unwrap(), chunk(&new), "{name}");
        let mut buf = vec![0; 5000];
        match tree.read(attr.ino, Some(handle), 0, &mut buf) {
            Ok(len) => assert_eq!(buf[..len], chunk(&old)),
            Err(error) => assert!(matches!(error, ViewError::Gone), "{error}"),
        }
    }
}

#[test]
fn more_frames_than_there_is_room_for_are_read_all_the_same() {
    let door = Door::new();
    let (_dir, expected) = frames(&door, 2, 300);
    for n in 0..300 {
        door.copy_all("sparse", &format!("t/{n}.b2frame"));
    }
    let tree = door.tree("t", Show::Sparse, HOUR).unwrap();
    let open: Vec<_> = (0..300).map(|n| open(&tree, &format!("{n}.b2frame/00000001.chunk")).unwrap()).collect();
    let report = tree.report();
    let count: usize = report.split("frames open: ").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
    assert!((8..=256).contains(&count), "{report}");
    let inos: Vec<Ino> = open.iter().map(|(attr, _)| attr.ino).collect();
    for (attr, handle) in open {
        let mut buf = vec![0; 1000];
        let len = tree.read(attr.ino, Some(handle), 0, &mut buf).unwrap();
        assert_eq!(buf[..len], expected[1].clone().stored().unwrap());
        tree.release(handle, &mut Invalidations::new());
    }
    let again: Vec<Ino> = (0..300).map(|n| find(&tree, &format!("{n}.b2frame/00000001.chunk")).unwrap().ino).collect();
    assert_eq!(again, inos, "a file of the same state is the same");
}

#[test]
fn what_servers_say_is_taken_as_far_as_it_can_be_true() {
    let door = Door::new();
    door.store_object_raw("t/good", b"good");
    let lies = ["elsewhere", "t", "t/good", "t/deep/er", "t/deep/er2", "tt/x", "u/v/"].map(String::from).to_vec();
    let long = format!("t/{}", "l".repeat(256));
    *door.lie.lock() = Some(Box::new(move |_, _| ([&lies[..], std::slice::from_ref(&long)].concat(), None)));
    let tree = door.tree("t", Show::Other, Duration::ZERO).unwrap();
    assert_eq!(names(&tree, ROOT).unwrap(), kinds(&[("deep", Kind::Directory), ("good", Kind::File)]));
    // It is not what the listing says.
    assert!(matches!(read(&tree, "good"), Err(ViewError::Gone)));
    // A listing that goes in a circle, and one without an end.
    *door.lie.lock() = Some(Box::new(|_, _| (vec![], Some("again".into()))));
    assert_eq!(names(&tree, ROOT).unwrap_err().errno(), libc::EIO);
    *door.lie.lock() = Some(Box::new(|_, token| {
        let page = token.map_or(0, |token| token.parse::<usize>().unwrap());
        let names = (0..1000).map(|n| format!("t/{}{page:09}{n:09}", "x".repeat(200))).collect();
        (names, Some((page + 1).to_string()))
    }));
    assert_eq!(names(&tree, ROOT).unwrap_err().errno(), libc::EIO);
    let asked = door.counts().0;
    assert!((50..2000).contains(&asked), "{asked} pages");
    *door.lie.lock() = Some(Box::new(|_, token| (vec![], Some(format!("{}x", token.unwrap_or_default())))));
    assert_eq!(names(&tree, ROOT).unwrap_err().errno(), libc::EIO, "pages with nothing on them");
}

#[test]
fn a_store_that_is_away_is_an_error_and_then_is_not() {
    let door = Door::new();
    let (_dir, _) = frames(&door, 2, 300);
    door.copy_all("sparse", "t/s.b2frame");
    let tree = door.tree("t", Show::Sparse, Duration::ZERO).unwrap();
    let dir = find(&tree, "s.b2frame").unwrap();
    door.before(|_| Err(Error::Generic { store: "memory", source: "away".into() }));
    assert_eq!(names(&tree, ROOT).unwrap_err().errno(), libc::EIO);
    assert_eq!(find(&tree, "s.b2frame").unwrap_err().errno(), libc::EIO);
    assert_eq!(names(&tree, dir.ino).unwrap_err().errno(), libc::EIO);
    *door.before.lock() = None;
    assert_eq!(names(&tree, dir.ino).unwrap().len(), 3, "it is a frame as before");
}
