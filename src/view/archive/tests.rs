use std::path::Path;

use super::*;
use crate::format::zip::tests::Built;
use crate::store::Location;

const READING: OpenMode = OpenMode { read: true, write: false, truncate: false, drop_privileges: false };
const MEMBERS: &[(&str, &[u8])] = &[("group/deep/a.b2nd", b"first"), ("b.b2nd", b"second"), ("empty", b"")];

fn shown(path: &Path) -> ArchiveView {
    ArchiveView::new(Archive::open(&Location::existing(path).unwrap()).unwrap())
}

fn find(view: &ArchiveView, path: &str) -> Result<Attr> {
    path.split('/').try_fold(view.getattr(ROOT)?, |dir, name| view.lookup(dir.ino, OsStr::new(name)))
}

fn read(view: &ArchiveView, ino: Ino) -> Result<Vec<u8>> {
    let mut buf = vec![0xaa; 1000];
    let len = view.read(ino, None, 0, &mut buf)?;
    Ok(buf[..len].to_vec())
}

fn list(view: &ArchiveView, ino: Ino, from: u64, most: usize) -> Vec<(String, u64)> {
    let mut names = Vec::new();
    view.readdir(ino, from, &mut |entry| {
        assert_eq!(view.lookup(ino, entry.name).unwrap().ino, entry.ino);
        names.push((entry.name.to_str().unwrap().to_owned(), entry.next));
        names.len() < most
    })
    .unwrap();
    names
}

fn errno<T>(result: Result<T>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

#[test]
fn files_are_read_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.b2z");
    std::fs::write(&path, Built::new(MEMBERS).bytes).unwrap();
    let view = shown(&path);
    for (name, data) in MEMBERS {
        let attr = find(&view, name).unwrap();
        assert_eq!((attr.kind, attr.size), (Kind::File, data.len() as u64));
        assert_eq!(read(&view, attr.ino).unwrap(), *data);
        // In pieces, and behind the end.
        for at in 0..data.len() as u64 + 2 {
            let mut byte = [0xaa];
            let len = view.read(attr.ino, None, at, &mut byte).unwrap();
            assert_eq!(byte[..len], *data.get(at as usize..).unwrap_or_default().get(..1).unwrap_or_default());
        }
        assert_eq!(view.read(attr.ino, None, u64::MAX, &mut [0]).unwrap(), 0);
        view.open(attr.ino, READING).unwrap();
        assert_eq!(errno(view.open(attr.ino, OpenMode { write: true, ..READING })), libc::EROFS);
    }
    let names = |listed: Vec<(String, u64)>| listed.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ");
    assert_eq!(names(list(&view, ROOT, 0, 9)), "b.b2nd empty group");
    let first = list(&view, ROOT, 0, 1);
    assert_eq!(names(list(&view, ROOT, first[0].1, 9)), "empty group");
    assert_eq!(names(list(&view, ROOT, u64::MAX, 9)), "");
    let deep = find(&view, "group/deep").unwrap();
    assert_eq!((deep.kind, names(list(&view, deep.ino, 0, 9))), (Kind::Directory, "a.b2nd".into()));
    assert_eq!(errno(find(&view, "none")), libc::ENOENT);
    assert_eq!(errno(find(&view, "b.b2nd/x")), libc::ENOTDIR);
    assert_eq!(errno(view.open(deep.ino, READING)), libc::EISDIR);
}

#[test]
fn modes_are_for_reading() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.b2z");
    std::fs::write(&path, Built::new(MEMBERS).bytes).unwrap();
    let view = shown(&path);
    for (mode, file, inside) in [(0o644, 0o444, 0o555), (0o4640, 0o440, 0o550), (0o777, 0o444, 0o555), (0o200, 0, 0)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(find(&view, "b.b2nd").unwrap().meta.mode, file, "{mode:o}");
        assert_eq!(find(&view, "group").unwrap().meta.mode, inside, "{mode:o}");
    }
}

