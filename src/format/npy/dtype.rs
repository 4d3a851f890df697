//! The type of an array's items: a single value, a structure of fields, or several items side by side.
//!
//! Three texts name such a type: `str(dtype)`, which a b2nd metalayer holds; the `descr` of a .npy header; and what a user gives
//! on the command line. All are read as NumPy reads them: with gaps, titles, names for nameless fields, and its alignment.

use super::literal::{self, Literal, Value};
use super::scalar::{MAX_SIZE, Scalar};
use crate::format::array::Dtype;
use crate::format::{Error, Result};

/// Bytes of a text that names a type. C-Blosc2 has a metalayer's text of any length; NumPy itself loads no header above 10000.
pub const MAX_TEXT: usize = 256 << 10;
/// Dimensions that NumPy has at most.
pub(super) const MAX_DIMS: usize = 64;

const FIELD: &str = "dtype";
const FIELDS: &str = "dtype: fields";
const SHAPE: &str = "dtype: shape";
const OFFSET: &str = "dtype: offset";
const ITEMSIZE: &str = "dtype: itemsize";

/// The type of an array's items, as NumPy knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemType(pub(super) ItemKind);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ItemKind {
    Scalar(Scalar),
    Struct(Struct),
    /// An array of items as one item.
    Sub {
        base: Box<ItemType>,
        shape: Vec<u64>,
        size: u64,
    },
}

/// Fields, each somewhere in an item of `size` bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Struct {
    pub(super) fields: Vec<Field>,
    pub(super) size: u64,
    /// Of an item, where it is a field of an aligned structure.
    alignment: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) title: Option<String>,
    pub(super) item: ItemType,
    pub(super) offset: u64,
}

impl Field {
    /// Where it ends.
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(self.item.size())
    }
}

impl ItemType {
    /// The type that a b2nd metalayer names, as python-blosc2 reads it.
    ///
    /// # Errors
    /// A text that is not NumPy's (format 0), that is longer than [`MAX_TEXT`], that NumPy would not take for a type, or that names
    /// objects of Python, whose items are addresses. Offsets count from the beginning of the text.
    pub fn of(dtype: &Dtype) -> Result<Self> {
        match dtype.format {
            0 => ItemType::parse(&dtype.text),
            other => Err(Error::new("array: dtype_format", 0, other, "0, NumPy's")),
        }
    }

    /// The type that a text names: a name such as `<f4`, `float32` or `S5`, or Python's literal of a structure, such as
    /// `[('x', '<f4'), ('y', '<i2', (3,))]` or `{'names': ['x'], 'formats': ['<f4'], 'offsets': [4], 'itemsize': 16}`.
    ///
    /// # Errors
    /// As for [`ItemType::of`].
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > MAX_TEXT {
            return Err(Error::new(FIELD, 0, format_args!("{} bytes", text.len()), format_args!("at most {MAX_TEXT}")));
        }
        match text.trim_start().starts_with(['(', '[', '{']) {
            true => from_literal(&literal::parse(text, FIELD)?, false),
            false => Scalar::parse(text, 0).map(|scalar| ItemType(ItemKind::Scalar(scalar))),
        }
    }

    /// Items of `size` bytes of which nothing more is known: `|V<size>`.
    pub fn void(size: u64) -> Self {
        ItemType(ItemKind::Scalar(Scalar::void(size)))
    }

    /// Bytes of an item; 2³¹ − 1 at most, but for [`ItemType::void`] of more.
    pub fn size(&self) -> u64 {
        match &self.0 {
            ItemKind::Scalar(scalar) => scalar.size(),
            ItemKind::Struct(Struct { size, .. }) | ItemKind::Sub { size, .. } => *size,
        }
    }

    /// The type of the array that NumPy makes for one of this type: the same but for times without a unit, which become little
    /// endian whatever they were.
    pub(super) fn adapted(&self) -> Self {
        match &self.0 {
            ItemKind::Scalar(scalar) => ItemType(ItemKind::Scalar(scalar.adapted())),
            _ => self.clone(),
        }
    }

    fn alignment(&self) -> u64 {
        match &self.0 {
            ItemKind::Scalar(scalar) => scalar.alignment(),
            ItemKind::Struct(fields) => fields.alignment,
            ItemKind::Sub { base, .. } => base.alignment(),
        }
    }

    /// As many items as `shape` has, as one item.
    fn repeated(self, shape: Vec<u64>, at: u64) -> Result<Self> {
        if shape.is_empty() {
            return Ok(self);
        }
        if shape.len() > MAX_DIMS {
            return Err(Error::new(SHAPE, at, format_args!("{} dimensions", shape.len()), format_args!("at most {MAX_DIMS}")));
        }
        // A zero elsewhere does not make a size possible that is none.
        let count = shape.iter().try_fold(1u64, |count, size| count.checked_mul(*size.max(&1)));
        let size = count.and_then(|count| count.checked_mul(self.size())).filter(|size| *size <= MAX_SIZE);
        let size = size.ok_or_else(|| Error::new(SHAPE, at, "an item of 2^31 bytes or more", "less"))?;
        let size = if shape.contains(&0) { 0 } else { size };
        Ok(ItemType(ItemKind::Sub { base: Box::new(self), shape, size }))
    }
}

