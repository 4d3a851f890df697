//! Metalayers: named bytes in a header, or (as vlmetalayers, Blosc2 chunks each) in a trailer.
//!
//! Both parts hold the same structure, whose offsets count from the beginning of the part:
//!
//! ```text
//! 93 | cd idx_size | de count | { a0+n name | d2 offset } ... | dc count | { c6 len content } ...
//!  1      1 + 2        1 + 2      1 + n         1 + 4             1 + 2       1 + 4 + len
//!                                               |___________________________^
//! ```
//!
//! idx_size counts up to the end of the map, in a header from the 93, in a trailer from the byte behind it. As C-Blosc2
//! does, reading goes by the map and its offsets, and looks at neither idx_size nor the array's own count; contents may
//! share bytes.

use std::ops::Range;

use rmp::Marker;

use super::msgpack::{Reader, put};
use super::{Error, Result};

/// Bytes that a name can have: a fixstr's.
pub const MAX_NAME_LEN: usize = 31;

/// A metalayer: its name and content, as they stand in the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metalayer<'a> {
    /// The name: UTF-8 as a rule, but C-Blosc2 takes any bytes.
    pub name: &'a [u8],
    /// The content; of a vlmetalayer a Blosc2 chunk.
    pub content: &'a [u8],
}

/// The part of a frame that metalayers stand in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Header,
    Trailer,
}

impl Part {
    /// Where the part has its metalayers.
    pub(super) const fn at(self) -> usize {
        match self {
            Part::Header => 87,
            Part::Trailer => 2,
        }
    }
    /// Where idx_size begins to count.
    const fn index_from(self) -> usize {
        match self {
            Part::Header => self.at(),
            Part::Trailer => self.at().saturating_add(1),
        }
    }
    /// The most that C-Blosc2 reads.
    const fn max_count(self) -> u16 {
        match self {
            Part::Header => 16,
            Part::Trailer => 8192,
        }
    }
    const fn words(self) -> &'static Words {
        match self {
            Part::Header => &Words {
                table: "header: metalayers",
                count: "header: number of metalayers",
                name: "header: metalayer name",
                offset: "header: metalayer offset",
                content: "header: metalayer content",
            },
            Part::Trailer => &Words {
                table: "trailer: vlmetalayers",
                count: "trailer: number of vlmetalayers",
                name: "trailer: vlmetalayer name",
                offset: "trailer: vlmetalayer offset",
                content: "trailer: vlmetalayer content",
            },
        }
    }
}

/// A part's names of its fields, for errors.
struct Words {
    table: &'static str,
    count: &'static str,
    name: &'static str,
    offset: &'static str,
    content: &'static str,
}

/// Where a part has a metalayer. Made by [`Table::parse`] only, so both ranges lie within the part.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slot {
    name: Range<usize>,
    content: Range<usize>,
}

/// Where a part has its metalayers, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    slots: Vec<Slot>,
}

impl Table {
    /// Finds the metalayers of a part that is `bytes`.
    pub(super) fn parse(bytes: &[u8], part: Part) -> Result<Self> {
        let words = part.words();
        let mut reader = Reader::new(bytes, part.at());
        // array marker, u16 marker, idx_size
        reader.take(4, words.table)?;
        reader.marker(words.table, "a map (0xde)", |marker| (marker == Marker::Map16).then_some(()))?;
        let at = reader.position() as u64;
        let count = u16::from_be_bytes(reader.array(words.count)?);
        if count > part.max_count() {
            return Err(Error::new(words.count, at, count, format_args!("at most {}", part.max_count())));
        }
        let slots = (0..count).map(|_| Slot::parse(bytes, &mut reader, words)).collect::<Result<_>>()?;
        Ok(Table { slots })
    }

