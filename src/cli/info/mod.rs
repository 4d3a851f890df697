//! `b2fuse info`: what frames are, without decoding their data.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use self::content::{Layer, Room};
use super::trees::{self, Item};
use super::{Failure, Outcome, frames, memory, output};
use crate::format::array::{Array, ArrayKind};
use crate::format::chunk::ChunkHeader;
use crate::format::header::HeaderFields;
use crate::format::registry::CodecId;
use crate::format::{IndexEntry, Layout, Special};
use crate::store::inspect::{ChunkPlace, Finding, Inspection, Kind, Severity, Unused};

mod content;
mod json;
mod text;

/// Stored chunks of a frame up to which their headers are read without being asked for: about what takes a second.
const MOST_IN_FILE: u64 = 1 << 20;
const MOST_IN_DIRECTORY: u64 = 1 << 16;
/// The same at a URL, where each may take a request.
const MOST_AFAR: u64 = 64;
/// Findings about chunks that are told; of the others, how many there are.
const MOST_FINDINGS: usize = 20;

/// Show facts about frames: sizes, chunks, compression, array, metalayers
///
/// Shows what can be read of a damaged frame, and says where it stopped. Exits with 0 if everything could be read. Otherwise prints one
/// line on stderr for each such frame and exits with 1; `b2fuse check` finds more. A mount is shown as the frame that it
/// looks like.
///
/// Sizes are in bytes. cbytes is the value in the frame's header: in a file the length of the chunks section with its holes, in a
/// directory the sum of the chunks. Sizes of chunks, numbers of copies and repeated values, and unused space come from the headers of the
/// chunks. These are read, in about a second, if a file has at most 1,048,576 stored chunks or a directory 65,536; otherwise only with
/// --all.
///
/// For a directory, or a store of Python-Blosc2 (.b2d, .b2z), all frames in it are shown, at any depth, in the order of their paths; see
/// `b2fuse check` for what counts as a frame.
#[derive(clap::Args)]
#[command(after_long_help = "\
JSON output:
  One object a line for each frame. Fields may be added, and are not
  removed or changed. Sizes are in bytes. null means not known, or not
  present where the list says so.

  frame         the path; for a frame in a directory, with the directory's
                path before it
  error         only if the frame cannot be read at all; then no other
                fields but frame
  layout        \"cframe\" or \"sframe\"
  version       of the frame format
  nbytes, cbytes
                as in the header
  ratio         nbytes / cbytes; null where cbytes is 0
  file_size     of the file; of a directory the sum of chunks.b2frame and
                the chunk files, null if their headers were not read
  typesize, chunksize, blocksize
                chunksize 0: chunks vary in size; null: not set before the
                first chunk; blocksize 0: chosen by the compressor
  varying_chunks, vl_blocks
                flags of the header: chunks, or blocks, that vary in size
  codec         {id, name, meta, level}; name is null for numbers without
                one
  filters       [{id, name, meta}, ...] in the order of compression,
                without empty slots
  splitmode     \"always\", \"never\", \"auto\" or \"forward_compat\"
  dictionary    true or false
  threads       {compress, decompress}
  chunks        entries of the index: {count, stored, zeros, nan, uninit};
                null if it cannot be read
  stored        what headers of stored chunks say, null if they were not
                read: {cbytes, smallest, largest, copies, repeated, zeros,
                nan, uninit, dictionary, vl_blocks, unreadable, codecs,
                unused}: cbytes is their sum, smallest and largest are
                cbytes of one; the next are numbers of chunks: plain
                copies, those that are one value repeated or nothing but a
                special value, those with a dictionary or VL-blocks, those
                whose header cannot be read; codecs is {name: number of
                chunks, ...} of those that are compressed; unused is
                {holes, bytes} between chunks or behind them, null if a
                header cannot be read
  array         null for none, {kind, error} for one whose metalayer is
                wrong, or {kind, version, ndim, shape, chunkshape,
                blockshape, dtype_format, dtype}; kind is \"b2nd\" or
                \"caterva\"; dtype is null without one
  object        the class of Python-Blosc2, such as \"LazyExpr\", where the
                frame stands for an object whose values are not the
                data; null for none
  metalayers    [{name, nbytes, hex, msgpack}, ...]: hex is the content.
                msgpack is only there if it is MessagePack and nothing else
                (and no more than 1 MiB in all metalayers before and with
                it): numbers, strings, true, false, null and arrays as in
                JSON; maps with different strings as keys as objects,
                others as {\"map\": [[key, value], ...]}; bytes as {\"bytes\":
                HEX}, extensions as {\"ext\": TYPE, \"bytes\": HEX}; floats
                that JSON cannot hold as {\"float\": \"nan\", \"inf\" or \"-inf\"}
  vlmetalayers  likewise, decompressed, and with cbytes; null if they
                cannot be read. Where the content cannot be read, or would
                make more than 16 MiB of all metalayers, there is error in
                place of hex
  findings      [{severity, kind, position, what}, ...] as of check
  findings_left_out
                number of further findings about chunks

Examples:
  b2fuse info pressure.b2frame
  # Print JSON for several frames
  b2fuse info --json pressure.b2frame many.b2frame >frames.json
  # All frames below a directory
  b2fuse info frames")]
pub(super) struct Args {
    /// Print one JSON object for each frame; --help has its fields
    #[arg(long)]
    json: bool,
    /// Read every chunk's header, however many there are; at a URL more than 64 are not read otherwise
    #[arg(short, long)]
    all: bool,
    #[cfg(feature = "remote")]
    #[command(flatten)]
    remote: super::remote_args::RemoteArgs,
    /// The frames, of either layout, and directories of frames; or URLs of frames
    #[arg(required = true)]
    frames: Vec<PathBuf>,
}

pub(super) fn run(args: &Args) -> Outcome {
    #[cfg(feature = "remote")]
    if let Err(what) = super::remote::reach(&args.remote, &args.frames) {
        return Outcome::Usage(what);
    }
    let mut printer = Printer { args, shown: false, failed: false };
    for frame in &args.frames {
        match printer.all_of(frame) {
            ControlFlow::Continue(()) => {}
            ControlFlow::Break(Ok(())) => break,
            ControlFlow::Break(Err(failure)) => return Outcome::Failed(failure),
        }
    }
    if printer.failed { Outcome::Code(1) } else { Outcome::Done }
}

/// Shows one frame after the other.
struct Printer<'a> {
    args: &'a Args,
    /// Whether there was one before.
    shown: bool,
    failed: bool,
}

impl Printer<'_> {
    /// The frame at a path, or all that are in the directory there; broken off where nobody reads it any more.
    fn all_of(&mut self, path: &Path) -> ControlFlow<Result<(), Failure>> {
        let mut end = ControlFlow::Continue(());
        let tree = trees::each_to_read(path, &mut |item| {
            end = match item {
                Item::Frame(entry, _) => {
                    let inspected = frames::inspect_at(&entry.location);
                    self.one(entry.location.path(), inspected)
                }
                Item::Called(_) => ControlFlow::Continue(()),
                Item::Unread(path, failure) => self.one(&path, Err(failure)),
            };
            end.is_continue()
        });
        match tree {
            Ok(true) => end,
            Ok(false) => {
                memory::end_with(path);
                self.one(path, frames::inspect(path))
            }
            Err(failure) => self.one(path, Err(failure)),
        }
    }

    fn one(&mut self, frame: &Path, inspected: Result<Inspection, Failure>) -> ControlFlow<Result<(), Failure>> {
        let mut out = Vec::new();
        let failure = match inspected {
            Ok(inspection) => {
                let facts = Facts::gather(&inspection, self.args.all, frames::is_remote(frame));
                match self.args.json {
                    true => out = output::json_line(&json::frame(&facts)).into(),
                    false => text::frame(&facts, self.shown, &mut out),
                }
                facts.failure()
            }
            Err(failure) => {
                if self.args.json {
                    out = output::json_line(&json::failure(frame, &failure)).into();
                }
                Some(failure)
            }
        };
        self.shown = true;
        // Colours are taken out where nobody sees them.
        let mut stdout = anstream::stdout().lock();
        if let Err(error) = stdout.write_all(&out).and_then(|()| stdout.flush()) {
            return ControlFlow::Break(output::written(Err(error)));
        }
        if let Some(Failure(line)) = failure {
            eprintln!("{line}");
            self.failed = true;
        }
        ControlFlow::Continue(())
    }
}

