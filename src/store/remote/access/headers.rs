//! Headers of requests from a file: tokens that may stand neither in a command line nor in fstab.

use std::path::Path;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::format::plain::plain;
use crate::store::{in_words, local};

/// Bytes of the file, at most.
const MOST: u64 = 64 << 10;
/// What the requests themselves say.
const OURS: &[&str] =
    &["host", "range", "if-match", "if-none-match", "content-length", "transfer-encoding", "connection", "accept-encoding"];

/// The headers of a file: lines `Name: value`, empty ones, and comments behind `#`.
///
/// # Errors
/// A file that cannot be read or that others can read; the number of the line that is no header. Never what is in it.
pub fn read(path: &Path) -> Result<HeaderMap, String> {
    let failed = |what: &str| format!("the headers file {}: {what}", plain(path));
    let bytes = local::read_secret(path, MOST).map_err(|error| failed(&in_words(&error)))?;
    parse(&bytes).map_err(|what| failed(&what))
}

fn parse(bytes: &[u8]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let wrong = |what: &str| format!("line {}: {what}", number + 1);
        let at = line.iter().position(|byte| *byte == b':').ok_or_else(|| wrong("expected Name: value"))?;
        let (name, value) = line.split_at(at);
        let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii();
        let mut value = HeaderValue::from_bytes(value).map_err(|_| wrong("the value is not valid in a header"))?;
        value.set_sensitive(true);
        let name = HeaderName::from_bytes(name.trim_ascii()).map_err(|_| wrong("the name is not valid for a header"))?;
        if OURS.contains(&name.as_str()) {
            return Err(wrong(&format!("'{name}' is set by b2fuse itself; expected other headers")));
        }
        headers.append(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn headers_of_a_file() {
        let headers = parse(b"# who I am\nAuthorization: Bearer a:b==  \r\n\nX-Key:\t1\nx-key: 2").unwrap();
        assert_eq!(headers["authorization"], "Bearer a:b==");
        assert_eq!(headers.get_all("x-key").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert!(headers.values().all(HeaderValue::is_sensitive));
        assert!(!format!("{headers:?}").contains("Bearer"));
    }

    #[test]
    fn errors_name_the_line_and_nothing_of_it() {
        for (text, what) in [
            ("\nSECRET", "line 2: expected Name: value"),
            ("a b: SECRET", "line 1: the name is not valid"),
            (": SECRET", "line 1: the name is not valid"),
            ("a: SECRET\0", "line 1: the value is not valid"),
            ("Host: SECRET", "line 1: 'host' is set by b2fuse"),
            ("RANGE : SECRET", "line 1: 'range' is set by b2fuse"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.starts_with(what) && !error.contains("SECRET"), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "a: b").unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        let error = read(&path).unwrap_err();
        assert!(error.contains("token: it holds secrets and has mode 640"), "{error}");
        mode(0o600);
        assert_eq!(read(&path).unwrap().len(), 1);
    }
}
