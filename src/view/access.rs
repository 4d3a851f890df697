//! Access lists of files, as acl(5) has them: the list that a view shows for SOURCE's, and the permission bits that grant no more than
//! the list where a mount shows no lists.
//!
//! The group bits of a file with a list are the list's mask. Without the list they would grant the owning group everything that any named
//! user has.

use super::{Attr, Kind, Meta, Result};
use crate::store::backend::FileStat;

/// The extended attribute that holds a file's list.
pub const NAME: &str = "system.posix_acl_access";
/// What the names of lists begin with: that of a file, and the one that a directory gives to what is made in it.
pub const NAMES: &str = "system.posix_acl_";

const VERSION: u32 = 2;
const HEADER_LEN: usize = 4;
const ENTRY_LEN: usize = 8;
/// The id of an entry that names nobody.
const NO_ID: u32 = u32::MAX;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const NAMED_GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// Permissions of one class: 4 to read, 2 to write, 1 to execute or to pass through.
type Perm = u32;

/// How permissions of SOURCE become those of what stands for it.
pub type Convert = fn(Perm) -> Perm;

/// A file of a frame is no program.
pub fn as_file(perm: Perm) -> Perm {
    perm & 6
}

/// A directory that stands for a file lets through who may read the file.
pub fn as_directory(perm: Perm) -> Perm {
    perm & 6 | (perm & 4) >> 2
}

/// A file in an archive is only read.
pub fn as_read_file(perm: Perm) -> Perm {
    perm & 4
}

/// A directory that stands for an archive, or is in one.
pub fn as_read_directory(perm: Perm) -> Perm {
    perm & 4 | (perm & 4) >> 2
}

/// A mask for a list that grants nothing: the kernel ignores a list with an empty one.
const ANY_MASK: Perm = 4;

/// Whether the kernel ignores the list of a file with these permission bits, and others have some right.
fn is_ignored(mode: u32) -> bool {
    mode & 0o070 == 0 && mode & 0o007 != 0
}

/// Attributes with the permission bits that a mount shows: those that go with the list where lists are shown, and else those that grant
/// no more than the list. `rights` gives those of the file as it is shown, if it has a list.
pub fn shown(attr: Attr, lists: bool, rights: impl FnOnce() -> Result<Option<Rights>>) -> Attr {
    let mode = attr.meta.mode;
    if attr.kind == Kind::Symlink || mode & 0o077 == 0 || lists && !is_ignored(mode) {
        return attr;
    }
    match rights() {
        Ok(None) => attr,
        Ok(Some(rights)) if lists => attr.with_mode(rights.mode()),
        Ok(Some(rights)) => attr.with_mode(rights.bits()),
        Err(_) => attr.with_mode(mode & !0o077),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: Perm,
    id: u32,
}

/// An access list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessList(Vec<Entry>);

impl AccessList {
    /// Parses the value of the attribute; `None` if it is no list.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (version, entries) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let (entries, rest) = entries.as_chunks::<ENTRY_LEN>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return None;
        }
        let entry = |[t0, t1, p0, p1, id @ ..]: &[u8; ENTRY_LEN]| Entry {
            tag: u16::from_le_bytes([*t0, *t1]),
            perm: u32::from(u16::from_le_bytes([*p0, *p1])) & 7,
            id: u32::from_le_bytes(*id),
        };
        Some(AccessList(entries.iter().map(entry).collect()))
    }

    /// The value of the attribute.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for Entry { tag, perm, id } in &self.0 {
            bytes.extend(tag.to_le_bytes());
            bytes.extend((*perm as u16).to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    fn first(&self, tag: u16) -> Option<Perm> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    fn named(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter(|entry| matches!(entry.tag, USER | NAMED_GROUP))
    }

    /// The list with all permissions converted.
    pub fn converted(&self, convert: Convert) -> Self {
        AccessList(self.0.iter().map(|entry| Entry { perm: convert(entry.perm), ..*entry }).collect())
    }

    /// The list after a chmod(2) to `mode`.
    pub fn with_mode(mut self, mode: u32) -> Self {
        let group = if self.first(MASK).is_some() { MASK } else { GROUP };
        for entry in &mut self.0 {
            match entry.tag {
                OWNER => entry.perm = mode >> 6 & 7,
                OTHERS => entry.perm = mode & 7,
                tag if tag == group => entry.perm = mode >> 3 & 7,
                _ => {}
            }
        }
        self
    }
}

/// Who may do what with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    uid: u32,
    gid: u32,
    /// Permission bits. With a list, those of the group are its mask.
    mode: u32,
    list: Option<AccessList>,
}

impl Rights {
    /// Those of a file with the value of its list, if it has one.
    pub fn new(stat: &FileStat, list: Option<Vec<u8>>) -> Self {
        Self::of(stat.uid, stat.gid, stat.mode, list)
    }

