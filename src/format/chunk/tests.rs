//! Pinned chunks of C-Blosc2 3.3.5 (`tests/python/make_codec_matrix.py` makes the many others that `tests/codec_matrix.rs` reads).

use proptest::{collection::vec, prelude::*};

use super::super::Special;
use super::super::registry::{CodecId, FilterId, Plugin};
use super::*;

/// An index of `n` entries as bytes.
fn index(n: u64, entry: impl Fn(u64) -> u64) -> Vec<u8> {
    (0..n).flat_map(|i| entry(i).to_le_bytes()).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
    hex.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Indexes and the chunks that the library makes of them.
fn pinned() -> Vec<(Vec<u8>, Vec<u8>)> {
    vec![
        (vec![], bytes("0501070800000000004000002000000000000000000100000000000000000000")),
        (index(1, |_| 0), bytes("05010708080000000800000028000000000000000001000000000000000000000000000000000000")),
        (
            index(4, |i| i * 1000),
            bytes(
                "05011708200000002000000040000000000000000001000000000000000000000000000000000000e803000000000000d007000000000000b80b000000000000",
            ),
        ),
        (index(4, |_| 0), bytes("0501150820000000200000002000000000000000000100000000000000000010")),
        (
            index(6, |_| 0x0101_0101_0101_0101),
            bytes("050115083000000030000000290000000000000000010000000000000000000024000000ffffffff01"),
        ),
        (
            index(20, |i| i),
            bytes(
                "05011508a0000000a00000004500000000000000000100000000000000000000240000001d00000034000102030405060708090a0b0c0d0e0f1011121300e07f0002000000",
            ),
        ),
        (
            index(64, |_| 0x81 << 56),
            bytes(
                "0501150800020000000200003b0000000000000000010000000000000000000024000000130000002300000000e0ffb303010081e0330002818181",
            ),
        ),
    ]
}

#[test]
fn indexes_encode_to_the_library_s_bytes_and_decode() {
    for (items, chunk) in pinned() {
        assert_eq!(encode(&items).unwrap(), chunk, "{} bytes", items.len());
        assert_eq!(decode(&chunk, items.len()).unwrap(), items, "{} bytes", items.len());
        assert_eq!(check(&chunk).unwrap().nbytes as usize, items.len());
    }
}

/// A line of `pinned.txt`: its name, what the chunk holds and the chunk.
struct Pinned {
    name: &'static str,
    data: Vec<u8>,
    chunk: Vec<u8>,
}

/// One chunk of each kind, made by the library (`tests/python/make_pinned_chunks.py`).
fn kinds() -> Vec<Pinned> {
    let line = |line: &'static str| {
        let fields: Vec<_> = line.split(' ').collect();
        let [name, kind, typesize, nbytes, chunk] = fields[..] else { panic!("{line}") };
        let (typesize, nbytes): (usize, usize) = (typesize.parse().unwrap(), nbytes.parse().unwrap());
        let item = |i: usize| -> Vec<u8> {
            let mut item = vec![0; typesize];
            match kind {
                "ramp" => {
                    item[..2].copy_from_slice(&(3 * i as u16).to_le_bytes());
                    item[typesize - 1] += 0x40;
                }
                "value" => item.iter_mut().zip(1..).for_each(|(byte, value)| *byte = value),
                "nan" => item[typesize - 2..].copy_from_slice(&[0xf8, 0x7f]),
                _ => {}
            }
            item
        };
        Pinned { name, data: (0..nbytes / typesize).flat_map(item).collect(), chunk: bytes(chunk) }
    };
    include_str!("pinned.txt").lines().map(line).collect()
}

