//! Real mounts of a view in memory.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::memory::{INDEX, MemoryView, THE_FILE};
use super::kernel::{self, Access};
use super::session::{Config, Control, MountRequest, Mounted, Overrides, Signal};
use super::shared::Shared;
use super::unmount::{self, Answer, Question};
use crate::view::{FileSystem, Ino, Invalidation, ROOT, ViewError};

mod lock_waits;
pub mod memory;
mod on_file;
mod page_cache_push;
mod stress;
mod unmounting;

/// How long something that will surely happen is waited for.
const SURELY: Duration = Duration::from_secs(20);

/// A mount point that is a file, and what stands beside it.
const FILE: &str = "the file.b2frame";
const OTHER: &str = "other";

/// Every mount point of this process.
static POINTS: parking_lot::Mutex<Vec<CString>> = parking_lot::Mutex::new(Vec::new());

/// Whether mounts can be tested here. Says so aloud where they cannot, and fails where they must.
fn fuse() -> bool {
    // SAFETY: cannot fail, and touches no memory.
    let usable = OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok() && unsafe { libc::geteuid() } == 0;
    if !usable {
        assert!(std::env::var_os("B2FUSE_REQUIRE_FUSE").is_none(), "B2FUSE_REQUIRE_FUSE is set, and there is no FUSE");
        eprintln!("SKIPPED: mounts need root and /dev/fuse here");
    }
    usable
}

fn config(point: PathBuf) -> Config {
    Config {
        mount: MountRequest {
            point,
            fsname: "/a,b c.b2frame".into(),
            flags: libc::MS_NOSUID | libc::MS_NODEV,
            access: Access::Owner,
            auto_unmount: false,
            default_permissions: true,
        },
        low_latency: false,
        guarded: false,
        threads: 2,
        xattrs: true,
        overrides: Overrides::default(),
    }
}

/// Asks a mount's daemon, as `b2fuse umount` does.
fn ask(file: &File, question: Question) -> Answer {
    ticket(file, question).1
}

fn ticket(file: &File, question: Question) -> (u32, Answer) {
    let mut bytes = question.encode();
    unmount::pass_on(file, &mut bytes).unwrap();
    Answer::decode(&bytes).unwrap()
}

/// A mount in a temporary directory, unmounted when dropped.
struct Mount {
    view: Arc<MemoryView>,
    dir: tempfile::TempDir,
    control: Control,
    running: Option<JoinHandle<Result<(), ViewError>>>,
    shared: Arc<Shared>,
}

impl Mount {
    fn new(view: MemoryView) -> Self {
        Self::with(view, |_| {})
    }

    fn with(view: MemoryView, adjust: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let view = Arc::new(view);
        let mut config = config(dir.path().canonicalize().unwrap());
        adjust(&mut config);
        POINTS.lock().push(CString::new(config.mount.point.to_str().unwrap()).unwrap());
        let mounted = Mounted::start(view.clone(), &config).unwrap();
        let (control, shared) = (mounted.control(), mounted.shared());
        Mount { view, dir, control, running: Some(std::thread::spawn(|| mounted.run())), shared }
    }

    /// Changes that wait for the end of an unmount.
    fn waiting(&self) -> usize {
        self.shared.unmounting.waiting()
    }

