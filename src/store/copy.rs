//! Copying a frame from one store into another, of any layout: chunks are staged in the order of the index, and one commit makes a
//! frame of them. Until then the target has no name, and nothing is left of it if the copy fails.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;

use log::warn;

use super::error::Complain;
use super::{
    Budgets, CframeStore, ChunkKey, FrameImage, FrameStore, Location, NewFrame, OpenOptions, Resources, Result, SframeStore,
    StoreError, StoredChunk, Want, open_at,
};
use crate::format::chunk::ChunkHeader;
use crate::format::header::FrameHeader;
use crate::format::tiling::Tiling;
use crate::format::{self, Fit, IndexEntry, Kept, Layout, Rules};

mod resume;
mod tree;
mod unsynced;

pub use resume::Resume;
pub use tree::{FrameToCopy, TreeCopy};

/// Chunks that are announced to the source at once.
const WINDOW: usize = 64;
/// Larger chunks are copied piece by piece, in bytes.
const WHOLE: u32 = 16 << 20;

/// Chunks that the library does not read, and that are named one by one.
const MOST_MISFITS: u64 = 10;

/// What a copy takes of its file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Bytes.
    pub bytes: u64,
    /// Files, each of which takes whole blocks.
    pub files: u64,
}

/// Chunks that are copied, in the order of the index, and not committed.
pub struct StagedCopy(Vec<IndexEntry<ChunkKey>>);

/// A frame to be copied, as it was when the copy began.
pub struct FrameCopy {
    /// Where it is.
    pub source: Arc<dyn FrameStore>,
    /// What is copied.
    pub image: Arc<FrameImage>,
    /// By position: lengths, or where `is_exact` does not hold, how many bytes there are at most; 0 for special chunks.
    lens: Vec<u32>,
    is_exact: bool,
}

impl FrameCopy {
    /// Opens what is to be copied, to read each chunk once.
    ///
    /// # Errors
    /// As [`open_at`]; the header of a chunk cannot be read.
    pub fn of(location: &Location) -> Result<Self> {
        let resources = Resources::new(Budgets { cache_bytes: 0, ..Budgets::default() });
        let (_, source) = open_at(location, OpenOptions { read_only: true, resources, ..OpenOptions::default() })?;
        Self::over(source)
    }

    /// What an open store holds is to be copied.
    ///
    /// # Errors
    /// It holds no frame; the header of a chunk cannot be read.
    pub fn over(source: Arc<dyn FrameStore>) -> Result<Self> {
        let unsupported = || StoreError::Unsupported { path: source.path(), reason: "holds no frame".to_owned() };
        let image = source.committed().ok_or_else(unsupported)?;
        let (lens, is_exact) = source.rooms(&source.enter(), &image)?;
        Ok(FrameCopy { source, image, lens, is_exact })
    }

    /// Bytes that each chunk takes at most, by position; 0 for a special one.
    pub fn rooms(&self) -> &[u32] {
        &self.lens
    }

    /// Bytes of all chunks.
    pub fn bytes(&self) -> u64 {
        self.lens.iter().map(|len| u64::from(*len)).sum()
    }