    /// Those of what a view shows for a file with that list.
    pub fn of_meta(meta: &Meta, list: Option<Vec<u8>>) -> Self {
        Self::of(meta.uid, meta.gid, meta.mode, list)
    }

    fn of(uid: u32, gid: u32, mode: u32, list: Option<Vec<u8>>) -> Self {
        match list.map(|list| AccessList::parse(&list)) {
            None => Rights { uid, gid, mode, list: None },
            Some(Some(list)) => Rights { uid, gid, mode, list: Some(list) },
            // What it grants is not known.
            Some(None) => Rights { uid, gid, mode: mode & !0o077, list: None },
        }
    }

    /// Those of what stands for the file, and has the permission bits `mode`.
    pub fn shown(self, convert: Convert, mode: u32) -> Self {
        let Some(list) = self.list else { return Rights { mode, ..self } };
        // The kernel ignores a list with an empty mask: users that it names would have what others have.
        let is_ignored = is_ignored(mode) && list.first(MASK).is_some_and(|mask| mask != 0);
        let convert = if is_ignored { |_| 0 } else { convert };
        let mode = if is_ignored { mode | ANY_MASK << 3 } else { mode };
        Rights { mode, list: Some(list.converted(convert).with_mode(mode)), ..self }
    }

    /// The permission bits.
    pub fn mode(&self) -> u32 {
        self.mode
    }

    /// The list.
    pub fn list(&self) -> Option<&AccessList> {
        self.list.as_ref()
    }

    /// Permission bits that grant no more where the list is not shown. Group and others have what the list gives them and every
    /// named user and group as well, because members of a named group may be members of the group or others.
    pub fn bits(&self) -> u32 {
        let (group, others) = (self.group(), self.others());
        let named = self.least_named();
        self.mode & !0o077 | (group & named) << 3 | others & named
    }

    fn mask(&self) -> Perm {
        self.mode >> 3 & 7
    }

    /// What the owning group has.
    fn group(&self) -> Perm {
        self.list.as_ref().and_then(|list| list.first(GROUP)).unwrap_or(7) & self.mask()
    }

    fn others(&self) -> Perm {
        self.mode & 7
    }

    /// What every named user and group has.
    fn least_named(&self) -> Perm {
        let named = self.list.iter().flat_map(AccessList::named);
        named.fold(7, |least, entry| least & entry.perm & self.mask())
    }

    /// What everybody has but the owner.
    fn least(&self) -> Perm {
        self.group() & self.others() & self.least_named()
    }

    /// What a named user or group has, or at least has if the list does not name it.
    fn of_named(&self, tag: u16, id: u32) -> Perm {
        let mut named = self.list.iter().flat_map(AccessList::named);
        let found = named.find(|entry| (entry.tag, entry.id) == (tag, id));
        found.map_or_else(|| self.least(), |entry| entry.perm & self.mask())
    }

    /// Those of a file that can be reached only through a directory.
    pub fn through(self, dir: &Rights) -> Self {
        let lets = |perm: Perm| if perm & 1 == 0 { 0 } else { 7 };
        let owner = if dir.uid == self.uid { dir.mode >> 6 & 7 } else { dir.least() };
        if lets(owner & dir.least()) == 7 {
            return self;
        }
        let (group, others) = match dir.gid == self.gid {
            true => (dir.group(), dir.others()),
            false => (dir.least(), dir.least()),
        };
        let (group, others) = (self.group() & lets(group), self.others() & lets(others));
        let mut named: Vec<Entry> = Vec::new();
        for Entry { tag, id, .. } in [&self, dir].into_iter().flat_map(|rights| &rights.list).flat_map(AccessList::named) {
            if named.iter().all(|entry| (entry.tag, entry.id) != (*tag, *id)) {
                let perm = self.of_named(*tag, *id) & lets(dir.of_named(*tag, *id));
                named.push(Entry { tag: *tag, perm, id: *id });
            }
        }
        named.sort_unstable_by_key(|entry| (entry.tag, entry.id));
        let owner = (self.mode >> 6 & 7) & lets(owner);
        let mask = named.iter().fold(group, |mask, entry| mask | entry.perm);
        let mask = if mask == 0 && !named.is_empty() { ANY_MASK } else { mask };
        let mode = self.mode & !0o777 | owner << 6 | mask << 3 | others;
        if named.is_empty() {
            return Rights { mode, list: None, ..self };
        }
        let one = |tag, perm| Entry { tag, perm, id: NO_ID };
        let (users, groups) = named.split_at(named.partition_point(|entry| entry.tag == USER));
        let list = [&[one(OWNER, owner)], users, &[one(GROUP, group)], groups, &[one(MASK, mask), one(OTHERS, others)]].concat();
        Rights { mode, list: Some(AccessList(list)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, Perm, u32)]) -> AccessList {
        AccessList(entries.iter().map(|(tag, perm, id)| Entry { tag: *tag, perm: *perm, id: *id }).collect())
    }

