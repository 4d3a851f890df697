//! Frames in one file.

use std::io;
use std::sync::Arc;

use super::search::{Bytes, FoundIndex, entry_for, fits, has_misfit, is_misfit};
use super::{Plan, Saved, Work, empty_trailer, header_of, nbytes_of};
use crate::format::chunk::Decoder;
use crate::format::header::FrameHeader;
use crate::format::trailer::Trailer;
use crate::format::{self, ChunkOffset, IndexEntry, Layout, Special, index};
use crate::store::StoreError;
use crate::store::backend::BackendFile;
use crate::store::frame::{FileBytes, Frame, FramePart, Unread};

/// What the repaired frame is to hold.
struct Whole {
    entries: Arc<Vec<IndexEntry<ChunkOffset>>>,
    /// Uncompressed sizes of the stored chunks.
    sizes: Vec<Option<u32>>,
    trailer: Trailer,
    /// Where the index stands already, with the trailer right behind it.
    standing: Option<u64>,
}

pub(super) fn plan(plan: &mut Plan, file: &dyn BackendFile) -> crate::store::Result<()> {
    let path = plan.path().to_owned();
    let io = |action| {
        let path = path.clone();
        move |source| StoreError::Io { path, action, source }
    };
    let len = file.stat().map_err(io("stat"))?.len;
    let bytes = Bytes { file, len };
    match Frame::<ChunkOffset>::read(&FileBytes { file, len }) {
        Ok(frame) => chunks_of(plan, &bytes, frame).map_err(io("read"))?,
        Err(Unread::Format(error)) => {
            plan.found.push(&error);
            let no_header = |source| StoreError::Format { path: path.clone(), source };
            let announced = bytes.read(10, 5).map_err(io("read"))?;
            let header_len = match announced.as_slice() {
                [0xd2, len @ ..] => len.try_into().map_or(0, u32::from_be_bytes),
                _ => 0,
            };
            let Some(header) = bytes.part(FramePart::Header, 0, u64::from(header_len).max(128)).map_err(io("read"))? else {
                return Err(no_header(error));
            };
            let header = header_of(header).map_err(no_header)?;
            if header.layout() != Layout::Contiguous {
                return Err(Unread::OtherLayout.at(&path, Layout::Contiguous));
            }
            parts_of(plan, &bytes, header).map_err(io("read"))?;
        }
        Err(other) => return Err(other.at(&path, Layout::Contiguous)),
    }
    Ok(())
}

/// A frame that reads as a whole: are its chunks where it says?
fn chunks_of(plan: &mut Plan, bytes: &Bytes<'_>, frame: Frame<ChunkOffset>) -> io::Result<()> {
    let Frame { header, trailer, entries, sections } = frame;
    let base = sections.chunks.start;
    let end = sections.chunks.end;
    let count = entries.len();
    let mut sizes = Vec::with_capacity(count);
    let (mut bad, mut special) = (0u64, false);
    let mut misfit = has_misfit(plan, &header, &entries);
    for (position, entry) in entries.iter().enumerate() {
        let IndexEntry::Stored(offset) = entry else {
            sizes.push(None);
            continue;
        };
        let chunk = bytes.chunk_at(base + offset.bytes(), end)?;
        let chunk = chunk.filter(|chunk| fits(&header, chunk, position + 1 == count));
        bad += u64::from(chunk.is_none());
        sizes.push(chunk.map(|chunk| chunk.nbytes));
        if let Some(chunk) = &chunk {
            special |= entry_for(&header, chunk, position, count).is_some();
            misfit |= is_misfit(plan, &header, chunk, position, count);
        }
    }
    let mut trailer = trailer;
    let layers = super::sound_layers(plan, &mut trailer);
    if bad == 0 && layers && !special {
        if misfit {
            plan.work = Work::Impossible;
        }
        return Ok(());
    }
    if bad == 0 {
        let whole = Whole { entries: Arc::new(entries), sizes, trailer, standing: None };
        return finish(plan, bytes, header, Some(whole));
    }
    for (position, (entry, size)) in entries.iter().zip(&sizes).enumerate() {
        if matches!((entry, size), (IndexEntry::Stored(_), None)) {
            plan.found.push(format_args!("chunk {position}: is not at the place that the index names"));
        }
    }
    // Whatever has done that may have written over parts of others.
    let mut decoder = Decoder::default();
    for (position, (entry, size)) in entries.iter().zip(&mut sizes).enumerate() {
        if let (IndexEntry::Stored(offset), Some(_)) = (entry, &size)
            && let Some(chunk) = bytes.chunk_at(base + offset.bytes(), end)?
            && !bytes.decodes(base + offset.bytes(), &chunk, &mut decoder)?
        {
            plan.found.push(format_args!("chunk {position}: does not decode"));
            *size = None;
        }
    }
    let whole = match shifted(bytes, &header, &entries, base, end)? {
        Some(Moved { entries, sizes, by }) => {
            plan.steps
                .push(format!("find the chunks {by} bytes from where the index says, where an unfinished update has moved them"));
            lose(plan, &header, entries, sizes, trailer)
        }
        None => lose(plan, &header, entries, sizes, trailer),
    };
    finish(plan, bytes, header, whole)
}

