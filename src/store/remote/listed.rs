//! Keys in the text of a listing.
//!
//! The crate reads no listing that has a key with an empty part, a part `.` or `..`, or a control character in it, and so one such key
//! would hide all others. What holds such a key is cut out of the text before the crate reads it.

use std::borrow::Cow;

use log::debug;
use object_store::path::Path as Key;

/// The elements of S3 and Google, and those of Azure; and where in them the key is.
const ELEMENTS: [(&[u8], &[u8]); 4] =
    [(b"Contents>", b"Key>"), (b"CommonPrefixes>", b"Prefix>"), (b"Blob>", b"Name>"), (b"BlobPrefix>", b"Name>")];

/// A listing without the keys that cannot be read.
pub fn readable(text: Vec<u8>) -> Vec<u8> {
    let mut kept = Vec::new();
    // Up to where the text has been kept, and from where it is looked at.
    let (mut from, mut at, mut left_out) = (0, 0, 0u32);
    while let Some(begin) = find(&text, at, b"<") {
        at = begin + 1;
        let Some((element, name)) = ELEMENTS.iter().find(|(element, _)| starts(&text, at, element)) else { continue };
        let inside = at + element.len();
        let Some((close, end)) = closing(&text, inside, element) else { break };
        at = end;
        let element = text.get(inside..close).unwrap_or_default();
        let key = find(element, 0, &[b"<", *name].concat()).map(|at| at + 1 + name.len());
        if key.and_then(|key| element.get(key..closing(element, key, name)?.0)).is_some_and(|key| !is_readable(key)) {
            kept.extend_from_slice(text.get(from..begin).unwrap_or_default());
            (from, left_out) = (end, left_out + 1);
        }
    }
    if left_out == 0 {
        return text;
    }
    debug!("{left_out} keys are left out of a listing: no file can have their names");
    kept.extend_from_slice(text.get(from..).unwrap_or_default());
    kept
}

fn starts(text: &[u8], at: usize, what: &[u8]) -> bool {
    text.get(at..).is_some_and(|rest| rest.starts_with(what))
}

/// Where something is next.
fn find(text: &[u8], at: usize, what: &[u8]) -> Option<usize> {
    let rest = text.get(at..)?;
    let first = *what.first()?;
    let mut from = 0;
    loop {
        from += rest.get(from..)?.iter().position(|byte| *byte == first)?;
        if starts(rest, from, what) {
            return Some(at + from);
        }
        from += 1;
    }
}

/// Where an element is closed: from, and to.
fn closing(text: &[u8], at: usize, element: &[u8]) -> Option<(usize, usize)> {
    let tag = [b"</", element].concat();
    find(text, at, &tag).map(|begin| (begin, begin + tag.len()))
}

fn is_readable(key: &[u8]) -> bool {
    let Ok(key) = str::from_utf8(key) else { return false };
    let Some(key) = plain(key) else { return false };
    !key.starts_with('/') && Key::parse(&*key).is_ok()
}

/// A text without references.
fn plain(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('&') {
        return Some(Cow::Borrowed(text));
    }
    let (begin, mut rest) = text.split_once('&')?;
    let mut plain = begin.to_owned();
    loop {
        let (name, behind) = rest.split_once(';')?;
        let number = |digits: &str, radix| char::from_u32(u32::from_str_radix(digits, radix).ok()?);
        plain.push(match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            _ => match name.strip_prefix('#')? {
                digits if digits.starts_with(['x', 'X']) => number(digits.get(1..)?, 16)?,
                digits => number(digits, 10)?,
            },
        });
        let Some((text, next)) = behind.split_once('&') else {
            plain.push_str(behind);
            return Some(Cow::Owned(plain));
        };
        plain.push_str(text);
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(text: &str) -> String {
        String::from_utf8(readable(text.as_bytes().to_vec())).unwrap()
    }

    #[test]
    fn keys_that_the_crate_cannot_read_are_left_out() {
        let entry = |key: &str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
        let prefix = |key: &str| format!("<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>");
        let good = ["a", "a/b", "a/b/", "a&amp;b", "a&#x20;b", "a..b", "größe 100%", ".a"];
        let bad = ["a//b", "a/../b", "./a", "a//", "/a", "a/&#10;", "a&#x7f;", "a&#47;&#47;b", "a&none;", "/"];
        let text: String = good.iter().map(|key| entry(key) + &prefix(key)).collect();
        assert_eq!(left(&text), text);
        for key in bad {
            let spoiled = format!("<List>{}{}{}{}</List>", entry("x"), entry(key), prefix(key), prefix("y"));
            assert_eq!(left(&spoiled), format!("<List>{}{}</List>", entry("x"), prefix("y")), "{key}");
        }
        let azure = "<Blobs><Blob><Name>a//b</Name></Blob><BlobPrefix><Name>c/</Name></BlobPrefix></Blobs>";
        assert_eq!(left(azure), "<Blobs><BlobPrefix><Name>c/</Name></BlobPrefix></Blobs>");
    }

    #[test]
    fn what_is_no_listing_stays_as_it_is() {
        for text in
            ["", "<", "<Contents>", "<Contents><Key>a//b", "<Contents></Contents>", "</Contents><Key>/</Key>", "Contents>&"]
        {
            assert_eq!(left(text), text);
        }
    }
}
