//! The file that drafts go to when they are large: one without a name for all drafts of a frame, so that no client can take the
//! daemon's descriptors by beginning many of them.
//!
//! It is dealt out in blocks, each of one draft. A block that is given back is made a hole before another draft gets it; where the
//! file system makes none, it is left alone until no draft has any, and the file is emptied. Blocks are virtual: what was not
//! written takes no room.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use super::backend::{Backend, BackendFile};
use super::local::FileBackend;

/// Bytes of a block; fewer in unit tests, so that they cross the ends of many.
const BLOCK: u64 = if cfg!(test) { 64 << 10 } else { 4 << 20 };
/// Blocks that all drafts together may have: a client pays for each with room on the disk, and for much less memory of the daemon.
const MOST_BLOCKS: u64 = 1 << 20;
/// Zeros that are written at once where no hole can be made.
const ZEROS: usize = 64 << 10;

/// The file, as long as there is one, and who has which blocks of it.
pub(super) struct Spill {
    backend: RwLock<Arc<dyn Backend>>,
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    file: Option<Arc<dyn BackendFile>>,
    /// No block from here on was ever dealt out.
    next: u64,
    /// Holes, to be dealt out again.
    free: Vec<u64>,
    /// Dealt out.
    taken: u64,
}

impl Spill {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Spill { backend: RwLock::new(backend), blocks: Mutex::default() })
    }

    /// The next file is made in another directory.
    pub(super) fn move_to(&self, backend: Arc<dyn Backend>) {
        *self.backend.write() = backend;
    }

    /// Begins a draft in it.
    pub(super) fn begin(self: &Arc<Self>) -> io::Result<Spilled> {
        let mut blocks = self.blocks.lock();
        let file = match &blocks.file {
            Some(file) => Arc::clone(file),
            None => {
                let file = self.backend.read().create_unnamed().or_else(|_| FileBackend::temporary())?;
                Arc::clone(blocks.file.insert(Arc::from(file)))
            }
        };
        Ok(Spilled { spill: Arc::clone(self), file, blocks: BTreeMap::new(), len: 0 })
    }

    fn take(&self) -> io::Result<u64> {
        let mut blocks = self.blocks.lock();
        if blocks.taken >= MOST_BLOCKS {
            return Err(Errno::NOSPC.into());
        }
        blocks.taken += 1;
        Ok(blocks.free.pop().unwrap_or_else(|| {
            blocks.next += 1;
            blocks.next - 1
        }))
    }

    fn give(&self, file: &dyn BackendFile, given: Vec<u64>) {
        let count = given.len() as u64;
        if count == 0 || self.blocks.lock().emptied(file, count) {
            return;
        }
        let holes = given.into_iter().filter(|block| clear(file, block * BLOCK..(block + 1) * BLOCK).is_ok()).collect();
        let mut blocks = self.blocks.lock();
        // Others may have given back all the rest meanwhile.
        if !blocks.emptied(file, count) {
            blocks.taken -= count;
            blocks.free = [std::mem::take(&mut blocks.free), holes].concat();
        }
    }
}

impl Blocks {
    /// Where nobody has more than the `count` blocks that are given back, empties the file.
    fn emptied(&mut self, file: &dyn BackendFile, count: u64) -> bool {
        if self.taken != count || file.set_len(0).is_err() {
            return false;
        }
        *self = Blocks { file: self.file.take(), ..Blocks::default() };
        true
    }
}

/// Makes a part of the file a hole.
fn clear(file: &dyn BackendFile, part: Range<u64>) -> io::Result<()> {
    let fd = file.fd().ok_or(io::ErrorKind::Unsupported)?;
    Ok(fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, part.start, part.end - part.start)?)
}

/// A draft's bytes in the file. What was not written reads as zeros.
pub(super) struct Spilled {
    spill: Arc<Spill>,
    file: Arc<dyn BackendFile>,
    /// Which block of the file each of the draft's is.
    blocks: BTreeMap<u64, u64>,
    len: u64,
}

/// The parts of `count` bytes at `offset`, by blocks: the block, the place in it, the place among the bytes.
fn by_block(offset: u64, count: usize) -> impl Iterator<Item = (u64, u64, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let left = (count - done).min(usize::try_from(BLOCK - at % BLOCK).unwrap_or(usize::MAX));
        done += left;
        (left > 0).then_some((at / BLOCK, at % BLOCK, done - left..done))
    })
}

