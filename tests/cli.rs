//! The program as its users meet it: arguments, messages, exit codes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A directory to work in, and the program.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("point")).unwrap();
        Place(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_b2fuse"));
        command.current_dir(self.0.path()).args(words.split_whitespace()).stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn run(&self, words: &str) -> Outcome {
        Outcome { words: words.into(), output: self.command(words).output().unwrap() }
    }
}

/// What a run left behind.
struct Outcome {
    words: String,
    output: Output,
}

impl Outcome {
    fn code(&self) -> i32 {
        self.output.status.code().expect("ended by a signal")
    }

    fn stderr(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).unwrap()
    }

    /// Failed with exactly this line.
    #[track_caller]
    fn failed(&self, line: &str) {
        assert_eq!((self.code(), self.stderr().as_str()), (1, format!("{line}\n").as_str()), "b2fuse {}", self.words);
    }

    /// Used wrongly, with these words in the message.
    #[track_caller]
    fn misused(&self, part: &str) {
        assert_eq!(self.code(), 2, "b2fuse {}: {}", self.words, self.stderr());
        assert!(self.stderr().contains(part), "b2fuse {}: {}", self.words, self.stderr());
    }
}

#[test]
fn wrong_usage_is_2() {
    let place = Place::new();
    place.run("").misused("Usage: b2fuse");
    place.run("frobnicate").misused("unrecognized subcommand 'frobnicate'");
    place.run("mount x").misused("<MOUNTPOINT>");
    place.run("mount -o ro,frobnicate x point").misused("error: unknown mount option 'frobnicate'");
    place.run("mount -o uid=me x point").misused("mount option 'uid=me': expected a user number");
    place.run("mount --cache-size 1T x point").misused("expected a size such as 256M");
    place.run("mount --threads 0 x point").misused("expected a number from 1 to 64");
    place.run("mount --log-level loud x point").misused("loud");
    place.run("umount").misused("<MOUNTPOINT>");
}

#[test]
fn help_and_version_are_0() {
    let place = Place::new();
    for words in ["--help", "mount --help", "umount --help", "--version"] {
        let outcome = place.run(words);
        assert_eq!((outcome.code(), outcome.stderr().as_str()), (0, ""), "b2fuse {words}");
        assert!(!outcome.output.stdout.is_empty());
    }
}

#[test]
fn what_is_no_frame_is_named() {
    let place = Place::new();
    fs::create_dir_all(place.path("sparse.b2frame")).unwrap();
    fs::write(place.path("sparse.b2frame/chunks.b2frame"), "").unwrap();
    place.run("mount gone point").failed("gone: no such file; expected a Blosc2 frame (--create begins a new one)");
    place.run("mount gone/x point").failed("gone/x: no such file; expected a Blosc2 frame (--create begins a new one)");
    place.run("mount --create gone/x point").failed("gone/x: cannot be created: there is no such directory");
    place.run("mount point point").failed("point: is a directory without chunks.b2frame; expected a Blosc2 frame");
    place.run("mount /dev/null point").failed("/dev/null: is no regular file; expected a Blosc2 frame");
    place.run("mount sparse.b2frame point").failed(
        "sparse.b2frame: is a sparse frame (a directory), and mounting those is not supported yet; expected a contiguous frame (a file)",
    );
}

#[test]
fn what_cannot_be_mounted_on_is_named() {
    let place = Place::new();
    fs::write(place.path("frame"), "x").unwrap();
    fs::write(place.path("file"), "x").unwrap();
    place.run("mount frame gone").failed("gone: no such directory; expected one to mount on");
    place.run("mount frame file").failed("file: is not a directory; expected one to mount on");
    place.run("mount frame .").failed(".: lies above frame, which the mount would hide");
    place
        .run("mount --log-file gone/log frame point")
        .failed("gone/log: cannot open the log file: No such file or directory (os error 2)");
}

