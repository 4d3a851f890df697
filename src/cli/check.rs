//! `b2fuse check`: everything that is wrong with frames, a line for each thing.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::trees::{self, Item};
use super::{Failure, Outcome, frames, memory, output};
use crate::format::Layout;
use crate::format::plain::plain;
use crate::store::Location;
use crate::store::check::{Checked, Depth, Finding, Severity, check_at};

/// Findings of each severity that an object has, of a frame that may have millions.
const MOST: u64 = 10_000;

/// Look for damage in frames, without changing anything
///
/// Prints a line for each finding. Exits with 0 if all frames are sound, and with 1 if one is damaged or cannot be read. Some
/// findings are notes, not damage: holes in a file, files in a directory that belong to no chunk, chunks that only a plugin of
/// the library decodes.
///
/// All frames in a directory, or in a store of Python-Blosc2 (.b2d, .b2z), are checked, at any depth; the last line counts them. A frame is a
/// directory with chunks.b2frame, or a file that begins as one and has one of its suffixes (.b2nd, .b2frame and others). Symbolic links
/// are not followed, and directories on which another file system is mounted are left out.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  b2fuse check pressure.b2frame many.b2frame
  # Check every stored byte, and print JSON
  b2fuse check --deep --json pressure.b2frame >report.json
  # All frames below a directory
  b2fuse check --deep frames

JSON output:
  One object a line for each frame. Fields may be added, and are not
  removed or changed.

  frame        the path; for a frame in a directory, with the directory's
               path before it
  error        only if the frame cannot be read at all; then no other
               fields but frame
  layout       \"cframe\" or \"sframe\"
  sound        whether nothing is damaged
  deep         whether every chunk was decoded
  chunks       entries of the index, null if it cannot be read
  stored       chunks that are stored
  bytes        total size of stored chunks
  undecoded    chunks that only a plugin of the library decodes
  findings     [{severity, kind, position, what}, ...]: severity is
               \"damage\" or \"note\", position is a chunk's or null, what is
               a text, and kind is one of header, frame_len, index,
               trailer, vlmetalayer, offset, chunk, data, size, overlap,
               missing, orphan, surplus, hole and plugin; the first 10,000
               of each severity
  findings_left_out
               number of findings beyond these")]
pub(super) struct Args {
    /// Decode every chunk, not only its header
    #[arg(long)]
    deep: bool,
    /// Print one JSON object for each frame
    #[arg(long)]
    json: bool,
    /// Threads that check chunks [default: all cores]
    #[arg(long, value_name = "N", value_parser = super::options::threads)]
    threads: Option<usize>,
    #[cfg(feature = "remote")]
    #[command(flatten)]
    remote: super::remote_args::RemoteArgs,
    /// The frames, of either layout, and directories of frames; or URLs of frames
    #[arg(required = true)]
    frames: Vec<PathBuf>,
}

/// What came of a frame, from good to bad.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Sound,
    Damaged,
    /// It cannot be read at all.
    Unread,
}

/// What came of the frames in a directory.
#[derive(Default)]
struct Count {
    sound: u64,
    damaged: u64,
    unread: u64,
    /// Files that are called as frames, and are none.
    called: u64,
}

impl Count {
    fn add(&mut self, verdict: Verdict) {
        *match verdict {
            Verdict::Sound => &mut self.sound,
            Verdict::Damaged => &mut self.damaged,
            Verdict::Unread => &mut self.unread,
        } += 1;
    }

    fn in_words(&self) -> String {
        let Count { sound, damaged, unread, called } = self;
        let count = sound + damaged + unread;
        let mut words = format!("{count} frame{}: {sound} sound", if count == 1 { "" } else { "s" });
        if *damaged > 0 {
            words += &format!(", {damaged} damaged");
        }
        if *unread > 0 {
            words += &format!(", {unread} that cannot be read");
        }
        match called {
            0 => {}
            1 => words += "; 1 file with a frame's name is not a frame",
            n => words += &format!("; {n} files with a frame's name are not frames"),
        }
        words
    }
}

pub(super) fn run(args: &Args) -> Outcome {
    #[cfg(feature = "remote")]
    if let Err(what) = super::remote::reach(&args.remote, &args.frames) {
        return Outcome::Usage(what);
    }
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let depth = Depth { deep: args.deep, threads };
    let mut worst = Verdict::Sound;
    for frame in &args.frames {
        let mut out = BufWriter::new(io::stdout().lock());
        let verdict = match all_in(frame, depth, args.json, &mut out) {
            Ok(Some(verdict)) => verdict,
            Ok(None) => {
                memory::end_with(frame);
                let threads = if frames::is_remote(frame) { threads.max(frames::threads(true)) } else { threads };
                match frames::location(frame) {
                    Ok(location) => one(&location, Depth { threads, ..depth }, args.json, &mut out),
                    Err(failure) => unread(&frames::shown(frame), &failure, args.json, &mut out),
                }
            }
            Err(failure) => unread(frame, &failure, args.json, &mut out),
        };
        if let Err(failure) = output::written(out.flush()) {
            return Outcome::Failed(failure);
        }
        worst = worst.max(verdict);
    }
    Outcome::Code(u8::from(worst != Verdict::Sound))
}