/// The pieces of a chunk put together.
fn in_pieces(decoder: &mut Decoder, chunk: &[u8]) -> crate::format::Result<Vec<u8>> {
    let mut all = Vec::new();
    decoder.decode_pieces(chunk, usize::MAX, |piece| {
        all.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(all)
}

#[test]
fn each_kind_of_chunk_decodes() {
    let kinds = kinds();
    assert_eq!(kinds.len(), 43);
    let mut decoder = Decoder::default();
    // A buffer full of something else must not shine through.
    let mut out = vec![0xaa; 10_000];
    for Pinned { name, data, chunk } in kinds {
        let header = check(&chunk).unwrap();
        assert_eq!((header.nbytes as usize, header.cbytes as usize), (data.len(), chunk.len()), "{name}");
        assert_eq!(header, ChunkHeader::parse(&chunk[..chunk.len().min(ChunkHeader::LEN)]).unwrap(), "{name}");
        assert_eq!(decode(&chunk, data.len()).unwrap(), data, "{name}");
        decoder.decode_into(&chunk, data.len(), &mut out).unwrap();
        assert_eq!(out, data, "{name}, in a used buffer");
        assert_eq!(in_pieces(&mut decoder, &chunk).unwrap(), data, "{name}, in pieces");
        assert_eq!(decoder.verify(&chunk), Ok(header), "{name}");
        out.fill(0xaa);
        out.resize(10_000, 0xaa);
    }
}

#[test]
fn special_values_are_told() {
    for (name, special) in [
        ("zeros", Some(Special::Zeros)),
        ("nans", Some(Special::Nan)),
        ("uninit", Some(Special::Uninit)),
        ("repeatval", None),
        ("copy", None),
    ] {
        let pinned = kinds().into_iter().find(|pinned| pinned.name == name).unwrap();
        assert_eq!(ChunkHeader::parse(&pinned.chunk).unwrap().special, special, "{name}");
    }
}

/// Changes a pinned chunk and says what the decoder makes of it.
fn spoil(name: &str, change: impl Fn(&mut Vec<u8>)) -> String {
    let mut chunk = kinds().into_iter().find(|pinned| pinned.name == name).unwrap().chunk;
    change(&mut chunk);
    decode(&chunk, 1 << 20).unwrap_err().to_string()
}

#[test]
fn errors_say_field_offset_got_and_expected() {
    for (name, at, value, message) in [
        ("lz4-shuffle", 3, &[0_u8][..], "chunk: typesize at byte 3: found 0, expected 1 to 255"),
        ("lz4-shuffle", 7, &[0x80], "chunk: nbytes at byte 4: found -2147481688, expected a size that is not negative"),
        ("zeros", 6, &[0x20], "chunk: nbytes at byte 4: found 2097952, expected at most 1048576"),
        (
            "lz4-shuffle",
            6,
            &[0x20],
            "chunk: cbytes at byte 12: found 645, expected at least 10528, the header and the starts of 2624 blocks",
        ),
        (
            "copy",
            12,
            &[0x71],
            "chunk: cbytes at byte 12: found 113, expected nbytes 80 and the header of 32, the chunk being a plain copy",
        ),
        ("lz4-shuffle", 31, &[0x50], "chunk: special value at byte 31: found 5, expected 0 to 4"),
        ("lz4-shuffle", 31, &[0x08], "chunk: blosc2 flags at byte 31: found a lazy chunk, expected a stored chunk"),
        (
            "lz4-vl-blocks",
            31,
            &[0x10],
            "chunk: flags2 at byte 30: found a special value with VL-blocks, expected compressed blocks",
        ),
        ("lz4-shuffle", 32, &[0, 0, 0, 0], "chunk: block start at byte 32: found 0, expected 1 to 644, inside the chunk"),
    ] {
        assert_eq!(spoil(name, |chunk| chunk[at..at + value.len()].copy_from_slice(value)), message);
    }
    let message = spoil("lz4-shuffle", |chunk| chunk.truncate(600));
    assert_eq!(message, "chunk: cbytes at byte 12: found 645, expected at most 600, what there is");
    assert_eq!(
        check(&encode(&[1; 80]).unwrap()[..40]).unwrap_err().to_string(),
        "chunk: cbytes at byte 12: found 41, expected 40, the size of the chunk"
    );
}

#[test]
fn plugins_are_named() {
    for (codec, got) in [
        (33, "zfp_acc (33), a plugin codec"),
        (42, "unknown-codec-42 (42), a plugin codec"),
        (200, "user-codec-200 (200), a plugin codec"),
        (7, "7"),
    ] {
        let message = spoil("lz4-shuffle", |chunk| (chunk[2], chunk[22]) = (chunk[2] & 0x1f | 6 << 5, codec));
        assert_eq!(message, format!("chunk: user codec at byte 22: found {got}, expected blosclz, lz4, lz4hc, zlib or zstd"));
    }
    let message = spoil("lz4-shuffle", |chunk| chunk[2] = chunk[2] & 0x1f | 2 << 5);
    assert_eq!(message, "chunk: codec format at byte 2: found 2, expected 0, 1, 3, 4 or 6");
    for (filter, got) in [(35, "bytedelta (35), a plugin filter"), (160, "user-filter-160 (160), a plugin filter"), (9, "9")] {
        let message = spoil("lz4-shuffle", |chunk| chunk[20] = filter);
        assert_eq!(message, format!("chunk: filters at byte 16: found {got}, expected shuffle, bitshuffle, delta or trunc_prec"));
    }
}

/// What is there without the plugin is looked at all the same.
#[test]
fn what_needs_a_plugin_passes_as_far_as_it_can_be_seen() {
    let plain = kinds().into_iter().find(|pinned| pinned.name == "zstd-shuffle").unwrap().chunk;
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut chunk = plain.clone();
        change(&mut chunk);
        (Decoder::default().verify(&chunk).map(|header| header.plugin()), decode(&chunk, 1 << 20).is_ok())
    };
    let codec = |chunk: &mut Vec<u8>| (chunk[2], chunk[22]) = (chunk[2] & 0x1f | 6 << 5, 34);
    assert_eq!(with(&|_| ()), (Ok(None), true));
    assert_eq!(with(&codec), (Ok(Some(Plugin::Codec(CodecId(34)))), false));
    assert_eq!(with(&|chunk| chunk[20] = 36), (Ok(Some(Plugin::Filter(FilterId(36)))), false));
    // A stream that leads out of the chunk is damage whatever made it; one that does not decode is, if the codec is known.
    let length = |chunk: &mut Vec<u8>| {
        let start = u32::from_le_bytes(*chunk[32..].first_chunk().unwrap()) as usize;
        chunk[start + 1] = 0x7f;
    };
    let broken = |chunk: &mut Vec<u8>| {
        let mark = chunk.windows(4).position(|bytes| bytes == [0x28, 0xb5, 0x2f, 0xfd]).unwrap();
        chunk[mark] = 0;
    };
    assert!(with(&|chunk| (codec(chunk), length(chunk)).1).0.is_err());
    assert!(with(&|chunk| (chunk[20] = 36, length(chunk)).1).0.is_err());
    assert!(with(&|chunk| (chunk[20] = 36, broken(chunk)).1).0.is_err());
    assert!(with(&|chunk| (codec(chunk), broken(chunk)).1).0.is_ok());
}

#[test]
fn a_chunk_is_exactly_as_long_as_it_says() {
    for Pinned { name, mut chunk, .. } in kinds() {
        chunk.push(0);
        assert!(check(&chunk).is_err(), "{name} with a byte more");
        for len in 0..chunk.len() - 1 {
            assert!(check(&chunk[..len]).is_err(), "{name} cut to {len}");
            assert!(decode(&chunk[..len], 1 << 20).is_err(), "{name} cut to {len}");
        }
    }
}

#[test]
fn no_change_of_a_byte_does_harm() {
    let limit = 64 << 10;
    let mut decoder = Decoder::default();
    let (mut refused, mut other) = (0, 0);
    for Pinned { name, data, chunk } in kinds() {
        for at in 0..chunk.len() {
            for change in [0x01, 0x90] {
                let mut changed = chunk.clone();
                changed[at] ^= change;
                let checked = check(&changed);
                let verified = decoder.verify(&changed);
                match decoder.decode(&changed, limit) {
                    Ok(decoded) => {
                        assert_eq!(in_pieces(&mut decoder, &changed).as_ref(), Ok(&decoded), "{name} at {at}, in pieces");
                        assert_eq!(verified, checked, "{name} at {at}");
                        assert!(decoded.len() <= limit, "{name} at {at}");
                        assert!(changed.len() != chunk.len() || checked.is_ok() || at / 4 == 3, "{name} at {at}: {checked:?}");
                        other += usize::from(decoded != data);
                    }
                    Err(error) => {
                        if ChunkHeader::parse(&changed).is_ok_and(|header| header.nbytes as usize <= limit) {
                            assert_eq!(in_pieces(&mut decoder, &changed), Err(error), "{name} at {at}, in pieces");
                        }
                        refused += 1;
                    }
                }
            }
        }
        // A state left behind by bad streams must not spoil good ones.
        assert_eq!(decoder.decode(&chunk, limit).unwrap(), data, "{name}");
    }
    assert!(refused > 5000 && other > 1000, "{refused} refused, {other} other");
}

/// What the library itself once read beyond its buffers for, and the like.
#[test]
fn known_kinds_of_damage() {
    const SIZE: &str = "a size that is not negative";
    for (name, at, value, message) in [
        ("lz4-shuffle", 8, [0; 4], "chunk: blocksize at byte 8: found 0, expected 1 to 536866816"),
        ("lz4-shuffle", 8, [0xff; 4], &format!("chunk: blocksize at byte 8: found -1, expected {SIZE}")),
        ("lz4-shuffle", 12, [0xff; 4], &format!("chunk: cbytes at byte 12: found -1, expected {SIZE}")),
        (
            "lz4-shuffle",
            12,
            [0xff, 0xff, 0xff, 0x7f],
            "chunk: cbytes at byte 12: found 2147483647, expected at most 645, what there is",
        ),
        ("lz4-shuffle", 4, [0xff; 4], &format!("chunk: nbytes at byte 4: found -1, expected {SIZE}")),
        ("lz4-shuffle", 32, [0xff; 4], "chunk: block start at byte 32: found -1, expected 1 to 644, inside the chunk"),
        (
            "lz4-shuffle",
            32,
            [0xff, 0xff, 0xff, 0x7f],
            "chunk: block start at byte 32: found 2147483647, expected 1 to 644, inside the chunk",
        ),
    ] {
        let change = |chunk: &mut Vec<u8>| chunk[at..at + 4].copy_from_slice(&value);
        assert_eq!(spoil(name, change), message);
    }
    let message = spoil("lz4-vl-blocks", |chunk| {
        let (first, second) = chunk[32..40].split_at_mut(4);
        first.swap_with_slice(second);
    });
    assert!(message.starts_with("chunk: block start at byte 32"), "VL-block starts out of order: {message}");
}

#[test]
fn a_length_beyond_32_bits_is_not_a_small_one() {
    // A match whose length is 2 + 7 + 255 for each byte: together 2^32 + 8, which 32 bits would take for 8.
    let mut stream = vec![0, b'x', 7 << 5];
    stream.resize(stream.len() + (1 << 32) / 255, 255);
    stream.extend([0, 0, 0, b'y']);
    assert_eq!(blosclz::decompress(&stream, &mut [0; 64]), None);
    assert_eq!(blosclz::decompress(&[0, b'x', 7 << 5, 1, 0, 0, b'y'], &mut [0; 64]), Some(12), "the same, and short");
}

#[test]
fn absurd_sizes_are_refused() {
    // All that a header can claim, on 36 bytes: were it believed, these would be 2 GiB each.
    for flags in [0x05, 0x07, 0x15, 0x25, 0x01, 0x21] {
        for blosc2_flags in [0x00, 0x10, 0x30, 0x01] {
            for vl in [0, 1] {
                let mut chunk = vec![5, 1, flags, 4];
                chunk.extend(0x7fff_fff0_u32.to_le_bytes());
                chunk.extend(0x1fff_f000_u32.to_le_bytes());
                chunk.extend(36_u32.to_le_bytes());
                chunk.extend([0; 14]);
                chunk.extend([vl, blosc2_flags, 36, 0, 0, 0]);
                assert!(decode(&chunk, 1 << 20).is_err());
            }
        }
    }
}

#[test]
fn filters_are_undone_in_every_size() {
    for typesize in (1..=20_usize).chain([24, 31, 64, 255]) {
        for len in
            (0..300).step_by(typesize.div_ceil(4)).chain([typesize * 128, typesize * 129 + 1, typesize * 300 + typesize / 2])
        {
            let src: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            let (items, mut dst) = (len / typesize, vec![0xaa; len]);
            filters::unshuffle(typesize, &src, &mut dst);
            for (at, byte) in dst.iter().enumerate() {
                let from = if at < items * typesize { at % typesize * items + at / typesize } else { at };
                assert_eq!(*byte, src[from], "unshuffle {typesize}, byte {at} of {len}");
            }
            let mut planes = vec![0; len];
            filters::bitunshuffle(typesize, 5, &src, &mut dst, &mut planes);
            let eights = items / 8 * 8;
            for (at, byte) in dst.iter().enumerate() {
                let (item, plane) = (at / typesize, at % typesize);
                let bit = |bit: usize| src[(plane * 8 + bit) * (eights / 8) + item / 8] >> (item % 8) & 1;
                let expected = if item < eights { (0..8).map(|n| bit(n) << n).sum() } else { src[at] };
                assert_eq!(*byte, expected, "bitunshuffle {typesize}, byte {at} of {len}");
            }
        }
    }
}

/// Bytes with matches of all distances and lengths: pieces that are new, or repeat what stands some way before.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = (vec(any::<u8>(), 0..40), prop_oneof![1_usize..40, 1_usize..3000], prop_oneof![0_usize..80, 0_usize..1500]);
    vec(piece, 0..30).prop_map(|pieces| {
        let mut bytes: Vec<u8> = Vec::new();
        for (new, distance, len) in pieces {
            bytes.extend(new);
            if let Some(from) = bytes.len().checked_sub(distance) {
                (from..from + len).for_each(|at| bytes.push(bytes[at]));
            }
        }
        bytes
    })
}

