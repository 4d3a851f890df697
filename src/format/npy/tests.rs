//! Headers and types, pinned; tests/npy.rs has the comparison with NumPy itself.

use proptest::prelude::*;

use super::dtype::MAX_DIMS;
use super::*;
use crate::format::array::Dtype;

fn parse(text: &str) -> ItemType {
    ItemType::parse(text).unwrap()
}

fn refused(text: &str) -> String {
    ItemType::parse(text).unwrap_err().to_string()
}

fn parsed(bytes: &[u8]) -> NpyHeader {
    match NpyHeader::parse(bytes).unwrap() {
        Parsed::Header(header) => header,
        needs => panic!("{needs:?}"),
    }
}

/// A file's beginning with that text.
fn file(version: u8, text: &[u8]) -> Vec<u8> {
    let mut out = [b"\x93NUMPY".as_slice(), &[version, 0]].concat();
    match version {
        1 => out.extend((text.len() as u16).to_le_bytes()),
        _ => out.extend((text.len() as u32).to_le_bytes()),
    }
    out.extend(text);
    out
}

#[test]
fn a_header_as_numpy_writes_it() {
    let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }";
    let expected = [b"\x93NUMPY\x01\0\x76\0", text.as_bytes(), " ".repeat(128 - 10 - 59 - 1).as_bytes(), b"\n"].concat();
    let found = header(&parse("float32"), &[3, 4]).unwrap();
    assert_eq!((found.len(), &found), (128, &expected));
    for (text, shape, end) in [
        ("<f4", &[][..], "'shape': (), }"),
        ("<f4", &[7], "'shape': (7,), }"),
        ("<f4", &[0, 2, 3], "'shape': (0, 2, 3), }"),
        ("('<f4', (2, 3))", &[7], "'shape': (7, 2, 3), }"),
    ] {
        let found = header(&parse(text), shape).unwrap();
        let text = String::from_utf8_lossy(&found[10..]).trim_end().to_owned();
        assert_eq!(text, format!("{{'descr': '<f4', 'fortran_order': False, {end}"));
        assert_eq!((found.len() % ALIGNMENT, found.last()), (0, Some(&b'\n')));
    }
}

#[test]
fn versions_are_as_low_as_can_be() {
    let version = |name: &str| header(&parse(&format!("[('{name}', '<f4')]")), &[1]).unwrap()[6..8].to_vec();
    assert_eq!(version("a"), [1, 0]);
    assert_eq!(version("é"), [1, 0]);
    assert_eq!(version("日"), [3, 0]);
    assert_eq!(version(&"a".repeat(65_400)), [1, 0]);
    assert_eq!(version(&"é".repeat(32_000)), [1, 0]);
    // Not more than MAX_TEXT in itself, but with what NumPy writes of it.
    let names: Vec<String> = (0..2500).map(|n| format!("'{n}'")).collect();
    let list = |value: &dyn Fn(usize) -> String| (0..2500).map(value).collect::<Vec<_>>().join(",");
    let text = format!(
        "{{'names':[{}],'formats':[{}],'offsets':[{}]}}",
        names.join(","),
        list(&|_| "'i1'".to_owned()),
        list(&|n| (3 * n).to_string())
    );
    assert!(text.len() < MAX_TEXT);
    let bytes = header(&parse(&text), &[1]).unwrap();
    assert_eq!((&bytes[6..8], bytes.len() % ALIGNMENT), (&[2, 0][..], 0));
    assert_eq!(header(&parsed(&bytes).item, &[1]).unwrap(), bytes);
}

#[test]
fn gaps_titles_and_items_of_items() {
    for (text, size, descr) in [
        ("f8", 8, "'<f8'"),
        ("V5", 5, "'|V5'"),
        ("[('a', 'i4', (2, 3))]", 24, "[('a', '<i4', (2, 3))]"),
        ("[('a', ('i4', (2,)), (3,))]", 24, "[('a', ('<i4', (2,)), (3,))]"),
        (
            "{'names': ['a', 'b'], 'formats': ['i1', '>f8'], 'offsets': [0, 8], 'itemsize': 24}",
            24,
            "[('a', '|i1'), ('', '|V7'), ('b', '>f8'), ('', '|V8')]",
        ),
        ("{'names': ['a', 'b'], 'formats': ['i1', '>f8'], 'aligned': True}", 16, "[('a', '|i1'), ('', '|V7'), ('b', '>f8')]"),
        ("{'names': ['a', 'b'], 'formats': ['i4', 'i4'], 'offsets': [0, 2]}", 6, "'|V6'"),
        ("{'names': ['a', 'b'], 'formats': ['i4', 'i4'], 'offsets': [4, 0]}", 8, "'|V8'"),
        ("[(('t', 'a'), 'S3')]", 3, "[(('t', 'a'), '|S3')]"),
        ("[('', 'i1'), ('x', [('', 'i1')])]", 2, "[('f0', '|i1'), ('x', [('f0', '|i1')])]"),
        ("(numpy.record, [('a', '<U2')])", 8, "[('a', '<U2')]"),
        (
            r#"[('it\'s', 'i1'), ("\"'\n\x80\u200b\U000e0041é", 'i1')]"#,
            2,
            r#"[("it's", '|i1'), ('"\'\n\x80\u200b\U000e0041é', '|i1')]"#,
        ),
    ] {
        let item = parse(text);
        assert_eq!((item.size(), item.descr().as_str()), (size, descr), "{text}");
        assert_eq!(parse(&item.b2nd_text()).descr(), descr, "{}", item.b2nd_text());
    }
    assert_eq!(ItemType::void(7), parse("|V7"));
    assert_eq!(ItemType::void(7).b2nd_text(), "|V7");
    assert_eq!(parse("[('a', '?'), ('b', 'S'), ('c', 'M8[1s]')]").b2nd_text(), "[('a', '?'), ('b', 'S'), ('c', '<M8[s]')]");
}