/// All that is shown of a frame.
struct Facts<'a> {
    inspection: &'a Inspection,
    header: HeaderFields,
    index: Option<Entries>,
    /// `None` where headers were not read.
    stored: Option<Stored>,
    array: Option<(ArrayKind, Result<Array, String>)>,
    metalayers: Vec<Layer>,
    vlmetalayers: Option<Vec<Layer>>,
    findings: Vec<Finding>,
    left_out: u64,
    /// Why headers were not read.
    unread: Option<Failure>,
}

/// What an index says.
#[derive(Default)]
struct Entries {
    count: u64,
    stored: u64,
    special: Specials,
}

/// Numbers of chunks of each special value.
#[derive(Default, Clone, Copy)]
struct Specials {
    zeros: u64,
    nan: u64,
    uninit: u64,
}

impl Specials {
    fn add(&mut self, special: Special) {
        *match special {
            Special::Zeros => &mut self.zeros,
            Special::Nan => &mut self.nan,
            Special::Uninit => &mut self.uninit,
        } += 1;
    }

    fn named(self) -> [(u64, &'static str); 3] {
        [(self.zeros, "zeros"), (self.nan, "NaN"), (self.uninit, "uninitialised")]
    }
}

/// What the headers of stored chunks say.
#[derive(Default)]
struct Stored {
    cbytes: u64,
    /// Lengths of an sframe's chunk files.
    files: u64,
    /// cbytes of the smallest and the largest.
    sizes: Option<(u32, u32)>,
    copies: u64,
    repeated: u64,
    special: Specials,
    dictionary: u64,
    vl_blocks: u64,
    unreadable: u64,
    /// Of chunks that are compressed.
    codecs: HashMap<Option<CodecId>, u64>,
    unused: Option<Unused>,
}

impl Stored {
    fn add(&mut self, chunk: &ChunkHeader) {
        self.cbytes += u64::from(chunk.cbytes);
        let (smallest, largest) = self.sizes.unwrap_or((chunk.cbytes, chunk.cbytes));
        self.sizes = Some((smallest.min(chunk.cbytes), largest.max(chunk.cbytes)));
        self.dictionary += u64::from(chunk.has_dictionary());
        self.vl_blocks += u64::from(chunk.has_vl_blocks());
        match chunk.special {
            Some(special) => self.special.add(special),
            None if chunk.is_copy() => self.copies += 1,
            None if chunk.repeated_value().is_some() => self.repeated += 1,
            None => *self.codecs.entry(chunk.codec()).or_default() += 1,
        }
    }

