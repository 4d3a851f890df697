//! What commands print, held against files in `tests/golden`.

use std::fs;
use std::path::Path;

/// Compares with the file of that name. With `B2FUSE_UPDATE_GOLDEN` set, writes it instead: look at the difference.
#[track_caller]
pub fn golden(name: &str, printed: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("B2FUSE_UPDATE_GOLDEN").is_some() {
        fs::write(&path, printed).unwrap();
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for (n, (got, expected)) in printed.lines().zip(expected.lines()).enumerate() {
        assert_eq!(got, expected, "{name}, line {}", n + 1);
    }
    assert_eq!(printed.lines().count(), expected.lines().count(), "{name}: lines");
}
