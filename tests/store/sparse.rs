//! What only sparse frames have: a directory, names, and files that may be missing.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use b2fuse::format::index_file::IndexFile;
use b2fuse::format::trailer::Trailer;
use b2fuse::format::{ChunkId, IndexEntry, Special};
use b2fuse::store::{ChunkKey, FrameImage, FrameStore, LocalStore, OpenOptions, SframeStore, SourceStore, StoreError};

use crate::driver::Store;
use crate::frames::{chunk, content, data, dir_for_many, header, image, read, try_content, wants};

type Entry = IndexEntry<ChunkId>;

fn read_only() -> OpenOptions {
    OpenOptions { read_only: true, ..OpenOptions::default() }
}

/// Which chunk files a daemon has made, while it writes.
const RECORD: &str = ".b2fuse-ids.tmp";

fn name(id: u32) -> String {
    format!("{id:08X}.chunk")
}

/// An sframe with these entries, and a chunk for each id that is `chunk(100 + id % 1000, id)`.
fn frame(entries: &[Entry]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("frame");
    std::fs::create_dir(&path).unwrap();
    let index =
        IndexFile { header: header(entries.len()), trailer: Trailer::encode(&[]).unwrap(), entries: Arc::new(entries.to_vec()) };
    std::fs::write(path.join("chunks.b2frame"), { index }.make_file().unwrap()).unwrap();
    for id in entries.iter().filter_map(|entry| entry.stored()) {
        std::fs::write(path.join(name(id.0)), of(id.0)).unwrap();
    }
    (dir, path)
}

fn of(id: u32) -> Vec<u8> {
    chunk(100 + id % 1000, id.into())
}

fn stored(ids: impl IntoIterator<Item = u32>) -> Vec<Entry> {
    ids.into_iter().map(|id| IndexEntry::Stored(ChunkId(id))).collect()
}

fn commit(store: &SframeStore, entries: Vec<IndexEntry<ChunkKey>>) -> Result<(), StoreError> {
    let old = store.committed().unwrap();
    let mut header = old.header.clone();
    header.set_nbytes(entries.len() as u64 * 10);
    store.commit(store.enter(), FrameImage { header, trailer: old.trailer.clone(), entries: Arc::new(entries) })
}

/// The names in a directory.
fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// How the index file names its chunks, read from the file.
fn ids(path: &Path) -> Vec<Entry> {
    IndexFile::parse(&std::fs::read(path.join("chunks.b2frame")).unwrap()).unwrap().entries.to_vec()
}

#[test]
fn real_frames_read_as_they_are() {
    for path in data("sframe") {
        let store = SframeStore::open(&path, read_only()).unwrap();
        let file = |entry: &Entry| entry.map(|id| std::fs::read(path.join(name(id.0))).unwrap());
        let expected: Vec<_> = ids(&path).iter().map(file).collect();
        assert!(content(&store) == expected, "{}", path.display());
        let entries = store.committed().unwrap().entries.to_vec();
        let lens = (&store as &dyn FrameStore).chunk_lens(&store.enter(), &entries).unwrap();
        let expected: Vec<_> =
            expected.iter().map(|entry| entry.clone().stored().map_or(0, |bytes| bytes.len() as u32)).collect();
        assert_eq!(lens, expected);
        assert!(!store.changed_outside().unwrap());
    }
}

#[test]
fn source_is_found_by_any_of_its_names() {
    let (dir, path) = frame(&stored(0..3));
    let link = dir.path().join("link.b2nd");
    symlink("frame", &link).unwrap();
    for name in [link.clone(), link.join(""), path.join(""), path.join("."), path.join("../frame")] {
        let store = SframeStore::open(&name, OpenOptions::default()).unwrap();
        assert_eq!(store.path(), name);
        let mut entries = store.committed().unwrap().entries.to_vec();
        entries.rotate_left(1);
        commit(&store, entries).unwrap();
        assert!(!store.changed_outside().unwrap());
        let lost = store.save_lost("x", &b"lost".as_slice()).unwrap();
        assert_eq!(lost.parent().unwrap(), dir.path().canonicalize().unwrap().join("frame.lost"), "beside the directory itself");
        store.close().unwrap();
    }
    assert!(link.is_symlink());
    assert_eq!(ids(&path), stored([2, 0, 1]), "five times one further");
}

