//! What has a name may have changed since it was looked at: then nothing is made of it.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;

use super::*;
use crate::format::Layout;
use crate::store::copy::FrameCopy;
use crate::store::local::beneath::Found;
use crate::store::{Budgets, Location, NewFrame};
use crate::view::regions::{LAST_NODE, OURS};
use crate::view::{Attr, Creation, FileSystem, Handle, New, OpenMode, ROOT, RenameMode, SetAttr};

mod closing;
mod given_up;
mod moving;
mod watched;

/// What is done at some point.
pub type Then = Box<dyn FnOnce(&Tree) + Send>;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A directory with two frames of each layout, as a tree.
fn tree() -> (tempfile::TempDir, Tree) {
    shown_as(Show::Other)
}

fn shown_as(show: Show) -> (tempfile::TempDir, Tree) {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cframe/chunks-3.b2frame");
    let copy = FrameCopy::of(&Location::existing(&source).unwrap()).unwrap();
    for (name, layout) in
        [("a.b2nd", Layout::Contiguous), ("b.b2nd", Layout::Contiguous), ("c.b2nd", Layout::Sparse), ("d.b2nd", Layout::Sparse)]
    {
        let at = Location::to_be(&dir.path().join(name)).unwrap();
        let store = copy.create(&at, layout, NewFrame::default()).unwrap();
        making::Staged::of(&copy, store).unwrap().commit().unwrap().close().unwrap();
    }
    let rules = Rules {
        show,
        dtype: None,
        suffixes: vec![".b2nd".to_owned()],
        frames: Vec::new(),
        noframes: Vec::new(),
        cross: false,
        archives: false,
        read_only: false,
        locking: false,
        lists: false,
        timeouts: DEFAULT_TIMEOUTS,
        watches: true,
    };
    let tree = Tree::open(dir.path(), rules, Resources::new(Budgets::default())).unwrap();
    (dir, tree)
}

#[test]
fn another_file_is_not_stored_as_a_directory() {
    let (dir, tree) = tree();
    let root = tree.root.as_fd();
    let look = |name: &str| beneath::look(root, OsStr::new(name)).unwrap();
    let at = |name: &'static str| place::At { parent: ROOT, dir: root, name: OsStr::new(name) };
    let adopt = |found: &Found| tree.adopt(Ino(7), (at("a.b2nd"), found), at("new.b2nd"), (None, None));
    let refused = adopt(&look("b.b2nd"));
    assert!(matches!(refused, Err(ViewError::Gone)), "{refused:?}");
    assert_eq!(names(dir.path()), ["a.b2nd", "b.b2nd", "c.b2nd", "d.b2nd"]);
    adopt(&look("a.b2nd")).unwrap();
    assert!(look("new.b2nd").stat.is_dir());
}

#[test]
fn another_directory_is_not_stored_as_a_file() {
    let (dir, tree) = tree();
    let root = tree.root.as_fd();
    let look = |name: &str| beneath::look(root, OsStr::new(name)).unwrap();
    let at = place::At { parent: ROOT, dir: root, name: OsStr::new("c.b2nd") };
    let rewrite = |found: &Found| tree.rewrite_frame(Ino(7), at, found, &mut Invalidations::new());
    let refused = rewrite(&look("d.b2nd"));
    assert!(matches!(refused, Err(ViewError::Gone)), "{refused:?}");
    assert_eq!(names(dir.path()), ["a.b2nd", "b.b2nd", "c.b2nd", "d.b2nd"]);
    assert!(look("c.b2nd").stat.is_dir());
    rewrite(&look("c.b2nd")).unwrap();
    assert!(look("c.b2nd").stat.is_file());
}

