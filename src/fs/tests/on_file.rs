//! Mount points that are files: one large file, read and written by several at once.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;

use super::*;

const MIB: usize = 1 << 20;

fn content(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

fn open_rw(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// A whole file, mapped for reading by all.
struct Map(*mut libc::c_void, usize);

impl Map {
    fn new(file: &File) -> Map {
        let len = file.metadata().unwrap().len() as usize;
        // SAFETY: a new mapping, at no particular place.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Map(at, len)
    }

    /// A copy.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.1];
        // SAFETY: as long as the mapping, which is within the file and has nothing to do with the new vector.
        unsafe { libc::memcpy(bytes.as_mut_ptr().cast(), self.0, self.1) };
        bytes
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and nobody has a reference into it.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

#[test]
fn the_mount_point_is_the_file() {
    if !fuse() {
        return;
    }
    let mut mount = Mount::on_file(MemoryView::on_file(false, content(10_000)));
    let point = mount.path(FILE);
    let meta = fs::metadata(&point).unwrap();
    assert_eq!((meta.is_file(), meta.len(), meta.ino(), meta.mode() & 0o7777), (true, 10_000, 1, 0o640));
    assert_eq!(fs::read(&point).unwrap(), content(10_000));
    assert_eq!(mount.names(), [OTHER, FILE]);
    assert_eq!(mount.read(OTHER).unwrap(), b"other");
    assert_eq!(errno(fs::metadata(point.join("x"))), libc::ENOTDIR);
    assert_eq!(errno(fs::remove_file(&point)), libc::EBUSY, "a mount point stays");
    assert_eq!(errno(fs::rename(mount.path(OTHER), &point)), libc::EBUSY);
    fs::set_permissions(&point, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::metadata(&point).unwrap().mode() & 0o7777, 0o600);
    let held = File::open(&point).unwrap();
    assert_eq!(ask(&held, Question::HowFar(0)), Answer::Busy);
    held.sync_all().unwrap();
    let real = point.canonicalize().unwrap();
    assert_eq!(kernel::mounted_at(&real).unwrap().unwrap().fs_type, kernel::FS_TYPE);
    assert_eq!(errno(kernel::unmount(&real, false)), libc::EBUSY);
    drop(held);
    kernel::unmount(&real, false).unwrap();
    mount.finished().unwrap();
    assert!(mount.view.shut_down.load(SeqCst));
    assert_eq!(fs::read(&point).unwrap(), b"below");
}

#[test]
fn a_view_of_the_other_kind_is_not_mounted() {
    if !fuse() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, "below").unwrap();
    for (view, point, reason) in [
        (MemoryView::new(true, []), &file, "is a file; expected a directory to mount on"),
        (MemoryView::on_file(true, Vec::new()), &dir.path().to_owned(), "is a directory; expected a file to mount on"),
    ] {
        let said = Mounted::start(Arc::new(view), &config(point.clone())).err().unwrap().to_string();
        assert_eq!(said, format!("{}: {reason}", point.display()));
    }
    assert_eq!(fs::read(&file).unwrap(), b"below");
}

#[test]
fn a_busy_file_ends_all_the_same() {
    if !fuse() {
        return;
    }
    let mut mount = Mount::on_file(MemoryView::on_file(false, b"old".to_vec()));
    let mut file = open_rw(&mount.path(FILE));
    file.write_all(b"new").unwrap();
    mount.control.send(Signal::End);
    eventually("detached", || mount.read(FILE).unwrap() == b"below");
    assert_eq!(mount.view.bytes(THE_FILE).unwrap(), b"new", "synced before the name went");
    drop(file);
    mount.finished().unwrap();
}

#[test]
fn reads_are_long_and_come_from_two_loops() {
    if !fuse() {
        return;
    }
    for read_only in [true, false] {
        let bytes = content(16 * MIB);
        let mut view = MemoryView::on_file(read_only, bytes.clone());
        view.read_ahead = Some(4 * MIB as u32);
        view.company.store(2, SeqCst);
        let mount = Mount::on_file(view);
        // One reader, whose next bytes the kernel asks for while it waits.
        assert!(mount.read(FILE).unwrap() == bytes);
        assert!(mount.view.most_reading.load(SeqCst) >= 2, "each READ waited for the one before");
        let ranges = mount.view.ranges.lock();
        assert!(ranges.iter().any(|(_, len)| *len == MIB), "{ranges:?}");
        assert!(ranges.len() < 40, "{} READs for 16 MiB", ranges.len());
    }
}

#[test]
fn the_kernel_reads_ahead_as_far_as_the_view_wants() {
    if !fuse() {
        return;
    }
    let mut view = MemoryView::on_file(true, Vec::new());
    view.read_ahead = Some(2 * MIB as u32);
    let mount = Mount::on_file(view);
    let device = kernel::mounted_at(&mount.path(FILE).canonicalize().unwrap()).unwrap().unwrap().device;
    let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if OpenOptions::new().write(true).open(&path).is_err() {
        return eprintln!("SKIPPED: {path} cannot be written here");
    }
    assert_eq!(fs::read_to_string(path).unwrap().trim(), "2048");
}

#[test]
fn two_readers_and_a_mapping_see_the_same() {
    if !fuse() {
        return;
    }
    in_time("readers", || {
        let bytes = content(8 * MIB + 123);
        let mount = Mount::on_file(MemoryView::on_file(false, bytes.clone()));
        let path = mount.path(FILE);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(fs::read(&path).unwrap() == bytes));
            scope.spawn(|| {
                let file = File::open(&path).unwrap();
                let mut piece = vec![0; 10_007];
                for start in (0..bytes.len() - piece.len()).step_by(7919).rev() {
                    file.read_exact_at(&mut piece, start as u64).unwrap();
                    assert!(piece == bytes[start..start + piece.len()], "at {start}");
                }
            });
            scope.spawn(|| assert!(Map::new(&File::open(&path).unwrap()).bytes() == bytes));
        });
    });
}

