//! `b2fuse convert` of files of NumPy's, there and back.

use super::*;

/// A file of NumPy's.
fn npy(descr: &str, order: &str, shape: &str, items: &[u8]) -> Vec<u8> {
    let mut text = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}");
    let len = (10 + text.len() + 1).next_multiple_of(64) - 10;
    text = format!("{text:<width$}\n", width = len - 1);
    [b"\x93NUMPY\x01\0", &(len as u16).to_le_bytes()[..], text.as_bytes(), items].concat()
}

/// Numbers that compress, and some that do not.
fn items(count: u32) -> Vec<u8> {
    (0..count).flat_map(|n| if n / 500 % 2 == 0 { n } else { n.wrapping_mul(2_654_435_761) }.to_le_bytes()).collect()
}

#[test]
fn files_of_numpy_become_arrays_and_come_back() {
    for (descr, shape, count) in [
        ("'<i4'", "(5000,)", 5000),
        ("'<f4'", "(50, 10, 10)", 5000),
        ("'<i4'", "()", 1),
        ("'>u4'", "(0, 3)", 0),
        ("'|V8'", "(7, 100)", 1400),
    ] {
        let file = npy(descr, "False", shape, &items(count));
        let dimensions = shape.split(',').filter(|size| size.contains(|digit: char| digit.is_ascii_digit())).count();
        let chunks = ["3"; 3][..dimensions].join(",");
        let own_chunks = if dimensions > 0 { format!("--chunks {chunks}") } else { String::new() };
        for options in
            ["", "--show sparse", "--codec lz4 --level 9 --filters delta,bitshuffle", "--codec zlib --filters none", &own_chunks]
        {
            let place = Place::new();
            fs::write(place.path("x.npy"), &file).unwrap();
            place.succeeds(&format!("convert {options} x.npy made"));
            assert_eq!(place.path("made").is_dir(), options.contains("sparse"));
            assert_eq!(place.run("check --deep made").code(), 0);
            place.succeeds("convert made back.npy");
            let back = fs::read(place.path("back.npy")).unwrap();
            // NumPy leaves more room for the header to grow.
            let same = back.ends_with(&items(count)) && String::from_utf8_lossy(&back).contains(descr);
            assert!(same, "{descr} {shape} {options}: {} bytes", back.len());
            assert_eq!(place.names(), ["back.npy", "made", "point", "x.npy"], "nothing else is left");
        }
    }
}

#[test]
fn the_first_dimension_may_be_the_fastest() {
    let place = Place::new();
    fs::write(place.path("x.npy"), npy("'|u1'", "True", "(2, 3)", &[0, 3, 1, 4, 2, 5])).unwrap();
    place.succeeds("convert --chunks 2,2 --blocks 1,2 x.npy made");
    place.succeeds("convert made back.npy");
    let back = fs::read(place.path("back.npy")).unwrap();
    assert!(back.ends_with(&[0, 1, 2, 3, 4, 5]) && String::from_utf8_lossy(&back).contains("'fortran_order': False"));
}