impl Spilled {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Writes all of `data`; the end is known to be a possible one.
    #[expect(clippy::indexing_slicing, reason = "the part is within the buffer by its own arithmetic")]
    pub(super) fn write_at(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        for (block, place, part) in by_block(offset, data.len()) {
            let block = match self.blocks.get(&block) {
                Some(block) => *block,
                None => {
                    let taken = self.spill.take()?;
                    self.blocks.insert(block, taken);
                    taken
                }
            };
            self.file.write_at(&data[part], block * BLOCK + place)?;
        }
        self.len = self.len.max(offset + data.len() as u64);
        Ok(())
    }

    /// Cuts or lengthens. What is cut off reads as zeros when the draft grows again.
    pub(super) fn set_len(&mut self, len: u64) -> io::Result<()> {
        if len < self.len {
            let (last, place) = (len / BLOCK, len % BLOCK);
            if let Some(block) = self.blocks.get(&last).filter(|_| place > 0) {
                let end = (self.len - last * BLOCK).min(BLOCK);
                self.wipe(block * BLOCK + place..block * BLOCK + end)?;
            }
            let cut = self.blocks.split_off(&(last + u64::from(place > 0)));
            self.spill.give(&*self.file, cut.into_values().collect());
        }
        self.len = len;
        Ok(())
    }

    #[expect(clippy::indexing_slicing, reason = "the count is no more than the zeros")]
    fn wipe(&self, part: Range<u64>) -> io::Result<()> {
        if clear(&*self.file, part.clone()).is_ok() {
            return Ok(());
        }
        let mut at = part.start;
        while at < part.end {
            let count = (part.end - at).min(ZEROS as u64);
            self.file.write_at(&[0; ZEROS][..count as usize], at)?;
            at += count;
        }
        Ok(())
    }

    /// Fills `buf`, which ends within the draft.
    #[expect(clippy::indexing_slicing, reason = "the part is within the buffer by its own arithmetic")]
    pub(super) fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        for (block, place, part) in by_block(offset, buf.len()) {
            let mut rest = &mut buf[part];
            if let Some(block) = self.blocks.get(&block) {
                let mut at = block * BLOCK + place;
                while !rest.is_empty() {
                    match self.file.read_at(rest, at)? {
                        0 => break, // nothing was ever written so far behind
                        count => {
                            at += count as u64;
                            rest = &mut rest[count..];
                        }
                    }
                }
            }
            rest.fill(0);
        }
        Ok(())
    }

    /// See [`super::ReadAt::next_data`].
    pub(super) fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        let mut blocks = self.blocks.range(offset / BLOCK..).peekable();
        while let Some((&first, &at)) = blocks.next() {
            // As far as blocks follow each other in the draft and in the file.
            let mut count = 1;
            while blocks.next_if(|(block, place)| (**block, **place) == (first + count, at + count)).is_some() {
                count += 1;
            }
            let part = offset.max(first * BLOCK)..self.len.min((first + count) * BLOCK);
            if part.is_empty() {
                continue;
            }
            // The same stretch in the file.
            let shift = |place: u64| place - first * BLOCK + at * BLOCK;
            let back = |place: u64| place - at * BLOCK + first * BLOCK;
            let Some(fd) = self.file.fd() else { return Some(part) };
            if let Some(data) = data_in(fd, shift(part.start)..shift(part.end)) {
                return Some(back(data.start)..back(data.end));
            }
        }
        None
    }

    /// Bytes that are not stored anywhere.
    pub(super) fn hole(&self) -> u64 {
        let parts = std::iter::successors(self.next_data(0), |part| self.next_data(part.end));
        self.len - parts.map(|part| part.end - part.start).sum::<u64>()
    }
}

impl Drop for Spilled {
    fn drop(&mut self) {
        self.spill.give(&*self.file, std::mem::take(&mut self.blocks).into_values().collect());
    }
}

