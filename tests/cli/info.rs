//! `b2fuse info`.

use serde_json::Value;

use super::golden::golden;
use super::mounts::{Shape, copy_dir};
use super::*;

/// What info prints; it must succeed.
#[track_caller]
fn info(command: &mut Command) -> String {
    let output = command.ended();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
    String::from_utf8(output.stdout).unwrap()
}

fn as_json(line: &str) -> Value {
    assert_eq!(line.lines().count(), 1, "one line a frame");
    serde_json::from_str(line).unwrap()
}

#[test]
fn what_is_printed_of_the_librarys_frames() {
    let place = Place::new();
    for name in [
        "cframe/b2nd-int.b2nd",
        "cframe/b2nd-struct.b2nd",
        "cframe/caterva.b2frame",
        "cframe/codec-lz4hc.b2frame",
        "cframe/codec-zstd-dict.b2frame",
        "cframe/codec-zstd.b2frame",
        "cframe/empty-meta.b2frame",
        "cframe/fill-nan.b2frame",
        "cframe/holes.b2frame",
        "sframe/special.b2frame",
        "sframe/vlblocks-varying.b2frame",
    ] {
        let file = name.replace('/', "-");
        let text = info(place.command(&format!("info {name}")).current_dir(data("")));
        golden(&format!("info-{file}.txt"), &text);
        let json = as_json(&info(place.command(&format!("info --json {name}")).current_dir(data(""))));
        golden(&format!("info-{file}.json"), &format!("{json:#}\n"));
    }
}

/// A damaged frame: what is printed is golden, what goes to stderr begins so.
#[track_caller]
fn damaged(place: &Place, name: &str, line: &str) {
    let text = place.run(&format!("info {name}"));
    golden(&format!("info-damaged-{name}.txt"), &String::from_utf8(text.output.stdout.clone()).unwrap());
    let json = place.run(&format!("info --json {name}"));
    golden(
        &format!("info-damaged-{name}.json"),
        &format!("{:#}\n", as_json(&String::from_utf8(json.output.stdout.clone()).unwrap())),
    );
    for outcome in [text, json] {
        assert_eq!((outcome.code(), outcome.stderr()), (1, format!("{name}: {line}\n")));
    }
}

#[test]
fn of_a_damaged_frame_what_can_be_read_is_shown() {
    let place = Place::new();
    let whole = fs::read(data("cframe/b2nd-int.b2nd")).unwrap();
    let header_len = u32::from_be_bytes(whole[11..15].try_into().unwrap()) as usize;
    let index_at = header_len + 512;

    fs::write(place.path("without-trailer"), &whole[..whole.len() - 40]).unwrap();
    let line = format!("header: frame_len at byte 16: found 851, expected the file's length, {} (and 1 more)", whole.len() - 40);
    damaged(&place, "without-trailer", &line);

    fs::write(place.path("cut-in-chunks"), &whole[..header_len + 300]).unwrap();
    let line = format!("header: frame_len at byte 16: found 851, expected the file's length, {} (and 2 more)", header_len + 300);
    damaged(&place, "cut-in-chunks", &line);

    let mut bytes = whole.clone();
    bytes[index_at + 3] = 4;
    fs::write(place.path("broken-index"), bytes).unwrap();
    damaged(&place, "broken-index", "index: typesize at byte 3: found 4, expected 8");

    let mut bytes = whole.clone();
    bytes[header_len + 12..header_len + 16].fill(0x7f);
    fs::write(place.path("broken-chunk"), bytes).unwrap();
    let line = format!(
        "chunk 0: chunk at byte {header_len}: chunk: cbytes at byte 12: found 2139062143, expected nbytes 96 and the header of 32, \
         the chunk being a plain copy"
    );
    damaged(&place, "broken-chunk", &line);

    let mut bytes = whole.clone();
    let ndim = bytes.windows(4).position(|window| window == b"\x97\0\x02\x92").unwrap() + 2;
    bytes[ndim] = 99;
    fs::write(place.path("broken-array"), bytes).unwrap();
    damaged(&place, "broken-array", "metalayer \"b2nd\": array: ndim at byte 2: found 99, expected at most 16");

    copy_dir(&data("sframe/codec-lz4.b2frame"), &place.path("missing-files"));
    fs::remove_file(place.path("missing-files/00000001.chunk")).unwrap();
    fs::write(place.path("missing-files/00000003.chunk"), b"short").unwrap();
    damaged(&place, "missing-files", "chunk 1: 00000001.chunk: is not there (and 1 more)");

    fs::create_dir(place.path("hostile")).unwrap();
    fs::copy(data("hostile/empty-chunks.index"), place.path("hostile/chunks.b2frame")).unwrap();
    let hostile = place.run("info hostile");
    assert_eq!((hostile.code(), hostile.stderr().lines().count()), (1, 1), "{}", hostile.stderr());
}