#[test]
fn only_numpys_way_of_naming_types() {
    let dtype = |format| Dtype { format, text: "<i4".into() };
    assert_eq!(ItemType::of(&dtype(0)), Ok(parse("i4")));
    assert_eq!(ItemType::of(&dtype(1)).unwrap_err().to_string(), "array: dtype_format at byte 0: found 1, expected 0, NumPy's");
}

#[test]
fn code_is_not_run_but_refused() {
    for text in [
        "__import__('os').system('rm -rf /')",
        "[('a', __import__('os').system('true'))]",
        "[('a', open('/etc/passwd').read())]",
        "[('a', 'i4')] * 1000000000",
        "[('a', 'i' + '4')]",
        "[('a', 'i4') for a in (1, 2)]",
        "[('a', 'i4')]; import os",
        "lambda: 'i4'",
        "{'names': ['a'], 'formats': ['i4'], 'offsets': [1 << 62]}",
        "[('\\N{BULLET}', 'i4')]",
        "[('\\ud800', 'i4')]",
    ] {
        assert!(ItemType::parse(text).is_err(), "{text}");
    }
    assert_eq!(
        refused("O"),
        "dtype: type at byte 0: found Python objects, which are addresses in memory, expected items with values"
    );
    assert_eq!(refused("[('a', '|O')]"), refused("O").replace("byte 0", "byte 8"));
    assert_eq!(refused("[('a', 'i5')]"), "dtype: type at byte 8: found \"i5\", expected a type that NumPy knows, such as '<f4'");
    assert_eq!(refused("[('a', x)]"), "dtype at byte 7: found 'x', expected a string, an integer, a tuple, a list or a dict");
}

#[test]
fn a_megabyte_of_text_and_brackets_without_end() {
    assert_eq!(refused(&"[".repeat(1 << 20)), "dtype at byte 0: found 1048576 bytes, expected at most 262144");
    assert_eq!(refused(&"V".repeat(1 << 20)), refused(&"[".repeat(1 << 20)));
    for open in ["[", "(", "{'a':", "[('a',", "{0:[("] {
        let text = open.repeat(MAX_TEXT / open.len());
        assert!(refused(&text).contains("expected at most 32 within each other"), "{open}: {}", refused(&text));
    }
    // All that a text may have room for, in time: fields, names of the same text, dimensions.
    let fields: String = (0..4500).map(|n| format!("('{n}','i1'),")).collect();
    assert_eq!(parse(&format!("[{fields}]")).size(), 4500);
    assert!(ItemType::parse(&format!("[{}]", "('','i1'),".repeat(6000))).is_ok());
    assert!(refused(&format!("('i1', ({}))", "1,".repeat(65))).contains("65 dimensions"));
}

#[test]
fn sizes_that_overflow() {
    for text in [
        "S2147483648",
        "V99999999999999999999",
        "U536870912",
        "('f8', (65536, 65536))",
        "('f8', (65536, 0, 65536))",
        "('f8', (4294967296, 4294967296, 4294967296))",
        "('f8', (9223372036854775807, 0))",
        "('i1', 9223372036854775808)",
        "('i1', -1)",
        "[('a', 'V2147483647'), ('b', 'V1')]",
        "{'names': ['a'], 'formats': ['i4'], 'offsets': [9223372036854775807]}",
        "{'names': ['a'], 'formats': ['i4'], 'offsets': [2147483644]}",
        "{'names': ['a'], 'formats': ['i4'], 'itemsize': 2147483648}",
        "{'names': ['a'], 'formats': ['i4'], 'itemsize': 3}",
        "{'names': ['a'], 'formats': ['i4'], 'itemsize': -4}",
        "{'names': ['a', 'b'], 'formats': ['V2147483645', 'i4'], 'aligned': True}",
    ] {
        assert!(ItemType::parse(text).is_err(), "{text}");
    }
    assert_eq!(parse("('f8', (6553, 0, 6553))").size(), 0);
    assert_eq!(parse("('i1', 2147483647)").size(), 2_147_483_647);
    assert!(header(&parse(&format!("('i1', ({}))", "1,".repeat(40))), &[1; 25]).is_err());
    assert!(header(&parse("i1"), &[1; MAX_DIMS]).is_ok());
}

