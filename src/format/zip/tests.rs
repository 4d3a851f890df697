use super::*;
use crate::format::Result;

/// Three members as `zipfile` of Python writes them.
const PINNED: &[u8] = b"PK\x03\x04\x14\x00\x00\x00\x00\x00\x00`w]W\xeeq\x92\x05\x00\x00\x00\x05\x00\x00\x00\x0a\x00\x00\x00\
sub/a.b2ndfirst\
PK\x03\x04\x14\x00\x00\x08\x00\x00\x00`w]\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\xc3\xa9.b2f\
PK\x03\x04\x14\x00\x00\x00\x00\x00\x00`w]>9\xb3\xaa\x07\x00\x00\x00\x07\x00\x00\x00\x09\x00\x00\x00embed.b2esecond!\
PK\x01\x02\x14\x03\x14\x00\x00\x00\x00\x00\x00`w]W\xeeq\x92\x05\x00\x00\x00\x05\x00\x00\x00\x0a\x00\x00\x00\x00\x00\x00\x00\
\x00\x00\x00\x00\xa4\x81\x00\x00\x00\x00sub/a.b2nd\
PK\x01\x02\x14\x03\x14\x00\x00\x08\x00\x00\x00`w]\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00\
\x00\x00\x00\x00\xa4\x81-\x00\x00\x00\xc3\xa9.b2f\
PK\x01\x02\x14\x03\x14\x00\x00\x00\x00\x00\x00`w]>9\xb3\xaa\x07\x00\x00\x00\x07\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\
\x00\x00\x00\x00\xa4\x81Q\x00\x00\x00embed.b2e\
PK\x05\x06\x00\x00\x00\x00\x03\x00\x03\x00\xa3\x00\x00\x00\x7f\x00\x00\x00\x00\x00";

/// An archive, and where what it is made of begins.
pub struct Built {
    pub bytes: Vec<u8>,
    pub locals: Vec<usize>,
    pub centrals: Vec<usize>,
    pub end: usize,
}

impl Built {
    /// An archive of these members; a name with a slash behind it is that of a directory.
    pub fn new(members: &[(&str, &[u8])]) -> Self {
        let mut built = Built { bytes: Vec::new(), locals: Vec::new(), centrals: Vec::new(), end: 0 };
        let fields = |name: &str, data: &[u8]| {
            let mut fields = vec![20, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            fields.extend([(data.len() as u32).to_le_bytes(), (data.len() as u32).to_le_bytes()].concat());
            fields.extend([(name.len() as u16).to_le_bytes(), [0, 0]].concat());
            fields
        };
        for (name, data) in members {
            built.locals.push(built.bytes.len());
            built.bytes.extend([b"PK\x03\x04", &*fields(name, data), name.as_bytes(), data].concat());
        }
        let start = built.bytes.len();
        for ((name, data), local) in members.iter().zip(&built.locals) {
            built.centrals.push(built.bytes.len());
            let rest = [&[0; 10][..], &(*local as u32).to_le_bytes()].concat();
            built.bytes.extend([b"PK\x01\x02\x14\x03", &*fields(name, data), &rest, name.as_bytes()].concat());
        }
        built.end(start);
        built
    }

    /// Puts an end behind a directory that begins there.
    fn end(&mut self, start: usize) {
        self.end = self.bytes.len();
        let count = (self.centrals.len() as u16).to_le_bytes();
        let (len, start) = (((self.end - start) as u32).to_le_bytes(), (start as u32).to_le_bytes());
        self.bytes.extend([b"PK\x05\x06\0\0\0\0", &count[..], &count, &len, &start, &[0; 2]].concat());
    }

    /// The same with ZIP64, with what the end record has set to what says nothing.
    fn in_zip64(mut self) -> Self {
        let get = |at: usize| u64::from(u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap()));
        let (len, start) = (get(self.end + 12), get(self.end + 16));
        let count = (self.centrals.len() as u64).to_le_bytes();
        self.bytes.truncate(self.end);
        let at = self.end as u64;
        let record = [b"PK\x06\x06", &44u64.to_le_bytes()[..], &[45, 3, 45, 0], &[0; 8], &count, &count];
        self.bytes.extend([record.concat(), len.to_le_bytes().into(), start.to_le_bytes().into()].concat());
        self.bytes.extend([b"PK\x06\x07\0\0\0\0", &at.to_le_bytes()[..], &[1, 0, 0, 0]].concat());
        self.end = self.bytes.len();
        self.bytes.extend([b"PK\x05\x06\0\0\0\0", &[0xff; 12][..], &[0; 2]].concat());
        self
    }

