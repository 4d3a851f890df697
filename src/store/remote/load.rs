//! Brings pieces of chunks into memory: one that is waited for, and many that will be wanted soon.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::future::{Either, join_all, select};
use log::debug;
use tokio::task::JoinHandle;

use super::client::{Tag, is_an_answer};
use super::pieces::{Claim, HEADER, PIECE, Piece, PieceKey, Wanted};
use super::state::{Places, State};
use crate::format::chunk::ChunkHeader;
use crate::format::{ChunkId, Layout};
use crate::store::in_words;

/// Bytes of neighbours in one file that are asked for by one request.
const TOGETHER: u64 = 1 << 20;
/// Bytes of a chunk that is read whole by who wants to know its length only: with its neighbours, that is sooner.
const SMALL: u64 = 64 << 10;
/// Times are in whole seconds, and of clocks that are not quite the same.
const TICK: Duration = Duration::from_secs(1);
/// Bytes that may be on their way to the disk.
const KEEPING: u64 = 16 << 20;
/// How long the disk may take to give what it has, until the store is asked as well.
const DISK: Duration = Duration::from_secs(1);
/// Names of one answer to a listing.
const PAGE: usize = 1000;
/// Names of a listing that are none of the frame's, at most, where it has few itself.
const MOST_OTHERS: usize = 1 << 20;

/// A piece, asked for if it is not here, and waited for.
///
/// # Errors
/// What the store answers; ESTALE if the object is in another state; ENOENT if there is none.
pub fn now(state: &Arc<State>, key: PieceKey) -> io::Result<Arc<Piece>> {
    match state.pieces.want(key, likely(state, key), state.client.patience(), state.client.short_patience()) {
        Wanted::Here(piece) => Ok(piece),
        Wanted::Failed => Err(io::Error::other("another request for the same data timed out")),
        Wanted::Unwanted => Err(io::Error::from_raw_os_error(libc::EINTR)),
        Wanted::Mine(claim) => {
            // Who waits reads the disk itself: that is sooner than to have another thread do it.
            if let Some(piece) = on_disk(state, key) {
                return Ok(claim.fill(piece));
            }
            let (client, state) = (Arc::clone(&state.client), Arc::clone(state));
            client.wait(async move { Ok(filled(&state, claim, fetch(&state, key).await?)) })
        }
    }
}

/// The first pieces of the chunks at these places will be wanted soon.
pub fn ahead(state: &Arc<State>, places: Range<u32>) {
    each_ahead(state, places.start..places.end.min(state.count()));
}

/// The same, in any order.
pub fn each_ahead(state: &Arc<State>, places: impl Iterator<Item = u32>) {
    let claims = claims(state, places);
    if state.layout() == Layout::Sparse || state.disk.is_none() {
        return start(state, group(state, claims));
    }
    // What is on disk already is not asked for with its neighbours.
    let state = Arc::clone(state);
    let client = Arc::clone(&state.client);
    client.start(async move {
        let asked = claims.into_iter().map(|claim| async { (kept(&state, claim.key()).await, claim) });
        let (mut rest, mut late) = (Vec::new(), HashMap::new());
        for (kept, claim) in join_all(asked).await {
            match kept {
                Kept::Here(piece) => drop(claim.fill(piece)),
                Kept::Nowhere => rest.push(claim),
                Kept::Late(read) => {
                    late.insert(claim.key(), read);
                    rest.push(claim);
                }
            }
        }
        for group in group(&state, rest) {
            let late = group.iter().filter_map(|claim| late.remove_entry(&claim.key())).collect();
            start_one(&state, group, late);
        }
    });
}

/// How long these chunks of one file are will be wanted soon. Where they are large, only their headers are asked for.
pub fn lens_ahead(state: &Arc<State>, places: impl Iterator<Item = u32>) {
    let (large, small): (Vec<u32>, Vec<u32>) = places.partition(|place| room(state, *place) > SMALL);
    each_ahead(state, small.into_iter());
    let keys = large.into_iter().map(|place| header_of(state, place)).filter(|key| key.number == HEADER);
    start(state, keys.filter_map(|key| Some(vec![state.pieces.claim(key, likely(state, key))?])).collect());
}

/// The piece to learn a chunk's length from.
pub fn header_of(state: &State, place: u32) -> PieceKey {
    let first = PieceKey { place, number: 0 };
    let is_large = state.layout() == Layout::Contiguous && room(state, place) > SMALL;
    if is_large && !state.pieces.is_known(first) { PieceKey { place, number: HEADER } } else { first }
}