/// All frames in a directory; `None` if it is none.
fn all_in(path: &Path, depth: Depth, as_json: bool, out: &mut impl Write) -> Result<Option<Verdict>, Failure> {
    let (mut worst, mut count) = (Verdict::Sound, Count::default());
    let is_tree = trees::each_to_read(path, &mut |item| {
        let verdict = match item {
            Item::Frame(entry, _) => {
                let verdict = one(&entry.location, depth, as_json, out);
                count.add(verdict);
                verdict
            }
            Item::Called(entry) => {
                count.called += 1;
                if !as_json {
                    let _ = writeln!(
                        out,
                        "{}: note: has a frame's name, but does not begin as a frame",
                        plain(entry.location.path())
                    );
                }
                Verdict::Sound
            }
            Item::Unread(path, failure) => unread(&path, &failure, as_json, out),
        };
        worst = worst.max(verdict);
        // Who reads no further still wants to know whether all are sound.
        out.flush().map_or_else(|error| error.kind() == io::ErrorKind::BrokenPipe, |()| true)
    })?;
    if is_tree && !as_json {
        let _ = writeln!(out, "{}: {}", plain(path), count.in_words());
    }
    Ok(is_tree.then_some(worst))
}

/// What cannot be read at all.
fn unread(path: &Path, Failure(error): &Failure, as_json: bool, out: &mut impl Write) -> Verdict {
    if as_json {
        let object = json!({ "frame": frames::shown(path).to_string_lossy(), "error": error });
        let _ = out.write_all(output::json_line(&object).as_bytes());
    }
    eprintln!("{error}");
    Verdict::Unread
}

fn one(location: &Location, depth: Depth, as_json: bool, out: &mut impl Write) -> Verdict {
    let frame = location.path();
    let (mut damaged, mut notes) = (0u64, 0u64);
    let mut findings = Vec::new();
    let mut left_out = 0u64;
    let mut found = |finding: Finding| {
        let count = match finding.severity {
            Severity::Damage => &mut damaged,
            Severity::Note => &mut notes,
        };
        *count += 1;
        if !as_json {
            let _ = writeln!(out, "{}", line(frame, &finding));
        } else if *count <= MOST {
            findings.push(as_value(&finding));
        } else {
            left_out += 1;
        }
    };
    let bar = super::progress::of_chunks();
    let checked = check_at(location, depth, &mut found, &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        true
    });
    bar.finish_and_clear();
    match checked {
        Ok(checked) => {
            let sound = damaged == 0;
            if as_json {
                let _ = out.write_all(output::json_line(&summary(frame, &checked, sound, (findings, left_out))).as_bytes());
            } else {
                let _ = writeln!(out, "{}: {}", plain(frame), in_words(&checked, damaged, notes));
            }
            if sound { Verdict::Sound } else { Verdict::Damaged }
        }
        Err(error) => unread(frame, &frames::explained_at(location, error), as_json, out),
    }
}

fn line(frame: &Path, finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Damage => "",
        Severity::Note => "note: ",
    };
    let chunk = finding.position.map(|position| format!("chunk {}: ", position.0)).unwrap_or_default();
    format!("{}: {severity}{chunk}{}", plain(frame), plain(&finding.what))
}

fn in_words(checked: &Checked, damaged: u64, notes: u64) -> String {
    let verdict = match damaged {
        0 => "sound".to_owned(),
        1 => "damaged, 1 finding".to_owned(),
        n => format!("damaged, {n} findings"),
    };
    let notes = match notes {
        0 => String::new(),
        1 => ", 1 note".to_owned(),
        n => format!(", {n} notes"),
    };
    let Some(chunks) = checked.chunks else { return format!("{verdict}{notes}; no index, so no chunk was checked") };
    let Checked { stored, bytes, undecoded, .. } = checked;
    let how = match (checked.deep, undecoded) {
        (false, _) => "headers read; --deep decodes them",
        (true, 0) => "all decoded",
        (true, n) => &format!("decoded, but for {n} that need a plugin"),
    };
    let chunks = match chunks {
        1 => "1 chunk".to_owned(),
        n => format!("{n} chunks"),
    };
    let stored = match stored {
        0 => "none stored".to_owned(),
        n => format!("{n} stored in {bytes} bytes"),
    };
    format!("{verdict}{notes}; {chunks}, {stored} ({how})")
}

pub(super) fn as_value(finding: &Finding) -> Value {
    json!({
        "severity": match finding.severity { Severity::Damage => "damage", Severity::Note => "note" },
        "kind": finding.kind.name(),
        "position": finding.position.map(|position| position.0),
        "what": finding.what,
    })
}

fn summary(frame: &Path, checked: &Checked, sound: bool, (findings, left_out): (Vec<Value>, u64)) -> Value {
    json!({
        "frame": frame.to_string_lossy(),
        "layout": match checked.layout { Layout::Contiguous => "cframe", Layout::Sparse => "sframe" },
        "sound": sound,
        "deep": checked.deep,
        "chunks": checked.chunks,
        "stored": checked.stored,
        "bytes": checked.bytes,
        "undecoded": checked.undecoded,
        "findings": findings,
        "findings_left_out": left_out,
    })
}
