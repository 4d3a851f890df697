//! `b2fuse ls`: a line for each chunk of a frame, or for each frame in a directory.

use std::cmp::Ordering;
use std::fmt::{self, Write as _};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use serde_json::Value;

use super::{Failure, Outcome, frames, memory, output};
use crate::format::array::Array;
use crate::format::chunk::ChunkHeader;
use crate::format::registry::{CodecId, FilterId};
use crate::format::{IndexEntry, Layout, Position, Rules, Special};
use crate::store::StoreError;
use crate::store::inspect::{ChunkPlace, Inspection, Severity};

mod tree;

/// Lines that are looked at before the first is printed, for the widths of the columns.
const HELD: usize = 4096;
/// Bytes that are printed at once.
const BUFFER: usize = 64 << 10;

/// List the chunks of a frame, or the frames in a directory
///
/// Prints a line for each chunk: its position; its offset in the file (contiguous frame) or, in a sparse frame,
/// its id, the name of its file; cbytes and nbytes, its compressed and decompressed sizes, and their ratio; its codec, or `copy` if the bytes
/// are not compressed; its filters, in the order in which they were applied; its special value, if it has one; in an array, its place in
/// the grid of chunks. A chunk that is all zeros, NaN or uninitialised often has no bytes of its own, only an entry in the index.
///
/// Only headers are read. Exits with 1 if a header shows damage; `b2fuse check` finds more.
///
/// For a directory, or a store of Python-Blosc2 (.b2d, .b2z), prints a line for each frame in it, at any depth: its layout; chunks, their
/// number; nbytes and cbytes, the sizes in its header, and their ratio; its path. See `b2fuse check` for what is a frame.
#[derive(clap::Args)]
#[command(after_long_help = "\
JSON output:
  Of a frame, each line is an object with all of these members:
  position  number
  offset    number: the byte of the file at which the chunk begins; null
            in a sparse frame
  id        number: the name of its file without .chunk, in hexadecimal;
            null in a contiguous frame
  cbytes    number: 0 if the chunk is not stored
  nbytes    number
  ratio     number: nbytes / cbytes; null if cbytes is 0
  codec     string: of an uncompressed chunk, the codec that was tried;
            null if not stored
  filters   array of {\"name\": string, \"meta\": number}
  special   \"zeros\", \"nan\", \"uninit\" or \"value\" (a run of another
            one, which is stored); or null
  copy      boolean: the bytes are neither filtered nor compressed
  place     array of numbers; null if the frame is not an array
  error     string: what is wrong with the chunk; or null
  null also means not known.
  Of a directory, each line is an object with these members:
  frame     string: the path
  layout    \"cframe\" or \"sframe\"
  chunks, nbytes, cbytes
            numbers, as in the header; cbytes as b2fuse info has it
  ratio     number: nbytes / cbytes; null if cbytes is 0
  error     string: what is wrong with the frame; or null

Examples:
  b2fuse ls pressure.b2frame
  # The ten largest chunks
  b2fuse ls --sort cbytes --reverse pressure.b2frame | head -n 11
  # The frames below a directory, the largest first
  b2fuse ls --sort cbytes --reverse frames
  # All chunks that are stored uncompressed
  b2fuse ls --json pressure.b2frame | sed -n '/\"copy\":true/p'")]
pub(super) struct Args {
    /// Column to sort by; `id` is the same as `offset`. Equal chunks stay in the order of their positions, frames in that of their paths,
    /// which is what `position` and `offset` mean in a directory
    #[arg(long, value_name = "COLUMN", default_value = "position")]
    sort: Sort,
    /// Reverse the order
    #[arg(long)]
    reverse: bool,
    /// Print a JSON object on each line
    #[arg(long)]
    json: bool,
    #[cfg(feature = "remote")]
    #[command(flatten)]
    remote: super::remote_args::RemoteArgs,
    /// The frame, of either layout, or a directory of frames; or the URL of a frame, or of a prefix with frames beneath it
    frame: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    Position,
    #[value(alias = "id")]
    Offset,
    Cbytes,
    Nbytes,
    Ratio,
}

pub(super) fn run(args: &Args) -> Outcome {
    #[cfg(feature = "remote")]
    if let Err(what) = super::remote::reach(&args.remote, &[&args.frame]) {
        return Outcome::Usage(what);
    }
    ls(args).into()
}

