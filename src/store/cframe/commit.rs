//! Writes a state of a cframe. This is the one place that decides in which order its parts reach the disk. `disk_store/commit.rs` has
//! the rest of a commit, and explains the states P, D and N.
//!
//! # In place
//!
//! A state is published when its header is in the file.
//!
//! | step | writes | a crash here leaves |
//! | --- | --- | --- |
//! | 0 | `stage`: chunks, to free space | D or P |
//! | 1 | copies of chunks that move down, the index and the trailer of N, and new header bytes behind the first sector: all to space that neither D nor P needs | D or P |
//! | 2 | fdatasync: step 0, step 1 and the header of P are on disk; now D is P | D or P, after it P |
//! | 3 | the header of N: one write within the file's first 512 bytes | P or N |
//! | 4 | nothing; N is published, and on disk with the next commit's step 2 or with `sync` | P or N |
//!
//! A disk writes a sector of 512 bytes whole or not at all, so step 3 is never seen half done. Everything that the header of N points to
//! is on disk before that step. Space that P uses and N does not is free when N is on disk: until then a crash may bring P back. Space
//! that only states before D used is free after step 2.
//!
//! # By another file
//!
//! A header cannot change in that way if it differs behind the first sector, if it grows into chunks, or if the last chunk is removed, so
//! that the trailer must be written where D has something else. Then the state is written to a new file beside SOURCE:
//!
//! | step | does | a crash here leaves |
//! | --- | --- | --- |
//! | 0 | fdatasync: P is on disk | P |
//! | 1 | copies everything that a state, a pin or a read needs to the same place in the new file, but chunks where the header goes to its end; writes index, trailer and header; fsync | P, and a file `.b2fuse-*.tmp` |
//! | 2 | rename over SOURCE | P or N |
//! | 3 | fsync of the directory | N |
//!
//! The new file is locked before it gets SOURCE's name. The first commit of a new frame also renames a temporary file, but it never
//! replaces a SOURCE that another process has made in the meantime.
//!
//! # Failures
//!
//! If there is no room in step 0 or 1, the commit fails and changes nothing. Any other failed write or sync ends all writing.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use log::debug;

use super::extents::ExtentMap;
use super::{Cframe, CframeStore, create_locked, key_at, position};
use crate::format::header::FrameHeader;
use crate::format::{ChunkOffset, index};
use crate::store::backend::{BackendFile, copy_range, read_exact_at};
use crate::store::chunks::Seq;
use crate::store::create::with_temp_name;
use crate::store::disk_store::commit::{self, Change, sync_published};
use crate::store::disk_store::set_mtime;
use crate::store::error::Complain;
use crate::store::error::Failed;
use crate::store::image::Encoded;
use crate::store::{ChunkKey, FrameImage, FrameStore, Result, in_words};

mod close;

pub(super) use close::finish;

/// Bytes that a disk writes whole or not at all.
const SECTOR: u64 = 512;
/// So many states in a row have different values of frame_len.
const DISTINCT: usize = 32;
/// A commit cuts off the free end of the file if it is more than this part of it: one 64th.
const TRIM_AT: u64 = 64;
/// How often in a row chunks are moved to shorten the file.
const SETTLE_ROUNDS: usize = 6;

type CommitState = commit::CommitState<Cframe>;

/// What is known of the states of a file.
#[derive(Default)]
pub(in crate::store) struct FileStates {
    /// How far the headers of D and P reach.
    high: u64,
    /// The frame_len of the last states: the library notices another state by another frame_len.
    lens: VecDeque<u64>,
    /// The file's end when moving chunks could not shorten it.
    settled_at: Option<u64>,
    /// P has no chunks: the trailer follows its header.
    empty: bool,
    /// The header's length from which the offsets in the encoded index count.
    encoded_for: u32,
}

impl FileStates {
    pub(super) fn opened(header: &FrameHeader, empty: bool) -> Self {
        let (high, lens) = (header.as_bytes().len() as u64, VecDeque::from([header.frame_len()]));
        FileStates { high, lens, empty, ..FileStates::default() }
    }

