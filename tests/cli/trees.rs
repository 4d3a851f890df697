//! Commands that take a directory of frames.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;

use super::content::content;
use super::mounts::copy_dir;
use super::*;
use serde_json::Value;

const NOBODY: u32 = 65534;

impl Place {
    /// With a directory that has frames of both layouts at different depths, a store, and what is none.
    fn with_tree() -> Self {
        let place = Place::new();
        let at = |name: &str| place.path("tree").join(name);
        for dir in ["sub/deep", "s.b2d/in", "mark/in", "empty"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        for (from, to) in [
            ("holes.b2frame", "holes.b2frame"),
            ("b2nd-int.b2nd", "sub/deep/array.b2nd"),
            ("chunks-3.b2frame", "sub.b2e"),
            ("chunks-3.b2frame", "s.b2d/embed.b2e"),
            ("special.b2frame", "s.b2d/in/leaf.b2nd"),
            ("chunks-3.b2frame", "mark/embed.b2e"),
        ] {
            fs::copy(data("cframe").join(from), at(to)).unwrap();
        }
        copy_dir(&data("sframe/moved.b2frame"), &at("sub/moved"));
        copy_dir(&data("sframe/special.b2frame"), &at("mark/in/leaf.b2nd"));
        fs::write(at("notes.txt"), "mine").unwrap();
        fs::write(at("sub/none.b2nd"), "no frame").unwrap();
        fs::write(at(".b2fuse-1-0.tmp"), "left over").unwrap();
        fs::copy(data("cframe/special.b2frame"), at("sub/.b2fuse-1-0.b2frame")).unwrap();
        place
    }
}

/// The frames of such a tree, in order, and whether each is sparse.
const FRAMES: [(&str, bool); 8] = [
    ("holes.b2frame", false),
    ("mark/embed.b2e", false),
    ("mark/in/leaf.b2nd", true),
    ("s.b2d/embed.b2e", false),
    ("s.b2d/in/leaf.b2nd", false),
    ("sub/deep/array.b2nd", false),
    ("sub/moved", true),
    ("sub.b2e", false),
];

fn stdout(outcome: &Outcome) -> String {
    String::from_utf8(outcome.output.stdout.clone()).unwrap()
}

fn objects(outcome: &Outcome) -> Vec<Value> {
    stdout(outcome).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The frames that are told of, in order.
fn told(outcome: &Outcome) -> Vec<String> {
    objects(outcome).iter().map(|object| object["frame"].as_str().unwrap().to_owned()).collect()
}

fn expected(dir: &str) -> Vec<String> {
    FRAMES.iter().map(|(name, _)| format!("{dir}/{name}")).collect()
}

#[test]
fn check_counts_the_frames_of_a_directory() {
    let place = Place::with_tree();
    let sound = place.run("check --deep tree");
    assert_eq!((sound.code(), sound.stderr().as_str()), (0, ""));
    let lines = stdout(&sound);
    assert!(lines.starts_with("tree/holes.b2frame: note: "), "{lines}");
    assert!(lines.contains("\ntree/sub/none.b2nd: note: has a frame's name, but does not begin as a frame\n"), "{lines}");
    assert!(lines.ends_with("\ntree: 8 frames: 8 sound; 1 file with a frame's name is not a frame\n"), "{lines}");
    assert!(!lines.contains("b2fuse-") && !lines.contains("notes.txt"), "{lines}");
    assert_eq!(lines.lines().filter(|line| line.contains(": sound")).count(), 8);

    let bytes = fs::read(data("cframe/chunks-3.b2frame")).unwrap();
    fs::write(place.path("tree/sub.b2e"), &bytes[..bytes.len() - 3]).unwrap();
    let damaged = place.run("check tree");
    assert_eq!((damaged.code(), damaged.stderr().as_str()), (1, ""));
    assert!(stdout(&damaged).contains("\ntree: 8 frames: 7 sound, 1 damaged; 1 file"));
    fs::write(place.path("tree/mark/embed.b2e"), &bytes[..40]).unwrap();
    let unread = place.run("check tree tree/sub");
    assert_eq!(unread.code(), 1);
    assert!(unread.stderr().starts_with("tree/mark/embed.b2e: header: "), "{}", unread.stderr());
    assert!(stdout(&unread).contains("\ntree: 8 frames: 6 sound, 1 damaged, 1 that cannot be read; 1 file with"));
    assert!(stdout(&unread).ends_with("\ntree/sub: 2 frames: 2 sound; 1 file with a frame's name is not a frame\n"));
    let json = place.run("check --json tree");
    assert_eq!(json.code(), 1);
    assert_eq!(told(&json), expected("tree"), "an object for each frame, and no more");
    let sound: Vec<_> = objects(&json).iter().map(|object| object["sound"].as_bool()).collect();
    assert_eq!(sound, [[Some(true), None], [Some(true); 2], [Some(true); 2], [Some(true), Some(false)]].concat());
}

#[test]
fn info_and_ls_show_the_frames_in_the_order_of_their_paths() {
    let place = Place::with_tree();
    for words in ["info --json", "ls --json"] {
        let outcome = place.run(&format!("{words} tree"));
        assert_eq!((outcome.code(), outcome.stderr().as_str()), (0, ""), "{words}");
        assert_eq!(told(&outcome), expected("tree"), "{words}");
        for (object, (name, sparse)) in objects(&outcome).iter().zip(FRAMES) {
            assert_eq!(object["layout"], if sparse { "sframe" } else { "cframe" }, "{words} {name}");
            let alone = objects(&place.run(&format!("info --json tree/{name}")));
            for field in ["layout", "nbytes", "cbytes", "ratio"] {
                assert_eq!(object[field], alone[0][field], "{words} {name} {field}");
            }
            let count = if words == "ls --json" { &object["chunks"] } else { &object["chunks"]["count"] };
            assert_eq!(*count, alone[0]["chunks"]["count"], "{words} {name}");
        }
    }
    // Text: each frame as it is shown alone.
    let text = stdout(&place.run("info tree"));
    let alone: Vec<_> = FRAMES.iter().map(|(name, _)| stdout(&place.run(&format!("info tree/{name}")))).collect();
    assert_eq!(text, alone.join("\n"));
    let text = stdout(&place.run("ls tree"));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["layout", "chunks", "nbytes", "cbytes", "ratio", "path"]);
    for (line, (name, sparse)) in lines[1..].iter().zip(FRAMES) {
        assert!(
            line.starts_with(if sparse { "sframe " } else { "cframe " }) && line.ends_with(&format!("  tree/{name}")),
            "{line}"
        );
    }
    assert_eq!(lines.len(), FRAMES.len() + 1);
    // A store is a directory like others, and so is the working directory.
    let store = told(&place.run("ls --json tree/s.b2d"));
    assert_eq!(store, ["tree/s.b2d/embed.b2e", "tree/s.b2d/in/leaf.b2nd"]);
    let here = place.command("ls --json .").current_dir(place.path("tree")).ended();
    assert_eq!(told(&Outcome { words: "ls .".into(), output: here }), expected("."));
}

#[test]
fn ls_sorts_frames() {
    let place = Place::with_tree();
    for (column, key) in [("cbytes", "cbytes"), ("nbytes", "nbytes"), ("position", ""), ("offset", "")] {
        for reverse in ["", "--reverse"] {
            let seen = objects(&place.run(&format!("ls --json --sort {column} {reverse} tree")));
            assert_eq!(seen.len(), FRAMES.len());
            let of = |object: &Value| (object[key].as_u64(), PathBuf::from(object["frame"].as_str().unwrap()));
            let seen: Vec<_> = seen.iter().map(of).collect();
            let mut expected = seen.clone();
            expected.sort_by(|one, other| match (reverse, key) {
                ("", "") => one.1.cmp(&other.1),
                (_, "") => other.1.cmp(&one.1),
                ("", _) => one.0.cmp(&other.0).then(one.1.cmp(&other.1)),
                _ => other.0.cmp(&one.0).then(one.1.cmp(&other.1)),
            });
            assert_eq!(seen, expected, "{column} {reverse}");
        }
    }
}

#[test]
fn a_directory_without_frames_is_named() {
    let place = Place::new();
    fs::create_dir_all(place.path("tree/sub")).unwrap();
    fs::write(place.path("tree/sub/a.b2nd"), "").unwrap();
    for words in ["info", "ls", "compact"] {
        place
            .run(&format!("{words} point"))
            .failed("point: holds no frame; expected a Blosc2 frame, or a directory with frames in it");
        place.run(&format!("{words} tree")).failed("tree: holds no frame, only a file with a frame's name");
    }
    assert_eq!(place.run("check point").code(), 1);
    let json = place.run("check --json tree");
    assert_eq!((json.code(), objects(&json)[0]["frame"].as_str()), (1, Some("tree")));
}

#[test]
fn what_is_hostile_in_a_directory_is_passed_by() {
    let place = Place::with_tree();
    let at = |name: &str| place.path("tree").join(name);
    fs::create_dir(place.path("outside")).unwrap();
    fs::copy(data("cframe/holes.b2frame"), place.path("outside/secret.b2frame")).unwrap();
    symlink(".", at("loop.b2nd")).unwrap();
    symlink("..", at("sub/deep/up")).unwrap();
    symlink("../outside", at("out")).unwrap();
    symlink("../outside/secret.b2frame", at("link.b2frame")).unwrap();
    symlink("self.b2nd", at("self.b2nd")).unwrap();
    fs::create_dir(at("index-link")).unwrap();
    symlink("../holes.b2frame", at("index-link/chunks.b2frame")).unwrap();
    assert!(Command::new("mkfifo").arg(at("fifo.b2nd")).arg(at("fifo")).begun().wait().unwrap().success());
    fs::create_dir(at("index-fifo.b2nd")).unwrap();
    assert!(Command::new("mkfifo").arg(at("index-fifo.b2nd/chunks.b2frame")).begun().wait().unwrap().success());
    let strange = OsString::from_vec(b"\xff\x1b[m\n.b2nd".to_vec());
    fs::copy(data("cframe/special.b2frame"), at("sub").join(&strange)).unwrap();
    let long = format!("{}.b2nd", "x".repeat(250));
    fs::copy(data("cframe/special.b2frame"), at(&long)).unwrap();

    let check = place.run("check tree");
    assert_eq!(check.code(), 1);
    let lines = stdout(&check);
    let count = "\ntree: 12 frames: 10 sound, 2 that cannot be read; 1 file with a frame's name is not a frame\n";
    assert!(lines.ends_with(count), "{lines}");
    assert!(lines.contains("tree/sub/\\xff\\u{1b}[m\\n.b2nd: sound") && lines.contains(&long), "{lines}");
    let said = check.stderr();
    let link = "tree/index-link/chunks.b2frame: cannot open: it is a symbolic link, which is not followed";
    assert_eq!((said.lines().count(), said.lines().filter(|line| *line == link).count()), (2, 1), "{said}");
    assert!(said.contains("tree/index-fifo.b2nd/chunks.b2frame: cannot open: it is a FIFO"), "{said}");
    for words in ["info", "ls", "info --json", "ls --json"] {
        let outcome = place.run(&format!("{words} tree"));
        assert_eq!(outcome.code(), 1, "{words}");
        assert!(!stdout(&outcome).contains("secret") && !stdout(&outcome).contains('\x1b'), "{words}");
        if words.ends_with("json") {
            assert_eq!(stdout(&outcome).lines().count(), 12, "{words}");
        }
    }
    place.run("compact tree");
    assert_eq!(content(&place.path("outside/secret.b2frame")), content(&data("cframe/holes.b2frame")));
    let before = fs::metadata(data("cframe/holes.b2frame")).unwrap().len();
    assert_eq!(fs::metadata(place.path("outside/secret.b2frame")).unwrap().len(), before, "not compacted through a link");

    // And copied, each thing as it is.
    let copied = place.run("convert --show sparse tree copy");
    assert_eq!((copied.code(), copied.stderr().as_str()), (0, ""), "what is sparse already is copied as it is");
    let copied = place.run("convert --show contiguous tree files");
    assert_eq!((copied.code(), copied.stderr().lines().count()), (1, 2), "{}", copied.stderr());
    assert!(copied.stderr().lines().all(|line| line.ends_with("; copied as it is")), "{}", copied.stderr());
    for copy in ["copy", "files"] {
        let copied = |name: &str| place.path(copy).join(name);
        for name in ["loop.b2nd", "sub/deep/up", "out", "link.b2frame", "self.b2nd", "index-link/chunks.b2frame"] {
            assert_eq!(fs::read_link(copied(name)).unwrap(), fs::read_link(at(name)).unwrap(), "{name}");
        }
        for name in ["fifo.b2nd", "fifo", "index-fifo.b2nd/chunks.b2frame"] {
            assert!(fs::symlink_metadata(copied(name)).unwrap().file_type().is_fifo(), "{name}");
        }
        assert_eq!(content(&copied("sub").join(&strange)), content(&data("cframe/special.b2frame")));
        assert_eq!(content(&copied(&long)), content(&data("cframe/special.b2frame")));
    }
}

#[test]
fn what_may_not_be_read_is_named_and_the_rest_is_shown() {
    if !root() {
        return;
    }
    let place = Place::with_tree();
    let mode = |name: &str, mode| fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    mode("", 0o755);
    mode("tree/sub", 0o700);
    mode("tree/sub.b2e", 0o600);
    mode("tree/notes.txt", 0o600);
    let as_nobody = |words: &str| {
        let mut command = place.command(words);
        command.uid(NOBODY).gid(NOBODY).env("XDG_STATE_HOME", "/nonexistent");
        Outcome { words: words.into(), output: command.ended() }
    };
    let refused = "tree/sub: cannot open: Permission denied\ntree/sub.b2e: cannot open: Permission denied\n";
    let check = as_nobody("check tree");
    assert_eq!((check.code(), check.stderr().as_str()), (1, refused));
    assert!(stdout(&check).ends_with("\ntree: 5 frames: 5 sound\n"), "{}", stdout(&check));
    let json = objects(&as_nobody("check --json tree"));
    assert_eq!(json.iter().filter(|object| object["error"].is_string()).count(), 2);
    let ls = as_nobody("ls tree");
    let failed = "tree: 2 of 7 frames are damaged or cannot be read\n";
    assert_eq!((ls.code(), ls.stderr()), (1, format!("{refused}{failed}")));
    assert_eq!(as_nobody("info tree").stderr(), refused);
    // A copy that lacks something says so.
    mode("point", 0o777);
    let copy = as_nobody("convert --show contiguous tree point/copy");
    assert_eq!(copy.code(), 1);
    assert_eq!(copy.stderr(), format!("tree/notes.txt: cannot copy: Permission denied\n{refused}"));
    assert!(place.path("point/copy/mark/in/leaf.b2nd").is_file() && !place.path("point/copy/sub").exists());
    // The directory itself.
    mode("tree", 0o700);
    for words in ["check tree", "info tree", "ls tree", "compact tree", "convert --show sparse tree point/other"] {
        let outcome = as_nobody(words);
        assert_eq!(outcome.stderr().lines().count(), 1, "{words}: {}", outcome.stderr());
        assert!(
            outcome.stderr().starts_with("tree: ") && outcome.stderr().ends_with("Permission denied\n"),
            "{}",
            outcome.stderr()
        );
    }
}

/// Deeper than directories are held open, with fewer descriptors than directories.
#[test]
fn depth_takes_no_descriptors() {
    const DEPTH: usize = 300;
    let place = Place::new();
    let mut dir = place.path("tree");
    for depth in 0..DEPTH {
        fs::create_dir(&dir).unwrap();
        if depth % 50 == 0 || depth + 1 == DEPTH {
            fs::copy(data("cframe/chunks-1.b2frame"), dir.join("a.b2nd")).unwrap();
            fs::copy(data("cframe/chunks-1.b2frame"), dir.join("z.b2nd")).unwrap();
        }
        dir.push("d");
    }
    let limited = |words: &str| {
        let script = format!("ulimit -n 64 && exec {} {words}", env!("CARGO_BIN_EXE_b2fuse"));
        let output = Command::new("sh").args(["-c", &script]).current_dir(place.0.path()).ended();
        Outcome { words: words.into(), output }
    };
    let ls = limited("ls --json tree");
    assert_eq!((ls.code(), ls.stderr().as_str()), (0, ""));
    let (paths, mut sorted) = (told(&ls), told(&ls));
    sorted.sort_by(|one, other| Path::new(one).cmp(Path::new(other)));
    assert_eq!((paths.len(), &paths), (14, &sorted));
    let copied = limited("convert --show sparse tree copy");
    assert_eq!((copied.code(), copied.stderr().as_str()), (0, ""));
    let paths: Vec<_> = paths.iter().map(|path| path.replacen("tree", "copy", 1)).collect();
    let copies = objects(&limited("ls --json copy"));
    assert_eq!(copies.iter().map(|object| object["frame"].as_str().unwrap()).collect::<Vec<_>>(), paths);
    assert!(copies.iter().all(|object| object["layout"] == "sframe"));
}

#[test]
fn what_is_mounted_in_a_directory_is_left_out() {
    if !fuse() {
        return;
    }
    let place = Place::with_tree();
    let below = place.path("tree/empty");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&below).begun().wait().unwrap();
    assert!(mounted.success());
    fs::copy(data("cframe/holes.b2frame"), below.join("other.b2nd")).unwrap();
    let said = "tree/empty: was skipped: another file system is mounted there\n";
    let ls = place.run("ls --json tree");
    assert_eq!((ls.code(), ls.stderr().as_str()), (0, said));
    assert_eq!(told(&ls), expected("tree"));
    let copy = place.run("convert --show contiguous tree copy");
    assert_eq!((copy.code(), copy.stderr().as_str()), (1, said));
    assert_eq!(fs::read_dir(place.path("copy/empty")).unwrap().count(), 0, "it is there, and empty");
}

