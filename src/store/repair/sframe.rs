//! Frames in a directory: the index file, and chunk files that it names or should name.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

use super::search::{Bytes, entry_for, fits, has_misfit, is_misfit};
use super::{Plan, Saved, Work, empty_trailer, header_of, nbytes_of};
use crate::format::chunk::ChunkHeader;
use crate::format::header::FrameHeader;
use crate::format::index_file::IndexFile;
use crate::format::trailer::Trailer;
use crate::format::{ChunkId, INDEX_NAME, IndexEntry, Layout, Special, index};
use crate::store::StoreError;
use crate::store::backend::Backend;
use crate::store::error::in_words;
use crate::store::frame::{FileBytes, Frame, FramePart, Unread};

type Entries = Vec<IndexEntry<ChunkId>>;

pub(super) fn plan(plan: &mut Plan, dir: &dyn Backend) -> crate::store::Result<()> {
    let path = plan.path().join(INDEX_NAME);
    let io = |action| {
        let path = path.clone();
        move |source| StoreError::Io { path, action, source }
    };
    let file = dir.open(OsStr::new(INDEX_NAME), false).map_err(io("open"))?;
    let len = file.stat().map_err(io("stat"))?.len;
    let bytes = Bytes { file: &*file, len };
    let (header, trailer, entries, sound) = match Frame::<ChunkId>::read(&FileBytes { file: &*file, len }) {
        Ok(Frame { header, mut trailer, entries, .. }) => {
            let sound = super::sound_layers(plan, &mut trailer);
            (header, trailer, entries, sound)
        }
        Err(Unread::Format(error)) => {
            plan.found.push(&error);
            let no_header = |source| StoreError::Format { path: path.clone(), source };
            let header = header_of(bytes.read(0, len.min(1 << 20)).map_err(io("read"))?).map_err(no_header)?;
            if header.layout() != Layout::Sparse {
                return Err(Unread::OtherLayout.at(&path, Layout::Sparse));
            }
            let Some((entries, end)) = entries_of(plan, dir, &bytes, &header).map_err(io("read"))? else {
                plan.work = Work::Impossible;
                return Ok(());
            };
            let mut trailer = trailer_of(plan, &bytes, &header, end).map_err(io("read"))?;
            super::sound_layers(plan, &mut trailer);
            (header, trailer, entries, false)
        }
        Err(other) => return Err(other.at(&path, Layout::Sparse)),
    };
    let count = entries.len();
    let mut misfit = has_misfit(plan, &header, &entries);
    let (mut entries, mut sizes, mut cbytes, mut gone) = (entries, Vec::with_capacity(count), 0u64, false);
    for (position, entry) in entries.iter_mut().enumerate() {
        let IndexEntry::Stored(id) = *entry else {
            sizes.push(None);
            continue;
        };
        match chunk_of(dir, id, &header, position + 1 == count) {
            Ok(chunk) => {
                sizes.push(Some(chunk.nbytes));
                let Some(special) = entry_for(&header, &chunk, position, count) else {
                    cbytes = cbytes.saturating_add(u64::from(chunk.cbytes));
                    misfit |= is_misfit(plan, &header, &chunk, position, count);
                    continue;
                };
                plan.found
                    .push(format_args!("chunk {position}: {id}.chunk is a special chunk, which C-Blosc2 reads from no file"));
                plan.steps.push(format!("make chunk {position} a special entry of the index"));
                *entry = IndexEntry::Special(special);
                gone = true;
            }
            Err(why) => {
                plan.found.push(format_args!("chunk {position}: {id}.chunk {why}"));
                gone = true;
                if header.chunksize() == 0 {
                    plan.lost
                        .push(format_args!("chunk {position}, whose size is not known, as chunks of this frame vary in size"));
                    plan.work = Work::Impossible;
                    return Ok(());
                }
                plan.lost.push(format_args!("chunk {position}: it becomes uninitialised"));
                *entry = IndexEntry::Special(Special::Uninit);
                sizes.push(None);
            }
        }
    }
    if sound && !gone {
        if misfit {
            plan.work = Work::Impossible;
        }
        return Ok(());
    }
    let nbytes = nbytes_of(&entries, &sizes, header.chunksize(), header.nbytes());
    let made = nbytes.and_then(|nbytes| {
        let mut header = header;
        header.set_nbytes(nbytes);
        header.set_cbytes(cbytes);
        header.set_has_vlmetalayers(trailer.vlmetalayers().len() > 0);
        IndexFile { header, trailer, entries: entries.into() }.make_file()
    });
    plan.work = match made {
        Ok(index) => {
            plan.steps.push(format!("write a new {INDEX_NAME} of {count} chunks"));
            Work::Sframe { index }
        }
        Err(error) => {
            plan.lost.push(format_args!("the index: {error}"));
            Work::Impossible
        }
    };
    Ok(())
}

