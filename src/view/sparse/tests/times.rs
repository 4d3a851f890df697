//! Times of chunk files, from one mount to the next.

use std::fs::{File, FileTimes};
use std::time::Duration;

use super::*;
use crate::store::times::Records;

const HOUR: Duration = Duration::from_secs(3600);

impl Mount {
    /// A frame of three chunks that is a day old, in a mount that keeps times.
    fn aged() -> Mount {
        let mut mount = Mount::of(&[full(1), full(2), full(3)], CHUNKSIZE);
        mount.view.take().unwrap().shutdown().unwrap();
        mount.set_mtime(SystemTime::now() - 24 * HOUR);
        mount.mount_keeping(false);
        mount
    }

    fn set_mtime(&self, time: SystemTime) {
        File::options().write(true).open(self.path()).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
    }

    fn records(&self) -> Records {
        Records::below(&self.dir.path().join("cache"))
    }

    fn mount_keeping(&mut self, read_only: bool) {
        let options = OpenOptions { read_only, hold_staged: !read_only, ..OpenOptions::default() };
        let store = CframeStore::open(&self.path(), options).unwrap();
        self.view = Some(SparseView::new(Arc::new(store), read_only).unwrap().keeping_times(self.records()));
    }

    fn again(&mut self) {
        self.unmount();
        self.mount_keeping(false);
    }

    /// The daemon is killed.
    fn kill(&mut self) {
        self.view = None;
    }

    fn time(&self, id: u32) -> SystemTime {
        self.view().lookup(ROOT, OsStr::new(&ChunkId(id).file_name())).unwrap().meta.mtime
    }

    fn times(&self, count: u32) -> Vec<SystemTime> {
        (0..count).map(|id| self.time(id)).collect()
    }

    fn set_time(&self, name: &str, time: SystemTime) {
        let set = SetAttr { mtime: Some(time), ..SetAttr::default() };
        self.view().setattr(self.ino(name).unwrap(), None, set, &mut Vec::new()).unwrap();
    }

    fn source_mtime(&self) -> SystemTime {
        std::fs::metadata(self.path()).unwrap().modified().unwrap()
    }
}

#[test]
fn unchanged_chunks_keep_their_times_from_mount_to_mount() {
    let mut mount = Mount::aged();
    let old = mount.time(0);
    mount.cp("00000001.chunk", &chunk(9, CHUNKSIZE)).unwrap();
    let new = mount.time(1);
    assert!(new > old + HOUR);
    for _ in 0..3 {
        mount.again();
        assert_eq!(mount.times(3), [old, new, old]);
    }
    // One after the other, each in a mount of its own.
    mount.cp("00000002.chunk", &chunk(8, CHUNKSIZE)).unwrap();
    mount.cp("00000003.chunk", &chunk(7, CHUNKSIZE)).unwrap();
    mount.sync();
    let times = mount.times(4);
    mount.again();
    assert_eq!(mount.times(4), times);
    assert_eq!(times[..2], [old, new]);
    mount.unmount();
    mount.mount_keeping(true);
    assert_eq!(mount.times(4), times);
    // The index is SOURCE's as ever.
    let index = mount.view().lookup(ROOT, OsStr::new("chunks.b2frame")).unwrap();
    assert_eq!(index.meta.mtime, mount.source_mtime());
}

#[test]
fn times_that_clients_set_are_kept() {
    let mut mount = Mount::aged();
    let old = mount.time(0);
    let theirs = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
    mount.cp(".00000001.chunk.x", &chunk(9, CHUNKSIZE)).unwrap();
    mount.set_time(".00000001.chunk.x", theirs);
    mount.mv(".00000001.chunk.x", "00000001.chunk").unwrap();
    mount.set_time("00000002.chunk", SystemTime::UNIX_EPOCH - HOUR);
    mount.again();
    assert_eq!(mount.times(3), [old, theirs, SystemTime::UNIX_EPOCH - HOUR]);
    // In a mount that only sets times as well.
    mount.set_time("00000000.chunk", theirs);
    mount.again();
    assert_eq!(mount.times(3), [theirs, theirs, SystemTime::UNIX_EPOCH - HOUR]);
}

#[test]
fn the_time_of_what_is_refused_is_not_taken() {
    let mount = Mount::aged();
    let old = mount.time(1);
    let ino = mount.ino("00000001.chunk").unwrap();
    let mode = OpenMode { read: false, write: true, truncate: true, drop_privileges: false };
    let handle = mount.view().open(ino, mode).unwrap().handle;
    mount.view().write(handle, 0, b"no chunk").unwrap();
    let theirs = SystemTime::UNIX_EPOCH + HOUR;
    mount.set_time("00000001.chunk", theirs);
    assert_eq!(mount.time(1), theirs);
    assert_eq!(errno(mount.view().flush(handle, &mut Vec::new())), libc::EINVAL);
    mount.view().release(handle, &mut Vec::new());
    assert_eq!(mount.time(1), old);
    assert_eq!(mount.read("00000001.chunk"), chunk(2, CHUNKSIZE));
}

