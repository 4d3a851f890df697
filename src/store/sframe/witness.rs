//! What SOURCE looked like when we last read or wrote it, to notice what others do to it.
//!
//! Others are held to what the library itself notices: who changes a frame writes to `chunks.b2frame`, or puts another in its
//! place.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::super::backend::{BackendFile, FileStat, read_exact_at};
use super::super::source::{Complain, touched_since, written_since};
use super::super::{Result, StoreError};
use super::commit::Disk;
use super::{INDEX, SframeStore, index_name};

/// How many older index files are kept open, so that their inode numbers are not given out again: the library tells a replaced
/// file by that number.
const OLD: usize = 8;

/// What was seen.
pub(super) struct Witness {
    pub(super) dir: FileStat,
    index: Option<(Arc<dyn BackendFile>, FileStat)>,
    old: VecDeque<Arc<dyn BackendFile>>,
    /// What others have done; once seen, that stays so.
    pub(super) stale: Option<String>,
}

impl Witness {
    pub(super) fn new(dir: FileStat) -> Self {
        Witness { dir, index: None, old: VecDeque::new(), stale: None }
    }

    /// This is the index file from now on.
    pub(super) fn index_is(&mut self, file: Arc<dyn BackendFile>, stat: FileStat) {
        if let Some((before, _)) = self.index.replace((file, stat)) {
            self.old.truncate(OLD - 1);
            self.old.push_front(before);
        }
    }

    /// The index file.
    pub(super) fn index(&self) -> Option<Arc<dyn BackendFile>> {
        self.index.as_ref().map(|(file, _)| Arc::clone(file))
    }

    /// The index file's attributes when it was last looked at.
    pub(super) fn index_stat(&self) -> Option<FileStat> {
        self.index.as_ref().map(|(_, stat)| *stat)
    }

    /// Looks whether others have written to the index file or put another in its place.
    pub(super) fn look(&mut self, now: io::Result<FileStat>) -> io::Result<()> {
        let Some((_, seen)) = &self.index else { return Ok(()) };
        if self.stale.is_none() {
            self.stale = match now {
                Ok(now) if !now.same_file(seen) => Some(format!("another {INDEX} is in its place")),
                Ok(now) => written_since(seen, &now),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Some(format!("its {INDEX} was removed")),
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }
}

impl SframeStore {
    /// What others have done to SOURCE since we last read or wrote it, in words.
    pub(super) fn seen_outside(&self, disk: &Disk) -> Result<Option<String>> {
        let at_path = self.source.stat()?;
        if let Some(unborn) = disk.unborn() {
            return Ok(unborn.seen_outside(at_path.as_ref()));
        }
        let mut witness = self.witness.lock();
        match at_path {
            None => return Ok(Some("it was removed".to_owned())),
            Some(stat) if !stat.same_file(&witness.dir) => {
                return Ok(Some("another directory has its name now".to_owned()));
            }
            Some(_) => {}
        }
        witness.look(self.dir().stat(index_name())).map_err(|error| self.source.at(INDEX).io("stat")(error))?;
        if witness.stale.is_none()
            && let Some((file, _)) = &witness.index
        {
            // Times may be too coarse to tell.
            let mut on_disk = vec![0; disk.header().len()];
            if read_exact_at(&**file, &mut on_disk, 0).is_err() || on_disk != disk.header() {
                witness.stale = Some("its header is another".to_owned());
            }
        }
        Ok(witness.stale.clone())
    }

    /// Whether others have written, as far as that is cheap to see; where that cannot be seen, they may have.
    pub(super) fn others_wrote(&self) -> bool {
        let mut witness = self.witness.lock();
        witness.look(self.dir().stat(index_name())).is_err() || witness.stale.is_some()
    }

    /// For a store that only reads.
    pub(super) fn changed_since_read(&self, header: &[u8]) -> Result<bool> {
        let at_path = self.source.backend.stat(&self.source.name).map_err(self.source.io("stat"))?;
        let witness = self.witness.lock();
        if !at_path.same_file(&witness.dir) {
            return Ok(true);
        }
        let now = self.dir().stat(index_name());
        let now = now.map_err(|error| -> StoreError { self.source.at(INDEX).io("stat")(error) })?;
        let Some((file, seen)) = &witness.index else { return Ok(true) };
        if touched_since(seen, &now) {
            return Ok(true);
        }
        let mut on_disk = vec![0; header.len()];
        Ok(read_exact_at(&**file, &mut on_disk, 0).is_err() || on_disk != header)
    }
}