/// Makes the stored chunks without a size uninitialised ones, where the frame can have such.
fn lose(
    plan: &mut Plan,
    header: &FrameHeader,
    mut entries: Vec<IndexEntry<ChunkOffset>>,
    sizes: Vec<Option<u32>>,
    trailer: Trailer,
) -> Option<Whole> {
    for (position, (entry, size)) in entries.iter_mut().zip(&sizes).enumerate() {
        if size.is_none() && matches!(entry, IndexEntry::Stored(_)) {
            if header.chunksize() == 0 {
                plan.lost.push(format_args!("chunk {position}, whose size is not known, as chunks of this frame vary in size"));
                return None;
            }
            plan.lost.push(format_args!("chunk {position}: it becomes uninitialised"));
            *entry = IndexEntry::Special(Special::Uninit);
        }
    }
    Some(Whole { entries: Arc::new(entries), sizes, trailer, standing: None })
}

/// Chunks found at another distance than the index says.
struct Moved {
    entries: Vec<IndexEntry<ChunkOffset>>,
    sizes: Vec<Option<u32>>,
    by: i64,
}

/// Chunks that an unfinished update has moved: all from some chunk on lie by the same distance from where the index says, which
/// knows how far they are from each other.
fn shifted(
    bytes: &Bytes<'_>,
    header: &FrameHeader,
    entries: &[IndexEntry<ChunkOffset>],
    base: u64,
    end: u64,
) -> io::Result<Option<Moved>> {
    let mut order: Vec<(u64, u32)> = Vec::with_capacity(entries.len());
    for (position, entry) in (0..).zip(entries) {
        if let IndexEntry::Stored(offset) = entry {
            order.push((base + offset.bytes(), position));
        }
    }
    order.sort_unstable();
    let start_of = |n: usize| order.get(n).map(|(start, _)| *start);
    // As long as the room that each has.
    let lens_from = |n: usize| {
        let rest = order.get(n..).unwrap_or_default().iter().map(|(start, _)| *start);
        rest.clone().zip(rest.skip(1).chain([end])).map(|(start, next)| next.saturating_sub(start))
    };
    // The first chunk that does not fill its room as it should.
    let mut first = None;
    for (n, ((start, _), len)) in order.iter().zip(lens_from(0)).enumerate() {
        if bytes.chunk_at(*start, end)?.is_none_or(|chunk| u64::from(chunk.cbytes) != len) {
            first = Some(n);
            break;
        }
    }
    let Some(first) = first else { return Ok(None) };
    for from in [first, first + 1] {
        let (Some(start), Some(before)) = (start_of(from), from.checked_sub(1).and_then(start_of)) else { continue };
        // As far as the chunk before could have grown or shrunk.
        let reach = start.saturating_add(u64::from(header.chunksize()) + 4096).min(bytes.len);
        let mut at = before + 32;
        while at < reach {
            if at != start && chain(bytes, header, at, lens_from(from))? {
                let by = at as i64 - start as i64;
                return Ok(Some(moved(bytes, header, entries, &order, from, by, base)?));
            }
            at += 1;
        }
    }
    Ok(None)
}

