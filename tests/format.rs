//! The format layer against real frames: what C-Blosc2 wrote is read as the library reads it and comes out byte for byte, and
//! what is damaged is refused in one line that says where.
//!
//! The frames are those of tests/python/make_test_data.py.

use std::fs;
use std::path::{Path, PathBuf};

use b2fuse::format::header::{FrameHeader, HeaderFields, Sections};
use b2fuse::format::metalayer::Metalayer;
use b2fuse::format::trailer::Trailer;
use b2fuse::format::{ChunkId, ChunkOffset, Error, IndexEntry, Layout, Result, Special, chunk, index};
use proptest::collection::vec;
use proptest::prelude::*;

/// A frame of tests/data.
struct Real {
    /// As in expected.tsv.
    name: String,
    path: PathBuf,
    /// The cframe, or the sframe's `chunks.b2frame`.
    bytes: Vec<u8>,
}

/// A frame of which every part but the chunks has been parsed.
#[derive(Debug)]
struct Parsed {
    header: FrameHeader,
    trailer: Trailer,
    sections: Sections,
    /// With offsets or ids as plain numbers.
    entries: Vec<IndexEntry<u64>>,
}

fn data_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn real(name: &str) -> Real {
    let path = data_dir().join(name);
    let file = if path.is_dir() { path.join("chunks.b2frame") } else { path.clone() };
    let bytes = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    Real { name: name.to_owned(), path, bytes }
}

/// Every line of expected.tsv, by columns.
fn expected() -> Vec<Vec<String>> {
    let text = fs::read_to_string(data_dir().join("expected.tsv")).unwrap();
    let lines: Vec<Vec<_>> = text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect();
    assert!(lines.len() > 35, "only {} frames", lines.len());
    lines
}

fn all() -> Vec<Real> {
    expected().iter().map(|columns| real(&columns[0])).collect()
}

/// Those that are quick to parse a thousand times.
fn small() -> impl Iterator<Item = Real> {
    all().into_iter().filter(|real| real.bytes.len() < 3000)
}

fn slice(bytes: &[u8], range: &std::ops::Range<u64>) -> Vec<u8> {
    bytes[range.start as usize..range.end as usize].to_vec()
}

/// Parses as a store does that has `bytes` for a file.
fn parse(bytes: &[u8]) -> Result<Parsed> {
    let header = FrameHeader::parse(bytes)?;
    let there = bytes.len() as u64;
    if header.frame_len() > there {
        return Err(Error::new("header: frame_len", 16, header.frame_len(), there));
    }
    let bytes = &bytes[..header.frame_len() as usize];
    let tail = &bytes[bytes.len() - Trailer::TAIL_LEN..];
    let trailer_len = Trailer::announced_len(tail, header.header_len(), header.frame_len())?;
    let sections = header.sections(trailer_len)?;
    let trailer = Trailer::parse(&slice(bytes, &sections.trailer))?;
    let index = slice(bytes, &sections.index);
    let entries = match header.layout() {
        Layout::Contiguous => {
            let entries = index::decode(&index, header.nchunks())?;
            index::check_offsets(&entries, sections.chunks.end - sections.chunks.start)?;
            entries.into_iter().map(|entry| entry.map(ChunkOffset::bytes)).collect()
        }
        Layout::Sparse => {
            let entries = index::decode(&index, header.nchunks())?;
            entries.into_iter().map(|entry| entry.map(|ChunkId(id)| u64::from(id))).collect()
        }
    };
    Ok(Parsed { header, trailer, sections, entries })
}

fn header_of(bytes: &[u8]) -> FrameHeader {
    FrameHeader::parse(bytes).unwrap()
}

fn crc32(crc: u32, data: &[u8]) -> u32 {
    !data.iter().fold(!crc, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 0 { 0 } else { 0xEDB8_8320 })
    })
}

