//! Types of single values, as NumPy names them: `<f4`, `float32`, `f`, `S5`, `datetime64[25s]`.

use std::fmt;

use crate::format::{Error, Result};

/// NumPy counts an item's bytes in an `int`.
pub(super) const MAX_SIZE: u64 = i32::MAX as u64;

/// What the bytes of a value are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Bool,
    Int,
    Uint,
    Float,
    Complex,
    Datetime,
    Timedelta,
    Bytes,
    /// Of 4 bytes each.
    Unicode,
    Void,
}

impl Kind {
    fn letter(self) -> char {
        match self {
            Kind::Bool => 'b',
            Kind::Int => 'i',
            Kind::Uint => 'u',
            Kind::Float => 'f',
            Kind::Complex => 'c',
            Kind::Datetime => 'M',
            Kind::Timedelta => 'm',
            Kind::Bytes => 'S',
            Kind::Unicode => 'U',
            Kind::Void => 'V',
        }
    }

    fn is_flexible(self) -> bool {
        matches!(self, Kind::Bytes | Kind::Unicode | Kind::Void)
    }

    /// Whether NumPy has the kind in that size.
    fn has(self, size: u64) -> bool {
        match self {
            Kind::Bool => size == 1,
            Kind::Int | Kind::Uint => matches!(size, 1 | 2 | 4 | 8),
            Kind::Float => matches!(size, 2 | 4 | 8 | 16),
            Kind::Complex => matches!(size, 8 | 16 | 32),
            Kind::Datetime | Kind::Timedelta => size == 8,
            Kind::Bytes | Kind::Unicode | Kind::Void => size <= MAX_SIZE,
        }
    }
}

/// The type of single values: numbers, times, strings of one size, and bytes of no known meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scalar {
    kind: Kind,
    big_endian: bool,
    size: u64,
    /// With brackets, or empty; only of times.
    unit: String,
}

impl Scalar {
    pub(super) fn void(size: u64) -> Self {
        Scalar { kind: Kind::Void, big_endian: false, size, unit: String::new() }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn is_void(&self) -> bool {
        self.kind == Kind::Void
    }

    /// The same kind with room for `count` characters or bytes, if this one has none yet.
    pub(super) fn with_count(&self, count: u64) -> Option<Self> {
        let unit = if self.kind == Kind::Unicode { 4 } else { 1 };
        let size = count.checked_mul(unit).filter(|size| *size <= MAX_SIZE)?;
        (self.size == 0).then(|| Scalar { size, ..self.clone() })
    }

    /// Without the byte order of a time that has no unit.
    pub(super) fn adapted(&self) -> Self {
        let is_time = matches!(self.kind, Kind::Datetime | Kind::Timedelta);
        Scalar { big_endian: self.big_endian && !(is_time && self.unit.is_empty()), ..self.clone() }
    }

    /// As a C compiler of x86-64 aligns it; asked for by structures that say so.
    pub(super) fn alignment(&self) -> u64 {
        match self.kind {
            Kind::Bytes | Kind::Void => 1,
            Kind::Unicode => 4,
            Kind::Complex => self.size.div_euclid(2),
            _ => self.size,
        }
    }

    /// As NumPy writes it among the fields of a structure.
    pub(super) fn short(&self) -> String {
        match self.to_string() {
            text if text == "|b1" => "?".to_owned(),
            text if self.size == 0 => text.replace(['|', '0'], ""),
            text => text.replace('|', ""),
        }
    }

    /// Parses a name. `at` is where it begins in a larger text, for errors.
    pub(super) fn parse(text: &str, at: u64) -> Result<Self> {
        if let Some(known) = known(text) {
            return Ok(known);
        }
        let (big_endian, rest) = match text.strip_prefix(['<', '=', '|']) {
            Some(rest) => (false, rest),
            None => text.strip_prefix('>').map_or((false, text), |rest| (true, rest)),
        };
        if matches!(rest, "O" | "O8" | "object" | "object_") {
            return Err(Error::new(FIELD, at, "Python objects, which are addresses in memory", "items with values"));
        }
        let scalar = time(rest, at)?.or_else(|| code(rest)).or_else(|| sized(rest));
        let mut scalar = scalar.ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            Error::new(FIELD, at, format_args!("{shown:?}"), "a type that NumPy knows, such as '<f4'")
        })?;
        scalar.big_endian = big_endian && !scalar.has_no_order();
        Ok(scalar)
    }

    fn has_no_order(&self) -> bool {
        match self.kind {
            Kind::Bytes | Kind::Void | Kind::Bool => true,
            Kind::Int | Kind::Uint => self.size == 1,
            _ => false,
        }
    }
}

impl fmt::Display for Scalar {
    /// As NumPy's `dtype.str`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match (self.has_no_order(), self.big_endian) {
            (true, _) => '|',
            (_, true) => '>',
            (_, false) => '<',
        };
        let size = if self.kind == Kind::Unicode { self.size.div_euclid(4) } else { self.size };
        write!(f, "{order}{}{size}{}", self.kind.letter(), self.unit)
    }
}

