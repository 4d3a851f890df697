//! Frames as files, in a directory that the caller had better put in memory (`TMPDIR`).

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use b2fuse::format::IndexEntry;
use b2fuse::format::chunk;
use b2fuse::store::check::{Depth, Kind, Severity, check};
use b2fuse::store::repair::{Outlook, plan};
use b2fuse::store::inspect::Inspection;
use b2fuse::store::{Budgets, FrameImage, FrameStore, OpenOptions, Resources, open};

use crate::memory::within;

/// What opening, checking and repairing may take besides what follows from the input's length: a window of a megabyte that is read
/// at once, and an index that unfolds.
const LIMIT: usize = 600 << 20;

/// This process's own directory, empty.
pub fn emptied() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    let dir = DIR.get_or_init(|| std::env::temp_dir().join(format!("b2fuse-fuzz-{}", std::process::id())));
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir_all(dir).expect("a directory to work in");
    dir
}

/// A chunk of plainly copied data.
pub fn copied(nbytes: u32, fill: u8) -> Vec<u8> {
    let mut bytes = vec![5, 1, 0x07, 1];
    bytes.extend(nbytes.to_le_bytes());
    bytes.extend(nbytes.max(1).to_le_bytes());
    bytes.extend((nbytes + 32).to_le_bytes());
    bytes.resize(32, 0);
    bytes.extend((0..nbytes).map(|n| fill.wrapping_add(n as u8)));
    bytes
}

/// Puts a frame in the directory: the first byte says whether the others are a cframe, or the index file of an sframe, and how
/// many chunk files stand beside it.
fn put(data: &[u8]) -> Option<PathBuf> {
    let (kind, bytes) = data.split_first()?;
    let path = emptied().join("f.b2frame");
    if kind & 1 == 0 {
        std::fs::write(&path, bytes).expect("room in memory");
        return Some(path);
    }
    std::fs::create_dir(&path).expect("room in memory");
    std::fs::write(path.join("chunks.b2frame"), bytes).expect("room in memory");
    // Of the size of chunks that the header has at byte 58, as far as that is reasonable.
    let size = bytes.get(58..62).and_then(|size| size.try_into().ok()).map_or(0, i32::from_be_bytes);
    let size = u32::try_from(size).unwrap_or(0).min(4096);
    for id in 0..(kind >> 1) % 8 {
        std::fs::write(path.join(format!("{id:08X}.chunk")), copied(size, id)).expect("room in memory");
    }
    Some(path)
}

fn options(read_only: bool) -> OpenOptions {
    let budgets = Budgets { cache_bytes: 1 << 20, draft_bytes: 1 << 20, ..Budgets::default() };
    OpenOptions { read_only, resources: Resources::new(budgets), ..OpenOptions::default() }
}

/// An entry of a committed image with its chunk's bytes; `None` for a chunk whose header cannot be followed.
pub type Content = Vec<Option<IndexEntry<Vec<u8>>>>;

pub fn content(store: &dyn FrameStore) -> Content {
    let Some(image) = store.committed() else { return Vec::new() };
    let guard = store.enter();
    let read = |entry: &IndexEntry<_>| match entry {
        IndexEntry::Special(special) => Some(IndexEntry::Special(*special)),
        IndexEntry::Stored(key) => {
            let len = store.chunk_header(&guard, *key).ok()?.cbytes;
            let mut bytes = vec![0; len as usize];
            let count = store.read_chunk(&guard, *key, len, 0, &mut bytes).expect("what has a header can be read");
            assert_eq!(count, bytes.len(), "its header was compared with its room");
            Some(IndexEntry::Stored(bytes))
        }
    };
    image.entries.iter().map(read).collect()
}

/// A SOURCE opened for reading, as it is now.
pub fn on_disk(path: &Path) -> (Arc<FrameImage>, Content) {
    let (_, store) = open(path, options(true)).unwrap_or_else(|error| panic!("SOURCE does not open any more: {error}"));
    (store.committed().expect("a frame that was opened"), content(&*store))
}

/// More chunks take their time, and show nothing new.
const MOST_CHUNKS: usize = 1 << 12;