    pub(super) fn published(&mut self, before: &[u8], image: &FrameImage) {
        self.high = before.len().max(image.header.as_bytes().len()) as u64;
        self.lens.truncate(DISTINCT - 1);
        self.lens.push_front(image.header.frame_len());
        self.empty = image.entries.is_empty();
    }

    pub(super) fn durable(&mut self, header_len: usize) {
        self.high = header_len as u64;
    }
}

/// Encodes the index of P ahead of the next commit, which reuses most of it.
pub(super) fn prepare(store: &CframeStore) {
    // If the lock is taken, a commit is under way and leaves the index encoded.
    let Some(mut commits) = store.commits.try_lock() else { return };
    if commits.encoded.is_some() || commits.is_closed() || store.source.check_writable().is_err() {
        return;
    }
    let Some(image) = store.committed() else { return };
    if let Ok(index) = encode(store, &image, &HashMap::new(), None) {
        let part = 0..index.len();
        commits.own.encoded_for = image.header.header_len();
        commits.encoded = Some(Encoded::new(index, part, &image.entries));
    }
}

/// Called after a commit: shortens the file if it is much longer than the frame needs.
pub(super) fn after_commit(store: &CframeStore, commits: &mut CommitState) -> Result<()> {
    // If much was dropped, sync now so that its space becomes free, rather than let the file grow.
    if store.with_map(|map, _| map.chunks().waiting_bytes() > map.live() / 16 || map.can_settle()) {
        sync_published(store, commits)?;
        settle(store, commits);
    }
    keep_mtime(store, || trim(store, TRIM_AT));
    Ok(())
}

/// Does what moves chunks or frees space after a commit, and leaves SOURCE its mtime.
pub(super) fn keep_mtime<T>(store: &CframeStore, work: impl FnOnce() -> T) -> T {
    let before = store.file().stat();
    let done = work();
    let file = store.file();
    if let (Ok(before), Ok(now)) = (before, file.stat())
        && now.mtime != before.mtime
    {
        let set = store.writing(&*file, || {
            set_mtime(&*file, Some(before.mtime));
            Ok(())
        });
        if let Err(error) = set {
            debug!("{}: its time is not set: {}", store.source.called().display(), in_words(&error));
        }
    }
    done
}

/// Moves chunks until the file is short enough: commits the same image with chunks at other places. P is on disk, and the space of the
/// state before is free. A failure here leaves the published state as it is.
pub(super) fn settle(store: &CframeStore, commits: &mut CommitState) {
    keep_mtime(store, || settle_now(store, commits));
}

fn settle_now(store: &CframeStore, commits: &mut CommitState) {
    // A pin or a staged chunk may prevent it: do not try again until the end of the file has changed.
    let end = store.with_free_map(|map| map.end());
    if commits.own.settled_at.take() != Some(end) {
        let short = settle_while(store, commits, ExtentMap::can_settle);
        commits.own.settled_at = (!short).then(|| store.with_map(|map, _| map.end()));
    }
    trim(store, 0);
}

/// Moves chunks while the file is too long and moving helps; returns whether it is short enough.
fn settle_while(store: &CframeStore, commits: &mut CommitState, is_long: fn(&ExtentMap) -> bool) -> bool {
    let state = |store: &CframeStore| {
        store.with_map(|map, names| {
            store.free(map, names);
            (is_long(map), map.progress())
        })
    };
    let (mut long, mut before) = state(store);
    for _ in 0..SETTLE_ROUNDS {
        let Some(image) = store.committed().filter(|_| long && !commits.own.empty) else { break };
        let change = Change { settling: true, ..Change::default() };
        let again = commit::write(store, commits, (*image).clone(), &change).and_then(|()| sync_published(store, commits));
        if let Err(error) = again {
            debug!("the file stays longer than necessary: {error}");
            break;
        }
        let now;
        (long, now) = state(store);
        if std::mem::replace(&mut before, now) == now {
            break;
        }
    }
    !long
}

