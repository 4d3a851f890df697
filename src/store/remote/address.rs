//! Addresses of remote frames: what a user writes where a path could stand.
//!
//! | form | what it is |
//! | --- | --- |
//! | `s3://BUCKET/KEY`, `s3a://` | S3, and whatever speaks its protocol (`-o endpoint=`) |
//! | `gs://BUCKET/KEY` | Google Cloud Storage |
//! | `az://CONTAINER/KEY`, `azure://`, `abfs://`, `abfss://` | Azure; the last two also as `CONTAINER@ACCOUNT.dfs.core.windows.net/KEY` |
//! | `http://HOST/PATH`, `https://` | one object on a web server; user info and query are sent and never shown |
//!
//! A key is taken as it is: `%20` in it is three characters. A URL of a web server stays as percent-encoded as it was given, so that
//! signatures over it stay good.
//!
//! Promises: whatever shows an address, shows none of its secrets; nor does an error. A key has no part that is empty, `.` or `..`, and
//! no control character.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use md5::{Digest, Md5};
use object_store::path::Path as Key;
use url::Url;

/// Bytes of a key, at most: what S3 allows.
const LONGEST_KEY: usize = 1024;
/// Bytes of a URL, at most. Signed ones with a session's token have some thousand.
const LONGEST_URL: usize = 16 << 10;
/// Bytes of a bucket's name, at most.
const LONGEST_BUCKET: usize = 255;
/// Bytes of a name that any file system takes, with what a view may add to it.
const LONGEST_NAME: usize = 200;
/// What an object is called whose own name can be none of a file.
const NO_NAME: &str = "frame";
/// Where accounts of Azure are found.
const AZURE_HOSTS: [&str; 4] =
    ["dfs.core.windows.net", "blob.core.windows.net", "dfs.fabric.microsoft.com", "blob.fabric.microsoft.com"];

/// Parts of queries that are signatures: those of Amazon and Google before `X-Amz-` and `X-Goog-`, and of CloudFront.
const OF_SIGNATURE: [&str; 6] = ["AWSAccessKeyId", "Expires", "GoogleAccessId", "Key-Pair-Id", "Policy", "Signature"];
/// Those of Azure.
const OF_SHARED_ACCESS: [&str; 19] = [
    "sv", "ss", "srt", "sp", "st", "se", "sip", "spr", "sig", "sr", "si", "skoid", "sktid", "skt", "ske", "sks", "skv", "saoid",
    "scid",
];

/// What speaks to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Amazon S3, and what is like it.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
    /// A web server.
    Http,
}

#[derive(Clone, PartialEq, Eq)]
enum Place {
    /// An object of a store, or a prefix of some.
    Object {
        kind: Kind,
        /// As it was written, in small letters.
        scheme: String,
        bucket: String,
        /// The host that names the account, of Azure.
        host: Option<String>,
        key: String,
    },
    /// What a web server has. With user info and query, which are secrets.
    Web(Url),
}

/// An address. It is shown without secrets: [`fmt::Display`] and [`fmt::Debug`] are for logs, lists of mounts and messages.
#[derive(Clone, PartialEq, Eq)]
pub struct Address(Place);

impl Address {
    /// Reads an address; `None` if it is none, and so a path. `s3:/x` is a path, and so is `./s3://x`.
    ///
    /// # Errors
    /// One line, which begins with what may be shown of the URL.
    pub fn parse<T: AsRef<OsStr> + ?Sized>(text: &T) -> Option<Result<Self, String>> {
        let bytes = text.as_ref().as_encoded_bytes();
        let end = bytes.windows(3).position(|three| three == b"://")?;
        let scheme = str::from_utf8(bytes.get(..end)?).ok()?.to_ascii_lowercase();
        let kind = match scheme.as_str() {
            "s3" | "s3a" => Kind::S3,
            "gs" => Kind::Google,
            "az" | "azure" | "abfs" | "abfss" => Kind::Azure,
            "http" | "https" => Kind::Http,
            _ => return None,
        };
        let read = || {
            let text = text.as_ref().to_str().ok_or("the URL is no text in UTF-8")?;
            match kind {
                _ if text.len() > LONGEST_URL => Err(format!("the URL has {} bytes; expected at most {LONGEST_URL}", text.len())),
                Kind::Http => Self::web(text),
                _ => Self::object(kind, scheme.clone(), text.get(end + 3..).unwrap_or_default()),
            }
        };
        // What cannot be read may have secrets anywhere.
        Some(read().map_err(|what| format!("{scheme}://...: {what}")))
    }