pub fn store(data: &[u8]) {
    let Some(path) = put(data) else { return };
    let Ok((_, reader)) = within(LIMIT, || open(&path, options(true))) else {
        assert!(open(&path, options(false)).is_err(), "it opens for writing, and not for reading");
        return;
    };
    let image = reader.committed().expect("a frame that was opened");
    if image.entries.len() > MOST_CHUNKS {
        return;
    }
    let before = content(&*reader);
    drop(reader);
    let (_, writer) = open(&path, options(false)).expect("it opened for reading");
    let image = writer.committed().expect("a frame that was opened");
    assert!(content(&*writer) == before);
    // Another chunk in the first one's place, and the first one's again.
    let new = copied(64, 7);
    let key = writer.stage(&new).expect("room in memory");
    if !image.entries.is_empty() {
        let mut entries = (*image.entries).clone();
        entries[0] = IndexEntry::Stored(key);
        let other = FrameImage { entries: Arc::new(entries), ..(*image).clone() };
        if writer.commit(writer.enter(), other).is_ok() {
            let (found, after) = on_disk(&path);
            assert_eq!(found.entries.len(), image.entries.len());
            assert!(after[0] == Some(IndexEntry::Stored(new)), "the new chunk is not what was staged");
            kept(&before[1..], &after[1..]);
            assert!(found.header.metalayers().eq(image.header.metalayers()));
            assert!(found.trailer == image.trailer);
        }
    }
    let _ = writer.close();
    drop(writer);
    kept(before.get(1..).unwrap_or_default(), on_disk(&path).1.get(1..).unwrap_or_default());
}

/// Chunks that could be read are what they were.
fn kept(before: &[Option<IndexEntry<Vec<u8>>>], after: &[Option<IndexEntry<Vec<u8>>>]) {
    assert_eq!(before.len(), after.len());
    for (position, (before, after)) in before.iter().zip(after).enumerate() {
        assert!(before.is_none() || before == after, "chunk {} was changed", position + 1);
    }
}

fn damage(path: &Path, deep: bool) -> Option<Vec<String>> {
    let mut damage = Vec::new();
    let mut found = |finding: b2fuse::store::check::Finding| {
        // Repair moves nothing, cannot know which of two chunks that share bytes is the right one, and leaves chunks as they are.
        if finding.severity == Severity::Damage && (deep || !matches!(finding.kind, Kind::Overlap | Kind::Misfit)) {
            damage.push(finding.what);
        }
    };
    check(path, Depth { deep, threads: 1 }, &mut found, &mut |_, _| true).ok()?;
    Some(damage)
}

/// What a inspection shows of a frame agrees with what it reads.
fn surveyed(path: &Path) {
    let Ok(inspection) = Inspection::open(path) else { return };
    let mut count = 0;
    let _ = inspection.chunks(1, &mut |position, _, seen| {
        count += 1;
        if let Some(seen) = seen {
            let read = inspection.read_chunk(position);
            assert_eq!(seen.as_ref().ok().map(|seen| seen.header.cbytes as usize), read.ok().map(|bytes| bytes.len()));
        } else if let Ok(bytes) = inspection.read_chunk(position) {
            chunk::check(&bytes).expect("a special chunk that was made");
        }
        count < MOST_CHUNKS
    });
}

pub fn examine(data: &[u8]) {
    let Some(path) = put(data) else { return };
    within(LIMIT, || surveyed(&path));
    let found = within(LIMIT, || damage(&path, true));
    let Ok(planned) = within(LIMIT, || plan(&path)) else { return };
    match planned.outlook() {
        Outlook::Sound => {}
        Outlook::Hopeless => {
            assert!(found.is_none_or(|found| !found.is_empty()), "nothing is wrong with it, but {:?}", planned.found);
        }
        Outlook::Mendable => {
            planned.carry_out().unwrap_or_else(|error| panic!("the plan cannot be carried out: {error}"));
            let again = plan(&path).expect("what was repaired can be looked at");
            assert_eq!(again.outlook(), Outlook::Sound, "after {:?}, {:?}: {:?}", planned.found, planned.steps, again.found);
            let left = damage(&path, false).expect("what was repaired can be checked");
            assert!(left.is_empty(), "after {:?}, {:?}: {left:?}", planned.found, planned.steps);
        }
    }
}

/// Every stored chunk of a frame is whole.
pub fn all_whole(content: &Content) {
    for (position, entry) in content.iter().enumerate() {
        match entry {
            None => panic!("chunk {position} cannot be read"),
            Some(IndexEntry::Stored(bytes)) => {
                if let Err(error) = chunk::check(bytes) {
                    panic!("chunk {position}: {error}");
                }
            }
            Some(IndexEntry::Special(_)) => {}
        }
    }
}
