//! A frame as the directory that C-Blosc2 would have written: the sparse view. Chunk files are named by the chunk's position when the
//! frame was opened, or, where the store has a file for each chunk as well, by the id that it has there.
//!
//! - [`state`]: what files hold, and the index;
//! - [`table`]: from ids to stored chunks;
//! - `write`: what a close makes of drafts, and files that are renamed onto others;
//! - `apply_index`: taking an index; `xattr`: vlmetalayers that are set;
//! - `special`: chunk files that the index has as special entries;
//! - `times`: since when chunk files have their content;
//! - `place_by_position`: chunk files that take their places by position; `publish`: what goes to the store, and what is left at the end.
//!
//! What a write means is in three steps. Bytes are written to a draft, which readers see. A close makes the draft a chunk that
//! the store has staged, or an index that is applied, or refuses it. When index and chunks agree, the whole is published: handed
//! to the store's commit.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::state::{HeldIndex, INDEX, Sparse, chunk_of, number, stored};
use self::write::Unfinished;
use super::content::Content;
use super::frame_view::{About, Committed, Files, FrameView, Standing, Take, Why};
use super::names::{INDEX_NAME, is_suffixed, is_temporary};
use super::nodes::{Name, Number, Root};
use super::single::{Single, State};
use super::state_lock::Changing;
use super::writing::Change;
use super::{Handle, Ino, Invalidations, Lost, Result, ViewError};
use crate::format::trailer::Trailer;
use crate::format::{ChunkId, IndexEntry, index_file};
use crate::store::validate::MAX_CHUNK_LEN;
use crate::store::{ChunkKey, FrameImage, FrameStore};

mod apply_index;
mod place_by_position;
mod publish;
mod special;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod times;
mod write;
mod xattr;

/// How long nothing may change before files written by hand take their places.
const SETTLE_AFTER: Duration = Duration::from_secs(1);

/// The sparse view of a frame.
pub type SparseView = Single<Sparse>;

impl Single<Sparse> {
    /// Shows a store's frame; one without a frame yet (`--create`) as an empty directory.
    ///
    /// # Errors
    /// A chunk whose header lies, in a frame small enough to look at all.
    pub fn new(store: Arc<dyn FrameStore>, read_only: bool) -> Result<Self> {
        Self::over(store, Root::Directory, read_only, Box::new(|store| Sparse::load(store, None)))
    }
}

impl FrameView for Sparse {
    /// Most chunks are no larger.
    const READ_AHEAD: u32 = 1 << 20;
    const HAS_HOLES: bool = false;
    const TAKES_MTIME: bool = false;
    const TAKES_SUFFIXES: bool = true;

    fn parse(&self, name: &OsStr) -> Option<Name> {
        parse(name)
    }

    fn name(&self, file: Number) -> OsString {
        chunk_of(file).map_or_else(|| INDEX_NAME.into(), |id| id.file_name().into())
    }

    fn files(&self, which: Files, most: usize) -> Vec<Number> {
        match which {
            Files::From(first) => {
                let index = (first == INDEX && self.index_bytes.is_some()).then_some(INDEX);
                let chunks = self.table.files_from(first.0.saturating_sub(1)).map(|(id, _)| number(id));
                index.into_iter().chain(chunks).take(most).collect()
            }
            Files::Behind(file) => {
                let position = chunk_of(file).and_then(|id| self.table.get(id).position());
                let (Some(position), Some(index)) = (position, &self.applied) else { return Vec::new() };
                let behind = index.entries.get(position as usize + 1..).unwrap_or_default();
                stored(behind).take(most).map(number).collect()
            }
        }
    }

    fn content(&self, file: Number) -> Option<Content> {
        match chunk_of(file) {
            None => self.index_bytes.clone().map(Content::Bytes),
            Some(id) => {
                let slot = self.table.get(id);
                slot.key().map(|key| Content::Chunk(key, slot.len()))
            }
        }
    }