    /// The source's permission bits, as those for all its files: of a sparse frame, what its directory does not let through does not
    /// count.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn mode(&self) -> Result<u32> {
        let mode = self.source.source_stat()?.mode & 0o777;
        let Some(local) = self.source.local() else { return Ok(mode) };
        let around = local.like()?.frame.stat().map_err(self.source.path().to_owned().io("be read"))?;
        let through = if around.is_dir() { around.mode & 0o111 } else { 0o111 };
        Ok(mode & (through * 7))
    }

    /// What a copy of this layout takes.
    pub fn need(&self, layout: Layout) -> Need {
        /// File systems give room in blocks of so many bytes, most of them.
        const BLOCK: u64 = 4096;
        /// Bytes of an index entry before it is compressed.
        const ENTRY: u64 = 8;
        /// Kept before the chunks of a new contiguous frame, and more than enough for the headers of chunks of index and trailer.
        const MARGIN: u64 = 4096;
        let FrameImage { header, trailer, entries } = &*self.image;
        let parts = header.as_bytes().len() as u64 + trailer.as_bytes().len() as u64 + entries.len() as u64 * ENTRY + MARGIN;
        let lens = self.lens.iter().map(|len| u64::from(*len)).filter(|len| *len > 0);
        match layout {
            Layout::Contiguous => Need { bytes: parts + lens.sum::<u64>(), files: 1 },
            Layout::Sparse => Need {
                files: 2 + lens.clone().count() as u64,
                bytes: parts + lens.map(|len| len.next_multiple_of(BLOCK)).sum::<u64>(),
            },
        }
    }

    /// Makes a store for the copy, with no more room for the header than it needs.
    ///
    /// # Errors
    /// What the system refuses; a name that exists.
    pub fn create(&self, at: &Location, layout: Layout, new: NewFrame) -> Result<Arc<dyn FrameStore>> {
        let header_room = self.image.header.as_bytes().len() as u64;
        let options = OpenOptions { replace: new.replaced.is_some(), header_room, ..OpenOptions::default() };
        Ok(match layout {
            Layout::Contiguous => Arc::new(CframeStore::create_at(at, options, new)?),
            Layout::Sparse => Arc::new(SframeStore::create_at(at, options, new)?),
        })
    }

    /// Copies into a store that holds no frame yet. `progress` is told the length of each chunk that was copied, and answers whether to
    /// go on. `true` if the copy is on disk; `false` if it was stopped, and `target` holds nothing.
    ///
    /// # Errors
    /// What the stores refuse; another process has changed the source meanwhile.
    pub fn run(&self, target: &dyn FrameStore, progress: &mut dyn FnMut(u32) -> bool) -> Result<bool> {
        self.run_resumed(target, None, progress)
    }

    /// The same of a copy that may have been begun before.
    ///
    /// # Errors
    /// As [`FrameCopy::run`].
    pub fn run_resumed(
        &self,
        target: &dyn FrameStore,
        resume: Option<&mut Resume>,
        progress: &mut dyn FnMut(u32) -> bool,
    ) -> Result<bool> {
        let Some(staged) = self.stage_resumed(target, resume, progress)? else { return Ok(false) };
        self.commit(target, staged)?;
        Ok(true)
    }

    /// Copies the chunks into a store that holds no frame yet, and commits nothing; `None` if `progress` has stopped it.
    ///
    /// # Errors
    /// What the stores refuse.
    pub fn stage(&self, target: &dyn FrameStore, progress: &mut dyn FnMut(u32) -> bool) -> Result<Option<StagedCopy>> {
        self.stage_resumed(target, None, progress)
    }

    fn stage_resumed(
        &self,
        target: &dyn FrameStore,
        mut resume: Option<&mut Resume>,
        progress: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Option<StagedCopy>> {
        let FrameCopy { source, image, lens, is_exact } = self;
        let failed = |reason| StoreError::Unsupported { path: source.path().to_owned(), reason };
        // Stored chunks that are there already, and those that were announced.
        let (here, seen) = (resume.as_ref().map_or(0, |resume| resume.count()), Cell::new(0));
        let announce = |from: usize| {
            let window = image.entries.iter().skip(from).zip(lens.iter().skip(from)).take(WINDOW);
            let stored = window.filter_map(|(entry, len)| Some(Want::Known(entry.stored()?, *len)));
            let stored = stored.skip(here.saturating_sub(seen.get()));
            source.prefetch(&stored.collect::<Vec<_>>());
            let window = image.entries.iter().skip(from).take(WINDOW);
            seen.set(seen.get() + window.filter(|entry| entry.stored().is_some()).count());
        };
        let guard = source.enter();
        let (mut entries, mut bytes) = (Vec::with_capacity(lens.len()), Vec::new());
        announce(0);
        let (rules, count) = (Rules::of(&image.header), image.entries.len() as u64);
        let mut misfits = Misfits { path: source.path(), fit: |n| rules.of_whole(n, count, image.header.nbytes()), count: 0 };
        misfits.look_at_header(&image.header);
        for (n, (entry, len)) in image.entries.iter().zip(lens).enumerate() {
            if n.is_multiple_of(WINDOW) {
                // The next window as well, for a disk that is to be busy all the time.
                announce(n + WINDOW);
            }
            // C-Blosc2 does not read a special chunk that is stored.
            if let Some(key) = entry.stored().filter(|_| *len == ChunkHeader::LEN as u32)
                && let chunk = source.chunk_header(&guard, key)?.traits()
                && let Ok(Kept::Entry(special)) = rules.at(n as u64, count).keep(&chunk)
            {
                entries.push(IndexEntry::Special(special));
                if !progress(*len) {
                    return Ok(None);
                }
                continue;
            }
            if let IndexEntry::Special(special) = entry {
                misfits.note(n as u64, rules.check_entry(*special));
            }
            if let (Some(key), Some(resume)) = (entry.stored(), resume.as_deref_mut()) {
                let (staged, len, head) = resume.stage(&**source, &guard, key, is_exact.then_some(*len), target)?;
                misfits.look_at(n as u64, &head);
                entries.push(IndexEntry::Stored(staged));
                if !progress(len) {
                    return Ok(None);
                }
                continue;
            }
            let len = match entry.stored().filter(|_| !is_exact) {
                Some(key) => source.chunk_header(&guard, key)?.cbytes,
                None => *len,
            };
            entries.push(match *entry {
                IndexEntry::Special(special) => IndexEntry::Special(special),
                IndexEntry::Stored(key) if len > WHOLE => {
                    misfits.note(n as u64, misfits.check(n as u64, &source.chunk_header(&guard, key)?));
                    IndexEntry::Stored(target.stage(&StoredChunk { store: &**source, key, len, to_save: false })?)
                }
                IndexEntry::Stored(key) => {
                    bytes.resize(len as usize, 0);
                    let read = source.read_chunk(&guard, key, len, 0, &mut bytes)?;
                    if read != bytes.len() {
                        return Err(failed(format!("chunk {n} ends after {read} bytes; expected {len}")));
                    }
                    misfits.look_at(n as u64, &bytes);
                    IndexEntry::Stored(target.stage(&bytes.as_slice())?)
                }
            });
            if !progress(len) {
                return Ok(None);
            }
        }
        drop(guard);
        misfits.end();
        Ok(Some(StagedCopy(entries)))
    }

    /// Whether the source is another frame now than it was when the copy began.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn is_changed(&self) -> Result<bool> {
        Ok(self.source.look()?.hindrance().is_some())
    }

    /// Makes a frame of what was staged, and returns when it is on disk.
    ///
    /// # Errors
    /// What the target refuses; another process has changed the source meanwhile.
    pub fn commit(&self, target: &dyn FrameStore, staged: StagedCopy) -> Result<()> {
        if self.is_changed()? {
            let reason = "was changed by another process while it was being copied".to_owned();
            return Err(StoreError::Unsupported { path: self.source.path(), reason });
        }
        target.commit(target.enter(), FrameImage { entries: Arc::new(staged.0), ..(*self.image).clone() })?;
        target.sync()
    }
}