/// Writes an image in place, or else with a new file.
pub(super) fn write(
    store: &CframeStore,
    commits: &mut CommitState,
    image: FrameImage,
    change: &Change,
) -> std::result::Result<(), Failed> {
    match plan_header(store, commits, &image) {
        Some(plan) => in_place(store, commits, image, change, plan),
        None => replace(store, commits, image, change),
    }
}

/// When the bytes of the header are written.
struct HeaderPlan {
    /// Written before the sync: new bytes behind the first sector.
    early: Range<usize>,
}

/// Plans to write the image's header in place; `None` if that is not possible.
fn plan_header(store: &CframeStore, commits: &CommitState, image: &FrameImage) -> Option<HeaderPlan> {
    let (old, new) = (commits.header(), image.header.as_bytes());
    let empty = image.entries.is_empty();
    let reach = new.len() as u64 + if empty { image.trailer.as_bytes().len() as u64 } else { 0 };
    if !commits.is_pending() {
        if empty && commits.own.high > new.len() as u64 {
            return None; // the trailer would stand where D may have its header
        }
        let behind = |bytes: &[u8]| bytes.get(SECTOR as usize..).map(<[u8]>::to_vec).unwrap_or_default();
        let (old_rest, new_rest) = (behind(old), behind(new));
        if old_rest.iter().zip(&new_rest).any(|(old, new)| old != new) {
            return None;
        }
        if new_rest.len() > old_rest.len() && commits.own.high > old.len() as u64 {
            return None; // D's longer header may still be there
        }
    }
    let free = store.with_map(|map, names| {
        store.free(map, names);
        // A header that has not grown needs no more space.
        let grows = empty || new.len() > old.len();
        !grows || map.raise_floor(reach)
    });
    free.then(|| HeaderPlan { early: old.len().max(SECTOR as usize).min(new.len())..new.len() })
}

/// The bytes in which two headers differ within the first sector.
fn late(old: &[u8], new: &[u8]) -> Range<usize> {
    let end = new.len().min(SECTOR as usize);
    let differs = |at: &usize| old.get(*at) != new.get(*at);
    match ((0..end).find(differs), (0..end).rfind(differs)) {
        (Some(first), Some(last)) => first..last + 1,
        _ => 0..0,
    }
}

/// Encodes the index for a header of this length. `moves`: positions that are about to change. `before`: the index before, of which the
/// parts with the same entries are reused.
fn encode(store: &CframeStore, image: &FrameImage, moves: &HashMap<u64, u64>, before: Option<&Encoded>) -> Result<Vec<u8>> {
    let base = u64::from(image.header.header_len());
    let entries = |stretch: Range<usize>| {
        let place = store.medium.place.read(); // for a stretch only: readers must not wait for the encoder
        let offset = |key| {
            let position = position(&place.moved, key);
            let position = if moves.is_empty() { position } else { *moves.get(&position).unwrap_or(&position) };
            // No chunk begins before the header's end: `raise_floor` and the moves guarantee that.
            ChunkOffset::new(position.saturating_sub(base))
        };
        let stretch = image.entries.get(stretch).unwrap_or_default();
        stretch.iter().map(|entry| entry.map(offset)).collect::<Vec<_>>().into_iter()
    };
    let same = |stretch: Range<usize>| before.is_some_and(|before| before.has(&image.entries, stretch));
    let before = before.map(|before| index::Before { chunk: before.chunk(), same: &same });
    index::encode_like(image.entries.len(), entries, before).map_err(|error| store.source.format(error))
}

