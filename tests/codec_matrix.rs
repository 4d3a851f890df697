//! The chunk layer against C-Blosc2: chunks of every codec, filter, typesize, size, split mode and level that the library makes are
//! decoded here, byte for byte, and index chunks made here are decoded by the library.
//!
//! The library is that of python-blosc2: B2FUSE_PYTHON names a Python that has it. Without it these tests say so and pass, unless
//! B2FUSE_REQUIRE_PYTHON is 1.

use std::{collections::BTreeMap, env, fs, path::Path, process::Command};

use b2fuse::format::chunk::{self, Encoder};
use fields::fields;
use params::params;

mod fields;
mod params;

/// Runs a script of tests/python and returns what it printed; `None` where there is no Python to run it.
fn python(script: &str, args: &[&Path]) -> Option<String> {
    let Some(python) = env::var_os("B2FUSE_PYTHON") else {
        assert_ne!(env::var("B2FUSE_REQUIRE_PYTHON").as_deref(), Ok("1"), "B2FUSE_PYTHON is not set");
        eprintln!("SKIPPED: B2FUSE_PYTHON is not set, so nothing was compared with C-Blosc2");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(script);
    let output = Command::new(python).arg("-B").arg(script).args(args).output().expect("B2FUSE_PYTHON runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    Some(out.into_owned())
}

#[test]
fn every_chunk_decodes_as_in_the_library() {
    let dir = tempfile::tempdir().unwrap();
    // Another seed makes other chunks: for a search, not for every run.
    let seed = env::var("B2FUSE_MATRIX_SEED").unwrap_or_else(|_| "2".to_owned());
    let Some(said) = python("make_codec_matrix.py", &[dir.path(), Path::new(&seed)]) else { return };
    let (data, cases) = (fs::read(dir.path().join("data.bin")).unwrap(), fs::read(dir.path().join("cases.bin")).unwrap());
    let (contents, cases) = (fields(&data), fields(&cases));
    let mut decoder = chunk::Decoder::default();
    let (mut failures, mut refused) = (BTreeMap::<String, Vec<String>>::new(), 0);
    for case in cases.chunks_exact(3) {
        let (name, bytes, key) = (String::from_utf8_lossy(case[0]), case[1], case[2]);
        let kind = name.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let mut fail = |what: String| failures.entry(kind.clone()).or_default().push(format!("{name}: {what}"));
        let answer = decoder.decode(bytes, usize::MAX);
        match (key.try_into().map(u32::from_le_bytes), answer) {
            (Ok(key), Ok(decoded)) => {
                let expected = contents[key as usize];
                if decoded != expected {
                    fail(format!("{} bytes differ", decoded.iter().zip(expected).filter(|(a, b)| a != b).count()));
                }
                let mut pieces = Vec::new();
                let took = decoder.decode_pieces(bytes, usize::MAX, |piece| {
                    pieces.extend_from_slice(piece);
                    Ok(())
                });
                if took.is_err() || pieces != expected {
                    fail(format!("not in pieces: {took:?}"));
                }
                match chunk::check(bytes) {
                    Ok(header) => assert_eq!(header.nbytes as usize, expected.len(), "{name}"),
                    Err(error) => fail(format!("check says {error}")),
                }
                if let Some(limit) = expected.len().checked_sub(1) {
                    assert!(decoder.decode(bytes, limit).is_err(), "{name}: more than the limit");
                }
            }
            (Ok(_), Err(error)) => fail(error.to_string()),
            (Err(_), Ok(_)) => fail("the library refuses this".to_owned()),
            (Err(_), Err(_)) => refused += 1,
        }
    }
    for (kind, failures) in &failures {
        println!("{kind}: {} failures, as {}", failures.len(), failures[0]);
    }
    println!("{} chunks, {refused} refused; {}", cases.len() / 3, said.trim());
    assert!(failures.is_empty());
    assert!(cases.len() / 3 > 10_000);
}

/// Indexes of all kinds: lengths around the limits of copies and blocks, offsets, ids, special entries, noise.
fn indexes() -> Vec<Vec<u8>> {
    let special = |code: u64| 1 << 63 | code << 56;
    let mut random = 88_172_645_463_325_252_u64;
    let mut noise = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut all = Vec::new();
    for n in (0..70).chain([100, 255, 256, 2047, 2048, 2049, 4096, 4100, 6143, 10_000, 100_001]) {
        let mut place = 0;
        let kinds: [Vec<u64>; 10] = [
            (0..n).map(|_| 0).collect(),
            (0..n).collect(),
            (0..n).map(|i| i * 131_104).collect(),
            (0..n)
                .map(|_| {
                    place += 1000 + noise() % 4096;
                    place
                })
                .collect(),
            (0..n).map(|i| i * 2_654_435_761 % n).collect(),
            (0..n).map(|i| if i % 5 == 0 { special(1) } else { i * 4000 }).collect(),
            (0..n).map(|_| special(4)).collect(),
            (0..n).map(|_| 0x0101_0101_0101_0101).collect(),
            (0..n).map(|_| noise()).collect(),
            (0..n).map(|i| if i < n / 2 { 0 } else { i << 20 }).collect(),
        ];
        all.extend(kinds.into_iter().map(|entries| entries.into_iter().flat_map(u64::to_le_bytes).collect()));
    }
    all
}

#[test]
fn the_library_reads_every_index_written_here() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = Vec::new();
    let indexes = indexes();
    for items in &indexes {
        let chunk = chunk::encode(items).unwrap();
        assert_eq!(&chunk::decode(&chunk, items.len()).unwrap(), items);
        for field in [items, &chunk] {
            file.extend((field.len() as u32).to_le_bytes());
            file.extend(field);
        }
    }
    fs::write(dir.path().join("indexes.bin"), file).unwrap();
    let Some(said) = python("check_index_chunks.py", &[dir.path()]) else { return };
    let figures: Vec<usize> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [read, same, ours, theirs] = figures[..] else { panic!("{said}") };
    println!("{read} indexes read, {same} made to the library's very bytes; {ours} bytes in all, the library's {theirs}");
    assert_eq!(read, indexes.len());
    assert!(ours <= theirs + theirs / 50, "{ours} bytes, the library needs {theirs}");
}

/// What is too large beside the library's, and why it is let pass.
const LARGER: [(&str, &str); 0] = [];

#[test]
fn the_library_decodes_every_chunk_encoded_here() {
    let dir = tempfile::tempdir().unwrap();
    // With a seed other than 0, all sizes and levels: minutes instead of seconds.
    let seed = env::var("B2FUSE_ENCODE_SEED").unwrap_or_else(|_| "0".to_owned());
    let Some(said) = python("encode_matrix.py", &[Path::new("make"), dir.path(), Path::new(&seed)]) else { return };
    let cases = fs::read(dir.path().join("encode.bin")).unwrap();
    let cases = fields(&cases);
    let (mut encoder, mut decoder, mut made, mut chunk) = (Encoder::default(), chunk::Decoder::default(), Vec::new(), Vec::new());
    // By codec and filters: chunks, those of the library's very bytes, our bytes and the library's, the worst of the larger ones.
    let mut sizes = BTreeMap::<String, (usize, usize, usize, usize, f64, String)>::new();
    let mut failures = Vec::new();
    for case in cases.chunks_exact(4) {
        let (name, params, data, known) = (String::from_utf8_lossy(case[0]), params(case[1]), case[2], case[3]);
        encoder.encode(data, &params, &mut chunk).unwrap_or_else(|error| panic!("{name}: {error}"));
        let header = chunk::check(&chunk).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(header.nbytes as usize, data.len(), "{name}");
        let decoded = decoder.decode(&chunk, data.len()).unwrap_or_else(|error| panic!("{name}: {error}"));
        if !name.contains("trunc_prec") && !name.contains("pipeline") && decoded != data {
            failures.push(format!("{name}: decodes to something else"));
        }
        made.extend((chunk.len() as u32).to_le_bytes());
        made.extend(&chunk);
        if known.is_empty() {
            continue;
        }
        let kind = name.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let sum = sizes.entry(kind).or_default();
        (sum.0, sum.1, sum.2, sum.3) = (sum.0 + 1, sum.1 + usize::from(chunk == known), sum.2 + chunk.len(), sum.3 + known.len());
        let ratio = chunk.len() as f64 / known.len() as f64;
        if ratio > sum.4 {
            (sum.4, sum.5) = (ratio, name.to_string());
        }
        // A difference of a few bytes is none in a chunk of some hundreds.
        let excused = LARGER.iter().any(|(known, _)| name.starts_with(known));
        if chunk.len() > known.len() + known.len() / 20 + 64 && !excused {
            failures.push(format!("{name}: {} bytes, the library needs {}", chunk.len(), known.len()));
        }
    }
    println!("{:24} {:>7} {:>7} {:>11} {:>11} {:>6}  worst", "", "chunks", "same", "bytes", "library's", "ratio");
    for (kind, (count, same, ours, theirs, worst, which)) in &sizes {
        let ratio = *ours as f64 / *theirs as f64;
        println!("{kind:24} {count:7} {same:7} {ours:11} {theirs:11} {ratio:6.3}  {worst:.3} {which}");
    }
    fs::write(dir.path().join("made.bin"), made).unwrap();
    println!("{}, {}", said.trim(), python("encode_matrix.py", &[Path::new("check"), dir.path()]).unwrap().trim());
    failures.iter().take(30).for_each(|failure| println!("{failure}"));
    assert!(failures.is_empty(), "{} failures", failures.len());
}