#[test]
fn headers_and_trailers_encode_to_the_same_bytes() {
    for real in all() {
        let parsed = parse(&real.bytes).unwrap_or_else(|error| panic!("{}: {error}", real.name));
        let header = &parsed.header;
        assert_eq!(header.as_bytes(), &real.bytes[..header.header_len() as usize], "{}", real.name);
        assert_eq!(parsed.trailer.as_bytes(), slice(&real.bytes, &parsed.sections.trailer), "{}", real.name);

        let metalayers: Vec<_> = header.metalayers().collect();
        assert_eq!(FrameHeader::encode(&header.fields(), &metalayers).as_ref(), Ok(header), "{}", real.name);
        let vlmetalayers: Vec<_> = parsed.trailer.vlmetalayers().collect();
        assert_eq!(Trailer::encode(&vlmetalayers).as_ref(), Ok(&parsed.trailer), "{}", real.name);
        assert_eq!(header.fields().has_vlmetalayers, !vlmetalayers.is_empty(), "{}", real.name);
    }
}

#[test]
fn fields_hold_what_the_frames_were_made_with() {
    let fields = header_of(&real("cframe/codec-zstd.b2frame").bytes).fields();
    assert_eq!((fields.version, fields.layout, fields.typesize), (2, Layout::Contiguous, 8));
    assert_eq!((fields.codec, fields.user_codec, fields.clevel, fields.split_mode, fields.use_dict), (5, 5, 7, 2, false));
    assert_eq!((fields.filters, fields.filters_meta), ([4, 1, 0, 0, 0, 0], [20, 0, 0, 0, 0, 0]));
    assert_eq!((fields.blocksize, fields.chunksize, fields.nbytes), (1024, 2048, 8000));
    assert_eq!((fields.nthreads_compress, fields.nthreads_decompress), (1, 2));
    assert!(header_of(&real("cframe/codec-zstd-dict.b2frame").bytes).fields().use_dict);

    let flags = |name| {
        let header = header_of(&real(name).bytes);
        let fields = header.fields();
        (fields.version, fields.varying_chunks, fields.vl_blocks, header.chunksize(), header.nchunks())
    };
    assert_eq!(flags("cframe/varying.b2frame"), (3, true, false, 0, None));
    assert_eq!(flags("cframe/vlblocks-fixed.b2frame"), (3, false, true, 300, Some(3)));
    assert_eq!(flags("cframe/vlblocks-varying.b2frame"), (3, true, true, 0, None));
    assert_eq!(flags("sframe/codec-lz4.b2frame"), (2, false, false, 2048, Some(5)));
    assert_eq!(header_of(&real("cframe/b2nd-wide.b2nd").bytes).typesize(), 300);

    // No chunk has given the size; and the last chunk has gone, with the old cbytes left behind.
    let empty = header_of(&real("cframe/empty.b2frame").bytes);
    assert_eq!((empty.fields().chunksize, empty.chunksize(), empty.nchunks()), (-1, 0, Some(0)));
    let emptied = header_of(&real("cframe/emptied.b2frame").bytes);
    assert!(emptied.cbytes() > emptied.frame_len(), "{}", emptied.cbytes());
    assert_eq!(emptied.nchunks(), Some(0));
}

#[test]
fn metalayers_are_found_by_name_and_content() {
    let parsed = parse(&real("sframe/metalayers.b2frame").bytes).unwrap();
    let names: Vec<_> = parsed.header.metalayers().map(|layer| layer.name.len()).collect();
    assert_eq!(names, (1..32).step_by(2).collect::<Vec<_>>());
    // MessagePack of [0, 1, 2]
    assert_eq!(parsed.header.metalayers().nth(1), Some(Metalayer { name: b"mmm", content: &[0x93, 0, 1, 2] }));
    let vlmetalayers: Vec<_> = parsed.trailer.vlmetalayers().collect();
    assert_eq!(vlmetalayers.len(), 16);
    assert!(vlmetalayers.iter().all(|layer| layer.name.iter().all(|byte| *byte == b'v')));
    let text = chunk::decode(vlmetalayers[1].content, 1000).unwrap();
    // MessagePack of a string of 45 bytes
    assert_eq!(text, [b"\xd9\x2d".as_slice(), "text ".repeat(9).as_bytes()].concat());
}

