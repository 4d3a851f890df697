//! The frames in a directory, a line for each.

use std::cmp::Ordering;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Args, BUFFER, Sort};
use crate::cli::trees::{self, Item};
use crate::cli::{Failure, frames, output};
use crate::format::Layout;
use crate::format::plain::plain;
use crate::store::inspect::{Inspection, Severity};

/// What there is to say of a frame; `None` is what cannot be read.
struct Row {
    path: PathBuf,
    layout: Option<Layout>,
    chunks: Option<u64>,
    /// nbytes and cbytes of the header.
    sizes: Option<(u64, u64)>,
    wrong: Option<String>,
}

impl Row {
    fn of(inspection: &Inspection) -> Self {
        let mut damage = inspection.findings().iter().filter(|finding| finding.severity == Severity::Damage);
        Row {
            path: inspection.path().to_owned(),
            layout: Some(inspection.layout()),
            chunks: inspection.nchunks(),
            sizes: Some((inspection.header().nbytes(), inspection.header().cbytes())),
            wrong: damage.next().map(|finding| Failure::new(inspection.path(), &finding.what).0),
        }
    }

    fn unread(path: &Path, layout: Option<Layout>, Failure(wrong): Failure) -> Self {
        Row { path: path.to_owned(), layout, chunks: None, sizes: None, wrong: Some(wrong) }
    }

    fn nbytes(&self) -> Option<u64> {
        self.sizes.map(|(nbytes, _)| nbytes)
    }

    fn cbytes(&self) -> Option<u64> {
        self.sizes.map(|(_, cbytes)| cbytes)
    }

    /// Infinite where nothing is stored.
    fn ratio(&self) -> Option<f64> {
        self.sizes.map(|(nbytes, cbytes)| nbytes as f64 / cbytes as f64).filter(|ratio| !ratio.is_nan())
    }

    /// As JSON and people are told: without what is infinite.
    fn finite_ratio(&self) -> Option<f64> {
        self.ratio().filter(|ratio| ratio.is_finite())
    }

    fn compare(&self, other: &Self, sort: Sort) -> Ordering {
        match sort {
            Sort::Position | Sort::Offset => self.path.cmp(&other.path),
            Sort::Cbytes => self.cbytes().cmp(&other.cbytes()),
            Sort::Nbytes => self.nbytes().cmp(&other.nbytes()),
            Sort::Ratio => self.ratio().partial_cmp(&other.ratio()).unwrap_or(Ordering::Equal),
        }
    }

    fn layout(&self) -> Option<&'static str> {
        Some(match self.layout? {
            Layout::Contiguous => "cframe",
            Layout::Sparse => "sframe",
        })
    }

    fn json(&self) -> Value {
        json!({
            "frame": self.path.to_string_lossy(),
            "layout": self.layout(),
            "chunks": self.chunks,
            "nbytes": self.nbytes(),
            "cbytes": self.cbytes(),
            "ratio": self.finite_ratio(),
            "error": self.wrong,
        })
    }

    fn line(&self) -> String {
        let cell = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
        let (chunks, nbytes, cbytes) = (cell(self.chunks), cell(self.nbytes()), cell(self.cbytes()));
        let ratio = self.finite_ratio().map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        line(self.layout().unwrap_or("-"), [&chunks, &nbytes, &cbytes, &ratio], plain(&self.path))
    }
}

/// Columns of a width that most frames do with: the first line need not wait for the last.
fn line(layout: &str, [chunks, nbytes, cbytes, ratio]: [&str; 4], path: impl std::fmt::Display) -> String {
    format!("{layout:<6}  {chunks:>8}  {nbytes:>14}  {cbytes:>14}  {ratio:>8}  {path}\n")
}

/// Lists the frames in the directory that is asked for; `None` if it is none.
pub(super) fn ls(args: &Args) -> Result<Option<()>, Failure> {
    let mut out = BufWriter::with_capacity(BUFFER, io::stdout().lock());
    let (mut rows, mut count, mut wrong) = (Vec::new(), 0u64, 0u64);
    let at_once = !args.reverse && matches!(args.sort, Sort::Position | Sort::Offset);
    let mut printed = Ok(());
    let mut print = |row: &Row, first: bool| -> io::Result<()> {
        if first && !args.json {
            out.write_all(line("layout", ["chunks", "nbytes", "cbytes", "ratio"], "path").as_bytes())?;
        }
        let text = if args.json { output::json_line(&row.json()) } else { row.line() };
        out.write_all(text.as_bytes())?;
        if let Some(wrong) = &row.wrong {
            // In the order of the frames, on a terminal.
            out.flush()?;
            eprintln!("{wrong}");
        }
        Ok(())
    };
    let is_tree = trees::each_to_read(&args.frame, &mut |item| {
        let row = match item {
            Item::Frame(entry, layout) => match frames::inspect_at(&entry.location) {
                Ok(inspection) => Row::of(&inspection),
                Err(failure) => Row::unread(entry.location.path(), Some(layout), failure),
            },
            Item::Called(_) => return true,
            Item::Unread(path, failure) => Row::unread(&path, None, failure),
        };
        wrong += u64::from(row.wrong.is_some());
        if at_once {
            printed = print(&row, count == 0);
        } else {
            rows.push(row);
        }
        count += 1;
        printed.is_ok()
    })?;
    rows.sort_by(|one, other| {
        let order = one.compare(other, args.sort);
        if args.reverse { order.reverse() } else { order }
    });
    let printed = printed.and_then(|()| rows.iter().enumerate().try_for_each(|(n, row)| print(row, n == 0)));
    output::written(printed.and_then(|()| out.flush()))?;
    match wrong {
        0 => Ok(is_tree.then_some(())),
        _ => Err(Failure::new(&args.frame, format_args!("{wrong} of {count} frames are damaged or cannot be read"))),
    }
}
