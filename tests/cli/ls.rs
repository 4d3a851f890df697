//! `b2fuse ls` and `b2fuse cat`.

use std::io::Write as _;

use super::golden::golden;
use super::*;
use serde_json::Value;

/// Frames with chunks of every kind.
const FRAMES: [&str; 9] = [
    "cframe/special.b2frame",
    "sframe/special.b2frame",
    "sframe/moved.b2frame",
    "cframe/codec-zstd.b2frame",
    "cframe/b2nd-int.b2nd",
    "cframe/varying.b2frame",
    "cframe/vlblocks-fixed.b2frame",
    "cframe/fill-nan.b2frame",
    "cframe/empty.b2frame",
];

/// What `b2fuse WORDS FRAME` prints for each of some frames, with a title each.
fn printed(place: &Place, words: &str) -> String {
    let of = |frame: &&str| {
        let output = place.command(words).arg(data(frame)).ended();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{words} {frame}");
        format!("$ b2fuse {words} {frame}\n{}", String::from_utf8(output.stdout).unwrap())
    };
    FRAMES.iter().map(of).collect()
}

fn rows(place: &Place, words: &str, frame: &Path) -> Vec<Value> {
    let output = place.command(words).arg(frame).ended();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

#[test]
fn ls_prints_a_line_for_each_chunk() {
    let place = Place::new();
    golden("ls.txt", &printed(&place, "ls"));
    golden("ls.jsonl", &printed(&place, "ls --json"));
    place.run("ls").misused("<FRAME>");
    place.run("ls --sort colour x").misused("[possible values: position, offset, cbytes, nbytes, ratio]");
    place.run("ls gone").failed("gone: no such file or directory; expected a Blosc2 frame");
    place.run("ls point").failed("point: holds no frame; expected a Blosc2 frame, or a directory with frames in it");
    place.run("cat gone 0").failed("gone: no such file or directory; expected a Blosc2 frame");
    place.run("ls /dev/null").failed("/dev/null: is no regular file; expected a Blosc2 frame");
}

/// Every line of a table has as many columns as its title, at the same places.
#[test]
fn columns_are_aligned() {
    let place = Place::new();
    for frame in ["cframe/chunks-2500.b2frame", "cframe/fill-uninit.b2frame"] {
        let output = place.command("ls").arg(data(frame)).ended();
        let text = String::from_utf8(output.stdout).unwrap();
        let title = text.lines().next().unwrap();
        let codec = title.find("codec").unwrap();
        for line in text.lines() {
            assert_eq!(line.split_whitespace().count(), 8, "{line}");
            assert_eq!(line.as_bytes()[codec - 1], b' ', "{line}");
            assert_ne!(line.as_bytes()[codec], b' ', "{line}");
        }
        assert!(text.lines().count() > 2500);
    }
}

#[test]
fn ls_sorts() {
    let place = Place::new();
    let frame = data("sframe/moved.b2frame");
    for (column, key) in [("position", "position"), ("offset", "id"), ("id", "id"), ("cbytes", "cbytes"), ("nbytes", "nbytes")] {
        for reverse in ["", "--reverse"] {
            let seen = rows(&place, &format!("ls --json --sort {column} {reverse}"), &frame);
            assert_eq!(seen.len(), 9);
            let of = |row: &Value| (row[key].as_u64(), row["position"].as_u64().unwrap());
            let mut expected: Vec<_> = seen.iter().map(of).collect();
            expected.sort_by_key(|(_, position)| *position);
            expected.sort_by(|one, other| if reverse.is_empty() { one.0.cmp(&other.0) } else { other.0.cmp(&one.0) });
            assert_eq!(seen.iter().map(of).collect::<Vec<_>>(), expected, "{column} {reverse}");
        }
    }
    // What is stored nowhere is smaller than anything.
    let ratios = rows(&place, "ls --json --sort ratio", &frame);
    let ratios: Vec<_> = ratios.iter().map(|row| row["ratio"].as_f64().unwrap_or(f64::INFINITY)).collect();
    assert!(ratios.is_sorted() && ratios.ends_with(&[f64::INFINITY; 2]), "{ratios:?}");
}

#[test]
fn ls_shows_damage() {
    let place = Place::new();
    let frame = place.path("frame");
    let mut bytes = fs::read(data("cframe/moved.b2frame")).unwrap();
    bytes[726 + 3] = 0; // the typesize of chunk 5
    bytes[401 + 4] += 1; // nbytes of chunk 6
    fs::write(&frame, &bytes).unwrap();
    let outcome = place.run("ls frame");
    outcome.failed("frame: 2 of 9 chunks are damaged");
    let text = String::from_utf8(outcome.output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 10);
    let typesize = "damaged: chunk at byte 726: chunk: typesize at byte 3: found 0, expected 1 to 255";
    assert!(lines[6].starts_with("       5     726       -       -      -  -") && lines[6].ends_with(typesize), "{text}");
    let nbytes = "damaged: chunk: nbytes at byte 4: found 401, expected 400, the frame's chunksize";
    assert!(lines[7].contains("  zstd ") && lines[7].ends_with(nbytes), "{text}");
    let seen = rows(&place, "ls --json", &frame);
    assert_eq!((&seen[5]["error"], &seen[5]["cbytes"]), (&Value::from(&typesize[9..]), &Value::Null));
    assert_eq!((&seen[6]["error"], &seen[6]["nbytes"]), (&Value::from(&nbytes[9..]), &Value::from(401)));
    assert_eq!(seen[7]["error"], Value::Null);

    bytes.truncate(bytes.len() - 3);
    fs::write(&frame, &bytes).unwrap();
    let cut = place.run("ls frame");
    assert!(cut.stderr().starts_with("frame: header: frame_len at byte 16: found"), "{}", cut.stderr());
    assert!(cut.stderr().ends_with("; 2 of 9 chunks are damaged\n"), "{}", cut.stderr());
    bytes.truncate(1800);
    fs::write(&frame, &bytes).unwrap();
    let no_index = place.run("ls frame");
    assert_eq!((no_index.code(), no_index.stderr().lines().count()), (1, 1));
    assert!(no_index.output.stdout.is_empty());
}

#[test]
fn cat_writes_what_the_library_reads() {
    let place = Place::new();
    let expected = fs::read_to_string(data("expected.tsv")).unwrap();
    let mut seen = 0;
    for line in expected.lines() {
        let [name, nchunks, nbytes, _, crc]: [&str; 5] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let mut command = place.command("cat");
        let output = command.arg(data(name)).arg("0-").ended();
        assert_eq!(output.status.code(), Some(0), "{name}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.is_empty() || said.contains("warning: an array") && said.ends_with("not row by row\n"), "{name}: {said}");
        assert_eq!(output.stdout.len().to_string(), nbytes, "{name}");
        let mut sum = flate2::Crc::new();
        sum.update(&output.stdout);
        if !name.contains("uninit") && !name.contains("special") {
            assert_eq!(format!("{:08x}", sum.sum()), crc, "{name}");
            seen += 1;
        }
        let count: u64 = nchunks.parse().unwrap();
        for words in [format!("{count}"), format!("0-{count}"), format!("{}-", count + 1), u64::MAX.to_string()] {
            let mut command = place.command("cat");
            let output = command.arg(data(name)).arg(&words).ended();
            assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{name} {words}");
            let reason = format!("is not there; the frame has {count}, counted from 0\n");
            assert!(String::from_utf8(output.stderr).unwrap().ends_with(&reason), "{name} {words}");
        }
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn cat_of_special_chunks() {
    let place = Place::with_frame();
    let cat = |words: &str| place.run(&format!("cat frame {words}")).output.stdout;
    let raw = |words: &str| place.run(&format!("cat --raw frame {words}")).output.stdout;
    // The last chunk is shorter. Items are doubles.
    for (position, len, item) in
        [(0, 800, 0f64.to_le_bytes()), (3, 800, f64::NAN.to_le_bytes()), (4, 800, [0; 8]), (12, 80, [0; 8])]
    {
        assert_eq!(cat(&position.to_string()), item.repeat(len / 8), "{position}");
        let chunk = raw(&position.to_string());
        assert_eq!(chunk.len(), 32, "{position}");
        assert_eq!(b2fuse::format::chunk::decode(&chunk, 800).unwrap().len(), len, "{position}");
    }
    assert_eq!(raw("1"), fs::read(data("sframe/special.b2frame/00000001.chunk")).unwrap());
    assert_eq!(cat("12 0 1-2"), [cat("12"), cat("0"), cat("1"), cat("2")].concat());
    assert_eq!(raw("11-"), [raw("11"), raw("12")].concat());
    place.run("cat frame").misused("<POSITION>");
    place.run("cat frame 3-1").misused("the range ends before it begins");
    place.run("cat frame one").misused("expected a position such as 3, or a range such as 3-7 or 3-");
}

#[test]
fn cat_warns_of_an_order_that_is_not_the_arrays() {
    let place = Place::new();
    let said = |name: &str, words: &str| {
        fs::copy(data(&format!("cframe/{name}")), place.path("array")).unwrap();
        let outcome = place.run(&format!("cat {words} array 0"));
        assert_eq!(outcome.code(), 0);
        outcome.stderr()
    };
    let warning = "array: warning: an array of [7, 10] in chunks of [4, 6] in blocks of [2, 3]: the bytes come block by block, not row by row\n";
    assert_eq!(said("b2nd-int.b2nd", ""), warning);
    assert_eq!(said("b2nd-int.b2nd", "--raw"), "");
    assert_eq!(said("b2nd-struct.b2nd", ""), "");
    assert_eq!(said("moved.b2frame", ""), "");
}

#[test]
fn cat_says_why_it_cannot() {
    let place = Place::new();
    let whole = fs::read(data("cframe/moved.b2frame")).unwrap();
    let spoiled = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::File::create(place.path("frame")).unwrap().write_all(&bytes).unwrap();
        place.run("cat frame 5 6")
    };
    let plugin = "found bytedelta (35), a plugin filter, expected shuffle, bitshuffle, delta or trunc_prec";
    spoiled(&|frame| frame[726 + 21] = 35).failed(&format!("frame: chunk 5: chunk: filters at byte 16: {plugin}"));
    let plugin = "found zfp_acc (33), a plugin codec, expected blosclz, lz4, lz4hc, zlib or zstd";
    let outcome = spoiled(&|frame| (frame[726 + 2], frame[726 + 22]) = (frame[726 + 2] & 0x1f | 6 << 5, 33));
    outcome.failed(&format!("frame: chunk 5: chunk: user codec at byte 22: {plugin}"));
    assert_eq!(place.run("cat --raw frame 5").output.stdout.len(), 172);
    spoiled(&|frame| frame[726 + 4] += 1).failed("frame: chunk 5: chunk: nbytes at byte 4: found 401, expected at most 400");
    spoiled(&|frame| frame[726 + 14] = 1).failed(
        "frame: chunk 5: chunk at byte 726: chunk: cbytes at byte 12: found 65708, expected at most 1179, the room that it has",
    );
    let garbled = spoiled(&|frame| frame[401 + 32..401 + 36].fill(0xAA));
    assert!(garbled.stderr().starts_with("frame: chunk 6: chunk: "), "{}", garbled.stderr());
    assert_eq!(garbled.output.stdout.len(), 400, "what came before");
}