#[test]
fn ids_in_any_order_with_gaps_and_twice() {
    let mut entries = stored([7, 0xdead_beef, 2, 7]);
    entries.insert(1, IndexEntry::Special(Special::Nan));
    let (_dir, path) = frame(&entries);
    std::fs::write(path.join(name(0)), b"an orphan").unwrap();
    std::fs::write(path.join(".b2lock"), [0; 16]).unwrap();
    let store = SframeStore::open(&path, OpenOptions::default()).unwrap();
    let expected: Vec<_> = entries.iter().map(|entry| entry.map(|id| of(id.0))).collect();
    assert!(content(&store) == expected);
    // New chunks take the lowest ids of which there is no file, and the orphan stays what it is.
    let old = store.committed().unwrap().entries.to_vec();
    let new = store.stage(&chunk(50, 1)).unwrap();
    let mut changed = old.clone();
    changed[0] = IndexEntry::Stored(new);
    commit(&store, changed.clone()).unwrap();
    assert_eq!(ids(&path)[0], IndexEntry::Stored(ChunkId(1)));
    assert!(path.join(name(7)).exists(), "it is still named once");
    changed.truncate(4);
    commit(&store, changed.clone()).unwrap();
    store.sync().unwrap();
    assert!(!path.join(name(7)).exists());
    let sum: usize = [chunk(50, 1), of(0xdead_beef), of(2)].iter().map(Vec::len).sum();
    assert!(sum < 0xdead_beef);
    let header = store.committed().unwrap().header.clone();
    assert_eq!(header.cbytes(), 0xdead_beef + 32, "C-Blosc2 opens no frame with an id beyond it");
    changed.retain(|entry| *entry != IndexEntry::Stored(ChunkKey::new(0xdead_beef)));
    commit(&store, changed).unwrap();
    assert_eq!(store.committed().unwrap().header.cbytes() as usize, sum - of(0xdead_beef).len());
    store.close().unwrap();
    assert_eq!(names(&path), [".b2lock", "00000000.chunk", "00000001.chunk", "00000002.chunk", "chunks.b2frame"]);
    assert_eq!(std::fs::read(path.join(name(0))).unwrap(), b"an orphan");
    assert_eq!(ids(&path).len(), 3);
}