    /// The metalayers of `bytes`, which are those that were parsed.
    pub(super) fn iter<'a>(&'a self, bytes: &'a [u8]) -> impl ExactSizeIterator<Item = Metalayer<'a>> {
        self.slots.iter().map(|slot| Metalayer {
            name: bytes.get(slot.name.clone()).unwrap_or_default(),
            content: bytes.get(slot.content.clone()).unwrap_or_default(),
        })
    }
}

impl Slot {
    fn parse(bytes: &[u8], reader: &mut Reader<'_>, words: &Words) -> Result<Self> {
        let name_len = reader.marker(words.name, "a short string (0xa0 to 0xbf)", |marker| match marker {
            Marker::FixStr(len) => Some(usize::from(len)),
            _ => None,
        })?;
        let name_at = reader.position();
        reader.take(name_len, words.name)?;
        let name = name_at..reader.position();

        reader.marker(words.offset, "an int32 (0xd2)", |marker| (marker == Marker::I32).then_some(()))?;
        let at = reader.position() as u64;
        let offset = i32::from_be_bytes(reader.array(words.offset)?);
        let offset = usize::try_from(offset)
            .ok()
            .filter(|&offset| offset < bytes.len())
            .ok_or_else(|| Error::new(words.offset, at, offset, format_args!("at most {}", bytes.len().saturating_sub(1))))?;

        let mut content = Reader::new(bytes, offset);
        content.marker(words.content, "bytes (0xc6)", |marker| (marker == Marker::Bin32).then_some(()))?;
        let at = content.position() as u64;
        let len = i32::from_be_bytes(content.array(words.content)?);
        let len = usize::try_from(len).map_err(|_| Error::new(words.content, at, len, "a length that is not negative"))?;
        let content_at = content.position();
        content.take(len, words.content)?;
        Ok(Slot { name, content: content_at..content.position() })
    }
}

/// Appends `metalayers` to a part of which `out` holds all that comes before them.
pub(super) fn encode(out: &mut Vec<u8>, part: Part, metalayers: &[Metalayer<'_>]) -> Result<()> {
    let words = part.words();
    let too_many = || Error::new(words.count, out.len() as u64, metalayers.len(), format_args!("at most {}", part.max_count()));
    let count = u16::try_from(metalayers.len()).ok().filter(|&count| count <= part.max_count()).ok_or_else(too_many)?;

    let mut map_len = 7usize;
    for metalayer in metalayers {
        if metalayer.name.len() > MAX_NAME_LEN {
            let got = format_args!("{} bytes", metalayer.name.len()).to_string();
            return Err(Error::new(words.name, out.len() as u64, got, format_args!("at most {MAX_NAME_LEN}")));
        }
        map_len = map_len.saturating_add(metalayer.name.len()).saturating_add(6);
    }
    let map_end = part.at().saturating_add(map_len);
    let idx_size = u16::try_from(map_end.saturating_sub(part.index_from()))
        .map_err(|_| Error::new(words.table, out.len() as u64, format_args!("{map_len} bytes of names"), "at most 65535"))?;

    out.push(Marker::FixArray(3).to_u8());
    put(out, Marker::U16, &idx_size.to_be_bytes());
    put(out, Marker::Map16, &count.to_be_bytes());
    let mut offset = map_end.saturating_add(3);
    for Metalayer { name, content } in metalayers {
        let place = i32::try_from(offset).map_err(|_| too_long(words, offset))?;
        put(out, Marker::FixStr(name.len() as u8), name);
        put(out, Marker::I32, &place.to_be_bytes());
        offset = offset.saturating_add(content.len()).saturating_add(5);
    }
    put(out, Marker::Array16, &count.to_be_bytes());
    for Metalayer { content, .. } in metalayers {
        let len = i32::try_from(content.len()).map_err(|_| too_long(words, content.len()))?;
        put(out, Marker::Bin32, &len.to_be_bytes());
        out.extend_from_slice(content);
    }
    Ok(())
}

fn too_long(words: &Words, len: usize) -> Error {
    Error::new(words.content, 0, format_args!("{len} bytes"), format_args!("at most {}", i32::MAX))
}
