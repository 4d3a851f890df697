//! Chunks of 128 KiB decoded, by codec and filter. (BloscLZ is measured with the index, which is written with it.)

use b2fuse::format::chunk::{Decoder, check};
use divan::{Bencher, black_box, counter::BytesCount};

use crate::Random;

const NBYTES: usize = 128 << 10;
const BLOCKSIZE: usize = 32 << 10;

/// Flag bits of codec; what compresses a block.
type Codec = (&'static str, u8, fn(&[u8]) -> Vec<u8>);

fn zlib(block: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(5));
    std::io::Write::write_all(&mut out, block).expect("memory");
    out.finish().expect("memory")
}

const CODECS: [Codec; 3] = [
    ("lz4", 1, lz4_flex::block::compress),
    ("zlib", 3, zlib),
    ("zstd", 4, |block| zstd::bulk::compress(block, 5).expect("a block that compresses")),
];
const FILTERS: [(&str, u8); 3] = [("none", 0), ("shuffle", 1), ("bitshuffle", 2)];

/// A chunk of doubles' size that compresses to about a third, its blocks not split.
fn chunk((_, codec, compress): Codec, filter: u8) -> Vec<u8> {
    let mut random = Random(1);
    let items: Vec<u8> = (0..NBYTES).map(|n| if n / 64 % 2 == 0 { random.next() as u8 & 31 } else { 0 }).collect();
    let mut chunk = vec![0; 32 + 4 * NBYTES.div_ceil(BLOCKSIZE)];
    chunk[..4].copy_from_slice(&[5, 1, 0x15 | codec << 5, 8]);
    chunk[21] = filter;
    for (n, block) in items.chunks(BLOCKSIZE).enumerate() {
        let stream = compress(block);
        let start = chunk.len() as u32;
        chunk[32 + 4 * n..][..4].copy_from_slice(&start.to_le_bytes());
        chunk.extend_from_slice(&(stream.len() as u32).to_le_bytes());
        chunk.extend_from_slice(&stream);
    }
    let cbytes = chunk.len();
    for (at, value) in [(4, NBYTES), (8, BLOCKSIZE), (12, cbytes)] {
        chunk[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
    }
    chunk
}

/// All pairs, by name.
fn chunks() -> Vec<String> {
    CODECS.iter().flat_map(|codec| FILTERS.iter().map(|filter| format!("{} {}", codec.0, filter.0))).collect()
}

fn by_name(name: &str) -> Vec<u8> {
    let mut words = name.split(' ');
    let (codec, filter) = (words.next(), words.next());
    let codec = CODECS.into_iter().find(|known| Some(known.0) == codec).expect("a codec");
    let filter = FILTERS.into_iter().find(|known| Some(known.0) == filter).expect("a filter");
    chunk(codec, filter.1)
}

#[divan::bench(args = chunks())]
fn decode(bencher: Bencher, name: &str) {
    let chunk = by_name(name);
    let (mut decoder, mut out) = (Decoder::default(), Vec::new());
    decoder.decode_into(&chunk, NBYTES, &mut out).expect("a chunk that decodes");
    assert_eq!(out.len(), NBYTES);
    bencher.counter(BytesCount::new(NBYTES)).bench_local(|| decoder.decode_into(black_box(&chunk), NBYTES, &mut out));
}

#[divan::bench]
fn check_header(bencher: Bencher) {
    let chunk = by_name("zstd shuffle");
    bencher.bench(|| check(black_box(&chunk)));
}
