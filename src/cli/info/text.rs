//! A frame for people: a title, and lines of a name and what there is to say of it.
//!
//! Nothing from the frame reaches the terminal without its control characters escaped.

use std::fmt::{self, Write as _};

use anstyle::{AnsiColor, Style};
use indicatif::HumanBytes;

use super::content::Layer;
use super::{Facts, Specials};
use crate::format::Layout;
use crate::format::array::{Array, Dtype};
use crate::format::object::Object;
use crate::format::plain::plain;
use crate::format::registry::FilterId;
use crate::store::inspect::{Finding, Severity};

const TITLE: Style = Style::new().bold();
const NAME: Style = AnsiColor::Cyan.on_default();
const DAMAGE: Style = AnsiColor::Red.on_default();
/// Columns that a name takes, if it is not longer.
const WIDTH: usize = 13;

/// Lines with their styles.
struct Page(String);

impl Page {
    fn title(&mut self, text: &str) {
        let _ = writeln!(self.0, "{TITLE}{text}{TITLE:#}");
    }
    fn line(&mut self, name: &str, text: impl fmt::Display) {
        let _ = writeln!(self.0, "  {NAME}{name:WIDTH$}{NAME:#} {text}");
    }
}

/// `another`: there was one before.
pub(super) fn frame(facts: &Facts<'_>, another: bool, out: &mut Vec<u8>) {
    let mut page = Page(if another { "\n".to_owned() } else { String::new() });
    page.title(&plain(facts.inspection.path()).to_string());
    if let Some(object) = Object::find(facts.inspection.header().metalayers()) {
        page.line("object", object.description());
    }
    match &facts.array {
        Some((_, Ok(array))) => array_lines(array, &mut page),
        Some((kind, Err(_))) => page.line("array", format_args!("{}, which cannot be read", kind.name())),
        None => {}
    }
    general(facts, &mut page);
    compression(facts, &mut page);
    chunks(facts, &mut page);
    layers("metalayers", &facts.metalayers, &mut page);
    match &facts.vlmetalayers {
        Some(vlmetalayers) => layers("vlmetalayers", vlmetalayers, &mut page),
        None => page.line("vlmetalayers", "cannot be read"),
    }
    for finding in &facts.findings {
        let (style, word) = match finding.severity {
            Severity::Damage => (DAMAGE, "damage"),
            Severity::Note => (Style::new(), "note"),
        };
        let _ = writeln!(page.0, "{style}{word}: {}{style:#}", self::finding(finding));
    }
    if facts.left_out > 0 {
        let _ = writeln!(page.0, "{DAMAGE}and {} more about chunks{DAMAGE:#}", facts.left_out);
    }
    out.extend(page.0.bytes());
}

/// A finding in words.
pub(super) fn finding(finding: &Finding) -> String {
    match finding.position {
        Some(position) => format!("chunk {}: {}", position.0, finding.what),
        None => finding.what.clone(),
    }
}

fn general(facts: &Facts<'_>, page: &mut Page) {
    let header = &facts.header;
    let layout = match facts.inspection.layout() {
        Layout::Contiguous => "contiguous: one file (cframe)",
        Layout::Sparse => "sparse: a directory with a file for each chunk (sframe)",
    };
    page.line("layout", layout);
    page.line("version", header.version);
    page.line("nbytes", size(header.nbytes));
    let ratio = facts.ratio().filter(|ratio| *ratio > 0.0).map(|ratio| format!(", ratio {ratio:.2}")).unwrap_or_default();
    page.line("cbytes", format_args!("{}{ratio}", size(header.cbytes)));
    let files = if facts.inspection.layout() == Layout::Sparse { "files" } else { "file" };
    match facts.file_size() {
        Some(len) => page.line(files, format_args!("{}{}", size(len), unused(facts))),
        None => page.line(files, "length not known"),
    }
    page.line("typesize", header.typesize);
}