/// Whoever could not read the directory cannot read the file, be it that the directory kept them out, or its files.
#[test]
fn a_directory_stored_as_a_file_is_no_more_public() {
    use std::os::unix::fs::PermissionsExt;
    for (around, files, expected) in
        [(0o755, 0o644, 0o644), (0o700, 0o644, 0o600), (0o755, 0o600, 0o600), (0o711, 0o644, 0o644), (0o750, 0o644, 0o640)]
    {
        let (dir, tree) = tree();
        let set = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        let path = dir.path().join("c.b2nd");
        names(&path).iter().for_each(|name| set(&path.join(name), files));
        set(&path, around);
        let found = beneath::look(tree.root.as_fd(), OsStr::new("c.b2nd")).unwrap();
        let at = place::At { parent: ROOT, dir: tree.root.as_fd(), name: OsStr::new("c.b2nd") };
        tree.rewrite_frame(Ino(7), at, &found, &mut Invalidations::new()).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, expected, "{around:o} {files:o}");
    }
}

#[test]
fn another_directory_gets_no_frame() {
    let (dir, tree) = tree();
    std::fs::create_dir(dir.path().join("old.b2nd")).unwrap();
    std::fs::write(dir.path().join("old.b2nd/file"), "x").unwrap();
    let begun = tree.begin_frame(
        ROOT,
        OsStr::new("old.b2nd"),
        tree.root.as_fd(),
        (&making::Empty::Since(beneath::now()), Layout::Contiguous),
    );
    assert!(begun.is_err());
    let other = beneath::look(tree.root.as_fd(), OsStr::new("c.b2nd")).unwrap();
    let begun = tree.begin_frame(ROOT, OsStr::new("old.b2nd"), tree.root.as_fd(), (&making::Empty::Seen(other), Layout::Sparse));
    assert!(matches!(begun, Err(ViewError::Gone)), "{begun:?}");
    assert_eq!(tree.frames.open.listed().len(), 0);
    assert!(!names(dir.path()).iter().any(|name| name.starts_with('.')));
}

const CREATION: Creation = Creation { uid: 0, gid: 0, mode: 0o644, umask: 0, pid: 0, exclusive: false };
const WRITE: OpenMode = OpenMode { read: false, write: true, truncate: false, drop_privileges: false };

fn me() -> Creation {
    Creation { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), ..CREATION }
}

/// Writes a file that is a whole frame; it is one when this returns.
fn write_frame(tree: &Tree, name: &str) -> Ino {
    let bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cframe/chunks-3.b2frame")).unwrap();
    let (attr, opened) = tree.create(ROOT, OsStr::new(name), me(), WRITE).unwrap();
    tree.write(opened.handle, 0, &bytes).unwrap();
    tree.release(opened.handle, &mut Invalidations::new());
    attr.ino
}

fn lookup(tree: &Tree, name: &str) -> Attr {
    tree.lookup(ROOT, OsStr::new(name)).unwrap()
}

fn rename(tree: &Tree, from: &str, to: &str) -> Result<()> {
    tree.rename((ROOT, OsStr::new(from)), (ROOT, OsStr::new(to)), RenameMode::Replace, &mut Invalidations::new())
}

impl Tree {
    /// A name is another below, and the nodes have not followed yet.
    pub(super) fn follow_slowly(&self) {
        let then = self.when_renamed.lock().take();
        if let Some(then) = then {
            then(self);
        }
    }
}

/// Has something done when a frame has been copied and has no name yet, on a thread of its own, which must not wait for it.
fn meanwhile(tree: &Tree, work: impl FnOnce(&Tree) + Send + 'static) {
    *tree.when_staged.lock() = Some(beside(work));
}

/// Something that is done on a thread of its own, which must not wait for what it is done beside.
fn beside(work: impl FnOnce(&Tree) + Send + 'static) -> Then {
    Box::new(|tree| {
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                work(tree);
                done.send(()).unwrap();
            });
            if is_done.recv_timeout(std::time::Duration::from_secs(20)).is_err() {
                eprintln!("what was done meanwhile failed, or waits");
                std::process::abort();
            }
        });
    })
}

