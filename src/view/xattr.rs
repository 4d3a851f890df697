//! What a frame and its chunks say of themselves as extended attributes, the same in both views.
//!
//! | name | of | value |
//! | --- | --- | --- |
//! | `user.b2frame.layout` | the frame | `sparse` or `contiguous`, as it is shown; always there, and the first |
//! | `user.b2frame.meta.NAME` | the frame | the metalayer's bytes, as they stand in the header |
//! | `user.b2frame.vlmeta.NAME` | the frame | the vlmetalayer's bytes, decompressed, as `blosc2_vlmeta_get` gives them |
//! | `user.b2nd.shape`, `.chunkshape`, `.blockshape`, `.dtype` | the frame | text; of a Caterva array `user.caterva.…` |
//! | `user.b2frame.position`, `.nbytes`, `.cbytes`, `.codec` | a chunk file | text; no position where no index names the chunk |
//! | `user.b2frame.special` | a chunk file | `zeros`, `nan`, `uninit`, or `value` for a repeated value: only if it is one |
//!
//! They are read from the frame whenever somebody asks, so they describe what readers of the mount see. Names come from
//! frames and may be hostile: what no attribute can be called (a NUL), what is there twice, what is longer than an attribute
//! can be, and what has no room in a list is left out of the list; too long a value fails with E2BIG.
//!
//! Vlmetalayers can be set and removed. All other attributes are read-only: setting one to its current value does nothing (so copying a
//! file with its attributes works), anything else is refused. A file that a client is just writing from nothing, or under a
//! temporary name, takes any attribute and keeps none: what it holds says them.

use std::collections::HashSet;
use std::fmt::Display;

use super::{Result, SetMode, ViewError};
use crate::format::array::{Array, ArrayKind};
use crate::format::chunk::{self, ChunkHeader};
use crate::format::header::FrameHeader;
use crate::format::metalayer::{MAX_NAME_LEN, Metalayer};
use crate::format::trailer::{MOST_WRITTEN, Trailer};
use crate::format::{Layout, Special};

/// The longest value that the kernel takes, and the longest list of names, in bytes.
const MOST: usize = 64 << 10;
const LAYOUT: &str = "user.b2frame.layout";
const FRAME: &str = "user.b2frame.";
const META: &str = "user.b2frame.meta.";
/// What the names of vlmetalayers begin with.
pub const VLMETA: &str = "user.b2frame.vlmeta.";

/// One attribute. Its name is in two parts.
pub struct Attribute<'a> {
    prefix: &'static str,
    name: &'a [u8],
    value: Value<'a>,
}

enum Value<'a> {
    Bytes(&'a [u8]),
    /// A chunk that holds them.
    Chunk(&'a [u8]),
    Text(String),
}

impl Value<'_> {
    /// Longer than any value may be. A chunk that is none is found out when somebody reads it.
    fn is_too_big(&self) -> bool {
        match self {
            Value::Bytes(bytes) => bytes.len() > MOST,
            Value::Chunk(chunk) => ChunkHeader::parse(chunk).is_ok_and(|header| header.nbytes as usize > MOST),
            Value::Text(text) => text.len() > MOST,
        }
    }

    fn read(self) -> Result<Vec<u8>> {
        if self.is_too_big() {
            return Err(ViewError::ValueTooBig);
        }
        match self {
            Value::Bytes(bytes) => Ok(bytes.to_vec()),
            Value::Chunk(chunk) => chunk::decode(chunk, MOST).map_err(ViewError::Unreadable),
            Value::Text(text) => Ok(text.into_bytes()),
        }
    }
}

fn text<'a>(prefix: &'static str, name: &'static str, value: impl Display) -> Attribute<'a> {
    Attribute { prefix, name: name.as_bytes(), value: Value::Text(value.to_string()) }
}