fn in_place(
    store: &CframeStore,
    commits: &mut CommitState,
    mut image: FrameImage,
    change: &Change,
    plan: HeaderPlan,
) -> std::result::Result<(), Failed> {
    let file = store.file();
    let (seq, first) = (commits.published() + 1, commits.is_pending());
    let write_failed = |action| move |source: io::Error| Failed::write(store.io(action)(source));
    // Step 1.
    let mut moved = Vec::new();
    let moving = move_chunks(store, &*file, change, seq, &mut moved);
    let before = commits.encoded.take().filter(|_| commits.own.encoded_for == image.header.header_len());
    let before = before.and_then(|before| before.after(&moved));
    moving.map_err(write_failed("move a chunk"))?;
    let mut tail = encode(store, &image, &HashMap::new(), before.as_ref()).map_err(Failed::harmless)?;
    let index_len = tail.len();
    tail.extend_from_slice(image.trailer.as_bytes());
    let header_len = u64::from(image.header.header_len());
    let empty = image.entries.is_empty();
    let tail_len = tail.len() as u64;
    let (slot, tail_at) = store.with_map(|map, names| {
        store.free(map, names);
        if empty {
            map.low_tail(header_len, tail_len);
            return (header_len, header_len);
        }
        map.place_tail(tail_len, &change.dropped, |end| commits.own.lens.contains(&end))
    });
    image.header.set_cbytes(tail_at - header_len);
    image.header.set_frame_len(tail_at + tail_len);
    let header = image.header.as_bytes().to_vec();
    let early = header.get(plan.early.clone()).unwrap_or_default();
    let written = store.writing(&*file, || {
        file.write_at(&tail, tail_at)?;
        if early.is_empty() { Ok(()) } else { file.write_at(early, plan.early.start as u64) }
    });
    written.map_err(write_failed("write the index")).inspect_err(|_| {
        store.with_map(|map, _| map.remove_tail(slot));
    })?;
    if !commits.is_pending() {
        // Step 2.
        file.sync_data().map_err(|source| Failed::fatal(store.io("sync")(source)))?;
        commit::durable(store, commits);
        // Step 3.
        let late = late(commits.header(), &header);
        let bytes = header.get(late.clone()).unwrap_or_default();
        let written = store.writing(&*file, || {
            file.write_at(bytes, late.start as u64)?;
            store.give_mtime(&*file);
            Ok(())
        });
        written.map_err(|source| Failed::fatal(store.io("write the header")(source)))?;
    } else {
        // SOURCE does not exist yet: one sync before the rename is enough.
        let written = store.writing(&*file, || {
            file.write_at(&header, 0)?;
            store.give_mtime(&*file);
            file.sync_all()
        });
        written.map_err(|source| Failed::fatal(store.io("write the header")(source)))?;
        if let Some(pending) = commits.pending() {
            pending.give_name(&store.source, None).inspect_err(|_| {
                store.with_map(|map, _| map.remove_tail(slot));
            })?;
            commits.has_name();
        }
        let mut detector = store.detector.lock(); // a chunk that is written meanwhile changes it again
        if let Ok(stat) = file.stat() {
            detector.header_is(Arc::clone(&file), stat); // a rename changes ctime
        }
    }
    // Step 4.
    commits.own.encoded_for = image.header.header_len();
    commits.encoded = Some(Encoded::new(tail, 0..index_len, &image.entries));
    commit::published(store, commits, image, change);
    if first {
        commit::durable(store, commits);
    }
    Ok(())
}

/// Copies chunks to other places while the file is longer than needed. `renamed` gets the chunks that were moved, even after an error.
fn move_chunks(
    store: &CframeStore,
    file: &dyn BackendFile,
    change: &Change,
    seq: Seq,
    renamed: &mut Vec<ChunkKey>,
) -> io::Result<()> {
    let mut moves = store.with_map(|map, names| {
        store.free(map, names);
        map.moves(&change.dropped, change.settling)
    });
    let mut lifts: Option<std::vec::IntoIter<u64>> = None;
    let mut moved = false;
    loop {
        let step = store.with_map(|map, _| {
            if lifts.is_none() {
                let down = map.next_move(&change.dropped, &mut moves);
                if down.is_some() || moved || !change.settling {
                    return down;
                }
            }
            // The next round moves them down again, into one hole.
            let lifts = lifts.get_or_insert_with(|| map.lifts(&change.dropped, &moves).into_iter());
            lifts.next().and_then(|from| map.lift(from, &mut moves))
        });
        let Some(step) = step else { return Ok(()) };
        moved = true;
        let copied = store.writing(file, || copy_range(file, step.from, file, step.to, step.len));
        // A chunk that the disk cannot read stays where it is. Other writes go on.
        let stays = copied.is_err() && !is_readable(file, step.from, step.len);
        store.with_map(|map, names| match &copied {
            Ok(()) => {
                let key = rename(store, map, names, step.from, step.to);
                if let Some(key) = key {
                    store.medium.place.write().indexed.entry(key).or_insert(step.from);
                }
                renamed.extend(key);
                map.chunks_mut().copied(step.from, step.to, seq);
            }
            Err(_) => {
                map.not_moved(step);
                if stays {
                    map.chunks_mut().set_overlapping(step.from);
                }
            }
        });
        if !stays {
            copied?;
        }
    }
}