#[test]
fn of_a_source_that_anything_has_happened_to_nothing_is_known() {
    type Deed = fn(&Mount);
    let deeds: [Deed; 5] = [
        |mount| mount.set_mtime(SystemTime::now()),
        // To the last nanosecond what it was: not so its ctime.
        |mount| mount.set_mtime(mount.source_mtime()),
        // As the library replaces a chunk by one of its length, and a program that gives the file its time back.
        |mount| {
            let before = mount.source_mtime();
            let mut bytes = std::fs::read(mount.path()).unwrap();
            let (old, new) = (chunk(3, CHUNKSIZE), chunk(6, CHUNKSIZE));
            let at = bytes.windows(old.len()).position(|part| part == old).unwrap();
            bytes[at..at + new.len()].copy_from_slice(&new);
            std::os::unix::fs::FileExt::write_all_at(&File::options().write(true).open(mount.path()).unwrap(), &bytes, 0)
                .unwrap();
            mount.set_mtime(before);
        },
        |mount| {
            let beside = mount.dir.path().join("beside");
            std::fs::copy(mount.path(), &beside).unwrap();
            std::fs::rename(beside, mount.path()).unwrap();
        },
        |mount| std::fs::remove_dir_all(mount.dir.path().join("cache")).unwrap(),
    ];
    for (n, deed) in deeds.into_iter().enumerate() {
        let mut mount = Mount::aged();
        mount.cp("00000001.chunk", &chunk(9, CHUNKSIZE)).unwrap();
        mount.unmount();
        deed(&mount);
        mount.mount_keeping(false);
        assert_eq!(mount.times(3), [mount.source_mtime(); 3], "deed {n}");
        // From here on they are kept again.
        let old = mount.source_mtime();
        mount.cp("00000000.chunk", &chunk(8, CHUNKSIZE)).unwrap();
        mount.again();
        assert_eq!(mount.times(3)[1..], [old; 2], "deed {n}");
    }
}

#[test]
fn after_a_kill_nothing_is_known_but_what_was_recorded_since_the_last_commit() {
    let mut mount = Mount::aged();
    let old = mount.time(0);
    mount.cp("00000001.chunk", &chunk(9, CHUNKSIZE)).unwrap();
    mount.sync();
    let new = mount.time(1);
    let begun = Instant::now();
    let tick = |mount: &Mount, after| mount.view().tick(begun + Duration::from_secs(after), &mut Vec::new());
    let due = tick(&mount, 2).unwrap();
    assert!(due <= begun + Duration::from_secs(20), "it is made soon when nothing happens");
    // A record is made of a state only once the clock of the file's times has gone on.
    while mount.source_mtime().elapsed().unwrap() < Duration::from_millis(30) {
        std::thread::yield_now();
    }
    tick(&mount, 60);
    mount.kill();
    mount.mount_keeping(false);
    assert_eq!(mount.times(3), [old, new, old]);
    // This one is not recorded.
    mount.cp("00000002.chunk", &chunk(8, CHUNKSIZE)).unwrap();
    mount.sync();
    mount.kill();
    mount.mount_keeping(false);
    assert_eq!(mount.times(3), [mount.source_mtime(); 3]);
    assert!(mount.source_mtime() > new);
}

/// Chunks of one length, so that nothing but the time tells a tool that a name has another content.
#[test]
fn a_name_that_gets_another_chunk_has_another_time() {
    let mut mount = Mount::aged();
    let old = mount.times(3);
    // As the library inserts: before all others, with a new id.
    mount.cp("00000003.chunk", &chunk(7, CHUNKSIZE)).unwrap();
    let stored = |ids: &[u32]| ids.iter().map(|id| IndexEntry::Stored(ChunkId(*id))).collect::<Vec<_>>();
    mount.cp("chunks.b2frame", &index_file(&stored(&[0, 3, 2, 1]), CHUNKSIZE)).unwrap();
    mount.sync();
    let inserted = mount.time(3);
    mount.again();
    assert_eq!(mount.committed(), [full(1), full(7), full(3), full(2)]);
    let now = mount.times(4);
    assert_eq!((now[0], now[2]), (old[0], old[2]), "these are where they were");
    assert!(now[1] > inserted && now[3] > inserted, "{now:?}");
    mount.again();
    assert_eq!(mount.times(4), now);
}

#[test]
fn moving_chunks_in_source_changes_no_time() {
    let mut mount = Mount::of(&(0..40).map(full).collect::<Vec<_>>(), CHUNKSIZE);
    mount.view.take().unwrap().shutdown().unwrap();
    mount.set_mtime(SystemTime::now() - 24 * HOUR);
    mount.mount_keeping(false);
    let old = mount.time(0);
    // Most go, and the file gets short: what is left has to move.
    mount
        .cp(
            "chunks.b2frame",
            &index_file(&(0..4).chain(36..40).map(|id| IndexEntry::Stored(ChunkId(id))).collect::<Vec<_>>(), CHUNKSIZE),
        )
        .unwrap();
    for round in 0..20 {
        mount.cp("00000001.chunk", &chunk(100 + round, CHUNKSIZE)).unwrap();
        mount.sync();
    }
    let new = mount.time(1);
    mount.again();
    assert_eq!(mount.times(4), [old, new, old, old]);
    assert!(mount.times(8)[4..].iter().all(|time| *time > new), "other chunks have these names now");
}

#[test]
fn a_record_that_is_garbage_or_of_another_frame_is_not_used() {
    let mut mount = Mount::aged();
    mount.cp("00000001.chunk", &chunk(9, CHUNKSIZE)).unwrap();
    mount.unmount();
    let at = mount.dir.path().join("cache/b2fuse/times");
    let record = std::fs::read_dir(at).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(&record).unwrap();
    for bad in [&bytes[..bytes.len() - 1], b"", &[0; 5000]] {
        std::fs::write(&record, bad).unwrap();
        mount.mount_keeping(false);
        assert_eq!(mount.times(3), [mount.source_mtime(); 3]);
        mount.unmount();
    }
    // With as many chunks as it says, it is.
    std::fs::write(&record, bytes).unwrap();
    mount.mount_keeping(false);
    assert_ne!(mount.time(0), mount.source_mtime());
}
