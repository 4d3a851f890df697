//! Recognises other files that users try to open: what they are, and what to do instead.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::format::INDEX_NAME;
use crate::format::chunk::ChunkHeader;
use crate::store::Location;
use crate::store::backend::BackendFile;
use crate::store::walk::{STORE_MARK, has_frame_suffix, has_store_suffix};

/// Bytes that are looked at.
const HEAD: usize = 512;
/// What a frame in one file begins with.
const FRAME: &[u8] = b"\x9e\xa8b2frame\0";
/// What archives and compressed files begin with, and what unpacks them.
const PACKED: &[(&[u8], &str, &str)] = &[
    (b"\x1f\x8b", "compressed by gzip", "gunzip"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unzstd"),
    (b"BZh", "compressed by bzip2", "bunzip2"),
    (b"\xfd7zXZ\0", "compressed by xz", "unxz"),
];

/// Whether a file begins as a frame does.
pub(super) fn is_frame(location: &Location) -> bool {
    head(location).is_some_and(|(head, _)| head.starts_with(FRAME))
}

/// What a file is that is no frame, if it is something that is known, in words for after its path.
pub(super) fn file(location: &Location) -> Option<String> {
    let (head, len) = head(location)?;
    let named = |extension: &str| location.path().extension().is_some_and(|found| found.eq_ignore_ascii_case(extension));
    let chunk = || ChunkHeader::parse(&head).is_ok_and(|chunk| u64::from(chunk.cbytes) == len);
    Some(if head.is_empty() {
        "is empty; expected a Blosc2 frame (to make a new one, remove this file and use b2fuse mount --create)".into()
    } else if head.iter().zip(FRAME).all(|(byte, frame)| byte == frame) {
        return None;
    } else if head.starts_with(b"\x93NUMPY") {
        "is a NumPy array (.npy); expected a Blosc2 frame (b2fuse convert FILE NEW.b2nd makes one)".into()
    } else if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        let what = match () {
            () if named("b2z") => "a store of Python-Blosc2 (.b2z), which is a ZIP archive",
            () if named("npz") => "an archive of NumPy arrays (.npz), which is a ZIP archive",
            () => "a ZIP archive",
        };
        format!("is {what}; expected a Blosc2 frame (unzip extracts its members)")
    } else if head.starts_with(b"\x89HDF\r\n\x1a\n") {
        "is an HDF5 file; expected a Blosc2 frame, which Python makes of a dataset: \
         blosc2.asarray(h5py.File(FILE)[DATASET][:], urlpath=NEW, mode=\"w\")"
            .into()
    } else if let Some((_, how, tool)) = PACKED.iter().find(|(mark, ..)| head.starts_with(mark)) {
        format!("is {how}; expected a Blosc2 frame ({tool} unpacks it)")
    } else if chunk() {
        let around = location.backend().stat(OsStr::new(INDEX_NAME)).is_ok();
        let expected =
            if around { "the directory that it is in" } else { "a Blosc2 frame: a file, or a directory with chunks.b2frame" };
        format!("is a single chunk, not a frame; expected {expected}")
    } else if is_text(&head) {
        "is a text file; expected a Blosc2 frame".into()
    } else {
        return None;
    })
}

fn head(location: &Location) -> Option<(Vec<u8>, u64)> {
    let file = location.open().ok()?;
    let len = file.stat().ok()?.len;
    let mut head = vec![0; HEAD.min(usize::try_from(len).unwrap_or(HEAD))];
    let mut read = 0;
    while read < head.len() {
        match BackendFile::read_at(&*file, head.get_mut(read..)?, read as u64).ok()? {
            0 => break,
            more => read += more,
        }
    }
    head.truncate(read);
    Some((head, len))
}

/// UTF-8, cut off anywhere, without characters that are in no text.
fn is_text(head: &[u8]) -> bool {
    let text = match str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            str::from_utf8(head.get(..error.valid_up_to()).unwrap_or_default()).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !text.is_empty() && text.chars().all(|c| !c.is_control() || c.is_ascii_whitespace())
}

