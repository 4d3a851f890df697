//! What a daemon and `b2fuse umount` say to each other.

use super::*;

/// Asks until the daemon has an answer.
fn begin(file: &File) -> (u32, Answer) {
    let (ticket, mut answer) = ticket(file, Question::Begin(false));
    eventually("answered", || {
        answer = ask(file, Question::HowFar(ticket));
        answer != Answer::Working
    });
    (ticket, answer)
}

fn ready() -> Answer {
    Answer::Ready { left: String::new(), source: None }
}

fn call(path: &Path, call: impl FnOnce(*const libc::c_char) -> libc::c_int) -> io::Result<()> {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    if call(path.as_ptr()) == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn open_to_write(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(path).map(drop)
}

#[test]
fn the_daemon_is_asked_on_any_file() {
    if !fuse() {
        return;
    }
    let mount = Mount::new(MemoryView::new(true, []));
    for path in [mount.dir.path().to_owned(), mount.path(INDEX)] {
        let file = File::open(path).unwrap();
        assert_eq!(ask(&file, Question::HowFar(0)), Answer::Busy);
        assert_eq!(errno(unmount::pass_on(&file, &mut [0; unmount::LEN])), libc::EINVAL);
    }
    let root = File::open("/").unwrap();
    assert_eq!(errno(unmount::pass_on(&root, &mut Question::HowFar(0).encode())), libc::ENOTTY);
}

#[test]
fn what_would_change_something_waits_and_goes_on_when_unmounting_is_given_up() {
    if !fuse() {
        return;
    }
    let file = |fill| vec![fill; 100];
    let mount = Mount::new(MemoryView::new(false, [("a", file(1)), ("b", file(2)), ("c", file(3)), ("d", file(4))]));
    let root = File::open(mount.dir.path()).unwrap();
    let changes: [fn(&Path) -> io::Result<()>; 6] = [
        |dir| open_to_write(&dir.join("a")),
        |dir| fs::remove_file(dir.join("b")),
        |dir| fs::rename(dir.join("c"), dir.join("e")),
        |dir| OpenOptions::new().write(true).create_new(true).open(dir.join("new")).map(drop),
        // SAFETY: `path` is a C string.
        |dir| call(&dir.join("made"), |path| unsafe { libc::mknod(path, libc::S_IFREG | 0o600, 0) }),
        // SAFETY: `path` is a C string.
        |dir| call(&dir.join("d"), |path| unsafe { libc::truncate(path, 5) }),
    ];
    let before = mount.names();
    for (number, change) in changes.into_iter().enumerate() {
        // A close is heard of a little later.
        let mut begun = begin(&root);
        while begun.1 == Answer::Busy {
            begun = begin(&root);
        }
        assert_eq!(begun.1, ready());
        let dir = mount.dir.path().to_owned();
        let client = std::thread::spawn(move || change(&dir));
        eventually("waits", || mount.waiting() == 1);
        assert!(!client.is_finished(), "{number}");
        assert_eq!(mount.read("a").unwrap(), file(1), "who reads does not wait");
        if number == 0 {
            // Of another attempt.
            assert_eq!(ask(&root, Question::Resume(begun.0.wrapping_sub(1))), Answer::Busy);
            assert!(!client.is_finished() && mount.waiting() == 1);
        }
        assert_eq!(ask(&root, Question::Resume(begun.0)), Answer::Working, "somebody waits");
        client.join().unwrap().unwrap();
        eventually("over", || mount.waiting() == 0);
    }
    assert_eq!(before, ["a", "b", "c", "d", INDEX]);
    assert_eq!(mount.names(), ["a", "d", "e", INDEX, "made", "new"]);
    assert_eq!(mount.read("d").unwrap(), [4; 5]);

    // A file that is open for writing.
    let open = OpenOptions::new().write(true).open(mount.path("a")).unwrap();
    assert_eq!(begin(&root).1, Answer::Busy);
    assert_eq!(mount.waiting(), 0);
    open_to_write(&mount.path("d")).unwrap();
    drop(open);

    // Who began is gone without a word.
    eventually("ready", || begin(&root).1 == ready());
    open_to_write(&mount.path("a")).unwrap();
    eventually("over", || mount.waiting() == 0);

    // A second one takes the place of the first.
    let mut first = begin(&root);
    while first.1 == Answer::Busy {
        first = begin(&root);
    }
    let second = begin(&root);
    assert_eq!((first.1, &second.1), (ready(), &ready()));
    assert_eq!(ask(&root, Question::HowFar(first.0)), Answer::Busy);
    assert_eq!(ask(&root, Question::HowFar(second.0)), ready());
    drop(root);
    kernel::unmount(&mount.dir.path().canonicalize().unwrap(), false).unwrap();
}
