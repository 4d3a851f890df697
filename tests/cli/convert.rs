//! `b2fuse convert`.

use std::os::unix::fs::PermissionsExt;

use super::content::{content, frames};
use super::*;

#[test]
fn frames_are_converted_there_and_back() {
    for layout in ["cframe", "sframe"] {
        for frame in frames(layout) {
            let place = Place::new();
            let there = format!("convert {} there", frame.display());
            place.succeeds(&there);
            place.succeeds("convert there back");
            let original = content(&frame);
            assert_eq!(place.path("there").is_dir(), frame.is_file());
            assert_eq!(place.path("back").is_dir(), frame.is_dir());
            assert_eq!(content(&place.path("there")), original, "{there}");
            assert_eq!(content(&place.path("back")), original, "{there}, and back");
            assert_eq!(place.names(), ["back", "point", "there"], "nothing else is left");
        }
    }
}

#[test]
fn only_force_replaces() {
    let place = Place::with_frame();
    let other = data("cframe/chunks-3.b2frame");
    place.succeeds("convert frame sparse");
    for (src, dst) in [("sparse", "frame2"), ("frame", "sparse")] {
        if dst == "frame2" {
            fs::copy(&other, place.path(dst)).unwrap();
        }
        let before = content(&place.path(dst));
        let refused = format!("{dst}: exists already; expected a new name (--force replaces what is there)");
        place.run(&format!("convert {src} {dst}")).failed(&refused);
        assert_eq!(content(&place.path(dst)), before);
        place.succeeds(&format!("convert --force {src} {dst}"));
        assert_eq!(content(&place.path(dst)), content(&place.path(src)));
    }
    // A frame in the other layout.
    place.succeeds(&format!("convert --force {} frame2", data("cframe/moved.b2frame").display()));
    assert!(place.path("frame2").is_dir());
    place.succeeds(&format!("convert --force {} frame2", data("sframe/moved.b2frame").display()));
    assert!(place.path("frame2").is_file());
    assert_eq!(place.names(), ["frame", "frame2", "point", "sparse"]);
}

#[test]
fn what_cannot_be_converted_is_named() {
    let place = Place::with_frame();
    place.succeeds("convert frame sparse");
    fs::write(place.path("noise"), "no frame at all").unwrap();
    std::os::unix::fs::symlink("sparse", place.path("link")).unwrap();
    fs::create_dir(place.path("damaged")).unwrap();
    fs::copy(place.path("sparse/chunks.b2frame"), place.path("damaged/chunks.b2frame")).unwrap();
    let names = place.names();
    for (words, said) in [
        ("gone new", "gone: no such file or directory; expected a Blosc2 frame or a .npy file"),
        (
            "point new",
            "point: is a directory without chunks.b2frame; expected a Blosc2 frame; \
             --show contiguous and --show sparse copy a directory of frames",
        ),
        ("/dev/null new", "/dev/null: is no regular file; expected a Blosc2 frame or a .npy file"),
        ("frame gone/new", "gone/new: cannot be created: there is no such directory"),
        ("frame frame", "frame: is SRC itself; expected another name"),
        ("--force frame frame", "frame: is SRC itself; expected another name"),
        ("--force sparse link", "link: is SRC itself; expected another name"),
        ("--force frame link", "link: is a symbolic link; expected a new name"),
        ("sparse sparse/new", "sparse/new: lies inside sparse; expected a place outside"),
        ("sparse link/../sparse/new", "link/../sparse/new: lies inside sparse; expected a place outside"),
        ("--force frame .", ".: cannot be created: there is no such directory"),
        ("--force frame point", "point: is a directory without chunks.b2frame; expected a new name, or a frame to replace"),
        ("--force frame /dev/null", "/dev/null: is no regular file; expected a new name, or a frame to replace"),
    ] {
        place.run(&format!("convert {words}")).failed(said);
    }
    for src in ["noise", "damaged"] {
        let outcome = place.run(&format!("convert {src} new"));
        assert_eq!((outcome.code(), outcome.stderr().lines().count()), (1, 1), "{}", outcome.stderr());
        assert!(outcome.stderr().starts_with(&format!("{src}: ")), "{}", outcome.stderr());
    }
    assert_eq!(place.names(), names, "nothing is made, and nothing is left");
    place.succeeds("convert link new");
    assert_eq!(content(&place.path("new")), content(&place.path("frame")));
}