fn ls(args: &Args) -> Result<(), Failure> {
    if tree::ls(args)?.is_some() {
        return Ok(());
    }
    memory::end_with(&args.frame);
    let inspection = frames::inspect(&args.frame)?;
    let damage = inspection.findings().iter().filter(|finding| finding.severity == Severity::Damage);
    let mut wrong: Vec<String> = damage.map(|finding| finding.what.clone()).collect();
    let Some(count) = inspection.nchunks() else { return Err(Failure::new(&args.frame, wrong.join("; "))) };

    let mut out = BufWriter::with_capacity(BUFFER, io::stdout().lock());
    let shown = Shown { inspection: &inspection, array: Array::find(inspection.header().metalayers()).and_then(Result::ok) };
    let mut damaged = 0;
    let printed = match args.json {
        true => list(&shown, args, &mut damaged, &mut |row| json_line(&mut out, &shown, &row)),
        false => {
            let mut table = Table::new(&shown, &mut out);
            let read = list(&shown, args, &mut damaged, &mut |row| table.add(row));
            read.and_then(|read| table.print_held().map(|()| read))
        }
    };
    let read = match printed.and_then(|read| out.flush().map(|()| read)) {
        Ok(read) => read,
        Err(error) => return output::written(Err(error)),
    };
    read.map_err(Failure::from_text)?;
    if damaged > 0 {
        wrong.push(format!("{damaged} of {count} chunks are damaged"));
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::new(&args.frame, wrong.join("; "))) }
}

/// What there is to say of a chunk. Sorting keeps one of each, so they are small.
struct Row {
    position: Position,
    entry: IndexEntry<ChunkPlace>,
    /// Of a stored chunk whose header can be believed.
    header: Option<Header>,
    wrong: Option<Box<str>>,
}

/// What is shown of a chunk's header.
struct Header {
    cbytes: u32,
    nbytes: u32,
    codec: Option<CodecId>,
    filters: [(FilterId, u8); 6],
    special: Option<Special>,
    repeated_value: bool,
    copy: bool,
}

impl From<ChunkHeader> for Header {
    fn from(header: ChunkHeader) -> Self {
        let mut filters = [(FilterId::NONE, 0); 6];
        filters.iter_mut().zip(header.filters()).for_each(|(slot, filter)| *slot = filter);
        Header {
            cbytes: header.cbytes,
            nbytes: header.nbytes,
            codec: header.codec(),
            filters,
            special: header.special,
            repeated_value: header.repeated_value().is_some(),
            copy: header.is_copy(),
        }
    }
}

/// A frame, and what of it a row's meaning depends on.
struct Shown<'a> {
    inspection: &'a Inspection,
    array: Option<Array>,
}

impl Shown<'_> {
    /// Where a chunk begins in its file.
    fn offset(&self, row: &Row) -> Option<u64> {
        match row.entry.stored()? {
            ChunkPlace::Offset(offset) => offset.bytes().checked_add(self.inspection.header().header_len().into()),
            ChunkPlace::Id(_) => None,
        }
    }

    fn nbytes(&self, row: &Row) -> Option<u32> {
        match row.entry {
            IndexEntry::Stored(_) => Some(row.header.as_ref()?.nbytes),
            IndexEntry::Special(_) => self.inspection.special_nbytes(row.position),
        }
    }

    /// Infinite where nothing is stored.
    fn ratio(&self, row: &Row) -> Option<f64> {
        Some(f64::from(self.nbytes(row)?) / f64::from(row.cbytes()?))
    }

    /// In the grid of an array.
    fn place(&self, row: &Row) -> Option<Vec<u64>> {
        self.array.as_ref()?.place(row.position)
    }

    fn compare(&self, one: &Row, other: &Row, sort: Sort) -> Ordering {
        match sort {
            Sort::Position => one.position.cmp(&other.position),
            Sort::Offset => one.entry.stored().cmp(&other.entry.stored()),
            Sort::Cbytes => one.cbytes().cmp(&other.cbytes()),
            Sort::Nbytes => self.nbytes(one).cmp(&self.nbytes(other)),
            Sort::Ratio => self.ratio(one).partial_cmp(&self.ratio(other)).unwrap_or(Ordering::Equal),
        }
    }
}

impl Row {
    /// 0 of a special entry, of which nothing is stored.
    fn cbytes(&self) -> Option<u32> {
        match self.entry {
            IndexEntry::Stored(_) => Some(self.header.as_ref()?.cbytes),
            IndexEntry::Special(_) => Some(0),
        }
    }

    fn special(&self) -> Option<&'static str> {
        match (self.entry, &self.header) {
            (IndexEntry::Special(special), _) => Some(special.name()),
            (_, Some(header)) if header.repeated_value => Some("value"),
            (_, header) => header.as_ref()?.special.map(Special::name),
        }
    }

    fn filters(&self) -> impl Iterator<Item = (FilterId, u8)> {
        self.header.iter().flat_map(|header| header.filters).filter(|(filter, _)| *filter != FilterId::NONE)
    }
}