#[test]
fn nothing_else_waits_while_a_frame_is_stored() {
    let (dir, tree) = tree();
    let invals = Invalidations::new;
    let other = tree.create(ROOT, OsStr::new("plain"), me(), WRITE).unwrap().0.ino;
    lookup(&tree, "a.b2nd");
    lookup(&tree, "b.b2nd");
    meanwhile(&tree, move |tree| {
        let times = SetAttr { mtime: Some(std::time::UNIX_EPOCH), ..SetAttr::default() };
        tree.setattr(other, None, times, &mut invals()).unwrap();
        tree.make(ROOT, OsStr::new("dir"), New::Directory, Creation { mode: 0o755, ..me() }, &mut invals()).unwrap();
        tree.rmdir(ROOT, OsStr::new("dir"), &mut invals()).unwrap();
        rename(tree, "a.b2nd", "e.b2nd").unwrap();
        tree.rmdir(ROOT, OsStr::new("b.b2nd"), &mut invals()).unwrap_err();
        let (attr, opened) = tree.create(ROOT, OsStr::new("f.b2nd"), me(), WRITE).unwrap();
        tree.flush(opened.handle, &mut invals()).unwrap();
        tree.release(opened.handle, &mut invals());
        let opened = tree.open(attr.ino, WRITE).unwrap();
        tree.release(opened.handle, &mut invals());
        tree.unlink(ROOT, OsStr::new("f.b2nd"), &mut invals()).unwrap();
    });
    write_frame(&tree, "new.b2nd");
    assert!(tree.when_staged.lock().is_none() && dir.path().join("new.b2nd").is_dir());
}

#[test]
fn the_times_of_a_directory_stay_when_a_frame_is_stored_in_it() {
    let (dir, tree) = tree();
    let mtime = || dir.path().metadata().unwrap().modified().unwrap();
    let set = |tree: &Tree, seconds| {
        let mtime = Some(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        tree.setattr(ROOT, None, SetAttr { mtime, ..SetAttr::default() }, &mut Invalidations::new()).unwrap().meta.mtime
    };
    let made = |tree: &Tree, name: &str| {
        let bytes = std::fs::read(dir.path().join("a.b2nd")).unwrap();
        let (_, opened) = tree.create(ROOT, OsStr::new(name), me(), WRITE).unwrap();
        tree.write(opened.handle, 0, &bytes).unwrap();
        set(tree, 5);
        opened.handle
    };
    // Who sets them waits.
    let file = made(&tree, "x.b2nd");
    let (begun, has_begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let other = &tree;
        *tree.when_staged.lock() = Some(Box::new(move |tree| {
            begun.send(()).unwrap();
            while tree.claims.waiting() == 0 {
                std::thread::yield_now();
            }
        }));
        scope.spawn(move || {
            has_begun.recv().unwrap();
            set(other, 6);
        });
        tree.release(file, &mut Invalidations::new());
    });
    assert_eq!(mtime(), std::time::UNIX_EPOCH + std::time::Duration::from_secs(6));
    let file = made(&tree, "y.b2nd");
    tree.release(file, &mut Invalidations::new());
    assert_eq!(mtime(), std::time::UNIX_EPOCH + std::time::Duration::from_secs(5));
    // What is made meanwhile counts.
    let file = made(&tree, "z.b2nd");
    meanwhile(&tree, move |tree| {
        tree.create(ROOT, OsStr::new("made"), me(), WRITE).unwrap();
    });
    tree.release(file, &mut Invalidations::new());
    assert!(mtime() > std::time::UNIX_EPOCH + std::time::Duration::from_secs(7));
    assert!(["x", "y", "z"].into_iter().all(|name| dir.path().join(name).with_extension("b2nd").is_dir()));
}

