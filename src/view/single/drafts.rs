//! Reading what files hold, and drafts of it.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use super::{Single, State};
use crate::store::{ChunkKey, Draft, ReadAt, ReadGuard, StoreError};
use crate::view::content::Content;
use crate::view::frame_view::FrameView;
use crate::view::writers::Writers;
use crate::view::writing::{Change, Writing};
use crate::view::{Handle, Ino, Result, ViewError};

/// How much of a file is copied into a draft at once.
const COPY_PIECE: usize = 1 << 20;

impl<V: FrameView> Single<V> {
    /// A failure to read or to write what clients have written.
    pub(in crate::view) fn held_error(&self, action: &'static str, source: io::Error) -> ViewError {
        if source.raw_os_error() == Some(libc::EFBIG) {
            return ViewError::TooBig;
        }
        // What is below may come from the store.
        let stale = |error: &StoreError| match error {
            StoreError::Stale { path, reason } => Some(StoreError::Stale { path: path.clone(), reason: reason.clone() }),
            _ => None,
        };
        if let Some(error) = source.get_ref().and_then(|error| error.downcast_ref()).and_then(stale) {
            return ViewError::Store(error);
        }
        ViewError::Store(StoreError::Io { path: self.store.path(), action, source })
    }

    /// How a file is called in messages.
    pub(in crate::view) fn show(&self, ino: Ino) -> String {
        let state = self.state.read();
        let name = state.nodes.name(ino).ok().flatten().map(|name| state.text(&name));
        let name = name.unwrap_or_else(|| "a removed file".into());
        format!("{}: {}", self.store.path().display(), name.to_string_lossy())
    }

    /// The length of a stored chunk, asked for the first time. `guard` is older than the look-up of `key`.
    fn chunk_len(&self, guard: &ReadGuard<'_>, ino: Ino, key: ChunkKey, known: Option<u32>) -> Result<u32> {
        match known {
            Some(len) => Ok(len),
            None => {
                let len = self.store.len_of(guard, key)?;
                self.state.read().learn(ino, key, len);
                Ok(len)
            }
        }
    }

    /// The length of what a file holds. `guard` is older than its look-up, as in all that follows.
    pub(super) fn len(&self, guard: &ReadGuard<'_>, ino: Ino, content: &Content) -> Result<u64> {
        Ok(match content {
            Content::Empty => 0,
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Chunk(key, len) => self.chunk_len(guard, ino, *key, *len)?.into(),
            Content::Draft(writing) => writing.inner.read_recursive().bytes.len(),
            Content::Frame(file) => file.len(),
            Content::Data(data) => data.bytes(),
        })
    }

    /// Reads what a file holds; a short count means that it ends there.
    #[expect(clippy::indexing_slicing, reason = "no more is counted than there is in the buffer")]
    pub(in crate::view) fn read_content(
        &self,
        guard: &ReadGuard<'_>,
        ino: Ino,
        content: &Content,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let failed = |error| self.held_error("read what was written", error);
        match content {
            Content::Empty => Ok(0),
            Content::Bytes(bytes) => {
                let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
                let count = rest.len().min(buf.len());
                buf[..count].copy_from_slice(&rest[..count]);
                Ok(count)
            }
            Content::Chunk(key, len) => {
                let len = self.chunk_len(guard, ino, *key, *len)?;
                Ok(self.store.read_chunk(guard, *key, len, offset, buf)?)
            }
            Content::Draft(writing) => writing.inner.read_recursive().bytes.read_at(buf, offset).map_err(failed),
            Content::Data(data) => data.read(&self.store, guard, offset, buf),
            Content::Frame(file) => Ok(file.read(&*self.store, guard, offset, buf).map_err(failed)??),
        }
    }

    pub(in crate::view) fn empty_draft(&self) -> Draft {
        Draft::new(&self.drafts)
    }

    /// Changes the draft of an open file, begun if there is none.
    pub(in crate::view) fn change_draft(&self, handle: Handle, change: Change<'_>) -> Result<()> {
        if change.end() > i64::MAX as u64 {
            return Err(ViewError::TooBig);
        }
        loop {
            let (ino, writing, another) = {
                let state = self.state.read();
                let open = state.nodes.handle(handle)?;
                state.place(open.ino)?;
                let writing = state.nodes.get(open.ino).and_then(|node| node.writing.clone());
                // Those who wrote what was refused may go on with it; to others it is as if it had never been.
                let writing = writing.filter(|writing| !writing.is_refused() || open.has_part_in(writing.serial));
                let taken = writing.as_ref().map(|writing| state.nodes.take_part(handle, writing.serial)).transpose()?;
                (open.ino, writing, taken.flatten())
            };
            match (writing, change) {
                (_, Change::Empty) => {
                    let mut state = self.change_to_begin();
                    let before = state.nodes.get(ino).and_then(|node| node.writing.as_ref()).map(|writing| writing.serial);
                    let another = before.and_then(|serial| state.nodes.another_writer(handle, serial));
                    let writing = state.begin(ino, self.empty_draft(), SystemTime::now())?;
                    if another.is_some() {
                        writing.inner.write().writers = Some(Writers::of_emptied(handle));
                    }
                    state.nodes.take_part(handle, writing.serial)?;
                    return Ok(());
                }
                (None, _) => self.begin_from_content(ino)?,
                (Some(writing), _) => {
                    let applied = writing.apply(handle, another, change);
                    if applied.map_err(|error| self.held_error("hold what was written", error))?.is_some() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Begins a draft with what the file holds now.
    #[expect(clippy::indexing_slicing, reason = "no more is counted than there is in the buffer")]
    fn begin_from_content(&self, ino: Ino) -> Result<()> {
        let guard = self.store.enter();
        let content = self.state.read().settled(ino)?;
        let mut draft = self.empty_draft();
        let len = self.len(&guard, ino, &content)?;
        let mut piece = vec![0; COPY_PIECE.min(len as usize)];
        let mut offset = 0;
        while offset < len {
            let count = self.read_content(&guard, ino, &content, offset, &mut piece)?;
            if count == 0 {
                break;
            }
            draft.write_at(&piece[..count], offset).map_err(|error| self.held_error("hold what was written", error))?;
            offset += count as u64;
        }
        let mut state = self.change_to_begin();
        let same = content.is_same(&state.settled(ino)?);
        let is_taken = |state: &State<V>| state.nodes.get(ino).and_then(|node| node.seen_writing()).is_some();
        // Otherwise somebody was faster; the caller looks again.
        if same && !is_taken(&state) {
            let mtime = state.meta(ino).mtime;
            state.begin(ino, draft, mtime)?;
        }
        Ok(())
    }

    /// The file's draft, begun from what it holds if there is none.
    pub(in crate::view) fn draft_of(&self, ino: Ino) -> Result<Arc<Writing>> {
        loop {
            let writing = self.state.read().nodes.get(ino).and_then(|node| node.seen_writing().cloned());
            match writing {
                Some(writing) => return Ok(writing),
                None => self.begin_from_content(ino)?,
            }
        }
    }
}