#[test]
fn what_cannot_become_an_array_is_named() {
    let place = Place::with_frame();
    let write = |name: &str, bytes: &[u8]| fs::write(place.path(name), bytes).unwrap();
    write("x.npy", &npy("'<i4'", "False", "(10, 10)", &items(100)));
    write("cut.npy", &npy("'<i4'", "False", "(10, 10)", &items(99)));
    write("begun.npy", b"\x93NUMPY\x01\0\x76\0{'descr'");
    write("objects.npy", &npy("'|O'", "False", "(2,)", &[0; 16]));
    write("nothing.npy", &npy("'|S0'", "False", "(2,)", &[]));
    write("deep.npy", &npy("'|u1'", "False", &format!("({})", "1, ".repeat(17)), &[0]));
    write("wide.npy", &npy("'|u1'", "False", "(2, 9223372036854775807)", &[]));
    let names = place.names();
    for (words, said) in [
        ("cut.npy new", "cut.npy: is 524 bytes long; expected 528, as its header says"),
        ("begun.npy new", "begun.npy: ends after 18 bytes, within the header; expected at least 128"),
        (
            "--chunks 5 x.npy new",
            "x.npy: cannot become an array: array: chunkshape: found 1 dimension, expected 2, as the array has",
        ),
        (
            "--chunks 5,5 --blocks 6,1 x.npy new",
            "x.npy: cannot become an array: array: blockshape: found 6, expected at most 5, which chunks have",
        ),
        (
            "--filters shuffle,delta x.npy new",
            "x.npy: cannot become an array: chunk: filters: found delta behind another filter, expected delta once, in front \
             of shuffle and bitshuffle",
        ),
        ("nothing.npy new", "nothing.npy: cannot become an array: npy: descr: found items of 0 bytes, expected 1 to 2^31 - 1"),
        ("x.npy frame", "frame: exists already; expected a new name (--force replaces what is there)"),
        (
            "x.npy y.npy",
            "y.npy: is the name of a NumPy file (.npy), and SRC is one already; expected the name of a frame, such as x.b2nd",
        ),
        ("x.npy x.npy", "x.npy: is SRC itself; expected another name"),
        ("--force x.npy x.npy", "x.npy: is SRC itself; expected another name"),
        (
            "--level 5 frame new",
            "frame: is not a NumPy file (.npy); expected one with --chunks, --blocks, --codec, --level or --filters",
        ),
    ] {
        place.run(&format!("convert {words}")).failed(said);
    }
    place
        .run("convert deep.npy new")
        .failed("deep.npy: cannot become an array: array: shape at byte 0: found 17 dimensions, expected at most 16");
    for name in ["objects.npy", "wide.npy"] {
        let outcome = place.run(&format!("convert {name} new"));
        assert_eq!((outcome.code(), outcome.stderr().lines().count()), (1, 1), "{}", outcome.stderr());
        assert!(outcome.stderr().starts_with(&format!("{name}: ")), "{}", outcome.stderr());
    }
    for (words, said) in [
        ("--codec gzip x.npy new", "[possible values: blosclz, lz4, lz4hc, zlib, zstd]"),
        ("--level 10 x.npy new", "expected a number from 0 to 9"),
        ("--level +1 x.npy new", "expected a number from 0 to 9"),
        ("--filters delta,none,none,none,none,none,none x.npy new", "found 7 filters in '--filters'; expected at most 6"),
        ("--filters trunc_prec x.npy new", "expected shuffle, bitshuffle, delta, trunc_prec=BITS or none"),
        ("--chunks 5,x x.npy new", "invalid value 'x' for '--chunks <N,...>': expected numbers of items"),
        ("--blocks 0 x.npy new", "invalid value '0' for '--blocks <N,...>': expected numbers of items"),
    ] {
        place.run(&format!("convert {words}")).misused(said);
    }
    assert_eq!(place.names(), names, "nothing is made, and nothing is left");
    place.succeeds("convert --force x.npy frame");
    place.run("cat --npy frame 99").failed("frame: slice: found '99', expected an item of axis 0, which has 10");
    place.succeeds("convert frame back.npy");
    assert!(fs::read(place.path("back.npy")).unwrap().ends_with(&items(100)));
}

#[test]
fn a_directory_is_not_replaced_by_a_numpy_file() {
    let place = Place::new();
    fs::write(place.path("x.npy"), npy("'<i4'", "False", "(10, 10)", &items(100))).unwrap();
    place.succeeds("convert x.npy x.b2nd");
    place.succeeds("convert --show sparse x.npy y.npy.b2nd");
    fs::rename(place.path("y.npy.b2nd"), place.path("y.npy")).unwrap();
    // Nothing is decoded in vain: damage would be found.
    let mut frame = fs::read(place.path("x.b2nd")).unwrap();
    let middle = frame.len() / 2;
    frame[middle - 100..middle].fill(0xff);
    fs::write(place.path("bad.b2nd"), frame).unwrap();
    let names = place.names();
    place.run("convert --force bad.b2nd y.npy").failed("y.npy: is a directory; expected a new name, or a file to replace");
    assert_eq!(place.names(), names);
}

#[test]
fn an_interrupted_array_leaves_nothing() {
    let file = npy("'<i4'", "False", "(4000, 1000)", &items(4_000_000));
    let interrupted = (0..100).any(|_| {
        let place = Place::new();
        fs::write(place.path("x.npy"), &file).unwrap();
        let mut command = place.command("convert --level 9 --chunks 10,1000");
        let mut child = command.args(["x.npy", "made"]).stderr(Stdio::piped()).begun();
        let mut over = false;
        eventually("begun", || {
            over = child.try_wait().unwrap().is_some();
            over || place.names().len() > 2
        });
        if !over {
            let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).stderr(Stdio::null()).begun().wait();
        }
        let code = child.wait().unwrap().code();
        if code == Some(0) {
            return false;
        }
        let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        assert_eq!((code, said.as_str()), (Some(1), "made: interrupted; nothing was made\n"));
        assert_eq!(place.names(), ["point", "x.npy"]);
        true
    });
    assert!(interrupted);
}