/// Whoever opens the file of a frame that is just losing its suffix, and is told that what was written is committed, finds it there.
#[test]
fn a_commit_to_a_frame_that_loses_its_suffix_is_not_lost() {
    let (dir, tree) = tree();
    let frame = lookup(&tree, "a.b2nd").ino;
    let chunk = move |tree: &Tree, number: u32, mode: OpenMode| {
        let attr = tree.lookup(frame, OsStr::new(&format!("{number:08X}.chunk"))).unwrap();
        (tree.open(attr.ino, mode).unwrap().handle, attr)
    };
    let (first, attr) = chunk(&tree, 0, OpenMode { read: true, write: false, ..WRITE });
    let mut bytes = vec![0; attr.size as usize];
    tree.read(attr.ino, Some(first), 0, &mut bytes).unwrap();
    tree.release(first, &mut Invalidations::new());
    let written = bytes.clone();
    meanwhile(&tree, move |tree| {
        let (last, _) = chunk(tree, 2, OpenMode { truncate: true, ..WRITE });
        tree.write(last, 0, &written).unwrap();
        tree.flush(last, &mut Invalidations::new()).unwrap();
        tree.fsync(frame, &mut Invalidations::new()).unwrap();
        tree.release(last, &mut Invalidations::new());
    });
    rename(&tree, "a.b2nd", "a.bak").unwrap();
    assert!(tree.when_staged.lock().is_none());
    assert_eq!(std::fs::read(dir.path().join("a.bak/00000002.chunk")).unwrap(), bytes);
    assert_eq!(names(dir.path()), ["a.bak", "b.b2nd", "c.b2nd", "d.b2nd"]);
}

#[test]
fn a_frame_takes_the_place_of_a_directory_that_holds_what_is_dead() {
    let (dir, tree) = tree();
    std::fs::create_dir(dir.path().join("e.b2nd")).unwrap();
    std::fs::write(dir.path().join("e.b2nd/.b2fuse-gone-1-1"), "x").unwrap();
    lookup(&tree, "a.b2nd");
    lookup(&tree, "e.b2nd");
    rename(&tree, "a.b2nd", "e.b2nd").unwrap();
    assert_eq!(names(dir.path()), ["b.b2nd", "c.b2nd", "d.b2nd", "e.b2nd"]);
    assert!(dir.path().join("e.b2nd").is_file());
}

#[test]
fn what_has_taken_the_name_of_a_file_is_not_removed() {
    let (dir, tree) = tree();
    let root = tree.root.as_fd();
    let look = |name: &str| beneath::look(root, OsStr::new(name)).unwrap();
    let refused = tree.remove_file(root, OsStr::new("a.b2nd"), &look("b.b2nd"));
    assert!(matches!(refused, Err(ViewError::Gone)), "{refused:?}");
    tree.remove_file(root, OsStr::new("b.b2nd"), &look("b.b2nd")).unwrap();
    assert_eq!(names(dir.path()), ["a.b2nd", "c.b2nd", "d.b2nd"]);
}

#[test]
fn the_layouts_of_the_last_names_are_remembered() {
    let (_dir, tree) = shown_as(Show::Contiguous);
    for number in 0..=making::LAYOUTS.get() {
        tree.remember(ROOT, OsStr::new(&format!("{number}.b2nd")), Kind::File, Layout::Sparse);
    }
    let last = format!("{}.b2nd", making::LAYOUTS);
    assert_eq!(tree.wanted(ROOT, OsStr::new(&last), Kind::File, None), Some(Layout::Sparse));
    assert_eq!(tree.wanted(ROOT, OsStr::new("0.b2nd"), Kind::File, None), None);
}

#[test]
fn numbers_of_nodes_begin_again_before_those_of_frames_begin() {
    let (_dir, tree) = tree();
    let found = |number: u64| {
        let mut found = beneath::look(tree.root.as_fd(), OsStr::new("a.b2nd")).unwrap();
        found.id.ino = OURS | number;
        found
    };
    let mut table = tree.table.lock();
    let enter = |table: &mut Table, number| table.enter(&found(number), ROOT, OsStr::new("x"), |_| table::ShownAs::Plain);
    let first = enter(&mut table, 1);
    table.count_nodes_from(LAST_NODE - 1);
    assert_eq!(enter(&mut table, 2), Ino(OURS | LAST_NODE));
    assert_ne!(enter(&mut table, 3), first);
}

