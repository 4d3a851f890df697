//! Bytes that a client is still writing: in memory while few, in a file without a name on SOURCE's file system when many.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::backend::Backend;
use super::local::FileBackend;
use super::resources::{Budget, Budgets};
use super::spill::{Spill, Spilled};
use super::{ReadAt, Result as StoreResult, StoreError};

/// A draft that grows beyond this is held in a file.
const SPILL: usize = 1 << 20;

/// Where the drafts of a frame spill to, and the budget that they share with those of the mount's other frames.
pub struct DraftPool {
    spill: Arc<Spill>,
    /// Bytes of memory that drafts hold now, by capacity.
    budget: Arc<Budget>,
}

impl fmt::Debug for DraftPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DraftPool").field("used", &self.used()).finish_non_exhaustive()
    }
}

impl DraftPool {
    /// A pool that spills to a file without a name in `backend`, with at most about `budget` bytes of memory over all its drafts.
    pub fn new(backend: Arc<dyn Backend>, budget: u64) -> Arc<Self> {
        Self::sharing(backend, &Budget::new(budget))
    }

    /// A pool whose drafts share a budget with others'.
    pub(super) fn sharing(backend: Arc<dyn Backend>, budget: &Arc<Budget>) -> Arc<Self> {
        Arc::new(DraftPool { spill: Spill::new(backend), budget: Arc::clone(budget) })
    }

    /// A pool of its own that spills to the directory for temporary files.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn elsewhere() -> StoreResult<Arc<Self>> {
        let path = std::env::temp_dir();
        let backend = FileBackend::open(&path).map_err(|source| StoreError::Io { path, action: "open", source })?;
        Ok(Self::new(Arc::new(backend), Budgets::default().draft_bytes))
    }

    /// Spills to another directory from now on.
    pub(super) fn move_to(&self, backend: Arc<dyn Backend>) {
        self.spill.move_to(backend);
    }

    /// Bytes of memory that all drafts hold now that share the budget.
    pub fn used(&self) -> u64 {
        self.budget.used()
    }

    /// Takes bytes out of the budget, unless that is used up; [`DraftPool::give`] brings them back.
    pub fn take(&self, bytes: u64) -> bool {
        self.budget.take(bytes)
    }

    /// Brings back bytes that were taken.
    pub fn give(&self, bytes: u64) {
        self.budget.give(bytes);
    }
}

/// A file being written. Grows, shrinks and is read at any place; holes read as zeros.
pub struct Draft {
    pool: Arc<DraftPool>,
    /// What the pool was asked for, and gets back.
    taken: u64,
    content: Content,
}

enum Content {
    Memory(Vec<u8>),
    File(Spilled),
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spilled = matches!(self.content, Content::File(_));
        f.debug_struct("Draft").field("len", &ReadAt::len(self)).field("spilled", &spilled).finish_non_exhaustive()
    }
}