    /// Puts bytes in place of others.
    fn with(mut self, at: usize, bytes: &[u8]) -> Self {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn central(self, member: usize, at: usize, bytes: &[u8]) -> Self {
        let at = self.centrals[member] + at;
        self.with(at, bytes)
    }

    fn local(self, member: usize, at: usize, bytes: &[u8]) -> Self {
        let at = self.locals[member] + at;
        self.with(at, bytes)
    }

    fn ended(self, at: usize, bytes: &[u8]) -> Self {
        let at = self.end + at;
        self.with(at, bytes)
    }
}

fn slice(bytes: &[u8], from: u64, to: u64) -> &[u8] {
    &bytes[from as usize..to as usize]
}

/// All files with what is in them, as a store reads them.
fn files(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
    let end = End::parse(bytes, bytes.len() as u64)?;
    let contents = Contents::parse(slice(bytes, end.directory.start, end.directory.end), &end)?;
    let files = contents.files().into_iter().map(|(number, member)| {
        let path = contents.path(number);
        let header_end = member.header_at + Member::header_len(&path) as u64;
        let at = member.data(&path, slice(bytes, member.header_at, header_end))?;
        let mut found = Number::ROOT;
        for name in path.split(|byte| *byte == b'/') {
            found = contents.child(found, name).unwrap();
        }
        assert_eq!((found, contents.entry(number)), (number, Some(Entry::File(member))));
        Ok((String::from_utf8(path).unwrap(), slice(bytes, at, at + member.len).to_vec()))
    });
    files.collect()
}

fn good(built: Built) -> Vec<(String, Vec<u8>)> {
    files(&built.bytes).unwrap()
}

/// What is wrong with an archive.
fn wrong(built: Built) -> String {
    files(&built.bytes).unwrap_err().to_string()
}

const TWO: &[(&str, &[u8])] = &[("dir/a", b"first"), ("b", b"second")];

fn two() -> Built {
    Built::new(TWO)
}

fn owned(members: &[(&str, &[u8])]) -> Vec<(String, Vec<u8>)> {
    members.iter().map(|(name, data)| ((*name).to_owned(), data.to_vec())).collect()
}

#[test]
fn members_that_python_wrote() {
    assert_eq!(files(PINNED).unwrap(), owned(&[("sub/a.b2nd", b"first"), ("é.b2f", b""), ("embed.b2e", b"second!")]));
    // Its last bytes are enough for the end.
    let tail = &PINNED[PINNED.len() - End::LEN as usize..];
    assert_eq!(End::parse(tail, PINNED.len() as u64).unwrap(), End { count: 3, directory: 127..290 });
}

#[test]
fn directories_are_listed_by_name() {
    let built = Built::new(&[("b/y/2", b""), ("a.b", b""), ("a/", b""), ("b/x", b""), ("b/y/1", b""), ("a/z", b""), ("c/", b"")]);
    let end = End::parse(&built.bytes, built.bytes.len() as u64).unwrap();
    let contents = Contents::parse(slice(&built.bytes, end.directory.start, end.directory.end), &end).unwrap();
    let list = |dir: &[u8]| {
        let names = dir.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let dir = names.fold(Number::ROOT, |dir, name| contents.child(dir, name).unwrap());
        contents.list(dir).map(|number| contents.name(Number(number)).escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        [list(b""), list(b"a"), list(b"b"), list(b"b/y"), list(b"c"), list(b"a.b")],
        ["a a.b b c", "z", "x y", "1 2", "", ""]
    );
    assert_eq!(contents.count(), 10);
    assert!(contents.child(Number::ROOT, b"").is_none() && contents.child(Number(99), b"a").is_none());
}

#[test]
fn an_empty_archive_has_an_empty_root() {
    assert_eq!(good(Built::new(&[])), owned(&[]));
}

#[test]
fn zip64_is_read() {
    assert_eq!(good(two().in_zip64()), owned(TWO));
    // Python leaves in the end record what fits there.
    let narrow = two();
    let fields = narrow.bytes[narrow.end + 8..narrow.end + 20].to_vec();
    assert_eq!(good(two().in_zip64().ended(8, &fields)), owned(TWO));
    for (at, field) in [(8, "members"), (12, "length of the directory"), (16, "offset of the directory")] {
        let mut other = fields.clone();
        other[at - 8] ^= 1;
        if at == 8 {
            other[at - 6] ^= 1;
        }
        assert!(wrong(two().in_zip64().ended(8, &other)).contains(field), "{field}");
    }
    // A record elsewhere, of another length, of several disks.
    let locator = |built: &Built| built.end - 20;
    let built = two().in_zip64();
    let at = locator(&built);
    assert!(wrong(built.with(at + 8, &[1])).contains("offset of the ZIP64 record"));
    let at = locator(&two().in_zip64());
    assert!(wrong(two().in_zip64().with(at + 16, &[2])).contains("number of disks"));
    assert!(wrong(two().in_zip64().with(at - 56 + 4, &[45])).contains("length of the ZIP64 record"));
    assert!(wrong(two().in_zip64().with(at - 56 + 24, &[9])).contains("members on this disk"));
    assert!(wrong(two().in_zip64().with(at - 56, b"XX")).contains("ZIP64 record"));
    for value in [u64::MAX, 1 << 62, MAX_ENTRIES as u64 + 1] {
        let [of_count, of_len] = [24, 40].map(|field| at - 56 + field);
        let counted = two().in_zip64().with(of_count, &[value.to_le_bytes(), value.to_le_bytes()].concat());
        assert!(wrong(counted).contains("members"));
        let long = two().in_zip64().with(of_len, &[value.to_le_bytes(), 0u64.to_le_bytes()].concat());
        assert!(wrong(long).contains("directory"));
    }
}

/// A member's lengths and offset, in an extra field.
#[test]
fn zip64_of_a_member_is_read() {
    let wide = |extra: &[u8], narrow: &[u8; 12]| {
        let mut built = two();
        let (at, start) = (built.centrals[1], built.centrals[0]);
        built.bytes.truncate(built.end);
        built.bytes.extend(extra);
        built = built.with(at + 20, &narrow[..8]).with(at + 42, &narrow[8..]).with(at + 30, &(extra.len() as u16).to_le_bytes());
        built.end(start);
        built
    };
    let at = two().locals[1] as u64;
    let field = |values: &[u64]| {
        let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        [&[9, 0, 2, 0, 7, 7, 1, 0, values.len() as u8, 0], &*values].concat()
    };
    let all = [0xff; 12];
    assert_eq!(good(wide(&field(&[6, 6, at]), &all)), owned(TWO));
    let lens = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, at as u8, 0, 0, 0];
    assert_eq!(good(wide(&field(&[6, 6]), &lens)), owned(TWO));
    assert!(wrong(wide(&field(&[6, 6]), &all)).contains("ZIP64 field"));
    assert!(wrong(wide(&field(&[6, 6, at])[..20], &all)).contains("extra field"));
    assert!(wrong(wide(&[], &all)).contains("ZIP64 field"));
    assert!(wrong(wide(&field(&[6, 5, at]), &all)).contains("stored length"));
    for far in [u64::MAX, u64::MAX - 40, 1 << 40] {
        let error = wrong(wide(&field(&[6, 6, far]), &all));
        assert!(error.contains("offset of a member") || error.contains("end of a member"), "{error}");
        assert!(wrong(wide(&field(&[far, far, at]), &all)).contains("member"));
    }
}

#[test]
fn an_end_that_lies_is_refused() {
    for (at, bytes, field) in [
        (0, &b"XX"[..], "end record"),
        (4, &[1], "number of this disk"),
        (6, &[1], "disk of the directory"),
        (8, &[1], "members on this disk"),
        (8, &[1, 0, 1], "directory"),
        (8, &[3, 0, 3], "members"),
        (8, &[0xff; 4], "members"),
        (12, &[0], "offset of the directory"),
        (12, &[0xff; 4], "length of the directory"),
        (16, &[0], "offset of the directory"),
        (16, &[0xff; 4], "offset of the directory"),
        (20, &[1], "comment"),
    ] {
        let error = wrong(two().ended(at, bytes));
        assert!(error.contains(field), "{at}: {error}");
    }
    // Something before, something behind, and what was cut.
    let bytes = two().bytes;
    assert!(files(&[b"before", &*bytes].concat()).is_err());
    assert!(files(&[&*bytes, b"behind"].concat()).is_err());
    for len in 0..bytes.len() {
        assert!(files(&bytes[..len]).is_err(), "{len}");
    }
}

#[test]
fn a_directory_that_lies_is_refused() {
    for (member, at, bytes, field) in [
        (0, 0, &b"XX"[..], "directory"),
        (0, 8, &[1], "flags"),
        (0, 8, &[0x40], "flags"),
        (0, 9, &[0x20], "flags"),
        (0, 10, &[8], "method"),
        (0, 20, &[4], "stored length"),
        (0, 20, &[6, 0, 0, 0, 6], "end of a member"),
        (1, 20, &[7, 0, 0, 0, 7], "end of a member"),
        (0, 28, &[4], "directory"),
        (0, 30, &[1], "directory"),
        (0, 32, &[1], "directory"),
        (1, 28, &[9], "name"),
        (1, 30, &[1], "extra fields"),
        (1, 32, &[1], "comment"),
        // A link, a device.
        (0, 41, &[0xa0], "file type"),
        (0, 41, &[0x20], "file type"),
        (1, 42, &[0], "end of a member"),
        (1, 42, &[0xfe, 0xff, 0xff, 0xff], "end of a member"),
    ] {
        let error = wrong(two().central(member, at, bytes));
        assert!(error.contains(field), "{member} {at}: {error}");
    }
    assert_eq!(good(two().central(0, 8, &[0x0e])), owned(TWO), "flags that say nothing of what is stored");
    assert_eq!(good(two().central(0, 41, &[0x80])), owned(TWO), "an ordinary file");
}

#[test]
fn a_local_header_that_lies_is_refused() {
    for (at, bytes, field) in [
        (0, &b"XX"[..], "local header"),
        (6, &[1], "flags"),
        (8, &[8], "method"),
        (18, &[4], "local length"),
        (22, &[4], "local length"),
        (18, &[0, 0, 0, 0, 0], "local length"),
        (26, &[4], "local name"),
        (28, &[1], "extra fields"),
        (28, &[0xff, 0xff], "extra fields"),
        (30, b"x", "local name"),
    ] {
        let error = wrong(two().local(0, at, bytes));
        assert!(error.contains(field), "{at}: {error}");
    }
    assert_eq!(good(two().local(0, 18, &[0xff; 8])), owned(TWO), "lengths in an extra field");
    assert_eq!(good(two().local(0, 6, &[8]).local(0, 18, &[0; 8])), owned(TWO), "lengths behind the data");
}

#[test]
fn hostile_names_are_refused() {
    let long = "n".repeat(256);
    let deep = "d/".repeat(MAX_PATH / 2) + "d";
    for name in ["", "/", "/a", "..", "../a", "a/..", "a/../b", ".", "./a", "a//b", "a//", "//", "a\0b", &long, &deep] {
        let error = wrong(Built::new(&[(name, b"")]));
        assert!(error.contains("name"), "{name}: {error}");
    }
    let fits = "n".repeat(255);
    assert_eq!(good(Built::new(&[(&fits, b"x"), ("..a", b""), ("a\\b", b"")])).len(), 3);
    // Bytes that are no text, and text of which nothing says that it is.
    let at = 46;
    assert!(wrong(Built::new(&[("aé", b"")]).central(0, at + 1, b"\xff")).contains("UTF-8"));
    assert!(wrong(Built::new(&[("aé", b"")]).central(0, 9, &[0])).contains("UTF-8"));
    // Nothing of a message reaches a terminal as it is.
    assert!(!wrong(Built::new(&[("/\x1b[31m", b"")])).contains('\x1b'));
}

#[test]
fn names_that_collide_are_refused() {
    for names in [
        &["a", "a"][..],
        &["a", "a/"],
        &["a/", "a/"],
        &["a", "a/b"],
        &["a/b/c", "a/b"],
        &["x", "a/b", "z", "a/b/"],
        &["a", "a.b", "a/b"],
    ] {
        for turn in 0..names.len() {
            let mut members: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, &b""[..])).collect();
            members.rotate_left(turn);
            let error = wrong(Built::new(&members));
            assert!(error.contains("no other member"), "{members:?}: {error}");
        }
    }
    assert!(wrong(Built::new(&[("a/", b"content")])).contains("directory"));
}

