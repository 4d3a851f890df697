//! The decoder's half of `scripts/bench --only decode`: `tests/python/bench/decoding.py` starts it and times the library in between.

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::{env, fs, io};

use b2fuse::format::chunk::Decoder;
use fields::fields;

mod fields;

/// Seconds for which this thread has had a processor: what else the machine does is not counted.
fn cpu_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that may be written.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// For each line `CHUNK REPEATS` on standard input: how many seconds it takes to decode that chunk so often, into a buffer
/// that is used again, and to verify it so often.
#[test]
#[ignore = "prints figures, when scripts/bench asks"]
fn serve() {
    let file = fs::read(env::var_os("B2FUSE_CHUNKS").expect("B2FUSE_CHUNKS names a file of chunks")).unwrap();
    let chunks = fields(&file);
    let (mut decoder, mut out) = (Decoder::default(), Vec::new());
    for line in io::stdin().lock().lines().map(Result::unwrap) {
        let (chunk, repeats) = line.split_once(' ').unwrap();
        let (chunk, repeats): (usize, u32) = (chunk.parse().unwrap(), repeats.parse().unwrap());
        let chunk = chunks[chunk];
        decoder.decode_into(chunk, usize::MAX, &mut out).unwrap();
        let began = cpu_time();
        for _ in 0..repeats {
            decoder.decode_into(black_box(chunk), usize::MAX, &mut out).unwrap();
        }
        let decoded = cpu_time() - began;
        let began = cpu_time();
        for _ in 0..repeats {
            decoder.verify(black_box(chunk)).unwrap();
        }
        println!("\ntook {decoded} {}", cpu_time() - began);
        io::stdout().flush().unwrap();
    }
}