    fn about(&self, file: Option<Number>) -> About<'_> {
        match file.map_or(Some(INDEX), Some).and_then(chunk_of) {
            None => About { frame: self.applied.as_ref().map(|index| (&index.header, &index.trailer)), ..About::default() },
            Some(id) => About { position: self.table.get(id).position(), since: self.time_at_mount(id), frame: None },
        }
    }

    fn learn(&self, file: Number, key: ChunkKey, len: u32) {
        if let Some(slot) = chunk_of(file).map(|id| self.table.get(id)).filter(|slot| slot.key() == Some(key)) {
            slot.learn_len(len);
        }
    }

    fn forget(&self) {}

    fn report(&self) -> Option<String> {
        None
    }

    fn begun(&mut self, file: Number) {
        if file == INDEX {
            // From here on the file is not the applied index any more, whatever it will be.
            self.held = HeldIndex::Unparsed;
        }
    }

    fn write(this: &Single<Self>, handle: Handle, file: Option<Number>, change: Change<'_>) -> Result<()> {
        let most = match file {
            None => i64::MAX as u64,
            Some(INDEX) => index_file::MAX_LEN,
            Some(_) => MAX_CHUNK_LEN,
        };
        if change.end() > most {
            return Err(ViewError::TooBig);
        }
        this.change_draft(handle, change)?;
        this.state.write().frame.touch();
        Ok(())
    }

    fn put(this: &Single<Self>, from: &Name, ino: Ino, file: Number, invalidations: &mut Invalidations) -> Result<()> {
        match chunk_of(file) {
            Some(id) => this.rename_onto_chunk(from, id, ino, invalidations),
            None => this.rename_onto_index(from, ino, invalidations),
        }
    }

    fn change_to_take<'a>(this: &'a Single<Self>, names: &[&Name]) -> Changing<'a, State<Self>> {
        let needed = |frame: &Self| {
            let files = names.iter().filter_map(|name| if let Name::Frame(file) = name { Some(*file) } else { None });
            files.filter_map(|file| frame.unmeasured_if_varying(file)).collect()
        };
        // A damaged chunk can be removed.
        this.change_knowing(needed).unwrap_or_else(|_| this.state.write())
    }

    fn take(state: &mut State<Self>, file: Number, how: Take) -> Result<Content> {
        Ok(state.take(file, how))
    }

    fn annotate(state: &mut State<Self>, trailer: Trailer, invalidations: &mut Invalidations) -> Result<()> {
        state.set_trailer(trailer, invalidations)
    }

    fn settle(this: &Single<Self>, why: Why, invalidations: &mut Invalidations) -> Result<Option<Instant>> {
        match why {
            Why::Close(handle) | Why::Truncate(handle) => {
                // This draft and no other: another may have begun a new one by now.
                let (joined, is_before_others) = {
                    let state = this.state.read();
                    let joined = state.joined(handle)?;
                    state.nodes.handle(handle)?.close();
                    let another = joined.as_ref().and_then(|(_, _, writing)| state.nodes.another_writer(handle, writing.serial));
                    (joined, another.is_some() && matches!(why, Why::Close(_)))
                };
                let unfinished = if is_before_others { Unfinished::Leave } else { Unfinished::Refuse };
                if let Some((ino, file, writing)) = joined {
                    this.close_writing(ino, file, &writing, unfinished, invalidations)?;
                }
            }
            Why::Sync(ino) => {
                let closed = this.close_file(ino, Unfinished::Sync, invalidations);
                // What is refused keeps nothing else from disk.
                let refused = match closed {
                    Err(error @ ViewError::Rejected(_)) => Err(error),
                    closed => Ok(closed?),
                };
                this.store_again(invalidations)?;
                this.settle(invalidations)?;
                refused?;
            }
            Why::Idle(now) => return Ok(this.work(now, invalidations)),
            Why::HandOver => {
                this.drop_unfinished(invalidations);
                this.state.write().drop_empty(invalidations);
                this.settle(invalidations)?;
            }
            Why::LeftBehind => this.drop_unfinished(invalidations),
            Why::Leave => {
                // What is there cannot be made a part of what others have made.
                this.following.hindrance(&*this.store).map_or(Ok(()), Err)?;
                this.close_all(invalidations)?;
                this.settle(invalidations)?;
            }
            Why::End => this.keep_times_at_close(),
            Why::Unwritten(_) => {}
        }
        Ok(None)
    }

    fn is(state: &State<Self>, what: Standing) -> bool {
        match what {
            Standing::News => state.publishable(),
            Standing::Changed => state.frame.frame_changed != state.frame.published,
            Standing::Uncommitted => state.is_uncommitted(),
            Standing::Unfinished => state.is_unfinished(),
            Standing::Renamed => !state.frame.is_in_order() || !state.frame.special_files.is_empty(),
        }
    }

    fn image(state: &State<Self>) -> Option<(FrameImage, Committed<Self>)> {
        if !state.publishable() {
            return None;
        }
        let frame = &state.frame;
        let index = frame.applied.as_ref()?;
        // Not collected to an option: that grows a vector step by step, and there may be a million entries.
        let mut all = true;
        let mut key_of = |id: ChunkId| {
            let key = frame.table.get(id).key();
            all &= key.is_some();
            key.unwrap_or(ChunkKey::new(0))
        };
        let keys: Vec<IndexEntry<ChunkKey>> = index.entries.iter().map(|entry| entry.map(&mut key_of)).collect();
        if !all {
            return None;
        }
        let image = FrameImage { header: index.header.clone(), trailer: index.trailer.clone(), entries: Arc::new(keys) };
        let fresh: Vec<_> = frame.fresh.keys().map(|id| (*id, frame.table.get(*id).key())).collect();
        let changes = frame.frame_changed;
        let committed = move |state: &mut State<Self>| {
            state.frame.published = changes;
            for (id, key) in fresh {
                if state.frame.table.get(id).key() == key {
                    state.frame.fresh.remove(&id);
                }
            }
        };
        Some((image, Box::new(committed)))
    }

    fn save_lost(this: &Single<Self>, all: bool) -> Vec<Lost> {
        this.save_without_place(all)
    }
}

/// What a name stands for: the index, a chunk's file, or a temporary file, which begins with a dot (`.b2lock` among them), is a
/// backup of one of the others, or has the name of one of the first two and a suffix.
fn parse(name: &OsStr) -> Option<Name> {
    if name == INDEX_NAME {
        return Some(Name::Frame(INDEX));
    }
    if is_temporary(name, |of| parse(of).is_some()) || is_suffixed(name, is_of_frame) {
        return Some(Name::Temporary(name.to_owned()));
    }
    ChunkId::from_file_name(name.as_bytes()).map(|id| Name::Frame(number(id)))
}

/// Returns whether a name is that of the index or of a chunk's file.
fn is_of_frame(name: &OsStr) -> bool {
    name == INDEX_NAME || ChunkId::from_file_name(name.as_bytes()).is_some()
}
