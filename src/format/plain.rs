//! Text that is safe to show: words from frames, from directories and from clients, without what would do something to a terminal
//! or forge a line of a log.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};

/// A name or a text, on one line and without effect on a terminal, whatever is in it: control characters, ends of lines, marks
/// that turn the direction of writing, and bytes that are no UTF-8 are shown as escapes. Escaping twice changes nothing more.
pub fn plain<T: AsRef<OsStr> + ?Sized>(text: &T) -> Plain<'_> {
    Plain(text.as_ref().as_encoded_bytes())
}

/// See [`plain`].
#[derive(Debug, Clone, Copy)]
pub struct Plain<'a>(&'a [u8]);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if is_plain(c) { f.write_char(c)? } else { write!(f, "{}", c.escape_debug())? }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Whether a character is shown as it is.
pub fn is_plain(c: char) -> bool {
    match c {
        // What std escapes besides has a meaning in source code only.
        '"' | '\'' | '\\' => true,
        _ if c.escape_debug().len() == 1 => true,
        c if c.is_ascii() => false,
        // A mark over the letter before it, as some systems write names.
        c => ['a', c].iter().collect::<String>().escape_debug().count() == 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_something_is_escaped() {
        for (text, expected) in [
            ("a'b\"c\\d é 日本 e\u{301} 🎉", "a'b\"c\\d é 日本 e\u{301} 🎉"),
            ("\u{1b}[31m", "\\u{1b}[31m"),
            ("\u{1b}]0;evil\u{7}", "\\u{1b}]0;evil\\u{7}"),
            ("a\rb\nc\td\0", "a\\rb\\nc\\td\\0"),
            ("\u{7f}\u{8}\u{9b}31m\u{85}", "\\u{7f}\\u{8}\\u{9b}31m\\u{85}"),
            ("\u{202e}\u{2066}\u{200f}\u{061c}", "\\u{202e}\\u{2066}\\u{200f}\\u{61c}"),
            ("\u{2028}\u{2029}\u{feff}\u{e0041}", "\\u{2028}\\u{2029}\\u{feff}\\u{e0041}"),
        ] {
            let once = plain(text).to_string();
            assert_eq!(once, expected);
            assert_eq!(plain(&once).to_string(), once);
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_told_apart() {
        assert_eq!(Plain(b"a\x9b31m\xff\xc3\xa9\xed\xa0\x80").to_string(), "a\\x9b31m\\xff\u{e9}\\xed\\xa0\\x80");
    }
}