/// The same of a directory without an index.
pub(super) fn directory(location: &Location) -> Option<String> {
    let path = location.path();
    let names = location.open_dir().ok()?.names().ok()?;
    let is_frame = |name: &&OsString| has_frame_suffix(name) && !name.as_bytes().starts_with(b".");
    let has = |name: &str| names.iter().any(|found| found == name);
    let (mut count, mut first): (u64, Option<&OsString>) = (0, None);
    for name in names.iter().filter(is_frame).filter(|name| *name != STORE_MARK) {
        count += 1;
        first = first.filter(|first| *first < name).or(Some(name));
    }
    let such = first.map(|name| path.join(name).display().to_string());
    let store = has(STORE_MARK) || path.file_name().is_some_and(has_store_suffix);
    Some(match such {
        Some(such) if store => format!("is a store of Python-Blosc2 (.b2d); expected one frame, such as {such}"),
        None if store => "is a store of Python-Blosc2 (.b2d); expected one of the frames in it".into(),
        Some(such) if count == 1 => format!("is a directory with a frame in it; expected that, {such}"),
        Some(such) => format!("is a directory with {count} frames in it; expected one of them, such as {such}"),
        None => return array(location),
    })
}

/// What an array of another kind is, in words for after its path.
pub(super) fn array(location: &Location) -> Option<String> {
    let names = location.open_dir().ok()?.names().ok()?;
    let is_zarr = [".zarray", ".zgroup", "zarr.json"].iter().any(|name| names.iter().any(|found| found == name));
    is_zarr.then(|| {
        "is a Zarr store; expected a Blosc2 frame, which Python makes of an array: \
         blosc2.asarray(zarr.open(DIRECTORY)[:], urlpath=NEW, mode=\"w\")"
            .into()
    })
}

/// The same of what is not there. `urls` is whether the command takes any.
pub(super) fn name(path: &Path, urls: bool) -> Option<String> {
    let (scheme, rest) = path.to_str()?.split_once(":/")?;
    let is_scheme = scheme.len() > 1 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    if !is_scheme || !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    Some(match scheme {
        "file" => format!("is a URL; expected a path: /{}", rest.trim_start_matches('/')),
        _ if urls && cfg!(feature = "remote") => {
            "is a URL that b2fuse does not read; expected a path, or a URL such as s3://BUCKET/KEY or https://HOST/PATH \
             (curl downloads others)"
                .into()
        }
        _ => "is a URL; expected a file or directory on this machine (curl downloads it)".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let of = |path: &str| name(Path::new(path), true);
        for url in ["https://example.org/a.b2nd", "s3://bucket/a.b2nd", "gs://x", "HTTP://x/y"] {
            assert!(of(url).is_some_and(|what| what.contains("is a URL")), "{url}");
        }
        let of_no_url = |path: &str| name(Path::new(path), false).unwrap();
        assert!(of_no_url("ftp://h/x").contains("expected a file or directory on this machine"));
        assert_eq!(of_no_url("file:///a"), "is a URL; expected a path: /a");
        assert_eq!(of("http:/x").unwrap().contains("https://HOST/PATH"), cfg!(feature = "remote"));
        assert_eq!(of("file:///data/a.b2nd").unwrap(), "is a URL; expected a path: /data/a.b2nd");
        for path in ["a.b2nd", "/data/a:/b", "a b:/c", "c:/x", ":/x", "1a:/x", ""] {
            assert_eq!(of(path), None, "{path}");
        }
    }

    #[test]
    fn texts() {
        for text in ["x,y\n1,2\n", "é", "\t{}\r\n"] {
            assert!(is_text(text.as_bytes()), "{text}");
        }
        assert!(is_text(&"é".repeat(300).as_bytes()[..HEAD - 1]), "cut off within a letter");
        for bytes in [b"".as_slice(), b"a\0b", b"\xff\xfe", b"a\x1bb", b"\xc3("] {
            assert!(!is_text(bytes), "{bytes:?}");
        }
    }
}