#[test]
fn of_many_findings_some_are_told() {
    let place = Place::new();
    let mut bytes = fs::read(data("cframe/chunks-2500.b2frame")).unwrap();
    let header_len = u32::from_be_bytes(bytes[11..15].try_into().unwrap()) as usize;
    let section = u64::from_be_bytes(bytes[39..47].try_into().unwrap()) as usize;
    bytes[header_len..header_len + section].fill(0);
    fs::write(place.path("frame"), bytes).unwrap();
    let object = as_json(&String::from_utf8(place.run("info --json frame").output.stdout).unwrap());
    let bad = object["chunks"]["stored"].as_u64().unwrap();
    assert_eq!(object["stored"]["unreadable"], bad);
    assert_eq!(object["findings"].as_array().unwrap().len(), 20);
    assert_eq!(object["findings_left_out"], bad - 20);
    assert!(place.run("info frame").stderr().ends_with(&format!(" (and {} more)\n", bad - 1)));
}

#[test]
fn what_is_no_frame_is_named_and_the_next_is_shown() {
    let place = Place::with_frame();
    fs::write(place.path("none"), "no frame\0at all, but long enough to be read as one").unwrap();
    fs::write(place.path("text"), "no frame at all").unwrap();
    copy_dir(&data("sframe/chunks-1.b2frame"), &place.path("sparse"));
    let several = place.run("info none text gone point sparse/chunks.b2frame frame");
    assert_eq!(several.code(), 1);
    let expected = [
        "none: header: magic at byte 2: found \" frame\\x00a\", expected \"b2frame\", the mark of a frame",
        "text: is a text file; expected a Blosc2 frame",
        "gone: no such file or directory; expected a Blosc2 frame",
        "point: holds no frame; expected a Blosc2 frame, or a directory with frames in it",
        "sparse/chunks.b2frame: is the index file of a sparse frame; expected the directory that it is in",
    ];
    assert_eq!(several.stderr().lines().collect::<Vec<_>>(), expected);
    assert!(String::from_utf8(several.output.stdout).unwrap().contains("frame\n  layout "));
    let json = place.run("info --json gone frame");
    let lines = String::from_utf8(json.output.stdout).unwrap();
    let objects: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        objects[0],
        serde_json::json!({ "frame": "gone", "error": "gone: no such file or directory; expected a Blosc2 frame" })
    );
    assert_eq!(objects[1]["layout"], "cframe");
    place.run("info").misused("<FRAMES>");
}

#[test]
fn colours_are_for_terminals() {
    let place = Place::with_frame();
    let shown = |name: &str, value: &str| {
        let mut command = place.command("info frame");
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env(name, value);
        info(&mut command).contains('\x1b')
    };
    assert!(shown("CLICOLOR_FORCE", "1"));
    assert!(!shown("B2FUSE_NOTHING", "1"), "a pipe is no terminal");
    let both = info(place.command("info frame").env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1"));
    assert!(!both.contains('\x1b'));
    assert!(!info(place.command("info --json frame").env("CLICOLOR_FORCE", "1")).contains('\x1b'));
}

#[test]
fn text_from_a_frame_does_nothing_to_a_terminal() {
    let place = Place::new();
    let mut bytes = fs::read(data("cframe/b2nd-int.b2nd")).unwrap();
    // The dtype, the name of a metalayer, and its content.
    for (old, new) in [(&b"<i4"[..], &b"\x1b[m"[..]), (b"author", b"\x1b[3m\x7f\xff"), (b"someone", b"some\x1b[m")] {
        let at = bytes.windows(old.len()).position(|window| window == old).unwrap();
        bytes[at..at + old.len()].copy_from_slice(new);
    }
    fs::write(place.path("frame"), bytes).unwrap();
    let text = info(&mut place.command("info frame"));
    assert!(!text.contains('\x1b') && text.matches("\\u{1b}[").count() == 4, "{text}");
    // Nor in JSON, where nothing gets lost either.
    let json = info(&mut place.command("info --json frame"));
    assert!(!json.trim_end().contains(char::is_control), "{json}");
    let names: Vec<_> = as_json(&json)["metalayers"].as_array().unwrap().iter().map(|layer| layer["name"].clone()).collect();
    assert!(names.contains(&Value::from("\u{1b}[3m\u{7f}\u{fffd}")), "{names:?}");
}

#[test]
fn a_mount_is_what_it_looks_like() {
    if !fuse() {
        return;
    }
    for (shape, shown, layout) in [
        (Shape("frame", "point", "point/chunks.b2frame"), "point", "sframe"),
        (Shape("sparse", "file", "file"), "file", "cframe"),
    ] {
        let place = Place::with_frames();
        let source = as_json(&info(&mut place.command("info --json frame")));
        let _mount = place.mount_in_front(&shape, "");
        let object = as_json(&info(&mut place.command(&format!("info --json {shown}"))));
        assert_eq!(object["layout"], layout);
        for field in ["nbytes", "chunksize", "chunks", "codec", "filters", "metalayers", "vlmetalayers", "stored"] {
            assert_eq!(object[field], source[field], "{field} of {shown}");
        }
    }
}
