//! Standard output, and readers that have had enough of it.

use std::fmt::Write as _;
use std::io;

use serde_json::Value;

use super::Failure;
use crate::format::plain::is_plain;
use crate::store::in_words;

/// What writing to standard output came to: whoever closes the other end, as head(1) does, has all that was wanted.
pub(super) fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::from_text(format_args!("standard output: cannot be written: {}", in_words(&error))))
        }
        _ => Ok(()),
    }
}

/// A value as a line. What a terminal or a reader of lines would take for something else than text is escaped, which JSON itself
/// asks for below U+0020 only.
pub(super) fn json_line(value: &Value) -> String {
    let text = value.to_string();
    if text.bytes().all(|byte| (b' '..0x7f).contains(&byte)) {
        return text + "\n";
    }
    let mut line = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        // Only in strings are there any such; their quotes and backslashes stay what they are.
        if is_plain(c) {
            line.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(line, "\\u{unit:04x}");
            }
        }
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_no_characters_that_do_something() {
        let text = "a\u{7f}b\u{9b}31m\u{85}\u{2028}\u{202e}\u{e0001} \"'\\ \n é 日";
        let value = Value::from(text);
        let line = json_line(&value);
        assert_eq!(line, "\"a\\u007fb\\u009b31m\\u0085\\u2028\\u202e\\udb40\\udc01 \\\"'\\\\ \\n é 日\"\n");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
    }
}
