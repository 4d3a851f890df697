//! The directory of an archive, as a tree of files and directories.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Range;

use super::end::End;
use super::record::Fields;
use super::{MAX_ENTRIES, MAX_NAME, MAX_PATH};
use crate::format::plain::plain;
use crate::format::{Error, Result};

const HEADER: &[u8; 4] = b"PK\x01\x02";
const HEADER_LEN: u64 = 46;
const LOCAL: &[u8; 4] = b"PK\x03\x04";
const LOCAL_LEN: u64 = 30;
/// Flags that change nothing in what is stored: how well it was compressed, lengths behind the data, names in UTF-8.
const HARMLESS: u16 = 0b110 | LENGTHS_BEHIND | UTF8;
const LENGTHS_BEHIND: u16 = 1 << 3;
const UTF8: u16 = 1 << 11;
/// The extra field that has what does not fit into 32 bits.
const ZIP64: u16 = 1;
/// Who made the archive: Unix, whose mode is in the external attributes.
const UNIX: u16 = 3;

/// The number of a file or directory in an archive; the root is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Number(pub u32);

impl Number {
    /// The directory that holds all others.
    pub const ROOT: Number = Number(0);
}

/// A file in an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Where its local header begins.
    pub header_at: u64,
    /// Where the next member, or the directory, begins.
    pub limit: u64,
    /// How long it is.
    pub len: u64,
}

/// What a number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A directory.
    Directory,
    /// A file.
    File(Member),
}

/// All files and directories of an archive. No name is there twice, and no two members share a byte.
#[derive(Debug)]
pub struct Contents {
    /// All names, one behind the other.
    names: Vec<u8>,
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    name: (u32, u16),
    parent: u32,
    what: What,
}

#[derive(Debug)]
enum What {
    /// Those in it are numbered one after the other, in the order of their names.
    Directory(Range<u32>),
    File(Member),
}

/// A member as the directory has it.
struct Listed<'a> {
    /// Without a slash behind it.
    path: &'a [u8],
    is_dir: bool,
    /// Where its header in the directory is, for messages.
    at: u64,
    member: Member,
    /// Where it ends at the earliest.
    end: u64,
}

impl Contents {
    /// Reads a directory; `bytes` is exactly it.
    ///
    /// # Errors
    /// What cannot be read in one way only; a member that is no plain file; names that a directory cannot have; more than the limits
    /// of this module. Offsets in errors are those in the file.
    pub fn parse(bytes: &[u8], end: &End) -> Result<Self> {
        let all = Fields::new(bytes, end.directory.start);
        let most = bytes.len() as u64 / HEADER_LEN;
        if end.count > most.min(MAX_ENTRIES as u64) {
            return Err(Error::new("zip: members", end.directory.start, end.count, format_args!("at most {most}")));
        }
        let mut members = Vec::with_capacity(usize::try_from(end.count).unwrap_or(0));
        let mut at = end.directory.start;
        for _ in 0..end.count {
            let (member, next) = Listed::parse(&all, at)?;
            members.push(member);
            at = next;
        }
        if at != end.directory.end {
            let got = format_args!("the end of {} members", end.count);
            return Err(Error::new("zip: directory", at, got, format_args!("it at {}", end.directory.end)));
        }
        keep_apart(&mut members, end.directory.start)?;
        members.sort_unstable_by(|one, other| by_path(one.path, other.path));
        Self::tree(&members)
    }

