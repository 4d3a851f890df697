//! What readers need is never locked across I/O.

use std::sync::mpsc::channel;
use std::time::Duration;

use super::counting::Counting;
use super::*;

const WRITING: OpenMode = OpenMode { read: true, write: true, truncate: true, drop_privileges: false };

#[test]
#[should_panic(expected = "lens_of under the lock that readers need")]
fn io_under_the_lock_panics() {
    let dir = tempfile::tempdir().unwrap();
    let path = PAIRS[0].make(dir.path());
    let view = SparseView::new(PAIRS[0].store(&path), false).unwrap();
    let _state = view.state.read();
    let _ = view.store.lens_of(&view.store.enter(), &[]);
}

#[test]
fn io_after_the_lock_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = PAIRS[0].make(dir.path());
    let view = SparseView::new(PAIRS[0].store(&path), false).unwrap();
    drop(view.state.read());
    drop(view.state.write());
    view.store.lens_of(&view.store.enter(), &[]);
}

/// Names and attributes are shown meanwhile; readers of what is not there any more, and writers, wait and are told.
#[test]
fn nobody_waits_while_source_is_read_again_but_for_its_chunks() {
    for pair in PAIRS {
        let dir = tempfile::tempdir().unwrap();
        let path = pair.make(dir.path());
        let store = Counting::new(pair.store(&path));
        let fs: Arc<dyn FileSystem> = Arc::from(pair.show(store.clone()));
        let old = lookup(&*fs, pair.frame_names()[0]).unwrap();
        let before = read(&*fs, old.ino, None).unwrap();
        let other = tempfile::tempdir_in(dir.path()).unwrap();
        let other = pair.make(other.path());
        std::fs::rename(&path, path.with_extension("old")).unwrap();
        std::fs::rename(other, &path).unwrap();

        let (tell, told) = channel();
        let (answer, answers) = channel();
        let meanwhile = Arc::clone(&fs);
        let clients = move || {
            let (fs, tell) = (meanwhile, tell);
            let shown = Arc::clone(&fs);
            std::thread::spawn(move || {
                let shown = (lookup(&*shown, pair.frame_names()[0]).unwrap().ino, shown.getattr(ROOT).unwrap().kind);
                let _ = tell.send(shown);
            });
            let shown = told.recv_timeout(Duration::from_secs(20)).expect("an answer, before SOURCE is shown");
            assert_eq!(shown, (old.ino, Kind::Directory));
            for work in [(|fs, ino| read(fs, ino, None).map(drop)) as fn(&dyn FileSystem, Ino) -> Result<()>, |fs, ino| {
                fs.open(ino, WRITING).map(drop)
            }] {
                let (fs, answer) = (Arc::clone(&fs), answer.clone());
                std::thread::spawn(move || answer.send(errno(work(&*fs, old.ino))));
            }
        };
        *store.reloaded.lock() = Some(Box::new(clients));
        fs.follow(&mut Invalidations::new());
        for _ in 0..2 {
            let errno = answers.recv_timeout(Duration::from_secs(20)).expect("an answer");
            assert_eq!(errno, libc::ESTALE, "{pair:?}");
        }
        let now = lookup(&*fs, pair.frame_names()[0]).unwrap();
        assert_ne!(now.ino, old.ino);
        assert!(read(&*fs, now.ino, None).unwrap() == before);
        let handle = fs.open(now.ino, WRITING).unwrap().handle;
        fs.write(handle, 0, &pair.good(9)).unwrap();
        fs.flush(handle, &mut Invalidations::new()).unwrap();
        fs.release(handle, &mut Invalidations::new());
        assert!(fs.leave(true, &mut Invalidations::new()).is_nothing(), "{pair:?}");
    }
}