    /// Numbers of chunks by the names of their codecs.
    fn codecs(&self) -> BTreeMap<String, u64> {
        let name = |codec: &Option<CodecId>| codec.map_or("unknown".to_owned(), |codec| codec.to_string());
        self.codecs.iter().map(|(codec, count)| (name(codec), *count)).collect()
    }
}

impl<'a> Facts<'a> {
    fn gather(inspection: &'a Inspection, all: bool, is_far: bool) -> Self {
        let header = inspection.header().fields();
        let mut room = Room::default();
        let mut facts = Facts {
            inspection,
            header,
            index: inspection.nchunks().map(|_| Entries::default()),
            stored: None,
            array: None,
            metalayers: inspection.header().metalayers().map(|layer| Layer::of(&layer, &mut room)).collect(),
            vlmetalayers: None,
            findings: inspection.findings().to_vec(),
            left_out: 0,
            unread: None,
        };
        facts.find_array();
        if let Some(trailer) = inspection.trailer() {
            facts.vlmetalayers = Some(trailer.vlmetalayers().map(|layer| Layer::compressed(&layer, &mut room)).collect());
            facts.findings.extend(facts.vlmetalayers.iter().flatten().filter_map(|layer| layer.finding.clone()));
        }
        if let Some(entries) = &mut facts.index {
            for entry in inspection.entries() {
                entries.count += 1;
                match entry {
                    IndexEntry::Stored(_) => entries.stored += 1,
                    IndexEntry::Special(special) => entries.special.add(special),
                }
            }
            let most = match inspection.layout() {
                _ if is_far => MOST_AFAR,
                Layout::Sparse => MOST_IN_DIRECTORY,
                Layout::Contiguous => MOST_IN_FILE,
            };
            if all || entries.stored <= most {
                facts.read_headers(frames::threads(is_far));
            }
        }
        facts
    }