#[test]
fn frames_that_are_open_are_found_by_their_names() {
    let (_dir, tree) = tree();
    let ino = lookup(&tree, "a.b2nd").ino;
    let named = |name: &str| tree.table.lock().open_frame(ROOT, OsStr::new(name));
    assert_eq!(named("a.b2nd"), None);
    tree.lookup(ino, OsStr::new("00000000.chunk")).unwrap();
    assert_eq!(named("a.b2nd"), Some(ino));
    rename(&tree, "a.b2nd", "e.b2nd").unwrap();
    assert_eq!((named("a.b2nd"), named("e.b2nd")), (None, Some(ino)));
    assert!(tree.close_frame(&tree.frame_of(Some(ino)).unwrap()));
    assert_eq!(named("e.b2nd"), None);
    tree.lookup(ino, OsStr::new("00000000.chunk")).unwrap();
    tree.table.lock().abandon(ino);
    assert_eq!(named("e.b2nd"), None);
}

/// As rsync does it, and mv: what was stored as a directory before is a file when the name is there that makes a store.
#[test]
fn a_directory_becomes_a_store_by_a_rename() {
    let (dir, tree) = tree();
    lookup(&tree, "c.b2nd");
    write_frame(&tree, ".embed.b2e.Ab12");
    rename(&tree, ".embed.b2e.Ab12", "embed.b2e").unwrap();
    let is_file = |name: &str| dir.path().join(name).is_file();
    assert!(["a.b2nd", "c.b2nd", "embed.b2e"].into_iter().all(is_file));
    // It can be made again.
    tree.unlink(ROOT, OsStr::new("embed.b2e"), &mut Invalidations::new()).unwrap();
    std::fs::rename(dir.path().join("a.b2nd"), dir.path().join("x.b2nd")).unwrap();
    write_frame(&tree, "x");
    rename(&tree, "x", "embed.b2e").unwrap();
    assert!(is_file("x.b2nd"));
}

/// As rmtree does it: a name that was listed as a file is removed as one, whenever the mark goes.
#[test]
fn a_store_stays_one_when_its_mark_is_removed() {
    for (show, is_moved) in [(Show::Other, false), (Show::Other, true), (Show::Sparse, false), (Show::Contiguous, true)] {
        let (dir, tree) = shown_as(show);
        std::fs::copy(dir.path().join("a.b2nd"), dir.path().join("embed.b2e")).unwrap();
        let mark = lookup(&tree, "embed.b2e");
        assert_eq!(mark.kind, Kind::File);
        if is_moved {
            rename(&tree, "embed.b2e", "away").unwrap();
        } else {
            tree.unlink(ROOT, OsStr::new("embed.b2e"), &mut Invalidations::new()).unwrap();
        }
        for name in ["a.b2nd", "c.b2nd"] {
            assert_eq!(lookup(&tree, name).kind, Kind::File, "{show:?} {name}");
            tree.unlink(ROOT, OsStr::new(name), &mut Invalidations::new()).unwrap();
        }
        write_frame(&tree, "e.b2nd");
        assert!(dir.path().join("e.b2nd").is_file(), "{show:?}");
    }
}

#[test]
fn what_comes_into_a_store_by_a_rename_is_a_file() {
    for show in [Show::Other, Show::Sparse, Show::Contiguous] {
        let (dir, tree) = shown_as(show);
        let invals = Invalidations::new;
        let made = |name: &str| {
            let creation = Creation { mode: 0o755, ..me() };
            tree.make(ROOT, OsStr::new(name), New::Directory, creation, &mut invals()).unwrap().ino
        };
        let (store, plain) = (made("x.b2d"), made("work"));
        for (name, parent) in [("a.b2nd", store), ("b.b2nd", plain), ("c.b2nd", store), ("d.b2nd", plain)] {
            let frame = lookup(&tree, name);
            if frame.kind == Kind::Directory {
                tree.lookup(frame.ino, OsStr::new("00000000.chunk")).unwrap();
            }
            let to = (parent, OsStr::new(name));
            tree.rename((ROOT, OsStr::new(name)), to, RenameMode::Replace, &mut invals()).unwrap();
        }
        rename(&tree, "work", "y.b2d").unwrap();
        for (parent, name) in [("x.b2d", "a.b2nd"), ("y.b2d", "b.b2nd"), ("x.b2d", "c.b2nd"), ("y.b2d", "d.b2nd")] {
            let around = lookup(&tree, parent).ino;
            assert_eq!(tree.lookup(around, OsStr::new(name)).unwrap().kind, Kind::File, "{show:?} {name}");
            assert!(dir.path().join(parent).join(name).is_file(), "{show:?} {name}");
        }
    }
}

