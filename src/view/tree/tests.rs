//! What has a name may have changed since it was looked at: then nothing is made of it.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;

use super::*;
use crate::format::Layout;
use crate::store::copy::FrameCopy;
use crate::store::{Budgets, Location, NewFrame};

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A directory with two frames of each layout, as a tree.
fn tree() -> (tempfile::TempDir, Tree) {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cframe/chunks-3.b2frame");
    let copy = FrameCopy::of(&Location::existing(&source).unwrap()).unwrap();
    for (name, layout) in
        [("a.b2nd", Layout::Contiguous), ("b.b2nd", Layout::Contiguous), ("c.b2nd", Layout::Sparse), ("d.b2nd", Layout::Sparse)]
    {
        let at = Location::to_be(&dir.path().join(name)).unwrap();
        making::store_copy(&copy, &at, layout, NewFrame::default()).unwrap();
    }
    let rules = Rules {
        show: Show::Other,
        dtype: None,
        suffixes: vec![".b2nd".to_owned()],
        frames: Vec::new(),
        noframes: Vec::new(),
        cross: false,
        archives: false,
        read_only: false,
        locking: false,
        timeouts: DEFAULT_TIMEOUTS,
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
    let rewrite = |found: &Found| {
        tree.rewrite_frame(root, OsStr::new("c.b2nd"), &dir.path().join("c.b2nd"), found, &mut Invalidations::new())
    };
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
        tree.rewrite_frame(tree.root.as_fd(), OsStr::new("c.b2nd"), &path, &found, &mut Invalidations::new()).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, expected, "{around:o} {files:o}");
    }
}

#[test]
fn another_directory_gets_no_frame() {
    let (dir, tree) = tree();
    std::fs::create_dir(dir.path().join("old.b2nd")).unwrap();
    std::fs::write(dir.path().join("old.b2nd/file"), "x").unwrap();
    let begun = tree.begin_frame(ROOT, OsStr::new("old.b2nd"), tree.root.as_fd(), &making::Empty::Since(beneath::now()));
    assert!(begun.is_err());
    let other = beneath::look(tree.root.as_fd(), OsStr::new("c.b2nd")).unwrap();
    let begun = tree.begin_frame(ROOT, OsStr::new("old.b2nd"), tree.root.as_fd(), &making::Empty::Seen(other));
    assert!(matches!(begun, Err(ViewError::Gone)), "{begun:?}");
    assert_eq!(tree.frames.all_open().len(), 0);
    assert!(!names(dir.path()).iter().any(|name| name.starts_with('.')));
}