    fn web(text: &str) -> Result<Self, String> {
        // The url crate would leave out what it thinks that nobody meant.
        if text.chars().any(|c| c.is_ascii_control() || c == '\\') {
            return Err("the URL has a control character or a backslash; expected them percent-encoded".to_owned());
        }
        let mut url = Url::parse(text).map_err(|error| format!("the URL cannot be read: {error}"))?;
        if !url.has_host() {
            return Err("the URL has no host; expected http://HOST/PATH or https://HOST/PATH".to_owned());
        }
        url.set_fragment(None);
        Ok(Address(Place::Web(url)))
    }

    fn object(kind: Kind, scheme: String, rest: &str) -> Result<Self, String> {
        let (place, key) = rest.split_once('/').unwrap_or((rest, ""));
        let (bucket, host) = match place.split_once('@') {
            Some((bucket, host)) if kind == Kind::Azure => (bucket, Some(host)),
            // Some programs take keys here, so the text is not shown.
            Some(_) => {
                return Err("there is user info before the bucket; expected none: keys come from environment or files".to_owned());
            }
            None => (place, None),
        };
        check_bucket(kind, bucket)?;
        if let Some(host) = host {
            let account = host.split_once('.').filter(|(_, rest)| AZURE_HOSTS.contains(rest)).map(|(account, _)| account);
            let good = account.is_some_and(|account| !account.is_empty() && account.bytes().all(is_of_account));
            if !good {
                return Err(
                    "the host is not one of Azure's; expected CONTAINER@ACCOUNT.dfs.core.windows.net, or -o endpoint=".to_owned()
                );
            }
        }
        // Of a token for shared access, no character is to be shown.
        if key.contains('?') || place.contains('?') {
            return Err("there is a '?'; expected a key without it (a signed URL begins with https://)".to_owned());
        }
        let key = key.strip_suffix('/').unwrap_or(key);
        check_key(key)?;
        Ok(Address(Place::Object { kind, scheme, bucket: bucket.to_owned(), host: host.map(str::to_owned), key: key.to_owned() }))
    }

    /// What speaks to it.
    pub fn kind(&self) -> Kind {
        match &self.0 {
            Place::Object { kind, .. } => *kind,
            Place::Web(_) => Kind::Http,
        }
    }

    /// Whether it is on a web server, where nothing can be listed or written.
    pub fn is_http(&self) -> bool {
        self.kind() == Kind::Http
    }

    /// The bucket or container; of a web server, its host.
    pub fn bucket(&self) -> &str {
        match &self.0 {
            Place::Object { bucket, .. } => bucket,
            Place::Web(url) => url.host_str().unwrap_or_default(),
        }
    }

    /// The host that names an account of Azure.
    pub(super) fn account_host(&self) -> Option<&str> {
        match &self.0 {
            Place::Object { host, .. } => host.as_deref(),
            Place::Web(_) => None,
        }
    }

    /// The whole URL of a web server's object, with its secrets.
    pub(super) fn url(&self) -> Option<&Url> {
        match &self.0 {
            Place::Object { .. } => None,
            Place::Web(url) => Some(url),
        }
    }

