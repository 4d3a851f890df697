//! Bytes to values and back.

use std::cell::RefCell;

use b2fuse::format::chunk::{self, ChunkHeader, Decoder};
use b2fuse::format::header::{FrameHeader, HeaderFields};
use b2fuse::format::index::{self, Place};
use b2fuse::format::index_file::IndexFile;
use b2fuse::format::metalayer::Metalayer;
use b2fuse::format::times::{self, Times};
use b2fuse::format::trailer::Trailer;
use b2fuse::format::zip::{Contents, End, Entry, Member, Number};
use b2fuse::format::{ChunkId, ChunkOffset, IndexEntry, Special};
use b2fuse::store::frame::{Frame, Unread};

use crate::memory::within;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// An index may unfold to this many entries whatever its length, and then takes this many bytes of memory for each.
const UNFOLDED: usize = 1 << 24;
const PER_ENTRY: usize = 32;
/// What fuzzing unfolds: more takes its time, and shows nothing new.
const FOLLOWED: u32 = 1 << 13;

/// The most that reading `len` bytes of a frame may take.
fn reading(len: usize) -> usize {
    64 * KIB + 64 * len + PER_ENTRY * UNFOLDED.max(64 * len)
}

pub fn frame(data: &[u8]) {
    match within(reading(data.len()), || Frame::<ChunkOffset>::read(&data)) {
        Ok(frame) => same_frame(&frame),
        Err(Unread::OtherLayout) => {
            if let Ok(frame) = within(reading(data.len()), || Frame::<ChunkId>::read(&data)) {
                same_frame(&frame);
            }
        }
        Err(Unread::Format(error)) => clear(&error),
        Err(Unread::Io { source, .. }) => panic!("bytes in memory can be read: {source}"),
    }
}

fn same_frame<P: Place + PartialEq + std::fmt::Debug>(frame: &Frame<P>) {
    same_header(&frame.header);
    same_trailer(&frame.trailer);
    same_entries(&frame.entries);
    let sections = &frame.sections;
    assert!(sections.chunks.end == sections.index.start && sections.index.end == sections.trailer.start);
    assert_eq!(sections.trailer.end, frame.header.frame_len());
    assert_eq!(sections.chunks.start, u64::from(frame.header.header_len()));
}

pub fn times(data: &[u8]) {
    // Nobody finds a checksum by trying.
    let record = [data, &times::checksum(data).to_le_bytes()].concat();
    match within(64 * KIB + 4 * record.len(), || Times::decode(&record)) {
        Ok((identity, times)) => {
            assert_eq!(times.encode(&identity), record);
            assert!(times.is_empty() || times.get(times.len() - 1).is_some() && times.get(times.len()).is_none());
        }
        Err(error) => clear(&error),
    }
}

pub fn archive(data: &[u8]) {
    // The end of an archive finds its directory; then any bytes as a directory, behind members enough.
    match End::parse(data, data.len() as u64) {
        Ok(end) => members(&data[end.directory.start as usize..end.directory.end as usize], &end, Some(data)),
        Err(error) => clear(&error),
    }
    let Some((count, directory)) = data.split_first() else { return };
    let start = MIB as u64;
    members(directory, &End { count: (*count).into(), directory: start..start + directory.len() as u64 }, None);
}

fn members(directory: &[u8], end: &End, file: Option<&[u8]>) {
    let contents = match within(64 * KIB + 128 * directory.len(), || Contents::parse(directory, end)) {
        Ok(contents) => contents,
        Err(error) => return clear(&error),
    };
    // Every name leads to what has it, once.
    let mut found = 1;
    for dir in (0..contents.count() as u32).map(Number) {
        let mut last = None;
        for inside in contents.list(dir).map(Number) {
            let name = contents.name(inside);
            assert!(last.replace(name) < Some(name), "names are in order, and no two are the same");
            assert!(!matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0) && name.len() <= 255);
            assert_eq!(contents.child(dir, name), Some(inside));
            assert!(inside > dir && contents.entry(dir) == Some(Entry::Directory));
            found += 1;
        }
    }
    assert_eq!(found, contents.count());
    // No two members share a byte, whatever their local headers say.
    let mut free = 0;
    for (number, member) in contents.files() {
        let path = contents.path(number);
        assert!(member.header_at >= free && member.limit <= end.directory.start);
        free = member.limit;
        let header_end = member.header_at as usize + Member::header_len(&path);
        let Some(header) = file.and_then(|file| file.get(member.header_at as usize..header_end)) else { continue };
        match member.data(&path, header) {
            Ok(at) => assert!(at >= header_end as u64 && at + member.len <= member.limit),
            Err(error) => clear(&error),
        }
    }
}