    /// Builds the tree, one directory after the other, from members in the order of their paths.
    fn tree(members: &[Listed<'_>]) -> Result<Self> {
        let mut tree = Contents { names: Vec::new(), nodes: Vec::new() };
        let root = Node { name: (0, 0), parent: 0, what: What::Directory(0..0) };
        tree.nodes.push(root);
        // Directories whose names are to be taken: those in it, and how much of their paths leads to it.
        let mut open = VecDeque::from([(0u32, members, 0usize)]);
        while let Some((dir, mut inside, prefix)) = open.pop_front() {
            let first = tree.next_number();
            while let Some(member) = inside.first() {
                let name = component(member.path, prefix);
                let same = inside.iter().take_while(|other| component(other.path, prefix) == name).count();
                let (these, rest) = inside.split_at(same);
                inside = rest;
                let depth = prefix.saturating_add(name.len());
                let below = if member.path.len() == depth { these.get(1..).unwrap_or_default() } else { these };
                let taken = below.first().filter(|_| below.len() < these.len() && !member.is_dir);
                let twice = below.first().filter(|other| other.path.len() == depth);
                if let Some(other) = taken.or(twice) {
                    return Err(other.error("zip: name", plain_of(other.path), "a name that no other member has"));
                }
                let is_file = member.path.len() == depth && !member.is_dir;
                let what = if is_file { What::File(member.member) } else { What::Directory(0..0) };
                let number = tree.push(dir, name, what).map_err(|expected| member.error("zip: members", "more", expected))?;
                if !is_file {
                    open.push_back((number, below, depth.saturating_add(1)));
                }
            }
            let last = tree.next_number();
            if let Some(node) = tree.node_mut(dir) {
                node.what = What::Directory(first..last);
            }
        }
        Ok(tree)
    }

    fn next_number(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    fn push(&mut self, parent: u32, name: &[u8], what: What) -> std::result::Result<u32, String> {
        let (number, start) = (self.next_number(), u32::try_from(self.names.len()));
        let (Ok(start), Ok(len)) = (start, u16::try_from(name.len())) else { return Err("shorter names".into()) };
        if self.nodes.len() >= MAX_ENTRIES {
            return Err(format!("at most {MAX_ENTRIES}, with directories"));
        }
        self.names.extend_from_slice(name);
        self.nodes.push(Node { name: (start, len), parent, what });
        Ok(number)
    }

    fn node(&self, number: u32) -> Option<&Node> {
        self.nodes.get(usize::try_from(number).ok()?)
    }

    fn node_mut(&mut self, number: u32) -> Option<&mut Node> {
        self.nodes.get_mut(usize::try_from(number).ok()?)
    }

    /// How many there are, with the root.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes of memory that this takes.
    pub fn weight(&self) -> u64 {
        let nodes = self.nodes.capacity().saturating_mul(size_of::<Node>());
        nodes.saturating_add(self.names.capacity()) as u64
    }

    /// What a number stands for.
    pub fn entry(&self, number: Number) -> Option<Entry> {
        Some(match self.node(number.0)?.what {
            What::Directory(_) => Entry::Directory,
            What::File(member) => Entry::File(member),
        })
    }

    /// The name of a file or directory in its directory; that of the root is empty.
    pub fn name(&self, number: Number) -> &[u8] {
        let range = self.node(number.0).and_then(|node| {
            let start = usize::try_from(node.name.0).ok()?;
            Some(start..start.checked_add(node.name.1.into())?)
        });
        range.and_then(|range| self.names.get(range)).unwrap_or_default()
    }

    /// The path of a file or directory in the archive.
    pub fn path(&self, number: Number) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = number;
        // A directory has a smaller number than what is in it.
        while let Some(node) = self.node(at.0).filter(|_| at != Number::ROOT) {
            names.push(self.name(at));
            at = Number(node.parent);
        }
        names.reverse();
        names.join(&b'/')
    }

    /// The directory that a file or directory is in; the root is in itself.
    pub fn parent(&self, number: Number) -> Number {
        self.node(number.0).map_or(Number::ROOT, |node| Number(node.parent))
    }

    /// What is in a directory, in the order of the names; of a file nothing.
    pub fn list(&self, dir: Number) -> Range<u32> {
        match self.node(dir.0).map(|node| &node.what) {
            Some(What::Directory(inside)) => inside.clone(),
            _ => 0..0,
        }
    }

    /// The file or directory that has a name in a directory.
    pub fn child(&self, dir: Number, name: &[u8]) -> Option<Number> {
        let inside = self.list(dir);
        let (mut low, mut high) = (inside.start, inside.end);
        while low < high {
            let middle = low.midpoint(high);
            match self.name(Number(middle)).cmp(name) {
                Ordering::Equal => return Some(Number(middle)),
                Ordering::Less => low = middle.saturating_add(1),
                Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// All files, in the order in which they lie in the archive.
    pub fn files(&self) -> Vec<(Number, Member)> {
        let numbered = self.nodes.iter().zip(0u32..);
        let files = numbered.filter_map(|(node, number)| match node.what {
            What::File(member) => Some((Number(number), member)),
            What::Directory(_) => None,
        });
        let mut files: Vec<_> = files.collect();
        files.sort_unstable_by_key(|(_, member)| member.header_at);
        files
    }
}

impl Member {
    /// How much of the archive from [`Member::header_at`] on [`Member::data`] takes, of a member with this path.
    pub fn header_len(path: &[u8]) -> usize {
        path.len().saturating_add(LOCAL_LEN as usize)
    }

    /// Where the data begins, by the local header.
    ///
    /// # Errors
    /// A local header that does not say what the directory says; data that would reach into what comes next.
    pub fn data(&self, path: &[u8], header: &[u8]) -> Result<u64> {
        let header = Fields::new(header, self.header_at);
        let name = header.part("zip: local name", header.offset(LOCAL_LEN), path.len() as u64)?;
        header.expect(0, "zip: local header", LOCAL)?;
        let flags = check_stored(&header, 6)?;
        if u64::from(header.u16(26)?) != path.len() as u64 || name.bytes() != path {
            return Err(Error::new("zip: local name", name.offset(0), plain_of(name.bytes()), plain_of(path)));
        }
        for at in [18, 22] {
            let len = header.u32(at)?;
            let unsaid = len == u32::MAX || len == 0 && flags & LENGTHS_BEHIND != 0;
            if u64::from(len) != self.len && !unsaid {
                return Err(Error::new("zip: local length", header.offset(at), len, self.len));
            }
        }
        let extra = u64::from(header.u16(28)?);
        let data = name.offset(path.len() as u64).saturating_add(extra);
        match data.checked_add(self.len).filter(|end| *end <= self.limit) {
            Some(_) => Ok(data),
            None => Err(Error::new("zip: local extra fields", header.offset(28), extra, "what leaves room for the data")),
        }
    }
}

impl<'a> Listed<'a> {
    /// Reads one member of a directory. Answers where the next begins, too.
    fn parse(all: &Fields<'a>, at: u64) -> Result<(Self, u64)> {
        let header = all.part("zip: directory", at, HEADER_LEN)?;
        header.expect(0, "zip: directory", HEADER)?;
        let flags = check_stored(&header, 8)?;
        let lens = [header.u16(28)?, header.u16(30)?, header.u16(32)?].map(u64::from);
        let [path_at, extra_at, comment_at, next] = [0, 1, 2, 3].map(|n| {
            let before: u64 = lens.iter().take(n).fold(HEADER_LEN, |sum, len| sum.saturating_add(*len));
            at.saturating_add(before)
        });
        let path = all.part("zip: name", path_at, lens[0])?.bytes();
        let extra = all.part("zip: extra fields", extra_at, lens[1])?;
        all.part("zip: comment", comment_at, lens[2])?;
        let mut wide = Wide { extra: None };
        let mut widened = |narrow: u32| if narrow == u32::MAX { wide.next(&extra) } else { Ok(narrow.into()) };
        let len = widened(header.u32(24)?)?;
        let stored = widened(header.u32(20)?)?;
        let header_at = widened(header.u32(42)?)?;
        if stored != len {
            return Err(Error::new("zip: stored length", header.offset(20), stored, len));
        }
        let (text, is_dir) = match path.split_last() {
            Some((b'/', text)) => (text, true),
            _ => (path, false),
        };
        check_path(text, flags).map_err(|expected| Error::new("zip: name", path_at, plain_of(path), expected))?;
        let mode = if header.u16(4)? >> 8 == UNIX { header.u32(38)? >> 28 } else { 0 };
        // Files are 8 and directories 4; 0 is what says nothing.
        if !matches!((mode, is_dir), (0, _) | (8, false) | (4, true)) {
            return Err(Error::new("zip: file type", header.offset(38), mode, "that of a file or a directory"));
        }
        if is_dir && len != 0 {
            return Err(Error::new("zip: length of a directory", header.offset(24), len, 0));
        }
        let of_header = LOCAL_LEN.saturating_add(lens[0]);
        let end = header_at.checked_add(of_header).and_then(|start| start.checked_add(len));
        let end = end.ok_or_else(|| Error::new("zip: offset of a member", header.offset(42), header_at, "less"))?;
        // Its limit is known when all are.
        let member = Member { header_at, limit: end, len };
        Ok((Listed { path: text, is_dir, at, member, end }, next))
    }

    fn error(&self, field: &'static str, got: impl std::fmt::Display, expected: impl std::fmt::Display) -> Error {
        Error::new(field, self.at, got, expected)
    }
}

/// What does not fit into 32 bits: in the order in which it is missed.
struct Wide<'a> {
    extra: Option<Fields<'a>>,
}

impl<'a> Wide<'a> {
    fn next(&mut self, extra: &Fields<'a>) -> Result<u64> {
        let rest = match self.extra {
            Some(rest) => rest,
            None => Self::find(extra)?,
        };
        let value = rest.part("zip: ZIP64 field", rest.offset(0), 8)?.u64(0)?;
        let left = (rest.bytes().len() as u64).saturating_sub(8);
        self.extra = Some(rest.part("zip: ZIP64 field", rest.offset(8), left)?);
        Ok(value)
    }

    fn find(extra: &Fields<'a>) -> Result<Fields<'a>> {
        let mut at = 0u64;
        loop {
            let field = extra.part("zip: ZIP64 field", extra.offset(at), 4)?;
            let (id, len) = (field.u16(0)?, u64::from(field.u16(2)?));
            let content = extra.part("zip: extra field", extra.offset(at.saturating_add(4)), len)?;
            if id == ZIP64 {
                return Ok(content);
            }
            at = at.saturating_add(4).saturating_add(len);
        }
    }
}

/// That a member is neither compressed nor encrypted, by its flags and what follows them. Answers the flags.
fn check_stored(header: &Fields<'_>, at: u64) -> Result<u16> {
    let flags = header.u16(at)?;
    if flags & !HARMLESS != 0 {
        return Err(Error::new("zip: flags", header.offset(at), format_args!("{flags:#06x}"), "a member that is not encrypted"));
    }
    let method_at = at.saturating_add(2);
    match header.u16(method_at)? {
        0 => Ok(flags),
        method => Err(Error::new("zip: method", header.offset(method_at), method, "0, a member that is not compressed")),
    }
}

/// That a path leads to somewhere beneath the directory that it begins in. Answers what was expected.
fn check_path(path: &[u8], flags: u16) -> std::result::Result<(), &'static str> {
    if path.len() > MAX_PATH {
        return Err("a shorter path");
    }
    if !path.is_ascii() && (flags & UTF8 == 0 || std::str::from_utf8(path).is_err()) {
        return Err("ASCII, or UTF-8 by its flag");
    }
    let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && name.len() <= MAX_NAME && !name.contains(&0);
    if path.split(|byte| *byte == b'/').all(is_name) {
        Ok(())
    } else {
        Err("names that a file can have, with a slash between two")
    }
}

/// Sets the limits of members, and checks that each one ends within them.
fn keep_apart(members: &mut [Listed<'_>], directory: u64) -> Result<()> {
    members.sort_unstable_by_key(|member| member.member.header_at);
    let mut limit = directory;
    for member in members.iter_mut().rev() {
        if member.end > limit {
            let field = "zip: end of a member";
            return Err(member.error(field, member.end, format_args!("at most {limit}, where something else begins")));
        }
        member.member.limit = limit;
        limit = member.member.header_at;
    }
    Ok(())
}

/// The name at a place in a path.
fn component(path: &[u8], at: usize) -> &[u8] {
    path.get(at..).and_then(|rest| rest.split(|byte| *byte == b'/').next()).unwrap_or_default()
}

/// Name by name, so that all that is in a directory stands together.
fn by_path(one: &[u8], other: &[u8]) -> Ordering {
    let names = |path| <[u8]>::split(path, |byte: &u8| *byte == b'/');
    names(one).cmp(names(other))
}

/// A name of an archive in a message.
fn plain_of(name: &[u8]) -> String {
    const MOST: usize = 60;
    // No more of it is escaped than can be shown.
    let text = String::from_utf8_lossy(name.get(..MOST).unwrap_or(name)).into_owned();
    let shown = plain(&text).to_string();
    let cut = if name.len() > MOST || shown.chars().nth(MOST).is_some() { "..." } else { "" };
    format!("'{}{cut}'", shown.chars().take(MOST).collect::<String>())
}