#[test]
fn setters_change_their_field_and_nothing_else() {
    let old = header_of(&real("cframe/metalayers.b2frame").bytes);
    type Set = fn(&mut FrameHeader);
    let setters: [(Set, std::ops::Range<usize>); 6] = [
        (|header| header.set_frame_len(0x1122_3344_5566_7788), 16..24),
        (|header| header.set_layout(Layout::Sparse), 26..27),
        (|header| header.set_nbytes(0x1122_3344_5566_7788), 30..38),
        (|header| header.set_cbytes(0x1122_3344_5566_7788), 39..47),
        (|header| header.set_chunksize(0x1122_3344), 58..62),
        (|header| header.set_has_vlmetalayers(false), 68..69),
    ];
    for (set, range) in setters {
        let mut new = old.clone();
        set(&mut new);
        let changed: Vec<_> = (0..old.as_bytes().len()).filter(|&i| old.as_bytes()[i] != new.as_bytes()[i]).collect();
        assert_eq!(changed, range.collect::<Vec<_>>());
    }
    let mut new = old.clone();
    new.set_frame_len(7);
    new.set_layout(Layout::Sparse);
    new.set_nbytes(1 << 40);
    new.set_cbytes(9);
    new.set_chunksize(1 << 20);
    assert_eq!((new.frame_len(), new.layout(), new.nbytes(), new.cbytes()), (7, Layout::Sparse, 1 << 40, 9));
    assert_eq!((new.chunksize(), new.nchunks()), (1 << 20, Some(1 << 20)));
}

#[test]
fn a_header_with_another_layout_is_the_twins() {
    let mut twins = 0;
    for sframe in all().into_iter().filter(|real| real.name.starts_with("sframe/")) {
        let cframe = real(&sframe.name.replace("sframe/", "cframe/"));
        let (mut from, to) = (header_of(&cframe.bytes), header_of(&sframe.bytes));
        from.set_layout(Layout::Sparse);
        from.set_frame_len(to.frame_len());
        from.set_cbytes(to.cbytes());
        assert_eq!(from, to, "{}", sframe.name);
        assert_eq!(parse(&cframe.bytes).unwrap().trailer, parse(&sframe.bytes).unwrap().trailer, "{}", sframe.name);
        twins += 1;
    }
    assert!(twins > 10, "only {twins}");
}

/// A chunk's bytes by what the index says: from the end of the header on, or from the file of that id.
fn stored_chunk(real: &Real, parsed: &Parsed, place: u64) -> Vec<u8> {
    match parsed.header.layout() {
        Layout::Sparse => fs::read(real.path.join(format!("{}.chunk", ChunkId(place as u32)))).unwrap(),
        Layout::Contiguous => {
            let chunk = &real.bytes[(parsed.sections.chunks.start + place) as usize..parsed.sections.chunks.end as usize];
            let header = chunk::ChunkHeader::parse(chunk).unwrap();
            chunk[..header.cbytes as usize].to_vec()
        }
    }
}

fn special_data(special: Special, header: &FrameHeader, len: usize) -> Vec<u8> {
    match (special, header.typesize()) {
        (Special::Nan, 4) => f32::NAN.to_le_bytes().repeat(len / 4),
        (Special::Nan, 8) => f64::NAN.to_le_bytes().repeat(len / 8),
        (Special::Nan, typesize) => panic!("NaN of {typesize} bytes"),
        (Special::Zeros | Special::Uninit, _) => vec![0; len],
    }
}

#[test]
fn indexes_and_chunks_decode_to_what_the_library_reads() {
    for columns in expected() {
        let [name, nchunks, nbytes, index_crc, data_crc]: [String; 5] = columns.try_into().unwrap();
        let real = real(&name);
        let parsed = parse(&real.bytes).unwrap();
        assert_eq!(parsed.entries.len().to_string(), nchunks, "{name}");
        let raw = parsed.entries.iter().flat_map(|entry| match entry {
            IndexEntry::Stored(place) => place.to_le_bytes(),
            IndexEntry::Special(Special::Zeros) => (0x81u64 << 56).to_le_bytes(),
            IndexEntry::Special(Special::Nan) => (0x82u64 << 56).to_le_bytes(),
            IndexEntry::Special(Special::Uninit) => (0x84u64 << 56).to_le_bytes(),
        });
        assert_eq!(format!("{:08x}", crc32(0, &raw.collect::<Vec<_>>())), index_crc, "{name}: index");

        let (mut crc, mut total) = (0, 0);
        for (position, entry) in parsed.entries.iter().enumerate() {
            let rest = parsed.header.nbytes() as usize - total;
            let data = match *entry {
                IndexEntry::Stored(place) => {
                    let bytes = stored_chunk(&real, &parsed, place);
                    let decoded = chunk::check(&bytes).and_then(|header| chunk::decode(&bytes, header.nbytes as usize));
                    decoded.unwrap_or_else(|error| panic!("{name}: chunk {position}: {error}"))
                }
                IndexEntry::Special(special) => {
                    special_data(special, &parsed.header, rest.min(parsed.header.chunksize() as usize))
                }
            };
            total += data.len();
            if *entry != IndexEntry::Special(Special::Uninit) {
                crc = crc32(crc, &data);
            }
        }
        assert_eq!(total.to_string(), nbytes, "{name}");
        assert_eq!(format!("{crc:08x}"), data_crc, "{name}: data");
    }
}

