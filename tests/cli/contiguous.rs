//! Sparse frames mounted as one file, in a directory and on a file, written to with plain system calls.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;

use super::content::{content, frames};
use super::*;

/// MOUNTPOINT, and the file that the mount shows.
const SHAPES: [(&str, &str); 2] = [("point", "point/sparse.b2frame"), ("file", "file")];

/// Mounts a copy of a real sparse frame, calls `with` with the place and the file, and unmounts.
fn on_both(options: &str, with: impl Fn(&Place, &Path)) {
    if !fuse() {
        return;
    }
    for (point, shown) in SHAPES {
        let place = Place::with_frames();
        place.succeeds(&format!("mount {options} sparse {point}"));
        {
            let _no_children = FILES.read();
            with(&place, &place.path(shown));
        }
        place.succeeds(&format!("umount {point}"));
        assert_eq!(fs::read(place.path("file")).unwrap(), b"below");
        assert!(!place.path("sparse.lost").exists());
    }
}

/// Closes, and tells what close(2) said.
fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is ours, and is not used again.
    if unsafe { libc::close(file.into_raw_fd()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[test]
fn any_read_is_a_piece_of_the_whole() {
    on_both("-o ro", |_, shown| {
        let whole = fs::read(shown).unwrap();
        let file = File::open(shown).unwrap();
        for len in [1, 7, 100, 4095, whole.len(), whole.len() + 10] {
            for start in (0..whole.len() + 3).step_by(61) {
                let mut piece = vec![0; len];
                let read = file.read_at(&mut piece, start as u64).unwrap();
                let expected = &whole[start.min(whole.len())..(start + len).min(whole.len())];
                assert!(piece[..read] == *expected, "{len} bytes at {start}");
            }
        }
        assert_eq!(fs::write(shown, "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    });
}

#[test]
fn another_frame_copied_over_replaces_it() {
    for frame in frames("cframe") {
        on_both("", |place, shown| {
            fs::copy(&frame, shown).unwrap();
            let copied = content(&frame);
            assert_eq!(content(shown), copied, "{}", frame.display());
            File::open(shown).unwrap().sync_all().unwrap();
            assert_eq!(content(&place.path("sparse")), copied, "{}", frame.display());
        });
    }
}

#[test]
fn what_is_no_frame_is_refused_at_close_and_never_was() {
    on_both("", |place, shown| {
        let (before, source) = (fs::read(shown).unwrap(), content(&place.path("sparse")));
        let reader = File::open(shown).unwrap();
        let frame = fs::read(data("cframe/codec-lz4.b2frame")).unwrap();
        for junk in [b"no frame".as_slice(), &[0; 100_000], &before[..before.len() - 1], &frame[..frame.len() / 2]] {
            let mut file = File::create(shown).unwrap();
            file.write_all(junk).unwrap();
            assert_eq!(fs::read(shown).unwrap(), junk, "what is held is what is seen");
            assert_eq!(close(file).unwrap_err().raw_os_error(), Some(libc::EINVAL));
            let after = fs::read(shown).unwrap();
            let differs = after.iter().zip(&before).position(|(after, before)| after != before);
            assert!(after == before, "{} bytes after {}, and {} before; {differs:?}", after.len(), junk.len(), before.len());
            assert_eq!(fs::metadata(shown).unwrap().len(), before.len() as u64);
            let mut held = vec![0; before.len() + 1];
            assert_eq!(reader.read_at(&mut held, 0).unwrap(), before.len(), "by who had it open before");
            assert!(held[..before.len()] == before);
        }
        // Without O_TRUNC it could be a round of the library's, and is kept for the next.
        let file = OpenOptions::new().write(true).open(shown).unwrap();
        file.write_all_at(b"XX", 2).unwrap();
        assert_eq!(close(file).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        let file = OpenOptions::new().write(true).open(shown).unwrap();
        file.write_all_at(&before[2..4], 2).unwrap();
        close(file).unwrap();
        assert!(fs::read(shown).unwrap() == before);
        assert_eq!(content(&place.path("sparse")), source);
    });
}

#[test]
fn only_frames_and_temporary_names_are_in_the_directory() {
    if !fuse() {
        return;
    }
    let place = Place::with_frames();
    place.succeeds("mount sparse point");
    let no_children = FILES.read();
    let point = place.path("point");
    let errno = |outcome: io::Result<()>| outcome.unwrap_err().raw_os_error().unwrap();
    assert_eq!(errno(File::create(point.join("other")).map(drop)), libc::EPERM);
    assert_eq!(errno(fs::create_dir(point.join("directory"))), libc::EPERM);
    // Removed, it is still SOURCE, until there is another.
    let before = content(&place.path("sparse"));
    fs::remove_file(point.join("sparse.b2frame")).unwrap();
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0);
    fs::write(point.join("sparse.b2frame"), "no frame").unwrap();
    File::open(&point).unwrap().sync_all().unwrap();
    assert_eq!(content(&place.path("sparse")), before);
    let frame = data("cframe/special.b2frame");
    fs::copy(&frame, point.join("sparse.b2frame")).unwrap();
    assert_eq!(content(&point.join("sparse.b2frame")), content(&frame));
    let frame = data("cframe/moved.b2frame");
    fs::copy(&frame, point.join(".new")).unwrap();
    fs::rename(point.join(".new"), point.join("sparse.b2frame")).unwrap();
    assert_eq!(content(&point.join("sparse.b2frame")), content(&frame));
    drop(no_children);
    place.succeeds("umount point");
    assert_eq!(content(&place.path("sparse")), content(&frame));
}
