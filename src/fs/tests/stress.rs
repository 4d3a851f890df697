//! Everything that makes the kernel hold a lock, at the same time as everything that makes it wait for one.

use std::os::unix::fs::FileExt;

use super::*;
use crate::fs::notify::{KernelLock, TURN};
use crate::fs::reads::Origin;
use std::sync::mpsc::channel;

#[test]
fn notifications_never_lock_up_with_clients() {
    if !fuse() {
        return;
    }
    in_time("clients and notifications", || {
        let mount = Mount::new(MemoryView::new(false, [("a", vec![1; 300_000]), ("b", vec![2; 300_000])]));
        let dir = mount.dir.path();
        std::thread::scope(|scope| {
            for worker in 0..3 {
                scope.spawn(move || {
                    for round in 0..300 {
                        let (new, other) = (dir.join(format!("w{worker}-{round}")), dir.join(format!("w{worker}-other")));
                        fs::write(&new, [0; 5000]).unwrap();
                        fs::rename(&new, &other).unwrap();
                        let _ = File::create(dir.join(format!("drop-w{worker}-other"))).map(close);
                        let _ = fs::remove_file(&other);
                    }
                });
            }
            scope.spawn(move || {
                for _ in 0..300 {
                    File::open(dir).unwrap().sync_all().unwrap();
                }
            });
            scope.spawn(move || {
                for _ in 0..300 {
                    let mut file = OpenOptions::new().write(true).open(dir.join("a")).unwrap();
                    file.write_all(b"BAD").unwrap();
                    file.sync_all().unwrap_err();
                    let _ = close(file);
                    assert_eq!(fs::read(dir.join("a")).unwrap(), [1; 300_000]);
                }
            });
            scope.spawn(move || {
                for _ in 0..100 {
                    for entry in fs::read_dir(dir).unwrap() {
                        let _ = entry.unwrap().metadata();
                    }
                    assert_eq!(fs::read(dir.join("b")).unwrap(), [2; 300_000]);
                }
            });
        });
    });
}

/// While a file is being cut, the kernel writes none of its pages back; and before it forgets a page that was changed through a
/// mapping, it waits for that to be written back.
#[test]
fn cutting_a_file_with_changed_pages_ends() {
    if !fuse() {
        return;
    }
    in_time("truncate and a changed mapping", || {
        const LEN: usize = 64 << 10;
        let mount = Mount::new(MemoryView::new(false, [("a", vec![1; LEN])]));
        let file = OpenOptions::new().read(true).write(true).open(mount.path("a")).unwrap();
        for round in 0..50 {
            file.set_len(LEN as u64).unwrap();
            // SAFETY: a mapping of our own, of which only what lies within the file is touched.
            unsafe {
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                let map = libc::mmap(std::ptr::null_mut(), LEN, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
                assert_ne!(map, libc::MAP_FAILED);
                for page in (0..LEN).step_by(4096) {
                    map.cast::<u8>().add(page).write_volatile(round);
                }
                file.set_len(LEN as u64 / 2).unwrap();
                assert_eq!(libc::munmap(map, LEN), 0);
            }
            file.sync_all().unwrap();
            let bytes = mount.view.bytes("a").unwrap();
            assert_eq!((bytes.len(), bytes[0], bytes[4096]), (LEN / 2, round, round));
        }
    });
}

/// Everything at once on a mount point that is a file: readers that wait for their pages, pages changed through a mapping that have
/// to be written back before they are forgotten, closes that are refused, fsyncs, and ranges that a view forgets by itself.
#[test]
fn one_file_never_locks_up() {
    if !fuse() {
        return;
    }
    in_time("clients of one file, and notifications", || {
        const LEN: usize = 1 << 20;
        let view = MemoryView::on_file(false, vec![1; LEN]);
        *view.pace.lock() = Some(Duration::from_millis(10));
        let mount = Mount::on_file(view);
        let path = &mount.path(FILE);
        // What the kernel is told of the root for the first time, it drops if an invalidation comes just then, and has it as empty
        // until it asks again, which it does for read(2) but not for a mapping: touching that would be SIGBUS.
        assert_eq!(fs::metadata(path).unwrap().len(), LEN as u64);
        let done = &AtomicBool::new(false);
        let open = || OpenOptions::new().read(true).write(true).open(path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let file = open();
                // SAFETY: a mapping of our own, of which only what lies within the file is touched: nobody cuts it.
                unsafe {
                    let protection = libc::PROT_READ | libc::PROT_WRITE;
                    let map = libc::mmap(std::ptr::null_mut(), LEN, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
                    assert_ne!(map, libc::MAP_FAILED);
                    let mut round = 0u8;
                    while !done.load(Ordering::SeqCst) {
                        round = round.wrapping_add(1);
                        for page in (LEN / 2..LEN).step_by(4096) {
                            map.cast::<u8>().add(page).write_volatile(round);
                        }
                        // An fsync of what another client is writing at that moment: refused, if it is no good.
                        let synced = libc::msync(map, LEN, if round & 1 == 0 { libc::MS_SYNC } else { libc::MS_ASYNC });
                        assert!(synced == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL));
                    }
                    assert_eq!(libc::munmap(map, LEN), 0);
                }
            });
            for _ in 0..2 {
                scope.spawn(move || {
                    while !done.load(Ordering::SeqCst) {
                        assert_eq!(fs::read(path).unwrap().len(), LEN);
                    }
                });
            }
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    *mount.view.stale.lock() = vec![Invalidation::Range(ROOT, 4096, LEN as u64)];
                    std::thread::yield_now();
                }
            });
            let _done = SetOnDrop(done);
            for round in 0..300 {
                let mut file = open();
                file.write_all(if round % 2 == 0 { b"BAD" } else { b"new" }).unwrap();
                if round % 3 == 0 {
                    let _ = file.sync_all();
                }
                let _ = close(file);
            }
        });
    });
}

