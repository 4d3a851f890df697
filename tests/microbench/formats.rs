//! Header, trailer, index.

use b2fuse::format::header::FrameHeader;
use b2fuse::format::trailer::Trailer;
use b2fuse::format::{ChunkOffset, IndexEntry, index};
use divan::{Bencher, black_box, counter::ItemsCount};

use crate::{COUNTS, Random, data};

fn header() -> FrameHeader {
    FrameHeader::parse(&data("metalayers")).expect("a header")
}

fn trailer() -> Trailer {
    let bytes = data("metalayers");
    let len = Trailer::announced_len(&bytes[bytes.len() - Trailer::TAIL_LEN..], header().header_len(), bytes.len() as u64);
    Trailer::parse(&bytes[bytes.len() - len.expect("a trailer") as usize..]).expect("a trailer")
}

#[divan::bench]
fn header_decode(bencher: Bencher) {
    let bytes = data("metalayers");
    bencher.bench(|| FrameHeader::parse(black_box(&bytes)));
}

#[divan::bench]
fn header_encode(bencher: Bencher) {
    let header = header();
    let (fields, metalayers) = (header.fields(), header.metalayers().collect::<Vec<_>>());
    bencher.bench(|| FrameHeader::encode(black_box(&fields), &metalayers));
}

#[divan::bench]
fn trailer_decode(bencher: Bencher) {
    let trailer = trailer();
    bencher.bench(|| Trailer::parse(black_box(trailer.as_bytes())));
}

#[divan::bench]
fn trailer_encode(bencher: Bencher) {
    let trailer = trailer();
    let vlmetalayers = trailer.vlmetalayers().collect::<Vec<_>>();
    bencher.bench(|| Trailer::encode(black_box(&vlmetalayers)));
}

/// Chunks of about 40 KB, in order but for one in a hundred.
fn entries(count: u64) -> Vec<IndexEntry<ChunkOffset>> {
    let mut random = Random(1);
    let mut end = 0;
    let mut offsets: Vec<u64> = (0..count)
        .map(|_| {
            end += 40_000 + random.below(1000);
            end
        })
        .collect();
    for _ in 0..count / 100 {
        offsets.swap(random.below(count) as usize, random.below(count) as usize);
    }
    offsets.into_iter().map(|offset| IndexEntry::Stored(ChunkOffset::new(offset))).collect()
}

#[divan::bench(args = COUNTS, sample_count = 20)]
fn index_encode(bencher: Bencher, count: u64) {
    let entries = entries(count);
    bencher.counter(ItemsCount::new(count)).bench(|| index::encode(black_box(&entries).iter().copied()));
}

#[divan::bench(args = COUNTS, sample_count = 20)]
fn index_decode(bencher: Bencher, count: u64) {
    let bytes = index::encode(entries(count).into_iter()).expect("an index");
    bencher.counter(ItemsCount::new(count)).bench(|| index::decode::<ChunkOffset>(black_box(&bytes), Some(count)));
}