/// The attributes of a frame.
pub fn of_frame<'a>(header: &'a FrameHeader, trailer: &'a Trailer) -> impl Iterator<Item = Attribute<'a>> {
    let array = std::iter::once_with(|| of_array(header)).flatten();
    let layout = match header.layout() {
        Layout::Contiguous => "contiguous",
        Layout::Sparse => "sparse",
    };
    let layout = std::iter::once(text("", LAYOUT, layout));
    let meta =
        header.metalayers().map(|Metalayer { name, content }| Attribute { prefix: META, name, value: Value::Bytes(content) });
    let vlmeta = trailer.vlmetalayers().map(|Metalayer { name, content }| Attribute {
        prefix: VLMETA,
        name,
        value: Value::Chunk(content),
    });
    layout.chain(array).chain(meta).chain(vlmeta)
}

/// Of a frame that is an array; of one whose metalayer is damaged there is only that.
fn of_array<'a>(header: &FrameHeader) -> Vec<Attribute<'a>> {
    let Some(Ok(array)) = Array::find(header.metalayers()) else { return Vec::new() };
    let prefix = match array.kind {
        ArrayKind::B2nd => "user.b2nd.",
        ArrayKind::Caterva => "user.caterva.",
    };
    let mut attributes = vec![
        text(prefix, "shape", list(&array.shape)),
        text(prefix, "chunkshape", list(&array.chunkshape)),
        text(prefix, "blockshape", list(&array.blockshape)),
    ];
    attributes.extend(array.dtype.map(|dtype| text(prefix, "dtype", dtype.text)));
    attributes
}

fn list(sizes: &[impl Display]) -> String {
    let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    sizes.join(",")
}

/// The attributes of a chunk file.
pub fn of_chunk<'a>(header: &ChunkHeader, position: Option<u32>) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
    let special = header.special.map(Special::name).or(header.repeated_value().map(|_| "value"));
    [
        position.map(|position| text(FRAME, "position", position)),
        Some(text(FRAME, "nbytes", header.nbytes)),
        Some(text(FRAME, "cbytes", header.cbytes)),
        header.codec().map(|codec| text(FRAME, "codec", codec)),
        special.map(|special| text(FRAME, "special", special)),
    ]
    .into_iter()
    .flatten()
}

/// The names, each with a NUL behind it.
pub fn names<'a>(attributes: impl Iterator<Item = Attribute<'a>>) -> Vec<u8> {
    let mut list = Vec::new();
    let mut seen = HashSet::new();
    for Attribute { prefix, name, value } in attributes {
        let end = list.len() + prefix.len() + name.len() + 1;
        if end <= MOST && !name.contains(&0) && seen.insert((prefix, name)) && !value.is_too_big() {
            list.extend_from_slice(prefix.as_bytes());
            list.extend_from_slice(name);
            list.push(0);
        }
    }
    list
}

/// The value of the attribute of that name; of two, the first, as the library has it.
///
/// # Errors
/// There is none; it is too long; it cannot be decompressed.
pub fn find<'a>(mut attributes: impl Iterator<Item = Attribute<'a>>, name: &[u8]) -> Result<Vec<u8>> {
    let found = attributes.find(|attribute| name.strip_prefix(attribute.prefix.as_bytes()) == Some(attribute.name));
    found.ok_or(ViewError::NoAttribute)?.value.read()
}

/// Whether what is asked for is not so already, given what [`find`] answers.
///
/// # Errors
/// What `mode`, or a removal, does not allow.
pub fn is_news(now: &Result<Vec<u8>>, value: Option<&[u8]>, mode: SetMode) -> Result<bool> {
    match (now, value) {
        (Err(ViewError::NoAttribute), None) => Err(ViewError::NoAttribute),
        (Err(ViewError::NoAttribute), _) if mode == SetMode::Replace => Err(ViewError::NoAttribute),
        (Err(ViewError::NoAttribute), _) => Ok(true),
        (_, Some(_)) if mode == SetMode::Create => Err(ViewError::Exists),
        (Ok(now), Some(value)) => Ok(now != value),
        _ => Ok(true),
    }
}

/// For a file that takes any attribute and keeps none.
///
/// # Errors
/// As [`is_news`], none being there.
pub fn not_kept(value: Option<&[u8]>, mode: SetMode) -> Result<()> {
    is_news(&Err(ViewError::NoAttribute), value, mode).map(drop)
}

