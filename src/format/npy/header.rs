//! The header of .npy files.
//!
//! ```text
//! 93 'NUMPY' major minor | len | {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n | items
//! 1    5       1     1     2 of version 1, else 4
//! ```
//!
//! The length counts the text with its spaces and its end of line; the items begin at a multiple of [`ALIGNMENT`]. The text is
//! Latin-1 in versions 1 and 2, and UTF-8 in version 3. Little endian.

use super::dtype::{self, ItemKind, ItemType, MAX_DIMS};
use super::literal::{self, Literal, Value, write_shape};
use crate::format::{Error, Result};

/// Items begin at a multiple of so many bytes.
pub const ALIGNMENT: usize = 64;
/// Bytes of a header that is read at most; NumPy itself loads no text above 10000 unless told to.
pub const MAX_HEADER: usize = 1 << 20;
const MAGIC: &[u8] = b"\x93NUMPY";
/// Magic and version.
const VERSION_END: usize = 8;
/// Room that NumPy leaves for the first dimension to grow, in digits.
const GROWTH_DIGITS: usize = 21;

const TEXT: &str = "npy: header";

/// What `np.save` of NumPy 2 writes in front of the items, byte for byte: version 1.0 if the text fits, else 2.0, and 3.0 where a
/// name is not Latin-1. Items are in C order. An item that is several items side by side adds its dimensions to the shape's, as in
/// any array of NumPy's.
///
/// # Errors
/// More than 64 dimensions in all.
pub fn header(item: &ItemType, shape: &[u64]) -> Result<Vec<u8>> {
    let adapted = item.adapted();
    let (item, shape) = flat(&adapted, shape)?;
    let mut text = format!("{{'descr': {}, 'fortran_order': False, 'shape': ", item.descr());
    write_shape(&mut text, &shape);
    text.push_str(", }");
    if let Some(first) = shape.first() {
        let digits = first.to_string().len();
        text.extend(std::iter::repeat_n(' ', GROWTH_DIGITS.saturating_sub(digits)));
    }
    let latin: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(c).ok()).collect();
    let whole = match latin {
        Some(latin) => wrapped(&latin, 1).or_else(|| wrapped(&latin, 2)),
        None => wrapped(text.as_bytes(), 3),
    };
    whole.ok_or_else(|| Error::new(TEXT, 0, format_args!("{} bytes", text.len()), "less than 2^32"))
}

/// The item and the shape of the array that NumPy makes of them.
fn flat<'a>(item: &'a ItemType, shape: &[u64]) -> Result<(&'a ItemType, Vec<u64>)> {
    let (mut item, mut shape) = (item, shape.to_vec());
    while let ItemKind::Sub { base, shape: inner, .. } = &item.0 {
        shape.extend(inner);
        item = base;
    }
    if shape.len() > MAX_DIMS {
        return Err(Error::new("npy: shape", 0, format_args!("{} dimensions", shape.len()), format_args!("at most {MAX_DIMS}")));
    }
    Ok((item, shape))
}

/// The text with what goes before it and the spaces behind it, `None` if a version has no room for its length.
fn wrapped(text: &[u8], version: u8) -> Option<Vec<u8>> {
    let start = if version == 1 { VERSION_END.checked_add(2)? } else { VERSION_END.checked_add(4)? };
    // One for the end of line, and at least one space.
    let end = start.checked_add(text.len())?.checked_add(2)?.checked_next_multiple_of(ALIGNMENT)?;
    let len = end.checked_sub(start)?;
    let mut out = Vec::with_capacity(end);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[version, 0]);
    match version {
        1 => out.extend_from_slice(&u16::try_from(len).ok()?.to_le_bytes()),
        _ => out.extend_from_slice(&u32::try_from(len).ok()?.to_le_bytes()),
    }
    out.extend_from_slice(text);
    out.resize(end.checked_sub(1)?, b' ');
    out.push(b'\n');
    Some(out)
}

/// What a .npy file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NpyHeader {
    /// The type of its items.
    pub item: ItemType,
    /// Items in each dimension.
    pub shape: Vec<u64>,
    /// Whether the first dimension varies fastest.
    pub fortran_order: bool,
    /// Where in the file the items begin.
    pub data_offset: u64,
}

/// A file's beginning, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// The header was there as a whole.
    Header(NpyHeader),
    /// So many bytes of the file tell more.
    Needs(usize),
}