/// A type from a literal, as `numpy.dtype` makes it; `align` moves the fields of structures without offsets as C does.
fn from_literal(literal: &Literal, align: bool) -> Result<ItemType> {
    match &literal.value {
        // One behind the quote.
        Value::Str(name) => Ok(ItemType(ItemKind::Scalar(Scalar::parse(name, literal.at.saturating_add(1))?))),
        Value::Tuple(items) => match items.as_slice() {
            [Literal { value: Value::Record, .. }, fields] => from_literal(fields, align),
            [base, shape] => sub_array(from_literal(base, align)?, shape),
            _ => Err(unexpected(literal, "a tuple of a type and a shape")),
        },
        Value::List(fields) => from_list(fields, align),
        Value::Dict(pairs) => from_dict(literal, pairs, align),
        _ => Err(unexpected(literal, "a type")),
    }
}

fn unexpected(literal: &Literal, expected: &str) -> Error {
    Error::new(FIELD, literal.at, literal.value.kind(), expected)
}

/// `('S', 5)` is `S5`; a type that has a size is repeated.
fn sub_array(base: ItemType, shape: &Literal) -> Result<ItemType> {
    if let (ItemKind::Scalar(scalar), Value::Int(count)) = (&base.0, &shape.value)
        && scalar.size() == 0
    {
        let sized = u64::try_from(*count).ok().and_then(|count| scalar.with_count(count));
        let sized = sized.ok_or_else(|| Error::new(SHAPE, shape.at, count, "a number of characters"))?;
        return Ok(ItemType(ItemKind::Scalar(sized)));
    }
    base.repeated(from_shape(shape)?, shape.at)
}

/// A shape: an integer, or a tuple or list of them.
fn from_shape(literal: &Literal) -> Result<Vec<u64>> {
    match &literal.value {
        Value::Int(_) => Ok(vec![unsigned(literal, SHAPE)?]),
        Value::Tuple(sizes) | Value::List(sizes) => sizes.iter().map(|size| unsigned(size, SHAPE)).collect(),
        _ => Err(unexpected(literal, "a shape")),
    }
}

/// An integer that is not negative, and none that NumPy has no room for.
pub(super) fn unsigned(literal: &Literal, field: &'static str) -> Result<u64> {
    match literal.value {
        Value::Int(value) => u64::try_from(value).map_err(|_| Error::new(field, literal.at, value, "0 or more")),
        ref other => Err(Error::new(field, literal.at, other.kind(), "an integer")),
    }
}

fn string(literal: &Literal) -> Result<&str> {
    match &literal.value {
        Value::Str(text) => Ok(text),
        _ => Err(unexpected(literal, "a string")),
    }
}

/// Fields one behind the other, as `[(name, type), ((title, name), type, shape)]`. One without a name gets `f` and its number.
fn from_list(literals: &[Literal], align: bool) -> Result<ItemType> {
    let mut builder = Builder { align, ..Builder::default() };
    for (number, literal) in literals.iter().enumerate() {
        let (name, item) = field_of(literal, |item| from_literal(item, align))?;
        let (title, name) = title_and_name(name)?;
        let name = match (title, name) {
            (None, "") => format!("f{number}"),
            // Which is refused as the same twice, by NumPy as well.
            (Some(title), "") => title.to_owned(),
            (_, name) => name.to_owned(),
        };
        builder.push(name, title, item, None, literal.at)?;
    }
    builder.build(None, 0)
}

/// The name and the type of a field in a list.
fn field_of(literal: &Literal, type_of: impl Fn(&Literal) -> Result<ItemType>) -> Result<(&Literal, ItemType)> {
    let Value::Tuple(parts) = &literal.value else { return Err(unexpected(literal, "a tuple of a name and a type")) };
    match parts.as_slice() {
        [name, item] => Ok((name, type_of(item)?)),
        [name, item, shape] => Ok((name, sub_array(type_of(item)?, shape)?)),
        _ => Err(unexpected(literal, "a name, a type and perhaps a shape")),
    }
}

fn title_and_name(literal: &Literal) -> Result<(Option<&str>, &str)> {
    match &literal.value {
        Value::Tuple(both) => match both.as_slice() {
            [title, name] => Ok((Some(string(title)?), string(name)?)),
            _ => Err(unexpected(literal, "a name, or a title and a name")),
        },
        _ => Ok((None, string(literal)?)),
    }
}