/// Whether chunks of just these lengths follow each other from `at` on.
fn chain(bytes: &Bytes<'_>, header: &FrameHeader, mut at: u64, lens: impl Iterator<Item = u64>) -> io::Result<bool> {
    let mut lens = lens.peekable();
    while let Some(len) = lens.next() {
        match bytes.chunk_at(at, bytes.len)? {
            Some(chunk) if u64::from(chunk.cbytes) == len && fits(header, &chunk, lens.peek().is_none()) => at += len,
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn moved(
    bytes: &Bytes<'_>,
    header: &FrameHeader,
    entries: &[IndexEntry<ChunkOffset>],
    order: &[(u64, u32)],
    from: usize,
    by: i64,
    base: u64,
) -> io::Result<Moved> {
    let mut entries = entries.to_vec();
    let mut sizes = vec![None; entries.len()];
    let limit = order.get(from).map_or(bytes.len, |(start, _)| start.saturating_add_signed(by));
    let mut decoder = Decoder::default();
    for (n, &(start, position)) in order.iter().enumerate() {
        let start = if n >= from { start.saturating_add_signed(by) } else { start };
        let limit = if n >= from { bytes.len } else { limit };
        let position = position as usize;
        let chunk = bytes.chunk_at(start, limit)?.filter(|chunk| fits(header, chunk, position + 1 == entries.len()));
        let mut size = chunk.map(|chunk| chunk.nbytes);
        // The one in front of those that moved may be half overwritten.
        if n + 1 == from
            && let Some(chunk) = &chunk
            && !bytes.decodes(start, chunk, &mut decoder)?
        {
            size = None;
        }
        if let (Some(slot), Some(entry)) = (sizes.get_mut(position), entries.get_mut(position)) {
            *slot = size;
            *entry = IndexEntry::Stored(ChunkOffset::new(start - base));
        }
    }
    Ok(Moved { entries, sizes, by })
}

/// A frame that does not read: what is there of its parts?
fn parts_of(plan: &mut Plan, bytes: &Bytes<'_>, header: FrameHeader) -> io::Result<()> {
    let base = u64::from(header.header_len());
    let whole = if let Some(found) = bytes.find_index(&header)? {
        let FoundIndex { at, end, entries, sizes } = found;
        plan.steps.push(format!("take the index of {} chunks at byte {at}, which all its chunks agree with", entries.len()));
        let (trailer, standing) = trailer(plan, bytes, &header, end, base)?;
        let standing = standing.filter(|trailer_at| *trailer_at == end).map(|_| at);
        trailer.map(|trailer| Whole { entries: Arc::new(entries), sizes, trailer, standing })
    } else if header.nbytes() == 0 {
        let (trailer, standing) = trailer(plan, bytes, &header, base, base)?;
        let standing = standing.filter(|trailer_at| *trailer_at == base);
        trailer.map(|trailer| Whole { entries: Arc::new(Vec::new()), sizes: Vec::new(), trailer, standing })
    } else {
        rebuilt(plan, bytes, &header)?
    };
    finish(plan, bytes, header, whole)
}

/// The trailer, and where it stands.
fn trailer(
    plan: &mut Plan,
    bytes: &Bytes<'_>,
    header: &FrameHeader,
    after: u64,
    base: u64,
) -> io::Result<(Option<Trailer>, Option<u64>)> {
    if let Some(mut trailer) = bytes.trailer_at(after)? {
        let whole = super::sound_layers(plan, &mut trailer);
        return Ok((Some(trailer), whole.then_some(after)));
    }
    for end in [bytes.len, header.frame_len()] {
        if let Some((at, mut trailer)) = bytes.trailer_before(end, base)? {
            plan.steps.push(format!("take the trailer at byte {at}"));
            let whole = super::sound_layers(plan, &mut trailer);
            return Ok((Some(trailer), whole.then_some(at)));
        }
    }
    if header.fields().has_vlmetalayers {
        plan.lost.push("the vlmetalayers: the trailer that held them is gone");
    }
    plan.steps.push("write an empty trailer".to_owned());
    Ok((empty_trailer().ok(), None))
}

/// Without an index: from the chunks themselves, where nothing about them is in doubt but that they come in the order of the
/// file.
fn rebuilt(plan: &mut Plan, bytes: &Bytes<'_>, header: &FrameHeader) -> io::Result<Option<Whole>> {
    let base = u64::from(header.header_len());
    let nothing = |plan: &mut Plan, why: String| {
        plan.lost.push(format_args!("the index, and it cannot be made again from the chunks: {why}"));
        Ok(None)
    };
    let Some(count) = header.nchunks().and_then(|count| usize::try_from(count).ok()) else {
        return nothing(plan, "they vary in size, so their number is not known".to_owned());
    };
    let (chunks, end) = bytes.walk(header, count)?;
    if chunks.len() != count {
        return nothing(plan, format!("{} of {count} follow each other from the header on", chunks.len()));
    }
    let said = base.saturating_add(header.cbytes());
    if chunks.iter().skip(1).any(|(at, _)| *at == said) {
        // Those behind are newer than the header, so among those before are special ones, and nobody knows where.
        return nothing(plan, "some of them were special chunks, of which no byte is stored".to_owned());
    }
    if end == said {
        // Then something was written over the index. An appended chunk has left the others alone; anything else may not have.
        let appended =
            bytes.chunk_at(end, u64::MAX)?.is_some_and(|chunk| fits(header, &chunk, true)) || claims_chunk(bytes, header, end)?;
        if !appended {
            return nothing(plan, format!("what stands behind them, at byte {end}, is not a chunk that was being appended"));
        }
    }
    let mut decoder = Decoder::default();
    for (position, (at, chunk)) in chunks.iter().enumerate() {
        if !fits(header, chunk, position + 1 == count) || !bytes.decodes(*at, chunk, &mut decoder)? {
            return nothing(plan, format!("the one at byte {at} does not decode"));
        }
    }
    plan.steps.push(format!(
        "make the index again from the {count} chunks behind the header, in the order in which they lie in the file (if chunks were \
         inserted or reordered before, their order is lost)"
    ));
    let entries = chunks.iter().map(|(at, _)| IndexEntry::Stored(ChunkOffset::new(at - base))).collect();
    let sizes = chunks.iter().map(|(_, chunk)| Some(chunk.nbytes)).collect();
    let (trailer, _) = trailer(plan, bytes, header, end, base)?;
    Ok(trailer.map(|trailer| Whole { entries: Arc::new(entries), sizes, trailer, standing: None }))
}

/// Whether a chunk of the frame begins at `at`, of which not all needs to be there.
fn claims_chunk(bytes: &Bytes<'_>, header: &FrameHeader, at: u64) -> io::Result<bool> {
    let head = bytes.read(at, crate::format::chunk::ChunkHeader::LEN as u64)?;
    Ok(crate::format::chunk::ChunkHeader::parse(&head).is_ok_and(|chunk| fits(header, &chunk, true)))
}

/// Makes special chunks that are stored special entries, where C-Blosc2 reads nothing else.
fn make_entries(plan: &mut Plan, bytes: &Bytes<'_>, header: &FrameHeader, whole: &mut Whole) -> io::Result<()> {
    let base = u64::from(header.header_len());
    let count = whole.entries.len();
    let mut special = Vec::new();
    for (position, entry) in whole.entries.iter().enumerate() {
        if let IndexEntry::Stored(offset) = entry
            && let Some(chunk) = bytes.chunk_at(base.saturating_add(offset.bytes()), bytes.len)?
            && let Some(value) = entry_for(header, &chunk, position, count)
        {
            plan.found.push(format_args!("chunk {position}: a special chunk that is stored, which C-Blosc2 does not read"));
            plan.steps.push(format!("make chunk {position} a special entry of the index"));
            special.push((position, value));
        }
    }
    if !special.is_empty() {
        whole.standing = None;
        let entries = Arc::make_mut(&mut whole.entries);
        for (position, value) in special {
            if let Some(entry) = entries.get_mut(position) {
                *entry = IndexEntry::Special(value);
            }
        }
    }
    Ok(())
}

/// Turns what the frame is to hold into writes.
fn finish(plan: &mut Plan, bytes: &Bytes<'_>, header: FrameHeader, mut whole: Option<Whole>) -> io::Result<()> {
    if let Some(whole) = &mut whole {
        make_entries(plan, bytes, &header, whole)?;
    }
    let planned = whole.map(|whole| writes(plan, bytes, header, whole));
    plan.work = match planned {
        Some(Ok((writes, len))) => Work::Cframe { writes, len },
        Some(Err(error)) => {
            plan.lost.push(format_args!("the frame: {error}"));
            Work::Impossible
        }
        None => Work::Impossible,
    };
    Ok(())
}

#[expect(clippy::type_complexity, reason = "writes, and the file's length")]
fn writes(
    plan: &mut Plan,
    bytes: &Bytes<'_>,
    mut header: FrameHeader,
    whole: Whole,
) -> format::Result<(Vec<(u64, Vec<u8>)>, u64)> {
    let Whole { entries, sizes, trailer, standing } = whole;
    let base = u64::from(header.header_len());
    let before = header.clone();
    let nbytes = nbytes_of(&entries, &sizes, header.chunksize(), header.nbytes())?;
    let trailer_len = trailer.as_bytes().len() as u64;
    let mut writes = Vec::new();
    let (index_at, end) = if entries.is_empty() {
        // Nothing but the trailer may follow the header.
        let end = base + trailer_len;
        if standing.is_none() {
            writes.push((base, trailer.as_bytes().to_vec()));
        }
        (base, end)
    } else if let Some(at) = standing {
        let index_len = index_len(bytes, at);
        (at, at + index_len + trailer_len)
    } else {
        let mut tail = index::encode(entries.iter().copied())?;
        tail.extend_from_slice(trailer.as_bytes());
        let end = bytes.len + tail.len() as u64;
        plan.steps.push(format!("write index and trailer behind everything else, at byte {}", bytes.len));
        writes.push((bytes.len, tail));
        (bytes.len, end)
    };
    header.set_nbytes(nbytes);
    header.set_cbytes(index_at - base);
    header.set_frame_len(end);
    header.set_has_vlmetalayers(trailer.vlmetalayers().len() > 0);
    for (name, old, new) in [("nbytes", before.nbytes(), header.nbytes()), ("cbytes", before.cbytes(), header.cbytes())] {
        if old != new {
            plan.steps.push(format!("set the header's {name} from {old} to {new}"));
        }
    }
    plan.steps.push(format!("set the header's frame_len to {end}"));
    writes.push((0, header.as_bytes().to_vec()));
    let len = if entries.is_empty() { end } else { bytes.len.max(end) };
    Ok((writes, len))
}

fn index_len(bytes: &Bytes<'_>, at: u64) -> u64 {
    bytes.chunk_at(at, bytes.len).ok().flatten().map_or(0, |chunk| u64::from(chunk.cbytes))
}

/// See the table in the module above.
pub(super) fn carry_out(file: &dyn BackendFile, writes: &[(u64, Vec<u8>)], len: u64, saved: &Saved) -> io::Result<()> {
    let old_len = file.stat()?.len;
    for (offset, bytes) in writes {
        let there = old_len.saturating_sub(*offset).min(bytes.len() as u64);
        if there > 0 {
            saved.copy(&format!("bytes-at-{offset}"), file, *offset, there)?;
        }
    }
    if len < old_len {
        saved.copy(&format!("bytes-from-{len}-on"), file, len, old_len - len)?;
    }
    let (header, others) = match writes.split_last() {
        Some((header, others)) => (Some(header), others),
        None => (None, writes),
    };
    for (offset, bytes) in others {
        file.write_at(bytes, *offset)?;
    }
    file.sync_data()?;
    if let Some((offset, bytes)) = header {
        file.write_at(bytes, *offset)?;
    }
    if len < old_len {
        file.set_len(len)?;
    }
    file.sync_all()
}