/// The trailer with a vlmetalayer set, or without it; the name is the attribute's.
///
/// # Errors
/// Another name; one that the library could not read; more vlmetalayers than it could write.
#[expect(clippy::indexing_slicing, reason = "the place was just found")]
pub fn changed(trailer: &Trailer, name: &[u8], value: Option<&[u8]>) -> Result<Trailer> {
    let name = name.strip_prefix(VLMETA.as_bytes()).ok_or(ViewError::NotSettable)?;
    let mut layers: Vec<Metalayer<'_>> = trailer.vlmetalayers().collect();
    let place = layers.iter().position(|layer| layer.name == name);
    let content = match value {
        Some(value) if value.len() > MOST => return Err(ViewError::ValueTooBig),
        Some(value) => Some(chunk::plain(value).map_err(|_| ViewError::ValueTooBig)?),
        None => None,
    };
    match (place, &content) {
        (Some(place), Some(content)) => layers[place].content = content,
        (Some(_), None) => layers.retain(|layer| layer.name != name),
        // Python's library gives up the whole frame's vlmetalayers for a name that is no text.
        (None, _) if name.is_empty() || str::from_utf8(name).is_err() => return Err(ViewError::Invalid),
        (None, _) if name.len() > MAX_NAME_LEN => return Err(ViewError::OutOfRange),
        (None, _) if layers.len() >= MOST_WRITTEN => return Err(ViewError::NoRoom),
        (None, Some(content)) => layers.push(Metalayer { name, content }),
        (None, None) => return Err(ViewError::NoAttribute),
    }
    Trailer::encode(&layers).map_err(|_| ViewError::NoRoom)
}

/// Lengths that the frame has had since a client last wrote it. A client of the library that has it open, and has not looked
/// since, takes the last that it knows for the frame's: its next write may be a header with that frame_len, or no more than
/// the 8 bytes of it, which are the end of every change.
#[derive(Debug, Default)]
pub struct FormerLens(Vec<u64>);

impl FormerLens {
    /// Remembered are no more than these.
    const MOST: usize = 16;

    /// An attribute has changed the frame's length, which was `len`.
    pub fn push(&mut self, len: u64) {
        if self.0.len() == Self::MOST {
            self.0.remove(0);
        }
        self.0.push(len);
    }

