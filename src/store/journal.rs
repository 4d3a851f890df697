//! A file of lines to which more are added: what is done so far of something that takes long, for a next process to go on with.
//!
//! Each line has its checksum. What is behind the first one that is not as it was written does not count, so that a process may end, and a
//! machine lose its power, at any moment. A line says what was done, and never that it is still there: who reads it checks that. The first
//! line says of what the file is. Whoever has a journal open has it alone.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use super::backend::{Backend, BackendFile, FileStat};
use super::checksum::checksum;
use super::local::system;

/// Bytes of a journal at most. A longer one is begun anew, and no more is added to one that would be longer.
const MOST: u64 = 256 << 20;
/// Bytes of a line at most, with its checksum.
const LINE: usize = 16 << 10;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;
/// How often others may remove what was just opened.
const ATTEMPTS: usize = 8;
/// Bytes of a checksum in hexadecimal, and a space.
const SUM: usize = 17;

/// A journal that is open and locked.
pub struct Journal {
    dir: Box<dyn Backend>,
    name: OsString,
    file: Box<dyn BackendFile>,
    stat: FileStat,
    end: u64,
    is_removed: bool,
}

/// Where journals are: `within`, a directory that is made if there is none, or that of the user of this process,
/// `$XDG_STATE_HOME/b2fuse/NAME`, root's `/var/lib/b2fuse/NAME`.
///
/// # Errors
/// As [`system::private_dir`] and [`system::state_dir`].
pub fn directory(within: Option<&Path>, name: &str) -> io::Result<Box<dyn Backend>> {
    match within {
        Some(dir) => system::private_dir(dir),
        None => Ok(system::state_dir(name)?.0),
    }
}

/// The name of the journal of what `of` says.
fn name_of(of: &str) -> OsString {
    format!("{:016x}", checksum(of.as_bytes())).into()
}

impl Journal {
    /// Opens the journal of what `of` says, if no other process has it open; makes one if there is none. `each` gets the lines that were
    /// added, and returns whether a line can be one: if not, it and all behind it do not count.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn open(dir: Box<dyn Backend>, of: &str, each: &mut dyn FnMut(&str) -> bool) -> io::Result<Option<Self>> {
        let name = name_of(of);
        for _ in 0..ATTEMPTS {
            let file = match dir.open(&name, true) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => match dir.create(&name, 0o600) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                    made => made?,
                },
                opened => opened?,
            };
            if !file.try_lock()? {
                return Ok(None);
            }
            let stat = file.stat()?;
            // Whoever had it may have removed it just before.
            if !dir.stat(&name).is_ok_and(|now| now.same_file(&stat)) {
                continue;
            }
            let mut journal = Journal { dir, name, file, stat, end: 0, is_removed: false };
            journal.read(of, each)?;
            return Ok(Some(journal));
        }
        Ok(None)
    }

    /// Whether somebody has the journal of what `of` says open.
    pub fn is_open(dir: &dyn Backend, of: &str) -> bool {
        dir.open(&name_of(of), true).is_ok_and(|file| file.try_lock().is_ok_and(|is_free| !is_free))
    }

    /// Reads what is good, and cuts off the rest.
    fn read(&mut self, of: &str, each: &mut dyn FnMut(&str) -> bool) -> io::Result<()> {
        let mut is_first = true;
        let mut take = |line: &[u8]| match good(line) {
            Some(text) if std::mem::take(&mut is_first) => text == of,
            Some(text) => each(text),
            None => false,
        };
        let (mut rest, mut at) = (Vec::new(), 0);
        let mut piece = vec![0; PIECE];
        'all: while self.stat.len <= MOST && rest.len() <= LINE {
            let count = self.file.read_at(&mut piece, at)?;
            if count == 0 {
                break;
            }
            at += count as u64;
            rest.extend_from_slice(piece.get(..count).unwrap_or_default());
            let mut done = 0;
            for line in rest.split_inclusive(|byte| *byte == b'\n') {
                let Some(text) = line.strip_suffix(b"\n") else { break };
                if line.len() > LINE || !take(text) {
                    break 'all;
                }
                done += line.len();
                self.end += line.len() as u64;
            }
            rest.drain(..done);
        }
        self.file.set_len(self.end)?;
        if self.end == 0 { self.write(of) } else { Ok(()) }
    }

    /// Adds a line, which has no line feed in it.
    ///
    /// # Errors
    /// What the system refuses; a line or a journal that would be too long. Then what was added before still counts.
    pub fn add(&mut self, line: &str) -> io::Result<()> {
        if self.is_removed { Ok(()) } else { self.write(line) }
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        let line = format!("{:016x} {line}\n", checksum(line.as_bytes()));
        let len = line.len() as u64;
        if line.len() > LINE || self.end + len > MOST || line.matches('\n').count() > 1 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_at(line.as_bytes(), self.end)?;
        self.end += len;
        Ok(())
    }

    /// Leaves nothing but what it is of.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn clear(&mut self, of: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.end = 0;
        self.write(of)
    }

    /// Whether it was removed.
    pub fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// Removes it: nothing is left to go on with.
    pub fn remove(&mut self) {
        self.is_removed = true;
        if let Err(error) = self.dir.remove_file(&self.name, &self.stat) {
            log::debug!("a record cannot be removed: {}", super::in_words(&error));
        }
    }
}

