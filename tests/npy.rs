//! Types of items, headers of .npy files and slices against NumPy: what names a type is read as NumPy reads it, headers are the same
//! bytes, arrays of python-blosc2 have the header that `np.save` writes for them, and a slice takes the same items.
//!
//! B2FUSE_PYTHON names a Python that has python-blosc2. Without it these tests say so and pass, unless B2FUSE_REQUIRE_PYTHON is 1.

use std::{env, fs, path::Path, process::Command};

use b2fuse::format::npy::{ItemType, NpyHeader, Parsed, header};
use b2fuse::format::slice::Slice;
use fields::fields;

mod fields;

/// What NumPy says of cases, in a file by that name; `None` where there is no Python to run it.
fn numpy(file: &str) -> Option<Vec<u8>> {
    let Some(python) = env::var_os("B2FUSE_PYTHON") else {
        assert_ne!(env::var("B2FUSE_REQUIRE_PYTHON").as_deref(), Ok("1"), "B2FUSE_PYTHON is not set");
        eprintln!("SKIPPED: B2FUSE_PYTHON is not set, so nothing was compared with NumPy");
        return None;
    };
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/make_npy_headers.py");
    // Another seed makes other cases: for a search, not for every run.
    let seed = env::var("B2FUSE_MATRIX_SEED").unwrap_or_else(|_| "2".to_owned());
    let output = Command::new(python).arg("-B").arg(script).arg(dir.path()).arg(seed).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", String::from_utf8_lossy(&output.stdout).trim());
    Some(fs::read(dir.path().join(file)).unwrap())
}

fn numbers(field: &[u8]) -> Vec<u64> {
    field.chunks(8).map(|number| u64::from_le_bytes(number.try_into().unwrap())).collect()
}

#[test]
fn every_type_is_numpys() {
    let Some(cases) = numpy("cases.bin") else { return };
    let (cases, mut failures) = (fields(&cases), Vec::new());
    for case in cases.chunks_exact(5) {
        let [text, expected, str_of_text, str_of_loaded] = [0, 2, 3, 4].map(|index| String::from_utf8_lossy(case[index]));
        let shape = numbers(case[1]);
        let found = ItemType::parse(&text).and_then(|item| Ok((header(&item, &shape)?, item)));
        let mut fail = |what: String| failures.push(format!("{text:.200}: {what}"));
        match found {
            Ok(_) if expected.is_empty() => fail("NumPy refuses this".to_owned()),
            Err(_) if expected.is_empty() => {}
            Err(error) => fail(error.to_string()),
            Ok((header, _)) if header != case[2] => {
                fail(format!("{}\n    and not {expected:.300}", String::from_utf8_lossy(&header)))
            }
            Ok((header, item)) => {
                // The flag has no effect on what is read.
                let str_of_text = str_of_text.replace(", 'aligned': True}", "}");
                if item.b2nd_text() != str_of_text && !str_of_text.contains("'offsets'") {
                    fail(format!("{} and not {str_of_text}", item.b2nd_text()));
                }
                match NpyHeader::parse(&header) {
                    Ok(Parsed::Header(back)) if back.item.b2nd_text() == str_of_loaded => {
                        assert_eq!((back.data_offset, back.fortran_order), (header.len() as u64, false), "{text}");
                    }
                    back => fail(format!("{back:?} of {str_of_loaded}")),
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures[..failures.len().min(40)].join("\n"));
    assert!(cases.len() / 5 > 3000);
}

/// The items of a slice, as places in an array of that shape.
fn items(slice: &Slice, shape: &[u64]) -> Vec<u64> {
    let mut places = vec![0];
    for (along, size) in slice.dims.iter().zip(shape) {
        let next =
            |place: &u64| (0..along.count).map(|number| along.item(number)).map(|item| place * size + item).collect::<Vec<_>>();
        places = places.iter().flat_map(next).collect();
    }
    places
}

#[test]
fn every_slice_takes_what_numpy_takes() {
    let Some(cases) = numpy("slices.bin") else { return };
    let (cases, mut taken) = (fields(&cases), 0);
    for case in cases.chunks_exact(3) {
        let (text, shape) = (str::from_utf8(case[0]).unwrap(), numbers(case[1]));
        let Some((ndim, expected)) = numbers(case[2]).split_first().map(|(ndim, rest)| (*ndim, rest.to_vec())) else {
            assert!(Slice::parse(text, &shape).is_err(), "{text} of {shape:?}: NumPy refuses this");
            continue;
        };
        let slice = Slice::parse(text, &shape).unwrap_or_else(|error| panic!("{text} of {shape:?}: {error}"));
        let (expected_shape, expected) = expected.split_at(ndim as usize);
        assert_eq!(slice.shape(), expected_shape, "{text} of {shape:?}");
        assert_eq!(items(&slice, &shape), expected, "{text} of {shape:?}");
        taken += 1;
    }
    assert!(taken > 2000 && taken < cases.len() / 3, "{taken}");
}