/// Whether these bytes can be read.
#[expect(clippy::indexing_slicing, reason = "no more is counted than there is in the buffer")]
fn is_readable(file: &dyn BackendFile, offset: u64, len: u64) -> bool {
    const PIECE: u64 = 256 << 10;
    let mut piece = vec![0; len.min(PIECE) as usize];
    (0..len).step_by(PIECE as usize).all(|at| {
        let piece = &mut piece[..(len - at).min(PIECE) as usize];
        read_exact_at(file, piece, offset + at).is_ok()
    })
}

/// Records that the chunk with the key of `from` is at `to`.
fn rename(store: &CframeStore, map: &ExtentMap, names: &mut HashMap<u64, ChunkKey>, from: u64, to: u64) -> Option<ChunkKey> {
    let key = names.remove(&from).or_else(|| map.chunks().get(from).map(|chunk| key_at(from, chunk.generation)));
    if let Some(key) = key {
        names.insert(to, key);
        store.medium.place.write().moved.insert(key, to);
        store.medium.raise_limit(to + map.room(from).unwrap_or(0));
    }
    key
}

/// Cuts off what lies behind the last extent, if that is more than that part of the file.
fn trim(store: &CframeStore, part: u64) {
    let file = store.file();
    // With the map locked, so that nothing is staged behind the new end meanwhile.
    let trimmed = store.with_map(|map, _| {
        let end = map.end();
        store.writing(&*file, || {
            let len = file.stat()?.len;
            if end < len - len.checked_div(part).unwrap_or(0) { file.set_len(end) } else { Ok(()) }
        })
    });
    if let Err(error) = trimmed {
        debug!("{}: cannot shorten the file: {}", store.source.called().display(), in_words(&error));
    }
}

/// Writes an image with a new file.
fn replace(
    store: &CframeStore,
    commits: &mut CommitState,
    image: FrameImage,
    change: &Change,
) -> std::result::Result<(), Failed> {
    let _nothing_staged_meanwhile = store.gate.write();
    let failed = |action| move |source: io::Error| Failed::write(store.io(action)(source));
    sync_published(store, commits).map_err(Failed::fatal)?; // so that there are two states that a crash may leave, not three
    let place = store.source.place();
    let backend = &**place.backend();
    let (temp, file) = with_temp_name(|name| create_locked(backend, name, 0o600)).map_err(failed("make a new file"))?;
    let mut reserved = Vec::new();
    let written = write_new_file(store, image, &*file, &mut reserved);
    let linked = written.and_then(|new| {
        match commits.pending() {
            Some(pending) => {
                let stat = file.stat().map_err(failed("stat"))?;
                pending.give_name(&store.source, Some((&temp, stat)))?;
            }
            None => {
                if let Some(reason) = store.seen_outside(commits).map_err(Failed::harmless)? {
                    return Err(Failed::harmless(store.source.stale(reason)));
                }
                let renamed = backend.rename(&temp, place.name(), true);
                renamed.map_err(|source| Failed::rename(store.io("rename the new file")(source)))?;
            }
        }
        Ok(new)
    });
    let new = linked.inspect_err(|failed| {
        if !failed.in_doubt {
            undo_new_file(store, &temp, &*file, &reserved);
        }
    })?;
    // SOURCE is the new file now.
    commits.encoded = None;
    if let Some(pending) = commits.has_name() {
        pending.remove(&store.source);
    }
    let NewFile { image, moves, low, tail_at, tail_len } = new;
    let stat = file.stat();
    store.with_map(|map, names| {
        for &(from, to) in &moves {
            rename(store, map, names, from, to);
            map.transplant(from, to);
        }
        map.forget_tails();
        let raised = map.raise_floor(low);
        debug_assert!(raised, "something is left in the header's place");
        map.low_tail(tail_at, tail_len);
        store.file_is(&file, stat);
    });
    // Chunks that the change drops were moved as well.
    commit::published(store, commits, image, &change.moved(&moves));
    backend.sync_dir().map_err(|source| Failed::in_doubt(store.io("sync the directory")(source)))?;
    commit::durable(store, commits);
    Ok(())
}