#[test]
fn what_is_no_file_replaces_a_frame() {
    let (dir, tree) = tree();
    let invals = Invalidations::new;
    tree.make(ROOT, OsStr::new("link"), New::Symlink(OsStr::new("/nowhere")), me(), &mut invals()).unwrap();
    tree.make(ROOT, OsStr::new("fifo"), New::Special(Kind::Fifo, 0), me(), &mut invals()).unwrap();
    for (from, to) in [("link", "c.b2nd"), ("fifo", "d.b2nd")] {
        lookup(&tree, to);
        rename(&tree, from, to).unwrap();
    }
    lookup(&tree, "a.b2nd");
    let swapped = tree.rename((ROOT, OsStr::new("c.b2nd")), (ROOT, OsStr::new("a.b2nd")), RenameMode::Exchange, &mut invals());
    swapped.unwrap();
    assert!(dir.path().join("a.b2nd").is_symlink() && dir.path().join("c.b2nd").is_file());
    // A frame that loses its suffix is copied, and so it is by tools.
    let refused = rename(&tree, "c.b2nd", "d.b2nd");
    refused.unwrap();
    tree.make(ROOT, OsStr::new("fifo"), New::Special(Kind::Fifo, 0), me(), &mut invals()).unwrap();
    let refused = rename(&tree, "d.b2nd", "fifo");
    assert!(matches!(refused, Err(ViewError::CrossDevice)), "{refused:?}");
}

#[test]
fn a_frame_shown_as_a_directory_stays_one_without_its_suffix_and_with_it_again() {
    let (dir, tree) = tree();
    let before = lookup(&tree, "a.b2nd");
    let mut invals = Invalidations::new();
    tree.rename((ROOT, OsStr::new("a.b2nd")), (ROOT, OsStr::new("a")), RenameMode::Replace, &mut invals).unwrap();
    assert!(!invals.iter().any(|inval| matches!(inval, Invalidation::Entry(_, name) if name == "a")), "{invals:?}");
    let now = lookup(&tree, "a");
    assert_eq!((now.ino, now.kind), (before.ino, Kind::Directory));
    assert!(dir.path().join("a").is_dir());
    rename(&tree, "a", "a.b2nd").unwrap();
    let now = lookup(&tree, "a.b2nd");
    assert_eq!((now.ino, now.kind), (before.ino, Kind::Directory));
    assert!(dir.path().join("a.b2nd").is_file(), "the next mount shows it as a directory too");
}

/// Others may have put something into the directory of a frame, which is shown as a file.
#[test]
fn a_frame_that_holds_something_else_keeps_its_suffix() {
    let (dir, tree) = tree();
    // Shown as a directory, and stored as one without the suffix.
    let _known = lookup(&tree, "a.b2nd");
    rename(&tree, "a.b2nd", "a").unwrap();
    std::fs::write(dir.path().join("a/notes.txt"), "precious").unwrap();
    let refused = rename(&tree, "a", "a.b2nd");
    assert!(matches!(refused, Err(ViewError::NotEmpty)), "{refused:?}");
    assert_eq!(std::fs::read_to_string(dir.path().join("a/notes.txt")).unwrap(), "precious");
    assert!(!dir.path().join("a.b2nd").exists());
    std::fs::remove_file(dir.path().join("a/notes.txt")).unwrap();
    rename(&tree, "a", "a.b2nd").unwrap();
}

