//! Errors of a store, as text without secrets and as an errno.
//!
//! The crate's own words hold whole URLs, and so the signatures in them, and bodies of any length. Of these nothing is shown but the
//! status, the code and the message of a store that says them, and what the system says of a connection.

use std::error::Error as StdError;

use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};

use super::connector::{UNSIGNED, Unreachable};
use crate::format::plain::plain;

/// Bytes of what a store says, at most.
const MOST: usize = 200;
/// How the crate begins to tell of an answer with a bad status.
const STATUS: &str = "Server returned non-2xx status code: ";
/// And of an error in a good one.
const IN_BODY: &str = "Server returned error response: ";

/// The errno that a client of a mount sees.
pub fn errno(error: &Error) -> i32 {
    match error {
        Error::NotFound { .. } => libc::ENOENT,
        Error::Precondition { .. } => libc::ESTALE,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => libc::EACCES,
        _ => libc::EIO,
    }
}

/// Whether an object was asked for a range that it does not have.
pub fn is_not_in_object(error: &Error) -> bool {
    let says_so = |text: &str| {
        // A store, and the crate itself.
        of_status(text).is_some_and(|(status, _)| status.starts_with("416")) || text.starts_with("Wanted range starting at")
    };
    chain(error).any(|error| says_so(&error.to_string()))
}

/// In words: one line, without URLs, without secrets.
pub fn in_words(error: &Error) -> String {
    let said = || chain(error).find_map(|error| of_status(&error.to_string()));
    let with = |words: &str| {
        let said = match said() {
            Some((_, Some(said))) => format!("{words}: {said}"),
            _ => words.to_owned(),
        };
        let unsigned = chain(error).any(|error| error.to_string().ends_with(UNSIGNED));
        if unsigned { format!("{said} (no credentials are found, so the request was not signed)") } else { said }
    };
    match error {
        Error::NotFound { .. } => match said() {
            Some((_, Some(said))) if said.starts_with("NoSuchBucket") => "no such bucket".to_owned(),
            _ => "no such object".to_owned(),
        },
        Error::Precondition { .. } => "the object has changed meanwhile".to_owned(),
        Error::AlreadyExists { .. } => "the object exists already".to_owned(),
        Error::PermissionDenied { .. } => with("permission denied"),
        Error::Unauthenticated { .. } => with("the credentials are not accepted"),
        Error::NotSupported { .. } => "the server does not support range requests; expected one that does".to_owned(),
        Error::InvalidPath { .. } => "the key is not valid in an object store".to_owned(),
        Error::NotImplemented { .. } => "this kind of server cannot do this".to_owned(),
        other => of_chain(other),
    }
}

/// An error and what caused it.
fn chain(error: &Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(Some(error as &(dyn StdError + 'static)), |error| (*error).source())
}

fn of_chain(error: &Error) -> String {
    for cause in chain(error) {
        if let Some(http) = cause.downcast_ref::<HttpError>() {
            return of_connection(http);
        }
        let text = cause.to_string();
        if text.starts_with("Received redirect without LOCATION") {
            return "the bucket is in another region; expected its region in -o region=".to_owned();
        }
        if let Some((status, said)) = of_status(&text) {
            return said
                .map_or_else(|| format!("the server answers {status}"), |said| format!("the server answers {status}: {said}"));
        }
    }
    let last = chain(error).last().map(ToString::to_string).unwrap_or_default();
    shortened(&without_urls(&last))
}

fn of_connection(error: &HttpError) -> String {
    let mut last: &dyn StdError = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    let said = shortened(&without_urls(&last.to_string()));
    let kind = match error.source().and_then(|cause| cause.downcast_ref()) {
        Some(Unreachable(error)) => error.kind(),
        None => error.kind(),
    };
    match kind {
        _ if said.contains("InvalidContentType") => {
            "the server does not encrypt; expected a port that speaks https, or http:// in the URL or endpoint".to_owned()
        }
        HttpErrorKind::Timeout => "the server did not respond in time".to_owned(),
        HttpErrorKind::Connect => format!("the server cannot be reached: {said}"),
        HttpErrorKind::Interrupted | HttpErrorKind::Request => format!("the connection ended: {said}"),
        _ => format!("the response cannot be read: {said}"),
    }
}

/// The status that a text of the crate tells of, and what the store says to it.
fn of_status(text: &str) -> Option<(String, Option<String>)> {
    let (status, body) = match text.strip_prefix(STATUS) {
        Some(rest) => rest.split_once(": ").unwrap_or((rest.trim_end_matches(':'), "")),
        None => ("200 OK", text.strip_prefix(IN_BODY)?),
    };
    Some((shortened(status), of_body(body)))
}

/// The code and the message of an error as S3, Google and Azure write it in XML; nothing of any other text.
fn of_body(body: &str) -> Option<String> {
    let element = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        let (text, _) = rest.split_once(&format!("</{name}>"))?;
        Some(text.lines().next().unwrap_or_default().trim().to_owned()).filter(|text| !text.is_empty())
    };
    let said = [element("Code"), element("Message")].into_iter().flatten().collect::<Vec<_>>().join(": ");
    if said.is_empty() { None } else { Some(shortened(&without_urls(&said))) }
}

/// A text with all that looks like a URL, or like the query of one, left out.
fn without_urls(text: &str) -> String {
    let shown = |word: &str| {
        let secret = word.contains("://") || word.contains('?') || word.contains('=') && word.contains('&');
        if secret { "...".to_owned() } else { word.to_owned() }
    };
    text.split_whitespace().map(shown).collect::<Vec<_>>().join(" ")
}

/// On one line and of some length.
fn shortened(text: &str) -> String {
    let text = plain(text).to_string();
    match text.char_indices().map(|(at, _)| at).find(|at| *at >= MOST) {
        Some(end) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

#[cfg(test)]
mod tests;