/// The headers of these chunks will be wanted soon, and not their bytes. Where chunks are large, only their headers are asked for.
pub fn headers_ahead(state: &Arc<State>, places: impl Iterator<Item = u32>) {
    let (large, small): (Vec<PieceKey>, Vec<PieceKey>) =
        places.map(|place| piece_with_header(state, place)).partition(|key| key.number == HEADER);
    each_ahead(state, small.into_iter().map(|key| key.place));
    start(state, large.into_iter().filter_map(|key| Some(vec![state.pieces.claim(key, likely(state, key))?])).collect());
}

/// The piece to learn a chunk's header from, if not much more of the chunk is wanted. In files of their own, all are likely as large as the
/// average.
pub fn piece_with_header(state: &State, place: u32) -> PieceKey {
    let first = PieceKey { place, number: 0 };
    let len = state.range(place).map_or_else(|| state.likely(place), |range| range.end - range.start);
    if len > SMALL && !state.pieces.is_known(first) { PieceKey { place, number: HEADER } } else { first }
}

/// Bytes that a piece is likely to have.
fn likely(state: &State, key: PieceKey) -> u64 {
    if key.number == HEADER { ChunkHeader::LEN as u64 } else { state.likely(key.place) }
}

fn claims(state: &Arc<State>, places: impl Iterator<Item = u32>) -> Vec<Claim> {
    places.filter_map(|place| state.pieces.claim(PieceKey { place, number: 0 }, state.likely(place))).collect()
}

/// Neighbours in one file are one request.
fn group(state: &State, mut claims: Vec<Claim>) -> Vec<Vec<Claim>> {
    if state.layout() == Layout::Sparse {
        return claims.into_iter().map(|claim| vec![claim]).collect();
    }
    let range = |claim: &Claim| piece_range(state, claim.key()).unwrap_or(0..0);
    claims.sort_unstable_by_key(|claim| range(claim).start);
    let mut groups: Vec<Vec<Claim>> = Vec::new();
    for claim in claims {
        let this = range(&claim);
        match groups.last_mut() {
            Some(group)
                if group
                    .first()
                    .zip(group.last())
                    .is_some_and(|(first, last)| range(last).end == this.start && this.end - range(first).start <= TOGETHER) =>
            {
                group.push(claim)
            }
            _ => groups.push(vec![claim]),
        }
    }
    groups
}

fn start(state: &Arc<State>, groups: Vec<Vec<Claim>>) {
    groups.into_iter().for_each(|group| start_one(state, group, HashMap::new()));
}

fn start_one(state: &Arc<State>, group: Vec<Claim>, late: HashMap<PieceKey, Late>) {
    let state = Arc::clone(state);
    let client = Arc::clone(&state.client);
    client.start(async move {
        let first = group.first().map(Claim::key);
        if let Err(error) = fill(&state, group, late).await {
            // Whoever wants it asks again, and hears why.
            let name = first.map_or_else(String::new, |key| state.name(key.place));
            debug!("{}: {name}: not read ahead: {}", state.client.base(), in_words(&error));
        }
    });
}

/// Loads pieces by one request. Of some it is known that the disk is `late` with its answer.
async fn fill(state: &Arc<State>, group: Vec<Claim>, mut late: HashMap<PieceKey, Late>) -> io::Result<()> {
    let ranges: Option<Vec<Range<u64>>> = group.iter().map(|claim| piece_range(state, claim.key())).collect();
    let (Some(ranges), true) = (ranges, group.len() > 1) else {
        for claim in group {
            let read = match late.remove(&claim.key()) {
                Some(read) => Kept::Late(read),
                None => kept(state, claim.key()).await,
            };
            let fetched = match read {
                Kept::Here(piece) => {
                    drop(claim.fill(piece));
                    continue;
                }
                Kept::Nowhere => fetch(state, claim.key()).await?,
                Kept::Late(read) => fetch_or_read(state, claim.key(), read).await?,
            };
            filled(state, claim, fetched);
        }
        return Ok(());
    };
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return Ok(()) };
    let began = Instant::now();
    let got = match state.client.get("", Some(first.start..last.end), Some(&state.tag)).await {
        Err(error) if !is_an_answer(&error) => {
            let read = group.into_iter().filter_map(|claim| Some((late.remove(&claim.key())?, claim)));
            let read = read.map(|(read, claim)| async { read_late(state, read, began).await.map(|piece| claim.fill(piece)) });
            join_all(read).await;
            return Err(error);
        }
        got => got?,
    };
    for (claim, range) in group.into_iter().zip(&ranges) {
        let from = usize::try_from(range.start - first.start).unwrap_or(usize::MAX);
        let to = usize::try_from(range.end - first.start).unwrap_or(usize::MAX);
        let bytes = got.bytes.get(from..to).ok_or(io::ErrorKind::UnexpectedEof)?.to_vec();
        let room = room(state, claim.key().place);
        let fetched = Fetched { piece: Piece { bytes, room }, tag: Some(String::new()) };
        filled(state, claim, fetched);
    }
    Ok(())
}