#[test]
fn what_is_missing_or_damaged_is_named_in_one_line() {
    type Harm = fn(&Path);
    let cases: [(Harm, &str); 12] = [
        (
            |path| std::fs::remove_file(path.join(name(1))).unwrap(),
            "1 of 20 chunk files missing or damaged: 00000001.chunk is missing",
        ),
        (|path| std::fs::write(path.join(name(1)), b"").unwrap(), "00000001.chunk is empty"),
        (|path| std::fs::write(path.join(name(1)), &of(1)[..15]).unwrap(), "00000001.chunk has 15 bytes, fewer"),
        (|path| std::fs::write(path.join(name(1)), &of(1)[..31]).unwrap(), "00000001.chunk is no chunk (chunk: header"),
        (
            |path| std::fs::write(path.join(name(1)), &of(1)[..100]).unwrap(),
            "00000001.chunk is no chunk (chunk: cbytes at byte 12: found 133, expected at most the file's length of 100)",
        ),
        (|path| std::fs::write(path.join(name(1)), [0xff; 100]).unwrap(), "00000001.chunk is no chunk ("),
        (
            |path| std::fs::File::create(path.join(name(1))).unwrap().set_len(1 << 31).unwrap(),
            "00000001.chunk has 2147483648 bytes, more than a chunk can have",
        ),
        (
            |path| {
                std::fs::remove_file(path.join(name(1))).unwrap();
                std::fs::create_dir(path.join(name(1))).unwrap();
            },
            "00000001.chunk is a directory",
        ),
        (
            |path| {
                std::fs::remove_file(path.join(name(1))).unwrap();
                let fifo = std::ffi::CString::new(path.join(name(1)).to_str().unwrap()).unwrap();
                // SAFETY: the name ends with a zero byte.
                assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o666) }, 0);
            },
            "00000001.chunk is no regular file",
        ),
        (
            |path| {
                std::fs::remove_file(path.join(name(1))).unwrap();
                symlink(name(2), path.join(name(1))).unwrap();
            },
            "00000001.chunk cannot be read: it is a symbolic link, which is not followed",
        ),
        (
            |path| (2..18).for_each(|id| std::fs::remove_file(path.join(name(id))).unwrap()),
            "16 of 20 chunk files missing or damaged: 00000002.chunk is missing; 00000003.chunk",
        ),
        (
            |path| (2..18).for_each(|id| std::fs::remove_file(path.join(name(id))).unwrap()),
            "00000009.chunk is missing; and 8 more",
        ),
    ];
    for (harm, words) in cases {
        let (_dir, path) = frame(&stored(0..20));
        harm(&path);
        let before = names(&path);
        for options in [read_only(), OpenOptions::default()] {
            let Err(error) = SframeStore::open(&path, options) else { panic!("{words}: opened") };
            let line = error.to_string();
            assert!(line.starts_with(&format!("{}: ", path.display())) && line.contains(words), "{words} is not in: {line}");
            assert!(!line.contains('\n'), "{line}");
        }
        assert_eq!(names(&path), before);
    }
}

#[test]
fn what_is_no_frame_is_refused_in_one_line() {
    let (dir, good) = frame(&stored(0..3));
    let index = std::fs::read(good.join("chunks.b2frame")).unwrap();
    let cframe = std::fs::read(&data("cframe")[0]).unwrap();
    let path = dir.path().join("bad");
    let cases: [(Option<&[u8]>, &str); 5] = [
        (None, "is a directory without chunks.b2frame, so not a sparse frame"),
        (Some(b""), "chunks.b2frame: header at byte 0: found 0 bytes"),
        (Some(&index[..index.len() - 1]), "chunks.b2frame: header: frame_len at byte 16"),
        (Some(&cframe), "chunks.b2frame: is a contiguous frame, not the index file of a sparse one"),
        (Some(&[0; 500]), "chunks.b2frame: header"),
    ];
    for (bytes, words) in cases {
        std::fs::create_dir(&path).unwrap();
        if let Some(bytes) = bytes {
            std::fs::write(path.join("chunks.b2frame"), bytes).unwrap();
        }
        let line = SframeStore::open(&path, OpenOptions::default()).err().unwrap().to_string();
        assert!(line.starts_with(path.to_str().unwrap()) && line.contains(words), "{words} is not in: {line}");
        std::fs::remove_dir_all(&path).unwrap();
    }
    assert!(SframeStore::open(&good.join("chunks.b2frame"), read_only()).is_err(), "a file is no sparse frame");
}

/// A store that follows links, for reading.
fn following() -> OpenOptions {
    OpenOptions { follow_links: true, ..read_only() }
}