#[test]
fn headers_of_files_are_read_in_every_version() {
    let text = "{'descr': [('x', '>f4'), ('', '|V4'), (('t', 'é'), 'u1', (2,))], 'fortran_order': True, 'shape': (3, 0), }  \n";
    let latin: Vec<u8> = text.chars().map(|c| c as u8).collect();
    for bytes in [file(1, &latin), file(2, &latin), file(3, text.as_bytes())] {
        let header = parsed(&bytes);
        assert_eq!(header.item.descr(), "[('x', '>f4'), ('', '|V4'), (('t', 'é'), '|u1', (2,))]");
        assert_eq!((header.item.size(), header.shape.as_slice(), header.fortran_order), (10, &[3, 0][..], true));
        assert_eq!((header.data_offset, header.data_len()), (bytes.len() as u64, Some(0)));
        // What it needs is there in the end, and not before.
        let (mut len, mut steps) = (0, 0);
        while let Parsed::Needs(more) = NpyHeader::parse(&bytes[..len]).unwrap() {
            assert!(more > len && more <= bytes.len());
            (len, steps) = (more, steps + 1);
        }
        assert_eq!((len, steps), (bytes.len(), 3));
    }
    // As Python 2 wrote it.
    let old = parsed(&file(1, b"{'descr': '<i4', 'fortran_order': False, 'shape': (3L, 100000000000L), }\n"));
    assert_eq!((old.shape.as_slice(), old.data_len()), (&[3, 100_000_000_000][..], Some(1_200_000_000_000)));
}

#[test]
fn headers_of_files_that_are_refused() {
    let refused = |bytes: &[u8]| NpyHeader::parse(bytes).unwrap_err().field;
    assert_eq!(refused(b"\x93NUMPI"), "npy: magic");
    assert_eq!(refused(b"PK"), "npy: magic");
    assert_eq!(refused(b"\x93NUMPY\x04\0"), "npy: version");
    assert_eq!(refused(b"\x93NUMPY\x01\x01"), "npy: version");
    assert_eq!(refused(b"\x93NUMPY\x02\0\xff\xff\xff\xff"), "npy: header length");
    assert_eq!(refused(&file(3, b"\xff")), "npy: header");
    for (text, field) in [
        ("", "npy: header"),
        ("[]", "npy: header"),
        ("{'descr': '<i4', 'fortran_order': False}", "npy: header"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (), 'more': 1}", "npy: header"),
        ("{'descr': '<i4', 'fortran_order': 0, 'shape': ()}", "npy: fortran_order"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': 3}", "npy: shape"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (-3,)}", "npy: shape"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (True,)}", "npy: shape"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", "npy: shape"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (9223372036854775807,)}", "npy: shape"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (3,)}", "dtype: type"),
        ("{'descr': 5, 'fortran_order': False, 'shape': (3,)}", "dtype"),
    ] {
        assert_eq!(refused(&file(1, text.as_bytes())), field, "{text}");
    }
    let dims = format!("{{'descr': '<i4', 'fortran_order': False, 'shape': ({})}}", "1,".repeat(65));
    assert_eq!(refused(&file(1, dims.as_bytes())), "npy: shape");
}

proptest! {
    #[test]
    fn a_name_comes_back(name in "\\PC{0,8}|[\\x00-\\xff]{1,5}|.{0,4}") {
        let mut text = "[(".to_owned();
        literal::write_str(&mut text, &name);
        text.push_str(", '|i1')]");
        let item = parse(&text);
        if !name.is_empty() {
            prop_assert_eq!(item.descr(), text);
        }
        let bytes = header(&item, &[3]).unwrap();
        prop_assert_eq!(&parsed(&bytes).item, &item);
    }

    #[test]
    fn any_text_is_taken_or_refused(text in "[\\[\\](){}'a:,<i4S L0-9-]{0,40}", tail in ".{0,8}") {
        if let Ok(item) = ItemType::parse(&format!("{text}{tail}")) {
            prop_assert_eq!(parse(&item.b2nd_text()).size(), item.size());
        }
    }
}

#[test]
fn headers_that_python_reads_are_read() {
    for (text, shape) in [
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), } # of 2019\n", &[3][..]),
        ("{'descr': '<f8', # items\n 'fortran_order': False, 'shape': (+3, 0x1_f, 0b11, 0o17)}", &[3, 31, 3, 15]),
        ("{'descr': '<' 'f8', 'fortran_order': False, 'shape': (1_000,)}", &[1000]),
        ("{'descr': '<'\n \"f\" '8', 'fortran_order': False, 'shape': ()}", &[]),
        ("{'descr': [('#', '<i4'), ('b' '#', '<i4')], 'fortran_order': False, 'shape': ()}", &[]),
    ] {
        let header = parsed(&file(1, text.as_bytes()));
        assert_eq!((header.shape.as_slice(), header.item.size()), (shape, 8), "{text}");
    }
    for text in ["0x", "0b2", "_1", "1__0", "1_", "+", "--1", "+-1"] {
        let text = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({text},)}}");
        assert!(NpyHeader::parse(&file(1, text.as_bytes())).is_err(), "{text}");
    }
}