#[test]
fn indexes_encode_to_the_same_bytes() {
    for real in all() {
        let parsed = parse(&real.bytes).unwrap();
        let offsets = parsed.entries.iter().map(|entry| entry.map(ChunkOffset::new));
        let encoded = index::encode(offsets).unwrap();
        assert_eq!(encoded, slice(&real.bytes, &parsed.sections.index), "{}", real.name);
    }
}

#[test]
fn an_index_like_another_is_encoded_to_the_same_bytes_for_less_work_and_decoded_to_the_same_entries() {
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    // Offsets of chunks of one length, of varying lengths, and such as do not compress at all.
    for (kind, spread) in [0, 500, 1 << 40].into_iter().enumerate() {
        let mut end = 0;
        let mut entry = |random: &mut dyn FnMut(u64) -> u64| match random(20) {
            0 if kind != 2 => IndexEntry::Special(Special::Zeros),
            _ => {
                end += 400 + if spread > 0 { random(spread) } else { 0 };
                IndexEntry::Stored(ChunkOffset::new(end % (1 << 50)))
            }
        };
        let mut old: Vec<_> = std::iter::repeat_with(|| entry(&mut random)).take(20_000).collect();
        old[0] = IndexEntry::Stored(ChunkOffset::new(7));
        let mut chunk = index::encode(old.iter().copied()).unwrap();
        for round in 0..60 {
            let mut new = old.clone();
            match round % 4 {
                0 => {
                    let more = random(3000) as usize;
                    new.extend(std::iter::repeat_with(|| entry(&mut random)).take(more));
                }
                1 => new.truncate(new.len() - random(2500) as usize),
                _ => {}
            }
            for _ in 0..random(3) {
                let at = random(new.len() as u64 - 1) as usize + 1;
                new[at] = entry(&mut random);
            }
            let asked = std::cell::Cell::new(0);
            let entries = |stretch: std::ops::Range<usize>| {
                asked.set(asked.get() + stretch.len());
                new[stretch].iter().copied()
            };
            let same = |stretch: std::ops::Range<usize>| old[stretch.clone()] == new[stretch];
            let made = index::encode_like(new.len(), entries, Some(index::Before { chunk: &chunk, same: &same })).unwrap();
            assert_eq!(made, index::encode(new.iter().copied()).unwrap(), "kind {kind}, round {round}");
            assert!(kind == 2 || asked.get() <= 1 + 6 * 2048, "{} of {} entries", asked.get(), new.len());
            let decoded = |bytes: &[u8]| index::decode_like(bytes, Some(new.len() as u64), &chunk, &old);
            assert_eq!(decoded(&made).unwrap(), new, "kind {kind}, round {round}");
            for _ in 0..3 {
                let mut broken = made.clone();
                let at = random(made.len() as u64) as usize;
                broken[at] ^= 1 << random(8);
                assert_eq!(decoded(&broken), index::decode(&broken, Some(new.len() as u64)), "byte {at} of round {round}");
            }
            (old, chunk) = (new, made);
        }
    }
}

#[test]
fn an_index_is_never_larger_than_it_must_be() {
    let nans = |count: usize| (0..count).map(|_| IndexEntry::<ChunkOffset>::Special(Special::Nan));
    let encoded = index::encode(nans(1_000_000)).unwrap();
    assert_eq!(encoded.len(), 40);
    assert!(index::decode::<ChunkOffset>(&encoded, Some(1_000_000)).unwrap().into_iter().eq(nans(1_000_000)));
    // What is announced is compared before anything is decoded, and counted before anything is built.
    assert_eq!(index::decode::<ChunkOffset>(&encoded, Some(3)).unwrap_err().field, "index: nbytes");
    assert_eq!(index::encode(nans(index::MAX_ENTRIES as usize + 1)).unwrap_err().field, "index: nbytes");
}