/// What a handle was opened for is read, or nothing.
#[test]
fn an_archive_that_was_written_is_read_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.b2z");
    let (old, new) = (Built::new(&[("a", b"old")]).bytes, Built::new(&[("a", b"new")]).bytes);
    std::fs::write(&path, &old).unwrap();
    // Long enough ago for its time to tell.
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
    let view = shown(&path);
    let ino = find(&view, "a").unwrap().ino;
    assert_eq!(read(&view, ino).unwrap(), b"old");
    assert!(!view.is_outdated());

    // Another takes its name: the old one is read on.
    std::fs::write(dir.path().join("new"), &new).unwrap();
    std::fs::rename(dir.path().join("new"), &path).unwrap();
    assert_eq!(read(&view, ino).unwrap(), b"old");
    assert!(!view.is_outdated());

    let view = shown(&path);
    let ino = find(&view, "a").unwrap().ino;
    let again = shown(&path);
    assert_eq!(find(&again, "a").unwrap().ino, ino, "the same archive has the same inodes");
    std::fs::write(&path, [&Built::new(&[("b", b"longer")]).bytes[..]].concat()).unwrap();
    assert!(view.is_outdated());
    assert_eq!(errno(read(&view, ino)), libc::ESTALE);
    let view = shown(&path);
    assert_eq!(errno(read(&view, ino)), libc::ESTALE, "an inode of what was there before");
    assert_eq!(errno(view.getattr(ino)), libc::ESTALE);
}

/// Others may write an archive right after it was opened, before its time can tell.
#[test]
fn an_archive_that_was_just_written_is_looked_at_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.b2z");
    let time = std::time::SystemTime::now() + std::time::Duration::from_millis(20);
    let write = |members: &[(&str, &[u8])]| {
        std::fs::write(&path, Built::new(members).bytes).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    };
    write(&[("a", b"one"), ("b", b"two")]);
    let view = shown(&path);
    let ino = find(&view, "a").unwrap().ino;
    write(&[("b", b"two"), ("a", b"one")]);
    let begun = std::time::Instant::now();
    while !view.is_outdated() {
        assert!(begun.elapsed().as_secs() < 10, "is believed for ever");
        std::thread::yield_now();
    }
    assert!(std::time::SystemTime::now() >= time);
    assert_eq!(errno(read(&view, ino)), libc::ESTALE);
    let view = shown(&path);
    assert_eq!(errno(read(&view, ino)), libc::ESTALE, "another archive");
    // From now on its time tells, and it is the same.
    assert!(!view.is_outdated() && !view.is_outdated());
    assert_eq!(read(&view, find(&view, "a").unwrap().ino).unwrap(), b"one");
}

#[test]
fn an_archive_that_was_cut_is_read_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.b2z");
    std::fs::write(&path, Built::new(&[("a", &[7; 100_000])]).bytes).unwrap();
    let view = shown(&path);
    let ino = find(&view, "a").unwrap().ino;
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    assert_eq!(errno(view.read(ino, None, 50_000, &mut [0; 10])), libc::ESTALE);
    assert_eq!(errno(Archive::look(&Location::existing(&path).unwrap()).map_err(ViewError::from)), libc::EIO);
}

#[test]
fn what_does_not_fit_a_look_is_found_when_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.b2z");
    let names: Vec<String> = (0..2000).map(|n| format!("dir{}/member{n}", n % 7)).collect();
    let members: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, name.as_bytes())).collect();
    let mut built = Built::new(&members);
    std::fs::write(&path, &built.bytes).unwrap();
    let location = Location::existing(&path).unwrap();
    Archive::look(&location).unwrap();
    let view = shown(&path);
    for name in &names {
        assert_eq!(read(&view, find(&view, name).unwrap().ino).unwrap(), name.as_bytes());
    }
    built.bytes[built.locals[1000]] = b'X';
    std::fs::write(&path, &built.bytes).unwrap();
    Archive::look(&location).unwrap();
    assert_eq!(errno(Archive::open(&location).map_err(ViewError::from)), libc::EIO);
    built.bytes[built.centrals[3]] = b'X';
    std::fs::write(&path, &built.bytes).unwrap();
    Archive::look(&location).unwrap();
    assert_eq!(errno(Archive::open(&location).map_err(ViewError::from)), libc::EIO);
}