/// Gives `print` a row for each chunk, in the order that is asked for, and counts those that are damaged. Answers whether the frame could
/// be read.
fn list(
    shown: &Shown<'_>,
    args: &Args,
    damaged: &mut u64,
    print: &mut dyn FnMut(Row) -> io::Result<()>,
) -> io::Result<Result<(), StoreError>> {
    let inspection = shown.inspection;
    let threads = frames::threads(frames::is_remote(&args.frame));
    let (count, rules) = (inspection.nchunks().unwrap_or(0), Rules::of(inspection.header()));
    // Only sorting has to see all rows before it prints one.
    let at_once = args.sort == Sort::Position && !args.reverse;
    let mut rows = Vec::with_capacity(if at_once { 0 } else { usize::try_from(count).unwrap_or(0) });
    let mut printed = Ok(());
    let read = inspection.chunks(threads, &mut |position, entry, seen| {
        let (header, mut wrong) = match seen {
            Some(Ok(seen)) => (Some(seen.header), None),
            Some(Err(finding)) => (None, Some(finding.what)),
            None => (None, None),
        };
        if let Some(header) = header {
            wrong = rules
                .of_whole(position.0, count, inspection.header().nbytes())
                .check(&header.traits())
                .err()
                .map(|error| error.to_string());
        }
        *damaged += u64::from(wrong.is_some());
        let row = Row { position, entry, header: header.map(Into::into), wrong: wrong.map(Into::into) };
        if at_once {
            printed = print(row);
        } else {
            rows.push(row);
        }
        printed.is_ok()
    });
    printed?;
    rows.sort_by(|one, other| {
        let order = shown.compare(one, other, args.sort);
        if args.reverse { order.reverse() } else { order }
    });
    rows.into_iter().try_for_each(print)?;
    Ok(read)
}

