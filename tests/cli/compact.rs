//! `b2fuse compact`.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::content::content;
use super::mounts::copy_dir;
use super::*;

#[test]
fn a_frame_with_holes_has_none_afterwards() {
    for name in ["holes.b2frame", "moved.b2frame"] {
        let place = Place::new();
        fs::copy(data("cframe").join(name), place.path("frame")).unwrap();
        fs::set_permissions(place.path("frame"), fs::Permissions::from_mode(0o640)).unwrap();
        let (original, before) = (content(&place.path("frame")), fs::metadata(place.path("frame")).unwrap());
        place.succeeds("compact frame");
        let after = fs::metadata(place.path("frame")).unwrap();
        assert_eq!(content(&place.path("frame")), original);
        assert!(after.len() < before.len());
        assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
        let check = place.run("check frame");
        assert!(String::from_utf8_lossy(&check.output.stdout).starts_with("frame: sound; "), "no note is left");
        assert_eq!(place.names(), ["frame", "point"]);
    }
}

#[test]
fn a_compact_frame_is_left_alone() {
    let place = Place::new();
    fs::copy(data("cframe/chunks-3.b2frame"), place.path("frame")).unwrap();
    let before = fs::metadata(place.path("frame")).unwrap();
    place.succeeds("compact frame");
    assert_eq!(fs::metadata(place.path("frame")).unwrap().ino(), before.ino());
}

#[test]
fn files_are_numbered_anew_and_orphans_removed() {
    let place = Place::new();
    copy_dir(&data("sframe/moved.b2frame"), &place.path("frame"));
    fs::copy(place.path("frame/00000001.chunk"), place.path("frame/000000AA.chunk")).unwrap();
    let original = content(&place.path("frame"));
    place.succeeds("compact frame");
    assert_eq!(content(&place.path("frame")), original);
    let mut names: Vec<_> = fs::read_dir(place.path("frame")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let expected = (0..names.len() - 1).map(|n| format!("{n:08X}.chunk")).chain(["chunks.b2frame".to_owned()]);
    assert!(names.iter().map(|name| name.to_string_lossy().into_owned()).eq(expected), "{names:?}");
    assert_eq!(place.names(), ["frame", "point"]);
}

#[test]
fn what_is_no_part_of_a_frame_is_not_thrown_away() {
    let place = Place::new();
    copy_dir(&data("sframe/moved.b2frame"), &place.path("frame"));
    fs::write(place.path("frame/notes.txt"), "mine").unwrap();
    let refused = place.run("compact frame");
    assert_eq!(refused.code(), 1);
    assert!(refused.stderr().contains("notes.txt"), "{}", refused.stderr());
    assert_eq!(fs::read(place.path("frame/notes.txt")).unwrap(), b"mine");
}

#[test]
fn through_a_link_the_frame_itself_is_compacted() {
    let place = Place::new();
    fs::copy(data("cframe/holes.b2frame"), place.path("frame")).unwrap();
    std::os::unix::fs::symlink("frame", place.path("link")).unwrap();
    let before = fs::metadata(place.path("frame")).unwrap().len();
    place.succeeds("compact link");
    assert!(place.path("link").is_symlink());
    assert!(fs::metadata(place.path("frame")).unwrap().len() < before);
}