proptest! {
    #[test]
    fn lz4_decodes_as_another_decoder_does(bytes in pieces(), dictionary in 0_usize..3000, at in any::<usize>(), value in any::<u8>()) {
        let (dictionary, content) = bytes.split_at(dictionary.min(bytes.len()));
        for dictionary in [&[][..], dictionary] {
            let mut stream = lz4_flex::block::compress_with_dict(content, dictionary);
            let (mut ours, mut theirs) = (vec![0xaa; content.len() + 50], vec![0; content.len() + 50]);
            prop_assert_eq!(lz4::decompress(&stream, &mut ours[..content.len()], dictionary), Some(content.len()));
            prop_assert_eq!(&ours[..content.len()], content);
            prop_assert!(ours[content.len()..].iter().all(|byte| *byte == 0xaa));
            if let Some(less) = content.len().checked_sub(1) {
                prop_assert_eq!(lz4::decompress(&stream, &mut ours[..less], dictionary), None);
            }
            // A broken stream is broken to both, or makes the same.
            let at = at % stream.len();
            stream[at] = value;
            let made = lz4::decompress(&stream, &mut ours, dictionary);
            let expected = lz4_flex::block::decompress_into_with_dict(&stream, &mut theirs, dictionary).ok();
            prop_assert_eq!(made, expected, "{:?}", stream);
            if let Some(len) = made {
                prop_assert_eq!(&ours[..len], &theirs[..len]);
            }
        }
    }

    #[test]
    fn every_index_comes_back(entries in prop_oneof![
        vec(any::<u64>(), 0..200),
        vec(0_u64..5000, 0..6000),
        vec(prop_oneof![Just(0), Just(1 << 63 | 1 << 56), 0_u64..1 << 40], 0..3000),
        (vec(0_u64..200_000, 0..5000)).prop_map(|steps| steps.into_iter().scan(0, |at, step| { *at += step; Some(*at) }).collect()),
    ]) {
        let items: Vec<u8> = entries.into_iter().flat_map(u64::to_le_bytes).collect();
        let chunk = encode(&items).unwrap();
        prop_assert!(chunk.len() <= items.len() + ChunkHeader::LEN);
        let header = check(&chunk).unwrap();
        prop_assert_eq!((header.nbytes as usize, header.typesize), (items.len(), 8));
        prop_assert_eq!(decode(&chunk, items.len()).unwrap(), items);
    }

    #[test]
    fn no_bytes_do_harm(mut bytes in vec(any::<u8>(), 0..400), sensible in any::<bool>()) {
        if let (true, Some(head)) = (sensible, bytes.first_chunk_mut::<16>()) {
            // A header that leads on to the streams.
            (head[0], head[3], head[5], head[9]) = (5, head[3] % 16 + 1, head[5] % 4, head[9] % 4);
            for at in [6, 7, 10, 11, 14, 15] {
                head[at] = 0;
            }
            let len = (bytes.len() as u16).to_le_bytes();
            bytes[12..14].copy_from_slice(&len);
        }
        let _ = check(&bytes);
        if let Ok(decoded) = decode(&bytes, 10_000) {
            prop_assert!(decoded.len() <= 10_000);
            prop_assert!(check(&bytes[..ChunkHeader::parse(&bytes).unwrap().cbytes as usize]).is_ok());
        }
    }
}