fn json_line(out: &mut impl Write, shown: &Shown<'_>, row: &Row) -> io::Result<()> {
    let header = row.header.as_ref();
    let id = row.entry.stored().and_then(|place| if let ChunkPlace::Id(id) = place { Some(id.0) } else { None });
    let (position, offset, id) = (row.position.0, OrNull(shown.offset(row)), OrNull(id));
    let (cbytes, nbytes) = (OrNull(row.cbytes()), OrNull(shown.nbytes(row)));
    let ratio = OrNull(shown.ratio(row).filter(|ratio| ratio.is_finite()));
    write!(out, r#"{{"position":{position},"offset":{offset},"id":{id},"cbytes":{cbytes},"nbytes":{nbytes},"ratio":{ratio}"#)?;
    write!(out, r#","codec":{},"filters":["#, OrNull(header.and_then(|header| header.codec).map(Quoted)))?;
    for (n, (filter, meta)) in row.filters().enumerate() {
        write!(out, r#"{}{{"name":"{filter}","meta":{meta}}}"#, if n > 0 { "," } else { "" })?;
    }
    let copy = match row.entry {
        IndexEntry::Stored(_) => OrNull(header.map(|header| header.copy)),
        IndexEntry::Special(_) => OrNull(Some(false)),
    };
    write!(out, r#"],"special":{},"copy":{copy},"place":"#, OrNull(row.special().map(Quoted)))?;
    match shown.place(row) {
        Some(place) => write!(out, "[{}]", Joined(&place))?,
        None => write!(out, "null")?,
    }
    writeln!(out, r#","error":{}}}"#, OrNull(row.wrong.as_deref().map(Value::from)))
}

/// JSON's way to say that there is none.
struct OrNull<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for OrNull<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("null"),
        }
    }
}

/// A word that has nothing in it to be escaped.
struct Quoted<T>(T);

impl<T: fmt::Display> fmt::Display for Quoted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

/// Numbers between commas.
struct Joined<'a>(&'a [u64]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, number) in self.0.iter().enumerate() {
            write!(f, "{}{number}", if n > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Aligned columns, as wide as the frame's numbers make one expect and the rows need that are held until the first are printed;
/// they grow where a later one needs more.
struct Table<'a, W> {
    out: &'a mut W,
    shown: &'a Shown<'a>,
    columns: Vec<Column>,
    /// Until there are [`HELD`], and then none again.
    held: Option<Vec<Row>>,
    line: String,
}

/// What a column is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Position,
    /// Offset or id.
    Where,
    Cbytes,
    Nbytes,
    Ratio,
    Codec,
    Filters,
    Special,
    Place,
}

struct Column {
    field: Field,
    title: &'static str,
    /// Numbers stand to the right.
    right: bool,
    width: usize,
    /// What the row at hand says.
    cell: String,
}

impl<'a, W: Write> Table<'a, W> {
    fn new(shown: &'a Shown<'a>, out: &'a mut W) -> Self {
        let place = match shown.inspection.layout() {
            Layout::Contiguous => "offset",
            Layout::Sparse => "id",
        };
        let most = |field| match field {
            Field::Position => shown.inspection.nchunks().unwrap_or(0),
            Field::Where => shown.inspection.file_len(),
            Field::Cbytes | Field::Nbytes => shown.inspection.header().chunksize().into(),
            _ => 0,
        };
        let column = |(field, title, right)| {
            let width = str::len(title).max(most(field).to_string().len());
            Column { field, title, right, width, cell: String::new() }
        };
        let mut columns = vec![
            (Field::Position, "position", true),
            (Field::Where, place, true),
            (Field::Cbytes, "cbytes", true),
            (Field::Nbytes, "nbytes", true),
            (Field::Ratio, "ratio", true),
            (Field::Codec, "codec", false),
            (Field::Filters, "filters", false),
            (Field::Special, "special", false),
        ];
        columns.extend(shown.array.is_some().then_some((Field::Place, "place", false)));
        let columns = columns.into_iter().map(column).collect();
        Table { out, shown, columns, held: Some(Vec::new()), line: String::new() }
    }

    fn add(&mut self, row: Row) -> io::Result<()> {
        if self.held.as_ref().is_some_and(|held| held.len() == HELD) {
            self.print_held()?;
        }
        match &mut self.held {
            Some(held) => held.push(row),
            None => {
                self.fill(&row);
                self.print(row.wrong.as_deref())?;
            }
        }
        Ok(())
    }

    /// Prints the titles and what is held; once.
    fn print_held(&mut self) -> io::Result<()> {
        let Some(held) = self.held.take() else { return Ok(()) };
        for row in &held {
            self.fill(row);
        }
        for column in &mut self.columns {
            column.cell.clear();
            column.cell.push_str(column.title);
        }
        self.print(None)?;
        for row in &held {
            self.fill(row);
            self.print(row.wrong.as_deref())?;
        }
        Ok(())
    }

    /// Puts what a row says in its cells.
    fn fill(&mut self, row: &Row) {
        let shown = self.shown;
        let (special, copy) = (row.special(), row.header.as_ref().is_some_and(|header| header.copy));
        for column in &mut self.columns {
            let cell = &mut column.cell;
            cell.clear();
            // Into a string, where nothing fails.
            let _: fmt::Result = match column.field {
                Field::Position => write!(cell, "{}", row.position.0),
                Field::Where => match row.entry {
                    IndexEntry::Stored(ChunkPlace::Id(id)) => write!(cell, "{id}"),
                    _ => shown.offset(row).map_or(Ok(()), |offset| write!(cell, "{offset}")),
                },
                Field::Cbytes => row.cbytes().map_or(Ok(()), |cbytes| write!(cell, "{cbytes}")),
                Field::Nbytes => shown.nbytes(row).map_or(Ok(()), |nbytes| write!(cell, "{nbytes}")),
                Field::Ratio => {
                    shown.ratio(row).filter(|ratio| ratio.is_finite()).map_or(Ok(()), |ratio| write!(cell, "{ratio:.2}"))
                }
                Field::Codec if copy => cell.write_str("copy"),
                // What these were is of no interest where nothing was filtered and compressed.
                Field::Codec | Field::Filters if copy || special.is_some() => Ok(()),
                Field::Codec => {
                    row.header.as_ref().and_then(|header| header.codec).map_or(Ok(()), |codec| write!(cell, "{codec}"))
                }
                Field::Filters => row.filters().enumerate().try_for_each(|(n, (filter, meta))| {
                    write!(cell, "{}{filter}", if n > 0 { "," } else { "" })?;
                    if meta > 0 { write!(cell, ":{meta}") } else { Ok(()) }
                }),
                Field::Special => cell.write_str(special.unwrap_or_default()),
                Field::Place => shown.place(row).map_or(Ok(()), |place| write!(cell, "{}", Joined(&place))),
            };
            if cell.is_empty() {
                cell.push('-');
            }
            column.width = column.width.max(cell.len());
        }
    }

    fn print(&mut self, wrong: Option<&str>) -> io::Result<()> {
        let line = &mut self.line;
        line.clear();
        for Column { right, width, cell, .. } in &self.columns {
            let _ = if *right { write!(line, "{cell:>width$}  ") } else { write!(line, "{cell:<width$}  ") };
        }
        match wrong {
            Some(wrong) => *line += &format!("damaged: {wrong}"),
            None => line.truncate(line.trim_end().len()),
        }
        line.push('\n');
        self.out.write_all(line.as_bytes())
    }
}
