//! A frame that is closed, and opened again under its nodes.

use std::time::{Duration, Instant};

use super::*;
use crate::view::follow::Again;

const READING: OpenMode = OpenMode { read: true, write: false, truncate: false, drop_privileges: false };

#[test]
fn files_keep_inodes_and_attributes_while_a_frame_is_closed() {
    for pair in PAIRS {
        let dir = tempfile::tempdir().unwrap();
        let path = pair.make(dir.path());
        match pair.shown {
            Layout::Sparse => keeps(pair, &path, SparseView::new(pair.store(&path), false).unwrap()),
            Layout::Contiguous => {
                keeps(pair, &path, ContiguousView::new(pair.store(&path), Shown::As(NAME.into()), false).unwrap());
            }
        }
    }
}

/// A commit makes a file beside SOURCE, and gives SOURCE its name: a directory could not be removed then, or the frame was there again.
#[test]
fn nothing_is_committed_while_source_has_no_name() {
    for pair in PAIRS {
        let dir = tempfile::tempdir().unwrap();
        let path = pair.make(dir.path());
        match pair.shown {
            Layout::Sparse => waits(pair, &path, SparseView::new(pair.store(&path), false).unwrap()),
            Layout::Contiguous => {
                waits(pair, &path, ContiguousView::new(pair.store(&path), Shown::As(NAME.into()), false).unwrap());
            }
        }
    }
}

fn waits<V: super::super::frame_view::FrameView>(pair: Pair, path: &Path, frame: Single<V>) {
    let invalidations = &mut Invalidations::new();
    let creation = Creation { uid: 0, gid: 0, mode: 0o600, umask: 0, pid: 0, exclusive: true };
    let (_, opened) = frame.create(ROOT, OsStr::new(".t"), creation, OpenMode { write: true, ..READING }).unwrap();
    frame.write(opened.handle, 0, &pair.good(9)).unwrap();
    frame.flush(opened.handle, invalidations).unwrap();
    frame.release(opened.handle, invalidations);
    let committing = frame.commit_throttle.committing();
    frame
        .rename((ROOT, OsStr::new(".t")), (ROOT, OsStr::new(pair.frame_names()[0])), RenameMode::Replace, invalidations)
        .unwrap();
    drop(committing);
    let commits = || frame.commit_throttle.lock().commits();
    let (before, later) = (commits(), Instant::now() + Duration::from_secs(9));
    frame.publish_due(later);

    frame.leave_name(true);
    let (around, aside) = (path.parent().unwrap(), path.with_extension("aside"));
    std::fs::rename(path, &aside).unwrap();
    let changed = || std::fs::metadata(around).unwrap().modified().unwrap();
    let since = changed();
    frame.publish_due(later);
    assert_eq!((commits(), changed()), (before, since), "{pair:?}");

    std::fs::rename(&aside, path).unwrap();
    frame.leave_name(false);
    frame.publish_due(later);
    assert_eq!(commits(), before + 1, "{pair:?}");
    frame.shutdown().unwrap();
}

/// A look that began before SOURCE lost its name would show what has the name by now.
#[test]
fn what_has_lost_its_name_is_not_read_again_under_it() {
    for pair in PAIRS {
        let dir = tempfile::tempdir().unwrap();
        let path = pair.make(dir.path());
        match pair.shown {
            Layout::Sparse => stays(pair, &path, &SparseView::new(pair.store(&path), false).unwrap()),
            Layout::Contiguous => {
                stays(pair, &path, &ContiguousView::new(pair.store(&path), Shown::As(NAME.into()), false).unwrap());
            }
        }
    }
}

fn stays<V: super::super::frame_view::FrameView>(pair: Pair, path: &Path, frame: &Single<V>) {
    let beside = path.with_extension("beside");
    std::fs::create_dir(&beside).unwrap();
    let other = pair.make(&beside);
    frame.leave_name(true);
    std::fs::rename(path, path.with_extension("aside")).unwrap();
    std::fs::rename(other, path).unwrap();
    for wait in [false, true] {
        assert_eq!(frame.reload(wait, &mut Invalidations::new()).unwrap(), Again::Busy, "{pair:?}");
    }
    frame.drop_all();
}

fn keeps<V: super::super::frame_view::FrameView>(pair: Pair, path: &Path, frame: Single<V>) {
    let (name, invalidations) = (pair.frame_names()[0], &mut Invalidations::new());
    let creation = Creation { uid: 0, gid: 0, mode: 0o600, umask: 0, pid: 0, exclusive: true };
    let (temporary, opened) = frame.create(ROOT, OsStr::new(".t"), creation, OpenMode { write: true, ..READING }).unwrap();
    assert!(!frame.is_idle(), "somebody has a file open");
    frame.write(opened.handle, 0, &pair.good(9)).unwrap();
    frame.flush(opened.handle, invalidations).unwrap();
    frame.release(opened.handle, invalidations);
    let before = lookup(&frame, name).unwrap();
    frame.setattr(before.ino, None, SetAttr { mode: Some(0o604), ..SetAttr::default() }, invalidations).unwrap();
    assert!(frame.is_idle());

    let frame = frame.park().unwrap().open(pair.store(path), invalidations).unwrap();
    let is_told = pair.source == Layout::Sparse;
    assert_eq!(!invalidations.is_empty(), is_told, "only of a cframe it is known that nobody has changed it");
    let after = lookup(&frame, name).unwrap();
    assert_eq!((after.ino == before.ino, after.meta.mode == 0o604), (!is_told, !is_told));
    assert_eq!(read(&frame, lookup(&frame, ".t").unwrap().ino, None).unwrap(), pair.good(9));
    assert_eq!(lookup(&frame, ".t").unwrap().ino, temporary.ino);

    // What was changed is committed; what others change meanwhile is seen, and its files are others.
    frame.rename((ROOT, OsStr::new(".t")), (ROOT, OsStr::new(name)), RenameMode::Replace, invalidations).unwrap();
    assert!(!frame.is_idle() || !is_told);
    frame.fsync(ROOT, invalidations).unwrap();
    frame.forget(after.ino, 1, true);
    assert!(frame.is_idle());
    let renamed = lookup(&frame, name).unwrap().ino;
    let parked = frame.park().unwrap();
    let beside = path.with_extension("beside");
    std::fs::create_dir(&beside).unwrap();
    let other = Pair { source: pair.source, shown: pair.shown }.make(&beside);
    if pair.source == Layout::Sparse {
        std::fs::remove_dir_all(path).unwrap();
    }
    std::fs::rename(other, path).unwrap();
    invalidations.clear();
    let frame = parked.open(pair.store(path), invalidations).unwrap();
    assert!(invalidations.contains(&Invalidation::Names));
    let now = lookup(&frame, name).unwrap();
    assert_ne!(now.ino, renamed);
    assert_eq!(errno(frame.open(renamed, READING)), libc::ESTALE);
    assert_ne!(read(&frame, now.ino, None).unwrap(), pair.good(9));
    frame.shutdown().unwrap();
}