/// What of the files no chunk uses.
fn unused(facts: &Facts<'_>) -> String {
    let Some(unused) = facts.stored.as_ref().and_then(|stored| stored.unused) else { return String::new() };
    match (facts.inspection.layout(), unused.holes) {
        (_, 0) => ", no holes".to_owned(),
        (Layout::Contiguous, n) => {
            let much = facts.file_size().is_some_and(|len| unused.bytes > len / 3);
            let hint = if much { "; b2fuse compact gives them back" } else { "" };
            format!(", {} of them in {}{hint}", unused.bytes, counted(n, "hole", "holes"))
        }
        (Layout::Sparse, n) => format!(", {} of them behind {}", unused.bytes, counted(n, "chunk", "chunks")),
    }
}

fn compression(facts: &Facts<'_>, page: &mut Page) {
    let header = &facts.header;
    let codec = facts.codec();
    let meta = if header.codec_meta == 0 { String::new() } else { format!(" ({})", header.codec_meta) };
    page.line("codec", format_args!("{codec}{meta}, level {}", header.clevel));
    let pipeline = header.filters.iter().map(|id| FilterId(*id)).zip(header.filters_meta);
    let filters = pipeline.filter(|(id, _)| *id != FilterId::NONE).map(|(id, meta)| match meta {
        0 => id.to_string(),
        meta => format!("{id} ({meta})"),
    });
    let filters: Vec<_> = filters.collect();
    page.line("filters", if filters.is_empty() { "none".to_owned() } else { filters.join(", ") });
    let split = match header.split_mode {
        1 => "always: a stream for each byte of the items",
        2 => "never",
        3 => "automatic",
        _ => "as Blosc1 did (forward compatible)",
    };
    page.line("split mode", split);
    page.line("dictionary", if header.use_dict { "yes" } else { "no" });
    let (compress, decompress) = (header.nthreads_compress, header.nthreads_decompress);
    page.line("threads", format_args!("{compress} to compress, {decompress} to decompress"));
}

fn chunks(facts: &Facts<'_>, page: &mut Page) {
    let header = &facts.header;
    match (header.chunksize, header.nbytes) {
        (0, 1..) => page.line("chunksize", "varies"),
        (..=0, _) => page.line("chunksize", "not known yet"),
        (chunksize, _) => page.line("chunksize", size(chunksize.unsigned_abs().into())),
    }
    match (header.vl_blocks, header.blocksize) {
        (true, _) => page.line("blocksize", "varies (VL-blocks)"),
        (_, 0) => page.line("blocksize", "automatic"),
        (_, blocksize) => page.line("blocksize", blocksize),
    }
    let Some(entries) = &facts.index else {
        page.line("chunks", "the index cannot be read");
        return;
    };
    let special = kinds(entries.special.named());
    let parts = match (entries.count, entries.stored) {
        (0, _) => String::new(),
        (count, stored) if count == stored => ", all stored".to_owned(),
        (_, stored) => format!(": {stored} stored, {}", special.join(", ")),
    };
    page.line("chunks", format_args!("{}{parts}", entries.count));
    let Some(stored) = &facts.stored else {
        page.line("stored chunks", "chunk headers were not read (--all reads them)");
        return;
    };
    let Some((smallest, largest)) = stored.sizes else { return };
    page.line("stored chunks", format_args!("{smallest} to {largest} bytes, {} in all", stored.cbytes));
    let Specials { zeros, nan, uninit } = stored.special;
    let numbers = [
        (stored.copies, "uncompressed"),
        (stored.repeated, "one value repeated"),
        (zeros, "zeros"),
        (nan, "NaN"),
        (uninit, "uninitialised"),
        (stored.dictionary, "with a dictionary"),
        (stored.vl_blocks, "with VL-blocks"),
        (stored.unreadable, "unreadable"),
    ];
    let codecs = stored.codecs();
    let codecs = codecs.iter().map(|(name, count)| (*count, name.as_str()));
    page.line("", kinds(codecs.chain(numbers)).join(", "));
}

/// What there is some of.
fn kinds<'a>(numbers: impl IntoIterator<Item = (u64, &'a str)>) -> Vec<String> {
    numbers.into_iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect()
}