impl Draft {
    /// An empty draft.
    pub fn new(pool: &Arc<DraftPool>) -> Self {
        Draft { pool: Arc::clone(pool), taken: 0, content: Content::Memory(Vec::new()) }
    }

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// EFBIG beyond what a file can have, and what the file system says once the draft is in a file. What was there before is
    /// then still there.
    #[expect(clippy::indexing_slicing, reason = "the bytes were lengthened to the start, and `over` is no more than either has")]
    pub fn write_at(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= i64::MAX as u64).ok_or_else(too_big)?;
        if data.is_empty() {
            return Ok(());
        }
        if let Content::Memory(bytes) = &mut self.content {
            if self.pool.reserve(&mut self.taken, bytes, end) {
                let (start, end) = (offset as usize, end as usize);
                if bytes.len() < start {
                    bytes.resize(start, 0);
                }
                let over = bytes.len().min(end) - start;
                bytes[start..start + over].copy_from_slice(&data[..over]);
                bytes.extend_from_slice(&data[over..]);
                return Ok(());
            }
            self.spill()?;
        }
        match &mut self.content {
            Content::File(spilled) => spilled.write_at(data, offset),
            Content::Memory(_) => Ok(()),
        }
    }

    /// Cuts or lengthens.
    ///
    /// # Errors
    /// As [`Draft::write_at`].
    pub fn set_len(&mut self, len: u64) -> io::Result<()> {
        if len > i64::MAX as u64 {
            return Err(too_big());
        }
        if let Content::Memory(bytes) = &mut self.content {
            if len <= bytes.len() as u64 || self.pool.reserve(&mut self.taken, bytes, len) {
                bytes.resize(len as usize, 0);
                if len == 0 {
                    *bytes = Vec::new();
                    self.pool.give(std::mem::take(&mut self.taken));
                }
                return Ok(());
            }
            self.spill()?;
        }
        match &mut self.content {
            Content::File(spilled) => spilled.set_len(len),
            Content::Memory(_) => Ok(()),
        }
    }

    /// Reads; a short count means the end.
    ///
    /// # Errors
    /// What the file system says, once the draft is in a file.
    #[expect(clippy::indexing_slicing, reason = "no more is counted than there is in the buffer")]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = ReadAt::len(self).saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..count];
        if count == 0 {
            return Ok(0);
        }
        match &self.content {
            Content::Memory(bytes) => buf.copy_from_slice(&bytes[offset as usize..][..count]),
            Content::File(spilled) => spilled.read_at(buf, offset)?,
        }
        Ok(count)
    }

    /// Bytes that are not stored anywhere and read as zeros, as far as the file system says.
    pub fn hole(&self) -> u64 {
        match &self.content {
            Content::Memory(_) => 0,
            Content::File(spilled) => spilled.hole(),
        }
    }

    /// Moves what is in memory to a file.
    fn spill(&mut self) -> io::Result<()> {
        let Content::Memory(bytes) = &mut self.content else { return Ok(()) };
        let mut spilled = self.pool.spill.begin()?;
        spilled.write_at(bytes, 0)?;
        self.content = Content::File(spilled);
        self.pool.give(std::mem::take(&mut self.taken));
        Ok(())
    }
}

impl DraftPool {
    /// Makes room in `bytes` for `len`, within the bound of a draft and of the pool.
    fn reserve(&self, taken: &mut u64, bytes: &mut Vec<u8>, len: u64) -> bool {
        if len > SPILL as u64 {
            return false;
        }
        if len > bytes.capacity() as u64 {
            let capacity = (len as usize).next_power_of_two().max(4096);
            if !self.take(capacity as u64 - *taken) {
                return false;
            }
            *taken = capacity as u64;
            bytes.reserve_exact(capacity - bytes.len());
        }
        true
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.pool.give(self.taken);
    }
}

fn too_big() -> io::Error {
    io::Error::from_raw_os_error(libc::EFBIG)
}

impl ReadAt for Draft {
    fn len(&self) -> u64 {
        match &self.content {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::File(spilled) => spilled.len(),
        }
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self.read_at(buf, offset)? {
            n if n == buf.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
    fn as_slice(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Memory(bytes) => Some(bytes),
            Content::File(_) => None,
        }
    }
    fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        match &self.content {
            Content::Memory(bytes) => (offset < bytes.len() as u64).then_some(offset..bytes.len() as u64),
            Content::File(spilled) => spilled.next_data(offset),
        }
    }
}

