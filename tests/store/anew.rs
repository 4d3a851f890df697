//! A cframe that is written anew beside SOURCE, where its header cannot change in place.

use std::ffi::OsStr;

use b2fuse::format::header::{FrameHeader, HeaderFields};
use b2fuse::format::metalayer::Metalayer;
use b2fuse::format::trailer::Trailer;
use b2fuse::format::{IndexEntry, Special};
use b2fuse::store::backend::Backend;
use b2fuse::store::{CframeStore, ChunkKey, FrameStore, Result, StoreError};

use crate::disk::{Dir, Node, Op, Start, start};
use crate::driver::{Driver, NAME, create, frame_of, open};
use crate::frames::{chunk, read};
use crate::history::{History, Plan};
use crate::parsed::{Parsed, parse};

/// Why the header cannot change in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Bytes behind the first sector are others.
    Differs,
    /// It reaches into chunks.
    Grows,
    /// It becomes longer again, and the longer one before it is perhaps still on disk.
    GrowsAgain,
    /// There are no chunks any more, and the trailer reaches to where they were.
    Emptied,
    /// SOURCE does not exist yet, and the header reaches into what was staged.
    First,
}

const ALL: [Why; 5] = [Why::Differs, Why::Grows, Why::GrowsAgain, Why::Emptied, Why::First];

/// A store about to commit such a header.
struct Scene {
    start: Start,
    driver: Driver<CframeStore>,
    /// No image has them.
    pinned: Option<ChunkKey>,
    staged: ChunkKey,
}

fn with_layer(driver: &mut Driver<CframeStore>, len: usize, fill: u8) {
    let fields = HeaderFields { frame_len: 1 << 20, ..driver.header.fields() };
    let content = vec![fill; len];
    driver.header = FrameHeader::encode(&fields, &[Metalayer { name: b"long", content: &content }]).unwrap();
}

fn with_trailer(driver: &mut Driver<CframeStore>, len: usize) {
    driver.trailer = Trailer::encode(&[Metalayer { name: b"vl", content: &vec![9; len] }]).unwrap();
}

fn scene(why: Why) -> Scene {
    let dir = Dir::default();
    let start = start(&dir);
    let mut driver = Driver::new(&dir, create::<CframeStore>(&dir).unwrap(), 7, 1500);
    let first_len = if matches!(why, Why::Differs | Why::GrowsAgain) { 700 } else { 20 };
    with_layer(&mut driver, first_len, 1);
    for fill in 0..8 {
        let entry = driver.stage_bytes(chunk(2000 + 100 * fill as u32, fill)).unwrap();
        driver.entries.push(entry);
    }
    driver.entries.push(IndexEntry::Special(Special::Zeros));
    driver.entries.push(driver.entries[3]);
    let mut pinned = None;
    if why != Why::First {
        driver.commit().unwrap();
        // One whose place is low is only pinned from now on.
        let key = driver.entries[1].stored().unwrap();
        driver.store.pin(key);
        pinned = Some(key);
        driver.entries[1] = driver.stage_bytes(chunk(1000, 90)).unwrap();
        driver.commit().unwrap();
        driver.sync().unwrap();
    }
    let staged = driver.stage_bytes(chunk(1500, 91)).unwrap().stored().unwrap();
    match why {
        Why::Differs => with_layer(&mut driver, 700, 2),
        Why::Grows | Why::First => with_layer(&mut driver, 6000, 2),
        Why::GrowsAgain => {
            // Not synced: the long header may be what is on disk.
            with_layer(&mut driver, 20, 1);
            driver.commit().unwrap();
            with_layer(&mut driver, 700, 2);
        }
        Why::Emptied => {
            for entry in std::mem::take(&mut driver.entries) {
                driver.let_go(entry);
            }
            with_trailer(&mut driver, 4000);
        }
    }
    Scene { start, driver, pinned, staged }
}

impl Scene {
    fn dir(&self) -> &Dir {
        &self.driver.disk
    }

    /// What is in SOURCE by its bytes.
    fn parsed(&self) -> Parsed {
        parse(&self.dir().bytes(NAME).unwrap())
    }

