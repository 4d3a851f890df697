//! Our half of `scripts/bench --only decode,encode`: `tests/python/bench/decoding.py` and `encoding.py` start it and time the library in
//! between.

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::Instant;
use std::{env, fs, io, thread};

use b2fuse::format::chunk::{Decoder, Encoder};
use fields::fields;
use params::params;

mod fields;
mod params;

/// Seconds for which this thread has had a processor: what else the machine does is not counted.
fn cpu_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that may be written.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The fields of the file that B2FUSE_CASES names.
fn cases() -> Vec<u8> {
    fs::read(env::var_os("B2FUSE_CASES").expect("B2FUSE_CASES names a file of cases")).unwrap()
}

/// Answers each line of three numbers on standard input.
fn answer(mut ask: impl FnMut([usize; 3]) -> String) {
    for line in io::stdin().lock().lines().map(Result::unwrap) {
        let numbers: Vec<usize> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        println!("\ntook {}", ask(numbers.try_into().unwrap()));
        io::stdout().flush().unwrap();
    }
}

/// Seconds until all workers have done `work`: of one, those for which it had a processor.
fn time<W: Send>(workers: &mut [W], work: impl Fn(&mut W) + Sync) -> f64 {
    if let [worker] = workers {
        let began = cpu_time();
        work(worker);
        return cpu_time() - began;
    }
    let (work, began) = (&work, Instant::now());
    thread::scope(|scope| workers.iter_mut().for_each(|worker| drop(scope.spawn(move || work(worker)))));
    began.elapsed().as_secs_f64()
}

/// For each line `CHUNK REPEATS THREADS`: how many seconds it takes so many threads to decode that chunk so often each, each into a
/// buffer that is used again, and to verify it so often.
#[test]
#[ignore = "prints figures, when scripts/bench asks"]
fn serve_decoder() {
    let file = cases();
    let chunks = fields(&file);
    let mut workers: Vec<_> = (0..2).map(|_| (Decoder::default(), Vec::new())).collect();
    answer(|[chunk, repeats, threads]| {
        let (chunk, workers) = (chunks[chunk], &mut workers[..threads]);
        let decode = |(decoder, out): &mut (Decoder, Vec<u8>)| decoder.decode_into(black_box(chunk), usize::MAX, out).unwrap();
        workers.iter_mut().for_each(decode);
        let decoded = time(workers, |worker| (0..repeats).for_each(|_| decode(worker)));
        let verified = time(workers, |worker| {
            (0..repeats).for_each(|_| assert!(worker.0.verify(black_box(chunk)).is_ok()));
        });
        format!("{decoded} {verified}")
    });
}

/// For each line `CASE REPEATS THREADS`: how many seconds it takes so many threads to encode that case so often each, each into a buffer
/// that is used again, and how long the chunk is.
#[test]
#[ignore = "prints figures, when scripts/bench asks"]
fn serve_encoder() {
    let file = cases();
    let cases: Vec<_> = fields(&file).chunks_exact(2).map(|case| (params(case[0]), case[1])).collect();
    let mut workers: Vec<_> = (0..2).map(|_| (Encoder::default(), Vec::new())).collect();
    answer(|[case, repeats, threads]| {
        let ((params, bytes), workers) = (&cases[case], &mut workers[..threads]);
        let encode = |(encoder, chunk): &mut (Encoder, Vec<u8>)| encoder.encode(black_box(bytes), params, chunk).unwrap();
        workers.iter_mut().for_each(encode);
        let encoded = time(workers, |worker| (0..repeats).for_each(|_| encode(worker)));
        format!("{encoded} {}", workers[0].1.len())
    });
}
