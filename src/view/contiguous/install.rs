//! How what was written becomes what the frame is: at a close, at an fsync, when nobody writes any more; and how that goes to
//! the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use log::{debug, error, warn};

use super::recognize::{Candidate, Recognized, is_begun, may_become, recognize};
use super::state::{Contiguous, FRAME};
use crate::format;
use crate::store::StoreError;
use crate::view::frame_file::layout::FileLayout;
use crate::view::frame_file::overlay::{Overlaid, Overlay, Verdict};
use crate::view::frame_view::Take;
use crate::view::nodes::Name;
use crate::view::single::{Single, State};
use crate::view::writing::Change;
use crate::view::{Handle, Ino, Invalidation, Invalidations, Lost, Result, ViewError};

/// How long nobody may have written before a frame that was not written by whole changes is taken for one.
const SETTLE_AFTER: Duration = Duration::from_secs(1);
/// How long nobody may have written before what is no frame is dropped.
const DROP_AFTER: Duration = Duration::from_secs(10);

/// On whose behalf what was written is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// A close: what is no frame is refused.
    Close,
    /// A close while another handle that has written is open: what is no frame is kept.
    CloseBeforeOthers,
    /// A change of length without a handle: what is no frame is dropped, if it was nothing but that.
    Truncate,
    /// Somebody who wants it on disk: every frame is taken, and what can never be one is refused once.
    Sync,
    /// Nobody, or somebody who wants other files on disk: every frame is taken.
    Settle,
}

impl Look {
    /// Whether a frame is taken that was not written by whole changes.
    fn takes_all(self) -> bool {
        matches!(self, Look::Sync | Look::Settle)
    }
}

impl Single<Contiguous> {
    // --- writing ---

    /// Changes the bytes of the frame. The caller has `writing`.
    pub(super) fn change_frame(&self, handle: Handle, change: Change<'_>) -> Result<()> {
        let guard = self.store.enter();
        let (layout, overlay, another) = {
            let mut state = self.state.write();
            state.frame.leave_source();
            // Those who wrote what was refused may go on with it; to others it is as if it had never been.
            let open = state.nodes.handle(handle)?;
            let current = state.frame.overlay.clone().filter(|overlay| !overlay.refused() || open.has_part_in(overlay.serial));
            let overlay =
                current.unwrap_or_else(|| Arc::new(Overlay::new(state.nodes.serial(), state.frame.layout.len(), &self.drafts)));
            let another = state.nodes.take_part(handle, overlay.serial)?;
            state.frame.overlay = Some(Arc::clone(&overlay));
            state.frame.is_gone = false;
            (Arc::clone(&state.frame.layout), overlay, another)
        };
        let overlaid = Overlaid { store: &*self.store, guard: &guard, layout: &layout, overlay: &overlay };
        let changed = overlay.inner.write().apply(handle, another, change, &overlaid);
        overlay.set_refused(false);
        changed.map_err(|error| self.held_error("hold what was written", error))
    }

    /// What a close of a handle does: nothing, unless the handle has a part in what is written.
    pub(super) fn close_handle(&self, handle: Handle, look: Look, invalidations: &mut Invalidations) -> Result<()> {
        if !self.has_part(handle)? {
            return Ok(());
        }
        let _writing = self.writing.lock();
        // Another may have begun to write while the lock was waited for.
        if !self.has_part(handle)? {
            return Ok(());
        }
        let is_before_others = self.close_before_others(handle)?;
        let look = if look == Look::Close && is_before_others { Look::CloseBeforeOthers } else { look };
        self.judge(look, invalidations)
    }

    /// Marks a handle as closed. Returns whether another one that has a part in what is written is not. The caller has `writing`.
    fn close_before_others(&self, handle: Handle) -> Result<bool> {
        let state = self.state.read();
        state.nodes.handle(handle)?.close();
        let Some(overlay) = &state.frame.overlay else { return Ok(false) };
        Ok(state.nodes.another_writer(handle, overlay.serial).is_some())
    }

    /// Whether what is written is this handle's as well.
    fn has_part(&self, handle: Handle) -> Result<bool> {
        let state = self.state.read();
        let open = state.nodes.handle(handle)?;
        let joined = |overlay: &Arc<Overlay>| open.has_part_in(overlay.serial);
        Ok(state.ino(FRAME) == Some(open.ino) && state.frame.overlay.as_ref().is_some_and(joined))
    }

