//! Literals of Python's grammar, as types of items and headers of .npy files are written: strings, integers, tuples, lists, dicts.
//!
//! Nothing is evaluated. What is no literal, a call or a name or an operator, is an error, and so is what is nested too deep.

use crate::format::{Error, Result};

/// Brackets within brackets at most: each takes stack.
const MAX_DEPTH: u32 = 32;
/// The type of structures that NumPy writes in front of fields; the only name besides `True`, `False` and `None`.
const RECORD: &str = "numpy.record";

/// A value, and where in the text it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Literal {
    pub(super) at: u64,
    pub(super) value: Value,
}

/// What a literal is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Str(String),
    Int(i64),
    Bool(bool),
    None,
    /// `numpy.record`.
    Record,
    Tuple(Vec<Literal>),
    List(Vec<Literal>),
    /// In the order of the text; a key can be there twice.
    Dict(Vec<(Literal, Literal)>),
}

impl Value {
    /// What it is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Str(_) => "a string",
            Value::Int(_) => "an integer",
            Value::Bool(_) => "True or False",
            Value::None => "None",
            Value::Record => RECORD,
            Value::Tuple(_) => "a tuple",
            Value::List(_) => "a list",
            Value::Dict(_) => "a dict",
        }
    }
}

/// Parses a text that is one literal, with white space around it at most. Errors name `field`, and the offset in the text.
pub(super) fn parse(text: &str, field: &'static str) -> Result<Literal> {
    let mut parser = Parser { text, at: 0, field };
    let literal = parser.literal(0)?;
    parser.skip_space();
    match parser.peek() {
        None => Ok(literal),
        Some(_) => Err(parser.error("nothing behind the value")),
    }
}