/// Room of a chunk in the one file.
fn room(state: &State, place: u32) -> u64 {
    state.range(place).map_or(0, |range| range.end - range.start)
}

/// Where a piece is in the one file, if there is one.
fn piece_range(state: &State, key: PieceKey) -> Option<Range<u64>> {
    let range = state.range(key.place)?;
    if key.number == HEADER {
        return Some(range.start..range.start.saturating_add(ChunkHeader::LEN as u64).min(range.end));
    }
    let start = range.start.saturating_add(u64::from(key.number) * PIECE).min(range.end);
    Some(start..start.saturating_add(PIECE).min(range.end))
}

/// A piece, and what the disk is to call the state of its object, if it is to keep it.
struct Fetched {
    piece: Piece,
    tag: Option<String>,
}

/// A piece is here, and is kept on disk without another copy of it in memory.
fn filled(state: &Arc<State>, claim: Claim, fetched: Fetched) -> Arc<Piece> {
    let key = claim.key();
    let piece = claim.fill(fetched.piece);
    if let Some(tag) = fetched.tag.filter(|_| key.number != HEADER) {
        keep(state, key, Arc::clone(&piece), tag);
    }
    piece
}

/// A piece by a request.
async fn fetch(state: &Arc<State>, key: PieceKey) -> io::Result<Fetched> {
    if let Some(range) = piece_range(state, key) {
        if range.is_empty() {
            return Ok(Fetched { piece: Piece { bytes: Vec::new(), room: room(state, key.place) }, tag: None });
        }
        let got = state.client.get("", Some(range), Some(&state.tag)).await?;
        let piece = Piece { bytes: got.bytes, room: room(state, key.place) };
        return Ok(Fetched { piece, tag: Some(String::new()) });
    }
    let range = match key.number {
        HEADER => 0..ChunkHeader::LEN as u64,
        number => u64::from(number) * PIECE..(u64::from(number) + 1) * PIECE,
    };
    let got = state.client.get(&state.name(key.place), Some(range), None).await?;
    if !is_as_before(state, key.place, &got.tag) {
        if let Some(disk) = state.disk.clone() {
            drop(tokio::task::spawn_blocking(move || disk.discard("a chunk file has changed meanwhile")));
        }
        return Err(io::Error::from_raw_os_error(libc::ESTALE));
    }
    let piece = Piece { bytes: got.bytes, room: got.tag.len() };
    Ok(Fetched { piece, tag: Some(short(&got.tag).to_string()) })
}

/// What the cache on disk calls the object of a chunk. In one file, that is where the chunk begins.
fn object(state: &State, place: u32) -> String {
    state.range(place).map_or_else(|| state.name(place), |range| format!("@{}", range.start))
}

/// A read of the disk that takes long.
type Late = JoinHandle<Option<Piece>>;

/// What the disk has of a piece.
enum Kept {
    Here(Piece),
    Nowhere,
    Late(Late),
}

/// A piece that is on disk, for who must not wait.
async fn kept(state: &Arc<State>, key: PieceKey) -> Kept {
    if state.disk.is_none() || key.number == HEADER {
        return Kept::Nowhere;
    }
    let state = Arc::clone(state);
    let mut read = tokio::task::spawn_blocking(move || on_disk(&state, key));
    // Its threads may be held up by a disk that takes nothing. That keeps nobody from the store.
    match tokio::time::timeout(DISK, &mut read).await {
        Ok(Ok(Some(piece))) => Kept::Here(piece),
        Ok(_) => Kept::Nowhere,
        Err(_) => Kept::Late(read),
    }
}

/// A piece by a request, or of the disk if that is sooner, or if the store does not answer.
async fn fetch_or_read(state: &Arc<State>, key: PieceKey, read: Late) -> io::Result<Fetched> {
    let began = Instant::now();
    let of_disk = |piece| Ok(Fetched { piece, tag: None });
    match select(read, pin!(fetch(state, key))).await {
        Either::Left((Ok(Some(piece)), _)) => of_disk(piece),
        Either::Left((_, fetched)) => fetched.await,
        Either::Right((Err(error), read)) if !is_an_answer(&error) => match read_late(state, read, began).await {
            Some(piece) => of_disk(piece),
            None => Err(error),
        },
        Either::Right((fetched, _)) => fetched,
    }
}