    /// Takes what is written over the frame for what it is now. The caller has `writing`.
    fn judge(&self, look: Look, invalidations: &mut Invalidations) -> Result<()> {
        let guard = self.store.enter();
        let (layout, overlay, is_written) = {
            let state = self.state.read();
            let Some(overlay) = state.frame.overlay.clone() else { return Ok(()) };
            let is_written = state.nodes.is_written(overlay.serial);
            (Arc::clone(&state.frame.layout), overlay, is_written)
        };
        let (dirty, verdict) = {
            let inner = overlay.inner.read();
            (inner.dirty, inner.verdict.clone())
        };
        let file = Overlaid { store: &*self.store, guard: &guard, layout: &layout, overlay: &overlay };
        match verdict {
            _ if dirty => {}
            Verdict::Held(error) => return self.say_held(&file, error, look, invalidations),
            Verdict::Unconfirmed if !look.takes_all() => return Ok(()),
            _ => {}
        }
        self.mend_len(&file, invalidations)?;
        let found = recognize(&file, look.takes_all(), is_written);
        let verdict = match &found {
            Ok(Recognized::Held(error)) => Verdict::Held(error.clone()),
            Ok(Recognized::Unconfirmed) => Verdict::Unconfirmed,
            Ok(Recognized::Same | Recognized::Frame(_)) => Verdict::Open,
            Err(_) => Verdict::Unstored,
        };
        let mtime = {
            let mut inner = overlay.inner.write();
            // Another client may write on, whose close looks again.
            inner.dirty = is_written && inner.writers().is_some();
            inner.verdict = verdict;
            inner.mtime
        };
        match found? {
            Recognized::Same => {
                let mut state = self.state.write();
                state.frame.overlay = None;
                state.frame_changed(mtime);
                Ok(())
            }
            Recognized::Frame(candidate) => {
                self.install_layout(&mut self.state.write(), *candidate, &overlay, invalidations);
                Ok(())
            }
            Recognized::Unconfirmed => {
                debug!("{}: held: a frame, but perhaps not the whole change", self.store.path().display());
                Ok(())
            }
            Recognized::Held(error) => {
                debug!("{}: held: {error}", self.store.path().display());
                self.say_held(&file, error, look, invalidations)
            }
        }
    }

    /// What is said of bytes that are not a frame: an fsync says it once, and not after a close has said it; a close says it each time.
    fn say_held(&self, file: &Overlaid<'_>, error: format::Error, look: Look, invalidations: &mut Invalidations) -> Result<()> {
        let overlay = file.overlay;
        let (from_nothing, is_told, waits) = {
            let inner = overlay.inner.read();
            (inner.below() == 0, inner.is_told, inner.dirty)
        };
        match look {
            Look::Settle | Look::CloseBeforeOthers => return Ok(()),
            Look::Sync if is_told || waits || may_become(file, from_nothing) => return Ok(()),
            Look::Sync | Look::Close | Look::Truncate => overlay.inner.write().is_told = true,
        }
        if look == Look::Sync {
            return Err(ViewError::Rejected(error));
        }
        // Nothing of the old frame is left, so no round of writing is to come, but after a new frame's first one.
        if look == Look::Close && from_nothing && !overlay.refused() && !is_begun(file) {
            let state = self.state.read();
            overlay.set_refused(true);
            invalidations.extend(state.ino(FRAME).map(Invalidation::Data));
            return Err(ViewError::Rejected(error));
        }
        Err(ViewError::Unfinished(error))
    }

    /// Makes a frame the one that is shown, and that the next commit takes.
    fn install_layout(
        &self,
        state: &mut State<Contiguous>,
        candidate: Candidate,
        overlay: &Overlay,
        invalidations: &mut Invalidations,
    ) {
        let Candidate { layout, staged, dropped, holes } = candidate;
        let (mtime, was_refused) = {
            let inner = overlay.inner.read();
            (inner.mtime, inner.was_refused)
        };
        if let Some(ino) = state.ino(FRAME) {
            match was_refused {
                true => invalidations.push(Invalidation::Data(ino)),
                false => {
                    invalidations.extend(holes.iter().map(|hole| Invalidation::Range(ino, hole.start, hole.end - hole.start)))
                }
            }
        }
        let frame = &mut state.frame;
        if !same_image(&frame.layout, &layout) {
            frame.version += 1;
        }
        if frame.layout.tail_start != layout.tail_start || frame.layout.tail != layout.tail {
            frame.former_lens.clear();
        }
        for key in &dropped {
            // One that a commit has taken is the store's affair.
            if frame.staged.remove(key) {
                state.chunks.discard(*key);
            }
        }
        debug!("{}: installed: {} new chunks of {}", self.store.path().display(), staged.len(), layout.image.entries.len());
        frame.staged.extend(staged);
        frame.layout = Arc::new(layout);
        frame.overlay = None;
        state.frame_changed(mtime);
    }