#[test]
fn a_mapping_sees_what_is_written_and_what_is_taken_back() {
    if !fuse() {
        return;
    }
    in_time("a mapping and a writer", || {
        let mut bytes = content(MIB);
        let mount = Mount::on_file(MemoryView::on_file(false, bytes.clone()));
        let path = mount.path(FILE);
        let map = Map::new(&File::open(&path).unwrap());
        for round in 0..50 {
            assert!(map.bytes() == bytes);
            let file = open_rw(&path);
            bytes[500_000..500_010].fill(round);
            file.write_all_at(&[round; 10], 500_000).unwrap();
            assert!(map.bytes() == bytes);
            close(file).unwrap();
            let file = open_rw(&path);
            file.write_all_at(b"BAD", 0).unwrap();
            file.write_all_at(&[round; 100], 900_000).unwrap();
            assert!(map.bytes().starts_with(b"BAD"));
            assert_eq!(errno(close(file)), libc::EINVAL);
            assert!(map.bytes() == bytes, "round {round}: the old bytes again");
            assert!(fs::read(&path).unwrap() == bytes);
        }
    });
}

#[test]
fn a_refused_close_gives_back_length_and_bytes() {
    if !fuse() {
        return;
    }
    let bytes = content(300_000);
    let mount = Mount::on_file(MemoryView::on_file(false, bytes.clone()));
    let path = mount.path(FILE);
    let reader = File::open(&path).unwrap();
    for round in 0..100 {
        let mut file = match round % 3 {
            // Shorter, longer, and of the same length.
            0 => File::create(&path).unwrap(),
            1 => {
                let file = open_rw(&path);
                file.write_all_at(&[7; 5000], 400_000).unwrap();
                file
            }
            _ => open_rw(&path),
        };
        file.write_all(b"BAD").unwrap();
        let len = file.metadata().unwrap().len();
        assert_eq!(fs::metadata(&path).unwrap().len(), len);
        assert_eq!(errno(close(file)), libc::EINVAL);
        assert_eq!(fs::metadata(&path).unwrap().len(), 300_000, "round {round}");
        assert!(fs::read(&path).unwrap() == bytes, "round {round}");
        let mut held = vec![0; 300_001];
        assert_eq!(reader.read_at(&mut held, 299_000).unwrap(), 1000, "by who had it open before");
        assert!(held[..1000] == bytes[299_000..]);
    }
}