#[test]
fn members_that_overlap_are_refused() {
    // Two members of the same place, by the same local header or by one within the data of the other.
    let built = Built::new(&[("a", &[0; 100]), ("b", b"x")]);
    let at = built.locals[0];
    assert!(wrong(built.central(1, 42, &(at as u32).to_le_bytes())).contains("end of a member"));
    let inner = Built::new(&[("b", b"x")]).bytes;
    let mut built = Built::new(&[("a", &inner[..32]), ("b", b"x")]);
    let into = built.locals[0] as u32 + 31;
    built = built.central(1, 42, &into.to_le_bytes());
    assert!(wrong(built).contains("end of a member"));
}

/// A few bytes may not become many names.
#[test]
fn a_bomb_of_directories_is_refused() {
    let count = MAX_ENTRIES / (MAX_PATH / 2) + 2;
    let names: Vec<String> = (0..count).map(|n| format!("{n}/") + &"d/".repeat(MAX_PATH / 2 - 5)).collect();
    let members: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b""[..])).collect();
    let error = wrong(Built::new(&members));
    assert!(error.contains("with directories"), "{error}");
}

#[test]
fn as_many_members_as_the_end_record_can_count() {
    let names: Vec<String> = (0..0xffff).map(|n| format!("{:x}/{n}", n % 16)).collect();
    let members: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b""[..])).collect();
    let built = Built::new(&members);
    assert_eq!(built.bytes[built.end + 8..built.end + 12], [0xff; 4]);
    assert_eq!(good(built).len(), 0xffff);
}

#[test]
fn no_bytes_make_it_panic() {
    let bytes = two().in_zip64().bytes;
    for at in 0..bytes.len() {
        for flip in [1, 0x80, 0xff] {
            let mut other = bytes.clone();
            other[at] ^= flip;
            if let Ok(files) = files(&other) {
                assert_eq!(files.len(), 2);
            }
        }
    }
}
