//! The close(2) after which no client can write to a file makes a frame of it, for all that have it open.

use super::*;
use crate::view::{Pages, SetMode};

const READ: OpenMode = OpenMode { read: true, write: false, ..WRITE };

/// A frame of as many bytes as each other of another `fill`.
fn frame(fill: u8) -> Vec<u8> {
    let mut bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cframe/chunks-3.b2frame")).unwrap();
    // A byte of the last chunk's data: what it decodes to is nobody's business here.
    let at = bytes.len() - 200;
    bytes[at] ^= fill;
    bytes
}

fn create(tree: &Tree, name: &str, bytes: &[u8]) -> (Ino, Handle) {
    let (attr, opened) = tree.create(ROOT, OsStr::new(name), me(), WRITE).unwrap();
    tree.write(opened.handle, 0, bytes).unwrap();
    (attr.ino, opened.handle)
}

fn close(tree: &Tree, handle: Handle) {
    tree.flush(handle, &mut Invalidations::new()).unwrap();
}

#[track_caller]
fn read(tree: &Tree, ino: Ino, handle: Handle) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let count = tree.read(ino, Some(handle), 0, &mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

fn is_frame(tree: &Tree, ino: Ino) -> bool {
    tree.frame_of(Some(ino)).is_some()
}

/// Finding A1: a reader that had opened the file before sees what is written to the frame, and so does a new one.
#[test]
fn what_is_closed_is_what_is_read_by_every_handle() {
    for show in [Show::Other, Show::Sparse, Show::Contiguous] {
        let (_dir, tree) = shown_as(show);
        let (ino, first) = create(&tree, "new.b2nd", &frame(0));
        let reader = tree.open(ino, READ).unwrap().handle;
        assert_eq!(read(&tree, ino, reader), frame(0));
        close(&tree, first);
        assert!(is_frame(&tree, ino), "{show:?}");
        assert_eq!((tree.getattr(ino).unwrap().size, read(&tree, ino, reader)), (frame(0).len() as u64, frame(0)), "{show:?}");
        // The handle of the close ends a moment later.
        let second = tree.open(ino, WRITE).unwrap().handle;
        tree.write(second, 0, &frame(1)).unwrap();
        close(&tree, second);
        tree.release(second, &mut Invalidations::new());
        tree.release(first, &mut Invalidations::new());
        let other = tree.open(ino, READ).unwrap().handle;
        for handle in [reader, other] {
            assert_eq!(read(&tree, ino, handle), frame(1), "{show:?}");
            tree.release(handle, &mut Invalidations::new());
        }
        tree.shutdown().unwrap();
    }
}

#[test]
fn a_file_that_a_client_may_still_write_to_stays_one() {
    let (dir, tree) = tree();
    let (ino, first) = create(&tree, "new.b2nd", &frame(0));
    let second = tree.open(ino, WRITE).unwrap().handle;
    close(&tree, first);
    tree.release(first, &mut Invalidations::new());
    assert!(!is_frame(&tree, ino));
    // What is half of a frame is one no more, and no close makes it one.
    tree.write(second, 0, b"text").unwrap();
    close(&tree, second);
    tree.release(second, &mut Invalidations::new());
    assert!(!is_frame(&tree, ino));
    assert_eq!(std::fs::read(dir.path().join("new.b2nd")).unwrap()[..4], *b"text");
}

/// Who has the other frame open goes on with that, and who has the file open with the new one.
#[test]
fn open_files_go_along_in_place_of_a_frame_that_is_open() {
    for show in [Show::Other, Show::Sparse, Show::Contiguous] {
        let (_dir, tree) = shown_as(show);
        let (old, writer) = create(&tree, "old.b2nd", &frame(0));
        tree.flush(writer, &mut Invalidations::new()).unwrap();
        tree.release(writer, &mut Invalidations::new());
        let kept = tree.open(old, READ).unwrap().handle;
        assert_eq!(read(&tree, old, kept), frame(0));
        let (new, writer) = create(&tree, "x.tmp", &frame(1));
        let reader = tree.open(new, READ).unwrap().handle;
        close(&tree, writer);
        rename(&tree, "x.tmp", "old.b2nd").unwrap();
        assert!(is_frame(&tree, new), "{show:?}");
        assert_eq!((read(&tree, new, reader), read(&tree, old, kept)), (frame(1), frame(0)), "{show:?}");
        tree.write(writer, 0, &frame(2)).unwrap();
        close(&tree, writer);
        assert_eq!((read(&tree, new, reader), read(&tree, old, kept)), (frame(2), frame(0)), "{show:?}");
        for handle in [writer, reader, kept] {
            tree.release(handle, &mut Invalidations::new());
        }
        tree.shutdown().unwrap();
    }
}

/// The kernel reads what it has open, and nothing that takes the place of that.
#[test]
fn a_file_that_the_kernel_reads_by_itself_becomes_a_frame_when_that_ends() {
    for show in [Show::Other, Show::Sparse, Show::Contiguous] {
        let (dir, tree) = shown_as(show);
        let (ino, writer) = create(&tree, "x.dat", &frame(0));
        tree.release(writer, &mut Invalidations::new());
        let opened = tree.open(ino, READ).unwrap();
        assert_eq!(opened.pages, Pages::Passthrough);
        rename(&tree, "x.dat", "new.b2nd").unwrap();
        // What is opened meanwhile is taken in the same way.
        let second = tree.open(ino, READ).unwrap().handle;
        tree.release(opened.handle, &mut Invalidations::new());
        assert!(!is_frame(&tree, ino), "{show:?}");
        tree.release(second, &mut Invalidations::new());
        assert!(is_frame(&tree, ino), "{show:?}");
        assert_eq!(dir.path().join("new.b2nd").is_dir(), show == Show::Other);
        let reader = tree.open(ino, READ).unwrap().handle;
        assert_eq!(read(&tree, ino, reader), frame(0), "{show:?}");
        tree.release(reader, &mut Invalidations::new());
        tree.shutdown().unwrap();
    }
}

/// A descriptor that was duplicated, or a map, writes to what the frame is by then.
#[test]
fn what_is_written_behind_a_close_reaches_the_frame() {
    for show in [Show::Other, Show::Sparse, Show::Contiguous] {
        let (dir, tree) = shown_as(show);
        let (ino, handle) = create(&tree, "new.b2nd", &frame(0));
        close(&tree, handle);
        assert!(is_frame(&tree, ino));
        tree.write(handle, 0, &frame(1)).unwrap();
        close(&tree, handle);
        tree.fsync(ino, &mut Invalidations::new()).unwrap();
        tree.release(handle, &mut Invalidations::new());
        let below = dir.path().join("new.b2nd");
        assert_eq!(below.is_dir(), show == Show::Other);
        let reader = tree.open(ino, READ).unwrap().handle;
        assert_eq!(read(&tree, ino, reader), frame(1), "{show:?}");
        tree.release(reader, &mut Invalidations::new());
        tree.shutdown().unwrap();
    }
}

/// A descriptor that was duplicated and not used since its close goes on with what is removed or replaced.
#[test]
fn a_handle_that_was_closed_reads_on_when_its_frame_is_removed() {
    for show in [Show::Other, Show::Sparse, Show::Contiguous] {
        for replaced in [false, true] {
            let (dir, tree) = shown_as(show);
            let (ino, writer) = create(&tree, "new.b2nd", &frame(0));
            close(&tree, writer);
            assert!(is_frame(&tree, ino));
            if replaced {
                let (_, other) = create(&tree, "x.tmp", &frame(1));
                close(&tree, other);
                tree.release(other, &mut Invalidations::new());
                rename(&tree, "x.tmp", "new.b2nd").unwrap();
            } else {
                tree.unlink(ROOT, OsStr::new("new.b2nd"), &mut Invalidations::new()).unwrap();
            }
            assert_eq!(read(&tree, ino, writer), frame(0), "{show:?} {replaced}");
            assert_eq!(tree.getattr(ino).unwrap().size, frame(0).len() as u64, "{show:?} {replaced}");
            tree.write(writer, 0, &frame(2)).unwrap();
            assert_eq!(read(&tree, ino, writer), frame(2), "{show:?} {replaced}");
            close(&tree, writer);
            tree.release(writer, &mut Invalidations::new());
            tree.shutdown().unwrap();
            drop(tree);
            assert!(!names(dir.path()).iter().any(|name| name.starts_with('.')), "{show:?} {replaced}");
        }
    }
}

/// The handle of a close may end only when the name is another already.
#[test]
fn a_rename_after_a_close_makes_a_frame_of_a_file() {
    for show in [Show::Other, Show::Sparse, Show::Contiguous] {
        for target in ["new.b2nd", "a.b2nd"] {
            let (dir, tree) = shown_as(show);
            if show != Show::Contiguous && target == "a.b2nd" {
                continue; // a directory there
            }
            let (ino, handle) = create(&tree, "x.tmp", &frame(1));
            close(&tree, handle);
            let _ = tree.lookup(ROOT, OsStr::new(target));
            rename(&tree, "x.tmp", target).unwrap();
            assert!(is_frame(&tree, ino), "{show:?} {target}");
            tree.write(handle, 0, &frame(2)).unwrap();
            close(&tree, handle);
            tree.release(handle, &mut Invalidations::new());
            let found = lookup(&tree, target);
            let reader = tree.open(found.ino, READ).unwrap().handle;
            assert_eq!((found.ino, read(&tree, ino, reader)), (ino, frame(2)), "{show:?} {target}");
            tree.release(reader, &mut Invalidations::new());
            tree.shutdown().unwrap();
            drop(tree);
            assert!(!names(dir.path()).iter().any(|name| name.starts_with('.')), "{show:?} {target}");
        }
    }
}

/// Finding A3: while a frame takes the place of a file, the name stands for both; it has one node all the same.
#[test]
fn a_file_has_one_node_while_it_becomes_a_frame() {
    let (_dir, tree) = tree();
    let (ino, handle) = create(&tree, "new.b2nd", &frame(0));
    let done = std::sync::atomic::AtomicBool::new(false);
    let (done, tree) = (&done, &tree);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                while !done.load(std::sync::atomic::Ordering::SeqCst) {
                    assert_eq!(lookup(tree, "new.b2nd").ino, ino);
                }
            });
        }
        close(tree, handle);
        done.store(true, std::sync::atomic::Ordering::SeqCst);
    });
}