/// Warns of chunks that the library does not read in a frame, and that are copied as they are.
struct Misfits<F> {
    path: PathBuf,
    /// What fits at a position.
    fit: F,
    count: u64,
}

impl<F: Fn(u64) -> Fit> Misfits<F> {
    fn look_at_header(&self, header: &FrameHeader) {
        if let Err(error) = Tiling::of_frame(header) {
            warn!("{}: {error}; copied as it is", self.path.display());
        }
    }

    /// `bytes` begin as the chunk does; there may be none of them.
    fn look_at(&mut self, position: u64, bytes: &[u8]) {
        if let Some(Ok(header)) = bytes.get(..ChunkHeader::LEN).map(ChunkHeader::parse) {
            self.note(position, self.check(position, &header));
        }
    }

    fn check(&self, position: u64, header: &ChunkHeader) -> format::Result<()> {
        (self.fit)(position).check(&header.traits())
    }

    fn note(&mut self, position: u64, checked: format::Result<()>) {
        let Err(error) = checked else { return };
        self.count += 1;
        if self.count <= MOST_MISFITS {
            warn!("{}: chunk {position}: {error}; copied as it is", self.path.display());
        }
    }

    fn end(&self) {
        if self.count > MOST_MISFITS {
            let more = self.count - MOST_MISFITS;
            warn!("{}: {more} more chunks do not fit, and are copied as they are; b2fuse check names them", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_copy_is_whole_or_nothing() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cframe/chunks-3.b2frame");
        let copy = FrameCopy::of(&Location::existing(&source).unwrap()).unwrap();
        for layout in [Layout::Contiguous, Layout::Sparse] {
            let dir = tempfile::tempdir().unwrap();
            let at = Location::to_be(&dir.path().join("copy")).unwrap();
            let names = || std::fs::read_dir(dir.path()).unwrap().count();
            let target = copy.create(&at, layout, NewFrame::default()).unwrap();
            let mut chunks = 0;
            let stopped = copy.run(&*target, &mut |_| {
                chunks += 1;
                chunks < 2
            });
            assert!(!stopped.unwrap() && target.committed().is_none());
            drop(target);
            assert_eq!((chunks, names()), (2, 0), "{layout:?}");

            let target = copy.create(&at, layout, NewFrame::default()).unwrap();
            let mut bytes = 0;
            let done = copy.run(&*target, &mut |len| {
                bytes += u64::from(len);
                true
            });
            target.close().unwrap();
            assert!(done.unwrap());
            assert_eq!((bytes, names()), (copy.bytes(), 1), "{layout:?}");
            let again = FrameCopy::of(&at).unwrap();
            assert_eq!((again.image.entries.len(), &again.lens), (3, &copy.lens));
        }
    }
}