impl NpyHeader {
    /// Parses the beginning of a file. What is behind the header is not looked at. If a longer one is needed, which is at most
    /// [`MAX_HEADER`] bytes, the answer says how long.
    ///
    /// # Errors
    /// What is no .npy file of version 1 to 3, a longer header, a type that [`ItemType::of`] would not take, and items that
    /// count more than 2⁶³ bytes.
    pub fn parse(prefix: &[u8]) -> Result<Parsed> {
        let magic = prefix.iter().zip(MAGIC).all(|(found, expected)| found == expected);
        if !magic {
            return Err(Error::new("npy: magic", 0, format_args!("{:02x?}", prefix.get(..6).unwrap_or(prefix)), "93 'NUMPY'"));
        }
        let Some(version) = prefix.get(MAGIC.len()..VERSION_END) else { return Ok(Parsed::Needs(VERSION_END)) };
        let (len_size, is_latin) = match version {
            [1, 0] => (2, true),
            [2, 0] => (4, true),
            [3, 0] => (4, false),
            _ => return Err(Error::new("npy: version", 6, format_args!("{version:?}"), "1.0, 2.0 or 3.0")),
        };
        let start = VERSION_END.saturating_add(len_size);
        let Some(len) = prefix.get(VERSION_END..start) else { return Ok(Parsed::Needs(start)) };
        let len = len.iter().rev().fold(0usize, |len, byte| (len << 8) | usize::from(*byte));
        let end = start.saturating_add(len);
        if end > MAX_HEADER {
            return Err(Error::new("npy: header length", VERSION_END as u64, len, format_args!("less than {MAX_HEADER}")));
        }
        let Some(text) = prefix.get(start..end) else { return Ok(Parsed::Needs(end)) };
        let text = match is_latin {
            true => text.iter().copied().map(char::from).collect(),
            false => {
                let error = |error| Error::new(TEXT, start as u64, error, "UTF-8");
                str::from_utf8(text).map_err(error)?.to_owned()
            }
        };
        NpyHeader::from_text(&text, end as u64).map(Parsed::Header)
    }

    fn from_text(text: &str, data_offset: u64) -> Result<Self> {
        let literal = literal::parse(text, TEXT)?;
        let Value::Dict(pairs) = &literal.value else { return Err(Error::new(TEXT, 0, literal.value.kind(), "a dict")) };
        let (mut item, mut order, mut shape) = (None, None, None);
        for (key, value) in pairs {
            match &key.value {
                Value::Str(key) if key == "descr" => item = Some(dtype::from_descr(value)?),
                Value::Str(key) if key == "fortran_order" => order = Some(boolean(value)?),
                Value::Str(key) if key == "shape" => shape = Some(sizes(value)?),
                _ => return Err(Error::new(TEXT, key.at, "another key", "descr, fortran_order and shape")),
            }
        }
        let (Some(item), Some(fortran_order), Some(shape)) = (item, order, shape) else {
            return Err(Error::new(TEXT, 0, "a key less", "descr, fortran_order and shape"));
        };
        let header = NpyHeader { item, shape, fortran_order, data_offset };
        match header.data_len() {
            Some(_) => Ok(header),
            None => Err(Error::new("npy: shape", 0, format_args!("{:?}", header.shape), "less than 2^63 bytes")),
        }
    }

    /// Bytes of the items, `None` for more than 2⁶³, which [`NpyHeader::parse`] does not give.
    pub fn data_len(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let len = self.shape.iter().try_fold(self.item.size(), |len, size| len.checked_mul(*size));
        len.filter(|len| i64::try_from(*len).is_ok())
    }
}

fn boolean(literal: &Literal) -> Result<bool> {
    match literal.value {
        Value::Bool(value) => Ok(value),
        ref other => Err(Error::new("npy: fortran_order", literal.at, other.kind(), "True or False")),
    }
}

fn sizes(literal: &Literal) -> Result<Vec<u64>> {
    const FIELD: &str = "npy: shape";
    let Value::Tuple(sizes) = &literal.value else {
        return Err(Error::new(FIELD, literal.at, literal.value.kind(), "a tuple"));
    };
    if sizes.len() > MAX_DIMS {
        return Err(Error::new(
            FIELD,
            literal.at,
            format_args!("{} dimensions", sizes.len()),
            format_args!("at most {MAX_DIMS}"),
        ));
    }
    sizes.iter().map(|size| dtype::unsigned(size, FIELD)).collect()
}
