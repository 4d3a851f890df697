//! What is in a metalayer: MessagePack as a rule, but any bytes may be.

use std::collections::HashSet;

use rmpv::{Utf8StringRef, ValueRef};
use serde_json::{Map, Value, json};

use crate::format::chunk::{self, ChunkHeader, Decoder};
use crate::format::metalayer::Metalayer;
use crate::store::inspect::Finding;

/// What is shown of the metalayers of a frame, in bytes of all contents together. The same bytes may be the content of many.
const MOST: usize = 16 << 20;
/// What of that is taken apart: a byte may stand for a value that takes dozens in memory.
const MOST_PARSED: usize = 1 << 20;
/// How deep values may be nested.
const DEPTH: usize = 64;

/// What may still be shown of the metalayers of a frame.
pub(super) struct Room {
    bytes: usize,
    parsed: usize,
}

impl Default for Room {
    fn default() -> Self {
        Room { bytes: MOST, parsed: MOST_PARSED }
    }
}

/// Takes some off, if there is enough.
fn take(room: &mut usize, len: usize) -> bool {
    let left = room.checked_sub(len);
    *room = left.unwrap_or(*room);
    left.is_some()
}

/// A metalayer.
pub(super) struct Layer {
    /// What of it is no UTF-8 is replaced.
    pub(super) name: String,
    /// Of a vlmetalayer: bytes that are stored.
    pub(super) cbytes: Option<usize>,
    /// Bytes of the content; `None` where even that is not known.
    pub(super) nbytes: Option<usize>,
    /// The content, or why it is not shown.
    pub(super) content: Result<Vec<u8>, String>,
    /// Why the content cannot be read.
    pub(super) finding: Option<Finding>,
    /// The content is short enough to be taken apart.
    parse: bool,
}

impl Layer {
    /// One of the header.
    pub(super) fn of(layer: &Metalayer<'_>, room: &mut Room) -> Self {
        let name = String::from_utf8_lossy(layer.name).into_owned();
        let len = layer.content.len();
        let content = if take(&mut room.bytes, len) { Ok(layer.content.to_vec()) } else { Err(too_much()) };
        Layer { name, cbytes: None, nbytes: Some(len), content, finding: None, parse: take(&mut room.parsed, len) }
    }

    /// One of the trailer, decompressed.
    pub(super) fn compressed(layer: &Metalayer<'_>, room: &mut Room) -> Self {
        let name = String::from_utf8_lossy(layer.name).into_owned();
        let (mut nbytes, mut finding) = (None, None);
        let content = ChunkHeader::parse(layer.content).map_err(Some).and_then(|header| {
            let len = header.nbytes as usize;
            nbytes = Some(len);
            // What is too much is no damage.
            if !take(&mut room.bytes, len) {
                return Err(None);
            }
            Decoder::default().decode(layer.content, len).map_err(Some)
        });
        let content = content.map_err(|error| {
            let Some(error) = error else { return too_much() };
            let plugin = chunk::check(layer.content).ok().and_then(|header| header.plugin());
            finding = Some(match plugin {
                Some(plugin) => Finding::undecoded_vlmetalayer(layer.name, plugin),
                None => Finding::vlmetalayer(layer.name, &error),
            });
            error.to_string()
        });
        let parse = nbytes.is_some_and(|len| take(&mut room.parsed, len));
        Layer { name, cbytes: Some(layer.content.len()), nbytes, content, finding, parse }
    }

    /// The content as MessagePack, if it is that and nothing else.
    fn msgpack(&self) -> Option<ValueRef<'_>> {
        let mut bytes = self.content.as_deref().ok().filter(|_| self.parse)?;
        let value = rmpv::decode::read_value_ref_with_max_depth(&mut bytes, DEPTH).ok()?;
        bytes.is_empty().then_some(value)
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("name".into(), json!(self.name));
        object.insert("nbytes".into(), json!(self.nbytes));
        if let Some(cbytes) = self.cbytes {
            object.insert("cbytes".into(), json!(cbytes));
        }
        match &self.content {
            Ok(content) => object.insert("hex".into(), json!(hex(content))),
            Err(reason) => object.insert("error".into(), json!(reason)),
        };
        if let Some(value) = self.msgpack() {
            object.insert("msgpack".into(), as_json(&value));
        }
        Value::Object(object)
    }

    /// For people: a line, of which only the beginning may matter.
    pub(super) fn text(&self) -> String {
        let content = match &self.content {
            Ok(content) => content,
            Err(reason) => return reason.clone(),
        };
        if let Some(value) = self.msgpack() {
            let mut out = String::new();
            write_text(&value, &mut out);
            return out;
        }
        let words = str::from_utf8(content).ok().filter(|text| !text.is_empty() && text.chars().all(|c| !c.is_control()));
        match words {
            Some(text) => format!("{:?}", shortened(text)),
            None => shown_hex(content),
        }
    }
}