struct Parser<'a> {
    text: &'a str,
    /// On a boundary of characters, always.
    at: usize,
    field: &'static str,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at = self.at.saturating_add(c.len_utf8());
        Some(c)
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.next();
        }
        found
    }

    /// With comments.
    fn skip_space(&mut self) {
        while let Some(c @ (' ' | '\t' | '\n' | '\r' | '\x0c' | '#')) = self.peek() {
            self.next();
            while c == '#' && self.peek().is_some_and(|c| c != '\n') {
                self.next();
            }
        }
    }

    fn error(&self, expected: &str) -> Error {
        match self.peek() {
            Some(c) => Error::new(self.field, self.at as u64, format_args!("{c:?}"), expected),
            None => Error::new(self.field, self.at as u64, "the end of the text", expected),
        }
    }

    fn literal(&mut self, depth: u32) -> Result<Literal> {
        self.skip_space();
        let at = self.at as u64;
        let value = match self.peek() {
            Some('\'' | '"') => Value::Str(self.strings()?),
            Some('-' | '+' | '0'..='9') => Value::Int(self.integer()?),
            Some('(' | '[' | '{') => {
                let deeper = depth.saturating_add(1);
                if deeper > MAX_DEPTH {
                    return Err(Error::new(
                        self.field,
                        at,
                        "another bracket",
                        format_args!("at most {MAX_DEPTH} within each other"),
                    ));
                }
                match self.next() {
                    Some('(') => self.tuple(deeper)?,
                    Some('[') => Value::List(self.items(']', deeper)?.0),
                    _ => self.dict(deeper)?,
                }
            }
            Some('u' | 'U') if self.rest().get(1..2).is_some_and(|c| c == "'" || c == "\"") => {
                self.next();
                Value::Str(self.strings()?)
            }
            _ => self.word()?,
        };
        Ok(Literal { at, value })
    }

    fn word(&mut self) -> Result<Value> {
        let end = |c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.'));
        let word = self.rest().split(end).next().unwrap_or_default();
        let value = match word {
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            "None" => Value::None,
            RECORD => Value::Record,
            _ => return Err(self.error("a string, an integer, a tuple, a list or a dict")),
        };
        self.at = self.at.saturating_add(word.len());
        Ok(value)
    }

    /// The items up to a bracket, and whether there is a comma behind the last one.
    fn items(&mut self, close: char, depth: u32) -> Result<(Vec<Literal>, bool)> {
        let (mut items, mut comma) = (Vec::new(), false);
        loop {
            self.skip_space();
            if self.eat(close) {
                return Ok((items, comma));
            }
            if !items.is_empty() && !comma {
                return Err(self.error("a comma or the closing bracket"));
            }
            items.push(self.literal(depth)?);
            self.skip_space();
            comma = self.eat(',');
        }
    }

    /// `(3)` is 3, and `(3,)` a tuple.
    fn tuple(&mut self, depth: u32) -> Result<Value> {
        let (mut items, comma) = self.items(')', depth)?;
        if items.len() == 1 && !comma {
            return items.pop().map(|item| item.value).ok_or_else(|| self.error("an item"));
        }
        Ok(Value::Tuple(items))
    }

    fn dict(&mut self, depth: u32) -> Result<Value> {
        let (mut pairs, mut comma) = (Vec::new(), true);
        loop {
            self.skip_space();
            if self.eat('}') {
                return Ok(Value::Dict(pairs));
            }
            if !comma {
                return Err(self.error("a comma or the closing bracket"));
            }
            let key = self.literal(depth)?;
            self.skip_space();
            if !self.eat(':') {
                return Err(self.error("a colon"));
            }
            pairs.push((key, self.literal(depth)?));
            self.skip_space();
            comma = self.eat(',');
        }
    }

    /// With an `L` behind it, as Python 2 wrote some.
    fn integer(&mut self) -> Result<i64> {
        let at = self.at;
        let sign = if self.eat('-') { "-" } else { "" };
        self.eat('+');
        let radix = match self.rest().get(..2) {
            Some("0x" | "0X") => 16,
            Some("0o" | "0O") => 8,
            Some("0b" | "0B") => 2,
            _ => 10,
        };
        if radix != 10 {
            self.at = self.at.saturating_add(2);
        }
        let mut digits = sign.to_owned();
        while let Some(c) = self.peek() {
            // Between digits.
            let is_underscore = c == '_' && self.rest().get(1..2).is_some_and(|c| c.chars().all(|c| c.is_digit(radix)));
            if !c.is_digit(radix) && !is_underscore {
                break;
            }
            digits.extend(Some(c).filter(|_| !is_underscore));
            self.next();
        }
        let value = i64::from_str_radix(&digits, radix).map_err(|_| {
            let shown: String = self.text.get(at..self.at).unwrap_or_default().chars().take(24).collect();
            Error::new(self.field, at as u64, shown, "an integer of 64 bits")
        })?;
        self.eat('L');
        Ok(value)
    }

    /// Strings side by side are one.
    fn strings(&mut self) -> Result<String> {
        let mut out = self.string()?;
        loop {
            let end = self.at;
            self.skip_space();
            if !matches!(self.peek(), Some('\'' | '"')) {
                self.at = end;
                return Ok(out);
            }
            out.push_str(&self.string()?);
        }
    }

    fn string(&mut self) -> Result<String> {
        let mut out = String::new();
        let quote = self.next();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.error("the end of the string")),
                Some('\\') => {
                    self.next();
                    self.escape(&mut out)?;
                }
                c => {
                    self.next();
                    if c == quote {
                        return Ok(out);
                    }
                    out.extend(c);
                }
            }
        }
    }

    /// What a backslash and the characters behind it are.
    fn escape(&mut self, out: &mut String) -> Result<()> {
        let Some(c) = self.peek() else { return Err(self.error("an escape")) };
        if let '0'..='7' = c {
            let digits = self.rest().bytes().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
            return self.code(digits, 8, out);
        }
        self.next();
        match c {
            '\\' | '\'' | '"' => out.push(c),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'a' => out.push('\x07'),
            'b' => out.push('\x08'),
            'f' => out.push('\x0c'),
            'v' => out.push('\x0b'),
            'x' => self.code(2, 16, out)?,
            'u' => self.code(4, 16, out)?,
            'U' => self.code(8, 16, out)?,
            'N' => return Err(self.error("no character by its name")),
            '\n' => {}
            // As Python does.
            c => out.extend(['\\', c]),
        }
        Ok(())
    }

    /// A character by the digits of its code.
    fn code(&mut self, digits: usize, radix: u32, out: &mut String) -> Result<()> {
        let c = self.rest().get(..digits).filter(|digits| digits.chars().all(|c| c.is_digit(radix)));
        let c = c.and_then(|digits| u32::from_str_radix(digits, radix).ok()).and_then(char::from_u32);
        let c = c.ok_or_else(|| self.error("the code of a character"))?;
        out.push(c);
        self.at = self.at.saturating_add(digits);
        Ok(())
    }
}

/// Writes a string as Python's `repr` does.
pub(super) fn write_str(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => match u32::from(c) {
                code @ ..0x100 => out.push_str(&format!("\\x{code:02x}")),
                code @ ..0x1_0000 => out.push_str(&format!("\\u{code:04x}")),
                code => out.push_str(&format!("\\U{code:08x}")),
            },
        }
    }
    out.push(quote);
}

/// What Python's `str.isprintable` says: neither it nor [`char::escape_debug`] shows controls, formats, unassigned codes and
/// spaces other than the space itself.
fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        c if c.is_ascii() => false,
        // Behind another character, as escape_debug shows no mark alone.
        c => ['a', c].iter().collect::<String>().escape_debug().count() == 2,
    }
}

/// Writes a tuple of integers as Python's `repr` does.
pub(super) fn write_shape(out: &mut String, shape: &[u64]) {
    let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    out.push_str(&format!("({}{comma})", sizes.join(", ")));
}