/// What the disk has, when the store has failed: it is waited for as long as for the store.
async fn read_late(state: &State, read: Late, began: Instant) -> Option<Piece> {
    let left = state.client.patience().saturating_sub(began.elapsed());
    tokio::time::timeout(left, read).await.ok()?.ok()?
}

/// A piece that is on disk.
fn on_disk(state: &State, key: PieceKey) -> Option<Piece> {
    let disk = state.disk.as_ref().filter(|_| key.number != HEADER)?;
    let kept = disk.get(&object(state, key.place), u64::from(key.number))?;
    let wanted = piece_range(state, key).map_or(PIECE, |range| range.end - range.start);
    let is_of_one_file = state.layout() == Layout::Contiguous;
    let is_whole = match is_of_one_file {
        true => kept.bytes.len() as u64 == wanted && kept.total_len == room(state, key.place),
        false => kept.bytes.len() as u64 == kept.total_len.saturating_sub(u64::from(key.number) * PIECE).min(PIECE),
    };
    let is_same = is_of_one_file || kept.tag.parse().is_ok_and(|tag| is_seen(state, key.place, tag));
    if is_whole && is_same {
        return Some(Piece { bytes: kept.bytes, room: kept.total_len });
    }
    disk.discard("a piece on disk is not what the frame has");
    None
}

/// Keeps a piece on disk, without waiting for it; not if the disk is slower than the store.
fn keep(state: &Arc<State>, key: PieceKey, piece: Arc<Piece>, tag: String) {
    let Some(disk) = &state.disk else { return };
    let len = piece.bytes.len() as u64;
    if state.keeping.fetch_add(len, Relaxed) > KEEPING {
        state.keeping.fetch_sub(len, Relaxed);
        return;
    }
    let (state, disk, name) = (Arc::clone(state), Arc::clone(disk), object(state, key.place));
    drop(tokio::task::spawn_blocking(move || {
        disk.put(&name, u64::from(key.number), &piece.bytes, piece.room, &tag);
        state.keeping.fetch_sub(len, Relaxed);
    }));
}

/// Whether the file of a chunk is what it was when it was first read in this state, and was there when the state began.
fn is_as_before(state: &State, place: u32, tag: &Tag) -> bool {
    was_there(state, tag) && is_seen(state, place, short(tag))
}

/// Whether an object was what it is when the state began, as far as its time tells.
fn was_there(state: &State, tag: &Tag) -> bool {
    state.begun.is_none_or(|begun| tag.modified() <= begun + TICK)
}

/// A short form of a tag.
fn short(tag: &Tag) -> u64 {
    let mut hasher = DefaultHasher::new();
    tag.line().hash(&mut hasher);
    hasher.finish()
}

/// Whether this is the state that a chunk file was in when it was first seen.
fn is_seen(state: &State, place: u32, now: u64) -> bool {
    match state.seen.lock().entry(place) {
        Entry::Occupied(before) => *before.get() == now,
        Entry::Vacant(empty) => {
            empty.insert(now);
            true
        }
    }
}

/// Lengths of the chunk files by place. Parts of the listing are asked for at the same time.
///
/// # Errors
/// What the store answers.
pub fn list(state: &Arc<State>) -> io::Result<Vec<Option<u32>>> {
    let Places::Files(ids) = &state.places else { return Ok(Vec::new()) };
    let mut sorted: Vec<(u32, u32)> = ids.iter().copied().zip(0..).collect();
    sorted.sort_unstable();
    let parts = sorted.len().div_ceil(PAGE).clamp(1, state.client.connections());
    let each = sorted.len().div_ceil(parts).max(1);
    let bounds = |part: usize| sorted.get(part * each).filter(|_| part > 0).and_then(|(id, _)| name_before(*id));
    let ranges = (0..parts).map(|part| bounds(part)..bounds(part + 1)).collect();
    // Others' files may be there as well, and chunks that no index names any more.
    let most = sorted.len().saturating_mul(16).saturating_add(MOST_OTHERS);
    let known = Arc::clone(state);
    let listed = state.client.list(ranges, most, move |listed| {
        let ChunkId(id) = ChunkId::from_file_name(listed.name.as_bytes())?;
        let len = u32::try_from(listed.tag.len()).ok().filter(|_| was_there(&known, &listed.tag))?;
        let at = sorted.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        sorted.get(at).map(|(_, place)| (*place, len))
    })?;
    let mut lens = vec![None; ids.len()];
    for (place, len) in listed {
        if let Some(slot) = lens.get_mut(place as usize) {
            *slot = Some(len);
        }
    }
    Ok(lens)
}

/// A name that comes before the file of an id, and behind that of the one before.
fn name_before(id: u32) -> Option<String> {
    id.checked_sub(1).map(|before| ChunkId(before).file_name())
}
