//! While a name changes below and the nodes have not followed yet, what was there is found by its node as before: natively a name changes
//! in one step, and an open file has its attributes at every moment.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::*;

const READ: OpenMode = OpenMode { read: true, write: false, ..WRITE };

/// A frame that is shown as a file in each mode, and one that is a directory, if there is one.
const FRAMES: [(Show, &str, Option<&str>); 3] =
    [(Show::Other, "c.b2nd", Some("a.b2nd")), (Show::Sparse, "new.b2nd", Some("c.b2nd")), (Show::Contiguous, "a.b2nd", None)];

fn exchange(tree: &Tree, from: &str, to: &str) -> Result<()> {
    tree.rename((ROOT, OsStr::new(from)), (ROOT, OsStr::new(to)), RenameMode::Exchange, &mut Invalidations::new())
}

fn write_plain(tree: &Tree, parent: Ino, name: &str) -> Ino {
    let (attr, opened) = tree.create(parent, OsStr::new(name), me(), WRITE).unwrap();
    tree.write(opened.handle, 0, b"text").unwrap();
    tree.flush(opened.handle, &mut Invalidations::new()).unwrap();
    tree.release(opened.handle, &mut Invalidations::new());
    attr.ino
}

fn make_directory(tree: &Tree, name: &str) -> Ino {
    let creation = Creation { mode: 0o755, ..me() };
    tree.make(ROOT, OsStr::new(name), New::Directory, creation, &mut Invalidations::new()).unwrap().ino
}

/// Asks for what a client can of a node that it knows. A frame is open, as one that is closed waits to be opened.
fn ask(tree: &Tree, ino: Ino) {
    let attr = tree.getattr(ino).unwrap();
    tree.xattrs(ino).unwrap();
    match attr.kind {
        Kind::Directory => tree.readdir(ino, 0, &mut |_| true).unwrap(),
        _ => {
            let handle = tree.open(ino, READ).unwrap().handle;
            assert_eq!(tree.read(ino, Some(handle), 0, &mut [0; 4]).unwrap(), 4);
            tree.release(handle, &mut Invalidations::new());
        }
    }
}

/// A tree with a file, a frame that is a file, and one that is a directory if there is one; and the names of all.
fn populated(show: Show, file: &str, directory: Option<&str>) -> (tempfile::TempDir, Tree, Vec<String>) {
    let (dir, tree) = shown_as(show);
    if file == "new.b2nd" {
        write_frame(&tree, file);
    }
    write_plain(&tree, ROOT, "plain");
    (dir, tree, ["plain", file].into_iter().chain(directory).map(str::to_owned).collect())
}

#[test]
fn what_moves_is_found_before_its_node_has_the_new_name() {
    for (show, file, directory) in FRAMES {
        let (_dir, tree, names) = populated(show, file, directory);
        for name in names {
            let ino = lookup(&tree, &name).ino;
            let other = format!("x{name}");
            ask(&tree, ino);
            for (from, to) in [(&name, &other), (&other, &name)] {
                *tree.when_renamed.lock() = Some(beside(move |tree| ask(tree, ino)));
                rename(&tree, from, to).unwrap();
                assert!(tree.when_renamed.lock().is_none(), "{show:?} {name}");
                assert_eq!(lookup(&tree, to).ino, ino, "{show:?} {name}");
            }
        }
        tree.shutdown().unwrap();
    }
}

#[test]
fn what_changes_places_is_found_before_the_nodes_have_the_new_names() {
    for (show, file, directory) in FRAMES {
        let (_dir, tree, names) = populated(show, file, directory);
        for name in names {
            let other = if name == "plain" { "plain2" } else { "b.b2nd" };
            if name == "plain" {
                write_plain(&tree, ROOT, other);
            }
            let nodes = [lookup(&tree, &name).ino, lookup(&tree, other).ino];
            nodes.into_iter().for_each(|ino| ask(&tree, ino));
            for _ in 0..2 {
                *tree.when_renamed.lock() = Some(beside(move |tree| nodes.into_iter().for_each(|ino| ask(tree, ino))));
                exchange(&tree, &name, other).unwrap();
                assert!(tree.when_renamed.lock().is_none(), "{show:?} {name}");
            }
            assert_eq!([lookup(&tree, &name).ino, lookup(&tree, other).ino], nodes, "{show:?} {name}");
        }
        tree.shutdown().unwrap();
    }
}