#[test]
fn an_fsync_refuses_once_what_can_never_be_a_frame() {
    let (dir, tree) = shown_as(Show::Contiguous);
    for name in ["a.b2nd", "c.b2nd"] {
        let before = lookup(&tree, name);
        let fsync = || tree.fsync(before.ino, &mut Invalidations::new());
        let opened = tree.open(before.ino, OpenMode { truncate: true, ..WRITE }).unwrap();
        tree.write(opened.handle, 0, &[b'x'; 100]).unwrap();
        assert!(matches!(fsync(), Err(ViewError::Rejected(_))));
        fsync().unwrap();
        assert!(tree.flush(opened.handle, &mut Invalidations::new()).is_err());
        tree.release(opened.handle, &mut Invalidations::new());
        assert_eq!(lookup(&tree, name).size, before.size);
        crate::store::open(&dir.path().join(name), crate::store::OpenOptions { read_only: true, ..Default::default() }).unwrap();
    }
}

/// What others remove while it is written is gone, whether the write needs a file in the directory or one that was in it.
#[test]
fn a_frame_that_others_remove_while_it_is_written_is_stale() {
    let invals = Invalidations::new;
    let new = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cframe/chunks-2500.b2frame")).unwrap();
    for (show, name) in
        [(Show::Other, "c.b2nd"), (Show::Sparse, "c.b2nd"), (Show::Contiguous, "c.b2nd"), (Show::Contiguous, "a.b2nd")]
    {
        let (dir, tree) = shown_as(show);
        let path = dir.path().join(name);
        let frame = lookup(&tree, name);
        let (ino, new) = match frame.kind {
            // The bytes of another of its chunks.
            Kind::Directory => {
                let [first, last] = [0, 1].map(|n| tree.lookup(frame.ino, OsStr::new(&format!("{n:08X}.chunk"))).unwrap().ino);
                let opened = tree.open(last, OpenMode { read: true, ..OpenMode::default() }).unwrap();
                let mut bytes = vec![0; 1 << 20];
                let count = tree.read(last, Some(opened.handle), 0, &mut bytes).unwrap();
                tree.release(opened.handle, &mut invals());
                (first, bytes[..count].to_vec())
            }
            _ => (frame.ino, new.clone()),
        };
        let opened = tree.open(ino, OpenMode { truncate: true, ..WRITE }).unwrap();
        tree.write(opened.handle, 0, &new).unwrap();
        if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) }.unwrap();
        let flushed = tree.flush(opened.handle, &mut invals()).map_err(|error| error.errno());
        assert_eq!(flushed, Err(libc::ESTALE), "{show:?} {name}");
        let written = tree.write(opened.handle, 0, &new).map_err(|error| error.errno());
        assert!(matches!(written, Ok(()) | Err(libc::ESTALE)), "{show:?} {name}: {written:?}");
        let flushed = tree.flush(opened.handle, &mut invals()).map_err(|error| error.errno());
        assert!(matches!(flushed, Ok(()) | Err(libc::ESTALE)), "{show:?} {name}: {flushed:?}");
        tree.release(opened.handle, &mut invals());
    }
}

/// A read of what is below the bytes that are written fails as the write does that asks for it.
#[test]
fn a_write_over_a_frame_that_others_have_removed_is_stale() {
    let (dir, tree) = tree();
    let ino = lookup(&tree, "c.b2nd").ino;
    let mut bytes = vec![0; 1 << 20];
    let opened = tree.open(ino, OpenMode { read: true, ..WRITE }).unwrap();
    let count = tree.read(ino, Some(opened.handle), 0, &mut bytes).unwrap();
    tree.release(opened.handle, &mut Invalidations::new());
    assert!(tree.close_frame(&tree.frame_of(Some(ino)).unwrap()));
    let opened = tree.open(ino, OpenMode { read: true, ..WRITE }).unwrap();
    std::fs::remove_dir_all(dir.path().join("c.b2nd")).unwrap();
    let written = tree.write(opened.handle, 0, &bytes[..count]).map_err(|error| error.errno());
    assert_eq!(written, Err(libc::ESTALE));
    tree.release(opened.handle, &mut Invalidations::new());
}