#[test]
fn compact_goes_through_a_directory() {
    let place = Place::with_tree();
    fs::copy(data("cframe/moved.b2frame"), place.path("tree/one.b2nd")).unwrap();
    fs::hard_link(place.path("tree/one.b2nd"), place.path("tree/two.b2nd")).unwrap();
    let before: Vec<_> = FRAMES.iter().map(|(name, _)| content(&place.path("tree").join(name))).collect();
    let outcome = place.run("compact tree");
    let linked = |name: &str| {
        format!("tree/{name}: is left as it is: it has 2 names (hard links), and only one of them would get the new frame\n")
    };
    assert_eq!((outcome.code(), outcome.stderr()), (1, linked("one.b2nd") + &linked("two.b2nd")));
    assert_eq!(fs::read(place.path("tree/two.b2nd")).unwrap(), fs::read(data("cframe/moved.b2frame")).unwrap());
    fs::remove_file(place.path("tree/one.b2nd")).unwrap();
    place.succeeds("compact tree");
    for ((name, _), before) in FRAMES.iter().zip(before) {
        assert_eq!(content(&place.path("tree").join(name)), before, "{name}");
    }
    let notes = stdout(&place.run("check tree"));
    assert_eq!(notes.matches(": note: ").count(), 1, "none of a hole: {notes}");
    assert!(notes.contains("\ntree: 9 frames: 9 sound; 1 file "), "{notes}");
    // One that cannot be compacted does not keep the next from it.
    for name in ["tree/a.b2nd", "tree/z.b2nd"] {
        fs::copy(data("cframe/holes.b2frame"), place.path(name)).unwrap();
    }
    fs::write(place.path("tree/sub/moved/notes.txt"), "mine").unwrap();
    fs::copy(place.path("tree/sub/moved/00000000.chunk"), place.path("tree/sub/moved/000000AA.chunk")).unwrap();
    let outcome = place.run("compact tree");
    assert_eq!((outcome.code(), outcome.stderr().lines().count()), (1, 1), "{}", outcome.stderr());
    assert!(outcome.stderr().starts_with("tree/sub/moved: "), "{}", outcome.stderr());
    for name in ["tree/a.b2nd", "tree/z.b2nd"] {
        assert!(fs::metadata(place.path(name)).unwrap().len() < fs::metadata(data("cframe/holes.b2frame")).unwrap().len());
    }
}

