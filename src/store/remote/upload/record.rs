//! What is known of an object that is being sent in parts, for the next process to go on with after this one has ended.
//!
//! A store tells nobody which parts it has. So each part that has arrived is written down: its number, length, checksum and what the store
//! calls it. The record is on this machine, with the state of its user, and not beside the object: nobody else can plant one there, it needs
//! no rights, leaves no versions and shows up in no listing, and whoever has it locked is the only one to go on with it.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use log::debug;

use crate::store::in_words;
use crate::store::journal::{self, Journal};

/// How many parts a store takes.
pub(super) const PARTS: u64 = 10_000;
/// How often it is tried to make an object of parts that are said to be there.
const ATTEMPTS: usize = 3;

/// Where records are.
pub struct Records {
    /// A directory; that of the user, if none.
    dir: Option<PathBuf>,
    /// What beside its URL says where an object is, without secrets.
    origin: String,
}

impl Records {
    /// Those of the user of this process: in `$XDG_STATE_HOME/b2fuse/uploads/`, root's in `/var/lib/b2fuse/uploads/`.
    pub fn of_user(origin: &str) -> Self {
        Records { dir: None, origin: origin.to_owned() }
    }

    /// Those in a directory, which is made if there is none.
    pub fn within(dir: &Path, origin: &str) -> Self {
        Records { dir: Some(dir.to_owned()), origin: origin.to_owned() }
    }

    /// The record of the object that has this URL, unless another process has it.
    pub(super) fn open(&self, url: &Path, make: bool) -> Option<Record> {
        let opened = || {
            let dir = journal::directory(self.dir.as_deref(), "uploads")?;
            let (of, mut found) = (format!("{:?} {url:?}", self.origin), None);
            let journal = Journal::open(dir, &of, make, &mut |line| take(&mut found, line))?;
            io::Result::Ok(journal.map(|journal| Record { journal, of, found }))
        };
        opened().unwrap_or_else(|error| {
            debug!("{}: what is sent is not recorded: {}", url.display(), in_words(&error));
            None
        })
    }
}

/// A part that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub len: u64,
    pub sum: u64,
    /// What the store calls it.
    pub id: String,
}

/// An object that was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Begun {
    /// What the store calls it.
    pub id: String,
    /// Bytes of it, and of each of its parts but the last.
    pub len: u64,
    pub part: u64,
    /// Whether it is to replace what has the name.
    pub replace: bool,
}

/// What an earlier process has done.
#[derive(Debug)]
pub(super) struct Found {
    pub begun: Begun,
    pub parts: HashMap<usize, Part>,
    ends: usize,
}

impl Found {
    /// Whether an object can be made of it, as far as anybody can say.
    pub(super) fn is_good_for(&self, len: u64, part: u64, replace: bool) -> bool {
        let Begun { len: its_len, part: its_part, replace: its_replace, .. } = self.begun;
        !self.parts.is_empty() && self.ends < ATTEMPTS && (its_len, its_part, its_replace) == (len, part, replace)
    }
}

/// The record of an object, which nobody else has meanwhile.
pub(super) struct Record {
    journal: Journal,
    of: String,
    found: Option<Found>,
}

impl Record {
    /// What an earlier process has done.
    pub(super) fn take_found(&mut self) -> Option<Found> {
        self.found.take()
    }

    /// An object is begun: nothing before counts.
    pub(super) fn begin(&mut self, begun: &Begun) -> io::Result<()> {
        let Begun { id, len, part, replace } = begun;
        self.journal.clear(&self.of)?;
        self.journal.add(&format!("object {len} {part} {} {}", u8::from(*replace), BASE64_STANDARD.encode(id)))
    }

    /// A part has arrived.
    pub(super) fn add(&mut self, number: usize, part: &Part) -> io::Result<()> {
        let Part { len, sum, id } = part;
        self.journal.add(&format!("part {number} {len} {sum:x} {}", BASE64_STANDARD.encode(id)))
    }

    /// An object is to be made of the parts.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.journal.add("end")
    }

    /// There is nothing to go on with.
    pub(super) fn remove(&mut self) {
        self.journal.remove();
    }
}

/// Takes a line of a record; whether it can be one.
fn take(found: &mut Option<Found>, line: &str) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |word: &str| word.parse::<u64>().ok();
    let text = |word: &str| String::from_utf8(BASE64_STANDARD.decode(word).ok()?).ok();
    let taken = match (words.as_slice(), found) {
        (["object", len, part, replace, id], found @ None) => (|| {
            let (len, part) = (number(len)?, number(part).filter(|part| *part > 0)?);
            let begun = Begun { id: text(id)?, len, part, replace: *replace == "1" };
            (len.div_ceil(part) <= PARTS).then(|| *found = Some(Found { begun, parts: HashMap::new(), ends: 0 }))
        })(),
        (["part", count, len, sum, id], Some(found)) => (|| {
            let (count, len) = (number(count)?, number(len)?);
            let begin = count.checked_mul(found.begun.part).filter(|begin| *begin < found.begun.len)?;
            let part = Part { len, sum: u64::from_str_radix(sum, 16).ok()?, id: text(id)? };
            let is_good = len == found.begun.part.min(found.begun.len - begin);
            is_good.then(|| found.parts.insert(usize::try_from(count).unwrap_or(usize::MAX), part)).map(drop)
        })(),
        (["end"], Some(found)) => {
            found.ends += 1;
            Some(())
        }
        _ => None,
    };
    taken.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_cannot_be_true_are_refused() {
        let text = |text: &str| BASE64_STANDARD.encode(text);
        let good = format!("object 25000000 10000000 1 {}", text("an id"));
        let mut found = None;
        assert!(!take(&mut found, &format!("part 0 10000000 ff {}", text("a"))), "no object was begun");
        for bad in [
            "",
            "object",
            "object 1 0 1 ",
            "object x 1 1 ",
            "object 1 1 1 !",
            "object 10001 1 1 ",
            "object 99999999999999999999 1 1 ",
        ] {
            assert!(!take(&mut found, bad) && found.is_none(), "{bad}");
        }
        assert!(take(&mut found, &good));
        assert!(!take(&mut found, &good), "it was begun before");
        for bad in [
            "part 3 0 0 ",
            "part 2 10000000 0 ",
            "part 0 9999999 0 ",
            "part 18446744073709551615 1 0 ",
            "part -1 1 0 ",
            "part 0 10000000 g ",
        ] {
            assert!(!take(&mut found, bad), "{bad}");
        }
        assert!(take(&mut found, &format!("part 0 10000000 ff {}", text("a"))));
        assert!(take(&mut found, &format!("part 2 5000000 1 {}", text("b"))));
        assert!(take(&mut found, &format!("part 0 10000000 fe {}", text("c"))));
        let whole = found.as_ref().unwrap();
        assert_eq!(whole.begun, Begun { id: "an id".into(), len: 25_000_000, part: 10_000_000, replace: true });
        assert_eq!(whole.parts[&0], Part { len: 10_000_000, sum: 0xfe, id: "c".into() });
        assert_eq!(whole.parts.len(), 2);
        assert!(whole.is_good_for(25_000_000, 10_000_000, true));
        assert!(!whole.is_good_for(25_000_000, 10_000_000, false) && !whole.is_good_for(25_000_001, 10_000_000, true));
        for _ in 0..ATTEMPTS {
            assert!(found.as_ref().unwrap().is_good_for(25_000_000, 10_000_000, true));
            assert!(take(&mut found, "end"));
        }
        assert!(!found.unwrap().is_good_for(25_000_000, 10_000_000, true));
    }
}
