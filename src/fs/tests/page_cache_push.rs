//! Files stored into the page cache ahead of their reader.

use super::*;
use crate::view::{FileSystem, Ino};

const FILES: usize = 60;
const SIZE: usize = 100_000;
const VERSIONS: usize = 12;

fn content(file: usize, version: usize) -> Vec<u8> {
    (0..SIZE).map(|at| (at * 7 + file * 13 + version * 101) as u8).collect()
}

fn name(file: usize) -> String {
    format!("{file:08X}.chunk")
}

fn chunks(read_only: bool) -> MemoryView {
    let view = MemoryView::new(read_only, []);
    for file in 0..FILES {
        view.set(&name(file), content(file, 0));
    }
    view
}

/// Has the kernel look up every file: none is pushed that it does not know.
fn list(mount: &Mount) {
    for name in mount.names() {
        fs::metadata(mount.path(&name)).unwrap();
    }
}

#[test]
fn a_sequential_reader_is_read_ahead() {
    if !fuse() {
        return;
    }
    let mount = Mount::new(chunks(false));
    list(&mount);
    for file in 0..FILES {
        assert_eq!(mount.read(&name(file)).unwrap(), content(file, 0));
        // The reader is slower than the pusher: what is to be pushed now is pushed.
        let enough = (file + 8).min(FILES - 1);
        if file >= 1 {
            let last = Ino(mount.view.lookup(ROOT, name(enough).as_ref()).unwrap().ino.0);
            eventually("pushed", || mount.view.pushes.lock().contains(&last));
        }
    }
    let asked = mount.view.reads.lock().clone();
    let distinct: std::collections::BTreeSet<_> = asked.iter().collect();
    // The first ones, and what the kernel has dropped again because it wanted the memory.
    assert!(distinct.len() <= FILES / 10, "of {FILES} files, the kernel had to ask for {}", distinct.len());
    assert_eq!(mount.view.pushes.lock().len(), FILES - 1, "each but the first two was pushed, once, and the index behind them");
}

#[test]
fn a_random_reader_is_not() {
    if !fuse() {
        return;
    }
    let mount = Mount::new(chunks(false));
    list(&mount);
    for file in (0..FILES).map(|n| n * 17 % FILES) {
        assert_eq!(mount.read(&name(file)).unwrap(), content(file, 0));
    }
    assert_eq!(mount.view.pushes.lock().len(), 0);
}

#[test]
fn unknown_files_are_not_pushed() {
    if !fuse() {
        return;
    }
    let mount = Mount::new(chunks(true));
    for file in 0..10 {
        assert_eq!(mount.read(&name(file)).unwrap(), content(file, 0));
    }
    let distinct: std::collections::BTreeSet<_> = mount.view.pushes.lock().iter().copied().collect();
    assert_eq!(distinct.len(), 10, "only what was asked for");
}

#[test]
fn pushed_bytes_never_land_on_written_ones() {
    if !fuse() {
        return;
    }
    in_time("readers and a writer", || {
        let mount = Mount::new(chunks(false));
        list(&mount);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    for file in 0..FILES {
                        mount.read(&name(file)).unwrap();
                    }
                    // Out of the page cache again, so that there is something to push.
                    for file in 0..FILES {
                        let file = File::open(mount.path(&name(file))).unwrap();
                        // SAFETY: valid for any open file.
                        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
                    }
                }
            });
            let _done = SetOnDrop(&done);
            for version in 1..=VERSIONS {
                for file in 0..FILES {
                    let path = mount.path(&name(file));
                    let content = content(file, version);
                    match file % 3 {
                        0 => fs::write(&path, &content).unwrap(),
                        1 => OpenOptions::new().write(true).open(&path).unwrap().write_all(&content).unwrap(),
                        _ => {
                            let temporary = mount.path("temporary");
                            fs::write(&temporary, &content).unwrap();
                            fs::rename(&temporary, &path).unwrap();
                        }
                    }
                    assert!(fs::read(&path).unwrap() == content, "file {file}, version {version}");
                }
            }
        });
        for file in 0..FILES {
            assert!(mount.read(&name(file)).unwrap() == content(file, VERSIONS));
        }
        assert!(!mount.view.pushes.lock().is_empty(), "there was something to go wrong");
    });
}

#[test]
fn a_writer_waits_for_the_push_under_way() {
    if !fuse() {
        return;
    }
    for truncate in [false, true] {
        let mount = Mount::new(chunks(false));
        list(&mount);
        let slow = mount.view.lookup(ROOT, name(5).as_ref()).unwrap().ino;
        *mount.view.slow_push.lock() = Some(slow);
        for file in 0..2 {
            mount.read(&name(file)).unwrap();
        }
        eventually("the push is under way", || mount.view.pushes.lock().contains(&slow));
        let path = mount.path(&name(5));
        if truncate {
            let path = CString::new(path.to_str().unwrap()).unwrap();
            // SAFETY: a C string that lives through the call.
            assert_eq!(unsafe { libc::truncate(path.as_ptr(), 10) }, 0);
        } else {
            OpenOptions::new().write(true).open(&path).unwrap().write_all(&content(5, 1)).unwrap();
        }
        eventually("the push is over", || mount.view.slow_push.lock().is_none());
        let expected = if truncate { content(5, 0)[..10].to_vec() } else { content(5, 1) };
        assert!(fs::read(&path).unwrap() == expected);
    }
}

#[test]
fn beginnings_are_pushed_to_those_who_read_no_more() {
    if !fuse() {
        return;
    }
    let mount = Mount::new(chunks(true));
    list(&mount);
    for file in 0..FILES {
        let mut head = [0; 32];
        File::open(mount.path(&name(file))).unwrap().read_exact(&mut head).unwrap();
        assert_eq!(head, content(file, 0)[..32]);
        eventually("quiet", || {
            let before = mount.view.pushes.lock().len();
            std::thread::yield_now();
            before == mount.view.pushes.lock().len()
        });
    }
    for file in 0..FILES {
        assert_eq!(mount.read(&name(file)).unwrap(), content(file, 0), "the rest is read when it is asked for");
    }
}