#[test]
fn a_copy_of_a_directory_has_each_frame_in_one_layout() {
    for layout in ["contiguous", "sparse"] {
        let place = Place::with_tree();
        place.succeeds(&format!("convert --show {layout} tree copy"));
        // Names stay what they are: a file without a suffix of frames is one that can be mounted, but is not looked for.
        let mut frames = expected("copy");
        frames.retain(|name| layout == "sparse" || name != "copy/sub/moved");
        assert_eq!(told(&place.run("ls --json copy")), frames);
        for (name, sparse) in FRAMES {
            let (from, to) = (place.path("tree").join(name), place.path("copy").join(name));
            let in_store = name.starts_with("s.b2d") || name.starts_with("mark");
            assert_eq!(to.is_dir(), layout == "sparse" && !in_store, "{layout} {name}");
            assert_eq!(content(&to), content(&from), "{layout} {name}");
            if to.is_file() && !sparse {
                assert_eq!(fs::read(&to).unwrap(), fs::read(&from).unwrap(), "{layout} {name}: byte for byte");
            }
        }
        for name in ["notes.txt", "sub/none.b2nd"] {
            assert_eq!(fs::read(place.path("copy").join(name)).unwrap(), fs::read(place.path("tree").join(name)).unwrap());
        }
        assert!(place.path("copy/empty").is_dir());
        assert!(!place.path("copy/.b2fuse-1-0.tmp").exists() && !place.path("copy/sub/.b2fuse-1-0.b2frame").exists());
        assert_eq!(place.names(), ["copy", "point", "tree"]);
        // Back again, into an empty directory.
        place.succeeds("convert --show contiguous copy point");
        assert!(
            FRAMES.iter().all(|(name, _)| content(&place.path("point").join(name)) == content(&place.path("tree").join(name)))
        );
        assert!(FRAMES.iter().all(|(name, _)| place.path("point").join(name).is_file()));
    }
}

