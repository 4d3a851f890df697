//! Secrets in the arguments: URLs with user info, and with a signature in the query.
//!
//! Promises: no list of processes shows them once the program has begun, and no message about wrong usage does.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::Failure;
use crate::store::remote::{secrets, without_secrets};
use crate::store::{in_words, local};

/// Hides the secrets of URLs in the arguments from lists of processes. That of this process, and of those that it forks.
///
/// # Errors
/// Secrets that cannot be hidden.
pub(super) fn hide(words: &[OsString]) -> Result<(), Failure> {
    let Some(word) = words.iter().find(|word| has_secrets(word)) else { return Ok(()) };
    local::hide_arguments(secrets).map_err(|error| {
        let reason = format!(
            "its secrets cannot be hidden from lists of processes: {}; expected them in a file (-o headers=FILE)",
            in_words(&error)
        );
        Failure::new(Path::new(&without_secrets(word)), reason)
    })
}

fn has_secrets(word: &OsStr) -> bool {
    !secrets(word.as_encoded_bytes()).is_empty()
}

/// A text with arguments in it, without the secrets of these.
pub(super) fn censored(mut text: String, words: &[OsString]) -> String {
    for word in words.iter().filter(|word| has_secrets(word)) {
        text = text.replace(&*word.to_string_lossy(), &without_secrets(word).to_string_lossy());
    }
    text
}