    /// Makes a file, whose name is `from`, the frame's, as a copy over it would; what is no frame changes nothing. The caller has
    /// `writing`.
    pub(super) fn replace_frame(&self, from: &Name, ino: Ino, invalidations: &mut Invalidations) -> Result<()> {
        let is_begun = self.state.read().nodes.get(ino).is_some_and(|node| node.writing.is_some());
        let writing = self.draft_of(ino)?;
        let guard = self.store.enter();
        let (layout, serial, is_written) = {
            let mut state = self.state.write();
            state.frame.leave_source();
            (Arc::clone(&state.frame.layout), state.nodes.serial(), state.nodes.is_written(writing.serial))
        };
        let (taken, writers) = {
            let mut inner = writing.inner.write();
            (std::mem::replace(&mut inner.bytes, self.empty_draft()), inner.writers.clone())
        };
        let overlay = Overlay::of_draft(serial, taken, writers);
        let found = {
            let file = Overlaid { store: &*self.store, guard: &guard, layout: &layout, overlay: &overlay };
            recognize(&file, true, is_written)
        };
        // Before the names change: the kernel repeats what it was answered ESTALE, and would find no file of the old name any more.
        let stale = matches!(found, Ok(Recognized::Frame(_))) && self.store.changed_outside().unwrap_or(false);
        let refusal = match found {
            Ok(Recognized::Frame(candidate)) if stale => {
                candidate.staged.iter().for_each(|key| self.store.discard(*key));
                let reason = "it is not written over".to_owned();
                ViewError::Store(StoreError::Stale { path: self.store.path(), reason })
            }
            Ok(Recognized::Frame(candidate)) => {
                let holes = candidate.holes.clone();
                let mut state = self.state.write();
                state.unlink(&Name::Frame(FRAME), Take::Kept)?;
                self.install_layout(&mut state, *candidate, &overlay, invalidations);
                state.unlink(from, Take::Moved)?;
                state.link_frame(FRAME, ino);
                state.end_writing(ino, true);
                state.frame.is_gone = false;
                invalidations.extend(holes.iter().map(|hole| Invalidation::Range(ino, hole.start, hole.end - hole.start)));
                return Ok(());
            }
            Ok(Recognized::Held(error)) => ViewError::Rejected(error),
            Ok(Recognized::Same | Recognized::Unconfirmed) => ViewError::Invalid, // neither is said of what covers everything
            Err(error) => ViewError::Store(error),
        };
        if let Some(taken) = overlay.into_draft() {
            writing.inner.write().bytes = taken;
        }
        if !is_begun {
            self.state.write().end_writing(ino, false);
        }
        Err(refusal)
    }
}

impl Single<Contiguous> {
    // --- time ---

    /// When what is held will be taken or dropped; does it if it is time.
    pub(super) fn settle_due(&self, now: Instant, invalidations: &mut Invalidations) -> Option<Instant> {
        let due = |state: &State<Contiguous>| {
            let overlay = state.frame.overlay.as_ref().filter(|_| !state.has_writer())?;
            let inner = overlay.inner.try_read()?; // whoever writes pokes us
            match &inner.verdict {
                Verdict::Unconfirmed | Verdict::Open => Some((inner.last_write + SETTLE_AFTER, None)),
                Verdict::Held(error) if state.frame_writers() == 0 => Some((inner.last_write + DROP_AFTER, Some(error.clone()))),
                Verdict::Held(_) | Verdict::Unstored => None,
            }
        };
        let (at, _) = due(&self.state.read())?;
        if at > now {
            return Some(at);
        }
        let _writing = self.writing.lock();
        let (at, held) = due(&self.state.read())?; // nobody writes now
        if at > now {
            return Some(at);
        }
        match held {
            Some(error) => self.drop_held(&error, invalidations),
            None => {
                if let Err(error) = self.judge(Look::Settle, invalidations) {
                    error!("{error}");
                }
            }
        }
        drop(_writing);
        if let Err(error) = self.publish_soon() {
            error!("{error}");
        }
        due(&self.state.read()).map(|(at, _)| at)
    }