/// DST may be a store as well.
#[test]
fn a_copy_into_a_store_has_files() {
    let place = Place::with_tree();
    fs::create_dir(place.path("new.b2d")).unwrap();
    for to in ["other.b2d", "new.b2d/inside"] {
        place.succeeds(&format!("convert --show sparse tree/sub {to}"));
        assert!(place.path(to).join("moved").is_file() && place.path(to).join("deep/array.b2nd").is_file());
    }
    for store in ["s.b2d", "mark"] {
        place.succeeds(&format!("convert --show sparse tree/{store}/in {store}.in"));
        assert!(place.path(&format!("{store}.in/leaf.b2nd")).is_file(), "what is below a store");
        place.succeeds(&format!("convert --show sparse tree/sub/deep tree/{store}/new"));
        assert!(place.path(&format!("tree/{store}/new/array.b2nd")).is_file(), "into a store");
    }
}

#[test]
fn a_copy_keeps_attributes() {
    let place = Place::with_tree();
    let tree = |name: &str| place.path("tree").join(name);
    fs::hard_link(tree("notes.txt"), tree("sub/deep/same.txt")).unwrap();
    symlink("nowhere", tree("link")).unwrap();
    fs::File::create(tree("holes")).unwrap().set_len(64 << 20).unwrap();
    fs::write(tree("sub/script"), "#!/bin/sh\n").unwrap();
    // Of a converted frame too: owner, mode, times, extended attributes of what has its name.
    let script = "chmod 640 notes.txt holes.b2frame && chmod 6755 sub/script && chmod 3750 sub && chmod 700 empty && chmod 750 sub/moved && \
        chmod 644 sub/moved/* && setfattr -n user.note -v hello notes.txt sub holes.b2frame sub/moved && \
        touch -h -d '1969-01-01 00:00:00.25 UTC' link && touch -d '2001-02-03 04:05:06.7 UTC' notes.txt holes.b2frame sub/moved/* sub empty .";
    assert!(Command::new("sh").args(["-c", script]).current_dir(tree("")).begun().wait().unwrap().success());
    if root() {
        for name in ["notes.txt", "holes.b2frame", "sub/moved", "empty"] {
            std::os::unix::fs::chown(tree(name), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        std::os::unix::fs::lchown(tree("link"), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let facts = |path: PathBuf| {
        let meta = fs::symlink_metadata(path).unwrap();
        (meta.mode(), meta.uid(), meta.gid(), meta.mtime(), meta.mtime_nsec())
    };
    for layout in ["contiguous", "sparse"] {
        place.succeeds(&format!("convert --show {layout} tree {layout}"));
        let copy = |name: &str| place.path(layout).join(name);
        for name in ["notes.txt", "sub", "empty", "link", "", "sub/deep/same.txt"] {
            assert_eq!(facts(copy(name)), facts(tree(name)), "{layout} {name}");
        }
        assert_eq!(facts(copy("sub/script")).0 & 0o7777, 0o755, "no rights of others");
        let same = |name: &str| fs::metadata(copy(name)).map(|meta| (meta.ino(), meta.nlink())).unwrap();
        assert_eq!((same("notes.txt"), same("notes.txt").1), (same("sub/deep/same.txt"), 2));
        let holes = fs::metadata(copy("holes")).unwrap();
        assert_eq!((holes.len(), holes.blocks()), (64 << 20, 0));
        // Frames in both layouts: x for a directory where r is.
        let (frame, file) = (facts(copy("holes.b2frame")), facts(tree("holes.b2frame")));
        let mode = |mode: u32, sparse| if sparse { libc::S_IFDIR | mode | (mode & 0o444) >> 2 } else { libc::S_IFREG | mode };
        assert_eq!(frame, (mode(0o640, layout == "sparse"), file.1, file.2, file.3, file.4), "{layout}");
        let (frame, index) = (facts(copy("sub/moved")), facts(tree("sub/moved/chunks.b2frame")));
        let through = if layout == "sparse" { facts(tree("sub/moved")).0 } else { libc::S_IFREG | 0o640 };
        assert_eq!((frame.0, frame.1), (through, facts(tree("sub/moved")).1), "{layout}");
        if layout == "contiguous" {
            assert_eq!((frame.3, frame.4), (index.3, index.4));
        } else {
            let index = facts(copy("holes.b2frame/chunks.b2frame"));
            assert_eq!(index, (libc::S_IFREG | 0o640, file.1, file.2, file.3, file.4));
        }
        for name in ["notes.txt", "sub", "holes.b2frame", "sub/moved"] {
            let output = Command::new("getfattr").args(["--only-values", "-n", "user.note"]).arg(copy(name)).ended();
            assert_eq!(output.stdout, b"hello", "{layout} {name}");
        }
    }
}

#[test]
fn what_cannot_be_copied_to_is_named() {
    let place = Place::with_tree();
    fs::write(place.path("file"), "x").unwrap();
    fs::create_dir(place.path("full")).unwrap();
    fs::write(place.path("full/file"), "x").unwrap();
    symlink("point", place.path("link")).unwrap();
    let names = place.names();
    for (words, said) in [
        ("tree tree", "tree: lies inside tree; expected a place outside"),
        ("tree tree/sub/new", "tree/sub/new: lies inside tree; expected a place outside"),
        ("tree full", "full: is a directory that is not empty; expected a new name, or an empty directory"),
        ("tree .", ".: cannot be created: there is no such directory"),
        ("tree file", "file: exists already; expected a new name, or an empty directory"),
        ("tree link", "link: exists already; expected a new name, or an empty directory"),
        ("tree gone/new", "gone/new: cannot be created: there is no such directory"),
    ] {
        place.run(&format!("convert --show sparse {words}")).failed(said);
    }
    place.run("convert --force --show sparse tree new").misused("--force is for the copy of one frame");
    place.run("convert --show chunky tree new").misused("[possible values: contiguous, sparse]");
    let outcome = place.run("convert tree new");
    assert_eq!(outcome.code(), 1);
    assert!(outcome.stderr().starts_with("tree: is a directory with 2 frames in it; "), "{}", outcome.stderr());
    assert!(
        outcome.stderr().ends_with("; --show contiguous and --show sparse copy a directory of frames\n"),
        "{}",
        outcome.stderr()
    );
    assert_eq!(place.names(), names, "nothing is made");
}

#[test]
fn a_frame_that_cannot_be_read_is_copied_as_it_is() {
    let place = Place::with_tree();
    let cut = fs::read(data("cframe/holes.b2frame")).unwrap();
    fs::write(place.path("tree/cut.b2nd"), &cut[..cut.len() / 2]).unwrap();
    fs::remove_file(place.path("tree/sub/moved/00000001.chunk")).unwrap();
    let names = |dir: &Path| -> Vec<OsString> {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    for (layout, name) in [("sparse", "cut.b2nd"), ("contiguous", "sub/moved")] {
        let outcome = place.run(&format!("convert --show {layout} tree {layout}"));
        assert_eq!((outcome.code(), outcome.stderr().lines().count()), (1, 1), "{}", outcome.stderr());
        assert!(outcome.stderr().starts_with(&format!("tree/{name}")), "{}", outcome.stderr());
        assert!(outcome.stderr().ends_with("; copied as it is\n"), "{}", outcome.stderr());
        assert_eq!(fs::read(place.path(layout).join("cut.b2nd")).unwrap(), cut[..cut.len() / 2]);
        let (from, to) = (place.path("tree/sub/moved"), place.path(layout).join("sub/moved"));
        assert_eq!(names(&to), names(&from));
        for name in names(&from) {
            assert_eq!(fs::read(to.join(&name)).unwrap(), fs::read(from.join(&name)).unwrap());
        }
        assert_eq!(
            names(&place.path(layout)),
            [names(&place.path("tree"))].concat().into_iter().filter(|name| !hidden(name)).collect::<Vec<_>>()
        );
    }
}

fn hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".b2fuse-")
}

/// What was made until then is whole, and nobody but its owner gets at the rest.
#[test]
fn an_interrupted_copy_has_no_unfinished_frame() {
    let place = Place::new();
    for n in 0..8 {
        fs::create_dir_all(place.path(&format!("tree/{n}"))).unwrap();
        fs::copy(data("cframe/chunks-2500.b2frame"), place.path(&format!("tree/{n}/a.b2nd"))).unwrap();
    }
    // The signal may come too late; not always.
    let interrupted = (0..100).any(|_| {
        let _ = fs::remove_dir_all(place.path("copy"));
        let mut child = place.command("convert --show sparse tree copy").stderr(Stdio::piped()).begun();
        let mut over = false;
        eventually("begun", || {
            over = child.try_wait().unwrap().is_some();
            over || place.path("copy/3").exists()
        });
        if !over {
            let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).stderr(Stdio::null()).begun().wait();
        }
        let code = child.wait().unwrap().code();
        if code == Some(0) {
            return false;
        }
        let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        assert_eq!((code, said.as_str()), (Some(1), "copy: interrupted; it holds a part of the copy\n"));
        let check = place.run("check --json copy");
        assert_eq!(check.code(), 0, "{}", check.stderr());
        assert!(told(&check).len() >= 3, "{:?}", told(&check));
        let names = Command::new("find").arg(place.path("copy")).args(["-name", ".b2fuse-*"]).ended();
        assert!(names.stdout.is_empty(), "{}", String::from_utf8_lossy(&names.stdout));
        assert_eq!(fs::metadata(place.path("copy")).unwrap().mode() & 0o7777, 0o700);
        true
    });
    assert!(interrupted);
}

/// One frame, in the layout that is asked for, whatever it has.
#[test]
fn a_frame_can_be_copied_into_its_own_layout() {
    for (layout, dir) in [("cframe", false), ("sframe", true)] {
        let frame = data(layout).join("moved.b2frame");
        for (show, to_dir) in [("contiguous", false), ("sparse", true)] {
            let place = Place::new();
            place.succeeds(&format!("convert --show {show} {} copy", frame.display()));
            assert_eq!((frame.is_dir(), place.path("copy").is_dir()), (dir, to_dir));
            assert_eq!(content(&place.path("copy")), content(&frame));
        }
    }
}

fn root() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0);
    if !root {
        eprintln!("SKIPPED: needs root");
    }
    root
}