/// As cp(1) has it: those of SRC without the umask's. Of a sparse frame, both the directory's and the files'.
#[test]
fn a_copy_is_no_more_public() {
    let place = Place::with_frame();
    let mode = |name: &str| fs::metadata(place.path(name)).unwrap().permissions().mode() & 0o7777;
    let set = |name: &str, mode| fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    for (umask, frame, directory, file) in [
        ("022", 0o644, 0o755, 0o644),
        ("022", 0o666, 0o755, 0o644),
        ("077", 0o644, 0o700, 0o600),
        ("002", 0o664, 0o775, 0o664),
        ("022", 0o600, 0o700, 0o600),
        ("022", 0o640, 0o750, 0o640),
    ] {
        set("frame", frame);
        let convert = |words: &str| {
            let program = env!("CARGO_BIN_EXE_b2fuse");
            let script = format!("umask {umask} && exec {program} convert {words}");
            assert!(Command::new("sh").args(["-c", &script]).current_dir(place.0.path()).begun().wait().unwrap().success());
        };
        convert("frame sparse");
        let case = format!("umask {umask}, SRC {frame:o}");
        assert_eq!((mode("sparse"), mode("sparse/chunks.b2frame")), (directory, file), "{case}");
        for entry in fs::read_dir(place.path("sparse")).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o7777, file, "{case}");
        }
        convert("sparse back");
        assert_eq!(mode("back"), file, "{case}");
        fs::remove_file(place.path("back")).unwrap();
        set("sparse", 0o700);
        convert("sparse back");
        assert_eq!(mode("back"), 0o600, "{case}, in a directory for its owner");
        fs::remove_dir_all(place.path("sparse")).unwrap();
        fs::remove_file(place.path("back")).unwrap();
    }
    set("frame", 0o644);
    place.succeeds("convert frame sparse");
    set("sparse/chunks.b2frame", 0o444);
    place.succeeds("convert sparse back");
    assert_eq!(mode("back"), 0o444);
}

#[test]
fn an_interrupted_conversion_leaves_nothing() {
    let frame = data("cframe/chunks-2500.b2frame");
    for signal in ["-INT", "-TERM"] {
        // The signal may come too late; not always.
        let interrupted = (0..100).any(|_| {
            let place = Place::new();
            let mut command = place.command("convert");
            let mut child = command.arg(&frame).arg("sparse").stderr(Stdio::piped()).begun();
            let mut over = false;
            eventually("begun", || {
                over = child.try_wait().unwrap().is_some();
                over || place.names().len() > 1
            });
            if !over {
                let _ = Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).begun().wait();
            }
            let code = child.wait().unwrap().code();
            if code == Some(0) {
                return false;
            }
            let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
            assert_eq!((code, said.as_str()), (Some(1), "sparse: interrupted; nothing was made\n"));
            assert_eq!(place.names(), ["point"]);
            true
        });
        assert!(interrupted, "{signal}");
    }
}

#[test]
fn a_copy_that_finds_no_room_is_not_begun() {
    if !fuse() {
        return;
    }
    let place = Place::new();
    let frame = data("cframe/chunks-2500.b2frame");
    for (options, said) in [
        ("size=1M", "needs 1.11 MiB, and its file system has 1.00 MiB left"),
        ("nr_inodes=100", "needs 280 files, and its file system has room for 98"),
    ] {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(place.path("point")).begun().wait();
        assert!(mounted.unwrap().success());
        place.run(&format!("convert {} point/sparse", frame.display())).failed(&format!("point/sparse: {said}"));
        assert_eq!(fs::read_dir(place.path("point")).unwrap().count(), 0);
        assert!(Command::new("umount").arg(place.path("point")).begun().wait().unwrap().success());
    }
}