    /// Why what is held is no frame, if nobody has it open for writing.
    fn left_behind(&self) -> Option<format::Error> {
        let state = self.state.read();
        let overlay = state.frame.overlay.as_ref().filter(|_| state.frame_writers() == 0)?;
        match &overlay.inner.try_read()?.verdict {
            Verdict::Held(error) => Some(error.clone()),
            _ => None,
        }
    }

    pub(super) fn drop_unfinished(&self, invalidations: &mut Invalidations) {
        if self.left_behind().is_some() {
            let _writing = self.writing.lock();
            if let Some(error) = self.left_behind() {
                self.drop_held(&error, invalidations);
            }
        }
    }

    fn drop_held(&self, error: &format::Error, invalidations: &mut Invalidations) {
        warn!("{}: the bytes that were written are dropped, because they are not a frame: {error}", self.store.path().display());
        drop_overlay(&mut self.state.write(), invalidations);
    }

    /// What a change of length without a handle has left is dropped, if it is nothing but that, and nobody else may write: this one was
    /// opened for it.
    pub(super) fn drop_truncated(&self, Handle(handle): Handle, invalidations: &mut Invalidations) {
        let _writing = self.writing.lock();
        let mut state = self.state.write();
        let is_of_it = state.frame.overlay.as_ref().is_some_and(|overlay| overlay.serial > handle);
        if is_of_it && state.frame_writers() <= 1 {
            drop_overlay(&mut state, invalidations);
        }
    }

    /// Everything that can be a part of the frame is.
    pub(super) fn settle(&self, look: Look, invalidations: &mut Invalidations) -> Result<()> {
        let _writing = self.writing.lock();
        self.judge(look, invalidations)
    }

    /// The end of a read-write mount.
    pub(super) fn end(&self, invalidations: &mut Invalidations) {
        let held = self.state.read().frame.overlay.clone();
        if let Some(Verdict::Held(error)) = held.map(|overlay| overlay.inner.read().verdict.clone()) {
            self.drop_held(&error, invalidations);
        }
        if self.state.read().frame.is_gone {
            warn!("{}: its file was removed, and no other took its place: SOURCE stays as it is", self.store.path().display());
        }
    }

    /// Saves the whole frame, as it was accepted, beside SOURCE, unless that was done before.
    pub(super) fn save_frame(&self) -> Lost {
        let _writing = self.writing.lock();
        let guard = self.store.enter_to_save();
        let (layout, overlay, name, numbers) = {
            let state = self.state.read();
            let frame = &state.frame;
            // What is no frame was never accepted.
            let accepted = |overlay: &&Arc<Overlay>| !matches!(overlay.inner.read().verdict, Verdict::Held(_));
            let overlay = frame.seen_overlay().filter(accepted).cloned();
            let numbers = match &overlay {
                Some(overlay) => [overlay.serial, overlay.inner.read().version],
                None => [state.nodes.version(), frame.version],
            };
            (Arc::clone(&frame.layout), overlay, frame.name.to_string_lossy().into_owned(), numbers)
        };
        let overlay = overlay.unwrap_or_else(|| Arc::new(Overlay::new(0, layout.len(), &self.drafts)));
        let file = Overlaid { store: &*self.store, guard: &guard, layout: &layout, overlay: &overlay };
        self.save(name, numbers, &file)
    }
}

/// Readers see the layout again.
fn drop_overlay(state: &mut State<Contiguous>, invalidations: &mut Invalidations) {
    if state.frame.overlay.take().is_some() {
        invalidations.extend(state.ino(FRAME).map(Invalidation::Data));
    }
}

/// Whether two layouts make the same frame in the store, which sets lengths by itself.
fn same_image(old: &FileLayout, new: &FileLayout) -> bool {
    let mut header = new.header().clone();
    header.set_frame_len(old.header().frame_len());
    header.set_cbytes(old.header().cbytes());
    *old.header() == header && old.trailer() == new.trailer() && old.image.entries == new.image.entries
}