/// The chunk in a file, or what is wrong with it.
fn chunk_of(dir: &dyn Backend, id: ChunkId, frame: &FrameHeader, last: bool) -> Result<ChunkHeader, String> {
    let file = dir.open(OsStr::new(&id.file_name()), false).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "is not there".to_owned(),
        _ => format!("cannot be read: {}", in_words(&error)),
    })?;
    let len = file.stat().map_err(|error| format!("cannot be read: {}", in_words(&error)))?.len;
    let head = Bytes { file: &*file, len }.read(0, ChunkHeader::LEN as u64);
    let chunk = ChunkHeader::parse(&head.map_err(|error| format!("cannot be read: {}", in_words(&error)))?)
        .map_err(|error| format!("is no chunk: {error}"))?;
    if u64::from(chunk.cbytes) > len {
        return Err(format!("is {} bytes long, and the chunk in it {}", len, chunk.cbytes));
    }
    if !fits(frame, &chunk, last) {
        return Err(format!("holds a chunk of {} bytes, which is not the frame's size of chunks", chunk.nbytes));
    }
    Ok(chunk)
}

/// The index and where it ends, or one made again from the files.
fn entries_of(plan: &mut Plan, dir: &dyn Backend, bytes: &Bytes<'_>, header: &FrameHeader) -> io::Result<Option<(Entries, u64)>> {
    let base = u64::from(header.header_len());
    let chunk = bytes.chunk_at(base, bytes.len)?;
    if let Some(chunk) = chunk
        && let Some(raw) = bytes.part(FramePart::Index, base, u64::from(chunk.cbytes))?
        && let Ok(entries) = index::decode::<ChunkId>(&raw, None)
        && plausible(dir, &entries, header)
    {
        plan.steps.push(format!("take the index of {} chunks as it stands behind the header", entries.len()));
        return Ok(Some((entries, base + u64::from(chunk.cbytes))));
    }
    if header.nbytes() == 0 {
        return Ok(Some((Vec::new(), base)));
    }
    let Some(count) = header.nchunks() else {
        plan.lost.push("the index, and it cannot be made again: chunks vary in size, so their number is not known");
        return Ok(None);
    };
    let ids = ids_in(dir)?;
    // An append that was cut off has left one file more.
    let numbered = ids.iter().zip(0u32..).all(|(id, n)| id.0 == n) && (ids.len() as u64).abs_diff(count) <= 1;
    let ids: Vec<ChunkId> = ids.into_iter().take(usize::try_from(count).unwrap_or(usize::MAX)).collect();
    let chunks = ids.iter().map(|id| chunk_of(dir, *id, header, true).map_or(0, |chunk| u64::from(chunk.cbytes)));
    // If the sum is not the header's, some chunks were special ones, or some of these are not of this state.
    if !numbered || ids.len() as u64 != count || chunks.sum::<u64>() != header.cbytes() {
        plan.lost.push(format_args!(
            "the index, and it cannot be made again: the chunk files are not those of {count} chunks in {} bytes, as the header has it",
            header.cbytes()
        ));
        return Ok(None);
    }
    plan.steps.push(format!(
        "make the index again from {count} chunk files in the order of their names (if chunks were inserted or reordered before, their \
         order is lost)"
    ));
    Ok(Some((ids.into_iter().map(IndexEntry::Stored).collect(), base)))
}

/// Whether an index of a half-written file can be believed: all its chunks but perhaps one are there, each once.
fn plausible(dir: &dyn Backend, entries: &Entries, header: &FrameHeader) -> bool {
    let mut seen = BTreeSet::new();
    let mut missing = 0;
    for (position, entry) in entries.iter().enumerate() {
        if let IndexEntry::Stored(id) = entry {
            if !seen.insert(*id) {
                return false;
            }
            missing += u32::from(chunk_of(dir, *id, header, position + 1 == entries.len()).is_err());
        }
    }
    missing <= 1
}

fn ids_in(dir: &dyn Backend) -> io::Result<BTreeSet<ChunkId>> {
    let mut ids = BTreeSet::new();
    for name in dir.names()? {
        ids.extend(ChunkId::from_file_name(name.as_bytes()));
    }
    Ok(ids)
}

fn trailer_of(plan: &mut Plan, bytes: &Bytes<'_>, header: &FrameHeader, after: u64) -> io::Result<Trailer> {
    let base = u64::from(header.header_len());
    if let Some(trailer) = bytes.trailer_at(after)? {
        return Ok(trailer);
    }
    if let Some((at, trailer)) = bytes.trailer_before(bytes.len, base)? {
        plan.steps.push(format!("take the trailer at byte {at} of {INDEX_NAME}"));
        return Ok(trailer);
    }
    if header.fields().has_vlmetalayers {
        plan.lost.push("the vlmetalayers: the trailer that held them is gone");
    }
    plan.steps.push("write an empty trailer".to_owned());
    empty_trailer().map_err(|error| io::Error::other(error.to_string()))
}

/// See the table in the module above.
pub(super) fn carry_out(dir: &dyn Backend, index: &[u8], saved: &Saved) -> io::Result<()> {
    let name = OsStr::new(INDEX_NAME);
    let old = dir.open(name, false)?;
    saved.copy(INDEX_NAME, &*old, 0, old.stat()?.len)?;
    let temp = OsString::from(format!(".b2fuse-{}-repair.tmp", std::process::id()));
    let file = dir.create(&temp, 0o600)?;
    file.copy_attributes(&*old);
    let written = file.write_at(index, 0).and_then(|()| file.sync_all()).and_then(|()| dir.rename(&temp, name, true));
    if written.is_err() {
        let _ = file.stat().and_then(|stat| dir.remove_file(&temp, &stat));
    }
    written?;
    dir.sync_dir()
}