    /// What the query of a web server's URL asks for, as a checksum: nothing where there is none, or only a signature, which is another
    /// one each time.
    pub(super) fn asked_for(&self) -> String {
        let Some(query) = self.url().and_then(Url::query) else { return String::new() };
        let pairs: Vec<(&str, &str)> = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
        let has = |wanted: &str| pairs.iter().any(|(name, _)| *name == wanted);
        let (is_signed, is_shared) = (has("Signature"), has("sig") && has("sv"));
        let is_signature = |name: &str| {
            let lower = name.to_ascii_lowercase();
            lower.starts_with("x-amz-")
                || lower.starts_with("x-goog-")
                || is_signed && OF_SIGNATURE.contains(&name)
                || is_shared && OF_SHARED_ACCESS.contains(&name)
        };
        let asks: Vec<String> =
            pairs.iter().filter(|(name, _)| !is_signature(name)).map(|(name, value)| format!("{name}={value}")).collect();
        if asks.is_empty() {
            return String::new();
        }
        Md5::digest(asks.join("&")).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Where in the store it is. All of a web server's URL belongs to the store that is made for it, so this is the root there.
    pub fn key(&self) -> Key {
        match &self.0 {
            // It was checked.
            Place::Object { key, .. } => Key::parse(key).unwrap_or_default(),
            Place::Web(_) => Key::default(),
        }
    }

    /// The last part of it, as a name that any file may have; `frame` where there is none.
    pub fn name(&self) -> String {
        let name = match &self.0 {
            Place::Object { key, bucket, .. } => {
                key.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(bucket).to_owned()
            }
            Place::Web(url) => {
                let last = url.path_segments().and_then(|parts| parts.rev().find(|part| !part.is_empty()));
                // Decodes, and refuses what is no key.
                last.and_then(|part| Key::from_url_path(part).ok()).map(String::from).unwrap_or_default()
            }
        };
        let good = !name.is_empty()
            && name.len() <= LONGEST_NAME
            && name != "."
            && name != ".."
            && !name.chars().any(|c| c == '/' || c == '\0' || c.is_control());
        if good { name } else { NO_NAME.to_owned() }
    }

    /// What is beneath it, by a name or several with slashes between them.
    ///
    /// # Errors
    /// What is no name, in words.
    pub fn join(&self, name: &str) -> Result<Self, String> {
        check_key(name)?;
        let mut joined = self.clone();
        match &mut joined.0 {
            _ if name.is_empty() => {}
            Place::Object { key, .. } => {
                if !key.is_empty() {
                    key.push('/');
                }
                key.push_str(name);
                check_key(key)?;
            }
            Place::Web(url) => {
                if let Ok(mut parts) = url.path_segments_mut() {
                    parts.pop_if_empty().extend(name.split('/'));
                }
            }
        }
        Ok(joined)
    }

    /// What it is beneath; `None` at the root.
    pub fn parent(&self) -> Option<Self> {
        let mut parent = self.clone();
        match &mut parent.0 {
            Place::Object { key, .. } if key.is_empty() => return None,
            Place::Object { key, .. } => key.truncate(key.rfind('/').unwrap_or(0)),
            Place::Web(url) if url.path() == "/" => return None,
            Place::Web(url) => {
                url.path_segments_mut().ok()?.pop_if_empty().pop();
            }
        }
        Some(parent)
    }
}

/// Where in a text there are secrets, if it is an address, a good one or not, or the value of an option: user info, and from a query on,
/// all. An address may be spelled wrong: any word with `:/` behind it is taken for one.
pub fn secrets(text: &[u8]) -> Vec<Range<usize>> {
    let colons = text.windows(2).enumerate().filter(|(_, two)| *two == b":/").map(|(at, _)| at);
    let places: Vec<(String, usize)> = colons
        .filter_map(|colon| {
            let slashes = text.iter().skip(colon + 1).take_while(|byte| **byte == b'/').count();
            Some((scheme_before(text.get(..colon)?)?, colon + 1 + slashes))
        })
        .collect();
    let Some((_, first)) = places.first() else { return Vec::new() };
    let query = text.iter().skip(*first).position(|byte| *byte == b'?').map(|at| first + at);
    let is_end = |byte: &u8| matches!(byte, b'/' | b'?' | b'#' | b'\\');
    let user = |(scheme, begin): &(String, usize)| {
        // Before the `@` there is a container.
        let has_container = matches!(scheme.as_str(), "az" | "azure" | "abfs" | "abfss");
        let rest = text.get(*begin..).unwrap_or_default();
        let place = rest.get(..rest.iter().position(is_end).unwrap_or(rest.len())).unwrap_or_default();
        place.iter().rposition(|byte| *byte == b'@').filter(|_| !has_container).map(|end| *begin..begin + end)
    };
    let before_query = places.iter().filter(|(_, begin)| query.is_none_or(|query| *begin <= query));
    let query = query.map(|query| query + 1..text.len());
    before_query.filter_map(user).chain(query).filter(|range| !range.is_empty()).collect()
}

/// The scheme that a text ends in, in small letters: a word at its beginning, or one that an option has for its value.
fn scheme_before(text: &[u8]) -> Option<String> {
    let word = text.rsplit(|byte| matches!(byte, b'=' | b',')).next()?;
    let word = str::from_utf8(word).ok().filter(|word| word.len() > 1)?;
    let good = word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    good.then(|| word.to_ascii_lowercase())
}

/// A text without the secrets of an address in it.
pub fn without_secrets(text: &OsStr) -> Cow<'_, OsStr> {
    let ranges = secrets(text.as_bytes());
    if ranges.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut bytes = text.as_bytes().to_vec();
    for range in ranges.into_iter().rev() {
        bytes.splice(range, *b"...");
    }
    Cow::Owned(OsString::from_vec(bytes))
}