/// Under a name that is no frame's, open files go on with the file.
#[test]
fn open_files_of_a_frame_go_on_with_the_file_that_it_becomes() {
    for show in [Show::Sparse, Show::Contiguous] {
        let (_dir, tree) = shown_as(show);
        let (ino, writer) = create(&tree, "x.b2nd", &frame(0));
        let readers: Vec<_> = (0..2).map(|_| tree.open(ino, READ).unwrap().handle).collect();
        close(&tree, writer);
        assert_eq!((is_frame(&tree, ino), read(&tree, ino, readers[0])), (true, frame(0)), "{show:?}");
        rename(&tree, "x.b2nd", "x.dat").unwrap();
        assert!(!is_frame(&tree, ino));
        for handle in &readers {
            assert_eq!(read(&tree, ino, *handle), frame(0), "{show:?}");
        }
        // The client that made it still has it open, and goes on writing.
        tree.write(writer, 0, b"text").unwrap();
        close(&tree, writer);
        assert_eq!(read(&tree, ino, readers[0])[..4], *b"text");
        rename(&tree, "x.dat", "y.b2nd").unwrap();
        assert_eq!(read(&tree, ino, readers[1])[..4], *b"text");
        readers.into_iter().chain([writer]).for_each(|handle| tree.release(handle, &mut Invalidations::new()));
        tree.shutdown().unwrap();
    }
}