impl ReadAt for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn as_slice(&self) -> Option<&[u8]> {
        Some(self)
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        ReadAt::read_exact_at(&self.as_slice(), buf, offset)
    }
    fn as_slice(&self) -> Option<&[u8]> {
        Some(self.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::store::local::FileBackend;

    fn pool(budget: u64) -> (tempfile::TempDir, Arc<DraftPool>) {
        let dir = tempfile::tempdir().unwrap();
        let backend = FileBackend::open(dir.path()).unwrap();
        (dir, DraftPool::new(Arc::new(backend), budget))
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write { offset: u64, len: usize, fill: u8 },
        Append { len: usize, fill: u8 },
        SetLen(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let len = prop_oneof![1..100usize, 1..400_000usize];
        prop_oneof![
            (0..2_500_000u64, len.clone(), 1..=255u8).prop_map(|(offset, len, fill)| Step::Write { offset, len, fill }),
            (len, 1..=255u8).prop_map(|(len, fill)| Step::Append { len, fill }),
            (0..2_500_000u64).prop_map(Step::SetLen),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn is_what_was_written(steps in prop::collection::vec(step(), 1..25), budget in prop_oneof![Just(0u64), Just(100_000), Just(1 << 30)]) {
            let (_dir, pool) = pool(budget);
            let mut draft = Draft::new(&pool);
            let mut model: Vec<u8> = Vec::new();
            for step in steps {
                let (offset, len, fill) = match step {
                    Step::Write { offset, len, fill } => (offset, len, fill),
                    Step::Append { len, fill } => (model.len() as u64, len, fill),
                    Step::SetLen(len) => {
                        draft.set_len(len).unwrap();
                        model.resize(len as usize, 0);
                        continue;
                    }
                };
                let data: Vec<u8> = (0..len).map(|i| fill.wrapping_add(i as u8)).collect();
                draft.write_at(&data, offset).unwrap();
                let end = offset as usize + len;
                model.resize(model.len().max(end), 0);
                model[offset as usize..end].copy_from_slice(&data);
                prop_assert!(pool.used() <= budget);
            }
            prop_assert_eq!(ReadAt::len(&draft), model.len() as u64);
            let mut got = vec![1; model.len() + 10];
            prop_assert_eq!(draft.read_at(&mut got, 0).unwrap(), model.len());
            prop_assert!(got[..model.len()] == model[..]);
            let from = model.len() / 3;
            prop_assert_eq!(draft.read_at(&mut got, from as u64).unwrap(), model.len() - from);
            prop_assert!(got[..model.len() - from] == model[from..]);
            prop_assert!(from_stretches(&draft) == model);
            drop(draft);
            prop_assert_eq!(pool.used(), 0);
        }
    }

    #[test]
    fn many_small_drafts_share_the_budget() {
        let (_dir, pool) = pool(1 << 20);
        let mut drafts: Vec<Draft> = (0..1000).map(|_| Draft::new(&pool)).collect();
        for draft in &mut drafts {
            for piece in 0..4u64 {
                draft.write_at(&[piece as u8; 1000], piece * 1000).unwrap();
            }
            assert!(pool.used() <= 1 << 20);
        }
        let spilled = drafts.iter().filter(|draft| draft.as_slice().is_none()).count();
        assert_eq!(spilled, 1000 - 256, "4 KiB each fill the budget with 256 of them");
        drop(drafts);
        assert_eq!(pool.used(), 0);
    }

    /// The bytes, put together from the stretches that hold something.
    fn from_stretches(draft: &Draft) -> Vec<u8> {
        let mut bytes = vec![0; ReadAt::len(draft) as usize];
        let mut at = 0;
        while let Some(part) = draft.next_data(at) {
            assert!(at <= part.start && part.start < part.end && part.end <= ReadAt::len(draft), "{part:?} from {at}");
            draft.read_exact_at(&mut bytes[part.start as usize..part.end as usize], part.start).unwrap();
            at = part.end;
        }
        bytes
    }

    #[test]
    fn says_where_its_holes_are() {
        const FAR: u64 = 4 << 60;
        let (_dir, pool) = pool(1 << 30);
        let mut draft = Draft::new(&pool);
        assert_eq!(draft.next_data(0), None);
        draft.write_at(b"in memory", 0).unwrap();
        assert_eq!((draft.next_data(0), draft.next_data(4), draft.next_data(9)), (Some(0..9), Some(4..9), None));
        draft.set_len(FAR).unwrap();
        draft.write_at(b"and far away", 1 << 40).unwrap();
        let parts: Vec<_> = std::iter::successors(draft.next_data(0), |part| draft.next_data(part.end)).collect();
        let held: u64 = parts.iter().map(|part| part.end - part.start).sum();
        assert!(held <= 4 << 20, "{parts:?}");
        assert!(parts[0].start == 0 && parts.iter().any(|part| part.contains(&(1 << 40))), "{parts:?}");
        assert_eq!(draft.next_data(FAR - 1), None);
        assert_eq!(draft.next_data(FAR), None);
        assert_eq!(draft.next_data(u64::MAX), None);
    }

    #[test]
    fn beyond_what_a_file_can_have_is_refused() {
        let (_dir, pool) = pool(1 << 20);
        let mut draft = Draft::new(&pool);
        assert_eq!(draft.write_at(b"x", i64::MAX as u64).unwrap_err().raw_os_error(), Some(libc::EFBIG));
        assert_eq!(draft.set_len(u64::MAX).unwrap_err().raw_os_error(), Some(libc::EFBIG));
    }
}