    /// A client has written the frame.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Sets right a frame_len that is a former one, in a header that was written over a frame of `len` bytes otherwise
    /// unchanged. Answers whether it was.
    pub fn mend(&self, frame_len: &mut [u8; 8], len: u64) -> bool {
        let written = u64::from_be_bytes(*frame_len);
        let former = written != len && self.0.contains(&written);
        if former {
            *frame_len = len.to_be_bytes();
        }
        former
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format;
    use crate::view::frames::{chunk, errno, header};

    fn trailer(layers: &[(&[u8], &[u8])]) -> Trailer {
        let layers: Vec<_> = layers.iter().map(|(name, content)| Metalayer { name, content }).collect();
        Trailer::encode(&layers).unwrap()
    }

    fn listed(trailer: &Trailer) -> Vec<Vec<u8>> {
        let list = names(of_frame(&header(Layout::Sparse, 0, 0, 1 << 20, 64), trailer));
        list.split_inclusive(|byte| *byte == 0).map(|name| name[..name.len() - 1].to_vec()).collect()
    }

    fn read(trailer: &Trailer, name: &[u8]) -> Result<Vec<u8>> {
        find(of_frame(&header(Layout::Sparse, 0, 0, 1 << 20, 64), trailer), name)
    }

    #[test]
    fn names_that_no_attribute_can_have_and_values_that_are_too_long_are_left_out() {
        let (large, largest) = (chunk(1, MOST as u32 + 1), chunk(2, MOST as u32));
        let trailer = trailer(&[
            (b"a\0b", &chunk(3, 4)),
            (b"twice", &chunk(4, 4)),
            (b"twice", &chunk(5, 4)),
            (b"large", &large),
            (b"largest", &largest),
            (b"\xff\n", &chunk(6, 4)),
            (b"broken", b"no chunk"),
        ]);
        let ours = |name: &[u8]| [VLMETA.as_bytes(), name].concat();
        let expected = [ours(b"twice"), ours(b"largest"), ours(b"\xff\n"), ours(b"broken")];
        assert_eq!(listed(&trailer)[1..], expected);
        assert_eq!(read(&trailer, &ours(b"twice")).unwrap(), [4; 4]);
        assert_eq!(read(&trailer, &ours(b"largest")).unwrap(), [2; MOST]);
        assert_eq!(errno(read(&trailer, &ours(b"large"))), libc::E2BIG);
        assert_eq!(errno(read(&trailer, &ours(b"broken"))), libc::EIO);
        assert_eq!(errno(read(&trailer, b"user.b2frame.vlmeta")), libc::ENODATA);
        // Of those of one name, the one that the library finds is set, and all are removed.
        let set = changed(&trailer, &ours(b"twice"), Some(b"new")).unwrap();
        assert_eq!(read(&set, &ours(b"twice")).unwrap(), b"new");
        assert_eq!(errno(read(&changed(&trailer, &ours(b"twice"), None).unwrap(), &ours(b"twice"))), libc::ENODATA);
    }

    #[test]
    fn a_list_is_no_longer_than_the_kernel_takes() {
        let names: Vec<String> = (0..2000).map(|n| format!("{n:031}")).collect();
        let content = chunk(1, 4);
        let layers: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), &content[..])).collect();
        // An index of names is no longer than that either, in bytes.
        let trailer = trailer(&layers[..1700]);
        let list = listed(&trailer);
        let len: usize = list.iter().map(|name| name.len() + 1).sum();
        assert!(len <= MOST && len > MOST - 60, "{len}");
        assert!(list.len() < 1700);
    }

    #[test]
    fn what_can_be_set() {
        let empty = trailer(&[]);
        let set = |name: &str| errno(changed(&empty, name.as_bytes(), Some(b"x")));
        let longest = format!("{VLMETA}{}", "n".repeat(MAX_NAME_LEN));
        assert_eq!((set(&longest), set(&format!("{longest}n"))), (0, libc::ERANGE));
        assert_eq!((set(VLMETA), set("user.b2frame.meta.x")), (libc::EINVAL, libc::EOPNOTSUPP));
        assert_eq!(errno(changed(&empty, b"user.b2frame.vlmeta.\xff", Some(b"x"))), libc::EINVAL);
        assert_eq!(errno(changed(&empty, b"user.b2frame.vlmeta.x", Some(&[0; MOST + 1]))), libc::E2BIG);
        // The library would write no seventeenth.
        let mut full = empty;
        for n in 0..MOST_WRITTEN {
            full = changed(&full, format!("{VLMETA}{n}").as_bytes(), Some(b"x")).unwrap();
        }
        assert_eq!(errno(changed(&full, longest.as_bytes(), Some(b"x"))), libc::ENOSPC);
        assert_eq!(
            read(&changed(&full, format!("{VLMETA}3").as_bytes(), Some(b"y")).unwrap(), b"user.b2frame.vlmeta.3").unwrap(),
            b"y"
        );
    }

    #[test]
    fn what_modes_allow() {
        let (some, none) = (|| Ok(b"x".to_vec()), || Err(ViewError::NoAttribute));
        let news = |now, value, mode| is_news(&now, value, mode).map_err(|error| error.errno());
        assert_eq!(news(some(), Some(&b"x"[..]), SetMode::Any), Ok(false));
        assert_eq!(news(some(), Some(b"y"), SetMode::Replace), Ok(true));
        assert_eq!(news(some(), Some(b"x"), SetMode::Create), Err(libc::EEXIST));
        assert_eq!(news(none(), Some(b"x"), SetMode::Create), Ok(true));
        assert_eq!(news(none(), Some(b"x"), SetMode::Replace), Err(libc::ENODATA));
        assert_eq!(news(none(), None, SetMode::Any), Err(libc::ENODATA));
        let damaged = || Err(ViewError::Unreadable(format::Error::new("chunk", 0, "", "")));
        assert_eq!(news(damaged(), Some(b"x"), SetMode::Any), Ok(true), "can be mended");
        assert_eq!(news(damaged(), Some(b"x"), SetMode::Create), Err(libc::EEXIST));
    }
}
