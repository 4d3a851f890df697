//! `b2fuse check`.

use super::*;

#[test]
fn check_says_what_is_wrong_and_exits_by_it() {
    let place = Place::new();
    fs::copy(data("cframe/chunks-3.b2frame"), place.path("a.b2frame")).unwrap();
    let sound = place.run("check --deep a.b2frame");
    assert_eq!((sound.code(), sound.stderr().as_str()), (0, ""));
    assert!(String::from_utf8(sound.output.stdout).unwrap().starts_with("a.b2frame: sound; 3 chunks"));

    let mut bytes = fs::read(place.path("a.b2frame")).unwrap();
    bytes.truncate(bytes.len() - 3);
    fs::write(place.path("cut.b2frame"), bytes).unwrap();
    let cut = place.run("check cut.b2frame");
    assert_eq!(cut.code(), 1);
    let lines = String::from_utf8(cut.output.stdout).unwrap();
    assert!(lines.lines().all(|line| line.starts_with("cut.b2frame: ")) && lines.contains("frame_len"), "{lines}");

    fs::write(place.path("none"), "no frame\0at all, but long enough to be read as one").unwrap();
    let none = place.run("check none a.b2frame");
    assert_eq!(none.code(), 1);
    assert!(none.stderr().starts_with("none: header: magic"), "{}", none.stderr());
    place.run("check").misused("<FRAMES>");
}

#[test]
fn check_speaks_json() {
    let place = Place::new();
    let mut command = place.command("check --json");
    command.arg(data("cframe/holes.b2frame")).arg("missing");
    let output = command.ended();
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<serde_json::Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["layout"], "cframe");
    assert_eq!(lines[0]["sound"], true);
    assert_eq!(lines[0]["findings"][0]["kind"], "hole");
    assert_eq!(lines[0]["findings"][0]["severity"], "note");
    assert!(lines[1]["error"].as_str().unwrap().starts_with("missing: "), "{}", lines[1]);
}