    /// Of a commit that may fail.
    fn commit(&self) -> Result<()> {
        self.driver.store.commit(self.driver.store.enter(), self.driver.image())
    }

    /// Every key that is good reads as it was written.
    fn check_keys(&mut self, when: &dyn Fn() -> String) {
        self.driver.check();
        for key in self.pinned.into_iter().chain([self.staged]) {
            assert!(read(&*self.driver.store, key) == self.driver.bytes[&key], "{}: chunk {key:?}", when());
        }
    }

    /// The frame that was to be committed is there, by the store and by its bytes, and the work goes on.
    fn goes_on(&mut self, when: &dyn Fn() -> String) -> u64 {
        let frame = self.driver.frame();
        assert!(frame_of(&*self.driver.store) == frame, "{}: the store has something else", when());
        assert!(self.parsed().frame == frame, "{}: the file has something else", when());
        assert_eq!(self.dir().names(), [NAME], "{}", when());
        self.check_keys(when);
        let len = self.dir().len(NAME);
        // What was staged before is committed, and chunks are written into what is free now.
        self.driver.entries.push(IndexEntry::Stored(self.staged));
        self.driver.commit().unwrap();
        for fill in 0..4 {
            let entry = self.driver.stage_bytes(chunk(1800, 100 + fill)).unwrap();
            self.driver.entries.push(entry);
            self.driver.commit().unwrap();
            self.check_keys(when);
            assert!(self.parsed().frame == self.driver.frame(), "{}: after another commit", when());
        }
        if let Some(key) = self.pinned.take() {
            self.driver.store.unpin(key);
        }
        self.driver.close().unwrap();
        let parsed = self.parsed();
        assert!(parsed.frame == self.driver.frame(), "{}: closed", when());
        assert_eq!(self.dir().len(NAME), parsed.frame_len, "{}: closed", when());
        let tail = parsed.frame_len - parsed.index.start;
        let holes: u64 = parsed.holes().iter().map(|hole| hole.end - hole.start).sum();
        assert!(holes <= parsed.live() / 5 * 2 + tail, "{}: {holes} bytes of holes", when());
        assert_eq!(self.dir().names(), [NAME], "{}", when());
        len
    }
}

fn is_temp(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".b2fuse-")
}

/// Where in the log a new file is created, and where it gets its name.
fn new_file(log: &[Op], from: usize) -> (usize, usize) {
    let created = (from..log.len()).find(|at| matches!(&log[*at], Op::Create { name, .. } if is_temp(name)));
    let named = (from..log.len()).find(|at| matches!(&log[*at], Op::Rename { to, .. } if to == NAME));
    (created.expect("no new file"), named.expect("a new file that is not SOURCE"))
}

/// How many operations the commit has, and how long SOURCE is after it.
fn undisturbed(why: Why) -> (usize, u64) {
    let mut scene = scene(why);
    let from = scene.dir().log_len();
    scene.driver.commit().unwrap();
    let count = scene.dir().log_len() - from;
    (count, scene.goes_on(&|| format!("{why:?}")))
}

#[test]
fn a_header_that_cannot_change_in_place_is_written_with_a_new_file() {
    for why in ALL {
        let mut scene = scene(why);
        let from = scene.dir().log_len();
        scene.driver.commit().unwrap();
        let log = scene.dir().log();
        let (created, named) = new_file(&log, from);
        // Nothing of SOURCE is written, and the new file is on disk before it is SOURCE.
        let Op::Create { node: Node::File(new), .. } = &log[created] else { panic!() };
        let (new, mut written) = (Some(*new), false);
        for op in &log[created + 1..named] {
            assert!(op.file() == new, "{why:?}: {}", op.brief());
            written = matches!(op, Op::Write { .. }) || written && !matches!(op, Op::Sync { .. });
        }
        assert!(!written, "{why:?}: it is renamed before it is synced");
        assert!(matches!(log[named + 1], Op::SyncDir { .. }), "{why:?}: its name is not synced");
        scene.goes_on(&|| format!("{why:?}"));
    }
}