#[test]
fn what_is_not_mounted_cannot_be_unmounted() {
    let place = Place::new();
    place.run("umount gone").failed("gone: cannot be found: No such file or directory (os error 2)");
    place.run("umount point").failed("point: found nothing mounted there, expected a b2fuse mount");
    place.run("umount /proc").failed("/proc: found a file system of type proc there, expected a b2fuse mount");
    assert!(Path::new("/proc/self").exists());
}

// --- mounts ---

/// Whether mounts can be tested here: aloud, and a failure where they must be.
fn fuse() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0);
    let usable = root && fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !usable {
        assert!(std::env::var_os("B2FUSE_REQUIRE_FUSE").is_none(), "B2FUSE_REQUIRE_FUSE is set, and there is no FUSE");
        eprintln!("SKIPPED: mounts need root and /dev/fuse here");
    }
    usable
}

fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !happened() {
        assert!(Instant::now() < until, "did not happen: {what}");
        std::thread::yield_now();
    }
}

impl Place {
    /// With a real frame as SOURCE.
    fn with_frame() -> Self {
        let place = Place::new();
        let frame = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cframe/special.b2frame");
        fs::copy(frame, place.path("frame")).unwrap();
        place
    }

    fn mounted(&self) -> bool {
        let point = self.path("point").canonicalize().unwrap_or_else(|_| self.path("point"));
        fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&format!(" {} ", point.display()))
    }

    /// Mounts in front, and returns once the mount answers.
    fn mount_in_front(&self, words: &str) -> Front {
        let mut command = self.command(&format!("mount -f {words} frame point"));
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        eventually("mounted", || self.path("point/chunks.b2frame").exists());
        Front(child)
    }
}

/// A mount in front, killed when dropped.
struct Front(Child);

impl Front {
    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap().success());
    }

    fn end(mut self) -> (Option<i32>, String) {
        let status = self.0.wait().unwrap();
        (status.code(), std::io::read_to_string(self.0.stderr.take().unwrap()).unwrap())
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.mounted() {
            let _ = Command::new("umount").arg("-l").arg(self.path("point")).status();
        }
    }
}

#[test]
fn hanging_up_ends_a_mount() {
    if !fuse() {
        return;
    }
    let place = Place::with_frame();
    let mount = place.mount_in_front("");
    mount.signal("-HUP");
    let (code, said) = mount.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!place.mounted());
}

#[test]
fn auto_unmount_survives_the_daemon() {
    if !fuse() {
        return;
    }
    for options in ["auto_unmount", "auto_unmount,ro"] {
        let place = Place::with_frame();
        let mount = place.mount_in_front(&format!("-o {options}"));
        assert!(fs::read_dir(place.path("point")).unwrap().count() > 1);
        mount.signal("-KILL");
        mount.end();
        eventually("unmounted by the helper", || !place.mounted());
        place.run(&format!("mount -o {options} frame point"));
        let outcome = place.run("umount point");
        assert_eq!((outcome.code(), outcome.stderr().as_str()), (0, ""));
    }
}

#[test]
fn a_dead_daemons_mount_can_be_unmounted() {
    if !fuse() {
        return;
    }
    for options in ["ro", "rw"] {
        let place = Place::with_frame();
        let mount = place.mount_in_front(&format!("-o {options}"));
        fs::read_dir(place.path("point")).unwrap().count();
        mount.signal("-KILL");
        mount.end();
        assert_eq!(place.run("mount frame point").code(), 1);
        place.run("umount point").failed("point: unmounted, but its daemon had died: what it had not committed is lost");
        assert!(!place.mounted());
    }
}

#[test]
fn a_mount_with_open_files_is_busy_or_lazy() {
    if !fuse() {
        return;
    }
    let place = Place::with_frame();
    let mount = place.mount_in_front("");
    let held = fs::File::open(place.path("point/chunks.b2frame")).unwrap();
    place.run("umount point").failed("point: is busy: some process has a file open there, or works in it");
    assert!(place.mounted());
    let outcome = place.run("umount -z point");
    assert_eq!((outcome.code(), outcome.stderr().as_str()), (0, "point: files are still open; the mount ends with them\n"));
    assert!(!place.mounted());
    drop(held);
    assert_eq!(mount.end().0, Some(0));
}