    /// A mount on a file, `FILE` in the temporary directory, which stands beside `OTHER`.
    fn on_file(view: MemoryView) -> Self {
        Self::with(view, |config| {
            fs::write(config.mount.point.join(OTHER), "other").unwrap();
            config.mount.point.push(FILE);
            fs::write(&config.mount.point, "below").unwrap();
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(name))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn finished(&mut self) -> Result<(), ViewError> {
        self.running.take().unwrap().join().unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.control.send(Signal::End);
        if let Some(running) = self.running.take() {
            let outcome = running.join();
            if !std::thread::panicking() {
                outcome.unwrap().unwrap();
            }
        }
    }
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Closes, and tells what close(2) said.
fn close(file: File) -> io::Result<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: the descriptor is ours, and is not used again.
    if unsafe { libc::close(file.into_raw_fd()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let until = Instant::now() + SURELY;
    while !happened() {
        assert!(Instant::now() < until, "did not happen: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn files_come_and_go() {
    if !fuse() {
        return;
    }
    let mount = Mount::new(MemoryView::new(false, [("a", b"alpha".to_vec())]));
    assert_eq!(mount.names(), ["a", INDEX]);
    assert_eq!(mount.read("a").unwrap(), b"alpha");
    fs::write(mount.path("b"), b"beta").unwrap();
    assert_eq!(mount.view.bytes("b").unwrap(), b"beta");
    assert_eq!(mount.read("b").unwrap(), b"beta");
    fs::rename(mount.path("b"), mount.path("c")).unwrap();
    assert_eq!(errno(mount.read("b")), libc::ENOENT);
    assert_eq!(mount.read("c").unwrap(), b"beta");
    OpenOptions::new().append(true).open(mount.path("c")).unwrap().write_all(b"!").unwrap();
    assert_eq!(mount.read("c").unwrap(), b"beta!");
    OpenOptions::new().write(true).open(mount.path("c")).unwrap().set_len(2).unwrap();
    assert_eq!(mount.read("c").unwrap(), b"be");
    fs::set_permissions(mount.path("c"), fs::Permissions::from_mode(0o4600)).unwrap();
    assert_eq!(fs::metadata(mount.path("c")).unwrap().mode() & 0o7777, 0o600, "no bit that could raise privileges is kept");
    let mut held = File::open(mount.path("c")).unwrap();
    fs::remove_file(mount.path("c")).unwrap();
    let mut rest = Vec::new();
    held.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"be", "a removed file lives while it is open");
    assert_eq!(mount.names(), ["a", INDEX]);
    assert_eq!(errno(File::create_new(mount.path("a"))), libc::EEXIST);
}

#[test]
fn a_large_directory_is_listed_whole_by_names_and_by_attributes() {
    if !fuse() {
        return;
    }
    for count in [3000, 12_000] {
        let names: Vec<String> = (0..count).map(|n| format!("file-{:01$}", n, 5 + n % 9)).collect();
        let mount = Mount::new(MemoryView::new(true, names.iter().map(|name| (name.as_str(), vec![1; 7]))));
        let mut expected: Vec<String> = names.iter().cloned().chain([INDEX.into()]).collect();
        expected.sort();
        assert!(mount.names() == expected);
        let with_attributes = mount.view.expected.lock().concat().iter().collect::<HashSet<_>>().len();
        // Of a large one only the first reply, as nobody has looked at any.
        assert_eq!(with_attributes == count + 1, count < 4000, "{with_attributes} of {count}");
        drop(mount);
        let mount = Mount::new(MemoryView::new(true, names.iter().map(|name| (name.as_str(), vec![1; 7]))));
        let mut found = Vec::new();
        for entry in fs::read_dir(mount.dir.path()).unwrap() {
            let entry = entry.unwrap();
            assert!(entry.file_type().unwrap().is_file() && entry.metadata().unwrap().len() <= 7);
            found.push(entry.file_name().into_string().unwrap());
        }
        found.sort();
        assert!(found == expected);
    }
}

#[test]
fn directories_come_and_go_where_a_view_has_them() {
    if !fuse() {
        return;
    }
    let mount = Mount::new(MemoryView::new(false, []));
    fs::create_dir(mount.path("d")).unwrap();
    let dir = fs::metadata(mount.path("d")).unwrap();
    assert!(dir.is_dir() && dir.mode() & 0o777 == 0o755, "{dir:?}");
    assert_eq!(mount.names(), ["d", INDEX]);
    assert_eq!(errno(fs::create_dir(mount.path("d"))), libc::EEXIST);
    assert_eq!(errno(fs::remove_file(mount.path("d"))), libc::EISDIR);
    fs::remove_dir(mount.path("d")).unwrap();
    assert_eq!(errno(fs::metadata(mount.path("d"))), libc::ENOENT);
    assert_eq!(mount.names(), [INDEX]);
}

#[test]
fn what_no_frame_holds_is_refused() {
    if !fuse() {
        return;
    }
    let mount = Mount::new(MemoryView::new(false, [("a", b"alpha".to_vec())]));
    assert_eq!(errno(fs::create_dir(mount.path("no d"))), libc::EPERM);
    assert_eq!(errno(std::os::unix::fs::symlink("a", mount.path("l"))), libc::EPERM);
    assert_eq!(errno(fs::hard_link(mount.path("a"), mount.path("h"))), libc::EPERM);
    assert_eq!(errno(File::create(mount.path("not this"))), libc::EPERM);
    let make = |name: &str, mode| {
        let path = CString::new(mount.path(name).to_str().unwrap()).unwrap();
        // SAFETY: `path` is a C string.
        if unsafe { libc::mknod(path.as_ptr(), mode, 0) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    assert_eq!(errno(make("pipe", libc::S_IFIFO | 0o600)), libc::EPERM);
    make("plain", libc::S_IFREG | 0o600).unwrap();
    assert_eq!(mount.read("plain").unwrap(), b"");
    let a_ino = fs::metadata(mount.path("a")).unwrap().ino();
    let made = ["no d Directory", "l Symlink(\"a\")", &format!("h Link(Ino({a_ino}))"), "pipe Special(Fifo, 0)", "plain File"];
    assert_eq!(*mount.view.made.lock(), made, "it is the view that refuses");
    let a = File::open(mount.path("a")).unwrap();
    // SAFETY: both are valid for any open file.
    unsafe {
        assert_eq!(libc::lseek(a.as_raw_fd(), 0, libc::SEEK_HOLE), 5, "without holes the only one is the end");
        assert_eq!(libc::flock(a.as_raw_fd(), libc::LOCK_EX), 0);
    }
    let b = OpenOptions::new().write(true).open(mount.path("a")).unwrap();
    // SAFETY: valid for any open file.
    unsafe {
        assert_eq!(libc::flock(b.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB), -1);
        assert_eq!(libc::fallocate(b.as_raw_fd(), 0, 0, 100), -1);
    }
    assert_eq!(fs::copy(mount.path("a"), mount.path("copy")).unwrap(), 5);
}

#[test]
fn a_refused_close_shows_the_old_bytes_at_once() {
    if !fuse() {
        return;
    }
    let mount = Mount::new(MemoryView::new(false, [("a", b"good".to_vec())]));
    for round in 0..200 {
        assert_eq!(mount.read("a").unwrap(), b"good");
        let mut file = File::create(mount.path("a")).unwrap();
        write!(file, "BAD {round}").unwrap();
        let reader = File::open(mount.path("a")).unwrap();
        assert_eq!(io::read_to_string(&reader).unwrap(), format!("BAD {round}"));
        assert_eq!(errno(close(file)), libc::EINVAL);
        assert_eq!(mount.read("a").unwrap(), b"good", "round {round}");
    }
}

#[test]
fn what_the_view_changes_by_itself_is_seen_at_once() {
    if !fuse() {
        return;
    }
    let mount = Mount::new(MemoryView::new(false, []));
    let dir = File::open(mount.dir.path()).unwrap();
    for round in 0..200 {
        let name = format!("f{round}");
        let count = mount.names().len();
        assert_eq!(errno(fs::metadata(mount.path(&name))), libc::ENOENT);
        close(File::create(mount.path(&name)).unwrap()).unwrap();
        assert_eq!(mount.names().len(), count + 1);
        assert_eq!(mount.read(INDEX).unwrap(), (count + 1).to_string().into_bytes(), "round {round}");
        mount.view.set("extra", Vec::new());
        assert_eq!(mount.read(INDEX).unwrap(), (count + 1).to_string().into_bytes());
        dir.sync_all().unwrap();
        assert_eq!(mount.read(INDEX).unwrap(), (count + 2).to_string().into_bytes(), "round {round}");
        assert_eq!(mount.read("extra").unwrap(), b"");
        let drop = "drop-extra";
        close(File::create(mount.path(drop)).unwrap()).unwrap();
        assert_eq!(errno(fs::metadata(mount.path("extra"))), libc::ENOENT, "round {round}");
        assert!(!mount.names().contains(&"extra".to_string()));
        fs::remove_file(mount.path(drop)).unwrap();
    }
}

#[test]
fn read_only_asks_for_bytes_once_and_for_opens_never() {
    if !fuse() {
        return;
    }
    let view = MemoryView::new(true, [("a", b"alpha".to_vec()), ("b", b"beta".to_vec())]);
    *view.pace.lock() = Some(Duration::from_millis(10));
    let mount = Mount::new(view);
    for _ in 0..3 {
        assert_eq!(mount.read("a").unwrap(), b"alpha");
        assert_eq!(mount.names(), ["a", "b", INDEX]);
    }
    assert_eq!(mount.view.opens.load(Ordering::SeqCst), 0);
    assert_eq!(mount.view.pushes.lock().len(), 1, "read through no handle, and once");
    assert_eq!(errno(File::create(mount.path("a"))), libc::EROFS);
    assert_eq!(errno(File::create(mount.path("new"))), libc::EROFS);
    assert_eq!(errno(fs::remove_file(mount.path("a"))), libc::EROFS);

    // Someone else changes SOURCE.
    assert_eq!(mount.read("b").unwrap(), b"beta");
    mount.view.set("a", b"a longer alpha".to_vec());
    mount.view.set("c", b"gamma".to_vec());
    assert_eq!(mount.read("a").unwrap(), b"alpha", "the kernel has no reason to ask again");
    mount.view.stale.lock().push(Invalidation::All);
    eventually("the new bytes are seen", || mount.read("a").unwrap() == b"a longer alpha");
    // The root is told last.
    eventually("the new name is seen", || mount.names() == ["a", "b", "c", INDEX]);
}

#[test]
fn what_others_have_replaced_is_looked_up_again() {
    if !fuse() {
        return;
    }
    for one_by_one in [true, false] {
        super::notify::ONE_BY_ONE.store(one_by_one, Ordering::Relaxed);
        for read_only in [true, false] {
            let view = MemoryView::new(read_only, [("a", b"alpha".to_vec())]);
            *view.pace.lock() = Some(Duration::from_millis(10));
            let mount = Mount::new(view);
            for round in 0..20 {
                mount.read("a").unwrap();
                let held = File::open(mount.path("a")).unwrap();
                let before = held.metadata().unwrap().ino();
                let new = format!("{} {round}", "a".repeat(round * 1000)).into_bytes();
                mount.view.replace("a", new.clone());
                mount.view.stale.lock().push(Invalidation::All);
                eventually("the new file is seen", || mount.read("a").is_ok_and(|bytes| bytes == new));
                assert_ne!(fs::metadata(mount.path("a")).unwrap().ino(), before);
                eventually("who has the old one open is told", || held.metadata().is_err());
            }
        }
    }
}

#[test]
fn attributes_can_be_overridden() {
    if !fuse() {
        return;
    }
    let overrides = Overrides { uid: Some(123), gid: Some(456), dmask: Some(0o027), fmask: Some(0o002) };
    let mount = Mount::with(MemoryView::new(true, []), |config| config.overrides = overrides);
    let meta = fs::metadata(mount.path(INDEX)).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (123, 456, 0o664));
    assert_eq!(fs::metadata(mount.dir.path()).unwrap().mode() & 0o777, 0o750);
    let info = kernel::mounted_at(&mount.dir.path().canonicalize().unwrap()).unwrap().unwrap();
    assert_eq!((info.fs_type.as_str(), info.source.to_str().unwrap()), (kernel::FS_TYPE, "/a,b c.b2frame"));
}

#[test]
fn whoever_unmounts_the_view_is_shut_down() {
    if !fuse() {
        return;
    }
    let mut mount = Mount::new(MemoryView::new(false, []));
    *mount.view.last_words.lock() = Some(ViewError::TooBig);
    kernel::unmount(mount.dir.path(), false).unwrap();
    assert!(matches!(mount.finished(), Err(ViewError::TooBig)), "what shutting down said is not lost");
    assert!(mount.view.shut_down.load(Ordering::SeqCst));
    assert_eq!(fs::read_dir(mount.dir.path()).unwrap().count(), 0);
}

#[test]
fn what_lies_below_is_never_unmounted() {
    if !fuse() {
        return;
    }
    let below = tempfile::tempdir().unwrap();
    let point = below.path().canonicalize().unwrap();
    let path = CString::new(point.to_str().unwrap()).unwrap();
    // SAFETY: C strings that live through the call.
    let rc = unsafe { libc::mount(c"none".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null()) };
    assert_eq!(rc, 0, "{}", io::Error::last_os_error());
    fs::write(point.join("below"), "").unwrap();
    let config = |config: &mut Config| config.mount.point = point.clone();
    let mut mount = Mount::with(MemoryView::new(false, []), config);
    assert!(point.join(INDEX).exists());
    kernel::unmount(&point, false).unwrap();
    mount.finished().unwrap();
    let mount = Mount::with(MemoryView::new(false, []), config);
    drop(mount);
    assert!(point.join("below").exists(), "the file system below is still there");

    // Someone mounts over us: that is not ours to unmount, even though we are asked to end.
    let mut mount = Mount::with(MemoryView::new(false, []), config);
    // SAFETY: as above.
    let rc = unsafe { libc::mount(c"none".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null()) };
    assert_eq!(rc, 0, "{}", io::Error::last_os_error());
    fs::write(point.join("above"), "").unwrap();
    mount.control.send(Signal::End);
    mount.control.send(Signal::End);
    mount.finished().unwrap();
    assert!(mount.view.shut_down.load(Ordering::SeqCst));
    assert!(point.join("above").exists(), "the file system above is still there");
    for _ in 0..3 {
        let _ = kernel::unmount(&point, true);
    }
}

#[test]
fn a_busy_mount_ends_all_the_same() {
    if !fuse() {
        return;
    }
    let mut mount = Mount::new(MemoryView::new(false, [("a", vec![7; 1 << 20])]));
    let mut file = OpenOptions::new().read(true).write(true).open(mount.path("a")).unwrap();
    file.write_all(b"new").unwrap();
    mount.control.send(Signal::End);
    // The name goes; what is open goes on.
    eventually("detached", || !mount.path("a").exists());
    assert_eq!(mount.view.bytes(INDEX).unwrap(), b"2", "synced before the name went");
    file.write_all(b"er").unwrap();
    // A second signal ends the waiting.
    mount.control.send(Signal::End);
    mount.finished().unwrap();
    assert!(mount.view.shut_down.load(Ordering::SeqCst));
    assert_eq!(errno(file.write_all(b"too late")), libc::ENODEV);
}

#[test]
fn an_idle_view_is_called_when_something_happens() {
    if !fuse() {
        return;
    }
    let mount = Mount::new(MemoryView::new(false, []));
    let ticks = || mount.view.ticks.load(Ordering::SeqCst);
    eventually("the first tick", || ticks() > 0);
    for round in 0..20 {
        let before = ticks();
        fs::write(mount.path("a"), [round]).unwrap();
        eventually("a tick after a write", || ticks() > before);
    }
}

#[test]
fn times_are_kept_to_the_nanosecond() {
    if !fuse() {
        return;
    }
    let mount = Mount::new(MemoryView::new(false, []));
    let file = OpenOptions::new().write(true).open(mount.path(INDEX)).unwrap();
    for (seconds, nanoseconds) in [(1_700_000_000, 123_456_789), (0, 1), (-1, 0), (-1, 500_000_000), (-86_400, 999_999_999)] {
        let time = std::time::UNIX_EPOCH + Duration::from_secs(1 << 33) + Duration::from_nanos(nanoseconds);
        let time = time - Duration::from_secs(((1 << 33) - seconds) as u64);
        file.set_modified(time).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (seconds, nanoseconds as i64));
        assert_eq!(mount.view.lookup(ROOT, INDEX.as_ref()).unwrap().meta.mtime, time);
    }
}

#[test]
fn statfs_comes_from_the_view() {
    if !fuse() {
        return;
    }
    let mount = Mount::new(MemoryView::new(true, []));
    let stat = rustix::fs::statvfs(mount.dir.path()).unwrap();
    assert_eq!((stat.f_blocks, stat.f_bfree, stat.f_bavail, stat.f_frsize), (1000, 10, 9, 512));
}

#[test]
fn a_missing_mount_point_is_named() {
    let config = config("/no such/place".into());
    if !fuse() {
        return;
    }
    let error = Mounted::start(Arc::new(MemoryView::new(true, [])), &config).err().unwrap().to_string();
    assert!(error.starts_with("/no such/place: cannot mount: "), "{error}");
    assert!(!Path::new("/no such").exists());
}

/// Runs `body` in a thread that must be done in time: a deadlock must not hang the tests.
fn in_time(what: &'static str, body: impl FnOnce() + Send + 'static) {
    let done = Arc::new(AtomicBool::new(false));
    let worker = std::thread::spawn({
        let done = done.clone();
        move || {
            body();
            done.store(true, Ordering::SeqCst);
        }
    });
    let until = Instant::now() + 3 * SURELY;
    while !done.load(Ordering::SeqCst) && !worker.is_finished() {
        if Instant::now() > until {
            // Threads cannot be taken back from a deadlock; and a client in the same process as its daemon would wait for it
            // for ever, even while being killed, so mounts are cut off first.
            eprintln!("DEADLOCK: {what}");
            for point in POINTS.lock().iter() {
                // SAFETY: a C string that lives through the call.
                unsafe { libc::umount2(point.as_ptr(), libc::MNT_FORCE) };
            }
            std::process::abort();
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    worker.join().unwrap();
}

/// Sets a flag when it goes out of scope, so that those who wait for it end with a test that fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_connection_that_is_cut_leaves_no_mount() {
    if !fuse() {
        return;
    }
    let mut mount = Mount::new(MemoryView::new(false, []));
    let held = File::open(mount.path(INDEX)).unwrap();
    let point = CString::new(mount.dir.path().to_str().unwrap()).unwrap();
    // Busy, so it stays mounted; forced, so its device ends. SAFETY: a C string that lives through the call.
    assert_eq!(unsafe { libc::umount2(point.as_ptr(), libc::MNT_FORCE) }, -1);
    mount.finished().unwrap();
    assert!(mount.view.shut_down.load(Ordering::SeqCst));
    assert!(kernel::mounted_at(&mount.dir.path().canonicalize().unwrap()).unwrap().is_none());
    drop(held);
}