#[test]
fn a_power_cut_while_a_file_is_written_anew_leaves_the_old_state_or_the_new_one() {
    for why in ALL {
        let mut scene = scene(why);
        let from = scene.dir().log_len();
        scene.driver.commit().unwrap();
        let (at_once, newest) = (scene.dir().log_len(), scene.driver.states.len() - 1);
        scene.goes_on(&|| format!("{why:?}"));
        let mut history = History::new(scene.start.clone(), &scene.driver);
        history
            .judge::<CframeStore>(Plan { from, any: 6, again: 40, seed: 1 })
            .unwrap_or_else(|error| panic!("{why:?}: {error}"));
        // It is on disk when the commit returns.
        history.log.truncate(at_once);
        history.promises.retain(|promise| promise.since <= at_once);
        history.promises.push(crate::driver::Promise { since: at_once, oldest: newest, newest });
        let plan = Plan { from: at_once, any: 20, again: 0, seed: 2 };
        history.judge::<CframeStore>(plan).unwrap_or_else(|error| panic!("{why:?}, when it has returned: {error}"));
    }
}

/// Each operation fails once, and three times in a row.
#[test]
fn what_fails_while_a_file_is_written_anew_harms_nothing() {
    let (mut harmless, mut fatal) = (0, 0);
    for why in ALL {
        let (count, len) = undisturbed(why);
        for errno in [libc::ENOSPC, libc::EIO, libc::EACCES] {
            for at in 0..count {
                match fail(why, at, errno, len) {
                    true => harmless += 1,
                    false => fatal += 1,
                }
            }
        }
    }
    println!("{harmless} were answers, {fatal} ended all writing");
    assert!(harmless > 40 && fatal > 40);
}

/// Whether writing went on.
fn fail(why: Why, at: usize, errno: i32, len: u64) -> bool {
    let mut scene = scene(why);
    let old = scene.driver.store.committed().map(|_| scene.parsed().frame);
    let new = scene.driver.frame();
    let before = scene.dir().bytes(NAME);
    let from = scene.dir().log_len();
    scene.dir().fail_at(from + at, errno);
    let result = scene.commit();
    let failed = scene.dir().failed().expect("nothing failed");
    let when = || format!("{why:?}, errno {errno}, operation {at}, {}", failed.brief());
    let Err(error) = result else {
        let no_matter = matches!(failed, Op::Remove { .. } | Op::SetLen { .. });
        assert!(no_matter, "{}: nobody was told", when());
        scene.check_keys(&when);
        return true;
    };
    let is_answer = errno != libc::EIO && matches!(failed, Op::Create { .. } | Op::Write { .. } | Op::Rename { .. });
    if !is_answer {
        // Whole, whichever it is.
        let again = scene.commit();
        assert!(matches!(again, Err(StoreError::Poisoned { .. })), "{}: writing goes on", when());
        assert!(matches!(scene.driver.store.stage(&vec![0; 50]), Err(StoreError::Poisoned { .. })), "{}", when());
        let there = scene.dir().bytes(NAME).map(|bytes| parse(&bytes).frame);
        assert!(there == old || there.as_ref() == Some(&new), "{}: SOURCE is something else", when());
        scene.check_keys(&when);
        let is_renamed = matches!(failed, Op::Rename { .. });
        let left = scene.dir().names().iter().any(|name| is_temp(name));
        assert!(is_renamed || why == Why::First || !left, "{}: a temporary file is left", when());
        let _ = scene.driver.store.close();
        let there = scene.dir().bytes(NAME).map(|bytes| parse(&bytes).frame);
        assert!(there == old || there.as_ref() == Some(&new), "{}: SOURCE is something else, closed", when());
        return false;
    }
    let words = std::io::Error::from_raw_os_error(errno).to_string();
    assert!(error.to_string().contains(words.split(" (os").next().unwrap()), "{}: {error}", when());
    for again in 0..3 {
        // SOURCE is not touched at all, and no temporary file stays.
        assert!(scene.dir().bytes(NAME) == before, "{}, {again} times more: SOURCE was written", when());
        let left = scene.dir().names().iter().filter(|name| is_temp(name)).count();
        assert_eq!(left, usize::from(why == Why::First), "{}, {again} times more: a temporary file is left", when());
        scene.check_keys(&when);
        if why == Why::GrowsAgain {
            break; // now that it is synced, the header can become longer in place
        }
        // What this commit has to sync first it has synced.
        let to_sync = scene.dir().log()[from..].iter().take_while(|op| matches!(op, Op::Sync { .. })).count();
        scene.dir().fail_at(scene.dir().log_len() + at - to_sync, errno);
        assert!(scene.commit().is_err(), "{}, {again} times more: nothing failed", when());
    }
    scene.driver.commit().unwrap_or_else(|error| panic!("{}, and then {error}", when()));
    // No place that was taken for a commit that failed is lost.
    let got = scene.goes_on(&when);
    assert!(got <= len, "{}: SOURCE has {got} bytes, and without failures {len}", when());
    true
}

