//! The words of `-o` and their values, as all commands read them.

use std::time::Duration;

/// Splits at commas; a backslash takes the next character as it is.
pub(super) fn split(list: &[u8]) -> Vec<Vec<u8>> {
    let mut words = vec![Vec::new()];
    let mut bytes = list.iter();
    while let Some(byte) = bytes.next() {
        match (byte, words.last_mut()) {
            (b',', _) => words.push(Vec::new()),
            (b'\\', Some(word)) => word.extend(bytes.next()),
            (byte, Some(word)) => word.push(*byte),
            (_, None) => {}
        }
    }
    words
}

/// A word's name, and its value.
pub(super) fn parts(word: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut parts = word.splitn(2, |byte| *byte == b'=');
    (parts.next().unwrap_or_default(), parts.next())
}

/// A time: `1`, `0.5`.
///
/// # Errors
/// What was expected.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|time| *time <= Duration::from_secs(1 << 31)).ok_or_else(|| "expected a number of seconds".into())
}