/// A finished file that can become SOURCE.
struct NewFile {
    image: FrameImage,
    /// The chunks that were moved: from, to.
    moves: Vec<(u64, u64)>,
    /// Before this position there is only the header, and the trailer of an empty frame.
    low: u64,
    tail_at: u64,
    tail_len: u64,
}

fn undo_new_file(store: &CframeStore, temp: &OsStr, file: &dyn BackendFile, reserved: &[(u64, u64)]) {
    let _ = file.stat().and_then(|stat| store.source.backend().remove_file(temp, &stat));
    store.with_map(|map, _| {
        for &(pos, len) in reserved {
            map.unreserve(pos, len);
        }
    });
}

/// Writes and syncs a new file with `image`, and with all chunks that are still needed.
fn write_new_file(
    store: &CframeStore,
    mut image: FrameImage,
    file: &dyn BackendFile,
    reserved: &mut Vec<(u64, u64)>,
) -> std::result::Result<NewFile, Failed> {
    let failed = |source: io::Error| Failed::write(store.io("write a new file")(source));
    let old = store.file();
    file.copy_attributes(&*old);
    let empty = image.entries.is_empty();
    let header_len = u64::from(image.header.header_len());
    let low = header_len + if empty { image.trailer.as_bytes().len() as u64 } else { 0 };
    // Chunks in the header's way can only be moved if their lengths are known.
    while store.with_map(|map, _| map.next_unknown().is_some_and(|next| next < low)) {
        if !store.sweep(64) {
            let stale = store.detector.lock().stale().is_some();
            let unreadable = io::Error::from_raw_os_error(if stale { libc::ESTALE } else { libc::EIO });
            return Err(Failed::harmless(store.io("read a chunk's header")(unreadable)));
        }
    }
    let old_len = old.stat().map_err(failed)?.len;
    let (runs, below) = store.with_map(|map, names| {
        store.free(map, names);
        (map.runs(), map.below(low))
    });
    // If a part of SOURCE cannot be read, the commit fails and SOURCE stays as it was.
    let copy = |from, to, len| {
        copy_range(&*old, from, file, to, len).map_err(|error| match is_readable(&*old, from, len) {
            true => failed(error),
            false => Failed::harmless(store.io("read what is to be copied")(error)),
        })
    };
    for run in runs {
        let (start, end) = (run.start.max(low), run.end.min(old_len));
        if start < end {
            copy(start, start, end - start)?;
        }
    }
    let mut moves = Vec::new();
    for (from, len) in below {
        let to = store.with_map(|map, _| map.reserve_above(len, low));
        reserved.push((to, len));
        moves.push((from, to));
        copy(from, to, len.min(old_len.saturating_sub(from)))?;
    }
    let mut tail = encode(store, &image, &moves.iter().copied().collect(), None).map_err(Failed::harmless)?;
    tail.extend_from_slice(image.trailer.as_bytes());
    let tail_len = tail.len() as u64;
    let tail_at = if empty {
        header_len
    } else {
        let at = store.with_map(|map, _| map.reserve_above(tail_len, low));
        reserved.push((at, tail_len));
        at
    };
    image.header.set_cbytes(tail_at - header_len);
    image.header.set_frame_len(tail_at + tail_len);
    file.write_at(image.header.as_bytes(), 0).map_err(failed)?;
    file.write_at(&tail, tail_at).map_err(failed)?;
    store.give_mtime(file);
    file.sync_all().map_err(|source| Failed::fatal(store.io("sync a new file")(source)))?;
    Ok(NewFile { image, moves, low, tail_at, tail_len })
}