/// The handle of a close ends a moment after the close returns. What comes in between takes nobody for a writer.
#[test]
fn a_frame_is_renamed_as_soon_as_its_writer_has_closed_it() {
    for (show, name) in
        [(Show::Other, "c.b2nd"), (Show::Sparse, "new.b2nd"), (Show::Contiguous, "a.b2nd"), (Show::Contiguous, "c.b2nd")]
    {
        let (dir, tree) = shown_as(show);
        if name == "new.b2nd" {
            let (_, writer) = create(&tree, name, &frame(0));
            close(&tree, writer);
            tree.release(writer, &mut Invalidations::new());
        }
        let ino = lookup(&tree, name).ino;
        let writer = tree.open(ino, WRITE).unwrap().handle;
        tree.write(writer, 0, &frame(1)).unwrap();
        assert!(matches!(rename(&tree, name, "x.dat"), Err(ViewError::InUse)), "{show:?} {name}");
        close(&tree, writer);
        rename(&tree, name, "x.dat").unwrap();
        // The file may have holes.
        let chunk = &frame(1)[frame(1).len() - 220..][..40];
        assert!(read(&tree, ino, writer).windows(chunk.len()).any(|bytes| bytes == chunk), "{show:?} {name}");
        // It was duplicated.
        tree.write(writer, 0, b"text").unwrap();
        close(&tree, writer);
        assert_eq!(std::fs::read(dir.path().join("x.dat")).unwrap()[..4], *b"text", "{show:?} {name}");
        tree.release(writer, &mut Invalidations::new());
        tree.shutdown().unwrap();
    }
}