    fn rights(mode: u32, named: &[(u16, Perm, u32)], group: Perm) -> Rights {
        let mask = mode >> 3 & 7;
        let mut entries = vec![(OWNER, mode >> 6 & 7, NO_ID)];
        entries.extend(named.iter().filter(|entry| entry.0 == USER));
        entries.push((GROUP, group, NO_ID));
        entries.extend(named.iter().filter(|entry| entry.0 == NAMED_GROUP));
        entries.extend([(MASK, mask, NO_ID), (OTHERS, mode & 7, NO_ID)]);
        Rights { uid: 1, gid: 10, mode, list: Some(list(&entries)) }
    }

    fn plain(mode: u32) -> Rights {
        Rights { uid: 1, gid: 10, mode, list: None }
    }

    #[test]
    fn what_is_no_list_is_refused_and_what_is_one_stays_the_same() {
        let value = rights(0o664, &[(USER, 6, 7), (NAMED_GROUP, 4, 8)], 0).list.unwrap().encode();
        assert_eq!(AccessList::parse(&value).unwrap().encode(), value);
        for broken in [&[][..], &value[..3], &value[..7], &[3, 0, 0, 0]] {
            assert_eq!(AccessList::parse(broken), None);
        }
        assert_eq!(Rights::of(1, 10, 0o664, Some(vec![9])).mode(), 0o600, "nobody gets what an unknown list may deny");
    }

    #[test]
    fn bits_grant_no_more_than_the_list() {
        assert_eq!(plain(0o754).bits(), 0o754);
        // The group has nothing, and the mask is that of a named user.
        assert_eq!(rights(0o664, &[(USER, 6, 7)], 0).bits(), 0o604);
        // A named user who is denied may be one of the group, or of others.
        assert_eq!(rights(0o664, &[(USER, 0, 7)], 6).bits(), 0o600);
        assert_eq!(rights(0o666, &[(NAMED_GROUP, 4, 8)], 6).bits(), 0o644);
        assert_eq!(rights(0o604, &[(USER, 6, 7)], 6).bits(), 0o600, "the mask denies it to the named user");
    }

    #[test]
    fn what_stands_for_a_file_has_its_list() {
        let shown = rights(0o674, &[(USER, 7, 7), (USER, 2, 9)], 4).shown(as_directory, 0o775);
        let expected = rights(0o775, &[(USER, 7, 7), (USER, 2, 9)], 5);
        assert_eq!(shown, expected);
        let shown = rights(0o674, &[(USER, 7, 7)], 5).shown(as_file, 0o664);
        assert_eq!(shown, rights(0o664, &[(USER, 6, 7)], 4));
        // Nobody of the group class has any right, and others have.
        let shown = rights(0o614, &[(USER, 1, 7)], 1).shown(as_file, 0o604);
        assert_eq!(shown, rights(0o644, &[(USER, 0, 7)], 0));
        // A chmod through the mount sets the mask.
        assert_eq!(rights(0o664, &[(USER, 6, 7)], 6).shown(as_file, 0o640), rights(0o640, &[(USER, 6, 7)], 6));
    }

    #[test]
    fn a_directory_keeps_out_whom_it_keeps_out() {
        let index = || rights(0o664, &[(USER, 6, 7)], 4);
        assert_eq!(index().through(&plain(0o755)), index());
        assert_eq!(plain(0o644).through(&plain(0o750)), plain(0o640));
        assert_eq!(plain(0o644).through(&plain(0o705)).mode(), 0o604);
        // The same list, as directories have it.
        let same = rights(0o774, &[(USER, 7, 7)], 5);
        assert_eq!(index().through(&same), rights(0o660, &[(USER, 6, 7)], 4));
        // Only the directory names the user.
        let through = plain(0o644).through(&rights(0o755, &[(USER, 0, 7)], 5));
        assert_eq!(through, rights(0o644, &[(USER, 0, 7)], 4));
        let through = plain(0o604).through(&rights(0o711, &[(USER, 0, 7)], 0));
        assert_eq!(through, rights(0o644, &[(USER, 0, 7)], 0), "a list with an empty mask would be ignored");
        let of_another = Rights { uid: 2, gid: 20, ..plain(0o711) };
        assert_eq!(plain(0o644).through(&of_another), plain(0o644));
        assert_eq!(plain(0o644).through(&Rights { gid: 20, ..plain(0o701) }).mode(), 0o600);
    }
}
