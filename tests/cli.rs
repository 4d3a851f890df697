//! The program as its users meet it: arguments, messages, exit codes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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