#[test]
fn few_bytes_do_not_unfold_to_gibibytes() {
    let nans = (0..2).map(|_| IndexEntry::<ChunkOffset>::Special(Special::Nan));
    let mut run = index::encode(nans).unwrap();
    assert_eq!(run.len(), 40);
    for (count, refused) in [(1 << 20, false), (index::MOST_UNFOLDED + 1, true), (index::MAX_ENTRIES, true)] {
        run[4..8].copy_from_slice(&(count as u32 * 8).to_le_bytes());
        for expected in [Some(count), None] {
            match index::decode::<ChunkOffset>(&run, expected) {
                Ok(entries) => assert!(!refused && entries.len() as u64 == count),
                Err(error) => assert!(refused && error.field == "index: nbytes", "{error}"),
            }
        }
    }
}

/// A frame that has bytes, in chunks that vary in size, has a chunk; without this its index file came out without an index.
#[test]
fn an_index_of_no_chunks_is_none() {
    let none = chunk::encode(&[]).unwrap();
    assert_eq!(chunk::check(&none).unwrap().nbytes, 0);
    assert_eq!(index::decode::<ChunkId>(&none, None).unwrap_err().field, "index: nbytes");
    assert_eq!(index::decode::<ChunkId>(&[], Some(0)), Ok(vec![]));
}

/// What holds for every refusal: one line that names a field and a place.
fn assert_clear(error: &Error, context: &str) {
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() < 200, "{context}: {line}");
    assert!(line.contains(&format!("at byte {}: found ", error.offset)), "{context}: {line}");
    assert!(!error.field.is_empty() && !error.got.is_empty() && !error.expected.is_empty(), "{context}: {line}");
}

#[test]
fn every_truncation_of_every_part_is_refused() {
    for real in small() {
        let parsed = parse(&real.bytes).unwrap();
        let refused = |part: &str, len: usize, error: Option<Error>| {
            let context = format!("{}: {part} cut at {len}", real.name);
            assert_clear(&error.unwrap_or_else(|| panic!("{context} parses")), &context);
        };
        for len in 0..parsed.header.header_len() as usize {
            refused("header", len, FrameHeader::parse(&real.bytes[..len]).err());
        }
        let trailer = parsed.trailer.as_bytes();
        for len in 0..trailer.len() {
            refused("trailer", len, Trailer::parse(&trailer[..len]).err());
            refused("trailer", len, Trailer::parse(&trailer[trailer.len() - len..]).err());
        }
        refused("trailer", 2, Trailer::parse(&[trailer, trailer].concat()).err());
        let index = slice(&real.bytes, &parsed.sections.index);
        for len in 0..index.len() {
            let nchunks = parsed.header.nchunks();
            refused("index", len, index::decode::<ChunkOffset>(&index[..len], nchunks).err());
            refused("index", len, index::decode::<ChunkOffset>(&index[..len], None).err());
        }
    }
}

#[test]
fn no_changed_byte_panics_and_refusals_are_clear() {
    let (mut refused, mut taken) = (0, 0);
    for real in small() {
        let chunks = parse(&real.bytes).unwrap().sections.chunks;
        let mut bytes = real.bytes.clone();
        for at in (0..bytes.len()).filter(|at| !chunks.contains(&(*at as u64))) {
            let old = bytes[at];
            for new in [0, 0x7f, 0xff, old ^ 1, old ^ 0x80, old.wrapping_add(1), old.wrapping_sub(1)] {
                bytes[at] = new;
                match parse(&bytes) {
                    Ok(_) => taken += 1,
                    Err(error) => {
                        assert_clear(&error, &format!("{}: byte {at} from {old:#x} to {new:#x}", real.name));
                        refused += 1;
                    }
                }
            }
            bytes[at] = old;
        }
    }
    assert!(refused > 10_000 && taken > 1_000, "{refused} refused, {taken} taken");
}