/// write(2) changes the kernel's page, and sends the WRITE afterwards. If the page is dropped in between, a READ brings the old bytes back.
#[test]
fn what_is_written_stays_though_its_page_was_read_again_before() {
    if !fuse() {
        return;
    }
    in_time("a WRITE that a READ comes before", || {
        // Each once: the kernel holds a page that was dropped before the write until the reply.
        const NAMES: [&str; 4] = ["a", "b", "c", "d"];
        let mount = Mount::new(MemoryView::new(false, NAMES.map(|name| (name, vec![1; 8192]))));
        let first = |file: &File| {
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, 0).unwrap();
            (bytes[0], bytes[100])
        };
        for name in NAMES {
            let file = &OpenOptions::new().read(true).write(true).open(mount.path(name)).unwrap();
            let reader = &File::open(mount.path(name)).unwrap();
            assert_eq!(first(reader), (1, 1));
            std::thread::scope(|scope| {
                let blocked = mount.view.changes.close();
                let writer = scope.spawn(move || file.write_all_at(&[2; 100], 0).map(|()| first(file)));
                eventually("the WRITE comes", || mount.view.changes.waiting.load(Ordering::SeqCst) == 1);
                mount.shared.notify.forget(vec![Invalidation::Data(Ino(reader.metadata().unwrap().ino()))]);
                eventually("the page is read again", || first(reader) == (1, 1));
                drop(blocked);
                assert_eq!(writer.join().unwrap().unwrap(), (2, 1));
            });
            assert_eq!(first(reader), (2, 1));
        }
    });
}

/// Who has written to a file reads that back, at once, while others read the file, and whether or not it was written through the page cache.
#[test]
fn what_is_written_is_read_back_at_once_whoever_reads_too() {
    if !fuse() {
        return;
    }
    in_time("a writer that reads back, and readers", || {
        let mount = Mount::new(MemoryView::new(false, [("a", vec![0; 8192])]));
        let (path, done) = (&mount.path("a"), &AtomicBool::new(false));
        let reader = || File::open(path).unwrap();
        let number = |file: &File| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, 16).unwrap();
            u64::from_ne_bytes(bytes)
        };
        let mut last = 0u64;
        let mut rounds = |writer: &File, reader: &File| {
            let stale = (last + 1..=last + 3_000).filter(|n| {
                writer.write_all_at(&n.to_ne_bytes(), 16).unwrap();
                number(reader) != *n
            });
            assert_eq!(stale.count(), 0);
            last += 3_000;
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(move || {
                    while !done.load(Ordering::SeqCst) {
                        number(&reader());
                    }
                });
            }
            let _done = SetOnDrop(done);
            let writer = || OpenOptions::new().write(true).open(path).unwrap();
            rounds(&writer(), &reader());
            mount.view.write_directly();
            rounds(&writer(), &reader());
        });
    });
}

/// The reply to a WRITE comes after the kernel has forgotten what a READ may have got too early, however busy the thread is that says so.
#[test]
fn a_write_is_answered_when_early_pages_are_forgotten() {
    if !fuse() {
        return;
    }
    in_time("a WRITE that waits for the pages thread", || {
        let mount = Mount::new(MemoryView::new(false, [("a", vec![1; 4096]), ("b", vec![1; 10])]));
        let file = &OpenOptions::new().read(true).write(true).open(mount.path("a")).unwrap();
        let [ino, other] = ["a", "b"].map(|name| Ino(fs::metadata(mount.path(name)).unwrap().ino()));
        let notify = &mount.shared.notify;
        let last = || {
            let mut byte = [0];
            file.read_exact_at(&mut byte, 4095).unwrap();
            byte[0]
        };
        for value in (1..100).step_by(2) {
            mount.view.set("a", vec![value; 4096]);
            notify.forget(vec![Invalidation::Data(ino)]);
            eventually("the page is read", || last() == value);
            mount.view.set("a", vec![value + 1; 4096]);
            // As if another client had read the page before the WRITE.
            notify.reads.end(ino, notify.reads.begin(ino, 0, 4096, Origin { unique: 0, client: 0 }));
            let (busy, is_busy) = channel();
            let (go_on, goes_on) = channel::<()>();
            notify.answer(vec![Invalidation::Data(other)], KernelLock::Nothing, move || {
                busy.send(()).unwrap();
                let _ = goes_on.recv();
            });
            is_busy.recv().unwrap();
            let read = std::thread::scope(|scope| {
                let passed = mount.view.changes.passed.load(Ordering::SeqCst);
                let writer = scope.spawn(|| {
                    let began = Instant::now();
                    file.write_all_at(&[3], 4000).map(|()| (last(), began.elapsed()))
                });
                eventually("the WRITE comes", || mount.view.changes.passed.load(Ordering::SeqCst) > passed);
                drop(go_on);
                writer.join().unwrap().unwrap()
            });
            if read.0 == value + 1 {
                return;
            }
            assert!(read.1 >= TURN, "{read:?}");
        }
        panic!("the thread is always too late");
    });
}
