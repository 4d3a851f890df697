//! The shapes of chunks and blocks against python-blosc2's own, for arrays of all sizes and processors of all kinds.
//!
//! B2FUSE_PYTHON names a Python that has it. Without it this test says so and passes, unless B2FUSE_REQUIRE_PYTHON is 1.

use std::{env, path::Path, process::Command};

use b2fuse::format::partition::{Caches, Partition};

/// Sizes with commas between them; a point for none.
fn sizes<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> Vec<T> {
    text.split(',').filter(|size| *size != ".").map(|size| size.parse().unwrap()).collect()
}

#[test]
#[cfg_attr(not(target_arch = "x86_64"), ignore = "the figures are those of another processor")]
fn arrays_are_cut_as_python_blosc2_does() {
    let Some(python) = env::var_os("B2FUSE_PYTHON") else {
        assert_ne!(env::var("B2FUSE_REQUIRE_PYTHON").as_deref(), Ok("1"), "B2FUSE_PYTHON is not set");
        eprintln!("SKIPPED: B2FUSE_PYTHON is not set, so nothing was compared with python-blosc2");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/make_partitions.py");
    let count = env::var("B2FUSE_PARTITIONS").unwrap_or_else(|_| "2000".to_owned());
    let output = Command::new(python).arg("-B").arg(script).arg(&count).output().expect("B2FUSE_PYTHON runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let mut cut = 0;
    for line in lines.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let [l1, l2, l3, item, shape, asked, chunks, blocks] = words[..] else { panic!("{line}") };
        let [l1, l2, l3, item] = [l1, l2, l3, item].map(|word| word.parse::<u64>().unwrap());
        let asked = (asked != "-").then(|| sizes(asked));
        let taken = Partition::new(&sizes(shape), item, asked.as_deref(), None, Caches { l1, l2, l3 }).unwrap();
        assert_eq!(taken, Partition { chunks: sizes(chunks), blocks: sizes(blocks) }, "{line}");
        cut += usize::from(chunks != shape);
    }
    println!("{} arrays, {cut} of more than one chunk", lines.lines().count());
    assert!(lines.lines().count().to_string() == count && cut * 3 > lines.lines().count());
}