/// Changes `value` at `at` (from the end, if negative) in a frame, which must then be refused for `field` at `offset`.
struct Lie {
    frame: &'static str,
    at: i64,
    value: Vec<u8>,
    field: &'static str,
    offset: u64,
}

fn lie(frame: &'static str, at: i64, value: impl AsRef<[u8]>, field: &'static str, offset: u64) -> Lie {
    Lie { frame, at, value: value.as_ref().to_vec(), field, offset }
}

#[test]
fn lies_are_refused_with_field_and_place() {
    const LZ4: &str = "cframe/codec-lz4.b2frame";
    const META: &str = "cframe/metalayers.b2frame";
    const EMPTY: &str = "cframe/empty.b2frame";
    const MANY: &str = "cframe/chunks-2500.b2frame";
    const VARYING: &str = "cframe/varying.b2frame";
    let lz4 = parse(&real(LZ4).bytes).unwrap();
    let meta = parse(&real(META).bytes).unwrap();
    let index_at = lz4.sections.index.start;
    let vl_at = meta.sections.trailer.start as i64;
    let frame_len = lz4.header.frame_len();
    let many = parse(&real(MANY).bytes).unwrap().sections.index;
    let (many_at, many_len) = (many.start, (many.end - many.start) as i32);
    let varying_at = parse(&real(VARYING).bytes).unwrap().sections.index.start;
    let be = |value: i64| value.to_be_bytes();
    let lies = [
        lie(LZ4, 2, b"b2fram\n", "header: magic", 2),
        lie(LZ4, 11, (-1i32).to_be_bytes(), "header: header_len", 11),
        lie(LZ4, 11, 93i32.to_be_bytes(), "header: header_len", 11),
        lie(LZ4, 11, i32::MAX.to_be_bytes(), "header: header_len", 11),
        lie(LZ4, 16, be(-1), "header: frame_len", 16),
        lie(LZ4, 16, be(118), "header: frame_len", 16),
        lie(LZ4, 16, be(i64::MAX), "header: frame_len", 16),
        lie(LZ4, 25, [0x14], "header: version", 25),
        lie(LZ4, 26, [2], "header: frame type", 26),
        lie(LZ4, 30, be(-1), "header: nbytes", 30),
        lie(LZ4, 30, be(i64::MAX), "header: nbytes", 30),
        lie(LZ4, 30, be(2048 * index::MAX_ENTRIES as i64 + 1), "header: nbytes", 30),
        lie(LZ4, 30, be(2048 * index::MAX_ENTRIES as i64), "index: nbytes", 4),
        lie(LZ4, 30, be(0), "header: frame_len", 16),
        lie(LZ4, 30, be(2048 * 9), "index: nbytes", 4),
        lie(LZ4, 39, be(-1), "header: cbytes", 39),
        lie(LZ4, 39, be(i64::MAX), "header: cbytes", 39),
        lie(LZ4, 39, be(frame_len as i64), "header: cbytes", 39),
        lie(LZ4, 39, be(lz4.header.cbytes() as i64 + 60), "header: frame_len", 16),
        lie(LZ4, 48, 0i32.to_be_bytes(), "header: typesize", 48),
        lie(LZ4, 48, (-4i32).to_be_bytes(), "header: typesize", 48),
        lie(LZ4, 58, (-1i32).to_be_bytes(), "header: chunksize", 58),
        lie(LZ4, 58, 1i32.to_be_bytes(), "index: nbytes", 4),
        lie(LZ4, 70, [7], "header: number of filters", 70),
        lie(LZ4, index_at as i64 + 12, 71i32.to_le_bytes(), "index", 12),
        lie(LZ4, index_at as i64 + 3, [0], "index", 3),
        lie(LZ4, index_at as i64 + 3, [4], "index: typesize", 3),
        lie(MANY, many_at as i64 + 12, (many_len + 1).to_le_bytes(), "index: cbytes", 12),
        lie(MANY, many_at as i64 + 4, 20_008i32.to_le_bytes(), "index: nbytes", 4),
        lie(VARYING, varying_at as i64 + 4, 49i32.to_le_bytes(), "index", 12),
        lie(LZ4, index_at as i64 + 32 + 8, (lz4.header.cbytes() - 31).to_le_bytes(), "index: entry", 8),
        lie(LZ4, index_at as i64 + 32 + 16 + 7, [0x7f], "index: entry", 16),
        lie(LZ4, index_at as i64 + 32 + 24 + 7, [0x83], "index: entry", 24),
        lie(LZ4, -22, 24u32.to_be_bytes(), "trailer: trailer_len", frame_len - 22),
        lie(LZ4, -22, 34u32.to_be_bytes(), "trailer: vlmetalayers", 6),
        lie(LZ4, -22, u32::MAX.to_be_bytes(), "trailer: trailer_len", frame_len - 22),
        lie(LZ4, -22, (frame_len as u32).to_be_bytes(), "trailer: trailer_len", frame_len - 22),
        lie(LZ4, -23, [0xcd], "trailer: mark of trailer_len", frame_len - 23),
        lie(EMPTY, -22, 36u32.to_be_bytes(), "trailer: trailer_len", 132 - 22),
        lie(META, 91, [0xdf], "header: metalayers", 91),
        lie(META, 92, 17u16.to_be_bytes(), "header: number of metalayers", 92),
        lie(META, 94, [0xc0], "header: metalayer name", 94),
        lie(META, 96, [0xd3], "header: metalayer offset", 96),
        lie(META, 97, (-1i32).to_be_bytes(), "header: metalayer offset", 97),
        lie(META, 97, i32::MAX.to_be_bytes(), "header: metalayer offset", 97),
        lie(META, 97, meta.header.header_len().to_be_bytes(), "header: metalayer offset", 97),
        lie(META, 97, 88u32.to_be_bytes(), "header: metalayer content", 88),
        lie(META, vl_at + 6, [0x80], "trailer: vlmetalayers", 6),
        lie(META, vl_at + 7, 8193u16.to_be_bytes(), "trailer: number of vlmetalayers", 7),
        lie(META, vl_at + 7, 17u16.to_be_bytes(), "trailer: vlmetalayer name", 361),
        lie(META, vl_at + 12, (-1i32).to_be_bytes(), "trailer: vlmetalayer offset", 12),
    ];
    for Lie { frame, at, value, field, offset } in lies {
        let mut bytes = real(frame).bytes;
        let at = if at < 0 { bytes.len() - at.unsigned_abs() as usize } else { at as usize };
        bytes[at..][..value.len()].copy_from_slice(&value);
        let context = format!("{frame} with {value:02x?} at {at}");
        let error = parse(&bytes).err().unwrap_or_else(|| panic!("{context} parses"));
        assert_clear(&error, &context);
        assert_eq!((error.field, error.offset), (field, offset), "{context}: {error}");
    }
}

