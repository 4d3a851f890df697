//! The program as its users meet it: arguments, messages, exit codes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use tempfile::TempDir;

mod check;
mod compact;
mod content;
mod contiguous;
mod convert;
mod convert_npy;
mod golden;
mod info;
mod ls;
mod mounts;
mod trees;

/// Locked for reading by a test as long as it has files of a mount open, and for writing while a child is made: until that runs a
/// program of its own it has all of these files as well, and when it closes them the mount sees a close.
static FILES: RwLock<()> = RwLock::new(());

trait Run {
    /// Starts it.
    fn begun(&mut self) -> Child;
    /// Runs it to its end.
    fn ended(&mut self) -> Output;
}

impl Run for Command {
    #[track_caller]
    fn begun(&mut self) -> Child {
        let _no_files = FILES.write();
        self.spawn().unwrap()
    }

    #[track_caller]
    fn ended(&mut self) -> Output {
        self.stdout(Stdio::piped()).stderr(Stdio::piped()).begun().wait_with_output().unwrap()
    }
}

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
        Outcome { words: words.into(), output: self.command(words).ended() }
    }

    /// With a real frame as SOURCE.
    fn with_frame() -> Self {
        let place = Place::new();
        fs::copy(data("cframe/special.b2frame"), place.path("frame")).unwrap();
        place
    }

    #[track_caller]
    fn succeeds(&self, words: &str) {
        let outcome = self.run(words);
        assert_eq!((outcome.code(), outcome.stderr().as_str()), (0, ""), "b2fuse {words}");
        assert!(outcome.output.stdout.is_empty());
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A frame of `tests/data`.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
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
    place.run("mount -o uid=me x point").misused("mount option 'uid=me': expected a user's name or number");
    place.run("mount --cache-size 1Q x point").misused("expected a size such as 256M");
    place.run("mount --threads 0 x point").misused("expected a number from 1 to 64");
    place.run("mount --log-level loud x point").misused("loud");
    #[cfg(feature = "remote")]
    for words in ["mount -o endpoint=http://h x point", "mount -o ro,timeout=9 x point", "mount --disk-cache d x point"] {
        place.run(words).misused("is for a frame at a URL, and SOURCE is not a URL");
    }
    #[cfg(feature = "remote")]
    for words in [
        "info -o anonymous x",
        "check --connections 9 x",
        "convert -o anonymous x y",
        "cat --npy -o anonymous x",
        "ls -o anonymous x",
    ] {
        place.run(words).misused("are for frames at URLs, and no URL is given");
    }
    place.run("umount").misused("<MOUNTPOINT>");
    place.run("convert x").misused("<DST>");
}

#[test]
fn help_and_version_are_0() {
    let place = Place::new();
    for words in ["--help", "mount --help", "umount --help", "convert --help", "--version"] {
        let outcome = place.run(words);
        assert_eq!((outcome.code(), outcome.stderr().as_str()), (0, ""), "b2fuse {words}");
        assert!(!outcome.output.stdout.is_empty());
    }
}

#[test]
fn what_is_no_frame_is_named() {
    let place = Place::new();
    place.run("mount gone point").failed("gone: no such file; expected a Blosc2 frame (--create makes a new one)");
    place.run("mount gone/x point").failed("gone/x: no such file; expected a Blosc2 frame (--create makes a new one)");
    place.run("mount --create gone/x point").failed("gone/x: cannot be created: there is no such directory");
    place.run("mount --create point point").failed("point: is a directory of frames; expected one frame with --create");
    fs::create_dir(place.path("loop")).unwrap();
    std::os::unix::fs::symlink("chunks.b2frame", place.path("loop/chunks.b2frame")).unwrap();
    place.run("mount loop point").failed("loop/chunks.b2frame: cannot open: it is a symbolic link, which is not followed");
    place.run("mount /dev/null point").failed("/dev/null: is no regular file; expected a Blosc2 frame");
}

#[test]
fn what_cannot_be_mounted_on_is_named() {
    let place = Place::new();
    fs::copy(data("cframe/chunks-3.b2frame"), place.path("frame")).unwrap();
    fs::write(place.path("file"), "x").unwrap();
    fs::create_dir_all(place.path("sparse/inside")).unwrap();
    fs::write(place.path("sparse/chunks.b2frame"), "x").unwrap();
    place.run("mount frame gone").failed("gone: no such directory to mount on; mkdir makes a directory");
    place.run("mount sparse gone").failed("gone: no such directory or file to mount on; mkdir makes a directory");
    place
        .run("mount frame file")
        .failed("file: is a file, and frame is one too, to be shown as a directory; expected a directory to mount on");
    place.run("mount sparse /dev/null").failed("/dev/null: is not a directory or file; expected one to mount on");
    place.run("mount frame .").failed(".: lies above frame, which the mount would hide");
    place.run("mount sparse .").failed(".: lies above sparse, which the mount would hide");
    place
        .run("mount sparse sparse/../sparse")
        .failed("sparse/../sparse: is SOURCE itself, which the mount would hide; expected another directory");
    for inside in ["sparse/inside", "sparse/chunks.b2frame"] {
        let reason = "lies inside sparse, and the mount would hide a part of it; expected a place outside";
        place.run(&format!("mount sparse {inside}")).failed(&format!("{inside}: {reason}"));
    }
    place.run("mount --log-file gone/log frame point").failed("gone/log: cannot open the log file: No such file or directory");
}

#[test]
fn what_is_not_mounted_cannot_be_unmounted() {
    let place = Place::new();
    place.run("umount gone").failed("gone: cannot be found: No such file or directory");
    place.run("umount point").failed("point: found nothing mounted there, expected a b2fuse mount");
    place.run("umount /proc").failed("/proc: found a file system of type proc there, expected a b2fuse mount");
    assert!(Path::new("/proc/self").exists());
}

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
