//! A disk that lets everybody wait who needs it.

use std::os::unix::fs::FileExt;
use std::sync::mpsc::channel;

use super::super::executor::{self, LEAST};
use super::*;

const FILES: usize = 80;
const LEN: usize = 1 << 20;

fn mount(threads: usize) -> Mount {
    let names: Vec<String> = (0..FILES).map(|n| format!("f{n:02}")).collect();
    let view = MemoryView::new(false, names.iter().map(|name| (name.as_str(), vec![7; LEN])));
    Mount::with(view, |config| config.threads = threads)
}

/// Fails unless `body` ends, which it does not where nobody answers.
fn goes_on(what: &str, body: impl FnOnce() + Send + 'static) {
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        body();
        done.send(())
    });
    assert!(is_done.recv_timeout(SURELY).is_ok(), "nobody answers: {what}");
}

#[test]
fn who_reads_goes_on_while_any_number_of_fsyncs_waits() {
    if !fuse() {
        return;
    }
    for (threads, clients) in [(8, 2), (1, 1), (1, 64), (2, 2), (8, 64)] {
        let mount = mount(threads);
        let disk = &mount.view.disk;
        let synced = std::thread::scope(|scope| {
            let closed = disk.close();
            let path = |n: usize| mount.path(&format!("f{n:02}"));
            let sync = |n| scope.spawn(move || File::open(path(n)).and_then(|file| file.sync_all()));
            let clients: Vec<_> = (0..clients).map(sync).collect();
            let most = executor::disk(threads.max(LEAST));
            eventually("they wait", || disk.waiting.load(Ordering::SeqCst) == clients.len().min(most));
            let dir = mount.dir.path().to_owned();
            goes_on(&format!("{threads} threads, {} fsyncs", clients.len()), move || {
                for entry in fs::read_dir(dir).unwrap() {
                    let entry = entry.unwrap();
                    assert!(entry.metadata().unwrap().is_file());
                    fs::read(entry.path()).unwrap();
                }
            });
            assert_eq!(disk.passed.load(Ordering::SeqCst), 0);
            assert!(!clients.iter().any(|client| client.is_finished()));
            drop(closed);
            clients.into_iter().map(|client| client.join().unwrap()).filter(|synced| synced.is_ok()).count()
        });
        assert_eq!((synced, disk.passed.load(Ordering::SeqCst)), (clients, clients));
    }
}

#[test]
fn who_reads_goes_on_while_closes_renames_and_truncations_wait() {
    if !fuse() {
        return;
    }
    let mount = mount(8);
    let disk = &mount.view.disk;
    let written = OpenOptions::new().write(true).open(mount.path("f01")).unwrap();
    let read = File::open(mount.path("f79")).unwrap();
    // While something is renamed, the kernel looks up nothing that it does not know.
    fs::metadata(mount.path("f03")).unwrap();
    std::thread::scope(|scope| {
        let closed = disk.close();
        let path = |name| mount.path(name);
        // SAFETY: `path` is a C string.
        let cut = |path: &Path| unsafe { libc::truncate(CString::new(path.to_str().unwrap()).unwrap().as_ptr(), 5) };
        let clients = [
            scope.spawn(move || close(written)),
            scope.spawn(move || fs::rename(path("f02"), path("new"))),
            scope.spawn(move || if cut(&path("f03")) == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }),
        ];
        eventually("they wait", || disk.waiting.load(Ordering::SeqCst) == clients.len());
        goes_on("what is open", move || {
            let mut bytes = vec![0; LEN];
            read.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(bytes, [7; LEN]);
        });
        drop(closed);
        clients.into_iter().for_each(|client| client.join().unwrap().unwrap());
    });
    assert_eq!((mount.read("new").unwrap().len(), mount.read("f03").unwrap().len()), (LEN, 5));
}

#[test]
fn who_reads_goes_on_while_changes_wait() {
    if !fuse() {
        return;
    }
    let mount = mount(1);
    let changes = &mount.view.changes;
    let written = OpenOptions::new().write(true).open(mount.path("f01")).unwrap();
    fs::metadata(mount.path("f02")).unwrap();
    let read = File::open(mount.path("f79")).unwrap();
    let dir = mount.dir.path().to_owned();
    std::thread::scope(|scope| {
        let closed = changes.close();
        let dir = &dir;
        let clients = [
            scope.spawn(move || written.write_at(b"changed", 0).map(drop)),
            scope.spawn(move || OpenOptions::new().write(true).open(dir.join("f02")).map(drop)),
            scope.spawn(move || File::create_new(dir.join("new")).map(drop)),
            scope.spawn(move || fs::remove_file(dir.join("f03"))),
        ];
        let most = executor::disk(LEAST);
        eventually("they wait", || changes.waiting.load(Ordering::SeqCst) == most);
        goes_on("what is open", move || {
            let mut bytes = vec![0; LEN];
            read.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(bytes, [7; LEN]);
        });
        assert!(!clients.iter().any(|client| client.is_finished()));
        drop(closed);
        clients.into_iter().for_each(|client| client.join().unwrap().unwrap());
    });
    assert!(mount.read("f01").unwrap().starts_with(b"changed"), "also if it was queued");
    assert!(mount.path("new").exists() && !mount.path("f03").exists());
}

#[test]
fn what_waits_is_done_before_the_view_is_shut_down() {
    if !fuse() {
        return;
    }
    in_time("last closes", || {
        for threads in [LEAST, 16] {
            let mut mount = mount(threads);
            let view = Arc::clone(&mount.view);
            let closed = view.last_closes.close();
            let point = mount.dir.path().canonicalize().unwrap();
            let closes = executor::disk(threads);
            for n in 0..closes {
                drop(OpenOptions::new().write(true).open(point.join(format!("f{n:02}"))).unwrap());
            }
            eventually("they wait", || view.last_closes.waiting.load(Ordering::SeqCst) == closes);
            kernel::unmount(&point, false).unwrap();
            // Time for the wrong thing to happen.
            std::thread::sleep(Duration::from_millis(100));
            assert!(!view.shut_down.load(Ordering::SeqCst));
            drop(closed);
            mount.finished().unwrap();
            assert_eq!(view.last_closes.passed.load(Ordering::SeqCst), closes);
            assert!(view.shut_down.load(Ordering::SeqCst));
        }
    });
}

#[test]
fn a_client_that_waits_is_answered_when_the_mount_ends() {
    if !fuse() {
        return;
    }
    let mut mount = mount(LEAST);
    let disk = &Arc::clone(&mount.view).disk;
    std::thread::scope(|scope| {
        let closed = disk.close();
        let dir = mount.dir.path().to_owned();
        let files: Vec<_> = (0..40).map(|n| File::open(dir.join(format!("f{n:02}"))).unwrap()).collect();
        let clients: Vec<_> = files.into_iter().map(|file| scope.spawn(move || file.sync_all())).collect();
        let most = executor::disk(LEAST);
        eventually("they wait", || disk.waiting.load(Ordering::SeqCst) == most);
        mount.control.send(Signal::End);
        // Its own fsync waits as well.
        eventually("it ends", || disk.waiting.load(Ordering::SeqCst) == most + 1);
        drop(closed);
        clients.into_iter().for_each(|client| client.join().unwrap().unwrap());
        mount.control.send(Signal::End);
    });
    mount.finished().unwrap();
    assert_eq!(disk.passed.load(Ordering::SeqCst), 41);
}