/// A content length that runs past the end, from the last place where contents stand.
#[test]
fn contents_must_end_within_their_part() {
    let real = real("cframe/metalayers.b2frame");
    let parsed = parse(&real.bytes).unwrap();
    let last = parsed.header.metalayers().last().unwrap().content.len() as u32;
    let at = parsed.header.header_len() as usize - last as usize - 4;
    for len in [last + 1, i32::MAX as u32, u32::MAX] {
        let mut bytes = real.bytes.clone();
        bytes[at..at + 4].copy_from_slice(&len.to_be_bytes());
        let error = parse(&bytes).unwrap_err();
        assert_eq!(error.field, "header: metalayer content", "{error}");
    }
}

#[test]
fn what_the_library_tolerates_opens() {
    // Old versions; markers, sizes of maps and counts of arrays that nobody reads; contents that share bytes.
    let real = real("cframe/metalayers.b2frame");
    for (at, value) in [(25, 0x10), (25, 0x11), (0, 0x9d), (10, 0), (38, 0), (68, 0), (87, 0), (89, 9), (90, 9)] {
        let mut bytes = real.bytes.clone();
        bytes[at] = value;
        let parsed = parse(&bytes).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(parsed.header.as_bytes(), &bytes[..parsed.header.header_len() as usize]);
    }
    let mut bytes = real.bytes.clone();
    let first: [u8; 4] = bytes[97..101].try_into().unwrap();
    // The second metalayer's name has three bytes.
    bytes[106..110].copy_from_slice(&first);
    let header = header_of(&bytes);
    let contents: Vec<_> = header.metalayers().take(2).map(|layer| layer.content).collect();
    assert_eq!(contents[0], contents[1]);
}