/// Fields as a dict of lists: names, formats, and perhaps offsets, titles, itemsize and aligned.
fn from_dict(literal: &Literal, pairs: &[(Literal, Literal)], align: bool) -> Result<ItemType> {
    // As in Python, the last of the same keys counts.
    let value = |key: &str| {
        let is_key = |(found, _): &&(Literal, Literal)| matches!(&found.value, Value::Str(found) if found == key);
        pairs.iter().rev().find(is_key).map(|(_, value)| value)
    };
    let list = |key: &str| {
        value(key).map_or(Ok(None), |value| match &value.value {
            Value::List(items) | Value::Tuple(items) => Ok(Some(items.as_slice())),
            _ => Err(unexpected(value, "a list")),
        })
    };
    let (Some(names), Some(formats)) = (list("names")?, list("formats")?) else {
        return Err(unexpected(literal, "one with names and formats"));
    };
    let (offsets, titles) = (list("offsets")?, list("titles")?);
    for other in [Some(formats), offsets, titles].into_iter().flatten() {
        if other.len() != names.len() {
            let both = format!("{} names and a list of {}", names.len(), other.len());
            return Err(Error::new(FIELDS, literal.at, both, "as many"));
        }
    }
    let align = align || value("aligned").is_some_and(|value| matches!(value.value, Value::Bool(true) | Value::Int(1)));
    let mut builder = Builder { align, ..Builder::default() };
    for (index, (name, format)) in names.iter().zip(formats).enumerate() {
        let title = match titles.and_then(|titles| titles.get(index)) {
            None | Some(Literal { value: Value::None, .. }) => None,
            Some(title) => Some(string(title)?),
        };
        let offset = offsets.and_then(|offsets| offsets.get(index)).map(|offset| unsigned(offset, OFFSET)).transpose()?;
        builder.push(string(name)?.to_owned(), title, from_literal(format, align)?, offset, name.at)?;
    }
    match value("itemsize").filter(|value| value.value != Value::None) {
        None => builder.build(None, literal.at),
        Some(size) => builder.build(Some(unsigned(size, ITEMSIZE)?), size.at),
    }
}

/// The type that the `descr` of a .npy header names. There, fields without a name are gaps.
pub(super) fn from_descr(literal: &Literal) -> Result<ItemType> {
    match &literal.value {
        Value::Tuple(items) => match items.as_slice() {
            [base, shape] => sub_array(from_descr(base)?, shape),
            _ => Err(unexpected(literal, "a tuple of a type and a shape")),
        },
        Value::List(fields) => {
            let (mut builder, mut offset) = (Builder::default(), 0u64);
            for field in fields {
                let (name, item) = field_of(field, from_descr)?;
                let (title, name) = title_and_name(name)?;
                let end = offset.checked_add(item.size()).filter(|end| *end <= MAX_SIZE);
                let end = end.ok_or_else(|| Error::new(FIELDS, field.at, "an item of 2^31 bytes or more", "less"))?;
                let is_gap = name.is_empty() && matches!(&item.0, ItemKind::Scalar(scalar) if scalar.is_void());
                if !is_gap {
                    builder.push(name.to_owned(), title, item, Some(offset), field.at)?;
                }
                offset = end;
            }
            builder.build(Some(offset), literal.at)
        }
        _ => from_literal(literal, false),
    }
}

/// Puts fields together to a structure.
#[derive(Default)]
struct Builder {
    align: bool,
    fields: Vec<Field>,
    /// Names and titles, which are of one kind in NumPy.
    taken: std::collections::HashSet<String>,
    /// Where the fields so far end.
    end: u64,
    alignment: u64,
}

impl Builder {
    fn push(&mut self, name: String, title: Option<&str>, item: ItemType, offset: Option<u64>, at: u64) -> Result<()> {
        for name in [Some(name.as_str()), title].into_iter().flatten() {
            if !self.taken.insert(name.to_owned()) {
                return Err(Error::new(FIELDS, at, format_args!("{name:?} twice"), "names and titles that differ"));
            }
        }
        let alignment = if self.align { item.alignment().max(1) } else { 1 };
        let offset = match offset {
            Some(offset) if offset.checked_rem(alignment) != Some(0) => {
                return Err(Error::new(OFFSET, at, offset, format_args!("a multiple of {alignment}, the field's alignment")));
            }
            Some(offset) => Some(offset),
            None => self.end.checked_next_multiple_of(alignment),
        };
        let end = offset.and_then(|offset| offset.checked_add(item.size())).filter(|end| *end <= MAX_SIZE);
        let (Some(offset), Some(end)) = (offset, end) else {
            return Err(Error::new(FIELDS, at, "an item of 2^31 bytes or more", "less"));
        };
        self.end = self.end.max(end);
        self.alignment = self.alignment.max(alignment);
        self.fields.push(Field { name, title: title.map(str::to_owned), item, offset });
        Ok(())
    }

    /// With the size that the text gives, if it does.
    fn build(self, size: Option<u64>, at: u64) -> Result<ItemType> {
        let alignment = self.alignment.max(1);
        let size = match size {
            Some(size) if size < self.end || size > MAX_SIZE => {
                return Err(Error::new(ITEMSIZE, at, size, format_args!("{} to {MAX_SIZE}", self.end)));
            }
            Some(size) if size.checked_rem(alignment) != Some(0) => {
                return Err(Error::new(ITEMSIZE, at, size, format_args!("a multiple of {alignment}, the alignment")));
            }
            Some(size) => size,
            None => self.end.checked_next_multiple_of(alignment).unwrap_or(self.end),
        };
        Ok(ItemType(ItemKind::Struct(Struct { fields: self.fields, size, alignment })))
    }
}