#[test]
fn links_are_followed_where_that_is_asked_for_and_nobody_else_may_write() {
    let (dir, path) = frame(&stored(0..3));
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    for file in [name(1), "chunks.b2frame".to_owned()] {
        std::fs::rename(path.join(&file), elsewhere.join(&file)).unwrap();
        symlink(Path::new("../elsewhere").join(&file), path.join(&file)).unwrap();
        for options in [read_only(), OpenOptions::default(), OpenOptions { follow_links: true, ..OpenOptions::default() }] {
            let error = SframeStore::open(&path, options).err().unwrap();
            assert!(error.to_string().contains("it is a symbolic link, which is not followed"), "{error}");
        }
        let store = SframeStore::open(&path, following()).unwrap();
        let entries = store.committed().unwrap().entries.to_vec();
        assert!(read(&store, entries[1].stored().unwrap()) == of(1));
        for mode in [0o775, 0o757] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(SframeStore::open(&path, following()).is_err(), "others may write the directory");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    // A link on the way is somebody's as well.
    std::fs::rename(&elsewhere, dir.path().join("moved")).unwrap();
    symlink("moved", &elsewhere).unwrap();
    assert!(SframeStore::open(&path, following()).is_err());
}

#[test]
fn a_link_put_in_place_of_a_chunk_file_is_not_read() {
    let (dir, path) = frame(&stored(0..3));
    let secret = dir.path().join("secret");
    std::fs::write(&secret, of(2)).unwrap();
    let store = SframeStore::open(&path, read_only()).unwrap();
    let entries = store.committed().unwrap().entries.to_vec();
    std::fs::remove_file(path.join(name(1))).unwrap();
    symlink(&secret, path.join(name(1))).unwrap();
    let key = entries[1].stored().unwrap();
    let mut bytes = vec![0; of(1).len()];
    let error = store.read_chunk(&store.enter(), key, bytes.len() as u32, 0, &mut bytes).unwrap_err();
    assert!(error.to_string().contains("it is a symbolic link"), "{error}");
}

#[test]
fn nothing_is_written_where_nothing_changes() {
    for path in data("sframe") {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("frame");
        SframeStore::copy(&path, &to);
        let stat = || {
            let stat = std::fs::metadata(to.join("chunks.b2frame")).unwrap();
            (stat.ino(), stat.mtime_nsec(), std::fs::metadata(&to).unwrap().mtime_nsec())
        };
        let before = stat();
        let store = SframeStore::open(&to, OpenOptions::default()).unwrap();
        let mut image = (*store.committed().unwrap()).clone();
        // As a view of the other layout has it.
        image.header.set_layout(b2fuse::format::Layout::Contiguous);
        image.header.set_cbytes(12345);
        image.header.set_frame_len(54321);
        image.entries = Arc::new(image.entries.to_vec());
        store.commit(store.enter(), image).unwrap();
        store.sync().unwrap();
        store.close().unwrap();
        assert_eq!(stat(), before, "{}", path.display());
    }
}

#[test]
fn attributes_are_kept_and_taken_over() {
    let (_dir, path) = frame(&stored(0..3));
    let index = path.join("chunks.b2frame");
    std::fs::set_permissions(&index, std::fs::Permissions::from_mode(0o640)).unwrap();
    // SAFETY: takes a number.
    let root = unsafe { libc::geteuid() } == 0;
    if root {
        std::os::unix::fs::chown(&index, Some(1234), Some(4321)).unwrap();
    }
    let store = SframeStore::open(&path, OpenOptions::default()).unwrap();
    let new = store.stage(&chunk(10, 1)).unwrap();
    let mut entries = store.committed().unwrap().entries.to_vec();
    entries.push(IndexEntry::Stored(new));
    let before = std::fs::metadata(&index).unwrap();
    commit(&store, entries).unwrap();
    for file in [index, path.join(name(3))] {
        let now = std::fs::metadata(&file).unwrap();
        assert_eq!((now.mode(), now.uid(), now.gid()), (before.mode(), before.uid(), before.gid()), "{}", file.display());
        assert_ne!(now.ino(), before.ino());
    }
}

#[test]
fn a_directory_that_may_not_be_written_to_is_refused_at_open() {
    // SAFETY: takes no arguments.
    if unsafe { libc::geteuid() } == 0 {
        let (dir, path) = frame(&stored(0..3));
        for path in [dir.path(), &path] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let as_nobody = |options| {
            let path = path.clone();
            // Of this thread only, as no library call is in between.
            let open = move || {
                // SAFETY: takes numbers.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
                SframeStore::open(&path, options).map(|store| content(&store).len()).map_err(|error| error.to_string())
            };
            std::thread::spawn(open).join().unwrap()
        };
        let error = as_nobody(OpenOptions::default()).unwrap_err();
        assert_eq!(error, format!("{}: cannot open for writing: Permission denied", path.display()));
        assert_eq!(as_nobody(read_only()), Ok(3));
    }
}

#[test]
fn a_second_writer_is_refused() {
    let (_dir, path) = frame(&stored(0..3));
    let store = SframeStore::open(&path, OpenOptions::default()).unwrap();
    assert!(matches!(SframeStore::open(&path, OpenOptions::default()), Err(StoreError::Busy { .. })));
    assert_eq!(content(&SframeStore::open(&path, read_only()).unwrap()).len(), 3);
    store.close().unwrap();
    SframeStore::open(&path, OpenOptions::default()).unwrap();
}

#[test]
fn a_reader_sees_what_others_write_once_it_is_whole() {
    let (dir, path) = frame(&stored(0..3));
    let reader = SframeStore::open(&path, read_only()).unwrap();
    let before = content(&reader);
    let writer = SframeStore::open(&path, OpenOptions::default()).unwrap();
    let old = writer.committed().unwrap().entries.to_vec();
    let new = writer.stage(&chunk(77, 5)).unwrap();
    commit(&writer, vec![old[2], IndexEntry::Stored(new), old[1]]).unwrap();
    assert!(reader.changed_outside().unwrap());
    assert!(content(&reader) == before, "not before it is asked to");
    reader.reload().unwrap();
    assert!(content(&reader) == [before[2].clone(), IndexEntry::Stored(chunk(77, 5)), before[1].clone()]);
    assert!(!reader.changed_outside().unwrap());
    drop(writer);
    // Its library rewrites a chunk in place; the index is written as well, though no byte is another.
    std::fs::write(path.join(name(1)), chunk(500, 9)).unwrap();
    let index = std::fs::read(path.join("chunks.b2frame")).unwrap();
    std::fs::write(path.join("chunks.b2frame"), &index).unwrap();
    assert!(reader.changed_outside().unwrap());
    reader.reload().unwrap();
    assert!(content(&reader)[2] == IndexEntry::Stored(chunk(500, 9)));
    // In the middle of somebody's change.
    std::fs::write(path.join("chunks.b2frame"), &index[..100]).unwrap();
    assert!(reader.changed_outside().unwrap());
    assert!(reader.reload().is_err());
    assert!(matches!(try_content(&reader), Err(StoreError::Stale { .. })));
    std::fs::write(path.join("chunks.b2frame"), &index).unwrap();
    reader.reload().unwrap();
    // Another directory under the same name.
    std::fs::rename(&path, dir.path().join("old")).unwrap();
    let (_other, other) = frame(&stored([5]));
    SframeStore::copy(&other, &path);
    // Not yet whole when it is first looked at.
    std::fs::rename(path.join("chunks.b2frame"), path.join("later")).unwrap();
    assert!(reader.changed_outside().is_err() || reader.reload().is_err());
    std::fs::rename(path.join("later"), path.join("chunks.b2frame")).unwrap();
    assert!(reader.changed_outside().unwrap());
    reader.reload().unwrap();
    assert!(content(&reader) == [IndexEntry::Stored(of(5))]);
    assert!(!reader.changed_outside().unwrap());
}

#[test]
fn what_others_have_written_is_neither_committed_over_nor_removed() {
    let (_dir, path) = frame(&stored(0..3));
    let store = SframeStore::open(&path, OpenOptions::default()).unwrap();
    let old = store.committed().unwrap().entries.to_vec();
    let new = store.stage(&chunk(77, 5)).unwrap();
    // As the library appends: it takes the same id, as it does not know of ours, and truncates the file.
    std::fs::write(path.join(name(3)), chunk(50, 9)).unwrap();
    let mut index = IndexFile::parse(&std::fs::read(path.join("chunks.b2frame")).unwrap()).unwrap();
    index.entries = Arc::new(stored(0..4));
    index.header.set_nbytes(40);
    std::fs::write(path.join("chunks.b2frame"), index.make_file().unwrap()).unwrap();
    assert!(store.changed_outside().unwrap());
    let error = commit(&store, vec![old[0], IndexEntry::Stored(new)]).unwrap_err();
    assert!(matches!(error, StoreError::Stale { .. }), "{error}");
    store.discard(new);
    store.close().unwrap();
    let now = SframeStore::open(&path, read_only()).unwrap();
    assert!(content(&now)[3] == IndexEntry::Stored(chunk(50, 9)));
}

#[test]
fn what_was_staged_for_nothing_goes() {
    let (_dir, path) = frame(&stored(0..3));
    let before = names(&path);
    for close in [true, false] {
        let store = SframeStore::open(&path, OpenOptions::default()).unwrap();
        let keys: Vec<_> = (0..40).map(|i| store.stage(&chunk(100, i)).unwrap()).collect();
        assert_eq!(names(&path).len(), 45, "and the record of what is ours");
        keys[..20].iter().for_each(|key| store.discard(*key));
        assert_eq!(names(&path).len(), 25, "given back");
        // Its id is given out again, but its key is not.
        let again = store.stage(&chunk(100, 1)).unwrap();
        assert!(!keys.contains(&again));
        store.discard(keys[0]);
        assert!(read(&store, again) == chunk(100, 1), "an old key stands for nothing new");
        if close {
            store.close().unwrap();
        }
        drop(store);
        assert_eq!(names(&path), before);
    }
}

#[test]
fn what_a_killed_process_left_is_in_nobodys_way() {
    let (_dir, path) = frame(&stored(0..3));
    std::fs::write(path.join(".b2fuse-chunks.tmp"), b"unfinished").unwrap();
    std::fs::write(path.join(name(3)), b"unfinished").unwrap();
    let store = SframeStore::open(&path, OpenOptions::default()).unwrap();
    let new = store.stage(&chunk(77, 5)).unwrap();
    let mut entries = store.committed().unwrap().entries.to_vec();
    entries.push(IndexEntry::Stored(new));
    commit(&store, entries).unwrap();
    store.close().unwrap();
    assert_eq!(content(&SframeStore::open(&path, read_only()).unwrap())[3], IndexEntry::Stored(chunk(77, 5)));
    assert_eq!(names(&path).len(), 6, "the index, four chunks and an orphan");
}

/// Writes a file as it was a while ago.
fn write_earlier(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    let earlier = std::time::SystemTime::now() - Duration::from_secs(10);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(earlier).unwrap();
}

/// An entry of a record: of a file as it is now, or of one that is being made.
fn entry(id: u32, path: Option<&Path>) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&id.to_le_bytes());
    if let Some(stat) = path.map(|path| path.metadata().unwrap()) {
        bytes[4..8].copy_from_slice(&(stat.len() as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&stat.ino().to_le_bytes());
        bytes[16..24].copy_from_slice(&stat.mtime().to_le_bytes());
        bytes[24..28].copy_from_slice(&(stat.mtime_nsec() as u32).to_le_bytes());
    }
    let check = bytes[..28].iter().fold(0x811C_9DC5u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    bytes[28..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// A daemon that was killed wrote down which files it had made and dropped. Of those the ones go that no index names and that nobody has
/// written since, and nothing else.
#[test]
fn what_a_killed_process_noted_as_its_own_goes() {
    let (dir, path) = frame(&stored(0..3));
    let (file, temp) = (|id: u32| path.join(name(id)), |id: u32| path.join(format!(".b2fuse-{id:08X}.tmp")));
    for id in [3, 4, 5, 6, 7, 11, 12, 14] {
        write_earlier(&file(id), b"dropped, or staged");
    }
    write_earlier(&temp(15), b"written, and without a name");
    std::fs::write(temp(16), b"unfin").unwrap();
    write_earlier(&temp(17), b"no entry says so");
    std::fs::create_dir(file(8)).unwrap();
    let elsewhere = dir.path().join("elsewhere");
    std::fs::write(&elsewhere, b"elsewhere").unwrap();
    symlink(&elsewhere, file(9)).unwrap();
    // 5 is not noted; the entry of 7 is torn; 10 is not there, nor is 13.
    let noted = [1u32, 3, 4, 6, 8, 11, 12, 14];
    let mut record: Vec<u8> = noted.iter().flat_map(|id| entry(*id, Some(&file(*id)))).collect();
    record.extend(entry(9, Some(&elsewhere)));
    record.extend(entry(10, Some(&file(5))));
    record.extend([entry(13, None), entry(15, Some(&temp(15))), entry(16, None)].as_flattened());
    record.extend(&entry(7, Some(&file(7)))[..31]);
    std::fs::write(path.join(RECORD), record).unwrap();
    // The library has these ids from its index, which names none of them, and writes their files before another that does.
    std::fs::write(file(11), b"of the same length").unwrap();
    std::fs::write(file(12), b"a chunk of the library's").unwrap();
    let another = path.join("another");
    write_earlier(&another, b"dropped, or staged");
    std::fs::rename(&another, file(14)).unwrap();
    std::fs::write(file(13), b"where one was to be made").unwrap();

    let before = names(&path);
    SframeStore::open(&path, OpenOptions::default()).unwrap().close().unwrap();
    assert_eq!(names(&path), before, "who writes nothing removes nothing");
    let store = SframeStore::open(&path, OpenOptions::default()).unwrap();
    let expected = content(&store);
    let new = store.stage(&chunk(77, 5)).unwrap();
    assert!(content(&store) == expected);
    store.discard(new);
    store.close().unwrap();
    let left = [".b2fuse-00000011.tmp".to_owned()].into_iter();
    let left = left.chain([0, 1, 2, 5, 7, 8, 9, 11, 12, 13, 14].map(name)).chain(["chunks.b2frame".to_owned()]);
    assert_eq!(names(&path), left.collect::<Vec<_>>());
    assert_eq!(std::fs::read(elsewhere).unwrap(), b"elsewhere");
    assert_eq!(std::fs::read(file(11)).unwrap(), b"of the same length");
}

#[test]
fn a_record_that_is_none_is_in_nobodys_way() {
    for kind in 0..4 {
        let (dir, path) = frame(&stored(0..3));
        std::fs::write(path.join(name(3)), b"an orphan").unwrap();
        let elsewhere = dir.path().join("elsewhere");
        std::fs::write(&elsewhere, b"elsewhere").unwrap();
        match kind {
            0 => std::fs::write(path.join(RECORD), [0xff; 1000]).unwrap(),
            1 => symlink(&elsewhere, path.join(RECORD)).unwrap(),
            2 => std::fs::hard_link(&elsewhere, path.join(RECORD)).unwrap(),
            _ => std::fs::File::create(path.join(RECORD)).unwrap().set_len(1 << 40).unwrap(),
        }
        let store = SframeStore::open(&path, OpenOptions::default()).unwrap();
        let new = store.stage(&chunk(77, 5)).unwrap();
        let mut entries = store.committed().unwrap().entries.to_vec();
        entries.push(IndexEntry::Stored(new));
        commit(&store, entries).unwrap();
        store.close().unwrap();
        assert_eq!(names(&path).len(), 6, "the index, four chunks and an orphan: kind {kind}");
        assert_eq!(std::fs::read(elsewhere).unwrap(), b"elsewhere");
    }
}

#[test]
fn few_files_are_open_at_a_time() {
    let (_dir, path) = frame(&stored(0..2000));
    let here = path.canonicalize().unwrap();
    let open = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        fds.filter(|file| file.starts_with(&here)).count()
    };
    let store = SframeStore::open(&path, OpenOptions::default()).unwrap();
    let keys: Vec<_> = (0..2000).map(ChunkKey::new).collect();
    let hints: Vec<_> = keys.iter().map(|key| (*key, 500)).collect();
    for part in hints.chunks(100) {
        store.prefetch(&wants(part));
        for (key, _) in part {
            assert!(read(&store, *key) == of(key.number() as u32));
        }
        assert!(open() <= 1024 + 20, "{} open files", open());
    }
    assert!(open() > 8);
    for key in &keys[..300] {
        store.discard(*key); // which is for staged ones only
    }
    commit(&store, vec![IndexEntry::Stored(keys[0])]).unwrap();
    store.sync().unwrap();
    assert_eq!(names(&path), [RECORD, &name(0), "chunks.b2frame"]);
    assert!(open() <= 8, "{} files are open that have no name any more", open());
    store.prefetch(&wants(&hints)); // nothing is there any more
    store.close().unwrap();
}

#[test]
fn a_read_that_has_begun_keeps_its_file() {
    let (_dir, path) = frame(&stored(0..3));
    let store = SframeStore::open(&path, OpenOptions::default()).unwrap();
    let old = store.committed().unwrap().entries.to_vec();
    let guard = store.enter();
    commit(&store, old[..1].to_vec()).unwrap();
    store.sync().unwrap();
    let mut bytes = vec![0; of(2).len()];
    assert_eq!(store.read_chunk(&guard, ChunkKey::new(2), bytes.len() as u32, 0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes == of(2));
    drop(guard);
    store.sync().unwrap();
    assert_eq!(names(&path), [RECORD, &name(0), "chunks.b2frame"]);
    assert!(store.chunk_header(&store.enter(), ChunkKey::new(2)).is_err());
}

#[test]
fn a_frame_of_200_000_files_opens_in_seconds() {
    const COUNT: u32 = 200_000;
    let dir = dir_for_many();
    let path = dir.path().join("many");
    let store = SframeStore::create(&path, OpenOptions::default()).unwrap();
    let keys = (0..COUNT).map(|id| IndexEntry::Stored(store.stage(&chunk(id % 100, id.into())).unwrap())).collect();
    store.commit(store.enter(), image(keys)).unwrap();
    store.close().unwrap();
    drop(store);
    let began = Instant::now();
    let store = SframeStore::open(&path, OpenOptions::default()).unwrap();
    let opened = began.elapsed();
    let entries = store.committed().unwrap().entries.to_vec();
    let lens = (&store as &dyn FrameStore).chunk_lens(&store.enter(), &entries).unwrap();
    println!("open: {opened:?}, with lengths: {:?}", began.elapsed());
    assert!(opened < Duration::from_secs(20), "{opened:?}");
    assert!((0..COUNT).zip(lens).all(|(id, len)| len == id % 100 + 32));
    // Thousands are missing, and it is told in one line.
    drop(store);
    (0..COUNT).step_by(10).for_each(|id| std::fs::remove_file(path.join(name(id))).unwrap());
    let line = SframeStore::open(&path, OpenOptions::default()).err().unwrap().to_string();
    assert!(line.ends_with("00000046.chunk is missing; and 19992 more"), "{line}");
    assert!(line.contains("20000 of 200000 chunk files missing or damaged: 00000000.chunk is missing; 0000000A.chunk"), "{line}");
}