/// The first stretch within a part of a file that the file system holds something for; all of the part where it cannot say.
pub(super) fn data_in(fd: BorrowedFd<'_>, part: Range<u64>) -> Option<Range<u64>> {
    // Nobody reads or writes at the descriptor's own place, which this moves.
    let start = match seek(fd, SeekFrom::Data(part.start)) {
        Ok(start) => start.max(part.start),
        Err(Errno::NXIO) => return None,
        Err(_) => return Some(part),
    };
    if start >= part.end {
        return None;
    }
    let end = seek(fd, SeekFrom::Hole(start)).map_or(part.end, |end| end.min(part.end));
    Some(start..end.max(start + 1))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::store::backend::FileStat;
    use proptest::prelude::*;

    /// A file in which no holes can be made.
    struct NoHoles(File);

    impl BackendFile for NoHoles {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            BackendFile::read_at(&self.0, buf, offset)
        }
        fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
            BackendFile::write_at(&self.0, data, offset)
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.set_len(len)
        }
        fn sync_data(&self) -> io::Result<()> {
            self.0.sync_data()
        }
        fn sync_all(&self) -> io::Result<()> {
            self.0.sync_all()
        }
        fn stat(&self) -> io::Result<FileStat> {
            self.0.stat()
        }
        fn try_lock(&self) -> io::Result<bool> {
            Ok(true)
        }
        fn unlock(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write { offset: u64, len: usize, fill: u8 },
        SetLen(u64),
        Anew,
    }

    fn step() -> impl Strategy<Value = (usize, Step)> {
        let offset = || prop_oneof![0..10 * BLOCK, (0..10u64).prop_map(|block| block * BLOCK)];
        let len = prop_oneof![1..100usize, 1..3 * BLOCK as usize];
        let step = prop_oneof![
            4 => (offset(), len, 1..=255u8).prop_map(|(offset, len, fill)| Step::Write { offset, len, fill }),
            2 => offset().prop_map(Step::SetLen),
            1 => Just(Step::Anew),
        ];
        (0..4usize, step)
    }

    fn check((draft, model): &(Spilled, Vec<u8>)) -> Result<(), TestCaseError> {
        prop_assert_eq!(draft.len(), model.len() as u64);
        let mut got = vec![1; model.len()];
        draft.read_at(&mut got, 0).unwrap();
        prop_assert!(got == *model);
        // What is in no stretch is zeros.
        for part in std::iter::successors(draft.next_data(0), |part| draft.next_data(part.end)) {
            got[part.start as usize..part.end as usize].fill(0);
        }
        prop_assert!(got.iter().all(|byte| *byte == 0));
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn drafts_share_a_file_and_nothing_in_it(steps in prop::collection::vec(step(), 1..60), holes: bool) {
            let dir = tempfile::tempdir().unwrap();
            let file = tempfile::tempfile_in(dir.path()).unwrap();
            let same: Arc<dyn BackendFile> = if holes { Arc::new(file.try_clone().unwrap()) } else { Arc::new(NoHoles(file.try_clone().unwrap())) };
            let spill = Spill::new(Arc::new(FileBackend::open(dir.path()).unwrap()));
            spill.blocks.lock().file = Some(same);
            let begin = || (spill.begin().unwrap(), Vec::new());
            let mut drafts: Vec<(Spilled, Vec<u8>)> = (0..4).map(|_| begin()).collect();
            for (n, step) in steps {
                let (draft, model) = &mut drafts[n];
                match step {
                    Step::Write { offset, len, fill } => {
                        draft.write_at(&vec![fill; len], offset).unwrap();
                        let end = offset as usize + len;
                        model.resize(model.len().max(end), 0);
                        model[offset as usize..end].fill(fill);
                    }
                    Step::SetLen(len) => {
                        draft.set_len(len).unwrap();
                        model.resize(len as usize, 0);
                    }
                    Step::Anew => drafts[n] = begin(),
                }
                check(&drafts[n])?;
            }
            drafts.iter().try_for_each(check)?;
            drop(drafts);
            prop_assert_eq!((file.metadata().unwrap().len(), spill.blocks.lock().taken), (0, 0));
        }
    }

    #[test]
    fn what_is_given_back_takes_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let spill = Spill::new(Arc::new(FileBackend::open(dir.path()).unwrap()));
        let bytes = vec![7; 3 * BLOCK as usize];
        let mut kept = spill.begin().unwrap();
        kept.write_at(b"kept", 0).unwrap();
        for _ in 0..20 {
            let mut draft = spill.begin().unwrap();
            draft.write_at(&bytes, 100).unwrap();
            draft.set_len(BLOCK + 5).unwrap();
        }
        let stat = kept.file.stat().unwrap();
        assert!(stat.allocated <= BLOCK && stat.len <= 6 * BLOCK, "{stat:?}");
        assert_eq!(spill.blocks.lock().taken, 1);
    }

    #[test]
    fn there_is_an_end_to_the_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let spill = Spill::new(Arc::new(FileBackend::open(dir.path()).unwrap()));
        spill.blocks.lock().taken = MOST_BLOCKS - 1;
        let mut draft = spill.begin().unwrap();
        draft.write_at(b"one more", 0).unwrap();
        let error = draft.write_at(b"too many", BLOCK).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(draft.len(), 8);
    }
}