/// No directory is kept open for good, so that the way to what is in one may have to be walked at any moment.
#[test]
fn what_is_in_a_directory_is_found_while_that_moves() {
    for (show, file, directory) in FRAMES {
        for is_across in [false, true] {
            let (_dir, tree, names) = populated(show, file, directory);
            let (around, moved) = (make_directory(&tree, "around"), make_directory(&tree, "moved"));
            let mut nodes = vec![write_plain(&tree, moved, "in it")];
            for name in &names {
                lookup(&tree, name);
                let to = (moved, OsStr::new(name));
                tree.rename((ROOT, OsStr::new(name)), to, RenameMode::Replace, &mut Invalidations::new()).unwrap();
                nodes.push(tree.lookup(moved, OsStr::new(name)).unwrap().ino);
            }
            let to = (if is_across { around } else { ROOT }, OsStr::new("elsewhere"));
            *tree.when_renamed.lock() = Some(beside(move |tree| {
                for ino in nodes {
                    tree.dirs.lock().clear();
                    ask(tree, ino);
                }
                tree.dirs.lock().clear();
                tree.lookup(moved, OsStr::new("in it")).unwrap();
                ask(tree, moved);
            }));
            tree.rename((ROOT, OsStr::new("moved")), to, RenameMode::Replace, &mut Invalidations::new()).unwrap();
            assert!(tree.when_renamed.lock().is_none(), "{show:?}");
            tree.shutdown().unwrap();
        }
    }
}

/// Does `change`. When a name is another below, `work` begins beside it, and `change` goes on when `work` is done or waits for a claim.
fn with_beside<T: Send>(tree: &Tree, work: impl FnOnce() -> T + Send, change: impl FnOnce()) -> T {
    let is_done = Arc::new(AtomicBool::new(false));
    let (begun, has_begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let done = Arc::clone(&is_done);
        let worker = scope.spawn(move || {
            has_begun.recv().unwrap();
            let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            done.store(true, SeqCst);
            worked.unwrap()
        });
        *tree.when_renamed.lock() = Some(Box::new(move |tree| {
            begun.send(()).unwrap();
            while !is_done.load(SeqCst) && tree.claims.waiting() == 0 {
                std::thread::yield_now();
            }
        }));
        change();
        assert!(tree.when_renamed.lock().is_none());
        worker.join().unwrap()
    })
}

/// Of what is open nothing is asked in vain while its name goes, or another gets it.
#[test]
fn an_open_file_has_attributes_while_its_name_goes() {
    for (show, file, _) in FRAMES {
        for (name, is_replaced) in [(file, false), (file, true), ("plain", true)] {
            let (_dir, tree, _) = populated(show, file, None);
            let ino = lookup(&tree, name).ino;
            let handle = tree.open(ino, READ).unwrap().handle;
            let before = tree.getattr(ino).unwrap();
            write_plain(&tree, ROOT, "other");
            let ask = || {
                let size = tree.getattr(ino).unwrap().size;
                let times = SetAttr { mtime: Some(before.meta.mtime), ..SetAttr::default() };
                tree.setattr(ino, None, times, &mut Invalidations::new()).unwrap();
                tree.xattrs(ino).unwrap();
                size
            };
            let size = with_beside(&tree, ask, || match is_replaced {
                true => rename(&tree, "other", name).unwrap(),
                false => tree.unlink(ROOT, OsStr::new(name), &mut Invalidations::new()).unwrap(),
            });
            assert_eq!((size, ask()), (before.size, before.size), "{show:?} {name} {is_replaced}");
            tree.release(handle, &mut Invalidations::new());
            tree.shutdown().unwrap();
        }
    }
}

/// An open that comes as the name goes, which counts as a handle only a moment later, has the frame for good or fails.
#[test]
fn a_file_that_is_opened_while_its_name_goes_can_be_read_or_is_stale() {
    for (show, file, _) in FRAMES {
        for is_replaced in [false, true] {
            let (_dir, tree, _) = populated(show, file, None);
            let ino = lookup(&tree, file).ino;
            ask(&tree, ino);
            write_plain(&tree, ROOT, "other");
            let open = || tree.open(ino, READ).map(|opened| opened.handle);
            let opened = with_beside(&tree, open, || match is_replaced {
                true => rename(&tree, "other", file).unwrap(),
                false => tree.unlink(ROOT, OsStr::new(file), &mut Invalidations::new()).unwrap(),
            });
            match opened {
                Ok(handle) => assert_eq!(tree.read(ino, Some(handle), 0, &mut [0; 64]).unwrap(), 64, "{show:?} {is_replaced}"),
                // The kernel looks the name up once more.
                Err(error) => assert_eq!(error.errno(), libc::ESTALE, "{show:?} {is_replaced}"),
            }
            tree.shutdown().unwrap();
        }
    }
}
