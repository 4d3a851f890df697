//! Frames whose data is shown, and that other processes replace: see `give_up`.

use super::*;
use crate::view::Blocks;

fn frames_data(show: Show) -> (tempfile::TempDir, Tree) {
    let (dir, tree) = shown_as(show);
    (dir, tree.decoding(Blocks::new(1 << 20, 1, None)))
}

/// What the kernel must forget.
fn told(tree: &Tree) -> Invalidations {
    let mut told = Invalidations::new();
    tree.follow(&mut told);
    tree.follow(&mut told);
    told.extend(tree.outdated());
    told
}

#[test]
fn data_that_is_replaced_gets_another_inode_and_the_one_before_lives_as_long_as_the_kernel_knows_it() {
    let (dir, tree) = frames_data(Show::Raw);
    let (name, mut buf) = (OsStr::new("a.b2nd.raw"), [0; 64]);
    let nodes = || tree.table.lock().iter().count();
    let before = nodes();
    for is_followed_first in [true, false, true, false] {
        let old = tree.lookup(ROOT, name).unwrap();
        let opened = tree.open(old.ino, OpenMode { read: true, ..OpenMode::default() }).unwrap();
        assert_eq!(tree.read(old.ino, Some(opened.handle), 0, &mut buf).unwrap(), buf.len());
        // What was owed of before.
        told(&tree);
        std::fs::copy(dir.path().join("b.b2nd"), dir.path().join("beside")).unwrap();
        std::fs::rename(dir.path().join("beside"), dir.path().join("a.b2nd")).unwrap();
        let mut forgotten = if is_followed_first { told(&tree) } else { Invalidations::new() };
        let reopened = tree.open(old.ino, OpenMode { read: true, ..OpenMode::default() });
        assert!(matches!(reopened, Err(ViewError::Gone)), "the name is to be looked up again: {reopened:?}");
        let new = tree.lookup(ROOT, name).unwrap();
        assert_ne!(new.ino, old.ino);
        forgotten.extend(told(&tree));
        let names_it = |inval: &Invalidation| match inval {
            Invalidation::Data(ino) | Invalidation::Range(ino, ..) => *ino == old.ino,
            Invalidation::All => true,
            _ => false,
        };
        assert!(!forgotten.iter().any(names_it), "its pages stay: {forgotten:?}");
        let last = tree.getattr(old.ino).unwrap();
        assert_eq!((last.ino, last.size, last.nlink), (old.ino, old.size, 0));
        let read = tree.read(old.ino, Some(opened.handle), 0, &mut buf);
        assert!(matches!(read, Err(ViewError::Gone)), "{read:?}");
        assert_eq!(nodes(), before + 2);
        tree.release(opened.handle, &mut Invalidations::new());
        tree.forget(old.ino, 1, true);
        assert!(matches!(tree.getattr(old.ino), Err(ViewError::Gone)));
        tree.forget(new.ino, 1, true);
        assert_eq!(nodes(), before);
    }
}

#[test]
fn data_whose_name_is_removed_keeps_its_attributes() {
    let (dir, tree) = frames_data(Show::Raw);
    let attr = tree.lookup(ROOT, OsStr::new("a.b2nd.raw")).unwrap();
    let opened = tree.open(attr.ino, OpenMode { read: true, ..OpenMode::default() }).unwrap();
    std::fs::remove_file(dir.path().join("a.b2nd")).unwrap();
    told(&tree);
    let last = tree.getattr(attr.ino).unwrap();
    assert_eq!((last.size, last.nlink), (attr.size, 0));
    let frame = tree.frame_of(Some(attr.ino)).unwrap();
    assert!(tree.close_frame(&frame), "nobody reads just now");
    assert!(!told(&tree).iter().any(|inval| matches!(inval, Invalidation::Data(ino) if *ino == attr.ino)));
    assert_eq!(tree.getattr(attr.ino).unwrap().size, attr.size);
    tree.release(opened.handle, &mut Invalidations::new());
}
