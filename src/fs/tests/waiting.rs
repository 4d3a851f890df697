//! A disk that lets everybody wait who needs it.

use std::os::unix::fs::FileExt;
use std::sync::mpsc::channel;

use super::super::workers;
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
    for (threads, clients) in [(2, 2), (1, 1), (1, 64), (2, 64), (4, 4)] {
        let mount = mount(threads);
        let disk = &mount.view.disk;
        let synced = std::thread::scope(|scope| {
            let closed = disk.close();
            let path = |n: usize| mount.path(&format!("f{n:02}"));
            let sync = |n| scope.spawn(move || File::open(path(n)).and_then(|file| file.sync_all()));
            let clients: Vec<_> = (0..clients).map(sync).collect();
            let most = threads.max(2) - 1 + workers::MOST;
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
    let mount = mount(2);
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
fn what_waits_is_done_before_the_view_is_shut_down() {
    if !fuse() {
        return;
    }
    in_time("last closes", || {
        for threads in [1, 2] {
            let mut mount = mount(threads);
            let view = Arc::clone(&mount.view);
            let closed = view.last_closes.close();
            let point = mount.dir.path().canonicalize().unwrap();
            for n in 0..5 {
                drop(OpenOptions::new().write(true).open(point.join(format!("f{n:02}"))).unwrap());
            }
            eventually("they wait", || view.last_closes.waiting.load(Ordering::SeqCst) == 5);
            kernel::unmount(&point, false).unwrap();
            // Time for the wrong thing to happen.
            std::thread::sleep(Duration::from_millis(100));
            assert!(!view.shut_down.load(Ordering::SeqCst));
            drop(closed);
            mount.finished().unwrap();
            assert_eq!(view.last_closes.passed.load(Ordering::SeqCst), 5);
            assert!(view.shut_down.load(Ordering::SeqCst));
        }
    });
}

#[test]
fn a_client_that_waits_is_answered_when_the_mount_ends() {
    if !fuse() {
        return;
    }
    let mut mount = mount(2);
    let disk = &Arc::clone(&mount.view).disk;
    std::thread::scope(|scope| {
        let closed = disk.close();
        let dir = mount.dir.path().to_owned();
        let files: Vec<_> = (0..40).map(|n| File::open(dir.join(format!("f{n:02}"))).unwrap()).collect();
        let clients: Vec<_> = files.into_iter().map(|file| scope.spawn(move || file.sync_all())).collect();
        eventually("they wait", || disk.waiting.load(Ordering::SeqCst) == 1 + workers::MOST);
        mount.control.send(Signal::End);
        // Its own fsync waits as well.
        eventually("it ends", || disk.waiting.load(Ordering::SeqCst) == 2 + workers::MOST);
        drop(closed);
        clients.into_iter().for_each(|client| client.join().unwrap().unwrap());
        mount.control.send(Signal::End);
    });
    mount.finished().unwrap();
    assert_eq!(disk.passed.load(Ordering::SeqCst), 41);
}
