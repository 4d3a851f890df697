//! Looking at every part of a frame, and saying all that is wrong with it, where opening a frame stops at the first thing.
//!
//! Nothing is written and no lock is taken: a frame that another process is changing may show findings that are gone the next
//! time. What is found is told as it is found, in the order of the frame: its parts, then its chunks by position, then what
//! lies between them.

use std::collections::BTreeMap;
use std::path::Path;

use super::backend::Backend;
use super::inspect::chunks::{Chunks, ROUND, SHARE, damage, in_order, see};
use super::inspect::parts::FrameParts;
use super::inspect::{Frame, Inspection, Seen, Unused};
use super::{Location, Result};
use crate::format::chunk::{self, ChunkHeader, Decoder};
use crate::format::header::FrameHeader;
use crate::format::index::Place;
use crate::format::registry::Plugin;
use crate::format::tiling::Tiling;
use crate::format::{ChunkId, Fit, IndexEntry, Layout, Position, Rules};

pub use super::inspect::{Finding, Kind, Severity};

mod others;
#[cfg(test)]
mod tests;

/// Chunks that a thread takes at once to decode.
const DEEP_SHARE: usize = 32;
/// Special entries that are not read and named one by one.
const MOST_ENTRIES: usize = 1000;

/// What was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// The frame's layout.
    pub layout: Layout,
    /// Entries of the index; `None` where it cannot be read, and so no chunk was looked at.
    pub chunks: Option<u64>,
    /// Chunks that are stored, and not only a special entry of the index.
    pub stored: u64,
    /// Bytes of the stored chunks.
    pub bytes: u64,
    /// Whether every chunk was decoded, but for those that need a plugin.
    pub deep: bool,
    /// Chunks that were not decoded because they need a plugin.
    pub undecoded: u64,
}

/// How to look.
#[derive(Debug, Clone, Copy)]
pub struct Depth {
    /// Decode every chunk, and not only read its header.
    pub deep: bool,
    /// Threads that look at chunks, at least 1.
    pub threads: usize,
}