pub fn metadata(data: &[u8]) {
    let limit = 64 * KIB + 64 * data.len();
    match within(limit, || FrameHeader::parse(data)) {
        Ok(header) => same_header(&header),
        Err(error) => clear(&error),
    }
    match within(limit, || Trailer::parse(data)) {
        Ok(trailer) => same_trailer(&trailer),
        Err(error) => clear(&error),
    }
}

/// One line that names a field and a place.
fn clear(error: &b2fuse::format::Error) {
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() < 300, "{line}");
    assert!(!error.field.is_empty() && !error.got.is_empty() && !error.expected.is_empty(), "{line}");
}

/// Whether metalayers, which may share bytes, stay small when each has its own.
fn can_be_encoded(layers: &[Metalayer<'_>]) -> bool {
    let names: usize = layers.iter().map(|layer| layer.name.len() + 6).sum();
    let contents: usize = layers.iter().map(|layer| layer.content.len()).sum();
    names < 65_000 && contents < MIB
}

fn same_header(header: &FrameHeader) {
    let layers: Vec<_> = header.metalayers().collect();
    // With its contents apart the header may be longer than the frame says that it is.
    let fields = HeaderFields { frame_len: 1 << 40, ..header.fields() };
    let encoded = FrameHeader::encode(&fields, &layers).expect("what was parsed can be encoded");
    assert_eq!(encoded.fields(), fields);
    assert!(encoded.metalayers().eq(layers));
    assert_eq!(FrameHeader::parse(encoded.as_bytes()).as_ref(), Ok(&encoded));
    assert_eq!(FrameHeader::parse(header.as_bytes()).as_ref(), Ok(header));
}

fn same_trailer(trailer: &Trailer) {
    assert_eq!(Trailer::parse(trailer.as_bytes()).as_ref(), Ok(trailer));
    let layers: Vec<_> = trailer.vlmetalayers().collect();
    if can_be_encoded(&layers) {
        let encoded = Trailer::encode(&layers).expect("what was parsed can be encoded");
        assert!(encoded.vlmetalayers().eq(layers));
    }
}

fn same_entries<P: Place + PartialEq + std::fmt::Debug>(entries: &[IndexEntry<P>]) {
    if entries.len() > FOLLOWED as usize {
        return;
    }
    let encoded = index::encode(entries.iter().copied()).expect("what was parsed can be encoded");
    assert!(encoded.len() <= entries.len() * 8 + ChunkHeader::LEN + 8);
    for expected in [Some(entries.len() as u64), None] {
        if !entries.is_empty() || expected.is_some() {
            assert_eq!(index::decode::<P>(&encoded, expected).as_deref(), Ok(entries));
        }
    }
}

pub fn index(data: &[u8]) {
    both_places(data);
    let entries: Vec<_> = data.as_chunks::<8>().0.iter().map(|word| entry(u64::from_le_bytes(*word))).collect();
    same_entries(&entries);
    let ids: Vec<_> = entries.iter().map(|entry| entry.map(|offset| ChunkId(offset.bytes() as u32))).collect();
    same_entries(&ids);
}

/// Any word as an entry.
fn entry(word: u64) -> IndexEntry<ChunkOffset> {
    match word >> 61 {
        4 => IndexEntry::Special(Special::Zeros),
        5 => IndexEntry::Special(Special::Nan),
        6 | 7 => IndexEntry::Special(Special::Uninit),
        _ => IndexEntry::Stored(ChunkOffset::new(word)),
    }
}

fn both_places(data: &[u8]) {
    let announced = ChunkHeader::parse(data).map_or(0, |header| header.nbytes);
    if announced / 8 > FOLLOWED {
        // Nothing is unfolded where it is not as many as the frame's header says.
        let refused = within(64 * KIB, || index::decode::<ChunkOffset>(data, Some(u64::from(FOLLOWED))));
        clear(&refused.expect_err("another number was expected"));
        return;
    }
    let limit = 256 * KIB + 64 * data.len() + PER_ENTRY * announced as usize;
    match within(limit, || index::decode::<ChunkOffset>(data, None)) {
        Ok(entries) => {
            assert_eq!(entries.len() * 8, announced as usize);
            same_entries(&entries);
        }
        Err(error) => clear(&error),
    }
    if let Ok(entries) = within(limit, || index::decode::<ChunkId>(data, None)) {
        same_entries(&entries);
        // Another one, decoded as what has changed since.
        for round in 1..5_usize {
            let mut other = data.to_vec();
            let at = entries.len().wrapping_mul(31).wrapping_add(round * 7919) % other.len().max(1);
            if let Some(byte) = other.get_mut(at) {
                *byte ^= 1 << (round + at) % 8;
            }
            let count = Some(entries.len() as u64);
            assert_eq!(index::decode_like(&other, count, data, &entries), index::decode(&other, count));
        }
    }
}

pub fn index_file(data: &[u8]) {
    match within(reading(data.len()), || IndexFile::parse(data)) {
        Ok(mut file) => {
            same_header(&file.header);
            if file.entries.len() > FOLLOWED as usize {
                return;
            }
            let made = file.make_file().expect("what was parsed can be made");
            let mut again = IndexFile::parse(&made).expect("what was made parses");
            assert_eq!(again.entries, file.entries);
            assert_eq!(again.trailer, file.trailer);
            assert_eq!(again.header, file.header);
            assert!(again.make_file().is_ok_and(|same| same == made), "made again it is another");
        }
        Err(error) => clear(&error),
    }
}

/// The largest chunk that is decoded.
const LARGEST: usize = MIB;

pub fn chunk(data: &[u8]) {
    thread_local! {
        static USED: RefCell<(Decoder, Vec<u8>)> = RefCell::default();
    }
    let header = ChunkHeader::parse(data);
    let size = header.as_ref().map_or(0, |header| header.nbytes as usize);
    let size = if size <= LARGEST { size } else { 0 };
    let checked = within(64 * KIB, || chunk::check(data));
    // One stream at a time: the best ratio is Zstandard's.
    let verified = within(128 * KIB + (33 * KIB) * data.len(), || Decoder::default().verify(data));
    let decoded = within(128 * KIB + 4 * size, || chunk::decode(data, LARGEST));
    USED.with_borrow_mut(|(decoder, out)| {
        let used = decoder.decode_into(data, LARGEST, out);
        assert_eq!(used.is_ok(), decoded.is_ok(), "a used decoder differs from a new one");
        if let Ok(bytes) = &decoded {
            assert!(out == bytes, "a used decoder differs from a new one");
        }
    });
    for answer in [&checked, &verified] {
        if let Err(error) = answer {
            clear(error);
        }
    }
    // Without the plugin that a chunk needs, less of it is looked at.
    if size > 0 && checked.as_ref().is_ok_and(|header| header.plugin().is_none()) {
        assert_eq!(verified.is_ok(), decoded.is_ok(), "{verified:?}, {:?}", decoded.as_ref().err());
    }
    match decoded {
        Ok(bytes) => {
            let header = header.expect("what decodes has a header");
            assert_eq!(bytes.len(), header.nbytes as usize);
            assert_eq!(chunk::check(&data[..header.cbytes as usize]), Ok(header), "it decodes, and does not pass the check");
        }
        Err(error) => clear(&error),
    }
}