const FIELD: &str = "dtype: type";

fn plain(kind: Kind, size: u64) -> Scalar {
    Scalar { kind, big_endian: false, size, unit: String::new() }
}

/// A whole name, which no byte order goes before.
fn known(text: &str) -> Option<Scalar> {
    let (kind, size) = match text {
        "bool" | "bool_" => (Kind::Bool, 1),
        "int8" | "byte" => (Kind::Int, 1),
        "int16" | "short" => (Kind::Int, 2),
        "int32" | "intc" => (Kind::Int, 4),
        "int64" | "int" | "int_" | "intp" | "long" | "longlong" => (Kind::Int, 8),
        "uint8" | "ubyte" => (Kind::Uint, 1),
        "uint16" | "ushort" => (Kind::Uint, 2),
        "uint32" | "uintc" => (Kind::Uint, 4),
        "uint64" | "uint" | "uintp" | "ulong" | "ulonglong" => (Kind::Uint, 8),
        "float16" | "half" => (Kind::Float, 2),
        "float32" | "single" => (Kind::Float, 4),
        "float64" | "float" | "double" => (Kind::Float, 8),
        "float128" | "longdouble" => (Kind::Float, 16),
        "complex64" | "csingle" => (Kind::Complex, 8),
        "complex128" | "complex" | "cdouble" => (Kind::Complex, 16),
        "complex256" | "clongdouble" => (Kind::Complex, 32),
        "bytes" | "bytes_" => (Kind::Bytes, 0),
        "str" | "str_" | "unicode" => (Kind::Unicode, 0),
        "void" => (Kind::Void, 0),
        _ => return None,
    };
    Some(plain(kind, size))
}

/// A type by the one letter that NumPy has for it.
fn code(text: &str) -> Option<Scalar> {
    let (kind, size) = match text {
        "?" => (Kind::Bool, 1),
        "b" => (Kind::Int, 1),
        "h" => (Kind::Int, 2),
        "i" => (Kind::Int, 4),
        "l" | "q" | "p" | "n" => (Kind::Int, 8),
        "B" => (Kind::Uint, 1),
        "H" => (Kind::Uint, 2),
        "I" => (Kind::Uint, 4),
        "L" | "Q" | "P" | "N" => (Kind::Uint, 8),
        "e" => (Kind::Float, 2),
        "f" => (Kind::Float, 4),
        "d" => (Kind::Float, 8),
        "g" => (Kind::Float, 16),
        "F" => (Kind::Complex, 8),
        "D" => (Kind::Complex, 16),
        "G" => (Kind::Complex, 32),
        "c" => (Kind::Bytes, 1),
        "S" | "a" => (Kind::Bytes, 0),
        "U" => (Kind::Unicode, 0),
        "V" => (Kind::Void, 0),
        _ => return None,
    };
    Some(plain(kind, size))
}

/// A letter for the kind, and the size in bytes, of Unicode in characters.
fn sized(text: &str) -> Option<Scalar> {
    let mut chars = text.chars();
    let kind = match chars.next()? {
        'b' => Kind::Bool,
        'i' => Kind::Int,
        'u' => Kind::Uint,
        'f' => Kind::Float,
        'c' => Kind::Complex,
        'S' | 'a' => Kind::Bytes,
        'U' => Kind::Unicode,
        'V' => Kind::Void,
        _ => return None,
    };
    let count = number(chars.as_str())?;
    if kind.is_flexible() {
        return plain(kind, 0).with_count(count);
    }
    kind.has(count).then(|| plain(kind, count))
}

fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten().filter(|number| *number <= MAX_SIZE)
}

/// A point or a span of time, with or without its unit.
fn time(text: &str, at: u64) -> Result<Option<Scalar>> {
    let name = text.split('[').next().unwrap_or_default();
    let kind = match name {
        "M" | "M8" | "datetime64" => Kind::Datetime,
        "m" | "m8" | "timedelta64" => Kind::Timedelta,
        _ => return Ok(None),
    };
    let unit = text.strip_prefix(name).filter(|unit| !unit.is_empty()).map(|unit| self::unit(unit, at)).transpose()?;
    Ok(Some(Scalar { unit: unit.unwrap_or_default(), ..plain(kind, 8) }))
}

/// A unit in brackets, such as `[25s]`, as NumPy writes it.
fn unit(text: &str, at: u64) -> Result<String> {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let known = inner.and_then(|inner| {
        let name = inner.trim_start_matches(|c: char| c.is_ascii_digit());
        let count = match inner.strip_suffix(name)? {
            "" => 1,
            digits => number(digits)?,
        };
        let name = match name {
            "Y" | "M" | "W" | "D" | "h" | "m" | "s" | "ms" | "us" | "ns" | "ps" | "fs" | "as" => name,
            "μs" => "us",
            "generic" if count == 1 => return Some(String::new()),
            _ => return None,
        };
        Some(if count == 1 { format!("[{name}]") } else { format!("[{count}{name}]") })
    });
    known.ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        Error::new(FIELD, at, format_args!("{shown:?}"), "a unit of time, such as [ns] or [25s]")
    })
}
