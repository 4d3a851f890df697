//! What is encoded comes back, and small chunks are the library's to the byte. (`tests/codec_matrix.rs` compares many more.)

use proptest::{collection::vec, prelude::*};

use super::super::super::Special;
use super::super::super::registry::{CodecId, FilterId};
use super::super::{ChunkHeader, Decoder, check, decode};
use super::*;

/// A pipeline that ends with these filters.
fn pipeline(filters: &[(u8, u8)]) -> [(FilterId, u8); 6] {
    let mut slots = [(FilterId::NONE, 0); 6];
    let start = slots.len() - filters.len();
    for (slot, (id, meta)) in slots[start..].iter_mut().zip(filters) {
        *slot = (FilterId(*id), *meta);
    }
    slots
}

fn params(codec: u8, typesize: u32, blocksize: u32, filters: &[(u8, u8)]) -> Params {
    let filters = pipeline(filters);
    Params { codec: CodecId(codec), level: 5, filters, typesize, blocksize, split: Split::ForwardCompat }
}

fn chunk_of(bytes: &[u8], params: &Params) -> Vec<u8> {
    let mut out = vec![1, 2, 3];
    Encoder::default().encode(bytes, params, &mut out).unwrap();
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Made by C-Blosc2 3.3.5 with one thread.
#[test]
fn chunks_are_the_library_s_to_the_byte() {
    let data: Vec<u8> = (0..100_u32).flat_map(|i| (7 * i).to_le_bytes()).collect();
    for (params, chunk) in [
        (
            params(0, 4, 160, &[(1, 0)]),
            "0501050490010000a000000013010000000000000001000000000000000000002c0000008c000000ec0000002800000000070e151c23\
             2a31383f464d545b626970777e858c939aa1a8afb6bdc4cbd2d9e0e7eef5fc030a112800000000000000000000000000000000000000\
             000000000000000000000000000000000000000000010101000000000000000028000000181f262d343b424950575e656c737a81888f\
             969da4abb2b9c0c7ced5dce3eaf1f8ff060d141b22292800000001010101010101010101010101010101010101010101010101010101\
             0101010101010202020202020000000000000000230000003430373e454c535a61686f767d848b9299a0a7aeb502e00900010200e01b\
             0002000000",
        ),
        (
            params(1, 4, 160, &[(1, 0)]),
            "0501250490010000a0000000df000000000000000001010000000000000000002c0000006f000000b30000002800000000070e151c23\
             2a31383f464d545b626970777e858c939aa1a8afb6bdc4cbd2d9e0e7eef5fc030a110b0000001f0001000f5000000101010000000000\
             00000028000000181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ced5dce3eaf1f8ff060d141b22290c0000001f0101\
             000e60020202020202000000000000000028000000fb0a30373e454c535a61686f767d848b9299a0a7aeb5020202020205001f000100\
             0f500000000000",
        ),
        (
            Params { level: 9, split: Split::Never, ..params(1, 4, 160, &[(2, 0)]) },
            "0501350490010000a0000000d9000000000000000002010000000000000000002c00000068000000a90000003800000010aa01001066\
             0100101e0100f00f54ab54ab54983367cc98e0c3870f1f00fc07f01f0000f8ff1f00000000e005000f0200575000000000003d000000\
             10aa010010660100101e0100f014ab54ab54ab3367cc98333c78f0e0c3c07f00ff030080ffff03ffffffff0300000000fc05000f0200\
             525000000000002c000000ff06aaaa66661e1e54ab67cc870ff80f00f00000ffff00010018f001a0020000a7020000ae020000b50200\
             00",
        ),
        (
            params(2, 4, 400, &[(3, 0), (1, 0)]),
            "05013d0490010000900100008c000000000000000301020000000000000000002400000064000000f0120007091b093f091b0907790b\
             190f390b190709fb091f093b0907190b790f190b39200010ff200050390b190f792000503b091f09fb200055390f190b79400014f940\
             00147b400013f940001f000100112f01000100102f03000100c8500000000000",
        ),
    ] {
        let made = chunk_of(&data, &params);
        assert_eq!(hex(&made), chunk, "{params:?}");
        assert_eq!(decode(&made, data.len()).unwrap(), data, "{params:?}");
    }
}

#[test]
fn what_is_short_or_does_not_shrink_is_copied_and_zeros_are_a_special_value() {
    let shuffled = params(1, 4, 4096, &[(1, 0)]);
    for (bytes, params) in [(vec![0; 31], shuffled), (vec![0; 64], Params { level: 0, ..shuffled })] {
        let chunk = chunk_of(&bytes, &params);
        assert_eq!((chunk.len(), &chunk[ChunkHeader::LEN..]), (bytes.len() + 32, &bytes[..]));
    }
    let mut state = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(10_000)
    .collect();
    assert_eq!(chunk_of(&noise, &shuffled)[ChunkHeader::LEN..], noise);
    let zeros = chunk_of(&[0; 10_000], &shuffled);
    assert_eq!((zeros.len(), check(&zeros).unwrap().special), (32, Some(Special::Zeros)));
    // Other runs are one byte for each stream.
    assert_eq!(chunk_of(&[7; 4096], &Params { split: Split::Never, ..shuffled }).len(), 32 + 4 + 4 + 1);
}

#[test]
fn parameters_that_no_chunk_can_have_are_refused() {
    let good = params(1, 4, 4096, &[(1, 0)]);
    for (bad, field) in [
        (Params { codec: CodecId(3), ..good }, "chunk: codec"),
        (Params { codec: CodecId(33), ..good }, "chunk: codec"),
        (Params { level: 10, ..good }, "chunk: level"),
        (Params { typesize: 0, ..good }, "chunk: typesize"),
        (Params { blocksize: 0, ..good }, "chunk: blocksize"),
        (Params { blocksize: u32::MAX, ..good }, "chunk: blocksize"),
        (Params { filters: pipeline(&[(35, 0)]), ..good }, "chunk: filters"),
        (Params { filters: pipeline(&[(1, 0), (3, 0)]), ..good }, "chunk: filters"),
        (Params { filters: pipeline(&[(3, 0), (3, 0)]), ..good }, "chunk: filters"),
        (Params { filters: pipeline(&[(4, 24)]), ..good }, "chunk: filters meta"),
        (Params { filters: pipeline(&[(4, 0)]), ..good }, "chunk: filters meta"),
        (Params { filters: pipeline(&[(4, 233)]), ..good }, "chunk: filters meta"),
        (Params { filters: pipeline(&[(4, 10)]), typesize: 2, ..good }, "chunk: typesize"),
    ] {
        let error = Encoder::default().encode(&[1; 100], &bad, &mut Vec::new()).unwrap_err();
        assert_eq!(error.field, field, "{error}");
    }
    for (bits, kept) in [(23, u32::MAX), (1, !0 << 22), (-1_i8, !1), (-22, !0 << 22)] {
        let chunk = chunk_of(&[255; 64], &Params { filters: pipeline(&[(4, bits.cast_unsigned())]), ..good });
        assert_eq!(decode(&chunk, 64).unwrap(), kept.to_le_bytes().repeat(16), "{bits}");
    }
}

/// Bytes that look like items: noise, a ramp, runs, few values.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let ramp = |(len, step): (usize, u32)| (0..len as u32).flat_map(|i| (i * step).to_le_bytes()).collect();
    let runs = |runs: Vec<(u8, usize)>| runs.into_iter().flat_map(|(byte, len)| vec![byte; len]).collect();
    prop_oneof![
        vec(any::<u8>(), 0..3000),
        (0..2000_usize, 0..70_000_u32).prop_map(ramp),
        vec((any::<u8>(), 0..700_usize), 0..20).prop_map(runs),
        vec(0..3_u8, 0..5000),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_comes_back(
        bytes in content(),
        codec in prop::sample::select(vec![0_u8, 1, 2, 4, 5]),
        level in 0..=9_u8,
        typesize in prop_oneof![1..20_u32, Just(32), Just(255), Just(256), Just(1000)],
        items in 1..400_u32,
        delta in any::<bool>(),
        filters in vec((0..3_u8, prop_oneof![Just(0), 1..20_u8]), 0..4),
        split in prop::sample::select(vec![Split::Always, Split::Never, Split::Auto, Split::ForwardCompat]),
    ) {
        let mut filters = filters;
        if delta {
            filters.insert(0, (3, 0));
        }
        let params = Params {
            codec: CodecId(codec), level, filters: pipeline(&filters), typesize, blocksize: typesize * items, split,
        };
        let (mut encoder, mut chunk) = (Encoder::default(), Vec::new());
        encoder.encode(&bytes, &params, &mut chunk).unwrap();
        prop_assert!(chunk.len() <= bytes.len() + ChunkHeader::LEN);
        let header = check(&chunk).unwrap();
        prop_assert_eq!(header.nbytes as usize, bytes.len());
        prop_assert_eq!(Decoder::default().decode(&chunk, bytes.len()).unwrap(), bytes.as_slice());
        // Nothing is left of a chunk in the next.
        let mut again = Vec::new();
        encoder.encode(&bytes, &params, &mut again).unwrap();
        prop_assert_eq!(again, chunk);
    }
}

/// zlib-rs does not begin anew after a stream for which there was no room, but goes on with what was left of it.
#[test]
fn a_stream_that_does_not_fit_leaves_nothing_to_the_next_one() {
    let noise = (0..64_000u64)
        .flat_map(|n| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).wrapping_mul(n | 1).to_le_bytes());
    let mut data: Vec<u8> = noise.collect();
    let blocksize = data.len() / 2;
    data.extend((0..blocksize).map(|n| if n % 50 < 3 { n as u8 } else { 0 }));
    for codec in [0, 1, 2, 4, 5] {
        for level in 1..=9 {
            let params = Params {
                codec: CodecId(codec),
                level,
                filters: [(FilterId(0), 0); 6],
                typesize: 1,
                blocksize: blocksize as u32,
                split: Split::Never,
            };
            let mut out = Vec::new();
            Encoder::default().encode(&data, &params, &mut out).unwrap();
            assert!(decode(&out, data.len()).is_ok_and(|again| again == data), "codec {codec}, level {level}");
        }
    }
}
