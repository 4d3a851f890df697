//! Pinned chunks of C-Blosc2 3.3.5 (`tests/python/make_codec_matrix.py` makes the many others that `tests/codec_matrix.rs` reads).

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

#[test]
fn long_indexes_come_back() {
    for n in [2047, 2048, 2049, 4096, 100_000] {
        for step in [0, 1, 8, 131_104, 0x1_0000_0001] {
            let items = index(n, |i| if i % 1000 == 7 { 0x84 << 56 } else { i * step });
            let chunk = encode(&items).unwrap();
            check(&chunk).unwrap();
            assert_eq!(decode(&chunk, items.len()).unwrap(), items);
        }
    }
}