/// Others write SOURCE when all is ready to replace it.
#[test]
fn what_others_have_written_is_not_replaced_by_a_new_file() {
    for why in ALL {
        let scene = scene(why);
        let from = scene.dir().log_len();
        let count = undisturbed(why).0;
        let (created, named) = {
            let mut other = self::scene(why);
            other.driver.commit().unwrap();
            new_file(&other.dir().log(), from)
        };
        assert!(created < named && named < from + count);
        let theirs = b"something else";
        match why {
            Why::First => {
                let file = scene.dir().create(OsStr::new(NAME), 0).unwrap();
                file.write_at(theirs, 0).unwrap();
            }
            // While the new file is synced.
            _ => scene.dir().meddle_at(named - 1, NAME, theirs),
        }
        let names = scene.dir().names();
        let log_len = scene.dir().log_len();
        let error = scene.commit().unwrap_err();
        assert!(matches!(error, StoreError::Stale { .. }), "{why:?}: {error}");
        let log = scene.dir().log();
        assert!(
            log[log_len..].iter().any(|op| matches!(op, Op::Create { .. })) || why == Why::First,
            "{why:?}: it is not seen so early"
        );
        assert!(!log[log_len..].iter().any(|op| matches!(op, Op::Rename { .. })), "{why:?}: it is replaced");
        assert_eq!(scene.dir().names(), names, "{why:?}: a temporary file is left");
        let _ = scene.driver.store.close();
        let bytes = scene.dir().bytes(NAME).unwrap();
        assert!(bytes.starts_with(theirs), "{why:?}: what others wrote is gone");
        assert_eq!(scene.dir().names(), [NAME], "{why:?}: a temporary file is left");
        assert!(open::<CframeStore>(scene.dir(), true).is_err());
    }
}

/// No longer one is in the way of a header that became shorter and stays so: no commit after that needs another file.
#[test]
fn a_header_that_became_shorter_is_written_in_place() {
    let mut driver = scene(Why::Differs).driver;
    with_layer(&mut driver, 20, 1);
    let from = driver.disk.log_len();
    for fill in 2..5 {
        driver.commit().unwrap();
        with_layer(&mut driver, 20, fill);
        assert!(parse(&driver.disk.bytes(NAME).unwrap()).frame == frame_of(&*driver.store));
    }
    assert!(!driver.disk.log()[from..].iter().any(|op| matches!(op, Op::Create { .. })), "a new file");
}

/// They were in the header's way, so they went to other places first: those become free as well.
#[test]
fn chunks_that_are_dropped_while_they_are_moved_leave_no_hole() {
    let mut scene = scene(Why::Grows);
    with_layer(&mut scene.driver, 40_000, 2); // all chunks are in its way
    let before: Vec<_> = std::mem::take(&mut scene.driver.entries);
    for entry in before {
        scene.driver.let_go(entry);
    }
    for fill in 0..3 {
        let entry = scene.driver.stage_bytes(chunk(700, 60 + fill)).unwrap();
        scene.driver.entries.push(entry);
    }
    scene.driver.commit().unwrap();
    scene.driver.sync().unwrap();
    scene.goes_on(&|| "dropped while moved".to_owned());
}