/// Checks a frame of either layout. `found` gets every finding; `progress` is told how many chunks of how many are done, and
/// answers whether to go on.
///
/// # Errors
/// What cannot be read at all, because the system refuses or because there is no frame header.
pub fn check(
    path: &Path,
    depth: Depth,
    found: &mut dyn FnMut(Finding),
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Checked> {
    check_at(&Location::existing(path)?, depth, found, progress)
}

/// As [`check`], of the frame at a location.
///
/// # Errors
/// As [`check`].
pub fn check_at(
    location: &Location,
    depth: Depth,
    found: &mut dyn FnMut(Finding),
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Checked> {
    let inspection = &Inspection::open_at(location)?;
    inspection.findings().iter().cloned().for_each(&mut *found);
    if let Err(error) = Tiling::of_frame(inspection.header()) {
        found(Finding::damage(Kind::Header, error.to_string()));
    }
    check_metadata(inspection, depth.deep, found);
    let sum = match &inspection.frame {
        Frame::Contiguous(parts, chunks) => {
            let mut extents = inspection.extents();
            let sum = walk(inspection, (parts, chunks), depth, found, progress, &mut |position, offset, cbytes| {
                extents.iter_mut().for_each(|extents| extents.add(offset, cbytes, position));
            })?;
            let unused = extents
                .map(|extents| extents.unused(&mut |position, what| found(Finding::damage(Kind::Overlap, what).at(position))));
            match unused {
                Some(unused) if unused.bytes > 0 && parts.entries.is_some() => found(Finding::note(Kind::Hole, in_words(unused))),
                _ => {}
            }
            sum
        }
        Frame::Sparse(parts, chunks) => {
            let sum = walk(inspection, (parts, chunks), depth, found, progress, &mut |_, _, _| {})?;
            if let Some(entries) = &parts.entries {
                names(location, &*chunks.0, &parts.header, entries, found)?;
            }
            sum
        }
    };
    let Sum { stored, bytes, undecoded, .. } = sum;
    Ok(Checked { layout: inspection.layout(), chunks: inspection.nchunks(), stored, bytes, deep: depth.deep, undecoded })
}

fn in_words(unused: Unused) -> String {
    match unused {
        Unused { holes: 1, bytes } => format!("{bytes} bytes in one hole between the chunks"),
        Unused { holes, bytes } => format!("{bytes} bytes in {holes} holes between the chunks"),
    }
}

/// Looks at the contents of the vlmetalayers, which are chunks.
fn check_metadata(inspection: &Inspection, deep: bool, found: &mut dyn FnMut(Finding)) {
    let mut decoder = Decoder::default();
    for layer in inspection.trailer().iter().flat_map(|trailer| trailer.vlmetalayers()) {
        let checked = if deep { decoder.verify(layer.content) } else { chunk::check(layer.content) };
        match checked.map(|chunk| chunk.plugin()) {
            Err(error) => found(Finding::vlmetalayer(layer.name, &error)),
            Ok(Some(plugin)) if deep => found(Finding::undecoded_vlmetalayer(layer.name, plugin)),
            Ok(_) => {}
        }
    }
}

/// Looks at the names in an sframe's directory.
fn names(
    location: &Location,
    dir: &dyn Backend,
    header: &FrameHeader,
    entries: &[IndexEntry<ChunkId>],
    found: &mut dyn FnMut(Finding),
) -> Result<()> {
    let bound = header.cbytes().saturating_sub(ChunkHeader::LEN as u64);
    if let Some(id) = entries.iter().filter_map(|entry| entry.stored()).max().filter(|id| u64::from(id.0) > bound) {
        // It holds ids against the bound that is meant for a cframe's offsets.
        let what = format!(
            "header: cbytes at byte 39: found {}, expected at least {} for C-Blosc2 to open a frame with chunk {id}",
            header.cbytes(),
            u64::from(id.0) + ChunkHeader::LEN as u64
        );
        found(Finding::damage(Kind::Header, what));
    }
    others::others(location, dir, entries, found)
}

/// Looks at the special entries of an index: a small one can have millions that are not read.
fn check_entries<P>(rules: &Rules, entries: &[IndexEntry<P>], found: &mut dyn FnMut(Finding)) {
    let misfits = (0u64..).zip(entries).filter_map(|(position, entry)| match entry {
        IndexEntry::Special(special) => Some((Position(position), rules.check_entry(*special).err()?)),
        IndexEntry::Stored(_) => None,
    });
    let mut more = 0u64;
    for (n, (position, error)) in misfits.enumerate() {
        match n < MOST_ENTRIES {
            true => found(Finding::damage(Kind::Misfit, error.to_string()).at(position)),
            false => more += 1,
        }
    }
    if more > 0 {
        found(Finding::damage(Kind::Misfit, format!("index: special value: {more} more that are not read")));
    }
}

/// What all chunks come to.
#[derive(Default, Clone, Copy)]
struct Sum {
    stored: u64,
    bytes: u64,
    nbytes: u64,
    undecoded: u64,
    complete: bool,
}

/// Looks at every chunk of an index, in several threads, a round at a time; `sound` learns the places of those whose headers
/// can be believed. Without an index there is nothing to look at. Damage is told of only if the frame is still the one that is looked at.
fn walk<P: Place + Send + Sync>(
    inspection: &Inspection,
    (parts, chunks): (&FrameParts<P>, &impl Chunks<P>),
    depth: Depth,
    found: &mut dyn FnMut(Finding),
    progress: &mut dyn FnMut(usize, usize) -> bool,
    sound: &mut dyn FnMut(Position, P, u32),
) -> Result<Sum> {
    let mut sum = Sum { complete: true, ..Sum::default() };
    let Some(entries) = &parts.entries else { return Ok(sum) };
    let header = &parts.header;
    let count = entries.len() as u64;
    // A deep look takes long, and whoever watches wants to see it move.
    let pace = if depth.deep { (DEEP_SHARE * depth.threads.max(1) * 4, DEEP_SHARE) } else { (ROUND, SHARE) };
    let rules = Rules::of(header);
    let look = |bench: &mut Bench, position: Position, place| {
        let fit = rules.of_whole(position.0, count, header.nbytes());
        one(chunks, place, fit, depth.deep.then_some(bench))
    };
    check_entries(&rules, entries, found);
    let mut plugins = BTreeMap::<String, u64>::new();
    let mut is_damaged = false;
    let mut tell = |position, entry: IndexEntry<P>, looked: Option<Looked>| {
        let (IndexEntry::Stored(place), Some(looked)) = (entry, looked) else { return true };
        if !is_damaged && looked.findings.iter().any(|finding| finding.severity == Severity::Damage) {
            is_damaged = true;
            if inspection.check_reach(true).is_err() {
                return false;
            }
        }
        sum.stored += 1;
        if let Some(chunk) = looked.header {
            sum.bytes = sum.bytes.saturating_add(u64::from(chunk.cbytes));
            sum.nbytes = sum.nbytes.saturating_add(u64::from(chunk.nbytes));
            sound(position, place, chunk.cbytes);
        } else {
            sum.complete = false;
        }
        if let Some(plugin) = looked.plugin {
            sum.undecoded += 1;
            *plugins.entry(plugin.to_string()).or_default() += 1;
        }
        looked.findings.into_iter().for_each(|finding| found(finding.at(position)));
        true
    };
    let whole = in_order(chunks, entries, depth.threads, pace, &look, &mut tell, &mut |done| progress(done, entries.len()));
    inspection.check_reach(is_damaged)?;
    for (plugin, count) in plugins {
        let chunks = if count == 1 { "1 chunk was" } else { &format!("{count} chunks were") };
        found(Finding::note(Kind::Plugin, format!("{chunks} not decoded: needed is {plugin}")));
    }
    if whole {
        progress(entries.len(), entries.len());
    }
    // Special entries of a frame whose chunks vary in size have no size of their own.
    let all_stored = sum.stored == count;
    if header.chunksize() == 0 && sum.complete && whole && all_stored && sum.nbytes != header.nbytes() {
        let what =
            format!("header: nbytes at byte 30: found {}, expected {}, the sum of the chunks", header.nbytes(), sum.nbytes);
        found(Finding::damage(Kind::Size, what));
    }
    Ok(sum)
}

/// What a thread decodes with.
#[derive(Default)]
struct Bench {
    decoder: Decoder,
    bytes: Vec<u8>,
}

/// What one chunk was found to be.
struct Looked {
    /// Its header, where that can be believed.
    header: Option<ChunkHeader>,
    /// What its data would have needed to be decoded.
    plugin: Option<Plugin>,
    findings: Vec<Finding>,
}

fn one<P: Place>(chunks: &impl Chunks<P>, place: P, fit: Fit, deep: Option<&mut Bench>) -> Looked {
    let (mut decoder, mut read) = (None, Ok(()));
    let seen = match deep {
        None => see(chunks, place),
        Some(bench) => {
            let (with, bytes) = (&mut bench.decoder, &mut bench.bytes);
            let whole = chunks.whole(place, bytes);
            decoder = Some((with, bytes));
            whole.map(|(seen, whole)| {
                read = whole;
                seen
            })
        }
    };
    let Seen { header, room } = match seen {
        Ok(seen) => seen,
        Err(finding) => return Looked { header: None, plugin: None, findings: vec![*finding] },
    };
    let bad = |kind, what: &dyn std::fmt::Display| damage(chunks, place, kind, what);
    let (mut findings, mut plugin) = (Vec::new(), None);
    let behind = room - u64::from(header.cbytes);
    if chunks.exact() && behind > 0 {
        findings.push(Finding::note(Kind::Hole, format!("{}: {behind} bytes behind the chunk", chunks.name(place))));
    }
    if let Err(error) = fit.check(&header.traits()) {
        let kind = if fit.check_size(header.nbytes).is_err() { Kind::Size } else { Kind::Misfit };
        findings.push(bad(kind, &error));
    }
    if let Some((decoder, bytes)) = decoder {
        match read {
            Err(error) => findings.push(bad(Kind::Data, &format!("cannot be read: {}", crate::store::in_words(&error)))),
            Ok(()) => match decoder.verify(bytes) {
                Ok(verified) => plugin = verified.plugin(),
                Err(error) => findings.push(bad(Kind::Data, &error)),
            },
        }
    }
    Looked { header: Some(header), plugin, findings }
}