#[test]
fn it_is_cut_and_lengthened() {
    if !fuse() {
        return;
    }
    let bytes = content(100_000);
    let mount = Mount::on_file(MemoryView::on_file(false, bytes.clone()));
    let path = mount.path(FILE);
    let reader = File::open(&path).unwrap();
    let c_path = CString::new(path.to_str().unwrap()).unwrap();
    for len in [99_999, 50_000, 4096, 200_000, 1, 0] {
        // SAFETY: a C string that lives through the call.
        assert_eq!(unsafe { libc::truncate(c_path.as_ptr(), len) }, 0);
        let expected = mount.view.bytes(THE_FILE).unwrap();
        assert_eq!(expected.len(), len as usize);
        assert!(fs::read(&path).unwrap() == expected, "cut to {len}");
    }
    fs::write(&path, &bytes).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 100_000);
    // A file that is cut while it is open, and one that is cut by its opening.
    let file = open_rw(&path);
    file.set_len(10).unwrap();
    assert_eq!(fs::read(&path).unwrap(), &bytes[..10]);
    drop(file);
    let mut file = File::create(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    file.write_all(b"other").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"other");
    close(file).unwrap();
    assert_eq!(mount.view.bytes(THE_FILE).unwrap(), b"other");
}

#[test]
fn only_the_range_that_changed_is_forgotten() {
    if !fuse() {
        return;
    }
    const PAGE: usize = 4096;
    let old = content(64 * PAGE);
    let mount = Mount::on_file(MemoryView::on_file(false, old.clone()));
    assert!(mount.read(FILE).unwrap() == old);
    // All of it has changed, and the kernel is told of 100 bytes in the fourth page, and of the last two.
    let new: Vec<u8> = old.iter().map(|byte| !byte).collect();
    mount.view.set(THE_FILE, new.clone());
    let end = old.len() as u64;
    let told = [(3 * PAGE as u64 + 7, 100), (end - 2 * PAGE as u64, u64::MAX), (0, 0)];
    *mount.view.stale.lock() = told.iter().map(|(from, len)| Invalidation::Range(ROOT, *from, *len)).collect();
    File::open(mount.path(FILE)).unwrap().sync_all().unwrap(); // which wakes the view
    let mut expected = old.clone();
    for page in [3, 62, 63] {
        expected[page * PAGE..][..PAGE].copy_from_slice(&new[page * PAGE..][..PAGE]);
    }
    eventually("the ranges are forgotten", || mount.read(FILE).unwrap() == expected);
}

/// The kernel gives a mount's id and device number to the next one at once, which may be of the same SOURCE at the same place.
#[test]
fn a_mount_that_was_taken_away_unmounts_no_other() {
    if !fuse() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let point = dir.path().canonicalize().unwrap();
    let request = kernel::MountRequest {
        point: point.clone(),
        fsname: "the same".into(),
        flags: 0,
        access: kernel::Access::Owner,
        auto_unmount: false,
        default_permissions: true,
    };
    let (first, device) = kernel::Mountpoint::mount(&request).unwrap();
    let ours = kernel::mounted_at(&point).unwrap().unwrap();
    kernel::unmount(&point, true).unwrap();
    drop(device);
    let (second, device) = kernel::Mountpoint::mount(&request).unwrap();
    let theirs = kernel::mounted_at(&point).unwrap().unwrap();
    first.unmount(true).unwrap();
    assert!(kernel::mounted_at(&point).unwrap().is_some(), "{} {}, then {} {}", ours.id, ours.device, theirs.id, theirs.device);
    second.unmount(true).unwrap();
    assert!(kernel::mounted_at(&point).unwrap().is_none());
    drop(device);
}
