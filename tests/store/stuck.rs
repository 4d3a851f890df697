//! A writer who gets no further holds up nobody who reads: not below the store, and not in what a mount shows.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use b2fuse::view::{FileSystem, Ino, OpenMode, ROOT};

use crate::driver::{Store, open};
use crate::for_both;
use crate::frames::data;

for_both!(readers_are_not_held_up_by_a_disk_that_takes_nothing);

fn readers_are_not_held_up_by_a_disk_that_takes_nothing<S: Store>() {
    let frame = |kind: &str, name: &str| data(kind).into_iter().find(|path| path.ends_with(name)).unwrap();
    let disk = S::disk(&frame(S::DATA, "codec-lz4.b2frame"));
    let view = Arc::new(open::<S>(&disk, false).unwrap()).view();
    let before = everything(&*view);
    let new = match S::DATA {
        "cframe" => ("00000000.chunk".into(), before.iter().find(|(name, _)| name == "00000001.chunk").unwrap().1.clone()),
        _ => (before[0].0.clone(), std::fs::read(frame("cframe", "codec-zstd.b2frame")).unwrap()),
    };
    let view = &*view;
    std::thread::scope(|scope| {
        let frozen = disk.freeze();
        let writer = scope.spawn(|| write(view, &new.0, &new.1));
        frozen.wait_for_a_writer();
        let (done, wait) = channel();
        scope.spawn(move || done.send(everything(view)).unwrap());
        let seen = wait.recv_timeout(Duration::from_secs(60)).expect("readers wait for the writer");
        drop(frozen);
        writer.join().unwrap();
        for (before, seen) in before.iter().zip(&seen).filter(|(before, _)| before.0 != new.0 && before.0 != "chunks.b2frame") {
            assert!(before == seen, "{:?} is another", seen.0);
        }
    });
    let after = everything(view).into_iter().find(|(name, _)| *name == new.0);
    assert!(after.as_ref() == Some(&new), "what was written is there");
    view.shutdown().unwrap();
}

fn find(view: &dyn FileSystem, name: &OsStr) -> Ino {
    let attr = view.lookup(ROOT, name).unwrap();
    assert_eq!(view.getattr(attr.ino).unwrap().ino, attr.ino);
    attr.ino
}

/// All names, and what is in the files.
fn everything(view: &dyn FileSystem) -> Vec<(OsString, Vec<u8>)> {
    let mut names = Vec::new();
    view.readdir(ROOT, 0, &mut |entry| {
        names.push(entry.name.to_owned());
        true
    })
    .unwrap();
    let read = |name: OsString| {
        let ino = find(view, &name);
        let mode = OpenMode { read: true, ..OpenMode::default() };
        let handle = view.open(ino, mode).unwrap().handle;
        let mut bytes = vec![0; view.getattr(ino).unwrap().size as usize];
        let count = view.read(ino, Some(handle), 0, &mut bytes).unwrap();
        bytes.truncate(count);
        view.release(handle, &mut Vec::new());
        (name, bytes)
    };
    names.into_iter().map(read).collect()
}

fn write(view: &dyn FileSystem, name: &OsStr, bytes: &[u8]) {
    let ino = find(view, name);
    let mode = OpenMode { write: true, truncate: true, ..OpenMode::default() };
    let handle = view.open(ino, mode).unwrap().handle;
    view.write(handle, 0, bytes).unwrap();
    view.flush(handle, &mut Vec::new()).unwrap();
    view.fsync(ino, &mut Vec::new()).unwrap();
    view.release(handle, &mut Vec::new());
}