    fn find_array(&mut self) {
        let Some(array) = Array::find(self.inspection.header().metalayers()) else { return };
        let b2nd = self.inspection.header().metalayers().any(|layer| layer.name == ArrayKind::B2nd.name().as_bytes());
        let kind = if b2nd { ArrayKind::B2nd } else { ArrayKind::Caterva };
        let array = array.map_err(|error| error.to_string());
        if let Err(error) = &array {
            self.findings.push(Finding::damage(Kind::Header, format!("metalayer \"{}\": {error}", kind.name())));
        }
        self.array = Some((kind, array));
    }

    fn read_headers(&mut self, threads: usize) {
        let mut stored = Stored::default();
        let mut extents = self.inspection.extents();
        let (mut behind, mut found) = (Unused::default(), Vec::new());
        let mut left_out = 0;
        let mut tell = |finding| if found.len() < MOST_FINDINGS { found.push(finding) } else { left_out += 1 };
        let read = self.inspection.chunks(threads, &mut |position, entry, seen| {
            let (IndexEntry::Stored(place), Some(seen)) = (entry, seen) else { return true };
            match seen {
                Err(finding) => {
                    stored.unreadable += 1;
                    tell(finding.at(position));
                }
                Ok(seen) => {
                    stored.add(&seen.header);
                    match (place, &mut extents) {
                        (ChunkPlace::Offset(offset), Some(extents)) => extents.add(offset, seen.header.cbytes, position),
                        _ => {
                            let unused = seen.room - u64::from(seen.header.cbytes);
                            stored.files += seen.room;
                            behind.bytes += unused;
                            behind.holes += u64::from(unused > 0);
                        }
                    }
                }
            }
            true
        });
        if let Err(error) = read {
            self.unread = Some(Failure::from_text(error));
            return;
        }
        let unused = match extents {
            Some(extents) => extents.unused(&mut |position, what| tell(Finding::damage(Kind::Overlap, what).at(position))),
            None => behind,
        };
        stored.unused = (stored.unreadable == 0).then_some(unused);
        self.findings.append(&mut found);
        self.left_out = left_out;
        self.stored = Some(stored);
    }

    /// Bytes of the file or files, where they are known.
    fn file_size(&self) -> Option<u64> {
        match (self.inspection.layout(), &self.stored) {
            (Layout::Contiguous, _) => Some(self.inspection.file_len()),
            (Layout::Sparse, Some(stored)) if stored.unreadable == 0 => Some(self.inspection.file_len() + stored.files),
            _ => None,
        }
    }

    fn ratio(&self) -> Option<f64> {
        (self.header.cbytes > 0).then(|| self.header.nbytes as f64 / self.header.cbytes as f64)
    }

    /// The codec by its full number.
    fn codec(&self) -> CodecId {
        const OTHER: u8 = 6;
        CodecId(if self.header.codec == OTHER { self.header.user_codec } else { self.header.codec })
    }

    /// The line for stderr, where something cannot be read.
    fn failure(&self) -> Option<Failure> {
        if let Some(Failure(line)) = &self.unread {
            return Some(Failure(line.clone()));
        }
        let mut damage = self.findings.iter().filter(|finding| finding.severity == Severity::Damage);
        let first = damage.next()?;
        let more = damage.count() as u64 + self.left_out;
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        Some(Failure::new(self.inspection.path(), format_args!("{}{more}", text::finding(first))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_one_byte_says_something_is_shown() {
        let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cframe");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("frame");
        let mut shown = 0;
        for name in ["b2nd-struct.b2nd", "caterva.b2frame", "chunks-3.b2frame", "empty-meta.b2frame", "vlblocks-varying.b2frame"]
        {
            let bytes = std::fs::read(data.join(name)).unwrap();
            for at in 0..bytes.len() {
                for value in [0, 0x7f, 0xff] {
                    let mut bytes = bytes.clone();
                    bytes[at] = value;
                    std::fs::write(&path, bytes).unwrap();
                    let Ok(inspection) = frames::inspect(&path) else { continue };
                    let facts = Facts::gather(&inspection, false, false);
                    let mut out = Vec::new();
                    text::frame(&facts, false, &mut out);
                    assert!(!out.is_empty() && json::frame(&facts).is_object());
                    assert_eq!(
                        facts.failure().is_some(),
                        facts.findings.iter().any(|finding| finding.severity == Severity::Damage)
                    );
                    shown += 1;
                }
            }
        }
        assert!(shown > 5000, "{shown}");
    }
}