/// A change of metadata leaves the frame the same one for a handle that was not used since its file became that frame.
#[test]
fn a_handle_that_moved_reads_on_after_a_change_of_metadata() {
    let mtime = Some(std::time::UNIX_EPOCH);
    let sets = [
        SetAttr { mode: Some(0o600), ..SetAttr::default() },
        SetAttr { mtime, ..SetAttr::default() },
        SetAttr { uid: Some(me().uid), ..SetAttr::default() },
    ];
    let invals = Invalidations::new;
    for show in [Show::Other, Show::Sparse, Show::Contiguous] {
        for number in 0..=sets.len() {
            let (_dir, tree) = shown_as(show);
            let (ino, writer) = create(&tree, "new.b2nd", &frame(0));
            let reader = tree.open(ino, READ).unwrap().handle;
            close(&tree, writer);
            tree.release(writer, &mut invals());
            tree.close_frame(&tree.frame_of(Some(ino)).unwrap());
            match sets.get(number) {
                Some(set) => drop(tree.setattr(ino, None, *set, &mut invals()).unwrap()),
                None => tree.set_xattr(ino, OsStr::new("user.note"), Some(b"x"), SetMode::Any, &mut invals()).unwrap(),
            }
            assert_eq!(read(&tree, ino, reader), frame(0), "{show:?} {number}");
            tree.release(reader, &mut invals());
            tree.shutdown().unwrap();
        }
    }
}

/// The frame lies beside its old name for that handle.
#[test]
fn a_directory_is_removed_while_a_removed_frame_of_it_is_read() {
    let (dir, tree) = tree();
    let invals = Invalidations::new;
    let creation = Creation { mode: 0o755, ..me() };
    let around = tree.make(ROOT, OsStr::new("s"), New::Directory, creation, &mut invals()).unwrap().ino;
    lookup(&tree, "c.b2nd");
    tree.rename((ROOT, OsStr::new("c.b2nd")), (around, OsStr::new("c.b2nd")), RenameMode::Replace, &mut invals()).unwrap();
    let frame = tree.lookup(around, OsStr::new("c.b2nd")).unwrap();
    assert_eq!(frame.kind, Kind::File);
    let handle = tree.open(frame.ino, READ).unwrap().handle;
    tree.unlink(around, OsStr::new("c.b2nd"), &mut invals()).unwrap();
    std::fs::write(dir.path().join("s/other"), "x").unwrap();
    let refused = tree.rmdir(ROOT, OsStr::new("s"), &mut invals());
    assert_eq!(refused.unwrap_err().errno(), libc::ENOTEMPTY);
    std::fs::remove_file(dir.path().join("s/other")).unwrap();
    tree.rmdir(ROOT, OsStr::new("s"), &mut invals()).unwrap();
    assert!(!dir.path().join("s").exists());
    let mut bytes = vec![0; frame.size as usize];
    assert_eq!(tree.read(frame.ino, Some(handle), 0, &mut bytes).unwrap(), bytes.len());
    tree.release(handle, &mut invals());
    assert_eq!(names(dir.path()), ["a.b2nd", "b.b2nd", "d.b2nd"]);
}

/// What a client has written keeps offsets and length while the frame is closed, wherever SOURCE has its chunks.
#[test]
fn a_frame_that_is_closed_and_opened_again_is_the_same_file() {
    let with_holes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cframe/holes.b2frame")).unwrap();
    for (show, name) in [(Show::Contiguous, "a.b2nd"), (Show::Contiguous, "c.b2nd"), (Show::Other, "c.b2nd")] {
        let (dir, tree) = shown_as(show);
        let ino = lookup(&tree, name).ino;
        let close_it = || assert!(tree.close_frame(&tree.frame_of(Some(ino)).unwrap()));
        let bytes = || {
            let handle = tree.open(ino, READ).unwrap().handle;
            let bytes = read(&tree, ino, handle);
            tree.release(handle, &mut Invalidations::new());
            bytes
        };
        let untouched = bytes();
        close_it();
        assert!(bytes() == untouched);
        let writer = tree.open(ino, OpenMode { truncate: true, ..WRITE }).unwrap().handle;
        tree.write(writer, 0, &with_holes).unwrap();
        close(&tree, writer);
        tree.release(writer, &mut Invalidations::new());
        tree.fsync(ino, &mut Invalidations::new()).unwrap();
        let written = bytes();
        assert_eq!(written.len(), with_holes.len());
        for _ in 0..3 {
            close_it();
            assert_eq!(tree.getattr(ino).unwrap().size, written.len() as u64);
            assert!(bytes() == written, "{show:?} {name}");
            assert_eq!((lookup(&tree, name).ino, tree.getattr(ino).unwrap().size), (ino, written.len() as u64));
        }
        // Not what others make of it.
        close_it();
        if name == "a.b2nd" {
            std::fs::write(dir.path().join(name), frame(9)).unwrap();
            assert!(bytes() == frame(9));
        }
        tree.shutdown().unwrap();
    }
}