/// The text of a line, if it is as it was written.
fn good(line: &[u8]) -> Option<&str> {
    let line = str::from_utf8(line).ok()?;
    let (found, text) = (line.get(..SUM - 1)?, line.get(SUM - 1..)?.strip_prefix(' ')?);
    (u64::from_str_radix(found, 16).ok()? == checksum(text.as_bytes())).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(dir: &Path, of: &str) -> Option<(Journal, Vec<String>)> {
        let mut lines = Vec::new();
        let mut each = |line: &str| {
            lines.push(line.to_owned());
            !line.starts_with("no")
        };
        let journal = Journal::open(system::private_dir(dir).unwrap(), of, &mut each).unwrap()?;
        Some((journal, lines))
    }

    #[test]
    fn lines_count_up_to_the_first_that_is_not_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("journals");
        let (mut journal, lines) = read(&at, "a frame").unwrap();
        assert!(lines.is_empty());
        let expected: Vec<_> = (0..9000).map(|number| format!("line {number}")).collect();
        expected.iter().for_each(|line| journal.add(line).unwrap());
        assert!(journal.add("two\nlines").is_err() && journal.add(&"x".repeat(LINE)).is_err());
        assert!(read(&at, "a frame").is_none(), "another has it");
        assert!(Journal::is_open(&*system::private_dir(&at).unwrap(), "a frame"));
        drop(journal);
        assert!(!Journal::is_open(&*system::private_dir(&at).unwrap(), "a frame"));
        assert!(read(&at, "another").unwrap().1.is_empty());
        let path = at.join(name_of("a frame"));
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(read(&at, "a frame").unwrap().1, expected);
        for len in [0, 1, 24, 25, 26, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..len]).unwrap();
            let (mut journal, lines) = read(&at, "a frame").unwrap();
            assert!(lines.len() < 9000 && expected.starts_with(&lines), "{len}");
            journal.add("more").unwrap();
            drop(journal);
            assert_eq!(read(&at, "a frame").unwrap().1.len(), lines.len() + 1, "{len}");
        }
        for at_byte in [0, 16, 17, 30, whole.len() / 3] {
            let mut spoiled = whole.clone();
            spoiled[at_byte] ^= 1;
            std::fs::write(&path, &spoiled).unwrap();
            let lines = read(&at, "a frame").unwrap().1;
            assert!(lines.len() < 9000 && expected.starts_with(&lines), "{at_byte}");
        }
        std::fs::write(&path, vec![b'x'; 10 << 20]).unwrap();
        let (mut journal, lines) = read(&at, "a frame").unwrap();
        assert!(lines.is_empty());
        journal.add("yes").unwrap();
        journal.add("no").unwrap();
        journal.add("yes").unwrap();
        drop(journal);
        assert_eq!(read(&at, "a frame").unwrap().1, ["yes", "no"]);
        let (mut journal, lines) = read(&at, "a frame").unwrap();
        assert_eq!(lines, ["yes"], "what cannot be one is gone");
        journal.clear("a frame").unwrap();
        drop(journal);
        let (mut journal, lines) = read(&at, "a frame").unwrap();
        assert!(lines.is_empty());
        journal.remove();
        journal.add("nothing").unwrap();
        assert!(!path.exists());
        // Another of that name is not removed.
        drop(read(&at, "a frame"));
        journal.remove();
        assert!(path.exists());
    }
}