fn too_much() -> String {
    format!("not shown: with it, more than {} MiB of metalayers would be shown", MOST >> 20)
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| DIGITS.get(usize::from(digit)).map_or('?', |digit| char::from(*digit)))
        .collect()
}

/// Characters of text, or bytes, that are shown to people.
const MOST_SHOWN: usize = 200;

fn shown_hex(bytes: &[u8]) -> String {
    let shown = bytes.len().min(MOST_SHOWN / 4);
    let dots = if shown < bytes.len() { "..." } else { "" };
    format!("0x{}{dots}", hex(bytes.get(..shown).unwrap_or(bytes)))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Numbers of extensions are those of whoever wrote them. See the help of the command for what becomes of what JSON has not.
fn as_json(value: &ValueRef<'_>) -> Value {
    match value {
        ValueRef::Nil => Value::Null,
        ValueRef::Boolean(value) => json!(value),
        ValueRef::Integer(value) => value.as_u64().map_or_else(|| json!(value.as_i64()), |value| json!(value)),
        ValueRef::F32(value) => float(f64::from(*value)),
        ValueRef::F64(value) => float(*value),
        ValueRef::String(value) => match value.as_str() {
            Some(text) => json!(text),
            None => json!({ "bytes": hex(value.as_bytes()) }),
        },
        ValueRef::Binary(bytes) => json!({ "bytes": hex(bytes) }),
        ValueRef::Ext(number, bytes) => json!({ "ext": number, "bytes": hex(bytes) }),
        ValueRef::Array(items) => items.iter().map(as_json).collect(),
        ValueRef::Map(pairs) => {
            let keys: HashSet<&str> = pairs.iter().filter_map(|(key, _)| text_of(key)).collect();
            if keys.len() == pairs.len() {
                let pair = |(key, value): &(ValueRef<'_>, ValueRef<'_>)| Some((text_of(key)?.to_owned(), as_json(value)));
                return Value::Object(pairs.iter().filter_map(pair).collect());
            }
            json!({ "map": pairs.iter().map(|(key, value)| [as_json(key), as_json(value)]).collect::<Vec<_>>() })
        }
    }
}

fn text_of<'a>(value: &'a ValueRef<'_>) -> Option<&'a str> {
    if let ValueRef::String(text) = value { Utf8StringRef::as_str(text) } else { None }
}

fn float(value: f64) -> Value {
    match value {
        _ if value.is_nan() => json!({ "float": "nan" }),
        f64::INFINITY => json!({ "float": "inf" }),
        f64::NEG_INFINITY => json!({ "float": "-inf" }),
        _ => json!(value),
    }
}

/// Stops when there is more than anybody sees.
fn write_text(value: &ValueRef<'_>, out: &mut String) {
    const ENOUGH: usize = 64 << 10;
    match value {
        _ if out.len() > ENOUGH => {}
        ValueRef::Array(items) => {
            out.push('[');
            for (n, item) in items.iter().enumerate().take(ENOUGH) {
                out.push_str(if n > 0 { ", " } else { "" });
                write_text(item, out);
            }
            out.push(']');
        }
        ValueRef::Map(pairs) => {
            out.push('{');
            for (n, (key, value)) in pairs.iter().enumerate().take(ENOUGH) {
                out.push_str(if n > 0 { ", " } else { "" });
                write_text(key, out);
                out.push_str(": ");
                write_text(value, out);
            }
            out.push('}');
        }
        ValueRef::Nil => out.push_str("nil"),
        ValueRef::Boolean(value) => out.push_str(if *value { "true" } else { "false" }),
        ValueRef::Integer(value) => out.push_str(&value.to_string()),
        ValueRef::F32(value) => out.push_str(&format!("{value:?}")),
        ValueRef::F64(value) => out.push_str(&format!("{value:?}")),
        ValueRef::String(text) => match text.as_str() {
            Some(text) => out.push_str(&format!("{:?}", shortened(text))),
            None => out.push_str(&shown_hex(text.as_bytes())),
        },
        ValueRef::Binary(bytes) => out.push_str(&shown_hex(bytes)),
        ValueRef::Ext(number, bytes) => out.push_str(&format!("ext {number} {}", shown_hex(bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Special;
    use crate::store::inspect::{Kind, Severity};

    fn layer(content: &[u8]) -> Layer {
        Layer::of(&Metalayer { name: b"a", content }, &mut Room::default())
    }

    /// For programs, and for people.
    fn shown(content: &[u8]) -> (Option<Value>, String) {
        let layer = layer(content);
        (layer.json().get("msgpack").cloned(), layer.text())
    }

    #[test]
    fn values_of_every_kind() {
        for (content, value, text) in [
            (&b"\xc0"[..], json!(null), "nil"),
            (b"\xc3", json!(true), "true"),
            (b"\xff", json!(-1), "-1"),
            (b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", json!(u64::MAX), "18446744073709551615"),
            (b"\xca\x3f\x00\x00\x00", json!(0.5), "0.5"),
            (b"\xcb\x7f\xf8\0\0\0\0\0\0", json!({ "float": "nan" }), "NaN"),
            (b"\xcb\xff\xf0\0\0\0\0\0\0", json!({ "float": "-inf" }), "-inf"),
            (b"\xa4\x1b[2m", json!("\u{1b}[2m"), "\"\\u{1b}[2m\""),
            (b"\xa2\xff\xfe", json!({ "bytes": "fffe" }), "0xfffe"),
            (b"\xc4\x02\x00\x01", json!({ "bytes": "0001" }), "0x0001"),
            (b"\xd4\x2a\x07", json!({ "ext": 42, "bytes": "07" }), "ext 42 0x07"),
            (b"\x93\x01\xa1x\x90", json!([1, "x", []]), "[1, \"x\", []]"),
            (b"\x82\xa1b\x01\xa1a\x80", json!({ "b": 1, "a": {} }), "{\"b\": 1, \"a\": {}}"),
            (b"\x81\x01\x02", json!({ "map": [[1, 2]] }), "{1: 2}"),
            (b"\x82\xa1a\x01\xa1a\x02", json!({ "map": [["a", 1], ["a", 2]] }), "{\"a\": 1, \"a\": 2}"),
        ] {
            assert_eq!(shown(content), (Some(value), text.to_owned()), "{content:02x?}");
        }
    }

    #[test]
    fn bytes_that_are_no_messagepack() {
        for (content, text) in [
            (&b""[..], "0x"),
            (b"\x01\x02", "0x0102"),
            (b"\x92\x01", "0x9201"),
            (b"plain text", "\"plain text\""),
            // A string that would take gibibytes, and values in values in values.
            (b"\xdb\xff\xff\xff\xff", "0xdbffffffff"),
            (b"\xdd\xff\xff\xff\xff\xc0", "0xddffffffffc0"),
        ] {
            assert_eq!(shown(content), (None, text.to_owned()), "{content:02x?}");
        }
        assert_eq!(shown(&[0x91; 1 << 20]).0, None);
        let long = vec![0xc1; 1000];
        assert_eq!(layer(&long).text(), format!("0x{}...", "c1".repeat(50)));
        assert_eq!(layer(&long).json()["hex"], "c1".repeat(1000), "whole for programs");
    }

    #[test]
    fn what_a_hostile_vlmetalayer_announces_is_not_made() {
        let chunk = chunk::special(Special::Zeros, 10 << 20, 1, 0).unwrap();
        let layer = Metalayer { name: b"a", content: &chunk };
        let mut room = Room::default();
        assert_eq!(Layer::compressed(&layer, &mut room).content.unwrap().len(), 10 << 20);
        let second = Layer::compressed(&layer, &mut room);
        assert_eq!((second.nbytes, second.finding), (Some(10 << 20), None));
        assert_eq!(second.content.unwrap_err(), "not shown: with it, more than 16 MiB of metalayers would be shown");
        assert_eq!(room.bytes, 6 << 20, "there is room for smaller ones");
        let broken = Layer::compressed(&Metalayer { name: b"a", content: &chunk[..20] }, &mut room);
        assert_eq!(broken.finding.unwrap().severity, Severity::Damage);
        assert!(broken.content.is_err());
    }

    #[test]
    fn a_vlmetalayer_that_needs_a_plugin_is_no_damage() {
        let mut chunk =
            std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/sframe/codec-lz4.b2frame/00000000.chunk")).unwrap();
        chunk[21] = 35;
        let layer = |content| Layer::compressed(&Metalayer { name: b"a", content }, &mut Room::default());
        let undecoded = layer(&chunk);
        assert!(undecoded.content.is_err());
        let note = undecoded.finding.unwrap();
        assert_eq!((note.severity, note.kind), (Severity::Note, Kind::Plugin));
        assert_eq!(note.what, "vlmetalayer \"a\" was not decoded: needed is bytedelta (35), a plugin filter");
        let cut = chunk.len() - 1;
        assert_eq!(layer(&chunk[..cut]).finding.unwrap().severity, Severity::Damage, "a broken one is damage all the same");
    }
}