fn is_of_account(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

/// A bucket becomes a part of a URL, as it is.
fn check_bucket(kind: Kind, bucket: &str) -> Result<(), String> {
    let what = if kind == Kind::Azure { "container" } else { "bucket" };
    if bucket.is_empty() {
        return Err(format!("there is no {what}; expected one after ://"));
    }
    // The containers of Azure that begin so are `$root`, `$web` and `$logs`.
    let plain = bucket.strip_prefix('$').filter(|_| kind == Kind::Azure).unwrap_or(bucket);
    let good = plain.starts_with(|c: char| c.is_ascii_alphanumeric())
        && plain.bytes().all(|byte| is_of_account(byte) || byte == b'.')
        && !plain.contains("..");
    if bucket.len() > LONGEST_BUCKET || !good {
        // It may be a key of somebody's that stands there.
        return Err(format!(
            "the {what}'s name is not valid; expected letters, digits, '-', '.' and '_', {LONGEST_BUCKET} at most"
        ));
    }
    Ok(())
}

/// What is good in every store, and means the same there.
fn check_key(key: &str) -> Result<(), String> {
    if key.len() > LONGEST_KEY {
        return Err(format!("the key has {} bytes; expected at most {LONGEST_KEY}", key.len()));
    }
    if key.is_empty() {
        return Ok(());
    }
    for part in key.split('/') {
        match part {
            "" => return Err("the key has an empty part; expected none (one '/' between names)".to_owned()),
            "." | ".." => return Err(format!("the key has a part '{part}'; expected names")),
            _ if part.chars().any(|c| c.is_ascii_control()) => {
                return Err("the key has a control character; expected none".to_owned());
            }
            _ => {}
        }
    }
    Key::parse(key).map(drop).map_err(|_| "the key is not valid in an object store".to_owned())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Object { scheme, bucket, host, key, .. } => {
                write!(f, "{scheme}://{bucket}")?;
                if let Some(host) = host {
                    write!(f, "@{host}")?;
                }
                if key.is_empty() { Ok(()) } else { write!(f, "/{key}") }
            }
            Place::Web(url) => {
                write!(f, "{}://{}", url.scheme(), url.host_str().unwrap_or_default())?;
                if let Some(port) = url.port() {
                    write!(f, ":{port}")?;
                }
                f.write_str(url.path())?;
                if url.query().is_some() { f.write_str("?...") } else { Ok(()) }
            }
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests;
