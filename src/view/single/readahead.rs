//! What is asked of the store before it is read.

use std::sync::atomic::Ordering::Relaxed;

use super::{Place, Single};
use crate::format::chunk::ChunkHeader;
use crate::store::Want;
use crate::view::Ino;
use crate::view::content::Content;
use crate::view::frame_view::{Files, FrameView};
use crate::view::prefetch::{Next, Push};

/// Names that are looked up, and nothing read, by those who do not want to read.
const ONLY_LOOKING: u32 = 8;
/// The most of a chunk that is read ahead of its header, in bytes.
const LIKELY_AT_MOST: u64 = 512 << 10;

impl<V: FrameView> Single<V> {
    /// See [`FileSystem::touched`](crate::view::FileSystem::touched).
    pub(super) fn prefetch_behind(&self, pid: u32, ino: Ino, read: Option<(u64, u32)>) -> Vec<Push> {
        let Next { pushes, bytes, places } = self.prefetcher.touched(pid, ino, read, |ino, most| self.following_files(ino, most));
        if let Some(bytes) = bytes {
            let content = self.state.read().settled(ino);
            match content {
                Ok(Content::Frame(file)) => self.store.prefetch(&file.layout.wants(bytes)),
                Ok(Content::Data(data)) => data.expect(&self.store, bytes),
                _ => {}
            }
        }
        if !places.is_empty() {
            let content = self.state.read().settled(ino);
            if let Ok(Content::Data(data)) = content {
                data.expect_places(&self.store, places);
            }
        }
        pushes
    }

    /// The files that a sequential reader is likely to want next, with their sizes.
    fn following_files(&self, ino: Ino, most: usize) -> Vec<(Ino, u64)> {
        let state = self.state.read();
        let Ok(Place::Frame(file)) = state.place(ino) else { return Vec::new() };
        let len = |file: &_| state.frame.content(*file).and_then(|content| content.chunk()?.1);
        let files = state.frame.files(Files::Behind(file), most);
        files.iter().map_while(|file| Some((state.nodes.ino(*file), len(file)?.into()))).collect()
    }

    /// Whoever looks up a name opens it next, as a rule: a chunk whose header has to be read from the disk for its length comes
    /// with it, or the disk would be waited for twice. Not so for those who only look.
    pub(super) fn prefetch_looked_up(&self, ino: Ino) {
        let lookups = &self.prefetcher.lookups;
        // Elsewhere the store knows best how to learn a length.
        if lookups.load(Relaxed) >= ONLY_LOOKING || self.store.local().is_none() {
            return;
        }
        lookups.fetch_add(1, Relaxed);
        let (Some(image), state) = (self.store.committed(), self.state.read()) else { return };
        let (Ok(Content::Chunk(key, None)), Ok(Place::Frame(file))) = (state.content(ino), state.place(ino)) else { return };
        // Half as much again as the average, but not more than an incompressible one.
        let average = image.header.cbytes() / (image.entries.len() as u64).max(1);
        let most = match u64::from(image.header.chunksize()) {
            0 => LIKELY_AT_MOST,
            chunksize => (ChunkHeader::LEN as u64 + chunksize).min(LIKELY_AT_MOST),
        } as u32;
        let likely = (average + average / 2).clamp(1, most.into()) as u32;
        let next = state.frame.files(Files::Behind(file), 1).first().and_then(|file| state.frame.content(*file));
        let next = next.and_then(|content| content.chunk()).map(|(key, _)| key);
        drop(state);
        self.store.prefetch(&[Want::Unknown { key, likely, most, next }]);
    }

    /// A chunk is read: who looks up names does so to read.
    pub(in crate::view) fn has_read(&self, content: &Content) {
        if matches!(content, Content::Chunk(..)) && self.prefetcher.lookups.load(Relaxed) > 0 {
            self.prefetcher.lookups.store(0, Relaxed);
        }
    }
}