fn any_fields() -> impl Strategy<Value = HeaderFields> {
    let sizes = (1 << 20..1u64 << 40, 0..1u64 << 40, 1..1u32 << 31, any::<i32>(), 1 << 20..i32::MAX);
    let coding = (0..4u8, 0..16u8, 0..16u8, 1..5u8, any::<[u8; 6]>(), any::<[u8; 6]>(), any::<(u8, u8)>());
    (sizes, coding, any::<(i16, i16)>(), any::<[bool; 5]>()).prop_map(|(sizes, coding, nthreads, flags)| HeaderFields {
        frame_len: sizes.1 + (1 << 30),
        version: coding.0,
        varying_chunks: flags[0],
        vl_blocks: flags[1],
        layout: if flags[2] { Layout::Sparse } else { Layout::Contiguous },
        codec: coding.1,
        clevel: coding.2,
        split_mode: coding.3,
        nbytes: sizes.0,
        cbytes: sizes.1,
        typesize: sizes.2,
        blocksize: sizes.3,
        chunksize: sizes.4,
        nthreads_compress: nthreads.0,
        nthreads_decompress: nthreads.1,
        has_vlmetalayers: flags[3],
        filters: coding.4,
        filters_meta: coding.5,
        user_codec: coding.6.0,
        codec_meta: coding.6.1,
        use_dict: flags[4],
    })
}

fn any_metalayers(count: usize) -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
    vec((vec(any::<u8>(), 0..32), vec(any::<u8>(), 0..300)), 0..=count)
}

fn borrowed(metalayers: &[(Vec<u8>, Vec<u8>)]) -> Vec<Metalayer<'_>> {
    metalayers.iter().map(|(name, content)| Metalayer { name, content }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_is_encoded_is_parsed(fields in any_fields(), own in any_metalayers(16), vl in any_metalayers(300)) {
        let header = FrameHeader::encode(&fields, &borrowed(&own)).unwrap();
        let parsed = FrameHeader::parse(&[header.as_bytes(), b"chunks"].concat());
        prop_assert_eq!(parsed.as_ref(), Ok(&header));
        prop_assert_eq!(header.fields(), fields);
        prop_assert_eq!(header.metalayers().collect::<Vec<_>>(), borrowed(&own));
        let trailer = Trailer::encode(&borrowed(&vl)).unwrap();
        prop_assert_eq!(trailer.vlmetalayers().collect::<Vec<_>>(), borrowed(&vl));
    }

    #[test]
    fn bytes_of_any_kind_do_not_panic(
        name in proptest::sample::select(vec!["moved", "metalayers", "varying", "special", "emptied", "fill-nan"]),
        changes in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut bytes = real(&format!("cframe/{name}.b2frame")).bytes;
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Err(error) = parse(&bytes) {
            assert_clear(&error, name);
        }
    }
}

#[test]
fn what_does_not_fit_is_not_encoded() {
    let layer = |name| Metalayer { name, content: b"" };
    let fields = header_of(&real("cframe/empty.b2frame").bytes).fields();
    let refused = |result: Result<FrameHeader>| result.unwrap_err().field;
    assert_eq!(refused(FrameHeader::encode(&fields, &[layer(b"n"); 17])), "header: number of metalayers");
    assert_eq!(refused(FrameHeader::encode(&fields, &[layer(&[b'n'; 32])])), "header: metalayer name");
    assert_eq!(refused(FrameHeader::encode(&HeaderFields { typesize: 0, ..fields.clone() }, &[])), "header: typesize");
    assert_eq!(refused(FrameHeader::encode(&HeaderFields { frame_len: 100, ..fields }, &[])), "header: frame_len");
    let refused = |result: Result<Trailer>| result.unwrap_err().field;
    assert_eq!(refused(Trailer::encode(&[layer(b"n"); 8193])), "trailer: number of vlmetalayers");
    assert_eq!(refused(Trailer::encode(&[layer(&[b'n'; 32])])), "trailer: vlmetalayer name");
    // The map of 8192 names is measured by 16 bits: C-Blosc2 could not write it either.
    assert_eq!(refused(Trailer::encode(&[layer(b"nn"); 8192])), "trailer: vlmetalayers");
    assert!(Trailer::encode(&[layer(b"n"); 8192]).is_ok());
}