fn array_lines(array: &Array, page: &mut Page) {
    let dimensions = counted(array.shape.len() as u64, "dimension", "dimensions");
    page.line("array", format_args!("{}, version {}, {dimensions}", array.kind.name(), array.version));
    page.line("shape", shape(&array.shape));
    page.line("chunkshape", shape(&array.chunkshape));
    page.line("blockshape", shape(&array.blockshape));
    let Some(dtype) = &array.dtype else { return };
    match (dtype.format, numpy_name(dtype)) {
        (0, Some(name)) => page.line("dtype", format_args!("{} ({name})", plain(&dtype.text))),
        (0, None) => page.line("dtype", plain(&dtype.text)),
        (format, _) => page.line("dtype", format_args!("{} (in format {format}, which is not known)", plain(&dtype.text))),
    }
}

fn shape(sizes: &[impl ToString]) -> String {
    match sizes {
        [] => "() (a single item)".to_owned(),
        [size] => format!("({},)", size.to_string()),
        sizes => format!("({})", sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// What NumPy calls a type that is given as `<f4` is.
fn numpy_name(dtype: &Dtype) -> Option<String> {
    let mut chars = dtype.text.chars();
    let (order, kind) = (chars.next()?, chars.next()?);
    let rest = chars.as_str();
    let (digits, unit) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
    let bytes: u32 = digits.parse().ok()?;
    let bits = |name: &str| format!("{name}{}", u64::from(bytes) * 8);
    let name = match kind {
        'M' => format!("datetime64{unit}"),
        'm' => format!("timedelta64{unit}"),
        _ if !unit.is_empty() => return None,
        'b' if bytes == 1 => "bool".to_owned(),
        'i' => bits("int"),
        'u' => bits("uint"),
        'f' => bits("float"),
        'c' => bits("complex"),
        'S' => format!("strings of {bytes} bytes"),
        'U' => format!("strings of {bytes} characters"),
        'V' => format!("{bytes} bytes"),
        _ => return None,
    };
    let order = match (order, kind) {
        ('>', 'S' | 'V') | ('<' | '|' | '=', _) => "",
        ('>', _) => ", big endian",
        _ => return None,
    };
    Some(format!("{}{order}", plain(&name)))
}

/// Each on a line, in columns.
fn layers(title: &str, layers: &[Layer], page: &mut Page) {
    if layers.is_empty() {
        return;
    }
    page.title(title);
    let row = |layer: &Layer| {
        let nbytes = layer.nbytes.map_or("? bytes".to_owned(), |nbytes| counted(nbytes as u64, "byte", "bytes"));
        let cbytes = layer.cbytes.map(|cbytes| format!(" in {cbytes}")).unwrap_or_default();
        (plain(&layer.name).to_string(), format!("{nbytes}{cbytes}"), cut(&layer.text()))
    };
    let rows: Vec<_> = layers.iter().map(row).collect();
    let names = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0).max(WIDTH);
    let sizes = rows.iter().map(|(_, size, _)| size.len()).max().unwrap_or(0);
    for (name, size, content) in rows {
        let _ = writeln!(page.0, "  {NAME}{name:names$}{NAME:#} {size:sizes$}  {content}");
    }
}

/// A line that is not too long to be read.
fn cut(text: &str) -> String {
    const MOST: usize = 240;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

fn size(bytes: u64) -> String {
    if bytes < 1024 { bytes.to_string() } else { format!("{bytes} ({})", HumanBytes(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_numpy() {
        let name = |text: &str| numpy_name(&Dtype { format: 0, text: text.into() });
        for (text, expected) in [
            ("<f4", "float32"),
            (">i2", "int16, big endian"),
            ("|b1", "bool"),
            ("|u1", "uint8"),
            ("<c16", "complex128"),
            ("<U8", "strings of 8 characters"),
            ("|S300", "strings of 300 bytes"),
            ("<M8[ns]", "datetime64[ns]"),
            ("|V12", "12 bytes"),
        ] {
            assert_eq!(name(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "<", "<f", "float32", "[('a', '<i4')]", "<f4x", "<f99999999999", "é", "<i4\u{1b}[2J"] {
            assert_eq!(name(text), None, "{text}");
        }
        assert_eq!(name("<M8\u{1b}[2J").as_deref(), Some("datetime64\\u{1b}[2J"));
    }
}
