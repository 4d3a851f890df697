use super::*;
use crate::store::backend::{copy_range, read_exact_at};

#[test]
fn rename_without_replacing_keeps_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let backend = FileBackend::open(dir.path()).unwrap();
    backend.create("a".as_ref(), 0o644).unwrap().write_at(b"new", 0).unwrap();
    backend.create("b".as_ref(), 0o644).unwrap().write_at(b"old", 0).unwrap();
    let error = backend.rename("a".as_ref(), "b".as_ref(), false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(dir.path().join("b")).unwrap(), b"old");
    backend.rename("a".as_ref(), "b".as_ref(), true).unwrap();
    assert_eq!(std::fs::read(dir.path().join("b")).unwrap(), b"new");
}

#[test]
fn a_lock_is_held_against_other_handles_until_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let backend = FileBackend::open(dir.path()).unwrap();
    let first = backend.create("f".as_ref(), 0o644).unwrap();
    let second = backend.open("f".as_ref(), true).unwrap();
    assert!(first.try_lock().unwrap());
    assert!(!second.try_lock().unwrap());
    first.unlock().unwrap();
    assert!(second.try_lock().unwrap());
}

#[test]
fn copies_within_and_between_files() {
    let dir = tempfile::tempdir().unwrap();
    let backend = FileBackend::open(dir.path()).unwrap();
    let file = backend.create("f".as_ref(), 0o644).unwrap();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    file.write_at(&bytes, 0).unwrap();
    copy_range(&*file, 100, &*file, 4_000_000, 2_500_000).unwrap();
    let other = backend.create_unnamed().unwrap();
    copy_range(&*file, 4_000_000, &*other, 5, 2_500_000).unwrap();
    let mut got = vec![0; 2_500_000];
    read_exact_at(&*other, &mut got, 5).unwrap();
    assert!(got == bytes[100..2_500_100]);
    assert_eq!(copy_range(&*file, 6_400_000, &*other, 0, 200_000).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}
